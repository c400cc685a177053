/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic rows from a teacher on a server: prompts, labels, limits, logs, seeds and recipes. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/rating.h"
#include "lib/base/system.h"
#include "tests/support/check.h"
#include "tests/support/durable.h"
#include "tests/support/synth_world.h"

/* ---- few_shot ---- */

TEST(few_shot_asks_for_a_prompt_and_answers_it) {
    static const char *const keys[] = {"seed_ids", "preset", "teacher", "template_hash", "sampling", "random_key", "parents", "scores"};
    SynthResult result;
    Overrides o = remote("few_shot", "once", "temperature: 0.5", "plain");
    set(&o, "synth.num_rows=20");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.rows, 20);
    assert_int_equal(count_lines("plain", "rows.jsonl"), 20);
    assert_int_equal(count_lines("plain", "requests.jsonl"), result.requests);
    json_t *row = row_of("plain", "rows.jsonl", 0);
    assert_true(text_starts_with(text_at(row, 0), "Tell ")); /* "3. Instruction:" was dropped */
    assert_true(text_starts_with(text_at(row, 1), "The "));
    const json_t *provenance = json_object_get(row, "provenance");
    for (size_t i = 0; i < COUNT_OF(keys); i++) assert_non_null(json_object_get(provenance, keys[i]));
    check_close(json_real_value(json_object_get(json_object_get(json_object_get(provenance, "sampling"), "answer"), "temperature")), 0.5, 0);
    double likeness = json_number_value(json_object_get(json_object_get(provenance, "scores"), "rouge_l"));
    assert_true(likeness >= 0 && likeness <= 0.7);
    assert_true(json_is_real(json_object_get(json_object_get(provenance, "scores"), "rouge_l")));
    char *page = read_output("plain", "report.html");
    assert_true(has(page, "Likeness to the nearest"));
    free(page);
    size_t n = json_array_size(json_object_get(provenance, "seed_ids"));
    assert_true(n >= 1 && n <= 5);
    /* the answer's request is the prompt itself */
    json_int_t number = json_integer_value(json_array_get(json_object_get(json_object_get(provenance, "random_key"), "requests"), 1));
    bool found = false;
    for (size_t i = 0; i < count_lines("plain", "requests.jsonl") && !found; i++) {
        json_t *request = row_of("plain", "requests.jsonl", i);
        found = json_integer_value(json_object_get(request, "number")) == number;
        if (found) assert_string_equal(text_at(request, 0), text_at(row, 0));
        if (found) assert_int_equal(json_array_size(json_object_get(request, "messages")), 1);
        json_decref(request);
    }
    assert_true(found);
    json_decref(row);
}

TEST(a_heading_is_dropped) {
    static const char *const cases[][2] = {
        {" 1. Say hello. ", "Say hello."},
        {"12) Say", "Say"},
        {"- Say", "Say"},
        {"* 2. Instruction: Say", "Say"},
        {"\xe2\x80\xa2 Say", "Say"},
        {"INSTRUCTION:Say", "Say"},
        {"3.5 is a number", "3.5 is a number"},
        {"2024 was a year", "2024 was a year"},
        {"-1 is less", "-1 is less"},
        {"1.", ""},
        {"", ""},
        {"Instructional text", "Instructional text"},
        {"10:30 is when we meet", "10:30 is when we meet"},
        {"10: Say", "Say"},
        {"4)5 is odd", "4)5 is odd"},
        {"**Instruction:** Say", "Say"},
        {"**Task 5:** Say **it** now", "Say **it** now"},
        {"Task 5: Say", "Say"},
        {"**Say hello.**", "Say hello."},
        {"9. **Task**: Say", "Say"},
        {"**Instruction: Say**", "Say"},
        {"Request #2: **Say**", "Say"},
        {"Tasks are many", "Tasks are many"},
        {"**A** and **B**", "**A** and **B**"},
        {"2 ** 3 is what?", "2 ** 3 is what?"},
        {"****", ""},
        {"**", ""},
        {"Task:", ""},
    };
    Synth s = {.round = {.arena = arena_new(0)}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) assert_string_equal(synth_clean(&s, cases[i][0]), cases[i][1]);
    arena_free(s.round.arena);
}

