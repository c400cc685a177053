/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl with rl.algorithm: ilql: implicit Q-learning on tokens, offline, from rows with rewards. The model's adapter learns the rows' tokens,
 * weighted by their advantage; heads on its hidden states learn Q and V by Bellman updates; decoding adds beta x advantage to the logits. Source:
 * Snell et al. 2022, arXiv 2206.11871.
 *
 *     TRY(ilql_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime, .on_progress = show, .context = screen}, &result));
 *     // writes output/adapter or output/model, and output/ilql_heads.safetensors
 */
#ifndef TUNE_ILQL_H
#define TUNE_ILQL_H

#include "lib/train/training.h"
#include "rl/offline/ilql_heads.h"
#include "rl/offline/ilql_loss.h"
#include "rl/offline/offline_rows.h"

/* Runs from the checkpoint (or the start) to train.max_steps steps (or train.epochs passes over the rows) of train.batch_size x
 * gradient_accumulation_steps rows each. ST_CONFIG, ST_INPUT, ST_RESOURCE; ST_INTERRUPTED with a checkpoint saved; ST_NUMERIC: a loss or gradient
 * that is not finite. */
Status ilql_run(const TrainingConfig *config, TrainResult *result);

#endif
