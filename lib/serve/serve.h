/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server of a model and its adapters, with OpenAI's endpoints. A thread of libmicrohttpd reads and answers requests; the caller's thread, the
 * engine, computes answers with one Generator.
 *
 *     Server *server;
 *     TRY(server_open(&(ServeConfig){.model = model, .tokenizer = tokenizer, .chat = chat, .name = "smollm2", .host = "127.0.0.1", .port = 8000,
 *                                    ...}, &server));
 *     Status status = server_add_adapter(server, "poet", "runs/poet/adapter");
 *     if (status == ST_OK) status = server_run(server);     // until server_stop or an interrupt; requests in work are finished first
 *     server_close(server);
 */
#ifndef TUNE_SERVE_H
#define TUNE_SERVE_H

#include "data/data.h"
#include "lib/infer/infer.h"

typedef struct ServeKey {
    const char *name; /* for the audit log */
    const char *key;
} ServeKey;
/* What the server serves and its limits. Borrowed until server_close. */
typedef struct ServeConfig {
    const Model *model;
    const Tokenizer *tokenizer; /* NULL: requests and answers are token ids only */
    const Chat *chat;
    const char *name;     /* the model's name in requests */
    const char *system;   /* system message of conversations without one; NULL: none */
    const char *version;  /* of the program */
    const char *host;     /* the address to listen at. One that other machines reach needs a key */
    int64_t port;         /* 0: any free one (server_port) */
    const ServeKey *keys; /* NULL: no key is asked for */
    size_t n_keys;
    const char *adapter_dir; /* requests may load adapters below this folder; NULL: none */
    const char *audit;       /* file that gets one line of JSON for each request; NULL: none */
    const char *cors;        /* origin of web pages that may use the server, or "*"; NULL: only the server's own */
    int64_t max_context;     /* longest prompt with its answer, in tokens; 0: the model's, at most 8192 */
    int64_t max_tokens;      /* longest chat answer of a request that names no length, above 0 */
    int64_t max_sequences;   /* answers that are computed at a time */
    int64_t max_queue;       /* requests that wait for the engine; above that they are refused with 429 */
    int64_t max_connections;
    int64_t max_schemas;   /* forms of answers that are kept or in use at a time, as far as an eighth of the free memory reaches; above that, requests
                            * with another one are refused with 429 */
    size_t max_body;       /* bytes of a request's body; above that it is refused with 413 */
    size_t max_memory;     /* most bytes of keys and values; 0: half of what is free, as far as max_sequences of max_context need it */
    double max_seconds;    /* longest time of a request */
    bool strict;           /* unknown keys of a request are an error; else they are named once in the log and ignored */
    bool splits_reasoning; /* the reasoning of chat answers is `reasoning_content`; else it stays in the text, with its marks */
    bool rounds_activations; /* products round activations to 8 bits; activations_kl: how far results are from exact ones, in nats a token */
    double activations_kl;
    bool seeded; /* requests without a seed get `seed`; else each gets another one, which its answer names */
    uint64_t seed;
} ServeConfig;
typedef struct Server Server;
/* Makes the generator and listens. Requests are answered with 503 until server_run begins. ST_USAGE: an address that other machines reach, without a
 * key. ST_INPUT or ST_RESOURCE: the address cannot be used; no memory. */
Status server_open(const ServeConfig *config, Server **server);
int server_port(const Server *server);
/* Loads a PEFT adapter as model `name`; before server_run. ST_INPUT as adapter_load; ST_USAGE: the name is taken. */
Status server_add_adapter(Server *server, const char *name, const char *dir);
/* Answers requests until server_stop or an interrupt (system.h). Then refuses new ones and finishes those it has; a second interrupt, a second or
 * more later, drops them. A failure of one request does not end it. ST_RESOURCE: the generator failed and no other can be made. */
Status server_run(Server *server);
void server_stop(Server *server);  /* from any thread */
void server_close(Server *server); /* NULL is fine */

#endif
