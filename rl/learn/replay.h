/* SPDX-License-Identifier: Apache-2.0 */
/* Experience replay: the transitions of the last steps, drawn evenly or by how wrong the values of them were. What is stored is what a target needs:
 * with n steps the discounted sum of the rewards, the observation behind them, and the factor on the value there: gamma^m of m steps seen, 0 behind a
 * terminated step. A truncated episode's last observation is its final one, whose value counts.
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
    int64_t capacity; /* transitions; the oldest one is forgotten for a new one */
    int64_t copies, observation_size, action_size;
    int64_t n_step; /* from 1 */
    double gamma;
    bool prioritised;
    double alpha; /* how much priorities count: probability ~ (|error| + 1e-6)^alpha. Source: arXiv 1511.05952 */
} ReplayConfig;

typedef struct Replay {
    ReplayConfig config;
    int64_t size, next;                                /* transitions there are; where the next one goes */
    float *observations, *next_observations, *actions; /* (capacity, ...) */
    double *rewards, *discounts;                       /* (capacity) */
    /* The last n_step steps of each copy, a ring each: what is not yet a transition. */
    float *window_observations, *window_actions;
    double *window_rewards;
    int64_t *window_begin, *window_length; /* (copies) */
    /* Priorities as the leaves of a binary tree of sums: node i is the sum of nodes 2i and 2i + 1, the root is node 1. */
    double *sums; /* (2 leaves); NULL: drawn evenly */
    int64_t leaves;
    double largest; /* priority so far: a new transition's */
} Replay;

/* Memory that replay_init takes, false when that is no number: how large a checkpoint grows, too. */
bool replay_bytes(const ReplayConfig *config, size_t *bytes);
/* Empty, in `arena`. ST_RESOURCE with what to change when it is more than the machine has left. */
Status replay_init(Replay *replay, const ReplayConfig *config, Arena *arena);
/* Whether it is sound after a checkpoint was read into it: ST_INPUT. */
Status replay_check(const Replay *replay);
/* One step of all copies: what was seen and done, (copies, ...), then what `env` says came of it. */
void replay_begin_step(Replay *replay, const double *observations, const double *actions);
void replay_end_step(Replay *replay, const Env *env);

/* Transitions drawn, one behind the other. */
typedef struct ReplayBatch {
    int64_t n;
    int64_t *rows; /* of the replay */
    double *observations, *actions, *rewards, *next_observations, *discounts;
    double *weights; /* (n): (N p)^-beta over the largest of the batch, which makes up for uneven draws; 1 when they are even */
} ReplayBatch;
Status replay_batch_init(ReplayBatch *batch, int64_t n, const ReplayConfig *config, Arena *arena);
/* batch->n transitions, of at least one, with repetition. Drawn by priority: one from each of n equal parts of their sum. */
void replay_sample(const Replay *replay, RngKey key, double beta, ReplayBatch *batch);
/* errors: (n), target minus value. Does nothing where transitions are drawn evenly. */
void replay_prioritise(Replay *replay, const ReplayBatch *batch, const double *errors);
void replay_list_state(Replay *replay, StateList *states);

#endif
