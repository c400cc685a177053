/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: storage, shapes, and the way of values between the host and the device. */
#include "lib/tensor/device.h"
#include "lib/tensor/quant/packing.h"

#include <math.h>
#include <stdio.h>

int64_t tensor_count(const Tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) count *= tensor->shape[i];
    return count;
}

size_t tensor_bytes(const Tensor *tensor) {
    return tensor->dtype == DT_PACKED ? ((const Packing *)tensor->elements)->bytes : dtype_bytes(tensor->dtype, tensor_count(tensor));
}

int64_t tensor_width(const Tensor *tensor) { return tensor->n_dims > 0 ? tensor->shape[tensor->n_dims - 1] : 1; }

int64_t tensor_rows(const Tensor *tensor) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->n_dims; i++) rows *= tensor->shape[i];
    return rows;
}

void tensor_set_shape(Tensor *tensor, int n_dims, const int64_t *shape) {
    ASSERT(n_dims >= 0 && n_dims <= TENSOR_MAX_DIMS, "tensor of %d dimensions, at most %d", n_dims, TENSOR_MAX_DIMS);
    tensor->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++) {
        ASSERT(shape[i] >= 0, "negative size %lld", (long long)shape[i]);
        tensor->shape[i] = shape[i];
    }
}

/* With a storage of its own. */
static Tensor *tensor_make(Arena *arena, const Device *device, StorageKind kind, DType dtype, int n_dims, const int64_t *shape, void *elements) {
    struct {
        Tensor tensor;
        Storage storage;
    } *both = arena_zero(arena, TENSOR_HEADER);
    if (!both) return NULL;
    both->storage = (Storage){.device = device, .kind = kind};
    both->tensor = (Tensor){.dtype = dtype, .elements = elements, .storage = &both->storage};
    tensor_set_shape(&both->tensor, n_dims, shape);
    return &both->tensor;
}

Tensor *tensor_header(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape) {
    return tensor_make(arena, device, STORAGE_OWNED, dtype, n_dims, shape, NULL);
}

Status tensor_allocate(Tensor *tensor, Arena *arena) {
    tensor->elements = arena_alloc_from(arena, tensor_device(tensor)->source, tensor_bytes(tensor));
    return tensor->elements ? ST_OK : ST_RESOURCE;
}

Tensor matrix_rows(const Tensor *matrix, int64_t begin, int64_t end) {
    ASSERT(begin == 0 || matrix->dtype != DT_PACKED, "rows of packed codes from %lld on", (long long)begin); /* they have no addresses */
    Tensor part = {.dtype = matrix->dtype, .n_dims = 2, .shape = {end - begin, matrix->shape[1]}, .storage = matrix->storage};
    if (matrix->elements) part.elements = (char *)matrix->elements + dtype_bytes(matrix->dtype, begin * matrix->shape[1]);
    return part;
}

Tensor packed_matrix(const Tensor *stack, int64_t i) {
    const Packing *packing = stack->elements;
    ASSERT(stack->dtype == DT_PACKED && stack->n_dims == 3 && packing->matrices, "matrix %lld of a tensor that is no stack", (long long)i);
    return (Tensor){.dtype = DT_PACKED,
                    .n_dims = 2,
                    .shape = {stack->shape[2], stack->shape[1]},
                    .elements = (void *)(uintptr_t)packing->matrices[i],
                    .storage = stack->storage};
}

void matmul_by_rows(const Matmul *args, void (*matmul)(const Matmul *args)) {
    int64_t m = args->c->shape[0], end;
    const RowBranch *branch = args->branches;
    for (int64_t begin = 0; begin < m; begin = end) {
        const RowBranch *its = branch && branch->begin == begin ? branch : NULL;
        end = its ? its->end : branch ? branch->begin : m;
        Tensor a = matrix_rows(args->a, begin, end), c = matrix_rows(args->c, begin, end), addend;
        Matmul part = *args;
        part.a = &a;
        part.c = &c;
        part.branches = NULL;
        part.next = NULL;
        if (args->addend && args->addend->n_dims == 2) {
            addend = matrix_rows(args->addend, begin, end);
            part.addend = &addend;
        }
        if (its) {
            part.more_a = part.low = its->low;
            part.more_b = its->b;
            part.more_alpha = its->alpha;
            part.down = its->down;
            part.down_alpha = 1;
            part.transpose_more_b = part.transpose_down = true;
            branch = its->next;
        }
        matmul(&part);
    }
}

