/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/model/chat_url.h"

#include <stdlib.h>
#include <string.h>

#include "lib/http/http.h"

static const double longest_answer = 3600; /* seconds */

struct ChatUrl {
    HttpClient *client;
    char *model;
    Str url;
};

Status chat_url_open(const char *url, const char *model, const char *key, ChatUrl **result) {
    ChatUrl *remote = *result = calloc(1, sizeof *remote);
    if (!remote) return status_fail(ST_RESOURCE, "out of memory");
    size_t len = strlen(url);
    while (len > 0 && url[len - 1] == '/') len--;
    const char *host = strstr(url, "://");
    bool bare = host && !memchr(host + 3, '/', (size_t)(url + len > host + 3 ? url + len - host - 3 : 0));
    str_append_n(&remote->url, url, len);
    str_append(&remote->url, bare ? "/v1/chat/completions" : "/chat/completions");
    remote->model = model ? strdup(model) : NULL;
    Status status =
        http_open(&(HttpOptions){.url = str_text(&remote->url), .key = key, .concurrency = 1, .timeout = longest_answer}, &remote->client);
    if (status == ST_OK) return ST_OK;
    chat_url_close(remote);
    *result = NULL;
    return status;
}

void chat_url_close(ChatUrl *remote) {
    if (!remote) return;
    http_close(remote->client);
    free(remote->model);
    str_release(&remote->url);
    free(remote);
}

/* ---- the request ---- */

static void write_changed(JsonWriter *w, const char *key, double value, double usual) {
    if (value != usual) jw_double(w, key, value);
}

static Status write_messages(JsonWriter *w, const json_t *messages, const char *system) {
    jw_array(w, "messages");
    if (system) {
        jw_object(w, NULL);
        jw_string(w, "role", "system");
        jw_string(w, "content", system);
        jw_end_object(w);
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        char *text = json_text(json_array_get(messages, i), 0);
        if (!text) return status_fail(ST_RESOURCE, "out of memory");
        jw_raw(w, NULL, text);
        free(text);
    }
    jw_end_array(w);
    return ST_OK;
}

static Status write_request(JsonWriter *w, const ChatUrl *remote, const json_t *messages, const char *system, const GenerateConfig *config) {
    const SampleConfig *sample = &config->sample;
    jw_object(w, NULL);
    if (remote->model) jw_string(w, "model", remote->model);
    jw_bool(w, "stream", true);
    jw_int(w, "max_tokens", config->max_new_tokens);
    jw_int(w, "seed", (int64_t)config->seed);
    jw_double(w, "temperature", sample->greedy ? 0 : sample->temperature);
    write_changed(w, "top_p", sample->top_p, 1);
    write_changed(w, "top_k", (double)sample->top_k, 0);
    write_changed(w, "min_p", sample->min_p, 0);
    write_changed(w, "typical_p", sample->typical_p, 1);
    write_changed(w, "repetition_penalty", sample->repetition_penalty, 1);
    write_changed(w, "presence_penalty", sample->presence_penalty, 0);
    write_changed(w, "frequency_penalty", sample->frequency_penalty, 0);
    if (config->n_stop > 0) {
        jw_array(w, "stop");
        for (size_t i = 0; i < config->n_stop; i++) jw_string(w, NULL, config->stop[i]);
        jw_end_array(w);
    }
    TRY(write_messages(w, messages, system));
    jw_end_object(w);
    return ST_OK;
}

/* ---- the answer ---- */

typedef struct Events {
    Str rest; /* of an event that has not come whole */
    ChatPiece *on_piece;
    void *context;
    bool cut;
} Events;

static Status take_event(Events *events, const char *text, size_t len) {
    static const char data[] = "data:";
    if (len < sizeof data - 1 || memcmp(text, data, sizeof data - 1) != 0) return ST_OK;
    json_t *event = json_of_text(text + sizeof data - 1, len - (sizeof data - 1), 0);
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0), *error = json_object_get(event, "error"),
                 *delta = json_object_get(choice, "delta");
    static const char *const keys[] = {"reasoning_content", "content"};
    const char *finish = json_string_value(json_object_get(choice, "finish_reason")), *said = json_string_value(json_object_get(error, "message"));
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const json_t *piece = json_object_get(delta, keys[i]);
        if (json_string_length(piece) > 0) events->on_piece(events->context, json_string_value(piece), json_string_length(piece));
    }
    events->cut |= finish && !strcmp(finish, "length");
    Status status = error ? status_fail(ST_RESOURCE, "the server ends the answer: %.500s", said ? said : "without a reason") : ST_OK;
    json_decref(event);
    return status;
}

/* Events are lines; empty ones are between them. */
static Status take_bytes(void *context, const char *bytes, size_t n) {
    enum { LONGEST_EVENT = 16 << 20 };
    Events *events = context;
    if (events->rest.len + n > LONGEST_EVENT || !str_reserve(&events->rest, n))
        return status_fail(ST_RESOURCE, "the server's answer has no line ends");
    str_append_n(&events->rest, bytes, n);
    size_t from = 0;
    for (const char *end; (end = memchr(events->rest.data + from, '\n', events->rest.len - from)); from = (size_t)(end - events->rest.data) + 1)
        TRY(take_event(events, events->rest.data + from, (size_t)(end - events->rest.data) - from));
    memmove(events->rest.data, events->rest.data + from, events->rest.len - from + 1);
    events->rest.len -= from;
    return ST_OK;
}

Status chat_url_answer(ChatUrl *remote, const json_t *messages, const char *system, const GenerateConfig *config, ChatPiece *on_piece, void *context,
                       bool *cut) {
    JsonWriter w = {0};
    Events events = {.on_piece = on_piece, .context = context};
    Status status = write_request(&w, remote, messages, system, config);
    if (status == ST_OK) status = http_post_stream(remote->client, &w.text, take_bytes, &events);
    *cut = events.cut;
    jw_release(&w);
    str_release(&events.rest);
    return status;
}
