/* SPDX-License-Identifier: Apache-2.0 */
/* The internal state of a run of reinforcement learning on text. Steps: text_roll_out (text_rollout.c) samples completions and scores them;
 * text_advantages and text_learn (text_learn.c) compute advantages and take optimiser steps; text_evaluate (text_evaluate.c) answers the held-out
 * prompts; text_samples_write (text_samples.c) writes some samples for people to read. text_rl.c opens the run and is its kind of training. */
#ifndef TUNE_TEXT_RUN_H
#define TUNE_TEXT_RUN_H

#include "lib/base/tally.h"
#include "lib/train/accumulator.h"
#include "lib/train/rank_records.h"
#include "lib/train/run_plan.h"
#include "rl/common/rl_watch.h"
#include "rl/pairs/preference_losses.h"
#include "rl/common/reference.h"
#include "rl/reward/reward.h"
#include "rl/text/text_pass.h"
#include "rl/text/text_rl.h"
#include "rl/text/text_value.h"
#include "rl/text/turns.h"

enum { REWARD_COLUMNS = MAX_REWARDS, COLUMN_NAMES = 4 * REWARD_COLUMNS }; /* maximum number of reward columns in one step; in a run */

/* Correlations within groups between lengths, rewards and the first parts of the reward: sums of products of deviations from the group's means. */
enum { CORRELATED_PARTS = 4, CORRELATED = 2 + CORRELATED_PARTS };
typedef struct Correlations {
    struct {
        double xy, xx, yy;
    } of[CORRELATED][CORRELATED];
} Correlations;

/* Sums of one reward, or of one additional number of a reward program, over the completions that have it. */
typedef struct RewardSum {
    const char *name;
    double sum;
    int64_t known;
} RewardSum;

/* Sums over all samples of a step, including those that are not trained. */
typedef struct RolloutSums {
    Tally rewards;
    double ended, tokens, completions;
    int64_t groups, flat;     /* flat: groups whose rewards are all equal */
    int64_t rounds, unscored; /* unscored: completions for which every reward abstained; their reward is 0 */
    /* The recipe's rewards in order, then additional numbers of programs, sorted by name so that their order of arrival does not matter */
    RewardSum columns[REWARD_COLUMNS];
    size_t n_columns;
    Correlations correlations;
} RolloutSums;

/* Sums over the preference pairs of a step's passes. */
typedef struct PairMeans {
    double pairs, rewards_chosen, rewards_rejected, margin, accuracy, logps_chosen, logps_rejected;
} PairMeans;

/* Where a step's completions come from. */
typedef enum GkdSource { GKD_OWN, GKD_ROWS, GKD_TEACHER } GkdSource;
/* Sums over the trained tokens of a step's passes. */
typedef struct GkdSums {
    double divergence, cross_entropy, agreement;
    int64_t tokens;
} GkdSums;

/* The data of a step. The next step overwrites them and reuses their memory. */
typedef struct TextStep {
    Experience experience;                                             /* the samples of the step */
    Experience round;                                                  /* the samples of one round */
    Experience own;                                                    /* of these, the ones that this rank sampled */
    RolloutSums sampled;                                               /* of all samples of the step */
    const PromptRow **asked;                                           /* (prompts_per_step) */
    RewardRow *rows;                                                   /* (sequences) */
    double *gradients, *entropy_gradients, *value_gradients, *weights; /* (tokens) */
    int64_t cap_tokens;
    PairMeans pair_means; /* these two: for algorithms that learn from pairs */
    Arena *pair_scratch;
    GkdSource source; /* these two: for algorithms that are `taught` */
    GkdSums gkd;
    int64_t next_place, next_samples_bytes; /* of the counters, once the step has learned */
    int64_t number;                         /* from 1 */
} TextStep;

/* Counters that the next step depends on; checkpoints save them in addition to the weights. */
typedef struct TextCounts {
    int64_t updates;       /* optimiser steps done */
    int64_t place;         /* position of the next prompt in the stream; position at which an abandoned step began */
    int64_t samples_bytes; /* length of samples.jsonl */
    double beta;           /* current weight of the KL */
    double first_reward, last_reward;
    double first_eval, last_eval, best_eval; /* mean reward of the held-out prompts; NaN: unknown */
} TextCounts;

/* What optimiser steps need; an evaluation has none. */
typedef struct TextUpdate {
    Stepper stepper;
    AccumulatorConfig division; /* of an optimiser step, over lanes and ranks */
    Accumulator accumulator;    /* of the policy, and of a separate value model */
    RankRecord record;          /* of a step */
    int64_t most_passes;        /* of an optimiser step */
    int64_t *passes;            /* first sequence of each pass of an optimiser step, and the end; room for all sequences */
    double *loads;              /* (n_loads): sums of the routers over the passes of a step, see router_loads_numbers */
    size_t n_loads;
} TextUpdate;

/* Names of metrics that have appeared so far. */
typedef struct TextNames {
    const char **columns; /* (COLUMN_NAMES): of rewards, in the order in which they appeared */
    size_t n_columns;
    const char *pairs[CORRELATED_PARTS][CORRELATED_PARTS]; /* of pairs of rewards; NULL before the first step, and with fewer than two */
} TextNames;

