/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints are atomic: written to .tmp-step-N, synced, renamed to step-N, and used only if every byte matches the manifest. */
#include "lib/base/work.h"
#include "lib/model/safetensors.h"
#include "lib/run/run_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static const char *const file_names[] = {"tensors.safetensors", "state.json"};

int64_t checkpoint_step_of(const char *name) {
    if (!text_starts_with(name, "step-")) return -1;
    const char *digits = name + strlen("step-");
    size_t len = strlen(digits);
    if (len == 0 || len > 18 || digits[strspn(digits, "0123456789")] != '\0') return -1;
    return strtoll(digits, NULL, 10);
}

static const char *step_path(Arena *arena, const char *dir, const char *prefix, int64_t step, const char *name) {
    const char *folder = arena_printf(arena, "%s/%sstep-%lld", dir, prefix, (long long)step);
    return folder && name ? path_join(arena, folder, name) : folder;
}

/* ---- writing ---- */

/* Elements of a tensor of parts that pass at once. */
enum { PIECE_ELEMENTS = 1 << 18 };

/* Reads all pieces, even if the file has failed: other processes send them. */
static Status write_pieces(SafetensorsWriter *writer, const CheckpointItem *item) {
    const int64_t count = tensor_count(item->tensor);
    void *values = malloc(dtype_bytes(item->tensor->dtype, PIECE_ELEMENTS));
    Status status = values ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    for (int64_t at = 0; at < count && status == ST_OK; at += PIECE_ELEMENTS) {
        int64_t n = MIN((int64_t)PIECE_ELEMENTS, count - at);
        status = item->read(item, at, n, values);
        if (status == ST_OK) safetensors_write(writer, values, dtype_bytes(item->tensor->dtype, n));
    }
    free(values);
    return status;
}

static Status write_items(SafetensorsWriter *writer, const CheckpointItem *items, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (items[i].part)
            TRY(write_pieces(writer, &items[i]));
        else
            safetensors_write_tensor(writer, items[i].tensor, items[i].tensor->dtype);
    return ST_OK;
}

Status tensors_save(const char *path, const CheckpointItem *items, size_t n) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    for (size_t i = 0; i < n; i++)
        safetensors_declare(writer, items[i].name, items[i].tensor->dtype, items[i].tensor->n_dims, items[i].tensor->shape);
    Status status = write_items(writer, items, n);
    if (status == ST_OK) return safetensors_commit(writer);
    safetensors_abandon(writer);
    return status;
}

static Status write_json(const char *path, const json_t *json) {
    char *text = json_text(json, JSON_INDENT(2));
    if (!text) return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
    Status status = file_write_all(path, text, strlen(text));
    free(text);
    return status;
}

/* Reads in pieces: the pages of a mapped file would count as this process's memory, as much again as all that is trained. */
static Status file_checksum(const char *path, uint64_t *size, uint32_t *crc) {
    enum { PIECE = 1 << 20 };
    int fd = path ? UNTIL_DONE(open(path, O_RDONLY | O_CLOEXEC)) : -1;
    uint8_t *piece = malloc(PIECE);
    ssize_t n = 0;
    if (fd < 0 || !piece) {
        Status status = !path || fd >= 0 ? status_fail(ST_RESOURCE, "out of memory for a checkpoint") : status_errno(errno, "cannot open '%s'", path);
        if (fd >= 0) close(fd);
        free(piece);
        return status;
    }
    struct stat info;
    uint64_t all = fstat(fd, &info) == 0 ? (uint64_t)info.st_size : 0;
    *size = *crc = 0;
    while ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR)) {
        if (n < 0) continue;
        *crc = (uint32_t)crc32_z(*crc, piece, (size_t)n);
        *size += (uint64_t)n;
        work_at_bytes("checking the checkpoint", *size, all);
    }
    work_end("checking the checkpoint");
    int error = n < 0 ? errno : 0;
    close(fd);
    free(piece);
    return error ? status_errno(error, "cannot read '%s'", path) : ST_OK;
}

