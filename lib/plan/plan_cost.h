/* SPDX-License-Identifier: Apache-2.0 */
/* Formulas of parallel training as plain functions in double: memory of states, messages by the alpha-beta model, pipelines, stages, speed-up.
 * Bytes, seconds; sources are at each declaration.
 *
 *     double bytes = plan_state_bytes(&plan_paper, SHARD_WEIGHTS, psi, 64);       // 16 psi / 64
 *     double seconds = message_ring(8, &link, bytes);
 *     TRY(plan_pipe_simulate(&(PlanPipe){.kind = PIPE_1F1B, .stages = 4, .micro = 8, .chunks = 1, .forward = f, .backward = b}, &result));
 */
#ifndef TUNE_PLAN_COST_H
#define TUNE_PLAN_COST_H

#include "lib/base/arena.h"
#include "lib/plan/plan_model.h"

/* ---- memory of weights, gradients and states (ZeRO, arXiv 1910.02054, section 3) ---- */

/* What the ranks of a data group divide among them; each value also divides what the values before it do. */
typedef enum PlanShard {
    SHARD_NONE,      /* nothing: every rank has all */
    SHARD_OPTIMIZER, /* states of the optimiser and master weights: ZeRO-1 */
    SHARD_GRADIENTS, /* gradients: ZeRO-2 */
    SHARD_WEIGHTS,   /* the weights that products read: ZeRO-3 */
    N_SHARDS
} PlanShard;
extern const char *const plan_shard_names[N_SHARDS];
/* Bytes of a trained parameter. */
typedef struct StateBytes {
    double weights, gradients, master, optimizer; /* weights: as products read them; master: f32 weights, kept in addition */
    bool converted; /* `weights` are made from the master weights by gathering, so they take memory only with SHARD_OPTIMIZER and SHARD_GRADIENTS */
} StateBytes;
extern const StateBytes plan_paper;        /* 2 + 2 + 12: 16-bit training with f32 weights and AdamW in the optimiser's part */
extern const StateBytes plan_program;      /* 4 + 4 + 8: f32 weights, f32 gathers */
extern const StateBytes plan_program_bf16; /* 2 + 4 + (4 + 8): weights are gathered as bf16 */
/* Bytes of a rank for psi trained parameters. */
double plan_state_bytes(const StateBytes *bytes, PlanShard shard, double psi, double ranks);
/* Bytes of a rank's further gradient buffers, for sums of `lanes` parts in a fixed order: log2(lanes / ranks) buffers of 4 psi bytes; with divided
 * gradients log2(lanes) buffers of 4 psi / ranks bytes. Logarithms are rounded up. */
double plan_lane_bytes(PlanShard shard, double psi, double lanes, double ranks);
/* What is recomputed in the formulas of arXiv 2205.05198. */
typedef enum PaperKeep {
    PAPER_NONE,      /* nothing */
    PAPER_SELECTIVE, /* attention's scores */
    PAPER_FULL       /* the layer */
} PaperKeep;
/* Activations of a layer in 16 bits, in bytes, on one of `tensor` ranks: the rows of table 2 of arXiv 2205.05198, such as sbh(34 + 5as/h), with s
 * tokens, b rows, h hidden, a heads. sequence: with sequence parallelism. */
double plan_paper_activations(double tokens, double rows, double hidden, double heads, double tensor, bool sequence, PaperKeep recompute);

/* ---- messages ---- */

typedef struct LinkSpeed {
    double bytes_per_second, latency; /* in one direction; seconds of a bulk message beyond its bytes */
} LinkSpeed;
/* Seconds of an all-reduce of n bytes over `ranks` ranks, by algorithm. One half of it (reduce-scatter or all-gather) takes half the time. */
double message_ring(double ranks, const LinkSpeed *link, double n);
double message_halving(double ranks, const LinkSpeed *link, double n); /* ranks: rounded up to a power of two */
double message_tree(double ranks, const LinkSpeed *link, double n);    /* sums go up a tree, the result down; each message is the whole vector */
double message_master(double ranks, const LinkSpeed *link, double n);  /* one rank receives all and sends all */
double message_sent(double ranks, double n);                           /* bytes that a rank of a ring or halving sends */
/* Seconds of an all-reduce of n bytes first inside each host, then between hosts: ranks = hosts x inside. share: number of ranks of a host that use
 * its link to other hosts at the same time. */
