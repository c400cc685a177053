/* SPDX-License-Identifier: Apache-2.0 */
/* Normalisation over the width of a row. Sources: layer norm arXiv 1607.06450, RMS norm arXiv 1910.07467. */
#include "lib/tensor/cpu/blocks.h"

void ISA_FN(rms_norm)(const Tensor *x, const Tensor *weight, double eps, const Tensor *addend, Tensor *y, Tensor *rstd) {
    if (!CPU_READS(x, weight, addend) || !CPU_WRITES(y, rstd)) {
        device_reference()->rms_norm(x, weight, eps, addend, y, rstd);
        return;
    }
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float buffer[RUN], buffer_weight[RUN], result[RUN], squares = 0;
        for (RUNS(at, n, 0, width)) {
            run_ahead(x, (r + 1) * width + at, n);
            const float *in = run_read(x, r * width + at, n, buffer);
#pragma omp simd reduction(+ : squares)
            for (int64_t i = 0; i < n; i++) squares += in[i] * in[i];
        }
        float scale = 1.0f / sqrtf(squares / (float)width + (float)eps);
        run_write(rstd, r, 1, &scale, 0);
        for (RUNS(at, n, 0, width)) {
            const float *in = run_read(x, r * width + at, n, buffer), *w = run_read(weight, at, n, buffer_weight);
            for (int64_t i = 0; i < n; i++) result[i] = in[i] * scale * w[i];
            if (addend) {
                const float *more = run_read(addend, r * width + at, n, buffer_weight);
                for (int64_t i = 0; i < n; i++) result[i] += more[i];
            }
            run_write(y, r * width + at, n, result, 0);
        }
    }
}

/* One row: dx = rstd (g - x_hat mean(g x_hat)) with g = dy weight; dweight += dy x_hat. */
static void rms_norm_backward_row(const Tensor *x, const Tensor *weight, float rstd, const Tensor *dy, float beta, Tensor *dx, float *dweight,
                                  int64_t start, int64_t width) {
    float buffer_x[RUN], buffer_weight[RUN], buffer_d[RUN], result[RUN], sum = 0;
    for (RUNS(at, n, 0, width)) {
        run_ahead(x, start + width + at, n);
        run_ahead(dy, start + width + at, n);
        if (beta != 0) run_ahead(dx, start + width + at, n);
        const float *in = run_read(x, start + at, n, buffer_x), *w = run_read(weight, at, n, buffer_weight),
                    *d = run_read(dy, start + at, n, buffer_d);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += d[i] * w[i] * in[i];
        if (dweight)
            for (int64_t i = 0; i < n; i++) dweight[at + i] += d[i] * (in[i] * rstd);
    }
    if (!dx) return;
    float factor = sum * rstd * rstd / (float)width;
    for (RUNS(at, n, 0, width)) {
        const float *in = run_read(x, start + at, n, buffer_x), *w = run_read(weight, at, n, buffer_weight),
                    *d = run_read(dy, start + at, n, buffer_d);
        for (int64_t i = 0; i < n; i++) result[i] = rstd * (d[i] * w[i] - in[i] * factor);
        run_write(dx, start + at, n, result, beta);
    }
}

void ISA_FN(rms_norm_backward)(const Tensor *x, const Tensor *weight, const Tensor *rstd, const Tensor *dy, double beta, Tensor *dx,
                               Tensor *dweight) {
    if (!CPU_READS(x, weight, rstd, dy) || !CPU_WRITES(dx, dweight)) {
        device_reference()->rms_norm_backward(x, weight, rstd, dy, beta, dx, dweight);
        return;
    }
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
    RowSums sums = row_sums_begin(rows, width, dweight ? 1 : 0);
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t block = 0; block < sums.n_blocks; block++)
        for (int64_t r = block * sums.block_rows; r < MIN(rows, (block + 1) * sums.block_rows); r++) {
            float scale;
            floats_from(rstd, r, 1, &scale);
            rms_norm_backward_row(x, weight, scale, dy, (float)beta, dx, dweight ? row_sums_of(&sums, block, 0) : NULL, r * width, width);
        }
    if (dweight) row_sums_add(&sums, 0, dweight);
}

