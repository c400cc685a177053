/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: who may use the server, how large and how slow a request may be, and what becomes of its response. Runs in libmicrohttpd's thread, but
 * for http_sweep. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/serve/serve_parts.h"

/* Seconds. IDLE: without a request; BODY: for a request to arrive; STUCK: for a client that reads nothing; PING: between signs of life of a stream */
enum { IDLE_SECONDS = 75, BODY_SECONDS = 60, STUCK_SECONDS = 60, PING_SECONDS = 15 };
enum { HEAD_BYTES = 32 << 10, EVENT_BYTES = 16 << 10, BACKLOG = 128, MOST_REFUSED = 8 /* times max_body that is read of a refused request */ };

const Route serve_routes[] = {
#define ROUTE(method, path, open, handle) {method, path, open, handle},
#include "lib/serve/serve_routes.def"
#undef ROUTE
};
const size_t n_serve_routes = COUNT_OF(serve_routes);

/* ---- who may ask ---- */

/* Takes the same time for every key of any length up to MOST_KEY, so that the time says nothing about the beginning of a right one. */
static bool same_key(const char *key, const char *given) {
    volatile unsigned char differs = 0;
    unsigned char a[MOST_KEY] = {0}, b[MOST_KEY] = {0};
    size_t n_key = strlen(key), n_given = strlen(given);
    memcpy(a, key, MIN(n_key, sizeof a));
    memcpy(b, given, MIN(n_given, sizeof b));
    for (size_t i = 0; i < sizeof a; i++) differs |= a[i] ^ b[i];
    return differs == 0 && n_key == n_given;
}

static const char *header_of(const Exchange *x, const char *name) {
    const char *value = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
    return value ? value : "";
}

static bool key_accepted(Exchange *x) {
    const ServeConfig *config = &x->server->config;
    const char *given = header_of(x, "Authorization"), *found = NULL;
    if (config->n_keys == 0) return true;
    given = text_starts_with(given, "Bearer ") ? given + strlen("Bearer ") : "";
    if (!*given) given = header_of(x, "X-API-Key");
    for (size_t i = 0; i < config->n_keys; i++)
        if (same_key(config->keys[i].key, given)) found = config->keys[i].name;
    x->key_name = found;
    return found != NULL;
}

static bool names_loopback(const char *host) {
    static const char *const names[] = {"localhost", "127.", "[::1]"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (text_starts_with(host, names[i])) return true;
    return !*host; /* HTTP/1.0 */
}

/* A web page of another origin may not use a server without a key through its visitor's browser, also not by a name that leads to this machine. */
static bool origin_accepted(const Exchange *x) {
    const ServeConfig *config = &x->server->config;
    const char *origin = header_of(x, "Origin"), *host = header_of(x, "Host");
    if (config->cors && *origin && (!strcmp(config->cors, "*") || !strcmp(config->cors, origin))) return true;
    const char *its = strstr(origin, "://");
    if (*origin && (!its || strcmp(its + 3, host) != 0)) return false;
    return !x->server->loopback || config->n_keys > 0 || names_loopback(host);
}

/* ---- a request arrives ---- */

static void find_route(Exchange *x, const char *method, bool *other_method) {
    if (!strcmp(method, "HEAD")) method = "GET";
    for (size_t i = 0; i < n_serve_routes && !x->route; i++) {
        const Route *route = &serve_routes[i];
        size_t len = strlen(route->path);
        bool below = len > 1 && route->path[len - 1] == '/', fits = below ? text_starts_with(x->path, route->path) : !strcmp(x->path, route->path);
        if (!fits) continue;
        *other_method = strcmp(method, route->method) != 0;
        if (*other_method) continue;
        x->route = route;
        x->below = below ? x->path + len : "";
    }
}

/* What is known from the head of a request. */
static void look_at_head(Exchange *x, const char *url, const char *method) {
    bool other_method = false;
    snprintf(x->path, sizeof x->path, "%s", url);
    if (strlen(url) < sizeof x->path) find_route(x, method, &other_method);
    unsigned long long length = strtoull(header_of(x, "Content-Length"), NULL, 10);
    if (!origin_accepted(x))
        exchange_fail(x, 403, NULL, "wrong_origin", "pages of another origin may not use this server: see --cors");
    else if (!strcmp(method, "OPTIONS") && x->server->config.cors)
        exchange_answer(x, 204, type_text, &(Str){0});
    else if ((!x->route || !x->route->open) && !key_accepted(x))
        exchange_fail(x, 401, NULL, "invalid_api_key", "the key is missing or wrong: send 'Authorization: Bearer KEY'");
    else if (!x->route && other_method)
        exchange_fail(x, 405, NULL, "method_not_allowed", "'%s' does not take this method", x->path);
    else if (!x->route)
        exchange_fail(x, 404, NULL, "unknown_url", "there is no '%s' here", x->path);
    else if (length > x->server->config.max_body)
        exchange_fail(x, 413, NULL, "body_too_large", "the body has %llu bytes, more than the %zu that are allowed", length,
                      x->server->config.max_body);
    x->refused = x->ended;
}

/* The rest of a refused body is read, up to a limit, because a connection that is closed before loses its response. False: close it. */
static bool take_body(Exchange *x, const char *bytes, size_t n) {
    size_t most = x->server->config.max_body;
    if (x->refused) {
        x->sent += n; /* nothing is sent before the body has come */
        bool few = x->sent <= most * MOST_REFUSED;
        return few;
    }
    if (x->body.len + n > most) {
        str_release(&x->body);
        exchange_fail(x, 413, NULL, "body_too_large", "the body has more than the %zu bytes that are allowed", most);
        x->refused = true;
    } else if (!str_reserve(&x->body, n)) {
        str_release(&x->body);
        exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the body");
        x->refused = true;
    } else {
        str_append_n(&x->body, bytes, n);
    }
    return true;
}

/* ---- the response leaves ---- */

static ssize_t read_events(void *context, uint64_t at, char *out, size_t room) {
    Exchange *x = context;
    (void)at;
    pthread_mutex_lock(&x->server->lock);
    size_t n = MIN(room, x->out.len - x->sent);
    if (n > 0) memcpy(out, x->out.data + x->sent, n);
    x->sent += n;
    if (x->sent == x->out.len) {
        str_clear(&x->out);
        x->sent = 0;
    }
    bool over = n == 0 && (x->ended || x->gone || x->server->stopping);
    if (n == 0 && !over) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->server->lock);
    return over ? MHD_CONTENT_READER_END_OF_STREAM : (ssize_t)n;
}

