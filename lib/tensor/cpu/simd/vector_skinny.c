/* SPDX-License-Identifier: Apache-2.0 */
/* Products in f32 of a weight with a few rows, as in decoding: the weight is read from memory once, as it is stored (vector_skinny.h). Every
 * element is the same chain of multiply-adds in order of k as in vector_product.c, so the bits depend neither on which of the two computes it nor
 * on the other rows. */
#include "lib/tensor/cpu/simd/vector_skinny.h"
#include "lib/tensor/cpu/work_queue.h"
#include "lib/tensor/cpu/simd/vector_product.h"

#include <string.h>

enum { SKINNY_LIMIT = VEC_REGISTERS == 32 ? 64 : 32 }; /* rows of a product: more are faster with panels, which are transposed once */

/* A thread's memory: both A's in skinny_sum's layout, one part of the rows after another; lines that cannot be read in place. */
typedef struct Work {
    float *rows, *more_rows, *lines;
} Work;

static int64_t round_up(int64_t count, int64_t size) { return blocks_of(count, size) * size; }

/* Rows that are summed together: parts of about the same size. */
static int64_t part_rows(int64_t m) { return blocks_of(m, blocks_of(m, SKINNY_MOST)); }

static int64_t padded_rows(int64_t m) { return blocks_of(m, part_rows(m)) * skinny_width(part_rows(m)); }

/* Memory for each of n products. */
static Work work_new(const Product *products, int n) {
    int64_t rows = 0, more = 0, longest = 0;
    for (int i = 0; i < n; i++) {
        const Product *p = &products[i];
        rows = MAX(rows, padded_rows(p->m) * p->k);
        more = MAX(more, padded_rows(p->m) * p->more_k);
        longest = MAX(longest, round_up(MAX(p->k, p->more_k), TRANSPOSE_WORDS));
    }
    Work work = {.rows = cpu_scratch(CPU_TILE_A, (size_t)(rows + more) * sizeof(float)),
                 .lines = cpu_scratch(CPU_TILE_B, (size_t)(SKINNY_COLS * longest) * sizeof(float))};
    work.more_rows = work.rows + rows;
    return work;
}

/* Loads all rows of A, [k][skinny_width] for each part. */
static void rows_load(const Operand *a, int64_t m, int64_t k, float *to) {
    enum { AT_ONCE = 4 };
    float buffer[AT_ONCE * RUN];
    int64_t step = m > 0 ? part_rows(m) : 1, width = skinny_width(step);
    for (int64_t row = 0; row < m; row += step, to += width * k)
        for (int64_t r = 0; r < width; r += AT_ONCE)
            for (RUNS(at, n, 0, k)) {
                int64_t rows = MIN((int64_t)AT_ONCE, width - r), there = MAX((int64_t)0, MIN(rows, MIN(step, m - row) - r));
                for (int64_t i = 0; i < there; i++) line_load(a, row + r + i, at, n, n, 1, buffer + i * RUN);
                memset(buffer + there * RUN, 0, (size_t)((rows - there) * RUN) * sizeof *buffer);
                transpose(rows, n, buffer, RUN, to + at * width + r, width);
            }
}

/* SKINNY_COLS lines of a weight from column `col` of C on: in place, or in f32 times `scale` padded with zeros. */
typedef struct Weight {
    const char *at;
    int64_t line;
    DType dtype;
} Weight;

static Weight weight_lines(const Operand *b, float scale, int64_t col, int64_t n, int64_t k, float *memory) {
    int64_t size = (int64_t)dtype_size(b->dtype), padded = round_up(k, TRANSPOSE_WORDS);
    if (col + SKINNY_COLS <= n && k % piece_values(b->dtype) == 0 && scale == 1)
        return (Weight){(const char *)b->data + col * b->ld * size, b->ld * size, b->dtype};
    memset(memory, 0, (size_t)(SKINNY_COLS * padded) * sizeof *memory);
    for (int64_t i = 0; i < MIN((int64_t)SKINNY_COLS, n - col); i++) line_load(b, col + i, 0, k, k, scale, memory + i * padded);
    return (Weight){(const char *)memory, padded * (int64_t)sizeof(float), DT_F32};
}

/* Adds the products of all rows with SKINNY_COLS lines of a weight from column `col` of C on. a: as rows_load writes it. */
static void lines_sum(const Operand *b, float scale, int64_t col, const Product *p, int64_t k, const float *a, float *memory, float *sums) {
    int64_t step = part_rows(p->m), width = skinny_width(step);
    Weight weight = weight_lines(b, scale, col, p->n, k, memory);
    for (int64_t i = 0; i < blocks_of(p->m, step); i++)
        skinny_sum(width, weight.dtype, k, a + i * width * k, weight.at, weight.line, weight.at + SKINNY_COLS * weight.line,
                   sums + i * width * SKINNY_COLS, SKINNY_COLS);
}

/* ---- codes that become the lanes of a vector ---- */

static inline Vec rounded_to_bf16(Vec value) {
    VecBits bits = (VecBits)value, nan = (bits & 0x7fffffff) > 0x7f800000, rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (Vec)(((nan & (bits | 0x400000)) | (~nan & rounded)) & (int32_t)0xffff0000);
}

