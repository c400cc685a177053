/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON Schema in the first line, or "/" and a regular expression, or "%" and a grammar in GBNF up to the last line; then a text. Either it is refused with a message, or each text that it accepts
 * fits, and allowed tokens lead to texts that can go on. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/grammar/grammar.h"
#include "rl/reward/json_schema.h"
#include "tests/support/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { STEPS = 4 };

static const TokenBytes *tokens(int32_t *vocab) {
    static TokenBytes *list;
    static Tokenizer *tokenizer;
    if (!list) {
        check_ok(tokenizer_load("recipes/demo/model", &tokenizer));
        check_ok(token_bytes_new(tokenizer, &list));
    }
    *vocab = tokenizer_vocab_size(tokenizer);
    return list;
}

/* The text is JSON, and the schema accepts it, as far as the other reader of schemas knows its keywords. */
static void check_accepted(const json_t *schema, const char *text, size_t len) {
    json_t *value = json_of_text(text, len, JSON_DECODE_ANY);
    char *source = json_text(schema, JSON_ENCODE_ANY);
    ASSERT(value && source, "'%.*s' is no JSON", (int)len, text);
    bool known = !strstr(source, "pattern") && schema_check(schema, "the schema") == ST_OK; /* its patterns have another dialect */
    if (known) ASSERT(schema_fits(schema, value) != SCHEMA_DIFFERS, "'%.*s' differs", (int)len, text);
    free(source);
    json_decref(value);
}

/* Tokens at random. */
static void follow(const Grammar *grammar, uint64_t seed) {
    int32_t vocab;
    const TokenBytes *list = tokens(&vocab);
    Constraint *constraint;
    ConstraintState state = {0};
    Ids ids = {0};
    check_ok(constraint_new(grammar, list, &constraint));
    for (uint64_t i = 0; i < STEPS; i++) {
        TokenMask mask;
        Status status = constraint_mask(constraint, &state, ids.data, ids.n, &mask);
        ASSERT(status == ST_OK || status_text()[0], "no text");
        if (status != ST_OK || mask.must_end) break;
        int32_t id = (int32_t)rng_below(rng_key(seed, RNG_TEST, 0), i, (uint64_t)vocab), tried = 0;
        for (; tried < vocab && !(mask.allowed[id / 64] >> id % 64 & 1); tried++) id = (id + 1) % vocab;
        ASSERT(tried < vocab, "an empty mask after %zu tokens", ids.n);
        ids_push(&ids, id);
    }
    ids_release(&ids);
    constraint_free(constraint);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    const uint8_t *newline = len ? memchr(bytes, '\n', len) : NULL;
    Grammar *grammar = NULL;
    json_t *schema = NULL;
    Status status = ST_INPUT;
    if (!newline) return 0;
    if (bytes[0] == '%')
        while (newline[-1] != '%' && memchr(newline + 1, '\n', len - (size_t)(newline - bytes) - 1))
            newline = memchr(newline + 1, '\n', len - (size_t)(newline - bytes) - 1);
    size_t first = (size_t)(newline - bytes);
    const char *text = (const char *)newline + 1;
    size_t text_len = len - first - 1;
    if (bytes[0] == '/')
        status = grammar_regex((const char *)bytes + 1, first - 1, &grammar);
    else if (bytes[0] == '%')
        status = grammar_gbnf((const char *)bytes + 1, first - 1, &grammar);
    else if (json_read_text((const char *)bytes, first, "schema", &schema) == ST_OK)
        status = grammar_json_schema(schema, &grammar);
    if (status != ST_OK) {
        ASSERT(status == ST_INPUT && !grammar && status_text()[0], "status %d", (int)status);
    } else {
        if (grammar_accepts(grammar, text, text_len) && schema) check_accepted(schema, text, text_len);
        follow(grammar, len);
    }
    grammar_free(grammar);
    json_decref(schema);
    return 0;
}
