/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients and weights of ranks: the same bits as in one process, and exactly the bytes that formulas give. */
#include "lib/base/system.h"
#include "lib/parallel/reducer.h"
#include "tests/support/check.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMS = 5, UNIT = SHARD_UNIT };
static const int64_t counts[PARAMS] = {3 * UNIT + 5, 7, UNIT, 5 * UNIT - 1, 2};

typedef struct Case {
    int64_t n_lanes;
    bool divided, rounds;
    CommReduce reduce;
} Case;

/* A small model, the same on each rank. */
typedef struct Small {
    Arena *arena;
    Params params;
    LaneSums sums;
    float *values; /* room for the largest parameter */
} Small;

static Status small_new(Small *small, int n_buffers) {
    *small = (Small){.arena = arena_new(0), .values = malloc(5 * UNIT * sizeof(float))};
    if (!small->arena || !small->values) return ST_RESOURCE;
    for (int k = 0; k < PARAMS; k++) {
        Tensor *tensor = tensor_new(small->arena, device_cpu(), DT_F32, 1, &counts[k]);
        tensor_device(tensor)->fill(tensor, 0);
        Param *param = params_add(&small->params, arena_printf(small->arena, "p%d", k), tensor, PARAM_BASE);
        if (k != 2) TRY(params_train(param, small->arena)); /* one is frozen */
    }
    params_zero_grad(&small->params);
    return lane_sums_init(&small->sums, &small->params, n_buffers, small->arena);
}

static void small_free(Small *small) {
    params_release(&small->params);
    arena_free(small->arena);
    free(small->values);
}

/* The gradients of a lane, whose sum depends on the order; some have none. Parameter 4 never has one. */
static Status lane_gradients(const Small *small, int64_t lane) {
    for (int k = 0; k < PARAMS; k++) {
        RngKey key = rng_key(3, RNG_INIT, (uint64_t)(lane * PARAMS + k));
        if (!small->params.items[k].trained || k == 4 || rng_uniform(key, 0) < 0.25) continue;
        Tensor *grad = small->params.items[k].tensor->grad;
        for (int64_t i = 0; i < counts[k]; i++)
            small->values[i] = (float)ldexp(rng_uniform(key, (uint64_t)i) - 0.5, (int)(20 * rng_uniform(key, (uint64_t)i + 7)));
        TRY(tensor_upload(grad, 0, counts[k], small->values));
        grad->blank = false;
    }
    return ST_OK;
}

/* The step in one process. */
static Status serial_step(Small *small, int64_t n_lanes) {
    TRY(small_new(small, lane_buffers(0, n_lanes)));
    for (int64_t lane = 0; lane < n_lanes; lane++) {
        TRY(lane_gradients(small, lane));
        if (lane + 1 < n_lanes) lane_sums_push(&small->sums, lane);
    }
    lane_sums_finish(&small->sums);
    return ST_OK;
}

static Status ranks_lanes(Comm *comm, Small *small, Reducer *reducer, const int64_t *lanes) {
    int64_t begin = lanes[comm_rank(comm)], end = lanes[comm_rank(comm) + 1];
    for (int64_t lane = begin; lane < end; lane++) {
        TRY(lane_gradients(small, lane));
        if (lane + 1 < end) lane_sums_push(&small->sums, lane);
    }
    reducer_begin(reducer, &(ReducerRound){lanes, begin < end ? end - 1 : -1, true});
    return reducer_finish(reducer);
}

static Status ranks_rounds(Comm *comm, Small *small, Reducer *reducer, int64_t n_lanes, int64_t *lanes) {
    int size = comm_size(comm), rank = comm_rank(comm);
    for (int64_t first = 0; first < n_lanes; first += size) {
        for (int r = 0; r <= size; r++) lanes[r] = MIN(first + r, n_lanes);
        bool has = first + rank < n_lanes;
        reducer_begin(reducer, &(ReducerRound){lanes, has ? first + rank : -1, first + size >= n_lanes});
        if (has) TRY(lane_gradients(small, first + rank));
        TRY(reducer_finish(reducer));
    }
    return ST_OK;
}

