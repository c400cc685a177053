/* SPDX-License-Identifier: Apache-2.0 */
/* Gamma 1: what costs next to nothing, what ends hardly ever, round trips, and where there are no values. */
#include "rl/mdp/mdp_form.h"
#include "tests/support/check.h"
#include "tests/support/mdp.h"

#include <math.h>

/* Two rooms with free moves between them. One exit gives 3 and then costs 5, another one gives 2. Plain value iteration would count only the 3. */
TEST(wandering_for_nothing_earns_nothing) {
    MdpBuilder *builder = mdp_builder_new(4, 2, 1);
    mdp_builder_terminal(builder, 3);
    mdp_builder_add(builder, 0, 0, 1, 1, 0, false);
    mdp_builder_add(builder, 0, 1, 2, 1, 3, false);
    mdp_builder_add(builder, 1, 0, 0, 1, 0, false);
    mdp_builder_add(builder, 1, 1, 3, 1, -1, false);
    mdp_builder_add(builder, 2, 0, 3, 1, -5, false);
    mdp_builder_add(builder, 2, 1, 3, 1, -6, false);
    NamedMdp *world = finished(builder);
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++) {
        MdpSolution solution = solved(world, method);
        check_close_f64(method, solution.V, ((const double[]){0, 0, -5, 0}), 4, 1e-12, 0);
        assert_true(solution.bound < 1e-11);
    }
    world->mdp.reward[3] = 2; /* through the other door */
    check_close_f64("a door that pays", solved(world, NULL).V, ((const double[]){2, 2, -5, 0}), 4, 1e-12, 0);
    named_mdp_free(world);
}

/* A cost that is tiny compared with the largest reward is not zero, and is not lost in the rounding of that reward. */
TEST(small_costs_count_beside_large_ones) {
    MdpBuilder *builder = mdp_builder_new(2, 3, 1);
    mdp_builder_terminal(builder, 1);
    mdp_builder_add(builder, 0, 0, 0, 1, -1, false);
    mdp_builder_add(builder, 0, 1, 1, 1, -1000, false);
    mdp_builder_add(builder, 0, 2, 1, 1, -1e16, false);
    NamedMdp *world = finished(builder);
    const char *method;
    for (size_t i = 0; (method = value_method(i)); i++) {
        MdpSolution solution = solved(world, method);
        check_close_f64(method, solution.V, ((const double[]){-1000, 0}), 2, 1e-9, 0);
        assert_true(solution.bound < 1e-9);
    }
    world->mdp.reward[0] = 1;
    MdpSolution solution;
    check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &solution), ST_INPUT);
    check_text("rewards can be collected without end in state 0");
    named_mdp_free(world);
}

/* Nor do they hide, from any method, what other actions differ by: one that costs 1e15, and one that costs or brings it and is the best. */
TEST(large_rewards_hide_no_difference) {
    MdpBuilder *builder = mdp_builder_new(4, 3, 0.9);
    mdp_builder_terminal(builder, 3);
    for (int a = 0; a < 3; a++) {
        mdp_builder_add(builder, 0, a, a == 1 ? 1 : 3, 1, ((const double[]){0.2, 0, -1e15})[a], false);
        mdp_builder_add(builder, 1, a, 3, 1, 1, false);
        if (a > 0) mdp_builder_add(builder, 2, a, 3, 1, -1, false);
    }
    for (int i = 0; i < 2; i++) mdp_builder_add(builder, 2, 0, 3, 0.5, -1, false);
    NamedMdp *world = finished(builder);
    double *lot = world->mdp.reward + world->mdp.begin[6];
    const char *method;
    for (int round = 0; round < 3; round++) {
        if (round == 1) lot[0] = 1e15, lot[1] = -1e15;
        world->mdp.gamma = round == 2 ? 1 : 0.9;
        for (size_t i = 0; (method = value_method(i)); i++) {
            MdpSolution solution = solved(world, method);
            check_close_f64(method, solution.V, ((const double[]){world->mdp.gamma, 1, round ? 0 : -1, 0}), 4, 1e-12, 0);
            if (round == 0) assert_true(solution.bound < 1e-12);
        }
    }
    named_mdp_free(world);
}

