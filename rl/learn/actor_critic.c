/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "rl/learn/actor_critic.h"

/* ---- minibatches ---- */

static double *actor_critic_numbers(Arena *arena, int64_t n) { return arena_alloc(arena, (size_t)n * sizeof(double)); }

Status minibatch_init(Minibatch *m, int64_t cap, int64_t obs_size, int64_t action_size, bool values, Arena *arena) {
    *m = (Minibatch){.cap = cap, .obs_size = obs_size, .action_size = action_size};
    if (!(m->obs = actor_critic_numbers(arena, cap * obs_size)) || !(m->actions = actor_critic_numbers(arena, cap * action_size)) ||
        !(m->old_logprobs = actor_critic_numbers(arena, cap)) || !(m->advantages = actor_critic_numbers(arena, cap)) ||
        !(m->returns = actor_critic_numbers(arena, cap)) || !(m->logprobs = actor_critic_numbers(arena, cap)) ||
        !(m->entropies = actor_critic_numbers(arena, cap)) || !(m->dlogprobs = actor_critic_numbers(arena, cap)))
        return ST_RESOURCE;
    if (!values) return ST_OK;
    m->old_values = actor_critic_numbers(arena, cap);
    m->dvalues = actor_critic_numbers(arena, cap);
    return m->old_values && m->dvalues ? ST_OK : ST_RESOURCE;
}

void minibatch_gather(Minibatch *m, const Rollout *rollout, const int64_t *rows, int64_t n) {
    const Trajectory *batch = &rollout->batch;
    ASSERT(n <= m->cap, "%lld rows, room for %lld", (long long)n, (long long)m->cap);
    m->n = n;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = rows[i];
        for (int64_t k = 0; k < m->obs_size; k++) m->obs[i * m->obs_size + k] = batch->obs[row * m->obs_size + k];
        for (int64_t k = 0; k < m->action_size; k++) m->actions[i * m->action_size + k] = rollout->actions[row * m->action_size + k];
        m->old_logprobs[i] = batch->logprobs[row];
        m->advantages[i] = rollout->advantages[row];
        m->returns[i] = rollout->returns[row];
        if (m->old_values) m->old_values[i] = batch->values[row];
    }
}

/* One gradient and its inputs. */
typedef struct Gradient {
    Policy *policy;
    Minibatch *m;
    const Losses *losses;
    PolicyMetrics of_policy;
    ValueMetrics of_values;
    Failure halves[2]; /* each thread records the text of its own failure */
} Gradient;

static void actor_loss(Gradient *g) {
    Minibatch *m = g->m;
    policy_evaluate(g->policy, m->actions, m->logprobs, m->entropies);
    policy_loss(g->losses->policy, &(PolicyLossConfig){.clip = g->losses->clip, .ent_coef = g->losses->ent_coef},
                &(PolicyBatch){.n_sequences = m->n,
                               .logprobs = m->logprobs,
                               .old_logprobs = g->losses->first_pass ? NULL : m->old_logprobs,
                               .advantages = m->advantages,
                               .entropies = m->entropies},
                m->dlogprobs, &g->of_policy);
}

static void critic_loss(Gradient *g) {
    Minibatch *m = g->m;
    value_loss(&(ValueBatch){.n = m->n, .values = g->policy->values, .old_values = m->old_values, .targets = m->returns}, g->losses->clip_value,
               m->dvalues, &g->of_values);
    for (int64_t i = 0; i < m->n; i++) m->dvalues[i] *= g->losses->vf_coef;
}

static Status actor_half(Gradient *g) {
    TRY(policy_forward_actions(g->policy, g->m->obs, true));
    actor_loss(g);
    return policy_backward_actions(g->policy, g->m->actions, g->m->dlogprobs, g->of_policy.grad_entropy);
}

static Status critic_half(Gradient *g) {
    TRY(policy_forward_values(g->policy, g->m->obs, true));
    critic_loss(g);
    return policy_backward_values(g->policy, g->m->dvalues);
}

static void actor_critic_measure(Gradient *g, int64_t i) {
    Params part = policy_part(g->policy, i == 1);
    double norm = params_grad_norm(&part);
    g->m->grad_squares[i] = norm * norm;
}

