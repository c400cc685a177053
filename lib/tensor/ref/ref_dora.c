/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of DoRA. */
#include "lib/tensor/ref/ref.h"

#include <math.h>

void ref_dora_squares(const Tensor *weight, Tensor *squares) {
    const int64_t out = tensor_count(squares), in = tensor_count(weight) / out;
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t i = 0; i < in; i++) {
            double value = ref_weight(weight, weight->in_out ? i * out + o : o * in + i);
            sum += value * value;
        }
        element_set(squares, o, sum);
    }
}

void ref_dora_norms(const Tensor *squares, const Tensor *products, const Tensor *gram, const Tensor *b, double scale, Tensor *norms) {
    const int64_t out = tensor_count(norms), rank = tensor_rows(gram);
    for (int64_t o = 0; o < out; o++) {
        double square = element_get(squares, o);
        for (int64_t r = 0; r < rank; r++) {
            double sum = 2 * element_get(products, r * out + o);
            for (int64_t s = 0; s < rank; s++) sum += scale * element_get(gram, r * rank + s) * element_get(b, o * rank + s);
            square += scale * element_get(b, o * rank + r) * sum;
        }
        element_set(norms, o, sqrt(fmax(square, 0)));
    }
}

static double factor_of(const Tensor *magnitude, const Tensor *norms, int64_t column) {
    double norm = element_get(norms, column);
    return norm == 0 ? 0 : element_get(magnitude, column) / norm;
}

void ref_dora(const Tensor *x, const Tensor *magnitude, const Tensor *norms, const Tensor *addend, Tensor *y) {
    const int64_t width = tensor_width(x);
    for (int64_t i = 0; i < tensor_count(x); i++)
        element_set(y, i, factor_of(magnitude, norms, i % width) * element_get(x, i) + (addend ? element_get(addend, i) : 0));
}

void ref_dora_backward(const Tensor *dy, const Tensor *x, const Tensor *magnitude, const Tensor *norms, double beta, Tensor *dx, Tensor *dmagnitude) {
    const int64_t width = tensor_width(x), rows = tensor_rows(x);
    for (int64_t i = 0; dx && i < tensor_count(x); i++) ref_put(dx, i, factor_of(magnitude, norms, i % width) * element_get(dy, i), beta);
    for (int64_t c = 0; dmagnitude && c < width; c++) {
        double sum = 0, norm = element_get(norms, c);
        for (int64_t r = 0; r < rows; r++) sum += element_get(dy, r * width + c) * element_get(x, r * width + c);
        ref_put(dmagnitude, c, norm == 0 ? 0 : sum / norm, 1);
    }
}
