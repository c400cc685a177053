/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic rows: what each preset makes of its teacher's words, and what filters and judges let through. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/synth_world.h"

/* ---- presets ---- */

static Status length_reward(void *context, const FilterRow *rows, size_t n, double *values) {
    (void)context;
    for (size_t i = 0; i < n; i++) values[i] = rows[i].completion.len > 1 ? rows[i].completion.data[rows[i].completion.len - 2] % 7 : 0;
    return ST_OK;
}

static void check_undecorated(const json_t *row) {
    assert_null(strstr(column(row, "instruction"), "**"));
    assert_null(strstr(column(row, "input"), "**"));
    assert_null(strstr(column(row, "output"), "**"));
}
static void check_self_instruct(const json_t *row) {
    check_undecorated(row);
    assert_true(column(row, "instruction")[0] != '\0' && column(row, "output")[0] != '\0');
    assert_null(strstr(column(row, "instruction"), "image"));
    assert_null(strchr(column(row, "instruction"), ':')); /* cut off at the end */
    assert_true(strcmp(column(row, "task_type"), "classification") == 0 ? has("good bad", column(row, "output"))
                                                                        : !has("good bad", column(row, "output")));
    assert_int_equal(json_array_size(json_object_get(json_object_get(row, "provenance"), "seed_ids")), 6);
}
static int n_headings;
static void check_alpaca(const json_t *row) {
    check_undecorated(row);
    n_headings += has(column(row, "output"), "\n### Then\n");
    assert_true(has(column(row, "instruction"), " the words of "));
    assert_null(strstr(column(row, "input"), "noinput"));
    assert_int_equal(json_array_size(json_object_get(json_object_get(row, "provenance"), "seed_ids")), 3);
}
static void check_evol(const json_t *row) {
    assert_true(has(column(row, "instruction"), "Think of "));
    assert_non_null(column(row, "mutation"));
}
static void check_magpie(const json_t *row) { assert_true(text_starts_with(column(row, "instruction"), "What do ")); }
static void check_backtranslation(const json_t *row) { assert_true(column(row, "output")[0] && has(column(row, "instruction"), "Tell me about")); }
static void check_qa(const json_t *row) {
    assert_true(column(row, "passage")[0] != '\0' && strlen(column(row, "passage")) <= 16);
    assert_true(has(column(row, "instruction"), "What is") ? text_starts_with(column(row, "output"), "It is")
                                                           : text_ends_with(column(row, "output"), ",\nand back."));
}
static void check_answer(const json_t *row) { assert_true(text_starts_with(column(row, "output"), "The ")); }
static void check_preference(const json_t *row) {
    const json_t *scores = json_object_get(json_object_get(row, "provenance"), "scores");
    assert_string_not_equal(column(row, "chosen"), column(row, "rejected"));
    assert_true(json_number_value(json_object_get(scores, "chosen")) > json_number_value(json_object_get(scores, "rejected")) + 1);
    assert_null(column(row, "instruction"));
    assert_non_null(column(row, "prompt"));
}
static void check_rejection(const json_t *row) {
    assert_true(json_number_value(json_object_get(json_object_get(json_object_get(row, "provenance"), "scores"), "reward")) >= 1);
}

