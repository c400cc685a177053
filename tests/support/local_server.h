/* SPDX-License-Identifier: Apache-2.0 */
/* A server for tests: a process of its own on 127.0.0.1, which answers one query after the other and ends with the test, or by itself after a while.
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

/* A POST: its path from '/' on without what follows a '?', its header fields, and its body (NULL when that is no JSON). */
typedef struct Query {
    char path[128], head[4096];
    json_t *body;
} Query;
typedef void ServeQuery(int fd, Query *query);

/* Its port, 0 when there can't be one; after so many seconds it ends in any case. One at a time. */
int local_server_start(ServeQuery *serve, unsigned seconds);
bool local_server_stop(void); /* false: it was not there any more to be ended */

/* For `serve`: an answer ("200 OK"; further fields end with \r\n each), and how often this path was asked before. */
void reply(int fd, const char *status, const char *fields, const char *body);
int times_before(const char *path);

#endif