/* Compares the elements that this rank must have. */
static Status compare(const Small *want, const Small *got, const Reducer *reducer, int rank, bool divided) {
    const Shards *shards = reducer_shards(reducer);
    for (size_t k = 0; k < shards->n_params; k++) {
        ShardPart part = divided ? shards_part(shards, rank, k) : (ShardPart){0, tensor_count(shards_param(shards, k)->tensor)};
        size_t i = shards->index[k];
        if (reducer_has(reducer, k) && i == 4) return status_fail(ST_NUMERIC, "a gradient that nobody gave");
        const Param *param = &got->params.items[i];
        for (int64_t at = part.first; at < part.first + part.n; at++) {
            double a = tensor_get(param_grad(&want->params.items[i]), at);
            double b = param->own_grad ? tensor_get(param->own_grad, at - part.first) : tensor_get(param->tensor->grad, at);
            if (a != b) return status_fail(ST_NUMERIC, "gradient %zu, element %lld: %a, expected %a", i, (long long)at, b, a);
        }
    }
    return ST_OK;
}

static Status check_count(const char *what, uint64_t got, int64_t want) {
    if (got == (uint64_t)want) return ST_OK;
    return status_fail(ST_NUMERIC, "%s: %llu bytes, expected %lld", what, (unsigned long long)got, (long long)want);
}

/* The bytes that this rank sent: for a sum what others own, of each of its nodes; for copies what it owns, to all others. On a ring all but its own
 * part, once for all nodes; for copies all but the next rank's part. The master owns everything, unless ranks divide what they own. */
static Status check_bytes(Comm *comm, const Reducer *reducer, const Case *test, const int64_t *lanes) {
    const Shards *shards = reducer_shards(reducer);
    const int rank = comm_rank(comm), size = comm_size(comm), next = (rank + 1) % size;
    const bool ring = test->reduce == COMM_RING, master = test->reduce == COMM_MASTER && !test->divided;
    int64_t own = shards->begin[rank + 1] - shards->begin[rank], nodes = 0, copies = (size - 1) * own * 4;
    for (int64_t leaf = rank; test->rounds && leaf < test->n_lanes; leaf += size) nodes++;
    if (!test->rounds) nodes = ring ? 1 : tree_nodes(lanes[rank], lanes[rank + 1], NULL);
    if (ring) copies = (shards->n - (shards->begin[next + 1] - shards->begin[next])) * 4;
    if (master) own = rank == 0 ? shards->n : 0, copies = (size - 1) * own * 4;
    TRY(check_count("gradients", comm_count(comm, -1, COMM_GRADIENTS).sent, nodes * (shards->n - own) * 4 + (test->divided ? 0 : copies)));
    TRY(check_count("weights", comm_count(comm, -1, COMM_WEIGHTS).sent, test->divided ? copies : 0));
    int64_t units = shards->unit[rank + 1] - shards->unit[rank], next_units = shards->unit[next + 1] - shards->unit[next];
    int64_t squares = ring ? shards->n_units - next_units : (size - 1) * units;
    return check_count("sums", comm_count(comm, -1, COMM_SUMS).sent, test->divided ? squares * 8 : 0);
}

/* Each rank changes its own weights; all get them. */
static Status check_weights(const Small *small, Reducer *reducer, int rank) {
    const Shards *shards = reducer_shards(reducer);
    for (size_t k = 0; k < shards->n_params; k++) {
        ShardPart part = shards_part(shards, rank, k);
        for (int64_t at = part.first; at < part.first + part.n; at++)
            tensor_set(shards_param(shards, k)->tensor, at, (double)(shards->before[k] + at + 1));
    }
    TRY(reducer_gather_weights(reducer));
    for (size_t k = 0; k < shards->n_params; k++)
        for (int64_t at = 0; at < counts[shards->index[k]]; at++)
            if (tensor_get(shards_param(shards, k)->tensor, at) != (double)(shards->before[k] + at + 1))
                return status_fail(ST_NUMERIC, "weight %zu, element %lld is not its owner's", k, (long long)at);
    for (int64_t at = 0; at < counts[2]; at++)
        if (tensor_get(small->params.items[2].tensor, at) != 0) return status_fail(ST_NUMERIC, "a frozen weight changed");
    return ST_OK;
}

