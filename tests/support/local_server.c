/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/local_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static bool read_query(int fd, Query *query) {
    static char text[1 << 18];
    size_t len = 0, body = 0, length = 0;
    while (len + 1 < sizeof text && (body == 0 || len < body + length)) {
        ssize_t got = read(fd, text + len, sizeof text - 1 - len);
        if (got <= 0) return false;
        len += (size_t)got;
        text[len] = '\0';
        char *end = strstr(text, "\r\n\r\n"), *field = strcasestr(text, "content-length:");
        if (body == 0 && end) {
            body = (size_t)(end - text) + 4;
            length = field ? strtoul(field + 15, NULL, 10) : 0;
        }
    }
    snprintf(query->head, sizeof query->head, "%.*s", (int)MIN(body, sizeof query->head - 1), text);
    query->body = json_loadb(text + body, length, 0, NULL);
    bool good = sscanf(text, "POST %127s", query->path) == 1;
    query->path[strcspn(query->path, "?")] = '\0';
    return good;
}

void reply(int fd, const char *status, const char *fields, const char *body) {
    Str text = {0};
    str_printf(&text, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n%s", status, strlen(body),
               fields, body);
    if (write(fd, text.data, text.len) < 0) perror("server");
    str_release(&text);
}

int times_before(const char *path) {
    static struct {
        char path[128];
        int times;
    } seen[64];
    size_t i = 0;
    while (seen[i].path[0] && strcmp(seen[i].path, path) != 0) i++;
    snprintf(seen[i].path, sizeof seen[i].path, "%s", path);
    return seen[i].times++;
}

static void run_server(int listener, ServeQuery *serve, unsigned seconds) {
    alarm(seconds);
    signal(SIGPIPE, SIG_IGN);
    while (true) {
        int fd = accept(listener, NULL, NULL);
        Query query = {0};
        if (fd < 0) continue;
        if (read_query(fd, &query)) serve(fd, &query);
        json_decref(query.body);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
}

static pid_t server;

int local_server_start(ServeQuery *serve, unsigned seconds) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        return 0;
    server = fork();
    if (server == 0) run_server(listener, serve, seconds);
    close(listener);
    return server < 0 ? 0 : ntohs(address.sin_port);
}

bool local_server_stop(void) {
    kill(server, SIGKILL);
    return waitpid(server, NULL, 0) == server;
}
