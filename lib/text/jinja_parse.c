/* SPDX-License-Identifier: Apache-2.0 */
/* Parses tokens to a tree by recursive descent with Jinja2's precedence:
 *     x if c else y < or < and < not < comparisons, in < + - < ~ < * / // % < ** < unary - + < . [] () < | is */
#include <stdlib.h>
#include <string.h>

#include "lib/text/jinja.h"

typedef struct Parser {
    const char *name, *source;
    size_t len, next;
    const TokenList *tokens;
    Pool *pool;
    Status status;
    int depth, loops;
    bool marks_generation;
} Parser;

static const Token *jinja_parse_peek(const Parser *p) { return &p->tokens->items[p->next]; }
static const Token *peek_second(const Parser *p) { return &p->tokens->items[MIN(p->next + 1, p->tokens->n - 1)]; }
static const Token *jinja_parse_take(Parser *p) { return p->next + 1 < p->tokens->n ? &p->tokens->items[p->next++] : jinja_parse_peek(p); }

static void *fault_at(Parser *p, size_t at, const char *what, Slice detail) {
    if (p->status == ST_OK)
        p->status = jinja_fault(p->name, p->source, p->len, at, "%s%s%.*s%s", what, detail.len ? " '" : "", (int)detail.len,
                                detail.data ? detail.data : "", detail.len ? "'" : "");
    return NULL;
}

static void *unexpected(Parser *p, const char *expected) {
    const Token *token = jinja_parse_peek(p);
    char what[100];
    snprintf(what, sizeof what, "expected %s, got %s", expected,
             token->type == TOKEN_END    ? "the end of the template"
             : token->type == TOKEN_DATA ? "text"
                                         : "");
    return fault_at(p, token->at, what, token->type == TOKEN_END || token->type == TOKEN_DATA ? (Slice){0} : token->text);
}

static bool is_op(const Token *token, const char *op) { return token->type == TOKEN_OPERATOR && slice_is(token->text, op); }
static bool is_name(const Token *token, const char *name) { return token->type == TOKEN_NAME && slice_is(token->text, name); }
static bool at_op(const Parser *p, const char *op) { return is_op(jinja_parse_peek(p), op); }
static bool at_name(const Parser *p, const char *name) { return is_name(jinja_parse_peek(p), name); }

static bool accept_op(Parser *p, const char *op) {
    if (!at_op(p, op)) return false;
    jinja_parse_take(p);
    return true;
}

static bool accept_name(Parser *p, const char *name) {
    if (!at_name(p, name)) return false;
    jinja_parse_take(p);
    return true;
}

static bool expect_op(Parser *p, const char *op) {
    char text[16];
    snprintf(text, sizeof text, "'%s'", op);
    return accept_op(p, op) || unexpected(p, text) != NULL;
}

static JinjaNode *node_new(Parser *p, NodeType type, size_t at) {
    JinjaNode *node = p->status == ST_OK ? pool_alloc(p->pool, sizeof *node) : NULL;
    if (!node) {
        if (p->status == ST_OK) p->status = ST_RESOURCE;
        return NULL;
    }
    node->type = type;
    node->at = at;
    return node;
}

static void jinja_parse_push(Parser *p, NodeList *list, JinjaNode *node) {
    if (!node) return;
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        JinjaNode **grown = pool_alloc(p->pool, cap * sizeof *grown);
        if (!grown) {
            p->status = ST_RESOURCE;
            return;
        }
        if (list->n) memcpy(grown, list->items, list->n * sizeof *grown);
        list->items = grown;
        list->cap = cap;
    }
    list->items[list->n++] = node;
}

static JinjaNode *binary_node(Parser *p, NodeType type, const Token *op, JinjaNode *a, JinjaNode *b) {
    JinjaNode *node = node_new(p, type, op->at);
    if (node) node->name = op->text, node->a = a, node->b = b;
    return node;
}

static JinjaNode *constant(Parser *p, size_t at, Value value) {
    JinjaNode *node = node_new(p, N_CONSTANT, at);
    if (node) node->value = value;
    return node;
}

/* ---- expressions ---- */

