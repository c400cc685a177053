/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products behind one door, as far as the rest of the device needs to know it: our own in f32 with AVX2 or AVX-512 (simd/vector_product.c, of
 * few rows simd/vector_skinny.c) and in bf16 with AVX512_BF16 or AMX (tile/product.c); else those of oneDNN or OpenBLAS (host/gemm*.c).
 *
 * A product is cut into tiles of its result by its shape alone; a tile is one call of a library, made by one thread. So results are the same bits for
 * any number of threads. What is not in the product's dtype is converted tile by tile; a constant weight is converted or packed once.
 *
 * Do the bits of a row depend on the rows beside it? With our own never. With oneDNN never, as test_matmul checks for 1 to 300 rows; for that
 * rows are padded: with AVX2 its kernels take rows by sixes or fours and add up what is left over in another order; its bf16 product cuts long inner
 * dimensions by the number of rows (measured), so there a tile always has all its rows. OpenBLAS rounds some columns otherwise for rows 6 to 11 of
 * each 12 (measured on Zen, 0.3.21), and no padding helps: a row's last bits depend on its place.
 */
#ifndef TUNE_GEMM_H
#define TUNE_GEMM_H

#include "lib/tensor/tensor.h"

/* Operations below which starting threads costs more than it saves. */
#define PRODUCT_SERIAL 2e6

/* What cpu_configure hands on. gemm: NULL or "auto", "own", "openblas", "onednn"; the set of row functions and whether bf16 is multiplied go by
 * info->isa. ST_USAGE when the name is not known or the build does not have it. Drops nothing that is packed already: weights are packed for the
 * library that runs at their first product, call tensor_unpack before another is chosen. */
Status gemm_configure(const char *gemm, const CpuInfo *info);
void gemm_describe(CpuInfo *info); /* fills in what CpuInfo says about products */
/* The device's packed_bytes and packed_free. */
size_t gemm_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward);
void gemm_packed_free(void *packed);

/* ---- row functions, compiled for each instruction set ---- */

typedef struct LogitRow {
    float largest;
    double sum, weighted, total; /* of exp(z - largest), of (z - largest) exp(z - largest), of z */
} LogitRow;

/* What turns a row of logits into gradients of the plain products. */
typedef struct LogitGrad {
    float logsumexp, entropy, dlogprob, dentropy, dmean; /* dmean: by each log-probability, so divided by the vocabulary already */
    float dmean_sum;                                     /* dmean times the vocabulary */
} LogitGrad;

typedef struct CpuRows {
    /* to[i, j] = from[i, j] for (rows, cols) elements of lines ld apart; f32, bf16 and f16 to f32 or bf16. */
    void (*convert)(const void *from, DType from_dtype, int64_t from_ld, void *to, DType to_dtype, int64_t to_ld, int64_t rows, int64_t cols);
    /* c = alpha * tile + beta * c; c is f32 or bf16 and is not read when beta is 0. */
    void (*finish)(const float *tile, int64_t tile_ld, float alpha, float beta, void *c, DType dtype, int64_t ld, int64_t rows, int64_t cols);
    /* Soft-cap and temperature on n plain products, in place. */
    void (*logits)(const LogprobArgs *args, float *z, int64_t n);
    /* Sums of n logits, which become exp(z - row->largest). weighted and total only with `all`; the bits of the others are the same without. */
    void (*sum)(LogitRow *row, float *z, int64_t n, bool all);
    /* n plain products become their gradient, but for the target's one, which `target` (index among these n, or -1) adds. */
    void (*gradient)(const LogprobArgs *args, const LogitGrad *grad, float *z, int64_t n, int64_t target);
} CpuRows;
extern const CpuRows cpu_rows_base, cpu_rows_avx2, cpu_rows_avx512, cpu_rows_avx512_bf16;

/* ---- one tile: a product by one thread ---- */

/* c (m, n) f32 = op(a) op(b); a: (m, k), or (k, m) when transposed; b: (k, n), or (n, k). ld: elements from line to line. */
typedef struct TileShape {
    DType dtype;                           /* f32 or bf16, of a and b */
    bool transpose_a, transpose_b, packed; /* packed: b comes from onednn_pack */
    int64_t m, n, k, lda, ldb, ldc;
} TileShape;

#if HAVE_ONEDNN
/* A prepared product; belongs to the cache, valid until the next call of onednn_evict. */
typedef struct OnednnTile OnednnTile;
/* packed_rows: the `rows` of the packing that a packed shape's b had. NULL when the library has no fast way for a packed one with fewer rows. */
const OnednnTile *onednn_tile(const TileShape *shape, int64_t packed_rows);
void onednn_run(const OnednnTile *tile, const void *a, const void *b, float *c);
/* Bytes of one packed tile (k, n) of a constant b, 0 when plain memory is as good. rows: those that its products will have. */
size_t onednn_packed_bytes(DType dtype, int64_t rows, int64_t n, int64_t k);
/* b as in TileShape. */
void onednn_pack(DType dtype, int64_t rows, int64_t n, int64_t k, const void *b, int64_t ldb, bool transpose_b, void *packed);
bool onednn_is_fast(DType dtype); /* false: products in this dtype would be plain loops, or are not there */
/* Empties the cache when it has grown large: batches of ever new sizes fill it. */
void onednn_evict(void);
const char *onednn_version(void);
#endif

