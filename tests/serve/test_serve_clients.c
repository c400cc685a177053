/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that go, wait, send nonsense or too much, or do not read harm nobody; limits of time and of the queue; the end of a server. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/tiny_server.h"

/* ---- the end ---- */

static void *ask_long(void *context) {
    HttpAnswer *answer = context;
    *answer = tiny_ask("/v1/completions", "{\"prompt\": \"1\", \"max_tokens\": 200, \"ignore_eos\": true, \"seed\": 1}");
    return NULL;
}

TEST(the_end_waits_for_answers) {
    pthread_t client;
    HttpAnswer answer;
    tiny_start_usual();
    assert_int_equal(pthread_create(&client, NULL, ask_long, &answer), 0);
    tiny_wait_for("tune_requests_running", 1);
    server_stop(tiny_server);
    pthread_join(client, NULL);
    assert_int_equal(answer.status, 200);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(answer.json, "usage"), "completion_tokens")), 200);
    http_answer_release(&answer);
    tiny_stop();
}

TEST(a_full_queue_refuses) {
    pthread_t clients[3];
    HttpAnswer answers[3];
    ServeConfig config = tiny_config();
    int refused = 0;
    config.max_sequences = 1;
    config.max_queue = 1;
    tiny_start(&config);
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
    tiny_stop();
}

TEST(a_request_has_a_limited_time) {
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 500, \"n\": 8, \"ignore_eos\": true, \"stream\": %s}";
    ServeConfig config = tiny_config();
    config.max_seconds = 0.02;
    tiny_start(&config);
    for (int streams = 0; streams < 2; streams++) {
        Str text = {0};
        str_printf(&text, body, streams ? "true" : "false");
        HttpAnswer answer = tiny_ask("/v1/completions", str_text(&text));
        if (streams) {
            const char *last = strstr(str_text(&answer.body), "data: {\"error\"");
            assert_non_null(last);
            check_contains(last, "\"code\": \"timeout\"");
            http_answer_release(&answer);
        } else {
            check_refusal(answer, 503, "timeout", NULL);
        }
        str_release(&text);
    }
    tiny_wait_for("tune_sequences_running", 0);
    tiny_stop();
}

TEST(a_client_that_goes_is_dropped) {
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 500, \"n\": 8, \"ignore_eos\": true, \"stream\": %s}";
    tiny_start_usual();
    for (int streams = 0; streams < 2; streams++) {
        Str text = {0}, json = {0};
        int fd = http_connect(server_port(tiny_server));
        str_printf(&json, body, streams ? "true" : "false");
        str_printf(&text, "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %zu\r\n\r\n%s", json.len, str_text(&json));
        assert_true(http_send(fd, text.data, text.len));
        tiny_wait_for("tune_requests_running", 1);
        close(fd);
        tiny_wait_for("tune_cancelled_total", streams + 1);
        tiny_wait_for("tune_sequences_running", 0);
        str_release(&text);
        str_release(&json);
    }
    tiny_stop();
}

/* ---- bad clients ---- */

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
    HttpAnswer answer = tiny_ask("/v1/completions", "{\"prompt\": \"1\", \"max_tokens\": 2}");
    assert_int_equal(answer.status, 200);
    http_answer_release(&answer);
}

TEST(two_requests_in_one_piece_get_two_answers) {
    static const char get[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char twice[2 * sizeof get];
    tiny_start_usual();
    snprintf(twice, sizeof twice, "%s%s", get, get);
    int fd = tiny_send(twice);
    check_receives(fd, "HTTP/1.1 200", 2);
    close(fd);
    fd = tiny_send("GET /health HTTP/1.0\r\n\r\n");
    check_receives(fd, "200 OK", 1);
    close(fd);
    tiny_stop();
}

TEST(a_half_closed_connection_counts_as_closed) {
    tiny_start_usual();
    int fd = tiny_send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    shutdown(fd, SHUT_WR);
    check_receives(fd, "HTTP/1.1 200", 1); /* answered at once, so nobody looks */
    close(fd);
    fd = tiny_send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 66\r\n\r\n"
                   "{\"prompt\": \"1\", \"max_tokens\": 500, \"n\": 64, \"ignore_eos\": true   }");
    tiny_wait_for("tune_requests_running", 1);
    shutdown(fd, SHUT_WR);
    tiny_wait_for("tune_cancelled_total", 1);
    close(fd);
    fd = tiny_send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70\r\n\r\n{\"prom");
    close(fd);
    check_lives();
    tiny_stop();
}

TEST(too_much_is_refused) {
    size_t n = (size_t)20 << 20;
    Str text = {0};
    char *zeros = calloc(1, n);
    ServeConfig config = tiny_config();
    config.max_body = (size_t)4 << 20; /* of a refused body, 8 times as much is read */
    tiny_start(&config);
    str_printf(&text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", n);
    int fd = tiny_send(str_text(&text));
    (void)http_send(fd, zeros, n);
    check_receives(fd, "HTTP/1.1 413", 1);
    close(fd);
    str_clear(&text);
    str_printf(&text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n", n);
    fd = tiny_send(str_text(&text));
    (void)http_send(fd, zeros, n);
    (void)http_send(fd, "\r\n0\r\n\r\n", 7);
    check_receives(fd, "HTTP/1.1 413", 1);
    close(fd);
    str_clear(&text);
    str_append(&text, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
    for (int i = 0; i < 9000; i++) str_append(&text, "01234567");
    fd = http_connect(server_port(tiny_server));
    (void)http_send(fd, text.data, text.len); /* the server may close before all was sent */
    close(fd);
    fd = tiny_send("nonsense\r\n\r\n");
    close(fd);
    check_lives();
    str_release(&text);
    free(zeros);
    tiny_stop();
}

/* A client that reads a little at a time gets its whole stream, at the speed at which it reads. */
TEST(a_slow_reader_gets_all) {
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 300, \"n\": 4, \"ignore_eos\": true, \"stream\": true, \"seed\": 3}";
    char text[512], bytes[2048];
    int small = 4096;
    Str slow = {0};
    tiny_start_usual();
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    int fd = http_connect(server_port(tiny_server));
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
    tiny_stop();
}

/* Its answers fill the buffers of the system and then those of the server; others do not notice. */
TEST(a_client_that_never_reads_harms_nobody) {
    enum { CLIENTS = ALL_OR_FEW(4, 1) };
    static const char body[] = "{\"prompt\": \"1\", \"max_tokens\": 400, \"n\": 8, \"ignore_eos\": true, \"stream\": true, \"logprobs\": 5}";
    char text[512];
    int fds[CLIENTS];
    tiny_start_usual();
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    for (int i = 0; i < CLIENTS; i++) fds[i] = tiny_send(text);
    check_lives();
    for (int i = 0; i < CLIENTS; i++) close(fds[i]);
    check_lives();
    tiny_stop();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_waits_for_answers),
        cmocka_unit_test(a_client_that_goes_is_dropped),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(a_request_has_a_limited_time),
        cmocka_unit_test(two_requests_in_one_piece_get_two_answers),
        cmocka_unit_test(a_half_closed_connection_counts_as_closed),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(a_slow_reader_gets_all),
        cmocka_unit_test(a_client_that_never_reads_harms_nobody),
    };
    return cmocka_run_group_tests(tests, tiny_set_up, tiny_clean_up);
}
