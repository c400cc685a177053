/* SPDX-License-Identifier: Apache-2.0 */
/* Exact solutions: worlds with published values, the book's and the toolbox's examples, horizons, reward per step; what is refused. */
#include "rl/mdp/mdp_form.h"
#include "tests/support/check.h"
#include "tests/support/mdp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static NamedMdp *opened(const char *spec, double gamma) {
    NamedMdp *world;
    check_ok(mdp_open(spec, &world));
    world->mdp.gamma = gamma;
    return world;
}

static json_t *expected(const char *file) {
    char path[512];
    json_t *root;
    if (!shared_path(file, path, sizeof path)) skip();
    check_ok(json_read_file(path, &root));
    return root;
}

static void check_values(const char *what, const double *got, const json_t *want, double tolerance) {
    size_t n = json_array_size(want);
    double *values = arena_alloc(test_arena, n * sizeof *values);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) values[i] = json_number_value(json_array_get(want, i));
    check_close_f64(what, got, values, n, tolerance, 0);
}

static void check_lake(const char *spec, const json_t *want) {
    static const char *const gammas[] = {"0.9", "0.95", "0.99", "1.0"};
    for (size_t i = 0; i < COUNT_OF(gammas); i++) {
        NamedMdp *world = opened(spec, atof(gammas[i]));
        char key[64];
        snprintf(key, sizeof key, "V*_gamma_%s", gammas[i]);
        const char *method;
        for (size_t m = 0; (method = value_method(m)); m++) {
            MdpSolution solution = solved(world, method);
            check_values(key, solution.V, json_object_get(want, key), 1e-11); /* twelve digits are given */
            assert_true(solution.bound < 1e-11);
            snprintf(key, sizeof key, "greedy_gamma_%s", gammas[i]);
            const json_t *greedy = json_object_get(want, key);
            for (int32_t s = 0; greedy && s < 16; s++)
                if (!world->mdp.terminal[s]) assert_int_equal(solution.policy[s], json_integer_value(json_array_get(greedy, (size_t)s)));
            snprintf(key, sizeof key, "V*_gamma_%s", gammas[i]);
        }
        snprintf(key, sizeof key, "V_uniform_gamma_%s", gammas[i]);
        if (json_object_get(want, key)) {
            MdpSolution solution;
            check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){0}, test_arena, &solution));
            check_values(key, solution.V, json_object_get(want, key), 1e-11);
            assert_true(solution.bound < 1e-11);
        }
        named_mdp_free(world);
    }
}

TEST(lakes_and_cliffs_are_as_published) {
    json_t *root = expected("data/rl/expected.json");
    const json_t *lake = json_object_get(root, "FrozenLake"), *cliff = json_object_get(root, "CliffWalking");
    check_lake("FrozenLake-v1", json_object_get(lake, "4x4_slippery"));
    check_lake("FrozenLake-v1:is_slippery=false", json_object_get(lake, "4x4_deterministic"));
    NamedMdp *world = opened("CliffWalking-v1", 0.99);
    MdpSolution solution = solved(world, "vi");
    for (int32_t s = 0; s < 37; s++)
        check_close(solution.V[s], json_number_value(json_array_get(json_object_get(cliff, "V*_gamma_0.99"), (size_t)s)),
                    1e-9); /* the rest is never entered */
    world->mdp.gamma = 1;
    solution = solved(world, "gs");
    for (int32_t s = 0; s < 37; s++)
        check_close(solution.V[s], json_number_value(json_array_get(json_object_get(cliff, "V*_gamma_1"), (size_t)s)), 1e-9);
    named_mdp_free(world);
    json_decref(root);
}

TEST(lake_q_values_are_the_reference_programs) {
    json_t *root = expected("golden/rl/frozenlake.json");
    NamedMdp *world = opened("FrozenLake-v1", 0.99);
    MdpSolution solution = solved(world, NULL);
    const json_t *want = json_object_get(root, "optimal_q_slippery_gamma_0.99");
    for (int32_t s = 0; s < 16; s++)
        if (!world->mdp.terminal[s]) check_values("Q", solution.Q + 4 * s, json_array_get(want, (size_t)s), 1e-9);
    named_mdp_free(world);
    json_decref(root);
}