/* Each preset gives its rows, and the same ones when it is stopped in the middle. */
TEST(presets_make_their_rows) {
    static const struct {
        const char *name, *more[4];
        int64_t rows;
        void (*check)(const json_t *row);
    } cases[] = {
        {"self-instruct", {"synth.num_rows=30", "synth.examples=6", "synth.batch=24"}, 30, check_self_instruct},
        {"alpaca", {"synth.num_rows=20", "synth.tasks_per_request=4"}, 20, check_alpaca},
        {"evol", {"synth.num_rows=60", "synth.generations=3"}, 18, check_evol},
        {"magpie", {"synth.num_rows=10", "synth.user_turn='<user>'", "synth.seeds=null"}, 10, check_magpie},
        {"backtranslation", {"synth.num_rows=10"}, 6, check_backtranslation},
        {"qa", {"synth.num_rows=30", "synth.pairs=2", "synth.chunk_size=16", "synth.chunk_overlap=4"}, -1, check_qa},
        {"answer", {"synth.num_rows=100", "synth.n=3"}, 18, check_answer},
        {"preference", {"synth.num_rows=5", "synth.margin=1", "synth.format=prompt_completion"}, -1, check_preference},
        {"rejection", {"synth.num_rows=30", "synth.threshold=1"}, -1, check_rejection},
    };
    Str more = {0};
    str_printf(
        &more,
        "%s{\"id\": \"c1\", \"task_type\": \"facts\", \"instruction\": \"Name a colour.\", \"output\": \"Green is one. There are many more of them, such as red. Others are blue.\"}\n",
        seeds_text);
    temp_text(dir, "seeds.jsonl", more.data);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SynthResult result;
        char whole[64], stopped[64];
        print_message("%s\n", cases[i].name);
        snprintf(whole, sizeof whole, "%s-whole", cases[i].name);
        snprintf(stopped, sizeof stopped, "%s-stopped", cases[i].name);
        Overrides o = remote(cases[i].name, "well", "", whole);
        if (strcmp(cases[i].name, "preference") != 0) set(&o, "synth.format=alpaca");
        for (size_t k = 0; k < 4 && cases[i].more[k]; k++) set(&o, "%s", cases[i].more[k]);
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward}, &result));
        if (cases[i].rows > 0) assert_int_equal(result.rows, cases[i].rows);
        assert_true(result.rows > 0);
        for (size_t n = 0; n < (size_t)result.rows; n++) {
            json_t *row = row_of(whole, "rows.jsonl", n);
            if (strcmp(cases[i].name, "preference") == 0 ? column(row, "chosen") == NULL : column(row, "instruction") == NULL) fail_msg("row %zu", n);
            cases[i].check(row);
            json_decref(row);
        }
        if (cases[i].check == check_alpaca) assert_true(n_headings > 0); /* a heading ends no block */
        int64_t half = result.requests / 2;
        set(&o, "output=%s", temp_file(dir, stopped));
        set(&o, "synth.max_requests=%lld", (long long)half);
        check_status(run_with(&o, &(SynthConfig){.reward = length_reward}, &result), ST_RESOURCE);
        o.n--;
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward, .options.resume = true}, &result));
        assert_int_equal(result.replayed, half);
        check_same(whole, stopped, "rows.jsonl");
        check_same(whole, stopped, "rejected.jsonl");
        char *page = read_output(whole, "report.html"), *card = read_output(whole, "dataset_card.md");
        assert_true(has(page, "</html>") && has(card, cases[i].name));
        free(page);
        free(card);
    }
    temp_text(dir, "seeds.jsonl", seeds_text);
    str_release(&more);
}

/* A prompt that writes turns is asked as these turns, whatever texts it is filled with. */
TEST(conversations_are_asked_as_they_are_written) {
    SynthResult result;
    temp_text(dir, "seeds.jsonl",
              "{\"instruction\": \"Name \\u0001a colour\", \"output\": \"red\"}\n{\"instruction\": \"Count \\u0001 to two\", \"output\": \"1 2\"}\n");
    Overrides o = remote("few_shot", "good", "", "turns");
    set(&o, "synth.num_rows=2");
    set(&o, "synth.examples=2");
    check_ok(run(&o, false, &result));
    json_t *first = row_of("turns", "requests.jsonl", 0), *messages = json_object_get(first, "messages");
    static const char *const roles[] = {"system", "user", "assistant", "user", "assistant", "user"};
    assert_int_equal(json_array_size(messages), COUNT_OF(roles));
    for (size_t i = 0; i < COUNT_OF(roles); i++) {
        const json_t *message = json_array_get(messages, i);
        const char *content = column(message, "content");
        assert_string_equal(column(message, "role"), roles[i]);
        for (const char *at = content; *at; at++) assert_true(*at == '\n' || (unsigned char)*at >= ' ');
    }
    json_decref(first);
    temp_text(dir, "seeds.jsonl", seeds_text);
}

static void note_filters(void *context, const SynthPlan *plan) {
    static const char *const usual[] = {"empty", "length", "refusal", "exact"};
    bool *found = context;
    for (size_t k = 0; k < COUNT_OF(usual); k++) found[k] = filters_has(plan->filters, usual[k]);
}

