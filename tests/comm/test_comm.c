/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and copies between ranks, and what happens if a rank makes another call, fails, stops or dies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "lib/base/str.h"
#include "lib/base/system.h"
#include "lib/comm/host_memory.h"
#include "tests/support/check.h"
#include "tests/support/ranks.h"

#define UNIT 16384

/* ---- the tree ---- */

/* Values of different sizes, whose sum depends on the order */
static float value_of(int64_t lane, size_t i) {
    const uint64_t bits = mix64((uint64_t)lane * 1000003u + i + 1);
    return (float)(int32_t)(bits & 0xffff) * ldexpf(1, (int)(bits >> 16 & 31) - 16) * (bits >> 40 & 1 ? 1 : -1);
}

/* The tree by its definition */
static bool tree_of(int64_t first, int64_t size, int64_t end, size_t i, const bool *absent, float *sum) {
    float right;
    if (first >= end || (size == 1 && absent && absent[first])) return false;
    if (size == 1) {
        *sum = value_of(first, i);
        return true;
    }
    const bool left = tree_of(first, size / 2, end, i, absent, sum);
    if (tree_of(first + size / 2, size / 2, end, i, absent, &right))
        *sum = left ? *sum + right : right;
    else
        return left;
    return true;
}

static float serial_tree(int64_t n_lanes, size_t i) {
    float sum = 0;
    int64_t size = 1;
    while (size < n_lanes) size *= 2;
    assert_true(tree_of(0, size, n_lanes, i, NULL, &sum));
    return sum;
}

static void check_bits(const char *what, float got, float want, int64_t a, int64_t b) {
    uint32_t bits[2];
    memcpy(&bits[0], &got, 4);
    memcpy(&bits[1], &want, 4);
    if (bits[0] != bits[1]) fail_msg("%s, %lld of %lld: %a, expected %a", what, (long long)a, (long long)b, (double)got, (double)want);
}

TEST(counter_is_the_tree) {
    float room[TREE_LEVELS][3], *kept[TREE_LEVELS], sum[3], lane[3];
    for (int l = 0; l < TREE_LEVELS; l++) kept[l] = room[l];
    for (int64_t lanes = 1; lanes <= 64; lanes++)
        for (int missing = 0; missing < 3; missing++) {
            bool absent[64], any = false;
            for (int64_t j = 0; j < lanes; j++) any |= !(absent[j] = missing && mix64((uint64_t)(64 * lanes + j)) % 3 < (uint64_t)missing);
            for (int64_t j = 0; j < lanes; j++) {
                for (size_t i = 0; i < 3; i++) lane[i] = absent[j] ? -0.0f : value_of(j, i);
                tree_push(kept, j, 0, lane, 3);
            }
            tree_total(kept, lanes, sum, 3);
            int64_t size = 1;
            while (size < lanes) size *= 2;
            for (size_t i = 0; any && i < 3; i++) {
                float want = 0;
                tree_of(0, size, lanes, i, absent, &want);
                check_bits("counter", sum[i], want, (int64_t)i, lanes);
            }
        }
}

TEST(nodes_of_ranks_are_the_tree) {
    float room[TREE_LEVELS][1], *kept[TREE_LEVELS], inner[TREE_LEVELS][1], *partial[TREE_LEVELS], sum, total;
    for (int l = 0; l < TREE_LEVELS; l++) kept[l] = room[l], partial[l] = inner[l];
    for (int64_t lanes = 1; lanes <= 64; lanes++)
        for (int64_t ranks = 1; ranks <= 9; ranks++) {
            for (int64_t rank = 0; rank < ranks; rank++) {
                TreeNode nodes[2 * TREE_LEVELS];
                const int n = tree_nodes(lanes * rank / ranks, lanes * (rank + 1) / ranks, nodes);
                for (int i = 0; i < n; i++) {
                    for (int64_t j = 0; j < INT64_C(1) << nodes[i].level; j++) tree_push(partial, j, 0, &(float){value_of(nodes[i].lane + j, 7)}, 1);
                    tree_total(partial, INT64_C(1) << nodes[i].level, &sum, 1);
                    tree_push(kept, nodes[i].lane, nodes[i].level, &sum, 1);
                }
            }
            tree_total(kept, lanes, &total, 1);
            check_bits("nodes", total, serial_tree(lanes, 7), ranks, lanes);
        }
}

