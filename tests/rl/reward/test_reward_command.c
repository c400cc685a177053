/* SPDX-License-Identifier: Apache-2.0 */
/* Rewards that are programs. The program is this test itself, called with --answer and how it behaves. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/answers.h"
#include "lib/child/child.h"
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "rl/reward/reward.h"
#include "tests/support/check.h"

/* ---- the other side ---- */

/* Appends a line to the file, and says how many there are now. */
static int count_in(const char *path) {
    FILE *file = fopen(path, "a+");
    if (!file) return -1;
    fputs("x\n", file);
    rewind(file);
    int lines = 0;
    for (int c; (c = getc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

static bool reward_command_is(const char *how, const char *name) { return strcmp(how, name) == 0; }

static int reward_command_answer(const char *how, const char *file) {
    char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        json_t *row = json_loads(line, 0, NULL);
        const char *text = json_string_value(json_object_get(row, "completion"));
        if (!row || !text || strcmp(json_string_value(json_object_get(row, "finish_reason")), "stop") != 0) return 9;
        size_t ids = json_array_size(json_object_get(row, "completion_ids")), bonus = (size_t)json_integer_value(json_object_get(row, "bonus"));
        bool marked = strchr(text, '!') != NULL;
        fprintf(stderr, "working on %s\n", text);
        if (reward_command_is(how, "count")) count_in(file);
        if (reward_command_is(how, "slow") && text[0] % 2) usleep(20000);
        if ((reward_command_is(how, "die") && marked) || (reward_command_is(how, "die_once") && marked && count_in(file) == 1))
            _exit(3); /* at once: no leak check in between */
        if (reward_command_is(how, "signal") && marked) raise(SIGKILL);
        if (reward_command_is(how, "hang") && marked) sleep(60);
        if (reward_command_is(how, "object"))
            printf("{\"reward\": %zu, \"style\": %s, \"words\": \"ignored\"}\n", strlen(text), marked ? "null" : "0.5");
        else if (!marked || strncmp(how, "say:", 4) != 0)
            printf("%zu\n", strlen(text) + ids + bonus);
        else
            printf("%s\n", how + 4);
        if (reward_command_is(how, "twice")) printf("1\n");
        fflush(stdout);
        json_decref(row);
    }
    return 0;
}

/* ---- this side ---- */

static const char *self;
enum { ROWS = 40 };
typedef struct Scored {
    Arena *arena;
    RewardSet *set;
    json_t *columns;
    RewardRow rows[ROWS];
    char texts[ROWS][8];
    const RewardScores *scores;
} Scored;

static Status open_with(const char *yaml, Scored *batch) {
    static const int32_t ids[] = {1, 2, 3};
    Yaml *list;
    *batch = (Scored){.arena = arena_new(0), .columns = json_pack("{s:i, s:s, s:[f]}", "bonus", 100, "prompt", "not this one", "more", 0.1)};
    for (int i = 0; i < ROWS; i++) {
        snprintf(batch->texts[i], sizeof batch->texts[i], "%.*s", 1 + i % 7, "abcdefg");
        batch->texts[i][0] = (char)('A' + i % 20);
        batch->rows[i] = (RewardRow){.number = i,
                                     .prompt = {"p", 1},
                                     .completion = {batch->texts[i], strlen(batch->texts[i])},
                                     .prompt_ids = ids,
                                     .n_prompt_ids = 1,
                                     .completion_ids = ids,
                                     .n_completion_ids = 3,
                                     .finish_reason = "stop",
                                     .columns = batch->columns};
    }
    check_ok(yaml_read_text(yaml, strlen(yaml), "recipe.yaml", batch->arena, &list));
    return rewards_open(list, "recipe.yaml", &(RewardOptions){0}, &batch->set);
}

static Status open_how(const char *how, const char *file, const char *more, Scored *batch) {
    char yaml[4096];
    snprintf(yaml, sizeof yaml, "{type: command, command: ['%s', --answer, '%s', '%s']%s%s}", self, how, file, more[0] ? ", " : "", more);
    return open_with(yaml, batch);
}

static void close_batch(Scored *batch) {
    rewards_close(batch->set);
    json_decref(batch->columns);
    arena_free(batch->arena);
}

static void mark(Scored *batch, int row) { batch->texts[row][0] = '!'; }

static void check_lengths(const Scored *batch, double more, const char *what) {
    double wanted[ROWS];
    for (int i = 0; i < ROWS; i++) wanted[i] = (double)strlen(batch->texts[i]) + more;
    check_close_f64(what, batch->scores->sums, wanted, ROWS, 0, 0);
}

TEST(workers_answer_in_order) {
    static const char *const how_many[] = {"", "workers: 2", "workers: 7, cache: false", "workers: 64"};
    for (size_t i = 0; i < COUNT_OF(how_many); i++) {
        Scored batch;
        check_ok(open_how("slow", "", how_many[i], &batch));
        for (int again = 0; again < 2; again++) {
            check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
            check_lengths(&batch, 103, how_many[i]);
        }
        check_ok(rewards_score(batch.set, batch.rows, 0, &batch.scores));
        close_batch(&batch);
    }
}

TEST(an_object_gives_columns) {
    Scored batch;
    check_ok(open_how("object", "", "name: judge, weight: 2", &batch));
    mark(&batch, 4);
    for (int again = 0; again < 2; again++) { /* from the program, then from what is known */
        check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
        assert_int_equal(batch.scores->n_columns, 2);
        assert_string_equal(batch.scores->columns[1].name, "judge/style");
        for (int i = 0; i < ROWS; i++) {
            check_close(batch.scores->sums[i], 2 * (double)strlen(batch.texts[i]), 0);
            assert_true(i == 4 ? isnan(batch.scores->columns[1].values[i]) : batch.scores->columns[1].values[i] == 0.5);
        }
    }
    close_batch(&batch);
}

/* What is known of earlier rows is forgotten, what the rows of one step say has to fit. */
TEST(answers_have_one_bound_together) {
    Scored batch;
    check_ok(open_how("object", "", "workers: 3", &batch));
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    answers_set_most(1000);
    for (int i = 0; i < ROWS; i++) batch.texts[i][0] = '?';
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores)); /* 7 different rows */
    answers_set_most(100);
    for (int i = 0; i < ROWS; i++) batch.texts[i][0] = (char)('A' + i % 20);
    check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), ST_RESOURCE);
    check_text("gives answers of more than 100 B together");
    close_batch(&batch);
    answers_set_most(0);
}

