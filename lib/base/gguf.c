/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 9999, MAX_NAME = 1 << 16, MOST_ALIGNMENT = 1 << 20 };
enum { LEAST_VALUE = 14, LEAST_TENSOR = 25 }; /* bytes that an entry of the metadata and of the list of tensors takes at least */

static const size_t type_size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}; /* 0: texts and lists, of any size */

/* ---- reading bytes: a position in one file, which never passes its end ---- */

typedef struct Cursor {
    const char *path;
    const uint8_t *begin, *at, *end;
    bool failed;
} Cursor;

static uint64_t little_endian(const uint8_t *at, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static uint64_t take_number(Cursor *cursor, size_t size) {
    if ((size_t)(cursor->end - cursor->at) < size) cursor->failed = true;
    if (cursor->failed) return 0;
    uint64_t value = little_endian(cursor->at, size);
    cursor->at += size;
    return value;
}

static const uint8_t *take_bytes(Cursor *cursor, uint64_t size) {
    const uint8_t *at = cursor->at;
    if (size > (size_t)(cursor->end - cursor->at)) cursor->failed = true;
    if (cursor->failed) return NULL;
    cursor->at += size;
    return at;
}

static Status cut_off(const Cursor *cursor) {
    status_fail(ST_INPUT, "cannot read '%s': its header is longer than the file: what begins at byte %zu goes beyond byte %zu, the end", cursor->path,
                (size_t)(cursor->at - cursor->begin), (size_t)(cursor->end - cursor->begin));
    return status_hint(ST_INPUT, "the file is cut off or was changed: copy or download it again, and compare its size with the original's");
}

/* A name in the arena: UTF-8 without NUL. */
static Status take_name(Cursor *cursor, Arena *arena, const char *what, const char **name) {
    uint64_t len = take_number(cursor, 8);
    if (len > MAX_NAME && !cursor->failed)
        return status_fail(ST_INPUT, "cannot read '%s': %s of %llu bytes", cursor->path, what, (unsigned long long)len);
    const char *bytes = (const char *)take_bytes(cursor, len);
    if (cursor->failed) return cut_off(cursor);
    if (len == 0 || memchr(bytes, 0, len) || utf8_fault(bytes, len) < len)
        return status_fail(ST_INPUT, "cannot read '%s': %s that is no text", cursor->path, what);
    *name = arena_strndup(arena, bytes, len);
    return *name ? ST_OK : ST_RESOURCE;
}

/* ---- metadata ---- */

/* Moves over the elements. */
static void skip_elements(Cursor *cursor, GgufType type, uint64_t n) {
    size_t size = type_size[type];
    if (size > 0) {
        size_t bytes;
        if (n <= SIZE_MAX && size_mul((size_t)n, size, &bytes))
            take_bytes(cursor, bytes);
        else
            cursor->failed = true;
        return;
    }
    for (uint64_t i = 0; i < n && !cursor->failed; i++) take_bytes(cursor, take_number(cursor, 8));
}

static Status take_value(Cursor *cursor, Arena *arena, GgufValue *value) {
    TRY(take_name(cursor, arena, "a key", &value->key));
    uint64_t type = take_number(cursor, 4);
    value->n = 1;
    if (type == GGUF_LIST) {
        value->list = true;
        type = take_number(cursor, 4);
        value->n = take_number(cursor, 8);
    }
    if (cursor->failed) return cut_off(cursor);
    if (type >= COUNT_OF(type_size) || type == GGUF_LIST)
        return status_fail(ST_INPUT, "cannot read '%s': metadata '%s' has an unknown type %llu", cursor->path, value->key, (unsigned long long)type);
    value->type = (GgufType)type;
    value->data = cursor->at;
    skip_elements(cursor, value->type, value->n);
    value->bytes = (size_t)(cursor->at - value->data);
    return cursor->failed ? cut_off(cursor) : ST_OK;
}

static const GgufValue *find_value(const GgufValue *values, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(values[i].key, key) == 0) return &values[i];
    return NULL;
}

static int by_key(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* No name twice. names: sorted here. */
static Status check_unique(const char **names, size_t n, const char *what, const char *path) {
    qsort(names, n, sizeof *names, by_key);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0) return status_fail(ST_INPUT, "cannot read '%s': %s '%s' is there twice", path, what, names[i]);
    return ST_OK;
}

