/* Programs as environments of texts: JSON lines, one request and one answer each. */
#include "rl/env/restart.h"
#include "rl/text/text_env.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often it may fail in a row; this many answers without a failure begin a new row */
enum { RESTARTS = 5, CALM = 100, MAX_TURNS = 8, SHOWN = 200 };
static const double timeout_usual = 60;

struct TextEnv {
    Arena *arena;
    const char *id;
    const char **argv;        /* n words */
    size_t n;
    int64_t copies, max_turns;
    double timeout;
    Child *child;
    int64_t failures, calm;
    TextTurn *turns;          /* (copies) */
    Str request, reply;
    json_t *answer;           /* to the last request; observations are its parts */
};

/* ---- requests and answers ---- */

/* An answer that is not what was asked for. copy < 0: the whole of it. */
static Status wrong(const TextEnv *env, int64_t copy, const char *problem) {
    int shown = (int)MIN(env->reply.len ? env->reply.len - 1 : 0, (size_t)SHOWN);
    char of_copy[40] = "";
    if (copy >= 0) snprintf(of_copy, sizeof of_copy, "copy %lld: ", (long long)copy);
    status_fail(ST_INPUT, "environment '%s' answers wrongly: %s%s: '%.*s%s'", env->id, of_copy, problem, shown, str_text(&env->reply),
                env->reply.len > SHOWN + 1 ? "..." : "");
    return child_add_last_line(env->child, ST_INPUT);
}

/* Sends env->request. ST_RESOURCE: the program is gone or hangs. */
static Status ask(TextEnv *env) {
    json_decref(env->answer);
    env->answer = NULL;
    str_clear(&env->reply);
    TRY(child_ask(env->child, str_text(&env->request), env->request.len, 1, env->timeout, &env->reply));
    env->answer = json_loadb(env->reply.data, env->reply.len, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(env->answer)) return wrong(env, -1, "no JSON object");
    const char *error = json_string_value(json_object_get(env->answer, "error"));
    if (!error) return ST_OK;
    return status_fail(ST_INPUT, "environment '%s' reports: %s", env->id, error);
}

static bool says_text(const TextEnv *env, const char *name) {
    const char *kind = json_string_value(json_object_get(env->answer, name));
    return kind && strcmp(kind, "text") == 0;
}

static Status open_program(TextEnv *env) {
    TRY(child_start(env->argv, env->n, NULL, &env->child));
    str_clear(&env->request);
    str_printf(&env->request, "{\"open\": {\"copies\": %lld}}\n", (long long)env->copies);
    TRY(ask(env));
    if (!says_text(env, "action") || !says_text(env, "observation")) {
        wrong(env, -1, "its actions and observations are no texts");
        return status_hint(ST_INPUT,
                           "expected {\"action\": \"text\", \"observation\": \"text\"}; an environment of numbers is asked without text: true");
    }
    const json_t *id = json_object_get(env->answer, "id");
    if (json_is_string(id) && !(env->id = arena_strdup(env->arena, json_string_value(id)))) return ST_RESOURCE;
    return ST_OK;
}

/* After a failure of child_ask: a new program. Gives up after too many failures in a row, with the last one's text. */
static Status restart(TextEnv *env) {
    env->calm = 0;
    do {
        if (++env->failures > RESTARTS) {
            status_prefix(ST_RESOURCE, "environment '%s' failed %d times in a row", env->id, RESTARTS + 1);
            return child_add_last_line(env->child, ST_RESOURCE);
        }
        double pause = restart_pause(env->failures, env->timeout);
        log_message(LOG_WARNING, "environment '%s': %s; it is started again in %g s (%lld of %d), its episodes are cut off", env->id, status_text(),
                    pause, (long long)env->failures, RESTARTS);
        child_stop(env->child, NULL, 0);
        env->child = NULL;
        restart_wait(pause);
        Status status = open_program(env);
        if (status != ST_RESOURCE) return status;
    } while (true);
}

static Status get_list(const TextEnv *env, const char *name, int64_t n, const json_t **list) {
    char problem[80];
    *list = json_object_get(env->answer, name);
    if (json_array_size(*list) == (size_t)n) return ST_OK;
    snprintf(problem, sizeof problem, "'%s' is no list of %lld", name, (long long)n);
    return wrong(env, -1, problem);
}

