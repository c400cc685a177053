/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes of a step, and the sums of their gradients. */
#include "lib/parallel/lanes.h"

#include <stdlib.h>
#include <string.h>

enum { AUTO_LANES = 16 };

static int64_t power_from(int64_t n) {
    int64_t power = 1;
    while (power < n) power *= 2;
    return power;
}

static int64_t auto_lanes(int64_t batches, bool adapter, int64_t ranks) {
    int64_t n = 1;
    while (adapter && 2 * n <= MIN(batches, (int64_t)AUTO_LANES)) n *= 2;
    return MAX(n, power_from(ranks));
}

Lanes lanes_of(const char *wanted, int64_t batches, bool adapter, int64_t ranks) {
    int64_t n = strcmp(wanted, "auto") == 0     ? auto_lanes(batches, adapter, ranks)
                : strcmp(wanted, "leaves") == 0 ? batches
                                                : strtoll(wanted, NULL, 10);
    return (Lanes){.n = MAX(n, 1), .leaves = strcmp(wanted, "leaves") == 0, .cuts = n > batches ? (n + batches - 1) / batches : 1};
}

int64_t lane_begin(int64_t lane, int64_t n_lanes, int64_t n_leaves) { return lane * n_leaves / n_lanes; }

/* Whether `left` is the left half of the node whose right half is `right`. */
static bool completes(LaneNode left, LaneNode right) {
    int64_t lanes = (int64_t)1 << left.level;
    return left.level == right.level && left.begin + lanes == right.begin && left.begin % (2 * lanes) == 0;
}

/* Appends a lane to the nodes; it joins the newest ones that it completes. Returns how many these are. */
static int add_node(LaneNode *nodes, int *n_nodes, int64_t lane) {
    LaneNode node = {lane, 0};
    int joined = 0;
    for (; *n_nodes > 0 && completes(nodes[*n_nodes - 1], node); joined++) node = (LaneNode){nodes[--*n_nodes].begin, node.level + 1};
    nodes[(*n_nodes)++] = node;
    return joined;
}

int lane_buffers(int64_t first, int64_t end) {
    LaneNode nodes[LANE_MOST_NODES];
    int n = 0, most = 0;
    for (int64_t lane = first; lane + 1 < end; lane++) {
        add_node(nodes, &n, lane);
        most = MAX(most, n);
    }
    return most;
}

static Status new_buffer(const Params *params, Arena *arena, Tensor **buffer) {
    for (size_t i = 0; i < params->n; i++) {
        const Tensor *like = params->items[i].tensor;
        if (!params->items[i].trained) continue;
        *buffer = tensor_new(arena, tensor_device(like), like->dtype, like->n_dims, like->shape);
        if (!*buffer) return status_prefix(ST_RESOURCE, "partial gradient of '%s'", params->items[i].name);
        (*buffer++)->blank = true;
    }
    return ST_OK;
}

Status lane_sums_init(LaneSums *sums, const Params *params, int n_buffers, Arena *arena) {
    *sums = (LaneSums){.n_buffers = n_buffers};
    sums->gradients = arena_alloc(arena, MAX(params->n, 1) * sizeof *sums->gradients);
    if (!sums->gradients) return ST_RESOURCE;
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained) sums->gradients[sums->n_trained++] = params->items[i].tensor->grad;
    params_expect_copies(params, sums->n_buffers, arena);
    for (int b = 0; b < sums->n_buffers; b++) {
        sums->buffers[b] = arena_zero(arena, MAX(sums->n_trained, 1) * sizeof *sums->buffers[b]);
        if (!sums->buffers[b]) return ST_RESOURCE;
        TRY(new_buffer(params, arena, sums->buffers[b]));
    }
    return ST_OK;
}

void lane_sums_reset(LaneSums *sums) {
    for (int b = 0; b < sums->n_nodes; b++)
        for (size_t k = 0; k < sums->n_trained; k++) sums->buffers[b][k]->blank = true;
    sums->n_nodes = 0;
}

/* Exchanges a gradient and a partial sum, with whether they are absent. */
static void exchange(Tensor *a, Tensor *b) {
    bool blank = a->blank;
    tensor_swap(a, b);
    a->blank = b->blank;
    b->blank = blank;
}

/* grad = sum + grad, where an absent one adds nothing; the sum is absent afterwards. */
static void take_in(Tensor *sum, Tensor *grad) {
    if (sum->blank) return;
    if (grad->blank)
        exchange(sum, grad);
    else
        tensor_device(grad)->add(sum, grad, grad);
    sum->blank = true;
}

void lane_sums_join(LaneSums *sums, int n, size_t parameter) {
    for (int i = 1; i <= n; i++) take_in(sums->buffers[sums->n_nodes - i][parameter], sums->gradients[parameter]);
}

int lane_sums_joins(const LaneSums *sums, int64_t lane) {
    LaneNode nodes[LANE_MOST_NODES + 1];
    int n = sums->n_nodes;
    for (int i = 0; i < n; i++) nodes[i] = sums->nodes[i];
    return add_node(nodes, &n, lane);
}

static void join_all(LaneSums *sums, int n) {
    for (size_t k = 0; k < sums->n_trained; k++) lane_sums_join(sums, n, k);
}

void lane_sums_push(LaneSums *sums, int64_t lane) {
    profile_lap(NULL);
    join_all(sums, lane_sums_joins(sums, lane));
    add_node(sums->nodes, &sums->n_nodes, lane);
    ASSERT(sums->n_nodes <= sums->n_buffers, "%d partial sums, of %d", sums->n_nodes, sums->n_buffers);
    for (size_t k = 0; k < sums->n_trained; k++) exchange(sums->buffers[sums->n_nodes - 1][k], sums->gradients[k]);
    profile_lap("gradient sums");
}

void lane_sums_finish(LaneSums *sums) {
    if (sums->n_nodes == 0) return;
    profile_lap(NULL);
    join_all(sums, sums->n_nodes);
    sums->n_nodes = 0;
    profile_lap("gradient sums");
}
