/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of merging share. */
#ifndef TUNE_MERGE_PARTS_H
#define TUNE_MERGE_PARTS_H

#include "sft/merge.h"

/* A tensor to be written: of module `module` of the base, or one that is carried along. */
typedef struct Job {
    const char *name;
    const StoredTensor *passthrough; /* NULL: of the module */
    size_t module, file, place;
    bool bias;
    DType dtype;
    MergedTensor *result;
} Job;
typedef struct Merge {
    const MergeConfig *config;
    Arena *arena;
    Model *base;
    Model **adapted;  /* the base with one adapter each */
    const char *made; /* where the output is made */
    bool scores;      /* of a reward model: there is a score instead of the head */
    bool untie;
    Job *jobs;
    size_t n_jobs;
    size_t n_written;
    RoundingLoss loss; /* of what adapters change */
    MergeResult *result;
} Merge;

/* A module's weight or bias. */
Tensor *module_tensor(const Model *model, size_t module, bool bias);
/* The module's LoRA branch, or NULL. */
const LoraBranch *module_lora(const Model *model, size_t module);
/* The tensor that was trained whole, or NULL. */
const Tensor *module_saved(const Model *model, size_t module, bool bias);

/* A block's base values in f32, and the sum of all deltas. */
typedef struct Block {
    int64_t cols, first, n;
    float *base, *left;
    Tensor delta;
    RoundingLoss *rows; /* by row, so that threads add up to the same sum */
} Block;
/* Room in `arena` for blocks of a tensor (rows, cols) of the module: block->n rows each. ST_RESOURCE. */
Status block_new(const Merge *merge, Arena *arena, size_t module, int64_t rows, int64_t cols, Block *block);
/* Rows first .. first + n - 1 of the module's weight or bias. */
void block_fill(const Merge *merge, size_t module, bool bias, int64_t first, int64_t n, Block *block);

/* Puts the adapters into the base, which is of no other use then, runs it and what was made on the probe, and adds to the result how far they are
 * apart. */
Status merge_prove(Merge *merge);

#endif
