/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: cutting into tiles, conversions, packed weights, choice of library. */
#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/tensor/cpu/cpu.h"
#include "lib/tensor/activations.h"
#include "lib/tensor/cpu/gemm.h"
#include "lib/tensor/openblas.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool with_onednn;                      /* oneDNN is in use */
static const OpenBlas *blas;                  /* OpenBLAS, once it is in use or a product needs it; else NULL */
static bool native_bf16;                      /* the processor multiplies bf16 natively and the library uses that */
static bool bf16_for_auto;                    /* or it could multiply bf16, but widened products are faster */
static bool wide_tiles;                       /* AMX: a tile of 64 rows takes no longer than one of 16 */
static const CpuProducts *own_f32, *own_bf16; /* NULL: use the library */
static const CpuRows *rows_of_isa = &cpu_rows_base;
static size_t packed_total; /* bytes */

static const CpuProducts *own_int8 = &cpu_int8_products_base;
static bool rounds_activations;

void cpu_round_activations(bool on) { rounds_activations = on; }

const CpuRows *cpu_rows(void) { return rows_of_isa; }

DType product_dtype(DType a) { return a == DT_BF16 && native_bf16 ? DT_BF16 : DT_F32; }

bool product_rounds(DType a, DType b) { return a == DT_BF16 && b != DT_BF16 && !dtype_is_quantised(b) && product_dtype(a) == DT_F32; }

/* ---- choice of library ---- */

/* On x86, oneDNN does what our own products do not: by measurement it is as fast as OpenBLAS on large products and two to eight times as fast on
 * few rows, with AVX2 as with AVX-512 and AMX. Its arm64 build without Arm's own library has only plain loops. */
static bool onednn_preferred(void) {
#if HAVE_ONEDNN && defined(__x86_64__)
    return true;
#else
    return false;
#endif
}

/* Chooses our own products by instruction set. In f32: where there are fused multiply-adds, with which they are faster than the libraries. (This
 * is not measured on arm64. There they are chosen because a row's bits do not depend on the other rows and weights are not copied.) In bf16: where
 * it is multiplied natively and faster than f32. */
static const struct {
    const char *isa, *vectors;
    const CpuProducts *f32, *bf16;
    const CpuRows *rows;
    const CpuProducts *int8;
} own_products[] = {
#if defined(__aarch64__)
    {"base", "neon", &cpu_products_base, NULL, &cpu_rows_base, &cpu_int8_products_base},
#else
    {"base", NULL, NULL, NULL, &cpu_rows_base, &cpu_int8_products_base},
#endif
#if defined(__x86_64__)
    {"avx2", "avx2", &cpu_products_avx2, NULL, &cpu_rows_avx2, &cpu_int8_products_avx2},
#if HAVE_AVX512
    {"avx512", "avx512", &cpu_products_avx512, NULL, &cpu_rows_avx512, &cpu_int8_products_avx512},
#endif
#if HAVE_TILES
    {"avx512_widened", "avx512", &cpu_products_avx512_bf16, NULL, &cpu_rows_avx512_bf16, &cpu_int8_products_avx512_bf16},
    {"avx512_bf16", "avx512", &cpu_products_avx512_bf16, &cpu_tile_products_avx512_bf16, &cpu_rows_avx512_bf16, &cpu_int8_products_avx512_bf16},
    {"amx", "avx512", &cpu_products_avx512_bf16, &cpu_tile_products_amx, &cpu_rows_avx512_bf16, &cpu_int8_products_avx512_bf16},
#endif
#endif
};

/* The same with an instruction for four products of bytes, if the processor has it. */
static const CpuProducts *int8_products(size_t isa) {
#if HAVE_VNNI
    const char *vectors = own_products[isa].vectors ? own_products[isa].vectors : "none";
    if (strcmp(vectors, "avx2") == 0 && cpu_has("avx_vnni")) return &cpu_int8_products_avx2_vnni;
#if HAVE_AVX512
    if (strcmp(vectors, "avx512") == 0 && cpu_has("avx512_vnni")) return &cpu_int8_products_avx512_vnni;
#endif
#endif
    return own_products[isa].int8;
}

static const char *own_vectors; /* instructions that our f32 products use */

Status gemm_configure(const char *gemm, const CpuInfo *info) {
    bool any = !gemm || strcmp(gemm, "auto") == 0, own = gemm && strcmp(gemm, "own") == 0;
    size_t isa = 0;
    while (strcmp(own_products[isa].isa, info->isa) != 0) isa++;
    if (own && !own_products[isa].f32) return status_fail(ST_USAGE, "no products of our own with the instruction set '%s'", info->isa);
    bool onednn = any || own ? onednn_preferred() : HAVE_ONEDNN && strcmp(gemm, "onednn") == 0;
    if (!any && !own && !onednn && strcmp(gemm, "openblas") != 0) {
        if (strcmp(gemm, "onednn") == 0)
            status_fail(ST_USAGE, "no library 'onednn' for matrix products in this build");
        else
            status_fail(ST_USAGE, "unknown library for matrix products '%s'", gemm);
        return status_hint(ST_USAGE, "this build has: %sopenblas%s, or auto", own_products[isa].f32 ? "own, " : "", HAVE_ONEDNN ? ", onednn" : "");
    }
    if (!onednn && !((any || own) && own_products[isa].f32)) TRY(openblas_load(omp_get_max_threads(), &blas));
    with_onednn = onednn;
#if HAVE_TILES
    /* The chosen set decides, not the processor: a narrower set computes what a processor without bf16 does */
    bool isa_bf16 = own_products[isa].bf16 != NULL;
    wide_tiles = strcmp(info->isa, "amx") == 0;
#else
    bool isa_bf16 = cpu_has("amx_bf16") || cpu_has("avx512_bf16");
    wide_tiles = cpu_has("amx_bf16");
#endif
    own_f32 = any || own ? own_products[isa].f32 : NULL;
    own_vectors = own_products[isa].vectors;
    own_bf16 = any || own ? own_products[isa].bf16 : NULL;
#if HAVE_ONEDNN
    native_bf16 = own_bf16 || (with_onednn && isa_bf16 && onednn_is_fast(DT_BF16));
#else
    native_bf16 = own_bf16 && isa_bf16;
#endif
    bf16_for_auto = native_bf16 || (own_f32 && strcmp(info->isa, "avx512_widened") == 0);
    rows_of_isa = own_products[isa].rows;
    own_int8 = int8_products(isa);
    return ST_OK;
}

