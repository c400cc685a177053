/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tiny_server.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/system.h"

const char tiny_dir[] = "recipes/demo/model";
Model *tiny_model;
Tokenizer *tiny_tokenizer;
Chat *tiny_chat;

int tiny_set_up(void **state) {
    test_folder_make(state);
    check_ok(model_load(tiny_dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &tiny_model));
    check_ok(tokenizer_load(tiny_dir, &tiny_tokenizer));
    check_ok(chat_open(tiny_dir, NULL, "chatml", NULL, tiny_tokenizer, &tiny_chat));
    return 0;
}

int tiny_clean_up(void **state) {
    chat_close(tiny_chat);
    tokenizer_free(tiny_tokenizer);
    model_free(tiny_model);
    return test_folder_remove(state);
}

Server *tiny_server;
static pthread_t engine;
static Status engine_status;

static void *run_engine(void *context) {
    (void)context;
    engine_status = server_run(tiny_server);
    return NULL;
}

ServeConfig tiny_config(void) {
    return (ServeConfig){.model = tiny_model,
                         .tokenizer = tiny_tokenizer,
                         .chat = tiny_chat,
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

void tiny_start(const ServeConfig *config) {
    check_ok(server_open(config, &tiny_server));
    assert_int_equal(pthread_create(&engine, NULL, run_engine, NULL), 0);
    for (int status = 503; status != 200;) {
        HttpAnswer answer = http_ask(server_port(tiny_server), "GET", "/health", "", "");
        status = answer.status;
        http_answer_release(&answer);
    }
}

void tiny_start_usual(void) {
    ServeConfig config = tiny_config();
    tiny_start(&config);
}

void tiny_stop(void) {
    server_stop(tiny_server);
    pthread_join(engine, NULL);
    assert_int_equal(engine_status, ST_OK);
    server_close(tiny_server);
}

HttpAnswer tiny_ask(const char *path, const char *body) { return http_ask(server_port(tiny_server), "POST", path, "", body); }

void check_refusal(HttpAnswer answer, int status, const char *code, const char *param) {
    const json_t *error = json_object_get(answer.json, "error");
    assert_int_equal(answer.status, status);
    assert_true(json_is_object(error) && json_is_string(json_object_get(error, "message")) && json_is_string(json_object_get(error, "type")));
    const char *its = json_string_value(json_object_get(error, "code")), *names = json_string_value(json_object_get(error, "param"));
    if (code) assert_string_equal(its ? its : "", code);
    if (param) assert_string_equal(names ? names : "", param);
    http_answer_release(&answer);
}

json_t *choice_at(const HttpAnswer *answer, size_t i) { return json_array_get(json_object_get(answer->json, "choices"), i); }

double tiny_metric(const char *name) {
    HttpAnswer answer = http_ask(server_port(tiny_server), "GET", "/metrics", "", "");
    Str line = {0};
    str_printf(&line, "\n%s ", name);
    const char *at = strstr(str_text(&answer.body), str_text(&line));
    double value = at ? strtod(at + line.len, NULL) : -1;
    str_release(&line);
    http_answer_release(&answer);
    return value;
}

void tiny_wait_for(const char *name, double value) {
    double until = clock_seconds() + 30;
    while (tiny_metric(name) != value) {
        if (clock_seconds() > until) fail_msg("%s is %g after 30 s, not %g", name, tiny_metric(name), value);
        usleep(5000);
    }
}

int tiny_send(const char *text) {
    int fd = http_connect(server_port(tiny_server));
    assert_true(http_send(fd, text, strlen(text)));
    return fd;
}
