/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the trainer: trainer_open.c opens a run, trainer.c takes its steps, trainer_rows.c runs the rows of each. */
#ifndef TUNE_TRAINER_PARTS_H
#define TUNE_TRAINER_PARTS_H

#include "lib/train/trainer.h"

/* ---- trainer_rows.c ---- */

/* Begins `step` (from 0): its number of leaves, and the divisor of its losses. */
Status rows_begin(Trainer *trainer, int64_t step, int64_t *n_leaves, double *divisor);
/* Forward and backward of a leaf, part by part; a leaf may have no rows. The tape has been reset. */
Status rows_train(Trainer *trainer, int64_t step, int64_t leaf, double divisor, LossSums *sums);
/* Losses of all held-out rows; the tape does not record. */
Status rows_evaluate(Trainer *trainer, LossSums *sums);
/* For MemoryTask; context: the trainer. */
Status rows_largest(void *context, Tape *meta);
void rows_split(void *context, int64_t most_tokens);
bool rows_lend(const Trainer *trainer); /* whether each leaf is one pass, so that a tape may lend gradients (Tensor.lent) */

/* ---- trainer_open.c: of a TrainingKind; context: the trainer ---- */

Status trainer_open(void *context, RunPlan *plan);
Status trainer_length(void *context, const Recipe *recipe, RunLength *length);
void trainer_close(Trainer *trainer); /* frees what trainer_open has made */

#endif
