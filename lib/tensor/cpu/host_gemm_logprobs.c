/* Log-probabilities of tokens: products with the vocabulary's head, used up tile by tile.
 *
 * Forward: tasks are (group of rows) x (chunk of the vocabulary); each takes the sums that log-sum-exp, entropy and mean need over its chunk, then the chunks
 * of a row are joined in order. Backward: for a block of rows and a chunk of the vocabulary the gradients of the plain products are computed again into
 * scratch memory, and two products add their part to dhidden and dhead, in the order of blocks and chunks. */
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"

#include <math.h>
#include <string.h>

/* Columns of a chunk come in whole tiles, so its size goes by the vocabulary alone. */
enum { CHUNK_COLS = 4096, BLOCK_ROWS = 1024, GROUP_ROWS = 1024 };

static int32_t target_of(const Tensor *targets, int64_t p) { return ((const int32_t *)targets->data)[p]; }

/* Products of rows begin..begin+rows-1 with the whole vocabulary. */
static Product head_product(const Tensor *hidden, const Tensor *head, int64_t begin, int64_t rows) {
    int64_t width = tensor_width(hidden);
    Product product = {.dtype = product_dtype(hidden->dtype), .m = rows, .n = tensor_rows(head), .k = width,
                       .a = {(const char *)hidden->data + (size_t)(begin * width) * dtype_size(hidden->dtype), hidden->dtype, width, false}};
    product.b = weight_operand(head, true, product.dtype, &product.packed);
    return product;
}

static int64_t tiles_of_chunk(const ProductTiles *tiles) { return MAX((int64_t)1, CHUNK_COLS / tiles->col_tile); }
/* Rows that use a tile of the head one after the other. */
static int64_t tiles_of_group(const ProductTiles *tiles) { return MAX((int64_t)1, GROUP_ROWS / tiles->row_tile); }
static int64_t groups_of(const ProductTiles *tiles) { return (tiles->row_tiles + tiles_of_group(tiles) - 1) / tiles_of_group(tiles); }
static int64_t chunks_of(const ProductTiles *tiles) { return (tiles->col_tiles + tiles_of_chunk(tiles) - 1) / tiles_of_chunk(tiles); }

/* What the forward pass makes of the logits: their sums, by row and chunk; and either the targets' (chosen, a value a row) or all of them (logits, n_vocab a row). */
typedef struct Forward {
    const LogprobArgs *args;
    ProductTiles tiles;
    int64_t n_rows, n_vocab, n_chunks;
    LogitRow *sums;
    const Tensor *targets;
    float *chosen, *logits;
} Forward;

/* Takes a finished tile of logits into the sums of its rows. */
static void tile_add(const Forward *f, int64_t row_tile, int64_t col, int64_t chunk) {
    const ProductTiles *tiles = &f->tiles;
    int64_t first = row_tile * tiles->row_tile, rows = product_rows(tiles, row_tile), n = product_cols(tiles, col), begin = col * tiles->col_tile;
    float *z = product_tile(tiles, row_tile, col);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = first + i, target = f->targets ? target_of(f->targets, row) - begin : -1;
        cpu_rows()->logits(f->args, z + i * n, n);
        cpu_rows()->add(&f->sums[row * f->n_chunks + chunk], z + i * n, n);
        if (target >= 0 && target < n) f->chosen[row] = z[i * n + target];
        if (f->logits) memcpy(f->logits + row * f->n_vocab + begin, z + i * n, (size_t)n * sizeof *z);
    }
}

/* One task: a group of rows over a chunk. */
static void chunk_add(const Forward *f, int64_t group, int64_t chunk) {
    const ProductTiles *tiles = &f->tiles;
    int64_t per_group = tiles_of_group(tiles), end = MIN(tiles->row_tiles, (group + 1) * per_group);
    for (int64_t row = group * per_group * tiles->row_tile; row < MIN(f->n_rows, end * tiles->row_tile); row++) f->sums[row * f->n_chunks + chunk] = (LogitRow){.largest = -INFINITY};
    for (int64_t col = chunk * tiles_of_chunk(tiles); col < MIN(tiles->col_tiles, (chunk + 1) * tiles_of_chunk(tiles)); col++) {
        product_column(tiles, col);
        for (int64_t row_tile = group * per_group; row_tile < end; row_tile++) tile_add(f, row_tile, col, chunk);
    }
}

static LogitRow chunks_join(const LogitRow *sums, int64_t n_chunks) {
    LogitRow all = {.largest = -INFINITY};
    for (int64_t i = 0; i < n_chunks; i++) all.largest = sums[i].largest > all.largest ? sums[i].largest : all.largest;
    for (int64_t i = 0; i < n_chunks; i++) {
        double shift = (double)sums[i].largest - (double)all.largest, scale = exp(shift);
        all.sum += sums[i].sum * scale;
        if (scale > 0) all.weighted += (sums[i].weighted + shift * sums[i].sum) * scale;
        all.total += sums[i].total;
    }
    return all;
}

