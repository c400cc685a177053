/* AMX: products of bf16 tiles, and how memory becomes tiles. Included by amx_*.c only, which are compiled once, for processors that have it.
 *
 * A tile is 16 lines of 64 bytes. One instruction multiplies tile A, 16 rows of 32 bf16, by tile B, 16 pairs of lines by 16 columns (each line holds two rows
 * of the factor, element by element), and adds to 16 x 16 floats. So A is read from rows as they lie in memory; B has to be made:
 *
 *     from rows that run along the sum (k)          pairs_transpose: a weight (out, in) in x W^T
 *     from rows that run along the result (n)       pairs_interleave: the same weight in dy W
 *
 * An element of a result is one chain of sums in order of k, whatever stands in the other rows and columns, and a product gives the same bits as a b and as
 * (b^T a^T)^T: so what is multiplied in which order is a question of speed alone. Numbers below 2^-126 count as zero.
 */
#ifndef TUNE_AMX_H
#define TUNE_AMX_H

#include <immintrin.h>
#include <stdint.h>

enum {
    TILE_ROWS = 16,
    TILE_K = 32,      /* values of a row of A */
    TILE_BYTES = 1024 /* of any tile */
};

/* Before a thread's first tile, and after its last one: what is kept of tiles makes it dearer to put a thread to sleep. All eight tiles have 16 lines of 64 bytes. */
static inline void amx_begin(void) {
    struct { uint8_t palette, start_row, reserved[14]; uint16_t line_bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.line_bytes[i] = 64;
        config.rows[i] = TILE_ROWS;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc 12 believes that only the first eight bytes are read */
    _tile_loadconfig(&config);
}

static inline void amx_end(void) { _tile_release(); }

/* to[j][i] = from[i][j] for 16 x 16 values of 32 bits; lines are `from_line` and `to_line` bytes apart. */
static inline void transpose_16x16(const void *from, int64_t from_line, void *to, int64_t to_line) {
    __m512i a[16], b[16];
    const char *in = from;
    char *out = to;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(in + i * from_line);
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* within 128 bits: 4 x 4 values */
        __m512i low = _mm512_unpacklo_epi32(a[i], a[i + 1]), high = _mm512_unpackhi_epi32(a[i], a[i + 1]);
        __m512i low2 = _mm512_unpacklo_epi32(a[i + 2], a[i + 3]), high2 = _mm512_unpackhi_epi32(a[i + 2], a[i + 3]);
        b[i] = _mm512_unpacklo_epi64(low, low2);
        b[i + 1] = _mm512_unpackhi_epi64(low, low2);
        b[i + 2] = _mm512_unpacklo_epi64(high, high2);
        b[i + 3] = _mm512_unpackhi_epi64(high, high2);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* b[4 q + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 q .. 4 q + 3 */
        __m512i even = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88), odd = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
        __m512i even2 = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88), odd2 = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
        _mm512_storeu_si512(out + i * to_line, _mm512_shuffle_i32x4(even, even2, 0x88));
        _mm512_storeu_si512(out + (4 + i) * to_line, _mm512_shuffle_i32x4(odd, odd2, 0x88));
        _mm512_storeu_si512(out + (8 + i) * to_line, _mm512_shuffle_i32x4(even, even2, 0xdd));
        _mm512_storeu_si512(out + (12 + i) * to_line, _mm512_shuffle_i32x4(odd, odd2, 0xdd));
    }
}

/* A tile of B from 16 rows of 32 bf16 along the sum, `line` bytes apart. */
static inline void pairs_transpose(const void *from, int64_t line, void *tile) { transpose_16x16(from, line, tile, 64); }

/* A line of two tiles of B from two rows of 32 bf16 along the result: columns 0 to 15 go to `left`, 16 to 31 to `right`. */
static inline void pairs_interleave(const void *even_row, const void *odd_row, void *left, void *right) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __m512i even = _mm512_loadu_si512(even_row), odd = _mm512_loadu_si512(odd_row);
    _mm512_storeu_si512(left, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(right, _mm512_permutex2var_epi16(even, high, odd));
}

#endif
