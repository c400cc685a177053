/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations turn by turn: what each turn's text is, that shared beginnings are kept once, and that nothing else follows from it. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/branches.h"
#include "data/formats/conversation.h"
#include "data/dataset/store.h"

static char folder[256];
static Tokenizer *tokenizer;

static int branches_begin(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    check_ok(tokenizer_load("recipes/demo/model", &tokenizer));
    return 0;
}

static int branches_end(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    temp_dir_remove(folder);
    return 0;
}

/* ---- texts and trees ---- */

enum { MOST_TEXTS = 9, MOST_TOKENS = 12 };
typedef struct Texts {
    Ids ids, labels;
    TextSpan spans[MOST_TEXTS];
    size_t n;
} Texts;

static void branches_add(Texts *texts, const int32_t *ids, size_t n, size_t trained) {
    texts->spans[texts->n++] = (TextSpan){texts->ids.n, texts->ids.n + n};
    ids_append(&texts->ids, ids, n);
    for (size_t i = 0; i < n; i++) ids_push(&texts->labels, i >= trained ? ids[i] : LABEL_NONE);
}

/* As dataset_example has it. */
static Example example_of(const Joined *joined, Ids *runs) {
    ids_clear(runs);
    for (size_t t = 0; t < joined->ids.n; t++)
        if (joined->labels.data[t] != LABEL_NONE) {
            ids_push(runs, (int32_t)t);
            ids_push(runs, (int32_t)t + 1);
        }
    return (Example){.ids = joined->ids.data,
                     .targets = joined->labels.data,
                     .runs = (const TokenRun *)(const void *)runs->data,
                     .branches = (const Branch *)(const void *)joined->branches.data,
                     .n = (int32_t)joined->ids.n,
                     .n_runs = (int32_t)runs->n / 2,
                     .n_branches = (int32_t)joined->branches.n / 2};
}

static void branches_release(Texts *texts, Joined *joined, Ids *runs) {
    ids_release(&texts->ids);
    ids_release(&texts->labels);
    joined_release(joined);
    ids_release(runs);
}

TEST(a_beginning_is_kept_once) {
    static const int32_t first[] = {1, 2, 3, 10, 11}, second[] = {1, 2, 3, 12, 4, 5, 20}, third[] = {1, 2, 3, 12, 4, 6, 30, 31};
    static const int32_t flat[] = {1, 2, 3, 10, 11, 12, 4, 5, 20, 6, 30, 31}, branches[] = {0, -1, 3, 0, 5, 0, 7, 2, 9, 2};
    static const int32_t labels[] = {-100, -100, -100, 10, 11, -100, -100, -100, 20, -100, 30, 31};
    Texts texts = {0};
    Joined joined = {0};
    Ids runs = {0}, ids = {0}, told = {0};
    branches_add(&texts, first, 5, 3);
    branches_add(&texts, second, 7, 6);
    branches_add(&texts, third, 8, 6);
    check_ok(branches_join(texts.spans, texts.n, &texts.ids, &texts.labels, &joined));
    check_ids("tokens", joined.ids.data, joined.ids.n, flat, COUNT_OF(flat));
    check_ids("labels", joined.labels.data, joined.labels.n, labels, COUNT_OF(labels));
    check_ids("branches", joined.branches.data, joined.branches.n, branches, COUNT_OF(branches));
    assert_int_equal(joined.depth, 8);
    Example example = example_of(&joined, &runs);
    assert_int_equal(example_texts(&example), 3);
    example_text(&example, 1, &ids, &told);
    check_ids("second", ids.data, ids.n, second, 7);
    assert_true(told.data[3] == LABEL_NONE && told.data[6] == 20);
    assert_int_equal(example_before(&example, 0), -1);
    assert_int_equal(example_before(&example, 3), 2);
    assert_int_equal(example_before(&example, 5), 2);
    assert_int_equal(example_before(&example, 9), 6);
    assert_int_equal(example_before(&example, 11), 10);
    ids_release(&ids);
    ids_release(&told);
    branches_release(&texts, &joined, &runs);
}