TEST(tree_of_four_is_not_a_chain) {
    const float lanes[4] = {1, 16777216, 1, -16777216};
    float room[3], *kept[3] = {&room[0], &room[1], &room[2]}, sum;
    for (int64_t j = 0; j < 4; j++) tree_push(kept, j, 0, &lanes[j], 1);
    tree_total(kept, 4, &sum, 1);
    assert_true(sum == 1);
    assert_int_equal(tree_levels(4), 3);
    assert_int_equal(tree_nodes(0, 8, NULL), 1);
    assert_int_equal(tree_nodes(2, 5, NULL), 2);
}

/* ---- sums ---- */

typedef struct SumCase {
    size_t n;
    int64_t lanes; /* 0: one of each rank */
    bool counter;  /* sums go into a counter: always direct */
    bool bf16;
    float *result; /* of rank 0, NULL: checked against the tree */
} SumCase;

static float rounded(float value) { /* to bf16 */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, 4);
    return value;
}

/* Payload of a rank; sent and received by all */
static void check_counts(Comm *comm, const size_t *first, int n_nodes, size_t size, uint64_t sent_before) {
    const size_t own = first[comm_rank(comm) + 1] - first[comm_rank(comm)], n = first[comm_size(comm)];
    const uint64_t sum_bytes = (n - own) * size * (comm_reduce(comm) == COMM_RING || comm_reduce(comm) == COMM_MPI ? 1 : (size_t)n_nodes);
    const uint64_t gather = comm_reduce(comm) == COMM_RING
                                ? n - (first[(comm_rank(comm) + 1) % comm_size(comm) + 1] - first[(comm_rank(comm) + 1) % comm_size(comm)])
                                : (uint64_t)(comm_size(comm) - 1) * own;
    const uint64_t want = comm_size(comm) == 1 ? 0 : sum_bytes + gather * sizeof(float);
    if (comm_count(comm, -1, COMM_GRADIENTS).sent - sent_before != want)
        fail_msg("rank %d of %d sent %llu bytes, expected %llu", comm_rank(comm), comm_size(comm),
                 (unsigned long long)(comm_count(comm, -1, COMM_GRADIENTS).sent - sent_before), (unsigned long long)want);
}

static Status sum_body(Comm *comm, void *data) {
    const SumCase *test = data;
    const int size = comm_size(comm), rank = comm_rank(comm);
    const int64_t n_lanes = test->lanes ? test->lanes : size;
    const size_t n = test->n;
    size_t first[RANKS_MAX + 1];
    int64_t lanes[RANKS_MAX + 1];
    float *nodes[2 * TREE_LEVELS], *kept[TREE_LEVELS] = {NULL}, *inner[TREE_LEVELS];
    for (int r = 0; r <= size; r++) lanes[r] = n_lanes * r / size;
    TreeNode places[2 * TREE_LEVELS];
    const int n_nodes = tree_nodes(lanes[rank], lanes[rank + 1], places);
    float *x = malloc((n + 1) * sizeof *x), room[TREE_LEVELS][1];
    for (int l = 0; l < TREE_LEVELS; l++) inner[l] = room[l];
    for (int i = 0; i < n_nodes; i++) {
        nodes[i] = malloc((n + 1) * sizeof(float));
        for (size_t e = 0; e < n; e++) {
            for (int64_t j = 0; j < INT64_C(1) << places[i].level; j++) tree_push(inner, j, 0, &(float){value_of(places[i].lane + j, e)}, 1);
            tree_total(inner, INT64_C(1) << places[i].level, &nodes[i][e], 1);
        }
    }
    comm_parts(comm, n, UNIT, first);
    const size_t own = first[rank + 1] - first[rank];
    const int levels = tree_levels(n_lanes);
    for (int l = 0; test->counter && l < levels; l++) kept[l] = malloc((own + 1) * sizeof(float));
    const uint64_t before = comm_count(comm, -1, COMM_GRADIENTS).sent;
    const CommSum sum = {COMM_GRADIENTS,  "gradients of bucket 0",     n,         first, test->lanes ? lanes : NULL, nodes,
                         x + first[rank], test->counter ? kept : NULL, test->bf16};
    Status status = comm_sum(comm, &sum);
    if (status == ST_OK) status = comm_finish(comm);
    if (status == ST_OK && test->counter) tree_total(kept, n_lanes, x + first[rank], own);
    const CommGather gather = {COMM_GRADIENTS, "sums of bucket 0", x, sizeof *x, first};
    if (status == ST_OK) status = comm_gather(comm, &gather);
    if (status == ST_OK) status = comm_finish(comm);
    if (status == ST_OK) check_counts(comm, first, n_nodes, test->bf16 ? 2 : 4, before);
    if (size == 2 && n == (5 << 20) / 4 && comm_reduce(comm) == COMM_TREE) /* 2.5 MiB there, and 2.5 MiB back */
        assert_int_equal(comm_count(comm, -1, COMM_GRADIENTS).sent_segments, 6);
    if (status == ST_OK && test->result && rank == 0) memcpy(test->result, x, n * sizeof *x);
    const size_t step = n > 100000 ? 997 : n > 1000 ? 17 : 1;
    for (size_t e = 0; status == ST_OK && !test->result && e < n; e += step) check_bits("sum", x[e], serial_tree(n_lanes, e), (int64_t)e, size);
    for (int i = 0; i < n_nodes; i++) free(nodes[i]);
    for (int l = 0; l < TREE_LEVELS; l++) free(kept[l]);
    free(x);
    return status;
}

