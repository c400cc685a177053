/* Float elements from one dtype to another, through float (or double where one side is f64). */
#include "lib/model/model.h"

#include <string.h>

static double element_get(const uint8_t *at, DType dtype) {
    union { float f; double d; uint16_t h; int32_t i; } value;
    memcpy(&value, at, dtype_size(dtype));
    switch (dtype) {
    case DT_F32: return (double)value.f;
    case DT_BF16: return (double)bf16_to_float(value.h);
    case DT_F16: return (double)f16_to_float(value.h);
    case DT_F64: return value.d;
    case DT_I32: return (double)value.i;
    }
    return 0;
}

static void element_put(uint8_t *at, DType dtype, double x) {
    union { float f; double d; uint16_t h; int32_t i; } value = {.d = 0};
    switch (dtype) {
    case DT_F32: value.f = (float)x; break;
    case DT_BF16: value.h = float_to_bf16((float)x); break;
    case DT_F16: value.h = float_to_f16((float)x); break;
    case DT_F64: value.d = x; break;
    case DT_I32: value.i = (int32_t)x; break;
    }
    memcpy(at, &value, dtype_size(dtype));
}

void convert_elements(const void *from, DType from_dtype, void *to, DType to_dtype, size_t count) {
    const uint8_t *in = from;
    uint8_t *out = to;
    size_t in_size = dtype_size(from_dtype), out_size = dtype_size(to_dtype);
    if (from_dtype == to_dtype) { /* by all threads: new pages are cleared first, which takes as long */
        size_t bytes = count * in_size, piece = (size_t)2 << 20;
#pragma omp parallel for schedule(static) if (bytes > 4 * piece)
        for (size_t at = 0; at < bytes; at += piece) memcpy(out + at, in + at, MIN(piece, bytes - at));
        return;
    }
    if (from_dtype == DT_BF16 && to_dtype == DT_F32) { /* these two are what large models need */
        for (size_t i = 0; i < count; i++) {
            uint16_t bits;
            memcpy(&bits, in + 2 * i, 2);
            float value = bf16_to_float(bits);
            memcpy(out + 4 * i, &value, 4);
        }
        return;
    }
    if (from_dtype == DT_F32 && to_dtype == DT_BF16) {
        for (size_t i = 0; i < count; i++) {
            float value;
            memcpy(&value, in + 4 * i, 4);
            uint16_t bits = float_to_bf16(value);
            memcpy(out + 2 * i, &bits, 2);
        }
        return;
    }
    for (size_t i = 0; i < count; i++) element_put(out + i * out_size, to_dtype, element_get(in + i * in_size, from_dtype));
}