static Status take_values(Cursor *cursor, Arena *arena, uint64_t n, GgufValue **values) {
    if (n > (size_t)(cursor->end - cursor->at) / LEAST_VALUE) return cut_off(cursor);
    *values = arena_zero(arena, ((size_t)n + 1) * sizeof **values);
    const char **keys = arena_alloc(arena, ((size_t)n + 1) * sizeof *keys);
    if (!*values || !keys) return ST_RESOURCE;
    for (uint64_t i = 0; i < n; i++) {
        TRY(take_value(cursor, arena, &(*values)[i]));
        keys[i] = (*values)[i].key;
    }
    return check_unique(keys, (size_t)n, "metadata", cursor->path);
}

/* ---- tensors ---- */

static Status take_tensor(Cursor *cursor, Arena *arena, GgufTensor *tensor) {
    TRY(take_name(cursor, arena, "a tensor's name", &tensor->name));
    uint64_t n_dims = take_number(cursor, 4);
    if (cursor->failed) return cut_off(cursor);
    if (n_dims > GGUF_MAX_DIMS)
        return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': %llu dimensions", tensor->name, cursor->path, (unsigned long long)n_dims);
    size_t count = 1;
    tensor->n_dims = (int)n_dims;
    for (int i = tensor->n_dims - 1; i >= 0; i--) {
        uint64_t size = take_number(cursor, 8);
        if (size > INT64_MAX || !size_mul(count, (size_t)size, &count) || count > INT64_MAX / 8)
            return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': its size does not fit into memory", tensor->name, cursor->path);
        tensor->shape[i] = (int64_t)size;
    }
    tensor->count = (int64_t)count;
    tensor->type = (uint32_t)take_number(cursor, 4);
    tensor->offset = take_number(cursor, 8);
    return cursor->failed ? cut_off(cursor) : ST_OK;
}

/* Offsets in the file, from those in the data, which begin at a multiple of the alignment after the header. */
static Status place_tensors(const Cursor *cursor, const Mapping *mapping, uint64_t alignment, GgufTensor *tensors, size_t n) {
    uint64_t header = (uint64_t)(cursor->at - mapping->data), start = (header + alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < n; i++) {
        GgufTensor *tensor = &tensors[i];
        if (tensor->offset % alignment != 0)
            return status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': its offset %llu is no multiple of %llu", tensor->name, cursor->path,
                               (unsigned long long)tensor->offset, (unsigned long long)alignment);
        if (start > mapping->size || tensor->offset > mapping->size - start) {
            status_fail(ST_INPUT, "cannot read tensor '%s' in '%s': it begins at byte %llu of %zu", tensor->name, cursor->path,
                        (unsigned long long)(start + tensor->offset), mapping->size);
            return status_hint(ST_INPUT, "the file is cut off or was changed: copy or download it again, and compare its size with the original's");
        }
        tensor->offset += start;
    }
    return ST_OK;
}

/* ---- files ---- */

/* A whole number of a value that is no list; false: it is none. */
static bool value_int(const GgufValue *value, int64_t *number) {
    if (value->list || type_size[value->type] == 0 || value->type == GGUF_F32 || value->type == GGUF_F64) return false;
    size_t size = type_size[value->type];
    uint64_t bits = little_endian(value->data, size);
    bool is_signed = value->type == GGUF_I8 || value->type == GGUF_I16 || value->type == GGUF_I32 || value->type == GGUF_I64;
    if (is_signed && size < 8 && bits >> (8 * size - 1)) bits |= UINT64_MAX << (8 * size);
    if (!is_signed && bits > INT64_MAX) return false;
    *number = (int64_t)bits;
    return value->type != GGUF_BOOL;
}

static Status check_head(Cursor *cursor) {
    const uint8_t *magic = take_bytes(cursor, 4);
    uint64_t version = take_number(cursor, 4);
    if (cursor->failed || memcmp(magic, "GGUF", 4) != 0) return status_fail(ST_INPUT, "cannot read '%s': it is no GGUF file", cursor->path);
    if (version == 2 || version == 3) return ST_OK;
    if (version >> 16 && (version & 0xffff) == 0) {
        status_fail(ST_INPUT, "cannot read '%s': its version, at byte 4, has the bytes of big-endian machines", cursor->path);
        return status_hint(ST_INPUT, "convert the model again without --bigendian, or take the Hugging Face directory");
    }
    return status_fail(ST_INPUT, "cannot read '%s': GGUF version %llu, known are 2 and 3", cursor->path, (unsigned long long)version);
}

