/* SPDX-License-Identifier: Apache-2.0 */
/* Words for what people have instead of a model that can be read: each says what to do about it. They add the hint to a failure just recorded. */
#ifndef TUNE_NOT_A_MODEL_H
#define TUNE_NOT_A_MODEL_H

#include "lib/model/model.h"

/* There is no such directory. One whose name looks like org/name is at Hugging Face. what: A_MODEL, AN_ADAPTER or the like. */
#define A_MODEL "a model is a directory with config.json and model.safetensors"
#define AN_ADAPTER "an adapter is a directory with adapter_config.json and adapter_model.safetensors"
Status hint_no_directory(Status status, const char *dir, const char *what);
/* A directory without config.json, or without weights: by the files that it has. */
Status hint_other_files(Status status, const char *dir);
/* A file of weights that is not what it says, or ends too early. */
Status hint_download_again(Status status, const char *path);
/* What quantization_config says of the weights, e.g. bitsandbytes. */
Status hint_quantized(Status status, const json_t *quantization_config);
/* Whether `name` is as Hugging Face's models are called: org/name. */
bool is_hub_name(const char *name);

#endif
