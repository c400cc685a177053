/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards of completions: what the recipe lists below `reward`, each with a weight, and their weighted sum.
 *
 *     TRY(rewards_open(recipe->reward, recipe->path, &(RewardOptions){.max_new_tokens = 256}, &set)); // or the line, and the nearest name
 *     TRY(rewards_score(set, rows, n, &scores));                                                      // faults name the reward and the row
 *     ... scores->sums[i], scores->columns[k].name, scores->columns[k].values[i] ...
 *     rewards_close(set);
 */
#ifndef TUNE_REWARD_H
#define TUNE_REWARD_H

#include "data/data.h"
#include "rl/core/rl.h"

enum { MAX_REWARDS = 40 }; /* in a list; each is a column of a run's metrics */

typedef struct RewardSet RewardSet;
/* One completion. All is borrowed. file, unit, number: the data row's, for messages ("'FILE' line N"; file NULL = "row N"). `columns`: the data row
 * as a JSON object; NULL = it has none. */
typedef struct RewardRow {
    const char *file, *unit;
    int64_t number;
    Slice prompt, completion;
    const int32_t *prompt_ids, *completion_ids;
    size_t n_prompt_ids, n_completion_ids; /* with the EOS, when the completion ends with one */
    const char *finish_reason;             /* "stop" | "length" */
    /* Where an environment spoke in between, what the policy said by itself; else NULL: all of the completion is its own. */
    const char *policy_text;
    const int32_t *own_ids;
    size_t n_policy_ids;
    const json_t *columns;
} RewardRow;

/* max_new_tokens: the longest completion, for rewards of the length; 0 = not known. secret: the value of the environment variable `name`, NULL when
 * it is not set; libraries do not look at the environment themselves. check_only: rewards_check is all that will be asked, so no program is started
 * and no server's key is needed. run_folder: where the run is written, which sandboxed programs do not see; NULL: nowhere. */
typedef struct RewardOptions {
    int64_t max_new_tokens;
    bool check_only;
    const char *run_folder;
    const char *(*secret)(void *context, const char *name);
    void *context;
} RewardOptions;

/* `list`: the value of `reward`: a list of maps, one map, or {rewards: [...], clip: [low, high], whiten: true} to clip and scale the sums. `file`:
 * the recipe's path for messages, NULL = none. The recipe must outlive the set. ST_CONFIG: an unknown type or option (with the line and the nearest
 * name), a value that does not fit, an empty list. */
Status rewards_open(YamlNode list, const char *file, const RewardOptions *options, RewardSet **set);
/* Whose answers are judged; all is borrowed and must outlive the set. tokenizer, chat: NULL = it has none. */
typedef struct RewardPolicy {
    const Model *model;
    const Tokenizer *tokenizer;
    const Chat *chat;
} RewardPolicy;
/* For rewards that depend on it (models, which may share its weights): once, before the first rewards_score. ST_INPUT: a model that is missing, or
 * cuts text into other tokens. */
Status rewards_attach(RewardSet *set, const RewardPolicy *policy);
/* n completions of so many tokens, `group` of them of each prompt. */
typedef struct RewardShape {
    size_t n_prompt, n_completion, n, group;
} RewardShape;
/* What scoring them will take in memory beside what is resident after rewards_attach. ST_RESOURCE. */
Status rewards_bytes(const RewardSet *set, const RewardShape *shape, size_t *bytes);
/* Whether the row has what rewards look for in it (an answer's column and its kind), before anything is sampled. ST_INPUT with the reward and the
 * row. What a program, a server or a model will say of it is not known before. */
Status rewards_check(RewardSet *set, const RewardRow *row);
/* model_fingerprint of the attached models together; 0 where there are none, and for NULL. */
uint64_t rewards_fingerprint(const RewardSet *set);
void rewards_close(RewardSet *set); /* ends programs that were started; NULL is fine */

/* One number per row: of one reward, before its weight; or, where a program answers with several numbers, one of the others, under NAME/KEY, NaN in
 * rows without it. */
typedef struct RewardColumn {
    const char *name;
    const double *values;
    double weight;
} RewardColumn; /* weight: in the sum; 0 of those others */
/* sums: weight x reward, added up in the recipe's order, then clipped, then (`whiten`) scaled to variance 1 around their mean, which stays. A reward
 * that does not judge a row (a program or server that answers null) has NaN there and adds nothing; judged[i]: at least one did. */
typedef struct RewardScores {
    size_t n_rows, n_columns;
    const double *sums;
    const RewardColumn *columns;
    const bool *judged;
} RewardScores;
/* Valid until the next call. The recipe's rewards are the first columns, in its order. ST_INPUT: a column is missing or of another kind, a program or
 * server answers wrongly; ST_RESOURCE: it died, hangs or does not answer. The text names the reward and the row. */
Status rewards_score(RewardSet *set, const RewardRow *rows, size_t n, const RewardScores **scores);
size_t rewards_count(const RewardSet *set); /* entries of the recipe's list */

#endif
