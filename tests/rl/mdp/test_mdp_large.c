/* SPDX-License-Identifier: Apache-2.0 */
/* Large worlds: chains with slow and fast parts, threads, tiles; methods that agree, and take few iterations. */
#include "rl/mdp/mdp_form.h"
#include "tests/support/check.h"
#include "tests/support/mdp.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* A world of one action with these outcomes; `width` of them a state. */
static NamedMdp *chain_world(int64_t n, int width, void (*outcome)(int64_t s, int i, int64_t *next, double *probability), int64_t start,
                             int64_t terminal) {
    MdpBuilder *builder = mdp_builder_new(n, 1, 0.9);
    for (int64_t s = 0; s < n; s++)
        for (int i = 0; i < width && s != terminal; i++) {
            int64_t next = 0;
            double probability = 0;
            outcome(s, i, &next, &probability);
            if (probability > 0) mdp_builder_add(builder, s, 0, next, probability, 0, false);
        }
    if (start >= 0) mdp_builder_start(builder, start, 1);
    if (terminal >= 0) mdp_builder_terminal(builder, terminal);
    return finished(builder);
}

static void ring(int64_t s, int i, int64_t *next, double *p) { /* once around, alike in all 5001 states: as periodic as can be */
    *next = (s + 1) % 5001;
    *p = i == 0;
}

static void drift(int64_t s, int i, int64_t *next, double *p) { /* 3000 states, more to the left: shares 4^-s */
    *next = i ? MIN(s + 1, 2999) : MAX(s - 1, 0);
    *p = i ? 0.2 : 0.8;
}

/* Left and right alike, until one of the ends is reached, where it stays, or goes to and fro: 0; 1999 and 2000 */
static void two_ends(int64_t s, int i, int64_t *next, double *p) {
    *next = s == 0 ? 0 : s == 1999 ? 2000 : s == 2000 ? 1999 : i ? s + 1 : s - 1;
    *p = s == 0 || s >= 1999 ? i == 0 : 0.5;
}

/* Two crowds of 200, one step in 10^12 from the first to the other, one in 3 10^12 back */
static void apart(int64_t s, int i, int64_t *next, double *p) {
    int64_t half = s / 200, away = half ? 333 : 1000;
    *next = i == 9 ? s + (half ? -200 : 200) : half * 200 + (s * 7 + i * 31) % 200;
    *p = i == 9 ? 1e-15 * (double)away : (1 - 1e-15 * (double)away) / 9;
}

static void crowd(int64_t s, int i, int64_t *next, double *p) { /* 3000 states, anywhere; the last one ends the episode */
    *next = (int64_t)rng_below(rng_key(3, RNG_TEST, 0), (uint64_t)(8 * s + i), 3000);
    *p = 1.0 / 4;
}

static void crowds_apart(int64_t s, int i, int64_t *next, double *p) { /* too large for elimination, too slow for steps */
    int64_t half = s / 4000;
    *next = i == 4 ? (s + 4000) % 8000 : half * 4000 + (int64_t)rng_below(rng_key(3, RNG_TEST, 0), (uint64_t)(8 * s + i), 4000);
    *p = i == 4 ? 1e-13 * (double)(1 + half) : (1 - 1e-13 * (double)(1 + half)) / 4;
}

