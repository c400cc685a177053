/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of merging share. */
#ifndef TUNE_MERGE_PARTS_H
#define TUNE_MERGE_PARTS_H

#include "sft/merge.h"

/* A tensor to write: one of the base's module `module`, or one that is copied unchanged. */
typedef struct Job {
    const char *name;
    const StoredTensor *passthrough; /* the tensor that is copied; NULL: a tensor of the module */
    size_t module, file, place;      /* index of the module; number of the file that it is written to; its place in the base */
    bool bias;                       /* the module's bias, else its weight */
    DType dtype;                     /* that it is written in */
    MergedTensor *result;
} Job;
typedef struct Merge {
    const MergeConfig *config;
    Arena *arena;
    Model *base;
    Model **adapted;  /* the base with one adapter each */
    const char *made; /* the directory that the output is written to */
    bool scores;      /* a reward model, with a score in place of the head */
    bool untie;       /* embedding and head, which the base ties */
    Job *jobs;
    size_t n_jobs;
    size_t n_written;
    RoundingLoss loss; /* of the adapters' changes */
    MergeResult *result;
} Merge;

/* The directory of the model that the adapters are added to. */
const char *merge_target(const MergeConfig *config);
/* A module's weight or bias. */
Tensor *module_tensor(const Model *model, size_t module, bool bias);
/* The change of a module's weight by LoRA (linear_change). expert: of a weight of all experts together, which of them; else 0. */
bool module_change(const Model *model, size_t module, int64_t expert, LoraBranch *branch, Tensor parts[2]);
int64_t module_experts(const Model *model, size_t module); /* that its weight is of; 1 for weights of one layer */
/* The magnitude of the module's DoRA branch, or NULL. */
Tensor *module_magnitude(const Model *model, size_t module);
/* The fully trained tensor, or NULL. */
const Tensor *module_saved(const Model *model, size_t module, bool bias);

/* Rows first .. first + n - 1 of a tensor. */
typedef struct Block {
    int64_t cols, first, n;
    float *base, *left, *change; /* base values, (n, cols); rows of a branch's B, or A^T if in_out, (n, rank); sum of deltas, (n, cols) */
    Tensor *factors, *delta;     /* views of `left` and `change`, or copies where the device has memory of its own */
    RoundingLoss *rows;          /* by row, so that the sum does not depend on the number of threads */
    double *norms;               /* of a DoRA branch: the length of each row of the changed weight; NULL: none, or not known yet */
} Block;
/* Allocates a block for a tensor (rows, cols) of the module in `arena`, and sets block->n: how many rows it has room for. ST_RESOURCE. */
Status block_new(const Merge *merge, Arena *arena, size_t module, int64_t rows, int64_t cols, Block *block);
/* Fills the block with rows first .. first + n - 1 of the module's weight or bias: base values and deltas. */
Status block_fill(const Merge *merge, size_t module, bool bias, int64_t first, int64_t n, Block *block);

/* Fills block->norms if the module has a DoRA branch, which needs all rows of the weight; else does nothing. */
Status block_find_norms(const Merge *merge, size_t module, Arena *arena, Block *block);

/* Fills result->requantised_lost. ST_RESOURCE. */
Status merge_requantise(Merge *merge);
/* For MergeConfig.prove: runs the base with the adapters and the merged model on a few tokens, and adds their differences to the result. With
 * MergeConfig.onto, the model that the adapters were trained on, with them, takes the base's place. The base is changed, and cannot be used
 * afterwards. */
Status merge_prove(Merge *merge);

#endif
