/* SPDX-License-Identifier: Apache-2.0 */
/* tune serve: answers OpenAI's requests with a model and its adapters. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/app/app.h"
#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/common/rounding.h"
#include "lib/serve/serve.h"

typedef struct Serving {
    const char *adapter, *compute, *keys, *reasoning, *max_body, *max_memory;
    TextList adapters, key_names;
    Rounding rounding;
    ChatChoice chat;
    ServeConfig config;
    int64_t seed;
    OpenedModel opened;
} Serving;

enum { MOST_KEYS = 1024, SHORTEST_KEY = 8, LONGEST_KEY = 256 };

/* ---- keys ---- */

static Status add_key(ServeKey *keys, size_t *n, const char *name, const char *key) {
    if (*n == MOST_KEYS) return status_fail(ST_USAGE, "there are more than %d keys", MOST_KEYS);
    if (strlen(key) < SHORTEST_KEY || strlen(key) >= LONGEST_KEY)
        return status_fail(ST_USAGE, "the key '%s' must have %d to %d characters", name, SHORTEST_KEY, LONGEST_KEY - 1);
    for (size_t i = 0; i < *n; i++)
        if (!strcmp(keys[i].name, name)) return status_fail(ST_USAGE, "two keys are called '%s'", name);
    keys[(*n)++] = (ServeKey){name, key};
    return ST_OK;
}

/* VARIABLE, or NAME=VARIABLE. */
static Status key_of_variable(const Command *command, const char *text, ServeKey *keys, size_t *n) {
    const char *equals = strchr(text, '='), *variable = equals ? equals + 1 : text, *key = getenv(variable);
    const char *name = equals ? arena_strndup(command->arena, text, (size_t)(equals - text)) : text;
    if (!name) return ST_RESOURCE;
    if (!key) return status_fail(ST_USAGE, "the environment has no '%s'", variable);
    return add_key(keys, n, name, key);
}

/* Lines of a name and a key; empty ones and those that begin with # are comments. */
static Status keys_of_file(const Command *command, const char *path, ServeKey *keys, size_t *n) {
    Lines lines;
    Status status = ST_OK;
    struct stat info;
    TRY(lines_open(&lines, path));
    for (Slice line; status == ST_OK && lines_next(&lines, &line);) {
        char *text = arena_strndup(command->arena, line.data, line.len), *rest = NULL;
        char *name = text ? strtok_r(text, " \t", &rest) : NULL, *key = name ? strtok_r(NULL, " \t", &rest) : NULL;
        if (!name || *name == '#') continue;
        status = key ? add_key(keys, n, name, key) : status_fail(ST_INPUT, "'%s' line %zu is not a name and a key", path, lines.number);
    }
    Status closed = lines_close(&lines);
    if (status == ST_OK && closed == ST_OK && stat(path, &info) == 0 && info.st_mode & (S_IRGRP | S_IROTH))
        show_message("tune: warning: others can read the keys in '%s': chmod 600 it", path);
    return status == ST_OK ? closed : status;
}

static Status read_keys(const Command *command, Serving *job) {
    ServeKey *keys = arena_alloc(command->arena, MOST_KEYS * sizeof *keys);
    if (!keys) return ST_RESOURCE;
    for (size_t i = 0; i < job->key_names.n; i++) TRY(key_of_variable(command, job->key_names.items[i], keys, &job->config.n_keys));
    if (job->keys) TRY(keys_of_file(command, job->keys, keys, &job->config.n_keys));
    if ((job->keys || job->key_names.n > 0) && job->config.n_keys == 0) return status_fail(ST_USAGE, "there is no key in '%s'", job->keys);
    job->config.keys = keys;
    return ST_OK;
}

/* ---- options ---- */

static Status check_range(const char *option, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return ST_OK;
    return status_fail(ST_USAGE, "%s must be %lld to %lld, not %lld", option, (long long)low, (long long)high, (long long)value);
}

static Status read_bytes(const char *option, const char *text, size_t *bytes) {
    if (!text || bytes_from_text(text, bytes)) return ST_OK;
    return status_fail(ST_USAGE, "%s must be a size such as 4GiB, not '%s'", option, text);
}

