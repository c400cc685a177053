/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI's responses, without a state between requests: a request becomes one of a chat, and the answer is written as items of output. */
#include <stdlib.h>
#include <string.h>

#include "lib/serve/serve_parts.h"

/* ---- from items of input to messages of a chat ---- */

static const char *text_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Texts have the kinds of input and output here; others stay as they are, and are refused by their kind. */
static json_t *parts_of(const json_t *content) {
    if (!json_is_array(content)) return content ? json_incref((json_t *)(uintptr_t)content) : json_string("");
    json_t *parts = json_array();
    for (size_t i = 0; parts && i < json_array_size(content); i++) {
        json_t *part = json_array_get(content, i);
        const char *type = text_at(part, "type");
        bool text = !strcmp(type, "input_text") || !strcmp(type, "output_text");
        json_array_append_new(parts, text ? json_pack("{s:s, s:s}", "type", "text", "text", text_at(part, "text")) : json_incref(part));
    }
    return parts;
}

/* Calls that follow one another belong to one message of the assistant. */
static bool add_call(json_t *messages, const json_t *item) {
    size_t n = json_array_size(messages);
    json_t *last = n > 0 ? json_array_get(messages, n - 1) : NULL, *calls;
    if (strcmp(text_at(last, "role"), "assistant") != 0) {
        last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
        if (!last || json_array_append_new(messages, last) != 0) return false;
    }
    calls = json_object_get(last, "tool_calls");
    if (!calls && json_object_set_new(last, "tool_calls", calls = json_array()) != 0) return false;
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", text_at(item, "call_id"), "type", "function", "function", "name",
                             text_at(item, "name"), "arguments", text_at(item, "arguments"));
    return call && json_array_append_new(calls, call) == 0;
}

static bool add_item(Exchange *x, json_t *messages, const json_t *item, size_t number) {
    const char *type = text_at(item, "type"), *role = text_at(item, "role");
    json_t *message = NULL;
    if (!strcmp(type, "reasoning")) return true; /* templates drop the thoughts of earlier turns */
    if (!strcmp(type, "function_call")) {
        if (add_call(messages, item)) return true;
    } else if (!strcmp(type, "function_call_output")) {
        message = json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", text_at(item, "call_id"), "content",
                            parts_of(json_object_get(item, "output")));
    } else if ((!*type || !strcmp(type, "message")) && *role) {
        message =
            json_pack("{s:s, s:o}", "role", !strcmp(role, "developer") ? "system" : role, "content", parts_of(json_object_get(item, "content")));
    } else {
        exchange_fail(x, 400, "input", "unsupported_value", "item %zu of the input has the type '%.40s', which this server does not take", number,
                      type);
        return false;
    }
    if (message && json_array_append_new(messages, message) == 0) return true;
    if (!x->ended) exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the messages");
    return false;
}

static bool input_messages(Exchange *x, const json_t *body, json_t *messages) {
    const json_t *input = json_object_get(body, "input");
    const char *instructions = NULL;
    if (!field_text(x, body, "instructions", &instructions)) return false;
    if (instructions) json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", instructions));
    if (json_is_string(input)) {
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", json_string_value(input)));
        return true;
    }
    if (!json_is_array(input) || json_array_size(input) == 0) {
        exchange_fail(x, 400, "input", "invalid_value", "'input' must be a text, or a list with an item");
        return false;
    }
    for (size_t i = 0; i < json_array_size(input); i++)
        if (!add_item(x, messages, json_array_get(input, i), i + 1)) return false;
    return true;
}

/* ---- other fields ---- */