static Status read_observation(TextEnv *env, const json_t *json, int64_t copy) {
    bool good = json_is_string(json) || (json_is_array(json) && json_array_size(json) > 0) ||
                (json_is_object(json) && (json_object_get(json, "content") || json_object_get(json, "messages")));
    if (!good) return wrong(env, copy, "its observation is no text, no message and no list of messages");
    env->turns[copy].observation = json;
    return ST_OK;
}

/* ---- episodes ---- */

static Status read_reset(TextEnv *env, int64_t n) {
    const json_t *observations;
    TRY(get_list(env, "observations", n, &observations));
    for (int64_t copy = 0; copy < n; copy++) {
        env->turns[copy] = (TextTurn){0};
        TRY(read_observation(env, json_array_get(observations, (size_t)copy), copy));
    }
    return ST_OK;
}

Status text_env_reset(TextEnv *env, const uint64_t *seeds, int64_t n) {
    ASSERT(n <= env->copies, "%lld episodes for %lld copies", (long long)n, (long long)env->copies);
    while (true) {
        str_clear(&env->request);
        str_append(&env->request, "{\"reset\": [");
        for (int64_t copy = 0; copy < n; copy++)
            str_printf(&env->request, "%s[%lld, %llu]", copy ? ", " : "", (long long)copy, (unsigned long long)seeds[copy]);
        str_append(&env->request, "]}\n");
        Status status = ask(env);
        if (status == ST_OK) return read_reset(env, n);
        if (status != ST_RESOURCE) return status;
        TRY(restart(env));
    }
}

static void write_step(TextEnv *env, const Slice *actions, int64_t n) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_array(&w, "step");
    for (int64_t copy = 0; copy < env->copies; copy++) {
        if (copy < n && actions[copy].data) jw_string_n(&w, NULL, actions[copy].data, actions[copy].len);
        else jw_null(&w, NULL);
    }
    jw_end_array(&w);
    jw_end_object(&w);
    str_clear(&env->request);
    str_append_n(&env->request, str_text(&w.text), w.text.len);
    str_append_char(&env->request, '\n');
    jw_release(&w);
}

static Status read_copy(TextEnv *env, int64_t copy, const json_t *observation, const json_t *reward, const json_t *ended, const json_t *cut) {
    TextTurn *turn = &env->turns[copy];
    if (!json_is_number(reward) || !isfinite(json_number_value(reward))) return wrong(env, copy, "its reward is no number");
    if (!json_is_boolean(ended) || !json_is_boolean(cut)) return wrong(env, copy, "'terminated' and 'truncated' are not true or false");
    *turn = (TextTurn){NULL, json_number_value(reward), json_is_true(ended), json_is_true(cut)};
    return turn->terminated || turn->truncated ? ST_OK : read_observation(env, observation, copy);
}

static Status read_step(TextEnv *env, const Slice *actions, int64_t n) {
    const json_t *observations, *rewards, *terminated, *truncated;
    TRY(get_list(env, "observations", env->copies, &observations));
    TRY(get_list(env, "rewards", env->copies, &rewards));
    TRY(get_list(env, "terminated", env->copies, &terminated));
    TRY(get_list(env, "truncated", env->copies, &truncated));
    for (int64_t copy = 0; copy < n; copy++) {
        size_t i = (size_t)copy;
        if (actions[copy].data)
            TRY(read_copy(env, copy, json_array_get(observations, i), json_array_get(rewards, i), json_array_get(terminated, i),
                          json_array_get(truncated, i)));
    }
    return ST_OK;
}

Status text_env_step(TextEnv *env, const Slice *actions, int64_t n) {
    write_step(env, actions, n);
    Status status = ask(env);
    if (status == ST_OK) {
        if (++env->calm >= CALM) env->failures = 0;
        return read_step(env, actions, n);
    }
    if (status != ST_RESOURCE) return status;
    TRY(restart(env));
    for (int64_t copy = 0; copy < n; copy++)
        if (actions[copy].data) env->turns[copy] = (TextTurn){.truncated = true};
    return ST_OK;
}

