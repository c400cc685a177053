/* SPDX-License-Identifier: Apache-2.0 */
/* Policy-gradient and value losses: the reference library's values and gradients, central differences, and what must hold for any numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "rl/core/advantages.h"
#include "rl/core/policy_losses.h"
#include "rl/text/sampler_correction.h"
#include "rl/core/value_losses.h"
#include "tests/support/check.h"

enum { MAX = 256 };
static const double near = 1e-10;
static const char *const names[] = {
#define POLICY_LOSS(name, ...) #name,
#include "rl/core/policy_losses.def"
#undef POLICY_LOSS
};

/* A batch that owns its arrays. */
typedef struct Sample {
    PolicyBatch batch;
    int64_t begin[MAX], n;
    double logprobs[MAX], old_logprobs[MAX], ref_logprobs[MAX], sampler_logprobs[MAX], advantages[MAX], weights[MAX], entropies[MAX];
    bool trained[MAX];
} Sample;

static void sample_init(Sample *sample) {
    memset(sample, 0, sizeof *sample);
    sample->batch =
        (PolicyBatch){.begin = sample->begin, .logprobs = sample->logprobs, .old_logprobs = sample->old_logprobs, .advantages = sample->advantages};
    for (int i = 0; i < MAX; i++) sample->weights[i] = 1, sample->trained[i] = true;
}

static void sample_random(Sample *sample, uint64_t seed) {
    sample_init(sample);
    PolicyBatch *batch = &sample->batch;
    batch->n_sequences = 6;
    batch->ref_logprobs = sample->ref_logprobs, batch->weights = sample->weights, batch->entropies = sample->entropies,
    batch->trained = sample->trained;
    for (int64_t i = 0; i < 6; i++) sample->begin[i + 1] = sample->begin[i] + 1 + (int64_t)rng_below(rng_key(seed, RNG_TEST, 9), (uint64_t)i, 6);
    sample->n = sample->begin[6];
    for (int64_t t = 0; t < sample->n; t++) {
        double u[7];
        for (uint64_t k = 0; k < 7; k++) u[k] = rng_uniform(rng_key(seed, RNG_TEST, k), (uint64_t)t);
        sample->logprobs[t] = -3 * u[0], sample->old_logprobs[t] = -3 * u[0] + 0.8 * (u[1] - 0.5), sample->ref_logprobs[t] = -3 * u[2];
        sample->advantages[t] = 4 * u[3] - 2, sample->weights[t] = 2 * u[4], sample->entropies[t] = u[5], sample->trained[t] = u[6] < 0.8;
    }
}

static void check_golden(const json_t *row, const char *key, const double *got) {
    double want[MAX];
    size_t n = golden_numbers(golden_at(row, key), want, MAX);
    check_close_f64(key, got, want, n, near, near);
}

/* ---- golden values ---- */

static void read_tokens(const json_t *root, Sample *sample) {
    double advantages[MAX];
    sample_init(sample);
    sample->batch.n_sequences = (int64_t)golden_offsets(golden_at(root, "logps"), sample->begin, MAX);
    sample->n = (int64_t)golden_numbers(golden_at(root, "logps"), sample->logprobs, MAX);
    golden_numbers(golden_at(root, "old_logps"), sample->old_logprobs, MAX);
    golden_numbers(golden_at(root, "ref_logps"), sample->ref_logprobs, MAX);
    golden_numbers(golden_at(root, "sampling_logps"), sample->sampler_logprobs, MAX);
    golden_numbers(golden_at(root, "entropies"), sample->entropies, MAX);
    golden_numbers(golden_at(root, "advantages"), advantages, MAX);
    advantages_spread(advantages, sample->batch.n_sequences, sample->begin, sample->advantages);
}

