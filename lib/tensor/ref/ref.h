/* SPDX-License-Identifier: Apache-2.0 */
/* The reference device: every kernel as a plain loop in double over any dtype. It is slow; the fast kernels are tested against it.
 *
 *     const Device *device = device_reference();
 *     device->rms_norm(x, weight, 1e-6, y, rstd);   // f64 tensors in: f64 arithmetic without any rounding to f32
 */
#ifndef TUNE_REF_H
#define TUNE_REF_H

#include "lib/tensor/device.h"

/* ref_copy, ref_fill, ...: prototypes of all kernels. */
#define KERNEL(name, arguments, values) void ref_##name arguments;
#include "lib/tensor/kernels.def"
#undef KERNEL

/* y[i] = value + beta * y[i]; with beta 0 the old contents, which may be NaN, are not read. */
static inline void ref_put(Tensor *y, int64_t i, double value, double beta) {
    element_set(y, i, beta == 0 ? value : value + beta * element_get(y, i));
}

/* Element i of a weight, which may be quantised. */
static inline double ref_weight(const Tensor *x, int64_t i) {
    float value;
    if (!dtype_is_quantised(x->dtype)) return element_get(x, i);
    tensor_dequantise(x, i, 1, &value);
    return (double)value;
}

static inline int32_t ref_index(const Tensor *rows, int64_t i) { return ((const int32_t *)rows->elements)[i]; }

/* Allocates `n` zeros for sums that must not be rounded to a tensor's dtype; the caller frees them. NULL when memory runs out: memory_check reports
 * it, the kernel does nothing, and the step fails at its end. */
double *ref_zeros(int64_t n);

#endif
