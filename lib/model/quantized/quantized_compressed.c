/* SPDX-License-Identifier: Apache-2.0 */
/* compressed-tensors, the format of llm-compressor: value = scale * (code - zero). pack-quantized: codes plus 2^(bits - 1), lowest bits first, in
 * words along the inputs, weight_packed (out, words), zeros packed along the outputs, weight_zero_point (words, groups). int-quantized,
 * float-quantized and naive-quantized: one int8 or F8_E4M3 for each weight. weight_scale: (out, groups), (out, 1) or (1). */
#include "lib/base/log.h"
#include "lib/model/quantized/quantized.h"
#include "lib/tensor/quant/quant.h"

#include <string.h>

typedef struct Compressed {
    int bits;    /* packed codes; 0: one byte each */
    bool padded; /* words hold whole codes only, as older releases write them: of bits that do not divide 32 */
    bool floats;
    int64_t in, out, n_groups, group;
    const uint8_t *codes;
    const StoredTensor *scales, *zeros; /* zeros NULL: 0 */
    const int32_t *groups;              /* of each input; NULL: in order */
} Compressed;

static int64_t padded_words(int64_t n, int bits) { return (n - 1) / (32 / bits) + 1; }
static int64_t dense_words(int64_t n, int bits) { return (n * bits - 1) / 32 + 1; }

/* Code i of a row of words. */
static int packed_code(const Compressed *c, const uint8_t *words, int64_t stride, int64_t i) {
    const int bits = c->bits, per_word = 32 / bits;
    uint32_t word;
    if (!c->padded) return (int)stream_code(words, stride, bits, i);
    memcpy(&word, words + (size_t)(i / per_word * stride) * sizeof word, sizeof word);
    return (int)(word >> (i % per_word * bits) & ((1u << bits) - 1));
}

static int64_t words_for(const Compressed *c, int64_t n) { return c->padded ? padded_words(n, c->bits) : dense_words(n, c->bits); }
static int64_t row_words(const Compressed *c) { return c->bits ? words_for(c, c->in) : 0; }

static int zero_of(const Compressed *c, int64_t o, int64_t group) {
    if (c->bits) return c->zeros ? packed_code(c, c->zeros->data + (size_t)group * 4, c->n_groups, o) : 1 << (c->bits - 1);
    return c->zeros ? (int8_t)c->zeros->data[c->zeros->count == 1 ? 0 : o * c->n_groups + group] : 0;
}

static void compressed_row(const Compressed *c, int64_t o, float *values) {
    int64_t words = row_words(c), known = -1;
    float scale = 0;
    int zero = 0;
    for (int64_t i = 0; i < c->in; i++) {
        int64_t group = c->groups ? c->groups[i] : i / c->group;
        if (group != known) {
            scale = stored_float(c->scales, c->scales->count == 1 ? 0 : o * c->n_groups + group);
            zero = zero_of(c, o, group);
            known = group;
        }
        if (c->bits)
            values[i] = scale * (float)(packed_code(c, c->codes + (size_t)(o * words) * 4, 1, i) - zero);
        else if (c->floats)
            values[i] = scale * e4m3_to_float(c->codes[o * c->in + i]);
        else
            values[i] = scale * (float)((int8_t)c->codes[o * c->in + i] - zero);
    }
}

static void compressed_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Compressed *c = parts;
    for (int64_t r = 0; r < rows; r++) compressed_row(c, first + r, values + r * c->in);
}

static int code_of(const Compressed *c, int64_t o, int64_t i) {
    return c->bits ? packed_code(c, c->codes + (size_t)(o * row_words(c)) * 4, 1, i) : c->codes[o * c->in + i];
}

static Status compressed_pack_affine(const Compressed *c, float *scales, const CodeRoom *room, Packing **packing) {
    AffineCodes codes = {.name = c->bits ? "packed" : "int8",
                         .bits = c->bits ? c->bits : 8,
                         .rows = c->out,
                         .width = c->in,
                         .n_groups = c->n_groups,
                         .is_signed = c->bits == 0,
                         .scales = scales,
                         .zero = c->zeros || !c->bits ? 0 : 1 << (c->bits - 1),
                         .groups = c->groups,
                         .group = c->group};
    codes.line = (c->in * codes.bits + 7) / 8;
    uint8_t *lines = codes_alloc(room, (size_t)(c->out * codes.line));
    int16_t *zeros = c->zeros ? codes_alloc(room, (size_t)(c->out * c->n_groups) * sizeof *zeros) : NULL;
    if (!lines || (c->zeros && !zeros)) return ST_RESOURCE;
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < (codes_filled(room) ? 0 : c->out); o++) {
        for (int64_t i = 0; i < c->in; i++) affine_put(lines + o * codes.line, codes.bits, i, (unsigned)code_of(c, o, i));
        for (int64_t k = 0; zeros && k < c->n_groups; k++) zeros[o * c->n_groups + k] = (int16_t)zero_of(c, o, k);
    }
    codes.codes = lines;
    codes.zeros = zeros;
    *packing = packing_of_affine(room->arena, &codes);
    return *packing ? ST_OK : ST_RESOURCE;
}

