/* SPDX-License-Identifier: Apache-2.0 */
/* Returns, advantages and KL: the reference library's values, the definitions written out, and what must hold for any numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "rl/core/advantages.h"
#include "rl/core/kl.h"
#include "rl/core/returns.h"
#include "tests/support/check.h"

enum { MAX = 256 };
static const double near = 1e-12;

/* A trajectory that owns its arrays. */
typedef struct Sample {
    Trajectory trajectory;
    double logprobs[MAX], values[MAX], rewards[MAX], final_values[MAX], last_values[MAX];
    bool terminated[MAX], truncated[MAX], valid[MAX];
    Bootstrap behind;
} Sample;

static void sample_init(Sample *sample, int64_t T, int64_t B) {
    memset(sample, 0, sizeof *sample);
    sample->trajectory = (Trajectory){.T = T,
                                      .B = B,
                                      .logprobs = sample->logprobs,
                                      .values = sample->values,
                                      .rewards = sample->rewards,
                                      .terminated = sample->terminated,
                                      .truncated = sample->truncated,
                                      .valid = sample->valid};
    memset(sample->valid, true, sizeof sample->valid);
    sample->behind = (Bootstrap){sample->final_values, sample->last_values};
}

/* Anything may happen at any step. */
static void sample_random(Sample *sample, int64_t T, int64_t B, uint64_t seed) {
    sample_init(sample, T, B);
    for (int64_t i = 0; i < T * B; i++) {
        double u[6];
        for (int k = 0; k < 6; k++) u[k] = rng_uniform(rng_key(seed, RNG_TEST, (uint64_t)k), (uint64_t)i);
        sample->logprobs[i] = -u[0], sample->values[i] = 2 * u[1] - 1, sample->rewards[i] = 2 * u[2] - 1;
        sample->terminated[i] = u[3]<0.15, sample->truncated[i] = u[3]> 0.1 && u[3] < 0.3, sample->valid[i] = u[4] < 0.8;
        sample->final_values[i] = u[5] - 3, sample->last_values[i] = u[5] + 3;
    }
}

static void read_bools(const json_t *array, bool *out) {
    double numbers[MAX];
    size_t n = golden_numbers(array, numbers, MAX);
    for (size_t i = 0; i < n; i++) out[i] = numbers[i] != 0;
}

static void check_golden(const json_t *row, const char *key, const double *got) {
    double want[MAX];
    size_t n = golden_numbers(golden_at(row, key), want, MAX);
    check_close_f64(key, got, want, n, near, near);
}

TEST(gae_and_vtrace_equal_golden) {
    json_t *root = golden_open("losses/advantages.json");
    if (!root) skip();
    Sample sample;
    sample_init(&sample, 9, 3);
    golden_numbers(golden_at(root, "rewards"), sample.rewards, MAX);
    golden_numbers(golden_at(root, "values"), sample.values, MAX);
    golden_numbers(golden_at(root, "last_values"), sample.last_values, MAX);
    golden_numbers(golden_at(root, "value_of_final_observation_where_truncated"), sample.final_values, MAX);
    read_bools(golden_at(root, "terminated"), sample.terminated);
    read_bools(golden_at(root, "truncated"), sample.truncated);
    double advantages[MAX], returns[MAX];
    const json_t *rows = golden_at(root, "gae");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c);
        Bootstrap behind = sample.behind;
        if (golden_number(row, "bootstrap_on_truncation", 0) == 0) behind.final_values = NULL;
        double gamma = golden_number(row, "gamma", 0), lambda = golden_number(row, "lambda", 0);
        returns_gae(&sample.trajectory, behind, gamma, lambda, advantages, returns);
        check_golden(row, "advantages", advantages);
        check_golden(row, "returns", returns);
        returns_td_lambda(&sample.trajectory, behind, gamma, lambda, returns);
        check_golden(row, "returns", returns);
        if (c) continue;
        double whitened[MAX];
        memcpy(whitened, advantages, sizeof whitened);
        advantages_normalise(advantages, NULL, 27, NORMALISE_STD, 1e-8);
        advantages_normalise(whitened, NULL, 27, NORMALISE_VARIANCE, 1e-8);
        check_golden(root, "normalized_first_case_std_plus_1e-8", advantages);
        check_golden(root, "whitened_first_case_unbiased_1e-8", whitened);
    }
    double target_logprobs[MAX]; /* the behaviour's are 0 */
    golden_numbers(golden_at(root, "vtrace_log_ratio_target_minus_behaviour"), target_logprobs, MAX);
    sample.trajectory.truncated = NULL;
    rows = golden_at(root, "vtrace");
    for (size_t c = 0; c < json_array_size(rows); c++) {
        const json_t *row = json_array_get(rows, c);
        returns_vtrace(&sample.trajectory, sample.behind, target_logprobs, golden_number(row, "gamma", 0), golden_number(row, "lambda", 0),
                       golden_number(row, "rho_bar", 0), golden_number(row, "c_bar", 0), returns, advantages);
        check_golden(row, "vs", returns);
        check_golden(row, "pg_advantages", advantages);
    }
    json_decref(root);
}

