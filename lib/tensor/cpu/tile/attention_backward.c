/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax attention of bf16, backward, in tiles and in one pass over keys: scores and their gradients are computed once and used for all of dq, dk
 * and dv.
 *
 * A task is a tile of keys with all queries that see it; only this task writes the tile's dk and dv. The sums of dq are in memory. Every block of
 * queries takes its tiles of keys in order of their positions: the first tile prepares the block, the last one writes dq, and each waits for those
 * before it. A thread stays with a segment, whose blocks are in its cache, and helps with another when no segment is left to begin. Tasks of a
 * segment are taken in order, and segments are begun in order, so the first unfinished task never waits, and the bits do not depend on the number of
 * threads. Weights and gradients of scores are rounded to bf16 for their products, sums are f32. Source: FlashAttention-2, arXiv 2307.08691,
 * algorithm 2. */
#include "lib/tensor/cpu/tile/attention.h"

#include <sched.h>
#include <stdatomic.h>

enum {
    KEYS = 128,                  /* of a task */
    KEY_ROWS = KEYS / TILE_ROWS, /* their height in tiles */
    KEY_CHUNKS = KEYS / TILE_K,  /* their length in tiles, where the sum runs along the keys */
    BLOCK_ROWS = 128,            /* query rows of a block */
    BLOCK_GROUPS = BLOCK_ROWS / LANES,
    BLOCK_CHUNKS = BLOCK_ROWS / TILE_K, /* also called parts */
    PATIENCE = 1000                     /* how often a thread polls another task's progress before it yields the processor */
};

/* A block of a segment's query rows, for one key/value head: input of the tasks, and the sums of dq. */
typedef struct Block {
    int32_t segment;
    int64_t first, n;          /* query rows first..first+n-1 of the segment, counted from its first token */
    int64_t oldest, low, high; /* the first position that any row sees; positions of the first and last row */
    _Atomic int64_t reached;   /* dq includes the keys before this position; below `oldest`: the block is not prepared yet */
    Tiles q, dy;               /* B (BLOCK_GROUPS, padded / 32): for sums along the head */
    Tiles q_pairs, dy_pairs;   /* B (padded / 16, BLOCK_CHUNKS): for sums along the queries */
    Tiles dq;                  /* floats (BLOCK_GROUPS, padded / 16), one line for each dimension of the head */
    float *norms, *means;      /* (BLOCK_ROWS): logsumexp / ln 2; sum over the head of dy y */
    int64_t *at;               /* (BLOCK_ROWS): offsets of rows in q */
    int32_t *positions;        /* (BLOCK_ROWS), -1 after the last row */
} Block;

/* What all tasks share. */
typedef struct Pass {
    AttentionShape shape;
    int64_t chunks, tiles; /* of a row of the head: padded / 32, padded / 16 */
    const Tensor *q, *k, *v, *y, *logsumexp, *dy;
    Tensor *dq, *dk, *dv;
    const double *beta;
    Block *blocks;
    int64_t n_blocks;
    _Atomic int64_t *taken; /* number of tasks taken, for each segment */
    _Atomic int32_t begun;  /* number of segments begun */
} Pass;

/* Buffers of one task. (rows, columns) */
typedef struct Work {
    Tiles keys, values;               /* A (KEY_ROWS, chunks) */
    Tiles pair_keys, transposed_keys; /* B and A (tiles, KEY_CHUNKS) */
    Tiles scores, dweights;           /* floats (2, 2): scores and gradients of weights of TILE_K keys and as many queries */
    Tiles weights, dscores;           /* A (KEY_ROWS, BLOCK_CHUNKS) */
    Tiles dscores_pairs;              /* B (BLOCK_GROUPS, KEY_CHUNKS) */
    Tiles dk, dv;                     /* floats (KEY_ROWS, tiles) */
    int64_t start, n;                 /* position of the first key, number of keys */
} Work;

