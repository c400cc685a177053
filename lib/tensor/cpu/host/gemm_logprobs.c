/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of tokens: products with the vocabulary's head, each tile of which is used at once.
 *
 * Forward, for a block of rows: each tile of logits gives the sums over its columns that log-sum-exp, entropy and mean need, and the tiles of a row
 * are joined in order.
 *
 * The slope of a log-probability is the target's row of the head minus the mean of all rows by probability:
 *     dlogp_dhidden = (W_target - sum_v e^(z_v - r) W_v / e^(logsumexp - r)) / temperature
 * with any r that keeps the weights e^(z_v - r) in the range of floats; r is the target's logit, which is known before all others. So slopes take one
 * more product, of one chunk of weights at a time. If a row's weights leave that range, its block of rows uses the general method.
 *
 * The same weights give the gradient of a trained head when dlogprob is known. Scaled per row by c = e^(r - logsumexp), the weights minus 1/c at the
 * target are the negative gradients of the logits: dW = -sum over rows of (weights_v - [v = target] / c) (c dlogprob hidden / temperature). So
 * weights that were kept need one more product; without them the logits are computed again first. At the target the difference is expm1(logprob) / c,
 * which keeps its precision where the token is nearly certain.
 *
 * General backward, for a block of rows and a chunk of the vocabulary: the gradients of the plain products are computed again into scratch memory,
 * and two products add their part to dhidden and dhead, in the order of blocks and chunks. */
#include "lib/base/system.h"
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* The columns of a chunk are whole tiles, so its size depends only on the vocabulary and the dtype. In bf16 a chunk's weights fit the second-level
 * caches; in f32 they do not, and with larger chunks the hidden rows are copied, and sums added to, less often. */
enum { CHUNK_COLS = 1024, CHUNK_COLS_F32 = 2048, BLOCK_ROWS = LOGPROB_BLOCK };

static int32_t target_of(const Tensor *targets, int64_t p) { return ((const int32_t *)targets->elements)[p]; }

/* Products of rows begin..begin+rows-1 with the whole vocabulary. */
static Product head_product(const Tensor *hidden, const Tensor *head, int64_t begin, int64_t rows) {
    int64_t width = tensor_width(hidden);
    Product product = {
        .dtype = product_dtype(hidden->dtype),
        .m = rows,
        .n = tensor_rows(head),
        .k = width,
        .a = operand_of((const char *)hidden->elements + (size_t)(begin * width) * dtype_size(hidden->dtype), hidden->dtype, width, false)};
    product.round_b = product_rounds(hidden->dtype, head->dtype);
    product.b = product.round_b ? operand_plain(head, true, hidden->dtype) : weight_operand(head, true, hidden->dtype, &product.packed);
    return product;
}

/* The head as the second factor of a product with logits, weights or gradients. */
static Operand head_rows(const Product *product, const Tensor *head, int64_t first) {
    Operand rows = operand_plain(head, false, product->a.dtype);
    if (product->b.dtype == product->dtype) rows = operand_of(product->b.data, product->b.dtype, tensor_width(head), false);
    return operand_after(rows, first * rows.ld);
}

static int64_t tiles_of_chunk(const ProductTiles *tiles) {
    int64_t cols = tiles->product->dtype == DT_F32 ? CHUNK_COLS_F32 : CHUNK_COLS;
    return MAX((int64_t)1, cols / tiles->col_tile);
}
static int64_t chunks_of(const ProductTiles *tiles) { return (tiles->col_tiles + tiles_of_chunk(tiles) - 1) / tiles_of_chunk(tiles); }

/* Computes the tiles of columns from..to-1, each on one thread, and uses each at once; if there are fewer columns than threads, several threads
 * share a column's rows. */
static void tiles_alloc(const ProductTiles *tiles, int64_t from, int64_t to, void (*take)(const void *context, int64_t row_tile, int64_t col),
                        const void *context) {
    if (cpu_planning()) {
        product_plan(tiles);
        return;
    }
    int64_t cols = to - from, slices = MIN((omp_get_max_threads() + cols - 1) / cols, tiles->row_tiles),
            rows = (tiles->row_tiles + slices - 1) / slices;
#pragma omp parallel
    {
        product_thread_begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < cols * slices; i++) {
            int64_t col = from + i / slices, first = i % slices * rows;
            product_column(tiles, col);
            for (int64_t row_tile = first; row_tile < MIN(tiles->row_tiles, first + rows); row_tile++) take(context, row_tile, col);
        }
    }
}

