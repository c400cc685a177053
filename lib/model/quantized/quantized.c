/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/model/quantized/quantized.h"
#include "lib/model/convert.h"

#include <string.h>

#include "lib/tensor/quant/quant.h"

enum { BLOCK_BYTES = 512 }; /* more than any format has */

/* ---- methods ---- */

static const struct Method {
    const char *text;
    Status (*join)(Joining *joining); /* NULL: refused */
    const char *help;
} methods[] = {
#define METHOD(text, name) {text, quantized_##name, NULL},
#define REFUSED(text, help) {text, NULL, help},
#include "lib/model/quantized/quantized.def"
#undef METHOD
#undef REFUSED
};

/* Older files of bitsandbytes do not name their method. */
static const char *method_text(const json_t *settings) {
    const char *text = json_string_value(json_object_get(settings, "quant_method"));
    bool bits = json_is_true(json_object_get(settings, "load_in_4bit")) || json_is_true(json_object_get(settings, "load_in_8bit"));
    return text ? text : bits ? "bitsandbytes" : "";
}

static const struct Method *method_of(const json_t *settings) {
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (strcmp(methods[i].text, method_text(settings)) == 0) return &methods[i];
    return NULL;
}

bool quantized_is_read(const json_t *settings) {
    const struct Method *method = method_of(settings);
    return method && method->join;
}

Status quantized_hint(Status status, const json_t *settings) {
    const struct Method *method = method_of(settings);
    const char *text = method_text(settings);
    if (method && method->help) return status_hint(status, "its weights are quantised by %s: %s", text, method->help);
    return status_hint(status, "its weights are quantised (%s), which is not supported: use the model that it was made from, in bf16, f16 or f32",
                       *text ? text : "quantization_config");
}

/* ---- for the methods ---- */

Status joining_wrong(const Joining *joining, const char *name, const char *what) {
    return status_fail(ST_INPUT, "cannot read the quantised weight '%s' in '%s': %s", name, joining->dir, what);
}

Status joining_group(const Joining *joining, const char *name, int64_t in, int64_t n_groups, int64_t said, int64_t *group) {
    *group = said < 1 ? in / MAX(n_groups, (int64_t)1) : MIN(said, in);
    if (n_groups > 0 && n_groups <= in && *group > 0 && *group * (n_groups - 1) < in && *group * n_groups >= in) return ST_OK;
    status_fail(ST_INPUT, "cannot read the quantised weight '%s' in '%s': its rows of %lld inputs have %lld scales", name, joining->dir,
                (long long)in, (long long)n_groups);
    return said < 1 ? status_hint(ST_INPUT, "quantization_config has no group size, and the groups are not equal")
                    : status_hint(ST_INPUT, "groups of %lld, as quantization_config says, would have %lld", (long long)said,
                                  (long long)((in - 1) / said + 1));
}

void *joining_alloc(Joining *joining, size_t size) { return arena_zero(joining->file->arena, size); }

const StoredTensor *joining_find(Joining *joining, const char *name, const char *part) {
    Str full = {0};
    str_printf(&full, "%s.%s", name, part);
    const StoredTensor *tensor = weight_file_find(joining->file, str_text(&full));
    if (tensor) joining->taken[tensor - joining->file->tensors] = true;
    str_release(&full);
    return tensor;
}

Status joining_need(Joining *joining, const char *name, const char *part, const char *dtype, int n_dims, const int64_t *shape,
                    const StoredTensor **tensor) {
    *tensor = joining_find(joining, name, part);
    if (!*tensor) return status_fail(ST_INPUT, "tensor '%s.%s' is missing in '%s'", name, part, joining->dir);
    bool right = (dtype ? strcmp((*tensor)->dtype_text, dtype) == 0 : (*tensor)->known && (*tensor)->dtype != DT_I32) && (*tensor)->n_dims == n_dims;
    for (int i = 0; right && i < n_dims; i++) right = (*tensor)->shape[i] == shape[i];
    if (right) return ST_OK;
    Str want = {0};
    for (int i = 0; i < n_dims; i++) str_printf(&want, "%s%lld", i ? "," : "", (long long)shape[i]);
    status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': expected %s of shape (%s)", (*tensor)->name, (*tensor)->file,
                dtype ? dtype : "a float dtype", str_text(&want));
    str_release(&want);
    return ST_INPUT;
}

