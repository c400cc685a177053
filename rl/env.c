/* Copies, episodes, time limits and arguments: all that environments have in common. */
#include "rl/env_kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRAWS_PER_STEP 256

static const EnvKind *const kinds[] = {
#define ENV(name) &env_kind_##name,
#include "rl/envs.def"
#undef ENV
};

double env_uniform(EnvDraws *draws, double low, double high) { return low + (high - low) * rng_uniform(draws->key, draws->next++); }

int64_t env_below(EnvDraws *draws, int64_t n) { return (int64_t)rng_below(draws->key, draws->next++, (uint64_t)n); }

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
    Arena *arena = arena_new(0);
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
        !(env->rewards = rows(arena, copies, 1, sizeof(double))) || !(env->terminated = rows(arena, copies, 1, sizeof(bool))) || !(env->truncated = rows(arena, copies, 1, sizeof(bool))) ||
        !(env->lengths = rows(arena, copies, 1, sizeof(int64_t))) || !(env->final_lengths = rows(arena, copies, 1, sizeof(int64_t))) || !(env->states = rows(arena, copies, env->state_size, sizeof(double))) ||
        !(env->counts = rows(arena, copies, 1, sizeof(uint64_t)))) {
        arena_free(arena);
        return ST_RESOURCE;
    }
    *out = env;
    return ST_OK;
}

void env_free(Env *env) {
    if (env) arena_free(env->arena);
}

/* ---- arguments ---- */

static Status find_kind(const char *id, const EnvKind **kind) {
    const char *ids[COUNT_OF(kinds)];
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        ids[i] = kinds[i]->id;
        if (strcmp(ids[i], id) == 0) {
            *kind = kinds[i];
            return ST_OK;
        }
    }
    const char *near = text_nearest(id, ids, COUNT_OF(ids));
    status_fail(ST_CONFIG, "unknown environment '%s'", id);
    return near ? status_hint(ST_CONFIG, "did you mean '%s'?", near) : ST_CONFIG;
}

static bool read_bool(const char *text, double *value) {
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "True") == 0 || strcmp(text, "1") == 0;
    *value = yes;
    return yes || strcmp(text, "false") == 0 || strcmp(text, "False") == 0 || strcmp(text, "0") == 0;
}

static bool read_number(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && isfinite(*value);
}

static Status unknown_argument(const EnvKind *kind, const char *name) {
    const char *names[ENV_ARGUMENTS + 1] = {"max_episode_steps"};
    size_t n = 1;
    for (const EnvArgument *a = kind->arguments; a < kind->arguments + ENV_ARGUMENTS && a->name; a++) names[n++] = a->name;
    const char *near = text_nearest(name, names, n);
    status_fail(ST_CONFIG, "unknown argument '%s' of environment '%s'", name, kind->id);
    if (near) return status_hint(ST_CONFIG, "did you mean '%s'?", near);
    Str all = {0};
    for (size_t i = 0; i < n; i++) str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    status_hint(ST_CONFIG, "it takes %s", str_text(&all));
    str_release(&all);
    return ST_CONFIG;
}

static Status set_argument(Env *env, double *values, const char *name, const char *text) {
    const EnvKind *kind = env->kind;
    if (strcmp(name, "max_episode_steps") == 0) {
        double steps;
        if (!read_number(text, &steps) || steps < 0 || steps > 9e15 || steps != floor(steps))
            return status_fail(ST_CONFIG, "argument 'max_episode_steps' of environment '%s' is '%s', expected a whole number from 0", kind->id, text);
        env->max_steps = (int64_t)steps;
        return ST_OK;
    }
    for (size_t i = 0; i < ENV_ARGUMENTS && kind->arguments[i].name; i++) {
        const EnvArgument *argument = &kind->arguments[i];
        if (strcmp(name, argument->name) != 0) continue;
        bool read = argument->is_bool ? read_bool(text, &values[i]) : read_number(text, &values[i]);
        bool bounded = argument->high > argument->low;
        if (read && bounded && (values[i] < argument->low || values[i] > argument->high))
            return status_fail(ST_CONFIG, "argument '%s' of environment '%s' is %s, expected %g to %g", name, kind->id, text, argument->low, argument->high);
        if (read) return ST_OK;
        return status_fail(ST_CONFIG, "argument '%s' of environment '%s' is '%s', expected %s", name, kind->id, text, argument->is_bool ? "true or false" : "a number");
    }
    return unknown_argument(kind, name);
}

static Status set_arguments(Env *env, char *text) {
    double *values = arena_zero(env->arena, ENV_ARGUMENTS * sizeof *values);
    if (!values) return ST_RESOURCE;
    for (size_t i = 0; i < ENV_ARGUMENTS; i++) values[i] = env->kind->arguments[i].value;
    env->context = values;
    for (char *rest; text; text = rest) {
        rest = strchr(text, ',');
        if (rest) *rest++ = '\0';
        char *equals = strchr(text, '=');
        if (!equals) return status_fail(ST_CONFIG, "argument '%s' of environment '%s' has no value, expected key=value", text, env->kind->id);
        *equals = '\0';
        TRY(set_argument(env, values, text, equals + 1));
    }
    return ST_OK;
}

