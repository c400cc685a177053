/* SPDX-License-Identifier: Apache-2.0 */
/* Environments that are programs. The program is this test itself, called with --play and how it behaves. */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "rl/learn/learn.h"
#include "rl/env/program.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the other side ---- */

enum { PLAY_COPIES = 8, PLAY_WIDE = 300 };

typedef struct Play {
    const char *how, *file;
    int copies, resets;
    int steps[PLAY_COPIES], places[PLAY_COPIES];
} Play;

static bool env_command_is(const Play *play, const char *how) { return strcmp(play->how, how) == 0; }

static bool discrete(const Play *play) {
    return env_command_is(play, "discrete") || env_command_is(play, "mortal") || env_command_is(play, "raves") || env_command_is(play, "storms") ||
           env_command_is(play, "drifts") || env_command_is(play, "adds");
}

/* The mortal one makes an empty file when it dies, and does not start where there is one. A file that says so is its cure. */
static bool is_cured(const Play *play) {
    Str text = {0};
    bool cured = file_exists(play->file) && file_read(play->file, 100, &text) == ST_OK && text.len > 0;
    str_release(&text);
    return cured;
}

/* Where it has got to; wide: that many numbers; adds: the sum of its actions, in a ring of four. */
static void say_observation(const Play *play, int copy) {
    if (discrete(play)) {
        printf("%d", env_command_is(play, "adds") ? play->places[copy] : play->steps[copy]);
        return;
    }
    printf("[%d, %d", play->steps[copy], copy);
    for (int i = 2; env_command_is(play, "wide") && i < PLAY_WIDE; i++) printf(", %d.5", i);
    printf("]");
}

static void say_spaces(const Play *play) {
    if (discrete(play)) {
        printf("{\"action\": {\"n\": 3}, \"observation\": {\"n\": 4}, \"max_episode_steps\": 3, \"id\": \"Steps-v0\"}\n");
        return;
    }
    printf("{\"action\": {\"low\": [-1, null], \"high\": [1, null]}, \"observation\": {\"low\": [0, 0");
    for (int i = 2; env_command_is(play, "wide") && i < PLAY_WIDE; i++) printf(", null");
    printf("], \"high\": [null, 7");
    for (int i = 2; env_command_is(play, "wide") && i < PLAY_WIDE; i++) printf(", null");
    printf("]}}\n");
}

static void say_reset(Play *play, const json_t *pairs) {
    size_t i;
    json_t *pair;
    if (env_command_is(play, "dies in reset") &&
        ++play->resets > (file_exists(play->file) ? 1 : 40)) { /* at first it lives for long, then for one episode */
        check_ok(file_write_all(play->file, "", 0));
        exit(3);
    }
    printf("{\"observations\": [");
    json_array_foreach(pairs, i, pair) {
        int copy = (int)json_integer_value(json_array_get(pair, 0));
        play->places[copy] = 0;
        play->steps[copy] = env_command_is(play, "drifts") && file_exists(play->file);
        printf("%s", i ? ", " : "");
        say_observation(play, copy);
    }
    printf("]}\n");
}

static void say_list(const Play *play, const char *name, const char *(*item)(const Play *, int copy)) {
    printf(", \"%s\": [", name);
    for (int c = 0; c < play->copies; c++) printf("%s%s", c ? ", " : "", item(play, c));
    printf("]");
}

static const char *ends(const Play *play, int copy) { return !discrete(play) && play->steps[copy] >= 4 + copy ? "true" : "false"; }
static const char *no(const Play *play, int copy) { return play && copy < 0 ? "" : "false"; }
static const char *reward(const Play *play, int copy) {
    static char texts[PLAY_COPIES][32];
    if (env_command_is(play, "storms")) return "1e308";
    snprintf(texts[copy], sizeof texts[copy], "%d.25%s", play->steps[copy], env_command_is(play, "raves") && play->steps[copy] == 3 ? "e307" : "");
    return texts[copy];
}

static void say_step(Play *play, const json_t *actions) {
    printf("{\"observations\": [");
    for (int c = 0; c < play->copies; c++) {
        bool rests = json_is_null(json_array_get(actions, (size_t)c));
        if (!rests) play->steps[c]++;
        if (env_command_is(play, "adds") && !rests)
            play->places[c] = (play->places[c] + (int)json_integer_value(json_array_get(actions, (size_t)c))) % 4;
        printf("%s", c ? ", " : "");
        if (rests)
            printf("null");
        else
            say_observation(play, c);
    }
    printf("]");
    say_list(play, "rewards", reward);
    say_list(play, "terminated", ends);
    say_list(play, "truncated", no);
    printf("}\n");
}

