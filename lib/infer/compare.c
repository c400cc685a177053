/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/infer/compare.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/system.h"
#include "lib/base/work.h"
#include "lib/tensor/activations.h"

enum { CHUNK = 64 };

/* ---- two rows of logits ---- */

static double log_sum_exp(const double *logits, int64_t vocab, int64_t *best) {
    double sum = 0;
    *best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[*best]) *best = i;
    for (int64_t i = 0; i < vocab; i++) sum += exp(logits[i] - logits[*best]);
    return logits[*best] + log(sum);
}

double logits_divergence(const double *p, const double *q, int64_t vocab, bool *same_top) {
    int64_t best_p, best_q;
    const double sum_p = log_sum_exp(p, vocab, &best_p), sum_q = log_sum_exp(q, vocab, &best_q);
    double kl = 0;
    for (int64_t i = 0; i < vocab; i++) kl += exp(p[i] - sum_p) * ((p[i] - sum_p) - (q[i] - sum_q));
    *same_top = best_p == best_q;
    return MAX(kl, 0);
}

/* ---- one model ---- */

typedef struct Side {
    const Model *model;
    const LinearWatch *watch;
    enum { ROUNDING_AS_SET, ROUNDING_OFF, ROUNDING_ON } rounding; /* of activations in its products */
    Tape *tape;
    Tensor *hidden;
    Tensor *chosen, *logits, *logsumexp; /* of a chunk */
} Side;

static void side_round(const Side *side) {
    if (side->rounding != ROUNDING_AS_SET) cpu_round_activations(side->rounding == ROUNDING_ON);
}

static Status side_new(Side *side, Arena *arena) {
    const Model *model = side->model;
    const DType wide = model->compute == DT_F64 ? DT_F64 : DT_F32;
    side->tape = tape_new(model->device, model->compute, 0);
    if (!side->tape) return ST_RESOURCE;
    tape_record(side->tape, false);
    side->chosen = tensor_new(arena, model->device, model->compute, 2, (int64_t[]){CHUNK, model->config.hidden_size});
    side->logits = tensor_new(arena, model->device, wide, 2, (int64_t[]){CHUNK, model->config.vocab_size});
    side->logsumexp = tensor_new(arena, model->device, DT_F64, 1, (int64_t[]){CHUNK});
    return side->chosen && side->logits && side->logsumexp ? ST_OK : ST_RESOURCE;
}

static Status side_forward(Side *side, const IdRow *row) {
    const Segment segment = {.end = (int32_t)row->n, .parent = -1};
    tape_reset(side->tape);
    side_round(side);
    side->hidden = model_forward(side->model, side->tape,
                                 &(ModelBatch){.ids = row->ids,
                                               .layout = {.n_tokens = (int64_t)row->n, .n_segments = 1, .segments = &segment},
                                               .step = {.watch = side->watch}});
    return side->hidden ? ST_OK : tape_status(side->tape);
}

/* Logits of tokens first..first+n-1. */
static Status side_logits(Side *side, int64_t first, int64_t n) {
    const Device *device = side->model->device;
    int32_t places[CHUNK];
    for (int64_t i = 0; i < CHUNK; i++) places[i] = (int32_t)(first + MIN(i, n - 1));
    Tensor *rows = tensor_view(tape_arena(side->tape), device, DT_I32, 1, (int64_t[]){CHUNK}, places);
    if (!rows) return ST_RESOURCE;
    side_round(side);
    device->gather_rows(side->hidden, rows, side->chosen);
    device->token_logits(&side->model->logprob, side->chosen, side->model->head, side->logits, side->logsumexp);
    return device->synchronise(device);
}

/* ---- both ---- */

/* Of one token. */
typedef struct Found {
    double kl, before, after; /* before, after: -log p of the next token */
    bool same_top, full;
} Found;

