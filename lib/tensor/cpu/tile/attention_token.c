/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of sequences that are each extended by a single token, with a cache, in tiles of bf16: a step of generation. Such a token has few
 * queries, so the lanes of a vector are shared by several key/value heads: a product of scores has zeros in the lanes of the other heads, and so
 * have the weights in the product with the values. Zeros do not change a sum of finite numbers, so the bits are those of attention.c. A row of
 * keys is read once for all heads of a task; later rows are prefetched meanwhile, also those of the next sequence. */
#include "lib/tensor/cpu/work_queue.h"
#include "lib/tensor/cpu/tile/attention_forward.h"
#include "lib/tensor/cpu/tile/skinny.h"

#include <omp.h>

enum {
    WIDE = 4,     /* tiles of sums that are kept in registers: 64 dimensions of the head */
    SOME = 8,     /* queries whose scores vectors compute together, if there are as many; else up to TOGETHER */
    TOGETHER = 4, /* lanes whose weighted values are added together: that many times WIDE sums fit 32 registers */
#ifdef __AMX_BF16__
    KEYS_FIRST = false /* a row of keys is prefetched together with its values: 4 % faster than all keys first */
#else
    KEYS_FIRST = true
#endif
};

/* A token's key/value heads from `head` on. */
typedef struct TokenTask {
    int32_t segment;
    int32_t head;
} TokenTask;

/* Data of a call that all tasks share; `heads`: of a task. */
typedef struct Call {
    const AttentionShape *shape;
    const Tensor *q, *k, *v;
    Tensor *y, *logsumexp;
    int64_t heads;
} Call;

static int64_t task_heads(const Call *call, const TokenTask *task) { return MIN(call->heads, call->shape->args->n_kv_heads - task->head); }

/* A tile of keys of a task: those from position `start` on; the token sees from..to-1. `rows`: in the cache; -1 where there is none. */
typedef struct KeyTile {
    const TokenTask *task;
    int64_t start, from, to, end; /* end: of all keys */
    int64_t rows[KEY_TILE];
} KeyTile;

static void key_tile_find(const Call *call, KeyTile *tile) {
    tile->to = MIN((int64_t)KEY_TILE, tile->end - tile->start);
    rows_find(call->shape, tile->task->segment, tile->start, tile->from, tile->to, tile->rows);
}

static void key_tile_first(const Call *call, const TokenTask *task, KeyTile *tile) {
    int64_t position = layout_offset(call->shape->segments, task->segment), window = call->shape->args->window;
    int64_t oldest = window > 0 ? MAX((int64_t)0, position - window + 1) : 0;
    *tile = (KeyTile){.task = task, .start = oldest / KEY_TILE * KEY_TILE, .from = oldest % KEY_TILE, .end = position + 1};
    key_tile_find(call, tile);
}

/* Finds the tile after this one, of the same task or the next one (NULL: none). False, and a tile without keys, when there is none. */
static bool key_tile_next(const Call *call, const KeyTile *tile, const TokenTask *later, KeyTile *next) {
    if (tile->start + tile->to < tile->end) {
        *next = (KeyTile){.task = tile->task, .start = tile->start + KEY_TILE, .end = tile->end};
        key_tile_find(call, next);
    } else if (later)
        key_tile_first(call, later, next);
    else
        next->to = 0;
    return next->to > 0;
}

/* Prefetches row j of a tile, all heads of the task line by line: memory order is fastest. Inlined, because gcc would consider a function that
 * only prefetches free of effects and drop its calls. */
static inline __attribute__((always_inline)) void row_ask(const Call *call, const KeyTile *tile, int64_t j, bool keys, bool values) {
    if (tile->rows[j] < 0) return;
    int64_t at = (tile->rows[j] * call->shape->kv_width + tile->task->head * call->shape->dim) * 2,
            end = at + task_heads(call, tile->task) * call->shape->dim * 2;
    for (at = at / 64 * 64; at < end; at += 64) {
        if (keys) _mm_prefetch((const char *)call->k->elements + at, _MM_HINT_T1);
        if (values) _mm_prefetch((const char *)call->v->elements + at, _MM_HINT_T1);
    }
}

