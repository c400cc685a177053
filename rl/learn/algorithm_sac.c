/* SPDX-License-Identifier: Apache-2.0 */
/* Soft actor-critic: two critics learn entropy-regularised values from replay, the actor maximises the smaller of them, and the entropy coefficient
 * is tuned automatically. Source: Haarnoja et al., arXiv 1812.05905, algorithm 1. Actions are learned in (-1, 1) and stretched to the environment's
 * bounds. */
#include <math.h>
#include <string.h>

#include "rl/core/q_losses.h"
#include "rl/learn/q_network.h"
#include "rl/learn/squashed.h"

enum { NUMBER_ACTOR, NUMBER_CRITIC }; /* numbers for the random initialisation; each critic has its own */

/* Q_1 and Q_2 of (s, a). `path` has the same weights without gradients, for the actor's loss, whose gradient passes through them to the action. */
typedef struct Critics {
    Mlp Q[2], path[2], target[2];
    Params params, target_params;
} Critics;

typedef struct Sac {
    int64_t n, width, size; /* batch size; size of an observation as network input; size of an action */
    Mlp pi;                 /* (mean, log std) */
    Params pi_params, price_params;
    Critics critics;
    Tensor *log_alpha; /* learned entropy coefficient; NULL: rl.ent_coef is fixed */
    double target_entropy, tau;
    Replay D;
    ReplayBatch minibatch;
    Stepper stepper;
    Tape *tape;
    Tensor *pairs;                             /* (n, width + size), with a gradient: critics' input for the actor's actions */
    double *output, *doutput;                  /* (n, 2 size) */
    double *noise, *actions, *daction;         /* (n, size) */
    double *logprobs, *targets, *q[2], *dq[2]; /* (n) */
    double *chosen, *stretched;                /* (copies, size) */
    int64_t target_every, optimizer_steps;
    struct {
        int64_t n;
        double q_loss, pi_loss, entropy, alpha, grad_norm, q;
    } sums;
} Sac;

static double alpha_of(const Sac *sac, const Recipe *recipe) { return sac->log_alpha ? exp(tensor_get(sac->log_alpha, 0)) : recipe->rl_ent_coef; }

static Status check_finite(const double *values, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return status_hint(status_fail(ST_NUMERIC, "%s is not finite: the network has diverged", what), "lower train.learning_rate");
    return ST_OK;
}

/* ---- networks ---- */

static Tensor *pi_forward(Sac *sac, const Space *observation, const double *observations, int64_t n, bool learn) {
    tape_reset(sac->tape);
    tape_record(sac->tape, learn);
    return mlp_forward(&sac->pi, sac->tape, space_input(observation, sac->tape, observations, n));
}

/* a ~ pi(s) and log pi(a | s), from noise (n, size); each row of `output` has the means, then the log standard deviations. */
static Status pi_sample(Sac *sac, const Tensor *result, int64_t n, double *output, const double *noise, double *actions, double *logprobs) {
    const int64_t size = sac->size;
    TRY(tape_status(sac->tape));
    tensor_read(result, output);
    TRY(check_finite(output, n * 2 * size, "the policy's output"));
    for (int64_t i = 0; i < n; i++)
        logprobs[i] = squashed_sample(output + i * 2 * size, output + i * 2 * size + size, noise + i * size, size, actions + i * size);
    return ST_OK;
}

/* Writes the columns after the observation. */
static void write_actions(const Sac *sac, const double *actions, Tensor *pairs) {
    for (int64_t i = 0; i < sac->n; i++)
        for (int64_t k = 0; k < sac->size; k++) tensor_set(pairs, i * (sac->width + sac->size) + sac->width + k, actions[i * sac->size + k]);
}

static Status read_q(Sac *sac, Tensor *const result[2]) {
    TRY(tape_status(sac->tape));
    for (int j = 0; j < 2; j++) {
        tensor_read(result[j], sac->q[j]);
        TRY(check_finite(sac->q[j], sac->n, "an action's value"));
    }
    return ST_OK;
}

