/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of gradients on their way over ranks. */
#include "lib/parallel/reducer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Elements begin .. end - 1 of all trained ones. */
typedef struct Bucket {
    int64_t begin, end;
    size_t first, last; /* trained parameters with elements in it */
    size_t missing;     /* of these, how many gradients are not complete */
} Bucket;

/* Memory of a bucket that is under way: two can be, so that one is filled while the other travels. */
enum { SLOTS = 2 };
typedef struct Slot {
    float **arrays; /* (most_nodes): of bucket_elements each */
    int64_t number; /* of its last operation */
    size_t bucket;
    bool busy;
} Slot;

typedef struct Place {
    const Tensor *tensor;
    size_t k;
} Place;

struct Reducer {
    ReducerConfig config;
    int rank, size;
    Shards shards;
    Bucket *buckets; /* in the order in which they leave */
    size_t n_buckets, n_sent;
    int64_t largest; /* elements of the largest bucket */
    Slot slots[SLOTS];
    size_t *first; /* (size + 1): whose elements of a bucket are whose */
    Place *places; /* (n_params): by address */
    /* (n_params): this rank's last node is complete; it has no gradient; one of its nodes has one, in this step */
    bool *complete, *absent, *there;
    double *squares; /* (units) */
    /* with rounds: (levels) counters of this rank's own elements; NULL: a level that is empty after each round but the last. `sums`: where the tree
     * ends, one of them if there is one */
    float **kept, *sums;
    float **levels; /* of a bucket */
    int n_levels;
    Tape *tape; /* of the running backward pass; NULL: not known yet */
    TapeWatch watch;
    ReducerRound round;
    int joins; /* newest sums of lanes that the last lane joins */
    BucketCount count;
    bool passing; /* a watched backward pass goes on */
    Status status;
};

/* ---- buckets ---- */

static size_t elements_of(size_t bytes) { return MAX(bytes / sizeof(float), (size_t)SHARD_UNIT); }

/* The begin of the bucket that ends before `end`: whole units, at least one. */
static int64_t bucket_begin(const Shards *shards, int64_t end, int64_t most) {
    int64_t begin = end;
    while (begin > 0) {
        size_t k = shards_find(shards, begin - 1);
        int64_t before = shards->before[k] + (begin - 1 - shards->before[k]) / SHARD_UNIT * SHARD_UNIT;
        if (begin < end && end - before > most) break;
        begin = before;
    }
    return begin;
}

static Status cut_buckets(Reducer *reducer, Arena *arena) {
    const Shards *shards = &reducer->shards;
    size_t cap = 0;
    for (int64_t end = shards->n, begin; end > 0; end = begin) {
        size_t bytes = reducer->n_buckets == 0 ? reducer->config.first_bucket : reducer->config.bucket;
        begin = bucket_begin(shards, end, (int64_t)elements_of(bytes));
        TRY(arena_array_grow(arena, &reducer->buckets, &cap, reducer->n_buckets + 1, sizeof *reducer->buckets));
        reducer->buckets[reducer->n_buckets++] = (Bucket){begin, end, shards_find(shards, begin), shards_find(shards, end - 1), 0};
        reducer->largest = MAX(reducer->largest, end - begin);
    }
    return ST_OK;
}

/* ---- parts of a bucket in tensors ---- */

/* Part of trained parameter k in a bucket: elements `first` of the tensor, `at` of the bucket. */
typedef struct Piece {
    ShardPart part;
    int64_t at;
} Piece;

static Piece piece_of(const Reducer *reducer, int64_t begin, int64_t end, int64_t bucket_at, size_t k) {
    ShardPart part = shards_range(&reducer->shards, begin, end, k);
    return (Piece){part, reducer->shards.before[k] + part.first - bucket_at};
}

static void keep_status(Reducer *reducer, Status status) {
    if (reducer->status == ST_OK) reducer->status = status;
}

