/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines: simulated tables against the formulas of uniform stages; cuts against search over all of them. */
#include <math.h>
#include <string.h>

#include "lib/plan/plan_cost.h"
#include "tests/support/check.h"

static PlanPipeResult simulate(Arena *arena, PlanPipeKind kind, int64_t p, int64_t m, int64_t v, double forward, double backward) {
    double f[64], b[64];
    PlanPipeResult result;
    for (int64_t i = 0; i < p; i++) f[i] = forward, b[i] = backward;
    check_ok(plan_pipe_simulate(&(PlanPipe){.kind = kind, .stages = p, .micro = m, .chunks = v, .forward = f, .backward = b}, arena, &result));
    return result;
}

/* F = 1, B = 2: makespans and kept micro-batches of uniform stages. */
TEST(uniform_stages) {
    Arena *arena = arena_new(0);
    for (int64_t p = 1; p <= 8; p++)
        for (int64_t m = 1; m <= 16; m++) {
            double dp = (double)p, dm = (double)m;
            PlanPipeResult naive = simulate(arena, PIPE_NAIVE, p, m, 1, 1, 2), flushed = simulate(arena, PIPE_F_THEN_B, p, m, 1, 1, 2),
                           gpipe = simulate(arena, PIPE_GPIPE, p, m, 1, 1, 2), turns = simulate(arena, PIPE_1F1B, p, m, 1, 1, 2);
            check_close(naive.makespan, 3 * dm * dp, 1e-9);
            check_close(flushed.makespan, 3 * (dm + dp - 1), 1e-9);
            check_close(gpipe.makespan, 4 * dm + 3 * (dp - 1), 1e-9);
            check_close(turns.makespan, 3 * (dm + dp - 1), 1e-9);
            check_close(turns.bubble, plan_pipe_bubble(dp, dm, 1), 1e-9);
            check_close(gpipe.inputs, dm, 0);
            for (int64_t i = 0; i < p; i++) {
                check_close(naive.kept[i], 1, 0);
                check_close(flushed.kept[i], dm, 0);
                check_close(gpipe.kept[i], 1, 0);
                check_close(turns.kept[i], (double)MIN(p - i, m), 0);
            }
            arena_reset(arena);
        }
    arena_free(arena);
}

TEST(interleaved_stages) {
    Arena *arena = arena_new(0);
    for (int64_t p = 1; p <= 6; p++)
        for (int64_t v = 1; v <= 4; v++)
            for (int64_t m = p; m <= 16; m += p) {
                PlanPipeResult result = simulate(arena, PIPE_INTERLEAVED, p, m, v, 1, 2);
                check_close(result.makespan, 3 * (double)(v * m + p - 1) / (double)v, 1e-9);
                for (int64_t i = 0; i < p && m > p; i++)
                    check_close(result.kept[i], (double)MIN(m * v, 2 * (p - 1 - i) + (v - 1) * p + 1) / (double)v, 1e-9);
                arena_reset(arena);
            }
    double f[3] = {1, 1, 1};
    PlanPipeResult result;
    check_status(plan_pipe_simulate(&(PlanPipe){PIPE_INTERLEAVED, 3, 4, 2, f, f, NULL, 0}, arena, &result), ST_CONFIG);
    check_text("no multiple of 3 stages");
    check_status(plan_pipe_simulate(&(PlanPipe){PIPE_1F1B, 3, 4, 2, f, f, NULL, 0}, arena, &result), ST_CONFIG);
    check_status(plan_pipe_simulate(&(PlanPipe){PIPE_1F1B, 0, 4, 1, f, f, NULL, 0}, arena, &result), ST_CONFIG);
    arena_free(arena);
}

/* F = B = W = 1: 3 m + (p - 1), at most p kept. */
TEST(zero_bubble) {
    Arena *arena = arena_new(0);
    PlanPipeResult small = simulate(arena, PIPE_ZERO_BUBBLE, 4, 8, 1, 1, 2), large = simulate(arena, PIPE_ZERO_BUBBLE, 8, 32, 1, 1, 2);
    check_close(small.makespan, 27, 1e-9);
    check_close(large.makespan, 103, 1e-9);
    check_close(simulate(arena, PIPE_1F1B, 4, 8, 1, 1, 2).makespan, 33, 1e-9);
    check_close(simulate(arena, PIPE_1F1B, 8, 32, 1, 1, 2).makespan, 117, 1e-9);
    for (int i = 0; i < 4; i++) assert_true(small.kept[i] <= 4);
    for (int i = 0; i < 8; i++) assert_true(large.kept[i] <= 8);
    arena_free(arena);
}

