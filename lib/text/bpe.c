/* Byte-pair encoding: a word's symbols are merged, the earliest-learned pair first, leftmost first. Long words use a heap, so hostile input costs n log n. */
#include <stdlib.h>
#include <string.h>

#include "lib/text/tokenizer_parts.h"

typedef struct Symbol { int32_t id, prev, next; uint32_t end; } Symbol; /* end: bytes of the word up to here; id -1: merged away */

enum { CACHE_SIZE = 1 << 14, SCAN_SYMBOLS = 24 };

/* ---- reading ---- */

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static Merge *merge_slot(const Bpe *bpe, uint64_t pair) {
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    uint64_t i = (h ^ h >> 32) & bpe->mask;
    while (bpe->merges[i].rank >= 0 && bpe->merges[i].pair != pair) i = (i + 1) & bpe->mask;
    return &bpe->merges[i];
}

static Status read_merge(Bpe *bpe, const json_t *json, int32_t rank, const char *where, Str *joined) {
    const char *parts[2];
    size_t lens[2];
    if (json_is_array(json) && json_array_size(json) == 2 && json_is_string(json_array_get(json, 0)) && json_is_string(json_array_get(json, 1))) {
        for (size_t i = 0; i < 2; i++) {
            parts[i] = json_string_value(json_array_get(json, i));
            lens[i] = json_string_length(json_array_get(json, i));
        }
    } else {
        const char *text = json_string_value(json), *space = text ? strchr(text, ' ') : NULL;
        if (!space || strchr(space + 1, ' ')) return status_fail(ST_INPUT, "merge %d in '%s' is not a pair of tokens", rank, where);
        parts[0] = text, lens[0] = (size_t)(space - text);
        parts[1] = space + 1, lens[1] = strlen(parts[1]);
    }
    int32_t ids[2];
    for (int i = 0; i < 2; i++) {
        ids[i] = vocab_find(bpe->vocab, parts[i], lens[i]);
        if (ids[i] < 0) return status_fail(ST_INPUT, "merge %d in '%s' names '%.*s', which is not in the vocabulary", rank, where, (int)lens[i], parts[i]);
    }
    size_t prefix = strlen(bpe->prefix), skip = prefix && lens[1] >= prefix && !memcmp(parts[1], bpe->prefix, prefix) ? prefix : 0;
    str_clear(joined);
    str_append_n(joined, parts[0], lens[0]);
    str_append_n(joined, parts[1] + skip, lens[1] - skip);
    int32_t id = vocab_find(bpe->vocab, str_text(joined), joined->len);
    if (id < 0) return status_fail(ST_INPUT, "merge %d in '%s' makes '%s', which is not in the vocabulary", rank, where, str_text(joined));
    Merge *slot = merge_slot(bpe, pair_key(ids[0], ids[1]));
    *slot = (Merge){pair_key(ids[0], ids[1]), rank, id}; /* given twice, the later rank holds */
    return ST_OK;
}

static Status read_vocab(const json_t *json, const char *where, Arena *arena, Vocab *vocab) {
    const char *token;
    json_t *value;
    int64_t largest = -1;
    if (!json_is_object(json) || json_object_size(json) == 0) return status_fail(ST_INPUT, "'%s' has no vocabulary", where);
    json_object_foreach((json_t *)json, token, value) {
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > (1 << 24))
            return status_fail(ST_INPUT, "token '%s' in '%s' has no id between 0 and %d", token, where, 1 << 24);
        largest = MAX(largest, (int64_t)json_integer_value(value));
    }
    TRY(vocab_init(vocab, arena, json_object_size(json), (int32_t)largest));
    json_object_foreach((json_t *)json, token, value) TRY(vocab_add(vocab, token, strlen(token), (int32_t)json_integer_value(value), where));
    return ST_OK;
}

