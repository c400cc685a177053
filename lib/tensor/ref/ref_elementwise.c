/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels that process each element, row or pair separately. */
#include "lib/tensor/ref/ref.h"

#include <math.h>

void ref_copy(const Tensor *x, Tensor *y) {
    for (int64_t i = 0; i < tensor_count(x); i++) element_set(y, i, ref_weight(x, i));
}

void ref_fill(Tensor *y, double value) {
    for (int64_t i = 0; i < tensor_count(y); i++) element_set(y, i, value);
}

void ref_add(const Tensor *a, const Tensor *b, Tensor *y) {
    for (int64_t i = 0; i < tensor_count(y); i++) element_set(y, i, element_get(a, i) + element_get(b, i));
}

void ref_accumulate(const Tensor *x, double scale, double beta, Tensor *y) {
    for (int64_t i = 0; i < tensor_count(y); i++) ref_put(y, i, scale * element_get(x, i), beta);
}

void ref_bias_add(Tensor *y, const Tensor *bias) {
    int64_t width = tensor_width(y);
    for (int64_t i = 0; i < tensor_count(y); i++) ref_put(y, i, element_get(bias, i % width), 1);
}

void ref_bias_backward(const Tensor *dy, Tensor *dbias) {
    int64_t width = tensor_width(dy), rows = tensor_rows(dy);
    for (int64_t c = 0; c < width; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += element_get(dy, r * width + c);
        ref_put(dbias, c, sum, 1);
    }
}

void ref_dropout(const Tensor *x, double p, RngKey key, uint64_t first, double beta, Tensor *y) {
    for (int64_t i = 0; i < tensor_count(x); i++) {
        uint32_t draws[4];
        rng_block(key, (first + (uint64_t)i) / 4, draws);
        bool kept = ldexp((double)draws[(first + (uint64_t)i) % 4], -32) >= p;
        ref_put(y, i, kept ? element_get(x, i) / (1 - p) : 0, beta);
    }
}

void ref_dropout_rows(const Tensor *x, const Tensor *rows, double p, RngKey key, uint64_t first, double beta, Tensor *y) {
    int64_t width = tensor_width(x);
    for (int64_t i = 0; i < tensor_rows(x); i++) {
        Tensor from = matrix_rows(x, i, i + 1), to = matrix_rows(y, i, i + 1);
        ref_dropout(&from, p, key, first + (uint64_t)(ref_index(rows, i) * width), beta, &to);
    }
}

void ref_add_uniform(int64_t first, int64_t n_rows, double magnitude, RngKey key, Tensor *y) {
    int64_t width = tensor_width(y);
    for (int64_t i = 0; i < n_rows * width; i++) {
        uint32_t draws[4];
        rng_block(key, (uint64_t)i / 4, draws);
        ref_put(y, first * width + i, magnitude * ldexp((double)(int32_t)draws[i % 4], -31), 1);
    }
}

void ref_gather_rows(const Tensor *x, const Tensor *rows, Tensor *y) {
    int64_t width = tensor_width(y);
    for (int64_t i = 0; i < tensor_rows(y); i++)
        for (int64_t c = 0; c < width; c++) element_set(y, i * width + c, ref_weight(x, ref_index(rows, i) * width + c));
}

void ref_scatter_add_rows(const Tensor *dy, const Tensor *rows, Tensor *dx) {
    int64_t width = tensor_width(dy);
    for (int64_t i = 0; i < tensor_rows(dy); i++)
        for (int64_t c = 0; c < width; c++) ref_put(dx, ref_index(rows, i) * width + c, element_get(dy, i * width + c), 1);
}

void ref_scale_rows(const Tensor *x, const Tensor *scale, Tensor *y) {
    int64_t width = tensor_width(x);
    for (int64_t i = 0; i < tensor_count(x); i++) element_set(y, i, element_get(scale, i / width) * element_get(x, i));
}

void ref_rope(const Tensor *x, const Tensor *cosine, const Tensor *sine, int64_t head_dim, bool neighbours, bool inverse, double beta, Tensor *y) {
    int64_t half = tensor_width(cosine), width = tensor_width(x), n_heads = width / head_dim;
    for (int64_t n = 0; n < tensor_rows(x); n++)
        for (int64_t h = 0; h < n_heads; h++) {
            int64_t head = n * width + h * head_dim;
            for (int64_t i = 0; i < half; i++) {
                double c = element_get(cosine, n * half + i), s = element_get(sine, n * half + i);
                int64_t one = head + (neighbours ? 2 * i : i), other = head + (neighbours ? 2 * i + 1 : half + i);
                double first = element_get(x, one), second = element_get(x, other);
                if (inverse) s = -s;
                ref_put(y, one, first * c - second * s, beta);
                ref_put(y, other, second * c + first * s, beta);
            }
            for (int64_t i = 2 * half; i < head_dim; i++) ref_put(y, head + i, element_get(x, head + i), beta);
        }
}

