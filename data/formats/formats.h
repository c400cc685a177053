/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of datasets.def. */
#ifndef TUNE_FORMATS_H
#define TUNE_FORMATS_H

#include "data/data.h"

#define DATASET(name) extern const DataFormat data_format_##name;
#include "data/datasets.def"
#undef DATASET

/* ST_CONFIG unless data.train_on is valid for a prompt and an answer that are texts: auto, completion or all. */
Status train_on_text(const DataConfig *config);
/* ST_CONFIG unless it is auto or all; rows: "text are trained whole" */
Status train_on_whole(const DataConfig *config, const char *rows);
/* Encodes a prompt and its answer, both texts or both lists of messages. */
Status encode_answer(const json_t *row, const json_t *prompt, const json_t *completion, const DataConfig *config, const Tokenizer *tokenizer,
                     Encoding *encoding);

/* Makes the texts and lists of a preference row uniform: if one answer or the prompt is a list, each text becomes a message of the user or the
 * assistant. A new row. */
Status preference_settle(const json_t *row, json_t **settled);
/* Why a preference row is left out. */
typedef enum PairDrop {
    PAIR_TOO_LONG,       /* data.truncation: drop */
    PAIR_SAME,           /* both answers are the same tokens */
    PAIR_EMPTY,          /* one answer is empty or null */
    PAIR_PROMPTS_DIFFER, /* the two conversations have different prompts */
    PAIR_DROPS
} PairDrop;
/* The reason that is visible before the row is encoded; PAIR_DROPS: none. alone: the row has one answer, wanted or not */
PairDrop preference_needless(const json_t *row, bool alone);
void preference_swap(json_t *row);                   /* a copy with the rejected answer in place of the chosen one */
bool preference_scored_otherwise(const json_t *row); /* its own scores rank the rejected answer first */
/* The column `label` of a single answer: true or false, 1, 0 or -1, or a word for it. ST_INPUT. */
Status row_label(const json_t *row, bool *wanted);

/* The tokens of a stepwise row: its prompt, then each step followed by config->step_separator. ends: the index of each step's last token. ST_INPUT if
 * it is no such row. */
Status stepwise_tokens(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids, Ids *ends);
/* The number of steps in the list `steps`, which must have as many labels. ST_INPUT: none, or another number of labels. */
Status stepwise_count(const json_t *row, const char *steps, size_t *n);
Status stepwise_label(const json_t *row, size_t i, double *label); /* 0..1; true and false count as 1 and 0. ST_INPUT for anything else */

/* Fails for an entry of data.train that has no usable row. first: the failure of its first bad row */
Status fail_no_valid_row(const char *path, int64_t n_bad, const Failure *first);
/* For data_sources: resolves an entry of dataset_info.json to its file and columns; other paths stay unchanged. ST_INPUT. */
Status dataset_info_resolve(Arena *arena, DataSource *source);
/* A copy of the row under our names, or NULL without memory. judged: for callers that compare or score answers; otherwise for training on them. */
json_t *columns_apply(const ColumnMap *map, const json_t *row, bool judged);
/* The rounds of an Alpaca row's `history`, each [instruction, response]; none if it is missing. ST_INPUT: it has another type. */
Status alpaca_rounds(const json_t *history, size_t *n);
/* The format that recognises the row by its columns; NULL: none does. */
const DataFormat *data_format_of(const json_t *row);
/* The prompt of a row, a text or a list of messages, as ids that ask for an answer. */
Status prompt_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);

#endif
