/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a device need in addition to tensor.h. */
#ifndef TUNE_DEVICE_H
#define TUNE_DEVICE_H

#include "lib/tensor/tensor.h"

/* Device.upload, download and synchronise of devices that share the host's memory and whose kernels have ended when they return. host_transfer copies
 * bytes. host_synchronise returns ST_RESOURCE if a kernel ran out of memory (memory_check). */
Status host_transfer(const Device *device, void *to, const void *from, size_t bytes);
Status host_synchronise(const Device *device);

/* Read and write element i of a tensor at tensor->elements, for kernels of devices that share the host's memory. */
static inline double element_get(const Tensor *x, int64_t i) { return dtype_get(x->dtype, x->elements, i); }
static inline void element_set(Tensor *y, int64_t i, double value) { dtype_set(y->dtype, y->elements, i, value); }

/* The arrays of a layout (layout_upload), for kernels of devices that share the host's memory. */
static inline const Segment *layout_segments(const Layout *layout) { return layout->arrays.segments->elements; }
static inline const int32_t *layout_pages(const Layout *layout) { return layout->arrays.pages->elements; }

/* Sets n_dims and shape of a tensor. */
void tensor_set_shape(Tensor *tensor, int n_dims, const int64_t *shape);

/* Returns a planner for `planned` (Device.planner) whose kernels do nothing. A device whose kernels take scratch memory replaces these kernels by
 * ones that count it. */
Device device_planner(const Device *planned);

#endif