Status joining_add(Joining *joining, const char *name, int n_dims, const int64_t *shape, const char *text, const StoredTensor *codes, size_t more,
                   ReadRows *read, PackCodes *pack, const void *parts) {
    TRY(arena_array_grow(joining->file->arena, &joining->joined, &joining->cap_joined, joining->n_joined + 1, sizeof *joining->joined));
    StoredTensor *weight = &joining->joined[joining->n_joined++];
    *weight = (StoredTensor){.name = arena_strdup(joining->file->arena, name),
                             .dtype = DT_F32,
                             .known = true,
                             .dtype_text = text,
                             .n_dims = n_dims,
                             .count = 1,
                             .bytes = codes->bytes + more,
                             .file = codes->file,
                             .read = read,
                             .pack = pack,
                             .parts = parts,
                             .codes = codes->data,
                             .codes_bytes = codes->bytes};
    for (int i = 0; i < n_dims; i++) {
        weight->shape[i] = shape[i];
        weight->count *= shape[i];
    }
    return weight->name ? ST_OK : ST_RESOURCE;
}

Status joining_each(Joining *joining, const char *suffix, Status (*join)(Joining *joining, const char *name)) {
    for (size_t i = 0; i < joining->file->n; i++) {
        const char *full = joining->file->tensors[i].name;
        if (!text_ends_with(full, suffix)) continue;
        const char *name = arena_strndup(joining->file->arena, full, strlen(full) - strlen(suffix));
        if (!name) return ST_RESOURCE;
        TRY(join(joining, name));
    }
    return ST_OK;
}

float stored_float(const StoredTensor *tensor, int64_t i) {
    float value;
    convert_elements(tensor->data + dtype_bytes(tensor->dtype, i), tensor->dtype, &value, DT_F32, 1);
    return value;
}

float *stored_floats(const StoredTensor *tensor, const CodeRoom *room) {
    float *values = codes_alloc(room, (size_t)tensor->count * sizeof *values);
    if (values && !codes_filled(room)) convert_elements(tensor->data, tensor->dtype, values, DT_F32, (size_t)tensor->count);
    return values;
}

static uint32_t word_at(const uint8_t *words, int64_t i) {
    uint32_t word;
    memcpy(&word, words + (size_t)i * sizeof word, sizeof word);
    return word;
}

uint32_t stream_code(const uint8_t *words, int64_t stride, int bits, int64_t i) {
    int64_t bit = i * bits, word = bit / 32;
    int shift = (int)(bit % 32);
    uint32_t code = word_at(words, word * stride) >> shift;
    if (shift + bits > 32) code |= word_at(words, (word + 1) * stride) << (32 - shift);
    return code & ((1u << bits) - 1);
}

/* ---- rounding ---- */

bool quantized_round(const StoredTensor *tensor, float *values) {
    const QuantFormat *format = tensor->read || !tensor->known ? NULL : quant_format_of(tensor->dtype);
    if (!format) return tensor->read && bitsandbytes_round(tensor, values);
    const int64_t width = tensor->shape[tensor->n_dims - 1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < tensor->count / width; r++) {
        uint8_t blocks[BLOCK_BYTES];
        for (int64_t at = r * width; at < (r + 1) * width; at += format->block) {
            format->write(values + at, format->block, NULL, blocks);
            format->read(blocks, 1, values + at);
        }
    }
    return true;
}

/* ---- joining ---- */

/* The WeightFile's list without the parts, and with the weights. */
static Status replace_parts(Joining *joining) {
    WeightFile *file = joining->file;
    StoredTensor *tensors = arena_alloc(file->arena, (file->n + joining->n_joined + 1) * sizeof *tensors);
    if (!tensors) return ST_RESOURCE;
    size_t n = 0;
    for (size_t i = 0; i < file->n; i++)
        if (!joining->taken[i]) tensors[n++] = file->tensors[i];
    for (size_t i = 0; i < joining->n_joined; i++) tensors[n++] = joining->joined[i];
    file->tensors = tensors;
    file->n = n;
    return weight_file_index(file);
}

Status joining_run(WeightFile *file, const char *dir, const json_t *settings, const void *context, Status (*join)(Joining *joining)) {
    if (file->n == 0) return ST_OK;
    TRY(weight_file_index(file));
    Joining joining = {.file = file, .dir = dir, .settings = settings, .context = context, .taken = arena_zero(file->arena, file->n)};
    if (!joining.taken) return ST_RESOURCE;
    TRY(join(&joining));
    return replace_parts(&joining);
}

Status quantized_join_as(WeightFile *file, const char *dir, const json_t *settings) {
    const struct Method *method = method_of(settings);
    return method && method->join ? joining_run(file, dir, settings, NULL, method->join) : ST_OK;
}

Status quantized_join(WeightFile *file, const char *dir) {
    const char *path = path_join(file->arena, dir, "config.json");
    json_t *config;
    if (!path) return ST_RESOURCE;
    if (!file_exists(path)) return ST_OK;
    TRY(json_read_config(path, false, &config));
    const json_t *settings = json_object_get(config, "quantization_config");
    if (!settings) settings = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    Status status = json_is_object(settings) ? quantized_join_as(file, dir, settings) : ST_OK;
    json_decref(config);
    return status;
}
