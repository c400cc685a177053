/* SPDX-License-Identifier: Apache-2.0 */
/* Losses over preferences: the reference library's values and gradients, central differences, and what must hold for any numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "rl/pairs/preference_losses.h"
#include "tests/support/check.h"

enum { MAX = 256 };
static const double near = 1e-10;
static const char *const names[] = {
#define PREFERENCE_LOSS(name, ...) #name,
#include "rl/pairs/preference_losses.def"
#undef PREFERENCE_LOSS
};

/* One side of the pairs. */
typedef struct Side {
    int64_t n, begin[MAX], tokens[MAX];
    double sums[MAX], discount[MAX], grad[MAX], token_grad[MAX];
} Side;

/* Sums of the lists, where tokens after the first `whole[i]` have the weight `alpha` (LD-DPO; 1: all are equal). */
static void read_side(const json_t *root, const char *key, const int64_t *whole, double alpha, Side *side) {
    double logprobs[MAX];
    side->n = (int64_t)golden_offsets(golden_at(root, key), side->begin, MAX);
    golden_numbers(golden_at(root, key), logprobs, MAX);
    for (int64_t i = 0; i < side->n; i++) {
        side->sums[i] = 0;
        side->tokens[i] = side->begin[i + 1] - side->begin[i];
        for (int64_t t = side->begin[i]; t < side->begin[i + 1]; t++) {
            side->discount[t] = !whole || t - side->begin[i] < whole[i] ? 1 : alpha;
            side->sums[i] += side->discount[t] * logprobs[t];
        }
    }
}

/* grad[i] to each token, as often as it is counted. */
static void check_token_grads(const json_t *row, const char *key, Side *side) {
    double want[MAX];
    size_t n = golden_numbers(golden_at(row, key), want, MAX);
    for (int64_t i = 0; i < side->n; i++)
        for (int64_t t = side->begin[i]; t < side->begin[i + 1]; t++) side->token_grad[t] = side->grad[i] * side->discount[t];
    check_close_f64(key, side->token_grad, want, n, near, near);
}

static void preference_losses_run(const char *name, const PreferenceConfig *config, const PreferenceBatch *batch, double *grad_chosen,
                                  double *grad_rejected, PreferenceMetrics *metrics) {
    Arena *scratch = arena_new(0);
    const PreferenceLoss *loss = preference_loss_find(name);
    if (!loss) fail_msg("no loss '%s'", name);
    check_ok(preference_loss(loss, config, batch, scratch, grad_chosen, grad_rejected, metrics));
    assert_int_equal(arena_used(scratch), 0);
    arena_free(scratch);
}

static Divergence divergence_of(const json_t *row) {
    return golden_is(row, "f_divergence", "forward_kl") ? FORWARD_KL : golden_is(row, "f_divergence", "js_divergence") ? JENSEN_SHANNON : REVERSE_KL;
}

