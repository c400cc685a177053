/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: the counter of partial sums against the recursion that defines the tree, and runs that depend on lanes alone. */
#include "lib/parallel/lanes.h"
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

enum { MOST = 64, WIDTH = 4 };

/* ---- one trained parameter ---- */

typedef struct One {
    Arena *arena;
    Params params;
    Tensor *grad;
} One;

static void one_new(One *one) {
    *one = (One){.arena = arena_new(0)};
    Tensor *tensor = tensor_new(one->arena, device_cpu(), DT_F32, 1, (int64_t[]){WIDTH});
    check_ok(params_train(params_add(&one->params, "w", tensor, PARAM_BASE), one->arena));
    one->grad = tensor->grad;
}

static void one_free(One *one) {
    params_release(&one->params);
    arena_free(one->arena);
}

/* A value or nothing: what a leaf or a lane adds. */
typedef struct Part {
    bool there;
    float values[WIDTH];
} Part;

static Part plus(Part a, Part b) {
    if (!a.there || !b.there) return a.there ? a : b;
    for (int i = 0; i < WIDTH; i++) a.values[i] += b.values[i];
    return a;
}

/* As a backward pass does. */
static void leaf_adds(Tensor *grad, const Part *leaf) {
    float sum[WIDTH];
    if (!leaf->there) return;
    check_ok(tensor_download(grad, 0, WIDTH, sum));
    for (int i = 0; i < WIDTH; i++) sum[i] = grad->blank ? leaf->values[i] : sum[i] + leaf->values[i];
    grad->blank = false;
    check_ok(tensor_upload(grad, 0, WIDTH, sum));
}

/* ---- the definition ---- */

static Part lane_of(const Part *leaves, int64_t lane, int64_t n_lanes, int64_t n_leaves) {
    Part sum = {0};
    for (int64_t i = lane_begin(lane, n_lanes, n_leaves); i < lane_begin(lane + 1, n_lanes, n_leaves); i++) sum = plus(sum, leaves[i]);
    return sum;
}

/* Lanes first .. first + 2^level - 1, of those that there are. */
static Part tree_of(const Part *lanes, int64_t n, int64_t first, int level) {
    if (first >= n) return (Part){0};
    if (level == 0) return lanes[first];
    return plus(tree_of(lanes, n, first, level - 1), tree_of(lanes, n, first + ((int64_t)1 << (level - 1)), level - 1));
}

static Part step_by_definition(const Part *leaves, int64_t n_lanes, int64_t n_leaves) {
    Part lanes[MOST];
    for (int64_t i = 0; i < n_lanes; i++) lanes[i] = lane_of(leaves, i, n_lanes, n_leaves);
    return tree_of(lanes, n_lanes, 0, 6);
}

static Part step_by_counter(One *one, LaneSums *sums, const Part *leaves, int64_t n_lanes, int64_t n_leaves) {
    Part result;
    params_zero_grad(&one->params);
    for (int64_t lane = 0; lane < n_lanes; lane++) {
        for (int64_t i = lane_begin(lane, n_lanes, n_leaves); i < lane_begin(lane + 1, n_lanes, n_leaves); i++) leaf_adds(one->grad, &leaves[i]);
        if (lane + 1 < n_lanes) lane_sums_push(sums, lane);
    }
    lane_sums_finish(sums);
    result.there = !one->grad->blank;
    check_ok(tensor_download(one->grad, 0, WIDTH, result.values));
    return result;
}

static void check_same(const Part *got, const Part *want, int64_t n_lanes, int64_t n_leaves) {
    if (got->there != want->there || (want->there && memcmp(got->values, want->values, sizeof want->values) != 0))
        fail_msg("%lld leaves in %lld lanes: %a, expected %a", (long long)n_leaves, (long long)n_lanes, (double)got->values[0],
                 (double)want->values[0]);
}

/* ---- tests ---- */