static bool input_tools(Exchange *x, const json_t *body, json_t *chat) {
    const json_t *given = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    if (json_is_object(choice) && *text_at(choice, "name"))
        json_object_set_new(chat, "tool_choice", json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", text_at(choice, "name")));
    else if (choice)
        json_object_set(chat, "tool_choice", (json_t *)(uintptr_t)choice);
    if (!given || json_is_null(given)) return true;
    json_t *tools = json_array();
    json_object_set_new(chat, "tools", tools);
    for (size_t i = 0; i < json_array_size(given); i++) {
        json_t *tool = json_array_get(given, i);
        if (strcmp(text_at(tool, "type"), "function") != 0) {
            exchange_fail(x, 400, "tools", "unsupported_value", "tool %zu has the type '%.40s': this server takes functions only", i + 1,
                          text_at(tool, "type"));
            return false;
        }
        json_array_append_new(tools,
                              json_pack("{s:s, s:{s:O*, s:O*, s:O*}}", "type", "function", "function", "name", json_object_get(tool, "name"),
                                        "description", json_object_get(tool, "description"), "parameters", json_object_get(tool, "parameters")));
    }
    return true;
}

static bool input_format(Exchange *x, const json_t *body, json_t *chat) {
    const json_t *text = NULL, *format = NULL, *reasoning = NULL;
    if (!field_object(x, body, "text", &text) || !field_object(x, body, "reasoning", &reasoning)) return false;
    if (reasoning && json_object_get(reasoning, "effort")) json_object_set(chat, "reasoning_effort", json_object_get(reasoning, "effort"));
    if (!text) return true;
    if (!field_object(x, text, "format", &format)) return false;
    if (format && !strcmp(text_at(format, "type"), "json_schema"))
        json_object_set_new(chat, "response_format",
                            json_pack("{s:s, s:{s:O*}}", "type", "json_schema", "json_schema", "schema", json_object_get(format, "schema")));
    else if (format)
        json_object_set(chat, "response_format", (json_t *)(uintptr_t)format);
    return true;
}

const char responses_fields[] = "model input instructions max_output_tokens stream stream_options temperature top_p top_k tools tool_choice "
                                "parallel_tool_calls text reasoning seed store metadata user include truncation service_tier prompt_cache_key "
                                "safety_identifier previous_response_id conversation background chat_template_kwargs";

bool chat_of_input(Exchange *x, json_t **body) {
    static const char *const same[] = {"model", "stream", "temperature", "top_p", "top_k", "seed", "parallel_tool_calls", "chat_template_kwargs"},
                             *const without[] = {"previous_response_id", "conversation", "background"};
    json_t *given = *body, *messages = json_array(), *chat = json_object();
    int64_t most = 0;
    if (chat) json_object_set_new(chat, "messages", messages);
    bool fine = chat && messages;
    if (!fine) exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the request");
    for (size_t i = 0; i < COUNT_OF(without) && fine; i++) {
        const json_t *value = json_object_get(given, without[i]);
        fine = !value || json_is_null(value) || json_is_false(value);
        if (!fine) exchange_fail(x, 400, without[i], "unsupported_value", "this server keeps no state between requests: send the whole input");
    }
    for (size_t i = 0; i < COUNT_OF(same) && fine; i++)
        if (json_object_get(given, same[i])) json_object_set(chat, same[i], json_object_get(given, same[i]));
    fine = fine && field_int(x, given, "max_output_tokens", 1, 1 << 20, &most);
    if (fine && most > 0) json_object_set_new(chat, "max_tokens", json_integer(most));
    fine = fine && input_messages(x, given, messages) && input_tools(x, given, chat) && input_format(x, given, chat);
    json_decref(given);
    *body = chat;
    return fine;
}

/* ---- items of output ---- */

/* The id of an item: that of the response, with another beginning. */
static void write_id(JsonWriter *w, const char *key, const char *kind, const Job *job, size_t item) {
    Str id = {0};
    const char *number = strchr(job->answer->id, '_');
    str_printf(&id, "%s%s_%zu", kind, number ? number : "", item);
    jw_string(w, key, str_text(&id));
    str_release(&id);
}

static void write_text_part(JsonWriter *w, const char *key, const char *text, size_t len) {
    jw_object(w, key);
    jw_string(w, "type", "output_text");
    jw_string_n(w, "text", text, len);
    jw_array(w, "annotations");
    jw_end_array(w);
    jw_end_object(w);
}

static void write_message_item(JsonWriter *w, const char *key, const Job *job, size_t item, const Str *text, bool done) {
    jw_object(w, key);
    write_id(w, "id", "msg", job, item);
    jw_string(w, "type", "message");
    jw_string(w, "status", done ? "completed" : "in_progress");
    jw_string(w, "role", "assistant");
    jw_array(w, "content");
    if (done) write_text_part(w, NULL, str_text(text), text->len);
    jw_end_array(w);
    jw_end_object(w);
}

static void write_reasoning_item(JsonWriter *w, const char *key, const Job *job, size_t item, const Str *text, bool done) {
    jw_object(w, key);
    write_id(w, "id", "rs", job, item);
    jw_string(w, "type", "reasoning");
    jw_array(w, "summary");
    jw_end_array(w);
    jw_array(w, "content");
    if (done) {
        jw_object(w, NULL);
        jw_string(w, "type", "reasoning_text");
        jw_string_n(w, "text", str_text(text), text->len);
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_end_object(w);
}

static void write_call_item(JsonWriter *w, const char *key, const Job *job, size_t item, const json_t *call, bool done) {
    const json_t *function = json_object_get(call, "function");
    jw_object(w, key);
    write_id(w, "id", "fc", job, item);
    jw_string(w, "type", "function_call");
    jw_string(w, "status", done ? "completed" : "in_progress");
    jw_string(w, "call_id", text_at(call, "id"));
    jw_string(w, "name", text_at(function, "name"));
    jw_string(w, "arguments", done ? text_at(function, "arguments") : "");
    jw_end_object(w);
}

/* What an answer has: its reasoning, its text, its calls. Calls of a stream are kept for this. */
static void write_output(JsonWriter *w, const Job *job, bool done) {
    const Choice *choice = &job->answer->choices[0];
    size_t item = 0;
    jw_array(w, "output");
    if (done && choice->reasoning.len > 0) write_reasoning_item(w, NULL, job, item++, &choice->reasoning, true);
    if (done && (choice->text.len > 0 || choice->n_calls == 0)) write_message_item(w, NULL, job, item++, &choice->text, true);
    for (size_t i = 0; done && i < choice->n_calls; i++) write_call_item(w, NULL, job, item++, json_array_get(choice->calls, i), true);
    jw_end_array(w);
}

static void write_used(JsonWriter *w, const Answer *answer) {
    jw_object(w, "usage");
    jw_int(w, "input_tokens", answer->prompt_tokens);
    jw_object(w, "input_tokens_details");
    jw_int(w, "cached_tokens", 0);
    jw_end_object(w);
    jw_int(w, "output_tokens", answer->answer_tokens);
    jw_object(w, "output_tokens_details");
    jw_int(w, "reasoning_tokens", 0);
    jw_end_object(w);
    jw_int(w, "total_tokens", answer->prompt_tokens + answer->answer_tokens);
    jw_end_object(w);
}

static void write_tool(JsonWriter *w, const json_t *function) {
    char *parameters = json_text(json_object_get(function, "parameters"), JSON_COMPACT | JSON_ENCODE_ANY);
    jw_object(w, NULL);
    jw_string(w, "type", "function");
    jw_string(w, "name", text_at(function, "name"));
    jw_string(w, "description", json_string_value(json_object_get(function, "description")));
    jw_raw(w, "parameters", parameters ? parameters : "null");
    jw_end_object(w);
    free(parameters);
}

/* done: the answer has ended. */
static void write_body(JsonWriter *w, const Job *job, bool done) {
    const Answer *answer = job->answer;
    bool cut = done && !strcmp(finish_name(job, &answer->choices[0]), "length");
    jw_string(w, "id", answer->id);
    jw_string(w, "object", "response");
    jw_int(w, "created_at", answer->created);
    jw_string(w, "status", !done ? "in_progress" : cut ? "incomplete" : "completed");
    jw_null(w, "error");
    if (cut) {
        jw_object(w, "incomplete_details");
        jw_string(w, "reason", "max_output_tokens");
        jw_end_object(w);
    } else {
        jw_null(w, "incomplete_details");
    }
    jw_string(w, "model", job->model->name);
    write_output(w, job, done);
    jw_bool(w, "parallel_tool_calls", true);
    jw_string(w, "tool_choice", "auto");
    jw_array(w, "tools");
    for (size_t i = 0; i < json_array_size(answer->tools); i++) write_tool(w, json_object_get(json_array_get(answer->tools, i), "function"));
    jw_end_array(w);
    jw_double(w, "temperature", answer->request.sample.temperature);
    jw_double(w, "top_p", answer->request.sample.top_p);
    jw_bool(w, "store", false);
    jw_int(w, "seed", (int64_t)answer->request.seed);
    if (done)
        write_used(w, answer);
    else
        jw_null(w, "usage");
}

static void write_response(JsonWriter *w, const Job *job) {
    jw_object(w, NULL);
    write_body(w, job, true);
    jw_end_object(w);
}

/* ---- the stream ---- */

static void event_begin(JsonWriter *w, Choice *choice, const char *type) {
    jw_object(w, NULL);
    jw_string(w, "type", type);
    jw_int(w, "sequence_number", choice->n_events++);
}

static void send_state(Job *job, Choice *choice, const char *type, bool done) {
    JsonWriter w = {0};
    event_begin(&w, choice, type);
    jw_object(&w, "response");
    write_body(&w, job, done);
    jw_end_object(&w);
    event_send(job, type, &w);
}

static void send_start(Job *job, Choice *choice) {
    if (choice->begun) return;
    choice->begun = true;
    send_state(job, choice, "response.created", false);
    send_state(job, choice, "response.in_progress", false);
}

static void write_place(JsonWriter *w, const Job *job, const Choice *choice, const char *kind) {
    write_id(w, "item_id", kind, job, choice->n_parts);
    jw_int(w, "output_index", (int64_t)choice->n_parts);
    if (strcmp(kind, "fc") != 0) jw_int(w, "content_index", 0);
}

static void send_text(Job *job, Choice *choice, const char *type, const char *key, const char *text, size_t len) {
    JsonWriter w = {0};
    event_begin(&w, choice, type);
    write_place(&w, job, choice, choice->part == PART_REASONING ? "rs" : choice->part == PART_CALL ? "fc" : "msg");
    jw_string_n(&w, key, text, len);
    event_send(job, type, &w);
}

static void send_part(Job *job, Choice *choice, const char *type, const Str *text) {
    JsonWriter w = {0};
    event_begin(&w, choice, type);
    write_place(&w, job, choice, "msg");
    write_text_part(&w, "part", str_text(text), text->len);
    event_send(job, type, &w);
}

static void send_item(Job *job, Choice *choice, bool done) {
    const char *type = done ? "response.output_item.done" : "response.output_item.added";
    JsonWriter w = {0};
    event_begin(&w, choice, type);
    jw_int(&w, "output_index", (int64_t)choice->n_parts);
    if (choice->part == PART_CALL)
        write_call_item(&w, "item", job, choice->n_parts, json_array_get(choice->calls, choice->n_calls - 1), done);
    else if (choice->part == PART_REASONING)
        write_reasoning_item(&w, "item", job, choice->n_parts, &choice->reasoning, done);
    else
        write_message_item(&w, "item", job, choice->n_parts, &choice->text, done);
    event_send(job, type, &w);
}

static void close_item(Job *job, Choice *choice) {
    if (choice->part == PART_NONE) return;
    if (choice->part == PART_TEXT) {
        send_text(job, choice, "response.output_text.done", "text", str_text(&choice->text), choice->text.len);
        send_part(job, choice, "response.content_part.done", &choice->text);
    } else if (choice->part == PART_REASONING) {
        send_text(job, choice, "response.reasoning_text.done", "text", str_text(&choice->reasoning), choice->reasoning.len);
    }
    send_item(job, choice, true);
    choice->part = PART_NONE;
    choice->n_parts++;
}

static void open_item(Job *job, Choice *choice, PartKind part) {
    if (choice->part == part) return;
    close_item(job, choice);
    choice->part = part;
    send_item(job, choice, false);
    if (part == PART_TEXT) send_part(job, choice, "response.content_part.added", &(Str){0});
}

/* A call is known as a whole only. */
static void send_call(Job *job, Choice *choice, const ReplyPiece *piece) {
    json_t *call = call_of_piece(job, 0, piece);
    if (!choice->calls) choice->calls = json_array();
    if (!call || json_array_append_new(choice->calls, call) != 0) {
        exchange_fail(job->exchange, 503, NULL, "out_of_memory", "no memory for a call");
        return;
    }
    close_item(job, choice);
    choice->part = PART_CALL;
    send_item(job, choice, false);
    send_text(job, choice, "response.function_call_arguments.delta", "delta", piece->arguments.data, piece->arguments.len);
    send_text(job, choice, "response.function_call_arguments.done", "arguments", piece->arguments.data, piece->arguments.len);
    close_item(job, choice);
}

static void response_add(Job *job, size_t at, const Addition *added) {
    Choice *choice = &job->answer->choices[at];
    send_start(job, choice);
    if (added->call) {
        send_call(job, choice, added->call);
    } else if (added->len > 0) {
        open_item(job, choice, added->reasons ? PART_REASONING : PART_TEXT);
        str_append_n(added->reasons ? &choice->reasoning : &choice->text, added->text, added->len);
        send_text(job, choice, added->reasons ? "response.reasoning_text.delta" : "response.output_text.delta", "delta", added->text, added->len);
    }
}

static void response_end(Job *job, size_t at) {
    Choice *choice = &job->answer->choices[at];
    send_start(job, choice);
    if (choice->part == PART_NONE && choice->n_parts == 0) open_item(job, choice, PART_TEXT);
    close_item(job, choice);
}

static void response_last(Job *job) {
    Choice *choice = &job->answer->choices[0];
    bool cut = !strcmp(finish_name(job, choice), "length");
    send_state(job, choice, cut ? "response.incomplete" : "response.completed", true);
}

const Dialect dialect_responses = {response_add, response_end, response_last, write_response};