static Status make(char *spec, int64_t copies, Env **env) {
    char *arguments = strchr(spec, ':');
    if (arguments) *arguments++ = '\0';
    const EnvKind *kind = NULL;
    TRY(find_kind(spec, &kind));
    TRY(env_allocate(kind, copies, env));
    Status status = set_arguments(*env, arguments);
    if (status != ST_OK) {
        env_free(*env);
        *env = NULL;
    }
    return status;
}

Status env_new(const char *spec, int64_t copies, Env **env) {
    *env = NULL;
    Str text = {0};
    str_append(&text, spec);
    Status status = text.len ? make(text.data, copies, env) : status_fail(ST_CONFIG, "the name of the environment is empty");
    str_release(&text);
    return status;
}

/* ---- episodes ---- */

static double *state_of(const Env *env, int64_t copy) { return env->states + copy * env->state_size; }

static EnvDraws next_draws(Env *env, int64_t copy) {
    return (EnvDraws){rng_key(env->seed, RNG_NOISE, (uint64_t)copy), env->counts[copy]++ * DRAWS_PER_STEP};
}

static void observe(const Env *env, int64_t copy, double *rows_of) {
    env->kind->observe(env->context, state_of(env, copy), rows_of + copy * env->observation.size);
}

static void begin_episode(Env *env, int64_t copy) {
    env->lengths[copy] = 0;
    EnvDraws draws = next_draws(env, copy);
    env->kind->start(env->context, &draws, state_of(env, copy));
    observe(env, copy, env->observations);
}

void env_start(Env *env, int64_t copy) {
    ASSERT(copy >= 0 && copy < env->copies, "copy %lld of %lld", (long long)copy, (long long)env->copies);
    env->terminated[copy] = env->truncated[copy] = false;
    env->rewards[copy] = 0;
    begin_episode(env, copy);
}

void env_reset(Env *env, uint64_t seed) {
    env->seed = seed;
    memset(env->counts, 0, (size_t)env->copies * sizeof *env->counts);
    for (int64_t copy = 0; copy < env->copies; copy++) env_start(env, copy);
}

static Status check_actions(const Env *env, const double *actions) {
    const Space *space = &env->action;
    for (int64_t i = 0; i < env->copies * space->size; i++) {
        double action = actions[i];
        long long copy = (long long)(i / space->size);
        if (!isfinite(action)) return status_fail(ST_INPUT, "action of copy %lld is not a finite number, in environment '%s'", copy, env->id);
        if (space->n && (action < 0 || action >= (double)space->n || action != floor(action)))
            return status_fail(ST_INPUT, "action %g of copy %lld is not a whole number from 0 to %lld, in environment '%s'", action, copy, (long long)space->n - 1, env->id);
    }
    return ST_OK;
}

static void step_copy(Env *env, int64_t copy, const double *action, bool auto_reset) {
    /* Where an ended episode has been followed by a new one, length is 0 and the flags are those of the step before. */
    bool resting = env->lengths[copy] > 0 && (env->terminated[copy] || env->truncated[copy]);
    env->rewards[copy] = 0;
    if (resting) return;
    EnvDraws draws = next_draws(env, copy);
    env->terminated[copy] = env->kind->step(env->context, &draws, action, state_of(env, copy), &env->rewards[copy]);
    env->truncated[copy] = ++env->lengths[copy] >= env->max_steps && env->max_steps > 0;
    observe(env, copy, env->observations);
    if (!env->terminated[copy] && !env->truncated[copy]) return;
    observe(env, copy, env->final_observations);
    env->final_lengths[copy] = env->lengths[copy];
    if (auto_reset) begin_episode(env, copy);
}

Status env_step(Env *env, const double *actions, bool auto_reset) {
    TRY(check_actions(env, actions));
    for (int64_t copy = 0; copy < env->copies; copy++) step_copy(env, copy, actions + copy * env->action.size, auto_reset);
    return ST_OK;
}

Status env_set_state(Env *env, int64_t copy, const double *state) {
    ASSERT(copy >= 0 && copy < env->copies, "copy %lld of %lld", (long long)copy, (long long)env->copies);
    bool good = true;
    for (int64_t i = 0; i < env->state_size; i++) good = good && isfinite(state[i]);
    if (!good || (env->kind->is_state && !env->kind->is_state(env->context, state)))
        return status_fail(ST_INPUT, "the %lld numbers are no state of environment '%s'", (long long)env->state_size, env->id);
    memcpy(state_of(env, copy), state, (size_t)env->state_size * sizeof *state);
    env->lengths[copy] = 0;
    env->rewards[copy] = 0;
    env->terminated[copy] = env->truncated[copy] = false;
    observe(env, copy, env->observations);
    return ST_OK;
}
