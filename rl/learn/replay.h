/* SPDX-License-Identifier: Apache-2.0 */
/* Experience replay: the most recent transitions, drawn uniformly or by priority (size of the TD error). A transition stores what a target needs: the
 * discounted sum of up to n rewards, the observation after them, and the discount of its value: gamma^m after m steps, 0 after a terminated step.
 * After a truncated step the observation is the episode's final one, and its value counts.
 *
 *     replay_begin_step(&replay, env->observations, actions);        // S, A
 *     TRY(learner_step(learner, actions));
 *     replay_end_step(&replay, env);                                 // R, S'
 *     ...
 *     replay_sample(&replay, key, beta, &batch);                     // target = batch.rewards + batch.discounts * V(batch.next_observations)
 *     replay_prioritise(&replay, &batch, errors);
 */
#ifndef TUNE_REPLAY_H
#define TUNE_REPLAY_H

#include "rl/learn/learner.h"

typedef struct ReplayConfig {
    int64_t capacity; /* transitions; when it is full a new one replaces the oldest */
    int64_t copies, observation_size, action_size;
    int64_t n_step; /* from 1 */
    double gamma;
    bool prioritised;
    double alpha; /* exponent of priorities: probability ~ (|error| + 1e-6)^alpha. Source: arXiv 1511.05952 */
} ReplayConfig;

typedef struct Replay {
    ReplayConfig config;
    int64_t size, next;                                /* number of transitions; index of the next one */
    float *observations, *next_observations, *actions; /* (capacity, ...) */
    double *rewards, *discounts;                       /* (capacity) */
    /* Per copy, a ring of the last n_step steps that are not transitions yet. */
    float *window_observations, *window_actions;
    double *window_rewards;
    int64_t *window_begin, *window_length; /* (copies) */
    /* Priorities as the leaves of a binary tree of sums: node i is the sum of nodes 2i and 2i + 1, the root is node 1. */
    double *sums; /* (2 x leaves); NULL: uniform draws */
    int64_t leaves;
    double largest; /* largest priority so far; new transitions get it */
} Replay;

/* Bytes that replay_init allocates, which is also the size that checkpoints grow by; false on overflow. */
bool replay_bytes(const ReplayConfig *config, size_t *bytes);
/* Makes an empty replay in `arena`. ST_RESOURCE when the machine has less memory left; the hint says what to change. */
Status replay_init(Replay *replay, const ReplayConfig *config, Arena *arena);
/* Checks the contents read from a checkpoint. ST_INPUT if they are damaged. */
Status replay_check(const Replay *replay);
/* One step of all copies: replay_begin_step takes observations and actions (copies, ...), replay_end_step takes the results from `env`. */
void replay_begin_step(Replay *replay, const double *observations, const double *actions);
void replay_end_step(Replay *replay, const Env *env);

/* Drawn transitions, contiguous. */
typedef struct ReplayBatch {
    int64_t n;
    int64_t *rows; /* indices in the replay */
    double *observations, *actions, *rewards, *next_observations, *discounts;
    double *weights; /* (n): importance weights (N p)^-beta, divided by the largest of the batch; 1 for uniform draws */
} ReplayBatch;
Status replay_batch_init(ReplayBatch *batch, int64_t n, const ReplayConfig *config, Arena *arena);
/* Draws batch->n transitions with replacement from a replay that is not empty. With priorities: one from each of n equal parts of their sum. */
void replay_sample(const Replay *replay, RngKey key, double beta, ReplayBatch *batch);
/* Sets priorities from errors (n), target minus value. Does nothing for uniform draws. */
void replay_prioritise(Replay *replay, const ReplayBatch *batch, const double *errors);
void replay_list_state(Replay *replay, StateList *states);

#endif