TEST(whatever_a_teacher_says_is_taken) {
    static const char *const names[] = {"self-instruct",   "alpaca", "few_shot", "evol",       "magpie",
                                        "backtranslation", "qa",     "answer",   "preference", "rejection"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        SynthResult result;
        char output[64];
        snprintf(output, sizeof output, "babble-%s", names[i]);
        Overrides o = remote(names[i], "babble", "", output);
        set(&o, "synth.filters={rouge_l: false, exact: false, words: false, empty: false, length: false}");
        set(&o, "synth.max_requests=150");
        set(&o, "synth.num_rows=1000");
        set(&o, "synth.min_acceptance=0");
        if (strcmp(names[i], "qa") == 0) set(&o, "synth.chunk_size=16"), set(&o, "synth.chunk_overlap=4");
        if (strcmp(names[i], "magpie") == 0) set(&o, "synth.user_turn='<user>'");
        if (i < 2) set(&o, "synth.examples=3");
        Status status = run_with(&o, &(SynthConfig){.reward = length_reward}, &result);
        if (status != ST_OK && status != ST_INPUT) check_text("'synth.max_requests' is reached"); /* or no row was kept at all */
        assert_true(result.requests > 0);
    }
}

/* A preset's own filters do not leave out the usual ones. */
TEST(no_preset_keeps_empty_answers) {
    for (size_t i = 0; i < 10; i++) {
        static const char *const names[] = {"self-instruct",   "alpaca", "few_shot", "evol",       "magpie",
                                            "backtranslation", "qa",     "answer",   "preference", "rejection"};
        static const char *const usual[] = {"empty", "length", "refusal", "exact"};
        bool found[COUNT_OF(usual)] = {false};
        Overrides o = remote(names[i], "well", "", "plan");
        if (strcmp(names[i], "magpie") == 0) set(&o, "synth.user_turn='<user>'");
        if (i < 2) set(&o, "synth.examples=3");
        SynthResult result;
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward, .options.dry_run = true, .on_plan = note_filters, .context = found}, &result));
        for (size_t k = 0; k < COUNT_OF(usual); k++)
            if (found[k] != (k < 3 || i < 7)) fail_msg("preset '%s': filter '%s'", names[i], usual[k]); /* given prompts may be the same */
    }
}

/* A prompt whose answer is dropped can be asked again in a later round, and not twice in one. Seeds are prompts of the set from the beginning. */
TEST(only_kept_prompts_are_remembered) {
    SynthResult result;
    Overrides o = remote("few_shot", "stubborn", "", "stubborn");
    set(&o, "synth.num_rows=1");
    set(&o, "synth.filters={exact: true, rouge_l: false, minhash: 0.8, refusal: true}");
    check_ok(run(&o, false, &result));
    char *rejected = read_output("stubborn", "rejected.jsonl");
    size_t n = 0;
    for (const char *at = rejected; (at = strstr(at, "\"reason\": \"refusal\"")); at++) n++;
    assert_int_equal(n, 2); /* of the first two rounds, one each: the others of a round are the same */
    assert_true(has(rejected, "\"reason\": \"exact\"") && has(rejected, "\"nearest\": {\"id\": null, \"text\": \"Name the stubborn\"}"));
    free(rejected);
    json_t *row = row_of("stubborn", "rows.jsonl", 0);
    assert_string_equal(text_at(row, 0), "Name the stubborn");
    json_decref(row);
    int64_t all = result.requests;
    set(&o, "output=%s", temp_file(dir, "stubborn-stopped"));
    set(&o, "synth.max_requests=%lld", (long long)all - 5);
    check_status(run(&o, false, &result), ST_RESOURCE);
    o.n--;
    check_ok(run(&o, true, &result));
    assert_int_equal(result.requests, all);
    check_same("stubborn", "stubborn-stopped", "rows.jsonl");
    check_same("stubborn", "stubborn-stopped", "rejected.jsonl");
}

/* What a row is too much like is named by its line, where one was written of it. */
TEST(neighbours_are_named_by_their_line) {
    static const char *const filters[] = {"{exact: true, rouge_l: false}", "{exact: false, rouge_l: 0.7}",
                                          "{exact: {on: completion}, rouge_l: false}"}; /* the last is asked of whole rows */
    for (size_t i = 0; i < COUNT_OF(filters); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "neighbours-%zu", i);
        Overrides o = remote("few_shot", "stubborn", "", output);
        set(&o, "synth.num_rows=2");
        set(&o, "synth.max_requests=60");
        set(&o, "synth.filters=%s", filters[i]);
        check_status(run(&o, false, &result), ST_RESOURCE);
        assert_int_equal(result.rows, 1); /* there is only one prompt with one answer */
        char *rejected = read_output(output, "rejected.jsonl");
        if (!has(rejected, "\"nearest\": {\"id\": \"rows.jsonl line 1\", \"text\": \"Name the stubborn\"}")) fail_msg("%s: %s", filters[i], rejected);
        free(rejected);
    }
}