/* A text that continues another one needs no branch. A text that trains tokens of another one shares nothing with it. */
TEST(texts_that_go_on_are_one) {
    static const int32_t text[] = {1, 2, 3, 4, 5, 6}, twice[] = {0, -1, 2, 0, 6, 0};
    Texts texts = {0};
    Joined joined = {0};
    Ids runs = {0};
    branches_add(&texts, text, 3, 2);
    branches_add(&texts, text, 6, 5);
    check_ok(branches_join(texts.spans, 2, &texts.ids, &texts.labels, &joined));
    check_ids("tokens", joined.ids.data, joined.ids.n, text, 6);
    assert_int_equal(joined.branches.n, 2);
    assert_true(joined.labels.data[2] == 3 && joined.labels.data[3] == LABEL_NONE && joined.labels.data[5] == 6);
    branches_add(&texts, text, 4, 2);
    check_ok(branches_join(texts.spans, 3, &texts.ids, &texts.labels, &joined));
    check_ids("branches", joined.branches.data, joined.branches.n, twice, 6);
    branches_release(&texts, &joined, &runs);
}

/* Whatever the texts are, each is found again, every trained token is trained once, and no two branches of a parent begin alike untrained. */
TEST(any_texts_come_back) {
    RngKey key = rng_key(5, RNG_TEST, 0);
    uint64_t draw = 0;
    for (int round = 0; round < 400; round++) {
        Texts texts = {0};
        Joined joined = {0};
        Ids runs = {0};
        size_t trained = 0, found_trained = 0;
        size_t wanted = 1 + rng_u64(key, draw++) % MOST_TEXTS;
        for (size_t i = 0; i < wanted; i++) {
            int32_t ids[MOST_TOKENS];
            size_t n = 1 + rng_u64(key, draw++) % MOST_TOKENS, from = 1 + rng_u64(key, draw++) % n;
            for (size_t t = 0; t < n; t++) ids[t] = (int32_t)(rng_u64(key, draw++) % 10 < 8 ? 1 : 2);
            branches_add(&texts, ids, n, from);
            trained += n - from;
        }
        check_ok(branches_join(texts.spans, texts.n, &texts.ids, &texts.labels, &joined));
        Example example = example_of(&joined, &runs);
        assert_int_equal(example.n_runs, trained);
        bool seen[MOST_TEXTS] = {false};
        for (int32_t k = 0; k < example_texts(&example); k++) {
            Ids ids = {0}, labels = {0};
            example_text(&example, k, &ids, &labels);
            assert_true((int32_t)ids.n <= joined.depth && ids.n == labels.n);
            for (size_t t = 0; t < ids.n; t++) found_trained += labels.data[t] != LABEL_NONE;
            for (size_t i = 0; i < texts.n; i++) {
                size_t n = texts.spans[i].end - texts.spans[i].begin;
                seen[i] = seen[i] || (ids.n >= n && !memcmp(ids.data, texts.ids.data + texts.spans[i].begin, n * sizeof *ids.data));
            }
            ids_release(&ids);
            ids_release(&labels);
        }
        assert_int_equal(found_trained, trained);
        for (size_t i = 0; i < texts.n; i++) assert_true(seen[i]);
        branches_release(&texts, &joined, &runs);
    }
}

/* ---- rows ---- */

/* Earlier thoughts are dropped. */
static const char dropping[] =
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %};\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
static const char keeping[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }};\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define MARKED(text, more) "{\"role\": \"assistant\", \"content\": \"" text "\"" more "}"
#define ANSWER(text) MARKED(text, "")
#define ROW(messages) "{\"messages\": [" messages "]}\n"
#define THREE_TURNS                                                                                                                        \
    ROW(USER("what is it") ", " ANSWER("<think>well</think>this") ", " USER("and then") ", " ANSWER("<think>hm hm</think>that") ", " USER( \
        "and now") ", " ANSWER("<think>oh</think>nothing"))

typedef struct Setting {
    const char *template, *turns, *train_on, *truncation, *cache;
    int64_t max_length;
} Setting;

static Status branches_load(const Setting *how, const char *rows, Dataset **dataset) {
    static const char name[] = "turns.jinja";
    Chat *chat;
    const char *template = text_ends_with(how->template, ".jinja") ? how->template : temp_text(folder, name, how->template);
    char *path = strdup(template);
    check_ok(chat_open("recipes/demo/model", NULL, path, NULL, tokenizer, &chat));
    free(path);
    DataConfig config = {.train_on = how->train_on,
                         .turns = how->turns,
                         .chat = chat,
                         .max_length = how->max_length ? how->max_length : 4096,
                         .truncation = how->truncation,
                         .cache = how->cache,
                         .scratch = folder,
                         .tokenizer = "recipes/demo/model",
                         .program = "test 1"};
    Status status = dataset_load(&config, &(DataSource){.path = temp_text(folder, "rows.jsonl", rows)}, 1, tokenizer, dataset);
    chat_close(chat);
    return status;
}

