/* Log-probabilities of tokens: products with the vocabulary's head, used up tile by tile.
 *
 * Forward, for a block of rows: each tile of logits gives the sums that log-sum-exp, entropy and mean need over its columns, and the tiles of a row are joined in order.
 *
 * The slopes of the log-probabilities are the target's row of the head less the mean of all rows by probability:
 *     slope = (W_target - sum_v e^(z_v - r) W_v / e^(logsumexp - r)) / temperature
 * with any r that keeps the weights e^(z_v - r) in the range of floats; it is the target's logit, known before all others. So they take one product more, of a chunk of weights at a time.
 * Where that range is too small for a row, its block of rows goes the general way.
 *
 * Backward in general, for a block of rows and a chunk of the vocabulary: the gradients of the plain products are computed again into scratch memory, and two products add their part to
 * dhidden and dhead, in the order of blocks and chunks. */
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/cpu/gemm.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Columns of a chunk come in whole tiles, so its size goes by the vocabulary alone. */
enum { CHUNK_COLS = 2048, BLOCK_ROWS = 2048 };

static int32_t target_of(const Tensor *targets, int64_t p) { return ((const int32_t *)targets->data)[p]; }

/* Products of rows begin..begin+rows-1 with the whole vocabulary. */
static Product head_product(const Tensor *hidden, const Tensor *head, int64_t begin, int64_t rows) {
    int64_t width = tensor_width(hidden);
    Product product = {.dtype = product_dtype(hidden->dtype), .m = rows, .n = tensor_rows(head), .k = width,
                       .a = {(const char *)hidden->data + (size_t)(begin * width) * dtype_size(hidden->dtype), hidden->dtype, width, false}};
    product.b = weight_operand(head, true, product.dtype, &product.packed);
    return product;
}

/* The head as the other factor of a product: rows of it are multiplied by what stands for their logits. */
static Operand head_rows(const Product *product, const Tensor *head, int64_t first) {
    Operand rows = {head->data, head->dtype, tensor_width(head), false};
    if (product->b.dtype == product->dtype) rows = (Operand){product->b.data, product->b.dtype, tensor_width(head), false};
    rows.data = (const char *)rows.data + (size_t)(first * rows.ld) * dtype_size(rows.dtype);
    return rows;
}

static int64_t tiles_of_chunk(const ProductTiles *tiles) { return MAX((int64_t)1, CHUNK_COLS / tiles->col_tile); }
static int64_t chunks_of(const ProductTiles *tiles) { return (tiles->col_tiles + tiles_of_chunk(tiles) - 1) / tiles_of_chunk(tiles); }

