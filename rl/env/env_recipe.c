/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rl.env of a recipe in all its forms. */
#include "rl/env/env_kinds.h"
#include "rl/mdp/worlds.h"

#include <stdlib.h>
#include <string.h>

#define TIMEOUT 30.0

static Status env_recipe_fault(const Yaml *node, const char *what) {
    return node->line > 0 ? status_fail(ST_CONFIG, "line %d: 'rl.env' %s", node->line, what) : status_fail(ST_CONFIG, "'rl.env' %s", what);
}

/* A sampled environment that is also a finite MDP gets its world. */
static Status open_spec(const char *spec, int64_t copies, Env **env) {
    TRY(env_new(spec, copies, env));
    if ((*env)->world) return ST_OK;
    char *id = strndup(spec, strcspn(spec, ":"));
    Status status = !id ? status_fail(ST_RESOURCE, "out of memory") : world_find(id) ? mdp_open(spec, &(*env)->world) : ST_OK;
    free(id);
    if (status == ST_OK) return ST_OK;
    env_free(*env);
    *env = NULL;
    return status;
}

static Status refuse_value(const char *id, const char *key, const Yaml *value) {
    bool nested = false;
    for (size_t i = 0; value->kind == YAML_LIST && i < value->n; i++) nested = nested || value->items[i]->kind != YAML_SCALAR;
    const char *what = value->kind == YAML_MAP ? "a map of keys" : nested ? "a list of lists" : "a text with ',' or '/' in it";
    if (value->line > 0)
        status_fail(ST_CONFIG, "line %d: argument '%s' of '%s' is %s", value->line, key, id, what);
    else
        status_fail(ST_CONFIG, "argument '%s' of '%s' is %s", key, id, what);
    return status_hint(ST_CONFIG, "it is a number, a truth value, a word, or a list of these, as desc: [SFF, FHF, FFG]");
}

/* A value in the form of key=value; the items of a list are joined by '/', the form in which worlds take maps and rewards. */
static Status append_value(Str *spec, const char *id, const char *key, const Yaml *value) {
    if (value->kind == YAML_SCALAR && !strchr(value->text, ',')) {
        str_append(spec, value->text);
        return ST_OK;
    }
    bool list = value->kind == YAML_LIST;
    for (size_t i = 0; list && i < value->n; i++) {
        list = value->items[i]->kind == YAML_SCALAR && !strpbrk(value->items[i]->text, ",/");
        if (list) str_printf(spec, "%s%s", i ? "/" : "", value->items[i]->text);
    }
    return list ? ST_OK : refuse_value(id, key, value);
}

/* {id: ..., key: value, ...} */
static Status spec_of_map(const Yaml *node, Str *spec) {
    const Yaml *id = yaml_get(node, "id");
    if (id->kind != YAML_SCALAR) return env_recipe_fault(id, "has an 'id' that is not a text");
    str_append(spec, id->text);
    for (size_t i = 0, n = 0; i < node->n; i++) {
        if (node->items[i] == id || node->items[i]->kind == YAML_NULL) continue;
        str_printf(spec, "%c%s=", n++ || strchr(id->text, '=') ? ',' : ':', node->keys[i]);
        TRY(append_value(spec, id->text, node->keys[i], node->items[i]));
    }
    return ST_OK;
}

static Status no_environment(const Yaml *node) {
    env_recipe_fault(node, "is not an environment");
    return status_hint(ST_CONFIG, "a name, {id: FrozenLake-v1, map_name: 8x8}, {command: [program, argument]} or an MDP file");
}

Status env_spec(const Yaml *node, Str *spec) {
    if (node->kind == YAML_SCALAR) str_append(spec, node->text);
    if (node->kind == YAML_SCALAR) return ST_OK;
    if (node->kind == YAML_MAP && yaml_get(node, "id")) return spec_of_map(node, spec);
    if (node->kind == YAML_MAP && yaml_get(node, "command"))
        return status_hint(env_recipe_fault(node, "is a program, not a finite MDP"), "it can be simulated and used for learning, but not solved");
    return no_environment(node);
}

