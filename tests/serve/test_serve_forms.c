/* SPDX-License-Identifier: Apache-2.0 */
/* Other dialects of chats, and forms of answers: schemas, patterns, calls of tools, biases. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/tiny_server.h"

/* ---- the dialects of others ---- */

/* Joins a member of the events of a type; fails unless the stream begins and ends with events of these types. */
static void join_named(const Str *stream, const char *type, const char *const path[2], const char *first, const char *last, Str *text) {
    size_t n = 0;
    char name[64] = "";
    for (const char *at = str_text(stream), *end; (end = strstr(at, "\n\n")); at = end + 2, n++) {
        const char *data = strstr(at, "\ndata: ");
        assert_true(text_starts_with(at, "event: ") && data && data < end);
        json_t *event = json_of_text(data + 7, (size_t)(end - data) - 7, 0);
        snprintf(name, sizeof name, "%s", json_string_value(json_object_get(event, "type")));
        assert_int_equal(strncmp(at + strlen("event: "), name, strlen(name)), 0);
        if (n == 0) assert_string_equal(name, first);
        const json_t *part = path[0] ? json_object_get(event, path[0]) : event;
        if (!strcmp(name, type)) str_append(text, json_string_value(json_object_get(part, path[1])));
        json_decref(event);
    }
    assert_string_equal(name, last);
}

static json_t *at_path(const json_t *json, const char *list, const char *key) {
    return json_object_get(json_array_get(json_object_get(json, list), 0), key);
}

TEST(messages_and_responses_are_those_of_a_chat) {
    static const char
        ask_for[] = "\"seed\": 3, \"temperature\": 0.9, \"top_p\": 0.9",
        messages[] = "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"12+34=\"}]}], \"system\": \"Add.\"",
        input[] = "\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"12+34=\"}]}], \"instructions\": \"Add.\"";
    Str body = {0}, text = {0};
    tiny_start_usual();
    str_printf(
        &body,
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Add.\"}, {\"role\": \"user\", \"content\": \"12+34=\"}], %s, \"max_tokens\": 20}",
        ask_for);
    HttpAnswer chats = tiny_ask("/v1/chat/completions", str_text(&body));
    const char *want = json_string_value(json_object_get(json_object_get(choice_at(&chats, 0), "message"), "content"));
    int64_t n_prompt = json_integer_value(json_object_get(json_object_get(chats.json, "usage"), "prompt_tokens"));
    bool cut = !strcmp(json_string_value(json_object_get(choice_at(&chats, 0), "finish_reason")), "length");
    for (int streams = 0; streams < 2; streams++) {
        str_clear(&body);
        str_clear(&text);
        str_printf(&body, "{%s, %s, \"max_tokens\": 20, \"stream\": %s}", messages, ask_for, streams ? "true" : "false");
        HttpAnswer answer = tiny_ask("/v1/messages", str_text(&body));
        assert_int_equal(answer.status, 200);
        if (streams) {
            join_named(&answer.body, "content_block_delta", (const char *const[]){"delta", "text"}, "message_start", "message_stop", &text);
        } else {
            str_append(&text, json_string_value(at_path(answer.json, "content", "text")));
            assert_string_equal(json_string_value(json_object_get(answer.json, "stop_reason")), cut ? "max_tokens" : "end_turn");
            assert_int_equal(json_integer_value(json_object_get(json_object_get(answer.json, "usage"), "input_tokens")), n_prompt);
        }
        assert_string_equal(str_text(&text), want);
        http_answer_release(&answer);
        str_clear(&body);
        str_clear(&text);
        str_printf(&body, "{%s, %s, \"max_output_tokens\": 20, \"stream\": %s}", input, ask_for, streams ? "true" : "false");
        answer = tiny_ask("/v1/responses", str_text(&body));
        assert_int_equal(answer.status, 200);
        if (streams) {
            join_named(&answer.body, "response.output_text.delta", (const char *const[]){NULL, "delta"}, "response.created",
                       cut ? "response.incomplete" : "response.completed", &text);
        } else {
            str_append(&text, json_string_value(at_path(json_array_get(json_object_get(answer.json, "output"), 0), "content", "text")));
            assert_string_equal(json_string_value(json_object_get(answer.json, "status")), cut ? "incomplete" : "completed");
        }
        assert_string_equal(str_text(&text), want);
        http_answer_release(&answer);
    }
    str_clear(&body);
    str_printf(&body, "{%s}", messages);
    HttpAnswer count = tiny_ask("/v1/messages/count_tokens", str_text(&body));
    assert_int_equal(json_integer_value(json_object_get(count.json, "input_tokens")), n_prompt);
    http_answer_release(&count);
    http_answer_release(&chats);
    static const char image[] = "{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"source\": {}}]}]}";
    HttpAnswer refused = tiny_ask("/v1/messages", image);
    assert_string_equal(json_string_value(json_object_get(refused.json, "type")), "error");
    check_refusal(refused, 400, "unsupported_content", "messages");
    check_refusal(tiny_ask("/v1/responses", "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\"}]}]}"), 400,
                  "unsupported_content", "messages");
    check_refusal(tiny_ask("/v1/responses", "{\"input\": \"a\", \"previous_response_id\": \"resp_1\"}"), 400, "unsupported_value",
                  "previous_response_id");
    check_refusal(tiny_ask("/v1/responses", "{\"input\": \"a\", \"tools\": [{\"type\": \"web_search\"}]}"), 400, "unsupported_value", "tools");
    str_release(&body);
    str_release(&text);
    tiny_stop();
}

