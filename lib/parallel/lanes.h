/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a step's gradients are added. It depends on the step alone, so that the sums have the same bits however the work is divided.
 *
 * A leaf is a part of a step whose gradient is computed at once: an accumulation step, or some of its rows. The leaves of a step are divided into
 * lanes of neighbours. Within a lane backward passes add to the gradients, leaf after leaf. The sums of the lanes are added in a fixed tree: pairs of
 * neighbours, aligned at powers of two. A node without a right half is its left half. A parameter without a gradient in a lane is left out of the
 * lane: it counts as absent, not as zero.
 *
 *     Lanes lanes = lanes_of("auto", accumulation_steps, true, 1);
 *     TRY(lane_sums_init(&sums, &params, lane_buffers(0, lanes.n), arena));
 *     for (int64_t lane = 0; lane < lanes.n; lane++) {
 *         for (int64_t leaf = lane_begin(lane, lanes.n, n_leaves); leaf < lane_begin(lane + 1, lanes.n, n_leaves); leaf++) ... backward ...
 *         if (lane + 1 < lanes.n) lane_sums_push(&sums, lane);
 *     }
 *     lane_sums_finish(&sums);                              // the gradients are those of the step
 */
#ifndef TUNE_LANES_H
#define TUNE_LANES_H

#include "lib/nn/nn.h"

/* The lanes of a run. */
typedef struct Lanes {
    int64_t n;    /* lanes of a full step */
    bool leaves;  /* each leaf is a lane: a step with fewer leaves has fewer lanes */
    int64_t cuts; /* leaves that each accumulation step is cut into, by rows */
} Lanes;
/* wanted: parallel.lanes: "auto", "leaves" or a number. auto: the largest power of two up to 16 and up to `batches`
 * for an adapter, 1 if every weight is trained, and at least one lane for each of the `ranks`. batches: accumulation steps of a full step. */
Lanes lanes_of(const char *wanted, int64_t batches, bool adapter, int64_t ranks);
static inline int64_t lanes_in(const Lanes *lanes, int64_t n_leaves) { return lanes->leaves ? n_leaves : lanes->n; } /* in a step */
/* The first leaf of a lane; lane n_lanes gives the number of leaves. Lanes are empty where there are fewer leaves. */
int64_t lane_begin(int64_t lane, int64_t n_lanes, int64_t n_leaves);

/* ---- sums of gradients ---- */

enum { LANE_MOST_NODES = 48 };
/* The sum of lanes begin .. begin + 2^level - 1; of the last lanes perhaps fewer. */
typedef struct LaneNode {
    int64_t begin;
    int level;
} LaneNode;
/* Sums of lanes that are waiting for their neighbours. */
typedef struct LaneSums {
    size_t n_trained;
    Tensor **gradients;                /* (n_trained) in list order */
    Tensor **buffers[LANE_MOST_NODES]; /* of each node, one tensor for each trained parameter in list order; `blank`: absent */
    LaneNode nodes[LANE_MOST_NODES];
    int n_nodes, n_buffers;
} LaneSums;
/* Gradient buffers that the lanes first .. end - 1 need in addition to the gradients themselves: log2(n), rounded down, for all n lanes of a step. */
int lane_buffers(int64_t first, int64_t end);
/* Makes the buffers in `arena`. ST_RESOURCE. */
Status lane_sums_init(LaneSums *sums, const Params *params, int n_buffers, Arena *arena);
/* Forgets the sums of a step that was not finished. */
void lane_sums_reset(LaneSums *sums);
/* Takes the gradients as the sum of `lane`, and leaves them blank. Lanes come in order; the last one is not pushed. */
void lane_sums_push(LaneSums *sums, int64_t lane);
/* Adds all sums to the gradients, which are the sum of the last lane. */
void lane_sums_finish(LaneSums *sums);
/* For a process that has some of the lanes. The number of the newest sums that `lane` joins in the tree; and adding these to the gradient of one
 * trained parameter, which is the sum of `lane`. */
int lane_sums_joins(const LaneSums *sums, int64_t lane);
void lane_sums_join(LaneSums *sums, int n, size_t parameter);

#endif