/* All texts of a row, one below the other, with what is trained in << >>. */
static void check_texts(const Dataset *dataset, size_t row, const char *expected) {
    const Example example = dataset_example(dataset, row);
    Str text = {0};
    for (int32_t k = 0; k < example_texts(&example); k++) {
        Ids ids = {0}, labels = {0};
        example_text(&example, k, &ids, &labels);
        bool on = false;
        for (size_t t = 0; t < ids.n; t++) {
            bool trained = labels.data[t] != LABEL_NONE;
            if (trained != on) str_append(&text, trained ? "<<" : ">>");
            on = trained;
            check_ok(tokenizer_decode(tokenizer, ids.data + t, 1, false, &text));
        }
        str_append(&text, on ? ">>\n" : "\n");
        ids_release(&ids);
        ids_release(&labels);
    }
    assert_string_equal(str_text(&text), expected);
    str_release(&text);
}

TEST(each_turn_is_asked_as_it_is_answered) {
    static const char three[] =
        "[user]what is it;\n[assistant]<<<think>well</think>this;>>\n\n"
        "[user]what is it;\n[assistant]this;\n[user]and then;\n[assistant]<<<think>hm hm</think>that;>>\n\n"
        "[user]what is it;\n[assistant]this;\n[user]and then;\n[assistant]that;\n[user]and now;\n[assistant]<<<think>oh</think>nothing;>>\n\n";
    static const char *const turns[] = {"each", "auto"};
    Dataset *dataset;
    for (size_t i = 0; i < COUNT_OF(turns); i++) {
        check_ok(branches_load(&(Setting){dropping, .turns = turns[i]}, THREE_TURNS, &dataset));
        check_texts(dataset, 0, three);
        const DataCounts *counts = &dataset->counts;
        assert_true(counts->rows == 1 && counts->turned == 1 && counts->turns == 3 && counts->turn_tokens > counts->tokens);
        dataset_free(dataset);
    }
    check_status(branches_load(&(Setting){dropping, .turns = "whole"}, THREE_TURNS, &dataset), ST_INPUT);
    check_text("not prefix-preserving");
    assert_non_null(strstr(status_hint_text(), "data.turns: each"));
    check_ok(branches_load(&(Setting){dropping, .turns = "auto", .train_on = "last"}, THREE_TURNS, &dataset)); /* one text does: as before */
    assert_int_equal(dataset->counts.turned, 0);
    dataset_free(dataset);
    check_status(branches_load(&(Setting){dropping, .turns = "each", .train_on = "all"}, THREE_TURNS, &dataset), ST_CONFIG);
    check_text("data.turns: each");
}

/* If the template keeps earlier text unchanged, each is equal to the bit to the whole text. */
TEST(each_of_a_template_that_preserves_is_whole) {
    static const char *const turns[] = {NULL, "whole", "auto", "each"};
    uint64_t prints[COUNT_OF(turns)];
    for (size_t i = 0; i < COUNT_OF(turns); i++) {
        Dataset *dataset;
        check_ok(branches_load(&(Setting){keeping, .turns = turns[i]}, THREE_TURNS, &dataset));
        const Example example = dataset_example(dataset, 0);
        assert_int_equal(example.n_branches, 0);
        assert_int_equal(dataset->counts.turned, i == 3);
        prints[i] = dataset_fingerprint(dataset);
        dataset_free(dataset);
    }
    for (size_t i = 1; i < COUNT_OF(turns); i++) assert_true(prints[i] == prints[0]);
}

TEST(marks_keep_turns_out) {
    static const char *const marks[] = {", \"train\": false", ", \"weight\": 0", ", \"loss_weight\": 0"};
    Dataset *dataset;
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        char row[600];
        snprintf(
            row, sizeof row,
            ROW(USER("a") ", " MARKED("<think>b</think>c", "%s") ", " USER("d") ", " ANSWER("<think>e</think>f") ", " USER("g") ", " ANSWER("h")),
            marks[i]);
        check_ok(branches_load(&(Setting){dropping, .turns = "each"}, row, &dataset));
        check_texts(dataset, 0,
                    "[user]a;\n[assistant]c;\n[user]d;\n[assistant]<<<think>e</think>f;>>\n\n"
                    "[user]a;\n[assistant]c;\n[user]d;\n[assistant]f;\n[user]g;\n[assistant]<<h;>>\n\n");
        dataset_free(dataset);
    }
    /* nothing is left of one row: it stays, untrained, as without turns */
    check_ok(branches_load(&(Setting){dropping, .turns = "each"}, ROW(USER("a") ", " MARKED("b", ", \"train\": false")) THREE_TURNS, &dataset));
    assert_int_equal(dataset->counts.rows, 2);
    assert_int_equal(dataset->counts.untrained, 1);
    dataset_free(dataset);
}

