/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl on text: a language model samples completions, rewards score them, and a policy gradient updates the model. Sampling and training use the
 * same weights in the same process.
 *
 *     TRY(text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &rewards, &result));   // output/adapter or output/model
 */
#ifndef TUNE_TEXT_RL_H
#define TUNE_TEXT_RL_H

#include "lib/train/training.h"
#include "rl/reward/reward.h"
#include "rl/text/text_algorithm.h"

/* Runs from the checkpoint (or the start) to train.max_steps steps (or train.epochs passes over the prompts). Each step has rollouts, rewards,
 * advantages and rl.num_iterations x rl.num_minibatches optimiser steps. ST_INTERRUPTED with a checkpoint saved; ST_NUMERIC: a loss or gradient that
 * is not finite, or log-probabilities of sampler and trainer that differ by more than rl.max_logprob_diff; errors of rewards, prompts and
 * model. rewards: its max_new_tokens is set from the recipe. */
Status text_rl_run(const TrainingConfig *config, const RewardOptions *rewards, TrainResult *result);

typedef struct TextEvaluation {
    size_t rows;                                                /* or episodes */
    double reward, reward_std, completion_length, eos_fraction; /* means over the rows */
    /* For episodes: mean number of turns; fraction that the environment ended with a return above 0 */
    double turns, success;
    size_t n_columns; /* number of rewards if there are several, else 0 */
    const char **names;
    double *columns;
    Arena *arena; /* freed by the caller */
} TextEvaluation;
/* Evaluates the policy of the finished run in `dir`: rewards of its greedy answers to the prompts in `data` (NULL: the held-out prompts of its
 * recipe), with the run's rewards and lengths. comm: ranks that share the work, NULL: one process; rank 0 calls the rewards, and has all results.
 * ST_INPUT: no such run; ST_CONFIG: no prompts; ST_INTERRUPTED. */
Status text_rl_evaluate(const Device *device, Comm *comm, const char *dir, const char *data, const RewardOptions *rewards,
                        TextEvaluation *evaluation);

typedef struct TextPlay {
    const Device *device;
    int64_t episodes;
    bool sample; /* sample as in training, instead of greedy answers */
    uint64_t seed;
    RewardOptions rewards;
    /* Called at the end of each episode; number from 1. May be NULL */
    void (*on_episode)(void *context, int64_t number, const char *prompt, const char *text, double reward);
    void *context;
} TextPlay;
/* The same for a run on a text environment: plays episodes. Rewards of turns are not discounted. Also returns errors of the environment. */
Status text_rl_play(const char *dir, const TextPlay *play, TextEvaluation *evaluation);

#endif
