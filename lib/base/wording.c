/* SPDX-License-Identifier: Apache-2.0 */
/* Words for messages: the name that was probably meant, sizes and times for people. */
#include "lib/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_WORD 64

/* Edits that turn `a` into `b`: insert, delete, replace, swap neighbours (optimal string alignment). */
static size_t edit_distance(const char *a, size_t n, const char *b, size_t m) {
    size_t rows[3][MAX_WORD + 1], *two_up = rows[0], *up = rows[1], *row = rows[2];
    for (size_t j = 0; j <= m; j++) up[j] = two_up[j] = j;
    for (size_t i = 1; i <= n; i++) {
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = MIN(MIN(up[j], row[j - 1]) + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = MIN(best, two_up[j - 2] + 1);
            row[j] = best;
        }
        size_t *oldest = two_up;
        two_up = up;
        up = row;
        row = oldest;
    }
    return up[m];
}

const char *text_nearest(const char *word, const char *const *candidates, size_t n_candidates) {
    size_t len = strlen(word), best = (len + 2) / 3 + 1; /* a third of the letters may be wrong */
    const char *nearest = NULL;
    if (len == 0 || len > MAX_WORD) return NULL;
    for (size_t i = 0; i < n_candidates; i++) {
        size_t m = strlen(candidates[i]);
        if (m > MAX_WORD) continue;
        size_t distance = len >= 3 && strncasecmp(word, candidates[i], len) == 0 ? 1 : edit_distance(word, len, candidates[i], m);
        if (distance >= best || distance >= m) continue;
        best = distance;
        nearest = candidates[i];
    }
    return nearest;
}

Status status_hint_nearest(Status code, const char *word, const char *const *candidates, size_t n_candidates, const char *otherwise) {
    const char *nearest = text_nearest(word, candidates, n_candidates);
    if (nearest) return status_hint(code, "did you mean '%s'?", nearest);
    if (!otherwise) return code;
    Str hint = {0};
    str_append(&hint, otherwise);
    for (size_t i = 0; text_ends_with(otherwise, " ") && i < n_candidates; i++) str_printf(&hint, "%s%s", i ? ", " : "", candidates[i]);
    status_hint(code, "%s", str_text(&hint));
    str_release(&hint);
    return code;
}

const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

const char *format_bytes(double bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (bytes >= 1023.95 && unit + 1 < COUNT_OF(units)) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}

bool bytes_from_text(const char *text, size_t *bytes) {
    static const struct {
        const char *name;
        double size;
    } units[] = {
        {"", 1},       {"B", 1},      {"kB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"K", 0x1p10},
        {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    };
    char *end;
    double number = strtod(text, &end);
    if (end == text || !(number > 0)) return false;
    while (*end == ' ') end++;
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (strcasecmp(end, units[i].name) != 0) continue;
        double size = floor(number * units[i].size);
        if (size < 1 || size > 0x1p60) return false;
        *bytes = (size_t)size;
        return true;
    }
    return false;
}

const char *format_number(double value, int digits, char out[32]) {
    double size = fabs(value);
    bool large = size >= pow(10, digits - 1) && size < 1e15;
    if (large)
        snprintf(out, 32, "%.0f", value);
    else
        snprintf(out, 32, "%.*g", digits, value);
    char *exponent = strchr(out, 'e'), *from = exponent ? exponent + 1 : NULL;
    if (!exponent || large) return out;
    char sign = *from;
    while (*from == '+' || *from == '-' || *from == '0') from++;
    if (sign == '-') *++exponent = '-';
    memmove(exponent + 1, from, strlen(from) + 1);
    return out;
}

const char *format_seconds(double seconds, char out[32]) {
    if (!(seconds < 1e9)) { /* also NaN */
        snprintf(out, 32, "a long time");
    } else if (seconds < 9.95) {
        snprintf(out, 32, "%.1f s", MAX(seconds, 0));
    } else {
        long whole = lround(seconds);
        if (whole < 60) {
            snprintf(out, 32, "%ld s", whole);
        } else if (whole < 3600) {
            snprintf(out, 32, "%ld min %ld s", whole / 60, whole % 60);
        } else {
            snprintf(out, 32, "%ld h %ld min", whole / 3600, whole % 3600 / 60);
        }
    }
    return out;
}
