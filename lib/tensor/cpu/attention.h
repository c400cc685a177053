/* SPDX-License-Identifier: Apache-2.0 */
/* Code that attention's forward and backward pass share: locating keys, tiles of keys, rows of queries. Included only by attention*.c of simd/ and
 * tile/.
 *
 * Keys are processed in tiles that are cut at multiples of KEY_TILE of their position in the sequence, in whichever segment or page they are, and
 * every query row is computed separately in fixed order. So a token's result has the same bits whether it is computed within its full row, after a
 * shared parent, or token by token with the cache.
 */
#ifndef TUNE_ATTENTION_H
#define TUNE_ATTENTION_H

#include "lib/tensor/cpu/blocks.h"
#include "lib/tensor/cpu/vec.h"

enum {
    KEY_TILE = 64,
    TASK_ROWS = 192, /* approximate number of query rows (token, head of the group) that share a tile of keys */
    CHUNK_ROWS = 48, /* rows that pass through products and softmax together, so that their scores stay in the first-level cache */
};

/* Sizes that all tasks of one call share. */
typedef struct AttentionShape {
    const AttentionArgs *args;
    const Segment *segments; /* of the layout; and its pages */
    const int32_t *pages;
    int64_t dim, padded; /* head size, and the same rounded up so that rows of tiles are whole vectors */
    int64_t group;       /* query heads for each key/value head */
    int64_t tokens;      /* tokens of a task */
    int64_t q_width, kv_width;
} AttentionShape;

static inline AttentionShape attention_shape(const AttentionArgs *args) {
    int64_t group = args->n_heads / args->n_kv_heads;
    return (AttentionShape){args,
                            layout_segments(args->layout),
                            layout_pages(args->layout),
                            args->head_dim,
                            (args->head_dim + 15) / 16 * 16,
                            group,
                            MAX((int64_t)1, TASK_ROWS / group),
                            args->n_heads * args->head_dim,
                            args->n_kv_heads * args->head_dim};
}

/* A part of a call's work: tokens of a segment, from number `first` of the segment on. */
typedef struct AttentionTask {
    int32_t segment;
    int64_t first;
} AttentionTask;

/* All tasks of a call, for every key/value head. */
typedef struct AttentionTasks {
    AttentionTask *list; /* in CPU_TASKS */
    int64_t n;           /* length of the list x key/value heads: task i is list[i / n_kv_heads] for head i % n_kv_heads */
    bool parallel;       /* there is enough work for several threads */
    bool parallel_tiles; /* the same where a tile of keys must be converted first, which takes longer than the products of few queries */
} AttentionTasks;

/* Values of attention_products above which starting threads pays off. */
enum { SERIAL_PRODUCTS = 1 << 19, SERIAL_TILES = 1 << 16 };
/* The work of a call: tokens x keys x width of q, summed over segments; each token counts the keys that the segment's last token sees. */
static inline int64_t attention_products(const AttentionShape *shape) {
    const Layout *layout = shape->args->layout;
    int64_t products = 0;
    for (int32_t s = 0; s < layout->n_segments; s++) {
        int64_t length = shape->segments[s].end - shape->segments[s].begin;
        products += length * (layout_offset(shape->segments, s) + length) * shape->q_width;
    }
    return products;
}

/* Cuts every segment into tasks of `tokens` tokens. */
static inline AttentionTasks attention_tasks(const AttentionShape *shape, int64_t tokens) {
    const Layout *layout = shape->args->layout;
    int64_t n = 0, t = 0, products = attention_products(shape);
    for (int32_t s = 0; s < layout->n_segments; s++) n += blocks_of(shape->segments[s].end - shape->segments[s].begin, tokens);
    AttentionTask *list = cpu_scratch(CPU_TASKS, (size_t)n * sizeof *list);
    for (int32_t s = 0; s < layout->n_segments; s++)
        for (int64_t first = 0; first < shape->segments[s].end - shape->segments[s].begin; first += tokens) list[t++] = (AttentionTask){s, first};
    if (cpu_planning()) products = 0; /* a single thread requests the scratch memory of all threads */
    return (AttentionTasks){list, n * shape->args->n_kv_heads, products > SERIAL_PRODUCTS, products > SERIAL_TILES};
}

