/* SPDX-License-Identifier: Apache-2.0 */
/* The prompts that a policy on text is asked, with the data rows that they come from: rewards look into these for the answer. */
#ifndef TUNE_PROMPTS_H
#define TUNE_PROMPTS_H

#include "data/data.h"
#include "lib/recipe/rejected.h"
#include "rl/reward/reward.h"

typedef struct PromptRow {
    Ids ids;
    json_t *json; /* the row, with its other columns */
    char *text;   /* the question in words, where the row's `prompt` is none: what its messages say, else what its tokens say */
    const char *file;
    const char *unit; /* "line", "row" */
    size_t line;
} PromptRow;
typedef struct PromptSet {
    PromptRow *items;
    size_t n, cap;
    int64_t longest;      /* tokens */
    int64_t dropped, cut; /* rows that were too long, by data.truncation */
    Dataset table;        /* for DataOrder: the rows and their sources */
    Arena *arena;         /* file names, sources */
} PromptSet;

/* All rows of data.train (or of `node`, named `key`) as questions, see row_question. Rows longer than data.max_length are treated as data.truncation
 * says. ST_INPUT with file and line, also for a preference pair unless data.format says that its prompt is meant; ST_CONFIG; the caller calls
 * prompts_free in any case. */
Status prompts_read(YamlNode node, const char *key, const Recipe *recipe, const ModelConfig *model, const Chat *chat, const Tokenizer *tokenizer,
                    PromptSet *set);
/* Whether each row has what rewards look for in it, as rewards_check; NULL: nothing is looked for. rejected: takes those that have not; NULL: the
 * first of them is the failure. Before rows are held out. */
Status prompts_check(PromptSet *set, RewardSet *rewards, Rejected *rejected);
void prompts_free(PromptSet *set);
/* Prompt `place` of an endless stream: epoch after epoch, each with its sources' weights, in a new order each time by data.shuffle and seed. */
const PromptRow *prompts_at(const PromptSet *set, const Recipe *recipe, int64_t place);
/* Prompts of the first epoch: as many as there are rows unless sources have weights. */
int64_t prompts_per_epoch(const PromptSet *set);
/* Takes a share of the rows (held_out_count) out of `set` into `held_out`, by a keyed permutation. Its rows' file names stay the set's. */
Status prompts_split(PromptSet *set, double share, uint64_t seed, PromptSet *held_out);
/* A number that other prompts would hardly have: of all ids and rows, in order. */
uint64_t prompts_fingerprint(const PromptSet *set);

#endif