static int most_steps(const Play *play) {
    int most = 0;
    for (int c = 0; c < play->copies; c++) most = play->steps[c] > most ? play->steps[c] : most;
    return most;
}

/* Misbehaves at a step request as the test wants; false: it did nothing wrong. */
static bool misbehave(const Play *play) {
    bool late = most_steps(play) == 2;
    if (env_command_is(play, "dies") && late) exit(3);
    if (env_command_is(play, "killed") && late) raise(SIGKILL);
    if ((env_command_is(play, "dies once") || env_command_is(play, "mortal")) && late && !file_exists(play->file)) {
        check_ok(file_write_all(play->file, "", 0));
        exit(3);
    }
    if (env_command_is(play, "hangs") && late) sleep(100);
    const char *wrong =
        env_command_is(play, "chats")   ? "step done!"
        : env_command_is(play, "short") ? "{\"observations\": [[0, 1]], \"rewards\": [0], \"terminated\": [false], \"truncated\": [false]}"
        : env_command_is(play, "string")
            ? "{\"observations\": [[0, \"x\"], [0, 0]], \"rewards\": [0, 0], \"terminated\": [false, false], \"truncated\": [false, false]}"
        : env_command_is(play, "number")
            ? "{\"observations\": [[0, 0], [0, 0]], \"rewards\": [0, 0], \"terminated\": [0, 0], \"truncated\": [false, false]}"
        : env_command_is(play, "error") ? "{\"error\": \"the cart is gone\"}"
        : env_command_is(play, "beyond")
            ? "{\"observations\": [[0, 9], [0, 0]], \"rewards\": [0, 0], \"terminated\": [false, false], \"truncated\": [false, false]}"
            : NULL;
    if (wrong && late) printf("%s\n", wrong);
    return wrong && late;
}

static int env_command_play(const char *how, const char *file) {
    Play play = {.how = how, .file = file};
    char line[1 << 14];
    if (env_command_is(&play, "bad start")) {
        fprintf(stderr, "no module named gymnasium\n");
        return 1;
    }
    if (env_command_is(&play, "bad start later") && file_exists(file)) return 1;
    if (env_command_is(&play, "mortal") && file_exists(file) && !is_cured(&play)) return 1;
    while (fgets(line, sizeof line, stdin)) {
        json_t *request = json_loads(line, 0, NULL), *part;
        ASSERT(request, "no JSON: %s", line);
        if (env_command_is(&play, "loud")) fprintf(stderr, "%0100000d\n", 1);
        if ((part = json_object_get(request, "open"))) {
            play.copies = (int)json_integer_value(json_object_get(part, "copies"));
            if (env_command_is(&play, "spaceless"))
                printf("{}\n");
            else if (env_command_is(&play, "upside down"))
                printf("{\"action\": {\"n\": 2}, \"observation\": {\"low\": [0, 2], \"high\": [1, 1]}}\n");
            else
                say_spaces(&play);
        }
        if ((part = json_object_get(request, "reset"))) say_reset(&play, part);
        if ((part = json_object_get(request, "step")) && !misbehave(&play)) say_step(&play, part);
        if (part && env_command_is(&play, "says more")) printf("step done!\n");
        bool closes = json_object_get(request, "close");
        json_decref(request);
        fflush(stdout);
        if (closes) {
            if (env_command_is(&play, "says goodbye")) check_ok(file_write_all(file, "", 0));
            return 0;
        }
    }
    return 0;
}

/* ---- this side ---- */

static const char *self;
static char folder[256];
static int warnings;
static char last_warning[1024];

static void on_message(void *context, LogLevel level, const char *text) {
    (void)context;
    if (level != LOG_WARNING) return;
    warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", text);
}

static int env_command_before(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    warnings = 0;
    last_warning[0] = '\0';
    return 0;
}

static int env_command_after(void **state) {
    (void)state;
    temp_dir_remove(folder);
    return 0;
}

static Status open_player(const char *how, int64_t copies, double timeout, Env **env) {
    const char *words[] = {self, "--play", how, temp_file(folder, "mark")};
    return env_new_command(words, COUNT_OF(words), copies, timeout, env);
}

