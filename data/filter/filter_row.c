/* SPDX-License-Identifier: Apache-2.0 */
/* Converts rows of all formats to FilterRow, and rows to lines. */
#include "data/formats/conversation.h"
#include "data/filter/filter_kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static Status filter_row_column(const json_t *row, const char *key, Slice *text) {
    const char *value;
    TRY(row_text(row, key, &value));
    *text = (Slice){value, strlen(value)};
    return ST_OK;
}

/* A column that may be missing or null. */
static Status maybe_column(const json_t *row, const char *key, Slice *text) {
    const json_t *value = json_object_get(row, key);
    return value && !json_is_null(value) ? filter_row_column(row, key, text) : ST_OK;
}

static Status filter_row_keep(Arena *arena, const Str *text, Slice *slice) {
    char *copy = arena_strndup(arena, str_text(text), text->len);
    if (!copy) return ST_RESOURCE;
    *slice = (Slice){copy, text->len};
    return ST_OK;
}

static Status extend(Arena *arena, Slice more, Slice *text) {
    if (more.len == 0) return ST_OK;
    char *both = arena_alloc(arena, text->len + more.len);
    if (!both) return ST_RESOURCE;
    if (text->len > 0) memcpy(both, text->data, text->len);
    memcpy(both + text->len, more.data, more.len);
    *text = (Slice){both, text->len + more.len};
    return ST_OK;
}

