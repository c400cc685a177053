/* SPDX-License-Identifier: Apache-2.0 */
/* A server and its clients: answers equal those of tune generate and tune score whatever else is served, and bad clients harm nobody. */
#include "tests/support/check.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/system.h"
#include "lib/model/adapter.h"
#include "lib/serve/serve.h"
#include "tests/support/http_client.h"

static const char model_dir[] = "recipes/demo/model";
static Model *model;
static Tokenizer *tokenizer;
static Chat *chat;

static int set_up(void **state) {
    test_folder_make(state);
    check_ok(model_load(model_dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(tokenizer_load(model_dir, &tokenizer));
    check_ok(chat_open(model_dir, NULL, "chatml", NULL, tokenizer, &chat));
    return 0;
}

static int clean_up(void **state) {
    chat_close(chat);
    tokenizer_free(tokenizer);
    model_free(model);
    return test_folder_remove(state);
}

/* ---- a server in a thread ---- */

static Server *server;
static pthread_t engine;
static Status engine_status;

static void *run_engine(void *context) {
    (void)context;
    engine_status = server_run(server);
    return NULL;
}

static ServeConfig usual(void) {
    return (ServeConfig){.model = model,
                         .tokenizer = tokenizer,
                         .chat = chat,
                         .name = "tiny",
                         .version = "test",
                         .host = "127.0.0.1",
                         .max_context = 512,
                         .max_tokens = 64,
                         .max_sequences = 8,
                         .max_queue = 64,
                         .max_connections = 64,
                         .max_schemas = 4,
                         .max_body = 1 << 20,
                         .max_seconds = 60};
}

static void start_with(const ServeConfig *config) {
    check_ok(server_open(config, &server));
    assert_int_equal(pthread_create(&engine, NULL, run_engine, NULL), 0);
    for (int status = 503; status != 200;) {
        HttpAnswer answer = http_ask(server_port(server), "GET", "/health", "", "");
        status = answer.status;
        http_answer_release(&answer);
    }
}

static void start_usual(void) {
    ServeConfig config = usual();
    start_with(&config);
}

static void stop_server(void) {
    server_stop(server);
    pthread_join(engine, NULL);
    assert_int_equal(engine_status, ST_OK);
    server_close(server);
}

static HttpAnswer ask(const char *path, const char *body) { return http_ask(server_port(server), "POST", path, "", body); }

/* Fails unless the answer is an error of this status with these parts. */
static void check_error(HttpAnswer answer, int status, const char *code, const char *param) {
    const json_t *error = json_object_get(answer.json, "error");
    assert_int_equal(answer.status, status);
    assert_true(json_is_object(error) && json_is_string(json_object_get(error, "message")) && json_is_string(json_object_get(error, "type")));
    const char *its = json_string_value(json_object_get(error, "code")), *names = json_string_value(json_object_get(error, "param"));
    if (code) assert_string_equal(its ? its : "", code);
    if (param) assert_string_equal(names ? names : "", param);
    http_answer_release(&answer);
}

static json_t *choice_at(const HttpAnswer *answer, size_t i) { return json_array_get(json_object_get(answer->json, "choices"), i); }

/* ---- what tune generate answers ---- */

typedef struct Kept {
    Completion of[4];
    size_t n;
} Kept;

static Status keep_completion(void *context, const Completion *c) {
    Kept *kept = context;
    Completion *mine = &kept->of[kept->n++];
    str_append_n(&mine->text, str_text(&c->text), c->text.len);
    ids_append(&mine->ids, c->ids.data, c->ids.n);
    mine->logprobs = malloc(c->ids.n * sizeof(double));
    memcpy(mine->logprobs, c->logprobs, c->ids.n * sizeof(double));
    return ST_OK;
}

static void kept_release(Kept *kept) {
    for (size_t i = 0; i < kept->n; i++) completion_release(&kept->of[i]);
    *kept = (Kept){0};
}

static void generate_here(const Model *with, const Ids *ids, uint64_t seed, double temperature, int64_t max_tokens, int64_t n, Kept *kept) {
    int32_t end = chat_end_of_turn(chat);
    GenerateConfig config = {.sample = {.temperature = temperature, .top_p = 0.9, .typical_p = 1, .repetition_penalty = 1},
                             .max_new_tokens = max_tokens,
                             .n = n,
                             .seed = seed,
                             .stop_ids = &end,
                             .n_stop_ids = end >= 0};
    *kept = (Kept){0};
    check_ok(generate(with, tokenizer, &(Prompt){ids->data, ids->n, 0}, 1, &config, NULL, keep_completion, kept));
}

static const char completion_body[] =
    "{\"model\": \"tiny\", \"prompt\": \"12+34=\", \"seed\": 7, \"temperature\": 1.3, \"top_p\": 0.9, \"max_tokens\": 24, \"n\": 2, \"logprobs\": 0}";

/* Texts and log-probabilities of the two answers, to the bit. */
static void check_completion(const HttpAnswer *answer, const Kept *want) {
    assert_int_equal(answer->status, 200);
    for (size_t i = 0; i < 2; i++) {
        const json_t *choice = choice_at(answer, i), *logprobs = json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
        assert_string_equal(json_string_value(json_object_get(choice, "text")), str_text(&want->of[i].text));
        assert_int_equal(json_array_size(logprobs), want->of[i].ids.n);
        for (size_t t = 0; t < want->of[i].ids.n; t++) assert_true(json_number_value(json_array_get(logprobs, t)) == want->of[i].logprobs[t]);
    }
}

static void *disturb(void *context) {
    Str body = {0};
    str_printf(&body, "{\"prompt\": \"%d\", \"max_tokens\": 40, \"ignore_eos\": true, \"stream\": true, \"seed\": %d}", *(int *)context * 37,
               *(int *)context);
    for (int i = 0; i < 3; i++) {
        HttpAnswer answer = ask("/v1/completions", str_text(&body));
        http_answer_release(&answer);
    }
    str_release(&body);
    return NULL;
}

TEST(an_answer_is_that_of_generate_alone_and_in_company) {
    pthread_t others[8];
    int numbers[8];
    Ids ids = {0};
    Kept want;
    check_ok(encode_prompt(tokenizer, "12+34=", 6, &ids));
    generate_here(model, &ids, 7, 1.3, 24, 2, &want);
    start_usual();
    HttpAnswer answer = ask("/v1/completions", completion_body);
    check_completion(&answer, &want);
    assert_int_equal(json_integer_value(json_object_get(answer.json, "seed")), 7);
    http_answer_release(&answer);
    for (int i = 0; i < 8; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&others[i], NULL, disturb, &numbers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        answer = ask("/v1/completions", completion_body);
        check_completion(&answer, &want);
        http_answer_release(&answer);
    }
    for (int i = 0; i < 8; i++) pthread_join(others[i], NULL);
    stop_server();
    kept_release(&want);
    ids_release(&ids);
}

/* A GGUF file, directories of other programs, and experts; prompts are ids, since most have no tokenizer. */
TEST(quantised_models_are_served) {
    static const char *const names[] = {"deploy/gguf/qwen2-wide/qwen2-wide.q4_k_m.gguf", "deploy/hfquant/bnb-nf4", "deploy/hfquant/gptq",
                                        "models/qwen3_moe"};
    static const int32_t given[] = {5, 6, 7, 8};
    static const char body[] =
        "{\"prompt\": [5, 6, 7, 8], \"seed\": 7, \"temperature\": 1.3, \"top_p\": 0.9, \"max_tokens\": 24, \"n\": 2, \"logprobs\": 0}";
    char name[128], path[512];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Model *its;
        Kept want = {0};
        snprintf(name, sizeof name, "golden/%s", names[i]);
        if (!shared_path(name, path, sizeof path)) skip();
        check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &its));
        GenerateConfig config = {
            .sample = {.temperature = 1.3, .top_p = 0.9, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = 24, .n = 2, .seed = 7};
        check_ok(generate(its, NULL, &(Prompt){given, COUNT_OF(given), 0}, 1, &config, NULL, keep_completion, &want));
        ServeConfig serves = usual();
        serves.model = its;
        serves.tokenizer = NULL;
        serves.chat = NULL;
        serves.max_context = 64;
        start_with(&serves);
        HttpAnswer answer = ask("/v1/completions", body);
        check_completion(&answer, &want);
        http_answer_release(&answer);
        stop_server();
        kept_release(&want);
        model_free(its);
    }
}

