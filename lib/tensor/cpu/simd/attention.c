/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax attention, forward. Source: FlashAttention-2, arXiv 2307.08691, algorithm 1. */
#include "lib/tensor/cpu/attention.h"
#include "lib/tensor/cpu/simd/vector_skinny.h"

#include <omp.h>

/* Buffers of one task, in the thread's scratch. */
typedef struct Work {
    float *q, *sum;         /* (rows, padded): scaled queries; running sums of weighted values */
    float *keys_transposed; /* (padded, KEY_TILE) */
    float *tile;            /* (KEY_TILE, padded): keys, then values */
    float *scores;          /* (CHUNK_ROWS, KEY_TILE) */
    float *largest, *total; /* (rows): the running maximum and the running sum of exponentials */
} Work;

static Work work_new(const AttentionShape *shape) {
    int64_t rows = shape->tokens * shape->group, tile = KEY_TILE * shape->padded;
    float *memory = cpu_scratch(CPU_LOCAL, (size_t)(2 * rows * shape->padded + 2 * tile + CHUNK_ROWS * KEY_TILE + 2 * rows) * sizeof(float));
    Work work = {.q = memory, .sum = memory + rows * shape->padded};
    work.keys_transposed = work.sum + rows * shape->padded;
    work.tile = work.keys_transposed + tile;
    work.scores = work.tile + tile;
    work.largest = work.scores + CHUNK_ROWS * KEY_TILE;
    work.total = work.largest + rows;
    return work;
}

/* Prepares a row's scores for comparison: soft-capped, -infinity where the row sees nothing. Returns the largest of them and `before`. */
static float row_largest(const AttentionShape *shape, Columns seen, float before, float *restrict s) {
    float cap = (float)shape->args->softcap, largest = before;
    if (cap != 0)
        for (int64_t j = 0; j < KEY_TILE; j++) s[j] = cap * fast_tanh(s[j] / cap);
    for (int64_t j = 0; j < seen.begin; j++) s[j] = -INFINITY;
    for (int64_t j = seen.end; j < KEY_TILE; j++) s[j] = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < KEY_TILE; j++) largest = s[j] > largest ? s[j] : largest;
    return largest;
}

/* Turns scores of rows row..row+n-1 into weights relative to the running maximum, and rescales the running sums to the new maximum. */
static void softmax_rows(const AttentionShape *shape, const Work *work, int64_t row, int64_t n, int64_t position, int64_t start, int64_t n_keys) {
    float base[CHUNK_ROWS],
        old[CHUNK_ROWS], *restrict scores = work->scores, *restrict largest = work->largest + row, *restrict total = work->total + row;
    for (int64_t r = 0; r < n; r++) {
        int64_t at = position + (row + r) / shape->group;
        base[r] = row_largest(shape, columns_seen(shape, at, at, start, n_keys), largest[r], scores + r * KEY_TILE);
    }
    for (int64_t r = 0; r < n; r++) {
        float now = base[r];
        base[r] = now == -INFINITY ? 0.0f : now;
        old[r] = fast_exp(largest[r] - base[r]);
        largest[r] = now;
    }
    for (int64_t r = 0; r < n; r++) {
        float *restrict s = scores + r * KEY_TILE, *restrict sum = work->sum + (row + r) * shape->padded, bound = base[r], added = 0;
#pragma omp simd reduction(+ : added)
        for (int64_t j = 0; j < KEY_TILE; j++) {
            s[j] = fast_exp(s[j] - bound);
            added += s[j];
        }
        total[r] = total[r] * old[r] + added;
        if (old[r] != 1.0f)
            for (int64_t c = 0; c < shape->padded; c++) sum[c] *= old[r];
    }
}

/* Adds one tile of keys and values to the sums of all rows of a task. */
static void tile_attend(const AttentionShape *shape, const Work *work, int64_t rows, int64_t position, int64_t start, int64_t n_keys,
                        const float *values) {
    int64_t group = shape->group;
    for (int64_t row = 0; row < rows; row += CHUNK_ROWS) {
        int64_t n = MIN((int64_t)CHUNK_ROWS, rows - row);
        Columns seen = columns_seen(shape, position + row / group, position + (row + n - 1) / group, start, n_keys);
        if (seen.begin >= seen.end) continue;
        scores_compute(shape, n, seen, work->q + row * shape->padded, work->keys_transposed, work->scores);
        softmax_rows(shape, work, row, n, position, start, n_keys);
        tile_product(n, shape->padded, seen.end - seen.begin, (Strided){work->scores + seen.begin, KEY_TILE, 1}, values + seen.begin * shape->padded,
                     shape->padded, work->sum + row * shape->padded, shape->padded, true);
    }
}

