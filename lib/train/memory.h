/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that training will take, planned before the first step from the shapes of the largest one. */
#ifndef TUNE_TRAIN_MEMORY_H
#define TUNE_TRAIN_MEMORY_H

#include "lib/comm/comm.h"
#include "lib/model/model.h"
#include "lib/recipe/recipe.h"

/* The bytes that training will take, computed from shapes. */
typedef struct TrainMemory {
    size_t mapped; /* frozen weights in a mapped file: the system may reclaim these pages and read them again */
    size_t shared; /* frozen weights that the ranks of a machine have once, in each of them */
    size_t weights, packed, gradients, optimizer, best, activations; /* best: the weights of the best evaluation (early stopping) */
    size_t lanes, messages;                                          /* partial sums of gradients (lanes.h); gradients on their way over ranks */
    size_t scratch;                                                  /* workspaces of kernels */
    size_t rollout;              /* sampling: key/value cache, activations of a step, logits; 0 without sampling */
    size_t experience;           /* environments and their transitions; 0 without environments */
    size_t baseline;             /* the process without all that: code, tokenizer, rows; measured, plus an allowance for code that has not run yet */
    Checkpointing checkpointing; /* the choice that the sizes are for */
    int64_t part_tokens;         /* accumulation steps run in parts of at most this many tokens; 0 = not split */
    size_t before;               /* work that ends before all this begins, such as a teacher's answers; 0: none */
    size_t total;                /* the sum, or `before` if that is more: the largest resident size to expect */
    TapeBytes tape_bytes;        /* the details of `activations` */
} TrainMemory;
/* What train_memory_plan needs of a run. */
typedef struct MemoryTask {
    const Recipe *recipe;
    Model *model;
    Tape *tape;
    size_t lanes, messages; /* bytes, as of TrainMemory */
    Comm *comm;             /* the ranks that train together: they follow the choice of rank 0; NULL: one process */
    void *context;
    /* Forward and backward of the largest step, on a device that computes nothing. */
    Status (*largest)(void *context, Tape *meta);
    /* From now on steps process their rows in parts of at most this many tokens (at least one row) and sum the gradients; 0 = at once. NULL: not
     * supported. */
    void (*split)(void *context, int64_t most_tokens);
    const size_t *beside; /* bytes that the run takes in addition to training, e.g. for sampling; set by `largest`; NULL = none */
} MemoryTask;
/* Plans the memory of a run and reserves the tape's. With train.max_memory it sets the model's checkpointing and the split to the cheapest
 * choice below the limit, in this order: recompute a trained head's logits, norms and activations, split into parts, recompute entire layers,
 * smaller parts. ST_RESOURCE when none fits. Without it they follow the recipe, but a trained head's logits are recomputed when the machine lacks
 * the memory to keep them. A resumed run keeps its first choice (started.json in `run_dir`; NULL = a new run), because parts change the rounding
 * of sums.
 *
 * The same recipe on the same machine should get the same choice. So scratch memory is counted for 8 threads (more if there are more), and the
 * process's memory in steps of 2 MiB, its file pages in steps of 4 MiB (or 1/256 of the limit). This is not guaranteed: the process's memory is
 * measured, so runs may differ when it is near the edge of a step and a choice just fits; with more than 8 threads, when generation has a table
 * per thread; and on another machine or build. The last choice is compared with what this run really needs. */
Status train_memory_plan(const MemoryTask *task, const char *run_dir, TrainMemory *memory);
/* Called before a model of `n_weights` numbers is loaded for full training on so many ranks: ST_RESOURCE when weights, gradients and the optimiser's
 * state exceed the machine's free memory. */
Status train_memory_check_weights(const Recipe *recipe, int ranks, int64_t n_weights);
/* ST_RESOURCE, with a hint what to change, when `memory` exceeds the machine's free memory. */
Status train_memory_check(const Recipe *recipe, const TrainMemory *memory);
void train_memory_describe(const TrainMemory *memory, Str *text);  /* one line for people */
void train_memory_write(JsonWriter *w, const TrainMemory *memory); /* as "memory": {...}, for started.json */

#endif