static Status compressed_pack_floats(const Compressed *c, const float *scales, const CodeRoom *room, Packing **packing) {
    const uint8_t *codes = codes_copy(room, c->codes, (size_t)(c->out * c->in));
    *packing = codes ? packing_of_fp8(room->arena, &(Fp8Codes){c->out, c->in, 1, c->group, codes, scales}) : NULL;
    return *packing ? ST_OK : ST_RESOURCE;
}

static Status compressed_pack(const void *parts, const CodeRoom *room, Packing **packing) {
    const Compressed *c = parts;
    float *scales = codes_alloc(room, (size_t)(c->out * c->n_groups) * sizeof *scales);
    if (!scales) return ST_RESOURCE;
    for (int64_t i = 0; !codes_filled(room) && i < c->out * c->n_groups; i++) scales[i] = stored_float(c->scales, c->scales->count == 1 ? 0 : i);
    return c->floats ? compressed_pack_floats(c, scales, room, packing) : compressed_pack_affine(c, scales, room, packing);
}

/* The bits of packed codes: the group of the configuration that fits this width. */
static int packed_bits(const Joining *joining, int64_t in, int64_t words) {
    const char *name;
    json_t *group;
    json_object_foreach(json_object_get(joining->settings, "config_groups"), name, group) {
        json_int_t bits = json_integer_value(json_object_get(json_object_get(group, "weights"), "num_bits"));
        if (bits >= 2 && bits <= 8 && (dense_words(in, (int)bits) == words || padded_words(in, (int)bits) == words)) return (int)bits;
    }
    return 0;
}

static Status read_order(Joining *joining, const char *name, Compressed *c) {
    const StoredTensor *list = joining_find(joining, name, "weight_g_idx");
    if (!list) return ST_OK;
    if (strcmp(list->dtype_text, "I32") != 0 || list->count != c->in) return joining_wrong(joining, name, "weight_g_idx is no list of groups");
    int32_t *groups = joining_alloc(joining, (size_t)c->in * sizeof *groups);
    if (!groups) return ST_RESOURCE;
    memcpy(groups, list->data, (size_t)c->in * sizeof *groups);
    for (int64_t i = 0; i < c->in; i++)
        if (groups[i] < 0 || groups[i] >= c->n_groups) return joining_wrong(joining, name, "weight_g_idx names a group that has no scale");
    c->groups = groups;
    return ST_OK;
}

/* The group size in quantization_config that gives this number of groups, or any that it has; 0: there is none. */
static int64_t group_size(const Joining *joining, int64_t in, int64_t n_groups) {
    const char *name;
    json_t *group;
    int64_t found = 0;
    json_object_foreach(json_object_get(joining->settings, "config_groups"), name, group) {
        const int64_t size = json_integer_value(json_object_get(json_object_get(group, "weights"), "group_size"));
        if (size > 0) found = size;
        if (size > 0 && (in - 1) / size + 1 == n_groups) break;
    }
    return n_groups == 1 ? 0 : found; /* one scale for a row or for all: other strategies */
}

/* Scales and zeros, once in, out and the codes are known. */
static Status read_grid(Joining *joining, const char *name, Compressed *c) {
    const StoredTensor *scales = joining_find(joining, name, "weight_scale");
    bool one = scales && scales->count == 1, known = scales && scales->known && scales->dtype != DT_I32;
    c->n_groups = one ? 1 : known && scales->n_dims == 2 && scales->shape[0] == c->out ? scales->shape[1] : 0;
    if (!known || c->n_groups < 1 || c->n_groups > c->in) return joining_wrong(joining, name, "its weight_scale is missing or of another shape");
    c->scales = scales;
    TRY(joining_group(joining, name, c->in, c->n_groups, group_size(joining, c->in, c->n_groups), &c->group));
    c->zeros = joining_find(joining, name, "weight_zero_point");
    if (!c->zeros) return ST_OK;
    int64_t rows = c->bits ? words_for(c, c->out) : c->out;
    bool fits =
        strcmp(c->zeros->dtype_text, c->bits ? "I32" : "I8") == 0 && (c->zeros->count == rows * c->n_groups || (!c->bits && c->zeros->count == 1));
    return fits ? ST_OK : joining_wrong(joining, name, "its weight_zero_point is of another dtype or shape");
}

