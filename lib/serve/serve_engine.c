/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: takes jobs in order of arrival, adds their prompts to the generator as there is room, and steps it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/log.h"
#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/base/visible.h"
#include "lib/infer/kv_cache.h"
#include "lib/serve/serve_parts.h"

enum { LONGEST_CONTEXT = 8192 }; /* unless the caller asks for more: each running request reserves pages for its own length */
static const double sweep_seconds = 0.1, again_seconds = 1;

/* ---- jobs ---- */

Job *job_new(Exchange *x, ServedModel *model) {
    Job *job = calloc(1, sizeof *job);
    if (!job) {
        served_leave(x->server, model);
        exchange_fail(x, 503, NULL, "out_of_memory", "no memory for the request");
        return NULL;
    }
    exchange_keep(x);
    job->exchange = x;
    job->model = model;
    return job;
}

void job_free(Job *job) {
    Server *server = job->exchange->server;
    served_leave(server, job->model);
    exchange_leave(job->exchange);
    answer_release(server, job->answer);
    json_decref(job->body);
    for (size_t i = 0; i < job->n_ids; i++) ids_release(&job->ids[i]);
    free(job->ids);
    jw_release(&job->written);
    free(job);
}

void engine_submit(Job *job) {
    Server *server = job->exchange->server;
    Exchange *x = job->exchange;
    pthread_mutex_lock(&server->lock);
    bool ends = !server->running || server->draining, full = server->n_waiting >= server->config.max_queue;
    if (!ends && !full) {
        if (job->answer) x->stream = job->answer->stream;
        *server->inbox_end = job;
        server->inbox_end = &job->next;
        server->n_waiting++;
        server->n_jobs++;
        pthread_cond_signal(&server->wake);
    }
    pthread_mutex_unlock(&server->lock);
    if (!ends && !full) return;
    if (ends)
        exchange_fail(x, 503, NULL, "shutting_down", "the server ends");
    else
        exchange_fail(x, 429, NULL, "queue_full", "%lld requests wait already: try again later", (long long)server->config.max_queue);
    job_free(job);
}

/* The engine's jobs get those of the inbox. */
static void take_inbox(Server *server) {
    Job **end = &server->jobs;
    while (*end) end = &(*end)->next;
    pthread_mutex_lock(&server->lock);
    *end = server->inbox;
    server->inbox = NULL;
    server->inbox_end = &server->inbox;
    pthread_mutex_unlock(&server->lock);
}

static bool is_waiting(const Job *job) { return job->work || job->answer->n_added < job->answer->n_prompts; }

static void job_started(Server *server) {
    pthread_mutex_lock(&server->lock);
    server->n_waiting--;
    pthread_mutex_unlock(&server->lock);
}

/* Takes the job out of the list and frees it. Its response is complete, or its client is gone. */
static void end_job(Server *server, Job **place) {
    Job *job = *place;
    *place = job->next;
    pthread_mutex_lock(&server->lock);
    server->n_jobs--;
    server->n_waiting -= is_waiting(job);
    pthread_mutex_unlock(&server->lock);
    job_free(job);
}

/* ---- prompts come in ---- */

static void job_add(Server *server, Job *job) {
    Answer *answer = job->answer;
    GenerateRequest request = answer->request;
    size_t i = answer->n_added;
    request.prompt = (Prompt){answer->prompts[i].data, answer->prompts[i].n, i};
    request.prompt_index = i;
    request.adapter = job->model->adapter;
    request.on_token = answer_token;
    request.on_done = answer_done;
    request.context = job;
    Status status = generator_add(server->generator, &request, &answer->handles[i]);
    if (status != ST_OK) {
        answer->n_added = answer->n_prompts;
        job_started(server);
        exchange_fail_status(job->exchange, status == ST_RESOURCE ? ST_INPUT : status); /* it would have no room even alone */
    } else if (answer->handles[i]) {
        if (answer->admitted == 0) answer->admitted = clock_seconds();
        if (++answer->n_added == answer->n_prompts) job_started(server);
    }
}

/* False: nothing after this job may come in before it. */
static bool job_admit(Server *server, Job *job) {
    Answer *answer = job->answer;
    if (!isnan(answer->lora_scale)) {
        Status status = served_scaled(server, &job->model, answer->lora_scale);
        answer->lora_scale = (double)NAN;
        if (status != ST_OK) exchange_fail_status(job->exchange, status);
        if (status != ST_OK) return true;
    }
    if (answer->echo && !answer->echoed) {
        Status status = answer_score(server, job, &answer->echoed);
        if (status != ST_OK) exchange_fail_status(job->exchange, status);
        if (status != ST_OK || !answer->echoed) return true;
        answer_echo(job);
    }
    while (!job->exchange->ended && answer->request.max_new_tokens > 0 && answer->n_added < answer->n_prompts) {
        size_t before = answer->n_added;
        job_add(server, job);
        if (answer->n_added == before) return false;
    }
    if (answer->request.max_new_tokens == 0 && answer->n_added < answer->n_prompts) {
        answer->n_added = answer->n_prompts;
        answer->n_ended = answer->n_choices;
        job_started(server);
    }
    return true;
}

