/* SPDX-License-Identifier: Apache-2.0 */
/* Generation and scoring: against the reference library's values, against each other, and independent of what else is in the batch. */
#include "tests/support/check.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/infer/infer.h"
#include "lib/infer/kv_cache.h"

#define DEMO_TOKENIZER "recipes/demo/model/tokenizer.json" /* 258 tokens, in the tree */
enum { VOCAB = 258, MAX_DONE = 64, MAX_IDS = 640 };
static const char *const tiny_config =
    "{\"model_type\": \"llama\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"vocab_size\": 258, \"eos_token_id\": 1, \"tie_word_embeddings\": false}";
static const SampleConfig greedy = {.greedy = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};
static const SampleConfig plain = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};

static Model *tiny;
static Tokenizer *tokenizer;
static int32_t prompt_ids[8][300];
static Prompt prompts[8]; /* of 1, 3, 31, 32, 33, 5, 300 and 64 tokens: around the borders of pages */

static int set_up(void **state) {
    (void)state;
    char dir[256];
    static const size_t lengths[8] = {1, 3, 31, 32, 33, 5, 300, 64};
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 3, 0.25));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &tiny));
    temp_dir_remove(dir);
    check_ok(tokenizer_load(DEMO_TOKENIZER, &tokenizer));
    for (size_t p = 0; p < 8; p++) {
        for (size_t i = 0; i < lengths[p]; i++) prompt_ids[p][i] = 2 + (int32_t)rng_below(rng_key(1, RNG_TEST, p), i, VOCAB - 2);
        prompts[p] = (Prompt){prompt_ids[p], lengths[p], p};
    }
    return 0;
}

static int clean_up(void **state) {
    (void)state;
    model_free(tiny);
    tokenizer_free(tokenizer);
    return 0;
}

/* ---- a run's results, kept ---- */

typedef struct Done {
    size_t prompt;
    int64_t sample;
    int32_t ids[MAX_IDS];
    double logprobs[MAX_IDS];
    size_t n;
    char text[4096];
    size_t text_len;
    FinishReason finish;
} Done;
typedef struct Results {
    Done done[MAX_DONE];
    size_t n;
    Str streamed[MAX_DONE];
    size_t n_tokens, stop_at;
    int64_t samples;
} Results;

static Status generate_keep(void *context, const Completion *c) {
    Results *results = context;
    assert_true(results->n < MAX_DONE && c->ids.n <= MAX_IDS && c->text.len < sizeof results->done[0].text);
    Done *done = &results->done[results->n++];
    *done = (Done){.prompt = c->prompt, .sample = c->sample, .n = c->ids.n, .text_len = c->text.len, .finish = c->finish};
    memcpy(done->ids, c->ids.data, c->ids.n * sizeof *done->ids);
    memcpy(done->logprobs, c->logprobs, c->ids.n * sizeof *done->logprobs);
    memcpy(done->text, str_text(&c->text), c->text.len + 1);
    return results->stop_at == results->n ? status_fail(ST_RESOURCE, "enough") : ST_OK;
}

static Status keep_piece(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    Results *results = context;
    assert_true(id >= 0 && logprob <= 0);
    str_append(&results->streamed[prompt * (size_t)results->samples + (size_t)sample], text);
    results->n_tokens++;
    return ST_OK;
}

static Results *generate_run(const Model *model, const Tokenizer *words, const Prompt *some, size_t n, GenerateConfig config) {
    Results *results = calloc(1, sizeof *results);
    results->samples = config.n;
    check_ok(generate(model, words, some, n, &config, keep_piece, generate_keep, results));
    assert_int_equal(results->n, n * (size_t)config.n);
    return results;
}

static void free_results(Results *results) {
    for (size_t i = 0; i < MAX_DONE; i++) str_release(&results->streamed[i]);
    free(results);
}

/* How far a row's values may be from those it has among other rows. Our own products and oneDNN's have the same bits; OpenBLAS takes other paths for
 * other numbers of rows, which was measured to make up to 1.0e-5 here and 1.3e-5 on SmolLM2-135M. */
static double batch_tolerance(void) { return text_starts_with(cpu_info()->gemm_f32, "openblas") ? 5e-5 : 0; }

static void check_same(const char *what, const Done *a, const Done *b, double tolerance) {
    check_ids(what, a->ids, a->n, b->ids, b->n);
    check_close_f64(what, a->logprobs, b->logprobs, a->n, tolerance, 0);
    assert_int_equal(a->finish, b->finish);
    assert_string_equal(a->text, b->text);
}

/* The largest difference between the log-probabilities of a completion and those of scoring the whole row. */
static double score_difference(const Model *model, const Prompt *prompt, const Done *done) {
    int32_t ids[2 * MAX_IDS];
    double logprobs[2 * MAX_IDS], largest = 0;
    memcpy(ids, prompt->ids, prompt->n * sizeof *ids);
    memcpy(ids + prompt->n, done->ids, done->n * sizeof *ids);
    ScoreRow row = {ids, prompt->n + done->n, logprobs};
    check_ok(score_rows(model, &row, 1, NULL, NULL));
    assert_true(isnan(logprobs[0]));
    for (size_t i = 0; i < done->n; i++) largest = fmax(largest, fabs(done->logprobs[i] - logprobs[prompt->n + i]));
    return largest;
}

/* ---- the cache ---- */

static void fill_page(const KvCache *cache, int32_t page, double value) {
    int64_t width = tensor_width(cache->pages.k[0]);
    for (int layer = 0; layer < cache->pages.n_layers; layer++)
        for (int64_t i = 0; i < KV_PAGE_SIZE * width; i++) {
            tensor_set(cache->pages.k[layer], page * KV_PAGE_SIZE * width + i, value + layer);
            tensor_set(cache->pages.v[layer], page * KV_PAGE_SIZE * width + i, -value - layer);
        }
}