static Env *player(const char *how, int64_t copies) {
    Env *env;
    check_ok(open_player(how, copies, 20, &env));
    check_ok(env_reset(env, 1));
    return env;
}

static const double still[2 * PLAY_COPIES];

/* Copy c ends after 4 + c steps; sums, flags and last observations are those of each copy. */
TEST(episodes_go_on) {
    Env *env = player("plays", 2);
    assert_true(env->action.size == 2 && env->action.low[0] == -1 && env->action.high[1] == (double)INFINITY && env->observation.size == 2 &&
                env_is_remote(env));
    int ended[2] = {0};
    for (int t = 1; t <= 20; t++) {
        check_ok(env_step(env, still, true));
        for (int c = 0; c < 2; c++) {
            int64_t into = t % (4 + c);
            assert_int_equal(env->terminated[c], into == 0);
            assert_false(env->truncated[c]);
            check_close(env->rewards[c], (into ? (double)into : 4 + c) + 0.25, 0);
            check_close(env->observations[2 * c], (double)into, 0);
            check_close(env->observations[2 * c + 1], c, 0);
            assert_int_equal(env->lengths[c], into);
            if (into) continue;
            ended[c]++;
            check_close(env->final_observations[2 * c], 4 + c, 0);
            assert_int_equal(env->final_lengths[c], 4 + c);
        }
    }
    assert_true(ended[0] == 5 && ended[1] == 4 && warnings == 0);
    env_free(env);
}

TEST(ended_copies_rest) {
    Env *env = player("plays", 2);
    for (int t = 0; t < 8; t++) check_ok(env_step(env, still, false));
    assert_true(env->terminated[0] && env->terminated[1] && env->lengths[0] == 4 && env->lengths[1] == 5 && env->rewards[1] == 0 &&
                env->observations[0] == 4);
    check_ok(env_start(env, 1));
    check_ok(env_step(env, still, false));
    assert_true(env->lengths[0] == 4 && env->lengths[1] == 1 && !env->terminated[1]);
    env_free(env);
}

TEST(discrete_spaces_and_limits) {
    Env *env = player("discrete", 1);
    assert_true(env->action.n == 3 && env->observation.n == 4 && env->max_steps == 3 && strcmp(env->id, "Steps-v0") == 0);
    for (int t = 0; t < 2; t++) check_ok(env_step(env, still, true));
    assert_false(env->truncated[0]);
    check_ok(env_step(env, still, true));
    assert_true(env->truncated[0] && !env->terminated[0] && env->final_observations[0] == 3 && env->observations[0] == 0);
    check_status(env_step(env, (const double[]){3}, true), ST_INPUT);
    check_text("action 3 of copy 0 is not a whole number from 0 to 2");
    check_status(env_set_state(env, 0, still), ST_INPUT);
    env->max_steps = 0;
    for (int t = 0; t < 3; t++) check_ok(env_step(env, still, true));
    check_status(env_step(env, still, true), ST_INPUT);
    check_text("the observation of copy 0 is 4, expected a whole number from 0 to 3");
    env_free(env);
}

TEST(observations_may_be_wide_and_stderr_loud) {
    Env *env = player("wide", 3);
    check_ok(env_step(env, still, true));
    assert_int_equal(env->observation.size, PLAY_WIDE);
    check_close(env->observations[3 * PLAY_WIDE - 1], PLAY_WIDE - 1 + 0.5, 0);
    env_free(env);
    env = player("loud", 1);
    for (int t = 0; t < 5; t++) check_ok(env_step(env, still, true));
    env_free(env);
}

TEST(a_goodbye_is_said) {
    env_free(player("says goodbye", 1));
    assert_true(file_exists(temp_file(folder, "mark")));
}

/* All copies are cut off where they were, begin again, and one warning says why. */
TEST(a_crash_is_survived) {
    Env *env = player("dies once", 2);
    for (int t = 0; t < 3; t++) check_ok(env_step(env, still, true));
    assert_true(env->truncated[0] && env->truncated[1] && !env->terminated[0] && env->lengths[0] == 0 && env->final_observations[0] == 2 &&
                env->rewards[0] == 0);
    assert_int_equal(warnings, 1);
    check_contains(last_warning, "ended with exit code 3");
    check_contains(last_warning, "1 of 5");
    for (int t = 0; t < 4; t++) check_ok(env_step(env, still, true));
    assert_true(env->terminated[0] && !env->truncated[0] && warnings == 1);
    env_free(env);
}

