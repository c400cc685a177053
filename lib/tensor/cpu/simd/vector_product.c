/* SPDX-License-Identifier: Apache-2.0 */
/* Products in f32 with vectors.
 *
 * A panel of B, some hundred columns, is copied line by line of the sum, widened or transposed in the copy, and stays in the second-level cache. A is
 * read in place, six rows at a time, if its rows run along the sum; otherwise some rows of it are copied too. So no second copy of a weight is kept.
 * Every element is one chain of multiply-adds in order of k, which begins with the value it is added to, kept in a register or, between cuts of a
 * long sum, in memory. Only speed decides about cuts, and the bits depend neither on the threads nor on the other rows. */
#include "lib/tensor/cpu/simd/vector_product.h"
#include "lib/tensor/cpu/simd/code_lanes.h"
#include "lib/tensor/cpu/work_queue.h"
#include "lib/tensor/cpu/transpose.h"

enum {
    STRIP = 6,                          /* rows of a result that are summed together; 6 x 4 of 32 registers, 6 x 2 of 16 */
    WIDE = VEC_REGISTERS == 32 ? 4 : 2, /* vectors of a row */
    TALL = 2 * STRIP,                   /* rows with half as many vectors: fewer chains would leave the multipliers idle */
    WIDE_COLS = WIDE * VEC_FLOATS,
    GROUP = 4 * TALL,                                       /* rows of A that are copied together */
    PANEL_FLOATS = VEC_REGISTERS == 32 ? 1 << 17 : 1 << 15, /* of a panel of B: a quarter of the usual second-level cache of such processors */
    MOST_COLS = 768,
    MOST_K = 2048 /* longer sums are cut */
};

static int64_t round_up(int64_t count, int64_t size) { return blocks_of(count, size) * size; }

/* ---- blocks of sums ---- */

/* Element (i, k) of some rows of A: at[i * line + k]; if copied: at[i / STRIP * line + k * STRIP + i % STRIP]. */
typedef struct Left {
    const float *at;
    int64_t line;
    bool copied;
} Left;

/* The next block of C, for a prefetch that the processor would not make; NULL: none. */
typedef struct Ahead {
    const float *c;
    int64_t ldc;
} Ahead;

/* c (rows, vectors) (+)= a b. */
static inline __attribute__((always_inline)) void block_sum(const int rows, const int vectors, const bool copied, int64_t depth, const float *a,
                                                            int64_t line, const float *b, int64_t b_line, float *c, int64_t ldc, bool add,
                                                            Ahead ahead) {
    Vec sums[TALL][WIDE];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[i][j] = add ? (Vec) * (const VecInMemory *)(c + i * ldc + j * VEC_FLOATS) : (Vec){0};
    if (ahead.c)
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) __builtin_prefetch(ahead.c + i * ahead.ldc + j * VEC_FLOATS, 1);
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; k++) {
        Vec right[WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) right[j] = *(const VecInMemory *)(b + k * b_line + j * VEC_FLOATS);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            float left = copied ? a[i / STRIP * line + k * STRIP + i % STRIP] : a[i * line + k];
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) *(VecInMemory *)(c + i * ldc + j * VEC_FLOATS) = sums[i][j];
}

/* The same for at most STRIP rows, or TALL rows of up to half of WIDE vectors. */
static inline __attribute__((always_inline)) void strip_sum(const int vectors, const bool copied, int64_t rows, int64_t depth, const float *a,
                                                            int64_t line, const float *b, int64_t b_line, float *c, int64_t ldc, bool add,
                                                            Ahead ahead) {
    if (2 * vectors <= WIDE && rows == TALL) {
        block_sum(TALL, vectors, copied, depth, a, line, b, b_line, c, ldc, add, ahead);
        return;
    }
    if (rows >= STRIP) {
        block_sum(STRIP, vectors, copied, depth, a, line, b, b_line, c, ldc, add, ahead);
        a += copied ? line : STRIP * line;
        c += STRIP * ldc;
        rows -= STRIP;
    }
    switch (rows) {
    case 5: block_sum(5, vectors, copied, depth, a, line, b, b_line, c, ldc, add, ahead); break;
    case 4: block_sum(4, vectors, copied, depth, a, line, b, b_line, c, ldc, add, ahead); break;
    case 3: block_sum(3, vectors, copied, depth, a, line, b, b_line, c, ldc, add, ahead); break;
    case 2: block_sum(2, vectors, copied, depth, a, line, b, b_line, c, ldc, add, ahead); break;
    case 1: block_sum(1, vectors, copied, depth, a, line, b, b_line, c, ldc, add, ahead); break;
    default: break;
    }
}