void gemm_describe(CpuInfo *info) {
    info->has_onednn = HAVE_ONEDNN;
    if (blas) info->gemm_f32 = blas->version;
#if HAVE_ONEDNN
    if (with_onednn) info->gemm_f32 = onednn_version();
#endif
    info->auto_bf16 = bf16_for_auto;
    info->gemm_bf16 = own_bf16 ? info->isa : native_bf16 ? info->gemm_f32 : "widened to f32";
    if (own_f32) info->gemm_f32 = own_vectors;
}

/* ---- tiles ---- */

/* Functions of the weight alone, so that a row is always computed in the same way, and a packed weight fits all products. */
static int64_t col_tile_of(int64_t n) {
    enum { USUAL = 256, WIDE = 512, MANY = 16, STEP = 32 };
    int64_t target = n > USUAL * MANY ? WIDE : USUAL, count = (n + target - 1) / target;
    return MAX((int64_t)STEP, ((n + count - 1) / MAX(count, (int64_t)1) + STEP - 1) / STEP * STEP);
}

static int64_t row_tile_of(DType dtype) {
    enum { F32_ROWS = 120, BF16_ROWS = 32, AMX_ROWS = 64 };
    return dtype == DT_F32 ? F32_ROWS : wide_tiles ? AMX_ROWS : BF16_ROWS;
}

/* Number of rows that the library multiplies for `m`: see the head of gemm.h. Few different sizes also keep the number of prepared products small. */
static int64_t rows_padded_for(DType dtype, int64_t m) {
    enum { LEAST = 4, STEP = 6 };
    if (dtype == DT_BF16) return row_tile_of(dtype);
    if (!with_onednn) return m;
    return m <= LEAST ? LEAST : (m + STEP - 1) / STEP * STEP;
}

void product_thread_begin(void) { omp_set_num_threads(1); }

/* The shape of the library's call for one tile of m rows and n columns. */
static TileShape tile_shape(const Product *product, int64_t m, int64_t n) {
    TileShape shape = {.dtype = product->dtype,
                       .transpose_a = product->a.transposed,
                       .transpose_b = product->b.transposed,
                       .packed = product->packed != NULL,
                       .m = rows_padded_for(product->dtype, m),
                       .n = n,
                       .k = product->k,
                       .lda = product->a.ld,
                       .ldb = product->b.ld,
                       .ldc = n};
    if (product->a.dtype != product->dtype || shape.m != m) shape.lda = shape.transpose_a ? shape.m : shape.k;
    if (shape.packed)
        shape.transpose_b = false, shape.ldb = 0;
    else if (product->b.dtype != product->dtype || product->round_b)
        shape.ldb = shape.transpose_b ? shape.k : shape.n;
    return shape;
}

static const void *tile_prepare(TileShape *shape) {
#if HAVE_ONEDNN
    if (!with_onednn || shape->k == 0) return NULL;
    const void *prepared = onednn_tile(shape, row_tile_of(shape->dtype));
    if (prepared) return prepared;
    if (memory_is_short()) return NULL;
    if (!shape->packed) {
        ASSERT(shape->dtype == DT_F32, "no product of %lld rows in %s", (long long)shape->m, dtype_name(shape->dtype));
        return NULL; /* OpenBLAS */
    }
    shape->m = row_tile_of(shape->dtype); /* the packed layout fits only full tiles: use the tile that chose it */
    shape->lda = shape->k;
    return onednn_tile(shape, shape->m);
#else
    (void)shape;
    return NULL;
#endif
}

/* Our own products, if they support this one. */
static const CpuProducts *own_of_dtype(DType dtype) { return dtype == DT_BF16 ? own_bf16 : own_f32; }
static const CpuProducts *own_for(const Product *product) {
    if (product->k == 0) return NULL;
    return product->b.int8 ? own_int8 : own_of_dtype(product->dtype);
}

ProductTiles product_tiles(const Product *product) {
    ProductTiles tiles = {.product = product, .row_tile = row_tile_of(product->dtype), .col_tile = col_tile_of(product->n)};
    const CpuProducts *own = own_for(product);
    if (own) {
        tiles.row_tile = own->row_tile();
        tiles.col_tile = own->col_tile(product->n, product->k);
    }
    tiles.row_tiles = (product->m + tiles.row_tile - 1) / tiles.row_tile;
    tiles.col_tiles = (product->n + tiles.col_tile - 1) / tiles.col_tile;
    if (own) return tiles;
#if HAVE_ONEDNN
    onednn_evict();
#endif
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            if ((i == 0 && tiles.row_tiles < 2) || (j == 0 && tiles.col_tiles < 2)) continue;
            TileShape *shape = &tiles.shapes[i][j];
            *shape = tile_shape(product, i ? product_rows(&tiles, tiles.row_tiles - 1) : tiles.row_tile,
                                j ? product_cols(&tiles, tiles.col_tiles - 1) : tiles.col_tile);
            tiles.prepared[i][j] = tile_prepare(shape);
        }
    return tiles;
}

