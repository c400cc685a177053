/* SPDX-License-Identifier: Apache-2.0 */
/* Mean and spread of a stream of numbers. */
#ifndef TUNE_TALLY_H
#define TUNE_TALLY_H

#include <stdint.h>

/* Running mean and variance by Welford's update (Technometrics 4, 1962): equal numbers have exactly zero spread, and large numbers keep the digits
 * that sums of squares lose. Starts zeroed. The variance is the population's, not a sample's estimate. NaN before the first number. */
typedef struct Tally {
    int64_t n;
    double mean, squares;
} Tally; /* squares: sum of squared distances from the mean */
void tally_add(Tally *tally, double value);
double tally_mean(const Tally *tally);
double tally_variance(const Tally *tally);
double tally_std(const Tally *tally);

#endif
