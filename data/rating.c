/* SPDX-License-Identifier: Apache-2.0 */
/* Ratings in words. */
#include "data/rating.h"

#include "lib/base/base.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
static bool is_digit(char c) { return isdigit((unsigned char)c) != 0; }

/* Whether the number at `at` says how far the points go: "/ 10", "out of 10". */
static bool is_scale(const char *text, const char *at) {
    static const char words[] = "out of";
    size_t n = sizeof words - 1;
    while (at > text && (blank(at[-1]) || at[-1] == '*')) at--;
    if (at > text && at[-1] == '/') return true;
    return (size_t)(at - text) >= n && strncasecmp(at - n, words, n) == 0;
}

/* Behind a point or a letter it is the rest of something, behind a hyphen that joins two things a range's end. */
static bool is_part(const char *text, const char *begin) {
    if (begin == text) return false;
    if (begin[-1] == '.' || isalpha((unsigned char)begin[-1])) return true;
    return begin[-1] == '-' && begin - 1 > text && !blank(begin[-2]) && begin[-2] != ':' && begin[-2] != '*';
}

/* The next number; behind it, or NULL. */
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

static const char *behind_blanks(const char *at) { return at + strspn(at, " \t*"); }

/* Behind one of the words, which stands alone: an answer that "scores well" names no score. NULL: none is here. */
static const char *behind_word(const char *text, const char *at, const char *const *words, size_t n_words) {
    if (at > text && isalpha((unsigned char)at[-1])) return NULL;
    for (size_t i = 0; i < n_words; i++) {
        size_t n = strlen(words[i]);
        if (strncasecmp(at, words[i], n) == 0 && !isalpha((unsigned char)at[n])) return at + n;
    }
    return NULL;
}

/* "Score", "rating"; "Total:", which may come behind the scores of parts. */
static const char *behind_name(const char *text, const char *at) {
    static const char *const names[] = {"score", "rating"}, *const sums[] = {"total", "sum", "overall"};
    const char *behind = behind_word(text, at, names, COUNT_OF(names));
    if (behind) return behind;
    behind = behind_word(text, at, sums, COUNT_OF(sums));
    if (!behind) return NULL;
    behind = behind_blanks(behind);
    if (*behind != ':' && *behind != '=') return NULL;
    const char *end = behind + 1 + strspn(behind + 1, " \t*0123456789.+/()=");
    return *end == '\0' || *end == '\n' || *end == '\r' ? behind : NULL; /* "Total: 3 errors" rates nothing */
}

/* The number that is named so: of "3 + 2 + 3 = 8" the sum, and none of one that is not drawn. */
static bool named_number(const char *text, const char *at, double *value) {
    const char *behind = next_number(text, at, value);
    if (!behind) return false;
    const char *next = behind_blanks(behind), *terms = behind + strspn(behind, " \t*0123456789.+/()");
    if (*next == '/') next = behind_blanks(next + 1), next = behind_blanks(next + strspn(next, "0123456789."));
    if (*next != '+' || !is_digit(*behind_blanks(next + 1))) return true; /* no sum: "8/10 = 80 %", "8 (10 = best)", "8+" */
    if (*terms != '=' || !next_number(text, terms, value)) *value = (double)NAN;
    return true;
}

/* "8/10", "8 out of 10": behind the number comes its scale. */
static bool has_scale(const char *behind) {
    static const char words[] = "out of";
    behind = behind_blanks(behind);
    if (*behind == '/') return is_digit(*behind_blanks(behind + 1));
    return strncasecmp(behind, words, sizeof words - 1) == 0;
}

/* "8", "**8.5/10**". */
static bool last_line(const char *text, double *value) {
    const char *end = text + strlen(text);
    while (end > text && blank(end[-1])) end--;
    const char *at = end;
    while (at > text && at[-1] != '\n') at--;
    at += strspn(at, " \t*");
    const char *behind = at + (*at == '-');
    if (!is_digit(*behind)) return false;
    behind += strspn(behind, "0123456789.");
    *value = strtod(at, NULL);
    return behind + strspn(behind, " \t*./0123456789") >= end;
}

double rating_of(const char *text, double low, double high) {
    double value, rating = (double)NAN;
    bool scaled = false;
    if (last_line(text, &value)) return value >= low && value <= high ? value : (double)NAN;
    for (const char *at = text + strlen(text); at-- > text;) {
        const char *behind = behind_name(text, at);
        if (behind && named_number(text, behind, &value)) return value >= low && value <= high ? value : (double)NAN;
    }
    for (const char *at = text; (at = next_number(text, at, &value));) {
        if (!(value >= low && value <= high) || (scaled && !has_scale(at))) continue;
        rating = value;
        scaled = scaled || has_scale(at);
    }
    return rating;
}
