/* SPDX-License-Identifier: Apache-2.0 */
/* A generator: requests come and go, and what each gets depends on itself alone. */
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/infer/generator_parts.h"
#include "lib/model/adapter.h"
#include "tests/support/backends.h"

enum { VOCAB = 258, N_PROMPTS = 8, NEW = 24, MOST_SAMPLES = 4, N_ADAPTERS = 3 };
static const char *const tiny_config =
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"vocab_size\": 258, \"eos_token_id\": 1, \"tie_word_embeddings\": false}";
static const SampleConfig ways[] = {
    {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
    {.temperature = 0.7, .top_p = 0.9, .typical_p = 1, .repetition_penalty = 1.1},
};
enum { GREEDY, PLAIN, FILTERED, N_WAYS };

static Model *models[2], *adapters[2][N_ADAPTERS]; /* f32 and bf16; the last adapter has a head of its own */
static int32_t prompt_ids[N_PROMPTS][100];
static const size_t lengths[N_PROMPTS] = {1, 31, 32, 33, 70, 5, 100, 64}; /* around the borders of pages */

/* Larger than trained ones, so that they change what is said. */
static Model *make_adapter(const Model *base, uint64_t seed) {
    Model *adapter;
    const char *head = "lm_head", *some[] = {"q_proj", "o_proj", "up_proj"};
    LoraConfig lora = {.rank = seed == 1 ? 4 : 3, .alpha = 7};
    if (seed == 2) lora.targets = some, lora.n_targets = COUNT_OF(some);
    if (seed == N_ADAPTERS) lora.saved = &head, lora.n_saved = 1;
    check_ok(model_share_weights(base, &adapter));
    check_ok(model_attach_lora(adapter, &lora, seed));
    for (size_t i = 0; i < adapter->n_linears; i++) {
        if (!adapter->linears[i]->lora) continue;
        Tensor *b = adapter->linears[i]->lora->b;
        RngKey key = rng_key(seed, RNG_TEST, 100 + i);
        for (int64_t k = 0; k < tensor_count(b); k++) tensor_set(b, k, rng_uniform(key, (uint64_t)k) - 0.5);
    }
    if (seed == N_ADAPTERS)
        for (int64_t k = 0; k < 100; k++) tensor_set(adapter->head, k, tensor_get(adapter->head, k) + 0.1);
    return adapter;
}

static int set_up(void **state) {
    (void)state;
    char dir[256];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 3, 0.25));
    for (int i = 0; i < 2; i++) check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = i ? DT_BF16 : DT_F32}, &models[i]));
    temp_dir_remove(dir);
    for (int m = 0; m < 2; m++)
        for (uint64_t i = 0; i < N_ADAPTERS; i++) adapters[m][i] = make_adapter(models[m], i + 1);
    for (size_t p = 0; p < N_PROMPTS; p++)
        for (size_t i = 0; i < lengths[p]; i++) prompt_ids[p][i] = 2 + (int32_t)rng_below(rng_key(1, RNG_TEST, p), i, VOCAB - 2);
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        for (int i = 0; i < N_ADAPTERS; i++) model_free(adapters[m][i]);
        model_free(models[m]);
    }
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
static Status copy_completion(void *context, const Completion *c) {
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
    check_ok(generate(models[0], NULL, &(Prompt){prompt_ids[0], lengths[0], 0}, 1, &config, NULL, copy_completion, &all));
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

/* What generate() gives with the adapter alone. */
static void answer_alone(const Model *model, const GenerateRequest *request, Kept *kept) {
    GenerateConfig config = {
        .sample = request->sample, .max_new_tokens = request->max_new_tokens, .n = request->n_samples, .seed = request->seed, .ignore_eos = true};
    Prompt prompts[N_PROMPTS] = {0};
    Kept only = {0};
    prompts[0] = request->prompt;
    check_ok(generate(model, NULL, prompts, 1, &config, NULL, copy_completion, &only));
    for (int64_t k = 0; k < request->n_samples; k++) kept->of[request->prompt_index][k] = only.of[0][k];
}

static void unpack(const Model *model) {
    for (size_t i = 0; i < model->params.n; i++) tensor_unpack(model->params.items[i].tensor);
}

/* Requests of four models, two of them added while the others run. Each step reads the weights once, and the last adapter's head. */
static void check_adapters(int m, int way) {
    Kept mixed = {0}, alone = {0};
    const Model *const with[N_PROMPTS] = {NULL, adapters[m][0], adapters[m][1], adapters[m][0], NULL, adapters[m][2], adapters[m][1], adapters[m][2]};
    Generator *g = open_generator(models[m], 20, 90);
    for (size_t p = 0; p < N_PROMPTS; p++) {
        GenerateRequest request = ask(p, (way + (int)(p & 1)) % N_WAYS, 1 + (int64_t)(p % 2), &mixed);
        request.prompt = (Prompt){prompt_ids[p], lengths[p], p};
        request.adapter = with[p];
        assert_true(add(g, request) != 0);
        answer_alone(with[p] ? with[p] : models[m], &request, &alone);
        for (int i = 0; i < 3; i++) {
            check_ok(generator_step(g));
            assert_int_equal(g->n_passes, p < 5 ? 1 : 2);
        }
    }
    check_ok(generator_drain(g));
    assert_true(mixed.n == N_PROMPTS + N_PROMPTS / 2 && generator_free_pages(g) == 90);
    for (size_t p = 0; p < N_PROMPTS; p++) check_prompt("an adapter among others", models[m], &mixed, &alone, p, 1 + (int64_t)(p % 2));
    generator_close(g);
    kept_release(&mixed);
    kept_release(&alone);
}

static void run_adapters(void) {
    bool openblas = text_starts_with(cpu_info()->gemm_f32, "openblas"); /* its bits depend on other rows, which bf16 makes large */
    for (int m = 0; m < (openblas ? 1 : 2); m++) {
        check_adapters(m, m ? PLAIN : GREEDY); /* and the next way */
        unpack(models[m]);
        for (int i = 0; i < N_ADAPTERS; i++) unpack(adapters[m][i]);
    }
}

TEST(each_request_has_its_adapter) {
    unpack(models[0]);
    unpack(models[1]);
    for_each_backend(run_adapters);
}

/* They differ at all. */
TEST(adapters_change_answers) {
    Kept kept = {0};
    Generator *g = open_generator(models[0], 4, 40);
    for (size_t p = 0; p < N_ADAPTERS + 1; p++) {
        GenerateRequest request = ask(p, PLAIN, 1, &kept);
        request.prompt = (Prompt){prompt_ids[4], lengths[4], 4};
        request.adapter = p ? adapters[0][p - 1] : NULL;
        assert_true(add(g, request) != 0);
    }
    check_ok(generator_drain(g));
    for (size_t p = 0; p < N_ADAPTERS + 1; p++)
        for (size_t q = 0; q < p; q++) assert_true(kept.of[p][0].logprobs[0] != kept.of[q][0].logprobs[0]);
    generator_close(g);
    kept_release(&kept);
}

/* ---- pages that requests share ---- */

enum { STEM = 75, TAILS = 12 }; /* two full pages and a part */
static int32_t stem_ids[TAILS][STEM + TAILS + 40];

/* Prompt t begins with the stem and has t + 1 more tokens. */
static void make_stems(void) {
    for (size_t t = 0; t < TAILS; t++) {
        for (size_t i = 0; i < STEM; i++) stem_ids[t][i] = 2 + (int32_t)rng_below(rng_key(2, RNG_TEST, 0), i, VOCAB - 2);
        for (size_t i = STEM; i < COUNT_OF(stem_ids[t]); i++) stem_ids[t][i] = 2 + (int32_t)rng_below(rng_key(2, RNG_TEST, 1 + t), i, VOCAB - 2);
    }
}

static GenerateRequest ask_stem(size_t t, int way, int64_t n_samples, const Model *adapter, Kept *kept) {
    GenerateRequest request = ask(t % N_PROMPTS, way, n_samples, kept);
    request.prompt = (Prompt){stem_ids[t], STEM + t + 1, t};
    request.adapter = adapter;
    return request;
}

static Generator *open_keeping(const Model *model, int64_t max_sequences, int64_t max_pages, bool keeps) {
    Generator *g;
    check_ok(generator_open(model, NULL, &(GeneratorConfig){.max_sequences = max_sequences, .max_pages = max_pages, .keep_prefixes = keeps}, &g));
    return g;
}

/* While others run, and after them; with an adapter between them, which shares nothing. */
static void check_stems(int m, bool keeps) {
    Kept shared = {0}, alone = {0};
    Generator *g = open_keeping(models[m], 8, 60, keeps);
    for (size_t t = 0; t < 6; t++) {
        GenerateRequest request = ask_stem(t, PLAIN, 1 + (int64_t)(t % 2), t == 2 ? adapters[m][0] : NULL, &shared);
        GeneratorStats before = generator_stats(g);
        assert_true(add(g, request) != 0);
        answer_alone(t == 2 ? adapters[m][0] : models[m], &request, &alone);
        GeneratorStats stats = generator_stats(g);
        bool found = t == 1 || t == 3 || t == 5 || (keeps && t == 4); /* before 4, all have ended */
        assert_int_equal(stats.found_tokens - before.found_tokens, found ? 64 : 0);
        assert_int_equal(stats.prompt_tokens - before.prompt_tokens, STEM + t + 1);
        check_ok(generator_step(g));
        assert_int_equal(generator_stats(g).shared, t == 0 || t == 4 ? 0 : 2);
        if (t == 3) check_ok(generator_drain(g));
    }
    check_ok(generator_drain(g));
    GeneratorStats stats = generator_stats(g);
    assert_true(stats.used == 0 && stats.reserved == 0 && stats.shared == 0 && stats.lost_tokens == 0 && (stats.kept > 0) == keeps);
    for (size_t t = 0; t < 6; t++) check_prompt("with shared pages", models[m], &shared, &alone, t, 1 + (int64_t)(t % 2));
    generator_close(g);
    kept_release(&shared);
    kept_release(&alone);
}

TEST(equal_beginnings_share_pages) {
    make_stems();
    for (int i = 0; i < 4; i++) check_stems(i & 1, i & 2);
}

/* The next turn of a conversation computes what is new. An adapter's pages can be forgotten. */
TEST(answers_are_kept_for_the_next_turn) {
    Kept turns = {0}, alone = {0};
    make_stems();
    Generator *g = open_keeping(models[0], 2, 30, true);
    Prompt prompt = {stem_ids[0], STEM, 0};
    for (size_t p = 0; p < 4; p++) {
        GenerateRequest request = ask(p, PLAIN, 1, &turns);
        request.prompt = prompt;
        request.adapter = adapters[0][1];
        GeneratorStats before = generator_stats(g);
        assert_true(add(g, request) != 0);
        int64_t found = generator_stats(g).found_tokens - before.found_tokens;
        assert_int_equal(found, p == 0 || p == 3 ? 0
                                                 : ((int64_t)prompt.n - 3) / 32 *
                                                       32); /* all but two new tokens; the newest one of the answer is not in the cache */
        check_ok(generator_drain(g));
        answer_alone(adapters[0][1], &request, &alone);
        check_prompt("a turn", models[0], &turns, &alone, p, 1);
        const Completion *c = &turns.of[p][0];
        memmove(stem_ids[0] + prompt.n + c->ids.n, stem_ids[0] + prompt.n, 2 * sizeof(int32_t));
        if (p < 2) memcpy(stem_ids[0] + prompt.n, c->ids.data, c->ids.n * sizeof *c->ids.data);
        if (p < 2) prompt.n += c->ids.n + 2;
        if (p == 2) generator_forget(g, adapters[0][1]);
    }
    generator_close(g);
    kept_release(&turns);
    kept_release(&alone);
}

/* Requests with beginnings in common come, run and are cancelled at random, with few pages: nobody gets what is not his, and nothing is lost. */
static void run_at_random(uint64_t seed, int64_t n_pages, bool keeps) {
    enum { ROUNDS = 150 };
    Kept alone[TAILS] = {0}, got[TAILS] = {0};
    GenerateHandle handles[TAILS] = {0};
    const Model *const with[3] = {NULL, adapters[0][0], adapters[0][1]};
    RngKey key = rng_key(seed, RNG_TEST, 9);
    uint64_t draw = 0;
    size_t finished = 0, cancelled = 0;
    Generator *g = open_keeping(models[0], 5, n_pages, keeps);
    for (size_t t = 0; t < TAILS; t++) {
        GenerateRequest request = ask_stem(t, (int)(t % N_WAYS), 1 + (int64_t)(t % 3), with[t / 2 % 3], &alone[t]);
        answer_alone(request.adapter ? request.adapter : models[0], &request, &alone[t]);
    }
    for (int round = 0; round < ROUNDS || generator_busy(g); round++) {
        size_t t = (size_t)rng_below(key, draw++, TAILS), p = t % N_PROMPTS;
        if (handles[t] && round < ROUNDS && rng_below(key, draw++, 4) == 0 && generator_cancel(g, handles[t])) {
            kept_release(&got[t]);
            handles[t] = 0;
            cancelled++;
        } else if (!handles[t] && round < ROUNDS) {
            handles[t] = add(g, ask_stem(t, (int)(t % N_WAYS), 1 + (int64_t)(t % 3), with[t / 2 % 3], &got[t]));
        }
        check_ok(generator_step(g));
        GeneratorStats stats = generator_stats(g);
        assert_true(stats.used >= 0 && stats.used <= stats.reserved && stats.reserved <= n_pages && stats.used + stats.kept <= n_pages);
        for (t = 0; t < TAILS; t++) {
            p = t % N_PROMPTS;
            if (!handles[t] || got[t].n < 1 + t % 3) continue;
            check_prompt("at random", models[0], &got[t], &alone[t], p, 1 + (int64_t)(t % 3));
            kept_release(&got[t]);
            handles[t] = 0;
            finished++;
        }
    }
    GeneratorStats stats = generator_stats(g);
    assert_true(finished > 5 && cancelled > 3 && stats.used == 0 && stats.reserved == 0 && generator_free_pages(g) == n_pages);
    assert_true(stats.found_tokens > 0 && stats.kept == n_pages - g->cache->n_free);
    generator_close(g);
    for (size_t t = 0; t < TAILS; t++) kept_release(&alone[t]);
}

TEST(requests_come_and_go_at_random) {
    make_stems();
    for (uint64_t seed = 0; seed < ALL_OR_FEW(6, 2); seed++) run_at_random(seed, seed % 3 == 0 ? 40 : 9 + (int64_t)seed, seed & 1);
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
        cmocka_unit_test(adapters_change_answers),
        cmocka_unit_test(equal_beginnings_share_pages),
        cmocka_unit_test(answers_are_kept_for_the_next_turn),
        cmocka_unit_test(requests_come_and_go_at_random),
        cmocka_unit_test(completions_come_when_they_are_done),
        cmocka_unit_test(a_callback_cancels_and_fails),
        cmocka_unit_test(a_request_fails_alone),
        cmocka_unit_test(what_does_not_fit_is_told),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
