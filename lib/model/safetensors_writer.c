/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one safetensors file: the header is complete before the first byte of data. Also writes the index of several files. */
#include "lib/base/memory.h"
#include "lib/model/convert.h"
#include "lib/base/json.h"
#include "lib/model/safetensors.h"
#include "lib/base/work.h"

#include <stdlib.h>

struct SafetensorsWriter {
    FileWriter file;
    JsonWriter header, metadata;
    uint64_t declared, written;
    bool started;
    Status status; /* of reading tensors; failures of the file are in `file` */
};

Status safetensors_writer_new(const char *path, SafetensorsWriter **writer) {
    *writer = NULL;
    if (!path) return ST_RESOURCE;
    *writer = calloc(1, sizeof **writer);
    if (!*writer) return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
    Status status = writer_open(&(*writer)->file, path);
    if (status != ST_OK) {
        free(*writer);
        *writer = NULL;
        return status;
    }
    jw_object(&(*writer)->header, NULL);
    jw_object(&(*writer)->metadata, NULL);
    safetensors_metadata(*writer, "format", "pt");
    return ST_OK;
}

void safetensors_metadata(SafetensorsWriter *writer, const char *key, const char *value) { jw_string(&writer->metadata, key, value); }

static const char *stored_name(DType dtype) {
    static const char *const names[] = {[DT_F32] = "F32", [DT_BF16] = "BF16", [DT_F16] = "F16", [DT_F64] = "F64", [DT_I32] = "I32"};
    return names[dtype];
}

static void declare(SafetensorsWriter *writer, const char *name, const char *dtype, int n_dims, const int64_t *shape, uint64_t bytes) {
    ASSERT(!writer->started, "tensor '%s' declared after the header", name);
    JsonWriter *header = &writer->header;
    jw_object(header, name);
    jw_string(header, "dtype", dtype);
    jw_array(header, "shape");
    for (int i = 0; i < n_dims; i++) jw_int(header, NULL, shape[i]);
    jw_end_array(header);
    jw_array(header, "data_offsets");
    jw_int(header, NULL, (int64_t)writer->declared);
    jw_int(header, NULL, (int64_t)(writer->declared + bytes));
    jw_end_array(header);
    jw_end_object(header);
    writer->declared += bytes;
}

void safetensors_declare(SafetensorsWriter *writer, const char *name, DType dtype, int n_dims, const int64_t *shape) {
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) count *= shape[i];
    declare(writer, name, stored_name(dtype), n_dims, shape, dtype_bytes(dtype, count));
}

void safetensors_declare_as(SafetensorsWriter *writer, const StoredTensor *tensor) {
    declare(writer, tensor->name, tensor->dtype_text, tensor->n_dims, tensor->shape, tensor->bytes);
}

static void write_header(SafetensorsWriter *writer) {
    writer->started = true;
    jw_end_object(&writer->metadata);
    jw_raw(&writer->header, "__metadata__", str_text(&writer->metadata.text));
    jw_end_object(&writer->header);
    Str *text = &writer->header.text;
    while ((text->len % 8 != 0) && !memory_is_short()) str_append_char(text, ' '); /* data is aligned for readers that map it */
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)text->len >> (8 * i));
    writer_write(&writer->file, length, sizeof length);
    writer_write(&writer->file, text->data, text->len);
}

void safetensors_write(SafetensorsWriter *writer, const void *bytes, size_t size) {
    if (!writer->started) write_header(writer);
    uint64_t piece = writer->written >> 16;
    writer->written += size;
    if (writer->written >> 16 != piece) work_at_bytes("saving", writer->written, writer->declared); /* many writes have few bytes */
    ASSERT(writer->written <= writer->declared, "%llu bytes written, %llu declared", (unsigned long long)writer->written,
           (unsigned long long)writer->declared);
    writer_write(&writer->file, bytes, size);
}

void safetensors_write_as(SafetensorsWriter *writer, const void *elements, DType from_dtype, DType to_dtype, size_t count) {
    if (from_dtype == to_dtype) {
        safetensors_write(writer, elements, dtype_bytes(to_dtype, (int64_t)count));
        return;
    }
    enum { PIECE = 4096 };
    double piece[PIECE]; /* enough for any dtype */
    const uint8_t *from = elements;
    for (size_t done = 0; done < count; done += PIECE) {
        size_t n = MIN(count - done, (size_t)PIECE);
        convert_elements(from + dtype_bytes(from_dtype, (int64_t)done), from_dtype, piece, to_dtype, n);
        safetensors_write(writer, piece, dtype_bytes(to_dtype, (int64_t)n));
    }
}

void safetensors_write_tensor(SafetensorsWriter *writer, const Tensor *tensor, DType to_dtype) {
    double buffer[1024];
    for (int64_t at = 0, n; at < tensor_count(tensor) && !safetensors_failed(writer); at += n) {
        n = tensor_count(tensor) - at;
        const void *piece = tensor_piece(tensor, at, &n, buffer, sizeof buffer);
        if (piece)
            safetensors_write_as(writer, piece, tensor->dtype, to_dtype, (size_t)n);
        else
            writer->status = ST_RESOURCE;
    }
}

static void writer_free(SafetensorsWriter *writer) {
    jw_release(&writer->header);
    jw_release(&writer->metadata);
    free(writer);
}

bool safetensors_failed(const SafetensorsWriter *writer) { return writer->file.status != ST_OK || writer->status != ST_OK; }

/* A repeated name makes a file that no reader accepts. */
static Status check_names(const SafetensorsWriter *writer) {
    json_t *header;
    const Str *text = &writer->header.text;
    TRY(json_read_text(str_text(text), text->len, writer->file.path, &header));
    json_decref(header);
    return ST_OK;
}

Status safetensors_commit(SafetensorsWriter *writer) {
    if (!writer->started) write_header(writer);
    ASSERT(safetensors_failed(writer) || writer->written == writer->declared, "%llu bytes written, %llu declared",
           (unsigned long long)writer->written, (unsigned long long)writer->declared);
    Status status = safetensors_failed(writer) ? writer->status : check_names(writer);
    if (status == ST_OK) status = file_check_truncation();
    if (status == ST_OK)
        status = writer_commit(&writer->file);
    else
        writer_abandon(&writer->file);
    writer_free(writer);
    work_end("saving");
    return status;
}

void safetensors_abandon(SafetensorsWriter *writer) {
    if (!writer) return;
    writer_abandon(&writer->file);
    writer_free(writer);
}

Status safetensors_write_index(const char *dir, const IndexedTensor *tensors, size_t n, uint64_t bytes) {
    Str path = {0};
    str_printf(&path, "%s/model.safetensors.index.json", dir);
    JsonWriter w = {.pretty = true};
    jw_object(&w, NULL);
    jw_object(&w, "metadata");
    jw_int(&w, "total_size", (int64_t)bytes);
    jw_end_object(&w);
    jw_object(&w, "weight_map");
    for (size_t i = 0; i < n; i++) jw_string(&w, tensors[i].name, tensors[i].file);
    jw_end_object(&w);
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    Status status = file_write_all(str_text(&path), w.text.data, w.text.len);
    jw_release(&w);
    str_release(&path);
    return status;
}
