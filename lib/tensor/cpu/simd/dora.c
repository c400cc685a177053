/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of DoRA. */
#include "lib/tensor/cpu/blocks.h"

/* Rows that share the factors of a run of columns. */
enum { ROWS = 32 };

/* Elements at..at+n-1 of a weight, which may be quantised. */
static const float *read_weight(const Tensor *weight, int64_t at, int64_t n, float *buffer) {
    if (!dtype_is_quantised(weight->dtype)) return run_read(weight, at, n, buffer);
    ISA_FN(codes)(weight->dtype, weight->elements, at, n, weight->storage->rounds, buffer);
    return buffer;
}

static double sum_of_squares(const Tensor *tensor, int64_t begin, int64_t end) {
    enum { LANES = 8 };
    float buffer[RUN];
    double lanes[LANES] = {0}, sum = 0;
    for (RUNS(at, n, begin, end)) {
        const float *values = read_weight(tensor, at, n, buffer);
        for (int64_t i = 0; i < n; i++) lanes[i % LANES] += (double)values[i] * (double)values[i];
    }
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

static void squares_of_columns(const Tensor *weight, int64_t first, int64_t n, float *squares) {
    const int64_t width = tensor_width(weight), rows = tensor_rows(weight);
    float buffer[RUN];
    double sums[RUN] = {0};
    for (int64_t r = 0; r < rows; r++) {
        const float *values = read_weight(weight, r * width + first, n, buffer);
        for (int64_t i = 0; i < n; i++) sums[i] += (double)values[i] * (double)values[i];
    }
    for (int64_t i = 0; i < n; i++) squares[i] = (float)sums[i];
}

void ISA_FN(dora_squares)(const Tensor *weight, Tensor *squares) {
    if (!cpu_reads_weight(weight) || squares->dtype != DT_F32) {
        device_reference()->dora_squares(weight, squares);
        return;
    }
    const int64_t out = tensor_count(squares), in = tensor_count(weight) / out;
    float *sums = squares->elements;
    if (weight->in_out) {
#pragma omp parallel for schedule(static) if (out * in > CPU_SERIAL)
        for (int64_t at = 0; at < out; at += RUN) squares_of_columns(weight, at, MIN((int64_t)RUN, out - at), sums + at);
        return;
    }
#pragma omp parallel for schedule(static) if (out * in > CPU_SERIAL)
    for (int64_t o = 0; o < out; o++) sums[o] = (float)sum_of_squares(weight, o * in, (o + 1) * in);
}

/* The change of the squared length of a row of W by the row b of B. */
static double change_of_square(const float *products, int64_t stride, const float *gram, const float *b, int64_t rank, double scale) {
    double change = 0;
    for (int64_t r = 0; r < rank; r++) {
        double sum = 0;
        for (int64_t s = 0; s < rank; s++) sum += (double)gram[r * rank + s] * (double)b[s];
        change += scale * (double)b[r] * (2 * (double)products[r * stride] + scale * sum);
    }
    return change;
}

void ISA_FN(dora_norms)(const Tensor *squares, const Tensor *products, const Tensor *gram, const Tensor *b, double scale, Tensor *norms) {
    if (squares->dtype != DT_F32 || products->dtype != DT_F32 || gram->dtype != DT_F32 || b->dtype != DT_F32 || norms->dtype != DT_F32) {
        device_reference()->dora_norms(squares, products, gram, b, scale, norms);
        return;
    }
    const int64_t out = tensor_count(norms), rank = tensor_rows(gram);
    const float *known = squares->elements, *all = products->elements, *rows = b->elements, *inner = gram->elements;
    float *to = norms->elements;
#pragma omp parallel for schedule(static) if (out * rank * rank > CPU_SERIAL)
    for (int64_t o = 0; o < out; o++)
        to[o] = (float)sqrt(fmax((double)known[o] + change_of_square(all + o, out, inner, rows + o * rank, rank, scale), 0));
}

static void read_factors(const Tensor *magnitude, const Tensor *norms, int64_t at, int64_t n, float *factors, float *inverses) {
    float norm[RUN];
    floats_from(norms, at, n, norm);
    floats_from(magnitude, at, n, factors);
    for (int64_t i = 0; i < n; i++) {
        inverses[i] = norm[i] == 0.0f ? 0.0f : 1.0f / norm[i];
        factors[i] = norm[i] == 0.0f ? 0.0f : factors[i] / norm[i];
    }
}

void ISA_FN(dora)(const Tensor *x, const Tensor *magnitude, const Tensor *norms, const Tensor *addend, Tensor *y) {
    if (!CPU_READS(x, magnitude, norms) || (addend && !CPU_READS(addend)) || !CPU_WRITES(y)) {
        device_reference()->dora(x, magnitude, norms, addend, y);
        return;
    }
    const int64_t width = tensor_width(x), rows = tensor_rows(x);
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t first = 0; first < rows; first += ROWS) {
        float factors[RUN], inverses[RUN], buffer[RUN], added[RUN], scaled[RUN];
        for (RUNS(at, n, 0, width)) {
            read_factors(magnitude, norms, at, n, factors, inverses);
            for (int64_t r = first; r < MIN(rows, first + ROWS); r++) {
                const float *values = run_read(x, r * width + at, n, buffer), *more = addend ? run_read(addend, r * width + at, n, added) : NULL;
                for (int64_t i = 0; i < n; i++) scaled[i] = factors[i] * values[i];
                for (int64_t i = 0; more && i < n; i++) scaled[i] += more[i];
                run_write(y, r * width + at, n, scaled, 0);
            }
        }
    }
}

void ISA_FN(dora_backward)(const Tensor *dy, const Tensor *x, const Tensor *magnitude, const Tensor *norms, double beta, Tensor *dx,
                           Tensor *dmagnitude) {
    if (!CPU_READS(dy, x, magnitude, norms) || (dx && !CPU_WRITES(dx)) || (dmagnitude && !CPU_WRITES(dmagnitude))) {
        device_reference()->dora_backward(dy, x, magnitude, norms, beta, dx, dmagnitude);
        return;
    }
    const int64_t width = tensor_width(x), rows = tensor_rows(x);
    RowSums sums = row_sums_begin(rows, width, 1);
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t block = 0; block < sums.n_blocks; block++) {
        float *sum = row_sums_of(&sums, block, 0), factors[RUN], inverses[RUN], buffer_d[RUN], buffer_x[RUN], scaled[RUN];
        for (RUNS(at, n, 0, width)) {
            read_factors(magnitude, norms, at, n, factors, inverses);
            for (int64_t r = block * sums.block_rows; r < MIN(rows, (block + 1) * sums.block_rows); r++) {
                const float *d = run_read(dy, r * width + at, n, buffer_d), *values = run_read(x, r * width + at, n, buffer_x);
                for (int64_t i = 0; i < n; i++) sum[at + i] += d[i] * values[i] * inverses[i];
                for (int64_t i = 0; i < n; i++) scaled[i] = factors[i] * d[i];
                if (dx) run_write(dx, r * width + at, n, scaled, (float)beta);
            }
        }
    }
    if (dmagnitude) row_sums_add(&sums, 0, dmagnitude);
}
