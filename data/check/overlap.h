/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation rows that training has as well. */
#ifndef TUNE_OVERLAP_H
#define TUNE_OVERLAP_H

#include "data/check/check.h"

enum { OVERLAP_RUN = 13 }; /* WORD_GRAM */
/* Of a run of ids. */
uint64_t hash_ids(const int32_t *ids, int32_t n);
/* How many rows of rows->eval share so many words in a row with a row of rows->train, or all where they are shorter: words as `data filter
 * --decontaminate` has them, so that digits of numbers, which are tokens of their own, are no run. Without a tokenizer: tokens, the last of them
 * trained. What many rows share is wording of the template or of the task, and tells nothing. where: the first of them, "EVAL line 3 (TRAIN line 7)".
 * ST_RESOURCE, ST_INTERRUPTED. */
Status overlap_find(const RecipeRows *rows, int64_t *n, Str *where);

#endif
