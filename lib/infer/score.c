/* Scoring: log-probabilities of given tokens, rows packed into flat batches. */
#include <math.h>
#include <stdlib.h>

#include "lib/infer/infer.h"

enum { BATCH_TOKENS = 2048 };

typedef struct Scorer {
    const Model *model;
    ScoreRow *rows;
    OnLogits *on_logits;
    void *context;
    Tape *tape;
    int32_t *ids, *positions, *targets; /* of the batch */
    Segment *segments;
} Scorer;

static Status call_logits(const Scorer *s, Tensor *hidden, size_t first, size_t end) {
    int64_t begin = 0, vocab = s->model->config.vocab_size;
    for (size_t r = first; r < end; r++) {
        int64_t n = (int64_t)s->rows[r].n;
        Tensor *rows = tensor_new(tape_arena(s->tape), s->model->device, DT_I32, 1, &n);
        if (!rows) return ST_RESOURCE;
        for (int64_t i = 0; i < n; i++) tensor_set(rows, i, (double)(begin + i));
        Tensor *logits = model_logits(s->model, s->tape, hidden, rows).logits;
        TRY(tape_status(s->tape));
        float *values = malloc((size_t)(n * vocab) * sizeof *values);
        if (!values) return status_fail(ST_RESOURCE, "out of memory for the logits of row %zu", r + 1);
        for (int64_t i = 0; i < n * vocab; i++) values[i] = (float)tensor_get(logits, i);
        Status status = s->on_logits(s->context, r, values, n, vocab);
        free(values);
        TRY(status);
        begin += n;
    }
    return ST_OK;
}

static Status score_batch(Scorer *s, size_t first, size_t end) {
    int64_t n = 0, n_targets = 0;
    for (size_t r = first; r < end; r++) {
        s->segments[r - first] = (Segment){n, n + (int64_t)s->rows[r].n, -1, 0, NULL};
        for (size_t i = 0; i < s->rows[r].n; i++) {
            s->ids[n] = s->rows[r].ids[i];
            if (i > 0) {
                s->positions[n_targets] = (int32_t)n - 1;
                s->targets[n_targets++] = s->rows[r].ids[i];
            }
            n++;
        }
    }
    tape_reset(s->tape);
    ModelBatch batch = {.ids = s->ids, .layout = {n, (int32_t)(end - first), s->segments, NULL}};
    Tensor *hidden = model_forward(s->model, s->tape, &batch);
    Tensor *rows = tensor_view(tape_arena(s->tape), s->model->device, DT_I32, 1, &n_targets, s->positions);
    Tensor *targets = tensor_view(tape_arena(s->tape), s->model->device, DT_I32, 1, &n_targets, s->targets);
    if (!rows || !targets) return ST_RESOURCE;
    TokenLogprobs p = op_token_logprobs(s->tape, hidden, s->model->head, rows, targets, &s->model->logprob);
    TRY(tape_status(s->tape));
    int64_t at = 0;
    for (size_t r = first; r < end; r++)
        for (size_t i = 0; i < s->rows[r].n; i++) s->rows[r].logprobs[i] = i ? tensor_get(p.logprob, at++) : (double)NAN;
    return s->on_logits ? call_logits(s, hidden, first, end) : ST_OK;
}

Status score_rows(const Model *model, ScoreRow *rows, size_t n_rows, OnLogits *on_logits, void *context) {
    size_t longest = BATCH_TOKENS;
    for (size_t r = 0; r < n_rows; r++) {
        if (rows[r].n == 0) return status_fail(ST_INPUT, "row %zu has no tokens", r + 1);
        longest = MAX(longest, rows[r].n);
    }
    Scorer s = {.model = model, .rows = rows, .on_logits = on_logits, .context = context, .tape = tape_new(model->device, model->compute, 0)};
    Arena *arena = arena_new(0);
    Status status = s.tape && arena ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    if (status == ST_OK) {
        tape_record(s.tape, false);
        s.ids = arena_alloc(arena, longest * sizeof *s.ids);
        s.positions = arena_alloc(arena, longest * sizeof *s.positions);
        s.targets = arena_alloc(arena, longest * sizeof *s.targets);
        s.segments = arena_alloc(arena, longest * sizeof *s.segments);
        if (!s.ids || !s.positions || !s.targets || !s.segments) status = ST_RESOURCE;
    }
    for (size_t first = 0, end; status == ST_OK && first < n_rows; first = end) {
        size_t tokens = rows[first].n;
        for (end = first + 1; end < n_rows && tokens + rows[end].n <= BATCH_TOKENS; end++) tokens += rows[end].n;
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : score_batch(&s, first, end);
        if (status != ST_OK && status != ST_INTERRUPTED) status_prefix(status, "rows %zu to %zu", first + 1, end);
    }
    arena_free(arena);
    tape_free(s.tape);
    return status;
}