/* Copies a bucket out of the tensors `of` gives; absent ones are -0, which adds nothing to any number. */
static void read_bucket(Reducer *reducer, const Bucket *bucket, Tensor *(*of)(const Reducer *, int, size_t), int node, float *to) {
    for (size_t k = bucket->first; k <= bucket->last; k++) {
        Piece piece = piece_of(reducer, bucket->begin, bucket->end, bucket->begin, k);
        const Tensor *from = of(reducer, node, k);
        bool gradient = from == shards_param(&reducer->shards, k)->tensor->grad;
        if (gradient ? reducer->absent[k] : from->blank)
            for (int64_t i = 0; i < piece.part.n; i++) to[piece.at + i] = -0.0f;
        else
            keep_status(reducer, tensor_download(from, piece.part.first, piece.part.n, to + piece.at));
    }
}

/* Copies elements begin .. end - 1, which are in a bucket, to the tensors. */
static void write_bucket(Reducer *reducer, const Bucket *bucket, int64_t begin, int64_t end, Tensor *(*of)(const Reducer *, int, size_t),
                         const float *from) {
    for (size_t k = bucket->first; k <= bucket->last; k++) {
        Piece piece = piece_of(reducer, MAX(begin, bucket->begin), MIN(end, bucket->end), bucket->begin, k);
        if (piece.part.n == 0) continue;
        Tensor *to = of(reducer, 0, k);
        keep_status(reducer, tensor_upload(to, piece.part.first, piece.part.n, from + piece.at));
        to->blank = false;
    }
}

static Tensor *weight_of(const Reducer *reducer, int node, size_t k) {
    (void)node;
    return shards_param(&reducer->shards, k)->tensor;
}

static Tensor *gradient_of(const Reducer *reducer, int node, size_t k) {
    (void)node;
    return shards_param(&reducer->shards, k)->tensor->grad;
}

/* The sums of lanes that the last lane does not join, in order, and then the gradients. */
static Tensor *node_of(const Reducer *reducer, int node, size_t k) {
    const LaneSums *sums = reducer->config.sums;
    return node < sums->n_nodes - reducer->joins ? sums->buffers[node][k] : gradient_of(reducer, 0, k);
}

static int n_nodes(const Reducer *reducer) {
    return reducer->round.last < 0 ? 0 : reducer->config.n_rounds ? 1 : reducer->config.sums->n_nodes - reducer->joins + 1;
}

/* ---- buckets under way ---- */

static int64_t clamped(const Bucket *bucket, int64_t element) { return MIN(MAX(element, bucket->begin), bucket->end) - bucket->begin; }

/* If ranks do not divide what they own, the master adds everything. */
static void find_owners(Reducer *reducer, const Bucket *bucket) {
    const bool master = comm_reduce(reducer->config.comm) == COMM_MASTER && !reducer->config.divided;
    for (int r = 0; r <= reducer->size; r++) reducer->first[r] = (size_t)clamped(bucket, master && r > 0 ? bucket->end : reducer->shards.begin[r]);
}

static void own_range(const Reducer *reducer, int64_t *begin, int64_t *end) {
    *begin = reducer->shards.begin[reducer->rank];
    *end = reducer->shards.begin[reducer->rank + 1];
}

/* Waits for the bucket in a slot, and copies it back. */
static void retire_gradients(Reducer *reducer, Slot *slot) {
    const Bucket *bucket = &reducer->buckets[slot->bucket];
    int64_t begin = bucket->begin, end = bucket->end;
    if (!slot->busy) return;
    slot->busy = false;
    keep_status(reducer, comm_wait(reducer->config.comm, slot->number));
    if (reducer->status != ST_OK || reducer->config.n_rounds) return;
    if (reducer->config.divided) own_range(reducer, &begin, &end);
    write_bucket(reducer, bucket, begin, end, gradient_of, slot->arrays[0]);
}

/* Number of own elements before those of a bucket */
static int64_t own_before(const Reducer *reducer, const Bucket *bucket) {
    const int64_t own = reducer->shards.begin[reducer->rank];
    return MIN(MAX(bucket->begin - own, 0), reducer->shards.begin[reducer->rank + 1] - own);
}

/* This rank's counters for the elements of a bucket. */
static float *const *kept_of(Reducer *reducer, const Bucket *bucket) {
    if (!reducer->config.n_rounds) return NULL;
    for (int l = 0; l < reducer->n_levels; l++) reducer->levels[l] = reducer->kept[l] ? reducer->kept[l] + own_before(reducer, bucket) : NULL;
    return reducer->levels;
}

