/* SPDX-License-Identifier: Apache-2.0 */
/* output/started.json: the facts known before the first step, for `tune report` and for later inspection of the run. */
#ifndef TUNE_STARTED_H
#define TUNE_STARTED_H

#include "sft/sft.h"

/* Writes the first rows, with every token marked as trained or not, to `sample` as a JSON array, which the caller releases. Call it while the
 * tokenizer is loaded, since later steps do not need one; tokenizer NULL: tokens are shown as ids. ST_RESOURCE. */
Status started_sample(const Dataset *train, const Tokenizer *tokenizer, JsonWriter *sample);
/* Writes the record's own part: counts of rows and tokens, notes on rows, sizes, and the sample. */
void started_write(JsonWriter *w, const SftPlan *plan, const JsonWriter *sample);

#endif