#define STRIP_SUM(vectors)                                                                                                                   \
    static __attribute__((noinline)) void strip_sum_##vectors(int64_t rows, int64_t depth, Left a, const float *b, int64_t b_line, float *c, \
                                                              int64_t ldc, bool add, Ahead ahead) {                                          \
        if (a.copied)                                                                                                                        \
            strip_sum(vectors, true, rows, depth, a.at, a.line, b, b_line, c, ldc, add, ahead);                                              \
        else                                                                                                                                 \
            strip_sum(vectors, false, rows, depth, a.at, a.line, b, b_line, c, ldc, add, ahead);                                             \
    }
STRIP_SUM(1)
STRIP_SUM(2)
#if VEC_MANY_REGISTERS
STRIP_SUM(3)
STRIP_SUM(4)
#endif

static void strip_run(int64_t vectors, int64_t rows, int64_t depth, Left a, const float *b, int64_t b_line, float *c, int64_t ldc, bool add,
                      Ahead ahead) {
    switch (vectors) {
#if VEC_MANY_REGISTERS
    case 4: strip_sum_4(rows, depth, a, b, b_line, c, ldc, add, ahead); break;
    case 3: strip_sum_3(rows, depth, a, b, b_line, c, ldc, add, ahead); break;
#endif
    case 2: strip_sum_2(rows, depth, a, b, b_line, c, ldc, add, ahead); break;
    default: strip_sum_1(rows, depth, a, b, b_line, c, ldc, add, ahead); break;
    }
}

/* ---- from memory to panels and strips ---- */

/* Prefetches n values some lines after those at `line`, `at`: reads across lines are too far apart for the hardware prefetcher. */
static inline void lines_ahead(const Operand *from, int64_t line, int64_t at, int64_t n) {
    enum { LINES = 32, CACHE_LINE = 64 };
    int64_t size = (int64_t)dtype_size(from->dtype);
    const char *begin = (const char *)from->data + ((line + LINES) * from->ld + at) * size;
    for (int64_t byte = 0; byte < n * size; byte += CACHE_LINE) __builtin_prefetch(begin + byte);
}

/* Width of `cols` columns in a panel. */
static int64_t panel_width(int64_t cols) { return round_up(cols, VEC_FLOATS); }
static int64_t vectors_at(int64_t cols, int64_t j) { return MIN((int64_t)WIDE, blocks_of(cols - j, VEC_FLOATS)); }

/* The same of a quantised B: of each line, many columns are read at once. */
static void codes_lines_load(const Operand *b, float scale, int64_t col, int64_t cols, int64_t from, int64_t depth, float *panel) {
    float values[RUN];
    _Static_assert(RUN % WIDE_COLS == 0, "a piece has whole vectors");
    for (int64_t k = 0; k < depth; k++)
        for (RUNS(at, n, 0, cols)) {
            line_load(b, from + k, col + at, n, MIN(panel_width(n), (int64_t)RUN), scale, values);
            for (int64_t j = 0; j < n; j += WIDE_COLS) {
                int64_t width = vectors_at(cols, at + j) * VEC_FLOATS;
                memcpy(panel + (at + j) * depth + k * width, values + j, (size_t)width * sizeof *values);
            }
        }
}

/* Loads columns col..col+cols-1 of B, whose lines run along the columns. */
static void lines_load(const Operand *b, float scale, int64_t col, int64_t cols, int64_t from, int64_t depth, float *panel) {
    if (dtype_is_quantised(b->dtype)) {
        codes_lines_load(b, scale, col, cols, from, depth, panel);
        return;
    }
    for (int64_t k = 0; k < depth; k++) {
        lines_ahead(b, from + k, col, cols);
        for (int64_t j = 0; j < cols; j += WIDE_COLS) {
            int64_t width = vectors_at(cols, j) * VEC_FLOATS;
            float *to = panel + j * depth + k * width;
            if (b->dtype == DT_F32 && scale == 1 && j + WIDE_COLS <= cols)
                memcpy(to, (const float *)b->data + (from + k) * b->ld + col + j, WIDE_COLS * sizeof *to);
            else
                line_load(b, from + k, col + j, MIN(width, cols - j), width, scale, to);
        }
    }
}