/* Progress of the prefetch of the next tile, during the work on this one: number of rows of keys, and of values. */
typedef struct Soon {
    const KeyTile *tile;
    int64_t keys, values;
} Soon;

/* Prefetches while scores are computed. */
static inline __attribute__((always_inline)) void soon_ask_first(const Call *call, Soon *upcoming, int64_t n) {
    for (int64_t until = MIN(upcoming->keys + n, upcoming->tile->to); upcoming->keys < until; upcoming->keys++)
        row_ask(call, upcoming->tile, upcoming->keys, true, !KEYS_FIRST);
    if (!KEYS_FIRST) upcoming->values = upcoming->keys;
}

/* Prefetches while values are added. */
static inline __attribute__((always_inline)) void soon_ask_last(const Call *call, Soon *upcoming, int64_t n) {
    for (int64_t until = MIN(upcoming->values + n, upcoming->tile->to); upcoming->values < until; upcoming->values++)
        row_ask(call, upcoming->tile, upcoming->values, !KEYS_FIRST, true);
}

/* ---- a task ---- */

/* Buffers of a task, in the thread's scratch; a lane is a query. */
typedef struct Work {
    Tiles queries;             /* A (1, padded / 32) */
    Tiles q;                   /* B (heads, padded / 32): zeros in the lanes of other heads */
    Tiles keys;                /* A (KEY_ROWS, padded / 32): copies of a head's keys that cannot be read in place */
    Tiles scores;              /* floats (1, KEY_ROWS) */
    Tiles weights, transposed; /* B and A (1, KEY_CHUNKS) */
    Tiles own;                 /* A (heads, KEY_CHUNKS): weights, zeros in the lanes of other heads */
    Tiles pair_values;         /* B (WIDE, 1) */
    /* floats (1, padded / 16): running sums of weighted values, one line for each query, columns in the order of pairs_unpack */
    Tiles sum;
    float base[LANES], total[LANES];
} Work;

#ifdef __AMX_BF16__
/* Loads queries as tiles of B, one for each head. */
static void queries_spread(const Call *call, const TokenTask *task, const Work *work) {
    int64_t chunks = call->shape->padded / TILE_K, group = call->shape->group;
    tiles_transpose(1, chunks, work->queries, work->queries);
    for (int64_t h = 0; h < task_heads(call, task); h++) {
        __mmask16 lanes = (__mmask16)(((1u << group) - 1) << (h * group));
        for (int64_t c = 0; c < chunks; c++)
            for (int64_t line = 0; line < TILE_BYTES; line += 64)
                _mm512_storeu_si512((char *)tile_at(work->q, h, c) + line,
                                    _mm512_maskz_loadu_epi32(lanes, (const char *)tile_at(work->queries, 0, c) + line));
    }
}
#else
/* Vectors process each head's queries separately */
static void queries_spread(const Call *call, const TokenTask *task, const Work *work) { (void)call, (void)task, (void)work; }
#endif

