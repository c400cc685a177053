/* SPDX-License-Identifier: Apache-2.0 */
/* Values of quantised weights. Formats are read here 32 elements at a time, in loops that the compiler vectorises; the few others by
 * codes_read. Both give the same bits, so this file is compiled without fused multiply-adds, like lib/tensor/quant/. */
#include "lib/tensor/cpu/blocks.h"
#include "lib/tensor/quant/packing.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { UNIT = 32 }; /* elements */

static inline float half_of(const uint8_t *at) {
    uint16_t bits = (uint16_t)(at[0] | at[1] << 8);
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    return half_to_float(bits);
#endif
}

#if defined(__AVX2__)
/* 32 codes of 8 bits with their sign: scales[half] * code - mins[half]; mins NULL: none. */
static inline __attribute__((always_inline)) void bytes_scaled(__m256i codes, const float scales[2], const float *mins, float *restrict values) {
    const __m128i halves[2] = {_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i eight = _mm256_cvtepi8_epi32(i % 2 ? _mm_srli_si128(halves[i / 2], 8) : halves[i / 2]);
        __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(scales[i / 2]), _mm256_cvtepi32_ps(eight));
        _mm256_storeu_ps(values + 8 * i, mins ? _mm256_sub_ps(scaled, _mm256_set1_ps(mins[i / 2])) : scaled);
    }
}

/* Bits shift.. of 32 bytes, as many as `mask` has. */
static inline __m256i bits_at(const uint8_t *bytes, int shift, int mask) {
    __m256i words = _mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)bytes), _mm_cvtsi32_si128(shift));
    return _mm256_and_si256(words, _mm256_set1_epi8((char)mask));
}
#endif

/* ---- units of a block: number `u`, for formats with several ---- */

typedef void ReadUnit(const uint8_t *block, int u, float *restrict values);

static inline void q8_0_unit(const uint8_t *block, int u, float *restrict values) {
    float d = half_of(block);
    (void)u;
    for (int i = 0; i < UNIT; i++) values[i] = (float)(int8_t)block[2 + i] * d;
}

/* 32 elements, scale * (code - offset) + min: codes are the low halves of 16 bytes, then the high ones; bit i of `fifth` is the fifth bit of
 * element i. */
static inline __attribute__((always_inline)) void halves_scaled(const uint8_t *bytes, uint32_t fifth, int offset, float scale, const bool has_min,
                                                                float min, float *restrict values) {
#if defined(__AVX2__)
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
#pragma GCC unroll 4
    for (int i = 0; i < UNIT; i += 8) {
        __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + i % 16)));
        codes = i < UNIT / 2 ? _mm256_and_si256(codes, _mm256_set1_epi32(15)) : _mm256_srli_epi32(codes, 4);
        __m256i high = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int32_t)(fifth >> i)), lanes), _mm256_set1_epi32(1));
        codes = _mm256_sub_epi32(_mm256_or_si256(codes, _mm256_slli_epi32(high, 4)), _mm256_set1_epi32(offset));
        __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_set1_ps(scale));
        _mm256_storeu_ps(values + i, has_min ? _mm256_add_ps(scaled, _mm256_set1_ps(min)) : scaled);
    }
#else
    for (int i = 0; i < UNIT; i++) {
        float scaled = (float)(((bytes[i % 16] >> (i / 16 * 4) & 15) | (int)(fifth >> i & 1) << 4) - offset) * scale;
        values[i] = has_min ? scaled + min : scaled;
    }
#endif
}

static inline void q4_0_unit(const uint8_t *block, int u, float *restrict values) {
    (void)u;
    halves_scaled(block + 2, 0, 8, half_of(block), false, 0, values);
}

static inline void q4_1_unit(const uint8_t *block, int u, float *restrict values) {
    (void)u;
    halves_scaled(block + 4, 0, 0, half_of(block), true, half_of(block + 2), values);
}

static inline void q5_0_unit(const uint8_t *block, int u, float *restrict values) {
    uint32_t fifth;
    (void)u;
    memcpy(&fifth, block + 2, sizeof fifth);
    halves_scaled(block + 6, fifth, 16, half_of(block), false, 0, values);
}

static inline void q5_1_unit(const uint8_t *block, int u, float *restrict values) {
    uint32_t fifth;
    (void)u;
    memcpy(&fifth, block + 4, sizeof fifth);
    halves_scaled(block + 8, fifth, 0, half_of(block), true, half_of(block + 2), values);
}