/* A field keeps its lists and what is bold within it. */
TEST(a_field_is_without_its_decoration) {
    static const char *const cases[][2] = {{"** Past **", "Past"}, {"** Past", "Past"},          {"Past **", "Past"}, {"* a\n* b", "* a\n* b"},
                                           {"**a** b", "**a** b"}, {"1. a\n2. b", "1. a\n2. b"}, {" ", ""},           {"", ""}};
    static const struct {
        const char *line, *text;
    } names[] = {
        {"Output: x", " x"},     {"**Output:** x", "** x"}, {"2. **output**: x", " x"},
        {"### Output 3:x", "x"}, {"- Output:", ""},         {"Outputs: x", NULL},
        {"the Output: x", NULL}, {"Output", NULL},          {"", NULL},
    };
    Synth s = {.round = {.arena = arena_new(0)}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) assert_string_equal(synth_field(&s, cases[i][0], cases[i][0] + strlen(cases[i][0])), cases[i][1]);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *text = synth_text_after_name(names[i].line, "output");
        if (!text != !names[i].text) fail_msg("'%s'", names[i].line);
        if (text) assert_string_equal(text, names[i].text);
    }
    arena_free(s.round.arena);
}

TEST(a_score_is_what_a_judge_means) {
    static const struct {
        const char *text;
        double score;
    } cases[] = {
        {"Score: 2 / 10", 2},
        {"Score: 3 out of 10", 3},
        {"Score: 8 (out of 10)", 8},
        {"Score: 8\n(accuracy 3, clarity 2)", 8},
        {"Accuracy 3/3, but dull.\nScore: 4/10", 4},
        {"SCORE: **7**/10", 7},
        {"The score (1-10): 6", 6},
        {"Score (out of 10): 5", 5},
        {"8/10", 8},
        {"8 out of 10", 8},
        {"first 3, then 9", 9},
        {"7 of 2024", 7},
        {"Score: 7.5", 7.5},
        {"Score: 4. It lost points, so the score is low", 4},
        {"Score: 11/10", (double)NAN},
        {"Score: 0 / 10", (double)NAN},
        {"Score:", (double)NAN},
        {"", (double)NAN},
        {"out of 10", (double)NAN},
        {"Score: 8. It scores well on accuracy (3 points) though.", 8},
        {"I rate it 8 out of 10.", 8},
        {"7 (scale 0-10)", 7},
        {"The rating is **8.5** / 10.", 8.5},
        {"Accuracy: I score it 3/10.\n\n8\n", 8},
        {"Its score is low, 2.\n**9/10**", 9},
        {"-3", (double)NAN},
        {"6, as GPT4 would", 6},
        {"Good.\nScore: 3 + 2 + 2 + 3 = 10", 10},
        {"Score: 3/3 + 2/2 + 1/2 = **6**/10", 6},
        {"Accuracy score: 3\nRelevance score: 2\nClarity score: 2\nUsefulness score: 2\nTotal: 9", 9},
        {"The total score is: 3+2+2+2 = 9.", 9},
        {"Score: 9 (3+2+2+2)", 9},
        {"Score: 3 + 2 + 2", (double)NAN},
        {"Score: 8, because x = 3", 8},
        {"Score: 7. In total it has 3 errors", 7},
        {"8.5/10 because 2 things are wrong", 8.5},
        {"Score: 8 (10 = perfect)", 8},
        {"Score: 8 (8 = good, 10 = perfect)", 8},
        {"Good work. Rating: 7 (1 = bad, 10 = best) overall", 7},
        {"Score: 7 = good. 3 small slips", 7},
        {"Score: 8/10 = 80%", 8},
        {"Rating: 4/5 = 0.8", 4},
        {"Score: 8+", 8},
        {"Score: 8 + clear style", 8},
        {"Score: 6, fine. Total: 3 errors, all small", 6},
        {"I give it 8 out of 10, not 9", 8},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        double score = rating_of(cases[i].text, 1, 10);
        if (isnan(cases[i].score) ? !isnan(score) : score != cases[i].score) fail_msg("'%s' gives %g", cases[i].text, score);
    }
}

