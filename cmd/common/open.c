/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a model with its adapter and tokenizer, as most commands do. */
#include <stdlib.h>
#include <string.h>

#include "cmd/app/ranks.h"
#include "cmd/common/open.h"
#include "cmd/common/runtime.h"
#include "data/formats/conversation.h"
#include "lib/model/adapter.h"
#include "lib/train/trained_model.h"

static Status check_now(const char *now) {
    if (!now || chat_reads_date(now)) return ST_OK;
    return status_fail(ST_USAGE, "--now must be a date, YYYY-MM-DD or 'YYYY-MM-DD HH:MM:SS', not '%s'", now);
}

/* Reads "{name: value, ...}", YAML as in a recipe. */
static Status read_map(const char *text, Arena *arena, json_t *values) {
    Yaml *node;
    TRY(yaml_read_text(text, strlen(text), "--template-kwargs", arena, &node));
    json_t *json = yaml_to_json(node);
    int failed = !json || json_object_update(values, json) != 0;
    json_decref(json);
    return failed ? status_fail(ST_USAGE, "--template-kwargs must be a map of names and values in UTF-8, not '%s'", text) : ST_OK;
}

/* Reads "name=value". A value that is not valid YAML is a string. */
static Status read_pair(const char *text, const char *equals, Arena *arena, json_t *values) {
    Yaml *node;
    const char *name = arena_strndup(arena, text, (size_t)(equals - text)), *value = equals + 1;
    if (!name) return ST_RESOURCE;
    json_t *json = yaml_read_text(value, strlen(value), "--template-kwargs", arena, &node) == ST_OK ? yaml_to_json(node) : json_string(value);
    return json && json_object_set_new(values, name, json) == 0 ? ST_OK : status_fail(ST_USAGE, "--template-kwargs is not valid UTF-8");
}

static Status read_kwargs(const char *text, Arena *arena, json_t *values) {
    const char *equals = strchr(text, '=');
    if (text[strspn(text, " \t\n")] == '{') {
        Status status = read_map(text, arena, values);
        return status == ST_CONFIG ? ST_USAGE : status;
    }
    if (equals && equals > text) return read_pair(text, equals, arena, values);
    return status_fail(ST_USAGE, "--template-kwargs must be NAME=VALUE or {NAME: VALUE, ...}, not '%s'", text);
}

Status chat_choice_kwargs(const ChatChoice *choice, json_t **values) {
    *values = NULL;
    if (!choice || choice->kwargs.n == 0) return ST_OK;
    Arena *arena = arena_new(0);
    json_t *read = json_object();
    Status status = arena && read ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < choice->kwargs.n && status == ST_OK; i++) status = read_kwargs(choice->kwargs.items[i], arena, read);
    arena_free(arena);
    if (status == ST_OK)
        *values = read;
    else
        json_decref(read);
    return status;
}

static Status open_template(const char *dir, const char *adapter, const ChatChoice *choice, const json_t *kwargs, OpenedModel *opened) {
    TRY(chat_open(dir, adapter, choice ? choice->chat_template : NULL, choice ? choice->now : NULL, opened->tokenizer, &opened->chat));
    Status status = chat_set_kwargs(opened->chat, kwargs, opened->tokenizer);
    return status == ST_INPUT ? status_prefix(ST_USAGE, "--template-kwargs") : status;
}

Status open_chat(const char *dir, const char *adapter, const ChatChoice *choice, OpenedModel *opened) {
    json_t *kwargs;
    if (choice) TRY(check_now(choice->now));
    TRY(chat_choice_kwargs(choice, &kwargs));
    Status status = ST_OK;
    if (opened->tokenizer)
        status = open_template(dir, adapter, choice, kwargs, opened);
    else if (choice && (choice->chat_template || kwargs))
        status = status_fail(ST_INPUT, "a chat template needs a tokenizer, and '%s' has none", dir);
    json_decref(kwargs);
    return status;
}

const char *chat_choice_first(const ChatChoice *choice) {
    return choice->system          ? "--system"
           : choice->chat_template ? "--chat-template"
           : choice->kwargs.n      ? "--template-kwargs"
           : choice->now           ? "--now"
                                   : NULL;
}

