/* SPDX-License-Identifier: Apache-2.0 */
/* Built-in worlds: tables of Gymnasium, values of the book, the environments that draw from them; names and arguments. */
#include "rl/env/env.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static NamedMdp *opened(const char *spec) {
    NamedMdp *world;
    check_ok(mdp_open(spec, &world));
    return world;
}

static json_t *worlds_golden(const char *name) {
    char path[512];
    json_t *root;
    if (!shared_path(name, path, sizeof path)) skip();
    check_ok(json_read_file(path, &root));
    return root;
}

static double *worlds_numbers(const json_t *array, size_t n) {
    double *values = calloc(n, sizeof *values);
    assert_non_null(values);
    assert_int_equal(json_array_size(array), n);
    for (size_t i = 0; i < n; i++) values[i] = json_number_value(json_array_get(array, i));
    return values;
}

static double q_value(const Mdp *mdp, const double *V, int64_t state, int64_t action) {
    double q = 0;
    for (int64_t k = mdp->begin[state * mdp->n_actions + action]; k < mdp->begin[state * mdp->n_actions + action + 1]; k++) {
        bool ends = (mdp->ends && mdp->ends[k]) || mdp->terminal[mdp->next[k]];
        q += mdp->probability[k] * (mdp->reward[k] + (ends ? 0 : mdp->gamma * V[mdp->next[k]]));
    }
    return q;
}

/* Sweeps until nothing moves: the best actions' values, or with `uniform` those of all alike. */
static double *values_of(const NamedMdp *world, bool uniform) {
    const Mdp *mdp = &world->mdp;
    double *V = calloc((size_t)mdp->n_states, sizeof *V), moved = 1;
    assert_non_null(V);
    for (int sweep = 0; moved > 1e-14 && sweep < 20000; sweep++) {
        moved = 0;
        for (int32_t s = 0; s < mdp->n_states; s++) {
            double best = -(double)INFINITY, sum = 0;
            if (mdp->terminal[s]) continue;
            for (int32_t a = 0; a < mdp->n_actions; a++) {
                double q = q_value(mdp, V, s, a);
                best = fmax(best, q);
                sum += q;
            }
            double next = uniform ? sum / mdp->n_actions : best;
            moved = fmax(moved, fabs(next - V[s]) / fmax(1, fabs(next)));
            V[s] = next;
        }
    }
    return V;
}

static void check_values(const char *spec, bool uniform, const double *want, size_t n, double tolerance) {
    NamedMdp *world = opened(spec);
    double *V = values_of(world, uniform);
    assert_int_equal(world->mdp.n_states, n);
    check_close_f64(spec, V, want, n, tolerance, 0);
    free(V);
    named_mdp_free(world);
}

static void check_json_values(const char *spec, bool uniform, const json_t *want, double tolerance) {
    size_t n = json_array_size(want);
    double *values = worlds_numbers(want, n);
    check_values(spec, uniform, values, n, tolerance);
    free(values);
}

TEST(gymnasiums_values_are_met) {
    static const struct {
        const char *world, *part, *key, *spec;
        bool uniform;
    } cases[] = {
        {"FrozenLake", "4x4_slippery", "V*_gamma_0.9", "FrozenLake-v1:gamma=0.9", false},
        {"FrozenLake", "4x4_slippery", "V*_gamma_0.95", "FrozenLake-v1:gamma=0.95", false},
        {"FrozenLake", "4x4_slippery", "V*_gamma_0.99", "FrozenLake-v1", false},
        {"FrozenLake", "4x4_slippery", "V*_gamma_1.0", "FrozenLake-v1:gamma=1", false},
        {"FrozenLake", "4x4_slippery", "V_uniform_gamma_1.0", "FrozenLake-v1:gamma=1", true},
        {"FrozenLake", "4x4_deterministic", "V*_gamma_0.99", "FrozenLake-v1:is_slippery=false", false},
        {"FrozenLake", "4x4_deterministic", "V_uniform_gamma_0.99", "FrozenLake-v1:is_slippery=false,desc=SFFF/FHFH/FFFH/HFFG", true},
        {"CliffWalking", NULL, "V*_gamma_1", "CliffWalking-v1", false},
        {"CliffWalking", NULL, "V*_gamma_0.99", "CliffWalking-v1:gamma=0.99", false},
        {"Gridworld4x4_SB_example_4.1", NULL, "V_random_policy_gamma_1", "Gridworld4x4", true},
        {"Gridworld4x4_SB_example_4.1", NULL, "V*", "Gridworld4x4", false},
    };
    json_t *root = worlds_golden("data/rl/expected.json");
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        const json_t *world = json_object_get(root, cases[c].world);
        if (cases[c].part) world = json_object_get(world, cases[c].part);
        check_json_values(cases[c].spec, cases[c].uniform, json_object_get(world, cases[c].key), 1e-9);
    }
    json_decref(root);
}

