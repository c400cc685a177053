/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a file as token ids, for the commands that use a model. */
#ifndef TUNE_ROWS_H
#define TUNE_ROWS_H

#include "cmd/common/open.h"

/* Rows of a file as token ids: questions (row_question of data.h) or whole rows (row_whole). config: of its fields `system` and
 * `as` count.
 * ST_INPUT with file and line: also ids and lengths that the model does not know. */
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

#endif
