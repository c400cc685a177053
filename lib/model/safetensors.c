/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors (github.com/huggingface/safetensors, "Format"): files are mapped, and headers are untrusted input that is checked before any
 * tensor is used. */
#include "lib/model/safetensors.h"
#include "lib/base/json.h"
#include "lib/base/log.h"
#include "lib/base/memory.h"
#include "lib/model/not_a_model.h"

#include <stdlib.h>
#include <string.h>

static const size_t HEADER_LIMIT = 100 * 1000 * 1000;

typedef struct StoredType {
    const char *name;
    size_t size;
    bool known;
    DType dtype;
} StoredType;
static const StoredType stored_types[] = {
    {"F32", 4, true, DT_F32},   {"BF16", 2, true, DT_BF16},    {"F16", 2, true, DT_F16},      {"F64", 8, true, DT_F64},
    {"I32", 4, true, DT_I32},   {"I64", 8, false, DT_F32},     {"U64", 8, false, DT_F32},     {"U32", 4, false, DT_F32},
    {"I16", 2, false, DT_F32},  {"U16", 2, false, DT_F32},     {"I8", 1, false, DT_F32},      {"U8", 1, false, DT_F32},
    {"BOOL", 1, false, DT_F32}, {"F8_E5M2", 1, false, DT_F32}, {"F8_E4M3", 1, false, DT_F32}, {"F8_E8M0", 1, false, DT_F32},
    {"C64", 8, false, DT_F32},
};

static Status broken(const char *path, const char *name, const char *what) {
    return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': %s", name, path, what);
}

static Status parse_shape(const json_t *shape, const char *path, size_t element, StoredTensor *tensor) {
    size_t n = json_array_size(shape), bytes = element;
    if (!json_is_array(shape)) return broken(path, tensor->name, "no shape");
    if (n > COUNT_OF(tensor->shape)) return broken(path, tensor->name, "more than 8 dimensions");
    bool empty = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(shape, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0) return broken(path, tensor->name, "a dimension is not an integer");
        tensor->shape[i] = json_integer_value(item);
        empty |= tensor->shape[i] == 0;
    }
    for (size_t i = 0; i < n && !empty; i++)
        if (!size_mul(bytes, (size_t)tensor->shape[i], &bytes)) return broken(path, tensor->name, "its size does not fit into memory");
    tensor->n_dims = (int)n;
    tensor->bytes = empty ? 0 : bytes;
    tensor->count = (int64_t)(tensor->bytes / element);
    return ST_OK;
}

static Status parse_tensor(const char *path, const char *name, const json_t *entry, const uint8_t *data, size_t data_size, Arena *arena,
                           StoredTensor *tensor) {
    *tensor = (StoredTensor){.name = arena_strdup(arena, name), .file = path};
    if (!tensor->name) return ST_RESOURCE;
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype) return broken(path, name, "no dtype");
    const StoredType *type = NULL;
    for (size_t i = 0; i < COUNT_OF(stored_types) && !type; i++)
        if (strcmp(stored_types[i].name, dtype) == 0) type = &stored_types[i];
    if (!type) return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': unknown dtype '%s'", name, path, dtype);
    tensor->dtype_text = type->name;
    tensor->known = type->known;
    tensor->dtype = type->dtype;
    TRY(parse_shape(json_object_get(entry, "shape"), path, type->size, tensor));

    const json_t *offsets = json_object_get(entry, "data_offsets"), *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to)) return broken(path, name, "no data_offsets");
    json_int_t begin = json_integer_value(from), end = json_integer_value(to);
    if (begin < 0 || end < begin) return broken(path, name, "its data_offsets run backwards");
    if ((uint64_t)end > data_size)
        return hint_download_again(
            status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': ends at byte %lld of %zu", name, path, (long long)end, data_size), path);
    if ((uint64_t)(end - begin) != tensor->bytes)
        return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': %lld bytes, its shape needs %zu", name, path, (long long)(end - begin),
                           tensor->bytes);
    tensor->data = data + begin;
    return ST_OK;
}