static float *sum_of(const Reducer *reducer, const Slot *slot, const Bucket *bucket) {
    if (!reducer->config.n_rounds) return slot->arrays[0] + reducer->first[reducer->rank];
    return reducer->round.ends ? reducer->sums + own_before(reducer, bucket) : NULL;
}

static Status start_sum(Reducer *reducer, const Slot *slot, const Bucket *bucket) {
    Comm *comm = reducer->config.comm;
    char name[48];
    snprintf(name, sizeof name, "gradients of bucket %zu", slot->bucket);
    find_owners(reducer, bucket);
    CommSum sum = {.kind = COMM_GRADIENTS,
                   .name = name,
                   .n = (size_t)(bucket->end - bucket->begin),
                   .first = reducer->first,
                   .lanes = reducer->round.lanes,
                   .nodes = slot->arrays,
                   .sum = sum_of(reducer, slot, bucket),
                   .kept = kept_of(reducer, bucket),
                   .bf16 = reducer->config.bf16};
    TRY(comm_sum(comm, &sum));
    if (reducer->config.divided) return ST_OK;
    snprintf(name, sizeof name, "sums of bucket %zu", slot->bucket);
    return comm_gather(comm, &(CommGather){COMM_GRADIENTS, name, slot->arrays[0], sizeof(float), reducer->first});
}

/* The lent gradients that end in this bucket have left whole. */
static void give_back(Reducer *reducer, const Bucket *bucket) {
    for (size_t k = bucket->first; k <= bucket->last && reducer->config.n_rounds; k++) {
        Tensor *grad = gradient_of(reducer, 0, k);
        if (grad->lent && reducer->shards.before[k] >= bucket->begin) tape_grad_free(reducer->tape, grad);
    }
}

static void fill_bucket(Reducer *reducer, size_t b) {
    Slot *slot = &reducer->slots[b % SLOTS];
    const Bucket *bucket = &reducer->buckets[b];
    retire_gradients(reducer, slot);
    if (reducer->status != ST_OK) return;
    slot->bucket = b;
    for (int node = 0; node < n_nodes(reducer); node++)
        read_bucket(reducer, bucket, reducer->config.n_rounds ? gradient_of : node_of, node, slot->arrays[node]);
    keep_status(reducer, start_sum(reducer, slot, bucket));
    slot->number = comm_started(reducer->config.comm);
    slot->busy = true;
}

static void send_bucket(Reducer *reducer) {
    const size_t b = reducer->n_sent++;
    reducer->count.left++;
    reducer->count.early += reducer->passing;
    if (!reducer->config.plans) fill_bucket(reducer, b);
    give_back(reducer, &reducer->buckets[b]);
}

/* ---- a step ---- */

static int compare_places(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const Place *)a)->tensor, y = (uintptr_t)((const Place *)b)->tensor;
    return (x > y) - (x < y);
}

/* The gradient of trained parameter k has all of this rank's last lane. */
static void gradient_complete(Reducer *reducer, size_t k) {
    if (reducer->complete[k]) return;
    reducer->complete[k] = true;
    if (!reducer->config.n_rounds) lane_sums_join(reducer->config.sums, reducer->joins, k);
    reducer->absent[k] = shards_param(&reducer->shards, k)->tensor->grad->blank;
    for (int node = 0; node < n_nodes(reducer); node++) reducer->there[k] |= !node_of(reducer, node, k)->blank;
    for (size_t b = reducer->n_sent; b < reducer->n_buckets; b++)
        if (k >= reducer->buckets[b].first && k <= reducer->buckets[b].last) reducer->buckets[b].missing--;
    while (reducer->n_sent < reducer->n_buckets && reducer->buckets[reducer->n_sent].missing == 0) send_bucket(reducer);
}

static void tensor_ready(void *context, Tape *tape, Tensor *tensor) {
    Reducer *reducer = context;
    reducer->tape = tape;
    const Place *place = bsearch(&(Place){tensor, 0}, reducer->places, reducer->shards.n_params, sizeof *place, compare_places);
    reducer->passing = true;
    if (place && reducer->status == ST_OK) gradient_complete(reducer, place->k);
    reducer->passing = false;
}