/* Uses up the tiles of columns from..to-1, each by one thread; where there are fewer columns than threads, several share a column's rows. */
static void tiles_take(const ProductTiles *tiles, int64_t from, int64_t to, void (*take)(const void *context, int64_t row_tile, int64_t col), const void *context) {
    if (cpu_planning()) {
        product_plan(tiles);
        return;
    }
    int64_t cols = to - from, slices = MIN((omp_get_max_threads() + cols - 1) / cols, tiles->row_tiles), rows = (tiles->row_tiles + slices - 1) / slices;
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

/* ---- forward ---- */

/* What a block of rows makes of its logits: their sums, by row and column of tiles; and the targets' (chosen, a value a row), all of them (logits, n_vocab a row), or weights of a chunk. */
typedef struct Forward {
    const LogprobArgs *args;
    const Tensor *targets;
    int64_t n_vocab, begin;
    ProductTiles tiles;
    LogitRow *sums;
    float *chosen, *logits;
    float *reference;
    void *weights; /* in the products' dtype, of the columns from weights_begin on; lines weights_ld apart. NULL: none */
    int64_t weights_begin, weights_ld;
} Forward;

static void tile_sums(const void *context, int64_t row_tile, int64_t col) {
    const Forward *f = context;
    const ProductTiles *tiles = &f->tiles;
    int64_t first = row_tile * tiles->row_tile, rows = product_rows(tiles, row_tile), n = product_cols(tiles, col), begin = col * tiles->col_tile;
    float *z = product_tile(tiles, row_tile, col);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = first + i, target = f->targets ? target_of(f->targets, f->begin + row) - begin : -1;
        LogitRow *sums = &f->sums[row * tiles->col_tiles + col];
        *sums = (LogitRow){.largest = -INFINITY};
        cpu_rows()->logits(f->args, z + i * n, n);
        cpu_rows()->add(sums, z + i * n, n);
        if (target >= 0 && target < n) f->chosen[row] = z[i * n + target];
        if (f->logits) memcpy(f->logits + (f->begin + row) * f->n_vocab + begin, z + i * n, (size_t)n * sizeof *z);
        if (f->weights) cpu_rows()->weigh(f->reference[row], z + i * n, n);
    }
    DType dtype = tiles->product->dtype;
    if (f->weights)
        cpu_rows()->convert(z, DT_F32, n, (char *)f->weights + (size_t)(first * f->weights_ld + begin - f->weights_begin) * dtype_size(dtype), dtype, f->weights_ld, rows, n);
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

/* The sums of each row as a whole, in place of those of its first tile. */
static void rows_join(const Forward *f) {
    int64_t n = f->tiles.col_tiles;
#pragma omp parallel for schedule(static) if (f->tiles.product->m * n > 1000)
    for (int64_t row = 0; row < f->tiles.product->m; row++) f->sums[row * n] = tiles_join(f->sums + row * n, n);
}

static const LogitRow *sums_of(const Forward *f, int64_t row) { return &f->sums[row * f->tiles.col_tiles]; }

/* ---- slopes ---- */

/* Beyond this distance of the largest logit from the target's, sums of weights might leave the range of floats. */
static const double FARTHEST = 60;

/* The head's row of a target as products see it: what is taken off it must be able to cancel it. Room: one row more. */
static void target_row(const Forward *f, const Tensor *head, int64_t row, float *to) {
    int64_t width = tensor_width(head);
    const void *from = (const char *)head->data + (size_t)(target_of(f->targets, f->begin + row) * width) * dtype_size(head->dtype);
    DType dtype = head->dtype;
    if (f->tiles.product->dtype == DT_BF16 && dtype != DT_BF16) {
        void *rounded = to + width;
        cpu_rows()->convert(from, dtype, width, rounded, DT_BF16, width, 1, width);
        from = rounded, dtype = DT_BF16;
    }
    cpu_rows()->convert(from, dtype, width, to, DT_F32, width, 1, width);
}

/* A thread's room for target_row and a line more. */
static float *lines_new(int64_t width) { return cpu_scratch(CPU_LOCAL, (size_t)(3 * width) * sizeof(float)); }

/* The targets' logits, as near as the reference of weights needs. */
static void references_find(const Forward *f, const Tensor *hidden, const Tensor *head) {
    int64_t width = tensor_width(head), rows = f->tiles.product->m;
    if (cpu_planning()) {
        lines_new(width);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *x = lines_new(width), *w = x + width, sum = 0;
        int64_t p = f->begin + row;
        cpu_rows()->convert((const char *)hidden->data + (size_t)(p * width) * dtype_size(hidden->dtype), hidden->dtype, width, x, DT_F32, width, 1, width);
        target_row(f, head, row, w);
        for (int64_t i = 0; i < width; i++) sum += x[i] * w[i];
        f->reference[row] = sum / (float)f->args->temperature;
    }
}

/* sums: the heads' rows by weight. */
static void slopes_write(const Forward *f, const Tensor *head, const float *sums, Tensor *slope) {
    int64_t width = tensor_width(head), rows = f->tiles.product->m;
    float by_temperature = (float)(1 / f->args->temperature);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *line = (float *)slope->data + (f->begin + row) * width, scale = (float)exp((double)f->reference[row] - norm_of(sums_of(f, row)));
        float *w = lines_new(width);
        target_row(f, head, row, w);
        for (int64_t i = 0; i < width; i++) line[i] = (w[i] - scale * sums[row * width + i]) * by_temperature;
    }
}

/* All of the block with slopes. sums: rows x width floats, then room for the weights of a chunk. False: the logits of a row are too far from the target's. */
static bool slopes_take(Forward *f, const Tensor *hidden, const Tensor *head, float *sums, Tensor *slope) {
    const Product *product = f->tiles.product;
    int64_t width = tensor_width(head), per_chunk = tiles_of_chunk(&f->tiles), chunk_cols = per_chunk * f->tiles.col_tile;
    references_find(f, hidden, head);
    f->weights = sums + product->m * width;
    for (int64_t chunk = 0; chunk < chunks_of(&f->tiles); chunk++) {
        f->tiles = product_tiles(product); /* what a library has prepared may be gone after another product */
        f->weights_begin = chunk * chunk_cols;
        f->weights_ld = MIN(chunk_cols, f->n_vocab - f->weights_begin);
        tiles_take(&f->tiles, chunk * per_chunk, MIN(f->tiles.col_tiles, (chunk + 1) * per_chunk), tile_sums, f);
        product_run(&(Product){.dtype = product->dtype, .m = product->m, .n = width, .k = f->weights_ld, .a = {f->weights, product->dtype, f->weights_ld, false},
                               .b = head_rows(product, head, f->weights_begin), .c = sums, .c_dtype = DT_F32, .ldc = width, .alpha = 1, .beta = chunk > 0});
    }
    if (cpu_planning()) return true;
    rows_join(f);
    for (int64_t row = 0; row < product->m; row++)
        if (!((double)sums_of(f, row)->largest - (double)f->reference[row] <= FARTHEST)) return false;
    slopes_write(f, head, sums, slope);
    return true;
}

