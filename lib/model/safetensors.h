/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors (github.com/huggingface/safetensors, "Format"): writing one file or several with an index. weight_file.h reads them.
 *
 *     SafetensorsWriter *writer;
 *     TRY(safetensors_writer_new("a.safetensors", &writer));
 *     safetensors_declare(writer, "a", DT_F32, 1, &n);
 *     safetensors_write(writer, values, sizeof values);
 *     return safetensors_commit(writer);
 */
#ifndef TUNE_SAFETENSORS_H
#define TUNE_SAFETENSORS_H

#include "lib/model/weight_file.h"

/* Writes one file: declare all tensors, each with a unique name, then pass their bytes in the same order (any piece size). The file appears complete
 * or not at all. safetensors_writer_new fails, with *writer NULL, if the file cannot be made; safetensors_commit returns the first failure of the
 * other calls. */
typedef struct SafetensorsWriter SafetensorsWriter;
Status safetensors_writer_new(const char *path, SafetensorsWriter **writer); /* __metadata__ starts with {"format":"pt"} */
void safetensors_declare(SafetensorsWriter *writer, const char *name, DType dtype, int n_dims, const int64_t *shape);
void safetensors_declare_as(SafetensorsWriter *writer, const StoredTensor *tensor); /* under its own name, in its own dtype of any kind */
/* Adds a key to __metadata__. */
void safetensors_metadata(SafetensorsWriter *writer, const char *key, const char *value);
void safetensors_write(SafetensorsWriter *writer, const void *bytes, size_t size);
/* Converts and writes `count` elements. */
void safetensors_write_as(SafetensorsWriter *writer, const void *elements, DType from_dtype, DType to_dtype, size_t count);
void safetensors_write_tensor(SafetensorsWriter *writer, const Tensor *tensor, DType to_dtype); /* all of its elements, converted */
bool safetensors_failed(const SafetensorsWriter *writer); /* tells the caller not to compute the remaining tensors: commit returns the failure */
Status safetensors_commit(SafetensorsWriter *writer);     /* frees the writer, also on failure */
void safetensors_abandon(SafetensorsWriter *writer);      /* frees it and leaves no file */
/* Writes model.safetensors.index.json in `dir`, for weights in several files. file: the name of the tensor's file within `dir`. bytes: of all
 * tensors. */
typedef struct IndexedTensor {
    const char *name, *file;
} IndexedTensor;
Status safetensors_write_index(const char *dir, const IndexedTensor *tensors, size_t n, uint64_t bytes);

/* ---- for weight_file.c ---- */

/* Adds the tensors of a file's bytes. ST_INPUT: truncated, header too long or no JSON, holes or overlaps, sizes that contradict shapes. */
Status safetensors_read(WeightFile *file, const char *path, const uint8_t *bytes, size_t size);
/* Adds those of model.safetensors, or of the files that model.safetensors.index.json names. ST_INPUT also for a directory with neither, and for a
 * tensor of the index that its file lacks. */
Status safetensors_read_directory(WeightFile *file, const char *dir);

#endif