TEST(too_many_crashes_are_an_error) {
    static const struct { const char *how, *text; } cases[] = {{"dies", "exit code 3"}, {"killed", "signal 9"}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Env *env = player(cases[c].how, 2);
        Status status = ST_OK;
        int steps = 0;
        double before = clock_seconds();
        for (warnings = 0; status == ST_OK && steps < 100; steps++) status = env_step(env, still, true);
        double paused = 0.1 + 0.2 + 0.4 + 0.8 + 1.6, seconds = clock_seconds() - before;
        if (seconds < paused) fail_msg("five restarts took %g s, expected pauses of %g s", seconds, paused);
        check_contains(last_warning, "restarting it in 1.6 s (5 of 5)");
        check_status(status, ST_RESOURCE);
        check_text("failed 6 times in a row");
        check_text(cases[c].text);
        assert_true(steps == 18 && warnings == 5);
        check_status(env_step(env, still, true), ST_RESOURCE); /* and stays one */
        env_free(env);
        check_text(cases[c].text);
    }
}

/* A calm time ends with the first failure, also where that is in a reset. */
TEST(crashes_in_resets_are_an_error) {
    Env *env = player("dies in reset", 1);
    Status status = ST_OK;
    int steps = 0;
    for (; status == ST_OK && steps < 1000; steps++) status = env_step(env, still, true);
    check_status(status, ST_RESOURCE);
    check_text("failed 6 times in a row");
    assert_true(steps > 150 && warnings == 5);
    env_free(env);
}

/* Never longer than the program has for an answer, and not beyond an interrupt. */
TEST(pauses_are_bounded) {
    static const double want[] = {0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5};
    for (int64_t i = 0; i < (int64_t)COUNT_OF(want); i++) check_close(restart_pause(i + 1, 30), want[i], 1e-12);
    check_close(restart_pause(INT64_MAX, 30), 5, 0);
    check_close(restart_pause(4, 0.25), 0.25, 0);
    double before = clock_seconds();
    interrupt_request();
    restart_wait(60);
    interrupt_clear();
    assert_true(clock_seconds() - before < 30);
}

TEST(a_hang_is_noticed) {
    Env *env;
    check_ok(open_player("hangs", 1, 1.5, &env));
    check_ok(env_reset(env, 1));
    for (int t = 0; t < 3; t++) check_ok(env_step(env, still, true));
    assert_true(env->truncated[0] && warnings == 1);
    check_contains(last_warning, "no answer within 1.5 s");
    env_free(env);
}

TEST(wrong_answers_are_shown) {
    static const struct {
        const char *how, *text;
    } cases[] = {
        {"chats", "no JSON object: 'step done!'"},
        {"short", "'observations' is not a list of 2"},
        {"string", "the observation of copy 0 is [0,\"x\"], expected 2 numbers"},
        {"number", "not true or false"},
        {"error", "reports: the cart is gone"},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Env *env = player(cases[c].how, 2);
        for (int t = 0; t < 2; t++) check_ok(env_step(env, still, true));
        check_status(env_step(env, still, true), ST_INPUT);
        check_text(cases[c].text);
        check_status(env_step(env, still, true), ST_INPUT);
        check_text(cases[c].text);
        env_free(env);
    }
    Env *env = player("says more", 2);
    check_ok(env_step(env, still, true));
    check_status(env_step(env, still, true), ST_INPUT);
    check_text("more than one line for a request: 'step done!'");
    env_free(env);
    env = player("beyond", 2);
    for (int t = 0; t < 3; t++) check_ok(env_step(env, still, true));
    assert_int_equal(warnings, 1);
    check_contains(last_warning, "number 1 of an observation of copy 0 is 9, said to be from 0 to 7");
    env_free(env);
}

TEST(what_does_not_start_is_said) {
    Env *env;
    const char *words[] = {"no-such-program-anywhere"};
    check_status(env_new_command(words, 1, 1, 1, &env), ST_INPUT);
    check_text("cannot start program 'no-such-program-anywhere'");
    check_status(open_player("bad start", 1, 10, &env), ST_RESOURCE);
    check_text("exit code 1");
    check_contains(status_hint_text(), "no module named gymnasium");
    check_status(open_player("spaceless", 1, 10, &env), ST_INPUT);
    check_text("'action' is neither");
    check_status(open_player("upside down", 1, 10, &env), ST_INPUT);
    check_text("a lower bound is above the upper one");
    check_status(open_player("plays", 0, 10, &env), ST_CONFIG);
    check_status(open_player("plays", 1, 0, &env), ST_CONFIG);
    check_status(env_new_command(words, 0, 1, 1, &env), ST_CONFIG);
    assert_null(env);
}

