/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's K formats: super-blocks of 256 in groups of 16 or 32. Scales of groups are small integers times a float16 of the super-block. */
#include "lib/tensor/quant/quant_parts.h"

#include <math.h>

/* ---- codes of 2 and 3 bits: byte 32 n + l has elements 128 n + 32 j + l, j = 0..3, in bits 2 j ---- */

enum { FINE_GROUP = 16, FINE_GROUPS = SUPER_BLOCK / FINE_GROUP, GROUP = 32, GROUPS = SUPER_BLOCK / GROUP };

static int two_bits(const uint8_t *qs, int i) { return (qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3; }

static void pack_two_bits(const uint8_t *codes, uint8_t *qs) {
    memset(qs, 0, SUPER_BLOCK / 4);
    for (int i = 0; i < SUPER_BLOCK; i++) qs[i / 128 * 32 + i % 32] |= (uint8_t)((codes[i] & 3) << (i % 128 / 32 * 2));
}

/* q2_k: scales (16 bytes: scale in the low half, minimum in the high one), codes (64), d, dmin */
void q2_k_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 84, values += SUPER_BLOCK) {
        float d = half_at(blocks + 80), dmin = half_at(blocks + 82);
        for (int g = 0; g < FINE_GROUPS; g++) {
            float scale = d * (float)(blocks[g] & 15), min = dmin * (float)(blocks[g] >> 4);
            for (int i = g * FINE_GROUP; i < (g + 1) * FINE_GROUP; i++) values[i] = scale * (float)two_bits(blocks + 16, i) - min;
        }
    }
}

/* q3_k: third bits (32 bytes: bit i / 32 of byte i % 32, set for codes from 0), codes (64), scales (12), d. Scale k has its low 4 bits in byte k % 8
 * and its high 2 in byte 8 + k % 4; 32 is subtracted. */
static int q3_k_scale(const uint8_t *scales, int k) {
    int low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4;
    return (low | ((scales[8 + k % 4] >> (k / 4 * 2)) & 3) << 4) - 32;
}

void q3_k_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 110, values += SUPER_BLOCK) {
        float d = half_at(blocks + 108);
        for (int g = 0; g < FINE_GROUPS; g++) {
            float scale = d * (float)q3_k_scale(blocks + 96, g);
            for (int i = g * FINE_GROUP; i < (g + 1) * FINE_GROUP; i++) {
                int above = (blocks[i % 32] >> (i / 32)) & 1;
                values[i] = scale * (float)(two_bits(blocks + 32, i) - (above ? 0 : 4));
            }
        }
    }
}

/* ---- 4 and 5 bits: d, dmin, 12 bytes of scales and minima of 6 bits, codes ---- */

static void six_bits(const uint8_t *s, int k, int *scale, int *min) {
    if (k < 4) {
        *scale = s[k] & 63;
        *min = s[k + 4] & 63;
    } else {
        *scale = (s[k + 4] & 15) | (s[k - 4] >> 6) << 4;
        *min = s[k + 4] >> 4 | (s[k] >> 6) << 4;
    }
}

static void pack_six_bits(const uint8_t *scales, const uint8_t *mins, uint8_t *s) {
    memset(s, 0, 12);
    for (int k = 0; k < 4; k++) {
        s[k] = (uint8_t)(scales[k] | (scales[k + 4] >> 4) << 6);
        s[k + 4] = (uint8_t)(mins[k] | (mins[k + 4] >> 4) << 6);
        s[k + 8] = (uint8_t)((scales[k + 4] & 15) | (mins[k + 4] & 15) << 4);
    }
}

/* Code of element i: the low 4 bits; chunks of 64 share 32 bytes. */
static int four_bits(const uint8_t *qs, int i) {
    int byte = qs[i / 64 * 32 + i % 32];
    return i % 64 < 32 ? byte & 15 : byte >> 4;
}

void q4_k_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 144, values += SUPER_BLOCK) {
        float d = half_at(blocks), dmin = half_at(blocks + 2);
        for (int g = 0; g < GROUPS; g++) {
            int scale, min;
            six_bits(blocks + 4, g, &scale, &min);
            float s = d * (float)scale, m = dmin * (float)min;
            for (int i = g * GROUP; i < (g + 1) * GROUP; i++) values[i] = s * (float)four_bits(blocks + 16, i) - m;
        }
    }
}