static void op_ended(void *context) { comm_poll(((Reducer *)context)->config.comm); }

void reducer_begin(Reducer *reducer, const ReducerRound *round) {
    reducer->round = *round;
    reducer->joins = reducer->config.n_rounds || round->last < 0 ? 0 : lane_sums_joins(reducer->config.sums, round->last);
    reducer->n_sent = 0;
    reducer->tape = NULL;
    for (size_t k = 0; k < reducer->shards.n_params; k++) {
        reducer->complete[k] = false;
        if (round->lanes[0] == 0) reducer->there[k] = false;
        shards_param(&reducer->shards, k)->tensor->uses = 0;
    }
    for (size_t b = 0; b < reducer->n_buckets; b++) reducer->buckets[b].missing = reducer->buckets[b].last - reducer->buckets[b].first + 1;
}

const TapeWatch *reducer_watch(Reducer *reducer) { return &reducer->watch; }

BucketCount reducer_count(Reducer *reducer) {
    const BucketCount count = reducer->count;
    reducer->count = (BucketCount){0};
    return count;
}

/* Where the counters of a parameter's own elements begin */
static int64_t own_place(const Reducer *reducer, size_t k, ShardPart part) {
    return reducer->shards.before[k] + part.first - reducer->shards.begin[reducer->rank];
}

/* Copies the sums to a device with memory of its own. */
static void upload_sums(Reducer *reducer) {
    const Shards *shards = &reducer->shards;
    for (size_t k = 0; k < shards->n_params; k++) {
        ShardPart part = shards_part(shards, reducer->rank, k);
        Tensor *sum = shards_param(shards, k)->own_grad;
        if (part.n > 0 && !tensor_device(sum)->host_memory)
            keep_status(reducer, tensor_upload(sum, 0, part.n, reducer->sums + own_place(reducer, k, part)));
    }
}

Status reducer_finish(Reducer *reducer) {
    profile_lap(NULL);
    for (size_t k = reducer->shards.n_params; k-- > 0;) gradient_complete(reducer, k);
    for (size_t i = 0; i < SLOTS; i++) retire_gradients(reducer, &reducer->slots[(reducer->n_sent + i) % SLOTS]);
    lane_sums_reset(reducer->config.sums);
    if (reducer->config.n_rounds) params_zero_grad(reducer->config.params);
    if (reducer->config.n_rounds) params_return_grads(reducer->config.params);
    if (reducer->config.n_rounds && reducer->round.ends) upload_sums(reducer);
    profile_lap("gradients of ranks");
    return reducer->status;
}

void reducer_release(Reducer *reducer) {
    for (size_t k = 0; reducer && reducer->config.n_rounds && k < reducer->shards.n_params; k++) shards_param(&reducer->shards, k)->own_grad = NULL;
}

bool reducer_has(const Reducer *reducer, size_t k) { return reducer->there[k]; }

void reducer_absent(Reducer *reducer, size_t k) {
    const Param *param = shards_param(&reducer->shards, k);
    param->tensor->grad->blank = true;
    if (param->own_grad) tensor_device(param->own_grad)->fill(param->own_grad, 0);
}

/* ---- the norm ---- */

static void own_squares(Reducer *reducer) {
    const Shards *shards = &reducer->shards;
    for (size_t k = 0; k < shards->n_params; k++) {
        ShardPart part = shards_part(shards, reducer->rank, k);
        if (part.n == 0) continue;
        const Param *param = shards_param(shards, k);
        const Tensor grad = param->own_grad ? *param->own_grad : tensor_part(param_grad(param), part.first, part.n);
        double *squares = reducer->squares + shards->units[k] + part.first / SHARD_UNIT;
        for (int64_t at = 0; at < part.n; at += SHARD_UNIT) {
            Tensor unit = tensor_part(&grad, at, MIN((int64_t)SHARD_UNIT, part.n - at));
            tensor_device(&grad)->sum_squares(&unit, squares++);
        }
    }
}