/* Loads n <= VEC_FLOATS columns of a transposed B from column `col` on, times `scale`, padded with zeros: to[k * width + lane]. */
static void columns_gather(const Operand *b, float scale, int64_t col, int64_t n, int64_t from, int64_t depth, float *to, int64_t width) {
    float line[RUN];
    for (int64_t i = 0; i < VEC_FLOATS; i++)
        for (RUNS(at, count, 0, depth)) {
            if (i < n)
                line_load(b, col + i, from + at, count, count, scale, line);
            else
                memset(line, 0, sizeof line);
            for (int64_t k = 0; k < count; k++) to[(at + k) * width + i] = line[k];
        }
}

/* The same for exactly VEC_FLOATS columns, in full pieces. */
static inline __attribute__((always_inline)) void columns_turn(const DType dtype, const char *at, int64_t line, float scale, int64_t depth, float *to,
                                                               int64_t width) {
    const int each = dtype == DT_F32 ? 1 : 2;
    TransposeLines lines = transpose_lines(at, line);
    for (int64_t k = 0; k < depth; k += TRANSPOSE_WORDS * each) {
        VecBits words[TRANSPOSE_WORDS];
        transpose_piece(&lines, words);
#pragma GCC unroll 8
        for (int i = 0; i < TRANSPOSE_WORDS * each; i++, to += width) *(VecInMemory *)to = word_widened(words[i / each], dtype, i % each) * scale;
    }
}

/* The same of a quantised B, whose lines are read into floats, piece by piece. */
static void codes_columns_load(const Operand *b, float scale, int64_t col, int64_t n, int64_t from, int64_t depth, float *to, int64_t width) {
    float lines[VEC_FLOATS * RUN];
    memset(lines + n * RUN, 0, (size_t)((VEC_FLOATS - n) * RUN) * sizeof *lines);
    for (RUNS(at, count, 0, depth)) {
        int64_t padded = round_up(count, TRANSPOSE_WORDS), whole = count / TRANSPOSE_WORDS * TRANSPOSE_WORDS;
        for (int64_t i = 0; i < n; i++) line_load(b, col + i, from + at, count, padded, scale, lines + i * RUN);
        columns_turn(DT_F32, (const char *)lines, RUN * (int64_t)sizeof *lines, 1, whole, to + at * width, width);
        for (int64_t k = whole; k < count; k++)
            for (int64_t i = 0; i < VEC_FLOATS; i++) to[(at + k) * width + i] = lines[i * RUN + k];
    }
}

/* Loads `vectors` vectors of columns of a transposed B, from column `col` of `n_cols` on, times `scale`: (depth, vectors x VEC_FLOATS). */
static void columns_load(const Operand *b, float scale, int64_t col, int64_t n_cols, int64_t vectors, int64_t from, int64_t depth, float *to) {
    if (dtype_is_quantised(b->dtype)) {
        if (scale == 1 && col + vectors * VEC_FLOATS <= n_cols && from % LANES_STEP == 0 && ISA_FN(lanes_fit)(b, depth)) {
            ISA_FN(lanes_read)(b, col, (int)vectors, from, depth, to);
            return;
        }
        for (int64_t i = 0; i < vectors; i++)
            codes_columns_load(b, scale, col + i * VEC_FLOATS, MIN((int64_t)VEC_FLOATS, n_cols - col - i * VEC_FLOATS), from, depth,
                               to + i * VEC_FLOATS, vectors * VEC_FLOATS);
        return;
    }
    int64_t width = vectors * VEC_FLOATS, size = (int64_t)dtype_size(b->dtype), whole = depth / piece_values(b->dtype) * piece_values(b->dtype);
    for (int64_t end = col + width; col < end; col += VEC_FLOATS, to += VEC_FLOATS) {
        int64_t n = MIN((int64_t)VEC_FLOATS, n_cols - col), transposed = n == VEC_FLOATS ? whole : 0;
        const char *at = (const char *)b->data + (col * b->ld + from) * size;
        if (transposed && b->dtype == DT_F32)
            columns_turn(DT_F32, at, b->ld * size, scale, transposed, to, width);
        else if (transposed && b->dtype == DT_BF16)
            columns_turn(DT_BF16, at, b->ld * size, scale, transposed, to, width);
        else if (transposed)
            columns_turn(DT_F16, at, b->ld * size, scale, transposed, to, width);
        if (transposed < depth) columns_gather(b, scale, col, n, from + transposed, depth - transposed, to + transposed * width, width);
    }
}