/* Rows of Gymnasium's P, [probability, next state, reward, done] each, in whatever order. */
static void check_table(const char *spec, const json_t *P, bool ends_are_rows) {
    NamedMdp *world = opened(spec);
    const Mdp *mdp = &world->mdp;
    assert_int_equal(json_array_size(P), mdp->n_states);
    for (int32_t s = 0; s < mdp->n_states; s++) {
        if (mdp->terminal[s] && !ends_are_rows) continue;
        for (int32_t a = 0; a < mdp->n_actions; a++) {
            const json_t *outcomes = json_array_get(json_array_get(P, (size_t)s), (size_t)a), *outcome;
            int64_t begin = mdp->begin[s * mdp->n_actions + a];
            size_t i;
            assert_int_equal(mdp->begin[s * mdp->n_actions + a + 1] - begin, json_array_size(outcomes));
            json_array_foreach(outcomes, i, outcome) {
                int64_t k = begin + (int64_t)i;
                check_close(mdp->probability[k], json_number_value(json_array_get(outcome, 0)), 0);
                assert_int_equal(mdp->next[k], json_integer_value(json_array_get(outcome, 1)));
                check_close(mdp->reward[k], json_number_value(json_array_get(outcome, 2)), 0);
                assert_int_equal(mdp->ends && mdp->ends[k], json_is_true(json_array_get(outcome, 3)));
            }
        }
    }
    named_mdp_free(world);
}

TEST(gymnasiums_tables_are_met) {
    json_t *lake = worlds_golden("golden/rl/frozenlake.json"), *cliff = worlds_golden("golden/rl/cliffwalking.json");
    check_table("FrozenLake-v1", json_object_get(lake, "P_slippery"), false);
    check_table("FrozenLake-v1:is_slippery=false", json_object_get(lake, "P_deterministic"), false);
    check_table("CliffWalking-v1", json_object_get(cliff, "P"), true);
    json_decref(lake);
    json_decref(cliff);
}

TEST(taxis_table_is_gymnasiums) {
    json_t *root = worlds_golden("golden/rl/taxi.json"), *starts = json_object_get(root, "initial_states"), *start;
    static const char *const specs[] = {"Taxi-v4", "Taxi-v3"};
    for (size_t w = 0; w < COUNT_OF(specs); w++) {
        NamedMdp *world = opened(specs[w]);
        const Mdp *mdp = &world->mdp;
        assert_int_equal(mdp->begin[mdp->n_states * mdp->n_actions], 3000);
        assert_int_equal(world->max_steps, 200);
        for (int32_t row = 0; row < 3000; row++) {
            size_t s = (size_t)row / 6, a = (size_t)row % 6;
            assert_int_equal(mdp->next[row], json_integer_value(json_array_get(json_array_get(json_object_get(root, "next_state"), s), a)));
            check_close(mdp->reward[row], json_number_value(json_array_get(json_array_get(json_object_get(root, "reward"), s), a)), 0);
            assert_int_equal(mdp->ends[row], json_integer_value(json_array_get(json_array_get(json_object_get(root, "done"), s), a)));
        }
        double total = 0;
        size_t i;
        json_array_foreach(starts, i, start) total += world->start[json_integer_value(start)];
        check_close(total, 1, 1e-12);
        named_mdp_free(world);
    }
    json_decref(root);
}

static double value_at_start(const char *spec) {
    NamedMdp *world = opened(spec);
    double *V = values_of(world, false), mean = 0;
    for (int32_t s = 0; s < world->mdp.n_states; s++) mean += world->start[s] * V[s];
    free(V);
    named_mdp_free(world);
    return mean;
}

