/* SPDX-License-Identifier: Apache-2.0 */
/* Anthropic's messages: a request becomes one of a chat, and the answer is written as blocks of content. */
#include <stdlib.h>
#include <string.h>

#include "lib/serve/serve_parts.h"

/* ---- from blocks to messages of a chat ---- */

static bool is_type(const json_t *block, const char *type) {
    const char *its = json_string_value(json_object_get(block, "type"));
    return its && !strcmp(its, type);
}

/* Adds a message and returns it, borrowed; NULL: out of memory. */
static json_t *add_message(json_t *messages, const char *role) {
    json_t *message = json_pack("{s:s, s:[]}", "role", role, "content");
    return message && json_array_append_new(messages, message) == 0 ? message : NULL;
}

static bool add_result(json_t *messages, const json_t *block) {
    json_t *content = json_object_get(block, "content");
    json_t *message = json_pack("{s:s, s:O*, s:o}", "role", "tool", "tool_call_id", json_object_get(block, "tool_use_id"), "content",
                                content ? json_incref(content) : json_string(""));
    return message && json_array_append_new(messages, message) == 0;
}

static bool add_use(json_t *message, const json_t *block) {
    char *input = json_text(json_object_get(block, "input"), JSON_ENCODE_ANY | JSON_COMPACT);
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls && json_object_set_new(message, "tool_calls", calls = json_array()) != 0) calls = NULL;
    json_t *call = json_pack("{s:O*, s:s, s:{s:O*, s:s}}", "id", json_object_get(block, "id"), "type", "function", "function", "name",
                             json_object_get(block, "name"), "arguments", input ? input : "{}");
    free(input);
    return calls && call && json_array_append_new(calls, call) == 0;
}

/* Results of tools come before the text of their message, in messages of their own. Other kinds stay as they are, and are refused by their kind. */
static bool add_blocks(json_t *messages, const json_t *given, const char *role) {
    const json_t *blocks = json_object_get(given, "content");
    bool fine = true, assistant = !strcmp(role, "assistant");
    for (size_t i = 0; i < json_array_size(blocks) && !assistant && fine; i++)
        if (is_type(json_array_get(blocks, i), "tool_result")) fine = add_result(messages, json_array_get(blocks, i));
    json_t *message = NULL;
    for (size_t i = 0; i < json_array_size(blocks) && fine; i++) {
        json_t *block = json_array_get(blocks, i);
        if (!assistant && is_type(block, "tool_result")) continue;
        if (!message) fine = (message = add_message(messages, role)) != NULL;
        if (!fine) break;
        if (assistant && is_type(block, "tool_use"))
            fine = add_use(message, block);
        else if (assistant && is_type(block, "thinking"))
            json_object_set(message, "reasoning_content", json_object_get(block, "thinking")); /* without a text, there is none */
        else if (!assistant || !is_type(block, "redacted_thinking"))
            fine = json_array_append(json_object_get(message, "content"), block) == 0;
    }
    return fine;
}

static bool chat_messages(Exchange *x, const json_t *body, json_t *messages) {
    const json_t *given = json_object_get(body, "messages"), *system = json_object_get(body, "system");
    bool fine = true;
    if (system && !json_is_null(system))
        fine = json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", (json_t *)(uintptr_t)system)) == 0;
    for (size_t i = 0; i < json_array_size(given) && fine; i++) {
        json_t *message = json_array_get(given, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)) {
            exchange_fail(x, 400, "messages", "invalid_value", "message %zu must have the role 'user' or 'assistant'", i + 1);
            return false;
        }
        fine = json_is_array(json_object_get(message, "content")) ? add_blocks(messages, message, role) : json_array_append(messages, message) == 0;
    }
    if (!fine) exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the messages");
    return fine;
}

/* ---- tools ---- */

static bool chat_tools(Exchange *x, const json_t *body, json_t *chat) {
    const json_t *given = json_object_get(body, "tools");
    json_t *tools = given && !json_is_null(given) ? json_array() : NULL;
    if (!tools) return true;
    json_object_set_new(chat, "tools", tools);
    for (size_t i = 0; i < json_array_size(given); i++) {
        json_t *tool = json_array_get(given, i), *schema = json_object_get(tool, "input_schema");
        if (!json_is_string(json_object_get(tool, "name")) || !json_is_object(schema)) {
            exchange_fail(x, 400, "tools", "invalid_value", "tool %zu must have a 'name' and an 'input_schema': this server has no tools of its own",
                          i + 1);
            return false;
        }
        json_array_append_new(tools, json_pack("{s:s, s:{s:O, s:O*, s:O}}", "type", "function", "function", "name", json_object_get(tool, "name"),
                                               "description", json_object_get(tool, "description"), "parameters", schema));
    }
    return true;
}