/* tune data filter --recipe judges as the run did: instances of one task are no duplicates of each other, rows that come twice are. */
TEST(rows_pass_the_filters_that_kept_them) {
    static const char *const formats[] = {"alpaca", "messages", "prompt_completion"};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        SynthResult result;
        Recipe *recipe;
        const Yaml *base;
        Filters *filters, *one_by_one;
        Arena *arena = arena_new(0);
        char output[48];
        snprintf(output, sizeof output, "self-instruct-%s", formats[i]);
        Overrides o = remote("self-instruct", "well", "", output);
        set(&o, "synth.num_rows=30");
        set(&o, "synth.examples=5");
        set(&o, "synth.format=%s", formats[i]);
        check_ok(run(&o, false, &result));
        check_ok(recipe_read(NULL, (const char *[]){"synth.preset=self-instruct"}, 1, &recipe));
        check_ok(synth_preset_filters(recipe, arena, &base));
        check_ok(filters_open(&(FilterConfig){.base = base}, &filters));
        check_ok(filters_open(&(FilterConfig){.base = base}, &one_by_one));
        FilterRow rows[60];
        FilterVerdict verdicts[60], verdict;
        size_t again = 0, n = (size_t)result.rows;
        for (size_t r = 0; r < 2 * n; r++) check_ok(filter_row_read(row_of(output, "rows.jsonl", r % n), arena, &rows[r]));
        check_ok(filters_run(filters, FILTER_BOTH, rows, 2 * n, verdicts));
        for (size_t r = 0; r < 2 * n; r++) {
            if (verdicts[r].kept != (r < n)) fail_msg("%s, row %zu: %s", formats[i], r, verdicts[r].reason ? verdicts[r].reason : "kept");
            check_ok(filters_run(one_by_one, FILTER_BOTH, &rows[r], 1, &verdict));
            assert_true(verdict.kept == verdicts[r].kept);
            again += r > 0 && r < n && slice_is(rows[r].instruction, arena_strndup(arena, rows[r - 1].instruction.data, rows[r - 1].instruction.len));
        }
        assert_true(again > 5); /* instances of the task before */
        for (size_t r = 0; r < 2 * n; r++) json_decref((json_t *)(uintptr_t)rows[r].json);
        filters_close(filters);
        filters_close(one_by_one);
        recipe_free(recipe);
        arena_free(arena);
    }
}

/* Prompts that are given pass their filters before anything is asked, and those that do not are no end. */
TEST(given_prompts_are_filtered_first) {
    static const struct {
        const char *name;
        int64_t requests;
    } cases[] = {{"answer", 6}, {"preference", 12}, {"rejection", 6}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SynthResult result;
        char output[64];
        snprintf(output, sizeof output, "given-%s", cases[i].name);
        Overrides o = remote(cases[i].name, "well", "", output);
        set(&o, "synth.filters={words: {min: 5}}");
        set(&o, "synth.n=2");
        set(&o, "synth.batch=2");
        check_ok(run_with(&o, &(SynthConfig){.reward = length_reward}, &result));
        assert_int_equal(result.requests, cases[i].requests);
        json_t *row = row_of(output, "rejected.jsonl", 0);
        assert_string_equal(json_string_value(json_object_get(row, "reason")), "words");
        assert_string_equal(text_at(json_object_get(row, "row"), 0), "Rewrite the sentence politely.\n\nGo away.");
        json_decref(row);
    }
}

static size_t n_rewarded;
static Status solution_reward(void *context, const FilterRow *rows, size_t n, double *values) {
    (void)context;
    n_rewarded += n;
    for (size_t i = 0; i < n; i++) values[i] = strcmp(json_string_value(json_object_get(rows[i].json, "output")), "4") == 0;
    return ST_OK;
}

