/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic rows from a model here, runs that are cut short, and what is learned from them. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/ranks.h"
#include "tests/support/synth_world.h"

/* ---- choices of a model here ---- */

typedef struct Chosen {
    TeacherAnswer answers[4];
    char texts[4][32];
    size_t n;
} Chosen;

static Status note_choice(void *context, size_t i, const TeacherAnswer *answer) {
    Chosen *chosen = context;
    chosen->answers[i] = *answer;
    snprintf(chosen->texts[i], sizeof chosen->texts[i], "%s", answer->text);
    chosen->n++;
    return ST_OK;
}

/* The sum of the log-probabilities of `behind` (and a line end) after the question, token by token, computed as one row. */
static double logprob_of(const Model *model, const Tokenizer *tokenizer, const char *question, const char *behind, bool with_end) {
    static double logprobs[256];
    Ids ids = {0};
    double sum = 0;
    check_ok(encode_prompt(tokenizer, question, strlen(question), &ids));
    size_t n = ids.n;
    check_ok(tokenizer_encode(tokenizer, behind, strlen(behind), TOKENIZE_LITERAL, &ids));
    if (with_end) check_ok(tokenizer_encode(tokenizer, "\n", 1, TOKENIZE_LITERAL, &ids));
    ScoreRow row = {ids.data, ids.n, logprobs};
    check_ok(score_rows(model, &row, 1, NULL, NULL));
    for (size_t t = n; t < ids.n; t++) sum += logprobs[t];
    ids_release(&ids);
    return sum;
}

