/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax attention, backward: computes the weights again tile by tile. If there are enough independent segments for all threads, each takes a
 * single pass over its keys; otherwise one pass over queries computes dq, and one over keys dk and dv. Two passes cost two more products, but
 * every gradient is summed by a single thread. Either way sums have the same order and the same bits. Source: FlashAttention-2, arXiv 2307.08691,
 * algorithm 2. */
#include "lib/tensor/cpu/attention.h"

#include <omp.h>

/* The input of both passes. */
typedef struct Pass {
    AttentionShape shape;
    const Tensor *q, *k, *v, *logsumexp, *dy;
    const float *means; /* (N, H): sum over the head of dy y */
} Pass;

/* Query rows of one block of tokens and their data. */
typedef struct Rows {
    int64_t first, n_tokens, n; /* first row of the batch; n = n_tokens x group */
    int64_t position;           /* of the first token in its sequence */
    float *q, *dy;              /* (n, padded); q is scaled */
    float *norms, *means;       /* (n): logsumexp; means */
} Rows;

/* Keys and values of one tile. */
typedef struct Tile {
    int64_t start, n;
    float *keys, *keys_transposed, *values_transposed;
} Tile;

static size_t rows_floats(const AttentionShape *shape, int64_t tokens) { return (size_t)(tokens * shape->group * (2 * shape->padded + 2)); }

static Rows rows_at(const AttentionShape *shape, int64_t tokens, float *memory) {
    int64_t most = tokens * shape->group;
    return (Rows){.q = memory,
                  .dy = memory + most * shape->padded,
                  .norms = memory + 2 * most * shape->padded,
                  .means = memory + (2 * shape->padded + 1) * most};
}

static void rows_fill(const Pass *pass, Rows *rows, int64_t first, int64_t n_tokens, int64_t position, int64_t kv_head) {
    const AttentionShape *shape = &pass->shape;
    int64_t group = shape->group, n_heads = shape->args->n_heads;
    *rows = (Rows){first, n_tokens, n_tokens * group, position, rows->q, rows->dy, rows->norms, rows->means};
    rows_load(shape, pass->q, first, n_tokens, kv_head, (float)shape->args->scale, rows->q);
    rows_load(shape, pass->dy, first, n_tokens, kv_head, 1, rows->dy);
    for (int64_t i = 0; i < n_tokens; i++) {
        int64_t at = (first + i) * n_heads + kv_head * group;
        floats_from(pass->logsumexp, at, group, rows->norms + i * group);
        memcpy(rows->means + i * group, pass->means + at, (size_t)group * sizeof(float));
    }
}

static Tile tile_at(const AttentionShape *shape, float *memory) {
    int64_t size = KEY_TILE * shape->padded;
    return (Tile){.keys = memory, .keys_transposed = memory + size, .values_transposed = memory + 2 * size};
}

static void tile_fill(const Pass *pass, Tile *tile, int32_t segment, int64_t kv_head, int64_t start, int64_t from, int64_t to) {
    const AttentionShape *shape = &pass->shape;
    tile->start = start;
    tile->n = to;
    tile_load(shape, pass->v, segment, kv_head, start, from, to, tile->keys);
    tile_transpose(KEY_TILE, shape->padded, tile->keys, shape->padded, tile->values_transposed, KEY_TILE);
    tile_load(shape, pass->k, segment, kv_head, start, from, to, tile->keys);
    tile_transpose(KEY_TILE, shape->padded, tile->keys, shape->padded, tile->keys_transposed, KEY_TILE);
}

/* One row: turns scores into weights, and products of dy and values into gradients of the scaled scores; zero where the row sees nothing. */
static void gradient_row(const AttentionShape *shape, Columns seen, float norm, float mean, float *restrict weights, float *restrict gradients) {
    float cap = (float)shape->args->softcap;
    if (cap == 0)
        for (int64_t j = 0; j < KEY_TILE; j++) {
            weights[j] = fast_exp(weights[j] - norm);
            gradients[j] = weights[j] * (gradients[j] - mean);
        }
    else
        for (int64_t j = 0; j < KEY_TILE; j++) {
            float t = fast_tanh(weights[j] / cap);
            weights[j] = fast_exp(cap * t - norm);
            gradients[j] = weights[j] * (gradients[j] - mean) * (1.0f - t * t);
        }
    for (int64_t j = 0; j < seen.begin; j++) weights[j] = gradients[j] = 0;
    for (int64_t j = seen.end; j < KEY_TILE; j++) weights[j] = gradients[j] = 0;
}