/* Rewards compare with the columns of the seed, not of the row, and are computed once. */
TEST(rewards_see_the_seeds_columns) {
    static const char *const names[] = {"answer", "rejection"};
    temp_text(dir, "sums.jsonl",
              "{\"instruction\": \"What is 2 + 2?\", \"output\": \"4\"}\n{\"instruction\": \"What is 2 + 3?\", \"output\": \"5\"}\n");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        SynthResult result;
        char output[64];
        snprintf(output, sizeof output, "rewarded-%s", names[i]);
        Overrides o = remote(names[i], "well", "", output);
        set(&o, "synth.seeds=%s", temp_file(dir, "sums.jsonl"));
        set(&o, "synth.format=alpaca");
        set(&o, "synth.filters={reward: 0.5}");
        set(&o, "synth.n=1");
        n_rewarded = 0;
        check_ok(run_with(&o, &(SynthConfig){.reward = solution_reward}, &result));
        assert_int_equal(result.rows, 1);
        assert_int_equal(n_rewarded, 2);
    }
}

TEST(a_system_message_stays_with_its_rows) {
    SynthResult result;
    Overrides o = remote("preference", "well", "", "preferred");
    set(&o, "synth.system=Be brief.");
    check_ok(run(&o, false, &result));
    json_t *row = row_of("preferred", "rows.jsonl", 0), *prompt = json_object_get(row, "prompt");
    assert_int_equal(json_array_size(prompt), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(prompt, 0), "content")), "Be brief.");
    json_decref(row);
    o = remote("few_shot", "well", "base: true", "never-seen");
    set(&o, "synth.system=Be brief.");
    check_status(run(&o, false, &result), ST_CONFIG);
    check_text("'synth.system' needs a teacher that chats");
}

static void note_likeness(void *context, const SynthPlan *plan) { *(bool *)context = filters_has(plan->filters, "rouge_l"); }

/* A harder prompt may contain the one that it was made from. */
TEST(evol_does_not_mind_likeness) {
    static const char *const names[] = {"evol", "few_shot"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        bool found = i == 0;
        SynthResult result;
        Overrides o = remote(names[i], "well", "", "plan");
        check_ok(run_with(&o, &(SynthConfig){.options.dry_run = true, .on_plan = note_likeness, .context = &found}, &result));
        assert_int_equal(found, i == 1);
    }
}

TEST(a_judge_can_be_a_filter) {
    SynthResult result;
    Overrides o = remote("answer", "well", "", "judged");
    set(&o, "synth.filters={judge: 6}");
    set(&o, "synth.n=4");
    set(&o, "synth.judge={url: 'http://127.0.0.1:%d/well/v1', model: judge-1}", port);
    check_ok(run(&o, false, &result));
    assert_true(result.rows > 0 && result.rejected > 0);
    assert_int_equal(result.requests, 40); /* an answer and a score each */
    json_t *row = row_of("judged", "rejected.jsonl", 0);
    assert_string_equal(column(row, "reason"), "judge");
    assert_true(json_number_value(json_object_get(row, "score")) < 6);
    json_decref(row);
}

/* Chooses the best rows by the judge's score, with quotas of types; rows.jsonl is unchanged. */
TEST(the_best_rows_are_chosen) {
    SynthResult result;
    Overrides o = remote("answer", "well", "", "pool");
    set(&o, "synth.n=4");
    set(&o, "synth.num_rows=18");
    set(&o, "synth.filters={judge: 1}");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.selected, -1);
    set(&o, "output=%s", temp_file(dir, "chosen"));
    set(&o, "synth.select=6");
    set(&o, "synth.select_quality=judge");
    set(&o, "synth.select_quotas={facts: 2}");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.selected, 6);
    assert_int_equal(count_lines("chosen", "selected.jsonl"), 6);
    check_same("pool", "chosen", "rows.jsonl");
    double most = 0;
    size_t facts = 0;
    for (size_t n = 0; n < 18; n++) {
        json_t *row = row_of("chosen", "rows.jsonl", n);
        most = fmax(most, row_number(row, "judge"));
        json_decref(row);
    }
    double best = 0;
    for (size_t n = 0; n < 6; n++) {
        json_t *row = row_of("chosen", "selected.jsonl", n);
        facts += strcmp(column(row, "task_type"), "facts") == 0;
        best = fmax(best, row_number(row, "judge"));
        json_decref(row);
    }
    assert_int_equal(facts, 2);
    assert_true(best == most);
    char *card = read_output("chosen", "dataset_card.md");
    assert_true(has(card, "chosen of them: 6, in `selected.jsonl`"));
    free(card);
}

