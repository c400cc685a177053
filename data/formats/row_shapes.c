/* SPDX-License-Identifier: Apache-2.0 */
/* Converts public forms of rows (shapes.def) to ours, and conversations that are lists of texts or of pairs of texts. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"
#include "data/formats/message.h"
#include "data/formats/row_form.h"

#include <string.h>

static const char *text_of(const json_t *row, const char *key) { return json_string_value(json_object_get(row, key)); }

static bool has(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    return value && !json_is_null(value);
}

static Status no_memory(void) { return status_fail(ST_RESOURCE, "out of memory for a row"); }

/* ---- forms that need more than new names ---- */

/* Stanford's human preferences: `labels` 1: the first answer is the better one. */
static Status make_shp(json_t *row) {
    const json_t *label = json_object_get(row, "labels");
    if (!json_is_integer(label) || json_integer_value(label) < 0 || json_integer_value(label) > 1)
        return status_fail(ST_INPUT, "'labels' is neither 0 nor 1, which says whether human_ref_A is the better answer");
    bool first = json_integer_value(label) == 1;
    json_object_set(row, "chosen", json_object_get(row, first ? "human_ref_A" : "human_ref_B"));
    json_object_set(row, "rejected", json_object_get(row, first ? "human_ref_B" : "human_ref_A"));
    json_object_del(row, "labels");
    json_object_del(row, "history");
    return ST_OK;
}

/* OpenAI's preference fine-tuning: {"input": {"messages", "tools"}, "preferred_output": [...], "non_preferred_output": [...]}. */
static Status make_openai_preference(json_t *row) {
    json_t *input = json_object_get(row, "input"), *messages = json_object_get(input, "messages"), *tools = json_object_get(input, "tools");
    if (!json_is_array(messages)) return status_fail(ST_INPUT, "'input' has no 'messages', a list");
    json_object_set(row, "prompt", messages);
    if (tools && !has(row, "tools")) json_object_set(row, "tools", tools);
    json_object_set(row, "chosen", json_object_get(row, "preferred_output"));
    json_object_set(row, "rejected", json_object_get(row, "non_preferred_output"));
    json_object_del(row, "input");
    return ST_OK;
}

/* LLaMA-Factory's pairs: the prompt is the instruction, and the input on a line of its own. */
static Status make_alpaca_pairs(json_t *row) {
    const char *instruction = text_of(row, "instruction"), *input = text_of(row, "input");
    if (!instruction) return status_fail(ST_INPUT, "'instruction' is not a text");
    json_t *prompt = input && *input ? json_sprintf("%s\n%s", instruction, input) : json_incref(json_object_get(row, "instruction"));
    if (!prompt) return no_memory();
    json_object_set_new(row, "prompt", prompt);
    json_object_del(row, "instruction");
    json_object_del(row, "input");
    return ST_OK;
}

/* ---- tools ---- */

/* Wraps a tool in "function", with a JSON schema of its arguments, as templates expect it; a tool in this form stays unchanged. */
static json_t *tool_schema(json_t *tool) {
    json_t *parameters = json_object_get(tool, "parameters");
    if (json_object_get(tool, "function") || !json_object_get(tool, "name")) return json_incref(tool);
    json_t *copy = json_copy(tool);
    if (json_is_object(parameters) && !json_object_get(parameters, "properties") && !json_is_string(json_object_get(parameters, "type")))
        json_object_set_new(copy, "parameters", json_pack("{s:s, s:O}", "type", "object", "properties", parameters));
    return json_pack("{s:s, s:o}", "type", "function", "function", copy);
}

static Status set_tools(json_t *row, const json_t *tools) {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) json_array_append_new(list, tool_schema(json_array_get(tools, i)));
    return list && json_object_set_new(row, "tools", list) == 0 ? ST_OK : no_memory();
}

/* One assistant message with all calls, each {"name", "arguments"}. */
static json_t *xlam_calls(const json_t *calls) {
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++)
        json_array_append_new(list, json_pack("{s:s, s:O}", "type", "function", "function", json_array_get(calls, i)));
    return json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "", "tool_calls", list);
}

