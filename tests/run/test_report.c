/* SPDX-License-Identifier: Apache-2.0 */
/* report.html: well-formed for any contents of the run directory, all text escaped, small for long runs. */
#include "lib/run/report.h"
#include "rl/common/rl_doctor.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- run directories ---- */

/* A new test_folder; its path is valid until the next call. */
static const char *run_dir_of(const char *name) {
    static char dir[512];
    snprintf(dir, sizeof dir, "%s", temp_file(test_folder, name));
    check_ok(dir_make(dir));
    return dir;
}

static void report_put(const char *dir, const char *name, const char *text) { temp_text(dir, name, text); }

/* The page of `n` runs, and their numbers. */
static void page_of(const char *const *dirs, size_t n, Str *page, RunNumbers *numbers) {
    const char *path = temp_file(test_folder, "page.html");
    check_ok(report_write(dirs, n, path, &rl_report_reader, numbers));
    check_ok(file_read(path, 64 << 20, page));
}

/* ---- a checker of well-formedness ---- */

static bool is_tag_end(char c) { return c == '>' || c == ' ' || c == '/' || c == '\n'; }

/* Checks that all elements are closed in order, attributes are quoted, and texts have no stray '<' or '&': the page is valid XML, so it is
 * unambiguous. */
static void check_page(const char *text) {
    enum { DEPTH = 64, NAME = 24 };
    char open[DEPTH][NAME];
    size_t depth = 0;
    assert_true(text_starts_with(text, "<!DOCTYPE html>"));
    for (const char *at = text + strlen("<!DOCTYPE html>"); *at;) {
        if (*at == '&') {
            static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
            bool known = false;
            for (size_t i = 0; i < COUNT_OF(entities); i++) known |= text_starts_with(at, entities[i]);
            if (!known) fail_msg("a stray '&' in: %.60s", at);
        }
        if (*at != '<') {
            at++;
            continue;
        }
        bool closing = at[1] == '/';
        const char *name = at + 1 + closing;
        size_t len = 0;
        while (name[len] && !is_tag_end(name[len])) len++;
        if (len == 0 || len >= NAME) fail_msg("a stray '<' in: %.60s", at);
        for (at = name + len; *at && *at != '>'; at++)
            if (*at == '"' && !(at = strchr(at + 1, '"')))
                fail_msg("an attribute does not end");
            else if (*at == '<')
                fail_msg("'<' within a tag: %.60s", name);
        if (*at != '>') fail_msg("a tag does not end: %.60s", name);
        bool alone = at[-1] == '/';
        at++;
        if (closing) {
            if (depth == 0 || strlen(open[depth - 1]) != len || strncmp(open[depth - 1], name, len) != 0)
                fail_msg("</%.*s> closes %s", (int)len, name, depth ? open[depth - 1] : "nothing");
            depth--;
        } else if (!alone) {
            assert_true(depth < DEPTH);
            snprintf(open[depth++], NAME, "%.*s", (int)len, name);
        }
    }
    if (depth != 0) fail_msg("<%s> is not closed", open[depth - 1]);
}