/* Worked out in double by a script of the recursion in arXiv 1506.02438: an episode that ends in the middle, and a completion with its reward at the
 * end. */
TEST(gae_by_hand) {
    Sample sample;
    sample_init(&sample, 4, 1);
    double advantages[4];
    memcpy(sample.rewards, (double[]){1, 0, -1, 2}, 4 * sizeof(double));
    memcpy(sample.values, (double[]){0.5, 0.4, 0.3, 0.2}, 4 * sizeof(double));
    sample.last_values[0] = 0.1;
    sample.terminated[2] = true;
    returns_gae(&sample.trajectory, sample.behind, 0.99, 0.95, advantages, NULL);
    check_close_f64("advantages", advantages, ((double[]){-0.350773825, -1.32565, -1.3, 1.899}), 4, near, 0);
    sample_init(&sample, 4, 1);
    memcpy(sample.rewards, (double[]){-0.01, -0.02, 0.03, 1}, 4 * sizeof(double));
    memcpy(sample.values, (double[]){0.1, 0.2, 0.3, 0.4}, 4 * sizeof(double));
    sample.terminated[3] = true;
    returns_gae(&sample.trajectory, sample.behind, 1, 0.95, advantages, NULL);
    check_close_f64("advantages", advantages, ((double[]){0.79775, 0.745, 0.7, 0.6}), 4, near, 0);
}

/* The next entry of the same episode after i; -1 if the episode ends there, -2 at the end of the rows. */
static int64_t next_of(const Sample *sample, int64_t i) {
    if (sample->terminated[i] || sample->truncated[i]) return -1;
    for (i += sample->trajectory.B; i < sample->trajectory.T * sample->trajectory.B; i += sample->trajectory.B)
        if (sample->valid[i]) return i;
    return -2;
}

/* The n-step return by its definition, recursively. */
static double n_step(const Sample *sample, int64_t i, int64_t n, double gamma) {
    int64_t next = next_of(sample, i);
    double rest = next == -1   ? (sample->terminated[i] ? 0 : sample->final_values[i])
                  : next == -2 ? sample->last_values[i % sample->trajectory.B]
                  : n == 1     ? sample->values[next]
                               : n_step(sample, next, n - 1, gamma);
    return sample->rewards[i] + gamma * rest;
}

