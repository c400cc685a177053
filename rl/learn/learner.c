/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of all algorithms: opening, stepping and counting episodes, metrics, the list of saved state. */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "rl/learn/learner.h"

#include <math.h>
#include <string.h>

#include "rl/mdp/worlds.h"

static const Algorithm *const algorithms[] = {
#define ALGORITHM(name) &algorithm_##name,
#include "rl/learn/algorithms.def"
#undef ALGORITHM
};

const Algorithm *algorithm_at(size_t i) { return i < COUNT_OF(algorithms) ? algorithms[i] : NULL; }

static const Algorithm *algorithm_named(const char *name) {
    for (size_t i = 0; i < COUNT_OF(algorithms); i++)
        if (strcmp(algorithms[i]->name, name) == 0) return algorithms[i];
    return NULL;
}

/* ---- saved state ---- */

static void state_environment(Learner *learner, StateList *states) {
    Env *env = learner->env;
    state_bytes(states, "env/counts", env->counts, (size_t)env->copies * sizeof *env->counts);
    state_f64(states, "env/states", env->states, env->copies * env->state_size);
    if (env->played) state_f64(states, "env/played", env->played, env->copies * env->max_played * env->action.size);
    state_f64(states, "env/observations", env->observations, env->copies * env->observation.size);
    state_bytes(states, "env/lengths", env->lengths, (size_t)env->copies * sizeof *env->lengths);
    state_f64(states, "env/returns", learner->returns, env->copies);
}

void learner_list_state(Learner *learner, StateList *states) {
    learner->algorithm->policy(learner, states);
    if (learner->algorithm->list_state) learner->algorithm->list_state(learner, states);
    state_environment(learner, states);
    state_count(states, "updates", &learner->updates);
    state_count(states, "env_steps", &learner->steps);
    state_count(states, "episodes", &learner->all_episodes);
}

/* ---- opening ---- */

static Status find_algorithm(const char *name, const Algorithm **algorithm) {
    *algorithm = algorithm_named(name);
    if (*algorithm) return ST_OK;
    Str all = {0};
    for (size_t i = 0; i < COUNT_OF(algorithms); i++) str_printf(&all, "%s%s", i ? ", " : "", algorithms[i]->name);
    status_fail(ST_CONFIG, "'rl.algorithm' is '%s', which does not learn from an environment", name);
    status_hint(ST_CONFIG, "those that do are %s", str_text(&all));
    str_release(&all);
    return ST_CONFIG;
}

static Status check_fit(const Algorithm *algorithm, const Recipe *recipe, const Env *env) {
    bool discrete = env->action.n > 0;
    if (discrete ? !algorithm->discrete : !algorithm->box) {
        status_fail(ST_CONFIG, "algorithm '%s' does not fit environment '%s': its actions are %s", algorithm->name, env->id,
                    discrete ? "discrete" : "real numbers");
        return status_hint(ST_CONFIG, discrete ? "use ppo, a2c, reinforce or dqn" : "use ppo, a2c, reinforce or sac");
    }
    if (algorithm->tabular && env->observation.n == 0 && recipe->rl_tilings == 0) {
        status_fail(ST_CONFIG, "algorithm '%s' keeps a table of states, but the observations of environment '%s' are real numbers", algorithm->name,
                    env->id);
        return status_hint(
            ST_CONFIG,
            "rl.tilings: 8 cuts them into tiles, 1 tiling for algorithms that need numbered states (dyna_q, off_policy_mc); or use ppo or dqn");
    }
    return ST_OK;
}

/* A world with its own discount is solved with that discount, but learning uses rl.gamma. */
static Status warn_of_gamma(const Learner *learner) {
    const Env *env = learner->env;
    const Recipe *recipe = learner->recipe;
    const char *name = arena_strndup(learner->arena, env->id, strcspn(env->id, ":"));
    if (!name) return ST_RESOURCE;
    bool says = env->world && (mdp_is_file_name(name) || strstr(env->id, "gamma="));
    if (says && env->world->mdp.gamma != recipe->rl_gamma && !recipe_given(recipe, "rl.gamma"))
        log_message(LOG_WARNING, "environment '%s' has gamma %g, but learning discounts rewards by rl.gamma, which is %g: set rl.gamma to choose",
                    env->id, env->world->mdp.gamma, recipe->rl_gamma);
    return ST_OK;
}

/* A table needs state numbers; tiles are laid over the observations. */
static Status open_environment(Learner *learner, int64_t copies) {
    TRY(env_from_recipe(learner->recipe->rl_env, copies, &learner->env));
    if (learner->algorithm->tabular && learner->recipe->rl_tilings == 0) TRY(env_number_states(&learner->env));
    learner->world = learner->env->world;
    return warn_of_gamma(learner);
}

static Status open_learner(Learner *learner, int64_t copies) {
    TRY(find_algorithm(learner->recipe->rl_algorithm, &learner->algorithm));
    TRY(open_environment(learner, copies));
    TRY(check_fit(learner->algorithm, learner->recipe, learner->env));
    learner->returns = arena_zero(learner->arena, (size_t)copies * sizeof *learner->returns);
    learner->between_episodes = arena_zero(learner->arena, (size_t)copies * sizeof *learner->between_episodes);
    if (!learner->returns || !learner->between_episodes) return ST_RESOURCE;
    TRY(env_reset(learner->env, learner->seed));
    return learner->algorithm->open(learner);
}

