/* SPDX-License-Identifier: Apache-2.0 */
/* Types of elements: names, sizes, and conversions of single elements. */
#ifndef TUNE_DTYPE_H
#define TUNE_DTYPE_H

#include "lib/base/base.h"

typedef enum DType {
#define DTYPE(id, name, elements, bytes) DT_##id,
#include "lib/tensor/dtypes.def"
#undef DTYPE
} DType;
const char *dtype_name(DType dtype); /* "f32", ... */

/* Bytes of n elements; n is a multiple of the dtype's block. For lengths from files use dtype_bytes_fit. */
static inline size_t dtype_bytes(DType dtype, int64_t n) {
    switch (dtype) {
#define DTYPE(id, name, elements, bytes)                                                                         \
    case DT_##id:                                                                                                \
        ASSERT((elements) == 1 || n % (elements) == 0, "%lld elements in blocks of %d", (long long)n, elements); \
        return (size_t)n / (elements) * (bytes);
#include "lib/tensor/dtypes.def"
#undef DTYPE
    }
    return 0;
}
/* Number of elements in a block; 1 for PACKED and for a dtype without blocks, which stores its elements one by one. */
int64_t dtype_block(DType dtype);
/* Sets *bytes to dtype_bytes of the product of `n_dims` sizes. False: the product is not a multiple of the block, or exceeds size_t. */
bool dtype_bytes_fit(DType dtype, int n_dims, const int64_t *shape, size_t *bytes) WARN_UNUSED;

/* Bytes of one element, 0 for a quantised dtype. For lib/tensor only (`make layers` checks it): kernels address single elements. Inline, because
 * they call it with a dtype that the compiler knows: a function call there would spill all vector registers. */
static inline size_t dtype_size(DType dtype) {
    switch (dtype) {
#define DTYPE(id, name, elements, bytes) \
    case DT_##id:                        \
        return (elements) == 1 ? (bytes) : 0;
#include "lib/tensor/dtypes.def"
#undef DTYPE
    }
    return 0;
}

/* Whether elements are stored as codes, which only products and a few other kernels read (kernels.def). */
static inline bool dtype_is_quantised(DType dtype) { return dtype_size(dtype) == 0; }

static inline float bf16_to_float(uint16_t bits) {
    union {
        uint32_t u;
        float f;
    } pun = {.u = (uint32_t)bits << 16};
    return pun.f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t float_to_bf16(float value) {
    union {
        float f;
        uint32_t u;
    } pun = {.f = value};
    if ((pun.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((pun.u >> 16) | 0x40u);
    return (uint16_t)((pun.u + 0x7fffu + ((pun.u >> 16) & 1u)) >> 16);
}

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

/* Read and write element i of an array. A quantised dtype has no single elements: the program aborts. */
double dtype_get(DType dtype, const void *elements, int64_t i);
void dtype_set(DType dtype, void *elements, int64_t i, double value);

#endif