/* The same of what programs are still saying. */
TEST(unfinished_answers_have_one_bound_together) {
    static const char *const argv[] = {"/bin/sh", "-c", "while :; do echo aaaaaaaaaaaaaaaa | tr -d '\\n'; done"};
    Child *children[3] = {0};
    Str reply = {0};
    size_t which;
    answers_set_most(200);
    for (size_t i = 0; i < 3; i++) {
        check_ok(child_start(argv, 3, NULL, &children[i]));
        child_begin(children[i], "", 0, 1, 30);
    }
    check_status(children_next(children, 3, &which, &reply), ST_RESOURCE);
    check_text("program '/bin/sh' gives answers of more than 200 B together");
    assert_true(which < 3);
    for (size_t i = 0; i < 3; i++) child_stop(children[i], NULL, 0);
    answers_set_most(0);
}

TEST(the_same_row_is_asked_once) {
    char dir[256];
    temp_dir_make(dir, sizeof dir);
    for (int cached = 0; cached < 2; cached++) {
        Scored batch;
        const char *file = temp_file(dir, cached ? "cached" : "plain");
        check_ok(open_how("count", file, cached ? "workers: 3" : "cache: false", &batch));
        for (int i = 0; i < ROWS; i++) strcpy(batch.texts[i], i % 2 ? "b" : "a");
        for (int i = 0; i < ROWS; i++) batch.rows[i].completion.len = 1;
        for (int again = 0; again < 3; again++) check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
        check_lengths(&batch, 103, "cached");
        assert_int_equal(count_in(file) - 1, cached ? 2 : 3 * ROWS);
        close_batch(&batch);
    }
    temp_dir_remove(dir);
}

