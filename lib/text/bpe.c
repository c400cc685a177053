/* SPDX-License-Identifier: Apache-2.0 */
/* Byte pair encoding.
 *
 * A word starts as its characters. The pair with the lowest rank (of equal ones the leftmost) is merged into one symbol until no pair has a rank.
 * Short words are scanned for that pair; long ones keep their pairs in a heap, so that a megabyte of one letter takes n log n steps. */
#include <stdio.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

enum { SHORT_WORD = 48 };

/* ---- merges ---- */

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static Merge *merge_slot(const TokenModel *model, uint64_t pair) {
    size_t slot = (pair * 0x9E3779B97F4A7C15u) >> 20 & (model->n_slots - 1);
    while (model->merges[slot].rank >= 0 && model->merges[slot].pair != pair) slot = (slot + 1) & (model->n_slots - 1);
    return &model->merges[slot];
}

/* Stores the rank of the pair that begins with `symbol` and the id of its merge; INT32_MAX when it cannot be merged. */
static void symbol_rank(const TokenModel *model, Symbol *symbols, int32_t at) {
    Symbol *symbol = &symbols[at];
    symbol->rank = INT32_MAX;
    if (symbol->next < 0) return;
    const Merge *merge = merge_slot(model, pair_of(symbol->id, symbols[symbol->next].id));
    if (merge->rank < 0) return;
    symbol->rank = merge->rank;
    symbol->merged = merge->id;
}

static void symbol_merge(const TokenModel *model, Symbol *symbols, int32_t at) {
    Symbol *left = &symbols[at], *right = &symbols[left->next];
    left->id = left->merged;
    left->end = right->end;
    left->next = right->next;
    right->rank = INT32_MAX;
    if (left->next >= 0) symbols[left->next].prev = at;
    symbol_rank(model, symbols, at);
    if (left->prev >= 0) symbol_rank(model, symbols, left->prev);
}

static void merge_short(const TokenModel *model, Symbol *symbols) {
    for (;;) {
        int32_t best = -1, rank = INT32_MAX;
        for (int32_t i = 0; i >= 0; i = symbols[i].next)
            if (symbols[i].rank < rank) rank = symbols[best = i].rank;
        if (best < 0) return;
        symbol_merge(model, symbols, best);
    }
}

static void heap_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t value = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[i] = heap[child];
    }
    heap[i] = value;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t value) {
    size_t i = (*n)++;
    for (size_t parent; i > 0 && heap[parent = (i - 1) / 2] > value; i = parent) heap[i] = heap[parent];
    heap[i] = value;
}

/* Heap entries are rank and position; an entry is stale when its symbol has another rank by now. A merge adds two entries and takes one, so 3 n
 * are enough. */
static Status merge_long(const TokenModel *model, Encoder *encoder, size_t n_symbols) {
    Symbol *symbols = encoder->symbols;
    size_t n = 0;
    TRY(array_grow(&encoder->heap, &encoder->heap_cap, 3 * n_symbols, sizeof *encoder->heap, "pairs of tokens"));
    uint64_t *heap = encoder->heap;
    for (size_t i = 0; i < n_symbols; i++)
        if (symbols[i].rank != INT32_MAX) heap[n++] = (uint64_t)symbols[i].rank << 32 | i;
    for (size_t i = n / 2; i > 0; i--) heap_down(heap, n, i - 1);
    while (n > 0) {
        uint64_t top = heap[0];
        int32_t at = (int32_t)(uint32_t)top;
        heap[0] = heap[--n];
        if (n > 0) heap_down(heap, n, 0);
        if (symbols[at].rank != (int32_t)(top >> 32)) continue;
        symbol_merge(model, symbols, at);
        int32_t around[2] = {at, symbols[at].prev};
        for (int k = 0; k < 2; k++)
            if (around[k] >= 0 && symbols[around[k]].rank != INT32_MAX)
                heap_push(heap, &n, (uint64_t)symbols[around[k]].rank << 32 | (uint32_t)around[k]);
    }
    return ST_OK;
}

/* ---- the initial symbols of a word ---- */

typedef struct Speller {
    const Tokenizer *tokenizer;
    Encoder *encoder;
    size_t n;
    bool unknown;
    uint32_t unknown_start, unknown_end;
} Speller;