/* The fifth bits are 32 bytes before the codes: bit g of byte i % 32 for group g. */
void q5_k_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 176, values += SUPER_BLOCK) {
        float d = half_at(blocks), dmin = half_at(blocks + 2);
        for (int g = 0; g < GROUPS; g++) {
            int scale, min;
            six_bits(blocks + 4, g, &scale, &min);
            float s = d * (float)scale, m = dmin * (float)min;
            for (int i = g * GROUP; i < (g + 1) * GROUP; i++) {
                int fifth = (blocks[16 + i % 32] >> g) & 1;
                values[i] = s * (float)(four_bits(blocks + 48, i) + 16 * fifth) - m;
            }
        }
    }
}

/* q6_k: low 4 bits (128 bytes), high 2 bits (64), int8 scales of groups of 16, d. Per half of 128 elements, quarter j of it in 32 bytes: low bits of
 * quarters 0 and 2 share bytes, and those of 1 and 3; high bits of quarter j are bits 2 j. */
static int q6_k_code(const uint8_t *block, int i) {
    int half = i / 128, quarter = i % 128 / 32, l = i % 32;
    int byte = block[64 * half + 32 * (quarter & 1) + l], high = block[128 + 32 * half + l] >> (2 * quarter);
    return ((quarter < 2 ? byte & 15 : byte >> 4) | (high & 3) << 4) - 32;
}

void q6_k_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 210, values += SUPER_BLOCK) {
        float d = half_at(blocks + 208);
        for (int i = 0; i < SUPER_BLOCK; i++) values[i] = d * (float)(int8_t)blocks[192 + i / FINE_GROUP] * (float)q6_k_code(blocks, i);
    }
}

/* ---- writing ---- */

/* The integer scales of a super-block's groups, chosen as the nearest to scales / unit, unit = largest / levels. Returns the unit. */
static float round_scales(int levels, const float *scales, int n, uint8_t *rounded) {
    float max = 0;
    for (int i = 0; i < n; i++) max = fmaxf(max, scales[i]);
    float inverse = max > 0 ? (float)levels / max : 0;
    for (int i = 0; i < n; i++) rounded[i] = (uint8_t)clamp_int(nearest_int(inverse * scales[i]), 0, levels);
    return max > 0 ? max / (float)levels : 0;
}

/* How a K format with minima is searched. */
typedef struct MinFormat {
    int group;           /* elements of a group */
    int scale_levels;    /* of the integer scales */
    AffineSearch plain;  /* without importance */
    AffineSearch guided; /* with it */
    float variance;      /* factor of the mean square of the super-block, for importance */
} MinFormat;

static void plain_weights(const MinFormat *format, const float *x, float *weights) {
    float base = format->plain.absolute ? 0 : sqrtf(quant_sum_of_squares(x, format->group) / (float)format->group);
    for (int i = 0; i < format->group; i++) weights[i] = base + fabsf(x[i]);
}

/* Codes of a super-block, and the integer scales and minima of its groups; d and dmin are rounded to float16. */
static void search_with_minima(const MinFormat *format, const float *x, const float *importance, uint8_t *codes, uint8_t *scales, uint8_t *mins,
                               float *d, float *dmin) {
    int n = SUPER_BLOCK / format->group;
    float found[FINE_GROUPS], found_min[FINE_GROUPS], sums[FINE_GROUPS];
    float variance = importance ? format->variance * quant_sum_of_squares(x, SUPER_BLOCK) / (float)SUPER_BLOCK : 0;
    for (int g = 0; g < n; g++) {
        float weights[GROUP];
        const float *group = x + g * format->group;
        if (importance)
            quant_weigh(group, importance + g * format->group, variance, format->group, weights);
        else
            plain_weights(format, group, weights);
        sums[g] = 0;
        for (int i = 0; i < format->group; i++) sums[g] += weights[i];
        const AffineSearch *search = importance ? &format->guided : &format->plain;
        found[g] = quant_search_affine(search, group, weights, format->group, codes + g * format->group, &found_min[g]);
    }
    if (importance) {
        *d = quant_search_positive(format->scale_levels, found, sums, n, scales);
        *dmin = quant_search_positive(format->scale_levels, found_min, sums, n, mins);
    } else {
        *d = round_scales(format->scale_levels, found, n, scales);
        *dmin = round_scales(format->scale_levels, found_min, n, mins);
    }
    *d = f16_to_float(float_to_f16(*d));
    *dmin = f16_to_float(float_to_f16(*dmin));
}

/* Codes again, from the rounded scales. */
static void codes_again(const MinFormat *format, const float *x, const uint8_t *scales, const uint8_t *mins, float d, float dmin, uint8_t *codes) {
    for (int i = 0; i < SUPER_BLOCK; i++) {
        float scale = d * (float)scales[i / format->group];
        if (scale == 0) continue;
        float min = dmin * (float)mins[i / format->group];
        codes[i] = (uint8_t)clamp_int(nearest_int((x[i] + min) / scale), 0, format->plain.levels);
    }
}