/* A block of rows to multiply by the head. */
typedef struct Block {
    const LogprobArgs *args;
    const Tensor *targets;
    int64_t n_vocab, begin;
    ProductTiles tiles;
    /* Of the forward pass: sums of logits by row and column of tiles; the targets' logits (one per row); all logits (n_vocab per row). */
    LogitRow *sums;
    float *chosen, *logits;
    float *reference;              /* r above, one value per row: nearly the target's logit; NaN where the block uses the general method */
    const LogprobResults *results; /* of the backward pass */
    const TokenLogprobs *grads;
    /* The weights or gradients made of the logits, in the products' dtype: columns from chunk_begin on, lines chunk_cols apart. NULL: nothing is
     * stored */
    char *chunk;
    int64_t chunk_begin, chunk_cols;
} Block;

/* Makes the tiles' results of a chunk go into `memory`. */
static void chunk_start(Block *block, int64_t chunk, void *memory) {
    block->tiles = product_tiles(block->tiles.product); /* another product may have evicted what the library prepared */
    int64_t cols = tiles_of_chunk(&block->tiles) * block->tiles.col_tile;
    block->chunk = memory;
    block->chunk_begin = chunk * cols;
    block->chunk_cols = MIN(cols, block->n_vocab - block->chunk_begin);
}

static void chunk_take(const Block *block, void (*take)(const void *context, int64_t row_tile, int64_t col)) {
    int64_t from = block->chunk_begin / block->tiles.col_tile;
    tiles_alloc(&block->tiles, from, MIN(block->tiles.col_tiles, from + tiles_of_chunk(&block->tiles)), take, block);
}

/* Writes scale * n values of a row, in a column of tiles. */
static void chunk_write(const Block *block, int64_t row, int64_t col, float scale, const float *values, int64_t n) {
    DType dtype = block->tiles.product->dtype;
    int64_t at = row * block->chunk_cols + col * block->tiles.col_tile - block->chunk_begin;
    cpu_rows()->finish(values, n, scale, 0, block->chunk + (size_t)at * dtype_size(dtype), dtype, block->chunk_cols, 1, n);
}

/* The chunk as a factor of the next product. */
static Operand chunk_operand(const Block *block, bool transposed) {
    return operand_of(block->chunk, block->tiles.product->dtype, block->chunk_cols, transposed);
}

/* sums (rows, width) = chunk * head, or += for chunks after the first. */
static void chunk_by_head(const Block *block, const Tensor *head, float *sums) {
    const Product *product = block->tiles.product;
    int64_t width = tensor_width(head);
    product_run(&(Product){.dtype = product->dtype,
                           .m = product->m,
                           .n = width,
                           .k = block->chunk_cols,
                           .a = chunk_operand(block, false),
                           .b = head_rows(product, head, block->chunk_begin),
                           .c = sums,
                           .c_dtype = DT_F32,
                           .ldc = width,
                           .alpha = 1,
                           .beta = block->chunk_begin > 0,
                           .round_b = product->round_b});
}

static int64_t chunk_most(const Block *block) { return MIN(tiles_of_chunk(&block->tiles) * block->tiles.col_tile, block->n_vocab); }

/* ---- forward ---- */

/* Writes n logits of a row, which are exp(z - largest) already, as weights of the chunk. */
static void weights_write(const Block *b, int64_t row, int64_t col, float largest, const float *values, int64_t n) {
    chunk_write(b, row, col, (float)exp((double)largest - (double)b->reference[row]), values, n);
}