static void draw_noise(Sac *sac, RngKey key) {
    for (int64_t i = 0; i < sac->n * sac->size; i++) sac->noise[i] = rng_normal(key, (uint64_t)i);
}

/* ---- algorithm 1 ---- */

/* y = r + gamma (min_j Q'_j(s', a') - alpha log pi(a' | s')), a' ~ pi(s') */
static Status make_targets(Learner *learner, RngKey key) {
    Sac *sac = learner->self;
    const ReplayBatch *b = &sac->minibatch;
    const Space *space = &learner->env->observation;
    double alpha = alpha_of(sac, learner->recipe);
    draw_noise(sac, key);
    TRY(pi_sample(sac, pi_forward(sac, space, b->next_observations, sac->n, false), sac->n, sac->output, sac->noise, sac->actions, sac->logprobs));
    observation_write(space, b->next_observations, sac->n, sac->pairs);
    write_actions(sac, sac->actions, sac->pairs);
    tape_reset(sac->tape);
    TRY(read_q(
        sac, (Tensor *[]){mlp_forward(&sac->critics.target[0], sac->tape, sac->pairs), mlp_forward(&sac->critics.target[1], sac->tape, sac->pairs)}));
    for (int64_t i = 0; i < sac->n; i++)
        sac->targets[i] = b->rewards[i] + b->discounts[i] * (fmin(sac->q[0][i], sac->q[1][i]) - alpha * sac->logprobs[i]);
    return ST_OK;
}

/* Each critic: half the mean of (Q(s, a) - y)^2. */
static Status learn_critics(Learner *learner) {
    Sac *sac = learner->self;
    const ReplayBatch *b = &sac->minibatch;
    double norm;
    tape_reset(sac->tape);
    tape_record(sac->tape, true);
    Tensor *pairs = tape_tensor(sac->tape, DT_F32, 2, sac->pairs->shape);
    if (!pairs) return tape_status(sac->tape);
    observation_write(&learner->env->observation, b->observations, sac->n, pairs);
    write_actions(sac, b->actions, pairs);
    Tensor *results[2] = {mlp_forward(&sac->critics.Q[0], sac->tape, pairs), mlp_forward(&sac->critics.Q[1], sac->tape, pairs)};
    TRY(read_q(sac, results));
    for (int j = 0; j < 2; j++) {
        sac->sums.q_loss += td_loss(sac->n, sac->q[j], sac->targets, NULL, 0, sac->dq[j]) / 2;
        for (int64_t i = 0; i < sac->n; i++) sac->dq[j][i] /= 2, sac->sums.q += sac->q[j][i] / (double)(2 * sac->n);
        tensor_seed_grad(sac->tape, results[j], sac->dq[j]);
    }
    TRY(tape_backward(sac->tape));
    TRY(replay_step(&sac->stepper, learner, &sac->critics.params, sac->optimizer_steps, &norm));
    sac->sums.grad_norm += norm;
    return ST_OK;
}

/* d min_j Q_j(s, a) / d a at the actions that the actor has just chosen: through the smaller critic of each row. */
static Status value_gradient(Learner *learner) {
    Sac *sac = learner->self;
    tape_reset(sac->tape);
    tape_record(sac->tape, true);
    observation_write(&learner->env->observation, sac->minibatch.observations, sac->n, sac->pairs);
    write_actions(sac, sac->actions, sac->pairs);
    tape_device(sac->tape)->fill(sac->pairs->grad, 0);
    Tensor *results[2] = {mlp_forward(&sac->critics.path[0], sac->tape, sac->pairs), mlp_forward(&sac->critics.path[1], sac->tape, sac->pairs)};
    TRY(read_q(sac, results));
    for (int64_t i = 0; i < sac->n; i++)
        for (int j = 0; j < 2; j++) sac->dq[j][i] = (sac->q[1][i] < sac->q[0][i]) == (j == 1);
    for (int j = 0; j < 2; j++) tensor_seed_grad(sac->tape, results[j], sac->dq[j]);
    TRY(tape_backward(sac->tape));
    for (int64_t i = 0; i < sac->n; i++)
        for (int64_t k = 0; k < sac->size; k++)
            sac->daction[i * sac->size + k] = tensor_get(sac->pairs->grad, i * (sac->width + sac->size) + sac->width + k);
    return ST_OK;
}

