/* SPDX-License-Identifier: Apache-2.0 */
/* The directory in the format of compressed-tensors, written decoder layer by decoder layer. Packed codes: a stream of bits in 32-bit words,
 * lowest first, along the inputs; zeros along the outputs. */
#include "lib/deploy/compress/ptq_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/parts.h"

/* ---- which tensors there are ---- */

static const PtqLayer *quantised_layer(const Ptq *ptq, const Module *module) {
    const PtqLayer *layer = module->linear ? &ptq->report->layers[module->linear->index] : NULL;
    return layer && layer->quantised ? layer : NULL;
}

static PtqMatrix *matrix_in_work(const Ptq *ptq, const Module *module) {
    for (size_t i = 0; i < ptq->n_matrices; i++)
        if (ptq->matrices[i].linear == module->linear) return &ptq->matrices[i];
    return NULL;
}

static const StoredTensor *stored_weight(const Ptq *ptq, const Module *module) {
    return stored_find(ptq->model, module->path, module->bare ? NULL : "weight");
}

/* A head that is tied is not written a second time. */
static bool is_second_head(const Ptq *ptq, const Module *module) {
    const Model *model = ptq->model;
    return module == &model->modules[model->n_modules - 1] && model->head == model->embed &&
           stored_find(model, model->modules[0].path, "weight") != NULL;
}

static bool gets_bias(const Ptq *ptq, const Module *module) {
    const int block = module->linear && !module->bias ? ptq_block_of(ptq->model, module->linear, NULL) : -1;
    return block >= 0 && ptq->adds_bias[block];
}

/* "NAME.part" for the stored weight "NAME.weight" */
static const char *name_of(const Ptq *ptq, const StoredTensor *weight, const char *part) {
    const size_t n = strlen(weight->name) - (text_ends_with(weight->name, ".weight") ? strlen(".weight") : 0);
    return arena_printf(ptq->arena, "%.*s.%s", (int)n, weight->name, part);
}

static int64_t words_of(int64_t n, int bits) { return (n * bits + 31) / 32; }

/* ---- declaring ---- */

static Status declare(Ptq *ptq, const char *name, const char *dtype, int64_t element, int n_dims, const int64_t *shape) {
    StoredTensor tensor = {.name = name, .dtype_text = dtype, .n_dims = n_dims, .count = 1};
    if (!name) return ST_RESOURCE;
    for (int i = 0; i < n_dims; i++) {
        tensor.shape[i] = shape[i];
        tensor.count *= shape[i];
    }
    tensor.bytes = (size_t)(tensor.count * element);
    ptq->bytes += tensor.bytes;
    safetensors_declare_as(ptq->writer, &tensor);
    return ST_OK;
}

static const char *dtype_text(DType dtype) { return dtype == DT_BF16 ? "BF16" : dtype == DT_F16 ? "F16" : "F32"; }

static Status declare_parts(Ptq *ptq, const Module *module, const StoredTensor *stored) {
    const Linear *linear = module->linear;
    const Grid grid = ptq_grid(ptq, linear);
    const int64_t out = linear->out, in = linear->in, groups = in / grid.group, element = (int64_t)dtype_bytes(ptq->scales, 1);
    const char *scales = dtype_text(ptq->scales);
    if (grid.kind == GRID_INT8) {
        TRY(declare(ptq, name_of(ptq, stored, "weight"), "I8", 1, 2, (int64_t[]){out, in}));
        TRY(declare(ptq, name_of(ptq, stored, "weight_scale"), scales, element, 2, (int64_t[]){out, 1}));
        return ptq->config->calibrate ? declare(ptq, name_of(ptq, stored, "input_scale"), scales, element, 1, (int64_t[]){1}) : ST_OK;
    }
    TRY(declare(ptq, name_of(ptq, stored, "weight_shape"), "I64", 8, 1, (int64_t[]){2}));
    TRY(declare(ptq, name_of(ptq, stored, "weight_packed"), "I32", 4, 2, (int64_t[]){out, words_of(in, grid.bits)}));
    if (grid.kind == GRID_ASYMMETRIC)
        TRY(declare(ptq, name_of(ptq, stored, "weight_zero_point"), "I32", 4, 2, (int64_t[]){words_of(out, grid.bits), groups}));
    return declare(ptq, name_of(ptq, stored, "weight_scale"), scales, element, 2, (int64_t[]){out, groups});
}

