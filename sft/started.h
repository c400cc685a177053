/* SPDX-License-Identifier: Apache-2.0 */
/* What a run says of its rows before the first step. */
#ifndef TUNE_STARTED_H
#define TUNE_STARTED_H

#include "data/check/check.h"
#include "lib/train/run_plan.h"

/* Adds to the plan the first rows, with every token marked as trained or not: "sample". Call it while the tokenizer is loaded, since later steps do
 * not need one; tokenizer NULL: tokens are shown as ids. ST_RESOURCE. */
Status started_sample(const Dataset *train, const Tokenizer *tokenizer, RunPlan *plan);
/* Adds lines and values about the rows: their counts, notes on them, and what the check of the rows found. */
void started_rows(const RecipeRows *rows, const DataCheck *check, RunPlan *plan);

#endif
