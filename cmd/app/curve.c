/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a small curve in characters: braille dots if the terminal shows UTF-8, else ASCII dots and colons. */
#include <math.h>
#include <stdio.h>

#include "cmd/app/curve.h"

enum { LABEL = 9, MAX_DOTS_ACROSS = 240, MAX_DOTS_DOWN = 64 };

/* ---- values: at most CURVE_BINS means, however many values are added ---- */

void curve_add(Curve *curve, double value) {
    if (!isfinite(value)) return;
    if (curve->values_per_bin == 0) curve->values_per_bin = 1;
    if (curve->n == CURVE_BINS && curve->in_last == curve->values_per_bin) { /* full: merge neighbouring bins */
        for (size_t i = 0; i < CURVE_BINS / 2; i++) curve->bins[i] = (curve->bins[2 * i] + curve->bins[2 * i + 1]) / 2;
        curve->n = CURVE_BINS / 2;
        curve->values_per_bin *= 2;
        curve->in_last = curve->values_per_bin;
    }
    if (curve->n == 0 || curve->in_last == curve->values_per_bin) {
        curve->bins[curve->n++] = 0;
        curve->in_last = 0;
    }
    double *last = &curve->bins[curve->n - 1];
    curve->in_last++;
    *last += (value - *last) / (double)curve->in_last;
}

/* ---- dots ---- */

typedef struct Dots {
    int across, down; /* characters */
    int dots_across, dots_down;
    bool on[MAX_DOTS_DOWN][MAX_DOTS_ACROSS];
} Dots;

/* The value at a column of dots: the mean of its bins, or a linear interpolation if bins are wider than columns. */
static double value_at(const Curve *curve, int column, int columns) {
    double from = (double)(curve->n - 1) * column / MAX(columns - 1, 1), next = (double)(curve->n - 1) * (column + 1) / MAX(columns - 1, 1);
    size_t first = (size_t)from, last = MIN((size_t)ceil(next), curve->n);
    if (next - from <= 1 || last <= first + 1) {
        size_t right = MIN(first + 1, curve->n - 1);
        return curve->bins[first] + (curve->bins[right] - curve->bins[first]) * (from - (double)first);
    }
    double sum = 0;
    for (size_t i = first; i < last; i++) sum += curve->bins[i];
    return sum / (double)(last - first);
}

/* A curve whose values span a factor of 20 is drawn on a logarithmic scale. */
static bool is_steep(double low, double high) { return low > 0 && high > 20 * low; }

static double height_of(double value, double low, double high) {
    if (!(high > low)) return 0.5;
    return is_steep(low, high) ? log(value / low) / log(high / low) : (value - low) / (high - low);
}

static void curve_draw(const Curve *curve, Dots *dots, double low, double high) {
    int before = -1;
    for (int column = 0; column < dots->dots_across; column++) {
        double height = height_of(value_at(curve, column, dots->dots_across), low, high);
        int row = (int)lround((1 - fmin(fmax(height, 0), 1)) * (dots->dots_down - 1)), from = before < 0 ? row : before;
        for (int at = MIN(from, row); at <= MAX(from, row); at++)
            if (at != from || at == row) dots->on[at][column] = true;
        before = row;
    }
}

static void append_braille(const Dots *dots, int row, int column, Str *out) {
    static const int bit[4][2] = {{0, 3}, {1, 4}, {2, 5}, {6, 7}}; /* bit of the dot at [row][column] of a braille character, Unicode chapter 21.1 */
    uint32_t character = 0x2800;
    char bytes[4];
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 2; x++) character |= (uint32_t)dots->on[4 * row + y][2 * column + x] << bit[y][x];
    str_append_n(out, bytes, utf8_encode(character, bytes));
}

static void append_ascii(const Dots *dots, int row, int column, Str *out) {
    bool upper = dots->on[2 * row][column], lower = dots->on[2 * row + 1][column];
    str_append_char(out, upper && lower ? ':' : upper ? '\'' : lower ? '.' : ' ');
}

static void append_label(double value, Str *out) {
    char text[32];
    str_printf(out, "%*.*s", LABEL - 1, LABEL - 1, format_number(value, 4, text));
}

void curve_write(const Curve *curve, int columns, int rows, bool utf8, Str *out) {
    Dots dots = {.across = MIN(columns - LABEL - 2, MAX_DOTS_ACROSS / 2), .down = MIN(rows, MAX_DOTS_DOWN / 4)};
    double low = (double)INFINITY, high = -(double)INFINITY;
    if (curve->n == 0 || dots.across < 4 || dots.down < 2) return;
    dots.dots_across = utf8 ? 2 * dots.across : dots.across;
    dots.dots_down = utf8 ? 4 * dots.down : 2 * dots.down;
    for (size_t i = 0; i < curve->n; i++) {
        low = fmin(low, curve->bins[i]);
        high = fmax(high, curve->bins[i]);
    }
    curve_draw(curve, &dots, low, high);
    for (int row = 0; row < dots.down; row++) {
        if (row == 0)
            append_label(high, out);
        else if (row == dots.down - 1)
            append_label(low, out);
        else
            str_printf(out, "%*s", LABEL - 1, row == dots.down / 2 && is_steep(low, high) ? "log" : "");
        str_append(out, utf8 ? " \xE2\x94\x82" : " |");
        for (int column = 0; column < dots.across; column++) (utf8 ? append_braille : append_ascii)(&dots, row, column, out);
        str_append_char(out, '\n');
    }
}
