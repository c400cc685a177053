/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "rl/core/q_losses.h"
#include "rl/learn/q_network.h"

void observation_write(const Space *space, const double *observations, int64_t n, Tensor *x) {
    int64_t width = space_width(space), stride = tensor_width(x);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++)
            tensor_set(x, i * stride + k, space->n > 0 ? (k == (int64_t)observations[i]) : observations[i * width + k]);
}

MlpConfig network_config(const PolicyConfig *shape, int64_t in, int64_t out) {
    return (MlpConfig){
        .in = in,
        .out = out,
        .n_hidden = shape->n_hidden,
        .hidden = shape->hidden,
        .activation = shape->activation,
        .init = shape->orthogonal ? MLP_ORTHOGONAL : MLP_UNIFORM,
        .hidden_gain = sqrt(2.0),
        .out_gain = 1,
    };
}

/* ---- networks ---- */

enum { NUMBER_TRUNK, NUMBER_Q, NUMBER_VALUE }; /* numbers for the random initialisation of each part */

typedef struct Making {
    QNetwork *network;
    bool trained;
    uint64_t seed;
    const Device *device;
    DType dtype;
    Arena *arena;
} Making;

static Status q_network_make(const Making *m, Mlp *mlp, const char *name, int number, int64_t in, int64_t out, int first, int n_hidden, bool trunk) {
    MlpConfig config = network_config(&m->network->config.shape, in, out);
    config.hidden += first;
    config.n_hidden = n_hidden;
    config.activate_last = trunk;
    return mlp_init(mlp, &config, name, m->trained, m->seed, (uint64_t)number, m->dtype, m->device, m->arena, &m->network->params);
}

Status q_network_init(QNetwork *network, const QNetworkConfig *config, bool trained, uint64_t seed, const Device *device, DType dtype, Arena *arena) {
    *network = (QNetwork){.config = *config};
    Making making = {network, trained, seed, device, dtype, arena};
    int n = config->shape.n_hidden, shared = n - 1;
    int64_t in = space_width(&config->observation);
    if (!config->dueling) return q_network_make(&making, &network->q, "q", NUMBER_Q, in, config->n_actions, 0, n, false);
    if (n < 1) return status_fail(ST_CONFIG, "'rl.dueling' needs a hidden layer in 'policy.hidden'");
    network->has_trunk = shared > 0;
    if (network->has_trunk)
        TRY(q_network_make(&making, &network->trunk, "trunk", NUMBER_TRUNK, in, config->shape.hidden[shared - 1], 0, shared - 1, true));
    if (network->has_trunk) in = network->trunk.out;
    TRY(q_network_make(&making, &network->q, "advantage", NUMBER_Q, in, config->n_actions, shared, 1, false));
    return q_network_make(&making, &network->value, "value", NUMBER_VALUE, in, 1, shared, 1, false);
}

void q_network_release(QNetwork *network) { params_release(&network->params); }

void q_network_blend(const QNetwork *from, double tau, QNetwork *to) {
    mlp_blend(&from->q, tau, &to->q);
    if (from->config.dueling) mlp_blend(&from->value, tau, &to->value);
    if (from->has_trunk) mlp_blend(&from->trunk, tau, &to->trunk);
}

/* Q = V + A - mean A */
static void join_streams(const Tensor *value, double *q, int64_t n, int64_t n_actions) {
    for (int64_t i = 0; i < n; i++, q += n_actions) {
        double mean = 0;
        for (int64_t a = 0; a < n_actions; a++) mean += q[a] / (double)n_actions;
        for (int64_t a = 0; a < n_actions; a++) q[a] += tensor_get(value, i) - mean;
    }
}

Status q_network_forward(QNetwork *network, Tape *tape, const double *observations, int64_t n, bool learn, double *q) {
    const QNetworkConfig *config = &network->config;
    tape_reset(tape);
    tape_record(tape, learn);
    Tensor *x = space_input(&config->observation, tape, observations, n);
    if (network->has_trunk) x = mlp_forward(&network->trunk, tape, x);
    network->q_output = mlp_forward(&network->q, tape, x);
    network->v_output = config->dueling ? mlp_forward(&network->value, tape, x) : NULL;
    TRY(tape_status(tape));
    if (!device_computes(tape_device(tape))) return ST_OK;
    tensor_read(network->q_output, q);
    if (config->dueling) join_streams(network->v_output, q, n, config->n_actions);
    for (int64_t i = 0; i < n * config->n_actions; i++)
        if (!isfinite(q[i]))
            return status_hint(status_fail(ST_NUMERIC, "an action's value is not finite: the network has diverged"), "lower train.learning_rate");
    space_mask(&(Space){.n = config->n_actions, .size = 1, .allowed = config->allowed}, observations, n, q);
    return ST_OK;
}

