/* SPDX-License-Identifier: Apache-2.0 */
/* From tokens to events of a stream, and to whole answers. */
#include <math.h>
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
    free(answer->choices);
    free(answer);
}

static const Server *server_of(const Job *job) { return job->exchange->server; }

/* ---- log-probabilities ---- */

/* A token of an answer or, with echo, of its prompt. */
typedef struct TokenView {
    int32_t id;
    double logprob;          /* NaN: none */
    const TokenLogprob *top; /* Answer.n_top entries; NULL: none */
} TokenView;

static void token_text(const Job *job, int32_t id, Str *text) {
    const Tokenizer *tokenizer = server_of(job)->config.tokenizer;
    str_clear(text);
    if (!tokenizer || tokenizer_decode(tokenizer, &id, 1, false, text) != ST_OK) str_printf(text, "token_id:%d", id);
}

/* The bytes that it adds to a text: a part of a character has its own, where its text is U+FFFD. */
static void token_bytes(const Job *job, int32_t id, Str *bytes) {
    const Tokenizer *tokenizer = server_of(job)->config.tokenizer;
    if (!tokenizer || tokenizer_is_special(tokenizer, id)) return;
    str_clear(bytes);
    tokenizer_token_bytes(tokenizer, id, bytes);
}

static void write_chat_token(JsonWriter *w, const Job *job, int32_t id, double logprob) {
    Str text = {0};
    token_text(job, id, &text);
    jw_string_n(w, "token", str_text(&text), text.len);
    jw_double(w, "logprob", logprob);
    token_bytes(job, id, &text);
    jw_array(w, "bytes");
    for (size_t i = 0; i < text.len; i++) jw_int(w, NULL, (unsigned char)text.data[i]);
    jw_end_array(w);
    str_release(&text);
}

static void write_chat_logprobs(JsonWriter *w, const Job *job, const TokenView *tokens, size_t n) {
    jw_object(w, "logprobs");
    jw_array(w, "content");
    for (size_t i = 0; i < n; i++) {
        jw_object(w, NULL);
        write_chat_token(w, job, tokens[i].id, tokens[i].logprob);
        jw_array(w, "top_logprobs");
        for (int64_t k = 0; tokens[i].top && k < job->answer->n_top; k++) {
            jw_object(w, NULL);
            write_chat_token(w, job, tokens[i].top[k].id, tokens[i].top[k].logprob);
            jw_end_object(w);
        }
        jw_end_array(w);
        jw_end_object(w);
    }
    jw_end_array(w);
    jw_null(w, "refusal");
    jw_end_object(w);
}

/* As OpenAI's, the token itself is among them even if it is not among the likeliest. */
static void write_text_top(JsonWriter *w, const Job *job, const TokenView *token) {
    Str text = {0};
    bool itself = false;
    if (!token->top || isnan(token->logprob)) {
        jw_null(w, NULL);
        return;
    }
    jw_object(w, NULL);
    for (int64_t k = 0; k < job->answer->n_top; k++) {
        itself |= token->top[k].id == token->id;
        token_text(job, token->top[k].id, &text);
        jw_double(w, str_text(&text), token->top[k].logprob);
    }
    token_text(job, token->id, &text);
    if (!itself) jw_double(w, str_text(&text), token->logprob);
    jw_end_object(w);
    str_release(&text);
}

/* offset: where the text of the first token begins; the result is where the text after the last one does. */
static size_t write_text_logprobs(JsonWriter *w, const Job *job, const TokenView *tokens, size_t n, size_t offset) {
    Str text = {0};
    jw_object(w, "logprobs");
    jw_array(w, "tokens");
    for (size_t i = 0; i < n; i++) {
        token_text(job, tokens[i].id, &text);
        jw_string_n(w, NULL, str_text(&text), text.len);
    }
    jw_end_array(w);
    jw_array(w, "token_logprobs");
    for (size_t i = 0; i < n; i++) jw_double(w, NULL, tokens[i].logprob);
    jw_end_array(w);
    jw_array(w, "top_logprobs");
    for (size_t i = 0; i < n; i++) write_text_top(w, job, &tokens[i]);
    jw_end_array(w);
    jw_array(w, "text_offset");
    for (size_t i = 0; i < n; i++) {
        jw_int(w, NULL, (int64_t)offset);
        token_text(job, tokens[i].id, &text);
        offset += text.len;
    }
    jw_end_array(w);
    jw_end_object(w);
    str_release(&text);
    return offset;
}

