/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses in a row: the largest element, or one drawn by softmax. A vocabulary's row takes tens of microseconds, so each thread processes a
 * different row. */
#include "lib/tensor/cpu/blocks.h"

/* Elements in one step of the search for the drawn one. */
enum { CHUNK = 256 };

static float chunk_largest(const float *x, int64_t n) {
    float most = -HUGE_VALF;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* weights[i] = e^((x[i] - most) * factor); returns their sum. The difference is taken first: at very low temperatures the rounding of a product
 * would exceed all differences. */
static double chunk_weights(const float *x, int64_t n, double factor, double most, double *weights) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += weights[i] = fast_exp_below(((double)x[i] - most) * factor);
    return sum;
}

void ISA_FN(largest)(const Tensor *x, int64_t row, int64_t *column) {
    if (x->dtype != DT_F32) {
        device_reference()->largest(x, row, column);
        return;
    }
    int64_t n = tensor_width(x), best = 0;
    const float *values = (const float *)x->elements + row * n;
    float most = -HUGE_VALF;
    for (int64_t at = 0; at < n; at += CHUNK) {
        float here = chunk_largest(values + at, MIN(CHUNK, n - at));
        if (here > most) most = here, best = at;
    }
    while (best + 1 < n && values[best] < most) best++;
    *column = best;
}

void ISA_FN(draw)(const Tensor *x, int64_t row, double temperature, double u, int64_t *column, double *logsumexp) {
    if (x->dtype != DT_F32) {
        device_reference()->draw(x, row, temperature, u, column, logsumexp);
        return;
    }
    int64_t n = tensor_width(x), chunk = 0;
    const float *values = (const float *)x->elements + row * n;
    double factor = MIN(1 / temperature, 1e300); /* finite: 0 x infinity is not a number */
    double most = (double)chunk_largest(values, n), sum = 0, below = 0, weights[CHUNK];
    double *sums = cpu_scratch(CPU_LOCAL, (size_t)((n + CHUNK - 1) / CHUNK) * sizeof *sums);
    for (int64_t at = 0; at < n; at += CHUNK) sum += sums[at / CHUNK] = chunk_weights(values + at, MIN(CHUNK, n - at), factor, most, weights);
    *logsumexp = most / temperature + log(sum);
    double target = u * sum;
    for (; (chunk + 1) * CHUNK < n && below + sums[chunk] <= target; chunk++) below += sums[chunk];
    while (chunk > 0 && sums[chunk] == 0) chunk--; /* rounding used up u: take the last element that can be drawn */
    int64_t begin = chunk * CHUNK, in_chunk = MIN(CHUNK, n - begin);
    chunk_weights(values + begin, in_chunk, factor, most, weights);
    *column = begin;
    for (int64_t i = 0; i < in_chunk && below <= target; i++) {
        if (weights[i] > 0) *column = begin + i;
        below += weights[i];
    }
}
