/* SPDX-License-Identifier: Apache-2.0 */
/* Types of elements: the table, and half-precision numbers. */
#include "lib/tensor/dtype.h"
#include "lib/base/arena.h"

#include <math.h>

const char *dtype_name(DType dtype) {
    static const char *const names[] = {
#define DTYPE(id, name, elements, bytes) [DT_##id] = name,
#include "lib/tensor/dtypes.def"
#undef DTYPE
    };
    return names[dtype];
}

int64_t dtype_block(DType dtype) {
    switch (dtype) {
#define DTYPE(id, name, elements, bytes) \
    case DT_##id:                        \
        return elements;
#include "lib/tensor/dtypes.def"
#undef DTYPE
    }
    return 1;
}

bool dtype_bytes_fit(DType dtype, int n_dims, const int64_t *shape, size_t *bytes) {
    static const struct {
        size_t elements, bytes;
    } blocks[] = {
#define DTYPE(id, name, elements, bytes) [DT_##id] = {elements, bytes},
#include "lib/tensor/dtypes.def"
#undef DTYPE
    };
    size_t count = 1;
    for (int i = 0; i < n_dims; i++)
        if (!size_mul(count, (size_t)shape[i], &count)) return false;
    return count % blocks[dtype].elements == 0 && size_mul(count / blocks[dtype].elements, blocks[dtype].bytes, bytes);
}

float f16_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 1023u;
    if (exponent == 0) { /* zero or subnormal: fraction x 2^-24 */
        float magnitude = ldexpf((float)fraction, -24);
        return sign ? -magnitude : magnitude;
    }
    union {
        uint32_t u;
        float f;
    } pun;
    pun.u = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | fraction << 13;
    return pun.f;
}

uint16_t float_to_f16(float value) {
    union {
        float f;
        uint32_t u;
    } pun = {.f = value};
    uint32_t sign = (pun.u >> 16) & 0x8000u, magnitude = pun.u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65520 or more: infinity */
    if (magnitude < 0x38800000u) {                                   /* below the smallest normal number: integer multiples of 2^-24 */
        union {
            uint32_t u;
            float f;
        } absolute = {.u = magnitude};
        return (uint16_t)(sign | (uint32_t)rintf(ldexpf(absolute.f, 24)));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

double dtype_get(DType dtype, const void *elements, int64_t i) {
    switch (dtype) {
    case DT_F32: return (double)((const float *)elements)[i];
    case DT_BF16: return (double)bf16_to_float(((const uint16_t *)elements)[i]);
    case DT_F16: return (double)f16_to_float(((const uint16_t *)elements)[i]);
    case DT_F64: return ((const double *)elements)[i];
    case DT_I32: return (double)((const int32_t *)elements)[i];
    default: ASSERT(!dtype_is_quantised(dtype), "an element of %s is read", dtype_name(dtype));
    }
    return (double)NAN;
}

void dtype_set(DType dtype, void *elements, int64_t i, double value) {
    switch (dtype) {
    case DT_F32: ((float *)elements)[i] = (float)value; break;
    case DT_BF16: ((uint16_t *)elements)[i] = float_to_bf16((float)value); break;
    case DT_F16: ((uint16_t *)elements)[i] = float_to_f16((float)value); break;
    case DT_F64: ((double *)elements)[i] = value; break;
    case DT_I32: ((int32_t *)elements)[i] = (int32_t)value; break;
    default: ASSERT(!dtype_is_quantised(dtype), "an element of %s is written", dtype_name(dtype));
    }
}