/* A policy to begin with is one that most likely ends: another's equations may be singular, or have the wrong solution. */
TEST(unlikely_ends_are_not_relied_on) {
    MdpBuilder *builder = mdp_builder_new(2, 2, 1);
    mdp_builder_terminal(builder, 1);
    mdp_builder_add(builder, 0, 0, 0, 1, -1, false);
    mdp_builder_add(builder, 0, 0, 1, 1e-17, 0, false);
    mdp_builder_add(builder, 0, 1, 1, 1, -2, false);
    NamedMdp *world = finished(builder);
    const char *method;
    for (int more = 0; more < 2; more++) {
        for (size_t i = 0; (method = value_method(i)); i++) {
            MdpSolution solution = solved(world, method);
            check_close_f64(method, solution.V, ((const double[]){-2, 0}), 2, 1e-9, 0);
            assert_true(solution.bound < 1e-8);
        }
        world->mdp.probability[0] = 1 + 1e-10; /* as much as a sum may be off */
    }
    named_mdp_free(world);
}

/* Two rooms. A round trip earns `gain`; the other way back from the second room costs so much that `gain` is lost in rounding. */
static NamedMdp *round_trip(double gain, double detour) {
    MdpBuilder *builder = mdp_builder_new(3, 3, 1);
    mdp_builder_terminal(builder, 2);
    mdp_builder_add(builder, 0, 0, 1, 1, 1, false);
    mdp_builder_add(builder, 0, 1, 2, 1, 0, false);
    mdp_builder_add(builder, 0, 2, 1, 1, detour, false);
    mdp_builder_add(builder, 1, 0, 0, 1, gain - 1, false);
    mdp_builder_add(builder, 1, 1, 2, 1, 0, false);
    mdp_builder_add(builder, 1, 2, 0, 1, detour, false);
    return finished(builder);
}

TEST(round_trips_are_judged_by_what_they_take) {
    static const struct {
        double gain, detour;
        const char *fault;
    } trips[] = {
        {-1e-6, -1e7, NULL},
        {-1, -1e14, NULL},
        {0.5, -1e14, "rewards can be collected without end in state 0, state 1"},
        {0, -1e14, "summing to nothing, in state 0, state 1"},
    };
    for (size_t i = 0; i < COUNT_OF(trips); i++) {
        NamedMdp *world = round_trip(trips[i].gain, trips[i].detour);
        MdpSolution solution;
        const char *method;
        for (size_t m = 0; (method = value_method(m)); m++) {
            check_status(mdp_solve(&world->mdp, &(MdpOptions){.method = method}, test_arena, &solution), trips[i].fault ? ST_INPUT : ST_OK);
            if (trips[i].fault)
                check_text(trips[i].fault);
            else
                check_close_f64(method, solution.V, ((const double[]){1, 0, 0}), 3, 1e-12, 0);
        }
        named_mdp_free(world);
    }
}

/* Once around earns `gain` in all, in rewards of -9 to 9; from everywhere one may leave for nothing. best: what is earned on the way, at most. */
static NamedMdp *long_round_trip(int n, double gain, double *best) {
    MdpBuilder *builder = mdp_builder_new(n + 1, 2, 1);
    double *rewards = arena_alloc(test_arena, (size_t)n * sizeof *rewards), sum = 0;
    mdp_builder_terminal(builder, n);
    for (int s = 0; s < n; s++) {
        rewards[s] = s + 1 < n ? (double)rng_below(rng_key(5, RNG_TEST, 0), (uint64_t)s, 19) - 9 : -sum;
        sum += rewards[s];
    }
    rewards[0] += gain;
    for (int s = 0; s < n; s++) {
        mdp_builder_add(builder, s, 0, (s + 1) % n, 1, rewards[s], false);
        mdp_builder_add(builder, s, 1, n, 1, 0, false);
        best[s] = sum = 0;
        for (int k = 0; k < n; k++) {
            sum += rewards[(s + k) % n];
            best[s] = fmax(best[s], sum);
        }
    }
    best[n] = 0;
    return finished(builder);
}

