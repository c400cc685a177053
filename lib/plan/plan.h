/* SPDX-License-Identifier: Apache-2.0 */
/* What a training run takes on a machine, for one layout or for all of them: memory of a rank, time and bytes of a step, by part.
 *
 *     PlanSearch search;
 *     TRY(plan_search(&(PlanTask){.model = model, .run = run, .machine = machine, .link = link, .ranks = 8}, arena, &search));
 *     search.best[0].data, .tensor, .pipeline, .shard, .step_seconds, .peak_bytes
 */
#ifndef TUNE_PLAN_H
#define TUNE_PLAN_H

#include "lib/plan/plan_machine.h"

/* PART(name, title, what it is): the parts of memory, time and bytes, in the order in which they are shown. */
#define PLAN_MEMORY_PARTS(PART)                                                  \
    PART(frozen, "frozen weights", "in their stored form")                       \
    PART(weights, "trained weights", "f32")                                      \
    PART(gradients, "gradients", "f32")                                          \
    PART(lanes, "lanes", "gradient sums in a fixed order")                       \
    PART(states, "optimiser", "its averages")                                    \
    PART(activations, "activations", "kept for the backward pass, at the peak")  \
    PART(logits, "logits", "and the workspace of kernels")                       \
    PART(buckets, "buckets", "messages under way")                               \
    PART(gathered, "gathered layers", "two, where weights are divided")          \
    PART(versions, "versions", "weights of earlier steps (pipedream)")           \
    PART(cache, "key/value cache", "of answers, and what generating them takes") \
    PART(reference, "reference model", "where it is another one than the base")  \
    PART(program, "program", "code, tokenizer, rows")
#define PLAN_SECOND_PARTS(PART)                                                         \
    PART(rollout, "generating", "answers, where a run makes them")                      \
    PART(forward, "forward", "of the slowest stage, all micro-batches")                 \
    PART(backward, "backward", "")                                                      \
    PART(recompute, "recompute", "forward again, by train.checkpointing")               \
    PART(passes, "other passes", "of a reference, and of the policy before the step")   \
    PART(tensor, "tensor messages", "sums in every layer")                              \
    PART(gather, "gathering", "divided weights, as far as products do not hide it")     \
    PART(boundary, "boundaries", "between stages, as far as they are waited for")       \
    PART(bubble, "bubble", "idle stages")                                               \
    PART(reduce, "reducing", "gradients, as far as the backward pass does not hide it") \
    PART(optimizer, "optimiser", "")
#define PLAN_BYTE_PARTS(PART)        \
    PART(gradients, "gradients", "") \
    PART(weights, "weights", "")     \
    PART(tensor, "tensor", "")       \
    PART(boundary, "boundaries", "")
#define PLAN_FIELD(name, title, help) double name;
typedef struct PlanMemory {
    PLAN_MEMORY_PARTS(PLAN_FIELD)
} PlanMemory;
typedef struct PlanSeconds {
    PLAN_SECOND_PARTS(PLAN_FIELD)
} PlanSeconds;
typedef struct PlanBytes {
    PLAN_BYTE_PARTS(PLAN_FIELD)
} PlanBytes;
#undef PLAN_FIELD
typedef struct PlanPart {
    const char *name, *title, *help;
} PlanPart;
/* The parts as arrays: n names, and a struct of n doubles. */
enum {
    N_MEMORY_PARTS = sizeof(PlanMemory) / sizeof(double),
    N_SECOND_PARTS = sizeof(PlanSeconds) / sizeof(double),
    N_BYTE_PARTS = sizeof(PlanBytes) / sizeof(double)
};
extern const PlanPart plan_memory_parts[N_MEMORY_PARTS], plan_second_parts[N_SECOND_PARTS], plan_byte_parts[N_BYTE_PARTS];

