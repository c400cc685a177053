/* SPDX-License-Identifier: Apache-2.0 */
/* Small dense products inside a tile, register-blocked with the compiler's vector types: a single source for SSE, AVX2, AVX-512 and NEON. */
#ifndef TUNE_VEC_H
#define TUNE_VEC_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__AVX512F__)
enum { VEC_FLOATS = 16, VEC_REGISTERS = 32 };
#elif defined(__AVX__)
enum { VEC_FLOATS = 8, VEC_REGISTERS = 16 };
#elif defined(__aarch64__)
enum { VEC_FLOATS = 4, VEC_REGISTERS = 32 };
#else
enum { VEC_FLOATS = 4, VEC_REGISTERS = 16 };
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define VEC_MANY_REGISTERS 1 /* 32 only in code that is compiled for AVX-512 */
#else
#define VEC_MANY_REGISTERS 0
#endif

typedef float Vec __attribute__((vector_size(VEC_FLOATS * 4)));
typedef float VecInMemory __attribute__((vector_size(VEC_FLOATS * 4), aligned(4), may_alias));

/* A matrix read one element at a time: element (i, k) is at[i * row + k * column]. */
typedef struct Strided {
    const float *at;
    int64_t row, column;
} Strided;

/* rows x (vectors x VEC_FLOATS) elements of c (+)= a b in registers. Every element is one chain of multiply-adds in order of k, whatever the
 * block's size, so a result does not depend on the other rows of the block. */
static inline __attribute__((always_inline)) void block_product(const int rows, const int vectors, int64_t depth, Strided a, const float *b,
                                                                int64_t b_row, float *c, int64_t c_row, bool add) {
    Vec sums[6][4];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = add ? (Vec) * (const VecInMemory *)(c + i * c_row + j * VEC_FLOATS) : (Vec){0};
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; k++) {
        Vec right[4];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) right[j] = *(const VecInMemory *)(b + k * b_row + j * VEC_FLOATS);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            float left = a.at[i * a.row + k * a.column];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) *(VecInMemory *)(c + i * c_row + j * VEC_FLOATS) = sums[i][j];
}

/* One column panel of `vectors` vectors, for all rows. */
static inline __attribute__((always_inline)) void panel_product(const int vectors, int64_t m, int64_t depth, Strided a, const float *b, int64_t b_row,
                                                                float *c, int64_t c_row, bool add) {
    for (; m >= 6; m -= 6, a.at += 6 * a.row, c += 6 * c_row) block_product(6, vectors, depth, a, b, b_row, c, c_row, add);
    switch (m) {
    case 5: block_product(5, vectors, depth, a, b, b_row, c, c_row, add); break;
    case 4: block_product(4, vectors, depth, a, b, b_row, c, c_row, add); break;
    case 3: block_product(3, vectors, depth, a, b, b_row, c, c_row, add); break;
    case 2: block_product(2, vectors, depth, a, b, b_row, c, c_row, add); break;
    case 1: block_product(1, vectors, depth, a, b, b_row, c, c_row, add); break;
    default: break;
    }
}

/* c (m, n) = a (m, depth) b (depth, n), or += if `add`. n is a multiple of VEC_FLOATS; b and c are row-major with rows of b_row and c_row floats.
 * Not inlined, so that each file has a single copy of all block sizes. */
__attribute__((noinline, unused)) static void tile_product(int64_t m, int64_t n, int64_t depth, Strided a, const float *b, int64_t b_row, float *c,
                                                           int64_t c_row, bool add) {
    int64_t j = 0;
    /* wide enough for four vectors a row, or so few rows that more chains are needed to keep the multipliers busy */
    if (VEC_REGISTERS == 32 || m <= 3)
        for (; j + 4 * VEC_FLOATS <= n; j += 4 * VEC_FLOATS) {
            if (VEC_REGISTERS == 32)
                panel_product(4, m, depth, a, b + j, b_row, c + j, c_row, add);
            else if (m == 3)
                block_product(3, 4, depth, a, b + j, b_row, c + j, c_row, add);
            else if (m == 2)
                block_product(2, 4, depth, a, b + j, b_row, c + j, c_row, add);
            else if (m == 1)
                block_product(1, 4, depth, a, b + j, b_row, c + j, c_row, add);
        }
    for (; j + 2 * VEC_FLOATS <= n; j += 2 * VEC_FLOATS) panel_product(2, m, depth, a, b + j, b_row, c + j, c_row, add);
    for (; j < n; j += VEC_FLOATS) panel_product(1, m, depth, a, b + j, b_row, c + j, c_row, add);
}

typedef float Quad __attribute__((vector_size(16)));
typedef float QuadInMemory __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
#define QUAD_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t QuadIndex __attribute__((vector_size(16)));
#define QUAD_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (QuadIndex){i, j, k, l})
#endif

/* to (n, m) = transpose of from (m, n); both multiples of 4. */
static inline void tile_transpose(int64_t m, int64_t n, const float *from, int64_t from_row, float *to, int64_t to_row) {
    for (int64_t i = 0; i < m; i += 4)
        for (int64_t j = 0; j < n; j += 4) {
            const float *in = from + i * from_row + j;
            float *out = to + j * to_row + i;
            Quad a = *(const QuadInMemory *)in, b = *(const QuadInMemory *)(in + from_row), c = *(const QuadInMemory *)(in + 2 * from_row);
            Quad d = *(const QuadInMemory *)(in + 3 * from_row);
            Quad ab_low = QUAD_SHUFFLE(a, b, 0, 4, 1, 5), ab_high = QUAD_SHUFFLE(a, b, 2, 6, 3, 7);
            Quad cd_low = QUAD_SHUFFLE(c, d, 0, 4, 1, 5), cd_high = QUAD_SHUFFLE(c, d, 2, 6, 3, 7);
            *(QuadInMemory *)out = QUAD_SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
            *(QuadInMemory *)(out + to_row) = QUAD_SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
            *(QuadInMemory *)(out + 2 * to_row) = QUAD_SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
            *(QuadInMemory *)(out + 3 * to_row) = QUAD_SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
        }
}

/* The same for any sizes. */
static inline void transpose(int64_t m, int64_t n, const float *from, int64_t from_row, float *to, int64_t to_row) {
    int64_t whole_m = m / 4 * 4, whole_n = n / 4 * 4;
    tile_transpose(whole_m, whole_n, from, from_row, to, to_row);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = i < whole_m ? whole_n : 0; j < n; j++) to[j * to_row + i] = from[i * from_row + j];
}

#endif