Tensor *tensor_new(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape) {
    size_t bytes;
    if (!dtype_bytes_fit(dtype, n_dims, shape, &bytes)) {
        status_fail(ST_RESOURCE, "a tensor's size does not fit into memory");
        return NULL;
    }
    Tensor *tensor = tensor_header(arena, device, dtype, n_dims, shape);
    return tensor && tensor_allocate(tensor, arena) == ST_OK ? tensor : NULL;
}

Tensor *tensor_view(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, void *values) {
    const bool planning = device->planned;
    if ((planning ? device->planned : device)->host_memory) return tensor_make(arena, device, STORAGE_BORROWED, dtype, n_dims, shape, values);
    Tensor *copy = tensor_new(arena, device, dtype, n_dims, shape);
    if (!copy || tensor_upload(copy, 0, tensor_count(copy), values) != ST_OK) return NULL;
    if (planning) copy->elements = values; /* the memory counts, and kernels find the layout */
    return copy;
}

Tensor *tensor_mapped(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, const void *values) {
    ASSERT(device->host_memory || device->planned, "the device '%s' cannot read a mapped file", device->name);
    return tensor_make(arena, device, STORAGE_MAPPED, dtype, n_dims, shape, (void *)(uintptr_t)values);
}

Tensor *tensor_shared(Arena *arena, const Device *device, DType dtype, int n_dims, const int64_t *shape, void *values) {
    ASSERT(device->host_memory, "the device '%s' cannot read shared memory", device->name);
    return tensor_make(arena, device, STORAGE_SHARED, dtype, n_dims, shape, values);
}

Tensor *tensor_packed(Arena *arena, const Device *device, int n_dims, const int64_t *shape, const Packing *packing) {
    ASSERT(device->host_memory || device->planned, "the device '%s' cannot read packed codes", device->name);
    return tensor_make(arena, device, STORAGE_BORROWED, DT_PACKED, n_dims, shape, (void *)(uintptr_t)packing);
}

void tensor_dequantise(const Tensor *tensor, int64_t at, int64_t n, float *values) {
    codes_read(tensor->dtype, tensor->elements, at, n, tensor->storage->rounds, values);
}

static void host_find_nonfinite(const Tensor *x, int64_t *index) {
    const int64_t count = tensor_count(x);
    const float *floats = x->dtype == DT_F32 ? x->elements : NULL;
    for (*index = 0; *index < count; ++*index)
        if (!isfinite(floats ? (double)floats[*index] : element_get(x, *index))) return;
    *index = -1;
}

Tensor *tensor_of_host(Arena *arena, DType dtype, int64_t n, void *values) {
    static const Device host = {.name = "host",
                                .host_memory = true,
                                .upload = host_transfer,
                                .download = host_transfer,
                                .synchronise = host_synchronise,
                                .find_nonfinite = host_find_nonfinite};
    return tensor_view(arena, &host, dtype, 1, &n, values);
}

Tensor *tensor_reshape(Arena *arena, const Tensor *tensor, int n_dims, const int64_t *shape) {
    Tensor *other = arena_zero(arena, sizeof *other);
    if (!other) return NULL;
    *other = (Tensor){.dtype = tensor->dtype, .elements = tensor->elements, .storage = tensor->storage};
    tensor_set_shape(other, n_dims, shape);
    ASSERT(tensor_count(other) == tensor_count(tensor), "%lld elements as %lld", (long long)tensor_count(tensor), (long long)tensor_count(other));
    return other;
}

