/* SPDX-License-Identifier: Apache-2.0 */
/* Running statistics that bring observations and rewards to a size that networks learn from. They are part of what was learned: saved with the
 * policy, and fixed when it is only played.
 *
 *     moments_add(&moments, env->observations, NULL, env->copies);
 *     moments_normalise(&moments, env->observations, env->copies, normalised);
 */
#ifndef TUNE_NORMALIZE_H
#define TUNE_NORMALIZE_H

#include "rl/loop/loop.h"

/* Mean and variance of each of `width` numbers over all rows seen. */
typedef struct Moments {
    int64_t width;
    double *mean, *variance, *count;
} Moments; /* count: of one */
/* As stable-baselines3 and Gymnasium begin: mean 0, variance 1, as if seen 1e-4 times. ST_RESOURCE. */
Status moments_init(Moments *moments, int64_t width, Arena *arena);
/* rows: (n, width). counted: (n) which of them; NULL: all. Source: Chan, Golub, LeVeque 1979. */
void moments_add(Moments *moments, const double *rows, const bool *counted, int64_t n);
/* out = (row - mean) / sqrt(variance + 1e-8), within +-10; may be the rows themselves. */
void moments_normalise(const Moments *moments, const double *rows, int64_t n, double *out);
void moments_list_state(Moments *moments, StateList *states, const char *mean, const char *variance, const char *count);

/* Rewards divided by the standard deviation of the discounted sum of rewards so far, which is what values have to predict. */
typedef struct RewardScale {
    double gamma;
    int64_t copies;
    Moments moments;
    double *sums;
} RewardScale; /* sums: (copies) */
Status reward_scale_init(RewardScale *scale, double gamma, int64_t copies, Arena *arena);
/* In place, of one step of all copies; flags (copies) as after the step, playing: those that took it. */
void reward_scale_apply(RewardScale *scale, double *rewards, const bool *terminated, const bool *truncated, const bool *playing);
void reward_scale_restart(RewardScale *scale); /* every copy begins an episode */
void reward_scale_list_state(RewardScale *scale, StateList *states);

#endif