static Status read_settings(const json_t *model, const char *where, Arena *arena, Bpe *bpe) {
    double dropout = 0;
    const char *unk = NULL, *prefix = "", *suffix = "";
    TRY(json_get_double(model, where, "dropout", &dropout));
    if (dropout != 0) return status_fail(ST_INPUT, "the BPE dropout of '%s' is %g: encoding would be random", where, dropout);
    TRY(json_get_bool(model, where, "byte_fallback", &bpe->byte_fallback));
    TRY(json_get_bool(model, where, "fuse_unk", &bpe->fuse_unk));
    TRY(json_get_bool(model, where, "ignore_merges", &bpe->ignore_merges));
    TRY(json_get_string(model, where, "unk_token", &unk));
    TRY(json_get_string(model, where, "continuing_subword_prefix", &prefix));
    TRY(json_get_string(model, where, "end_of_word_suffix", &suffix));
    bpe->unk = unk ? vocab_find(bpe->vocab, unk, strlen(unk)) : -1;
    if (unk && bpe->unk < 0) return status_fail(ST_INPUT, "the unknown token '%s' of '%s' is not in its vocabulary", unk, where);
    bpe->prefix = arena_strdup(arena, prefix);
    bpe->suffix = arena_strdup(arena, suffix);
    return bpe->prefix && bpe->suffix ? ST_OK : ST_RESOURCE;
}

static void find_bytes(Bpe *bpe) {
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        size_t len;
        if (bpe->byte_level) {
            len = byte_to_char((uint8_t)byte, text);
        } else {
            static const char digits[] = "0123456789ABCDEF";
            memcpy(text, "<0x00>", 7);
            text[3] = digits[byte >> 4], text[4] = digits[byte & 15];
            len = 6;
        }
        bpe->bytes[byte] = vocab_find(bpe->vocab, text, len);
    }
}

Status bpe_read(const json_t *model, const char *where, Arena *arena, Vocab *vocab, bool byte_level, Bpe *bpe) {
    const char *type = part_type(model);
    if (*type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges")) return unknown_part(where, "model", type);
    TRY(read_vocab(json_object_get(model, "vocab"), where, arena, vocab));
    bpe->vocab = vocab;
    bpe->byte_level = byte_level;
    TRY(read_settings(model, where, arena, bpe));
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_array(merges)) return status_fail(ST_INPUT, "'%s' has no list of merges", where);
    uint64_t size = 16;
    while (size < 2 * (uint64_t)json_array_size(merges)) size *= 2;
    bpe->mask = size - 1;
    bpe->merges = arena_alloc(arena, size * sizeof *bpe->merges);
    bpe->cache = arena_zero(arena, CACHE_SIZE * sizeof *bpe->cache);
    if (!bpe->merges || !bpe->cache) return ST_RESOURCE;
    memset(bpe->merges, 0xff, size * sizeof *bpe->merges);
    Str joined = {0};
    Status status = ST_OK;
    for (size_t i = 0; i < json_array_size(merges) && status == ST_OK; i++) status = read_merge(bpe, json_array_get(merges, i), (int32_t)i, where, &joined);
    str_release(&joined);
    find_bytes(bpe);
    return status;
}

void bpe_release(Bpe *bpe) {
    free(bpe->symbols);
    free(bpe->heap);
    str_release(&bpe->mapped);
}

/* ---- a word's first symbols ---- */

static void push_symbol(Bpe *bpe, size_t *n, int32_t id, size_t end) {
    if (*n == bpe->cap_symbols) {
        size_t cap = bpe->cap_symbols ? bpe->cap_symbols * 2 : 256;
        Symbol *grown = realloc(bpe->symbols, cap * sizeof *grown);
        ASSERT(grown, "out of memory for %zu symbols", cap);
        bpe->symbols = grown;
        bpe->cap_symbols = cap;
    }
    bpe->symbols[*n] = (Symbol){id, (int32_t)*n - 1, (int32_t)*n + 1, (uint32_t)end};
    ++*n;
}

