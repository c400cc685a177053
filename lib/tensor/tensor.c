/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: memory, shapes, and element access for tests, messages and small host loops. */
#include "lib/tensor/tensor.h"

#include <math.h>
#include <stdio.h>

int64_t tensor_count(const Tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) count *= tensor->shape[i];
    return count;
}

size_t tensor_bytes(const Tensor *tensor) { return dtype_bytes(tensor->dtype, tensor_count(tensor)); }

int64_t tensor_width(const Tensor *tensor) { return tensor->n_dims > 0 ? tensor->shape[tensor->n_dims - 1] : 1; }

int64_t tensor_rows(const Tensor *tensor) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->n_dims; i++) rows *= tensor->shape[i];
    return rows;
}

Tensor *tensor_view(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, void *data) {
    ASSERT(n_dims >= 0 && n_dims <= TENSOR_MAX_DIMS, "tensor of %d dimensions, at most %d", n_dims, TENSOR_MAX_DIMS);
    Tensor *tensor = arena_zero(arena, sizeof *tensor);
    if (!tensor) return NULL;
    tensor->dtype = dtype;
    tensor->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++) {
        ASSERT(shape[i] >= 0, "negative size %lld", (long long)shape[i]);
        tensor->shape[i] = shape[i];
    }
    tensor->device = device;
    tensor->data = data;
    return tensor;
}

Tensor *tensor_new(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape) {
    size_t bytes;
    if (!dtype_bytes_fit(dtype, n_dims, shape, &bytes)) {
        status_fail(ST_RESOURCE, "a tensor's size does not fit into memory");
        return NULL;
    }
    Tensor *tensor = tensor_view(arena, device, dtype, n_dims, shape, NULL);
    if (!tensor) return NULL;
    tensor->data = arena_alloc(arena, bytes);
    return tensor->data ? tensor : NULL;
}

const char *tensor_describe(const Tensor *tensor, char out[96]) {
    int used = snprintf(out, 96, "%s (", dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->n_dims; i++) used += snprintf(out + used, (size_t)(96 - used), "%s%lld", i ? "," : "", (long long)tensor->shape[i]);
    snprintf(out + used, (size_t)(96 - used), ")");
    return out;
}

double tensor_get(const Tensor *tensor, int64_t i) {
    switch (tensor->dtype) {
    case DT_F32: return (double)((const float *)tensor->data)[i];
    case DT_BF16: return (double)bf16_to_float(((const uint16_t *)tensor->data)[i]);
    case DT_F16: return (double)f16_to_float(((const uint16_t *)tensor->data)[i]);
    case DT_F64: return ((const double *)tensor->data)[i];
    case DT_I32: return (double)((const int32_t *)tensor->data)[i];
    default: break;
    }
    return (double)NAN;
}

void tensor_set(Tensor *tensor, int64_t i, double value) {
    switch (tensor->dtype) {
    case DT_F32: ((float *)tensor->data)[i] = (float)value; break;
    case DT_BF16: ((uint16_t *)tensor->data)[i] = float_to_bf16((float)value); break;
    case DT_F16: ((uint16_t *)tensor->data)[i] = float_to_f16((float)value); break;
    case DT_F64: ((double *)tensor->data)[i] = value; break;
    case DT_I32: ((int32_t *)tensor->data)[i] = (int32_t)value; break;
    default: break;
    }
}

void tensor_read(const Tensor *tensor, double *out) {
    int64_t count = tensor_count(tensor);
    const float *floats = tensor->data;
    if (tensor->dtype == DT_F32)
        for (int64_t i = 0; i < count; i++) out[i] = (double)floats[i];
    else
        for (int64_t i = 0; i < count; i++) out[i] = tensor_get(tensor, i);
}

void tensor_write(Tensor *tensor, const double *values) {
    int64_t count = tensor_count(tensor);
    float *floats = tensor->data;
    if (tensor->dtype == DT_F32)
        for (int64_t i = 0; i < count; i++) floats[i] = (float)values[i];
    else
        for (int64_t i = 0; i < count; i++) tensor_set(tensor, i, values[i]);
}

void tensor_unpack(Tensor *tensor) {
    if (!tensor || !tensor->packed) return;
    tensor->device->packed_free(tensor->packed);
    tensor->packed = NULL;
}

int64_t tensor_find_nonfinite(const Tensor *tensor) {
    int64_t index = -1;
    tensor->device->find_nonfinite(tensor, &index);
    return index;
}

int64_t layout_offset(const Layout *layout, int32_t segment) {
    const Segment *s = &layout->segments[segment];
    int64_t offset = s->past;
    for (int32_t up = s->parent; up >= 0; up = layout->segments[up].parent) offset += layout->segments[up].end - layout->segments[up].begin;
    return offset;
}

Tensor *layout_positions(const Layout *layout, Arena *arena, const Device *device) {
    Tensor *positions = tensor_new(arena, device, DT_I32, 1, &layout->n_tokens);
    if (!positions) return NULL;
    int32_t *out = positions->data;
    for (int32_t s = 0; s < layout->n_segments; s++) {
        const Segment *segment = &layout->segments[s];
        int64_t offset = layout_offset(layout, s);
        for (int64_t row = segment->begin; row < segment->end; row++) out[row] = (int32_t)(offset + row - segment->begin);
    }
    return positions;
}