Status reducer_norm(Reducer *reducer, double *norm) {
    const Shards *shards = &reducer->shards;
    double total = 0;
    profile_lap(NULL);
    own_squares(reducer);
    for (int r = 0; r <= reducer->size; r++) reducer->first[r] = (size_t)shards->unit[r];
    TRY(comm_gather(reducer->config.comm,
                    &(CommGather){COMM_SUMS, "squares of gradients", reducer->squares, sizeof *reducer->squares, reducer->first}));
    TRY(comm_finish(reducer->config.comm));
    for (size_t k = 0; k < shards->n_params; k++) {
        double squares = 0;
        for (int64_t u = shards->units[k]; u < shards->units[k + 1]; u++) squares += reducer->squares[u];
        total += squares;
    }
    *norm = sqrt(total);
    profile_lap("gradient norm");
    return ST_OK;
}

/* ---- weights ---- */

static void retire_weights(Reducer *reducer, Slot *slot) {
    const Bucket *bucket = &reducer->buckets[slot->bucket];
    int64_t begin, end;
    if (!slot->busy) return;
    slot->busy = false;
    keep_status(reducer, comm_wait(reducer->config.comm, slot->number));
    if (reducer->status != ST_OK) return;
    own_range(reducer, &begin, &end);
    write_bucket(reducer, bucket, bucket->begin, MIN(begin, bucket->end), weight_of, slot->arrays[0]);
    write_bucket(reducer, bucket, MAX(end, bucket->begin), bucket->end, weight_of, slot->arrays[0]);
}

Status reducer_gather_weights(Reducer *reducer) {
    profile_lap(NULL);
    for (size_t b = reducer->n_buckets; b-- > 0 && reducer->status == ST_OK;) {
        Slot *slot = &reducer->slots[b % SLOTS];
        const Bucket *bucket = &reducer->buckets[b];
        char name[48];
        snprintf(name, sizeof name, "weights of bucket %zu", b);
        retire_weights(reducer, slot);
        slot->bucket = b;
        find_owners(reducer, bucket);
        read_bucket(reducer, bucket, weight_of, 0, slot->arrays[0]);
        keep_status(reducer, comm_gather(reducer->config.comm, &(CommGather){COMM_WEIGHTS, name, slot->arrays[0], sizeof(float), reducer->first}));
        slot->number = comm_started(reducer->config.comm);
        slot->busy = true;
    }
    for (size_t i = 0; i < SLOTS; i++) retire_weights(reducer, &reducer->slots[i]);
    profile_lap("weights of ranks");
    return reducer->status;
}

/* ---- making one ---- */

/* Levels that are empty after a round of `ranks` lanes, and so after any number of them. */
static int empty_levels(size_t ranks) {
    int levels = 0;
    while (!(ranks >> levels & 1)) levels++;
    return levels;
}

static Status new_slots(Reducer *reducer, Arena *arena) {
    int n = MAX(reducer->config.most_nodes, 1);
    for (size_t s = 0; s < SLOTS; s++) {
        float **arrays = reducer->slots[s].arrays = arena_alloc(arena, (size_t)n * sizeof *arrays);
        for (int i = 0; arrays && i < n; i++)
            if (!(arrays[i] = arena_alloc(arena, (size_t)MAX(reducer->largest, 1) * sizeof(float)))) return ST_RESOURCE;
        if (!arrays) return ST_RESOURCE;
    }
    return ST_OK;
}

/* The sums of a parameter's own elements are where the tree ends; a device with memory of its own has a copy. */
static Status own_grads(Reducer *reducer, Arena *arena) {
    const Shards *shards = &reducer->shards;
    for (size_t k = 0; k < shards->n_params; k++) {
        ShardPart part = shards_part(shards, reducer->rank, k);
        Param *param = shards_param(shards, k);
        if (part.n == 0) continue;
        float *sums = reducer->sums + own_place(reducer, k, part);
        for (int64_t i = 0; i < part.n; i++) sums[i] = 0;
        param->own_grad = tensor_view(arena, tensor_device(param->tensor), DT_F32, 1, &part.n, sums);
        if (!param->own_grad) return status_prefix(ST_RESOURCE, "gradient of '%s'", param->name);
    }
    return ST_OK;
}