/* Loads columns col..col+cols-1 of B, WIDE vectors at a time. */
static void panel_load(const Operand *b, float scale, int64_t col, int64_t cols, int64_t from, int64_t depth, float *panel) {
    if (!b->transposed) {
        lines_load(b, scale, col, cols, from, depth, panel);
        return;
    }
    for (int64_t j = 0; j < cols; j += WIDE_COLS) columns_load(b, scale, col + j, col + cols, vectors_at(cols, j), from, depth, panel + j * depth);
}

/* Floats that are copied together for a strip; the excess is overwritten by the next line. */
enum { WIDE_COPY = 8 };

/* Memory for a group of rows, in floats. */
static int64_t group_floats(int64_t depth) { return GROUP * depth + GROUP / STRIP * (WIDE_COPY - STRIP); }

/* Loads at most GROUP rows of A, whose sum has a_lines steps, into `memory` if they are not floats along the sum. */
static Left left_load(const Operand *a, int64_t a_lines, int64_t row, int64_t rows, int64_t from, int64_t depth, float *memory) {
    if (!a->transposed && a->dtype == DT_F32) return (Left){(const float *)a->data + row * a->ld + from, a->ld, false};
    if (!a->transposed) {
        for (int64_t i = 0; i < rows; i++) line_load(a, row + i, from, depth, depth, 1, memory + i * depth);
        return (Left){memory, depth, false};
    }
    int64_t strips = blocks_of(rows, STRIP), line = depth * STRIP + WIDE_COPY - STRIP;
    for (int64_t k = 0; k < depth; k++) {
        lines_ahead(a, from + k, row, rows);
        float values[GROUP + WIDE_COPY - STRIP];
        const float *at = (const float *)a->data + (from + k) * a->ld + row;
        /* There is no memory after the last line */
        bool beyond = (from + k) * a->ld + strips * STRIP + WIDE_COPY - STRIP > (a_lines - 1) * a->ld + rows;
        if (a->dtype != DT_F32 || beyond) {
            line_load(a, from + k, row, rows, strips * STRIP + WIDE_COPY - STRIP, 1, values);
            at = values;
        }
        for (int64_t s = 0; s < strips; s++) memcpy(memory + s * line + k * STRIP, at + s * STRIP, WIDE_COPY * sizeof *at);
    }
    return (Left){memory, line, true};
}

static Left left_at(Left group, int64_t row) { return (Left){group.at + (group.copied ? row / STRIP : row) * group.line, group.line, group.copied}; }

/* ---- products ---- */

/* How a product is cut: tasks are panels times chunks of rows. Several products with the same B are treated as one whose rows follow each other. */
typedef struct Plan {
    const Product *products;
    int n_products;
    int64_t m, k_cut, panel_cols, panels, chunk_rows, chunks;
} Plan;

static int64_t panel_cols(int64_t n, int64_t k, int64_t floats) {
    int64_t limit = MAX((int64_t)WIDE_COLS, MIN((int64_t)MOST_COLS, floats / k) / WIDE_COLS * WIDE_COLS);
    return limit >= n ? n : round_up(blocks_of(n, blocks_of(n, limit)), WIDE_COLS);
}

