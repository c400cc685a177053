/* SPDX-License-Identifier: Apache-2.0 */
/* Environments that run as programs: JSON lines, one request and one answer each (env.h, env_new_command). */
#include "lib/base/log.h"
#include "lib/base/system.h"
#include "rl/env/env_kinds.h"
#include "rl/env/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_NUMBERS 1e7 /* limit of numbers in an action or an observation */
/* Limits of the stored actions with which a resumed run replays episodes: steps per episode if the program gives no limit, and numbers over all
 * copies */
enum { MAX_PLAYED = 10000, MAX_PLAYED_NUMBERS = 2 << 20 };

typedef struct Command {
    EnvKind kind; /* with the program's spaces */
    Program program;
    Arena *arena;
    bool warned_of_bounds;
    bool lost; /* the running episodes are lost: truncate them in the next step */
} Command;

/* ---- opening ---- */

static Status read_bound(Command *command, const json_t *list, int64_t size, double none, const double **bound) {
    double *values = arena_alloc(command->arena, (size_t)size * sizeof *values);
    if (!values) return ST_RESOURCE;
    for (int64_t i = 0; i < size; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        if (!json_is_number(value) && !json_is_null(value)) return program_wrong(&command->program, -1, "a bound is neither a number nor null");
        values[i] = json_is_null(value) ? none : json_number_value(value);
    }
    *bound = values;
    return ST_OK;
}

static Status read_space(Command *command, const char *name, Space *space) {
    const json_t *json = json_object_get(command->program.answer, name), *n = json_object_get(json, "n"), *low = json_object_get(json, "low"),
                 *high = json_object_get(json, "high");
    *space = (Space){.size = 1};
    if (json_is_integer(n) && json_integer_value(n) >= 1 && json_integer_value(n) <= INT32_MAX) {
        space->n = json_integer_value(n);
        return ST_OK;
    }
    char problem[100];
    snprintf(problem, sizeof problem, "'%s' is neither {\"n\": N} nor {\"low\": [...], \"high\": [...]}", name);
    if (!json_is_array(low) || !json_is_array(high) || json_array_size(low) != json_array_size(high) || json_array_size(low) < 1 ||
        (double)json_array_size(low) > MOST_NUMBERS)
        return program_wrong(&command->program, -1, problem);
    space->size = (int64_t)json_array_size(low);
    TRY(read_bound(command, low, space->size, -(double)INFINITY, &space->low));
    TRY(read_bound(command, high, space->size, (double)INFINITY, &space->high));
    for (int64_t i = 0; i < space->size; i++)
        if (space->low[i] > space->high[i]) return program_wrong(&command->program, -1, "a lower bound is above the upper one");
    return ST_OK;
}

static bool same_space(const Space *a, const Space *b) { return a->n == b->n && a->size == b->size; }

/* Starts the program and reads its spaces, which must be the same after a restart. */
static Status open_program(void *context) {
    Command *command = context;
    Program *program = &command->program;
    Space action, observation;
    TRY(program_start(program));
    TRY(read_space(command, "action", &action));
    TRY(read_space(command, "observation", &observation));
    if (command->kind.action.size && (!same_space(&action, &command->kind.action) || !same_space(&observation, &command->kind.observation)))
        return program_wrong(program, -1, "after a restart it has other actions or observations");
    command->kind.action = action;
    command->kind.observation = observation;
    command->kind.id = program->id;
    const json_t *steps = json_object_get(program->answer, "max_episode_steps");
    if (json_is_integer(steps) && json_integer_value(steps) > 0) command->kind.max_steps = json_integer_value(steps);
    return ST_OK;
}

/* ---- reading rows ---- */

