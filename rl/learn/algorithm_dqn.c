/* SPDX-License-Identifier: Apache-2.0 */
/* Deep Q-networks: Q-learning with a network on replayed transitions, with targets from a delayed copy of the network. Source: Mnih et al. 2015,
 * Nature 518, algorithm 1; double: arXiv 1509.06461; dueling: arXiv 1511.06581; prioritised: arXiv 1511.05952; several steps: arXiv 1710.02298. */
#include <math.h>

#include "rl/core/heads.h"
#include "rl/learn/q_network.h"

typedef struct Dqn {
    QNetwork Q, target;
    Replay D;
    ReplayBatch minibatch;
    QLoss loss;
    Stepper stepper;
    Tape *tape;
    double *actions;
    int64_t target_every, optimizer_steps;
    double tau;
    struct {
        int64_t n;
        double loss, grad_norm, q;
    } sums; /* sums over the gradient steps of one update */
} Dqn;

/* A random action among those that exist here. */
static int64_t any_action(const double *q, int64_t A, RngKey key, uint64_t draw) {
    int64_t n = 0, a = 0;
    for (int64_t i = 0; i < A; i++) n += q[i] != -(double)INFINITY;
    int64_t left = (int64_t)rng_below(key, draw, (uint64_t)n);
    while (q[a] == -(double)INFINITY || left-- > 0) a++;
    return a;
}

/* argmax_a Q(s, a), or with probability epsilon any action. */
static Status dqn_choose(Learner *learner, const double *observations, int64_t n, double epsilon, RngKey key, double *actions) {
    Dqn *dqn = learner->self;
    const int64_t A = learner->env->action.n;
    ArenaMark mark = arena_mark(learner->arena);
    double *q = arena_alloc(learner->arena, (size_t)(n * A) * sizeof *q);
    if (!q) return ST_RESOURCE;
    TRY(q_network_forward(&dqn->Q, dqn->tape, observations, n, false, q));
    for (int64_t i = 0; i < n; i++) {
        bool explore = rng_uniform(key, 2 * (uint64_t)i) < epsilon;
        actions[i] = (double)(explore ? any_action(q + i * A, A, key, 2 * (uint64_t)i + 1) : categorical_best(q + i * A, A));
    }
    arena_rewind(learner->arena, mark);
    return ST_OK;
}

static Status dqn_learn(Learner *learner, RngKey key) {
    const Recipe *recipe = learner->recipe;
    Dqn *dqn = learner->self;
    double norm;
    replay_sample(&dqn->D, key, learner_linear(learner, recipe->rl_priority_beta, 1, 1), &dqn->minibatch);
    TRY(q_learn(&dqn->loss, &dqn->Q, &dqn->target, dqn->tape, &dqn->minibatch));
    TRY(replay_step(&dqn->stepper, learner, &dqn->Q.params, ++dqn->optimizer_steps, &norm));
    replay_prioritise(&dqn->D, &dqn->minibatch, dqn->loss.errors);
    if (dqn->optimizer_steps % dqn->target_every == 0) q_network_blend(&dqn->Q, dqn->tau, &dqn->target);
    dqn->sums.n++;
    dqn->sums.loss += dqn->loss.loss;
    dqn->sums.q += dqn->loss.mean_q;
    dqn->sums.grad_norm += norm;
    return ST_OK;
}

static void dqn_report(Learner *learner, double epsilon) {
    const Dqn *dqn = learner->self;
    double n = (double)dqn->sums.n;
    learner_metric(learner, "epsilon", epsilon);
    if (dqn->sums.n == 0) return;
    learner_metric(learner, "loss", dqn->sums.loss / n);
    learner_metric(learner, "mean_q", dqn->sums.q / n);
    learner_metric(learner, "grad_norm", dqn->sums.grad_norm / n);
    learner_metric(learner, "learning_rate", stepper_rate(&dqn->stepper, learner->updates));
    learner_metric(learner, "gradient_steps", n);
}

static Status dqn_update(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    Dqn *dqn = learner->self;
    Env *env = learner->env;
    uint64_t draws = 0;
    double epsilon = 0;
    TRY(replay_check(&dqn->D));
    dqn->sums.n = 0;
    dqn->sums.loss = dqn->sums.q = dqn->sums.grad_norm = 0;
    for (int64_t t = 0; t < recipe->rl_num_steps; t++) {
        epsilon = learner_linear(learner, recipe->rl_epsilon_start, recipe->rl_epsilon_end, recipe->rl_epsilon_fraction);
        TRY(dqn_choose(learner, env->observations, env->copies, epsilon, learner_key(learner, RNG_EXPLORE, (uint64_t)t), dqn->actions));
        replay_begin_step(&dqn->D, env->observations, dqn->actions);
        TRY(learner_step(learner, dqn->actions));
        replay_end_step(&dqn->D, env);
        if (dqn->D.size == 0 || learner->steps < recipe->rl_learning_starts || learner->steps / env->copies % recipe->rl_train_every != 0) continue;
        for (int64_t g = 0; g < recipe->rl_gradient_steps; g++) TRY(dqn_learn(learner, learner_key(learner, RNG_SHUFFLE, draws++)));
    }
    dqn_report(learner, epsilon);
    return ST_OK;
}

