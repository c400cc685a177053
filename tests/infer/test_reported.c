/* SPDX-License-Identifier: Apache-2.0 */
/* The most likely tokens that a generator reports, and biases of tokens: both are of one request alone. */
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "lib/infer/infer.h"

enum { VOCAB = 300, NEW = 20, N_TOP = 7, MATES = 3 };
static const char *const tiny_config =
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"vocab_size\": 300, \"eos_token_id\": 1, \"tie_word_embeddings\": false}";
static const SampleConfig greedy = {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};
static const SampleConfig sharp = {
    .temperature = 0.6, .top_p = 0.9, .typical_p = 1, .repetition_penalty = 1.2, .presence_penalty = 0.5, .frequency_penalty = 0.25};
static const int32_t prompt_ids[] = {5, 9, 200, 17};
static Model *model;

static int set_up(void **state) {
    (void)state;
    char dir[256];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 3, 0.25));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    temp_dir_remove(dir);
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    model_free(model);
    return 0;
}

typedef struct Said {
    Generator *generator;
    Completion of[1 + MATES];
    size_t n_seen;
    TokenLogprob seen[NEW * N_TOP]; /* what on_token could read */
} Said;

static Status said_token(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    (void)sample, (void)id, (void)logprob, (void)text;
    Said *said = context;
    const TokenLogprob *top = generator_top(said->generator);
    if (prompt > 0) return ST_OK;
    assert_non_null(top);
    assert_true(said->n_seen < NEW);
    memcpy(said->seen + N_TOP * said->n_seen++, top, N_TOP * sizeof *top);
    return ST_OK;
}

static Status said_done(void *context, Completion *c) {
    Said *said = context;
    check_ok(c->status);
    said->of[c->prompt] = *c;
    *c = (Completion){0};
    return ST_OK;
}

/* One request with `n_top`, and others at the same time that have none. */
static void say(const SampleConfig *sample, int64_t n_top, size_t mates, Said *said) {
    GenerateHandle handle;
    *said = (Said){0};
    check_ok(generator_open(model, NULL, &(GeneratorConfig){.max_sequences = 1 + MATES, .max_pages = 20}, &said->generator));
    for (size_t i = 0; i <= mates; i++) {
        GenerateRequest request = {.prompt = {prompt_ids, COUNT_OF(prompt_ids), 0},
                                   .prompt_index = i,
                                   .n_samples = 1,
                                   .seed = 5 + i,
                                   .sample = i ? sharp : *sample,
                                   .max_new_tokens = NEW,
                                   .ignore_eos = true,
                                   .n_top = i ? 0 : n_top,
                                   .on_token = n_top ? said_token : NULL,
                                   .on_done = said_done,
                                   .context = said};
        check_ok(generator_add(said->generator, &request, &handle));
        assert_true(handle != 0);
    }
    check_ok(generator_drain(said->generator));
    assert_null(generator_top(said->generator));
    generator_close(said->generator);
}

static void said_release(Said *said) {
    for (int i = 0; i <= MATES; i++) completion_release(&said->of[i]);
}

static void check_same_answer(const Completion *a, const Completion *b) {
    assert_true(a->ids.n == NEW && b->ids.n == NEW);
    assert_memory_equal(a->ids.data, b->ids.data, NEW * sizeof *a->ids.data);
    assert_memory_equal(a->logprobs, b->logprobs, NEW * sizeof *a->logprobs);
    assert_memory_equal(a->filtered, b->filtered, NEW * sizeof *a->filtered);
}

static void check_same_top(const TokenLogprob *a, const TokenLogprob *b) {
    for (int i = 0; i < NEW * N_TOP; i++) assert_true(a[i].id == b[i].id && a[i].logprob == b[i].logprob);
}

TEST(reports_change_nothing) {
    const SampleConfig *ways[] = {&greedy, &sharp};
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        Said with, without, among;
        say(ways[w], N_TOP, 0, &with);
        say(ways[w], 0, 0, &without);
        say(ways[w], N_TOP, MATES, &among);
        assert_null(without.of[0].top);
        assert_null(among.of[1].top);
        check_same_answer(&with.of[0], &without.of[0]);
        check_same_answer(&with.of[0], &among.of[0]);
        assert_int_equal(with.n_seen, NEW);
        check_same_top(with.of[0].top, among.of[0].top);
        check_same_top(with.of[0].top, with.seen);
        said_release(&with), said_release(&without), said_release(&among);
    }
}

