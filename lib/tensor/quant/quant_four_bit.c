/* SPDX-License-Identifier: Apache-2.0 */
/* NF4 (QLoRA, arXiv 2305.14314, appendix E) and FP4 as bitsandbytes stores them, with and without double quantisation. */
#include "lib/tensor/quant/quant_parts.h"

#include <math.h>

static const float nf4_values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
/* A value above nf4_limits[i] has a code above i. */
static const float nf4_limits[15] = {
    -0.8480964004993439f,  -0.6106329262256622f,   -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
    -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f, 0.1202552504837513f,   0.2035212516784668f,
    0.2920137718319893f,   0.3893125355243683f,    0.5016634166240692f,  0.6427869200706482f,   0.8614784181118011f,
};
static const float fp4_values[16] = {
    0.0f,  0.0052083333333f,  0.6666666666667f,  1.0f,  0.3333333333333f,  0.5f,  0.1666666666667f,  0.25f,
    -0.0f, -0.0052083333333f, -0.6666666666667f, -1.0f, -0.3333333333333f, -0.5f, -0.1666666666667f, -0.25f,
};
static const float fp4_limits[7] = {0.00260416666667f, 0.0859375f,       0.20833333333333f, 0.29166666666667f,
                                    0.4166666666667f,  0.5833333333333f, 0.83333333333333f};
static const uint8_t fp4_codes[8] = {0, 1, 6, 7, 4, 5, 2, 3}; /* by magnitude */

const float *four_bit_map(FourBitKind kind) { return kind == FOUR_BIT_NF4 ? nf4_values : fp4_values; }

static float float_at(const void *array, int64_t i) {
    float value;
    memcpy(&value, (const uint8_t *)array + (size_t)i * sizeof value, sizeof value);
    return value;
}

/* Each step is rounded to float32, as bitsandbytes does. */
float four_bit_scale(const FourBit *from, int64_t i) {
    if (from->absmax) return float_at(from->absmax, i);
    float scaled = float_at(from->nested_map, from->absmax_codes[i]) * float_at(from->nested_absmax, i / from->nested_block);
    return scaled + from->offset;
}

void four_bit_scales(const FourBit *from, int64_t first, int64_t n, float *scales) {
    if (from->absmax) memcpy(scales, (const char *)from->absmax + (size_t)first * sizeof *scales, (size_t)n * sizeof *scales);
    for (int64_t i = 0, end; !from->absmax && i < n; i = end) {
        int64_t nested = (first + i) / from->nested_block;
        float upper = float_at(from->nested_absmax, nested);
        end = MIN(n, (nested + 1) * from->nested_block - first);
        for (int64_t j = i; j < end; j++) {
            float scaled = float_at(from->nested_map, from->absmax_codes[first + j]) * upper;
            scales[j] = scaled + from->offset;
        }
    }
}

void four_bit_read(const FourBit *from, int64_t first, int64_t n, float *values) {
    for (int64_t i = 0; i < n;) {
        int64_t at = first + i, end = MIN(n, i + from->block - at % from->block);
        float scale = four_bit_scale(from, at / from->block);
        for (; i < end; i++) {
            uint8_t byte = from->packed[(first + i) / 2];
            values[i] = from->map[(first + i) % 2 ? byte & 15 : byte >> 4] * scale;
        }
    }
}

static uint8_t nf4_code(float x) {
    uint8_t code = 0;
    while (code < 15 && x > nf4_limits[code]) code++;
    return code;
}

/* Small positive values become -0, which is after 0 in bitsandbytes' order of the map. */
static uint8_t fp4_code(float x) {
    int i = 0;
    while (i < 7 && fabsf(x) > fp4_limits[i]) i++;
    return (uint8_t)(fp4_codes[i] | ((i > 0 ? x < 0 : x > 0) ? 8 : 0));
}

void four_bit_write(FourBitKind kind, const float *values, int64_t count, int64_t block, uint8_t *packed, float *absmax) {
    memset(packed, 0, (size_t)((count + 1) / 2));
    for (int64_t start = 0, b = 0; start < count; start += block, b++) {
        int64_t end = MIN(count, start + block);
        float most = 0;
        for (int64_t i = start; i < end; i++) most = fmaxf(most, fabsf(values[i]));
        float inverse = most > 0 ? 1 / most : 0;
        absmax[b] = most;
        for (int64_t i = start; i < end; i++) {
            float x = values[i] * inverse;
            packed[i / 2] |= (uint8_t)((kind == FOUR_BIT_NF4 ? nf4_code(x) : fp4_code(x)) << (i % 2 ? 0 : 4));
        }
    }
}

/* ---- nested statistics ---- */

/* The map has the middles of 2^k equal parts of [0.1, 1], times 10^(k - 6), for k = 0..6, with both signs; 0 and 1. Source: create_dynamic_map, whose
 * torch.linspace goes from both ends in fused steps of float32. */
static int map_part(int k, float *values) {
    int parts = 1 << k, half = (parts + 1) / 2;
    float step = (1.0f - 0.1f) / (float)parts, ends[65];
    for (int i = 0; i <= parts; i++) ends[i] = i < half ? fmaf(step, (float)i, 0.1f) : fmaf(-step, (float)(parts - i), 1.0f);
    for (int i = 0; i < parts; i++) values[i] = (ends[i] + ends[i + 1]) / 2;
    return parts;
}

void dynamic_map(float map[256]) {
    static const double powers[7] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    float part[64];
    int n = 0;
    for (int k = 0; k < 7; k++) {
        int parts = map_part(k, part);
        for (int i = 0; i < parts; i++, n++) {
            float value = (float)powers[k] * part[i];
            map[128 + n] = value;
            map[126 - n] = -value;
        }
    }
    map[127] = 0;
    map[255] = 1;
}

static uint8_t dynamic_nearest(const float *map, float x) {
    int low = 0, high = 255;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (x < map[middle])
            high = middle;
        else
            low = middle;
    }
    return (uint8_t)(x - map[low] < map[high] - x ? low : high);
}

void four_bit_nest(const float *absmax, int64_t n, uint8_t *codes, float *nested_absmax, float *offset) {
    float map[256];
    double sum = 0;
    dynamic_map(map);
    for (int64_t i = 0; i < n; i++) sum += (double)absmax[i];
    *offset = n ? (float)(sum / (double)n) : 0;
    for (int64_t start = 0; start < n; start += FOUR_BIT_NESTED) {
        int64_t end = MIN(n, start + FOUR_BIT_NESTED);
        float most = 0;
        for (int64_t i = start; i < end; i++) most = fmaxf(most, fabsf(absmax[i] - *offset));
        float inverse = most > 0 ? 1 / most : 0;
        nested_absmax[start / FOUR_BIT_NESTED] = most;
        for (int64_t i = start; i < end; i++) codes[i] = dynamic_nearest(map, (absmax[i] - *offset) * inverse);
    }
}
