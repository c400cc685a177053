/* SPDX-License-Identifier: Apache-2.0 */
/* Text environments that run as programs: JSON lines, one request and one answer each. */
#include "rl/env/program.h"
#include "rl/text/text_env.h"

#include <math.h>
#include <string.h>

enum { MAX_TURNS = 8 };
static const double timeout_usual = 60;

struct TextEnv {
    Arena *arena;
    Program program; /* observations point into its answer */
    int64_t max_turns;
    double timeout;
    TextTurn *turns; /* (copies) */
    bool *acts;      /* (copies) has an action in the request that was begun */
};

/* ---- opening ---- */

static bool says_text(const TextEnv *env, const char *name) {
    const char *kind = json_string_value(json_object_get(env->program.answer, name));
    return kind && strcmp(kind, "text") == 0;
}

static Status open_program(void *context) {
    TextEnv *env = context;
    TRY(program_start(&env->program));
    if (says_text(env, "action") && says_text(env, "observation")) return ST_OK;
    program_wrong(&env->program, -1, "its actions and observations are not texts");
    return status_hint(ST_INPUT, "expected {\"action\": \"text\", \"observation\": \"text\"}; for an environment of numbers leave out text: true");
}

/* ---- answers ---- */

static Status read_observation(TextEnv *env, const json_t *json, int64_t copy) {
    bool good = json_is_string(json) || (json_is_array(json) && json_array_size(json) > 0) ||
                (json_is_object(json) && (json_object_get(json, "content") || json_object_get(json, "messages")));
    if (!good) return program_wrong(&env->program, copy, "its observation is not a text, a message or a list of messages");
    env->turns[copy].observation = json;
    return ST_OK;
}

/* ---- episodes ---- */

static Status read_reset(TextEnv *env, int64_t n) {
    const json_t *observations;
    TRY(program_list(&env->program, "observations", n, &observations));
    for (int64_t copy = 0; copy < n; copy++) {
        env->turns[copy] = (TextTurn){0};
        TRY(read_observation(env, json_array_get(observations, (size_t)copy), copy));
    }
    return ST_OK;
}

Status text_env_reset(TextEnv *env, const uint64_t *seeds, int64_t n) {
    ASSERT(n <= env->program.copies, "%lld episodes for %lld copies", (long long)n, (long long)env->program.copies);
    while (true) {
        str_clear(&env->program.request);
        str_append(&env->program.request, "{\"reset\": [");
        for (int64_t copy = 0; copy < n; copy++)
            str_printf(&env->program.request, "%s[%lld, %llu]", copy ? ", " : "", (long long)copy, (unsigned long long)seeds[copy]);
        str_append(&env->program.request, "]}\n");
        Status status = program_request(&env->program);
        if (status == ST_OK) return read_reset(env, n);
        if (status != ST_RESOURCE) return status;
        TRY(program_restart(&env->program, open_program, env));
    }
}

static void write_step(TextEnv *env, const Slice *actions, int64_t n) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_array(&w, "step");
    for (int64_t copy = 0; copy < env->program.copies; copy++) {
        env->acts[copy] = copy < n && actions[copy].data;
        if (env->acts[copy])
            jw_string_n(&w, NULL, actions[copy].data, actions[copy].len);
        else
            jw_null(&w, NULL);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    str_clear(&env->program.request);
    str_append_n(&env->program.request, str_text(&w.text), w.text.len);
    str_append_char(&env->program.request, '\n');
    jw_release(&w);
}

static Status read_copy(TextEnv *env, int64_t copy, const json_t *observation, const json_t *reward, const json_t *ended, const json_t *cut) {
    TextTurn *turn = &env->turns[copy];
    if (!json_is_number(reward) || !isfinite(json_number_value(reward))) return program_wrong(&env->program, copy, "its reward is not a number");
    if (!json_is_boolean(ended) || !json_is_boolean(cut))
        return program_wrong(&env->program, copy, "'terminated' and 'truncated' are not true or false");
    *turn = (TextTurn){NULL, json_number_value(reward), json_is_true(ended), json_is_true(cut)};
    return turn->terminated || turn->truncated ? ST_OK : read_observation(env, observation, copy);
}

static Status read_step(TextEnv *env) {
    const json_t *observations, *rewards, *terminated, *truncated;
    TRY(program_list(&env->program, "observations", env->program.copies, &observations));
    TRY(program_list(&env->program, "rewards", env->program.copies, &rewards));
    TRY(program_list(&env->program, "terminated", env->program.copies, &terminated));
    TRY(program_list(&env->program, "truncated", env->program.copies, &truncated));
    for (int64_t copy = 0; copy < env->program.copies; copy++) {
        size_t i = (size_t)copy;
        if (env->acts[copy])
            TRY(read_copy(env, copy, json_array_get(observations, i), json_array_get(rewards, i), json_array_get(terminated, i),
                          json_array_get(truncated, i)));
    }
    return ST_OK;
}

