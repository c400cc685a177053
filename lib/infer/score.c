/* SPDX-License-Identifier: Apache-2.0 */
/* Scoring: log-probabilities of given tokens. Rows are packed into flat batches. */
#include <math.h>
#include <stdlib.h>

#include "lib/base/system.h"
#include "lib/base/work.h"
#include "lib/infer/infer.h"

enum { BATCH_TOKENS = 2048 };

/* A segment of the batch: a row, a stem, or a branch of the last stem before it. */
typedef struct Piece {
    ScoreRow row;
    bool branch, wanted;
} Piece;

typedef struct Scorer {
    const Model *model;
    const Piece *pieces;
    OnLogits *on_logits;
    void *context;
    Tape *tape;
    int32_t *ids, *positions, *targets; /* of the batch */
    Segment *segments;
} Scorer;

static Status call_logits(const Scorer *s, Tensor *hidden, size_t first, size_t end) {
    int64_t begin = 0, vocab = s->model->config.vocab_size;
    for (size_t r = first; r < end; r++) {
        int64_t n = (int64_t)s->pieces[r].row.n;
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

/* Lays out pieces first..end-1. The first token of a branch is predicted by the last token of its stem. */
static void lay_out(Scorer *s, size_t first, size_t end, int64_t *n_ids, int64_t *n_targets) {
    int64_t n = 0;
    int32_t stem = -1;
    *n_targets = 0;
    for (size_t r = first; r < end; r++) {
        const Piece *piece = &s->pieces[r];
        if (!piece->branch) stem = (int32_t)(r - first);
        s->segments[r - first] = (Segment){.begin = (int32_t)n, .end = (int32_t)(n + (int64_t)piece->row.n), .parent = piece->branch ? stem : -1};
        for (size_t i = 0; i < piece->row.n; i++, n++) {
            s->ids[n] = piece->row.ids[i];
            if (!piece->wanted || (i == 0 && !piece->branch)) continue;
            s->positions[*n_targets] = (int32_t)(i == 0 ? s->segments[stem].end : n) - 1;
            s->targets[(*n_targets)++] = piece->row.ids[i];
        }
    }
    *n_ids = n;
}

static Status score_batch(Scorer *s, size_t first, size_t end) {
    int64_t n, n_targets, at = 0;
    lay_out(s, first, end, &n, &n_targets);
    tape_reset(s->tape);
    ModelBatch batch = {.ids = s->ids, .layout = {.n_tokens = n, .n_segments = (int32_t)(end - first), .segments = s->segments}};
    Tensor *hidden = model_forward(s->model, s->tape, &batch);
    Tensor *rows = tensor_view(tape_arena(s->tape), s->model->device, DT_I32, 1, &n_targets, s->positions);
    Tensor *targets = tensor_view(tape_arena(s->tape), s->model->device, DT_I32, 1, &n_targets, s->targets);
    if (!rows || !targets) return ST_RESOURCE;
    TokenLogprobs p = op_token_logprobs(s->tape, hidden, s->model->head, rows, targets, &s->model->logprob);
    TRY(tape_status(s->tape));
    for (size_t r = first; r < end; r++) {
        const Piece *piece = &s->pieces[r];
        for (size_t i = 0; i < piece->row.n && piece->wanted; i++)
            piece->row.logprobs[i] = i || piece->branch ? tensor_get(p.logprob, at++) : (double)NAN;
    }
    return s->on_logits ? call_logits(s, hidden, first, end) : ST_OK;
}

/* A batch contains complete families: a piece and its branches. Adds the number of this family's tokens and returns its end. */
static size_t family_end(const Piece *pieces, size_t n, size_t first, size_t *tokens) {
    size_t end = first;
    do *tokens += pieces[end++].row.n;
    while (end < n && pieces[end].branch);
    return end;
}

static size_t batch_end(const Piece *pieces, size_t n, size_t first) {
    size_t tokens = 0, end = family_end(pieces, n, first, &tokens);
    while (end < n) {
        size_t next = family_end(pieces, n, end, &tokens);
        if (tokens > BATCH_TOKENS) break;
        end = next;
    }
    return end;
}

static Status score_pieces(const Model *model, const Piece *pieces, size_t n, OnLogits *on_logits, void *context) {
    size_t longest = BATCH_TOKENS;
    for (size_t r = 0; r < n; r++)
        if (pieces[r].row.n == 0) return status_fail(ST_INPUT, "row %zu has no tokens", r + 1);
    for (size_t at = 0; at < n;) {
        size_t tokens = 0;
        at = family_end(pieces, n, at, &tokens);
        longest = MAX(longest, tokens);
    }
    Scorer s = {.model = model, .pieces = pieces, .on_logits = on_logits, .context = context, .tape = tape_new(model->device, model->compute, 0)};
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
    for (size_t first = 0, end; status == ST_OK && first < n; first = end) {
        end = batch_end(pieces, n, first);
        work_at("scoring rows", first, n);
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : score_batch(&s, first, end);
        if (status != ST_OK && status != ST_INTERRUPTED) status_prefix(status, "rows %zu to %zu", first + 1, end);
    }
    work_end("scoring rows");
    arena_free(arena);
    tape_free(s.tape);
    return status;
}

Status score_rows(const Model *model, ScoreRow *rows, size_t n_rows, OnLogits *on_logits, void *context) {
    Piece *pieces = calloc(MAX(n_rows, 1), sizeof *pieces);
    if (!pieces) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t r = 0; r < n_rows; r++) pieces[r] = (Piece){.row = rows[r], .wanted = true};
    Status status = score_pieces(model, pieces, n_rows, on_logits, context);
    free(pieces);
    return status;
}

Status score_branches(const Model *model, const ScoreStem *stems, size_t n_stems) {
    size_t n = n_stems, at = 0;
    for (size_t i = 0; i < n_stems; i++) n += stems[i].n_branches;
    Piece *pieces = calloc(MAX(n, 1), sizeof *pieces);
    if (!pieces) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < n_stems; i++) {
        pieces[at++] = (Piece){.row = {.ids = stems[i].ids, .n = stems[i].n}};
        for (size_t b = 0; b < stems[i].n_branches; b++) pieces[at++] = (Piece){.row = stems[i].branches[b], .branch = true, .wanted = true};
    }
    Status status = score_pieces(model, pieces, n, NULL, NULL);
    free(pieces);
    return status;
}