static Plan plan_make(const Product *products, int n_products) {
    const Product *p = products;
    enum { LEAST_ROWS = 2 * GROUP, LEAST_COLS = 2 * WIDE_COLS, SKINNY_COLS = 2 * VEC_FLOATS, TASKS_PER_THREAD = 16 };
    bool copied = p->a.transposed; /* then panels are wide, so that each copy is used more often */
    int64_t floats = copied ? 2 * PANEL_FLOATS : PANEL_FLOATS,
            most_k = copied ? MIN((int64_t)MOST_K, floats / MIN(panel_width(p->n), (int64_t)MOST_COLS)) : MOST_K;
    Plan plan = {.products = products, .n_products = n_products, .k_cut = blocks_of(p->k, blocks_of(p->k, most_k))};
    if (dtype_is_quantised(p->b.dtype)) plan.k_cut = MIN(p->k, round_up(plan.k_cut, LANES_STEP));
    for (int i = 0; i < n_products; i++) plan.m += products[i].m;
    bool cut = plan.k_cut < p->k; /* then each task loads its panels again */
    int64_t threads = omp_get_max_threads(), wanted = threads * (cut ? 1 : TASKS_PER_THREAD), chunks = blocks_of(plan.m, LEAST_ROWS);
    plan.panel_cols = panel_cols(p->n, plan.k_cut, floats);
    if (plan.m <= TALL)
        plan.panel_cols = MIN(p->n, (int64_t)SKINNY_COLS);
    else if (blocks_of(p->n, plan.panel_cols) * chunks < wanted)
        plan.panel_cols = MIN(plan.panel_cols, MAX((int64_t)LEAST_COLS, round_up(blocks_of(p->n, blocks_of(wanted, chunks)), WIDE_COLS)));
    plan.panels = blocks_of(p->n, plan.panel_cols);
    if (cut && plan.panels > 1 && plan.panels % threads > 0) wanted *= 2; /* otherwise a panel has one task, and is loaded once */
    plan.chunk_rows = MAX((int64_t)LEAST_ROWS, round_up(blocks_of(plan.m, blocks_of(wanted, plan.panels)), GROUP));
    plan.chunks = blocks_of(plan.m, plan.chunk_rows);
    return plan;
}

/* A thread's memory: a panel of B, followed by one of the second product; rows of both A's; sums that wait for the next cut where C can't store
 * them. */
typedef struct Work {
    float *panel, *more_panel, *rows, *more_rows, *partial;
} Work;

static Work work_new(const Plan *plan) {
    const Product *p = plan->products;
    int64_t width = panel_width(plan->panel_cols);
    Work work = {.panel = cpu_scratch(CPU_TILE_B, (size_t)(width * (plan->k_cut + p->more_k)) * sizeof(float)),
                 .rows = cpu_scratch(CPU_TILE_A, (size_t)(group_floats(plan->k_cut) + group_floats(p->more_k)) * sizeof(float))};
    work.more_panel = work.panel + width * plan->k_cut;
    work.more_rows = work.rows + group_floats(plan->k_cut);
    if (plan->k_cut < p->k && p->c_dtype != DT_F32) work.partial = cpu_scratch(CPU_TILE_C, (size_t)(plan->chunk_rows * width) * sizeof(float));
    return work;
}

/* Rows and columns of C that are summed together, and the cut of the sum. */
typedef struct Block {
    int64_t row, rows, col, cols, width, from, depth;
} Block;

/* to (rows, width) = scale * from, which has the lines of C. */
static void block_load(const Operand *from, const Block *block, float scale, float *to, int64_t ld) {
    for (int64_t i = 0; i < block->rows; i++) line_load(from, block->row + i, block->col, block->cols, block->width, scale, to + i * ld);
}

static void block_run(const Product *p, const Block *block, Left a, const float *b, Left more_a, const float *more_b, float *partial,
                      int64_t partial_ld, Ahead ahead) {
    _Alignas(64) float own[TALL * WIDE_COLS];
    Tensor c = {.dtype = p->c_dtype, .elements = p->c};
    Operand here = operand_of(p->c, p->c_dtype, p->ldc, false), d = p->d ? operand_of(p->d, p->d_dtype, p->ldd, false) : here;
    bool in_place = p->c_dtype == DT_F32 && block->cols == block->width, last = block->from + block->depth == p->k,
         add = block->from > 0 || p->beta != 0;
    float *to = partial ? partial : in_place ? (float *)p->c + block->row * p->ldc + block->col : own;
    int64_t ld = partial ? partial_ld : in_place ? p->ldc : WIDE_COLS;
    if (block->from > 0 && !partial && !in_place)
        block_load(&here, block, 1, to, ld);
    else if (block->from == 0 && p->beta != 0 && !(in_place && p->beta == 1 && d.data == p->c))
        block_load(&d, block, p->beta, to, ld);
    strip_run(block->width / VEC_FLOATS, block->rows, block->depth, a, b, block->width, to, ld, add, ahead);
    if (last && p->more_k > 0) strip_run(block->width / VEC_FLOATS, block->rows, p->more_k, more_a, more_b, block->width, to, ld, true, (Ahead){0});
    if (in_place || (partial && !last)) return;
    for (int64_t i = 0; i < block->rows; i++) run_write(&c, (block->row + i) * p->ldc + block->col, block->cols, to + i * ld, 0);
}