/* The scales of a block of each of VEC_FLOATS lines. */
static inline Vec block_scales(const char *b, int64_t line) {
    enum { AHEAD = 512 };
    int32_t scales[VEC_FLOATS];
    for (int i = 0; i < VEC_FLOATS; i++, b += line) {
        uint16_t half;
        memcpy(&half, b, sizeof half);
        scales[i] = half;
        __builtin_prefetch(b + AHEAD);
    }
    VecBits bits;
    memcpy(&bits, scales, sizeof bits);
    return halves_widened(bits);
}

/* q8_0, and q4_0 (`halves`): a word of a line has four codes, which are widened as bf16 is, so that no value goes through memory. Adds the products
 * of `rows` rows with `vectors` vectors of lines of `depth` elements, whole blocks. */
static inline __attribute__((always_inline)) void blocks_multiply(const int rows, const int vectors, const bool halves, const bool rounds,
                                                                  int64_t depth, const float *a, const char *b, int64_t line, float *sums) {
    enum { BLOCK = 32, SCALE = 2 };
    const int bytes = halves ? BLOCK / 2 : BLOCK, codes = halves ? BLOCK : TRANSPOSE_BYTES; /* codes of a piece */
    Vec sum[SKINNY_MOST][2], scale[2];
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[r][v] = *(const VecInMemory *)(sums + r * SKINNY_COLS + v * VEC_FLOATS);
    for (; depth > 0; depth -= BLOCK, b += SCALE + bytes) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) scale[v] = block_scales(b + v * VEC_FLOATS * line, line);
        for (int piece = 0; piece < bytes; piece += TRANSPOSE_BYTES) {
            VecBits words[2][TRANSPOSE_WORDS];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                TransposeLines lines = transpose_lines(b + SCALE + piece + v * VEC_FLOATS * line, line);
                transpose_piece(&lines, words[v]);
            }
#pragma GCC unroll 32
            for (int k = 0; k < codes; k++, a += rows)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) {
                    VecBits word = words[v][k % TRANSPOSE_BYTES / 4];
                    VecBits code = halves ? ((word >> (k % 4 * 8 + k / 16 * 4)) & 15) - 8 : word << (24 - k % 4 * 8) >> 24;
                    Vec value = __builtin_convertvector(code, Vec) * scale[v];
                    if (rounds) value = rounded_to_bf16(value);
#pragma GCC unroll 24
                    for (int r = 0; r < rows; r++) sum[r][v] += a[r] * value;
                }
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) *(VecInMemory *)(sums + r * SKINNY_COLS + v * VEC_FLOATS) = sum[r][v];
}

/* The same for SKINNY_COLS lines. */
static inline __attribute__((always_inline)) void blocks_lines(const int rows, const bool halves, const bool rounds, int64_t depth, const float *a,
                                                               const char *b, int64_t line, float *sums) {
    const int vectors = rows <= SKINNY_TWO ? 2 : 1;
    for (int v = 0; v < 2; v += vectors)
        blocks_multiply(rows, vectors, halves, rounds, depth, a, b + v * VEC_FLOATS * line, line, sums + v * VEC_FLOATS);
}

#define BLOCKS_ROWS(n) \
    case n: blocks_lines(n, halves, rounds, depth, a, b, line, sums); return true
static inline __attribute__((always_inline)) bool blocks_rows(int64_t rows, const bool halves, const bool rounds, int64_t depth, const float *a,
                                                              const char *b, int64_t line, float *sums) {
    switch (rows) {
        BLOCKS_ROWS(1);
        BLOCKS_ROWS(2);
        BLOCKS_ROWS(4);
        BLOCKS_ROWS(8);
    default: return false;
    }
}
#undef BLOCKS_ROWS

/* Adds the products of all rows with SKINNY_COLS lines from column `col` on, if the format and the numbers of rows and lines allow it. */
static bool blocks_sum(const Operand *b, float scale, int64_t col, const Product *p, int64_t k, const float *a, float *sums) {
    int64_t step = part_rows(p->m), first = b->first + col * b->ld;
    bool halves = b->dtype == DT_Q4_0, possible = step == p->m && scale == 1 && col + SKINNY_COLS <= p->n && (b->dtype == DT_Q8_0 || halves);
    if (!possible) return false;
    const char *at = (const char *)b->data + dtype_bytes(b->dtype, first);
    int64_t line = (int64_t)dtype_bytes(b->dtype, b->ld), width = skinny_width(step);
    if (halves) return b->rounds ? blocks_rows(width, true, true, k, a, at, line, sums) : blocks_rows(width, true, false, k, a, at, line, sums);
    return b->rounds ? blocks_rows(width, false, true, k, a, at, line, sums) : blocks_rows(width, false, false, k, a, at, line, sums);
}