static Work work_new(const Call *call, const TokenTask *task) {
    const AttentionShape *shape = call->shape;
    int64_t heads = task_heads(call, task), group = shape->group, chunks = shape->padded / TILE_K, tiles = shape->padded / TILE_ROWS;
    char *memory = cpu_scratch(
        CPU_LOCAL, (size_t)(((1 + call->heads + KEY_ROWS) * chunks + KEY_ROWS + (2 + call->heads) * KEY_CHUNKS + WIDE + tiles) * TILE_BYTES));
    Work work = {.queries = tiles_alloc(&memory, 1, chunks), .q = tiles_alloc(&memory, call->heads, chunks)};
    work.keys = tiles_alloc(&memory, KEY_ROWS, chunks);
    work.scores = tiles_alloc(&memory, 1, KEY_ROWS);
    work.weights = tiles_alloc(&memory, 1, KEY_CHUNKS);
    work.transposed = tiles_alloc(&memory, 1, KEY_CHUNKS);
    work.own = tiles_alloc(&memory, call->heads, KEY_CHUNKS);
    work.pair_values = tiles_alloc(&memory, WIDE, 1);
    work.sum = tiles_alloc(&memory, 1, tiles);
    if (cpu_planning()) return work;
    memset(work.own.at, 0, (size_t)(heads * work.own.row));
    memset(work.sum.at, 0, (size_t)work.sum.row);
    const uint16_t *q = (const uint16_t *)call->q->elements + shape->segments[task->segment].begin * shape->q_width + task->head * group * shape->dim;
    for (int64_t l = 0; l < LANES; l++) {
        line_put(work.queries, l, l < heads * group ? q + l * shape->dim : NULL, shape->dim);
        work.base[l] = -INFINITY;
        work.total[l] = 0;
    }
    queries_spread(call, task, &work);
    return work;
}

#ifdef __AMX_BF16__

/* Adds a head's scores of 32 or 64 keys to tiles 0 to 3. `each`: number of later rows to prefetch with each tile. */
static inline __attribute__((always_inline)) void head_scores(const bool four, const Call *call, const KeyRows keys[KEY_ROWS], Tiles q,
                                                              Soon *upcoming, int64_t each) {
    __asm__ volatile("" : : : "memory"); /* as in block_multiply */
    for (int64_t c = 0; c < call->shape->padded / TILE_K; c++) {
        tile_read(6, tile_at(q, 0, c), 64);
        tile_read(4, keys[0].at + c * keys[0].column, keys[0].line);
        tile_multiply(0, 4, 6);
        soon_ask_first(call, upcoming, each);
        tile_read(5, keys[1].at + c * keys[1].column, keys[1].line);
        tile_multiply(1, 5, 6);
        soon_ask_first(call, upcoming, each);
        if (!four) continue;
        tile_read(4, keys[2].at + c * keys[2].column, keys[2].line);
        tile_multiply(2, 4, 6);
        soon_ask_first(call, upcoming, each);
        tile_read(5, keys[3].at + c * keys[3].column, keys[3].line);
        tile_multiply(3, 5, 6);
        soon_ask_first(call, upcoming, each);
    }
}

/* Scores of a tile of keys, or of its first half. */
static void token_scores(const Call *call, const KeyTile *tile, const Work *work, bool four, Soon *upcoming) {
    int64_t heads = task_heads(call, tile->task), each = blocks_of(upcoming->tile->to / 3, heads * call->shape->padded / TILE_K * (four ? 4 : 2));
    KeyRows keys[KEY_ROWS];
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t h = 0; h < heads; h++) {
        int64_t head = tile->task->head + h;
        for (int64_t i = 0; i < (four ? 4 : 2); i++) keys[i] = keys_find(call->shape, call->k, tile->rows + i * TILE_ROWS, head, work->keys, i);
        if (four)
            head_scores(true, call, keys, tiles_from(work->q, h, 0), upcoming, each);
        else
            head_scores(false, call, keys, tiles_from(work->q, h, 0), upcoming, each);
    }
    tile_write(0, tile_at(work->scores, 0, 0), 64);
    tile_write(1, tile_at(work->scores, 0, 1), 64);
    if (four) {
        tile_write(2, tile_at(work->scores, 0, 2), 64);
        tile_write(3, tile_at(work->scores, 0, 3), 64);
    }
}

#else

