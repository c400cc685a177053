/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of all environments: copies, episodes, time limits and arguments. */
#include "lib/base/system.h"
#include "rl/env/env_kinds.h"
#include "rl/mdp/worlds.h"

#include <math.h>
#include <string.h>

#define DRAWS_PER_STEP 256

static const EnvKind *const kinds[] = {
#define ENV(name) &env_kind_##name,
#include "rl/env/envs.def"
#undef ENV
};

/* The key is made here, not at the start of a step, since most steps draw nothing. */
double env_uniform(EnvDraws *draws, double low, double high) {
    return low + (high - low) * rng_uniform(rng_key(draws->seed, RNG_NOISE, draws->copy), draws->next++);
}

int64_t env_below(EnvDraws *draws, int64_t n) { return (int64_t)rng_below(rng_key(draws->seed, RNG_NOISE, draws->copy), draws->next++, (uint64_t)n); }

void env_observe_f32(const double *values, int64_t n, double *observation) {
    for (int64_t i = 0; i < n; i++) observation[i] = (double)(float)values[i];
}

static void *rows(Arena *arena, int64_t copies, int64_t width, size_t size) {
    size_t bytes;
    if (!size_mul((size_t)copies, (size_t)width, &bytes) || !size_mul(bytes, size, &bytes)) {
        status_fail(ST_RESOURCE, "%lld copies of an environment do not fit into memory", (long long)copies);
        return NULL;
    }
    return arena_zero(arena, bytes);
}

Status env_allocate(const EnvKind *kind, int64_t copies, Env **out) {
    *out = NULL;
    if (copies < 1) return status_fail(ST_CONFIG, "an environment needs at least one copy, got %lld", (long long)copies);
    Arena *arena = arena_new((size_t)MAX(memory_available(), 1));
    Env *env = arena ? arena_zero(arena, sizeof *env) : NULL;
    if (!env) {
        arena_free(arena);
        return ST_RESOURCE;
    }
    *env = (Env){.kind = kind, .id = kind->id, .copies = copies, .state_size = kind->state_size, .max_steps = kind->max_steps, .arena = arena};
    env->action = kind->action;
    env->observation = kind->observation;
    if (!(env->observations = rows(arena, copies, env->observation.size, sizeof(double))) ||
        !(env->final_observations = rows(arena, copies, env->observation.size, sizeof(double))) ||
        !(env->rewards = rows(arena, copies, 1, sizeof(double))) || !(env->terminated = rows(arena, copies, 1, sizeof(bool))) ||
        !(env->truncated = rows(arena, copies, 1, sizeof(bool))) || !(env->lengths = rows(arena, copies, 1, sizeof(int64_t))) ||
        !(env->final_lengths = rows(arena, copies, 1, sizeof(int64_t))) || !(env->states = rows(arena, copies, env->state_size, sizeof(double))) ||
        !(env->counts = rows(arena, copies, 1, sizeof(uint64_t))) || !(env->begins = rows(arena, copies, 1, sizeof(bool)))) {
        arena_free(arena);
        return status_hint(ST_RESOURCE, "use fewer copies");
    }
    *out = env;
    return ST_OK;
}

void env_free(Env *env) {
    if (!env) return;
    if (env->kind->close) env->kind->close(env);
    named_mdp_free(env->world);
    arena_free(env->arena);
}

/* ---- by name ---- */

const EnvKind *env_kind_find(const char *id) {
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (strcmp(kinds[i]->id, id) == 0) return kinds[i];
    return NULL;
}

const char *env_id_at(size_t i) {
    return i < COUNT_OF(kinds) ? kinds[i]->id : i - COUNT_OF(kinds) < n_worlds ? worlds[i - COUNT_OF(kinds)]->id : NULL;
}

static Status unknown_environment(const char *id) {
    const char *ids[COUNT_OF(kinds) + 64];
    size_t n = 0;
    ASSERT(n_worlds <= 64, "%zu worlds", n_worlds);
    for (; env_id_at(n); n++) ids[n] = env_id_at(n);
    const char *near = text_nearest(id, ids, n);
    status_fail(ST_CONFIG, "unknown environment '%s'", id);
    return status_hint(ST_CONFIG, "%s%s%sfor any Gymnasium environment use env: {command: [python3, recipes/gym_bridge.py, %s]}",
                       near ? "did you mean '" : "", near ? near : "", near ? "'? " : "", id);
}

static Status set_arguments(Env *env, char *text) {
    static const Argument common[MAX_ARGUMENTS] = {{.name = "max_episode_steps", .value = -1, .is_whole = true, .high = 9e15}};
    Arguments shared, *values = arena_alloc(env->arena, sizeof *values);
    if (!values) return ST_RESOURCE;
    TRY(arguments_read(env->id, text, env->kind->arguments, values, common, &shared));
    if (shared.number[0] >= 0) env->max_steps = (int64_t)shared.number[0];
    env->context = values->number;
    return ST_OK;
}