TEST(dpo_family_equals_golden) {
    json_t *root = golden_open("losses/dpo.json");
    if (!root) skip();
    Side chosen, rejected, ref_chosen, ref_rejected;
    const json_t *rows = golden_at(root, "cases");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c), *expected = json_object_get(row, "metrics"), *types = golden_at(row, "loss_type"),
                     *weights = json_object_get(row, "loss_weights");
        const char *name = json_is_array(types) ? "sigmoid" : json_string_value(types); /* the one list is sigmoid and sft */
        bool likelihood = strcmp(name, "sft") == 0;                                     /* alone: pairs weigh nothing */
        double alpha = golden_number(row, "ld_alpha", 1), pair_weights[MAX];
        int64_t shorter[MAX];
        read_side(root, "chosen_logps", NULL, 1, &chosen);
        read_side(root, "rejected_logps", NULL, 1, &rejected);
        for (int64_t i = 0; i < chosen.n; i++) shorter[i] = MIN(chosen.tokens[i], rejected.tokens[i]);
        read_side(root, "chosen_logps", shorter, alpha, &chosen);
        read_side(root, "rejected_logps", shorter, alpha, &rejected);
        read_side(root, "ref_chosen_logps", shorter, alpha, &ref_chosen);
        read_side(root, "ref_rejected_logps", shorter, alpha, &ref_rejected);
        double wpo = golden_number(row, "wpo_log_sum_sq_probs_everywhere", (double)NAN);
        for (int64_t i = 0; i < chosen.n; i++) {
            double means = chosen.sums[i] / (double)chosen.tokens[i] + rejected.sums[i] / (double)rejected.tokens[i];
            pair_weights[i] = likelihood ? 0 : isnan(wpo) ? 1 : exp(means - 2 * wpo);
        }
        bool smoothed = strcmp(name, "sigmoid_cdpo") == 0;
        PreferenceConfig config = {.beta = golden_number(row, "beta", 0),
                                   .label_smoothing = golden_number(row, "label_smoothing", 0),
                                   .discopop_tau = golden_number(row, "tau", 0),
                                   .divergence = divergence_of(row),
                                   .nll_given = true,
                                   .nll_weight = likelihood ? 1
                                                 : weights  ? json_number_value(json_array_get(weights, 1))
                                                            : 0};
        PreferenceBatch batch = {.n = chosen.n,
                                 .chosen = chosen.sums,
                                 .rejected = rejected.sums,
                                 .ref_chosen = ref_chosen.sums,
                                 .ref_rejected = ref_rejected.sums,
                                 .chosen_tokens = chosen.tokens,
                                 .rejected_tokens = rejected.tokens,
                                 .weights = pair_weights};
        PreferenceMetrics metrics;
        preference_losses_run(smoothed || likelihood ? "sigmoid" : name, &config, &batch, chosen.grad, rejected.grad, &metrics);
        check_close(metrics.loss, golden_value(row, "loss"), near);
        check_token_grads(row, "grad_chosen", &chosen);
        check_token_grads(row, "grad_rejected", &rejected);
        if (!expected) continue;
        check_close(metrics.rewards_chosen, golden_value(expected, "rewards/chosen"), near);
        check_close(metrics.rewards_rejected, golden_value(expected, "rewards/rejected"), near);
        check_close(metrics.margin, golden_value(expected, "rewards/margins"), near);
        check_close(metrics.accuracy, golden_value(expected, "rewards/accuracies"), near);
    }
    json_decref(root);
}

TEST(losses_without_reference_equal_golden) {
    json_t *root = golden_open("losses/orpo_simpo_cpo.json");
    if (!root) skip();
    Side chosen, rejected;
    read_side(root, "chosen_logps", NULL, 1, &chosen);
    read_side(root, "rejected_logps", NULL, 1, &rejected);
    const json_t *rows = golden_at(root, "cases");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c);
        const char *name = golden_is(row, "loss_type", "cpo_sigmoid") ? "cpo" : json_string_value(golden_at(row, "loss_type"));
        PreferenceConfig config = {.beta = golden_number(row, "beta", 0),
                                   .label_smoothing = golden_number(row, "label_smoothing", 0),
                                   .simpo_gamma = golden_number(row, "simpo_gamma", 0),
                                   .alpha = golden_number(row, "alpha", 0),
                                   .nll_given = json_object_get(row, "cpo_alpha"),
                                   .nll_weight = golden_number(row, "cpo_alpha", 0)};
        PreferenceBatch batch = {
            .n = chosen.n, .chosen = chosen.sums, .rejected = rejected.sums, .chosen_tokens = chosen.tokens, .rejected_tokens = rejected.tokens};
        PreferenceMetrics metrics;
        preference_losses_run(name, &config, &batch, chosen.grad, rejected.grad, &metrics);
        check_close(metrics.loss, golden_value(row, "loss"), near);
        if (json_object_get(row, "nll")) check_close(metrics.nll, golden_value(row, "nll"), near);
        check_token_grads(row, "grad_chosen", &chosen);
        check_token_grads(row, "grad_rejected", &rejected);
    }
    json_decref(root);
}

