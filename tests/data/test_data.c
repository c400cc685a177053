/* SPDX-License-Identifier: Apache-2.0 */
/* From files to batches: readers, formats, limits, orders, plans. */
#include "data/data.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static char folder[256];
static Tokenizer *tokenizer;
enum { BOS = 0, EOS = 1, AB = 2, FIRST_CHAR = 3 };

/* One token per printable character, '\n', and "ab"; BOS is put before every text. */
static void write_tokenizer(void) {
    Str json = {0};
    str_append(
        &json,
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"normalizer\": null, \"pre_tokenizer\": null, \"decoder\": null, \"added_tokens\": [");
    for (int i = 0; i < 2; i++)
        str_printf(
            &json,
            "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}",
            i ? ", " : "", i, i ? "</s>" : "<s>");
    str_append(
        &json,
        "], \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
        "\"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {\"<s>\": "
        "{\"id\": \"<s>\", \"ids\": [0], \"tokens\": [\"<s>\"]}}}, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"vocab\": {\"<s>\": 0, \"</s>\": 1, \"ab\": 2");
    for (int c = 31, id = FIRST_CHAR; c < 127; c++, id++) {
        char text[1] = {(char)(c == 31 ? '\n' : c)};
        str_append(&json, ", ");
        str_append_json(&json, text, 1);
        str_printf(&json, ": %d", id);
    }
    str_append(&json, "}, \"merges\": [\"a b\"]}}");
    temp_text(folder, "tokenizer.json", str_text(&json));
    temp_text(folder, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
    str_release(&json);
}

static int32_t id_of(char c) { return c == '\n' ? FIRST_CHAR : FIRST_CHAR + 1 + (c - 32); }

static int data_begin(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    write_tokenizer();
    check_ok(tokenizer_load(folder, &tokenizer));
    return 0;
}

static int data_end(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    temp_dir_remove(folder);
    return 0;
}

static const DataConfig plain = {.train_on = "auto", .max_length = 1000, .truncation = "error", .vocab_size = 99};

static Status data_load(const char *name, const char *text, const DataConfig *config, Dataset **dataset) {
    DataSource source = {.path = temp_text(folder, name, text)};
    return dataset_load(config, &source, 1, tokenizer, dataset);
}

/* Compares the tokens of an example as text ('^' is BOS, '$' EOS, '=' "ab") and the mask, which has a '.' for each untrained token. */
static void check_example(const Dataset *dataset, size_t i, const char *tokens, const char *marks) {
    Example example = dataset_example(dataset, i);
    char text[512], labels[512];
    for (int32_t t = 0; t < example.n; t++) {
        int32_t id = example.ids[t], label = example_label(&example, t);
        text[t] = id == BOS ? '^' : id == EOS ? '$' : id == AB ? '=' : id == FIRST_CHAR ? '\n' : (char)(32 + id - FIRST_CHAR - 1);
        labels[t] = label == LABEL_NONE ? '.' : '1';
        if (label != LABEL_NONE) assert_int_equal(label, id);
    }
    text[example.n] = labels[example.n] = '\0';
    assert_string_equal(text, tokens);
    assert_string_equal(labels, marks);
}

TEST(texts_get_bos_and_eos_once) {
    Dataset *dataset;
    check_ok(data_load("text.jsonl", "{\"text\": \"hi\"}\n{\"text\": \"<s>hi</s>\"}\n{\"text\": \"hi</s>!\"}\n{\"text\": \"\"}\n", &plain, &dataset));
    assert_string_equal(dataset->format, "text");
    check_example(dataset, 0, "^hi$", ".111");
    check_example(dataset, 1, "^hi$", ".111");
    check_example(dataset, 2, "^hi$!$", ".11111");
    check_example(dataset, 3, "^$", ".1");
    assert_int_equal(dataset->counts.duplicates, 1);
    assert_int_equal(dataset->counts.tokens, 16);
    assert_int_equal(dataset->counts.trained_tokens, 12);
    assert_int_equal(dataset->longest, 6);
    dataset_free(dataset);
}

TEST(answers_are_trained_from_the_border_on) {
    Dataset *dataset;
    static const char rows[] = "{\"prompt\": \"2+2=\", \"completion\": \"4\", \"source\": 7}\n"
                               "{\"prompt\": \"xa\", \"completion\": \"bc\"}\n" /* the border falls into the token \"ab\" */
                               "{\"prompt\": \"\", \"completion\": \"abc\"}\n"
                               "{\"prompt\": \"xy\", \"completion\": \"\"}\n";
    check_ok(data_load("pairs.jsonl", rows, &plain, &dataset));
    assert_string_equal(dataset->format, "prompt_completion");
    check_example(dataset, 0, "^2+2=4$", ".....11");
    assert_int_equal(dataset_example(dataset, 0).ids[1], id_of('2'));
    check_example(dataset, 1, "^x=c$", "..111");
    check_example(dataset, 2, "^=c$", ".111");
    check_example(dataset, 3, "^xy$", "...1");
    assert_int_equal(dataset->counts.remapped, 1);
    dataset_free(dataset);
    DataConfig all = plain;
    all.train_on = "all";
    check_ok(data_load("pairs.jsonl", rows, &all, &dataset));
    check_example(dataset, 0, "^2+2=4$", ".111111");
    dataset_free(dataset);
    DataConfig completion = plain;
    completion.train_on = "completion";
    check_status(data_load("text.jsonl", "{\"text\": \"hi\"}\n", &completion, &dataset), ST_CONFIG);
    check_status(data_load("ids.jsonl", "{\"input_ids\": [3, 4], \"labels\": [-100, 4]}\n", &completion, &dataset), ST_CONFIG);
    check_text("'data.train_on' is completion, but rows of format ids");
}

/* Of a row that is answered by "3". */
static void check_alpaca(const char *row, const char *prompt) {
    char tokens[512], marks[512];
    int n = snprintf(tokens, sizeof tokens, "^%s3$", prompt);
    memset(marks, '.', (size_t)n);
    strcpy(marks + n - 2, "11");
    Dataset *dataset;
    check_ok(data_load("alpaca.json", row, &plain, &dataset));
    check_example(dataset, 0, tokens, marks);
    dataset_free(dataset);
}

TEST(alpaca_is_worded_as_by_its_authors) {
    check_alpaca(
        "[{\"instruction\": \"Add.\", \"input\": \"1 2\", \"output\": \"3\"}]",
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes "
        "the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:");
    check_alpaca(
        "[{\"instruction\": \"Add.\", \"input\": null, \"output\": \"3\"}]",
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Response:");
}

static void check_labels(const Dataset *dataset, size_t i, const int32_t *expected, int32_t n) {
    Example example = dataset_example(dataset, i);
    int32_t labels[16];
    for (int32_t t = 0; t < example.n; t++) labels[t] = example_label(&example, t);
    check_ids("labels", labels, (size_t)example.n, expected, (size_t)n);
}

TEST(ids_stay_as_they_are) {
    Dataset *dataset;
    check_ok(
        data_load("ids.jsonl",
                  "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 7]}\n{\"input_ids\": [5, 6]}\n{\"input_ids\": [9, 9], \"labels\": [-100, -100]}\n"
                  "{\"input_ids\": [1, 2, 3, 4, 5], \"labels\": [3, 4, 5, -100, 2]}\n"
                  "{\"input_ids\": [0, 0, 5, 6, 7, 0], \"attention_mask\": [0, 0, 1, 1, 1, 0], \"labels\": [-100, -100, -100, 6, 7, -100]}\n",
                  &plain, &dataset));
    check_ids("ids", dataset_example(dataset, 0).ids, 3, ((int32_t[]){5, 6, 7}), 3);
    check_labels(dataset, 0, (int32_t[]){LABEL_NONE, LABEL_NONE, 7}, 3); /* nothing predicts the first */
    check_labels(dataset, 1, (int32_t[]){LABEL_NONE, 6}, 2);
    check_labels(dataset, 3, (int32_t[]){LABEL_NONE, 4, 5, LABEL_NONE, 2}, 5); /* not the ids themselves */
    check_ids("without padding", dataset_example(dataset, 4).ids, (size_t)dataset_example(dataset, 4).n, ((int32_t[]){5, 6, 7}), 3);
    check_labels(dataset, 4, (int32_t[]){LABEL_NONE, 6, 7}, 3);
    assert_int_equal(dataset->counts.untrained, 1);
    check_contains(dataset->counts.untrained_rows, "ids.jsonl line 3");
    assert_int_equal(dataset->counts.trained_tokens, 7);
    dataset_free(dataset);
}

TEST(weights_of_rows_belong_to_their_targets) {
    Dataset *dataset;
    Batch batch = {0};
    check_ok(
        data_load("weights.jsonl",
                  "{\"input_ids\": [5, 6, 7], \"weight\": 2.5}\n{\"input_ids\": [5, 6], \"weight\": null}\n{\"input_ids\": [8, 9], \"weight\": 0}\n",
                  &plain, &dataset));
    assert_int_equal(dataset->counts.weighted, 2);
    assert_int_equal(dataset->counts.untrained, 1);
    check_ok(batch_build(dataset, (const size_t[]){1, 2, 0}, 3, &batch));
    assert_int_equal(batch.n_targets, 3);
    check_close_f64("weights", batch.weights, ((const double[]){1, 2.5, 2.5}), 3, 0, 0);
    batch_release(&batch);
    dataset_free(dataset);
}

TEST(long_rows_are_refused_dropped_or_cut) {
    static const char rows[] = "{\"prompt\": \"abcdef\", \"completion\": \"xyz\"}\n{\"prompt\": \"k\", \"completion\": \"z\"}\n";
    DataConfig config = plain;
    Dataset *dataset;
    config.max_length = 6;
    check_status(data_load("long.jsonl", rows, &config, &dataset), ST_INPUT);
    check_text("long.jsonl' line 1: the row has 10 tokens, more than the 6");
    config.truncation = "drop";
    check_ok(data_load("long.jsonl", rows, &config, &dataset));
    assert_int_equal(dataset->n, 1);
    assert_int_equal(dataset->counts.dropped_long, 1);
    dataset_free(dataset);
    config.truncation = "keep_end";
    check_ok(data_load("long.jsonl", rows, &config, &dataset));
    check_example(dataset, 0, "efxyz$", "..1111");
    assert_int_equal(dataset->counts.cut, 1);
    dataset_free(dataset);
    config.truncation = "keep_start"; /* all that is trained is cut away */
    check_ok(data_load("long.jsonl", rows, &config, &dataset));
    assert_int_equal(dataset->n, 1);
    assert_int_equal(dataset->counts.dropped_untrained, 1);
    check_contains(dataset->counts.dropped_untrained_rows, "long.jsonl line 1");
    dataset_free(dataset);
    config.max_length = 8;
    check_ok(data_load("long.jsonl", rows, &config, &dataset));
    check_example(dataset, 0, "^=cdefxy", "......11");
    dataset_free(dataset);
    config.max_length = 3;
    config.truncation = "drop";
    check_status(data_load("long.jsonl", rows, &config, &dataset), ST_INPUT);
    check_text("no row of '");
}

static void write_packed(const char *path, const char *text) {
    gzFile gz = gzopen(path, "wb");
    assert_int_equal(gzwrite(gz, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(gz), Z_OK);
}

TEST(all_kinds_of_files_are_read) {
    static const struct {
        const char *name, *text;
    } files[] = {
        {"a.jsonl", "\xef\xbb\xbf{\"text\": \"one\"}\r\n\r\n  \n{\"text\": \"two\"}"},
        {"a.json", "[{\"text\": \"one\"}, {\"text\": \"two\"}]"},
        {"b.json", "{\"text\": [\"one\", \"two\"], \"other\": [1, null]}\n\n"},
        {"c.json", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"},
        {"d.jsonl.gz", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"},
        {"d.json.gz", "[{\"text\": \"one\"},\n {\"text\": \"two\"}]\n"},
    };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        const char *path = temp_text(folder, files[i].name, files[i].text);
        if (text_ends_with(path, ".gz")) write_packed(path, files[i].text);
        Dataset *dataset;
        check_ok(dataset_load(&plain, &(DataSource){.path = path}, 1, tokenizer, &dataset));
        assert_int_equal(dataset->n, 2);
        check_example(dataset, 0, "^one$", ".1111");
        check_example(dataset, 1, "^two$", ".1111");
        dataset_free(dataset);
        check_ok(dataset_load(&plain, &(DataSource){.path = path, .max_rows = 1}, 1, tokenizer, &dataset));
        assert_int_equal(dataset->n, 1);
        dataset_free(dataset);
    }
    DataSource both[] = {{.path = temp_file(folder, "a.json")}, {.path = temp_file(folder, "c.json"), .format = "text"}};
    Dataset *dataset;
    check_ok(dataset_load(&plain, both, 2, tokenizer, &dataset));
    Str where = {0};
    dataset_where(dataset, 3, &where);
    check_contains(str_text(&where), "c.json line 2");
    str_release(&where);
    dataset_free(dataset);
}

TEST(faults_name_file_and_line) {
    static const struct {
        const char *name, *text, *message;
    } faults[] = {
        {"x.jsonl", "{\"text\": \"a\"}\n{\"text\": \n", "x.jsonl' line 2"},
        {"x.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", "x.jsonl' line 2: the row lacks 'text'"},
        {"x.jsonl", "{\"text\": \"a\"}\n{\"text\": 5}\n", "line 2: 'text' is not a text"},
        {"x.jsonl", "{\"text\": \"a\"}\n[1]\n", "line 2: a row must be a JSON object"},
        {"x.jsonl", "{\"text\": \"a\\u0000b\"}\n", "line 1"},
        {"x.jsonl", "{\"prompt\": [{\"role\": \"user\"}], \"completion\": \"b\"}\n", "line 1: 'content' of message 1 (user) is missing"},
        {"x.jsonl", "{\"messages\": []}\n", "line 1: the conversation is empty"},
        {"x.jsonl", "{\"one\": 1, \"two\": 2}\n", "cannot detect the format of a row with 'one', 'two'"},
        {"x.jsonl", "\n \n", "holds no rows"},
        {"x.jsonl", "", "holds no rows"},
        {"x.json", "[]", "holds no rows"},
        {"x.json", "{\"a\": [1], \"b\": [1, 2]}", "columns of '"},
        {"x.json", "{\"text\": \"a\"}", "neither an array of rows nor an object of columns"},
        {"x.json", "5", "neither an array of rows nor an object of columns"},
        {"x.dat", "text\na\n", "its name has no known ending"},
        {"x.jsonl", "{\"input_ids\": [1, 99]}\n", "line 1: token id 99 at position 1 is outside of the model's vocabulary of 99"},
        {"x.jsonl", "{\"input_ids\": [1, -1]}\n", "token id -1"},
        {"x.jsonl", "{\"input_ids\": [1, 99999999999]}\n", "which is not a token id"},
        {"x.jsonl", "{\"input_ids\": [1, 2.5]}\n", "whole numbers"},
        {"x.jsonl", "{\"input_ids\": []}\n", "the row has no tokens"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1]}\n", "'labels' has 1 entries, 'input_ids' has 2"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1, -5]}\n", "label -5"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"attention_mask\": [1]}\n", "'attention_mask' is not a list of as many numbers"},
        {"x.jsonl", "{\"input_ids\": [1, 2, 3], \"attention_mask\": [1, 0, 1]}\n",
         "'attention_mask' is not one run of 1 with only 0 before and after it: position 1"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"attention_mask\": [0, 0]}\n", "the row has no tokens"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n", "no token of the 1 row"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"weight\": \"2\"}\n", "line 1: 'weight' is not a number from 0 to 1e6"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"weight\": -1}\n", "line 1: 'weight' is not a number from 0 to 1e6"},
        {"x.jsonl", "{\"input_ids\": [1, 2], \"weight\": 0}\n", "no token of the 1 row"},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        Dataset *dataset;
        check_status(data_load(faults[i].name, faults[i].text, &plain, &dataset), ST_INPUT);
        assert_null(dataset);
        check_text(faults[i].message);
    }
    Dataset *dataset;
    DataSource missing = {.path = "missing.jsonl"}, text = {.path = temp_text(folder, "x.jsonl", "{\"text\": \"a\"}\n")};
    check_status(dataset_load(&plain, &missing, 1, tokenizer, &dataset), ST_INPUT);
    check_status(dataset_load(&plain, &text, 1, NULL, &dataset), ST_INPUT);
    check_text("need a tokenizer");
    DataConfig misspelt = plain;
    misspelt.format = "txet";
    check_status(dataset_load(&misspelt, &text, 1, tokenizer, &dataset), ST_CONFIG);
    check_text("unknown format 'txet'");
    check_contains(status_hint_text(), "known are ids, preference");
}

TEST(sources_of_a_recipe) {
    static const struct {
        const char *yaml;
        size_t n;
        const char *message;
    } cases[] = {
        {"a.jsonl", 1, NULL},
        {"[a.jsonl, b.jsonl]", 2, NULL},
        {"[{path: a.jsonl, format: text, max_rows: 5, weight: 1}, b.jsonl]", 2, NULL},
        {"{path: a.jsonl}", 1, NULL},
        {"[]", 0, "'data.train' is missing"},
        {"[[a]]", 0, "expected a file"},
        {"[{format: text}]", 0, "lacks 'path'"},
        {"[{path: a, fromat: text}]", 0, "unknown key 'fromat'"},
        {"[{path: a, format: txet}]", 0, "unknown format 'txet'"},
        {"[{path: a, weight: 2}]", 1, NULL},
        {"[{path: a, weight: 0}]", 0, "from 0.001 to 1000"},
        {"[{path: a.txt, separator: \"---\"}]", 1, NULL},
        {"[{path: a, max_rows: 0}]", 0, "expected a whole number of at least 1"},
    };
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Yaml *node;
        DataSource *sources;
        size_t n;
        check_ok(yaml_read_text(cases[i].yaml, strlen(cases[i].yaml), "test", arena, &node));
        check_status(data_sources(node, "data.train", arena, &sources, &n), cases[i].message ? ST_CONFIG : ST_OK);
        if (cases[i].message) check_text(cases[i].message);
        if (!cases[i].message) assert_int_equal(n, cases[i].n);
        if (i == 2) assert_true(sources[0].max_rows == 5 && strcmp(sources[0].format, "text") == 0 && strcmp(sources[1].path, "b.jsonl") == 0);
    }
    arena_free(arena);
}

/* `n` rows of 2, 3, 4, 5, 6, 2, 3 ... tokens; row i begins with id i. */
static Dataset *numbered(size_t n) {
    Str text = {0};
    for (size_t i = 0; i < n; i++) {
        str_printf(&text, "{\"input_ids\": [%zu", i);
        for (size_t t = 1; t < 2 + i % 5; t++) str_append(&text, ", 7");
        str_append(&text, "]}\n");
    }
    Dataset *dataset;
    check_ok(data_load("numbered.jsonl", str_text(&text), &plain, &dataset));
    str_release(&text);
    return dataset;
}

/* Every row once an epoch, steps of `accumulation` batches, the last one shorter; asking again in any order gives the same. */
static void check_plan(const Dataset *dataset, bool shuffle, int64_t batch_size, int64_t batch_tokens, int64_t accumulation) {
    DataPlan plan, other;
    data_plan_init(&plan, &(DataOrder){dataset, 11, shuffle}, batch_size, batch_tokens, accumulation);
    data_plan_init(&other, &(DataOrder){dataset, 11, shuffle}, batch_size, batch_tokens, accumulation);
    int64_t total, step = 0;
    size_t *examples = NULL, *again = NULL, n, n_again, first[3] = {0};
    check_ok(data_plan_total(&plan, 3, &total));
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        bool seen[64] = {false};
        size_t count = 0;
        for (PlanStep at; data_plan_step(&plan, step, &at) == ST_OK && at.epoch == epoch; step++) {
            assert_true(at.n_batches == accumulation || step + 1 == at.steps_before + at.epoch_steps);
            assert_true(at.n_batches >= 1 && at.n_batches <= accumulation);
            for (int64_t b = 0; b < at.n_batches; b++) {
                int64_t tokens = 0;
                check_ok(data_plan_batch(&plan, epoch, at.first_batch + b, &examples, &n));
                for (size_t i = 0; i < n; i++) {
                    assert_false(seen[examples[i]]);
                    seen[examples[i]] = true;
                    tokens += dataset_length(dataset, examples[i]);
                    if (count == 0) first[epoch] = examples[0];
                    if (!shuffle) assert_int_equal(examples[i], count);
                    count++;
                }
                if (batch_tokens > 0) {
                    assert_true(n == 1 || tokens <= batch_tokens);
                } else {
                    assert_true((int64_t)n == batch_size || count == dataset->n);
                }
            }
        }
        assert_int_equal(count, dataset->n);
    }
    assert_int_equal(step, total);
    for (int64_t s = total - 1; s >= 0; s--) { /* backwards, by a plan that has seen nothing */
        PlanStep a, b;
        check_ok(data_plan_step(&plan, s, &a));
        check_ok(data_plan_step(&other, s, &b));
        assert_true(a.epoch == b.epoch && a.first_batch == b.first_batch && a.n_batches == b.n_batches);
        check_ok(data_plan_batch(&plan, a.epoch, a.first_batch, &examples, &n));
        check_ok(data_plan_batch(&other, b.epoch, b.first_batch, &again, &n_again));
        assert_int_equal(n, n_again);
        assert_memory_equal(examples, again, n * sizeof *examples);
    }
    if (shuffle) assert_true(first[0] != first[1] || first[1] != first[2]);
    free(examples);
    free(again);
    data_plan_release(&plan);
    data_plan_release(&other);
}