/* Runs all tasks of `f`, which has all but tiles and sums; these live in scratch memory. */
static void forward_run(Forward *f, const Product *product) {
    f->tiles = product_tiles(product);
    f->n_chunks = chunks_of(&f->tiles);
    f->sums = cpu_scratch(CPU_SHARED, (size_t)(f->n_rows * f->n_chunks) * sizeof *f->sums + (size_t)f->n_rows * sizeof(float));
    if (!f->logits) f->chosen = (float *)(f->sums + f->n_rows * f->n_chunks);
    for (int64_t i = 0; f->chosen && i < f->n_rows; i++) f->chosen[i] = NAN;
#pragma omp parallel
    {
        product_thread_begin();
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < groups_of(&f->tiles) * f->n_chunks; task++) chunk_add(f, task % groups_of(&f->tiles), task / groups_of(&f->tiles));
    }
}

static double norm_of(const LogitRow *all) { return (double)all->largest + log(all->sum); }

static bool fast(const Tensor *hidden, const Tensor *head, const Tensor *out) { return CPU_READS(hidden, head) && CPU_WRITES(hidden, out) && tensor_count(head) > 0; }

void cpu_token_logprobs(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, Tensor *logprob, Tensor *entropy, Tensor *mean,
                        Tensor *logsumexp) {
    Forward f = {.args = args, .n_rows = tensor_rows(hidden), .n_vocab = tensor_rows(head), .targets = targets};
    if (f.n_rows == 0) return;
    if (!fast(hidden, head, logprob)) {
        device_reference()->token_logprobs(args, hidden, head, targets, logprob, entropy, mean, logsumexp);
        return;
    }
    double began = clock_seconds();
    Product product = head_product(hidden, head, 0, f.n_rows);
    forward_run(&f, &product);
    for (int64_t p = 0; p < f.n_rows; p++) {
        LogitRow all = chunks_join(f.sums + p * f.n_chunks, f.n_chunks);
        double norm = norm_of(&all);
        tensor_set(logsumexp, p, norm);
        tensor_set(logprob, p, (double)f.chosen[p] - norm);
        if (entropy) tensor_set(entropy, p, log(all.sum) - all.weighted / all.sum);
        if (mean) tensor_set(mean, p, all.total / (double)f.n_vocab - norm);
    }
    product_time_add(began);
}

void cpu_token_logits(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, Tensor *logits, Tensor *logsumexp) {
    Forward f = {.args = args, .n_rows = tensor_rows(hidden), .n_vocab = tensor_rows(head), .logits = logits->data};
    if (f.n_rows == 0) return;
    if (!fast(hidden, head, NULL) || logits->dtype != DT_F32) {
        device_reference()->token_logits(args, hidden, head, logits, logsumexp);
        return;
    }
    double began = clock_seconds();
    Product product = head_product(hidden, head, 0, f.n_rows);
    forward_run(&f, &product);
    for (int64_t p = 0; p < f.n_rows; p++) {
        LogitRow all = chunks_join(f.sums + p * f.n_chunks, f.n_chunks);
        tensor_set(logsumexp, p, isfinite(all.total) ? norm_of(&all) : (double)NAN);
    }
    product_time_add(began);
}

/* ---- backward ---- */

typedef struct BackwardArgs {
    const LogprobArgs *args;
    const Tensor *targets, *logsumexp, *entropy, *dlogprob, *dentropy, *dmean;
    int64_t n_vocab;
} BackwardArgs;

static float value_or_zero(const Tensor *tensor, int64_t p) { return tensor ? (float)tensor_get(tensor, p) : 0; }

/* Gradients of the plain products of one tile, in the products' dtype, lines ld apart. */
static void tile_gradient(const BackwardArgs *all, const ProductTiles *tiles, int64_t begin, int64_t row_tile, int64_t col, void *dz, int64_t ld) {
    int64_t first = begin + row_tile * tiles->row_tile, rows = product_rows(tiles, row_tile), n = product_cols(tiles, col);
    float *z = product_tile(tiles, row_tile, col);
    for (int64_t i = 0; i < rows; i++) {
        int64_t p = first + i, target = target_of(all->targets, p) - col * tiles->col_tile;
        float dmean = value_or_zero(all->dmean, p);
        LogitGrad grad = {.logsumexp = (float)tensor_get(all->logsumexp, p), .entropy = value_or_zero(all->dentropy ? all->entropy : NULL, p),
                          .dlogprob = value_or_zero(all->dlogprob, p), .dentropy = value_or_zero(all->dentropy, p),
                          .dmean = dmean / (float)all->n_vocab, .dmean_sum = dmean};
        cpu_rows()->gradient(all->args, &grad, z + i * n, n, target >= 0 && target < n ? target : -1);
    }
    cpu_rows()->convert(z, DT_F32, n, dz, tiles->product->dtype, ld, rows, n);
}

