/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of lib/model share, in addition to model.h. */
#ifndef TUNE_PARTS_H
#define TUNE_PARTS_H

#include "lib/model/model.h"

/* Makes layers, modules and linear layers of model->config in model->arena, without tensors. The last module is the head, with `scores` the score.
 * ST_RESOURCE. */
Status model_build(Model *model, bool scores);
/* The path in the checkpoint of the part that has the path `part` in the family's own files (they differ in a wrapped model). In model->arena, or
 * `part` itself. NULL: out of memory, or part is NULL. */
const char *part_path(const Model *model, const char *part);
/* Builds the model of model->config, which the caller has read, and loads the weights in model->dir. */
Status model_load_weights(Model *model, const ModelOptions *options);
/* The checkpoint's tensor "path.kind" (kind NULL: "path"), also without the prefix that checkpoints of base models omit. NULL: there is none. */
const StoredTensor *stored_find(const Model *model, const char *path, const char *kind);
/* A model of its files and modules, without weights; the caller calls model_free. ST_INPUT, ST_RESOURCE. */
Status model_outline(const char *dir, Model **model);
/* ST_INPUT, with both shapes, unless the stored tensor is of a float dtype and this shape. */
Status stored_check(const StoredTensor *stored, int n_dims, const int64_t *shape);
/* ST_INPUT if the tensor, which came from `file`, contains a NaN or an infinity. */
Status tensor_check_finite(const Tensor *tensor, const char *name, const char *file);
bool config_knows_family(const char *model_type);
bool config_key_is_harmless(const char *key); /* this key never changes the decoder's result */
/* A config.json for weights stored in `dtype`, which is set in `json` under its existing key (dtype or torch_dtype). */
Status config_write(json_t *json, DType dtype, const char *path);

/* ---- adapters ---- */

#define PEFT_PREFIX "base_model.model." /* before the path of a module in adapter_model.safetensors */
enum { MAX_KINDS = 32 };
/* The distinct last components of the linear layers' paths: "q_proj", "k_proj", ...; at most `cap`. */
size_t linear_kinds(const Model *model, const char **names, size_t cap);

/* The path by which PEFT names the pair of a layer of all experts together: the module that has the parameters, or its base_layer for the inner one
 * of two. both: the adapter has pairs of gate_up_proj and of down_proj there. In `arena`; NULL: out of memory. */
const char *together_path(const Linear *linear, bool both, Arena *arena);
/* Whether the adapter of `config` has pairs of both layers of all experts of the block that `linear` is of. */
bool together_has_both(const Model *model, const LoraConfig *config, const Linear *linear);

typedef struct AdapterSettings {
    LoraConfig lora;
    const char *base;           /* base_model_name_or_path, "" if missing */
    bool tied;                  /* ensure_weight_tying */
    const char *excluded_regex; /* exclude_modules: a regex, or names */
    size_t n_excluded;
    const char **excluded;
    size_t n_layers; /* layers_to_transform; 0: all */
    int64_t *layers;
    size_t n_layers_patterns; /* layers_pattern: the path component before a layer's number; 0: anything */
    const char **layers_patterns;
} AdapterSettings;
/* The contents of the file of the adapter in `dir`, in `arena`. ST_INPUT: no adapter, or an unsupported kind, with its key. Unknown keys are a
 * warning. */
Status adapter_settings_read(const char *dir, Arena *arena, AdapterSettings *settings);
/* The key because of which the linear layer gets no branch; NULL: it gets one. */
const char *adapter_left_out_by(const AdapterSettings *settings, const Linear *linear);
Status adapter_decides(const AdapterSettings *settings, const char *path); /* ST_CONFIG if a pattern takes too many steps to decide */

#endif