TEST(shares_of_large_chains) {
    double *share = arena_alloc(test_arena, 8000 * sizeof *share), *next = arena_zero(test_arena, 3000 * sizeof *next), again = 0, off = 0;
    NamedMdp *world = chain_world(5001, 1, ring, 7, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 5001; s++) assert_true(fabs(share[s] * 5001 - 1) < 1e-10);
    named_mdp_free(world);
    world = chain_world(3000, 2, drift, 2999, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 400; s++) assert_true(fabs(share[s] / (0.75 * pow(0.25, s)) - 1) < 1e-12);
    named_mdp_free(world);
    world = chain_world(2001, 2, two_ends, 500, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    check_close(share[0], 1499.0 / 1999, 1e-12);
    check_close(share[1999], 250.0 / 1999, 1e-12);
    check_close(share[2000], 250.0 / 1999, 1e-12);
    check_close(share[500], 0, 0);
    named_mdp_free(world);
    world = chain_world(400, 10, apart, -1, -1);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 200; s++) again += share[s];
    check_close(again, 333.0 / 1333, 1e-12);
    named_mdp_free(world);
    world = chain_world(3000, 4, crowd, -1, 2999);
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    const Mdp *mdp = &world->mdp;
    again = 0;
    for (int s = 0; s < 2999; s++)
        for (int64_t k = mdp->begin[s]; k < mdp->begin[s + 1]; k++) {
            if (mdp->next[k] == 2999)
                again += share[s] * mdp->probability[k];
            else
                next[mdp->next[k]] += share[s] * mdp->probability[k];
        }
    for (int s = 0; s < 2999; s++) off += fabs(next[s] + again / 2999 - share[s]);
    assert_true(off < 1e-12 && again > 1e-5);
    named_mdp_free(world);
    world = chain_world(8000, 5, crowds_apart, -1, -1);
    assert_int_equal(mdp_stationary(world, uniform_policy(&world->mdp), share), ST_NUMERIC);
    assert_non_null(strstr(status_text(), "8000 states"));
    named_mdp_free(world);
}

/* A large random world without ends, and one with them. */
static Mdp large_world(int32_t n, int32_t actions, int32_t fan, double gamma, bool ends) {
    size_t entries = (size_t)n * (size_t)actions * (size_t)fan;
    Mdp mdp = {.n_states = n,
               .n_actions = actions,
               .gamma = gamma,
               .begin = arena_alloc(test_arena, ((size_t)n * (size_t)actions + 1) * sizeof(int64_t)),
               .next = arena_alloc(test_arena, entries * sizeof(int32_t)),
               .probability = arena_alloc(test_arena, entries * sizeof(double)),
               .reward = arena_alloc(test_arena, entries * sizeof(double)),
               .terminal = arena_zero(test_arena, (size_t)n)};
    RngKey key = rng_key(7, RNG_TEST, 0);
    for (int64_t row = 0; row <= (int64_t)n * actions; row++) mdp.begin[row] = row * fan;
    for (size_t k = 0; k < entries; k++) {
        mdp.next[k] = (int32_t)rng_below(key, 3 * k, (uint64_t)n);
        mdp.probability[k] = 1.0 / fan;
        mdp.reward[k] = rng_uniform(key, 3 * k + 1);
    }
    if (ends) mdp.terminal[0] = true;
    return mdp;
}

TEST(threads_change_no_bit) {
    static const char *const methods[] = {"vi", "mpi", "gs", "pi"};
    int threads = omp_get_max_threads();
    for (int ends = 0; ends < 2; ends++) {
        Mdp mdp = large_world(12000, 3, 4, 0.95, ends);
        for (size_t m = 0; m < COUNT_OF(methods); m++) {
            MdpSolution one, many;
            omp_set_num_threads(1);
            check_ok(mdp_solve(&mdp, &(MdpOptions){.method = methods[m]}, test_arena, &one));
            omp_set_num_threads(3);
            check_ok(mdp_solve(&mdp, &(MdpOptions){.method = methods[m]}, test_arena, &many));
            assert_memory_equal(one.V, many.V, 12000 * sizeof(double));
            assert_memory_equal(one.policy, many.policy, 12000 * sizeof(int32_t));
            assert_true(one.bound < 1e-11 && one.iterations == many.iterations);
        }
    }
    omp_set_num_threads(threads);
}

/* If the values do not fit into a near cache, entries are swept in another order. The result is the same up to rounding, with rows of unequal
 * length, terminal states, and any number of threads. An MDP whose states lead to their neighbours keeps its order. */