/* ---- recipes ---- */

static Status from_text(const char *text, Env **env) {
    Arena *arena = arena_new(0);
    Yaml *node;
    check_ok(yaml_read_text(text, strlen(text), "test", arena, &node));
    Status status = env_from_recipe(node, 2, env);
    arena_free(arena);
    return status;
}

TEST(recipes_name_environments) {
    static const struct {
        const char *text;
        int64_t n, max_steps, states;
    } cases[] = {
        {"CartPole-v1", 0, 500, 0},
        {"FrozenLake-v1:map_name=8x8,is_slippery=false", 64, 100, 64},
        {"{id: FrozenLake-v1, map_name: 8x8, is_slippery: false}", 64, 100, 64},
        {"{id: FrozenLake-v1, desc: [SFF, FHG], max_episode_steps: 9}", 6, 9, 6},
        {"{id: 'FrozenLake-v1:map_name=8x8', reward_schedule: [1, -1, -0.1]}", 64, 100, 64},
        {"Blackjack-v1", 0, 0, 291},
        {"{id: Pendulum-v1, g: 9.81}", 0, 200, 0},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Env *env;
        check_ok(from_text(cases[c].text, &env));
        assert_true(env->observation.n == cases[c].n && env->max_steps == cases[c].max_steps && env->copies == 2);
        assert_int_equal(env->world ? env->world->mdp.n_states : 0, cases[c].states);
        check_ok(env_number_states(&env));
        if (cases[c].states) assert_int_equal(env->observation.n, cases[c].states);
        check_ok(env_reset(env, 1));
        env_free(env);
    }
    Str text = {0};
    Env *env;
    str_printf(&text, "{command: ['%s', --play, discrete], timeout: 5, max_episode_steps: 2}", self);
    check_ok(from_text(str_text(&text), &env));
    assert_true(!env->world && env->action.n == 3 && env->max_steps == 2);
    env_free(env);
    str_release(&text);
}

TEST(recipes_mistakes_are_named) {
    static const struct {
        const char *yaml, *text, *hint;
    } cases[] = {
        {"{id: FrozenLak-v1}", "unknown environment 'FrozenLak-v1'", "FrozenLake-v1"},
        {"{id: FrozenLake-v1, map: 8x8}", "unknown argument 'map'", "map_name"},
        {"{map_name: 8x8}", "line 1: 'rl.env' is not an environment", "{id:"},
        {"[CartPole-v1]", "is not an environment", ""},
        {"{id: FrozenLake-v1, desc: {a: b}}", "line 1: argument 'desc' of 'FrozenLake-v1' is a map of keys", "desc: [SFF"},
        {"{id: FrozenLake-v1, desc: [[S, F], [F, G]]}", "argument 'desc' of 'FrozenLake-v1' is a list of lists", "desc: [SFF"},
        {"{command: python3}", "not a list of words", "gym_bridge.py"},
        {"{command: []}", "not a list of words", ""},
        {"{command: [x], timeout: soon}", "not a number of seconds", ""},
        {"{command: [x], timout: 3}", "unknown key 'timout'", "'timeout'"},
        {"{command: [x], max_episode_steps: -1}", "not a whole number", ""},
    };
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Env *env;
        check_status(from_text(cases[c].yaml, &env), ST_CONFIG);
        check_text(cases[c].text);
        check_contains(status_hint_text(), cases[c].hint);
        assert_null(env);
    }
}

/* ---- runs that are resumed ---- */

/* A run of an algorithm on the program that behaves like `how`; `settings` are more of the recipe, between blanks. */
static Recipe *run_on(const char *how, const char *name, const char *settings, int64_t total_steps) {
    char texts[4][700], copy[300];
    const char *all[20];
    size_t n = 0;
    Recipe *recipe;
    snprintf(texts[n], sizeof texts[n], "rl.env={command: ['%s', --play, '%s', '%s']}", self, how, temp_file(folder, "mark")), n++;
    snprintf(texts[n], sizeof texts[n], "output=%s", temp_file(folder, name)), n++;
    snprintf(texts[n], sizeof texts[n], "rl.total_steps=%lld", (long long)total_steps), n++;
    for (size_t i = 0; i < n; i++) all[i] = texts[i];
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) all[n++] = word;
    check_ok(recipe_read(NULL, all, n, &recipe));
    return recipe;
}

