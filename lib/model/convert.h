/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of one float dtype as another, and what the rounding of changed weights loses. */
#ifndef TUNE_CONVERT_H
#define TUNE_CONVERT_H

#include "lib/tensor/tensor.h"

/* Converts `count` elements between float dtypes (host memory; unaligned source is fine). */
void convert_elements(const void *from, DType from_dtype, void *to, DType to_dtype, size_t count);
/* Fills elements at..at+n-1 of a tensor with n elements of `dtype`, converted. Fails as the device does. */
Status tensor_convert(Tensor *tensor, int64_t at, const void *from, DType dtype, int64_t n);
Status tensor_floats(const Tensor *tensor, int64_t at, int64_t n, float *out); /* the other way, to f32 */
DType dtype_from_text(const char *text);                                       /* f32, bf16 or f16, for lists of options */

/* The effect of storing weights in a dtype on their changes: sums of squares of the changes and of the rounding errors; the number of changed
 * weights, and of those whose stored value is unchanged. Starts as all zeros. */
typedef struct RoundingLoss {
    double change, lost;
    int64_t n_moved, n_unmoved;
} RoundingLoss;
enum { ROUNDING_PIECE = 256 };
/* Stores `n` sums base + change, at most ROUNDING_PIECE, in `dtype` (f32, bf16, f16), and adds to `loss`. Returns the largest distance from the exact
 * sum; infinite if one exceeds the dtype's range. */
double round_sums(const float *sums, const float *base, const float *change, size_t n, DType dtype, void *stored, RoundingLoss *loss);
void rounding_add(RoundingLoss *loss, const RoundingLoss *more);
double rounding_lost(const RoundingLoss *loss);    /* the norm of the rounding errors as a share of that of the changes; 0 if nothing changed */
double rounding_unmoved(const RoundingLoss *loss); /* share of the changed weights whose stored value is unchanged */
#define ROUNDING_TOO_COARSE 0.3                    /* a larger loss causes a warning */

#endif
