/* SPDX-License-Identifier: Apache-2.0 */
/* A generator: requests come and go, and what each gets depends on itself alone. */
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/infer/infer.h"
#include "lib/infer/kv_cache.h"
#include "lib/model/adapter.h"

enum { VOCAB = 258, N_PROMPTS = 8, NEW = 24, MOST_SAMPLES = 4, N_ADAPTERS = 2 };
static const char *const tiny_config =
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"vocab_size\": 258, \"eos_token_id\": 1, \"tie_word_embeddings\": false}";
static const SampleConfig ways[] = {
    {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
    {.temperature = 0.7, .top_p = 0.9, .typical_p = 1, .repetition_penalty = 1.1},
};
enum { GREEDY, PLAIN, FILTERED, N_WAYS };

static Model *models[2], *adapters[N_ADAPTERS]; /* f32 and bf16; adapters: of the first */
static int32_t prompt_ids[N_PROMPTS][100];
static const size_t lengths[N_PROMPTS] = {1, 31, 32, 33, 70, 5, 100, 64}; /* around the borders of pages */

/* Larger than trained ones, so that they change what is said. */
static Model *make_adapter(const Model *base, uint64_t seed) {
    Model *adapter;
    check_ok(model_share_weights(base, &adapter));
    check_ok(model_attach_lora(adapter, &(LoraConfig){.rank = seed == 1 ? 4 : 3, .alpha = 7}, seed));
    for (size_t i = 0; i < adapter->n_linears; i++) {
        Tensor *b = adapter->linears[i]->lora->b;
        RngKey key = rng_key(seed, RNG_TEST, 100 + i);
        for (int64_t k = 0; k < tensor_count(b); k++) tensor_set(b, k, rng_uniform(key, (uint64_t)k) - 0.5);
    }
    return adapter;
}

static int set_up(void **state) {
    (void)state;
    char dir[256];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 3, 0.25));
    for (int i = 0; i < 2; i++) check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = i ? DT_BF16 : DT_F32}, &models[i]));
    temp_dir_remove(dir);
    for (uint64_t i = 0; i < N_ADAPTERS; i++) adapters[i] = make_adapter(models[0], i + 1);
    for (size_t p = 0; p < N_PROMPTS; p++)
        for (size_t i = 0; i < lengths[p]; i++) prompt_ids[p][i] = 2 + (int32_t)rng_below(rng_key(1, RNG_TEST, p), i, VOCAB - 2);
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    for (int i = 0; i < N_ADAPTERS; i++) model_free(adapters[i]);
    for (int i = 0; i < 2; i++) model_free(models[i]);
    return 0;
}

/* ---- completions, kept ---- */

typedef struct Kept {
    Completion of[N_PROMPTS][MOST_SAMPLES];
    size_t n, n_tokens;
    GenerateHandle order[N_PROMPTS * MOST_SAMPLES]; /* as they came */
    /* what a callback does at a token of a prompt */
    Generator *generator;
    size_t at_prompt, at_token;
    GenerateHandle cancels;
    Status fails;
} Kept;

static Status take(void *context, Completion *c) {
    Kept *kept = context;
    check_ok(c->status);
    assert_true(c->prompt < N_PROMPTS && c->sample < MOST_SAMPLES && kept->of[c->prompt][c->sample].ids.n == 0);
    kept->order[kept->n++] = c->handle;
    kept->of[c->prompt][c->sample] = *c;
    *c = (Completion){0};
    return ST_OK;
}

static Status see(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    Kept *kept = context;
    assert_true(id >= 0 && logprob <= 0 && sample < MOST_SAMPLES && !*text);
    kept->n_tokens++;
    if (prompt != kept->at_prompt || kept->at_token == 0 || --kept->at_token > 0) return ST_OK;
    if (kept->cancels) assert_true(generator_cancel(kept->generator, kept->cancels));
    return kept->fails == ST_OK ? ST_OK : status_fail(kept->fails, "enough");
}

static void kept_release(Kept *kept) {
    for (size_t p = 0; p < N_PROMPTS; p++)
        for (int k = 0; k < MOST_SAMPLES; k++) completion_release(&kept->of[p][k]);
    *kept = (Kept){0};
}

static GenerateRequest ask(size_t p, int way, int64_t n_samples, Kept *kept) {
    return (GenerateRequest){.prompt = {prompt_ids[p], lengths[p], p},
                             .prompt_index = p,
                             .n_samples = n_samples,
                             .seed = 5,
                             .sample = ways[way],
                             .max_new_tokens = NEW,
                             .ignore_eos = true,
                             .on_token = see,
                             .on_done = take,
                             .context = kept};
}

