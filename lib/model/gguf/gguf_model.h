/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files as models: metadata as config.json, tensors under their names in Hugging Face checkpoints. */
#ifndef TUNE_GGUF_MODEL_H
#define TUNE_GGUF_MODEL_H

#include "lib/base/gguf.h"
#include "lib/model/family.h"

/* An architecture: a line of gguf_archs.def. */
typedef struct GgufArch {
    const char *name, *model_type, *class_name; /* general.architecture; of config.json; in transformers */
    bool permuted;                              /* rows of q and k are in the order of neighbouring pairs */
    float norms;                                /* the file's norm weights are Hugging Face's plus this */
    bool biased;                                /* config.json says attention_bias */
    bool experts;                               /* its expert_count is above 0 */
    int64_t gating;                             /* its expert_gating_func; 0: any */
} GgufArch;
/* Finds the file's architecture. ST_INPUT: one that is not supported. */
Status gguf_arch_find(Gguf *gguf, const GgufArch **arch);

/* The config.json of the Hugging Face model that the file was made from, as far as the decoder needs it. The caller calls json_decref. ST_INPUT: an
 * architecture or key that is not supported, a missing or wrong value. */
Status gguf_config_json(const char *path, json_t **config);
Status gguf_config_build(Gguf *gguf, json_t **config); /* the same for an open file */
/* Adds the tensors of a GGUF file, or of the files of a split model, with Hugging Face's names, shapes, order of rows and values. A tensor whose rows
 * or values differ from the file's is a copy; the others stay mapped. Tensors whose values config.json contains are left out. ST_INPUT: an unknown
 * type, bytes beyond the file's end, overlaps. */
Status gguf_weights_open(WeightFile *file, const char *path);
/* For tests: one file's bytes in memory, which the caller owns and which must outlive `file`. */
Status gguf_weights_parse(WeightFile *file, const void *bytes, size_t size, const char *path);

/* The float32 values of a tensor, in `arena`. ST_INPUT: a wrong type, or too few bytes. For the short lists that belong to the configuration. */
Status gguf_tensor_floats(const Gguf *gguf, const GgufTensor *tensor, Arena *arena, float **values);
const GgufTensor *gguf_tensor_find(const Gguf *gguf, const char *name); /* NULL: there is none */
/* Replaces tensors of the file that are parts of one weight of the family's checkpoints, or have another order of dimensions. A weight with a
 * quantised part keeps the mapped codes if it is of experts; other ones become values when they are loaded. ST_INPUT: parts that do not fit
 * together. */
Status gguf_join(WeightFile *file, const ModelFamily *family, const char *path);
/* How many layers at the end of the file predict further tokens; they are not read. */
Status gguf_prediction_layers(Gguf *gguf, const GgufArch *arch, int64_t *n_layers, int64_t *extra);
/* Writes tokenizer.json and tokenizer_config.json to `dir`; nothing if the file has no tokenizer. Fails as gguf_tokenizer_json does, and if a file
 * cannot be written. */
Status gguf_copy_files(const char *path, const char *dir);

#endif
