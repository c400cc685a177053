/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 in tiles (tiles.h).
 *
 * A panel of B, some hundred columns, is converted to tiles and stays in the second-level cache. A is read in place, 32 rows at a time, if possible.
 * So no second copy of a weight is kept, and all rows of the task use the converted panel. Every element is one chain of sums in order of k, however
 * the product is cut; so only speed decides about the cuts, and about which factor is A, and the bits depend neither on the threads nor on the other
 * rows. */
#include "lib/tensor/cpu/tile/tiles.h"
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"
#include "lib/tensor/cpu/work_queue.h"
#include "lib/tensor/cpu/tile/skinny.h"

#include <string.h>

enum {
    BLOCK = 2 * TILE_ROWS, /* rows and columns of a result that are summed together */
    PANEL_BYTES = 1 << 20, /* of a panel of B: half of a usual second-level cache */
    PANEL_COLS = 1024,
    WHOLE_K = 2048, /* longer sums are cut, because a panel would be too narrow to use A well, unless it has all columns */
    CUT_K = 1024,
    FLAT_K = 256, /* for results of a few rows, whose sums take little memory */
    PANEL_FLAT = 256,
    SERIAL_WEIGHT = 1 << 16, /* values of B that one thread reads in the time that it takes to start two */
    SKINNY_ROWS = 128,       /* with fewer rows, converting a weight to tiles takes longer than multiplying by it */
    BLOCK_LINE = BLOCK * 4,  /* bytes */
    SOON = 5,                /* tiles between the prefetch and the use of A when A streams from memory: smaller and larger distances are slower */
    STREAM_ROWS = 480,       /* rows of a streamed weight in a task; not a power of two, or streams would compete for the same cache sets */
    GROUP_BYTES = TILE_ROWS * (BLOCK * BLOCK_LINE + 64), /* size of the sums that are reordered together */
#ifdef __AMX_BF16__
    PIECE_K = 20 * TILE_K /* 32 rows of A stay in a first-level cache of 48 KiB through all columns of a panel, which bypass it */
#else
    PIECE_K = 1 << 30 /* vectors keep their sums through the full depth */
#endif
};

_Static_assert(SKINNY_COLS *(BLOCK * 64 + 64) <= GROUP_BYTES, "so are those of columns that vectors sum: 64 bytes for a row of each stream");

/* Bytes from row to row of A in scratch memory: not a power of two, because such rows would compete for the same cache sets. */
#define ROWS_LINE(n_tiles) ((n_tiles)*64 + 64)

static inline __m512 widened_low(__m512i bits) { return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits)), 16); }
static inline __m512 widened_high(__m512i bits) { return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1)), 16); }

static int64_t div_up(int64_t count, int64_t size) { return (count + size - 1) / size; }
static int64_t round_up(int64_t count, int64_t size) { return div_up(count, size) * size; }

/* ---- converting memory to bf16 ---- */

/* Loads n <= 32 values from `from` on times `scale` as bf16, with zeros after them. */
static inline __m512i load_32(const char *from, DType dtype, int64_t n, float scale) {
    __mmask32 mask = n >= 32 ? 0xffffffffu : ((__mmask32)1 << n) - 1;
    __m512 low, high;
    if (dtype == DT_F32) {
        low = _mm512_maskz_loadu_ps((__mmask16)mask, from);
        high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + 64);
    } else if (dtype == DT_F16) {
        low = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)mask, from));
        high = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)(mask >> 16), from + 32));
    } else {
        __m512i bits = _mm512_maskz_loadu_epi16(mask, from);
        if (scale == 1) return bits;
        low = widened_low(bits);
        high = widened_high(bits);
    }
    __m512 factor = _mm512_set1_ps(scale);
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, factor), _mm512_mul_ps(low, factor));
}

/* The same of a quantised factor, 32 values from `column` of a line on: rounded once, from the value times `scale`. */
static __m512i codes_32(const Operand *from, int64_t line, int64_t column, int64_t n, float scale) {
    _Alignas(64) float values[32] = {0};
    cpu_rows()->codes(from, line, column, n < 32 ? n : 32, values);
    return load_32((const char *)values, DT_F32, 32, scale);
}

/* One factor of a product in memory, with the factor by which its values are multiplied during loading. */
typedef struct Factor {
    Operand operand;
    float scale;
    int64_t n, k;
} Factor; /* n: rows of A or columns of B */

static inline const char *element(const Operand *operand, int64_t line, int64_t column) {
    return (const char *)operand->data + (line * operand->ld + column) * (operand->dtype == DT_F32 ? 4 : 2);
}

/* Loads n <= 32 values from `column` of a line on as bf16, with zeros after them. */
static inline __m512i values_32(const Factor *f, int64_t line, int64_t column, int64_t n) {
    return dtype_is_quantised(f->operand.dtype) ? codes_32(&f->operand, line, column, n, f->scale)
                                                : load_32(element(&f->operand, line, column), f->operand.dtype, n, f->scale);
}

static bool plain(const Factor *f) { return f->operand.dtype == DT_BF16 && f->scale == 1; }

/* Loads lines first..first+15 and values k..k+31 along the sum, padded with zeros, as 16 x 32 bf16. */
static void lines_load(const Factor *f, int64_t first, int64_t k, void *to, int64_t to_line) {
    for (int64_t i = 0; i < TILE_ROWS; i++)
        _mm512_storeu_si512((char *)to + i * to_line, first + i < f->n ? values_32(f, first + i, k, f->k - k) : _mm512_setzero_si512());
}

/* Loads values k..k+31 along the sum, columns first..first+31, as two tiles of pairs. */
static void columns_load(const Factor *f, int64_t first, int64_t k, char *left, char *right) {
    bool whole = plain(f) && first + 32 <= f->n && k + TILE_K <= f->k;
    for (int64_t pair = 0; pair < TILE_ROWS; pair++, left += 64, right += 64) {
        int64_t row = k + 2 * pair;
        if (whole) { /* lines far apart, which the hardware does not prefetch */
            _mm_prefetch(element(&f->operand, row + TILE_K, first), TILE_PREFETCH_HINT);
            _mm_prefetch(element(&f->operand, row + TILE_K + 1, first), TILE_PREFETCH_HINT);
            pairs_interleave(element(&f->operand, row, first), element(&f->operand, row + 1, first), left, right);
            continue;
        }
        __m512i even = row < f->k ? values_32(f, row, first, f->n - first) : _mm512_setzero_si512();
        __m512i odd = row + 1 < f->k ? values_32(f, row + 1, first, f->n - first) : _mm512_setzero_si512();
        pairs_interleave(&even, &odd, left, right);
    }
}

/* Loads 32 columns and 32 values along the sum of B, as two tiles. */
static void pair_of_tiles(const Factor *b, int64_t col, int64_t k, char *to) {
    if (!b->operand.transposed) {
        columns_load(b, col, k, to, to + TILE_BYTES);
        return;
    }
    for (int side = 0; side < 2 && col < b->n; side++, col += TILE_ROWS, to += TILE_BYTES) { /* tiles after the last column are not read */
        if (plain(b) && col + TILE_ROWS <= b->n && k + TILE_K <= b->k) {
            pairs_transpose(element(&b->operand, col, k), 2 * b->operand.ld, to);
            continue;
        }
        _Alignas(64) char lines[TILE_BYTES];
        lines_load(b, col, k, lines, 64);
        pairs_transpose(lines, 64, to);
    }
}