static JinjaNode *parse_expression(Parser *p);
static JinjaNode *parse_unary(Parser *p, bool with_filters);
static JinjaNode *parse_or(Parser *p);

static bool deeper(Parser *p) {
    if (++p->depth <= JINJA_MAX_PARSE_DEPTH && p->status == ST_OK) return true;
    fault_at(p, jinja_parse_peek(p)->at, "nested too deeply", (Slice){0});
    return false;
}

/* Whether the token ends a tuple without brackets. */
static bool tuple_ends(const Parser *p) {
    const Token *token = jinja_parse_peek(p);
    return token->type == TOKEN_BLOCK_END || token->type == TOKEN_VARIABLE_END || token->type == TOKEN_END || is_op(token, ")") ||
           is_op(token, "]") || is_op(token, "}") || is_name(token, "in") || is_name(token, "recursive") || is_op(token, "=");
}

/* Parses one expression, or several separated by commas as a tuple. simple: only names and attributes, as in assignment targets. */
static JinjaNode *parse_tuple(Parser *p, JinjaNode *(*element)(Parser *), bool in_brackets) {
    size_t at = jinja_parse_peek(p)->at;
    JinjaNode *first = NULL;
    NodeList list = {0};
    bool tuple = false;
    while (p->status == ST_OK && !tuple_ends(p)) {
        first = element(p);
        jinja_parse_push(p, &list, first);
        if (!accept_op(p, ",")) break;
        tuple = true;
    }
    if (list.n == 1 && !tuple) return first;
    if (list.n == 0 && !in_brackets) return unexpected(p, "an expression");
    JinjaNode *node = node_new(p, N_TUPLE, at);
    if (node) node->list = list;
    return node;
}

static JinjaNode *parse_list(Parser *p) {
    JinjaNode *node = node_new(p, N_LIST, jinja_parse_take(p)->at);
    while (p->status == ST_OK && !at_op(p, "]")) {
        jinja_parse_push(p, &node->list, parse_expression(p));
        if (!accept_op(p, ",")) break;
    }
    return expect_op(p, "]") ? node : NULL;
}

static JinjaNode *parse_dict(Parser *p) {
    JinjaNode *node = node_new(p, N_DICT, jinja_parse_take(p)->at);
    while (p->status == ST_OK && !at_op(p, "}")) {
        jinja_parse_push(p, &node->list, parse_expression(p));
        if (!expect_op(p, ":")) return NULL;
        jinja_parse_push(p, &node->more, parse_expression(p));
        if (!accept_op(p, ",")) break;
    }
    return expect_op(p, "}") ? node : NULL;
}

static JinjaNode *parse_strings(Parser *p) {
    const Token *token = jinja_parse_take(p);
    Slice text = token->text;
    while (jinja_parse_peek(p)->type == TOKEN_STRING) { /* adjacent strings are concatenated */
        Slice more = jinja_parse_take(p)->text;
        char *joined = pool_alloc(p->pool, text.len + more.len + 1);
        if (!joined) {
            p->status = ST_RESOURCE;
            return NULL;
        }
        memcpy(joined, text.data, text.len);
        memcpy(joined + text.len, more.data, more.len);
        text = (Slice){joined, text.len + more.len};
    }
    return constant(p, token->at, v_slice(text));
}

static JinjaNode *parse_primary(Parser *p) {
    const Token *token = jinja_parse_peek(p);
    if (token->type == TOKEN_NAME) {
        jinja_parse_take(p);
        if (slice_is(token->text, "true") || slice_is(token->text, "True")) return constant(p, token->at, v_bool(true));
        if (slice_is(token->text, "false") || slice_is(token->text, "False")) return constant(p, token->at, v_bool(false));
        if (slice_is(token->text, "none") || slice_is(token->text, "None")) return constant(p, token->at, v_none());
        JinjaNode *node = node_new(p, N_NAME, token->at);
        if (node) node->name = token->text;
        return node;
    }
    if (token->type == TOKEN_STRING) return parse_strings(p);
    if (token->type == TOKEN_INTEGER) return constant(p, jinja_parse_take(p)->at, v_int(token->integer));
    if (token->type == TOKEN_FLOAT) return constant(p, jinja_parse_take(p)->at, v_float(token->real));
    if (is_op(token, "[")) return parse_list(p);
    if (is_op(token, "{")) return parse_dict(p);
    if (!accept_op(p, "(")) return unexpected(p, "an expression");
    JinjaNode *node = parse_tuple(p, parse_expression, true);
    return expect_op(p, ")") ? node : NULL;
}

