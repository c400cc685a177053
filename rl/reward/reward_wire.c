/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to, and answers from, reward programs and servers. */
#include "rl/reward/reward_kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_ids(JsonWriter *w, const char *key, const int32_t *ids, size_t n) {
    jw_array(w, key);
    for (size_t i = 0; i < n; i++) jw_int(w, NULL, ids[i]);
    jw_end_array(w);
}

/* The data row's columns follow, except those with the same names. */
static bool is_ours(const char *key) {
    static const char *const ours[] = {"prompt", "prompt_ids", "completion", "completion_ids", "finish_reason"};
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        if (strcmp(key, ours[i]) == 0) return true;
    return false;
}

void reward_write_row(const RewardRow *row, Str *text) {
    JsonWriter w = {.text = *text};
    const char *key;
    json_t *value;
    jw_object(&w, NULL);
    char *messages = json_is_array(json_object_get(row->columns, "prompt")) ? json_text(json_object_get(row->columns, "prompt"), JSON_COMPACT) : NULL;
    if (messages)
        jw_raw(&w, "prompt", messages); /* in the row's own form */
    else
        jw_string_n(&w, "prompt", row->prompt.data, row->prompt.len);
    free(messages);
    add_ids(&w, "prompt_ids", row->prompt_ids, row->n_prompt_ids);
    jw_string_n(&w, "completion", row->completion.data, row->completion.len);
    add_ids(&w, "completion_ids", row->completion_ids, row->n_completion_ids);
    jw_string(&w, "finish_reason", row->finish_reason);
    json_object_foreach((json_t *)(uintptr_t)row->columns, key, value) {
        char *dumped = is_ours(key) ? NULL : json_text(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
        if (dumped) jw_raw(&w, key, dumped);
        free(dumped);
    }
    jw_end_object(&w);
    *text = w.text;
}

static Status garbage(const char *who, Slice text, const char *problem) {
    const char *answer = text.data;
    size_t len = text.len;
    while (len > 0 && (answer[len - 1] == '\n' || answer[len - 1] == '\r')) len--;
    return status_fail(ST_INPUT, "%s answers wrongly: %s: '%.*s%s'", who, problem, (int)MIN(len, 300), answer, len > 300 ? "..." : "");
}

Status reward_read_answer(Reward *reward, const char *who, Slice answer, size_t row, double *value) {
    json_t *root = json_parse(answer.data, answer.len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL),
           *number = json_is_object(root) ? json_object_get(root, "reward") : root, *other;
    const char *key, *error = json_string_value(json_object_get(root, "error"));
    Status status = ST_OK;
    if (!root)
        status = garbage(who, answer, "no JSON");
    else if (error && !number)
        status = garbage(who, answer, "it reports an error");
    else if (json_is_object(root) && !number)
        status = garbage(who, answer, "'reward' is missing");
    else if (json_is_null(number))
        *value = (double)NAN;
    else if (!json_is_number(number))
        status = garbage(who, answer, "the reward is not a number");
    else
        *value = json_number_value(number);
    if (status == ST_OK)
        json_object_foreach(root, key, other) if (status == ST_OK && other != number && json_is_number(other)) status =
            reward_extra(reward, key, row, json_number_value(other));
    json_decref(root);
    return status;
}