static void tile_sums(const void *context, int64_t row_tile, int64_t col) {
    const Block *b = context;
    const ProductTiles *tiles = &b->tiles;
    int64_t first = row_tile * tiles->row_tile, rows = product_rows(tiles, row_tile), n = product_cols(tiles, col), begin = col * tiles->col_tile;
    float *z = product_tile(tiles, row_tile, col);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = first + i, target = b->targets ? target_of(b->targets, b->begin + row) - begin : -1;
        LogitRow *sums = &b->sums[row * tiles->col_tiles + col];
        cpu_rows()->logits(b->args, z + i * n, n);
        if (target >= 0 && target < n) b->chosen[row] = z[i * n + target];
        if (b->logits) memcpy(b->logits + (b->begin + row) * b->n_vocab + begin, z + i * n, (size_t)n * sizeof *z);
        cpu_rows()->sum(sums, z + i * n, n, b->args->entropy || b->args->mean || b->logits);
        if (b->chunk) weights_write(b, row, col, sums->largest, z + i * n, n);
    }
}

static LogitRow tiles_join(const LogitRow *sums, int64_t n) {
    LogitRow all = {.largest = -INFINITY};
    for (int64_t i = 0; i < n; i++) all.largest = sums[i].largest > all.largest ? sums[i].largest : all.largest;
    for (int64_t i = 0; i < n; i++) {
        double shift = (double)sums[i].largest - (double)all.largest, scale = exp(shift);
        all.sum += sums[i].sum * scale;
        if (scale > 0) all.weighted += (sums[i].weighted + shift * sums[i].sum) * scale;
        all.total += sums[i].total;
    }
    return all;
}

static double norm_of(const LogitRow *all) { return (double)all->largest + log(all->sum); }

/* Joins the sums of each row's tiles into those of its first tile. */
static void rows_join(const Block *b) {
    int64_t n = b->tiles.col_tiles;
#pragma omp parallel for schedule(static) if (b->tiles.product->m * n > 1000)
    for (int64_t row = 0; row < b->tiles.product->m; row++) b->sums[row * n] = tiles_join(b->sums + row * n, n);
}

static const LogitRow *sums_of(const Block *b, int64_t row) { return &b->sums[row * b->tiles.col_tiles]; }

/* ---- slopes ---- */

/* If the largest logit is further than this from the target's, sums of weights might leave the range of floats. For a head's gradient, rows of
 * hidden states that are scaled down by as much might leave that of bf16 products, which flush the smallest numbers to zero. */
static const double FARTHEST = 60, FARTHEST_TRAINED = 40;

/* The head's row of a target in the dtype of the products: the weights' part that is subtracted must be able to cancel it. Memory: one row more. */
static void target_row(const Block *b, const Tensor *head, int64_t row, float *to) {
    int64_t width = tensor_width(head), target = target_of(b->targets, b->begin + row);
    DType dtype = head->dtype;
    if (dtype_is_quantised(dtype)) {
        Operand codes = operand_plain(head, false, b->tiles.product->a.dtype);
        cpu_rows()->codes(&codes, target, 0, width, to);
        return;
    }
    const void *from = (const char *)head->elements + (size_t)(target * width) * dtype_size(dtype);
    if ((b->tiles.product->dtype == DT_BF16 || b->tiles.product->round_b) && dtype != DT_BF16) {
        void *rounded = to + width;
        cpu_rows()->convert(from, dtype, width, rounded, DT_BF16, width, 1, width);
        from = rounded, dtype = DT_BF16;
    }
    cpu_rows()->convert(from, dtype, width, to, DT_F32, width, 1, width);
}

/* A thread's memory for target_row and one more line. */
static float *lines_new(int64_t width) { return cpu_scratch(CPU_LOCAL, (size_t)(3 * width) * sizeof(float)); }

/* Computes the targets' logits, as precisely as a reference for weights needs. */
static void references_find(const Block *b, const Tensor *hidden, const Tensor *head) {
    int64_t width = tensor_width(head), rows = b->tiles.product->m;
    if (cpu_planning()) {
        lines_new(width);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *x = lines_new(width), *w = x + width, sum = 0;
        int64_t p = b->begin + row;
        cpu_rows()->convert((const char *)hidden->elements + (size_t)(p * width) * dtype_size(hidden->dtype), hidden->dtype, width, x, DT_F32, width,
                            1, width);
        target_row(b, head, row, w);
        for (int64_t i = 0; i < width; i++) sum += x[i] * w[i];
        b->reference[row] = sum / (float)b->args->temperature;
    }
}

