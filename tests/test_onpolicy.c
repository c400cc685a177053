/* Policy gradients: heads, losses and steps against golden values in double; estimates against the exact gradient of V of a small MDP; what is learned. */
#include "rl/actor_critic.h"
#include "rl/learn.h"
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- golden/rl/mlp.json ---- */

enum { ROWS = 16, OBS = 4, ACTIONS = 3, WIDTH = 8, MOST = 512 };
static const struct { const char *golden, *own; } names[] = {
    {"l1.weight", "trunk.0.weight"}, {"l1.bias", "trunk.0.bias"}, {"l2.weight", "trunk.2.weight"}, {"l2.bias", "trunk.2.bias"},
    {"pi.weight", "actor.0.weight"}, {"pi.bias", "actor.0.bias"}, {"v.weight", "critic.0.weight"}, {"v.bias", "critic.0.bias"},
};

typedef struct Golden { json_t *root; Arena *arena; Policy policy; OptimizerConfig optimizer; DType dtype; double tolerance; } Golden;

static void fill(const json_t *weights, Policy *policy) {
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        double values[MOST];
        Param *param = params_find(&policy->params, names[i].own);
        assert_non_null(param);
        assert_int_equal(golden_numbers(golden_at(weights, names[i].golden), values, MOST), tensor_count(param->tensor));
        tensor_write(param->tensor, values);
    }
}

static bool golden_begin(Golden *golden, DType dtype) {
    *golden = (Golden){.root = golden_open("rl/mlp.json"), .dtype = dtype, .tolerance = dtype == DT_F64 ? 1e-10 : 1e-5};
    if (!golden->root) return false;
    golden->arena = arena_new(0);
    Space observation = {.size = OBS}, action = {.n = ACTIONS, .size = 1};
    PolicyConfig config = {.n_hidden = 2, .hidden = {WIDTH, WIDTH}, .activation = ACT_TANH, .shared = true, .values = true, .orthogonal = true};
    golden->optimizer = (OptimizerConfig){.name = "adamw", .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-5};
    check_ok(policy_init(&golden->policy, &config, &observation, &action, 1, dtype == DT_F64 ? device_reference() : device_cpu(), dtype, golden->arena));
    fill(golden_at(golden->root, "weights"), &golden->policy);
    return true;
}

static void golden_end(Golden *golden) {
    policy_release(&golden->policy);
    arena_free(golden->arena);
    json_decref(golden->root);
}

static void take(const Golden *golden, const char *key, double *out, size_t n) { assert_int_equal(golden_numbers(golden_at(golden->root, key), out, n), n); }

static void outputs(DType dtype) {
    Golden golden;
    if (!golden_begin(&golden, dtype)) skip();
    double obs[ROWS * OBS], actions[ROWS], want[ROWS * ACTIONS], logprobs[ROWS], entropies[ROWS];
    take(&golden, "obs", obs, ROWS * OBS);
    take(&golden, "actions", actions, ROWS);
    check_ok(policy_forward(&golden.policy, obs, ROWS, POLICY_ACTIONS | POLICY_VALUES, false));
    policy_evaluate(&golden.policy, actions, logprobs, entropies);
    take(&golden, "logits", want, ROWS * ACTIONS);
    check_close_f64("logits", golden.policy.outputs, want, ROWS * ACTIONS, golden.tolerance, golden.tolerance);
    take(&golden, "values", want, ROWS);
    check_close_f64("values", golden.policy.values, want, ROWS, golden.tolerance, golden.tolerance);
    take(&golden, "logprobs", want, ROWS);
    check_close_f64("logprobs", logprobs, want, ROWS, golden.tolerance, golden.tolerance);
    take(&golden, "entropy", want, ROWS);
    check_close_f64("entropy", entropies, want, ROWS, golden.tolerance, golden.tolerance);
    golden_end(&golden);
}

