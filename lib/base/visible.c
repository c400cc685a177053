/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/visible.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 12 }; /* bytes of the shown form, with its end */

static bool steers(uint32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069); }

/* The shown form of the text's first character; "": it is shown unchanged. Returns the bytes that it takes in the text. */
static size_t first_shown(const char *text, size_t len, char shown[LONGEST]) {
    uint32_t c;
    size_t used = utf8_decode(text, len, &c);
    uint8_t byte = (uint8_t)*text;
    shown[0] = '\0';
    if (used == 0 && byte >= 0x80 && byte < 0xA0)
        snprintf(shown, LONGEST, "\\x{%X}", byte);
    else if (used > 0 && steers(c) && c < 0x80)
        snprintf(shown, LONGEST, "^%c", (int)(c ^ 0x40));
    else if (used > 0 && steers(c))
        snprintf(shown, LONGEST, "\\u{%X}", (unsigned)c);
    return MAX(used, 1);
}

static void append_whole(Str *out, const char *text, size_t len) {
    char shown[LONGEST];
    size_t plain = 0, used;
    for (size_t at = 0; at < len; at += used) {
        used = 1;
        if (text[at] == '\n' || text[at] == '\t' || (text[at] >= ' ' && text[at] < 0x7F)) continue;
        used = first_shown(text + at, len - at, shown);
        if (!*shown) continue;
        str_append_n(out, text + plain, at - plain);
        str_append(out, shown);
        plain = at + used;
    }
    str_append_n(out, text + plain, len - plain);
}

void visible_append(Str *out, Visible *rest, const char *text, size_t len) {
    while (rest->n > 0 && len > 0) {
        rest->bytes[rest->n++] = *text++;
        len--;
        if (utf8_whole_prefix(rest->bytes, rest->n) < rest->n) continue; /* still incomplete */
        append_whole(out, rest->bytes, rest->n);
        rest->n = 0;
    }
    size_t whole = utf8_whole_prefix(text, len);
    append_whole(out, text, whole);
    if (whole < len) memcpy(rest->bytes, text + whole, rest->n = len - whole);
}

/* Bytes that never became a character are escaped: a terminal could combine them with what follows. */
void visible_end(Str *out, Visible *rest) {
    for (size_t i = 0; i < rest->n; i++) str_printf(out, "\\x{%X}", (unsigned)(uint8_t)rest->bytes[i]);
    rest->n = 0;
}

void visible_text(Str *out, const char *text) {
    Visible rest = {0};
    visible_append(out, &rest, text, strlen(text));
    visible_end(out, &rest);
}

/* Names and messages from files and other programs may contain anything. Allocates no memory, since the message may be about a lack of it. */
void text_keep_one_line(char *text, size_t room) {
    char shown[LONGEST];
    size_t len = strlen(text);
    for (size_t at = 0, used; at < len; at += used) {
        used = first_shown(text + at, len - at, shown);
        if (text[at] == '\n' || text[at] == '\t') {
            text[at] = ' ';
            continue;
        }
        size_t put = strlen(shown);
        if (put == 0) continue;
        if (at + put >= room) {
            text[at] = '\0';
            return;
        }
        size_t tail = MIN(len - at - used, room - 1 - at - put);
        if (tail < len - at - used) tail = utf8_whole_prefix(text + at + used, tail);
        memmove(text + at + put, text + at + used, tail);
        memcpy(text + at, shown, put);
        len = at + put + tail;
        text[len] = '\0';
        used = put;
    }
}