/* Masks off-policy sequences: a negative advantage, and a sampling log-probability that is larger by more than the threshold. */
static void mask_off_policy(Sample *sample, double threshold) {
    for (int64_t i = 0; i < sample->batch.n_sequences; i++) {
        double mean = 0, n = (double)(sample->begin[i + 1] - sample->begin[i]);
        for (int64_t t = sample->begin[i]; t < sample->begin[i + 1]; t++) mean += (sample->sampler_logprobs[t] - sample->logprobs[t]) / n;
        for (int64_t t = sample->begin[i]; t < sample->begin[i + 1]; t++) sample->weights[t] = sample->advantages[t] >= 0 || mean <= threshold;
    }
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Only the share of tokens with the highest entropy; the quantile lies between two of them. */
static void mask_low_entropy(Sample *sample, double share) {
    double sorted[MAX], place = (1 - share) * (double)(sample->n - 1);
    memcpy(sorted, sample->entropies, sizeof sorted);
    qsort(sorted, (size_t)sample->n, sizeof *sorted, compare_doubles);
    int64_t below = (int64_t)place;
    double quantile = sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
    for (int64_t t = 0; t < sample->n; t++) sample->weights[t] = sample->entropies[t] >= quantile;
}

static const char *loss_name(const json_t *row) {
    if (golden_is(row, "importance_sampling_level", "sequence") && golden_is(row, "loss_type", "grpo")) return "gspo";
    if (golden_is(row, "loss_type", "bnpo")) return "dapo"; /* without the window's token count */
    return json_string_value(golden_at(row, "loss_type"));
}

TEST(text_losses_equal_golden) {
    json_t *root = golden_open("losses/grpo.json");
    if (!root) skip();
    Sample sample;
    double grad[MAX];
    PolicyMetrics metrics;
    const json_t *rows = golden_at(root, "cases");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c), *expected = json_object_get(row, "metrics");
        const PolicyLoss *loss = policy_loss_find(loss_name(row));
        assert_non_null(loss);
        read_tokens(root, &sample);
        PolicyBatch *batch = &sample.batch;
        PolicyLossConfig config = {
            .clip = golden_number(row, "epsilon", 0),
            .clip_high = golden_number(row, "epsilon_high", 0),
            .ratio_cap = golden_number(row, "delta", 0),
            .beta = golden_number(row, "beta", 0),
            .kl = KL_K3,
            .kl_corrected = golden_number(row, "use_bias_correction_kl", 0) != 0,
            .ent_coef = golden_number(row, "entropy_coef", 0),
            .max_length = (int64_t)golden_number(row, "max_completion_length", 0),
            .total_tokens = (int64_t)golden_number(row, "num_items_in_batch", 0),
            .total_sequences = batch->n_sequences * (int64_t)golden_number(row, "gradient_accumulation_steps", 1),
        };
        batch->weights = sample.weights, batch->entropies = sample.entropies;
        if (config.beta > 0) batch->ref_logprobs = sample.ref_logprobs;
        if (json_object_get(row, "old_is_current")) batch->old_logprobs = NULL;
        if (json_object_get(row, "off_policy_mask_threshold")) mask_off_policy(&sample, golden_number(row, "off_policy_mask_threshold", 0));
        if (json_object_get(row, "top_entropy_quantile")) mask_low_entropy(&sample, golden_number(row, "top_entropy_quantile", 0));
        if (json_object_get(row, "use_importance_sampling_ratio")) golden_numbers(golden_at(root, "importance_sampling_ratio"), sample.weights, MAX);
        policy_loss(loss, &config, batch, grad, &metrics);
        check_close(metrics.loss, golden_value(row, "loss"), near);
        check_golden(row, "grad", grad);
        check_close(metrics.kl, golden_number(expected, "kl", 0), near);
        if (json_object_get(expected, "clip_ratio/low_mean")) {
            check_close(metrics.clip_low, golden_value(expected, "clip_ratio/low_mean"), near);
            check_close(metrics.clip_high, golden_value(expected, "clip_ratio/high_mean"), near);
        }
    }
    read_tokens(root, &sample);
    const json_t *rloo = golden_at(root, "rloo_loss");
    double advantages[MAX];
    golden_numbers(golden_at(rloo, "advantages"), advantages, MAX);
    advantages_spread(advantages, sample.batch.n_sequences, sample.begin, sample.advantages);
    PolicyLossConfig config = {.clip = golden_value(rloo, "epsilon"), .clip_high = golden_value(rloo, "epsilon_high")};
    policy_loss(policy_loss_find("rloo"), &config, &sample.batch, grad, &metrics);
    check_close(metrics.loss, golden_value(rloo, "loss"), near);
    check_golden(rloo, "grad", grad);
    json_decref(root);
}

