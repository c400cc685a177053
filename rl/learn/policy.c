/* SPDX-License-Identifier: Apache-2.0 */
/* Policy and value networks and their action distributions. */
#include "rl/learn/policy.h"

#include <math.h>
#include <string.h>

/* ---- spaces ---- */

int64_t space_width(const Space *space) { return space->n > 0 ? space->n : space->size; }

Tensor *space_input(const Space *space, Tape *tape, const double *observations, int64_t n) {
    int64_t width = space_width(space);
    Tensor *x = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){n, width});
    if (!x || !device_computes(tape_device(tape))) return x;
    if (space->n == 0) {
        tensor_write(x, observations);
        return x;
    }
    tape_device(tape)->fill(x, 0);
    for (int64_t i = 0; i < n; i++) tensor_set(x, i * width + (int64_t)observations[i], 1);
    return x;
}

void space_clip(const Space *space, double *actions, int64_t n) {
    for (int64_t i = 0; space->n == 0 && i < n * space->size; i++) {
        int64_t k = i % space->size;
        actions[i] = actions[i] < space->low[k] ? space->low[k] : actions[i] > space->high[k] ? space->high[k] : actions[i];
    }
}

void space_mask(const Space *actions, const double *observations, int64_t n, double *values) {
    for (int64_t i = 0; actions->allowed && i < n; i++)
        for (int64_t a = 0; a < actions->n; a++)
            if (!space_allows(actions, observations[i], a)) values[i * actions->n + a] = -(double)INFINITY;
}

/* ---- initialisation ---- */

Status policy_config(const Recipe *recipe, bool values, PolicyConfig *config) {
    const RealList *hidden = &recipe->policy_hidden;
    *config = (PolicyConfig){
        .n_hidden = (int)MIN(hidden->n, (size_t)MLP_MAX_LAYERS),
        .activation = recipe->policy_activation == POLICY_ACTIVATION_RELU ? ACT_RELU : ACT_TANH,
        .orthogonal = recipe->policy_orthogonal,
        .shared = recipe->policy_shared,
        .values = values,
        .log_std = recipe->policy_log_std_init,
    };
    if (hidden->n >= MLP_MAX_LAYERS)
        return status_fail(ST_CONFIG, "'policy.hidden' has %zu layers, at most %d are possible", hidden->n, MLP_MAX_LAYERS - 1);
    for (int i = 0; i < config->n_hidden; i++) {
        config->hidden[i] = (int64_t)hidden->items[i];
        if ((double)config->hidden[i] != hidden->items[i])
            return status_fail(ST_CONFIG, "width %g in 'policy.hidden' is not an integer", hidden->items[i]);
    }
    return ST_OK;
}

enum { NUMBER_TRUNK, NUMBER_ACTOR, NUMBER_CRITIC }; /* numbers for the random initialisation of each network */

typedef struct Making {
    const PolicyConfig *config;
    uint64_t seed;
    const Device *device;
    DType dtype;
    Arena *arena;
} Making;

static Status make_network(Policy *policy, const Making *making, Mlp *mlp, const char *name, int number, int64_t out, double out_gain) {
    const PolicyConfig *config = making->config;
    bool is_trunk = number == NUMBER_TRUNK;
    MlpConfig network = {
        .in = space_width(&policy->observation),
        .out = out,
        .n_hidden = config->n_hidden,
        .hidden = config->hidden,
        .activation = config->activation,
        .init = config->orthogonal ? MLP_ORTHOGONAL : MLP_UNIFORM,
        .hidden_gain = sqrt(2.0),
        .out_gain = out_gain,
        .activate_last = is_trunk,
    };
    if (is_trunk)
        network.n_hidden--; /* the trunk ends with the last hidden layer */
    else if (config->shared)
        network.in = policy->trunk.out, network.n_hidden = 0;
    return mlp_init(mlp, &network, name, true, making->seed, (uint64_t)number, making->dtype, making->device, making->arena, &policy->params);
}

static Status make_log_std(Policy *policy, const Making *making) {
    policy->log_std = tensor_new(making->arena, making->device, making->dtype, 1, &policy->action.size);
    Param *param = policy->log_std ? params_add(&policy->params, "log_std", policy->log_std, PARAM_BASE) : NULL;
    if (!param) return ST_RESOURCE;
    policy->log_std->name = param->name;
    param->decay = false;
    making->device->fill(policy->log_std, making->config->log_std);
    return params_train(param, making->arena);
}

