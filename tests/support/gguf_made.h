/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files that tests make, key by key and tensor by tensor.
 *
 *     Made made = {0};
 *     made_text(&made, "general.architecture", "llama");
 *     made_tensor(&made, "token_embd.weight", 2, (const int64_t[]){50, 64}, 0, values, sizeof values);
 *     const char *path = made_save(&made, folder, "model.gguf");     // `made` is empty again
 */
#ifndef TUNE_GGUF_MADE_H
#define TUNE_GGUF_MADE_H

#include <stdbool.h>

#include "lib/base/str.h"

typedef struct Made {
    Str keys, tensors, data;
    uint64_t n_keys, n_tensors;
} Made;
void made_text(Made *made, const char *key, const char *value);
void made_int(Made *made, const char *key, uint32_t value);
void made_real(Made *made, const char *key, float value);
void made_bool(Made *made, const char *key, bool value);
void made_texts(Made *made, const char *key, const char *const *values, size_t n);
/* shape: the outermost dimension first. type: ggml's number. */
void made_tensor(Made *made, const char *name, int n_dims, const int64_t *shape, uint32_t type, const void *bytes, size_t size);
Str made_finish(Made *made);                                          /* the whole file, which the caller releases; `made` is empty afterwards */
const char *made_save(Made *made, const char *dir, const char *name); /* writes it; the path is as temp_file returns it */

#endif