typedef struct TextRl {
    /* from the recipe */
    const TrainingConfig *config; /* NULL: the policy is only evaluated */
    Comm *comm;                   /* ranks that share the work; NULL: one process */
    const RewardOptions *reward_options;
    const Recipe *recipe;
    Recipe dated; /* the recipe with the date on which the run began, if the template writes the date */
    const TextAlgorithm *algorithm;
    const PolicyLoss *policy_loss;
    PolicyLossConfig loss; /* the settings that are the same in every step */
    GroupScale scale;
    const PreferenceLoss *pair_loss; /* these two: for algorithms that learn from pairs */
    PreferenceConfig pair_config;
    Model *teacher; /* these three: for algorithms that are `taught` */
    DivergenceArgs taught;
    GenerateMemory *teacher_sampling; /* NULL: the teacher does not answer */
    int64_t sampling_rounds;          /* maximum per step */
    /* opened */
    Arena *arena;
    Model *model;
    Tokenizer *tokenizer; /* NULL: prompts are ids, and rewards see no text */
    Chat *chat;
    int32_t stop_id;
    PromptSet prompts, eval; /* eval: held-out prompts, may be empty */
    Turns turns;             /* env NULL: prompts are rows of data.train, and an episode is one completion */
    RewardSet *rewards;      /* NULL: only the environment's rewards */
    Reference *reference;    /* NULL: no KL */
    TextValue *value;        /* NULL: no values are learned */
    TextPass pass;
    RouterLoads routers;      /* of the policy in passes that learn; they are reported, and have no part in the loss */
    GenerateMemory *sampling; /* memory of sampling in rollouts and evaluations */
    int64_t total_steps;
    Run *run;
    RlDoctor *doctor;

    TextUpdate update;
    TextNames names;
    TextStep step;
    TextCounts counts;
} TextRl;

/* ---- text_rl.c ---- */

/* Opens what sampling and scoring need in addition to the model: tokenizer, rewards. The caller calls text_release in any case. */
Status text_open_policy(TextRl *rl, const RewardOptions *rewards);
/* Opens the recipe's text environment; call it after text_open_policy. gamma: discount per turn. Errors of text_env_open; ST_INPUT: no tokenizer. */
Status text_open_turns(TextRl *rl, int64_t copies, double gamma);
void text_release(TextRl *rl);

/* ---- text_memory.c ---- */

/* Plans the memory of the run once everything is open: passes of train.batch_tokens with the longest prompt and completions, and the sampler's cache.
 * ST_RESOURCE.
 */
Status text_memory(TextRl *rl, TrainMemory *memory);

/* ---- text_rollout.c ---- */

/* Samples and scores the completions of `step` (from 0) into rl->step.experience, and sets the metrics over all samples. *place: position of the next
 * prompt, read and written. ST_INTERRUPTED; errors of sampling and rewards. */
Status text_roll_out(TextRl *rl, int64_t step, int64_t *place, Metrics *metrics);
/* Of samples, and of the distributions of the loss. */
double text_temperature(const Recipe *recipe);
/* Sampling settings of `step`. */
GenerateConfig text_sampling(const TextRl *rl, int64_t step);
/* Scores the samples (at most as many as rl->step.rows has room for) and adds to the sums. Errors of rewards. */
Status text_score(TextRl *rl, Experience *experience, RolloutSums *sums);
/* Mean of a reward over the completions that it scored. */
double reward_sum_mean(const RewardSum *column);
/* Reports means of several rewards as metrics PREFIX/NAME. missing: the metric for the number of completions that lack a number which others have;
 * unscored: the metric for the number of completions that no reward scored. ST_INPUT: reward programs return too many different names. */
Status text_columns_report(TextRl *rl, const RolloutSums *sums, const char *prefix, const char *missing, const char *unscored, Metrics *metrics);
/* The text of a prompt, from its row or as plain text (PromptRow); empty for ids without a tokenizer. */
Slice text_prompt(const PromptRow *row);
/* prompts_read followed by prompts_check. */
Status text_prompts_read(TextRl *rl, YamlNode node, const char *key, PromptSet *set);

/* ---- text_ranks.c ---- */

/* experience_sample, with the prompts divided over ranks. Fails likewise, and as comm_wait. */
Status text_sample(TextRl *rl, const Model *model, const PromptRow *const *prompts, size_t n_prompts, uint64_t number, const GenerateConfig *config,
                   Experience *e);
/* Whether ranks divide more than prompts and passes (parallel.shard). ST_CONFIG: they cannot, with a separate value model. */
Status text_divides(const TextRl *rl, ShardKind *shard);
/* Lists the optimiser's states, of which ranks may have parts. */
void text_list_optimizer(TextRl *rl, StateList *states);
/* Copies numbers of tokens of rl->step.experience to all ranks; rank r has those of its passes, from r x n_passes / ranks on. passes: (n_passes + 1),
 * the first sequence of each and the end. arrays: NULL entries are left out. */
Status text_share_tokens(TextRl *rl, const int64_t *passes, int64_t n_passes, double *const *arrays, size_t n_arrays);