/* Scores of 16 keys with `n` queries of a head (lines of them in A's tiles); keys become lanes. */
static inline __attribute__((always_inline)) void queries_score(const int n, int64_t depth, Tiles queries, int64_t line, const KeyRows *keys,
                                                                float *scores) {
    __m512 sums[SOME] = {0};
    for (int64_t c = 0; c < depth; c++) {
        TransposeLines rows = transpose_lines(keys->at + c * keys->column, keys->line);
        const char *query = (const char *)tile_at(queries, 0, c) + line * 64;
        for (int quarter = 0; quarter < TILE_K / 2 / SKINNY_PAIRS; quarter++, query += SKINNY_PAIRS * 4) {
            VecBits pairs[SKINNY_PAIRS];
            transpose_piece(&rows, pairs);
#pragma GCC unroll 4
            for (int pair = 0; pair < SKINNY_PAIRS; pair++)
#pragma GCC unroll 8
                for (int i = 0; i < n; i++) sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)pairs[pair], pair_of(query + i * 64 + pair * 4));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) _mm512_store_ps(scores + (line + i) * LANES, sums[i]);
}

/* Scores of a tile of keys, or of its first half. */
static void token_scores(const Call *call, const KeyTile *tile, const Work *work, bool four, Soon *upcoming) {
    int64_t group = call->shape->group, depth = call->shape->padded / TILE_K, lines = task_heads(call, tile->task) * group, blocks = four ? 4 : 2;
    _Alignas(64) float scores[LANES * LANES] = {0};
    for (int64_t i = 0; i < blocks; i++) {
        for (int64_t line = 0; line < lines;) {
            KeyRows keys = keys_find(call->shape, call->k, tile->rows + i * TILE_ROWS, tile->task->head + line / group, work->keys, 0);
            int64_t left = group - line % group, n = left >= SOME ? SOME : MIN(left, (int64_t)TOGETHER);
            switch (n) {
            case SOME: queries_score(SOME, depth, work->queries, line, &keys, scores); break;
            case 4: queries_score(4, depth, work->queries, line, &keys, scores); break;
            case 3: queries_score(3, depth, work->queries, line, &keys, scores); break;
            case 2: queries_score(2, depth, work->queries, line, &keys, scores); break;
            default: queries_score(1, depth, work->queries, line, &keys, scores);
            }
            line += n;
            soon_ask_first(call, upcoming, upcoming->tile->to * (i * lines + line) / (blocks * lines) - upcoming->keys);
        }
        transpose_16x16(scores, 64, tile_at(work->scores, 0, i), 64);
    }
}
#endif

/* Weights as tiles of A, one for each head. */
static void weights_part(const Call *call, const TokenTask *task, const Work *work, int64_t chunks) {
    int64_t group = call->shape->group;
    tiles_transpose(1, chunks, work->weights, work->transposed);
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t l = 0; l < task_heads(call, task) * group; l++)
            _mm512_storeu_si512((char *)tile_at(work->own, l / group, c) + l * 64,
                                _mm512_loadu_si512((const char *)tile_at(work->transposed, 0, c) + l * 64));
}

/* As pairs_interleave, but columns 0-3, 8-11, 16-19 and 24-27 go to `left`: this is faster, and work_finish restores the order. */
static inline void pairs_unpack(const void *even_row, const void *odd_row, void *left, void *right) {
    __m512i even = _mm512_loadu_si512(even_row), odd = _mm512_loadu_si512(odd_row);
    _mm512_storeu_si512(left, _mm512_unpacklo_epi16(even, odd));
    _mm512_storeu_si512(right, _mm512_unpackhi_epi16(even, odd));
}

/* Loads a head's values of 32 keys, two or four tiles of dimensions from d on, as tiles of B. `whole`: the head has all of these dimensions.
 * Prefetches `each` later rows with each pair. */
