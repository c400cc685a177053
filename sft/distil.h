/* SPDX-License-Identifier: Apache-2.0 */
/* Distillation: the loss of tune sft with a teacher (section `distil`). Both models see the same rows. For each trained token the student is compared
 * with the teacher's distribution over the whole vocabulary (op_token_divergence).
 */
#ifndef TUNE_DISTIL_H
#define TUNE_DISTIL_H

#include "data/check/check.h"
#include "lib/train/trainer.h"

typedef struct Distil Distil;
/* Opens the teacher of the recipe, a model or a file of its log-probabilities (top_file.h), and adds a line about it to the plan. Reads the tokenizer
 * of `rows`, and keeps rows->train. *distil NULL: the recipe has none, or only its
 * answers are learned (distil_answers.h). The caller calls distil_close. ST_CONFIG: a key that does not go with a teacher;
 * tokens that differ, with the first one. ST_INPUT, ST_RESOURCE: the model, the file; a row that the file does not have. */
Status distil_open(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil **distil);
void distil_close(Distil *distil); /* NULL is fine */
/* Called with all rows of a step before its first batch. */
void distil_begin(Distil *distil, const size_t *rows, size_t n);
/* Forward of both models on the batch of a pass over training rows: adds to the sums of the step and seeds the losses; the caller runs
 * tape_backward. ST_INPUT, ST_RESOURCE, as model_forward and top_file_read. */
Status distil_batch(Distil *distil, const Model *student, const Pass *pass, const Batch *batch, LossSums *sums);
double *distil_numbers(Distil *distil, size_t *n); /* for Objective.numbers: sums over the step */
/* Of a step: divergence, cross_entropy and agreement (the share of tokens at which both models find the same token likeliest), means over its trained
 * tokens by weight; hidden_distance, attention_divergence, where they are losses, means over all tokens of its rows. */
void distil_metrics(const Distil *distil, Metrics *metrics);

#endif