/* ---- blocks of queries ---- */

static size_t block_bytes(const Pass *pass) {
    int64_t tiles = 2 * BLOCK_GROUPS * pass->chunks + 2 * BLOCK_CHUNKS * pass->tiles + BLOCK_GROUPS * pass->tiles;
    return (size_t)(tiles * TILE_BYTES) + BLOCK_ROWS * (3 * sizeof(float) + sizeof(int64_t));
}

static void blocks_make(Pass *pass) {
    const AttentionShape *shape = &pass->shape;
    const Layout *layout = shape->args->layout;
    int64_t window = shape->args->window;
    for (int32_t s = 0; s < layout->n_segments; s++)
        pass->n_blocks += blocks_of((shape->segments[s].end - shape->segments[s].begin) * shape->group, BLOCK_ROWS);
    size_t table = (size_t)blocks_of(pass->n_blocks * (int64_t)sizeof(Block), 64) * 64,
           counts = (size_t)blocks_of(layout->n_segments * (int64_t)sizeof *pass->taken, 64) * 64;
    char *memory = cpu_scratch(CPU_SHARED, table + counts + (size_t)pass->n_blocks * block_bytes(pass));
    if (cpu_planning()) return;
    pass->blocks = (Block *)memory;
    pass->taken = (_Atomic int64_t *)(memory + table);
    memory += table + counts;
    Block *block = pass->blocks;
    for (int32_t s = 0; s < layout->n_segments; s++) {
        int64_t rows = (shape->segments[s].end - shape->segments[s].begin) * shape->group, offset = layout_offset(shape->segments, s);
        for (int64_t first = 0; first < rows; first += BLOCK_ROWS, block++) {
            int64_t n = MIN((int64_t)BLOCK_ROWS, rows - first);
            *block =
                (Block){.segment = s, .first = first, .n = n, .low = offset + first / shape->group, .high = offset + (first + n - 1) / shape->group};
            block->oldest = window > 0 ? MAX((int64_t)0, block->low - window + 1) : 0;
            block->q = tiles_alloc(&memory, BLOCK_GROUPS, pass->chunks);
            block->dy = tiles_alloc(&memory, BLOCK_GROUPS, pass->chunks);
            block->q_pairs = tiles_alloc(&memory, pass->tiles, BLOCK_CHUNKS);
            block->dy_pairs = tiles_alloc(&memory, pass->tiles, BLOCK_CHUNKS);
            block->dq = tiles_alloc(&memory, BLOCK_GROUPS, pass->tiles);
            block->norms = (float *)memory;
            block->means = block->norms + BLOCK_ROWS;
            block->at = (int64_t *)(block->means + BLOCK_ROWS);
            block->positions = (int32_t *)(block->at + BLOCK_ROWS);
            memory = (char *)(block->positions + BLOCK_ROWS);
        }
    }
}

static float tile_attention_backward_dot(const uint16_t *a, const uint16_t *b, int64_t n) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t c = 0; c < n; c += TILE_K) {
        __mmask32 there = n - c >= TILE_K ? 0xffffffffu : (1u << (n - c)) - 1;
        sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(there, a + c), (__m512bh)_mm512_maskz_loadu_epi16(there, b + c));
    }
    return _mm512_reduce_add_ps(sum);
}

