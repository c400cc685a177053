/* SPDX-License-Identifier: Apache-2.0 */
/* Sums the gradients of a step over ranks, and copies weights from their owners to all ranks. Gradients travel in buckets: neighbours in the list of
 * all trained elements, from its end to its beginning, since backward passes reach the last layers first. A bucket leaves as soon as the backward
 * pass that reducer_watch watches has computed all of it, while that pass goes on. With rounds a lent gradient (Tensor.lent) then gives its memory
 * back to the tape, so a rank never has the gradients of all layers at once; the sums of its own elements are in Param.own_grad.
 *
 *     TRY(reducer_new(&config, arena, &reducer));
 *     ... all leaves of this rank's lanes but the last leaf (lanes.h) ...
 *     TRY(reducer_begin(reducer, &(ReducerRound){lanes, last_lane}));
 *     tape_watch(tape, reducer_watch(reducer));
 *     ... forward and backward of the last leaf ...
 *     tape_watch(tape, NULL);
 *     TRY(reducer_finish(reducer));                         // the gradients are those of the step; if divided, of this rank's own elements only
 */
#ifndef TUNE_REDUCER_H
#define TUNE_REDUCER_H

#include "lib/comm/comm.h"
#include "lib/parallel/lanes.h"
#include "lib/parallel/shards.h"

typedef struct Reducer Reducer;
typedef struct ReducerConfig {
    Comm *comm; /* of at least two ranks */
    const Params *params;
    LaneSums *sums;              /* of this rank's lanes */
    int64_t n_lanes;             /* of a step, at most */
    int most_nodes;              /* sums of lanes that this rank sends at most, at least 1 */
    int64_t n_rounds;            /* > 0: each leaf is summed at once (reducer_begin), of a step of at most so many */
    bool divided;                /* a rank gets the sums of its own elements only; true with rounds */
    bool bf16;                   /* gradients travel to their owner as bf16 (CommSum.bf16) */
    bool plans;                  /* for the memory plan: buckets send nothing, but lent gradients are given back */
    size_t first_bucket, bucket; /* bytes */
} ReducerConfig;
/* Makes a reducer in `arena`; it borrows what `config` points to. ST_RESOURCE. */
Status reducer_new(const ReducerConfig *config, Arena *arena, Reducer **reducer);
size_t reducer_bytes(const ReducerConfig *config); /* memory that it will take */
const Shards *reducer_shards(const Reducer *reducer);

/* What the gradients hold, or will hold after the backward pass to come. */
typedef struct ReducerRound {
    const int64_t *lanes; /* (ranks + 1): rank r holds the lanes lanes[r] .. lanes[r + 1] - 1 */
    int64_t last;         /* this rank's last lane, which is in the gradients; earlier ones are in LaneSums. -1: it holds none */
    bool ends;            /* with rounds: it is the last one of the step */
} ReducerRound;
void reducer_begin(Reducer *reducer, const ReducerRound *round);
const TapeWatch *reducer_watch(Reducer *reducer);
/* Sends what has not left yet, and waits for the sums. A parameter without a gradient on this rank adds nothing. With rounds the gradients are blank
 * afterwards; after the last one the sums of this rank's own elements are in Param.own_grad. Fails as comm_wait. */
Status reducer_finish(Reducer *reducer);
/* Buckets that left since the last call. early: of these, how many left while a watched backward pass went on. */
typedef struct BucketCount {
    int64_t left, early;
} BucketCount;
BucketCount reducer_count(Reducer *reducer);
void reducer_release(Reducer *reducer);             /* forgets Param.own_grad, whose memory is in the arena */
bool reducer_has(const Reducer *reducer, size_t k); /* whether this rank gave a gradient of trained parameter k in this step */
void reducer_absent(Reducer *reducer, size_t k);    /* no rank gave a gradient of trained parameter k */
/* The norm of the whole gradient from each rank's own elements: the same bits as params_grad_norm of one process. Fails as comm_wait. */
Status reducer_norm(Reducer *reducer, double *norm);
/* Copies all trained parameters from their owners to all ranks. Fails as comm_wait. */
Status reducer_gather_weights(Reducer *reducer);

#endif