/* Parses the arguments after "(": positional ones in `list`, keywords and spreads among them. */
static void parse_arguments(Parser *p, NodeList *list) {
    while (p->status == ST_OK && !at_op(p, ")")) {
        const Token *token = jinja_parse_peek(p);
        JinjaNode *node = NULL;
        if (is_op(token, "*") || is_op(token, "**")) {
            jinja_parse_take(p);
            node = node_new(p, slice_is(token->text, "*") ? N_SPREAD : N_SPREAD_KEYWORDS, token->at);
        } else if (token->type == TOKEN_NAME && is_op(peek_second(p), "=")) {
            jinja_parse_take(p), jinja_parse_take(p);
            node = node_new(p, N_KEYWORD, token->at);
            if (node) node->name = token->text;
        } else {
            node = parse_expression(p);
            jinja_parse_push(p, list, node);
            if (!accept_op(p, ",")) break;
            continue;
        }
        if (node) node->a = parse_expression(p);
        jinja_parse_push(p, list, node);
        if (!accept_op(p, ",")) break;
    }
    expect_op(p, ")");
}

/* Parses one subscript: an expression, or start:stop:step with optional parts. */
static JinjaNode *parse_subscript(Parser *p) {
    size_t at = jinja_parse_peek(p)->at;
    JinjaNode *first = at_op(p, ":") ? NULL : parse_expression(p);
    if (!at_op(p, ":")) return first;
    JinjaNode *node = node_new(p, N_SLICE, at);
    if (!node) return NULL;
    node->a = first;
    jinja_parse_take(p);
    if (!at_op(p, ":") && !at_op(p, "]") && !at_op(p, ",")) node->b = parse_expression(p);
    if (accept_op(p, ":") && !at_op(p, "]") && !at_op(p, ",")) node->c = parse_expression(p);
    return node;
}

static JinjaNode *parse_postfix(Parser *p, JinjaNode *node) {
    while (p->status == ST_OK) {
        const Token *token = jinja_parse_peek(p);
        if (is_op(token, ".")) {
            jinja_parse_take(p);
            const Token *name = jinja_parse_take(p);
            if (name->type != TOKEN_NAME && name->type != TOKEN_INTEGER) return fault_at(p, name->at, "expected a name after '.'", (Slice){0});
            JinjaNode *a = node;
            node = node_new(p, name->type == TOKEN_NAME ? N_ATTRIBUTE : N_ITEM, token->at);
            if (!node) return NULL;
            node->a = a;
            node->name = name->text;
            if (name->type == TOKEN_INTEGER) node->b = constant(p, name->at, v_int(name->integer));
        } else if (is_op(token, "[")) {
            jinja_parse_take(p);
            node = binary_node(p, N_ITEM, token, node, parse_tuple(p, parse_subscript, false));
            expect_op(p, "]");
        } else if (is_op(token, "(")) {
            jinja_parse_take(p);
            node = binary_node(p, N_CALL, token, node, NULL);
            if (node) parse_arguments(p, &node->list);
        } else {
            break;
        }
    }
    return node;
}

/* The name of a filter or test, which may contain dots. */
static Slice dotted_name(Parser *p) {
    const Token *token = jinja_parse_take(p);
    Slice name = token->text;
    if (token->type != TOKEN_NAME) fault_at(p, token->at, "expected a name", (Slice){0});
    while (p->status == ST_OK && at_op(p, ".")) {
        jinja_parse_take(p);
        const Token *part = jinja_parse_take(p);
        name.len = (size_t)(part->text.data + part->text.len - name.data);
    }
    return name;
}

