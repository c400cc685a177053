/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a run: tensors by name and a few numbers, whole or not there. */
#ifndef TUNE_CHECKPOINT_H
#define TUNE_CHECKPOINT_H

#include "lib/run/run.h"
#include "lib/tensor/tensor.h"

/* A checkpoint: named tensors and a JSON object of counters, in checkpoints/step-N/: tensors.safetensors, state.json and, written last, manifest.json
 * with the size and CRC-32 of both, the length of metrics.jsonl and the recipe's fingerprint. Written aside, synced, renamed: a damaged or
 * half-written one is never taken, the newest whole one is. */
typedef struct CheckpointItem {
    const char *name;
    Tensor *tensor;
} CheckpointItem;
/* The same list as one safetensors file: written whole or not at all; read by name, ST_INPUT when a tensor is missing, of another form, or more than
 * was asked for is there. */
Status tensors_save(const char *path, const CheckpointItem *items, size_t n);
Status tensors_load(const char *path, const CheckpointItem *items, size_t n);
/* Older ones beyond `keep` are removed afterwards. ST_RESOURCE on a full disk; the checkpoints that were there stay. */
Status checkpoint_save(Run *run, int64_t step, const CheckpointItem *items, size_t n, const json_t *state, int64_t keep);
/* The newest whole checkpoint below `dir` (".../checkpoints"); *step = -1 when there is none. */
Status checkpoint_find(const char *dir, int64_t *step);
Status checkpoint_find_up_to(const char *dir, int64_t last, int64_t *step); /* the same of those up to step `last` */
/* Tensors are filled by name; one that is missing or of another shape is ST_INPUT. state: caller decrefs. */
Status checkpoint_load(Run *run, int64_t step, const CheckpointItem *items, size_t n, json_t **state);

#endif
