/* Learning with tables and tiles: updates by hand, the textbook's tables within their noise, exact values and best returns that are reached, exact resume of every variant, keys that do not go together. */
#include "rl/env_kinds.h"
#include "rl/learn.h"
#include "rl/table.h"
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETTINGS = 16 };

/* Settings "key=value" separated by blanks. */
static Recipe *recipe_of(const char *format, ...) PRINTF_LIKE(1, 2);
static Recipe *recipe_of(const char *format, ...) {
    char text[1024], *settings[SETTINGS];
    size_t n = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        assert_true(n < SETTINGS);
        settings[n++] = word;
    }
    Recipe *recipe;
    check_ok(recipe_read(NULL, (const char *const *)settings, n, &recipe));
    return recipe;
}

static Learner *learner_of(const Recipe *recipe) {
    Learner *learner;
    check_ok(learner_new(recipe, recipe->rl_num_envs, &learner));
    return learner;
}

static void learn_episodes(Learner *learner, int64_t episodes) {
    while (learner->all_episodes < episodes) {
        check_ok(learner->algorithm->update(learner));
        learner->updates++;
    }
}

static double *weights(Learner *learner) { return ((Tabular *)learner->self)->Q.w; }

/* ---- updates by hand ---- */

/* One walk that is always the same: 3 4 3 2 3 4 5 and off the right end, with reward 1 there. */
static const double walk[] = {3, 4, 3, 2, 3, 4, 5, 6};
static int walked;
static void walk_start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    (void)draws;
    walked = 0;
    *state = walk[0];
}
static bool walk_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)context;
    (void)draws;
    (void)action;
    *state = walk[++walked];
    *reward = *state > 5;
    return *state > 5;
}
static void walk_observe(const void *context, const double *state, double *observation) {
    (void)context;
    *observation = *state;
}
static const EnvKind walk_kind = {.id = "walk", .state_size = 1, .start = walk_start, .step = walk_step, .observe = walk_observe};

static void each_method_learns_what_the_book_says_of_one_walk(void **state) {
    (void)state;
    static const struct { const char *settings; double one[5], discounted[5]; } methods[] = {
        {"rl.algorithm=td", {.5, .5, .5, .5, .55}, {.5, .494145, .4859595, .490095, .55}},
        {"rl.algorithm=mc rl.policy=uniform", {.5, .55, .6355, .595, .55}, {.5, .5229, .547595721, .5481441, .55}},
        {"rl.algorithm=mc rl.policy=uniform rl.visits=first", {.5, .55, .55, .55, .55}, {.5, .5229, .5031441, .509049, .55}},
        {"rl.algorithm=td rl.n_step=3", {.5, .5, .55, .55, .55}, {.5, .48645, .5068756753, .5269159845, .55}},
        {"rl.algorithm=td rl.lambda=0.8", {.5, .5256, .5655872, .556384, .55}, {.5, .5076210895, .5125951744, .5278573745, .55}},
        {"rl.algorithm=td rl.lambda=0.8 rl.traces=replacing", {.5, .5256, .532, .54, .55}, {.5, .5074885433, .5014981013, .5191097883, .55}},
        {"rl.algorithm=td rl.lambda=0.8 rl.traces=true_online", {.5, .5256, .561048832, .5547456, .55}, {.5, .5070426759, .5101790812, .5264648309, .55}},
        /* There is one action, so Sarsa sees the same values. */
        {"rl.algorithm=sarsa", {.5, .5, .5, .5, .55}, {.5, .494145, .4859595, .490095, .55}},
        {"rl.algorithm=expected_sarsa", {.5, .5, .5, .5, .55}, {.5, .494145, .4859595, .490095, .55}},
        {"rl.algorithm=q_learning", {.5, .5, .5, .5, .55}, {.5, .494145, .4859595, .490095, .55}},
        {"rl.algorithm=sarsa rl.n_step=3", {.5, .5, .55, .55, .55}, {.5, .48645, .5068756753, .5269159845, .55}},
        {"rl.algorithm=sarsa rl.lambda=0.8 rl.traces=true_online", {.5, .5256, .561048832, .5547456, .55}, {.5, .5070426759, .5101790812, .5264648309, .55}},
    };
    for (size_t m = 0; m < COUNT_OF(methods); m++)
        for (int discounts = 0; discounts < 2; discounts++) {
            Recipe *recipe = recipe_of("%s rl.env=RandomWalk rl.alpha=0.1 rl.initial_value=0.5 rl.num_envs=1 rl.num_steps=1 rl.gamma=%s", methods[m].settings, discounts ? "0.9" : "1");
            Learner *learner = learner_of(recipe);
            learner->env->kind = &walk_kind;
            env_reset(learner->env, 0);
            learn_episodes(learner, 1);
            check_close_f64(methods[m].settings, weights(learner) + 1, discounts ? methods[m].discounted : methods[m].one, 5, 5e-11, 0);
            learner_free(learner);
            recipe_free(recipe);
        }
}

/* Off the right end the walk terminates, and nothing follows; cut off by a time limit it would have gone on, so the last state's value counts. */
static void a_truncated_episode_is_worth_its_last_state(void **state) {
    (void)state;
    static const char *const methods[] = {"rl.algorithm=td", "rl.algorithm=td rl.n_step=1000", "rl.algorithm=mc rl.policy=uniform", "rl.algorithm=td rl.lambda=1",
                                          "rl.algorithm=q_learning", "rl.algorithm=sarsa", "rl.algorithm=expected_sarsa", "rl.algorithm=sarsa rl.n_step=2", "rl.algorithm=mc"};
    for (size_t m = 0; m < COUNT_OF(methods); m++) {
        Recipe *recipe = recipe_of("%s rl.env=RandomWalk rl.alpha=1 rl.initial_value=0.5 rl.num_envs=1 rl.num_steps=1 rl.gamma=0.5", methods[m]);
        Learner *learner = learner_of(recipe);
        learner->env->kind = &walk_kind;
        learner->env->max_steps = 1;
        env_reset(learner->env, 0);
        weights(learner)[4] = 0.8;
        learn_episodes(learner, 1);
        check_close(weights(learner)[3], 0.4, 1e-15); /* R = 0, gamma V(4) = 0.5 x 0.8 */
        learner_free(learner);
        recipe_free(recipe);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_method_learns_what_the_book_says_of_one_walk),
        cmocka_unit_test(a_truncated_episode_is_worth_its_last_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
