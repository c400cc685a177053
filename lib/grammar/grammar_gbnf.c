/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars in GBNF, llama.cpp's form: rules NAME ::= texts, classes, names, groups, repetitions and ways. The text follows the rule `root`. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct GbnfRule {
    Slice name;
    int32_t rule;
    Node *body; /* NULL: not read yet */
} GbnfRule;
typedef struct GbnfReader {
    Builder *b;
    const char *text, *at, *end;
    int depth;
    Tree tree;
    GbnfRule *rules; /* in the order in which their names were met */
    size_t n_rules, cap_rules;
} GbnfReader;

static Status gbnf_fault(const GbnfReader *r, const char *what) {
    size_t line = 1;
    const char *begin = r->text;
    for (const char *c = r->text; c < r->at; c++)
        if (*c == '\n') line++, begin = c + 1;
    return status_fail(ST_INPUT, "cannot use the grammar: line %zu, byte %zu: %s", line, (size_t)(r->at - begin) + 1, what);
}

static bool at_char(const GbnfReader *r, char c) { return r->at < r->end && *r->at == c; }

/* Blanks and comments; line ends only where the rule cannot end. */
static void skip_space(GbnfReader *r, bool lines) {
    for (; r->at < r->end; r->at++) {
        if (*r->at == '#') {
            while (r->at < r->end && *r->at != '\n') r->at++;
            if (r->at == r->end) return;
        }
        if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r' && !(lines && *r->at == '\n')) return;
    }
}

/* ---- characters ---- */

static int hex_value(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1; }

static Status read_code(GbnfReader *r, int digits, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < digits; i++) {
        if (r->at == r->end || hex_value(*r->at) < 0) return gbnf_fault(r, "hexadecimal digits are missing");
        *c = *c << 4 | (uint32_t)hex_value(*r->at++);
    }
    return *c <= LAST_CODE_POINT ? ST_OK : gbnf_fault(r, "no character has this number");
}

static Status read_character(GbnfReader *r, uint32_t *c) {
    static const char letters[] = "nrt\\\"[]", codes[] = "\n\r\t\\\"[]";
    if (!at_char(r, '\\')) {
        r->at += utf8_decode(r->at, (size_t)(r->end - r->at), c);
        return ST_OK;
    }
    if (++r->at == r->end) return gbnf_fault(r, "a backslash at the end");
    char e = *r->at;
    const char *known = memchr(letters, e, sizeof letters - 1);
    if (!known && !strchr("xuU", e)) return gbnf_fault(r, "an unknown escape");
    r->at++;
    if (!known) return read_code(r, e == 'x' ? 2 : e == 'u' ? 4 : 8, c);
    *c = (uint8_t)codes[known - letters];
    return ST_OK;
}

static Status read_literal(GbnfReader *r, Node **node) {
    TRY(node_new(&r->tree, NODE_SEQUENCE, node));
    for (r->at++; !at_char(r, '"');) {
        uint32_t c;
        Node *part;
        if (r->at == r->end) return gbnf_fault(r, "'\"' is missing");
        TRY(node_new(&r->tree, NODE_SET, &part));
        TRY(read_character(r, &c));
        TRY(charset_add(&part->set, c, c));
        node_add(*node, part);
    }
    r->at++;
    return ST_OK;
}

static Status read_class(GbnfReader *r, Node **node) {
    TRY(node_new(&r->tree, NODE_SET, node));
    r->at++;
    bool inverted = at_char(r, '^');
    r->at += inverted;
    while (!at_char(r, ']')) {
        uint32_t low, high;
        if (r->at == r->end) return gbnf_fault(r, "']' is missing");
        TRY(read_character(r, &low));
        high = low;
        if (r->end - r->at > 1 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            TRY(read_character(r, &high));
        }
        if (high < low) return gbnf_fault(r, "a range whose end is before its beginning");
        TRY(charset_add(&(*node)->set, low, high));
    }
    r->at++;
    return inverted ? charset_invert(&(*node)->set) : ST_OK;
}

/* ---- rules ---- */

static bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

static Status read_name(GbnfReader *r, GbnfRule **rule) {
    Slice name = {r->at, 0};
    while (r->at < r->end && is_name(*r->at)) r->at++, name.len++;
    if (name.len == 0) return gbnf_fault(r, "a name is missing");
    for (size_t i = 0; i < r->n_rules; i++) {
        *rule = &r->rules[i];
        if ((*rule)->name.len == name.len && !memcmp((*rule)->name.data, name.data, name.len)) return ST_OK;
    }
    int32_t number = build_rule(r->b);
    TRY(r->b->status);
    TRY(array_grow(&r->rules, &r->cap_rules, r->n_rules + 1, sizeof *r->rules, "rules"));
    *rule = &r->rules[r->n_rules++];
    **rule = (GbnfRule){name, number, NULL};
    return ST_OK;
}

static Status read_ways(GbnfReader *r, bool inner, Node **node);