/* Steps, ends and rewards of Gymnasium's Taxi; from the 300 states an episode may begin in the best return is 7.93 on average. */
TEST(taxi_is_solved) {
    json_t *root = expected("golden/rl/taxi.json");
    const json_t *next = json_object_get(root, "next_state"), *reward = json_object_get(root, "reward"), *done = json_object_get(root, "done"),
                 *starts = json_object_get(root, "initial_states");
    MdpBuilder *builder = mdp_builder_new(500, 6, 1);
    for (size_t s = 0; s < 500; s++)
        for (size_t a = 0; a < 6; a++)
            mdp_builder_add(builder, (int64_t)s, (int64_t)a, json_integer_value(json_array_get(json_array_get(next, s), a)), 1,
                            json_number_value(json_array_get(json_array_get(reward, s), a)),
                            json_integer_value(json_array_get(json_array_get(done, s), a)));
    NamedMdp *world = finished(builder);
    static const double gammas[] = {1, 0.99, 0.9}, means[] = {7.93, 6.327464, -1.263323};
    for (size_t g = 0; g < COUNT_OF(gammas); g++) {
        world->mdp.gamma = gammas[g];
        const char *method;
        for (size_t m = 0; (method = value_method(m)); m++) {
            MdpSolution solution = solved(world, method);
            double sum = 0;
            for (size_t i = 0; i < json_array_size(starts); i++) sum += solution.V[json_integer_value(json_array_get(starts, i))];
            check_close(sum / 300, means[g], gammas[g] == 1 ? 1e-9 : 6e-7);
            assert_true(solution.bound < 1e-10);
        }
    }
    named_mdp_free(world);
    json_decref(root);
}

/* Sutton and Barto, example 4.1: a 4x4 grid with two ends, -1 a step. */
static NamedMdp *small_grid(void) {
    MdpBuilder *builder = mdp_builder_new(16, 4, 1);
    static const int down[] = {-1, 0, 1, 0}, right[] = {0, 1, 0, -1};
    mdp_builder_terminal(builder, 0);
    mdp_builder_terminal(builder, 15);
    for (int s = 1; s < 15; s++)
        for (int a = 0; a < 4; a++) {
            int row = s / 4 + down[a], column = s % 4 + right[a];
            bool inside = row >= 0 && row < 4 && column >= 0 && column < 4;
            mdp_builder_add(builder, s, a, inside ? row * 4 + column : s, 1, -1, false);
        }
    return finished(builder);
}

TEST(sweeps_are_the_books) {
    static const double random_walk[] = {0, -14, -20, -22, -14, -18, -20, -20, -20, -20, -18, -14, -22, -20, -14, 0},
                        best[] = {0, -1, -2, -3, -1, -2, -3, -2, -2, -3, -2, -1, -3, -2, -1, 0};
    static const struct {
        int64_t k;
        double V[5];
    } sweeps[] = {{1, {-1, -1, -1, -1, -1}}, {2, {-1.75, -2, -2, -2, -2}}, {3, {-2.4375, -2.9375, -3, -2.875, -3}}};
    static const double in_place[] = {0, -1, -1.25, -1.3125, -1, -1.5, -1.6875, -1.75};
    NamedMdp *world = small_grid();
    MdpSolution solution;
    check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){0}, test_arena, &solution));
    check_close_f64("V of the random policy", solution.V, random_walk, 16, 1e-12, 0);
    check_close(solution.Q[4 * 11 + 2], -1, 1e-12);
    check_close(solution.Q[4 * 7 + 2], -15, 1e-12);
    assert_true(solution.bound < 1e-10);
    solution = solved(world, "pi");
    check_close_f64("V*", solution.V, best, 16, 1e-12, 0);
    assert_int_equal(solution.policy[0], -1);
    assert_int_equal(solution.policy[5], 0); /* up and left are as good: the lower one */
    Mdp process;
    check_ok(mdp_induced_chain(&world->mdp, uniform_policy(&world->mdp), world, test_arena, &process));
    for (size_t i = 0; i < COUNT_OF(sweeps); i++) {
        check_ok(mdp_solve(&process, &(MdpOptions){.method = "vi", .max_iterations = sweeps[i].k}, test_arena, &solution));
        const double got[] = {solution.V[1], solution.V[2], solution.V[3], solution.V[5], solution.V[6]};
        check_close_f64("V after k sweeps", got, sweeps[i].V, 5, 1e-15, 0);
        assert_int_equal(solution.iterations, sweeps[i].k);
    }
    check_ok(mdp_solve(&process, &(MdpOptions){.method = "gs", .max_iterations = 1}, test_arena, &solution));
    check_close_f64("V after one sweep in place", solution.V, in_place, 8, 1e-15, 0);
    named_mdp_free(world);
}