/* sums: the head's rows, summed by weight. */
static void dlogp_dhidden_write(const Block *b, const Tensor *head, const float *sums, Tensor *dlogp_dhidden) {
    int64_t width = tensor_width(head), rows = b->tiles.product->m;
    float by_temperature = (float)(1 / b->args->temperature);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *line = (float *)dlogp_dhidden->elements + (b->begin + row) * width,
              scale = (float)exp((double)b->reference[row] - norm_of(sums_of(b, row)));
        float *w = lines_new(width);
        target_row(b, head, row, w);
        for (int64_t i = 0; i < width; i++) line[i] = (w[i] - scale * sums[row * width + i]) * by_temperature;
    }
}

/* Memory that keeps the weights of a block of rows, one chunk after another; NULL: they are not kept. */
static char *weights_kept(const LogprobResults *results, const Product *product, int64_t begin) {
    const Tensor *weights = results->weights;
    if (!weights || weights->dtype != product->dtype || begin + product->m > tensor_rows(weights)) return NULL;
    return (char *)weights->elements + (size_t)(begin * product->n) * dtype_size(weights->dtype);
}

/* Starts a chunk of weights, in `room` unless they are kept. */
static void weights_start(Block *block, int64_t chunk, char *kept, void *room) {
    const Product *product = block->tiles.product;
    chunk_start(block, chunk, room);
    if (kept) block->chunk = kept + (size_t)(product->m * block->chunk_begin) * dtype_size(product->dtype);
}

/* Computes the block with slopes. sums: rows x width floats, followed by memory for the weights of a chunk. False: the largest logit of a row is
 * too far from the target's. */
static bool slopes_take(Block *b, const Tensor *hidden, const Tensor *head, float *sums, const LogprobResults *results) {
    const Product *product = b->tiles.product;
    char *kept = weights_kept(results, product, b->begin);
    references_find(b, hidden, head);
    for (int64_t chunk = 0; chunk < chunks_of(&b->tiles); chunk++) {
        weights_start(b, chunk, kept, sums + product->m * tensor_width(head));
        chunk_take(b, tile_sums);
        chunk_by_head(b, head, sums);
    }
    if (cpu_planning()) return true;
    rows_join(b);
    bool near = true;
    double farthest = results->reference ? FARTHEST_TRAINED : FARTHEST;
    for (int64_t row = 0; row < product->m; row++) near &= (double)sums_of(b, row)->largest - (double)b->reference[row] <= farthest;
    for (int64_t row = 0; !near && row < product->m; row++) b->reference[row] = NAN;
    if (near) dlogp_dhidden_write(b, head, sums, results->dlogp_dhidden);
    return near;
}

static Tensor rows_of(const Tensor *tensor, int64_t begin, int64_t n) {
    Tensor rows = *tensor;
    rows.elements = (char *)tensor->elements + (size_t)begin * tensor_bytes(tensor) / (size_t)tensor->shape[0];
    rows.shape[0] = n;
    return rows;
}

/* Computes the slopes of a block of rows with the general backward pass. */
static void slopes_again(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const LogprobResults *results,
                         int64_t begin, int64_t n) {
    float ones[BLOCK_ROWS];
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    Tensor dlogprob = {.dtype = DT_F32, .n_dims = 1, .shape = {n}, .elements = ones};
    Tensor x = rows_of(hidden, begin, n), t = rows_of(targets, begin, n), norm = rows_of(results->logsumexp, begin, n),
           dlogp_dhidden = rows_of(results->dlogp_dhidden, begin, n);
    cpu_token_logprobs_backward(args, &x, head, &t, &(LogprobResults){.logsumexp = &norm}, &(TokenLogprobs){.logprob = &dlogprob}, &dlogp_dhidden, 0,
                                NULL);
}

/* ---- the kernels ---- */

static bool fast(const Tensor *hidden, const Tensor *head, const Tensor *out) {
    return CPU_READS(hidden) && cpu_reads_weight(head) && CPU_WRITES(hidden, out) && tensor_count(head) > 0;
}

