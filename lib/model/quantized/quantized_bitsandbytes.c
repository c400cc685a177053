/* SPDX-License-Identifier: Apache-2.0 */
/* bitsandbytes. 4 bits: NAME.weight is a column of bytes, its absmax, maps and, with double quantisation, nested statistics are tensors of their own,
 * and NAME.weight.quant_state.bitsandbytes__nf4 is JSON in bytes. 8 bits: NAME.weight of int8 with NAME.SCB, the absmax of each row. */
#include "lib/model/quantized/quantized.h"
#include "lib/tensor/quant/quant.h"

#include <stdlib.h>
#include <string.h>

/* ---- 4 bits ---- */

enum { MOST_BLOCK = 1 << 20 }; /* elements, or scales, that share a scale */

typedef struct Four {
    FourBit codes;
    float map[16];
    int64_t count, width;
} Four;

static void four_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Four *four = parts;
    four_bit_read(&four->codes, first * four->width, rows * four->width, values);
}

static Status pack_four(const void *parts, const CodeRoom *room, Packing **packing) {
    const Four *four = parts;
    FourBit codes = four->codes;
    size_t blocks = (size_t)((four->count + codes.block - 1) / codes.block);
    codes.packed = codes_copy(room, codes.packed, (size_t)((four->count + 1) / 2));
    codes.map = codes_copy(room, four->map, sizeof four->map);
    bool whole = codes.packed && codes.map;
    if (codes.absmax) {
        whole &= (codes.absmax = codes_copy(room, codes.absmax, blocks * sizeof(float))) != NULL;
    } else {
        size_t nested = (blocks + (size_t)codes.nested_block - 1) / (size_t)codes.nested_block;
        whole &= (codes.absmax_codes = codes_copy(room, codes.absmax_codes, blocks)) != NULL;
        whole &= (codes.nested_map = codes_copy(room, codes.nested_map, 256 * sizeof(float))) != NULL;
        whole &= (codes.nested_absmax = codes_copy(room, codes.nested_absmax, nested * sizeof(float))) != NULL;
    }
    *packing = whole ? packing_of_four_bits(room->arena, &codes, four->count) : NULL;
    return *packing ? ST_OK : ST_RESOURCE;
}

/* Statistics of `count` elements in blocks; nested if quant_state says so. */
static Status read_statistics(Joining *joining, const char *weight, const json_t *state, int64_t count, Four *four, size_t *bytes) {
    const StoredTensor *absmax, *map, *nested;
    int64_t n_blocks = (count + four->codes.block - 1) / four->codes.block, nested_block = 0;
    double offset = 0;
    TRY(joining_need(joining, weight, "quant_map", "F32", 1, (const int64_t[]){16}, &map));
    memcpy(four->map, map->data, sizeof four->map);
    four->codes.map = four->map;
    TRY(json_get_int(state, weight, "nested_blocksize", &nested_block));
    TRY(json_get_double(state, weight, "nested_offset", &offset));
    bool twice = nested_block != 0;
    TRY(joining_need(joining, weight, "absmax", twice ? "U8" : "F32", 1, &n_blocks, &absmax));
    *bytes += absmax->bytes + map->bytes;
    if (!twice) {
        four->codes.absmax = absmax->data;
        return ST_OK;
    }
    if (nested_block < 1 || nested_block > MOST_BLOCK) return joining_wrong(joining, weight, "wrong 'nested_blocksize' in its quant_state");
    int64_t n_nested = (n_blocks + nested_block - 1) / nested_block;
    four->codes.absmax_codes = absmax->data;
    four->codes.nested_block = nested_block;
    four->codes.offset = (float)offset;
    TRY(joining_need(joining, weight, "nested_quant_map", "F32", 1, (const int64_t[]){256}, &map));
    TRY(joining_need(joining, weight, "nested_absmax", "F32", 1, &n_nested, &nested));
    four->codes.nested_map = map->data;
    four->codes.nested_absmax = nested->data;
    *bytes += map->bytes + nested->bytes;
    return ST_OK;
}

static Status join_four(Joining *joining, const char *weight, const json_t *state, const char *text) {
    const json_t *shape = json_object_get(state, "shape");
    int64_t sizes[2] = {json_integer_value(json_array_get(shape, 0)), json_integer_value(json_array_get(shape, 1))}, block = 0;
    const StoredTensor *packed = weight_file_find(joining->file, weight);
    TRY(json_get_int(state, weight, "blocksize", &block));
    if (json_array_size(shape) != 2 || sizes[0] < 1 || sizes[1] < 1 || sizes[0] > INT32_MAX || sizes[1] > INT32_MAX || block < 1 ||
        block > MOST_BLOCK)
        return joining_wrong(joining, weight, "its quant_state has no 'shape' of two sizes, or no 'blocksize'");
    int64_t count = sizes[0] * sizes[1];
    if (!packed || packed->bytes != (size_t)((count + 1) / 2)) return joining_wrong(joining, weight, "its codes are not as many as its shape says");
    joining->taken[packed - joining->file->tensors] = true;
    Four *four = joining_alloc(joining, sizeof *four);
    if (!four) return ST_RESOURCE;
    four->codes.packed = packed->data;
    four->codes.block = block;
    four->count = count;
    four->width = sizes[1];
    size_t bytes = 0;
    TRY(read_statistics(joining, weight, state, count, four, &bytes));
    return joining_add(joining, weight, 2, sizes, text, packed, bytes, four_rows, pack_four, four);
}