static Status bad_number(const Command *command, const char *what, int64_t copy, const json_t *value) {
    char *text = json_text(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const Space *space = &command->kind.observation;
    if (space->n)
        status_fail(ST_INPUT, "environment '%s': %s of copy %lld is %.60s, expected a whole number from 0 to %lld", command->kind.id, what,
                    (long long)copy, text ? text : "nothing", (long long)space->n - 1);
    else
        status_fail(ST_INPUT, "environment '%s': %s of copy %lld is %.60s, expected %lld numbers", command->kind.id, what, (long long)copy,
                    text ? text : "nothing", (long long)space->size);
    free(text);
    return child_add_last_line(command->program.child, ST_INPUT);
}

/* Correct environments may return values outside their bounds; warn once. */
static void check_bounds(Command *command, int64_t copy, const double *row) {
    const Space *space = &command->kind.observation;
    for (int64_t i = 0; i < space->size && !command->warned_of_bounds; i++) {
        double slack = 1e-6 * fmax(1, fabs(row[i]));
        if (row[i] >= space->low[i] - slack && row[i] <= space->high[i] + slack) continue;
        log_message(LOG_WARNING, "environment '%s': number %lld of an observation of copy %lld is %g, said to be from %g to %g", command->kind.id,
                    (long long)i, (long long)copy, row[i], space->low[i], space->high[i]);
        command->warned_of_bounds = true;
    }
}

static Status read_observation(Command *command, const json_t *json, int64_t copy, double *row) {
    const Space *space = &command->kind.observation;
    if (space->n) {
        const json_t *value = json_is_array(json) && json_array_size(json) == 1 ? json_array_get(json, 0) : json;
        *row = json_number_value(value);
        bool fits = json_is_number(value) && *row >= 0 && *row < (double)space->n && *row == floor(*row);
        return fits ? ST_OK : bad_number(command, "the observation", copy, json);
    }
    if (json_array_size(json) != (size_t)space->size) return bad_number(command, "the observation", copy, json);
    for (int64_t i = 0; i < space->size; i++) {
        const json_t *value = json_array_get(json, (size_t)i);
        if (!json_is_number(value)) return bad_number(command, "the observation", copy, json);
        row[i] = json_number_value(value);
    }
    check_bounds(command, copy, row);
    return ST_OK;
}

/* ---- episodes ---- */

static bool rests(const Env *env, int64_t copy) { return env->lengths[copy] > 0 && (env->terminated[copy] || env->truncated[copy]); }

static void cut_off(Env *env, int64_t copy) {
    if (rests(env, copy)) return;
    env->truncated[copy] = true;
    env->lengths[copy] = MAX(env->lengths[copy], 1);
}

/* Seeds have 31 bits, which every program accepts, and depend on the copy's counter, so that a restarted program gets new episodes. */
static void write_reset(Env *env, Command *command, const bool *which) {
    bool first = true;
    str_clear(&command->program.request);
    str_append(&command->program.request, "{\"reset\": [");
    for (int64_t copy = 0; copy < env->copies; copy++) {
        if (!which[copy]) continue;
        uint64_t seed = rng_u64(rng_key(env->seed, RNG_NOISE, (uint64_t)copy), env->counts[copy]++) >> 33;
        str_printf(&command->program.request, "%s[%lld, %llu]", first ? "" : ", ", (long long)copy, (unsigned long long)seed);
        first = false;
    }
    str_append(&command->program.request, "]}\n");
}

static Status read_reset(Env *env, Command *command, const bool *which) {
    const json_t *observations;
    int64_t n = 0;
    for (int64_t copy = 0; copy < env->copies; copy++) n += which[copy];
    TRY(program_list(&command->program, "observations", n, &observations));
    for (int64_t copy = 0, i = 0; copy < env->copies; copy++) {
        if (!which[copy]) continue;
        TRY(read_observation(command, json_array_get(observations, (size_t)i++), copy, env->observations + copy * env->observation.size));
        env->lengths[copy] = 0;
    }
    return ST_OK;
}

/* Allocates the actions of episodes once their limit is known. */
static Status take_room(Env *env) {
    int64_t most = MAX(MAX_PLAYED_NUMBERS / (env->copies * env->action.size), 1);
    if (env->played) return ST_OK;
    env->max_played = MIN(most, env->max_steps > 0 ? env->max_steps : MAX_PLAYED);
    env->played = arena_zero(env->arena, (size_t)(env->copies * env->max_played * env->action.size) * sizeof *env->played);
    return env->played ? ST_OK : ST_RESOURCE;
}

/* If the program is restarted here, the other copies' episodes are lost. */
static Status env_command_begin(Env *env, const bool *which) {
    Command *command = env->remote;
    TRY(take_room(env));
    while (true) {
        write_reset(env, command, which);
        Status status = program_request(&command->program);
        if (status == ST_OK) return read_reset(env, command, which);
        if (status != ST_RESOURCE) return status;
        TRY(program_restart(&command->program, open_program, command));
        for (int64_t copy = 0; copy < env->copies; copy++)
            if (!which[copy]) cut_off(env, copy);
    }
}

/* Clips actions to their bounds. */
static void write_step(const Env *env, Command *command, const double *actions) {
    const Space *space = &env->action;
    str_clear(&command->program.request);
    str_append(&command->program.request, "{\"step\": [");
    for (int64_t copy = 0; copy < env->copies; copy++) {
        const double *action = actions + copy * space->size;
        if (copy) str_append(&command->program.request, ", ");
        if (rests(env, copy))
            str_append(&command->program.request, "null");
        else if (space->n)
            str_printf(&command->program.request, "%lld", (long long)*action);
        for (int64_t i = 0; !space->n && !rests(env, copy) && i < space->size; i++) {
            str_append(&command->program.request, i ? ", " : "[");
            str_append_double(&command->program.request, fmin(fmax(action[i], space->low[i]), space->high[i]));
            if (i + 1 == space->size) str_append(&command->program.request, "]");
        }
    }
    str_append(&command->program.request, "]}\n");
}

static Status read_step(Env *env, Command *command) {
    const json_t *observations, *rewards, *terminated, *truncated;
    TRY(program_list(&command->program, "observations", env->copies, &observations));
    TRY(program_list(&command->program, "rewards", env->copies, &rewards));
    TRY(program_list(&command->program, "terminated", env->copies, &terminated));
    TRY(program_list(&command->program, "truncated", env->copies, &truncated));
    for (int64_t copy = 0; copy < env->copies; copy++) {
        const json_t *reward = json_array_get(rewards, (size_t)copy), *ended = json_array_get(terminated, (size_t)copy),
                     *cut = json_array_get(truncated, (size_t)copy);
        if (rests(env, copy)) continue;
        if (!json_is_number(reward)) return program_wrong(&command->program, -1, "a reward is not a number");
        if (!json_is_boolean(ended) || !json_is_boolean(cut))
            return program_wrong(&command->program, -1, "'terminated' and 'truncated' are not true or false");
        TRY(read_observation(command, json_array_get(observations, (size_t)copy), copy, env->observations + copy * env->observation.size));
        env->rewards[copy] = json_number_value(reward);
        env->terminated[copy] = json_is_true(ended);
        env->truncated[copy] = json_is_true(cut);
        env->lengths[copy]++;
    }
    return ST_OK;
}

static void cut_off_all(Env *env) {
    for (int64_t copy = 0; copy < env->copies; copy++) cut_off(env, copy);
}

/* Stores the actions for a resume. */
static void env_command_remember(Env *env, const double *actions) {
    size_t size = (size_t)env->action.size;
    for (int64_t copy = 0; copy < env->copies; copy++)
        if (!rests(env, copy) && env->lengths[copy] < env->max_played)
            memcpy(env->played + (size_t)(copy * env->max_played + env->lengths[copy]) * size, actions + (size_t)copy * size, size * sizeof *actions);
}

static Status env_command_step(Env *env, const double *actions) {
    Command *command = env->remote;
    for (int64_t copy = 0; copy < env->copies; copy++) env->rewards[copy] = 0;
    if (command->lost) {
        command->lost = false;
        cut_off_all(env);
        return ST_OK;
    }
    write_step(env, command, actions);
    Status status = program_request(&command->program);
    if (status == ST_OK) {
        program_note_success(&command->program);
        env_command_remember(env, actions);
        return read_step(env, command);
    }
    if (status != ST_RESOURCE) return status;
    TRY(program_restart(&command->program, open_program, command));
    cut_off_all(env);
    return ST_OK;
}

/* ---- resuming ---- */

/* The environment's state at the checkpoint. */
typedef struct Past {
    int64_t *lengths;
    uint64_t *counts;
    double *observations, *actions;
} Past;

static size_t seen_bytes(const Env *env) { return (size_t)(env->copies * env->observation.size) * sizeof *env->observations; }

static Status take_past(const Env *env, Past *past) {
    Arena *arena = env->arena;
    size_t copies = (size_t)env->copies;
    past->lengths = arena_alloc(arena, copies * sizeof *past->lengths);
    past->counts = arena_alloc(arena, copies * sizeof *past->counts);
    past->observations = arena_alloc(arena, seen_bytes(env));
    past->actions = arena_zero(arena, copies * (size_t)env->action.size * sizeof *past->actions);
    if (!past->lengths || !past->counts || !past->observations || !past->actions) return ST_RESOURCE;
    memcpy(past->lengths, env->lengths, copies * sizeof *past->lengths);
    memcpy(past->counts, env->counts, copies * sizeof *past->counts);
    memcpy(past->observations, env->observations, seen_bytes(env));
    return ST_OK;
}

/* Copies that have reached their place idle while the others are stepped; writes the others' actions of step t into past->actions. */
static bool next_actions(Env *env, const Past *past, int64_t t) {
    size_t size = (size_t)env->action.size;
    bool any = false;
    for (int64_t copy = 0; copy < env->copies; copy++) {
        if (t < past->lengths[copy]) {
            any = true;
            memcpy(past->actions + (size_t)copy * size, env->played + (size_t)(copy * env->max_played + t) * size, size * sizeof *past->actions);
        } else
            cut_off(env, copy);
    }
    return any;
}

/* Whether the copy has reached its place. A copy that was idle then is idle now. */
static bool came_back(Env *env, const Past *past, int64_t copy) {
    size_t size = (size_t)env->observation.size, at = (size_t)copy * size;
    int64_t length = past->lengths[copy];
    bool ended = env->terminated[copy] || (length > 0 && env->max_steps > 0 && length >= env->max_steps), same;
    same = env->lengths[copy] == MAX(length, 1) && env->counts[copy] == past->counts[copy] &&
           memcmp(env->observations + at, past->observations + at, size * sizeof *env->observations) == 0;
    env->lengths[copy] = length;
    env->truncated[copy] = ended && !env->terminated[copy];
    return same;
}

static Status repeat(Env *env, Command *command, const Past *past) {
    for (int64_t copy = 0; copy < env->copies; copy++) {
        env->counts[copy] -= env->counts[copy] > 0; /* the start is repeated */
        env->begins[copy] = true;
        env->terminated[copy] = env->truncated[copy] = false;
    }
    TRY(env_command_begin(env, env->begins));
    for (int64_t t = 0; next_actions(env, past, t); t++) {
        write_step(env, command, past->actions);
        TRY(program_request(&command->program));
        TRY(read_step(env, command));
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

static Status resume(Env *env) {
    Command *command = env->remote;
    Past past;
    int64_t lost = 0;
    TRY(take_past(env, &past));
    for (int64_t copy = 0; copy < env->copies; copy++) lost += past.lengths[copy] > env->max_played;
    if (lost == 0) {
        Status status = repeat(env, command, &past);
        for (int64_t copy = 0; copy < env->copies; copy++) lost += !came_back(env, &past, copy);
        if (status == ST_RESOURCE)
            status = program_restart(&command->program, open_program, command); /* it died during the replay, so came_back was false for all copies */
        TRY(status);
    }
    if (lost == 0) return ST_OK;
    log_message(LOG_WARNING,
                "environment '%s': %lld of %lld episodes differ in the replay: all are truncated, so the run differs from what an "
                "uninterrupted run would have done",
                command->kind.id, (long long)lost, (long long)env->copies);
    command->lost = true;
    memcpy(env->lengths, past.lengths, (size_t)env->copies * sizeof *env->lengths);
    memcpy(env->observations, past.observations, seen_bytes(env));
    for (int64_t copy = 0; copy < env->copies; copy++) env->terminated[copy] = env->truncated[copy] = false;
    return ST_OK;
}

static void free_command(Command *command, double patience) {
    program_stop(&command->program, patience);
    arena_free(command->arena);
}

static void close_remote(Env *env) { free_command(env->remote, 2); }

static Status open_command(Command *command, int64_t copies, Env **env) {
    command->kind =
        (EnvKind){.id = command->program.id, .begin = env_command_begin, .step_all = env_command_step, .resume = resume, .close = close_remote};
    Status status = open_program(command);
    if (status == ST_RESOURCE) return child_add_last_line(command->program.child, status);
    TRY(status);
    TRY(env_allocate(&command->kind, copies, env));
    (*env)->remote = command;
    return ST_OK;
}

Status env_new_command(const char *const *argv, size_t n, int64_t copies, double timeout, Env **env) {
    *env = NULL;
    if (n == 0 || !*argv[0]) return status_fail(ST_CONFIG, "the command of the environment is empty");
    if (!(timeout > 0)) return status_fail(ST_CONFIG, "the time-out of an environment is %g s, expected more than 0", timeout);
    if (copies < 1) return status_fail(ST_CONFIG, "an environment needs at least one copy, got %lld", (long long)copies);
    Arena *arena = arena_new(0);
    Command *command = arena ? arena_zero(arena, sizeof *command) : NULL;
    if (!command) {
        arena_free(arena);
        return ST_RESOURCE;
    }
    command->arena = arena;
    Status status = program_init(&command->program, argv, n, copies, timeout, arena);
    if (status == ST_OK) status = open_command(command, copies, env);
    if (status != ST_OK) free_command(command, 0);
    return status;
}
