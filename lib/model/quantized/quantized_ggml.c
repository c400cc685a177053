/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of GGUF's types in a Hugging Face directory, as quantise.c writes them: NAME is a matrix of bytes, a row of blocks for each row of the
 * weight, and `types` in quantization_config has NAME's format. */
#include "lib/model/quantized/quantized.h"
#include "lib/tensor/quant/quant.h"

#include <string.h>

static Status join_blocks(Joining *joining, const char *name, const char *type) {
    const QuantFormat *format = type ? quant_format_named(type) : NULL;
    const StoredTensor *blocks = weight_file_find(joining->file, name);
    if (!format) return joining_wrong(joining, name, "its format in 'types' is not known");
    if (!blocks) return status_fail(ST_INPUT, "tensor '%s' is missing in '%s'", name, joining->dir);
    if (strcmp(blocks->dtype_text, "U8") != 0 || blocks->n_dims != 2 || blocks->count == 0 || blocks->shape[1] % format->bytes != 0)
        return joining_wrong(joining, name, "it has no rows of whole blocks");
    const int64_t per_row = blocks->shape[1] / format->bytes, shape[2] = {blocks->shape[0], per_row * format->block};
    joining->taken[blocks - joining->file->tensors] = true;
    TRY(joining_add(joining, name, 2, shape, format->name, blocks, 0, NULL, NULL, NULL));
    StoredTensor *weight = &joining->joined[joining->n_joined - 1];
    weight->dtype = format->dtype;
    weight->data = blocks->data;
    return ST_OK;
}

Status quantized_ggml(Joining *joining) {
    const json_t *types = json_object_get(joining->settings, "types");
    const char *name;
    json_t *type;
    json_object_foreach((json_t *)types, name, type) TRY(join_blocks(joining, name, json_string_value(type)));
    return ST_OK;
}