/* f(x) and f'(x). */
static double ref_elementwise_activate(Activation kind, double x, double *slope) {
    switch (kind) {
    case ACT_SILU: {
        double sigmoid = 1 / (1 + exp(-x));
        *slope = sigmoid * (1 + x * (1 - sigmoid));
        return x * sigmoid;
    }
    case ACT_GELU_TANH: {
        double root = sqrt(2 / acos(-1.0)), t = tanh(root * (x + 0.044715 * x * x * x));
        *slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
        return 0.5 * x * (1 + t);
    }
    case ACT_GELU_ERF: {
        double cdf = 0.5 * (1 + erf(x * sqrt(0.5)));
        *slope = cdf + x * exp(-0.5 * x * x) / sqrt(2 * acos(-1.0));
        return x * cdf;
    }
    case ACT_RELU: *slope = isnan(x) ? x : x > 0; return x < 0 ? 0 : x;
    case ACT_TANH: {
        double t = tanh(x);
        *slope = 1 - t * t;
        return t;
    }
    case ACT_SIGMOID: {
        double sigmoid = 1 / (1 + exp(-x));
        *slope = sigmoid * (1 - sigmoid);
        return sigmoid;
    }
    }
    return (double)NAN;
}

/* Locates the two factors of element i of the result. */
typedef struct Halves {
    int64_t x, up;
} Halves;

static Halves halves_of(const Tensor *x, const Tensor *up, int64_t i) {
    if (up != x) return (Halves){i, i};
    int64_t width = tensor_width(x) / 2, row = i / width * 2 * width + i % width;
    return (Halves){row, row + width};
}

void ref_activation(Activation kind, const Tensor *x, const Tensor *up, Tensor *y) {
    for (int64_t i = 0; i < tensor_count(y); i++) {
        Halves at = halves_of(x, up, i);
        double slope, value = ref_elementwise_activate(kind, element_get(x, at.x), &slope);
        element_set(y, i, up ? value * element_get(up, at.up) : value);
    }
}

void ref_activation_backward(Activation kind, const Tensor *x, const Tensor *up, const Tensor *dy, const double beta[2], Tensor *dx, Tensor *dup,
                             Tensor *y) {
    for (int64_t i = 0; i < tensor_count(dy); i++) {
        Halves at = halves_of(x, up, i);
        double slope, value = ref_elementwise_activate(kind, element_get(x, at.x), &slope), d = element_get(dy, i),
                      factor = up ? element_get(up, at.up) : 1;
        if (dx) ref_put(dx, at.x, d * factor * slope, beta[0]);
        if (dup) ref_put(dup, at.up, d * value, beta[up == x ? 0 : 1]);
        if (y) element_set(y, i, value * factor);
    }
}

void ref_sum_squares(const Tensor *x, double *result) {
    *result = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) *result += element_get(x, i) * element_get(x, i);
}

void ref_find_nonfinite(const Tensor *x, int64_t *index) {
    *index = -1;
    for (int64_t i = 0; i < tensor_count(x) && *index < 0; i++)
        if (!isfinite(ref_weight(x, i))) *index = i;
}

void ref_largest(const Tensor *x, int64_t row, int64_t *column) {
    int64_t n = tensor_width(x);
    *column = 0;
    for (int64_t i = 1; i < n; i++)
        if (element_get(x, row * n + i) > element_get(x, row * n + *column)) *column = i;
}

void ref_draw(const Tensor *x, int64_t row, double temperature, double u, int64_t *column, double *logsumexp) {
    int64_t n = tensor_width(x), best;
    ref_largest(x, row, &best);
    double most = element_get(x, row * n + best) / temperature, sum = 0, below = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(element_get(x, row * n + i) / temperature - most);
    *logsumexp = most + log(sum);
    *column = 0;
    for (int64_t i = 0; i < n && below <= u * sum; i++) {
        double weight = exp(element_get(x, row * n + i) / temperature - most);
        if (weight > 0) *column = i;
        below += weight;
    }
}

void ref_gather_columns(const Tensor *x, const Tensor *more, const Tensor *units, Tensor *y) {
    int64_t n = tensor_count(units), unit = tensor_width(y) / n, width = tensor_width(x), more_width = more ? tensor_width(more) : 0;
    for (int64_t i = 0; i < tensor_count(y); i++) {
        int64_t row = i / tensor_width(y), column = i % tensor_width(y), from = ref_index(units, column / unit) * unit + column % unit;
        double value = from < 0 ? 0 : from < width ? element_get(x, row * width + from) : element_get(more, row * more_width + from - width);
        element_set(y, i, value);
    }
}

void ref_scatter_add_columns(const Tensor *dy, const Tensor *units, int64_t first, Tensor *dx) {
    int64_t n = tensor_count(units), unit = tensor_width(dy) / n, width = tensor_width(dx);
    for (int64_t i = 0; i < tensor_count(dy); i++) {
        int64_t row = i / tensor_width(dy), column = i % tensor_width(dy), to = ref_index(units, column / unit) - first;
        if (ref_index(units, column / unit) < 0 || to < 0 || to >= width / unit) continue;
        ref_put(dx, row * width + to * unit + column % unit, element_get(dy, i), 1);
    }
}