/* Loads columns first.. of B and k-tiles from..: the tiles of each 32 columns are consecutive, `stride` bytes from each 32 columns to the next.
 * Goes along the lines in memory order. */
static void panel_load(const Factor *b, int64_t first, int64_t n_cols, int64_t from, int64_t n_tiles, char *panel, int64_t stride) {
    if (b->operand.transposed) {
        for (int64_t j = 0; j < n_cols / BLOCK; j++)
            for (int64_t tile = 0; tile < n_tiles; tile++)
                pair_of_tiles(b, first + j * BLOCK, (from + tile) * TILE_K, panel + j * stride + tile * 2 * TILE_BYTES);
        return;
    }
    for (int64_t tile = 0; tile < n_tiles; tile++)
        for (int64_t j = 0; j < n_cols / BLOCK; j++)
            pair_of_tiles(b, first + j * BLOCK, (from + tile) * TILE_K, panel + j * stride + tile * 2 * TILE_BYTES);
}

/* 32 rows of A: in place, or converted in scratch memory. */
typedef struct Rows {
    const char *at;
    int64_t line;
} Rows;

static bool rows_lie(const Factor *a, int64_t first, int64_t from, int64_t n_tiles) {
    return plain(a) && !a->operand.transposed && first + BLOCK <= a->n && (from + n_tiles) * TILE_K <= a->k;
}

static Rows rows_load(const Factor *a, int64_t first, int64_t from, int64_t n_tiles, char *scratch) {
    if (rows_lie(a, first, from, n_tiles)) return (Rows){element(&a->operand, first, from * TILE_K), 2 * a->operand.ld};
    int64_t line = ROWS_LINE(n_tiles);
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        int64_t k = (from + tile) * TILE_K;
        char *to = scratch + tile * 64;
        if (a->operand.transposed) {
            _Alignas(64) char pairs[2 * TILE_BYTES];
            columns_load(a, first, k, pairs, pairs + TILE_BYTES);
            transpose_16x16(pairs, 64, to, line);
            transpose_16x16(pairs + TILE_BYTES, 64, to + TILE_ROWS * line, line);
        } else {
            lines_load(a, first, k, to, line);
            lines_load(a, first + TILE_ROWS, k, to + TILE_ROWS * line, line);
        }
    }
    return (Rows){scratch, line};
}

/* ---- writing results ---- */

/* Writes sums of a block to C, line by line: c = alpha * sums + beta * d. d may be c. */
typedef struct Finish {
    const char *sums, *d;
    char *c;
    int64_t line, c_line, d_line; /* bytes */
    int64_t c_soon, d_soon;       /* bytes to the block after the next one, which is prefetched */
    int64_t rows;                 /* lines left to write */
    __mmask32 mask;
    bool c_f32, d_f32, past, usual; /* past: full lines of C bypass the caches; usual: 32 values of bf16, and nothing to add */
    float alpha, beta;
} Finish;

