/* SPDX-License-Identifier: Apache-2.0 */
/* Lines and values of a run's plan (run_plan.h) about its rows. */
#ifndef TUNE_STARTED_H
#define TUNE_STARTED_H

#include "data/check/check.h"
#include "lib/train/run_plan.h"

/* Adds the first rows to the plan, as the value "sample", with every token marked as trained or not. tokenizer NULL: tokens are shown as ids.
 * ST_RESOURCE. */
Status started_sample(const Dataset *train, const Tokenizer *tokenizer, RunPlan *plan);
/* Adds lines and values about the rows: their counts, notes on them, and what the check of the rows found. */
void started_rows(const RecipeRows *rows, const DataCheck *check, RunPlan *plan);

#endif