/* The first answers of a conversation, trained turn by turn, as separate rows. */
#define FIRST_TURN ROW(USER("what is it") ", " ANSWER("<think>well</think>this"))
#define SECOND_TURN ROW(USER("what is it") ", " ANSWER("<think>well</think>this") ", " USER("and then") ", " ANSWER("<think>hm hm</think>that"))
#define SHORT ROW(USER("two plus two") ", " ANSWER("<think>add</think>four"))

static uint64_t text_hash(const Dataset *dataset, size_t row, int32_t k) {
    const Example example = dataset_example(dataset, row);
    Ids ids = {0}, labels = {0};
    uint64_t hash = 0;
    example_text(&example, k, &ids, &labels);
    for (size_t i = 0; i < ids.n; i++) hash = mix64(hash ^ (uint64_t)(uint32_t)ids.data[i] << 32 ^ (uint32_t)labels.data[i]);
    ids_release(&ids);
    ids_release(&labels);
    return hash;
}

/* Conversations up to each of their answers, as rows whose last answer is trained. */
static char *rows_of_turns(const json_t *row) {
    const json_t *messages = json_object_get(row, "messages");
    Str text = {0};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (strcmp(json_string_value(json_object_get(json_array_get(messages, i), "role")), "assistant") != 0) continue;
        json_t *until = json_deep_copy(row);
        while (json_array_size(json_object_get(until, "messages")) > i + 1) json_array_remove(json_object_get(until, "messages"), i + 1);
        char *line = json_dumps(until, 0);
        str_printf(&text, "%s\n", line);
        free(line);
        json_decref(until);
    }
    return text.data;
}

#define TURNS_WITH_THOUGHTS                                                                                                                        \
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"Two plus two?\"}, {\"role\": \"assistant\", " \
    "\"content\": \"Four.\", \"reasoning_content\": \"add\"}, {\"role\": \"user\", \"content\": \"Plus one?\"}, {\"role\": \"assistant\", "        \
    "\"content\": \"Five.\", \"reasoning_content\": \"add more\"}]}"
#define TURNS_WITHOUT                                                                                                                                \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Two plus two?\"}, {\"role\": \"assistant\", \"content\": \"Four.\"}, {\"role\": \"user\", " \
    "\"content\": \"Plus one?\"}, {\"role\": \"assistant\", \"content\": \"Five.\"}], \"chat_template_kwargs\": {\"enable_thinking\": false}}"

/* With real templates: the texts of a row are its turns' rows, as training on the last answer has them. */
TEST(real_templates_are_rendered_as_they_ask) {
    static const char *const rows[] = {THREE_TURNS, TURNS_WITH_THOUGHTS, TURNS_WITHOUT};
    static const char *const names[] = {"Qwen-Qwen3-0.6B",         "GLM-5.2",
                                        "GLM-4.7-Flash",           "LFM2.5-Instruct",
                                        "openai-gpt-oss-120b",     "StepFun3.5-Flash",
                                        "Kimi-K2-Thinking",        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
                                        "deepseek-ai-DeepSeek-V4", "Qwen-Qwen2.5-7B-Instruct"};
    size_t split = 0;
    for (size_t i = 0; i < COUNT_OF(names) * COUNT_OF(rows); i++) {
        char path[100], template[400];
        snprintf(path, sizeof path, "data/templates/%s.jinja", names[i / COUNT_OF(rows)]);
        if (!shared_path(path, template, sizeof template)) skip();
        Dataset *each, *apart;
        json_t *row = json_loads(rows[i % COUNT_OF(rows)], 0, NULL);
        char *lines = rows_of_turns(row);
        Status status = branches_load(&(Setting){template, .turns = "each"}, rows[i % COUNT_OF(rows)], &each);
        if (status == ST_OK) {
            check_ok(branches_load(&(Setting){template, .turns = "auto", .train_on = "last"}, lines, &apart));
            const Example example = dataset_example(each, 0);
            int64_t trained = 0;
            for (size_t k = 0; k < apart->n; k++) trained += dataset_example(apart, k).trained;
            assert_int_equal(example.trained, trained);
            assert_int_equal(each->counts.turns, apart->n);
            assert_int_equal(each->counts.turn_tokens, apart->counts.tokens);
            split += example.n_branches > 0;
            for (size_t k = 0; k < apart->n && example_texts(&example) == (int32_t)apart->n; k++)
                assert_true(text_hash(each, 0, (int32_t)k) == text_hash(apart, k, 0));
            dataset_free(apart);
            dataset_free(each);
        } else {
            check_status(branches_load(&(Setting){template, .turns = "auto", .train_on = "last"}, lines, &apart), ST_INPUT);
        }
        free(lines);
        json_decref(row);
    }
    assert_true(split > 5);
}

