/* Rows of all formats as filters see them, and rows as lines. */
#include "data/formats/conversation.h"
#include "data/filter/filter_kinds.h"

#include <math.h>
#include <string.h>

/* ---- reading ---- */

static Status column(const json_t *row, const char *key, Slice *text) {
    const char *value;
    TRY(row_text(row, key, &value));
    *text = (Slice){value, strlen(value)};
    return ST_OK;
}

/* A column that may be missing or null. */
static Status maybe_column(const json_t *row, const char *key, Slice *text) {
    const json_t *value = json_object_get(row, key);
    return value && !json_is_null(value) ? column(row, key, text) : ST_OK;
}

static Status keep(Arena *arena, const Str *text, Slice *slice) {
    char *copy = arena_strndup(arena, str_text(text), text->len);
    if (!copy) return ST_RESOURCE;
    *slice = (Slice){copy, text->len};
    return ST_OK;
}

static void append_turn(const json_t *message, const char *role, Str *text, bool *any) {
    const json_t *content = json_object_get(message, "content");
    if (strcmp(json_string_value(json_object_get(message, "role")), role) != 0) return;
    if (*any) str_append(text, "\n\n");
    *any = true;
    if (json_is_string(content)) str_append_n(text, json_string_value(content), json_string_length(content));
}

/* User turns are what is asked, assistants' turns what answers it. */
static Status from_messages(const json_t *messages, Arena *arena, FilterRow *row) {
    Str asked = {0}, answered = {0};
    bool has_user = false, has_answer = false;
    json_t *normal = NULL;
    Status status = messages_normalize(messages, NULL, &normal);
    for (size_t i = 0; i < json_array_size(normal); i++) {
        append_turn(json_array_get(normal, i), "user", &asked, &has_user);
        append_turn(json_array_get(normal, i), "assistant", &answered, &has_answer);
    }
    if (status == ST_OK && has_user) status = keep(arena, &asked, &row->instruction);
    if (status == ST_OK && has_answer) status = keep(arena, &answered, &row->completion);
    json_decref(normal);
    str_release(&asked);
    str_release(&answered);
    return status;
}

static Status from_column(const json_t *json, const char *key, Arena *arena, FilterRow *row) {
    json_t *list = NULL;
    Status status = row_list(json, key, &list);
    if (status == ST_OK && !list) status = status_fail(ST_INPUT, "'%s' is null", key);
    if (status == ST_OK) status = from_messages(list, arena, row);
    json_decref(list);
    return status;
}

static Status from_sharegpt(const json_t *json, Arena *arena, FilterRow *row) {
    json_t *turns = NULL, *messages = NULL;
    Status status = row_list(json, json_object_get(json, "conversations") ? "conversations" : "conversation", &turns);
    if (status == ST_OK) status = sharegpt_messages(json, turns, &messages);
    if (status == ST_OK) status = from_messages(messages, arena, row);
    json_decref(turns);
    json_decref(messages);
    return status;
}

/* A prompt and its answer, both texts or both lists of messages; answer NULL: none. */
static Status from_pair(const json_t *json, const char *answer, Arena *arena, FilterRow *row) {
    FilterRow second = {0};
    if (json_is_array(json_object_get(json, "prompt"))) TRY(from_messages(json_object_get(json, "prompt"), arena, row));
    else TRY(column(json, "prompt", &row->instruction));
    row->completion = (Slice){0};
    if (!answer) return ST_OK;
    if (!json_is_array(json_object_get(json, answer))) return column(json, answer, &row->completion);
    TRY(from_messages(json_object_get(json, answer), arena, &second));
    row->completion = second.completion;
    return ST_OK;
}

/* Alpaca's columns; self-instruct's seeds have instances with input and output, of which the first is taken. */
static Status from_instruction(const json_t *json, FilterRow *row) {
    const json_t *instances = json_object_get(json, "instances"), *first = json_array_get(instances, 0);
    TRY(column(json, "instruction", &row->instruction));
    if (instances && !json_is_array(instances)) return status_fail(ST_INPUT, "'instances' is no list");
    if (instances && !first) return ST_OK;
    TRY(maybe_column(first ? first : json, "input", &row->input));
    return maybe_column(first ? first : json, "output", &row->completion);
}

static Status read_texts(const json_t *json, Arena *arena, FilterRow *row) {
    const json_t *prompt = json_object_get(json, "prompt");
    if (json_object_get(json, "messages")) return from_column(json, "messages", arena, row);
    if (json_object_get(json, "conversations") || json_object_get(json, "conversation")) return from_sharegpt(json, arena, row);
    if (json_object_get(json, "instruction")) return from_instruction(json, row);
    if (json_object_get(json, "chosen") && prompt) return from_pair(json, "chosen", arena, row);
    if (json_is_array(json_object_get(json, "chosen"))) return from_column(json, "chosen", arena, row);
    if (prompt) return from_pair(json, json_object_get(json, "completion") ? "completion" : NULL, arena, row);
    if (json_object_get(json, "question") && json_object_get(json, "answer")) {
        TRY(column(json, "question", &row->instruction));
        return column(json, "answer", &row->completion);
    }
    if (json_object_get(json, "text")) return column(json, "text", &row->completion);
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

/* self-instruct judges the likeness of tasks, which are one line, before they have inputs; in the user's turn an input follows behind a blank line.
 */
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
    const json_t *id = json_object_get(json, "id");
    *row = (FilterRow){.json = json, .task_type = json_string_value(json_object_get(json, "task_type")), .id = json_string_value(id)};
    if (json_is_integer(id) && !(row->id = arena_printf(arena, "%lld", (long long)json_integer_value(id)))) return ST_RESOURCE;
    row->judge = row_number(json, "judge");
    row->reward = row_number(json, "reward");
    TRY(read_texts(json, arena, row));
    split_task(json, row);
    return ST_OK;
}

/* ---- writing ---- */

/* A real stays one: readers with types see a float. */
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


/* Numbers and escapes as they are: a string holds no line end, so all of them stand between values. */
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
