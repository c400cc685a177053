/* SPDX-License-Identifier: Apache-2.0 */
/* Running statistics that normalise observations and rewards for networks. They are part of the policy: saved with it, and not updated in evaluation.
 *
 *     moments_add(&moments, env->observations, NULL, env->copies);
 *     moments_normalise(&moments, env->observations, env->copies, normalised);
 */
#ifndef TUNE_NORMALIZE_H
#define TUNE_NORMALIZE_H

#include "lib/train/state_list.h"

/* Mean and variance of each of `width` numbers over all rows seen. */
typedef struct Moments {
    int64_t width;
    double *mean, *variance, *count; /* (width) each; count: number of rows seen, the same for all columns */
} Moments;
/* Starts as in stable-baselines3 and Gymnasium: mean 0, variance 1, count 1e-4. ST_RESOURCE. */
Status moments_init(Moments *moments, int64_t width, Arena *arena);
/* Adds rows (n, width). counted: (n) which rows to add; NULL: all. Source: Chan, Golub, LeVeque 1979. */
void moments_add(Moments *moments, const double *rows, const bool *counted, int64_t n);
/* out = (row - mean) / sqrt(variance + 1e-8), clamped to +-10; out may be the rows (in place). */
void moments_normalise(const Moments *moments, const double *rows, int64_t n, double *out);
void moments_list_state(Moments *moments, StateList *states, const char *mean, const char *variance, const char *count);

/* Divides rewards by the standard deviation of the discounted sum of rewards so far, the quantity that values predict. */
typedef struct RewardScale {
    double gamma;
    int64_t copies;
    Moments moments; /* of the sums, width 1 */
    double *sums;    /* (copies): discounted sum of the episode's rewards so far */
} RewardScale;
Status reward_scale_init(RewardScale *scale, double gamma, int64_t copies, Arena *arena);
/* Scales the rewards of one step of all copies in place. Flags (copies) as after the step; playing: the copies that took the step. */
void reward_scale_apply(RewardScale *scale, double *rewards, const bool *terminated, const bool *truncated, const bool *playing);
void reward_scale_restart(RewardScale *scale); /* every copy starts an episode */
void reward_scale_list_state(RewardScale *scale, StateList *states);

#endif