TEST(qwen3_drops_earlier_thoughts) {
    char template[400];
    Dataset *dataset;
    if (!shared_path("data/templates/Qwen-Qwen3-0.6B.jinja", template, sizeof template)) skip();
    check_ok(branches_load(&(Setting){template, .turns = "auto"},
                           ROW(USER("Two plus two?") ", " MARKED("Four.", ", \"reasoning_content\": \"add\"") ", " USER("Plus one?") ", " ANSWER(
                               "<think>\\nadd more\\n</think>\\n\\nFive.")) ROW(USER("a") ", " ANSWER("b") ", " USER("c") ", " ANSWER("d")),
                           &dataset));
    check_texts(dataset, 0,
                "<|im_start|>user\nTwo plus two?<|im_end|>\n<|im_start|>assistant\n<<<think>\nadd\n</think>\n\nFour.<|im_end|>>>\n\n"
                "<|im_start|>user\nTwo plus two?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>\n<|im_start|>user\nPlus one?<|im_end|>\n"
                "<|im_start|>assistant\n<<<think>\nadd more\n</think>\n\nFive.<|im_end|>>>\n\n");
    check_texts(dataset, 1,
                "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<<<think>\n\n</think>\n\nb<|im_end|>>>\n\n"
                "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
                "<|im_start|>assistant\n<<<think>\n\n</think>\n\nd<|im_end|>>>\n\n");
    dataset_free(dataset);
}

/* Rows of other forms are conversations as well: what comes before the completion is not trained. */
TEST(all_forms_of_conversations_go_turn_by_turn) {
    static const struct {
        const char *row, *texts;
        int turns;
    } cases[] = {
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"<think>b</think>c\"}, {\"from\": "
         "\"human\", \"value\": \"d\"}, {\"from\": \"gpt\", \"value\": \"e\"}]}\n",
         "[user]a;\n[assistant]<<<think>b</think>c;>>\n\n[user]a;\n[assistant]c;\n[user]d;\n[assistant]<<e;>>\n\n", 2},
        {"{\"prompt\": [" USER("a") ", " ANSWER("<think>b</think>c") ", " USER("d") "], \"completion\": [" ANSWER("<think>e</think>f") ", " USER(
             "g") ", " ANSWER("h") "]}\n",
         "[user]a;\n[assistant]c;\n[user]d;\n[assistant]<<<think>e</think>f;>>\n\n"
         "[user]a;\n[assistant]c;\n[user]d;\n[assistant]f;\n[user]g;\n[assistant]<<h;>>\n\n",
         2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Dataset *dataset;
        check_ok(branches_load(&(Setting){dropping, .turns = "auto"}, cases[i].row, &dataset));
        check_texts(dataset, 0, cases[i].texts);
        assert_int_equal(dataset->counts.turns, cases[i].turns);
        dataset_free(dataset);
    }
}

/* Templates that ask with a thought and write the answer without it, as R1's, GLM's, QwQ's and Cohere's do. */
#define TURNS_OF(answer, ask)                                                                                                          \
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}" answer "{% else %}{{ m.content }}{% endif %};\n{% endfor %}" \
    "{% if add_generation_prompt %}[assistant]" ask "{% endif %}"
static const char asks_and_drops[] = TURNS_OF("{{ m.content.split('</think>')[-1] }}", "<think>\n");
static const char asks_and_ends[] = TURNS_OF("</think>{{ m.content.split('</think>')[-1] }}", "<think>");
static const char asks_for_none[] = TURNS_OF("{{ m.content }}", "<think>\n{% if not enable_thinking %}</think>{% endif %}");
static const char asks_otherwise[] = TURNS_OF("<|START_TEXT|>{{ m.content }}", "<|START_THINKING|>");
static const char asks_in_words[] = TURNS_OF("{{ m.content }}", "Well: ");