static bool page_holds(const KvCache *cache, int32_t page, double value) {
    int64_t width = tensor_width(cache->pages.k[0]);
    for (int layer = 0; layer < cache->pages.n_layers; layer++)
        for (int64_t i = 0; i < KV_PAGE_SIZE * width; i++)
            if (tensor_get(cache->pages.k[layer], page * KV_PAGE_SIZE * width + i) != value + layer ||
                tensor_get(cache->pages.v[layer], page * KV_PAGE_SIZE * width + i) != -value - layer)
                return false;
    return true;
}

TEST(shared_pages_are_copied_on_write) {
    KvCache *cache;
    KvPageList a = {0}, b = {0}, c = {0};
    Arena *arena = arena_new(0);
    check_ok(kv_cache_new(arena, tiny, 5, &cache));
    check_ok(kv_pages_reserve(cache, &a, 40));
    assert_int_equal(a.n, 2);
    fill_page(cache, a.items[0], 1);
    fill_page(cache, a.items[1], 2);
    check_ok(kv_pages_share(cache, &a, 40, &b));
    check_ok(kv_pages_share(cache, &a, 40, &c));
    assert_int_equal(cache->n_free, 3); /* shared, not copied */
    check_ok(kv_pages_write(cache, &b, 40, 41));
    assert_int_equal(cache->n_free, 2);
    assert_true(b.items[0] == a.items[0] && b.items[1] != a.items[1] && c.items[1] == a.items[1]);
    assert_true(page_holds(cache, b.items[1], 2));
    fill_page(cache, b.items[1], 3);
    assert_true(page_holds(cache, a.items[0], 1) && page_holds(cache, a.items[1], 2));
    kv_pages_release(cache, &a);
    check_ok(kv_pages_write(cache, &c, 40, 41)); /* c is the last to have the page: it need not be copied */
    assert_int_equal(cache->n_free, 2);
    check_ok(kv_pages_write(cache, &c, 64, 97));
    assert_int_equal(c.n, 4);
    check_status(kv_pages_reserve(cache, &c, 129), ST_RESOURCE);
    kv_pages_release(cache, &b);
    kv_pages_release(cache, &c);
    assert_int_equal(cache->n_free, 5);
    arena_free(arena);
}

/* ---- what a completion depends on ---- */

TEST(generate_and_score_agree) {
    for (int way = 0; way < 2; way++) {
        Results *results = generate_run(
            tiny, NULL, prompts, 8, (GenerateConfig){.sample = way ? plain : greedy, .max_new_tokens = 70, .n = 2, .seed = 5, .ignore_eos = true});
        double largest = 0;
        for (size_t i = 0; i < results->n; i++) {
            assert_int_equal(results->done[i].prompt, i / 2);
            assert_int_equal(results->done[i].sample, i % 2);
            assert_int_equal(results->done[i].n, 70);
            largest = fmax(largest, score_difference(tiny, &prompts[i / 2], &results->done[i]));
        }
        assert_int_equal(results->n_tokens, 16 * 70);
        if (!(largest <= batch_tolerance())) fail_msg("generate and score differ by %g, allowed %g", largest, batch_tolerance());
        free_results(results);
    }
}

#define OF(type)                                                                                                                    \
    "{\"model_type\": \"" type "\", \"vocab_size\": 258, \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2," \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"sliding_window\": 20"

/* What other families have beyond llama, in both dtypes: prompts and answers of any size in one batch have the bits of rows that are scored alone. */
TEST(generate_and_score_agree_in_all_families) {
    static const char *const configs[] = {
        OF("gemma2") ", \"attn_logit_softcapping\": 2, \"final_logit_softcapping\": 3}",
        OF("gemma3_text") ", \"sliding_window_pattern\": 2}",
        OF("phi3") ", \"partial_rotary_factor\": 0.5}",
        OF("olmo3") "}",
        OF("granite") ", \"embedding_multiplier\": 3, \"residual_multiplier\": 0.4, \"attention_multiplier\": 0.2, \"logits_scaling\": 0.5}",
        OF("glm4") "}",
        OF("ministral3") ", \"rope_parameters\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 16,"
                         " \"llama_4_scaling_beta\": 0.3}}",
        OF("smollm3") ", \"no_rope_layer_interval\": 2}",
        OF("qwen3_moe") ", \"num_experts\": 5, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 12}",
        OF("lfm2_moe") ", \"layer_types\": [\"conv\", \"full_attention\"], \"conv_L_cache\": 4, \"num_experts\": 5, \"num_experts_per_tok\": 2,"
                       " \"moe_intermediate_size\": 12, \"num_dense_layers\": 1}",
    };
    for (size_t c = 0; c < 2 * COUNT_OF(configs); c++) {
        char dir[256];
        Model *model;
        temp_dir_make(dir, sizeof dir);
        check_ok(model_write_random(dir, configs[c / 2], DT_BF16, 3, 0.2));
        check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = c % 2 ? DT_BF16 : DT_F32}, &model));
        Results *results =
            generate_run(model, NULL, prompts + 3, 3, (GenerateConfig){.sample = plain, .max_new_tokens = 12, .n = 2, .seed = 5, .ignore_eos = true});
        for (size_t i = 0; i < results->n; i++) {
            double largest = score_difference(model, &prompts[3 + i / 2], &results->done[i]);
            if (!(largest <= batch_tolerance())) fail_msg("%s: generate and score differ by %g", model->config.model_type, largest);
        }
        free_results(results);
        model_free(model);
        temp_dir_remove(dir);
    }
}

/* longrope uses one list of factors within the original context, and the other one beyond it, for all tokens. Each next token must be that of the
 * whole sequence so far, whether the prompt or the answer exceeds the context, alone, with other sequences, or in a session. */
