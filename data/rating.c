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

/* The whole word: an answer that "scores well" names no score. */
static bool names_rating(const char *text, const char *at) {
    static const char *const words[] = {"score", "rating"};
    if (at > text && isalpha((unsigned char)at[-1])) return false;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t n = strlen(words[i]);
        if (strncasecmp(at, words[i], n) == 0 && !isalpha((unsigned char)at[n])) return true;
    }
    return false;
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
    if (last_line(text, &value)) return value >= low && value <= high ? value : (double)NAN;
    for (const char *at = text + strlen(text); at-- > text;)
        if (names_rating(text, at) && next_number(text, at, &value)) return value >= low && value <= high ? value : (double)NAN;
    for (const char *at = text; (at = next_number(text, at, &value));)
        if (value >= low && value <= high) rating = value;
    return rating;
}