static Status alignment_of(const GgufValue *values, size_t n, const char *path, uint64_t *alignment) {
    const GgufValue *value = find_value(values, n, "general.alignment");
    int64_t number = 32;
    if (value && !value_int(value, &number)) number = 0;
    *alignment = (uint64_t)number;
    if (number >= 1 && number <= MOST_ALIGNMENT) return ST_OK;
    return status_fail(ST_INPUT, "cannot read '%s': wrong 'general.alignment'", path);
}

/* Adds the tensors of a mapped file, whose metadata are kept if it is the first. *values: its metadata. */
static Status add_file(Gguf *gguf, size_t index, const GgufValue **values, size_t *n_values) {
    const GgufFile *file = &gguf->files[index];
    Cursor cursor = {file->path, file->mapping.data, file->mapping.data, file->mapping.data + file->mapping.size, false};
    GgufValue *own = NULL;
    uint64_t alignment;
    TRY(check_head(&cursor));
    uint64_t n_tensors = take_number(&cursor, 8), n_own = take_number(&cursor, 8);
    if (cursor.failed) return cut_off(&cursor);
    TRY(take_values(&cursor, gguf->arena, n_own, &own));
    if (n_tensors > (size_t)(cursor.end - cursor.at) / LEAST_TENSOR) return cut_off(&cursor);
    GgufTensor *tensors = arena_zero(gguf->arena, (gguf->n_tensors + (size_t)n_tensors + 1) * sizeof *tensors), *first = tensors + gguf->n_tensors;
    if (!tensors) return ST_RESOURCE;
    if (gguf->n_tensors) memcpy(tensors, gguf->tensors, gguf->n_tensors * sizeof *tensors);
    for (uint64_t i = 0; i < n_tensors; i++) {
        TRY(take_tensor(&cursor, gguf->arena, &first[i]));
        first[i].file = index;
    }
    TRY(alignment_of(own, (size_t)n_own, file->path, &alignment));
    TRY(place_tensors(&cursor, &file->mapping, alignment, first, (size_t)n_tensors));
    gguf->tensors = tensors;
    gguf->n_tensors += (size_t)n_tensors;
    *values = own;
    *n_values = (size_t)n_own;
    return ST_OK;
}

static Status check_tensor_names(const Gguf *gguf) {
    const char **names = arena_alloc(gguf->arena, (gguf->n_tensors + 1) * sizeof *names);
    if (!names) return ST_RESOURCE;
    for (size_t i = 0; i < gguf->n_tensors; i++) names[i] = gguf->tensors[i].name;
    return check_unique(names, gguf->n_tensors, "tensor", gguf->files[0].path);
}

static Status new_gguf(const char *path, Gguf **gguf) {
    Arena *arena = arena_new(0);
    *gguf = arena ? arena_zero(arena, sizeof **gguf) : NULL;
    if (!*gguf) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
    }
    (*gguf)->arena = arena;
    (*gguf)->files = arena_zero(arena, sizeof *(*gguf)->files);
    if (!(*gguf)->files || !((*gguf)->files[0].path = arena_strdup(arena, path))) return ST_RESOURCE;
    return ST_OK;
}

static Status keep_if(Status status, Gguf **gguf) {
    if (status == ST_OK) return ST_OK;
    gguf_close(*gguf);
    *gguf = NULL;
    return status;
}

/* ---- split models: NAME-00001-of-00003.gguf ---- */

enum { SPLIT_SUFFIX = 20 }; /* "-00001-of-00003.gguf" */

static Status split_number(const GgufValue *values, size_t n, const char *key, int64_t fallback, const char *path, int64_t *number) {
    const GgufValue *value = find_value(values, n, key);
    *number = fallback;
    if (!value || (value_int(value, number) && *number >= 0 && *number <= INT32_MAX)) return ST_OK;
    return status_fail(ST_INPUT, "cannot read '%s': wrong '%s'", path, key);
}

