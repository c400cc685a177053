/* SPDX-License-Identifier: Apache-2.0 */
/* Function calls and tools, in the forms found in data: OpenAI's current and older form, JSON as text, and Arrow structs, which have the members of
 * all rows. */
#include "data/formats/conversation.h"
#include "data/formats/message.h"

#include <string.h>

/* ---- calls ---- */

static json_t *text_json(const json_t *text) { return json_parse(json_string_value(text), json_string_length(text), JSON_REJECT_DUPLICATES, NULL); }

/* A list of {"type": "function", "function": ...} from one call or a list of calls. NULL: it is neither. */
static json_t *calls_list(json_t *calls) {
    size_t n = json_is_array(calls) ? json_array_size(calls) : json_is_object(calls);
    json_t *list = n > 0 ? json_array() : NULL;
    for (size_t i = 0; i < n && list; i++) {
        json_t *call = json_is_array(calls) ? json_array_get(calls, i) : calls;
        bool named = json_is_string(json_object_get(call, "name"));
        if (named && json_array_append_new(list, json_pack("{s:s, s:O}", "type", "function", "function", call)) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

Status calls_message(const char *text, size_t number, json_t **message) {
    json_t *calls = json_parse(text, strlen(text), JSON_REJECT_DUPLICATES, NULL), *list = calls_list(calls);
    json_decref(calls);
    *message = list ? json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "", "tool_calls", list) : NULL;
    return *message ? ST_OK : status_fail(ST_INPUT, "message %zu is a function_call, but no JSON with 'name' and 'arguments'", number);
}

/* The older form of a single call: {"function_call": {"name", "arguments"}}. */
static Status open_function_call(json_t *message, size_t number, RowNotes *notes) {
    json_t *given = json_object_get(message, "function_call");
    if (!given) return ST_OK;
    json_t *call = json_is_string(given) ? text_json(given) : json_incref(given), *list = json_is_object(call) ? calls_list(call) : NULL;
    json_decref(call);
    if (!list) return status_fail(ST_INPUT, "'function_call' of message %zu is not an object with 'name' and 'arguments'", number);
    if (json_object_get(message, "tool_calls"))
        json_decref(list); /* given twice, in both forms */
    else
        json_object_set_new(message, "tool_calls", list);
    json_object_del(message, "function_call");
    row_note(notes, "with a 'function_call', which is read as 'tool_calls'");
    return ST_OK;
}

/* OpenAI's API has arguments as JSON text; templates serialise them themselves and expect the object. */
static void open_arguments(json_t *call, RowNotes *notes) {
    json_t *function = json_object_get(call, "function") ? json_object_get(call, "function") : call,
           *arguments = json_object_get(function, "arguments");
    if (!json_is_string(arguments)) return;
    json_t *object = text_json(arguments);
    if (json_is_object(object))
        json_object_set(function, "arguments", object);
    else
        row_note(notes, "with a call whose 'arguments' are a text that is not a JSON object: it is written unchanged");
    json_decref(object);
}

Status calls_open(json_t *message, size_t number, RowNotes *notes) {
    TRY(open_function_call(message, number, notes));
    json_t *calls = json_object_get(message, "tool_calls"), *call, *copy;
    size_t i;
    bool text = json_is_string(calls);
    if (text && json_string_length(calls) == 0) {
        json_object_del(message, "tool_calls");
        return ST_OK;
    }
    copy = text ? text_json(calls) : json_deep_copy(calls);
    if (text && !json_is_array(copy)) {
        json_decref(copy);
        return status_fail(ST_INPUT, "'tool_calls' of message %zu are a text that is not a JSON list", number);
    }
    json_array_foreach(copy, i, call) open_arguments(call, notes);
    if (copy) json_object_set_new(message, "tool_calls", copy);
    return ST_OK;
}

/* ---- tools ---- */

/* Parses the texts in the list into the objects that they encode. */
static Status open_texts(json_t *tools, const char *key) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (!json_is_string(tool)) continue;
        json_t *object = text_json(tool);
        if (!json_is_object(object)) {
            json_decref(object);
            return status_fail(ST_INPUT, "entry %zu of '%s' is a text that is not a JSON object", i + 1, key);
        }
        json_array_set_new(tools, i, object);
    }
    return ST_OK;
}

/* OpenAI's older form has only functions. */
static json_t *wrap_functions(const json_t *functions) {
    json_t *tools = json_array();
    for (size_t i = 0; i < json_array_size(functions); i++) {
        json_t *function = json_array_get(functions, i);
        bool wrapped = json_object_get(function, "function") != NULL;
        json_array_append_new(tools, wrapped ? json_incref(function) : json_pack("{s:s, s:O}", "type", "function", "function", function));
    }
    return tools;
}

static bool is_none(const json_t *value) {
    return !value || json_is_null(value) || (json_is_string(value) && strcmp(json_string_value(value), "null") == 0);
}