static const size_t sizes[] = {0, 1, 16383, 16384, 16385, 3 * 16384 + 5, (5 << 20) / 4};

/* Sums of 4 and 8 ranks are halved, the others are direct; with a counter all are. All are the tree. */
TEST(sums_are_the_tree) {
    for (int size = 1; size <= 8; size++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            for (int counter = 0; counter < 2; counter++)
                if (i + 1 == COUNT_OF(sizes) ? long_tests() : i >= 3 || size <= 4 || long_tests())
                    check_ok(ranks_run(size, NULL, sum_body, &(SumCase){.n = sizes[i], .counter = counter}));
    for (int size = 2; size <= ALL_OR_FEW(4, 2); size++) check_ok(ranks_run(size, NULL, sum_body, &(SumCase){.n = (5 << 20) / 4}));
}

/* Any lanes on any ranks; also ranks without lanes */
TEST(lanes_on_ranks_are_the_tree) {
    static const int64_t lanes[] = {8, 16, 5, 2, 1};
    for (int size = 2; size <= 8; size++)
        for (size_t i = 0; i < COUNT_OF(lanes); i++)
            check_ok(ranks_run(size, NULL, sum_body, &(SumCase){.n = 2 * UNIT + 3, .lanes = lanes[i], .counter = i % 2}));
}

TEST(master_is_the_tree) {
    RankRun run = {.config.reduce = COMM_MASTER};
    for (int size = 1; size <= 5; size += 2) check_ok(ranks_run(size, &run, sum_body, &(SumCase){.n = 3 * UNIT + 5, .lanes = 8}));
    for (int size = 2; long_tests() && size <= 8; size++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++) check_ok(ranks_run(size, &run, sum_body, &(SumCase){.n = sizes[i]}));
}

/* The ring has bits of its own, the same each time; whatever they are, they are near the tree's. */
TEST(ring_repeats) {
    const size_t most = (5 << 20) / 4;
    float *once = malloc(most * sizeof *once), *again = malloc(most * sizeof *again);
    for (int size = 1; size <= 8; size++)
        for (int64_t lanes = 0; lanes <= (long_tests() ? 24 : 6); lanes += 3) {
            const size_t n = lanes <= 6 ? 3 * UNIT + 5 : sizes[(size_t)lanes / 3 % COUNT_OF(sizes)];
            RankRun run = {.config.reduce = COMM_RING};
            check_ok(ranks_run(size, &run, sum_body, &(SumCase){.n = n, .lanes = lanes, .result = once}));
            for (int rank = 0; rank < size; rank++) run.trouble[rank] = (Trouble){.seed = (uint64_t)rank, .delay = 300};
            check_ok(ranks_run(size, &run, sum_body, &(SumCase){.n = n, .lanes = lanes, .result = again}));
            assert_memory_equal(once, again, n * sizeof *once);
            for (size_t e = 0; e < n; e += 31) { /* a sum of n values below 2^31: 2^31 x 2^-23 x n */
                if (fabsf(once[e] - serial_tree(lanes ? lanes : size, e)) > 256 * (float)MAX(lanes, 8))
                    fail_msg("element %zu: %g", e, (double)once[e]);
            }
        }
    free(once);
    free(again);
}

TEST(bf16_is_rounded_once) {
    const size_t n = UNIT + 3;
    float *got = malloc(n * sizeof *got);
    check_ok(ranks_run(3, NULL, sum_body, &(SumCase){.n = n, .bf16 = true, .result = got}));
    for (size_t e = 0; e < n; e += 7) {
        const float want = (rounded(value_of(0, e)) + rounded(value_of(1, e))) + rounded(value_of(2, e));
        check_bits("bf16", got[e], want, (int64_t)e, 3);
    }
    free(got);
}

TEST(delays_change_nothing) {
    RankRun run = {0};
    for (int rank = 0; rank < 5; rank++) run.trouble[rank] = (Trouble){.seed = (uint64_t)rank, .delay = 2000};
    for (int size = 3; size <= 5; size++) check_ok(ranks_run(size, &run, sum_body, &(SumCase){.n = 3 * UNIT + 5, .lanes = 8}));
}

/* Golden: 1,000,000 elements on 4 ranks are 62 units; an all-reduce moves 24,000,000 bytes. */
static Status golden_body(Comm *comm, void *data) {
    static const size_t parts[4] = {262144, 245760, 262144, 229952};
    size_t first[5];
    (void)data;
    comm_parts(comm, 1000000, UNIT, first);
    for (int rank = 0; rank < 4; rank++) assert_int_equal(first[rank + 1] - first[rank], parts[rank]);
    float *x = calloc(1000000, sizeof *x);
    const CommSum sum = {COMM_GRADIENTS, "gradients of bucket 0", 1000000, first, .nodes = &x, .sum = x + first[comm_rank(comm)]};
    Status status = comm_sum(comm, &sum);
    const CommGather gather = {COMM_WEIGHTS, "weights of bucket 0", x, sizeof *x, first};
    if (status == ST_OK) status = comm_gather(comm, &gather);
    if (status == ST_OK) status = comm_finish(comm);
    free(x);
    TRY(status);
    uint64_t mine[2] = {comm_count(comm, -1, COMM_GRADIENTS).sent, comm_count(comm, -1, COMM_WEIGHTS).sent}, all[4][2], total = 0;
    if (comm_rank(comm) == 0) {
        assert_int_equal(mine[0], 2951424);
        assert_int_equal(mine[1], 3145728);
        assert_int_equal(comm_count(comm, 1, COMM_GRADIENTS).sent_segments, 1);
    }
    TRY(comm_gather_small(comm, "bytes", mine, sizeof mine, all));
    for (int rank = 0; rank < 4; rank++) total += all[rank][0] + all[rank][1];
    assert_int_equal(total, 24000000);
    return ST_OK;
}

TEST(bytes_are_the_golden_ones) { check_ok(ranks_run(4, NULL, golden_body, NULL)); }

/* ---- groups and small messages ---- */

static Status small_body(Comm *comm, void *data) {
    const int rank = comm_rank(comm), size = comm_size(comm);
    int all[RANKS_MAX], which, text = rank == 1 ? 77 : 0;
    (void)data;
    TRY(comm_gather_small(comm, "ranks", &rank, sizeof rank, all));
    for (int r = 0; r < size; r++) assert_int_equal(all[r], r);
    TRY(comm_broadcast(comm, COMM_CONTROL, "text", 1, &text, sizeof text));
    assert_int_equal(text, 77);
    assert_int_equal(comm_host_ranks(comm, &which), rank < (size + 1) / 2 ? (size + 1) / 2 : size / 2);
    assert_int_equal(which, rank < (size + 1) / 2 ? rank : rank - (size + 1) / 2);
    const size_t n = 2 * COMM_SEGMENT + 5;
    char *bytes = calloc(n, 1);
    Status status = ST_OK;
    if (rank == 2) memset(bytes, 5, n);
    if (rank == 2) status = comm_send(comm, COMM_CHECKPOINT, "piece", 0, bytes, n);
    if (rank == 0) status = comm_receive(comm, COMM_CHECKPOINT, "piece", 2, bytes, n);
    if (rank == 0) assert_int_equal(bytes[n - 1], 5);
    if (rank == 0) assert_int_equal(comm_count(comm, 2, COMM_CHECKPOINT).got_segments, 3);
    free(bytes);
    TRY(status);
    Comm *group;
    TRY(comm_split(comm, rank % 2, -rank, &group));
    assert_int_equal(comm_size(group), (size + 1 - rank % 2) / 2);
    int members[RANKS_MAX];
    status = comm_gather_small(group, "ranks", &rank, sizeof rank, members);
    for (int r = 1; r < comm_size(group); r++) assert_true(members[r] == members[r - 1] - 2);
    comm_group_free(group);
    return status;
}

TEST(small_messages_and_groups) {
    check_ok(ranks_run(3, NULL, small_body, NULL));
    check_ok(ranks_run(8, NULL, small_body, NULL));
}

TEST(one_process_needs_no_comm) {
    int value = 5, all = 0;
    Comm *world;
    assert_int_equal(comm_size(NULL), 1);
    check_ok(comm_gather_small(NULL, "vote", &value, sizeof value, &all));
    assert_int_equal(all, 5);
    comm_poll(NULL);
    check_ok(comm_new(comm_self(), &(CommConfig){0}, &world));
    check_ok(sum_body(world, &(SumCase){.n = UNIT + 1, .lanes = 5}));
    comm_close(world, ST_OK);
}

/* ---- faults ---- */

typedef enum Mistake { OTHER_NAME, OTHER_SIZE, OTHER_KIND, OTHER_ORDER, OTHER_OPERATION } Mistake;

static Status mistake_body(Comm *comm, void *data) {
    const Mistake mistake = *(const Mistake *)data;
    float x[64] = {0};
    const bool wrong = comm_rank(comm) == 1;
    size_t first[RANKS_MAX + 1];
    int all[RANKS_MAX];
    const size_t n = wrong && mistake == OTHER_SIZE ? 48 : 32;
    comm_parts(comm, n, 1, first);
    CommGather gather = {COMM_GRADIENTS, "gradients of layers.3", x, sizeof *x, first};
    if (wrong && mistake == OTHER_NAME) gather.name = "gradients of layers.4";
    if (wrong && mistake == OTHER_KIND) gather.kind = COMM_WEIGHTS;
    if (wrong && mistake == OTHER_ORDER) TRY(comm_gather_small(comm, "step 12", &(int){1}, sizeof(int), all));
    if (wrong && mistake == OTHER_OPERATION) {
        float *nodes = x;
        TRY(comm_sum(comm, &(CommSum){COMM_GRADIENTS, "gradients of layers.3", n, first, .nodes = &nodes, .sum = x + first[1]}));
    } else
        TRY(comm_gather(comm, &gather));
    return comm_finish(comm);
}

TEST(other_calls_are_named) {
    static const char *const sent[] = {"gradients of layers.4", "gradients of layers.3 (96 bytes)", "weights: gradients of layers.3", "sums: step 12",
                                       "gradients of layers.3"};
    for (Mistake mistake = OTHER_NAME; mistake <= OTHER_OPERATION; mistake++) {
        RankRun run = {.config.timeout = 8};
        char text[400];
        int prints = 0;
        check_status(ranks_run(2, &run, mistake_body, &mistake), ST_RESOURCE);
        for (int rank = 0; rank < 2; rank++) {
            snprintf(text, sizeof text, "%s|%s", run.failures[rank].text, run.failures[1 - rank].text);
            prints += run.prints[rank];
            assert_int_equal(run.failures[rank].status, ST_RESOURCE);
            if (!strstr(text, sent[mistake]) || !strstr(run.failures[rank].text, "rank 0") || !strstr(run.failures[rank].text, "rank 1"))
                fail_msg("mistake %d, rank %d: %s", (int)mistake, rank, run.failures[rank].text);
        }
        assert_int_equal(prints, 1);
    }
}

static Status failing_body(Comm *comm, void *data) {
    int all[RANKS_MAX];
    for (int step = 1; step <= 5; step++) {
        if (step == 3 && comm_rank(comm) == *(const int *)data)
            return status_hint(status_fail(ST_NUMERIC, "the loss is not finite"), "lower the learning rate");
        TRY(comm_gather_small(comm, "vote", &step, sizeof step, all));
    }
    return ST_OK;
}

TEST(a_failure_ends_all_and_is_printed_once) {
    for (int failing = 0; failing < 3; failing++) {
        RankRun run = {0};
        int prints = 0;
        check_status(ranks_run(3, &run, failing_body, &failing), ST_NUMERIC);
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(run.failures[rank].status, ST_NUMERIC);
            check_contains(run.failures[rank].text, "the loss is not finite");
            if (rank != failing)
                check_contains(run.failures[rank].text, failing == 2 ? "rank 2 (hostB): " : failing ? "rank 1 (hostA): " : "rank 0 (");
            check_contains(run.failures[rank].hint, "lower the learning rate");
            prints += run.prints[rank];
        }
        assert_int_equal(prints, 1);
        assert_true(run.prints[0]);
    }
}