static bool chat_choice(Exchange *x, const json_t *body, json_t *chat) {
    const json_t *choice = NULL;
    bool single = false;
    const char *type = "auto", *name = NULL;
    if (!field_object(x, body, "tool_choice", &choice)) return false;
    if (!choice) return true;
    if (!field_text(x, choice, "type", &type) || !field_text(x, choice, "name", &name) ||
        !field_bool(x, choice, "disable_parallel_tool_use", &single))
        return false;
    if (single) json_object_set_new(chat, "parallel_tool_calls", json_false());
    if (!strcmp(type, "tool") && name)
        json_object_set_new(chat, "tool_choice", json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
    else if (!strcmp(type, "auto") || !strcmp(type, "none"))
        json_object_set_new(chat, "tool_choice", json_string(type));
    else if (!strcmp(type, "any"))
        json_object_set_new(chat, "tool_choice", json_string("required"));
    else
        exchange_fail(x, 400, "tool_choice", "invalid_value", "'tool_choice.type' must be auto, any, none, or tool with a 'name'");
    return !x->ended;
}

const char messages_fields[] =
    "model messages system max_tokens stop_sequences stream temperature top_p top_k tools tool_choice metadata seed chat_template_kwargs";

bool chat_of_messages(Exchange *x, json_t **body) {
    static const char *const same[] = {"model", "max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "chat_template_kwargs"};
    json_t *given = *body, *messages = json_array(), *chat = json_object();
    if (chat) json_object_set_new(chat, "messages", messages);
    bool fine = chat && messages;
    if (!fine) exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the request");
    for (size_t i = 0; i < COUNT_OF(same) && fine; i++)
        if (json_object_get(given, same[i])) json_object_set(chat, same[i], json_object_get(given, same[i]));
    if (fine && json_object_get(given, "stop_sequences")) json_object_set(chat, "stop", json_object_get(given, "stop_sequences"));
    fine = fine && chat_messages(x, given, messages) && chat_tools(x, given, chat) && chat_choice(x, given, chat);
    json_decref(given);
    *body = chat;
    return fine;
}

void handle_count(Exchange *x) {
    json_t *body;
    Ids ids = {0};
    const char *name = NULL;
    if (!body_read(x, &body)) return;
    ServedModel *model =
        fields_known(x, body, messages_fields) && chat_of_messages(x, &body) && field_text(x, body, "model", &name) ? served_find(x, name) : NULL;
    if (model && prompt_of_messages(x, body, model, &ids, NULL)) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_int(&w, "input_tokens", (int64_t)ids.n);
        jw_end_object(&w);
        exchange_answer_json(x, 200, &w);
    }
    served_leave(x->server, model);
    ids_release(&ids);
    json_decref(body);
}

/* ---- the answer ---- */

/* A stop text cannot be told from the end of an answer by a schema, so it is named only where there is no schema. */
static const char *stop_text(const Job *job, const Choice *choice) {
    const GenerateRequest *request = &job->answer->request;
    const Ids *ids = &choice->completion.ids;
    bool stopped = choice->completion.finish == FINISH_STOP && request->n_stop == 1 && !request->constraint && ids->n > 0;
    return stopped && !ends_answer(job, ids->data[ids->n - 1]) ? request->stop[0] : NULL;
}

static void write_reason(JsonWriter *w, const Job *job, const Choice *choice) {
    const char *finish = finish_name(job, choice), *stop = stop_text(job, choice);
    jw_string(w, "stop_reason",
              !strcmp(finish, "length")       ? "max_tokens"
              : !strcmp(finish, "tool_calls") ? "tool_use"
              : stop                          ? "stop_sequence"
                                              : "end_turn");
    jw_string(w, "stop_sequence", stop);
}

static void write_used(JsonWriter *w, const Answer *answer, bool input) {
    jw_object(w, "usage");
    if (input) jw_int(w, "input_tokens", answer->prompt_tokens);
    jw_int(w, "output_tokens", answer->answer_tokens);
    jw_end_object(w);
}

static void write_message_head(JsonWriter *w, const Job *job) {
    jw_string(w, "id", job->answer->id);
    jw_string(w, "type", "message");
    jw_string(w, "role", "assistant");
    jw_string(w, "model", job->model->name);
}

static void write_block(JsonWriter *w, const char *key, bool reasons, const char *text, size_t len) {
    jw_object(w, key);
    jw_string(w, "type", reasons ? "thinking" : "text");
    jw_string_n(w, reasons ? "thinking" : "text", text, len);
    if (reasons) jw_string(w, "signature", "");
    jw_end_object(w);
}

static void write_use(JsonWriter *w, const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const char *arguments = json_string_value(json_object_get(function, "arguments"));
    jw_object(w, NULL);
    jw_string(w, "type", "tool_use");
    jw_string(w, "id", json_string_value(json_object_get(call, "id")));
    jw_string(w, "name", json_string_value(json_object_get(function, "name")));
    jw_raw(w, "input", arguments ? arguments : "{}");
    jw_end_object(w);
}

static void write_answer(JsonWriter *w, const Job *job) {
    const Choice *choice = &job->answer->choices[0];
    jw_object(w, NULL);
    write_message_head(w, job);
    jw_array(w, "content");
    if (choice->reasoning.len > 0) write_block(w, NULL, true, choice->reasoning.data, choice->reasoning.len);
    if (choice->text.len > 0 || choice->n_calls == 0) write_block(w, NULL, false, str_text(&choice->text), choice->text.len);
    for (size_t i = 0; i < choice->n_calls; i++) write_use(w, json_array_get(choice->calls, i));
    jw_end_array(w);
    write_reason(w, job, choice);
    write_used(w, job->answer, true);
    jw_int(w, "seed", (int64_t)job->answer->request.seed);
    jw_end_object(w);
}

/* ---- the stream ---- */

static void event_begin(JsonWriter *w, const char *type) {
    jw_object(w, NULL);
    jw_string(w, "type", type);
}

static void send_event(Job *job, JsonWriter *w, const char *type) { event_send(job, type, w); }

static void send_start(Job *job, Choice *choice) {
    JsonWriter w = {0};
    if (choice->begun) return;
    choice->begun = true;
    event_begin(&w, "message_start");
    jw_object(&w, "message");
    write_message_head(&w, job);
    jw_array(&w, "content");
    jw_end_array(&w);
    jw_null(&w, "stop_reason");
    jw_null(&w, "stop_sequence");
    jw_object(&w, "usage");
    jw_int(&w, "input_tokens", job->answer->prompt_tokens);
    jw_int(&w, "output_tokens", 0);
    jw_end_object(&w);
    jw_end_object(&w);
    send_event(job, &w, "message_start");
}

static void close_block(Job *job, Choice *choice) {
    JsonWriter w = {0};
    if (choice->part == PART_NONE) return;
    choice->part = PART_NONE;
    event_begin(&w, "content_block_stop");
    jw_int(&w, "index", (int64_t)choice->n_parts++);
    send_event(job, &w, "content_block_stop");
}

static void open_block(Job *job, Choice *choice, PartKind part) {
    JsonWriter w = {0};
    if (choice->part == part) return;
    close_block(job, choice);
    choice->part = part;
    event_begin(&w, "content_block_start");
    jw_int(&w, "index", (int64_t)choice->n_parts);
    write_block(&w, "content_block", part == PART_REASONING, "", 0);
    send_event(job, &w, "content_block_start");
}

static void send_delta(Job *job, const Choice *choice, const char *type, const char *key, const char *text, size_t len) {
    JsonWriter w = {0};
    event_begin(&w, "content_block_delta");
    jw_int(&w, "index", (int64_t)choice->n_parts);
    jw_object(&w, "delta");
    jw_string(&w, "type", type);
    jw_string_n(&w, key, text, len);
    jw_end_object(&w);
    send_event(job, &w, "content_block_delta");
}

/* A call is known as a whole only. */
static void send_use(Job *job, Choice *choice, const ReplyPiece *piece) {
    JsonWriter w = {0};
    json_t *call = call_of_piece(job, 0, piece);
    close_block(job, choice);
    choice->part = PART_CALL;
    event_begin(&w, "content_block_start");
    jw_int(&w, "index", (int64_t)choice->n_parts);
    jw_object(&w, "content_block");
    jw_string(&w, "type", "tool_use");
    jw_string(&w, "id", json_string_value(json_object_get(call, "id")));
    jw_string_n(&w, "name", piece->name.data, piece->name.len);
    jw_object(&w, "input");
    jw_end_object(&w);
    jw_end_object(&w);
    send_event(job, &w, "content_block_start");
    send_delta(job, choice, "input_json_delta", "partial_json", piece->arguments.data, piece->arguments.len);
    close_block(job, choice);
    json_decref(call);
}

static void message_add(Job *job, size_t at, const Addition *added) {
    Choice *choice = &job->answer->choices[at];
    send_start(job, choice);
    if (added->call) {
        send_use(job, choice, added->call);
    } else if (added->len > 0) {
        open_block(job, choice, added->reasons ? PART_REASONING : PART_TEXT);
        send_delta(job, choice, added->reasons ? "thinking_delta" : "text_delta", added->reasons ? "thinking" : "text", added->text, added->len);
    }
}

static void message_end(Job *job, size_t at) {
    Choice *choice = &job->answer->choices[at];
    send_start(job, choice);
    if (choice->part == PART_NONE && choice->n_parts == 0) open_block(job, choice, PART_TEXT);
    close_block(job, choice);
}

static void message_last(Job *job) {
    JsonWriter w = {0};
    event_begin(&w, "message_delta");
    jw_object(&w, "delta");
    write_reason(&w, job, &job->answer->choices[0]);
    jw_end_object(&w);
    write_used(&w, job->answer, false);
    send_event(job, &w, "message_delta");
    event_begin(&w, "message_stop");
    send_event(job, &w, "message_stop");
}

const Dialect dialect_messages = {message_add, message_end, message_last, write_answer};