TEST(a_reply_names_one_label) {
    static const char *const labels[] = {"good", "not good", "not", " 1", " 10", "+1", "\xd0\xb4\xd0\xb0", "\xe6\xad\xa3"};
    static const struct {
        const char *reply, *label;
    } cases[] = {
        {"good", "good"},
        {" **Good**.", "good"},
        {"Not good at all", "not good"},
        {"not bad", "not"},
        {"1", " 1"},
        {"10", " 10"},
        {"10/10", " 10"},
        {"+1", "+1"},
        {"goodness", ""},
        {"", ""},
        {"hm", ""},
        {"Label: good", "good"},
        {"It is good. Yes, good.", "good"},
        {"It is good, or not", ""},
        {"It is not good.", "not good"},
        {"\xd0\xb4\xd0\xb0", "\xd0\xb4\xd0\xb0"},
        {"\xe3\x80\x8c\xe6\xad\xa3\xe3\x80\x8d", "\xe6\xad\xa3"},
        {"the 100", ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *chosen = teacher_choice(cases[i].reply, labels, COUNT_OF(labels));
        if (strcmp(chosen, cases[i].label) != 0) fail_msg("'%s' gives '%s', expected '%s'", cases[i].reply, chosen, cases[i].label);
    }
}

static const char sentiments[] =
    "{\"prompt\": \"Cold soup.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n{\"prompt\": \"Warm bread!\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n"
    "{\"prompt\": \"The waiter ran.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n{\"prompt\": \"We will be back.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n"
    "{\"prompt\": \"Never again.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n{\"prompt\": \"It was lunch.\", \"task_type\": \"review\", \"of\": [\"good\", \"bad\"]}\n";

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The lines of a file in alphabetical order. */
static char *sorted_lines(const char *output, const char *name) {
    char *text = read_output(output, name), *lines[64], *at;
    Str sorted = {0};
    size_t n = 0;
    for (at = strtok(text, "\n"); at && n < COUNT_OF(lines); at = strtok(NULL, "\n")) lines[n++] = at;
    assert_null(at);
    qsort(lines, n, sizeof *lines, by_text);
    for (size_t i = 0; i < n; i++) str_printf(&sorted, "%s\n", lines[i]);
    free(text);
    return sorted.data;
}

/* What a server says becomes the label it names, or the row is rejected; by the seeds' column or by task type. The user's words are the prompt alone.
 */
TEST(a_servers_words_become_a_label) {
    static const char *const keys[] = {"synth.labels=of", "synth.labels={review: [good, bad]}"};
    temp_text(dir, "sentiments.jsonl", sentiments);
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "labels-%zu", i);
        Overrides o = remote("answer", "well", "", output);
        set(&o, "synth.seeds=%s", temp_file(dir, "sentiments.jsonl"));
        set(&o, "synth.n=4");
        set(&o, "%s", keys[i]);
        check_ok(run(&o, false, &result));
        assert_true(result.rows > 0 && result.rejected > 0);
        size_t none = 0;
        for (size_t n = 0; n < (size_t)result.rows; n++) {
            json_t *row = row_of(output, "rows.jsonl", n);
            assert_true(strcmp(text_at(row, 1), "good") == 0 || strcmp(text_at(row, 1), "bad") == 0);
            assert_null(strstr(text_at(row, 0), "Answer with"));
            json_decref(row);
        }
        for (size_t n = 0; n < (size_t)result.rejected; n++) {
            json_t *row = row_of(output, "rejected.jsonl", n);
            none += strcmp(column(row, "reason"), "no_label") == 0;
            json_decref(row);
        }
        assert_true(none > 0);
    }
    check_same("labels-0", "labels-1", "rows.jsonl");
    char *one = sorted_lines("labels-0", "requests.jsonl"), *other = sorted_lines("labels-1", "requests.jsonl"); /* written as answers come in */
    assert_string_equal(one, other);
    free(one);
    free(other);
}