static JinjaNode *parse_filter(Parser *p, JinjaNode *value) {
    JinjaNode *node = node_new(p, N_FILTER, jinja_parse_peek(p)->at);
    if (!node) return NULL;
    node->a = value;
    node->name = dotted_name(p);
    /* an unknown filter is an error only when it runs, as in Jinja2 */
    node->value = (Value){.type = V_BUILTIN, .as.builtin = filter_find(node->name)};
    if (accept_op(p, "(")) parse_arguments(p, &node->list);
    return node;
}

/* `x is name`, `x is name(args)`, `x is name arg`. */
static JinjaNode *parse_test(Parser *p, JinjaNode *value) {
    JinjaNode *node = node_new(p, N_TEST, jinja_parse_take(p)->at);
    if (!node) return NULL;
    node->a = value;
    node->flag = accept_name(p, "not");
    node->name = dotted_name(p);
    node->value = (Value){.type = V_BUILTIN, .as.builtin = test_find(node->name)};
    const Token *token = jinja_parse_peek(p);
    bool argument =
        token->type == TOKEN_STRING || token->type == TOKEN_INTEGER || token->type == TOKEN_FLOAT || is_op(token, "[") || is_op(token, "{") ||
        (token->type == TOKEN_NAME && !is_name(token, "else") && !is_name(token, "or") && !is_name(token, "and") && !is_name(token, "if") &&
         !is_name(token, "is") && !is_name(token, "in") && !is_name(token, "not") && !is_name(token, "recursive"));
    if (accept_op(p, "(")) {
        parse_arguments(p, &node->list);
    } else if (argument) {
        jinja_parse_push(p, &node->list, parse_postfix(p, parse_primary(p)));
    }
    return at_name(p, "is") ? fault_at(p, jinja_parse_peek(p)->at, "tests cannot be chained with", (Slice){"is", 2}) : node;
}

static JinjaNode *parse_filters(Parser *p, JinjaNode *node) {
    while (p->status == ST_OK) {
        if (accept_op(p, "|")) {
            node = parse_filter(p, node);
        } else if (at_name(p, "is")) {
            node = parse_test(p, node);
        } else if (at_op(p, "(")) {
            node = binary_node(p, N_CALL, jinja_parse_take(p), node, NULL);
            if (node) parse_arguments(p, &node->list);
        } else {
            break;
        }
    }
    return node;
}

static JinjaNode *parse_unary(Parser *p, bool with_filters) {
    if (!deeper(p)) return NULL;
    const Token *token = jinja_parse_peek(p);
    JinjaNode *node;
    if (is_op(token, "-") || is_op(token, "+")) {
        jinja_parse_take(p);
        node = node_new(p, N_UNARY, token->at);
        if (node) node->name = token->text, node->a = parse_unary(p, false);
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    if (with_filters) node = parse_filters(p, node);
    p->depth--;
    return node;
}

static JinjaNode *parse_power(Parser *p) {
    JinjaNode *left = parse_unary(p, true);
    while (p->status == ST_OK && at_op(p, "**")) {
        const Token *op = jinja_parse_take(p);
        left = binary_node(p, N_BINARY, op, left, parse_unary(p, true));
    }
    return left;
}

static JinjaNode *parse_product(Parser *p) {
    JinjaNode *left = parse_power(p);
    while (p->status == ST_OK && (at_op(p, "*") || at_op(p, "/") || at_op(p, "//") || at_op(p, "%"))) {
        const Token *op = jinja_parse_take(p);
        left = binary_node(p, N_BINARY, op, left, parse_power(p));
    }
    return left;
}

static JinjaNode *parse_concat(Parser *p) {
    JinjaNode *first = parse_product(p);
    if (!at_op(p, "~")) return first;
    JinjaNode *node = node_new(p, N_CONCAT, jinja_parse_peek(p)->at);
    if (node) jinja_parse_push(p, &node->list, first);
    while (p->status == ST_OK && accept_op(p, "~")) jinja_parse_push(p, &node->list, parse_product(p));
    return node;
}

static JinjaNode *parse_sum(Parser *p) {
    JinjaNode *left = parse_concat(p);
    while (p->status == ST_OK && (at_op(p, "+") || at_op(p, "-"))) {
        const Token *op = jinja_parse_take(p);
        left = binary_node(p, N_BINARY, op, left, parse_concat(p));
    }
    return left;
}

static bool at_comparison(const Parser *p) {
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};
    for (size_t i = 0; i < COUNT_OF(ops); i++)
        if (at_op(p, ops[i])) return true;
    return at_name(p, "in") || (at_name(p, "not") && is_name(peek_second(p), "in"));
}