/* ---- streams ---- */

/* Joins the texts of a stream's events of one choice. Returns its finish_reason; fails the test where an event is not right. */
static const char *join_events(const Str *stream, int64_t index, bool chats, Str *text, json_t **usage) {
    static char finish[32];
    const char *at = str_text(stream);
    *finish = '\0';
    *usage = NULL;
    for (const char *end; (end = strstr(at, "\n\n")); at = end + 2) {
        if (*at == ':') continue;
        assert_true(text_starts_with(at, "data: "));
        at += strlen("data: ");
        if (text_starts_with(at, "[DONE]")) return finish;
        json_t *event = json_of_text(at, (size_t)(end - at), 0);
        assert_non_null(event);
        const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
        if (!choice) *usage = json_incref(json_object_get(event, "usage"));
        if (choice && json_integer_value(json_object_get(choice, "index")) == index) {
            const json_t *delta = chats ? json_object_get(choice, "delta") : choice;
            const char *piece = json_string_value(json_object_get(delta, chats ? "content" : "text")),
                       *ends = json_string_value(json_object_get(choice, "finish_reason"));
            if (piece) str_append(text, piece);
            if (ends) strncpy(finish, ends, sizeof finish - 1);
        }
        json_decref(event);
    }
    fail_msg("a stream without [DONE]: %s", str_text(stream));
    return finish;
}

static const char chat_fields[] =
    "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"12+34=\"}]}], \"seed\": 3, \"temperature\": 0.9, \"top_p\": 0.9, \"n\": 2";

TEST(a_chat_is_that_of_generate_as_a_whole_and_as_a_stream) {
    Ids ids = {0};
    Kept want;
    Str body = {0}, text = {0};
    json_t *row = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", "12+34="), *usage;
    check_ok(row_question(row, &(DataConfig){.chat = chat}, tokenizer, &ids));
    generate_here(model, &ids, 3, 0.9, 20, 2, &want);
    start_usual();
    str_printf(&body, "{%s, \"max_tokens\": 20}", chat_fields);
    HttpAnswer answer = ask("/v1/chat/completions", str_text(&body));
    assert_int_equal(answer.status, 200);
    for (size_t i = 0; i < 2; i++)
        assert_string_equal(json_string_value(json_object_get(json_object_get(choice_at(&answer, i), "message"), "content")),
                            str_text(&want.of[i].text));
    json_t *whole_usage = json_incref(json_object_get(answer.json, "usage"));
    assert_int_equal(json_integer_value(json_object_get(whole_usage, "prompt_tokens")), (int64_t)ids.n);
    assert_int_equal(json_integer_value(json_object_get(whole_usage, "completion_tokens")), (int64_t)(want.of[0].ids.n + want.of[1].ids.n));
    http_answer_release(&answer);
    str_clear(&body);
    str_printf(&body, "{%s, \"max_completion_tokens\": 20, \"stream\": true, \"stream_options\": {\"include_usage\": true}}", chat_fields);
    answer = ask("/v1/chat/completions", str_text(&body));
    check_contains(str_text(&answer.head), "text/event-stream");
    for (int64_t i = 0; i < 2; i++) {
        str_clear(&text);
        const char *finish = join_events(&answer.body, i, true, &text, &usage);
        assert_string_equal(finish, want.of[i].ids.n == 20 ? "length" : "stop");
        assert_string_equal(str_text(&text), str_text(&want.of[i].text));
        assert_true(json_equal(usage, whole_usage));
        json_decref(usage);
    }
    http_answer_release(&answer);
    stop_server();
    json_decref(whole_usage);
    json_decref(row);
    kept_release(&want);
    ids_release(&ids);
    str_release(&body);
    str_release(&text);
}

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
    start_usual();
    str_printf(
        &body,
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Add.\"}, {\"role\": \"user\", \"content\": \"12+34=\"}], %s, \"max_tokens\": 20}",
        ask_for);
    HttpAnswer chats = ask("/v1/chat/completions", str_text(&body));
    const char *want = json_string_value(json_object_get(json_object_get(choice_at(&chats, 0), "message"), "content"));
    int64_t n_prompt = json_integer_value(json_object_get(json_object_get(chats.json, "usage"), "prompt_tokens"));
    bool cut = !strcmp(json_string_value(json_object_get(choice_at(&chats, 0), "finish_reason")), "length");
    for (int streams = 0; streams < 2; streams++) {
        str_clear(&body);
        str_clear(&text);
        str_printf(&body, "{%s, %s, \"max_tokens\": 20, \"stream\": %s}", messages, ask_for, streams ? "true" : "false");
        HttpAnswer answer = ask("/v1/messages", str_text(&body));
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
        answer = ask("/v1/responses", str_text(&body));
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
    HttpAnswer count = ask("/v1/messages/count_tokens", str_text(&body));
    assert_int_equal(json_integer_value(json_object_get(count.json, "input_tokens")), n_prompt);
    http_answer_release(&count);
    http_answer_release(&chats);
    static const char image[] = "{\"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"source\": {}}]}]}";
    HttpAnswer refused = ask("/v1/messages", image);
    assert_string_equal(json_string_value(json_object_get(refused.json, "type")), "error");
    check_error(refused, 400, "unsupported_content", "messages");
    check_error(ask("/v1/responses", "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\"}]}]}"), 400, "unsupported_content",
                "messages");
    check_error(ask("/v1/responses", "{\"input\": \"a\", \"previous_response_id\": \"resp_1\"}"), 400, "unsupported_value", "previous_response_id");
    check_error(ask("/v1/responses", "{\"input\": \"a\", \"tools\": [{\"type\": \"web_search\"}]}"), 400, "unsupported_value", "tools");
    str_release(&body);
    str_release(&text);
    stop_server();
}

