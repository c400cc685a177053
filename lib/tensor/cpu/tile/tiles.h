/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 tiles, and the conversion of memory to tiles. Included only in this folder, whose files are compiled for each instruction set that
 * multiplies bf16: -DISA=amx, whose tiles are registers, and -DISA=avx512_bf16, where vectors do the same.
 *
 * A tile is 16 lines of 64 bytes. One step multiplies tile A, 16 rows of 32 bf16, by tile B, 16 pairs of lines by 16 columns (each line has two rows
 * of the factor, interleaved element by element), and adds to 16 x 16 floats. So A can be read from rows in memory; B must be converted:
 *
 *     from rows that run along the sum (k)          pairs_transpose: a weight (out, in) in x W^T
 *     from rows that run along the result (n)       pairs_interleave: the same weight in dy W
 *
 * An element of a result is one chain of sums in order of k, whatever the other rows and columns contain, and a product gives the same bits as a b
 * and as (b^T a^T)^T: so only speed decides which factor is multiplied in which role. Numbers below 2^-126 count as zero. With vectors the chain goes
 * from value to value; a step of AMX's tiles sums the first values of its pairs and the second ones, each from zero, and then adds the two to the sum
 * (Intel's manual, TDPBF16PS).
 */
#ifndef TUNE_TILES_H
#define TUNE_TILES_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    TILE_ROWS = 16,
    TILE_K = 32,      /* values in a row of A */
    TILE_BYTES = 1024 /* of any tile */
};

#ifdef __AVX512BF16__

/* Two adjacent values of a row of A, for all columns of B. */
static inline __m512bh pair_of(const char *at) {
    int32_t bits;
    memcpy(&bits, at, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

#endif

#ifdef __AMX_BF16__

#define TILE_PREFETCH_HINT _MM_HINT_T0 /* where memory that will be converted to tiles is prefetched to */

enum { TILE_MODE = 0x8040 }; /* MXCSR for vectors that emulate tiles: for them, too, numbers below 2^-126 count as zero */

/* There are eight tiles: numbers 0 to 3 are sums and 4 to 7 factors.
 *
 *     tile_zero(number)                  sums
 *     tile_read(number, at, line)        lines are `line` bytes apart; the memory of a factor must not change before it has been multiplied
 *     tile_read_once(number, at, line)   the same for memory that the first-level cache need not keep
 *     tile_multiply(sums, a, b)
 *     tile_write(number, at, line)       sums
 *
 * tiles_begin: call before a thread's first tile. tiles_end: call after its last one, because tile state makes it more expensive to suspend a
 * thread. */
#ifdef TILES_EMULATED /* in memory, for tests of all tile code on machines without AMX: `make test TILES=emulated` */

static _Thread_local struct {
    _Alignas(64) char tile[8][TILE_BYTES];
    bool usable;
} emulated;

static inline void tiles_begin(void) {
    memset(&emulated, 0, sizeof emulated);
    emulated.usable = true;
}

static inline void tiles_end(void) { emulated.usable = false; }

/* As the processor does */
static inline char *tile_emulated(int number) { return emulated.usable ? emulated.tile[number] : (__builtin_trap(), NULL); }

static inline void tile_zero(int number) { memset(tile_emulated(number), 0, TILE_BYTES); }

static inline void tile_read(int number, const void *at, int64_t line) {
    for (int i = 0; i < TILE_ROWS; i++) memcpy(tile_emulated(number) + i * 64, (const char *)at + i * line, 64);
}

#define tile_read_once tile_read

static inline void tile_write(int number, void *at, int64_t line) {
    for (int i = 0; i < TILE_ROWS; i++) memcpy((char *)at + i * line, tile_emulated(number) + i * 64, 64);
}

/* The first values of pairs, or the second ones, as floats. */
static inline __m512 pairs_part(__m512i pairs, bool second) {
    return (__m512)(second ? _mm512_and_si512(pairs, _mm512_set1_epi32((int32_t)0xffff0000)) : _mm512_slli_epi32(pairs, 16));
}

static __attribute__((noinline, unused)) void tile_multiply_floats(int sums, int a, int b) {
    for (int i = 0; i < TILE_ROWS; i++) {
        __m512 parts[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, sum = _mm512_loadu_ps(tile_emulated(sums) + i * 64);
        for (int pair = 0; pair < TILE_K / 2; pair++)
            for (int part = 0; part < 2; part++)
                parts[part] = _mm512_fmadd_ps(pairs_part((__m512i)pair_of(tile_emulated(a) + i * 64 + pair * 4), part),
                                              pairs_part(_mm512_loadu_si512(tile_emulated(b) + pair * 64), part), parts[part]);
        _mm512_storeu_ps(tile_emulated(sums) + i * 64, _mm512_add_ps(sum, _mm512_add_ps(parts[0], parts[1])));
    }
}

static inline void tile_multiply(int sums, int a, int b) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | TILE_MODE);
    tile_multiply_floats(sums, a, b); /* not inlined: compilers move code that does not visibly depend on the mode */
    _mm_setcsr(mode);
}

#else

static inline void tiles_begin(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t line_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.line_bytes[i] = 64;
        config.rows[i] = TILE_ROWS;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc 12 believes that only the first eight bytes are read */
    _tile_loadconfig(&config);
}

static inline void tiles_end(void) { _tile_release(); }

#define tile_zero(number) _tile_zero(number)
#define tile_read(number, at, line) _tile_loadd(number, at, line)
#define tile_read_once(number, at, line) _tile_stream_loadd(number, at, line)
#define tile_multiply(sums, a, b) _tile_dpbf16ps(sums, a, b)
#define tile_write(number, at, line) _tile_stored(number, at, line)

#endif

#elif defined(__AVX512BF16__)

#define TILE_PREFETCH_HINT _MM_HINT_T1 /* Zen 4 ignores most prefetches into the first-level cache: as slow as no prefetch at all */

static inline void tiles_begin(void) {}
static inline void tiles_end(void) {}

/* Rows of A in place: bytes from line to line, and from each 32 values of the sum to the next. */
typedef struct TileLines {
    const char *at;
    int64_t line, column;
} TileLines;

/* 16 x 16 sums (+)= a b, through the tiles of `k` values of the sum; sums stay in registers. Tiles of B are b_column bytes apart. Prefetches
 * memory at `upcoming` (NULL: none), 16 lines with each tile: the processor would ignore some of a larger number. */
static __attribute__((noinline, unused)) void tiles_sum(int64_t k, TileLines a, const char *b, int64_t b_column, void *c, int64_t c_line, bool add,
                                                        const char *upcoming) {
    __m512 sum[TILE_ROWS];
    const char *rows[4];
    for (int i = 0; i < 4; i++) rows[i] = a.at + 4 * i * a.line;
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++) sum[i] = add ? _mm512_loadu_ps((char *)c + i * c_line) : _mm512_setzero_ps();
    for (; k > 0; k -= TILE_K, b += b_column) {
        int64_t pairs = k < TILE_K ? (k + 1) / 2 : TILE_K / 2;
        for (int64_t pair = 0; pair < pairs; pair++) {
            __m512bh columns = (__m512bh)_mm512_loadu_si512(b + pair * 64);
            if (upcoming) _mm_prefetch(upcoming + pair * 64, _MM_HINT_T1);
#pragma GCC unroll 16
            for (int i = 0; i < TILE_ROWS; i++) sum[i] = _mm512_dpbf16_ps(sum[i], pair_of(rows[i / 4] + i % 4 * a.line + 4 * pair), columns);
        }
        for (int i = 0; i < 4; i++) rows[i] += a.column;
        if (upcoming) upcoming += TILE_BYTES;
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++) _mm512_storeu_ps((char *)c + i * c_line, sum[i]);
}

