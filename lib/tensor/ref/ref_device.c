/* SPDX-License-Identifier: Apache-2.0 */
/* The reference device's table of kernels. */
#include "lib/base/memory.h"
#include "lib/tensor/ref/ref.h"

#include <stdlib.h>
#include <string.h>

double *ref_zeros(int64_t n) {
    double *zeros = calloc((size_t)MAX(n, 1), sizeof *zeros);
    if (!zeros) memory_ran_out((size_t)MAX(n, 1) * sizeof *zeros);
    return zeros;
}

Status host_transfer(const Device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    memcpy(to, from, bytes);
    return ST_OK;
}

Status host_synchronise(const Device *device) {
    (void)device;
    return memory_check(ST_OK);
}

/* The reference multiplies weights as they are stored. */
static size_t packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward) {
    (void)rows, (void)cols, (void)stored, (void)compute, (void)backward;
    return 0;
}

static void packed_free(void *packed) { ASSERT(!packed, "the reference device packs no weights"); }
static DType product_dtype(DType a) { return a; }

/* Its kernels have no scratch memory. */
static size_t workspace_bytes(const Device *device) {
    (void)device;
    return 0;
}

static void workspace_clear(const Device *device) { (void)device; }

const Device *device_reference(void) {
    static Device planner;
    static Device reference = {
        .name = "reference",
        .host_memory = true,
        .upload = host_transfer,
        .download = host_transfer,
        .synchronise = host_synchronise,
#define KERNEL(name, arguments, values) .name = ref_##name,
#include "lib/tensor/kernels.def"
#undef KERNEL
        .packed_bytes = packed_bytes,
        .packed_free = packed_free,
        .product_dtype = product_dtype,
        .workspace_bytes = workspace_bytes,
        .workspace_clear = workspace_clear,
    };
    if (!reference.planner) {
        planner = device_planner(&reference);
        reference.planner = &planner;
    }
    return &reference;
}