/* Actor loss: mean of alpha log pi(a | s) - min_j Q_j(s, a), with a from pi(s) and the noise held fixed. */
static Status learn_actor(Learner *learner, RngKey key, double *mean_logprob) {
    Sac *sac = learner->self;
    const int64_t n = sac->n, size = sac->size;
    const Space *space = &learner->env->observation;
    double alpha = alpha_of(sac, learner->recipe), share = 1 / (double)n, norm;
    draw_noise(sac, key);
    TRY(pi_sample(sac, pi_forward(sac, space, sac->minibatch.observations, n, false), n, sac->output, sac->noise, sac->actions, sac->logprobs));
    TRY(value_gradient(learner));
    *mean_logprob = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < size; k++) sac->daction[i * size + k] *= -share;
        squashed_grad(sac->output + i * 2 * size, sac->output + i * 2 * size + size, sac->noise + i * size, size, alpha * share,
                      sac->daction + i * size, sac->doutput + i * 2 * size, sac->doutput + i * 2 * size + size);
        *mean_logprob += share * sac->logprobs[i];
        sac->sums.pi_loss += share * (alpha * sac->logprobs[i] - fmin(sac->q[0][i], sac->q[1][i]));
    }
    Tensor *result = pi_forward(sac, space, sac->minibatch.observations, n, true);
    TRY(tape_status(sac->tape));
    tensor_seed_grad(sac->tape, result, sac->doutput);
    TRY(tape_backward(sac->tape));
    return replay_step(&sac->stepper, learner, &sac->pi_params, sac->optimizer_steps, &norm);
}

/* Entropy coefficient loss: mean of -log alpha (log pi(a | s) + target entropy). */
static Status learn_price(Learner *learner, double mean_logprob) {
    Sac *sac = learner->self;
    double norm;
    if (!sac->log_alpha) return ST_OK;
    tensor_set(param_grad(&sac->price_params.items[0]), 0, -(mean_logprob + sac->target_entropy));
    return replay_step(&sac->stepper, learner, &sac->price_params, sac->optimizer_steps, &norm);
}

static Status sac_learn(Learner *learner, uint64_t draw) {
    Sac *sac = learner->self;
    double mean_logprob;
    sac->optimizer_steps++;
    replay_sample(&sac->D, learner_key(learner, RNG_SHUFFLE, draw), 0, &sac->minibatch);
    TRY(make_targets(learner, learner_key(learner, RNG_NOISE, 2 * draw)));
    TRY(learn_critics(learner));
    TRY(learn_actor(learner, learner_key(learner, RNG_NOISE, 2 * draw + 1), &mean_logprob));
    TRY(learn_price(learner, mean_logprob));
    for (int j = 0; j < 2 && sac->optimizer_steps % sac->target_every == 0; j++) mlp_blend(&sac->critics.Q[j], sac->tau, &sac->critics.target[j]);
    sac->sums.n++;
    sac->sums.entropy -= mean_logprob;
    sac->sums.alpha += alpha_of(sac, learner->recipe);
    return ST_OK;
}

/* ---- acting ---- */

static void stretch(const Space *space, const double *chosen, int64_t n, double *actions) {
    for (int64_t i = 0; i < n * space->size; i++) {
        double low = space->low[i % space->size], high = space->high[i % space->size];
        actions[i] = low + (chosen[i] + 1) / 2 * (high - low);
    }
}