TEST(plans_cover_every_row_once_an_epoch) {
    Dataset *dataset = numbered(43);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        check_plan(dataset, shuffle, 4, 0, 1);
        check_plan(dataset, shuffle, 4, 0, 3);
        check_plan(dataset, shuffle, 64, 0, 2);
        check_plan(dataset, shuffle, 8, 13, 2);
        check_plan(dataset, shuffle, 8, 6, 1);
    }
    DataPlan plan;
    int64_t steps;
    data_plan_init(&plan, &(DataOrder){dataset, 1, true}, 4, 0, 3); /* 11 batches, 4 steps */
    check_ok(data_plan_total(&plan, 1, &steps));
    assert_int_equal(steps, 4);
    check_ok(data_plan_total(&plan, 2.3, &steps));
    assert_int_equal(steps, 10);
    data_plan_release(&plan);
    dataset_free(dataset);
}

TEST(the_largest_batch_is_found) {
    Dataset *dataset = numbered(43);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataPlan plan;
        size_t *examples = NULL, n;
        int64_t most = 0, found = 0;
        data_plan_init(&plan, &(DataOrder){dataset, 3, shuffle}, 5, 0, 1);
        for (int64_t step = 0; step < 20; step++) {
            PlanStep at;
            int64_t tokens = 0;
            check_ok(data_plan_step(&plan, step, &at));
            check_ok(data_plan_batch(&plan, at.epoch, at.first_batch, &examples, &n));
            for (size_t i = 0; i < n; i++) tokens += dataset_length(dataset, examples[i]);
            most = MAX(most, tokens);
        }
        check_ok(data_plan_largest(&plan, 20, &examples, &n));
        for (size_t i = 0; i < n; i++) found += dataset_length(dataset, examples[i]);
        assert_int_equal(found, most);
        check_ok(data_plan_largest_part(&plan, 20, most, &examples, &n)); /* not cut */
        assert_int_equal(dataset_tokens(dataset, examples, n), most);
        for (int64_t part = most - 1; part > 0; part--) { /* no shorter row fits in as well; none is cut */
            check_ok(data_plan_largest_part(&plan, 20, part, &examples, &n));
            int64_t tokens = dataset_tokens(dataset, examples, n), full = MAX(part, dataset->longest);
            assert_true(tokens <= full && tokens > full - 2); /* the shortest row has two */
        }
        free(examples);
        data_plan_release(&plan);
    }
    dataset_free(dataset);
}