static Status new_counters(Reducer *reducer, Arena *arena) {
    const int64_t *begin = reducer->shards.begin + reducer->rank;
    const size_t bytes = (size_t)MAX(begin[1] - begin[0], 1) * sizeof(float);
    if (!reducer->config.n_rounds) return ST_OK;
    reducer->n_levels = tree_levels(reducer->config.n_rounds);
    reducer->kept = arena_zero(arena, (size_t)reducer->n_levels * sizeof *reducer->kept);
    reducer->levels = arena_alloc(arena, (size_t)reducer->n_levels * sizeof *reducer->levels);
    if (!reducer->kept || !reducer->levels) return ST_RESOURCE;
    for (int l = empty_levels((size_t)reducer->size); l < reducer->n_levels; l++)
        if (!(reducer->kept[l] = arena_alloc(arena, bytes))) return ST_RESOURCE;
    reducer->sums = reducer->kept[reducer->n_levels - 1];
    if (!reducer->sums && !(reducer->sums = arena_alloc(arena, bytes))) return ST_RESOURCE;
    return own_grads(reducer, arena);
}

Status reducer_new(const ReducerConfig *config, Arena *arena, Reducer **result) {
    Reducer *reducer = *result = arena_zero(arena, sizeof *reducer);
    if (!reducer) return ST_RESOURCE;
    reducer->config = *config;
    reducer->rank = comm_rank(config->comm);
    reducer->size = comm_size(config->comm);
    TRY(shards_init(&reducer->shards, config->params, reducer->size, arena));
    TRY(cut_buckets(reducer, arena));
    if (!config->plans) TRY(new_slots(reducer, arena));
    if (!config->plans) TRY(new_counters(reducer, arena));
    size_t n = MAX(reducer->shards.n_params, 1);
    reducer->first = arena_alloc(arena, ((size_t)reducer->size + 1) * sizeof *reducer->first);
    reducer->places = arena_alloc(arena, n * sizeof *reducer->places);
    reducer->complete = arena_zero(arena, n * sizeof *reducer->complete);
    reducer->absent = arena_zero(arena, n * sizeof *reducer->absent);
    reducer->there = arena_zero(arena, n * sizeof *reducer->there);
    reducer->squares = arena_zero(arena, (size_t)MAX(reducer->shards.n_units, 1) * sizeof *reducer->squares);
    if (!reducer->first || !reducer->places || !reducer->complete || !reducer->absent || !reducer->there || !reducer->squares) return ST_RESOURCE;
    for (size_t k = 0; k < reducer->shards.n_params; k++) reducer->places[k] = (Place){shards_param(&reducer->shards, k)->tensor, k};
    qsort(reducer->places, reducer->shards.n_params, sizeof *reducer->places, compare_places);
    reducer->watch = (TapeWatch){reducer, tensor_ready, op_ended};
    return ST_OK;
}

const Shards *reducer_shards(const Reducer *reducer) { return &reducer->shards; }

size_t reducer_bytes(const ReducerConfig *config) {
    size_t n = (size_t)params_count(config->params, true), ranks = (size_t)comm_size(config->comm);
    size_t bucket = MIN(n, MAX(elements_of(config->bucket), elements_of(config->first_bucket))) * sizeof(float);
    size_t own = MIN(n, (n / SHARD_UNIT + ranks) / ranks * SHARD_UNIT + SHARD_UNIT) * sizeof(float);
    int levels = config->n_rounds ? MAX(tree_levels(config->n_rounds) - empty_levels(ranks), 1) : 0;
    /* One bucket at a time is added, segment by segment: those of the other ranks, and partial sums where there are no counters; with bf16 also what
     * leaves, and one node and the partial sums in f32 */
    size_t nodes = (size_t)MAX(config->most_nodes, 1), segment = MIN(bucket, COMM_SEGMENT);
    size_t partial = (size_t)(config->n_rounds ? MIN(empty_levels(ranks), tree_levels(config->n_rounds)) : tree_levels(config->n_lanes));
    size_t segments = (ranks - 1) * nodes + partial;
    if (config->bf16) segments += ranks * nodes + 2 + partial;
    return SLOTS * nodes * bucket + (size_t)levels * own + segments * segment;
}
