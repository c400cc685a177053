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

/* A growing, terminated string. {0} is an empty one, with data NULL. Without memory nothing is appended, and memory_check reports it. */
typedef struct Str {
    char *data;
    size_t len, cap;
} Str;
void str_append(Str *str, const char *text);
/* Makes room for `more` bytes, for text as large as a file; false without memory, which the caller must report. */
bool str_reserve(Str *str, size_t more) WARN_UNUSED;
void str_append_n(Str *str, const char *bytes, size_t len);
void str_append_char(Str *str, char c);
void str_printf(Str *str, const char *format, ...) PRINTF_LIKE(2, 3);
void str_vprintf(Str *str, const char *format, va_list args);
void str_append_double(Str *str, double value);               /* the shortest text that reads back as the same double */
void str_append_json(Str *str, const char *text, size_t len); /* as a quoted JSON string; bytes that are not UTF-8 become U+FFFD */
/* Appends a word of a command line, quoted where a shell would change it. */
void str_append_shell(Str *str, const char *format, ...) PRINTF_LIKE(2, 3);
const char *str_text(const Str *str); /* "" when nothing was added */
void str_clear(Str *str);
void str_release(Str *str);

/* Makes text from elsewhere fit on one line, in place in `room` bytes: line ends and tabs become blanks; other characters that control a terminal are
 * escaped (see visible.h). */
void text_keep_one_line(char *text, size_t room);
bool text_starts_with(const char *text, const char *prefix);
bool text_ends_with(const char *text, const char *suffix);
/* Iterates over the words of a list such as "a b c" or "a|b|c", separated by `between`; *list moves past the word. False at the end. */
bool text_next(const char **list, char between, Slice *word);
bool text_among(const char *list, char between, const char *word); /* whether `word` is in the list; list NULL: an empty list */
uint64_t mix64(uint64_t x);                                        /* a bijection that mixes 64 bits well, for hashes: MurmurHash3's finaliser */
/* The candidate with the smallest edit distance to `word`, or NULL when none is close enough. */
const char *text_nearest(const char *word, const char *const *candidates, size_t n_candidates);
/* Call after status_fail for an unknown `word`: adds a hint with the nearest candidate. Without one the hint is `otherwise`, followed by all
 * candidates when it ends with a blank; NULL = no hint. Returns `code`. */
Status status_hint_nearest(Status code, const char *word, const char *const *candidates, size_t n_candidates, const char *otherwise);
/* Decodes one code point; returns bytes used (1..4), or 0 for invalid, overlong, surrogate or cut input. */
size_t utf8_decode(const char *bytes, size_t len, uint32_t *code_point);
size_t utf8_fault(const char *bytes, size_t len);        /* offset of the first byte that is not UTF-8; len when there is none */
size_t utf8_encode(uint32_t code_point, char out[4]);    /* returns bytes written */
size_t utf8_whole_prefix(const char *bytes, size_t len); /* longest prefix that does not end within a character that could still be completed */

const char *plural(int64_t n); /* the plural ending of a counted noun: "" for 1, else "s" */
/* Human sizes for messages: "1.4 GiB", "3 min 20 s". Written to `out`, which is returned. */
const char *format_bytes(double bytes, char out[32]);
/* A number with 2 to 9 significant digits: 13310, not 1.331e+04; 1e-5, not 1e-05. The integer part is never shortened. */
const char *format_number(double value, int digits, char out[32]);
#define NUMBER(value) format_number(value, 4, (char[32]){0}) /* for use in an argument list: the text lives as long as the enclosing block */
/* Parses a positive whole number of bytes: "4GiB", "1500 MB", "2.5G" (= GiB), "1000000". False for anything else. */
bool bytes_from_text(const char *text, size_t *bytes);
const char *format_seconds(double seconds, char out[32]);

#endif
