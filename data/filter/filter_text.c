/* SPDX-License-Identifier: Apache-2.0 */
/* Text functions for filters; see filter_kinds.h. */
#include "data/filter/filter_kinds.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static Slice filter_text_join(Str *room, const Slice *parts, size_t n) {
    str_clear(room);
    for (size_t i = 0; i < n; i++) {
        if (room->len > 0 && parts[i].len > 0) str_append_char(room, '\n');
        str_append_n(room, parts[i].data ? parts[i].data : "", parts[i].len);
    }
    return (Slice){str_text(room), room->len};
}

Slice filter_field(const FilterRow *row, const char *field, Str *room) {
    if (strcmp(field, "instruction") == 0) return row->instruction;
    if (strcmp(field, "input") == 0) return row->input;
    if (strcmp(field, "completion") == 0) return row->completion;
    if (strcmp(field, "prompt") == 0) return row->input.len ? filter_text_join(room, (Slice[]){row->instruction, row->input}, 2) : row->instruction;
    return row->completion.data ? filter_text_join(room, (Slice[]){row->instruction, row->input, row->completion}, 3) : row->completion;
}

Slice filter_subject(const FilterRow *row, const char *field, Str *room) {
    bool asks = strcmp(field, "prompt") == 0 || strcmp(field, "instruction") == 0, whole = strcmp(field, "row") == 0;
    if (row->plain && asks) return row->completion;
    return filter_field(row, whole && !row->completion.data ? "prompt" : field, room);
}

FilterStage filter_on(const char *field) { return strcmp(field, "completion") == 0 || strcmp(field, "row") == 0 ? FILTER_ANSWER : FILTER_PROMPT; }

/* ---- characters ---- */

/* One character of the text, U+FFFD for an invalid byte. */
static size_t next_character(Slice text, size_t at, uint32_t *c) {
    size_t used = utf8_decode(text.data + at, text.len - at, c);
    if (used > 0) return used;
    *c = 0xFFFD;
    return 1;
}

static bool is_space(uint32_t c) {
    if (c < 128) return c == ' ' || (c >= '\t' && c <= '\r');
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return c == 0x85 || (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

static bool is_wordy(uint32_t c) {
    if (c < 128) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO;
}

/* Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar: scripts that put no space between words. */
static bool is_alone(uint32_t c) {
    return (c >= 0x3040 && c <= 0x30FF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x20000 && c <= 0x323AF) || (c >= 0x0E00 && c <= 0x0EFF) || (c >= 0x1780 && c <= 0x17FF) || (c >= 0x1000 && c <= 0x109F);
}

/* A run of characters for which `belongs` is `wanted`, or a single character of those scripts. */
static bool next_run(Slice text, size_t *at, bool (*belongs)(uint32_t c), bool wanted, Slice *word) {
    uint32_t c;
    size_t used;
    while (*at < text.len && (used = next_character(text, *at, &c), belongs(c) != wanted)) *at += used;
    size_t begin = *at;
    while (*at < text.len && (used = next_character(text, *at, &c), belongs(c) == wanted)) {
        if (is_alone(c) && *at > begin) break;
        *at += used;
        if (is_alone(c)) break;
    }
    *word = (Slice){text.data + begin, *at - begin};
    return word->len > 0;
}

bool text_word(Slice text, size_t *at, Slice *word) { return next_run(text, at, is_wordy, true, word); }
bool text_spaced_word(Slice text, size_t *at, Slice *word) { return next_run(text, at, is_space, false, word); }

Slice text_trim(Slice text) {
    uint32_t c;
    size_t begin = 0, end = text.len;
    while (begin < end) {
        size_t used = next_character(text, begin, &c);
        if (!is_space(c)) break;
        begin += used;
    }
    while (end > begin) {
        size_t last = end - 1;
        while (last > begin && ((uint8_t)text.data[last] & 0xC0) == 0x80) last--;
        next_character(text, last, &c);
        if (!is_space(c)) break;
        end = last;
    }
    return (Slice){text.data + begin, end - begin};
}

size_t text_characters(Slice text) {
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) n += ((uint8_t)text.data[i] & 0xC0) != 0x80;
    return n;
}

/* ---- folding ---- */

static bool is_ascii(Slice text) {
    for (size_t i = 0; i < text.len; i++)
        if ((uint8_t)text.data[i] >= 128) return false;
    return true;
}

static void append_character(Str *out, uint32_t c, bool *space) {
    char bytes[4];
    if (is_space(c)) {
        *space = out->len > 0;
        return;
    }
    if (*space) str_append_char(out, ' ');
    *space = false;
    if (c == 0x2018 || c == 0x2019)
        c = '\'';
    else if (c == 0x201C || c == 0x201D)
        c = '"';
    str_append_n(out, bytes, utf8_encode(c, bytes));
}

/* The same for ASCII only, as most texts are; out has enough space. */
static void fold_ascii(Slice text, Str *out) {
    char *to = out->data;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        bool space = is_space((uint8_t)c);
        if (space && (to == out->data || to[-1] == ' ')) continue;
        *to++ = (char)(space ? ' ' : c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c);
    }
    to -= to > out->data && to[-1] == ' ';
    out->len = (size_t)(to - out->data);
    *to = '\0';
}

void text_fold(Slice text, Str *out) {
    bool space = false;
    utf8proc_uint8_t *mapped = NULL;
    str_clear(out);
    if (is_ascii(text) && str_reserve(out, text.len + 1)) {
        fold_ascii(text, out);
        return;
    }
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text.data, (utf8proc_ssize_t)text.len, &mapped,
                                        UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_COMPOSE | UTF8PROC_CASEFOLD);
    if (len >= 0) text = (Slice){(const char *)mapped, (size_t)len};
    for (size_t i = 0; i < text.len;) {
        uint32_t c;
        i += next_character(text, i, &c);
        append_character(out, c < 128 && c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c, &space);
    }
    free(mapped);
}
