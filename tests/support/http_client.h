/* SPDX-License-Identifier: Apache-2.0 */
/* A client of HTTP servers on this machine, for tests: one request on one connection, whose parts the test may send as it likes.
 *
 *     HttpAnswer answer = http_ask(port, "POST", "/v1/completions", "", "{\"prompt\": \"a\"}");
 *     assert_int_equal(answer.status, 200);
 *     http_answer_release(&answer);
 */
#ifndef TUNE_HTTP_CLIENT_H
#define TUNE_HTTP_CLIENT_H

#include "lib/base/json.h"

typedef struct HttpAnswer {
    int status; /* 0: the connection ended before */
    Str head, body;
    json_t *json; /* the body, if it is JSON */
} HttpAnswer;
int http_connect(int port);                                    /* a socket, which the caller closes; fails the test without one */
bool http_send(int fd, const char *bytes, size_t n);           /* false: the other end has closed */
void http_receive(int fd, HttpAnswer *answer, double seconds); /* reads to the end of one answer, or for so long; chunks are joined */
/* A whole exchange. fields: header fields, each with \r\n. */
HttpAnswer http_ask(int port, const char *method, const char *path, const char *fields, const char *body);
void http_answer_release(HttpAnswer *answer);

#endif
