/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that compute nothing: a step on one allocates what the real step will, so that the memory is known before the first real step. */
#include "lib/tensor/device.h"

#include <string.h>

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

#define KERNEL(name, arguments, values) \
    static void meta_##name arguments {}
#include "lib/tensor/kernels.def"
#undef KERNEL

static Status meta_upload(const Device *device, void *to, const void *from, size_t bytes) { return ST_OK; }

static Status meta_download(const Device *device, void *to, const void *from, size_t bytes) {
    memset(to, 0, bytes);
    return ST_OK;
}

static Status meta_synchronise(const Device *device) { return ST_OK; }
static size_t meta_packed_bytes(int64_t rows, int64_t cols, DType stored, DType compute, bool backward) { return 0; }
static void meta_packed_free(void *packed) {}

Device device_planner(const Device *planned) {
    return (Device){
        .name = "meta",
        .planned = planned,
        .upload = meta_upload,
        .download = meta_download,
        .synchronise = meta_synchronise,
#define KERNEL(name, arguments, values) .name = meta_##name,
#include "lib/tensor/kernels.def"
#undef KERNEL
        .packed_bytes = meta_packed_bytes,
        .packed_free = meta_packed_free,
        .product_dtype = planned->product_dtype,
        .workspace_bytes = planned->workspace_bytes,
        .workspace_clear = planned->workspace_clear,
    };
}
