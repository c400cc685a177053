/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a server, shared by the files that make it:
 *
 *     serve_http.c         connections and their limits, keys, bodies; the table of paths (serve_routes.def)
 *     serve_exchange.c     a request and its response, which both threads hold
 *     serve_engine.c       the engine: the queue, the generator's steps, clients that went, the end
 *     serve_models.c       the model, adapters as models, loading and unloading
 *     serve_fields.c       fields of a request's body, checked
 *     serve_request.c      from the body of a chat or text completion to a job
 *     serve_tools.c        its tools, the form of its answer, kept constraints
 *     serve_reply.c        an answer taken apart: text, reasoning, calls
 *     serve_answer.c       from tokens to events and answers, in the dialect of their path
 *     serve_completions.c  the dialect of OpenAI's chat and text completions
 *     serve_messages.c     that of Anthropic's messages
 *     serve_responses.c    that of OpenAI's responses
 *     serve_score.c        log-probabilities of prompts (echo) and of texts (/score)
 *     serve_text.c         tokenize, detokenize, apply-template, tokenizer_info, embeddings
 *     serve_metrics.c      counters, in Prometheus' text form
 *     serve_audit.c        the log of requests
 *     serve_about.c        health, version, properties, the page
 *
 * Two threads run: HTTP (libmicrohttpd's), which parses requests, renders templates and tokenizes; and the engine, which computes. They share what
 * `Server.lock` guards. A model is used by the engine alone. */
#ifndef TUNE_SERVE_PARTS_H
#define TUNE_SERVE_PARTS_H

#include <microhttpd.h>
#include <pthread.h>

#include "lib/base/json.h"
#include "lib/serve/serve.h"

enum {
    MOST_SAMPLES = 128,    /* n of a request */
    MOST_PROMPTS = 1024,   /* of a request */
    MOST_STOPS = 16,       /* stop texts of a request */
    MOST_TOP = 20,         /* top_logprobs */
    MOST_KEY = 256,        /* bytes of a key */
    MOST_UNKNOWN = 256,    /* names of unknown fields that the log has told */
    MOST_UNREAD = 4 << 20, /* bytes of a stream that its client has not read: above that it is dropped */
};
typedef struct Exchange Exchange;
typedef struct KeptConstraint KeptConstraint; /* serve_tools.c */
typedef struct Job Job;
typedef struct Dialect Dialect;

/* A path of the server. */
typedef struct Route {
    const char *method, *path; /* a path that ends with a slash serves all below it */
    bool open;                 /* needs no key */
    void (*handle)(Exchange *x);
} Route;
extern const Route serve_routes[];
extern const size_t n_serve_routes;

/* A model that requests can name. */
typedef struct ServedModel {
    struct ServedModel *next;
    char *name, *root; /* root: the directory */
    Model *adapter;    /* NULL: the base */
    Chat *chat;        /* of the adapter, which owns it; NULL: the base's */
    int64_t id;        /* of an adapter, as llama.cpp numbers them */
    double scale;      /* of an adapter: a factor on its own scale */
    bool variant;      /* an adapter with a scale that a request asked for; no request can name it */
    int64_t created;   /* seconds since 1970 */
    int64_t users;     /* jobs that use it */
    bool unloaded;     /* no request can name it any more; freed without users */
} ServedModel;

/* An open connection. */
typedef struct Link {
    struct Link *next, *before;
    int fd;
    bool busy;    /* a request is in work */
    double since; /* when it was opened, or its latest request ended */
} Link;

/* A request and its response. The connection holds it until it ends, and the job of the request until that ends. */
struct Exchange {
    Server *server;
    Exchange *next, *before; /* in Server.exchanges while the connection holds it */
    struct MHD_Connection *connection;
    Link *link;
    const Route *route; /* NULL: no such path */
    const char *below;  /* of a path that serves all below it: the rest; else "" */
    char path[256];
    Str body;
    const char *key_name; /* NULL: none was asked for */
    bool handled, queued; /* the handler was called; MHD has the response */
    bool refused;         /* the body is not stored */
    double began;
    /* guarded by the lock */
    Str out;          /* what was not sent yet */
    size_t sent;      /* bytes of `out` that were */
    int status;       /* HTTP's; 0: not known yet */
    const char *type; /* of the content */
    bool stream;      /* server-sent events */
    bool ended;       /* nothing more comes */
    bool suspended;   /* the connection waits for the engine */
    bool gone;        /* the client went, or the server gave it up */
    bool arrived;     /* the body is complete */
    int users;        /* of connection and job */
    double last_sent; /* when the stream got its latest bytes */
    /* for the audit log */
    char model[128], adapter[128];
    int64_t prompt_tokens, answer_tokens;
};

/* Log-probabilities of the tokens of a prompt (echo). */
typedef struct PromptScores {
    double *logprobs;  /* (n); the first one is NaN */
    TokenLogprob *top; /* (n, n_top); NULL: none asked for */
} PromptScores;

/* What is open in a stream whose answers have parts. */
typedef enum PartKind { PART_NONE, PART_TEXT, PART_REASONING, PART_CALL } PartKind;

/* One answer of a request: a sample of one of its prompts. */
typedef struct Choice {
    Completion completion; /* when it has ended */
    bool begun;            /* of a stream: its first event was sent */
    Reply *reply;          /* takes it apart; NULL: it is all text */
    Str text, reasoning;   /* of an answer that is sent as a whole, when it has ended */
    json_t *calls;
    size_t n_calls;
    size_t offset;    /* of a stream: where the text of its next token begins */
    PartKind part;    /* of a stream with parts: the one that is open */
    size_t n_parts;   /* that were closed */
    int64_t n_events; /* that have a number */
} Choice;

/* A token of an answer or, with echo, of its prompt. */
typedef struct TokenView {
    int32_t id;
    double logprob;          /* NaN: none */
    const TokenLogprob *top; /* Answer.n_top entries; NULL: none */
} TokenView;

/* What an event of a stream adds to its choice. */
typedef struct Addition {
    const char *text; /* NULL: none */
    size_t len;
    bool reasons;           /* the text is reasoning */
    const ReplyPiece *call; /* NULL: none; else the last of the choice's n_calls */
    const TokenView *tokens;
    size_t n_tokens;
} Addition;

/* How the answers of a path are written. */
struct Dialect {
    void (*add)(Job *job, size_t choice, const Addition *added); /* sends the event of what is added to a choice */
    void (*end)(Job *job, size_t choice);                        /* sends the events with which a choice ends */
    void (*last)(Job *job);                                      /* sends the last events of a stream */
    void (*whole)(JsonWriter *w, const Job *job);                /* writes the whole answer */
};

/* A chat or text completion in work. */
typedef struct Answer {
    const Dialect *dialect;
    bool chat, stream, tell_usage, echo;
    int64_t n_top; /* logprobs: how many of the likeliest tokens; -1: none at all */
    char id[48];
    int64_t created;
    Ids *prompts;               /* n_prompts */
    Str *texts;                 /* of the prompts, for echo */
    size_t n_prompts, n_added;  /* n_added: prompts that the generator has taken */
    int64_t n;                  /* samples of each prompt */
    double lora_scale;          /* with which the adapter is asked for; NaN: its own */
    GenerateRequest request;    /* of all prompts */
    GenerateHandle *handles;    /* of those that were added */
    PromptScores *scores;       /* of prompts; NULL: not asked for */
    size_t n_scored;            /* prompts that have scores */
    bool echoed;                /* echo's part is done */
    char **stop;                /* request.stop */
    int32_t *stop_ids;          /* request.stop_ids */
    int32_t end_of_turn;        /* -1: none */
    TokenBias *bias;            /* request.sample.bias */
    KeptConstraint *constraint; /* counted as a user; NULL: any text */
    json_t *tools;              /* NULL: none */
    bool calls, splits;         /* calls of tools, and reasoning, are taken out of the text */
    int call_bytes;             /* of the id of a call */
    Str rendered;               /* the prompt of a chat whose answers are taken apart */
    uint64_t number;            /* of the request, among those of the server */
    Choice *choices;            /* n_prompts * n */
    size_t n_choices, n_ended;
    int64_t prompt_tokens, answer_tokens;
    double queued, admitted, first, latest; /* times; 0: not yet */
} Answer;

/* What the engine has to do for a request. */
struct Job {
    Job *next;
    Exchange *exchange;
    ServedModel *model; /* NULL: none; else counted as a user */
    /* Not NULL: the engine calls it, with no lock held, until it is true; then the job ends. Between two calls, the generator does a step, so that
     * long work holds up nobody. NULL: `answer` is generated */
    bool (*work)(Server *server, Job *job);
    Answer *answer; /* NULL: none */
    json_t *body;
    Ids *ids; /* of `work`: n_ids texts; the first n_worked are done */
    size_t n_ids, n_worked;
    JsonWriter written; /* the part of the answer that is there */
};

/* Times of requests, in seconds, as Prometheus counts them. */
typedef struct Histogram {
    uint64_t counts[24], n;
    double sum;
} Histogram;
enum { N_CODES = 12, MOST_ROUTES = 32 };
typedef struct Counters {
    uint64_t requests[MOST_ROUTES][N_CODES]; /* by route, the one after them of other paths; by code */
    uint64_t prompt_tokens, answer_tokens, cancelled;
    Histogram first_token, per_token, whole, queue;
} Counters;

struct Server {
    ServeConfig config;
    struct MHD_Daemon *daemon;
    int port;
    bool loopback;
    int64_t created;
    Generator *generator;
    GeneratorConfig size;
    int64_t max_context, max_schemas; /* as there is memory for */
    Job *jobs;                        /* of the engine, in order of arrival */
    double swept;
    uint64_t seeds;          /* from which requests get seeds */
    TokenBytes *token_bytes; /* for constraints, of the thread of requests; NULL: none was asked for yet */
    pthread_mutex_t audit_lock;
    bool audit_failed, audit_told; /* guarded by audit_lock */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the inbox has a job, or the server stops */
    /* guarded by `lock` */
    Job *inbox, **inbox_end;
    int64_t n_waiting, n_jobs; /* jobs that the generator has not taken whole; all jobs */
    ServedModel *models;       /* the base first */
    KeptConstraint *constraints;
    Exchange *exchanges;
    Link *links;
    Counters counters;
    GeneratorStats stats;
    uint64_t n_requests;              /* for ids and seeds */
    int64_t n_adapters;               /* that were loaded so far, for their ids */
    bool running, draining, stopping; /* stopping: no connection waits any more */
    char unknown[MOST_UNKNOWN][64];   /* names of fields that no handler knows */
    size_t n_unknown, n_told;         /* n_told: those that are in the log */
};

/* ---- serve_exchange.c: from any thread, without the lock ---- */

/* Makes one that the connection holds. NULL: out of memory. */
Exchange *exchange_new(Server *server, struct MHD_Connection *connection);
void exchange_keep(Exchange *x);
void exchange_leave(Exchange *x); /* one user less; without users it is written to the audit log and freed */
void exchange_close(Exchange *x); /* the connection no longer holds it */
/* The whole response. Takes the body's memory and leaves it empty. type: a constant. */
void exchange_answer(Exchange *x, int status, const char *type, Str *body);
void exchange_answer_json(Exchange *x, int status, JsonWriter *w);
/* An error as OpenAI's clients expect it. param, code: NULL: none. In a stream it becomes the last event. */
void exchange_fail(Exchange *x, int status, const char *param, const char *code, const char *format, ...) PRINTF_LIKE(5, 6);
void exchange_fail_status(Exchange *x, Status status); /* the same for a failure of this thread: 400 for ST_INPUT and the like, else 500 or 503 */
void exchange_push(Exchange *x, const Str *bytes);     /* bytes of a stream */
void exchange_end(Exchange *x);                        /* the end of a stream */
bool exchange_is_gone(Exchange *x);
extern const char type_json[], type_text[], type_html[];

/* ---- serve_http.c ---- */

Status http_listen(Server *server);
void http_stop(Server *server); /* ends all connections */
/* Looks for clients that went, connections without a request and requests without an end. Call it several times a second. */
void http_sweep(Server *server, double now);

/* ---- serve_engine.c ---- */

/* Gives a job to the engine, which frees it. Refused jobs are freed at once: 429 if too many wait, 503 if the server ends. */
void engine_submit(Job *job);
Job *job_new(Exchange *x, ServedModel *model); /* takes the caller's use of the model. NULL: out of memory, and x has failed */
void job_free(Job *job);

/* ---- serve_models.c ---- */

Status models_begin(Server *server);
void models_release(Server *server);
/* The model of this name; the caller is its user. name NULL or "": the base. NULL: x has failed with 404. */
ServedModel *served_find(Exchange *x, const char *name);
void served_leave(Server *server, ServedModel *model);
/* The field `lora` of a request, [{"id", "scale"}]: chooses the adapter, of which the caller is the user then instead of *model. False: x has failed. */
bool read_lora(Exchange *x, const json_t *body, ServedModel **model, double *scale);
/* By the engine: the same adapter with another scale becomes *model, and the caller's use moves to it. Fails as adapter_load does. */
Status served_scaled(Server *server, ServedModel **model, double scale);
void models_sweep(Server *server); /* the engine frees unloaded ones without users */
const Model *served_weights(const Server *server, const ServedModel *model);
const Chat *served_chat(const Server *server, const ServedModel *model);
void handle_models(Exchange *x);
void handle_model(Exchange *x);
void handle_load(Exchange *x);
void handle_unload(Exchange *x);
void handle_adapters(Exchange *x);
void handle_scales(Exchange *x);

/* ---- serve_fields.c: each is false, and x has failed with 400 that names the key, for a wrong value; a missing or null one stays as it is ---- */

bool body_read(Exchange *x, json_t **body); /* the body as a JSON object, which the caller releases */
bool body_list(Exchange *x, json_t **body); /* as a JSON array */
bool field_int(Exchange *x, const json_t *body, const char *key, int64_t low, int64_t high, int64_t *value);
bool field_real(Exchange *x, const json_t *body, const char *key, double low, double high, double *value);
bool field_bool(Exchange *x, const json_t *body, const char *key, bool *value);
bool field_text(Exchange *x, const json_t *body, const char *key, const char **value); /* borrowed from body */
bool field_object(Exchange *x, const json_t *body, const char *key, const json_t **value);
bool fields_known(Exchange *x, const json_t *body, const char *known); /* known: names with blanks between them; for others see ServeConfig.strict */

/* ---- serve_request.c ---- */

void handle_chat(Exchange *x);
void handle_completions(Exchange *x);
void handle_messages(Exchange *x);
void handle_responses(Exchange *x);
/* The ids of a conversation's prompt: body has messages, and may have tools, documents and chat_template_kwargs. ids, text: NULL, or what gets the
 * tokens and the rendering. */
bool prompt_of_messages(Exchange *x, const json_t *body, const ServedModel *model, Ids *ids, Str *text);
bool prompt_of_text(Exchange *x, const char *text, size_t len, bool special, Ids *ids);
bool prompt_of_ids(Exchange *x, const json_t *list, const char *key, Ids *ids);

/* ---- serve_tools.c ---- */

/* Fields of a request, each as those of serve_fields.c. They may change the body, for the template. */
bool read_bias(Exchange *x, const json_t *body, Answer *answer);
bool read_tools(Exchange *x, json_t *body, const ServedModel *model, Answer *answer);
bool read_format(Exchange *x, const json_t *body, Answer *answer);
bool read_effort(Exchange *x, json_t *body, const ServedModel *model);
void constraint_leave(Server *server, KeptConstraint *kept); /* NULL is fine */
void constraints_release(Server *server);

/* ---- serve_reply.c ---- */

bool answer_is_parsed(const Answer *answer);
Status choice_begin(const Job *job, Choice *choice);                           /* makes its `reply` */
Status choice_gather(const Job *job, size_t at);                               /* from its whole text to text, reasoning and calls */
json_t *call_of_piece(const Job *job, size_t choice, const ReplyPiece *piece); /* as a stream has it. NULL: out of memory */
void choice_release(Choice *choice);

/* ---- serve_answer.c: by the engine ---- */

OnToken answer_token;
OnCompletion answer_done;
void answer_finish(Job *job);                                  /* all choices have ended: sends what is left */
void answer_release(Server *server, Answer *answer);           /* NULL is fine */
bool ends_answer(const Job *job, int32_t id);                  /* whether the token may end the answer */
const char *finish_name(const Job *job, const Choice *choice); /* as OpenAI's finish_reason */
void event_send(Job *job, const char *name, JsonWriter *w);    /* closes the object, and sends it as an event; name NULL: without a name */

/* ---- serve_completions.c ---- */

extern const Dialect dialect_completions;
void answer_echo(Job *job); /* sends the prompts of a stream, after answer_score */

/* ---- serve_messages.c, serve_responses.c ---- */

extern const Dialect dialect_messages, dialect_responses;
extern const char messages_fields[], responses_fields[];
/* Replace the body by that of a chat. False: x has failed. */
bool chat_of_messages(Exchange *x, json_t **body);
bool chat_of_input(Exchange *x, json_t **body);
void handle_count(Exchange *x);

/* ---- serve_score.c ---- */

/* The scores of the next prompt. *ended: all have theirs. */
Status answer_score(Server *server, Job *job, bool *ended);
void handle_score(Exchange *x);

/* ---- serve_text.c ---- */

void handle_tokenize(Exchange *x);
void handle_detokenize(Exchange *x);
void handle_template(Exchange *x);
void handle_tokenizer(Exchange *x);
void handle_embeddings(Exchange *x);
/* The `input` of a request: a text, ids, or a list of these; each with 1 to max_context tokens. They become job->ids. */
bool read_inputs(Exchange *x, const json_t *body, Job *job);
/* Job.work of a list: `next` writes the result of text n_worked to job->written, and fails as the model does. */
bool inputs_work(Server *server, Job *job, Status (*next)(const Server *server, Job *job));

/* ---- serve_metrics.c, with the lock but for the handler ---- */

void count_request(Server *server, const Exchange *x);
void histogram_add(Histogram *histogram, double seconds);
void handle_metrics(Exchange *x);

/* ---- serve_audit.c ---- */

void audit_write(Server *server, const Exchange *x, double now);

/* ---- serve_about.c ---- */

void handle_health(Exchange *x);
void handle_version(Exchange *x);
void handle_properties(Exchange *x);
void handle_page(Exchange *x);
void write_template(JsonWriter *w, const char *key, const Chat *chat); /* the source of its template, or null */

#endif