static Generator *open_generator(const Model *model, int64_t max_sequences, int64_t max_pages) {
    Generator *g;
    check_ok(generator_open(model, NULL, &(GeneratorConfig){.max_sequences = max_sequences, .max_pages = max_pages}, &g));
    return g;
}

static GenerateHandle add(Generator *g, GenerateRequest request) {
    GenerateHandle handle;
    check_ok(generator_add(g, &request, &handle));
    return handle;
}

/* Steps until there is room. */
static GenerateHandle add_when_it_fits(Generator *g, GenerateRequest request, int *refused) {
    GenerateHandle handle;
    while ((handle = add(g, request)) == 0) {
        assert_true(generator_busy(g));
        check_ok(generator_step(g));
        ++*refused;
    }
    return handle;
}

/* OpenBLAS takes other paths for other numbers of rows; all other products have the same bits (test_generate.c). */
static double tolerance_of(const Model *model) { return model->compute == DT_F32 && text_starts_with(cpu_info()->gemm_f32, "openblas") ? 5e-5 : 0; }

static void check_same(const char *what, const Model *model, const Completion *a, const Completion *b) {
    double tolerance = tolerance_of(model);
    check_ids(what, a->ids.data, a->ids.n, b->ids.data, b->ids.n);
    check_close_f64(what, a->logprobs, b->logprobs, a->ids.n, tolerance, 0);
    check_close_f64(what, a->tempered, b->tempered, a->ids.n, tolerance, 0);
    check_close_f64(what, a->filtered, b->filtered, a->ids.n, tolerance, 0);
    assert_int_equal(a->finish, b->finish);
}

/* ---- a request depends on itself alone ---- */

static void check_prompt(const char *what, const Model *model, const Kept *kept, const Kept *alone, size_t p, int64_t n) {
    for (int64_t k = 0; k < n; k++) check_same(what, model, &kept->of[p][k], &alone->of[p][k]);
}

/* All prompts at once; in a generator without room for all of them; and added late, while others are cancelled. */
static void check_company(const Model *model, int way) {
    enum { SEEN = 3, SAMPLES = 2 }; /* prompt SEEN in each company */
    Kept alone = {0}, crowd = {0}, tight = {0}, late = {0};
    int refused = 0;
    Generator *g = open_generator(model, 4, 40);
    assert_true(add(g, ask(SEEN, way, SAMPLES, &alone)) != 0);
    check_ok(generator_drain(g));
    assert_true(alone.n == SAMPLES && alone.n_tokens == SAMPLES * NEW && generator_free_pages(g) == 40);

    for (size_t p = 0; p < N_PROMPTS; p++) add_when_it_fits(g, ask(p, p == SEEN ? way : (way + (int)p) % N_WAYS, SAMPLES, &crowd), &refused);
    check_ok(generator_drain(g));
    assert_true(crowd.n == N_PROMPTS * SAMPLES && generator_free_pages(g) == 40);
    check_prompt("in a crowd", model, &crowd, &alone, SEEN, SAMPLES);

    GenerateHandle running = add(g, ask(6, way, 1, &late)), waiting;
    for (int i = 0; i < 5; i++) check_ok(generator_step(g));
    GenerateHandle handle = add(g, ask(SEEN, way, SAMPLES, &late));
    waiting = add(g, ask(4, way, SAMPLES, &late));
    assert_true(running && handle && waiting);
    check_ok(generator_step(g));
    assert_true(generator_cancel(g, running) && generator_cancel(g, waiting) && !generator_cancel(g, waiting));
    check_ok(generator_drain(g));
    assert_true(late.n == SAMPLES && generator_free_pages(g) == 40 && !generator_cancel(g, handle));
    check_prompt("added late", model, &late, &alone, SEEN, SAMPLES);
    generator_close(g);

    g = open_generator(model, 8, 6);
    refused = 0;
    for (size_t p = 0; p < N_PROMPTS; p++) add_when_it_fits(g, ask(p, p == SEEN ? way : PLAIN, SAMPLES, &tight), &refused);
    check_ok(generator_drain(g));
    assert_true(refused > 0 && tight.n == N_PROMPTS * SAMPLES && generator_free_pages(g) == 6);
    check_prompt("with few pages", model, &tight, &alone, SEEN, SAMPLES);
    generator_close(g);
    Kept *all[] = {&alone, &crowd, &tight, &late};
    for (size_t i = 0; i < 4; i++) kept_release(all[i]);
}

TEST(a_request_depends_on_itself_alone) {
    for (int m = 0; m < 2; m++)
        for (int way = 0; way < N_WAYS; way++) check_company(models[m], way);
}