TEST(tiles_change_only_rounding) {
    enum { N = 300000, ACTIONS = 2, FAN = 3 };
    int threads = omp_get_max_threads();
    for (int ends = 0; ends < 2; ends++) {
        Mdp mdp = large_world(N, ACTIONS, FAN, 0.9, ends);
        int64_t k = 0;
        for (int64_t row = 0; row < ACTIONS * N && ends; row++) { /* every seventh row has one entry */
            int64_t from = mdp.begin[row], n = row % 7 == 0 ? 1 : FAN;
            mdp.begin[row] = k;
            for (int64_t i = 0; i < n; i++, k++) {
                mdp.next[k] = mdp.next[from + i];
                mdp.reward[k] = mdp.reward[from + i];
                mdp.probability[k] = 1.0 / (double)n;
            }
        }
        if (ends) mdp.begin[ACTIONS * N] = k;
        NamedMdp world = {.mdp = mdp};
        MdpForm plain, tiled;
        check_ok(mdp_form_make(&world, true, test_arena, &plain));
        tiled = plain;
        assert_true(form_gains_by_tiles(&plain, 2 << 20) && !form_gains_by_tiles(&plain, 1 << 20) && !form_gains_by_tiles(&plain, 0));
        check_ok(form_tile(&tiled));
        assert_non_null(tiled.tiles);
        double *V = form_vector(&plain, test_arena), *one = form_vector(&plain, test_arena), *many = form_vector(&plain, test_arena),
               *apart = form_vector(&plain, test_arena);
        double *Q = arena_alloc(test_arena, sizeof(double) * ACTIONS * N), *apart_Q = arena_alloc(test_arena, sizeof(double) * ACTIONS * N);
        for (int64_t s = 0; s < N; s++) V[s] = rng_uniform(rng_key(8, RNG_TEST, 0), (uint64_t)s);
        if (ends) V[0] = 0;
        Change expected = form_sweep(&plain, (Sweep){.V = V, .new_V = apart, .Q = apart_Q}),
               change = form_sweep(&tiled, (Sweep){.V = V, .new_V = one, .Q = Q});
        assert_true(fabs(change.least - expected.least) < 1e-14 && fabs(change.most - expected.most) < 1e-14);
        double off = 0;
        for (int64_t row = 0; row < ACTIONS * N; row++) off = fmax(off, fabs(Q[row] - apart_Q[row]));
        for (int64_t s = 0; s <= N; s++) off = fmax(off, fabs(one[s] - apart[s]));
        assert_true(off < 1e-14);
        omp_set_num_threads(threads + 1);
        tiled.tiles = NULL;
        check_ok(form_tile(&tiled));
        form_sweep(&tiled, (Sweep){.V = V, .new_V = many});
        assert_memory_equal(one, many, (N + 1) * sizeof(double));
        omp_set_num_threads(threads);
        MdpSolution vi, mpi;
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "vi", .tolerance = 1e-10}, test_arena, &vi));
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "mpi", .tolerance = 1e-10}, test_arena, &mpi));
        assert_true(vi.bound <= 1e-10 && mpi.bound <= 1e-10);
        for (int64_t s = 0; s < N; s++) assert_true(fabs(vi.V[s] - mpi.V[s]) <= 2e-10);
        if (ends) continue;
        for (int64_t i = 0; i < (int64_t)N * ACTIONS * FAN; i++) mdp.next[i] = (int32_t)(i / (ACTIONS * FAN));
        MdpForm near;
        check_ok(mdp_form_make(&world, true, test_arena, &near));
        assert_false(form_gains_by_tiles(&near, 2 << 20));
    }
}

/* A form that no world of equal rows gives: the state in the middle has `widest` actions, one none, the others 1 or 3; rows have 0 to 4 entries,
 * among them the first and the last value and the end; and for many rows after each other all but a few lead to the same few values, so that tiles
 * have long gaps. */
static MdpForm odd_form(int32_t n, int64_t widest) {
    int64_t most = 3 * (int64_t)n + widest, row = 0, k = 0, *rows = arena_alloc(test_arena, ((size_t)n + 1) * sizeof *rows),
            *begin = arena_alloc(test_arena, ((size_t)most + 1) * sizeof *begin);
    int32_t *next = arena_alloc(test_arena, 4 * (size_t)most * sizeof *next);
    double *probability = arena_alloc(test_arena, 4 * (size_t)most * sizeof *probability),
           *reward = arena_alloc(test_arena, (size_t)most * sizeof *reward);
    bool *ended = arena_zero(test_arena, (size_t)n);
    RngKey key = rng_key(9, RNG_TEST, 0);
    ended[7] = true;
    for (int32_t s = 0; s < n; s++) {
        rows[s] = row;
        for (int64_t last = row + (ended[s] ? 0 : s == n / 2 ? widest : s % 11 ? 1 : 3); row < last; row++) {
            bool alike = row % 200000 < 90000 && row % 4999;
            begin[row] = k;
            for (int64_t i = row % 5; i > 0; i--, k++) {
                uint64_t at = (uint64_t)(5 * row + i);
                next[k] = alike           ? 100000 + (int32_t)rng_below(key, at, 16)
                          : row % 97 == 0 ? 0
                          : row % 89 == 0 ? n - (int32_t)(i % 2)
                                          : (int32_t)rng_below(key, at, (uint64_t)n);
                probability[k] = 0.2 * rng_uniform(key, at + 3);
            }
            reward[row] = rng_uniform(key, (uint64_t)row);
        }
    }
    rows[n] = row;
    begin[row] = k;
    return (MdpForm){.n = n,
                     .n_rows = row,
                     .gamma = 0.9,
                     .ended = ended,
                     .rows = rows,
                     .begin = begin,
                     .next = next,
                     .probability = probability,
                     .reward = reward,
                     .arena = test_arena};
}