/* Exact solutions of the tables of the textbook and of Gymnasium, by an independent script. The path of the windy gridworld has 15 steps, with
 * king's moves 7 (Sutton & Barto, exercise 6.9). Blackjack: an exact computation in fractions over single cards. Rain and fickle passengers: value
 * iteration over all outcomes of Gymnasium 1.4.0's step function from every state, for every possible draw. */
TEST(values_from_the_start) {
    static const struct {
        const char *spec;
        double value, tolerance;
    } cases[] = {
        {"Taxi-v4:gamma=1", 7.93, 1e-9},
        {"Taxi-v4:fickle_passenger=true", 6.818137528855251, 1e-12},
        {"Taxi-v3:is_rainy=true,fickle_passenger=true", 2.9070551031279677, 1e-12},
        {"Taxi-v4:is_rainy=true,fickle_passenger=true,gamma=1", 4.581049662879712, 1e-11},
        {"Taxi-v3:is_rainy=true", 2.24762932360474, 1e-12},
        {"Taxi-v3", 6.327464, 1e-6},
        {"Taxi-v4:gamma=0.9", -1.263323, 1e-6},
        {"FrozenLake-v1:gamma=1", 14.0 / 17, 1e-9},
        {"CliffWalking-v1", -13, 1e-12},
        {"WindyGridworld", -15, 1e-12},
        {"WindyGridworld:king_moves=true", -7, 1e-12},
        {"RandomWalk", 0.5, 1e-9},
        {"RandomWalk:states=19,left=-1", 0, 1e-9},
        {"Blackjack-v1", -0.043113105413477015, 1e-12},
        {"Blackjack-v1:sab=false", -0.04655597706669755, 1e-12},
        {"Blackjack-v1:sab=false,natural=true", -0.02572918278931986, 1e-12},
        {"FrozenLake-v1:is_slippery=false,reward_schedule=10/-1/-0.5,gamma=1", 7.5, 1e-12},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        double value = value_at_start(cases[c].spec);
        check_close_f64(cases[c].spec, &value, &cases[c].value, 1, cases[c].tolerance, 0);
    }
}

/* Sutton & Barto, figures 3.2 and 3.5 with more digits, solved by an independent script. */
TEST(the_books_gridworld) {
    static const double random[25] = {3.3090, 8.7893, 4.4276, 5.3224, 1.4922, 1.5216, 2.9923,  2.2501,  1.9076,  .5474,   .0508,   .7382,  .6731,
                                      .3582,  -.4031, -.9736, -.4355, -.3549, -.5856, -1.1831, -1.8577, -1.3452, -1.2293, -1.4229, -1.9752};
    static const double best[25] = {21.9775, 24.4194, 21.9775, 19.4194, 17.4775, 19.7797, 21.9775, 19.7797, 17.8018,
                                    16.0216, 17.8018, 19.7797, 17.8018, 16.0216, 14.4194, 16.0216, 17.8018, 16.0216,
                                    14.4194, 12.9775, 14.4194, 16.0216, 14.4194, 12.9775, 11.6797};
    check_values("Gridworld5x5", true, random, 25, 5.01e-5);
    check_values("Gridworld5x5", false, best, 25, 5.01e-5);
}

TEST(the_gambler_and_the_walker) {
    static const struct {
        const char *spec;
        int capital;
        double value;
    } cases[] = {
        {"Gambler", 1, .002066},
        {"Gambler", 25, .16},
        {"Gambler", 37, .246489},
        {"Gambler", 50, .4},
        {"Gambler", 51, .403098},
        {"Gambler", 75, .64},
        {"Gambler", 99, .964333},
        {"Gambler:p_heads=0.25", 25, .0625},
        {"Gambler:p_heads=0.25", 99, .837972},
        {"Gambler:p_heads=0.55", 1, 2.0 / 11},
        {"Gambler:p_heads=0.55", 10, .865569},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        NamedMdp *world = opened(cases[c].spec);
        double *V = values_of(world, false);
        check_close(V[cases[c].capital], cases[c].value, 5.01e-7);
        free(V);
        named_mdp_free(world);
    }
    double walk[21] = {0};
    for (int i = 1; i < 20; i++) walk[i] = (i - 10) / 10.0;
    check_values("RandomWalk:states=19,left=-1", true, walk, 21, 1e-9);
}

