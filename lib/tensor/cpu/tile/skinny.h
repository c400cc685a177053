/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a weight with a few columns, as in decoding. The attention of single tokens uses the same code for keys. The time is that of reading
 * the weight from memory, so the work for each line of it must be small.
 *
 * The weight's rows become the lanes of a vector, sixteen rows at a time (transpose.h), and the columns' values are broadcast. No lane is wasted, and
 * an element is the same chain of sums in order of k as in a tile (tiles.h).
 */
#ifndef TUNE_TILE_SKINNY_H
#define TUNE_TILE_SKINNY_H

#include "lib/tensor/cpu/tile/tiles.h"
#include "lib/tensor/cpu/transpose.h"

enum {
    SKINNY_LINES = 32, /* the lines to prefetch are this number of lines further on */
    SKINNY_PAIRS = TRANSPOSE_WORDS
};

#ifdef __AMX_BF16__

/* To give the same bits as tiles, sums proceed as theirs do: in floats, which vectors also multiply faster than pairs. So the columns' values are
 * stored as floats, [k / 2][width][2]. */
enum { SKINNY_COLS = 4 }; /* more are faster with tiles */

static inline int64_t skinny_width(int64_t cols) { return cols; }

/* Bytes of the values of `cols` columns in one tile's length of the sum. */
static inline int64_t skinny_bytes(int64_t cols) { return TILE_K * 4 * cols; }

/* Number of pairs that are multiplied for k values: of whole tiles, as in tiles. */
static inline int64_t skinny_count(int64_t k) { return (k + TILE_K - 1) / TILE_K * TILE_K / 2; }

static inline __attribute__((always_inline)) void skinny_multiply(const int width, int64_t n_pairs, const char *at, int64_t line, bool streams,
                                                                  const char *columns, bool add, float *sums, int64_t sums_line) {
    __m512 sum[SKINNY_COLS];
    TransposeLines rows = transpose_lines(at, line);
    Prefetch prefetched = streams ? prefetch_streams(at) : prefetch_new(at, at + SKINNY_LINES * line);
    const float *values = (const float *)(const void *)columns;
#pragma GCC unroll 4
    for (int c = 0; c < width; c++) sum[c] = add ? _mm512_loadu_ps(sums + c * sums_line) : _mm512_setzero_ps();
    for (; n_pairs > 0; n_pairs -= TILE_K / 2) {
        __m512 first[SKINNY_COLS] = {0}, second[SKINNY_COLS] = {0};
        for (int piece = 0; piece < TILE_K / 2; piece += SKINNY_PAIRS, values += SKINNY_PAIRS * width * 2) {
            VecBits pairs[SKINNY_PAIRS];
            transpose_piece(&rows, pairs);
            prefetch(&prefetched, 1, line);
#pragma GCC unroll 4
            for (int pair = 0; pair < SKINNY_PAIRS; pair++) {
                __m512 left = (__m512)word_widened(pairs[pair], DT_BF16, 0), right = (__m512)word_widened(pairs[pair], DT_BF16, 1);
#pragma GCC unroll 4
                for (int c = 0; c < width; c++) {
                    const float *value = values + (pair * width + c) * 2;
                    first[c] = _mm512_fmadd_ps(left, _mm512_set1_ps(value[0]), first[c]);
                    second[c] = _mm512_fmadd_ps(right, _mm512_set1_ps(value[1]), second[c]);
                }
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < width; c++) sum[c] = _mm512_add_ps(sum[c], _mm512_add_ps(first[c], second[c]));
    }
#pragma GCC unroll 4
    for (int c = 0; c < width; c++) _mm512_storeu_ps(sums + c * sums_line, sum[c]);
}

/* sums[c][r] (+)= the products of `n_pairs` pairs of values (skinny_count), for 16 rows and skinny_width columns. Reads rows to the end of their
 * last 16 bytes. `streams`: the memory after the end of each row is needed next. */
static __attribute__((noinline, unused)) void skinny_sum_tiles(int64_t width, int64_t n_pairs, const char *at, int64_t line, bool streams,
                                                               const char *columns, bool add, float *sums, int64_t sums_line) {
    switch (width) {
    case 1: skinny_multiply(1, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 2: skinny_multiply(2, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 3: skinny_multiply(3, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    default: skinny_multiply(SKINNY_COLS, n_pairs, at, line, streams, columns, add, sums, sums_line);
    }
}

static inline void skinny_sum(int64_t width, int64_t n_pairs, const char *at, int64_t line, bool streams, const char *columns, bool add, float *sums,
                              int64_t sums_line) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | TILE_MODE);
    skinny_sum_tiles(width, n_pairs, at, line, streams, columns, add, sums, sums_line);
    _mm_setcsr(mode);
}

/* Stores the pairs of `width` columns, given as two tiles of B, in skinny_sum's layout. */
static inline void skinny_pairs(const char *tiles, int64_t width, char *to) {
    for (int64_t pair = 0; pair < TILE_ROWS; pair++)
        for (int64_t c = 0; c < width; c++, to += 8) {
            uint32_t word;
            memcpy(&word, tiles + pair * 64 + c * 4, sizeof word);
            memcpy(to, &(uint32_t[]){word << 16, word & 0xffff0000u}, 8);
        }
}

/* Stores a single column, given by its 32 values, in the same layout. */
static inline void skinny_column(__m512i values, int64_t width, int64_t column, char *to) {
    _Alignas(64) char floats[128];
    _mm512_store_si512(floats, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(values)), 16));
    _mm512_store_si512(floats + 64, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(values, 1)), 16));
    for (int pair = 0; pair < TILE_K / 2; pair++) memcpy(to + (pair * width + column) * 8, floats + pair * 8, 8);
}