TEST(longrope_changes_with_the_length) {
    enum { ORIGINAL = 36, NEW = 9 };
    char dir[256];
    Model *model;
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(
        dir,
        OF("phi3") ", \"max_position_embeddings\": 1000, \"original_max_position_embeddings\": 36, \"rope_scaling\": {\"type\": \"longrope\","
                   " \"short_factor\": [1, 1.5, 2, 3, 1, 1, 1, 1], \"long_factor\": [4, 9, 16, 7, 3, 4, 5, 2]}}",
        DT_F32, 3, 0.3));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    Results *results =
        generate_run(model, NULL, prompts, 8, (GenerateConfig){.sample = plain, .max_new_tokens = NEW, .n = 2, .seed = 5, .ignore_eos = true});
    bool crossed = false;
    for (size_t i = 0; i < results->n; i++) {
        const Prompt *prompt = &prompts[i / 2];
        for (size_t t = 0; t < NEW; t++) { /* all up to this token: its log-probability goes by the tokens before */
            Done part = results->done[i];
            int32_t ids[MAX_IDS];
            double logprobs[MAX_IDS];
            size_t n = prompt->n + t;
            memcpy(ids, prompt->ids, prompt->n * sizeof *ids);
            memcpy(ids + prompt->n, part.ids, (t + 1) * sizeof *ids);
            check_ok(score_rows(model, &(ScoreRow){ids, n + 1, logprobs}, 1, NULL, NULL));
            crossed |= n == ORIGINAL;
            if (n == ORIGINAL) continue; /* with this token the scored row is a long one, and the choice was made before it */
            check_close(part.logprobs[t], logprobs[n], 1e-5);
        }
    }
    assert_true(crossed);
    Session *session;
    check_ok(session_new(model, 400, &session));
    int32_t said[100];
    memcpy(said, prompts[2].ids, 31 * sizeof *said);
    Prompt prompt = {said, 20, 0};
    for (int turn = 0; turn < 3; turn++) { /* 20 tokens and 9 more, 40, which is long, 25 again */
        prompt.n = turn == 0 ? 20 : turn == 1 ? 40 : 25;
        if (turn == 1) memcpy(said + 31, prompts[7].ids, 20 * sizeof *said);
        GenerateConfig config = {.sample = greedy, .max_new_tokens = NEW, .n = 1, .ignore_eos = true};
        Results *alone = generate_run(model, NULL, &prompt, 1, config);
        config.session = session;
        Results *in_turn = generate_run(model, NULL, &prompt, 1, config);
        check_same("a turn", &in_turn->done[0], &alone->done[0], batch_tolerance());
        free_results(alone);
        free_results(in_turn);
    }
    session_free(session);
    free_results(results);
    model_free(model);
    temp_dir_remove(dir);
}

TEST(a_row_alone_is_a_row_among_others) {
    GenerateConfig config = {.sample = plain, .max_new_tokens = 40, .n = 3, .seed = 9};
    Results *all = generate_run(tiny, tokenizer, prompts, 8, config);
    for (int64_t max_batch = 1; max_batch <= 5; max_batch += 2) {
        config.max_batch = max_batch;
        Results *few = generate_run(tiny, tokenizer, prompts, 8, config);
        for (size_t i = 0; i < all->n; i++) check_same("a small batch", &few->done[i], &all->done[i], batch_tolerance());
        free_results(few);
    }
    config.max_batch = 0;
    for (size_t p = 0; p < 8; p++) {
        Results *alone = generate_run(tiny, tokenizer, &prompts[p], 1, config);
        for (size_t k = 0; k < 3; k++) check_same("a prompt alone", &alone->done[k], &all->done[3 * p + k], batch_tolerance());
        free_results(alone);
    }
    bool differ = memcmp(all->done[0].ids, all->done[1].ids, sizeof all->done[0].ids) != 0;
    assert_true(differ); /* each sample has its own random numbers */
    config.seed = 10;
    Results *other = generate_run(tiny, tokenizer, prompts, 8, config);
    differ = memcmp(all->done[0].ids, other->done[0].ids, sizeof all->done[0].ids) != 0;
    assert_true(differ);
    free_results(other);
    free_results(all);
}

/* Calls of all sizes in turn, one that is ended in between, on what the one before has left. */
TEST(memory_of_the_call_before_changes_nothing) {
    static const struct {
        size_t n;
        int64_t samples, new_tokens;
        bool stopped;
    } calls[] = {{3, 2, 20, false}, {1, 1, 5, false}, {8, 3, 40, false}, {4, 2, 30, true}, {8, 2, 70, false}, {2, 3, 10, false}};
    GenerateMemory *memory = generate_memory_new(tiny);
    assert_non_null(memory);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        GenerateConfig config = {.sample = plain, .max_new_tokens = calls[i].new_tokens, .n = calls[i].samples, .seed = i};
        Results *own = generate_run(tiny, tokenizer, prompts, calls[i].n, config), stopped = {.samples = config.n, .stop_at = 2};
        config.memory = memory;
        if (calls[i].stopped) {
            check_status(generate(tiny, tokenizer, prompts, calls[i].n, &config, NULL, generate_keep, &stopped), ST_RESOURCE);
        } else {
            Results *lent = generate_run(tiny, tokenizer, prompts, calls[i].n, config);
            for (size_t k = 0; k < own->n; k++) check_same("lent memory", &lent->done[k], &own->done[k], 0);
            free_results(lent);
        }
        free_results(own);
    }
    generate_memory_free(memory);
}