TEST(tiles_of_odd_shapes) {
    enum { N = 300000, MOST = 1 << 16 }; /* MOST: most rows of a tile */
    static const int threads[] = {1, 2, 3, 9};
    int before = omp_get_max_threads();
    for (int64_t widest = MOST - 1; widest <= MOST + 1; widest++) {
        MdpForm form = odd_form(N, widest);
        double *V = form_vector(&form, test_arena), *apart = form_vector(&form, test_arena), *first = NULL;
        double *apart_Q = arena_alloc(test_arena, (size_t)form.n_rows * sizeof *apart_Q),
               *Q = arena_alloc(test_arena, (size_t)form.n_rows * sizeof *Q);
        for (int64_t s = 0; s < N; s++) V[s] = s == 7 ? 0 : rng_uniform(rng_key(8, RNG_TEST, 0), (uint64_t)s);
        Change expected = form_sweep(&form, (Sweep){.V = V, .new_V = apart, .Q = apart_Q});
        for (size_t t = 0; t < COUNT_OF(threads); t++) {
            omp_set_num_threads(threads[t]);
            form.tiles = NULL;
            check_ok(form_tile(&form));
            assert_int_equal(form.tiles != NULL, widest <= MOST);
            if (!form.tiles) continue;
            double *tiled = form_vector(&form, test_arena), off = 0;
            for (int round = 0; round < 2; round++) { /* nothing is left over from the first */
                Change change = form_sweep(&form, (Sweep){.V = V, .new_V = tiled, .Q = Q});
                assert_true(fabs(change.least - expected.least) < 1e-14 && fabs(change.most - expected.most) < 1e-14);
            }
            for (int64_t row = 0; row < form.n_rows; row++) off = fmax(off, fabs(Q[row] - apart_Q[row]));
            for (int64_t s = 0; s <= N; s++) off = fmax(off, fabs(tiled[s] - apart[s]));
            assert_true(off < 1e-14);
            if (first)
                assert_memory_equal(first, tiled, (N + 1) * sizeof(double));
            else
                first = tiled;
        }
    }
    omp_set_num_threads(before);
}

/* Worlds above the size from which entries are fetched ahead, with rows of equal and of unequal length: modified policy iteration, which copies rows,
 * against sweeps state by state. */
TEST(methods_agree_on_large_worlds) {
    enum { N = 40000 };
    for (int kind = 0; kind < 4; kind++) { /* 1: rows of 1 to 5 entries; 2: one of 300 besides, so that nothing is copied; 3: an end */
        Mdp mdp = large_world(N, 2, kind ? 5 : 8, 0.9, kind == 3);
        int64_t k = 0;
        for (int64_t row = 0; row < 2 * N && kind; row++) {
            int64_t from = mdp.begin[row], n = kind == 2 && row == 77 ? 300 : row < 200 && kind == 2 ? 1 : 1 + row % 5;
            mdp.begin[row] = k;
            for (int64_t i = 0; i < n; i++, k++) {
                mdp.next[k] = mdp.next[from + i];
                mdp.reward[k] = mdp.reward[from + i];
                mdp.probability[k] = 1.0 / (double)n;
            }
        }
        if (kind) mdp.begin[2 * N] = k;
        MdpSolution gs, fast;
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "gs", .tolerance = 1e-9}, test_arena, &gs));
        check_ok(mdp_solve(&mdp, &(MdpOptions){.method = "mpi", .tolerance = 1e-9}, test_arena, &fast));
        assert_true(gs.bound <= 1e-9 && fast.bound <= 1e-9);
        double off = 0, q_off = 0;
        for (int64_t s = 0; s < N; s++) {
            off = fmax(off, fabs(gs.V[s] - fast.V[s]));
            q_off = fmax(q_off, fmax(fabs(gs.Q[2 * s] - fast.Q[2 * s]), fabs(gs.Q[2 * s + 1] - fast.Q[2 * s + 1])));
            assert_true(mdp.terminal[s] ? fast.policy[s] == -1 : fast.Q[2 * s + fast.policy[s]] >= fmax(fast.Q[2 * s], fast.Q[2 * s + 1]) - 1e-12);
        }
        assert_true(off <= gs.bound + fast.bound && q_off <= gs.bound + fast.bound);
    }
}