/* The same failure on all ranks is printed once as well. */
static Status all_fail_body(Comm *comm, void *data) {
    (void)comm, (void)data;
    return status_fail(ST_CONFIG, "unknown key");
}

TEST(a_common_failure_is_printed_once) {
    RankRun run = {0};
    check_status(ranks_run(4, &run, all_fail_body, NULL), ST_CONFIG);
    for (int rank = 0; rank < 4; rank++) assert_int_equal(run.prints[rank], rank == 0);
}

typedef struct Warned {
    int n;
    char text[512];
} Warned;

static void keep_warning(void *data, const char *text) {
    Warned *warned = data;
    warned->n++;
    snprintf(warned->text, sizeof warned->text, "%s", text);
}

static Status long_body(Comm *comm, void *data) {
    int all[RANKS_MAX];
    (void)data;
    for (int step = 1; step <= 40; step++) {
        comm_phase(comm, step, "backward of layer", 17);
        TRY(comm_gather_small(comm, "vote", &step, sizeof step, all));
        if (comm_rank(comm) == 1 && step == 2) { /* polls while it computes, for longer than the timeout: that is no fault */
            for (double until = clock_seconds() + 2.5; clock_seconds() < until;) {
                comm_poll(comm);
                struct timespec pause = {.tv_nsec = 1000000};
                nanosleep(&pause, NULL);
            }
        }
    }
    return ST_OK;
}