static void *address_of(const Tensor *tensor, int64_t at, int64_t n) {
    ASSERT(tensor->dtype != DT_PACKED, "elements of packed codes from %lld on", (long long)at);
    ASSERT(at >= 0 && n >= 0 && n <= tensor_count(tensor) - at, "elements %lld to %lld of a tensor of %lld", (long long)at, (long long)(at + n),
           (long long)tensor_count(tensor));
    return (char *)tensor->elements + dtype_bytes(tensor->dtype, at);
}

Tensor tensor_part(const Tensor *tensor, int64_t at, int64_t n) {
    bool whole = at == 0 && n == tensor_count(tensor); /* packed codes too */
    void *elements = whole ? tensor->elements : address_of(tensor, at, n);
    return (Tensor){.dtype = tensor->dtype, .n_dims = 1, .shape = {n}, .elements = elements, .storage = tensor->storage};
}

void tensor_swap(Tensor *a, Tensor *b) {
    ASSERT(a->dtype == b->dtype && tensor_count(a) == tensor_count(b), "a swap of %lld and %lld elements", (long long)tensor_count(a),
           (long long)tensor_count(b));
    void *elements = a->elements;
    Storage *storage = a->storage;
    a->elements = b->elements, a->storage = b->storage;
    b->elements = elements, b->storage = storage;
}

const char *tensor_describe(const Tensor *tensor, char out[96]) {
    int used = snprintf(out, 96, "%s (", dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->n_dims; i++) used += snprintf(out + used, (size_t)(96 - used), "%s%lld", i ? "," : "", (long long)tensor->shape[i]);
    snprintf(out + used, (size_t)(96 - used), ")");
    return out;
}

/* ---- between the host and the device ---- */

static bool is_shared(const Tensor *tensor) { return tensor_device(tensor)->host_memory; }

Status tensor_upload(Tensor *tensor, int64_t at, int64_t n, const void *from) {
    const Device *device = tensor_device(tensor);
    void *to = address_of(tensor, at, n);
    return from == to || n == 0 ? ST_OK : device->upload(device, to, from, dtype_bytes(tensor->dtype, n));
}

Status tensor_download(const Tensor *tensor, int64_t at, int64_t n, void *to) {
    const Device *device = tensor_device(tensor);
    const void *from = address_of(tensor, at, n);
    return from == to || n == 0 ? ST_OK : device->download(device, to, from, dtype_bytes(tensor->dtype, n));
}

void *tensor_stage(Tensor *tensor, int64_t at, int64_t *n, void *buffer, size_t size) {
    if (is_shared(tensor)) return address_of(tensor, at, *n);
    *n = MIN(*n, (int64_t)(size / dtype_bytes(tensor->dtype, 1)));
    return buffer;
}

const void *tensor_piece(const Tensor *tensor, int64_t at, int64_t *n, void *buffer, size_t size) {
    if (is_shared(tensor)) return address_of(tensor, at, *n);
    *n = MIN(*n, (int64_t)(size / dtype_bytes(tensor->dtype, 1)));
    return tensor_download(tensor, at, *n, buffer) == ST_OK ? buffer : NULL;
}

double tensor_get(const Tensor *tensor, int64_t i) {
    double element;
    if (is_shared(tensor)) return dtype_get(tensor->dtype, tensor->elements, i);
    return tensor_download(tensor, i, 1, &element) == ST_OK ? dtype_get(tensor->dtype, &element, 0) : (double)NAN;
}

void tensor_set(Tensor *tensor, int64_t i, double value) {
    double element = 0;
    if (is_shared(tensor)) {
        dtype_set(tensor->dtype, tensor->elements, i, value);
        return;
    }
    dtype_set(tensor->dtype, &element, 0, value);
    (void)tensor_upload(tensor, i, 1, &element); /* the device remembers its fault */
}

enum { PIECE = 1024 }; /* doubles */