static void half(void *context, int64_t i) {
    Gradient *g = context;
    Status status = i == 0 ? actor_half(g) : critic_half(g);
    actor_critic_measure(g, i);
    if (status != ST_OK) failure_save(&g->halves[i], status);
}

/* For small networks on few rows one thread computes the actor and another the critic, from the observations to the gradient. Otherwise each kernel
 * has enough work for all threads: kernels split tensors of more than SMALL numbers themselves. */
static bool in_halves(const Policy *policy, const Minibatch *m) {
    enum { SMALL = 16384 };
    const Params *params = &policy->params;
    int64_t most = 0;
    if (!m->old_values || !policy_has_halves(policy) || profile_running()) return false; /* the profiler has a single clock */
    for (size_t i = 0; i < params->n; i++) {
        const Tensor *tensor = params->items[i].tensor;
        most = MAX(most, MAX(tensor_count(tensor), m->n * tensor_width(tensor)));
    }
    return most <= SMALL;
}

static Status run_halves(Gradient *g) {
    g->policy->n = g->m->n;
    cpu_team_run(2, half, g);
    TRY(failure_restore(&g->halves[0]));
    return failure_restore(&g->halves[1]);
}

static Status run_whole(Gradient *g) {
    Minibatch *m = g->m;
    bool values = m->old_values != NULL;
    TRY(policy_forward(g->policy, m->obs, m->n, values ? POLICY_ACTIONS | POLICY_VALUES : POLICY_ACTIONS, true));
    actor_loss(g);
    if (values) critic_loss(g);
    TRY(policy_backward(g->policy, m->actions, m->dlogprobs, g->of_policy.grad_entropy, values ? m->dvalues : NULL));
    for (int64_t i = 0; i < 2; i++) actor_critic_measure(g, i);
    return ST_OK;
}

Status actor_critic_gradient(Policy *policy, Minibatch *m, const Losses *losses, Measures *measures, double *kl) {
    Gradient g = {.policy = policy, .m = m, .losses = losses};
    TRY(in_halves(policy, m) ? run_halves(&g) : run_whole(&g));
    measures->steps++;
    measures->loss += g.of_policy.loss + losses->vf_coef * g.of_values.loss;
    measures->policy_loss += g.of_policy.policy_loss;
    measures->value_loss += g.of_values.loss;
    measures->entropy += g.of_policy.entropy;
    measures->approx_kl += g.of_policy.approx_kl;
    measures->clip_fraction += g.of_policy.outside;
    if (kl) *kl = g.of_policy.approx_kl;
    return ST_OK;
}

/* ---- the learner ---- */

/* A single advantage minus its mean is 0: nothing would be learned. */
static Status check_parts(const Recipe *recipe, int64_t copies, int64_t parts) {
    int64_t steps = recipe->rl_num_steps * copies;
    if (parts <= (recipe->rl_normalize_advantage ? steps / 2 : steps)) return ST_OK;
    status_fail(ST_CONFIG, "%lld step%s of all environments give %lld minibatch%s with fewer than %s", (long long)steps, plural(steps),
                (long long)parts, parts == 1 ? "" : "es", recipe->rl_normalize_advantage ? "the two that 'rl.normalize_advantage' needs" : "one");
    return status_hint(ST_CONFIG, "raise rl.num_steps or rl.num_envs%s%s", parts > 1 ? ", or lower rl.num_minibatches" : "",
                       recipe->rl_normalize_advantage ? "; or rl.normalize_advantage=false" : "");
}

