/* SPDX-License-Identifier: Apache-2.0 */
/* tune score --save: what a teacher says of rows, for distillation. */
#ifndef TUNE_SCORE_SAVE_H
#define TUNE_SCORE_SAVE_H

#include "cmd/app/options.h"

typedef struct ScoreSave {
    const char *path, *dtype; /* --save; --save-dtype, NULL: f16 */
    int64_t top_k;
    const char *adapter, *compute;
} ScoreSave;
/* Writes a file of the likeliest tokens (top_file.h) at each token of the rows that `tune sft` would train on: arguments are MODEL, a RECIPE or a
 * file of rows, and overrides. Prints what it wrote. ST_USAGE, ST_CONFIG, ST_INPUT: rows whose tokens the model does not have; ST_RESOURCE,
 * ST_NUMERIC, ST_INTERRUPTED. */
Status score_save(const Command *command, const ScoreSave *job);

#endif
