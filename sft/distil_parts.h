/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of distillation share: distil.c opens a teacher and runs a batch; distil_file.c reads a teacher's stored log-probabilities;
 * distil_inner.c compares hidden states and attention. */
#ifndef TUNE_DISTIL_PARTS_H
#define TUNE_DISTIL_PARTS_H

#include "lib/infer/top_file.h"
#include "sft/distil.h"

/* Sums over a step's tokens. `weights`: of its trained tokens; the last two numbers are sums over all tokens of its rows, times the row's weight. */
enum { SUM_DIVERGENCE, SUM_CROSS_ENTROPY, SUM_AGREEMENT, SUM_WEIGHTS, SUM_HIDDEN, SUM_ATTENTION, DISTIL_NUMBERS };

struct Distil {
    /* a model, or a file of its log-probabilities */
    Model *teacher;
    TopFile *file;
    int64_t *places; /* of each training row in the file */
    int32_t *ids;    /* (k) and (k + 1): of one token */
    float *logprobs;
    const Dataset *rows;
    DivergenceArgs args;
    double hidden, attention; /* weights of both losses; 0: none */
    Tensor *projector;        /* (teacher's width, student's width), trained with the student; NULL: none */
    double all_tokens;        /* of the step: tokens of its rows times the row's weight */
    double sums[DISTIL_NUMBERS];
    /* of a batch */
    double *values, *weights;
    int64_t cap_values, cap_weights;
};

/* What of a teacher's pass is compared. */
typedef struct TeacherStates {
    Tensor *hidden; /* NULL: it is a file */
    ShownAttention shown;
} TeacherStates;

/* ---- distil_file.c ---- */

/* Opens the file and finds every training row in it. ST_CONFIG: keys that the file cannot serve; ST_INPUT: another file, or a row that it lacks. */
Status distil_open_file(Trainer *trainer, const RecipeRows *rows, RunPlan *plan, Distil *distil);
/* Sets args->top_ids and top_logprobs for the targets of a batch, in the step's memory. ST_INPUT: a fault in the file; ST_RESOURCE. */
Status distil_read_file(Distil *distil, const Pass *pass, const Batch *batch, DivergenceArgs *args);

/* ---- distil_inner.c ---- */

/* Adds the projector to the student's parameters, and prepares both models to show their attention, as the recipe's weights say. ST_CONFIG: a model
 * without such attention; ST_RESOURCE. */
Status distil_open_inner(Trainer *trainer, Distil *distil);
/* Adds the losses of hidden states and attention to `sums`, and their gradients to the tape. */
Status distil_add_inner(Distil *distil, const Pass *pass, Tensor *hidden, const ShownAttention *shown, const TeacherStates *teacher, LossSums *sums);

#endif