/* Actions in (-1, 1): of the mean, or sampled. */
static Status sac_choose(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *chosen) {
    Sac *sac = learner->self;
    ArenaMark mark = arena_mark(learner->arena);
    double *output = arena_alloc(learner->arena, (size_t)(n * 2 * sac->size) * sizeof *output),
           *noise = arena_zero(learner->arena, (size_t)(n * sac->size) * sizeof *noise);
    double *logprobs = arena_alloc(learner->arena, (size_t)n * sizeof *logprobs);
    if (!output || !noise || !logprobs) return ST_RESOURCE;
    for (int64_t i = 0; !greedy && i < n * sac->size; i++) noise[i] = rng_normal(key, (uint64_t)i);
    TRY(pi_sample(sac, pi_forward(sac, &learner->env->observation, observations, n, false), n, output, noise, chosen, logprobs));
    arena_rewind(learner->arena, mark);
    return ST_OK;
}

static Status act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions) {
    TRY(sac_choose(learner, observations, n, greedy, key, actions));
    stretch(&learner->env->action, actions, n, actions);
    return ST_OK;
}

static void sac_report(Learner *learner) {
    const Sac *sac = learner->self;
    double n = (double)sac->sums.n;
    if (sac->sums.n == 0) return;
    learner_metric(learner, "loss", sac->sums.q_loss / n);
    learner_metric(learner, "policy_loss", sac->sums.pi_loss / n);
    learner_metric(learner, "mean_q", sac->sums.q / n);
    learner_metric(learner, "entropy", sac->sums.entropy / n);
    learner_metric(learner, "ent_coef", sac->sums.alpha / n);
    learner_metric(learner, "grad_norm", sac->sums.grad_norm / n);
    learner_metric(learner, "learning_rate", stepper_rate(&sac->stepper, learner->updates));
    learner_metric(learner, "gradient_steps", n);
}

static Status sac_update(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    Sac *sac = learner->self;
    Env *env = learner->env;
    uint64_t draws = 0;
    TRY(replay_check(&sac->D));
    memset(&sac->sums, 0, sizeof sac->sums);
    for (int64_t t = 0; t < recipe->rl_num_steps; t++) {
        RngKey key = learner_key(learner, RNG_EXPLORE, (uint64_t)t);
        if (learner->steps >= recipe->rl_learning_starts)
            TRY(sac_choose(learner, env->observations, env->copies, false, key, sac->chosen));
        else
            for (int64_t i = 0; i < env->copies * sac->size; i++) sac->chosen[i] = 2 * rng_uniform(key, (uint64_t)i) - 1;
        stretch(&env->action, sac->chosen, env->copies, sac->stretched);
        replay_begin_step(&sac->D, env->observations, sac->chosen);
        TRY(learner_step(learner, sac->stretched));
        replay_end_step(&sac->D, env);
        if (sac->D.size == 0 || learner->steps < recipe->rl_learning_starts || learner->steps / env->copies % recipe->rl_train_every != 0) continue;
        for (int64_t g = 0; g < recipe->rl_gradient_steps; g++) TRY(sac_learn(learner, draws++));
    }
    sac_report(learner);
    return ST_OK;
}

/* ---- opening ---- */

/* Views of the same tensors without gradients. */
static Status make_path(const Mlp *mlp, Arena *arena, Mlp *path) {
    *path = *mlp;
    for (int k = 0; k < mlp->args.n_layers; k++) {
        const Tensor *w = mlp->args.weights[k], *b = mlp->args.biases[k];
        path->args.weights[k] = tensor_reshape(arena, w, 2, w->shape);
        path->args.biases[k] = tensor_reshape(arena, b, 1, b->shape);
        if (!path->args.weights[k] || !path->args.biases[k]) return ST_RESOURCE;
    }
    return ST_OK;
}