static char warned[4096]; /* all warnings of the case */
static void on_message(void *context, LogLevel level, const char *text) {
    (void)context;
    (void)level;
    size_t len = strlen(warned);
    snprintf(warned + len, sizeof warned - len, "%s\n", text);
}

TEST(a_program_that_ends_is_started_again) {
    char dir[256];
    temp_dir_make(dir, sizeof dir);
    Scored batch;
    warned[0] = 0;
    log_set_sink(on_message, NULL, LOG_WARNING);
    check_ok(open_how("die_once", temp_file(dir, "lives"), "workers: 3", &batch));
    mark(&batch, 9);
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    check_lengths(&batch, 103, "after a restart");
    close_batch(&batch);
    log_set_sink(NULL, NULL, LOG_WARNING);
    check_contains(warned, "reward 'command', row 9: program '");
    check_contains(warned, "ended with exit code 3; restarting it (restart 1) and sending the row once more; its last message: working on !bc\n");
    assert_null(strstr(warned, "in all"));
    temp_dir_remove(dir);
}

/* Each of nine marked rows ends the program twice: nine restarts. The 1st, 2nd, 4th and 8th are reported, and their number at the end. */
TEST(restarts_are_counted) {
    Scored batch;
    warned[0] = 0;
    log_set_sink(on_message, NULL, LOG_WARNING);
    check_ok(open_how("die", "", "failed: 0, cache: false", &batch));
    for (int i = 0; i < 9; i++) mark(&batch, i);
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    close_batch(&batch);
    log_set_sink(NULL, NULL, LOG_WARNING);
    check_contains(warned, "(restart 4)");
    check_contains(warned, "(restart 8)");
    check_contains(warned, "reward 'command': its program exited by itself and was restarted 9 times in all");
    assert_null(strstr(warned, "(restart 3)"));
    assert_null(strstr(warned, "(restart 9)"));
}

/* As where some rewards are for some rows alone. */
TEST(null_does_not_judge_a_row) {
    static const char *const answers[] = {"say:null", "say:{\"reward\": null, \"tests\": 3}"};
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        Scored batch;
        char yaml[4096];
        snprintf(yaml, sizeof yaml,
                 "[{type: command, command: ['%s', --answer, '%s'], weight: 2, clip: [5, 200]}, {type: cosine, right_by: command, max_length: 9}, "
                 "{type: number, field: bonus}]",
                 self, answers[i]);
        check_ok(open_with(yaml, &batch));
        mark(&batch, 5);
        check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
        const RewardColumn *columns = batch.scores->columns;
        assert_true(isnan(columns[0].values[5]) && isnan(columns[1].values[5]) && isfinite(columns[1].values[4]));
        check_close(columns[0].values[4], 108, 0);
        check_close(batch.scores->sums[5], 0, 0); /* the third reward alone */
        assert_true(batch.scores->judged[5]);
        close_batch(&batch);
        check_ok(open_how(answers[i], "", "", &batch));
        mark(&batch, 5);
        check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
        check_close(batch.scores->sums[5], 0, 0);
        assert_true(batch.scores->judged[4] && !batch.scores->judged[5]);
        close_batch(&batch);
    }
}