/* Even as many sweeps as the square of its length would not show the sign: one round earns almost nothing compared with the rewards on the way. */
TEST(long_round_trips_are_judged_too) {
    enum { LENGTH = 1100 };
    static const struct {
        int n;
        double gain;
        const char *fault;
    } trips[] = {
        {LENGTH, -1e-3, NULL},
        {LENGTH, 1e-3, "rewards can be collected without end in state 0, state 1"},
        {LENGTH, 0, "summing to nothing, in state 0, state 1"},
        {200, 0, "summing to nothing, in state 0, state 1"},
    };
    double *best = arena_alloc(test_arena, (LENGTH + 1) * sizeof *best);
    for (size_t i = 0; i < COUNT_OF(trips); i++) {
        NamedMdp *world = long_round_trip(trips[i].n, trips[i].gain, best);
        MdpSolution solution;
        check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &solution), trips[i].fault ? ST_INPUT : ST_OK);
        if (trips[i].fault)
            check_text(trips[i].fault);
        else
            check_close_f64("V", solution.V, best, trips[i].n + 1, 1e-8, 0);
        named_mdp_free(world);
    }
    MdpBuilder *builder = mdp_builder_new(LENGTH, 2, 0.9); /* and their reward per step is found */
    double sum = 0;
    for (int s = 0; s < LENGTH; s++) {
        double reward = (double)rng_below(rng_key(6, RNG_TEST, 0), (uint64_t)s, 19) - 9;
        mdp_builder_add(builder, s, 0, (s + 1) % LENGTH, 1, reward, false);
        mdp_builder_add(builder, s, 1, s, 1, -5, false);
        sum += reward;
    }
    NamedMdp *world = finished(builder);
    MdpSolution solution = solved(world, "average");
    check_close(solution.gain, sum / LENGTH, 1e-11);
    assert_true(solution.bound < 1e-11 && solution.iterations < 1000);
    named_mdp_free(world);
}

/* A cost that every path through a room pays is not a cost of staying outside. */
TEST(dear_rooms_hide_no_cost) {
    MdpBuilder *builder = mdp_builder_new(3, 3, 1);
    mdp_builder_terminal(builder, 2);
    for (int a = 0; a < 3; a++) {
        mdp_builder_add(builder, 0, a, 1, 1, -1e12, false);
        mdp_builder_add(builder, 1, a, a == 2 ? 2 : a, 1, ((const double[]){1, -1e-9, -1})[a], false);
    }
    NamedMdp *world = finished(builder);
    check_close_f64("V", solved(world, "pi").V, ((const double[]){-1e12 - 1, -1, 0}), 3, 1e-12, 1e-15);
    world->mdp.reward[4] = 1e-9;
    MdpSolution solution;
    check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &solution), ST_INPUT);
    named_mdp_free(world);
}

TEST(missing_values_are_said) {
    MdpBuilder *builder = mdp_builder_new(3, 1, 1);
    static const char *const names[] = {"home", "mill", "end"}, *const actions[] = {"go"};
    mdp_builder_names(builder, names, actions);
    mdp_builder_terminal(builder, 2);
    mdp_builder_add(builder, 0, 0, 2, 1, 1, false);
    mdp_builder_add(builder, 1, 0, 1, 1, 1, false);
    NamedMdp *world = finished(builder);
    MdpSolution solution;
    check_status(mdp_solve(&world->mdp, &(MdpOptions){.world = world}, test_arena, &solution), ST_INPUT);
    check_text("state 'mill'");
    check_contains(status_hint_text(), "gamma below 1");
    check_status(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){.world = world}, test_arena, &solution), ST_INPUT);
    check_text("rewards go on for ever from state 'mill'");
    world->mdp.reward[1] = 0;
    check_ok(mdp_evaluate(&world->mdp, uniform_policy(&world->mdp), &(MdpOptions){.world = world}, test_arena, &solution));
    check_close_f64("V", solution.V, ((const double[]){1, 0, 0}), 3, 1e-15, 0);
    named_mdp_free(world);

    builder = mdp_builder_new(2, 2, 1);
    mdp_builder_terminal(builder, 1);
    mdp_builder_add(builder, 0, 0, 1, 1, 0, false);
    mdp_builder_add(builder, 0, 1, 0, 1, 0.5, false);
    world = finished(builder);
    check_status(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &solution), ST_INPUT);
    check_text("without end in state 0");
    world->mdp.gamma = 0.5;
    check_close(solved(world, NULL).V[0], 1, 1e-12);
    named_mdp_free(world);
}

