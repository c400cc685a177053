/* SPDX-License-Identifier: Apache-2.0 */
/* Constraints on generated text: a grammar over bytes (a JSON Schema, any JSON object, a regular expression, a call of a tool), and the tokens that
 * may come next in a text that follows it.
 *
 *     TRY(grammar_json_schema(schema, &grammar));
 *     TRY(token_bytes_new(tokenizer, &bytes));
 *     TRY(constraint_new(grammar, bytes, &constraint));
 *     request.constraint = constraint;                       // infer.h
 *
 * A grammar accepts a subset of what the schema accepts: members of an object come in the order of `properties`, numbers have at most 18 digits.
 * Each text that it accepts is JSON that the schema accepts. */
#ifndef TUNE_GRAMMAR_H
#define TUNE_GRAMMAR_H

#include "lib/base/json.h"
#include "lib/text/text.h"
#include "lib/text/tool_calls.h"

/* ---- grammars; they do not change after they were made, so any thread may use one ---- */

typedef struct Grammar Grammar;
/* A JSON Schema: type, properties, required, additionalProperties, items, prefixItems, minItems, maxItems, enum, const, anyOf, oneOf of schemas
 * that plainly exclude each other, $ref to $defs and definitions, minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum,
 * exclusiveMaximum; docs/generate.md has the rules.
 * ST_INPUT: a keyword that is not supported, by its name and place; a schema without a value; one that is too large, with what is too large.
 * The caller calls grammar_free. */
Status grammar_json_schema(const json_t *schema, Grammar **grammar);
Status grammar_json_object(Grammar **grammar); /* any JSON object, nested at most GRAMMAR_DEPTH deep */
/* Texts that match the regular expression from their beginning to their end. ECMA-262's syntax, without assertions other than ^ and $ at the ends,
 * without back references and \p. ST_INPUT: not an expression, with the byte; one that is too large. */
Status grammar_regex(const char *pattern, size_t len, Grammar **grammar);
/* Texts that follow the rule `root` of a grammar in GBNF, llama.cpp's form. At most GRAMMAR_DEPTH rules can be open within each other; one that ends
 * with another rule is closed before it. ST_INPUT: not a grammar, with the line; a rule that is missing; one that begins with itself; one that is too
 * large. */
Status grammar_gbnf(const char *text, size_t len, Grammar **grammar);
/* One call, or with `parallel` one or more, of the given tools in the syntax of a model, and nothing else. tools: as in a request, [{"type":
 * "function", "function": {"name", "parameters"}}]. name: NULL, or the only tool that may be called. ST_INPUT: a syntax whose arguments are not
 * JSON, by its name; no such tool; parameters that grammar_json_schema refuses. */
Status grammar_tool_calls(const ToolSyntax *syntax, const json_t *tools, const char *name, bool parallel, Grammar **grammar);
void grammar_free(Grammar *grammar); /* NULL is fine */
/* Whether the grammar accepts the whole text; false too if there is no memory, which memory_check reports. */
bool grammar_accepts(const Grammar *grammar, const char *text, size_t len);

/* Limits of a grammar. */
enum {
    GRAMMAR_DEPTH = 64,         /* of nested objects and arrays in a text; of nested schemas; of groups in an expression */
    GRAMMAR_RULES = 1 << 12,    /* parts that are used from several places: references, elements that are counted */
    GRAMMAR_STEPS = 1 << 18,    /* instructions of a compiled grammar */
    CONSTRAINT_BYTES = 64 << 20 /* memory of a constraint: its states and the masks of tokens that are kept */
};

/* ---- tokens ---- */

/* The bytes that each token of a tokenizer adds to a text, sorted. Does not change after it was made. */
typedef struct TokenBytes TokenBytes;
/* ST_INPUT: a tokenizer whose tokens have different texts next to different tokens (WordPiece, CTC, a suffix of words). The tokenizer must outlive
 * the result. The caller calls token_bytes_free. */
Status token_bytes_new(const Tokenizer *tokenizer, TokenBytes **bytes);
void token_bytes_free(TokenBytes *bytes); /* NULL is fine */

/* A grammar on the tokens of a tokenizer. It computes states and masks when they are needed and keeps them, at most CONSTRAINT_BYTES; so one
 * constraint for all requests with the same grammar saves time. One thread uses it at a time. What it answers depends on the tokens of the text
 * alone, not on other texts. */
typedef struct Constraint Constraint;
/* grammar and bytes must outlive the constraint. ST_INPUT: more than 2^14 alternatives begin alike; ST_RESOURCE. The caller calls constraint_free. */
Status constraint_new(const Grammar *grammar, const TokenBytes *bytes, Constraint **constraint);
void constraint_free(Constraint *constraint); /* NULL is fine */
/* The most memory that n constraints take, with a grammar for each, and with the TokenBytes of their tokenizer. 0 for n = 0. */
size_t constraints_bytes(const Tokenizer *tokenizer, size_t n);
/* Where a text is. {0} is its beginning; the memory is the caller's, and nothing has to be released. */
typedef struct ConstraintState {
    uint64_t era;   /* of the kept states; those of an earlier era are computed again from the text's tokens */
    uint32_t state; /* index of the state, if the era is the current one */
    size_t n;       /* tokens before it */
} ConstraintState;
typedef struct TokenMask {
    const uint64_t *allowed; /* a bit for each id, tokenizer_vocab_size of them; valid until the next call with the constraint */
    bool may_end;            /* the text is complete */
    bool must_end;           /* it is, and no token can follow */
} TokenMask;
/* The tokens that may follow a text of n tokens, after it has moved `state` there. Tokens that are special are allowed only where the grammar names
 * them, and end tokens never: the caller allows them if may_end. ST_INPUT: the tokens break the grammar, the vocabulary has no token that goes
 * on, or the grammar is so large that finding them takes more than about half a second; ST_RESOURCE: more than CONSTRAINT_BYTES are needed. */
Status constraint_mask(Constraint *constraint, ConstraintState *state, const int32_t *ids, size_t n, TokenMask *mask);
#endif