TEST(what_goes_wrong_is_said_with_the_row) {
    static const struct {
        const char *how, *text;
        Status status;
    } cases[] = {
        {"die", "ended with exit code 3", ST_RESOURCE},
        {"signal", "was ended by signal 9", ST_RESOURCE},
        {"hang", "gave no answer within 3 s", ST_RESOURCE},
        {"say:well done", "no JSON: 'well done'", ST_INPUT},
        {"say:NaN", "no JSON: 'NaN'", ST_INPUT},
        {"say:{\"score\": 1}", "'reward' is missing: '{\"score\": 1}'", ST_INPUT},
        {"say:1e999", "no JSON: '1e999'", ST_INPUT},
        {"say:{\"reward\": \"1\"}", "the reward is not a number", ST_INPUT},
        {"say:{\"error\": \"no tests\"}", "it reports an error: '{\"error\": \"no tests\"}'", ST_INPUT},
        {"say:", "no JSON: ''", ST_INPUT},
        {"say:true", "the reward is not a number", ST_INPUT},
        {"say:[1]", "the reward is not a number", ST_INPUT},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Scored batch;
        print_message("%s\n", cases[i].how);
        check_ok(open_how(cases[i].how, "", reward_command_is(cases[i].how, "hang") ? "timeout: 3, workers: 2" : "timeout: 60, workers: 2", &batch));
        mark(&batch, 5);
        check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), cases[i].status);
        check_text("reward 'command', row 5: program");
        check_text(cases[i].text);
        check_contains(status_hint_text(), "its last message: working on");
        assert_null(batch.scores);
        batch.texts[5][0] = 'x'; /* the set is of use again */
        check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
        check_lengths(&batch, 103, cases[i].how);
        close_batch(&batch);
    }
    Scored batch;
    check_ok(open_how("twice", "", "", &batch));
    check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), ST_INPUT);
    check_text("more than one line a row");
    close_batch(&batch);
}

TEST(failed_rows_may_have_a_reward) {
    static const char *const hows[] = {"die", "hang"};
    for (size_t i = 0; i < COUNT_OF(hows); i++) {
        Scored batch;
        check_ok(open_how(hows[i], "", "timeout: 3, workers: 2, failed: -1", &batch));
        mark(&batch, 0);
        mark(&batch, ROWS - 1);
        check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
        for (int k = 0; k < ROWS; k++) check_close(batch.scores->sums[k], k == 0 || k == ROWS - 1 ? -1 : (double)strlen(batch.texts[k]) + 103, 0);
        close_batch(&batch);
    }
}

/* Which is no failure of a row, and not asked once more. */
TEST(an_interrupt_does_not_wait_for_an_answer) {
    Scored batch;
    check_ok(open_how("hang", "", "timeout: 50, workers: 2, failed: -1", &batch));
    mark(&batch, 5);
    double before = clock_seconds();
    interrupt_after(500);
    check_status(rewards_score(batch.set, batch.rows, ROWS, &batch.scores), ST_INTERRUPTED);
    assert_true(clock_seconds() - before < 30);
    interrupt_clear();
    batch.texts[5][0] = 'x'; /* the set is of use again */
    check_ok(rewards_score(batch.set, batch.rows, ROWS, &batch.scores));
    check_lengths(&batch, 103, "after an interrupt");
    close_batch(&batch);
}

TEST(recipes_that_make_no_sense_are_refused) {
    static const struct {
        const char *yaml, *text;
        Status status;
    } cases[] = {
        {"{type: command}", "option 'command' is missing", ST_CONFIG},
        {"{type: command, command: prog}", "not a list of words", ST_CONFIG},
        {"{type: command, command: []}", "not a list of words", ST_CONFIG},
        {"{type: command, command: [no-such-program-here]}", "cannot start program 'no-such-program-here'", ST_INPUT},
        {"{type: command, command: [cat], workers: 65}", "'workers'", ST_CONFIG},
        {"{type: command, command: [cat], memory: 100}", "'memory' needs 'sandbox: true'", ST_CONFIG},
        {"{type: command, command: [cat], read: [/usr]}", "'read' needs 'sandbox: true'", ST_CONFIG},
        {"{type: command, command: [cat], sandbox: false, cpu: 1}", "'cpu' needs 'sandbox: true'", ST_CONFIG},
        {"{type: command, command: [cat], sandbox: maybe}", "expected true, false or best_effort", ST_CONFIG},
        {"{type: command, command: [cat], sandbox: best_effort, read: [/no/such/folder]}", "cannot show '/no/such/folder'", ST_INPUT},
        {"{type: command, command: [cat], timeout: 0}", "'timeout'", ST_CONFIG},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Scored batch;
        check_status(open_with(cases[i].yaml, &batch), cases[i].status);
        check_text(cases[i].text);
        close_batch(&batch);
    }
}

