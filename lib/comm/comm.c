/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks, the queue of what is under way, waits, counts. */
#include "lib/comm/comm_world.h"
#include "lib/base/arena.h"
#include "lib/base/system.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A wait first looks again and again for so many seconds, then sleeps between looks. */
#define SPIN_SECONDS 1e-4
/* Seconds until a rank ends that does not print the failure */
#define LEAVE_SECONDS 2

static const char *const kind_words[] = {
#define COMM_KIND(name, word) word,
#include "lib/comm/comm_kinds.def"
#undef COMM_KIND
};
static const char *const reduce_words[] = {
#define REDUCE(name, word, meaning) word,
#include "lib/comm/reduces.def"
#undef REDUCE
};

const char *comm_kind_word(CommKind kind) { return kind_words[kind]; }

const char *comm_reduce_word(CommReduce reduce) { return reduce_words[reduce]; }

bool comm_reduce_find(const char *word, CommReduce *reduce) {
    for (size_t i = 0; i < COUNT_OF(reduce_words); i++)
        if (strcmp(reduce_words[i], word) == 0) {
            *reduce = (CommReduce)i;
            return true;
        }
    return false;
}

/* ---- groups ---- */

int comm_rank(const Comm *comm) { return comm ? comm->rank : 0; }
int comm_size(const Comm *comm) { return comm ? comm->size : 1; }
CommReduce comm_reduce(const Comm *comm) { return comm ? comm->world->config.reduce : COMM_TREE; }
const char *comm_title(const Comm *comm) { return comm ? comm->world->transport->title : ""; }

const char *comm_host(const Comm *comm, int rank) {
    if (!comm) return "";
    CommTransport *transport = comm->world->transport;
    return transport->host(transport->state, comm->ranks[rank]);
}

int comm_host_ranks(const Comm *comm, int *which) {
    int n = 0;
    *which = 0;
    for (int rank = 0; rank < comm_size(comm); rank++) {
        if (strcmp(comm_host(comm, rank), comm_host(comm, comm_rank(comm))) != 0) continue;
        if (rank < comm_rank(comm)) ++*which;
        n++;
    }
    return n;
}

static Comm *group_new(World *world, int size) {
    Comm *comm = calloc(1, sizeof *comm);
    if (comm) {
        comm->ranks = calloc((size_t)size, sizeof *comm->ranks);
        comm->sent = calloc((size_t)size, sizeof *comm->sent);
        comm->received = calloc((size_t)size, sizeof *comm->received);
        comm->world = world;
        comm->size = size;
    }
    if (!comm || !comm->ranks || !comm->sent || !comm->received) {
        if (comm) comm->world = NULL;
        comm_group_free(comm);
        status_fail(ST_RESOURCE, "no memory for a group of %d ranks", size);
        return NULL;
    }
    /* Control messages have tag 0. All ranks make their groups in the same order, so the numbers are equal. */
    comm->tag = ++world->n_groups;
    comm->next = world->groups;
    world->groups = comm;
    return comm;
}

void comm_group_free(Comm *comm) {
    if (!comm) return;
    if (comm->world)
        for (Comm **at = &comm->world->groups; *at; at = &(*at)->next)
            if (*at == comm) {
                *at = comm->next;
                break;
            }
    while (comm->first) {
        CommWork *next = comm->first->next;
        work_free(comm->first);
        comm->first = next;
    }
    free(comm->ranks);
    free(comm->sent);
    free(comm->received);
    free(comm);
}

typedef struct Place {
    int colour, key, rank;
} Place;

