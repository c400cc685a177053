/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions in ECMA-262's syntax, as `pattern` of JSON Schema has them: read into a tree, then built from its end. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct Reader {
    const char *pattern, *at, *end;
    int depth;
    Tree tree;
} Reader;

static Status reader_fault(const Reader *r, const char *what) {
    return status_fail(ST_INPUT, "cannot use the pattern '%.*s': byte %zu: %s", (int)MIN(r->end - r->pattern, (ptrdiff_t)200), r->pattern,
                       (size_t)(r->at - r->pattern), what);
}

static bool at_char(const Reader *r, char c) { return r->at < r->end && *r->at == c; }

/* ---- characters and classes ---- */

static Status add_class(CharSet *set, char letter) {
    static const CharRange digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                           spaces[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                       {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    const char kind = letter | 0x20;
    const CharRange *ranges = kind == 'd' ? digits : kind == 'w' ? words : spaces;
    size_t n = kind == 'd' ? COUNT_OF(digits) : kind == 'w' ? COUNT_OF(words) : COUNT_OF(spaces);
    bool inverted = letter != kind;
    uint32_t low = 0;
    for (size_t i = 0; i < n; i++) {
        if (!inverted)
            TRY(charset_add(set, ranges[i].low, ranges[i].high));
        else if (low < ranges[i].low)
            TRY(charset_add(set, low, ranges[i].low - 1));
        low = ranges[i].high + 1;
    }
    return inverted ? charset_add(set, low, LAST_CODE_POINT) : ST_OK;
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1; }

/* n hexadecimal digits, or with n 0 as many as there are before `}`. */
static Status read_hex(Reader *r, int n, uint32_t *c) {
    int read = 0;
    *c = 0;
    for (; r->at < r->end && hex_digit(*r->at) >= 0 && (n == 0 || read < n); read++) {
        *c = *c << 4 | (uint32_t)hex_digit(*r->at++);
        if (*c > LAST_CODE_POINT) return reader_fault(r, "no character has this number");
    }
    if (read == 0 || (n > 0 && read < n)) return reader_fault(r, "hexadecimal digits are missing");
    return ST_OK;
}

static Status read_unicode(Reader *r, uint32_t *c) {
    if (at_char(r, '{')) {
        r->at++;
        TRY(read_hex(r, 0, c));
        if (!at_char(r, '}')) return reader_fault(r, "'}' is missing");
        r->at++;
        return ST_OK;
    }
    TRY(read_hex(r, 4, c));
    uint32_t low;
    if (*c < 0xD800 || *c > 0xDBFF || r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u') return ST_OK;
    r->at += 2;
    TRY(read_hex(r, 4, &low));
    if (low < 0xDC00 || low > 0xDFFF) return reader_fault(r, "half of a surrogate pair");
    *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
    return ST_OK;
}

/* After a backslash: one character, or with *letter a class. */
static Status read_escape(Reader *r, bool in_class, uint32_t *c, char *letter) {
    static const char letters[] = "tnvfr", codes[] = "\t\n\v\f\r";
    *letter = 0;
    if (r->at == r->end) return reader_fault(r, "a backslash at the end");
    char e = *r->at;
    const char *known = memchr(letters, e, sizeof letters - 1);
    bool digit = r->at + 1 < r->end && r->at[1] >= '0' && r->at[1] <= '9';
    if ((e == 'b' || e == 'B') && !in_class) return reader_fault(r, "a word boundary (\\b) is not supported");
    if (e == 'p' || e == 'P') return reader_fault(r, "properties of characters (\\p) are not supported");
    if ((e >= '1' && e <= '9') || e == 'k' || (e == '0' && digit)) return reader_fault(r, "references to groups (\\1) are not supported");
    r->at++;
    if (strchr("dDwWsS", e) && e) {
        *letter = e;
        return ST_OK;
    }
    if (known) {
        *c = (uint8_t)codes[known - letters];
    } else if (e == 'b') {
        *c = '\b';
    } else if (e == '0') {
        *c = 0;
    } else if (e == 'x') {
        return read_hex(r, 2, c);
    } else if (e == 'u') {
        return read_unicode(r, c);
    } else if (e == 'c') {
        if (r->at == r->end || (*r->at | 0x20) < 'a' || (*r->at | 0x20) > 'z') return reader_fault(r, "\\c without a letter");
        *c = *r->at++ & 31;
    } else if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z')) {
        r->at--;
        return reader_fault(r, "an unknown escape");
    } else {
        r->at--;
        r->at += utf8_decode(r->at, (size_t)(r->end - r->at), c);
    }
    return ST_OK;
}

/* A character of a class, or with *letter a class within it. */
static Status read_member(Reader *r, uint32_t *c, char *letter) {
    *letter = 0;
    if (r->at == r->end) return reader_fault(r, "']' is missing");
    if (*r->at == '\\') {
        r->at++;
        return read_escape(r, true, c, letter);
    }
    r->at += utf8_decode(r->at, (size_t)(r->end - r->at), c);
    return ST_OK;
}

static Status read_class(Reader *r, CharSet *set) {
    bool inverted = at_char(r, '^');
    uint32_t low, high;
    char letter;
    r->at += inverted;
    while (!at_char(r, ']')) {
        TRY(read_member(r, &low, &letter));
        if (letter) {
            TRY(add_class(set, letter));
            continue;
        }
        high = low;
        if (r->end - r->at > 1 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            TRY(read_member(r, &high, &letter));
            if (letter) { /* the hyphen is a character */
                TRY(charset_add(set, '-', '-'));
                TRY(add_class(set, letter));
                high = low;
            }
        }
        if (high < low) return reader_fault(r, "a range whose end is before its beginning");
        TRY(charset_add(set, low, high));
    }
    r->at++;
    return inverted ? charset_invert(set) : ST_OK;
}

static Status read_any(CharSet *set) {
    static const uint32_t ends[] = {'\n', '\r', 0x2028, 0x2029};
    for (size_t i = 0; i < COUNT_OF(ends); i++) TRY(charset_add(set, ends[i], ends[i]));
    return charset_invert(set);
}

/* ---- the tree ---- */

static Status read_choice(Reader *r, Node **node);

static Status read_group(Reader *r, Node **node) {
    if (at_char(r, '?')) {
        r->at++;
        bool named = r->end - r->at > 1 && r->at[0] == '<' && r->at[1] != '=' && r->at[1] != '!';
        if (!named && !at_char(r, ':')) return reader_fault(r, "a group of this kind (lookahead, lookbehind, options) is not supported");
        const char *name_end = named ? memchr(r->at, '>', (size_t)(r->end - r->at)) : r->at;
        if (!name_end) return reader_fault(r, "'>' is missing");
        r->at = name_end + 1;
    }
    if (++r->depth > GRAMMAR_DEPTH) return reader_fault(r, "too many groups within each other");
    TRY(read_choice(r, node));
    r->depth--;
    if (!at_char(r, ')')) return reader_fault(r, "')' is missing");
    r->at++;
    return ST_OK;
}

static bool read_count(Reader *r, int64_t *count) {
    const char *begin = r->at;
    for (*count = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) *count = MIN(*count * 10 + (*r->at - '0'), (int64_t)1 << 30);
    return r->at > begin;
}

/* {n}, {n,} or {n,m}; otherwise the brace is a character. */
static bool read_interval(Reader *r, int64_t *least, int64_t *most) {
    const char *begin = r->at++;
    bool given = read_count(r, least);
    *most = *least;
    if (given && at_char(r, ',')) {
        r->at++;
        if (!read_count(r, most)) *most = -1;
    }
    if (given && at_char(r, '}')) {
        r->at++;
        return true;
    }
    r->at = begin;
    return false;
}

static Status read_atom(Reader *r, Node **node) {
    uint32_t c = 0;
    char letter = 0;
    if (*r->at == '(') {
        r->at++;
        return read_group(r, node);
    }
    int64_t least, most;
    if ((strchr("*+?", *r->at) && *r->at) || (*r->at == '{' && read_interval(r, &least, &most))) return reader_fault(r, "nothing to repeat");
    TRY(node_new(&r->tree, *r->at == '^' ? NODE_BEGIN : *r->at == '$' ? NODE_END : NODE_SET, node));
    CharSet *set = &(*node)->set;
    if (*r->at == '\\') {
        r->at++;
        TRY(read_escape(r, false, &c, &letter));
        return letter ? add_class(set, letter) : charset_add(set, c, c);
    }
    char first = *r->at;
    r->at += utf8_decode(r->at, (size_t)(r->end - r->at), &c);
    if ((*node)->kind != NODE_SET) return ST_OK;
    return first == '[' ? read_class(r, set) : first == '.' ? read_any(set) : charset_add(set, c, c);
}

static Status read_repeated(Reader *r, Node **node) {
    TRY(read_atom(r, node));
    int64_t least = 0, most = -1;
    bool repeats = true;
    if (at_char(r, '*') || at_char(r, '+') || at_char(r, '?')) {
        char c = *r->at++;
        least = c == '+';
        most = c == '?' ? 1 : -1;
    } else {
        repeats = at_char(r, '{') && read_interval(r, &least, &most);
    }
    if (!repeats) return ST_OK;
    if (most >= 0 && most < least) return reader_fault(r, "a count whose end is before its beginning");
    if ((*node)->kind == NODE_BEGIN || (*node)->kind == NODE_END) return reader_fault(r, "nothing to repeat");
    if (at_char(r, '?')) r->at++; /* the same texts match */
    Node *repeat;
    TRY(node_new(&r->tree, NODE_REPEAT, &repeat));
    repeat->last = *node;
    repeat->least = least;
    repeat->most = most;
    *node = repeat;
    return ST_OK;
}

static Status read_sequence(Reader *r, Node **node) {
    TRY(node_new(&r->tree, NODE_SEQUENCE, node));
    while (r->at < r->end && *r->at != '|' && *r->at != ')') {
        Node *part;
        TRY(read_repeated(r, &part));
        node_add(*node, part);
    }
    return ST_OK;
}

static Status read_choice(Reader *r, Node **node) {
    TRY(node_new(&r->tree, NODE_CHOICE, node));
    for (bool more = true; more;) {
        Node *way;
        TRY(read_sequence(r, &way));
        node_add(*node, way);
        more = at_char(r, '|');
        r->at += more;
    }
    return ST_OK;
}

/* ---- building ---- */

typedef struct RegexBuilder {
    Builder *b;
    Reader reader;
    bool json;
} RegexBuilder;

static int32_t build_anything(RegexBuilder *r, int32_t next) {
    if (r->json) return build_characters(r->b, 0, -1, next);
    CharRange all = {0, LAST_CODE_POINT};
    int32_t loop = build_split(r->b, 0, next);
    build_join(r->b, loop, build_charset(r->b, &(CharSet){&all, 1, 0}, false, loop));
    return loop;
}

/* A way of the whole expression, with ^ and $ at its ends. */
static int32_t build_way(RegexBuilder *r, const Node *way, bool whole, int32_t next) {
    const Node *part = way->last;
    bool begins = whole, ends = whole;
    for (; part && part->kind == NODE_END; part = part->before) ends = true;
    int32_t at = ends ? next : build_anything(r, next);
    for (; part; part = part->before) {
        bool first = part->kind == NODE_BEGIN && !part->before;
        begins |= first;
        if (!first) at = build_node(&r->reader.tree, r->b, part, r->json, at);
    }
    return begins ? at : build_anything(r, at);
}

static Status build_whole(RegexBuilder *r, bool whole, int32_t next, int32_t *start) {
    Reader *reader = &r->reader;
    Node *root;
    size_t len = (size_t)(reader->end - reader->pattern), fault = utf8_fault(reader->pattern, len);
    if (fault < len) return status_fail(ST_INPUT, "cannot use a pattern: byte %zu is not UTF-8", fault);
    TRY(read_choice(reader, &root));
    if (reader->at < reader->end) return reader_fault(reader, "')' without '('");
    for (const Node *way = root->last; way; way = way->before) {
        int32_t at = build_way(r, way, whole, next);
        *start = way == root->last ? at : build_split(r->b, at, *start);
    }
    if (reader->tree.misplaced) return reader_fault(reader, "^ and $ are supported at the ends of the whole pattern, and of its ways, alone");
    return r->b->status;
}

Status build_regex(Builder *b, const char *pattern, size_t len, bool whole, bool json, int32_t next, int32_t *start) {
    RegexBuilder r = {.b = b, .reader = {.pattern = pattern, .at = pattern, .end = pattern + len}, .json = json};
    *start = 0;
    Status status = build_whole(&r, whole, next, start);
    tree_release(&r.reader.tree);
    if (b->status == ST_OK) b->status = status;
    return status;
}

Status grammar_regex(const char *pattern, size_t len, Grammar **grammar) {
    Builder b;
    int32_t start = 0;
    *grammar = NULL;
    if (builder_open(&b, "pattern") == ST_OK) build_regex(&b, pattern, len, true, false, build_return(&b), &start);
    return builder_finish(&b, start, grammar);
}