TEST(kto_equals_golden) {
    json_t *root = golden_open("losses/kto.json");
    if (!root) skip();
    Side policy, reference;
    read_side(root, "logps", NULL, 1, &policy);
    read_side(root, "ref_logps", NULL, 1, &reference);
    const json_t *rows = golden_at(root, "cases");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c);
        double labels[MAX], kl_logprobs[MAX], ref_kl_logprobs[MAX];
        bool desirable[MAX];
        golden_numbers(golden_at(row, "labels"), labels, MAX);
        int64_t n_kl = (int64_t)golden_numbers(golden_at(row, "kl_logps"), kl_logprobs, MAX);
        golden_numbers(golden_at(row, "ref_kl_logps"), ref_kl_logprobs, MAX);
        for (int64_t i = 0; i < policy.n; i++) desirable[i] = labels[i] != 0;
        double baseline = golden_is(row, "loss_type", "kto") ? kto_baseline(kl_logprobs, ref_kl_logprobs, n_kl) : 0;
        check_close(baseline, golden_value(row, "kl"), near);
        KtoConfig config = {.beta = golden_number(row, "beta", 0),
                            .desirable_weight = golden_number(row, "desirable_weight", 0),
                            .undesirable_weight = golden_number(row, "undesirable_weight", 0)};
        KtoMetrics metrics;
        kto_loss(&config,
                 &(KtoBatch){.n = policy.n, .logprobs = policy.sums, .ref_logprobs = reference.sums, .desirable = desirable, .baseline = baseline},
                 policy.grad, &metrics);
        check_close(metrics.loss, golden_value(row, "loss"), near);
        assert_int_equal(metrics.n_chosen + metrics.n_rejected, policy.n);
        check_token_grads(row, "grad", &policy);
    }
    json_decref(root);
}

TEST(reward_model_equals_golden) {
    json_t *root = golden_open("losses/reward.json");
    if (!root) skip();
    double chosen[MAX], rejected[MAX], margins[MAX], grad_chosen[MAX], grad_rejected[MAX], want[MAX];
    int64_t n = (int64_t)golden_numbers(golden_at(root, "rewards_chosen"), chosen, MAX);
    golden_numbers(golden_at(root, "rewards_rejected"), rejected, MAX);
    const json_t *rows = golden_at(root, "cases");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c);
        bool has_margins = golden_numbers(golden_at(row, "margin"), margins, MAX) > 0;
        RewardBatch batch = {.n = n,
                             .chosen = chosen,
                             .rejected = rejected,
                             .margins = has_margins ? margins : NULL,
                             .centering = golden_number(row, "center_rewards_coefficient", 0)};
        RewardMetrics metrics;
        reward_model_loss(&batch, grad_chosen, grad_rejected, &metrics);
        check_close(metrics.loss, golden_value(row, "loss"), near);
        check_close(metrics.accuracy, golden_value(row, "accuracy"), 1e-7); /* the library has it in f32 */
        golden_numbers(golden_at(row, "grad_chosen"), want, MAX);
        check_close_f64("grad_chosen", grad_chosen, want, (size_t)n, near, near);
        golden_numbers(golden_at(row, "grad_rejected"), want, MAX);
        check_close_f64("grad_rejected", grad_rejected, want, (size_t)n, near, near);
    }
    json_decref(root);
}