/* pymdptoolbox's two examples, with the values that its own stopping rules lead to where these are sweeps of the same method. */
static NamedMdp *forest(double gamma) {
    MdpBuilder *builder = mdp_builder_new(3, 2, gamma);
    static const double wait_reward[] = {0, 0, 4}, cut_reward[] = {0, 1, 2};
    for (int s = 0; s < 3; s++) {
        mdp_builder_add(builder, s, 0, 0, 0.1, wait_reward[s], false);
        mdp_builder_add(builder, s, 0, MIN(s + 1, 2), 0.9, wait_reward[s], false);
        mdp_builder_add(builder, s, 1, 0, 1, cut_reward[s], false);
    }
    return finished(builder);
}

static NamedMdp *small_example(double gamma) {
    MdpBuilder *builder = mdp_builder_new(2, 2, gamma);
    static const double p[2][2][2] = {{{.5, .5}, {.8, .2}}, {{0, 1}, {.1, .9}}}, r[2][2] = {{5, 10}, {-1, 2}};
    for (int a = 0; a < 2; a++)
        for (int s = 0; s < 2; s++)
            for (int t = 0; t < 2; t++) mdp_builder_add(builder, s, a, t, p[a][s][t], r[s][a], false);
    return finished(builder);
}

static MdpSolution mdp_after(const NamedMdp *world, const char *method, int64_t iterations) {
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = method, .max_iterations = iterations}, test_arena, &solution));
    return solution;
}

TEST(toolbox_examples_are_reproduced) {
    NamedMdp *world = forest(0.9), *other = small_example(0.9);
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++) {
        check_close_f64("forest", solved(world, method).V, ((const double[]){26.244, 29.484, 33.484}), 3, 1e-11, 0);
        check_close_f64("forest Q", solved(world, method).Q, ((const double[]){26.244, 23.6196, 29.484, 24.6196, 33.484, 25.6196}), 6, 1e-11, 0);
        check_close_f64("small", solved(other, method).V, ((const double[]){42.44186046511628, 36.04651162790698}), 2, 1e-11, 0);
        assert_int_equal(solved(other, method).policy[0], 1);
        assert_int_equal(solved(other, method).policy[1], 0);
    }
    check_close_f64("vi, 4 sweeps", mdp_after(world, "vi", 4).V, ((const double[]){5.05197, 8.29197, 12.29197}), 3, 1e-12, 0);
    check_close_f64("gs, 34 sweeps", mdp_after(world, "gs", 34).V, ((const double[]){25.5833879767579, 28.830654635546928, 32.83065463554693}), 3,
                    1e-9, 0);
    MdpSolution stopped;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.method = "mpi", .max_iterations = 3, .evaluation_sweeps = 10}, test_arena, &stopped));
    check_close_f64("mpi, 3 improvements", stopped.V, ((const double[]){21.81408652334702, 25.054086523347017, 29.054086523347017}), 3, 1e-9, 0);
    assert_true(stopped.bound >= 26.244 - 21.81408652334702); /* and it is said how far that is from the truth */
    /* Its relative values have V(last) = reward per step, which it takes for the least change of a sweep; ours have V(first) = 0 and the middle
     * between least and greatest. */
    MdpSolution average = mdp_after(other, "average", 29);
    double least = average.gain - average.bound;
    check_close_f64("small average, 29 sweeps", ((const double[]){average.V[0] - average.V[1] + least, least}),
                    ((const double[]){10, 3.885235246411831}), 2, 1e-9, 0);
    check_close_f64("small vi, 26 sweeps", mdp_after(other, "vi", 26).V, ((const double[]){40.048625392716815, 33.65371175967546}), 2, 1e-9, 0);
    world->mdp.gamma = 0.96;
    check_close_f64("vi, 4 sweeps, gamma .96", mdp_after(world, "vi", 4).V, ((const double[]){5.93215488, 9.38815488, 13.38815488}), 3, 1e-12, 0);
    check_close_f64("gamma .96", solved(world, NULL).V, ((const double[]){74.6496, 78.1056, 82.1056}), 3, 1e-10, 0);
    check_close_f64("gs, 64 sweeps, gamma .96", mdp_after(world, "gs", 64).V,
                    ((const double[]){69.98910821400665, 73.46560194552877, 77.46560194552877}), 3, 1e-9, 0);
    world->mdp.gamma = 0.99;
    check_close_f64("gamma .99", solved(world, NULL).V, ((const double[]){317.5524, 321.1164, 325.1164}), 3, 1e-10, 0);
    named_mdp_free(world);
    named_mdp_free(other);
}