#elif defined(__AVX512BF16__)

/* The columns' values are stored pair by pair, [k / 2][width] of two bf16 each, so that they take few lines of the first-level cache. */
enum { SKINNY_COLS = 24 }; /* so many have their sums in registers */

/* The next number of columns that has specialised code, up to SKINNY_COLS. */
static inline int64_t skinny_width(int64_t cols) { return cols <= 8 ? cols : cols <= 12 ? 12 : cols <= 16 ? 16 : SKINNY_COLS; }

/* Bytes of the values of `cols` columns in one tile's length of the sum. */
static inline int64_t skinny_bytes(int64_t cols) { return TILE_K * 2 * skinny_width(cols); }

static inline __attribute__((always_inline)) void skinny_multiply(const int width, int64_t n_pairs, const char *at, int64_t line, bool streams,
                                                                  const char *columns, bool add, float *sums, int64_t sums_line) {
    __m512 sum[SKINNY_COLS];
    TransposeLines rows = transpose_lines(at, line);
    Prefetch prefetched = streams ? prefetch_streams(at) : prefetch_new(at, at + SKINNY_LINES * line);
#pragma GCC unroll 24
    for (int c = 0; c < width; c++) sum[c] = add ? _mm512_loadu_ps(sums + c * sums_line) : _mm512_setzero_ps();
    for (; n_pairs > 0; n_pairs -= SKINNY_PAIRS, columns += SKINNY_PAIRS * width * 4) {
        VecBits pairs[SKINNY_PAIRS];
        transpose_piece(&rows, pairs);
        prefetch(&prefetched, 1, line);
#pragma GCC unroll 4
        for (int pair = 0; pair < SKINNY_PAIRS; pair++) {
            if (pair >= n_pairs) break; /* a further step would turn -0 into 0 */
#pragma GCC unroll 24
            for (int c = 0; c < width; c++) sum[c] = _mm512_dpbf16_ps(sum[c], (__m512bh)pairs[pair], pair_of(columns + (pair * width + c) * 4));
        }
    }
#pragma GCC unroll 24
    for (int c = 0; c < width; c++) _mm512_storeu_ps(sums + c * sums_line, sum[c]);
}

/* Number of pairs that are multiplied for k values: no more than there are, because more would turn -0 into 0. */
static inline int64_t skinny_count(int64_t k) { return (k + 1) / 2; }

/* sums[c][r] (+)= the products of `n_pairs` pairs of values, for 16 rows and skinny_width columns. Reads rows to the end of their last 16 bytes.
 * `streams`: the memory after the end of each row is needed next. */
static inline void skinny_sum(int64_t width, int64_t n_pairs, const char *at, int64_t line, bool streams, const char *columns, bool add, float *sums,
                              int64_t sums_line) {
    switch (width) {
    case 1: skinny_multiply(1, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 2: skinny_multiply(2, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 3: skinny_multiply(3, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 4: skinny_multiply(4, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 5: skinny_multiply(5, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 6: skinny_multiply(6, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 7: skinny_multiply(7, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 8: skinny_multiply(8, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 12: skinny_multiply(12, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    case 16: skinny_multiply(16, n_pairs, at, line, streams, columns, add, sums, sums_line); break;
    default: skinny_multiply(SKINNY_COLS, n_pairs, at, line, streams, columns, add, sums, sums_line);
    }
}

/* Stores the pairs of `width` columns, given as two tiles of B, in skinny_sum's layout. */
static inline void skinny_pairs(const char *tiles, int64_t width, char *to) {
    for (int64_t pair = 0; pair < TILE_ROWS; pair++, to += width * 4)
        for (int64_t c = 0; c < width; c += 16) {
            __mmask16 mask = width - c >= 16 ? 0xffff : (__mmask16)((1u << (width - c)) - 1);
            _mm512_mask_storeu_epi32(to + c * 4, mask, _mm512_load_si512(tiles + c / 16 * TILE_BYTES + pair * 64));
        }
}

/* Stores a single column, given by its 32 values, in the same layout. */
static inline void skinny_column(__m512i values, int64_t width, int64_t column, char *to) {
    _Alignas(64) char pairs[64];
    _mm512_store_si512(pairs, values);
    for (int pair = 0; pair < TILE_K / 2; pair++) memcpy(to + (pair * width + column) * 4, pairs + pair * 4, 4);
}

#endif

#endif