/* Each kind of return against n-step returns, which are taken from the definition: the forward view of TD(lambda). */
TEST(returns_are_mixtures_of_n_step_returns) {
    enum { T = 20, B = 3 };
    const double gamma = 0.9, lambda = 0.7;
    for (uint64_t seed = 0; seed < 20; seed++) {
        Sample sample;
        double got[MAX], mixed[MAX] = {0}, all[MAX] = {0}, three[MAX] = {0}, advantages[MAX], returns[MAX];
        sample_random(&sample, T, B, seed);
        for (int64_t i = 0; i < T * B; i++) {
            if (!sample.valid[i]) continue;
            all[i] = n_step(&sample, i, T, gamma);
            three[i] = n_step(&sample, i, 3, gamma);
            for (int64_t n = 1; n < T; n++) mixed[i] += (1 - lambda) * pow(lambda, (double)(n - 1)) * n_step(&sample, i, n, gamma);
            mixed[i] += pow(lambda, T - 1) * all[i];
        }
        returns_discounted(&sample.trajectory, sample.behind, gamma, got);
        check_close_f64("discounted", got, all, T * B, near, near);
        returns_n_step(&sample.trajectory, sample.behind, gamma, 3, got);
        check_close_f64("3-step", got, three, T * B, near, near);
        returns_td_lambda(&sample.trajectory, sample.behind, gamma, lambda, got);
        check_close_f64("td(lambda)", got, mixed, T * B, near, near);
        returns_gae(&sample.trajectory, sample.behind, gamma, lambda, advantages, returns);
        check_close_f64("gae", returns, mixed, T * B, near, near);
        for (int64_t i = 0; i < T * B; i++) check_close(advantages[i], sample.valid[i] ? mixed[i] - sample.values[i] : 0, near);
        /* On-policy V-trace without active clipping is TD(lambda). */
        returns_vtrace(&sample.trajectory, sample.behind, sample.logprobs, gamma, lambda, 1, 1, returns, advantages);
        check_close_f64("v-trace", returns, mixed, T * B, near, near);
        /* The limits lambda 0 and 1. */
        returns_td_lambda(&sample.trajectory, sample.behind, gamma, 1, got);
        check_close_f64("td(1)", got, all, T * B, near, near);
        returns_td_lambda(&sample.trajectory, sample.behind, gamma, 0, got);
        returns_n_step(&sample.trajectory, sample.behind, gamma, 1, mixed);
        check_close_f64("td(0)", got, mixed, T * B, near, near);
    }
}

/* Completions of different lengths give the same whether they are padded columns or one column one after the other. */
TEST(padding_changes_nothing) {
    enum { N = 4, LONGEST = 7 };
    const int64_t lengths[N] = {3, 7, 1, 5};
    Sample padded, flat;
    sample_random(&padded, LONGEST, N, 5);
    sample_init(&flat, 16, 1);
    for (int64_t b = 0, j = 0; b < N; b++)
        for (int64_t t = 0; t < LONGEST; t++) {
            int64_t i = t * N + b;
            padded.valid[i] = t < lengths[b];
            padded.terminated[i] = t == lengths[b] - 1 && b % 2, padded.truncated[i] = t == lengths[b] - 1 && b % 2 == 0;
            if (!padded.valid[i]) {
                padded.rewards[i] = padded.values[i] = (double)NAN;
                continue;
            }
            flat.rewards[j] = padded.rewards[i], flat.values[j] = padded.values[i], flat.final_values[j] = padded.final_values[i];
            flat.terminated[j] = padded.terminated[i], flat.truncated[j++] = padded.truncated[i];
        }
    double a[MAX], b_advantages[MAX], returns[MAX];
    returns_gae(&padded.trajectory, padded.behind, 0.95, 0.8, a, returns);
    returns_gae(&flat.trajectory, flat.behind, 0.95, 0.8, b_advantages, returns);
    for (int64_t b = 0, j = 0; b < N; b++)
        for (int64_t t = 0; t < lengths[b]; t++, j++) assert_true(a[t * N + b] == b_advantages[j]);
    advantages_normalise(a, padded.valid, LONGEST * N, NORMALISE_VARIANCE, 1e-8);
    advantages_normalise(b_advantages, NULL, 16, NORMALISE_VARIANCE, 1e-8);
    double sum = 0;
    for (int64_t i = 0; i < LONGEST * N; i++) sum += a[i];
    check_close(sum, 0, near);
    for (int64_t b = 0, j = 0; b < N; b++)
        for (int64_t t = 0; t < lengths[b]; t++, j++) check_close(a[t * N + b], b_advantages[j], near);
}

