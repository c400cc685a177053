/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of matrix products inside the CPU device. The implementations are: our own in f32 with AVX2 or AVX-512 (simd/vector_product.c, and
 * simd/vector_skinny.c for few rows) and in bf16 with AVX512_BF16 or AMX (tile/product.c); else those of oneDNN or OpenBLAS (host/gemm*.c).
 *
 * A product is cut into tiles of its result by its shape alone; a tile is one call of a library, made by one thread. So results have the same bits
 * for any number of threads. Operands in another dtype are converted tile by tile; a constant weight is converted or packed once.
 *
 * The bits of a row of the result do not depend on the other rows with our own products, nor with oneDNN (test_matmul checks 1 to 300 rows). With
 * oneDNN this holds because rows are padded: with AVX2 its kernels take rows in sixes or fours and sum the remaining ones in another order; its bf16
 * product cuts long inner dimensions by the number of rows (measured), so there a tile always has all its rows. With OpenBLAS the last bits of a row
 * depend on its position: it rounds some columns differently for rows 6 to 11 of each 12 (measured on Zen, 0.3.21), and padding does not help.
 */
#ifndef TUNE_GEMM_H
#define TUNE_GEMM_H

#include "lib/tensor/tensor.h"

/* Number of operations below which starting threads costs more than it saves. */
#define PRODUCT_SERIAL 2e6

/* The part of cpu_configure for products. gemm: NULL or "auto", "own", "openblas", "onednn". info->isa selects the row functions and whether bf16
 * is multiplied natively. ST_USAGE when the name is unknown or the build lacks it. Packed weights stay as they are: a weight is packed for the
 * library that runs its first product, so call tensor_unpack before you choose another library. */
Status gemm_configure(const char *gemm, const CpuInfo *info);
void gemm_describe(CpuInfo *info); /* fills in the fields of CpuInfo about products */
/* The device's packed_bytes, packed_free and pack. */
size_t gemm_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward);
void gemm_packed_free(void *packed);
Status gemm_pack(const Tensor *weight, DType compute, bool backward, const PackMemory *memory);

/* A factor of a product. */
typedef struct Operand {
    const void *data; /* of a quantised dtype: the elements of the tensor (codes_read) */
    DType dtype;
    int64_t ld;      /* elements from line to line in memory */
    bool transposed; /* the factor is the transpose of what is in memory */
    bool rounds;     /* of a quantised dtype: values are rounded to bf16 */
    int64_t first;   /* of a quantised dtype, whose elements have no addresses: the element where the factor begins */
    bool int8;       /* of a quantised dtype: rows of the other factor become codes of 8 bits (simd/int8_product.c) */
} Operand;
static inline Operand operand_of(const void *data, DType dtype, int64_t ld, bool transposed) {
    return (Operand){.data = data, .dtype = dtype, .ld = ld, .transposed = transposed};
}
static inline bool operands_same(const Operand *a, const Operand *b) {
    return a->data == b->data && a->first == b->first && a->dtype == b->dtype && a->ld == b->ld && a->transposed == b->transposed;
}
/* The factor from `elements` elements further on in memory. */
static inline Operand operand_after(Operand operand, int64_t elements) {
    operand.first += elements;
    operand.data = (const char *)operand.data + (size_t)elements * dtype_size(operand.dtype);
    return operand;
}

/* ---- row functions, compiled for each instruction set ---- */

/* Statistics of a row of logits z. */
typedef struct LogitRow {
    float largest;
    double sum, weighted, total; /* sums: of exp(z - largest), of (z - largest) exp(z - largest), and of z */
} LogitRow;

/* The values that turn a row of logits into gradients with respect to the plain products. */
typedef struct LogitGrad {
    float logsumexp, entropy, dlogprob, dentropy, dmean; /* dmean: gradient for each log-probability, already divided by the vocabulary size */
    float dmean_sum;                                     /* dmean times the vocabulary size */
} LogitGrad;

