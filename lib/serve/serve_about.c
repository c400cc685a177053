/* SPDX-License-Identifier: Apache-2.0 */
/* What the server says about itself, and its page. */
#include "data/formats/conversation.h"
#include "lib/serve/serve_page.h"
#include "lib/serve/serve_parts.h"

void handle_health(Exchange *x) {
    Server *server = x->server;
    JsonWriter w = {0};
    pthread_mutex_lock(&server->lock);
    bool ready = server->running && !server->draining;
    pthread_mutex_unlock(&server->lock);
    if (!ready) {
        exchange_fail(x, 503, NULL, "not_ready", "the server begins or ends");
        return;
    }
    jw_object(&w, NULL);
    jw_string(&w, "status", "ok");
    jw_end_object(&w);
    exchange_answer_json(x, 200, &w);
}

void handle_version(Exchange *x) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "version", x->server->config.version);
    jw_end_object(&w);
    exchange_answer_json(x, 200, &w);
}

void write_template(JsonWriter *w, const char *key, const Chat *chat) {
    if (!chat || !chat_has_template(chat)) {
        jw_null(w, key);
        return;
    }
    Slice source = chat_template_source(chat->template, false);
    jw_string_n(w, key, source.data, source.len);
}

/* llama.cpp's names. */
void handle_properties(Exchange *x) {
    const Server *server = x->server;
    const ServeConfig *config = &server->config;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "model_path", config->model->dir);
    jw_string(&w, "build_info", config->version);
    jw_int(&w, "total_slots", config->max_sequences);
    write_template(&w, "chat_template", config->chat);
    jw_object(&w, "default_generation_settings");
    jw_int(&w, "n_ctx", server->max_context);
    jw_end_object(&w);
    jw_end_object(&w);
    exchange_answer_json(x, 200, &w);
}

void handle_page(Exchange *x) {
    Str page = {0};
    str_append(&page, serve_page);
    exchange_answer(x, 200, type_html, &page);
}
