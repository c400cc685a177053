/* SPDX-License-Identifier: Apache-2.0 */
/* ShareGPT turns, {"from": "human", "value": ...}, in lists of messages. */
#include "data/formats/message.h"

static const json_t *value_of(const json_t *item, const char *key) {
    const json_t *value = json_object_get(item, key);
    return json_is_null(value) ? NULL : value;
}

static bool is_turn(const json_t *item) {
    bool from = !value_of(item, "role") && json_is_string(value_of(item, "from")),
         value = !value_of(item, "content") && !value_of(item, "tool_calls") && json_is_string(value_of(item, "value"));
    return from || value;
}

bool has_named_turns(const json_t *list) {
    for (size_t i = 0; json_is_array(list) && i < json_array_size(list); i++)
        if (is_turn(json_array_get(list, i))) return true;
    return false;
}

static json_t *message_of(json_t *item) {
    const char *from = json_string_value(json_object_get(item, "from")), *role = from ? role_known(from) : NULL;
    if (!is_turn(item)) return json_incref(item);
    json_t *message = json_copy(item);
    if (from && !value_of(item, "role")) json_object_set_new(message, "role", json_string(role ? role : from));
    if (!value_of(item, "content")) json_object_set(message, "content", json_object_get(item, "value"));
    json_object_del(message, "from");
    json_object_del(message, "value");
    return message;
}

json_t *named_turns_open(const json_t *list) {
    json_t *messages = json_array();
    for (size_t i = 0; i < json_array_size(list) && messages; i++) {
        if (json_array_append_new(messages, message_of(json_array_get(list, i))) == 0) continue;
        json_decref(messages);
        messages = NULL;
    }
    return messages;
}
