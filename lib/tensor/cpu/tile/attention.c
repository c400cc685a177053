/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax attention of bf16, forward, in tiles. Scores and sums are f32; weights are rounded to bf16 for the product with the values, but their
 * total is that of the unrounded weights. Source: FlashAttention-2, arXiv 2307.08691, algorithm 1. */
#include "lib/tensor/cpu/tile/attention_forward.h"

enum { QUERY_ROWS = 384 }; /* approximate number of query rows of a task: they share the tiles made of keys and values */

/* Buffers of one task, in the thread's scratch. Tiles of A or B of bf16 and tiles of floats, (rows, columns); a group has LANES queries. */
typedef struct Work {
    int64_t rows, groups;
    Tiles q;    /* B (groups, padded / 32) */
    Tiles keys; /* A (KEY_ROWS, padded / 32): copies of keys that cannot be read in place */
    KeyRows key_rows[KEY_ROWS];
    Tiles pair_values;   /* B (padded / 16, KEY_CHUNKS) */
    Tiles values;        /* A (padded / 16, KEY_CHUNKS): values transposed */
    Tiles scores;        /* floats (2 groups, KEY_ROWS): result of one product of tiles */
    Tiles weights;       /* B (2 groups, KEY_CHUNKS) */
    Tiles sum;           /* floats (groups, padded / 16): running sums of weighted values, one line for each dimension of the head */
    float *base, *total; /* (groups x LANES): base of the weights, a score / ln 2; sum of the weights */
    int64_t *at;         /* (groups x LANES): offsets of queries in q and y */
    int32_t *positions;  /* (groups x LANES); lanes of a group after the last query have the last query's position */
} Work;

static Work work_new(const AttentionShape *shape) {
    int64_t groups = blocks_of(shape->tokens * shape->group, LANES), chunks = shape->padded / TILE_K, tiles = shape->padded / TILE_ROWS;
    int64_t n_tiles = groups * (chunks + tiles) + KEY_ROWS * chunks + 2 * KEY_CHUNKS * tiles + 2 * KEY_ROWS + 2 * KEY_CHUNKS;
    char *memory = cpu_scratch(CPU_LOCAL, (size_t)(n_tiles * TILE_BYTES + groups * LANES * 20));
    Work work = {.q = tiles_alloc(&memory, groups, chunks), .keys = tiles_alloc(&memory, KEY_ROWS, chunks)};
    work.pair_values = tiles_alloc(&memory, tiles, KEY_CHUNKS);
    work.values = tiles_alloc(&memory, tiles, KEY_CHUNKS);
    work.scores = tiles_alloc(&memory, 2, KEY_ROWS);
    work.weights = tiles_alloc(&memory, 2, KEY_CHUNKS);
    work.sum = tiles_alloc(&memory, groups, tiles);
    work.base = (float *)memory;
    work.total = work.base + groups * LANES;
    work.at = (int64_t *)(work.total + groups * LANES);
    work.positions = (int32_t *)(work.at + groups * LANES);
    return work;
}

static void queries_begin(const AttentionShape *shape, Work *work, const Tensor *q, int64_t first, int64_t n_tokens, int64_t position,
                          int64_t kv_head) {
    int64_t chunks = shape->padded / TILE_K;
    work->rows = n_tokens * shape->group;
    work->groups = blocks_of(work->rows, LANES);
    queries_find(shape, first, position, kv_head, 0, work->rows, work->at, work->positions);
    for (int64_t r = work->rows; r < work->groups * LANES; r++) work->positions[r] = work->positions[work->rows - 1];
    queries_put(shape, q, work->at, work->rows, work->groups * LANES, work->q);
    tiles_transpose(work->groups, chunks, work->q, work->q);
    memset(work->sum.at, 0, (size_t)(work->groups * work->sum.row));
    for (int64_t r = 0; r < work->groups * LANES; r++) {
        work->base[r] = -INFINITY;
        work->total[r] = 0;
    }
}

/* Loads values of a tile of keys as pairs of rows, zeros where there are none, then transposes them. */
static void values_begin(const AttentionShape *shape, const Work *work, const Tensor *v, const int64_t rows[KEY_TILE], int64_t kv_head) {
    for (int64_t p = 0; p < KEY_TILE / 2; p++) {
        const uint16_t *even = values_at(shape, v, rows[2 * p], kv_head), *odd = values_at(shape, v, rows[2 * p + 1], kv_head);
        for (int64_t c = 0; c < shape->padded; c += TILE_K) {
            __m512i upper = values_32(even, c, shape->dim), lower = values_32(odd, c, shape->dim);
            int64_t line = p % TILE_ROWS * 64;
            pairs_interleave(&upper, &lower, (char *)tile_at(work->pair_values, c / TILE_ROWS, p / TILE_ROWS) + line,
                             (char *)tile_at(work->pair_values, c / TILE_ROWS + 1, p / TILE_ROWS) + line);
        }
    }
    tiles_transpose(shape->padded / TILE_ROWS, KEY_CHUNKS, work->pair_values, work->values);
}

