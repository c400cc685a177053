/* SPDX-License-Identifier: Apache-2.0 */
/* A server on the loopback interface that is a teacher for `tune data synth`. It answers one chat at a time, with a word that depends only on the
 * question.
 *   teacher PORT_FILE    writes its port there; ends with the process that started it */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Reads one request into `text` and returns the beginning of its body; NULL: it ended early. */
static char *read_request(int fd, char *text, size_t size) {
    size_t len = 0;
    while (len + 1 < size) {
        ssize_t got = read(fd, text + len, size - 1 - len);
        if (got <= 0) return NULL;
        text[len += (size_t)got] = '\0';
        char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "content-length:");
        if (body && length && strlen(body + 4) >= strtoul(length + 15, NULL, 10)) return body + 4;
    }
    return NULL;
}

static void answer(int fd) {
    static char text[1 << 18];
    char reply[512], all[1024];
    unsigned hash = 5381;
    char *body = read_request(fd, text, sizeof text);
    for (char *at = body ? strstr(body, "\"messages\"") : NULL; at && *at; at++) hash = hash * 33 + (unsigned char)*at;
    snprintf(reply, sizeof reply,
             "{\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", \"content\": \"the word is %u\"}, \"finish_reason\": \"stop\"}], "
             "\"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 4, \"total_tokens\": 9}}",
             hash % 100000);
    snprintf(all, sizeof all, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
             strlen(reply), reply);
    if (body && write(fd, all, strlen(all)) < 0) perror("teacher");
    shutdown(fd, SHUT_WR);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    FILE *file = argc == 2 ? fopen(argv[1], "w") : NULL;
    if (!file || bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        return 1;
    fprintf(file, "%d\n", ntohs(address.sin_port));
    fclose(file);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0) answer(fd);
        if (fd >= 0) close(fd);
    }
}
