/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over the calibration rows, one decoder layer at a time: hidden states are kept between layers. */
#include "lib/deploy/compress/ptq_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/system.h"
#include "lib/deploy/compress/int8.h"
#include "lib/model/convert.h"

/* Tokens of a pass; tokens that ranges of activations are found with */
enum { BATCH_TOKENS = 2048, RANGE_TOKENS = 2048 };

/* ---- rows ---- */

/* The last rows are held back. */
static size_t first_held(const PtqConfig *config) {
    const size_t held = config->hold_back > 0 && config->n_rows > 1 ? MAX((size_t)((double)config->n_rows * config->hold_back), (size_t)1) : 0;
    return config->n_rows - MIN(held, config->n_rows - (config->n_rows > 0));
}

static size_t batch_end(const PtqConfig *config, size_t first, size_t held, int64_t *n_tokens) {
    size_t end = first;
    for (*n_tokens = 0; end < config->n_rows && (end < held) == (first < held); end++) {
        if (end > first && *n_tokens + (int64_t)config->rows[end].n > BATCH_TOKENS) break;
        *n_tokens += (int64_t)config->rows[end].n;
    }
    return end;
}

static Status fill_batch(Ptq *ptq, size_t first, size_t end, PtqBatch *batch) {
    int32_t *ids = arena_alloc(ptq->arena, (size_t)batch->n_tokens * sizeof *ids);
    Segment *segments = arena_alloc(ptq->arena, (end - first) * sizeof *segments);
    if (!ids || !segments) return ST_RESOURCE;
    int32_t at = 0;
    for (size_t r = first; r < end; r++) {
        const IdRow *row = &ptq->config->rows[r];
        memcpy(ids + at, row->ids, row->n * sizeof *ids);
        segments[r - first] = (Segment){.begin = at, .end = at + (int32_t)row->n, .parent = -1};
        at += (int32_t)row->n;
    }
    batch->ids = ids;
    batch->segments = segments;
    batch->n_segments = (int32_t)(end - first);
    return ST_OK;
}

static Status make_batches(Ptq *ptq) {
    const PtqConfig *config = ptq->config;
    PtqReport *report = ptq->report;
    const size_t held = first_held(config);
    ptq->batches = arena_alloc(ptq->arena, config->n_rows * sizeof *ptq->batches);
    if (!ptq->batches) return ST_RESOURCE;
    for (size_t first = 0, end; first < config->n_rows; first = end) {
        PtqBatch *batch = &ptq->batches[ptq->n_batches++];
        *batch = (PtqBatch){.at = ptq->n_tokens, .held = first >= held};
        end = batch_end(config, first, held, &batch->n_tokens);
        TRY(fill_batch(ptq, first, end, batch));
        ptq->n_tokens += batch->n_tokens;
        *(batch->held ? &report->held_rows : &report->rows) += (int64_t)(end - first);
        *(batch->held ? &report->held_tokens : &report->tokens) += batch->n_tokens;
    }
    return ST_OK;
}

/* ---- hidden states ---- */

/* Of a pass that has no result. */
static Status pass_failed(const Ptq *ptq) {
    return tape_status(ptq->tape) != ST_OK ? tape_status(ptq->tape) : status_fail(ST_RESOURCE, "no memory for a pass over calibration rows");
}

static uint8_t *hidden_of(const Ptq *ptq, const PtqBatch *batch, bool plain) {
    return (plain ? ptq->plain_hidden : ptq->hidden) + dtype_bytes(ptq->model->compute, batch->at * ptq->model->config.hidden_size);
}

static Status keep_hidden(const Ptq *ptq, const PtqBatch *batch, bool plain, const Tensor *x) {
    const int64_t count = tensor_count(x);
    void *values = malloc(tensor_bytes(x));
    if (!values) return status_fail(ST_RESOURCE, "no memory for hidden states");
    Status status = tensor_download(x, 0, count, values);
    if (status == ST_OK) convert_elements(values, x->dtype, hidden_of(ptq, batch, plain), ptq->model->compute, (size_t)count);
    free(values);
    return status;
}

static Tensor *hidden_tensor(const Ptq *ptq, const PtqBatch *batch, bool plain) {
    Tensor *x = tape_tensor(ptq->tape, tape_residual(ptq->tape), 2, (int64_t[]){batch->n_tokens, ptq->model->config.hidden_size});
    if (!x) return NULL;
    return tensor_convert(x, 0, hidden_of(ptq, batch, plain), ptq->model->compute, tensor_count(x)) == ST_OK ? x : NULL;
}

ModelBatch ptq_model_batch(const PtqBatch *batch) {
    return (ModelBatch){.ids = batch->ids, .layout = {.n_tokens = batch->n_tokens, .n_segments = batch->n_segments, .segments = batch->segments}};
}

