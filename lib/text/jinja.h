/* SPDX-License-Identifier: Apache-2.0 */
/* Jinja as chat templates use it; for the files of this folder only. Expressions mean what Jinja2 and Python's types define, in the environment that
 * transformers sets up: trim_blocks, lstrip_blocks, loop controls, {% generation %}, an immutable sandbox.
 *
 *     jinja_lex.c     template text -> tokens, white space control
 *     jinja_parse.c   tokens -> tree of Nodes
 *     jinja_value.c   values: truth, equality, order, text as Python's str, repr and json.dumps write it
 *     jinja_eval.c    runs the tree: scopes, loops, macros, operators, attributes
 *     jinja_filters.c, jinja_tests.c, jinja_methods.c, jinja_globals.c    the tables of filters, tests, methods and functions
 *
 * A rendering is limited in steps, depth, memory and output. The first failure stays in the Jinja, and later calls do nothing.
 */
#ifndef TUNE_JINJA_H
#define TUNE_JINJA_H

#include "lib/text/chat.h"

enum { JINJA_MAX_DEPTH = 400, JINJA_MAX_STEPS = 20000000, JINJA_MAX_PARSE_DEPTH = 200, JINJA_MAX_SOURCE = 4 << 20 };
#define JINJA_MAX_OUTPUT ((size_t)64 << 20)
#define JINJA_MAX_MEMORY ((size_t)512 << 20)

/* ---- small allocations ---- */

/* Allocates small blocks from an arena, without the arena's alignment to 64 bytes. */
typedef struct Pool {
    Arena *arena;
    char *next;
    size_t left;
} Pool;
void *pool_alloc(Pool *pool, size_t size); /* cleared, aligned to 16; NULL when the arena is full */

/* ---- tokens ---- */

typedef enum TokenType {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
} TokenType;
typedef struct Token {
    TokenType type;
    Slice text; /* template text, name, value of a string, or operator */
    int64_t integer;
    double real;
    size_t at; /* byte in the source */
} Token;
typedef struct TokenList {
    Token *items;
    size_t n, cap;
} TokenList;

/* ---- the tree ---- */

typedef enum NodeType {
    /* expressions */
    N_CONSTANT,
    N_NAME,
    N_ATTRIBUTE,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_UNARY,
    N_BINARY,
    N_COMPARE,
    N_AND,
    N_OR,
    N_NOT,
    N_IF_ELSE,
    N_CONCAT,
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_KEYWORD,
    N_SPREAD,
    N_SPREAD_KEYWORDS,
    /* statements */
    N_TEXT,
    N_OUTPUT,
    N_FOR,
    N_IF,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_GENERATION,
    N_BREAK,
    N_CONTINUE,
} NodeType;
typedef struct JinjaNode JinjaNode;
typedef struct Value Value;
typedef struct NodeList {
    JinjaNode **items;
    size_t n, cap;
} NodeList;

typedef enum ValueType {
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_VIEW,
    V_GENERATOR,
    V_DICT,
    V_NAMESPACE,
    V_RANGE,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
    V_MACRO,
    V_BUILTIN,
    V_METHOD
} ValueType;
typedef struct List {
    Value *items;
    size_t n, cap;
} List;
typedef struct Pair Pair;
typedef struct Dict {
    Pair *pairs;
    size_t n, cap;
} Dict; /* in order of insertion */
typedef struct Loop Loop;
typedef struct Macro Macro;
typedef struct Method Method;
typedef struct Builtin Builtin;
struct Value {
    ValueType type;
    bool safe; /* of a string: |safe or |escape marked it */
    char view; /* of a view: 'k' (keys), 'v' (values) or 'i' (items) of a dict */
    union {
        bool boolean;
        int64_t integer;
        double real;
        Slice string; /* valid UTF-8 */
        List *list;   /* lists, tuples, views of a dict, and generators; a generator can be iterated once and is always true */
        Dict *dict;   /* dicts and namespaces */
        struct {
            int64_t start, stop, step, n;
        } * range;
        Loop *loop;
        struct {
            List *items;
            size_t at;
        } * cycler;
        struct {
            Slice separator;
            bool used;
        } * joiner;
        Macro *macro;
        const Builtin *builtin;
        Method *method;
        const char *name; /* name of the undefined thing, for messages; NULL = unknown */
    } as;
};
struct Pair {
    Value key, value;
};