static void add_headers(const Exchange *x, struct MHD_Response *response) {
    const char *cors = x->server->config.cors;
    MHD_add_response_header(response, "Content-Type", x->stream ? "text/event-stream; charset=utf-8" : x->type);
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (x->stream) MHD_add_response_header(response, "X-Accel-Buffering", "no");
    if (x->status == 429 || x->status == 503) MHD_add_response_header(response, "Retry-After", "1");
    if (x->status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (x->type == type_html)
        MHD_add_response_header(
            response, "Content-Security-Policy",
            "default-src 'none'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'");
    if (!cors) return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", cors);
    MHD_add_response_header(response, "Access-Control-Allow-Headers", "Authorization, Content-Type");
    MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
}

static enum MHD_Result give_response(Exchange *x, struct MHD_Response *response, int status) {
    if (!response) return MHD_NO;
    add_headers(x, response);
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    x->queued = true;
    return result;
}

static enum MHD_Result respond(Exchange *x) {
    enum MHD_Result result = MHD_YES;
    pthread_mutex_lock(&x->server->lock);
    if (x->stream) {
        result = give_response(x, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, EVENT_BYTES, read_events, x, NULL), 200);
    } else if (x->ended) {
        result = give_response(x, MHD_create_response_from_buffer(x->out.len, x->out.data ? x->out.data : "", MHD_RESPMEM_PERSISTENT), x->status);
    } else if (x->gone || x->server->stopping) {
        result = MHD_NO;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->server->lock);
    return result;
}

/* ---- what libmicrohttpd calls ---- */

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                                  const char *bytes, size_t *n_bytes, void **slot) {
    Server *server = context;
    Exchange *x = *slot;
    (void)version;
    if (!x) {
        *slot = x = exchange_new(server, connection);
        if (!x) return MHD_NO;
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        pthread_mutex_lock(&server->lock);
        x->link = info ? info->socket_context : NULL;
        if (x->link) x->link->busy = true;
        pthread_mutex_unlock(&server->lock);
        look_at_head(x, url, method);
        return MHD_YES;
    }
    if (*n_bytes > 0) {
        size_t n = *n_bytes;
        *n_bytes = 0;
        return take_body(x, bytes, n) ? MHD_YES : MHD_NO;
    }
    if (!x->handled) {
        x->handled = true;
        pthread_mutex_lock(&server->lock);
        x->arrived = true;
        x->sent = 0;
        bool serves = server->running || (x->route && x->route->open);
        pthread_mutex_unlock(&server->lock);
        if (!x->ended && !serves) exchange_fail(x, 503, NULL, "loading", "the server is not ready yet");
        if (!x->ended) x->route->handle(x);
    }
    return x->queued ? MHD_YES : respond(x);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **slot, enum MHD_RequestTerminationCode how) {
    Exchange *x = *slot;
    (void)context, (void)connection, (void)how;
    if (!x) return;
    *slot = NULL;
    exchange_close(x);
}

