/* SPDX-License-Identifier: Apache-2.0 */
/* From tokens to what a dialect makes events and whole answers of. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/serve/serve_parts.h"

void answer_release(Server *server, Answer *answer) {
    if (!answer) return;
    for (size_t i = 0; i < answer->n_prompts; i++) {
        ids_release(&answer->prompts[i]);
        str_release(&answer->texts[i]);
        if (answer->scores) free(answer->scores[i].logprobs), free(answer->scores[i].top);
    }
    for (size_t i = 0; answer->choices && i < answer->n_choices; i++) choice_release(&answer->choices[i]);
    constraint_leave(server, answer->constraint);
    json_decref(answer->tools);
    str_release(&answer->rendered);
    free(answer->bias);
    for (size_t i = 0; answer->stop && answer->stop[i]; i++) free(answer->stop[i]);
    free(answer->prompts);
    free(answer->texts);
    free(answer->handles);
    free(answer->scores);
    free(answer->stop);
    free(answer->stop_ids);
    free(answer->choices);
    free(answer);
}

static const Server *server_of(const Job *job) { return job->exchange->server; }

/* ---- what is added ---- */

/* A piece of an answer that is taken apart. */
typedef struct Sending {
    Job *job;
    size_t choice;
} Sending;

static Status send_piece(void *context, const ReplyPiece *piece) {
    Sending *sending = context;
    Choice *choice = &sending->job->answer->choices[sending->choice];
    Addition added = {.text = piece->text.data, .len = piece->text.len, .reasons = piece->kind == REPLY_REASONING};
    if (piece->kind == REPLY_CALL) added = (Addition){.call = piece};
    choice->n_calls += piece->kind == REPLY_CALL;
    sending->job->answer->dialect->add(sending->job, sending->choice, &added);
    return memory_check(ST_OK);
}

/* Text that was added, with its token if log-probabilities are asked for. Where the answer is taken apart, the pieces come as they are known, so the
 * token has an event of its own. */
static Status event_text(Job *job, size_t choice, const char *text, size_t len, const TokenView *tokens, size_t n_tokens) {
    Choice *its = &job->answer->choices[choice];
    Addition added = {.text = text, .len = len, .tokens = tokens, .n_tokens = n_tokens};
    if (!answer_is_parsed(job->answer)) {
        job->answer->dialect->add(job, choice, &added);
        return ST_OK;
    }
    TRY(choice_begin(job, its));
    added.text = "";
    added.len = 0;
    if (job->answer->n_top >= 0) job->answer->dialect->add(job, choice, &added);
    return reply_push(its->reply, text, len, send_piece, &(Sending){job, choice});
}

/* ---- tokens come ---- */

static size_t choice_of(const Answer *answer, size_t prompt, int64_t sample) { return prompt * (size_t)answer->n + (size_t)sample; }

static void count_token(Job *job) {
    Server *server = job->exchange->server;
    Answer *answer = job->answer;
    double now = clock_seconds();
    pthread_mutex_lock(&server->lock);
    server->counters.answer_tokens++;
    if (answer->first == 0) {
        server->counters.prompt_tokens += (uint64_t)answer->prompt_tokens;
        histogram_add(&server->counters.first_token, now - answer->queued);
        histogram_add(&server->counters.queue, answer->admitted - answer->queued);
    } else if (answer->n_choices == 1) {
        histogram_add(&server->counters.per_token, now - answer->latest);
    }
    pthread_mutex_unlock(&server->lock);
    if (answer->first == 0) answer->first = now;
    answer->latest = now;
    job->exchange->answer_tokens = ++answer->answer_tokens;
}

Status answer_token(void *context, size_t prompt, int64_t sample, int32_t id, double logprob, const char *text) {
    Job *job = context;
    Answer *answer = job->answer;
    count_token(job);
    if (!answer->stream || job->exchange->ended) return ST_OK;
    TokenView token = {id, logprob, answer->n_top > 0 ? generator_top(server_of(job)->generator) : NULL};
    if (!*text && answer->n_top < 0) return ST_OK;
    Status status = event_text(job, choice_of(answer, prompt, sample), text, strlen(text), &token, 1);
    if (status != ST_OK) exchange_fail_status(job->exchange, status);
    return ST_OK;
}

/* Takes the rest of an answer apart. */
static Status choice_end(Job *job, size_t choice) {
    Choice *its = &job->answer->choices[choice];
    if (!job->answer->stream) return choice_gather(job, choice);
    return its->reply ? reply_finish(its->reply, send_piece, &(Sending){job, choice}) : ST_OK;
}

Status answer_done(void *context, Completion *completion) {
    Job *job = context;
    Answer *answer = job->answer;
    size_t choice = choice_of(answer, completion->prompt, completion->sample);
    Status status = completion->finish == FINISH_FAILED ? completion->status : ST_OK;
    answer->choices[choice].completion = *completion;
    *completion = (Completion){0};
    answer->n_ended++;
    if (job->exchange->ended) return ST_OK;
    if (status == ST_OK) status = choice_end(job, choice);
    if (status != ST_OK)
        exchange_fail_status(job->exchange, status);
    else if (answer->stream)
        answer->dialect->end(job, choice);
    return ST_OK;
}

/* ---- the end ---- */

bool ends_answer(const Job *job, int32_t id) {
    const ServeConfig *config = &server_of(job)->config;
    for (size_t i = 0; i < config->model->config.n_eos; i++)
        if (config->model->config.eos_token_id[i] == id) return true;
    return id == job->answer->end_of_turn || (config->tokenizer && id == tokenizer_eos(config->tokenizer));
}

const char *finish_name(const Job *job, const Choice *choice) {
    bool stopped = job->answer->request.max_new_tokens > 0 && choice->completion.finish == FINISH_STOP;
    return !stopped ? "length" : choice->n_calls > 0 ? "tool_calls" : "stop";
}

void event_send(Job *job, const char *name, JsonWriter *w) {
    Str event = {0};
    jw_end_object(w);
    if (name) str_printf(&event, "event: %s\n", name);
    str_append(&event, "data: ");
    str_append_n(&event, str_text(&w->text), w->text.len);
    str_append(&event, "\n\n");
    exchange_push(job->exchange, &event);
    str_release(&event);
    jw_release(w);
}

static void end_stream(Job *job) {
    Exchange *x = job->exchange;
    job->answer->dialect->last(job);
    pthread_mutex_lock(&x->server->lock);
    x->status = 200;
    pthread_mutex_unlock(&x->server->lock);
    exchange_end(x);
}

void answer_finish(Job *job) {
    Server *server = job->exchange->server;
    JsonWriter w = {0};
    if (job->answer->stream) {
        end_stream(job);
    } else {
        job->answer->dialect->whole(&w, job);
        exchange_answer_json(job->exchange, 200, &w);
    }
    pthread_mutex_lock(&server->lock);
    histogram_add(&server->counters.whole, clock_seconds() - job->answer->queued);
    pthread_mutex_unlock(&server->lock);
}
