/* SPDX-License-Identifier: Apache-2.0 */
/* For files that make devices. */
#ifndef TUNE_DEVICE_H
#define TUNE_DEVICE_H

#include "lib/tensor/tensor.h"

/* Upload, download and synchronise of devices that share the host's memory: copies of bytes, and kernels that have ended when they return. Memory
 * that ran out in a kernel is the device's fault (memory_check). */
Status host_transfer(const Device *device, void *to, const void *from, size_t bytes);
Status host_synchronise(const Device *device);

/* Element i of a tensor, for kernels: they read and write where the elements are. */
static inline double element_get(const Tensor *x, int64_t i) { return dtype_get(x->dtype, x->elements, i); }
static inline void element_set(Tensor *y, int64_t i, double value) { dtype_set(y->dtype, y->elements, i, value); }

/* Gives a header a shape. */
void tensor_set_shape(Tensor *tensor, int n_dims, const int64_t *shape);

/* A planner for `planned`, with kernels that do nothing. A device whose kernels need scratch memory replaces those. */
Device device_planner(const Device *planned);

#endif