int64_t product_rows(const ProductTiles *tiles, int64_t row_tile) { return MIN(tiles->row_tile, tiles->product->m - row_tile * tiles->row_tile); }
int64_t product_cols(const ProductTiles *tiles, int64_t col_tile) { return MIN(tiles->col_tile, tiles->product->n - col_tile * tiles->col_tile); }

/* Address of lines `at`, `at` + 1, ... of op(operand), or of its columns if `lines` counts columns. */
static const void *operand_at(const Operand *operand, int64_t at, bool lines) {
    return (const char *)operand->data + (size_t)(at * (lines ? operand->ld : 1)) * dtype_size(operand->dtype);
}

/* Converts a block (rows, cols) to `dtype` with `padded` rows or columns in all, in memory order: lines `ld` apart. */
static void *block_convert(int slot, const Operand *operand, const void *from, DType dtype, int64_t rows, int64_t cols, int64_t padded_rows,
                           int64_t padded_cols) {
    size_t bytes = (size_t)(padded_rows * padded_cols) * dtype_size(dtype);
    void *block = cpu_scratch(slot, bytes);
    if (cpu_planning()) return block;
    if (padded_rows > rows || padded_cols > cols) memset(block, 0, bytes);
    rows_of_isa->convert(from, operand->dtype, operand->ld, block, dtype, padded_cols, rows, cols);
    return block;
}

static const void *tile_a(const Product *product, const TileShape *shape, int64_t at, int64_t m) {
    const Operand *a = &product->a;
    const void *from = operand_at(a, at, !a->transposed);
    if (a->dtype == shape->dtype && shape->m == m) return from;
    if (a->transposed) return block_convert(CPU_TILE_A, a, from, shape->dtype, shape->k, m, shape->k, shape->m);
    return block_convert(CPU_TILE_A, a, from, shape->dtype, m, shape->k, shape->m, shape->k);
}

/* Lines line.. of a quantised factor, of each `length` elements from element `at` on, as a dense block of `dtype`. */
static void *block_of_codes(const Operand *operand, DType dtype, int64_t line, int64_t lines, int64_t at, int64_t length) {
    enum { PIECE = 512 };
    char *block = cpu_scratch(CPU_TILE_B, (size_t)(lines * length) * dtype_size(dtype));
    for (int64_t i = 0; i < lines && !cpu_planning(); i++)
        for (int64_t j = 0, n; j < length; j += n) {
            float values[PIECE], *floats = dtype == DT_F32 ? (float *)(void *)block + i * length + j : values;
            n = MIN(length - j, (int64_t)PIECE);
            rows_of_isa->codes(operand, line + i, at + j, n, floats);
            if (dtype != DT_F32) rows_of_isa->convert(values, DT_F32, n, block + (size_t)(i * length + j) * dtype_size(dtype), dtype, n, 1, n);
        }
    return block;
}

static const void *tile_b(const Product *product, const TileShape *shape, int64_t at) {
    const Operand *b = &product->b;
    if (dtype_is_quantised(b->dtype))
        return b->transposed ? block_of_codes(b, shape->dtype, at, shape->n, 0, shape->k)
                             : block_of_codes(b, shape->dtype, 0, shape->k, at, shape->n);
    const void *from = operand_at(b, at, b->transposed);
    if (b->dtype == shape->dtype && !product->round_b) return from;
    int64_t rows = b->transposed ? shape->n : shape->k, cols = b->transposed ? shape->k : shape->n;
    float *block = block_convert(CPU_TILE_B, b, from, shape->dtype, rows, cols, rows, cols);
    for (int64_t i = 0; product->round_b && !cpu_planning() && i < rows * cols; i++) block[i] = bf16_to_float(float_to_bf16(block[i]));
    return block;
}

struct PackedTiles {
    size_t tile_bytes;
    char *data;
};

/* A tile of a weight that has no packed copy, packed in scratch memory. */
static const void *tile_packed(const Product *product, const TileShape *shape, int64_t at) {
#if HAVE_ONEDNN
    int64_t rows = row_tile_of(shape->dtype);
    void *packed = cpu_scratch(CPU_LOCAL, onednn_packed_bytes(shape->dtype, rows, shape->n, shape->k));
    const void *b = tile_b(product, shape, at);
    bool transposed = product->b.transposed;
    if (!cpu_planning()) onednn_pack(shape->dtype, rows, shape->n, shape->k, b, transposed ? shape->k : shape->n, transposed, packed);
    return packed;
#else
    return tile_b(product, shape, at);
#endif
}