static int by_place(const void *left, const void *right) {
    const StoredTensor *a = left, *b = right;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Tensors cover the data from begin to end: no hole, no overlap. */
static Status check_cover(const char *path, StoredTensor *tensors, size_t n, const uint8_t *data, size_t data_size) {
    qsort(tensors, n, sizeof *tensors, by_place);
    const uint8_t *at = data;
    for (size_t i = 0; i < n; i++) {
        if (tensors[i].data < at)
            return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': its bytes, from byte %zu of the data on, overlap another tensor's",
                               tensors[i].name, path, (size_t)(tensors[i].data - data));
        if (tensors[i].data > at) return broken(path, tensors[i].name, "bytes before it belong to no tensor");
        at += tensors[i].bytes;
    }
    if (at == data + data_size) return ST_OK;
    return status_fail(ST_INPUT, "cannot read '%s': %zu bytes at its end belong to no tensor", path, (size_t)(data + data_size - at));
}

static Status check_metadata(const char *path, const json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return status_fail(ST_INPUT, "cannot read '%s': its __metadata__ is no object", path);
    json_object_foreach((json_t *)metadata, key,
                        value) if (!json_is_string(value)) return status_fail(ST_INPUT, "cannot read '%s': metadata '%s' is no string", path, key);
    return ST_OK;
}

static Status parse_tensors(WeightFile *file, const char *path, json_t *header, const uint8_t *data, size_t data_size) {
    const json_t *metadata = json_object_get(header, "__metadata__");
    size_t n = json_object_size(header) - (metadata != NULL), i = 0;
    StoredTensor *tensors = weight_file_add(file, n);
    if (!tensors) return ST_RESOURCE;
    if (metadata) TRY(check_metadata(path, metadata));
    const char *key;
    json_t *entry;
    json_object_foreach(header, key, entry) {
        if (entry != metadata) TRY(parse_tensor(path, key, entry, data, data_size, file->arena, &tensors[i++]));
    }
    return check_cover(path, tensors, n, data, data_size);
}

Status safetensors_read(WeightFile *file, const char *path, const uint8_t *bytes, size_t size) {
    if (size < 8) return hint_download_again(status_fail(ST_INPUT, "cannot read '%s': %zu bytes are no safetensors file", path, size), path);
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > HEADER_LIMIT)
        return status_fail(ST_INPUT,
                           "cannot read '%s': it is not a safetensors file: its header would have %llu bytes, at most %zu are "
                           "allowed",
                           path, (unsigned long long)length, HEADER_LIMIT);
    if (length > size - 8) {
        status_fail(ST_INPUT, "cannot read '%s': its header has %llu bytes, the file only %zu", path, (unsigned long long)length, size);
        return hint_download_again(ST_INPUT, path);
    }
    const char *text = (const char *)bytes + 8;
    if (length == 0 || text[0] != '{') return status_fail(ST_INPUT, "cannot read '%s': its header does not start with '{'", path);
    json_t *header;
    TRY(json_read_text(text, (size_t)length, path, &header));
    Status status = json_is_object(header) ? parse_tensors(file, path, header, bytes + 8 + length, size - 8 - (size_t)length)
                                           : status_fail(ST_INPUT, "cannot read '%s': its header is no object", path);
    json_decref(header);
    return status;
}

/* ---- a directory: one file, or model.safetensors.index.json, which names the file of every tensor ---- */

static int by_text(const void *left, const void *right) { return strcmp(*(const char *const *)left, *(const char *const *)right); }

