/* SPDX-License-Identifier: Apache-2.0 */
/* Short convolutions: row by row. A row's sum has the order of the taps, so that it has the same bits wherever the tokens before it are. */
#include "lib/tensor/cpu/blocks.h"

typedef struct Conv {
    const ShortConvArgs *args;
    const Segment *segments;
    const Tensor *x, *bias;
    int64_t width, n_taps;
    const float *taps; /* (n_taps, width), the tap of the oldest token first */
} Conv;

static Conv conv_of(const ShortConvArgs *args, const Tensor *x, const Tensor *weight, const Tensor *bias) {
    Conv conv = {args, layout_segments(args->layout), x, bias, weight->shape[0], weight->shape[2], NULL};
    float buffer[RUN], *taps = cpu_scratch(CPU_TASKS, (size_t)(conv.width * conv.n_taps) * sizeof *taps);
    for (RUNS(at, n, (int64_t)0, conv.width * conv.n_taps)) {
        const float *from = run_read(weight, at, n, buffer);
        for (int64_t i = 0; i < n; i++) taps[(at + i) % conv.n_taps * conv.width + (at + i) / conv.n_taps] = from[i];
    }
    conv.taps = taps;
    return conv;
}

/* The segment of a row. */
static int32_t segment_of(const Conv *conv, int64_t row) {
    int32_t low = 0, high = conv->args->layout->n_segments - 1;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (row < conv->segments[middle].end)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static const float *tap_of(const Conv *conv, int64_t back, int64_t at) { return conv->taps + (conv->n_taps - 1 - back) * conv->width + at; }

/* Columns at..at+n-1 of B, C or X (part 0, 1, 2) of a row. */
static const float *part_read(const Conv *conv, int64_t row, int part, int64_t at, int64_t n, float *buffer) {
    return run_read(conv->x, (3 * row + part) * conv->width + at, n, buffer);
}

/* Where product number n of a segment's state begins. */
static int64_t state_at(const Conv *conv, int32_t s, int64_t n) { return (conv->segments[s].state * (conv->n_taps - 1) + n) * conv->width; }

/* The products B X of the token `back` tokens before `row`, in `product`; false: there is no such token. */
static bool product_read(const Conv *conv, int32_t s, int64_t row, int64_t back, int64_t at, int64_t n, float *restrict product) {
    int64_t from = layout_before(conv->segments, s, row, back);
    float buffer_b[RUN], buffer_x[RUN];
    if (from < 0 && (!conv->args->states || conv->segments[s].past == 0)) return false;
    if (from < 0) {
        floats_from(conv->args->states, state_at(conv, s, conv->n_taps - 1 + from) + at, n, product);
        return true;
    }
    const float *b = part_read(conv, from, 0, at, n, buffer_b), *x = part_read(conv, from, 2, at, n, buffer_x);
    for (int64_t i = 0; i < n; i++) product[i] = b[i] * x[i];
    return true;
}

static void conv_sum(const Conv *conv, int32_t s, int64_t row, int64_t at, int64_t n, float *restrict sum) {
    float product[RUN];
    if (conv->bias)
        floats_from(conv->bias, at, n, sum);
    else
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t back = conv->n_taps - 1; back >= 0; back--) {
        if (!product_read(conv, s, row, back, at, n, product)) continue;
        const float *tap = tap_of(conv, back, at);
        for (int64_t i = 0; i < n; i++) sum[i] += tap[i] * product[i];
    }
}

/* In order of the new products: an old one moves to an earlier place. */
static void state_shift(const Conv *conv, int32_t s) {
    float product[RUN];
    for (int64_t k = 0; k < conv->n_taps - 1; k++)
        for (RUNS(at, n, (int64_t)0, conv->width)) {
            if (!product_read(conv, s, conv->segments[s].end, conv->n_taps - 1 - k, at, n, product)) memset(product, 0, sizeof product);
            run_write(conv->args->states, state_at(conv, s, k) + at, n, product, 0);
        }
}

void ISA_FN(short_conv)(const ShortConvArgs *args, const Tensor *x, const Tensor *weight, const Tensor *bias, Tensor *y) {
    if (!CPU_READS(x, weight, bias) || !CPU_WRITES(y, args->states)) {
        device_reference()->short_conv(args, x, weight, bias, y);
        return;
    }
    const Conv conv = conv_of(args, x, weight, bias);
    int64_t rows = tensor_rows(x);
#pragma omp parallel for schedule(static) if (rows * conv.width > CPU_SERIAL)
    for (int64_t row = 0; row < rows; row++) {
        float sum[RUN], buffer[RUN];
        int32_t s = segment_of(&conv, row);
        for (RUNS(at, n, (int64_t)0, conv.width)) {
            const float *gate = part_read(&conv, row, 1, at, n, buffer);
            conv_sum(&conv, s, row, at, n, sum);
            for (int64_t i = 0; i < n; i++) sum[i] *= gate[i];
            run_write(y, row * conv.width + at, n, sum, 0);
        }
    }
    for (int32_t s = 0; args->states && s < args->layout->n_segments; s++) state_shift(&conv, s);
}

