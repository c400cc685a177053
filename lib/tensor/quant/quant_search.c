/* SPDX-License-Identifier: Apache-2.0 */
/* The searches for the scale of a group that ggml's quantisers share. */
#include "lib/tensor/quant/quant_parts.h"

#include <math.h>

float quant_largest(const float *x, int n) {
    float largest = 0, magnitude = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) <= magnitude) continue;
        magnitude = fabsf(x[i]);
        largest = x[i];
    }
    return largest;
}

void quant_weigh(const float *x, const float *importance, float variance, int n, float *weights) {
    for (int i = 0; i < n; i++) weights[i] = importance[i] * sqrtf(variance + x[i] * x[i]);
}

float quant_sum_of_squares(const float *x, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

/* ---- affine ---- */

static float affine_error(const AffineSearch *search, const float *x, const float *weights, int n, const uint8_t *codes, float scale, float min) {
    float error = 0;
    for (int i = 0; i < n; i++) {
        float difference = scale * (float)codes[i] + min - x[i];
        error += weights[i] * (search->absolute ? fabsf(difference) : difference * difference);
    }
    return error;
}

static void affine_codes(const AffineSearch *search, const float *x, int n, float inverse, float min, uint8_t *codes) {
    for (int i = 0; i < n; i++) codes[i] = (uint8_t)clamp_int(nearest_int(inverse * (x[i] - min)), 0, search->levels);
}

/* The scale and the minimum of the least squared error for given codes. False: the codes do not determine them. */
static bool affine_fit(const float *x, const float *weights, int n, const uint8_t *codes, float sum_w, float sum_x, float *scale, float *min) {
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < n; i++) {
        float w = weights[i], l = (float)codes[i];
        sum_l += w * l;
        sum_l2 += w * l * l;
        sum_xl += w * l * x[i];
    }
    float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0)) return false;
    *scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    *min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (*min > 0) {
        *min = 0;
        *scale = sum_xl / sum_l2;
    }
    return true;
}

float quant_search_affine(const AffineSearch *search, const float *x, const float *weights, int n, uint8_t *codes, float *negative_min) {
    float min = x[0], max = x[0], sum_w = weights[0], sum_x = sum_w * x[0];
    uint8_t trial[SMALL_BLOCK];
    for (int i = 1; i < n; i++) {
        min = fminf(min, x[i]);
        max = fmaxf(max, x[i]);
        sum_w += weights[i];
        sum_x += weights[i] * x[i];
    }
    if (min > 0) min = 0;
    *negative_min = -min;
    if (!(max > min)) {
        memset(codes, 0, (size_t)n);
        return 0;
    }
    float levels = (float)search->levels, inverse = levels / (max - min), scale = 1 / inverse;
    affine_codes(search, x, n, inverse, min, codes);
    float best = affine_error(search, x, weights, n, codes, scale, min);
    for (int k = 0; k <= search->steps; k++) {
        float fitted, fitted_min;
        inverse = (search->least + search->step * (float)k + levels) / (max - min);
        affine_codes(search, x, n, inverse, min, trial);
        if (!affine_fit(x, weights, n, trial, sum_w, sum_x, &fitted, &fitted_min)) continue;
        float error = affine_error(search, x, weights, n, trial, fitted, fitted_min);
        if (!(error < best)) continue;
        memcpy(codes, trial, (size_t)n);
        best = error;
        scale = fitted;
        min = fitted_min;
    }
    *negative_min = -min;
    return scale;
}

/* ---- symmetric ---- */

typedef struct Fit {
    float lx, l2; /* sums of w * code * x and of w * code^2 */
} Fit;

static Fit symmetric_try(int levels, const float *x, const float *weights, int n, float inverse, uint8_t *codes) {
    Fit fit = {0, 0};
    for (int i = 0; i < n; i++) {
        int code = clamp_int(nearest_int(inverse * x[i]), -levels, levels - 1);
        float w = weights ? weights[i] : x[i] * x[i], l = (float)code;
        codes[i] = (uint8_t)(code + levels);
        fit.lx += w * x[i] * l;
        fit.l2 += w * l * l;
    }
    return fit;
}

float quant_search_symmetric(int levels, const float *x, const float *weights, int n, uint8_t *codes) {
    float largest = quant_largest(x, n);
    uint8_t trial[SMALL_BLOCK];
    if (fabsf(largest) < QUANT_ZERO) {
        memset(codes, 0, (size_t)n);
        return 0;
    }
    Fit fit = symmetric_try(levels, x, weights, n, -(float)levels / largest, codes);
    float scale = fit.l2 != 0 ? fit.lx / fit.l2 : 0, best = scale * fit.lx;
    for (int k = -9; k <= 9; k++) {
        if (k == 0) continue;
        fit = symmetric_try(levels, x, weights, n, -((float)levels + 0.1f * (float)k) / largest, trial);
        if (!(fit.l2 > 0 && fit.lx * fit.lx > best * fit.l2)) continue;
        memcpy(codes, trial, (size_t)n);
        scale = fit.lx / fit.l2;
        best = scale * fit.lx;
    }
    return scale;
}

/* ---- positive ---- */

static float positive_error(int levels, const float *x, const float *weights, int n, float inverse) {
    float error = 0, scale = 1 / inverse;
    for (int i = 0; i < n; i++) {
        int code = nearest_int(inverse * x[i]);
        float difference = x[i] - scale * (float)(code < levels ? code : levels);
        error += weights[i] * difference * difference;
    }
    return error;
}

/* Changes single codes as long as that lowers the error; one pass over the group. */
static bool positive_improve(int levels, const float *x, const float *weights, int n, uint8_t *codes, Fit *fit) {
    bool changed = false;
    for (int i = 0; i < n; i++) {
        float w = weights[i], old = (float)codes[i];
        Fit other = {fit->lx - w * x[i] * old, fit->l2 - w * old * old};
        if (!(other.lx > 0 && other.l2 > 0)) continue;
        int code = clamp_int(nearest_int(x[i] * other.l2 / other.lx), 0, levels);
        if (code == codes[i]) continue;
        other.lx += w * x[i] * (float)code;
        other.l2 += w * (float)code * (float)code;
        if (!(other.lx * other.lx * fit->l2 > fit->lx * fit->lx * other.l2)) continue;
        codes[i] = (uint8_t)code;
        *fit = other;
        changed = true;
    }
    return changed;
}

float quant_search_positive(int levels, const float *x, const float *weights, int n, uint8_t *codes) {
    float max = 0;
    for (int i = 0; i < n; i++) max = fmaxf(max, x[i]);
    if (max < QUANT_ZERO) {
        memset(codes, 0, (size_t)n);
        return 0;
    }
    float inverse = (float)levels / max, best = positive_error(levels, x, weights, n, inverse), chosen = inverse;
    for (int k = -4; k <= 4; k++) {
        if (k == 0) continue;
        inverse = (0.1f * (float)k + (float)levels) / max;
        float error = positive_error(levels, x, weights, n, inverse);
        if (!(error < best)) continue;
        best = error;
        chosen = inverse;
    }
    Fit fit = {0, 0};
    for (int i = 0; i < n; i++) {
        int code = clamp_int(nearest_int(chosen * x[i]), 0, levels);
        codes[i] = (uint8_t)code;
        fit.lx += weights[i] * x[i] * (float)code;
        fit.l2 += weights[i] * (float)code * (float)code;
    }
    for (int round = 0; round < 5 && positive_improve(levels, x, weights, n, codes, &fit); round++) {}
    return fit.l2 > 0 ? fit.lx / fit.l2 : 0;
}