void q2_k_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    static const MinFormat format = {FINE_GROUP, 15, {3, -0.5f, 0.1f, 15, true}, {3, -0.9f, 0.05f, 36, false}, 1};
    for (int64_t b = 0; b < count / SUPER_BLOCK; b++, blocks += 84, values += SUPER_BLOCK) {
        uint8_t codes[SUPER_BLOCK], scales[FINE_GROUPS], mins[FINE_GROUPS];
        float d, dmin;
        search_with_minima(&format, values, importance ? importance + b * SUPER_BLOCK : NULL, codes, scales, mins, &d, &dmin);
        codes_again(&format, values, scales, mins, d, dmin, codes);
        for (int g = 0; g < FINE_GROUPS; g++) blocks[g] = (uint8_t)(scales[g] | mins[g] << 4);
        pack_two_bits(codes, blocks + 16);
        half_put(blocks + 80, d);
        half_put(blocks + 82, dmin);
    }
}

static void write_4_or_5(const MinFormat *format, const float *x, const float *importance, uint8_t *block) {
    uint8_t codes[SUPER_BLOCK], scales[GROUPS], mins[GROUPS];
    float d, dmin;
    bool five = format->plain.levels == 31;
    search_with_minima(format, x, importance, codes, scales, mins, &d, &dmin);
    codes_again(format, x, scales, mins, d, dmin, codes);
    half_put(block, d);
    half_put(block + 2, dmin);
    pack_six_bits(scales, mins, block + 4);
    uint8_t *fifth = block + 16, *qs = block + (five ? 48 : 16);
    memset(fifth, 0, five ? 160 : 128);
    for (int i = 0; i < SUPER_BLOCK; i++) {
        qs[i / 64 * 32 + i % 32] |= (uint8_t)((codes[i] & 15) << (i % 64 < 32 ? 0 : 4));
        if (five) fifth[i % 32] |= (uint8_t)((codes[i] >> 4) << (i / GROUP));
    }
}

void q4_k_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    static const MinFormat format = {GROUP, 63, {15, -1, 0.1f, 20, false}, {15, -0.9f, 0.05f, 36, false}, 2};
    for (int64_t b = 0; b < count / SUPER_BLOCK; b++)
        write_4_or_5(&format, values + b * SUPER_BLOCK, importance ? importance + b * SUPER_BLOCK : NULL, blocks + b * 144);
}

void q5_k_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    static const MinFormat format = {GROUP, 63, {31, -0.5f, 0.1f, 15, false}, {31, -0.9f, 0.05f, 36, false}, 2};
    for (int64_t b = 0; b < count / SUPER_BLOCK; b++)
        write_4_or_5(&format, values + b * SUPER_BLOCK, importance ? importance + b * SUPER_BLOCK : NULL, blocks + b * 176);
}

/* The scale of a group for codes -4..3, which change one by one as long as the error, weighted with x^2, falls. codes: plus 4. */
static float q3_k_search(const float *x, uint8_t *codes) {
    float largest = quant_largest(x, FINE_GROUP), lx = 0, l2 = 0;
    int chosen[FINE_GROUP];
    memset(codes, 0, FINE_GROUP);
    if (fabsf(largest) < QUANT_ZERO) return 0;
    float inverse = -4 / largest;
    for (int i = 0; i < FINE_GROUP; i++) {
        float w = x[i] * x[i];
        chosen[i] = clamp_int(nearest_int(inverse * x[i]), -4, 3);
        lx += w * x[i] * (float)chosen[i];
        l2 += w * (float)chosen[i] * (float)chosen[i];
    }
    bool changed = true;
    for (int round = 0; round < 5 && changed; round++) {
        changed = false;
        for (int i = 0; i < FINE_GROUP; i++) {
            float w = x[i] * x[i], old = (float)chosen[i], other_lx = lx - w * x[i] * old;
            if (!(other_lx > 0)) continue;
            float other_l2 = l2 - w * old * old;
            int code = clamp_int(nearest_int(x[i] * other_l2 / other_lx), -4, 3);
            if (code == chosen[i]) continue;
            other_lx += w * x[i] * (float)code;
            other_l2 += w * (float)code * (float)code;
            if (!(other_l2 > 0 && other_lx * other_lx * l2 > lx * lx * other_l2)) continue;
            chosen[i] = code;
            lx = other_lx;
            l2 = other_l2;
            changed = true;
        }
    }
    for (int i = 0; i < FINE_GROUP; i++) codes[i] = (uint8_t)(chosen[i] + 4);
    return l2 > 0 ? lx / l2 : 0;
}