static size_t write_logprobs(JsonWriter *w, const Job *job, const TokenView *tokens, size_t n, size_t offset) {
    if (job->answer->n_top < 0)
        jw_null(w, "logprobs");
    else if (job->answer->chat)
        write_chat_logprobs(w, job, tokens, n);
    else
        return write_text_logprobs(w, job, tokens, n, offset);
    return 0;
}

/* The tokens of a prompt with their scores; those of a completion. */
static size_t view_prompt(const Answer *answer, size_t prompt, TokenView *tokens) {
    const Ids *ids = &answer->prompts[prompt];
    const PromptScores *scores = &answer->scores[prompt];
    for (size_t i = 0; i < ids->n; i++)
        tokens[i] = (TokenView){ids->data[i], scores->logprobs[i], scores->top ? scores->top + i * (size_t)answer->n_top : NULL};
    return ids->n;
}

static size_t view_completion(const Answer *answer, const Completion *c, TokenView *tokens) {
    for (size_t i = 0; i < c->ids.n; i++) tokens[i] = (TokenView){c->ids.data[i], c->logprobs[i], c->top ? c->top + i * (size_t)answer->n_top : NULL};
    return c->ids.n;
}

/* ---- what all answers and events begin and end with ---- */

static void write_head(JsonWriter *w, const Job *job, bool event) {
    const Answer *answer = job->answer;
    Str mark = {0};
    str_printf(&mark, "tune-%s", server_of(job)->config.version);
    jw_object(w, NULL);
    jw_string(w, "id", answer->id);
    jw_string(w, "object", !answer->chat ? "text_completion" : event ? "chat.completion.chunk" : "chat.completion");
    jw_int(w, "created", answer->created);
    jw_string(w, "model", job->model->name);
    jw_string(w, "system_fingerprint", str_text(&mark));
    str_release(&mark);
}

static void write_usage(JsonWriter *w, const Answer *answer) {
    jw_object(w, "usage");
    jw_int(w, "prompt_tokens", answer->prompt_tokens);
    jw_int(w, "completion_tokens", answer->answer_tokens);
    jw_int(w, "total_tokens", answer->prompt_tokens + answer->answer_tokens);
    jw_end_object(w);
}

static const char *finish_name(const Job *job, const Choice *choice) {
    bool stopped = job->answer->request.max_new_tokens > 0 && choice->completion.finish == FINISH_STOP;
    return !stopped ? "length" : choice->n_calls > 0 ? "tool_calls" : "stop";
}

/* ---- events ---- */

static void event_send(Job *job, JsonWriter *w) {
    Str event = {0};
    jw_end_object(w);
    str_append(&event, "data: ");
    str_append_n(&event, str_text(&w->text), w->text.len);
    str_append(&event, "\n\n");
    exchange_push(job->exchange, &event);
    str_release(&event);
    jw_release(w);
}

static void event_begin(JsonWriter *w, const Job *job, size_t choice) {
    write_head(w, job, true);
    jw_array(w, "choices");
    jw_object(w, NULL);
    jw_int(w, "index", (int64_t)choice);
}

static void event_end(JsonWriter *w, Job *job, const char *finish) {
    jw_string(w, "finish_reason", finish);
    jw_end_object(w);
    jw_end_array(w);
    if (job->answer->tell_usage) jw_null(w, "usage");
    if (finish) jw_int(w, "seed", (int64_t)job->answer->request.seed);
    event_send(job, w);
}

/* What an event adds to its choice. */
typedef struct Addition {
    const char *text; /* NULL: none */
    size_t len;
    bool reasons;       /* the text is reasoning */
    const json_t *call; /* NULL: none */
    const TokenView *tokens;
    size_t n_tokens;
} Addition;