static Status actor_critic_make(Learner *learner, ActorCritic *ac, bool values, int64_t parts) {
    const Recipe *recipe = learner->recipe;
    const Env *env = learner->env;
    PolicyConfig config;
    double per_update = (double)recipe->rl_num_steps * (double)recipe->rl_num_envs;
    TRY(check_parts(recipe, env->copies, parts));
    TRY(policy_config(recipe, values, &config));
    TRY(stepper_init(&ac->stepper, recipe, (int64_t)ceil((double)learner->total_steps / per_update)));
    if (recipe->rl_normalize_observations && env->observation.n > 0)
        return status_hint(
            status_fail(ST_CONFIG, "'rl.normalize_observations' fits no environment whose observations are numbered states, such as '%s'", env->id),
            "leave it out");
    TRY(policy_init(&ac->policy, &config, &env->observation, &env->action, learner->seed, learner->device, DT_F32, learner->arena));
    TRY(optimizer_init(&ac->stepper.optimizer, &ac->policy.params, learner->arena));
    if (recipe->rl_normalize_observations) TRY(moments_init(&ac->observed, env->observation.size, learner->arena));
    if (recipe->rl_normalize_rewards) TRY(reward_scale_init(&ac->scale, recipe->rl_gamma, env->copies, learner->arena));
    rollout_init(&ac->rollout, recipe->rl_normalize_observations ? &ac->observed : NULL, recipe->rl_normalize_rewards ? &ac->scale : NULL);
    return ST_OK;
}

Status actor_critic_open(Learner *learner, bool values, int64_t parts) {
    ActorCritic *ac = learner->self = arena_zero(learner->arena, sizeof *ac);
    if (!ac) return ST_RESOURCE;
    ac->parts = parts;
    return actor_critic_make(learner, ac, values, parts);
}

/* Rows of the rollout, and rows of its largest minibatch. */
static int64_t all_rows(const ActorCritic *ac) { return ac->rollout.T * ac->rollout.batch.B; }
static int64_t most_rows(const ActorCritic *ac) { return (all_rows(ac) + ac->parts - 1) / ac->parts; }

/* Allocates the rollout, its rows and minibatches. */
static Status take_room(ActorCritic *ac, Learner *learner) {
    const Env *env = learner->env;
    TRY(rollout_reserve(&ac->rollout, learner, ac->policy.has_values));
    if (ac->rows) return ST_OK;
    TRY(minibatch_init(&ac->minibatch, most_rows(ac), env->observation.size, env->action.size, ac->policy.has_values, learner->arena));
    ac->rows = arena_alloc(learner->arena, (size_t)all_rows(ac) * sizeof *ac->rows);
    return ac->rows ? ST_OK : ST_RESOURCE;
}

Status actor_critic_reserve(Learner *learner, TrainMemory *memory) {
    ActorCritic *ac = learner->self;
    TRY(take_room(ac, learner));
    memory_add_networks(memory, &ac->policy.params, &ac->stepper.optimizer);
    return policy_plan(&ac->policy, &(PolicyRows){.acting = learner->env->copies, .valued = all_rows(ac), .learned = most_rows(ac)},
                       &memory->activations);
}

void actor_critic_close(Learner *learner) {
    ActorCritic *ac = learner->self;
    policy_release(&ac->policy);
}

Status actor_critic_act(Learner *learner, const double *observations, int64_t n, bool greedy, RngKey key, double *actions) {
    ActorCritic *ac = learner->self;
    Policy *policy = &ac->policy;
    size_t size = (size_t)(n * learner->env->observation.size) * sizeof(double);
    ArenaMark mark = arena_mark(learner->arena);
    double *seen = arena_alloc(learner->arena, size), *logprobs = arena_alloc(learner->arena, (size_t)n * sizeof *logprobs);
    if (!seen || !logprobs) return ST_RESOURCE;
    if (ac->rollout.observed)
        moments_normalise(&ac->observed, observations, n, seen);
    else
        memcpy(seen, observations, size);
    TRY(policy_forward(policy, seen, n, POLICY_ACTIONS, false));
    if (greedy)
        policy_mode(policy, actions);
    else
        policy_sample(policy, key, actions, logprobs);
    space_clip(&learner->env->action, actions, n);
    arena_rewind(learner->arena, mark);
    return ST_OK;
}

void actor_critic_policy(Learner *learner, StateList *states) {
    ActorCritic *ac = learner->self;
    state_weights(states, &ac->policy.params);
    if (ac->rollout.observed) moments_list_state(&ac->observed, states, "observation/mean", "observation/variance", "observation/count");
}

void actor_critic_list_state(Learner *learner, StateList *states) {
    ActorCritic *ac = learner->self;
    state_optimizer(states, &ac->policy.params);
    state_count(states, "optimizer_steps", &ac->optimizer_steps);
    if (ac->rollout.scale) reward_scale_list_state(&ac->scale, states);
}

