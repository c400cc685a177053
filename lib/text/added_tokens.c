/* SPDX-License-Identifier: Apache-2.0 */
/* Added tokens, which are found in the text before any other step: at each position the longest, leftmost first. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

static int pattern_order(const void *a, const void *b) {
    Slice x = (*(const AddedToken *const *)a)->pattern, y = (*(const AddedToken *const *)b)->pattern;
    int order = memcmp(x.data, y.data, MIN(x.len, y.len));
    return order ? order : (x.len > y.len) - (x.len < y.len);
}

/* Collects the tokens whose `normalized` flag has the given value. */
static Status set_init(Loader *loader, AddedTokens *added, AddedSet *set, bool normalized) {
    set->tokens = arena_alloc(loader->arena, (added->n + 1) * sizeof *set->tokens);
    if (!set->tokens) return ST_RESOURCE;
    for (size_t i = 0; i < added->n; i++) {
        const AddedToken *token = &added->tokens[i];
        if (token->normalized != normalized || token->pattern.len == 0) continue;
        set->first[(uint8_t)token->pattern.data[0]] = true;
        set->tokens[set->n++] = token;
    }
    qsort(set->tokens, set->n, sizeof *set->tokens, pattern_order);
    return ST_OK;
}

/* A token of normalised text is searched for, and decoded, in the form that the normalizer gives it, as in tokenizers 0.23.3. */
static Status pattern_normalize(Loader *loader, Encoder *encoder, AddedTokens *added, AddedToken *token) {
    size_t size = (size_t)loader->tokenizer->vocabulary.size;
    Text text = {token->content.data, token->content.len, NULL, 0};
    TRY(normalizer_run(&loader->tokenizer->normalizer, encoder, &text));
    token->pattern.len = text.len;
    token->pattern.data = text.len > 0 ? arena_strndup(loader->arena, text.data, text.len) : "";
    if (!token->pattern.data) return ST_RESOURCE;
    if (slice_is(token->pattern, token->content.data)) return ST_OK;
    if (!added->decoded && !(added->decoded = arena_zero(loader->arena, size * sizeof *added->decoded))) return ST_RESOURCE;
    added->decoded[token->id] = token->pattern;
    return ST_OK;
}

static Status token_read(Loader *loader, AddedToken *token, const json_t *item) {
    const char *content;
    TRY(part_string(loader, item, "content", &content));
    token->id = vocabulary_find(&loader->tokenizer->vocabulary, content, strlen(content));
    token->content = token->pattern = loader->tokenizer->vocabulary.tokens[token->id];
    TRY(part_bool(loader, item, "special", false, &token->special));
    TRY(part_bool(loader, item, "single_word", false, &token->single_word));
    TRY(part_bool(loader, item, "lstrip", false, &token->lstrip));
    TRY(part_bool(loader, item, "rstrip", false, &token->rstrip));
    return part_bool(loader, item, "normalized", !token->special, &token->normalized);
}

Status added_tokens_init(Loader *loader, AddedTokens *added, const json_t *node) {
    size_t i, n = json_array_size(node);
    json_t *item;
    added->tokens = arena_zero(loader->arena, (n + 1) * sizeof *added->tokens);
    added->special = arena_zero(loader->arena, (size_t)loader->tokenizer->vocabulary.size + 1);
    if (!added->tokens || !added->special) return ST_RESOURCE;
    Encoder encoder = {0};
    Status status = ST_OK;
    json_array_foreach(node, i, item) {
        AddedToken *token = &added->tokens[added->n++];
        TRY_GOTO(token_read(loader, token, item), done);
        if (token->special) added->special[token->id] = true;
        if (token->normalized) TRY_GOTO(pattern_normalize(loader, &encoder, added, token), done);
    }
    TRY_GOTO(set_init(loader, added, &added->plain, false), done);
    TRY_GOTO(set_init(loader, added, &added->normalized, true), done);
done:
    encoder_release(&encoder);
    return status;
}

/* Narrows the range [low, high) of sorted patterns, which agree in their first `depth` bytes, to those whose next byte is `byte`. */
static void narrow(const AddedSet *set, size_t depth, uint8_t byte, size_t *low, size_t *high) {
    size_t bounds[2];
    for (int upper = 0; upper < 2; upper++) {
        size_t a = *low, b = *high;
        while (a < b) {
            size_t middle = a + (b - a) / 2;
            Slice pattern = set->tokens[middle]->pattern;
            bool before = pattern.len <= depth || (uint8_t)pattern.data[depth] < byte + upper;
            if (before)
                a = middle + 1;
            else
                b = middle;
        }
        bounds[upper] = a;
    }
    *low = bounds[0];
    *high = bounds[1];
}

static const AddedToken *longest_at(const AddedSet *set, const char *text, size_t len) {
    const AddedToken *longest = NULL;
    size_t low = 0, high = set->n;
    for (size_t depth = 0; depth < len; depth++) {
        narrow(set, depth, (uint8_t)text[depth], &low, &high);
        if (low == high) break;
        if (set->tokens[low]->pattern.len == depth + 1) longest = set->tokens[low];
    }
    return longest;
}

static bool word_before(const char *text, size_t at) {
    uint32_t c;
    return at > 0 && (char_last(text, at, &c), char_is_word(c));
}

static bool word_after(const char *text, size_t len, size_t at) {
    uint32_t c;
    return at < len && (char_next(text + at, &c), char_is_word(c));
}

static size_t spaces_before(const char *text, size_t at, size_t floor) {
    uint32_t c;
    while (at > floor) {
        size_t used = char_last(text, at, &c);
        if (!char_is_space(c)) break;
        at -= used;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t len, size_t at) {
    uint32_t c;
    while (at < len) {
        size_t used = char_next(text + at, &c);
        if (!char_is_space(c)) break;
        at += used;
    }
    return at;
}

static int by_place(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

static bool is_literal(const Literal *literal, const Text *text, size_t begin, size_t end) {
    size_t at = literal->n > 0 ? text_origin(text, begin, end).from : 0;
    return literal->all || (literal->n > 0 && bsearch(&at, literal->guards, literal->n, sizeof at, by_place));
}

bool added_find(const AddedSet *set, const Text *text, size_t from, size_t floor, const Literal *literal, AddedMatch *match) {
    const char *bytes = text->data;
    size_t len = text->len;
    if (set->n == 0) return false;
    for (size_t i = from; i < len; i++) {
        if (!set->first[(uint8_t)bytes[i]]) continue;
        const AddedToken *token = longest_at(set, bytes + i, len - i);
        if (!token) continue;
        size_t end = i + token->pattern.len;
        bool inside_word = token->single_word && (word_before(bytes, i) || word_after(bytes, len, end));
        if (inside_word || (token->special && is_literal(literal, text, i, end))) {
            i = end - 1; /* do not search the rejected match again */
            continue;
        }
        match->token = token;
        match->start = !token->lstrip ? i : i > floor ? spaces_before(bytes, i, floor) : floor;
        match->resume = end;
        match->end = token->rstrip ? spaces_after(bytes, len, end) : end;
        return true;
    }
    return false;
}
