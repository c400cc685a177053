/* SPDX-License-Identifier: Apache-2.0 */
/* Text: borrowed slices, growing strings, UTF-8, lists of words, sizes and times for people. */
#ifndef TUNE_STR_H
#define TUNE_STR_H

#include "lib/base/base.h"

typedef struct Slice {
    const char *data;
    size_t len;
} Slice; /* borrowed bytes, not terminated */
bool slice_is(Slice slice, const char *text);

/* A growing, terminated string. {0} is an empty one, with data NULL. What finds no memory is not appended, and memory_check says so. */
typedef struct Str {
    char *data;
    size_t len, cap;
} Str;
void str_append(Str *str, const char *text);
bool str_reserve(Str *str, size_t more) WARN_UNUSED; /* room for `more` bytes, for text of a file's size: false is the caller's to say */
void str_append_n(Str *str, const char *bytes, size_t len);
void str_append_char(Str *str, char c);
void str_printf(Str *str, const char *format, ...) PRINTF_LIKE(2, 3);
void str_vprintf(Str *str, const char *format, va_list args);
void str_append_double(Str *str, double value);               /* the shortest text that reads back as the same double */
void str_append_json(Str *str, const char *text, size_t len); /* as a quoted JSON string; bytes that are no UTF-8 become U+FFFD */
/* A word of a command line, quoted where a shell would read it as another one */
void str_append_shell(Str *str, const char *format, ...) PRINTF_LIKE(2, 3);
const char *str_text(const Str *str); /* "" when nothing was added */
void str_clear(Str *str);
void str_release(Str *str);

/* Text of others for one line, in place in `room` bytes: blanks for ends of lines and tabs; what else would steer a terminal is shown (visible.h). */
void text_keep_one_line(char *text, size_t room);
bool text_starts_with(const char *text, const char *prefix);
bool text_ends_with(const char *text, const char *suffix);
/* Words of one text with `between` among them, as "a b c" and "a|b|c". The next word of *list, which moves behind it; false at the end. */
bool text_next(const char **list, char between, Slice *word);
bool text_among(const char *list, char between, const char *word); /* whether it is one of them; list NULL: there are none */
uint64_t mix64(uint64_t x);                                        /* a well mixed bijection of 64 bits, for hashes: the end of MurmurHash3 */
/* The candidate with the smallest edit distance to `word`, or NULL when none is near enough to be meant. */
const char *text_nearest(const char *word, const char *const *candidates, size_t n_candidates);
/* Behind status_fail of an unknown `word`: the hint asks for the nearest candidate, else it is `otherwise`, with all candidates behind where
   that ends with a blank; no hint where it is NULL. Returns `code`. */
Status status_hint_nearest(Status code, const char *word, const char *const *candidates, size_t n_candidates, const char *otherwise);
/* Decodes one code point; returns bytes used (1..4), or 0 for invalid, overlong, surrogate or cut input. */
size_t utf8_decode(const char *bytes, size_t len, uint32_t *code_point);
size_t utf8_fault(const char *bytes, size_t len);        /* offset of the first byte that is no UTF-8; len when all is */
size_t utf8_encode(uint32_t code_point, char out[4]);    /* returns bytes written */
size_t utf8_whole_prefix(const char *bytes, size_t len); /* longest prefix that does not end inside a character that could still be completed */

const char *plural(int64_t n); /* what stands behind a counted noun: "" for 1, else "s" */
/* Human sizes for messages: "1.4 GiB", "3 min 20 s". Written to `out`, which is returned. */
const char *format_bytes(double bytes, char out[32]);
/* A number with so many digits that tell (2 to 9): 13310 and not 1.331e+04, 1e-5 and not 1e-05; a whole part is never cut. */
const char *format_number(double value, int digits, char out[32]);
#define NUMBER(value) format_number(value, 4, (char[32]){0}) /* within a call; lives as long as its block */
/* "4GiB", "1500 MB", "2.5G" (as GiB), "1000000": a whole number of bytes. False for anything else, 0 and below too. */
bool bytes_from_text(const char *text, size_t *bytes);
const char *format_seconds(double seconds, char out[32]);

#endif