/* ---- whole products of memory that need not be tensors ---- */

typedef struct Operand {
    const void *data;
    DType dtype;
    int64_t ld;
    bool transposed;
} Operand;
static inline bool operands_same(const Operand *a, const Operand *b) {
    return a->data == b->data && a->dtype == b->dtype && a->ld == b->ld && a->transposed == b->transposed;
}
/* The constant weight's packed copy, as host/gemm.c keeps it; NULL = none. */
typedef struct PackedTiles PackedTiles;

/* C (m, n) = alpha * op(A) op(B) + beta * D with products in `dtype`, f32 or bf16. D is C itself unless given, and is not read when beta is 0. */
typedef struct Product {
    DType dtype;
    int64_t m, n, k;
    Operand a, b;
    const PackedTiles *packed; /* then a is not transposed, and its lines are k apart */
    void *c;
    DType c_dtype;
    int64_t ldc;
    float alpha, beta;
    /* Our own products only: + more_alpha * op(A') op(B') over an inner dimension of more_k, 0 = none; and another D. */
    Operand more_a, more_b;
    int64_t more_k;
    float more_alpha;
    /* Only those that CpuProducts.makes_more says: A' itself is made first, down_alpha * op(A) op(down), in bf16. */
    Operand down; /* data NULL: A' is given */
    float down_alpha;
    uint16_t *low; /* A' */
    const void *d;
    DType d_dtype;
    int64_t ldd;
    bool nontemporal;           /* as in Matmul */
    bool round_b, round_more_b; /* to bf16 before they are multiplied, in products of f32 that stand for those of bf16 */
} Product;
void product_run(const Product *product);
enum { PRODUCTS_MOST = 4 }; /* of one call */

/* The same tile by tile, for callers that use up each tile at once. Prepare outside of a parallel region; in it, a thread begins a column of tiles
 * before it runs tiles of it. */
typedef struct ProductTiles {
    const Product *product;
    int64_t row_tile, col_tile, row_tiles, col_tiles;
    TileShape shapes[2][2];     /* what the library runs for [last row tile][last column tile]; m may be padded */
    const void *prepared[2][2]; /* its handles */
} ProductTiles;
ProductTiles product_tiles(const Product *product);
int64_t product_rows(const ProductTiles *tiles, int64_t row_tile); /* of one tile */
int64_t product_cols(const ProductTiles *tiles, int64_t col_tile);
void product_column(const ProductTiles *tiles, int64_t col_tile);
/* Result of a tile: its rows x cols f32, dense, in the thread's scratch memory until its next tile. */
float *product_tile(const ProductTiles *tiles, int64_t row_tile, int64_t col_tile);
/* For a plan (cpu_planning): what each thread takes that runs columns of tiles. */
void product_plan(const ProductTiles *tiles);
/* What threads must do first in a parallel region that runs tiles: the libraries then start none of their own. */
void product_thread_begin(void);

/* Our own products: whole ones, and tiles of at most row_tile rows, of the column that the thread began last. k > 0. */
typedef struct CpuProducts {
    void (*run)(const Product *products, int n); /* up to PRODUCTS_MOST that need no results of each other */
    int64_t (*row_tile)(void);
    int64_t (*col_tile)(int64_t n, int64_t k);
    void (*column)(const Product *product, int64_t col, int64_t cols);
    void (*tile)(const Product *product, int64_t row, int64_t rows, int64_t col, int64_t cols, float *c); /* c: dense, room for row_tile rows */
    bool (*makes_more)(const Product *product);                                                           /* NULL: never */
} CpuProducts;
/* In f32 (simd/vector_product.c); operands of other dtypes are widened. */
extern const CpuProducts cpu_products_base, cpu_products_avx2, cpu_products_avx512, cpu_products_avx512_bf16;
/* In bf16 on a processor that multiplies it (tile/product.c). */
extern const CpuProducts cpu_tile_products_avx512_bf16, cpu_tile_products_amx;

/* Operand and packed copy of weight `b` for products in `dtype` with op(b); packs a constant one at its first use. */
Operand weight_operand(const Tensor *b, bool transposed, DType dtype, const PackedTiles **packed);
/* What products of an operand of this dtype run in: bf16 where the processor multiplies it, else f32. */
DType product_dtype(DType a);
/* Whether the other operand is rounded to bf16 for it: products of bf16 in f32 take the numbers that native ones do. Such a b is not packed. */
bool product_rounds(DType a, DType b);
const CpuRows *cpu_rows(void);

/* c = alpha op(a) op(b) + beta c in double, (m, k) by (k, n). */
void matmul_f64(const Matmul *args, int64_t m, int64_t n, int64_t k);

/* Counts the time since `since` (clock_seconds) as spent in products; see cpu_product_seconds. */
void product_time_add(double since);

#endif
