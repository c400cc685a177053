/* SPDX-License-Identifier: Apache-2.0 */
/* The likeliest tokens at each place of a text, and its text as one vector. */
#include <math.h>

#include "lib/infer/infer.h"

enum { ROWS = 16 /* of logits at a time: those of a whole text can be larger than the model */ };

/* Runs the model on one text. The hidden states (n, C) are in `arena`, so that the tape can be used again. NULL: a failure, which *status has. */
static Tensor *text_hidden(const Model *model, Tape *tape, Arena *arena, const int32_t *ids, size_t n, Status *status) {
    Segment segment = {.end = (int64_t)n, .parent = -1};
    tape_record(tape, false);
    tape_reset(tape);
    Tensor *hidden = model_forward(model, tape, &(ModelBatch){.ids = ids, .layout = {.n_tokens = (int64_t)n, .n_segments = 1, .segments = &segment}});
    *status = tape_status(tape);
    if (*status != ST_OK) return NULL;
    Tensor *kept = tensor_new(arena, model->device, hidden->dtype, 2, hidden->shape);
    if (kept)
        model->device->copy(hidden, kept);
    else
        *status = ST_RESOURCE;
    return kept;
}

/* The search compares logits, since their order is that of the log-probabilities. */
void logits_top(const Logits *logits, int64_t row, int64_t n, SkipToken *skip, const void *context, double *values, TokenLogprob *top) {
    const int64_t vocab = tensor_width(logits->logits);
    int64_t found = 0;
    tensor_read_part(logits->logits, row * vocab, vocab, values);
    for (int64_t id = 0; id < vocab; id++) {
        if (found == n && !(values[id] > top[n - 1].logprob)) continue;
        if (skip && skip(context, (int32_t)id)) continue;
        int64_t at = found < n ? found++ : n - 1;
        for (; at > 0 && values[id] > top[at - 1].logprob; at--) top[at] = top[at - 1];
        top[at] = (TokenLogprob){(int32_t)id, values[id]};
    }
    for (int64_t i = 0; i < found; i++) top[i].logprob = logits_logprob(logits, row, top[i].id);
    for (; found < n; found++) top[found] = (TokenLogprob){-1, -HUGE_VAL};
}

/* Rows begin..end-1: each predicts the token after it. */
static Status score_top_rows(const Model *model, Tape *tape, Tensor *hidden, const ScoreRow *row, int64_t begin, int64_t end, int64_t n_top,
                             double *values, TokenLogprob *top) {
    int32_t places[ROWS];
    int64_t n = end - begin;
    for (int64_t i = 0; i < n; i++) places[i] = (int32_t)(begin + i);
    tape_reset(tape);
    Tensor *rows = tensor_view(tape_arena(tape), model->device, DT_I32, 1, &n, places);
    if (!rows) return ST_RESOURCE;
    Logits logits = model_logits(model, tape, hidden, rows);
    TRY(tape_status(tape));
    for (int64_t i = 0; i < n; i++) {
        row->logprobs[begin + i + 1] = logits_logprob(&logits, i, row->ids[begin + i + 1]);
        logits_top(&logits, i, n_top, NULL, NULL, values, top + (begin + i + 1) * n_top);
    }
    return ST_OK;
}

Status score_top(const Model *model, const ScoreRow *row, int64_t n_top, TokenLogprob *top) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(model->device, model->compute, 0);
    Status status = arena && tape ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    double *values = arena ? arena_alloc(arena, (size_t)model->config.vocab_size * sizeof *values) : NULL;
    Tensor *hidden = status == ST_OK && values ? text_hidden(model, tape, arena, row->ids, row->n, &status) : NULL;
    row->logprobs[0] = (double)NAN;
    for (int64_t k = 0; k < n_top; k++) top[k] = (TokenLogprob){-1, (double)NAN};
    int64_t last = (int64_t)row->n - 1;
    for (int64_t begin = 0; hidden && status == ST_OK && begin < last; begin += ROWS)
        status = score_top_rows(model, tape, hidden, row, begin, MIN(begin + ROWS, last), n_top, values, top);
    if (status == ST_OK && !values) status = ST_RESOURCE;
    tape_free(tape);
    arena_free(arena);
    return status;
}

/* Length 1, so that products of two vectors are their cosine. */
static void normalize(double *vector, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += vector[i] * vector[i];
    for (int64_t i = 0; i < n && sum > 0; i++) vector[i] /= sqrt(sum);
}

Status text_vector(const Model *model, const int32_t *ids, size_t n, bool mean, int64_t n_dims, double *vector) {
    int64_t width = model->config.hidden_size;
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(model->device, model->compute, 0);
    Status status = arena && tape ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    double *row = arena ? arena_alloc(arena, (size_t)width * sizeof *row) : NULL;
    Tensor *hidden = status == ST_OK && row ? text_hidden(model, tape, arena, ids, n, &status) : NULL;
    for (int64_t i = 0; i < n_dims; i++) vector[i] = 0;
    for (size_t t = mean ? 0 : n - 1; hidden && t < n; t++) {
        tensor_read_part(hidden, (int64_t)t * width, width, row);
        for (int64_t i = 0; i < n_dims; i++) vector[i] += row[i];
    }
    normalize(vector, n_dims);
    if (status == ST_OK && !row) status = ST_RESOURCE;
    tape_free(tape);
    arena_free(arena);
    return status;
}