Status text_env_begin(TextEnv *env, const Slice *actions, int64_t n) {
    write_step(env, actions, n);
    return program_begin(&env->program);
}

Status text_env_answer(TextEnv *env, bool wait, TextAnswer *answer) {
    bool answered;
    Status status = program_answer(&env->program, wait, &answered);
    *answer = answered ? TEXT_TURNS : TEXT_NONE;
    if (status == ST_OK && answered) {
        program_note_success(&env->program);
        return read_step(env);
    }
    if (status != ST_RESOURCE) return status;
    *answer = TEXT_LOST;
    return program_restart(&env->program, open_program, env);
}

const TextTurn *text_env_turn(const TextEnv *env, int64_t copy) { return &env->turns[copy]; }
const char *text_env_id(const TextEnv *env) { return env->program.id; }
int64_t text_env_max_turns(const TextEnv *env) { return env->max_turns; }

int64_t text_env_max_turns_in_recipe(const Yaml *node) {
    const Yaml *said = yaml_get(node, "max_turns");
    int64_t n;
    return said && yaml_as_int(said, &n) && n >= 1 && n <= INT32_MAX ? n : MAX_TURNS;
}

/* ---- from the recipe ---- */

bool text_env_is_requested(const Yaml *node) {
    const Yaml *text = node && node->kind == YAML_MAP ? yaml_get(node, "text") : NULL;
    bool value = false;
    return text && yaml_as_bool(text, &value) && value;
}

static Status text_env_fault(const Yaml *node, const char *what) {
    return node->line > 0 ? status_fail(ST_CONFIG, "line %d: 'rl.env' %s", node->line, what) : status_fail(ST_CONFIG, "'rl.env' %s", what);
}

static Status read_command(TextEnv *env, const Yaml *command, int64_t copies) {
    bool good = command && command->kind == YAML_LIST && command->n > 0;
    for (size_t i = 0; good && i < command->n; i++) good = command->items[i]->kind == YAML_SCALAR && command->items[i]->text[0];
    if (!good)
        return status_hint(text_env_fault(command ? command : &(Yaml){0}, "has no 'command' that is a list of words"),
                           "command: [python3, recipes/guess_number_env.py]");
    const char **words = arena_alloc(env->arena, command->n * sizeof *words);
    if (!words) return ST_RESOURCE;
    for (size_t i = 0; i < command->n; i++) words[i] = command->items[i]->text;
    return program_init(&env->program, words, command->n, copies, env->timeout, env->arena);
}

static Status read_options(TextEnv *env, const Yaml *node) {
    static const char *const known[] = {"command", "text", "timeout", "max_turns"};
    for (size_t i = 0; i < node->n; i++) {
        const Yaml *value = node->items[i];
        const char *key = node->keys[i];
        if (strcmp(key, "command") == 0 || strcmp(key, "text") == 0) continue;
        if (strcmp(key, "timeout") == 0) {
            if (!yaml_as_double(value, &env->timeout) || !(env->timeout > 0))
                return text_env_fault(value, "has a 'timeout' that is not a number of seconds above 0");
        } else if (strcmp(key, "max_turns") == 0) {
            if (!yaml_as_int(value, &env->max_turns) || env->max_turns < 1)
                return text_env_fault(value, "has a 'max_turns' that is not a whole number of at least 1");
        } else {
            Str what = {0};
            str_printf(&what, "has an unknown key '%s'", key);
            text_env_fault(value, str_text(&what));
            str_release(&what);
            return status_hint_nearest(ST_CONFIG, key, known, COUNT_OF(known), "the keys are command, text, timeout and max_turns");
        }
    }
    return ST_OK;
}

static Status open_env(TextEnv *env, const Yaml *node, int64_t copies) {
    TRY(read_options(env, node));
    TRY(read_command(env, yaml_get(node, "command"), copies));
    env->turns = arena_zero(env->arena, (size_t)copies * sizeof *env->turns);
    env->acts = arena_zero(env->arena, (size_t)copies * sizeof *env->acts);
    if (!env->turns || !env->acts) return ST_RESOURCE;
    Status status = open_program(env);
    return status == ST_RESOURCE ? child_add_last_line(env->program.child, status) : status;
}

Status text_env_open(const Yaml *node, int64_t copies, TextEnv **result) {
    Arena *arena = arena_new(0);
    TextEnv *env = arena ? arena_zero(arena, sizeof *env) : NULL;
    *result = NULL;
    if (!env) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for the environment");
    }
    *env = (TextEnv){.arena = arena, .max_turns = MAX_TURNS, .timeout = timeout_usual};
    Status status = open_env(env, node, copies);
    if (status == ST_OK)
        *result = env;
    else
        text_env_close(env);
    return status;
}

void text_env_close(TextEnv *env) {
    if (!env) return;
    program_stop(&env->program, env->program.answer ? 2 : 0);
    arena_free(env->arena);
}