Status row_tools(const json_t *row, json_t **tools) {
    const char *key = is_none(json_object_get(row, "tools")) && !is_none(json_object_get(row, "functions")) ? "functions" : "tools";
    bool texts = false;
    json_t *given;
    *tools = NULL;
    if (is_none(json_object_get(row, key))) return ST_OK;
    TRY(row_list(row, key, &given));
    for (size_t i = 0; i < json_array_size(given); i++) texts = texts || json_is_string(json_array_get(given, i));
    json_t *opened = texts ? json_copy(given) : json_incref(given);
    json_decref(given);
    Status status = texts ? open_texts(opened, key) : ST_OK;
    *tools = status == ST_OK && opened && strcmp(key, "functions") == 0 ? wrap_functions(opened) : json_incref(opened);
    json_decref(opened);
    if (status == ST_OK) return ST_OK;
    json_decref(*tools);
    *tools = NULL;
    return status;
}

/* ---- nulls of Arrow ---- */

static bool holds_null(const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) if (json_is_null(value)) return true;
    return false;
}

static void drop_nulls(json_t *value) {
    const char *key;
    json_t *item;
    void *next;
    for (size_t i = 0; i < json_array_size(value); i++) drop_nulls(json_array_get(value, i));
    json_object_foreach_safe(value, next, key, item) {
        if (json_is_null(item))
            json_object_del(value, key);
        else
            drop_nulls(item);
    }
}

static const json_t *function_of(const json_t *entry) {
    const json_t *function = json_object_get(entry, "function");
    return json_is_object(function) ? function : entry;
}

/* The schema of a tool's arguments; NULL: none. */
static const json_t *properties_of(const json_t *tool) { return json_object_get(json_object_get(function_of(tool), "parameters"), "properties"); }

/* A property that is null is no schema. */
static bool null_schema(const json_t *tools) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (holds_null(properties_of(json_array_get(tools, i)))) return true;
    return false;
}

/* A null for an argument that the function does not have. */
static bool foreign_null(const json_t *call, const json_t *tools) {
    const json_t *function = function_of(call);
    const char *name = json_string_value(json_object_get(function, "name")), *key;
    json_t *value;
    for (size_t i = 0; name && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *properties = properties_of(tool);
        const char *own = json_string_value(json_object_get(function_of(tool), "name"));
        if (!own || strcmp(own, name) != 0 || !json_is_object(properties)) continue;
        json_object_foreach(json_object_get(function, "arguments"), key,
                            value) if (json_is_null(value) && !json_object_get(properties, key)) return true;
    }
    return false;
}

typedef bool VisitCall(const json_t *call, const json_t *tools);

static bool null_argument(const json_t *call, const json_t *tools) {
    (void)tools;
    return holds_null(json_object_get(function_of(call), "arguments"));
}

/* Whether `visit` is true for any call in the row's conversations. */
static bool any_call(const json_t *row, VisitCall *visit, const json_t *tools) {
    const char *key;
    json_t *column;
    json_object_foreach((json_t *)(uintptr_t)row, key, column) {
        for (size_t i = 0; i < json_array_size(column); i++) {
            const json_t *calls = json_object_get(json_array_get(column, i), "tool_calls");
            for (size_t c = 0; c < json_array_size(calls); c++)
                if (visit(json_array_get(calls, c), tools)) return true;
        }
    }
    return false;
}

/* Nulls that only Arrow can have put there. */
static bool looks_padded(const json_t *row) {
    json_t *tools = NULL;
    if (null_schema(json_object_get(row, "tools")) || null_schema(json_object_get(row, "functions"))) return true;
    if (!any_call(row, null_argument, NULL) || row_tools(row, &tools) != ST_OK) return false; /* rendering refuses it */
    bool padded = any_call(row, foreign_null, tools);
    json_decref(tools);
    return padded;
}

static bool has_calls(const json_t *column) {
    for (size_t i = 0; i < json_array_size(column); i++)
        if (json_object_get(json_array_get(column, i), "tool_calls")) return true;
    return false;
}

static void unpad_calls(json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages); i++) drop_nulls(json_object_get(json_array_get(messages, i), "tool_calls"));
}

json_t *row_unpadded(const json_t *row, bool padded) {
    static const char *const wholes[] = {"tools", "functions", "documents", "chat_template_kwargs"};
    json_t *given = (json_t *)(uintptr_t)row, *copy, *column;
    const char *key;
    if (!padded && !looks_padded(row)) return json_incref(given);
    copy = json_copy(given);
    json_object_foreach(given, key, column) {
        bool whole = false;
        for (size_t i = 0; i < COUNT_OF(wholes); i++) whole = whole || strcmp(key, wholes[i]) == 0;
        if (!whole && !has_calls(column)) continue;
        json_t *own = json_deep_copy(column);
        if (whole)
            drop_nulls(own);
        else
            unpad_calls(own);
        if (json_object_set_new(copy, key, own) == 0) continue;
        json_decref(copy);
        return NULL;
    }
    return copy;
}