static inline void q2_k_unit(const uint8_t *block, int u, float *restrict values) {
    const uint8_t *codes = block + 16 + u / 4 * UNIT;
    const int shift = u % 4 * 2;
    float scales[2], mins[2];
    for (int half = 0; half < 2; half++) {
        uint8_t both = block[2 * u + half];
        scales[half] = half_of(block + 80) * (float)(both & 15);
        mins[half] = half_of(block + 82) * (float)(both >> 4);
    }
#if defined(__AVX2__)
    bytes_scaled(bits_at(codes, shift, 3), scales, mins, values);
#else
    for (int i = 0; i < UNIT; i++) values[i] = scales[i / (UNIT / 2)] * (float)(codes[i] >> shift & 3) - mins[i / (UNIT / 2)];
#endif
}

static inline void q3_k_unit(const uint8_t *block, int u, float *restrict values) {
    const uint8_t *codes = block + 32 + u / 4 * UNIT, *packed = block + 96;
    const int shift = u % 4 * 2;
    float scales[2];
    for (int half = 0; half < 2; half++) {
        int k = 2 * u + half, low = k < 8 ? packed[k] & 15 : packed[k - 8] >> 4, high = packed[8 + k % 4] >> (k / 4 * 2) & 3;
        scales[half] = half_of(block + 108) * (float)((low | high << 4) - 32);
    }
#if defined(__AVX2__)
    __m256i third = _mm256_slli_epi16(bits_at(block, u, 1), 2);
    bytes_scaled(_mm256_sub_epi8(_mm256_or_si256(bits_at(codes, shift, 3), third), _mm256_set1_epi8(4)), scales, NULL, values);
#else
    for (int i = 0; i < UNIT; i++) values[i] = scales[i / (UNIT / 2)] * (float)((codes[i] >> shift & 3) + (block[i] >> u & 1) * 4 - 4);
#endif
}

/* Scale and minimum of group `u` of q4_k and q5_k. */
static inline void six_bits(const uint8_t *block, int u, float *scale, float *min) {
    const uint8_t *s = block + 4;
    int q = u < 4 ? s[u] & 63 : (s[u + 4] & 15) | (s[u - 4] >> 6) << 4, m = u < 4 ? s[u + 4] & 63 : s[u + 4] >> 4 | (s[u] >> 6) << 4;
    *scale = half_of(block) * (float)q;
    *min = half_of(block + 2) * (float)m;
}

static inline void q4_k_unit(const uint8_t *block, int u, float *restrict values) {
    const uint8_t *codes = block + 16 + u / 2 * UNIT;
    const int shift = u % 2 * 4;
    float scale, min;
    six_bits(block, u, &scale, &min);
#if defined(__AVX2__)
    bytes_scaled(bits_at(codes, shift, 15), (float[]){scale, scale}, (float[]){min, min}, values);
#else
    for (int i = 0; i < UNIT; i++) values[i] = scale * (float)(codes[i] >> shift & 15) - min;
#endif
}

static inline void q5_k_unit(const uint8_t *block, int u, float *restrict values) {
    const uint8_t *fifth = block + 16, *codes = block + 48 + u / 2 * UNIT;
    const int shift = u % 2 * 4;
    float scale, min;
    six_bits(block, u, &scale, &min);
#if defined(__AVX2__)
    __m256i high = _mm256_slli_epi16(bits_at(fifth, u, 1), 4);
    bytes_scaled(_mm256_or_si256(bits_at(codes, shift, 15), high), (float[]){scale, scale}, (float[]){min, min}, values);
#else
    for (int i = 0; i < UNIT; i++) values[i] = scale * (float)((codes[i] >> shift & 15) + (fifth[i] >> u & 1) * 16) - min;
#endif
}

static inline void q6_k_unit(const uint8_t *block, int u, float *restrict values) {
    const int half = u / 4, quarter = u % 4, shift = quarter / 2 * 4, high_shift = 2 * quarter;
    const uint8_t *low = block + 64 * half + quarter % 2 * UNIT, *high = block + 128 + UNIT * half;
    const int8_t *packed = (const int8_t *)block + 192 + 2 * u;
    const float d = half_of(block + 208), scales[2] = {d * (float)packed[0], d * (float)packed[1]};
#if defined(__AVX2__)
    __m256i codes = _mm256_or_si256(bits_at(low, shift, 15), _mm256_slli_epi16(bits_at(high, high_shift, 3), 4));
    bytes_scaled(_mm256_sub_epi8(codes, _mm256_set1_epi8(32)), scales, NULL, values);
#else
    for (int i = 0; i < UNIT; i++) values[i] = scales[i / (UNIT / 2)] * (float)(((low[i] >> shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
#endif
}

/* 32 integers of a table: those of the low halves of 16 bytes, then those of the high ones. */
static inline void halves_looked_up(const uint8_t *bytes, const int8_t table[16], float scale, float *restrict values) {
#if defined(__AVX2__)
    __m128i packed = _mm_loadu_si128((const __m128i *)bytes), mask = _mm_set1_epi8(15);
    __m256i codes = _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(packed, 4), mask), _mm_and_si128(packed, mask));
    __m256i looked_up = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), codes);
    bytes_scaled(looked_up, (float[]){scale, scale}, NULL, values);
