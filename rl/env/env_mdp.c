/* SPDX-License-Identifier: Apache-2.0 */
/* An Mdp as an environment: samples outcomes from its rows. */
#include "rl/env/env_kinds.h"
#include "rl/mdp/mdp.h"

#include <math.h>

typedef struct Chain {
    const Mdp *mdp;
    const double *start;
    int32_t n_observations;
} Chain;

/* The first of n outcomes at which the cumulative probability exceeds a uniform number; rounding never selects an outcome with probability 0. */
static int64_t env_mdp_draw(EnvDraws *draws, const double *probability, int64_t n) {
    double left = env_uniform(draws, 0, 1);
    int64_t possible = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(probability[i] > 0)) continue;
        possible = i;
        if (left < probability[i]) break;
        left -= probability[i];
    }
    return possible;
}

static void env_mdp_start(const void *context, EnvDraws *draws, double *state) {
    const Chain *chain = context;
    *state = (double)env_mdp_draw(draws, chain->start, chain->mdp->n_states);
}

static bool env_mdp_step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    const Mdp *mdp = ((const Chain *)context)->mdp;
    int64_t row = (int64_t)*state * mdp->n_actions + (int64_t)*action, begin = mdp->begin[row];
    int64_t outcome = begin + env_mdp_draw(draws, mdp->probability + begin, mdp->begin[row + 1] - begin);
    *state = mdp->next[outcome];
    *reward = mdp->reward[outcome];
    return (mdp->ends && mdp->ends[outcome]) || mdp->terminal[mdp->next[outcome]];
}

static void env_mdp_observe(const void *context, const double *state, double *observation) {
    *observation = (double)((int64_t)*state % ((const Chain *)context)->n_observations);
}

static bool is_state(const void *context, const double *state) {
    const Mdp *mdp = ((const Chain *)context)->mdp;
    return *state >= 0 && *state < mdp->n_states && *state == floor(*state) && !mdp->terminal[(int64_t)*state];
}

static const EnvKind kind = {.id = "mdp",
                             .state_size = 1,
                             .action = {.size = 1},
                             .observation = {.size = 1},
                             .start = env_mdp_start,
                             .step = env_mdp_step,
                             .observe = env_mdp_observe,
                             .is_state = is_state};

static Status check_start(const Mdp *mdp, const double *probability) {
    double sum = 0;
    for (int32_t s = 0; s < mdp->n_states; s++) {
        if (!(probability[s] >= 0)) return status_fail(ST_INPUT, "the probability of starting in state %d is %g", (int)s, probability[s]);
        if (probability[s] > 0 && mdp->terminal[s]) return status_fail(ST_INPUT, "an episode would start in the terminal state %d", (int)s);
        sum += probability[s];
    }
    return fabs(sum - 1) <= 1e-9 ? ST_OK : status_fail(ST_INPUT, "the probabilities of start states sum to %.12g, expected 1", sum);
}

/* Uniform over the live states. */
static double *any_live_state(const Mdp *mdp, Arena *arena) {
    double *probability = arena_zero(arena, (size_t)mdp->n_states * sizeof *probability), live = 0;
    if (!probability) return NULL;
    for (int32_t s = 0; s < mdp->n_states; s++) live += !mdp->terminal[s];
    for (int32_t s = 0; s < mdp->n_states; s++) probability[s] = mdp->terminal[s] ? 0 : 1 / live;
    return probability;
}

/* The actions of each state, if states differ in them. No action is taken in terminal states. */
static Status find_allowed(Env *env, const Mdp *mdp) {
    size_t rows = (size_t)mdp->n_states * (size_t)mdp->n_actions;
    bool all = true;
    for (int32_t s = 0; s < mdp->n_states && all; s++)
        for (int32_t a = 0; a < mdp->n_actions && all; a++) all = mdp->terminal[s] || mdp_has(mdp, s, a);
    if (all) return ST_OK;
    if (env->observation.n != mdp->n_states)
        return status_fail(ST_INPUT, "states of environment '%s' that look the same have different actions", env->id);
    bool *allowed = arena_alloc(env->arena, rows);
    if (!allowed) return ST_RESOURCE;
    for (int32_t s = 0; s < mdp->n_states; s++)
        for (int32_t a = 0; a < mdp->n_actions; a++) allowed[(int64_t)s * mdp->n_actions + a] = mdp->terminal[s] || mdp_has(mdp, s, a);
    env->action.allowed = allowed;
    return ST_OK;
}

static Status set_chain(Env *env, const Mdp *mdp, const double *start_probability, int32_t n_observations) {
    Chain *chain = arena_zero(env->arena, sizeof *chain);
    if (!chain) return ST_RESOURCE;
    *chain = (Chain){mdp, start_probability ? start_probability : any_live_state(mdp, env->arena), n_observations};
    env->context = chain;
    return chain->start ? check_start(mdp, chain->start) : ST_RESOURCE;
}

static Status new_chain(const Mdp *mdp, const double *start_probability, int32_t n_observations, int64_t max_steps, int64_t copies, Env **env) {
    TRY(env_allocate(&kind, copies, env));
    (*env)->max_steps = max_steps;
    (*env)->action.n = mdp->n_actions;
    (*env)->observation.n = n_observations;
    Status status = set_chain(*env, mdp, start_probability, n_observations);
    if (status == ST_OK) status = find_allowed(*env, mdp);
    if (status != ST_OK) {
        env_free(*env);
        *env = NULL;
    }
    return status;
}

Status env_new_mdp(const Mdp *mdp, const double *start_probability, int64_t max_steps, int64_t copies, Env **env) {
    return new_chain(mdp, start_probability, mdp->n_states, max_steps, copies, env);
}

Status env_new_world(const NamedMdp *world, int64_t copies, Env **env) {
    return new_chain(&world->mdp, world->start, world->n_observations ? world->n_observations : world->mdp.n_states, world->max_steps, copies, env);
}
