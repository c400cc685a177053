/* SPDX-License-Identifier: Apache-2.0 */
/* LLaMA-Factory's dataset_info.json: "FOLDER/dataset_info.json#NAME" as a path means the entry NAME, whose columns and tags are mapped to our row
 * formats. Source: that project's data/README.md. */
#include "data/formats/formats.h"
#include "data/formats/message.h"

#include <string.h>

static Status copy_name(const json_t *object, const char *key, const char *missing, Arena *arena, const char **out) {
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_null(value) && !json_is_string(value)) return status_fail(ST_INPUT, "'%s' is not a text", key);
    *out = json_is_string(value) ? arena_strdup(arena, json_string_value(value)) : missing;
    return !json_is_string(value) || *out ? ST_OK : ST_RESOURCE;
}

static Status read_map(const json_t *entry, Arena *arena, ColumnMap *map) {
    const json_t *columns = json_object_get(entry, "columns"), *tags = json_object_get(entry, "tags");
    const char *formatting = json_string_value(json_object_get(entry, "formatting"));
    if (formatting && strcmp(formatting, "alpaca") != 0 && strcmp(formatting, "sharegpt") != 0)
        return status_fail(ST_INPUT, "unknown 'formatting' '%s': expected alpaca or sharegpt", formatting);
    map->sharegpt = formatting && strcmp(formatting, "sharegpt") == 0;
    map->ranking = json_is_true(json_object_get(entry, "ranking"));
    const struct {
        const json_t *object;
        const char *key, *missing, **out;
    } names[] = {
        {columns, "prompt", "instruction", &map->prompt},
        {columns, "query", "input", &map->query},
        {columns, "response", "output", &map->response},
        {columns, "history", NULL, &map->history},
        {columns, "messages", "conversations", &map->messages},
        {columns, "system", NULL, &map->system},
        {columns, "tools", NULL, &map->tools},
        {columns, "chosen", "chosen", &map->chosen},
        {columns, "rejected", "rejected", &map->rejected},
        {columns, "kto_tag", NULL, &map->kto_tag},
        {tags, "role_tag", "from", &map->role_tag},
        {tags, "content_tag", "value", &map->content_tag},
        {tags, "user_tag", "human", &map->user_tag},
        {tags, "assistant_tag", "gpt", &map->assistant_tag},
        {tags, "observation_tag", "observation", &map->observation_tag},
        {tags, "function_tag", "function_call", &map->function_tag},
        {tags, "system_tag", "system", &map->system_tag},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) TRY(copy_name(names[i].object, names[i].key, names[i].missing, arena, names[i].out));
    map->plain = json_object_get(columns, "prompt") && !json_object_get(columns, "response") && !json_object_get(columns, "query") &&
                 !json_object_get(columns, "history") && !map->ranking && !map->kto_tag;
    static const char *const media[] = {"images", "videos", "audios"};
    for (size_t i = 0; i < COUNT_OF(media); i++)
        if (json_object_get(columns, media[i])) return status_fail(ST_INPUT, "the column '%s' is not supported: rows are text", media[i]);
    return ST_OK;
}