static void interrupt_after_six_steps(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 6) interrupt_request();
}

static void interrupt_after_four_steps(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 4) interrupt_request();
}

static void check_same_run(const char *what, const char *a, const char *b, const char *file) {
    Str got = {0}, want = {0};
    check_ok(file_read(temp_file(temp_file(folder, a), file), 1 << 24, &got));
    check_ok(file_read(temp_file(temp_file(folder, b), file), 1 << 24, &want));
    if (got.len != want.len || memcmp(got.data, want.data, got.len) != 0) fail_msg("%s: '%s' of '%s' is not that of '%s'", what, file, a, b);
    str_release(&got);
    str_release(&want);
}

static void check_summaries_agree(const char *what, const char *a, const char *b) {
    json_t *runs[2];
    check_ok(json_read_file(temp_file(temp_file(folder, a), "finished.json"), &runs[0]));
    check_ok(json_read_file(temp_file(temp_file(folder, b), "finished.json"), &runs[1]));
    static const char *const facts[] = {"steps", "env_steps", "episodes", "last_reward", "best_reward"};
    for (size_t i = 0; i < COUNT_OF(facts); i++)
        if (!json_equal(json_object_get(runs[0], facts[i]), json_object_get(runs[1], facts[i]))) fail_msg("%s: '%s' differs", what, facts[i]);
    json_decref(runs[0]);
    json_decref(runs[1]);
}

/* Interrupted in the middle of episodes: the program that is started then is brought to where the old one was. */
TEST(a_resumed_run_is_the_undisturbed_one) {
    static const struct {
        const char *how, *settings;
    } runs[] = {
        {"adds", "rl.algorithm=td rl.num_envs=1 rl.num_steps=1 rl.lambda=1 rl.alpha=0.5"},
        {"adds", "rl.algorithm=sarsa rl.lambda=0.5 rl.num_envs=2 rl.num_steps=1"},
        {"adds", "rl.algorithm=sarsa rl.n_step=2 rl.num_envs=1 rl.num_steps=1"},
        {"adds", "rl.algorithm=mc rl.num_envs=2 rl.num_steps=2"},
        {"adds", "rl.algorithm=off_policy_mc rl.num_envs=4 rl.num_steps=1"},
        {"adds", "rl.algorithm=dqn rl.n_step=3 rl.num_envs=2 rl.num_steps=1 rl.learning_starts=0 train.batch_size=2 rl.train_every=1"},
        {"adds", "rl.algorithm=reinforce rl.num_envs=2 rl.num_steps=5"},
        {"box", "rl.algorithm=ppo rl.normalize_rewards=true rl.num_envs=4 rl.num_steps=1 rl.num_minibatches=1"},
    };
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        char whole[16], parts[16];
        TrainResult result;
        snprintf(whole, sizeof whole, "whole%zu", i);
        snprintf(parts, sizeof parts, "parts%zu", i);
        Recipe *a = run_on(runs[i].how, whole, runs[i].settings, 40), *b = run_on(runs[i].how, parts, runs[i].settings, 40);
        bool stopped = strstr(runs[i].settings, "reinforce") == NULL; /* whose updates are of six steps */
        check_ok(learn_run(&(TrainingConfig){.recipe = a, .runtime = runtime_of(a)}, NULL, &result));
        check_status(learn_run(&(TrainingConfig){.recipe = b,
                                                 .runtime = runtime_of(b),
                                                 .on_progress = stopped ? interrupt_after_four_steps : interrupt_after_six_steps},
                               NULL, &result),
                     ST_INTERRUPTED);
        interrupt_clear();
        check_ok(learn_run(&(TrainingConfig){.recipe = b, .runtime = runtime_of(b), .options.resume = true}, NULL, &result));
        check_same_run(runs[i].settings, whole, parts, "policy.safetensors");
        check_summaries_agree(runs[i].settings, whole, parts);
        recipe_free(a);
        recipe_free(b);
    }
    assert_int_equal(warnings, 0);
}

