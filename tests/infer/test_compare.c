/* SPDX-License-Identifier: Apache-2.0 */
/* How far rounded activations are from exact products: against logits of tune score in both modes. */
#include "tests/support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/infer/compare.h"
#include "lib/infer/infer.h"
#include "lib/tensor/activations.h"

enum { TOKENS = 70 }; /* more than one chunk */

typedef struct Kept {
    float *values;
    int64_t n, vocab;
} Kept;

static Status keep(void *context, size_t row, const float *logits, int64_t n, int64_t vocab) {
    Kept *kept = context;
    (void)row;
    *kept = (Kept){malloc((size_t)(n * vocab) * sizeof *logits), n, vocab};
    memcpy(kept->values, logits, (size_t)(n * vocab) * sizeof *logits);
    return ST_OK;
}

static Kept logits_of(const Model *model, const int32_t *ids) {
    Kept logits = {0};
    double logprobs[TOKENS];
    check_ok(score_rows(model, &(ScoreRow){ids, TOKENS, logprobs}, 1, keep, &logits));
    assert_int_equal(logits.n, TOKENS);
    return logits;
}

static double log_of_sum(const float *row, int64_t vocab) {
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)row[i]);
    return log(sum);
}

/* The mean of KL(p || q) over positions, from its definition. */
static double mean_divergence(const Kept *p, const Kept *q) {
    double kl = 0;
    for (int64_t t = 0; t < p->n; t++) {
        const float *a = p->values + t * p->vocab, *b = q->values + t * p->vocab;
        const double of_a = log_of_sum(a, p->vocab), of_b = log_of_sum(b, p->vocab);
        for (int64_t i = 0; i < p->vocab; i++) kl += exp((double)a[i] - of_a) * ((double)a[i] - of_a - (double)b[i] + of_b);
    }
    return kl / (double)p->n;
}

TEST(rounded_activations_are_as_far_as_their_logits) {
    static const char *const types[] = {"q8_0", "q4_k_m"};
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = 3 + 37 * i % 500;
    for (size_t f = 0; f < sizeof types / sizeof *types; f++) {
        char name[200], path[512];
        Model *model;
        Comparison comparison;
        snprintf(name, sizeof name, "golden/deploy/gguf/llama-wide/llama-wide.%s.gguf", types[f]);
        if (!shared_path(name, path, sizeof path)) skip();
        check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
        Kept exact = logits_of(model, ids);
        cpu_round_activations(true);
        Kept rounded = logits_of(model, ids);
        check_ok(activations_compare(model, &(IdRow){ids, TOKENS}, 1, &comparison));
        Kept after = logits_of(model, ids); /* exact again */
        assert_int_equal(comparison.positions, TOKENS);
        assert_true(comparison.kl > 1e-7 && comparison.kl < 0.1);
        check_close(comparison.kl, mean_divergence(&exact, &rounded), 1e-12); /* sums of doubles in another order */
        assert_memory_equal(after.values, exact.values, (size_t)(exact.n * exact.vocab) * sizeof(float));
        free(exact.values);
        free(rounded.values);
        free(after.values);
        model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounded_activations_are_as_far_as_their_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
