/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the normalisations. Sources: layer norm arXiv 1607.06450, RMS norm arXiv 1910.07467. */
#include "lib/tensor/ref/ref.h"

#include <math.h>

void ref_rms_norm(const Tensor *x, const Tensor *weight, double eps, const Tensor *addend, Tensor *y, Tensor *rstd) {
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < width; c++) squares += element_get(x, r * width + c) * element_get(x, r * width + c);
        double scale = 1 / sqrt(squares / (double)width + eps);
        element_set(rstd, r, scale);
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            double value = element_get(x, i) * scale * element_get(weight, i - r * width);
            element_set(y, i, addend ? element_get(addend, i) + value : value);
        }
    }
}

void ref_rms_norm_backward(const Tensor *x, const Tensor *weight, const Tensor *rstd, const Tensor *dy, double beta, Tensor *dx, Tensor *dweight) {
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
    for (int64_t r = 0; dx && r < rows; r++) {
        double scale = element_get(rstd, r), mean = 0; /* of g x_hat */
        for (int64_t c = 0; c < width; c++)
            mean += element_get(dy, r * width + c) * element_get(weight, c) * element_get(x, r * width + c) * scale / (double)width;
        for (int64_t c = 0; c < width; c++) {
            double g = element_get(dy, r * width + c) * element_get(weight, c), x_hat = element_get(x, r * width + c) * scale;
            ref_put(dx, r * width + c, scale * (g - x_hat * mean), beta);
        }
    }
    for (int64_t c = 0; dweight && c < width; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += element_get(dy, r * width + c) * element_get(x, r * width + c) * element_get(rstd, r);
        ref_put(dweight, c, sum, 1);
    }
}

void ref_rms_norm_backward_result(const Tensor *y, const Tensor *weight, const Tensor *inverse, const Tensor *rstd, const Tensor *dy, double beta,
                                  Tensor *dx, Tensor *dweight) {
    int64_t width = tensor_count(weight), rows = tensor_count(y) / width;
    for (int64_t r = 0; dx && r < rows; r++) {
        double mean = 0; /* of g x_hat, which is dy y */
        for (int64_t c = 0; c < width; c++) mean += element_get(dy, r * width + c) * element_get(y, r * width + c) / (double)width;
        for (int64_t c = 0; c < width; c++) {
            double g = element_get(dy, r * width + c) * element_get(weight, c), x_hat = element_get(y, r * width + c) * element_get(inverse, c);
            ref_put(dx, r * width + c, element_get(rstd, r) * (g - x_hat * mean), beta);
        }
    }
    for (int64_t c = 0; dweight && c < width; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += element_get(dy, r * width + c) * element_get(y, r * width + c) * element_get(inverse, c);
        ref_put(dweight, c, sum, 1);
    }
}

void ref_layer_norm(const Tensor *x, const Tensor *weight, const Tensor *bias, double eps, Tensor *y, Tensor *mean, Tensor *rstd) {
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
    for (int64_t r = 0; r < rows; r++) {
        double average = 0, variance = 0;
        for (int64_t c = 0; c < width; c++) average += element_get(x, r * width + c) / (double)width;
        for (int64_t c = 0; c < width; c++) {
            double centred = element_get(x, r * width + c) - average;
            variance += centred * centred / (double)width;
        }
        double scale = 1 / sqrt(variance + eps);
        element_set(mean, r, average);
        element_set(rstd, r, scale);
        for (int64_t c = 0; c < width; c++) {
            double value = (element_get(x, r * width + c) - average) * scale * element_get(weight, c);
            element_set(y, r * width + c, bias ? value + element_get(bias, c) : value);
        }
    }
}

void ref_layer_norm_backward(const Tensor *x, const Tensor *weight, const Tensor *mean, const Tensor *rstd, const Tensor *dy, double beta, Tensor *dx,
                             Tensor *dweight, Tensor *dbias) {
    int64_t width = tensor_count(weight), rows = tensor_count(x) / width;
    for (int64_t r = 0; dx && r < rows; r++) {
        double average = element_get(mean, r), scale = element_get(rstd, r), mean_g = 0, mean_gx = 0;
        for (int64_t c = 0; c < width; c++) {
            double g = element_get(dy, r * width + c) * element_get(weight, c);
            mean_g += g / (double)width;
            mean_gx += g * (element_get(x, r * width + c) - average) * scale / (double)width;
        }
        for (int64_t c = 0; c < width; c++) {
            double g = element_get(dy, r * width + c) * element_get(weight, c), x_hat = (element_get(x, r * width + c) - average) * scale;
            ref_put(dx, r * width + c, scale * (g - mean_g - x_hat * mean_gx), beta);
        }
    }
    for (int64_t c = 0; c < width; c++) {
        double sum_weight = 0, sum_bias = 0;
        for (int64_t r = 0; r < rows; r++) {
            double d = element_get(dy, r * width + c);
            sum_weight += d * (element_get(x, r * width + c) - element_get(mean, r)) * element_get(rstd, r);
            sum_bias += d;
        }
        if (dweight) ref_put(dweight, c, sum_weight, 1);
        if (dbias) ref_put(dbias, c, sum_bias, 1);
    }
}