TEST(budgets_that_cannot_be_met_are_refused) {
    static const struct {
        const char *keys[3], *text;
        Status status;
    } cases[] = {
        {{"synth.select=500"}, "'synth.select' is 500, and 'synth.num_rows' makes 100", ST_CONFIG},
        {{"synth.select_quality=length"}, "'synth.select_quality' needs 'synth.select'", ST_CONFIG},
        {{"synth.select_quotas={facts: 1}"}, "'synth.select_quotas' needs 'synth.select'", ST_CONFIG},
        {{"synth.select=2", "synth.select_quality=judge"}, "neither a filter that is on nor a score of preset 'few_shot'", ST_CONFIG},
        {{"synth.select=2", "synth.select_quotas={fact: 1}"}, "names 'fact', and no seed has this task type", ST_CONFIG},
        {{"synth.select=2", "synth.select_quotas={facts: 3}"}, "asks for 3 rows, and 'synth.select' for 2", ST_CONFIG},
        {{"synth.select=2", "synth.select_quotas={facts: 1.5}"}, "gives 'facts' a number of rows that is not an integer", ST_CONFIG},
        {{"synth.select=2", "synth.select_share=evn"}, "wrong value 'evn' for 'synth.select_share'", ST_CONFIG},
        {{"synth.select=2", "synth.select_quality=refusal"}, "row 'rows.jsonl line 1' has no number 'refusal'", ST_INPUT},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Overrides o = remote("few_shot", "well", "", "no-budget");
        for (size_t k = 0; k < 3 && cases[i].keys[k]; k++) set(&o, "%s", cases[i].keys[k]);
        check_status(run(&o, false, &result), cases[i].status);
        check_text(cases[i].text);
    }
    Overrides o = remote("few_shot", "well", "", "no-budget"); /* what was asked by then is not lost */
    set(&o, "synth.select=2");
    check_ok(run(&o, true, &result));
    assert_true(result.selected == 2 && result.replayed > 0);
}

TEST(a_rubric_is_what_the_judge_reads) {
    static const char *const rubrics[] = {"", ", rubric: 'politeness 0-6, rhyme 0-4'"}, *const asked[] = {"by this: accuracy 0-3",
                                                                                                          "by this: politeness 0-6, rhyme 0-4. Say"};
    for (size_t i = 0; i < COUNT_OF(rubrics); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "rubric-%zu", i);
        Overrides o = remote("answer", "well", "", output);
        set(&o, "synth.filters={judge: {min: 1%s}}", rubrics[i]);
        check_ok(run(&o, false, &result));
        char *log = read_output(output, "requests.jsonl");
        assert_true(has(log, asked[i]));
        free(log);
    }
    SynthResult result;
    Overrides o = remote("preference", "well", "", "rubric-none");
    check_ok(run(&o, false, &result));
    char *log = read_output("rubric-none", "requests.jsonl");
    assert_true(has(log, "0 to 3 for accuracy"));
    free(log);
}

/* A judge that was cut has not said its score. */
TEST(a_cut_judge_says_nothing) {
    SynthResult result;
    Overrides o = remote("preference", "well", "", "cut-judge");
    set(&o, "synth.judge={url: 'http://127.0.0.1:%d/cutjudge/v1', model: judge-1}", port);
    check_status(run(&o, false, &result), ST_INPUT);
    check_text("no_score 5");
}

static Status first_is_best(void *context, const FilterRow *rows, size_t n, double *values) {
    (void)context, (void)rows;
    for (size_t i = 0; i < n; i++) values[i] = i % 4 == 0;
    return ST_OK;
}

/* One answer of four can be kept at most: a quarter is all there is. */
TEST(the_best_of_each_prompt_is_all_that_is_wanted) {
    SynthResult result;
    Overrides o = remote("rejection", "well", "", "best");
    set(&o, "synth.num_rows=30");
    set(&o, "synth.n=4");
    set(&o, "synth.min_acceptance=0.5");
    set(&o, "synth.acceptance_after=1");
    check_ok(run_with(&o, &(SynthConfig){.reward = first_is_best}, &result));
    assert_int_equal(result.rows, 5);
    assert_int_equal(result.requests, 20);
}