TEST(batches_lie_flat) {
    Dataset *dataset;
    check_ok(data_load(
        "flat.jsonl",
        "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, 7]}\n{\"input_ids\": [8]}\n{\"input_ids\": [9, 10, 11], \"labels\": [9, -100, 11]}\n",
        &plain, &dataset));
    Batch batch = {0};
    for (int round = 0; round < 2; round++) { /* the second one in the same memory */
        check_ok(batch_build(dataset, (size_t[]){2, 1, 0}, 3, &batch));
        check_ids("ids", batch.model.ids, (size_t)batch.model.layout.n_tokens, ((int32_t[]){9, 10, 11, 8, 5, 6, 7}), 7);
        check_ids("rows", batch.rows, (size_t)batch.n_targets, ((int32_t[]){1, 4, 5}), 3);
        check_ids("targets", batch.targets, (size_t)batch.n_targets, ((int32_t[]){11, 6, 7}), 3);
        assert_int_equal(batch.model.layout.n_segments, 3);
        assert_true(batch.segments[1].begin == 3 && batch.segments[1].end == 4 && batch.segments[1].parent == -1);
    }
    batch_release(&batch);
    dataset_free(dataset);
}

TEST(held_out_rows_are_apart) {
    size_t sizes[2];
    int32_t first[2][64];
    for (int round = 0; round < 2; round++) {
        Dataset *dataset = numbered(40), *part;
        check_ok(dataset_split(dataset, 0.25, 5, &part));
        assert_int_equal(part->n, 10);
        assert_int_equal(dataset->n, 30);
        assert_int_equal(dataset->counts.rows + part->counts.rows, 40);
        assert_int_equal(dataset->counts.tokens + part->counts.tokens, 160);
        bool seen[40] = {false};
        for (size_t i = 0; i < 40; i++) {
            int32_t id = i < 30 ? dataset_example(dataset, i).ids[0] : dataset_example(part, i - 30).ids[0];
            assert_false(seen[id]);
            seen[id] = true;
        }
        for (size_t i = 0; i < 10; i++) first[round][i] = dataset_example(part, i).ids[0];
        sizes[round] = part->n;
        dataset_free(part);
        dataset_free(dataset);
    }
    check_ids("held out", first[0], sizes[0], first[1], sizes[1]);
}

