/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people and models write them: 1,234.5  -$3  3/4  2 1/2  \frac{1}{2}  50%  6.02e23  1.5 \times 10^{3}.
 *
 *     double value;
 *     if (numbers_last(text, &(NumberStyle){.thousands = ',', .decimal = '.'}, &value)) ...
 */
#ifndef TUNE_NUMBERS_H
#define TUNE_NUMBERS_H

#include "lib/base/str.h"

/* thousands: between groups of three digits, 0 = none. percent_is_share: "50%" is 0.5, else 50. */
typedef struct NumberStyle {
    char thousands, decimal;
    bool percent_is_share;
} NumberStyle;
/* The first or last number of the text; false when there is none. Digits right behind a letter (H2O) are none, a hyphen between words or digits (3-5)
 * is no minus, and what does not fit into a double is skipped. */
bool numbers_first(Slice text, const NumberStyle *style, double *value);
bool numbers_last(Slice text, const NumberStyle *style, double *value);

#endif