/* ---- few rows: single tokens with a cache ---- */

enum { SKINNY_ROWS = 8 };

/* With few rows, keys and values are read in place, so that little work is done for each. The bits are those of the tiled code. */
static bool is_skinny(const AttentionShape *shape, int64_t rows) { return rows <= SKINNY_ROWS && shape->dim == shape->padded; }

/* Keys of one head from position start + j on: their address, and the distance in bytes from one to the next. Either in place, or a copy of keys
 * from..to-1 of the tile, with zeros around them. No query sees what follows the last key in a cache's page. */
typedef struct KeyLines {
    const char *at;
    int64_t line;
    DType dtype;
} KeyLines;

static KeyLines keys_find(const AttentionShape *shape, const Tensor *k, int32_t segment, int64_t kv_head, int64_t start, int64_t from, int64_t to,
                          int64_t j, int64_t n, float *copy) {
    int64_t size = (int64_t)dtype_size(k->dtype), there;
    if (j >= from && j < to) {
        int64_t row = key_run(shape, segment, start + j, &there);
        if (there >= n)
            return (KeyLines){(const char *)k->elements + (row * shape->kv_width + kv_head * shape->dim) * size, shape->kv_width * size, k->dtype};
    }
    memset(copy, 0, (size_t)(n * shape->dim) * sizeof *copy);
    for (int64_t i = MAX((int64_t)0, from - j); i < MIN(n, to - j); i++) {
        int64_t row = key_run(shape, segment, start + j + i, &there);
        floats_from(k, row * shape->kv_width + kv_head * shape->dim, shape->dim, copy + i * shape->dim);
    }
    return (KeyLines){(const char *)copy, shape->dim * (int64_t)sizeof(float), DT_F32};
}

/* sum[r][c] += weights[r][j] v[j][c] for `vectors` vectors of the head and n keys, whose values are `line` bytes apart. */
static inline __attribute__((always_inline)) void values_multiply(const int rows, const int vectors, const DType dtype, int64_t n,
                                                                  const float *weights, const char *v, int64_t line, float *sum, int64_t width) {
    Vec sums[SKINNY_ROWS][4], right[4];
    const int size = (int)dtype_size(dtype);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) sums[r][i] = *(const VecInMemory *)(sum + r * width + i * VEC_FLOATS);
    for (int64_t j = 0; j < n; j++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) right[i] = line_widened(v + j * line + i * VEC_FLOATS * size, dtype);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) sums[r][i] += weights[r * KEY_TILE + j] * right[i];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) *(VecInMemory *)(sum + r * width + i * VEC_FLOATS) = sums[r][i];
}

static inline __attribute__((always_inline)) void values_rows(const int rows, const DType dtype, int64_t n, const float *weights, const char *v,
                                                              int64_t line, float *sum, int64_t width) {
    const int most = rows * 4 <= VEC_REGISTERS / 2 ? 4 : rows * 2 <= VEC_REGISTERS / 2 ? 2 : 1;
    int64_t c = 0, size = (int64_t)dtype_size(dtype);
    for (; c + most * VEC_FLOATS <= width; c += most * VEC_FLOATS) values_multiply(rows, most, dtype, n, weights, v + c * size, line, sum + c, width);
    for (; c < width; c += VEC_FLOATS) values_multiply(rows, 1, dtype, n, weights, v + c * size, line, sum + c, width);
}

static inline __attribute__((always_inline)) void values_some(int64_t rows, const DType dtype, int64_t n, const float *weights, const char *v,
                                                              int64_t line, float *sum, int64_t width) {
    switch (rows) {
    case 1: values_rows(1, dtype, n, weights, v, line, sum, width); break;
    case 2: values_rows(2, dtype, n, weights, v, line, sum, width); break;
    case 3: values_rows(3, dtype, n, weights, v, line, sum, width); break;
    case 4: values_rows(4, dtype, n, weights, v, line, sum, width); break;
    case 5: values_rows(5, dtype, n, weights, v, line, sum, width); break;
    case 6: values_rows(6, dtype, n, weights, v, line, sum, width); break;
    case 7: values_rows(7, dtype, n, weights, v, line, sum, width); break;
    default: values_rows(SKINNY_ROWS, dtype, n, weights, v, line, sum, width); break;
    }
}

