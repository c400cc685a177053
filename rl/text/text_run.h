/* SPDX-License-Identifier: Apache-2.0 */
/* A run of reinforcement learning on text, as its parts see it. A step is: text_roll_out (text_rollout.c) asks prompts, samples and rewards;
 * text_advantages and text_learn (text_learn.c) weigh what was done and follow the gradient; text_evaluate (text_evaluate.c) asks the held-out
 * prompts; text_samples_write (text_samples.c) keeps some of it to be read. text_rl.c opens the run and hands its steps to the loop. */
#ifndef TUNE_TEXT_RUN_H
#define TUNE_TEXT_RUN_H

#include "lib/base/tally.h"
#include "rl/loop/loop.h"
#include "rl/pairs/preference_losses.h"
#include "rl/loop/reference.h"
#include "rl/reward/reward.h"
#include "rl/text/text_pass.h"
#include "rl/text/text_rl.h"
#include "rl/text/text_value.h"
#include "rl/text/turns.h"

enum { REWARD_COLUMNS = MAX_REWARDS, COLUMN_NAMES = 4 * REWARD_COLUMNS }; /* of one step's metrics, at most; of a run's */

/* How lengths, rewards and the first parts of the reward go together within groups: sums over pairs of numbers less their group's means. */
enum { CORRELATED_PARTS = 4, CORRELATED = 2 + CORRELATED_PARTS };
typedef struct Correlations {
    struct {
        double xy, xx, yy;
    } of[CORRELATED][CORRELATED];
} Correlations;

/* Sums of one reward, or of one of the other numbers of a program, over the completions that have it. */
typedef struct RewardSum {
    const char *name;
    double sum;
    int64_t known;
} RewardSum;

/* Sums over what a step sampled, also what did not come to be trained. */
typedef struct RolloutSums {
    Tally rewards;
    double ended, tokens, completions;
    int64_t groups, flat;     /* flat: whose rewards are all equal */
    int64_t rounds, unscored; /* unjudged: completions that every reward left out; they count 0 */
    /* The recipe's rewards, then what programs tell beside them, by name: whatever the order in which it came */
    RewardSum columns[REWARD_COLUMNS];
    size_t n_columns;
    Correlations correlations;
} RolloutSums;

/* Sums over the pairs of a step's passes. */
typedef struct PairMeans {
    double pairs, rewards_chosen, rewards_rejected, margin, accuracy, logps_chosen, logps_rejected;
} PairMeans;

typedef struct TextRl {
    const TextRlConfig *config;
    const Recipe *recipe;
    Recipe dated; /* the recipe with the day the run began, where the template writes it */
    const TextAlgorithm *algorithm;
    const PolicyLoss *policy_loss;
    PolicyLossConfig loss; /* without what changes from step to step */
    GroupScale scale;
    Model *model;
    Tokenizer *tokenizer; /* NULL: prompts are ids, and rewards see no text */
    Chat *chat;
    PromptSet prompts, eval;   /* eval: held out, may be empty */
    Turns turns;               /* its env NULL: prompts are rows of data.train, and a completion ends the episode */
    RewardSet *rewards;        /* NULL: the environment's alone */
    const char **column_names; /* (COLUMN_NAMES): of metrics of rewards, as they came to be known */
    size_t n_column_names;
    /* Of the metrics of two rewards; NULL before the first step, and where there are fewer */
    const char *pair_names[CORRELATED_PARTS][CORRELATED_PARTS];
    Reference *reference; /* NULL: no KL */
    TextValue *value;     /* NULL: no values are learned */
    TextPass pass;
    GenerateMemory *sampling; /* of rollouts and evaluations */
    Experience experience;    /* what is learned from */
    Experience round;         /* of a round of sampling */
    RolloutSums sampled;
    const PromptRow **asked;                                           /* (prompts_per_step) */
    RewardRow *rows;                                                   /* (sequences) */
    double *gradients, *entropy_gradients, *value_gradients, *weights; /* (tokens) */
    int64_t cap_tokens;
    const PreferenceLoss *pair_loss; /* these four of algorithms that learn from pairs */
    PreferenceConfig pair_config;
    PairMeans pair_means;
    Arena *pair_scratch;
    Stepper stepper;
    TextRlResult *result;
    Run *run;
    Arena *arena;
    int32_t stop_id;
    int64_t sampling_rounds; /* of a step at most */
    int64_t total_steps, began_step;
    int64_t place;      /* of the next prompt in the stream; where a step that is given up had begun */
    int64_t next_place; /* behind the step in work */
    int64_t next_samples_bytes;
    int64_t updates;       /* optimiser steps done */
    int64_t samples_bytes; /* of samples.jsonl */
    double beta;           /* weight of the KL, as it is now */
    double first_reward, last_reward;
    double first_eval, last_eval, best_eval; /* mean reward of the held-out prompts; NaN: not known */
} TextRl;

/* ---- text_rl.c ---- */

/* What sampling and judging need beside the model: tokenizer, rewards. The caller calls text_release in any case. */
Status text_open_policy(TextRl *rl, const RewardOptions *rewards);
/* The environment of texts that the recipe names, behind text_open_policy. gamma: discount of a turn's rewards. Faults of text_env_open; ST_INPUT: no
 * tokenizer. */