/* ---- errors ---- */

TEST(errors_name_what_is_wrong) {
    static const struct {
        const char *path, *body;
        int status;
        const char *code, *param;
    } cases[] = {
        {"/v1/chat/completions", "{", 400, "invalid_json", NULL},
        {"/v1/chat/completions", "[1]", 400, NULL, NULL},
        {"/v1/chat/completions", "{\"messages\": []}", 400, "invalid_value", "messages"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"model\": \"x\"}", 404, "model_not_found", "model"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]}]}",
         400, "unsupported_content", "messages"},
        {"/v1/completions", "{\"prompt\": \"a\", \"temperature\": -1}", 400, "invalid_value", "temperature"},
        {"/v1/completions", "{\"prompt\": \"a\", \"n\": 1000}", 400, "invalid_value", "n"},
        {"/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 1.5}", 400, "invalid_value", "max_tokens"},
        {"/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 5000}", 400, "context_length_exceeded", "prompt"},
        {"/v1/completions", "{\"prompt\": \"a\", \"stop\": [\"\"]}", 400, "invalid_value", "stop"},
        {"/v1/completions", "{\"prompt\": \"a\", \"suffix\": \"b\"}", 400, "unsupported_value", "suffix"},
        {"/v1/completions", "{\"prompt\": \"a\", \"stream\": \"yes\"}", 400, "invalid_type", "stream"},
        {"/v1/completions", "{\"prompt\": [0, 99999]}", 400, "invalid_value", "prompt"},
        {"/v1/completions", "{\"prompt\": []}", 400, "invalid_value", "prompt"},
        {"/v1/completions", "{\"prompt\": \"\\u0000\"}", 400, "invalid_json", NULL},
        {"/v1/embeddings", "{\"input\": \"a\", \"dimensions\": 0}", 400, "invalid_value", "dimensions"},
        {"/v1/nothing", "{}", 404, "unknown_url", NULL},
        {"/v1/models", "{}", 405, "method_not_allowed", NULL},
        {"/v1/load_lora_adapter", "{\"lora_name\": \"a\", \"lora_path\": \"../x\"}", 403, "not_allowed", "lora_path"},
    };
    start_usual();
    for (size_t i = 0; i < COUNT_OF(cases); i++) check_error(ask(cases[i].path, cases[i].body), cases[i].status, cases[i].code, cases[i].param);
    HttpAnswer answer = http_ask(server_port(server), "GET", "/v1/models/tiny", "", "");
    assert_string_equal(json_string_value(json_object_get(answer.json, "id")), "tiny");
    assert_null(json_object_get(answer.json, "activations_kl")); /* products are exact */
    http_answer_release(&answer);
    check_error(http_ask(server_port(server), "GET", "/v1/models/none", "", ""), 404, "model_not_found", "model");
    check_error(http_ask(server_port(server), "GET", "/v1/models", "Origin: http://evil.example\r\n", ""), 403, "wrong_origin", NULL);
    stop_server();
}

TEST(keys_are_asked_for) {
    const ServeKey keys[] = {{"ann", "key-of-ann"}, {"bob", "key-of-bob"}};
    char audit[512];
    ServeConfig config = usual();
    config.keys = keys;
    config.n_keys = 2;
    config.strict = true;
    config.rounds_activations = true;
    config.activations_kl = 0.125;
    snprintf(audit, sizeof audit, "%s", temp_file(test_folder, "audit.jsonl"));
    config.audit = audit;
    start_with(&config);
    int port = server_port(server);
    check_error(http_ask(port, "GET", "/v1/models", "", ""), 401, "invalid_api_key", NULL);
    check_error(http_ask(port, "GET", "/v1/models", "Authorization: Bearer key-of-an\r\n", ""), 401, "invalid_api_key", NULL);
    check_error(http_ask(port, "GET", "/v1/models", "Authorization: Bearer key-of-ann2\r\n", ""), 401, "invalid_api_key", NULL);
    check_error(http_ask(port, "POST", "/v1/completions", "Authorization: Bearer key-of-bob\r\n", "{\"prompt\": \"a\", \"tpo_p\": 1}"), 400,
                "unknown_parameter", "tpo_p");
    HttpAnswer answer = http_ask(port, "GET", "/v1/models/tiny", "Authorization: Bearer key-of-ann\r\n", "");
    check_close(json_number_value(json_object_get(answer.json, "activations_kl")), 0.125, 0);
    http_answer_release(&answer);
    answer = http_ask(port, "POST", "/v1/completions", "Authorization: Bearer key-of-bob\r\n",
                      "{\"prompt\": \"secret words\", \"max_tokens\": 2, \"ignore_eos\": true}");
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
    stop_server();
    Str text = {0};
    check_ok(file_read(audit, 1 << 20, &text));
    check_contains(str_text(&text), "\"key\": \"bob\", \"path\": \"/v1/completions\", \"model\": \"tiny\"");
    check_contains(str_text(&text), "\"completion_tokens\": 2, \"status\": 200");
    check_contains(str_text(&text), "\"status\": 401");
    assert_null(strstr(str_text(&text), "secret"));
    str_release(&text);
    config.host = "0.0.0.0";
    config.n_keys = 0;
    check_status(server_open(&config, &server), ST_USAGE);
    check_text("no key is asked for");
}

