/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people and models write them: 1,234.5  -$3  3/4  2 1/2  \frac{1}{2}  50%  6.02e23  1.5 \times 10^{3}.
 *
 *     Number number;
 *     if (numbers_last(text, &(NumberStyle){.thousands = ',', .decimal = '.'}, &number)) ... number.value ...
 */
#ifndef TUNE_NUMBERS_H
#define TUNE_NUMBERS_H

#include "lib/base/str.h"

/* thousands: separator between groups of three digits, 0 = none. percent_is_share: "50%" is 0.5, else 50. */
typedef struct NumberStyle {
    char thousands, decimal;
    bool percent_is_share;
} NumberStyle;
/* A double represents integers only up to 2^53, so the digits are stored too. */
enum { NUMBER_DIGITS = 340 }; /* enough for any integer in a double; further digits count as 0 */
typedef struct Number {
    double value;
    bool decimal, negative; /* decimal: it equals +-digits x 10^exponent exactly; false for fractions, which have only the value */
    int n, exponent;
    char digits[NUMBER_DIGITS]; /* n digits, each 0..9 */
} Number;
/* The first or last number in the text; false if there is none. Digits directly after a letter (H2O) are not a number, a hyphen between words or
 * digits (3-5) is not a minus, and numbers too large for a double are skipped. */
bool numbers_first(Slice text, const NumberStyle *style, Number *number);
bool numbers_last(Slice text, const NumberStyle *style, Number *number);
/* |a - b|, computed from digits if both have them, so that 12345678901234567 and ...568 differ by 1. */
double numbers_distance(const Number *a, const Number *b);

#endif
