/* SPDX-License-Identifier: Apache-2.0 */
/* Policy heads and the losses of Q: a small network's golden losses, central differences, the exact gradient of a token MDP, and draws. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "rl/core/advantages.h"
#include "rl/core/heads.h"
#include "rl/core/policy_losses.h"
#include "rl/core/q_losses.h"
#include "rl/core/returns.h"
#include "rl/core/value_losses.h"
#include "tests/support/check.h"

enum { MAX = 256 };
static const double near = 1e-10;

/* ---- golden/rl/mlp.json: x -> tanh -> tanh -> logits and value ---- */

/* y = W x + b, by name. */
static void layer(const json_t *weights, const char *name, const double *x, int64_t in, int64_t out, double *y) {
    double w[MAX], b[MAX];
    char key[32];
    golden_numbers(golden_at(weights, strcat(strcpy(key, name), ".weight")), w, MAX);
    golden_numbers(golden_at(weights, strcat(strcpy(key, name), ".bias")), b, MAX);
    for (int64_t o = 0; o < out; o++) {
        y[o] = b[o];
        for (int64_t i = 0; i < in; i++) y[o] += w[o * in + i] * x[i];
    }
}

static void network(const json_t *weights, const double *obs, double *logits, double *value) {
    double a[8], b[8];
    layer(weights, "l1", obs, 4, 8, a);
    for (int i = 0; i < 8; i++) a[i] = tanh(a[i]);
    layer(weights, "l2", a, 8, 8, b);
    for (int i = 0; i < 8; i++) b[i] = tanh(b[i]);
    layer(weights, "pi", b, 8, 3, logits);
    layer(weights, "v", b, 8, 1, value);
}

typedef struct Steps {
    double obs[MAX], actions[MAX], old_logprobs[MAX], advantages[MAX], returns[MAX], old_values[MAX], logits[MAX], values[MAX], logprobs[MAX],
        entropies[MAX];
} Steps;

static void read_batch(const json_t *root, Steps *batch) {
    golden_numbers(golden_at(root, "obs"), batch->obs, MAX);
    golden_numbers(golden_at(root, "actions"), batch->actions, MAX);
    golden_numbers(golden_at(root, "old_logprobs"), batch->old_logprobs, MAX);
    golden_numbers(golden_at(root, "advantages"), batch->advantages, MAX);
    golden_numbers(golden_at(root, "returns"), batch->returns, MAX);
    golden_numbers(golden_at(root, "old_values"), batch->old_values, MAX);
    for (int i = 0; i < 16; i++) {
        network(golden_at(root, "weights"), batch->obs + 4 * i, batch->logits + 3 * i, batch->values + i);
        Likelihood likelihood = categorical_likelihood(batch->logits + 3 * i, 3, (int64_t)batch->actions[i]);
        batch->logprobs[i] = likelihood.logprob, batch->entropies[i] = likelihood.entropy;
    }
}

/* Rows of a minibatch to the front of each array; returns how many. */
static int64_t take_minibatch(const json_t *row, Steps *batch) {
    double rows[MAX],
        *arrays[] = {batch->old_logprobs, batch->advantages, batch->returns, batch->old_values, batch->values, batch->logprobs, batch->entropies};
    int64_t n = (int64_t)golden_numbers(golden_at(row, "minibatch"), rows, MAX);
    for (size_t a = 0; a < COUNT_OF(arrays); a++) {
        double taken[MAX];
        for (int64_t i = 0; i < n; i++) taken[i] = arrays[a][(int64_t)rows[i]];
        memcpy(arrays[a], taken, (size_t)n * sizeof *taken);
    }
    return n;
}

static void ppo_row(const json_t *row, Steps *batch) {
    const json_t *hyper = golden_at(row, "hyper");
    double grad[MAX], vf_coef = golden_value(hyper, "vf_coef"), halves = golden_number(hyper, "half_in_value_loss", 0) != 0 ? 1 : 2;
    int64_t n = take_minibatch(row, batch);
    PolicyMetrics policy;
    ValueMetrics value;
    if (golden_number(hyper, "normalize_advantages", 0) != 0) advantages_normalise(batch->advantages, NULL, n, NORMALISE_STD, 1e-8);
    PolicyBatch actions = {.n_sequences = n,
                           .logprobs = batch->logprobs,
                           .old_logprobs = batch->old_logprobs,
                           .advantages = batch->advantages,
                           .entropies = batch->entropies};
    PolicyLossConfig config = {.clip = golden_value(hyper, "clip"), .ent_coef = golden_value(hyper, "ent_coef")};
    policy_loss(policy_loss_find("ppo"), &config, &actions, grad, &policy);
    ValueBatch values = {.n = n, .values = batch->values, .old_values = batch->old_values, .targets = batch->returns};
    value_loss(&values, golden_number(hyper, "value_clip", 0), grad, &value);
    check_close(policy.policy_loss, golden_value(row, "policy_loss"), near);
    check_close(halves * value.loss, golden_value(row, "value_loss"), near);
    check_close(policy.entropy, golden_value(row, "entropy"), near);
    check_close(policy.approx_kl, golden_value(row, "approx_kl"), near);
    check_close(policy.outside, golden_value(row, "clip_fraction"), near);
    check_close(policy.loss + vf_coef * halves * value.loss, golden_value(row, "loss"), near);
}

