/* SPDX-License-Identifier: Apache-2.0 */
/* Hints for paths that are no readable model. Each function adds to the failure `status`, which was just recorded, what the user can do, and returns
 * status. */
#ifndef TUNE_NOT_A_MODEL_H
#define TUNE_NOT_A_MODEL_H

#include "lib/base/file.h"
#include "lib/base/json.h"

/* For a directory that does not exist. If its name looks like org/name, the hint says how to download it from Hugging Face. what: A_MODEL,
 * AN_ADAPTER or the like. */
#define A_MODEL "a model is a directory with config.json and model.safetensors, or a .gguf file"
#define AN_ADAPTER "an adapter is a directory with adapter_config.json and adapter_model.safetensors"
Status hint_no_directory(Status status, const char *dir, const char *what);
/* For a directory without config.json, or without weights: the hint follows from the files in it. */
Status hint_other_files(Status status, const char *dir);
/* For a file of weights that is of another type, or truncated. */
Status hint_download_again(Status status, const char *path);
/* Whether `name` has the form of Hugging Face's model names: org/name. */
bool is_hub_name(const char *name);

#endif
