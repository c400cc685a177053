/* SPDX-License-Identifier: Apache-2.0 */
/* Rows with rewards to learn from offline: what was asked, what was answered, what it earned.
 *
 *     {"prompt", "completion", "reward": 1.0}      or any training row (messages, input_ids and labels, prompt_ids and completion_ids) with one of
 *     "reward": number                             at the last trained token
 *     "rewards": [numbers]                         one for each trained token, or one for each trained turn, at its last token
 *     "truncated": true                            the answer was cut: the value behind its last token counts
 */
#ifndef TUNE_OFFLINE_ROWS_H
#define TUNE_OFFLINE_ROWS_H

#include "rl/text/experience.h"

typedef struct OfflineRow {
    PromptRow prompt;   /* the tokens before the first trained one */
    const int32_t *ids; /* (n): from there on, up to the last trained one */
    const bool *trained;
    const double *rewards; /* 0 where there is none */
    int64_t n, n_trained;
    bool cut;
} OfflineRow;
typedef struct OfflineRows {
    OfflineRow *items;
    size_t n, cap;
    int64_t tokens, trained_tokens, longest, dropped; /* dropped: longer than data.max_length, with data.truncation: drop */
    double mean_reward;                               /* of a row: the sum of its rewards */
    Dataset table;                                    /* for DataOrder */
    Arena *arena;
} OfflineRows;
/* All rows of data.train. ST_INPUT with file and line: no reward, or as many as there are neither tokens nor turns; nothing trained; too long
 * (data.truncation: error or drop). The caller calls offline_rows_free in any case. */
Status offline_rows_read(const Recipe *recipe, const ModelConfig *model, const Chat *chat, const Tokenizer *tokenizer, OfflineRows *rows);
void offline_rows_free(OfflineRows *rows);
uint64_t offline_rows_fingerprint(const OfflineRows *rows);
/* Row `i` behind the others of an experience of groups of one. ST_RESOURCE. */
Status offline_rows_add(const OfflineRows *rows, size_t i, Experience *experience);

#endif