/* ---- forms of answers ---- */

static const char tool_template[] =
    "{% for tool in tools or [] %}<tools>{{ tool | tojson }}</tools>{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char question[] = "\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], \"seed\": 1, \"max_tokens\": 120";

static HttpAnswer ask_chat(const char *more) {
    Str body = {0};
    str_printf(&body, "{%s, %s}", question, more);
    HttpAnswer answer = tiny_ask("/v1/chat/completions", str_text(&body));
    str_release(&body);
    return answer;
}

static const json_t *message_of(const HttpAnswer *answer) { return json_object_get(choice_at(answer, 0), "message"); }

TEST(answers_have_the_form_that_is_asked_for) {
    static const char schema[] =
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {\"type\": \"object\", "
        "\"properties\": {\"word\": {\"enum\": [\"yes\", \"no\"]}, \"count\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 9}}, "
        "\"required\": [\"word\", \"count\"], \"additionalProperties\": false}}}";
    tiny_start_usual();
    for (int i = 0; i < 2; i++) { /* the second one uses the kept constraint */
        HttpAnswer answer = ask_chat(schema);
        assert_int_equal(answer.status, 200);
        const char *text = json_string_value(json_object_get(message_of(&answer), "content"));
        json_t *value = json_of_text(text, strlen(text), 0);
        const char *word = json_string_value(json_object_get(value, "word"));
        assert_true(word && (!strcmp(word, "yes") || !strcmp(word, "no")));
        assert_in_range(json_integer_value(json_object_get(value, "count")), 0, 9);
        assert_string_equal(json_string_value(json_object_get(choice_at(&answer, 0), "finish_reason")), "stop");
        json_decref(value);
        http_answer_release(&answer);
    }
    HttpAnswer answer = ask_chat("\"guided_regex\": \"[ab]{3}\"");
    const char *text = json_string_value(json_object_get(message_of(&answer), "content"));
    assert_true(strlen(text) == 3 && strspn(text, "ab") == 3);
    http_answer_release(&answer);
    answer = tiny_ask("/v1/completions", "{\"prompt\": \"1\", \"max_tokens\": 50, \"guided_choice\": [\"a.b\", \"(c)\"]}");
    text = json_string_value(json_object_get(choice_at(&answer, 0), "text"));
    assert_true(!strcmp(text, "a.b") || !strcmp(text, "(c)"));
    http_answer_release(&answer);
    check_refusal(ask_chat("\"guided_regex\": \"(a\""), 400, "unsupported_schema", "guided_regex");
    check_refusal(ask_chat("\"guided_regex\": \"a\", \"guided_json\": {\"type\": \"null\"}"), 400, "unsupported_value", "guided_json");
    check_refusal(ask_chat("\"guided_choice\": [1]"), 400, "invalid_value", "guided_choice");
    check_refusal(ask_chat("\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"object\", \"not\": {}}}}"),
                  400, "unsupported_schema", "response_format");
    check_refusal(ask_chat("\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"string\", "
                           "\"pattern\": \"(a|b){5000}(c{1000}){1000}\"}}}"),
                  400, "unsupported_schema", "response_format");
    check_refusal(ask_chat("\"response_format\": {\"type\": \"xml\"}"), 400, "invalid_value", "response_format");
    check_refusal(ask_chat("\"tool_choice\": \"required\""), 400, "invalid_value", "tool_choice");
    check_refusal(ask_chat("\"logit_bias\": {\"x\": 1}"), 400, "invalid_value", "logit_bias");
    tiny_stop();
}

/* Memory is kept for so many forms of answers; one that nobody uses makes room. */
TEST(forms_of_answers_are_bounded) {
    static const char form[] = "\"max_tokens\": 400, \"n\": 8, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
                               "{\"type\": \"array\", \"items\": {\"const\": \"aaaaaaaaaaaaaaaa\"}, \"minItems\": 200}}}",
                      other[] = "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"boolean\"}}}";
    ServeConfig config = tiny_config();
    Str text = {0};
    config.max_schemas = 1;
    tiny_start(&config);
    size_t len = sizeof form - 1 + strlen("{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], }");
    str_printf(&text, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", len);
    str_printf(&text, "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], %s}", form);
    int fd = tiny_send(str_text(&text));
    tiny_wait_for("tune_requests_running", 1);
    HttpAnswer answer = ask_chat(other);
    check_contains(str_text(&answer.head), "Retry-After: ");
    check_refusal(answer, 429, "schemas_full", "response_format");
    close(fd);
    tiny_wait_for("tune_cancelled_total", 1);
    answer = ask_chat(other);
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
    str_release(&text);
    tiny_stop();
}

TEST(biases_and_the_likeliest_tokens) {
    tiny_start_usual();
    HttpAnswer answer = tiny_ask("/v1/completions", "{\"prompt\": \"1\", \"temperature\": 0, \"max_tokens\": 3, \"logit_bias\": {\"66\": 100}}");
    assert_string_equal(json_string_value(json_object_get(choice_at(&answer, 0), "text")), "aaa");
    http_answer_release(&answer);
    int32_t half = -1; /* the byte C3, which begins a character */
    for (int32_t id = 0; id < tiny_model->config.vocab_size && half < 0; id++) {
        Str bytes = {0};
        if (tokenizer_token(tiny_tokenizer, id)) tokenizer_token_bytes(tiny_tokenizer, id, &bytes);
        if (bytes.len == 1 && bytes.data[0] == '\xC3') half = id;
        str_release(&bytes);
    }
    Str more = {0};
    str_printf(&more, "\"temperature\": 0, \"logprobs\": true, \"logit_bias\": {\"%d\": 100}", half);
    answer = ask_chat(str_text(&more));
    const json_t *byte = json_object_get(json_array_get(json_object_get(json_object_get(choice_at(&answer, 0), "logprobs"), "content"), 0), "bytes");
    assert_int_equal(json_array_size(byte), 1);
    assert_int_equal(json_integer_value(json_array_get(byte, 0)), 0xC3);
    http_answer_release(&answer);
    str_release(&more);
    answer = ask_chat("\"temperature\": 0, \"logprobs\": true, \"top_logprobs\": 2");
    const json_t *content = json_object_get(json_object_get(choice_at(&answer, 0), "logprobs"), "content"), *first = json_array_get(content, 0),
                 *top = json_object_get(first, "top_logprobs");
    assert_int_equal(json_array_size(top), 2);
    assert_true(json_equal(json_object_get(json_array_get(top, 0), "token"), json_object_get(first, "token")));
    assert_true(json_equal(json_object_get(json_array_get(top, 0), "logprob"), json_object_get(first, "logprob")));
    http_answer_release(&answer);
    tiny_stop();
}

/* The first tool call in the events of a stream; a new reference. */
static json_t *call_of_events(const Str *stream) {
    json_t *call = NULL;
    for (const char *at = str_text(stream), *end; (end = strstr(at, "\n\n")); at = end + 2) {
        json_t *event = text_starts_with(at, "data: {") ? json_of_text(at + 6, (size_t)(end - at) - 6, 0) : NULL;
        json_t *delta = json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta");
        if (!call) call = json_incref(json_array_get(json_object_get(delta, "tool_calls"), 0));
        json_decref(event);
    }
    return call;
}

/* The same tool in the dialects of others, with the result of a call before. */
static void check_foreign_calls(void) {
    static const char
        parameters[] =
            "{\"type\": \"object\", \"properties\": {\"day\": {\"enum\": [1, 2]}}, \"required\": [\"day\"], \"additionalProperties\": false}",
        messages[] = "\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", "
                     "\"id\": \"c1\", \"name\": \"look\", \"input\": {\"day\": 1}}]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", "
                     "\"tool_use_id\": \"c1\", \"content\": \"rain\"}, {\"type\": \"text\", \"text\": \"and then?\"}]}]",
        input[] = "\"input\": [{\"role\": \"user\", \"content\": \"1\"}, {\"type\": \"function_call\", \"call_id\": \"c1\", \"name\": \"look\", "
                  "\"arguments\": \"{\\\"day\\\": 1}\"}, {\"type\": \"function_call_output\", \"call_id\": \"c1\", \"output\": \"rain\"}]";
    for (int streams = 0; streams < 2; streams++) {
        Str body = {0}, text = {0};
        str_printf(&body,
                   "{%s, \"max_tokens\": 160, \"seed\": 1, \"stream\": %s, \"tools\": [{\"name\": \"look\", \"input_schema\": %s}], "
                   "\"tool_choice\": {\"type\": \"any\", \"disable_parallel_tool_use\": true}}",
                   messages, streams ? "true" : "false", parameters);
        HttpAnswer answer = tiny_ask("/v1/messages", str_text(&body));
        assert_int_equal(answer.status, 200);
        if (streams) {
            join_named(&answer.body, "content_block_delta", (const char *const[]){"delta", "partial_json"}, "message_start", "message_stop", &text);
            check_contains(str_text(&text), "\"day\"");
        } else {
            assert_string_equal(json_string_value(json_object_get(answer.json, "stop_reason")), "tool_use");
            assert_in_range(json_integer_value(json_object_get(at_path(answer.json, "content", "input"), "day")), 1, 2);
        }
        http_answer_release(&answer);
        str_clear(&body);
        str_clear(&text);
        str_printf(
            &body,
            "{%s, \"seed\": 1, \"max_output_tokens\": 160, \"stream\": %s, \"tools\": [{\"type\": \"function\", \"name\": \"look\", \"parameters\": %s}], "
            "\"tool_choice\": \"required\", \"parallel_tool_calls\": false}",
            input, streams ? "true" : "false", parameters);
        answer = tiny_ask("/v1/responses", str_text(&body));
        assert_int_equal(answer.status, 200);
        if (streams) {
            join_named(&answer.body, "response.function_call_arguments.done", (const char *const[]){NULL, "arguments"}, "response.created",
                       "response.completed", &text);
            check_contains(str_text(&text), "\"day\"");
        } else {
            assert_string_equal(json_string_value(at_path(answer.json, "output", "type")), "function_call");
            check_contains(json_string_value(at_path(answer.json, "output", "arguments")), "\"day\"");
        }
        http_answer_release(&answer);
        str_release(&body);
        str_release(&text);
    }
}

TEST(calls_of_tools_are_taken_out) {
    static const char tools[] = "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"look\", \"parameters\": {\"type\": \"object\", "
                                "\"properties\": {\"day\": {\"enum\": [1, 2]}}, \"required\": [\"day\"], \"additionalProperties\": false}}}]";
    ServeConfig config = tiny_config();
    Chat *with_tools;
    Str more = {0};
    check_ok(chat_open(tiny_dir, NULL, temp_text(test_folder, "tools.jinja", tool_template), NULL, tiny_tokenizer, &with_tools));
    config.chat = with_tools;
    config.max_context = 1024;
    tiny_start(&config);
    str_printf(&more, "%s, \"tool_choice\": \"required\", \"parallel_tool_calls\": false", tools);
    HttpAnswer answer = ask_chat(str_text(&more));
    assert_int_equal(answer.status, 200);
    const json_t *call = json_array_get(json_object_get(message_of(&answer), "tool_calls"), 0), *function = json_object_get(call, "function");
    assert_string_equal(json_string_value(json_object_get(choice_at(&answer, 0), "finish_reason")), "tool_calls");
    assert_string_equal(json_string_value(json_object_get(function, "name")), "look");
    assert_int_equal(strlen(json_string_value(json_object_get(call, "id"))), strlen("call_") + 24);
    json_t *arguments =
        json_of_text(json_string_value(json_object_get(function, "arguments")), json_string_length(json_object_get(function, "arguments")), 0);
    assert_in_range(json_integer_value(json_object_get(arguments, "day")), 1, 2);
    str_append(&more, ", \"stream\": true");
    HttpAnswer stream = ask_chat(str_text(&more));
    json_t *streamed = call_of_events(&stream.body);
    assert_true(json_equal(json_object_get(streamed, "function"), function));
    check_contains(str_text(&stream.body), "\"finish_reason\": \"tool_calls\"");
    json_decref(streamed);
    json_decref(arguments);
    http_answer_release(&stream);
    http_answer_release(&answer);
    check_foreign_calls();
    str_clear(&more);
    str_printf(&more, "%s, \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"other\"}}", tools);
    check_refusal(ask_chat(str_text(&more)), 400, "unsupported_schema", "tools");
    answer = tiny_ask("/apply-template", "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], \"tools\": [{\"a\": 1}]}");
    check_contains(json_string_value(json_object_get(answer.json, "prompt")), "<tools>{\"a\": 1}</tools>");
    http_answer_release(&answer);
    tiny_stop();
    str_release(&more);
    chat_close(with_tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_and_responses_are_those_of_a_chat),
        cmocka_unit_test(answers_have_the_form_that_is_asked_for),
        cmocka_unit_test(forms_of_answers_are_bounded),
        cmocka_unit_test(biases_and_the_likeliest_tokens),
        cmocka_unit_test(calls_of_tools_are_taken_out),
    };
    return cmocka_run_group_tests(tests, tiny_set_up, tiny_clean_up);
}