/* One row: g = dy weight and x_hat = y / weight, so that the mean of their product is that of dy y. */
static void rms_norm_backward_result_row(const Tensor *y, const Tensor *weight, const Tensor *inverse, float rstd, const Tensor *dy, float beta,
                                         Tensor *dx, float *dweight, int64_t start, int64_t width) {
    float buffer_y[RUN], buffer_weight[RUN], buffer_inverse[RUN], buffer_d[RUN], result[RUN], sum = 0;
    for (RUNS(at, n, 0, width)) {
        run_ahead(y, start + width + at, n);
        run_ahead(dy, start + width + at, n);
        if (beta != 0) run_ahead(dx, start + width + at, n);
        const float *out = run_read(y, start + at, n, buffer_y), *d = run_read(dy, start + at, n, buffer_d);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += d[i] * out[i];
        if (!dweight) continue;
        const float *inv = run_read(inverse, at, n, buffer_inverse);
        for (int64_t i = 0; i < n; i++) dweight[at + i] += d[i] * (out[i] * inv[i]);
    }
    if (!dx) return;
    float mean = sum / (float)width;
    for (RUNS(at, n, 0, width)) {
        const float *out = run_read(y, start + at, n, buffer_y), *d = run_read(dy, start + at, n, buffer_d);
        const float *w = run_read(weight, at, n, buffer_weight), *inv = run_read(inverse, at, n, buffer_inverse);
        for (int64_t i = 0; i < n; i++) result[i] = rstd * (d[i] * w[i] - out[i] * inv[i] * mean);
        run_write(dx, start + at, n, result, beta);
    }
}

void ISA_FN(rms_norm_backward_result)(const Tensor *y, const Tensor *weight, const Tensor *inverse, const Tensor *rstd, const Tensor *dy, double beta,
                                      Tensor *dx, Tensor *dweight) {
    if (!CPU_READS(y, weight, inverse, rstd, dy) || !CPU_WRITES(dx, dweight)) {
        device_reference()->rms_norm_backward_result(y, weight, inverse, rstd, dy, beta, dx, dweight);
        return;
    }
    int64_t width = tensor_count(weight), rows = tensor_count(y) / width;
    RowSums sums = row_sums_begin(rows, width, dweight ? 1 : 0);
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t block = 0; block < sums.n_blocks; block++)
        for (int64_t r = block * sums.block_rows; r < MIN(rows, (block + 1) * sums.block_rows); r++) {
            float scale;
            floats_from(rstd, r, 1, &scale);
            rms_norm_backward_result_row(y, weight, inverse, scale, dy, (float)beta, dx, dweight ? row_sums_of(&sums, block, 0) : NULL, r * width,
                                         width);
        }
    if (dweight) row_sums_add(&sums, 0, dweight);
}

void ISA_FN(layer_norm)(const Tensor *x, const Tensor *weight, const Tensor *bias, double eps, Tensor *y, Tensor *mean, Tensor *rstd) {
    if (!CPU_READS(x, weight, bias) || !CPU_WRITES(y, mean, rstd)) {
        device_reference()->layer_norm(x, weight, bias, eps, y, mean, rstd);
        return;
    }
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float buffer[RUN], buffer_weight[RUN], buffer_bias[RUN], result[RUN], sum = 0, squares = 0;
        for (RUNS(at, n, 0, width)) {
            const float *in = run_read(x, r * width + at, n, buffer);
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += in[i];
        }
        float average = sum / (float)width;
        for (RUNS(at, n, 0, width)) {
            const float *in = run_read(x, r * width + at, n, buffer);
#pragma omp simd reduction(+ : squares)
            for (int64_t i = 0; i < n; i++) squares += (in[i] - average) * (in[i] - average);
        }
        float scale = 1.0f / sqrtf(squares / (float)width + (float)eps);
        run_write(mean, r, 1, &average, 0);
        run_write(rstd, r, 1, &scale, 0);
        for (RUNS(at, n, 0, width)) {
            const float *in = run_read(x, r * width + at, n, buffer), *w = run_read(weight, at, n, buffer_weight);
            for (int64_t i = 0; i < n; i++) result[i] = (in[i] - average) * scale * w[i];
            if (bias) {
                const float *b = run_read(bias, at, n, buffer_bias);
                for (int64_t i = 0; i < n; i++) result[i] += b[i];
            }
            run_write(y, r * width + at, n, result, 0);
        }
    }
}

