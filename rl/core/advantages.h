/* SPDX-License-Identifier: Apache-2.0 */
/* Advantages from returns, or from one reward per completion: normalised over a batch, or relative to the group of completions of one prompt.
 *
 *     advantages_group(rewards, n, num_generations, SCALE_GROUP, advantages);      // GRPO; SCALE_NONE: Dr. GRPO
 *     advantages_spread(advantages, n, begin, token_advantages);                   // to every token
 */
#ifndef TUNE_ADVANTAGES_H
#define TUNE_ADVANTAGES_H

#include "rl/core/rl.h"

typedef enum Normalisation {
    /* (x - mean) / (std + epsilon), std with n - 1: stable-baselines3 and cleanrl over a minibatch (epsilon 1e-8), RLOO's option (1e-4) */
    NORMALISE_STD,
    NORMALISE_VARIANCE,   /* (x - mean) / sqrt(variance + epsilon), variance with n - 1: "whitening" of PPO on text and of REINFORCE++ (1e-8) */
    NORMALISE_POPULATION, /* (x - mean) / sqrt(max(variance, epsilon)), variance with n: OpenRLHF over all experiences (1e-8) */
} Normalisation;

/* Normalises in place over the entries that are `valid` (NULL: all); the others become 0. Equal numbers, and a single number, become exactly 0. */
void advantages_normalise(double *advantages, const bool *valid, int64_t n, Normalisation how, double epsilon);

typedef enum GroupScale { SCALE_GROUP, SCALE_BATCH, SCALE_NONE } GroupScale;

/* (r - mean of its group) / (std + 1e-4). The std, with n - 1, is that of the group (SCALE_GROUP, GRPO) or of all rewards (SCALE_BATCH); SCALE_NONE
 * does not divide (Dr. GRPO). rewards: (n), consecutive groups of `group_size`. A NaN reward (none was given) is ignored and gets advantage 0. A
 * group with equal rewards, or with only one, gets exactly 0; adding a constant to a group changes nothing. */
void advantages_group(const double *rewards, int64_t n, int64_t group_size, GroupScale scale, double *advantages);
/* r - mean of the others of its group (RLOO). NaN and groups as in advantages_group. Source: arXiv 2402.14740. */
void advantages_leave_one_out(const double *rewards, int64_t n, int64_t group_size, double *advantages);
/* Whether all rewards of the group that are not NaN are equal, so that it carries no signal. */
bool group_is_flat(const double *rewards, int64_t group_size);

/* Copies each sequence's number to all of its tokens; sequence i has tokens begin[i] .. begin[i + 1] - 1. */
void advantages_spread(const double *per_sequence, int64_t n_sequences, const int64_t *begin, double *per_token);

#endif