/* Its episodes begin elsewhere than they did: they count as cut off in the next step, and that is said. */
TEST(what_does_not_come_out_the_same_is_cut_off) {
    static const char settings[] = "rl.algorithm=q_learning rl.num_envs=2 rl.num_steps=1";
    TrainResult result;
    Recipe *recipe = run_on("drifts", "drifts", settings, 8);
    remove(temp_file(folder, "mark"));
    check_status(
        learn_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .on_progress = interrupt_after_four_steps}, NULL, &result),
        ST_INTERRUPTED);
    interrupt_clear();
    check_ok(file_write_all(temp_file(folder, "mark"), "", 0));
    check_ok(learn_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = true}, NULL, &result));
    assert_int_equal(warnings, 1);
    assert_int_equal(metric_get(&result.numbers, "episodes"), 2); /* of the two copies; the new ones are one step old */
    assert_int_equal(metric_get(&result.numbers, "env_steps"), 8);
    remove(temp_file(folder, "mark"));
    recipe_free(recipe);
}

/* A program that dies for good during update 3 costs only this update: the run saves and resumes the same state as after an interrupt at the end
 * of update 2. */
TEST(an_environment_that_stays_dead_loses_nothing) {
    static const char *const runs[] = {
        "rl.algorithm=q_learning rl.num_envs=2 rl.num_steps=1",
        "rl.algorithm=dqn rl.num_envs=2 rl.num_steps=1 rl.learning_starts=0 train.batch_size=2 rl.train_every=1",
        "rl.algorithm=ppo rl.num_envs=2 rl.num_steps=1 rl.num_minibatches=1 rl.normalize_observations=false",
    };
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        char dead[16], stopped[20];
        TrainResult result;
        snprintf(dead, sizeof dead, "dead%zu", i);
        snprintf(stopped, sizeof stopped, "stopped%zu", i);
        Recipe *a = run_on("mortal", dead, runs[i], 12), *b = run_on("mortal", stopped, runs[i], 12);
        remove(temp_file(folder, "mark"));
        check_status(learn_run(&(TrainingConfig){.recipe = a, .runtime = runtime_of(a)}, NULL, &result), ST_RESOURCE);
        check_contains(status_text(), "failed 6 times in a row");
        check_contains(status_hint_text(), "a checkpoint of step 2 is saved in");
        check_contains(status_hint_text(), "--resume");
        check_status(learn_run(&(TrainingConfig){.recipe = a, .runtime = runtime_of(a), .options.resume = true}, NULL, &result),
                     ST_RESOURCE); /* still dead */
        check_ok(file_write_all(temp_file(folder, "mark"), "cured", 5));
        check_status(learn_run(&(TrainingConfig){.recipe = b, .runtime = runtime_of(b), .on_progress = interrupt_after_four_steps}, NULL, &result),
                     ST_INTERRUPTED);
        interrupt_clear();
        check_same_run(runs[i], dead, stopped, "checkpoints/step-2/tensors.safetensors");
        check_ok(learn_run(&(TrainingConfig){.recipe = a, .runtime = runtime_of(a), .options.resume = true}, NULL, &result));
        check_ok(learn_run(&(TrainingConfig){.recipe = b, .runtime = runtime_of(b), .options.resume = true}, NULL, &result));
        check_same_run(runs[i], dead, stopped, "policy.safetensors");
        check_summaries_agree(runs[i], dead, stopped);
        recipe_free(a);
        recipe_free(b);
    }
}

/* Long enough for the next request to be on its way. */
static void interrupt_soon_after_four_steps(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 4) interrupt_after(1000);
}

/* An interrupt while the program is at its third step: the program is neither waited for nor restarted, and the saved state is that of an
 * interrupt at the end of update 2. */
TEST(an_interrupt_does_not_wait_for_an_answer) {
    static const char settings[] = "rl.algorithm=ppo rl.num_envs=2 rl.num_steps=1 rl.num_minibatches=1 rl.normalize_observations=true";
    Env *env = player("hangs", 2);
    Status status = ST_OK;
    double before = clock_seconds();
    interrupt_after(500);
    while (status == ST_OK) status = env_step(env, still, true);
    check_status(status, ST_INTERRUPTED);
    env_free(env);
    assert_true(clock_seconds() - before < 15 && warnings == 0);
    interrupt_clear();
    TrainResult result;
    Recipe *a = run_on("hangs", "asked", settings, 12), *b = run_on("box", "between", settings, 12);
    check_status(learn_run(&(TrainingConfig){.recipe = a, .runtime = runtime_of(a), .on_progress = interrupt_soon_after_four_steps}, NULL, &result),
                 ST_INTERRUPTED);
    interrupt_clear();
    check_contains(status_hint_text(), "a checkpoint of step 2 is saved in");
    check_status(learn_run(&(TrainingConfig){.recipe = b, .runtime = runtime_of(b), .on_progress = interrupt_after_four_steps}, NULL, &result),
                 ST_INTERRUPTED);
    interrupt_clear();
    check_same_run("ppo", "asked", "between", "checkpoints/step-2/tensors.safetensors");
    assert_int_equal(warnings, 0);
    recipe_free(a);
    recipe_free(b);
}

