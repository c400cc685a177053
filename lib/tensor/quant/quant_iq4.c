/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's 4-bit formats on an uneven grid. Groups of 32 are packed in 16 bytes: element j in the low half of byte j, element j + 16 in the high. */
#include "lib/tensor/quant/quant_parts.h"

#include <math.h>

enum { GROUP_BYTES = SMALL_BLOCK / 2, XS_GROUPS = SUPER_BLOCK / SMALL_BLOCK };
static const int8_t grid[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void group_read(const uint8_t *packed, float scale, float *values) {
    for (int i = 0; i < GROUP_BYTES; i++) {
        values[i] = scale * (float)grid[packed[i] & 15];
        values[i + GROUP_BYTES] = scale * (float)grid[packed[i] >> 4];
    }
}

void iq4_nl_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 18, values += SMALL_BLOCK) group_read(blocks + 2, half_at(blocks), values);
}

/* iq4_xs: d, high 2 bits of the scales (u16), their low 4 bits (4 bytes), codes (128); 32 is subtracted from scales. */
void iq4_xs_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 136, values += SUPER_BLOCK) {
        float d = half_at(blocks);
        unsigned high = (unsigned)(blocks[2] | blocks[3] << 8);
        for (int g = 0; g < XS_GROUPS; g++) {
            int low = (blocks[4 + g / 2] >> (g % 2 * 4)) & 15, scale = (low | (int)((high >> (2 * g)) & 3) << 4) - 32;
            group_read(blocks + 8 + g * GROUP_BYTES, d * (float)scale, values + g * SMALL_BLOCK);
        }
    }
}

/* The nearest value of the grid; in the middle of two, the upper one. */
static int grid_nearest(float x) {
    int low = 0, high = 15;
    if (!(x > (float)grid[0])) return 0;
    if (x >= (float)grid[15]) return 15;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (x < (float)grid[middle])
            high = middle;
        else
            low = middle;
    }
    return x - (float)grid[low] < (float)grid[high] - x ? low : high;
}

/* Tries the inverse scales 127 / largest and (k - 127) / largest, k = -7..7. */
static float group_search(const float *x, const float *weights) {
    float largest = quant_largest(x, SMALL_BLOCK), best = 0, scale = 0;
    if (fabsf(largest) < QUANT_ZERO) return 0;
    for (int k = -8; k <= 7; k++) {
        float inverse = k < -7 ? 1 / (-largest / (float)grid[0]) : ((float)k + (float)grid[0]) / largest, qx = 0, q2 = 0;
        for (int i = 0; i < SMALL_BLOCK; i++) {
            float q = (float)grid[grid_nearest(inverse * x[i])];
            qx += weights[i] * q * x[i];
            q2 += weights[i] * q * q;
        }
        if (k < -7 || (q2 > 0 && qx * qx > best * q2)) {
            scale = qx / q2;
            best = scale * qx;
        }
    }
    return scale;
}

static float weigh_and_search(const float *x, const float *importance, float variance) {
    float weights[SMALL_BLOCK];
    for (int i = 0; i < SMALL_BLOCK && !importance; i++) weights[i] = x[i] * x[i];
    if (importance) quant_weigh(x, importance, variance, SMALL_BLOCK, weights);
    return group_search(x, weights);
}

static void group_write(const float *x, float inverse, uint8_t *packed) {
    for (int i = 0; i < GROUP_BYTES; i++) packed[i] = (uint8_t)(grid_nearest(inverse * x[i]) | grid_nearest(inverse * x[i + GROUP_BYTES]) << 4);
}

static float twice_the_mean(const float *x, int n) { return quant_sum_of_squares(x, n) * (2.0f / (float)n); }

void iq4_nl_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    for (int64_t b = 0; b < count / SMALL_BLOCK; b++, blocks += 18, values += SMALL_BLOCK) {
        float d = weigh_and_search(values, importance ? importance + b * SMALL_BLOCK : NULL, twice_the_mean(values, SMALL_BLOCK));
        half_put(blocks, d);
        group_write(values, d != 0 ? 1 / d : 0, blocks + 2);
    }
}

void iq4_xs_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    for (int64_t b = 0; b < count / SUPER_BLOCK; b++, blocks += 136, values += SUPER_BLOCK) {
        float scales[XS_GROUPS], variance = twice_the_mean(values, SUPER_BLOCK);
        unsigned high = 0;
        for (int g = 0; g < XS_GROUPS; g++) {
            int64_t at = b * SUPER_BLOCK + g * SMALL_BLOCK;
            scales[g] = weigh_and_search(values + g * SMALL_BLOCK, importance ? importance + at : NULL, variance);
        }
        float d = -quant_largest(scales, XS_GROUPS) / 32, inverse = d != 0 ? 1 / d : 0;
        memset(blocks + 4, 0, 4);
        for (int g = 0; g < XS_GROUPS; g++) {
            int scale = clamp_int(nearest_int(inverse * scales[g]), -32, 31);
            float step = d * (float)scale;
            group_write(values + g * SMALL_BLOCK, step != 0 ? 1 / step : 0, blocks + 8 + g * GROUP_BYTES);
            blocks[4 + g / 2] |= (uint8_t)(((scale + 32) & 15) << (g % 2 * 4));
            high |= (unsigned)(scale + 32) >> 4 << (2 * g);
        }
        half_put(blocks, d);
        blocks[2] = (uint8_t)high;
        blocks[3] = (uint8_t)(high >> 8);
    }
}