TEST(labels_that_make_no_sense_are_refused) {
    static const struct {
        const char *preset, *key, *text;
        Status status;
    } cases[] = {
        {"answer", "synth.labels={reviews: [good, bad]}", "no seed has the task type 'reviews'", ST_CONFIG},
        {"answer", "synth.labels={review: [good]}", "expected a list of two or more different labels for 'review'", ST_CONFIG},
        {"answer", "synth.labels={review: [good, good]}", "expected a list of two or more different labels", ST_CONFIG},
        {"answer", "synth.labels=[good, bad]", "expected a map of task types, or the name of a column", ST_CONFIG},
        {"answer", "synth.labels=off", "seed 'seed_1' has no list of two or more different texts in 'off'", ST_INPUT},
        {"few_shot", "synth.labels=of", "new prompts have no seed with such a column", ST_CONFIG},
        {"evol", "synth.labels=of", "preset 'evol' does not take 'synth.labels'", ST_CONFIG},
        {"answer", "synth.check_labels=true", "preset 'answer' does not take 'synth.check_labels'", ST_CONFIG},
        {"answer", "synth.choose_by=guess", "wrong value 'guess' for 'synth.choose_by'", ST_CONFIG},
    };
    temp_text(dir, "sentiments.jsonl", sentiments);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        SynthResult result;
        Overrides o = remote(cases[i].preset, "well", "", "no-labels");
        set(&o, "synth.seeds=%s", temp_file(dir, "sentiments.jsonl"));
        set(&o, "%s", cases[i].key);
        check_status(run(&o, false, &result), cases[i].status);
        check_text(cases[i].text);
    }
}

/* Instances of a classification are asked for their labels again; rows of other tasks are not. */
TEST(labels_of_classifications_are_checked) {
    SynthResult result;
    Overrides o = remote("self-instruct", "well", "", "checked");
    set(&o, "synth.num_rows=30");
    set(&o, "synth.examples=5");
    set(&o, "synth.format=alpaca");
    set(&o, "synth.check_labels=true");
    check_ok(run(&o, false, &result));
    size_t classified = 0, others = 0, none = 0;
    for (size_t n = 0; n < (size_t)result.rows; n++) {
        json_t *row = row_of("checked", "rows.jsonl", n);
        bool asked = json_object_get(json_object_get(json_object_get(row, "provenance"), "template_hash"), "label") != NULL;
        assert_int_equal(asked, strcmp(column(row, "task_type"), "classification") == 0);
        classified += asked;
        json_decref(row);
    }
    for (size_t n = 0; n < (size_t)result.rejected; n++) {
        json_t *row = row_of("checked", "rejected.jsonl", n);
        others += strcmp(column(row, "reason"), "other_label") == 0;
        none += strcmp(column(row, "reason"), "no_label") == 0;
        json_decref(row);
    }
    assert_true(classified > 0 && others > 0 && none > 0);
}

/* What is paid for is on the disk when the run says that it is finished; a resumed run says of itself what one says that was not. */
TEST(what_is_finished_outlives_a_power_cut) {
    SynthResult result;
    Overrides o = remote("few_shot", "well", "", "durable");
    set(&o, "synth.num_rows=10");
    durable_begin("finished.json", 0);
    check_ok(run_with(&o, &(SynthConfig){.options.command = "tune data synth x.yaml"}, &result));
    assert_string_equal(durable_lost(), "");
    char *card = read_output("durable", "dataset_card.md");
    check_ok(dir_remove(temp_file(temp_file(dir, "durable"), "checkpoints")));
    assert_int_equal(unlink(temp_file(temp_file(dir, "durable"), "finished.json")), 0);
    check_ok(run_with(&o, &(SynthConfig){.options = {.command = "tune data synth x.yaml --resume", .resume = true}}, &result));
    char *again = read_output("durable", "dataset_card.md");
    assert_string_equal(card, again);
    free(card);
    free(again);
}

TEST(a_server_gets_values_for_its_template) {
    SynthResult result;
    Overrides o = remote("few_shot", "kwargs", "template_kwargs: {enable_thinking: false, depth: 2}", "kwargs");
    set(&o, "synth.num_rows=4");
    check_ok(run(&o, false, &result));
    assert_int_equal(result.rows, 4);
    char *card = read_output("kwargs", "dataset_card.md");
    assert_true(has(card, "its chat template gets `{\"enable_thinking\": false, \"depth\": 2}`"));
    free(card);
    Overrides without = remote("few_shot", "kwargs", "retries: 0", "no-kwargs");
    set(&without, "synth.acceptance_after=8");
    check_status(run(&without, false, &result), ST_INPUT);
    check_text("refused_by_server");
}