static Status make_networks(Learner *learner, Sac *sac) {
    static const char *const names[] = {"critic1", "critic2"};
    PolicyConfig shape;
    Arena *arena = learner->arena;
    const Device *device = learner->device;
    TRY(policy_config(learner->recipe, false, &shape));
    MlpConfig config = network_config(&shape, sac->width, 2 * sac->size);
    TRY(mlp_init(&sac->pi, &config, "actor", true, learner->seed, NUMBER_ACTOR, DT_F32, device, arena, &sac->pi_params));
    config.in = sac->width + sac->size;
    config.out = 1;
    for (int j = 0; j < 2; j++) {
        Critics *critics = &sac->critics;
        TRY(mlp_init(&critics->Q[j], &config, names[j], true, learner->seed, NUMBER_CRITIC + (uint64_t)j, DT_F32, device, arena, &critics->params));
        TRY(mlp_init(&critics->target[j], &config, names[j], false, learner->seed, NUMBER_CRITIC + (uint64_t)j, DT_F32, device, arena,
                     &critics->target_params));
        TRY(make_path(&critics->Q[j], arena, &critics->path[j]));
    }
    TRY(optimizer_init(&sac->stepper.optimizer, &sac->pi_params, arena));
    return optimizer_init(&sac->stepper.optimizer, &sac->critics.params, arena);
}

/* An rl.ent_coef above 0 is fixed; else log alpha starts at 0 and is learned. */
static Status make_price(Learner *learner, Sac *sac) {
    if (learner->recipe->rl_ent_coef > 0) return ST_OK;
    double wanted = learner->recipe->rl_target_entropy;
    sac->target_entropy = isnan(wanted) ? -(double)sac->size : wanted;
    sac->log_alpha = tensor_new(learner->arena, learner->device, DT_F32, 1, (int64_t[]){1});
    Param *param = sac->log_alpha ? params_add(&sac->price_params, "log_ent_coef", sac->log_alpha, PARAM_BASE) : NULL;
    if (!param) return ST_RESOURCE;
    tensor_set(sac->log_alpha, 0, 0);
    param->decay = false;
    TRY(params_train(param, learner->arena));
    return optimizer_init(&sac->stepper.optimizer, &sac->price_params, learner->arena);
}

static double *sac_numbers(Arena *arena, int64_t n) { return arena_zero(arena, (size_t)n * sizeof(double)); }

static Status make_scratch(const Learner *learner, Sac *sac, int64_t copies) {
    Arena *arena = learner->arena;
    int64_t n = sac->n, size = sac->size, shape[] = {n, sac->width + size};
    sac->pairs = tensor_new(arena, learner->device, DT_F32, 2, shape);
    if (!sac->pairs || !(sac->pairs->grad = tensor_new(arena, learner->device, DT_F32, 2, shape))) return ST_RESOURCE;
    sac->pairs->needs_grad = true;
    sac->tape = tape_new(learner->device, DT_F32, 0);
    for (int j = 0; j < 2; j++)
        if (!(sac->q[j] = sac_numbers(arena, n)) || !(sac->dq[j] = sac_numbers(arena, n))) return ST_RESOURCE;
    return sac->tape && (sac->output = sac_numbers(arena, n * 2 * size)) && (sac->doutput = sac_numbers(arena, n * 2 * size)) &&
                   (sac->noise = sac_numbers(arena, n * size)) && (sac->actions = sac_numbers(arena, n * size)) &&
                   (sac->daction = sac_numbers(arena, n * size)) && (sac->logprobs = sac_numbers(arena, n)) &&
                   (sac->targets = sac_numbers(arena, n)) && (sac->chosen = sac_numbers(arena, copies * size)) &&
                   (sac->stretched = sac_numbers(arena, copies * size))
               ? ST_OK
               : ST_RESOURCE;
}

static Status check_bounds(const Env *env) {
    for (int64_t k = 0; k < env->action.size; k++)
        if (!isfinite(env->action.low[k]) || !isfinite(env->action.high[k]))
            return status_hint(status_fail(ST_CONFIG, "algorithm 'sac' needs bounds of actions, and environment '%s' has none", env->id),
                               "use ppo or a2c");
    return ST_OK;
}