/* Keys and values of a tile. */
static void keys_begin(const AttentionShape *shape, Work *work, const Tensor *k, const Tensor *v, int32_t segment, int64_t kv_head, int64_t start,
                       int64_t from, int64_t to) {
    int64_t rows[KEY_TILE];
    rows_find(shape, segment, start, from, to, rows);
    for (int64_t i = 0; i < KEY_ROWS; i++) work->key_rows[i] = keys_find(shape, k, rows + i * TILE_ROWS, kv_head, work->keys, i);
    values_begin(shape, work, v, rows, kv_head);
}

/* Scores of 32 keys and one or two groups of queries. */
#ifdef __AMX_BF16__
static inline __attribute__((always_inline)) void scores_block(const bool two, int64_t depth, const KeyRows keys[2], Tiles q, Tiles scores) {
    __asm__ volatile("" : : : "memory"); /* as in block_multiply */
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t k = 0; k < depth; k++) {
        tile_read(4, keys[0].at + k * keys[0].column, keys[0].line);
        tile_read(6, tile_at(q, 0, k), 64);
        tile_multiply(0, 4, 6);
        tile_read(5, keys[1].at + k * keys[1].column, keys[1].line);
        tile_multiply(1, 5, 6);
        if (two) {
            tile_read(7, tile_at(q, 1, k), 64);
            tile_multiply(2, 4, 7);
            tile_multiply(3, 5, 7);
        }
    }
    tile_write(0, tile_at(scores, 0, 0), 64);
    tile_write(1, tile_at(scores, 0, 1), 64);
    if (two) {
        tile_write(2, tile_at(scores, 1, 0), 64);
        tile_write(3, tile_at(scores, 1, 1), 64);
    }
}
#else
static void scores_block(const bool two, int64_t depth, const KeyRows keys[2], Tiles q, Tiles scores) {
    for (int64_t j = 0; j < 2; j++) {
        TileLines rows = {keys[j].at, keys[j].line, keys[j].column};
        char *first = tile_at(q, 0, 0), *sums = tile_at(scores, 0, j);
        if (two)
            tiles_sum_wide(depth * TILE_K, rows, first, (char *)tile_at(q, 1, 0) - first, q.column, sums, (char *)tile_at(scores, 1, j) - sums, 64,
                           false, NULL);
        else
            tiles_sum(depth * TILE_K, rows, first, q.column, sums, 64, false, NULL);
    }
}
#endif

/* Applies the soft-cap to scores of keys begin..end-1 of a tile, and sets those that a query does not see to -infinity. */
static void scores_finish(const AttentionShape *shape, const int32_t *positions, int64_t start, Columns keys, float *scores) {
    scores_cap(shape, keys, scores);
    __m512i newest = _mm512_loadu_si512(positions), oldest = lanes_oldest(shape, newest), unseen = _mm512_castps_si512(_mm512_set1_ps(-INFINITY));
    for (int64_t j = keys.begin; j < keys.end; j++)
        _mm512_mask_storeu_epi32(scores + j * LANES, (__mmask16)~lanes_seeing(oldest, newest, start + j), unseen);
}

/* Adds one tile of `n_keys` keys and values to the sums of all queries of a task. */
static void tile_attend(const AttentionShape *shape, const Work *work, int64_t start, int64_t n_keys) {
    for (int64_t group = 0; group < work->groups; group += 2) {
        int64_t n = MIN((int64_t)2, work->groups - group);
        Columns seen = columns_seen(shape, work->positions[group * LANES], work->positions[(group + n) * LANES - 1], start, n_keys);
        if (seen.begin >= seen.end) continue;
        seen = (Columns){seen.begin / TILE_K * TILE_K, blocks_of(seen.end, TILE_K) * TILE_K};
        int64_t chunk = seen.begin / TILE_K;
        for (int64_t row = seen.begin / TILE_ROWS; row < seen.end / TILE_ROWS; row += 2) {
            if (n == 2)
                scores_block(true, shape->padded / TILE_K, work->key_rows + row, tiles_from(work->q, group, 0), tiles_from(work->scores, 0, row));
            else
                scores_block(false, shape->padded / TILE_K, work->key_rows + row, tiles_from(work->q, group, 0), tiles_from(work->scores, 0, row));
        }
        for (int64_t i = 0; i < n; i++) {
            const int32_t *positions = work->positions + (group + i) * LANES;
            Columns common = columns_seen(shape, positions[LANES - 1], positions[LANES - 1], start, n_keys);
            common.end = columns_seen(shape, positions[0], positions[0], start, n_keys).end;
            if (shape->args->softcap != 0 || common.begin > seen.begin || common.end < seen.end)
                scores_finish(shape, positions, start, seen, tile_at(work->scores, i, 0));
            float shrunk[LANES], *base = work->base + (group + i) * LANES, *total = work->total + (group + i) * LANES,
                                 *sum = tile_at(work->sum, group + i, 0);
            if (softmax_lanes(shape, seen, tile_at(work->scores, i, 0), base, total, tile_at(work->weights, i, 0), shrunk))
                for (int64_t c = 0; c < shape->padded; c++)
                    _mm512_storeu_ps(sum + c * LANES, _mm512_mul_ps(_mm512_loadu_ps(sum + c * LANES), _mm512_loadu_ps(shrunk)));
        }
        Tiles sum = {tile_at(work->sum, group, 0), work->sum.column, work->sum.row}; /* transposed */
        tiles_multiply(shape->padded / TILE_ROWS, n, (seen.end - seen.begin) / TILE_K, tiles_from(work->values, 0, chunk),
                       tiles_from(work->weights, 0, chunk), sum, true);
    }
}

