/* What the files of lib/model share beyond model.h. */
#ifndef TUNE_PARTS_H
#define TUNE_PARTS_H

#include "lib/model/model.h"

/* Layers, modules and linear layers of model->config, without tensors. The last module is the head, or with `scores` the score instead of it. */
Status model_build(Model *model, bool scores);
/* ST_INPUT, with both shapes, unless the stored tensor is of a float dtype and this shape. */
Status stored_check(const StoredTensor *stored, int n_dims, const int64_t *shape);
/* ST_INPUT when the tensor, which came from `file`, holds a NaN or an infinity. */
Status tensor_check_finite(const Tensor *tensor, const char *name, const char *file);
/* A config.json of weights that are stored in `dtype`, which `json` says under the key (dtype or torch_dtype) that it has. */
Status config_write(json_t *json, DType dtype, const char *path);

#endif
