/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of all tokens in order, so that tokens with the same beginning are next to each other. */
#include "lib/base/memory.h"
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct TokenEntry {
    const char *bytes; /* set when all of them were read */
    size_t begin, len;
    int32_t id;
} TokenEntry;
typedef struct TokenEntries {
    TokenEntry *items;
    size_t n, cap;
    Str bytes;
} TokenEntries;

size_t token_bytes_most(const Tokenizer *tokenizer) {
    size_t n = (size_t)tokenizer_vocab_size(tokenizer), bytes = 0;
    for (size_t id = 0; id < n; id++) {
        const char *token = tokenizer_token(tokenizer, (int32_t)id); /* not shorter than its bytes */
        bytes += token ? strlen(token) + 1 : 0;
    }
    return n * (sizeof(TokenEntry) + 3 * sizeof(int32_t) + sizeof(uint16_t)) + 2 * bytes + sizeof(TokenBytes);
}

static Status read_entries(const Tokenizer *tokenizer, TokenEntries *entries) {
    int32_t vocab = tokenizer_vocab_size(tokenizer);
    for (int32_t id = 0; id < vocab; id++) {
        size_t begin = entries->bytes.len;
        bool special = tokenizer_token(tokenizer, id) && tokenizer_is_special(tokenizer, id);
        if (special) str_append_char(&entries->bytes, (char)MARK_SPECIAL);
        if (special)
            str_append(&entries->bytes, tokenizer_token(tokenizer, id));
        else
            tokenizer_token_bytes(tokenizer, id, &entries->bytes);
        size_t len = entries->bytes.len - begin;
        /* A token of the byte that marks special ones would pass for a mark. No text has it. */
        bool marks = !special && len > 0 && memchr(entries->bytes.data + begin, MARK_SPECIAL, len);
        if (marks) entries->bytes.len = begin;
        if (len == 0 || len > UINT16_MAX || marks) continue;
        TRY(array_grow(&entries->items, &entries->cap, entries->n + 1, sizeof *entries->items, "tokens"));
        entries->items[entries->n++] = (TokenEntry){NULL, begin, len, id};
    }
    for (size_t i = 0; i < entries->n; i++) entries->items[i].bytes = entries->bytes.data + entries->items[i].begin;
    return memory_check(ST_OK);
}

static int token_order(const void *x, const void *y) {
    const TokenEntry *a = x, *b = y;
    int order = memcmp(a->bytes, b->bytes, MIN(a->len, b->len));
    if (order) return order;
    return a->len != b->len ? (a->len > b->len ? 1 : -1) : (a->id > b->id) - (a->id < b->id);
}

static Status fill(TokenBytes *t, const TokenEntries *entries) {
    t->n = entries->n;
    t->ids = malloc((t->n + 1) * sizeof *t->ids);
    t->begins = malloc((t->n + 1) * sizeof *t->begins);
    t->common = malloc((t->n + 1) * sizeof *t->common);
    t->bytes = malloc(entries->bytes.len + 1);
    t->places = malloc(((size_t)t->vocab + 1) * sizeof *t->places);
    if (!t->ids || !t->begins || !t->common || !t->bytes || !t->places || entries->bytes.len > UINT32_MAX)
        return status_fail(ST_RESOURCE, "out of memory for the bytes of %zu tokens", t->n);
    memset(t->places, 0xFF, ((size_t)t->vocab + 1) * sizeof *t->places);
    size_t at = 0, first = 0;
    for (size_t i = 0; i < t->n; i++) {
        const TokenEntry *e = &entries->items[i], *before = i > 0 ? e - 1 : e;
        size_t same = 0;
        while (i > 0 && same < MIN(e->len, before->len) && e->bytes[same] == before->bytes[same]) same++;
        for (; first <= (uint8_t)e->bytes[0]; first++) t->firsts[first] = i;
        memcpy(t->bytes + at, e->bytes, e->len);
        t->ids[i] = e->id;
        t->begins[i] = (uint32_t)at;
        t->common[i] = (uint16_t)same;
        t->places[e->id] = (int32_t)i;
        t->longest = MAX(t->longest, e->len);
        at += e->len;
    }
    for (; first <= 256; first++) t->firsts[first] = t->n;
    t->begins[t->n] = (uint32_t)at;
    return ST_OK;
}

Status token_bytes_new(const Tokenizer *tokenizer, TokenBytes **bytes) {
    bool strips;
    const char *part = tokenizer_joins(tokenizer, &strips);
    *bytes = NULL;
    if (part) {
        status_fail(ST_INPUT, "the text of an answer cannot be constrained: in this tokenizer the text of a token depends on its neighbours (%s)",
                    part);
        return status_hint(ST_INPUT, "use a model whose tokenizer has a decoder of bytes, as nearly all language models do");
    }
    TokenEntries entries = {0};
    TokenBytes *t = calloc(1, sizeof *t);
    Status status = t ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the bytes of tokens");
    if (status == ST_OK) {
        *t = (TokenBytes){.vocab = tokenizer_vocab_size(tokenizer), .strips = strips};
        status = read_entries(tokenizer, &entries);
    }
    if (status == ST_OK) {
        if (entries.n > 1) qsort(entries.items, entries.n, sizeof *entries.items, token_order);
        status = fill(t, &entries);
    }
    free(entries.items);
    str_release(&entries.bytes);
    if (status == ST_OK)
        *bytes = t;
    else
        token_bytes_free(t);
    return status;
}

void token_bytes_free(TokenBytes *t) {
    if (!t) return;
    free(t->ids);
    free(t->begins);
    free(t->common);
    free(t->bytes);
    free(t->places);
    free(t);
}