TEST(ppo_equals_golden) {
    json_t *root = golden_open("losses/ppo.json");
    if (!root) skip();
    Sample sample;
    double values[MAX], old_values[MAX], returns[MAX], grad[MAX], grad_values[MAX];
    sample_init(&sample);
    sample.batch.n_sequences = (int64_t)golden_offsets(golden_at(root, "logps"), sample.begin, MAX);
    int64_t n = (int64_t)golden_numbers(golden_at(root, "logps"), sample.logprobs, MAX);
    golden_numbers(golden_at(root, "old_logps"), sample.old_logprobs, MAX);
    golden_numbers(golden_at(root, "advantages"), sample.advantages, MAX);
    golden_numbers(golden_at(root, "values"), values, MAX);
    golden_numbers(golden_at(root, "old_values"), old_values, MAX);
    golden_numbers(golden_at(root, "returns"), returns, MAX);
    const json_t *rows = golden_at(root, "cases");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c);
        double vf_coef = golden_number(row, "vf_coef", 0);
        PolicyMetrics policy;
        ValueMetrics value;
        PolicyLossConfig config = {.clip = golden_value(row, "clip"), .dual_clip = golden_number(row, "dual_clip", 0)};
        policy_loss(policy_loss_find("ppo"), &config, &sample.batch, grad, &policy);
        value_loss(&(ValueBatch){.n = n, .values = values, .old_values = old_values, .targets = returns}, golden_number(row, "value_clip", 0),
                   grad_values, &value);
        for (int64_t i = 0; i < n; i++) grad_values[i] *= vf_coef;
        check_close(policy.policy_loss, golden_value(row, "policy_loss"), near);
        check_close(value.loss, golden_value(row, "value_loss"), near);
        check_close(policy.loss + vf_coef * value.loss, golden_value(row, "loss"), near);
        check_golden(row, "grad_logps", grad);
        check_golden(row, "grad_values", grad_values);
        check_close(policy.clip_low + policy.clip_high, golden_value(row, "clip_fraction_active"), near);
        check_close(policy.outside, golden_value(row, "clip_fraction_ratio"), near);
        check_close(policy.approx_kl, golden_value(row, "approx_kl_k3"), near);
    }
    json_decref(root);
}