TEST(a_limit_ends_the_run_and_a_higher_one_goes_on) {
    static const struct {
        const char *limit, *higher;
    } cases[] = {{"synth.max_requests=13", "synth.max_requests=null"},
                 {"synth.max_tokens=1500", "synth.max_tokens=1000000"},
                 {"synth.max_cost=0.004", "synth.max_cost=9"}};
    SynthResult result;
    Overrides well = remote("few_shot", "well", "", "limit-well");
    set(&well, "synth.num_rows=12");
    check_ok(run(&well, false, &result));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char output[32];
        snprintf(output, sizeof output, "limit-%zu", i);
        Overrides o = remote("few_shot", "once", "price_in: 1, price_out: 20", output);
        set(&o, "synth.num_rows=12");
        set(&o, "seed=%zu", 42 + i); /* other questions for each case: the server takes none twice */
        set(&o, "%s", cases[i].limit);
        check_status(run(&o, false, &result), ST_RESOURCE);
        check_text("is reached");
        if (i == 0) assert_int_equal(result.requests, 13);
        o.n--;
        set(&o, "%s", cases[i].higher);
        check_ok(run(&o, true, &result));
        assert_int_equal(result.rows, 12);
        check_close(result.cost, (double)result.requests * 300e-6, 1e-9);
        if (i == 0) check_same("limit-0", "limit-well", "rows.jsonl");
    }
}

/* Requests are begun no faster than allowed, by their number and by the tokens (110 each) of those before: the rows are the same. */
TEST(rates_are_kept) {
    static const struct {
        const char *limit;
        double seconds;
        size_t free;
    } cases[] = {{"requests_per_second: 40", 1.0 / 40, 1},
                 {"tokens_per_minute: 165000, concurrency: 2", 110 * 60.0 / 165000, 2}}; /* free: those that wait for none */
    SynthResult result;
    Overrides o = remote("few_shot", "well", "", "rate-none");
    set(&o, "synth.num_rows=10");
    check_ok(run(&o, false, &result));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char output[32];
        snprintf(output, sizeof output, "rate-%zu", i);
        o = remote("few_shot", "well", cases[i].limit, output);
        set(&o, "synth.num_rows=10");
        double began = clock_seconds();
        check_ok(run(&o, false, &result));
        double seconds = clock_seconds() - began, least = (double)((size_t)result.requests - cases[i].free) * cases[i].seconds;
        if (seconds < least) fail_msg("%s: %lld requests in %g s, expected %g s", cases[i].limit, (long long)result.requests, seconds, least);
        check_same("rate-none", output, "rows.jsonl");
    }
}

TEST(a_log_is_replayed_without_the_server) {
    SynthResult result;
    Overrides first = remote("few_shot", "well", "", "logged");
    set(&first, "synth.num_rows=10");
    check_ok(run(&first, false, &result));
    Overrides again = first;
    set(&again, "synth.teacher={replay: %s/requests.jsonl}", temp_file(dir, "logged"));
    set(&again, "output=%s", temp_file(dir, "replayed"));
    check_ok(run(&again, false, &result));
    assert_int_equal(result.rows, 10);
    json_t *a = row_of("logged", "rows.jsonl", 9), *b = row_of("replayed", "rows.jsonl", 9);
    assert_true(json_equal(json_object_get(a, "messages"), json_object_get(b, "messages")));
    json_decref(a);
    json_decref(b);
    set(&again, "output=%s", temp_file(dir, "replayed-not"));
    set(&again, "seed=7");
    check_status(run(&again, false, &result), ST_INPUT);
    check_text("request 0 is not in");
}

