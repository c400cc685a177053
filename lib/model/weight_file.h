/* SPDX-License-Identifier: Apache-2.0 */
/* Named tensors in files: weights, adapters, checkpoints. Files are mapped, not read, and every length in them is checked.
 *
 *     WeightFile *file;
 *     TRY(weight_file_open("model-dir", &file));
 *     for (size_t i = 0; i < file->n; i++) printf("%s\n", file->tensors[i].name);
 *     const StoredTensor *embed = weight_file_find(file, "model.embed_tokens.weight"); // embed->dtype, embed->shape, embed->data
 *     weight_file_close(file);
 */
#ifndef TUNE_WEIGHT_FILE_H
#define TUNE_WEIGHT_FILE_H

#include "lib/base/arena.h"
#include "lib/base/file.h"
#include "lib/tensor/quant/packing.h"
#include "lib/tensor/tensor.h"

typedef struct HostMemory HostMemory; /* lib/comm/host_memory.h */
/* Where the codes of a weight go that are packed for products: `shared`, or NULL: the arena. What describes them is in the arena. */
typedef struct CodeRoom {
    Arena *arena;
    HostMemory *shared;
} CodeRoom;
void *codes_alloc(const CodeRoom *room, size_t bytes);                  /* NULL: out of memory */
void *codes_copy(const CodeRoom *room, const void *from, size_t bytes); /* likewise, with these bytes */
bool codes_filled(const CodeRoom *room);                                /* another process has written what codes_alloc returns */

typedef struct StoredTensor {
    const char *name;
    const char *dtype_text; /* as in the file: "BF16" */
    bool known;             /* `dtype` is set; false: a type that is no DType, such as "I64" */
    DType dtype;
    int n_dims;
    int64_t shape[8];
    int64_t count;       /* number of elements */
    const uint8_t *data; /* in a mapping, or in memory of the WeightFile; any alignment */
    size_t bytes;        /* in the file */
    /* Of a weight that several tensors of a quantised directory make together (its data is NULL): fills `values` with rows first .. first + rows - 1.
     * NULL: an ordinary tensor. */
    void (*read)(const void *parts, int64_t first, int64_t rows, float *values);
    /* Makes codes and statistics for products, in `room`: copies, or with packs_in_place a description of those in the mapping. ST_RESOURCE. NULL:
     * only values are read. */
    Status (*pack)(const void *parts, const CodeRoom *room, Packing **packing);
    bool packs_in_place;
    const void *parts;    /* argument of `read` and `pack` */
    const uint8_t *codes; /* of such a weight: its largest part, of codes_bytes, in a mapping */
    size_t codes_bytes;
    const char *file; /* path of its file: one of WeightFile.files */
} StoredTensor;

/* The tensors of one file, or of all files of a model. It owns the mappings and everything that its members point to. */
typedef struct WeightFile {
    StoredTensor *tensors; /* n of them: in file order, files in the order of their names */
    size_t n;
    StoredTensor **by_name; /* the same, sorted by name */
    const char **files;     /* n_files paths */
    Mapping *mappings;      /* one for each path */
    size_t n_files;
    Arena *arena;
} WeightFile;
/* Opens a file of weights, or a directory with model.safetensors or model.safetensors.index.json. A file whose name ends in .gguf is a GGUF file,
 * with the other files of a split model; the kind of another file follows from its first bytes. The caller calls weight_file_close. ST_INPUT:
 * missing, of an unknown kind, or not well formed; two tensors of one name. *file is then NULL. */
Status weight_file_open(const char *path, WeightFile **file);
void weight_file_close(WeightFile *file);                                       /* NULL is fine */
const StoredTensor *weight_file_find(const WeightFile *file, const char *name); /* NULL: there is none */
/* Whether the file stores codes instead of values: a quantised dtype, or a weight with `read`. */
bool stored_is_quantised(const StoredTensor *tensor);
/* Converts elements first .. first + n - 1 of a known dtype to the float dtype `to`. Of a quantised tensor they must be whole rows. ST_RESOURCE. */
Status stored_read(const StoredTensor *tensor, int64_t first, int64_t n, DType to, void *out);
bool weight_file_is_quantised(const WeightFile *file); /* whether any of its tensors is */
/* Appends "13 q4_k, 3 q6_k, 5 F32; 4.98 bits a weight", and returns the bits a weight. */
double weight_file_describe(const WeightFile *file, Str *text);
/* The mapping that contains these bytes of a tensor: to drop its pages, to watch it for truncation. NULL: none does. */
const Mapping *weight_file_mapping(const WeightFile *file, const void *data);
/* For tests: a file's bytes in memory, which the caller owns and which must outlive `file`. path: for messages. */
Status weight_file_parse(const void *bytes, size_t size, const char *path, WeightFile **file);
/* For tests: element `i` of any float dtype or I32, I64; NaN for other dtypes. */
double stored_get(const StoredTensor *tensor, int64_t i);

/* ---- for readers of a kind of file, which weight_file.c calls ---- */

/* weight_file_map maps one more file; weight_file_add_file also adds its tensors. path: must live as long as `file`, e.g. in its arena. ST_INPUT,
 * ST_RESOURCE. */
Status weight_file_map(WeightFile *file, const char *path, Mapping *mapping);
Status weight_file_add_file(WeightFile *file, const char *path);
/* Appends `n` empty tensors, which the reader fills, and returns the first. Earlier pointers to tensors become invalid. NULL: out of memory. */
StoredTensor *weight_file_add(WeightFile *file, size_t n);
/* Makes `by_name` of all tensors added so far. weight_file_open does this at its end; a reader calls it if it needs weight_file_find before.
 * ST_INPUT: two tensors of one name. */
Status weight_file_index(WeightFile *file);

#endif