TEST(tables_agree_with_the_recipe) {
    for (size_t i = 0; data_format_at(i) || optimizer_at(i); i++) {
        char format[64] = "seed=1", optimizer[64] = "seed=1";
        if (data_format_at(i)) snprintf(format, sizeof format, "data.format=%s", data_format_at(i)->name);
        if (optimizer_at(i)) snprintf(optimizer, sizeof optimizer, "train.optimizer=%s", optimizer_at(i)->name);
        const char *overrides[] = {format, optimizer};
        Recipe *recipe;
        check_ok(recipe_read(NULL, overrides, 2, &recipe));
        recipe_free(recipe);
    }
}

typedef struct Said {
    Str text;
} Said;
static void data_hear(void *context, const char *text) { str_printf(&((Said *)context)->text, "%s\n", text); }

TEST(odd_rows_are_told) {
    Said said = {0};
    data_counts_warn(&(DataCounts){.rows = 5}, "data.train", data_hear, &said);
    assert_string_equal(str_text(&said.text), "");
    data_counts_warn(&(DataCounts){.dropped_long = 1, .cut = 2, .duplicates = 3}, "data.train", data_hear, &said);
    assert_string_equal(
        str_text(&said.text),
        "data.train: 1 row dropped: longer than data.max_length\ndata.train: 2 rows cut to data.max_length\ndata.train: 3 rows the same as an "
        "earlier one\n");
    str_clear(&said.text);
    data_counts_warn(&(DataCounts){.weighted = 1}, "data.eval", data_hear, &said);
    check_contains(str_text(&said.text), "data.eval: 1 row with a column 'weight'");
    check_contains(str_text(&said.text), "evaluations do not");
    str_release(&said.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_get_bos_and_eos_once),
        cmocka_unit_test(answers_are_trained_from_the_border_on),
        cmocka_unit_test(alpaca_is_worded_as_by_its_authors),
        cmocka_unit_test(ids_stay_as_they_are),
        cmocka_unit_test(weights_of_rows_belong_to_their_targets),
        cmocka_unit_test(long_rows_are_refused_dropped_or_cut),
        cmocka_unit_test(all_kinds_of_files_are_read),
        cmocka_unit_test(faults_name_file_and_line),
        cmocka_unit_test(sources_of_a_recipe),
        cmocka_unit_test(plans_cover_every_row_once_an_epoch),
        cmocka_unit_test(the_largest_batch_is_found),
        cmocka_unit_test(batches_lie_flat),
        cmocka_unit_test(held_out_rows_are_apart),
        cmocka_unit_test(tables_agree_with_the_recipe),
        cmocka_unit_test(odd_rows_are_told),
    };
    return cmocka_run_group_tests(tests, data_begin, data_end);
}
