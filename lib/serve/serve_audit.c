/* SPDX-License-Identifier: Apache-2.0 */
/* The log of requests: who asked what model for how much, and what came of it; nothing of what was said. */
#include <time.h>

#include "lib/base/file.h"
#include "lib/base/json.h"
#include "lib/serve/serve_parts.h"

void audit_write(Server *server, const Exchange *x, double now) {
    if (!server->config.audit) return;
    JsonWriter w = {0};
    char at[32];
    struct tm utc;
    time_t clock = time(NULL);
    strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&clock, &utc));
    jw_object(&w, NULL);
    jw_string(&w, "time", at);
    jw_string(&w, "key", x->key_name);
    jw_string(&w, "path", x->route ? x->route->path : NULL);
    jw_string(&w, "model", *x->model ? x->model : NULL);
    jw_string(&w, "adapter", *x->adapter ? x->adapter : NULL);
    jw_int(&w, "prompt_tokens", x->prompt_tokens);
    jw_int(&w, "completion_tokens", x->answer_tokens);
    jw_int(&w, "status", x->status ? x->status : 499);
    jw_double(&w, "seconds", (double)(int64_t)((now - x->began) * 1000) / 1000);
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    pthread_mutex_lock(&server->audit_lock);
    server->audit_failed |= file_append(server->config.audit, str_text(&w.text), w.text.len) != ST_OK;
    pthread_mutex_unlock(&server->audit_lock);
    jw_release(&w);
}
