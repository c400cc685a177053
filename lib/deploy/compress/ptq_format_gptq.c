/* SPDX-License-Identifier: Apache-2.0 */
/* Directories as GPTQModel and AutoGPTQ write them: qweight, codes along the inputs, (in x bits / 32, out); qzeros, zeros along the outputs, (groups,
 * out x bits / 32); scales, (groups, out) in f16; g_idx, the group of each input. Without zero points the file holds zero - 1, as older programs
 * expect (checkpoint_format gptq), else the zero itself (gptq_v2). */
#include "lib/deploy/compress/ptq_parts.h"

#include <stdlib.h>
#include <string.h>

static Status gptq_check(const Ptq *ptq) {
    if (ptq->method->rounds_inputs) return status_fail(ST_USAGE, "--format gptq has no rounded activations: --format ct has");
    for (size_t i = 0; i < ptq->report->n_layers; i++) {
        const Linear *linear = ptq->model->linears[i];
        if (!ptq->report->layers[i].quantised || (linear->in * ptq->config->bits % 32 == 0 && linear->out * ptq->config->bits % 32 == 0)) continue;
        status_fail(ST_USAGE, "'%s' has %lld x %lld weights: codes of %d bits do not fill the words of --format gptq", linear->path,
                    (long long)linear->out, (long long)linear->in, ptq->config->bits);
        return status_hint(ST_USAGE, "--format ct, the default, has room for them");
    }
    return ST_OK;
}

static Status gptq_declare(Ptq *ptq, const Linear *linear, const StoredTensor *stored) {
    const Grid grid = ptq_grid(ptq, linear);
    const int64_t out = linear->out, in = linear->in, groups = in / grid.group;
    TRY(ptq_declare(ptq, stored, "qweight", "I32", 4, 2, (int64_t[]){ptq_words(in, grid.bits), out}));
    TRY(ptq_declare(ptq, stored, "qzeros", "I32", 4, 2, (int64_t[]){groups, ptq_words(out, grid.bits)}));
    TRY(ptq_declare(ptq, stored, "scales", "F16", 2, 2, (int64_t[]){groups, out}));
    return ptq_declare(ptq, stored, "g_idx", "I32", 4, 1, &in);
}

/* All four parts, in the order of their declaration. */
static void write_parts(const Ptq *ptq, const Codes *codes, const Grid *grid, uint32_t *words, double *scales, uint8_t *zeros, int32_t *group) {
    const int64_t in_words = ptq_words(codes->in, grid->bits), out_words = ptq_words(codes->out, grid->bits);
    const int offset = grid->kind == GRID_SYMMETRIC;
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < codes->out; o++) ptq_pack(grid->bits, codes->codes + o * codes->in, codes->in, words + o, codes->out);
    safetensors_write(ptq->writer, words, (size_t)(in_words * codes->out) * sizeof *words);
    for (int64_t g = 0; g < codes->n_groups; g++) {
        for (int64_t o = 0; o < codes->out; o++) {
            scales[g * codes->out + o] = codes->scales[o * codes->n_groups + g];
            zeros[o] = (uint8_t)(codes->zeros[o * codes->n_groups + g] - offset);
        }
        ptq_pack(grid->bits, zeros, codes->out, words + g * out_words, 1);
    }
    safetensors_write(ptq->writer, words, (size_t)(codes->n_groups * out_words) * sizeof *words);
    safetensors_write_as(ptq->writer, scales, DT_F64, DT_F16, (size_t)(codes->out * codes->n_groups));
    for (int64_t i = 0; i < codes->in; i++) group[i] = (int32_t)(i / codes->group);
    safetensors_write(ptq->writer, group, (size_t)codes->in * sizeof *group);
}

static Status gptq_write(const Ptq *ptq, const PtqMatrix *matrix) {
    const Grid grid = ptq_grid(ptq, matrix->linear);
    const Codes *codes = &matrix->codes;
    const int64_t words = MAX(ptq_words(codes->in, grid.bits) * codes->out, codes->n_groups * ptq_words(codes->out, grid.bits));
    Arena *arena = arena_new(0);
    uint32_t *packed = arena ? arena_alloc(arena, (size_t)words * sizeof *packed) : NULL;
    double *scales = arena ? arena_alloc(arena, (size_t)(codes->out * codes->n_groups) * sizeof *scales) : NULL;
    uint8_t *zeros = arena ? arena_alloc(arena, (size_t)codes->out) : NULL;
    int32_t *group = arena ? arena_alloc(arena, (size_t)codes->in * sizeof *group) : NULL;
    const bool there = packed && scales && zeros && group;
    if (there) write_parts(ptq, codes, &grid, packed, scales, zeros, group);
    arena_free(arena);
    return there ? ST_OK : ST_RESOURCE;
}

/* Layers that are not quantised, as patterns that GPTQModel and vLLM read. */
static json_t *gptq_skipped(const Ptq *ptq) {
    json_t *skipped = json_object();
    for (size_t i = 0; i < ptq->report->n_layers; i++) {
        Str pattern = {0};
        if (ptq->report->layers[i].quantised) continue;
        str_append(&pattern, "-:^");
        for (const char *at = ptq->report->layers[i].path; *at; at++) str_printf(&pattern, *at == '.' ? "\\%c" : "%c", *at);
        str_append(&pattern, "$");
        json_object_set_new(skipped, str_text(&pattern), json_object());
        str_release(&pattern);
    }
    return skipped;
}

static json_t *gptq_settings(const Ptq *ptq) {
    const PtqConfig *config = ptq->config;
    return json_pack("{s:s, s:i, s:I, s:b, s:b, s:f, s:s, s:b, s:b, s:o}", "quant_method", "gptq", "bits", config->bits, "group_size",
                     (json_int_t)(ptq->report->group ? ptq->report->group : -1), "desc_act", 0, "sym", config->symmetric, "damp_percent",
                     config->damp, "checkpoint_format", config->symmetric ? "gptq" : "gptq_v2", "true_sequential", 1, "lm_head", 0, "dynamic",
                     gptq_skipped(ptq));
}

const PtqFormat ptq_format_gptq = {.name = "gptq",
                                   .half_scales = true,
                                   .keeps_zeros = true,
                                   .check = gptq_check,
                                   .declare = gptq_declare,
                                   .write = gptq_write,
                                   .settings = gptq_settings};