static int compare_places(const void *a, const void *b) {
    const Place *left = a, *right = b;
    if (left->key != right->key) return left->key < right->key ? -1 : 1;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

Status comm_split(Comm *parent, int colour, int key, Comm **group) {
    Place *places = NULL;
    const Place mine = {colour, key, parent->rank};
    size_t bytes;
    *group = NULL;
    if (!size_mul((size_t)parent->size, sizeof *places, &bytes) || !(places = malloc(bytes)))
        return status_fail(ST_RESOURCE, "no memory for groups of ranks");
    Status status = comm_gather_small(parent, "groups", &mine, sizeof mine, places);
    int size = 0;
    for (int i = 0; status == ST_OK && i < parent->size; i++)
        if (places[i].colour == colour) places[size++] = places[i];
    if (status == ST_OK) {
        qsort(places, (size_t)size, sizeof *places, compare_places);
        *group = group_new(parent->world, size);
        if (!*group) status = ST_RESOURCE;
    }
    for (int i = 0; *group && i < size; i++) {
        (*group)->ranks[i] = parent->ranks[places[i].rank];
        if (places[i].rank == parent->rank) (*group)->rank = i;
    }
    free(places);
    return status;
}

/* ---- works ---- */

static uint64_t name_hash(const char *name) { /* FNV-1a */
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

CommWork *work_new(Comm *comm, CommOperation operation, CommKind kind, const char *name, CommTurn *turn) {
    (void)comm;
    CommWork *work = calloc(1, sizeof *work);
    if (!work) {
        status_fail(ST_RESOURCE, "no memory for a message: %s", name);
        return NULL;
    }
    work->operation = operation;
    work->kind = kind;
    work->turn = turn;
    snprintf(work->name, sizeof work->name, "%s", name);
    return work;
}

void work_free(CommWork *work) {
    if (!work) return;
    free(work->posts);
    free((void *)work->sum.first);
    free((void *)work->sum.lanes);
    free((void *)work->sum.nodes);
    free((void *)work->sum.kept);
    free((void *)work->gather.first);
    free(work->nodes);
    free(work->node_first);
    free(work->scratch);
    free(work);
}

Status work_scratch(CommWork *work, size_t bytes) {
    work->scratch = aligned_alloc(64, (MAX(bytes, (size_t)1) + 63) / 64 * 64);
    return work->scratch ? ST_OK : status_fail(ST_RESOURCE, "no memory for %s: %zu bytes", work->name, bytes);
}

static const char interrupted_end[] = "end of an interrupted run";

static CommHeader header_of(const CommWork *work, uint32_t number, size_t bytes) {
    return (CommHeader){(uint32_t)work->kind | (uint32_t)work->operation << 8, number, bytes, name_hash(work->name)};
}

static CommPost *post_new(CommWork *work, int peer, void *data, size_t bytes, bool receives) {
    CommPost *post = &work->posts[work->n_posts++];
    *post = (CommPost){.data = data, .bytes = bytes, .peer = peer, .receives = receives};
    work->n_pending++;
    return post;
}

/* Posts stay where they are while they are pending, since a transport keeps their addresses: there is room for all of a turn beforehand. */
Status work_room(CommWork *work, size_t posts) {
    ASSERT(work->n_pending == 0, "%zu messages are pending", work->n_pending);
    work->n_posts = 0;
    return array_grow(&work->posts, &work->cap_posts, posts, sizeof *work->posts, "messages");
}

static Status post_begin(Comm *comm, CommPost *post) {
    CommTransport *transport = comm->world->transport;
    const int peer = comm->ranks[post->peer];
    void *data = post->is_header ? &post->header : post->data;
    return post->receives ? transport->receive(transport->state, peer, comm->tag, data, post->bytes, &post->request)
                          : transport->send(transport->state, peer, comm->tag, data, post->bytes, &post->request);
}

static void sent_keep(Comm *comm, const CommWork *work, int peer, uint32_t number, uint64_t bytes) {
    World *world = comm->world;
    Sent *sent = &world->sent[world->n_sent++ % SENT_LOG];
    *sent = (Sent){.peer = comm->ranks[peer], .tag = comm->tag, .number = number, .kind = work->kind, .bytes = bytes};
    memcpy(sent->name, work->name, sizeof sent->name);
}

static CommCount *counts_of(Comm *comm, int peer, CommKind kind) { return &comm->world->counts[comm->ranks[peer]][kind]; }

Status work_announce(Comm *comm, CommWork *work, int peer, size_t sends, size_t receives) {
    if (receives > 0) {
        CommPost *post = post_new(work, peer, NULL, sizeof(CommHeader), true);
        post->is_header = true;
        post->data = (void *)(uintptr_t)receives; /* what the header has to say */
        TRY(post_begin(comm, post));
    }
    if (sends > 0) {
        CommPost *post = post_new(work, peer, NULL, sizeof(CommHeader), false);
        post->is_header = true;
        post->header = header_of(work, comm->sent[peer]++, sends);
        sent_keep(comm, work, peer, post->header.number, sends);
        CommCount *count = counts_of(comm, peer, COMM_CONTROL);
        count->sent += sizeof(CommHeader);
        count->sent_segments++;
        TRY(post_begin(comm, post));
    }
    return ST_OK;
}

Status work_send(Comm *comm, CommWork *work, int peer, const void *data, size_t bytes) {
    CommCount *count = counts_of(comm, peer, work->kind);
    count->sent += bytes;
    count->sent_segments++;
    return post_begin(comm, post_new(work, peer, (void *)(uintptr_t)data, bytes, false));
}

Status work_receive(Comm *comm, CommWork *work, int peer, void *data, size_t bytes) {
    CommCount *count = counts_of(comm, peer, work->kind);
    count->received += bytes;
    count->got_segments++;
    return post_begin(comm, post_new(work, peer, data, bytes, true));
}

bool comm_has_library_sum(const Comm *comm) { return comm->world->transport->sum != NULL; }

Status work_library_sum(Comm *comm, CommWork *work, float *x, float *sum, const size_t *first) {
    CommTransport *transport = comm->world->transport;
    for (int peer = 0; peer < comm->size; peer++) {
        CommCount *count = counts_of(comm, peer, work->kind);
        if (peer == comm->rank) continue;
        count->sent += (first[peer + 1] - first[peer]) * sizeof(float);
        count->received += (first[comm->rank + 1] - first[comm->rank]) * sizeof(float);
        count->sent_segments++;
        count->got_segments++;
    }
    CommPost *post = post_new(work, -1, NULL, 0, false);
    return transport->sum(transport->state, comm->ranks, comm->size, comm->tag, x, sum, first, &post->request);
}

size_t segment_of(size_t from, size_t end, size_t size, int64_t segment, size_t *begin) {
    const size_t each = COMM_SEGMENT / size, skip = (size_t)segment * each;
    *begin = MIN(from + skip, end);
    return MIN(each, end - *begin);
}

static Status header_check(Comm *comm, CommWork *work, CommPost *post) {
    const CommHeader want = header_of(work, comm->received[post->peer]++, (size_t)(uintptr_t)post->data);
    char waits_for[2 * COMM_NAME];
    if (memcmp(&want, &post->header, sizeof want) == 0) return ST_OK;
    if (post->header.name == name_hash(interrupted_end)) {
        char words[96];
        return status_fail(ST_INTERRUPTED, "%s was interrupted", rank_words(comm->world, comm->ranks[post->peer], words));
    }
    operation_words(work->kind, work->name, want.bytes, waits_for, sizeof waits_for);
    return control_mismatch(comm->world, comm->ranks[post->peer], waits_for, &post->header, comm->tag);
}

/* Moves the first work of a group as far as it goes. *waits_for: the rank whose message is missing. */
static Status group_move(Comm *comm, int *waits_for) {
    World *world = comm->world;
    CommTransport *transport = world->transport;
    while (comm->first) {
        CommWork *work = comm->first;
        for (size_t i = 0; i < work->n_posts && work->n_pending > 0; i++) {
            CommPost *post = &work->posts[i];
            if (post->done) continue;
            TRY(transport->done(transport->state, &post->request, &post->done));
            if (!post->done) continue;
            work->n_pending--;
            world->moved_at = clock_seconds();
            if (post->peer >= 0 && post->receives) world->signs[comm->ranks[post->peer]].at = world->moved_at;
            if (post->is_header && post->receives) TRY(header_check(comm, work, post));
        }
        if (work->n_pending > 0) {
            for (size_t i = 0; i < work->n_posts; i++)
                if (!work->posts[i].done && (*waits_for < 0 || work->posts[i].receives) && work->posts[i].peer >= 0) {
                    *waits_for = comm->ranks[work->posts[i].peer];
                    if (work->posts[i].receives) break;
                }
            return ST_OK;
        }
        bool ended = false;
        work->n_posts = 0;
        TRY(work->turn(comm, work, &ended));
        work->round++;
        if (!ended) continue;
        comm->first = work->next;
        if (!comm->first) comm->last = NULL;
        comm->ended = work->number;
        work_free(work);
    }
    return ST_OK;
}

/* Moves all groups; the first failure stays. */
static void world_move(World *world, bool waiting) {
    control_poll(world, waiting);
    for (Comm *comm = world->groups; comm && world->failure.status == ST_OK; comm = comm->next) {
        int waits_for = -1;
        const Status status = comm->first ? group_move(comm, &waits_for) : ST_OK;
        if (status != ST_OK) world_fail(world, world->transport->rank, status);
        if (waiting && waits_for >= 0) world->waits_for = waits_for;
    }
}

Status work_start(Comm *comm, CommWork *work) {
    World *world = comm->world;
    if (world->failure.status != ST_OK) {
        work_free(work);
        return failure_restore(&world->failure);
    }
    work->number = ++comm->started;
    if (comm->last)
        comm->last->next = work;
    else
        comm->first = work;
    comm->last = work;
    world_move(world, false);
    return failure_restore(&world->failure);
}

int64_t comm_started(const Comm *comm) { return comm ? comm->started : 0; }

Status comm_wait(Comm *comm, int64_t number) {
    if (!comm) return ST_OK;
    World *world = comm->world;
    CommTransport *transport = world->transport;
    const double began = clock_seconds();
    for (double last = began; world->failure.status == ST_OK;) {
        world->waits_for = -1;
        world_move(world, true);
        if (comm->ended >= number) break;
        const double now = clock_seconds();
        if (world->waits_for >= 0) world->waited_for[world->waits_for] += now - last;
        world->waited += now - last;
        last = now;
        control_warn(world, began);
        const double still = now - MAX(began, world->moved_at);
        if (still < SPIN_SECONDS)
            sched_yield();
        else
            transport->idle(transport->state, still < 0.01 ? 50 : 500);
    }
    world->waits_for = -1;
    /* The others hear of it now, while the memory of all messages is still there. */
    if (world->failure.status != ST_OK) comm_fail(comm, failure_restore(&world->failure));
    return failure_restore(&world->failure);
}

Status comm_finish(Comm *comm) { return comm ? comm_wait(comm, comm->started) : ST_OK; }

void comm_poll(Comm *comm) {
    if (comm && comm->world->failure.status == ST_OK) world_move(comm->world, false);
}

Status comm_check(Comm *comm) {
    comm_poll(comm);
    if (!comm || comm->world->failure.status == ST_OK) return ST_OK;
    comm_fail(comm, failure_restore(&comm->world->failure));
    return failure_restore(&comm->world->failure);
}

/* ---- sums and copies ---- */

void comm_parts(const Comm *comm, size_t n, size_t unit, size_t *first) {
    const size_t size = (size_t)comm_size(comm), units = n / unit + (n % unit > 0);
    for (size_t rank = 0; rank <= size; rank++) {
        /* The first unit u with floor(u x size / units) >= rank */
        const size_t u = units / size * rank + (units % size * rank + size - 1) / size;
        first[rank] = comm_reduce(comm) == COMM_MASTER ? (rank > 0 ? n : 0) : MIN(u * unit, n);
    }
}

static void *copy_of(const void *from, size_t n, size_t size, Status *status) {
    size_t bytes;
    void *copy = size_mul(n, size, &bytes) ? malloc(MAX(bytes, (size_t)1)) : NULL;
    if (!copy)
        *status = status_fail(ST_RESOURCE, "no memory for messages between ranks");
    else if (bytes)
        memcpy(copy, from, bytes);
    return copy;
}

/* The nodes of all ranks */
static Status work_nodes(const Comm *comm, CommWork *work) {
    const int64_t *lanes = work->sum.lanes;
    TRY(array_resize(&work->node_first, (size_t)comm->size + 1, sizeof *work->node_first, "nodes of ranks"));
    int n = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        work->node_first[rank] = n;
        n += tree_nodes(lanes[rank], lanes[rank + 1], NULL);
    }
    work->node_first[comm->size] = n;
    TRY(array_resize(&work->nodes, (size_t)MAX(n, 1), sizeof *work->nodes, "nodes of ranks"));
    for (int rank = 0; rank < comm->size; rank++) tree_nodes(lanes[rank], lanes[rank + 1], work->nodes + work->node_first[rank]);
    return ST_OK;
}

static CommTurn *sum_turn(const Comm *comm, const CommWork *work) {
    const CommReduce reduce = comm->world->config.reduce;
    if (work->sum.kept || work->sum.bf16 || comm->size == 1) return sum_direct;
    if (reduce == COMM_RING) return sum_ring;
    if (reduce == COMM_MPI) return comm_has_library_sum(comm) ? sum_library : sum_ring;
    return reduce == COMM_TREE && halving_fits(comm, work) ? sum_halving : sum_direct;
}

Status comm_sum(Comm *comm, const CommSum *sum) {
    const size_t size = (size_t)comm->size;
    CommWork *work = work_new(comm, COMM_OP_SUM, sum->kind, sum->name, NULL);
    Status status = work ? ST_OK : ST_RESOURCE;
    if (!work) return status;
    work->sum = *sum;
    work->sum.first = copy_of(sum->first, size + 1, sizeof *sum->first, &status);
    int64_t *lanes = copy_of(sum->lanes ? (const void *)sum->lanes : (const void *)sum->first, size + 1, sizeof *lanes, &status);
    for (size_t rank = 0; lanes && !sum->lanes && rank <= size; rank++) lanes[rank] = (int64_t)rank;
    work->sum.lanes = lanes;
    work->sum.nodes = NULL;
    work->sum.kept = NULL;
    if (status == ST_OK) status = work_nodes(comm, work);
    if (status == ST_OK) {
        const int n_nodes = work->node_first[comm->rank + 1] - work->node_first[comm->rank];
        work->sum.nodes = copy_of(sum->nodes, (size_t)n_nodes, sizeof *sum->nodes, &status);
        if (sum->kept) work->sum.kept = copy_of(sum->kept, (size_t)tree_levels(lanes[size]), sizeof *sum->kept, &status);
    }
    if (status != ST_OK) {
        work_free(work);
        return status;
    }
    ASSERT(sum->kept || lanes[0] == 0, "the lanes begin with %lld", (long long)lanes[0]);
    work->turn = sum_turn(comm, work);
    return work_start(comm, work);
}

Status comm_gather(Comm *comm, const CommGather *gather) {
    CommWork *work =
        work_new(comm, COMM_OP_GATHER, gather->kind, gather->name, comm->world->config.reduce == COMM_RING ? gather_ring : gather_direct);
    Status status = work ? ST_OK : ST_RESOURCE;
    if (!work) return status;
    work->gather = *gather;
    work->gather.first = copy_of(gather->first, (size_t)comm->size + 1, sizeof *gather->first, &status);
    if (status != ST_OK) {
        work_free(work);
        return status;
    }
    return work_start(comm, work);
}

/* Turn 0 announces, the following ones move the segments of work->gather.x to all or to one. */
static Status small_turn(Comm *comm, CommWork *work, bool *ended) {
    const size_t bytes = work->gather.size;
    uint8_t *all = work->gather.x;
    if (work->round == 0 && bytes > 0) memcpy(all + (size_t)comm->rank * bytes, work->mine, bytes);
    size_t begin, count = segment_of(0, bytes, 1, work->round - 1, &begin);
    *ended = work->round > 0 && count == 0;
    if (*ended) return ST_OK;
    TRY(work_room(work, 2 * (size_t)comm->size));
    for (int hop = 1; hop < comm->size; hop++) {
        const int peer = (comm->rank + hop) % comm->size;
        if (work->round == 0) {
            TRY(work_announce(comm, work, peer, bytes, bytes));
        } else {
            TRY(work_send(comm, work, peer, all + (size_t)comm->rank * bytes + begin, count));
            TRY(work_receive(comm, work, peer, all + (size_t)peer * bytes + begin, count));
        }
    }
    return ST_OK;
}

Status comm_gather_small(Comm *comm, const char *name, const void *mine, size_t bytes, void *all) {
    if (!comm) {
        if (bytes) memmove(all, mine, bytes);
        return ST_OK;
    }
    CommWork *work = work_new(comm, COMM_OP_SMALL, COMM_SUMS, name, small_turn);
    if (!work) return ST_RESOURCE;
    work->gather.x = all;
    work->gather.size = bytes;
    work->mine = mine;
    TRY(work_start(comm, work));
    return comm_finish(comm);
}

static Status broadcast_turn(Comm *comm, CommWork *work, bool *ended) {
    const bool root = comm->rank == work->root;
    size_t begin, count = segment_of(0, work->gather.size, 1, work->round - 1, &begin);
    *ended = work->round > 0 && count == 0;
    if (*ended) return ST_OK;
    uint8_t *at = (uint8_t *)work->gather.x + begin;
    TRY(work_room(work, 2 * (size_t)comm->size));
    for (int rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank || (!root && rank != work->root)) continue;
        if (work->round == 0)
            TRY(work_announce(comm, work, rank, root ? work->gather.size : 0, root ? 0 : work->gather.size));
        else
            TRY(root ? work_send(comm, work, rank, at, count) : work_receive(comm, work, rank, at, count));
    }
    return ST_OK;
}