static Status add_weight(Joining *joining, const char *name, const char *text, const StoredTensor *codes, Compressed *c) {
    TRY(read_grid(joining, name, c));
    TRY(read_order(joining, name, c));
    static const char *const unused[] = {"input_scale", "input_zero_point", "output_scale", "weight_shape"};
    for (size_t i = 0; i < COUNT_OF(unused); i++) joining_find(joining, name, unused[i]); /* of activations, which stay floats */
    const char *weight = arena_printf(joining->file->arena, "%s.weight", name);
    if (!weight) return ST_RESOURCE;
    bool reordered_floats = c->floats && c->groups;
    return joining_add(joining, weight, 2, (const int64_t[]){c->out, c->in}, text, codes, c->scales->bytes, compressed_rows,
                       reordered_floats ? NULL : compressed_pack, c);
}

static Status join_packed(Joining *joining, const char *name) {
    const StoredTensor *packed = joining_find(joining, name, "weight_packed"), *shape;
    int64_t sizes[2];
    TRY(joining_need(joining, name, "weight_shape", "I64", 1, (const int64_t[]){2}, &shape));
    memcpy(sizes, shape->data, sizeof sizes);
    bool fits = strcmp(packed->dtype_text, "I32") == 0 && packed->n_dims == 2 && packed->count > 0 && packed->shape[0] == sizes[0] && sizes[0] > 0 &&
                sizes[1] > 0 && sizes[1] <= packed->shape[1] * 16;
    int bits = fits ? packed_bits(joining, sizes[1], packed->shape[1]) : 0;
    if (!bits) return joining_wrong(joining, name, "weight_packed, weight_shape and 'num_bits' in quantization_config do not fit together");
    Compressed *c = joining_alloc(joining, sizeof *c);
    if (!c) return ST_RESOURCE;
    *c =
        (Compressed){.bits = bits, .padded = packed->shape[1] != dense_words(sizes[1], bits), .out = sizes[0], .in = sizes[1], .codes = packed->data};
    return add_weight(joining, name, "PACKED", packed, c);
}

static Status join_bytes(Joining *joining, const char *name) {
    const StoredTensor *codes = joining_find(joining, name, "weight");
    if (!codes) return ST_OK; /* weight_scale of a packed weight */
    bool floats = strcmp(codes->dtype_text, "F8_E4M3") == 0;
    if ((!floats && strcmp(codes->dtype_text, "I8") != 0) || codes->n_dims != 2 || codes->count == 0)
        return joining_wrong(joining, name, "it is no matrix of I8 or F8_E4M3");
    Compressed *c = joining_alloc(joining, sizeof *c);
    if (!c) return ST_RESOURCE;
    *c = (Compressed){.floats = floats, .out = codes->shape[0], .in = codes->shape[1], .codes = codes->data};
    return add_weight(joining, name, floats ? "FP8" : "INT8", codes, c);
}

static void tell_of_activations(const Joining *joining) {
    const char *name;
    json_t *group;
    json_object_foreach(json_object_get(joining->settings, "config_groups"), name, group) {
        if (!json_is_object(json_object_get(group, "input_activations"))) continue;
        log_message(LOG_WARNING, "'%s' was made for activations that are quantised as well: here they stay floats", joining->dir);
        return;
    }
}

Status quantized_compressed(Joining *joining) {
    static const char *const known[] = {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense"};
    const char *format = json_string_value(json_object_get(joining->settings, "format"));
    bool read = !format;
    for (size_t i = 0; i < COUNT_OF(known); i++) read |= format && strcmp(format, known[i]) == 0;
    if (!read) {
        status_fail(ST_INPUT, "'%s' has quantised weights in the format '%s' of compressed-tensors, which is not supported", joining->dir, format);
        return status_hint(ST_INPUT, "known: pack-quantized, int-quantized, float-quantized; else take the model that it was made from");
    }
    tell_of_activations(joining);
    TRY(joining_each(joining, ".weight_packed", join_packed));
    return joining_each(joining, ".weight_scale", join_bytes);
}