/* The character at word[at..at+n) as the vocabulary spells it: with the prefix inside a word, the suffix at its end. */
static int32_t char_id(Bpe *bpe, const char *word, size_t len, size_t at, size_t n) {
    if (!*bpe->prefix && !*bpe->suffix) return vocab_find(bpe->vocab, word + at, n);
    str_clear(&bpe->mapped);
    if (at > 0) str_append(&bpe->mapped, bpe->prefix);
    str_append_n(&bpe->mapped, word + at, n);
    if (at + n == len) str_append(&bpe->mapped, bpe->suffix);
    return vocab_find(bpe->vocab, str_text(&bpe->mapped), bpe->mapped.len);
}

static bool push_fallback_bytes(Bpe *bpe, const char *word, size_t at, size_t n, size_t *n_symbols) {
    if (!bpe->byte_fallback) return false;
    for (size_t i = 0; i < n; i++)
        if (bpe->bytes[(uint8_t)word[at + i]] < 0) return false;
    for (size_t i = 0; i < n; i++) push_symbol(bpe, n_symbols, bpe->bytes[(uint8_t)word[at + i]], at + i + 1);
    return true;
}

static size_t first_symbols(Bpe *bpe, const char *word, size_t len) {
    size_t n_symbols = 0;
    bool unk_open = false; /* the last symbol is an unknown token that the next unknown character may join */
    for (size_t at = 0; at < len;) {
        uint32_t c;
        size_t n = bpe->byte_level && !*bpe->prefix && !*bpe->suffix ? 1 : MAX(utf8_decode(word + at, len - at, &c), 1);
        int32_t id = bpe->byte_level && n == 1 && !*bpe->prefix && !*bpe->suffix ? bpe->bytes[(uint8_t)word[at]] : char_id(bpe, word, len, at, n);
        if (id >= 0) {
            push_symbol(bpe, &n_symbols, id, at + n);
            unk_open = false;
        } else if (push_fallback_bytes(bpe, word, at, n, &n_symbols)) {
            unk_open = false;
        } else if (bpe->unk >= 0) {
            if (unk_open && bpe->fuse_unk) bpe->symbols[n_symbols - 1].end = (uint32_t)(at + n);
            else push_symbol(bpe, &n_symbols, bpe->unk, at + n);
            unk_open = true;
        }
        at += n;
    }
    if (n_symbols) bpe->symbols[n_symbols - 1].next = -1;
    return n_symbols;
}

/* ---- merging ---- */

static const Merge *merge_of(const Bpe *bpe, int32_t left) {
    const Symbol *s = &bpe->symbols[left];
    if (s->next < 0) return NULL;
    const Merge *merge = merge_slot(bpe, pair_key(s->id, bpe->symbols[s->next].id));
    return merge->rank >= 0 ? merge : NULL;
}

static void join(Bpe *bpe, int32_t left, int32_t id) {
    Symbol *s = &bpe->symbols[left], *gone = &bpe->symbols[s->next];
    s->id = id;
    s->end = gone->end;
    s->next = gone->next;
    gone->id = -1;
    if (s->next >= 0) bpe->symbols[s->next].prev = left;
}

static void merge_by_scan(Bpe *bpe) {
    for (;;) {
        const Merge *best = NULL;
        int32_t where = -1;
        for (int32_t i = 0; i >= 0; i = bpe->symbols[i].next) {
            const Merge *merge = merge_of(bpe, i);
            if (merge && (!best || merge->rank < best->rank)) best = merge, where = i;
        }
        if (!best) return;
        join(bpe, where, best->id);
    }
}

/* The heap holds rank and position, 32 bits each; an entry is stale when the pair at its position has another rank by now. */
static void heap_push(Bpe *bpe, uint64_t entry) {
    if (bpe->n_heap == bpe->cap_heap) {
        size_t cap = bpe->cap_heap ? bpe->cap_heap * 2 : 1024;
        uint64_t *grown = realloc(bpe->heap, cap * sizeof *grown);
        ASSERT(grown, "out of memory for %zu merges", cap);
        bpe->heap = grown;
        bpe->cap_heap = cap;
    }
    size_t i = bpe->n_heap++;
    for (; i > 0 && bpe->heap[(i - 1) / 2] > entry; i = (i - 1) / 2) bpe->heap[i] = bpe->heap[(i - 1) / 2];
    bpe->heap[i] = entry;
}