/* {"query", "answers": "[{\"name\", \"arguments\"}]", "tools": "[...]"}: calls and tools are JSON as text. */
static Status make_xlam(json_t *row) {
    json_t *answers, *tools, *query = json_object_get(row, "query");
    if (!json_is_string(query)) return status_fail(ST_INPUT, "'query' is not a text");
    TRY(row_list(row, "answers", &answers));
    Status status = row_list(row, "tools", &tools);
    for (size_t i = 0; i < json_array_size(answers) && status == ST_OK; i++)
        if (!json_is_string(json_object_get(json_array_get(answers, i), "name")))
            status = status_fail(ST_INPUT, "call %zu of 'answers' has no 'name'", i + 1);
    if (status == ST_OK && json_array_size(answers) == 0) status = status_fail(ST_INPUT, "'answers' contains no call");
    if (status == ST_OK && tools) status = set_tools(row, tools);
    if (status == ST_OK) {
        json_t *user = json_pack("{s:s, s:O}", "role", "user", "content", query), *call = xlam_calls(answers);
        json_t *messages = user && call ? json_pack("[o, o]", user, call) : NULL;
        status = messages && json_object_set_new(row, "messages", messages) == 0 ? ST_OK : no_memory();
    }
    json_decref(answers);
    json_decref(tools);
    return status;
}

/* ---- glaive-function-calling-v2: a dialogue as one text, tools in the system text ---- */

/* <functioncall> {"name": "f", "arguments": '{"a": 1}'}: JSON except for the quotes around the arguments. NULL: no such call. */
static json_t *glaive_call(const char *text) {
    static const char mark[] = "<functioncall>", key[] = "\"arguments\":";
    if (!text_starts_with(text, mark)) return NULL;
    const char *json = text + strlen(mark), *arguments = strstr(json, key);
    const char *open = arguments ? arguments + strlen(key) + strspn(arguments + strlen(key), " ") : NULL, *close = open ? strrchr(open, '\'') : NULL;
    Str clean = {0};
    if (open && *open == '\'' && close > open) {
        str_append_n(&clean, json, (size_t)(open - json));
        for (const char *at = open + 1; at < close; at++)
            if (!(at[0] == '\\' && at[1] == '\'')) str_append_char(&clean, *at);
        str_append(&clean, close + 1);
    } else {
        str_append(&clean, json);
    }
    json_t *call = json_parse(str_text(&clean), clean.len, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, NULL), *list = NULL;
    str_release(&clean);
    if (json_is_string(json_object_get(call, "name"))) list = json_pack("[O]", call);
    json_t *message = list ? xlam_calls(list) : NULL;
    json_decref(call);
    json_decref(list);
    return message;
}

static Status glaive_messages(const char *chat, json_t *messages) {
    static const Speaker speakers[] = {{"SYSTEM", "system"}, {"USER", "user"}, {"ASSISTANT", "assistant"}, {"FUNCTION RESPONSE", "tool"}};
    static const char end[] = "<|endoftext|>";
    json_t *turns = dialogue_messages(chat, speakers, COUNT_OF(speakers));
    if (!turns) return status_fail(ST_INPUT, "'chat' begins with neither \"USER:\" nor \"ASSISTANT:\"");
    for (size_t i = 0; i < json_array_size(turns); i++) {
        json_t *turn = json_array_get(turns, i);
        const char *content = text_of(turn, "content");
        size_t len = strlen(content);
        if (text_ends_with(content, end)) len -= strlen(end);
        while (len > 0 && strchr(" \n", content[len - 1])) len--;
        json_t *call = strcmp(text_of(turn, "role"), "assistant") == 0 ? glaive_call(content) : NULL;
        json_array_append_new(messages, call ? call : message_new(text_of(turn, "role"), content, len));
    }
    json_decref(turns);
    return ST_OK;
}

/* The JSON objects at the end of the system text, in order; an empty list if there are none. */
static json_t *glaive_tools(const char *text) {
    json_t *tools = json_array();
    const char *end = text + strlen(text);
    for (const char *at = strchr(text, '{'); at && *at == '{';) {
        json_error_t error;
        json_t *tool = json_parse(at, (size_t)(end - at), JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &error);
        if (!json_is_string(json_object_get(tool, "name"))) {
            json_decref(tool);
            break;
        }
        json_array_append_new(tools, tool);
        at += error.position; /* bytes read */
        at += strspn(at, " \n\r\t,");
    }
    return tools;
}

