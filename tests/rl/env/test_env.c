/* SPDX-License-Identifier: Apache-2.0 */
/* Environments: traces of Gymnasium, time limits, copies, random numbers, arguments; a Mdp as an environment. */
#include "rl/env/env.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Env *made(const char *spec, int64_t copies) {
    Env *env;
    check_ok(env_new(spec, copies, &env));
    return env;
}

static double env_number(const json_t *array, size_t i) { return json_number_value(json_array_get(array, i)); }

static json_t *env_golden(const char *name) {
    char path[512];
    json_t *root;
    if (!shared_path(name, path, sizeof path)) skip();
    check_ok(json_read_file(path, &root));
    return root;
}

static void check_row(const char *what, const double *got, const json_t *want, double tolerance) {
    double values[8];
    size_t n = json_array_size(want);
    assert_true(n <= 8);
    for (size_t i = 0; i < n; i++) values[i] = env_number(want, i);
    check_close_f64(what, got, values, n, tolerance, 0);
}

TEST(cart_pole_follows_its_golden_traces) {
    json_t *root = env_golden("golden/rl/cartpole.json"), *episode;
    Env *env = made("CartPole-v1", 1);
    size_t i;
    assert_int_equal(env->max_steps, json_integer_value(json_object_get(root, "max_episode_steps")));
    json_array_foreach(json_object_get(root, "episodes"), i, episode) {
        double start[4];
        for (size_t k = 0; k < 4; k++) start[k] = env_number(json_object_get(episode, "initial_state"), k);
        check_ok(env_set_state(env, 0, start));
        const json_t *actions = json_object_get(episode, "actions"), *states = json_object_get(episode, "states");
        for (size_t t = 0; t < json_array_size(states); t++) {
            double action = env_number(actions, t);
            check_ok(env_step(env, &action, false));
            check_row("state", env->states, json_array_get(states, t), 1e-12);
            const json_t *observations = json_object_get(episode, "observations");
            /* float32 of states that differ by a rounding */
            if (observations) check_row("observation", env->observations, json_array_get(observations, t), 1e-7);
            check_close(env->rewards[0], env_number(json_object_get(episode, "rewards"), t), 0);
            const json_t *ended = json_object_get(episode, "terminated");
            bool last = json_is_array(ended) ? json_is_true(json_array_get(ended, t)) : t + 1 == json_array_size(states) && json_is_true(ended);
            assert_int_equal(env->terminated[0], last);
        }
    }
    env_free(env);
    json_decref(root);
}

/* Where Gymnasium 1.4 is after 20 steps, or at the end: discrete actions (t^2 + t/3) mod n, continuous ones 2.5 sin t. */
TEST(other_traces_are_gymnasiums) {
    static const struct {
        const char *id;
        double start[4], end[4], sum;
        int64_t steps;
    } cases[] = {
        {"CartPole-v1", {.01, .02, .03, .04}, {-0.0873933251254897, -0.969019399189026, 0.21875919421639436, 1.8363133587226605}, 13, 13},
        {"MountainCar-v0", {-.5, 0}, {-0.5280147834920362, -0.002864828754067462}, -20, 20},
        {"Acrobot-v1", {.1, -.05, .02, .08}, {-0.04852043223796004, 0.2013135263880575, 1.0973686675155514, -2.141021669202935}, -20, 20},
        {"Pendulum-v1", {3, .5}, {3.0786361780974283, -1.3324351998011421}, -179.70653689612223, 20},
        {"MountainCarContinuous-v0", {-.5, 0}, {-0.5098445761755005, -0.003440442148856251}, -5.914785981245071, 20},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Env *env = made(cases[c].id, 1);
        check_ok(env_set_state(env, 0, cases[c].start));
        double sum = 0;
        for (int t = 0; t < 20; t++) {
            double action = env->action.n ? (double)((t * t + t / 3) % env->action.n) : sin(t) * 2.5;
            check_ok(env_step(env, &action, false));
            sum += env->rewards[0];
        }
        check_close_f64(cases[c].id, env->states, cases[c].end, (size_t)env->state_size, 1e-12, 0);
        check_close(sum, cases[c].sum, 1e-11);
        assert_int_equal(env->lengths[0], cases[c].steps);
        env_free(env);
    }
}

TEST(time_limits_truncate) {
    static const struct {
        const char *spec;
        int64_t limit;
    } cases[] = {
        {"MountainCar-v0", 200},
        {"Pendulum-v1", 200},
        {"Acrobot-v1", 500},
        {"MountainCarContinuous-v0", 999},
        {"Pendulum-v1:max_episode_steps=7,g=9.81", 7},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Env *env = made(cases[c].spec, 1);
        env_reset(env, 3);
        int64_t steps = 0;
        for (double action = env->action.n ? 1 : 0; !env->truncated[0]; steps++) {
            check_ok(env_step(env, &action, false));
            assert_false(env->terminated[0]);
        }
        assert_int_equal(steps, cases[c].limit);
        double kept = env->states[0], action = 0;
        check_ok(env_step(env, &action, false));
        assert_true(env->truncated[0] && env->states[0] == kept && env->lengths[0] == steps && env->rewards[0] == 0);
        env_free(env);
    }
}

