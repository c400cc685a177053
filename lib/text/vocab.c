/* The vocabulary: tokens by id and ids by token; and GPT-2's table of printable characters that stand for bytes. */
#include <string.h>

#include "lib/text/tokenizer_parts.h"

static uint64_t hash_bytes(const char *bytes, size_t len) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < len; i++) h = (h ^ (uint8_t)bytes[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

Status vocab_init(Vocab *vocab, Arena *arena, size_t n_tokens, int32_t largest_id) {
    uint64_t size = 16;
    while (size < 2 * (uint64_t)n_tokens) size *= 2;
    vocab->arena = arena;
    vocab->mask = size - 1;
    vocab->n = largest_id + 1;
    vocab->slots = arena_alloc(arena, size * sizeof *vocab->slots);
    vocab->tokens = arena_zero(arena, (size_t)vocab->n * sizeof *vocab->tokens + 1);
    vocab->lengths = arena_zero(arena, (size_t)vocab->n * sizeof *vocab->lengths + 1);
    if (!vocab->slots || !vocab->tokens || !vocab->lengths) return ST_RESOURCE;
    memset(vocab->slots, 0xff, size * sizeof *vocab->slots);
    return ST_OK;
}

static uint64_t slot_of(const Vocab *vocab, const char *token, size_t len) {
    uint64_t i = hash_bytes(token, len) & vocab->mask;
    while (vocab->slots[i] >= 0) {
        int32_t id = vocab->slots[i];
        if (vocab->lengths[id] == len && memcmp(vocab->tokens[id], token, len) == 0) break;
        i = (i + 1) & vocab->mask;
    }
    return i;
}

int32_t vocab_find(const Vocab *vocab, const char *token, size_t len) { return vocab->slots[slot_of(vocab, token, len)]; }

Status vocab_add(Vocab *vocab, const char *token, size_t len, int32_t id, const char *where) {
    ASSERT(id >= 0 && id < vocab->n, "id %d of a vocabulary of %d", id, vocab->n);
    uint64_t slot = slot_of(vocab, token, len);
    if (vocab->slots[slot] == id) return ST_OK;
    if (vocab->slots[slot] >= 0) return status_fail(ST_INPUT, "token '%s' in '%s' has two ids, %d and %d", token, where, vocab->slots[slot], id);
    if (vocab->tokens[id]) return status_fail(ST_INPUT, "id %d in '%s' stands for two tokens, '%s' and '%s'", id, where, vocab->tokens[id], token);
    vocab->tokens[id] = arena_strndup(vocab->arena, token, len);
    if (!vocab->tokens[id]) return ST_RESOURCE;
    vocab->lengths[id] = (uint32_t)len;
    vocab->slots[slot] = id;
    return ST_OK;
}

/* Printable bytes stand for themselves; the 68 others, in order, for U+0100 and up. */
static bool stands_for_itself(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

static int others_below(int byte) {
    int n = 0;
    for (int b = 0; b < byte; b++) n += !stands_for_itself(b);
    return n;
}

size_t byte_to_char(uint8_t byte, char out[4]) { return utf8_encode(stands_for_itself(byte) ? byte : 256u + (uint32_t)others_below(byte), out); }

int char_to_byte(uint32_t c) {
    if (c < 256) return stands_for_itself((int)c) ? (int)c : -1;
    if (c >= 256 + 68) return -1;
    int n = (int)c - 256;
    for (int byte = 0; byte < 256; byte++)
        if (!stands_for_itself(byte) && n-- == 0) return byte;
    return -1;
}
