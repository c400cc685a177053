/* SPDX-License-Identifier: Apache-2.0 */
/* Classes of characters, checks of UTF-8, and GPT-2's alphabet of bytes. */
#include <utf8proc.h>

#include "lib/text/tokenizer_parts.h"

bool char_is_space(uint32_t c) {
    if (c < 128) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool char_is_numeric(uint32_t c) {
    if (c < 128) return c >= '0' && c <= '9';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool char_is_punctuation(uint32_t c) {
    if (c < 128) return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 127);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool char_is_mark(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool char_is_nonspacing(uint32_t c) { return c >= 0x300 && utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN; }

bool char_is_other(uint32_t c) {
    if (c < 128) return c < ' ' || c == 127;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
}

bool char_is_word(uint32_t c) {
    if (c < 128) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
        return true;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D;
}

size_t char_next(const char *bytes, uint32_t *c) {
    const uint8_t *b = (const uint8_t *)bytes;
    if (b[0] < 0x80) return *c = b[0], 1;
    if (b[0] < 0xE0) return *c = (b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu), 2;
    if (b[0] < 0xF0) return *c = (b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu), 3;
    return *c = (b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu), 4;
}

size_t char_last(const char *bytes, size_t len, uint32_t *c) {
    size_t n = 1;
    while (n < len && ((uint8_t)bytes[len - n] & 0xC0) == 0x80) n++;
    return char_next(bytes + len - n, c);
}

/* Length of the longest incomplete beginning of a character at `b` (Unicode 3.9, maximal subpart). */
static size_t broken_length(const uint8_t *b, size_t len) {
    if (b[0] < 0xC2 || b[0] > 0xF4) return 1;
    uint8_t low = b[0] == 0xE0 ? 0xA0 : b[0] == 0xF0 ? 0x90 : 0x80, high = b[0] == 0xED ? 0x9F : b[0] == 0xF4 ? 0x8F : 0xBF;
    size_t whole = b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4, n = 1;
    while (n < whole && n < len && b[n] >= low && b[n] <= high) {
        n++;
        low = 0x80;
        high = 0xBF;
    }
    return n;
}

void str_append_lossy(Str *str, const char *bytes, size_t len) {
    size_t start = 0, fault;
    while ((fault = start + utf8_fault(bytes + start, len - start)) < len) {
        str_append_n(str, bytes + start, fault - start);
        str_append_n(str, "\xEF\xBF\xBD", 3);
        start = fault;
        start += broken_length((const uint8_t *)bytes + start, len - start);
    }
    str_append_n(str, bytes + start, len - start);
}

/* Printable Latin-1 bytes represent themselves; the 68 others map to U+0100 and up, in order. */
static bool stands_for_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

size_t byte_char(uint8_t byte, char out[4]) {
    if (stands_for_itself(byte)) return utf8_encode(byte, out);
    uint32_t rank = byte <= 0x20 ? byte : byte <= 0xA0 ? 0x21u + (byte - 0x7Fu) : 0x43u;
    return utf8_encode(0x100 + rank, out);
}

bool byte_of_char(uint32_t c, uint8_t *byte) {
    if (c < 0x100) return *byte = (uint8_t)c, stands_for_itself(c);
    uint32_t rank = c - 0x100;
    if (rank > 0x43) return false;
    *byte = (uint8_t)(rank <= 0x20 ? rank : rank <= 0x42 ? rank - 0x21 + 0x7F : 0xAD);
    return true;
}
