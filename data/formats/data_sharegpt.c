/* SPDX-License-Identifier: Apache-2.0 */
/* {"conversations": [{"from", "value"}, ...], "system", "tools"}: ShareGPT's form with its common role names. A function_call becomes an assistant's
 * tool call, an observation a tool's answer, as in LLaMA-Factory. */
#include "data/formats/conversation.h"
#include "data/formats/formats.h"
#include "data/formats/message.h"

#include <string.h>

static bool detect_sharegpt(const json_t *row) { return json_object_get(row, "conversations") || json_object_get(row, "conversation"); }

static void note_keys(const json_t *turn, RowNotes *notes) {
    static const char *const read[] = {"from", "value", "role", "content"};
    json_t *others = notes ? json_object() : NULL, *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)turn, key, value) {
        bool known = false;
        for (size_t i = 0; i < COUNT_OF(read); i++) known = known || strcmp(read[i], key) == 0;
        if (!known && others) json_object_set(others, key, value);
    }
    message_note_keys(others, NULL, notes);
    json_decref(others);
}

static Status turn_message(json_t *turn, size_t number, RowNotes *notes, json_t **message) {
    const json_t *from = json_object_get(turn, "from") ? json_object_get(turn, "from") : json_object_get(turn, "role");
    json_t *value = json_object_get(turn, "value") ? json_object_get(turn, "value") : json_object_get(turn, "content");
    if (!json_object_get(turn, "from") && from && !json_object_get(turn, "value")) { /* a message in OpenAI's form under ShareGPT's key */
        *message = json_incref(turn);
        return ST_OK;
    }
    if (!json_is_string(from)) return status_fail(ST_INPUT, "message %zu of the conversation has no 'from'", number);
    if (!json_is_string(value)) return status_fail(ST_INPUT, "'value' of message %zu (%s) is not a text", number, json_string_value(from));
    if (json_contains_nul(value)) return status_fail(ST_INPUT, "'value' of message %zu (%s) holds a NUL character", number, json_string_value(from));
    const char *role = role_known(json_string_value(from));
    if (!role) {
        status_fail(ST_INPUT, "message %zu is from '%s', which is not a known role", number, json_string_value(from));
        return status_hint(
            ST_INPUT,
            "known are human, gpt, system, function_call, observation and their usual other names; data.on_bad_row: skip leaves such rows out");
    }
    note_keys(turn, notes);
    if (strcmp(role, "function_call") == 0) {
        TRY(calls_message(json_string_value(value), number, message));
    } else {
        *message = json_pack("{s:s, s:O}", "role", role, "content", value);
    }
    if (!*message) return status_fail(ST_RESOURCE, "out of memory");
    marks_copy(turn, *message);
    return ST_OK;
}

Status sharegpt_messages(const json_t *turns, RowNotes *notes, json_t **messages) {
    *messages = json_array();
    if (!*messages) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < json_array_size(turns); i++) {
        json_t *message;
        TRY(turn_message(json_array_get(turns, i), i + 1, notes, &message));
        json_array_append_new(*messages, message);
    }
    return ST_OK;
}

static Status read_messages(const json_t *row, const DataConfig *config, json_t **normal) {
    json_t *turns, *messages = NULL;
    TRY(row_list(row, json_object_get(row, "conversations") ? "conversations" : "conversation", &turns));
    if (!turns) return status_fail(ST_INPUT, "the row lacks 'conversations'");
    Status status = json_array_size(turns) ? sharegpt_messages(turns, config->notes, &messages) : status_fail(ST_INPUT, "the conversation is empty");
    if (status == ST_OK) status = messages_normalize(messages, row, config, normal);
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