/* Two sequences under every loss; the values are those of a script of TRL's formulas (grpo_trainer.py) in double. */
TEST(losses_by_hand) {
    Sample sample;
    sample_init(&sample);
    sample.batch.n_sequences = 2;
    memcpy(sample.begin, (int64_t[]){0, 2, 6}, 3 * sizeof(int64_t));
    memcpy(sample.old_logprobs, (double[]){-1, -0.5, -2, -0.1, -0.7, -1.5}, 6 * sizeof(double));
    memcpy(sample.logprobs, (double[]){-0.6, -0.55, -2.3, -0.1, -0.4, -1.2}, 6 * sizeof(double));
    memcpy(sample.ref_logprobs, (double[]){-0.9, -0.6, -2.1, -0.2, -0.5, -1.4}, 6 * sizeof(double));
    memcpy(sample.advantages, (double[]){1, 1, -0.8, -0.8, -0.8, -0.8}, 6 * sizeof(double));
    const PolicyLossConfig base = {.clip = 0.2, .clip_high = 0.28, .kl = KL_K3, .max_length = 6};
    PolicyLossConfig capped = base, with_kl = base, cispo = base, product = base;
    capped.ratio_cap = 1.1, with_kl.beta = 0.04, cispo.clip_high = 0, product.clip_high = 0;
    const struct {
        const char *name;
        const PolicyLossConfig *config;
        double loss;
    } cases[] = {
        {"grpo", &base, -0.1078355946},   {"dapo", &base, 0.2280907779},    {"dr_grpo", &base, 0.1140453884},
        {"gspo", &base, -0.1644694480},   {"grpo", &capped, -0.0768073561}, {"grpo", &with_kl, -0.1071660764},
        {"cispo", &cispo, -0.2921089663}, {"sapo", &base, -0.3030052325},   {"rloo", &product, -0.0600564770},
    };
    double grad[MAX];
    PolicyMetrics metrics;
    sample.batch.ref_logprobs = sample.ref_logprobs;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        policy_loss(policy_loss_find(cases[c].name), cases[c].config, &sample.batch, grad, &metrics);
        check_close(metrics.loss, cases[c].loss, 1e-9); /* ten digits are given, the last one cut */
    }
    policy_loss(policy_loss_find("gspo"), &base, &sample.batch, grad, &metrics);
    check_close(metrics.ratio_max, 1.1912462164, 1e-9);
    check_close(metrics.ratio_min, 1.0778841509, 1e-9);
    PolicyLossConfig dual = {.clip = 0.2, .dual_clip = 3};
    double now = log(5), before = 0, advantage = -0.8;
    policy_loss(policy_loss_find("ppo"), &dual, &(PolicyBatch){.n_sequences = 1, .logprobs = &now, .old_logprobs = &before, .advantages = &advantage},
                grad, &metrics);
    check_close(metrics.loss, 2.4, near);
    assert_true(grad[0] == 0);
}

/* ---- properties ---- */

/* Every loss with everything switched on, against central differences. But cispo and vespo: their weights have no gradient by definition, see the
 * golden ones. */
TEST(gradients_equal_differences) {
    const double h = 1e-6;
    for (size_t l = 0; l < COUNT_OF(names); l++) {
        if (strcmp(names[l], "cispo") == 0 || strcmp(names[l], "vespo") == 0) continue;
        for (uint64_t seed = 0; seed < 8; seed++) {
            Sample sample;
            double grad[MAX], scratch[MAX];
            PolicyMetrics metrics, low, high;
            sample_random(&sample, seed);
            PolicyLossConfig config = {.clip = 0.1,
                                       .clip_high = 0.15,
                                       .beta = 0.3,
                                       .kl = (KlKind)(seed % 3),
                                       .kl_corrected = seed & 1,
                                       .ent_coef = 0.1,
                                       .max_length = 8,
                                       .dual_clip = seed & 2 ? 1.2 : 0,
                                       .ratio_cap = seed & 4 ? 1.3 : 0,
                                       .aggregation = (Aggregation)(seed % 5)};
            policy_loss(policy_loss_find(names[l]), &config, &sample.batch, grad, &metrics);
            for (int64_t t = 0; t < sample.n; t++) {
                double kept = sample.logprobs[t];
                sample.logprobs[t] = kept + h;
                policy_loss(policy_loss_find(names[l]), &config, &sample.batch, scratch, &high);
                sample.logprobs[t] = kept - h;
                policy_loss(policy_loss_find(names[l]), &config, &sample.batch, scratch, &low);
                sample.logprobs[t] = kept;
                check_close(grad[t], (high.loss - low.loss) / (2 * h), 1e-8);
                if (!sample.trained[t]) assert_true(grad[t] == 0);
            }
            sample.entropies[0] += h; /* the first token's, if it is trained */
            policy_loss(policy_loss_find(names[l]), &config, &sample.batch, scratch, &high);
            check_close((high.loss - metrics.loss) / h, sample.trained[0] ? metrics.grad_entropy : 0, 1e-8);
        }
    }
}

/* Before anything was learned every ratio is exactly 1, nothing is clipped, and the gradient is that of REINFORCE, for every loss that is averaged
 * the same way. */