/* Computes rows begin..end-1 of one product with the panel of `cols` columns from `col` on. */
static void rows_run(const Plan *plan, const Product *p, const Work *work, int64_t begin, int64_t end, int64_t col, int64_t cols, int64_t from,
                     int64_t depth) {
    bool last = from + depth == p->k, in_f32 = p->c_dtype == DT_F32;
    int64_t step = 2 * blocks_of(cols, VEC_FLOATS) <= WIDE ? TALL : STRIP, width = panel_width(plan->panel_cols), blocks = blocks_of(cols, WIDE_COLS);
    for (int64_t group = begin; group < end; group += GROUP) {
        int64_t group_rows = MIN((int64_t)GROUP, end - group);
        Left a = left_load(&p->a, p->k, group, group_rows, from, depth, work->rows), more_a = {0};
        if (last && p->more_k > 0) more_a = left_load(&p->more_a, p->more_k, group, group_rows, 0, p->more_k, work->more_rows);
        for (int64_t row = 0; row < group_rows; row += step)
            for (int64_t i = 0; i < blocks; i++) {
                int64_t j = i * WIDE_COLS, n = MIN((int64_t)WIDE_COLS, cols - j);
                Block block = {group + row, MIN(step, group_rows - row), col + j, n, panel_width(n), from, depth};
                bool next = i + 1 < blocks;
                Ahead ahead = {in_f32 && (next || block.row + 2 * step <= p->m)
                                   ? (const float *)p->c + (next ? block.row : block.row + step) * p->ldc + (next ? block.col + WIDE_COLS : col)
                                   : NULL,
                               p->ldc};
                float *partial = work->partial ? work->partial + (group + row - begin) * width + j : NULL;
                block_run(p, &block, left_at(a, row), work->panel + j * depth, left_at(more_a, row), work->more_panel + j * p->more_k, partial, width,
                          ahead);
            }
    }
}

static void task_run(const Plan *plan, const Work *work, int64_t task, int64_t *have) {
    const Product *p = plan->products;
    int64_t number = task / plan->chunks, begin = task % plan->chunks * plan->chunk_rows, end = MIN(plan->m, begin + plan->chunk_rows);
    int64_t col = number * plan->panel_cols, cols = MIN(plan->panel_cols, p->n - col);
    for (int64_t from = 0; from < p->k; from += plan->k_cut) {
        int64_t depth = MIN(plan->k_cut, p->k - from);
        if (depth < p->k || *have != number) panel_load(&p->b, p->alpha, col, cols, from, depth, work->panel);
        if (p->more_k > 0 && *have != number) panel_load(&p->more_b, p->more_alpha, col, cols, 0, p->more_k, work->more_panel);
        *have = number;
        for (int64_t i = 0, first = 0; i < plan->n_products; first += p[i++].m)
            rows_run(plan, &p[i], work, MAX((int64_t)0, begin - first), MIN(p[i].m, end - first), col, cols, from, depth);
    }
}

/* Products of two factors that both run across the sum, one of them with few values in each line, such as the gradients of a low-rank branch: the
 * wide factor is read once, in place. */
typedef struct Thin {
    const Product *product;
    bool transposed; /* the few values are C's columns */
    Operand skinny, wide;
    int64_t n_few, n_wide;
} Thin;

enum { THIN = 32, THIN_LINES = 32 };

static bool thin_make(const Product *p, Thin *thin) {
    bool transposed = p->n < p->m;
    *thin = (Thin){p, transposed, transposed ? p->b : p->a, transposed ? p->a : p->b, MIN(p->m, p->n), MAX(p->m, p->n)};
    thin->skinny.transposed = true; /* as A is stored here */
    thin->wide.transposed = false;
    return p->a.transposed && !p->b.transposed && p->more_k == 0 && !p->d && thin->n_few <= THIN && thin->wide.dtype == DT_F32;
}

