/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of datasets.def. */
#ifndef TUNE_FORMATS_H
#define TUNE_FORMATS_H

#include "data/data.h"

#define DATASET(name) extern const DataFormat data_format_##name;
#include "data/datasets.def"
#undef DATASET

/* ST_CONFIG unless data.train_on means something for a prompt and an answer that are texts: auto, completion or all. */
Status train_on_text(const DataConfig *config);
/* ST_CONFIG unless it is auto or all; rows: "text are trained whole" */
Status train_on_whole(const DataConfig *config, const char *rows);
/* A prompt and its answer, both texts or both lists of messages. */
Status encode_answer(const json_t *row, const json_t *prompt, const json_t *completion, const DataConfig *config, const Tokenizer *tokenizer,
                     Encoding *encoding);

/* A row of preferences whose texts and lists of messages go together: where one answer or the prompt is a list, a text beside it is a message, of
 * the user or the assistant. A new row. */
Status preference_settle(const json_t *row, json_t **settled);
/* Why a row of preferences is left out: it teaches nothing. */
typedef enum PairDrop {
    PAIR_TOO_LONG,       /* data.truncation: drop */
    PAIR_SAME,           /* both answers are the same tokens */
    PAIR_EMPTY,          /* an answer is empty or null */
    PAIR_PROMPTS_DIFFER, /* the two conversations ask different things */
    PAIR_DROPS
} PairDrop;
/* What can be said before it is read; PAIR_DROPS: nothing. alone: a row of one answer, wanted or not */
PairDrop preference_needless(const json_t *row, bool alone);
void preference_swap(json_t *row);                   /* as if the rejected answer had been chosen */
bool preference_scored_otherwise(const json_t *row); /* its own scores put the rejected answer first */
/* The column `label` of an answer alone: a truth, 1, 0 or -1, or a word for it. ST_INPUT. */
Status row_label(const json_t *row, bool *wanted);

/* Tokens of a stepwise row: its prompt, then each step and config->step_separator behind it. ends: where each step's last token is. ST_INPUT for what
 * is no such row. */
Status stepwise_tokens(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids, Ids *ends);
/* Steps in the list `steps`, as many as there are labels. ST_INPUT: none, or another number of labels. */
Status stepwise_count(const json_t *row, const char *steps, size_t *n);
Status stepwise_label(const json_t *row, size_t i, double *label); /* 0..1. ST_INPUT for what is neither that nor true or false */

/* The failure of an entry of data.train of which nothing is left. first: of its first bad row */
Status fail_no_valid_row(const char *path, int64_t n_bad, const Failure *first);
/* data_sources: an entry of dataset_info.json becomes its file and columns; other paths stay. ST_INPUT. */
Status dataset_info_resolve(Arena *arena, DataSource *source);
/* A row under our names: a new object, or NULL without memory. judged: for those who compare or judge answers, else what training takes of it. */
json_t *columns_apply(const ColumnMap *map, const json_t *row, bool judged);
/* The rounds of an Alpaca row's `history`, each [instruction, response]; none where it is missing. ST_INPUT: it is something else. */
Status alpaca_rounds(const json_t *history, size_t *n);
/* The format that knows the row by its columns; NULL: none does. */
const DataFormat *data_format_of(const json_t *row);
/* The prompt of a row, a text or a list of messages, as a question. */
Status prompt_question(const json_t *row, const DataConfig *config, const Tokenizer *tokenizer, Ids *ids);

#endif