/* The template writes the tools itself, so the sentence that announces them is removed. */
static Status make_glaive(json_t *row) {
    static const char announced[] = " with access to the following functions", name[] = "SYSTEM:";
    const char *system = text_of(row, "system"), *chat = text_of(row, "chat");
    if (!system || !chat) return status_fail(ST_INPUT, "'%s' is not a text", system ? "chat" : "system");
    if (text_starts_with(system, name)) system += strlen(name);
    system += strspn(system, " \n");
    json_t *tools = glaive_tools(system), *messages = json_array();
    const char *cut = json_array_size(tools) > 0 ? strstr(system, announced) : NULL;
    size_t len = cut ? (size_t)(cut - system) : strlen(system);
    while (len > 0 && strchr(" \n,", system[len - 1])) len--;
    json_t *text = len > 0 ? json_sprintf("%.*s%s", (int)len, system, cut ? "." : "") : NULL;
    if (text) json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content", text));
    Status status = json_array_size(tools) > 0 && !has(row, "tools") ? set_tools(row, tools) : ST_OK;
    if (status == ST_OK) status = glaive_messages(chat, messages);
    if (status == ST_OK) json_object_set(row, "messages", messages);
    json_object_del(row, "system");
    json_decref(messages);
    json_decref(tools);
    return status;
}

/* ---- the table ---- */

typedef struct Shape {
    const char *name, *columns, *names;
    Status (*make)(json_t *row);
} Shape;

static const Shape shapes[] = {
#define SHAPE(name, columns, names, make) {#name, columns, names, make},
#include "data/formats/shapes.def"
#undef SHAPE
};

/* Iterates over the words of a list separated by blanks or commas; false: there are no more. */
static bool next_word(const char **list, char word[64]) {
    *list += strspn(*list, " ,");
    size_t len = MIN(strcspn(*list, " ,"), (size_t)63);
    memcpy(word, *list, len);
    word[len] = '\0';
    *list += len;
    return len > 0;
}

/* It has all of the columns, and none of those that the conversion would add. */
static bool row_shapes_fits(const Shape *shape, const json_t *row) {
    char word[64];
    for (const char *at = shape->columns; next_word(&at, word);)
        if (!has(row, word)) return false;
    for (const char *at = shape->names; next_word(&at, word);) {
        *strchr(word, '=') = '\0';
        if (has(row, word)) return false;
    }
    return true;
}

static Status reshape(const Shape *shape, const json_t *row, json_t **shaped) {
    char word[64];
    *shaped = json_copy((json_t *)(uintptr_t)row);
    if (!*shaped) return no_memory();
    for (const char *at = shape->names; next_word(&at, word);) {
        char *theirs = strchr(word, '=');
        *theirs++ = '\0';
        if (has(row, theirs)) json_object_set(*shaped, word, json_object_get(row, theirs));
    }
    Status status = shape->make ? shape->make(*shaped) : ST_OK;
    if (status == ST_OK) return ST_OK;
    json_decref(*shaped);
    *shaped = NULL;
    return status;
}

/* ---- conversations without roles ---- */

static const char *const list_keys[] = {"conversations", "conversation", "messages", "data"};
static const char *const pair_keys[][2] = {{"input", "output"},    {"human", "assistant"},    {"user", "assistant"},
                                           {"question", "answer"}, {"prompt", "response"},    {"prompt", "completion"},
                                           {"query", "response"},  {"instruction", "output"}, {"instruction", "response"}};

static int pair_of(const json_t *item) {
    for (size_t i = 0; i < COUNT_OF(pair_keys); i++)
        if (json_is_string(json_object_get(item, pair_keys[i][0])) && json_is_string(json_object_get(item, pair_keys[i][1]))) return (int)i;
    return -1;
}

static bool has_role(const json_t *item) { return json_object_get(item, "role") || json_object_get(item, "from"); }

