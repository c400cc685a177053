/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 as RFC 3629 defines it. */
#include "lib/base/str.h"

#include <string.h>

/* Length of the character that starts with `lead`, 0 when none does, and the range its second byte must be in. */
static size_t lead_length(uint8_t lead, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0; /* C0, C1: overlong; F5..FF: above U+10FFFF */
    if (lead == 0xE0) *low = 0xA0;            /* below are overlong forms */
    if (lead == 0xED) *high = 0x9F;           /* above are surrogates */
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Counts the leading bytes that belong to one valid, perhaps incomplete character; *whole: its full length. */
static size_t valid_part(const uint8_t *bytes, size_t len, size_t *whole) {
    uint8_t low, high;
    *whole = lead_length(bytes[0], &low, &high);
    if (*whole == 0) return 0;
    for (size_t i = 1; i < *whole; i++) {
        if (i == len) return i;
        if (bytes[i] < low || bytes[i] > high) return 0;
        low = 0x80;
        high = 0xBF;
    }
    return *whole;
}

size_t utf8_decode(const char *bytes, size_t len, uint32_t *code_point) {
    static const uint8_t lead_bits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    const uint8_t *u = (const uint8_t *)bytes;
    size_t whole;
    if (len == 0 || valid_part(u, len, &whole) == 0 || whole > len) return 0;
    uint32_t c = u[0] & lead_bits[whole];
    for (size_t i = 1; i < whole; i++) c = c << 6 | (u[i] & 0x3F);
    *code_point = c;
    return whole;
}

/* Whether the next eight bytes are ASCII. */
static bool plain_ahead(const char *bytes, size_t len) {
    uint64_t eight;
    if (len < sizeof eight) return false;
    memcpy(&eight, bytes, sizeof eight);
    return (eight & 0x8080808080808080u) == 0;
}

size_t utf8_fault(const char *bytes, size_t len) {
    uint32_t c;
    for (size_t at = 0, used; at < len; at += used) {
        if (plain_ahead(bytes + at, len - at))
            used = 8;
        else
            used = (uint8_t)bytes[at] < 0x80 ? 1 : utf8_decode(bytes + at, len - at, &c);
        if (used == 0) return at;
    }
    return len;
}

size_t utf8_encode(uint32_t c, char out[4]) {
    static const uint8_t lead_mark[] = {0, 0, 0xC0, 0xE0, 0xF0};
    size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead_mark[len] | c);
    return len;
}

size_t utf8_whole_prefix(const char *bytes, size_t len) {
    const uint8_t *u = (const uint8_t *)bytes;
    for (size_t tail = 1; tail <= 3 && tail <= len; tail++) {
        size_t whole;
        if ((u[len - tail] & 0xC0) == 0x80) continue; /* within a character: look for its start */
        return valid_part(u + len - tail, tail, &whole) == tail && whole > tail ? len - tail : len;
    }
    return len;
}