/* The same for eight rows and two tiles of columns, the second `b_right` and `c_right` bytes after the first: a broadcast value of A serves two
 * products, so that loads do not slow a processor that multiplies twice a cycle (Zen 5: 390 -> 460 GF/s a core; one that multiplies once a cycle
 * is equally fast either way). Prefetches 8 lines with each tile. */
enum { HALF_ROWS = TILE_ROWS / 2 };
static __attribute__((noinline, unused)) void tiles_sum_two(int64_t k, TileLines a, const char *b, int64_t b_right, int64_t b_column, char *c,
                                                            int64_t c_right, int64_t c_line, bool add, const char *upcoming) {
    __m512 left[HALF_ROWS], right[HALF_ROWS];
    const char *rows[2] = {a.at, a.at + 4 * a.line};
#pragma GCC unroll 8
    for (int i = 0; i < HALF_ROWS; i++) {
        left[i] = add ? _mm512_loadu_ps(c + i * c_line) : _mm512_setzero_ps();
        right[i] = add ? _mm512_loadu_ps(c + c_right + i * c_line) : _mm512_setzero_ps();
    }
    for (; k > 0; k -= TILE_K, b += b_column) {
        int64_t pairs = k < TILE_K ? (k + 1) / 2 : TILE_K / 2;
        for (int64_t pair = 0; pair < pairs; pair++) {
            __m512bh columns = (__m512bh)_mm512_loadu_si512(b + pair * 64), others = (__m512bh)_mm512_loadu_si512(b + b_right + pair * 64);
            if (upcoming && pair % 2 == 0) _mm_prefetch(upcoming + pair * 32, _MM_HINT_T1);
#pragma GCC unroll 8
            for (int i = 0; i < HALF_ROWS; i++) {
                __m512bh values = pair_of(rows[i / 4] + i % 4 * a.line + 4 * pair);
                left[i] = _mm512_dpbf16_ps(left[i], values, columns);
                right[i] = _mm512_dpbf16_ps(right[i], values, others);
            }
        }
        for (int i = 0; i < 2; i++) rows[i] += a.column;
        if (upcoming) upcoming += TILE_BYTES / 2;
    }
#pragma GCC unroll 8
    for (int i = 0; i < HALF_ROWS; i++) {
        _mm512_storeu_ps(c + i * c_line, left[i]);
        _mm512_storeu_ps(c + c_right + i * c_line, right[i]);
    }
}

/* Sixteen rows by two tiles of columns. */
static inline void tiles_sum_wide(int64_t k, TileLines a, const char *b, int64_t b_right, int64_t b_column, char *c, int64_t c_right, int64_t c_line,
                                  bool add, const char *upcoming) {
    for (int64_t row = 0; row < TILE_ROWS; row += HALF_ROWS) {
        TileLines half = {a.at + row * a.line, a.line, a.column};
        tiles_sum_two(k, half, b, b_right, b_column, c + row * c_line, c_right, c_line, add, upcoming ? upcoming + row * a.line : NULL);
    }
}

#endif

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

/* Makes a tile of B from 16 rows of 32 bf16 along the sum, `line` bytes apart. */
static inline void pairs_transpose(const void *from, int64_t line, void *tile) { transpose_16x16(from, line, tile, 64); }

/* Makes a line of two tiles of B from two rows of 32 bf16 along the result: columns 0 to 15 go to `left`, 16 to 31 to `right`. */
static inline void pairs_interleave(const void *even_row, const void *odd_row, void *left, void *right) {
    const __m512i low =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __m512i even = _mm512_loadu_si512(even_row), odd = _mm512_loadu_si512(odd_row);
    _mm512_storeu_si512(left, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_storeu_si512(right, _mm512_permutex2var_epi16(even, high, odd));
}

#endif