static void symbol_put(Speller *s, int32_t id, uint32_t start, uint32_t end) {
    int32_t at = (int32_t)s->n++;
    s->encoder->symbols[at] = (Symbol){.id = id, .prev = at - 1, .next = at + 1, .start = start, .end = end};
}

static void unknown_release(Speller *s) {
    if (s->unknown) symbol_put(s, s->tokenizer->model.unk, s->unknown_start, s->unknown_end);
    s->unknown = false;
}

/* A character without a token becomes the tokens of its bytes, else the unknown token, else nothing. */
static Status unknown_put(Speller *s, const char *text, size_t len, uint32_t start, uint32_t end) {
    const TokenModel *model = &s->tokenizer->model;
    bool all = model->byte_fallback;
    for (size_t i = 0; all && i < len; i++) all = model->fallback_ids[(uint8_t)text[i]] >= 0;
    if (all) {
        for (size_t i = 0; i < len; i++)
            symbol_put(s, model->fallback_ids[(uint8_t)text[i]], MIN(start + (uint32_t)i, end),
                       i + 1 == len ? end : MIN(start + (uint32_t)i + 1, end));
        return ST_OK;
    }
    if (model->unk_missing)
        return status_fail(ST_INPUT, "unknown text and no token for it: 'unk_token' '%s' is not in the vocabulary", model->unk_missing);
    if (model->unk < 0) return ST_OK;
    if (s->unknown && model->fuse_unk) {
        s->unknown_end = end;
        return ST_OK;
    }
    unknown_release(s);
    s->unknown = true;
    s->unknown_start = start;
    s->unknown_end = end;
    return ST_OK;
}

/* The general case: looks up prefix, character and suffix as one string. */
static Status spell_char(Speller *s, const char *text, size_t len, uint32_t start, uint32_t end, bool first, bool last) {
    const TokenModel *model = &s->tokenizer->model;
    Str *whole = &s->encoder->scratch;
    str_clear(whole);
    if (!first) str_append_n(whole, model->prefix.data, model->prefix.len);
    str_append_n(whole, text, len);
    if (last) str_append_n(whole, model->suffix.data, model->suffix.len);
    int32_t id = vocabulary_find_own(&s->tokenizer->vocabulary, str_text(whole), whole->len);
    if (id < 0) return unknown_put(s, str_text(whole), whole->len, start, end);
    unknown_release(s);
    symbol_put(s, id, start, end);
    return ST_OK;
}

static Status spell(Speller *s, const char *word, size_t len, bool bytes) {
    const TokenModel *model = &s->tokenizer->model;
    size_t most, longest = model->byte_fallback ? 4 + model->prefix.len + model->suffix.len : 1;
    if (len > INT32_MAX / 4 || !size_mul(len, longest, &most) || most > INT32_MAX / 4)
        return status_fail(ST_INPUT, "a word of %zu bytes is too long for the tokenizer", len);
    TRY(array_grow(&s->encoder->symbols, &s->encoder->symbols_cap, most + 1, sizeof *s->encoder->symbols, "symbols of words"));
    for (size_t i = 0, used; i < len; i += used) {
        uint32_t c;
        uint8_t byte = (uint8_t)word[i];
        used = bytes ? 1 : char_next(word + i, &c);
        int32_t id = !model->plain ? -1 : bytes ? model->byte_ids[byte] : byte < 128 ? model->ascii_ids[byte] : -1;
        if (id >= 0) {
            unknown_release(s);
            symbol_put(s, id, (uint32_t)i, (uint32_t)(i + 1));
            continue;
        }
        char spelled[4];
        size_t n = bytes ? byte_char(byte, spelled) : used;
        TRY(spell_char(s, bytes ? spelled : word + i, n, (uint32_t)i, (uint32_t)(i + used), i == 0, i + used == len));
    }
    unknown_release(s);
    return ST_OK;
}

/* ---- tokenizing ---- */

