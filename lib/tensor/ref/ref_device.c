/* SPDX-License-Identifier: Apache-2.0 */
/* The reference device's table of kernels. */
#include "lib/base/memory.h"
#include "lib/tensor/ref/ref.h"

#include <stdlib.h>

double *ref_zeros(int64_t n) {
    double *zeros = calloc((size_t)MAX(n, 1), sizeof *zeros);
    if (!zeros) memory_ran_out((size_t)MAX(n, 1) * sizeof *zeros);
    return zeros;
}

/* The reference multiplies weights as they are stored. */
static size_t packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward) {
    (void)rows, (void)cols, (void)stored, (void)compute, (void)backward;
    return 0;
}

static void packed_free(void *packed) { ASSERT(!packed, "the reference device packs no weights"); }
static DType product_dtype(DType a) { return a; }

const Device *device_reference(void) {
    static const Device reference = {
        .name = "reference",
#define KERNEL(name, arguments) .name = ref_##name,
#include "lib/tensor/kernels.def"
#undef KERNEL
        .packed_bytes = packed_bytes,
        .packed_free = packed_free,
        .product_dtype = product_dtype,
    };
    return &reference;
}
