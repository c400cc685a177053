/* SPDX-License-Identifier: Apache-2.0 */
/* The directory, written decoder layer by decoder layer; a format says which tensors a quantised weight has. */
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

/* ---- for formats ---- */

Status ptq_declare(Ptq *ptq, const StoredTensor *weight, const char *part, const char *dtype, int64_t element, int n_dims, const int64_t *shape) {
    const size_t n = strlen(weight->name) - (text_ends_with(weight->name, ".weight") ? strlen(".weight") : 0);
    StoredTensor tensor = {
        .name = arena_printf(ptq->arena, "%.*s.%s", (int)n, weight->name, part), .dtype_text = dtype, .n_dims = n_dims, .count = 1};
    if (!tensor.name) return ST_RESOURCE;
    for (int i = 0; i < n_dims; i++) {
        tensor.shape[i] = shape[i];
        tensor.count *= shape[i];
    }
    tensor.bytes = (size_t)(tensor.count * element);
    ptq->bytes += tensor.bytes;
    safetensors_declare_as(ptq->writer, &tensor);
    return ST_OK;
}

const char *ptq_dtype_text(DType dtype) { return dtype == DT_BF16 ? "BF16" : dtype == DT_F16 ? "F16" : "F32"; }

int64_t ptq_words(int64_t n, int bits) { return (n * bits + 31) / 32; }

void ptq_pack(int bits, const uint8_t *codes, int64_t n, uint32_t *words, int64_t step) {
    for (int64_t w = 0; w < ptq_words(n, bits); w++) words[w * step] = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t word = i * bits / 32;
        const int shift = (int)(i * bits % 32);
        words[word * step] |= (uint32_t)codes[i] << shift;
        if (shift + bits > 32) words[(word + 1) * step] |= (uint32_t)codes[i] >> (32 - shift);
    }
}

static const PtqFormat *const formats[] = {
#define PTQ_FORMAT(name, help) &ptq_format_##name,
#include "lib/deploy/compress/ptq_formats.def"
#undef PTQ_FORMAT
};

const PtqFormat *ptq_format_named(const char *name) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (strcmp(formats[i]->name, name ? name : "ct") == 0) return formats[i];
    return NULL;
}

/* ---- declaring ---- */

static Status declare_module(Ptq *ptq, const Module *module) {
    const StoredTensor *stored = stored_weight(ptq, module), *bias = module->bias ? stored_find(ptq->model, module->path, "bias") : NULL;
    if (!stored || is_second_head(ptq, module)) return ST_OK;
    ptq->report->original_bytes += stored->bytes + (bias ? bias->bytes : 0);
    if (quantised_layer(ptq, module)) {
        TRY(ptq->format->declare(ptq, module->linear, stored));
    } else {
        safetensors_declare_as(ptq->writer, stored);
        ptq->bytes += stored->bytes;
    }
    if (bias) {
        safetensors_declare_as(ptq->writer, bias);
        ptq->bytes += bias->bytes;
    } else if (gets_bias(ptq, module)) {
        return ptq_declare(ptq, stored, "bias", ptq_dtype_text(ptq->biases), (int64_t)dtype_bytes(ptq->biases, 1), 1, &module->linear->out);
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
    for (size_t at = 0; at < stored->bytes; at += PTQ_COPIED_PIECE) {
        const size_t n = MIN((size_t)PTQ_COPIED_PIECE, stored->bytes - at);
        safetensors_write(ptq->writer, stored->data + at, n);
        model_drop_pages(ptq->model, stored->data + at, n);
    }
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
        TRY(ptq->format->write(ptq, matrix));
    else if (module->n_dims == 1 && stored->known && stored->dtype != DT_F64) /* norms may have taken scales */
        safetensors_write_tensor(ptq->writer, *module->weight, stored->dtype);
    else
        write_bytes(ptq, stored);
    if (bias && matrix && matrix->bias) return write_bias(ptq, matrix, module->bias_width, bias->dtype);
    if (bias)
        safetensors_write_tensor(ptq->writer, *module->bias, bias->dtype);
    else if (gets_bias(ptq, module))
        return write_bias(ptq, matrix, module->linear->out, ptq->biases);
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

static Status write_config(Ptq *ptq, const char *made) {
    const Model *model = ptq->model;
    const char *path = path_join(ptq->arena, made, "config.json");
    json_t *json;
    if (!path) return ST_RESOURCE;
    TRY(model_copy_config(model->dir, made, model->config.stored_dtype, model->head != model->embed, NULL));
    TRY(json_read_config(path, true, &json));
    ptq->settings = ptq->format->settings(ptq);
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
    jw_string(w, "format", config->format ? config->format : "ct");
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
