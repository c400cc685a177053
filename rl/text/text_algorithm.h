/* SPDX-License-Identifier: Apache-2.0 */
/* Policy gradients on text: an algorithm defines its advantages and its loss. It has a line in text_algorithms.def and a file text_<name>.c; the
 * algorithms that compare within a group are rows of text_groups.c. */
#ifndef TUNE_TEXT_ALGORITHM_H
#define TUNE_TEXT_ALGORITHM_H

#include "rl/core/advantages.h"
#include "rl/text/experience.h"
#include "rl/core/policy_losses.h"

/* Keys that several algorithms read. */
#define KEYS_OF_POLICY_GRADIENTS \
    "kl_in loss_aggregation kl_corrected adaptive_kl kl_horizon sampler_correction correction_low correction_high target_kl "
#define KEYS_OF_CLIP "clip clip_high dual_clip ratio_cap "
#define KEYS_OF_VALUES "value_model value_lambda value_learning_rate vf_coef clip_value normalize_advantage "

/* Whether an algorithm learns values of tokens. */
typedef enum TextValues {
    VALUES_NONE,     /* never */
    VALUES_POSSIBLE, /* if the recipe sets rl.value_model */
    VALUES_NEEDED    /* always */
} TextValues;
/* Options for computing advantages. */
typedef struct TextAdvantageOptions {
    const Recipe *recipe;
    GroupScale scale; /* how to scale differences of rewards */
    bool values;      /* experience->values and final_values are set */
} TextAdvantageOptions;
typedef struct TextAlgorithm {
    const char *name;        /* rl.algorithm */
    const char *help;        /* one line, with the source */
    const char *keys;        /* recipe keys that it reads in addition to those that all read (algorithm_keys.h) */
    const char *loss;        /* a line of policy_losses.def */
    int64_t least_group;     /* minimum number of completions per prompt */
    bool compares;           /* only differences of rewards within a group count: a group whose rewards are all equal has no signal */
    int64_t sampling_rounds; /* default of rl.sampling_rounds; 0: 1 */
    /* Learns from the best and the worst completion of each group with a preference loss (text_pairs.c); loss and advantages are NULL */
    bool paired;
    /* Learns a teacher's distributions, from its own and other completions (text_gkd.c); loss and advantages are NULL, and rewards are not needed */
    bool taught;
    /* Advantages use experience->token_rewards (also for any algorithm with values), else experience->rewards. A KL in the reward is subtracted from
     * either */
    bool token_rewards;
    bool kl_in_reward; /* default of rl.kl_in */
    TextValues values;
    double clip_high; /* default of rl.clip_high; 0: the same as rl.clip */
    GroupScale scale; /* default of rl.scale_rewards */
    /* Computes the experience's advantages from its rewards. */
    void (*advantages)(const TextAdvantageOptions *options, Experience *experience);
} TextAlgorithm;

#define TEXT_ALGORITHM(name) extern const TextAlgorithm text_##name;
#include "rl/text/text_algorithms.def"
#undef TEXT_ALGORITHM
const TextAlgorithm *text_algorithm_find(const char *name); /* NULL when unknown */
const TextAlgorithm *text_algorithm_at(size_t i);           /* NULL after the last */

/* Shared by several: one advantage per completion, relative to its group, copied to each of its tokens. */
void text_group_advantages(const TextAdvantageOptions *options, Experience *experience);
/* Adds rewards to token_rewards: the environment's reward at the end of each turn, the rest of a sequence's reward at its last token. */
void text_add_rewards(Experience *experience);
/* All tokens, concatenated, as a trajectory with an end at each sequence's last token; `values`: with values. Tokens that are not trained are not
 * steps of it: an environment's text between two turns is part of the state, so the step after a turn's last token is the next turn's first token. */
Trajectory text_trajectory(const Experience *experience, bool values);
/* Generalised advantage estimates from token_rewards and values: a truncated completion is followed by its final value, a terminated one by 0. */
void text_advantages_by_values(const TextAdvantageOptions *options, double lambda, Experience *experience);

#endif