double message_two_levels(double hosts, double inside, const LinkSpeed *inner, const LinkSpeed *outer, double share, double n);
/* Bucket k is ready at ready[k] seconds and takes cost[k]; buckets are sent in order. Returns the seconds from `end` to the end of the last one, at
 * least 0. */
double message_exposed(const double *ready, const double *cost, size_t n, double end);

/* ---- pipelines, simulated from the table of each stage ---- */

typedef enum PlanPipeKind {
#define PIPE(constant, name, help) constant,
#include "lib/plan/pipes.def"
#undef PIPE
    N_PIPES
} PlanPipeKind;
extern const char *const plan_pipe_names[N_PIPES], *const plan_pipe_helps[N_PIPES];
typedef struct PlanPipe {
    PlanPipeKind kind;
    int64_t stages, micro, chunks;    /* chunks: runs of layers per stage, interleaved only; micro is then a multiple of stages */
    const double *forward, *backward; /* seconds of a micro-batch on each stage, all its chunks together */
    const double *weight;             /* zero_bubble: the part of `backward` that computes gradients of weights; NULL = half */
    double transfer;                  /* seconds of a boundary's message */
} PlanPipe;
typedef struct PlanPipeResult {
    double makespan;
    double bubble; /* share of the makespan in which a stage is idle, mean over stages */
    double *kept;  /* per stage: most micro-batches whose activations are kept at once; from the arena */
    double inputs; /* gpipe: inputs of micro-batches that every stage keeps in addition */
} PlanPipeResult;
/* Simulates the pipeline. ST_CONFIG: sizes that the schedule does not have, such as an interleaved one whose micro-batches are no multiple of the
 * stages. */
Status plan_pipe_simulate(const PlanPipe *pipe, Arena *arena, PlanPipeResult *result);
double plan_pipe_bubble(double stages, double micro, double chunks); /* of the total: (p-1) / (vm + p - 1) */
double plan_pipe_ideal_speedup(double stages, double micro);         /* GPipe (arXiv 1811.06965): K M / (M + K - 1) */

/* ---- stages ---- */

/* Divides layers over p stages, so that the largest cost of a stage is as small as possible; among equal divisions, the lexicographically smallest
 * list of counts. cost: (layers); last: cost of what the last stage has in addition (the head). counts: (p), written, each at least 1. *balance: mean
 * cost of a stage / largest; may be NULL. ST_CONFIG: more stages than layers; ST_RESOURCE. */
Status stages_balance(const double *cost, int64_t layers, double last, int64_t p, Arena *arena, int64_t *counts, double *balance);
/* PipeDream's partition (arXiv 1806.03377, section 3.2). time: seconds of a layer for a micro-batch, forward and backward; weights: bytes; output:
 * bytes that leave it. A stage of r ranks takes max(sum of times, time to reduce its weights) / r per micro-batch, a boundary twice its transfer. */
typedef struct PipedreamStage {
    int64_t first, layers, ranks;
} PipedreamStage;
typedef struct PipedreamPlan {
    double seconds;  /* per micro-batch, of the slowest stage or boundary */
    int64_t n, noam; /* noam: micro-batches in flight that keep all busy, ceil(ranks / ranks of the first stage) */
    PipedreamStage *stages;
} PipedreamPlan;
Status stages_pipedream(const double *time, const double *weights, const double *output, int64_t layers, int64_t ranks, const LinkSpeed *link,
                        Arena *arena, PipedreamPlan *plan);

/* ---- speed-up and roofline ---- */

double speedup_amdahl(double f, double n);                                 /* 1 / ((1 - f) + f / n) */
double speedup_gustafson(double f, double n);                              /* (1 - f) + f n */
double speedup_fit(const double *ranks, const double *speedups, size_t n); /* f in 0..1 by least squares of 1 / speed-up; NaN without two points */
/* max(work / rate, bytes / bandwidth): operations, bytes, and both per second. */
double roofline_seconds(double work, double bytes, double rate, double bandwidth);

#endif