static void a2c_row(const json_t *row, Steps *batch) {
    const json_t *hyper = golden_at(row, "hyper");
    double grad[MAX];
    PolicyMetrics policy;
    ValueMetrics value;
    for (int i = 0; i < 16; i++) batch->advantages[i] = batch->returns[i] - batch->values[i];
    PolicyBatch actions = {.n_sequences = 16, .logprobs = batch->logprobs, .advantages = batch->advantages, .entropies = batch->entropies};
    policy_loss(policy_loss_find("a2c"), &(PolicyLossConfig){.ent_coef = golden_value(hyper, "ent_coef")}, &actions, grad, &policy);
    value_loss(&(ValueBatch){.n = 16, .values = batch->values, .targets = batch->returns}, 0, grad, &value);
    check_close(policy.policy_loss, golden_value(row, "policy_loss"), near);
    check_close(2 * value.loss, golden_value(row, "value_loss"), near);
    check_close(policy.entropy, golden_value(row, "entropy"), near);
    check_close(policy.loss + golden_value(hyper, "vf_coef") * 2 * value.loss, golden_value(row, "loss"), near);
}

static void dqn_row(const json_t *root, const json_t *row, const Steps *batch) {
    const json_t *hyper = golden_at(row, "hyper");
    double next_obs[MAX], rewards[MAX], terminated[MAX], q[16], targets[16], grad[16];
    golden_numbers(golden_at(root, "dqn_next_obs"), next_obs, MAX);
    golden_numbers(golden_at(root, "dqn_rewards"), rewards, MAX);
    golden_numbers(golden_at(root, "dqn_terminated"), terminated, MAX);
    for (int i = 0; i < 16; i++) {
        double next_q[3], choose_q[3], value;
        network(golden_at(root, "dqn_target_weights"), next_obs + 4 * i, next_q, &value);
        network(golden_at(root, "weights"), next_obs + 4 * i, choose_q, &value);
        bool is_double = golden_number(hyper, "double", 0) != 0;
        targets[i] = q_target(rewards[i], golden_value(hyper, "gamma"), terminated[i] != 0, next_q, is_double ? choose_q : NULL, 3);
        q[i] = batch->logits[3 * i + (int)batch->actions[i]];
    }
    check_close(td_loss(16, q, targets, NULL, golden_is(hyper, "loss", "mse") ? 0 : 1, grad), golden_value(row, "loss"), near);
}

TEST(network_losses_equal_golden) {
    json_t *root = golden_open("rl/mlp.json");
    if (!root) skip();
    double want[MAX], grad[MAX];
    Steps batch;
    read_batch(root, &batch);
    golden_numbers(golden_at(root, "logprobs"), want, MAX);
    check_close_f64("logprobs", batch.logprobs, want, 16, near, 0);
    golden_numbers(golden_at(root, "entropy"), want, MAX);
    check_close_f64("entropy", batch.entropies, want, 16, near, 0);
    const json_t *rows = golden_at(root, "losses");
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *row = json_array_get(rows, r);
        read_batch(root, &batch);
        if (golden_is(row, "name", "ppo"))
            ppo_row(row, &batch);
        else if (golden_is(row, "name", "a2c"))
            a2c_row(row, &batch);
        else if (golden_is(row, "name", "dqn"))
            dqn_row(root, row, &batch);
        else { /* reinforce: the returns themselves are the weights */
            PolicyMetrics metrics;
            policy_loss(policy_loss_find("reinforce"), &(PolicyLossConfig){0},
                        &(PolicyBatch){.n_sequences = 16, .logprobs = batch.logprobs, .advantages = batch.returns}, grad, &metrics);
            check_close(metrics.loss, golden_value(row, "loss"), near);
        }
    }
    json_decref(root);
}