static void on_connection(void *context, struct MHD_Connection *connection, void **slot, enum MHD_ConnectionNotificationCode what) {
    Server *server = context;
    pthread_mutex_lock(&server->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        Link *link = calloc(1, sizeof *link);
        if (link) {
            *link = (Link){.fd = info ? info->connect_fd : -1, .since = clock_seconds(), .next = server->links};
            if (link->next) link->next->before = link;
            server->links = link;
        }
        *slot = link;
    } else if (*slot) {
        Link *link = *slot;
        *(link->before ? &link->before->next : &server->links) = link->next;
        if (link->next) link->next->before = link->before;
        free(link);
        *slot = NULL;
    }
    pthread_mutex_unlock(&server->lock);
}

/* ---- the address ---- */

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static int bound_port(int fd) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&address)->sin6_port
                                               : ((const struct sockaddr_in *)(const void *)&address)->sin_port);
}

static Status bind_address(Server *server, const struct addrinfo *address, int *fd) {
    const ServeConfig *config = &server->config;
    int yes = 1;
    server->loopback = is_loopback(address->ai_addr);
    if (!server->loopback && config->n_keys == 0) {
        status_fail(ST_USAGE, "other machines reach '%s', and no key is asked for", config->host);
        return status_hint(ST_USAGE, "name keys with --keys FILE or --api-key-env VARIABLE, or listen at 127.0.0.1");
    }
    *fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0) setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (*fd >= 0 && bind(*fd, address->ai_addr, address->ai_addrlen) == 0 && listen(*fd, BACKLOG) == 0) return ST_OK;
    int error = errno;
    if (*fd >= 0) close(*fd);
    status_errno(error, "cannot listen at '%s' port %lld", config->host, (long long)config->port);
    return error == EADDRINUSE ? status_hint(ST_INPUT, "another program uses the port: choose one with --port, or 0 for any free one") : ST_INPUT;
}

static Status bind_host(Server *server, int *fd) {
    const ServeConfig *config = &server->config;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%lld", (long long)config->port);
    int error = getaddrinfo(config->host, port, &hints, &found);
    if (error) return status_fail(ST_INPUT, "cannot listen at '%s': %s", config->host, gai_strerror(error));
    Status status = bind_address(server, found, fd);
    freeaddrinfo(found);
    return status;
}

Status http_listen(Server *server) {
    int fd = -1;
    ASSERT(n_serve_routes < MOST_ROUTES, "%zu paths", n_serve_routes);
    TRY(bind_host(server, &fd));
    server->port = bound_port(fd);
    server->daemon =
        MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_NOTIFY_COMPLETED, on_completed, server, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->config.max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)STUCK_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES, MHD_OPTION_END);
    if (server->daemon) return ST_OK;
    close(fd);
    return status_fail(ST_RESOURCE, "cannot start the server's thread");
}

void http_stop(Server *server) {
    if (!server->daemon) return;
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    for (Exchange *x = server->exchanges; x; x = x->next) {
        if (x->suspended) MHD_resume_connection(x->connection);
        x->suspended = false;
    }
    pthread_mutex_unlock(&server->lock);
    MHD_stop_daemon(server->daemon);
    server->daemon = NULL;
}

/* ---- by the engine, from time to time ---- */

/* A client that has closed its end is gone: servers cannot tell it from one that only sends no more, and most treat both so. */
static bool has_closed(int fd) {
#ifdef POLLRDHUP
    struct pollfd look = {.fd = fd, .events = POLLRDHUP};
    return poll(&look, 1, 0) > 0 && look.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
#else
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
#endif
}

static void sweep_exchange(Exchange *x, double now) {
    static const char ping[] = ": ping\n\n";
    if (!x->link) return;
    if (!x->arrived && now - x->began > BODY_SECONDS) shutdown(x->link->fd, SHUT_RDWR);
    if (!x->arrived || x->ended || x->gone) return;
    if (has_closed(x->link->fd)) {
        x->gone = true;
    } else if (x->stream && now - MAX(x->last_sent, x->began) > PING_SECONDS && x->out.len == 0) {
        str_append(&x->out, ping);
        x->last_sent = now;
    } else {
        return;
    }
    if (x->suspended) MHD_resume_connection(x->connection);
    x->suspended = false;
}

void http_sweep(Server *server, double now) {
    pthread_mutex_lock(&server->lock);
    for (Exchange *x = server->exchanges; x; x = x->next) sweep_exchange(x, now);
    for (Link *link = server->links; link; link = link->next)
        if (!link->busy && now - link->since > IDLE_SECONDS) shutdown(link->fd, SHUT_RDWR);
    pthread_mutex_unlock(&server->lock);
}
