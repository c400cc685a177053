/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server for tests: a child process on 127.0.0.1 that answers one query at a time. It ends with the test, or by itself after a time limit.
 *
 *     static void serve(int fd, Query *query) {
 *         if (strcmp(query->path, "/shaky") == 0 && times_before(query->path) % 3 == 0) reply(fd, "500 Internal Server Error", "", "oops");
 *         else reply(fd, "200 OK", "", "{\"reward\": 1}");
 *     }
 *     int port = local_server_start(serve, 120);
 *     ...
 *     local_server_stop();
 */
#ifndef TUNE_LOCAL_SERVER_H
#define TUNE_LOCAL_SERVER_H

#include "lib/base/json.h"

/* A POST request: its path without the query string, its header fields, and its body (NULL if that is not JSON). */
typedef struct Query {
    char path[128], head[4096];
    json_t *body;
} Query;
typedef void ServeQuery(int fd, Query *query);

/* Starts the server, which ends after `seconds` in any case. Only one at a time. Returns its port, 0 on failure. */
int local_server_start(ServeQuery *serve, unsigned seconds);
bool local_server_stop(void); /* false if it had ended before */

/* For `serve`: sends an answer (status such as "200 OK"; each extra header field ends with \r\n); the number of earlier queries of this path. */
void reply(int fd, const char *status, const char *fields, const char *body);
int times_before(const char *path);

#endif
