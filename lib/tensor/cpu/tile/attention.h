/* SPDX-License-Identifier: Apache-2.0 */
/* Code that attention's forward and backward pass in tiles share. Included only by attention*.c of this folder.
 *
 * Scores are computed transposed: keys are the rows of a tile, queries its columns, so that the data of a query (largest score, sum of weights, range
 * of keys) is one lane of a vector, and no vector is summed across lanes. A query row is a (token, head of the group) pair; LANES of them are a group
 * of lanes. Head sizes are rounded up to whole tiles with zeros, which change no bit.
 */
#ifndef TUNE_TILE_ATTENTION_H
#define TUNE_TILE_ATTENTION_H

#include "lib/tensor/cpu/tile/tiles.h"
#include "lib/tensor/cpu/attention.h"

enum { LANES = TILE_ROWS };

/* As attention_shape, for tiles: `tokens` is such that a task has about `rows` query rows. */
static inline AttentionShape tile_attention_shape(const AttentionArgs *args, int64_t rows) {
    AttentionShape shape = attention_shape(args);
    shape.padded = blocks_of(shape.dim, TILE_K) * TILE_K;
    shape.tokens = MAX((int64_t)1, rows / shape.group);
    return shape;
}

/* ---- products ---- */

/* Tiles in memory: tile (i, k) begins at + i * row + k * column bytes. */
typedef struct Tiles {
    void *at;
    int64_t row, column;
} Tiles;

/* Takes rows x columns tiles, row after row, from the beginning of *memory, and advances *memory past them. */
static inline Tiles tiles_alloc(char **memory, int64_t rows, int64_t columns) {
    Tiles tiles = {*memory, columns * TILE_BYTES, TILE_BYTES};
    *memory += rows * tiles.row;
    return tiles;
}

static inline void *tile_at(Tiles tiles, int64_t i, int64_t k) { return (char *)tiles.at + i * tiles.row + k * tiles.column; }

static inline Tiles tiles_from(Tiles tiles, int64_t i, int64_t k) { return (Tiles){tile_at(tiles, i, k), tiles.row, tiles.column}; }