/* a < b <= c: the first operand is in `a`; the others are in `list`, each as a keyword node named by its operator. */
static JinjaNode *parse_compare(Parser *p) {
    JinjaNode *first = parse_sum(p);
    if (!at_comparison(p)) return first;
    JinjaNode *node = node_new(p, N_COMPARE, jinja_parse_peek(p)->at);
    if (!node) return NULL;
    node->a = first;
    while (p->status == ST_OK && at_comparison(p)) {
        const Token *op = jinja_parse_take(p);
        JinjaNode *operand = node_new(p, N_KEYWORD, op->at);
        if (!operand) return NULL;
        operand->name = op->text;
        if (slice_is(op->text, "not")) jinja_parse_take(p);
        operand->a = parse_sum(p);
        jinja_parse_push(p, &node->list, operand);
    }
    return node;
}

static JinjaNode *parse_not(Parser *p) {
    if (!at_name(p, "not")) return parse_compare(p);
    if (!deeper(p)) return NULL;
    JinjaNode *node = node_new(p, N_NOT, jinja_parse_take(p)->at);
    if (node) node->a = parse_not(p);
    p->depth--;
    return node;
}

static JinjaNode *parse_and(Parser *p) {
    JinjaNode *left = parse_not(p);
    while (p->status == ST_OK && at_name(p, "and")) {
        const Token *op = jinja_parse_take(p);
        left = binary_node(p, N_AND, op, left, parse_not(p));
    }
    return left;
}

static JinjaNode *parse_or(Parser *p) {
    JinjaNode *left = parse_and(p);
    while (p->status == ST_OK && at_name(p, "or")) {
        const Token *op = jinja_parse_take(p);
        left = binary_node(p, N_OR, op, left, parse_and(p));
    }
    return left;
}

static JinjaNode *parse_expression(Parser *p) {
    if (!deeper(p)) return NULL;
    JinjaNode *node = parse_or(p);
    while (p->status == ST_OK && at_name(p, "if")) {
        JinjaNode *choice = node_new(p, N_IF_ELSE, jinja_parse_take(p)->at);
        if (!choice) return NULL;
        choice->b = node;
        choice->a = parse_or(p);
        if (accept_name(p, "else")) choice->c = parse_expression(p);
        node = choice;
    }
    p->depth--;
    return node;
}

/* ---- statements ---- */

static void parse_body(Parser *p, NodeList *body, const char *const *ends, size_t n_ends);

static void end_tag(Parser *p) {
    if (jinja_parse_peek(p)->type == TOKEN_BLOCK_END)
        jinja_parse_take(p);
    else
        unexpected(p, "the end of the tag");
}

/* Parses a body up to {% end... %}, and that tag. */
static void parse_until(Parser *p, NodeList *body, const char *end) {
    end_tag(p);
    parse_body(p, body, &end, 1);
    jinja_parse_take(p);
    if (strcmp(end, "endblock") == 0 && jinja_parse_peek(p)->type == TOKEN_NAME) jinja_parse_take(p); /* {% endblock name %} */
    end_tag(p);
}

