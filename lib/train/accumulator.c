/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves, lanes and ranks of a step. */
#include "lib/train/accumulator.h"

#include <string.h>

enum { FIRST_BUCKET = 1 << 20 };

/* ---- who has which leaves ---- */

/* Rank r has the lanes from ceil(r x lanes / ranks) on. */
static int64_t first_lane(int64_t rank, int64_t ranks, int64_t n_lanes) { return (rank * n_lanes + ranks - 1) / ranks; }

static int rank_of(const Accumulator *a, const Leaves *leaves, int64_t leaf) {
    if (a->config.n_rounds) return (int)(leaf % a->size);
    int64_t lane = ((leaf + 1) * leaves->n_lanes - 1) / leaves->n;
    return (int)(lane * a->size / leaves->n_lanes);
}

int accumulator_idle(const AccumulatorConfig *config, int64_t n_leaves, int64_t n_lanes) {
    const int ranks = comm_size(config->comm);
    int idle = 0;
    if (config->n_rounds) return (int)MAX(ranks - n_leaves, (int64_t)0);
    for (int r = 0; r < ranks; r++)
        idle += lane_begin(first_lane(r, ranks, n_lanes), n_lanes, n_leaves) == lane_begin(first_lane(r + 1, ranks, n_lanes), n_lanes, n_leaves);
    return idle;
}

/* More lanes than this are not tried one by one. */
enum { LANES_TRIED = 512 };

/* The most that `of` gives for the lanes of a rank, of any step. */
static int most_of(const AccumulatorConfig *config, int (*of)(int64_t first, int64_t end)) {
    int ranks = comm_size(config->comm), most = 0, levels = 0;
    for (int64_t n = config->n_lanes; n > 1; n /= 2) levels++;
    if (config->fewer && config->n_lanes > LANES_TRIED) return MIN(2 * levels, (int)LANE_MOST_NODES);
    for (int64_t n = config->n_lanes; n > 0; n = config->fewer ? n - 1 : 0)
        for (int r = 0; r < ranks; r++) most = MAX(most, of(first_lane(r, ranks, n), first_lane(r + 1, ranks, n)));
    return most;
}

static int nodes_of(int64_t first, int64_t end) { return tree_nodes(first, end, NULL); }

static int most_buffers(const AccumulatorConfig *config) {
    return config->n_rounds && comm_size(config->comm) > 1 ? 0 : most_of(config, lane_buffers);
}

static int most_nodes(const AccumulatorConfig *config) { return config->n_rounds ? 1 : MAX(most_of(config, nodes_of), 1); }

/* ---- opening ---- */

static ReducerConfig reducer_config(const AccumulatorConfig *config, int model, LaneSums *sums) {
    return (ReducerConfig){.comm = config->comm,
                           .params = config->params[model],
                           .sums = sums,
                           .n_lanes = config->n_lanes,
                           .most_nodes = most_nodes(config),
                           .n_rounds = config->n_rounds,
                           .divided = config->divided,
                           .bf16 = config->bf16,
                           .first_bucket = MIN((size_t)FIRST_BUCKET, config->bucket),
                           .bucket = config->bucket};
}

static void poll_ranks(void *comm) { comm_poll(comm); }
/* The gradients of each model leave in their own order. */
static void any_ready(void *context, Tape *tape, Tensor *tensor) {
    const Accumulator *a = context;
    for (int m = 0; m < a->config.n_models; m++) {
        const TapeWatch *watch = reducer_watch(a->reducers[m]);
        watch->ready(watch->context, tape, tensor);
    }
}
static void poll_any(void *context) { comm_poll(((const Accumulator *)context)->config.comm); }
static void nothing_leaves(void *comm, Tape *tape, Tensor *tensor) { (void)comm, (void)tape, (void)tensor; }

