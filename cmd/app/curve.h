/* SPDX-License-Identifier: Apache-2.0 */
/* Curves in characters, for the terminal. */
#ifndef TUNE_CURVE_H
#define TUNE_CURVE_H

#include "lib/base/str.h"

/* A curve of any number of values in fixed memory. {0} is empty. */
enum { CURVE_BINS = 512 };
typedef struct Curve {
    double bins[CURVE_BINS]; /* bins[i] is the mean of values_per_bin values */
    size_t n;                /* bins in use */
    size_t values_per_bin;   /* doubles whenever the bins are full */
    size_t in_last;          /* values in the last bin so far */
} Curve;
void curve_add(Curve *curve, double value); /* ignores NaN and infinities */
/* Appends `rows` lines of at most `columns` characters, each ending with '\n', labelled with the largest and smallest value. Appends nothing if
 * the space is too small. */
void curve_write(const Curve *curve, int columns, int rows, bool utf8, Str *out);

#endif