/* The shell prints its limits: address space in KiB, seconds, and its network routes; there must be none. */
TEST(a_sandbox_has_limits_and_no_network) {
    Scored batch;
    Status status = open_with(
        "{type: command, command: [sh, -c, 'while read -r row; do echo \"{\\\"reward\\\": $(ulimit -v), \\\"cpu\\\": $(ulimit -t), \\\"routes\\\": $(grep -vc Iface /proc/net/route)}\"; done'], sandbox: true, "
        "memory: 512, cpu: 77}",
        &batch);
    if (status == ST_RESOURCE && strstr(status_text(), "this system refuses")) {
        print_message("skipped: %s\n", status_text());
        assert_non_null(strstr(status_hint_text(), "`sandbox: best_effort`"));
        close_batch(&batch);
        skip();
    }
    check_ok(status);
    check_ok(rewards_score(batch.set, batch.rows, 1, &batch.scores));
    check_close(batch.scores->sums[0], 512 * 1024, 0);
    assert_string_equal(batch.scores->columns[1].name, "command/cpu");
    check_close(batch.scores->columns[1].values[0], 77, 0);
    check_close(batch.scores->columns[2].values[0], 0, 0);
    close_batch(&batch);
    check_ok(open_with("{type: command, command: [sh, -c, 'while read -r row; do echo 5; done'], sandbox: best_effort}", &batch));
    check_ok(rewards_score(batch.set, batch.rows, 1, &batch.scores));
    check_close(batch.scores->sums[0], 5, 0);
    close_batch(&batch);
    check_status(open_with("{type: command, command: [no-such-program-here], sandbox: true}", &batch), ST_INPUT);
    check_text("cannot start program 'no-such-program-here'");
    close_batch(&batch);
}

/* ---- the shipped example ---- */

static const char *const attempts[] = {NULL,
                                       "    return None\n",
                                       "    import sys\n    sys.exit(0)\n",
                                       "    import os\n    os._exit(0)\n",
                                       "    while True:\n        pass\n",
                                       "this is no Python",
                                       "    return bytearray(1 << 36)\n"};

TEST(python_tests_judge_code) {
    char path[512];
    if (!shared_path("data/rows/humaneval/HumanEval.jsonl.gz", path, sizeof path) || system("python3 -c 'import resource' >/dev/null 2>&1") != 0)
        skip();
    Scored batch;
    check_ok(open_with("{type: command, command: [python3, recipes/reward_python_tests.py, --seconds, '5'], workers: 2, timeout: 60}", &batch));
    Lines lines;
    Slice line;
    RewardRow rows[COUNT_OF(attempts)];
    check_ok(lines_open(&lines, path));
    for (int problem = 0; lines_next(&lines, &line); problem++) {
        size_t n = problem == 0 ? COUNT_OF(attempts) : 1;
        json_t *columns;
        if (problem % 16 != 0) continue;
        check_ok(json_read_text(line.data, line.len, path, &columns));
        for (size_t i = 0; i < n; i++) {
            const char *prompt = json_string_value(json_object_get(columns, "prompt")),
                       *text = attempts[i] ? attempts[i] : json_string_value(json_object_get(columns, "canonical_solution"));
            rows[i] = (RewardRow){.number = problem,
                                  .prompt = {prompt, strlen(prompt)},
                                  .completion = {text, strlen(text)},
                                  .finish_reason = "stop",
                                  .columns = columns};
        }
        check_ok(rewards_score(batch.set, rows, n, &batch.scores));
        for (size_t i = 0; i < n; i++) check_close(batch.scores->sums[i], i == 0, 0);
        json_decref(columns);
    }
    check_ok(lines_close(&lines));
    close_batch(&batch);
}