TEST(a_port_has_one_server) {
    start_usual();
    ServeConfig config = usual();
    Server *second;
    config.port = server_port(server);
    check_status(server_open(&config, &second), ST_INPUT);
    check_text("cannot listen at '127.0.0.1'");
    stop_server();
}

/* ---- the end ---- */

static void *ask_long(void *context) {
    HttpAnswer *answer = context;
    *answer = ask("/v1/completions", "{\"prompt\": \"1\", \"max_tokens\": 200, \"ignore_eos\": true, \"seed\": 1}");
    return NULL;
}

static double metric_of(const char *name) {
    HttpAnswer answer = http_ask(server_port(server), "GET", "/metrics", "", "");
    Str line = {0};
    str_printf(&line, "\n%s ", name);
    const char *at = strstr(str_text(&answer.body), str_text(&line));
    double value = at ? strtod(at + line.len, NULL) : -1;
    str_release(&line);
    http_answer_release(&answer);
    return value;
}

static void wait_for_metric(const char *name, double value) {
    double until = clock_seconds() + 30;
    while (metric_of(name) != value) {
        if (clock_seconds() > until) fail_msg("%s is %g after 30 s, not %g", name, metric_of(name), value);
        usleep(5000);
    }
}

TEST(the_end_waits_for_answers) {
    pthread_t client;
    HttpAnswer answer;
    start_usual();
    assert_int_equal(pthread_create(&client, NULL, ask_long, &answer), 0);
    wait_for_metric("tune_requests_running", 1);
    server_stop(server);
    pthread_join(client, NULL);
    assert_int_equal(answer.status, 200);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(answer.json, "usage"), "completion_tokens")), 200);
    http_answer_release(&answer);
    stop_server();
}

TEST(a_client_that_goes_is_dropped) {
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 500, \"n\": 8, \"ignore_eos\": true, \"stream\": %s}";
    start_usual();
    for (int streams = 0; streams < 2; streams++) {
        Str text = {0}, json = {0};
        int fd = http_connect(server_port(server));
        str_printf(&json, body, streams ? "true" : "false");
        str_printf(&text, "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %zu\r\n\r\n%s", json.len, str_text(&json));
        assert_true(http_send(fd, text.data, text.len));
        wait_for_metric("tune_requests_running", 1);
        close(fd);
        wait_for_metric("tune_cancelled_total", streams + 1);
        wait_for_metric("tune_sequences_running", 0);
        str_release(&text);
        str_release(&json);
    }
    stop_server();
}

TEST(a_full_queue_refuses) {
    pthread_t clients[3];
    HttpAnswer answers[3];
    ServeConfig config = usual();
    int refused = 0;
    config.max_sequences = 1;
    config.max_queue = 1;
    start_with(&config);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&clients[i], NULL, ask_long, &answers[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(clients[i], NULL);
        if (answers[i].status == 429) {
            refused++;
            check_contains(str_text(&answers[i].head), "Retry-After: ");
        }
        http_answer_release(&answers[i]);
    }
    assert_in_range(refused, 0, 2); /* by how the threads run */
    stop_server();
}

TEST(a_request_has_a_limited_time) {
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 500, \"n\": 8, \"ignore_eos\": true, \"stream\": %s}";
    ServeConfig config = usual();
    config.max_seconds = 0.02;
    start_with(&config);
    for (int streams = 0; streams < 2; streams++) {
        Str text = {0};
        str_printf(&text, body, streams ? "true" : "false");
        HttpAnswer answer = ask("/v1/completions", str_text(&text));
        if (streams) {
            const char *last = strstr(str_text(&answer.body), "data: {\"error\"");
            assert_non_null(last);
            check_contains(last, "\"code\": \"timeout\"");
            http_answer_release(&answer);
        } else {
            check_error(answer, 503, "timeout", NULL);
        }
        str_release(&text);
    }
    wait_for_metric("tune_sequences_running", 0);
    stop_server();
}

/* ---- scores, texts and vectors ---- */

TEST(echo_has_the_scores_of_tune_score) {
    Ids ids = {0};
    double want[32];
    check_ok(encode_prompt(tokenizer, "12+34=46", 8, &ids));
    assert_true(ids.n <= COUNT_OF(want));
    check_ok(score_rows(model, &(ScoreRow){ids.data, ids.n, want}, 1, NULL, NULL));
    start_usual();
    for (int n_top = 0; n_top <= 3; n_top += 3)
        for (int more = 0; more < 2; more++) {
            Str body = {0};
            str_printf(&body, "{\"prompt\": \"12+34=46\", \"echo\": true, \"logprobs\": %d, \"max_tokens\": %d, \"temperature\": 0}", n_top, more);
            HttpAnswer answer = ask("/v1/completions", str_text(&body));
            assert_int_equal(answer.status, 200);
            const json_t *all = json_object_get(choice_at(&answer, 0), "logprobs"), *logprobs = json_object_get(all, "token_logprobs"),
                         *tops = json_object_get(all, "top_logprobs");
            assert_int_equal(json_array_size(logprobs), ids.n + (size_t)more);
            assert_true(json_is_null(json_array_get(logprobs, 0)) && json_is_null(json_array_get(tops, 0)));
            check_contains(json_string_value(json_object_get(choice_at(&answer, 0), "text")), "12+34=46");
            for (size_t t = 1; t < ids.n; t++) assert_true(json_number_value(json_array_get(logprobs, t)) == want[t]);
            for (size_t t = 1; t < ids.n && n_top > 0; t++) { /* the likeliest of them is the token itself, or likelier */
                const char *key;
                json_t *value;
                double best = -HUGE_VAL;
                json_object_foreach(json_array_get(tops, t), key, value) best = MAX(best, json_number_value(value));
                assert_true(best >= want[t]);
                assert_in_range(json_object_size(json_array_get(tops, t)), 1, n_top + 1);
            }
            http_answer_release(&answer);
            str_release(&body);
        }
    stop_server();
    ids_release(&ids);
}