TEST(normalisations_by_hand) {
    double unbiased[] = {0.5, -1, 2, 0.1}, population[] = {0.5, -1, 2, 0.1}, equal[] = {0.1, 0.1, 0.1}, one[] = {3};
    advantages_normalise(unbiased, NULL, 4, NORMALISE_VARIANCE, 1e-8);
    check_close_f64("unbiased", unbiased, ((double[]){0.0805823, -1.12815215, 1.28931674, -0.24174689}), 4, 1e-7, 0);
    advantages_normalise(population, NULL, 4, NORMALISE_POPULATION, 1e-8);
    check_close_f64("population", population, ((double[]){0.09304842, -1.30267789, 1.48877474, -0.27914526}), 4, 1e-8, 0);
    advantages_normalise(equal, NULL, 3, NORMALISE_STD, 1e-8);
    for (int i = 0; i < 3; i++) assert_true(equal[i] == 0);
    advantages_normalise(one, NULL, 1, NORMALISE_STD, 1e-8);
    assert_true(one[0] == 0);
}

TEST(group_advantages_equal_golden) {
    json_t *root = golden_open("losses/grpo.json");
    if (!root) skip();
    const json_t *groups = golden_at(root, "group_advantages"), *rloo = golden_at(groups, "rloo");
    double rewards[MAX], kl_sums[MAX], got[MAX];
    int64_t n = (int64_t)golden_numbers(golden_at(groups, "rewards"), rewards, MAX), size = (int64_t)golden_number(groups, "group_size", 0);
    advantages_group(rewards, n, size, SCALE_GROUP, got);
    check_golden(groups, "grpo_group_std", got);
    advantages_group(rewards, n, size, SCALE_BATCH, got);
    check_golden(groups, "batch_std", got);
    advantages_group(rewards, n, size, SCALE_NONE, got);
    check_golden(groups, "dr_grpo_none", got);
    advantages_leave_one_out(rewards, n, size, got);
    check_golden(groups, "rloo_without_kl", got);
    golden_numbers(golden_at(rloo, "kl_sums"), kl_sums, MAX);
    for (int64_t i = 0; i < n; i++) rewards[i] -= golden_number(rloo, "beta", 0) * kl_sums[i];
    advantages_leave_one_out(rewards, n, size, got);
    check_golden(rloo, "advantages", got);
    advantages_normalise(got, NULL, n, NORMALISE_STD, 1e-4);
    check_golden(rloo, "normalized", got);

    const json_t *tokens = golden_at(root, "reinforce_plus_plus");
    double old_logprobs[MAX], ref_logprobs[MAX], scores[MAX], token_rewards[MAX], returns[MAX];
    int64_t begin[MAX];
    bool terminated[MAX] = {false};
    int64_t n_sequences = (int64_t)golden_offsets(golden_at(root, "old_logps"), begin, MAX), n_tokens = begin[n_sequences];
    golden_numbers(golden_at(root, "old_logps"), old_logprobs, MAX);
    golden_numbers(golden_at(root, "ref_logps"), ref_logprobs, MAX);
    golden_numbers(golden_at(tokens, "scores"), scores, MAX);
    kl_rewards(KL_K1, golden_number(tokens, "kl_coef", 0), old_logprobs, ref_logprobs, scores, n_sequences, begin, token_rewards);
    check_golden(tokens, "token_rewards", token_rewards);
    for (int64_t i = 0; i < n_sequences; i++) terminated[begin[i + 1] - 1] = true;
    returns_discounted(&(Trajectory){.T = n_tokens, .B = 1, .rewards = token_rewards, .terminated = terminated}, (Bootstrap){0},
                       golden_number(tokens, "gamma", 0), returns);
    check_golden(tokens, "returns", returns);
    memcpy(got, returns, sizeof got);
    advantages_normalise(got, NULL, n_tokens, NORMALISE_VARIANCE, 1e-8);
    check_golden(tokens, "advantages_unbiased_variance_plus_1e-8", got);
    advantages_normalise(returns, NULL, n_tokens, NORMALISE_POPULATION, 1e-8);
    check_golden(tokens, "advantages_population_variance_clamped_1e-8", returns);
    json_decref(root);
}