static Status embed_rows(Ptq *ptq) {
    const StoredTensor *embedding = ptq->model->embed->name ? weight_file_find(ptq->model->files, ptq->model->embed->name) : NULL;
    for (size_t b = 0; b < ptq->n_batches; b++) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted, nothing was written");
        const ModelBatch batch = ptq_model_batch(&ptq->batches[b]);
        tape_reset(ptq->tape);
        const Tensor *x = model_layers(ptq->model, ptq->tape, &batch, NULL, 0, 0);
        if (!x) return pass_failed(ptq);
        TRY(keep_hidden(ptq, &ptq->batches[b], false, x));
        if (ptq->plain_hidden) TRY(keep_hidden(ptq, &ptq->batches[b], true, x));
    }
    if (embedding) model_drop_pages(ptq->model, embedding->data, embedding->bytes);
    return ST_OK;
}

Status ptq_rows_begin(Ptq *ptq) {
    size_t bytes;
    TRY(make_batches(ptq));
    if (!size_mul((size_t)ptq->n_tokens, dtype_bytes(ptq->model->compute, ptq->model->config.hidden_size), &bytes) ||
        !(ptq->hidden = malloc(bytes)) || (ptq->method->scales_inputs && !(ptq->plain_hidden = malloc(bytes))))
        return status_fail(ST_RESOURCE, "no memory for the hidden states of %lld calibration tokens", (long long)ptq->n_tokens);
    ptq->tape = tape_new(ptq->model->device, ptq->model->compute, 0);
    if (!ptq->tape) return ST_RESOURCE;
    tape_record(ptq->tape, false);
    return embed_rows(ptq);
}

void ptq_rows_end(Ptq *ptq) {
    tape_free(ptq->tape);
    free(ptq->hidden);
    free(ptq->plain_hidden);
    ptq->tape = NULL;
    ptq->hidden = ptq->plain_hidden = NULL;
}

/* ---- what a pass sees ---- */

typedef struct Watching {
    Ptq *ptq;
    const PtqBatch *batch;
    int wanted, seen; /* the product whose inputs are gathered; the products of this batch so far */
    bool reached;
    Status status;
    Arena *scratch;
} Watching;

static PtqMatrix *matrix_of(const Ptq *ptq, const Linear *linear) {
    for (size_t i = 0; i < ptq->n_matrices; i++)
        if (ptq->matrices[i].linear == linear) return &ptq->matrices[i];
    return NULL;
}

Tensor *ptq_rounded_inputs(Tape *tape, Tensor *x, double bound) {
    const int64_t n = tensor_rows(x), width = tensor_width(x);
    Tensor *rounded = tape_tensor_like(tape, x->dtype, x);
    bool full = false;
    if (!rounded) return NULL;
#pragma omp parallel for schedule(static) reduction(|| : full)
    for (int64_t t = 0; t < n; t++) {
        double *values = malloc((size_t)width * sizeof *values);
        full = full || !values;
        if (!values) continue;
        tensor_read_part(x, t * width, width, values);
        round_activations(values, width, bound);
        tensor_write_part(rounded, t * width, width, values);
        free(values);
    }
    return full ? tape_fail(tape, ST_RESOURCE, "out of memory for rounded activations") : rounded;
}

PtqWanted ptq_wanted(const Ptq *ptq, bool plain) {
    const PtqConfig *config = ptq->config;
    const bool int8 = ptq->method->rounds_inputs, held = ptq->report->held_rows > 0;
    const bool ranges = !plain && int8 && config->calibrate && strcmp(config->calibrate, "absmax") != 0;
    const bool variance = !plain && config->bias_correction && strcmp(config->bias_correction, "mean_var") == 0;
    return (PtqWanted){.products = variance || (!int8 && (ptq->method->needs_rows || !held)),
                       .held_products = !int8 && held,
                       .ranges = ranges,
                       .sample = int8 ? MIN(ranges ? RANGE_TOKENS : PTQ_ERROR_TOKENS, ptq->report->tokens) : 0,
                       .held_sample = int8 ? MIN(PTQ_ERROR_TOKENS, ptq->report->held_tokens) : 0};
}

/* n tokens of so many, at even distances. */
static Status sample_new(int64_t n, int64_t tokens, int64_t in, Arena *arena, InputSample *sample) {
    if (n == 0) return ST_OK;
    *sample = (InputSample){.x = arena_alloc(arena, (size_t)(n * in) * sizeof *sample->x), .step = (tokens + n - 1) / n};
    return sample->x ? ST_OK : ST_RESOURCE;
}

static Status gathered_new(const Ptq *ptq, PtqInputs *inputs, int64_t in, bool plain, Arena *arena) {
    const PtqWanted wanted = ptq_wanted(ptq, plain);
    TRY(input_sums_new(arena, in, wanted.products, &inputs->sums));
    if (ptq->report->held_rows > 0) TRY(input_sums_new(arena, in, wanted.held_products, &inputs->held));
    TRY(sample_new(wanted.sample, ptq->report->tokens, in, arena, &inputs->sample));
    return sample_new(wanted.held_sample, ptq->report->held_tokens, in, arena, &inputs->held_sample);
}