static __attribute__((noinline)) void values_add(int64_t rows, DType dtype, int64_t n, const float *weights, const char *v, int64_t line, float *sum,
                                                 int64_t width) {
    if (dtype == DT_F32)
        values_some(rows, DT_F32, n, weights, v, line, sum, width);
    else if (dtype == DT_BF16)
        values_some(rows, DT_BF16, n, weights, v, line, sum, width);
    else
        values_some(rows, DT_F16, n, weights, v, line, sum, width);
}

/* Arranges queries as skinny_sum needs them, padded with zeros to a number of rows that it supports. */
static void skinny_begin(const AttentionShape *shape, const Work *work, int64_t rows) {
    int64_t width = skinny_width(rows);
    if (width > rows) memset(work->keys_transposed, 0, (size_t)(width * shape->dim) * sizeof *work->keys_transposed);
    transpose(rows, shape->dim, work->q, shape->padded, work->keys_transposed, width);
}

/* Prefetches keys or values at positions begin..end-1 of a sequence. */
static void keys_prefetch(const AttentionShape *shape, const Tensor *tensor, int32_t segment, int64_t kv_head, int64_t begin, int64_t end) {
    for (int64_t n; begin < end; begin += n) {
        int64_t row = key_run(shape, segment, begin, &n);
        n = MIN(n, end - begin);
        for (int64_t i = 0; i < n; i++) run_ahead(tensor, (row + i) * shape->kv_width + kv_head * shape->dim, shape->dim);
    }
}

/* As tile_attend, for keys from..to-1 of a tile. */
static void skinny_attend(const AttentionShape *shape, const Work *work, int64_t rows, int32_t segment, int64_t kv_head, int64_t position,
                          int64_t start, int64_t from, int64_t to, const Tensor *k, const Tensor *v) {
    Columns seen = columns_seen(shape, position, position + (rows - 1) / shape->group, start, to);
    if (seen.begin >= seen.end) return;
    int64_t width = skinny_width(rows), size = (int64_t)dtype_size(v->dtype);
    memset(work->scores, 0, (size_t)(width * KEY_TILE) * sizeof *work->scores);
    for (int64_t j = seen.begin / SKINNY_COLS * SKINNY_COLS; j < seen.end; j += SKINNY_COLS) {
        keys_prefetch(shape, v, segment, kv_head, start + MAX(j, (int64_t)seen.begin), start + MIN(j + SKINNY_COLS, (int64_t)seen.end));
        KeyLines keys = keys_find(shape, k, segment, kv_head, start, from, to, j, SKINNY_COLS, work->tile);
        skinny_sum(width, keys.dtype, shape->dim, work->keys_transposed, keys.at, keys.line, NULL, work->scores + j, KEY_TILE);
    }
    softmax_rows(shape, work, 0, rows, position, start, to);
    for (int64_t j = seen.begin, n; j < seen.end; j += n) {
        int64_t row = key_run(shape, segment, start + j, &n), later = start + KEY_TILE + j;
        n = MIN(n, seen.end - j);
        keys_prefetch(shape, k, segment, kv_head, later, MIN(position + 1, later + n));
        values_add(rows, v->dtype, n, work->scores + j, (const char *)v->elements + (row * shape->kv_width + kv_head * shape->dim) * size,
                   shape->kv_width * size, work->sum, shape->dim);
    }
}

static void task_finish(const AttentionShape *shape, const Work *work, int64_t first, int64_t n_tokens, int64_t kv_head, Tensor *y,
                        Tensor *logsumexp) {
    for (int64_t i = 0, r = 0; i < n_tokens; i++)
        for (int64_t h = kv_head * shape->group; h < (kv_head + 1) * shape->group; h++, r++) {
            float *sum = work->sum + r * shape->padded, inverse = 1.0f / work->total[r];
            for (int64_t c = 0; c < shape->dim; c++) sum[c] *= inverse;
            run_write(y, (first + i) * shape->q_width + h * shape->dim, shape->dim, sum, 0);
            float norm = work->largest[r] + logf(work->total[r]);
            if (logsumexp) run_write(logsumexp, (first + i) * shape->args->n_heads + h, 1, &norm, 0);
        }
}

