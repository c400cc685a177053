/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and copies around a ring: each rank sends only to the next one. In step s of a sum, rank r sends part r - s - 1 and adds what arrives to part
 * r - s - 2, modulo the number of ranks; after size - 1 steps it has its own part whole. In step s of a copy it sends part r - s. Also the sum of the
 * library. */
#include "lib/comm/comm_parts.h"
#include "lib/comm/comm_world.h"

#include <string.h>

static int around(const Comm *comm, int64_t rank) { return (int)((rank % comm->size + comm->size) % comm->size); }
static size_t part_bytes(const size_t *first, int rank, size_t size) { return (first[rank + 1] - first[rank]) * size; }

/* All nodes of this rank in one vector: the first node, or, without one, scratch memory with the value of an absent lane. */
static float *ring_vector(const Comm *comm, const CommWork *work, float *absent) {
    const int n_nodes = work->node_first[comm->rank + 1] - work->node_first[comm->rank];
    return n_nodes > 0 ? work->sum.nodes[0] : absent;
}

static Status ring_reserve(const Comm *comm, CommWork *work, size_t room) {
    const size_t n = work->sum.first[comm->size];
    const int n_nodes = work->node_first[comm->rank + 1] - work->node_first[comm->rank];
    TRY(work_scratch(work, (room + (n_nodes > 0 ? 0 : n)) * sizeof(float)));
    float *absent = (float *)(void *)work->scratch + room;
    for (size_t i = 0; n_nodes == 0 && i < n; i++) absent[i] = -0.0f;
    for (int node = 1; node < n_nodes; node++)
        for (size_t i = 0; i < n; i++) work->sum.nodes[0][i] += work->sum.nodes[node][i];
    return ST_OK;
}

/* Segments of the largest part; the same number in each step, so that all ranks know where they are. */
static int64_t ring_segments(const Comm *comm, const size_t *first, size_t size) {
    size_t largest = 0;
    for (int rank = 0; rank < comm->size; rank++) largest = MAX(largest, part_bytes(first, rank, size));
    return (int64_t)((largest + COMM_SEGMENT - 1) / COMM_SEGMENT);
}

/* What this rank sends and receives in all: every part but one */
static Status ring_announce(Comm *comm, CommWork *work, const size_t *first, size_t size, int sent_last, int received_last) {
    const size_t all = first[comm->size] * size;
    TRY(work_room(work, 4));
    TRY(work_announce(comm, work, around(comm, comm->rank + 1), all - part_bytes(first, sent_last, size), 0));
    return work_announce(comm, work, around(comm, comm->rank - 1), 0, all - part_bytes(first, received_last, size));
}

Status sum_ring(Comm *comm, CommWork *work, bool *ended) {
    const size_t *first = work->sum.first, room = COMM_SEGMENT / sizeof(float);
    const int64_t segments = ring_segments(comm, first, sizeof(float)), at = work->round - 1;
    const int rank = comm->rank;
    size_t begin, count;
    if (work->round == 0) {
        TRY(ring_reserve(comm, work, room));
        return ring_announce(comm, work, first, sizeof(float), rank, around(comm, rank - 1));
    }
    float *arrived = (float *)(void *)work->scratch, *x = ring_vector(comm, work, arrived + room);
    if (at > 0) {
        const int part = around(comm, rank - (at - 1) / segments - 2);
        count = segment_of(first[part], first[part + 1], sizeof(float), (at - 1) % segments, &begin);
        for (size_t i = 0; i < count; i++) x[begin + i] += arrived[i];
    }
    if (at >= segments * (comm->size - 1)) {
        if (first[rank + 1] > first[rank]) memmove(work->sum.sum, x + first[rank], part_bytes(first, rank, sizeof(float)));
        *ended = true;
        return ST_OK;
    }
    const int sends = around(comm, rank - at / segments - 1), adds = around(comm, rank - at / segments - 2);
    TRY(work_room(work, 2));
    count = segment_of(first[sends], first[sends + 1], sizeof(float), at % segments, &begin);
    if (count) TRY(work_send(comm, work, around(comm, rank + 1), x + begin, count * sizeof(float)));
    count = segment_of(first[adds], first[adds + 1], sizeof(float), at % segments, &begin);
    return count ? work_receive(comm, work, around(comm, rank - 1), arrived, count * sizeof(float)) : ST_OK;
}

Status gather_ring(Comm *comm, CommWork *work, bool *ended) {
    const size_t size = work->gather.size, *first = work->gather.first;
    const int64_t segments = ring_segments(comm, first, size), at = work->round - 1;
    const int rank = comm->rank;
    uint8_t *x = work->gather.x;
    size_t begin, count;
    *ended = comm->size == 1 || at >= segments * (comm->size - 1);
    if (*ended) return ST_OK;
    if (work->round == 0) return ring_announce(comm, work, first, size, around(comm, rank + 1), rank);
    const int sends = around(comm, rank - at / segments), gets = around(comm, rank - at / segments - 1);
    TRY(work_room(work, 2));
    count = segment_of(first[sends] * size, first[sends + 1] * size, 1, at % segments, &begin);
    if (count) TRY(work_send(comm, work, around(comm, rank + 1), x + begin, count));
    count = segment_of(first[gets] * size, first[gets + 1] * size, 1, at % segments, &begin);
    return count ? work_receive(comm, work, around(comm, rank - 1), x + begin, count) : ST_OK;
}

/* The library writes its sum into memory of its own, since it may not overlap with what it reads. */
Status sum_library(Comm *comm, CommWork *work, bool *ended) {
    const size_t *first = work->sum.first, own = first[comm->rank + 1] - first[comm->rank], room = (own + 15) / 16 * 16;
    const size_t bytes = first[comm->size] * sizeof(float);
    *ended = work->round == 2;
    if (*ended && own) memcpy(work->sum.sum, work->scratch, own * sizeof(float));
    if (*ended) return ST_OK;
    TRY(work_room(work, 2 * (size_t)comm->size));
    if (work->round == 0) {
        TRY(ring_reserve(comm, work, room));
        for (int hop = 1; hop < comm->size; hop++) TRY(work_announce(comm, work, around(comm, comm->rank + hop), bytes, bytes));
        return ST_OK;
    }
    float *result = (float *)(void *)work->scratch;
    return work_library_sum(comm, work, ring_vector(comm, work, result + room), result, first);
}