TEST(first_pass_is_reinforce) {
    Sample sample;
    double grad[MAX], same[MAX], reinforce[MAX];
    PolicyMetrics metrics;
    sample_random(&sample, 3);
    sample.batch.ref_logprobs = NULL;
    for (int64_t i = 0; i < 6; i++) /* one advantage a sequence, which losses of whole sequences are made for */
        for (int64_t t = sample.begin[i]; t < sample.begin[i + 1]; t++)
            sample.advantages[t] = sample.advantages[sample.begin[i]], sample.weights[t] = 1;
    for (size_t l = 0; l < COUNT_OF(names); l++) {
        const PolicyLoss *loss = policy_loss_find(names[l]);
        bool product = strcmp(names[l], "rloo") == 0; /* every token moves the whole product: no mean over tokens */
        PolicyLossConfig config = {.clip = 0.2, .aggregation = SEQUENCE_MEAN}, plain = {.aggregation = product ? SEQUENCE_SUM : SEQUENCE_MEAN};
        sample.batch.old_logprobs = NULL;
        policy_loss(policy_loss_find("reinforce"), &plain, &sample.batch, reinforce, &metrics);
        policy_loss(loss, &config, &sample.batch, grad, &metrics);
        assert_true(metrics.ratio_min == 1 && metrics.ratio_max == 1);
        assert_true(metrics.clip_low == 0 && metrics.clip_high == 0 && metrics.outside == 0 && metrics.approx_kl == 0);
        check_close_f64(names[l], grad, reinforce, (size_t)sample.n, 1e-15, 1e-14);
        sample.batch.old_logprobs = sample.logprobs;
        policy_loss(loss, &config, &sample.batch, same, &metrics);
        for (int64_t t = 0; t < sample.n; t++) assert_true(same[t] == grad[t]);
    }
}

/* A step cut into calls gives what one call gives, whatever is averaged; single actions are sequences of one. */
TEST(pieces_add_up) {
    for (size_t l = 0; l < COUNT_OF(names); l++)
        for (Aggregation aggregation = AGGREGATE_OWN; aggregation <= CONSTANT; aggregation++) {
            Sample sample;
            double whole[MAX], parts[MAX], sum = 0;
            PolicyMetrics metrics, part;
            sample_random(&sample, 11);
            PolicyLossConfig config = {.clip = 0.1, .beta = 0.1, .kl = KL_K3, .ent_coef = 0.01, .aggregation = aggregation, .max_length = 9};
            policy_loss(policy_loss_find(names[l]), &config, &sample.batch, whole, &metrics);
            config.total_tokens = metrics.tokens, config.total_sequences = 6;
            for (int64_t i = 0; i < 6; i += 2) {
                PolicyBatch piece = sample.batch;
                piece.n_sequences = 2, piece.begin += i;
                policy_loss(policy_loss_find(names[l]), &config, &piece, parts, &part);
                sum += part.loss;
            }
            check_close(sum, metrics.loss, 1e-13);
            check_close_f64(names[l], parts, whole, (size_t)sample.n, 1e-15, 1e-14);
        }
    Sample sample;
    double tokens[MAX], actions[MAX];
    PolicyMetrics a, b;
    sample_random(&sample, 12);
    policy_loss(policy_loss_find("ppo"), &(PolicyLossConfig){.clip = 0.2}, &sample.batch, tokens, &a);
    sample.batch.n_sequences = sample.n, sample.batch.begin = NULL;
    policy_loss(policy_loss_find("ppo"), &(PolicyLossConfig){.clip = 0.2}, &sample.batch, actions, &b);
    assert_true(a.loss == b.loss && a.ratio_max == b.ratio_max);
    check_close_f64("single actions", actions, tokens, (size_t)sample.n, 0, 0);
}

