/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the rows of a recipe before training: counts, lengths, and mistakes that would otherwise go unnoticed.
 *
 *     RecipeRows rows;
 *     DataCheck check = {0};
 *     Status status = recipe_rows_open(recipe, &model_config, NULL, &rows);
 *     if (status == ST_OK) status = data_check(&rows, &model_config, &check);
 *     for (size_t i = 0; i < check.n_warnings; i++) puts(check.warnings[i]);
 *     data_check_release(&check);
 *     recipe_rows_close(&rows);
 */
#ifndef TUNE_CHECK_DATA_H
#define TUNE_CHECK_DATA_H

#include "data/data.h"

/* A recipe's tokenised rows, with the tokenizer and template that made them. */
typedef struct RecipeRows {
    Tokenizer *tokenizer; /* NULL: the model has none, or all rows are read */
    Chat *chat;
    Dataset *train, *eval; /* eval NULL: none */
    Dataset *rejected;     /* of pairs: the rows with their rejected answers; NULL: train has no pairs */
    bool pairs;            /* preferences, whose answers are both learned from */
    bool prompts;          /* prompts for a policy: no token of them is trained */
    int64_t answer;        /* prompts: limit of tokens of an answer */
} RecipeRows;
/* day: the date for templates that write one, if the recipe does not set data.now; NULL = today. ST_CONFIG, ST_INPUT, ST_RESOURCE as dataset_load;
 * close `rows` in any case. */
Status recipe_rows_open(const Recipe *recipe, const ModelConfig *model, const char *day, RecipeRows *rows);
/* The same for a recipe that learns from rewards: its rows are prompts. */
Status recipe_prompts_open(const Recipe *recipe, const ModelConfig *model, const char *day, RecipeRows *rows);
/* Reads the rejected answers, too, if the rows of an open recipe are pairs. */
Status recipe_rejected_open(const Recipe *recipe, const ModelConfig *model, RecipeRows *rows);
/* The same for a recipe that learns from preferences. */
Status recipe_pairs_open(const Recipe *recipe, const ModelConfig *model, const char *day, RecipeRows *rows);
void recipe_rows_are_read(RecipeRows *rows); /* frees tokenizer and chat, which take some ten MiB */
void recipe_rows_close(RecipeRows *rows);

enum { CHECK_BARS = 16, CHECK_SHARES = 8, CHECK_WARNINGS = 24 };
extern const int check_shares[CHECK_SHARES]; /* percentages: 0 25 50 75 90 95 99 100 */
typedef struct DataCheck {
    int64_t percentiles[CHECK_SHARES];   /* tokens of a row, or of its longest text; check_shares per cent of the rows have at most this many */
    int64_t bar_width, bars[CHECK_BARS]; /* rows with bar_width x i .. bar_width x (i + 1) - 1 tokens; the last bar also counts all longer rows */
    int64_t ended;                       /* rows in which an end token is trained */
    int64_t doubled_bos;                 /* rows that begin with BOS twice */
    int64_t near_duplicates, compared;   /* rows that resemble an earlier one, among the first `compared` */
    int64_t overlapping_eval;            /* rows of eval that also occur in training: overlap_find */
    bool wrong;                          /* training would learn nothing, or something unintended */
    size_t n_warnings;
    char *warnings[CHECK_WARNINGS];
} DataCheck;
void data_check_warn(DataCheck *check, const char *format, ...) PRINTF_LIKE(2, 3); /* adds a copy of a warning */
/* ST_RESOURCE, ST_INTERRUPTED; initialise with {0}, release in any case. */
Status data_check(const RecipeRows *rows, const ModelConfig *model, DataCheck *check);
void data_check_release(DataCheck *check);
/* One line: rows, share of trained tokens, number of warnings. */
void data_check_summary(const RecipeRows *rows, const DataCheck *check, Str *text);

#endif