static Status message_turn(Comm *comm, CommWork *work, bool *ended) {
    size_t begin, count = segment_of(0, work->gather.size, 1, work->round - 1, &begin);
    *ended = work->round > 0 && count == 0;
    if (*ended) return ST_OK;
    uint8_t *at = (uint8_t *)work->gather.x + begin;
    TRY(work_room(work, 2));
    if (work->round == 0) return work_announce(comm, work, work->root, work->sends ? work->gather.size : 0, work->sends ? 0 : work->gather.size);
    return work->sends ? work_send(comm, work, work->root, at, count) : work_receive(comm, work, work->root, at, count);
}

static Status bytes_move(Comm *comm, CommWork *work, int other, bool sends, const void *data, size_t bytes) {
    if (!work) return ST_RESOURCE;
    work->gather.x = (void *)(uintptr_t)data;
    work->gather.size = bytes;
    work->root = other;
    work->sends = sends;
    TRY(work_start(comm, work));
    return comm_finish(comm);
}

Status comm_broadcast(Comm *comm, CommKind kind, const char *name, int root, void *data, size_t bytes) {
    if (!comm) return ST_OK;
    return bytes_move(comm, work_new(comm, COMM_OP_BROADCAST, kind, name, broadcast_turn), root, comm->rank == root, data, bytes);
}

