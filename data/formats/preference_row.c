/* SPDX-License-Identifier: Apache-2.0 */
/* Preference rows that mix texts and lists of messages. They become uniform rows, which formats read. */
#include "data/formats/formats.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *role_of(const json_t *list, size_t i) { return json_string_value(json_object_get(json_array_get(list, i), "role")); }

static json_t *message(const char *role, const json_t *text) { return json_pack("[{s:s, s:O}]", "role", role, "content", text); }

/* Both are conversations that start with the first question, so a separate prompt only repeats it. */
static bool are_whole(const json_t *chosen, const json_t *rejected) {
    const char *roles[] = {role_of(chosen, 0), role_of(rejected, 0)};
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (!roles[i] || strcmp(roles[i], "assistant") == 0) return false;
    return true;
}

/* An answer that is a text, while the other one or the prompt is a list. */
static void answer_to_messages(json_t *row, const char *key) {
    const json_t *answer = json_object_get(row, key);
    if (json_is_string(answer)) json_object_set_new(row, key, message("assistant", answer));
}

Status preference_settle(const json_t *row, json_t **settled) {
    static const char *const names[][2] = {{"chosen", "rejected"}, {"chosen_messages", "rejected_messages"}};
    size_t at = json_object_get(row, "chosen") || json_object_get(row, "rejected") ? 0 : 1;
    const char *first = names[at][0], *second = names[at][1];
    const json_t *prompt = json_object_get(row, "prompt"), *chosen = json_object_get(row, first), *rejected = json_object_get(row, second);
    *settled = json_copy((json_t *)(uintptr_t)row);
    if (!*settled) return status_fail(ST_RESOURCE, "out of memory for a row");
    if (!prompt || json_is_null(prompt)) return ST_OK;
    bool lists = json_array_size(chosen) > 0 || json_array_size(rejected) > 0;
    if (!lists && !json_is_array(prompt)) return ST_OK;
    answer_to_messages(*settled, first);
    answer_to_messages(*settled, second);
    if (json_is_string(prompt) && !are_whole(json_object_get(*settled, first), json_object_get(*settled, second)))
        json_object_set_new(*settled, "prompt", message("user", prompt));
    return ST_OK;
}

static bool is_empty(const json_t *answer) {
    if (!answer) return false;
    if (json_is_null(answer)) return true;
    if (json_is_string(answer)) return json_string_length(answer) == 0;
    const json_t *last = json_is_array(answer) ? json_array_get(answer, json_array_size(answer) - 1) : answer;
    if (json_is_array(answer) && !last) return true;
    const json_t *content = json_object_get(last, json_object_get(last, "value") ? "value" : "content");
    bool nothing = json_is_null(content) || (json_is_string(content) && json_string_length(content) == 0) ||
                   (json_is_array(content) && json_array_size(content) == 0);
    return nothing && !json_array_size(json_object_get(last, "tool_calls"));
}

/* If the first message that differs is the user's, they answer different questions. */
static bool asks_otherwise(const json_t *chosen, const json_t *rejected) {
    size_t same = 0;
    while (same < json_array_size(chosen) && json_equal(json_array_get(chosen, same), json_array_get(rejected, same))) same++;
    if (same == json_array_size(chosen) || same == json_array_size(rejected)) return false;
    const char *roles[] = {role_of(chosen, same), role_of(rejected, same)};
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (roles[i] && (strcmp(roles[i], "user") == 0 || strcmp(roles[i], "system") == 0)) return true;
    return false;
}

PairDrop preference_needless(const json_t *row, bool alone) {
    static const char *const names[][2] = {{"chosen", "rejected"}, {"chosen_messages", "rejected_messages"}, {"chosen_ids", "rejected_ids"}};
    static const char *const answers[] = {"completion", "messages", "conversations", "completion_ids"};
    for (size_t i = 0; alone && i < COUNT_OF(answers); i++)
        if (is_empty(json_object_get(row, answers[i]))) return PAIR_EMPTY;
    for (size_t i = 0; !alone && i < COUNT_OF(names); i++) {
        const json_t *chosen = json_object_get(row, names[i][0]), *rejected = json_object_get(row, names[i][1]);
        if (!chosen || !rejected) continue;
        if (is_empty(chosen) || is_empty(rejected)) return PAIR_EMPTY;
        if (json_equal(chosen, rejected)) return PAIR_SAME;
        if (asks_otherwise(chosen, rejected)) return PAIR_PROMPTS_DIFFER;
    }
    return PAIR_DROPS;
}

void preference_swap(json_t *row) {
    static const char *const names[][2] = {{"chosen", "rejected"}, {"chosen_messages", "rejected_messages"}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        json_t *chosen = json_incref(json_object_get(row, names[i][0])), *rejected = json_object_get(row, names[i][1]);
        if (chosen && rejected) {
            json_object_set(row, names[i][0], rejected);
            json_object_set(row, names[i][1], chosen);
        }
        json_decref(chosen);
    }
}

bool preference_scored_otherwise(const json_t *row) {
    static const char *const names[][2] = {{"chosen_score", "rejected_score"},
                                           {"score_chosen", "score_rejected"},
                                           {"chosen_rating", "rejected_rating"},
                                           {"chosen-rating", "rejected-rating"}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const json_t *chosen = json_object_get(row, names[i][0]), *rejected = json_object_get(row, names[i][1]);
        if (json_is_number(chosen) && json_is_number(rejected)) return json_number_value(chosen) < json_number_value(rejected);
    }
    return false;
}

/* ---- one answer, wanted or not ---- */

static bool is_word(const json_t *label, const char *const *words) {
    for (; *words; words++)
        if (strcasecmp(json_string_value(label), *words) == 0) return true;
    return false;
}

Status row_label(const json_t *row, bool *wanted) {
    static const char *const yes[] = {"true", "1", "yes", "desirable", "good", NULL}, *const no[] = {"false",       "0",   "-1", "no",
                                                                                                     "undesirable", "bad", NULL};
    const json_t *label = json_object_get(row, "label");
    double value = json_number_value(label);
    bool text = json_is_string(label), known = true;
    if (json_is_boolean(label))
        *wanted = json_is_true(label);
    else if (json_is_number(label) && (value == 1 || value == 0 || value == -1))
        *wanted = value == 1;
    else if (text && (is_word(label, yes) || is_word(label, no)))
        *wanted = is_word(label, yes);
    else
        known = false;
    if (known) return ST_OK;
    char *dumped = json_text(label, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    status_fail(ST_INPUT, "'label' is %.60s, neither true nor false", dumped ? dumped : "missing");
    free(dumped);
    return status_hint(ST_INPUT, "true, 1 or \"true\" for an answer that was wanted, false, 0, -1 or \"false\" for one that was not");
}