Status accumulator_init(Accumulator *a, const AccumulatorConfig *config, Arena *arena) {
    *a = (Accumulator){.config = *config, .rank = comm_rank(config->comm), .size = comm_size(config->comm), .arena = arena_new(0)};
    a->polls = (TapeWatch){.context = config->comm, .ready = nothing_leaves, .poll = poll_ranks};
    a->several = (TapeWatch){.context = a, .ready = any_ready, .poll = poll_any};
    a->lanes = arena_alloc(arena, ((size_t)a->size + 1) * sizeof *a->lanes);
    if (!a->lanes || !a->arena) return ST_RESOURCE;
    for (int m = 0; m < config->n_models; m++) {
        TRY(lane_sums_init(&a->sums[m], config->params[m], most_buffers(config), arena));
        ReducerConfig reducer = reducer_config(config, m, &a->sums[m]);
        if (a->size == 1) continue;
        /* Ranks start the sums of two models in different orders: a rank without a pass starts those of the first one at once. */
        if (m > 0) TRY(comm_split(config->comm, 0, a->rank, &a->groups[m]));
        if (m > 0) reducer.comm = a->groups[m];
        TRY(reducer_new(&reducer, arena, &a->reducers[m]));
    }
    return ST_OK;
}

const Shards *accumulator_shards(const Accumulator *a, int model) { return a->reducers[model] ? reducer_shards(a->reducers[model]) : NULL; }

static Status divide(const AccumulatorConfig *config, Params *params, Arena *arena) {
    Shards shards;
    TRY(shards_init(&shards, params, comm_size(config->comm), arena));
    for (size_t k = 0; k < shards.n_params; k++) {
        ShardPart part = shards_part(&shards, comm_rank(config->comm), k);
        Param *param = shards_param(&shards, k);
        param->divided = true;
        param->first = part.first;
        param->n = part.n;
    }
    return ST_OK;
}

Status accumulator_divide(const AccumulatorConfig *config) {
    if (!config->divided || comm_size(config->comm) == 1) return ST_OK;
    Arena *arena = arena_new(0);
    Status status = arena ? ST_OK : ST_RESOURCE;
    for (int m = 0; m < config->n_models && status == ST_OK; m++) status = divide(config, config->params[m], arena);
    arena_free(arena);
    return status;
}

void accumulator_release(Accumulator *a) {
    for (int m = 0; m < a->config.n_models; m++) {
        reducer_release(a->reducers[m]);
        comm_group_free(a->groups[m]);
        a->groups[m] = NULL;
    }
    arena_free(a->arena);
    a->arena = NULL;
}

size_t accumulator_lane_bytes(const AccumulatorConfig *config, int model) { return params_copies_bytes(config->params[model], most_buffers(config)); }

size_t accumulator_message_bytes(const AccumulatorConfig *config, int model) {
    ReducerConfig reducer = reducer_config(config, model, NULL);
    return comm_size(config->comm) > 1 ? reducer_bytes(&reducer) : 0;
}

/* ---- the plan ---- */

Status accumulator_plan_begin(const AccumulatorConfig *config, Arena *arena, const TapeWatch **watch) {
    Reducer *reducer;
    LaneSums *none = arena_zero(arena, sizeof *none);
    const int size = comm_size(config->comm);
    int64_t *lanes = arena_alloc(arena, ((size_t)size + 1) * sizeof *lanes);
    *watch = NULL;
    if (!none || !lanes) return ST_RESOURCE;
    if (!config->n_rounds || size == 1 || config->n_models > 1 || config->late) return ST_OK;
    ReducerConfig planning = reducer_config(config, 0, none);
    planning.plans = true;
    TRY(reducer_new(&planning, arena, &reducer));
    for (int r = 0; r <= size; r++) lanes[r] = r;
    reducer_begin(reducer, &(ReducerRound){lanes, comm_rank(config->comm), true});
    *watch = reducer_watch(reducer);
    return ST_OK;
}

