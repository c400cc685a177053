/* SPDX-License-Identifier: Apache-2.0 */
/* Models by their names at Hugging Face. */
#ifndef TUNE_HUB_H
#define TUNE_HUB_H

#include "lib/recipe/recipe.h"

/* org/name that is no path here, and is in the Hugging Face cache (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface/hub), becomes the folder there, and a
 * line says so; anything else stays as it is. *model NULL: nothing. */
Status model_find(Arena *arena, const char **model);
/* The same for every key of a recipe that names a model, such as model.path, reward's and teachers'. command_recipe does it. */
Status recipe_models_find(Recipe *recipe);
/* The same for an argument; ST_INPUT with the command that downloads it where it looks like org/name and is neither here nor in the cache.
 * command_parse does it to MODEL and the like, and to options that take the DIR of a model. */
Status argument_model_find(Arena *arena, const char **model);
Status argument_adapter_find(Arena *arena, const char **adapter);

#endif
