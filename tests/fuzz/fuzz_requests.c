/* SPDX-License-Identifier: Apache-2.0 */
/* Any body of a request: an error with a text, an answer, or a job for the engine. The first line is the path; where it is none, its first byte
 * chooses one. */
#include "lib/serve/serve_parts.h"
#include "tests/support/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* A server without an engine: jobs stay in its inbox. */
static Server *world(void) {
    static Server *server;
    Model *model;
    Tokenizer *tokenizer;
    Chat *chat;
    if (server) return server;
    check_ok(model_load("recipes/demo/model", &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(tokenizer_load("recipes/demo/model", &tokenizer));
    check_ok(chat_open("recipes/demo/model", NULL, "chatml", "2026-01-01", tokenizer, &chat));
    ServeConfig config = {.model = model,
                          .tokenizer = tokenizer,
                          .chat = chat,
                          .name = "tiny",
                          .version = "test",
                          .host = "127.0.0.1",
                          .adapter_dir = "/nonexistent",
                          .max_context = 128,
                          .max_tokens = 16,
                          .max_sequences = 2,
                          .max_queue = 4,
                          .max_connections = 1,
                          .max_schemas = 4,
                          .max_body = 1 << 20,
                          .max_seconds = 60};
    check_ok(server_open(&config, &server));
    server->running = true;
    return server;
}

static void check_job(const Server *server, const Job *job) {
    const Answer *answer = job->answer;
    if (!answer) return;
    ASSERT(answer->n_prompts > 0 && answer->n > 0 && answer->n_choices == answer->n_prompts * (size_t)answer->n, "%zu choices", answer->n_choices);
    for (size_t i = 0; i < answer->n_prompts; i++) {
        const Ids *ids = &answer->prompts[i];
        ASSERT(ids->n > 0 && (int64_t)ids->n + answer->request.max_new_tokens <= server->max_context, "%zu tokens", ids->n);
        for (size_t t = 0; t < ids->n; t++)
            ASSERT(ids->data[t] >= 0 && ids->data[t] < server->config.model->config.vocab_size, "id %d", ids->data[t]);
    }
    ASSERT(answer->request.sample.temperature >= 0 && answer->request.sample.top_p > 0, "temperature %g", answer->request.sample.temperature);
}

static void drop_job(Server *server) {
    Job *job = server->inbox;
    server->inbox = NULL;
    server->inbox_end = &server->inbox;
    server->n_waiting = server->n_jobs = 0;
    job_free(job);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    Server *server = world();
    const uint8_t *newline = len ? memchr(bytes, '\n', len) : NULL;
    if (!newline) return 0;
    size_t n_path = (size_t)(newline - bytes);
    const Route *route = &serve_routes[bytes[0] % n_serve_routes];
    for (size_t i = 0; i < n_serve_routes; i++)
        if (strlen(serve_routes[i].path) == n_path && !memcmp(serve_routes[i].path, bytes, n_path)) route = &serve_routes[i];
    Exchange *x = exchange_new(server, NULL);
    ASSERT(x, "no memory");
    x->route = route;
    x->below = "tiny";
    str_append_n(&x->body, (const char *)newline + 1, len - n_path - 1);
    route->handle(x);
    ASSERT(x->ended != (server->inbox != NULL), "'%s' is answered %d and has %s", route->path, x->status, server->inbox ? "a job" : "no job");
    if (x->ended) ASSERT(x->status >= 200 && x->status < 600 && x->out.len > 0, "status %d", x->status);
    if (server->inbox) {
        check_job(server, server->inbox);
        drop_job(server);
    }
    exchange_close(x);
    return 0;
}