/* A teacher that continues texts sees the answers of other seeds, never the expected one. */
TEST(the_answer_is_not_given_away) {
    static const char *const outputs[] = {"Could you leave, please?", "It rains.", "I went.", "Air scatters blue light most.", "4.6 billion years."};
    SynthResult result;
    Overrides o = remote("answer", "well", "base: true", "own-seed");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.requests, 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *request = row_of("own-seed", "requests.jsonl", i);
        const char *prompt = json_string_value(json_object_get(request, "prompt"));
        size_t shown = 0;
        for (size_t k = 0; k < 5; k++) shown += has(prompt, outputs[k]);
        assert_false(has(prompt, outputs[json_integer_value(json_object_get(request, "number"))]));
        assert_true(shown >= 1 && shown <= 2);
        json_decref(request);
    }
}

TEST(rows_are_what_is_trained) {
    static const char *const formats[] = {"messages", "alpaca", "prompt_completion"};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        SynthResult result;
        Overrides o = remote("answer", "well", "", formats[i]);
        set(&o, "synth.format=%s", formats[i]);
        set(&o, "synth.system=Be brief.");
        check_ok(run(&o, false, &result));
        json_t *row = row_of(formats[i], "rows.jsonl", 0);
        const DataFormat *format = data_format_find(formats[i]);
        assert_true(format->detect(row));
        if (i == 0) assert_string_equal(text_at(row, 0), "Be brief.");
        json_decref(row);
        json_t *request = row_of(formats[i], "requests.jsonl", 0);
        assert_string_equal(text_at(request, 0), "Be brief.");
        json_decref(request);
    }
}

/* Of one prompt there are four answers: pairs with the same chosen one differ by the other. */
TEST(pairs_differ_by_the_answer_that_was_not_preferred) {
    enum { SEEDS = 40, ANSWERS = 4 };
    SynthResult result;
    Str seeds = {0};
    for (int i = 0; i < SEEDS; i++) str_append(&seeds, "{\"prompt\": \"How is it?\"}\n");
    temp_text(dir, "seeds.jsonl", str_text(&seeds));
    temp_text(dir, "labels.jinja", "{{ prompt }} Answer with one of these alone: good, bad");
    Overrides o = remote("preference", "well", "", "pairs");
    set(&o, "synth.num_rows=%d", SEEDS);
    set(&o, "synth.prompts={answer: %s}", temp_file(dir, "labels.jinja"));
    set(&o, "synth.filters={exact: {on: row}, length: false}");
    check_ok(run(&o, false, &result));
    assert_in_range(result.rows, ANSWERS + 1, ANSWERS * (ANSWERS - 1));
    temp_text(dir, "seeds.jsonl", seeds_text);
    str_release(&seeds);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_make_their_rows),
        cmocka_unit_test(conversations_are_asked_as_they_are_written),
        cmocka_unit_test(whatever_a_teacher_says_is_taken),
        cmocka_unit_test(no_preset_keeps_empty_answers),
        cmocka_unit_test(only_kept_prompts_are_remembered),
        cmocka_unit_test(neighbours_are_named_by_their_line),
        cmocka_unit_test(rows_pass_the_filters_that_kept_them),
        cmocka_unit_test(given_prompts_are_filtered_first),
        cmocka_unit_test(rewards_see_the_seeds_columns),
        cmocka_unit_test(a_system_message_stays_with_its_rows),
        cmocka_unit_test(evol_does_not_mind_likeness),
        cmocka_unit_test(a_judge_can_be_a_filter),
        cmocka_unit_test(the_best_rows_are_chosen),
        cmocka_unit_test(budgets_that_cannot_be_met_are_refused),
        cmocka_unit_test(a_rubric_is_what_the_judge_reads),
        cmocka_unit_test(a_cut_judge_says_nothing),
        cmocka_unit_test(the_best_of_each_prompt_is_all_that_is_wanted),
        cmocka_unit_test(the_answer_is_not_given_away),
        cmocka_unit_test(rows_are_what_is_trained),
        cmocka_unit_test(pairs_differ_by_the_answer_that_was_not_preferred),
    };
    return cmocka_run_group_tests(tests, write_seeds, stop_server);
}