Status comm_send(Comm *comm, CommKind kind, const char *name, int to, const void *data, size_t bytes) {
    return bytes_move(comm, work_new(comm, COMM_OP_MESSAGE, kind, name, message_turn), to, true, data, bytes);
}

Status comm_receive(Comm *comm, CommKind kind, const char *name, int from, void *data, size_t bytes) {
    return bytes_move(comm, work_new(comm, COMM_OP_MESSAGE, kind, name, message_turn), from, false, data, bytes);
}

/* ---- what a rank does, failures, counts ---- */

void comm_phase(Comm *comm, int64_t step, const char *phase, int64_t index) {
    if (!comm) return;
    comm->world->step = step;
    comm->world->phase = phase;
    comm->world->index = index;
}

bool comm_fail(Comm *comm, Status status) {
    if (!comm) return true;
    World *world = comm->world;
    const int self = world->transport->rank;
    Failure failure;
    failure_save(&failure, status);
    world_fail(world, self, status);
    if (!world->told) {
        world->told = true;
        for (int rank = 0; world->failed_rank == self && rank < world->transport->size; rank++)
            if (rank != self) control_say(world, rank, CONTROL_FAIL, 0, 0, failure.text, failure.hint, status);
        control_flush(world, 1);
        for (double until = clock_seconds() + 2; self != 0 && world->failed_rank == self && !world->seen && clock_seconds() < until;) {
            control_poll(world, true);
            world->transport->idle(world->transport->state, 200);
        }
        world->prints = self == 0 || (world->failed_rank == self && !world->seen);
    }
    failure_restore(&failure);
    return world->prints;
}

