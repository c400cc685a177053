/* SPDX-License-Identifier: Apache-2.0 */
/* Branch-free elementary functions of floats, written so that loops over them vectorise.
 *
 *     for (int64_t i = 0; i < n; i++) p[i] = fast_exp(s[i] - largest);
 *
 * The polynomials interpolate the functions at Chebyshev nodes. NaN in gives NaN out.
 */
#ifndef TUNE_VECTOR_MATH_H
#define TUNE_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>

static inline float float_of_bits(uint32_t bits) {
    union {
        uint32_t u;
        float f;
    } pun = {.u = bits};
    return pun.f;
}

static inline uint32_t bits_of_float(float value) {
    union {
        float f;
        uint32_t u;
    } pun = {.f = value};
    return pun.u;
}

/* e^x, relative error below 2e-7; 0 below 2^-125 (x < -86.64), infinity above the largest float. e^0 is exactly 1. */
static inline float fast_exp(float x) {
    const float magic = 12582912.0f; /* 1.5 x 2^23: adding it rounds to an integer, which is then in the low bits */
    float bounded = x > 89.0f ? 89.0f : x;
    bounded = bounded < -87.0f ? -87.0f : bounded;
    float shifted = bounded * 1.44269504f + magic, n = shifted - magic;
    float r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f; /* ln 2 in two parts: n times the first is exact */
    float p = 0.00139262508f;
    p = p * r + 0.00836323288f;
    p = p * r + 0.0416665542f;
    p = p * r + 0.166665767f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    float half_scale = float_of_bits((bits_of_float(shifted) - 0x4b400000u + 126u) << 23); /* 2^(n - 1): 2^128 is not a float */
    float result = p * half_scale * 2.0f;
    return x < -86.64f ? 0.0f : result;
}

/* Natural logarithm of x > 0, relative error below 1e-6 except next to 1, where the absolute error is below 1e-7. 0 gives about -88. With x = m 2^e
 * and m within a factor of sqrt 2 of 1: log m = 2 atanh((m - 1) / (m + 1)), by its series. */
static inline float fast_log(float x) {
    const uint32_t half = 0x3f3504f3u; /* the bits of sqrt(1/2) */
    uint32_t bits = bits_of_float(x), exponent = (bits - half) & 0xff800000u;
    float m = float_of_bits(bits - exponent), e = (float)((int32_t)exponent >> 23);
    float z = (m - 1.0f) / (m + 1.0f), square = z * z;
    float p = 0.111111111f;
    p = p * square + 0.142857143f;
    p = p * square + 0.2f;
    p = p * square + 0.333333333f;
    p = p * square + 1.0f;
    return e * 0.693147181f + 2.0f * z * p;
}

static inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

/* Relative error below 4e-7. */
static inline float fast_tanh(float x) {
    float size = fabsf(x), square = x * x;
    float e = fast_exp(-2.0f * size), large = (1.0f - e) / (1.0f + e);
    float p = 0.0179207922f;
    p = p * square - 0.0532974722f;
    p = p * square + 0.133285732f;
    p = p * square - 0.333332139f;
    p = p * square + 1.0f;
    return size < 0.45f ? x * p : copysignf(large, x);
}

/* Within 2 units of the last place: with E = e^(-2|x|) - 1 it is -E / (E + 2), and both sums are rounded once. Slower than fast_tanh. */
static inline float exact_tanh(float x) {
    const float magic = 12582912.0f;
    float size = fabsf(x), bounded = size > 10.0f ? 10.0f : size;
    float shifted = bounded * -2.88539008f + magic, n = shifted - magic;
    float r = -2.0f * bounded - n * 0.693147181f;
    float p = 0.00138824690f;
    p = p * r + 0.00836671419f;
    p = p * r + 0.0416672063f;
    p = p * r + 0.166665422f;
    p = p * r + 0.499999981f;
    p = p * (r * r) + r;
    float scale = float_of_bits((bits_of_float(shifted) - 0x4b400000u + 127u) << 23);
    return copysignf((p * scale + (scale - 1.0f)) / (p * scale + (scale + 1.0f)), x);
}

/* Distribution function of the standard normal, by e^(z^2) erfc(z) = t P(t), t = 1 / (1 + z / 2). Relative error below 1e-6 where it is above 1e-30.
 */
static inline float fast_normal_cdf(float x) {
    float z = fabsf(x) * 0.707106781f, t = 1.0f / (1.0f + 0.5f * z);
    float p = -0.0592518614f;
    p = p * t + 0.285567482f;
    p = p * t - 0.489442964f;
    p = p * t + 0.280815457f;
    p = p * t - 0.0286130136f;
    p = p * t + 0.203550254f;
    p = p * t + 0.242885177f;
    p = p * t + 0.282404593f;
    p = p * t + 0.282084837f;
    float tail = 0.5f * p * t * fast_exp(-0.5f * x * x);
    return x < 0.0f ? tail : 1.0f - tail;
}

/* e^x in double for x <= 0, relative error below 1e-15; 0 below -708. */
static inline double fast_exp_below(double x) {
    const double magic = 6755399441055744.0; /* 1.5 x 2^52: as in fast_exp */
    double bounded = x < -709.0 ? -709.0 : x;
    union {
        double f;
        uint64_t u;
    } shifted = {.f = bounded * 1.4426950408889634 + magic}, scale;
    double n = shifted.f - magic;
    double r = bounded - n * 0.69314718036912382; /* ln 2 in two parts: n times the first is exact */
    r = r - n * 1.9082149292705877e-10;
    double p = 1.0 / 479001600; /* Taylor series: the next term is below 2e-16 where |r| <= ln 2 / 2 */
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    scale.u = (shifted.u - 0x4338000000000000u + 1023u) << 52;
    return x < -708.0 ? 0.0 : p * scale.f;
}

#endif