/* Widths that fill several of the products' tiles, in both types. */
TEST(batches_of_1_to_64_give_the_same_bits) {
    if (batch_tolerance() > 0) skip(); /* another way for other numbers of rows: bits, and now and then a token, may differ */
    static const char config_text[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 288, \"intermediate_size\": 544, \"num_hidden_layers\": 2, \"num_attention_heads\": 9, \"num_key_value_heads\": 3,"
        " \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5, \"vocab_size\": 1100, \"eos_token_id\": 1, \"tie_word_embeddings\": true}";
    char dir[256];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, config_text, DT_F32, 4, 0.1));
    for (int type = 0; type < 2; type++) {
        Model *model;
        check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = type ? DT_BF16 : DT_F32}, &model));
        GenerateConfig config = {.sample = plain, .max_new_tokens = 4, .n = 32, .seed = 9, .ignore_eos = true, .max_batch = 64};
        Results *all = generate_run(model, NULL, prompts + 1, 2, config);
        for (config.max_batch = 1; config.max_batch < 64; config.max_batch += ALL_OR_FEW(1, 11)) {
            Results *some = generate_run(model, NULL, prompts + 1, 2, config);
            for (size_t i = 0; i < all->n; i++) check_same("another batch", &some->done[i], &all->done[i], batch_tolerance());
            free_results(some);
        }
        for (size_t i = 0; i < all->n; i++) {
            double difference = score_difference(model, &prompts[1 + all->done[i].prompt], &all->done[i]);
            if (!(difference <= batch_tolerance()))
                fail_msg("%s: generate and score differ by %g, allowed %g", dtype_name(model->compute), difference, batch_tolerance());
        }
        free_results(all);
        model_free(model);
    }
    temp_dir_remove(dir);
}

TEST(threads_change_nothing) {
    int threads = omp_get_max_threads();
    Results *results[2];
    for (int t = 0; t < 2; t++) {
        omp_set_num_threads(t + 1);
        results[t] = generate_run(tiny, tokenizer, prompts, 8, (GenerateConfig){.sample = plain, .max_new_tokens = 20, .n = 2, .seed = 1});
    }
    omp_set_num_threads(threads);
    for (size_t i = 0; i < results[0]->n; i++) check_same("two threads", &results[1]->done[i], &results[0]->done[i], 0);
    free_results(results[0]);
    free_results(results[1]);
}

/* A prompt longer than one step takes comes in by parts. */
TEST(long_prompts_come_in_by_parts) {
    static int32_t ids[1500];
    for (size_t i = 0; i < COUNT_OF(ids); i++) ids[i] = 2 + (int32_t)rng_below(rng_key(2, RNG_TEST, 0), i, VOCAB - 2);
    Prompt prompt = {ids, COUNT_OF(ids), 0};
    Results *results = generate_run(tiny, NULL, &prompt, 1, (GenerateConfig){.sample = greedy, .max_new_tokens = 8, .n = 1, .ignore_eos = true});
    double logprobs[COUNT_OF(ids) + 8];
    static int32_t whole[COUNT_OF(ids) + 8];
    memcpy(whole, ids, sizeof ids);
    memcpy(whole + COUNT_OF(ids), results->done[0].ids, 8 * sizeof *whole);
    ScoreRow row = {whole, COUNT_OF(whole), logprobs};
    check_ok(score_rows(tiny, &row, 1, NULL, NULL));
    check_close_f64("after a long prompt", results->done[0].logprobs, logprobs + COUNT_OF(ids), 8, 1e-5, 0);
    free_results(results);
}

/* ---- where completions end ---- */

/* The cache has exactly the pages that a prompt and its samples can hold. */
TEST(samples_that_share_a_prompt_have_room) {
    static const int64_t lengths[] = {1, 2, 31, 32, 33, 65}, samples[] = {1, 3, 8};
    for (size_t l = 0; l < COUNT_OF(lengths); l++)
        for (size_t k = 0; k < COUNT_OF(samples); k++) {
            GenerateConfig config = {.sample = plain, .max_new_tokens = lengths[l], .n = samples[k], .seed = 4, .ignore_eos = true};
            Results *all = generate_run(tiny, NULL, prompts, 8, config);
            for (size_t p = 0; p < 8; p++) {
                Results *alone = generate_run(tiny, NULL, &prompts[p], 1, config);
                for (size_t i = 0; i < alone->n; i++) check_same("a prompt alone", &alone->done[i], &all->done[p * alone->n + i], batch_tolerance());
                free_results(alone);
            }
            free_results(all);
        }
}

TEST(eos_ends_and_is_kept) {
    GenerateConfig config = {.sample = plain, .max_new_tokens = 600, .n = 4, .seed = 3};
    Results *results = generate_run(tiny, NULL, prompts, 2, config);
    size_t n_stopped = 0;
    for (size_t i = 0; i < results->n; i++) {
        const Done *done = &results->done[i];
        for (size_t t = 0; t + 1 < done->n; t++) assert_int_not_equal(done->ids[t], 1);
        assert_int_equal(done->finish == FINISH_STOP, done->ids[done->n - 1] == 1);
        assert_true(done->finish == FINISH_STOP || done->n == 600);
        n_stopped += done->finish == FINISH_STOP;
    }
    assert_true(n_stopped > 0);
    config.ignore_eos = true;
    Results *on = generate_run(tiny, NULL, prompts, 2, config);
    for (size_t i = 0; i < on->n; i++) {
        assert_int_equal(on->done[i].n, 600);
        check_ids("until EOS", on->done[i].ids, MIN(on->done[i].n, results->done[i].n), results->done[i].ids, results->done[i].n);
    }
    free_results(on);
    free_results(results);
}