CommCount comm_count(const Comm *comm, int peer, CommKind kind) {
    CommCount sum = {0};
    for (int rank = 0; comm && rank < comm->world->transport->size; rank++) {
        const CommCount *count = &comm->world->counts[rank][kind];
        if (peer >= 0 && peer != rank) continue;
        sum.sent += count->sent;
        sum.received += count->received;
        sum.sent_segments += count->sent_segments;
        sum.got_segments += count->got_segments;
    }
    return sum;
}

double comm_waited(const Comm *comm, int *waited_for) {
    const World *world = comm ? comm->world : NULL;
    int longest = -1;
    for (int rank = 0; world && rank < world->transport->size; rank++)
        if (world->waited_for[rank] > (longest < 0 ? 0 : world->waited_for[longest])) longest = rank;
    if (waited_for) *waited_for = longest;
    return world ? world->waited : 0;
}

/* ---- the world ---- */

void comm_configure(Comm *comm, const CommConfig *config) {
    comm->world->config = *config;
    if (config->timeout <= 0) comm->world->config.timeout = 300;
}

static void world_free(World *world) {
    while (world->groups) comm_group_free(world->groups);
    control_release(world);
    free(world->signs);
    free(world->counts);
    free(world->waited_for);
    free(world);
}

Status comm_new(CommTransport *transport, const CommConfig *config, Comm **comm) {
    World *world = calloc(1, sizeof *world);
    const size_t size = (size_t)transport->size;
    *comm = NULL;
    Status status = world ? ST_OK : status_fail(ST_RESOURCE, "no memory for %zu ranks", size);
    if (world) {
        world->transport = transport;
        world->failed_rank = world->waits_for = -1;
        world->index = -1;
        world->signed_at = clock_seconds();
        world->signs = calloc(size, sizeof *world->signs);
        world->counts = calloc(size, sizeof *world->counts);
        world->waited_for = calloc(size, sizeof *world->waited_for);
        if (!world->signs || !world->counts || !world->waited_for) status = status_fail(ST_RESOURCE, "no memory for %zu ranks", size);
    }
    for (size_t rank = 0; status == ST_OK && rank < size; rank++) world->signs[rank] = (Sign){.at = clock_seconds(), .index = -1, .waits_for = -1};
    Comm *group = status == ST_OK ? group_new(world, transport->size) : NULL;
    if (group) {
        group->rank = transport->rank;
        for (int rank = 0; rank < transport->size; rank++) group->ranks[rank] = rank;
        comm_configure(group, config);
        status = transport->size > 1 ? control_listen(world) : ST_OK;
    } else if (status == ST_OK)
        status = ST_RESOURCE;
    if (status != ST_OK) {
        Failure failure;
        failure_save(&failure, status);
        transport->close(transport->state, status);
        if (world) world_free(world);
        return failure_restore(&failure);
    }
    *comm = group;
    return ST_OK;
}

Status comm_end(Comm *comm, bool interrupted, const void *mine, size_t bytes, void *all) {
    return comm_gather_small(comm, interrupted ? interrupted_end : "end of the run", mine, bytes, all);
}

void comm_close(Comm *comm, Status why) {
    if (!comm) return;
    World *world = comm->world;
    if (world->failure.status == ST_OK && why != ST_OK && why != ST_INTERRUPTED) comm_fail(comm, why);
    if (world->failure.status == ST_OK) control_flush(world, 1);
    if (world->failure.status != ST_OK) why = world->failure.status;
    /* Where one rank's end is the end of all, the rank that prints the text ends last. */
    if (world->failure.status != ST_OK && !world->prints && world->transport->ends_all) nanosleep(&(struct timespec){.tv_sec = LEAVE_SECONDS}, NULL);
    world->transport->close(world->transport->state, why);
    world_free(world);
}
