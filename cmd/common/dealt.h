/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a command that are dealt to ranks. Each rank has neighbours in the file, and rank 0 writes what all of them made, in the order of the file.
 * Without a launcher one rank has all rows, and nothing is sent.
 *
 *     TRY(dealt_check(model, hash_of_rows));                           // the same model and rows on all ranks
 *     for (size_t i = dealt_first(n, dealt_rank()); i < dealt_first(n, dealt_rank() + 1); i++) ... makes a line of `own` ...
 *     TRY(dealt_texts(&own, write_lines, context));                    // on rank 0: the texts of the other ranks, in order
 */
#ifndef TUNE_DEALT_H
#define TUNE_DEALT_H

#include "lib/base/str.h"
#include "lib/comm/comm.h"
#include "lib/model/model.h"

int dealt_rank(void);
int dealt_ranks(void);
/* The first of n rows that a rank has; rank dealt_ranks() gives n. A single row is rank 0's. */
size_t dealt_first(size_t n, int rank);
/* Fails on all ranks alike, with ST_INPUT, if one of them has another model, or rows with another hash. */
Status dealt_check(const Model *model, uint64_t rows);
/* To be called between parts of long work: fails if another rank has failed. */
Status dealt_poll(void);
/* Copies values to all ranks: x (first[ranks]). Before the call rank r has elements first[r] .. first[r + 1] - 1. */
Status dealt_values(const char *name, double *x, const size_t *first);
/* Copies what each rank says to all: all (ranks, bytes). */
Status dealt_words(const char *name, const void *mine, size_t bytes, void *all);
/* Gives rank 0 the texts of ranks 1, 2, ..., which they send. Fails as `take`. */
Status dealt_texts(const Str *own, Status (*take)(void *context, const char *text, size_t len), void *context);

#endif