/* Row of the token at `position` of the segment's sequence; *n: number of tokens from there on that are consecutive in memory. */
static inline int64_t key_run(const AttentionShape *shape, int32_t segment, int64_t position, int64_t *n) {
    const KvPages *cache = shape->args->layout->cache;
    if (cache) {
        int64_t size = cache->page_size, inside = position % size;
        *n = size - inside;
        return shape->pages[shape->segments[segment].first_page + position / size] * size + inside;
    }
    int64_t offset = layout_offset(shape->segments, segment);
    while (position < offset) {
        segment = shape->segments[segment].parent;
        offset = layout_offset(shape->segments, segment);
    }
    int64_t row = shape->segments[segment].begin + position - offset;
    *n = shape->segments[segment].end - row;
    return row;
}

/* Loads the keys or values of one head at positions start+from..start+to-1 of a sequence as (KEY_TILE, padded) floats; fills the rest of the tile
 * with zeros. */
static inline void tile_load(const AttentionShape *shape, const Tensor *tensor, int32_t segment, int64_t kv_head, int64_t start, int64_t from,
                             int64_t to, float *tile) {
    int64_t padded = shape->padded;
    memset(tile, 0, (size_t)(from * padded) * sizeof *tile);
    memset(tile + to * padded, 0, (size_t)((KEY_TILE - to) * padded) * sizeof *tile);
    for (int64_t j = from; j < to;) {
        int64_t n, row = key_run(shape, segment, start + j, &n);
        for (int64_t end = MIN(to, j + n); j < end; j++, row++) {
            floats_from(tensor, row * shape->kv_width + kv_head * shape->dim, shape->dim, tile + j * padded);
            for (int64_t c = shape->dim; c < padded; c++) tile[j * padded + c] = 0;
        }
    }
}

/* Loads query rows of tokens first.. of a batch, for the heads of one group: (n_tokens x group, padded) floats times `scale`, with zeros after the
 * head's values. */
static inline void rows_load(const AttentionShape *shape, const Tensor *tensor, int64_t first, int64_t n_tokens, int64_t kv_head, float scale,
                             float *rows) {
    for (int64_t i = 0; i < n_tokens; i++)
        for (int64_t h = 0; h < shape->group; h++, rows += shape->padded) {
            int64_t at = (first + i) * shape->q_width + (kv_head * shape->group + h) * shape->dim;
            const float *values = rows;
            if (tensor->dtype == DT_F32)
                values = (const float *)tensor->elements + at;
            else
                floats_from(tensor, at, shape->dim, rows);
            for (int64_t c = 0; c < shape->dim; c++) rows[c] = values[c] * scale;
            for (int64_t c = shape->dim; c < shape->padded; c++) rows[c] = 0;
        }
}

/* Columns begin..end-1 of a tile. */
typedef struct Columns {
    int64_t begin, end;
} Columns;

/* The columns that queries at positions low..high see of the tile that starts at `start` and has `n` keys: none when begin >= end. */
static inline Columns columns_seen(const AttentionShape *shape, int64_t low, int64_t high, int64_t start, int64_t n) {
    int64_t window = shape->args->window, begin = window > 0 ? MAX((int64_t)0, low - window + 1 - start) : 0;
    return (Columns){MIN((int64_t)KEY_TILE, begin), MAX((int64_t)0, MIN(n, high + 1 - start))};
}

/* Scores of `rows` queries against the columns that any of them sees: s (rows, KEY_TILE) = q k^T, in whole vectors. */
static inline void scores_compute(const AttentionShape *shape, int64_t rows, Columns seen, const float *q, const float *keys_transposed, float *s) {
    int64_t begin = seen.begin / VEC_FLOATS * VEC_FLOATS, end = blocks_of(seen.end, VEC_FLOATS) * VEC_FLOATS;
    tile_product(rows, end - begin, shape->dim, (Strided){q, shape->padded, 1}, keys_transposed + begin, KEY_TILE, s + begin, KEY_TILE, false);
}

#endif