static Status one_step(Comm *comm, void *data) {
    const Case *test = data;
    int64_t lanes[RANKS_MAX + 1];
    int size = comm_size(comm), rank = comm_rank(comm);
    Small want, got;
    Reducer *reducer;
    double norm;
    TRY(serial_step(&want, test->n_lanes));
    for (int r = 0; r <= size; r++) lanes[r] = (r * test->n_lanes + size - 1) / size;
    TRY(small_new(&got, lane_buffers(lanes[rank], lanes[rank + 1])));
    ReducerConfig config = {.comm = comm,
                            .params = &got.params,
                            .sums = &got.sums,
                            .most_nodes = MAX(tree_nodes(lanes[rank], lanes[rank + 1], NULL), 1),
                            .n_rounds = test->rounds ? test->n_lanes : 0,
                            .divided = test->divided,
                            .first_bucket = UNIT * 4,
                            .bucket = 3 * UNIT * 4};
    TRY(reducer_new(&config, got.arena, &reducer));
    TRY(test->rounds ? ranks_rounds(comm, &got, reducer, test->n_lanes, lanes) : ranks_lanes(comm, &got, reducer, lanes));
    const bool exact = test->reduce == COMM_TREE || test->reduce == COMM_MASTER || test->rounds;
    if (exact) TRY(compare(&want, &got, reducer, rank, test->divided));
    if (test->divided) {
        TRY(reducer_norm(reducer, &norm));
        if (exact && norm != params_grad_norm(&want.params)) return status_fail(ST_NUMERIC, "norm %a", norm);
        TRY(check_weights(&got, reducer, rank));
    }
    TRY(check_bytes(comm, reducer, test, lanes));
    small_free(&want);
    small_free(&got);
    return comm_finish(comm);
}

TEST(ranks_sum_as_one_process) {
    static const int64_t lanes[] = {8, 16, 5, 1};
    static const int sizes[] = {2, 3, 4, 8};
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (size_t l = 0; l < COUNT_OF(lanes); l++)
            for (int way = 0; way < 3; way++) {
                Case test = {lanes[l], way > 0, way == 2, COMM_TREE};
                if (!long_tests() && (s + l + (size_t)way) % ALL_OR_FEW(6, 8)) continue;
                RankRun run = {.config.timeout = 60};
                Status status = ranks_fork(sizes[s], &run, one_step, &test);
                if (status != ST_OK) fail_msg("%d ranks, %lld lanes, way %d: %s", sizes[s], (long long)lanes[l], way, status_text());
            }
}

/* Each method with each way to add moves exactly the bytes of its formula. */
TEST(bytes_are_those_of_formulas) {
    for (int reduce = COMM_TREE; reduce <= COMM_MASTER; reduce++)
        for (int way = 0; way < 3; way++) {
            Case test = {6, way > 0, way == 2, (CommReduce)reduce};
            const int size = reduce == COMM_RING ? 4 : 3;
            RankRun run = {.config = {.reduce = test.reduce, .timeout = 60}};
            Status status = ranks_fork(size, &run, one_step, &test);
            if (status != ST_OK) fail_msg("%s, %d ranks, way %d: %s", comm_reduce_word(test.reduce), size, way, status_text());
        }
}

/* ---- gradients that a tape lends ---- */

enum { LAYERS = 12 };

/* A backward pass over layers of one weight each, from the last to the first. */
static Status lent_pass(Tape *tape, const Params *params, const TapeWatch *watch, bool computes) {
    for (size_t k = params->n; k-- > 0;) {
        double beta;
        Tensor *grad = tape_grad(tape, params->items[k].tensor, &beta);
        if (!grad || beta != 0) return status_fail(ST_NUMERIC, "gradient %zu is not new", k);
        if (computes) tensor_device(grad)->fill(grad, (double)(k + 1));
        watch->ready(watch->context, tape, params->items[k].tensor);
    }
    return ST_OK;
}