static void block_begin(const Pass *pass, Block *block, int64_t kv_head) {
    const AttentionShape *shape = &pass->shape;
    int64_t chunks = pass->chunks;
    queries_find(shape, shape->segments[block->segment].begin, layout_offset(shape->segments, block->segment), kv_head, block->first, block->n,
                 block->at, block->positions);
    queries_put(shape, pass->q, block->at, block->n, BLOCK_ROWS, block->q);
    tiles_interleave(BLOCK_CHUNKS, chunks, block->q, block->q_pairs);
    tiles_transpose(BLOCK_GROUPS, chunks, block->q, block->q);
    queries_put(shape, pass->dy, block->at, block->n, BLOCK_ROWS, block->dy);
    tiles_interleave(BLOCK_CHUNKS, chunks, block->dy, block->dy_pairs);
    tiles_transpose(BLOCK_GROUPS, chunks, block->dy, block->dy);
    memset(block->dq.at, 0, (size_t)(BLOCK_GROUPS * block->dq.row));
    for (int64_t r = 0; r < block->n; r++) {
        block->norms[r] = ((const float *)pass->logsumexp->elements)[block->at[r] / shape->dim] * LOG2_E;
        block->means[r] = tile_attention_backward_dot((const uint16_t *)pass->dy->elements + block->at[r],
                                                      (const uint16_t *)pass->y->elements + block->at[r], shape->dim);
    }
    for (int64_t r = block->n; r < BLOCK_ROWS; r++) {
        block->norms[r] = block->means[r] = 0;
        block->positions[r] = -1;
    }
}

static void block_finish(const Pass *pass, const Block *block) {
    const AttentionShape *shape = &pass->shape;
    for (int64_t group = 0; group * LANES < block->n; group++)
        for (int64_t c = 0; c < shape->dim; c += LANES) {
            float *sum = tile_at(block->dq, group, c / LANES), rows[LANES * LANES];
            for (int64_t i = 0; i < LANES * LANES; i++) sum[i] *= (float)shape->args->scale;
            transpose_16x16(sum, 64, rows, 64);
            for (int64_t r = group * LANES; r < MIN(block->n, (group + 1) * LANES); r++)
                run_write(pass->dq, block->at[r] + c, MIN((int64_t)LANES, shape->dim - c), rows + r % LANES * LANES, (float)pass->beta[0]);
        }
}

/* ---- order of tasks ---- */

/* Waits until other tasks have brought a block to `position`. */
static void turn_await(Block *block, int64_t position) {
    for (int looks = 0; atomic_load_explicit(&block->reached, memory_order_acquire) < position; looks++) {
        if (looks < PATIENCE)
            _mm_pause();
        else
            sched_yield();
    }
}

static void transpose_pass(Block *block, int64_t position) { atomic_store_explicit(&block->reached, position, memory_order_release); }

/* ---- prefetch ---- */

/* Rows of a block to prefetch during the work on another block, some at every step, because the hardware does not prefetch them. Either may be
 * NULL. */
typedef struct Ahead {
    const Block *read, *written;
} Ahead;
enum { AHEAD_STEPS = KEY_CHUNKS * BLOCK_CHUNKS };

static void tokens_ask(const Pass *pass, const Block *block, int64_t kv_head, int64_t step, const Tensor *tensor, bool write) {
    const AttentionShape *shape = &pass->shape;
    int64_t first = block->first / shape->group, last = (block->first + block->n - 1) / shape->group, width = shape->group * shape->dim;
    for (int64_t token = first + step; token <= last; token += AHEAD_STEPS) {
        int64_t row = shape->segments[block->segment].begin + token;
        const char *at = (const char *)tensor->elements + (size_t)(row * shape->q_width + kv_head * width) * dtype_size(tensor->dtype),
                   *end = at + (size_t)width * dtype_size(tensor->dtype);
        for (; at < end; at += 64) {
            if (write)
                __builtin_prefetch(at, 1);
            else
                _mm_prefetch(at, _MM_HINT_T1);
        }
    }
}

static void ahead_ask(const Pass *pass, const Ahead *ahead, int64_t kv_head, int64_t step) {
    if (ahead->read) {
        tokens_ask(pass, ahead->read, kv_head, step, pass->q, false);
        tokens_ask(pass, ahead->read, kv_head, step, pass->dy, false);
        tokens_ask(pass, ahead->read, kv_head, step, pass->y, false);
    }
    if (ahead->written) tokens_ask(pass, ahead->written, kv_head, step, pass->dq, true);
}

