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
    PART(reference, "other models", "a reference with own weights, a teacher")   \
    PART(program, "program", "code, tokenizer, rows")
#define PLAN_SECOND_PARTS(PART)                                                         \
    PART(rollout, "generating", "answers, where a run makes them")                      \
    PART(forward, "forward", "of the slowest stage, all micro-batches")                 \
    PART(backward, "backward", "")                                                      \
    PART(recompute, "recompute", "forward again, by train.checkpointing")               \
    PART(passes, "other passes", "of a reference, a teacher, the policy before a step") \
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

/* What a layer keeps for the backward pass (train.checkpointing). */
typedef enum PlanKeep {
    KEEP_ALL,       /* all activations */
    KEEP_SELECTIVE, /* those that are expensive to compute again */
    KEEP_LAYERS     /* the input of the layer */
} PlanKeep;
/* What is trained: one optimiser step. */
typedef struct PlanRun {
    int64_t rows, accumulation;   /* sequences of an accumulation step, and accumulation steps of a step */
    double longest_row, mean_row; /* tokens: memory is planned for the longest rows, time for the mean */
    int64_t lora_rank;            /* 0: every weight is trained */
    const char *const *targets;   /* names of matrices with an adapter; n_targets 0 = all */
    size_t n_targets;
    double frozen_bytes;     /* bytes of a frozen weight in memory */
    bool share_frozen;       /* ranks that share a device which is no GPU have frozen weights once (parallel.share_frozen) */
    bool half;               /* products in 16 bits */
    double optimizer_states; /* numbers that the optimiser keeps for a parameter: 2 for AdamW */
    PlanKeep keep;
    double forward_passes;    /* number of further forward passes over the step's rows: of a reference, of the policy before a step; of a teacher, by
                               * its work relative to that of the model */
    double first_passes;      /* forward passes over all rows before the first step: of a reference */
    bool reference_weights;   /* the reference has weights of its own */
    double teacher_bytes;     /* of a teacher's weights; 0: none */
    double passes;            /* times that the step's rows are learned from */
    int64_t prompts, answers; /* generated in a step: prompts, and answers to each; 0 = none */
    double prompt_tokens, answer_tokens;
    double steps; /* of the run */
    double lanes; /* parallel.lanes: sums of a step's gradient; 0 = chosen by the layout */
} PlanRun;
typedef struct PlanTask {
    PlanModel model;
    PlanRun run;
    PlanMachine machine;
    int64_t machines;
    PlanLink link;                  /* between machines */
    int64_t ranks;                  /* 0: one on each device. If there are more ranks than devices, ranks share devices */
    double disk;                    /* bytes per second that a machine reads */
    int64_t data, tensor, pipeline; /* sizes that layouts must have (PlanLayout); 0: any */
} PlanTask;

/* Operations and bytes of one kind of op in a step of a single rank, forward and backward together. */
typedef struct PlanOp {
    const char *name;
    double work, bytes, seconds;
    bool bound_by_memory; /* its time follows from its bytes, not from its work */
} PlanOp;
enum { PLAN_OPS = 8 };

/* How ranks divide the work: data x tensor x pipeline ranks. */
typedef struct PlanLayout {
    /* Number of groups that divide the rows; of ranks that divide a matrix; of stages that divide the layers; runs of layers of a stage
     * (interleaved) */
    int64_t data, tensor, pipeline, chunks;
    PlanShard shard;
    PlanPipeKind schedule;
    int64_t micro_rows, micro; /* rows of a micro-batch, and micro-batches of a data group */
    double lanes;              /* number of partial sums of the gradient, which are added in a fixed order */
    const int64_t *layers;     /* (pipeline): number of layers of each stage; in the arena */
    PlanMemory memory;         /* of the rank that needs most; bytes */
    double peak_bytes;         /* their sum */
    PlanSeconds seconds;       /* of a step */
    double step_seconds;
    PlanBytes bytes;            /* that a rank sends in a step */
    double bubble;              /* share of the pipeline's time in which stages are idle */
    double speedup, efficiency; /* compared with one rank, whether or not the step fits into its memory; efficiency: speed-up per rank */
    bool fits;
    char why[160]; /* why it does not fit; "" if it does */
} PlanLayout;
enum { PLAN_BEST = 10, PLAN_REASONS = 8, PLAN_CURVE = 16 };
typedef struct PlanSearch {
    PlanLayout best[PLAN_BEST];    /* fastest first */
    size_t n_best, n_tried, n_fit; /* n_tried, n_fit: numbers of layouts */
    struct {
        char why[160];
        size_t n;
    } reasons[PLAN_REASONS]; /* why other layouts do not fit, the most frequent reasons */
    size_t n_reasons;
    PlanLayout least; /* the layout that takes least memory, if none fits */
    PlanOp ops[PLAN_OPS];
    size_t n_ops;
    /* The shortest step with 1, 2, 4, ... ranks, whether or not it fits into memory */
    double curve_ranks[PLAN_CURVE], curve_seconds[PLAN_CURVE];
    size_t n_curve;
    double divided;          /* f of Amdahl's law, fitted to the curve; NaN for one rank */
    PipedreamPlan pipedream; /* how PipeDream would divide the layers over the ranks; n 0: one rank, or too many */
    double pipedream_speedup;
    double load_seconds; /* reading the stored weights from disk */
} PlanSearch;
/* Computes one layout. The caller sets data, tensor, pipeline, chunks, shard, schedule and micro_rows; the function sets the other fields. If the
 * sizes do not divide the model or the step does not fit into memory, `fits` is false and `why` is set. ST_RESOURCE. */
Status plan_layout(const PlanTask *task, Arena *arena, PlanLayout *layout);
/* Computes all layouts of task->ranks ranks. ST_CONFIG: sizes out of range; ST_RESOURCE. A model that fits nowhere is no error: n_fit is 0. */
Status plan_search(const PlanTask *task, Arena *arena, PlanSearch *search);
/* For a task in which no layout fits: appends a sentence about what would fit, with fewer activations, an adapter or more ranks. */
Status plan_what_would_fit(const PlanTask *task, Arena *arena, Str *text);
double plan_step_tokens(const PlanRun *run);                                   /* tokens of a step, with rows of mean length */
double plan_layer_seconds(const PlanTask *task, int64_t layer, double tokens); /* forward, recompute and backward on one rank */
/* Bytes of a rank for a micro-batch of `tokens` tokens: */
double plan_layer_activations(const PlanTask *task, PlanRank rank, double tokens); /* activations of a layer */
double plan_layer_kept(const PlanTask *task, PlanRank rank, double tokens);        /* those of them that are kept until the backward pass */
double plan_other_activations(const PlanTask *task, PlanRank rank, double tokens); /* outside layers: the residual stream, short-lived gradients */
double plan_scratch(const PlanTask *task, double tokens);                          /* logits and the workspace of kernels */
double plan_head_kept(const PlanTask *task, double tokens); /* probabilities of a trained head that are kept for the backward pass */

#endif