static void tile_run(const TileShape *shape, const void *prepared, const void *a, const void *b, float *c) {
#if HAVE_ONEDNN
    if (prepared) {
        onednn_run(prepared, a, b, c);
        return;
    }
#endif
    (void)prepared;
    if (cpu_planning()) return;
    if (shape->packed || shape->dtype != DT_F32) { /* the library found no memory: this step is given up */
        memset(c, 0, (size_t)(shape->m * shape->n) * sizeof *c);
        return;
    }
    blas->sgemm(BLAS_ROW_MAJOR, shape->transpose_a ? BLAS_TRANSPOSED : BLAS_AS_IT_IS, shape->transpose_b ? BLAS_TRANSPOSED : BLAS_AS_IT_IS,
                (int)shape->m, (int)shape->n, (int)shape->k, 1, a, (int)shape->lda, b, (int)shape->ldb, 0, c, (int)shape->ldc);
}

void product_column(const ProductTiles *tiles, int64_t col_tile) {
    const Product *product = tiles->product;
    const CpuProducts *own = own_for(product);
    if (!own) return;
    int64_t col = col_tile * tiles->col_tile, cols = product_cols(tiles, col_tile);
    if (!product->round_b) {
        own->column(product, col, cols);
        return;
    }
    const Operand *b = &product->b;
    Product column = *product;
    int64_t lines = b->transposed ? cols : product->k, length = b->transposed ? product->k : cols;
    column.n = cols; /* round_b stays set, so that the tiles do not convert B again */
    column.b = operand_of(block_convert(CPU_LIBRARY, b, operand_at(b, col, b->transposed), DT_BF16, lines, length, lines, length), DT_BF16, length,
                          b->transposed);
    own->column(&column, 0, cols);
}

float *product_tile(const ProductTiles *tiles, int64_t row_tile, int64_t col_tile) {
    const Product *product = tiles->product;
    int last_row = row_tile == tiles->row_tiles - 1, last_col = col_tile == tiles->col_tiles - 1;
    const TileShape *shape = &tiles->shapes[last_row][last_col];
    const CpuProducts *own = own_for(product);
    if (own) {
        int64_t cols = product_cols(tiles, col_tile);
        float *result = cpu_scratch(CPU_TILE_C, (size_t)(tiles->row_tile * cols) * sizeof *result);
        own->tile(product, row_tile * tiles->row_tile, product_rows(tiles, row_tile), col_tile * tiles->col_tile, cols, result);
        return result;
    }
    size_t bytes = (size_t)(shape->m * shape->n) * sizeof(float);
    float *c = cpu_scratch(CPU_TILE_C, bytes);
    if (shape->k == 0) {
        memset(c, 0, bytes);
        return c;
    }
    const void *a = tile_a(product, shape, row_tile * tiles->row_tile, product_rows(tiles, row_tile));
    const PackedTiles *packed = product->packed;
    int64_t col = col_tile * tiles->col_tile;
    const void *b = !packed        ? tile_b(product, shape, col)
                    : packed->data ? packed->data + (size_t)col_tile * packed->tile_bytes
                                   : tile_packed(product, shape, col);
    tile_run(shape, tiles->prepared[last_row][last_col], a, b, c);
    return c;
}

/* One tile of each kind. */
void product_plan(const ProductTiles *tiles) {
    for (int i = 0; i < 4 && tiles->product->k > 0; i++) {
        int64_t row = i / 2 ? tiles->row_tiles - 1 : 0, col = i % 2 ? tiles->col_tiles - 1 : 0;
        product_column(tiles, col);
        product_tile(tiles, row, col);
    }
}

/* Rounds an entire operand to bf16; op(operand) is (rows, cols). */
static void operand_round(Operand *operand, int64_t rows, int64_t cols, uint16_t *to) {
    enum { LINES = 16 };
    int64_t lines = operand->transposed ? cols : rows, length = operand->transposed ? rows : cols;
    if (!cpu_planning()) {
#pragma omp parallel for schedule(static) if (lines * length > PRODUCT_SERIAL / 16)
        for (int64_t i = 0; i < lines; i += LINES)
            rows_of_isa->convert(operand_at(operand, i, true), operand->dtype, operand->ld, to + i * length, DT_BF16, length,
                                 MIN((int64_t)LINES, lines - i), length);
    }
    *operand = operand_of(to, DT_BF16, length, operand->transposed);
}

static bool rounds(const Product *product) { return product->round_b || product->round_more_b; }

static void own_run(const CpuProducts *own, const Product *product) {
    Product run = *product;
    if (rounds(product)) {
        int64_t n_b = product->round_b ? product->n * product->k : 0, n_more = product->round_more_b ? product->n * product->more_k : 0;
        uint16_t *memory = cpu_scratch(CPU_TRANSPOSED, (size_t)(n_b + n_more) * sizeof *memory);
        if (run.round_b) operand_round(&run.b, product->k, product->n, memory);
        if (run.round_more_b) operand_round(&run.more_b, product->more_k, product->n, memory + n_b);
        run.round_b = run.round_more_b = false;
    }
    own->run(&run, 1);
}

void product_run(const Product *product) {
    if (product->m == 0 || product->n == 0) return;
    const CpuProducts *own = own_for(product);
    if (own) {
        own_run(own, product);
        return;
    }
    ProductTiles tiles = product_tiles(product);
    int64_t n_tiles = tiles.row_tiles * tiles.col_tiles;
    double operations = 2.0 * (double)product->m * (double)product->n * (double)product->k;
    if (cpu_planning()) {
        product_plan(&tiles);
        return;
    }
#pragma omp parallel if (n_tiles > 1 && operations > PRODUCT_SERIAL)
    {
        product_thread_begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < n_tiles; i++) { /* column by column: all rows use a tile of B while it is in the cache */
            int64_t row = i % tiles.row_tiles, col = i / tiles.row_tiles, cols = product_cols(&tiles, col);
            const float *result = product_tile(&tiles, row, col);
            char *c = (char *)product->c + (size_t)(row * tiles.row_tile * product->ldc + col * tiles.col_tile) * dtype_size(product->c_dtype);
            rows_of_isa->finish(result, cols, product->alpha, product->beta, c, product->c_dtype, product->ldc, product_rows(&tiles, row), cols);
        }
    }
}

