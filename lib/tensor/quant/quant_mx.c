/* SPDX-License-Identifier: Apache-2.0 */
/* MXFP4 of the OCP specification in ggml's order of elements: blocks of 32 4-bit floats (E2M1) with a power of two as scale. */
#include "lib/tensor/quant/quant_parts.h"

#include <math.h>

enum { MX_HALF = SMALL_BLOCK / 2 };
const float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2^(bits - 128), half of the scale, since the grid is of doubled values */
static float half_scale(uint8_t bits) {
    uint32_t pattern = bits < 2 ? 0x00200000u << bits : (uint32_t)(bits - 1) << 23;
    float value;
    memcpy(&value, &pattern, sizeof value);
    return value;
}

void mxfp4_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 17, values += SMALL_BLOCK) {
        float d = half_scale(blocks[0]);
        for (int i = 0; i < MX_HALF; i++) {
            values[i] = (float)twice[blocks[1 + i] & 15] * d;
            values[i + MX_HALF] = (float)twice[blocks[1 + i] >> 4] * d;
        }
    }
}

static unsigned mx_nearest(float x, float d) {
    unsigned best = 0;
    float least = fabsf((float)twice[0] * d - x);
    for (unsigned i = 1; i < 16; i++) {
        float error = fabsf((float)twice[i] * d - x);
        if (!(error < least)) continue;
        least = error;
        best = i;
    }
    return best;
}

void mxfp4_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    (void)importance;
    for (int64_t b = 0; b < count / SMALL_BLOCK; b++, blocks += 17, values += SMALL_BLOCK) {
        float largest = fabsf(quant_largest(values, SMALL_BLOCK));
        int exponent = largest > 0 ? (int)floorf(log2f(largest)) - 2 + 127 : 0;
        blocks[0] = (uint8_t)clamp_int(exponent, 0, 254);
        float d = half_scale(blocks[0]);
        for (int i = 0; i < MX_HALF; i++) blocks[1 + i] = (uint8_t)(mx_nearest(values[i], d) | mx_nearest(values[i + MX_HALF], d) << 4);
    }
}