/* ---- text_correlations.c ---- */

/* Adds scored completions to the sums, and names the pairs of rewards. */
Status text_correlations_add(TextRl *rl, const Experience *experience, const RewardScores *scores, Correlations *correlations);
/* Reports length_reward_correlation, and reward_correlation/A:B of each pair of rewards; NaN if one of them is constant. */
void text_correlations_report(const TextRl *rl, const Correlations *correlations, Metrics *metrics);

/* ---- text_learn.c ---- */

/* Number of optimiser steps per batch of rollouts. */
int64_t text_steps_per_rollout(const TextRl *rl);
/* Number of lanes of an optimiser step of so many passes, which are its leaves. With divided gradients each is one. */
int64_t text_lanes(const TextRl *rl, int64_t n_passes);
/* Says whether the bits of the run depend on the number of ranks: without parallel.lanes, more ranks than lanes have a lane each. */
void text_say_lanes(const TextRl *rl, RunPlan *plan);
/* Makes room for the sums of an optimiser step. ST_RESOURCE. */
Status text_division_init(TextRl *rl);
/* Whether the KL to the reference, if any, is subtracted from the reward. */
bool text_kl_in_reward(const TextRl *rl);
/* Whether rewards are per token, discounted by rl.gamma; else there is one per completion. */
bool text_rewards_tokens(const TextRl *rl);
/* Computes the old and the reference log-probabilities of rl->step.experience, and its advantages. Trains nothing. ST_INTERRUPTED, ST_NUMERIC,
 * ST_RESOURCE. */
Status text_advantages(TextRl *rl, Metrics *metrics);
/* Takes all optimiser steps on rl->step.experience. ST_INTERRUPTED only before the first of them; ST_NUMERIC. */
Status text_learn(TextRl *rl, Metrics *metrics);

/* ---- text_evaluate.c ---- */

/* Scores greedy answers to all held-out prompts. ST_INTERRUPTED; errors of sampling and rewards. */
Status text_evaluate(TextRl *rl, RolloutSums *sums);
/* Reports the result as eval_reward, eval_reward/NAME and the like. ST_RESOURCE, ST_INPUT as text_columns_report. */
Status text_evaluate_report(TextRl *rl, const RolloutSums *sums, Metrics *metrics);
/* Whether to evaluate after `step` steps. */
bool text_evaluate_due(const TextRl *rl, int64_t step);

/* ---- text_pairs.c: algorithms that are `paired` ---- */

/* Chooses the loss. ST_CONFIG. */
Status text_pairs_open(TextRl *rl);
/* Appends the best and the worst completion of a group of rl->step.round, whose rewards are not all equal, to rl->step.experience. ST_RESOURCE. */
Status text_pairs_append(TextRl *rl, int64_t group);
void text_pairs_advantages(Experience *experience); /* sets 1 for the chosen and -1 for the rejected */
/* Starts an optimiser step on sequences first .. end - 1, over which means are taken. */
void text_pairs_begin(TextRl *rl, int64_t first, int64_t end);
/* The loss of sequences first .. first + n - 1, which are complete pairs, with their logprobs, ref_logprobs and entropies; like policy_loss.
 * ST_RESOURCE. */
Status text_pairs_loss(TextRl *rl, int64_t first, int64_t n, const PolicyLossConfig *step, double *gradients, PolicyMetrics *metrics);
/* Reports means over the step's pairs. */
void text_pairs_report(TextRl *rl, Metrics *metrics);

/* ---- text_gkd.c: algorithms that are `taught` ---- */

/* Checks section distil; taught: the algorithm has a teacher. ST_CONFIG. */
Status text_gkd_check(const Recipe *recipe, bool taught);
/* Opens the teacher, and checks that rows have the answers that will be learned. ST_CONFIG, ST_INPUT, ST_RESOURCE. */
Status text_gkd_open(TextRl *rl);
/* Draws where the completions of a step come from, and sets what of `config` depends on it. */
void text_gkd_begin(TextRl *rl, int64_t step, GenerateConfig *config);
/* Samples or reads the completions of n prompts. Fails as text_sample; ST_INPUT: a row without an answer. */
Status text_gkd_sample(TextRl *rl, const PromptRow *const *prompts, size_t n, const GenerateConfig *config, Experience *e);
/* Forward and backward of n sequences from `first` on. total: trained tokens of the optimiser step. Adds to rl->step.gkd. Fails as
 * text_pass_taught. */
Status text_gkd_pass(TextRl *rl, int64_t first, int64_t n, int64_t total, double *loss);
void text_gkd_report(const TextRl *rl, Metrics *metrics);

/* ---- text_samples.c ---- */

/* Writes the first two groups of a step to samples.jsonl, every rl.samples_every steps, and the file's length to next_samples_bytes. Call it after
 * text_advantages and before text_learn, so that a failure loses this step only. */
Status text_samples_write(TextRl *rl, int64_t step);
/* Truncates samples.jsonl to the checkpoint's samples_bytes, since a resumed run samples the rest again. Warns if the file is shorter. */
Status text_samples_cut(TextRl *rl);

#endif
