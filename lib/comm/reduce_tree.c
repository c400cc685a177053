/* SPDX-License-Identifier: Apache-2.0 */
/* Sums by the fixed tree (tree_sum.h), and copies. Direct: each rank sends each owner its part, and the owner adds the nodes in the order of lanes.
 * Halving, for small sums of 2^k ranks: in step k a rank exchanges with rank ^ 2^k what the other's side owns; half of the vector first, then a
 * quarter. Both add the same pairs. */
#include "lib/comm/comm_parts.h"
#include "lib/comm/comm_world.h"

#include <string.h>

/* Halving has fewer messages, but packs them: it pays while the largest part has at most so many bytes. */
#define HALVING_BYTES ((size_t)256 << 10)

static int nodes_of(const CommWork *work, int rank) { return work->node_first[rank + 1] - work->node_first[rank]; }
static size_t part_of(const size_t *first, int rank) { return first[rank + 1] - first[rank]; }

/* Round to nearest even; NaN stays NaN. */
static uint16_t bf16_from(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_value(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- direct ---- */

/* The memory of a segment: nodes of others as they arrive, bf16 as it leaves, the node that is being added, the counter */
typedef struct DirectRoom {
    size_t stride; /* of the largest segment, in elements */
    uint8_t *arrived, *leaving;
    float *node, *kept;
} DirectRoom;

static size_t largest_segment(const Comm *comm, const size_t *first, size_t size) {
    size_t largest = 0;
    for (int rank = 0; rank < comm->size; rank++) largest = MAX(largest, part_of(first, rank));
    return (MIN(largest, COMM_SEGMENT / size) + 15) / 16 * 16;
}

static DirectRoom direct_room(const Comm *comm, const CommWork *work, size_t *bytes) {
    const size_t size = work->sum.bf16 ? sizeof(uint16_t) : sizeof(float);
    const size_t n_nodes = (size_t)work->node_first[comm->size], own = (size_t)nodes_of(work, comm->rank);
    size_t levels = 0;
    for (int level = 0; level < tree_levels(work->sum.lanes[comm->size]); level++) levels += !work->sum.kept || !work->sum.kept[level];
    DirectRoom room = {.stride = largest_segment(comm, work->sum.first, size)};
    const size_t arrived = (n_nodes - own) * room.stride * size;
    const size_t leaving = work->sum.bf16 ? (size_t)comm->size * own * room.stride * size : 0;
    const size_t node = work->sum.bf16 ? room.stride * sizeof(float) : 0;
    *bytes = arrived + leaving + node + levels * room.stride * sizeof(float);
    if (work->scratch) {
        room.arrived = work->scratch;
        room.leaving = room.arrived + arrived;
        room.node = (float *)(void *)(room.leaving + leaving);
        room.kept = (float *)(void *)(room.leaving + leaving + node);
    }
    return room;
}

/* The node as float: where it is, or widened from bf16 */
static const float *direct_node(const CommWork *work, const DirectRoom *room, const float *own, const uint8_t *arrived, size_t count) {
    if (!work->sum.bf16) return own ? own : (const float *)(const void *)arrived;
    const uint16_t *halves = (const uint16_t *)(const void *)arrived;
    for (size_t i = 0; i < count; i++) room->node[i] = bf16_value(own ? bf16_from(own[i]) : halves[i]);
    return room->node;
}

/* Adds all nodes of a segment of this rank's part. */
static void direct_add(const Comm *comm, const CommWork *work, const DirectRoom *room, size_t begin, size_t count) {
    const size_t size = work->sum.bf16 ? sizeof(uint16_t) : sizeof(float), from = work->sum.first[comm->rank];
    const int64_t n_lanes = work->sum.lanes[comm->size];
    const uint8_t *arrived = room->arrived;
    float *kept[TREE_LEVELS] = {NULL};
    for (int level = 0, used = 0; level < tree_levels(n_lanes); level++)
        kept[level] = work->sum.kept && work->sum.kept[level] ? work->sum.kept[level] + (begin - from) : room->kept + (size_t)used++ * room->stride;
    for (int rank = 0; rank < comm->size; rank++)
        for (int i = 0; i < nodes_of(work, rank); i++) {
            const TreeNode *node = &work->nodes[work->node_first[rank] + i];
            const float *own = rank == comm->rank ? work->sum.nodes[i] + begin : NULL;
            tree_push(kept, node->lane, node->level, direct_node(work, room, own, arrived, count), count);
            if (!own) arrived += room->stride * size;
        }
    if (work->sum.sum) tree_total(kept, n_lanes, work->sum.sum + (begin - from), count);
}

Status sum_direct(Comm *comm, CommWork *work, bool *ended) {
    const size_t size = work->sum.bf16 ? sizeof(uint16_t) : sizeof(float), *first = work->sum.first;
    const int own = nodes_of(work, comm->rank);
    size_t bytes, begin, count;
    DirectRoom room = direct_room(comm, work, &bytes);
    if (work->round == 0) {
        TRY(work_scratch(work, bytes));
        TRY(work_room(work, 2 * ((size_t)work->node_first[comm->size] + (size_t)comm->size * (size_t)(own + 1))));
        for (int hop = 1; hop < comm->size; hop++) {
            const int peer = (comm->rank + hop) % comm->size;
            TRY(work_announce(comm, work, peer, (size_t)own * part_of(first, peer) * size,
                              (size_t)nodes_of(work, peer) * part_of(first, comm->rank) * size));
        }
        return ST_OK;
    }
    if (work->round > 1) {
        count = segment_of(first[comm->rank], first[comm->rank + 1], size, work->round - 2, &begin);
        if (count) direct_add(comm, work, &room, begin, count);
    }
    *ended = true;
    for (int peer = 0; peer < comm->size; peer++) *ended &= segment_of(first[peer], first[peer + 1], size, work->round - 1, &begin) == 0;
    if (*ended) return ST_OK;
    uint8_t *arrived = room.arrived;
    count = segment_of(first[comm->rank], first[comm->rank + 1], size, work->round - 1, &begin);
    for (int rank = 0; rank < comm->size; rank++)
        for (int i = 0; rank != comm->rank && i < nodes_of(work, rank); i++, arrived += room.stride * size)
            if (count) TRY(work_receive(comm, work, rank, arrived, count * size));
    for (int hop = 1; hop < comm->size; hop++) {
        const int peer = (comm->rank + hop) % comm->size;
        count = segment_of(first[peer], first[peer + 1], size, work->round - 1, &begin);
        for (int i = 0; count && i < own; i++) {
            const void *data = work->sum.nodes[i] + begin;
            if (work->sum.bf16) {
                uint16_t *halves = (uint16_t *)(void *)room.leaving + ((size_t)peer * (size_t)own + (size_t)i) * room.stride;
                for (size_t e = 0; e < count; e++) halves[e] = bf16_from(work->sum.nodes[i][begin + e]);
                data = halves;
            }
            TRY(work_send(comm, work, peer, data, count * size));
        }
    }
    return ST_OK;
}

/* ---- halving ---- */

bool halving_fits(const Comm *comm, const CommWork *work) {
    const size_t *first = work->sum.first;
    if (comm->size < 4 || comm->size & (comm->size - 1)) return false;
    for (int rank = 0; rank < comm->size; rank++)
        if (nodes_of(work, rank) != 1 || work->nodes[work->node_first[rank]].level != work->nodes[0].level ||
            part_of(first, rank) * sizeof(float) >= HALVING_BYTES)
            return false;
    return true;
}

/* The parts whose owners are `side` modulo 2^(step + 1), into or out of a packed vector. Returns its elements. */
static size_t halving_pack(const Comm *comm, const CommWork *work, int step, int side, float *packed) {
    const size_t *first = work->sum.first;
    const int each = 2 << step;
    size_t n = 0;
    for (int owner = side % each; owner < comm->size; owner += each) {
        if (packed) memcpy(packed + n, work->sum.nodes[0] + first[owner], part_of(first, owner) * sizeof *packed);
        n += part_of(first, owner);
    }
    return n;
}

/* Adds what has arrived. The lower rank's sum is the left operand. */
static void halving_add(const Comm *comm, const CommWork *work, int step, const float *packed) {
    const size_t *first = work->sum.first;
    const int each = 2 << step;
    const bool lower = !(comm->rank >> step & 1);
    for (int owner = comm->rank % each; owner < comm->size; owner += each) {
        float *x = work->sum.nodes[0] + first[owner];
        const size_t n = part_of(first, owner);
        for (size_t i = 0; i < n; i++) x[i] = lower ? x[i] + packed[i] : packed[i] + x[i];
        packed += n;
    }
}

/* Two rounds for each step: announce, then all segments of the packed vectors */
Status sum_halving(Comm *comm, CommWork *work, bool *ended) {
    const int step = (int)(work->round / 2), peer = comm->rank ^ 1 << step;
    const size_t n = work->sum.first[comm->size], room = (n + 15) / 16 * 16;
    if (work->round == 0) TRY(work_scratch(work, 2 * room * sizeof(float)));
    float *leaving = (float *)(void *)work->scratch, *arrived = leaving + room;
    if (work->round > 0 && work->round % 2 == 0) halving_add(comm, work, step - 1, arrived);
    if (1 << step >= comm->size) {
        const size_t from = work->sum.first[comm->rank], own = part_of(work->sum.first, comm->rank);
        if (own) memmove(work->sum.sum, work->sum.nodes[0] + from, own * sizeof *work->sum.sum);
        *ended = true;
        return ST_OK;
    }
    const bool moves = work->round % 2;
    const size_t sends = halving_pack(comm, work, step, peer, moves ? leaving : NULL) * sizeof(float);
    const size_t receives = halving_pack(comm, work, step, comm->rank, NULL) * sizeof(float);
    TRY(work_room(work, 2 + (sends + receives) / COMM_SEGMENT + 2));
    if (!moves) return work_announce(comm, work, peer, sends, receives);
    for (size_t at = 0; at < receives; at += COMM_SEGMENT)
        TRY(work_receive(comm, work, peer, (uint8_t *)arrived + at, MIN(COMM_SEGMENT, receives - at)));
    for (size_t at = 0; at < sends; at += COMM_SEGMENT) TRY(work_send(comm, work, peer, (uint8_t *)leaving + at, MIN(COMM_SEGMENT, sends - at)));
    return ST_OK;
}

/* ---- copies ---- */

Status gather_direct(Comm *comm, CommWork *work, bool *ended) {
    const size_t size = work->gather.size, *first = work->gather.first;
    uint8_t *x = work->gather.x;
    size_t begin, count;
    *ended = work->round > 0;
    for (int rank = 0; rank < comm->size; rank++)
        *ended = *ended && segment_of(first[rank] * size, first[rank + 1] * size, 1, work->round - 1, &begin) == 0;
    if (*ended) return ST_OK;
    TRY(work_room(work, 2 * (size_t)comm->size));
    for (int hop = 1; hop < comm->size; hop++) {
        const int peer = (comm->rank + hop) % comm->size;
        if (work->round == 0) {
            TRY(work_announce(comm, work, peer, part_of(first, comm->rank) * size, part_of(first, peer) * size));
            continue;
        }
        count = segment_of(first[comm->rank] * size, first[comm->rank + 1] * size, 1, work->round - 1, &begin);
        if (count) TRY(work_send(comm, work, peer, x + begin, count));
        count = segment_of(first[peer] * size, first[peer + 1] * size, 1, work->round - 1, &begin);
        if (count) TRY(work_receive(comm, work, peer, x + begin, count));
    }
    return ST_OK;
}