Status learner_new(const Recipe *recipe, const Device *device, int64_t copies, Learner **out) {
    *out = NULL;
    Arena *arena = arena_new((size_t)MAX(memory_available(), 1));
    Learner *learner = arena ? arena_zero(arena, sizeof *learner) : NULL;
    if (!learner) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for learning");
    }
    *learner =
        (Learner){.recipe = recipe, .device = device, .arena = arena, .seed = (uint64_t)recipe->seed, .total_steps = MAX(recipe->rl_total_steps, 0)};
    Status status = open_learner(learner, copies);
    if (status == ST_OK)
        *out = learner;
    else
        learner_free(learner);
    return status;
}

void learner_free(Learner *learner) {
    if (!learner) return;
    if (learner->self && learner->algorithm->close) learner->algorithm->close(learner);
    env_free(learner->env);
    arena_free(learner->arena);
}

/* ---- memory ---- */

void memory_add_networks(TrainMemory *memory, const Params *params, const OptimizerConfig *optimizer) {
    for (size_t i = 0; i < params->n; i++) memory->weights += tensor_bytes(params->items[i].tensor);
    memory->gradients = memory->weights;
    memory->optimizer += optimizer_bytes(optimizer, params);
}

static Status advise_less(const Learner *learner) {
    bool replay = strstr(learner->algorithm->keys, "buffer_size") != NULL;
    return status_hint(ST_RESOURCE, "lower rl.num_envs or rl.%s", replay ? "buffer_size" : "num_steps");
}

static Status too_much(const Learner *learner, size_t need) {
    char needed[32], have[32];
    status_fail(ST_RESOURCE, "learning in %lld copies of '%s' needs %s of memory, the machine has %s left", (long long)learner->env->copies,
                learner->env->id, format_bytes((double)need, needed), format_bytes((double)memory_available(), have));
    return advise_less(learner);
}

/* Code pages that are touched for the first time, and thread stacks: 1.7 to 3 MiB measured on environments that use almost no memory. */
enum { FIRST_TIME = 2 << 20 };

Status learner_memory(Learner *learner, uint64_t resident, TrainMemory *memory) {
    *memory = (TrainMemory){.baseline = (size_t)resident + FIRST_TIME};
    learner->device->workspace_clear(learner->device);
    Status status = learner->algorithm->reserve ? learner->algorithm->reserve(learner, memory) : ST_OK;
    if (status != ST_OK) return status == ST_RESOURCE ? advise_less(learner) : status;
    size_t networks = memory->weights + memory->gradients + memory->optimizer,
           held = arena_resident(learner->arena) + arena_resident(learner->env->arena) + (learner->world ? arena_resident(learner->world->arena) : 0);
    memory->scratch = learner->device->workspace_bytes(learner->device);
    memory->experience = held - MIN(held, networks);
    memory->total = memory->baseline + MAX(held, networks) + memory->activations + memory->scratch;
    size_t need = memory->total - memory->baseline;
    return need <= memory_available() ? ST_OK : too_much(learner, need);
}

/* ---- while learning ---- */

/* Updates the episode of one copy after a step. */
static void count_step(Learner *learner, int64_t copy) {
    const Env *env = learner->env;
    learner->steps++;
    learner->returns[copy] += env->rewards[copy];
    if (!env->terminated[copy] && !env->truncated[copy]) return;
    tally_add(&learner->episodes.returns, learner->returns[copy]);
    tally_add(&learner->episodes.lengths, (double)env->final_lengths[copy]);
    learner->all_episodes++;
    learner->returns[copy] = 0;
}

Status learner_step(Learner *learner, const double *actions) {
    TRY(env_step(learner->env, actions, true));
    for (int64_t copy = 0; copy < learner->env->copies; copy++) count_step(learner, copy);
    return ST_OK;
}

Status learner_restart(Learner *learner) {
    for (int64_t copy = 0; copy < learner->env->copies; copy++) {
        TRY(env_start(learner->env, copy));
        learner->returns[copy] = 0;
        learner->between_episodes[copy] = false;
    }
    return ST_OK;
}

Status learner_play(Learner *learner, const double *actions) {
    const Env *env = learner->env;
    TRY(env_step(learner->env, actions, false));
    for (int64_t copy = 0; copy < env->copies; copy++) {
        if (learner->between_episodes[copy]) continue;
        count_step(learner, copy);
        learner->between_episodes[copy] = env->terminated[copy] || env->truncated[copy];
    }
    return ST_OK;
}

void learner_metric(Learner *learner, const char *name, double value) {
    if (learner->metrics) metric_set(learner->metrics, name, value);
}

/* Fraction of the run that is done, 0..1. */
static double progress(const Learner *learner) {
    return learner->total_steps > 0 ? fmin(1, (double)learner->steps / (double)learner->total_steps) : 1;
}

double learner_linear(const Learner *learner, double start, double end, double share) {
    double way = share > 0 ? fmin(1, progress(learner) / share) : 1;
    return start + way * (end - start);
}

RngKey learner_key(const Learner *learner, RngStream stream, uint64_t number) {
    return rng_key(rng_u64(rng_key(learner->seed, stream, (uint64_t)learner->updates), number), stream, 0);
}