TEST(horizons_go_backwards) {
    NamedMdp *world = forest(0.9);
    MdpSolution solution;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.horizon = 3}, test_arena, &solution));
    check_close_f64("V", solution.step_V, ((const double[]){2.6973, 5.9373, 9.9373, .81, 3.24, 7.24, 0, 1, 4, 0, 0, 0}), 12, 1e-14, 0);
    assert_memory_equal(solution.step_policy, ((const int32_t[]){0, 0, 0, 0, 0, 0, 0, 1, 0}), 9 * sizeof(int32_t));
    check_close_f64("V now", solution.V, solution.step_V, 3, 0, 0);
    assert_true(solution.bound < 1e-13 && solution.bound > 0 && solution.horizon == 3);
    world->mdp.gamma = 1; /* nothing needs to end */
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){.horizon = 2000}, test_arena, &solution));
    check_close(solution.V[0] / 2000, 3.24, 0.01);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "horizon"}, test_arena, &solution), ST_USAGE);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "vi", .horizon = 4}, test_arena, &solution), ST_USAGE);
    named_mdp_free(world);
}

/* Where the best reward per step depends on where it begins there is no one number. States 0 and 1 lead to each other and earn `first`, 2 and 3 the
 * same with `second`; 4 may go to either pair, and 0 to 4 where there is a way back. */
static NamedMdp *two_pairs(double first, double second, bool way_back) {
    MdpBuilder *builder = mdp_builder_new(5, 2, 1);
    for (int a = 0; a < 2; a++) {
        mdp_builder_add(builder, 0, a, a && way_back ? 4 : 1, 1, first, false);
        mdp_builder_add(builder, 1, a, 0, 1, first, false);
        mdp_builder_add(builder, 2, a, 3, 1, second, false);
        mdp_builder_add(builder, 3, a, 2, 1, second, false);
        mdp_builder_add(builder, 4, a, a ? 2 : 0, 1, 0, false);
    }
    return finished(builder);
}