/* ---- tiles of keys ---- */

static Work work_new(const Pass *pass) {
    int64_t chunks = pass->chunks, tiles = pass->tiles;
    int64_t n_tiles =
        2 * KEY_ROWS * chunks + 2 * tiles * KEY_CHUNKS + 8 + 2 * KEY_ROWS * BLOCK_CHUNKS + BLOCK_GROUPS * KEY_CHUNKS + 2 * KEY_ROWS * tiles;
    char *memory = cpu_scratch(CPU_LOCAL, (size_t)(n_tiles * TILE_BYTES));
    Work work = {.keys = tiles_alloc(&memory, KEY_ROWS, chunks), .values = tiles_alloc(&memory, KEY_ROWS, chunks)};
    work.pair_keys = tiles_alloc(&memory, tiles, KEY_CHUNKS);
    work.transposed_keys = tiles_alloc(&memory, tiles, KEY_CHUNKS);
    work.scores = tiles_alloc(&memory, 2, 2);
    work.dweights = tiles_alloc(&memory, 2, 2);
    work.weights = tiles_alloc(&memory, KEY_ROWS, BLOCK_CHUNKS);
    work.dscores = tiles_alloc(&memory, KEY_ROWS, BLOCK_CHUNKS);
    work.dscores_pairs = tiles_alloc(&memory, BLOCK_GROUPS, KEY_CHUNKS);
    work.dk = tiles_alloc(&memory, KEY_ROWS, tiles);
    work.dv = tiles_alloc(&memory, KEY_ROWS, tiles);
    return work;
}

/* Weights and gradients of scores of LANES queries against one key, from a line of scores and of the weights' gradients. */
typedef struct Gradients {
    __m512 weights, dscores;
} Gradients;

typedef struct Queries {
    __m512 norms, means;
    __m512i oldest, newest;
} Queries;

static inline Gradients gradients_of(const AttentionShape *shape, const bool edge, const float *scores, const float *dweights, const Queries *queries,
                                     int64_t position) {
    __mmask16 seen = edge ? lanes_seeing(queries->oldest, queries->newest, position) : 0xffff;
    float cap = (float)shape->args->softcap, scale = (float)shape->args->scale;
    __m512 s = _mm512_loadu_ps(scores), slope = _mm512_set1_ps(1);
    if (cap != 0) {
        float t[LANES];
        for (int64_t i = 0; i < LANES; i++) t[i] = fast_tanh(scores[i] * (scale / cap));
        s = _mm512_loadu_ps(t);
        slope = _mm512_fnmadd_ps(s, s, slope);
        scale = cap;
    }
    __m512 weights = _mm512_maskz_mov_ps(seen, exp2_lanes(_mm512_fmsub_ps(s, _mm512_set1_ps(scale * LOG2_E), queries->norms)));
    __m512 dscores = _mm512_maskz_mul_ps(seen, weights, _mm512_sub_ps(_mm512_loadu_ps(dweights), queries->means));
    return (Gradients){weights, cap != 0 ? _mm512_mul_ps(dscores, slope) : dscores};
}