static Status declare_module(Ptq *ptq, const Module *module) {
    const StoredTensor *stored = stored_weight(ptq, module), *bias = module->bias ? stored_find(ptq->model, module->path, "bias") : NULL;
    if (!stored || is_second_head(ptq, module)) return ST_OK;
    ptq->report->original_bytes += stored->bytes + (bias ? bias->bytes : 0);
    if (quantised_layer(ptq, module)) {
        TRY(declare_parts(ptq, module, stored));
    } else {
        safetensors_declare_as(ptq->writer, stored);
        ptq->bytes += stored->bytes;
    }
    if (bias) {
        safetensors_declare_as(ptq->writer, bias);
        ptq->bytes += bias->bytes;
    } else if (gets_bias(ptq, module)) {
        return declare(ptq, name_of(ptq, stored, "bias"), dtype_text(ptq->scales), (int64_t)dtype_bytes(ptq->scales, 1), 1, &module->linear->out);
    }
    return ST_OK;
}

Status ptq_write_begin(Ptq *ptq, const char *made) {
    const Model *model = ptq->model;
    const char *path = path_join(ptq->arena, made, "model.safetensors");
    if (!path) return ST_RESOURCE;
    ptq->bytes = ptq->report->original_bytes = ptq->n_written = 0;
    TRY(safetensors_writer_new(path, &ptq->writer));
    Status status = ST_OK;
    for (size_t i = 0; i < model->n_modules && status == ST_OK; i++) status = declare_module(ptq, &model->modules[i]);
    for (size_t i = 0; i < model->n_passthrough && status == ST_OK; i++) {
        safetensors_declare_as(ptq->writer, model->passthrough[i]);
        ptq->report->original_bytes += model->passthrough[i]->bytes;
        ptq->bytes += model->passthrough[i]->bytes;
    }
    if (status == ST_OK) status = dir_check_space(made, ptq->bytes);
    if (status != ST_OK) safetensors_abandon(ptq->writer);
    ptq->report->bytes = ptq->bytes;
    return status;
}

/* ---- writing ---- */

static void write_bytes(const Ptq *ptq, const StoredTensor *stored) {
    const size_t most = (size_t)8 << 20;
    for (size_t at = 0; at < stored->bytes; at += most) {
        const size_t n = MIN(most, stored->bytes - at);
        safetensors_write(ptq->writer, stored->data + at, n);
        model_drop_pages(ptq->model, stored->data + at, n);
    }
}

/* Packs n codes one after the other, lowest bits first; a code may cross words. */
static void pack_codes(int bits, const uint8_t *codes, int64_t n, uint32_t *words, int64_t word_step) {
    for (int64_t w = 0; w < words_of(n, bits); w++) words[w * word_step] = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t word = i * bits / 32;
        const int shift = (int)(i * bits % 32);
        words[word * word_step] |= (uint32_t)codes[i] << shift;
        if (shift + bits > 32) words[(word + 1) * word_step] |= (uint32_t)codes[i] >> (32 - shift);
    }
}