Status policy_init(Policy *policy, const PolicyConfig *config, const Space *observation, const Space *action, uint64_t seed, const Device *device,
                   DType dtype, Arena *arena) {
    Making making = {config, seed, device, dtype, arena};
    *policy = (Policy){.observation = *observation,
                       .action = *action,
                       .gaussian = action->n == 0,
                       .has_values = config->values,
                       .shared = config->shared && config->n_hidden > 0};
    policy->tape = tape_new(device, dtype, 0);
    policy->value_tape = policy->shared ? policy->tape : tape_new(device, dtype, 0);
    if (!policy->tape || !policy->value_tape) return status_fail(ST_RESOURCE, "out of memory for a policy");
    if (config->shared && config->n_hidden == 0) return status_fail(ST_CONFIG, "'policy.shared' needs a hidden layer in 'policy.hidden'");
    if (policy->shared) TRY(make_network(policy, &making, &policy->trunk, "trunk", NUMBER_TRUNK, config->hidden[config->n_hidden - 1], sqrt(2.0)));
    TRY(make_network(policy, &making, &policy->actor, "actor", NUMBER_ACTOR, space_width(action), 0.01));
    if (policy->gaussian) TRY(make_log_std(policy, &making));
    policy->first_of_critic = policy->params.n;
    return config->values ? make_network(policy, &making, &policy->critic, "critic", NUMBER_CRITIC, 1, 1) : ST_OK;
}

Params policy_part(const Policy *policy, bool critic) {
    size_t first = policy->first_of_critic;
    return critic ? (Params){.items = policy->params.items + first, .n = policy->params.n - first}
                  : (Params){.items = policy->params.items, .n = first};
}

void policy_release(Policy *policy) {
    params_release(&policy->params);
    if (policy->value_tape != policy->tape) tape_free(policy->value_tape);
    tape_free(policy->tape);
    policy->tape = policy->value_tape = NULL;
}

/* ---- forward ---- */

static Status read_output(Tape *tape, const Tensor *tensor, const char *what, double **values) {
    TRY(tape_status(tape));
    int64_t count = tensor_count(tensor);
    *values = arena_alloc(tape_arena(tape), (size_t)count * sizeof **values);
    if (!*values) return ST_RESOURCE;
    if (!device_computes(tape_device(tape))) return ST_OK;
    tensor_read(tensor, *values);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite((*values)[i])) {
            status_fail(ST_NUMERIC, "%s is not finite: the network has diverged", what);
            return status_hint(ST_NUMERIC, "lower train.learning_rate, or normalise observations and rewards");
        }
    return ST_OK;
}

static Status read_log_std(Policy *policy) {
    policy->log_stds = arena_alloc(tape_arena(policy->tape), (size_t)policy->action.size * sizeof *policy->log_stds);
    if (!policy->log_stds) return ST_RESOURCE;
    tensor_read(policy->log_std, policy->log_stds);
    return ST_OK;
}

static Tensor *begin_pass(const Policy *policy, Tape *tape, const double *observations, bool learn) {
    tape_reset(tape);
    tape_record(tape, learn);
    return space_input(&policy->observation, tape, observations, policy->n);
}

static Status say_actions(Policy *policy, const double *observations, Tensor *x) {
    policy->output = mlp_forward(&policy->actor, policy->tape, x);
    TRY(read_output(policy->tape, policy->output, "the policy's output", &policy->outputs));
    if (observations) space_mask(&policy->action, observations, policy->n, policy->outputs);
    return policy->gaussian ? read_log_std(policy) : ST_OK;
}

static Status say_values(Policy *policy, Tensor *x) {
    policy->value = mlp_forward(&policy->critic, policy->value_tape, x);
    return read_output(policy->value_tape, policy->value, "an estimated value", &policy->values);
}

bool policy_has_halves(const Policy *policy) { return policy->has_values && !policy->shared; }

Status policy_forward_actions(Policy *policy, const double *observations, bool learn) {
    return say_actions(policy, observations, begin_pass(policy, policy->tape, observations, learn));
}

Status policy_forward_values(Policy *policy, const double *observations, bool learn) {
    return say_values(policy, begin_pass(policy, policy->value_tape, observations, learn));
}

Status policy_forward(Policy *policy, const double *observations, int64_t n, int what, bool learn) {
    policy->n = n;
    policy->output = policy->value = NULL;
    if (policy->shared) {
        Tensor *x = mlp_forward(&policy->trunk, policy->tape, begin_pass(policy, policy->tape, observations, learn));
        if (what & POLICY_ACTIONS) TRY(say_actions(policy, observations, x));
        return what & POLICY_VALUES ? say_values(policy, x) : ST_OK;
    }
    if (what & POLICY_ACTIONS) TRY(policy_forward_actions(policy, observations, learn));
    return what & POLICY_VALUES ? policy_forward_values(policy, observations, learn) : ST_OK;
}

/* ---- actions ---- */

static Likelihood likelihood(const Policy *policy, int64_t row, const double *action) {
    int64_t width = space_width(&policy->action);
    const double *output = policy->outputs + row * width;
    return policy->gaussian ? gaussian_likelihood(output, policy->log_stds, width, action) : categorical_likelihood(output, width, (int64_t)*action);
}