const TextTurn *text_env_turn(const TextEnv *env, int64_t copy) { return &env->turns[copy]; }
const char *text_env_id(const TextEnv *env) { return env->id; }
int64_t text_env_max_turns(const TextEnv *env) { return env->max_turns; }

/* ---- from the recipe ---- */

bool text_env_is_meant(const Yaml *node) {
    const Yaml *text = node && node->kind == YAML_MAP ? yaml_get(node, "text") : NULL;
    bool value = false;
    return text && yaml_as_bool(text, &value) && value;
}

static Status fault(const Yaml *node, const char *what) {
    return node->line > 0 ? status_fail(ST_CONFIG, "line %d: 'rl.env' %s", node->line, what) : status_fail(ST_CONFIG, "'rl.env' %s", what);
}

static Status read_command(TextEnv *env, const Yaml *command) {
    bool good = command && command->kind == YAML_LIST && command->n > 0;
    for (size_t i = 0; good && i < command->n; i++) good = command->items[i]->kind == YAML_SCALAR && command->items[i]->text[0];
    if (!good)
        return status_hint(fault(command ? command : &(Yaml){0}, "has no 'command' that is a list of words"),
                           "command: [python3, recipes/guess_number_env.py]");
    env->argv = arena_zero(env->arena, command->n * sizeof *env->argv);
    if (!env->argv) return ST_RESOURCE;
    for (; env->n < command->n; env->n++)
        if (!(env->argv[env->n] = arena_strdup(env->arena, command->items[env->n]->text))) return ST_RESOURCE;
    env->id = env->argv[0];
    return ST_OK;
}

static Status read_options(TextEnv *env, const Yaml *node) {
    static const char *const known[] = {"command", "text", "timeout", "max_turns"};
    for (size_t i = 0; i < node->n; i++) {
        const Yaml *value = node->items[i];
        const char *key = node->keys[i];
        if (strcmp(key, "command") == 0 || strcmp(key, "text") == 0) continue;
        if (strcmp(key, "timeout") == 0) {
            if (!yaml_as_double(value, &env->timeout) || !(env->timeout > 0)) return fault(value, "has a 'timeout' that is no number of seconds");
        } else if (strcmp(key, "max_turns") == 0) {
            if (!yaml_as_int(value, &env->max_turns) || env->max_turns < 1) return fault(value, "has a 'max_turns' that is no whole number from 1");
        } else {
            const char *near = text_nearest(key, known, COUNT_OF(known));
            Str what = {0};
            str_printf(&what, "has an unknown key '%s'", key);
            fault(value, str_text(&what));
            str_release(&what);
            return near ? status_hint(ST_CONFIG, "did you mean '%s'?", near)
                        : status_hint(ST_CONFIG, "beside command and text it takes timeout and max_turns");
        }
    }
    return ST_OK;
}

static Status open_env(TextEnv *env, const Yaml *node) {
    TRY(read_options(env, node));
    TRY(read_command(env, yaml_get(node, "command")));
    env->turns = arena_zero(env->arena, (size_t)env->copies * sizeof *env->turns);
    if (!env->turns) return ST_RESOURCE;
    Status status = open_program(env);
    return status == ST_RESOURCE ? child_add_last_line(env->child, status) : status;
}

Status text_env_open(const Yaml *node, int64_t copies, TextEnv **result) {
    Arena *arena = arena_new(0);
    TextEnv *env = arena ? arena_zero(arena, sizeof *env) : NULL;
    *result = NULL;
    if (!env) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for the environment");
    }
    *env = (TextEnv){.arena = arena, .id = "", .copies = copies, .max_turns = MAX_TURNS, .timeout = timeout_usual};
    Status status = open_env(env, node);
    if (status == ST_OK) *result = env;
    else text_env_close(env);
    return status;
}

void text_env_close(TextEnv *env) {
    if (!env) return;
    child_stop(env->child, "{\"close\": true}\n", env->answer ? 2 : 0);
    json_decref(env->answer);
    str_release(&env->request);
    str_release(&env->reply);
    arena_free(env->arena);
}