/* The same for a quantised weight, whose values are made piece by piece, and stay in the first-level cache until all rows have used them. */
static void codes_sum(const Operand *b, float scale, int64_t col, const Product *p, int64_t k, const float *a, float *sums) {
    enum { PIECE = 4096 / SKINNY_COLS };
    if (blocks_sum(b, scale, col, p, k, a, sums)) return;
    _Alignas(64) float lines[SKINNY_COLS * PIECE];
    int64_t step = part_rows(p->m), width = skinny_width(step), cols = MIN((int64_t)SKINNY_COLS, p->n - col);
    memset(lines + cols * PIECE, 0, (size_t)((SKINNY_COLS - cols) * PIECE) * sizeof *lines);
    for (int64_t at = 0; at < k; at += PIECE) {
        int64_t depth = MIN((int64_t)PIECE, k - at);
        for (int64_t i = 0; i < cols; i++) line_load(b, col + i, at, depth, round_up(depth, TRANSPOSE_WORDS), scale, lines + i * PIECE);
        for (int64_t i = 0; i < blocks_of(p->m, step); i++)
            skinny_sum(width, DT_F32, depth, a + (i * k + at) * width, (const char *)lines, PIECE * (int64_t)sizeof *lines, NULL,
                       sums + i * width * SKINNY_COLS, SKINNY_COLS);
    }
}

/* ---- products ---- */

/* Computes columns col.. of C, at most SKINNY_COLS. */
static void task_run(const Product *p, const Work *work, int64_t col) {
    _Alignas(64) float sums[(SKINNY_LIMIT + SKINNY_MOST) * SKINNY_COLS] = {0}; /* a part has more lines than its rows */
    int64_t step = part_rows(p->m), width = skinny_width(step), cols = MIN((int64_t)SKINNY_COLS, p->n - col);
    Tensor c = {.dtype = p->c_dtype, .elements = p->c};
    Operand d = p->d ? operand_of(p->d, p->d_dtype, p->ldd, false) : operand_of(p->c, p->c_dtype, p->ldc, false);
    for (int64_t r = 0; p->beta != 0 && r < p->m; r++) line_load(&d, r, col, cols, cols, p->beta, sums + (r / step * width + r % step) * SKINNY_COLS);
    for (int part = 0; part < (p->more_k > 0 ? 2 : 1); part++) {
        int64_t k = part ? p->more_k : p->k;
        const float *a = part ? work->more_rows : work->rows;
        const Operand *b = part ? &p->more_b : &p->b;
        float scale = part ? p->more_alpha : p->alpha;
        if (dtype_is_quantised(b->dtype))
            codes_sum(b, scale, col, p, k, a, sums);
        else
            lines_sum(b, scale, col, p, k, a, work->lines, sums);
    }
    for (int64_t r = 0; r < p->m; r++) run_write(&c, r * p->ldc + col, cols, sums + (r / step * width + r % step) * SKINNY_COLS, 0);
}

bool ISA_FN(skinny_fits)(const Product *p) {
    return p->m <= SKINNY_LIMIT && !p->a.transposed && p->b.transposed && !p->round_b && (p->more_k == 0 || p->more_b.transposed);
}

void ISA_FN(skinny_column)(const Product *p) {
    Work work = work_new(p, 1);
    if (!cpu_planning()) rows_load(&p->a, p->m, p->k, work.rows);
}

void ISA_FN(skinny_tile)(const Product *p, int64_t col, int64_t cols, float *c) {
    Product part = {.dtype = DT_F32,
                    .m = p->m,
                    .n = cols,
                    .k = p->k,
                    .a = p->a,
                    .b = operand_after(p->b, col * p->b.ld),
                    .c = c,
                    .c_dtype = DT_F32,
                    .ldc = cols,
                    .alpha = 1};
    Work work = work_new(p, 1); /* as skinny_column left it */
    for (int64_t j = 0; !cpu_planning() && j < cols; j += SKINNY_COLS) task_run(&part, &work, j);
}

void ISA_FN(skinny_run)(const Product *products, int n) {
    int64_t ends[PRODUCTS_MOST], end = 0;
    bool parallel = false;
    for (int i = 0; i < n; i++) {
        const Product *p = &products[i];
        ends[i] = end += blocks_of(p->n, SKINNY_COLS);
        parallel |= p->n * p->k > SERIAL_WEIGHT || 2.0 * (double)p->m * (double)p->n * (double)p->k > PRODUCT_SERIAL;
    }
    WorkQueue queue = work_queue_new(end);
    if (cpu_planning()) {
        work_new(products, n);
        return;
    }
#pragma omp parallel if (parallel && queue.n > 1)
    {
        Work work = work_new(products, n);
        int have = -1; /* the product whose rows are loaded */
        int64_t at = 0;
        for (int64_t task; (task = work_queue_next(&queue, &at)) >= 0;) {
            int its = 0;
            while (task >= ends[its]) its++;
            const Product *p = &products[its];
            if (its != have) {
                bool same = have >= 0 && operands_same(&p->a, &products[have].a) && p->m == products[have].m && p->k == products[have].k;
                if (!same) rows_load(&p->a, p->m, p->k, work.rows);
                rows_load(&p->more_a, p->more_k > 0 ? p->m : 0, p->more_k, work.more_rows);
                have = its;
            }
            task_run(p, &work, (task - (its > 0 ? ends[its - 1] : 0)) * SKINNY_COLS);
        }
    }
}