#else
    for (int i = 0; i < UNIT; i++) values[i] = scale * (float)table[bytes[i % 16] >> (i / 16 * 4) & 15];
#endif
}

static const int8_t uneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}; /* of iq4_nl and iq4_xs */

static inline void iq4_nl_unit(const uint8_t *block, int u, float *restrict values) {
    (void)u;
    halves_looked_up(block + 2, uneven, half_of(block), values);
}

static inline void iq4_xs_unit(const uint8_t *block, int u, float *restrict values) {
    int high = (block[2] | block[3] << 8) >> (2 * u) & 3, low = block[4 + u / 2] >> (u % 2 * 4) & 15;
    halves_looked_up(block + 8 + u * UNIT / 2, uneven, half_of(block) * (float)((low | high << 4) - 32), values);
}

/* Twice the 4-bit floats, times half of the power of two. */
static inline void mxfp4_unit(const uint8_t *block, int u, float *restrict values) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    (void)u;
    halves_looked_up(block + 1, twice, float_of_bits(block[0] < 2 ? 0x00200000u << block[0] : (uint32_t)(block[0] - 1) << 23), values);
}

/* Reads elements first..first+n-1 of blocks of `units` units; the first and the last unit may be needed in part. */
static inline __attribute__((always_inline)) void units_read(ReadUnit *read, int64_t bytes, int units, const uint8_t *blocks, int64_t first,
                                                             int64_t n, float *values) {
    float part[UNIT];
    int64_t u = first / UNIT, skip = first % UNIT;
    for (; n > 0; u++, skip = 0) {
        int64_t taken = MIN(n, UNIT - skip);
        read(blocks + u / units * bytes, (int)(u % units), taken == UNIT ? values : part);
        if (taken < UNIT) memcpy(values, part + skip, (size_t)taken * sizeof *values);
        values += taken;
        n -= taken;
    }
}

/* ---- packings ---- */

/* 8 values from 4 bytes: lookups by the high half of each byte, then by the low one. */
#if defined(__AVX2__)
static inline void eight_looked_up(const uint8_t *bytes, const float *map, float scale, float *values) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)word), _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24));
    __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(map), codes), high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(map + 8), codes);
    __m256 looked_up = _mm256_blendv_ps(low, high, (__m256)_mm256_slli_epi32(codes, 28));
    _mm256_storeu_ps(values, _mm256_mul_ps(looked_up, _mm256_set1_ps(scale)));
}
#else
static inline void eight_looked_up(const uint8_t *bytes, const float *map, float scale, float *values) {
    for (int i = 0; i < 8; i++) values[i] = map[i % 2 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4] * scale;
}
#endif

static void four_bits_read(const FourBit *from, int64_t first, int64_t n, float *values) {
    for (int64_t i = 0; i < n;) {
        int64_t at = first + i, end = MIN(n, i + from->block - at % from->block);
        float scale = four_bit_scale(from, at / from->block);
        if (at % 2) values[i++] = from->map[from->packed[at / 2] & 15] * scale;
        for (; i + 8 <= end; i += 8) eight_looked_up(from->packed + (first + i) / 2, from->map, scale, values + i);
        for (; i < end; i++) values[i] = from->map[(first + i) % 2 ? from->packed[(first + i) / 2] & 15 : from->packed[(first + i) / 2] >> 4] * scale;
    }
}

/* Part of a row with one scale and zero, in bytes, or in halves of bytes from an even element on. */
static inline void bytes_read(const uint8_t *codes, int64_t n, bool is_signed, int zero, float scale, float *restrict values) {
    if (is_signed)
        for (int64_t i = 0; i < n; i++) values[i] = scale * (float)((int8_t)codes[i] - zero);
    else
        for (int64_t i = 0; i < n; i++) values[i] = scale * (float)(codes[i] - zero);
}

static inline void halves_read(const uint8_t *codes, int64_t n, int zero, float scale, float *restrict values) {
    int64_t i = 0;
#if defined(__AVX2__)
    for (; i + 8 <= n; i += 8) {
        uint32_t word;
        memcpy(&word, codes + i / 2, sizeof word);
        __m256i eight = _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        eight = _mm256_sub_epi32(_mm256_and_si256(eight, _mm256_set1_epi32(15)), _mm256_set1_epi32(zero));
        _mm256_storeu_ps(values + i, _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(eight)));
    }
