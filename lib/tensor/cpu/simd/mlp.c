/* SPDX-License-Identifier: Apache-2.0 */
/* Multilayer perceptrons: all layers of a block of rows at a time.
 *
 * Values of a block are stored transposed, (width, rows): vectors run along the rows, so that weights are read one by one in memory order, whatever
 * their shape, and a layer of one or two outputs wastes no lanes. Forward Z = W H + b, backward dH = W^T dZ. The gradient of a weight, dZ H^T, needs
 * H row by row: the backward pass transposes H. It is summed by ranges of outputs over all rows in order. Blocks and ranges depend only on the
 * problem, so results do not depend on the number of threads. */
#include "lib/tensor/cpu/blocks.h"
#include "lib/tensor/cpu/vec.h"

/* ROWS: of a block. PASS: rows in one backward pass, which limits the scratch memory. OUTPUTS: of a range. */
enum { ROWS = 32, PASS = 512, OUTPUTS = 32 };
/* Number of multiply-adds below which the team is not used. */
enum { TEAM_WORK = 100000 };

static int64_t padded(int64_t n) { return (n + VEC_FLOATS - 1) / VEC_FLOATS * VEC_FLOATS; }

static int64_t width_of(const MlpArgs *args, int layer) { return layer < 0 ? args->weights[0]->shape[1] : args->weights[layer]->shape[0]; }

static bool activated(const MlpArgs *args, int layer) { return layer + 1 < args->n_layers || args->activate_last; }

static int64_t widths_below(const MlpArgs *args, int layer) {
    int64_t sum = 0;
    for (int k = 0; k < layer; k++) sum += width_of(args, k);
    return sum;
}

static int64_t widest(const MlpArgs *args) {
    int64_t width = 0;
    for (int k = -1; k < args->n_layers; k++) width = MAX(width, width_of(args, k));
    return width;
}

static int64_t work_of(const MlpArgs *args, int64_t rows) {
    int64_t weights = 0;
    for (int k = 0; k < args->n_layers; k++) weights += tensor_count(args->weights[k]);
    return 2 * rows * weights;
}

static const float *floats_of(const Tensor *tensor) { return tensor->elements; }

/* Offset of a layer's saved values in the block that begins with row `begin`, where each has `n` rows. */
static int64_t saved_at(const MlpArgs *args, int layer, int64_t begin, int64_t n) {
    int64_t saved_widths = widths_below(args, args->n_layers - !args->activate_last);
    return begin * saved_widths + n * widths_below(args, layer);
}

/* Transposes rows begin..begin+rows-1 of a tensor into (width, n), with zeros after `rows`. */
static void columns_read(const Tensor *x, int64_t begin, int64_t rows, float *to, int64_t n, float *buffer) {
    int64_t width = tensor_width(x);
    if (rows < n) memset(to, 0, (size_t)(width * n) * sizeof *to);
    const float *from = x->dtype == DT_F32 ? floats_of(x) + begin * width : buffer;
    if (x->dtype != DT_F32) floats_from(x, begin * width, rows * width, buffer);
    transpose(rows, width, from, width, to, n);
}

static void mlp_activate(Activation kind, int64_t n, float *restrict z) {
    if (kind == ACT_TANH)
        for (int64_t i = 0; i < n; i++) z[i] = exact_tanh(z[i]);
    else
        for (int64_t i = 0; i < n; i++) z[i] = z[i] < 0.0f ? 0.0f : z[i];
}

/* Multiplies d by the slope of f at the value h. */
static void slope_multiply(Activation kind, int64_t n, const float *restrict h, float *restrict d) {
    if (kind == ACT_TANH)
        for (int64_t i = 0; i < n; i++) d[i] *= 1.0f - h[i] * h[i];
    else
        for (int64_t i = 0; i < n; i++) d[i] *= h[i] > 0.0f ? 1.0f : h[i] != h[i] ? h[i] : 0.0f;
}

typedef struct Forward {
    const MlpArgs *args;
    const Tensor *x;
    Tensor *saved, *y;
} Forward;