static inline __attribute__((always_inline)) void values_pair(const bool four, const bool whole, const Call *call, const Work *work, int64_t head,
                                                              const int64_t *rows, int64_t d, Soon *upcoming, int64_t each) {
    static const uint16_t none[WIDE * TILE_ROWS];
    const uint16_t *values = (const uint16_t *)call->v->elements + head * call->shape->dim + d;
    int64_t width = call->shape->kv_width, left = call->shape->dim - d;
    char *tiles = tile_at(work->pair_values, 0, 0);
    for (int64_t p = 0; p < TILE_ROWS; p++, tiles += 64) {
        const uint16_t *even = rows[2 * p] < 0 ? none : values + rows[2 * p] * width,
                       *odd = rows[2 * p + 1] < 0 ? none : values + rows[2 * p + 1] * width;
        soon_ask_last(call, upcoming, each);
        if (whole) {
            pairs_unpack(even, odd, tiles, tiles + TILE_BYTES);
            if (four) pairs_unpack(even + TILE_K, odd + TILE_K, tiles + 2 * TILE_BYTES, tiles + 3 * TILE_BYTES);
            continue;
        }
        for (int64_t i = 0; i < (four ? 2 * TILE_K : TILE_K); i += TILE_K) {
            __m512i upper = values_32(even, i, left), lower = values_32(odd, i, left);
            pairs_unpack(&upper, &lower, tiles + i / TILE_ROWS * TILE_BYTES, tiles + (i / TILE_ROWS + 1) * TILE_BYTES);
        }
    }
}

/* Adds the heads' weighted values to two or four tiles of sums, of dimensions from d on. */
#ifdef __AMX_BF16__
static inline __attribute__((always_inline)) void values_add(const bool four, const bool whole, const Call *call, const KeyTile *tile,
                                                             const Work *work, int64_t d, int64_t chunks, Soon *upcoming, int64_t each) {
    Tiles sum = tiles_from(work->sum, 0, d / TILE_ROWS);
    __asm__ volatile("" : : : "memory");
    tile_read(0, tile_at(sum, 0, 0), 64);
    tile_read(1, tile_at(sum, 0, 1), 64);
    if (four) {
        tile_read(2, tile_at(sum, 0, 2), 64);
        tile_read(3, tile_at(sum, 0, 3), 64);
    }
    for (int64_t h = 0; h < task_heads(call, tile->task); h++)
        for (int64_t c = 0; c < chunks; c++) {
            values_pair(four, whole, call, work, tile->task->head + h, tile->rows + c * TILE_K, d, upcoming, each);
            __asm__ volatile("" : : : "memory");
            tile_read(4, tile_at(work->own, h, c), 64);
            tile_read(5, tile_at(work->pair_values, 0, 0), 64);
            tile_multiply(0, 4, 5);
            tile_read(6, tile_at(work->pair_values, 1, 0), 64);
            tile_multiply(1, 4, 6);
            if (!four) continue;
            tile_read(5, tile_at(work->pair_values, 2, 0), 64);
            tile_multiply(2, 4, 5);
            tile_read(6, tile_at(work->pair_values, 3, 0), 64);
            tile_multiply(3, 4, 6);
        }
    tile_write(0, tile_at(sum, 0, 0), 64);
    tile_write(1, tile_at(sum, 0, 1), 64);
    if (four) {
        tile_write(2, tile_at(sum, 0, 2), 64);
        tile_write(3, tile_at(sum, 0, 3), 64);
    }
}
#else

/* Adds the weighted values of 32 keys to the sums of n lanes, from `lane` on. */
static inline __attribute__((always_inline)) void lanes_add(const int n, const bool four, Tiles weights, Tiles values, Tiles sum, int64_t lane) {
    const int tiles = four ? WIDE : WIDE / 2;
    __m512 sums[TOGETHER][WIDE];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++) sums[i][t] = _mm512_loadu_ps((char *)tile_at(sum, 0, t) + (lane + i) * 64);
    for (int64_t pair = 0; pair < TILE_ROWS; pair++) {
        __m512bh columns[WIDE];
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++) columns[t] = (__m512bh)_mm512_loadu_si512((char *)tile_at(values, t, 0) + pair * 64);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
#pragma GCC unroll 4
            for (int t = 0; t < tiles; t++)
                sums[i][t] = _mm512_dpbf16_ps(sums[i][t], pair_of((char *)weights.at + (lane + i) * 64 + pair * 4), columns[t]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++) _mm512_storeu_ps((char *)tile_at(sum, 0, t) + (lane + i) * 64, sums[i][t]);
}

