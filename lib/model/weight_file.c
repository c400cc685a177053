/* SPDX-License-Identifier: Apache-2.0 */
/* Opens files of weights of every kind, and finds tensors by name. */
#include "lib/model/weight_file.h"
#include "lib/base/memory.h"
#include "lib/model/convert.h"
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
    if (size >= 4 && memcmp(bytes, "GGUF", 4) == 0) {
        status_fail(ST_INPUT, "cannot read '%s': it is a GGUF file, which is not supported", path);
        return status_hint(ST_INPUT, "take the model as a Hugging Face directory, with config.json and model.safetensors");
    }
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
    if (dir_exists(path)) return safetensors_read_directory(file, path);
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

double stored_get(const StoredTensor *tensor, int64_t i) {
    double value = (double)NAN;
    if (tensor->known) {
        convert_elements(tensor->data + dtype_bytes(tensor->dtype, i), tensor->dtype, &value, DT_F64, 1);
    } else if (strcmp(tensor->dtype_text, "I64") == 0) {
        int64_t whole;
        memcpy(&whole, tensor->data + (size_t)i * sizeof whole, sizeof whole);
        value = (double)whole;
    }
    return value;
}