/* The user's and the assistant's words in turn, or both in one object. */
static Status turns_of_list(const json_t *list, json_t *messages) {
    bool pairs = json_is_object(json_array_get(list, 0));
    int k = pair_of(json_array_get(list, 0));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (pairs ? k < 0 || pair_of(item) < 0 : !json_is_string(item))
            return status_fail(ST_INPUT, "item %zu of the conversation is not a %s, unlike those before it", i + 1, pairs ? "pair of texts" : "text");
        for (int s = 0; s < (pairs ? 2 : 1); s++) {
            json_t *content = pairs ? json_object_get(item, pair_keys[k][s]) : (json_t *)(uintptr_t)item;
            if (!content) return status_fail(ST_INPUT, "item %zu of the conversation lacks '%s'", i + 1, pair_keys[k][s]);
            bool user = pairs ? s == 0 : i % 2 == 0;
            json_array_append_new(messages, json_pack("{s:s, s:O}", "role", user ? "user" : "assistant", "content", content));
        }
    }
    return ST_OK;
}

/* As in Capybara ({"input", "output"}) and LIMA (texts). */
static Status lists_as_messages(const json_t *row, json_t **shaped, const char **shape) {
    for (size_t i = 0; i < COUNT_OF(list_keys); i++) {
        const json_t *list = json_object_get(row, list_keys[i]), *first = json_array_get(list, 0);
        if (!json_is_array(list) || !(json_is_string(first) || (!has_role(first) && pair_of(first) >= 0))) continue;
        if (i == 3 && data_format_of(row)) continue; /* `data` is UltraChat's name, and other datasets may use it for anything */
        json_t *messages = json_array(), *made = json_copy((json_t *)(uintptr_t)row);
        Status status = messages && made ? turns_of_list(list, messages) : no_memory();
        if (status == ST_OK) {
            json_object_del(made, list_keys[i]);
            json_object_set(made, "messages", messages);
            *shaped = json_incref(made);
            *shape = json_is_string(first) ? "lists of texts" : "lists of pairs";
        }
        json_decref(messages);
        json_decref(made);
        return status;
    }
    return ST_OK;
}

/* ---- ShareGPT turns in lists of messages ---- */

/* For columns whose messages have a role and a content. *named: a new reference, to the row itself if it has no such turns. */
static Status turns_as_messages(const json_t *row, json_t **named, const char **shape) {
    static const char *const columns[] = {"messages", "prompt", "completion", "chosen", "rejected", "chosen_messages", "rejected_messages"};
    *named = json_incref((json_t *)(uintptr_t)row);
    for (size_t i = 0; i < COUNT_OF(columns); i++) {
        const json_t *list = json_object_get(row, columns[i]);
        if (!has_named_turns(list)) continue;
        if (!*shape) {
            json_decref(*named);
            *named = json_copy((json_t *)(uintptr_t)row);
        }
        *shape = "turns of from and value";
        json_t *messages = *named ? named_turns_open(list) : NULL;
        if (!messages || json_object_set_new(*named, columns[i], messages) != 0) {
            json_decref(*named);
            return no_memory();
        }
    }
    return ST_OK;
}

/* ---- which rows are ours ---- */

static bool is_dialogue(const json_t *row) {
    const char *chosen = text_of(row, "chosen");
    return !chosen || strstr(chosen, "Assistant:");
}

/* Whether some format can read the unchanged row. */
static bool is_ours(const json_t *row, RowUse use) {
    const DataFormat *format = data_format_of(row);
    if (!format) return false;
    if (strcmp(format->name, "alpaca") == 0) return has(row, "output");
    if (strcmp(format->name, "preference") == 0) return has(row, "prompt") || is_dialogue(row);
    return strcmp(format->name, "prompt") != 0 || use == ROWS_AS_PROMPTS;
}

static Status shape_named(const json_t *row, RowUse use, json_t **shaped, const char **shape) {
    TRY(lists_as_messages(row, shaped, shape));
    if (*shaped) return ST_OK;
    for (size_t i = is_ours(row, use) ? COUNT_OF(shapes) : 0; i < COUNT_OF(shapes); i++) {
        if (!row_shapes_fits(&shapes[i], row)) continue;
        *shape = shapes[i].columns;
        return reshape(&shapes[i], row, shaped);
    }
    *shaped = json_incref((json_t *)(uintptr_t)row);
    return ST_OK;
}

Status shape_apply(const json_t *row, RowUse use, json_t **shaped, const char **shape) {
    json_t *named;
    *shaped = NULL;
    *shape = NULL;
    TRY(turns_as_messages(row, &named, shape));
    Status status = shape_named(named, use, shaped, shape);
    json_decref(named);
    return status;
}
