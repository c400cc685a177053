/* SPDX-License-Identifier: Apache-2.0 */
/* Converts parts of a recipe into the structs that libraries take. Results borrow the recipe's texts.
 *
 *     LoraConfig lora;
 *     TRY(recipe_lora(recipe, &lora));
 *     TRY(model_attach_lora(model, &lora, (uint64_t)recipe->seed));
 */
#ifndef TUNE_TRAIN_H
#define TUNE_TRAIN_H

#include "lib/model/model.h"
#include "lib/train/accumulator.h"
#include "lib/recipe/recipe.h"
#include "lib/tensor/compute.h"

/* How model.quantize says that frozen weights are quantised; *how is not changed without it. ST_CONFIG: no lora section, modules that cannot be
 * combined. */
Status recipe_quantise(const Recipe *recipe, Quantise *how);
Status recipe_lora(const Recipe *recipe, LoraConfig *config);           /* ST_CONFIG: targets or ranks that are not possible; ST_RESOURCE */
Status recipe_optimizer(const Recipe *recipe, OptimizerConfig *config); /* ST_CONFIG: an unknown optimiser */
/* The schedule over total_steps steps. Warns if the warmup takes all of them. ST_CONFIG: an unknown schedule. */
Status recipe_schedule(const Recipe *recipe, int64_t total_steps, ScheduleConfig *config);
/* recipe_schedule without its checks and messages, for a schedule that was checked. */
ScheduleConfig recipe_schedule_over(const Recipe *recipe, int64_t total_steps);
/* parallel.shard. */
ShardKind recipe_shard(const Recipe *recipe);
/* How gradients travel between ranks: parallel.bucket, overlap and reduce_dtype. Lanes, shards and models are for the caller to add. */
AccumulatorConfig recipe_division(const Recipe *recipe, Comm *comm);
/* The ranks that have frozen weights together: comm, or NULL with parallel.share_frozen: none. */
Comm *recipe_sharing(const Recipe *recipe, Comm *comm);
DType recipe_compute(const Recipe *recipe);               /* auto: bf16 only if the processor multiplies bf16 natively */
Checkpointing recipe_checkpointing(const Recipe *recipe); /* train.checkpointing */
/* Calls recipe_unread for each key that the recipe sets and that only other optimisers or schedules read; and for train.save_dtype if there is a lora
 * section. ST_CONFIG: model.activations, of which training takes only exact; parallel.reduce_dtype: bf16 with a way to
 * add that rounds at each rank. */
Status recipe_check_choices(const Recipe *recipe);

#endif