Status file_sync_size(const char *path, uint64_t *size) {
    *size = 0;
    int fd = UNTIL_DONE(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return errno == ENOENT ? ST_OK : status_errno(errno, "cannot open '%s'", path);
    struct stat info;
    int error = file_sync(fd) != 0 || fstat(fd, &info) != 0 ? errno : 0;
    close(fd);
    if (error) return status_errno(error, "cannot sync '%s'", path);
    *size = (uint64_t)info.st_size;
    return ST_OK;
}

/* CRC-32 of everything in a manifest except this sum; -1: no memory. */
static json_int_t manifest_sum(const json_t *manifest) {
    json_t *said = json_copy((json_t *)(uintptr_t)manifest);
    json_object_del(said, "crc32");
    char *text = said ? json_text(said, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_int_t crc = text ? (json_int_t)crc32_z(0, (const uint8_t *)text, strlen(text)) : -1;
    free(text);
    json_decref(said);
    return crc;
}

static Status write_manifest(const Run *run, Arena *arena, const char *dir, int64_t step) {
    uint64_t metrics_bytes;
    TRY(file_sync_size(run->metrics_path, &metrics_bytes));
    TRY(dir_sync(run->dir)); /* syncs the file's name too */
    json_t *files = json_object();
    char recipe[20];
    snprintf(recipe, sizeof recipe, "%016llx", (unsigned long long)run->recipe);
    json_t *manifest = json_pack("{s:i, s:I, s:I, s:s, s:o}", "version", 1, "step", (json_int_t)step, "metrics_bytes", (json_int_t)metrics_bytes,
                                 "recipe", recipe, "files", files);
    Status status = manifest ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    for (size_t i = 0; i < COUNT_OF(file_names) && status == ST_OK; i++) {
        uint64_t size = 0;
        uint32_t crc = 0;
        status = file_checksum(path_join(arena, dir, file_names[i]), &size, &crc);
        json_object_set_new(files, file_names[i], json_pack("{s:I, s:I}", "bytes", (json_int_t)size, "crc32", (json_int_t)crc));
    }
    json_int_t own = manifest ? manifest_sum(manifest) : -1;
    if (status == ST_OK && (own < 0 || json_object_set_new(manifest, "crc32", json_integer(own)) != 0))
        status = status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    if (status == ST_OK) status = write_json(path_join(arena, dir, "manifest.json"), manifest);
    json_decref(manifest);
    return status;
}

static Status write_all(const Run *run, Arena *arena, const char *dir, int64_t step, const CheckpointItem *items, size_t n, const json_t *state) {
    TRY(dir_make(dir));
    TRY(tensors_save(path_join(arena, dir, file_names[0]), items, n));
    TRY(write_json(path_join(arena, dir, file_names[1]), state));
    TRY(write_manifest(run, arena, dir, step));
    return dir_sync(dir);
}

static int compare_steps(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of the checkpoint folders in `dir`, newest first. */
static Status list_steps(const char *dir, Arena *arena, int64_t **steps, size_t *count) {
    char **names;
    size_t n;
    *count = 0;
    *steps = NULL;
    if (!dir_exists(dir)) return ST_OK;
    TRY(dir_list(dir, arena, &names, &n));
    *steps = arena_alloc(arena, (n + 1) * sizeof **steps);
    if (!*steps) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++)
        if (checkpoint_step_of(names[i]) >= 0) (*steps)[(*count)++] = checkpoint_step_of(names[i]);
    qsort(*steps, *count, sizeof **steps, compare_steps);
    return ST_OK;
}

/* Renames first, so that an interrupted removal leaves no half checkpoint under its name. A rename that took place and could not be synced is
 * followed by the removal, too: the space is needed. */
static Status remove_step(Arena *arena, const char *dir, int64_t step) {
    const char *from = step_path(arena, dir, "", step, NULL), *to = step_path(arena, dir, ".tmp-old-", step, NULL);
    if (!from || !to) return ST_RESOURCE;
    TRY(dir_remove(to));
    Status status = dir_rename(from, to);
    if (status == ST_OK) return dir_remove(to);
    Failure failure;
    failure_save(&failure, status);
    (void)dir_remove(to);
    return failure_restore(&failure);
}

static Status remove_old(const Run *run, Arena *arena, int64_t keep) {
    int64_t *steps;
    size_t n;
    TRY(list_steps(run->checkpoints_path, arena, &steps, &n));
    for (size_t i = (size_t)MAX(keep, 1); i < n; i++) TRY(remove_step(arena, run->checkpoints_path, steps[i]));
    return ST_OK;
}

static Status remove_after(const char *dir, Arena *arena, int64_t step) {
    int64_t *steps;
    size_t n;
    TRY(list_steps(dir, arena, &steps, &n));
    for (size_t i = 0; i < n && steps[i] > step; i++) TRY(remove_step(arena, dir, steps[i]));
    return ST_OK;
}

Status checkpoint_remove_after(const Run *run, int64_t step) {
    Arena *arena = arena_new(0);
    Status status = arena ? remove_after(run->checkpoints_path, arena, step) : status_fail(ST_RESOURCE, "out of memory for checkpoints");
    arena_free(arena);
    return status;
}

static Status train_checkpoint_save(Run *run, Arena *arena, int64_t step, const CheckpointItem *items, size_t n, const json_t *state, int64_t keep) {
    const char *dir = run->checkpoints_path, *aside = step_path(arena, dir, ".tmp-", step, NULL), *final = step_path(arena, dir, "", step, NULL);
    Manifest manifest;
    if (!aside || !final) return ST_RESOURCE;
    TRY(dir_make(dir));
    TRY(dir_remove(aside));
    Status status = write_all(run, arena, aside, step, items, n, state);
    if (status == ST_OK && dir_exists(final))
        status = checkpoint_verify(dir, step, &manifest) == ST_OK ? dir_remove(aside) : remove_step(arena, dir, step);
    if (status == ST_OK && !dir_exists(final)) status = dir_rename(aside, final);
    if (status == ST_OK) return remove_old(run, arena, keep);
    Failure failure;
    failure_save(&failure, status);
    (void)dir_remove(aside); /* frees the space; the first failure is the one to report */
    return status_prefix(failure_restore(&failure), "cannot save checkpoint of step %lld", (long long)step);
}

Status checkpoint_save(Run *run, int64_t step, const CheckpointItem *items, size_t n, const json_t *state, int64_t keep) {
    if (!run_writes(run)) return ST_OK;
    Arena *arena = arena_new(0);
    if (!arena) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    profile_lap(NULL);
    Status status = train_checkpoint_save(run, arena, step, items, n, state, keep);
    profile_lap("checkpoint");
    arena_free(arena);
    return status;
}

/* ---- reading ---- */

static Status verify_file(const json_t *files, const char *path, const char *name) {
    const json_t *entry = json_object_get(files, name);
    int64_t bytes = -1, sum = -1;
    uint64_t size;
    uint32_t crc;
    TRY(json_get_int(entry, path, "bytes", &bytes));
    TRY(json_get_int(entry, path, "crc32", &sum));
    TRY(file_checksum(path, &size, &crc));
    if (bytes < 0 || (uint64_t)bytes != size)
        return status_fail(ST_INPUT, "'%s' has %llu bytes, expected %lld", path, (unsigned long long)size, (long long)bytes);
    return sum == (int64_t)crc ? ST_OK : status_fail(ST_INPUT, "'%s' is damaged: its checksum differs", path);
}

static Status verify(Arena *arena, const char *dir, int64_t step, Manifest *manifest) {
    const char *path = step_path(arena, dir, "", step, "manifest.json");
    json_t *json;
    if (!path) return ST_RESOURCE;
    TRY(json_read_file(path, &json));
    int64_t version = -1, stated = -1, metrics = -1;
    Status status = json_get_int(json, path, "version", &version);
    if (status == ST_OK) status = json_get_int(json, path, "step", &stated);
    if (status == ST_OK) status = json_get_int(json, path, "metrics_bytes", &metrics);
    if (status == ST_OK && (version != 1 || stated != step || metrics < 0))
        status = status_fail(ST_INPUT, "'%s' is not the manifest of step %lld", path, (long long)step);
    const json_t *files = json_object_get(json, "files"), *sum = json_object_get(json, "crc32"); /* manifests of older versions have no sum */
    json_int_t own = status == ST_OK && sum ? manifest_sum(json) : 0;
    if (own < 0) status = status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    if (status == ST_OK && sum && json_integer_value(sum) != own) status = status_fail(ST_INPUT, "'%s' is damaged: its checksum differs", path);
    const char *recipe = json_string_value(json_object_get(json, "recipe"));
    *manifest = (Manifest){(uint64_t)MAX(metrics, 0), recipe ? strtoull(recipe, NULL, 16) : 0};
    for (size_t i = 0; i < COUNT_OF(file_names) && status == ST_OK; i++) {
        const char *file = step_path(arena, dir, "", step, file_names[i]);
        status = json_is_object(json_object_get(files, file_names[i])) ? verify_file(files, file, file_names[i])
                                                                       : status_fail(ST_INPUT, "'%s' lacks '%s'", path, file_names[i]);
    }
    json_decref(json);
    return status;
}

Status checkpoint_verify(const char *dir, int64_t step, Manifest *manifest) {
    Arena *arena = arena_new(0);
    if (!arena) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = verify(arena, dir, step, manifest);
    arena_free(arena);
    return status;
}

Status checkpoint_find(const char *dir, int64_t *step) { return checkpoint_find_up_to(dir, INT64_MAX, step); }

Status checkpoint_find_up_to(const char *dir, int64_t last, int64_t *step) {
    Arena *arena = arena_new(0);
    int64_t *steps;
    size_t n;
    *step = -1;
    if (!arena) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = list_steps(dir, arena, &steps, &n);
    for (size_t i = 0; status == ST_OK && i < n && *step < 0; i++) {
        Manifest manifest;
        if (steps[i] > last) continue;
        Status whole = checkpoint_verify(dir, steps[i], &manifest);
        if (whole == ST_OK) *step = steps[i];
        if (whole == ST_RESOURCE) status = whole; /* a lack of memory is no reason to skip the checkpoint */
    }
    arena_free(arena);
    return status;
}

static Status read_pieces(const CheckpointItem *item, const StoredTensor *stored) {
    const int64_t count = tensor_count(item->tensor);
    void *values = malloc(dtype_bytes(item->tensor->dtype, PIECE_ELEMENTS));
    Status status = values ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    for (int64_t at = 0; at < count && status == ST_OK; at += PIECE_ELEMENTS) {
        int64_t n = MIN((int64_t)PIECE_ELEMENTS, count - at);
        memcpy(values, (const char *)stored->data + dtype_bytes(item->tensor->dtype, at), dtype_bytes(item->tensor->dtype, n));
        status = item->write(item, at, n, values);
    }
    free(values);
    return status;
}

static Status fill_item(const WeightFile *set, const CheckpointItem *item, const char *path) {
    const StoredTensor *stored = weight_file_find(set, item->name);
    Tensor *tensor = item->tensor;
    if (!stored) return status_fail(ST_INPUT, "'%s' lacks tensor '%s'", path, item->name);
    bool same = stored->known && stored->dtype == tensor->dtype && stored->n_dims == tensor->n_dims && stored->bytes == tensor_bytes(tensor);
    for (int d = 0; same && d < tensor->n_dims; d++) same = stored->shape[d] == tensor->shape[d];
    char wanted[96];
    if (!same) return status_fail(ST_INPUT, "tensor '%s' in '%s' has another shape, expected %s", item->name, path, tensor_describe(tensor, wanted));
    return item->part ? read_pieces(item, stored) : tensor_upload(tensor, 0, tensor_count(tensor), stored->data);
}

Status tensors_load(const char *path, const CheckpointItem *items, size_t n) {
    WeightFile *set;
    TRY(weight_file_open(path, &set));
    Status status = set->n == n ? ST_OK : status_fail(ST_INPUT, "'%s' holds %zu tensors, expected %zu", path, set->n, n);
    for (size_t i = 0; i < n && status == ST_OK; i++) status = fill_item(set, &items[i], path);
    weight_file_close(set);
    return status;
}

static Status train_checkpoint_load(Arena *arena, const char *dir, int64_t step, const CheckpointItem *items, size_t n, json_t **state) {
    const char *path = step_path(arena, dir, "", step, file_names[0]), *state_path = step_path(arena, dir, "", step, file_names[1]);
    if (!path || !state_path) return ST_RESOURCE;
    TRY(tensors_load(path, items, n));
    return json_read_file(state_path, state);
}

Status checkpoint_load(Run *run, int64_t step, const CheckpointItem *items, size_t n, json_t **state) {
    *state = NULL;
    Arena *arena = arena_new(0);
    if (!arena) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = train_checkpoint_load(arena, run->checkpoints_path, step, items, n, state);
    arena_free(arena);
    return status;
}
