/* SPDX-License-Identifier: Apache-2.0 */
/* Policy gradients on text: each states where its advantages come from and which loss it takes. One file text_<name>.c and one line of
 * text_algorithms.def each; those that compare within a group are rows of text_groups.c. */
#ifndef TUNE_TEXT_ALGORITHM_H
#define TUNE_TEXT_ALGORITHM_H

#include "rl/core/advantages.h"
#include "rl/text/experience.h"
#include "rl/core/policy_losses.h"

/* Keys that several read. */
#define KEYS_OF_POLICY_GRADIENTS \
    "kl_in loss_aggregation kl_corrected adaptive_kl kl_horizon sampler_correction correction_low correction_high target_kl "
#define KEYS_OF_CLIP "clip clip_high dual_clip ratio_cap "
#define KEYS_OF_VALUES "value_model value_lambda value_learning_rate vf_coef clip_value normalize_advantage "

typedef enum TextValues { VALUES_NONE, VALUES_POSSIBLE, VALUES_NEEDED } TextValues;
/* What advantages are made by. */
typedef struct TextAdvantageOptions {
    const Recipe *recipe;
    GroupScale scale; /* what is to be done to differences of rewards */
    bool values;      /* experience->values and final_values are there */
} TextAdvantageOptions;
typedef struct TextAlgorithm {
    const char *name;        /* rl.algorithm */
    const char *help;        /* one line, with the source */
    const char *keys;        /* of the recipe that it reads, beside those that all do (algorithm_keys.h) */
    const char *loss;        /* a line of policy_losses.def */
    int64_t least_group;     /* completions that a prompt must have */
    bool compares;           /* only differences of rewards within a group count: a group whose rewards are all equal teaches nothing */
    int64_t sampling_rounds; /* unless rl.sampling_rounds is given; 0: 1 */
    /* Learns from the best and the worst completion of each group by a preference loss (text_pairs.c); loss and advantages are NULL */
    bool paired;
    /* Advantages are made of experience->token_rewards, else of experience->rewards; so are those of any algorithm that has values. A KL in the
     * reward is taken off either */
    bool token_rewards;
    bool kl_in_reward; /* unless rl.kl_in is given */
    TextValues values; /* whether values of tokens are learned */
    double clip_high;  /* unless rl.clip_high is given; 0: as rl.clip */
    GroupScale scale;  /* unless rl.scale_rewards is given */
    /* From the rewards of the experience to its advantages. */
    void (*advantages)(const TextAdvantageOptions *options, Experience *experience);
} TextAlgorithm;

#define TEXT_ALGORITHM(name) extern const TextAlgorithm text_##name;
#include "rl/text/text_algorithms.def"
#undef TEXT_ALGORITHM
const TextAlgorithm *text_algorithm_find(const char *name); /* NULL when unknown */
const TextAlgorithm *text_algorithm_at(size_t i);           /* NULL behind the last */

/* What several of them do: one number per completion, compared within its group, given to each of its tokens. */
void text_group_advantages(const TextAdvantageOptions *options, Experience *experience);
/* Adds rewards to token_rewards: what the environment gave at the end of each turn, the rest of a sequence's reward at its last token. */
void text_add_rewards(Experience *experience);
/* All tokens one behind the other, with an end at each sequence's last one; values only where there are some. What is not trained is no step of it:
 * what an environment told lies between two of the policy's tokens as a part of the state, so a turn's last token is followed by the next turn's
 * first. */
Trajectory text_trajectory(const Experience *experience, bool values);
/* Generalised advantages of token_rewards and values: behind a completion that was cut there is its final value, behind one that ended nothing. */
void text_advantages_by_values(const TextAdvantageOptions *options, double lambda, Experience *experience);

#endif