/* Without flush each stage keeps p - i micro-batches; the second half of many takes as long as its work. */
TEST(pipedream_has_no_flush) {
    Arena *arena = arena_new(0);
    for (int64_t p = 1; p <= 6; p++) {
        PlanPipeResult less = simulate(arena, PIPE_PIPEDREAM, p, 40, 1, 1, 2), more = simulate(arena, PIPE_PIPEDREAM, p, 80, 1, 1, 2);
        check_close(more.makespan - less.makespan, 3 * 40, 1e-9);
        for (int64_t i = 0; i < p; i++) check_close(more.kept[i], (double)(p - i), 0);
    }
    arena_free(arena);
}

/* Uneven stages and messages: the slowest stage decides, every message of the first micro-batch is waited for. */
TEST(uneven_stages_and_messages) {
    Arena *arena = arena_new(0);
    const double f[] = {1, 2, 1}, b[] = {2, 4, 2};
    PlanPipeResult result;
    check_ok(plan_pipe_simulate(&(PlanPipe){PIPE_F_THEN_B, 3, 1, 1, f, b, NULL, .5}, arena, &result));
    check_close(result.makespan, 4 + 8 + 4 * .5, 1e-9);
    check_ok(plan_pipe_simulate(&(PlanPipe){PIPE_1F1B, 3, 100, 1, f, b, NULL, 0}, arena, &result));
    check_close(result.makespan, 100 * 6 + 3, 4);
    /* A link that is slower than the stages: one message at a time. */
    check_ok(plan_pipe_simulate(&(PlanPipe){PIPE_F_THEN_B, 2, 50, 1, f, b, NULL, 10}, arena, &result));
    assert_true(result.makespan >= 2 * 50 * 10);
    arena_free(arena);
}

TEST(bubbles) {
    static const struct {
        double p, m, v, total, ideal;
    } known[] = {{4, 8, 1, .272727, .375}, {8, 32, 1, .179487, .21875}, {8, 32, 2, .098592, .109375}, {4, 4, 1, .428571, .75}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        double total = plan_pipe_bubble(known[i].p, known[i].m, known[i].v);
        check_close(total, known[i].total, 5.1e-7);
        check_close(total / (1 - total), known[i].ideal, 5.1e-7);
    }
}

/* ---- stages ---- */

static void check_stages(double layer, int64_t layers, double head, int64_t p, const int64_t *want, double want_balance) {
    Arena *arena = arena_new(0);
    double cost[128], balance;
    int64_t counts[64];
    for (int64_t i = 0; i < layers; i++) cost[i] = layer;
    check_ok(stages_balance(cost, layers, head, p, arena, counts, &balance));
    for (int64_t i = 0; i < p; i++) assert_int_equal(counts[i], want[i]);
    check_close(balance, want_balance, .5000001e-4);
    arena_free(arena);
}

/* Matrix elements of a layer, and V x h. */
TEST(stages_of_known_models) {
    check_stages(3538944, 30, 28311552, 2, (const int64_t[]){19, 11}, 1.0);
    check_stages(3538944, 30, 28311552, 4, (const int64_t[]){8, 10, 10, 2}, .95);
    check_stages(14909440, 24, 136134656, 2, (const int64_t[]){17, 7}, .9744);
    check_stages(14909440, 24, 136134656, 4, (const int64_t[]){3, 10, 10, 1}, .8176);
    check_stages(218103808, 32, 525336576, 2, (const int64_t[]){17, 15}, .9883);
    check_stages(218103808, 32, 525336576, 4, (const int64_t[]){8, 9, 9, 6}, .9558);
}