/* Computes the block of rows that begins at b->begin, whose sums are then in b; false as slopes_take. results: NULL without slopes. */
static bool block_take(Block *b, const Product *product, const Tensor *hidden, const Tensor *head, const LogprobResults *results) {
    int64_t rows = product->m, width = tensor_width(head);
    b->tiles = product_tiles(product);
    size_t sums = (size_t)(rows * b->tiles.col_tiles) * sizeof *b->sums, by_row = (size_t)rows * sizeof(float);
    size_t weighted = results ? (size_t)rows * ((size_t)width * sizeof(float) + (size_t)chunk_most(b) * dtype_size(product->dtype)) : 0;
    b->sums = cpu_scratch(CPU_SHARED, sums + 2 * by_row + weighted);
    float *floats = (float *)(b->sums + rows * b->tiles.col_tiles);
    b->chosen = floats;
    b->reference = results && results->reference ? (float *)results->reference->elements + b->begin : floats + rows;
    b->chunk = NULL;
    for (int64_t i = 0; !cpu_planning() && i < rows; i++) b->chosen[i] = NAN;
    if (results) return slopes_take(b, hidden, head, floats + 2 * rows, results);
    tiles_alloc(&b->tiles, 0, b->tiles.col_tiles, tile_sums, b);
    if (!cpu_planning()) rows_join(b);
    return true;
}

static bool in_floats(const Tensor *tensor) { return !tensor || tensor->dtype == DT_F32; }

void cpu_token_logprobs(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const LogprobResults *results) {
    Block b = {.args = args, .n_vocab = tensor_rows(head), .targets = targets};
    int64_t n_rows = tensor_rows(hidden);
    if (!fast(hidden, head, results->logprob) || !in_floats(results->dlogp_dhidden) || !in_floats(results->reference)) {
        device_reference()->token_logprobs(args, hidden, head, targets, results);
        return;
    }
    double began = clock_seconds();
    for (; b.begin < n_rows; b.begin += BLOCK_ROWS) {
        Product product = head_product(hidden, head, b.begin, MIN((int64_t)BLOCK_ROWS, n_rows - b.begin));
        bool weighted = results->dlogp_dhidden && args->softcap == 0,
             sloped = block_take(&b, &product, hidden, head, weighted ? results : NULL) && weighted;
        if (cpu_planning()) continue;
        for (int64_t row = 0; row < product.m; row++) {
            const LogitRow *all = sums_of(&b, row);
            int64_t p = b.begin + row;
            double norm = norm_of(all);
            element_set(results->logsumexp, p, norm);
            element_set(results->logprob, p, (double)b.chosen[row] - norm);
            if (results->entropy) element_set(results->entropy, p, log(all->sum) - all->weighted / all->sum);
            if (results->mean) element_set(results->mean, p, all->total / (double)b.n_vocab - norm);
        }
        if (!results->dlogp_dhidden || sloped) continue;
        product_time_add(began);
        slopes_again(args, hidden, head, targets, results, b.begin, product.m);
        began = clock_seconds();
    }
    product_time_add(began);
}

void cpu_token_logits(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, Tensor *logits, Tensor *logsumexp) {
    Block b = {.args = args, .n_vocab = tensor_rows(head), .logits = logits->elements};
    int64_t n_rows = tensor_rows(hidden);
    if (!fast(hidden, head, NULL) || logits->dtype != DT_F32) {
        device_reference()->token_logits(args, hidden, head, logits, logsumexp);
        return;
    }
    double began = clock_seconds();
    for (; b.begin < n_rows; b.begin += BLOCK_ROWS) {
        Product product = head_product(hidden, head, b.begin, MIN((int64_t)BLOCK_ROWS, n_rows - b.begin));
        block_take(&b, &product, hidden, head, NULL);
        if (cpu_planning()) continue;
        for (int64_t row = 0; row < product.m; row++)
            element_set(logsumexp, b.begin + row, isfinite(sums_of(&b, row)->total) ? norm_of(sums_of(&b, row)) : (double)NAN);
    }
    product_time_add(began);
}

/* ---- backward ---- */

static float value_or_zero(const Tensor *tensor, int64_t p) { return tensor ? (float)element_get(tensor, p) : 0; }

