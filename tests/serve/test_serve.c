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
    snprintf(audit, sizeof audit, "%s", temp_file(test_folder, "audit.jsonl"));
    config.audit = audit;
    start_with(&config);
    int port = server_port(server);
    check_error(http_ask(port, "GET", "/v1/models", "", ""), 401, "invalid_api_key", NULL);
    check_error(http_ask(port, "GET", "/v1/models", "Authorization: Bearer key-of-an\r\n", ""), 401, "invalid_api_key", NULL);
    check_error(http_ask(port, "GET", "/v1/models", "Authorization: Bearer key-of-ann2\r\n", ""), 401, "invalid_api_key", NULL);
    check_error(http_ask(port, "POST", "/v1/completions", "Authorization: Bearer key-of-bob\r\n", "{\"prompt\": \"a\", \"tpo_p\": 1}"), 400,
                "unknown_parameter", "tpo_p");
    HttpAnswer answer = http_ask(port, "POST", "/v1/completions", "Authorization: Bearer key-of-bob\r\n",
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_that_of_generate_alone_and_in_company),
        cmocka_unit_test(a_chat_is_that_of_generate_as_a_whole_and_as_a_stream),
        cmocka_unit_test(errors_name_what_is_wrong),
        cmocka_unit_test(keys_are_asked_for),
        cmocka_unit_test(a_port_has_one_server),
        cmocka_unit_test(the_end_waits_for_answers),
        cmocka_unit_test(a_client_that_goes_is_dropped),
        cmocka_unit_test(a_full_queue_refuses),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