/* Equal rewards: no gradient at all. Truncated completions that are masked count as sequences and give nothing. */
TEST(nothing_to_learn_is_nothing) {
    const double rewards[6] = {0.3, 0.3, 0.3, 0.3, 0.3, 0.3};
    double advantages[6], grad[MAX];
    for (size_t l = 0; l < COUNT_OF(names); l++) {
        Sample sample;
        PolicyMetrics metrics;
        sample_random(&sample, 21);
        advantages_group(rewards, 6, 3, SCALE_GROUP, advantages);
        advantages_spread(advantages, 6, sample.begin, sample.advantages);
        policy_loss(policy_loss_find(names[l]), &(PolicyLossConfig){.clip = 0.2, .max_length = 8}, &sample.batch, grad, &metrics);
        assert_true(metrics.loss == 0);
        for (int64_t t = 0; t < sample.n; t++) assert_true(grad[t] == 0);
        memset(sample.trained, false, sizeof sample.trained);
        policy_loss(policy_loss_find(names[l]), &(PolicyLossConfig){.clip = 0.2, .beta = 1, .max_length = 8}, &sample.batch, grad, &metrics);
        assert_true(metrics.loss == 0 && metrics.tokens == 0 && metrics.ratio_max == 1 && metrics.kl == 0);
    }
    Sample sample;
    PolicyMetrics all, masked;
    sample_random(&sample, 22);
    sample.batch.ref_logprobs = NULL, sample.batch.trained = NULL;
    policy_loss(policy_loss_find("grpo"), &(PolicyLossConfig){.clip = 0.2}, &sample.batch, grad, &all);
    double first = 0; /* the first sequence's part of the loss, by itself */
    PolicyBatch alone = sample.batch;
    alone.n_sequences = 1;
    policy_loss(policy_loss_find("grpo"), &(PolicyLossConfig){.clip = 0.2}, &alone, grad, &masked);
    first = masked.loss;
    for (int64_t t = 0; t < sample.n; t++) sample.trained[t] = t >= sample.begin[1];
    sample.batch.trained = sample.trained;
    policy_loss(policy_loss_find("grpo"), &(PolicyLossConfig){.clip = 0.2}, &sample.batch, grad, &masked);
    check_close(masked.loss, all.loss - first / 6, 1e-13);
}

/* Finite and minus infinite log-probabilities give finite losses and gradients; NaN is not hidden. */
TEST(extremes_stay_finite) {
    const double old_logprobs[] = {-1000, -1, -HUGE_VAL, -1}, ref_logprobs[] = {-1, -1000, -1, -HUGE_VAL}, advantages[] = {1, -1, 1, -1};
    double logprobs[] = {-1, -1000, -1, -700}, grad[4];
    int64_t begin[] = {0, 2, 4};
    PolicyMetrics metrics;
    PolicyBatch batch = {
        .n_sequences = 2, .begin = begin, .logprobs = logprobs, .old_logprobs = old_logprobs, .ref_logprobs = ref_logprobs, .advantages = advantages};
    for (size_t l = 0; l < COUNT_OF(names); l++) {
        policy_loss(policy_loss_find(names[l]), &(PolicyLossConfig){.clip = 0.2, .beta = 0.1, .kl = KL_K3, .max_length = 4}, &batch, grad, &metrics);
        assert_true(isfinite(metrics.loss) && isfinite(metrics.approx_kl) && isfinite(metrics.ratio_max));
        for (int t = 0; t < 4; t++) assert_true(isfinite(grad[t]));
    }
    logprobs[1] = (double)NAN;
    for (size_t l = 0; l < COUNT_OF(names); l++) {
        policy_loss(policy_loss_find(names[l]), &(PolicyLossConfig){.clip = 0.2, .beta = 0.1, .kl = KL_K3, .max_length = 4}, &batch, grad, &metrics);
        assert_true(isnan(metrics.loss));
    }
}

TEST(names_are_found) {
    for (size_t l = 0; l < COUNT_OF(names); l++) assert_string_equal(policy_loss_find(names[l])->name, names[l]);
    assert_null(policy_loss_find("grop"));
}

