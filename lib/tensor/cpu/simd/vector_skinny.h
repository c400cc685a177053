/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows with many lines that run along the sum, in f32: weights in decoding, keys in attention of single tokens.
 *
 * The lines become the lanes of a vector (transpose.h) and are widened there; the values of the few rows, stored as [k][rows], are broadcast. So
 * lines are read once, as they are stored, no panel is made of them, and little work is done for each. An element is one chain of multiply-adds in
 * order of k. */
#ifndef TUNE_VECTOR_SKINNY_H
#define TUNE_VECTOR_SKINNY_H

#include "lib/tensor/cpu/transpose.h"

enum {
    SKINNY_MOST = VEC_REGISTERS == 32 ? 24 : 8, /* rows that have their sums in registers */
    SKINNY_TWO = VEC_REGISTERS == 32 ? 8 : 4,   /* up to this number of rows two vectors are used: one chain of sums leaves multipliers idle */
    SKINNY_COLS = 2 * VEC_FLOATS                /* lines at a time */
};

/* As skinny_sum, for `vectors` vectors of lines. */
static inline __attribute__((always_inline)) void skinny_multiply(const int rows, const int vectors, const DType dtype, int64_t depth, const float *a,
                                                                  const char *b, int64_t line, const char *upcoming, float *sums, int64_t sums_line) {
    const int each = dtype == DT_F32 ? 1 : 2; /* values in a word */
    Vec sum[SKINNY_MOST][2], right[2];
    Prefetch prefetched = prefetch_new(b, upcoming);
    TransposeLines lines[2] = {transpose_lines(b, line), transpose_lines(b + (vectors - 1) * VEC_FLOATS * line, line)};
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[r][v] = *(const VecInMemory *)(sums + r * sums_line + v * VEC_FLOATS);
    for (; depth > 0; depth -= TRANSPOSE_WORDS * each, a += TRANSPOSE_WORDS * each * rows) {
        VecBits words[2][TRANSPOSE_WORDS];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) transpose_piece(&lines[v], words[v]);
        if (upcoming) prefetch(&prefetched, vectors, line);
#pragma GCC unroll 8
        for (int k = 0; k < TRANSPOSE_WORDS * each; k++) {
            if (k >= depth) break; /* a further step would turn -0 into 0 */
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) right[v] = word_widened(words[v][k / each], dtype, k % each);
#pragma GCC unroll 24
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) sum[r][v] += a[k * rows + r] * right[v];
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) *(VecInMemory *)(sums + r * sums_line + v * VEC_FLOATS) = sum[r][v];
}

/* The next number of rows that has specialised code, up to SKINNY_MOST. */
static inline int64_t skinny_width(int64_t rows) {
    static const int8_t widths[] = {1, 2, 3, 4, 6, 8, 12, 16, 24};
    int i = 0;
    while (widths[i] < MIN(rows, (int64_t)SKINNY_MOST)) i++;
    return widths[i];
}

/* The same for SKINNY_COLS lines. */
static inline __attribute__((always_inline)) void skinny_lines(const int rows, const DType dtype, int64_t depth, const float *a, const char *b,
                                                               int64_t line, const char *upcoming, float *sums, int64_t sums_line) {
    const int vectors = rows <= SKINNY_TWO ? 2 : 1;
#pragma GCC unroll 2
    for (int v = 0; v < 2; v += vectors)
        skinny_multiply(rows, vectors, dtype, depth, a, b + v * VEC_FLOATS * line, line, upcoming ? upcoming + v * VEC_FLOATS * line : NULL,
                        sums + v * VEC_FLOATS, sums_line);
}

#define SKINNY_ROWS(n) \
    case n: skinny_lines(n, dtype, depth, a, b, line, upcoming, sums, sums_line); break
static inline __attribute__((always_inline)) void skinny_rows(int64_t rows, const DType dtype, int64_t depth, const float *a, const char *b,
                                                              int64_t line, const char *upcoming, float *sums, int64_t sums_line) {
    switch (rows) {
        SKINNY_ROWS(1);
        SKINNY_ROWS(2);
        SKINNY_ROWS(3);
        SKINNY_ROWS(4);
        SKINNY_ROWS(6);
        SKINNY_ROWS(8);
#if VEC_MANY_REGISTERS
        SKINNY_ROWS(12);
        SKINNY_ROWS(16);
        SKINNY_ROWS(24);
#endif
    default: break;
    }
}
#undef SKINNY_ROWS

/* sums[r][lane] += a[k][r] b[lane][k] for all k below `depth`, SKINNY_COLS lines of b, and a number of rows from skinny_width. Reads lines to the
 * end of their last piece. upcoming: memory to prefetch meanwhile, as much as is read; NULL: none, as for lines in a cache. */
__attribute__((noinline, unused)) static void skinny_sum(int64_t rows, DType dtype, int64_t depth, const float *a, const char *b, int64_t line,
                                                         const char *upcoming, float *sums, int64_t sums_line) {
    if (dtype == DT_F32)
        skinny_rows(rows, DT_F32, depth, a, b, line, upcoming, sums, sums_line);
    else if (dtype == DT_BF16)
        skinny_rows(rows, DT_BF16, depth, a, b, line, upcoming, sums, sums_line);
    else
        skinny_rows(rows, DT_F16, depth, a, b, line, upcoming, sums, sums_line);
}

#endif
