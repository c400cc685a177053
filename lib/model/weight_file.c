/* SPDX-License-Identifier: Apache-2.0 */
/* Opens files of weights of every kind, and finds tensors by name. */
#include "lib/model/weight_file.h"
#include "lib/base/memory.h"
#include "lib/comm/host_memory.h"
#include "lib/model/convert.h"
#include "lib/model/gguf/gguf_model.h"
#include "lib/model/quantized/quantized.h"
#include "lib/model/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- for readers ---- */

/* Both arrays double when their length is a power of two. */
static Status room_for_file(WeightFile *file) {
    const size_t n = file->n_files, cap = n ? 2 * n : 1;
    if (n & (n - 1)) return ST_OK;
    const char **files = arena_alloc(file->arena, cap * sizeof *files);
    Mapping *mappings = arena_alloc(file->arena, cap * sizeof *mappings);
    if (!files || !mappings) return ST_RESOURCE;
    if (n) memcpy(files, file->files, n * sizeof *files);
    if (n) memcpy(mappings, file->mappings, n * sizeof *mappings);
    file->files = files;
    file->mappings = mappings;
    return ST_OK;
}

Status weight_file_map(WeightFile *file, const char *path, Mapping *mapping) {
    TRY(room_for_file(file));
    TRY(file_map(path, mapping));
    file->files[file->n_files] = path;
    file->mappings[file->n_files++] = *mapping;
    return ST_OK;
}

StoredTensor *weight_file_add(WeightFile *file, size_t n) {
    StoredTensor *tensors = NULL;
    size_t size;
    if (size_mul(file->n + n, sizeof *tensors, &size)) tensors = arena_zero(file->arena, size);
    if (!tensors) return NULL;
    if (file->n) memcpy(tensors, file->tensors, file->n * sizeof *tensors);
    file->tensors = tensors;
    file->n += n;
    return tensors + (file->n - n);
}

static int by_name(const void *left, const void *right) {
    return strcmp((*(StoredTensor *const *)left)->name, (*(StoredTensor *const *)right)->name);
}

Status weight_file_index(WeightFile *file) {
    file->by_name = arena_alloc(file->arena, (file->n + 1) * sizeof *file->by_name);
    if (!file->by_name) return ST_RESOURCE;
    for (size_t i = 0; i < file->n; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, file->n, sizeof *file->by_name, by_name);
    for (size_t i = 1; i < file->n; i++) {
        const StoredTensor *a = file->by_name[i - 1], *b = file->by_name[i];
        if (strcmp(a->name, b->name) == 0) return status_fail(ST_INPUT, "tensor '%s' is in '%s' and in '%s'", b->name, a->file, b->file);
    }
    return ST_OK;
}

/* By the kind that the first bytes show. */
static Status read_bytes(WeightFile *file, const char *path, const uint8_t *bytes, size_t size) {
    if (size >= 4 && memcmp(bytes, "GGUF", 4) == 0) return gguf_weights_parse(file, bytes, size, path);
    return safetensors_read(file, path, bytes, size);
}

Status weight_file_add_file(WeightFile *file, const char *path) {
    Mapping mapping;
    TRY(weight_file_map(file, path, &mapping));
    return read_bytes(file, path, mapping.data, mapping.size);
}

/* ---- opening ---- */

static Status weights_new(const char *path, WeightFile **file) {
    Arena *arena = arena_new(0);
    *file = arena ? arena_zero(arena, sizeof **file) : NULL;
    if (*file) {
        (*file)->arena = arena;
        return ST_OK;
    }
    arena_free(arena);
    return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
}

static Status read_path(WeightFile *file, const char *path) {
    if (dir_exists(path)) {
        TRY(safetensors_read_directory(file, path));
        return quantized_join(file, path);
    }
    if (gguf_is(path)) return gguf_weights_open(file, path);
    const char *name = arena_strdup(file->arena, path);
    return name ? weight_file_add_file(file, name) : ST_RESOURCE;
}

static Status keep_if(Status status, WeightFile **file) {
    if (status == ST_OK && !(*file)->by_name) status = weight_file_index(*file);
    if (status == ST_OK) return ST_OK;
    weight_file_close(*file);
    *file = NULL;
    return status;
}

Status weight_file_open(const char *path, WeightFile **file) {
    TRY(weights_new(path, file));
    return keep_if(read_path(*file, path), file);
}

Status weight_file_parse(const void *bytes, size_t size, const char *path, WeightFile **file) {
    TRY(weights_new(path, file));
    return keep_if(read_bytes(*file, path, bytes, size), file);
}

void weight_file_close(WeightFile *file) {
    if (!file) return;
    for (size_t i = 0; i < file->n_files; i++) file_unmap(&file->mappings[i]);
    arena_free(file->arena);
}

/* ---- looking ---- */