/* The right answer, with a thread, too; then what was tried to get its reward without it, from both sides of the sandbox. */
static const struct {
    const char *code;
    int reward;
} cheats[] = {
    {"    return a + b\n", 1},
    {"    import threading\n    r = []\n    t = threading.Thread(target=lambda: r.append(a))\n    t.start()\n    t.join()\n    return r[0] + b\n", 1},
    {"    import os\n    for fd in range(64):\n        try:\n            os.write(fd, b'rp')\n        except OSError:\n            pass\n    os._exit(0)\n",
     0},
    {"    import sys\n    f = sys._getframe()\n    while f:\n        f.f_globals['check'] = f.f_globals['pack'] = lambda c: 5\n        f = f.f_back\n",
     0},
    {"    return 1\nimport builtins\nbuiltins.exec = builtins.compile = lambda *a: None\n", 0},
    {"    return E()\nclass E:\n    def __eq__(self, o): return True\n", 0},
    {"    return E()\nclass E(int):\n    def __eq__(self, o): return True\n", 0},
    {"    import os\n    os.kill(os.getppid(), 9)\n", 0},
    {"    import os\n    os.kill(-1, 9)\n", 0},
    {"    import os\n    if os.fork(): return a + b\n    while True: pass\n", 0},
    {"    import resource, os\n    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))\n", 0},
    {"    import fcntl, os\n    fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())\n    return a + b\n", 0},
    {"    raise AssertionError\n", 0},
};

static void check_cheats(const char *yaml) {
    static const char prompt[] = "def add(a, b):\n";
    Scored batch;
    Status status = open_with(yaml, &batch);
    if (status == ST_RESOURCE && strstr(status_text(), "this system refuses")) {
        print_message("skipped: %s\n", status_text());
        close_batch(&batch);
        return;
    }
    check_ok(status);
    json_t *columns = json_pack("{s:s, s:s, s:s}", "prompt", prompt, "entry_point", "add", "test",
                                "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate((1,), (2.5,)) == (1, 2.5)\n"
                                "    try:\n        candidate(1, 'x')\n        assert False\n    except TypeError:\n        pass\n");
    RewardRow rows[COUNT_OF(cheats)];
    for (size_t i = 0; i < COUNT_OF(cheats); i++)
        rows[i] = (RewardRow){.number = (int64_t)i,
                              .prompt = {prompt, strlen(prompt)},
                              .completion = {cheats[i].code, strlen(cheats[i].code)},
                              .finish_reason = "stop",
                              .columns = columns};
    check_ok(rewards_score(batch.set, rows, COUNT_OF(cheats), &batch.scores));
    for (size_t i = 0; i < COUNT_OF(cheats); i++)
        if (batch.scores->sums[i] != cheats[i].reward) fail_msg("%s earns %g with %s", cheats[i].code, batch.scores->sums[i], yaml);
    json_decref(columns);
    close_batch(&batch);
}

TEST(cheats_earn_nothing) {
    if (system("python3 -c 'import resource, ctypes' >/dev/null 2>&1") != 0) skip();
    check_cheats(
        "{type: command, command: [python3, recipes/reward_python_tests.py, --seconds, '10'], workers: 2, timeout: 60, memory: 4096, sandbox: true}");
#if defined(__x86_64__) || defined(__aarch64__)
    check_cheats("{type: command, command: [python3, recipes/reward_python_tests.py, --seconds, '10'], workers: 2, timeout: 60}");
#endif
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--answer") == 0) return reward_command_answer(argv[2], argc > 3 ? argv[3] : "");
    self = argv[0];
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_answer_in_order),
        cmocka_unit_test(an_object_gives_columns),
        cmocka_unit_test(answers_have_one_bound_together),
        cmocka_unit_test(unfinished_answers_have_one_bound_together),
        cmocka_unit_test(the_same_row_is_asked_once),
        cmocka_unit_test(a_program_that_ends_is_started_again),
        cmocka_unit_test(restarts_are_counted),
        cmocka_unit_test(null_does_not_judge_a_row),
        cmocka_unit_test(what_goes_wrong_is_said_with_the_row),
        cmocka_unit_test(failed_rows_may_have_a_reward),
        cmocka_unit_test(an_interrupt_does_not_wait_for_an_answer),
        cmocka_unit_test(recipes_that_make_no_sense_are_refused),
        cmocka_unit_test(a_sandbox_has_limits_and_no_network),
        cmocka_unit_test(python_tests_judge_code),
        cmocka_unit_test(cheats_earn_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