typedef struct AllLogits {
    double logprobs[NEW][VOCAB];
} AllLogits;

static Status keep_logits(void *context, size_t row, const float *logits, int64_t n, int64_t vocab) {
    (void)row;
    AllLogits *all = context;
    assert_true(vocab == VOCAB && n == COUNT_OF(prompt_ids) + NEW);
    for (int i = 0; i < NEW; i++) {
        const float *x = logits + (COUNT_OF(prompt_ids) - 1 + (size_t)i) * VOCAB;
        double sum = 0, top = -HUGE_VAL;
        for (int v = 0; v < VOCAB; v++) top = fmax(top, (double)x[v]);
        for (int v = 0; v < VOCAB; v++) sum += exp((double)x[v] - top);
        for (int v = 0; v < VOCAB; v++) all->logprobs[i][v] = (double)x[v] - top - log(sum);
    }
    return ST_OK;
}

/* Against a scoring of the whole answer, before temperature, penalties and filters. */
TEST(reports_are_of_the_plain_distribution) {
    static AllLogits all;
    Said said;
    int32_t ids[COUNT_OF(prompt_ids) + NEW];
    double logprobs[COUNT_OF(ids)];
    say(&sharp, N_TOP, 0, &said);
    const Completion *c = &said.of[0];
    memcpy(ids, prompt_ids, sizeof prompt_ids);
    memcpy(ids + COUNT_OF(prompt_ids), c->ids.data, NEW * sizeof *ids);
    check_ok(score_rows(model, &(ScoreRow){ids, COUNT_OF(ids), logprobs}, 1, keep_logits, &all));
    for (int i = 0; i < NEW; i++) {
        const TokenLogprob *top = c->top + N_TOP * i;
        double least = top[N_TOP - 1].logprob;
        for (int k = 0; k < N_TOP; k++) {
            /* f32 products in another order: differences up to 2e-6 were measured; ten times that is allowed */
            assert_true(fabs(top[k].logprob - all.logprobs[i][top[k].id]) < 2e-5);
            assert_true(k == 0 || top[k].logprob < top[k - 1].logprob || (top[k].logprob == top[k - 1].logprob && top[k].id > top[k - 1].id));
            if (top[k].id == c->ids.data[i]) assert_true(top[k].logprob == c->logprobs[i]);
        }
        int above = 0;
        for (int v = 0; v < VOCAB; v++) above += all.logprobs[i][v] > least + 2e-5;
        assert_true(above < N_TOP);
    }
    said_release(&said);
}

TEST(biases_choose) {
    const TokenBias all_for[] = {{42, 100}}, against[] = {{0, -HUGE_VAL}};
    Said said, free_choice;
    SampleConfig sample = greedy;
    say(&greedy, 0, 0, &free_choice);
    sample.bias = all_for, sample.n_bias = 1;
    say(&sample, N_TOP, MATES, &said);
    for (int i = 0; i < NEW; i++) assert_int_equal(said.of[0].ids.data[i], 42);
    assert_true(said.of[0].top[0].logprob > said.of[0].logprobs[0]); /* reported without the bias */
    said_release(&said);
    for (int way = 0; way < 2; way++) {
        TokenBias never = {free_choice.of[0].ids.data[0], against[0].bias};
        sample = way ? sharp : greedy;
        sample.bias = &never, sample.n_bias = 1;
        say(&sample, 0, 0, &said);
        for (int i = 0; i < NEW; i++) assert_int_not_equal(said.of[0].ids.data[i], never.id);
        said_release(&said);
    }
    said_release(&free_choice);
    Generator *g;
    GenerateHandle handle;
    check_ok(generator_open(model, NULL, &(GeneratorConfig){.max_sequences = 1, .max_pages = 20}, &g));
    sample.bias = &(TokenBias){VOCAB, 1};
    GenerateRequest request = {.prompt = {prompt_ids, 4, 0}, .n_samples = 1, .sample = sample, .max_new_tokens = 1, .on_done = said_done};
    assert_int_equal(generator_add(g, &request, &handle), ST_INPUT);
    assert_non_null(strstr(status_text(), "unknown token id 300"));
    generator_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reports_change_nothing),
        cmocka_unit_test(reports_are_of_the_plain_distribution),
        cmocka_unit_test(biases_choose),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
