/* SPDX-License-Identifier: Apache-2.0 */
/* The prompts of a policy on text, with their data rows, in which rewards find the answers. */
#ifndef TUNE_PROMPTS_H
#define TUNE_PROMPTS_H

#include "data/data.h"
#include "lib/recipe/rejected.h"
#include "rl/reward/reward.h"

typedef struct PromptRow {
    Ids ids;
    json_t *json; /* the data row with all its columns */
    char *text;   /* the question as plain text if the row's `prompt` is not a string: from its messages, else decoded from its tokens */
    const char *file;
    const char *unit; /* "line", "row" */
    size_t line;
} PromptRow;
typedef struct PromptSet {
    PromptRow *items;
    size_t n, cap;
    int64_t longest;      /* tokens */
    int64_t dropped, cut; /* numbers of rows that were too long, dropped or cut by data.truncation */
    Dataset table;        /* for DataOrder: the rows and their sources */
    Arena *arena;         /* file names, sources */
} PromptSet;

/* Reads all rows of data.train (or of `node`, named `key`) as questions, see row_question. data.truncation says what happens to rows longer than
 * data.max_length. ST_INPUT with file and line, also for a preference pair unless data.format is prompt; ST_CONFIG. The caller calls prompts_free in
 * any case. */
Status prompts_read(YamlNode node, const char *key, const Recipe *recipe, const ModelConfig *model, const Chat *chat, const Tokenizer *tokenizer,
                    PromptSet *set);
/* Checks with rewards_check that each row has the columns that `rewards` need; NULL: no check. rejected: collects the rows that fail; NULL: the first
 * one is an error. Call it before prompts_split. */
Status prompts_check(PromptSet *set, RewardSet *rewards, Rejected *rejected);
void prompts_free(PromptSet *set);
/* Prompt `place` of an endless stream of epochs, with sources weighted and a new order in each epoch, by data.shuffle and seed. */
const PromptRow *prompts_at(const PromptSet *set, const Recipe *recipe, int64_t place);
/* Number of prompts in the first epoch: the number of rows unless sources have weights. */
int64_t prompts_per_epoch(const PromptSet *set);
/* Moves a fraction of the rows (held_out_count) from `set` to `held_out`, by a keyed permutation. Their file names are still owned by `set`. */
Status prompts_split(PromptSet *set, double share, uint64_t seed, PromptSet *held_out);
/* A hash of all ids and rows, in order. */
uint64_t prompts_fingerprint(const PromptSet *set);

#endif
