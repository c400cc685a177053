/* SPDX-License-Identifier: Apache-2.0 */
/* Supervised fine-tuning: trains an adapter (or model) from a recipe and writes it to the run directory.
 *
 *     TrainResult result;
 *     TRY(sft_run(&(SftConfig){.recipe = recipe}, &result));   // output/adapter/ or output/model/, metrics.jsonl, checkpoints/
 *
 * The loss of an optimiser step is the sum over its trained tokens, each times its row's weight, divided by the sum of these weights (the number of
 * tokens if no row has a weight), so it does not depend on how the step is split. Evaluation is plain cross-entropy over all trained tokens of the
 * held-out rows: no weights, no noise.
 */
#ifndef TUNE_SFT_H
#define TUNE_SFT_H

#include "data/check/check.h"
#include "lib/train/training.h"

/* The plan of a run, known before its first step. */
typedef struct SftPlan {
    DataCounts train, eval;
    const Dataset *train_rows, *eval_rows; /* valid during the run; eval_rows NULL: none */
    const RecipeRows *rows;
    const DataCheck *check; /* the statistics that tune data check shows */
    const char *format;     /* of the training rows */
    int64_t total_steps, largest_batch_tokens;
    double steps_per_epoch;
    int64_t trained_parameters, parameters; /* elements */
    DType compute;
    TrainMemory memory;
    const Model *model;
} SftPlan;
typedef struct SftConfig {
    const Recipe *recipe;
    TrainingOptions options;
    void (*on_plan)(void *context, const SftPlan *plan);          /* before the first step; may be NULL */
    void (*on_progress)(void *context, const Progress *progress); /* may be NULL */
    void *context;
} SftConfig;
/* ST_CONFIG (recipe, target modules, output exists), ST_INPUT (model, rows), ST_RESOURCE (memory, disk), ST_NUMERIC, ST_INTERRUPTED (a checkpoint was
 * saved). */
Status sft_run(const SftConfig *config, TrainResult *result);

/* ---- objectives ---- */

typedef struct SftLoss {
    bool dft;
    double label_smoothing;
} SftLoss;
/* The objective of one trained token as a function of its log-probability and the mean log-probability over the vocabulary, and both derivatives.
 * Source: TRL's losses nll and dft (sft_trainer.py). nll: -(1 - s) logprob - s mean. dft: -p logprob with the probability p held constant; label
 * smoothing does not apply. */
double sft_token_loss(const SftLoss *loss, double logprob, double mean, double *d_logprob, double *d_mean);

#endif