static double *deterministic(const Mdp *mdp, const int32_t *actions) {
    double *policy = arena_zero(test_arena, (size_t)mdp->n_states * (size_t)mdp->n_actions * sizeof *policy);
    assert_non_null(policy);
    for (int32_t s = 0; s < mdp->n_states; s++)
        if (actions[s] >= 0) policy[s * mdp->n_actions + actions[s]] = 1;
    return policy;
}

/* On ice that does not slip the lowest of the best actions is to stay at the wall; with rewards for each step there is no such thing, nor in a world
 * where to stay is best. */
TEST(policies_that_go_nowhere_are_told) {
    static const struct {
        const char *spec;
        bool attains;
    } cases[] = {{"FrozenLake-v1:is_slippery=false,gamma=1", false},
                 {"FrozenLake-v1:gamma=1", true},
                 {"CliffWalking-v1:gamma=1", true},
                 {"Gridworld4x4:gamma=1", true},
                 {"Gambler:gamma=1", true},
                 {"FrozenLake8x8-v1:is_slippery=false,gamma=1", false},
                 {"FrozenLake-v1:is_slippery=false,gamma=0.9", true}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        NamedMdp *world;
        MdpSolution best, earned;
        check_ok(mdp_open(cases[c].spec, &world));
        check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &best));
        if (best.policy_attains != cases[c].attains)
            fail_msg("%s: the policy %s", cases[c].spec, best.policy_attains ? "attains" : "does not attain");
        assert_true(best.policy_attains == !best.attaining);
        check_ok(mdp_evaluate(&world->mdp, deterministic(&world->mdp, best.attaining ? best.attaining : best.policy), &(MdpOptions){0}, test_arena,
                              &earned));
        check_close_f64(cases[c].spec, earned.V, best.V, (size_t)world->mdp.n_states, 1e-9, 0);
        if (!best.policy_attains) {
            check_ok(mdp_evaluate(&world->mdp, deterministic(&world->mdp, best.policy), &(MdpOptions){0}, test_arena, &earned));
            double less = 0;
            for (int32_t s = 0; s < world->mdp.n_states; s++) less = fmax(less, best.V[s] - earned.V[s]);
            assert_true(less > 1e-3);
        }
        named_mdp_free(world);
    }
    MdpBuilder *builder = mdp_builder_new(3, 2, 1); /* state 0: stay for nothing, or lose; state 1: win and come to state 0 */
    mdp_builder_terminal(builder, 2);
    mdp_builder_add(builder, 0, 0, 0, 1, 0, false);
    mdp_builder_add(builder, 0, 1, 2, 1, -1, false);
    mdp_builder_add(builder, 1, 0, 0, 1, 2, false);
    mdp_builder_add(builder, 1, 1, 2, 1, 0, false);
    NamedMdp *world = finished(builder);
    MdpSolution best;
    check_ok(mdp_solve(&world->mdp, &(MdpOptions){0}, test_arena, &best));
    assert_true(best.policy_attains && !best.attaining && best.V[1] == 2);
    named_mdp_free(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WORLD_TEST(wandering_for_nothing_earns_nothing),
        WORLD_TEST(small_costs_count_beside_large_ones),
        WORLD_TEST(large_rewards_hide_no_difference),
        WORLD_TEST(unlikely_ends_are_not_relied_on),
        WORLD_TEST(round_trips_are_judged_by_what_they_take),
        WORLD_TEST(long_round_trips_are_judged_too),
        WORLD_TEST(dear_rooms_hide_no_cost),
        WORLD_TEST(missing_values_are_said),
        WORLD_TEST(policies_that_go_nowhere_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