void policy_sample(const Policy *policy, RngKey key, double *actions, double *logprobs) {
    int64_t width = space_width(&policy->action);
    for (int64_t r = 0; r < policy->n; r++) {
        const double *output = policy->outputs + r * width;
        double *action = actions + r * policy->action.size;
        if (policy->gaussian)
            gaussian_draw(output, policy->log_stds, width, key, (uint64_t)r, action);
        else
            *action = (double)categorical_draw(output, width, rng_uniform(key, (uint64_t)r));
        logprobs[r] = likelihood(policy, r, action).logprob;
    }
}

void policy_mode(const Policy *policy, double *actions) {
    int64_t width = space_width(&policy->action);
    if (policy->gaussian)
        memcpy(actions, policy->outputs, (size_t)(policy->n * width) * sizeof *actions);
    else
        for (int64_t r = 0; r < policy->n; r++) actions[r] = (double)categorical_best(policy->outputs + r * width, width);
}

void policy_evaluate(const Policy *policy, const double *actions, double *logprobs, double *entropies) {
    for (int64_t r = 0; r < policy->n; r++) {
        Likelihood now = likelihood(policy, r, actions + r * policy->action.size);
        logprobs[r] = now.logprob;
        entropies[r] = now.entropy;
    }
}

/* ---- backward ---- */

/* actions NULL: only measures memory. */
static Status seed_actions(Policy *policy, const double *actions, const double *dlogprobs, double dentropy) {
    int64_t width = space_width(&policy->action);
    double *doutput = arena_alloc(tape_arena(policy->tape), (size_t)(policy->n * width) * sizeof *doutput);
    double *dlog_std = arena_zero(tape_arena(policy->tape), (size_t)(2 * width) * sizeof *dlog_std);
    if (!doutput || !dlog_std) return ST_RESOURCE;
    double *of_row = dlog_std + width;
    for (int64_t r = 0; r < policy->n && actions; r++) {
        const double *output = policy->outputs + r * width, *action = actions + r * policy->action.size;
        if (!policy->gaussian) {
            categorical_grad(output, width, (int64_t)*action, dlogprobs[r], dentropy, doutput + r * width);
            continue;
        }
        gaussian_grad(output, policy->log_stds, width, action, dlogprobs[r], dentropy, doutput + r * width, of_row);
        for (int64_t i = 0; i < width; i++) dlog_std[i] += of_row[i];
    }
    tensor_seed_grad(policy->tape, policy->output, doutput);
    if (policy->gaussian) tensor_seed_grad(policy->tape, policy->log_std, dlog_std);
    return ST_OK;
}

Status policy_backward_actions(Policy *policy, const double *actions, const double *dlogprobs, double dentropy) {
    TRY(seed_actions(policy, actions, dlogprobs, dentropy));
    return tape_backward(policy->tape);
}

Status policy_backward_values(Policy *policy, const double *dvalues) {
    tensor_seed_grad(policy->value_tape, policy->value, dvalues);
    return tape_backward(policy->value_tape);
}

Status policy_backward(Policy *policy, const double *actions, const double *dlogprobs, double dentropy, const double *dvalues) {
    if (policy->shared && dvalues) tensor_seed_grad(policy->tape, policy->value, dvalues);
    TRY(policy_backward_actions(policy, actions, dlogprobs, dentropy));
    return dvalues && !policy->shared ? policy_backward_values(policy, dvalues) : ST_OK;
}

/* ---- memory ---- */

static Status largest_passes(Policy *planned, const PolicyRows *rows) {
    const double nothing[1] = {0};
    TRY(policy_forward(planned, NULL, rows->acting, POLICY_ACTIONS, false));
    if (planned->has_values) TRY(policy_forward(planned, NULL, rows->valued, POLICY_VALUES, false));
    TRY(policy_forward(planned, NULL, rows->learned, planned->has_values ? POLICY_ACTIONS | POLICY_VALUES : POLICY_ACTIONS, true));
    return policy_backward(planned, NULL, NULL, 0, planned->has_values ? nothing : NULL);
}

Status policy_plan(const Policy *policy, const PolicyRows *rows, size_t *bytes) {
    Policy planned = *policy;
    const Device *device = device_plan(tape_device(policy->tape));
    DType compute = tape_compute(policy->tape);
    planned.tape = tape_new(device, compute, 0);
    planned.value_tape = policy->shared ? planned.tape : tape_new(device, compute, 0);
    Status status = planned.tape && planned.value_tape ? largest_passes(&planned, rows) : status_fail(ST_RESOURCE, "out of memory for a plan");
    *bytes = planned.tape ? tape_peak_bytes(planned.tape) : 0;
    if (planned.value_tape && !policy->shared) *bytes += tape_peak_bytes(planned.value_tape);
    if (!policy->shared) tape_free(planned.value_tape);
    tape_free(planned.tape);
    return status;
}