static void products_run(const Product *products, int n) {
    for (int i = 0, end; i < n; i = end) {
        const CpuProducts *own = own_for(&products[i]);
        for (end = i + 1; own && !rounds(&products[i]) && end < n && own_for(&products[end]) == own && !rounds(&products[end]);) end++;
        if (own && !rounds(&products[i]))
            own->run(products + i, end - i);
        else
            product_run(&products[i]);
    }
}

/* ---- constant weights ---- */

typedef struct PackedWeight {
    float *plain;            /* f32 copy of a weight that is stored in another dtype */
    PackedTiles tiles[2][2]; /* [transposed][bf16]; data NULL = none */
    bool looked[2][2];
    bool lent_plain, lent[2][2]; /* their memory is of gemm_pack */
    size_t bytes;
} PackedWeight;

static const PackMemory *pack_memory; /* while gemm_pack runs */
static bool pack_failed;

static int64_t packed_align(size_t bytes) { return (int64_t)((bytes + 63) / 64 * 64); }

/* Bytes of a weight packed for op(b) with n columns and k rows; *tile_bytes: of each tile but the last. 0 = unpacked memory is as good. */
static size_t packed_size(DType dtype, int64_t n, int64_t k, size_t *tile_bytes) {
#if HAVE_ONEDNN
    if (!with_onednn || own_of_dtype(dtype) || n == 0 || k == 0) return 0;
    int64_t tile = col_tile_of(n), count = (n + tile - 1) / tile, rows = row_tile_of(dtype);
    size_t last = onednn_packed_bytes(dtype, rows, n - (count - 1) * tile, k), each = count > 1 ? onednn_packed_bytes(dtype, rows, tile, k) : last;
    if (last == 0 || each == 0) return 0;
    *tile_bytes = (size_t)packed_align(each);
    return (size_t)(count - 1) * *tile_bytes + last;
#else
    (void)dtype, (void)n, (void)k, (void)tile_bytes;
    return 0;
#endif
}

/* NULL when memory runs out: then products read the weight unpacked. */
static void *weight_memory(PackedWeight *weight, size_t bytes) {
    if (pack_memory) {
        void *lent = pack_memory->take(pack_memory->context, bytes);
        pack_failed |= !lent;
        return lent;
    }
    void *memory = aligned_alloc(64, (size_t)packed_align(bytes));
    if (!memory) {
        memory_ran_out(bytes);
        return NULL;
    }
    weight->bytes += bytes;
    packed_total += bytes;
    return memory;
}

static bool is_filled(void) { return pack_memory && pack_memory->filled; }

#if HAVE_ONEDNN
static void weight_pack(PackedWeight *weight, const Tensor *b, bool transposed, DType dtype, PackedTiles *tiles) {
    int64_t n = b->shape[transposed ? 0 : 1], k = b->shape[transposed ? 1 : 0], tile = col_tile_of(n), count = (n + tile - 1) / tile;
    size_t bytes = packed_size(dtype, n, k, &tiles->tile_bytes);
    if (bytes == 0) return;
    if (!(tiles->data = weight_memory(weight, bytes)) || is_filled()) return;
    Product product = {.dtype = dtype, .m = 1, .n = n, .k = k, .b = operand_of(b->elements, b->dtype, b->shape[1], transposed)};
#pragma omp parallel
    {
        product_thread_begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count; i++) {
            TileShape shape = tile_shape(&product, 1, MIN(tile, n - i * tile));
            onednn_pack(dtype, row_tile_of(dtype), shape.n, k, tile_b(&product, &shape, i * tile), shape.ldb, transposed,
                        tiles->data + (size_t)i * tiles->tile_bytes);
        }
    }
}
#endif

static void weight_convert(PackedWeight *weight, const Tensor *b) {
    enum { ROWS = 16 };
    int64_t rows = b->shape[0], cols = b->shape[1];
    if (!(weight->plain = weight_memory(weight, (size_t)(rows * cols) * sizeof(float)))) return;
    weight->lent_plain = pack_memory != NULL;
    if (is_filled()) return;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (rows + ROWS - 1) / ROWS; i++)
        rows_of_isa->convert((const char *)b->elements + (size_t)(i * ROWS * cols) * dtype_size(b->dtype), b->dtype, cols,
                             weight->plain + i * ROWS * cols, DT_F32, cols, MIN((int64_t)ROWS, rows - i * ROWS), cols);
}

/* The operand that weight_operand will return; records the scratch memory that packing takes. */
static Operand operand_planned(const Tensor *b, Operand operand, DType dtype, const PackedTiles **packed) {
    static char nothing;
    static const PackedTiles planned = {.data = &nothing};
    int64_t n = b->shape[operand.transposed ? 0 : 1], k = b->shape[operand.transposed ? 1 : 0];
    size_t unused;
    if (packed_size(dtype, n, k, &unused) > 0) {
        TileShape shape = {.dtype = dtype, .n = MIN(n, col_tile_of(n)), .k = k};
        tile_b(&(Product){.b = operand}, &shape, 0);
        *packed = &planned;
    } else if (dtype == DT_F32 && b->dtype != DT_F32)
        operand.dtype = DT_F32;
    return operand;
}