enum { MACRO_CALLER = 1, MACRO_VARARGS = 2, MACRO_KWARGS = 4 }; /* variables that a macro's body uses */
struct JinjaNode {
    NodeType type;
    size_t at;   /* byte in the source */
    Slice name;  /* of a name, attribute, filter, test, keyword, macro, operator */
    Value value; /* of a constant; the Builtin of a filter or test; of a macro: MACRO_ bits as an integer */
    JinjaNode *a, *b, *c;
    NodeList list, more; /* elements, arguments, bodies */
    bool flag;           /* test: negated; for loop: recursive */
};

/* ---- a rendering ---- */

typedef struct Scope Scope;

typedef struct Jinja {
    const char *name, *source; /* of the template */
    size_t source_len;
    Pool pool;
    Status status;
    size_t at; /* position of the running node, for messages */
    int depth;
    int64_t steps;
    Str *out;     /* where output goes: the rendering, or the buffer of a macro or block */
    size_t outer; /* bytes of output in the buffers that enclose `out` */
    Scope *scope, *globals;
    const char *now; /* NULL = the clock */
    ChatSpan *generated;
    size_t n_generated, cap_generated;
    enum { FLOW_NORMAL, FLOW_BREAK, FLOW_CONTINUE } flow;
} Jinja;

typedef struct Keyword {
    Slice name;
    Value value;
} Keyword;
typedef struct Args {
    const Value *items;
    size_t n;
    const Keyword *keywords;
    size_t n_keywords;
} Args;
struct Builtin {
    const char *name;
    Value (*call)(Jinja *j, Value self, const Args *args);
};
struct Method {
    const Builtin *builtin;
    Value self;
};

/* Records a failure at the current position; returns undefined. */
Value jinja_fail(Jinja *j, const char *format, ...) PRINTF_LIKE(2, 3);
/* Charges the work that one call on `v` can take, so that long values do not make a single step long. False when the steps are used up. */
bool jinja_charge(Jinja *j, Value v);
static inline bool jinja_ok(const Jinja *j) { return j->status == ST_OK; }

Status jinja_lex(const char *name, const char *source, size_t len, Pool *pool, TokenList *tokens);
Status jinja_parse(const char *name, const char *source, size_t len, Pool *pool, NodeList *body, bool *marks_generation);
void jinja_set(Jinja *j, Slice name, Value value); /* sets a variable of the template before it runs */
void jinja_run(Jinja *j, const NodeList *body);
Status jinja_fault(const char *name, const char *source, size_t len, size_t at, const char *format, ...) PRINTF_LIKE(5, 6);

/* ---- values ---- */