/* Equal rewards teach nothing, exactly; a constant added changes nothing; missing rewards are out; and the group's sum is 0. */
TEST(groups_compare_only_within) {
    enum { N = 12, SIZE = 4 };
    double rewards[N] = {0.1, 0.1, 0.1, 0.1, 1, 0, 0, 1, 0.5, (double)NAN, 2, 0.25}, shifted[N], a[N], b[N];
    memcpy(shifted, rewards, sizeof shifted);
    for (int i = 0; i < SIZE; i++) shifted[SIZE + i] += 1024;
    for (GroupScale scale = SCALE_GROUP; scale <= SCALE_NONE; scale++) {
        advantages_group(rewards, N, SIZE, scale, a);
        for (int i = 0; i < SIZE; i++) assert_true(a[i] == 0);
        check_close(a[4] + a[5] + a[6] + a[7], 0, near);
        assert_true(a[9] == 0);
        check_close(a[8] + a[10] + a[11], 0, near);
        if (scale == SCALE_BATCH) continue; /* its scale is everyone's */
        advantages_group(shifted, N, SIZE, scale, b);
        for (int i = 0; i < N; i++) assert_true(a[i] == b[i]);
    }
    advantages_group(rewards, N, SIZE, SCALE_NONE, a);
    advantages_leave_one_out(rewards, N, SIZE, b);
    for (int i = 0; i < 8; i++) check_close(b[i], a[i] * 4 / 3, near);
    check_close(b[8], 0.5 - (2 + 0.25) / 2, near);
    assert_true(group_is_flat(rewards, SIZE) && !group_is_flat(rewards + SIZE, SIZE) && !group_is_flat(rewards + 8, SIZE));
    double lonely = 7, nothing[2] = {(double)NAN, (double)NAN};
    advantages_group(&lonely, 1, 1, SCALE_GROUP, a);
    advantages_leave_one_out(&lonely, 1, 1, b);
    assert_true(a[0] == 0 && b[0] == 0);
    advantages_group(nothing, 2, 2, SCALE_GROUP, a);
    assert_true(a[0] == 0 && a[1] == 0 && group_is_flat(nothing, 2));
}

TEST(kl_by_hand) {
    check_close(kl_estimate(KL_K1, -1.2, -1).value, -0.2, near);
    check_close(kl_estimate(KL_K2, -1.2, -1).value, 0.02, near);
    check_close(kl_estimate(KL_K3, -1.2, -1).value, 0.0214027582, 1e-10);
    for (KlKind kind = KL_K1; kind <= KL_K3; kind++) {
        const double h = 1e-5, x = -0.7, ref = -1.1;
        check_close(kl_estimate(kind, x, ref).slope, (kl_estimate(kind, x + h, ref).value - kl_estimate(kind, x - h, ref).value) / (2 * h), 1e-9);
        for (double logprob = 0; logprob > -3000; logprob -= 999.9) {
            KlEstimate kl = kl_estimate(kind, logprob, -1500);
            assert_true(isfinite(kl.value) && isfinite(kl.slope));
        }
        assert_true(isfinite(kl_estimate(kind, -HUGE_VAL, -1).value) && isnan(kl_estimate(kind, (double)NAN, -1).value));
    }
    const double logprobs[3] = {-1, -2, -0.5}, ref_logprobs[3] = {-1.5, -1, -0.7};
    double scores[2] = {1, 2}, rewards[3];
    kl_rewards(KL_K1, 0.1, logprobs, ref_logprobs, scores, 2, ((int64_t[]){0, 2, 3}), rewards);
    check_close_f64("token rewards", rewards, ((double[]){-0.05, 1.1, 1.98}), 3, near, 0);
    kl_scores(KL_K1, 0.1, logprobs, ref_logprobs, 2, ((int64_t[]){0, 2, 3}), scores);
    check_close_f64("scores", scores, ((double[]){1.05, 1.98}), 2, near, 0);
    check_close(kl_adapt(0.2, 12, 6, 256, 1e4), 0.201024, near);
    check_close(kl_adapt(0.201024, 3, 6, 256, 1e4), 0.19999475712, 1e-8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gae_and_vtrace_equal_golden),
        cmocka_unit_test(gae_by_hand),
        cmocka_unit_test(returns_are_mixtures_of_n_step_returns),
        cmocka_unit_test(padding_changes_nothing),
        cmocka_unit_test(normalisations_by_hand),
        cmocka_unit_test(group_advantages_equal_golden),
        cmocka_unit_test(groups_compare_only_within),
        cmocka_unit_test(kl_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
