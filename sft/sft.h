/* SPDX-License-Identifier: Apache-2.0 */
/* Supervised fine-tuning: a recipe in, a trained adapter (or model) in the run directory out.
 *
 *     TrainResult result;
 *     TRY(sft_run(&(SftConfig){.recipe = recipe}, &result));   // output/adapter/ or output/model/, metrics.jsonl, checkpoints/
 *
 * Losses are sums over trained tokens, each times its row's weight, divided by the sum of these weights (1 unless a row says otherwise: the number of
 * tokens) over the whole optimiser step, so they do not depend on how a step is split. Evaluation is plain cross-entropy over all labelled tokens: no
 * weights, no noise.
 */
#ifndef TUNE_SFT_H
#define TUNE_SFT_H

#include "data/check/check.h"
#include "lib/train/training.h"

/* What a run will do, known before its first step. */
typedef struct SftPlan {
    DataCounts train, eval;
    const Dataset *train_rows, *eval_rows; /* while the run lasts; eval_rows NULL: none */
    const RecipeRows *rows;
    const DataCheck *check; /* what tune data check shows */
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
/* Fails: ST_CONFIG (recipe, target modules, output taken), ST_INPUT (model, rows), ST_RESOURCE (memory, disk), ST_NUMERIC, ST_INTERRUPTED (checkpoint
 * saved). */
Status sft_run(const SftConfig *config, TrainResult *result);

/* ---- objectives ---- */

typedef struct SftLoss {
    bool dft;
    double label_smoothing;
} SftLoss;
/* Objective of one trained token from its log-probability and the mean log-probability over the vocabulary, and its derivatives by both. Source:
 * TRL's losses nll and dft (sft_trainer.py). nll: -(1 - s) logprob - s mean. dft: -p logprob with the probability p held constant; it takes no label
 * smoothing. */
double sft_token_loss(const SftLoss *loss, double logprob, double mean, double *d_logprob, double *d_mean);

#endif