Status q_network_backward(QNetwork *network, Tape *tape, const double *dq) {
    int64_t n = tensor_rows(network->q_output), n_actions = network->config.n_actions;
    if (!network->config.dueling) {
        tensor_seed_grad(tape, network->q_output, dq);
        return tape_backward(tape);
    }
    double *dvalue = arena_zero(tape_arena(tape), (size_t)n * sizeof *dvalue),
           *dadvantage = arena_alloc(tape_arena(tape), (size_t)(n * n_actions) * sizeof *dadvantage);
    if (!dvalue || !dadvantage) return ST_RESOURCE;
    for (int64_t i = 0; i < n && dq; i++) {
        for (int64_t a = 0; a < n_actions; a++) dvalue[i] += dq[i * n_actions + a];
        for (int64_t a = 0; a < n_actions; a++) dadvantage[i * n_actions + a] = dq[i * n_actions + a] - dvalue[i] / (double)n_actions;
    }
    tensor_seed_grad(tape, network->q_output, dadvantage);
    tensor_seed_grad(tape, network->v_output, dvalue);
    return tape_backward(tape);
}

Status q_network_plan(QNetwork *network, const Tape *tape, int64_t acting, int64_t learned, size_t *bytes) {
    Tape *meta = tape_new(device_plan(tape_device(tape)), tape_compute(tape), 0);
    *bytes = 0;
    if (!meta) return status_fail(ST_RESOURCE, "out of memory for a plan");
    Status status = q_network_forward(network, meta, NULL, acting, false, NULL);
    if (status == ST_OK) status = q_network_forward(network, meta, NULL, learned, true, NULL);
    if (status == ST_OK) status = q_network_backward(network, meta, NULL);
    *bytes = tape_peak_bytes(meta);
    tape_free(meta);
    return status;
}

void state_copy(StateList *states, const char *kind, const Params *params) {
    for (size_t i = 0; i < params->n; i++) state_of_param(states, kind, &params->items[i], params->items[i].tensor);
}

/* ---- learning ---- */

static double *q_network_numbers(Arena *arena, int64_t n) { return arena_alloc(arena, (size_t)n * sizeof(double)); }

Status q_loss_init(QLoss *l, int64_t n, int64_t n_actions, Arena *arena) {
    *l = (QLoss){.huber = 0};
    return (l->q = q_network_numbers(arena, n * n_actions)) && (l->next_q = q_network_numbers(arena, n * n_actions)) &&
                   (l->choose_q = q_network_numbers(arena, n * n_actions)) && (l->dq = q_network_numbers(arena, n * n_actions)) &&
                   (l->chosen = q_network_numbers(arena, n)) && (l->targets = q_network_numbers(arena, n)) &&
                   (l->grad = q_network_numbers(arena, n)) && (l->errors = q_network_numbers(arena, n))
               ? ST_OK
               : ST_RESOURCE;
}

Status q_learn(QLoss *l, QNetwork *online, QNetwork *target, Tape *tape, const ReplayBatch *batch) {
    const int64_t n = batch->n, A = online->config.n_actions;
    TRY(q_network_forward(target, tape, batch->next_observations, n, false, l->next_q));
    if (l->double_q) TRY(q_network_forward(online, tape, batch->next_observations, n, false, l->choose_q));
    TRY(q_network_forward(online, tape, batch->observations, n, true, l->q));
    l->mean_q = 0;
    for (int64_t i = 0; i < n; i++) {
        double discount = batch->discounts[i];
        l->targets[i] = q_target(batch->rewards[i], discount, discount == 0, l->next_q + i * A, l->double_q ? l->choose_q + i * A : NULL, A);
        l->chosen[i] = l->q[i * A + (int64_t)batch->actions[i]];
        l->errors[i] = l->targets[i] - l->chosen[i];
        l->mean_q += l->chosen[i] / (double)n;
    }
    l->loss = td_loss(n, l->chosen, l->targets, batch->weights, l->huber, l->grad);
    memset(l->dq, 0, (size_t)(n * A) * sizeof *l->dq);
    for (int64_t i = 0; i < n; i++) l->dq[i * A + (int64_t)batch->actions[i]] = l->grad[i];
    return q_network_backward(online, tape, l->dq);
}

/* ---- steps ---- */

Status replay_stepper_init(const Learner *learner, Stepper *stepper) {
    const Recipe *recipe = learner->recipe;
    double per_update = (double)recipe->rl_num_steps * (double)recipe->rl_num_envs;
    if (learner->total_steps > 0 && recipe->rl_learning_starts > learner->total_steps) {
        status_fail(ST_CONFIG, "nothing would be learned: 'rl.learning_starts' is %lld, but the run ends at step %lld",
                    (long long)recipe->rl_learning_starts, (long long)learner->total_steps);
        return status_hint(ST_CONFIG, "raise rl.total_steps, or lower rl.learning_starts");
    }
    return stepper_init(stepper, recipe, (int64_t)ceil((double)learner->total_steps / per_update));
}

Status replay_step(const Stepper *stepper, const Learner *learner, Params *params, int64_t number, double *norm) {
    *norm = stepper_norm(stepper, params);
    if (!isfinite(*norm)) {
        const Param *param = params_nonfinite(params, true);
        status_fail(ST_NUMERIC, "the gradient of '%s' holds a NaN or an infinity in update %lld", param ? param->name : "?",
                    (long long)learner->updates + 1);
        return status_hint(ST_NUMERIC, "lower train.learning_rate, or the rewards");
    }
    stepper_update(stepper, params, *norm, stepper_rate(stepper, learner->updates), number);
    return ST_OK;
}
