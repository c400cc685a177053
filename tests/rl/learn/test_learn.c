/* SPDX-License-Identifier: Apache-2.0 */
/* Runs on environments: each algorithm of the table, with each kind of action that it chooses, gives the same bytes whether it was interrupted or not
 * and for any number of threads; what does not fit is refused by name. */
#include "lib/base/system.h"
#include "lib/recipe/keys.h"
#include "rl/keys/algorithm_keys.h"
#include "rl/learn/learn.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_algorithm.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <omp.h>
#include <stdio.h>
#include <string.h>

static Recipe *recipe_of(const char *const *settings, size_t n) {
    Recipe *recipe;
    check_ok(recipe_read(NULL, settings, n, &recipe));
    return recipe;
}

enum { UPDATES = 6, STEPS = 40, COPIES = 3 };

/* A small run; `more` are settings of the algorithm's own. */
static Recipe *small_run(const char *algorithm, const char *env, const char *name) {
    char texts[8][400];
    const char *settings[COUNT_OF(texts)];
    size_t n = 0;
    snprintf(texts[n++], 400, "output=%s/%s", test_folder, name);
    snprintf(texts[n++], 400, "rl.algorithm=%s", algorithm);
    snprintf(texts[n++], 400, "rl.env=%s", env);
    snprintf(texts[n++], 400, "rl.total_steps=%d", UPDATES * STEPS * COPIES);
    snprintf(texts[n++], 400, "rl.num_steps=%d", STEPS);
    snprintf(texts[n++], 400, "rl.num_envs=%d", COPIES);
    snprintf(texts[n++], 400, "rl.gamma=0.9");
    bool remembers = strcmp(algorithm, "dqn") == 0 || strcmp(algorithm, "sac") == 0;
    if (remembers) snprintf(texts[n++], 400, "rl.learning_starts=%d", STEPS * COPIES);
    for (size_t i = 0; i < n; i++) settings[i] = texts[i];
    return recipe_of(settings, n);
}

static void interrupt_in_the_middle(void *context, const Progress *progress) {
    (void)context;
    if (progress->step >= progress->total / 2) interrupt_request();
}

static void learn_run_recipe(const Recipe *recipe, bool resume, bool interrupted) {
    TrainResult result;
    Status status = learn_run(
        &(TrainingConfig){
            .recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume, .on_progress = interrupted ? interrupt_in_the_middle : NULL},
        NULL, &result);
    interrupt_clear();
    check_status_at(__FILE__, __LINE__, recipe->rl_algorithm, status, interrupted ? ST_INTERRUPTED : ST_OK);
}

static void read_whole(const char *run, const char *name, Str *bytes) { check_ok(file_read(temp_file(run, name), 1 << 24, bytes)); }

/* metrics.jsonl without its times. */
static void facts(const char *run, Str *text) {
    Str bytes = {0};
    read_whole(run, "metrics.jsonl", &bytes);
    for (char *line = bytes.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        char *time = strstr(line, "\"seconds\"");
        assert_non_null(time);
        assert_true(time < end);
        str_append_n(text, line, (size_t)(time - line));
    }
    str_release(&bytes);
}

static void check_same(const char *algorithm, const char *name, const char *reference) {
    char a[400], b[400];
    Str got = {0}, want = {0};
    snprintf(a, sizeof a, "%s/%s", test_folder, name);
    snprintf(b, sizeof b, "%s/%s", test_folder, reference);
    facts(a, &got);
    facts(b, &want);
    if (strcmp(str_text(&got), str_text(&want)) != 0)
        fail_msg("%s: metrics of %s differ from those of %s:\n%s\nand\n%s", algorithm, name, reference, str_text(&got), str_text(&want));
    str_clear(&got);
    str_clear(&want);
    read_whole(a, "policy.safetensors", &got);
    read_whole(b, "policy.safetensors", &want);
    if (got.len != want.len || memcmp(got.data, want.data, got.len) != 0)
        fail_msg("%s: the policy of %s differs from that of %s", algorithm, name, reference);
    str_release(&got);
    str_release(&want);
}

static void check_algorithm(const Algorithm *algorithm, const char *env) {
    char names[3][128];
    int threads = omp_get_max_threads();
    for (int i = 0; i < 3; i++) snprintf(names[i], sizeof names[i], "%s-%.20s-%d", algorithm->name, env, i);
    Recipe *whole = small_run(algorithm->name, env, names[0]), *cut = small_run(algorithm->name, env, names[1]),
           *threaded = small_run(algorithm->name, env, names[2]);
    learn_run_recipe(whole, false, false);
    learn_run_recipe(cut, false, true);
    learn_run_recipe(cut, true, false);
    check_same(algorithm->name, names[1], names[0]);
    omp_set_num_threads(threads > 1 ? 1 : 2);
    learn_run_recipe(threaded, false, false);
    omp_set_num_threads(threads);
    check_same(algorithm->name, names[2], names[0]);
    char run[400];
    Evaluation evaluation;
    snprintf(run, sizeof run, "%s/%s", test_folder, names[0]);
    /* a table that has learned too little may walk for ever */
    if (!algorithm->tabular) check_ok(learn_evaluate(run, &(EvaluationConfig){.device = device_cpu(), .episodes = 5, .seed = 3}, &evaluation));
    recipe_free(whole);
    recipe_free(cut);
    recipe_free(threaded);
}