TEST(stop_texts_cut_exactly) {
    GenerateConfig config = {.sample = plain, .max_new_tokens = 60, .n = 2, .seed = 4, .ignore_eos = true};
    Results *free_run = generate_run(tiny, tokenizer, prompts, 4, config);
    for (size_t i = 0; i < free_run->n; i++) {
        const Done *whole = &free_run->done[i];
        assert_true(whole->text_len > 0);
        bool zeros = strlen(whole->text) < whole->text_len; /* NUL bytes, which the texts of on_token cannot contain */
        if (!zeros) assert_string_equal(str_text(&free_run->streamed[i]), whole->text);
        char stop[8];
        size_t at = whole->text_len / 2;
        while (at < whole->text_len && ((unsigned char)whole->text[at] & 0xC0) == 0x80) at++;
        size_t len = utf8_whole_prefix(whole->text + at, MIN(7, whole->text_len - at));
        memcpy(stop, whole->text + at, len);
        stop[len] = '\0';
        if (strlen(stop) == 0) continue;
        const char *texts[] = {"\x01never\x01", stop};
        config.n_stop = 2;
        config.stop = texts;
        config.n = i % 2 + 1;
        Results *cut = generate_run(tiny, tokenizer, &prompts[i / 2], 1, config);
        const Done *done = &cut->done[i % 2];
        assert_int_equal(done->finish, FINISH_STOP);
        size_t first = 0;
        while (memcmp(whole->text + first, stop, strlen(stop))) first++;
        assert_int_equal(done->text_len, first);
        assert_memory_equal(done->text, whole->text, done->text_len);
        check_ids("until the stop text", done->ids, done->n, whole->ids, done->n);
        if (!zeros) assert_string_equal(str_text(&cut->streamed[i % 2]), done->text); /* nothing of the stop text was shown */
        Str decoded = {0};
        check_ok(tokenizer_decode(tokenizer, done->ids, done->n, true, &decoded));
        /* The ids keep what was generated */
        assert_true(decoded.len > done->text_len && !memcmp(decoded.data + done->text_len, stop, MIN(strlen(stop), decoded.len - done->text_len)));
        str_release(&decoded);
        free_results(cut);
        config.n_stop = 0;
    }
    free_results(free_run);
}

/* ---- ids that the tokenizer does not have ---- */

enum { PADDED = 300, DRAWS = 3000 };

typedef struct Firsts {
    int64_t counts[PADDED];
    double filtered[PADDED];
    double logits[PADDED]; /* after the prompt */
} Firsts;

static Status count_first(void *context, const Completion *c) {
    Firsts *firsts = context;
    firsts->counts[c->ids.data[0]]++;
    firsts->filtered[c->ids.data[0]] = c->filtered[0];
    return ST_OK;
}

static Status keep_logits(void *context, size_t row, const float *logits, int64_t n, int64_t vocab) {
    Firsts *firsts = context;
    (void)row;
    for (int64_t v = 0; v < vocab; v++) firsts->logits[v] = (double)logits[(n - 1) * vocab + v];
    return ST_OK;
}

static Model *padded_model(void) {
    char dir[256];
    Model *padded;
    Str config = {0};
    str_append(&config, tiny_config);
    memcpy(strstr(config.data, "\"vocab_size\": 258") + strlen("\"vocab_size\": "), "300", 3);
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, config.data, DT_F32, 3, 0.25));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &padded));
    temp_dir_remove(dir);
    str_release(&config);
    return padded;
}

/* Embeddings with more rows than the tokenizer has tokens: the extra ids are never chosen, by any sampling. Recorded log-probabilities are over
 * the whole vocabulary, as in training. */
TEST(ids_without_a_token_are_never_chosen) {
    Model *padded = padded_model();
    SampleConfig ways[] = {plain, greedy, plain, plain, greedy};
    ways[0].temperature = 3;
    ways[2].top_p = 0.9;
    ways[3].min_p = 0.01, ways[3].temperature = 3;
    ways[4].repetition_penalty = 1.3;
    for (size_t w = 0; w < COUNT_OF(ways); w++) {
        GenerateConfig config = {.sample = ways[w], .max_new_tokens = 40, .n = 2, .seed = 5, .ignore_eos = true};
        Results *free_run = generate_run(padded, NULL, prompts, 4, config), *results = generate_run(padded, tokenizer, prompts, 4, config);
        size_t n_absent = 0;
        for (size_t i = 0; i < results->n; i++) {
            const Done *done = &results->done[i], *other = &free_run->done[i];
            size_t same = 0;
            for (size_t t = 0; t < done->n; t++) assert_in_range(done->ids[t], 0, VOCAB - 1);
            while (same < other->n && other->ids[same] < VOCAB) same++;
            n_absent += same < other->n;
            if (w < 2) check_ids("until one would have come", done->ids, same, other->ids, same); /* the other runs are unchanged */
            assert_true(score_difference(padded, &prompts[done->prompt], done) < 1e-4);
        }
        assert_true(n_absent > 0);
        free_results(free_run);
        free_results(results);
    }
    model_free(padded);
}

TEST(the_others_keep_their_proportions) {
    Model *padded = padded_model();
    Firsts firsts = {0};
    double logprobs[8], sum = 0, distance = 0;
    GenerateConfig config = {.sample = plain, .max_new_tokens = 1, .n = DRAWS, .seed = 6, .ignore_eos = true, .max_batch = 64};
    config.sample.temperature = 3;
    check_ok(score_rows(padded, &(ScoreRow){prompt_ids[5], 5, logprobs}, 1, keep_logits, &firsts));
    check_ok(generate(padded, tokenizer, &prompts[5], 1, &config, NULL, count_first, &firsts));
    for (int v = 0; v < VOCAB; v++) sum += exp(firsts.logits[v] / 3);
    for (int v = 0; v < VOCAB; v++) {
        double p = exp(firsts.logits[v] / 3) / sum;
        distance += fabs((double)firsts.counts[v] / DRAWS - p);
        if (firsts.counts[v]) assert_true(fabs(firsts.filtered[v] - log(p)) < 1e-4);
    }
    for (int v = VOCAB; v < PADDED; v++) assert_int_equal(firsts.counts[v], 0);
    /* Of 3000 draws the mean is at most sqrt(2 x 258 / (pi x 3000)) = 0.23, its deviation about 0.01 */
    assert_true(distance < 0.27);
    model_free(padded);
}