/* Opens file `index` of a split model and adds its tensors. */
static Status open_part(Gguf *gguf, size_t index, size_t n) {
    const char *first = gguf->files[0].path;
    size_t stem = strlen(first) - SPLIT_SUFFIX;
    const char *path = arena_printf(gguf->arena, "%.*s-%05zu-of-%05zu.gguf", (int)stem, first, index + 1, n);
    const GgufValue *values;
    size_t n_values;
    int64_t number;
    if (!path) return ST_RESOURCE;
    gguf->files[index].path = path;
    if (!file_exists(path))
        return status_hint(status_fail(ST_INPUT, "'%s' is missing: '%s' is the first of %zu files of a model", path, first, n),
                           "the files of a split model belong into one folder");
    TRY(file_map(path, &gguf->files[index].mapping));
    gguf->n_files = index + 1;
    TRY(add_file(gguf, index, &values, &n_values));
    TRY(split_number(values, n_values, "split.no", -1, path, &number));
    if (number != (int64_t)index)
        return status_fail(ST_INPUT, "cannot read '%s': it says that it is file %lld of its model, counted from 0", path, (long long)number);
    return ST_OK;
}

static Status open_parts(Gguf *gguf) {
    const char *path = gguf->files[0].path;
    int64_t count, number, n_tensors;
    TRY(split_number(gguf->values, gguf->n_values, "split.count", 1, path, &count));
    TRY(split_number(gguf->values, gguf->n_values, "split.no", 0, path, &number));
    if (count <= 1) return ST_OK;
    if (number != 0) {
        status_fail(ST_INPUT, "'%s' is file %lld of the %lld files of a model", path, (long long)number + 1, (long long)count);
        return status_hint(ST_INPUT, "name the first one, which ends in -00001-of-%05lld.gguf", (long long)count);
    }
    char suffix[48];
    snprintf(suffix, sizeof suffix, "-00001-of-%05lld.gguf", (long long)count);
    if (count > MAX_FILES || !text_ends_with(path, suffix))
        return status_fail(ST_INPUT, "'%s' is the first of %lld files of a model, but its name does not end in %s", path, (long long)count, suffix);
    GgufFile *files = arena_zero(gguf->arena, (size_t)count * sizeof *files);
    if (!files) return ST_RESOURCE;
    files[0] = gguf->files[0];
    gguf->files = files;
    for (int64_t i = 1; i < count; i++) TRY(open_part(gguf, (size_t)i, (size_t)count));
    TRY(split_number(gguf->values, gguf->n_values, "split.tensors.count", (int64_t)gguf->n_tensors, path, &n_tensors));
    if (n_tensors == (int64_t)gguf->n_tensors) return ST_OK;
    return status_fail(ST_INPUT, "the files of '%s' have %zu tensors, and it says %lld", path, gguf->n_tensors, (long long)n_tensors);
}

/* ---- opening ---- */

bool gguf_is(const char *path) { return path && text_ends_with(path, ".gguf") && file_exists(path) && !dir_exists(path); }

static Status parse_first(Gguf *gguf) {
    gguf->n_files = 1;
    return add_file(gguf, 0, &gguf->values, &gguf->n_values);
}

static Status open_all(Gguf *gguf) {
    TRY(file_map(gguf->files[0].path, &gguf->files[0].mapping));
    TRY(parse_first(gguf));
    TRY(open_parts(gguf));
    return check_tensor_names(gguf);
}

Status gguf_open(const char *path, Gguf **gguf) {
    Status status = new_gguf(path, gguf);
    if (*gguf && status == ST_OK) status = open_all(*gguf);
    return keep_if(status, gguf);
}

Status gguf_parse(const void *bytes, size_t size, const char *path, Gguf **gguf) {
    Status status = new_gguf(path, gguf);
    if (!*gguf || status != ST_OK) return keep_if(status, gguf);
    (*gguf)->files[0].mapping = (Mapping){bytes, size};
    status = parse_first(*gguf);
    if (status == ST_OK) status = check_tensor_names(*gguf);
    (*gguf)->n_files = 0; /* the bytes are the caller's: nothing to unmap */
    return keep_if(status, gguf);
}

void gguf_close(Gguf *gguf) {
    if (!gguf) return;
    for (size_t i = 0; i < gguf->n_files; i++) file_unmap(&gguf->files[i].mapping);
    arena_free(gguf->arena);
}

/* ---- values ---- */

const GgufValue *gguf_find(const Gguf *gguf, const char *key) { return find_value(gguf->values, gguf->n_values, key); }

static Status wrong_type(const Gguf *gguf, const char *key, const char *expected) {
    return status_fail(ST_INPUT, "wrong type of metadata '%s' in '%s': expected %s", key, gguf->files[0].path, expected);
}