/* Choices are compared by the probability of their whole text; if one is a prefix of another, with a line end after each. Numbers have a mean. */
TEST(choices_are_compared_as_wholes) {
    static const char question[] = "< 'pirate' =", numbers_question[] = "# 'violin' =";
    static const char *const words[] = {"etarip", "pirate", "x"}, *const numbers[] = {"1", "10", "6", "5"};
    const TeacherPrompt prompts[] = {{.number = 1, .text = question, .n_choices = COUNT_OF(words), .choices = words},
                                     {.number = 2, .text = numbers_question, .n_choices = COUNT_OF(numbers), .choices = numbers}};
    const TeacherSampling sampling = teacher_sampling();
    TeacherConfig config = {.model = "recipes/demo/model", .compute = "f32", .key = "teacher"};
    Teacher *teacher;
    Chosen chosen = {0}, said = {0};
    Model *model;
    Tokenizer *tokenizer;
    check_ok(teacher_open(&config, &(TeacherOptions){.device = device_cpu(), .seed = 1}, &teacher));
    assert_true(teacher_compares(teacher));
    check_ok(teacher_ask(teacher, prompts, COUNT_OF(prompts), &sampling, note_choice, &chosen));
    teacher_close(teacher);
    check_ok(teacher_open(&config, &(TeacherOptions){.device = device_cpu(), .seed = 1, .reads_choices = true}, &teacher));
    assert_false(teacher_compares(teacher));
    check_ok(teacher_ask(teacher, prompts, COUNT_OF(prompts), &sampling, note_choice, &said));
    teacher_close(teacher);
    assert_string_equal(chosen.texts[0], "etarip");
    assert_string_equal(chosen.texts[1], "6");
    assert_string_equal(said.texts[0], "etarip");
    assert_string_equal(said.texts[1], "6");
    assert_true(said.answers[0].margin == 0 && isnan(said.answers[1].mean) && isnan(chosen.answers[0].mean));
    check_ok(model_load(config.model, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(tokenizer_load_if_any(config.model, &tokenizer));
    double sums[4], best = logprob_of(model, tokenizer, question, words[0], false), second = -HUGE_VAL, mean = 0, weight = 0;
    for (size_t i = 1; i < COUNT_OF(words); i++) second = fmax(second, logprob_of(model, tokenizer, question, words[i], false));
    check_close(chosen.answers[0].margin, best - second, 1e-4); /* f32, and the same rows in batches of other sizes */
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        sums[i] = logprob_of(model, tokenizer, numbers_question, numbers[i], true);
        mean += exp(sums[i]) * strtod(numbers[i], NULL);
        weight += exp(sums[i]);
    }
    check_close(chosen.answers[1].mean, mean / weight, 1e-4);
    check_close(chosen.answers[1].margin, sums[2] - fmax(fmax(sums[0], sums[1]), sums[3]), 1e-4);
    model_free(model);
    tokenizer_free(tokenizer);
}

/* They reach its chat template: what that writes for them makes the question longer. */
TEST(a_model_here_gets_values_for_its_template) {
    static const char *const more[] = {"", ", template_kwargs: {}", ", template_kwargs: {style: abc}"};
    const char *template = temp_text(dir, "kwargs.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}{{ style }}");
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Say");
    TeacherSampling sampling = teacher_sampling();
    sampling.max_new_tokens = 1;
    Arena *arena = arena_new(0);
    int64_t tokens[COUNT_OF(more)];
    for (size_t i = 0; i < COUNT_OF(more); i++) {
        Str text = {0};
        Yaml *node;
        TeacherConfig config;
        Teacher *teacher;
        Chosen said = {0};
        str_printf(&text, "{model: recipes/demo/model, chat_template: %s%s}", template, more[i]);
        check_ok(yaml_read_text(str_text(&text), text.len, "teacher", arena, &node));
        check_ok(teacher_config(node, "teacher", NULL, arena, &config));
        check_ok(teacher_open(&config, &(TeacherOptions){.device = device_cpu(), .seed = 1}, &teacher));
        check_ok(teacher_ask(teacher, &(TeacherPrompt){.number = 1, .messages = messages}, 1, &sampling, note_choice, &said));
        tokens[i] = said.answers[0].prompt_tokens;
        teacher_close(teacher);
        str_release(&text);
    }
    assert_int_equal(tokens[1], tokens[0]);
    assert_int_equal(tokens[2], tokens[0] + 3); /* the demo's tokens are bytes */
    json_decref(messages);
    arena_free(arena);
}

/* The scores of a judge here are means of the ten, in every row; the log gives the same ones without it. */
TEST(a_judge_here_scores_by_its_mean) {
    SynthResult result;
    for (int replayed = 0; replayed < 2; replayed++) {
        Overrides o = remote("answer", "well", "", replayed ? "means-again" : "means");
        set(&o, "synth.filters={judge: 1}");
        set(&o, "synth.prompts={judge: %s}", temp_text(dir, "judge.jinja", "# '{{ answer[:8] }}' ="));
        if (replayed)
            set(&o, "synth.teacher={replay: %s/requests.jsonl}", temp_file(dir, "means")),
                set(&o, "synth.judge={replay: %s/requests.jsonl}", temp_file(dir, "means-judge"));
        else
            set(&o, "synth.judge={model: recipes/demo/model}");
        check_ok(run(&o, false, &result));
        assert_int_equal(result.rows, 5);
        char *log = read_output(replayed ? "means-again" : "means", "requests.jsonl"), *judged = strstr(log, "\"stage\": \"judge\"");
        assert_true(judged && has(judged, "\"mean\":"));
        if (!replayed) { /* a log has one kind of teacher in it: the judge's part */
            check_ok(dir_make(temp_file(dir, "means-judge")));
            while (judged[-1] != '\n') judged--;
            temp_text(temp_file(dir, "means-judge"), "requests.jsonl", judged);
        }
        free(log);
    }
    for (size_t n = 0; n < 5; n++) {
        json_t *row = row_of("means", "rows.jsonl", n), *again = row_of("means-again", "rows.jsonl", n);
        double score = json_number_value(json_object_get(json_object_get(json_object_get(row, "provenance"), "scores"), "judge"));
        double same = json_number_value(json_object_get(json_object_get(json_object_get(again, "provenance"), "scores"), "judge"));
        assert_true(score > 1 && score < 10 && score != floor(score) && score == same);
        json_decref(row);
        json_decref(again);
    }
}

TEST(a_model_here_compares_choices) {
    const struct CMUnitTest apart[] = {cmocka_unit_test(choices_are_compared_as_wholes), cmocka_unit_test(a_judge_here_scores_by_its_mean),
                                       cmocka_unit_test(a_model_here_gets_values_for_its_template)};
    pid_t child = fork(); /* as below: models start threads */
    if (child == 0) _exit(cmocka_run_group_tests(apart, NULL, NULL));
    int code;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
}

/* ---- ranks ---- */

/* Rank 0 makes the rows; the others answer. */
static Status synth_body(Comm *comm, void *data) {
    const Overrides *o = data;
    const char *items[COUNT_OF(o->texts)];
    SynthResult result;
    Recipe *recipe;
    if (comm_rank(comm) == 0) return run_with(o, &(SynthConfig){.comm = comm}, &result);
    for (size_t i = 0; i < o->n; i++) items[i] = o->texts[i];
    TRY(recipe_read(NULL, items, o->n, &recipe));
    Status status = synth_serve(&(SynthConfig){.recipe = recipe, .device = device_cpu(), .comm = comm});
    recipe_free(recipe);
    return status;
}

static void synth_on(int ranks, const char *name) {
    RankRun ranked = {.config.timeout = 60};
    Overrides o = local(name);
    set(&o, "synth.num_rows=10");
    set(&o, "synth.filters={length: false, judge: 1}");
    set(&o, "synth.judge={model: recipes/demo/model}");
    set(&o, "synth.prompts={prompt: %s/backwards.jinja, answer: %s/capitals.jinja, judge: %s}", dir, dir,
        temp_text(dir, "judge.jinja", "# '{{ answer[:8] }}' ="));
    check_ok(ranks_fork(ranks, &ranked, synth_body, &o));
}

/* Answers, choices, and so all files have the same bytes on any number of ranks. */
TEST(ranks_make_the_rows_of_one_process) {
    synth_on(1, "ranks-1");
    synth_on(3, "ranks-3");
    assert_true(count_lines("ranks-1", "rows.jsonl") >= 10);
    check_same("ranks-1", "ranks-3", "rows.jsonl");
    check_same("ranks-1", "ranks-3", "requests.jsonl");
    check_same("ranks-1", "ranks-3", "rejected.jsonl");
}

/* No answer of this length fits after any question. */
TEST(a_question_that_does_not_fit_is_too_long) {
    static const char *const presets[] = {"alpaca", "self-instruct", "answer", "qa"};
    for (size_t i = 0; i < COUNT_OF(presets); i++) {
        pid_t child = fork(); /* as below: models start threads */
        if (child == 0) {
            SynthResult result;
            char output[32];
            snprintf(output, sizeof output, "long-%zu", i);
            Overrides o = local(output);
            set(&o, "synth.preset=%s", presets[i]);
            set(&o, "synth.seeds=%s", temp_file(dir, "seeds.jsonl"));
            set(&o, "synth.prompts=null");
            set(&o, "synth.teacher={model: recipes/demo/model, chat_template: %s, max_new_tokens: 100000}",
                temp_text(dir, "chat.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"));
            if (i < 2) set(&o, "synth.examples=1");
            set(&o, "synth.acceptance_after=8");
            Status status = run(&o, false, &result);
            bool good =
                status == ST_INPUT && has(status_text(), "rejected: too_long ") && has(status_hint_text(), "the teacher refused: 'the question has ");
            if (!good) print_error("%s: %s; %s\n", presets[i], status_text(), status_hint_text());
            _exit(!good);
        }
        int code;
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_int_equal(code, 0);
    }
}

static int synth_local_say(Status status) {
    if (status != ST_OK) print_error("%s\n", status_text());
    return status != ST_OK;
}

static int answers_left;
static void die_after(void *context, const SynthProgress *p) {
    (void)context, (void)p;
    if (answers_left-- == 0) raise(SIGKILL);
}

TEST(a_killed_run_goes_on_to_the_same_bytes) {
    SynthResult result;
    Overrides whole = local("whole"), killed = local("killed");
    pid_t first = fork(); /* models start threads, and a process with threads does not fork well: each run has its own */
    if (first == 0) _exit(synth_local_say(run(&whole, false, &result)));
    int code;
    assert_int_equal(waitpid(first, &code, 0), first);
    assert_int_equal(code, 0);
    for (int lives = 0; lives < 4; lives++) {
        pid_t child = fork();
        if (child == 0) {
            answers_left = 5 + 9 * lives;
            _exit(synth_local_say(
                run_with(&killed, &(SynthConfig){.options.resume = lives > 0, .on_progress = lives < 3 ? die_after : NULL}, &result)));
        }
        assert_int_equal(waitpid(child, &code, 0), child);
        if (lives < 3)
            assert_true(WIFSIGNALED(code));
        else
            assert_int_equal(code, 0);
        /* As a crash of the machine leaves it */
        if (lives == 1) check_ok(file_append(temp_file(temp_file(dir, "killed"), "requests.jsonl"), "{\"key\":\"torn", 12));
    }
    check_same("whole", "killed", "rows.jsonl");
    check_same("whole", "killed", "rejected.jsonl");
    check_same("whole", "killed", "requests.jsonl");
}

/* Runs in a child process with a file size limit of `limit` bytes (0: none). Returns the exit code. */
static int run_on_disk_of(const Overrides *o, size_t limit, bool resume) {
    pid_t child = fork();
    if (child == 0) {
        SynthResult result;
        signal(SIGXFSZ, SIG_IGN);
        if (limit > 0) setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
        Status status = run(o, resume, &result);
        if (status != ST_OK && limit == 0) synth_local_say(status);
        _exit(status == ST_OK ? 0 : status_exit_code(status));
    }
    int code;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

/* Whenever the disk is full, the run reports it, and continues when there is space again. */
TEST(a_full_disk_loses_nothing) {
    int full = 0, code = 5;
    Overrides whole = remote("few_shot", "well", "", "disk");
    set(&whole, "synth.num_rows=12");
    assert_int_equal(run_on_disk_of(&whole, 0, false), 0);
    for (size_t limit = 1, n = 0; code == 5; limit += limit / 4 + 100, n++) {
        char output[32];
        snprintf(output, sizeof output, "disk-%zu", n);
        Overrides o = remote("few_shot", "well", "", output);
        set(&o, "synth.num_rows=12");
        code = run_on_disk_of(&o, limit, false);
        full += code == 5;
        if (code != 0 && code != 5) fail_msg("exit code %d with files of %zu bytes at most", code, limit);
        int again = run_on_disk_of(&o, 0, true);
        if (again != 0) fail_msg("exit code %d of the run that goes on after files of %zu bytes at most", again, limit);
        check_same("disk", output, "rows.jsonl");
        check_same("disk", output, "rejected.jsonl");
    }
    assert_true(full > 5);
}

/* `make test-long`: rows that the demo's model makes teach it plain English. */
static double exact_match(const char *output, const char *name) {
    char *text = read_output(output, name), *at = strstr(text, "\"exact_match\":");
    assert_non_null(at);
    double value = strtod(at + strlen("\"exact_match\":"), NULL);
    free(text);
    return value;
}

TEST(rows_of_the_demo_teach_its_task) {
    const char *tune = getenv("TUNE");
    char command[512];
    if (!long_tests()) skip();
    snprintf(command, sizeof command, "sh recipes/synth_demo/synth_demo.sh %s %s >/dev/null 2>&1", tune ? tune : "./tune", temp_file(dir, "demo"));
    assert_int_equal(system(command), 0);
    double before = exact_match("demo", "before.json"), after = exact_match("demo", "after.json");
    print_message("held-out answers exactly right: %.1f %% before, %.1f %% after\n", 100 * before, 100 * after);
    assert_true(before < 0.05);
    assert_true(after > 0.6); /* 77 % were measured */
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_goes_on_to_the_same_bytes),   cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(a_question_that_does_not_fit_is_too_long), cmocka_unit_test(a_model_here_compares_choices),
        cmocka_unit_test(ranks_make_the_rows_of_one_process),       cmocka_unit_test(rows_of_the_demo_teach_its_task),
    };
    return cmocka_run_group_tests(tests, write_seeds, stop_server);
}