/* Integer scales -32..31 plus 32 of the groups; returns d. */
static float q3_k_scales(const float *x, const float *importance, uint8_t *codes, uint8_t *rounded) {
    float scales[FINE_GROUPS], sums[FINE_GROUPS], weights[FINE_GROUP];
    float variance = importance ? 2 * quant_sum_of_squares(x, SUPER_BLOCK) / (float)SUPER_BLOCK : 0;
    for (int g = 0; g < FINE_GROUPS; g++) {
        const float *group = x + g * FINE_GROUP;
        if (!importance) {
            scales[g] = q3_k_search(group, codes + g * FINE_GROUP);
            continue;
        }
        quant_weigh(group, importance + g * FINE_GROUP, variance, FINE_GROUP, weights);
        sums[g] = 0;
        for (int i = 0; i < FINE_GROUP; i++) sums[g] += weights[i];
        scales[g] = quant_search_symmetric(4, group, weights, FINE_GROUP, codes + g * FINE_GROUP);
    }
    if (importance) return quant_search_symmetric(32, scales, sums, FINE_GROUPS, rounded);
    float largest = quant_largest(scales, FINE_GROUPS), inverse = largest != 0 ? -32 / largest : 0;
    for (int g = 0; g < FINE_GROUPS; g++) rounded[g] = largest != 0 ? (uint8_t)(clamp_int(nearest_int(inverse * scales[g]), -32, 31) + 32) : 0;
    return largest != 0 ? 1 / inverse : 0;
}

void q3_k_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    for (int64_t b = 0; b < count / SUPER_BLOCK; b++, blocks += 110, values += SUPER_BLOCK) {
        uint8_t codes[SUPER_BLOCK], rounded[FINE_GROUPS];
        half_put(blocks + 108, q3_k_scales(values, importance ? importance + b * SUPER_BLOCK : NULL, codes, rounded));
        float d = half_at(blocks + 108);
        memset(blocks, 0, 108);
        for (int k = 0; k < FINE_GROUPS; k++) {
            blocks[96 + k % 8] |= (uint8_t)((rounded[k] & 15) << (k < 8 ? 0 : 4));
            blocks[104 + k % 4] |= (uint8_t)((rounded[k] >> 4) << (k / 4 * 2));
        }
        for (int i = 0; i < SUPER_BLOCK; i++) {
            float scale = d * (float)(rounded[i / FINE_GROUP] - 32);
            if (scale != 0) codes[i] = (uint8_t)(clamp_int(nearest_int(values[i] / scale), -4, 3) + 4);
            blocks[i % 32] |= (uint8_t)((codes[i] >> 2) << (i / 32));
        }
        pack_two_bits(codes, blocks + 32);
    }
}

void q6_k_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    for (int64_t b = 0; b < count / SUPER_BLOCK; b++, blocks += 210, values += SUPER_BLOCK) {
        uint8_t codes[SUPER_BLOCK];
        float scales[FINE_GROUPS];
        for (int g = 0; g < FINE_GROUPS; g++) {
            const float *weights = importance ? importance + b * SUPER_BLOCK + g * FINE_GROUP : NULL;
            scales[g] = quant_search_symmetric(32, values + g * FINE_GROUP, weights, FINE_GROUP, codes + g * FINE_GROUP);
        }
        float largest = quant_largest(scales, FINE_GROUPS), inverse = -128 / largest;
        memset(blocks, 0, 210);
        if (fabsf(largest) < QUANT_ZERO) continue;
        half_put(blocks + 208, 1 / inverse);
        float d = half_at(blocks + 208);
        for (int g = 0; g < FINE_GROUPS; g++) blocks[192 + g] = (uint8_t)(int8_t)clamp_int(nearest_int(inverse * scales[g]), -128, 127);
        for (int i = 0; i < SUPER_BLOCK; i++) {
            float scale = d * (float)(int8_t)blocks[192 + i / FINE_GROUP];
            if (scale != 0) codes[i] = (uint8_t)(clamp_int(nearest_int(values[i] / scale), -32, 31) + 32);
            int half = i / 128, quarter = i % 128 / 32, l = i % 32;
            blocks[64 * half + 32 * (quarter & 1) + l] |= (uint8_t)((codes[i] & 15) << (quarter < 2 ? 0 : 4));
            blocks[128 + 32 * half + l] |= (uint8_t)((codes[i] >> 4) << (2 * quarter));
        }
    }
}