TEST(a_frozen_rank_is_named) {
    Warned warned = {0};
    RankRun run = {.config = {.timeout = 2, .warn = keep_warning, .data = &warned}, .trouble[1] = {.freeze = 30, .seconds = 4}};
    check_status(ranks_run(3, &run, long_body, NULL), ST_RESOURCE);
    check_contains(run.failures[0].text, "rank 1 (hostA) has given no sign for");
    check_contains(run.failures[2].text, "rank 1 (hostA) has given no sign");
    assert_true(warned.n > 0);
    check_contains(warned.text, "rank 0 waits for rank 1 (hostA), last sign");
    check_contains(warned.text, "backward of layer 17, step ");
    assert_true(run.prints[0]);
}

TEST(a_frozen_rank_0_is_named) {
    if (!long_tests()) skip(); /* it waits for 8 s */
    RankRun run = {.config.timeout = 2, .trouble[0] = {.freeze = 30, .seconds = 8}};
    ranks_run(3, &run, long_body, NULL);
    check_contains(run.failures[1].text, "rank 0 (hostA) has given no sign for");
    assert_true(run.prints[1] || run.prints[2]);
}

TEST(a_slow_rank_that_polls_is_no_fault) {
    RankRun run = {.config.timeout = 2};
    check_ok(ranks_run(3, &run, long_body, NULL));
}