static uint64_t heap_pop(Bpe *bpe) {
    uint64_t top = bpe->heap[0], last = bpe->heap[--bpe->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < bpe->n_heap; i = child) {
        if (child + 1 < bpe->n_heap && bpe->heap[child + 1] < bpe->heap[child]) child++;
        if (bpe->heap[child] >= last) break;
        bpe->heap[i] = bpe->heap[child];
    }
    bpe->heap[i] = last;
    return top;
}

static void offer(Bpe *bpe, int32_t left) {
    const Merge *merge = left >= 0 ? merge_of(bpe, left) : NULL;
    if (merge) heap_push(bpe, (uint64_t)(uint32_t)merge->rank << 32 | (uint32_t)left);
}

static void merge_by_heap(Bpe *bpe) {
    bpe->n_heap = 0;
    for (int32_t i = 0; i >= 0; i = bpe->symbols[i].next) offer(bpe, i);
    while (bpe->n_heap > 0) {
        uint64_t entry = heap_pop(bpe);
        int32_t left = (int32_t)(uint32_t)entry;
        if (bpe->symbols[left].id < 0) continue;
        const Merge *merge = merge_of(bpe, left);
        if (!merge || (uint32_t)merge->rank != entry >> 32) continue;
        join(bpe, left, merge->id);
        offer(bpe, bpe->symbols[left].prev);
        offer(bpe, left);
    }
}

/* ---- words ---- */

static bool whole_word(Bpe *bpe, const char *word, size_t len, int32_t *id) {
    if (!bpe->ignore_merges) return false;
    if (!bpe->byte_level) {
        *id = vocab_find(bpe->vocab, word, len);
        return *id >= 0;
    }
    str_clear(&bpe->mapped);
    for (size_t i = 0; i < len; i++) {
        char text[4];
        str_append_n(&bpe->mapped, text, byte_to_char((uint8_t)word[i], text));
    }
    *id = vocab_find(bpe->vocab, str_text(&bpe->mapped), bpe->mapped.len);
    return *id >= 0;
}

static CachedWord *cache_slot(const Bpe *bpe, const char *word, size_t len) {
    uint64_t h = len;
    for (size_t i = 0; i < len; i++) h = (h ^ (uint8_t)word[i]) * 0x100000001b3u;
    return &bpe->cache[(h ^ h >> 23) & (CACHE_SIZE - 1)];
}

Status bpe_encode(Bpe *bpe, const char *word, size_t len, Ids *ids, Ids *ends) {
    if (len == 0) return ST_OK;
    if (len > INT32_MAX / 2) return status_fail(ST_INPUT, "a word of %zu bytes is too long", len);
    CachedWord *cached = !ends && len <= sizeof cached->bytes ? cache_slot(bpe, word, len) : NULL;
    if (cached && cached->len == len && !memcmp(cached->bytes, word, len)) {
        ids_append(ids, cached->ids, cached->n);
        return ST_OK;
    }
    size_t start = ids->n;
    int32_t id;
    if (whole_word(bpe, word, len, &id)) {
        ids_push(ids, id);
        if (ends) ids_push(ends, (int32_t)len);
    } else {
        size_t n = first_symbols(bpe, word, len);
        if (n > SCAN_SYMBOLS) merge_by_heap(bpe);
        else if (n > 0) merge_by_scan(bpe);
        for (int32_t i = n ? 0 : -1; i >= 0; i = bpe->symbols[i].next) {
            ids_push(ids, bpe->symbols[i].id);
            if (ends) ids_push(ends, (int32_t)bpe->symbols[i].end);
        }
    }
    if (cached && ids->n - start <= COUNT_OF(cached->ids)) {
        cached->len = (uint8_t)len;
        cached->n = (uint8_t)(ids->n - start);
        memcpy(cached->bytes, word, len);
        memcpy(cached->ids, ids->data + start, (ids->n - start) * sizeof *cached->ids);
    }
    return ST_OK;
}