static Status word_merge(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, bool bytes, size_t *n) {
    const TokenModel *model = &tokenizer->model;
    Speller speller = {.tokenizer = tokenizer, .encoder = encoder};
    TRY(spell(&speller, word, len, bytes));
    *n = 0;
    if (speller.n == 0) return ST_OK;
    Symbol *symbols = encoder->symbols;
    symbols[speller.n - 1].next = -1;
    for (size_t i = 0; i < speller.n; i++) symbol_rank(model, symbols, (int32_t)i);
    if (speller.n <= SHORT_WORD)
        merge_short(model, symbols);
    else
        TRY(merge_long(model, encoder, speller.n));
    TRY(array_grow(&encoder->tokens, &encoder->tokens_cap, speller.n, sizeof *encoder->tokens, "tokens"));
    for (int32_t i = 0; i >= 0; i = symbols[i].next) encoder->tokens[(*n)++] = (WordToken){symbols[i].id, symbols[i].start, symbols[i].end};
    return ST_OK;
}

static int32_t word_find(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, bool bytes) {
    if (!bytes) return vocabulary_find_own(&tokenizer->vocabulary, word, len);
    Str *spelled = &encoder->scratch;
    str_clear(spelled);
    for (size_t i = 0; i < len; i++) {
        char out[4];
        str_append_n(spelled, out, byte_char((uint8_t)word[i], out));
    }
    return vocabulary_find_own(&tokenizer->vocabulary, str_text(spelled), spelled->len);
}

Status bpe_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n) {
    bool bytes = tokenizer->pretokenizer.bytes;
    int32_t id = tokenizer->model.ignore_merges ? word_find(tokenizer, encoder, word, len, bytes) : -1;
    return id >= 0 ? word_is_token(encoder, id, len, n) : word_merge(tokenizer, encoder, word, len, bytes, n);
}

/* ---- cutting at marks ---- */

#define MARK "\xE2\x96\x81" /* U+2581, where a word begins in vocabularies made by SentencePiece */

size_t model_cut(const Tokenizer *tokenizer, const char *word, size_t len) {
    const TokenModel *model = &tokenizer->model;
    if (!model->before_mark) return len;
    for (size_t from = 1; from < len;) {
        const char *hit = memmem(word + from, len - from, MARK, 3);
        if (!hit) return len;
        size_t at = (size_t)(hit - word);
        uint32_t c;
        size_t used = char_last(word, at, &c);
        bool reached_over = c > 0xFFFF || model->before_mark[c / 8] >> c % 8 & 1;
        if (!reached_over && (c < 128 ? model->ascii_ids[c] : vocabulary_find_own(&tokenizer->vocabulary, hit - used, used)) >= 0) return at;
        from = at + 1;
    }
    return len;
}

/* Collects the characters before a mark from all tokens. An unknown character must not become a place to cut, because runs of unknown ones may be
 * joined. */
static Status marks_find(Loader *loader, TokenModel *model) {
    const Vocabulary *vocabulary = &loader->tokenizer->vocabulary;
    if (!model->plain || model->ignore_merges || loader->tokenizer->pretokenizer.bytes || vocabulary_find_own(vocabulary, MARK, 3) < 0) return ST_OK;
    model->before_mark = arena_zero(loader->arena, 0x10000 / 8);
    if (!model->before_mark) return ST_RESOURCE;
    for (int32_t id = 0; id < vocabulary->size; id++) {
        Slice token = vocabulary->tokens[id];
        for (size_t from = 1; from < token.len;) {
            const char *hit = memmem(token.data + from, token.len - from, MARK, 3);
            if (!hit) break;
            uint32_t c;
            char_last(token.data, (size_t)(hit - token.data), &c);
            if (c <= 0xFFFF) model->before_mark[c / 8] |= (uint8_t)(1 << c % 8);
            from = (size_t)(hit - token.data) + 1;
        }
    }
    return ST_OK;
}

/* ---- loading ---- */

/* The two parts of a merge, in either of the two notations. */
static Status merge_parts(const Loader *loader, const json_t *item, size_t line, Slice *left, Slice *right) {
    if (json_is_string(item)) {
        const char *text = json_string_value(item), *space = strchr(text, ' ');
        size_t len = json_string_length(item);
        if (space && !strchr(space + 1, ' ')) {
            *left = (Slice){text, (size_t)(space - text)};
            *right = (Slice){space + 1, len - left->len - 1};
            return ST_OK;
        }
    } else if (json_array_size(item) == 2 && json_is_string(json_array_get(item, 0)) && json_is_string(json_array_get(item, 1))) {
        *left = (Slice){json_string_value(json_array_get(item, 0)), json_string_length(json_array_get(item, 0))};
        *right = (Slice){json_string_value(json_array_get(item, 1)), json_string_length(json_array_get(item, 1))};
        return ST_OK;
    }
    return status_fail(ST_INPUT, "wrong merge %zu in '%s': expected \"left right\" or [\"left\", \"right\"]", line, loader->path);
}