TEST(a_killed_rank_is_named) {
    RankRun run = {.config.timeout = 3, .trouble[2] = {.die = 20}};
    check_status(ranks_fork(4, &run, long_body, NULL), ST_RESOURCE);
    check_contains(run.failures[0].text, "rank 2 (hostB) has given no sign");
    check_contains(run.failures[2].text, "killed");
    check_contains(run.failures[3].text, "rank 2 (hostB) has given no sign");
}

TEST(a_cut_cable_is_named) {
    RankRun run = {.config.timeout = 2, .trouble[1] = {.cut = 10}};
    check_status(ranks_run(2, &run, long_body, NULL), ST_RESOURCE);
    check_contains(run.failures[0].text, "has given no sign");
}

/* One rank is interrupted where the others are not. */
static Status interrupted_body(Comm *comm, void *data) {
    char all[RANKS_MAX];
    (void)data;
    if (comm_rank(comm) == 1) {
        comm_end(comm, true, "", 1, all);
        return status_fail(ST_INTERRUPTED, "interrupted");
    }
    for (int step = 0; step < 1000; step++) TRY(comm_gather_small(comm, "vote", "", 1, all));
    return ST_OK;
}

TEST(an_interrupted_rank_ends_all) {
    RankRun run = {.config.timeout = 5};
    check_status(ranks_run(3, &run, interrupted_body, NULL), ST_INTERRUPTED);
    check_contains(run.failures[0].text, "rank 1 (hostA) was interrupted");
    assert_int_equal(run.failures[2].status, ST_INTERRUPTED);
}

/* A rank that computes hears of the failure of another one. */
static Status computing_body(Comm *comm, void *data) {
    (void)data;
    if (comm_rank(comm) == 2) return status_fail(ST_RESOURCE, "the disk is full");
    for (double until = clock_seconds() + 10; clock_seconds() < until;) TRY(comm_check(comm));
    return ST_OK;
}

