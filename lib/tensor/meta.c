/* The device that computes nothing: a step run on it allocates what the real one would, so its memory is known before the first real step. */
#include "lib/tensor/tensor.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

#define KERNEL(name, arguments) \
    static void meta_##name arguments {}
#include "lib/tensor/kernels.def"
#undef KERNEL

static size_t meta_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward) { return 0; }
static void meta_packed_free(void *packed) {}

const Device *device_meta(void) {
    static const Device device = {
        .name = "meta",
#define KERNEL(name, arguments) .name = meta_##name,
#include "lib/tensor/kernels.def"
#undef KERNEL
        .packed_bytes = meta_packed_bytes,
        .packed_free = meta_packed_free,
    };
    return &device;
}