/* The same for chunk number `chunk` of a task's keys and part number `part` of a block's queries, as bf16 in the layout of the products. */
static inline __attribute__((always_inline)) void part_gradients(const Pass *pass, const bool edge, const Work *work, const Block *block,
                                                                 int64_t chunk, int64_t part) {
    Queries queries[2];
    for (int64_t g = 0; g < 2; g++) {
        int64_t at = part * TILE_K + g * LANES;
        queries[g] = (Queries){.norms = _mm512_loadu_ps(block->norms + at),
                               .means = _mm512_loadu_ps(block->means + at),
                               .newest = _mm512_loadu_si512(block->positions + at)};
        queries[g].oldest = lanes_oldest(&pass->shape, queries[g].newest);
    }
    for (int64_t j = 0; j < TILE_K; j += 2) {
        __m512bh dscores[2];
        for (int64_t i = 0; i < 2; i++) {
            int64_t row = (j + i) / TILE_ROWS, line = (j + i) % TILE_ROWS, key = chunk * TILE_K + j + i,
                    position = key < work->n ? work->start + key : INT32_MAX;
            Gradients of[2];
            for (int64_t g = 0; g < 2; g++)
                of[g] = gradients_of(&pass->shape, edge, (float *)tile_at(work->scores, row, g) + line * LANES,
                                     (float *)tile_at(work->dweights, row, g) + line * LANES, &queries[g], position);
            _mm512_storeu_si512((char *)tile_at(work->weights, 2 * chunk + row, part) + line * 64,
                                (__m512i)_mm512_cvtne2ps_pbh(of[1].weights, of[0].weights));
            dscores[i] = _mm512_cvtne2ps_pbh(of[1].dscores, of[0].dscores);
            _mm512_storeu_si512((char *)tile_at(work->dscores, 2 * chunk + row, part) + line * 64, (__m512i)dscores[i]);
        }
        char *left = tile_at(work->dscores_pairs, 2 * part, chunk), *right = tile_at(work->dscores_pairs, 2 * part + 1, chunk);
        pairs_interleave(&dscores[0], &dscores[1], left + j * 32, right + j * 32);
    }
}

/* Whether any query of a part sees any key of a chunk, and whether all see all. */
typedef struct Sight {
    bool any, all;
} Sight;

static Sight sight_of(const Pass *pass, const Work *work, const Block *block, int64_t chunk, int64_t part) {
    int64_t keys = MIN((int64_t)TILE_K, work->n - chunk * TILE_K), rows = MIN((int64_t)TILE_K, block->n - part * TILE_K),
            window = pass->shape.args->window;
    if (keys <= 0 || rows <= 0) return (Sight){false, false};
    int64_t oldest_key = work->start + chunk * TILE_K, newest_key = oldest_key + keys - 1, low = block->positions[part * TILE_K],
            high = block->positions[part * TILE_K + rows - 1];
    return (Sight){oldest_key <= high && (window <= 0 || newest_key > low - window),
                   keys == TILE_K && rows == TILE_K && newest_key <= low && (window <= 0 || oldest_key > high - window)};
}

static void columns_add(Columns *columns, int64_t column) {
    if (columns->begin == columns->end) columns->begin = column;
    columns->end = column + 1;
}

