/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the rating in a judge's words. */
#include "data/rating.h"

#include "lib/base/base.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
static bool is_digit(char c) { return isdigit((unsigned char)c) != 0; }

/* Whether the number at `at` is the end of a scale: "/ 10", "out of 10". */
static bool is_scale(const char *text, const char *at) {
    static const char words[] = "out of";
    size_t n = sizeof words - 1;
    while (at > text && (blank(at[-1]) || at[-1] == '*')) at--;
    if (at > text && at[-1] == '/') return true;
    return (size_t)(at - text) >= n && strncasecmp(at - n, words, n) == 0;
}

/* A number after a point or a letter is part of a word or number; one after a hyphen that joins two things is the end of a range. */
static bool is_part(const char *text, const char *begin) {
    if (begin == text) return false;
    if (begin[-1] == '.' || isalpha((unsigned char)begin[-1])) return true;
    return begin[-1] == '-' && begin - 1 > text && !blank(begin[-2]) && begin[-2] != ':' && begin[-2] != '*';
}

/* Finds the next number; returns the position after it, or NULL. */
static const char *next_number(const char *text, const char *at, double *value) {
    for (; *at; at++) {
        if (!is_digit(*at)) continue;
        const char *begin = at, *end = at + strspn(at, "0123456789.");
        bool range = *end == '-' && is_digit(end[1]);
        at = end - 1;
        if (range || is_part(text, begin) || is_scale(text, begin)) continue;
        *value = strtod(begin, NULL);
        if (begin > text && begin[-1] == '-') *value = -*value;
        return end;
    }
    return NULL;
}

static const char *skip_blanks(const char *at) { return at + strspn(at, " \t*"); }

/* The position after one of the words at `at`, or NULL. Only a separate word counts: an answer that "scores well" gives no score. */
static const char *after_word(const char *text, const char *at, const char *const *words, size_t n_words) {
    if (at > text && isalpha((unsigned char)at[-1])) return NULL;
    for (size_t i = 0; i < n_words; i++) {
        size_t n = strlen(words[i]);
        if (strncasecmp(at, words[i], n) == 0 && !isalpha((unsigned char)at[n])) return at + n;
    }
    return NULL;
}

/* "Score", "rating"; or "Total:", which may follow the scores of parts. */
static const char *after_name(const char *text, const char *at) {
    static const char *const names[] = {"score", "rating"}, *const sums[] = {"total", "sum", "overall"};
    const char *after = after_word(text, at, names, COUNT_OF(names));
    if (after) return after;
    after = after_word(text, at, sums, COUNT_OF(sums));
    if (!after) return NULL;
    after = skip_blanks(after);
    if (*after != ':' && *after != '=') return NULL;
    const char *end = after + 1 + strspn(after + 1, " \t*0123456789.+/()=");
    return *end == '\0' || *end == '\n' || *end == '\r' ? after : NULL; /* "Total: 3 errors" is no rating */
}

/* The number that follows the name: for "3 + 2 + 3 = 8" the sum, and NaN for a sum without its result. */
static bool named_number(const char *text, const char *at, double *value) {
    const char *after = next_number(text, at, value);
    if (!after) return false;
    const char *next = skip_blanks(after), *terms = after + strspn(after, " \t*0123456789.+/()");
    if (*next == '/') next = skip_blanks(next + 1), next = skip_blanks(next + strspn(next, "0123456789."));
    if (*next != '+' || !is_digit(*skip_blanks(next + 1))) return true; /* no sum: "8/10 = 80 %", "8 (10 = best)", "8+" */
    if (*terms != '=' || !next_number(text, terms, value)) *value = (double)NAN;
    return true;
}

/* "8/10", "8 out of 10": a scale follows the number. */
static bool has_scale(const char *after) {
    static const char words[] = "out of";
    after = skip_blanks(after);
    if (*after == '/') return is_digit(*skip_blanks(after + 1));
    return strncasecmp(after, words, sizeof words - 1) == 0;
}

/* "8", "**8.5/10**". */
static bool last_line(const char *text, double *value) {
    const char *end = text + strlen(text);
    while (end > text && blank(end[-1])) end--;
    const char *at = end;
    while (at > text && at[-1] != '\n') at--;
    at += strspn(at, " \t*");
    const char *after = at + (*at == '-');
    if (!is_digit(*after)) return false;
    after += strspn(after, "0123456789.");
    *value = strtod(at, NULL);
    return after + strspn(after, " \t*./0123456789") >= end;
}

double rating_of(const char *text, double low, double high) {
    double value, rating = (double)NAN;
    bool scaled = false;
    if (last_line(text, &value)) return value >= low && value <= high ? value : (double)NAN;
    for (const char *at = text + strlen(text); at-- > text;) {
        const char *after = after_name(text, at);
        if (after && named_number(text, after, &value)) return value >= low && value <= high ? value : (double)NAN;
    }
    for (const char *at = text; (at = next_number(text, at, &value));) {
        if (!(value >= low && value <= high) || (scaled && !has_scale(at))) continue;
        rating = value;
        scaled = scaled || has_scale(at);
    }
    return rating;
}
