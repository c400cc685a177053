/* SPDX-License-Identifier: Apache-2.0 */
/* Runs (consecutive elements of a tensor) as floats, and the block loops of elementwise kernels. */
#ifndef TUNE_BLOCKS_H
#define TUNE_BLOCKS_H

#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/vector_math.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#include <string.h>

/* Elements that fit a buffer on the stack; longer runs are processed in pieces. */
enum { RUN = 512 };

/* f16_to_float without branches: infinities and NaN keep their exponent; the product scales normal and subnormal numbers alike. */
static inline float half_to_float(uint16_t bits) {
    uint32_t magnitude = (uint32_t)(bits & 0x7fffu) << 13, sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t scaled = bits_of_float(float_of_bits(magnitude) * 5.192296858534828e33f); /* 2^112 */
    uint32_t special = magnitude | 0x7f800000u;
    return float_of_bits((magnitude >= 0x0f800000u ? special : scaled) | sign);
}

/* float_to_bf16 without a branch. */
static inline uint16_t round_to_bf16(float value) {
    uint32_t bits = bits_of_float(value), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#ifdef __AVX512BF16__

/* bits = values + beta * bits, rounded by the processor, which flushes numbers below 2^-126 to zero. */
static inline void run_round(const float *values, int64_t n, float beta, uint16_t *bits) {
    enum { LANES_16 = 16 };
    for (; n > 0; n -= LANES_16, values += LANES_16, bits += LANES_16) {
        __mmask16 there = n >= LANES_16 ? 0xffff : (__mmask16)((1u << n) - 1);
        __m512 sums = _mm512_maskz_loadu_ps(there, values);
        if (beta != 0)
            sums = _mm512_fmadd_ps(_mm512_set1_ps(beta), (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, bits)), 16),
                                   sums);
        _mm256_mask_storeu_epi16(bits, there, (__m256i)_mm512_cvtneps_pbh(sums));
    }
}

#else

static inline void run_round(const float *values, int64_t n, float beta, uint16_t *bits) {
    if (beta == 0)
        for (int64_t i = 0; i < n; i++) bits[i] = round_to_bf16(values[i]);
    else
        for (int64_t i = 0; i < n; i++) bits[i] = round_to_bf16(values[i] + beta * float_of_bits((uint32_t)bits[i] << 16));
}

#endif

/* Converts elements at..at+n-1, of f32, bf16 or f16, to floats. */
static inline void floats_from(const Tensor *tensor, int64_t at, int64_t n, float *restrict out) {
    const uint16_t *restrict bits = (const uint16_t *)tensor->elements + at;
    if (tensor->dtype == DT_F32)
        memcpy(out, (const float *)tensor->elements + at, (size_t)n * sizeof *out);
    else if (tensor->dtype == DT_BF16)
        for (int64_t i = 0; i < n; i++) out[i] = float_of_bits((uint32_t)bits[i] << 16);
    else
        for (int64_t i = 0; i < n; i++) out[i] = half_to_float(bits[i]);
}

/* Reads elements at..at+n-1: returns their address if they are floats, else converts them into `buffer`. */
static inline const float *run_read(const Tensor *tensor, int64_t at, int64_t n, float *buffer) {
    if (tensor->dtype == DT_F32) return (const float *)tensor->elements + at;
    floats_from(tensor, at, n, buffer);
    return buffer;
}

/* The same of a weight, which may be quantised (simd/codes.c). */
const float *ISA_FN(weight_read)(const Tensor *weight, int64_t at, int64_t n, float *buffer);

/* y[at + i] = values[i] + beta * y[at + i]; values may be y's memory when beta is 0. */
static inline void run_write(Tensor *y, int64_t at, int64_t n, const float *values, float beta) {
    float *floats = (float *)y->elements + at;
    uint16_t *bits = (uint16_t *)y->elements + at;
    if (y->dtype == DT_F32) {
        if (beta == 0) {
            if (values != floats) memcpy(floats, values, (size_t)n * sizeof *values);
        } else
            for (int64_t i = 0; i < n; i++) floats[i] = values[i] + beta * floats[i];
    } else
        run_round(values, n, beta, bits);
}

/* y[at + i] = x[from + i]; copies the bits if the dtypes are equal. */
static inline void run_copy(Tensor *y, int64_t at, const Tensor *x, int64_t from, int64_t n) {
    size_t size = dtype_size(x->dtype);
    float buffer[RUN];
    if (x->dtype == y->dtype)
        memcpy((char *)y->elements + (size_t)at * size, (const char *)x->elements + (size_t)from * size, (size_t)n * size);
    else
        for (int64_t i = 0; i < n; i += RUN)
            run_write(y, at + i, MIN((int64_t)RUN, n - i), run_read(x, from + i, MIN((int64_t)RUN, n - i), buffer), 0);
}

/* Prefetches n elements from `at` on, of a tensor that may be NULL, while the elements before them are processed. An address past the end does no
 * harm. */
static inline void run_ahead(const Tensor *tensor, int64_t at, int64_t n) {
    enum { CACHE_LINE = 64 };
    if (!tensor) return;
    int64_t size = tensor->dtype == DT_F32 ? 4 : 2;
    const char *begin = (const char *)tensor->elements + at * size;
    for (int64_t byte = 0; byte < n * size; byte += CACHE_LINE) __builtin_prefetch(begin + byte);
}

static inline int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* Sums over the rows of a batch (gradients of biases and norm weights): each block of rows is summed separately, then the blocks are added in
 * order. */
typedef struct RowSums {
    int64_t block_rows, n_blocks, width, n_sums;
    float *memory; /* (n_blocks, n_sums, width) */
} RowSums;

/* Makes n_sums sums of `width` zeros for each block, in CPU_SHARED. */
static inline RowSums row_sums_begin(int64_t rows, int64_t width, int64_t n_sums) {
    enum { SMALLEST = 32, MOST = 64 };
    RowSums sums = {.block_rows = MAX((int64_t)SMALLEST, blocks_of(rows, MOST)), .width = width, .n_sums = n_sums};
    sums.n_blocks = blocks_of(rows, sums.block_rows);
    size_t bytes = (size_t)(sums.n_blocks * n_sums * width) * sizeof(float);
    sums.memory = cpu_scratch(CPU_SHARED, bytes);
    memset(sums.memory, 0, bytes);
    return sums;
}

/* The sum number `which` of a block: (width). */
static inline float *row_sums_of(const RowSums *sums, int64_t block, int64_t which) {
    return sums->memory + (block * sums->n_sums + which) * sums->width;
}

/* Adds sum number `which` to `out`. */
static inline void row_sums_add(const RowSums *sums, int64_t which, Tensor *out) {
    for (int64_t block = 1; block < sums->n_blocks; block++) {
        float *total = row_sums_of(sums, 0, which);
        const float *more = row_sums_of(sums, block, which);
        for (int64_t i = 0; i < sums->width; i++) total[i] += more[i];
    }
    if (sums->n_blocks > 0) run_write(out, 0, sums->width, row_sums_of(sums, 0, which), 1);
}

/* for (RUNS(at, n, begin, end)): visits pieces at..at+n-1 of begin..end-1, each at most RUN long. */
#define RUNS(at, n, begin, end)                            \
    int64_t at = (begin), n = MIN((int64_t)RUN, (end)-at); \
    at < (end);                                            \
    at += n, n = MIN((int64_t)RUN, (end)-at)

#endif
