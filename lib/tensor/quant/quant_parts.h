/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder: half floats in blocks, rounding, and the searches for scales of ggml's quantisers. Sums are taken in the order
 * of the elements, since other orders give other bytes. */
#ifndef TUNE_QUANT_PARTS_H
#define TUNE_QUANT_PARTS_H

#include <string.h>

#include "lib/tensor/quant/quant.h"
#include "lib/tensor/tensor.h"

#define QUANT(id, name, type, elements, size, help)                    \
    void name##_read(const uint8_t *blocks, int64_t n, float *values); \
    void name##_write(const float *values, int64_t count, const float *importance, uint8_t *blocks);
#include "lib/tensor/quant/quant_formats.def"
#undef QUANT

enum { SMALL_BLOCK = 32, SUPER_BLOCK = 256 }; /* elements of a block: of the formats of 32, and of those of 256 (ggml's k-quants) */

static inline float half_at(const uint8_t *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return f16_to_float(bits);
}

static inline void half_put(uint8_t *at, float value) {
    uint16_t bits = float_to_f16(value);
    memcpy(at, &bits, sizeof bits);
}

static inline int clamp_int(int value, int least, int most) { return value < least ? least : value > most ? most : value; }

/* The nearest integer, ties to even, of |value| < 2^22. For others some integer; callers clamp it. */
static inline int nearest_int(float value) {
    float shifted = value + 12582912.0f; /* 1.5 * 2^23: the last bit of the sum is worth 1 */
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (int)(bits & 0x007fffff) - 0x00400000;
}

/* The element of the largest magnitude with its sign, the first one of several; 0 if all are 0. */
float quant_largest(const float *x, int n);
#define QUANT_ZERO 1e-15f /* a group without larger values has the scale 0 */

/* Fills weights (n) with importance * sqrt(variance + x^2). */
void quant_weigh(const float *x, const float *importance, float variance, int n, float *weights);
float quant_sum_of_squares(const float *x, int64_t n);

/* Searches for the scale of n values: each writes their codes (n) and returns the scale. weights (n): of the squared errors. */

/* value = scale * code - *negative_min. Tries the inverse scales (least + step * k + levels) / range of the values, k = 0..steps, and keeps the one
 * with the smallest weighted error. */
typedef struct AffineSearch {
    int levels; /* the largest code; codes begin at 0 */
    float least, step;
    int steps;
    bool absolute; /* errors are absolute; else squared */
} AffineSearch;
float quant_search_affine(const AffineSearch *search, const float *x, const float *weights, int n, uint8_t *codes, float *negative_min);
/* value = scale * (code - levels), codes 0..2 levels - 1. weights NULL: x^2. */
float quant_search_symmetric(int levels, const float *x, const float *weights, int n, uint8_t *codes);
/* x >= 0: value = scale * code, codes 0..levels; then single codes change as long as that helps. */
float quant_search_positive(int levels, const float *x, const float *weights, int n, uint8_t *codes);

#endif