static void queries_finish(const AttentionShape *shape, const Work *work, Tensor *y, Tensor *logsumexp) {
    for (int64_t group = 0; group < work->groups; group++) {
        int64_t first = group * LANES, n = MIN((int64_t)LANES, work->rows - first);
        const int64_t *at = work->at + first;
        __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), _mm512_loadu_ps(work->total + first));
        for (int64_t c = 0; c < shape->dim; c += LANES) {
            float *sum = tile_at(work->sum, group, c / LANES), rows[LANES * LANES];
            __mmask16 there = shape->dim - c >= LANES ? 0xffff : (__mmask16)((1u << (shape->dim - c)) - 1);
            for (int64_t i = 0; i < LANES; i++) _mm512_storeu_ps(sum + i * LANES, _mm512_mul_ps(_mm512_loadu_ps(sum + i * LANES), inverse));
            transpose_16x16(sum, 64, rows, 64);
            for (int64_t r = 0; r < n; r++)
                _mm256_mask_storeu_epi16((uint16_t *)y->elements + at[r] + c, there, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(rows + r * LANES)));
        }
        for (int64_t r = 0; logsumexp && r < n; r++)
            ((float *)logsumexp->elements)[at[r] / shape->dim] = work->base[first + r] * LN_2 + logf(work->total[first + r]);
    }
}

static void task_run(const AttentionShape *shape, AttentionTask task, int64_t kv_head, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y,
                     Tensor *logsumexp) {
    const AttentionArgs *args = shape->args;
    const Segment *segment = &shape->segments[task.segment];
    int64_t first = segment->begin + task.first, n_tokens = MIN(shape->tokens, segment->end - first);
    int64_t position = layout_offset(shape->segments, task.segment) + task.first, end = position + n_tokens;
    int64_t oldest = args->window > 0 ? MAX((int64_t)0, position - args->window + 1) : 0;
    Work work = work_new(shape);
    if (cpu_planning()) return;
    queries_begin(shape, &work, q, first, n_tokens, position, kv_head);
    for (int64_t start = oldest / KEY_TILE * KEY_TILE; start < end; start += KEY_TILE) {
        int64_t to = MIN((int64_t)KEY_TILE, end - start);
        keys_begin(shape, &work, k, v, task.segment, kv_head, start, MAX((int64_t)0, oldest - start), to);
        tile_attend(shape, &work, start, to);
    }
    queries_finish(shape, &work, y, logsumexp);
}

/* Moves the tasks of single tokens to the front and returns their number. */
static int64_t alone_first(const AttentionShape *shape, AttentionTask *list, int64_t n) {
    int64_t alone = 0;
    for (int64_t i = 0; i < n; i++)
        if (attends_alone(shape, &shape->segments[list[i].segment])) {
            AttentionTask task = list[i];
            list[i] = list[alone];
            list[alone++] = task;
        }
    return alone;
}

void ISA_FN(tile_attention)(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y, Tensor *logsumexp) {
    const Layout *layout = args->layout;
    const Tensor *keys = layout->cache ? layout->cache->k[args->layer] : k, *values = layout->cache ? layout->cache->v[args->layer] : v;
    bool tiles = q->dtype == DT_BF16 && keys->dtype == DT_BF16 && values->dtype == DT_BF16 && y->dtype == DT_BF16 &&
                 (!logsumexp || logsumexp->dtype == DT_F32);
    if (!tiles || !(args->scale > 0)) {
        cpu_attention_avx512_bf16(args, q, k, v, y, logsumexp);
        return;
    }
    AttentionShape shape = tile_attention_shape(args, QUERY_ROWS);
    AttentionTasks tasks = attention_tasks(&shape, shape.tokens);
    int64_t kv_heads = args->n_kv_heads, n = tasks.n / kv_heads, alone = alone_first(&shape, tasks.list, n);
    ISA_FN(attention_tokens)(&shape, tasks.list, alone, tasks.parallel_tiles, q, keys, values, y, logsumexp);
    if (alone == n) return;
#pragma omp parallel if (tasks.parallel_tiles)
    {
        tiles_begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = tasks.n - 1; i >= alone * kv_heads; i--) /* begin with the last tokens of a sequence, because they have the most keys */
            task_run(&shape, tasks.list[i / kv_heads], i % kv_heads, q, keys, values, y, logsumexp);
        tiles_end();
    }
}
