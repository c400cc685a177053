/* SPDX-License-Identifier: Apache-2.0 */
/* A token extends an answer: its text, the texts and tokens that end it, and the completion that is handed out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/memory.h"
#include "lib/infer/generator_parts.h"

/* Bytes of text that no stop text can still begin in. */
static size_t settled(const GenerateRequest *request, const Str *text) {
    size_t keep = text->len;
    for (size_t i = 0; i < request->n_stop; i++) {
        size_t len = strlen(request->stop[i]);
        for (size_t n = MIN(len, text->len); n > 0; n--)
            if (!memcmp(text->data + text->len - n, request->stop[i], n)) {
                keep = MIN(keep, text->len - n);
                break;
            }
    }
    return keep;
}

/* Where `part` begins in text[from..], or text->len. The text may hold zero bytes. */
static size_t find_text(const Str *text, size_t from, const char *part, size_t len) {
    for (size_t at = from; at + len <= text->len; at++)
        if (!memcmp(text->data + at, part, len)) return at;
    return text->len;
}

/* Cuts the text at the first stop text in it; what is before `from` has been looked at. */
static bool cut_at_stop(const GenerateRequest *request, Str *text, size_t from) {
    size_t first = text->len;
    for (size_t i = 0; i < request->n_stop; i++) {
        size_t len = strlen(request->stop[i]);
        if (len) first = MIN(first, find_text(text, from > len ? from - len : 0, request->stop[i], len));
    }
    if (first == text->len) return false;
    text->len = first;
    text->data[first] = '\0';
    return true;
}

/* Tells the caller of the token. */
static Status answer_show(Generator *g, Sequence *s, int32_t id, double logprob, bool finished) {
    const GenerateRequest *request = &s->group->request;
    if (!request->on_token) return ST_OK;
    Completion *c = &s->completion;
    size_t end = finished ? c->text.len : settled(request, &c->text);
    Str piece = {0};
    if (end > s->shown) str_append_n(&piece, c->text.data + s->shown, end - s->shown);
    s->shown = MAX(s->shown, end);
    g->top = s->next_top;
    Status status = request->on_token(request->context, c->prompt, c->sample, id, logprob, str_text(&piece));
    g->top = NULL;
    str_release(&piece);
    return status;
}

const TokenLogprob *generator_top(const Generator *g) { return g->top; }

void completion_release(Completion *completion) {
    ids_release(&completion->ids);
    free(completion->logprobs);
    free(completion->tempered);
    free(completion->filtered);
    free(completion->top);
    str_release(&completion->text);
    *completion = (Completion){0};
}

static Status push_logprobs(Sequence *s) {
    Completion *c = &s->completion;
    if (c->ids.n > s->cap_logprobs) {
        size_t cap = MAX(64, s->cap_logprobs * 2);
        TRY(array_resize(&c->logprobs, cap, sizeof *c->logprobs, "log-probabilities"));
        TRY(array_resize(&c->tempered, cap, sizeof *c->tempered, "log-probabilities"));
        TRY(array_resize(&c->filtered, cap, sizeof *c->filtered, "log-probabilities"));
        s->cap_logprobs = cap;
    }
    c->logprobs[c->ids.n - 1] = s->next_logprob;
    c->tempered[c->ids.n - 1] = s->next_tempered;
    c->filtered[c->ids.n - 1] = s->next_filtered;
    return ST_OK;
}

static Status push_top(Sequence *s) {
    Completion *c = &s->completion;
    size_t n = (size_t)s->group->request.n_top;
    if (n == 0) return ST_OK;
    TRY(array_grow(&c->top, &s->cap_top, c->ids.n * n, sizeof *c->top, "log-probabilities"));
    memcpy(c->top + (c->ids.n - 1) * n, s->next_top, n * sizeof *c->top);
    return ST_OK;
}

static Status none_left(const GenerateRequest *request, const Completion *c) {
    bool biased = request->sample.n_bias > 0;
    status_fail(ST_NUMERIC, "no token can follow the first %zu of the answer to prompt %zu: each %s%s", c->ids.n, c->prompt + 1,
                request->constraint ? "breaks the constraint, or " : "",
                biased ? "has a bias of -infinity or would repeat an n-gram" : "would repeat an n-gram");
    return status_hint(ST_NUMERIC, "make no_repeat_ngram_size larger, or max_new_tokens smaller");
}

typedef enum Went { WENT_ON, WENT_TO_STOP, WENT_TO_LENGTH } Went;

static Status take_token(Generator *g, Sequence *s, Went *went) {
    const GenerateRequest *request = &s->group->request;
    Completion *c = &s->completion;
    int32_t id = s->next;
    if (!isfinite(s->next_logprob)) return status_fail(ST_NUMERIC, "a logit of prompt %zu is not finite", c->prompt + 1);
    if (id < 0) return none_left(request, c);
    ids_push(&c->ids, id);
    TRY(memory_check(ST_OK)); /* the id may be missing */
    TRY(push_logprobs(s));
    TRY(push_top(s));
    bool eos = is_eos(g, request, id), full = (int64_t)c->ids.n >= request->max_new_tokens, stopped = false;
    if (g->tokenizer) {
        size_t before = c->text.len;
        if (!eos) TRY(stream_push(&s->stream, id, &c->text));
        if (eos || full) TRY(stream_finish(&s->stream, &c->text));
        stopped = cut_at_stop(request, &c->text, before);
    }
    bool ends = false;
    if (!eos && !stopped) TRY(sequence_constrain(g, s, &ends));
    if (ends && !full) TRY(stream_finish(&s->stream, &c->text));
    *went = eos || stopped || ends ? WENT_TO_STOP : full ? WENT_TO_LENGTH : WENT_ON;
    return ST_OK;
}

/* The slot is free before the caller sees the completion, so that it may add the next request. */
static Status hand_out(Generator *g, Sequence *s, FinishReason reason, Status failure) {
    Group *group = s->group;
    OnCompletion *on_done = group->request.on_done;
    void *context = group->request.context;
    GenerateHandle handle = group->handle;
    sequence_keep(g, s, s->cached);
    Completion completion = s->completion;
    completion.finish = reason;
    completion.status = failure;
    s->completion = (Completion){0};
    sequence_release(g, s);
    Status status = on_done(context, &completion);
    completion_release(&completion);
    if (status != ST_OK) generator_cancel(g, handle);
    return status;
}

Status extend(Generator *g, Sequence *s) {
    Went went = WENT_ON;
    s->chosen = false;
    Status failure = take_token(g, s, &went);
    if (failure != ST_OK) return hand_out(g, s, FINISH_FAILED, failure);
    Status status = answer_show(g, s, s->next, s->next_logprob, went != WENT_ON);
    if (status != ST_OK) generator_cancel(g, s->group->handle);
    if (status != ST_OK || s->group->cancelled || went == WENT_ON) return status;
    return hand_out(g, s, went == WENT_TO_STOP ? FINISH_STOP : FINISH_LENGTH, ST_OK);
}
