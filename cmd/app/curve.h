/* SPDX-License-Identifier: Apache-2.0 */
/* Curves in characters, for the terminal. */
#ifndef TUNE_CURVE_H
#define TUNE_CURVE_H

#include "lib/base/str.h"

/* A curve of any number of values in a few characters. {0} is empty. */
enum { CURVE_BINS = 512 };
/* Means of values_per_bin values each, of the last one in_last */
typedef struct Curve {
    double bins[CURVE_BINS];
    size_t n, values_per_bin, in_last;
} Curve;
void curve_add(Curve *curve, double value); /* NaN and infinities are left out */
/* `rows` lines that end with '\n', each at most `columns` wide, with the greatest and the least value beside them; nothing when there is no room. */
void curve_write(const Curve *curve, int columns, int rows, bool utf8, Str *out);

#endif