const StoredTensor *weight_file_find(const WeightFile *file, const char *name) {
    StoredTensor wanted = {.name = name}, *key = &wanted, **found = bsearch(&key, file->by_name, file->n, sizeof *file->by_name, by_name);
    return found ? *found : NULL;
}

const Mapping *weight_file_mapping(const WeightFile *file, const void *data) {
    for (size_t i = 0; i < file->n_files; i++) {
        const Mapping *mapping = &file->mappings[i];
        if ((const uint8_t *)data >= mapping->data && (const uint8_t *)data < mapping->data + mapping->size) return mapping;
    }
    return NULL;
}

bool stored_is_quantised(const StoredTensor *tensor) { return tensor->read || (tensor->known && dtype_block(tensor->dtype) > 1); }

/* Rows of a weight that is put together, in pieces that fit into a cache. */
static Status read_rows(const StoredTensor *tensor, int64_t first, int64_t rows, DType to, uint8_t *out) {
    int64_t width = tensor->shape[tensor->n_dims - 1], step = MAX((1 << 14) / width, 1);
    bool full = false;
#pragma omp parallel for schedule(static) reduction(|| : full) if (rows > step)
    for (int64_t at = 0; at < rows; at += step) {
        int64_t n = MIN(step, rows - at);
        float *values = malloc((size_t)(n * width) * sizeof *values);
        if (values) tensor->read(tensor->parts, first + at, n, values);
        if (values) convert_elements(values, DT_F32, out + dtype_bytes(to, at * width), to, (size_t)(n * width));
        full = full || !values;
        free(values);
    }
    return full ? status_fail(ST_RESOURCE, "no memory for rows of tensor '%s'", tensor->name) : ST_OK;
}

Status stored_read(const StoredTensor *tensor, int64_t first, int64_t n, DType to, void *out) {
    if (!tensor->read) {
        convert_elements(tensor->data + dtype_bytes(tensor->dtype, first), tensor->dtype, out, to, (size_t)n);
        return ST_OK;
    }
    int64_t width = tensor->shape[tensor->n_dims - 1];
    ASSERT(first % width == 0 && n % width == 0, "elements %lld, %lld of rows of %lld", (long long)first, (long long)n, (long long)width);
    return read_rows(tensor, first / width, n / width, to, out);
}

bool weight_file_is_quantised(const WeightFile *file) {
    for (size_t i = 0; i < file->n; i++)
        if (stored_is_quantised(&file->tensors[i])) return true;
    return false;
}

double weight_file_describe(const WeightFile *file, Str *text) {
    double bits = 0, weights = 0;
    bool first = true;
    for (size_t i = 0; i < file->n; i++) {
        const StoredTensor *tensor = &file->tensors[i];
        size_t count = 0, earlier = 0;
        for (size_t k = 0; k < file->n; k++) {
            bool same = strcmp(file->tensors[k].dtype_text, tensor->dtype_text) == 0;
            count += same;
            earlier += same && k < i;
        }
        bits += 8 * (double)tensor->bytes;
        weights += (double)tensor->count;
        if (earlier) continue;
        str_printf(text, "%s%zu %s", first ? "" : ", ", count, tensor->dtype_text);
        first = false;
    }
    double each = weights > 0 ? bits / weights : 0;
    str_printf(text, "; %.2f bits a weight", each);
    return each;
}

void *codes_alloc(const CodeRoom *room, size_t bytes) {
    return room->shared ? host_memory_take(room->shared, bytes) : arena_alloc(room->arena, MAX(bytes, (size_t)1));
}

bool codes_filled(const CodeRoom *room) { return room->shared && !host_memory_fills(room->shared); }

void *codes_copy(const CodeRoom *room, const void *from, size_t bytes) {
    void *copy = codes_alloc(room, bytes);
    if (copy && !codes_filled(room)) memcpy(copy, from, bytes);
    return copy;
}

double stored_get(const StoredTensor *tensor, int64_t i) {
    double value = (double)NAN;
    int64_t width = tensor->n_dims ? tensor->shape[tensor->n_dims - 1] : 1;
    if (tensor->read) {
        float *row = malloc((size_t)width * sizeof *row);
        if (row) tensor->read(tensor->parts, i / width, 1, row);
        if (row) value = (double)row[i % width];
        free(row);
    } else if (tensor->known) {
        enum { LARGEST_BLOCK = 256 };
        double values[LARGEST_BLOCK];
        int64_t block = dtype_block(tensor->dtype);
        convert_elements(tensor->data + dtype_bytes(tensor->dtype, i - i % block), tensor->dtype, values, DT_F64, (size_t)block);
        value = values[i % block];
    } else if (strcmp(tensor->dtype_text, "I64") == 0) {
        int64_t whole;
        memcpy(&whole, tensor->data + (size_t)i * sizeof whole, sizeof whole);
        value = (double)whole;
    }
    return value;
}