TEST(nonsense_is_counted_until_it_is_too_much) {
    SynthResult result;
    Overrides o = remote("few_shot", "echo", "", "echo");
    set(&o, "synth.acceptance_after=40");
    set(&o, "synth.min_acceptance=0.1");
    check_status(run(&o, false, &result), ST_INPUT);
    check_text("of 40 candidates were kept, which is below 'synth.min_acceptance' 0.1; rejected: ");
    assert_int_equal(count_lines("echo", "rows.jsonl") + count_lines("echo", "rejected.jsonl"), 40);
    Overrides refused = remote("few_shot", "refusing", "", "refusing");
    set(&refused, "synth.num_rows=10");
    check_ok(run(&refused, false, &result));
    json_t *row = row_of("refusing", "rejected.jsonl", 0);
    assert_string_equal(json_string_value(json_object_get(row, "reason")), "refused_by_server");
    json_decref(row);
}

TEST(replies_without_candidates_end_a_run) {
    static const char *const presets[] = {"alpaca", "self-instruct"};
    for (size_t i = 0; i < COUNT_OF(presets); i++) {
        SynthResult result;
        char output[32];
        snprintf(output, sizeof output, "hashes-%zu", i);
        Overrides o = remote(presets[i], "hashes", "", output);
        set(&o, "synth.examples=3");
        set(&o, "synth.acceptance_after=20");
        set(&o, "synth.max_requests=300");
        check_status(run(&o, false, &result), ST_INPUT);
        check_text("below 'synth.min_acceptance'");
        check_text(i == 0 ? "wrong_form 2" : "no_task 2");
        assert_true(result.requests < 100);
    }
}

TEST(what_is_complete_is_not_refused) {
    SynthResult result;
    Overrides o = remote("few_shot", "well", "", "complete");
    set(&o, "synth.num_rows=5");
    set(&o, "synth.min_acceptance=0.9");
    set(&o, "synth.acceptance_after=1");
    check_ok(run(&o, false, &result)); /* 8 questions at once, so 3 answers more than wanted */
    assert_int_equal(result.rows, 5);
    assert_int_equal(result.rejected, 3);
    json_t *row = row_of("complete", "rejected.jsonl", 2);
    assert_string_equal(json_string_value(json_object_get(row, "reason")), "beyond_num_rows");
    json_decref(row);
}

/* ---- seeds and recipes ---- */

TEST(seeds_that_are_none_are_named) {
    static const struct {
        const char *text, *more, *message;
    } cases[] = {
        {"{\"instruction\": \"Say.\", \"instances\": []}\n{\"output\": \"x\"}\n", "", "line 2"},
        {"{\"instruction\": \"\", \"instances\": [{\"input\": \"\", \"output\": \"x\"}]}\n", "", "line 1: the seed has no instruction"},
        {"{\"instruction\": \"Say.\", \"output\": \"x\", \"task_type\": 3}\n", "", "line 1: 'task_type' is not a text"},
        {"{\"instruction\": \"Say.\", \"output\": \"x\", \"is_classification\": \"no\"}\n", "", "line 1: 'is_classification' is neither"},
        {"{\"instruction\"\n", "", "line 1"},
        {"\n", "", "holds no seeds"},
        {"{\"instruction\": \"A.\", \"output\": \"x\", \"task_type\": \"t\"}\n{\"instruction\": \"B.\", \"output\": \"x\", \"task_type\": \"u\"}\n",
         "synth.examples=2", "task type 't' has 1 seed, but synth.examples needs 2"},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Overrides o = remote("few_shot", "well", "", "bad-seeds");
        temp_text(dir, "bad.jsonl", cases[i].text);
        set(&o, "synth.seeds=%s", temp_file(dir, "bad.jsonl"));
        if (cases[i].more[0]) set(&o, "%s", cases[i].more);
        check_status(run(&o, false, &result), ST_INPUT);
        check_text(cases[i].message);
    }
}