static Status read_item(GbnfReader *r, Node **node) {
    GbnfRule *rule;
    switch (*r->at) {
    case '"': return read_literal(r, node);
    case '[': return read_class(r, node);
    case '.':
        r->at++;
        TRY(node_new(&r->tree, NODE_SET, node));
        return charset_add(&(*node)->set, 0, LAST_CODE_POINT);
    case '(':
        r->at++;
        if (++r->depth > GRAMMAR_DEPTH) return gbnf_fault(r, "too many groups within each other");
        TRY(read_ways(r, true, node));
        r->depth--;
        if (!at_char(r, ')')) return gbnf_fault(r, "')' is missing");
        r->at++;
        return ST_OK;
    default:
        TRY(read_name(r, &rule));
        TRY(node_new(&r->tree, NODE_RULE, node));
        (*node)->rule = rule->rule;
        return ST_OK;
    }
}

static bool read_number(GbnfReader *r, int64_t *number) {
    const char *begin = r->at;
    for (*number = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) *number = MIN(*number * 10 + (*r->at - '0'), (int64_t)1 << 30);
    return r->at > begin;
}

/* *, +, ?, {n}, {n,} or {n,m} after an item. */
static Status read_counts(GbnfReader *r, bool *repeats, int64_t *least, int64_t *most) {
    *least = at_char(r, '+');
    *most = at_char(r, '?') ? 1 : -1;
    *repeats = at_char(r, '*') || at_char(r, '+') || at_char(r, '?') || at_char(r, '{');
    if (!*repeats || *r->at++ != '{') return ST_OK;
    skip_space(r, false);
    if (!read_number(r, least)) return gbnf_fault(r, "a number is missing");
    *most = *least;
    skip_space(r, false);
    if (at_char(r, ',')) {
        r->at++;
        skip_space(r, false);
        if (!read_number(r, most)) *most = -1;
        skip_space(r, false);
    }
    if (!at_char(r, '}')) return gbnf_fault(r, "'}' is missing");
    r->at++;
    return *most < 0 || *most >= *least ? ST_OK : gbnf_fault(r, "a count whose end is before its beginning");
}

static bool way_ends(const GbnfReader *r) { return r->at == r->end || *r->at == '|' || *r->at == ')' || *r->at == '\n'; }

static Status read_way(GbnfReader *r, bool inner, Node **node) {
    TRY(node_new(&r->tree, NODE_SEQUENCE, node));
    for (skip_space(r, inner); !way_ends(r); skip_space(r, inner)) {
        Node *part, *repeat;
        bool repeats;
        int64_t least, most;
        TRY(read_item(r, &part));
        skip_space(r, inner);
        TRY(read_counts(r, &repeats, &least, &most));
        if (repeats) {
            TRY(node_new(&r->tree, NODE_REPEAT, &repeat));
            repeat->last = part;
            repeat->least = least;
            repeat->most = most;
            part = repeat;
        }
        node_add(*node, part);
    }
    return ST_OK;
}

/* inner: within parentheses, where lines may end. */
static Status read_ways(GbnfReader *r, bool inner, Node **node) {
    TRY(node_new(&r->tree, NODE_CHOICE, node));
    for (bool more = true; more;) {
        Node *way;
        TRY(read_way(r, inner, &way));
        node_add(*node, way);
        more = at_char(r, '|');
        r->at += more;
        if (more) skip_space(r, true);
    }
    return ST_OK;
}

static Status read_rules(GbnfReader *r) {
    for (skip_space(r, true); r->at < r->end; skip_space(r, true)) {
        GbnfRule *rule;
        Node *body;
        TRY(read_name(r, &rule));
        size_t i = (size_t)(rule - r->rules);
        if (rule->body) return gbnf_fault(r, "the rule has been given before");
        skip_space(r, false);
        if (r->end - r->at < 3 || memcmp(r->at, "::=", 3) != 0) return gbnf_fault(r, "'::=' is missing");
        r->at += 3;
        skip_space(r, true);
        TRY(read_ways(r, false, &body));
        r->rules[i].body = body;
        if (r->at < r->end && *r->at != '\n') return gbnf_fault(r, "')' without '('");
    }
    return ST_OK;
}

static Status build_rules(GbnfReader *r, int32_t *start) {
    const GbnfRule *root = NULL;
    for (size_t i = 0; i < r->n_rules; i++) {
        const GbnfRule *rule = &r->rules[i];
        if (!rule->body)
            return status_fail(ST_INPUT, "cannot use the grammar: the rule '%.*s' is missing", (int)MIN(rule->name.len, (size_t)100),
                               rule->name.data);
        if (rule->name.len == 4 && !memcmp(rule->name.data, "root", 4)) root = rule;
        build_rule_start(r->b, rule->rule, build_node(&r->tree, r->b, rule->body, false, build_return(r->b)));
    }
    if (!root) return status_fail(ST_INPUT, "cannot use the grammar: the rule 'root' is missing");
    *start = build_call(r->b, root->rule, false, build_return(r->b));
    return r->b->status;
}

Status grammar_gbnf(const char *text, size_t len, Grammar **grammar) {
    Builder b;
    GbnfReader r = {.b = &b, .text = text, .at = text, .end = text + len};
    int32_t start = 0;
    size_t fault = utf8_fault(text, len);
    *grammar = NULL;
    Status status = builder_open(&b, "grammar");
    if (status == ST_OK && fault < len) status = status_fail(ST_INPUT, "cannot use the grammar: byte %zu is not UTF-8", fault);
    if (status == ST_OK) status = read_rules(&r);
    if (status == ST_OK) status = build_rules(&r, &start);
    tree_release(&r.tree);
    free(r.rules);
    if (b.status == ST_OK) b.status = status;
    return builder_finish(&b, start, grammar);
}