/* Computes weights and gradients of the scores of rows from..from+n-1 against a tile: (n, KEY_TILE) each. False when they see none of it. */
static bool chunk_gradients(const AttentionShape *shape, const Rows *rows, int64_t from, int64_t n, const Tile *tile, float *weights,
                            float *gradients, Columns *seen) {
    int64_t group = shape->group;
    *seen = columns_seen(shape, rows->position + from / group, rows->position + (from + n - 1) / group, tile->start, tile->n);
    if (seen->begin >= seen->end) return false;
    scores_compute(shape, n, *seen, rows->q + from * shape->padded, tile->keys_transposed, weights);
    scores_compute(shape, n, *seen, rows->dy + from * shape->padded, tile->values_transposed, gradients);
    for (int64_t r = from; r < from + n; r++) {
        int64_t at = rows->position + r / group;
        gradient_row(shape, columns_seen(shape, at, at, tile->start, tile->n), rows->norms[r], rows->means[r], weights + (r - from) * KEY_TILE,
                     gradients + (r - from) * KEY_TILE);
    }
    return true;
}

/* Writes dq of n query rows, tokens from `first` on, from their sums. */
static void queries_finish(const AttentionShape *shape, int64_t first, int64_t n, int64_t kv_head, float *sum, float beta, Tensor *dq) {
    for (int64_t r = 0; r < n; r++, sum += shape->padded) {
        for (int64_t c = 0; c < shape->dim; c++) sum[c] *= (float)shape->args->scale;
        int64_t h = kv_head * shape->group + r % shape->group;
        run_write(dq, (first + r / shape->group) * shape->q_width + h * shape->dim, shape->dim, sum, beta);
    }
}

/* Computes dq of the queries of one task. */
static void queries_run(const Pass *pass, AttentionTask task, int64_t kv_head, float beta, Tensor *dq) {
    const AttentionShape *shape = &pass->shape;
    const AttentionArgs *args = shape->args;
    const Segment *segment = &shape->segments[task.segment];
    int64_t padded = shape->padded, first = segment->begin + task.first, n_tokens = MIN(shape->tokens, segment->end - first);
    size_t rows_size = rows_floats(shape, shape->tokens), sum_size = (size_t)(shape->tokens * shape->group * padded),
           tile_size = (size_t)(3 * KEY_TILE * padded);
    float *memory = cpu_scratch(CPU_LOCAL, (rows_size + sum_size + tile_size + 2 * CHUNK_ROWS * KEY_TILE) * sizeof(float));
    if (cpu_planning()) return;
    float *sum = memory + rows_size, *weights = sum + sum_size + tile_size, *gradients = weights + CHUNK_ROWS * KEY_TILE;
    Rows rows = rows_at(shape, shape->tokens, memory);
    Tile tile = tile_at(shape, sum + sum_size);
    rows_fill(pass, &rows, first, n_tokens, layout_offset(shape->segments, task.segment) + task.first, kv_head);
    memset(sum, 0, sum_size * sizeof *sum);
    int64_t oldest = args->window > 0 ? MAX((int64_t)0, rows.position - args->window + 1) : 0, end = rows.position + n_tokens;
    for (int64_t start = oldest / KEY_TILE * KEY_TILE; start < end; start += KEY_TILE) {
        tile_fill(pass, &tile, task.segment, kv_head, start, MAX((int64_t)0, oldest - start), MIN((int64_t)KEY_TILE, end - start));
        for (int64_t from = 0; from < rows.n; from += CHUNK_ROWS) {
            int64_t n = MIN((int64_t)CHUNK_ROWS, rows.n - from);
            Columns seen;
            if (!chunk_gradients(shape, &rows, from, n, &tile, weights, gradients, &seen)) continue;
            tile_product(n, padded, seen.end - seen.begin, (Strided){gradients + seen.begin, KEY_TILE, 1}, tile.keys + seen.begin * padded, padded,
                         sum + from * padded, padded, true);
        }
    }
    queries_finish(shape, first, rows.n, kv_head, sum, beta, dq);
}