static Status lent_body(Comm *comm, void *data) {
    (void)data;
    const int64_t count = 2 * UNIT, lanes[] = {0, 1, 2};
    Arena *arena = arena_new(0);
    Params params = {0};
    LaneSums sums = {0};
    Reducer *reducer, *plan;
    Tape *tape = tape_new(device_cpu(), DT_F32, 0), *meta = tape_new(device_plan(device_cpu()), DT_F32, 0);
    for (int k = 0; k < LAYERS; k++)
        TRY(params_train_lent(params_add(&params, arena_printf(arena, "w%d", k), tensor_new(arena, device_cpu(), DT_F32, 1, &count), PARAM_BASE),
                              arena));
    ReducerConfig config = {comm, &params, &sums, .most_nodes = 1, .n_rounds = 2, .divided = true, .first_bucket = UNIT, .bucket = UNIT * 16};
    TRY(reducer_new(&config, arena, &reducer));
    config.plans = true;
    TRY(reducer_new(&config, arena, &plan));
    reducer_begin(plan, &(ReducerRound){lanes, comm_rank(comm), true});
    TRY(lent_pass(meta, &params, reducer_watch(plan), false));
    params_return_grads(&params);
    reducer_begin(reducer, &(ReducerRound){lanes, comm_rank(comm), true});
    TRY(lent_pass(tape, &params, reducer_watch(reducer), true));
    TRY(reducer_finish(reducer));
    for (size_t k = 0; k < params.n; k++) {
        if (params.items[k].tensor->grad->elements) return status_fail(ST_NUMERIC, "gradient %zu still has memory", k);
        const Tensor *own = params.items[k].own_grad;
        for (int64_t i = 0; own && i < tensor_count(own); i++)
            if (tensor_get(own, i) != 2.0 * (double)(k + 1)) return status_fail(ST_NUMERIC, "gradient %zu is %g", k, tensor_get(own, i));
    }
    /* A bucket has two layers. One of the two that it holds is complete when the other one begins. */
    const size_t whole = LAYERS * (size_t)count * sizeof(float), held = tape_bytes(tape).gradients;
    if (held > whole / 4) return status_fail(ST_NUMERIC, "%zu of %zu bytes of gradients at once", held, whole);
    if (tape_bytes(meta).gradients != held) return status_fail(ST_NUMERIC, "planned %zu bytes, took %zu", tape_bytes(meta).gradients, held);
    tape_free(tape);
    tape_free(meta);
    params_release(&params);
    TRY(comm_finish(comm));
    arena_free(arena);
    return ST_OK;
}

TEST(lent_gradients_are_given_back) { check_ok(ranks_run(2, NULL, lent_body, NULL)); }

/* ---- gradients that leave while the backward pass goes on ---- */

enum { EARLY = 4 };

/* After the pass has reached one bucket, polls alone bring it to its owner and its sum to all. */
static Status early_body(Comm *comm, void *data) {
    (void)data;
    const int64_t count = 2 * UNIT, lanes[] = {0, 1, 2};
    const uint64_t bytes = (uint64_t)count * sizeof(float);
    Arena *arena = arena_new(0);
    Params params = {0};
    LaneSums sums = {0};
    Reducer *reducer;
    for (int k = 0; k < EARLY; k++)
        TRY(params_train(params_add(&params, arena_printf(arena, "w%d", k), tensor_new(arena, device_cpu(), DT_F32, 1, &count), PARAM_BASE), arena));
    TRY(lane_sums_init(&sums, &params, 0, arena));
    const ReducerConfig config = {.comm = comm, .params = &params, .sums = &sums, .most_nodes = 1, .first_bucket = bytes, .bucket = bytes};
    TRY(reducer_new(&config, arena, &reducer));
    const TapeWatch *watch = reducer_watch(reducer);
    reducer_begin(reducer, &(ReducerRound){lanes, comm_rank(comm), true});
    for (size_t k = params.n; k-- > 0;) {
        Tensor *grad = params.items[k].tensor->grad;
        tensor_device(grad)->fill(grad, (double)(k + 1));
        grad->blank = false;
        watch->ready(watch->context, NULL, params.items[k].tensor);
        CommCount moved = {0};
        for (double end = clock_seconds() + 20; k + 1 == params.n && moved.sent + moved.received < 2 * bytes && clock_seconds() < end;) {
            watch->poll(watch->context);
            moved = comm_count(comm, -1, COMM_GRADIENTS);
        }
        if (k + 1 == params.n && (moved.sent != bytes || moved.received != bytes))
            return status_fail(ST_NUMERIC, "in the pass %llu bytes left and %llu came", (unsigned long long)moved.sent,
                               (unsigned long long)moved.received);
    }
    TRY(reducer_finish(reducer));
    const BucketCount buckets = reducer_count(reducer);
    if (buckets.left != EARLY || buckets.early != EARLY)
        return status_fail(ST_NUMERIC, "%lld buckets, %lld of them early", (long long)buckets.left, (long long)buckets.early);
    for (size_t k = 0; k < params.n; k++)
        if (tensor_get(params.items[k].tensor->grad, count - 1) != 2.0 * (double)(k + 1)) return status_fail(ST_NUMERIC, "gradient %zu", k);
    params_release(&params);
    TRY(comm_finish(comm));
    arena_free(arena);
    return ST_OK;
}