/* The same of a block of rows (from `begin` on) with one chunk. */
static void chunk_gradient(const BackwardArgs *all, const ProductTiles *tiles, int64_t begin, int64_t chunk, void *dz, int64_t ld) {
    int64_t first_col = chunk * tiles_of_chunk(tiles), cols = MIN(tiles->col_tiles, first_col + tiles_of_chunk(tiles)) - first_col;
    DType dtype = tiles->product->dtype;
#pragma omp parallel
    {
        product_thread_begin();
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < groups_of(tiles) * cols; task++) {
            int64_t group = task % groups_of(tiles), col = task / groups_of(tiles);
            product_column(tiles, first_col + col);
            for (int64_t row_tile = group * tiles_of_group(tiles); row_tile < MIN(tiles->row_tiles, (group + 1) * tiles_of_group(tiles)); row_tile++)
                tile_gradient(all, tiles, begin, row_tile, first_col + col, (char *)dz + (size_t)(row_tile * tiles->row_tile * ld + col * tiles->col_tile) * dtype_size(dtype), ld);
        }
    }
}

/* The part of an operand that begins at line `at`. */
static Operand operand_from(Operand operand, int64_t at) {
    operand.data = (const char *)operand.data + (size_t)(at * operand.ld) * dtype_size(operand.dtype);
    return operand;
}

void cpu_token_logprobs_backward(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const Tensor *logsumexp, const Tensor *entropy,
                                 const Tensor *dlogprob, const Tensor *dentropy, const Tensor *dmean, Tensor *dhidden, Tensor *dhead) {
    int64_t n_rows = tensor_rows(hidden), n_vocab = tensor_rows(head), width = tensor_width(hidden);
    if (n_rows == 0) return;
    if (!fast(hidden, head, dhidden) || !CPU_WRITES(dhead)) {
        device_reference()->token_logprobs_backward(args, hidden, head, targets, logsumexp, entropy, dlogprob, dentropy, dmean, dhidden, dhead);
        return;
    }
    double began = clock_seconds();
    BackwardArgs all = {args, targets, logsumexp, entropy, dlogprob, dentropy, dmean, n_vocab};
    int64_t block_rows = MIN((int64_t)BLOCK_ROWS, n_rows);
    for (int64_t begin = 0; begin < n_rows; begin += BLOCK_ROWS) {
        int64_t rows = MIN((int64_t)BLOCK_ROWS, n_rows - begin);
        Product product = head_product(hidden, head, begin, rows);
        ProductTiles tiles = product_tiles(&product);
        int64_t chunk_cols = MIN(tiles_of_chunk(&tiles) * tiles.col_tile, n_vocab);
        float *sums = cpu_scratch(CPU_SHARED, (size_t)block_rows * ((size_t)width * sizeof(float) + (size_t)chunk_cols * dtype_size(product.dtype))); /* dhidden of the block, then dz */
        void *dz = sums + block_rows * width;
        Operand weight = {head->data, head->dtype, width, false};
        if (product.b.dtype == product.dtype) weight = (Operand){product.b.data, product.b.dtype, width, false};
        for (int64_t chunk = 0; chunk < chunks_of(&tiles); chunk++) {
            int64_t first = chunk * chunk_cols, cols = MIN(chunk_cols, n_vocab - first);
            chunk_gradient(&all, &tiles, begin, chunk, dz, cols);
            if (dhidden)
                product_run(&(Product){.dtype = product.dtype, .m = rows, .n = width, .k = cols, .a = {dz, product.dtype, cols, false}, .b = operand_from(weight, first),
                                       .c = sums, .c_dtype = DT_F32, .ldc = width, .alpha = 1, .beta = chunk > 0});
            if (dhead)
                product_run(&(Product){.dtype = product.dtype, .m = cols, .n = width, .k = rows, .a = {dz, product.dtype, cols, true}, .b = product.a,
                                       .c = (char *)dhead->data + (size_t)(first * width) * dtype_size(dhead->dtype), .c_dtype = dhead->dtype, .ldc = width, .alpha = 1, .beta = 1});
        }
        if (dhidden)
            cpu_rows()->convert(sums, DT_F32, width, (char *)dhidden->data + (size_t)(begin * width) * dtype_size(dhidden->dtype), dhidden->dtype, width, rows, width);
    }
    product_time_add(began);
}