typedef struct CpuRows {
    /* to[i, j] = from[i, j] for (rows, cols) elements; ld: elements from line to line; f32, bf16 and f16 to f32 or bf16. */
    void (*convert)(const void *from, DType from_dtype, int64_t from_ld, void *to, DType to_dtype, int64_t to_ld, int64_t rows, int64_t cols);
    /* c = alpha * tile + beta * c; c is f32 or bf16 and is not read when beta is 0. */
    void (*finish)(const float *tile, int64_t tile_ld, float alpha, float beta, void *c, DType dtype, int64_t ld, int64_t rows, int64_t cols);
    /* Computes n elements from element `at` of line `line` of a factor of a quantised dtype. */
    void (*codes)(const Operand *from, int64_t line, int64_t at, int64_t n, float *values);
    /* Whether products with codes of 8 bits support this factor, the transpose of a weight (n, k). */
    bool (*int8_fits)(const Operand *b, int64_t n, int64_t k);
    /* Applies soft-cap and temperature to n plain products, in place. */
    void (*logits)(const LogprobArgs *args, float *z, int64_t n);
    /* Sums n logits, which are replaced by exp(z - row->largest). weighted and total only if `all`; the other sums have the same bits either way. */
    void (*sum)(LogitRow *row, float *z, int64_t n, bool all);
    /* Replaces n plain products with their gradients, without the target's part, which `target` adds (its index among these n, or -1). */
    void (*gradient)(const LogprobArgs *args, const LogitGrad *grad, float *z, int64_t n, int64_t target);
} CpuRows;
extern const CpuRows cpu_rows_base, cpu_rows_avx2, cpu_rows_avx512, cpu_rows_avx512_bf16;

/* ---- one tile: a product on one thread ---- */

/* c (m, n) f32 = op(a) op(b); a: (m, k), or (k, m) when transposed; b: (k, n), or (n, k). ld: elements from line to line. */
typedef struct TileShape {
    DType dtype;                           /* dtype of a and b, f32 or bf16 */
    bool transpose_a, transpose_b, packed; /* packed: b comes from onednn_pack */
    int64_t m, n, k, lda, ldb, ldc;
} TileShape;

#if HAVE_ONEDNN
/* A prepared product, owned by the cache; valid until the next call of onednn_evict. */
typedef struct OnednnTile OnednnTile;
/* packed_rows: number of rows for which a packed shape's b was packed. NULL when the library has no fast implementation for fewer rows with this
 * packed b. */
const OnednnTile *onednn_tile(const TileShape *shape, int64_t packed_rows);
void onednn_run(const OnednnTile *tile, const void *a, const void *b, float *c);
/* Bytes of one packed tile (k, n) of a constant b, 0 when unpacked memory is as good. rows: number of rows of its products. */
size_t onednn_packed_bytes(DType dtype, int64_t rows, int64_t n, int64_t k);
/* b as in TileShape. */
void onednn_pack(DType dtype, int64_t rows, int64_t n, int64_t k, const void *b, int64_t ldb, bool transpose_b, void *packed);
bool onednn_is_fast(DType dtype); /* false: the library multiplies this dtype in plain loops or not at all */
/* Empties the cache if it has grown large: batches of many different sizes fill it. */
void onednn_evict(void);
const char *onednn_version(void);
#endif

/* ---- products of memory that is not in tensors ---- */

/* The packed copy of a constant weight, owned by host/gemm.c; NULL = none. Without memory of its own (a quantised weight), each tile is packed when
 * it is used. */
typedef struct PackedTiles PackedTiles;

/* C (m, n) = alpha * op(A) op(B) + beta * D with products in `dtype`, f32 or bf16. D is C itself unless given; it is not read when beta is 0. */
typedef struct Product {
    DType dtype;
    int64_t m, n, k;
    Operand a, b;
    const PackedTiles *packed; /* only if a is not transposed and its lines are k apart */
    void *c;
    DType c_dtype;
    int64_t ldc;
    float alpha, beta;
    /* Only in our own products: + more_alpha * op(A') op(B') over an inner dimension of more_k, 0 = none; and a D other than C. */
    Operand more_a, more_b;
    int64_t more_k;
    float more_alpha;
    /* Only where CpuProducts.makes_more is true: first computes A' = down_alpha * op(A) op(down), in bf16. */
    Operand down; /* data NULL: A' is given */
    float down_alpha;
    uint16_t *low; /* A' */
    const void *d;
    DType d_dtype;
    int64_t ldd;
    bool nontemporal;           /* as in Matmul */
    bool round_b, round_more_b; /* whether to round b and more_b to bf16 before multiplying: for products in f32 that replace products of bf16 */
} Product;
void product_run(const Product *product); /* on all threads */
enum { PRODUCTS_MOST = 8 };               /* maximum in one call */

