/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a run: named tensors and counters, written atomically. */
#ifndef TUNE_CHECKPOINT_H
#define TUNE_CHECKPOINT_H

#include "lib/run/run.h"
#include "lib/tensor/tensor.h"

/* A checkpoint consists of named tensors and a JSON object of counters in checkpoints/step-N/: tensors.safetensors, state.json and, written last,
 * manifest.json with the size and CRC-32 of both, the length of metrics.jsonl and the recipe's fingerprint. It is written to a temporary folder,
 * synced and renamed. Damaged or incomplete ones are never used; the newest complete one is. */
typedef struct CheckpointItem CheckpointItem;
struct CheckpointItem {
    const char *name;
    Tensor *tensor; /* with `part`: only its dtype and shape */
    /* A tensor that this process does not have as a whole: functions that give (read) or take (write) its elements at .. at + n - 1, called in order
     * from the first to the last element. NULL: an ordinary tensor. */
    void *part;
    Status (*read)(const CheckpointItem *item, int64_t at, int64_t n, void *values);
    Status (*write)(const CheckpointItem *item, int64_t at, int64_t n, void *values);
};
/* The same list as one safetensors file. It is written atomically and read by name: ST_INPUT when a tensor is missing, has another shape, or the
 * file has others. */
Status tensors_save(const char *path, const CheckpointItem *items, size_t n);
Status tensors_load(const char *path, const CheckpointItem *items, size_t n);
/* Saves a checkpoint, then removes all but the newest `keep`. ST_RESOURCE on a full disk; the existing checkpoints stay. */
Status checkpoint_save(Run *run, int64_t step, const CheckpointItem *items, size_t n, const json_t *state, int64_t keep);
/* The newest complete checkpoint in `dir` (".../checkpoints"); *step = -1 when there is none. */
Status checkpoint_find(const char *dir, int64_t *step);
Status checkpoint_find_up_to(const char *dir, int64_t last, int64_t *step); /* the newest one up to step `last` */
/* Fills the tensors by name; ST_INPUT when one is missing or has another shape. The caller decrefs *state. */
Status checkpoint_load(Run *run, int64_t step, const CheckpointItem *items, size_t n, json_t **state);

#endif
