/* SPDX-License-Identifier: Apache-2.0 */
/* data.as: plain texts as turns. The prompt and answers of a row become lists of messages, which every format and tune rl read; the rest of the row
 * stays. */
#include "data/formats/formats.h"
#include "data/formats/row_form.h"

#include <string.h>

static bool row_turns_is(const DataFormat *format, const char *name) { return format && strcmp(format->name, name) == 0; }
static bool has_text(const json_t *row, const char *key) { return json_is_string(json_object_get(row, key)); }
static bool lacks(const json_t *row, const char *key) { return !json_object_get(row, key) || json_is_null(json_object_get(row, key)); }

bool turns_are_plain(const json_t *row, const DataFormat *format) {
    if (row_turns_is(format, "alpaca")) return has_text(row, "instruction") && (has_text(row, "output") || lacks(row, "output"));
    if (row_turns_is(format, "preference"))
        return has_text(row, "chosen") && has_text(row, "rejected") && (has_text(row, "prompt") || lacks(row, "prompt"));
    if (row_turns_is(format, "prompt_completion") || row_turns_is(format, "kto")) return has_text(row, "prompt") && has_text(row, "completion");
    return row_turns_is(format, "prompt") && has_text(row, "prompt");
}

/* Appends the message to the list. Also true when the message is out of memory; using the list shows that. */
static Status row_turns_add(json_t *list, const char *role, const json_t *content) {
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", (json_t *)(uintptr_t)content);
    return json_array_append_new(list, message) == 0 ? ST_OK : status_fail(ST_RESOURCE, "out of memory for turns");
}

static Status one_message(const char *role, const json_t *content, json_t **list) {
    *list = json_array();
    return *list ? row_turns_add(*list, role, content) : status_fail(ST_RESOURCE, "out of memory for turns");
}

static Status add_system(const json_t *row, json_t *list) {
    const json_t *system = json_object_get(row, "system");
    return json_is_string(system) && json_string_length(system) > 0 ? row_turns_add(list, "system", system) : ST_OK;
}

/* Replaces the row's texts by lists of one message; *row is a new reference in any case, so that only `status` decides. */
static Status set_answer(json_t *row, const char *key) {
    json_t *list = NULL;
    if (!has_text(row, key)) return ST_OK;
    Status status = one_message("assistant", json_object_get(row, key), &list);
    if (list) json_object_set_new(row, key, list);
    return status;
}

static Status set_prompt(json_t *row) {
    json_t *list = json_array(), *prompt = json_object_get(row, "prompt");
    Status status = list ? add_system(row, list) : status_fail(ST_RESOURCE, "out of memory for turns");
    if (status == ST_OK) status = row_turns_add(list, "user", prompt);
    if (status == ST_OK)
        json_object_set_new(row, "prompt", list);
    else
        json_decref(list);
    return status;
}

/* ---- alpaca ---- */

static Status add_history(const json_t *history, json_t *list) {
    size_t n;
    TRY(alpaca_rounds(history, &n));
    for (size_t i = 0; i < n; i++) {
        TRY(row_turns_add(list, "user", json_array_get(json_array_get(history, i), 0)));
        TRY(row_turns_add(list, "assistant", json_array_get(json_array_get(history, i), 1)));
    }
    return ST_OK;
}

/* The instruction, and the input on a line of its own, as in LLaMA-Factory. */
static Status add_instruction(const json_t *row, json_t *list) {
    const json_t *instruction = json_object_get(row, "instruction"), *input = json_object_get(row, "input");
    if (input && !json_is_null(input) && !json_is_string(input)) return status_fail(ST_INPUT, "'input' is not a text");
    if (json_string_length(input) == 0) return row_turns_add(list, "user", instruction);
    json_t *both = json_sprintf("%s\n%s", json_string_value(instruction), json_string_value(input));
    if (!both || json_contains_nul(instruction) || json_contains_nul(input)) {
        json_decref(both);
        return status_fail(ST_INPUT, "'%s' holds a NUL character", json_contains_nul(input) ? "input" : "instruction");
    }
    Status status = row_turns_add(list, "user", both);
    json_decref(both);
    return status;
}

static Status alpaca_turns(json_t *row) {
    json_t *prompt = json_array(), *answer = NULL;
    Status status = prompt ? add_system(row, prompt) : status_fail(ST_RESOURCE, "out of memory for turns");
    if (status == ST_OK) status = add_history(json_object_get(row, "history"), prompt);
    if (status == ST_OK) status = add_instruction(row, prompt);
    if (status == ST_OK && has_text(row, "output")) status = one_message("assistant", json_object_get(row, "output"), &answer);
    if (status == ST_OK) json_object_set(row, "prompt", prompt);
    if (status == ST_OK && answer) json_object_set(row, "completion", answer);
    json_decref(prompt);
    json_decref(answer);
    return status;
}

/* ---- preferences ---- */

/* Anthropic's form: both answers are full dialogues. */
static Status set_dialogue(json_t *row, const char *key) {
    static const Speaker speakers[] = {{"Human", "user"}, {"Assistant", "assistant"}};
    json_t *messages = dialogue_messages(json_string_value(json_object_get(row, key)), speakers, COUNT_OF(speakers));
    if (!messages)
        return status_hint(status_fail(ST_INPUT, "'%s' cannot be read as turns: it begins with neither \"Human:\" nor \"Assistant:\"", key),
                           "data.as: text uses it unchanged; or give the prompt in a separate column");
    json_object_set_new(row, key, messages);
    return ST_OK;
}

static Status preference_turns(json_t *row) {
    if (lacks(row, "prompt")) {
        TRY(set_dialogue(row, "chosen"));
        return set_dialogue(row, "rejected");
    }
    TRY(set_prompt(row));
    TRY(set_answer(row, "chosen"));
    return set_answer(row, "rejected");
}

Status turns_make(const json_t *row, const DataFormat *format, json_t **turns) {
    json_t *made = json_copy((json_t *)(uintptr_t)row);
    Status status = made ? ST_OK : status_fail(ST_RESOURCE, "out of memory for turns");
    *turns = NULL;
    if (status != ST_OK) return status;
    if (row_turns_is(format, "alpaca"))
        status = alpaca_turns(made);
    else if (row_turns_is(format, "preference"))
        status = preference_turns(made);
    else
        status = set_prompt(made);
    if (status == ST_OK && (row_turns_is(format, "prompt_completion") || row_turns_is(format, "kto"))) status = set_answer(made, "completion");
    if (status == ST_OK)
        *turns = made;
    else
        json_decref(made);
    return status;
}
