/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of int8 with one scale, as in LLM.int8 (arXiv 2208.07339), and the 8-bit floats. */
#include "lib/tensor/quant/quant_parts.h"

#include <math.h>

void int8_row_read(const int8_t *codes, int64_t n, float absmax, float *values) {
    for (int64_t i = 0; i < n; i++) values[i] = (float)((double)codes[i] * (double)absmax / 127);
}

float int8_row_write(const float *values, int64_t n, int8_t *codes) {
    float absmax = 0;
    for (int64_t i = 0; i < n; i++) absmax = fmaxf(absmax, fabsf(values[i]));
    float factor = absmax > 0 ? 127 / absmax : 0;
    for (int64_t i = 0; i < n; i++) codes[i] = (int8_t)fmaxf(-127, fminf(127, rintf(values[i] * factor)));
    return absmax;
}

/* A float of an exponent and a fraction of the given widths, without infinities and NaN. */
static float small_float(unsigned bits, int fraction_bits, int bias) {
    int fraction = (int)(bits & ((1u << fraction_bits) - 1)), exponent = (int)((bits & 127) >> fraction_bits);
    float value = exponent ? ldexpf((float)(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits)
                           : ldexpf((float)fraction, 1 - bias - fraction_bits);
    return bits & 128 ? -value : value;
}

float e4m3_to_float(uint8_t bits) { return (bits & 127) == 127 ? (float)NAN : small_float(bits, 3, 7); }

float e5m2_to_float(uint8_t bits) { return f16_to_float((uint16_t)(bits << 8)); }

float e8m0_to_float(uint8_t bits) { return bits == 255 ? (float)NAN : ldexpf(1, bits - 127); }