static Status join_state(Joining *joining, const char *weight, const char *part, const char *text) {
    const StoredTensor *bytes = joining_find(joining, weight, part);
    json_t *state;
    TRY(json_read_text((const char *)bytes->data, bytes->bytes, bytes->name, &state));
    Status status = join_four(joining, weight, state, text);
    json_decref(state);
    return status;
}

static Status join_nf4(Joining *joining, const char *weight) { return join_state(joining, weight, "quant_state.bitsandbytes__nf4", "NF4"); }
static Status join_fp4(Joining *joining, const char *weight) { return join_state(joining, weight, "quant_state.bitsandbytes__fp4", "FP4"); }

/* ---- 8 bits ---- */

typedef struct Eight {
    const int8_t *codes;
    const StoredTensor *absmax;
    int64_t rows, width;
} Eight;

static void eight_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Eight *eight = parts;
    for (int64_t r = 0; r < rows; r++)
        int8_row_read(eight->codes + (first + r) * eight->width, eight->width, stored_float(eight->absmax, first + r), values + r * eight->width);
}

static Status pack_eight(const void *parts, const CodeRoom *room, Packing **packing) {
    const Eight *eight = parts;
    const int8_t *codes = codes_copy(room, eight->codes, (size_t)(eight->rows * eight->width));
    const float *absmax = stored_floats(eight->absmax, room);
    *packing = codes && absmax ? packing_of_int8_rows(room->arena, codes, absmax, eight->rows, eight->width) : NULL;
    return *packing ? ST_OK : ST_RESOURCE;
}

static Status join_int8(Joining *joining, const char *name) {
    const StoredTensor *codes = joining_find(joining, name, "weight"), *format = joining_find(joining, name, "weight_format");
    if (!codes || strcmp(codes->dtype_text, "I8") != 0 || codes->n_dims != 2 || codes->count == 0)
        return joining_wrong(joining, name, "it has no matrix of int8");
    if (format && (format->bytes != 1 || format->data[0] != 0)) return joining_wrong(joining, name, "its weight_format is not row");
    Eight *eight = joining_alloc(joining, sizeof *eight);
    if (!eight) return ST_RESOURCE;
    *eight = (Eight){.codes = (const int8_t *)codes->data, .rows = codes->shape[0], .width = codes->shape[1]};
    TRY(joining_need(joining, name, "SCB", "F32", 1, &codes->shape[0], &eight->absmax));
    return joining_add(joining, codes->name, 2, codes->shape, "INT8", codes, eight->absmax->bytes, eight_rows, pack_eight, eight);
}

/* ---- values rounded to the forms ---- */

static bool round_four(const Four *four, bool nf4, int64_t count, float *values) {
    const int64_t block = four->codes.block, n_blocks = (count + block - 1) / block, n_nested = (n_blocks + FOUR_BIT_NESTED - 1) / FOUR_BIT_NESTED;
    uint8_t *packed = malloc((size_t)(count + 1) / 2 + 1), *codes = malloc((size_t)n_blocks + 1);
    float *absmax = malloc((size_t)n_blocks * sizeof *absmax), *nested = malloc((size_t)n_nested * sizeof *nested), map[256], offset = 0;
    const bool there = packed && codes && absmax && nested, twice = !four->codes.absmax;
    if (there) {
        four_bit_write(nf4 ? FOUR_BIT_NF4 : FOUR_BIT_FP4, values, count, block, packed, absmax);
        dynamic_map(map);
        if (twice) four_bit_nest(absmax, n_blocks, codes, nested, &offset);
        FourBit again = {.packed = packed, .map = four->codes.map, .block = block, .absmax = absmax};
        if (twice) again = (FourBit){packed, four->codes.map, block, NULL, codes, map, nested, FOUR_BIT_NESTED, offset};
        four_bit_read(&again, 0, count, values);
    }
    free(packed), free(codes), free(absmax), free(nested);
    return there;
}

bool bitsandbytes_round(const StoredTensor *tensor, float *values) {
    const int64_t width = tensor->shape[1];
    if (tensor->read == four_rows) return round_four(tensor->parts, strcmp(tensor->dtype_text, "NF4") == 0, tensor->count, values);
    int8_t *codes = tensor->read == eight_rows ? malloc((size_t)width) : NULL;
    for (int64_t r = 0; codes && r < tensor->shape[0]; r++)
        int8_row_read(codes, width, int8_row_write(values + r * width, width, codes), values + r * width);
    free(codes);
    return codes != NULL;
}

Status quantized_bitsandbytes(Joining *joining) {
    TRY(joining_each(joining, ".quant_state.bitsandbytes__nf4", join_nf4));
    TRY(joining_each(joining, ".quant_state.bitsandbytes__fp4", join_fp4));
    return joining_each(joining, ".SCB", join_int8);
}