/* Writes sums (few, WIDE vectors at most) of columns first.. of the wide factor to C. */
static void thin_finish(const Thin *thin, int64_t first, int64_t cols, const float *sums, int64_t ld) {
    const Product *p = thin->product;
    Tensor c = {.dtype = p->c_dtype, .elements = p->c};
    float line[MAX((int)WIDE_COLS, (int)THIN)];
    int64_t lines = thin->transposed ? cols : thin->n_few, n = thin->transposed ? thin->n_few : cols;
    for (int64_t i = 0; i < lines; i++) {
        for (int64_t j = 0; j < n; j++) line[j] = p->alpha * (thin->transposed ? sums[j * ld + i] : sums[i * ld + j]);
        for (RUNS(at, count, 0, n))
            run_write(&c, (thin->transposed ? first + i : i) * p->ldc + (thin->transposed ? 0 : first) + at, count, line + at, p->beta);
    }
}

/* Computes columns first..first+cols-1 of the wide factor. */
static void thin_columns(const Thin *thin, int64_t first, int64_t cols) {
    int64_t k = thin->product->k, width = panel_width(cols), whole = cols / VEC_FLOATS * VEC_FLOATS, ld = thin->wide.ld;
    float *sums = cpu_scratch(CPU_TILE_C, (size_t)(thin->n_few * width) * sizeof *sums),
          *tail = cpu_scratch(CPU_TILE_B, (size_t)(THIN_LINES * VEC_FLOATS) * sizeof *tail);
    float *rows = cpu_scratch(CPU_TILE_A, (size_t)group_floats(THIN_LINES) * sizeof *rows);
    if (cpu_planning()) return;
    for (int64_t from = 0; from < k; from += THIN_LINES) {
        int64_t depth = MIN((int64_t)THIN_LINES, k - from);
        Left skinny = left_load(&thin->skinny, k, 0, thin->n_few, from, depth, rows);
        for (int64_t j = 0; j < width;) {
            bool last = j >= whole; /* less than a vector, padded with zeros */
            int64_t vectors = last ? 1 : vectors_at(whole, j);
            for (int64_t i = 0; i < depth; i++) lines_ahead(&thin->wide, from + i, first + j, vectors * VEC_FLOATS);
            if (last) lines_load(&thin->wide, 1, first + j, cols - j, from, depth, tail);
            const float *wide = last ? tail : (const float *)thin->wide.data + from * ld + first + j;
            for (int64_t row = 0; row < thin->n_few; row += STRIP)
                strip_run(vectors, MIN((int64_t)STRIP, thin->n_few - row), depth, left_at(skinny, row), wide, last ? VEC_FLOATS : ld,
                          sums + row * width + j, width, from > 0, (Ahead){0});
            j += vectors * VEC_FLOATS;
        }
    }
    for (int64_t j = 0; j < cols; j += WIDE_COLS) thin_finish(thin, first + j, MIN((int64_t)WIDE_COLS, cols - j), sums + j, width);
}

static void thin_run(const Thin *thin) {
    enum { STEP = 2 * VEC_FLOATS };
    const Product *p = thin->product;
    int64_t each = round_up(blocks_of(thin->n_wide, omp_get_max_threads()), STEP);
    if (cpu_planning()) {
        thin_columns(thin, 0, MIN(each, thin->n_wide));
        return;
    }
#pragma omp parallel for schedule(static) if (2.0 * (double)p->m * (double)p->n * (double)p->k > PRODUCT_SERIAL)
    for (int64_t first = 0; first < thin->n_wide; first += each) thin_columns(thin, first, MIN(each, thin->n_wide - first));
}