/* Writes a line that is not 32 values of bf16 with nothing to add. */
static inline __attribute__((always_inline)) void finish_other(const Finish *f, __m512 low, __m512 high) {
    __m512 beta = _mm512_set1_ps(f->beta);
    __mmask16 first = (__mmask16)f->mask, second = (__mmask16)(f->mask >> 16);
    if (f->c_f32) __builtin_prefetch(f->c + f->c_soon + 64, 1);
    if (f->beta != 0 && f->d != f->c) {
        _mm_prefetch(f->d + f->d_soon, _MM_HINT_T0);
        if (f->d_f32) _mm_prefetch(f->d + f->d_soon + 64, _MM_HINT_T0);
    }
    if (f->beta != 0 && f->d_f32) {
        low = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(first, f->d), low);
        high = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(second, f->d + 64), high);
    } else if (f->beta != 0) {
        __m512i old = _mm512_maskz_loadu_epi16(f->mask, f->d);
        low = _mm512_fmadd_ps(beta, widened_low(old), low);
        high = _mm512_fmadd_ps(beta, widened_high(old), high);
    }
    if (f->past) {
        _mm512_stream_ps((float *)f->c, low);
        _mm512_stream_ps((float *)f->c + 16, high);
    } else if (f->c_f32) {
        _mm512_mask_storeu_ps(f->c, first, low);
        _mm512_mask_storeu_ps(f->c + 64, second, high);
    } else
        _mm512_mask_storeu_epi16(f->c, f->mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

static inline __attribute__((always_inline)) void finish_row(const bool usual, Finish *f) {
    __m512 alpha = _mm512_set1_ps(f->alpha), low = _mm512_mul_ps(_mm512_load_ps(f->sums), alpha),
           high = _mm512_mul_ps(_mm512_load_ps(f->sums + 64), alpha);
    __builtin_prefetch(f->c + f->c_soon, 1);
    if (usual)
        _mm512_storeu_si512(f->c, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    else
        finish_other(f, low, high);
    f->sums += f->line;
    f->c += f->c_line;
    f->d += f->d_line;
    f->rows--;
}

static void finish_rest(Finish *f) {
    while (f->usual && f->rows > 0) finish_row(true, f);
    while (f->rows > 0) finish_row(false, f);
}

/* ---- 32 x 32 elements ---- */

/* The parts of a block's sum: tiles of the product, then those of the second product. */
typedef struct Sum {
    Rows a, more;
    const char *b;
    int64_t n_tiles, n_more, more_k; /* more_k: length of the second product's sum, for vectors; it may end within a tile */
    bool add;                        /* add to the existing sums */
} Sum;

/* Memory to prefetch while tiles are multiplied, some lines with each tile of the sum: rows of A for the next block of rows. */
typedef struct Ahead {
    const char *at; /* NULL: none */
    int64_t line, rows;
    bool once;    /* only this block uses A's rows: then the rows that follow are prefetched, and `at` only says that they exist */
    int64_t jump; /* with `once`: bytes from the end of a row to the beginning of the next row at the same position in the tile */
} Ahead;

#ifdef __AMX_BF16__
/* Computes sums (lines of at least 32) from `sum`: 32 rows, or 16 if not `tall`, of 32 columns, or 16 if not `wide`. The vector units are idle
 * during multiplication, so lines of the previous block are finished meanwhile (`usual`: all of them have that property). B bypasses the
 * first-level cache, where A's rows stay for the following blocks: half of the products' time was waiting for tiles from the second-level cache. */
static inline __attribute__((always_inline)) void block_multiply(const bool tall, const bool wide, const bool usual, const Sum *sum, void *sums,
                                                                 int64_t line, Finish *before, const Ahead *ahead) {
    char *low = sums, *high = low + TILE_ROWS * line;
    __asm__ volatile("" ::: "memory"); /* gcc 12 does not know that a tile's load reads memory */
    if (sum->add) {
        tile_read(0, low, line);
        if (wide) tile_read(1, low + 64, line);
        if (tall) tile_read(2, high, line);
        if (tall && wide) tile_read(3, high + 64, line);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    const char *b = sum->b;
    int64_t rows_each = before->rows ? (before->rows + sum->n_tiles - 1) / sum->n_tiles : 0;
    Finish finish = *before; /* in registers */
    for (int part = 0; part < 2; part++) {
        Rows a = part ? sum->more : sum->a;
        int64_t n = part ? sum->n_more : sum->n_tiles;
        const char *upper = a.at, *lower = a.at + TILE_ROWS * a.line, *next = part ? NULL : ahead->at;
        for (int64_t i = 0; i < n; i++, upper += 64, lower += 64, b += 2 * TILE_BYTES) {
            tile_read(4, upper, a.line);
            tile_read_once(6, b, 64);
            tile_multiply(0, 4, 6);
            if (wide) {
                tile_read_once(7, b + TILE_BYTES, 64);
                tile_multiply(1, 4, 7);
            }
            if (tall) {
                tile_read(5, lower, a.line);
                tile_multiply(2, 5, 6);
                if (wide) tile_multiply(3, 5, 7);
            }
            if (next && ahead->once) {
                const char *upcoming = upper + SOON * 64 + (i + SOON < n ? 0 : ahead->jump);
                for (int64_t r = 0; r < (tall ? BLOCK : TILE_ROWS); r++) _mm_prefetch(upcoming + r * a.line, _MM_HINT_T0);
            } else if (next) {
                for (int64_t r = 0; r < ahead->rows; r++) _mm_prefetch(next + r * ahead->line, _MM_HINT_T1);
                next += 64;
            }
            for (int64_t r = 0; r < rows_each && finish.rows > 0; r++) finish_row(usual, &finish);
        }
    }
    while (finish.rows > 0) finish_row(usual, &finish);
    before->rows = 0;
    tile_write(0, low, line);
    if (wide) tile_write(1, low + 64, line);
    if (tall) tile_write(2, high, line);
    if (tall && wide) tile_write(3, high + 64, line);
}

static void block_sum(int64_t rows, int64_t cols, const Sum *sum, void *sums, int64_t line, Finish *before, const Ahead *ahead) {
    if (rows > TILE_ROWS && cols > TILE_ROWS && before->usual)
        block_multiply(true, true, true, sum, sums, line, before, ahead);
    else if (rows > TILE_ROWS && cols > TILE_ROWS)
        block_multiply(true, true, false, sum, sums, line, before, ahead);
    else if (rows > TILE_ROWS)
        block_multiply(true, false, false, sum, sums, line, before, ahead);
    else if (cols > TILE_ROWS)
        block_multiply(false, true, false, sum, sums, line, before, ahead);
    else
        block_multiply(false, false, false, sum, sums, line, before, ahead);
}

/* Whether to use the skinny code for so many columns: vectors read a weight a tenth faster than tiles do, but multiply more slowly. */
static bool skinny_better(int64_t cols) { return cols <= SKINNY_COLS; }

/* Whether to stream a factor that so many columns need once. */
static bool streams_better(int64_t cols) { return cols <= BLOCK; }

#else

/* About 32 columns fill two tiles, whose rows need no transposition: 1480 -> 1770 tokens/s of 32 sequences on a Zen 5, the same on a Zen 4. */
static bool skinny_better(int64_t cols) { return cols <= SKINNY_COLS || (cols > BLOCK && cols <= 2 * BLOCK); }

static bool streams_better(int64_t cols) { return cols <= SKINNY_COLS; }

/* The same where vectors multiply: sixteen rows at a time through both parts. */
static void block_sum(int64_t rows, int64_t cols, const Sum *sum, void *sums, int64_t line, Finish *before, const Ahead *ahead) {
    finish_rest(before);
    for (int64_t r = 0; ahead->at && !ahead->once && r < ahead->rows; r++)
        for (int64_t i = 0; i < sum->n_tiles; i++) _mm_prefetch(ahead->at + r * ahead->line + i * 64, _MM_HINT_T1);
    bool contiguous = ahead->at && ahead->once && sum->a.line == sum->n_tiles * 64; /* then the next block follows in memory */
    for (int64_t i = 0; i < 2 && i * TILE_ROWS < rows; i++) {
        TileLines a = {sum->a.at + i * TILE_ROWS * sum->a.line, sum->a.line, 64},
                  more = {sum->more.at + i * TILE_ROWS * sum->more.line, sum->more.line, 64};
        const char *more_b = sum->b + sum->n_tiles * 2 * TILE_BYTES, *upcoming = contiguous ? a.at + BLOCK * a.line : NULL;
        char *c = (char *)sums + i * TILE_ROWS * line;
        if (cols > TILE_ROWS) {
            tiles_sum_wide(sum->n_tiles * TILE_K, a, sum->b, TILE_BYTES, 2 * TILE_BYTES, c, 64, line, sum->add, upcoming);
            if (sum->n_more) tiles_sum_wide(sum->more_k, more, more_b, TILE_BYTES, 2 * TILE_BYTES, c, 64, line, true, NULL);
        } else {
            tiles_sum(sum->n_tiles * TILE_K, a, sum->b, 2 * TILE_BYTES, c, line, sum->add, upcoming);
            if (sum->n_more) tiles_sum(sum->more_k, more, more_b, 2 * TILE_BYTES, c, line, true, NULL);
        }
    }
}
#endif

/* Few columns (skinny.h) are processed in parts, [part][tile][k / 2][width of the part]: all at once, or 16 at a time, with a smaller last part.
 * Returns the number of columns of a part; 0: there is no such part. */
static int64_t skinny_cols(int64_t n, int64_t part) {
    return n > SKINNY_COLS ? MAX((int64_t)0, MIN((int64_t)TILE_ROWS, n - part * TILE_ROWS)) : part == 0 ? n : 0;
}
static int64_t skinny_place(int64_t part, int64_t n_tiles) { return part * n_tiles * skinny_bytes(TILE_ROWS); }

/* Computes block j of 32 columns, or of all if they are one part, transposed: rows of A, which are read once, become the lanes of vectors. */
static void skinny_block_sum(int64_t rows, int64_t n, int64_t j, const Sum *sum, bool streams, int64_t panel_tiles, float *transposed,
                             int64_t transposed_line) {
    int64_t n_pairs = sum->n_tiles * TILE_K / 2;
    for (int64_t first = 0; first < MIN(rows, (int64_t)BLOCK); first += TILE_ROWS)
        for (int64_t i = 0, part = 2 * j, cols; i < 2 && (cols = skinny_cols(n, part)) > 0; i++, part++) {
            const char *columns = sum->b + skinny_place(part, panel_tiles);
            float *to = transposed + i * TILE_ROWS * transposed_line + first;
            skinny_sum(skinny_width(cols), n_pairs, sum->a.at + first * sum->a.line, sum->a.line, streams, columns, sum->add, to, transposed_line);
            if (sum->n_more == 0) continue;
            skinny_sum(skinny_width(cols), skinny_count(sum->more_k), sum->more.at + first * sum->more.line, sum->more.line, false,
                       columns + sum->n_tiles * skinny_bytes(cols), true, to, transposed_line);
        }
}

/* Loads all columns of B, k-tiles from.., in skinny_sum's layout, for the panel's tiles from `at` on. */
static void skinny_load(const Factor *b, int64_t from, int64_t n_tiles, char *panel, int64_t panel_tiles, int64_t at) {
    enum { ONE_BY_ONE = 4 };
    _Alignas(64) char tiles[2 * TILE_BYTES]; /* of 32 columns: of a part and the next one */
    for (int64_t tile = 0; tile < n_tiles; tile++)
        for (int64_t part = 0, cols; (cols = skinny_cols(b->n, part)) > 0; part++) {
            int64_t k = (from + tile) * TILE_K;
            char *to = panel + skinny_place(part, panel_tiles) + (at + tile) * skinny_bytes(cols);
            if (cols <= ONE_BY_ONE && b->operand.transposed) {
                for (int64_t c = 0; c < cols; c++) skinny_column(values_32(b, part * TILE_ROWS + c, k, b->k - k), cols, c, to);
                continue;
            }
            if (part % 2 == 0) pair_of_tiles(b, part * TILE_ROWS, k, tiles);
            skinny_pairs(tiles + part % 2 * TILE_BYTES, skinny_width(cols), to);
        }
}

/* Writes the first `cols` columns of a block as lines. */
static void block_transpose(const void *sums, int64_t cols, int64_t line, void *to) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j * TILE_ROWS < cols && j < 2; j++)
            transpose_16x16((const char *)sums + i * 16 * line + j * 64, line, (char *)to + j * 16 * BLOCK_LINE + i * 64, BLOCK_LINE);
}

/* Whether A can be streamed: its memory needs no conversion, up to the end of every row. */
static bool streams_possible(const Factor *a, int64_t cols) {
    return streams_better(cols) && plain(a) && !a->operand.transposed && a->k % TILE_K == 0;
}

/* ---- complete products ---- */

/* How a product is cut: tasks are panels times chunks of rows. */
typedef struct Plan {
    const Product *product;
    bool transposed; /* a and b are the transposed factors in exchanged roles, and C is written transposed */
    bool skinny;     /* transposed, and b has so few columns that they do not become tiles (skinny.h) */
    bool streams;    /* a's rows go in streams */
    Factor a, b, more_a, more_b;
    Factor down; /* the factor that makes A': in the role of B, or of A if transposed */
    int64_t m, n;
    int64_t k_tiles, more_tiles, k_cut;
    int64_t panel_cols, panels, chunk_rows, chunks;
    int64_t end; /* end of its tasks among those of all products of a call */
    int sharers; /* number of products from this one on with a few rows each, which all run with each panel that is made */
} Plan;

static Factor factor(Operand operand, float scale, int64_t n, int64_t k) { return (Factor){operand, scale, n, k}; }

static Factor factor_turned(Factor f) {
    f.operand.transposed = !f.operand.transposed;
    return f;
}

static int64_t panel_cols(int64_t n, int64_t k_tiles, int64_t limit) {
    int64_t most = PANEL_BYTES / (64 * k_tiles) / BLOCK * BLOCK;
    most = most > limit ? limit : most < BLOCK ? BLOCK : most;
    return round_up(div_up(n, div_up(n, most)), BLOCK);
}

/* The factor that is cut into rows: by default the one that is more expensive to cut into panels. */
static bool transposed_alone(const Product *product) {
    return product->a.transposed ? product->m > product->n : product->b.transposed && product->m <= SKINNY_ROWS && product->m < product->n;
}

static Plan plan_make(const Product *product, bool transposed) {
    enum { TASKS_PER_THREAD = 4, STREAMED_PER_THREAD = 16, LEAST_ROWS = 64, USUAL_ROWS = 256 };
    Plan plan = {.product = product,
                 .sharers = 1,
                 .transposed = transposed,
                 .m = product->m,
                 .n = product->n,
                 .k_tiles = div_up(product->k, TILE_K),
                 .more_tiles = div_up(product->more_k, TILE_K)};
    plan.a = factor(product->a, 1, product->m, product->k);
    plan.b = factor(product->b, 1, product->n, product->k);
    plan.more_a = factor(product->more_a, 1, product->m, product->more_k);
    plan.more_b = factor(product->more_b, product->more_alpha / product->alpha, product->n, product->more_k);
    plan.down = factor(product->down, 1, product->more_k, product->k);
    if (transposed) {
        Factor a = plan.a, more_a = plan.more_a;
        plan.a = factor_turned(plan.b);
        plan.b = factor_turned(a);
        plan.more_a = factor_turned(plan.more_b);
        plan.more_b = factor_turned(more_a);
        plan.down = factor_turned(plan.down);
        plan.m = product->n;
        plan.n = product->m;
    }
    bool flat = plan.m <= BLOCK && !plan.b.operand.transposed; /* B is used once: go along its lines as far as they reach */
    bool whole = product->k <= WHOLE_K || round_up(plan.n, BLOCK) * (plan.k_tiles + plan.more_tiles) * 64 <= PANEL_BYTES;
    int64_t threads = omp_get_max_threads(),
            most_k = flat    ? FLAT_K
                     : whole ? MAX(product->k, (int64_t)1)
                             : CUT_K,
            limit = flat ? MAX((int64_t)PANEL_FLAT, div_up(plan.n, threads)) : PANEL_COLS;
    plan.k_cut = div_up(plan.k_tiles, div_up(product->k, most_k));
    plan.panel_cols = panel_cols(plan.n, plan.k_cut + plan.more_tiles, round_up(limit, BLOCK));
    plan.panels = div_up(plan.n, plan.panel_cols);
    plan.skinny = transposed && skinny_better(plan.n) && plan.panels == 1;
    /* A weight is read once, and a panel serves all tasks, so only the duration of each thread's last task matters. */
    bool streamed = plan.transposed && !product->a.transposed && plan.k_cut == plan.k_tiles;
    plan.streams = streamed && streams_possible(&plan.a, plan.n) && !(plan.more_tiles && plan.more_a.operand.transposed);
    int64_t wanted = div_up(threads * (streamed ? STREAMED_PER_THREAD : TASKS_PER_THREAD), plan.panels), least = streamed                ? BLOCK
                                                                                                                 : plan.n <= SKINNY_ROWS ? LEAST_ROWS
                                                                                                                                         : USUAL_ROWS;
    if (plan.streams) wanted = threads * div_up(plan.m, threads * STREAM_ROWS);
    plan.chunk_rows = MAX(least, round_up(div_up(plan.m, wanted), BLOCK));
    plan.chunks = div_up(plan.m, plan.chunk_rows);
    return plan;
}

/* Sets the target of `sums` whose first line is line `row` of C from column `col` on. Assigns field by field and never copies the struct: a copy
 * with vectors would wait until all earlier stores, sums of tiles among them, are in the cache. */
static inline __attribute__((always_inline)) void finish_set(Finish *f, const Product *p, const void *sums, int64_t line, int64_t row, int64_t col,
                                                             int64_t rows, int64_t cols) {
    bool c_f32 = p->c_dtype == DT_F32, own = p->d == NULL, d_f32 = own ? c_f32 : p->d_dtype == DT_F32;
    int64_t c_line = p->ldc * (c_f32 ? 4 : 2), d_line = own ? c_line : p->ldd * (d_f32 ? 4 : 2);
    char *c = (char *)p->c + row * c_line + col * (c_f32 ? 4 : 2);
    const char *d = own ? c : (const char *)p->d + row * d_line + col * (d_f32 ? 4 : 2);
    bool past = p->nontemporal && p->beta == 0 && c_f32 && cols >= 32 && (uintptr_t)c % 64 == 0 && c_line % 64 == 0;
    f->sums = sums;
    f->d = d;
    f->c = c;
    f->line = line;
    f->c_line = c_line;
    f->d_line = d_line;
    f->rows = rows;
    f->mask = cols >= 32 ? 0xffffffffu : ((__mmask32)1 << cols) - 1;
    f->c_f32 = c_f32;
    f->d_f32 = d_f32;
    f->past = past;
    f->usual = !c_f32 && p->beta == 0 && cols >= 32;
    f->c_soon = f->d_soon = 0;
    f->alpha = p->alpha;
    f->beta = p->beta;
}

/* The same for a block of the plan's result; if the plan is transposed, the sums will be in `turned`. */
static void block_end(Finish *f, const Plan *plan, const void *sums, int64_t line, int64_t row, int64_t col, const float *transposed) {
    int64_t rows = MIN((int64_t)BLOCK, plan->m - row), cols = MIN((int64_t)BLOCK, plan->n - col);
    if (plan->transposed)
        finish_set(f, plan->product, transposed, BLOCK_LINE, col, row, cols, rows);
    else
        finish_set(f, plan->product, sums, line, row, col, rows, cols);
}

/* Rows of A that only a single tile of columns needs. They are divided into as many streams as a tile has lines, each read from its beginning to
 * its end: the hardware prefetcher follows such streams, whereas it does not follow adjacent rows read line by line. */
typedef struct Streams {
    Factor a, more_a;
    int64_t first, rows, cols;
    Sum sum;       /* of the tiles; its rows are filled in */
    char *scratch; /* for rows of the second product */
    bool skinny;   /* vectors compute the sums (skinny.h) */
    char *group;   /* GROUP_BYTES */
} Streams;

/* Rows begin, begin + step, ...: one of each stream. */
static Factor rows_apart(const Factor *f, int64_t begin, int64_t step) {
    Operand operand = f->operand;
    operand.data = element(&f->operand, begin, 0);
    operand.ld *= step;
    return (Factor){operand, f->scale, TILE_ROWS, f->k};
}

/* The same product with line `row` of C, cut every `step` values, as all of C. */
static Product line_of(const Product *p, int64_t row, int64_t step) {
    Product line = *p;
    line.c = (char *)p->c + row * p->ldc * (p->c_dtype == DT_F32 ? 4 : 2);
    line.ldc = step;
    if (p->d) line.d = (const char *)p->d + row * p->ldd * (p->d_dtype == DT_F32 ? 4 : 2);
    line.ldd = step;
    return line;
}

/* Computes all rows except the last few, which are fewer than the streams; returns their number. They are the columns of C from `to` on. Sums are
 * kept for some rows of each stream, whose results are then adjacent: (stream, row, column), or, with vectors, (column, row, stream). */
static int64_t streams_run(const Streams *s, const Product *p, int64_t to) {
    int64_t step = s->rows / TILE_ROWS, tiles = s->skinny ? 1 : div_up(s->cols, TILE_ROWS);
    int64_t sums = tiles * 64, group_line = BLOCK * sums + 64; /* not a power of two */
    _Alignas(64) float lines[BLOCK * BLOCK];
    Finish end = {0};
    for (int64_t from = 0; from < step; from += BLOCK) {
        int64_t count = MIN((int64_t)BLOCK, step - from);
        for (int64_t i = 0; i < count; i++) {
            Factor a = rows_apart(&s->a, s->first + from + i, step), more = rows_apart(&s->more_a, s->first + from + i, step);
            char *group = s->group + i * sums;
            Sum sum = s->sum;
            sum.a = (Rows){a.operand.data, 2 * a.operand.ld};
            if (sum.n_more) sum.more = rows_load(&more, 0, 0, sum.n_more, s->scratch);
            if (s->skinny)
                skinny_block_sum(TILE_ROWS, s->cols, 0, &sum, true, sum.n_tiles + sum.n_more, (float *)(void *)group, group_line / 4);
            else
                block_sum(TILE_ROWS, s->cols, &sum, group, group_line, &end, &(Ahead){.at = sum.a.at, .once = true});
        }
        for (int64_t i = 0; i < (s->skinny ? s->cols : tiles * TILE_ROWS); i++) {
            if (s->skinny) { /* a column, all streams */
                Product line = line_of(p, i, step);
                block_transpose(s->group + i * group_line, TILE_ROWS, sums, lines);
                finish_set(&end, &line, lines, BLOCK_LINE, 0, to + from, TILE_ROWS, count);
            } else { /* a stream, a tile of columns */
                int64_t col = i / TILE_ROWS * TILE_ROWS, stream = i % TILE_ROWS;
                block_transpose(s->group + stream * group_line + col * 4, TILE_ROWS, sums, lines);
                finish_set(&end, p, lines, BLOCK_LINE, col, to + from + stream * step, MIN(s->cols - col, (int64_t)TILE_ROWS), count);
            }
            finish_rest(&end);
        }
    }
    return TILE_ROWS * step;
}

/* Prefetch distance: so many rows and columns of the plan's result further on. */
static void soon_set(Finish *f, const Plan *plan, int64_t rows, int64_t cols) {
    int64_t down = plan->transposed ? cols : rows, right = plan->transposed ? rows : cols;
    f->c_soon = down * f->c_line + right * (f->c_f32 ? 4 : 2);
    f->d_soon = down * f->d_line + right * (f->d_f32 ? 4 : 2);
}

/* A thread's memory: a panel of B, rows of both A's; sums that wait for the next cut of a long sum, or, block by block, for the next piece of 32
 * rows; the factor that makes A', or, if transposed, A' while it is made. */
typedef struct Work {
    char *panel, *rows, *more_rows;
    float *partial, *blocks;
    char *down;
} Work;

static Work work_new(const Plan *plan) {
    bool cut = plan->k_cut < plan->k_tiles;
    int64_t rows_bytes = BLOCK * (ROWS_LINE(plan->k_cut) + ROWS_LINE(plan->more_tiles)), rank = round_up(plan->product->more_k, BLOCK);
    int64_t down_bytes = !plan->product->down.data ? 0 : plan->transposed ? rank * plan->panel_cols * 2 : rank * plan->k_tiles * 64;
    char *rows = cpu_scratch(CPU_TILE_A, (size_t)(rows_bytes + down_bytes));
    int64_t kept = cut             ? plan->sharers * plan->chunk_rows * plan->panel_cols
                   : plan->streams ? GROUP_BYTES / (int64_t)sizeof(float)
                                   : (plan->panel_cols / BLOCK + 1) * BLOCK * BLOCK;
    float *sums = cpu_scratch(CPU_TILE_C, (size_t)kept * sizeof *sums);
    return (Work){.down = rows + rows_bytes,
                  .panel = cpu_scratch(CPU_TILE_B, (size_t)(plan->panel_cols * (plan->k_cut + plan->more_tiles) * 64)),
                  .rows = rows,
                  .more_rows = rows + BLOCK * ROWS_LINE(plan->k_cut),
                  .partial = cut ? sums : NULL,
                  .blocks = cut ? NULL : sums};
}

/* ---- computing A' during the product ---- */

/* Writes 32 x 32 sums as bf16 times down_alpha, lines `line` bytes apart, with zeros after `cols`. */
static void low_round(const Product *p, const float *sums, int64_t rows, int64_t cols, char *to, int64_t line) {
    __mmask32 mask = cols >= 32 ? 0xffffffffu : ((__mmask32)1 << cols) - 1;
    __m512 alpha = _mm512_set1_ps(p->down_alpha);
    for (int64_t r = 0; r < rows; r++, sums += BLOCK, to += line) {
        __m512 low = _mm512_mul_ps(_mm512_load_ps(sums), alpha), high = _mm512_mul_ps(_mm512_load_ps(sums + 16), alpha);
        _mm512_storeu_si512(to, _mm512_maskz_mov_epi16(mask, (__m512i)_mm512_cvtne2ps_pbh(high, low)));
    }
}

/* Computes 32 rows of A' from `row` on, from the same rows of A, which are thus read once. One of the tasks that need them writes them to memory. */
static Rows low_rows(const Plan *plan, const Work *work, int64_t row, Rows a, Finish *before, bool write) {
    const Product *p = plan->product;
    int64_t line = ROWS_LINE(plan->more_tiles), rows = MIN((int64_t)BLOCK, plan->m - row);
    _Alignas(64) float sums[BLOCK * BLOCK];
    for (int64_t j = 0; j * BLOCK < p->more_k; j++) {
        Sum sum = {.a = a, .b = work->down + j * plan->k_tiles * 2 * TILE_BYTES, .n_tiles = plan->k_tiles};
        block_sum(rows, p->more_k - j * BLOCK, &sum, sums, BLOCK_LINE, before, &(Ahead){0});
        low_round(p, sums, rows, p->more_k - j * BLOCK, work->more_rows + j * 64, line);
    }
    for (int64_t r = 0; write && r < rows; r++)
        memcpy(p->low + (row + r) * p->more_k, work->more_rows + r * line, (size_t)p->more_k * sizeof *p->low);
    return (Rows){work->more_rows, line};
}

/* Few columns: all of A' from the columns that were A before transposition, [column][rank, in whole blocks]; then as columns after those. */
static int64_t skinny_low_line(const Plan *plan) { return round_up(plan->product->more_k, BLOCK); }

static void low_skinny(const Plan *plan, const Work *work) {
    int64_t rank = plan->product->more_k, line = skinny_low_line(plan), panel_tiles = plan->k_tiles + plan->more_tiles;
    _Alignas(64) float sums[BLOCK * BLOCK];
    for (int64_t row = 0; row < rank; row += BLOCK) {
        Sum sum = {.a = rows_load(&plan->down, row, 0, plan->k_tiles, work->rows), .b = work->panel, .n_tiles = plan->k_tiles};
        for (int64_t j = 0; j * BLOCK < plan->n; j++) {
            skinny_block_sum(rank - row, plan->n, j, &sum, false, panel_tiles, sums, BLOCK);
            low_round(plan->product, sums, MIN((int64_t)BLOCK, plan->n - j * BLOCK), rank - row, work->down + (j * BLOCK * line + row) * 2, line * 2);
        }
    }
    Factor made = factor(operand_of(work->down, DT_BF16, line, true), 1, plan->n, rank);
    skinny_load(&made, 0, plan->more_tiles, work->panel, panel_tiles, plan->k_tiles);
}

/* Transposed: all of A', transposed, from the panel of the factor that was A before transposition; into the second part of the panel. */
static void low_turned(const Plan *plan, const Work *work, int64_t cols, int64_t stride) {
    const Product *p = plan->product;
    _Alignas(64) float sums[BLOCK * BLOCK];
    Finish none = {0};
    for (int64_t row = 0; row < p->more_k; row += BLOCK) {
        Sum sum = {.a = rows_load(&plan->down, row, 0, plan->k_tiles, work->rows), .n_tiles = plan->k_tiles};
        for (int64_t col = 0; col < cols; col += BLOCK) {
            sum.b = work->panel + col / BLOCK * stride;
            block_sum(p->more_k - row, plan->n - col, &sum, sums, BLOCK_LINE, &none, &(Ahead){0});
            low_round(p, sums, MIN((int64_t)BLOCK, p->more_k - row), plan->n - col, work->down + (row * cols + col) * 2, cols * 2);
        }
    }
    Factor made = factor(operand_of(work->down, DT_BF16, cols, false), 1, plan->n, p->more_k);
    panel_load(&made, 0, cols, 0, plan->more_tiles, work->panel + plan->k_tiles * 2 * TILE_BYTES, stride);
}

static void low_turned_write(const Plan *plan, const Work *work, int64_t cols) {
    const uint16_t *transposed = (const uint16_t *)work->down;
    int64_t rank = plan->product->more_k;
    for (int64_t col = 0; col < plan->n; col++)
        for (int64_t k = 0; k < rank; k++)
            plan->product->low[col * rank + k] = plan->skinny ? transposed[col * skinny_low_line(plan) + k] : transposed[k * cols + col];
}

/* ---- tasks ---- */

/* Computes those of the rows first.. that can be streamed; returns their number. */
static int64_t task_streams(const Plan *plan, const Work *work, int64_t first, int64_t rows, int64_t n_tiles, int64_t n_more) {
    Streams streams = {.a = plan->a,
                       .more_a = plan->more_a,
                       .first = first,
                       .rows = rows,
                       .cols = plan->n,
                       .sum = {.b = work->panel, .n_tiles = n_tiles, .n_more = n_more, .more_k = plan->product->more_k},
                       .scratch = work->more_rows,
                       .skinny = plan->skinny,
                       .group = (char *)work->blocks};
    return streams_run(&streams, plan->product, first);
}

/* Computes rows begin..stop-1 with few columns, all of them; k-tiles from... */
static void skinny_run(const Plan *plan, const Work *work, int64_t begin, int64_t stop, int64_t cols, int64_t from, int64_t n_tiles) {
    bool last = from + n_tiles == plan->k_tiles;
    int64_t n_more = last ? plan->more_tiles : 0;
    _Alignas(64) float transposed[BLOCK * BLOCK];
    if (plan->streams) begin += task_streams(plan, work, begin, stop - begin, n_tiles, n_more);
    for (int64_t row = begin; row < stop; row += BLOCK) {
        Sum sum = {.a = rows_load(&plan->a, row, from, n_tiles, work->rows),
                   .b = work->panel,
                   .n_tiles = n_tiles,
                   .n_more = n_more,
                   .more_k = plan->product->more_k,
                   .add = from > 0};
        if (n_more) sum.more = rows_load(&plan->more_a, row, 0, n_more, work->more_rows);
        for (int64_t j = 0; j < cols / BLOCK; j++) {
            float *sums = work->partial ? work->partial + (row - begin) * cols + j * BLOCK * BLOCK : transposed;
            skinny_block_sum(plan->m - row, plan->n, j, &sum, false, n_tiles + n_more, sums, BLOCK);
            if (!last) continue;
            Finish end;
            block_end(&end, plan, NULL, 0, row, j * BLOCK, sums);
            finish_rest(&end);
        }
    }
}

/* Computes rows begin..stop-1 with the panel of `cols` columns from `col` on, k-tiles from...: 32 rows at a time, and of them a piece that fits
 * the first-level cache. */
static void rows_run(const Plan *plan, const Work *work, int64_t begin, int64_t stop, int64_t col, int64_t cols, int64_t from, int64_t n_tiles) {
    int64_t n_more = from + n_tiles == plan->k_tiles ? plan->more_tiles : 0, stride = (n_tiles + n_more) * 2 * TILE_BYTES, n_blocks = cols / BLOCK;
    if (plan->streams) begin += task_streams(plan, work, begin, stop - begin, n_tiles, n_more);
    int64_t pieces = n_blocks > 1 ? div_up(n_tiles * TILE_K, PIECE_K) : 1, piece = div_up(n_tiles, pieces);
    int64_t slots = pieces > 1 ? n_blocks + 1 : 2, slot = 0, turn = 0; /* slots for sums: those of 32 rows, or as few as possible */
    _Alignas(64) float transposed[2][BLOCK * BLOCK];
    Finish ends[2] = {0}; /* of this block, and of the one before */
    for (int64_t row = begin; row < stop; row += BLOCK, slot += n_blocks) {
        Rows rows = rows_load(&plan->a, row, from, n_tiles, work->rows), more = {0};
        bool lie = rows_lie(&plan->a, row, from, n_tiles), announce = row + BLOCK < plan->m && rows_lie(&plan->a, row + BLOCK, from, n_tiles);
        if (n_more && plan->product->down.data && !plan->transposed)
            more = low_rows(plan, work, row, rows, &ends[turn ^ 1], col == 0);
        else if (n_more)
            more = rows_load(&plan->more_a, row, 0, n_more, work->more_rows);
        Ahead ahead = {.line = rows.line, .rows = div_up(BLOCK, n_blocks), .once = n_blocks == 1 && lie, .jump = BLOCK * rows.line - n_tiles * 64};
        for (int64_t at = 0; at < n_tiles; at += piece) {
            bool whole = at + piece >= n_tiles, last = whole && from + n_tiles == plan->k_tiles;
            Sum sum = {.a = {rows.at + at * 64, rows.line},
                       .more = more,
                       .n_tiles = MIN(piece, n_tiles - at),
                       .n_more = whole ? n_more : 0,
                       .more_k = plan->product->more_k,
                       .add = from + at > 0};
            const char *next = whole ? announce ? rows.at + BLOCK * rows.line : NULL : lie ? rows.at + (at + piece) * 64 : NULL;
            for (int64_t j = 0; j < n_blocks; j++, turn ^= 1) {
                float *sums = work->partial ? work->partial + (row - begin) * cols + j * BLOCK : work->blocks + (slot + j) % slots * BLOCK * BLOCK;
                int64_t line = work->partial ? cols * (int64_t)sizeof *sums : BLOCK_LINE, later = j + 2;
                Finish *end = &ends[turn], *before = &ends[turn ^ 1];
                if (last) {
                    block_end(end, plan, sums, line, row, col + j * BLOCK, transposed[turn]);
                    soon_set(end, plan, later / n_blocks * BLOCK, (later % n_blocks - j) * BLOCK);
                }
                sum.b = work->panel + j * stride + at * 2 * TILE_BYTES;
                ahead.at = next && (j + 1) * ahead.rows <= BLOCK ? next + j * ahead.rows * rows.line : NULL;
                block_sum(plan->m - row, plan->n - col - j * BLOCK, &sum, sums, line, before, &ahead);
                if (last && plan->transposed) block_transpose(sums, plan->n - col - j * BLOCK, line, transposed[turn]);
            }
        }
    }
    finish_rest(&ends[turn ^ 1]);
}

/* Makes the panel of columns col.. and k-tiles from.., followed by the second product's part; `first`: the thread's first panel of this product. */
static void panel_make(const Plan *plan, const Work *work, int64_t col, int64_t cols, int64_t from, int64_t n_tiles, int64_t n_more, bool first) {
    bool down = plan->product->down.data != NULL;
    int64_t stride = (n_tiles + n_more) * 2 * TILE_BYTES;
    if (plan->skinny) {
        skinny_load(&plan->b, from, n_tiles, work->panel, n_tiles + n_more, 0);
        if (down)
            low_skinny(plan, work);
        else
            skinny_load(&plan->more_b, 0, n_more, work->panel, n_tiles + n_more, n_tiles);
        return;
    }
    panel_load(&plan->b, col, cols, from, n_tiles, work->panel, stride);
    if (down && plan->transposed)
        low_turned(plan, work, cols, stride);
    else
        panel_load(&plan->more_b, col, cols, 0, n_more, work->panel + n_tiles * 2 * TILE_BYTES, stride);
    if (down && !plan->transposed && first)
        panel_load(&plan->down, 0, round_up(plan->product->more_k, BLOCK), 0, plan->k_tiles, work->down, plan->k_tiles * 2 * TILE_BYTES);
}

static void task_run(const Plan *plan, const Work *work, int64_t task, int64_t *have) {
    int64_t number = task / plan->chunks, begin = task % plan->chunks * plan->chunk_rows;
    int64_t col = number * plan->panel_cols, cols = MIN(plan->panel_cols, round_up(plan->n - col, BLOCK));
    for (int64_t from = 0; from < plan->k_tiles; from += plan->k_cut) {
        int64_t n_tiles = MIN(plan->k_cut, plan->k_tiles - from), n_more = from + n_tiles == plan->k_tiles ? plan->more_tiles : 0;
        if (work->partial || *have != number) panel_make(plan, work, col, cols, from, n_tiles, n_more, *have < 0);
        for (int i = 0; i < plan->sharers; i++) {
            Work its = *work;
            if (its.partial) its.partial += i * plan->chunk_rows * plan->panel_cols;
            int64_t end = MIN(plan[i].m, begin + plan->chunk_rows);
            if (plan->skinny)
                skinny_run(plan, &its, begin, end, cols, from, n_tiles);
            else
                rows_run(plan + i, &its, begin, end, col, cols, from, n_tiles);
        }
    }
    if (plan->product->down.data && plan->transposed && task == 0) low_turned_write(plan, work, cols);
    *have = number;
}

/* If a sum is cut, A' would be computed again for every cut; if the rank is high, for every panel. */
static bool makes_more(const Product *product) {
    enum { HIGHEST = 64 };
    Plan plan = plan_make(product, transposed_alone(product));
    return product->more_k <= HIGHEST && !product->a.transposed && plan.k_cut == plan.k_tiles && (!plan.transposed || plan.panels == 1);
}

/* Copies the factor to scratch memory as rows that run along the sum. */
static Factor rows_made(const Factor *a, int64_t n_tiles, bool parallel) {
    int64_t line = ROWS_LINE(n_tiles), blocks = div_up(a->n, BLOCK);
    char *rows = cpu_scratch(CPU_TRANSPOSED, (size_t)(blocks * BLOCK * line));
    if (cpu_planning()) return *a;
#pragma omp parallel for if (parallel)
    for (int64_t i = 0; i < blocks; i++) rows_load(a, i * BLOCK, 0, n_tiles, rows + i * BLOCK * line);
    return factor(operand_of(rows, DT_BF16, line / 2, false), 1, blocks * BLOCK, n_tiles * TILE_K);
}

/* Whether the only panel of B, and the thread's other memory, serve the other product too. */
static bool panel_shared(const Plan *plan, const Plan *other) {
    const Factor *b = &plan->b, *its = &other->b;
    bool same = operands_same(&b->operand, &its->operand) && plan->skinny == other->skinny;
    bool whole = plan->panels == 1 && plan->k_cut == plan->k_tiles && plan->more_tiles == 0 && other->more_tiles == 0;
    return same && whole && b->n == its->n && b->k == its->k && plan->panel_cols == other->panel_cols && plan->k_cut == other->k_cut;
}

/* Runs the tasks of all products in a row, so that a thread proceeds to the next product while another still works. */
static void plans_run(const Plan *plans, const WorkQueue *queue, bool parallel) {
#pragma omp parallel if (parallel)
    {
        const Plan *plan = NULL;
        Work work;
        int64_t have = -1, at = 0; /* the current panel; as work_queue_next */
        tiles_begin();
        for (int64_t task; (task = work_queue_next(queue, &at)) >= 0;) {
            const Plan *its = plans;
            while (task >= its->end) its++;
            if (its != plan && !(plan && panel_shared(plan, its))) {
                work = work_new(its);
                have = -1;
            }
            plan = its;
            task_run(plan, &work, task - (plan == plans ? 0 : plan[-1].end), &have);
        }
        tiles_end();
        _mm_sfence(); /* makes writes that bypassed the caches visible to all threads */
    }
}

/* The factor that gradients of weights have in common, the first or the second: 1 or 2; else 0. */
static int factor_shared(const Product *products, int n) {
    bool first = true, second = true;
    for (int i = 0; i < n; i++) {
        const Product *p = &products[i];
        bool alike = p->a.transposed && !p->b.transposed && p->k == products->k && p->more_k == 0;
        first &= alike && p->m == products->m && operands_same(&p->a, &products->a);
        second &= alike && p->n == products->n && operands_same(&p->b, &products->b);
    }
    return first ? 1 : second ? 2 : 0;
}

static void tile_product_run(const Product *products, int n) {
    Plan plans[PRODUCTS_MOST];
    bool parallel = false, made = false, flat = true;
    int64_t end = 0;
    for (int i = 0; i < n; i++) {
        made |= products[i].a.transposed;
        flat &= products[i].m <= BLOCK;
    }
    int shared = made && n > 1 ? factor_shared(products, n) : 0;
    flat &= shared == 2;            /* gradients of LoRA's factors A: the wide factor is then read once */
    if (made && n > 1 && !shared) { /* the memory for converted rows serves one product only */
        for (int i = 0; i < n; i++) tile_product_run(&products[i], 1);
        return;
    }
    for (int i = 0; i < n; i++) {
        plans[i] = plan_make(&products[i], shared ? shared == 2 && !flat : transposed_alone(&products[i]));
        if (i == 0 || !flat) end += plans[i].panels * plans[i].chunks;
        plans[i].end = end;
        parallel |= 2.0 * (double)products[i].m * (double)products[i].n * (double)products[i].k > PRODUCT_SERIAL ||
                    products[i].n * products[i].k > SERIAL_WEIGHT;
    }
    if (flat) plans->sharers = n;
    WorkQueue queue = work_queue_new(end);
    parallel &= queue.n > 1;
    if (plans->a.operand.transposed && (plans->panels > 1 || n > 1) && plans->m > BLOCK) { /* otherwise it would be transposed for every panel */
        plans->a = rows_made(&plans->a, plans->k_tiles, parallel);
        for (int i = 1; i < n; i++) plans[i].a = plans->a;
    }
    for (int i = 0; cpu_planning() && i < n; i++) work_new(&plans[i]);
    if (!cpu_planning()) plans_run(plans, &queue, parallel);
}

/* ---- tile by tile ---- */

static int64_t row_tile(void) { return BLOCK; }
static int64_t col_tile(int64_t n, int64_t k) { return panel_cols(n, div_up(k, TILE_K), STREAM_ROWS); }

/* With rows of a single tile, the rows are the factor that is converted to tiles. */
static bool tile_turned(const Product *product) { return product->m <= BLOCK && product->b.transposed; }

static void tile_product_column(const Product *product, int64_t col, int64_t cols) {
    int64_t k_tiles = div_up(product->k, TILE_K), width = tile_turned(product) ? BLOCK : round_up(cols, BLOCK);
    char *panel = cpu_scratch(CPU_TILE_B, (size_t)(width * k_tiles * 64));
    if (cpu_planning()) return;
    Factor a = factor(product->a, 1, product->m, product->k), b = factor(product->b, 1, product->n, product->k);
    if (tile_turned(product)) {
        a = factor_turned(a);
        if (skinny_better(product->m))
            skinny_load(&a, 0, k_tiles, panel, k_tiles, 0);
        else
            panel_load(&a, 0, BLOCK, 0, k_tiles, panel, 0);
    } else
        panel_load(&b, col, width, 0, k_tiles, panel, k_tiles * 2 * TILE_BYTES);
}

static void tile_product_tile(const Product *product, int64_t row, int64_t rows, int64_t col, int64_t cols, float *c) {
    bool transposed = tile_turned(product);
    int64_t k_tiles = div_up(product->k, TILE_K), stride = transposed ? 0 : k_tiles * 2 * TILE_BYTES;
    Factor a = transposed ? factor_turned(factor(product->b, 1, product->n, product->k)) : factor(product->a, 1, product->m, product->k);
    const char *panel = cpu_scratch(CPU_TILE_B, 0);
    bool streams = transposed && streams_possible(&a, product->m);
    char *scratch = cpu_scratch(CPU_TILE_A, (size_t)MAX(streams ? GROUP_BYTES : 0, BLOCK * ROWS_LINE(k_tiles)));
    if (cpu_planning()) return;
    Product whole = {.c = c, .c_dtype = DT_F32, .ldc = cols, .alpha = 1};
    _Alignas(64) float blocks[2][BLOCK * BLOCK], result[BLOCK * BLOCK];
    Sum sum = {.n_tiles = k_tiles};
    if (!transposed) sum.a = rows_load(&a, row, 0, k_tiles, scratch);
    Finish before = {0};
    tiles_begin();
    int64_t at = 0;
    if (streams) {
        sum.b = panel;
        Streams s = {.a = a, .first = col, .rows = cols, .cols = rows, .sum = sum, .skinny = skinny_better(product->m), .group = scratch};
        at = streams_run(&s, &whole, 0);
    }
    for (int turn = 0; at < cols; at += BLOCK, turn ^= 1) {
        float *sums = blocks[turn];
        Ahead ahead = {.rows = BLOCK};
        if (transposed) {
            sum.a = rows_load(&a, col + at, 0, k_tiles, scratch);
            ahead.line = sum.a.line;
            ahead.once = rows_lie(&a, col + at, 0, k_tiles);
            ahead.jump = BLOCK * sum.a.line - k_tiles * 64;
            if (rows_lie(&a, col + at + BLOCK, 0, k_tiles)) ahead.at = sum.a.at + BLOCK * sum.a.line;
        }
        sum.b = panel + at / BLOCK * stride;
        if (transposed && skinny_better(product->m)) {
            skinny_block_sum(cols - at, rows, 0, &sum, false, k_tiles, result, BLOCK);
            finish_set(&before, &whole, result, BLOCK_LINE, 0, at, rows, MIN((int64_t)BLOCK, cols - at));
            finish_rest(&before);
            continue;
        }
        block_sum(transposed ? BLOCK : rows, transposed ? rows : BLOCK, &sum, sums, BLOCK_LINE, &before, &ahead);
        finish_set(&before, &whole, sums, BLOCK_LINE, 0, at, rows, MIN((int64_t)BLOCK, cols - at));
        if (!transposed) continue;
        block_transpose(sums, rows, BLOCK_LINE, result);
        before.sums = (const char *)result;
        finish_rest(&before);
    }
    finish_rest(&before);
    tiles_end();
}

const CpuProducts ISA_FN(tile_products) = {tile_product_run, row_tile, col_tile, tile_product_column, tile_product_tile, makes_more};
