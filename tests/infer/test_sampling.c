/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing tokens: every filter against transformers' results, draws against their distribution. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "lib/infer/infer.h"
#include "tests/support/check.h"

enum { MAX_VOCAB = 1024 };
static const SampleConfig plain = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};
static int32_t scratch_ids[MAX_VOCAB];
static double scratch_keys[MAX_VOCAB];
static const SampleScratch scratch = {scratch_ids, scratch_keys};

static size_t read_numbers(const json_t *array, double *out) {
    for (size_t i = 0; i < json_array_size(array); i++) out[i] = json_number_value(json_array_get(array, i));
    return json_array_size(array);
}

static double sampling_number(const json_t *row, const char *key, double otherwise) {
    const json_t *value = json_object_get(row, key);
    return value ? json_number_value(value) : otherwise;
}

TEST(filters_equal_transformers) {
    json_t *root;
    char path[256];
    if (!shared_path("golden/sampling/warpers.json", path, sizeof path)) skip();
    assert_int_equal(json_read_file(path, &root), ST_OK);
    double history_numbers[MAX_VOCAB];
    int32_t history[MAX_VOCAB];
    const json_t *cases = json_object_get(root, "cases");
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *row = json_array_get(cases, c);
        const char *name = json_string_value(json_object_get(row, "logits"));
        double logits[MAX_VOCAB], expected[MAX_VOCAB] = {0};
        size_t vocab = read_numbers(json_object_get(json_object_get(root, "logits"), name), logits);
        const json_t *given = json_object_get(root, "history");
        size_t n_history = read_numbers(json_is_object(given) ? json_object_get(given, name) : given, history_numbers);
        for (size_t i = 0; i < n_history; i++) history[i] = (int32_t)history_numbers[i];
        SampleConfig config = {
            .temperature = sampling_number(row, "temperature", 1),
            .top_k = (int64_t)sampling_number(row, "top_k", 0),
            .top_p = sampling_number(row, "top_p", 1),
            .min_p = sampling_number(row, "min_p", 0),
            .typical_p = sampling_number(row, "typical_p", 1),
            .epsilon_cutoff = sampling_number(row, "epsilon_cutoff", 0),
            .eta_cutoff = sampling_number(row, "eta_cutoff", 0),
            .repetition_penalty = sampling_number(row, "repetition_penalty", 1),
            .presence_penalty = sampling_number(row, "presence_penalty", 0),
            .frequency_penalty = sampling_number(row, "frequency_penalty", 0),
            .no_repeat_ngram_size = (int64_t)sampling_number(row, "no_repeat_ngram_size", 0),
        };
        sample_distribution(&config, logits, (int64_t)vocab, history, n_history, (size_t)sampling_number(row, "prompt_length", 0), &scratch);
        if (json_object_get(row, "probs")) {
            read_numbers(json_object_get(row, "probs"), expected);
        } else {
            const json_t *ids = json_object_get(row, "token_ids"), *probs = json_object_get(row, "token_probs");
            for (size_t i = 0; i < json_array_size(ids); i++)
                expected[json_integer_value(json_array_get(ids, i))] = json_number_value(json_array_get(probs, i));
        }
        for (size_t v = 0; v < vocab; v++)
            if (!(fabs(logits[v] - expected[v]) <= 1e-12) || (logits[v] > 0) != (expected[v] > 0))
                fail_msg("case %zu, token %zu: probability %.17g, transformers has %.17g, allowed difference 1e-12", c, v, logits[v], expected[v]);
    }
    json_decref(root);
}

/* The order of transformers' logits processors, with values worked out in double by a script of it. */
TEST(order_of_filters) {
    double logits[5] = {2, 1, 0, -1, -2};
    int32_t history[2] = {0, 3};
    SampleConfig config = plain;
    config.repetition_penalty = 1.3, config.temperature = 0.7, config.top_k = 4, config.top_p = 0.9, config.min_p = 0.1;
    sample_distribution(&config, logits, 5, history, 2, 0, &scratch);
    assert_true(fabs(logits[0] - 0.68335447) < 1e-8 && fabs(logits[1] - 0.31664553) < 1e-8);
    assert_true(logits[2] == 0 && logits[3] == 0 && logits[4] == 0);
}

TEST(greedy_takes_the_first_of_equals) {
    double logits[4] = {1, 3, 3, 2};
    assert_int_equal(sample_greedy(&plain, logits, 4, NULL, 0, 0, &scratch), 1);
}

/* A bias is added before the penalties: 3 - 2 is divided, not 3. */
TEST(biases_come_first) {
    const TokenBias biases[] = {{1, -2}, {3, 0.5}};
    const int32_t history[1] = {1};
    double logits[4] = {0.4, 3, 0.3, 0.25};
    SampleConfig config = plain;
    config.bias = biases, config.n_bias = COUNT_OF(biases), config.repetition_penalty = 2;
    assert_false(sample_is_plain(&config));
    assert_int_equal(sample_greedy(&config, logits, 4, history, 1, 0, &scratch), 3);
    assert_true(logits[1] == 0.5 && logits[3] == 0.75 && logits[0] == 0.4);
}

/* Every token of the vocabulary has been said, and may not be said again. */
TEST(no_token_may_be_left) {
    double logits[4] = {1, 3, 3, 2};
    const int32_t history[4] = {2, 0, 3, 1};
    SampleConfig config = plain;
    config.no_repeat_ngram_size = 1;
    assert_int_equal(sample_greedy(&config, logits, 4, history, 4, 0, &scratch), -1);
    for (config.top_k = 0; config.top_k < 3; config.top_k += 2)
        for (config.top_p = 0.5; config.top_p < 2; config.top_p += 0.5) {
            for (int v = 0; v < 4; v++) logits[v] = v;
            assert_false(sample_distribution(&config, logits, 4, history, 4, 0, &scratch));
            for (int v = 0; v < 4; v++) logits[v] = v;
            assert_true(sample_distribution(&config, logits, 4, history, 3, 0, &scratch));
            assert_int_equal(sample_pick(logits, 4, 0.5), 1);
        }
}

TEST(picks_follow_the_distribution) {
    const double p[4] = {0.1, 0, 0.6, 0.3};
    enum { DRAWS = 100000 };
    int counts[4] = {0};
    for (int i = 0; i < DRAWS; i++) counts[sample_pick(p, 4, rng_uniform(rng_key(1, RNG_SAMPLE, 0), (uint64_t)i))]++;
    assert_int_equal(counts[1], 0);
    double chi = 0;
    for (int v = 0; v < 4; v++)
        if (p[v] > 0) chi += pow(counts[v] - DRAWS * p[v], 2) / (DRAWS * p[v]);
    assert_true(chi < 13.8); /* 2 degrees of freedom: exceeded once in a thousand seeds, and this seed is fixed */
    assert_int_equal(sample_pick(p, 4, 0), 0);
    assert_int_equal(sample_pick(p, 4, 0.0999999), 0);
    assert_int_equal(sample_pick(p, 4, 0.1), 2);
    assert_int_equal(sample_pick(p, 4, 0.9999999999999999), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_equal_transformers),       cmocka_unit_test(order_of_filters),
        cmocka_unit_test(greedy_takes_the_first_of_equals), cmocka_unit_test(no_token_may_be_left),
        cmocka_unit_test(picks_follow_the_distribution),    cmocka_unit_test(biases_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