/* One pair under every loss; the values are those of a script of TRL's formulas (dpo_trainer.py) in double. c = 1, r = -1, 5 and 8 tokens. */
TEST(losses_by_hand) {
    const double chosen = -10, rejected = -14, ref_chosen = -11, ref_rejected = -13;
    const int64_t chosen_tokens = 5, rejected_tokens = 8;
    const struct {
        const char *name;
        double smoothing, loss;
    } cases[] = {
        {"sigmoid", 0, 0.5981388694},  {"hinge", 0, 0.8},
        {"ipo", 0, 21.855625},         {"sigmoid", 0.1, 0.6181388694},
        {"robust", 0.1, 0.5731388694}, {"exo_pair", 0.1, 0.4063042510},
        {"sppo_hard", 0, 32},          {"nca_pair", 0, 1.3387933201},
        {"bco_pair", 0, 1.2887933201}, {"apo_zero", 0, 0.9500416250},
        {"apo_down", 0, 0.9751451902},
    };
    double grad_chosen, grad_rejected;
    PreferenceMetrics metrics;
    PreferenceBatch batch = {.n = 1,
                             .chosen = &chosen,
                             .rejected = &rejected,
                             .ref_chosen = &ref_chosen,
                             .ref_rejected = &ref_rejected,
                             .chosen_tokens = &chosen_tokens,
                             .rejected_tokens = &rejected_tokens};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        preference_losses_run(cases[c].name, &(PreferenceConfig){.beta = 0.1, .label_smoothing = cases[c].smoothing}, &batch, &grad_chosen,
                              &grad_rejected, &metrics);
        check_close(metrics.loss, cases[c].loss, 1e-9); /* ten digits are given */
    }
    preference_losses_run("simpo", &(PreferenceConfig){.beta = 2, .simpo_gamma = 1}, &batch, &grad_chosen, &grad_rejected, &metrics);
    check_close(metrics.loss, 1.7014132780, near);
    preference_losses_run("orpo", &(PreferenceConfig){.beta = 0.1, .nll_given = true}, &batch, &grad_chosen, &grad_rejected, &metrics);
    check_close(metrics.loss, 0.0851757483, near);
    preference_losses_run("orpo", &(PreferenceConfig){.beta = 0.1}, &batch, &grad_chosen, &grad_rejected, &metrics);
    check_close(metrics.loss, 0.0851757483 + 2, near);
    KtoMetrics kto;
    const bool desirable[2] = {true, false};
    kto_loss(&(KtoConfig){.beta = 0.1, .desirable_weight = 1, .undesirable_weight = 1},
             &(KtoBatch){.n = 1, .logprobs = &chosen, .ref_logprobs = &ref_chosen, .desirable = &desirable[0], .baseline = 0.3}, &grad_chosen, &kto);
    check_close(kto.loss, 0.4825071423, near);
    kto_loss(&(KtoConfig){.beta = 0.1, .desirable_weight = 1, .undesirable_weight = 1},
             &(KtoBatch){.n = 1, .logprobs = &rejected, .ref_logprobs = &ref_rejected, .desirable = &desirable[1], .baseline = 0.3}, &grad_chosen,
             &kto);
    check_close(kto.loss, 0.4675456936, near);
    const double good = 1.2, bad = 0.4, margin = 0.5;
    RewardMetrics reward;
    reward_model_loss(&(RewardBatch){.n = 1, .chosen = &good, .rejected = &bad}, &grad_chosen, &grad_rejected, &reward);
    check_close(reward.loss, 0.3711006659, near);
    reward_model_loss(&(RewardBatch){.n = 1, .chosen = &good, .rejected = &bad, .margins = &margin, .centering = 0.01}, &grad_chosen, &grad_rejected,
                      &reward);
    check_close(reward.loss, 0.5543552445 + 0.0256, near);
}

/* ---- properties ---- */

enum { N = 7 };
typedef struct Sample {
    double chosen[N], rejected[N], ref_chosen[N], ref_rejected[N], weights[N];
    int64_t chosen_tokens[N], rejected_tokens[N];
    PreferenceBatch batch;
} Sample;

static void sample_random(Sample *sample, uint64_t seed) {
    for (uint64_t i = 0; i < N; i++) {
        double *to[] = {sample->chosen, sample->rejected, sample->ref_chosen, sample->ref_rejected};
        sample->chosen_tokens[i] = 1 + (int64_t)rng_below(rng_key(seed, RNG_TEST, 5), i, 9),
        sample->rejected_tokens[i] = 1 + (int64_t)rng_below(rng_key(seed, RNG_TEST, 6), i, 9);
        for (uint64_t k = 0; k < 4; k++)
            to[k][i] = -0.05 - 2 * rng_uniform(rng_key(seed, RNG_TEST, k), i) * (double)(k % 2 ? sample->rejected_tokens : sample->chosen_tokens)[i];
        sample->weights[i] = rng_uniform(rng_key(seed, RNG_TEST, 7), i);
    }
    sample->batch = (PreferenceBatch){.n = N,
                                      .chosen = sample->chosen,
                                      .rejected = sample->rejected,
                                      .ref_chosen = sample->ref_chosen,
                                      .ref_rejected = sample->ref_rejected,
                                      .chosen_tokens = sample->chosen_tokens,
                                      .rejected_tokens = sample->rejected_tokens,
                                      .weights = sample->weights};
}

