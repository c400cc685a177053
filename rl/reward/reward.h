/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards of completions: the recipe's list `reward`, each with a weight, and their weighted sum.
 *
 *     TRY(rewards_open(recipe->reward, recipe->path, &(RewardOptions){.max_new_tokens = 256}, &set));
 *     TRY(rewards_score(set, rows, n, &scores)); // errors name the reward and the row
 *     ... scores->sums[i], scores->columns[k].name, scores->columns[k].values[i] ...
 *     rewards_close(set);
 */
#ifndef TUNE_REWARD_H
#define TUNE_REWARD_H

#include "data/data.h"
#include "lib/comm/comm.h"
#include "rl/core/rl.h"

enum { MAX_REWARDS = 40 }; /* limit of the list; each reward is a column of a run's metrics */

typedef struct RewardSet RewardSet;
/* One completion; everything is borrowed. file, unit, number: of the data row, for messages ("'FILE' line N"; file NULL = "row N"). `columns`: the
 * data row as a JSON object; NULL = none. */
typedef struct RewardRow {
    const char *file, *unit;
    int64_t number;
    Slice prompt, completion;
    const int32_t *prompt_ids, *completion_ids;
    size_t n_prompt_ids, n_completion_ids; /* including the EOS if the completion ends with one */
    const char *finish_reason;             /* "stop" | "length" */
    /* With an environment: the policy's own part of the completion. NULL: the policy wrote all of it. */
    const char *policy_text;
    const int32_t *own_ids;
    size_t n_policy_ids;
    const json_t *columns;
} RewardRow;

/* max_new_tokens: length limit of completions, for rewards of length; 0 = unknown. secret: returns the value of the environment variable `name`, NULL
 * if unset; libraries do not read environment variables themselves. check_only: only rewards_check will be called, so no program is started and no
 * server key is needed. run_folder: the run's directory, which is hidden from sandboxed programs; NULL: none. comm: the ranks that score together;
 * NULL: one process. */
typedef struct RewardOptions {
    int64_t max_new_tokens;
    bool check_only;
    const char *run_folder;
    Comm *comm;
    const char *(*secret)(void *context, const char *name);
    void *context;
} RewardOptions;

/* Opens the rewards of `list`, the value of `reward`: a list of maps, one map, or {rewards: [...], clip: [low, high], whiten: true} to clip and scale
 * the sums. `file`: the recipe's path for messages, NULL = none. The recipe must outlive the set. ST_CONFIG: an unknown type or option (with the line
 * and the nearest name), an invalid value, an empty list. */
Status rewards_open(YamlNode list, const char *file, const RewardOptions *options, RewardSet **set);
/* The policy whose answers are scored; everything is borrowed and must outlive the set. tokenizer, chat: NULL = none. */
typedef struct RewardPolicy {
    const Model *model;
    const Tokenizer *tokenizer;
    const Chat *chat;
} RewardPolicy;
/* Prepares rewards that depend on the policy (models, which may share its weights). Call it once, before the first rewards_score. ST_INPUT: a missing
 * model, or one with another tokenizer. */
Status rewards_attach(RewardSet *set, const RewardPolicy *policy);
/* Shape of a scoring call: n completions, `group` per prompt, with these numbers of tokens. */
typedef struct RewardShape {
    size_t n_prompt, n_completion, n, group;
} RewardShape;
/* Bytes that scoring will use in addition to what is resident after rewards_attach. ST_RESOURCE. */
Status rewards_bytes(const RewardSet *set, const RewardShape *shape, size_t *bytes);
/* Checks before sampling that the row has the columns that rewards need, with values of the right kind. ST_INPUT with the reward and the row. It
 * cannot check what a program, a server or a model will answer. */
Status rewards_check(RewardSet *set, const RewardRow *row);
/* Combined model_fingerprint of the attached models; 0 if there are none, and for NULL. */
uint64_t rewards_fingerprint(const RewardSet *set);
void rewards_close(RewardSet *set); /* also stops started programs; NULL is fine */

/* One number per row: of a reward, before its weight; or an additional number of a reward program, named NAME/KEY, NaN in rows without it. */
typedef struct RewardColumn {
    const char *name;
    const double *values;
    double weight;
} RewardColumn; /* weight: weight in the sum; 0 for additional numbers */
/* sums: weight x reward, added in the recipe's order, then clipped, then (`whiten`) scaled to variance 1 around the unchanged mean. A reward that
 * abstains on a row (a program or server that answers null) has NaN there and adds nothing; judged[i]: at least one reward did not abstain. */
typedef struct RewardScores {
    size_t n_rows, n_columns;
    const double *sums;
    const RewardColumn *columns;
    const bool *judged;
} RewardScores;
/* Valid until the next call. The recipe's rewards are the first columns, in the recipe's order. ST_INPUT: a missing column or one of the wrong kind,
 * a wrong answer of a program or server; ST_RESOURCE: it died, hangs or does not answer. The text names the reward and the row. Ranks make this call
 * together, with the same rows. Each scores a part of them, whole prompts, and all get all numbers; it then also fails as comm_wait. */
Status rewards_score(RewardSet *set, const RewardRow *rows, size_t n, const RewardScores **scores);
size_t rewards_count(const RewardSet *set); /* entries of the recipe's list */

#endif