/* An EOS that the tokenizer does not have is no text, but ends an answer all the same. */
TEST(an_eos_without_a_token_may_come) {
    Model *padded = padded_model();
    padded->config.eos_token_id[0] = PADDED - 1;
    GenerateConfig config = {.sample = plain, .max_new_tokens = 300, .n = 4, .seed = 3};
    config.sample.temperature = 3;
    Results *results = generate_run(padded, tokenizer, prompts, 2, config);
    size_t n_stopped = 0;
    for (size_t i = 0; i < results->n; i++) {
        const Done *done = &results->done[i];
        n_stopped += done->finish == FINISH_STOP && done->ids[done->n - 1] == PADDED - 1;
    }
    assert_true(n_stopped > 0);
    free_results(results);
    model_free(padded);
}

TEST(faults_are_named) {
    Results *results = calloc(1, sizeof *results);
    const char *stop = "x";
    GenerateConfig config = {.sample = greedy, .max_new_tokens = 4, .n = 1};
    Prompt empty = {prompt_ids[0], 0, 0}, unknown = {(int32_t[]){5, VOCAB}, 2, 0};
    check_status(generate(tiny, NULL, &empty, 1, &config, NULL, generate_keep, results), ST_INPUT);
    check_text("empty");
    check_status(generate(tiny, NULL, &unknown, 1, &config, NULL, generate_keep, results), ST_INPUT);
    check_text("258");
    config.n_stop = 1;
    config.stop = &stop;
    check_status(generate(tiny, NULL, prompts, 1, &config, NULL, generate_keep, results), ST_INPUT);
    check_text("tokenizer");
    config.n_stop = 0;
    assert_int_equal(results->n, 0);
    results->stop_at = 2; /* the callback ends the run */
    check_status(generate(tiny, NULL, prompts, 5, &config, NULL, generate_keep, results), ST_RESOURCE);
    check_text("enough");
    assert_int_equal(results->n, 2);
    for (int g = 0; g < 2; g++) {
        config = (GenerateConfig){.sample = g ? greedy : plain, .max_new_tokens = VOCAB + 1, .n = 1, .ignore_eos = true};
        config.sample.no_repeat_ngram_size = 1;
        check_status(generate(tiny, NULL, prompts, 1, &config, NULL, generate_keep, results), ST_NUMERIC);
        check_text("no token can follow the first 257 of the answer to prompt 1"); /* the prompt has the first of 258 */
    }
    double logprob;
    ScoreRow none = {prompt_ids[0], 0, &logprob};
    check_status(score_rows(tiny, &none, 1, NULL, NULL), ST_INPUT);
    free_results(results);
}

/* ---- scoring ---- */

TEST(scores_do_not_depend_on_the_batch) {
    enum { N = 24 };
    static double together[N][300], alone[300];
    ScoreRow rows[N];
    for (size_t r = 0; r < N; r++) rows[r] = (ScoreRow){prompts[r % 8].ids, prompts[r % 8].n, together[r]}; /* more tokens than one batch takes */
    check_ok(score_rows(tiny, rows, N, NULL, NULL));
    for (size_t r = 0; r < N; r++) {
        ScoreRow row = {rows[r].ids, rows[r].n, alone};
        check_ok(score_rows(tiny, &row, 1, NULL, NULL));
        check_close_f64("a row alone", together[r] + 1, alone + 1, row.n - 1, batch_tolerance(), 0);
        assert_true(isnan(alone[0]) && isnan(together[r][0]));
    }
}

/* Each branch after a shared text has the scores of its whole row, also if there are more families than fit into a batch. */
TEST(branches_have_the_scores_of_whole_rows) {
    enum { N = 40, STEM = 60, MOST = 3 };
    static double branched[N][MOST][8], whole[STEM + 8];
    static ScoreRow branches[N][MOST];
    static ScoreStem stems[N];
    static int32_t ids[N][STEM], more[N][MOST][8];
    for (size_t i = 0; i < N; i++) {
        size_t n = 1 + (i * 7) % STEM;
        for (size_t t = 0; t < n; t++) ids[i][t] = (int32_t)((i * 31 + t * 17) % VOCAB);
        for (size_t b = 0; b < MOST; b++) {
            size_t length = 1 + (i + 3 * b) % 8;
            for (size_t t = 0; t < length; t++) more[i][b][t] = (int32_t)((i + b * 13 + t * 5) % VOCAB);
            branches[i][b] = (ScoreRow){more[i][b], length, branched[i][b]};
        }
        stems[i] = (ScoreStem){ids[i], n, branches[i], i % (MOST + 1)};
    }
    check_ok(score_branches(tiny, stems, N));
    for (size_t i = 0; i < N; i++) {
        for (size_t b = 0; b < stems[i].n_branches; b++) {
            int32_t all[STEM + 8];
            size_t n = stems[i].n, length = branches[i][b].n;
            memcpy(all, ids[i], n * sizeof *all);
            memcpy(all + n, more[i][b], length * sizeof *all);
            ScoreRow row = {all, n + length, whole};
            check_ok(score_rows(tiny, &row, 1, NULL, NULL));
            check_close_f64("a branch", branched[i][b], whole + n, length, batch_tolerance(), 0);
        }
    }
}

static Status check_normalised(void *context, size_t row, const float *logits, int64_t n, int64_t vocab) {
    const ScoreRow *scored = (const ScoreRow *)context + row;
    assert_int_equal(n, scored->n);
    assert_int_equal(vocab, VOCAB);
    for (int64_t t = 0; t + 1 < n; t++) {
        double top = -HUGE_VAL, sum = 0;
        for (int64_t v = 0; v < vocab; v++) top = fmax(top, (double)logits[t * vocab + v]);
        for (int64_t v = 0; v < vocab; v++) sum += exp((double)logits[t * vocab + v] - top);
        check_close((double)logits[t * vocab + scored->ids[t + 1]] - top - log(sum), scored->logprobs[t + 1], 1e-5);
    }
    return ST_OK;
}