/* *writes: whether the template writes a system message. A template that refuses one reports it when it is rendered. */
static Status writes_system(const Chat *chat, bool *writes) {
    static const char words[] = "Zq7";
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "system", "content", words, "role", "user", "content", "a");
    ChatRendering rendering = {0};
    Status status = messages ? messages_render(chat, messages, 2, NULL, true, &rendering) : status_fail(ST_RESOURCE, "out of memory");
    *writes = status == ST_INPUT || (status == ST_OK && strstr(str_text(&rendering.text), words));
    json_decref(messages);
    chat_rendering_release(&rendering);
    return status == ST_INPUT ? ST_OK : status;
}

Status chat_choice_check(const ChatChoice *choice, const Chat *chat) {
    bool writes = true;
    if (choice->system && *choice->system) TRY(writes_system(chat, &writes));
    if (!writes)
        return status_hint(status_fail(ST_USAGE, "--system does nothing: the chat template writes no system message"), "say it in the question");
    if (!choice->now || chat_writes_date(chat)) return ST_OK;
    return status_hint(status_fail(ST_USAGE, "--now does nothing: the chat template writes no date"), "leave it out");
}

/* ---- a model with its adapter, tokenizer and chat template ---- */

typedef struct Place {
    const char *dir, *adapter; /* of the model; of the adapter on it, or NULL */
    const char *system;        /* the run's system message, or NULL */
} Place;

static bool open_holds(Arena *arena, const char *dir, const char *name) {
    const char *path = path_join(arena, dir, name);
    return path && file_exists(path);
}

/* Replaces the output directory of a run by the model, or base and adapter, that it has trained, with the run's system message. */
static Status find_trained(Arena *arena, Place *place) {
    const char *run = place->dir, *adapter = path_join(arena, run, "adapter"), *model = path_join(arena, run, "model");
    Recipe *recipe;
    if (!adapter || !model) return ST_RESOURCE;
    TRY(recipe_read(path_join(arena, run, "recipe.yaml"), NULL, 0, &recipe));
    place->system = recipe->data_system ? arena_strdup(arena, recipe->data_system) : NULL;
    Status status = ST_OK;
    if (open_holds(arena, model, "config.json")) {
        place->dir = model;
    } else if (open_holds(arena, adapter, "adapter_config.json") && recipe->model_path) {
        status = trained_base(recipe, adapter, arena, &place->dir);
        place->adapter = adapter;
    }
    recipe_free(recipe);
    if (status != ST_OK || place->dir != run) return status;
    return status_hint(status_fail(ST_INPUT, "the run in '%s' has not written an adapter or a model yet", run), "finish it with --resume");
}

static Status open_place(const Place *place, const char *compute, Comm *comm, const ChatChoice *choice, OpenedModel *opened) {
    Runtime runtime = runtime_choose(compute);
    TRY(model_load(place->dir, &(ModelOptions){.device = runtime.device, .compute = runtime.compute, .comm = comm}, &opened->model));
    if (place->adapter) TRY(adapter_load(opened->model, place->adapter, false));
    TRY(tokenizer_load_if_any(place->dir, &opened->tokenizer));
    opened->system = place->system ? strdup(place->system) : NULL;
    return open_chat(place->dir, place->adapter, choice, opened);
}

static Status open_on(Comm *comm, const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened) {
    Arena *arena = arena_new(0);
    Place place = {.dir = dir, .adapter = adapter};
    *opened = (OpenedModel){0};
    Status status = arena ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK && !adapter && !open_holds(arena, dir, "config.json") && open_holds(arena, dir, "recipe.yaml"))
        status = find_trained(arena, &place);
    if (status == ST_OK) status = open_place(&place, compute, comm, choice, opened);
    if (status != ST_OK) close_model(opened);
    arena_free(arena);
    return status;
}

Status open_model(const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened) {
    return open_on(NULL, dir, adapter, compute, choice, opened);
}

Status open_model_dealt(const char *dir, const char *adapter, const char *compute, const ChatChoice *choice, OpenedModel *opened) {
    return open_on(ranks_world(), dir, adapter, compute, choice, opened);
}

void close_model(OpenedModel *opened) {
    model_free(opened->model);
    tokenizer_free(opened->tokenizer);
    chat_close(opened->chat);
    free(opened->system);
    *opened = (OpenedModel){0};
}
