/* SPDX-License-Identifier: Apache-2.0 */
/* Code that the products in f32 with vectors share: those of many rows (vector_product.c) and of few (vector_skinny.c). */
#ifndef TUNE_VECTOR_PRODUCT_H
#define TUNE_VECTOR_PRODUCT_H

#include "lib/tensor/cpu/blocks.h"
#include "lib/tensor/cpu/gemm.h"

enum { SERIAL_WEIGHT = 1 << 16 /* values of B that one thread reads in the time that it takes to start two */ };

/* Loads n values of line `line` from `at` on, times `scale`, and zeros up to `padded`. */
static inline void line_load(const Operand *from, int64_t line, int64_t at, int64_t n, int64_t padded, float scale, float *to) {
    if (dtype_is_quantised(from->dtype))
        ISA_FN(codes)(from->dtype, from->data, from->first + line * from->ld + at, n, from->rounds, to);
    else
        floats_from(&(Tensor){.dtype = from->dtype, .elements = (void *)(uintptr_t)from->data}, line * from->ld + at, n, to);
    if (scale != 1)
        for (int64_t i = 0; i < n; i++) to[i] *= scale;
    for (int64_t i = n; i < padded; i++) to[i] = 0;
}

/* Whether vector_skinny.c supports the product and is faster: C has few rows, and B is the transpose of a weight (n, k). */
bool ISA_FN(skinny_fits)(const Product *product);
/* Runs up to PRODUCTS_MOST products. */
void ISA_FN(skinny_run)(const Product *products, int n);
/* The same one tile at a time, each with all rows: as CpuProducts.column and tile. */
void ISA_FN(skinny_column)(const Product *product);
void ISA_FN(skinny_tile)(const Product *product, int64_t col, int64_t cols, float *c);

#endif
