/* SPDX-License-Identifier: Apache-2.0 */
/* Products in f32 of a weight with a few rows, as in decoding: the weight is read from memory once, as it is stored (vector_skinny.h). Every
 * element is the same chain of multiply-adds in order of k as in vector_product.c, so the bits depend neither on which of the two computes it nor
 * on the other rows. */
#include "lib/tensor/cpu/simd/vector_skinny.h"
#include "lib/tensor/cpu/simd/code_lanes.h"
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

/* ---- quantised weights ---- */

/* sums[r][lane] += a[k][r] values[k][lane] for all k below `depth`, SKINNY_COLS lanes, and a number of rows from skinny_width. */
static void values_sum(int64_t rows, int64_t depth, const float *a, const float *values, float *sums) {
    enum { BLOCK_ROWS = 4, VECTORS = SKINNY_COLS / VEC_FLOATS };
    for (int64_t r = 0, n; r < rows; r += n, sums += n * SKINNY_COLS) {
        Strided at = {a + r, 1, rows};
        n = MIN((int64_t)BLOCK_ROWS, rows - r);
        switch (n) {
        case 4: block_product(4, VECTORS, depth, at, values, SKINNY_COLS, sums, SKINNY_COLS, true); break;
        case 3: block_product(3, VECTORS, depth, at, values, SKINNY_COLS, sums, SKINNY_COLS, true); break;
        case 2: block_product(2, VECTORS, depth, at, values, SKINNY_COLS, sums, SKINNY_COLS, true); break;
        default: block_product(1, VECTORS, depth, at, values, SKINNY_COLS, sums, SKINNY_COLS, true); break;
        }
    }
}

/* Adds the products of all rows with SKINNY_COLS lines of a quantised weight from column `col` of C on. Values are made piece by piece, and stay in
 * the first-level cache until all rows have used them. */
static void codes_sum(const Operand *b, float scale, int64_t col, const Product *p, int64_t k, const float *a, float *sums) {
    enum { PIECE = LANES_STEP };
    _Alignas(64) float values[SKINNY_COLS * PIECE];
    int64_t step = part_rows(p->m), width = skinny_width(step), cols = MIN((int64_t)SKINNY_COLS, p->n - col);
    bool lanes = scale == 1 && cols == SKINNY_COLS && ISA_FN(lanes_fit)(b, k);
    memset(values + cols * PIECE, 0, (size_t)((SKINNY_COLS - cols) * PIECE) * sizeof *values);
    for (int64_t at = 0; at < k; at += PIECE) {
        int64_t depth = MIN((int64_t)PIECE, k - at);
        if (lanes) ISA_FN(lanes_read)(b, col, SKINNY_COLS / VEC_FLOATS, at, depth, values);
        for (int64_t i = 0; !lanes && i < cols; i++) line_load(b, col + i, at, depth, round_up(depth, TRANSPOSE_WORDS), scale, values + i * PIECE);
        for (int64_t i = 0; i < blocks_of(p->m, step); i++) {
            const float *rows = a + (i * k + at) * width;
            float *to = sums + i * width * SKINNY_COLS;
            if (lanes)
                values_sum(width, depth, rows, values, to);
            else
                skinny_sum(width, DT_F32, depth, rows, (const char *)values, PIECE * (int64_t)sizeof *values, NULL, to, SKINNY_COLS);
        }
    }
}

/* A single row with a quantised weight has LANES_COLS columns of C in a task, so that values are multiplied as soon as they are made. */
static int64_t task_cols(const Product *p) { return p->m == 1 && dtype_is_quantised(p->b.dtype) ? LANES_COLS : SKINNY_COLS; }

/* ---- products ---- */

/* Adds one of both products to the sums of `cols` columns. */
static void part_sum(const Product *p, const Work *work, bool more, int64_t col, int64_t cols, float *sums) {
    int64_t k = more ? p->more_k : p->k;
    const float *a = more ? work->more_rows : work->rows;
    const Operand *b = more ? &p->more_b : &p->b;
    float scale = more ? p->more_alpha : p->alpha;
    bool quantised = dtype_is_quantised(b->dtype);
    if (quantised && p->m == 1 && cols == LANES_COLS && scale == 1 && !b->rounds && ISA_FN(lanes_fit)(b, k)) {
        ISA_FN(lanes_multiply)(b, col, k, a, sums);
        return;
    }
    for (int64_t at = 0; at < cols; at += SKINNY_COLS)
        if (quantised)
            codes_sum(b, scale, col + at, p, k, a, sums + at);
        else
            lines_sum(b, scale, col + at, p, k, a, work->lines, sums + at);
}

/* Computes columns col.. of C, at most task_cols. */
static void task_run(const Product *p, const Work *work, int64_t col) {
    _Alignas(64) float sums[(SKINNY_LIMIT + SKINNY_MOST) * SKINNY_COLS] = {0}; /* a part has more lines than its rows */
    int64_t step = part_rows(p->m), width = skinny_width(step), cols = MIN(task_cols(p), p->n - col);
    Tensor c = {.dtype = p->c_dtype, .elements = p->c};
    Operand d = p->d ? operand_of(p->d, p->d_dtype, p->ldd, false) : operand_of(p->c, p->c_dtype, p->ldc, false);
    for (int64_t r = 0; p->beta != 0 && r < p->m; r++) line_load(&d, r, col, cols, cols, p->beta, sums + (r / step * width + r % step) * SKINNY_COLS);
    part_sum(p, work, false, col, cols, sums);
    if (p->more_k > 0) part_sum(p, work, true, col, cols, sums);
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
    for (int64_t j = 0; !cpu_planning() && j < cols; j += task_cols(&part)) task_run(&part, &work, j);
}

void ISA_FN(skinny_run)(const Product *products, int n) {
    int64_t ends[PRODUCTS_MOST], end = 0;
    bool parallel = false;
    for (int i = 0; i < n; i++) {
        const Product *p = &products[i];
        ends[i] = end += blocks_of(p->n, task_cols(p));
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
            task_run(p, &work, (task - (its > 0 ? ends[its - 1] : 0)) * task_cols(p));
        }
    }
}