TEST(buckets_leave_during_the_backward_pass) { check_ok(ranks_run(2, NULL, early_body, NULL)); }

/* ---- gradients that travel as bf16 ---- */

/* A lane's gradient on each rank is 1 + the lane's part, of which bf16 has nothing. */
static Status bf16_body(Comm *comm, void *data) {
    (void)data;
    const int64_t count = 3 * UNIT + 5;
    const int rank = comm_rank(comm), size = comm_size(comm);
    int64_t lanes[RANKS_MAX + 1];
    Arena *arena = arena_new(0);
    Params params = {0};
    LaneSums sums = {0};
    Reducer *reducer;
    for (int r = 0; r <= size; r++) lanes[r] = r;
    TRY(params_train(params_add(&params, "w", tensor_new(arena, device_cpu(), DT_F32, 1, &count), PARAM_BASE), arena));
    TRY(lane_sums_init(&sums, &params, 0, arena));
    TRY(reducer_new(
        &(ReducerConfig){.comm = comm, .params = &params, .sums = &sums, .most_nodes = 1, .bf16 = true, .first_bucket = UNIT, .bucket = UNIT}, arena,
        &reducer));
    reducer_begin(reducer, &(ReducerRound){lanes, rank, true});
    Tensor *grad = params.items[0].tensor->grad;
    tensor_device(grad)->fill(grad, 1 + 0x1p-12);
    grad->blank = false;
    TRY(reducer_finish(reducer));
    for (int64_t i = 0; i < count; i++)
        if (tensor_get(grad, i) != size) return status_fail(ST_NUMERIC, "element %lld: %a", (long long)i, tensor_get(grad, i));
    const Shards *shards = reducer_shards(reducer);
    const int64_t own = shards->begin[rank + 1] - shards->begin[rank];
    TRY(check_count("gradients", comm_count(comm, -1, COMM_GRADIENTS).sent, (count - own) * 2 + (size - 1) * own * 4));
    params_release(&params);
    TRY(comm_finish(comm));
    arena_free(arena);
    return ST_OK;
}

TEST(bf16_halves_the_bytes_to_owners) { check_ok(ranks_run(3, NULL, bf16_body, NULL)); }

/* One tensor of a million elements on four ranks. */
TEST(shards_are_units) {
    static const int64_t parts[] = {262144, 245760, 262144, 229952};
    const int64_t n = 1000000;
    Arena *arena = arena_new(0);
    Params params = {0};
    Shards shards;
    Tensor *tensor = tensor_new(arena, device_cpu(), DT_F32, 1, &n);
    check_ok(params_train(params_add(&params, "w", tensor, PARAM_BASE), arena));
    check_ok(shards_init(&shards, &params, 4, arena));
    assert_int_equal(shards.n_units, 62);
    for (int r = 0; r < 4; r++) assert_int_equal(shards_part(&shards, r, 0).n, parts[r]);
    params_release(&params);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_sum_as_one_process),        cmocka_unit_test(bytes_are_those_of_formulas),
        cmocka_unit_test(lent_gradients_are_given_back),   cmocka_unit_test(buckets_leave_during_the_backward_pass),
        cmocka_unit_test(bf16_halves_the_bytes_to_owners), cmocka_unit_test(shards_are_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