static Status write_packed(const Ptq *ptq, const PtqMatrix *matrix, int bits, bool zeros) {
    const Codes *codes = &matrix->codes;
    const int64_t words = words_of(codes->in, bits), lines = words_of(codes->out, bits), shape[] = {codes->out, codes->in};
    uint32_t *packed = malloc((size_t)MAX(codes->out * words, lines * codes->n_groups) * sizeof *packed);
    uint8_t *column = malloc((size_t)codes->out);
    if (!packed || !column) {
        free(column);
        free(packed);
        return status_fail(ST_RESOURCE, "no memory for the codes of '%s'", matrix->linear->path);
    }
    safetensors_write(ptq->writer, shape, sizeof shape);
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < codes->out; o++) pack_codes(bits, codes->codes + o * codes->in, codes->in, packed + o * words, 1);
    safetensors_write(ptq->writer, packed, (size_t)(codes->out * words) * sizeof *packed);
    for (int64_t g = 0; g < codes->n_groups && zeros; g++) {
        for (int64_t o = 0; o < codes->out; o++) column[o] = (uint8_t)codes->zeros[o * codes->n_groups + g];
        pack_codes(bits, column, codes->out, packed + g, codes->n_groups);
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

static Status write_matrix(const Ptq *ptq, const PtqMatrix *matrix) {
    const Grid grid = ptq_grid(ptq, matrix->linear);
    const Codes *codes = &matrix->codes;
    TRY(grid.kind == GRID_INT8 ? write_int8(ptq, matrix) : write_packed(ptq, matrix, grid.bits, grid.kind == GRID_ASYMMETRIC));
    safetensors_write_as(ptq->writer, codes->scales, DT_F64, ptq->scales, (size_t)(codes->out * codes->n_groups));
    if (grid.kind != GRID_INT8 || !ptq->config->calibrate) return ST_OK;
    const double scale = (matrix->report->bound > 0 ? matrix->report->bound : 1) / 127;
    safetensors_write_as(ptq->writer, &scale, DT_F64, ptq->scales, 1);
    return ST_OK;
}

static Status write_bias(const Ptq *ptq, const PtqMatrix *matrix, int64_t n, DType dtype) {
    double *zeros = matrix && matrix->bias ? NULL : calloc((size_t)n, sizeof *zeros);
    if (!zeros && !(matrix && matrix->bias)) return status_fail(ST_RESOURCE, "no memory for a bias");
    safetensors_write_as(ptq->writer, zeros ? zeros : matrix->bias, DT_F64, dtype, (size_t)n);
    free(zeros);
    return ST_OK;
}

static Status write_module(Ptq *ptq, const Module *module) {
    const StoredTensor *stored = stored_weight(ptq, module), *bias = module->bias ? stored_find(ptq->model, module->path, "bias") : NULL;
    const PtqMatrix *matrix = matrix_in_work(ptq, module);
    if (!stored || is_second_head(ptq, module)) return ST_OK;
    if (matrix)
        TRY(write_matrix(ptq, matrix));
    else if (module->n_dims == 1 && stored->known && stored->dtype != DT_F64) /* norms may have taken scales */
        safetensors_write_tensor(ptq->writer, *module->weight, stored->dtype);
    else
        write_bytes(ptq, stored);
    if (bias && matrix && matrix->bias) return write_bias(ptq, matrix, module->bias_width, bias->dtype);
    if (bias)
        safetensors_write_tensor(ptq->writer, *module->bias, bias->dtype);
    else if (gets_bias(ptq, module))
        return write_bias(ptq, matrix, module->linear->out, ptq->scales);
    return ST_OK;
}

Status ptq_write_until(Ptq *ptq, int64_t layer) {
    const Model *model = ptq->model;
    size_t end = layer == INT64_MAX ? model->n_modules : 0;
    for (size_t i = 0; i < model->n_modules && layer != INT64_MAX; i++)
        if (ptq_layer_of(model, model->modules[i].path) == layer) end = i + 1;
    for (; ptq->n_written < end; ptq->n_written++) TRY(write_module(ptq, &model->modules[ptq->n_written]));
    for (size_t i = 0; i < model->n_passthrough && layer == INT64_MAX; i++) write_bytes(ptq, model->passthrough[i]);
    return ST_OK;
}

/* ---- config.json ---- */

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

static json_t *make_settings(const Ptq *ptq) {
    return json_pack("{s:s, s:s, s:s, s:o, s:{s:{s:[s], s:o, s:o, s:n}}, s:n}", "quant_method", "compressed-tensors", "format",
                     ptq->method->rounds_inputs ? "int-quantized" : "pack-quantized", "quantization_status", "compressed", "ignore",
                     list_ignored(ptq), "config_groups", "group_0", "targets", "Linear", "weights", weight_settings(ptq), "input_activations",
                     input_settings(ptq), "output_activations", "kv_cache_scheme");
}

static Status write_config(Ptq *ptq, const char *made) {
    const Model *model = ptq->model;
    const char *path = path_join(ptq->arena, made, "config.json");
    json_t *json;
    if (!path) return ST_RESOURCE;
    TRY(model_copy_config(model->dir, made, model->config.stored_dtype, model->head != model->embed, NULL));
    TRY(json_read_config(path, true, &json));
    ptq->settings = make_settings(ptq);
    if (ptq->adds_bias[0]) json_object_set_new(json, "attention_bias", json_true());
    if (ptq->adds_bias[1]) json_object_set_new(json, "mlp_bias", json_true());
    Status status = ptq->settings && json_object_set(json, "quantization_config", ptq->settings) == 0
                        ? config_write(json, model->config.stored_dtype, path)
                        : status_fail(ST_RESOURCE, "out of memory for config.json");
    json_decref(json);
    return status;
}

Status ptq_write_end(Ptq *ptq, const char *made) {
    TRY(safetensors_commit(ptq->writer));
    TRY(write_config(ptq, made));
    return model_copy_files(ptq->model->dir, made);
}

/* ---- quantize.json ---- */

static void write_layer(const PtqLayer *layer, JsonWriter *w) {
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"damp", layer->damp},   {"loss", layer->loss},   {"ratio", layer->ratio},
                   {"bound", layer->bound}, {"error", layer->error}, {"rtn_error", layer->rtn_error}};
    jw_object(w, NULL);
    jw_string(w, "name", layer->path);
    jw_bool(w, "quantised", layer->quantised);
    jw_bool(w, "by_rows", layer->by_rows);
    jw_bool(w, "fell_back", layer->fell_back);
    jw_bool(w, "worse", layer->worse);
    jw_bool(w, "bias_corrected", layer->corrected);
    jw_int(w, "dead_inputs", layer->dead);
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (isfinite(numbers[i].value)) jw_double(w, numbers[i].key, numbers[i].value);
    jw_end_object(w);
}