Operand operand_plain(const Tensor *b, bool transposed, DType a) {
    Operand operand = operand_of(b->elements, b->dtype, b->shape[1], transposed);
    operand.rounds = dtype_is_quantised(b->dtype) && (b->storage->rounds || a == DT_BF16);
    operand.int8 = rounds_activations && transposed && dtype_is_quantised(b->dtype) && rows_of_isa->int8_fits(&operand, b->shape[0], b->shape[1]);
    return operand;
}

/* A constant weight of values is packed, and no library guarantees the same bits without that: so the tiles of a quantised one are packed too. */
static const PackedTiles *codes_packed(const Tensor *b, bool transposed, DType dtype) {
    static const PackedTiles none = {0, NULL};
    size_t unused;
    return packed_size(dtype, b->shape[transposed ? 0 : 1], b->shape[transposed ? 1 : 0], &unused) > 0 ? &none : NULL;
}

Operand weight_operand(const Tensor *b, bool transposed, DType a, const PackedTiles **packed) {
    Operand operand = operand_plain(b, transposed, a);
    Storage *storage = b->storage;
    DType dtype = product_dtype(a);
    *packed = dtype_is_quantised(b->dtype) && !operand.int8 ? codes_packed(b, transposed, dtype) : NULL;
    if (dtype_is_quantised(b->dtype)) return operand;
    if (!storage || !storage->constant || own_of_dtype(dtype) || tensor_count(b) == 0) return operand;
    if (cpu_planning()) return operand_planned(b, operand, dtype, packed);
    PackedWeight *weight = storage->packed;
    if (!weight) {
        weight = calloc(1, sizeof *weight);
        if (!weight) {
            memory_ran_out(sizeof *weight);
            return operand;
        }
        storage->packed = weight;
    }
#if HAVE_ONEDNN
    bool is_bf16 = dtype == DT_BF16;
    PackedTiles *tiles = &weight->tiles[transposed][is_bf16];
    if (with_onednn && !weight->looked[transposed][is_bf16]) {
        weight_pack(weight, b, transposed, dtype, tiles);
        weight->looked[transposed][is_bf16] = true;
        weight->lent[transposed][is_bf16] = pack_memory != NULL;
    }
    if (with_onednn && tiles->data) {
        *packed = tiles;
        return operand;
    }
#endif
    if (dtype != DT_F32 || b->dtype == DT_F32) return operand;
    if (!weight->plain) weight_convert(weight, b);
    if (!weight->plain) return operand;
    return operand_of(weight->plain, DT_F32, b->shape[1], transposed);
}

size_t gemm_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward) {
    DType dtype = product_dtype(compute);
    if (product_rounds(compute, stored) || dtype_is_quantised(stored)) return 0;
    size_t unused, forward_bytes = packed_size(dtype, rows, cols, &unused), backward_bytes = backward ? packed_size(dtype, cols, rows, &unused) : 0;
    bool plain = !own_of_dtype(dtype) && (forward_bytes == 0 || (backward && backward_bytes == 0)) && dtype == DT_F32 && stored != DT_F32;
    return forward_bytes + backward_bytes + (plain ? (size_t)rows * (size_t)cols * sizeof(float) : 0);
}

Status gemm_pack(const Tensor *weight, DType compute, bool backward, const PackMemory *memory) {
    const PackedTiles *unused;
    if (product_rounds(compute, weight->dtype)) return ST_OK;
    pack_memory = memory;
    pack_failed = false;
    weight_operand(weight, !weight->in_out, compute, &unused);
    if (backward) weight_operand(weight, weight->in_out, compute, &unused);
    pack_memory = NULL;
    return pack_failed ? ST_RESOURCE : ST_OK;
}

void gemm_packed_free(void *packed) {
    PackedWeight *weight = packed;
    if (!weight) return;
    packed_total -= weight->bytes;
    for (int i = 0; i < 4; i++)
        if (!weight->lent[i / 2][i % 2]) free(weight->tiles[i / 2][i % 2].data);
    if (!weight->lent_plain) free(weight->plain);
    free(weight);
}

size_t cpu_packed_bytes(void) { return packed_total; }

/* ---- the kernel ---- */

static bool all_f64(const Matmul *args) { return args->a->dtype == DT_F64 && args->b->dtype == DT_F64 && args->c->dtype == DT_F64; }

static double seconds_in_products; /* kernels are called from one thread only */

void product_time_add(double since) { seconds_in_products += clock_seconds() - since; }
double cpu_product_seconds(void) { return seconds_in_products; }

/* Computes the branch's first product separately. */
static void matmul_low(const Matmul *args) {
    cpu_matmul(&(Matmul){.a = args->a,
                         .b = args->down,
                         .c = args->low,
                         .transpose_a = args->transpose_a,
                         .transpose_b = args->transpose_down,
                         .alpha = args->down_alpha});
}

