/* SPDX-License-Identifier: Apache-2.0 */
/* The mean and spread of numbers that come one by one. */
#ifndef TUNE_TALLY_H
#define TUNE_TALLY_H

#include <stdint.h>

/* Their mean and spread, by Welford's update (Technometrics 4, 1962): equal numbers have no spread at all, and large ones keep their digits, which
 * sums of squares lose. Begins as all zeros; over all numbers, not a sample's estimate. NaN before the first one. */
typedef struct Tally {
    int64_t n;
    double mean, squares;
} Tally; /* squares: of distances from the mean */
void tally_add(Tally *tally, double value);
double tally_mean(const Tally *tally);
double tally_variance(const Tally *tally);
double tally_std(const Tally *tally);

#endif
