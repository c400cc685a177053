/* SPDX-License-Identifier: Apache-2.0 */
/* Advantages from returns or from one reward a completion: normalised over a batch, or compared within the group of completions of one prompt.
 *
 *     advantages_group(rewards, n, num_generations, SCALE_GROUP, advantages);      // GRPO; SCALE_NONE: Dr. GRPO
 *     advantages_spread(advantages, n, begin, token_advantages);                   // to every token
 */
#ifndef TUNE_ADVANTAGES_H
#define TUNE_ADVANTAGES_H

#include "rl/core/rl.h"

typedef enum Normalisation {
    /* (x - mean) / (std + epsilon), std by n - 1: stable-baselines3 and cleanrl over a minibatch (epsilon 1e-8), RLOO's option (1e-4) */
    NORMALISE_STD,
    NORMALISE_VARIANCE,   /* (x - mean) / sqrt(variance + epsilon), by n - 1: "whitening" of PPO on text and of REINFORCE++ (1e-8) */
    NORMALISE_POPULATION, /* (x - mean) / sqrt(max(variance, epsilon)), by n: OpenRLHF over all experiences (1e-8) */
} Normalisation;

/* In place, over the entries that are `valid` (NULL: all); the others become 0. Equal numbers, and a single one, become exactly 0. */
void advantages_normalise(double *advantages, const bool *valid, int64_t n, Normalisation how, double epsilon);

typedef enum GroupScale { SCALE_GROUP, SCALE_BATCH, SCALE_NONE } GroupScale;

/* (r - mean of its group) / (std + 1e-4), std by n - 1 of the group (GRPO), of all rewards, or no scale (Dr. GRPO). rewards: (n), groups of
 * `group_size` one after the other. A reward that is NaN (none was given) takes no part and gets 0. A group with equal rewards, or with one only,
 * gets exactly 0; a constant added to a group changes nothing. */
void advantages_group(const double *rewards, int64_t n, int64_t group_size, GroupScale scale, double *advantages);
/* r - mean of the others of its group (RLOO). NaN and groups as above. Source: arXiv 2402.14740. */
void advantages_leave_one_out(const double *rewards, int64_t n, int64_t group_size, double *advantages);
/* All rewards of the group that are not NaN are equal: nothing is to be learned from it. */
bool group_is_flat(const double *rewards, int64_t group_size);

/* One number a sequence to each of its tokens; sequence i has tokens begin[i] .. begin[i + 1] - 1. */
void advantages_spread(const double *per_sequence, int64_t n_sequences, const int64_t *begin, double *per_token);

#endif