TEST(several_rewards_per_step_are_an_error) {
    static const struct {
        double first, second;
        bool way_back;
        const char *text;
    } cases[] = {
        {1, 2, false, "2 in the long run around state 2, state 3, 1 around state 0, state 1, from which the first cannot be reached"},
        {3, 2, true, "3 in the long run around state 0, state 1, state 4, 2 around state 2, state 3, from which"},
        {1, 2, true, NULL},
        {2, 2, false, NULL},
        {-1, -1, false, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        NamedMdp *world = two_pairs(cases[i].first, cases[i].second, cases[i].way_back);
        MdpSolution solution;
        Status status = mdp_solve(&world->mdp, &(MdpOptions){.method = "average"}, test_arena, &solution);
        check_status(status, cases[i].text ? ST_INPUT : ST_OK);
        if (cases[i].text)
            check_text(cases[i].text);
        else
            check_close(solution.gain, MAX(cases[i].first, cases[i].second), 1e-12);
        named_mdp_free(world);
    }
}

TEST(reward_per_step_is_bounded_too) {
    NamedMdp *world = forest(0.9), *other = small_example(0.9);
    MdpSolution solution = solved(world, "average");
    check_close(solution.gain, 3.24, 1e-12);
    assert_true(fabs(solution.gain - 3.24) <= solution.bound && solution.bound < 1e-12);
    check_close(solution.V[0], 0, 0);
    check_close(solution.Q[1], -3.24, 1e-11); /* of cutting at once: back where it was, nothing earned */
    solution = solved(other, "average");
    check_close(solution.gain, 7 / 1.8, 1e-12);
    named_mdp_free(world);
    named_mdp_free(other);

    MdpBuilder *builder = mdp_builder_new(2, 1, 1); /* periodic: 0 and 1 in turns */
    mdp_builder_add(builder, 0, 0, 1, 1, 3, false);
    mdp_builder_add(builder, 1, 0, 0, 1, -1, false);
    world = finished(builder);
    solution = solved(world, "average");
    check_close(solution.gain, 1, 1e-12);
    check_close(solution.V[1], -2, 1e-11);
    named_mdp_free(world);
    world = small_grid();
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "average"}, test_arena, &solution), ST_INPUT);
    check_text("state 1 the episode can end");
    named_mdp_free(world);
}

TEST(policies_are_checked) {
    NamedMdp *world = forest(0.9);
    MdpSolution solution;
    double policy[] = {1, 0, 0, 1, 1, 0};
    check_ok(mdp_evaluate(&world->mdp, policy, &(MdpOptions){0}, test_arena, &solution));
    check_close_f64("V of (0, 1, 0)", solution.V, ((const double[]){4.47513812154696, 5.02762430939227, 23.17243384704857}), 3, 1e-12, 0);
    check_close(solution.Q[3], solution.V[1], 1e-12);
    policy[2] = 0.25;
    check_status(mdp_evaluate(&world->mdp, policy, &(MdpOptions){0}, test_arena, &solution), ST_INPUT);
    check_text("state 1: the policy's probabilities sum to 1.25");
    policy[2] = -1;
    policy[3] = 2;
    check_status(mdp_evaluate(&world->mdp, policy, &(MdpOptions){0}, test_arena, &solution), ST_INPUT);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = "v1"}, test_arena, &solution), ST_USAGE);
    check_text("unknown method 'v1'");
    check_contains(status_hint_text(), "'vi'");
    named_mdp_free(world);
}

TEST(shares_of_time_add_up) {
    NamedMdp *world = small_example(0.9);
    double share[16], sum = 0;
    check_ok(mdp_stationary(world, (const double[]){0, 1, 1, 0}, share));
    check_close_f64("share", share, ((const double[]){4.0 / 9, 5.0 / 9}), 2, 1e-13, 0);
    named_mdp_free(world);
    world = small_grid();
    check_ok(mdp_stationary(world, uniform_policy(&world->mdp), share));
    for (int s = 0; s < 16; s++) sum += share[s];
    check_close(sum, 1, 1e-13);
    check_close(share[1], share[14], 1e-13);
    check_close(share[0], 0, 0);
    named_mdp_free(world);
}

TEST(full_memory_is_a_status) {
    NamedMdp *world = small_grid();
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++)
        for (long n = 1;; n++) {
            MdpSolution solution;
            arena_fail_at(n);
            Status status = mdp_solve(&world->mdp, &(MdpOptions){.method = method}, test_arena, &solution);
            arena_fail_at(0);
            if (status == ST_OK && !isinf(solution.bound)) break; /* if only the certificate lacked memory, no bound is certain */
            assert_true(status == ST_OK || status == ST_RESOURCE);
        }
    named_mdp_free(world);
}

/* ---- states with different actions ---- */

