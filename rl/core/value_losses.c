/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/ratio.h"
#include "rl/core/value_losses.h"

void value_loss(const ValueBatch *batch, double clip, double *grad, ValueMetrics *metrics) {
    int64_t n = 0, clipped = 0;
    for (int64_t i = 0; i < batch->n; i++) n += !batch->trained || batch->trained[i];
    double share = 1 / (double)MAX(batch->total ? batch->total : n, 1);
    *metrics = (ValueMetrics){0};
    for (int64_t i = 0; i < batch->n; i++) {
        grad[i] = 0;
        if (batch->trained && !batch->trained[i]) continue;
        double error = batch->values[i] - batch->targets[i];
        if (clip > 0 && batch->old_values) {
            double kept = clamp(batch->values[i], batch->old_values[i] - clip, batch->old_values[i] + clip), kept_error = kept - batch->targets[i];
            if (kept_error * kept_error > error * error) { /* true only outside the clip, where `kept` is constant: no gradient */
                metrics->loss += share * kept_error * kept_error / 2;
                clipped++;
                continue;
            }
        }
        metrics->loss += share * error * error / 2;
        grad[i] = share * error;
    }
    metrics->clip_fraction = (double)clipped / (double)MAX(n, 1);
}

double explained_variance(const double *values, const double *targets, const bool *trained, int64_t n) {
    double count = 0, mean_error = 0, mean_target = 0, error_squares = 0, target_squares = 0;
    for (int64_t i = 0; i < n; i++) {
        if (trained && !trained[i]) continue;
        /* Welford's update: no cancellation when the mean is large. */
        double error = targets[i] - values[i], from_error = error - mean_error, from_target = targets[i] - mean_target;
        count++;
        mean_error += from_error / count;
        mean_target += from_target / count;
        error_squares += from_error * (error - mean_error);
        target_squares += from_target * (targets[i] - mean_target);
    }
    return target_squares > 0 ? 1 - error_squares / target_squares : (double)NAN;
}