static Status cmd_serve_check(Serving *job) {
    ServeConfig *c = &job->config;
    TRY(check_range("--port", c->port, 0, 65535));
    TRY(check_range("--max-context", c->max_context, 0, 1 << 24));
    TRY(check_range("--max-tokens", c->max_tokens, 1, 1 << 20));
    TRY(check_range("--max-sequences", c->max_sequences, 1, 1024));
    TRY(check_range("--max-queue", c->max_queue, 1, 1 << 20));
    TRY(check_range("--max-connections", c->max_connections, 1, 1 << 16));
    TRY(check_range("--max-schemas", c->max_schemas, 1, 1024));
    TRY(check_range("--seed", job->seed, -1, INT64_MAX));
    if (!(c->max_seconds >= 1)) return status_fail(ST_USAGE, "--timeout must be 1 or more, not %g", c->max_seconds);
    if (!text_among("inline|split", '|', job->reasoning))
        return status_fail(ST_USAGE, "--reasoning must be inline or split, not '%s'", job->reasoning);
    c->splits_reasoning = !strcmp(job->reasoning, "split");
    TRY(read_bytes("--max-body", job->max_body, &c->max_body));
    return read_bytes("--max-memory", job->max_memory, &c->max_memory);
}

/* ---- adapters ---- */

/* "NAME=DIR" is an adapter that requests choose; "DIR", or a path that contains '=' after a slash, is part of the model. */
static const char *end_of_name(const char *text) {
    const char *equals = strchr(text, '='), *slash = strchr(text, '/');
    return equals && (!slash || equals < slash) ? equals : NULL;
}

static Status find_own_adapter(Serving *job) {
    for (size_t i = 0; i < job->adapters.n; i++) {
        const char *text = job->adapters.items[i];
        if (end_of_name(text) == text) return status_fail(ST_USAGE, "--adapter must be NAME=DIR or DIR, not '%s'", text);
        if (end_of_name(text)) continue;
        if (job->adapter)
            return status_fail(ST_USAGE, "--adapter: '%s' and '%s' cannot both be part of the model; give one a name", job->adapter, text);
        job->adapter = text;
    }
    return ST_OK;
}

static Status add_adapter(const Command *command, Server *server, const char *text) {
    const char *equals = end_of_name(text), *name = equals ? arena_strndup(command->arena, text, (size_t)(equals - text)) : NULL;
    if (!equals) return ST_OK;
    return name ? server_add_adapter(server, name, equals + 1) : ST_RESOURCE;
}

static Status serve_opened(const Command *command, Serving *job) {
    Server *server;
    TRY(server_open(&job->config, &server));
    Status status = ST_OK;
    for (size_t i = 0; i < job->adapters.n && status == ST_OK; i++) status = add_adapter(command, server, job->adapters.items[i]);
    if (status == ST_OK) {
        bool six = strchr(job->config.host, ':') != NULL;
        Str url = {0};
        str_printf(&url, "http://%s%s%s:%d", six ? "[" : "", job->config.host, six ? "]" : "", server_port(server));
        show_line("serving '%s' at %s; Ctrl-C ends it after the requests in work", job->config.name, str_text(&url));
        print_result("%s\n", str_text(&url));
        show_result();
        str_release(&url);
        status = server_run(server);
    }
    server_close(server);
    return status;
}

static Status cmd_serve_run(const Command *command, void *context) {
    Serving *job = context;
    ServeConfig *config = &job->config;
    TRY(command_needs(command, 1, 1));
    TRY(cmd_serve_check(job));
    TRY(find_own_adapter(job));
    TRY(read_keys(command, job));
    if (config->audit) TRY(file_append(config->audit, "", 0)); /* a log that cannot be written is told before anything is served */
    TRY(open_model(command->arguments[0], job->adapter, job->compute, &job->chat, &job->opened));
    config->model = job->opened.model;
    config->tokenizer = job->opened.tokenizer;
    config->chat = job->opened.chat;
    config->system = job->chat.system ? job->chat.system : job->opened.system;
    config->version = tune_version;
    if (!config->name) config->name = path_name(command->arguments[0]);
    if (!*config->name) config->name = command->arguments[0];
    config->seeded = job->seed >= 0;
    config->seed = (uint64_t)MAX(job->seed, 0);
    Status status = rounding_choose(command, &job->opened, true, &job->rounding);
    config->rounds_activations = job->rounding.on;
    config->activations_kl = job->rounding.kl;
    if (status == ST_OK) status = serve_opened(command, job);
    close_model(&job->opened);
    return status;
}

