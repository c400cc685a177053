/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a recipe that libraries take.
 *
 *     LoraConfig lora;
 *     TRY(recipe_lora(recipe, &lora));
 *     TRY(model_attach_lora(model, &lora, (uint64_t)recipe->seed));
 */
#ifndef TUNE_TRAIN_H
#define TUNE_TRAIN_H

#include "lib/model/model.h"
#include "lib/recipe/recipe.h"
#include "lib/tensor/compute.h"

Status recipe_lora(const Recipe *recipe, LoraConfig *config);
Status recipe_optimizer(const Recipe *recipe, OptimizerConfig *config);
Status recipe_schedule(const Recipe *recipe, int64_t total_steps, ScheduleConfig *config);
/* recipe_schedule without its checks and messages, for a schedule that was checked. */
ScheduleConfig recipe_schedule_over(const Recipe *recipe, int64_t total_steps);
DType recipe_compute(const Recipe *recipe);               /* auto: bf16 only if the processor multiplies bf16 natively */
Checkpointing recipe_checkpointing(const Recipe *recipe); /* train.checkpointing */
/* recipe_unread for each key that the chosen optimiser or schedule does not read and others do, by the lists of optimizers.def and schedules.def;
 * and for train.save_dtype with a lora section. */
Status recipe_check_choices(const Recipe *recipe);

#endif