void accumulator_plan_end(const AccumulatorConfig *config) {
    for (int m = 0; m < config->n_models; m++) params_return_grads(config->params[m]);
}

/* ---- a step ---- */

static void begin_sums(Accumulator *a, int64_t last, bool ends) {
    for (int m = 0; m < a->config.n_models; m++) reducer_begin(a->reducers[m], &(ReducerRound){a->lanes, last, ends});
}

static Status finish_sums(Accumulator *a) {
    for (int m = 0; m < a->config.n_models; m++) TRY(reducer_finish(a->reducers[m]));
    return ST_OK;
}

/* Gradients leave during the last backward pass of each model. */
static const TapeWatch *watch_of(const Accumulator *a) {
    return a->config.late ? &a->polls : a->config.n_models == 1 ? reducer_watch(a->reducers[0]) : &a->several;
}

/* Each rank runs one leaf, and the sums of all owners go on. */
static Status run_rounds(Accumulator *a, const Leaves *leaves) {
    for (int64_t first = 0; first < leaves->n; first += a->size) {
        int64_t leaf = first + a->rank;
        for (int r = 0; r <= a->size; r++) a->lanes[r] = MIN(first + r, leaves->n);
        begin_sums(a, leaf < leaves->n ? leaf : -1, first + a->size >= leaves->n);
        if (leaf < leaves->n) TRY(leaves->run(leaves->context, leaf, watch_of(a)));
        TRY(finish_sums(a));
    }
    return ST_OK;
}

static Status run_lane(Accumulator *a, const Leaves *leaves, int64_t lane, bool last) {
    const int64_t end = lane_begin(lane + 1, leaves->n_lanes, leaves->n);
    for (int64_t leaf = lane_begin(lane, leaves->n_lanes, leaves->n); leaf < end; leaf++) {
        bool leaves_now = last && a->size > 1 && leaf + 1 == end;
        if (leaves_now) begin_sums(a, lane, true);
        TRY(leaves->run(leaves->context, leaf, a->size == 1 ? NULL : leaves_now ? watch_of(a) : &a->polls));
    }
    return ST_OK;
}

static bool lane_is_empty(const Leaves *leaves, int64_t lane) {
    return lane_begin(lane, leaves->n_lanes, leaves->n) == lane_begin(lane + 1, leaves->n_lanes, leaves->n);
}

static Status run_lanes(Accumulator *a, const Leaves *leaves) {
    for (int r = 0; r <= a->size; r++) a->lanes[r] = first_lane(r, a->size, leaves->n_lanes);
    const int64_t begin = a->lanes[a->rank], end = a->lanes[a->rank + 1];
    for (int64_t lane = begin; lane < end; lane++) {
        TRY(run_lane(a, leaves, lane, lane + 1 == end));
        for (int m = 0; lane + 1 < end && m < a->config.n_models; m++) lane_sums_push(&a->sums[m], lane);
    }
    if (a->size > 1) {
        if (begin == end || lane_is_empty(leaves, end - 1)) begin_sums(a, begin == end ? -1 : end - 1, true);
        return finish_sums(a);
    }
    for (int m = 0; m < a->config.n_models; m++) lane_sums_finish(&a->sums[m]);
    return ST_OK;
}

Status accumulator_run(Accumulator *a, const Leaves *leaves) {
    return a->config.n_rounds && a->size > 1 ? run_rounds(a, leaves) : run_lanes(a, leaves);
}

void accumulator_drop(Accumulator *a) {
    for (int m = 0; m < a->config.n_models; m++) {
        params_zero_grad(a->config.params[m]);
        lane_sums_reset(&a->sums[m]);
    }
}

/* ---- the vote ---- */

/* What a rank says at the end of a step: whether it is to end, which parameters have a gradient, and the records of its leaves. */
typedef struct Vote {
    size_t n_params, records, size; /* records: most leaves of a rank; size: bytes of a record */
} Vote;