static inline Value v_undefined(const char *name) { return (Value){.type = V_UNDEFINED, .as.name = name}; }
static inline Value v_none(void) { return (Value){.type = V_NONE}; }
static inline Value v_bool(bool b) { return (Value){.type = V_BOOL, .as.boolean = b}; }
static inline Value v_int(int64_t i) { return (Value){.type = V_INT, .as.integer = i}; }
static inline Value v_float(double d) { return (Value){.type = V_FLOAT, .as.real = d}; }
static inline Value v_slice(Slice s) { return (Value){.type = V_STRING, .as.string = s}; }
static inline Value v_text(const char *text) { return v_slice((Slice){text, __builtin_strlen(text)}); }
Value v_string(Jinja *j, const char *bytes, size_t len); /* copies the bytes */
Value v_str(Jinja *j, Str *text);                        /* copies the text and releases it */
Value v_list(Jinja *j, ValueType type);                  /* an empty list */
Value v_dict(Jinja *j);
Value v_lazy(Value list); /* makes a generator of a list */
Value v_range(Jinja *j, int64_t start, int64_t stop, int64_t step);
Value v_from_json(Jinja *j, const json_t *json);
void list_push(Jinja *j, Value list, Value item);
void dict_set(Jinja *j, Value dict, Value key, Value value);
Value *dict_find(Value dict, Value key); /* NULL when the key is missing */
static inline bool is_number(Value v) { return v.type == V_INT || v.type == V_FLOAT || v.type == V_BOOL; }
static inline bool is_string(Value v) { return v.type == V_STRING; }
static inline bool is_sequence(Value v) { return v.type == V_LIST || v.type == V_TUPLE; }
static inline bool is_integral(Value v) { return v.type == V_INT || v.type == V_BOOL; }
static inline int64_t int_of(Value v) { return v.type == V_BOOL ? v.as.boolean : v.as.integer; }
static inline double number_of(Value v) { return v.type == V_FLOAT ? v.as.real : (double)int_of(v); }
const char *v_type_name(Value v); /* Python's name of the type */
bool v_truth(Jinja *j, Value v);
bool v_equal(Jinja *j, Value a, Value b);                  /* j: charged for the comparison; NULL: no charge */
int v_compare(Jinja *j, Value a, Value b, const char *op); /* -1, 0, 1; fails for values without an order */
bool v_contains(Jinja *j, Value container, Value item);
bool v_hashable(Jinja *j, Value v);            /* fails for lists and dicts, which cannot be keys */
int64_t length_of(Jinja *j, Value v);          /* fails for values without a length */
Value v_iterate(Jinja *j, Value v);            /* the elements as a list; exhausts a generator */
void append_text(Jinja *j, Str *out, Value v); /* str(v) */
void append_repr(Jinja *j, Str *out, Value v); /* repr(v) */
typedef struct JsonStyle {
    int64_t indent; /* -1: one line; else `space` is repeated that often for each level */
    const char *space, *item, *key;
    bool ascii, sort;
} JsonStyle;
void append_dumps(Jinja *j, Str *out, Value v, const JsonStyle *style, int level);
void append_float(Str *out, double value); /* repr(float) */
Slice text_of(Jinja *j, Value v);          /* str(v) */

/* ---- strings by code points ---- */

int64_t string_length(Slice s);
Slice string_part(Slice s, int64_t begin, int64_t end); /* code points begin..end-1, both in range */
bool slice_equal(Slice a, Slice b);
Slice slice_strip(Slice s, const Slice *chars, bool left, bool right); /* chars NULL: white space */
size_t slice_find(Slice text, Slice part, size_t from);                /* byte offset, or SIZE_MAX */
bool python_space(uint32_t c);
bool python_printable(uint32_t c);

/* ---- what can be called ---- */

Value get_attribute(Jinja *j, Value object, Slice name); /* object.name */
Value get_item(Jinja *j, Value object, Value key);       /* object[key] */
/* The `attribute` argument of filters: "a.b", 0, "items.0.x". missing: returned where a step of the path is undefined; NULL: undefined is
 * returned. */
Value get_path(Jinja *j, Value object, Value path, const Value *missing);
const Builtin *filter_find(Slice name);
const Builtin *test_find(Slice name);
const Builtin *method_find(ValueType type, Slice name, bool *mutates);
const Builtin *global_find(Slice name);
/* Calls a filter by a name that is known only when the template runs: map('upper'). */
Value filter_call(Jinja *j, Slice name, Value value, const Args *args);
bool test_call(Jinja *j, Slice name, Value value, const Args *args);
/* Argument `index`, or the keyword argument `name`; NULL when the call has neither. */
const Value *arg(const Args *args, size_t index, const char *name);
int64_t arg_int(Jinja *j, const Args *args, size_t index, const char *name, int64_t missing);
bool arg_bool(Jinja *j, const Args *args, size_t index, const char *name, bool missing);
Slice arg_text(Jinja *j, const Args *args, size_t index, const char *name, const char *missing); /* fails when it is not a string */
/* Fails as Python does for fewer arguments than `least`, for more than `most`, and for keywords that are not among `names` ("a|b"). */
bool args_check(Jinja *j, const char *what, const Args *args, size_t least, size_t most, const char *names);
Value slice_of(Jinja *j, Value object, Value start, Value stop, Value step);
Value v_binary(Jinja *j, Slice op, Value a, Value b);
Value format_percent(Jinja *j, Slice format, Value args);
Value string_format(Jinja *j, Value self, const Args *args);

#endif
