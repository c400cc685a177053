/* SPDX-License-Identifier: Apache-2.0 */
/* A request and its response, between the thread that talks to the client and the engine. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/serve/serve_parts.h"

const char type_json[] = "application/json", type_text[] = "text/plain; version=0.0.4; charset=utf-8", type_html[] = "text/html; charset=utf-8";

Exchange *exchange_new(Server *server, struct MHD_Connection *connection) {
    Exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = server;
    x->connection = connection;
    x->users = 1;
    x->began = clock_seconds();
    x->below = "";
    pthread_mutex_lock(&server->lock);
    x->next = server->exchanges;
    if (x->next) x->next->before = x;
    server->exchanges = x;
    pthread_mutex_unlock(&server->lock);
    return x;
}

void exchange_keep(Exchange *x) {
    pthread_mutex_lock(&x->server->lock);
    x->users++;
    pthread_mutex_unlock(&x->server->lock);
}

void exchange_leave(Exchange *x) {
    Server *server = x->server;
    pthread_mutex_lock(&server->lock);
    bool last = --x->users == 0;
    if (last) count_request(server, x);
    pthread_mutex_unlock(&server->lock);
    if (!last) return;
    audit_write(server, x, clock_seconds());
    str_release(&x->body);
    str_release(&x->out);
    free(x);
}

void exchange_close(Exchange *x) {
    Server *server = x->server;
    pthread_mutex_lock(&server->lock);
    x->gone = true;
    x->suspended = false;
    *(x->before ? &x->before->next : &server->exchanges) = x->next;
    if (x->next) x->next->before = x->before;
    if (x->link) {
        x->link->busy = false;
        x->link->since = clock_seconds();
    }
    x->link = NULL;
    pthread_mutex_unlock(&server->lock);
    exchange_leave(x);
}

/* Call it with the lock. The flag is cleared first, so that a connection is resumed once for each time that it was suspended. */
static void wake_connection(Exchange *x) {
    if (!x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

void exchange_answer(Exchange *x, int status, const char *type, Str *body) {
    pthread_mutex_lock(&x->server->lock);
    if (!x->ended) {
        str_release(&x->out);
        x->out = *body;
        *body = (Str){0};
        x->status = status;
        x->type = type;
        x->ended = true;
        wake_connection(x);
    }
    pthread_mutex_unlock(&x->server->lock);
    str_release(body);
}

void exchange_answer_json(Exchange *x, int status, JsonWriter *w) {
    Str body = w->text;
    *w = (JsonWriter){0};
    exchange_answer(x, status, type_json, &body);
}

void exchange_push(Exchange *x, const Str *bytes) {
    pthread_mutex_lock(&x->server->lock);
    if (!x->ended && !x->gone && bytes->len > 0) {
        if (x->out.len - x->sent <= MOST_UNREAD && str_reserve(&x->out, bytes->len)) {
            str_append_n(&x->out, bytes->data, bytes->len);
        } else {
            x->gone = true;
            x->sent = 0;
            str_release(&x->out);
        }
        x->last_sent = clock_seconds();
        wake_connection(x);
    }
    pthread_mutex_unlock(&x->server->lock);
}

void exchange_end(Exchange *x) {
    pthread_mutex_lock(&x->server->lock);
    x->ended = true;
    wake_connection(x);
    pthread_mutex_unlock(&x->server->lock);
}

bool exchange_is_gone(Exchange *x) {
    pthread_mutex_lock(&x->server->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->server->lock);
    return gone;
}

/* ---- errors ---- */

/* messages: by Anthropic's names where they differ. */
static const char *error_type(int status, bool messages) {
    if (messages && status >= 500) return "api_error";
    if (messages && status == 413) return "request_too_large";
    return status == 401 || status == 403 ? "authentication_error"
           : status == 404                ? "not_found_error"
           : status == 429                ? "rate_limit_error"
           : status >= 500                ? "server_error"
                                          : "invalid_request_error";
}

static void write_text_or_null(JsonWriter *w, const char *key, const char *text) {
    if (text)
        jw_string(w, key, text);
    else
        jw_null(w, key);
}

void exchange_fail(Exchange *x, int status, const char *param, const char *code, const char *format, ...) {
    Str text = {0}, event = {0};
    JsonWriter w = {0};
    va_list args;
    va_start(args, format);
    str_vprintf(&text, format, args);
    va_end(args);
    bool messages = x->route && text_starts_with(x->route->path, "/v1/messages");
    jw_object(&w, NULL);
    if (messages) jw_string(&w, "type", "error"); /* Anthropic's form has a type more */
    jw_object(&w, "error");
    jw_string_n(&w, "message", str_text(&text), text.len);
    jw_string(&w, "type", error_type(status, messages));
    write_text_or_null(&w, "param", param);
    write_text_or_null(&w, "code", code);
    jw_end_object(&w);
    jw_end_object(&w);
    str_release(&text);
    if (!x->stream) {
        exchange_answer_json(x, status, &w);
        return;
    }
    str_append(&event, messages ? "event: error\ndata: " : "data: ");
    str_append_n(&event, str_text(&w.text), w.text.len);
    str_append(&event, "\n\n");
    exchange_push(x, &event);
    pthread_mutex_lock(&x->server->lock);
    x->status = status; /* for the log; the client has got 200 before */
    pthread_mutex_unlock(&x->server->lock);
    exchange_end(x);
    str_release(&event);
    jw_release(&w);
}

void exchange_fail_status(Exchange *x, Status status) {
    const char *text = *status_text() ? status_text() : status_meaning(status);
    if (status == ST_RESOURCE)
        exchange_fail(x, 503, NULL, "out_of_memory", "%s", text);
    else if (status == ST_NUMERIC)
        exchange_fail(x, 500, NULL, "not_finite", "%s", text);
    else if (status == ST_INTERRUPTED)
        exchange_fail(x, 503, NULL, "shutting_down", "the server ends");
    else
        exchange_fail(x, 400, NULL, NULL, "%s", text);
}