static void admit_jobs(Server *server) {
    for (Job **place = &server->jobs; *place;) {
        Job *job = *place;
        if (job->work && job->work(server, job)) {
            end_job(server, place);
            continue;
        }
        if (!job->work && is_waiting(job) && !job_admit(server, job)) return;
        place = &job->next;
    }
}

/* ---- jobs end ---- */

static void drop_requests(Server *server, const Job *job) {
    for (size_t i = 0; job->answer && i < job->answer->n_added; i++) generator_cancel(server->generator, job->answer->handles[i]);
}

static bool out_of_time(const Server *server, const Job *job, double now) { return now - job->exchange->began > server->config.max_seconds; }

/* Ends those that are finished, and those whose client went. */
static void end_jobs(Server *server, double now) {
    for (Job **place = &server->jobs; *place;) {
        Job *job = *place;
        Answer *answer = job->answer;
        bool gone = exchange_is_gone(job->exchange), whole = answer && !is_waiting(job) && answer->n_ended == answer->n_choices,
             over = job->exchange->ended; /* it has failed */
        if (!gone && !over && !whole && out_of_time(server, job, now)) {
            exchange_fail(job->exchange, 503, NULL, "timeout", "the request took more than %.0f s", server->config.max_seconds);
            over = true;
        }
        if (whole && !over && !gone) answer_finish(job);
        if (gone || over || whole) {
            if (!whole) drop_requests(server, job);
            pthread_mutex_lock(&server->lock);
            server->counters.cancelled += gone && !whole;
            pthread_mutex_unlock(&server->lock);
            end_job(server, place);
        } else {
            place = &job->next;
        }
    }
}

/* ---- the generator ---- */

static Status open_generator(Server *server) {
    return generator_open(server->config.model, server->config.tokenizer, &server->size, &server->generator);
}

/* The generator is broken: all requests fail, and a new one begins. */
static Status replace_generator(Server *server, Status status) {
    Failure failure;
    failure_save(&failure, status);
    log_message(LOG_WARNING, "all requests in work fail: %s", status_text());
    for (Job *job = server->jobs; job; job = job->next) {
        failure_restore(&failure);
        if (!job->exchange->ended) exchange_fail_status(job->exchange, ST_RESOURCE);
    }
    generator_close(server->generator); /* before the jobs, whose prompts it may still read */
    server->generator = NULL;
    while (server->jobs) end_job(server, &server->jobs);
    memory_clear_failure();
    return open_generator(server);
}

static Status engine_step(Server *server) {
    Status status = generator_step(server->generator);
    if (status != ST_OK) TRY(replace_generator(server, status));
    if (memory_is_short()) {
        log_message(LOG_WARNING, "memory ran out: answers may have failed");
        memory_clear_failure();
    }
    return ST_OK;
}

/* ---- the loop ---- */

static void tell_unknown_fields(Server *server) {
    char name[sizeof server->unknown[0]] = "";
    pthread_mutex_lock(&server->lock);
    if (server->n_told < server->n_unknown) memcpy(name, server->unknown[server->n_told++], sizeof name);
    pthread_mutex_unlock(&server->lock);
    if (!*name) return;
    Str shown = {0};
    visible_text(&shown, name);
    log_message(LOG_WARNING, "requests have the unknown parameter '%s', which is ignored", str_text(&shown));
    str_release(&shown);
}

static void tell_audit(Server *server) {
    pthread_mutex_lock(&server->audit_lock);
    bool news = server->audit_failed && !server->audit_told;
    server->audit_told |= news;
    pthread_mutex_unlock(&server->audit_lock);
    if (news) log_message(LOG_WARNING, "the log of requests '%s' cannot be written", server->config.audit);
}

static void look_around(Server *server, double now) {
    if (now - server->swept < sweep_seconds) return;
    server->swept = now;
    GeneratorStats stats = generator_stats(server->generator);
    pthread_mutex_lock(&server->lock);
    server->stats = stats;
    pthread_mutex_unlock(&server->lock);
    http_sweep(server, now);
    models_sweep(server);
    tell_unknown_fields(server);
    tell_audit(server);
}

/* Sleeps until there is a job, at most until the next look for clients that went and for signals. */
static void wait_for_jobs(Server *server) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(sweep_seconds * 1e9);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&server->lock);
    int error = 0;
    while (!server->inbox && error != ETIMEDOUT) error = pthread_cond_timedwait(&server->wake, &server->lock, &until);
    pthread_mutex_unlock(&server->lock);
}