static Status sac_make(Learner *learner, Sac *sac) {
    const Recipe *recipe = learner->recipe;
    const Env *env = learner->env;
    TRY(check_bounds(env));
    sac->n = recipe->train_batch_size;
    sac->width = space_width(&env->observation);
    sac->size = env->action.size;
    sac->tau = isnan(recipe->rl_tau) ? 0.005 : recipe->rl_tau;
    sac->target_every = recipe->rl_target_every > 0 ? recipe->rl_target_every : 1;
    ReplayConfig replay = {
        .capacity = MIN(recipe->rl_buffer_size, MAX(learner->total_steps, 1)),
        .copies = env->copies,
        .observation_size = env->observation.size,
        .action_size = sac->size,
        .n_step = recipe->rl_n_step,
        .gamma = recipe->rl_gamma,
    };
    TRY(replay_stepper_init(learner, &sac->stepper));
    TRY(replay_init(&sac->D, &replay, learner->arena));
    TRY(replay_batch_init(&sac->minibatch, sac->n, &replay, learner->arena));
    TRY(make_networks(learner, sac));
    TRY(make_price(learner, sac));
    return make_scratch(learner, sac, env->copies);
}

static Status sac_open(Learner *learner) {
    learner->self = arena_zero(learner->arena, sizeof(Sac));
    return learner->self ? sac_make(learner, learner->self) : ST_RESOURCE;
}

/* The largest passes: both critics together, and the actor for all copies. */
static Status largest_passes(Sac *sac, const Env *env) {
    pi_forward(sac, &env->observation, NULL, MAX(env->copies, sac->n), false);
    Tensor *result = pi_forward(sac, &env->observation, NULL, sac->n, true);
    tensor_seed_grad(sac->tape, result, NULL);
    TRY(tape_backward(sac->tape));
    tape_reset(sac->tape);
    tape_record(sac->tape, true);
    Tensor *pairs = tape_tensor(sac->tape, DT_F32, 2, sac->pairs->shape);
    for (int j = 0; j < 2 && pairs; j++) tensor_seed_grad(sac->tape, mlp_forward(&sac->critics.Q[j], sac->tape, pairs), NULL);
    return tape_backward(sac->tape);
}

static Status sac_reserve(Learner *learner, TrainMemory *memory) {
    Sac *sac = learner->self, planned = *sac;
    memory_add_networks(memory, &sac->pi_params, &sac->stepper.optimizer);
    memory_add_networks(memory, &sac->critics.params, &sac->stepper.optimizer);
    planned.tape = tape_new(device_plan(tape_device(sac->tape)), tape_compute(sac->tape), 0);
    Status status = planned.tape ? largest_passes(&planned, learner->env) : status_fail(ST_RESOURCE, "out of memory for a plan");
    if (planned.tape) memory->activations = tape_peak_bytes(planned.tape);
    tape_free(planned.tape);
    return status;
}

static void sac_close(Learner *learner) {
    Sac *sac = learner->self;
    params_release(&sac->pi_params);
    params_release(&sac->price_params);
    params_release(&sac->critics.params);
    params_release(&sac->critics.target_params);
    tape_free(sac->tape);
}

static void sac_policy(Learner *learner, StateList *states) {
    const Sac *sac = learner->self;
    state_weights(states, &sac->pi_params);
}

static void sac_list_state(Learner *learner, StateList *states) {
    Sac *sac = learner->self;
    state_weights(states, &sac->critics.params);
    state_weights(states, &sac->price_params);
    state_copy(states, "target", &sac->critics.target_params);
    state_optimizer(states, &sac->pi_params);
    state_optimizer(states, &sac->critics.params);
    state_optimizer(states, &sac->price_params);
    state_count(states, "optimizer_steps", &sac->optimizer_steps);
    replay_list_state(&sac->D, states);
}

const Algorithm algorithm_sac = {
    .name = "sac",
    .help = "soft actor-critic with twin critics and a learned entropy coefficient (arXiv 1812.05905)",
    .box = true,
    .keys = KEYS_OF_REPLAY "ent_coef target_entropy",
    .open = sac_open,
    .reserve = sac_reserve,
    .update = sac_update,
    .act = act,
    .policy = sac_policy,
    .list_state = sac_list_state,
    .close = sac_close,
};
