/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/advantages.h"

/* Mean, and sum of squared deviations, of the valid numbers; NaN is never valid. Deviations are taken from the first number, so equal numbers have
 * exactly that mean and a spread of exactly 0. */
typedef struct Spread {
    double mean, squares;
    int64_t count;
} Spread;

static Spread spread_of(const double *x, const bool *valid, int64_t n) {
    Spread spread = {0};
    double origin = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((valid && !valid[i]) || isnan(x[i])) continue;
        if (spread.count++ == 0) origin = x[i];
        sum += x[i] - origin;
    }
    if (spread.count) spread.mean = origin + sum / (double)spread.count;
    for (int64_t i = 0; i < n; i++)
        if ((!valid || valid[i]) && !isnan(x[i])) spread.squares += (x[i] - spread.mean) * (x[i] - spread.mean);
    return spread;
}

static double unbiased_variance(Spread spread) { return spread.count > 1 ? spread.squares / (double)(spread.count - 1) : 0; }

void advantages_normalise(double *advantages, const bool *valid, int64_t n, Normalisation how, double epsilon) {
    Spread spread = spread_of(advantages, valid, n);
    double scale = how == NORMALISE_STD        ? sqrt(unbiased_variance(spread)) + epsilon
                   : how == NORMALISE_VARIANCE ? sqrt(unbiased_variance(spread) + epsilon)
                                               : sqrt(MAX(spread.squares / (double)MAX(spread.count, 1), epsilon));
    for (int64_t i = 0; i < n; i++) advantages[i] = valid && !valid[i] ? 0 : (advantages[i] - spread.mean) / scale;
}

/* advantages = (rewards - mean) x scale; 0 where there is no reward. */
static void centre(const double *rewards, int64_t n, double mean, double scale, double *advantages) {
    for (int64_t i = 0; i < n; i++) advantages[i] = isnan(rewards[i]) ? 0 : (rewards[i] - mean) * scale;
}

void advantages_group(const double *rewards, int64_t n, int64_t group_size, GroupScale scale, double *advantages) {
    const double epsilon = 1e-4;
    double batch_std = sqrt(unbiased_variance(spread_of(rewards, NULL, n)));
    for (int64_t first = 0; first < n; first += group_size) {
        int64_t size = MIN(group_size, n - first);
        Spread group = spread_of(rewards + first, NULL, size);
        double std = scale == SCALE_GROUP ? sqrt(unbiased_variance(group)) : batch_std;
        centre(rewards + first, size, group.mean, scale == SCALE_NONE ? 1 : 1 / (std + epsilon), advantages + first);
    }
}

void advantages_leave_one_out(const double *rewards, int64_t n, int64_t group_size, double *advantages) {
    for (int64_t first = 0; first < n; first += group_size) {
        int64_t size = MIN(group_size, n - first);
        Spread group = spread_of(rewards + first, NULL, size);
        double others = (double)MAX(group.count - 1, 1);
        centre(rewards + first, size, group.mean, (double)group.count / others, advantages + first);
    }
}

bool group_is_flat(const double *rewards, int64_t group_size) { return spread_of(rewards, NULL, group_size).squares == 0; }

void advantages_spread(const double *per_sequence, int64_t n_sequences, const int64_t *begin, double *per_token) {
    for (int64_t i = 0; i < n_sequences; i++)
        for (int64_t t = begin[i]; t < begin[i + 1]; t++) per_token[t] = per_sequence[i];
}
