/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's first formats: blocks of 32 with a scale, and for _1 a minimum, in float16. Byte j of the codes has element j in its low half and element
 * j + 16 in its high half; the fifth bits of q5_* are in a word before them, bit i for element i. */
#include "lib/tensor/quant/quant_parts.h"

#include <math.h>

enum { HALF_BLOCK = SMALL_BLOCK / 2 };

/* ---- reading ---- */

void q8_0_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 34, values += SMALL_BLOCK) {
        float d = half_at(blocks);
        for (int i = 0; i < SMALL_BLOCK; i++) values[i] = (float)(int8_t)blocks[2 + i] * d;
    }
}

void q4_0_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 18, values += SMALL_BLOCK) {
        float d = half_at(blocks);
        for (int i = 0; i < HALF_BLOCK; i++) {
            values[i] = (float)((blocks[2 + i] & 15) - 8) * d;
            values[i + HALF_BLOCK] = (float)((blocks[2 + i] >> 4) - 8) * d;
        }
    }
}

void q4_1_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 20, values += SMALL_BLOCK) {
        float d = half_at(blocks), m = half_at(blocks + 2);
        for (int i = 0; i < HALF_BLOCK; i++) {
            values[i] = (float)(blocks[4 + i] & 15) * d + m;
            values[i + HALF_BLOCK] = (float)(blocks[4 + i] >> 4) * d + m;
        }
    }
}

static uint32_t fifth_bits(const uint8_t *at) {
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* Code of element i of a block of 5 bits; packed: the halves of bytes. */
static int five_bits(const uint8_t *packed, uint32_t fifth, int i) {
    int low = i < HALF_BLOCK ? packed[i] & 15 : packed[i - HALF_BLOCK] >> 4;
    return low | (int)((fifth >> i) & 1) << 4;
}

void q5_0_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 22, values += SMALL_BLOCK) {
        float d = half_at(blocks);
        uint32_t fifth = fifth_bits(blocks + 2);
        for (int i = 0; i < SMALL_BLOCK; i++) values[i] = (float)(five_bits(blocks + 6, fifth, i) - 16) * d;
    }
}

void q5_1_read(const uint8_t *blocks, int64_t n, float *values) {
    for (int64_t b = 0; b < n; b++, blocks += 24, values += SMALL_BLOCK) {
        float d = half_at(blocks), m = half_at(blocks + 2);
        uint32_t fifth = fifth_bits(blocks + 4);
        for (int i = 0; i < SMALL_BLOCK; i++) values[i] = (float)five_bits(blocks + 8, fifth, i) * d + m;
    }
}

/* ---- writing ---- */

void q8_0_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    (void)importance;
    for (int64_t b = 0; b < count / SMALL_BLOCK; b++, blocks += 34, values += SMALL_BLOCK) {
        float d = fabsf(quant_largest(values, SMALL_BLOCK)) / 127, inverse = d != 0 ? 1 / d : 0;
        half_put(blocks, d);
        for (int i = 0; i < SMALL_BLOCK; i++) blocks[2 + i] = (uint8_t)(int8_t)fmaxf(-127, fminf(127, roundf(values[i] * inverse)));
    }
}

static int truncated(float value, int most) { return value >= (float)most ? most : value > 0 ? (int)value : 0; }

static void pack_halves(const uint8_t *codes, uint8_t *packed) {
    for (int i = 0; i < HALF_BLOCK; i++) packed[i] = (uint8_t)((codes[i] & 15) | (codes[i + HALF_BLOCK] & 15) << 4);
}

static void pack_fifth_bits(const uint8_t *codes, uint8_t *at) {
    uint32_t bits = 0;
    for (int i = 0; i < SMALL_BLOCK; i++) bits |= (uint32_t)(codes[i] >> 4) << i;
    memcpy(at, &bits, sizeof bits);
}

/* Codes 0..2 levels - 1 of value = d * (code - levels). row_mean: of squares, for importance. */
static float symmetric_block(int levels, const float *x, const float *importance, float row_mean, uint8_t *codes) {
    float weights[SMALL_BLOCK];
    if (importance) {
        quant_weigh(x, importance, row_mean, SMALL_BLOCK, weights);
        return quant_search_symmetric(levels, x, weights, SMALL_BLOCK, codes);
    }
    float d = quant_largest(x, SMALL_BLOCK) / (float)-levels, inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < SMALL_BLOCK; i++) codes[i] = (uint8_t)truncated(x[i] * inverse + ((float)levels + 0.5f), 2 * levels - 1);
    return d;
}

/* Codes 0..levels of value = d * code + *m. */
static float affine_block(int levels, const float *x, const float *importance, float row_mean, uint8_t *codes, float *m) {
    float weights[SMALL_BLOCK], max = x[0], min = x[0];
    if (importance) {
        const AffineSearch search = {levels, -0.9f, 0.05f, 36, false};
        quant_weigh(x, importance, row_mean, SMALL_BLOCK, weights);
        float d = quant_search_affine(&search, x, weights, SMALL_BLOCK, codes, m);
        *m = -*m;
        return d;
    }
    for (int i = 1; i < SMALL_BLOCK; i++) {
        min = fminf(min, x[i]);
        max = fmaxf(max, x[i]);
    }
    float d = (max - min) / (float)levels, inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < SMALL_BLOCK; i++) codes[i] = (uint8_t)truncated((x[i] - min) * inverse + 0.5f, levels);
    *m = min;
    return d;
}

static float row_mean_of_squares(const float *values, int64_t count, const float *importance) {
    return importance && count ? quant_sum_of_squares(values, count) / (float)count : 0;
}

/* One row of a format of 4 or 5 bits. */
static void write_row(int bits, bool affine, const float *values, int64_t count, const float *importance, uint8_t *at) {
    float mean = row_mean_of_squares(values, count, importance);
    for (int64_t b = 0; b < count / SMALL_BLOCK; b++, values += SMALL_BLOCK) {
        uint8_t codes[SMALL_BLOCK];
        const float *weights = importance ? importance + b * SMALL_BLOCK : NULL;
        float m = 0, d = affine ? affine_block((1 << bits) - 1, values, weights, mean, codes, &m)
                                : symmetric_block(1 << (bits - 1), values, weights, mean, codes);
        half_put(at, d);
        at += 2;
        if (affine) {
            half_put(at, m);
            at += 2;
        }
        if (bits == 5) {
            pack_fifth_bits(codes, at);
            at += 4;
        }
        pack_halves(codes, at);
        at += HALF_BLOCK;
    }
}

void q4_0_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    write_row(4, false, values, count, importance, blocks);
}
void q4_1_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    write_row(4, true, values, count, importance, blocks);
}
void q5_0_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    write_row(5, false, values, count, importance, blocks);
}
void q5_1_write(const float *values, int64_t count, const float *importance, uint8_t *blocks) {
    write_row(5, true, values, count, importance, blocks);
}