/* Every cut of small lists: the smallest largest stage, and of those the smallest list. */
TEST(stages_are_the_best) {
    Arena *arena = arena_new(0);
    uint64_t draw = 7;
    for (int round = 0; round < ALL_OR_FEW(200, 20); round++) {
        double cost[6], best = (double)INFINITY;
        for (int i = 0; i < 6; i++) draw = mix64(draw + 1), cost[i] = (double)(1 + draw % 5);
        double last = (double)(draw % 7);
        int64_t want[3] = {0}, got[3];
        for (int64_t a = 1; a <= 4; a++)
            for (int64_t b = 1; a + b <= 5; b++) {
                double sums[3] = {0, 0, last};
                for (int64_t i = 0; i < 6; i++) sums[i < a ? 0 : i < a + b ? 1 : 2] += cost[i];
                double largest = fmax(fmax(sums[0], sums[1]), sums[2]);
                if (largest >= best) continue;
                best = largest;
                want[0] = a, want[1] = b, want[2] = 6 - a - b;
            }
        check_ok(stages_balance(cost, 6, last, 3, arena, got, NULL));
        for (int i = 0; i < 3; i++) assert_int_equal(got[i], want[i]);
    }
    int64_t got[8];
    check_status(stages_balance((const double[]){1, 1}, 2, 0, 3, arena, got, NULL), ST_CONFIG);
    check_text("pipeline 3: the model has 2 layers");
    arena_free(arena);
}

/* VGG16 at batch 32 a rank: millions of multiply-adds and of weights of each layer, and its output. Convolutions have the work, the first fully
 * connected layer the weights: PipeDream replicates the one and not the other (7-1 in its table 1). 11 TF/s a GPU (Titan X) and 10 Gb/s of its
 * 25 GbE, which TCP reached, are assumed. */
TEST(pipedream_cuts_vgg16_as_7_1) {
    static const double millions[] = {86.7, 1850, 925, 1850, 925, 1850, 1850, 925, 1850, 1850, 462, 462, 462, 102.8, 16.8, 4.1},
                        parameters[] = {.002, .037, .074, .148, .295, .59, .59, 1.18, 2.36, 2.36, 2.36, 2.36, 2.36, 102.8, 16.8, 4.1},
                        outputs[] = {3.2, .8, 1.6, .4, .8, .8, .2, .4, .4, .1, .1, .1, .025, .0041, .0041, .001};
    Arena *arena = arena_new(0);
    PipedreamPlan plan;
    double time[16], weights[16], bytes[16];
    for (int i = 0; i < 16; i++) {
        time[i] = 32 * 3 * 2 * millions[i] * 1e6 / 11e12;
        weights[i] = 4e6 * parameters[i];
        bytes[i] = 32 * 4e6 * outputs[i];
    }
    check_ok(stages_pipedream(time, weights, bytes, 16, 8, &(LinkSpeed){1.25e9, 0}, arena, &plan));
    assert_int_equal(plan.n, 2);
    assert_int_equal(plan.stages[0].ranks, 7);
    assert_int_equal(plan.stages[1].ranks, 1);
    assert_int_equal(plan.stages[1].first, 10); /* the last convolutions fill the time of the one rank */
    assert_int_equal(plan.noam, 2);
    double all = 0;
    for (int i = 0; i < 16; i++) all += time[i];
    assert_true(all / plan.seconds > 6.5 && all / plan.seconds <= 8);
    /* Free messages: plain data parallel is as good as anything. One rank: one stage. */
    check_ok(stages_pipedream(time, weights, bytes, 16, 8, &(LinkSpeed){1e18, 0}, arena, &plan));
    check_close(plan.seconds, all / 8, 1e-6 * all);
    check_ok(stages_pipedream(time, weights, bytes, 16, 1, &(LinkSpeed){1e9, 0}, arena, &plan));
    assert_int_equal(plan.n, 1);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_stages),         cmocka_unit_test(interleaved_stages),         cmocka_unit_test(zero_bubble),
        cmocka_unit_test(pipedream_has_no_flush), cmocka_unit_test(uneven_stages_and_messages), cmocka_unit_test(bubbles),
        cmocka_unit_test(stages_of_known_models), cmocka_unit_test(stages_are_the_best),        cmocka_unit_test(pipedream_cuts_vgg16_as_7_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
