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

typedef enum PlanShard { SHARD_NONE, SHARD_OPTIMIZER, SHARD_GRADIENTS, SHARD_WEIGHTS, N_SHARDS } PlanShard;
extern const char *const plan_shard_names[N_SHARDS];
/* Bytes of a trained parameter. whole: the weights that products read, which only `weights` divides; master: f32 weights kept in addition. */
typedef struct StateBytes {
    double weights, gradients, master, optimizer;
    bool converted; /* whole weights exist only where they are gathered from the f32 ones: neither undivided nor with SHARD_WEIGHTS */
} StateBytes;
extern const StateBytes plan_paper;        /* 2 + 2 + 12: 16-bit training with f32 weights and AdamW in the optimiser's part */
extern const StateBytes plan_program;      /* 4 + 4 + 8: f32 weights, f32 gathers */
extern const StateBytes plan_program_bf16; /* 2 + 4 + (4 + 8): weights are gathered as bf16 */
double plan_state_bytes(const StateBytes *bytes, PlanShard shard, double psi, double ranks);
/* Gradient buffers of lanes beyond the first one: log2(lanes / ranks) of 4 psi bytes; with gradients divided, log2(lanes) of 4 psi / ranks. */
double plan_lane_bytes(PlanShard shard, double psi, double lanes, double ranks);
/* Activations of a layer in 16 bits, in bytes: sbh(34 + 5as/h) and its kin (arXiv 2205.05198, table 2). */
typedef enum PaperKeep { PAPER_NONE, PAPER_SELECTIVE, PAPER_FULL } PaperKeep;
double plan_paper_activations(double tokens, double rows, double hidden, double heads, double tensor, bool sequence, PaperKeep recompute);

/* ---- messages ---- */

typedef struct LinkSpeed {
    double bytes_per_second, latency; /* one way; latency of bulk messages */
} LinkSpeed;
/* An all-reduce of n bytes over `ranks`; one half of it (reduce-scatter or all-gather) takes half the time. */
double message_ring(double ranks, const LinkSpeed *link, double n);
double message_halving(double ranks, const LinkSpeed *link, double n); /* ranks: rounded up to a power of two */
double message_tree(double ranks, const LinkSpeed *link, double n);    /* whole vectors up and down a tree */
double message_master(double ranks, const LinkSpeed *link, double n);  /* one rank receives all and sends all */
double message_sent(double ranks, double n);                           /* bytes that a rank of a ring or halving sends */
/* inside hosts first: ranks = hosts x inside. share: ranks of a host that use its link to others at the same time. */
double message_two_levels(double hosts, double inside, const LinkSpeed *inner, const LinkSpeed *outer, double share, double n);
/* Bucket k is ready at ready[k] and takes cost[k]; they are sent in order. Returns the time after `end` until the last one is through, at least 0. */
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
/* ST_CONFIG: sizes that the schedule does not have, as an interleaved one whose micro-batches are no multiple of the stages. */
Status plan_pipe_simulate(const PlanPipe *pipe, Arena *arena, PlanPipeResult *result);
double plan_pipe_bubble(double stages, double micro, double chunks); /* of the total: (p-1) / (vm + p - 1) */
double plan_pipe_ideal_speedup(double stages, double micro);         /* GPipe (arXiv 1811.06965): K M / (M + K - 1) */

/* ---- stages ---- */

/* Divides layers over p stages: the smallest largest sum of costs, then the lexicographically smallest list. last: cost of what the last stage has
 * in addition (the head). counts: p of them, each at least 1. balance: mean / largest. ST_CONFIG: more stages than layers. */
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
double roofline_seconds(double work, double bytes, double rate, double bandwidth);

#endif