TEST(answers_go_on_from_the_thought_that_asks_for_them) {
    static const char thought[] = ROW(USER("a") ", " ANSWER("<think>\\nhm\\n</think>\\n\\nb") ", " USER("c") ", " ANSWER("d")),
                      reasoned[] = ROW(USER("a") ", " MARKED("b", ", \"reasoning_content\": \"hm\"")), plain[] = ROW(USER("a") ", " ANSWER("b"));
    static const struct {
        const char *template, *row, *texts;
    } cases[] = {
        {asks_and_drops, thought,
         "[user]a;\n[assistant]<think>\n<<hm\n</think>\n\nb;>>\n\n[user]a;\n[assistant]\n\nb;\n[user]c;\n[assistant]<think>\n<<\n</think>\n\nd;>>\n\n"},
        {asks_and_drops, reasoned, "[user]a;\n[assistant]<think>\n<<hm\n</think>\n\nb;>>\n\n"},
        {asks_and_drops, plain, "[user]a;\n[assistant]<think>\n<<\n</think>\n\nb;>>\n\n"},
        {asks_and_ends, plain, "[user]a;\n[assistant]<think><<</think>b;>>\n\n"},
        {asks_for_none, plain, "[user]a;\n[assistant]<think>\n</think><<b;>>\n\n"},
        {asks_otherwise, plain, "[user]a;\n[assistant]<|START_THINKING|><<<|END_THINKING|><|START_TEXT|>b;>>\n\n"},
    };
    Dataset *dataset;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_ok(branches_load(&(Setting){cases[i].template, .turns = "auto"}, cases[i].row, &dataset));
        check_texts(dataset, 0, cases[i].texts);
        assert_int_equal(dataset->counts.after_thought, 1);
        if (cases[i].row == reasoned) { /* the thought is as much the row's own as the answer is */
            Ids own = {0};
            check_ok(tokenizer_encode(tokenizer, "hmb", 3, TOKENIZE_PLAIN, &own));
            assert_int_equal(dataset->counts.marked - dataset->counts.templates, own.n);
            ids_release(&own);
        }
        dataset_free(dataset);
        check_status(branches_load(&(Setting){cases[i].template, .turns = "whole"}, cases[i].row, &dataset), ST_INPUT);
    }
    check_status(branches_load(&(Setting){asks_for_none, .turns = "auto"}, thought, &dataset), ST_INPUT);
    check_text("asks for an answer without a thought, but message 2 has one");
    assert_non_null(strstr(status_hint_text(), "data.template_kwargs: {enable_thinking: true}"));
    check_status(branches_load(&(Setting){asks_in_words, .turns = "auto"}, plain, &dataset), ST_INPUT);
    check_text("not prefix-preserving");
    static const char asked[] =
        "{\"chat_template_kwargs\": {\"enable_thinking\": true}, \"messages\": [" USER("a") ", " ANSWER("<think>\\nhm</think>b") "]}\n";
    check_ok(branches_load(&(Setting){asks_for_none, .turns = "auto"}, asked, &dataset));
    check_texts(dataset, 0, "[user]a;\n[assistant]<think>\n<<hm</think>b;>>\n\n");
    assert_int_equal(dataset->counts.after_thought, 0);
    dataset_free(dataset);
}

/* ---- limits, counts, and the file ---- */

static int64_t longest_of(const char *rows) {
    Dataset *dataset;
    check_ok(branches_load(&(Setting){dropping, .turns = "whole", .train_on = "last"}, rows, &dataset));
    int64_t longest = dataset->longest;
    dataset_free(dataset);
    return longest;
}

