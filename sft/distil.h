/* SPDX-License-Identifier: Apache-2.0 */
/* Distillation: the loss of tune sft with a teacher (section `distil`). Both models see the same rows. For each trained token the student is compared
 * with the teacher's distribution over the whole vocabulary (op_token_divergence).
 */
#ifndef TUNE_DISTIL_H
#define TUNE_DISTIL_H

#include "data/check/check.h"
#include "lib/train/trainer.h"

typedef struct Distil Distil;
/* Opens the teacher of the recipe, and adds a line about it to the plan. Reads the tokenizer of `rows`. *distil NULL: the recipe has none. The caller
 * calls distil_close. ST_CONFIG: a key that does not go with a teacher; tokens that differ, with the first one. ST_INPUT, ST_RESOURCE: the model. */
Status distil_open(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil **distil);
void distil_close(Distil *distil); /* NULL is fine */
/* Runs both models on a batch. *d: a value for each target of the batch, on the tape. */
Status distil_forward(Distil *distil, const Model *student, Tape *tape, const Batch *batch, Divergences *d);
/* Adds the losses of a batch to the sums of the step. */
Status distil_count(Distil *distil, const Divergences *d, const Batch *batch, LossSums *sums);
enum { DISTIL_NUMBERS = 3 };
double *distil_numbers(Distil *distil); /* for Objective.numbers: sums over the step */
/* divergence and cross_entropy of a step, means over its tokens by weight */
void distil_metrics(const Distil *distil, Metrics *metrics);

#endif