/* ---- heads ---- */

TEST(heads_by_differences) {
    enum { N = 5 };
    const double h = 1e-6, dlogprob = 0.7, dentropy = -0.4;
    double logits[N], log_std[N], action[N], grad[N], grad_std[N], scratch[N];
    for (uint64_t seed = 0; seed < 10; seed++) {
        for (uint64_t k = 0; k < N; k++) {
            logits[k] = 2 * rng_normal(rng_key(seed, RNG_TEST, 0), k), log_std[k] = rng_normal(rng_key(seed, RNG_TEST, 1), k) / 2;
            action[k] = rng_normal(rng_key(seed, RNG_TEST, 2), k);
        }
        int64_t choice = (int64_t)(seed % N);
        categorical_grad(logits, N, choice, dlogprob, dentropy, grad);
        for (int k = 0; k < N; k++) {
            double kept = logits[k];
            logits[k] = kept + h;
            Likelihood high = categorical_likelihood(logits, N, choice);
            logits[k] = kept - h;
            Likelihood low = categorical_likelihood(logits, N, choice);
            logits[k] = kept;
            check_close(grad[k], (dlogprob * (high.logprob - low.logprob) + dentropy * (high.entropy - low.entropy)) / (2 * h), 1e-8);
        }
        gaussian_grad(logits, log_std, N, action, dlogprob, dentropy, grad, grad_std);
        double *inputs[] = {logits, log_std}, *grads[] = {grad, grad_std};
        for (int which = 0; which < 2; which++)
            for (int k = 0; k < N; k++) {
                double kept = inputs[which][k];
                inputs[which][k] = kept + h;
                Likelihood high = gaussian_likelihood(logits, log_std, N, action);
                inputs[which][k] = kept - h;
                Likelihood low = gaussian_likelihood(logits, log_std, N, action);
                inputs[which][k] = kept;
                check_close(grads[which][k], (dlogprob * (high.logprob - low.logprob) + dentropy * (high.entropy - low.entropy)) / (2 * h), 1e-6);
            }
    }
    /* A standard normal at 0, and its entropy; actions that can't be taken; logits far apart. */
    double zero = 0, far[3] = {1000, -HUGE_VAL, -1000};
    check_close(gaussian_likelihood(&zero, &zero, 1, &zero).logprob, -log(sqrt(2 * acos(-1))), near);
    check_close(gaussian_likelihood(&zero, &zero, 1, &zero).entropy, 0.5 + log(sqrt(2 * acos(-1))), near);
    Likelihood sure = categorical_likelihood(far, 3, 0);
    assert_true(sure.logprob == 0 && sure.entropy == 0);
    categorical_grad(far, 3, 0, 1, 1, scratch);
    for (int k = 0; k < 3; k++) assert_true(scratch[k] == 0);
}

TEST(draws_have_their_distribution) {
    enum { DRAWS = 40000 };
    const double logits[4] = {0.3, -HUGE_VAL, 1.1, -0.6};
    double count[4] = {0}, mean[2] = {1, -2}, log_std[2] = {0.5, -1}, sum[2] = {0}, squares[2] = {0}, action[2];
    for (uint64_t i = 0; i < DRAWS; i++) {
        count[categorical_draw(logits, 4, rng_uniform(rng_key(1, RNG_TEST, 0), i))]++;
        gaussian_draw(mean, log_std, 2, rng_key(1, RNG_TEST, 1), i, action);
        for (int k = 0; k < 2; k++) sum[k] += action[k], squares[k] += (action[k] - mean[k]) * (action[k] - mean[k]);
    }
    for (int a = 0; a < 4; a++) { /* five standard errors */
        double p = exp(categorical_likelihood(logits, 4, a).logprob);
        check_close(count[a] / DRAWS, p, 5 * sqrt(p * (1 - p) / DRAWS));
    }
    for (int k = 0; k < 2; k++) {
        check_close(sum[k] / DRAWS, mean[k], 5 * exp(log_std[k]) / sqrt(DRAWS));
        check_close(sqrt(squares[k] / DRAWS), exp(log_std[k]), 5 * exp(log_std[k]) / sqrt(2.0 * DRAWS));
    }
    assert_int_equal(categorical_draw(logits, 4, 1 - 0x1p-53), 3);
    assert_int_equal(categorical_draw((double[2]){0, -HUGE_VAL}, 2, 1 - 0x1p-53), 0);
    assert_int_equal(categorical_best((double[3]){1, 2, 2}, 3), 1);
}