static Status read_entry(const json_t *entry, const char *folder, Arena *arena, DataSource *source) {
    static const char *const elsewhere[] = {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"};
    const char *file = json_string_value(json_object_get(entry, "file_name"));
    ColumnMap *map = arena_zero(arena, sizeof *map);
    for (size_t i = 0; i < COUNT_OF(elsewhere) && !file; i++)
        if (json_object_get(entry, elsewhere[i]))
            return status_hint(status_fail(ST_INPUT, "the entry has only '%s', and nothing is downloaded", elsewhere[i]),
                               "download it, and name the file as 'file_name'");
    if (!file) return status_fail(ST_INPUT, "the entry lacks 'file_name'");
    if (!map) return ST_RESOURCE;
    TRY(read_map(entry, arena, map));
    source->path = path_join(arena, folder, file);
    source->columns = map;
    if (source->max_rows == 0) source->max_rows = json_integer_value(json_object_get(entry, "num_samples"));
    return source->path ? ST_OK : ST_RESOURCE;
}

Status dataset_info_resolve(Arena *arena, DataSource *source) {
    static const char name[] = "dataset_info.json#";
    const char *at = strstr(source->path, name);
    if (!at || (at > source->path && at[-1] != '/')) return ST_OK;
    const char *file = arena_strndup(arena, source->path, (size_t)(at - source->path) + strlen(name) - 1), *wanted = at + strlen(name);
    const char *folder = at > source->path ? arena_strndup(arena, source->path, (size_t)(at - source->path) - 1) : ".";
    json_t *root;
    if (!file || !folder) return ST_RESOURCE;
    TRY(json_read_file(file, &root));
    const json_t *entry = json_object_get(root, wanted);
    Status status = entry ? read_entry(entry, folder, arena, source) : status_fail(ST_INPUT, "'%s' has no entry '%s'", file, wanted);
    if (!entry) {
        const char *key, *names[256];
        size_t n = 0;
        json_t *value;
        json_object_foreach(root, key, value) if (n < COUNT_OF(names)) names[n++] = key;
        status_hint_nearest(status, wanted, names, n, NULL);
    } else if (status != ST_OK) {
        status_prefix(status, "'%s' entry '%s'", file, wanted);
    }
    json_decref(root);
    return status;
}

/* ---- one row ---- */

static void dataset_info_take(json_t *to, const char *name, const json_t *row, const char *column) {
    json_t *value = column ? json_object_get(row, column) : NULL;
    if (value) json_object_set(to, name, value);
}

/* A message under the names that data_sharegpt.c knows; an invalid one stays unchanged, and is refused there. */
static json_t *message_apply(const ColumnMap *map, json_t *message) {
    const struct {
        const char *tag, *from;
    } roles[] = {
        {map->user_tag, "human"},    {map->assistant_tag, "gpt"}, {map->observation_tag, "observation"}, {map->function_tag, "function_call"},
        {map->system_tag, "system"},
    };
    const char *role = json_string_value(json_object_get(message, map->role_tag));
    json_t *mapped = json_object();
    if (!mapped || !json_is_object(message)) {
        json_decref(mapped);
        return json_incref(message);
    }
    for (size_t i = 0; role && i < COUNT_OF(roles); i++)
        if (strcmp(role, roles[i].tag) == 0) json_object_set_new(mapped, "from", json_string(roles[i].from));
    if (!json_object_get(mapped, "from")) dataset_info_take(mapped, "from", message, map->role_tag);
    dataset_info_take(mapped, "value", message, map->content_tag);
    marks_copy(message, mapped);
    return mapped;
}

static void sharegpt_apply(const ColumnMap *map, const json_t *row, json_t *mapped) {
    json_t *turns = json_object_get(row, map->messages), *list = json_array();
    for (size_t i = 0; i < json_array_size(turns); i++) json_array_append_new(list, message_apply(map, json_array_get(turns, i)));
    json_object_set_new(mapped, "conversations", json_is_array(turns) || !turns ? list : (json_decref(list), json_incref(turns)));
    if (map->ranking) {
        json_object_set_new(mapped, "chosen", message_apply(map, json_object_get(row, map->chosen)));
        json_object_set_new(mapped, "rejected", message_apply(map, json_object_get(row, map->rejected)));
    }
}

static void add_message(json_t *list, const char *role, const json_t *content) {
    json_array_append_new(list, json_pack("{s:s, s:O}", "role", role, "content", (json_t *)(uintptr_t)content));
}

/* A prompt with a history can only be expressed as turns. */
static void talk(const json_t *history, json_t *mapped) {
    static const char *const answers[] = {"chosen", "rejected", "completion"};
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(history); i++) {
        const json_t *round = json_array_get(history, i);
        if (json_array_size(round) > 0) add_message(list, "user", json_array_get(round, 0));
        if (json_array_size(round) > 1) add_message(list, "assistant", json_array_get(round, 1));
    }
    if (json_object_get(mapped, "prompt")) add_message(list, "user", json_object_get(mapped, "prompt"));
    json_object_set_new(mapped, "prompt", list);
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        json_t *answer = json_object_get(mapped, answers[i]), *one = json_array();
        if (answer) add_message(one, "assistant", answer);
        if (answer) json_object_set(mapped, answers[i], one);
        json_decref(one);
    }
}

/* Pairs and labelled answers as tune rl reads them: the prompt is the instruction, and the query on a line of its own. */
static void judged_apply(const ColumnMap *map, const json_t *row, json_t *mapped) {
    const json_t *prompt = json_object_get(row, map->prompt), *query = json_object_get(row, map->query),
                 *history = map->history ? json_object_get(row, map->history) : NULL;
    if (json_is_string(prompt) && json_string_length(query) > 0)
        json_object_set_new(mapped, "prompt", json_sprintf("%s\n%s", json_string_value(prompt), json_string_value(query)));
    else
        dataset_info_take(mapped, "prompt", row, map->prompt);
    if (map->ranking) {
        dataset_info_take(mapped, "chosen", row, map->chosen);
        dataset_info_take(mapped, "rejected", row, map->rejected);
    } else {
        dataset_info_take(mapped, "completion", row, map->response);
    }
    if (json_array_size(history) > 0) talk(history, mapped);
}

static void alpaca_apply(const ColumnMap *map, const json_t *row, json_t *mapped) {
    bool plain = map->plain && !json_object_get(row, map->response);
    dataset_info_take(mapped, plain ? "text" : "instruction", row, map->prompt);
    if (plain) return;
    dataset_info_take(mapped, "input", row, map->query);
    dataset_info_take(mapped, "output", row, map->ranking ? map->chosen : map->response);
    dataset_info_take(mapped, "history", row, map->history);
}

json_t *columns_apply(const ColumnMap *map, const json_t *row, bool judged) {
    json_t *mapped = json_object();
    if (!mapped) return NULL;
    if (map->sharegpt)
        sharegpt_apply(map, row, mapped);
    else if ((judged && map->ranking) || map->kto_tag) /* without its label an unwanted answer would be learned */
        judged_apply(map, row, mapped);
    else
        alpaca_apply(map, row, mapped);
    dataset_info_take(mapped, "system", row, map->system);
    dataset_info_take(mapped, "tools", row, map->tools);
    dataset_info_take(mapped, "label", row, map->kto_tag);
    dataset_info_take(mapped, "weight", row, "weight");
    dataset_info_take(mapped, "margin", row, "margin");
    return mapped;
}
