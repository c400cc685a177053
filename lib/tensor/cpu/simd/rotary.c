/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions. */
#include "lib/tensor/cpu/blocks.h"

/* Rotates pairs (first[i], second[i]) of one head; the result is in y's memory. */
static void rotate_head(const Tensor *x, int64_t at, int64_t half, const float *c, const float *s, float sign, float beta, Tensor *y) {
    float buffer_first[RUN], buffer_second[RUN], transposed_first[RUN], transposed_second[RUN];
    for (RUNS(i, n, 0, half)) {
        const float *first = run_read(x, at + i, n, buffer_first), *second = run_read(x, at + half + i, n, buffer_second);
        for (int64_t j = 0; j < n; j++) {
            float sine = sign * s[i + j];
            transposed_first[j] = first[j] * c[i + j] - second[j] * sine;
            transposed_second[j] = second[j] * c[i + j] + first[j] * sine;
        }
        run_write(y, at + i, n, transposed_first, beta);
        run_write(y, at + half + i, n, transposed_second, beta);
    }
}

/* Rotates pairs (2i, 2i + 1) of one head. */
static void rotate_neighbours(const Tensor *x, int64_t at, int64_t half, const float *c, const float *s, float sign, float beta, Tensor *y) {
    float buffer[RUN], turned[RUN];
    for (RUNS(i, n, 0, 2 * half)) {
        const float *pairs = run_read(x, at + i, n, buffer);
        for (int64_t j = 0; j < n; j += 2) {
            float cosine = c[(i + j) / 2], sine = sign * s[(i + j) / 2];
            turned[j] = pairs[j] * cosine - pairs[j + 1] * sine;
            turned[j + 1] = pairs[j + 1] * cosine + pairs[j] * sine;
        }
        run_write(y, at + i, n, turned, beta);
    }
}

void ISA_FN(rope)(const Tensor *x, const Tensor *cosine, const Tensor *sine, int64_t head_dim, bool neighbours, bool inverse, double beta,
                  Tensor *y) {
    if (!CPU_READS(x) || !CPU_WRITES(y) || cosine->dtype != DT_F32 || sine->dtype != DT_F32) {
        device_reference()->rope(x, cosine, sine, head_dim, neighbours, inverse, beta, y);
        return;
    }
    int64_t half = tensor_width(cosine), width = tensor_width(x), rows = tensor_rows(x);
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        const float *c = (const float *)cosine->elements + r * half, *s = (const float *)sine->elements + r * half;
        for (int64_t head = r * width; head < (r + 1) * width; head += head_dim) {
            float buffer[RUN];
            (neighbours ? rotate_neighbours : rotate_head)(x, head, half, c, s, inverse ? -1.0f : 1.0f, (float)beta, y);
            for (RUNS(at, n, head + 2 * half, head + head_dim)) run_write(y, at, n, run_read(x, at, n, buffer), (float)beta);
        }
    }
}
