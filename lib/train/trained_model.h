/* SPDX-License-Identifier: Apache-2.0 */
/* The model that a recipe trains.
 *
 *     Model *model;
 *     TRY(trained_model_open(recipe, &model));          // base, and the adapter or all weights ready to be trained
 *     ...
 *     TRY(trained_model_save(recipe, model, "runs/a")); // runs/a/adapter or runs/a/model
 */
#ifndef TUNE_TRAINED_MODEL_H
#define TUNE_TRAINED_MODEL_H

#include "lib/train/train.h"

/* model.path with the recipe's lora section (a new adapter, or model.adapter trained further) or, without one, with every weight trained. ST_CONFIG,
 * ST_INPUT, ST_RESOURCE when all weights are trained and more memory is needed than there is. The caller calls model_free. */
Status trained_model_open(const Recipe *recipe, Model **model);
/* The same as a reward model: with a score instead of the head over the vocabulary (ModelOptions.scores), trained whole and stored with the adapter.
 */
Status trained_model_open_scores(const Recipe *recipe, Model **model);
/* A second adapter on the weights of `model`, which is one of the recipe's lora section (see model_share_weights): a new one, or model.adapter
 * trained further. ST_CONFIG, ST_INPUT, ST_RESOURCE. */
Status trained_model_share_weights(const Recipe *recipe, const Model *model, Model **twin);
/* Keeps the chat template of a run with its checkpoints, where it is not just the base's: its file may be another one when the run ends. ST_CONFIG: a
 * resumed run began with another; faults of chat_template_load; ST_RESOURCE. */
Status trained_template_keep(const Recipe *recipe, const Run *run);
/* Writes the adapter as PEFT, or the model as Hugging Face's directory in train.save_dtype, to `dir`, in place of what is there; with the chat
 * template that the run keeps. A warning says when that dtype is too coarse for what was learned. ST_RESOURCE; ST_NUMERIC for a weight beyond the
 * dtype's range. */
Status trained_weights_save(const Recipe *recipe, const Model *model, const char *dir);
/* The same to `run_dir`/adapter or `run_dir`/model. */
Status trained_model_save(const Recipe *recipe, const Model *model, const char *run_dir);

#endif