/* One row: dx = rstd (g - mean(g) - x_hat mean(g x_hat)) with g = dy weight; dweight += dy x_hat, dbias += dy. */
static void layer_norm_backward_row(const Tensor *x, const Tensor *weight, float mean, float rstd, const Tensor *dy, float beta, Tensor *dx,
                                    float *dweight, float *dbias, int64_t start, int64_t width) {
    float buffer_x[RUN], buffer_weight[RUN], buffer_d[RUN], result[RUN], sum = 0, sum_x = 0;
    for (RUNS(at, n, 0, width)) {
        run_ahead(x, start + width + at, n);
        run_ahead(dy, start + width + at, n);
        if (beta != 0) run_ahead(dx, start + width + at, n);
        const float *in = run_read(x, start + at, n, buffer_x), *w = run_read(weight, at, n, buffer_weight),
                    *d = run_read(dy, start + at, n, buffer_d);
#pragma omp simd reduction(+ : sum, sum_x)
        for (int64_t i = 0; i < n; i++) {
            float g = d[i] * w[i];
            sum += g;
            sum_x += g * (in[i] - mean);
        }
        for (int64_t i = 0; i < n; i++) {
            dweight[at + i] += d[i] * ((in[i] - mean) * rstd);
            dbias[at + i] += d[i];
        }
    }
    if (!dx) return;
    float mean_g = sum / (float)width, factor = sum_x * rstd * rstd / (float)width;
    for (RUNS(at, n, 0, width)) {
        const float *in = run_read(x, start + at, n, buffer_x), *w = run_read(weight, at, n, buffer_weight),
                    *d = run_read(dy, start + at, n, buffer_d);
        for (int64_t i = 0; i < n; i++) result[i] = rstd * (d[i] * w[i] - mean_g - (in[i] - mean) * factor);
        run_write(dx, start + at, n, result, beta);
    }
}

void ISA_FN(layer_norm_backward)(const Tensor *x, const Tensor *weight, const Tensor *mean, const Tensor *rstd, const Tensor *dy, double beta,
                                 Tensor *dx, Tensor *dweight, Tensor *dbias) {
    if (!CPU_READS(x, weight, mean, rstd, dy) || !CPU_WRITES(dx, dweight, dbias)) {
        device_reference()->layer_norm_backward(x, weight, mean, rstd, dy, beta, dx, dweight, dbias);
        return;
    }
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
    RowSums sums = row_sums_begin(rows, width, 2);
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t block = 0; block < sums.n_blocks; block++)
        for (int64_t r = block * sums.block_rows; r < MIN(rows, (block + 1) * sums.block_rows); r++) {
            float average, scale;
            floats_from(mean, r, 1, &average);
            floats_from(rstd, r, 1, &scale);
            layer_norm_backward_row(x, weight, average, scale, dy, (float)beta, dx, row_sums_of(&sums, block, 0), row_sums_of(&sums, block, 1),
                                    r * width, width);
        }
    if (dweight) row_sums_add(&sums, 0, dweight);
    if (dbias) row_sums_add(&sums, 1, dbias);
}