static bool descends(const Segment *segments, int32_t segment, int32_t ancestor) {
    while (segment > ancestor) segment = segments[segment].parent;
    return segment == ancestor;
}

/* Adds the contributions of a segment's tokens to dk and dv of a tile of keys, and those of the tile to dq, (rows of the segment, padded), unless
 * it is NULL. */
static void keys_collect(const Pass *pass, int32_t segment, int64_t kv_head, const Tile *tile, Rows *rows, int64_t block_tokens, float *weights,
                         float *gradients, float *dk, float *dv, float *dq) {
    const AttentionShape *shape = &pass->shape;
    const AttentionArgs *args = shape->args;
    const Segment *seeing = &shape->segments[segment];
    int64_t padded = shape->padded, offset = layout_offset(shape->segments, segment), n_tokens = seeing->end - seeing->begin;
    int64_t from_token = MAX((int64_t)0, tile->start - offset), to_token = n_tokens;
    if (args->window > 0) to_token = MIN(n_tokens, tile->start + tile->n - 1 + args->window - offset);
    for (int64_t token = from_token; token < to_token; token += block_tokens) {
        rows_fill(pass, rows, seeing->begin + token, MIN(block_tokens, to_token - token), offset + token, kv_head);
        for (int64_t from = 0; from < rows->n; from += CHUNK_ROWS) {
            int64_t n = MIN((int64_t)CHUNK_ROWS, rows->n - from);
            Columns seen;
            if (!chunk_gradients(shape, rows, from, n, tile, weights, gradients, &seen)) continue;
            int64_t n_keys = seen.end - seen.begin, key = seen.begin * padded;
            tile_product(n_keys, padded, n, (Strided){weights + seen.begin, 1, KEY_TILE}, rows->dy + from * padded, padded, dv + key, padded, true);
            tile_product(n_keys, padded, n, (Strided){gradients + seen.begin, 1, KEY_TILE}, rows->q + from * padded, padded, dk + key, padded, true);
            if (dq)
                tile_product(n, padded, n_keys, (Strided){gradients + seen.begin, KEY_TILE, 1}, tile->keys + key, padded,
                             dq + (token * shape->group + from) * padded, padded, true);
        }
    }
}

/* Computes dk and dv of one tile of a segment's own keys, from its own queries and those of its descendants, in order. sums: receives the tile's
 * part of dq for an independent segment, else NULL. */
static void keys_run(const Pass *pass, AttentionTask task, int64_t kv_head, const double beta[3], Tensor *dk, Tensor *dv, float *sums) {
    const AttentionShape *shape = &pass->shape;
    const Segment *segment = &shape->segments[task.segment];
    int64_t padded = shape->padded, first = segment->begin + task.first, n_keys = MIN((int64_t)KEY_TILE, segment->end - first);
    int64_t block_tokens = MAX((int64_t)1, CHUNK_ROWS / shape->group);
    size_t rows_size = rows_floats(shape, block_tokens), tile_size = (size_t)(KEY_TILE * padded);
    float *memory = cpu_scratch(CPU_LOCAL, (rows_size + 5 * tile_size + 2 * CHUNK_ROWS * KEY_TILE) * sizeof(float));
    if (cpu_planning()) return;
    float *dkeys = memory + rows_size + 3 * tile_size, *dvalues = dkeys + tile_size, *weights = dvalues + tile_size,
          *gradients = weights + CHUNK_ROWS * KEY_TILE;
    Rows rows = rows_at(shape, block_tokens, memory);
    Tile tile = tile_at(shape, memory + rows_size);
    tile_fill(pass, &tile, task.segment, kv_head, layout_offset(shape->segments, task.segment) + task.first, 0, n_keys);
    memset(dkeys, 0, 2 * tile_size * sizeof *dkeys);
    for (int32_t s = task.segment; s < shape->args->layout->n_segments; s++)
        if (descends(shape->segments, s, task.segment))
            keys_collect(pass, s, kv_head, &tile, &rows, block_tokens, weights, gradients, dkeys, dvalues, sums);
    for (int64_t j = 0; j < n_keys; j++) {
        int64_t at = (first + j) * shape->kv_width + kv_head * shape->dim;
        if (dk) run_write(dk, at, shape->dim, dkeys + j * padded, (float)beta[1]);
        if (dv) run_write(dv, at, shape->dim, dvalues + j * padded, (float)beta[2]);
    }
}

