/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors (github.com/huggingface/safetensors, "Format"): files are mapped, and headers are untrusted input that is checked before any
 * tensor is used. */
#include "lib/base/log.h"
#include "lib/model/not_a_model.h"

#include <math.h>
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
        if (tensors[i].data < at) return broken(path, tensors[i].name, "its bytes overlap another tensor's");
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

static Status parse_tensors(Safetensors *set, const char *path, json_t *header, const uint8_t *data, size_t data_size) {
    size_t n = json_object_size(header), first = set->n, size;
    StoredTensor *tensors = NULL;
    if (size_mul(first + n, sizeof *tensors, &size)) tensors = arena_zero(set->arena, size);
    if (!tensors) return ST_RESOURCE;
    if (first) memcpy(tensors, set->tensors, first * sizeof *tensors);
    const char *key;
    json_t *entry;
    json_object_foreach(header, key, entry) {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(check_metadata(path, entry));
            if (!set->metadata) set->metadata = json_incref(entry);
            continue;
        }
        TRY(parse_tensor(path, key, entry, data, data_size, set->arena, &tensors[set->n]));
        set->n++;
    }
    set->tensors = tensors;
    return check_cover(path, tensors + first, set->n - first, data, data_size);
}

/* Adds the tensors of one mapped file. `path` is kept. */
static Status parse_file(Safetensors *set, const char *path, const Mapping *mapping) {
    if (mapping->size < 8)
        return hint_download_again(status_fail(ST_INPUT, "cannot read '%s': %zu bytes are no safetensors file", path, mapping->size), path);
    if (memcmp(mapping->data, "GGUF", 4) == 0) {
        status_fail(ST_INPUT, "cannot read '%s': it is a GGUF file, which is not supported", path);
        return status_hint(ST_INPUT, "take the model as a Hugging Face directory, with config.json and model.safetensors");
    }
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)mapping->data[i] << (8 * i);
    if (length > HEADER_LIMIT)
        return status_fail(ST_INPUT,
                           "cannot read '%s': it is not a safetensors file: its header would have %llu bytes, at most %zu are "
                           "allowed",
                           path, (unsigned long long)length, HEADER_LIMIT);
    if (length > mapping->size - 8) {
        status_fail(ST_INPUT, "cannot read '%s': its header has %llu bytes, the file only %zu", path, (unsigned long long)length, mapping->size);
        return hint_download_again(ST_INPUT, path);
    }
    const char *text = (const char *)mapping->data + 8;
    if (length == 0 || text[0] != '{') return status_fail(ST_INPUT, "cannot read '%s': its header does not start with '{'", path);
    json_t *header;
    TRY(json_read_text(text, (size_t)length, path, &header));
    Status status = json_is_object(header) ? parse_tensors(set, path, header, mapping->data + 8 + length, mapping->size - 8 - (size_t)length)
                                           : status_fail(ST_INPUT, "cannot read '%s': its header is no object", path);
    json_decref(header);
    return status;
}

static int by_name(const void *left, const void *right) {
    return strcmp((*(StoredTensor *const *)left)->name, (*(StoredTensor *const *)right)->name);
}

static Status build_index(Safetensors *set) {
    set->by_name = arena_alloc(set->arena, (set->n + 1) * sizeof *set->by_name);
    if (!set->by_name) return ST_RESOURCE;
    for (size_t i = 0; i < set->n; i++) set->by_name[i] = &set->tensors[i];
    qsort(set->by_name, set->n, sizeof *set->by_name, by_name);
    for (size_t i = 1; i < set->n; i++)
        if (strcmp(set->by_name[i - 1]->name, set->by_name[i]->name) == 0)
            return status_fail(ST_INPUT, "tensor '%s' is in '%s' and in '%s'", set->by_name[i]->name, set->by_name[i - 1]->file,
                               set->by_name[i]->file);
    return ST_OK;
}

static Status open_files(Safetensors *set, const char *dir) {
    set->mappings = arena_zero(set->arena, set->n_files * sizeof *set->mappings);
    if (!set->mappings) return ST_RESOURCE;
    for (size_t i = 0; i < set->n_files; i++) {
        const char *path = dir ? path_join(set->arena, dir, set->files[i]) : set->files[i];
        if (!path) return ST_RESOURCE;
        Status status = file_map(path, &set->mappings[i]);
        if (status == ST_INPUT && dir && !file_exists(path))
            return status_hint(status, "model.safetensors.index.json names it: the download or copy of '%s' is not complete", dir);
        TRY(status);
        TRY(parse_file(set, path, &set->mappings[i]));
    }
    return build_index(set);
}

/* ---- sharded: model.safetensors.index.json names the file of every tensor ---- */