TEST(gradients_equal_differences) {
    const double h = 1e-6;
    for (size_t l = 0; l < COUNT_OF(names); l++)
        for (uint64_t seed = 0; seed < 9; seed++) {
            Sample sample;
            double grads[2][N], scratch[2][N], *values[2] = {sample.chosen, sample.rejected};
            PreferenceMetrics metrics, low, high;
            sample_random(&sample, seed);
            if (preference_loss_find(names[l])->matching == SORTED_SCORES) sample.batch.weights = NULL;
            PreferenceConfig config = {.beta = 0.3,
                                       .label_smoothing = seed & 1 ? 0.1 : 0,
                                       .simpo_gamma = 0.5,
                                       .alpha = seed & 2 ? 0.25 : 0,
                                       .discopop_tau = 0.3,
                                       .divergence = (Divergence)(seed % 3),
                                       .nll_given = seed & 4,
                                       .nll_weight = 0.7};
            preference_losses_run(names[l], &config, &sample.batch, grads[0], grads[1], &metrics);
            for (int side = 0; side < 2; side++)
                for (int i = 0; i < N; i++) {
                    double kept = values[side][i];
                    values[side][i] = kept + h;
                    preference_losses_run(names[l], &config, &sample.batch, scratch[0], scratch[1], &high);
                    values[side][i] = kept - h;
                    preference_losses_run(names[l], &config, &sample.batch, scratch[0], scratch[1], &low);
                    values[side][i] = kept;
                    double difference = (high.loss - low.loss) / (2 * h);
                    check_close(grads[side][i], difference, 2e-8 * (1 + fabs(difference)) + 1e-9 * fabs(metrics.loss)); /* rounding of the loss / h */
                }
        }
}

/* A policy that is the reference: known losses, no reward, no preference; and what is the same for chosen and rejected cancels. */
TEST(untrained_policy) {
    const struct {
        const char *name;
        double loss;
    } cases[] = {{"sigmoid", log(2)}, {"hinge", 1}, {"ipo", 25}, {"apo_zero", 1}, {"apo_down", 1}, {"sigmoid_norm", log(2)}, {"aot", log(2)}};
    Sample sample;
    double grad_chosen[N], grad_rejected[N];
    PreferenceMetrics metrics;
    sample_random(&sample, 1);
    sample.batch.ref_chosen = sample.chosen, sample.batch.ref_rejected = sample.rejected, sample.batch.weights = NULL;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        preference_losses_run(cases[c].name, &(PreferenceConfig){.beta = 0.1}, &sample.batch, grad_chosen, grad_rejected, &metrics);
        check_close(metrics.loss, cases[c].loss, 1e-13);
        assert_true(metrics.margin == 0 && metrics.accuracy == 0);
    }
    sample_random(&sample, 2);
    preference_losses_run("sigmoid", &(PreferenceConfig){.beta = 0.1}, &sample.batch, grad_chosen, grad_rejected, &metrics);
    for (int i = 0; i < N; i++) assert_true(grad_chosen[i] < 0 && grad_rejected[i] == -grad_chosen[i]);
}