/* The episodes of a copy are the same for two copies and for five. */
TEST(copies_do_not_depend_on_each_other) {
    static const char *const ids[] = {"CartPole-v1", "Blackjack-v1", "RandomWalk", "Gambler", "WindyGridworld"};
    for (size_t e = 0; e < COUNT_OF(ids); e++) {
        Env *few = made(ids[e], 2), *many = made(ids[e], 5);
        env_reset(few, 11);
        env_reset(many, 11);
        bool ended = false, copies_differ = false;
        for (int t = 0; t < 300; t++) {
            double actions[5];
            for (int b = 0; b < 5; b++) actions[b] = (double)rng_below(rng_key(1, RNG_TEST, (uint64_t)b), (uint64_t)t, (uint64_t)few->action.n);
            check_ok(env_step(few, actions, true));
            check_ok(env_step(many, actions, true));
            for (int64_t i = 0; i < 2 * few->state_size; i++) assert_true(few->states[i] == many->states[i]);
            for (int b = 0; b < 2; b++) assert_true(few->rewards[b] == many->rewards[b] && few->terminated[b] == many->terminated[b]);
            ended = ended || many->terminated[4];
            copies_differ = copies_differ || many->states[0] != many->states[many->state_size];
            if (many->terminated[4]) assert_int_equal(many->lengths[4], 0);
        }
        assert_true(copies_differ && (ended || strcmp(ids[e], "WindyGridworld") == 0));
        env_free(few);
        env_free(many);
    }
}

TEST(the_last_observation_of_an_episode_is_kept) {
    Env *env = made("CartPole-v1", 1);
    env_reset(env, 5);
    const double action = 1;
    while (!env->terminated[0]) check_ok(env_step(env, &action, true));
    assert_true(fabs(env->final_observations[2]) > 0.2);
    assert_true(fabs(env->observations[2]) <= 0.05);
    env_free(env);
}

/* State: the player's and the dealer's hand as (sum with aces 1, ace, cards), the open card. */
TEST(blackjack_settles) {
    static const struct {
        const char *spec;
        double hands[7], reward;
    } cases[] = {
        {"Blackjack-v1", {20, 0, 2, 19, 0, 2, 9}, 1},
        {"Blackjack-v1", {18, 0, 2, 19, 0, 2, 9}, -1},
        {"Blackjack-v1", {9, 1, 2, 19, 0, 2, 10}, 0},  /* ace and 8 against 10 and 9: 19 each */
        {"Blackjack-v1", {11, 1, 2, 21, 0, 3, 10}, 1}, /* a natural beats 21 of three cards */
        {"Blackjack-v1:sab=false", {11, 1, 2, 21, 0, 3, 10}, 0},
        {"Blackjack-v1:sab=false,natural=true", {11, 1, 2, 20, 0, 2, 10}, 1.5},
        {"Blackjack-v1", {11, 1, 2, 11, 1, 2, 10}, 0},
    };
    const double stick = 0;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Env *env = made(cases[c].spec, 1);
        check_ok(env_set_state(env, 0, cases[c].hands));
        check_ok(env_step(env, &stick, false));
        check_close(env->rewards[0], cases[c].reward, 0);
        assert_true(env->terminated[0]);
        env_free(env);
    }
}

static double mean_return(const char *spec, double action, int64_t copies) {
    Env *env = made(spec, copies);
    env_reset(env, 7);
    double *actions = calloc((size_t)copies, sizeof *actions), sum = 0;
    assert_non_null(actions);
    for (int64_t b = 0; b < copies; b++) actions[b] = action;
    for (int t = 0; t < 400; t++) {
        check_ok(env_step(env, actions, false));
        for (int64_t b = 0; b < copies; b++) sum += env->rewards[b];
    }
    free(actions);
    env_free(env);
    return sum / (double)copies;
}

/* Tolerances: four standard errors of 20000 episodes. */
TEST(chances_are_the_books) {
    check_close(mean_return("RandomWalk", 0, 20000), 0.5, 0.0142);
    /* Always hitting ends in a bust. */
    check_close(mean_return("Blackjack-v1", 1, 2000), -1, 0);
    /* A fair coin keeps the mean of the capital, 50 of 100 where it begins at 1..99 alike; a coin that always falls well always wins. */
    check_close(mean_return("Gambler:p_heads=0.5", 49, 20000), 0.5, 0.0142);
    check_close(mean_return("Gambler:p_heads=1", 49, 200), 1, 0);
}

TEST(wind_blows) {
    Env *env = made("WindyGridworld", 1);
    env_reset(env, 0);
    /* The book's shortest way: nine right, four down, two left. */
    static const double way[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3};
    for (size_t t = 0; t < COUNT_OF(way); t++) {
        assert_false(env->terminated[0]);
        check_ok(env_step(env, &way[t], false));
    }
    assert_true(env->terminated[0] && env->states[0] == 37);
    env_free(env);
}