/* Computes the inner factors of all branches (low), or adds their products to `sums` in C; sums NULL: to C. */
static void branches_run(const Matmul *args, bool low, const Tensor *sums) {
    Matmul products[PRODUCTS_MOST];
    Tensor rows[PRODUCTS_MOST], addends[PRODUCTS_MOST];
    for (const RowBranch *branch = args->branches; branch;) {
        int n = 0;
        for (; branch && n < PRODUCTS_MOST; branch = branch->next, n++) {
            rows[n] = matrix_rows(low ? args->a : args->c, branch->begin, branch->end);
            if (sums) addends[n] = matrix_rows(sums, branch->begin, branch->end);
            products[n] = low ? (Matmul){.a = &rows[n], .b = branch->down, .c = branch->low, .transpose_b = true, .alpha = 1}
                              : (Matmul){.a = branch->low,
                                         .b = branch->b,
                                         .c = &rows[n],
                                         .transpose_b = true,
                                         .alpha = branch->alpha,
                                         .beta = 1,
                                         .addend = sums ? &addends[n] : NULL};
            if (n > 0) products[n - 1].next = &products[n];
        }
        cpu_matmul(products);
    }
}

/* For products that support neither a second product nor another addend. */
static void matmul_in_steps(const Matmul *args) {
    if (args->down) matmul_low(args);
    branches_run(args, true, NULL);
    const Device *device = cpu_planning() ? device_cpu()->planner : device_cpu();
    const Tensor *addend = args->addend;
    bool vector = addend && addend->n_dims == 1;
    Matmul first = {args->a, args->b, args->c, args->transpose_a, args->transpose_b, args->alpha, vector ? 0 : args->beta, .addend = NULL};
    if (addend && !vector) device->copy(addend, args->c);
    cpu_matmul(&first);
    if (vector) device->bias_add(args->c, addend);
    if (args->more_a)
        cpu_matmul(&(Matmul){
            .a = args->more_a, .b = args->more_b, .c = args->c, .transpose_b = args->transpose_more_b, .alpha = args->more_alpha, .beta = 1});
    branches_run(args, false, NULL);
}

/* ---- branches of some rows, with our own products ---- */

/* Products in f32 begin a sum with the addend and continue it with the branch: so a branch can continue it later, if the sum is still in f32. */
static void branches_after(const Matmul *args) {
    const Device *device = cpu_planning() ? device_cpu()->planner : device_cpu();
    Matmul base = *args;
    Tensor sums = *args->c;
    base.branches = NULL;
    base.next = NULL;
    bool in_place = sums.dtype == DT_F32;
    if (!in_place) {
        sums.dtype = DT_F32;
        sums.elements = cpu_scratch(CPU_SHARED, tensor_bytes(&sums));
        base.c = &sums;
        if (args->beta != 0 && !args->addend) base.addend = args->c;
    }
    cpu_matmul(&base);
    branches_run(args, false, in_place ? NULL : &sums);
    if (in_place) return;
    int64_t at = 0, m = sums.shape[0];
    for (const RowBranch *branch = args->branches; at < m; at = branch ? branch->end : m, branch = branch ? branch->next : NULL) {
        Tensor from = matrix_rows(&sums, at, branch ? branch->begin : m), to = matrix_rows(args->c, at, branch ? branch->begin : m);
        if (from.shape[0] > 0) device->copy(&from, &to);
    }
}

enum { JOINED_STEP = 32 }; /* values of a sum in a tile (tile/tiles.h) */

static int64_t joined_width(const RowBranch *branch) { return (branch->b->shape[1] + JOINED_STEP - 1) / JOINED_STEP * JOINED_STEP; }

/* Columns at.. of both joined factors, each (rows, width). */
static void branch_join(const RowBranch *branch, float scale, int64_t at, int64_t width, uint16_t *low, uint16_t *b) {
    enum { PIECE = 64 };
    const Tensor *its = branch->b;
    int64_t rank = its->shape[1], n = its->shape[0];
    for (int64_t r = branch->begin; r < branch->end; r++)
        memcpy(low + r * width + at, (const uint16_t *)branch->low->elements + (r - branch->begin) * rank, (size_t)rank * sizeof *low);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < rank; j += PIECE) {
            float piece[PIECE];
            int64_t count = MIN((int64_t)PIECE, rank - j);
            rows_of_isa->convert((const char *)its->elements + (size_t)(i * rank + j) * dtype_size(its->dtype), its->dtype, rank, piece, DT_F32,
                                 PIECE, 1, count);
            for (int64_t l = 0; l < count; l++) b[i * width + at + j + l] = float_to_bf16(scale * piece[l]);
        }
}

/* Products in tiles of bf16 add the addend at the end. All branches become a single one: their factors in adjacent columns, with zeros in the rows
 * that do not have the branch. A branch begins with a tile of its own, so its sums have the same order as alone, and zeros change no sum. */
static void branches_joined(const Matmul *args) {
    int64_t m = args->c->shape[0], n = args->c->shape[1], width = 0, at = 0;
    for (const RowBranch *branch = args->branches; branch; branch = branch->next) width += joined_width(branch);
    uint16_t *memory = cpu_scratch(CPU_SHARED, (size_t)((m + n) * width) * sizeof *memory);
    Tensor low = {.dtype = DT_BF16, .n_dims = 2, .shape = {m, width}, .elements = memory, .storage = args->c->storage}, b = low;
    if (!cpu_planning()) {
        b.elements = memory + m * width;
        memset(memory, 0, (size_t)((m + n) * width) * sizeof *memory);
        for (const RowBranch *branch = args->branches; branch; at += joined_width(branch), branch = branch->next)
            branch_join(branch, (float)branch->alpha / (float)args->alpha, at, width, memory, b.elements);
    }
    b.shape[0] = n;
    Matmul joined = *args;
    joined.next = NULL;
    joined.branches = NULL;
    joined.more_a = &low;
    joined.more_b = &b;
    joined.transpose_more_b = true;
    joined.more_alpha = args->alpha;
    cpu_matmul(&joined);
}

