/* SPDX-License-Identifier: Apache-2.0 */
/* Rows with rewards for offline learning: prompt, answer and rewards.
 *
 *     {"prompt", "completion", "reward": 1.0}      or any training row (messages, input_ids and labels, prompt_ids and completion_ids) with one of
 *     "reward": number                             at the last trained token
 *     "rewards": [numbers]                         one for each trained token, or one for each trained turn, at its last token
 *     "truncated": true                            the answer was cut: the value after its last token counts
 */
#ifndef TUNE_OFFLINE_ROWS_H
#define TUNE_OFFLINE_ROWS_H

#include "rl/text/experience.h"

typedef struct OfflineRow {
    PromptRow prompt;   /* the tokens before the first trained token */
    const int32_t *ids; /* (n): from the first to the last trained token */
    const bool *trained;
    const double *rewards; /* (n): 0 where there is none */
    int64_t n, n_trained;
    bool cut; /* column `truncated` */
    const char *file, *unit;
    int64_t place; /* of the row: number of its `unit` in the file */
} OfflineRow;
typedef struct OfflineRows {
    OfflineRow *items;
    size_t n, cap;
    int64_t tokens, trained_tokens, longest, dropped; /* dropped: rows longer than data.max_length, with data.truncation: drop */
    double mean_reward;                               /* mean over rows of the sum of their rewards */
    Dataset table;                                    /* for DataPlan */
    Arena *arena;
} OfflineRows;
/* Reads all rows of data.train. ST_INPUT with file and line: no reward, or a number of rewards that is neither that of tokens nor of turns; no
 * trained token; a row that is too long. The caller calls offline_rows_free in any case. */
Status offline_rows_read(const Recipe *recipe, const ModelConfig *model, const Chat *chat, const Tokenizer *tokenizer, OfflineRows *rows);
void offline_rows_free(OfflineRows *rows);
uint64_t offline_rows_fingerprint(const OfflineRows *rows);
/* Appends row `i` to an experience with groups of one. ST_RESOURCE. */
Status offline_rows_add(const OfflineRows *rows, size_t i, Experience *experience);

#endif
