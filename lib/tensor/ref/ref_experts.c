/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of experts. */
#include "lib/tensor/ref/ref.h"

#include <math.h>
#include <stdlib.h>

/* Scores of one token. */
static void scores_of(const RouterArgs *args, const Tensor *logits, int64_t row, Tensor *scores) {
    int64_t n = args->n_experts;
    double largest = -HUGE_VAL, sum = 0;
    for (int64_t e = 0; e < n; e++) largest = fmax(largest, element_get(logits, row * n + e));
    for (int64_t e = 0; e < n; e++) sum += exp(element_get(logits, row * n + e) - largest);
    for (int64_t e = 0; e < n; e++) {
        double z = element_get(logits, row * n + e);
        element_set(scores, row * n + e, args->kind == ROUTER_SOFTMAX ? exp(z - largest) / sum : 1 / (1 + exp(-z)));
    }
}

/* The number that the chosen scores of a token are divided by. */
static double divisor_of(const RouterArgs *args, const Tensor *scores, int64_t row, const int32_t *chosen) {
    double sum = args->eps;
    if (!args->normalise) return 1;
    for (int64_t j = 0; j < args->top_k; j++) sum += element_get(scores, row * args->n_experts + chosen[j]);
    return sum;
}

void ref_route(const RouterArgs *args, const Tensor *logits, const Tensor *bias, Tensor *scores, Tensor *chosen, Tensor *weights) {
    int64_t n = args->n_experts, k = args->top_k;
    double *order = ref_zeros(n);
    for (int64_t row = 0; order && row < tensor_rows(logits); row++) {
        int32_t *its = (int32_t *)chosen->elements + row * k;
        scores_of(args, logits, row, scores);
        for (int64_t e = 0; e < n; e++) order[e] = element_get(scores, row * n + e) + (bias ? element_get(bias, e) : 0);
        router_choose(args, order, its);
        double divisor = divisor_of(args, scores, row, its);
        for (int64_t j = 0; j < k; j++) element_set(weights, row * k + j, args->scale * element_get(scores, row * n + its[j]) / divisor);
    }
    free(order);
}

void ref_route_backward(const RouterArgs *args, const Tensor *scores, const Tensor *chosen, const Tensor *dweights, const Tensor *balance,
                        double beta, Tensor *dlogits) {
    int64_t n = args->n_experts, k = args->top_k;
    double *dscores = ref_zeros(n);
    for (int64_t row = 0; dscores && row < tensor_rows(scores); row++) {
        const int32_t *its = (const int32_t *)chosen->elements + row * k;
        double divisor = divisor_of(args, scores, row, its), common = 0, mean = 0;
        for (int64_t j = 0; j < k && args->normalise; j++)
            common += element_get(dweights, row * k + j) * element_get(scores, row * n + its[j]) / divisor;
        for (int64_t e = 0; e < n; e++) dscores[e] = balance ? element_get(balance, e) : 0;
        for (int64_t j = 0; j < k; j++) dscores[its[j]] += args->scale * (element_get(dweights, row * k + j) - common) / divisor;
        for (int64_t e = 0; e < n; e++) mean += dscores[e] * element_get(scores, row * n + e);
        for (int64_t e = 0; e < n; e++) {
            double s = element_get(scores, row * n + e);
            ref_put(dlogits, row * n + e, args->kind == ROUTER_SOFTMAX ? s * (dscores[e] - mean) : dscores[e] * s * (1 - s), beta);
        }
    }
    free(dscores);
}

void ref_expert_sum(const Tensor *x, const Tensor *weights, const Tensor *places, const Tensor *addend, Tensor *y) {
    int64_t width = tensor_width(x), k = tensor_width(weights);
    if (addend && addend->elements != y->elements) ref_copy(addend, y);
    if (!addend) ref_fill(y, 0);
    for (int64_t s = 0; s < tensor_rows(x); s++)
        for (int64_t c = 0; c < width; c++)
            ref_put(y, ref_index(places, s) / k * width + c, element_get(weights, ref_index(places, s)) * element_get(x, s * width + c), 1);
}

void ref_expert_sum_backward(const Tensor *x, const Tensor *weights, const Tensor *places, const Tensor *dy, const double beta[2], Tensor *dx,
                             Tensor *dweights) {
    int64_t width = tensor_width(x), k = tensor_width(weights);
    for (int64_t s = 0; s < tensor_rows(x); s++) {
        int64_t place = ref_index(places, s), from = place / k * width;
        double dot = 0;
        for (int64_t c = 0; c < width; c++) dot += element_get(dy, from + c) * element_get(x, s * width + c);
        if (dweights) ref_put(dweights, place, dot, beta[1]);
        for (int64_t c = 0; dx && c < width; c++) ref_put(dx, s * width + c, element_get(weights, place) * element_get(dy, from + c), beta[0]);
    }
}

/* Element i of the result, and its derivatives by its two factors. */
typedef struct ClampedGlu {
    double value, dgate, dup;
} ClampedGlu;

static ClampedGlu clamped_glu_at(const Tensor *x, int64_t i, double limit, double alpha) {
    double gate = element_get(x, 2 * i), up = element_get(x, 2 * i + 1), g = gate > limit ? limit : gate,
           u = up > limit    ? limit
               : up < -limit ? -limit
                             : up,
           s = 1 / (1 + exp(-alpha * g));
    return (ClampedGlu){(u + 1) * g * s, gate > limit ? 0 : (u + 1) * s * (1 + alpha * g * (1 - s)), up > limit || up < -limit ? 0 : g * s};
}

void ref_clamped_glu(const Tensor *x, double limit, double alpha, Tensor *y) {
    for (int64_t i = 0; i < tensor_count(y); i++) element_set(y, i, clamped_glu_at(x, i, limit, alpha).value);
}

void ref_clamped_glu_backward(const Tensor *x, double limit, double alpha, const Tensor *dy, double beta, Tensor *dx) {
    for (int64_t i = 0; i < tensor_count(dy); i++) {
        ClampedGlu at = clamped_glu_at(x, i, limit, alpha);
        ref_put(dx, 2 * i, element_get(dy, i) * at.dgate, beta);
        ref_put(dx, 2 * i + 1, element_get(dy, i) * at.dup, beta);
    }
}
