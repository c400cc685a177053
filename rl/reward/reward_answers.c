/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by rewards: answers in the data row's columns, and parts of texts. */
#include "rl/reward/reward_kinds.h"

#include <ctype.h>
#include <string.h>

static Status missing_column(const RewardRow *row, const char *field) {
    const char *names[64], *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)row->columns, key, value) if (n < COUNT_OF(names)) names[n++] = key;
    status_fail(ST_INPUT, "column '%s' is missing", field);
    return status_hint_nearest(ST_INPUT, field, names, n,
                               n ? "the option 'field' names the column with the answer; the row has "
                                 : "the option 'field' names the column with the answer; the row has none");
}

/* "a.b.c": member c of member b of column a. */
static const json_t *nested(const json_t *object, const char *path) {
    Str key = {0};
    while (object && *path) {
        size_t len = strcspn(path, ".");
        str_clear(&key);
        str_append_n(&key, path, len);
        object = json_object_get(object, str_text(&key));
        path += len + (path[len] == '.');
    }
    str_release(&key);
    return object;
}

Status reward_column(const RewardRow *row, const char *field, const json_t **value) {
    *value = json_object_get(row->columns, field);
    if (!*value) *value = nested(row->columns, field);
    if (!*value || !row->columns) return missing_column(row, field);
    if (json_is_null(*value)) return status_fail(ST_INPUT, "column '%s' is null", field);
    return json_is_array(*value) && json_array_size(*value) == 0 ? status_fail(ST_INPUT, "column '%s' is an empty list", field) : ST_OK;
}

size_t reward_answers(const json_t *value) { return json_is_array(value) ? json_array_size(value) : 1; }

const json_t *reward_answer(const json_t *value, size_t i) { return json_is_array(value) ? json_array_get(value, i) : value; }

Status reward_answer_text(const json_t *answer, const char *field, Str *room, Slice *text) {
    if (json_is_string(answer)) {
        *text = (Slice){json_string_value(answer), json_string_length(answer)};
        return ST_OK;
    }
    str_clear(room);
    if (json_is_integer(answer))
        str_printf(room, "%lld", (long long)json_integer_value(answer));
    else if (json_is_real(answer))
        str_append_double(room, json_real_value(answer));
    else
        return status_fail(ST_INPUT, "column '%s' is neither a text or number nor a list of these", field);
    *text = (Slice){room->data, room->len};
    return ST_OK;
}

Slice slice_trim(Slice text) {
    while (text.len > 0 && isspace((unsigned char)text.data[0])) text.data++, text.len--;
    while (text.len > 0 && isspace((unsigned char)text.data[text.len - 1])) text.len--;
    return text;
}

static bool same_letters(const char *a, const char *b, size_t len, bool any_case) {
    for (size_t i = 0; i < len; i++)
        if (a[i] != b[i] && (!any_case || tolower((unsigned char)a[i]) != tolower((unsigned char)b[i]))) return false;
    return true;
}

const char *slice_find_last(Slice text, const char *part, bool any_case) {
    size_t len = strlen(part);
    for (size_t at = text.len; at-- > 0;)
        if (at + len <= text.len && same_letters(text.data + at, part, len, any_case)) return text.data + at;
    return NULL;
}

bool slice_boxed(Slice text, Slice *content) {
    const char *end = text.data + text.len;
    for (const char *found; (found = slice_find_last(text, "\\boxed{", false)); text.len = (size_t)(found - text.data)) {
        const char *begin = found + strlen("\\boxed{"), *at = begin;
        for (size_t depth = 1; at < end; at++) {
            depth += *at == '{';
            depth -= *at == '}';
            if (depth == 0) break;
        }
        *content = (Slice){begin, (size_t)(at - begin)};
        if (at < end) return true; /* otherwise the thoughts were truncated */
    }
    return false;
}