/* Adds to the gradient of the product `back` tokens before `row` what comes from the tokens from `row` on. */
static void later_add(const Conv *conv, const Tensor *dy, int32_t s, int64_t row, int64_t back, int64_t at, int64_t n, float *restrict sum) {
    float buffer_d[RUN], buffer_c[RUN];
    for (; row < conv->segments[s].end && back < conv->n_taps; row++, back++) {
        const float *d = run_read(dy, row * conv->width + at, n, buffer_d), *gate = part_read(conv, row, 1, at, n, buffer_c),
                    *tap = tap_of(conv, back, at);
        for (int64_t i = 0; i < n; i++) sum[i] += tap[i] * (d[i] * gate[i]);
    }
    for (int32_t child = s + 1; back < conv->n_taps && child < conv->args->layout->n_segments; child++)
        if (conv->segments[child].parent == s) later_add(conv, dy, child, conv->segments[child].begin, back, at, n, sum);
}

static void row_backward(const Conv *conv, const Tensor *dy, int32_t s, int64_t row, int64_t at, int64_t n, float beta, Tensor *dx) {
    float buffer[RUN], buffer_d[RUN], result[RUN], product[RUN] = {0};
    const float *d = run_read(dy, row * conv->width + at, n, buffer_d);
    conv_sum(conv, s, row, at, n, result);
    for (int64_t i = 0; i < n; i++) result[i] *= d[i];
    run_write(dx, (3 * row + 1) * conv->width + at, n, result, beta);
    later_add(conv, dy, s, row, 0, at, n, product);
    for (int part = 0; part < 3; part += 2) { /* each factor's gradient has the other factor */
        const float *other = part_read(conv, row, 2 - part, at, n, buffer);
        for (int64_t i = 0; i < n; i++) result[i] = product[i] * other[i];
        run_write(dx, (3 * row + part) * conv->width + at, n, result, beta);
    }
}

/* Adds the row's part of the gradients of the taps and of the bias to sums, one for each. */
static void taps_backward(const Conv *conv, const Tensor *dy, int32_t s, int64_t row, const RowSums *sums, int64_t block, bool with_bias) {
    for (RUNS(at, n, (int64_t)0, conv->width)) {
        float buffer_d[RUN], buffer_c[RUN], gated[RUN], product[RUN];
        const float *d = run_read(dy, row * conv->width + at, n, buffer_d), *gate = part_read(conv, row, 1, at, n, buffer_c);
        for (int64_t i = 0; i < n; i++) gated[i] = d[i] * gate[i];
        for (int64_t k = 0; k < conv->n_taps; k++) {
            float *sum = row_sums_of(sums, block, k) + at;
            if (!product_read(conv, s, row, conv->n_taps - 1 - k, at, n, product)) continue;
            for (int64_t i = 0; i < n; i++) sum[i] += gated[i] * product[i];
        }
        float *sum = row_sums_of(sums, block, conv->n_taps) + at;
        for (int64_t i = 0; i < n && with_bias; i++) sum[i] += gated[i];
    }
}

/* dweight += the sums of all blocks, whose taps are consecutive there. */
static void taps_add(const Conv *conv, const RowSums *sums, Tensor *dweight) {
    for (RUNS(at, n, (int64_t)0, conv->width * conv->n_taps)) {
        float result[RUN] = {0};
        for (int64_t block = 0; block < sums->n_blocks; block++)
            for (int64_t i = 0; i < n; i++) result[i] += row_sums_of(sums, block, (at + i) % conv->n_taps)[(at + i) / conv->n_taps];
        run_write(dweight, at, n, result, 1);
    }
}

void ISA_FN(short_conv_backward)(const ShortConvArgs *args, const Tensor *x, const Tensor *weight, const Tensor *bias, const Tensor *dy, double beta,
                                 Tensor *dx, Tensor *dweight, Tensor *dbias) {
    if (!CPU_READS(x, weight, bias, dy) || !CPU_WRITES(dx, dweight, dbias)) {
        device_reference()->short_conv_backward(args, x, weight, bias, dy, beta, dx, dweight, dbias);
        return;
    }
    const Conv conv = conv_of(args, x, weight, bias);
    const bool trained = dweight || dbias;
    int64_t rows = tensor_rows(x);
    RowSums sums = row_sums_begin(rows, conv.width, trained ? conv.n_taps + 1 : 0);
#pragma omp parallel for schedule(static) if (rows * conv.width > CPU_SERIAL)
    for (int64_t block = 0; block < sums.n_blocks; block++)
        for (int64_t row = block * sums.block_rows; row < MIN(rows, (block + 1) * sums.block_rows); row++) {
            int32_t s = segment_of(&conv, row);
            for (RUNS(at, n, (int64_t)0, dx ? conv.width : 0)) row_backward(&conv, dy, s, row, at, n, (float)beta, dx);
            if (trained) taps_backward(&conv, dy, s, row, &sums, block, dbias != NULL);
        }
    if (dbias) row_sums_add(&sums, conv.n_taps, dbias);
    if (dweight) taps_add(&conv, &sums, dweight);
}