/* A product computed tile by tile, for callers that use each tile at once. Prepare it outside a parallel region; inside, a thread begins a column
 * of tiles before it computes tiles of that column. */
typedef struct ProductTiles {
    const Product *product;
    int64_t row_tile, col_tile, row_tiles, col_tiles;
    TileShape shapes[2][2];     /* shapes of the library's calls for [last row tile][last column tile]; m may be padded */
    const void *prepared[2][2]; /* the library's handles */
} ProductTiles;
ProductTiles product_tiles(const Product *product);
int64_t product_rows(const ProductTiles *tiles, int64_t row_tile); /* of one tile */
int64_t product_cols(const ProductTiles *tiles, int64_t col_tile);
void product_column(const ProductTiles *tiles, int64_t col_tile);
/* Computes a tile: its rows x cols f32, dense, in the thread's scratch memory until its next tile. */
float *product_tile(const ProductTiles *tiles, int64_t row_tile, int64_t col_tile);
/* For a plan (cpu_planning): records the memory of each thread that computes columns of tiles. */
void product_plan(const ProductTiles *tiles);
/* Call in each thread of a parallel region that computes tiles: the libraries then start no threads themselves. */
void product_thread_begin(void);

/* Our own products: complete ones, and tiles of at most row_tile rows, of the column that the thread began last. k > 0. */
typedef struct CpuProducts {
    void (*run)(const Product *products, int n); /* up to PRODUCTS_MOST that do not need each other's results */
    int64_t (*row_tile)(void);
    int64_t (*col_tile)(int64_t n, int64_t k);
    void (*column)(const Product *product, int64_t col, int64_t cols);
    /* c: dense, with memory for row_tile rows */
    void (*tile)(const Product *product, int64_t row, int64_t rows, int64_t col, int64_t cols, float *c);
    bool (*makes_more)(const Product *product); /* NULL: never */
} CpuProducts;
/* In f32 (simd/vector_product.c); operands of other dtypes are widened. */
extern const CpuProducts cpu_products_base, cpu_products_avx2, cpu_products_avx512, cpu_products_avx512_bf16;
/* With rows of A in codes of 8 bits, if Operand.int8 of B is set (simd/int8_product.c). */
extern const CpuProducts cpu_int8_products_base, cpu_int8_products_avx2, cpu_int8_products_avx512, cpu_int8_products_avx512_bf16,
    cpu_int8_products_avx2_vnni, cpu_int8_products_avx512_vnni;
/* In bf16 on a processor that multiplies bf16 (tile/product.c). */
extern const CpuProducts cpu_tile_products_avx512_bf16, cpu_tile_products_amx;

/* The operand of weight `b` in a product with a factor of dtype `a`, op(b) as `transposed` says. */
Operand operand_plain(const Tensor *b, bool transposed, DType a);
/* The same with its packed copy. Packs a constant weight at its first use. A quantised weight is never copied as a whole. */
Operand weight_operand(const Tensor *b, bool transposed, DType a, const PackedTiles **packed);
/* The dtype in which products of such an operand run: bf16 where the processor multiplies it, else f32. */
DType product_dtype(DType a);
/* Whether b is rounded to bf16 for the product, so that bf16 products computed in f32 use the same numbers as native ones. Such a b is not packed.
 * False for a quantised b, whose values are rounded when they are read. */
bool product_rounds(DType a, DType b);
const CpuRows *cpu_rows(void);

/* c = alpha op(a) op(b) + beta c in double; op(a) is (m, k), op(b) is (k, n). */
void matmul_f64(const Matmul *args, int64_t m, int64_t n, int64_t k);

/* Counts the time since `since` (clock_seconds) as time in products; see cpu_product_seconds. */
void product_time_add(double since);

#endif