enum { RAGGED_STATES = 7, RAGGED_ACTIONS = 4 };

/* Some actions are missing in each state; costs only, and an end, so that an action that is not there would be the best one if it were free. */
static NamedMdp *ragged_world(RngKey key, double gamma) {
    MdpBuilder *builder = mdp_builder_new(RAGGED_STATES, RAGGED_ACTIONS, gamma);
    uint64_t draw = 0;
    for (int64_t s = 0; s < RAGGED_STATES; s++)
        for (int64_t a = 0; a < RAGGED_ACTIONS; a++) {
            if (a != s % RAGGED_ACTIONS && rng_uniform(key, draw++) < 0.5) continue;
            for (int i = 0; i < 2; i++) {
                int64_t next = (int64_t)rng_below(key, draw++, RAGGED_STATES);
                mdp_builder_add(builder, s, a, next, 0.4, -1 - rng_uniform(key, draw++), false);
            }
            mdp_builder_add(builder, s, a, 0, 0.2, -3, true);
        }
    return finished(builder);
}

/* Plain value iteration over the available actions; `mean`: for the uniform policy. */
static void plain_values(const Mdp *mdp, bool mean, double *V) {
    for (int sweep = 0; sweep < 400; sweep++)
        for (int64_t s = 0; s < mdp->n_states; s++) {
            double best = -(double)INFINITY, sum = 0, n = 0;
            for (int64_t row = s * mdp->n_actions; row < (s + 1) * mdp->n_actions; row++) {
                double q = 0;
                if (mdp->begin[row] == mdp->begin[row + 1]) continue;
                for (int64_t k = mdp->begin[row]; k < mdp->begin[row + 1]; k++)
                    q += mdp->probability[k] * (mdp->reward[k] + (mdp->ends[k] ? 0 : mdp->gamma * V[mdp->next[k]]));
                best = fmax(best, q);
                sum += q;
                n++;
            }
            V[s] = mean ? sum / n : best;
        }
}

TEST(missing_actions_are_never_chosen) {
    for (uint64_t i = 0; i < 24; i++) {
        NamedMdp *world = ragged_world(rng_key(7, RNG_NOISE, i), i % 2 ? 1 : 0.9);
        const Mdp *mdp = &world->mdp;
        const char *method;
        double best[RAGGED_STATES] = {0}, mean[RAGGED_STATES] = {0}, *policy;
        plain_values(mdp, false, best);
        plain_values(mdp, true, mean);
        for (size_t m = 0; (method = value_method(m)); m++) {
            MdpSolution solution = solved(world, method);
            check_close_f64(method, solution.V, best, RAGGED_STATES, 1e-10, 0);
            for (int64_t s = 0; s < RAGGED_STATES; s++) {
                assert_true(mdp_has(mdp, s, solution.policy[s]));
                for (int64_t a = 0; a < RAGGED_ACTIONS; a++) assert_int_equal(mdp_has(mdp, s, a), isfinite(solution.Q[s * RAGGED_ACTIONS + a]) != 0);
            }
        }
        MdpSolution solution;
        check_ok(mdp_policy_read("uniform", world, test_arena, &policy));
        check_ok(mdp_evaluate(mdp, policy, &(MdpOptions){0}, test_arena, &solution));
        check_close_f64("uniform", solution.V, mean, RAGGED_STATES, 1e-10, 0);
        named_mdp_free(world);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WORLD_TEST(lakes_and_cliffs_are_as_published),
        WORLD_TEST(lake_q_values_are_the_reference_programs),
        WORLD_TEST(taxi_is_solved),
        WORLD_TEST(sweeps_are_the_books),
        WORLD_TEST(toolbox_examples_are_reproduced),
        WORLD_TEST(horizons_go_backwards),
        WORLD_TEST(reward_per_step_is_bounded_too),
        WORLD_TEST(several_rewards_per_step_are_an_error),
        WORLD_TEST(policies_are_checked),
        WORLD_TEST(shares_of_time_add_up),
        WORLD_TEST(missing_actions_are_never_chosen),
        WORLD_TEST(full_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