typedef enum PlanKeep { KEEP_ALL, KEEP_SELECTIVE, KEEP_LAYERS } PlanKeep; /* train.checkpointing */
/* What is trained: one optimiser step. */
typedef struct PlanRun {
    int64_t rows, accumulation;   /* sequences of an accumulation step, and accumulation steps of a step */
    double longest_row, mean_row; /* tokens: memory is planned for the longest rows, time for the mean */
    int64_t lora_rank;            /* 0: every weight is trained */
    const char *const *targets;   /* names of matrices with an adapter; n_targets 0 = all */
    size_t n_targets;
    double frozen_bytes;     /* of a frozen weight in memory */
    bool half;               /* products in 16 bits */
    double optimizer_states; /* numbers that the optimiser keeps for a parameter: 2 for AdamW */
    PlanKeep keep;
    double forward_passes;    /* more forward passes over the step's rows: of a reference, of the policy before a step */
    bool reference_weights;   /* the reference has weights of its own */
    double passes;            /* times that the step's rows are learned from */
    int64_t prompts, answers; /* generated in a step: prompts, and answers to each; 0 = none */
    double prompt_tokens, answer_tokens;
    double steps; /* of the run */
} PlanRun;
typedef struct PlanTask {
    PlanModel model;
    PlanRun run;
    PlanMachine machine;
    int64_t machines;
    PlanLink link;                  /* between machines */
    int64_t ranks;                  /* 0: one on each device. More than devices share them */
    double disk;                    /* bytes per second that a machine reads */
    int64_t data, tensor, pipeline; /* sizes that layouts must have; 0: any */
} PlanTask;

/* Operations and bytes of one kind of op in a step of one rank without layout: forward and backward together. */
typedef struct PlanOp {
    const char *name;
    double work, bytes, seconds;
    bool bound_by_memory;
} PlanOp;
enum { PLAN_OPS = 8 };

typedef struct PlanLayout {
    int64_t data, tensor, pipeline, chunks;
    PlanShard shard;
    PlanPipeKind schedule;
    int64_t micro_rows, micro; /* rows of a micro-batch, and micro-batches of a data group */
    double lanes;
    const int64_t *layers; /* of each stage */
    PlanMemory memory;     /* of the rank that needs most */
    double peak_bytes;
    PlanSeconds seconds; /* of a step */
    double step_seconds;
    PlanBytes bytes;            /* that a rank sends in a step */
    double bubble;              /* share of the pipeline's time */
    double speedup, efficiency; /* against one rank, memory aside */
    bool fits;
    char why[160]; /* why it does not fit; "" if it does */
} PlanLayout;
enum { PLAN_BEST = 10, PLAN_REASONS = 8, PLAN_CURVE = 16 };
typedef struct PlanSearch {
    PlanLayout best[PLAN_BEST]; /* fastest first */
    size_t n_best, n_tried, n_fit;
    struct {
        char why[160];
        size_t n;
    } reasons[PLAN_REASONS]; /* why others fail, the most frequent ones */
    size_t n_reasons;
    PlanLayout least; /* the layout that takes least memory, if none fits */
    PlanOp ops[PLAN_OPS];
    size_t n_ops;
    /* the best time with 1, 2, 4, ... ranks, memory aside */
    double curve_ranks[PLAN_CURVE], curve_seconds[PLAN_CURVE];
    size_t n_curve;
    double divided;      /* f of Amdahl's law, fitted to the curve; NaN for one rank */
    double load_seconds; /* reading the stored weights from disk */
} PlanSearch;
/* One layout. layout: its sizes are set (data, tensor, pipeline, chunks, shard, schedule, micro_rows); the rest is computed. A layout that does not
 * divide or does not fit has fits false and says why. ST_RESOURCE: no memory. */
Status plan_layout(const PlanTask *task, Arena *arena, PlanLayout *layout);
/* All layouts of task->ranks ranks. ST_CONFIG: sizes out of range. A model that fits nowhere is no error: n_fit is 0. */
Status plan_search(const PlanTask *task, Arena *arena, PlanSearch *search);
/* What would fit where nothing does: fewer activations, an adapter, more ranks. Appends a sentence. */
Status plan_what_would_fit(const PlanTask *task, Arena *arena, Str *text);
double plan_step_tokens(const PlanRun *run);
/* Bytes of a rank's activations for a micro-batch of `tokens` tokens: of a layer, and what exists once (gradients at work, the residual stream). */
double plan_layer_activations(const PlanTask *task, PlanRank rank, double tokens);
double plan_layer_kept(const PlanTask *task, PlanRank rank, double tokens); /* by checkpointing: what is left of it until the backward pass */
double plan_other_activations(const PlanTask *task, PlanRank rank, double tokens);
double plan_scratch(const PlanTask *task, double tokens); /* logits and the workspace of kernels */

#endif