TEST(a_computing_rank_hears_of_failures) {
    RankRun run = {0};
    check_status(ranks_run(3, &run, computing_body, NULL), ST_RESOURCE);
    for (int rank = 0; rank < 2; rank++) check_contains(run.failures[rank].text, "rank 2 (hostB): the disk is full");
}

/* Random collectives with random delays, for 60 rounds and so many seconds: none hangs. */
static Status soak_body(Comm *comm, void *data) {
    const double until = clock_seconds() + *(const double *)data;
    const int size = comm_size(comm);
    bool goes_on = true;
    float *x = calloc(4 * UNIT, sizeof *x);
    size_t first[RANKS_MAX + 1];
    int all[RANKS_MAX];
    char name[32];
    Status status = ST_OK;
    for (int round = 0; status == ST_OK && goes_on; round++) {
        const uint64_t draw = mix64((uint64_t)round + 1);
        const size_t n = draw % (4 * UNIT);
        snprintf(name, sizeof name, "round %d", round);
        comm_parts(comm, n, 64, first);
        if (draw >> 32 & 1) status = comm_gather(comm, &(CommGather){COMM_WEIGHTS, name, x, sizeof *x, first});
        if (status == ST_OK && draw >> 33 & 1)
            status = comm_sum(comm, &(CommSum){COMM_GRADIENTS, name, n, first, .nodes = &x, .sum = x + first[comm_rank(comm)]});
        if (status == ST_OK && draw >> 34 & 1) status = comm_gather_small(comm, name, &round, sizeof round, all);
        if (status == ST_OK && draw >> 35 & 1) status = comm_broadcast(comm, COMM_WEIGHTS, name, (int)(draw % (uint64_t)size), x, n);
        comm_poll(comm);
        goes_on = round < 60 || clock_seconds() < until;
        if (status == ST_OK && round >= 59) status = comm_broadcast(comm, COMM_CONTROL, "whether the test goes on", 0, &goes_on, sizeof goes_on);
    }
    if (status == ST_OK) status = comm_finish(comm);
    free(x);
    return status;
}

TEST(nothing_hangs) {
    double seconds = long_tests() ? 600 : 0;
    RankRun run = {.config.timeout = 60};
    for (int rank = 0; rank < 3; rank++) run.trouble[rank] = (Trouble){.seed = (uint64_t)rank, .delay = 400};
    check_ok(ranks_run(3, &run, soak_body, &seconds));
}

/* ---- memory that the ranks of a machine have once ---- */

enum { TAKEN = 6 };
static const size_t taken[TAKEN] = {5, 100000, (size_t)65 << 20, 64, (size_t)40 << 20, (size_t)40 << 20};

typedef struct HostCase {
    bool other;  /* rank 1 takes another size at the end */
    int failing; /* this rank fails after its last call; -1: none */
} HostCase;

/* Kilobytes of this process that are of the common file: its own share, or all that it has */
static long common_kilobytes(const char *key) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    long sum = 0, one;
    bool common = false;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (strstr(line, " rw-s ") || strstr(line, " r--s ") || strstr(line, "-p "))
            common = strstr(line, "memfd:tune-weights") != NULL;
        else if (common && strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), ": %ld kB", &one) == 1)
            sum += one;
    }
    fclose(file);
    return sum;
}

static Status host_body(Comm *comm, void *data) {
    const HostCase *test = data;
    HostMemory *memory;
    uint8_t *at[TAKEN];
    const int rank = comm_rank(comm), size = comm_size(comm);
    size_t bytes = 0;
    char all[RANKS_MAX];
    TRY(host_memory_new(comm, &memory));
    if (!memory) return status_fail(ST_NUMERIC, "no common memory");
    if (host_memory_fills(memory) != (rank == 0 || rank == (size + 1) / 2)) return status_fail(ST_NUMERIC, "rank %d fills", rank);
    for (int i = 0; i < TAKEN; i++) {
        at[i] = host_memory_take(memory, taken[i] + (test->other && rank == 1 && i + 1 == TAKEN ? 100 : 0));
        if (!at[i]) return ST_RESOURCE;
        if ((uintptr_t)at[i] % 64) return status_fail(ST_NUMERIC, "not aligned");
        bytes += taken[i];
        for (size_t b = 0; host_memory_fills(memory) && b < taken[i]; b += 4096) at[i][b] = (uint8_t)(i + 1 + (rank > 0));
    }
    if (rank == test->failing) return status_fail(ST_INPUT, "a weight is not finite");
    TRY(host_memory_end(memory));
    for (int i = 0; i < TAKEN; i++)
        for (size_t b = 0; b < taken[i]; b += 4096)
            if (at[i][b] != (uint8_t)(i + 1 + (rank >= (size + 1) / 2))) return status_fail(ST_NUMERIC, "piece %d has %d at %zu", i, at[i][b], b);
    TRY(comm_gather_small(comm, "all have it", "", 1, all));
    const long whole = common_kilobytes("Rss"), share = common_kilobytes("Pss");
    TRY(comm_gather_small(comm, "all have looked", "", 1, all));
    if (whole < (long)(bytes >> 10) || share > (long)(bytes >> 10) * 11 / 20)
        return status_fail(ST_NUMERIC, "%zu kB: %ld are mapped, a share of %ld", bytes >> 10, whole, share);
    host_memory_free(memory);
    return comm_finish(comm);
}