static Found compare_token(const Side *sides, int64_t i, int32_t next) {
    const int64_t vocab = sides[0].model->config.vocab_size;
    double *values = malloc((size_t)(2 * vocab) * sizeof *values);
    Found found = {.full = !values};
    if (!values) return found;
    for (int k = 0; k < 2; k++) tensor_read_part(sides[k].logits, i * vocab, vocab, values + k * vocab);
    found.kl = logits_divergence(values, values + vocab, vocab, &found.same_top);
    if (next >= 0) {
        found.before = tensor_get(sides[0].logsumexp, i) - values[next];
        found.after = tensor_get(sides[1].logsumexp, i) - values[vocab + next];
    }
    free(values);
    return found;
}

static Status compare_chunk(Side *sides, const IdRow *row, int64_t first, int64_t n, Comparison *sum) {
    Found found[CHUNK];
    for (int k = 0; k < 2; k++) TRY(side_logits(&sides[k], first, n));
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i++) {
        const size_t next = (size_t)(first + i + 1);
        found[i] = compare_token(sides, i, next < row->n ? row->ids[next] : -1);
    }
    for (int64_t i = 0; i < n; i++) {
        if (found[i].full) return status_fail(ST_RESOURCE, "out of memory for the logits of a token");
        sum->kl += found[i].kl;
        sum->top1 += found[i].same_top;
        sum->loss_before += found[i].before;
        sum->loss += found[i].after;
        sum->positions++;
        sum->predicted += (size_t)(first + i + 1) < row->n;
    }
    return ST_OK;
}

static Status compare_row(Side *sides, const IdRow *row, Comparison *sum) {
    if (row->n == 0) return status_fail(ST_INPUT, "the row has no tokens");
    for (int k = 0; k < 2; k++) TRY(side_forward(&sides[k], row));
    for (int64_t first = 0; first < (int64_t)row->n; first += CHUNK) TRY(compare_chunk(sides, row, first, MIN(CHUNK, (int64_t)row->n - first), sum));
    return ST_OK;
}

static Status sides_compare(Side *sides, const IdRow *rows, size_t n_rows, Comparison *comparison) {
    Arena *arena = arena_new(0);
    Comparison sum = {0};
    Status status = arena ? ST_OK : ST_RESOURCE;
    for (int k = 0; k < 2 && status == ST_OK; k++) status = side_new(&sides[k], arena);
    for (size_t r = 0; r < n_rows && status == ST_OK; r++) {
        work_at("comparing the models, rows", r, n_rows);
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : compare_row(sides, &rows[r], &sum);
        if (status != ST_OK && status != ST_INTERRUPTED) status_prefix(status, "row %zu", r + 1);
    }
    work_end("comparing the models, rows");
    for (int k = 0; k < 2; k++) tape_free(sides[k].tape);
    arena_free(arena);
    TRY(status);
    *comparison = sum;
    comparison->kl /= (double)MAX(sum.positions, 1);
    comparison->top1 /= (double)MAX(sum.positions, 1);
    comparison->loss_before /= (double)MAX(sum.predicted, 1);
    comparison->loss /= (double)MAX(sum.predicted, 1);
    return ST_OK;
}

Status models_compare(const Model *original, const Model *changed, const LinearWatch *watch, const IdRow *rows, size_t n_rows,
                      Comparison *comparison) {
    Side sides[2] = {{.model = original}, {.model = changed, .watch = watch}};
    if (original->config.vocab_size != changed->config.vocab_size)
        return status_fail(ST_INPUT, "'%s' and '%s' have different vocabularies", original->dir, changed->dir);
    return sides_compare(sides, rows, n_rows, comparison);
}

Status activations_compare(const Model *model, const IdRow *rows, size_t n_rows, Comparison *comparison) {
    Side sides[2] = {{.model = model, .rounding = ROUNDING_OFF}, {.model = model, .rounding = ROUNDING_ON}};
    Status status = sides_compare(sides, rows, n_rows, comparison);
    cpu_round_activations(false);
    return status;
}