/* The minibatch of a golden loss: the rows that it names, else all. */
static void fill_minibatch(Golden *golden, const json_t *wanted, Minibatch *m, Losses *losses) {
    const json_t *hyper = golden_at(wanted, "hyper"), *chosen = json_object_get(wanted, "minibatch");
    double obs[ROWS * OBS], actions[ROWS], logprobs[ROWS], values[ROWS], old_values[ROWS], advantages[ROWS], returns[ROWS], rows[ROWS];
    bool reinforce = golden_is(wanted, "name", "reinforce"), a2c = golden_is(wanted, "name", "a2c");
    int64_t order[ROWS], n = ROWS;
    for (int64_t i = 0; i < ROWS; i++) order[i] = i;
    if (chosen) n = (int64_t)golden_numbers(chosen, rows, ROWS);
    for (int64_t i = 0; chosen && i < n; i++) order[i] = (int64_t)rows[i];
    take(golden, "obs", obs, ROWS * OBS);
    take(golden, "actions", actions, ROWS);
    take(golden, "old_logprobs", logprobs, ROWS);
    take(golden, "advantages", advantages, ROWS);
    take(golden, "returns", returns, ROWS);
    take(golden, "old_values", old_values, ROWS);
    take(golden, "values", values, ROWS);
    for (int i = 0; i < ROWS && (a2c || reinforce); i++) advantages[i] = returns[i] - (a2c ? values[i] : 0);
    Rollout rollout = {.batch = {.obs = obs, .logprobs = logprobs, .values = old_values}, .actions = actions, .advantages = advantages, .returns = returns};
    check_ok(minibatch_init(m, ROWS, OBS, 1, !reinforce, golden->arena));
    minibatch_take(m, &rollout, order, n);
    if (golden_number(hyper, "normalize_advantages", 0) != 0) advantages_normalise(m->advantages, NULL, m->n, NORMALISE_STD, 1e-8);
    *losses = (Losses){
        .policy = policy_loss_find(json_string_value(golden_at(wanted, "name"))), .first_pass = a2c || reinforce, .clip = golden_number(hyper, "clip", 0),
        .clip_value = golden_number(hyper, "value_clip", 0), .ent_coef = golden_number(hyper, "ent_coef", 0), .vf_coef = golden_number(hyper, "vf_coef", 0),
    };
    if (a2c || golden_number(hyper, "half_in_value_loss", 1) == 0) losses->vf_coef *= 2; /* ours has the half */
}

static void check_loss(Golden *golden, const json_t *wanted) {
    const char *name = json_string_value(golden_at(wanted, "name"));
    double tolerance = golden->tolerance, want[MOST], got[MOST];
    Policy *policy = &golden->policy;
    Measures measures = {0};
    Minibatch minibatch;
    Losses losses;
    fill(golden_at(golden->root, "weights"), policy);
    for (size_t i = 0; i < policy->params.n; i++) policy->params.items[i].state[0] = policy->params.items[i].state[1] = NULL;
    check_ok(optimizer_init(&golden->optimizer, &policy->params, golden->arena));
    params_zero_grad(&policy->params);
    fill_minibatch(golden, wanted, &minibatch, &losses);
    check_ok(actor_critic_gradient(policy, &minibatch, &losses, &measures, NULL));
    check_close(measures.loss, golden_number(wanted, "loss", NAN), 4 * tolerance);
    if (strcmp(name, "ppo") == 0) {
        check_close(measures.approx_kl, golden_number(wanted, "approx_kl", NAN), tolerance);
        check_close(measures.clip_fraction, golden_number(wanted, "clip_fraction", NAN), 0);
    }
    double norm = params_grad_norm(&policy->params);
    check_close(norm, golden_number(wanted, "grad_norm", NAN), 4 * tolerance);
    const json_t *grads = golden_at(wanted, "grads"), *after = golden_at(wanted, "weights_after_clip_0.5_and_one_adam_step_lr_2.5e-4_eps_1e-5");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Param *param = params_find(&policy->params, names[i].own);
        size_t n = golden_numbers(golden_at(grads, names[i].golden), want, MOST);
        tensor_read(param->tensor->grad, got);
        check_close_f64(names[i].own, got, want, n, tolerance, tolerance);
    }
    optimizer_step(&golden->optimizer, &policy->params, clip_scale(norm, 0.5), 2.5e-4, 1);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Param *param = params_find(&policy->params, names[i].own);
        size_t n = golden_numbers(golden_at(after, names[i].golden), want, MOST);
        tensor_read(param->tensor, got);
        check_close_f64(names[i].own, got, want, n, tolerance, tolerance);
    }
}

static void losses_of(DType dtype) {
    Golden golden;
    if (!golden_begin(&golden, dtype)) skip();
    const json_t *losses = golden_at(golden.root, "losses"), *wanted;
    size_t i;
    int compared = 0;
    json_array_foreach(losses, i, wanted) {
        if (golden_is(wanted, "name", "dqn")) continue;
        check_loss(&golden, wanted);
        compared++;
    }
    assert_int_equal(compared, 5);
    golden_end(&golden);
}

static void outputs_are_the_golden_ones(void **state) {
    (void)state;
    outputs(DT_F64);
    outputs(DT_F32);
}

static void losses_gradients_and_steps_are_the_golden_ones(void **state) {
    (void)state;
    losses_of(DT_F64);
    losses_of(DT_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_the_golden_ones),
        cmocka_unit_test(losses_gradients_and_steps_are_the_golden_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
