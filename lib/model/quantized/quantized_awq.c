/* SPDX-License-Identifier: Apache-2.0 */
/* AWQ (arXiv 2306.00978) as AutoAWQ writes it, version gemm: value = scale * (code - zero). qweight: (in, out / 8) words; qzeros: (groups, out / 8);
 * scales: (groups, out). Nibble i of word j belongs to output 8 j + (0 2 4 6 1 3 5 7)[i]. */
#include "lib/model/quantized/quantized.h"

#include <string.h>

typedef struct Awq {
    int64_t in, out, group, n_groups;
    const uint8_t *weights, *zeros;
    const StoredTensor *scales;
} Awq;

/* The code of output o in a row of words. */
static int awq_code(const uint8_t *words, int64_t o) {
    static const int nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return (int)stream_code(words + (size_t)(o / 8) * 4, 1, 4, nibble[o % 8]);
}

static void awq_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Awq *a = parts;
    size_t row = (size_t)(a->out / 8) * 4;
    for (int64_t i = 0; i < a->in; i++) {
        int64_t group = i / a->group;
        for (int64_t r = 0; r < rows; r++) {
            int64_t o = first + r;
            int code = awq_code(a->weights + (size_t)i * row, o), zero = awq_code(a->zeros + (size_t)group * row, o);
            values[r * a->in + i] = stored_float(a->scales, group * a->out + o) * (float)(code - zero);
        }
    }
}

/* The same codes along the inputs. */
static Status awq_pack(const void *parts, const CodeRoom *room, Packing **packing) {
    const Awq *a = parts;
    AffineCodes codes = {
        .name = "awq", .bits = 4, .rows = a->out, .width = a->in, .n_groups = a->n_groups, .line = (a->in + 1) / 2, .group = a->group};
    size_t row = (size_t)(a->out / 8) * 4;
    uint8_t *lines = codes_alloc(room, (size_t)(a->out * codes.line));
    float *scales = codes_alloc(room, (size_t)(a->out * a->n_groups) * sizeof *scales);
    int16_t *zeros = codes_alloc(room, (size_t)(a->out * a->n_groups) * sizeof *zeros);
    if (!lines || !scales || !zeros) return ST_RESOURCE;
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < (codes_filled(room) ? 0 : a->out); o++) {
        for (int64_t i = 0; i < a->in; i++) affine_put(lines + o * codes.line, 4, i, (unsigned)awq_code(a->weights + (size_t)i * row, o));
        for (int64_t k = 0; k < a->n_groups; k++) {
            scales[o * a->n_groups + k] = stored_float(a->scales, k * a->out + o);
            zeros[o * a->n_groups + k] = (int16_t)awq_code(a->zeros + (size_t)k * row, o);
        }
    }
    codes.codes = lines;
    codes.scales = scales;
    codes.zeros = zeros;
    *packing = packing_of_affine(room->arena, &codes);
    return *packing ? ST_OK : ST_RESOURCE;
}

static Status join_awq(Joining *joining, const char *name) {
    const StoredTensor *weights = joining_find(joining, name, "qweight"), *zeros, *scales = joining_find(joining, name, "scales");
    if (strcmp(weights->dtype_text, "I32") != 0 || weights->n_dims != 2 || weights->count == 0)
        return joining_wrong(joining, name, "qweight is no matrix of packed codes");
    Awq *a = joining_alloc(joining, sizeof *a);
    if (!a) return ST_RESOURCE;
    *a = (Awq){.in = weights->shape[0], .out = weights->shape[1] * 8, .weights = weights->data};
    int64_t n_groups = scales && scales->n_dims == 2 ? scales->shape[0] : 0;
    const json_t *said = json_object_get(joining->settings, "group_size");
    if (!said) said = json_object_get(joining->settings, "q_group_size"); /* of older files */
    TRY(joining_group(joining, name, a->in, n_groups, json_integer_value(said), &a->group));
    a->n_groups = n_groups;
    TRY(joining_need(joining, name, "scales", NULL, 2, (const int64_t[]){n_groups, a->out}, &a->scales));
    TRY(joining_need(joining, name, "qzeros", "I32", 2, (const int64_t[]){n_groups, a->out / 8}, &zeros));
    a->zeros = zeros->data;
    const char *weight = arena_printf(joining->file->arena, "%s.weight", name);
    if (!weight) return ST_RESOURCE;
    return joining_add(joining, weight, 2, (const int64_t[]){a->out, a->in}, "AWQ", weights, scales->bytes + zeros->bytes, awq_rows, awq_pack, a);
}

Status quantized_awq(Joining *joining) {
    const char *version = json_string_value(json_object_get(joining->settings, "version"));
    int64_t bits = json_integer_value(json_object_get(joining->settings, "bits"));
    if (!bits) bits = json_integer_value(json_object_get(joining->settings, "w_bit"));
    if ((!version || strcmp(version, "gemm") == 0 || strcmp(version, "GEMM") == 0) && bits == 4) return joining_each(joining, ".qweight", join_awq);
    status_fail(ST_INPUT, "'%s' is quantised by AWQ with version '%s' and %lld bits: version gemm with 4 bits is read", joining->dir,
                version ? version : "gemm", (long long)bits);
    return status_hint(ST_INPUT, "take the version gemm of the model, or the model that it was made from");
}
