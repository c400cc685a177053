/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl on text: a language model samples completions, rewards judge them, a policy gradient follows. The sampler is the trainer: the same weights
 * in the same process.
 *
 *     TRY(text_rl_run(&(TextRlConfig){.recipe = recipe, .on_progress = show, .context = screen}, &result));   // output/adapter or output/model
 */
#ifndef TUNE_TEXT_RL_H
#define TUNE_TEXT_RL_H

#include "lib/train/training.h"
#include "rl/reward/reward.h"
#include "rl/text/text_algorithm.h"

typedef struct TextRlPlan {
    const TextAlgorithm *algorithm;
    size_t prompts, rewards;
    int64_t longest_prompt, total_steps, parameters, trained_parameters, dropped, cut;
    size_t eval_prompts;
    const Dataset *table; /* of the prompts */
    DType compute;
    TrainMemory memory;
    const Model *model;
    const char *env; /* an environment of texts instead of prompts; NULL: none */
} TextRlPlan;
typedef struct TextRlProgress {
    int64_t step, total_steps;
    double reward, eval_reward, completion_length, tokens_per_second, seconds_left;
} TextRlProgress; /* eval_reward: NaN unless it is new */
typedef struct TextRlConfig {
    const Recipe *recipe;
    TrainingOptions options;
    RewardOptions rewards;                                              /* its max_new_tokens is set from the recipe */
    void (*on_plan)(void *context, const TextRlPlan *plan);             /* may be NULL */
    void (*on_progress)(void *context, const TextRlProgress *progress); /* may be NULL */
    void *context;
} TextRlConfig;
/* eval: of held-out prompts, NaN without any */
typedef struct TextRlResult {
    int64_t steps;
    double first_reward, last_reward, first_eval, last_eval, seconds;
    bool already_finished;
} TextRlResult;

/* From the run's checkpoint (or the start) through train.max_steps steps (or train.epochs passes over the prompts): rollouts, rewards, advantages,
 * rl.num_iterations x rl.num_minibatches optimiser steps each. ST_INTERRUPTED with a checkpoint saved; ST_NUMERIC: a loss or gradient that is not
 * finite, or sampler and trainer further apart than rl.max_logprob_diff; faults of rewards, prompts and model as they tell. */
Status text_rl_run(const TextRlConfig *config, TextRlResult *result);

typedef struct TextEvaluation {
    size_t rows;                                                /* or episodes */
    double reward, reward_std, completion_length, eos_fraction; /* means over the rows */
    /* Of episodes: turns each; the share that the environment ended with a return above 0 */
    double turns, success;
    size_t n_columns; /* of several rewards; 0 where there is one */
    const char **names;
    double *columns;
    Arena *arena; /* the caller frees it */
} TextEvaluation;
/* What the policy of the finished run in `dir` earns for its best answers to the prompts in `data` (NULL: the held-out ones of its recipe), by the
 * run's own rewards and lengths. ST_INPUT: no such run; ST_CONFIG: no prompts; ST_INTERRUPTED. */
Status text_rl_evaluate(const char *dir, const char *data, const RewardOptions *rewards, TextEvaluation *evaluation);

typedef struct TextPlay {
    int64_t episodes;
    bool sample; /* as while training, else the best (greedy) answers */
    uint64_t seed;
    RewardOptions rewards;
    /* When it is over; number from 1. May be NULL */
    void (*on_episode)(void *context, int64_t number, const char *prompt, const char *text, double reward);
    void *context;
} TextPlay;
/* The same of a run on an environment of texts: episodes played with it. Rewards of turns are not discounted. Faults of the environment, too. */
Status text_rl_play(const char *dir, const TextPlay *play, TextEvaluation *evaluation);

#endif
