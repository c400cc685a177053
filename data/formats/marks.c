/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of messages: those that say whether a turn is trained, under the names that other tools use, and those that are never read. */
#include "data/formats/message.h"

#include <string.h>

/* own: an invalid value is an error; otherwise it is noted, since the key may have another meaning. */
static const struct {
    const char *name, *expected;
    bool own;
} marks[] = {
    {"train", "true nor false", true},      {"weight", "0 nor 1", true},           {"loss_weight", "0 nor 1", true},
    {"trainable", "true nor false", false}, {"training", "true nor false", false}, {"loss", "true nor false", false},
    {"loss_mask", "0 nor 1", false},        {"loss_scale", "0 nor 1", false},
};
static const char DETAIL[] = "train_detail";

void marks_copy(const json_t *from, json_t *to) {
    for (size_t i = 0; i < COUNT_OF(marks); i++)
        if (json_object_get(from, marks[i].name)) json_object_set(to, marks[i].name, json_object_get(from, marks[i].name));
    if (json_object_get(from, DETAIL)) json_object_set(to, DETAIL, json_object_get(from, DETAIL));
}

/* True or false, 1 or 0. */
static bool says(const json_t *value, bool *yes) {
    double number = json_number_value(value);
    *yes = json_is_true(value) || number == 1;
    return json_is_boolean(value) || (json_is_number(value) && (number == 0 || number == 1));
}

static bool is_detail(const json_t *detail) {
    for (size_t i = 0; i < json_array_size(detail); i++) {
        const json_t *part = json_array_get(detail, i);
        if (!json_is_integer(json_object_get(part, "begin_offset")) || !json_is_integer(json_object_get(part, "end_offset"))) return false;
        if (!json_is_boolean(json_object_get(part, "train"))) return false;
    }
    return json_is_array(detail);
}

Status marks_read(const json_t *message, size_t number, RowNotes *notes, bool *trained) {
    *trained = true;
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        const json_t *value = json_object_get(message, marks[i].name);
        bool yes = true, clear = !value || json_is_null(value) || says(value, &yes);
        if (!clear && marks[i].own) return status_fail(ST_INPUT, "'%s' of message %zu is neither %s", marks[i].name, number, marks[i].expected);
        if (!clear) row_note(notes, "with a message whose '%s' is neither %s, and is not read", marks[i].name, marks[i].expected);
        *trained = *trained && (yes || !clear);
    }
    const json_t *detail = json_object_get(message, DETAIL);
    if (detail && !json_is_null(detail) && !is_detail(detail))
        row_note(notes, "with a message whose '%s' is not a list of {\"begin_offset\", \"end_offset\", \"train\"}, and is not read", DETAIL);
    return ST_OK;
}

bool marks_are_native(const json_t *message) {
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        const json_t *value = json_object_get(message, marks[i].name);
        bool yes = true;
        if (marks[i].own && value && says(value, &yes) && !yes) return true;
    }
    return false;
}

static size_t characters(const char *text, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Offsets count characters, and the end is inclusive, as in axolotl. */
bool marks_leave_out(const json_t *message, size_t begin, size_t end) {
    const json_t *detail = json_object_get(message, DETAIL);
    const char *content = json_string_value(json_object_get(message, "content"));
    if (!detail || !content || !is_detail(detail)) return false;
    json_int_t first = (json_int_t)characters(content, begin + 1) - 1, limit = (json_int_t)characters(content, end);
    for (size_t i = 0; i < json_array_size(detail); i++) {
        const json_t *part = json_array_get(detail, i);
        bool inside =
            json_integer_value(json_object_get(part, "begin_offset")) < limit && first <= json_integer_value(json_object_get(part, "end_offset"));
        if (inside && json_is_false(json_object_get(part, "train"))) return true;
    }
    return false;
}

/* ---- keys that are never read ---- */

static bool is_nothing(const json_t *value) {
    return json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           ((json_is_array(value) || json_is_object(value)) && json_array_size(value) + json_object_size(value) == 0);
}

void message_note_keys(const json_t *message, const Chat *chat, RowNotes *notes) {
    static const char *const read[] = {"role",         "content",       "name",       "tool_calls", "reasoning_content", "thinking",  "reasoning",
                                       "tool_call_id", "function_call", "train",      "weight",     "loss_weight",       "trainable", "training",
                                       "loss",         "loss_mask",     "loss_scale", DETAIL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, key, value) {
        bool known = is_nothing(value);
        for (size_t i = 0; i < COUNT_OF(read) && !known; i++) known = strcmp(read[i], key) == 0;
        if (known || template_names(chat, key)) continue;
        const char *nearest = text_nearest(key, read, COUNT_OF(read));
        row_note(notes, "with a message that has a key '%s', which is never read%s%s%s", key, nearest ? "; the nearest known is '" : "",
                 nearest ? nearest : "", nearest ? "'" : "");
    }
}