static void forward_block(void *context, int64_t block) {
    const Forward *run = context;
    const MlpArgs *args = run->args;
    int64_t begin = block * ROWS, rows = MIN((int64_t)ROWS, tensor_rows(run->y) - begin), n = padded(rows), most = widest(args) * n;
    float *buffers = cpu_scratch(CPU_LOCAL, (size_t)(3 * most) * sizeof *buffers);
    float *h = buffers;
    columns_read(run->x, begin, rows, h, n, buffers + most);
    for (int k = 0; k < args->n_layers; k++) {
        int64_t in = width_of(args, k - 1), out = width_of(args, k);
        float *z = run->saved && activated(args, k) ? (float *)run->saved->elements + saved_at(args, k, begin, n) : buffers + (1 + k % 2) * most;
        const float *bias = floats_of(args->biases[k]);
        for (int64_t o = 0; o < out; o++)
            for (int64_t r = 0; r < n; r++) z[o * n + r] = bias[o];
        tile_product(out, n, in, (Strided){floats_of(args->weights[k]), in, 1}, h, n, z, n, true);
        if (activated(args, k)) mlp_activate(args->activation, out * n, z);
        h = z;
    }
    int64_t out = tensor_width(run->y);
    transpose(out, rows, h, n, (float *)run->y->elements + begin * out, out);
}

/* Observations may be bf16; everything else of a network is f32. */
static bool fast(const MlpArgs *args, const Tensor *x, const Tensor *y) {
    return CPU_READS(x) && y->dtype == DT_F32 && args->weights[0]->dtype == DT_F32;
}

static void blocks_run(int64_t work, int64_t n, CpuTask *task, void *context) {
    if (work > TEAM_WORK)
        cpu_team_run(n, task, context);
    else
        for (int64_t i = 0; i < n; i++) task(context, i);
}

void ISA_FN(mlp)(const MlpArgs *args, const Tensor *x, Tensor *saved, Tensor *y) {
    if (!fast(args, x, y)) {
        device_reference()->mlp(args, x, saved, y);
        return;
    }
    int64_t rows = tensor_rows(y);
    blocks_run(work_of(args, rows), blocks_of(rows, ROWS), forward_block, &(Forward){args, x, saved, y});
}

/* One backward pass: `rows` rows from `begin` on. deltas: dZ of each layer, (width, n) for each block; inputs: the input of each layer, (n, padded
 * width) for each block. */
typedef struct Backward {
    const MlpArgs *args;
    const MlpGrads *grads;
    const Tensor *x, *saved, *dy;
    int64_t begin, rows;
    float *deltas, *inputs;
} Backward;

/* Offsets of a layer's parts of a block whose rows are padded to n. `row`: in the pass. */
static float *delta_of(const Backward *run, int layer, int64_t row, int64_t n) {
    return run->deltas + row * widths_below(run->args, run->args->n_layers) + n * widths_below(run->args, layer);
}

static int64_t padded_below(const MlpArgs *args, int layer) {
    int64_t sum = 0;
    for (int k = 0; k < layer; k++) sum += padded(width_of(args, k - 1));
    return sum;
}

static float *input_of(const Backward *run, int layer, int64_t row, int64_t n) {
    return run->inputs + row * padded_below(run->args, run->args->n_layers) + n * padded_below(run->args, layer);
}

/* x as the first layer's input: rows unchanged, padded with zeros. */
static void first_input(const Backward *run, int64_t begin, int64_t rows, float *to, int64_t n) {
    int64_t width = tensor_width(run->x), row = padded(width);
    memset(to, 0, (size_t)(n * row) * sizeof *to);
    for (int64_t r = 0; r < rows; r++) floats_from(run->x, (begin + r) * width, width, to + r * row);
}

static void transposed_input(const float *h, int64_t width, float *to, int64_t n) {
    int64_t row = padded(width);
    if (row > width) memset(to, 0, (size_t)(n * row) * sizeof *to);
    transpose(width, n, h, n, to, row);
}

/* Gradient with respect to x of a block, from the deltas of the first layer. */
static void x_gradient(const Backward *run, int64_t begin, int64_t rows, const float *delta, int64_t n) {
    const MlpArgs *args = run->args;
    Tensor *dx = run->grads->x;
    int64_t in = width_of(args, -1), out = width_of(args, 0);
    float *transposed = cpu_scratch(CPU_LOCAL, (size_t)(2 * in * n) * sizeof *transposed), *values = transposed + in * n;
    tile_product(in, n, out, (Strided){floats_of(args->weights[0]), 1, in}, delta, n, transposed, n, false);
    transpose(in, rows, transposed, n, values, in);
    run_write(dx, begin * in, rows * in, values, (float)run->grads->beta);
}