/* Whether the loop goes on. An interrupt ends it when no job is left, a second one at once. */
static bool goes_on(Server *server, double now, double *since) {
    pthread_mutex_lock(&server->lock);
    if (interrupt_requested()) {
        bool again = server->draining && now - *since > again_seconds;
        interrupt_clear(); /* scoring would end with it, and requests in work are to be finished */
        if (again) server->stopping = true;
        server->draining = true;
    }
    if (server->draining && *since == 0) *since = now;
    bool on = !server->stopping && (!server->draining || server->n_jobs > 0);
    pthread_mutex_unlock(&server->lock);
    return on;
}

Status server_run(Server *server) {
    double drained_since = 0;
    Status status = ST_OK;
    pthread_mutex_lock(&server->lock);
    server->running = true;
    pthread_mutex_unlock(&server->lock);
    while (status == ST_OK) {
        double now = clock_seconds();
        if (!goes_on(server, now, &drained_since)) break;
        take_inbox(server);
        admit_jobs(server);
        end_jobs(server, now);
        look_around(server, now);
        if (generator_busy(server->generator)) {
            status = engine_step(server);
            end_jobs(server, now);
        } else if (!server->jobs) {
            wait_for_jobs(server);
        }
    }
    pthread_mutex_lock(&server->lock);
    server->running = false;
    server->draining = true;
    pthread_mutex_unlock(&server->lock);
    take_inbox(server);
    for (Job *job = server->jobs; job; job = job->next)
        if (!job->exchange->ended) exchange_fail(job->exchange, 503, NULL, "shutting_down", "the server ends");
    return status;
}

void server_stop(Server *server) {
    pthread_mutex_lock(&server->lock);
    server->draining = true;
    pthread_cond_signal(&server->wake);
    pthread_mutex_unlock(&server->lock);
}

/* ---- open and close ---- */

/* What the forms of answers may take. */
static void size_schemas(Server *server) {
    const Tokenizer *tokenizer = server->config.tokenizer;
    size_t room = (size_t)memory_available() / 8;
    while (tokenizer && server->max_schemas < server->config.max_schemas && constraints_bytes(tokenizer, (size_t)server->max_schemas + 1) <= room)
        server->max_schemas++;
    server->size.constraint_bytes = tokenizer ? constraints_bytes(tokenizer, (size_t)server->max_schemas) : 0;
}

/* Pages for max_sequences of the longest length, as far as the memory for keys and values reaches. */
static Status size_generator(Server *server) {
    const ServeConfig *config = &server->config;
    const ModelConfig *model = &config->model->config;
    int64_t most = model->max_position_embeddings > 0 ? model->max_position_embeddings : LONGEST_CONTEXT;
    server->max_context = config->max_context ? config->max_context : MIN(most, LONGEST_CONTEXT);
    if (model->learned_positions) server->max_context = MIN(server->max_context, most);
    server->size = generator_size(config->model, config->max_sequences, server->max_context, &(GenerateConfig){.max_batch = config->max_sequences});
    server->size.keep_prefixes = true;
    size_schemas(server);
    if (config->max_memory == 0) return ST_OK;
    size_t page = kv_page_bytes(config->model);
    server->size.max_pages = MIN(server->size.max_pages, (int64_t)(config->max_memory / page));
    if (server->size.max_pages > 1) return ST_OK;
    char need[32], have[32];
    return status_fail(ST_USAGE, "%s for keys and values are less than the %s of two pages", format_bytes((double)config->max_memory, have),
                       format_bytes(2 * (double)page, need));
}

static uint64_t random_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return mix64((uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec);
}

Status server_open(const ServeConfig *config, Server **result) {
    Server *server = *result = calloc(1, sizeof *server);
    if (!server) return status_fail(ST_RESOURCE, "out of memory for the server");
    *server = (Server){.config = *config, .created = (int64_t)time(NULL), .seeds = random_seed()};
    server->inbox_end = &server->inbox;
    pthread_mutex_init(&server->lock, NULL);
    pthread_mutex_init(&server->audit_lock, NULL);
    pthread_cond_init(&server->wake, NULL);
    Status status = models_begin(server);
    if (status == ST_OK) status = size_generator(server);
    if (status == ST_OK) status = http_listen(server); /* before the memory is taken: a port that is in use is the more usual mistake */
    if (status == ST_OK) status = open_generator(server);
    if (status == ST_OK) return ST_OK;
    server_close(server);
    *result = NULL;
    return status;
}

int server_port(const Server *server) { return server->port; }

void server_close(Server *server) {
    if (!server) return;
    http_stop(server);
    take_inbox(server);
    generator_close(server->generator);
    while (server->jobs) end_job(server, &server->jobs);
    models_release(server);
    constraints_release(server);
    pthread_cond_destroy(&server->wake);
    pthread_mutex_destroy(&server->audit_lock);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