static Status make_kind(const EnvKind *kind, char *arguments, int64_t copies, Env **env) {
    TRY(env_allocate(kind, copies, env));
    Status status = set_arguments(*env, arguments);
    if (status == ST_OK) return ST_OK;
    env_free(*env);
    *env = NULL;
    return status;
}

void env_set_id(Env *env, const char *spec) {
    const char *id = arena_strdup(env->arena, spec);
    if (id) env->id = id;
}

static Status make_world(const char *spec, int64_t copies, Env **env) {
    NamedMdp *world;
    TRY(mdp_open(spec, &world));
    Status status = env_new_world(world, copies, env);
    if (status != ST_OK) {
        named_mdp_free(world);
        return status;
    }
    env_set_id(*env, spec);
    (*env)->world = world;
    return ST_OK;
}

Status env_new(const char *spec, int64_t copies, Env **env) {
    *env = NULL;
    Str id = {0};
    str_append(&id, spec);
    char *arguments = id.len ? strchr(str_text(&id), ':') : NULL;
    if (arguments) *arguments++ = '\0';
    const EnvKind *kind = env_kind_find(str_text(&id));
    Status status;
    if (!*spec)
        status = status_fail(ST_CONFIG, "the name of the environment is empty");
    else if (kind)
        status = make_kind(kind, arguments, copies, env);
    else if (world_find(str_text(&id)) || mdp_is_file_name(str_text(&id)))
        status = make_world(spec, copies, env);
    else
        status = unknown_environment(str_text(&id));
    str_release(&id);
    return status;
}

Status env_open_world(const char *spec, double gamma, NamedMdp **world) {
    Str id = {0};
    *world = NULL;
    str_append_n(&id, spec, strcspn(spec, ":"));
    const EnvKind *kind = world_find(str_text(&id)) ? NULL : env_kind_find(str_text(&id)); /* some ids are a world and an environment */
    str_release(&id);
    if (!kind) return mdp_open_discounted(spec, gamma, world);
    status_fail(ST_CONFIG, "environment '%s' is not a finite MDP", kind->id);
    return status_hint(ST_CONFIG, "it can be simulated and used for learning, but not solved");
}

/* ---- episodes ---- */

static double *state_of(const Env *env, int64_t copy) { return env->states + copy * env->state_size; }

static EnvDraws next_draws(Env *env, int64_t copy) { return (EnvDraws){env->seed, (uint64_t)copy, env->counts[copy]++ * DRAWS_PER_STEP}; }

static void env_observe(const Env *env, int64_t copy, double *rows_of) {
    env->kind->observe(env->context, state_of(env, copy), rows_of + copy * env->observation.size);
}

static void begin_episode(Env *env, int64_t copy) {
    env->lengths[copy] = 0;
    EnvDraws draws = next_draws(env, copy);
    env->kind->start(env->context, &draws, state_of(env, copy));
    env_observe(env, copy, env->observations);
}

/* A program's failure is stored, so that a caller who ignored it when an episode started gets it from the next step. */
static Status keep_failure(Env *env, Status status) {
    if (status != ST_OK && env->failure.status == ST_OK) failure_save(&env->failure, status);
    return status;
}

static void clear_ends(Env *env, int64_t copy) {
    env->terminated[copy] = env->truncated[copy] = false;
    env->rewards[copy] = 0;
}

Status env_start(Env *env, int64_t copy) {
    ASSERT(copy >= 0 && copy < env->copies, "copy %lld of %lld", (long long)copy, (long long)env->copies);
    clear_ends(env, copy);
    if (env->kind->begin) {
        memset(env->begins, 0, (size_t)env->copies);
        env->begins[copy] = true;
        return keep_failure(env, env->kind->begin(env, env->begins));
    }
    begin_episode(env, copy);
    return ST_OK;
}

Status env_reset(Env *env, uint64_t seed) {
    env->seed = seed;
    memset(env->counts, 0, (size_t)env->copies * sizeof *env->counts);
    for (int64_t copy = 0; copy < env->copies; copy++) {
        clear_ends(env, copy);
        if (!env->kind->begin) begin_episode(env, copy);
    }
    if (!env->kind->begin) return ST_OK;
    memset(env->begins, true, (size_t)env->copies);
    return keep_failure(env, env->kind->begin(env, env->begins));
}

static Status bad_action(const Env *env, int64_t i, double action) {
    long long copy = (long long)(i / env->action.size);
    if (!isfinite(action)) return status_fail(ST_INPUT, "action of copy %lld is not a finite number, in environment '%s'", copy, env->id);
    return status_fail(ST_INPUT, "action %g of copy %lld is not a whole number from 0 to %lld, in environment '%s'", action, copy,
                       (long long)env->action.n - 1, env->id);
}