/* Columns of any type: a name and JSON with sorted keys on each line. A list may be stored as text; an empty one counts as missing. */
static Status add_columns(const json_t *row, const char *const *names, size_t n, Arena *arena, Slice *text) {
    Str lines = {0};
    for (size_t i = 0; i < n; i++) {
        json_t *value = json_object_get(row, names[i]), *list = NULL;
        if (json_is_string(value) && row_list(row, names[i], &list) == ST_OK) value = list;
        bool given = value && !json_is_null(value) && !(json_is_array(value) && json_array_size(value) == 0);
        char *written = given ? json_text(value, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        if (written) str_printf(&lines, "%s %s\n", names[i], written);
        free(written);
        json_decref(list);
    }
    Status status = extend(arena, (Slice){lines.data, lines.len}, text);
    str_release(&lines);
    return status;
}

/* The turns of one side of a conversation, joined with a blank line. */
typedef struct Side {
    Str text;
    struct Place {
        size_t begin, len;
    } * words; /* n_words: number of turns with text, or without any call */
    size_t n, n_words;
} Side;

static void append_turn(const json_t *message, Side *side) {
    const json_t *content = json_object_get(message, "content"), *calls = json_object_get(message, "tool_calls");
    size_t len = json_string_length(content);
    if (side->n++ > 0) str_append(&side->text, "\n\n");
    if (len > 0 || json_array_size(calls) == 0) side->words[side->n_words++] = (struct Place){side->text.len, len};
    if (len > 0) str_append_n(&side->text, json_string_value(content), len);
    char *written = json_array_size(calls) > 0 ? json_text(calls, JSON_SORT_KEYS) : NULL;
    if (written) str_printf(&side->text, "%s%s", len > 0 ? "\n" : "", written);
    free(written);
}

static Status keep_answers(Arena *arena, const Side *side, FilterRow *row) {
    TRY(filter_row_keep(arena, &side->text, &row->completion));
    Slice *answers = arena_alloc(arena, MAX(side->n_words, 1) * sizeof *answers);
    if (!answers) return ST_RESOURCE;
    for (size_t i = 0; i < side->n_words; i++) answers[i] = (Slice){row->completion.data + side->words[i].begin, side->words[i].len};
    row->answers = answers;
    row->n_answers = side->n_words;
    return ST_OK;
}

static void append_json(const json_t *json, Str *lines) {
    char *written = json_text(json, JSON_SORT_KEYS | JSON_COMPACT);
    if (written) str_printf(lines, "%s\n", written);
    free(written);
}

/* Other parts of a message than its words and calls, such as its reasoning or that it is not trained. */
static void append_marks(const json_t *message, Str *lines) {
    static const char *const known[] = {"role", "content", "tool_calls"};
    json_t *marks = json_copy((json_t *)(uintptr_t)message);
    for (size_t i = 0; i < COUNT_OF(known); i++) json_object_del(marks, known[i]);
    if (json_object_size(marks) > 0) append_json(marks, lines);
    json_decref(marks);
}

/* The parts that a conversation's messages are sorted into. */
typedef struct Turns {
    Side asked, answered;
    Str system, context, rest;
} Turns;

/* User turns are the question, assistant turns the answer; tool turns, and answers before the last one, are part of the question's context. */
static void read_turn(const json_t *message, bool first, bool last, Turns *turns) {
    const char *role = json_string_value(json_object_get(message, "role"));
    bool user = strcmp(role, "user") == 0, answer = strcmp(role, "assistant") == 0;
    bool system = first && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
    if (user) append_turn(message, &turns->asked);
    if (answer) append_turn(message, &turns->answered);
    if (system && json_object_get(message, "content")) str_append(&turns->system, json_string_value(json_object_get(message, "content")));
    if (user || system || (answer && last))
        append_marks(message, &turns->rest);
    else
        append_json(message, &turns->context);
}

static Status keep_turns(Arena *arena, const Turns *turns, FilterRow *row) {
    if (turns->system.data) TRY(filter_row_keep(arena, &turns->system, &row->system));
    TRY(extend(arena, (Slice){turns->context.data, turns->context.len}, &row->context));
    TRY(extend(arena, (Slice){turns->rest.data, turns->rest.len}, &row->rest));
    if (turns->asked.n > 0) TRY(filter_row_keep(arena, &turns->asked.text, &row->instruction));
    return turns->answered.n > 0 ? keep_answers(arena, &turns->answered, row) : ST_OK;
}

/* question: none of its messages is the answer. */
static Status read_turns(const json_t *normal, bool question, Arena *arena, FilterRow *row) {
    Turns turns = {0};
    size_t n = json_array_size(normal);
    turns.asked.words = arena_alloc(arena, MAX(n, 1) * sizeof *turns.asked.words);
    turns.answered.words = arena_alloc(arena, MAX(n, 1) * sizeof *turns.answered.words);
    if (!turns.asked.words || !turns.answered.words) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) read_turn(json_array_get(normal, i), i == 0, i + 1 == n && !question, &turns);
    Status status = keep_turns(arena, &turns, row);
    str_release(&turns.system);
    str_release(&turns.context);
    str_release(&turns.rest);
    str_release(&turns.asked.text);
    str_release(&turns.answered.text);
    return status;
}

/* json: the row, for its column `system`; NULL: the messages are an answer. */
static Status from_messages(const json_t *json, const json_t *messages, bool question, Arena *arena, FilterRow *row) {
    json_t *normal = NULL;
    Status status = messages_normalize(messages, json, &(DataConfig){0}, &normal);
    if (status == ST_OK) status = read_turns(normal, question, arena, row);
    json_decref(normal);
    return status;
}

static Status from_column(const json_t *json, const char *key, Arena *arena, FilterRow *row) {
    json_t *list = NULL;
    Status status = row_list(json, key, &list);
    if (status == ST_OK && !list) status = status_fail(ST_INPUT, "'%s' is null", key);
    if (status == ST_OK) status = from_messages(json, list, false, arena, row);
    json_decref(list);
    return status;
}

/* In preferences of this form the answer is a single turn in a separate column. */
static Status from_sharegpt(const json_t *json, Arena *arena, FilterRow *row) {
    json_t *turns = NULL, *all = NULL, *messages = NULL, *chosen = json_object_get(json, "chosen");
    Status status = row_list(json, json_object_get(json, "conversations") ? "conversations" : "conversation", &turns);
    if (status == ST_OK) all = json_copy(turns);
    if (json_is_object(chosen)) json_array_append(all, chosen);
    if (status == ST_OK) status = sharegpt_messages(all, NULL, &messages);
    if (status == ST_OK) status = from_messages(json, messages, false, arena, row);
    json_decref(turns);
    json_decref(all);
    json_decref(messages);
    return status;
}