/* ---- the exact gradient of a token MDP: 3 tokens, 3 steps, a reward for each of the 27 sequences ---- */

enum { TOKENS = 3, STEPS = 3, SEQUENCES = 27, STATES = 1 + 3 + 9 };

/* State after the first t tokens of sequence s: 0; 1..3; 4..12. */
static int64_t state_of(int64_t s, int64_t t) { return t == 0 ? 0 : t == 1 ? 1 + s / 9 : 4 + s / 3; }

static int64_t token_of(int64_t s, int64_t t) { return t == 0 ? s / 9 : t == 1 ? s / 3 % 3 : s % 3; }

static double probability_of(double logits[STATES][TOKENS], int64_t s) {
    double logprob = 0;
    for (int64_t t = 0; t < STEPS; t++) logprob += categorical_likelihood(logits[state_of(s, t)], TOKENS, token_of(s, t)).logprob;
    return exp(logprob);
}

/* Sum over all sequences of probability x reward. */
static double expected_reward(double logits[STATES][TOKENS], const double *rewards) {
    double sum = 0;
    for (int64_t s = 0; s < SEQUENCES; s++) sum += probability_of(logits, s) * rewards[s];
    return sum;
}

/* Adds weight x the gradient of the loss on sequence s with this advantage, by the logits. */
static void add_sequence(const char *name, double logits[STATES][TOKENS], int64_t s, double advantage, double weight, double grad[STATES][TOKENS]) {
    const int64_t begin[] = {0, STEPS};
    double logprobs[STEPS], advantages[STEPS], by_logprob[STEPS], dlogits[TOKENS];
    for (int64_t t = 0; t < STEPS; t++)
        logprobs[t] = categorical_likelihood(logits[state_of(s, t)], TOKENS, token_of(s, t)).logprob, advantages[t] = advantage;
    PolicyMetrics metrics;
    PolicyLossConfig config = {.clip = 0.2, .aggregation = SEQUENCE_SUM};
    policy_loss(policy_loss_find(name), &config, &(PolicyBatch){.n_sequences = 1, .begin = begin, .logprobs = logprobs, .advantages = advantages},
                by_logprob, &metrics);
    for (int64_t t = 0; t < STEPS; t++) {
        categorical_grad(logits[state_of(s, t)], TOKENS, token_of(s, t), by_logprob[t], 0, dlogits);
        for (int64_t a = 0; a < TOKENS; a++) grad[state_of(s, t)][a] += weight * dlogits[a];
    }
}

/* The expectation over all sequences of each loss's gradient is minus the gradient of the expected reward, with any baseline. */
TEST(gradients_are_unbiased) {
    const char *const losses[] = {"reinforce", "ppo",   "grpo",  "dr_grpo", "dapo",
                                  "gspo",      "cispo", "luspo", "sapo",    "vespo"}; /* all on their first pass */
    const double h = 1e-5;
    double logits[STATES][TOKENS], rewards[SEQUENCES], exact[STATES][TOKENS];
    for (uint64_t i = 0; i < STATES * TOKENS; i++) logits[i / TOKENS][i % TOKENS] = rng_normal(rng_key(2, RNG_TEST, 0), i);
    for (uint64_t s = 0; s < SEQUENCES; s++) rewards[s] = rng_normal(rng_key(2, RNG_TEST, 1), s);
    for (int64_t i = 0; i < STATES * TOKENS; i++) {
        double *x = &logits[i / TOKENS][i % TOKENS], kept = *x;
        *x = kept + h;
        double high = expected_reward(logits, rewards);
        *x = kept - h;
        double low = expected_reward(logits, rewards);
        *x = kept;
        exact[i / TOKENS][i % TOKENS] = -(high - low) / (2 * h);
    }
    for (size_t l = 0; l < COUNT_OF(losses); l++)
        for (double baseline = 0; baseline < 2; baseline++) {
            double grad[STATES][TOKENS] = {{0}};
            for (int64_t s = 0; s < SEQUENCES; s++) add_sequence(losses[l], logits, s, rewards[s] - baseline, probability_of(logits, s), grad);
            check_close_f64(losses[l], &grad[0][0], &exact[0][0], STATES * TOKENS, 1e-9, 0);
        }
    /* REINFORCE on draws agrees within its confidence interval, and so does RLOO on groups of 4. */
    enum { GROUPS = 3000, SIZE = 4 };
    for (int leave_one_out = 0; leave_one_out < 2; leave_one_out++) {
        double mean[STATES][TOKENS] = {{0}}, squares[STATES][TOKENS] = {{0}};
        for (uint64_t g = 0; g < GROUPS; g++) {
            double got[SIZE], advantages[SIZE], grad[STATES][TOKENS] = {{0}};
            int64_t drawn[SIZE];
            for (uint64_t k = 0; k < SIZE; k++) {
                drawn[k] = 0;
                for (int64_t t = 0; t < STEPS; t++) {
                    int64_t place = t == 0 ? 9 : t == 1 ? 3 : 1;
                    drawn[k] += place * categorical_draw(logits[state_of(drawn[k], t)], TOKENS,
                                                         rng_uniform(rng_key(3, RNG_TEST, k), g * STEPS + (uint64_t)t));
                }
                got[k] = advantages[k] = rewards[drawn[k]];
            }
            if (leave_one_out) advantages_leave_one_out(got, SIZE, SIZE, advantages);
            for (int k = 0; k < SIZE; k++) add_sequence("reinforce", logits, drawn[k], advantages[k], 1.0 / SIZE, grad);
            for (int i = 0; i < STATES * TOKENS; i++)
                (&mean[0][0])[i] += (&grad[0][0])[i] / GROUPS, (&squares[0][0])[i] += (&grad[0][0])[i] * (&grad[0][0])[i] / GROUPS;
        }
        for (int i = 0; i < STATES * TOKENS; i++) { /* five standard errors */
            double variance = (&squares[0][0])[i] - (&mean[0][0])[i] * (&mean[0][0])[i];
            check_close((&mean[0][0])[i], (&exact[0][0])[i], 5 * sqrt(variance / GROUPS) + 1e-9);
        }
    }
}