static int by_text(const void *left, const void *right) { return strcmp(*(const char *const *)left, *(const char *const *)right); }

static Status list_shards(Safetensors *set, const json_t *map, const char *path) {
    const char *name;
    json_t *value;
    size_t n = 0;
    set->files = arena_alloc(set->arena, (json_object_size(map) + 1) * sizeof *set->files);
    if (!set->files) return ST_RESOURCE;
    json_object_foreach((json_t *)map, name, value) {
        const char *file = json_string_value(value);
        if (!file || !*file) return status_fail(ST_INPUT, "no file for tensor '%s' in '%s'", name, path);
        if (strchr(file, '/') || strchr(file, '\\'))
            return status_fail(ST_INPUT, "tensor '%s' of '%s' is listed in '%s', outside the directory", name, path, file);
        if (n && strcmp(set->files[n - 1], file) == 0) continue;
        if (!(set->files[n++] = arena_strdup(set->arena, file))) return ST_RESOURCE;
    }
    qsort(set->files, n, sizeof *set->files, by_text);
    for (size_t i = 0; i < n; i++)
        if (set->n_files == 0 || strcmp(set->files[set->n_files - 1], set->files[i]) != 0) set->files[set->n_files++] = set->files[i];
    return set->n_files ? ST_OK : status_fail(ST_INPUT, "'%s' names no tensor", path);
}

static Status check_index(const Safetensors *set, const json_t *map, const char *path) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)map, name, value) {
        const StoredTensor *tensor = safetensors_find(set, name);
        if (!tensor || strcmp(path_name(tensor->file), json_string_value(value)) != 0)
            return status_fail(ST_INPUT, "tensor '%s' is missing in '%s', where '%s' says it is", name, json_string_value(value), path_name(path));
    }
    return ST_OK;
}

static Status open_index(Safetensors *set, const char *dir, const char *path) {
    json_t *index;
    TRY(json_read_file(path, &index));
    const json_t *map = json_object_get(index, "weight_map");
    Status status = json_is_object(map) ? list_shards(set, map, path) : status_fail(ST_INPUT, "'%s' lacks 'weight_map'", path);
    if (status == ST_OK) status = open_files(set, dir);
    if (status == ST_OK) status = check_index(set, map, path);
    json_decref(index);
    return status;
}

static Status open_one(Safetensors *set, const char *dir, const char *name) {
    set->n_files = 1;
    set->files = arena_alloc(set->arena, sizeof *set->files);
    if (!set->files || !(set->files[0] = arena_strdup(set->arena, name))) return ST_RESOURCE;
    return open_files(set, dir);
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

static Status open_path(Safetensors *set, const char *path) {
    if (!dir_exists(path)) return open_one(set, NULL, path);
    const char *single = path_join(set->arena, path, "model.safetensors"), *index = path_join(set->arena, path, "model.safetensors.index.json");
    if (!single || !index) return ST_RESOURCE;
    bool whole, sharded;
    TRY(file_find(single, &whole));
    TRY(file_find(index, &sharded));
    if (whole && sharded) warn_of_shards(index, path);
    if (whole) return open_one(set, path, "model.safetensors"); /* as transformers does */
    if (sharded) return open_index(set, path, index);
    return hint_other_files(status_fail(ST_INPUT, "no model.safetensors in '%s'", path), path);
}

static Status new_set(const char *path, Safetensors **set) {
    Arena *arena = arena_new(0);
    *set = arena ? arena_zero(arena, sizeof **set) : NULL;
    if (*set) {
        (*set)->arena = arena;
        return ST_OK;
    }
    arena_free(arena);
    return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
}

static Status keep_if(Status status, Safetensors **set) {
    if (status == ST_OK) return ST_OK;
    safetensors_close(*set);
    *set = NULL;
    return status;
}

Status safetensors_open(const char *path, Safetensors **set) {
    TRY(new_set(path, set));
    return keep_if(open_path(*set, path), set);
}

Status safetensors_parse(const void *bytes, size_t size, const char *path, Safetensors **set) {
    TRY(new_set(path, set));
    Status status = parse_file(*set, path, &(Mapping){bytes, size});
    return keep_if(status == ST_OK ? build_index(*set) : status, set);
}

void safetensors_close(Safetensors *set) {
    if (!set) return;
    for (size_t i = 0; set->mappings && i < set->n_files; i++) file_unmap(&set->mappings[i]);
    json_decref(set->metadata);
    arena_free(set->arena);
}

const StoredTensor *safetensors_find(const Safetensors *set, const char *name) {
    StoredTensor wanted = {.name = name}, *key = &wanted, **found = bsearch(&key, set->by_name, set->n, sizeof *set->by_name, by_name);
    return found ? *found : NULL;
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