static JinjaNode *target_element(Parser *p) {
    const Token *token = jinja_parse_peek(p);
    if (accept_op(p, "(")) {
        JinjaNode *node = parse_tuple(p, target_element, true);
        return expect_op(p, ")") ? node : NULL;
    }
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    if (token->type != TOKEN_NAME) return unexpected(p, "a name to assign to");
    for (size_t i = 0; i < COUNT_OF(constants); i++)
        if (is_name(token, constants[i])) return fault_at(p, token->at, "cannot assign to", token->text);
    jinja_parse_take(p);
    JinjaNode *node = node_new(p, N_NAME, token->at);
    if (!node) return NULL;
    node->name = token->text;
    if (!accept_op(p, ".")) return node;
    const Token *name = jinja_parse_take(p);
    if (name->type != TOKEN_NAME) return fault_at(p, name->at, "expected a name after '.'", (Slice){0});
    JinjaNode *attribute = node_new(p, N_ATTRIBUTE, token->at);
    if (attribute) attribute->a = node, attribute->name = name->text;
    return attribute;
}

static JinjaNode *iterated(Parser *p) { return parse_or(p); } /* a following "if" filters the loop */

static bool names_loop(const JinjaNode *target) {
    if (!target) return false;
    if (target->type == N_NAME) return slice_is(target->name, "loop");
    for (size_t i = 0; i < target->list.n; i++)
        if (names_loop(target->list.items[i])) return true;
    return false;
}

static JinjaNode *parse_for(Parser *p, size_t at) {
    static const char *const ends[] = {"endfor", "else"};
    JinjaNode *node = node_new(p, N_FOR, at);
    if (!node) return NULL;
    node->a = parse_tuple(p, target_element, false);
    if (names_loop(node->a)) return fault_at(p, node->a->at, "a loop's variable cannot have the name", (Slice){"loop", 4});
    if (!accept_name(p, "in")) return unexpected(p, "'in'");
    node->b = parse_tuple(p, iterated, false);
    if (accept_name(p, "if")) node->c = parse_expression(p);
    node->flag = accept_name(p, "recursive");
    end_tag(p);
    p->loops++;
    parse_body(p, &node->list, ends, 2);
    p->loops--;
    if (accept_name(p, "else")) {
        end_tag(p);
        parse_body(p, &node->more, ends, 1);
    }
    jinja_parse_take(p);
    end_tag(p);
    return node;
}

static JinjaNode *parse_if(Parser *p, size_t at) {
    static const char *const ends[] = {"endif", "else", "elif"};
    JinjaNode *node = node_new(p, N_IF, at);
    if (!node) return NULL;
    node->a = parse_tuple(p, parse_expression, false);
    end_tag(p);
    parse_body(p, &node->list, ends, 3);
    const Token *token = jinja_parse_take(p);
    if (is_name(token, "elif")) {
        if (!deeper(p)) return NULL;
        jinja_parse_push(p, &node->more, parse_if(p, token->at)); /* also consumes the endif */
        p->depth--;
        return node;
    }
    if (is_name(token, "else")) {
        end_tag(p);
        parse_body(p, &node->more, ends, 1);
        jinja_parse_take(p);
    }
    end_tag(p);
    return node;
}

static JinjaNode *parse_set(Parser *p, size_t at) {
    JinjaNode *target = parse_tuple(p, target_element, false);
    if (accept_op(p, "=")) {
        JinjaNode *node = node_new(p, N_SET, at);
        if (!node) return NULL;
        node->a = target;
        node->b = parse_tuple(p, parse_expression, false);
        end_tag(p);
        return node;
    }
    JinjaNode *node = node_new(p, N_SET_BLOCK, at);
    if (!node) return NULL;
    node->a = target;
    while (accept_op(p, "|")) node->b = parse_filter(p, node->b); /* the innermost filter has no value: it gets the block's text */
    parse_until(p, &node->list, "endset");
    return node;
}

/* Parses the parameters after "(": names in `list`, defaults of the last ones in `more`. */
static void parse_parameters(Parser *p, JinjaNode *node) {
    if (accept_op(p, ")")) return;
    while (p->status == ST_OK) {
        const Token *name = jinja_parse_take(p);
        if (name->type != TOKEN_NAME) fault_at(p, name->at, "expected the name of a parameter", (Slice){0});
        for (size_t i = 0; i < node->list.n; i++)
            if (slice_equal(node->list.items[i]->name, name->text)) fault_at(p, name->at, "there are two parameters", name->text);
        JinjaNode *parameter = node_new(p, N_NAME, name->at);
        if (parameter) parameter->name = name->text;
        jinja_parse_push(p, &node->list, parameter);
        if (accept_op(p, "="))
            jinja_parse_push(p, &node->more, parse_expression(p));
        else if (node->more.n)
            fault_at(p, name->at, "a parameter without a default follows one with a default", (Slice){0});
        else if (is_name(name, "caller"))
            fault_at(p, name->at, "this parameter needs a default:", name->text);
        if (!accept_op(p, ",")) break;
    }
    expect_op(p, ")");
}

