/* SPDX-License-Identifier: Apache-2.0 */
/* The normalizer "Precompiled": the table in SentencePiece models. In the file it is base64 of two parts: a double-array trie (Darts) preceded by
 * its size, and the replacement texts, each terminated by a zero byte. The trie's values are offsets into these texts. */
#include <string.h>
#include <utf8proc.h>

#include "lib/text/tokenizer_parts.h"

struct Charsmap {
    const uint32_t *units;
    size_t n_units;
    const char *texts;
    size_t n_texts;
};

enum { LONGEST_CLUSTER = 5 }; /* longer clusters are looked up one character at a time */

/* ---- looking up ---- */

static uint32_t unit_offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

/* The replacement of the shortest prefix of `text` that is in the table: the reference library uses it for all of `text`. NULL when there is none. */
static const char *charsmap_find(const Charsmap *map, const char *text, size_t len) {
    size_t node = unit_offset(map->units[0]);
    for (size_t i = 0; i < len && text[i]; i++) {
        uint8_t byte = (uint8_t)text[i];
        node ^= byte;
        if (node >= map->n_units) return NULL;
        uint32_t unit = map->units[node];
        if ((unit & (1u << 31 | 0xFF)) != byte) return NULL;
        node ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        uint32_t at = node < map->n_units ? map->units[node] & ((1u << 31) - 1) : UINT32_MAX;
        return at < map->n_texts && ((uint8_t)map->texts[at] & 0xC0) != 0x80 ? map->texts + at : NULL;
    }
    return NULL;
}

static size_t cluster_end(const Text *text, size_t start) {
    uint32_t left, right;
    utf8proc_int32_t state = 0;
    size_t end = start + char_next(text->data + start, &left);
    for (size_t used; end < text->len; end += used, left = right) {
        used = char_next(text->data + end, &right);
        if (left < 128 && right < 128 && left != '\r') break;
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)left, (utf8proc_int32_t)right, &state)) break;
    }
    return end;
}

/* `done`: end of the text that has been copied already. */
static bool put_mapped(const Charsmap *map, const Text *text, size_t *done, size_t start, size_t end, TextBuffer *out) {
    const char *mapped = charsmap_find(map, text->data + start, end - start);
    if (!mapped) return false;
    buffer_copy(out, text, *done, start);
    buffer_put(out, mapped, strlen(mapped), text_origin(text, start, end));
    *done = end;
    return true;
}

void charsmap_run(const Charsmap *map, const Text *text, TextBuffer *out) {
    size_t done = 0;
    for (size_t start = 0, end; start < text->len; start = end) {
        end = cluster_end(text, start);
        if (end - start <= LONGEST_CLUSTER && put_mapped(map, text, &done, start, end, out)) continue;
        for (size_t i = start, used; i < end && end - start > 1; i += used) {
            uint32_t c;
            used = char_next(text->data + i, &c);
            put_mapped(map, text, &done, i, i + used, out);
        }
    }
    buffer_copy(out, text, done, text->len);
}

/* ---- loading ---- */

static int base64_value(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool base64_read(const char *text, uint8_t *bytes, size_t *n) {
    uint32_t bits = 0;
    size_t len = strlen(text), digits = 0;
    while (digits < len && base64_value(text[digits]) >= 0) digits++;
    *n = 0;
    for (size_t i = 0; i < digits; i++) {
        bits = bits << 6 | (uint32_t)base64_value(text[i]);
        if (i % 4 > 0) bytes[(*n)++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    return len % 4 == 0 && len - digits <= 2 && strspn(text + digits, "=") == len - digits;
}

static uint32_t little_endian(const uint8_t *b) { return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24; }

Status charsmap_new(Loader *loader, const json_t *node, Charsmap **charsmap) {
    const char *text;
    size_t n, size;
    TRY(part_string(loader, node, "precompiled_charsmap", &text));
    Charsmap *map = *charsmap = arena_zero(loader->arena, sizeof *map);
    uint8_t *bytes = arena_zero(loader->arena, strlen(text) + 1);
    if (!map || !bytes) return ST_RESOURCE;
    if (!base64_read(text, bytes, &n)) return status_fail(ST_INPUT, "wrong 'precompiled_charsmap' in '%s': not base64", loader->path);
    size = n >= 4 ? little_endian(bytes) : 0;
    if (size < 4 || size % 4 != 0 || size > n - 4)
        return status_fail(ST_INPUT, "wrong 'precompiled_charsmap' in '%s': its trie is said to have %zu bytes of %zu", loader->path, size, n);
    map->texts = (const char *)bytes + 4 + size; /* the byte after them is zero */
    map->n_texts = n - 4 - size;
    if (utf8_fault(map->texts, map->n_texts) < map->n_texts)
        return status_fail(ST_INPUT, "wrong 'precompiled_charsmap' in '%s': its texts are not UTF-8", loader->path);
    uint32_t *units = arena_alloc(loader->arena, size);
    if (!units) return ST_RESOURCE;
    for (size_t i = 0; i < size / 4; i++) units[i] = little_endian(bytes + 4 + 4 * i);
    map->units = units;
    map->n_units = size / 4;
    return ST_OK;
}
