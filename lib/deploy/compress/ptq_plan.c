/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a quantisation, from shapes, before the first layer. A comment at each number names the memory that it counts. */
#include "lib/deploy/compress/ptq_parts.h"

#include <omp.h>
#include <string.h>

/* Pages of code that runs for the first time, stacks of threads, what the C library keeps. */
enum { FIRST_TIME = 5 << 20 };
/* Of OpenBLAS: its own pages, and of each thread the packed blocks of a product. */
enum { LIBRARY = 2 << 20, PACKED = 1 << 20 };

static size_t wide_bytes(const Ptq *ptq) { return ptq->model->compute == DT_F64 ? sizeof(double) : sizeof(float); }
static bool is_gptq(const Ptq *ptq) { return strcmp(ptq->method->name, "gptq") == 0; }

static bool corrects(const Ptq *ptq) {
    const char *kind = ptq->config->bias_correction;
    return kind && strcmp(kind, "none") != 0;
}

static size_t openblas_bytes(int64_t in) { return LIBRARY + (size_t)omp_get_max_threads() * (PACKED + (size_t)(GPTQ_COLUMNS * in) * sizeof(double)); }

/* ---- sums over inputs ---- */

/* What gathering takes of an input's width. */
static size_t gathered_bytes(const Ptq *ptq, int64_t in, bool plain) {
    const PtqWanted wanted = ptq_wanted(ptq, plain);
    const size_t width = (size_t)in, vectors = (ptq->report->held_rows > 0 ? 2 : 1) * 3 * sizeof(double);
    return width * (vectors + width * sizeof(double) * (size_t)(wanted.products + wanted.held_products) +
                    (size_t)(wanted.sample + wanted.held_sample) * sizeof(float));
}

/* And what the method adds: products on the device; U and the room to find it, the order of columns. */
static size_t inputs_bytes(const Ptq *ptq, int64_t in) {
    const PtqWanted wanted = ptq_wanted(ptq, false);
    const size_t width = (size_t)in, square = width * width;
    return gathered_bytes(ptq, in, false) + square * wide_bytes(ptq) * (size_t)(wanted.products + wanted.held_products) + width * sizeof(double) +
           (is_gptq(ptq) ? 2 * square * sizeof(double) + width * 33 : 0);
}

/* ---- a decoder layer ---- */

static size_t codes_bytes(const Ptq *ptq, const Linear *linear) {
    const int64_t count = linear->out * linear->in;
    return (size_t)count + (size_t)(count / ptq_grid(ptq, linear).group) * (sizeof(double) + sizeof(int32_t));
}

/* A copy of the sample that a range is found with. */
static size_t range_bytes(const Ptq *ptq, const Linear *linear) {
    const PtqWanted wanted = ptq_wanted(ptq, false);
    return wanted.ranges ? (size_t)(wanted.sample * linear->in) * sizeof(float) : 0;
}

/* The largest of the steps of ptq_quantise. */
static size_t work_bytes(const Ptq *ptq, const Linear *linear) {
    const size_t values = (size_t)(linear->out * linear->in) * sizeof(double), square = (size_t)(linear->in * linear->in);
    const PtqWanted plain = ptq_wanted(ptq, true);
    const size_t measured = ptq->n_batches > 0 && !ptq->method->rounds_inputs ? codes_bytes(ptq, linear) : 0;
    const size_t scaled = ptq->method->scales_inputs ? square * wide_bytes(ptq) * (size_t)(plain.products + plain.held_products) : 0;
    return MAX(MAX(values + measured, scaled), range_bytes(ptq, linear));
}

/* Memory that a step takes from the system and gives back. */
static size_t passing_bytes(const Ptq *ptq, const Linear *linear) {
    const size_t in = (size_t)linear->in, out = (size_t)linear->out, wide = wide_bytes(ptq);
    const size_t packed = in * out * (size_t)ptq_grid(ptq, linear).bits / 8;
    if (ptq->n_batches == 0) return packed;
    if (ptq->method->rounds_inputs) {
        const size_t tokens = PTQ_ERROR_TOKENS * (in * (sizeof(double) + 2 * wide) + 2 * out * wide);
        const size_t errors = tokens + in * out * (sizeof(double) + wide) + codes_bytes(ptq, linear);
        return MAX(errors, 2 * range_bytes(ptq, linear)); /* sizes, and the room that qsort takes to sort them */
    }
    const size_t forms = 2 * MIN(out, (size_t)GRAM_FORM_ROWS) * in * wide;
    if (is_gptq(ptq)) return MAX(forms, (size_t)omp_get_max_threads() * GPTQ_ROWS * (in + GPTQ_COLUMNS) * sizeof(double));
    return forms + (ptq->method->scales_inputs ? in * out * sizeof(double) : 0);
}

typedef struct LayerSizes {
    size_t weights, work, passing, stored;
    int64_t in; /* of the widest linear layer */
} LayerSizes;

/* The largest of each part over all decoder layers: arenas keep what they took for an earlier one. */
static LayerSizes largest_sizes(const Ptq *ptq) {
    LayerSizes most = {0};
    for (int64_t layer = 0; layer < ptq->model->config.num_hidden_layers; layer++) {
        LayerSizes sizes = {0};
        for (size_t i = 0; i < ptq->report->n_layers; i++) {
            const Linear *linear = ptq->model->linears[i];
            if (ptq->report->layers[i].layer != layer || !ptq->report->layers[i].quantised) continue;
            const size_t count = (size_t)(linear->out * linear->in), stored = tensor_bytes(linear->weight);
            sizes.weights += count * (sizeof(double) + wide_bytes(ptq)) + codes_bytes(ptq, linear) +
                             (corrects(ptq) ? (size_t)linear->out * (sizeof(double) + wide_bytes(ptq)) : 0);
            sizes.work = MAX(sizes.work, work_bytes(ptq, linear));
            sizes.passing = MAX(sizes.passing, passing_bytes(ptq, linear));
            sizes.stored = ptq->method->scales_inputs ? sizes.stored + stored : MAX(sizes.stored, stored); /* of the original in a pass; one by one */
            most.in = MAX(most.in, linear->in);
        }
        most.weights = MAX(most.weights, sizes.weights);
        most.work = MAX(most.work, sizes.work);
        most.passing = MAX(most.passing, sizes.passing);
        most.stored = MAX(most.stored, sizes.stored);
    }
    return most;
}

