/* SPDX-License-Identifier: Apache-2.0 */
/* Supervised fine-tuning: trains an adapter (or model) from a recipe and writes it to the run directory.
 *
 *     TrainResult result;
 *     TRY(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &result));   // output/adapter/ or output/model/, and metrics.jsonl
 *
 * The loss of an optimiser step is the sum over its trained tokens, each times its row's weight, divided by the sum of these weights (the number of
 * tokens if no row has a weight), so it does not depend on how the step is split. Evaluation is plain cross-entropy over all trained tokens of the
 * held-out rows: no weights, no noise.
 */
#ifndef TUNE_SFT_H
#define TUNE_SFT_H

#include "lib/train/training.h"

/* Fails as trainer_run does. The plan's value "conversations" is the number of training rows that are conversations. */
Status sft_run(const TrainingConfig *config, TrainResult *result);

typedef struct SftLoss {
    bool dft;
    double label_smoothing;
} SftLoss;
/* The objective of one trained token as a function of its log-probability and the mean log-probability over the vocabulary, and both derivatives.
 * Source: TRL's losses nll and dft (sft_trainer.py). nll: -(1 - s) logprob - s mean. dft: -p logprob with the probability p held constant; label
 * smoothing does not apply. */
double sft_token_loss(const SftLoss *loss, double logprob, double mean, double *d_logprob, double *d_mean);

#endif
