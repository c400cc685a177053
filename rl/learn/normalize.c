/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "rl/learn/normalize.h"

#define FAR 10.0

static double normalize_bounded(double x) { return x < -FAR ? -FAR : x > FAR ? FAR : x; }

Status moments_init(Moments *moments, int64_t width, Arena *arena) {
    *moments = (Moments){width, arena_zero(arena, (size_t)width * sizeof(double)), arena_alloc(arena, (size_t)width * sizeof(double)),
                         arena_alloc(arena, sizeof(double))};
    if (!moments->mean || !moments->variance || !moments->count) return ST_RESOURCE;
    for (int64_t i = 0; i < width; i++) moments->variance[i] = 1;
    *moments->count = 1e-4;
    return ST_OK;
}

void moments_add(Moments *moments, const double *rows, const bool *counted, int64_t n) {
    double seen = *moments->count, added = 0;
    for (int64_t r = 0; r < n; r++) added += !counted || counted[r];
    if (added == 0) return;
    double total = seen + added;
    for (int64_t i = 0; i < moments->width; i++) {
        double mean = 0, squares = 0;
        for (int64_t r = 0; r < n; r++) mean += !counted || counted[r] ? rows[r * moments->width + i] / added : 0;
        for (int64_t r = 0; r < n; r++) {
            double from = rows[r * moments->width + i] - mean;
            squares += !counted || counted[r] ? from * from : 0;
        }
        double apart = mean - moments->mean[i];
        moments->variance[i] = (moments->variance[i] * seen + squares + apart * apart * seen * added / total) / total;
        moments->mean[i] += apart * added / total;
    }
    *moments->count = total;
}

void moments_normalise(const Moments *moments, const double *rows, int64_t n, double *out) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < moments->width; i++) {
            int64_t at = r * moments->width + i;
            out[at] = normalize_bounded((rows[at] - moments->mean[i]) / sqrt(moments->variance[i] + 1e-8));
        }
}

void moments_list_state(Moments *moments, StateList *states, const char *mean, const char *variance, const char *count) {
    state_f64(states, mean, moments->mean, moments->width);
    state_f64(states, variance, moments->variance, moments->width);
    state_f64(states, count, moments->count, 1);
}

Status reward_scale_init(RewardScale *scale, double gamma, int64_t copies, Arena *arena) {
    *scale = (RewardScale){.gamma = gamma, .copies = copies, .sums = arena_zero(arena, (size_t)copies * sizeof(double))};
    return scale->sums ? moments_init(&scale->moments, 1, arena) : ST_RESOURCE;
}

void reward_scale_apply(RewardScale *scale, double *rewards, const bool *terminated, const bool *truncated, const bool *playing) {
    for (int64_t i = 0; i < scale->copies; i++) scale->sums[i] = scale->gamma * scale->sums[i] + rewards[i];
    moments_add(&scale->moments, scale->sums, playing, scale->copies);
    double divisor = sqrt(*scale->moments.variance + 1e-8);
    for (int64_t i = 0; i < scale->copies; i++) {
        rewards[i] = normalize_bounded(rewards[i] / divisor);
        if (terminated[i] || truncated[i]) scale->sums[i] = 0;
    }
}

void reward_scale_restart(RewardScale *scale) { memset(scale->sums, 0, (size_t)scale->copies * sizeof *scale->sums); }

void reward_scale_list_state(RewardScale *scale, StateList *states) {
    moments_list_state(&scale->moments, states, "return/mean", "return/variance", "return/count");
    state_f64(states, "return/sums", scale->sums, scale->copies);
}