/* Prompts and answers of a page each, four samples of each prompt, four pages: three prompts wait together, of which the first begins two samples. */
static void check_waiting(int64_t max_new_tokens) {
    Kept kept = {0}, alone = {0};
    Generator *g = open_generator(models[0], 16, 4), *roomy = open_generator(models[0], 8, 40);
    for (size_t p = 0; p < 4; p++) {
        GenerateRequest request = ask(p, PLAIN, MOST_SAMPLES, &kept);
        request.max_new_tokens = max_new_tokens;
        request.prompt.n = p + 1 < lengths[p] ? p + 1 : lengths[p];
        assert_true((add(g, request) != 0) == (p < 3));
        request.context = &alone;
        if (p < 3) assert_true(add(roomy, request) != 0);
        check_ok(generator_drain(roomy));
    }
    assert_int_equal(generator_free_pages(g), 1);
    for (int step = 0; step < 400 && generator_busy(g); step++) check_ok(generator_step(g));
    assert_true(!generator_busy(g) && kept.n == 3 * MOST_SAMPLES && generator_free_pages(g) == 4);
    for (size_t p = 0; p < 3; p++) check_prompt("after others with few pages", models[0], &kept, &alone, p, MOST_SAMPLES);
    generator_close(g);
    generator_close(roomy);
    kept_release(&kept);
    kept_release(&alone);
}

TEST(prompts_wait_for_pages) {
    check_waiting(NEW);
    check_waiting(1); /* the first samples make room for others in the step that computed all three prompts */
}

/* What generate() gives, sample by sample, whether they are asked for together or by number. */
static Status copy(void *context, const Completion *c) {
    Kept *kept = context;
    Completion *to = &kept->of[c->prompt][c->sample];
    *to = (Completion){.finish = c->finish};
    ids_append(&to->ids, c->ids.data, c->ids.n);
    double **arrays[] = {&to->logprobs, &to->tempered, &to->filtered}, *const from[] = {c->logprobs, c->tempered, c->filtered};
    for (int i = 0; i < 3; i++) {
        check_ok(array_resize(arrays[i], c->ids.n, sizeof(double), "log-probabilities"));
        memcpy(*arrays[i], from[i], c->ids.n * sizeof(double));
    }
    return ST_OK;
}

TEST(samples_have_their_numbers) {
    Kept all = {0}, one = {0};
    GenerateConfig config = {.sample = ways[PLAIN], .max_new_tokens = NEW, .n = MOST_SAMPLES, .seed = 5, .ignore_eos = true};
    check_ok(generate(models[0], NULL, &(Prompt){prompt_ids[0], lengths[0], 0}, 1, &config, NULL, copy, &all));
    Generator *g = open_generator(models[0], 2, 20);
    GenerateRequest request = ask(0, PLAIN, 1, &one);
    request.first_sample = 2;
    assert_true(add(g, request) != 0);
    check_ok(generator_drain(g));
    assert_int_equal(one.n, 1);
    check_same("sample 2", models[0], &one.of[0][2], &all.of[0][2]);
    generator_close(g);
    kept_release(&all);
    kept_release(&one);
}

/* ---- adapters ---- */

TEST(each_request_has_its_adapter) {
    Kept mixed = {0}, alone = {0}, merged = {0};
    const Model *const with[3] = {NULL, adapters[0], adapters[1]};
    Generator *g = open_generator(models[0], 6, 40);
    for (size_t p = 0; p < 3; p++) { /* one prompt for all three */
        GenerateRequest request = ask(p, PLAIN, 2, &mixed);
        request.prompt = (Prompt){prompt_ids[4], lengths[4], 4};
        request.adapter = with[p];
        assert_true(add(g, request) != 0);
    }
    check_ok(generator_drain(g));
    assert_int_equal(mixed.n, 6);
    generator_close(g);
    for (size_t p = 0; p < 3; p++) { /* the adapter's own model, with nothing else */
        g = open_generator(with[p] ? with[p] : models[0], 2, 40);
        GenerateRequest request = ask(p, PLAIN, 2, &alone);
        request.prompt = (Prompt){prompt_ids[4], lengths[4], 4};
        assert_true(add(g, request) != 0);
        check_ok(generator_drain(g));
        check_prompt("an adapter among others", models[0], &mixed, &alone, p, 2);
        for (size_t q = 0; q < p; q++) assert_true(mixed.of[p][0].logprobs[0] != mixed.of[q][0].logprobs[0]);
        generator_close(g);
    }
    kept_release(&mixed);
    kept_release(&alone);
    kept_release(&merged);
}

/* ---- order, callbacks, refusals ---- */