/* The distinct names of files in the index, sorted; n_shards of them. */
static Status list_shards(Arena *arena, const json_t *map, const char *path, const char ***shards, size_t *n_shards) {
    const char *name, **files = arena_alloc(arena, (json_object_size(map) + 1) * sizeof *files);
    json_t *value;
    size_t n = 0;
    if (!files) return ST_RESOURCE;
    json_object_foreach((json_t *)map, name, value) {
        const char *file = json_string_value(value);
        if (!file || !*file) return status_fail(ST_INPUT, "no file for tensor '%s' in '%s'", name, path);
        if (strchr(file, '/') || strchr(file, '\\'))
            return status_fail(ST_INPUT, "tensor '%s' of '%s' is listed in '%s', outside the directory", name, path, file);
        if (n == 0 || strcmp(files[n - 1], file) != 0) files[n++] = file;
    }
    qsort(files, n, sizeof *files, by_text);
    *shards = files;
    *n_shards = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(files[i - 1], files[i]) != 0) files[(*n_shards)++] = files[i];
    return n ? ST_OK : status_fail(ST_INPUT, "'%s' names no tensor", path);
}

static Status read_shards(WeightFile *file, const char *dir, const json_t *map, const char *index) {
    const char **shards;
    size_t n;
    TRY(list_shards(file->arena, map, index, &shards, &n));
    for (size_t i = 0; i < n; i++) {
        const char *path = path_join(file->arena, dir, shards[i]);
        if (!path) return ST_RESOURCE;
        Status status = weight_file_add_file(file, path);
        if (status == ST_INPUT && !file_exists(path))
            status_hint(status, "model.safetensors.index.json names it: the download or copy of '%s' is not complete", dir);
        TRY(status);
    }
    return ST_OK;
}

static Status check_index(const WeightFile *file, const json_t *map, const char *path) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)map, name, value) {
        const StoredTensor *tensor = weight_file_find(file, name);
        if (!tensor || strcmp(path_name(tensor->file), json_string_value(value)) != 0)
            return status_fail(ST_INPUT, "tensor '%s' is missing in '%s', where '%s' says it is", name, json_string_value(value), path_name(path));
    }
    return ST_OK;
}

static Status read_index(WeightFile *file, const char *dir, const char *path) {
    json_t *index;
    TRY(json_read_file(path, &index));
    const json_t *map = json_object_get(index, "weight_map");
    Status status = json_is_object(map) ? read_shards(file, dir, map, path) : status_fail(ST_INPUT, "'%s' lacks 'weight_map'", path);
    if (status == ST_OK) status = weight_file_index(file);
    if (status == ST_OK) status = check_index(file, map, path);
    json_decref(index);
    return status;
}

/* Probably another model was saved over this one. An index that only names model.safetensors has no further information. */
static void warn_of_shards(const char *index, const char *dir) {
    json_t *root = NULL, *file;
    const char *name, *other = NULL;
    bool read = json_read_file(index, &root) == ST_OK;
    json_object_foreach(json_object_get(root, "weight_map"), name, file) {
        if (json_is_string(file) && strcmp(json_string_value(file), "model.safetensors") != 0) other = json_string_value(file);
    }
    if (!read || other)
        log_message(LOG_WARNING,
                    "'%s' has model.safetensors and an index of other files%s%s: model.safetensors is read, as in "
                    "transformers; remove the one that is not wanted",
                    dir, other ? ", such as " : "", other ? other : "");
    json_decref(root);
}

Status safetensors_read_directory(WeightFile *file, const char *dir) {
    const char *single = path_join(file->arena, dir, "model.safetensors"), *index = path_join(file->arena, dir, "model.safetensors.index.json");
    if (!single || !index) return ST_RESOURCE;
    bool whole, sharded;
    TRY(file_find(single, &whole));
    TRY(file_find(index, &sharded));
    if (whole && sharded) warn_of_shards(index, dir);
    if (whole) return weight_file_add_file(file, single); /* as transformers does */
    if (sharded) return read_index(file, dir, index);
    return hint_other_files(status_fail(ST_INPUT, "no model.safetensors in '%s'", dir), dir);
}