/* Two rows of tiles of c (+)= a b, with one or two columns. The columns of both factors run along the sum. */
#ifdef __AMX_BF16__
static inline __attribute__((always_inline)) void block_multiply(const bool two, int64_t depth, Tiles a, Tiles b, Tiles c, bool add) {
    __asm__ volatile("" : : : "memory"); /* the compiler does not know that loads of tiles read memory */
    if (add) {
        tile_read(0, tile_at(c, 0, 0), 64);
        tile_read(1, tile_at(c, 1, 0), 64);
        if (two) {
            tile_read(2, tile_at(c, 0, 1), 64);
            tile_read(3, tile_at(c, 1, 1), 64);
        }
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (int64_t k = 0; k < depth; k++) {
        tile_read(4, tile_at(a, 0, k), 64);
        tile_read(6, tile_at(b, 0, k), 64);
        tile_multiply(0, 4, 6);
        tile_read(5, tile_at(a, 1, k), 64);
        tile_multiply(1, 5, 6);
        if (two) {
            tile_read(7, tile_at(b, 1, k), 64);
            tile_multiply(2, 4, 7);
            tile_multiply(3, 5, 7);
        }
    }
    tile_write(0, tile_at(c, 0, 0), 64);
    tile_write(1, tile_at(c, 1, 0), 64);
    if (two) {
        tile_write(2, tile_at(c, 0, 1), 64);
        tile_write(3, tile_at(c, 1, 1), 64);
    }
}
#elif defined(__AVX512BF16__)
static inline void block_multiply(const bool two, int64_t depth, Tiles a, Tiles b, Tiles c, bool add) {
    for (int64_t i = 0; i < 2; i++) {
        TileLines rows = {tile_at(a, i, 0), 64, a.column};
        char *first = tile_at(b, 0, 0), *sums = tile_at(c, i, 0);
        if (two)
            tiles_sum_wide(depth * TILE_K, rows, first, (char *)tile_at(b, 1, 0) - first, b.column, sums, (char *)tile_at(c, i, 1) - sums, 64, add,
                           NULL);
        else
            tiles_sum(depth * TILE_K, rows, first, b.column, sums, 64, add, NULL);
    }
}
#endif

#ifdef __AVX512BF16__ /* not when headers are compiled alone, without instruction set flags */
/* m x n tiles of c (+)= a b; a has m rows of tiles, an even number, b has n. */
static inline void tiles_multiply(int64_t m, int64_t n, int64_t depth, Tiles a, Tiles b, Tiles c, bool add) {
    for (int64_t j = 0; j < n; j += 2)
        for (int64_t i = 0; i < m; i += 2) {
            if (j + 1 < n)
                block_multiply(true, depth, tiles_from(a, i, 0), tiles_from(b, j, 0), tiles_from(c, i, j), add);
            else
                block_multiply(false, depth, tiles_from(a, i, 0), tiles_from(b, j, 0), tiles_from(c, i, j), add);
        }
}
#endif

/* ---- loading tiles ---- */

/* Writes line `row` of tiles of A from `dim` values, with zeros up to whole tiles; all zeros if there are no values. (A masked load from address 0
 * would give zeros as well, but slowly.) */
static inline void line_put(Tiles tiles, int64_t row, const uint16_t *values, int64_t dim) {
    char *line = (char *)tile_at(tiles, row / TILE_ROWS, 0) + row % TILE_ROWS * 64;
    for (int64_t c = 0; c < dim; c += TILE_K, line += TILE_BYTES)
        _mm512_storeu_si512(line, values ? _mm512_maskz_loadu_epi16(dim - c >= TILE_K ? 0xffffffffu : (1u << (dim - c)) - 1, values + c)
                                         : _mm512_setzero_si512());
}

/* Loads keys or values of one head at positions start+from..start+to-1 of a sequence as tiles of A; the rest of the `lines` is zero. */
static inline void keys_put(const AttentionShape *shape, const Tensor *tensor, int32_t segment, int64_t kv_head, int64_t start, int64_t from,
                            int64_t to, int64_t lines, Tiles tiles) {
    for (int64_t j = 0; j < lines; j++)
        if (j < from || j >= to) line_put(tiles, j, NULL, shape->dim);
    for (int64_t j = from; j < to;) {
        int64_t n, row = key_run(shape, segment, start + j, &n);
        for (int64_t end = MIN(to, j + n); j < end; j++, row++)
            line_put(tiles, j, (const uint16_t *)tensor->elements + row * shape->kv_width + kv_head * shape->dim, shape->dim);
    }
}

/* For query rows from..from+n-1 of a segment, whose tokens begin with row `first` of the batch at position `offset` of their sequence: finds their
 * offsets in q, y and their gradients, and their positions. Done once here, because divisions are slow. */
static inline void queries_find(const AttentionShape *shape, int64_t first, int64_t offset, int64_t kv_head, int64_t from, int64_t n, int64_t *at,
                                int32_t *positions) {
    int64_t token = from / shape->group, head = from % shape->group;
    for (int64_t r = 0; r < n; r++) {
        at[r] = (first + token) * shape->q_width + (kv_head * shape->group + head) * shape->dim;
        positions[r] = (int32_t)(offset + token);
        if (++head == shape->group) {
            head = 0;
            token++;
        }
    }
}

/* Loads query rows that begin at at[0..n-1] as tiles of A, with zeros up to `lines`. */
static inline void queries_put(const AttentionShape *shape, const Tensor *tensor, const int64_t *at, int64_t n, int64_t lines, Tiles tiles) {
    for (int64_t r = 0; r < lines; r++) line_put(tiles, r, r < n ? (const uint16_t *)tensor->elements + at[r] : NULL, shape->dim);
}

/* Converts tiles of A (rows, columns) to tiles of B for products in which the sum runs along the columns, tile by tile. May be done in place. */
static inline void tiles_transpose(int64_t rows, int64_t columns, Tiles from, Tiles to) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++) pairs_transpose(tile_at(from, i, k), 64, tile_at(to, i, k));
}

/* Converts tiles of A (2 rows, columns) to tiles of B (2 columns, rows) for products in which the sum runs along the rows, two of which make a
 * tile. */
static inline void tiles_interleave(int64_t rows, int64_t columns, Tiles from, Tiles to) {
    for (int64_t k = 0; k < rows; k++)
        for (int64_t c = 0; c < columns; c++) {
            char *left = tile_at(to, 2 * c, k), *right = tile_at(to, 2 * c + 1, k);
            for (int64_t p = 0; p < TILE_ROWS; p++) {
                const char *line = (const char *)tile_at(from, 2 * k + p / 8, c) + p % 8 * 128;
                pairs_interleave(line, line + 64, left + p * 64, right + p * 64);
            }
        }
}

/* ---- elementary functions, visible keys ---- */

#ifdef __AVX512F__ /* not when headers are compiled alone: vectors cannot be arguments there */

/* 2^x, relative error below 3e-7. 2^0 is exactly 1, 2^-infinity is 0, NaN stays. */
static inline __m512 exp2_lanes(__m512 x) {
    __m512 r = _mm512_reduce_ps(x, 0x09), p = _mm512_set1_ps(0.0017883688f); /* x minus the largest integer below it */
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00919938739f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0556570552f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.240207195f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69314754f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, x);
}

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

/* The queries that see the key at `position`, given the first and last position that each sees. */
static inline __mmask16 lanes_seeing(__m512i oldest, __m512i newest, int64_t position) {
    __m512i at = _mm512_set1_epi32((int32_t)position);
    return _mm512_mask_cmple_epi32_mask(_mm512_cmple_epi32_mask(at, newest), oldest, at);
}

/* The first position that is visible from `positions`. */
static inline __m512i lanes_oldest(const AttentionShape *shape, __m512i positions) {
    if (shape->args->window <= 0) return _mm512_setzero_si512();
    return _mm512_sub_epi32(positions, _mm512_set1_epi32((int32_t)MIN(shape->args->window, (int64_t)INT32_MAX) - 1));
}

#endif

#endif
