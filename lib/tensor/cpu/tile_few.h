/* Products of a weight with a few columns, as decoding has them (its attention turns keys so too): the weight comes from memory once, so what counts
 * is how little is done for a line of it.
 *
 * The weight's rows become the lanes of a vector, sixteen rows at a time (turn.h), and the columns' values are broadcast: no lane is wasted, and an
 * element is the same chain of sums in order of k as in a tile (tiles.h). The columns' values lie pair by pair, [k / 2][width] of two bf16 each, so
 * that they take few lines of the first cache.
 */
#ifndef TUNE_TILE_FEW_H
#define TUNE_TILE_FEW_H

#include "lib/tensor/cpu/tiles.h"
#include "lib/tensor/cpu/turn.h"

enum {
    FEW_COLS = 24,            /* so many columns have their sums in registers */
    FEW_LINES = 32,           /* after so many come those that are asked for */
    FEW_PAIRS = TURN_WORDS
};

#ifdef __AVX512BF16__

/* The next number of columns that there is code for, up to FEW_COLS. */
static inline int64_t few_width(int64_t cols) { return cols <= 8 ? cols : cols <= 12 ? 12 : cols <= 16 ? 16 : FEW_COLS; }

/* Bytes of so many columns' values in a tile's length of the sum. */
static inline int64_t few_bytes(int64_t cols) { return TILE_K * 2 * few_width(cols); }

static inline __attribute__((always_inline)) void few_multiply(const int width, int64_t n_pairs, const char *at, int64_t line, const char *columns,
                                                               bool add, float *sums, int64_t sums_line) {
    __m512 sum[FEW_COLS];
    TurnLines rows = turn_lines(at, line);
    Asked asked = asked_new(at, at + FEW_LINES * line);
#pragma GCC unroll 24
    for (int c = 0; c < width; c++) sum[c] = add ? _mm512_loadu_ps(sums + c * sums_line) : _mm512_setzero_ps();
    for (; n_pairs > 0; n_pairs -= FEW_PAIRS, columns += FEW_PAIRS * width * 4) {
        VecBits pairs[FEW_PAIRS];
        turn_piece(&rows, pairs);
        ask(&asked, 1, line);
#pragma GCC unroll 4
        for (int pair = 0; pair < FEW_PAIRS; pair++) {
            if (pair >= n_pairs) break; /* one more step would make -0 into 0 */
#pragma GCC unroll 24
            for (int c = 0; c < width; c++) sum[c] = _mm512_dpbf16_ps(sum[c], (__m512bh)pairs[pair], pair_of(columns + (pair * width + c) * 4));
        }
    }
#pragma GCC unroll 24
    for (int c = 0; c < width; c++) _mm512_storeu_ps(sums + c * sums_line, sum[c]);
}

/* sums[c][r] (+)= what `n_pairs` pairs of values give, for 16 rows and few_width columns. Rows are read to the end of their last 16 bytes. */
static inline void few_sum(int64_t width, int64_t n_pairs, const char *at, int64_t line, const char *columns, bool add, float *sums,
                           int64_t sums_line) {
    switch (width) {
    case 1: few_multiply(1, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 2: few_multiply(2, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 3: few_multiply(3, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 4: few_multiply(4, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 5: few_multiply(5, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 6: few_multiply(6, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 7: few_multiply(7, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 8: few_multiply(8, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 12: few_multiply(12, n_pairs, at, line, columns, add, sums, sums_line); break;
    case 16: few_multiply(16, n_pairs, at, line, columns, add, sums, sums_line); break;
    default: few_multiply(FEW_COLS, n_pairs, at, line, columns, add, sums, sums_line);
    }
}

/* The pairs of `width` columns, as two tiles of B have them, where few_sum looks for them. */
static inline void few_pairs(const char *tiles, int64_t width, char *to) {
    for (int64_t pair = 0; pair < TILE_ROWS; pair++, to += width * 4)
        for (int64_t c = 0; c < width; c += 16) {
            __mmask16 mask = width - c >= 16 ? 0xffff : (__mmask16)((1u << (width - c)) - 1);
            _mm512_mask_storeu_epi32(to + c * 4, mask, _mm512_load_si512(tiles + c / 16 * TILE_BYTES + pair * 64));
        }
}

#endif

#endif