/* ---- losses of Q ---- */

TEST(q_losses_by_differences) {
    enum { N = 12, ACTIONS = 3 };
    const double h = 1e-6;
    double q[N * ACTIONS], targets[N], weights[N], grad[N * ACTIONS], scratch[N * ACTIONS];
    int32_t actions[N];
    bool trained[N];
    for (uint64_t i = 0; i < N * ACTIONS; i++) q[i] = 2 * rng_normal(rng_key(4, RNG_TEST, 0), i);
    for (uint64_t i = 0; i < N; i++)
        targets[i] = rng_normal(rng_key(4, RNG_TEST, 1), i), weights[i] = rng_uniform(rng_key(4, RNG_TEST, 2), i),
        actions[i] = (int32_t)(i % ACTIONS), trained[i] = i % 4 != 1;
    for (int which = 0; which < 4; which++) {
        int64_t n = which == 3 ? N * ACTIONS : N;
#define LOSS(out)                                                       \
    (which < 2    ? td_loss(N, q, targets, weights, which ? 1 : 0, out) \
     : which == 2 ? expectile_loss(N, q, targets, trained, 0.8, out)    \
                  : conservative_loss(N, ACTIONS, q, actions, trained, out))
        (void)LOSS(grad);
        for (int64_t i = 0; i < n; i++) {
            double kept = q[i];
            q[i] = kept + h;
            double high = LOSS(scratch);
            q[i] = kept - h;
            double low = LOSS(scratch);
            q[i] = kept;
            check_close(grad[i], (high - low) / (2 * h), 1e-8);
        }
#undef LOSS
    }
    /* The minimum of the expectile loss over one number: the mean at tau 0.5, near the largest target as tau goes to 1. */
    const double spread[4] = {0, 1, 2, 9}, taus[3] = {0.5, 0.9, 0.999};
    double minima[3], v[4], g[4];
    for (int k = 0; k < 3; k++) {
        double low = 0, high = 9;
        for (int step = 0; step < 100; step++) {
            double middle = (low + high) / 2;
            for (int i = 0; i < 4; i++) v[i] = middle;
            (void)expectile_loss(4, v, spread, NULL, taus[k], g);
            if (g[0] + g[1] + g[2] + g[3] < 0)
                low = middle;
            else
                high = middle;
        }
        minima[k] = low;
    }
    check_close(minima[0], 3, near);
    assert_true(minima[0] < minima[1] && minima[1] < minima[2] && minima[2] > 8.9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(network_losses_equal_golden), cmocka_unit_test(heads_by_differences),    cmocka_unit_test(draws_have_their_distribution),
        cmocka_unit_test(gradients_are_unbiased),      cmocka_unit_test(q_losses_by_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