/* Gradients of the plain products of one tile. */
static void tile_gradient(const void *context, int64_t row_tile, int64_t col) {
    const Block *b = context;
    const ProductTiles *tiles = &b->tiles;
    const TokenLogprobs *grads = b->grads;
    int64_t rows = product_rows(tiles, row_tile), n = product_cols(tiles, col);
    float *z = product_tile(tiles, row_tile, col);
    for (int64_t i = 0; i < rows; i++) {
        int64_t p = b->begin + row_tile * tiles->row_tile + i, target = target_of(b->targets, p) - col * tiles->col_tile;
        float dmean = value_or_zero(grads->mean, p);
        LogitGrad grad = {.logsumexp = (float)element_get(b->results->logsumexp, p),
                          .entropy = value_or_zero(grads->entropy ? b->results->entropy : NULL, p),
                          .dlogprob = value_or_zero(grads->logprob, p),
                          .dentropy = value_or_zero(grads->entropy, p),
                          .dmean = dmean / (float)b->n_vocab,
                          .dmean_sum = dmean};
        cpu_rows()->gradient(b->args, &grad, z + i * n, n, target >= 0 && target < n ? target : -1);
        chunk_write(b, row_tile * tiles->row_tile + i, col, 1, z + i * n, n);
    }
}

static void tile_weights(const void *context, int64_t row_tile, int64_t col) {
    const Block *b = context;
    int64_t rows = product_rows(&b->tiles, row_tile), n = product_cols(&b->tiles, col), first = row_tile * b->tiles.row_tile;
    float *z = product_tile(&b->tiles, row_tile, col);
    for (int64_t i = 0; i < rows; i++) {
        LogitRow sums;
        cpu_rows()->logits(b->args, z + i * n, n);
        cpu_rows()->sum(&sums, z + i * n, n, false);
        weights_write(b, first + i, col, sums.largest, z + i * n, n);
    }
}

typedef struct HeadGradient {
    Tensor *dhead;
    double beta;
    int64_t n_rows;
} HeadGradient;

/* The chunk's part of the head's gradient: a product with rows of hidden, or with scaled ones. */
static void chunk_by_rows(const Block *block, Operand rows, const HeadGradient *gradient) {
    const Product *product = block->tiles.product;
    Tensor *dhead = gradient->dhead;
    int64_t width = tensor_width(dhead);
    product_run(&(Product){.dtype = product->dtype,
                           .m = block->chunk_cols,
                           .n = width,
                           .k = product->m,
                           .a = chunk_operand(block, true),
                           .b = rows,
                           .c = (char *)dhead->elements + (size_t)(block->chunk_begin * width) * dtype_size(dhead->dtype),
                           .c_dtype = dhead->dtype,
                           .ldc = width,
                           .alpha = 1,
                           .beta = block->begin > 0 ? 1 : (float)gradient->beta,
                           .nontemporal = block->begin + product->m == gradient->n_rows});
}

/* The general method. */
static void block_back(Block *b, const Tensor *head, Tensor *dhidden, const HeadGradient *gradient) {
    const Product *product = b->tiles.product;
    int64_t rows = product->m, width = tensor_width(head);
    /* Dhidden of the block, then gradients */
    float *sums = cpu_scratch(CPU_SHARED, (size_t)rows * ((size_t)width * sizeof(float) + (size_t)chunk_most(b) * dtype_size(product->dtype)));
    for (int64_t chunk = 0; chunk < chunks_of(&b->tiles); chunk++) {
        chunk_start(b, chunk, sums + rows * width);
        chunk_take(b, tile_gradient);
        if (dhidden) chunk_by_head(b, head, sums);
        if (gradient->dhead) chunk_by_rows(b, product->a, gradient);
    }
    if (dhidden && !cpu_planning())
        cpu_rows()->convert(sums, DT_F32, width, (char *)dhidden->elements + (size_t)(b->begin * width) * dtype_size(dhidden->dtype), dhidden->dtype,
                            width, rows, width);
}

/* The factor that makes the sum of a row's weights 1. */
static double weight_scale(const Block *b, int64_t row) {
    return exp((double)b->reference[row] - element_get(b->results->logsumexp, b->begin + row));
}