/* Tensors that stay as stored are copied in such pieces. */
static size_t largest_piece(const Ptq *ptq) {
    size_t largest = 0;
    for (size_t i = 0; i < ptq->model->files->n; i++) largest = MAX(largest, ptq->model->files->tensors[i].bytes);
    return MIN(largest, (size_t)PTQ_COPIED_PIECE);
}

/* ---- a pass ---- */

typedef struct Seen {
    const Ptq *ptq;
    size_t inputs, plain, scratch; /* plain: of all inputs of a decoder layer */
} Seen;

static Tensor *see_sizes(void *context, Tape *tape, const Linear *const *linears, int n, Tensor *x) {
    Seen *seen = context;
    const Ptq *ptq = seen->ptq;
    const int64_t in = tensor_width(x);
    bool any = false;
    for (int i = 0; i < n; i++) any |= ptq->report->layers[linears[i]->index].quantised;
    if (!any) return x;
    seen->inputs = MAX(seen->inputs, inputs_bytes(ptq, in));
    if (ptq->method->scales_inputs) seen->plain += gathered_bytes(ptq, in, true);
    const PtqWanted wanted = ptq_wanted(ptq, false);
    if (wanted.products || wanted.held_products) seen->scratch = MAX(seen->scratch, input_sums_scratch(in, x));
    return ptq->method->rounds_inputs ? tape_tensor_like(tape, x->dtype, x) : x; /* as ptq_rounded_inputs */
}

/* The longest batch in one layer, on a device that computes nothing. */
static Status plan_layer(const Ptq *ptq, const PtqBatch *longest, int64_t layer, Seen *seen, TapeBytes *bytes) {
    Tape *meta = tape_new(device_plan(ptq->model->device), ptq->model->compute, 0);
    if (!meta) return ST_RESOURCE;
    tape_record(meta, false);
    const LinearWatch watch = {seen, see_sizes};
    ModelBatch batch = ptq_model_batch(longest);
    batch.step.watch = &watch;
    Tensor *x = tape_tensor(meta, tape_residual(meta), 2, (int64_t[]){longest->n_tokens, ptq->model->config.hidden_size});
    x = x ? model_layers(ptq->model, meta, &batch, x, layer, layer + 1) : NULL;
    const TapeBytes its = tape_bytes(meta);
    const Status status = x ? ST_OK : tape_status(meta);
    tape_free(meta);
    bytes->meta = MAX(bytes->meta, its.meta);
    bytes->activations = MAX(bytes->activations, its.activations);
    bytes->kept = MAX(bytes->kept, its.kept);
    bytes->gradients = MAX(bytes->gradients, its.gradients);
    return status;
}

/* The largest of each part over all decoder layers. */
static Status plan_passes(Ptq *ptq, Seen *most, size_t *bytes) {
    const Device *device = ptq->model->device;
    const PtqBatch *longest = &ptq->batches[0];
    TapeBytes tape = {0};
    for (size_t b = 1; b < ptq->n_batches; b++)
        if (ptq->batches[b].n_tokens > longest->n_tokens) longest = &ptq->batches[b];
    device->workspace_clear(device);
    for (int64_t layer = 0; layer < ptq->model->config.num_hidden_layers; layer++) {
        Seen seen = {.ptq = ptq};
        TRY(plan_layer(ptq, longest, layer, &seen, &tape));
        most->inputs = MAX(most->inputs, seen.inputs);
        most->plain = MAX(most->plain, seen.plain);
        most->scratch = MAX(most->scratch, seen.scratch);
    }
    *bytes = tape_bytes_total(&tape) + device->workspace_bytes(device) + most->scratch +
             (size_t)(longest->n_tokens * ptq->model->config.hidden_size) * wide_bytes(ptq); /* keep_hidden */
    tape_reserve(ptq->tape, &tape);
    return ST_OK;
}

Status ptq_plan(Ptq *ptq) {
    PtqMemory *memory = &ptq->report->memory;
    const LayerSizes layer = largest_sizes(ptq);
    Seen seen = {0};
    if (ptq->n_batches > 0) TRY(plan_passes(ptq, &seen, &memory->batch));
    memory->hidden = (size_t)ptq->n_tokens * dtype_bytes(ptq->model->compute, ptq->model->config.hidden_size) * (ptq->method->scales_inputs ? 2 : 1);
    memory->sums = seen.inputs + seen.plain;
    memory->layer = layer.weights + layer.work + layer.passing;
    memory->file = MAX(layer.stored, largest_piece(ptq));
    memory->process = ptq->resident + FIRST_TIME + (is_gptq(ptq) ? openblas_bytes(layer.in) : 0);
    memory->total = memory->hidden + memory->sums + memory->layer + memory->batch + memory->file + memory->process;
    /* One block each, so that smaller layers before larger ones leave no gaps. */
    arena_reserve(ptq->inputs_arena, seen.inputs + (1 << 16));
    arena_reserve(ptq->layer_arena, layer.weights + seen.plain + (1 << 16));
    arena_reserve(ptq->work_arena, layer.work + (1 << 16));
    return ST_OK;
}