TEST(logits_belong_to_the_scores) {
    double logprobs[8][300];
    ScoreRow rows[8];
    for (size_t r = 0; r < 8; r++) rows[r] = (ScoreRow){prompts[r].ids, prompts[r].n, logprobs[r]};
    check_ok(score_rows(tiny, rows, 8, check_normalised, rows));
}

/* ---- golden values ---- */

static size_t stored_ids(const WeightFile *set, const char *name, int32_t *ids) {
    const StoredTensor *stored = weight_file_find(set, name);
    if (!stored) fail_msg("no '%s' in the expected values", name);
    size_t n = (size_t)stored->count;
    assert_true(n <= MAX_IDS);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)stored_get(stored, (int64_t)i);
    return n;
}

static size_t json_ids(const json_t *array, int32_t *ids) {
    assert_true(json_array_size(array) <= MAX_IDS);
    for (size_t i = 0; i < json_array_size(array); i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return json_array_size(array);
}

static void golden_model(const char *name) {
    char path[600], dir[512];
    snprintf(path, sizeof path, "golden/%s", name);
    if (!shared_path(path, dir, sizeof dir)) skip();
    WeightFile *expected;
    Model *model;
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    check_ok(weight_file_open(path, &expected));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    int32_t ids[MAX_IDS], want_ids[MAX_IDS];
    double logprobs[MAX_IDS], want[MAX_IDS];
    for (int s = 0; s < 2; s++) {
        ScoreRow row = {ids, stored_ids(expected, s ? "seq1.input_ids" : "seq0.input_ids", ids), logprobs};
        check_ok(score_rows(model, &row, 1, NULL, NULL));
        const StoredTensor *stored = weight_file_find(expected, s ? "seq1.next_logprobs" : "seq0.next_logprobs");
        for (size_t i = 0; i + 1 < row.n; i++) want[i] = stored_get(stored, (int64_t)i);
        check_close_f64(name, logprobs + 1, want, row.n - 1, 5e-5, 0);
    }
    Prompt prompt = {ids, stored_ids(expected, "greedy.prompt", ids), 0};
    size_t n = stored_ids(expected, "greedy.tokens", want_ids);
    Results *results = generate_run(model, NULL, &prompt, 1, (GenerateConfig){.sample = greedy, .max_new_tokens = (int64_t)n, .n = 1});
    check_ids(name, results->done[0].ids, results->done[0].n, want_ids, n);
    for (size_t i = 0; i < n; i++) want[i] = stored_get(weight_file_find(expected, "greedy.logprobs"), (int64_t)i);
    check_close_f64(name, results->done[0].logprobs, want, n, 5e-5, 0);
    free_results(results);
    model_free(model);
    weight_file_close(expected);
}

TEST(golden_models) {
    static const char *const names[] = {
        "models/llama",
        "models/llama-sharded",
        "models/llama3-rope",
        "models/mistral",
        "models/qwen2",
        "models/qwen3",
        "models/gpt2",
        "models/gemma2",
        "models/gemma3",
        "models/phi3",
        "models/olmo2",
        "models/smollm3",
        "families/olmo3",
        "families/ministral3",
        "families/granite",
        "families/glm4",
        "families/granitemoehybrid-dense",
        "models/mixtral",
        "models/qwen3_moe",
        "models/deepseek_v2",
        "models/deepseek_v3",
        "families/glm4_moe",
        "families/glm4_moe_lite",
        "families/gpt_oss",
        "families/lfm2",
        "families/lfm2_moe",
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) golden_model(names[i]);
}

/* Greedy texts of a really trained model, all prompts at once. */
TEST(stories_are_told_exactly) {
    char dir[512], path[512];
    if (!shared_path("data/models/stories260K-hf", dir, sizeof dir) || !shared_path("golden/stories260K/expected.json", path, sizeof path)) skip();
    json_t *json;
    Model *model;
    Tokenizer *words;
    check_ok(json_read_file(path, &json));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(tokenizer_load(dir, &words));
    int32_t ids[8][MAX_IDS] = {{1}}, want[MAX_IDS];
    size_t n = json_ids(json_object_get(json, "greedy_from_bos_ids"), want);
    Prompt bos = {ids[0], 1, 0};
    Results *results = generate_run(model, words, &bos, 1, (GenerateConfig){.sample = greedy, .max_new_tokens = (int64_t)n - 1, .n = 1});
    check_ids("from BOS", results->done[0].ids, results->done[0].n, want + 1, n - 1);
    assert_string_equal(results->done[0].text, json_string_value(json_object_get(json, "greedy_from_bos_text")));
    free_results(results);
    const json_t *given = json_object_get(json, "prompts");
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *row = json_array_get(given, i);
        Prompt prompt = {ids[1], json_ids(json_object_get(row, "prompt_ids"), ids[1]), 0};
        n = json_ids(json_object_get(row, "greedy_ids"), want);
        results = generate_run(model, words, &prompt, 1, (GenerateConfig){.sample = greedy, .max_new_tokens = (int64_t)n, .n = 1});
        check_ids(json_string_value(json_object_get(row, "prompt")), results->done[0].ids, results->done[0].n, want, n);
        free_results(results);
    }
    tokenizer_free(words);
    model_free(model);
    json_decref(json);
}