TEST(mistakes_are_named) {
    Env *env;
    check_status(env_new("CartPol-v1", 1, &env), ST_CONFIG);
    check_text("unknown environment 'CartPol-v1'");
    check_contains(status_hint_text(), "'CartPole-v1'");
    assert_null(env);
    check_status(env_new("", 1, &env), ST_CONFIG);
    check_status(env_new("CartPole-v1", 0, &env), ST_CONFIG);
    check_status(env_new("CartPole-v1", INT64_MAX, &env), ST_RESOURCE);
    check_status(env_new("Blackjack-v1:nat=true", 1, &env), ST_CONFIG);
    check_text("unknown argument 'nat'");
    check_status(env_new("Blackjack-v1:zzzzzzzzzz=1", 1, &env), ST_CONFIG);
    check_contains(status_hint_text(), "max_episode_steps, natural, sab");
    check_status(env_new("Blackjack-v1:sab=maybe", 1, &env), ST_CONFIG);
    check_text("expected true or false");
    check_status(env_new("Blackjack-v1:sab", 1, &env), ST_CONFIG);
    check_text("no value");
    check_status(env_new("Gambler:p_heads=1.5", 1, &env), ST_CONFIG);
    check_text("from 0 to 1");
    check_status(env_new("Pendulum-v1:max_episode_steps=-1", 1, &env), ST_CONFIG);
    env = made("CartPole-v1", 2);
    env_reset(env, 0);
    double kept = env->states[0];
    check_status(env_step(env, (const double[]){0, 2}, false), ST_INPUT);
    check_text("action 2 of copy 1");
    check_status(env_step(env, (const double[]){0, 0.5}, false), ST_INPUT);
    check_status(env_step(env, (const double[]){(double)NAN, 0}, false), ST_INPUT);
    assert_true(env->states[0] == kept);
    check_status(env_set_state(env, 0, (const double[]){0, 0, (double)INFINITY, 0}), ST_INPUT);
    env_free(env);
    env = made("WindyGridworld", 1);
    check_status(env_set_state(env, 0, (const double[]){70}), ST_INPUT);
    env_free(env);
}

/* Two states and a terminal one: action 0 stays with 1/4 and advances with 3/4; action 1 goes back. */
TEST(a_mdp_is_sampled) {
    int64_t begin[] = {0, 2, 3, 5, 6, 6, 6};
    int32_t next[] = {0, 1, 0, 1, 2, 0};
    double probability[] = {0.25, 0.75, 1, 0.25, 0.75, 1}, reward[] = {-1, -1, -2, -1, 5, -2};
    bool terminal[] = {false, false, true};
    const Mdp mdp = {
        .n_states = 3, .n_actions = 2, .gamma = 1, .begin = begin, .next = next, .probability = probability, .reward = reward, .terminal = terminal};
    const double start[] = {1, 0, 0};
    Env *env;
    enum { COPIES = 4000 };
    check_ok(env_new_mdp(&mdp, start, 0, COPIES, &env));
    assert_int_equal(env->observation.n, 3);
    env_reset(env, 1);
    static double actions[COPIES];
    double sum = 0;
    for (int t = 0; t < 60; t++) {
        check_ok(env_step(env, actions, false));
        for (int b = 0; b < COPIES; b++) sum += env->rewards[b];
    }
    for (int b = 0; b < COPIES; b++) assert_true(env->terminated[b] && env->states[b] == 2);
    /* Each place costs 1/3 wait on average: -4/3 for the first, 5 - 1/3 for the second; standard deviation 0.94 an episode. */
    check_close(sum / COPIES, 10.0 / 3, 0.06);
    check_status(env_set_state(env, 0, (const double[]){2}), ST_INPUT);
    env_free(env);
    check_ok(env_new_mdp(&mdp, NULL, 0, COPIES, &env));
    env_reset(env, 1);
    for (int b = 0; b < COPIES; b++) sum = b ? sum + env->states[b] : env->states[b];
    check_close(sum / COPIES, 0.5, 0.0316); /* four standard errors */
    env_free(env);
    check_status(env_new_mdp(&mdp, (const double[]){0.5, 0.4, 0}, 0, 1, &env), ST_INPUT);
    check_text("sum to 0.9");
    check_status(env_new_mdp(&mdp, (const double[]){0, 0, 1}, 0, 1, &env), ST_INPUT);
    check_text("terminal state 2");
    check_status(env_new_mdp(&mdp, (const double[]){2, -1, 0}, 0, 1, &env), ST_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cart_pole_follows_its_golden_traces),
        cmocka_unit_test(other_traces_are_gymnasiums),
        cmocka_unit_test(time_limits_truncate),
        cmocka_unit_test(copies_do_not_depend_on_each_other),
        cmocka_unit_test(the_last_observation_of_an_episode_is_kept),
        cmocka_unit_test(blackjack_settles),
        cmocka_unit_test(chances_are_the_books),
        cmocka_unit_test(wind_blows),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(a_mdp_is_sampled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