/* Computes all gradients of an independent segment, one tile of keys after another. */
static void segment_run(const Pass *pass, int32_t segment, int64_t kv_head, const double beta[3], Tensor *dq, Tensor *dk, Tensor *dv) {
    const AttentionShape *shape = &pass->shape;
    const Segment *own = &shape->segments[segment];
    int64_t n_tokens = own->end - own->begin, n = n_tokens * shape->group;
    size_t bytes = (size_t)(n * shape->padded) * sizeof(float);
    float *sums = cpu_scratch(CPU_TILE_C, bytes);
    if (!cpu_planning()) memset(sums, 0, bytes);
    for (int64_t first = 0; first < n_tokens; first += KEY_TILE) keys_run(pass, (AttentionTask){segment, first}, kv_head, beta, dk, dv, sums);
    if (!cpu_planning()) queries_finish(shape, own->begin, n, kv_head, sums, (float)beta[0], dq);
}

/* Whether all segments are without parents, and numerous enough to keep the threads busy. */
static bool segments_do(const AttentionShape *shape) {
    enum { TASKS_PER_THREAD = 4 };
    const int32_t n = shape->args->layout->n_segments;
    if (n * shape->args->n_kv_heads < TASKS_PER_THREAD * (int64_t)omp_get_max_threads()) return false;
    for (int32_t s = 0; s < n; s++)
        if (shape->segments[s].parent >= 0) return false;
    return true;
}

/* Sum over each head of dy y, which the gradient of softmax subtracts. */
static void means_compute(const AttentionShape *shape, const Tensor *y, const Tensor *dy, int64_t n_tokens, float *means) {
    int64_t n_heads = shape->args->n_heads;
#pragma omp parallel for schedule(static) if (n_tokens * shape->q_width > CPU_SERIAL)
    for (int64_t i = 0; i < n_tokens * n_heads; i++) {
        float buffer_y[RUN], buffer_d[RUN], sum = 0;
        for (RUNS(at, n, i * shape->dim, (i + 1) * shape->dim)) {
            const float *out = run_read(y, at, n, buffer_y), *d = run_read(dy, at, n, buffer_d);
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < n; c++) sum += out[c] * d[c];
        }
        means[i] = sum;
    }
}

void ISA_FN(attention_backward)(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *y,
                                const Tensor *logsumexp, const Tensor *dy, const double beta[3], Tensor *dq, Tensor *dk, Tensor *dv) {
    if (!CPU_READS(q, k, v, y, logsumexp, dy) || !CPU_WRITES(dq, dk, dv)) {
        device_reference()->attention_backward(args, q, k, v, y, logsumexp, dy, beta, dq, dk, dv);
        return;
    }
    const Layout *layout = args->layout;
    Pass pass = {attention_shape(args), q, k, v, logsumexp, dy, NULL};
    float *means = cpu_scratch(CPU_SHARED, (size_t)(layout->n_tokens * args->n_heads) * sizeof(float));
    if (!cpu_planning()) means_compute(&pass.shape, y, dy, layout->n_tokens, means);
    pass.means = means;
    if (dq && dk && dv && segments_do(&pass.shape)) {
#pragma omp parallel for schedule(dynamic) if (attention_products(&pass.shape) > SERIAL_PRODUCTS && !cpu_planning())
        for (int64_t i = 0; i < layout->n_segments * args->n_kv_heads; i++)
            segment_run(&pass, (int32_t)(i / args->n_kv_heads), i % args->n_kv_heads, beta, dq, dk, dv);
        return;
    }
    if (dq) {
        AttentionTasks tasks = attention_tasks(&pass.shape, pass.shape.tokens);
#pragma omp parallel for schedule(dynamic) if (tasks.parallel)
        for (int64_t i = tasks.n - 1; i >= 0; i--) queries_run(&pass, tasks.list[i / args->n_kv_heads], i % args->n_kv_heads, (float)beta[0], dq);
    }
    if (dk || dv) {
        AttentionTasks tasks = attention_tasks(&pass.shape, KEY_TILE);
#pragma omp parallel for schedule(dynamic) if (tasks.parallel)
        for (int64_t i = 0; i < tasks.n; i++) keys_run(&pass, tasks.list[i / args->n_kv_heads], i % args->n_kv_heads, beta, dk, dv, NULL);
    }
}
