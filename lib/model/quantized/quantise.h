/* SPDX-License-Identifier: Apache-2.0 */
/* Quantises the weights of a model's linear layers: while it is loaded (ModelOptions.quantise), or into a directory that every command opens.
 *
 *     const Quantise how = {.form = "nf4", .nested = true, .block = 64};
 *     TRY(quantise_name("models/smollm2", &how, arena, &name));  // "smollm2-nf4-5f0e6a1c9b3d7e42"
 *     TRY(quantise_save("models/smollm2", &how, path_join(arena, "runs", name)));
 */
#ifndef TUNE_QUANTISE_H
#define TUNE_QUANTISE_H

#include "lib/model/model.h"

struct Quantise {
    const char *form;           /* nf4, fp4, int8 (as bitsandbytes stores them), or a format of quant.h, such as q4_k */
    size_t n_modules;           /* linear layers by name or the end of their path; 0: all but the head */
    const char *const *modules; /* n_modules */
    bool nested;                /* nf4, fp4: the scales are quantised too */
    int64_t block;              /* nf4, fp4: elements that share a scale, a power of two from 32 to 4096 */
};

/* Replaces the weights of the layers in model->files by quantised ones, in memory. The model's modules are known, its weights are not loaded. A row
 * that is no multiple of a format's block gets the format that llama.cpp takes instead, or stays as stored. ST_CONFIG: a base that is quantised
 * already, a name that matches nothing, weights stored (in, out), a wrong block; ST_INPUT: a value that is not finite; ST_RESOURCE. */
Status quantise_model(Model *model, const Quantise *how);
/* Writes a Hugging Face directory with the same weights, quantised; other tensors and files are copied. nf4, fp4 and int8 are in the layout of
 * bitsandbytes, which transformers reads. The directory appears complete or not at all. Fails as quantise_model, and as writing does. */
Status quantise_save(const char *from, const Quantise *how, const char *to);
/* A name for that directory: the model's name, the form, and a hash of the model's files and of `how`. Reads all weights. ST_INPUT,
 * ST_RESOURCE. */
Status quantise_name(const char *from, const Quantise *how, Arena *arena, const char **name);

#endif
