/* SPDX-License-Identifier: Apache-2.0 */
/* Columns in another order, and sinks of attention: row by row. */
#include "lib/tensor/cpu/blocks.h"

#include <math.h>

void ISA_FN(gather_columns)(const Tensor *x, const Tensor *more, const Tensor *units, Tensor *y) {
    if (!CPU_READS(x, more) || !CPU_WRITES(y)) {
        device_reference()->gather_columns(x, more, units, y);
        return;
    }
    int64_t n = tensor_count(units), unit = tensor_width(y) / n, rows = tensor_rows(y), of_x = tensor_width(x) / unit,
            of_more = more ? tensor_width(more) / unit : 0;
    const int32_t *from = units->elements;
#pragma omp parallel for schedule(static) if (rows * n * unit > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t u = 0; u < n; u++) {
            static const float zeros[RUN];
            int64_t at = (r * n + u) * unit;
            if (from[u] < 0)
                for (RUNS(i, some, (int64_t)0, unit)) run_write(y, at + i, some, zeros, 0);
            else if (from[u] < of_x)
                run_copy(y, at, x, (r * of_x + from[u]) * unit, unit);
            else
                run_copy(y, at, more, (r * of_more + from[u] - of_x) * unit, unit);
        }
}

void ISA_FN(scatter_add_columns)(const Tensor *dy, const Tensor *units, int64_t first, Tensor *dx) {
    if (!CPU_READS(dy) || !CPU_WRITES(dx)) {
        device_reference()->scatter_add_columns(dy, units, first, dx);
        return;
    }
    int64_t n = tensor_count(units), unit = tensor_width(dy) / n, rows = tensor_rows(dy), of_dx = tensor_width(dx) / unit;
    const int32_t *from = units->elements;
#pragma omp parallel for schedule(static) if (rows * n * unit > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t u = 0; u < n; u++) {
            float buffer[RUN];
            int64_t to = from[u] - first;
            if (from[u] < 0 || to < 0 || to >= of_dx) continue;
            for (RUNS(i, some, (int64_t)0, unit))
                run_write(dx, (r * of_dx + to) * unit + i, some, run_read(dy, (r * n + u) * unit + i, some, buffer), 1);
        }
}

void ISA_FN(attention_sinks)(const Tensor *sinks, Tensor *y, Tensor *logsumexp) {
    if (!CPU_READS(sinks) || !CPU_WRITES(y, logsumexp)) {
        device_reference()->attention_sinks(sinks, y, logsumexp);
        return;
    }
    int64_t n_heads = tensor_count(sinks), d = tensor_width(y) / n_heads, rows = tensor_count(logsumexp);
#pragma omp parallel for schedule(static) if (rows * d > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float keys, sink, buffer[RUN], value[RUN];
        floats_from(logsumexp, r, 1, &keys);
        floats_from(sinks, r % n_heads, 1, &sink);
        float largest = keys > sink ? keys : sink, all = largest + logf(expf(keys - largest) + expf(sink - largest)), share = expf(keys - all);
        for (RUNS(at, n, r * d, (r + 1) * d)) {
            const float *from = run_read(y, at, n, buffer);
            for (int64_t i = 0; i < n; i++) value[i] = share * from[i];
            run_write(y, at, n, value, 0);
        }
        run_write(logsumexp, r, 1, &all, 0);
    }
}

void ISA_FN(attention_sinks_backward)(const Tensor *sinks, const Tensor *y, const Tensor *logsumexp, const Tensor *dy, Tensor *dsinks) {
    if (!CPU_READS(sinks, y, logsumexp, dy) || !CPU_WRITES(dsinks)) {
        device_reference()->attention_sinks_backward(sinks, y, logsumexp, dy, dsinks);
        return;
    }
    int64_t n_heads = tensor_count(sinks), d = tensor_width(y) / n_heads, rows = tensor_count(logsumexp);
#pragma omp parallel for schedule(static) if (rows * d > CPU_SERIAL)
    for (int64_t h = 0; h < n_heads; h++) { /* a head's sum has the order of the tokens */
        float buffer[RUN], buffer_dy[RUN], sink, norm, sum = 0;
        floats_from(sinks, h, 1, &sink);
        for (int64_t r = h; r < rows; r += n_heads) {
            float dot = 0;
            floats_from(logsumexp, r, 1, &norm);
            for (RUNS(at, n, r * d, (r + 1) * d)) {
                const float *values = run_read(y, at, n, buffer), *gradient = run_read(dy, at, n, buffer_dy);
                float part = 0;
#pragma omp simd reduction(+ : part)
                for (int64_t i = 0; i < n; i++) part += values[i] * gradient[i];
                dot += part;
            }
            sum -= expf(sink - norm) * dot;
        }
        run_write(dsinks, h, 1, &sum, 1);
    }
}
