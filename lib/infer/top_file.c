/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads files of likeliest tokens; see top_file.h. */
#include "lib/infer/top_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "lib/base/memory.h"
#include "lib/model/safetensors.h"

/* ---- writing ---- */

struct TopWriter {
    SafetensorsWriter *out;
    FileWriter later; /* of each token: k log-probabilities and the rest, and the token itself; they follow all ids */
    TopShape shape;
    int32_t *lengths;
    int64_t n_rows, n_tokens;
    float *logprobs; /* (k + 1) */
    int32_t *ids;    /* (k) */
};

static void top_writer_free(TopWriter *writer) {
    free(writer->lengths);
    free(writer->logprobs);
    free(writer->ids);
    free(writer);
}

static Status make_writer(const char *path, TopWriter *writer) {
    const TopShape *shape = &writer->shape;
    Str later = {0};
    writer->lengths = malloc((size_t)MAX(shape->n_rows, 1) * sizeof *writer->lengths);
    writer->logprobs = malloc((size_t)(shape->k + 1) * sizeof *writer->logprobs);
    writer->ids = malloc((size_t)shape->k * sizeof *writer->ids);
    if (!writer->lengths || !writer->logprobs || !writer->ids) return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
    TRY(safetensors_writer_new(path, &writer->out));
    str_printf(&later, "%s.logprobs", path);
    Status status = writer_open(&writer->later, str_text(&later));
    str_release(&later);
    if (status != ST_OK) safetensors_abandon(writer->out);
    return status;
}

Status top_writer_open(const char *path, const TopShape *shape, TopWriter **out) {
    *out = NULL;
    TopWriter *writer = calloc(1, sizeof *writer);
    if (!writer) return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
    writer->shape = *shape;
    Status status = make_writer(path, writer);
    if (status != ST_OK) {
        top_writer_free(writer);
        return status;
    }
    const int64_t each[] = {shape->n_tokens, shape->k}, one = 1;
    safetensors_declare(writer->out, "ids", DT_I32, 2, each);
    safetensors_declare(writer->out, "logprobs", shape->dtype, 2, each);
    safetensors_declare(writer->out, "rest", DT_F32, 1, &shape->n_tokens);
    safetensors_declare(writer->out, "tokens", DT_I32, 1, &shape->n_tokens);
    safetensors_declare(writer->out, "lengths", DT_I32, 1, &shape->n_rows);
    safetensors_declare(writer->out, "vocabulary", DT_I32, 1, &one);
    *out = writer;
    return ST_OK;
}

void top_writer_add(TopWriter *writer, const int32_t *ids, size_t n, const TokenLogprob *top) {
    const int64_t k = writer->shape.k;
    ASSERT(writer->n_rows < writer->shape.n_rows && writer->n_tokens + (int64_t)n <= writer->shape.n_tokens, "more rows than the %lld declared",
           (long long)writer->shape.n_rows);
    writer->lengths[writer->n_rows++] = (int32_t)n;
    writer->n_tokens += (int64_t)n;
    for (size_t t = 0; t < n; t++) {
        double sum = 0;
        for (int64_t i = 0; i < k; i++) {
            const TokenLogprob *one = &top[(int64_t)t * k + i];
            writer->ids[i] = one->id;
            writer->logprobs[i] = one->id < 0 ? -INFINITY : (float)one->logprob;
            sum += exp((double)writer->logprobs[i]);
        }
        writer->logprobs[k] = (float)log(fmax(1 - sum, 0));
        safetensors_write(writer->out, writer->ids, (size_t)k * sizeof *writer->ids);
        writer_write(&writer->later, writer->logprobs, (size_t)(k + 1) * sizeof *writer->logprobs);
        writer_write(&writer->later, &ids[t], sizeof ids[t]);
    }
}

/* Copies `count` values at `offset` of each token's record to the file. */
static void copy_column(TopWriter *writer, const Mapping *later, size_t offset, size_t count, DType from, DType to) {
    const size_t record = (size_t)(writer->shape.k + 2) * sizeof(float);
    for (int64_t t = 0; t < writer->n_tokens && !safetensors_failed(writer->out); t++)
        safetensors_write_as(writer->out, (const uint8_t *)later->data + (size_t)t * record + offset * sizeof(float), from, to, count);
}

static Status write_later(TopWriter *writer) {
    const size_t k = (size_t)writer->shape.k;
    const int32_t vocab = (int32_t)writer->shape.vocab;
    Mapping later = {0};
    TRY(writer_flush(&writer->later));
    TRY(file_map(writer->later.temporary, &later));
    copy_column(writer, &later, 0, k, DT_F32, writer->shape.dtype);
    copy_column(writer, &later, k, 1, DT_F32, DT_F32);
    copy_column(writer, &later, k + 1, 1, DT_I32, DT_I32);
    file_unmap(&later);
    safetensors_write(writer->out, writer->lengths, (size_t)writer->n_rows * sizeof *writer->lengths);
    safetensors_write(writer->out, &vocab, sizeof vocab);
    return ST_OK;
}

