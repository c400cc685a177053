/* SPDX-License-Identifier: Apache-2.0 */
/* output/started.json: what was known before the first step, for `tune report` and for whoever looks into the run later. */
#ifndef TUNE_STARTED_H
#define TUNE_STARTED_H

#include "sft/sft.h"

/* The first rows with every token marked as trained or not, as a JSON array in `sample`, which the caller releases. It is made while the tokenizer is
 * there, which nothing needs afterwards; tokenizer NULL: tokens are their ids. ST_RESOURCE. */
Status started_sample(const Dataset *train, const Tokenizer *tokenizer, JsonWriter *sample);
/* The record's own part: counts of rows and tokens, what is odd about them, sizes, and the sample. */
void started_write(JsonWriter *w, const SftPlan *plan, const JsonWriter *sample);

#endif