/* In the first update there is nothing yet that could be saved. */
TEST(a_failure_in_the_first_update_is_said) {
    static const struct {
        const char *how;
        Status status;
        const char *text;
    } cases[] = {{"chats", ST_INPUT, "answers wrongly"}, {"dies", ST_RESOURCE, "failed 6 times in a row"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TrainResult result;
        Recipe *recipe = run_on(cases[i].how, cases[i].how, "rl.algorithm=a2c rl.num_envs=2 rl.num_steps=50", 1000);
        check_status(learn_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, NULL, &result), cases[i].status);
        check_text(cases[i].text);
        check_contains(status_hint_text(), "nothing was saved before this");
        recipe_free(recipe);
    }
}

/* Infinite rewards in update 3: earlier checkpoints stay, and nothing is saved after them. */
TEST(numbers_that_went_wrong_are_not_saved) {
    TrainResult result;
    Recipe *recipe = run_on("raves", "raves", "rl.algorithm=q_learning rl.num_envs=1 rl.num_steps=1 train.save_every=2", 20);
    check_status(learn_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, NULL, &result), ST_NUMERIC);
    assert_true(file_exists(temp_file(temp_file(folder, "raves"), "checkpoints/step-2/manifest.json")));
    assert_false(file_exists(temp_file(temp_file(folder, "raves"), "checkpoints/step-3/manifest.json")));
    recipe_free(recipe);
}

/* Values that become infinite and then NaN within one update: tables choose among them until it ends. */
TEST(diverging_tables_end_the_run) {
    static const char *const algorithms[] = {"q_learning", "sarsa", "expected_sarsa", "double_q"};
    for (size_t i = 0; i < COUNT_OF(algorithms); i++) {
        TrainResult result;
        char settings[200];
        snprintf(settings, sizeof settings, "rl.algorithm=%s rl.num_envs=2 rl.num_steps=200 rl.alpha=1 rl.epsilon_start=0.5", algorithms[i]);
        Recipe *recipe = run_on("storms", algorithms[i], settings, 1000);
        check_status(learn_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, NULL, &result), ST_NUMERIC);
        recipe_free(recipe);
    }
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--play") == 0) return env_command_play(argv[2], argc > 3 ? argv[3] : "");
    self = argv[0];
    signal(SIGPIPE, SIG_IGN);
    log_set_sink(on_message, NULL, LOG_WARNING);
#define ENTRY(name) cmocka_unit_test_setup_teardown(name, env_command_before, env_command_after)
    const struct CMUnitTest tests[] = {
        ENTRY(episodes_go_on),
        ENTRY(ended_copies_rest),
        ENTRY(discrete_spaces_and_limits),
        ENTRY(observations_may_be_wide_and_stderr_loud),
        ENTRY(a_goodbye_is_said),
        ENTRY(a_crash_is_survived),
        ENTRY(too_many_crashes_are_an_error),
        ENTRY(crashes_in_resets_are_an_error),
        ENTRY(pauses_are_bounded),
        ENTRY(a_hang_is_noticed),
        ENTRY(wrong_answers_are_shown),
        ENTRY(what_does_not_start_is_said),
        ENTRY(recipes_name_environments),
        ENTRY(recipes_mistakes_are_named),
        ENTRY(a_resumed_run_is_the_undisturbed_one),
        ENTRY(what_does_not_come_out_the_same_is_cut_off),
        ENTRY(an_environment_that_stays_dead_loses_nothing),
        ENTRY(an_interrupt_does_not_wait_for_an_answer),
        ENTRY(a_failure_in_the_first_update_is_said),
        ENTRY(numbers_that_went_wrong_are_not_saved),
        ENTRY(diverging_tables_end_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