Status text_open_turns(TextRl *rl, int64_t copies, double gamma);
void text_release(TextRl *rl);

/* ---- text_memory.c ---- */

/* What the run will take, when all is open: passes of train.batch_tokens with the longest prompt and completions, and sampling's cache. ST_RESOURCE.
 */
Status text_memory(TextRl *rl, TrainMemory *memory);

/* ---- text_rollout.c ---- */

/* Completions and rewards of `step` (from 0): rl->experience, and the metrics of all that was sampled. *place: of the next prompt, read and written.
 * ST_INTERRUPTED; faults of sampling and rewards. */
Status text_roll_out(TextRl *rl, int64_t step, int64_t *place, Metrics *metrics);
/* How completions are sampled in `step`. */
GenerateConfig text_sampling(const TextRl *rl, int64_t step);
/* Rewards of what was sampled, at most rl->rows of it, and the sums of them. Faults of rewards. */
Status text_score(TextRl *rl, Experience *experience, RolloutSums *sums);
/* Mean of a reward over the completions that have it. */
double reward_sum_mean(const RewardSum *column);
/* The sums of several rewards as metrics PREFIX/NAME, and how many numbers are missing in completions beside others that have them (`missing`), and
 * how many completions no reward judged (`unjudged`). ST_INPUT:
 * programs tell ever new numbers. */
Status text_columns_report(TextRl *rl, const RolloutSums *sums, const char *prefix, const char *missing, const char *unscored, Metrics *metrics);
/* The text of a prompt, as its row has it or in words (PromptRow); empty for ids without a tokenizer. */
Slice text_prompt(const PromptRow *row);
/* prompts_read, and every row has what the rewards look for in it. */
Status text_prompts_read(TextRl *rl, YamlNode node, const char *key, PromptSet *set);

/* ---- text_correlations.c ---- */

/* Takes in judged completions, and names what there is to tell. */
Status text_correlations_add(TextRl *rl, const Experience *experience, const RewardScores *scores, Correlations *correlations);
/* length_reward_correlation, and reward_correlation/A:B of each two rewards; NaN where one of them does not differ. */
void text_correlations_report(const TextRl *rl, const Correlations *correlations, Metrics *metrics);

/* ---- text_learn.c ---- */

/* Optimiser steps of one batch of rollouts. */
int64_t text_steps_per_rollout(const TextRl *rl);
/* Whether the KL to the reference, if there is one, is taken off the reward. */
bool text_kl_in_reward(const TextRl *rl);
/* Whether rewards are those of tokens, which rl.gamma then discounts; else they are one number a completion. */
bool text_rewards_tokens(const TextRl *rl);
/* The old and the reference's log-probabilities of rl->experience, and its advantages. Changes nothing that is trained. ST_INTERRUPTED, ST_NUMERIC,
 * ST_RESOURCE. */
Status text_advantages(TextRl *rl, Metrics *metrics);
/* All passes over what was weighed. ST_INTERRUPTED before anything was changed; ST_NUMERIC. */
Status text_learn(TextRl *rl, Metrics *metrics);

/* ---- text_evaluate.c ---- */

/* The best (greedy) answers to all held-out prompts and what they earn. ST_INTERRUPTED; faults of sampling and rewards. */
Status text_evaluate(TextRl *rl, RolloutSums *sums);
/* As eval_reward, eval_reward/NAME and the like. ST_RESOURCE, ST_INPUT as text_columns_report. */
Status text_evaluate_report(TextRl *rl, const RolloutSums *sums, Metrics *metrics);
/* Whether the state after `step` steps is one to evaluate. */
bool text_evaluate_due(const TextRl *rl, int64_t step);

/* ---- text_pairs.c: algorithms that are `paired` ---- */

/* Chooses the loss. ST_CONFIG. */
Status text_pairs_open(TextRl *rl);
/* The best and the worst completion of a group of rl->round, whose rewards are not all equal, behind what is in rl->experience. */
Status text_pairs_append(TextRl *rl, int64_t group);
void text_pairs_advantages(Experience *experience); /* 1 and -1 */
/* An optimiser step on sequences first .. end - 1 begins: means are over these. */
void text_pairs_begin(TextRl *rl, int64_t first, int64_t end);
/* Of sequences first .. first + n - 1, which are whole pairs, with their logprobs, ref_logprobs and entropies: as policy_loss. ST_RESOURCE. */
Status text_pairs_loss(TextRl *rl, int64_t first, int64_t n, const PolicyLossConfig *step, double *gradients, PolicyMetrics *metrics);
/* Means over the step's pairs. */
void text_pairs_report(TextRl *rl, Metrics *metrics);

/* ---- text_samples.c ---- */

/* The first two groups of a step that was weighed into samples.jsonl, every rl.samples_every steps, and its length into next_samples_bytes. Before
 * anything is learned from them: a failure then loses this step alone. */
Status text_samples_write(TextRl *rl, int64_t step);
/* A resumed run samples the same again: what lies behind the samples_bytes of its checkpoint goes. Warns where they are not there. */
Status text_samples_cut(TextRl *rl);

#endif