static void write_delta(JsonWriter *w, const Choice *choice, const Addition *added) {
    jw_object(w, "delta");
    if (!choice->begun) jw_string(w, "role", "assistant");
    if (added->text) jw_string_n(w, added->reasons ? "reasoning_content" : "content", added->text, added->len);
    if (added->call) {
        char *text = json_text(added->call, 0);
        jw_array(w, "tool_calls");
        jw_raw(w, NULL, text ? text : "null");
        jw_end_array(w);
        free(text);
    }
    jw_end_object(w);
}

static void event_add(Job *job, size_t choice, const Addition *added) {
    Choice *its = &job->answer->choices[choice];
    JsonWriter w = {0};
    event_begin(&w, job, choice);
    if (job->answer->chat)
        write_delta(&w, its, added);
    else
        jw_string_n(&w, "text", added->text, added->len);
    its->begun = true;
    its->offset = write_logprobs(&w, job, added->tokens, added->n_tokens, its->offset);
    event_end(&w, job, NULL);
}

/* A piece of an answer that is taken apart. */
typedef struct Sending {
    Job *job;
    size_t choice;
} Sending;

static Status send_piece(void *context, const ReplyPiece *piece) {
    Sending *sending = context;
    Choice *choice = &sending->job->answer->choices[sending->choice];
    Addition added = {.text = piece->text.data, .len = piece->text.len, .reasons = piece->kind == REPLY_REASONING};
    if (piece->kind == REPLY_CALL) {
        json_t *call = call_of_piece(sending->job, sending->choice, piece);
        if (!call) return status_fail(ST_RESOURCE, "out of memory for a call");
        choice->n_calls++;
        event_add(sending->job, sending->choice, &(Addition){.call = call});
        json_decref(call);
    } else {
        event_add(sending->job, sending->choice, &added);
    }
    return ST_OK;
}

/* Text that was added, with its token if log-probabilities are asked for. Where the answer is taken apart, the pieces come as they are known, so the
 * token has an event of its own. */
static Status event_text(Job *job, size_t choice, const char *text, size_t len, const TokenView *tokens, size_t n_tokens) {
    Choice *its = &job->answer->choices[choice];
    Addition added = {.text = text, .len = len, .tokens = tokens, .n_tokens = n_tokens};
    if (!answer_is_parsed(job->answer)) {
        event_add(job, choice, &added);
        return ST_OK;
    }
    TRY(choice_begin(job, its));
    added.text = "";
    added.len = 0;
    if (job->answer->n_top >= 0) event_add(job, choice, &added);
    return reply_push(its->reply, text, len, send_piece, &(Sending){job, choice});
}

static void event_finish(Job *job, size_t choice) {
    JsonWriter w = {0};
    const Choice *its = &job->answer->choices[choice];
    if (!its->begun) event_add(job, choice, &(Addition){.text = ""});
    event_begin(&w, job, choice);
    if (job->answer->chat) {
        jw_object(&w, "delta");
        jw_end_object(&w);
    } else {
        jw_string(&w, "text", "");
    }
    jw_null(&w, "logprobs");
    event_end(&w, job, finish_name(job, its));
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
        event_finish(job, choice);
    return ST_OK;
}

/* ---- prompts that are part of the answer ---- */

/* The text of a prompt: as it was sent, or of the ids that were. */
static void append_prompt(const Job *job, size_t prompt, Str *text) {
    const Answer *answer = job->answer;
    const Ids *ids = &answer->prompts[prompt];
    const Tokenizer *tokenizer = server_of(job)->config.tokenizer;
    if (answer->texts[prompt].len > 0)
        str_append_n(text, answer->texts[prompt].data, answer->texts[prompt].len);
    else if (tokenizer)
        (void)tokenizer_decode(tokenizer, ids->data, ids->n, false, text);
}