static inline __attribute__((always_inline)) void values_add(const bool four, const bool whole, const Call *call, const KeyTile *tile,
                                                             const Work *work, int64_t d, int64_t chunks, Soon *upcoming, int64_t each) {
    int64_t group = call->shape->group;
    Tiles sum = tiles_from(work->sum, 0, d / TILE_ROWS);
    for (int64_t h = 0; h < task_heads(call, tile->task); h++)
        for (int64_t c = 0; c < chunks; c++) {
            values_pair(four, whole, call, work, tile->task->head + h, tile->rows + c * TILE_K, d, upcoming, each);
            Tiles weights = tiles_from(work->own, h, c);
            for (int64_t lane = h * group, end = lane + group; lane < end;) {
                int64_t n = MIN((int64_t)TOGETHER, end - lane);
                switch (n) {
                case 4: lanes_add(4, four, weights, work->pair_values, sum, lane); break;
                case 3: lanes_add(3, four, weights, work->pair_values, sum, lane); break;
                case 2: lanes_add(2, four, weights, work->pair_values, sum, lane); break;
                default: lanes_add(1, four, weights, work->pair_values, sum, lane);
                }
                lane += n;
            }
        }
}
#endif

/* Adds a tile of keys and values to the sums; `next` is the following tile. */
static void tile_attend(const Call *call, const KeyTile *tile, Work *work, const KeyTile *next) {
    const AttentionShape *shape = call->shape;
    int64_t chunks = blocks_of(tile->to, TILE_K);
    Columns keys = {0, chunks * TILE_K};
    float *scores = tile_at(work->scores, 0, 0), shrunk[LANES];
    Soon upcoming = {next, 0, 0};
    token_scores(call, tile, work, chunks == KEY_CHUNKS, &upcoming);
    scores_cap(shape, keys, scores);
    for (int64_t j = 0; j < tile->from; j++) _mm512_storeu_ps(scores + j * LANES, _mm512_set1_ps(-INFINITY));
    for (int64_t j = tile->to; j < keys.end; j++) _mm512_storeu_ps(scores + j * LANES, _mm512_set1_ps(-INFINITY));
    if (softmax_lanes(shape, keys, scores, work->base, work->total, tile_at(work->weights, 0, 0), shrunk))
        for (int64_t t = 0; t < shape->padded / TILE_ROWS; t++)
            for (int64_t l = 0; l < LANES; l++) {
                float *line = (float *)tile_at(work->sum, 0, t) + l * LANES;
                _mm512_storeu_ps(line, _mm512_mul_ps(_mm512_loadu_ps(line), _mm512_set1_ps(shrunk[l])));
            }
    weights_part(call, tile->task, work, chunks);
    int64_t each = blocks_of(next->to - upcoming.values, task_heads(call, tile->task) * chunks * TILE_ROWS);
    for (int64_t d = 0; d < shape->padded; d += WIDE * TILE_ROWS) {
        if (shape->dim - d >= WIDE * TILE_ROWS)
            values_add(true, true, call, tile, work, d, chunks, &upcoming, each);
        else if (shape->padded - d >= WIDE * TILE_ROWS)
            values_add(true, false, call, tile, work, d, chunks, &upcoming, each);
        else
            values_add(false, false, call, tile, work, d, chunks, &upcoming, each);
    }
}