TEST(completions_come_when_they_are_done) {
    Kept kept = {0};
    Generator *g = open_generator(models[0], 4, 20);
    GenerateRequest request = ask(0, GREEDY, 1, &kept);
    GenerateHandle first = add(g, request);
    request = ask(5, GREEDY, 1, &kept);
    request.max_new_tokens = 2;
    GenerateHandle second = add(g, request);
    check_ok(generator_drain(g));
    assert_true(kept.n == 2 && kept.order[0] == second && kept.order[1] == first && kept.of[5][0].ids.n == 2);
    check_ok(generator_step(g)); /* nothing to do */
    generator_close(g);
    kept_release(&kept);
}

TEST(a_callback_cancels_and_fails) {
    Kept alone = {0}, kept = {0};
    int refused = 0;
    Generator *g = kept.generator = open_generator(models[0], 3, 20);
    add(g, ask(1, PLAIN, 1, &alone));
    check_ok(generator_drain(g));

    kept.cancels = add(g, ask(0, PLAIN, 2, &kept)); /* at its own fourth token */
    kept.at_token = 4;
    add_when_it_fits(g, ask(1, PLAIN, 1, &kept), &refused);
    check_ok(generator_drain(g));
    assert_true(kept.n == 1 && generator_free_pages(g) == 20);
    check_prompt("beside a cancelled one", models[0], &kept, &alone, 1, 1);
    kept_release(&kept);

    kept.at_token = 4;
    kept.fails = ST_INPUT; /* prompt 0 ends, the other goes on */
    add(g, ask(0, PLAIN, 2, &kept));
    add(g, ask(1, PLAIN, 1, &kept));
    check_status(generator_drain(g), ST_INPUT);
    check_ok(generator_drain(g));
    assert_true(kept.n == 1 && generator_free_pages(g) == 20);
    check_prompt("beside a failed one", models[0], &kept, &alone, 1, 1);
    add(g, ask(2, PLAIN, 2, &kept)); /* closed while it runs */
    check_ok(generator_step(g));
    generator_close(g);
    kept_release(&kept);
    kept_release(&alone);
}

static Status take_failure(void *context, Completion *c) {
    Kept *kept = context;
    if (c->finish != FINISH_FAILED) return take(context, c);
    check_status(c->status, ST_NUMERIC);
    kept->at_token = c->ids.n;
    return ST_OK;
}

/* A request without a token to go on with ends alone. */
TEST(a_request_fails_alone) {
    Kept kept = {0}, alone = {0};
    Generator *g = open_generator(models[0], 2, 40);
    add(g, ask(1, GREEDY, 1, &alone));
    check_ok(generator_drain(g));
    GenerateRequest request = ask(0, GREEDY, 1, &kept);
    request.sample.no_repeat_ngram_size = 1;
    request.max_new_tokens = VOCAB + 1;
    request.on_token = NULL;
    request.on_done = take_failure;
    add(g, request);
    add(g, ask(1, GREEDY, 1, &kept));
    check_ok(generator_drain(g));
    assert_true(kept.n == 1 && kept.at_token == VOCAB - 1 && generator_free_pages(g) == 40);
    check_prompt("beside one without tokens", models[0], &kept, &alone, 1, 1);
    generator_close(g);
    kept_release(&kept);
    kept_release(&alone);
}

TEST(what_does_not_fit_is_told) {
    Kept kept = {0};
    GenerateHandle handle = 7;
    Generator *g = open_generator(models[0], 4, 3);
    GenerateRequest request = ask(6, GREEDY, 1, &kept); /* 100 tokens and 24: 4 pages */
    check_status(generator_add(g, &request, &handle), ST_RESOURCE);
    assert_true(handle == 0 && !generator_busy(g) && generator_free_pages(g) == 3);
    assert_non_null(strstr(status_text(), "prompt 7 of 100 tokens and 24 new ones need 4 pages"));
    request = ask(4, GREEDY, 1, &kept); /* 70 and 24: all 3 */
    assert_true(add(g, request) != 0);
    assert_true(add(g, ask(0, GREEDY, 1, &kept)) == 0);
    check_ok(generator_drain(g));
    assert_true(add(g, ask(0, GREEDY, 1, &kept)) != 0);
    request.prompt.n = 0;
    check_status(generator_add(g, &request, &handle), ST_INPUT);
    generator_close(g);
    kept_release(&kept);
    check_status(generator_open(models[0], NULL, &(GeneratorConfig){.max_sequences = 1, .max_pages = INT32_MAX}, &g), ST_RESOURCE);
    assert_null(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_depends_on_itself_alone),
        cmocka_unit_test(prompts_wait_for_pages),
        cmocka_unit_test(samples_have_their_numbers),
        cmocka_unit_test(each_request_has_its_adapter),
        cmocka_unit_test(completions_come_when_they_are_done),
        cmocka_unit_test(a_callback_cancels_and_fails),
        cmocka_unit_test(a_request_fails_alone),
        cmocka_unit_test(what_does_not_fit_is_told),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