/* Adds the contributions of one block of queries to a task's dk and dv, and to the block's dq. */
static void block_collect(const Pass *pass, const Work *work, Block *block, int64_t kv_head, const Block *next) {
    bool last = block->high < work->start + work->n;
    Ahead ahead = {next && next->oldest >= work->start ? next : NULL, pass->dq && last ? block : NULL};
    if (block->oldest >= work->start) {
        block_begin(pass, block, kv_head);
        transpose_pass(block, block->oldest);
    } else
        turn_await(block, block->oldest);
    /* For each chunk, and for each part: those that see one another are adjacent */
    Columns parts[KEY_CHUNKS] = {{0, 0}}, chunks[BLOCK_CHUNKS] = {{0, 0}};
    for (int64_t chunk = 0; chunk < KEY_CHUNKS; chunk++)
        for (int64_t part = 0; part < BLOCK_CHUNKS; part++) {
            Sight sight = sight_of(pass, work, block, chunk, part);
            ahead_ask(pass, &ahead, kv_head, chunk * BLOCK_CHUNKS + part);
            if (!sight.any) continue;
            columns_add(&parts[chunk], part);
            columns_add(&chunks[part], chunk);
            tiles_multiply(2, 2, pass->chunks, tiles_from(work->keys, 2 * chunk, 0), tiles_from(block->q, 2 * part, 0), work->scores, false);
            tiles_multiply(2, 2, pass->chunks, tiles_from(work->values, 2 * chunk, 0), tiles_from(block->dy, 2 * part, 0), work->dweights, false);
            if (sight.all)
                part_gradients(pass, false, work, block, chunk, part);
            else
                part_gradients(pass, true, work, block, chunk, part);
        }
    for (int64_t chunk = 0; chunk < KEY_CHUNKS; chunk++) {
        int64_t from = parts[chunk].begin, n = parts[chunk].end - from;
        Tiles weights = tiles_from(work->weights, 2 * chunk, from), dscores = tiles_from(work->dscores, 2 * chunk, from);
        if (pass->dv && n) tiles_multiply(2, pass->tiles, n, weights, tiles_from(block->dy_pairs, 0, from), tiles_from(work->dv, 2 * chunk, 0), true);
        if (pass->dk && n) tiles_multiply(2, pass->tiles, n, dscores, tiles_from(block->q_pairs, 0, from), tiles_from(work->dk, 2 * chunk, 0), true);
    }
    if (!pass->dq) return;
    turn_await(block, MAX(block->oldest, work->start));
    Tiles dq = {block->dq.at, block->dq.column, block->dq.row}; /* transposed */
    for (int64_t part = 0; part < BLOCK_CHUNKS; part++) {
        int64_t from = chunks[part].begin, n = chunks[part].end - from;
        if (n)
            tiles_multiply(pass->tiles, 2, n, tiles_from(work->transposed_keys, 0, from), tiles_from(work->dscores_pairs, 2 * part, from),
                           tiles_from(dq, 0, 2 * part), true);
    }
    if (last)
        block_finish(pass, block);
    else
        transpose_pass(block, work->start + work->n);
}

static bool descends(const Segment *segments, int32_t segment, int32_t ancestor) {
    while (segment > ancestor) segment = segments[segment].parent;
    return segment == ancestor;
}

static void keys_finish(const Pass *pass, const Work *work, Tiles sums, int64_t first, int64_t kv_head, float scale, float beta, Tensor *to) {
    const AttentionShape *shape = &pass->shape;
    for (int64_t j = 0; j < work->n; j++)
        for (int64_t c = 0; c < shape->dim; c += LANES) {
            float *line = (float *)tile_at(sums, j / TILE_ROWS, c / LANES) + j % TILE_ROWS * LANES;
            for (int64_t i = 0; i < LANES; i++) line[i] *= scale;
            run_write(to, (first + j) * shape->kv_width + kv_head * shape->dim + c, MIN((int64_t)LANES, shape->dim - c), line, beta);
        }
}

/* The first block from `block` on with a query that sees one of the keys; NULL: none. */
static Block *block_seeing(const Pass *pass, const Work *work, int32_t segment, Block *block) {
    for (; block < pass->blocks + pass->n_blocks; block++)
        if (block->segment >= segment && descends(pass->shape.segments, block->segment, segment) && block->high >= work->start &&
            block->oldest < work->start + work->n)
            return block;
    return NULL;
}

/* Computes one tile of a segment's own keys with the queries of the segment and of its descendants, in order. */
static void task_run(const Pass *pass, AttentionTask task, int64_t kv_head) {
    const AttentionShape *shape = &pass->shape;
    const Segment *segment = &shape->segments[task.segment];
    int64_t first = segment->begin + task.first;
    Work work = work_new(pass);
    work.start = layout_offset(shape->segments, task.segment) + task.first;
    work.n = MIN((int64_t)KEYS, segment->end - first);
    keys_put(shape, pass->k, task.segment, kv_head, work.start, 0, work.n, KEYS, work.keys);
    keys_put(shape, pass->v, task.segment, kv_head, work.start, 0, work.n, KEYS, work.values);
    tiles_interleave(KEY_CHUNKS, pass->chunks, work.keys, work.pair_keys);
    tiles_transpose(pass->tiles, KEY_CHUNKS, work.pair_keys, work.transposed_keys);
    memset(work.dk.at, 0, (size_t)(KEY_ROWS * work.dk.row));
    memset(work.dv.at, 0, (size_t)(KEY_ROWS * work.dv.row));
    for (Block *next, *block = block_seeing(pass, &work, task.segment, pass->blocks); block; block = next) {
        next = block_seeing(pass, &work, task.segment, block + 1);
        block_collect(pass, &work, block, kv_head, next);
    }
    if (pass->dk) keys_finish(pass, &work, work.dk, first, kv_head, (float)shape->args->scale, (float)pass->beta[1], pass->dk);
    if (pass->dv) keys_finish(pass, &work, work.dv, first, kv_head, 1, (float)pass->beta[2], pass->dv);
}

