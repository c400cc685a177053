/* Policy gradients on text: each states where its advantages come from and which loss it takes. One file text_<name>.c and one line of text_algorithms.def each. */
#ifndef TUNE_TEXT_ALGORITHM_H
#define TUNE_TEXT_ALGORITHM_H

#include "rl/advantages.h"
#include "rl/algorithm_keys.h"
#include "rl/experience.h"
#include "rl/policy_losses.h"

typedef struct TextAlgorithm {
    const char *name;        /* rl.algorithm */
    const char *help;        /* one line, with the source */
    const char *keys;        /* of the recipe that it reads, beside those that all do (algorithm_keys.h) */
    const char *loss;        /* a line of policy_losses.def */
    int64_t least_group;     /* completions that a prompt must have */
    bool compares;           /* only differences of rewards within a group count: a group whose rewards are all equal teaches nothing */
    int64_t sampling_rounds; /* unless rl.sampling_rounds is given; 0: 1 */
    bool paired;             /* learns from the best and the worst completion of each group by a preference loss (text_pairs.c); loss and advantages are NULL */
    bool token_kl;           /* KL in the reward is taken off token by token (always in the reward); else off the completion's reward */
    double clip_high;        /* unless rl.clip_high is given; 0: as rl.clip */
    GroupScale scale;        /* unless rl.scale_rewards is given */
    /* From the rewards (and old_logprobs, ref_logprobs where the KL is in the reward) of the experience to its advantages. `scale`: what is to be done to differences of rewards. */
    void (*advantages)(const Recipe *recipe, GroupScale scale, Experience *experience);
} TextAlgorithm;

#define TEXT_ALGORITHM(name) extern const TextAlgorithm text_##name;
#include "rl/text_algorithms.def"
#undef TEXT_ALGORITHM
const TextAlgorithm *text_algorithm_find(const char *name); /* NULL when unknown */
const TextAlgorithm *text_algorithm_at(size_t i);           /* NULL behind the last */

/* What several of them do: one number per completion, compared within its group, given to each of its tokens. */
void text_advantages_of_groups(const Recipe *recipe, GroupScale scale, Experience *experience);
/* Rewards of tokens: -beta x KL at each, the completion's reward at its last; written into experience->token_rewards. */
void text_token_rewards(const Recipe *recipe, Experience *experience);

#endif