static void backward_block(void *context, int64_t block) {
    const Backward *run = context;
    const MlpArgs *args = run->args;
    int64_t row = block * ROWS, begin = run->begin + row, rows = MIN((int64_t)ROWS, run->rows - row), n = padded(rows);
    const float *saved = floats_of(run->saved);
    int last = args->n_layers - 1;
    float *delta = delta_of(run, last, row, n);
    columns_read(run->dy, begin, rows, delta, n, NULL);
    if (args->activate_last) slope_multiply(args->activation, width_of(args, last) * n, saved + saved_at(args, last, begin, n), delta);
    for (int k = last; k > 0; k--) {
        int64_t in = width_of(args, k - 1), out = width_of(args, k);
        const float *h = saved + saved_at(args, k - 1, begin, n);
        float *below = delta_of(run, k - 1, row, n);
        tile_product(in, n, out, (Strided){floats_of(args->weights[k]), 1, in}, delta, n, below, n, false);
        slope_multiply(args->activation, in * n, h, below);
        if (run->grads->weights[k]) transposed_input(h, in, input_of(run, k, row, n), n);
        delta = below;
    }
    if (run->grads->weights[0]) first_input(run, begin, rows, input_of(run, 0, row, n), n);
    if (run->grads->x) x_gradient(run, begin, rows, delta, n);
}

/* Gradients of the weights and biases of outputs from..from+outs-1 of a layer, over the rows of the pass. */
static void range_gradient(const Backward *run, int layer, int64_t from, int64_t outs) {
    int64_t in = width_of(run->args, layer - 1), row = padded(in);
    float *sums = cpu_scratch(CPU_LOCAL, (size_t)(outs * row) * sizeof *sums), bias_sums[OUTPUTS] = {0};
    for (int64_t at = 0; at < run->rows; at += ROWS) {
        int64_t n = padded(MIN((int64_t)ROWS, run->rows - at));
        const float *delta = delta_of(run, layer, at, n) + from * n;
        if (run->grads->weights[layer]) tile_product(outs, row, n, (Strided){delta, n, 1}, input_of(run, layer, at, n), row, sums, row, at > 0);
        for (int64_t o = 0; o < outs; o++) {
            Vec sum = {0};
            for (int64_t r = 0; r < n; r += VEC_FLOATS) sum += *(const VecInMemory *)(delta + o * n + r);
            for (int lane = 0; lane < VEC_FLOATS; lane++) bias_sums[o] += sum[lane];
        }
    }
    if (run->grads->biases[layer]) run_write(run->grads->biases[layer], from, outs, bias_sums, 1);
    for (int64_t o = 0; run->grads->weights[layer] && o < outs; o++) run_write(run->grads->weights[layer], (from + o) * in, in, sums + o * row, 1);
}

static int64_t ranges_of(const MlpArgs *args, int layer) { return blocks_of(width_of(args, layer), OUTPUTS); }

static void range_task(void *context, int64_t range) {
    const Backward *run = context;
    int layer = run->args->n_layers - 1;
    for (; range >= ranges_of(run->args, layer); layer--) range -= ranges_of(run->args, layer);
    int64_t from = range * OUTPUTS;
    range_gradient(run, layer, from, MIN((int64_t)OUTPUTS, width_of(run->args, layer) - from));
}

void ISA_FN(mlp_backward)(const MlpArgs *args, const Tensor *x, const Tensor *saved, const Tensor *dy, const MlpGrads *grads) {
    if (!fast(args, x, dy)) {
        device_reference()->mlp_backward(args, x, saved, dy, grads);
        return;
    }
    int64_t rows = tensor_rows(dy), most = padded(MIN(rows, (int64_t)PASS)), delta_width = widths_below(args, args->n_layers), n_ranges = 0;
    int64_t inputs_width = padded_below(args, args->n_layers);
    bool weights = false;
    for (int k = 0; k < args->n_layers; k++) {
        n_ranges += ranges_of(args, k);
        weights |= grads->weights[k] || grads->biases[k];
    }
    float *memory = cpu_scratch(CPU_SHARED, (size_t)(most * (delta_width + inputs_width)) * sizeof *memory);
    for (int64_t begin = 0; begin < rows; begin += PASS) {
        Backward run = {args, grads, x, saved, dy, begin, MIN((int64_t)PASS, rows - begin), memory, memory + most * delta_width};
        int64_t work = work_of(args, run.rows);
        blocks_run(work, blocks_of(run.rows, ROWS), backward_block, &run);
        if (weights) blocks_run(work, n_ranges, range_task, &run);
    }
}
