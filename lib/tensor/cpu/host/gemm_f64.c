/* SPDX-License-Identifier: Apache-2.0 */
/* Products in double, for comparison with golden values, never large. Plain loops on one thread, so the bits do not depend on the number of
 * threads. */
#include "lib/tensor/cpu/gemm.h"

/* c[j] += factor * b[j] */
static void add_row(double *c, double factor, const double *b, int64_t n) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) c[j] += factor * b[j];
}

static double dot(const double *a, int64_t step, const double *b, int64_t n) {
    double sum = 0;
    if (step == 1) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    } else {
        for (int64_t i = 0; i < n; i++) sum += a[i * step] * b[i];
    }
    return sum;
}

void matmul_f64(const Matmul *args, int64_t m, int64_t n, int64_t k) {
    const double *a = args->a->elements, *b = args->b->elements;
    int64_t row = args->transpose_a ? 1 : k, step = args->transpose_a ? m : 1;
    for (int64_t i = 0; i < m; i++) {
        double *c = (double *)args->c->elements + i * n;
        for (int64_t j = 0; j < n; j++) c[j] = args->beta == 0 ? 0 : args->beta * c[j]; /* beta 0: C is not read */
        for (int64_t l = 0; l < k && !args->transpose_b; l++) add_row(c, args->alpha * a[i * row + l * step], b + l * n, n);
        for (int64_t j = 0; j < n && args->transpose_b; j++) c[j] += args->alpha * dot(a + i * row, step, b + j * k, k);
    }
}