/* Values of an own program (numpy, requests and returns up to 80); moves as in the book's figure 4.2: none where places are even, five from a full
 * first place to an empty second one, four the other way. */
TEST(the_car_rental) {
    static const struct {
        int first, second, moves;
        double value;
    } cases[] = {
        {0, 0, 0, 421.41406339650723},  {20, 20, 0, 636.9896068043631}, {10, 10, 0, 574.9483239852416},
        {0, 20, -4, 567.7685087963114}, {20, 0, 5, 554.947706036137},
    };
    NamedMdp *world = opened("CarRental");
    double *V = values_of(world, false);
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        int at = cases[c].first * 21 + cases[c].second, best = 0;
        check_close(V[at], cases[c].value, 1e-8);
        for (int a = 1; a < 11; a++)
            if (q_value(&world->mdp, V, at, a) > q_value(&world->mdp, V, at, best) + 1e-12) best = a;
        assert_int_equal(best - 5, cases[c].moves);
    }
    free(V);
    named_mdp_free(world);
}

static void check_traces(const char *file, const char *spec, const char *episodes) {
    json_t *root = worlds_golden(file), *episode;
    Env *env;
    size_t i;
    check_ok(env_new(spec, 1, &env));
    json_array_foreach(json_object_get(root, episodes), i, episode) {
        double start = json_number_value(json_object_get(episode, "initial_state"));
        check_ok(env_set_state(env, 0, &start));
        size_t n = json_array_size(json_object_get(episode, "states"));
        assert_true(n > 0);
        for (size_t t = 0; t < n; t++) {
            double action = json_number_value(json_array_get(json_object_get(episode, "actions"), t));
            check_ok(env_step(env, &action, false));
            check_close(env->states[0], json_number_value(json_array_get(json_object_get(episode, "states"), t)), 0);
            check_close(env->rewards[0], json_number_value(json_array_get(json_object_get(episode, "rewards"), t)), 0);
            assert_int_equal(env->terminated[0], json_is_true(json_array_get(json_object_get(episode, "terminated"), t)));
        }
    }
    env_free(env);
    json_decref(root);
}

TEST(traces_are_gymnasiums) {
    check_traces("golden/rl/cliffwalking.json", "CliffWalking-v1", "episodes");
    check_traces("golden/rl/taxi.json", "Taxi-v4", "episodes");
    check_traces("golden/rl/frozenlake.json", "FrozenLake-v1:is_slippery=false", "deterministic_episodes");
}

/* Success within the time limit under the best policy: 0.740165 by its exact chain of 100 steps. 20000 episodes: four standard errors are 0.0124. */
TEST(the_lakes_time_limit_counts) {
    enum { COPIES = 20000 };
    NamedMdp *world = opened("FrozenLake-v1");
    static const double policy[16] = {0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0};
    static double actions[COPIES];
    Env *env;
    double sum = 0;
    check_ok(env_new_world(world, COPIES, &env));
    env_reset(env, 4);
    for (int t = 0; t < 100; t++) {
        for (int b = 0; b < COPIES; b++) actions[b] = policy[(int)env->observations[b]];
        check_ok(env_step(env, actions, false));
        for (int b = 0; b < COPIES; b++) sum += env->rewards[b];
    }
    for (int b = 0; b < COPIES; b++) assert_true(env->terminated[b] || env->truncated[b]);
    check_close(sum / COPIES, 0.740165, 0.0124);
    env_free(env);
    named_mdp_free(world);
}

/* The blackjack that is sampled card by card and the one in the table are the same game: mean return of sticking from 17 on. 40000 episodes: four
 * standard errors are 0.02. */