TEST(texts_have_the_scores_of_tune_score) {
    static const int32_t given[] = {5, 6, 7};
    Ids ids = {0};
    double want[2][32];
    check_ok(encode_prompt(tokenizer, "12+34=46", 8, &ids));
    assert_true(ids.n <= COUNT_OF(want[0]));
    check_ok(score_rows(model, (ScoreRow[]){{ids.data, ids.n, want[0]}, {given, COUNT_OF(given), want[1]}}, 2, NULL, NULL));
    start_usual();
    HttpAnswer answer = ask("/score", "{\"input\": [\"12+34=46\", [5, 6, 7]]}");
    assert_int_equal(answer.status, 200);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(json_object_get(answer.json, "data"), i), *logprobs = json_object_get(row, "logprobs");
        size_t n = i ? COUNT_OF(given) : ids.n;
        double sum = 0;
        assert_int_equal(json_array_size(logprobs), n);
        assert_true(json_is_null(json_array_get(logprobs, 0)));
        for (size_t t = 0; t < n; t++)
            assert_int_equal(json_integer_value(json_array_get(json_object_get(row, "ids"), t)), i ? given[t] : ids.data[t]);
        for (size_t t = 1; t < n; t++) {
            assert_true(json_number_value(json_array_get(logprobs, t)) == want[i][t]);
            sum += want[i][t];
        }
        assert_true(json_number_value(json_object_get(row, "sum")) == sum);
    }
    assert_int_equal(json_integer_value(json_object_get(json_object_get(answer.json, "usage"), "prompt_tokens")), ids.n + COUNT_OF(given));
    http_answer_release(&answer);
    check_error(ask("/v1/score", "{\"input\": [[]]}"), 400, "context_length_exceeded", "input");
    check_error(ask("/v1/score", "{\"input\": [1.5]}"), 400, "invalid_type", "input");
    stop_server();
    ids_release(&ids);
}

TEST(the_likeliest_tokens_are_those_of_all_logits) {
    enum { N_TOP = 4 };
    Ids ids = {0};
    double logprobs[32], want[32];
    TokenLogprob top[32 * N_TOP];
    while (ids.n < 30) ids_push(&ids, 5 + (int32_t)ids.n); /* more than are computed at a time */
    ScoreRow row = {ids.data, ids.n, logprobs};
    check_ok(score_top(model, &row, N_TOP, top));
    check_ok(score_rows(model, &(ScoreRow){ids.data, ids.n, want}, 1, NULL, NULL));
    assert_true(isnan(logprobs[0]) && top[0].id == -1);
    for (size_t t = 1; t < ids.n; t++) {
        assert_true(logprobs[t] == want[t]);
        for (int k = 1; k < N_TOP; k++) assert_true(top[t * N_TOP + k].logprob <= top[t * N_TOP + k - 1].logprob);
        for (int k = 0; k < N_TOP; k++)
            if (top[t * N_TOP + k].id == ids.data[t]) assert_true(top[t * N_TOP + k].logprob == want[t]);
        assert_true(top[t * N_TOP].logprob >= want[t]);
    }
    ids_release(&ids);
}