/* data.max_length is of what the model sees, not of what a pass computes; answers that do not fit go, the others stay. */
TEST(limits_are_of_texts) {
    int64_t first = longest_of(FIRST_TURN), second = longest_of(SECOND_TURN), third = longest_of(THREE_TURNS);
    Dataset *dataset;
    check_ok(branches_load(&(Setting){dropping, .turns = "each", .max_length = third}, THREE_TURNS, &dataset));
    assert_true(dataset->longest > third && dataset_example(dataset, 0).depth == third && dataset->counts.lost_turns == 0);
    dataset_free(dataset);
    check_status(branches_load(&(Setting){dropping, .turns = "each", .max_length = third - 1}, THREE_TURNS, &dataset), ST_INPUT);
    check_text("max_length");
    check_ok(branches_load(&(Setting){dropping, .turns = "each", .max_length = second, .truncation = "drop"}, THREE_TURNS, &dataset));
    assert_true(dataset->counts.turns == 2 && dataset->counts.lost_turns == 1 && dataset->counts.dropped_long == 0);
    dataset_free(dataset);
    check_ok(branches_load(&(Setting){dropping, .turns = "each", .max_length = first, .truncation = "drop"}, THREE_TURNS SHORT, &dataset));
    assert_true(dataset->counts.lost_turns == 2 && dataset_example(dataset, 0).n_branches == 0);
    dataset_free(dataset);
    check_ok(branches_load(&(Setting){dropping, .turns = "each", .max_length = first - 1, .truncation = "drop"},
                           THREE_TURNS ROW(USER("a") ", " ANSWER("b")), &dataset));
    assert_true(dataset->counts.rows == 1 && dataset->counts.dropped_long == 1);
    dataset_free(dataset);
    check_ok(branches_load(&(Setting){dropping, .turns = "each", .max_length = 20, .truncation = "keep_end"}, THREE_TURNS, &dataset));
    assert_true(dataset->counts.cut == 1 && dataset->counts.turns == 3);
    const Example example = dataset_example(dataset, 0);
    for (int32_t i = 0; i < example.n_runs; i++) assert_true(example_before(&example, example.runs[i].begin) >= 0);
    dataset_free(dataset);
}

TEST(rows_in_branches_are_found_again) {
    char cache[400];
    uint64_t prints[3];
    snprintf(cache, sizeof cache, "%s/cache", folder);
    for (int i = 0; i < 3; i++) {
        Dataset *dataset;
        check_ok(branches_load(&(Setting){dropping, .turns = i < 2 ? "each" : "auto", .cache = cache}, THREE_TURNS SHORT THREE_TURNS, &dataset));
        assert_int_equal(dataset->cached, i == 1);
        assert_true(dataset->counts.turns == (i < 2 ? 7 : 6) && dataset->counts.duplicates == 1);
        assert_int_equal(dataset_example(dataset, 0).n_branches, 5);
        prints[i] = dataset_fingerprint(dataset);
        dataset_free(dataset);
    }
    assert_true(prints[0] == prints[1] && prints[0] == prints[2]);
}

/* What cannot be a tree is refused as a broken file is. */
TEST(broken_branches_are_refused) {
    static const struct {
        int32_t branches[4];
        bool fits;
    } cases[] = {{{0, -1, 2, 0}, true},  {{0, -1, 2, -1}, false}, {{0, -1, 1, -1}, true}, {{0, -1, 2, 1}, false}, {{0, -1, 2, -2}, false},
                 {{1, -1, 2, 0}, false}, {{0, -1, 0, 0}, false},  {{0, -1, 4, 0}, false}, {{0, 0, 2, 0}, false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int32_t words[] = {5, 6, 7, 8, 2, 4, 0, 0, 0, 0};
        StoreRow row = {.weight = 1, .line = 1, .n = 4, .trained = 2, .n_runs = 1, .n_branches = 2, .depth = 4};
        StoreKey key = {1, i};
        StoreWriter *writer;
        Store *store;
        memcpy(words + 6, cases[i].branches, sizeof cases[i].branches);
        check_ok(store_create(folder, "store.bin", &key, &writer));
        check_ok(store_append(writer, &row, words));
        check_ok(store_finish(writer, "{}", 2, &store));
        store_close(store);
        Status status = store_open(temp_file(folder, "store.bin"), &key, 100, &store);
        if ((status == ST_OK) != cases[i].fits) fail_msg("case %zu: status %d", i, (int)status);
        if (status == ST_OK) store_close(store);
    }
}

/* ---- what is learned ---- */

typedef struct Learned {
    double loss, *gradients, *logprobs;
    size_t n_gradients, n_logprobs;
} Learned;

static void branches_learn(Model *model, Tape *tape, const Dataset *dataset, const size_t *examples, size_t n, Learned *learned) {
    Batch batch = {0};
    check_ok(batch_build(dataset, examples, n, &batch));
    tape_reset(tape);
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &batch.n_targets, batch.rows);
    Tensor *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &batch.n_targets, batch.targets);
    TokenLogprobs p = op_token_logprobs(tape, model_forward(model, tape, &batch.model), model->head, rows, targets, &model->logprob);
    check_ok(tape_status(tape));
    double *seeds = malloc((size_t)batch.n_targets * sizeof *seeds);
    learned->logprobs = realloc(learned->logprobs, (learned->n_logprobs + (size_t)batch.n_targets) * sizeof *learned->logprobs);
    for (int64_t i = 0; i < batch.n_targets; i++) {
        learned->logprobs[learned->n_logprobs++] = tensor_get(p.logprob, i);
        learned->loss -= batch.weights[i] * tensor_get(p.logprob, i);
        seeds[i] = -batch.weights[i];
    }
    tensor_seed_grad(tape, p.logprob, seeds);
    check_ok(tape_backward(tape));
    free(seeds);
    batch_release(&batch);
}

