/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a step: runs the step's leaves lane by lane (lanes.h), and sums their gradients. Ranks divide the leaves: each runs its own, and
 * the sums have the same bits on any number of ranks.
 *
 *     TRY(accumulator_init(&accumulator, &config, arena));
 *     TRY(accumulator_run(&accumulator, &(Leaves){.n = n_leaves, .n_lanes = n_lanes, .run = run_leaf, .context = context}));
 *     TRY(accumulator_vote(&accumulator, &leaves, records, sizeof *records, &interrupted));      // what other ranks' leaves gave
 *     TRY(accumulator_norm(&accumulator, 0, &norm));
 *     stepper_update(&stepper, params, norm, rate, number);                                      // of this rank's own elements
 *     TRY(accumulator_share(&accumulator));                                                      // the updated weights to all ranks
 */
#ifndef TUNE_ACCUMULATOR_H
#define TUNE_ACCUMULATOR_H

#include "lib/parallel/reducer.h"

/* What ranks divide besides the leaves of a step (parallel.shard). */
typedef enum ShardKind {
    SHARDS_NONE,
    SHARDS_OPTIMIZER, /* the optimiser's states: each rank updates its own elements (ZeRO-1) */
    SHARDS_GRADIENTS, /* also the sums of gradients (ZeRO-2) */
} ShardKind;
enum { ACCUMULATOR_MODELS = 2 };
typedef struct AccumulatorConfig {
    Comm *comm;                         /* NULL: one process */
    int64_t n_lanes;                    /* of a step */
    bool fewer;                         /* a step may have fewer of them */
    int64_t n_rounds;                   /* > 0: gradients are divided: leaves are dealt in turns, at most so many a step */
    bool divided;                       /* ranks update their own elements only; true with rounds */
    size_t bucket;                      /* bytes of gradients that travel together */
    bool late;                          /* no gradient leaves before the end of a backward pass */
    bool bf16;                          /* gradients travel to their owners as bf16 */
    int n_models;                       /* with gradients of their own */
    Params *params[ACCUMULATOR_MODELS]; /* of each */
} AccumulatorConfig;
typedef struct Accumulator {
    AccumulatorConfig config;
    int rank, size;
    LaneSums sums[ACCUMULATOR_MODELS];
    Reducer *reducers[ACCUMULATOR_MODELS]; /* NULL: one process */
    Comm *groups[ACCUMULATOR_MODELS];      /* of models after the first: its ranks again */
    int64_t *lanes;                        /* (size + 1): of a step, or of a round */
    Arena *arena;                          /* of a vote */
    TapeWatch several;                     /* of the last leaf with several models */
    TapeWatch polls;                       /* of leaves whose gradients do not leave yet: other ranks hear that this one works */
} Accumulator;
/* The leaves of a step. */
typedef struct Leaves {
    int64_t n, n_lanes;
    /* Forward and backward of a leaf. watch: for the last pass of the leaf (tape_watch); may be NULL */
    Status (*run)(void *context, int64_t leaf, const TapeWatch *watch);
    void *context;
} Leaves;

/* Marks which elements of the parameters this rank updates (Param.divided). Call it before memory is planned. ST_RESOURCE. */
Status accumulator_divide(const AccumulatorConfig *config);
/* How many ranks have no leaf in a step of so many leaves and lanes. */
int accumulator_idle(const AccumulatorConfig *config, int64_t n_leaves, int64_t n_lanes);
/* Makes room in `arena`. ST_RESOURCE. */
Status accumulator_init(Accumulator *accumulator, const AccumulatorConfig *config, Arena *arena);
void accumulator_release(Accumulator *accumulator);
const Shards *accumulator_shards(const Accumulator *accumulator, int model); /* NULL: one process */
/* Bytes that a rank needs for sums of lanes of one model, and for messages; the largest of all ranks. */
size_t accumulator_lane_bytes(const AccumulatorConfig *config, int model);
size_t accumulator_message_bytes(const AccumulatorConfig *config, int model);
/* For the plan of a step's memory. begin: until the end, `watch` stands for the watch that `run` of Leaves gets; it is NULL if gradients have memory
 * of their own. The reducer is in `arena`. ST_RESOURCE. */
Status accumulator_plan_begin(const AccumulatorConfig *config, Arena *arena, const TapeWatch **watch);
void accumulator_plan_end(const AccumulatorConfig *config);
/* Runs this process's leaves. Then the gradients are the step's; if divided, those of this rank's own elements (param_own_grad). Fails as `run` and
 * as comm_wait. */
Status accumulator_run(Accumulator *accumulator, const Leaves *leaves);
/* Forgets the gradients of a step. */
void accumulator_drop(Accumulator *accumulator);
/* Copies the records of all leaves to all ranks: records (n, size), of which each rank has filled its own. *interrupted: in, whether this process
 * is to end; out, whether one of them is. Parameters without a gradient on any rank become blank. Nothing to do in one process. */
Status accumulator_vote(Accumulator *accumulator, const Leaves *leaves, void *records, size_t size, bool *interrupted);
/* Buckets of gradients of all models, as reducer_count; zeros in one process. */
BucketCount accumulator_buckets(Accumulator *accumulator);
/* The norm of a model's gradient. Fails as comm_wait. */
Status accumulator_norm(Accumulator *accumulator, int model, double *norm);
/* If divided, copies the weights from the ranks that updated them to all. Fails as comm_wait. */
Status accumulator_share(Accumulator *accumulator);

#endif