TEST(recipes_that_make_no_sense_are_refused) {
    static const struct {
        const char *key, *text;
    } cases[] = {
        {"synth.teacher=null", "'synth.teacher' is missing"},
        {"synth.teacher={url: 'http://x/v1'}", "lacks 'model'"},
        {"synth.teacher={modle: x}", "key 'synth.teacher': unknown option 'modle'"},
        {"synth.teacher={model: x, concurrency: 3}", "has 'concurrency', which belongs to 'url'"},
        {"synth.teacher={model: x, template_kwargs: [1]}", "its 'template_kwargs' is not a map"},
        {"synth.teacher={model: x, base: true, template_kwargs: {a: 1}}", "'template_kwargs' does nothing with 'base: true'"},
        {"synth.teacher={url: 'http://127.0.0.1:1/v1', api: completions, model: x, template_kwargs: {a: 1}}", "does nothing with 'api: completions'"},
        {"synth.teacher={url: 'ftp://x', model: m}", "'synth.teacher.url': a server's url begins with http"},
        {"synth.teacher={model: x, temperature: hot}", "wrong value for 'temperature': expected a number from 0 to 100"},
        {"synth.teacher={model: x, chat_template: ''}", "'chat_template' is empty"},
        {"synth.teacher={model: x, compute: f64}", "wrong value for 'compute': expected one of auto|f32|bf16"},
        {"synth.teacher=x", "key 'synth.teacher': expected a map of options"},
        {"synth.teacher={url: 'http://x', model: m, replay: x}", "a log to replay and a server"},
        {"synth.prompts={promt: x}", "unknown stage 'promt'"},
        {"synth.sampling={answer: {top_p: 3}}", "key 'synth.sampling.answer': wrong value for 'top_p'"},
        {"synth.examples=[3, 2]", "'synth.examples'"},
        {"synth.teacher={url: 'https://me:pa@ss@h/v1', model: m}", "its 'url' has a user or a password"},
        {"synth.judge={url: 'http://h/v1?key=s3', model: m}", "has a 'url' with '?' or '#'"},
        {"synth.judge={url: 'http://h/v1', model: m}", "preset 'few_shot' does not use 'synth.judge'"},
        {"synth.tasks_per_request=5", "preset 'few_shot' does not take 'synth.tasks_per_request'"},
        {"synth.seeds=null", "'synth.seeds' is missing"},
        {"synth.max_cost=1", "'synth.max_cost' needs prices"},
    };
    SynthResult result;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Overrides o = remote("few_shot", "well", "", "bad-recipe");
        set(&o, "%s", cases[i].key);
        check_status(run(&o, false, &result), ST_CONFIG);
        check_text(cases[i].text);
    }
}

TEST(other_seeds_make_another_run) {
    SynthResult result;
    Overrides o = remote("few_shot", "well", "", "changed");
    set(&o, "synth.max_requests=3");
    check_status(run(&o, false, &result), ST_RESOURCE);
    Str text = {0};
    str_printf(&text, "%s{\"instruction\": \"One more.\", \"output\": \"x\"}\n", seeds_text);
    temp_text(dir, "seeds.jsonl", text.data);
    check_status(run(&o, true, &result), ST_CONFIG);
    check_text("'synth.seeds', or a file that it names, has changed");
    temp_text(dir, "seeds.jsonl", seeds_text);
    str_release(&text);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_shot_asks_for_a_prompt_and_answers_it),
        cmocka_unit_test(a_heading_is_dropped),
        cmocka_unit_test(a_field_is_without_its_decoration),
        cmocka_unit_test(a_score_is_what_a_judge_means),
        cmocka_unit_test(a_reply_names_one_label),
        cmocka_unit_test(a_servers_words_become_a_label),
        cmocka_unit_test(labels_that_make_no_sense_are_refused),
        cmocka_unit_test(labels_of_classifications_are_checked),
        cmocka_unit_test(what_is_finished_outlives_a_power_cut),
        cmocka_unit_test(a_server_gets_values_for_its_template),
        cmocka_unit_test(a_limit_ends_the_run_and_a_higher_one_goes_on),
        cmocka_unit_test(rates_are_kept),
        cmocka_unit_test(a_log_is_replayed_without_the_server),
        cmocka_unit_test(nonsense_is_counted_until_it_is_too_much),
        cmocka_unit_test(replies_without_candidates_end_a_run),
        cmocka_unit_test(what_is_complete_is_not_refused),
        cmocka_unit_test(seeds_that_are_none_are_named),
        cmocka_unit_test(recipes_that_make_no_sense_are_refused),
        cmocka_unit_test(other_seeds_make_another_run),
    };
    return cmocka_run_group_tests(tests, write_seeds, stop_server);
}