/* A prompt and its answer, both texts or both lists of messages; answer NULL: none. */
static Status from_pair(const json_t *json, const char *answer, Arena *arena, FilterRow *row) {
    FilterRow second = {0};
    if (json_is_array(json_object_get(json, "prompt")))
        TRY(from_messages(json, json_object_get(json, "prompt"), true, arena, row));
    else
        TRY(filter_row_column(json, "prompt", &row->instruction));
    row->completion = (Slice){0}; /* answers in the prompt are part of its context */
    row->n_answers = 0;
    if (!answer) return ST_OK;
    if (!json_is_array(json_object_get(json, answer))) return filter_row_column(json, answer, &row->completion);
    TRY(from_messages(NULL, json_object_get(json, answer), false, arena, &second));
    row->completion = second.completion;
    row->answers = second.answers;
    row->n_answers = second.n_answers;
    const Slice others[] = {second.system, second.instruction, second.context, second.rest};
    for (size_t i = 0; i < COUNT_OF(others); i++) TRY(extend(arena, others[i], &row->rest));
    return ST_OK;
}

/* As in ultrafeedback_binarized, where the conversation with the answer repeats the prompt's text. */
static bool holds_prompt(const json_t *answers) {
    const char *role = json_string_value(json_object_get(json_array_get(answers, 0), "role"));
    return role && strcmp(role, "assistant") != 0;
}

/* Alpaca's columns; self-instruct's seeds have instances with input and output; the first is used. */
static Status from_instruction(const json_t *json, Arena *arena, FilterRow *row) {
    static const char *const rounds[] = {"history"};
    const json_t *instances = json_object_get(json, "instances"), *first = json_array_get(instances, 0);
    TRY(filter_row_column(json, "instruction", &row->instruction));
    TRY(maybe_column(json, "system", &row->system));
    if (row->system.len == 0) row->system = (Slice){0};
    TRY(add_columns(json, rounds, COUNT_OF(rounds), arena, &row->context));
    if (instances && !json_is_array(instances)) return status_fail(ST_INPUT, "'instances' is not a list");
    if (instances && !first) return ST_OK;
    TRY(maybe_column(first ? first : json, "input", &row->input));
    return maybe_column(first ? first : json, "output", &row->completion);
}

static Status read_texts(const json_t *json, Arena *arena, FilterRow *row) {
    const char *answer = json_object_get(json, "chosen") ? "chosen" : "chosen_messages";
    const json_t *prompt = json_object_get(json, "prompt"), *chosen = json_object_get(json, answer);
    if (json_object_get(json, "messages")) return from_column(json, "messages", arena, row);
    if (json_object_get(json, "conversations") || json_object_get(json, "conversation")) return from_sharegpt(json, arena, row);
    if (json_object_get(json, "instruction")) return from_instruction(json, arena, row);
    if (chosen && prompt && !(json_is_string(prompt) && holds_prompt(chosen))) return from_pair(json, answer, arena, row);
    if (json_is_array(chosen)) return from_column(json, answer, arena, row);
    if (prompt) return from_pair(json, json_object_get(json, "completion") ? "completion" : NULL, arena, row);
    if (json_object_get(json, "question") && json_object_get(json, "answer")) {
        TRY(filter_row_column(json, "question", &row->instruction));
        return filter_row_column(json, "answer", &row->completion);
    }
    if (json_object_get(json, "text")) {
        row->plain = true;
        return filter_row_column(json, "text", &row->completion);
    }
    status_fail(ST_INPUT, "the row has no texts that filters know");
    return status_hint(
        ST_INPUT,
        "known are messages, conversations, instruction (with input, output), prompt (with completion or chosen), question and answer, text");
}