#endif
    for (; i < n; i++) values[i] = scale * (float)((codes[i / 2] >> (i % 2 * 4) & 15) - zero);
}

static bool affine_is_fast(const AffineCodes *c) { return !c->groups && (c->bits == 8 || (c->bits == 4 && !c->is_signed && c->group % 2 == 0)); }

static void affine_read(const AffineCodes *c, int64_t first, int64_t n, float *values) {
    for (int64_t at = 0, some; at < n; at += some) {
        int64_t row = (first + at) / c->width, i = (first + at) % c->width, group = i / c->group;
        const uint8_t *line = c->codes + row * c->line;
        float scale = c->scales[row * c->n_groups + group];
        int zero = c->zeros ? c->zeros[row * c->n_groups + group] : c->zero;
        some = MIN(n - at, MIN(c->width, (group + 1) * c->group) - i);
        if (c->bits == 8) {
            bytes_read(line + i, some, c->is_signed, zero, scale, values + at);
        } else if (i % 2) {
            some = 1;
            values[at] = scale * (float)((line[i / 2] >> 4) - zero);
        } else
            halves_read(line + i / 2, some, zero, scale, values + at);
    }
}

/* An absmax divided by 127 beforehand gives the same bits as int8_row_read: a code times an absmax has 31 bits, so its quotient is 2^-32 of itself or
 * more away from where the rounding to float32 changes, and the error of double is far below that. */
static void int8_rows_read(const Int8Rows *rows, int64_t first, int64_t n, float *values) {
    for (int64_t at = 0, some; at < n; at += some) {
        int64_t row = (first + at) / rows->width;
        const int8_t *codes = rows->codes + first + at;
        double factor = (double)rows->absmax[row] / 127;
        int64_t i = 0;
        some = MIN(n - at, (row + 1) * rows->width - first - at);
#if defined(__FMA__)
        /* The factor as a sum of two floats: their product with a code is rounded once, but for an error of 2^-48 */
        const float high = (float)factor, low = (float)(factor - (double)high);
        for (; i + 8 <= some; i += 8) {
            __m256 eight = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(codes + i))));
            _mm256_storeu_ps(values + at + i, _mm256_fmadd_ps(eight, _mm256_set1_ps(high), _mm256_mul_ps(eight, _mm256_set1_ps(low))));
        }
#endif
        for (; i < some; i++) values[at + i] = (float)((double)codes[i] * factor);
    }
}

static void packing_read(const Packing *packing, int64_t first, int64_t n, float *values) {
    if (packing->four_bits)
        four_bits_read(packing->four_bits, first, n, values);
    else if (packing->affine && affine_is_fast(packing->affine))
        affine_read(packing->affine, first, n, values);
    else if (packing->int8_rows && packing->ordinary)
        int8_rows_read(packing->int8_rows, first, n, values);
    else
        packing->read(packing, first, n, values);
}

/* ---- any quantised dtype ---- */

static void values_round(float *values, int64_t n) {
    for (int64_t i = 0; i < n; i++) values[i] = float_of_bits((uint32_t)round_to_bf16(values[i]) << 16);
}

#define UNITS(id, name, bytes, units) \
    case DT_##id: units_read(name##_unit, bytes, units, elements, first, n, values); break
void ISA_FN(codes)(DType dtype, const void *elements, int64_t first, int64_t n, bool rounds, float *values) {
    switch (dtype) {
        UNITS(Q8_0, q8_0, 34, 1);
        UNITS(Q4_0, q4_0, 18, 1);
        UNITS(Q4_1, q4_1, 20, 1);
        UNITS(Q5_0, q5_0, 22, 1);
        UNITS(Q5_1, q5_1, 24, 1);
        UNITS(IQ4_NL, iq4_nl, 18, 1);
        UNITS(MXFP4, mxfp4, 17, 1);
        UNITS(IQ4_XS, iq4_xs, 136, 8);
        UNITS(Q2_K, q2_k, 84, 8);
        UNITS(Q3_K, q3_k, 110, 8);
        UNITS(Q4_K, q4_k, 144, 8);
        UNITS(Q5_K, q5_k, 176, 8);
        UNITS(Q6_K, q6_k, 210, 8);
    case DT_PACKED: packing_read(elements, first, n, values); break;
    default: codes_read(dtype, elements, first, n, rounds, values); return;
    }
    if (rounds) values_round(values, n);
}
#undef UNITS

const float *ISA_FN(weight_read)(const Tensor *weight, int64_t at, int64_t n, float *buffer) {
    if (!dtype_is_quantised(weight->dtype)) return run_read(weight, at, n, buffer);
    ISA_FN(codes)(weight->dtype, weight->elements, at, n, weight->storage->rounds, buffer);
    return buffer;
}