TEST(texts_become_tokens_and_vectors) {
    start_usual();
    HttpAnswer answer = ask("/tokenize", "{\"prompt\": \"12+34\"}");
    json_t *tokens = json_incref(json_object_get(answer.json, "tokens"));
    assert_int_equal(json_integer_value(json_object_get(answer.json, "count")), json_array_size(tokens));
    http_answer_release(&answer);
    answer = http_ask(server_port(server), "GET", "/tokenizer_info", "", "");
    assert_string_equal(json_string_value(json_object_get(answer.json, "eos_token")), "<eos>");
    check_contains(json_string_value(json_object_get(answer.json, "chat_template")), "<|im_start|>");
    http_answer_release(&answer);
    char *text = json_dumps(tokens, 0);
    Str body = {0};
    str_printf(&body, "{\"tokens\": %s}", text);
    answer = ask("/detokenize", str_text(&body));
    check_contains(json_string_value(json_object_get(answer.json, "prompt")), "12+34");
    http_answer_release(&answer);
    answer = ask("/apply-template", "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}");
    assert_string_equal(json_string_value(json_object_get(answer.json, "prompt")), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    http_answer_release(&answer);
    str_clear(&body);
    str_printf(&body, "{\"input\": [\"12+34\", %s]}", text);
    answer = ask("/v1/embeddings", str_text(&body));
    const json_t *data = json_object_get(answer.json, "data"), *first = json_object_get(json_array_get(data, 0), "embedding");
    double sum = 0;
    assert_int_equal(json_array_size(first), model->config.hidden_size);
    assert_true(json_equal(first, json_object_get(json_array_get(data, 1), "embedding")));
    for (size_t i = 0; i < json_array_size(first); i++)
        sum += json_number_value(json_array_get(first, i)) * json_number_value(json_array_get(first, i));
    check_close(sum, 1, 1e-5); /* numbers are f32 */
    http_answer_release(&answer);
    answer = ask("/v1/embeddings", "{\"input\": \"12+34\", \"encoding_format\": \"base64\", \"dimensions\": 2}");
    assert_int_equal(json_string_length(json_object_get(json_array_get(json_object_get(answer.json, "data"), 0), "embedding")), 12); /* 8 bytes */
    http_answer_release(&answer);
    stop_server();
    str_release(&body);
    free(text);
    json_decref(tokens);
}

/* ---- adapters ---- */

/* Larger than trained ones, so that it changes what is said. */
static Model *make_adapter(const char *dir, uint64_t seed) {
    Model *adapter;
    check_ok(model_share_weights(model, &adapter));
    check_ok(model_attach_lora(adapter, &(LoraConfig){.rank = 4, .alpha = 8}, seed));
    for (size_t i = 0; i < adapter->n_linears; i++) {
        if (!adapter->linears[i]->lora) continue;
        Tensor *b = adapter->linears[i]->lora->b;
        for (int64_t k = 0; k < tensor_count(b); k++) tensor_set(b, k, rng_uniform(rng_key(seed, RNG_TEST, i), (uint64_t)k) - 0.5);
    }
    check_ok(adapter_save(adapter, dir, model_dir));
    model_free(adapter);
    check_ok(model_share_weights(model, &adapter));
    check_ok(adapter_load(adapter, dir, false));
    return adapter;
}

static int load_status(const char *name, const char *path, bool replace) {
    Str body = {0};
    str_printf(&body, "{\"lora_name\": \"%s\", \"lora_path\": \"%s\", \"load_inplace\": %s}", name, path, replace ? "true" : "false");
    HttpAnswer answer = ask("/v1/load_lora_adapter", str_text(&body));
    int status = answer.status;
    http_answer_release(&answer);
    str_release(&body);
    return status;
}

/* Kernels belong to one thread at a time, so what the server must answer is computed while it does nothing. */
static void want_of(const Model *with, Kept *want) {
    Ids ids = {0};
    check_ok(encode_prompt(tokenizer, "12+34=", 6, &ids));
    generate_here(with, &ids, 7, 1.3, 24, 2, want);
    ids_release(&ids);
}

static void check_adapter(const char *name, const Kept *want) {
    Str body = {0};
    str_printf(&body, "{\"model\": \"%s\", %s", name, strstr(completion_body, "\"prompt\""));
    HttpAnswer answer = ask("/v1/completions", str_text(&body));
    check_completion(&answer, want);
    http_answer_release(&answer);
    str_release(&body);
}

/* An answer to the usual question with more fields. */
static void check_with(const char *more, const Kept *want) {
    Str body = {0};
    str_printf(&body, "{%s, %s", more, strstr(completion_body, "\"prompt\""));
    HttpAnswer answer = ask("/v1/completions", str_text(&body));
    check_completion(&answer, want);
    http_answer_release(&answer);
    str_release(&body);
}

/* llama.cpp's way: adapter 0 has the answers `whole`. */
static void check_scales(const Kept *whole, const Kept *half, const Kept *base) {
    check_with("\"lora\": [{\"id\": 0, \"scale\": 1}]", whole);
    check_with("\"lora\": [{\"id\": 0, \"scale\": 0.5}, {\"id\": 1, \"scale\": 0}]", half);
    check_with("\"lora\": []", base);
    check_error(ask("/v1/completions", "{\"prompt\": \"a\", \"lora\": [{\"id\": 7, \"scale\": 1}]}"), 400, "model_not_found", "lora");
    check_error(ask("/v1/completions", "{\"prompt\": \"a\", \"lora\": [{\"id\": 0, \"scale\": 1}, {\"id\": 1, \"scale\": 1}]}"), 400,
                "unsupported_value", "lora");
    check_error(ask("/lora-adapters", "[{\"id\": 0}]"), 400, "invalid_value", NULL);
    HttpAnswer answer = ask("/lora-adapters", "[{\"id\": 0, \"scale\": 0.5}]");
    assert_int_equal(answer.status, 200);
    assert_true(json_number_value(json_object_get(json_array_get(answer.json, 0), "scale")) == 0.5);
    http_answer_release(&answer);
    check_adapter("poet", half);
    answer = ask("/lora-adapters", "[{\"id\": 0, \"scale\": 1}]");
    http_answer_release(&answer);
    check_adapter("poet", whole);
}

TEST(adapters_are_models_that_come_and_go) {
    char first[512], second[512];
    snprintf(first, sizeof first, "%s", temp_file(test_folder, "first"));
    snprintf(second, sizeof second, "%s", temp_file(test_folder, "second"));
    Model *a = make_adapter(first, 1), *b = make_adapter(second, 2);
    Kept of_a, of_b, of_base, of_half;
    want_of(a, &of_a);
    want_of(b, &of_b);
    want_of(model, &of_base);
    for (size_t i = 0; i < b->n_linears; i++)
        if (b->linears[i]->lora) b->linears[i]->lora->scale /= 2;
    want_of(b, &of_half);
    ServeConfig config = usual();
    pthread_t others[4];
    int numbers[4];
    config.adapter_dir = test_folder;
    start_with(&config);
    assert_int_equal(load_status("poet", "first", false), 200);
    assert_int_equal(load_status("poet", "second", false), 400);
    assert_int_equal(load_status("prose", second, false), 200);
    assert_int_equal(load_status("tiny", "first", true), 400); /* the base's name */
    assert_int_equal(load_status("x", "../first", false), 400);
    assert_int_equal(load_status("x", "first/../../../etc", false), 400);
    assert_int_equal(load_status("x", "/etc", false), 400);
    assert_int_equal(load_status("x y", "first", false), 400);
    for (int i = 0; i < 4; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&others[i], NULL, disturb, &numbers[i]), 0);
    }
    check_adapter("poet", &of_a);
    check_adapter("prose", &of_b);
    check_adapter("tiny", &of_base);
    assert_int_equal(load_status("poet", "second", true), 200);
    check_adapter("poet", &of_b);
    for (int i = 0; i < 4; i++) pthread_join(others[i], NULL);
    check_scales(&of_b, &of_half, &of_base);
    HttpAnswer answer = http_ask(server_port(server), "GET", "/v1/models", "", "");
    assert_int_equal(json_array_size(json_object_get(answer.json, "data")), 3);
    http_answer_release(&answer);
    answer = ask("/v1/unload_lora_adapter", "{\"lora_name\": \"poet\"}");
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
    check_error(ask("/v1/completions", "{\"model\": \"poet\", \"prompt\": \"a\"}"), 404, "model_not_found", "model");
    check_error(ask("/v1/unload_lora_adapter", "{\"lora_name\": \"tiny\"}"), 404, "model_not_found", "lora_name");
    wait_for_metric("tune_adapters_loaded", 1);
    stop_server();
    kept_release(&of_a);
    kept_release(&of_b);
    kept_release(&of_base);
    kept_release(&of_half);
    model_free(a);
    model_free(b);
}

/* ---- the cache ---- */