static Status merge_read(Loader *loader, TokenModel *model, const json_t *item, size_t line, Str *whole) {
    const Vocabulary *vocabulary = &loader->tokenizer->vocabulary;
    Slice part[2] = {{0}};
    int32_t ids[2], merged;
    TRY(merge_parts(loader, item, line, &part[0], &part[1]));
    for (int i = 0; i < 2; i++) {
        ids[i] = vocabulary_find_own(vocabulary, part[i].data, part[i].len);
        if (ids[i] >= 0) continue;
        return status_fail(ST_INPUT, "merge %zu in '%s' has a part that is not in the vocabulary: '%.*s'", line, loader->path, (int)part[i].len,
                           part[i].data);
    }
    size_t skip = MIN(model->prefix.len, part[1].len);
    str_clear(whole);
    str_append_n(whole, part[0].data, part[0].len);
    str_append_n(whole, part[1].data + skip, part[1].len - skip);
    merged = vocabulary_find_own(vocabulary, str_text(whole), whole->len);
    if (merged < 0)
        return status_fail(ST_INPUT, "merge %zu in '%s' gives a token that is not in the vocabulary: '%s'", line, loader->path, str_text(whole));
    uint64_t pair = pair_of(ids[0], ids[1]);
    *merge_slot(model, pair) = (Merge){pair, (int32_t)line, merged}; /* of two equal merges the later one counts */
    return ST_OK;
}

static Status merges_read(Loader *loader, TokenModel *model, const json_t *list) {
    size_t i, n = json_array_size(list);
    const json_t *item;
    if (!json_is_array(list)) return status_fail(ST_INPUT, "wrong 'merges' in '%s': expected a list", loader->path);
    model->n_slots = 16;
    while (model->n_slots < 2 * n) model->n_slots *= 2;
    model->merges = arena_alloc(loader->arena, model->n_slots * sizeof *model->merges);
    if (!model->merges) return ST_RESOURCE;
    for (size_t slot = 0; slot < model->n_slots; slot++) model->merges[slot].rank = -1;
    Str whole = {0};
    Status status = ST_OK;
    json_array_foreach(list, i, item) TRY_GOTO(merge_read(loader, model, item, i, &whole), done);
done:
    str_release(&whole);
    return status;
}

void byte_tables_fill(const Vocabulary *vocabulary, TokenModel *model) {
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        size_t n = byte_char((uint8_t)byte, text);
        model->byte_ids[byte] = vocabulary_find_own(vocabulary, text, n);
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        model->fallback_ids[byte] = vocabulary_find_own(vocabulary, text, 6);
        char c = (char)byte;
        if (byte < 128) model->ascii_ids[byte] = vocabulary_find_own(vocabulary, &c, 1);
    }
}

Status bpe_init(Loader *loader, TokenModel *model, const json_t *node) {
    double dropout = 0;
    TRY(json_get_double(node, loader->path, "dropout", &dropout));
    if (dropout != 0)
        return status_hint(status_fail(ST_INPUT, "cannot use the 'dropout' of the model in '%s': ids would be random", loader->path),
                           "set \"dropout\": null");
    TRY(affix_read(loader, node, "continuing_subword_prefix", &model->prefix));
    TRY(affix_read(loader, node, "end_of_word_suffix", &model->suffix));
    model->plain = model->prefix.len == 0 && model->suffix.len == 0;
    TRY(part_bool(loader, node, "byte_fallback", false, &model->byte_fallback));
    TRY(part_bool(loader, node, "fuse_unk", false, &model->fuse_unk));
    TRY(part_bool(loader, node, "ignore_merges", false, &model->ignore_merges));
    byte_tables_fill(&loader->tokenizer->vocabulary, model);
    TRY(marks_find(loader, model));
    return merges_read(loader, model, json_object_get(node, "merges"));
}