/* The real model of golden/smollm2-instruct, whose directory TUNE_SMOLLM2 names. */
static void golden_smollm2(DType compute, double tolerance, double score_tolerance) {
    char path[512];
    const char *dir = getenv("TUNE_SMOLLM2");
    if (!dir) print_message("skipped: TUNE_SMOLLM2 names no model directory\n");
    if (!dir || !shared_path("golden/smollm2-instruct/expected.json", path, sizeof path)) skip();
    json_t *json;
    Model *model;
    check_ok(json_read_file(path, &json));
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = compute}, &model));
    const json_t *chats = json_object_get(json, "chats");
    static int32_t ids[8][MAX_IDS];
    Prompt asked[8];
    size_t n_chats = json_array_size(chats);
    assert_true(n_chats <= 8);
    for (size_t i = 0; i < n_chats; i++) asked[i] = (Prompt){ids[i], json_ids(json_object_get(json_array_get(chats, i), "prompt_ids"), ids[i]), i};
    Results *results = generate_run(model, NULL, asked, n_chats, (GenerateConfig){.sample = greedy, .max_new_tokens = 48, .n = 1});
    double largest = 0;
    for (size_t i = 0; i < n_chats; i++) {
        const json_t *chat = json_array_get(chats, i);
        const Done *done = &results->done[i];
        int32_t want_ids[MAX_IDS];
        double want[MAX_IDS];
        json_ids(json_object_get(chat, "greedy_ids"), want_ids);
        size_t certain = (size_t)json_integer_value(json_object_get(chat, "certain"));
        if (compute != DT_F32) certain = MIN(certain, 4); /* bf16 differs by more than the 0.02 that "certain" means */
        assert_true(done->n >= certain);
        check_ids(json_string_value(json_object_get(chat, "user")), done->ids, certain, want_ids, certain);
        for (size_t t = 0; t < certain; t++) want[t] = json_number_value(json_array_get(json_object_get(chat, "greedy_logprobs"), t));
        check_close_f64(json_string_value(json_object_get(chat, "user")), done->logprobs, want, certain, tolerance, 0);
        largest = fmax(largest, score_difference(model, &asked[i], done));
    }
    print_message("generate and score differ by %g at most in %s\n", largest, dtype_name(compute));
    assert_true(largest <= score_tolerance);
    free_results(results);
    model_free(model);
    json_decref(json);
}

TEST(a_real_model_answers_in_f32) { golden_smollm2(DT_F32, 1e-3, 1e-5); }

TEST(a_real_model_answers_in_bf16) { golden_smollm2(DT_BF16, 0.1, 0.1); }

/* Each turn continues from the last one, also if that was stopped, or if messages were removed. */
TEST(a_session_computes_only_what_is_new) {
    Session *session;
    GenerateConfig config = {.sample = plain, .max_new_tokens = 20, .n = 1, .seed = 4, .ignore_eos = true};
    int32_t ids[400];
    size_t n = 33;
    check_ok(session_new(tiny, 200, &session));
    memcpy(ids, prompt_ids[6], sizeof prompt_ids[6]);
    for (int turn = 0; turn < 4; turn++) {
        Prompt prompt = {ids, n, (uint64_t)turn};
        config.session = NULL;
        Results *alone = generate_run(tiny, NULL, &prompt, 1, config);
        config.session = session;
        Results *turned = generate_run(tiny, NULL, &prompt, 1, config);
        check_same("a turn of a session", &turned->done[0], &alone->done[0], batch_tolerance());
        if (turn == 2)
            n = 20; /* the beginning is said anew */
        else {
            memcpy(ids + n, alone->done[0].ids, alone->done[0].n * sizeof *ids);
            n += alone->done[0].n;
        }
        for (int i = 0; i < 5; i++) ids[n++] = 7 + i + turn;
        free_results(alone);
        free_results(turned);
    }
    Prompt prompt = {ids, 30, 9};
    Results stopped = {.samples = 1, .stop_at = 1};
    check_status(generate(tiny, NULL, &prompt, 1, &config, NULL, generate_keep, &stopped), ST_RESOURCE); /* the caller ends it */
    Results *after = generate_run(tiny, NULL, &prompt, 1, config);
    config.session = NULL;
    Results *alone = generate_run(tiny, NULL, &prompt, 1, config);
    check_same("after a stop", &after->done[0], &alone->done[0], batch_tolerance());
    free_results(after);
    free_results(alone);
    config.session = session;
    prompt.n = 190;
    check_status(generate(tiny, NULL, &prompt, 1, &config, NULL, generate_keep, &stopped), ST_INPUT);
    check_text("more than the 200 of the session");
    session_free(session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_pages_are_copied_on_write),
        cmocka_unit_test(generate_and_score_agree),
        cmocka_unit_test(a_session_computes_only_what_is_new),
        cmocka_unit_test(a_row_alone_is_a_row_among_others),
        cmocka_unit_test(memory_of_the_call_before_changes_nothing),
        cmocka_unit_test(batches_of_1_to_64_give_the_same_bits),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(long_prompts_come_in_by_parts),
        cmocka_unit_test(samples_that_share_a_prompt_have_room),
        cmocka_unit_test(eos_ends_and_is_kept),
        cmocka_unit_test(stop_texts_cut_exactly),
        cmocka_unit_test(ids_without_a_token_are_never_chosen),
        cmocka_unit_test(the_others_keep_their_proportions),
        cmocka_unit_test(an_eos_without_a_token_may_come),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(scores_do_not_depend_on_the_batch),
        cmocka_unit_test(branches_have_the_scores_of_whole_rows),
        cmocka_unit_test(logits_belong_to_the_scores),
        cmocka_unit_test(generate_and_score_agree_in_all_families),
        cmocka_unit_test(longrope_changes_with_the_length),
        cmocka_unit_test(golden_models),
        cmocka_unit_test(stories_are_told_exactly),
        cmocka_unit_test(a_real_model_answers_in_f32),
        cmocka_unit_test(a_real_model_answers_in_bf16),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