/* The example of the textbooks: a prompt of 4 tokens that may get 1,020 more reserves 1,024 places in one piece, of which 4 are used. */
TEST(pages_waste_less_than_whole_requests) {
    const int32_t ids[4] = {5, 6, 7, 8};
    Generator *generator;
    GenerateHandle handle;
    Kept kept = {0};
    GenerateRequest request = {.prompt = {ids, 4, 0},
                               .n_samples = 1,
                               .sample = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
                               .max_new_tokens = 1020,
                               .ignore_eos = true,
                               .on_done = NULL,
                               .context = &kept};
    check_ok(generator_open(model, tokenizer, &(GeneratorConfig){.max_sequences = 1, .max_pages = 33}, &generator));
    check_ok(generator_add(generator, &request, &handle));
    check_ok(generator_step(generator));
    GeneratorStats stats = generator_stats(generator);
    assert_int_equal(stats.longest_tokens, 1024);
    assert_int_equal(stats.cached_tokens, 4); /* so a reservation in one piece would waste 1,020 */
    assert_int_equal(stats.used, 1);
    assert_int_equal(stats.lost_tokens, 28);
    assert_true(generator_cancel(generator, handle));
    assert_int_equal(generator_stats(generator).longest_tokens, 0);
    generator_close(generator);
}

TEST(requests_share_the_beginning_of_prompts) {
    Str body = {0};
    start_usual();
    str_append(&body, "{\"max_tokens\": 4, \"prompt\": \"");
    for (int i = 0; i < 100; i++) str_printf(&body, "%d ", i % 10);
    str_append(&body, "\"}");
    for (int i = 0; i < 2; i++) {
        HttpAnswer answer = ask("/v1/completions", str_text(&body));
        assert_int_equal(answer.status, 200);
        http_answer_release(&answer);
    }
    wait_for_metric("tune_prefix_found_tokens_total", 192); /* of 201 tokens: 6 full pages */
    stop_server();
    str_release(&body);
}

/* ---- bad clients ---- */

static int send_text(const char *text) {
    int fd = http_connect(server_port(server));
    assert_true(http_send(fd, text, strlen(text)));
    return fd;
}

/* Reads until the other end closes or `part` has come `times` times. */
static void check_receives(int fd, const char *part, int times) {
    Str text = {0};
    char bytes[4096];
    for (int found = 0; found < times;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0) break;
        str_append_n(&text, bytes, (size_t)n);
        found = 0;
        for (const char *at = str_text(&text); (at = strstr(at, part)); at++) found++;
    }
    int found = 0;
    for (const char *at = str_text(&text); (at = strstr(at, part)); at++) found++;
    if (found != times) fail_msg("'%s' came %d times, not %d, in: %s", part, found, times, str_text(&text));
    str_release(&text);
}

static void check_lives(void) {
    HttpAnswer answer = ask("/v1/completions", "{\"prompt\": \"1\", \"max_tokens\": 2}");
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
}