static size_t count_of(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

/* ---- */

static const char started[] =
    "{\"program\": \"tune 1\", \"command\": \"tune sft x.yaml\", \"steps\": 3, \"parameters\": 1000, \"trained_parameters\": 10, \"compute\": \"f32\", \"format\": \"text\","
    "\"memory\": {\"total\": 1048576, \"mapped\": 2048, \"weights\": 1000000, \"activations\": 48576},"
    "\"train\": {\"rows\": 2, \"tokens\": 7, \"trained_tokens\": 3, \"dropped_long\": 1, \"cut\": 0, \"duplicates\": 0},"
    "\"warnings\": [\"data.train: 1 row dropped\"],"
    "\"sample\": [{\"where\": \"rows.jsonl line 1\", \"length\": 5, \"ids\": [1, 2, 3], \"trained\": [0, 1, 1], \"special\": [1, 0, 0], \"tokens\": [\"<s>\", \"a\\n\", \"\"]}]}";

TEST(a_whole_run) {
    const char *dir = run_dir_of("whole");
    Str page = {0};
    RunNumbers numbers;
    report_put(
        dir, "recipe.yaml",
        "seed: 42\noutput: runs/x\n\nlora:\n  rank: 4\n  target_modules: [all-linear]\n\ndata:\n  train:\n    - path: rows.jsonl\n      max_rows: 5\ntrain:\n  learning_rate: 0.0002\n");
    report_put(dir, "started.json", started);
    report_put(dir, "metrics.jsonl",
               "{\"step\": 1, \"loss\": 3.5, \"grad_norm\": 2, \"learning_rate\": 1e-4, \"tokens_per_second\": 50, \"epoch\": 0.5, \"seconds\": 1}\n"
               "{\"step\": 2, \"loss\": 2.5, \"grad_norm\": 1, \"learning_rate\": 5e-5, \"tokens_per_second\": 70, \"epoch\": 1, \"seconds\": 2}\n"
               "{\"step\": 3, \"loss\": 1.5, \"grad_norm\": 1, \"learning_rate\": 0, \"tokens_per_second\": 60, \"epoch\": 1.5, \"seconds\": 3}\n"
               "{\"step\": 3, \"eval_loss\": 1.25, \"reward_margin\": 0.5, \"seconds\": 3.5}\n");
    report_put(
        dir, "finished.json",
        "{\"steps\": 3, \"first_loss\": 3.5, \"last_loss\": 1.5, \"eval_loss\": 1.25, \"best_eval_loss\": 1.25, \"seconds\": 4.5, \"peak_rss_bytes\": 3145728}");
    report_put(
        dir, "samples.jsonl",
        "{\"step\": 2, \"prompt\": \"Say\\nit\", \"completion\": \"it\"}\n{\"step\": 3, \"prompt\": [{\"role\": \"user\"}], \"completion\": \"two\"}\n");
    report_put(dir, "log.txt", "2026-01-01 began\n");
    page_of(&dir, 1, &page, &numbers);
    check_page(str_text(&page));
    static const char *const parts[] = {"<title>whole</title>",
                                        "tune sft x.yaml",
                                        "finished",
                                        "3.0 MiB",
                                        "Learning rate",
                                        "Reward margin",
                                        "held out",
                                        "rows.jsonl line 1",
                                        "a\xE2\x86\xB5",
                                        "\xE2\x80\xA6 2 more",
                                        "class=\"on\"",
                                        "class=\"sp\"",
                                        "[{path: rows.jsonl, max_rows: 5}]",
                                        "Say\nit",
                                        "Step 3",
                                        "began",
                                        "data.train: 1 row dropped"};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (!strstr(str_text(&page), parts[i])) fail_msg("'%s' is not on the page", parts[i]);
    assert_int_equal(count_of(str_text(&page), "<figure"), 5);     /* losses, learning rate, gradient norm, speed, margin */
    check_contains(str_text(&page), "3 more with default values"); /* seed, target_modules, learning_rate; rank 4 is shown above */
    check_close(numbers.tokens_per_second, 60, 0);
    check_close(numbers.last_loss, 1.5, 0);
    assert_int_equal(numbers.planned_steps, 3);
    assert_int_equal(numbers.peak_rss_bytes, 3145728);
    assert_true(numbers.finished && numbers.broken_lines == 0);
    str_release(&page);
}

/* Completions of one prompt form a card with the best and the worst one; the others are folded. The values of the curves are at the top. */
TEST(samples_with_rewards) {
    const char *dir = run_dir_of("rewards");
    Str page = {0}, text = {0};
    for (int step = 1; step <= 12; step++) str_printf(&text, "{\"step\": %d, \"reward\": %d, \"eos_fraction\": 0.25}\n", step, step);
    report_put(dir, "metrics.jsonl", str_text(&text));
    str_clear(&text);
    static const double rewards[] = {0.5, -1, 2, 0.5};
    for (int i = 0; i < 4; i++)
        str_printf(
            &text,
            "{\"step\": 3, \"prompt\": \"<p>\", \"completion\": \"said <%d>\", \"reward\": %g, \"advantage\": %g, \"finish_reason\": \"%s\"}\n", i,
            rewards[i], rewards[i] / 2, i == 1 ? "length" : "stop");
    for (int i = 0; i < 3; i++) str_printf(&text, "{\"step\": 4, \"prompt\": \"<p>\", \"completion\": \"\", \"reward\": %s}\n", i < 2 ? "1" : "null");
    for (int i = 0; i < 2; i++) str_append(&text, "{\"step\": 5, \"prompt\": \"q\", \"completion\": [1, \"<\"], \"reward\": 0.25}\n");
    report_put(dir, "samples.jsonl", str_text(&text));
    page_of(&dir, 1, &page, NULL);
    check_page(str_text(&page));
    static const char *const parts[] = {
        "only 25 % of the completions end by themselves: the others are cut at generate.max_new_tokens (since step 10); what helps",
        "reward, last step",
        "best \xC2\xB7 reward 2 \xC2\xB7 advantage 1</div>said &lt;2&gt;",
        "worst \xC2\xB7 reward -1 \xC2\xB7 advantage -0.5 \xC2\xB7 cut off</div>said &lt;1&gt;",
        "2 more in between",
        "2 completions, which all earn the same",
        "(empty)",
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (!strstr(str_text(&page), parts[i])) fail_msg("'%s' is not on the page", parts[i]);
    assert_int_equal(count_of(str_text(&page), "<div class=\"card\">"), 3);
    assert_true(strstr(str_text(&page), "Step 5") < strstr(str_text(&page), "Step 3"));                 /* the newest first */
    assert_true(strstr(str_text(&page), "said &lt;0&gt;") < strstr(str_text(&page), "said &lt;3&gt;")); /* equal ones as in the file */
    str_release(&page);
    str_release(&text);
}

/* Any text of a run is shown as text. */
TEST(hostile_text_is_escaped) {
    static const char evil[] = "</script><b onload=\\\"x\\\">&'\\u0007";
    const char *dir = run_dir_of("<b>&amp;'run");
    char text[2048];
    Str page = {0};
    snprintf(text, sizeof text,
             "{\"program\": \"%s\", \"command\": \"%s\", \"format\": \"%s\", \"compute\": \"%s\", \"warnings\": [\"%s\"], \"train\": {\"rows\": 1},"
             "\"sample\": [{\"where\": \"%s\", \"ids\": [5], \"trained\": [1], \"tokens\": [\"%s\"]}]}",
             evil, evil, evil, evil, evil, evil, evil);
    report_put(dir, "started.json", text);
    snprintf(text, sizeof text, "{\"step\": 1, \"loss\": 1, \"%s\": 2}\n", evil);
    report_put(dir, "metrics.jsonl", text);
    snprintf(text, sizeof text, "{\"prompt\": \"%s\", \"completion\": {\"%s\": 1}}\n", evil, evil);
    report_put(dir, "samples.jsonl", text);
    report_put(dir, "recipe.yaml", "output: \"</script><b>\"\n\"</style><b>\": 3\ndata:\n  \"<b>\": \"]]></script>\"\n");
    report_put(dir, "log.txt", "</pre><b> \xff\xc3 \x01\n");
    page_of(&dir, 1, &page, NULL);
    check_page(str_text(&page));
    assert_int_equal(count_of(str_text(&page), "</script>"), 1);
    assert_int_equal(count_of(str_text(&page), "</style>"), 1);
    assert_null(strstr(str_text(&page), "<b onload"));
    assert_null(strstr(str_text(&page), "<b>&amp;"));
    const char *both[] = {dir, dir};
    page_of(both, 2, &page, NULL);
    check_page(str_text(&page));
    assert_int_equal(count_of(str_text(&page), "</script>"), 1);
    str_release(&page);
}

TEST(odd_metrics) {
    const struct {
        const char *metrics;
        size_t broken;
        int64_t steps;
        size_t figures;
    } cases[] = {
        {"", 0, 0, 0},
        {"{\"step\": 1, \"loss\": 2}\n", 0, 1, 1},
        {"{\"step\": 1, \"loss\": null}\n", 0, 1, 0},
        {"{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": null}\n{\"step\": 3, \"loss\": 1}\n", 0, 3, 1},
        {"{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"loss\": NaN}\n{\"step\": 3, \"loss\"", 2, 1, 1},
        {"{\"step\": 1, \"loss\": 1e999}\n", 1, 0, 0},
        {"{\"step\": 1, \"loss\": 1e308}\n{\"step\": 2, \"loss\": -1e308}\n{\"step\": 3, \"loss\": 1e99}\n{\"step\": 4, \"loss\": -1e99}\n", 0, 4, 1},
        {"{\"step\": 9223372036854775807, \"loss\": 1e-300}\n", 0, INT64_MAX, 1},
        {"{\"step\": 5, \"loss\": 2}\n{\"step\": 4, \"loss\": 3}\n{\"step\": -1}\n{\"loss\": 3}\n[]\n7\n\n", 6, 5, 1},
        {"{\"step\": 0, \"loss\": 0}\n{\"step\": 1, \"loss\": 0}\n", 0, 1, 0}, /* a line that never moves */
        {"{\"step\": 1, \"loss\": -5e-320}\n{\"step\": 2, \"loss\": \"text\", \"tokens_per_second\": -1}\n", 0, 2, 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[32];
        Str page = {0};
        RunNumbers numbers;
        snprintf(name, sizeof name, "odd-%zu", i);
        const char *dir = run_dir_of(name);
        report_put(dir, "metrics.jsonl", cases[i].metrics);
        page_of(&dir, 1, &page, &numbers);
        check_page(str_text(&page));
        if (numbers.broken_lines != cases[i].broken || numbers.steps != cases[i].steps || count_of(str_text(&page), "<figure") != cases[i].figures)
            fail_msg("case %zu: %zu broken lines, %lld steps, %zu figures", i, numbers.broken_lines, (long long)numbers.steps,
                     count_of(str_text(&page), "<figure"));
        assert_null(strstr(str_text(&page), "nan"));
        assert_null(strstr(str_text(&page), "inf"));
        str_release(&page);
    }
}

TEST(broken_files_are_left_out) {
    const char *dir = run_dir_of("broken");
    Str page = {0};
    report_put(dir, "recipe.yaml", "a: [1, 2\n");
    report_put(dir, "metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
    report_put(dir, "started.json", "{\"steps\": ");
    report_put(dir, "finished.json", "[1]");
    report_put(dir, "samples.jsonl", "{\"prompt\": 1}\nhalf");
    page_of(&dir, 1, &page, NULL);
    check_page(str_text(&page));
    static const char *const warnings[] = {"settings are left out", "started.json is left out", "finished.json is left out",
                                           "1 line of samples.jsonl left out"};
    for (size_t i = 0; i < COUNT_OF(warnings); i++) check_contains(str_text(&page), warnings[i]);
    report_put(
        dir, "started.json",
        "{\"memory\": [], \"train\": {\"rows\": \"x\"}, \"warnings\": {}, \"sample\": [1, {}, {\"ids\": [\"a\", 1], \"tokens\": [3], \"trained\": {}}], \"steps\": -4}");
    page_of(&dir, 1, &page, NULL);
    check_page(str_text(&page));
    str_release(&page);
}

TEST(what_is_no_run) {
    const char *empty = run_dir_of("empty"), *missing = temp_file(test_folder, "missing"), *page = temp_file(test_folder, "never.html");
    check_status(report_write(&empty, 1, page, NULL, NULL), ST_INPUT);
    check_text("is not a run directory");
    check_status(report_write(&missing, 1, page, NULL, NULL), ST_INPUT);
    check_text("no run directory");
    assert_false(file_exists(page));
}

static void write_long_run(const char *dir, int64_t steps, double factor) {
    Str metrics = {0};
    for (int64_t step = 1; step <= steps; step++)
        str_printf(&metrics, "{\"step\": %lld, \"loss\": %.9g, \"grad_norm\": %.9g}\n", (long long)step, factor * (2 + sin((double)step)),
                   step == steps / 2 ? 1e6 : 1 + cos((double)step) / 2);
    report_put(dir, "metrics.jsonl", str_text(&metrics));
    str_release(&metrics);
}

TEST(long_runs_make_small_pages) {
    const char *dir = run_dir_of("long");
    Str page = {0};
    write_long_run(dir, 30000, 1);
    page_of(&dir, 1, &page, NULL);
    check_page(str_text(&page));
    if (page.len > 100000) fail_msg("30000 steps make a page of %zu bytes", page.len);
    check_contains(str_text(&page), "1 value above the drawing");
    check_contains(str_text(&page), "mean over 750 values");
    str_release(&page);
}

TEST(several_runs) {
    char dirs[10][300];
    const char *paths[10];
    RunNumbers numbers[10];
    Str page = {0};
    for (int i = 0; i < 10; i++) {
        char name[32], recipe[128];
        snprintf(name, sizeof name, "several-%d/run", i);
        snprintf(dirs[i], sizeof dirs[i], "%s", run_dir_of(name));
        snprintf(recipe, sizeof recipe, "seed: 1\noutput: x%d\nlora:\n  rank: %d\n", i, i < 5 ? 4 : 8);
        report_put(dirs[i], "recipe.yaml", recipe);
        write_long_run(dirs[i], 5 * i, 1 + i);
        paths[i] = dirs[i];
    }
    page_of(paths, 10, &page, numbers);
    check_page(str_text(&page));
    assert_int_equal(numbers[9].steps, 45);
    check_contains(str_text(&page), "lora.rank");
    assert_null(strstr(str_text(&page), "<code>seed</code>"));
    check_contains(str_text(&page), "several-9/run</td>"); /* told apart by their paths */
    str_release(&page);
}

TEST(what_does_not_move_is_a_number) {
    const char *dir = run_dir_of("learns-by-reward");
    Str page = {0};
    report_put(dir, "recipe.yaml", "data:\n  step_separator: \"\\n\"\n  max_length: 1024\n  shuffle: false\n");
    report_put(
        dir, "metrics.jsonl",
        "{\"step\": 1, \"loss\": 6.16e-17, \"reward\": 0.25, \"kl\": 0, \"learning_rate\": 1e-5, \"zero_std_fraction\": 0.5, \"reward/my_judge\": 13310}\n"
        "{\"step\": 2, \"loss\": -1e-17, \"reward\": 0.25, \"kl\": 0, \"learning_rate\": 1e-5, \"zero_std_fraction\": 0.25, \"reward/my_judge\": 13310,"
        " \"reward_correlation/my_judge:exact\": null, \"groups_compared\": 3, \"eval_reward_std\": 2}\n"
        "{\"step\": 3, \"reward_correlation/my_judge:exact\": 1, \"groups_compared\": 3, \"eval_reward_std\": 2}\n");
    RunNumbers numbers;
    page_of(&dir, 1, &page, &numbers);
    assert_true(isnan(numbers.first_loss) && isnan(numbers.last_loss));
    check_page(str_text(&page));
    check_contains(str_text(&page), "2 more with default values"); /* step_separator and max_length, not shuffle */
    check_contains(str_text(&page), "The same in every step: Reward 0.25, Loss 0, Learning rate 1e-5, KL divergence 0, Groups with a signal 3, "
                                    "Reward of my_judge 13310, Held out: Spread of rewards 2.");
    check_contains(str_text(&page), "Correlation of the rewards my_judge and exact");
    check_contains(str_text(&page), "Groups without a signal");
    check_contains(str_text(&page), "reward, last step");
    assert_null(strstr(str_text(&page), "training loss"));
    assert_int_equal(count_of(str_text(&page), "<figure"), 2); /* groups, and the one known correlation */
    str_release(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_run),
        cmocka_unit_test(samples_with_rewards),
        cmocka_unit_test(hostile_text_is_escaped),
        cmocka_unit_test(odd_metrics),
        cmocka_unit_test(broken_files_are_left_out),
        cmocka_unit_test(what_is_no_run),
        cmocka_unit_test(long_runs_make_small_pages),
        cmocka_unit_test(several_runs),
        cmocka_unit_test(what_does_not_move_is_a_number),
    };
    return cmocka_run_group_tests_name("report", tests, test_folder_make, test_folder_remove);
}