TEST(every_algorithm_resumes_to_the_same_bytes) {
    for (size_t i = 0; algorithm_at(i); i++) {
        const Algorithm *algorithm = algorithm_at(i);
        if (algorithm->tabular)
            check_algorithm(algorithm, "WindyGridworld");
        else if (algorithm->discrete)
            check_algorithm(algorithm, "CartPole-v1");
        if (algorithm->box) check_algorithm(algorithm, "Pendulum-v1");
    }
}

TEST(what_does_not_fit_is_named) {
    static const struct {
        const char *settings[4];
        const char *message;
    } faults[] = {
        {{"rl.algorithm=q_learning", "rl.env=CartPole-v1", "rl.total_steps=10", "rl.gamma=1"},
         "algorithm 'q_learning' keeps a table of states, but the observations of environment 'CartPole-v1' are real numbers"},
        {{"rl.algorithm=q_learning", "rl.env=Pendulum-v1", "rl.total_steps=10", "rl.gamma=1"},
         "algorithm 'q_learning' does not fit environment 'Pendulum-v1': its actions are real numbers"},
        {{"rl.algorithm=q_learning", "rl.env=CartPole-v0", "rl.total_steps=10", "rl.gamma=1"}, "unknown environment 'CartPole-v0'"},
        {{"rl.algorithm=q_learning", "rl.env=WindyGridworld", "output=x", "rl.gamma=1"}, "'rl.total_steps' is missing"},
        {{"rl.algorithm=q_learning", "rl.total_steps=10", "output=x", "rl.gamma=1"}, "'rl.env' is missing"},
        {{"rl.algorithm=grpo", "rl.env=CartPole-v1", "rl.total_steps=10", "rl.gamma=1"},
         "'rl.algorithm' is 'grpo', which does not learn from an environment"},
        {{"rl.algorithm=q_learning", "rl.env=Taxi-v3", "rl.total_steps=10", "rl.lambda=0.5"},
         "algorithm 'q_learning' on environments does not take 'rl.lambda'"},
        {{"rl.algorithm=expected_sarsa", "rl.env=Taxi-v3", "rl.total_steps=10", "rl.n_step=2"},
         "algorithm 'expected_sarsa' on environments does not take 'rl.n_step'"},
        {{"rl.algorithm=sarsa", "rl.env=Taxi-v3", "rl.total_steps=10", "rl.policy=uniform"},
         "algorithm 'sarsa' on environments does not take 'rl.policy'"},
        {{"rl.algorithm=off_policy_mc", "rl.env=Taxi-v3", "rl.total_steps=10", "rl.alpha=0.2"},
         "algorithm 'off_policy_mc' on environments does not take 'rl.alpha'"},
        {{"rl.algorithm=td", "rl.env=Taxi-v3", "rl.total_steps=10", "policy.hidden=[8]"},
         "algorithm 'td' on environments does not take 'policy.hidden'"},
        {{"rl.algorithm=sac", "rl.env=Pendulum-v1", "rl.total_steps=10", "rl.epsilon_end=0.1"},
         "algorithm 'sac' on environments does not take 'rl.epsilon_end'"},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        TrainResult result;
        Recipe *recipe = recipe_of(faults[i].settings, 4);
        Status status = rl_check_keys(recipe);
        check_status(status == ST_OK
                         ? learn_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.dry_run = true}, NULL, &result)
                         : status,
                     ST_CONFIG);
        check_text(faults[i].message);
        recipe_free(recipe);
    }
}

/* A list names keys that there are: a misspelt name would let nothing through. */
static void check_names(const char *algorithm, const char *keys) {
    char dotted[64];
    for (Slice word; text_next(&keys, ' ', &word);) {
        bool whole = memchr(word.data, '.', word.len) != NULL;
        snprintf(dotted, sizeof dotted, "%s%.*s", whole ? "" : "rl.", (int)word.len, word.data);
        if (!key_find(dotted)) fail_msg("algorithm '%s' reads '%s', which is no key", algorithm, dotted);
    }
}

TEST(algorithms_read_keys_that_there_are) {
    for (size_t i = 0; algorithm_at(i); i++) check_names(algorithm_at(i)->name, algorithm_at(i)->keys);
    for (size_t i = 0; text_algorithm_at(i); i++) check_names(text_algorithm_at(i)->name, text_algorithm_at(i)->keys);
    for (size_t i = 0; preference_algorithm_at(i); i++) check_names(preference_algorithm_at(i)->name, preference_algorithm_at(i)->keys);
}

TEST(a_folder_without_a_policy_is_no_run) {
    Evaluation evaluation;
    check_status(learn_evaluate(test_folder, &(EvaluationConfig){.device = device_cpu(), .episodes = 1}, &evaluation), ST_INPUT);
    check_text("has no finished run on an environment");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_algorithm_resumes_to_the_same_bytes, test_folder_make, test_folder_remove),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(algorithms_read_keys_that_there_are),
        cmocka_unit_test_setup_teardown(a_folder_without_a_policy_is_no_run, test_folder_make, test_folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