/* Scales each row of hidden by the factor that turns its weights into gradients. */
static void rows_scale(const Block *b, const Tensor *hidden, char *to) {
    DType dtype = b->tiles.product->dtype;
    int64_t width = tensor_width(hidden);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < b->tiles.product->m; row++) {
        float *line = lines_new(width),
              scale = (float)(-weight_scale(b, row) * (double)value_or_zero(b->grads->logprob, b->begin + row) / b->args->temperature);
        cpu_rows()->convert((const char *)hidden->elements + (size_t)((b->begin + row) * width) * dtype_size(hidden->dtype), hidden->dtype, width,
                            line, DT_F32, width, 1, width);
        for (int64_t i = 0; i < width; i++) line[i] *= scale;
        cpu_rows()->convert(line, DT_F32, width, to + (size_t)(row * width) * dtype_size(dtype), dtype, width, 1, width);
    }
}

/* Subtracts the targets' part from their weights. */
static void targets_take_off(const Block *b) {
    DType dtype = b->tiles.product->dtype;
    for (int64_t row = 0; row < b->tiles.product->m; row++) {
        int64_t p = b->begin + row, target = target_of(b->targets, p) - b->chunk_begin;
        if (target < 0 || target >= b->chunk_cols) continue;
        float rest = (float)(expm1(element_get(b->results->logprob, p)) / weight_scale(b, row));
        cpu_rows()->convert(&rest, DT_F32, 1, b->chunk + (size_t)(row * b->chunk_cols + target) * dtype_size(dtype), dtype, 1, 1, 1);
    }
}

/* The gradient of the head alone, from weights. */
static void block_back_weighted(Block *b, const Tensor *hidden, const HeadGradient *gradient) {
    const Product *product = b->tiles.product;
    int64_t width = tensor_width(hidden);
    char *kept = weights_kept(b->results, product, b->begin);
    size_t element = dtype_size(product->dtype), scaled = (size_t)(product->m * width) * element;
    char *rows = cpu_scratch(CPU_SHARED, scaled + (kept ? 0 : (size_t)(product->m * chunk_most(b)) * element));
    if (cpu_planning())
        lines_new(width);
    else
        rows_scale(b, hidden, rows);
    for (int64_t chunk = 0; chunk < chunks_of(&b->tiles); chunk++) {
        weights_start(b, chunk, kept, rows + scaled);
        if (!kept) chunk_take(b, tile_weights);
        if (!cpu_planning()) targets_take_off(b);
        chunk_by_rows(b, operand_of(rows, product->dtype, width, false), gradient);
    }
}

void cpu_token_logprobs_backward(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets,
                                 const LogprobResults *results, const TokenLogprobs *grads, Tensor *dhidden, double head_beta, Tensor *dhead) {
    int64_t n_rows = tensor_rows(hidden);
    if (n_rows > 0 && (!fast(hidden, head, dhidden) || !CPU_WRITES(dhead) || !in_floats(results->reference))) {
        device_reference()->token_logprobs_backward(args, hidden, head, targets, results, grads, dhidden, head_beta, dhead);
        return;
    }
    if (n_rows == 0) {
        if (dhead && head_beta == 0 && !cpu_planning()) device_cpu()->fill(dhead, 0);
        return;
    }
    ASSERT(!results->reference || (!dhidden && !grads->entropy && !grads->mean), "more than the gradient of the head by log-probabilities");
    double began = clock_seconds();
    Block b = {.args = args, .targets = targets, .n_vocab = tensor_rows(head), .results = results, .grads = grads};
    HeadGradient gradient = {dhead, head_beta, n_rows};
    for (; b.begin < n_rows; b.begin += BLOCK_ROWS) {
        Product product = head_product(hidden, head, b.begin, MIN((int64_t)BLOCK_ROWS, n_rows - b.begin));
        b.tiles = product_tiles(&product);
        b.reference = results->reference ? (float *)results->reference->elements + b.begin : NULL;
        if (b.reference && (cpu_planning() || !isnan(b.reference[0])))
            block_back_weighted(&b, hidden, &gradient);
        else
            block_back(&b, head, dhidden, &gradient);
    }
    product_time_add(began);
}