static bool mentions(const JinjaNode *node, const char *name);
static bool list_mentions(const NodeList *list, const char *name) {
    for (size_t i = 0; i < list->n; i++)
        if (mentions(list->items[i], name)) return true;
    return false;
}

static bool mentions(const JinjaNode *node, const char *name) {
    if (!node) return false;
    if (node->type == N_NAME && slice_is(node->name, name)) return true;
    return mentions(node->a, name) || mentions(node->b, name) || mentions(node->c, name) || list_mentions(&node->list, name) ||
           list_mentions(&node->more, name);
}

/* Notes which of varargs, kwargs and caller the body uses. */
static void note_asked(JinjaNode *node) {
    static const char *const names[] = {"caller", "varargs", "kwargs"};
    node->value = v_int(0);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        bool asked = list_mentions(&node->b->list, names[i]);
        for (size_t k = 0; k < node->list.n; k++) asked = asked && !slice_is(node->list.items[k]->name, names[i]);
        if (asked) node->value.as.integer |= 1 << i;
    }
}

/* The body is in b's list. */
static JinjaNode *parse_macro(Parser *p, size_t at) {
    JinjaNode *node = node_new(p, N_MACRO, at);
    const Token *name = jinja_parse_take(p);
    if (!node || name->type != TOKEN_NAME) return fault_at(p, at, "expected the macro's name", (Slice){0});
    node->name = name->text;
    if (!expect_op(p, "(")) return NULL;
    parse_parameters(p, node);
    node->b = node_new(p, N_WITH, at);
    int loops = p->loops;
    p->loops = 0;
    if (node->b) parse_until(p, &node->b->list, "endmacro");
    p->loops = loops;
    if (p->status == ST_OK) note_asked(node);
    return node;
}

/* The call is in a, the parameters of caller() are in list, the body is in b's list. */
static JinjaNode *parse_call_block(Parser *p, size_t at) {
    JinjaNode *node = node_new(p, N_CALL_BLOCK, at);
    if (!node) return NULL;
    if (accept_op(p, "(")) parse_parameters(p, node);
    node->a = parse_expression(p);
    if (p->status == ST_OK && node->a->type != N_CALL) return fault_at(p, at, "'call' needs a call", (Slice){0});
    node->b = node_new(p, N_WITH, at);
    if (node->b) parse_until(p, &node->b->list, "endcall");
    if (p->status == ST_OK) note_asked(node);
    return node;
}

static JinjaNode *parse_filter_block(Parser *p, size_t at) {
    JinjaNode *node = node_new(p, N_FILTER_BLOCK, at);
    if (!node) return NULL;
    do {
        node->a = parse_filter(p, node->a);
    } while (accept_op(p, "|"));
    parse_until(p, &node->list, "endfilter");
    return node;
}

/* The names are in `more` as keyword nodes. */
static JinjaNode *parse_with(Parser *p, size_t at) {
    JinjaNode *node = node_new(p, N_WITH, at);
    while (node && p->status == ST_OK && jinja_parse_peek(p)->type != TOKEN_BLOCK_END) {
        JinjaNode *assignment = node_new(p, N_KEYWORD, jinja_parse_peek(p)->at);
        if (!assignment) return NULL;
        assignment->b = target_element(p);
        if (!expect_op(p, "=")) return NULL;
        assignment->a = parse_expression(p);
        jinja_parse_push(p, &node->more, assignment);
        if (!accept_op(p, ",")) break;
    }
    if (node) parse_until(p, &node->list, "endwith");
    return node;
}