/* Makes the entry of a product's input when the first batch sees it. before: that of the product before it; NULL: it is the first. */
static Status inputs_new(Ptq *ptq, PtqInputs *inputs, const PtqInputs *before, const Linear *const *linears, int n, int64_t in, bool plain) {
    *inputs = (PtqInputs){.n_readers = n, .ratio = (double)NAN};
    for (int i = 0; i < n; i++) {
        PtqMatrix *matrix = matrix_of(ptq, linears[i]);
        if (matrix) inputs->matrices[inputs->n++] = matrix;
    }
    ptq_block_of(ptq->model, linears[0], &inputs->sublayer);
    inputs->first = inputs->sublayer && (!before || before->sublayer != inputs->sublayer);
    return inputs->n > 0 ? gathered_new(ptq, inputs, in, plain, plain ? ptq->layer_arena : ptq->inputs_arena) : ST_OK;
}

static void keep_sample(InputSample *sample, const Tensor *x) {
    const int64_t in = tensor_width(x);
    for (int64_t t = 0; t < tensor_rows(x); t++) {
        if (sample->seen++ % sample->step != 0) continue;
        float *kept = sample->x + sample->n++ * in;
        for (int64_t i = 0; i < in; i++) kept[i] = (float)tensor_get(x, t * in + i);
    }
}

static Status gather(Watching *watching, PtqInputs *inputs, const Tensor *x) {
    const bool held = watching->batch->held;
    if (inputs->n == 0) return ST_OK;
    if (inputs->sample.x) keep_sample(held ? &inputs->held_sample : &inputs->sample, x);
    arena_reset(watching->scratch);
    if ((held ? inputs->held.gram : inputs->sums.gram) != NULL) arena_reserve(watching->scratch, input_sums_scratch(tensor_width(x), x));
    return input_sums_add(held ? &inputs->held : &inputs->sums, x, watching->scratch);
}

static Tensor *see_inputs(void *context, Tape *tape, const Linear *const *linears, int n, Tensor *x) {
    Watching *watching = context;
    Ptq *ptq = watching->ptq;
    const int call = watching->seen++;
    const PtqMatrix *matrix = matrix_of(ptq, linears[0]);
    if (ptq->method->rounds_inputs && matrix && matrix->done)
        return ptq_rounded_inputs(tape, x, matrix->report->bound > 0 ? matrix->report->bound : 0);
    const bool plain = watching->wanted == PTQ_PLAIN;
    if ((!plain && watching->wanted != call) || call >= PTQ_MOST_INPUTS) return x; /* weights of further inputs are rounded to nearest */
    PtqInputs *inputs = plain ? &ptq->plain[call] : &ptq->inputs[call];
    int *known = plain ? &ptq->n_plain : &ptq->n_inputs;
    if (call >= *known) {
        watching->status = inputs_new(ptq, inputs, call > 0 ? inputs - 1 : NULL, linears, n, tensor_width(x), plain);
        *known = call + 1;
    }
    if (watching->status == ST_OK) watching->status = gather(watching, inputs, x);
    watching->reached = true;
    return plain && watching->status == ST_OK ? x : NULL;
}

/* ---- passes ---- */

static Status pass_batch(Watching *watching) {
    Ptq *ptq = watching->ptq;
    const LinearWatch watch = {watching, see_inputs};
    ModelBatch batch = ptq_model_batch(watching->batch);
    batch.step.watch = &watch;
    watching->seen = 0;
    tape_reset(ptq->tape);
    Tensor *x = hidden_tensor(ptq, watching->batch, watching->wanted == PTQ_PLAIN);
    x = x ? model_layers(ptq->model, ptq->tape, &batch, x, ptq->layer, ptq->layer + 1) : NULL;
    TRY(watching->status);
    if (!x && watching->reached && tape_status(ptq->tape) == ST_INTERRUPTED) return ST_OK;
    if (!x) return pass_failed(ptq);
    return keep_hidden(ptq, watching->batch, watching->wanted == PTQ_PLAIN, x);
}

Status ptq_pass(Ptq *ptq, int call, bool *reached) {
    Watching watching = {.ptq = ptq, .wanted = call, .scratch = arena_new(0)};
    Status status = watching.scratch ? ST_OK : ST_RESOURCE;
    for (size_t b = 0; b < ptq->n_batches && status == ST_OK; b++) {
        watching.batch = &ptq->batches[b];
        status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted, nothing was written") : pass_batch(&watching);
    }
    arena_free(watching.scratch);
    *reached = watching.reached;
    return status;
}
