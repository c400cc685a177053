/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of grammars and constraints; for the files of this folder only.
 *
 *     grammar_program.c     a grammar is a program: it is built from its end to its beginning, then checked
 *     grammar_text.c        texts, characters and strings of JSON
 *     grammar_tree.c        trees of expressions
 *     grammar_regex.c       regular expressions
 *     grammar_gbnf.c        grammars in llama.cpp's form
 *     grammar_number.c      numbers within bounds
 *     grammar_schema.c      JSON Schema; grammar_object.c: its objects and arrays
 *     grammar_tools.c       calls of tools
 *     automaton.c           runs a program on bytes, by states that are made when they are reached
 *     token_bytes.c         the bytes of tokens
 *     constraint.c          the tokens that may follow
 *
 * A program is a nondeterministic automaton with a stack: instructions that match a byte, choose between two ways, or call a rule and return from
 * it. A special token is the byte MARK_SPECIAL, which no text has, and its text. */
#ifndef TUNE_GRAMMAR_PARTS_H
#define TUNE_GRAMMAR_PARTS_H

#include "lib/grammar/grammar.h"

enum { MARK_SPECIAL = 0xFF, LAST_CODE_POINT = 0x10FFFF };

/* ---- programs ---- */

typedef enum InstrKind {
    INSTR_NONE,  /* matches nothing */
    INSTR_BYTES, /* a byte low..high, then `next` */
    INSTR_SPLIT, /* `next` or `other` */
    INSTR_CALL,  /* the rule `other`, then `next` */
    INSTR_RETURN /* the end of a rule, or of the text */
} InstrKind;
typedef struct Instr {
    uint8_t kind, low, high;
    bool deeper; /* INSTR_CALL: counts for GRAMMAR_DEPTH */
    int32_t next, other;
} Instr;
struct Grammar {
    Instr *code; /* code[0] is INSTR_NONE */
    size_t n, cap;
    int32_t *rules; /* where each begins */
    size_t n_rules, cap_rules;
    int32_t start;
    uint8_t *need; /* for each instruction the least number of deeper calls within each other up to its rule's end; above GRAMMAR_DEPTH: no end */
};

/* What a grammar is built with. After the first failure it builds nothing more. */
typedef struct Builder {
    Grammar *grammar;
    const char *what; /* for messages: "schema", "pattern", "constraint" */
    Status status;
    int32_t space, character, value; /* rules that exist once they are used; -1: not yet */
} Builder;
Status builder_open(Builder *b, const char *what);
/* Checks the program that begins at `start` and hands it out; on failure, or after one, frees it. ST_INPUT: it matches no text; a rule calls itself
 * before it has matched a byte. */
Status builder_finish(Builder *b, int32_t start, Grammar **grammar);
/* Each returns where the instruction, or what was built, begins; 0, which matches nothing, after a failure. `next`: where it goes on. */
int32_t build_bytes(Builder *b, int low, int high, int32_t next);
int32_t build_split(Builder *b, int32_t next, int32_t other);
void build_join(Builder *b, int32_t split, int32_t next); /* sets the first way of a split: for loops */
int32_t build_return(Builder *b);
int32_t build_rule(Builder *b);                              /* the number of a rule without a beginning; -1 after a failure */
void build_rule_start(Builder *b, int32_t rule, int32_t at); /* its beginning */
int32_t build_call(Builder *b, int32_t rule, bool deeper, int32_t next);

/* ---- texts ---- */

int32_t build_text(Builder *b, const char *text, size_t len, int32_t next);
int32_t build_special(Builder *b, const char *text, size_t len, int32_t next); /* the special token of this text, or the text itself */
int32_t build_space(Builder *b, int32_t next);                                 /* nothing, a blank, or a line end and the indent after it */
int32_t build_quoted(Builder *b, const char *text, size_t len, int32_t next);  /* as a JSON string */
int32_t build_character(Builder *b, int32_t next);                             /* a character within a JSON string, escaped or not */
/* `least` to `most` of them; most < 0: no limit */
int32_t build_characters(Builder *b, int64_t least, int64_t most, int32_t next);
int32_t build_value(Builder *b, int32_t next); /* any JSON value */
int32_t build_any_object(Builder *b, int32_t next);
int32_t build_digits(Builder *b, int most, int32_t next); /* none to `most` digits */

/* Sets of characters: ranges in order, apart from each other. */
typedef struct CharRange {
    uint32_t low, high;
} CharRange;
typedef struct CharSet {
    CharRange *ranges; /* from malloc */
    size_t n, cap;
} CharSet;                                                     /* {0} is empty */
Status charset_add(CharSet *set, uint32_t low, uint32_t high); /* ST_RESOURCE */
Status charset_invert(CharSet *set);                           /* ST_RESOURCE */
Status charset_remove(CharSet *set, uint32_t c);               /* ST_RESOURCE */
void charset_release(CharSet *set);
/* One character of the set in UTF-8; json: as it is within a JSON string. Surrogates are left out, and with json also the character 0. */
int32_t build_charset(Builder *b, const CharSet *set, bool json, int32_t next);

/* ---- trees of expressions ---- */