TEST(two_requests_in_one_piece_get_two_answers) {
    static const char get[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char twice[2 * sizeof get];
    start_usual();
    snprintf(twice, sizeof twice, "%s%s", get, get);
    int fd = send_text(twice);
    check_receives(fd, "HTTP/1.1 200", 2);
    close(fd);
    fd = send_text("GET /health HTTP/1.0\r\n\r\n");
    check_receives(fd, "200 OK", 1);
    close(fd);
    stop_server();
}

TEST(a_half_closed_connection_counts_as_closed) {
    start_usual();
    int fd = send_text("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    shutdown(fd, SHUT_WR);
    check_receives(fd, "HTTP/1.1 200", 1); /* answered at once, so nobody looks */
    close(fd);
    fd = send_text("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 66\r\n\r\n"
                   "{\"prompt\": \"1\", \"max_tokens\": 500, \"n\": 64, \"ignore_eos\": true   }");
    wait_for_metric("tune_requests_running", 1);
    shutdown(fd, SHUT_WR);
    wait_for_metric("tune_cancelled_total", 1);
    close(fd);
    fd = send_text("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70\r\n\r\n{\"prom");
    close(fd);
    check_lives();
    stop_server();
}

TEST(too_much_is_refused) {
    size_t n = (size_t)20 << 20;
    Str text = {0};
    char *zeros = calloc(1, n);
    ServeConfig config = usual();
    config.max_body = (size_t)4 << 20; /* of a refused body, 8 times as much is read */
    start_with(&config);
    str_printf(&text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", n);
    int fd = send_text(str_text(&text));
    (void)http_send(fd, zeros, n);
    check_receives(fd, "HTTP/1.1 413", 1);
    close(fd);
    str_clear(&text);
    str_printf(&text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n", n);
    fd = send_text(str_text(&text));
    (void)http_send(fd, zeros, n);
    (void)http_send(fd, "\r\n0\r\n\r\n", 7);
    check_receives(fd, "HTTP/1.1 413", 1);
    close(fd);
    str_clear(&text);
    str_append(&text, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    for (int i = 0; i < 9000; i++) str_append(&text, "01234567");
    fd = http_connect(server_port(server));
    (void)http_send(fd, text.data, text.len); /* the server may close before all was sent */
    close(fd);
    fd = send_text("nonsense\r\n\r\n");
    close(fd);
    check_lives();
    str_release(&text);
    free(zeros);
    stop_server();
}

/* A client that reads a little at a time gets its whole stream, at the speed at which it reads. */
TEST(a_slow_reader_gets_all) {
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 300, \"n\": 4, \"ignore_eos\": true, \"stream\": true, \"seed\": 3}";
    char text[512], bytes[2048];
    int small = 4096;
    Str slow = {0};
    start_usual();
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    int fd = http_connect(server_port(server));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_true(http_send(fd, text, strlen(text)));
    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0; usleep(300)) {
        str_append_n(&slow, bytes, (size_t)n);
        if (slow.len < sizeof bytes) check_lives();
    }
    close(fd);
    check_contains(str_text(&slow), "data: [DONE]");
    size_t finished = 0;
    for (const char *at = str_text(&slow); (at = strstr(at, "\"finish_reason\": \"length\"")); at++) finished++;
    assert_int_equal(finished, 4);
    str_release(&slow);
    stop_server();
}

/* Its answers fill the buffers of the system and then those of the server; others do not notice. */
TEST(a_client_that_never_reads_harms_nobody) {
    enum { CLIENTS = ALL_OR_FEW(4, 1) };
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 400, \"n\": 8, \"ignore_eos\": true, \"stream\": true, \"logprobs\": 5}";
    char text[512];
    int fds[CLIENTS];
    start_usual();
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    for (int i = 0; i < CLIENTS; i++) fds[i] = send_text(text);
    check_lives();
    for (int i = 0; i < CLIENTS; i++) close(fds[i]);
    check_lives();
    stop_server();
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
    HttpAnswer answer = ask("/v1/chat/completions", str_text(&body));
    str_release(&body);
    return answer;
}

static const json_t *message_of(const HttpAnswer *answer) { return json_object_get(choice_at(answer, 0), "message"); }

TEST(answers_have_the_form_that_is_asked_for) {
    static const char schema[] =
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {\"type\": \"object\", "
        "\"properties\": {\"word\": {\"enum\": [\"yes\", \"no\"]}, \"count\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 9}}, "
        "\"required\": [\"word\", \"count\"], \"additionalProperties\": false}}}";
    start_usual();
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
    answer = ask("/v1/completions", "{\"prompt\": \"1\", \"max_tokens\": 50, \"guided_choice\": [\"a.b\", \"(c)\"]}");
    text = json_string_value(json_object_get(choice_at(&answer, 0), "text"));
    assert_true(!strcmp(text, "a.b") || !strcmp(text, "(c)"));
    http_answer_release(&answer);
    check_error(ask_chat("\"guided_regex\": \"(a\""), 400, "unsupported_schema", "guided_regex");
    check_error(ask_chat("\"guided_regex\": \"a\", \"guided_json\": {\"type\": \"null\"}"), 400, "unsupported_value", "guided_json");
    check_error(ask_chat("\"guided_choice\": [1]"), 400, "invalid_value", "guided_choice");
    check_error(ask_chat("\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"object\", \"not\": {}}}}"), 400,
                "unsupported_schema", "response_format");
    check_error(ask_chat("\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"string\", "
                         "\"pattern\": \"(a|b){5000}(c{1000}){1000}\"}}}"),
                400, "unsupported_schema", "response_format");
    check_error(ask_chat("\"response_format\": {\"type\": \"xml\"}"), 400, "invalid_value", "response_format");
    check_error(ask_chat("\"tool_choice\": \"required\""), 400, "invalid_value", "tool_choice");
    check_error(ask_chat("\"logit_bias\": {\"x\": 1}"), 400, "invalid_value", "logit_bias");
    stop_server();
}

/* Memory is kept for so many forms of answers; one that nobody uses makes room. */
TEST(forms_of_answers_are_bounded) {
    static const char form[] = "\"max_tokens\": 400, \"n\": 8, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": "
                               "{\"type\": \"array\", \"items\": {\"const\": \"aaaaaaaaaaaaaaaa\"}, \"minItems\": 200}}}",
                      other[] = "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"boolean\"}}}";
    ServeConfig config = usual();
    Str text = {0};
    config.max_schemas = 1;
    start_with(&config);
    size_t len = sizeof form - 1 + strlen("{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], }");
    str_printf(&text, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", len);
    str_printf(&text, "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], %s}", form);
    int fd = send_text(str_text(&text));
    wait_for_metric("tune_requests_running", 1);
    HttpAnswer answer = ask_chat(other);
    check_contains(str_text(&answer.head), "Retry-After: ");
    check_error(answer, 429, "schemas_full", "response_format");
    close(fd);
    wait_for_metric("tune_cancelled_total", 1);
    answer = ask_chat(other);
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
    str_release(&text);
    stop_server();
}

TEST(biases_and_the_likeliest_tokens) {
    start_usual();
    HttpAnswer answer = ask("/v1/completions", "{\"prompt\": \"1\", \"temperature\": 0, \"max_tokens\": 3, \"logit_bias\": {\"66\": 100}}");
    assert_string_equal(json_string_value(json_object_get(choice_at(&answer, 0), "text")), "aaa");
    http_answer_release(&answer);
    int32_t half = -1; /* the byte C3, which begins a character */
    for (int32_t id = 0; id < model->config.vocab_size && half < 0; id++) {
        Str bytes = {0};
        if (tokenizer_token(tokenizer, id)) tokenizer_token_bytes(tokenizer, id, &bytes);
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
    stop_server();
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
        HttpAnswer answer = ask("/v1/messages", str_text(&body));
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
        answer = ask("/v1/responses", str_text(&body));
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
    ServeConfig config = usual();
    Chat *with_tools;
    Str more = {0};
    check_ok(chat_open(model_dir, NULL, temp_text(test_folder, "tools.jinja", tool_template), NULL, tokenizer, &with_tools));
    config.chat = with_tools;
    config.max_context = 1024;
    start_with(&config);
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
    check_error(ask_chat(str_text(&more)), 400, "unsupported_schema", "tools");
    answer = ask("/apply-template", "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}], \"tools\": [{\"a\": 1}]}");
    check_contains(json_string_value(json_object_get(answer.json, "prompt")), "<tools>{\"a\": 1}</tools>");
    http_answer_release(&answer);
    stop_server();
    str_release(&more);
    chat_close(with_tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_that_of_generate_alone_and_in_company),
        cmocka_unit_test(quantised_models_are_served),
        cmocka_unit_test(a_chat_is_that_of_generate_as_a_whole_and_as_a_stream),
        cmocka_unit_test(messages_and_responses_are_those_of_a_chat),
        cmocka_unit_test(errors_name_what_is_wrong),
        cmocka_unit_test(keys_are_asked_for),
        cmocka_unit_test(a_port_has_one_server),
        cmocka_unit_test(the_end_waits_for_answers),
        cmocka_unit_test(a_client_that_goes_is_dropped),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(a_request_has_a_limited_time),
        cmocka_unit_test(echo_has_the_scores_of_tune_score),
        cmocka_unit_test(texts_have_the_scores_of_tune_score),
        cmocka_unit_test(the_likeliest_tokens_are_those_of_all_logits),
        cmocka_unit_test(texts_become_tokens_and_vectors),
        cmocka_unit_test(adapters_are_models_that_come_and_go),
        cmocka_unit_test(pages_waste_less_than_whole_requests),
        cmocka_unit_test(requests_share_the_beginning_of_prompts),
        cmocka_unit_test(two_requests_in_one_piece_get_two_answers),
        cmocka_unit_test(a_half_closed_connection_counts_as_closed),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(a_slow_reader_gets_all),
        cmocka_unit_test(a_client_that_never_reads_harms_nobody),
        cmocka_unit_test(answers_have_the_form_that_is_asked_for),
        cmocka_unit_test(forms_of_answers_are_bounded),
        cmocka_unit_test(biases_and_the_likeliest_tokens),
        cmocka_unit_test(calls_of_tools_are_taken_out),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
