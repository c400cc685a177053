/* SPDX-License-Identifier: Apache-2.0 */
/* Finds evaluation rows that also occur in training. */
#ifndef TUNE_OVERLAP_H
#define TUNE_OVERLAP_H

#include "data/check/check.h"

enum { OVERLAP_RUN = 13 }; /* WORD_GRAM */
/* The hash of a run of ids. */
uint64_t hash_ids(const int32_t *ids, int32_t n);
/* Counts the rows of rows->eval that share a run of this many words (or their full text, if shorter) with a row of rows->train. Words are those of
 * `data filter --decontaminate`; the tokens of a number's digits, for example, are not words. Without a tokenizer tokens count, and the last one of a
 * run must be trained. Runs that many rows share are boilerplate of the template or the task, and do not count. where: the first of them, "EVAL line
 * 3 (TRAIN line 7)". ST_RESOURCE, ST_INTERRUPTED. */
Status overlap_find(const RecipeRows *rows, int64_t *n, Str *where);

#endif