Status actor_critic_rows(ActorCritic *ac, Learner *learner, int64_t *n) {
    const Trajectory *batch = &ac->rollout.batch;
    TRY(take_room(ac, learner));
    *n = 0;
    for (int64_t i = 0; i < batch->T * batch->B; i++)
        if (batch->valid[i]) ac->rows[(*n)++] = i;
    return ST_OK;
}

static Status not_finite(const ActorCritic *ac, const Learner *learner) {
    const Param *weight = params_nonfinite(&ac->policy.params, false), *gradient = params_nonfinite(&ac->policy.params, true),
                *param = weight ? weight : gradient;
    status_fail(ST_NUMERIC, "%s '%s' holds a NaN or an infinity in update %lld", weight ? "weight" : "the gradient of", param ? param->name : "?",
                (long long)learner->updates + 1);
    return status_hint(ST_NUMERIC, "lower train.learning_rate, or normalise observations and rewards");
}

/* Steps each part of the policy in the thread that computed its gradient, which has the gradient, weights and moment estimates in its cache. */
typedef struct StepOfParts {
    ActorCritic *ac;
    double norm, rate;
} StepOfParts;

static void step_part(void *context, int64_t i) {
    const StepOfParts *step = context;
    Params part = policy_part(&step->ac->policy, i == 1);
    stepper_update(&step->ac->stepper, &part, step->norm, step->rate, step->ac->optimizer_steps);
}

Status actor_critic_step(ActorCritic *ac, Learner *learner, Measures *measures) {
    const double *squares = ac->minibatch.grad_squares;
    double norm = sqrt(squares[0] + squares[1]);
    if (!isfinite(norm)) return not_finite(ac, learner);
    StepOfParts step = {ac, norm, stepper_rate(&ac->stepper, learner->updates)};
    ac->optimizer_steps++;
    if (in_halves(&ac->policy, &ac->minibatch))
        cpu_team_run(2, step_part, &step);
    else
        for (int64_t i = 0; i < 2; i++) step_part(&step, i);
    measures->grad_norm += norm;
    measures->learning_rate = step.rate;
    return ST_OK;
}

void actor_critic_report(const ActorCritic *ac, Learner *learner, const Measures *measures) {
    const Rollout *rollout = &ac->rollout;
    double per_step = 1 / (double)MAX(measures->steps, 1);
    learner_metric(learner, "loss", measures->loss * per_step);
    learner_metric(learner, "policy_loss", measures->policy_loss * per_step);
    if (ac->policy.has_values) {
        learner_metric(learner, "value_loss", measures->value_loss * per_step);
        learner_metric(learner, "explained_variance",
                       explained_variance(rollout->batch.values, rollout->returns, rollout->batch.valid, rollout->batch.T * rollout->batch.B));
    }
    learner_metric(learner, "entropy", measures->entropy * per_step);
    learner_metric(learner, "kl", measures->approx_kl * per_step); /* KL from the policy before the update: there is no other reference here */
    learner_metric(learner, "approx_kl", measures->approx_kl * per_step);
    learner_metric(learner, "clip_fraction", measures->clip_fraction * per_step);
    learner_metric(learner, "grad_norm", measures->grad_norm * per_step);
    learner_metric(learner, "learning_rate", measures->learning_rate);
}

Status actor_critic_one_pass(Learner *learner, const char *loss) {
    const Recipe *recipe = learner->recipe;
    ActorCritic *ac = learner->self;
    Measures measures = {0};
    Losses losses = {.policy = policy_loss_find(loss), .first_pass = true, .ent_coef = recipe->rl_ent_coef, .vf_coef = recipe->rl_vf_coef};
    int64_t n;
    TRY(actor_critic_rows(ac, learner, &n));
    minibatch_gather(&ac->minibatch, &ac->rollout, ac->rows, n);
    if (recipe->rl_normalize_advantage) advantages_normalise(ac->minibatch.advantages, NULL, n, NORMALISE_STD, 1e-8);
    TRY(actor_critic_gradient(&ac->policy, &ac->minibatch, &losses, &measures, NULL));
    TRY(actor_critic_step(ac, learner, &measures));
    actor_critic_report(ac, learner, &measures);
    return ST_OK;
}
