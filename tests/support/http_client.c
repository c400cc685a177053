/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/system.h"
#include "tests/support/check.h"

int http_connect(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

bool http_send(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Joins the chunks of text[from..]; false: the last one has not come. */
static bool join_chunks(const Str *text, size_t from, Str *body) {
    str_clear(body);
    while (from < text->len) {
        char *end;
        unsigned long n = strtoul(text->data + from, &end, 16);
        size_t at = (size_t)(end - text->data) + 2;
        if (at > text->len || at + n + 2 > text->len) return false;
        if (n == 0) return true;
        str_append_n(body, text->data + at, n);
        from = at + n + 2;
    }
    return false;
}

/* Whether the text has a whole answer; takes it apart as far as it goes. */
static bool take_apart(const Str *text, HttpAnswer *answer) {
    const char *end = strstr(str_text(text), "\r\n\r\n"), *line;
    if (!end) return false;
    size_t from = (size_t)(end - text->data) + 4;
    str_clear(&answer->head);
    str_append_n(&answer->head, text->data, from);
    answer->status = atoi(answer->head.data + strlen("HTTP/1.1 "));
    if (strcasestr(answer->head.data, "transfer-encoding: chunked")) return join_chunks(text, from, &answer->body);
    str_clear(&answer->body);
    str_append_n(&answer->body, text->data + from, text->len - from);
    line = strcasestr(answer->head.data, "content-length: ");
    return line && answer->body.len >= strtoul(line + strlen("content-length: "), NULL, 10);
}

void http_receive(int fd, HttpAnswer *answer, double seconds) {
    Str text = {0};
    double until = clock_seconds() + seconds;
    while (!take_apart(&text, answer)) {
        char part[4096];
        double left = until - clock_seconds();
        struct pollfd look = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&look, 1, (int)(left * 1000) + 1) <= 0) break;
        ssize_t n = recv(fd, part, sizeof part, 0);
        if (n <= 0) break;
        str_append_n(&text, part, (size_t)n);
    }
    str_release(&text);
    answer->json = json_of_text(str_text(&answer->body), answer->body.len, 0);
}

HttpAnswer http_ask(int port, const char *method, const char *path, const char *fields, const char *body) {
    HttpAnswer answer = {0};
    Str text = {0};
    int fd = http_connect(port);
    str_printf(&text, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n", method, path, port, strlen(body),
               fields);
    str_append(&text, body);
    (void)http_send(fd, text.data, text.len);
    http_receive(fd, &answer, 60);
    str_release(&text);
    close(fd);
    return answer;
}

void http_answer_release(HttpAnswer *answer) {
    str_release(&answer->head);
    str_release(&answer->body);
    json_decref(answer->json);
    *answer = (HttpAnswer){0};
}
