/* SPDX-License-Identifier: Apache-2.0 */
/* {"conversations": [{"from", "value"}, ...], "system", "tools"}: ShareGPT's form with the role names that are about. A function_call becomes an
 * assistant's tool call, an observation a tool's answer, as in LLaMA-Factory. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"

#include <string.h>

static const struct {
    const char *from, *role;
} roles[] = {
    {"human", "user"},       {"user", "user"},      {"gpt", "assistant"},          {"assistant", "assistant"}, {"chatgpt", "assistant"},
    {"bing", "assistant"},   {"bard", "assistant"}, {"model", "assistant"},        {"system", "system"},       {"function_call", "function_call"},
    {"observation", "tool"}, {"tool", "tool"},      {"function_response", "tool"},
};

static bool detect_sharegpt(const json_t *row) { return json_object_get(row, "conversations") || json_object_get(row, "conversation"); }

/* The value of a function_call: one call, or a list of them. */
static Status call_message(const char *value, size_t number, json_t **message) {
    json_t *calls = json_loadb(value, strlen(value), JSON_REJECT_DUPLICATES, NULL), *list = json_array();
    size_t n = json_is_array(calls) ? json_array_size(calls) : calls ? 1 : 0;
    bool whole = list && n > 0;
    for (size_t i = 0; i < n && whole; i++) {
        json_t *call = json_is_array(calls) ? json_array_get(calls, i) : calls;
        whole = json_is_string(json_object_get(call, "name"));
        if (whole) json_array_append_new(list, json_pack("{s:s, s:O}", "type", "function", "function", call));
    }
    json_decref(calls);
    *message = whole ? json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "", "tool_calls", list) : NULL;
    if (!whole) json_decref(list);
    return *message ? ST_OK : status_fail(ST_INPUT, "message %zu is a function_call, but no JSON with 'name' and 'arguments'", number);
}

static Status turn_message(const json_t *turn, size_t number, json_t **message) {
    const json_t *from = json_object_get(turn, "from") ? json_object_get(turn, "from") : json_object_get(turn, "role");
    json_t *value = json_object_get(turn, "value") ? json_object_get(turn, "value") : json_object_get(turn, "content");
    const char *role = NULL;
    if (!json_is_string(from)) return status_fail(ST_INPUT, "message %zu of the conversation has no 'from'", number);
    if (!json_is_string(value)) return status_fail(ST_INPUT, "'value' of message %zu (%s) is no text", number, json_string_value(from));
    if (json_holds_nul(value)) return status_fail(ST_INPUT, "'value' of message %zu (%s) holds a NUL character", number, json_string_value(from));
    for (size_t i = 0; i < COUNT_OF(roles) && !role; i++)
        if (strcmp(roles[i].from, json_string_value(from)) == 0) role = roles[i].role;
    if (!role) {
        status_fail(ST_INPUT, "message %zu is from '%s', which is no known role", number, json_string_value(from));
        return status_hint(ST_INPUT, "known are human, gpt, system, function_call, observation and their usual other names");
    }
    if (strcmp(role, "function_call") == 0) {
        TRY(call_message(json_string_value(value), number, message));
    } else {
        *message = json_pack("{s:s, s:O}", "role", role, "content", value);
    }
    static const char *const flags[] = {"train", "weight", "loss_weight"};
    for (size_t i = 0; i < COUNT_OF(flags); i++)
        if (json_object_get(turn, flags[i])) json_object_set(*message, flags[i], json_object_get(turn, flags[i]));
    return *message ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
}

Status sharegpt_messages(const json_t *row, const json_t *turns, json_t **messages) {
    const json_t *system = json_object_get(row, "system");
    if (json_holds_nul(system)) return status_fail(ST_INPUT, "'system' holds a NUL character");
    *messages = json_array();
    if (!*messages) return status_fail(ST_RESOURCE, "out of memory");
    if (json_is_string(system) && json_string_length(system) > 0)
        json_array_append_new(*messages, json_pack("{s:s, s:s}", "role", "system", "content", json_string_value(system)));
    for (size_t i = 0; i < json_array_size(turns); i++) {
        json_t *message;
        TRY(turn_message(json_array_get(turns, i), i + 1, &message));
        json_array_append_new(*messages, message);
    }
    return ST_OK;
}

static Status read_messages(const json_t *row, const DataConfig *config, json_t **normal) {
    json_t *turns, *messages = NULL;
    TRY(row_list(row, json_object_get(row, "conversations") ? "conversations" : "conversation", &turns));
    if (!turns) return status_fail(ST_INPUT, "the row lacks 'conversations'");
    Status status = json_array_size(turns) ? sharegpt_messages(row, turns, &messages) : status_fail(ST_INPUT, "the conversation is empty");
    if (status == ST_OK) status = messages_normalize(messages, config->system, normal);
    json_decref(turns);
    json_decref(messages);
    return status;
}

const DataFormat data_format_sharegpt = {
    .name = "sharegpt",
    .help = "{\"conversations\"}",
    .detect = detect_sharegpt,
    .read_messages = read_messages,
    .needs_tokenizer = true,
    .takes_system = true,
};
