/* SPDX-License-Identifier: Apache-2.0 */
/* Mean and spread of a stream of numbers. */
#include "lib/base/base.h"
#include "lib/base/tally.h"

#include <math.h>

void tally_add(Tally *tally, double value) {
    double from_mean = value - tally->mean;
    tally->n++;
    if (!isfinite(tally->mean)) return; /* an infinity stays visible */
    tally->mean += from_mean / (double)tally->n;
    tally->squares += from_mean * (value - tally->mean);
}

double tally_mean(const Tally *tally) { return tally->n > 0 ? tally->mean : (double)NAN; }
double tally_variance(const Tally *tally) { return tally->n > 0 ? tally->squares / (double)tally->n : (double)NAN; }
double tally_std(const Tally *tally) { return sqrt(tally_variance(tally)); }