double row_number(const json_t *row, const char *key) {
    const json_t *provenance = json_object_get(row, "provenance"),
                 *places[] = {row, json_object_get(row, "scores"), json_object_get(provenance, "scores"), json_object_get(provenance, "filters")};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const json_t *value = json_object_get(places[i], key);
        if (json_is_number(value)) return json_number_value(value);
    }
    return (double)NAN;
}

/* self-instruct compares tasks, which are one line, before they have inputs; in the user's turn an input follows after a blank line. */
static void split_task(const json_t *json, FilterRow *row) {
    const char *preset = json_string_value(json_object_get(json_object_get(json, "provenance"), "preset"));
    if (!preset || strcmp(preset, "self-instruct") != 0) return;
    const char *text = row->instruction.data, *end = text && !row->input.len ? memmem(text, row->instruction.len, "\n\n", 2) : NULL;
    row->instance = true;
    if (!end) return;
    row->input = (Slice){end + 2, row->instruction.len - (size_t)(end + 2 - text)};
    row->instruction.len = (size_t)(end - text);
}

Status filter_row_read(const json_t *json, Arena *arena, FilterRow *row) {
    static const char *const given[] = {"tools", "functions", "documents", "chat_template_kwargs"};
    static const char *const told[] = {"label", "labels", "completions", "rejected", "rejected_messages"};
    const json_t *id = json_object_get(json, "id");
    *row = (FilterRow){.json = json, .task_type = json_string_value(json_object_get(json, "task_type")), .id = json_string_value(id)};
    if (json_is_integer(id) && !(row->id = arena_printf(arena, "%lld", (long long)json_integer_value(id)))) return ST_RESOURCE;
    row->judge = row_number(json, "judge");
    row->reward = row_number(json, "reward");
    TRY(read_texts(json, arena, row));
    row->has_history = row->context.len > 0;
    TRY(add_columns(json, given, COUNT_OF(given), arena, &row->context));
    TRY(add_columns(json, told, COUNT_OF(told), arena, &row->rest));
    split_task(json, row);
    return ST_OK;
}

/* ---- writing ---- */

/* A real number stays one, so that readers with types see a float. */
static void write_real(double value, Str *line) {
    size_t from = line->len;
    str_append_double(line, value);
    if (!strpbrk(line->data + from, ".eE")) str_append(line, ".0");
}

static void write_value(const json_t *value, Str *line) {
    const char *key;
    json_t *item;
    size_t i;
    bool comma = false;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        str_append_char(line, '{');
        json_object_foreach((json_t *)(uintptr_t)value, key, item) {
            if (comma) str_append(line, ", ");
            comma = true;
            str_append_json(line, key, strlen(key));
            str_append(line, ": ");
            write_value(item, line);
        }
        str_append_char(line, '}');
        break;
    case JSON_ARRAY:
        str_append_char(line, '[');
        json_array_foreach(value, i, item) {
            if (i > 0) str_append(line, ", ");
            write_value(item, line);
        }
        str_append_char(line, ']');
        break;
    case JSON_STRING: str_append_json(line, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: str_printf(line, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: write_real(json_real_value(value), line); break;
    case JSON_TRUE: str_append(line, "true"); break;
    case JSON_FALSE: str_append(line, "false"); break;
    case JSON_NULL: str_append(line, "null"); break;
    }
}

/* Numbers and escapes stay unchanged: strings contain no line end, so all line ends are between values. */
void filter_row_write(const FilterRow *row, Str *line) {
    Slice text = row->text;
    if (!text.data) {
        write_value(row->json, line);
        return;
    }
    while (text.len > 0 && strchr(" \t\r\n", text.data[text.len - 1])) text.len--;
    for (size_t at = 0; at < text.len;) {
        size_t from = at;
        while (at < text.len && text.data[at] != '\n' && text.data[at] != '\r') at++;
        str_append_n(line, text.data + from, at - from);
        while (at < text.len && strchr(" \t\r\n", text.data[at])) at++;
        if (at < text.len && line->len > 0) str_append_char(line, ' ');
    }
}