TEST(corrections_by_hand) {
    const double old_logprobs[] = {-1, -1, -1, -1}, sampler_logprobs[] = {-1.5, -0.5, -2, -1.5};
    const int64_t begin[] = {0, 2, 4};
    double weights[4];
    sampler_correction(CORRECT_TOKEN_TRUNCATE, 0.7, 2, 2, begin, old_logprobs, sampler_logprobs, NULL, weights);
    check_close_f64("token truncate", weights, ((double[]){exp(0.5), 0.7, 2, exp(0.5)}), 4, near, 0);
    sampler_correction(CORRECT_TOKEN_MASK, 0.7, 2, 2, begin, old_logprobs, sampler_logprobs, NULL, weights);
    check_close_f64("token mask", weights, ((double[]){exp(0.5), 0, 0, exp(0.5)}), 4, near, 0);
    sampler_correction(CORRECT_SEQUENCE_TRUNCATE, 0, 3, 2, begin, old_logprobs, sampler_logprobs, NULL, weights);
    check_close_f64("sequence truncate", weights, ((double[]){1, 1, 3, 3}), 4, near, 0);
    sampler_correction(CORRECT_SEQUENCE_MASK, 0, 3, 2, begin, old_logprobs, sampler_logprobs, NULL, weights);
    check_close_f64("sequence mask", weights, ((double[]){1, 1, 0, 0}), 4, near, 0);
    sampler_correction(CORRECT_SEQUENCE_MASK, 0, 3, 2, begin, old_logprobs, sampler_logprobs, ((bool[]){true, false, true, false}), weights);
    check_close_f64("not trained", weights, ((double[]){exp(0.5), 1, exp(1), 1}), 4, near, 0);
}

TEST(values_by_differences) {
    enum { N = 40 };
    double values[N], old_values[N], targets[N], grad[N], scratch[N];
    bool trained[N];
    for (int i = 0; i < N; i++) {
        values[i] = rng_normal(rng_key(1, RNG_TEST, 0), (uint64_t)i), old_values[i] = values[i] + rng_normal(rng_key(1, RNG_TEST, 1), (uint64_t)i);
        targets[i] = rng_normal(rng_key(1, RNG_TEST, 2), (uint64_t)i), trained[i] = i % 7 != 3;
    }
    ValueBatch batch = {.n = N, .values = values, .old_values = old_values, .targets = targets, .trained = trained};
    ValueMetrics metrics, low, high;
    value_loss(&batch, 0.2, grad, &metrics);
    assert_true(metrics.clip_fraction > 0.1 && metrics.clip_fraction < 0.9);
    for (int i = 0; i < N; i++) {
        double kept = values[i];
        values[i] = kept + 1e-6, value_loss(&batch, 0.2, scratch, &high);
        values[i] = kept - 1e-6, value_loss(&batch, 0.2, scratch, &low);
        values[i] = kept;
        check_close(grad[i], (high.loss - low.loss) / 2e-6, 1e-8);
    }
    check_close(explained_variance(targets, targets, NULL, N), 1, near);
    check_close(explained_variance((double[4]){5, 5, 5, 5}, (double[4]){1, 2, 3, 4}, NULL, 4), 0, near);
    check_close(explained_variance((double[4]){1, 2, 3, 3}, (double[4]){1, 2, 3, 4}, NULL, 4), 1 - 0.1875 / 1.25, near);
    assert_true(isnan(explained_variance((double[2]){1, 2}, (double[2]){7, 7}, NULL, 2)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_losses_equal_golden),    cmocka_unit_test(ppo_equals_golden),       cmocka_unit_test(losses_by_hand),
        cmocka_unit_test(gradients_equal_differences), cmocka_unit_test(first_pass_is_reinforce), cmocka_unit_test(pieces_add_up),
        cmocka_unit_test(nothing_to_learn_is_nothing), cmocka_unit_test(extremes_stay_finite),    cmocka_unit_test(names_are_found),
        cmocka_unit_test(corrections_by_hand),         cmocka_unit_test(values_by_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
