/* SPDX-License-Identifier: Apache-2.0 */
/* The model that a recipe trains.
 *
 *     Model *model;
 *     TRY(trained_model_open(recipe, runtime, &model));          // base, and the adapter or all weights ready to be trained
 *     ...
 *     TRY(trained_model_save(recipe, model, "runs/a")); // runs/a/adapter or runs/a/model
 */
#ifndef TUNE_TRAINED_MODEL_H
#define TUNE_TRAINED_MODEL_H

#include "lib/comm/comm.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* Opens model.path with the recipe's lora section (a new adapter, or model.adapter trained further); without one, every weight is trained. The
 * caller calls model_free. ST_CONFIG, ST_INPUT; ST_RESOURCE when training every weight needs more memory than there is. */
Status trained_model_open(const Recipe *recipe, Runtime runtime, Model **model);
/* The same for other uses. scores: a reward model, with a score head instead of the head over the vocabulary (ModelOptions.scores); the score head is
 * trained in full and stored with the adapter. comm: the ranks that train it together, NULL: one process; those of a machine share frozen weights
 * (parallel.share_frozen). divides: if parallel.shard divides gradients, these are lent (params_train_lent). */
typedef struct ModelUse {
    bool scores, divides;
    Comm *comm;
} ModelUse;
Status trained_model_open_as(const Recipe *recipe, Runtime runtime, const ModelUse *use, Model **model);
/* Opens a second adapter on the weights of `model`, which must have been opened by the recipe's lora section (see model_share_weights): a new one,
 * or model.adapter trained further. ST_CONFIG, ST_INPUT, ST_RESOURCE. */
Status trained_model_share_weights(const Recipe *recipe, const Model *model, Model **twin);
/* Writes the quantised base of model.quantize as a directory next to that of the run, which every command opens, unless it is there: its name has a
 * hash of the model's files and of the keys. trained_model_open then loads it. Does nothing without model.quantize or `output`. Fails as
 * recipe_quantise and quantise_save. */
Status trained_base_prepare(const Recipe *recipe);
/* The directory of the base that the adapter in `adapter`, a result of the recipe, was trained on: model.path, or with model.quantize the base that
 * adapter_config.json names. In `arena`. ST_INPUT, ST_RESOURCE. */
Status trained_base(const Recipe *recipe, const char *adapter, Arena *arena, const char **base);
/* Copies the chat template into the run when it is not the base model's, since its file may change before the run ends. ST_CONFIG: a resumed run
 * began with another template; failures of chat_template_load; ST_RESOURCE. */
Status trained_template_keep(const Recipe *recipe, const Run *run);
/* Writes the adapter in PEFT's format, or the model as a Hugging Face directory in train.save_dtype, to `dir`, replacing its contents, with the
 * run's chat template. Warns when that dtype is too coarse for the changes that training made. ST_RESOURCE; ST_NUMERIC for a weight beyond the
 * dtype's range. */
Status trained_weights_save(const Recipe *recipe, const Model *model, const char *dir);
/* The same to `run_dir`/adapter or `run_dir`/model. */
Status trained_model_save(const Recipe *recipe, const Model *model, const char *run_dir);

#endif