static Tensor rows_of(const Tensor *tensor, int64_t begin, int64_t n) {
    Tensor rows = *tensor;
    rows.data = (char *)tensor->data + (size_t)begin * tensor_bytes(tensor) / (size_t)tensor->shape[0];
    rows.shape[0] = n;
    return rows;
}

/* Of a block of rows, by the general way back. */
static void slopes_again(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const Tensor *logsumexp, Tensor *slope, int64_t begin, int64_t n) {
    float ones[BLOCK_ROWS];
    for (int64_t i = 0; i < n; i++) ones[i] = 1;
    Tensor dlogprob = {.dtype = DT_F32, .n_dims = 1, .shape = {n}, .data = ones, .device = device_cpu()};
    Tensor x = rows_of(hidden, begin, n), t = rows_of(targets, begin, n), norm = rows_of(logsumexp, begin, n), out = rows_of(slope, begin, n);
    cpu_token_logprobs_backward(args, &x, head, &t, &norm, NULL, &dlogprob, NULL, NULL, &out, 0, NULL);
}

/* ---- the kernels ---- */

static bool fast(const Tensor *hidden, const Tensor *head, const Tensor *out) { return CPU_READS(hidden, head) && CPU_WRITES(hidden, out) && tensor_count(head) > 0; }

/* The block of rows that begins at f->begin, whose sums are then in f; false as slopes_take. */
static bool block_take(Forward *f, const Product *product, const Tensor *hidden, const Tensor *head, Tensor *slope) {
    int64_t rows = product->m, width = tensor_width(head);
    f->tiles = product_tiles(product);
    int64_t chunk_cols = MIN(tiles_of_chunk(&f->tiles) * f->tiles.col_tile, f->n_vocab);
    size_t sums = (size_t)(rows * f->tiles.col_tiles) * sizeof *f->sums, by_row = (size_t)rows * sizeof(float);
    size_t weighted = slope ? (size_t)rows * ((size_t)width * sizeof(float) + (size_t)chunk_cols * dtype_size(product->dtype)) : 0;
    f->sums = cpu_scratch(CPU_SHARED, sums + 2 * by_row + weighted);
    float *floats = (float *)(f->sums + rows * f->tiles.col_tiles);
    f->chosen = floats;
    f->reference = floats + rows;
    f->weights = NULL;
    for (int64_t i = 0; !cpu_planning() && i < rows; i++) f->chosen[i] = NAN;
    if (slope) return slopes_take(f, hidden, head, floats + 2 * rows, slope);
    tiles_take(&f->tiles, 0, f->tiles.col_tiles, tile_sums, f);
    if (!cpu_planning()) rows_join(f);
    return true;
}

void cpu_token_logprobs(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, Tensor *logprob, Tensor *entropy, Tensor *mean,
                        Tensor *logsumexp, Tensor *slope) {
    Forward f = {.args = args, .n_vocab = tensor_rows(head), .targets = targets};
    int64_t n_rows = tensor_rows(hidden);
    if (!fast(hidden, head, logprob) || (slope && slope->dtype != DT_F32)) {
        device_reference()->token_logprobs(args, hidden, head, targets, logprob, entropy, mean, logsumexp, slope);
        return;
    }
    double began = clock_seconds();
    for (; f.begin < n_rows; f.begin += BLOCK_ROWS) {
        Product product = head_product(hidden, head, f.begin, MIN((int64_t)BLOCK_ROWS, n_rows - f.begin));
        bool sloped = block_take(&f, &product, hidden, head, args->softcap == 0 ? slope : NULL) && args->softcap == 0;
        if (cpu_planning()) continue;
        for (int64_t row = 0; row < product.m; row++) {
            const LogitRow *all = sums_of(&f, row);
            int64_t p = f.begin + row;
            double norm = norm_of(all);
            tensor_set(logsumexp, p, norm);
            tensor_set(logprob, p, (double)f.chosen[row] - norm);
            if (entropy) tensor_set(entropy, p, log(all->sum) - all->weighted / all->sum);
            if (mean) tensor_set(mean, p, all->total / (double)f.n_vocab - norm);
        }
        if (!slope || sloped) continue;
        product_time_add(began);
        slopes_again(args, hidden, head, targets, logsumexp, slope, f.begin, product.m);
        began = clock_seconds();
    }
    product_time_add(began);
}