static void take_gradients(Model *model, Learned *learned) {
    learned->gradients = malloc((size_t)params_count(&model->params, true) * sizeof(double));
    for (size_t k = 0; k < model->params.n; k++) {
        const Tensor *grad = model->params.items[k].tensor->grad;
        if (!grad) continue;
        tensor_read(grad, learned->gradients + learned->n_gradients);
        learned->n_gradients += (size_t)tensor_count(grad);
    }
    params_zero_grad(&model->params);
}

/* Each answer's log-probabilities are to the bit those of its text alone; gradients are the same sums, added in another order. */
static void compare_branches(const Device *device, DType compute, const char *rows, const char *turns, double tolerance) {
    Model *model;
    Dataset *branches, *apart;
    Tape *tape = tape_new(device, compute, 0);
    Learned shared = {0}, alone = {0};
    check_ok(model_load("recipes/demo/model", &(ModelOptions){.device = device, .compute = compute, .train_all = true}, &model));
    check_ok(branches_load(&(Setting){dropping, .turns = "auto"}, rows, &branches));
    check_ok(branches_load(&(Setting){dropping, .turns = "whole", .train_on = "last"}, turns, &apart));
    assert_true(branches->n == 2 && (int64_t)apart->n == 1 + branches->counts.turns && branches->counts.tokens < apart->counts.tokens);
    branches_learn(model, tape, branches, (const size_t[]){0, 1}, 2, &shared);
    take_gradients(model, &shared);
    for (size_t i = 0; i < apart->n; i++) branches_learn(model, tape, apart, &i, 1, &alone);
    take_gradients(model, &alone);
    assert_true(shared.n_gradients == alone.n_gradients && shared.n_logprobs == alone.n_logprobs);
    for (size_t i = 0; i < alone.n_logprobs; i++) check_close(shared.logprobs[i], alone.logprobs[i], 0);
    check_close(shared.loss, alone.loss, 1e-12 * alone.loss);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < alone.n_gradients; i++) {
        largest = fmax(largest, fabs(alone.gradients[i]));
        worst = fmax(worst, fabs(alone.gradients[i] - shared.gradients[i]));
    }
    printf("turns in branches and alone in %s: gradients differ by %.1e of the largest\n", dtype_name(compute), worst / largest);
    assert_true(largest > 0 && worst <= tolerance * largest);
    free(shared.gradients);
    free(shared.logprobs);
    free(alone.gradients);
    free(alone.logprobs);
    dataset_free(branches);
    dataset_free(apart);
    tape_free(tape);
    model_free(model);
}

TEST(branches_learn_what_their_texts_do) {
    compare_branches(device_reference(), DT_F64, SHORT SECOND_TURN, SHORT FIRST_TURN SECOND_TURN, 1e-13);
    compare_branches(device_cpu(), DT_F32, SHORT THREE_TURNS, SHORT FIRST_TURN SECOND_TURN THREE_TURNS, 2e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_beginning_is_kept_once),
        cmocka_unit_test(texts_that_go_on_are_one),
        cmocka_unit_test(any_texts_come_back),
        cmocka_unit_test(each_turn_is_asked_as_it_is_answered),
        cmocka_unit_test(each_of_a_template_that_preserves_is_whole),
        cmocka_unit_test(marks_keep_turns_out),
        cmocka_unit_test(real_templates_are_rendered_as_they_ask),
        cmocka_unit_test(qwen3_drops_earlier_thoughts),
        cmocka_unit_test(all_forms_of_conversations_go_turn_by_turn),
        cmocka_unit_test(answers_go_on_from_the_thought_that_asks_for_them),
        cmocka_unit_test(limits_are_of_texts),
        cmocka_unit_test(rows_in_branches_are_found_again),
        cmocka_unit_test(broken_branches_are_refused),
        cmocka_unit_test(branches_learn_what_their_texts_do),
    };
    return cmocka_run_group_tests(tests, branches_begin, branches_end);
}