void tensor_read_part(const Tensor *tensor, int64_t at, int64_t n, double *out) {
    double buffer[PIECE];
    for (int64_t done = 0, some; done < n; done += some) {
        some = n - done;
        const void *piece = tensor_piece(tensor, at + done, &some, buffer, sizeof buffer);
        const float *floats = piece;
        if (!piece)
            for (int64_t i = 0; i < some; i++) out[done + i] = (double)NAN;
        else if (tensor->dtype == DT_F32)
            for (int64_t i = 0; i < some; i++) out[done + i] = (double)floats[i];
        else if (tensor->dtype == DT_BF16)
            for (int64_t i = 0; i < some; i++) out[done + i] = (double)bf16_to_float(((const uint16_t *)piece)[i]);
        else
            for (int64_t i = 0; i < some; i++) out[done + i] = dtype_get(tensor->dtype, piece, i);
    }
}

void tensor_read(const Tensor *tensor, double *out) { tensor_read_part(tensor, 0, tensor_count(tensor), out); }

void tensor_write_part(Tensor *tensor, int64_t at, int64_t n, const double *values) {
    double buffer[PIECE];
    for (int64_t done = 0, some; done < n; done += some) {
        some = n - done;
        float *floats = tensor_stage(tensor, at + done, &some, buffer, sizeof buffer);
        if (tensor->dtype == DT_F32)
            for (int64_t i = 0; i < some; i++) floats[i] = (float)values[done + i];
        else if (tensor->dtype == DT_BF16)
            for (int64_t i = 0; i < some; i++) ((uint16_t *)(void *)floats)[i] = float_to_bf16((float)values[done + i]);
        else
            for (int64_t i = 0; i < some; i++) dtype_set(tensor->dtype, floats, i, values[done + i]);
        (void)tensor_upload(tensor, at + done, some, floats); /* the device remembers its fault */
    }
}

void tensor_write(Tensor *tensor, const double *values) { tensor_write_part(tensor, 0, tensor_count(tensor), values); }

void tensor_unpack(Tensor *tensor) {
    Storage *storage = tensor ? tensor->storage : NULL;
    if (!storage || !storage->packed) return;
    storage->device->packed_free(storage->packed);
    storage->packed = NULL;
}

int64_t tensor_find_nonfinite(const Tensor *tensor) {
    int64_t index = -1;
    tensor_device(tensor)->find_nonfinite(tensor, &index);
    return index;
}

/* ---- layouts ---- */

int64_t layout_offset(const Segment *segments, int32_t segment) {
    int64_t offset = segments[segment].past;
    for (int32_t up = segments[segment].parent; up >= 0; up = segments[up].parent) offset += segments[up].end - segments[up].begin;
    return offset;
}

int64_t layout_before(const Segment *segments, int32_t segment, int64_t row, int64_t back) {
    int64_t at = row - back;
    while (at < segments[segment].begin) {
        int64_t n = segments[segment].begin - at;
        segment = segments[segment].parent;
        if (segment < 0) return -n;
        at = segments[segment].end - n;
    }
    return at;
}

Status layout_upload(Layout *layout, Arena *arena, const Device *device) {
    layout->arrays.segments =
        tensor_view(arena, device, DT_I32, 2, (int64_t[]){layout->n_segments, SEGMENT_NUMBERS}, (void *)(uintptr_t)layout->segments);
    layout->arrays.pages = tensor_view(arena, device, DT_I32, 1, &layout->n_pages, (void *)(uintptr_t)layout->pages);
    return layout->arrays.segments && layout->arrays.pages ? ST_OK : ST_RESOURCE;
}

Tensor *layout_positions(const Layout *layout, Arena *arena, const Device *device) {
    Tensor *positions = tensor_new(arena, device, DT_I32, 1, &layout->n_tokens);
    if (!positions) return NULL;
    int32_t buffer[PIECE];
    for (int32_t s = 0; s < layout->n_segments; s++) {
        const Segment *segment = &layout->segments[s];
        int64_t offset = layout_offset(layout->segments, s) - segment->begin;
        for (int64_t row = segment->begin, n; row < segment->end; row += n) {
            n = segment->end - row;
            int32_t *out = tensor_stage(positions, row, &n, buffer, sizeof buffer);
            for (int64_t i = 0; i < n; i++) out[i] = (int32_t)(offset + row + i);
            if (tensor_upload(positions, row, n, out) != ST_OK) return NULL;
        }
    }
    return positions;
}