static void tasks_begin(Pass *pass) {
    for (int64_t b = 0; b < pass->n_blocks; b++) transpose_pass(&pass->blocks[b], -1);
    for (int32_t s = 0; s < pass->shape.args->layout->n_segments; s++) pass->taken[s] = 0;
    pass->begun = 0;
}

static bool task_take(Pass *pass, int32_t segment, AttentionTask *task) {
    const Segment *of = &pass->shape.segments[segment];
    int64_t n = blocks_of(of->end - of->begin, KEYS);
    if (atomic_load_explicit(&pass->taken[segment], memory_order_relaxed) >= n) return false;
    int64_t number = atomic_fetch_add(&pass->taken[segment], 1);
    *task = (AttentionTask){segment, number * KEYS};
    return number < n;
}

/* The next task of a thread whose last task was in segment *own (-1: it had none); false: no task is left. */
static bool task_next(Pass *pass, int32_t *own, AttentionTask *task) {
    int32_t n = pass->shape.args->layout->n_segments;
    if (*own >= 0 && task_take(pass, *own, task)) return true;
    while (pass->begun < n && (*own = atomic_fetch_add(&pass->begun, 1)) < n)
        if (task_take(pass, *own, task)) return true;
    for (*own = 0; *own < n; ++*own)
        if (task_take(pass, *own, task)) return true;
    return false;
}

void ISA_FN(tile_attention_backward)(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *y,
                                     const Tensor *logsumexp, const Tensor *dy, const double beta[3], Tensor *dq, Tensor *dk, Tensor *dv) {
    bool tiles = q->dtype == DT_BF16 && k->dtype == DT_BF16 && v->dtype == DT_BF16 && y->dtype == DT_BF16 && dy->dtype == DT_BF16 &&
                 logsumexp->dtype == DT_F32;
    if (!tiles || !(args->scale > 0) || !CPU_WRITES(dq, dk, dv)) {
        cpu_attention_backward_avx512_bf16(args, q, k, v, y, logsumexp, dy, beta, dq, dk, dv);
        return;
    }
    Pass pass = {.shape = tile_attention_shape(args, BLOCK_ROWS),
                 .q = q,
                 .k = k,
                 .v = v,
                 .y = y,
                 .logsumexp = logsumexp,
                 .dy = dy,
                 .dq = dq,
                 .dk = dk,
                 .dv = dv,
                 .beta = beta};
    pass.chunks = pass.shape.padded / TILE_K;
    pass.tiles = pass.shape.padded / TILE_ROWS;
    blocks_make(&pass);
    if (cpu_planning()) {
        work_new(&pass);
        return;
    }
    bool parallel = attention_products(&pass.shape) > SERIAL_PRODUCTS;
#pragma omp parallel if (parallel)
    {
        tiles_begin();
        for (int64_t head = 0; head < args->n_kv_heads; head++) { /* one head after another, because the blocks' memory is for one */
#pragma omp single
            tasks_begin(&pass);
            AttentionTask task;
            for (int32_t own = -1; task_next(&pass, &own, &task);) task_run(&pass, task, head);
#pragma omp barrier
        }
        tiles_end();
    }
}
