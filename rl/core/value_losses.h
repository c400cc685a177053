/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of a value estimate against its target (a return), and how good it is.
 *
 *     value_loss(&(ValueBatch){.n = n, .values = values, .old_values = old, .targets = returns}, 0.2, grad, &metrics);
 */
#ifndef TUNE_VALUE_LOSSES_H
#define TUNE_VALUE_LOSSES_H

#include "rl/core/rl.h"

typedef struct ValueBatch {
    int64_t n;
    const double *values;
    const double *old_values; /* values before the first pass over this batch, for the clip; NULL: no clip */
    const double *targets;
    const bool *trained; /* NULL: all */
    int64_t total;       /* trained entries of the optimiser step when several calls share it; 0: of this batch */
} ValueBatch;

typedef struct ValueMetrics {
    double loss;
    double clip_fraction; /* fraction of values that moved further than the clip and have no gradient */
} ValueMetrics;

/* Mean of (value - target)^2 / 2, with the 1/2 as in cleanrl, TRL and verl (double vf_coef for stable-baselines3's). clip > 0: the larger of that
 * loss and the same loss of the value clamped to old_value +- clip. grad: (n), d loss / d value, written; 0 where not trained. */
void value_loss(const ValueBatch *batch, double clip, double *grad, ValueMetrics *metrics);
/* 1 - Var(target - value) / Var(target): 1 is perfect, 0 as good as a constant. NaN when all targets are equal. trained NULL: all. */
double explained_variance(const double *values, const double *targets, const bool *trained, int64_t n);

#endif
