/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rows of a file as token ids, for the commands that use a model. */
#ifndef TUNE_ROWS_H
#define TUNE_ROWS_H

#include "cmd/common/open.h"

/* Reads the rows of a file as token ids: as questions (row_question of data.h) or as whole rows (row_whole). Of config only `system` and `as` are
 * used. ST_INPUT, with file and line, for a faulty row, for ids outside of the model's vocabulary, and for rows longer than its positions. */
typedef struct TokenRow {
    json_t *json;
    Ids ids;
} TokenRow;
typedef struct TokenRows {
    TokenRow *items;
    size_t n, cap;
} TokenRows;
Status token_rows_read(const char *file, const OpenedModel *opened, const DataConfig *config, bool questions, TokenRows *rows);
void token_rows_release(TokenRows *rows);
uint64_t token_rows_hash(const TokenRows *rows); /* of their token ids */

#endif