Status cmd_serve(int argc, char **argv) {
    Serving job = {.seed = -1,
                   .reasoning = "inline",
                   .config = {.host = "127.0.0.1",
                              .port = 8000,
                              .max_tokens = 2048,
                              .max_sequences = 32,
                              .max_queue = 256,
                              .max_connections = 256,
                              .max_schemas = 32,
                              .max_body = 8 << 20,
                              .max_seconds = 600}};
    Command command = {
        .arguments_help = "MODEL | RUN",
        .help =
            "Answers requests of OpenAI's and Anthropic's clients: /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/embeddings and /v1/models, and a chat page at /. Prints the address. "
            "SIGTERM or Ctrl-C ends it when the requests in work are answered; a second one drops them.\n"
            "A request with a seed gets the answer of tune generate with that seed, whatever else is served. A request without one gets a seed of its own, which the answer names.\n"
            "Only this machine reaches the server, unless --host says otherwise, which needs a key. docs/serve.md has all paths and fields.\n"
            "    tune serve models/smollm2 --adapter poet=runs/poet/adapter",
    };
    const Option options[] = {
        {"--adapter", OPTION_LIST, &job.adapters, "[NAME=]DIR",
         "PEFT adapter that requests choose as model NAME; repeatable. Without a name: part of the model"},
        {"--adapter-dir", OPTION_TEXT, &job.config.adapter_dir, "DIR", "requests may load adapters below DIR"},
        {"--name", OPTION_TEXT, &job.config.name, "NAME", "the model's name in requests (the last part of MODEL)"},
        {"--host", OPTION_TEXT, &job.config.host, "HOST", "address to listen at (127.0.0.1)"},
        {"--port", OPTION_INT, &job.config.port, "N", "port; 0 = any free one (8000)"},
        {"--keys", OPTION_TEXT, &job.keys, "FILE", "ask for one of these keys: lines of NAME KEY"},
        {"--api-key-env", OPTION_LIST, &job.key_names, "[NAME=]VARIABLE", "ask for the key in this environment variable; repeatable"},
        {"--audit", OPTION_TEXT, &job.config.audit, "FILE", "append a line of JSON for each request: time, key's name, model, tokens, status"},
        {"--cors", OPTION_TEXT, &job.config.cors, "ORIGIN", "let pages of this origin use the server; '*' = all"},
        {"--compute", OPTION_TEXT, &job.compute, "auto|f32|bf16", "precision of matrix products"},
        ACTIVATIONS_OPTION(job.rounding),
        CHAT_OPTIONS(job.chat),
        {"--max-context", OPTION_INT, &job.config.max_context, "N", "longest prompt with its answer in tokens; 0 = the model's, at most 8192"},
        {"--max-tokens", OPTION_INT, &job.config.max_tokens, "N", "longest chat answer of a request that names no length (2048)"},
        {"--max-sequences", OPTION_INT, &job.config.max_sequences, "N", "answers that are computed at a time (32)"},
        {"--max-memory", OPTION_TEXT, &job.max_memory, "SIZE", "memory for keys and values (at most half of what is free)"},
        {"--max-queue", OPTION_INT, &job.config.max_queue, "N", "requests that may wait; above that, they are refused with 429 (256)"},
        {"--max-connections", OPTION_INT, &job.config.max_connections, "N", "connections at a time (256)"},
        {"--max-schemas", OPTION_INT, &job.config.max_schemas, "N",
         "forms of answers (schemas, tools) that are kept or in use at a time, as far as an eighth of the free memory reaches (32)"},
        {"--max-body", OPTION_TEXT, &job.max_body, "SIZE", "largest request (8 MiB)"},
        {"--timeout", OPTION_REAL, &job.config.max_seconds, "SECONDS", "longest time of a request (600)"},
        {"--seed", OPTION_INT, &job.seed, "N", "seed of requests without one; -1 = another one for each (-1)"},
        {"--reasoning", OPTION_TEXT, &job.reasoning, "inline|split", "leave reasoning in the text, or give it as reasoning_content (inline)"},
        {"--strict", OPTION_FLAG, &job.config.strict, NULL, "refuse requests with unknown fields; else the log names each once"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_serve_run, &job);
}
