/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised Hugging Face directories (quantization_config in config.json). A weight is stored as several tensors, such as qweight, qzeros and scales.
 * They become one tensor of the WeightFile, with the weight's name and shape; its values are computed when they are read (StoredTensor.read).
 *
 *     TRY(safetensors_read_directory(file, dir));
 *     TRY(quantized_join(file, dir));
 */
#ifndef TUNE_QUANTIZED_H
#define TUNE_QUANTIZED_H

#include "lib/base/json.h"
#include "lib/model/weight_file.h"

/* Joins the tensors of quantised weights, if the directory's config.json has a quantization_config that is supported; else changes nothing.
 * ST_INPUT: tensors that are missing or do not fit together, a variant of the method that is not supported. */
Status quantized_join(WeightFile *file, const char *dir);
/* Joins the tensors of quantised weights by this quantization_config; dir: for messages. Fails likewise. */
Status quantized_join_as(WeightFile *file, const char *dir, const json_t *quantization_config);
/* Replaces the values of a whole weight, of the tensor's shape, by those that the tensor's form stores for them: quantises and dequantises. false,
 * with the values unchanged: the form is only read. */
bool quantized_round(const StoredTensor *tensor, float *values);
bool quantized_is_read(const json_t *quantization_config); /* whether the method is one of quantized.def's METHODs */
/* Adds a hint to the failure `status`, for a method that is not read: what the user can do. Returns status. */
Status quantized_hint(Status status, const json_t *quantization_config);

/* ---- for the methods ---- */

bool bitsandbytes_round(const StoredTensor *tensor, float *values); /* quantized_round for its forms */
/* A directory whose tensors are being joined. */
typedef struct Joining {
    WeightFile *file;
    const char *dir;
    const json_t *settings; /* quantization_config; NULL: the file is no directory with one */
    const void *context;    /* of joining_run's caller */
    StoredTensor *joined;   /* n_joined weights so far */
    size_t n_joined, cap_joined;
    bool *taken; /* per tensor of `file`: it is a part of a weight, or has no use, so the result leaves it out */
} Joining;
/* Calls `join` with the tensors of `file`, then replaces those that it has taken by the weights that it has added. */
Status joining_run(WeightFile *file, const char *dir, const json_t *settings, const void *context, Status (*join)(Joining *joining));
/* Fills rows first .. first + rows - 1 with float32 values; a row is the last dimension. */
typedef void ReadRows(const void *parts, int64_t first, int64_t rows, float *values);
/* As StoredTensor.pack. */
typedef Status PackCodes(const void *parts, const CodeRoom *room, Packing **packing);
/* Finds the tensor "NAME.part" and marks it as taken. NULL: there is none. */
const StoredTensor *joining_find(Joining *joining, const char *name, const char *part);
/* The same, and ST_INPUT unless it is there with this dtype ("I32"; NULL: any float dtype) and shape. */
Status joining_need(Joining *joining, const char *name, const char *part, const char *dtype, int n_dims, const int64_t *shape,
                    const StoredTensor **tensor);
/* Adds the weight `name` of this shape. text: its dtype for messages; more: bytes of the parts other than `codes`; read, pack, parts: as in
 * StoredTensor. ST_RESOURCE. */
Status joining_add(Joining *joining, const char *name, int n_dims, const int64_t *shape, const char *text, const StoredTensor *codes, size_t more,
                   ReadRows *read, PackCodes *pack, const void *parts);
/* Calls `join` with each NAME for which there is a tensor NAME + suffix. */
Status joining_each(Joining *joining, const char *suffix, Status (*join)(Joining *joining, const char *name));
/* How many inputs of a row share a scale, if a row of `in` inputs has n_groups scales. said: the group size in quantization_config; below 1: none.
 * ST_INPUT: such groups do not make the row. */
Status joining_group(const Joining *joining, const char *name, int64_t in, int64_t n_groups, int64_t said, int64_t *group);
Status joining_wrong(const Joining *joining, const char *name, const char *what); /* "cannot read the quantised weight 'NAME' in 'DIR': WHAT" */
void *joining_alloc(Joining *joining, size_t size);                               /* zeros, owned by the file; NULL: out of memory */
/* Element i of a float tensor, and all of them in `room` (NULL: out of memory). */
float stored_float(const StoredTensor *tensor, int64_t i);
float *stored_floats(const StoredTensor *tensor, const CodeRoom *room);
/* Code i of a stream of `bits` bits each in 32-bit words `stride` words apart, lowest bits first; codes may cross words. */
uint32_t stream_code(const uint8_t *words, int64_t stride, int bits, int64_t i);

#define METHOD(text, name) Status quantized_##name(Joining *joining);
#define REFUSED(text, help)
#include "lib/model/quantized/quantized.def"
#undef METHOD
#undef REFUSED

#endif
