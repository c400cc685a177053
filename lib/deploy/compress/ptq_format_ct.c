/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of compressed-tensors. Packed codes: a stream of bits in 32-bit words, lowest first, along the inputs; zeros along the outputs. */
#include "lib/deploy/compress/ptq_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

static Status ct_declare(Ptq *ptq, const Linear *linear, const StoredTensor *stored) {
    const Grid grid = ptq_grid(ptq, linear);
    const int64_t out = linear->out, in = linear->in, groups = in / grid.group, element = (int64_t)dtype_bytes(ptq->scales, 1);
    const char *scales = ptq_dtype_text(ptq->scales);
    if (grid.kind == GRID_INT8) {
        TRY(ptq_declare(ptq, stored, "weight", "I8", 1, 2, (int64_t[]){out, in}));
        TRY(ptq_declare(ptq, stored, "weight_scale", scales, element, 2, (int64_t[]){out, 1}));
        return ptq->config->calibrate ? ptq_declare(ptq, stored, "input_scale", scales, element, 1, (int64_t[]){1}) : ST_OK;
    }
    TRY(ptq_declare(ptq, stored, "weight_shape", "I64", 8, 1, (int64_t[]){2}));
    TRY(ptq_declare(ptq, stored, "weight_packed", "I32", 4, 2, (int64_t[]){out, ptq_words(in, grid.bits)}));
    if (grid.kind == GRID_ASYMMETRIC) TRY(ptq_declare(ptq, stored, "weight_zero_point", "I32", 4, 2, (int64_t[]){ptq_words(out, grid.bits), groups}));
    return ptq_declare(ptq, stored, "weight_scale", scales, element, 2, (int64_t[]){out, groups});
}

static Status write_packed(const Ptq *ptq, const PtqMatrix *matrix, int bits, bool zeros) {
    const Codes *codes = &matrix->codes;
    const int64_t words = ptq_words(codes->in, bits), lines = ptq_words(codes->out, bits), shape[] = {codes->out, codes->in};
    uint32_t *packed = malloc((size_t)MAX(codes->out * words, lines * codes->n_groups) * sizeof *packed);
    uint8_t *column = malloc((size_t)codes->out);
    if (!packed || !column) {
        free(column);
        free(packed);
        return status_fail(ST_RESOURCE, "no memory for the codes of '%s'", matrix->linear->path);
    }
    safetensors_write(ptq->writer, shape, sizeof shape);
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < codes->out; o++) ptq_pack(bits, codes->codes + o * codes->in, codes->in, packed + o * words, 1);
    safetensors_write(ptq->writer, packed, (size_t)(codes->out * words) * sizeof *packed);
    for (int64_t g = 0; g < codes->n_groups && zeros; g++) {
        for (int64_t o = 0; o < codes->out; o++) column[o] = (uint8_t)codes->zeros[o * codes->n_groups + g];
        ptq_pack(bits, column, codes->out, packed + g, codes->n_groups);
    }
    if (zeros) safetensors_write(ptq->writer, packed, (size_t)(lines * codes->n_groups) * sizeof *packed);
    free(column);
    free(packed);
    return ST_OK;
}

static Status write_int8(const Ptq *ptq, const PtqMatrix *matrix) {
    const Codes *codes = &matrix->codes;
    int8_t *row = malloc((size_t)codes->in);
    if (!row) return status_fail(ST_RESOURCE, "no memory for the codes of '%s'", matrix->linear->path);
    for (int64_t o = 0; o < codes->out; o++) {
        for (int64_t i = 0; i < codes->in; i++) row[i] = (int8_t)(codes->codes[o * codes->in + i] - codes->zeros[o]);
        safetensors_write(ptq->writer, row, (size_t)codes->in);
    }
    free(row);
    return ST_OK;
}

static Status ct_write(const Ptq *ptq, const PtqMatrix *matrix) {
    const Grid grid = ptq_grid(ptq, matrix->linear);
    const Codes *codes = &matrix->codes;
    TRY(grid.kind == GRID_INT8 ? write_int8(ptq, matrix) : write_packed(ptq, matrix, grid.bits, grid.kind == GRID_ASYMMETRIC));
    safetensors_write_as(ptq->writer, codes->scales, DT_F64, ptq->scales, (size_t)(codes->out * codes->n_groups));
    if (grid.kind != GRID_INT8 || !ptq->config->calibrate) return ST_OK;
    const double scale = (matrix->report->bound > 0 ? matrix->report->bound : 1) / 127;
    safetensors_write_as(ptq->writer, &scale, DT_F64, ptq->scales, 1);
    return ST_OK;
}

/* ---- settings ---- */

static json_t *list_ignored(const Ptq *ptq) {
    json_t *ignored = json_array();
    for (size_t i = 0; i < ptq->report->n_layers; i++)
        if (!ptq->report->layers[i].quantised) json_array_append_new(ignored, json_string(ptq->report->layers[i].path));
    json_array_append_new(ignored, json_string(ptq->model->modules[ptq->model->n_modules - 1].path));
    return ignored;
}

static json_t *weight_settings(const Ptq *ptq) {
    const PtqConfig *config = ptq->config;
    const bool int8 = ptq->method->rounds_inputs, row = ptq->report->group == 0;
    json_t *weights = json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", int8 ? 8 : config->bits, "type", "int", "symmetric",
                                int8 || config->symmetric, "strategy", row ? "channel" : "group", "dynamic", 0);
    json_object_set_new(weights, "group_size", row ? json_null() : json_integer(ptq->report->group));
    json_object_set_new(weights, "actorder", config->act_order && strcmp(ptq->method->name, "gptq") == 0 ? json_string("weight") : json_null());
    return weights;
}

static json_t *input_settings(const Ptq *ptq) {
    if (!ptq->method->rounds_inputs) return json_null();
    const bool fixed = ptq->config->calibrate != NULL;
    return json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", 8, "type", "int", "symmetric", 1, "strategy", fixed ? "tensor" : "token", "dynamic",
                     !fixed);
}

static json_t *ct_settings(const Ptq *ptq) {
    return json_pack("{s:s, s:s, s:s, s:o, s:{s:{s:[s], s:o, s:o, s:n}}, s:n}", "quant_method", "compressed-tensors", "format",
                     ptq->method->rounds_inputs ? "int-quantized" : "pack-quantized", "quantization_status", "compressed", "ignore",
                     list_ignored(ptq), "config_groups", "group_0", "targets", "Linear", "weights", weight_settings(ptq), "input_activations",
                     input_settings(ptq), "output_activations", "kv_cache_scheme");
}

const PtqFormat ptq_format_ct = {.name = "ct", .declare = ct_declare, .write = ct_write, .settings = ct_settings};