Status top_writer_close(TopWriter *writer, Status status) {
    ASSERT(status != ST_OK || (writer->n_rows == writer->shape.n_rows && writer->n_tokens == writer->shape.n_tokens), "%lld of %lld rows written",
           (long long)writer->n_rows, (long long)writer->shape.n_rows);
    if (status == ST_OK) status = write_later(writer);
    if (status == ST_OK)
        status = safetensors_commit(writer->out);
    else
        safetensors_abandon(writer->out);
    writer_abandon(&writer->later);
    top_writer_free(writer);
    return status;
}

/* ---- reading ---- */

struct TopFile {
    const char *path; /* of the WeightFile */
    WeightFile *file;
    const StoredTensor *ids, *logprobs, *rest, *tokens, *lengths;
    TopShape shape;
    uint64_t fingerprint;
    int64_t *places; /* (n_rows): of each row's first token */
    uint32_t *slots; /* (n_slots, a power of two): rows by the hash of their tokens; 0: empty, else the row's number from 1 */
    size_t n_slots;
};

static Status find_part(const TopFile *file, const char *name, const char *dtype, int n_dims, const StoredTensor **part) {
    *part = weight_file_find(file->file, name);
    if (*part && (*part)->n_dims == n_dims && (!dtype || strcmp((*part)->dtype_text, dtype) == 0)) return ST_OK;
    status_fail(ST_INPUT, "'%s' is no file of log-probabilities: it has no tensor '%s' of %s numbers in %d dimension%s", file->path, name,
                dtype ? dtype : "F16", n_dims, n_dims == 1 ? "" : "s");
    return status_hint(ST_INPUT, "tune score MODEL RECIPE --top-k 64 --save FILE writes one");
}

static Status find_parts(TopFile *file) {
    const StoredTensor *vocabulary;
    TRY(find_part(file, "ids", "I32", 2, &file->ids));
    TRY(find_part(file, "logprobs", NULL, 2, &file->logprobs));
    TRY(find_part(file, "rest", "F32", 1, &file->rest));
    TRY(find_part(file, "tokens", "I32", 1, &file->tokens));
    TRY(find_part(file, "lengths", "I32", 1, &file->lengths));
    TRY(find_part(file, "vocabulary", "I32", 1, &vocabulary));
    file->shape = (TopShape){.k = file->ids->shape[1],
                             .n_tokens = file->ids->shape[0],
                             .n_rows = file->lengths->shape[0],
                             .vocab = vocabulary->count == 1 ? (int64_t)stored_get(vocabulary, 0) : 0,
                             .dtype = file->logprobs->dtype};
    const TopShape *shape = &file->shape;
    bool floats = file->logprobs->known && (shape->dtype == DT_F16 || shape->dtype == DT_F32);
    if (!floats || shape->k < 1 || shape->vocab < shape->k || file->logprobs->shape[0] != shape->n_tokens || file->logprobs->shape[1] != shape->k ||
        file->rest->count != shape->n_tokens || file->tokens->count != shape->n_tokens || shape->n_rows >= UINT32_MAX)
        return status_fail(ST_INPUT, "'%s' is no file of log-probabilities: its tensors do not fit together", file->path);
    return ST_OK;
}

static const int32_t *row_tokens(const TopFile *file, int64_t place) { return (const int32_t *)(const void *)file->tokens->data + place; }

static int64_t row_length(const TopFile *file, size_t row) { return ((const int32_t *)(const void *)file->lengths->data)[row]; }

/* The slot of a row with these tokens, or the empty one where it would be. */
static size_t find_slot(const TopFile *file, const int32_t *ids, size_t n) {
    size_t slot = (size_t)XXH3_64bits(ids, n * sizeof *ids) & (file->n_slots - 1);
    for (; file->slots[slot] > 0; slot = (slot + 1) & (file->n_slots - 1)) {
        size_t row = file->slots[slot] - 1;
        if (row_length(file, row) == (int64_t)n && memcmp(row_tokens(file, file->places[row]), ids, n * sizeof *ids) == 0) break;
    }
    return slot;
}

static void drop_rows(const TopFile *file, const StoredTensor *tensor, int64_t first, int64_t n) {
    const Mapping *mapping = weight_file_mapping(file->file, tensor->data);
    const size_t row = tensor->bytes / (size_t)file->shape.n_tokens,
                 begin = (size_t)(tensor->data - (const uint8_t *)mapping->data) + (size_t)first * row;
    file_drop_pages(mapping, begin, begin + (size_t)n * row);
}

void top_file_drop(const TopFile *file, int64_t place, int64_t n) {
    drop_rows(file, file->ids, place, n);
    drop_rows(file, file->logprobs, place, n);
    drop_rows(file, file->rest, place, n);
}