static void work_finish(const Call *call, const TokenTask *task, const Work *work) {
    const AttentionShape *shape = call->shape;
    int64_t n = task_heads(call, task) * shape->group, row = shape->segments[task->segment].begin, first = task->head * shape->group;
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0); /* of four columns each */
    float inverse[LANES];
    _mm512_storeu_ps(inverse, _mm512_div_ps(_mm512_set1_ps(1), _mm512_loadu_ps(work->total)));
    for (int64_t l = 0; l < n; l++) {
        uint16_t *y = (uint16_t *)call->y->elements + row * shape->q_width + (first + l) * shape->dim;
        for (int64_t c = 0; c < shape->dim; c += TILE_K) {
            __mmask32 there = shape->dim - c >= TILE_K ? 0xffffffffu : (1u << (shape->dim - c)) - 1;
            const char *sums = (const char *)tile_at(work->sum, 0, c / LANES) + l * 64;
            __m512 left = _mm512_mul_ps(_mm512_loadu_ps(sums), _mm512_set1_ps(inverse[l])),
                   right = _mm512_mul_ps(_mm512_loadu_ps(sums + TILE_BYTES), _mm512_set1_ps(inverse[l]));
            _mm512_mask_storeu_epi16(y + c, there, _mm512_permutexvar_epi64(order, (__m512i)_mm512_cvtne2ps_pbh(right, left)));
        }
        if (call->logsumexp)
            ((float *)call->logsumexp->elements)[row * shape->args->n_heads + first + l] = work->base[l] * LN_2 + logf(work->total[l]);
    }
}

/* Runs a thread's tasks. Each task is taken when the one before begins, so that its keys are prefetched meanwhile. */
static void tasks_run(const Call *call, const TokenTask *tasks, const WorkQueue *queue) {
    KeyTile tiles[2];
    int64_t at = 0, taken = work_queue_next(queue, &at);
    if (taken < 0) return;
    const TokenTask *task = &tasks[taken], *later = NULL;
    Work work = work_new(call, task);
    key_tile_first(call, task, tiles);
    for (int64_t j = 0; j < tiles->to; j++) row_ask(call, tiles, j, true, true);
    bool begun = true;
    for (int turn = 0;; turn ^= 1) {
        KeyTile *tile = &tiles[turn], *next = &tiles[turn ^ 1];
        if (begun) later = (taken = work_queue_next(queue, &at)) < 0 ? NULL : &tasks[taken];
        bool more = key_tile_next(call, tile, later, next);
        tile_attend(call, tile, &work, next);
        begun = !more || next->task != tile->task;
        if (!begun) continue;
        work_finish(call, tile->task, &work);
        if (!more) return;
        work = work_new(call, next->task);
    }
}

void ISA_FN(attention_tokens)(const AttentionShape *shape, const AttentionTask *tokens, int64_t n, bool parallel, const Tensor *q, const Tensor *k,
                              const Tensor *v, Tensor *y, Tensor *logsumexp) {
    if (n == 0) return;
    int64_t kv_heads = shape->args->n_kv_heads, threads = parallel ? omp_get_max_threads() : 1;
    int64_t heads = MIN(MAX(kv_heads * n / (2 * threads), (int64_t)1), MIN(LANES / shape->group, kv_heads)), sets = blocks_of(kv_heads, heads);
    Call call = {shape, q, k, v, y, logsumexp, heads};
    /* Not work_queue_new: `tokens` are where it would allocate */
    WorkRange *list = cpu_scratch(CPU_SHARED, (size_t)work_queue_count(n * sets) * sizeof *list + (size_t)(n * sets) * sizeof(TokenTask));
    if (cpu_planning()) {
        work_new(&call, &(TokenTask){tokens->segment, 0});
        return;
    }
    WorkQueue queue = work_queue_begin(list, n * sets);
    TokenTask *tasks = (TokenTask *)(list + queue.n);
    for (int64_t i = 0; i < n * sets; i++) tasks[i] = (TokenTask){tokens[i / sets].segment, (int32_t)(i % sets * heads)};
#pragma omp parallel if (parallel)
    {
        tiles_begin();
        tasks_run(&call, tasks, &queue);
        tiles_end();
    }
}