TEST(both_blackjacks_are_one) {
    enum { COPIES = 40000 };
    static double actions[COPIES];
    double means[2];
    for (int which = 0; which < 2; which++) {
        NamedMdp *world = opened("Blackjack-v1");
        Env *env;
        check_ok(which ? env_new_world(world, COPIES, &env) : env_new("Blackjack-v1", COPIES, &env));
        env_reset(env, 9);
        means[which] = 0;
        for (int t = 0; t < 20; t++) {
            for (int b = 0; b < COPIES; b++) {
                int hand = which ? (int)env->observations[b] / 10 : 0;
                double sum = which ? (hand == 28 ? 21 : hand < 18 ? hand + 4 : hand - 6) : env->observations[3 * b];
                actions[b] = sum < 17;
            }
            check_ok(env_step(env, actions, false));
            for (int b = 0; b < COPIES; b++) means[which] += env->rewards[b] / COPIES;
        }
        env_free(env);
        named_mdp_free(world);
    }
    check_close(means[0], means[1], 0.028);
}

TEST(looks_are_there) {
    NamedMdp *world = opened("FrozenLake-v1:map_name=8x8,max_episode_steps=7");
    assert_true(world->rows == 8 && world->columns == 8 && world->cells[63] == 'G' && world->max_steps == 7 &&
                strcmp(world->action_names[3], "up") == 0);
    named_mdp_free(world);
    world = opened("FrozenLake8x8-v1");
    assert_true(world->rows == 8 && world->max_steps == 200);
    named_mdp_free(world);
    world = opened("Taxi-v4:is_rainy=true");
    check_contains(world->state_names[413], "(4,0)");
    assert_int_equal(world->mdp.begin[1], 3);
    named_mdp_free(world);
    world = opened("CliffWalkingSlippery-v1");
    assert_int_equal(world->mdp.begin[1], 3);
    named_mdp_free(world);
}

TEST(mistakes_are_named) {
    static const struct {
        const char *spec, *text, *hint;
    } cases[] = {
        {"FrozenLak-v1", "unknown world 'FrozenLak-v1'", "'FrozenLake-v1'"},
        {"nothing alike", "unknown world", "one of FrozenLake-v1, "},
        {"CartPole-v1", "not a finite MDP", "simulated"},
        {"", "empty", ""},
        {"FrozenLake-v1:map=8x8", "unknown argument 'map'", "map_name"},
        {"FrozenLake-v1:map_name=8", "unknown map '8'", "4x4"},
        {"FrozenLake-v1:desc=SFF/FF", "row 1 of the map is 2 cells long", ""},
        {"FrozenLake-v1:desc=FFG", "no S", "rows joined"},
        {"FrozenLake-v1:desc=", "no S", ""},
        {"FrozenLake-v1:desc=SFX", "has a 'X'", ""},
        {"FrozenLake-v1:is_slippery=perhaps", "expected true or false", ""},
        {"FrozenLake-v1:success_rate=2", "from 0 to 1", ""},
        {"FrozenLake-v1:reward_schedule=1/0", "three numbers", ""},
        {"FrozenLake-v1:gamma=1.5", "from 0 to 1", ""},
        {"Taxi-v3:is_rany=true", "unknown argument 'is_rany'", "is_rainy"},
        {"RandomWalk:states=2.5", "expected a whole number", ""},
        {"RandomWalk:states=0", "from 1 to", ""},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        NamedMdp *world;
        check_status(env_open_world(cases[c].spec, (double)NAN, &world), ST_CONFIG);
        check_text(cases[c].text);
        check_contains(status_hint_text(), cases[c].hint);
        assert_null(world);
    }
    Env *env;
    check_status(env_new("FrozenLakes-v1", 1, &env), ST_CONFIG);
    check_contains(status_hint_text(), "'FrozenLake-v1'");
    check_status(env_new("FrozenLake-v1:max_episode_steps=-1", 1, &env), ST_CONFIG);
    assert_null(env);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gymnasiums_values_are_met),
        cmocka_unit_test(gymnasiums_tables_are_met),
        cmocka_unit_test(taxis_table_is_gymnasiums),
        cmocka_unit_test(values_from_the_start),
        cmocka_unit_test(the_books_gridworld),
        cmocka_unit_test(the_gambler_and_the_walker),
        cmocka_unit_test(the_car_rental),
        cmocka_unit_test(traces_are_gymnasiums),
        cmocka_unit_test(the_lakes_time_limit_counts),
        cmocka_unit_test(both_blackjacks_are_one),
        cmocka_unit_test(looks_are_there),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
