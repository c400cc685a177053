/* SPDX-License-Identifier: Apache-2.0 */
/* GPTQ (arXiv 2210.17323) as AutoGPTQ and GPTQModel write it: value = scale * (code - zero). qweight: codes along the inputs, (in * bits / 32, out)
 * words; qzeros: along the outputs, (groups, out * bits / 32); scales: (groups, out); g_idx: the group of each input. Files of checkpoint_format
 * "gptq" hold zero - 1, those of "gptq_v2" the zero. */
#include "lib/base/log.h"
#include "lib/model/quantized/quantized.h"

#include <string.h>

typedef struct Gptq {
    int bits, zero_offset;
    int64_t in, out, group, n_groups;
    const uint8_t *weights, *zeros;
    const StoredTensor *scales;
    const int32_t *groups; /* of each input; NULL: in order */
} Gptq;

static void gptq_rows(const void *parts, int64_t first, int64_t rows, float *values) {
    const Gptq *g = parts;
    int64_t words = g->out * g->bits / 32;
    for (int64_t i = 0; i < g->in; i++) {
        int64_t group = g->groups ? g->groups[i] : i / g->group;
        const uint8_t *zeros = g->zeros + (size_t)(group * words) * 4;
        for (int64_t r = 0; r < rows; r++) {
            int64_t o = first + r;
            int code = (int)stream_code(g->weights + (size_t)o * 4, g->out, g->bits, i);
            int zero = (int)stream_code(zeros, 1, g->bits, o) + g->zero_offset;
            values[r * g->in + i] = stored_float(g->scales, group * g->out + o) * (float)(code - zero);
        }
    }
}

/* The same codes along the inputs. */
static Status gptq_pack(const void *parts, const CodeRoom *room, Packing **packing) {
    const Gptq *g = parts;
    AffineCodes codes = {.name = "gptq",
                         .bits = g->bits,
                         .rows = g->out,
                         .width = g->in,
                         .n_groups = g->n_groups,
                         .line = (g->in * g->bits + 7) / 8,
                         .groups = g->groups,
                         .group = g->group};
    int64_t words = g->out * g->bits / 32;
    uint8_t *lines = codes_alloc(room, (size_t)(g->out * codes.line));
    float *scales = codes_alloc(room, (size_t)(g->out * g->n_groups) * sizeof *scales);
    int16_t *zeros = codes_alloc(room, (size_t)(g->out * g->n_groups) * sizeof *zeros);
    if (!lines || !scales || !zeros) return ST_RESOURCE;
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < (codes_filled(room) ? 0 : g->out); o++) {
        for (int64_t i = 0; i < g->in; i++)
            affine_put(lines + o * codes.line, g->bits, i, stream_code(g->weights + (size_t)o * 4, g->out, g->bits, i));
        for (int64_t k = 0; k < g->n_groups; k++) {
            scales[o * g->n_groups + k] = stored_float(g->scales, k * g->out + o);
            zeros[o * g->n_groups + k] = (int16_t)((int)stream_code(g->zeros + (size_t)(k * words) * 4, 1, g->bits, o) + g->zero_offset);
        }
    }
    codes.codes = lines;
    codes.scales = scales;
    codes.zeros = zeros;
    *packing = packing_of_affine(room->arena, &codes);
    return *packing ? ST_OK : ST_RESOURCE;
}

/* The groups of inputs, checked. */
static Status read_groups(Joining *joining, const char *name, const StoredTensor *list, int64_t n_groups, Gptq *g) {
    if (!list) return ST_OK;
    if (strcmp(list->dtype_text, "I32") != 0 || list->n_dims != 1 || list->shape[0] != g->in)
        return joining_wrong(joining, name, "g_idx is no list of the group of each input");
    int32_t *groups = joining_alloc(joining, (size_t)g->in * sizeof *groups);
    if (!groups) return ST_RESOURCE;
    memcpy(groups, list->data, (size_t)g->in * sizeof *groups);
    for (int64_t i = 0; i < g->in; i++)
        if (groups[i] < 0 || groups[i] >= n_groups) return joining_wrong(joining, name, "g_idx names a group that has no scales");
    g->groups = groups;
    return ST_OK;
}

/* A symmetric file that says "gptq" has zeros of one less than the middle. If all are the middle, it holds the zeros themselves. */
static bool zeros_are_plain(const Joining *joining, const Gptq *g, int64_t n_groups) {
    if (!json_is_true(json_object_get(joining->settings, "sym"))) return false;
    int64_t words = g->out * g->bits / 32;
    for (int64_t group = 0; group < n_groups; group++)
        for (int64_t o = 0; o < g->out; o++)
            if (stream_code(g->zeros + (size_t)(group * words) * 4, 1, g->bits, o) != 1u << (g->bits - 1)) return false;
    return true;
}

static Status join_gptq(Joining *joining, const char *name) {
    const StoredTensor *weights = joining_find(joining, name, "qweight"), *scales, *zeros;
    int64_t bits = json_integer_value(json_object_get(joining->settings, "bits"));
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
        return joining_wrong(joining, name, "'bits' in quantization_config is none of 2, 3, 4 and 8");
    if (strcmp(weights->dtype_text, "I32") != 0 || weights->n_dims != 2 || weights->count == 0 || weights->shape[0] * 32 % bits != 0)
        return joining_wrong(joining, name, "qweight is no matrix of packed codes");
    Gptq *g = joining_alloc(joining, sizeof *g);
    if (!g) return ST_RESOURCE;
    *g = (Gptq){.bits = (int)bits, .in = weights->shape[0] * 32 / bits, .out = weights->shape[1], .weights = weights->data};
    scales = joining_find(joining, name, "scales");
    int64_t n_groups = scales && scales->n_dims == 2 ? scales->shape[0] : 0;
    if (n_groups < 1 || g->out * bits % 32 != 0) return joining_wrong(joining, name, "it has no scales, or its outputs fill no whole words");
    TRY(joining_need(joining, name, "scales", NULL, 2, (const int64_t[]){n_groups, g->out}, &g->scales));
    TRY(joining_need(joining, name, "qzeros", "I32", 2, (const int64_t[]){n_groups, g->out * bits / 32}, &zeros));
    g->zeros = zeros->data;
    g->n_groups = n_groups;
    TRY(read_groups(joining, name, joining_find(joining, name, "g_idx"), n_groups, g));
    if (!g->groups)
        TRY(joining_group(joining, name, g->in, n_groups, json_integer_value(json_object_get(joining->settings, "group_size")), &g->group));
    const char *format = json_string_value(json_object_get(joining->settings, "checkpoint_format"));
    g->zero_offset = !format || strcmp(format, "gptq") == 0 ? 1 : 0;
    if (format && g->zero_offset == 0 && strcmp(format, "gptq_v2") != 0)
        return joining_wrong(joining, name, "'checkpoint_format' in quantization_config is neither gptq nor gptq_v2");
    if (g->zero_offset && zeros_are_plain(joining, g, n_groups)) {
        g->zero_offset = 0;
        if (joining->n_joined == 0)
            log_message(LOG_WARNING, "'%s' says checkpoint_format gptq, but its zeros are those of gptq_v2: they are read as such", joining->dir);
    }
    const char *weight = arena_printf(joining->file->arena, "%s.weight", name);
    if (!weight) return ST_RESOURCE;
    return joining_add(joining, weight, 2, (const int64_t[]){g->out, g->in}, "GPTQ", weights, scales->bytes + zeros->bytes, gptq_rows, gptq_pack, g);
}

Status quantized_gptq(Joining *joining) { return joining_each(joining, ".qweight", join_gptq); }