static Status open_id(const Yaml *node, int64_t copies, Env **env) {
    Str spec = {0};
    Status status = spec_of_map(node, &spec);
    if (status == ST_OK) status = open_spec(str_text(&spec), copies, env);
    str_release(&spec);
    return status;
}

/* ---- another program ---- */

static Status read_command(const Yaml *command, const char ***argv) {
    bool good = command->kind == YAML_LIST && command->n > 0;
    for (size_t i = 0; good && i < command->n; i++) good = command->items[i]->kind == YAML_SCALAR;
    if (!good)
        return status_hint(env_recipe_fault(command, "has a 'command' that is not a list of words"),
                           "command: [python3, recipes/gym_bridge.py, LunarLander-v3]");
    *argv = calloc(command->n, sizeof **argv);
    if (!*argv) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < command->n; i++) (*argv)[i] = command->items[i]->text;
    return ST_OK;
}

static Status read_options(const Yaml *node, double *timeout, int64_t *max_steps) {
    static const char *const known[] = {"command", "timeout", "max_episode_steps"};
    for (size_t i = 0; i < node->n; i++) {
        const Yaml *value = node->items[i];
        if (!strcmp(node->keys[i], "command")) continue;
        if (!strcmp(node->keys[i], "timeout")) {
            if (!yaml_as_double(value, timeout) || !(*timeout > 0))
                return env_recipe_fault(value, "has a 'timeout' that is not a number of seconds above 0");
        } else if (!strcmp(node->keys[i], "max_episode_steps")) {
            if (!yaml_as_int(value, max_steps) || *max_steps < 0)
                return env_recipe_fault(value, "has a 'max_episode_steps' that is not a whole number of at least 0");
        } else {
            Str what = {0};
            str_printf(&what, "has an unknown key '%s'", node->keys[i]);
            Status status = env_recipe_fault(value, str_text(&what));
            str_release(&what);
            return status_hint_nearest(status, node->keys[i], known, COUNT_OF(known), "the keys are command, timeout and max_episode_steps");
        }
    }
    return ST_OK;
}

static Status open_command(const Yaml *node, int64_t copies, Env **env) {
    const char **argv = NULL;
    double timeout = TIMEOUT;
    int64_t max_steps = -1;
    const Yaml *command = yaml_get(node, "command");
    TRY(read_options(node, &timeout, &max_steps));
    TRY(read_command(command, &argv));
    Status status = env_new_command(argv, command->n, copies, timeout, env);
    free(argv);
    if (status == ST_OK && max_steps >= 0) (*env)->max_steps = max_steps;
    return status;
}

Status env_from_recipe(const Yaml *node, int64_t copies, Env **env) {
    *env = NULL;
    if (!node || node->kind == YAML_NULL)
        return status_hint(status_fail(ST_CONFIG, "'rl.env' is missing"), "name an environment, such as CartPole-v1");
    if (node->kind == YAML_SCALAR) return open_spec(node->text, copies, env);
    if (node->kind == YAML_MAP && yaml_get(node, "command")) return open_command(node, copies, env);
    if (node->kind == YAML_MAP && yaml_get(node, "id")) return open_id(node, copies, env);
    return no_environment(node);
}

Status env_number_states(Env **env) {
    Env *sampled = *env, *numbered;
    const NamedMdp *world = sampled->world;
    if (!world || sampled->observation.n == world->mdp.n_states) return ST_OK;
    TRY(env_new_mdp(&world->mdp, world->start, world->max_steps, sampled->copies, &numbered));
    env_set_id(numbered, sampled->id);
    numbered->max_steps = sampled->max_steps;
    numbered->world = sampled->world;
    sampled->world = NULL;
    env_free(sampled);
    *env = numbered;
    return ST_OK;
}