/* B is read once for all rows; with many rows, that takes more memory than it saves time, unless C stores the sums. */
static void matmul_branches(const Matmul *args) {
    enum { FEW_ROWS = 128 };
    bool in_f32 = product_dtype(args->a->dtype) == DT_F32;
    ASSERT(!args->transpose_a && !args->more_a, "branches of a product with %s", args->more_a ? "another branch" : "columns as rows");
    if (args->c->shape[0] > FEW_ROWS && !(in_f32 && args->c->dtype == DT_F32)) {
        matmul_by_rows(args, cpu_matmul);
        return;
    }
    branches_run(args, true, NULL);
    if (in_f32)
        branches_after(args);
    else
        branches_joined(args);
}

static void take_down(const Matmul *args, Product *product) {
    const CpuProducts *own = own_for(product);
    if (args->low->dtype != DT_BF16 || !CPU_READS(args->down) || !own->makes_more || !own->makes_more(product)) {
        matmul_low(args);
        return;
    }
    product->down = operand_of(args->down->elements, args->down->dtype, args->down->shape[1], args->transpose_down);
    product->down_alpha = (float)args->down_alpha;
    product->low = args->low->elements;
}

/* Whether a single product can compute everything. */
static bool at_once(const Matmul *args, const Product *product) {
    for (const RowBranch *branch = args->branches; branch; branch = branch->next)
        if (!CPU_READS(args->a, branch->low, branch->down, branch->b) || !cpu_reads_weight(args->b)) return false;
    return own_for(product) && CPU_READS(args->more_a, args->more_b) && CPU_WRITES(args->addend);
}

/* Makes the single product that computes everything; false: everything has been computed in another way. */
static bool product_make(const Matmul *args, Product *product) {
    const Tensor *a = args->a, *b = args->b, *c = args->c;
    int64_t m = c->shape[0], n = c->shape[1], k = a->shape[args->transpose_a ? 0 : 1];
    ASSERT(a->shape[args->transpose_a ? 1 : 0] == m && b->shape[args->transpose_b ? 0 : 1] == n && b->shape[args->transpose_b ? 1 : 0] == k,
           "product of (%lld,%lld)%s and (%lld,%lld)%s into (%lld,%lld)", (long long)a->shape[0], (long long)a->shape[1],
           args->transpose_a ? "^T" : "", (long long)b->shape[0], (long long)b->shape[1], args->transpose_b ? "^T" : "", (long long)m, (long long)n);
    if (m == 0 || n == 0) return false;
    ASSERT(!args->addend || args->addend->n_dims == 2 || args->beta == 1, "a vector times %g is added to a product", args->beta);
    bool int8 = !args->transpose_a && CPU_READS(a) && args->alpha == 1 && operand_plain(b, args->transpose_b, a->dtype).int8;
    if (int8 && (args->more_a || args->branches)) {
        matmul_in_steps(args);
        return false;
    }
    bool once = int8 ? CPU_WRITES(args->addend) : at_once(args, &(Product){.dtype = product_dtype(a->dtype), .k = k});
    if ((args->more_a || args->addend || args->branches) && !once) {
        matmul_in_steps(args);
        return false;
    }
    if (args->branches) {
        matmul_branches(args);
        return false;
    }
    if (all_f64(args)) {
        matmul_f64(args, m, n, k);
        return false;
    }
    if (!CPU_READS(a) || !cpu_reads_weight(b) || !CPU_WRITES(c)) {
        Matmul alone = *args;
        alone.next = NULL;
        device_reference()->matmul(&alone);
        return false;
    }
    *product = (Product){.dtype = product_dtype(a->dtype),
                         .m = m,
                         .n = n,
                         .k = k,
                         .a = operand_of(a->elements, a->dtype, a->shape[1], args->transpose_a),
                         .c = c->elements,
                         .c_dtype = c->dtype,
                         .ldc = n,
                         .alpha = (float)args->alpha,
                         .beta = (float)args->beta,
                         .nontemporal = args->nontemporal};
    product->round_b = product_rounds(a->dtype, b->dtype);
    /* No library guarantees the same bits with a packed b */
    if (args->transpose_a || product->round_b)
        product->b = operand_plain(b, args->transpose_b, a->dtype);
    else
        product->b = weight_operand(b, args->transpose_b, a->dtype, &product->packed);
    product->b.int8 &= int8;
    if (args->more_a) {
        product->more_a = operand_of(args->more_a->elements, args->more_a->dtype, args->more_a->shape[1], false);
        product->more_b = operand_of(args->more_b->elements, args->more_b->dtype, args->more_b->shape[1], args->transpose_more_b);
        product->round_more_b = product_rounds(args->more_a->dtype, args->more_b->dtype);
        product->more_k = args->more_a->shape[1];
        product->more_alpha = (float)args->more_alpha;
    }
    if (args->down) take_down(args, product);
    if (args->addend) {
        product->d = args->addend->elements;
        product->d_dtype = args->addend->dtype;
        product->ldd = args->addend->n_dims == 1 ? 0 : n;
    }
    return true;
}

void cpu_matmul(const Matmul *args) {
    Product products[PRODUCTS_MOST];
    while (args) {
        int n = 0;
        for (; args && n < PRODUCTS_MOST; args = args->next) n += product_make(args, &products[n]);
        double began = clock_seconds();
        products_run(products, n);
        product_time_add(began);
    }
}