static void write_comparison(const Comparison *comparison, JsonWriter *w) {
    jw_object(w, "eval");
    jw_double(w, "kl", comparison->kl);
    jw_double(w, "top1", comparison->top1);
    jw_double(w, "loss", comparison->loss);
    jw_double(w, "original_loss", comparison->loss_before);
    jw_double(w, "perplexity", exp(comparison->loss));
    jw_double(w, "original_perplexity", exp(comparison->loss_before));
    jw_int(w, "tokens", comparison->positions);
    jw_end_object(w);
}

void ptq_write_json(const PtqConfig *config, const PtqReport *report, JsonWriter *w) {
    const bool int8 = strcmp(config->method, "int8") == 0;
    jw_object(w, NULL);
    jw_string(w, "method", config->method);
    jw_int(w, "bits", config->bits);
    jw_int(w, "group", report->group ? report->group : -1);
    jw_bool(w, "symmetric", int8 || config->symmetric);
    jw_double(w, "bits_per_weight", report->bits);
    jw_int(w, "bytes", (int64_t)report->bytes);
    jw_int(w, "original_bytes", (int64_t)report->original_bytes);
    jw_int(w, "rows", report->rows);
    jw_int(w, "tokens", report->tokens);
    jw_int(w, "held_back_rows", report->held_rows);
    if (report->evaluated) write_comparison(&report->comparison, w);
    jw_array(w, "layers");
    for (size_t i = 0; i < report->n_layers; i++) write_layer(&report->layers[i], w);
    jw_end_array(w);
    jw_end_object(w);
}