void cpu_token_logits(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, Tensor *logits, Tensor *logsumexp) {
    Forward f = {.args = args, .n_vocab = tensor_rows(head), .logits = logits->data};
    int64_t n_rows = tensor_rows(hidden);
    if (!fast(hidden, head, NULL) || logits->dtype != DT_F32) {
        device_reference()->token_logits(args, hidden, head, logits, logsumexp);
        return;
    }
    double began = clock_seconds();
    for (; f.begin < n_rows; f.begin += BLOCK_ROWS) {
        Product product = head_product(hidden, head, f.begin, MIN((int64_t)BLOCK_ROWS, n_rows - f.begin));
        block_take(&f, &product, hidden, head, NULL);
        if (cpu_planning()) continue;
        for (int64_t row = 0; row < product.m; row++) tensor_set(logsumexp, f.begin + row, isfinite(sums_of(&f, row)->total) ? norm_of(sums_of(&f, row)) : (double)NAN);
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

/* Of rows from `begin` on and columns from first_col on, in the products' dtype, lines ld apart. */
typedef struct ChunkGradient {
    const BackwardArgs *all;
    const ProductTiles *tiles;
    int64_t begin, first_col;
    char *dz;
    int64_t ld;
} ChunkGradient;

/* Gradients of the plain products of one tile. */
static void tile_gradient(const void *context, int64_t row_tile, int64_t col) {
    const ChunkGradient *chunk = context;
    const BackwardArgs *all = chunk->all;
    const ProductTiles *tiles = chunk->tiles;
    int64_t first = row_tile * tiles->row_tile, rows = product_rows(tiles, row_tile), n = product_cols(tiles, col);
    DType dtype = tiles->product->dtype;
    float *z = product_tile(tiles, row_tile, col);
    for (int64_t i = 0; i < rows; i++) {
        int64_t p = chunk->begin + first + i, target = target_of(all->targets, p) - col * tiles->col_tile;
        float dmean = value_or_zero(all->dmean, p);
        LogitGrad grad = {.logsumexp = (float)tensor_get(all->logsumexp, p), .entropy = value_or_zero(all->dentropy ? all->entropy : NULL, p),
                          .dlogprob = value_or_zero(all->dlogprob, p), .dentropy = value_or_zero(all->dentropy, p),
                          .dmean = dmean / (float)all->n_vocab, .dmean_sum = dmean};
        cpu_rows()->gradient(all->args, &grad, z + i * n, n, target >= 0 && target < n ? target : -1);
    }
    char *to = chunk->dz + (size_t)(first * chunk->ld + (col - chunk->first_col) * tiles->col_tile) * dtype_size(dtype);
    cpu_rows()->convert(z, DT_F32, n, to, dtype, chunk->ld, rows, n);
}

void cpu_token_logprobs_backward(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const Tensor *logsumexp, const Tensor *entropy,
                                 const Tensor *dlogprob, const Tensor *dentropy, const Tensor *dmean, Tensor *dhidden, double head_beta, Tensor *dhead) {
    int64_t n_rows = tensor_rows(hidden), n_vocab = tensor_rows(head), width = tensor_width(hidden);
    if (n_rows > 0 && (!fast(hidden, head, dhidden) || !CPU_WRITES(dhead))) {
        device_reference()->token_logprobs_backward(args, hidden, head, targets, logsumexp, entropy, dlogprob, dentropy, dmean, dhidden, head_beta, dhead);
        return;
    }
    if (n_rows == 0) {
        if (dhead && head_beta == 0 && !cpu_planning()) device_cpu()->fill(dhead, 0);
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
        for (int64_t chunk = 0; chunk < chunks_of(&tiles); chunk++) {
            if (chunk > 0) tiles = product_tiles(&product); /* as in slopes_take */
            int64_t first = chunk * chunk_cols, cols = MIN(chunk_cols, n_vocab - first);
            int64_t first_col = chunk * tiles_of_chunk(&tiles);
            tiles_take(&tiles, first_col, MIN(tiles.col_tiles, first_col + tiles_of_chunk(&tiles)), tile_gradient, &(ChunkGradient){&all, &tiles, begin, first_col, dz, cols});
            if (dhidden)
                product_run(&(Product){.dtype = product.dtype, .m = rows, .n = width, .k = cols, .a = {dz, product.dtype, cols, false}, .b = head_rows(&product, head, first),
                                       .c = sums, .c_dtype = DT_F32, .ldc = width, .alpha = 1, .beta = chunk > 0});
            if (dhead)
                product_run(&(Product){.dtype = product.dtype, .m = cols, .n = width, .k = rows, .a = {dz, product.dtype, cols, true}, .b = product.a,
                                       .c = (char *)dhead->data + (size_t)(first * width) * dtype_size(dhead->dtype), .c_dtype = dhead->dtype, .ldc = width, .alpha = 1, .beta = begin > 0 ? 1 : (float)head_beta, .read_late = begin + rows == n_rows});
        }
        if (dhidden && !cpu_planning())
            cpu_rows()->convert(sums, DT_F32, width, (char *)dhidden->data + (size_t)(begin * width) * dtype_size(dhidden->dtype), dhidden->dtype, width, rows, width);
    }
    product_time_add(began);
}
