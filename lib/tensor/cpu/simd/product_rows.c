/* SPDX-License-Identifier: Apache-2.0 */
/* Row functions used with the matrix products: conversions, results of tiles, logits. */
#include "lib/tensor/cpu/simd/code_lanes.h"
#include "lib/tensor/cpu/blocks.h"
#include "lib/tensor/cpu/gemm.h"

static void convert(const void *from, DType from_dtype, int64_t from_ld, void *to, DType to_dtype, int64_t to_ld, int64_t rows, int64_t cols) {
    Tensor source = {.dtype = from_dtype, .elements = (void *)(uintptr_t)from}, target = {.dtype = to_dtype, .elements = to};
    float buffer[RUN];
    for (int64_t i = 0; i < rows; i++)
        for (RUNS(at, n, 0, cols)) {
            if (to_dtype == DT_F32)
                floats_from(&source, i * from_ld + at, n, (float *)to + i * to_ld + at);
            else
                run_write(&target, i * to_ld + at, n, run_read(&source, i * from_ld + at, n, buffer), 0);
        }
}

static void codes_line(const Operand *from, int64_t line, int64_t at, int64_t n, float *values) {
    ISA_FN(codes)(from->dtype, from->data, from->first + line * from->ld + at, n, from->rounds, values);
}

static void product_rows_finish(const float *tile, int64_t tile_ld, float alpha, float beta, void *c, DType dtype, int64_t ld, int64_t rows,
                                int64_t cols) {
    Tensor target = {.dtype = dtype, .elements = c};
    float buffer[RUN];
    for (int64_t i = 0; i < rows; i++)
        for (RUNS(at, n, 0, cols)) {
            const float *values = tile + i * tile_ld + at;
            if (alpha != 1) {
                for (int64_t j = 0; j < n; j++) buffer[j] = alpha * values[j];
                values = buffer;
            }
            run_write(&target, i * ld + at, n, values, beta);
        }
}

static void logits(const LogprobArgs *args, float *z, int64_t n) {
    float cap = (float)args->softcap, inverse_cap = cap != 0 ? 1 / cap : 0, inverse_temperature = (float)(1 / args->temperature);
    if (cap != 0)
        for (int64_t i = 0; i < n; i++) z[i] = cap * fast_tanh(z[i] * inverse_cap);
    if (args->temperature != 1)
        for (int64_t i = 0; i < n; i++) z[i] *= inverse_temperature;
}

/* Sums at most RUN floats before it adds them up in double. */
static void sum(LogitRow *row, float *z, int64_t n, bool all) {
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) largest = z[i] > largest ? z[i] : largest;
    *row = (LogitRow){.largest = largest};
    for (RUNS(at, count, 0, n)) {
        float *e = z + at, plain[RUN], by_e = 0;
        if (all) memcpy(plain, e, (size_t)count * sizeof *e);
#pragma omp simd reduction(+ : by_e)
        for (int64_t i = 0; i < count; i++) {
            e[i] = fast_exp(e[i] - largest);
            by_e += e[i];
        }
        row->sum += (double)by_e;
        if (!all) continue;
        float weighted = 0, total = 0;
#pragma omp simd reduction(+ : weighted, total)
        for (int64_t i = 0; i < count; i++) {
            float distance = plain[i] - largest, bounded = distance < -200.0f ? -200.0f : distance;
            weighted += e[i] * bounded;
            total += plain[i];
        }
        row->weighted += (double)weighted;
        row->total += (double)total;
    }
}

/* With p the probabilities and H the entropy: dz = dlogprob (onehot - p) - dentropy p (log p + H) + dmean (1/V - p), then through temperature and
 * soft-cap. */
static void gradient(const LogprobArgs *args, const LogitGrad *grad, float *z, int64_t n, int64_t target) {
    float cap = (float)args->softcap, inverse_cap = cap != 0 ? 1 / cap : 0, inverse_temperature = (float)(1 / args->temperature);
    float by_p = grad->dlogprob + grad->dmean_sum, by_entropy = grad->dentropy, entropy = grad->entropy, logsumexp = grad->logsumexp,
          constant = grad->dmean;
    float target_slope = 0;
    if (target >= 0) {
        float t = cap != 0 ? fast_tanh(z[target] * inverse_cap) : 0;
        target_slope = (1 - t * t) * inverse_temperature;
    }
    if (cap != 0)
        for (int64_t i = 0; i < n; i++) {
            float t = fast_tanh(z[i] * inverse_cap), log_p = cap * t * inverse_temperature - logsumexp, p = fast_exp(log_p);
            float bounded = log_p < -200.0f ? -200.0f : log_p;
            z[i] = (constant - p * (by_p + by_entropy * (bounded + entropy))) * (1 - t * t) * inverse_temperature;
        }
    else
        for (int64_t i = 0; i < n; i++) {
            float log_p = z[i] * inverse_temperature - logsumexp, p = fast_exp(log_p), bounded = log_p < -200.0f ? -200.0f : log_p;
            z[i] = (constant - p * (by_p + by_entropy * (bounded + entropy))) * inverse_temperature;
        }
    if (target >= 0) z[target] += grad->dlogprob * target_slope;
}

const CpuRows ISA_FN(rows) = {convert, product_rows_finish, codes_line, ISA_FN(int8_fits), logits, sum, gradient};
