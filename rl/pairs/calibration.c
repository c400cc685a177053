/* SPDX-License-Identifier: Apache-2.0 */
/* Bins of confidence. */
#include "rl/pairs/calibration.h"

#include <math.h>

void calibration_add(Calibration *c, double p, double truth) {
    double confidence = fmax(p, 1 - p), right = p >= 0.5 ? truth : 1 - truth;
    int bin = (int)fmin(CALIBRATION_BINS - 1, fmax(0, floor((confidence - 0.5) * 2 * CALIBRATION_BINS)));
    c->n[bin]++;
    c->confidence[bin] += confidence;
    c->right[bin] += right;
    c->squares += (p - truth) * (p - truth);
    c->total++;
}

double calibration_brier(const Calibration *c) { return c->total > 0 ? c->squares / c->total : (double)NAN; }

double calibration_error(const Calibration *c) {
    double sum = 0;
    for (int b = 0; b < CALIBRATION_BINS; b++) sum += fabs(c->confidence[b] - c->right[b]);
    return c->total > 0 ? sum / c->total : (double)NAN;
}
