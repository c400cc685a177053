/* SPDX-License-Identifier: Apache-2.0 */
/* tune rl with rl.algorithm: ilql: implicit Q-learning on tokens, offline, from rows with rewards. The model's adapter learns the rows' tokens,
 * weighted by their advantage; heads on its hidden states learn Q and V by Bellman updates; decoding adds beta x advantage to the logits. Source:
 * Snell et al. 2022, arXiv 2206.11871.
 *
 *     TRY(ilql_run(&(IlqlRunConfig){.recipe = recipe, .on_progress = show, .context = screen}, &result));
 *     // writes output/adapter or output/model, and output/ilql_heads.safetensors
 */
#ifndef TUNE_ILQL_H
#define TUNE_ILQL_H

#include "lib/train/training.h"
#include "rl/offline/ilql_heads.h"
#include "rl/offline/ilql_loss.h"
#include "rl/offline/offline_rows.h"

typedef struct IlqlPlan {
    size_t rows;
    int64_t tokens, trained_tokens, longest, dropped, total_steps, parameters, trained_parameters;
    double mean_reward;
    const Dataset *table; /* table of the rows */
    DType compute;
    TrainMemory memory;
    const Model *model;
} IlqlPlan;
typedef struct IlqlProgress {
    int64_t step, total_steps;
    double loss, advantage, tokens_per_second, seconds_left;
} IlqlProgress;
typedef struct IlqlRunConfig {
    const Recipe *recipe;
    TrainingOptions options;
    void (*on_plan)(void *context, const IlqlPlan *plan);             /* may be NULL */
    void (*on_progress)(void *context, const IlqlProgress *progress); /* may be NULL */
    void *context;
} IlqlRunConfig;
typedef struct IlqlResult {
    int64_t steps;
    double first_loss, last_loss, seconds;
    bool already_finished;
} IlqlResult;

/* Runs from the checkpoint (or the start) to train.max_steps steps (or train.epochs passes over the rows) of train.batch_size x
 * gradient_accumulation_steps rows each. ST_CONFIG, ST_INPUT, ST_RESOURCE; ST_INTERRUPTED with a checkpoint saved; ST_NUMERIC: a loss or gradient
 * that is not finite. */
Status ilql_run(const IlqlRunConfig *config, IlqlResult *result);

#endif