static void task_run(const AttentionShape *shape, AttentionTask task, int64_t kv_head, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y,
                     Tensor *logsumexp) {
    const AttentionArgs *args = shape->args;
    const Segment *segment = &shape->segments[task.segment];
    int64_t first = segment->begin + task.first, n_tokens = MIN(shape->tokens, segment->end - first), rows = n_tokens * shape->group;
    int64_t position = layout_offset(shape->segments, task.segment) + task.first, end = position + n_tokens;
    int64_t oldest = args->window > 0 ? MAX((int64_t)0, position - args->window + 1) : 0;
    Work work = work_new(shape);
    if (cpu_planning()) return;
    bool skinny = is_skinny(shape, rows);
    if (skinny) keys_prefetch(shape, k, task.segment, kv_head, oldest, MIN(end, oldest / KEY_TILE * KEY_TILE + KEY_TILE));
    rows_load(shape, q, first, n_tokens, kv_head, (float)args->scale, work.q);
    memset(work.sum, 0, (size_t)(rows * shape->padded) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        work.largest[r] = -INFINITY;
        work.total[r] = 0;
    }
    if (skinny) skinny_begin(shape, &work, rows);
    for (int64_t start = oldest / KEY_TILE * KEY_TILE; start < end; start += KEY_TILE) {
        int64_t from = MAX((int64_t)0, oldest - start), to = MIN((int64_t)KEY_TILE, end - start);
        if (skinny) {
            skinny_attend(shape, &work, rows, task.segment, kv_head, position, start, from, to, k, v);
            continue;
        }
        tile_load(shape, k, task.segment, kv_head, start, from, to, work.tile);
        tile_transpose(KEY_TILE, shape->padded, work.tile, shape->padded, work.keys_transposed, KEY_TILE);
        tile_load(shape, v, task.segment, kv_head, start, from, to, work.tile);
        tile_attend(shape, &work, rows, position, start, to, work.tile);
    }
    task_finish(shape, &work, first, n_tokens, kv_head, y, logsumexp);
}

void ISA_FN(attention)(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y, Tensor *logsumexp) {
    const Layout *layout = args->layout;
    const Tensor *keys = layout->cache ? layout->cache->k[args->layer] : k, *values = layout->cache ? layout->cache->v[args->layer] : v;
    if (!CPU_READS(q, keys, values) || !CPU_WRITES(y, logsumexp)) {
        device_reference()->attention(args, q, k, v, y, logsumexp);
        return;
    }
    AttentionShape shape = attention_shape(args);
    AttentionTasks tasks = attention_tasks(&shape, shape.tokens);
    /* Heads of a token are adjacent in memory: if there is enough work for all threads, one thread takes all of them */
    int64_t run = tasks.n >= 8 * args->n_kv_heads * omp_get_max_threads() ? args->n_kv_heads : 1;
#pragma omp parallel for schedule(dynamic, run) if (tasks.parallel)
    for (int64_t i = tasks.n - 1; i >= 0; i--) /* begin with the last tokens of a sequence, because they have the most keys */
        task_run(&shape, tasks.list[i / args->n_kv_heads], i % args->n_kv_heads, q, keys, values, y, logsumexp);
}

void ISA_FN(kv_store)(const AttentionArgs *args, const Tensor *k, const Tensor *v) {
    const Layout *layout = args->layout;
    Tensor *k_pages = layout->cache->k[args->layer], *v_pages = layout->cache->v[args->layer];
    if (!CPU_READS(k, v) || !CPU_WRITES(k_pages, v_pages)) {
        device_reference()->kv_store(args, k, v);
        return;
    }
    const AttentionShape shape = attention_shape(args);
    int64_t width = shape.kv_width;
#pragma omp parallel if (layout->n_tokens * width > CPU_SERIAL)
    {
        int32_t s = 0;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < layout->n_tokens; row++) {
            while (row >= shape.segments[s].end) s++;
            int64_t ignored, target = key_run(&shape, s, shape.segments[s].past + row - shape.segments[s].begin, &ignored);
            run_copy(k_pages, target * width, k, row * width, width);
            run_copy(v_pages, target * width, v, row * width, width);
        }
    }
}