/* A random walk of 3001 states, left and right alike, +1 at the right end: V is a straight line, and sweeps would need millions of steps. */
TEST(large_systems_are_solved_without_sweeps) {
    enum { N = 3001 };
    MdpBuilder *builder = mdp_builder_new(N + 2, 1, 1);
    mdp_builder_terminal(builder, 0);
    mdp_builder_terminal(builder, N + 1);
    for (int64_t s = 1; s <= N; s++) {
        mdp_builder_add(builder, s, 0, s - 1, 0.5, 0, false);
        mdp_builder_add(builder, s, 0, s + 1, 0.5, s == N ? 1 : 0, false);
    }
    NamedMdp *world = finished(builder);
    MdpSolution solution;
    check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){.tolerance = 1e-6}, test_arena, &solution));
    double off = 0;
    for (int64_t s = 1; s <= N; s++) off = fmax(off, fabs(solution.V[s] - (double)s / (N + 1)));
    assert_true(off <= solution.bound);
    assert_true(solution.bound < 1e-6);
    named_mdp_free(world);
}

/* The default method for so many states, on what mixes so slowly that sweeps alone would take a quarter of a million. V is a straight line. */
TEST(slow_chains_take_few_iterations) {
    static const char *const specs[] = {"RandomWalk:states=1100", "RandomWalk:states=3000", "RandomWalk:states=3000,gamma=0.999999",
                                        "RandomWalk:states=20000"};
    for (size_t c = 0; c < COUNT_OF(specs); c++) {
        NamedMdp *world;
        MdpSolution fast, exact;
        check_ok(mdp_open(specs[c], &world));
        check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &fast));
        assert_string_equal(fast.method, "mpi");
        assert_true(fast.iterations < 100);
        assert_true(fast.bound < 1e-6);
        check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "pi"}, test_arena, &exact));
        check_close_f64(specs[c], fast.V, exact.V, (size_t)world->mdp.n_states, fast.bound + exact.bound, 0);
        named_mdp_free(world);
    }
}

/* The same where neighbours' numbers lie far apart, so that the equations are no band. */
TEST(slow_chains_in_any_order) {
    enum { N = 1501, STEP = 601 };
    MdpBuilder *builder = mdp_builder_new(N, 1, 1);
    mdp_builder_terminal(builder, 0);
    for (int64_t s = 1; s < N; s++) {
        mdp_builder_add(builder, s * STEP % N, 0, (s - 1) * STEP % N, 0.5, 0, false);
        mdp_builder_add(builder, s * STEP % N, 0, (s + 1) % N * STEP % N, 0.5, s == N - 1, false);
    }
    NamedMdp *world = finished(builder);
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &solution));
    assert_string_equal(solution.method, "mpi");
    assert_true(solution.iterations < 10000 && solution.bound < 1e-6);
    for (int64_t s = 1; s < N; s++) check_close(solution.V[s * STEP % N], (double)s / N, solution.bound);
    named_mdp_free(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WORLD_TEST(shares_of_large_chains),          WORLD_TEST(threads_change_no_bit),
        WORLD_TEST(tiles_change_only_rounding),      WORLD_TEST(tiles_of_odd_shapes),
        WORLD_TEST(methods_agree_on_large_worlds),   WORLD_TEST(large_systems_are_solved_without_sweeps),
        WORLD_TEST(slow_chains_take_few_iterations), WORLD_TEST(slow_chains_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