/* Threads go from the tasks of one plan to those of the next without a barrier: experts have few rows each. */
static void plans_run(const Plan *plans, int n) {
    int64_t ends[PRODUCTS_MOST], end = 0;
    bool parallel = false;
    for (int i = 0; i < n; i++) {
        const Product *p = plans[i].products;
        ends[i] = end += plans[i].panels * plans[i].chunks;
        parallel |= 2.0 * (double)plans[i].m * (double)p->n * (double)p->k > PRODUCT_SERIAL || p->n * p->k > SERIAL_WEIGHT;
    }
    WorkQueue queue = work_queue_new(end);
    if (cpu_planning()) {
        for (int i = 0; i < n; i++) work_new(&plans[i]);
        return;
    }
#pragma omp parallel if (parallel && queue.n > 1)
    {
        Work work = {0};
        int its = -1;              /* the plan that `work` has memory for */
        int64_t have = -1, at = 0; /* have: the current panel */
        for (int64_t task; (task = work_queue_next(&queue, &at)) >= 0;) {
            int plan = 0;
            while (task >= ends[plan]) plan++;
            if (plan != its) work = work_new(&plans[plan]), its = plan, have = -1;
            task_run(&plans[plan], &work, task - (plan > 0 ? ends[plan - 1] : 0), &have);
        }
    }
}

/* Whether the panels of one product can serve another: gradients of weights with the same input. */
static bool panels_shared(const Product *one, const Product *other) {
    bool same = one->k == other->k && one->n == other->n && one->alpha == other->alpha && operands_same(&one->b, &other->b);
    return same && one->a.transposed && other->a.transposed && one->more_k == 0 && other->more_k == 0 && one->c_dtype == DT_F32 &&
           other->c_dtype == DT_F32;
}

static void vector_product_run(const Product *products, int n) {
    Product skinny[PRODUCTS_MOST];
    Plan plans[PRODUCTS_MOST];
    Thin thin;
    int n_skinny = 0, n_plans = 0;
    for (int i = 0, end; i < n; i = end) {
        end = i + 1;
        if (ISA_FN(skinny_fits)(&products[i])) {
            skinny[n_skinny++] = products[i];
            continue;
        }
        if (thin_make(&products[i], &thin)) {
            thin_run(&thin);
            continue;
        }
        while (end < n && panels_shared(&products[i], &products[end]) && !thin_make(&products[end], &thin)) end++;
        plans[n_plans++] = plan_make(products + i, end - i);
    }
    if (n_skinny) ISA_FN(skinny_run)(skinny, n_skinny);
    if (n_plans) plans_run(plans, n_plans);
}

/* ---- tile by tile ---- */

static int64_t row_tile(void) { return GROUP; }
static int64_t col_tile(int64_t n, int64_t k) { return panel_cols(n, k, 2 * PANEL_FLOATS); }

/* Then one tile has all rows. */
static bool tile_of_skinny(const Product *product) { return product->m <= GROUP && ISA_FN(skinny_fits)(product); }

static void vector_product_column(const Product *product, int64_t col, int64_t cols) {
    if (tile_of_skinny(product)) {
        ISA_FN(skinny_column)(product);
        return;
    }
    float *panel = cpu_scratch(CPU_TILE_B, (size_t)(panel_width(cols) * product->k) * sizeof *panel);
    if (cpu_planning()) return;
    panel_load(&product->b, 1, col, cols, 0, product->k, panel);
}

static void vector_product_tile(const Product *product, int64_t row, int64_t rows, int64_t col, int64_t cols, float *c) {
    if (tile_of_skinny(product)) {
        ISA_FN(skinny_tile)(product, col, cols, c);
        return;
    }
    Product part = {.dtype = DT_F32, .m = rows, .n = cols, .k = product->k, .a = product->a, .c = c, .c_dtype = DT_F32, .ldc = cols, .alpha = 1};
    part.a.data = (const char *)part.a.data + (size_t)(row * (part.a.transposed ? 1 : part.a.ld)) * dtype_size(part.a.dtype);
    Plan plan = {.products = &part, .n_products = 1, .m = rows, .k_cut = part.k, .panel_cols = cols};
    Work work = {.panel = cpu_scratch(CPU_TILE_B, 0), .rows = cpu_scratch(CPU_TILE_A, (size_t)group_floats(part.k) * sizeof(float))};
    if (cpu_planning()) return;
    rows_run(&plan, &part, &work, 0, rows, 0, cols, 0, part.k);
}

const CpuProducts ISA_FN(products) = {vector_product_run, row_tile, col_tile, vector_product_column, vector_product_tile, NULL};