static Status index_rows(TopFile *file) {
    const size_t n = (size_t)file->shape.n_rows;
    for (file->n_slots = 16; file->n_slots < 2 * n;) file->n_slots *= 2;
    file->slots = calloc(file->n_slots, sizeof *file->slots);
    file->places = malloc((n + 1) * sizeof *file->places);
    if (!file->slots || !file->places) return status_fail(ST_RESOURCE, "out of memory for the %zu rows of '%s'", n, file->path);
    int64_t at = 0;
    for (size_t row = 0; row < n; row++) {
        int64_t length = row_length(file, row);
        if (length < 1 || length > file->shape.n_tokens - at)
            return status_fail(ST_INPUT, "'%s': row %zu has %lld tokens", file->path, row + 1, (long long)length);
        file->places[row] = at;
        file->slots[find_slot(file, row_tokens(file, at), (size_t)length)] = (uint32_t)row + 1;
        at += length;
    }
    if (at != file->shape.n_tokens)
        return status_fail(ST_INPUT, "'%s': its rows have %lld of its %lld tokens", file->path, (long long)at, (long long)file->shape.n_tokens);
    file->fingerprint = XXH3_64bits_withSeed(file->rest->data, file->rest->bytes, XXH3_64bits(file->tokens->data, file->tokens->bytes));
    top_file_drop(file, 0, file->shape.n_tokens);
    drop_rows(file, file->tokens, 0, file->shape.n_tokens);
    return ST_OK;
}

/* Values are read in place, so they must be aligned: the writer's are. */
static Status check_alignment(const TopFile *file) {
    const StoredTensor *const parts[] = {file->ids, file->tokens, file->lengths, file->rest};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if ((uintptr_t)parts[i]->data % sizeof(int32_t) != 0)
            return status_fail(ST_INPUT, "'%s': tensor '%s' is not aligned", file->path, parts[i]->name);
    return ST_OK;
}

Status top_file_open(const char *path, TopFile **out) {
    *out = NULL;
    TopFile *file = calloc(1, sizeof *file);
    if (!file) return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
    Status status = weight_file_open(path, &file->file);
    if (status == ST_OK) file->path = file->file->files[0];
    if (status == ST_OK) status = find_parts(file);
    if (status == ST_OK) status = check_alignment(file);
    if (status == ST_OK) status = index_rows(file);
    if (status == ST_OK)
        *out = file;
    else
        top_file_close(file);
    return status;
}

void top_file_close(TopFile *file) {
    if (!file) return;
    free(file->slots);
    free(file->places);
    weight_file_close(file->file);
    free(file);
}

TopShape top_file_shape(const TopFile *file) { return file->shape; }
uint64_t top_file_fingerprint(const TopFile *file) { return file->fingerprint; }

int64_t top_file_find(const TopFile *file, const int32_t *ids, size_t n) {
    uint32_t row = file->slots[find_slot(file, ids, n)];
    return row > 0 ? file->places[row - 1] : -1;
}

static Status no_distribution(const TopFile *file, int64_t place) {
    return status_fail(ST_INPUT, "'%s': the log-probabilities of token %lld are no distribution", file->path, (long long)place + 1);
}

Status top_file_read(const TopFile *file, int64_t place, int64_t k, int64_t vocab, int32_t *ids, float *logprobs) {
    const int64_t first = place * file->shape.k;
    const int32_t *all = (const int32_t *)(const void *)file->ids->data + first;
    float rest_log;
    double rest, sum = 0;
    memcpy(ids, all, (size_t)k * sizeof *ids);
    TRY(stored_read(file->logprobs, first, k, DT_F32, logprobs));
    memcpy(&rest_log, file->rest->data + (size_t)place * sizeof rest_log, sizeof rest_log);
    rest = exp((double)rest_log);
    for (int64_t i = 0; i < k; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return status_hint(status_fail(ST_INPUT, "'%s': likely token %d at token %lld is not one of the student's %lld", file->path, (int)ids[i],
                                           (long long)place + 1, (long long)vocab),
                               "the model that wrote the file has more tokens than the student: name one with the student's tokens");
        if (!isfinite(logprobs[i])) return no_distribution(file, place);
        sum += exp((double)logprobs[i]);
    }
    for (int64_t i = k; i < file->shape.k; i++) { /* those that are not asked for are among the others */
        float more;
        TRY(stored_read(file->logprobs, first + i, 1, DT_F32, &more));
        rest += exp((double)more);
    }
    if (!(fabs(sum + rest - 1) < 0.01)) return no_distribution(file, place);
    for (int64_t i = 0; i < k; i++) logprobs[i] -= (float)log(sum + rest); /* rounded log-probabilities do not add up to 1 */
    logprobs[k] = (float)log(rest / (sum + rest));
    return ST_OK;
}