/* {% block name %}: without inheritance this is only its body. */
static JinjaNode *parse_block(Parser *p, size_t at) {
    JinjaNode *node = node_new(p, N_WITH, at);
    dotted_name(p);
    while (accept_name(p, "scoped") || accept_name(p, "required")) continue;
    if (node) parse_until(p, &node->list, "endblock");
    return node;
}

static JinjaNode *parse_generation(Parser *p, size_t at) {
    JinjaNode *node = node_new(p, N_GENERATION, at);
    p->marks_generation = true;
    if (node) parse_until(p, &node->list, "endgeneration");
    return node;
}

/* {% print a, b %}: writes the texts one after the other. */
static JinjaNode *parse_print(Parser *p, size_t at) {
    JinjaNode *concat = node_new(p, N_CONCAT, at), *node = node_new(p, N_OUTPUT, at);
    while (p->status == ST_OK && jinja_parse_peek(p)->type != TOKEN_BLOCK_END) {
        jinja_parse_push(p, &concat->list, parse_expression(p));
        if (!accept_op(p, ",")) break;
    }
    end_tag(p);
    if (node) node->a = concat;
    return node;
}

static JinjaNode *parse_jump(Parser *p, const Token *token) {
    if (p->loops == 0) return fault_at(p, token->at, "outside of a loop:", token->text);
    JinjaNode *node = node_new(p, slice_is(token->text, "break") ? N_BREAK : N_CONTINUE, token->at);
    end_tag(p);
    return node;
}

static JinjaNode *parse_statement(Parser *p) {
    static const struct {
        const char *name;
        JinjaNode *(*parse)(Parser *, size_t);
    } statements[] = {
        {"for", parse_for},         {"if", parse_if},
        {"set", parse_set},         {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
        {"block", parse_block},     {"print", parse_print},
    };
    const Token *token = jinja_parse_take(p);
    for (size_t i = 0; i < COUNT_OF(statements); i++)
        if (is_name(token, statements[i].name)) return statements[i].parse(p, token->at);
    if (is_name(token, "break") || is_name(token, "continue")) return parse_jump(p, token);
    return fault_at(p, token->at, "unknown or unsupported tag", token->type == TOKEN_NAME ? token->text : (Slice){0});
}

/* Parses statements up to a tag that begins with one of `ends`; then the next token is that name. Without ends: to the end of the template. */
static void parse_body(Parser *p, NodeList *body, const char *const *ends, size_t n_ends) {
    if (!deeper(p)) return;
    while (p->status == ST_OK) {
        const Token *token = jinja_parse_take(p);
        if (token->type == TOKEN_END) {
            if (n_ends) fault_at(p, token->at, "the template ends without", (Slice){ends[0], strlen(ends[0])});
            break;
        }
        if (token->type == TOKEN_DATA) {
            JinjaNode *node = node_new(p, N_TEXT, token->at);
            if (node) node->value = v_slice(token->text);
            jinja_parse_push(p, body, node);
        } else if (token->type == TOKEN_VARIABLE_BEGIN) {
            JinjaNode *node = node_new(p, N_OUTPUT, token->at);
            if (node) node->a = parse_tuple(p, parse_expression, false);
            jinja_parse_push(p, body, node);
            if (p->status == ST_OK && jinja_parse_take(p)->type != TOKEN_VARIABLE_END) {
                p->next--;
                unexpected(p, "'}}'");
            }
        } else {
            for (size_t i = 0; i < n_ends; i++)
                if (at_name(p, ends[i])) {
                    p->depth--;
                    return;
                }
            jinja_parse_push(p, body, parse_statement(p));
        }
    }
    p->depth--;
}

Status jinja_parse(const char *name, const char *source, size_t len, Pool *pool, NodeList *body, bool *marks_generation) {
    TokenList tokens = {0};
    Status status = jinja_lex(name, source, len, pool, &tokens);
    Parser p = {.name = name, .source = source, .len = len, .tokens = &tokens, .pool = pool};
    if (status == ST_OK) {
        parse_body(&p, body, NULL, 0);
        status = p.status;
    }
    *marks_generation = p.marks_generation;
    free(tokens.items);
    return status;
}