static Status act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions) {
    const Recipe *recipe = learner->recipe;
    double epsilon = greedy ? 0 : learner_linear(learner, recipe->rl_epsilon_start, recipe->rl_epsilon_end, recipe->rl_epsilon_fraction);
    return dqn_choose(learner, observations, n, epsilon, key, actions);
}

static Status dqn_make(Learner *learner, Dqn *dqn) {
    const Recipe *recipe = learner->recipe;
    const Env *env = learner->env;
    Arena *arena = learner->arena;
    QNetworkConfig network = {
        .observation = env->observation, .n_actions = env->action.n, .allowed = env->action.allowed, .dueling = recipe->rl_dueling};
    ReplayConfig replay = {
        .capacity = MIN(recipe->rl_buffer_size, MAX(learner->total_steps, 1)),
        .copies = env->copies,
        .observation_size = env->observation.size,
        .action_size = 1,
        .n_step = recipe->rl_n_step,
        .gamma = recipe->rl_gamma,
        .prioritised = recipe->rl_prioritized,
        .alpha = recipe->rl_priority_alpha,
    };
    TRY(policy_config(recipe, false, &network.shape));
    TRY(replay_stepper_init(learner, &dqn->stepper));
    TRY(replay_init(&dqn->D, &replay, arena));
    TRY(replay_batch_init(&dqn->minibatch, recipe->train_batch_size, &replay, arena));
    TRY(q_network_init(&dqn->Q, &network, true, learner->seed, learner->device, DT_F32, arena));
    /* same seed: the same initial values as the online network */
    TRY(q_network_init(&dqn->target, &network, false, learner->seed, learner->device, DT_F32, arena));
    TRY(optimizer_init(&dqn->stepper.optimizer, &dqn->Q.params, arena));
    TRY(q_loss_init(&dqn->loss, recipe->train_batch_size, env->action.n, arena));
    dqn->loss.double_q = recipe->rl_double_q;
    dqn->loss.huber = recipe->rl_huber;
    dqn->tau = isnan(recipe->rl_tau) ? 1 : recipe->rl_tau;
    dqn->target_every = recipe->rl_target_every > 0 ? recipe->rl_target_every : 500;
    dqn->actions = arena_zero(arena, (size_t)env->copies * sizeof *dqn->actions);
    dqn->tape = tape_new(learner->device, DT_F32, 0);
    return dqn->actions && dqn->tape ? ST_OK : status_fail(ST_RESOURCE, "out of memory for dqn");
}

static Status dqn_open(Learner *learner) {
    learner->self = arena_zero(learner->arena, sizeof(Dqn));
    return learner->self ? dqn_make(learner, learner->self) : ST_RESOURCE;
}

static Status dqn_reserve(Learner *learner, TrainMemory *memory) {
    Dqn *dqn = learner->self;
    memory_add_networks(memory, &dqn->Q.params, &dqn->stepper.optimizer);
    return q_network_plan(&dqn->Q, dqn->tape, learner->env->copies, dqn->minibatch.n, &memory->activations);
}

static void dqn_close(Learner *learner) {
    Dqn *dqn = learner->self;
    q_network_release(&dqn->Q);
    q_network_release(&dqn->target);
    tape_free(dqn->tape);
}

static void dqn_policy(Learner *learner, StateList *states) {
    const Dqn *dqn = learner->self;
    state_weights(states, &dqn->Q.params);
}

static void dqn_list_state(Learner *learner, StateList *states) {
    Dqn *dqn = learner->self;
    state_optimizer(states, &dqn->Q.params);
    state_copy(states, "target", &dqn->target.params);
    state_count(states, "optimizer_steps", &dqn->optimizer_steps);
    replay_list_state(&dqn->D, states);
}

const Algorithm algorithm_dqn = {
    .name = "dqn",
    .help = "deep Q-networks: replay, target copy; double, dueling, prioritised, n steps (Nature 518, 529)",
    .discrete = true,
    .keys = KEYS_OF_REPLAY "epsilon_start epsilon_end epsilon_fraction huber double_q dueling prioritized priority_alpha priority_beta",
    .open = dqn_open,
    .reserve = dqn_reserve,
    .update = dqn_update,
    .act = act,
    .policy = dqn_policy,
    .list_state = dqn_list_state,
    .close = dqn_close,
};
