/* SPDX-License-Identifier: Apache-2.0 */
/* Answers as OpenAI's chat and text completions: events of a stream, whole answers, log-probabilities. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/serve/serve_parts.h"

static const Server *server_of(const Job *job) { return job->exchange->server; }

/* ---- log-probabilities ---- */

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

/* ---- events ---- */

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
    event_send(job, NULL, w);
}

static void write_delta(JsonWriter *w, const Job *job, size_t at, const Addition *added) {
    const Choice *choice = &job->answer->choices[at];
    jw_object(w, "delta");
    if (!choice->begun) jw_string(w, "role", "assistant");
    if (added->text) jw_string_n(w, added->reasons ? "reasoning_content" : "content", added->text, added->len);
    if (added->call) {
        json_t *call = call_of_piece(job, at, added->call);
        char *text = call ? json_text(call, 0) : NULL;
        jw_array(w, "tool_calls");
        jw_raw(w, NULL, text ? text : "null");
        jw_end_array(w);
        free(text);
        json_decref(call);
    }
    jw_end_object(w);
}

static void completion_add(Job *job, size_t choice, const Addition *added) {
    Choice *its = &job->answer->choices[choice];
    JsonWriter w = {0};
    event_begin(&w, job, choice);
    if (job->answer->chat)
        write_delta(&w, job, choice, added);
    else
        jw_string_n(&w, "text", added->text, added->len);
    its->begun = true;
    its->offset = write_logprobs(&w, job, added->tokens, added->n_tokens, its->offset);
    event_end(&w, job, NULL);
}

static void completion_end(Job *job, size_t choice) {
    JsonWriter w = {0};
    const Choice *its = &job->answer->choices[choice];
    if (!its->begun) completion_add(job, choice, &(Addition){.text = ""});
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
        completion_add(job, choice, &(Addition){.text = str_text(&text), .len = text.len, .tokens = tokens, .n_tokens = n});
        if (answer->request.max_new_tokens == 0) completion_end(job, choice);
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

static void write_completion(JsonWriter *w, const Job *job) {
    write_head(w, job, false);
    jw_array(w, "choices");
    for (size_t i = 0; i < job->answer->n_choices; i++) write_choice(w, job, i);
    jw_end_array(w);
    write_usage(w, job->answer);
    jw_int(w, "seed", (int64_t)job->answer->request.seed);
    jw_end_object(w);
}

static void completion_last(Job *job) {
    static const char done[] = "data: [DONE]\n\n";
    Answer *answer = job->answer;
    JsonWriter w = {0};
    if (answer->tell_usage) {
        write_head(&w, job, true);
        jw_array(&w, "choices");
        jw_end_array(&w);
        write_usage(&w, answer);
        event_send(job, NULL, &w);
    }
    exchange_push(job->exchange, &(Str){(char *)(uintptr_t)done, sizeof done - 1, 0});
}

const Dialect dialect_completions = {completion_add, completion_end, completion_last, write_completion};
