/* SPDX-License-Identifier: Apache-2.0 */
/* Hints for paths that are no readable model: each says what to do. They are added to the failure just recorded. */
#ifndef TUNE_NOT_A_MODEL_H
#define TUNE_NOT_A_MODEL_H

#include "lib/base/file.h"
#include "lib/base/json.h"

/* There is no such directory. If its name looks like org/name, it is a model of Hugging Face. what: A_MODEL, AN_ADAPTER or the like. */
#define A_MODEL "a model is a directory with config.json and model.safetensors"
#define AN_ADAPTER "an adapter is a directory with adapter_config.json and adapter_model.safetensors"
Status hint_no_directory(Status status, const char *dir, const char *what);
/* A directory without config.json, or without weights: judged by its files. */
Status hint_other_files(Status status, const char *dir);
/* A file of weights of another type, or truncated. */
Status hint_download_again(Status status, const char *path);
/* Whether `name` has the form of Hugging Face's model names: org/name. */
bool is_hub_name(const char *name);

#endif
