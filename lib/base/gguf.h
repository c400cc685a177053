/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files (versions 2 and 3; source: ggml's description of the format): metadata, and the places of tensors. The files are mapped, and every
 * length in them is checked. This header does not interpret keys: see lib/model/gguf and lib/text.
 *
 *     Gguf *gguf;
 *     TRY(gguf_open("model.gguf", &gguf));
 *     const char *architecture = NULL;
 *     TRY(gguf_text(gguf, "general.architecture", &architecture));   // stays NULL if the key is missing
 *     gguf_close(gguf);
 */
#ifndef TUNE_GGUF_H
#define TUNE_GGUF_H

#include "lib/base/arena.h"
#include "lib/base/file.h"
#include "lib/base/json.h"

/* Types of metadata, by their numbers in the file: integers, floats and others. */
typedef enum GgufType {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_LIST,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} GgufType;
typedef struct GgufValue {
    const char *key;
    GgufType type; /* of a list: of its elements; never GGUF_LIST */
    bool list;
    uint64_t n;          /* elements; 1 for a value that is no list */
    const uint8_t *data; /* in the mapped file, at any address */
    size_t bytes;        /* of all elements */
} GgufValue;
enum { GGUF_MAX_DIMS = 4 };
typedef struct GgufTensor {
    const char *name;
    int n_dims;
    int64_t shape[GGUF_MAX_DIMS]; /* the outermost dimension first, unlike in the file */
    int64_t count;                /* elements */
    uint32_t type;                /* ggml's number */
    uint64_t offset;              /* of its data in the file */
    size_t file;                  /* index of its file */
} GgufTensor;
typedef struct GgufFile {
    const char *path;
    Mapping mapping;
} GgufFile;
typedef struct Gguf {
    const GgufValue *values; /* n_values of the first file, in its order */
    size_t n_values;
    GgufTensor *tensors; /* n_tensors, in the order of the files */
    size_t n_tensors;
    GgufFile *files; /* n_files; more than one for a split model */
    size_t n_files;
    Arena *arena;
} Gguf;
bool gguf_is(const char *path); /* whether it is a file, not a folder, with a name that ends in .gguf */
/* Opens a file, or all files of a split model by its first one (-00001-of-00003.gguf). ST_INPUT: missing, cut off, an unknown version, lengths beyond
 * the file, a key or tensor twice, text that is not UTF-8, a tensor that begins outside of its file; not the first file of several. *gguf is then
 * NULL. */
Status gguf_open(const char *path, Gguf **gguf);
/* For tests: one file's bytes in memory, which the caller owns and which must outlive the result. path: for messages. */
Status gguf_parse(const void *bytes, size_t size, const char *path, Gguf **gguf);
void gguf_close(Gguf *gguf); /* NULL is fine */

const GgufValue *gguf_find(const Gguf *gguf, const char *key); /* NULL: there is none */
/* Metadata by key. A missing key leaves *value unchanged; a wrong type is ST_INPUT naming file and key. Texts stay valid until gguf_close. */
Status gguf_int(const Gguf *gguf, const char *key, int64_t *value);
Status gguf_real(const Gguf *gguf, const char *key, double *value);
Status gguf_bool(const Gguf *gguf, const char *key, bool *value);
Status gguf_text(Gguf *gguf, const char *key, const char **value);
/* The value as JSON: a new reference. A float32 becomes the shortest decimal number that rounds to it (1e-05, not 9.999999747378752e-06). ST_INPUT: a
 * number that JSON cannot hold. */
Status gguf_json(const Gguf *gguf, const GgufValue *value, json_t **json);
/* Returns the text of a list at *at and advances *at to the next one. *at: value->data for the first. Call it value->n times. The text is
 * borrowed. */
Slice gguf_next_text(const GgufValue *value, const uint8_t **at);
/* Element i of a list of numbers, as double; NaN for texts. */
double gguf_number_at(const GgufValue *value, uint64_t i);

#endif