/* aot compares sorted values: the order of the pairs among themselves does not matter, and one pair alone is the sigmoid loss. */
TEST(sorted_matching) {
    Sample sample, shuffled;
    double grad_chosen[N], grad_rejected[N], shuffled_chosen[N], shuffled_rejected[N];
    PreferenceMetrics metrics, again;
    sample_random(&sample, 3);
    sample_random(&shuffled, 3);
    sample.batch.weights = shuffled.batch.weights = NULL;
    for (int i = 0; i < N; i++) shuffled.ref_chosen[i] = sample.ref_chosen[(i + 2) % N], shuffled.ref_rejected[i] = sample.ref_rejected[(i + 2) % N];
    preference_losses_run("aot", &(PreferenceConfig){.beta = 0.1}, &sample.batch, grad_chosen, grad_rejected, &metrics);
    preference_losses_run("aot", &(PreferenceConfig){.beta = 0.1}, &shuffled.batch, shuffled_chosen, shuffled_rejected, &again);
    check_close(again.loss, metrics.loss, 1e-13);
    check_close_f64("chosen", shuffled_chosen, grad_chosen, N, 1e-15, 0);
    sample.batch.n = 1;
    preference_losses_run("sigmoid", &(PreferenceConfig){.beta = 0.1}, &sample.batch, shuffled_chosen, shuffled_rejected, &again);
    for (int k = 0; k < 2; k++) {
        preference_losses_run(k ? "aot_unpaired" : "aot", &(PreferenceConfig){.beta = 0.1}, &sample.batch, grad_chosen, grad_rejected, &metrics);
        check_close(metrics.loss, again.loss, 1e-13);
        check_close(grad_rejected[0], shuffled_rejected[0], 1e-13);
    }
}

/* A step cut into calls gives what one call gives. */
TEST(pieces_add_up) {
    for (size_t l = 0; l < COUNT_OF(names); l++) {
        if (preference_loss_find(names[l])->matching != AS_PAIRED) continue; /* those compare within the call */
        Sample sample;
        double whole[2][N], parts[2][N], sum = 0;
        PreferenceMetrics metrics;
        sample_random(&sample, 4);
        PreferenceConfig config = {.beta = 0.2, .nll_given = true, .nll_weight = 0.5};
        preference_losses_run(names[l], &config, &sample.batch, whole[0], whole[1], &metrics);
        double loss = metrics.loss;
        config.total_pairs = N;
        for (int i = 0; i < N; i++) config.total_chosen_tokens += sample.chosen_tokens[i];
        for (int i = 0; i < N; i++) {
            PreferenceBatch one = {.n = 1,
                                   .chosen = sample.chosen + i,
                                   .rejected = sample.rejected + i,
                                   .ref_chosen = sample.ref_chosen + i,
                                   .ref_rejected = sample.ref_rejected + i,
                                   .chosen_tokens = sample.chosen_tokens + i,
                                   .rejected_tokens = sample.rejected_tokens + i,
                                   .weights = sample.weights + i};
            preference_losses_run(names[l], &config, &one, parts[0] + i, parts[1] + i, &metrics);
            sum += metrics.loss;
        }
        check_close(sum, loss, 1e-12);
        check_close_f64(names[l], parts[0], whole[0], N, 1e-14, 1e-13);
        check_close_f64(names[l], parts[1], whole[1], N, 1e-14, 1e-13);
    }
}

/* Policies thousands of nats away, and one that is certain of every token, give finite losses and gradients; NaN is not hidden. */
TEST(extremes_stay_finite) {
    const double ends[] = {0, -1e-12, -50, -5000};
    const int64_t tokens[] = {5, 5, 5, 5};
    double grad_chosen[4], grad_rejected[4];
    PreferenceMetrics metrics;
    for (size_t l = 0; l < COUNT_OF(names); l++)
        for (int shift = 0; shift < 4; shift++)
            for (int divergence = REVERSE_KL; divergence <= JENSEN_SHANNON; divergence++) {
                double chosen[4], rejected[4], ref_chosen[4], ref_rejected[4];
                for (int i = 0; i < 4; i++)
                    chosen[i] = ends[i], rejected[i] = ends[(i + shift) % 4], ref_chosen[i] = ends[3 - i],
                    ref_rejected[i] = ends[(7 - i - shift) % 4];
                PreferenceConfig config = {.beta = 0.5, .alpha = divergence == FORWARD_KL ? 2 : 0, .divergence = (Divergence)divergence};
                PreferenceBatch batch = {.n = 4,
                                         .chosen = chosen,
                                         .rejected = rejected,
                                         .ref_chosen = ref_chosen,
                                         .ref_rejected = ref_rejected,
                                         .chosen_tokens = tokens,
                                         .rejected_tokens = tokens};
                preference_losses_run(names[l], &config, &batch, grad_chosen, grad_rejected, &metrics);
                if (!isfinite(metrics.loss)) fail_msg("%s: loss %g", names[l], metrics.loss);
                for (int i = 0; i < 4; i++)
                    if (!isfinite(grad_chosen[i]) || !isfinite(grad_rejected[i]))
                        fail_msg("%s: gradients %g and %g of pair %d", names[l], grad_chosen[i], grad_rejected[i], i);
                chosen[2] = (double)NAN;
                preference_losses_run(names[l], &config, &batch, grad_chosen, grad_rejected, &metrics);
                assert_true(isnan(metrics.loss));
            }
}