void answer_echo(Job *job) {
    Answer *answer = job->answer;
    for (size_t choice = 0; answer->stream && choice < answer->n_choices; choice++) {
        size_t prompt = choice / (size_t)answer->n;
        Str text = {0};
        TokenView *tokens = calloc(answer->prompts[prompt].n + 1, sizeof *tokens);
        append_prompt(job, prompt, &text);
        size_t n = tokens && answer->scores ? view_prompt(answer, prompt, tokens) : 0;
        event_add(job, choice, &(Addition){.text = str_text(&text), .len = text.len, .tokens = tokens, .n_tokens = n});
        if (answer->request.max_new_tokens == 0) event_finish(job, choice);
        free(tokens);
        str_release(&text);
    }
}

/* ---- whole answers ---- */

static void write_text_choice(JsonWriter *w, const Job *job, const Choice *choice, size_t prompt) {
    const Answer *answer = job->answer;
    const Completion *c = &choice->completion;
    Str text = {0};
    if (answer->echo) append_prompt(job, prompt, &text);
    str_append_n(&text, str_text(&c->text), c->text.len);
    jw_string_n(w, "text", str_text(&text), text.len);
    str_release(&text);
}

static void write_message(JsonWriter *w, const Answer *answer, const Choice *choice) {
    jw_object(w, "message");
    jw_string(w, "role", "assistant");
    if (choice->n_calls > 0 && choice->text.len == 0)
        jw_null(w, "content");
    else
        jw_string_n(w, "content", str_text(&choice->text), choice->text.len);
    if (answer->splits) jw_string_n(w, "reasoning_content", str_text(&choice->reasoning), choice->reasoning.len);
    jw_null(w, "refusal");
    if (choice->n_calls > 0) {
        char *calls = json_text(choice->calls, 0);
        jw_raw(w, "tool_calls", calls ? calls : "null");
        free(calls);
    }
    jw_end_object(w);
}

static void write_choice(JsonWriter *w, const Job *job, size_t at) {
    const Answer *answer = job->answer;
    const Choice *choice = &answer->choices[at];
    size_t prompt = at / (size_t)answer->n;
    TokenView *tokens = answer->n_top >= 0 ? calloc(answer->prompts[prompt].n + choice->completion.ids.n + 1, sizeof *tokens) : NULL;
    size_t n = tokens && answer->scores ? view_prompt(answer, prompt, tokens) : 0;
    if (tokens) n += view_completion(answer, &choice->completion, tokens + n);
    jw_object(w, NULL);
    jw_int(w, "index", (int64_t)at);
    if (answer->chat)
        write_message(w, answer, choice);
    else
        write_text_choice(w, job, choice, prompt);
    write_logprobs(w, job, tokens, n, 0);
    jw_string(w, "finish_reason", finish_name(job, choice));
    jw_end_object(w);
    free(tokens);
}

static void send_whole(Job *job) {
    JsonWriter w = {0};
    write_head(&w, job, false);
    jw_array(&w, "choices");
    for (size_t i = 0; i < job->answer->n_choices; i++) write_choice(&w, job, i);
    jw_end_array(&w);
    write_usage(&w, job->answer);
    jw_int(&w, "seed", (int64_t)job->answer->request.seed);
    jw_end_object(&w);
    exchange_answer_json(job->exchange, 200, &w);
}

static void send_last_events(Job *job) {
    static const char done[] = "data: [DONE]\n\n";
    Answer *answer = job->answer;
    Exchange *x = job->exchange;
    JsonWriter w = {0};
    if (answer->tell_usage) {
        write_head(&w, job, true);
        jw_array(&w, "choices");
        jw_end_array(&w);
        write_usage(&w, answer);
        event_send(job, &w);
    }
    exchange_push(x, &(Str){(char *)(uintptr_t)done, sizeof done - 1, 0});
    pthread_mutex_lock(&x->server->lock);
    x->status = 200;
    pthread_mutex_unlock(&x->server->lock);
    exchange_end(x);
}

void answer_finish(Job *job) {
    Server *server = job->exchange->server;
    if (job->answer->stream)
        send_last_events(job);
    else
        send_whole(job);
    pthread_mutex_lock(&server->lock);
    histogram_add(&server->counters.whole, clock_seconds() - job->answer->queued);
    pthread_mutex_unlock(&server->lock);
}