Status gguf_int(const Gguf *gguf, const char *key, int64_t *value) {
    const GgufValue *found = gguf_find(gguf, key);
    return !found || value_int(found, value) ? ST_OK : wrong_type(gguf, key, "a whole number");
}

double gguf_number_at(const GgufValue *value, uint64_t i) {
    size_t size = type_size[value->type];
    if (size == 0 || i >= value->n) return (double)NAN;
    const uint8_t *at = value->data + i * size;
    if (value->type == GGUF_F32) {
        float number;
        memcpy(&number, at, sizeof number);
        return (double)number;
    }
    if (value->type == GGUF_F64) {
        double number;
        memcpy(&number, at, sizeof number);
        return number;
    }
    int64_t number = 0;
    GgufValue one = {.type = value->type == GGUF_BOOL ? GGUF_U8 : value->type, .data = at};
    return value_int(&one, &number) ? (double)number : (double)little_endian(at, size);
}

Status gguf_real(const Gguf *gguf, const char *key, double *value) {
    const GgufValue *found = gguf_find(gguf, key);
    if (!found) return ST_OK;
    if (found->list || type_size[found->type] == 0 || found->type == GGUF_BOOL) return wrong_type(gguf, key, "a number");
    *value = gguf_number_at(found, 0);
    return ST_OK;
}

Status gguf_bool(const Gguf *gguf, const char *key, bool *value) {
    const GgufValue *found = gguf_find(gguf, key);
    if (!found) return ST_OK;
    if (found->list || found->type != GGUF_BOOL) return wrong_type(gguf, key, "true or false");
    *value = found->data[0] != 0;
    return ST_OK;
}

Slice gguf_next_text(const GgufValue *value, const uint8_t **at) {
    ASSERT(value->type == GGUF_STRING && *at >= value->data && *at < value->data + value->bytes, "'%s' has no further text", value->key);
    Slice text = {(const char *)*at + 8, (size_t)little_endian(*at, 8)};
    *at += 8 + text.len;
    return text;
}

Status gguf_text(Gguf *gguf, const char *key, const char **value) {
    const GgufValue *found = gguf_find(gguf, key);
    if (!found) return ST_OK;
    if (found->list || found->type != GGUF_STRING) return wrong_type(gguf, key, "a text");
    const uint8_t *at = found->data;
    Slice text = gguf_next_text(found, &at);
    if (memchr(text.data, 0, text.len) || utf8_fault(text.data, text.len) < text.len) return wrong_type(gguf, key, "a text in UTF-8");
    *value = arena_strndup(gguf->arena, text.data, text.len);
    return *value ? ST_OK : ST_RESOURCE;
}

/* The shortest decimal number that rounds to this float. */
static double shortest_decimal(float number) {
    char text[32];
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)number);
        if (strtof(text, NULL) == number) break;
        snprintf(text, sizeof text, "%.9g", (double)number);
    }
    return strtod(text, NULL);
}

static json_t *number_json(const GgufValue *value, uint64_t i) {
    double number = gguf_number_at(value, i);
    if (value->type == GGUF_BOOL) return json_boolean(number != 0);
    if (value->type == GGUF_F32 && isfinite(number)) return json_real(shortest_decimal((float)number));
    if (value->type == GGUF_F32 || value->type == GGUF_F64) return json_real(number); /* NULL if it is not finite */
    int64_t whole;
    size_t size = type_size[value->type];
    GgufValue one = {.type = value->type, .data = value->data + i * size};
    return value_int(&one, &whole) ? json_integer(whole) : NULL;
}

Status gguf_json(const Gguf *gguf, const GgufValue *value, json_t **json) {
    json_t *list = value->list ? json_array() : NULL;
    const uint8_t *at = value->data;
    *json = NULL;
    for (uint64_t i = 0; i < value->n; i++) {
        json_t *item;
        if (value->type == GGUF_STRING) {
            Slice text = gguf_next_text(value, &at);
            item = json_stringn(text.data, text.len);
        } else {
            item = number_json(value, i);
        }
        if (!item) {
            json_decref(list);
            return status_fail(ST_INPUT, "metadata '%s' in '%s' is no number, or no text in UTF-8", value->key, gguf->files[0].path);
        }
        if (!list) {
            *json = item;
            return ST_OK;
        }
        json_array_append_new(list, item);
    }
    *json = list;
    return list ? ST_OK : status_fail(ST_RESOURCE, "out of memory for '%s'", gguf->files[0].path);
}
