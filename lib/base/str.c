/* SPDX-License-Identifier: Apache-2.0 */
/* Growing strings, slices and simple tests of text. */
#include "lib/base/arena.h"
#include "lib/base/memory.h"
#include "lib/base/str.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool size_mul(size_t a, size_t b, size_t *result) {
    if (b != 0 && a > SIZE_MAX / b) return false;
    *result = a * b;
    return true;
}

bool size_add(size_t a, size_t b, size_t *result) {
    if (a > SIZE_MAX - b) return false;
    *result = a + b;
    return true;
}

bool slice_is(Slice slice, const char *text) {
    size_t len = strlen(text);
    return slice.len == len && (len == 0 || memcmp(slice.data, text, len) == 0);
}

bool text_starts_with(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

bool text_ends_with(const char *text, const char *suffix) {
    size_t len = strlen(text), tail = strlen(suffix);
    return len >= tail && memcmp(text + len - tail, suffix, tail) == 0;
}

bool text_next(const char **list, char between, Slice *word) {
    const char ends[] = {between, '\0'}, *at = *list + strspn(*list, ends);
    *word = (Slice){at, strcspn(at, ends)};
    *list = at + word->len;
    return word->len > 0;
}

bool text_among(const char *list, char between, const char *word) {
    Slice one;
    while (list && text_next(&list, between, &one))
        if (slice_is(one, word)) return true;
    return false;
}

uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

bool str_reserve(Str *str, size_t more) {
    size_t need;
    if (!size_add(str->len, more, &need) || !size_add(need, 1, &need)) return false;
    if (need <= str->cap) return true;
    size_t cap = MAX(need, str->cap <= SIZE_MAX / 2 ? str->cap * 2 : need);
    cap = MAX(cap, 32);
    char *data = realloc(str->data, cap);
    if (!data) return false;
    data[str->len] = '\0';
    str->data = data;
    str->cap = cap;
    return true;
}

/* Makes room for `more` bytes; without memory it reports that and returns false. */
static bool room_for(Str *str, size_t more) {
    if (str_reserve(str, more)) return true;
    memory_ran_out(more);
    char *small = str->cap < MEMORY_SMALL ? memory_small() : NULL;
    if (!small) return false;
    memcpy(small, str_text(str), str->len + 1);
    free(str->data);
    str->data = small;
    str->cap = MEMORY_SMALL;
    return more < str->cap - str->len;
}

void str_append_n(Str *str, const char *bytes, size_t len) {
    if (!room_for(str, len)) return;
    if (len > 0) memcpy(str->data + str->len, bytes, len);
    str->len += len;
    str->data[str->len] = '\0';
}

void str_append(Str *str, const char *text) { str_append_n(str, text, strlen(text)); }
void str_append_char(Str *str, char c) { str_append_n(str, &c, 1); }
const char *str_text(const Str *str) { return str->data ? str->data : ""; }

void str_clear(Str *str) {
    str->len = 0;
    if (str->data) str->data[0] = '\0';
}

void str_release(Str *str) {
    free(str->data);
    *str = (Str){0};
}

void str_vprintf(Str *str, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    ASSERT(len >= 0, "format '%s'", format);
    if (room_for(str, (size_t)len)) {
        vsnprintf(str->data + str->len, (size_t)len + 1, format, again);
        str->len += (size_t)len;
    }
    va_end(again);
}

void str_printf(Str *str, const char *format, ...) {
    va_list args;
    va_start(args, format);
    str_vprintf(str, format, args);
    va_end(args);
}

void str_append_shell(Str *str, const char *format, ...) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
    Str word = {0};
    va_list args;
    va_start(args, format);
    str_vprintf(&word, format, args);
    va_end(args);
    const char *text = str_text(&word);
    bool quoted = !*text || text[strspn(text, plain)] != '\0';
    if (quoted) str_append_char(str, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            str_append(str, "'\\''");
        else
            str_append_char(str, *text);
    }
    if (quoted) str_append_char(str, '\'');
    str_release(&word);
}

void str_append_double(Str *str, double value) {
    /* 15 digits always survive for normal numbers, and %g drops trailing zeros; subnormal ones may need as little as one digit. */
    char text[40];
    int digits = fabs(value) < DBL_MIN ? 1 : 15;
    do {
        snprintf(text, sizeof text, "%.*g", digits, value);
    } while (digits++ < 17 && isfinite(value) && strtod(text, NULL) != value);
    str_append(str, text);
}

/* Control characters, and those that YAML takes for line ends or refuses. */
static bool needs_escape(uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x2028 || c == 0x2029 || c == 0xFEFF || c == 0xFFFE || c == 0xFFFF;
}

void str_append_json(Str *str, const char *text, size_t len) {
    static const char short_names[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    str_append_char(str, '"');
    for (size_t at = 0; at < len;) {
        uint32_t c;
        size_t used = utf8_decode(text + at, len - at, &c);
        if (used == 0) {
            str_append(str, "\xEF\xBF\xBD");
            used = 1;
        } else if (c == '"' || c == '\\') {
            str_printf(str, "\\%c", (char)c);
        } else if (c < sizeof short_names && short_names[c]) {
            str_printf(str, "\\%c", short_names[c]);
        } else if (needs_escape(c)) {
            str_printf(str, "\\u%04x", (unsigned)c);
        } else {
            str_append_n(str, text + at, used);
        }
        at += used;
    }
    str_append_char(str, '"');
}