static void draw(Part *leaves, uint64_t number) {
    static const float special[] = {-0.0f, 0.0f, INFINITY, 1, 16777216, -16777216};
    RngKey key = rng_key(7, RNG_INIT, number);
    for (uint64_t i = 0; i < MOST; i++) {
        leaves[i].there = rng_uniform(key, 64 * i) > 0.2;
        for (uint64_t k = 0; k < WIDTH; k++) {
            double u = rng_uniform(key, 64 * i + k + 1);
            leaves[i].values[k] = u < 0.1 ? special[(size_t)(60 * u)] : (float)rng_normal(key, 64 * i + k + 32);
        }
    }
}

TEST(the_counter_adds_as_the_tree) {
    Part leaves[MOST];
    One one;
    LaneSums sums;
    one_new(&one);
    for (int64_t n_lanes = 1; n_lanes <= MOST; n_lanes++) {
        check_ok(lane_sums_init(&sums, &one.params, lane_buffers(0, n_lanes), one.arena));
        for (int64_t n_leaves = 1; n_leaves <= MOST; n_leaves++) {
            draw(leaves, (uint64_t)(n_lanes * MOST + n_leaves));
            Part want = step_by_definition(leaves, n_lanes, n_leaves), got = step_by_counter(&one, &sums, leaves, n_lanes, n_leaves);
            check_same(&got, &want, n_lanes, n_leaves);
        }
    }
    one_free(&one);
}

TEST(a_tree_is_not_a_chain) {
    static const float values[] = {1, 16777216, 1, -16777216};
    Part leaves[4];
    One one;
    LaneSums sums;
    one_new(&one);
    for (int i = 0; i < 4; i++) {
        leaves[i].there = true;
        for (int k = 0; k < WIDTH; k++) leaves[i].values[k] = values[i];
    }
    for (int64_t n_lanes = 1; n_lanes <= 4; n_lanes *= 4) {
        check_ok(lane_sums_init(&sums, &one.params, lane_buffers(0, n_lanes), one.arena));
        check_close(step_by_counter(&one, &sums, leaves, n_lanes, 4).values[0], n_lanes == 1 ? 0 : 1, 0);
    }
    one_free(&one);
}

/* After a step that did not end, the next one begins from nothing. */
TEST(unfinished_sums_are_forgotten) {
    Part leaves[MOST];
    One one;
    LaneSums sums;
    one_new(&one);
    check_ok(lane_sums_init(&sums, &one.params, lane_buffers(0, 8), one.arena));
    draw(leaves, 1);
    for (int64_t lane = 0; lane < 7; lane++) {
        leaf_adds(one.grad, &leaves[lane]);
        lane_sums_push(&sums, lane);
    }
    lane_sums_reset(&sums);
    Part want = step_by_definition(leaves + 8, 8, 8), got = step_by_counter(&one, &sums, leaves + 8, 8, 8);
    check_same(&got, &want, 8, 8);
    one_free(&one);
}

TEST(numbers_of_lanes_are_chosen) {
    static const struct {
        const char *wanted;
        int64_t batches, ranks;
        bool adapter;
        Lanes lanes;
    } rows[] = {
        {"auto", 1, 1, true, {1, false, 1}},   {"auto", 7, 1, true, {4, false, 1}}, {"auto", 100, 1, true, {16, false, 1}},
        {"auto", 8, 1, false, {1, false, 1}},  {"auto", 2, 3, true, {4, false, 2}}, {"auto", 8, 3, false, {4, false, 1}},
        {"leaves", 6, 4, false, {6, true, 1}}, {"8", 3, 1, true, {8, false, 3}},    {"8", 16, 2, false, {8, false, 1}},
        {"1", 16, 4, true, {1, false, 1}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        Lanes lanes = lanes_of(rows[i].wanted, rows[i].batches, rows[i].adapter, rows[i].ranks);
        assert_int_equal(lanes.n, rows[i].lanes.n);
        assert_int_equal(lanes.cuts, rows[i].lanes.cuts);
    }
    assert_int_equal(lane_buffers(0, 1), 0);
    assert_int_equal(lane_buffers(0, 16), 4);
    assert_int_equal(lane_buffers(0, 5), 2);
    assert_int_equal(lane_buffers(8, 16), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_counter_adds_as_the_tree), cmocka_unit_test(a_tree_is_not_a_chain),
                                       cmocka_unit_test(unfinished_sums_are_forgotten), cmocka_unit_test(numbers_of_lanes_are_chosen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