static Status missing_action(const Env *env, int64_t copy, double action) {
    Str text = {0};
    NamedMdp unnamed = {0};
    const NamedMdp *names = env->world ? env->world : &unnamed;
    mdp_append_state(&text, names, (int64_t)env->observations[copy]);
    str_append(&text, " does not have ");
    mdp_append_action(&text, names, (int64_t)action);
    status_fail(ST_INPUT, "%s, in environment '%s' (copy %lld)", str_text(&text), env->id, (long long)copy);
    str_release(&text);
    return ST_INPUT;
}

/* After an automatic reset the length is 0 and the flags are those of the previous step. */
static bool rests(const Env *env, int64_t copy) { return env->lengths[copy] > 0 && (env->terminated[copy] || env->truncated[copy]); }

static Status check_actions(const Env *env, const double *actions) {
    const double n = (double)env->action.n;
    for (int64_t i = 0; i < env->copies * env->action.size; i++) {
        double action = actions[i];
        bool good = env->action.n ? action >= 0 && action < n && action == (double)(int64_t)action : isfinite(action);
        if (!good) return bad_action(env, i, action);
        if (env->action.allowed && !rests(env, i) && !space_allows(&env->action, env->observations[i], (int64_t)action))
            return missing_action(env, i, action);
    }
    return ST_OK;
}

static void step_copy(Env *env, int64_t copy, const double *action, bool auto_reset) {
    env->rewards[copy] = 0;
    if (rests(env, copy)) return;
    EnvDraws draws = next_draws(env, copy);
    env->terminated[copy] = env->kind->step(env->context, &draws, action, state_of(env, copy), &env->rewards[copy]);
    env->truncated[copy] = ++env->lengths[copy] >= env->max_steps && env->max_steps > 0;
    env_observe(env, copy, env->observations);
    if (!env->terminated[copy] && !env->truncated[copy]) return;
    env_observe(env, copy, env->final_observations);
    env->final_lengths[copy] = env->lengths[copy];
    if (auto_reset) begin_episode(env, copy);
}

/* Stores final observations and lengths of episodes that ended in this step; true if there are any. On entry `begins` marks copies that were idle
 * before the step. */
static bool keep_ends(Env *env) {
    bool any = false;
    for (int64_t copy = 0; copy < env->copies; copy++) {
        if (!env->begins[copy] && env->max_steps > 0 && env->lengths[copy] >= env->max_steps) env->truncated[copy] = true;
        bool ended = rests(env, copy) && !env->begins[copy];
        env->begins[copy] = ended;
        if (!ended) continue;
        size_t size = (size_t)env->observation.size, at = (size_t)copy * size;
        memcpy(env->final_observations + at, env->observations + at, size * sizeof *env->observations);
        env->final_lengths[copy] = env->lengths[copy];
        any = true;
    }
    return any;
}

/* Starting episodes may lose others (a restarted program): then those start too. */
static Status step_remote(Env *env, const double *actions, bool auto_reset) {
    TRY(failure_restore(&env->failure));
    for (int64_t copy = 0; copy < env->copies; copy++) env->begins[copy] = rests(env, copy);
    TRY(env->kind->step_all(env, actions));
    bool any = keep_ends(env);
    while (auto_reset && any) {
        TRY(env->kind->begin(env, env->begins));
        memset(env->begins, 0, (size_t)env->copies);
        any = keep_ends(env);
    }
    return ST_OK;
}

Status env_step(Env *env, const double *actions, bool auto_reset) {
    TRY(check_actions(env, actions));
    if (env->kind->step_all) return keep_failure(env, step_remote(env, actions, auto_reset));
    for (int64_t copy = 0; copy < env->copies; copy++) step_copy(env, copy, actions + copy * env->action.size, auto_reset);
    return ST_OK;
}

Status env_resume(Env *env) {
    if (!env->kind->resume || env->failure.status != ST_OK) return ST_OK; /* the next step reports a failure */
    return keep_failure(env, env->kind->resume(env));
}

bool env_is_remote(const Env *env) { return env->kind->step_all != NULL; }

Status env_set_state(Env *env, int64_t copy, const double *state) {
    ASSERT(copy >= 0 && copy < env->copies, "copy %lld of %lld", (long long)copy, (long long)env->copies);
    if (env->kind->step_all) return status_fail(ST_INPUT, "the state of environment '%s' can't be set: it is in another program", env->id);
    bool good = true;
    for (int64_t i = 0; i < env->state_size; i++) good = good && isfinite(state[i]);
    if (!good || (env->kind->is_state && !env->kind->is_state(env->context, state)))
        return status_fail(ST_INPUT, "the %lld numbers are not a state of environment '%s'", (long long)env->state_size, env->id);
    memcpy(state_of(env, copy), state, (size_t)env->state_size * sizeof *state);
    env->lengths[copy] = 0;
    clear_ends(env, copy);
    env_observe(env, copy, env->observations);
    return ST_OK;
}