TEST(kto_and_rewards_by_differences) {
    const double h = 1e-6;
    Sample sample;
    double grad[2][N], scratch[2][N];
    bool desirable[N];
    sample_random(&sample, 5);
    for (int i = 0; i < N; i++) desirable[i] = i % 3 == 0;
    KtoConfig config = {.beta = 0.3, .desirable_weight = 1.3, .undesirable_weight = 0.6};
    KtoBatch batch = {.n = N, .logprobs = sample.chosen, .ref_logprobs = sample.ref_chosen, .desirable = desirable, .baseline = 0.4};
    KtoMetrics kto, low, high;
    kto_loss(&config, &batch, grad[0], &kto);
    for (int i = 0; i < N; i++) {
        double kept = sample.chosen[i];
        sample.chosen[i] = kept + h, kto_loss(&config, &batch, scratch[0], &high);
        sample.chosen[i] = kept - h, kto_loss(&config, &batch, scratch[0], &low);
        sample.chosen[i] = kept;
        check_close(grad[0][i], (high.loss - low.loss) / (2 * h), 1e-8);
    }
    RewardBatch rewards = {.n = N, .chosen = sample.chosen, .rejected = sample.rejected, .margins = sample.weights, .centering = 0.05};
    RewardMetrics reward, reward_low, reward_high;
    double *values[2] = {sample.chosen, sample.rejected};
    reward_model_loss(&rewards, grad[0], grad[1], &reward);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < N; i++) {
            double kept = values[side][i];
            values[side][i] = kept + h, reward_model_loss(&rewards, scratch[0], scratch[1], &reward_high);
            values[side][i] = kept - h, reward_model_loss(&rewards, scratch[0], scratch[1], &reward_low);
            values[side][i] = kept;
            check_close(grad[side][i], (reward_high.loss - reward_low.loss) / (2 * h), 1e-8);
        }
}

TEST(full_memory_is_a_status) {
    Sample sample;
    double grad_chosen[N], grad_rejected[N];
    PreferenceMetrics metrics;
    sample_random(&sample, 6);
    for (long nth = 1; nth <= 5; nth++) {
        Arena *scratch = arena_new(0);
        arena_fail_at(nth);
        check_status(preference_loss(preference_loss_find("aot"), &(PreferenceConfig){.beta = 0.1}, &sample.batch, scratch, grad_chosen,
                                     grad_rejected, &metrics),
                     ST_RESOURCE);
        arena_free(scratch);
    }
    assert_null(preference_loss_find("dop"));
    for (size_t l = 0; l < COUNT_OF(names); l++) assert_string_equal(preference_loss_find(names[l])->name, names[l]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dpo_family_equals_golden),
        cmocka_unit_test(losses_without_reference_equal_golden),
        cmocka_unit_test(kto_equals_golden),
        cmocka_unit_test(reward_model_equals_golden),
        cmocka_unit_test(losses_by_hand),
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(untrained_policy),
        cmocka_unit_test(sorted_matching),
        cmocka_unit_test(pieces_add_up),
        cmocka_unit_test(extremes_stay_finite),
        cmocka_unit_test(kto_and_rewards_by_differences),
        cmocka_unit_test(full_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
