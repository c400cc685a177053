/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 in blocks, as DeepSeek-V3 and Qwen3 are published: weight F8_E4M3, and weight_scale_inv, one for each block of weight_block_size, which is
 * multiplied, in spite of its name. Blocks at the edges are smaller. */
#include "lib/model/quantized/quantized.h"
#include "lib/tensor/quant/quant.h"

#include <string.h>

typedef struct Fp8 {
    const uint8_t *codes;
    const StoredTensor *scales;
    int64_t out, in, block_out, block_in, scales_in;
} Fp8;

static void fp8_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Fp8 *f = parts;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < f->in; i++) {
            float scale = stored_float(f->scales, (first + r) / f->block_out * f->scales_in + i / f->block_in);
            values[r * f->in + i] = e4m3_to_float(f->codes[(first + r) * f->in + i]) * scale;
        }
}

static Status fp8_pack(const void *parts, const CodeRoom *room, Packing **packing) {
    const Fp8 *f = parts;
    const uint8_t *codes = codes_copy(room, f->codes, (size_t)(f->out * f->in));
    const float *scales = stored_floats(f->scales, room);
    *packing = codes && scales ? packing_of_fp8(room->arena, &(Fp8Codes){f->out, f->in, f->block_out, f->block_in, codes, scales}) : NULL;
    return *packing ? ST_OK : ST_RESOURCE;
}

static Status join_fp8(Joining *joining, const char *name) {
    const StoredTensor *codes = joining_find(joining, name, "weight");
    const json_t *block = json_object_get(joining->settings, "weight_block_size");
    int64_t sizes[2] = {json_integer_value(json_array_get(block, 0)), json_integer_value(json_array_get(block, 1))};
    if (!codes || strcmp(codes->dtype_text, "F8_E4M3") != 0 || codes->n_dims != 2 || codes->count == 0)
        return joining_wrong(joining, name, "it is no matrix of F8_E4M3");
    if (json_array_size(block) != 2 || sizes[0] < 1 || sizes[1] < 1 || sizes[0] > INT32_MAX || sizes[1] > INT32_MAX)
        return joining_wrong(joining, name, "quantization_config has no 'weight_block_size' of two sizes");
    Fp8 *f = joining_alloc(joining, sizeof *f);
    if (!f) return ST_RESOURCE;
    int64_t down = (codes->shape[0] + sizes[0] - 1) / sizes[0], across = (codes->shape[1] + sizes[1] - 1) / sizes[1];
    *f = (Fp8){.codes = codes->data, .out = codes->shape[0], .in = codes->shape[1], .block_out = sizes[0], .block_in = sizes[1], .scales_in = across};
    TRY(joining_need(joining, name, "weight_scale_inv", NULL, 2, (const int64_t[]){down, across}, &f->scales));
    return joining_add(joining, codes->name, 2, codes->shape, "FP8", codes, f->scales->bytes, fp8_rows, fp8_pack, f);
}

Status quantized_fp8(Joining *joining) { return joining_each(joining, ".weight_scale_inv", join_fp8); }
