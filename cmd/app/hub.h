/* SPDX-License-Identifier: Apache-2.0 */
/* Finds models by their Hugging Face names. */
#ifndef TUNE_HUB_H
#define TUNE_HUB_H

#include "lib/recipe/recipe.h"

/* Replaces org/name by its folder in the Hugging Face cache (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface/hub) and prints a line that says so.
 * Leaves *model unchanged if it is NULL, an existing path, or not in the cache. The folder's name is in the arena. */
Status model_find(Arena *arena, const char **model);
/* The same for every recipe key that names a model: model.path, rewards, teachers. command_recipe calls it. */
Status recipe_models_find(Recipe *recipe);
/* The same for an argument. ST_INPUT if it looks like org/name and is neither a path nor in the cache; the hint is the command that downloads it.
 * command_parse calls it for MODEL arguments and for options that take the DIR of a model. */
Status argument_model_find(Arena *arena, const char **model);
Status argument_adapter_find(Arena *arena, const char **adapter);

#endif