typedef enum NodeKind { NODE_SET, NODE_SEQUENCE, NODE_CHOICE, NODE_REPEAT, NODE_RULE, NODE_BEGIN, NODE_END } NodeKind;
typedef struct Node Node;
struct Node {
    NodeKind kind;
    CharSet set;         /* NODE_SET */
    Node *last, *before; /* last: of the nodes within; before: the one before this one in the same node */
    int64_t least, most; /* NODE_REPEAT; most < 0: no limit */
    int32_t rule;        /* NODE_RULE: its number */
    Node *made_before;   /* of all nodes, for freeing */
};
typedef struct Tree {
    Node *made;
    bool misplaced; /* build_node met an anchor */
} Tree;
Status node_new(Tree *tree, NodeKind kind, Node **node); /* ST_RESOURCE. tree_release frees it */
void node_add(Node *node, Node *part);                   /* the last part of a sequence, choice or repetition */
void tree_release(Tree *tree);
int32_t build_node(Tree *tree, Builder *b, const Node *node, bool json, int32_t next); /* json: the text is within a JSON string */

/* ---- regular expressions ---- */

/* whole: the text matches from its beginning to its end; otherwise a part of it does. json: the text is within a JSON string. ST_INPUT with the byte
 * of the pattern. */
Status build_regex(Builder *b, const char *pattern, size_t len, bool whole, bool json, int32_t next, int32_t *start);

/* ---- numbers ---- */

/* Bounds of a number; text as JSON has it. */
typedef struct NumberBounds {
    const json_t *low, *high; /* NULL: none */
    bool above, below;        /* the bounds themselves are left out */
    bool integer;
} NumberBounds;
/* ST_INPUT: a bound of more than 18 digits before or 15 after the point. */
Status build_number(Builder *b, const NumberBounds *bounds, int32_t next, int32_t *start);

/* ---- schemas ---- */

typedef struct SchemaRule {
    const json_t *schema;
    int32_t rule;
    char *path;
} SchemaRule;
typedef struct SchemaBuilder {
    Builder *b;
    const json_t *root;
    Str path; /* of the schema in work, as a pointer */
    int depth;
    SchemaRule *rules; /* of references, in the order in which they were met */
    size_t n_rules, cap_rules;
} SchemaBuilder;
Status schema_open(SchemaBuilder *s, Builder *b, const json_t *root);
Status schema_build(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start); /* of a part of the root */
/* The same, a member or element of the schema in work. */
Status schema_build_at(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start, const char *format, ...) PRINTF_LIKE(5, 6);
Status schema_finish(SchemaBuilder *s); /* builds what references name */
void schema_release(SchemaBuilder *s);
Status schema_fault(const SchemaBuilder *s, const char *format, ...) PRINTF_LIKE(2, 3);             /* ST_INPUT with the place */
Status schema_count(const SchemaBuilder *s, const json_t *schema, const char *key, int64_t *count); /* a number of characters or elements */
Status build_object(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start);
Status build_array(SchemaBuilder *s, const json_t *schema, int32_t next, int32_t *start);

/* ---- running a program ---- */

enum { STATE_DEAD, STATE_FIRST, STATE_UNKNOWN = INT32_MAX };
typedef struct Thread {
    int32_t at; /* an INSTR_BYTES */
    uint32_t frame;
} Thread;
typedef struct Frame {
    int32_t at; /* where its call returns to; 0: the end of the text */
    uint32_t parent, depth;
} Frame;
typedef struct AutomatonState {
    size_t first, n; /* its threads */
    bool accepts;    /* the text is complete */
    int32_t *next;   /* (256) states, STATE_UNKNOWN where it is not known yet; NULL: none is */
    uint64_t *mask;  /* NULL, or the tokens that may follow, kept by constraint.c */
} AutomatonState;
/* The states of a program that were reached. */
typedef struct Automaton {
    const Grammar *grammar;
    Arena *arena; /* `next` and `mask` of states */
    AutomatonState *states;
    Thread *threads;
    Frame *frames;
    uint32_t *state_slots, *frame_slots; /* open hash tables of indices; UINT32_MAX: a free slot */
    size_t n_states, cap_states, n_threads, cap_threads, n_frames, cap_frames, n_state_slots, n_frame_slots;
    Thread *todo, *seen, *found; /* of a step: to follow; met already, a hash table; that match a byte */
    size_t n_todo, cap_todo, n_seen, n_seen_slots, n_found, cap_found;
    size_t work; /* places that were followed since the caller last set it to 0 */
} Automaton;
Status automaton_open(Automaton *a, const Grammar *grammar); /* ST_RESOURCE */
void automaton_release(Automaton *a);
Status automaton_reset(Automaton *a);       /* forgets all states; only STATE_FIRST is there. ST_RESOURCE */
size_t automaton_bytes(const Automaton *a); /* that its states and their masks take */
size_t automaton_step_bytes(void);          /* the most that a step takes besides */
/* The state after a byte. ST_RESOURCE: no memory, or more than CONSTRAINT_BYTES; ST_INPUT: more than the most threads, or too much work. */
Status automaton_step(Automaton *a, int32_t state, uint8_t byte, int32_t *next);

/* ---- tokens ---- */

struct TokenBytes {
    int32_t vocab; /* as tokenizer_vocab_size */
    bool strips;   /* the first token of a text loses a blank */
    size_t n;      /* tokens with bytes; these are in order of their bytes */
    int32_t *ids;
    uint32_t *begins; /* (n + 1): of their bytes */
    uint16_t *common; /* length of the beginning that a token shares with the one before it */
    uint8_t *bytes;
    size_t n_bytes, longest; /* longest: bytes of a token */
    int32_t *places;         /* by id: index into the above; -1: the token has no bytes */
    size_t firsts[257];      /* the first token whose first byte is at least so large */
};
size_t token_bytes_most(const Tokenizer *tokenizer); /* the most memory that token_bytes_new takes while it works */

#endif