static size_t vote_bytes(const Vote *vote) { return 1 + vote->n_params + vote->records * vote->size; }

static void cast(const Accumulator *a, const Leaves *leaves, const Vote *vote, const char *records, bool interrupted, unsigned char *mine) {
    size_t k = 1, at = 1 + vote->n_params;
    mine[0] = interrupted;
    for (int m = 0; m < a->config.n_models; m++)
        for (size_t i = 0; i < reducer_shards(a->reducers[m])->n_params; i++) mine[k++] = reducer_has(a->reducers[m], i);
    for (int64_t leaf = 0; leaf < leaves->n; leaf++) {
        if (rank_of(a, leaves, leaf) != a->rank) continue;
        memcpy(mine + at, records + (size_t)leaf * vote->size, vote->size);
        at += vote->size;
    }
}

static void count(const Accumulator *a, const Leaves *leaves, const Vote *vote, const unsigned char *all, size_t *taken, char *records,
                  bool *interrupted) {
    size_t bytes = vote_bytes(vote), k = 1;
    for (int r = 0; r < a->size; r++) *interrupted |= all[(size_t)r * bytes] != 0;
    for (int m = 0; m < a->config.n_models; m++)
        for (size_t i = 0; i < reducer_shards(a->reducers[m])->n_params; i++, k++) {
            bool there = false;
            for (int r = 0; r < a->size; r++) there |= all[(size_t)r * bytes + k] != 0;
            if (!there) reducer_absent(a->reducers[m], i);
        }
    for (int64_t leaf = 0; leaf < leaves->n; leaf++) {
        size_t r = (size_t)rank_of(a, leaves, leaf);
        memcpy(records + (size_t)leaf * vote->size, all + r * bytes + 1 + vote->n_params + taken[r]++ * vote->size, vote->size);
    }
}

Status accumulator_vote(Accumulator *a, const Leaves *leaves, void *records, size_t size, bool *interrupted) {
    Vote vote = {.size = size};
    if (a->size == 1) return ST_OK;
    arena_reset(a->arena);
    size_t *taken = arena_zero(a->arena, (size_t)a->size * sizeof *taken);
    if (!taken) return ST_RESOURCE;
    for (int64_t leaf = 0; leaf < leaves->n; leaf++) {
        size_t r = (size_t)rank_of(a, leaves, leaf);
        vote.records = MAX(vote.records, ++taken[r]);
    }
    memset(taken, 0, (size_t)a->size * sizeof *taken);
    for (int m = 0; m < a->config.n_models; m++) vote.n_params += reducer_shards(a->reducers[m])->n_params;
    unsigned char *mine = arena_zero(a->arena, vote_bytes(&vote)), *all = arena_alloc(a->arena, (size_t)a->size * vote_bytes(&vote));
    if (!mine || !all) return ST_RESOURCE;
    cast(a, leaves, &vote, records, *interrupted, mine);
    TRY(comm_gather_small(a->config.comm, "vote of a step", mine, vote_bytes(&vote), all));
    count(a, leaves, &vote, all, taken, records, interrupted);
    return ST_OK;
}

/* ---- the end of a step ---- */

BucketCount accumulator_buckets(Accumulator *a) {
    BucketCount sum = {0};
    for (int m = 0; a->size > 1 && m < a->config.n_models; m++) {
        const BucketCount count = reducer_count(a->reducers[m]);
        sum.left += count.left;
        sum.early += count.early;
    }
    return sum;
}

Status accumulator_norm(Accumulator *a, int model, double *norm) {
    if (a->size > 1 && a->config.divided) return reducer_norm(a->reducers[model], norm);
    *norm = params_grad_norm(a->config.params[model]);
    return ST_OK;
}

Status accumulator_share(Accumulator *a) {
    for (int m = 0; a->size > 1 && a->config.divided && m < a->config.n_models; m++) TRY(reducer_gather_weights(a->reducers[m]));
    return ST_OK;
}
