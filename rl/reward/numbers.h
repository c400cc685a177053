/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as people and models write them: 1,234.5  -$3  3/4  2 1/2  \frac{1}{2}  50%  6.02e23  1.5 \times 10^{3}.
 *
 *     Number number;
 *     if (numbers_last(text, &(NumberStyle){.thousands = ',', .decimal = '.'}, &number)) ... number.value ...
 */
#ifndef TUNE_NUMBERS_H
#define TUNE_NUMBERS_H

#include "lib/base/str.h"

/* thousands: between groups of three digits, 0 = none. percent_is_share: "50%" is 0.5, else 50. */
typedef struct NumberStyle {
    char thousands, decimal;
    bool percent_is_share;
} NumberStyle;
/* A double holds whole numbers up to 2^53 only, so the digits are kept, too. */
enum { NUMBER_DIGITS = 340 }; /* all of any whole number in a double; decimals behind these are taken as 0 */
typedef struct Number {
    double value;
    bool decimal, negative; /* decimal: it is +-digits x 10^exponent exactly; false for fractions, which have the value alone */
    int n, exponent;
    char digits[NUMBER_DIGITS]; /* n of them, each 0..9 */
} Number;
/* The first or last number of the text; false when there is none. Digits right behind a letter (H2O) are none, a hyphen between words or digits (3-5)
 * is no minus, and what does not fit into a double is skipped. */
bool numbers_first(Slice text, const NumberStyle *style, Number *number);
bool numbers_last(Slice text, const NumberStyle *style, Number *number);
/* |a - b|: of their digits where both have them, so that 12345678901234567 and ...568 are 1 apart. */
double numbers_distance(const Number *a, const Number *b);

#endif