TEST(ranks_of_a_machine_have_weights_once) {
#ifdef __linux__
    RankRun run = {.config.timeout = 60};
    check_ok(ranks_fork(4, &run, host_body, &(HostCase){.failing = -1}));
    check_status(ranks_fork(4, &run, host_body, &(HostCase){.failing = -1, .other = true}), ST_RESOURCE);
    check_contains(run.failures[1].text, "other weights than the first one of its machine");
    check_status(ranks_fork(4, &run, host_body, &(HostCase){.failing = 0}), ST_INPUT);
    check_contains(run.failures[1].text, "rank 0 (hostA): a weight is not finite");
#else
    skip();
#endif
}

/* If a rank cannot open the file, those of its machine have no common memory, and the other machine has. */
static Status refused_body(Comm *comm, void *data) {
    HostMemory *memory;
    const struct rlimit none = {0, 0};
    (void)data;
    if (comm_rank(comm) == 1) assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    TRY(host_memory_new(comm, &memory));
    if (!memory != (comm_rank(comm) < 2)) return status_fail(ST_NUMERIC, "rank %d: %s common memory", comm_rank(comm), memory ? "a" : "no");
    if (memory && (!host_memory_take(memory, 100) || host_memory_end(memory) != ST_OK)) return ST_RESOURCE;
    host_memory_free(memory);
    return comm_finish(comm);
}

TEST(ranks_that_cannot_share_have_their_own) {
    RankRun run = {.config.timeout = 60};
    check_ok(ranks_fork(4, &run, refused_body, NULL));
}

/* A rank alone on its machine needs none. */
static Status alone_body(Comm *comm, void *data) {
    HostMemory *memory;
    (void)data;
    TRY(host_memory_new(comm, &memory));
    return memory ? status_fail(ST_NUMERIC, "memory in common with nobody") : comm_finish(comm);
}

TEST(a_rank_alone_has_its_own) {
    check_ok(ranks_run(2, NULL, alone_body, NULL));
    check_ok(alone_body(NULL, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named), /* first: it forks */
        cmocka_unit_test(counter_is_the_tree),
        cmocka_unit_test(nodes_of_ranks_are_the_tree),
        cmocka_unit_test(tree_of_four_is_not_a_chain),
        cmocka_unit_test(sums_are_the_tree),
        cmocka_unit_test(lanes_on_ranks_are_the_tree),
        cmocka_unit_test(master_is_the_tree),
        cmocka_unit_test(ring_repeats),
        cmocka_unit_test(bf16_is_rounded_once),
        cmocka_unit_test(ranks_of_a_machine_have_weights_once),
        cmocka_unit_test(ranks_that_cannot_share_have_their_own),
        cmocka_unit_test(a_rank_alone_has_its_own),
        cmocka_unit_test(delays_change_nothing),
        cmocka_unit_test(bytes_are_the_golden_ones),
        cmocka_unit_test(small_messages_and_groups),
        cmocka_unit_test(one_process_needs_no_comm),
        cmocka_unit_test(other_calls_are_named),
        cmocka_unit_test(a_failure_ends_all_and_is_printed_once),
        cmocka_unit_test(a_common_failure_is_printed_once),
        cmocka_unit_test(a_frozen_rank_is_named),
        cmocka_unit_test(a_frozen_rank_0_is_named),
        cmocka_unit_test(a_slow_rank_that_polls_is_no_fault),
        cmocka_unit_test(a_cut_cable_is_named),
        cmocka_unit_test(an_interrupted_rank_ends_all),
        cmocka_unit_test(a_computing_rank_hears_of_failures),
        cmocka_unit_test(nothing_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
