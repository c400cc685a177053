/* SPDX-License-Identifier: Apache-2.0 */
/* Experts: scores and choices of routers, and the weighted sum of a token's experts. Their products are cpu_matmul's. */
#include "lib/tensor/cpu/blocks.h"

#include <math.h>

/* Memory of a token in work: its logits or gradients, its scores, and the scores by which experts are chosen. */
typedef struct TokenScores {
    float *values, *scores;
    double *order;
} TokenScores;

static TokenScores token_scores(int64_t n_experts) {
    double *memory = cpu_scratch(CPU_LOCAL, (size_t)n_experts * (sizeof(double) + 2 * sizeof(float)));
    float *floats = (float *)(memory + n_experts);
    return (TokenScores){floats, floats + n_experts, memory};
}

static void scores_compute(const RouterArgs *args, const TokenScores *token) {
    int64_t n = args->n_experts;
    float largest = -INFINITY, sum = 0, *restrict z = token->values, *restrict scores = token->scores;
    if (args->kind == ROUTER_SIGMOID) {
        for (int64_t e = 0; e < n; e++) scores[e] = fast_sigmoid(z[e]);
        return;
    }
    for (int64_t e = 0; e < n; e++) largest = z[e] > largest ? z[e] : largest;
    for (int64_t e = 0; e < n; e++) sum += scores[e] = fast_exp(z[e] - largest);
    for (int64_t e = 0; e < n; e++) scores[e] /= sum;
}

/* The number that the chosen scores of a token are divided by. */
static float scores_divisor(const RouterArgs *args, const float *scores, const int32_t *chosen) {
    float sum = 0;
    if (!args->normalise) return 1;
    for (int64_t j = 0; j < args->top_k; j++) sum += scores[chosen[j]];
    return sum + (float)args->eps;
}

enum { SERIAL_SCORES = 1 << 12 };

void ISA_FN(route)(const RouterArgs *args, const Tensor *logits, const Tensor *bias, Tensor *scores, Tensor *chosen, Tensor *weights) {
    if (!CPU_READS(logits, bias) || !CPU_WRITES(scores, weights)) {
        device_reference()->route(args, logits, bias, scores, chosen, weights);
        return;
    }
    int64_t n = args->n_experts, k = args->top_k, rows = tensor_rows(logits);
#pragma omp parallel for schedule(static) if (rows * n > SERIAL_SCORES)
    for (int64_t row = 0; row < rows; row++) {
        TokenScores token = token_scores(n);
        int32_t *its = (int32_t *)chosen->elements + row * k;
        floats_from(logits, row * n, n, token.values);
        scores_compute(args, &token);
        run_write(scores, row * n, n, token.scores, 0);
        if (bias) floats_from(bias, 0, n, token.values);
        for (int64_t e = 0; e < n; e++) token.order[e] = bias ? (double)(token.scores[e] + token.values[e]) : (double)token.scores[e];
        router_choose(args, token.order, its);
        float divisor = scores_divisor(args, token.scores, its);
        for (int64_t j = 0; j < k; j++) {
            float weight = token.scores[its[j]] / divisor * (float)args->scale;
            run_write(weights, row * k + j, 1, &weight, 0);
        }
    }
}

void ISA_FN(route_backward)(const RouterArgs *args, const Tensor *scores, const Tensor *chosen, const Tensor *dweights, const Tensor *balance,
                            double beta, Tensor *dlogits) {
    if (!CPU_READS(scores, dweights, balance) || !CPU_WRITES(dlogits)) {
        device_reference()->route_backward(args, scores, chosen, dweights, balance, beta, dlogits);
        return;
    }
    int64_t n = args->n_experts, k = args->top_k, rows = tensor_rows(scores);
#pragma omp parallel for schedule(static) if (rows * n > SERIAL_SCORES)
    for (int64_t row = 0; row < rows; row++) {
        TokenScores token = token_scores(n);
        const int32_t *its = (const int32_t *)chosen->elements + row * k;
        float *d = token.values, *s = token.scores, common = 0, mean = 0, dweight;
        floats_from(scores, row * n, n, s);
        float divisor = scores_divisor(args, s, its);
        for (int64_t j = 0; j < k && args->normalise; j++) {
            floats_from(dweights, row * k + j, 1, &dweight);
            common += dweight * s[its[j]] / divisor;
        }
        if (balance)
            floats_from(balance, 0, n, d);
        else
            memset(d, 0, (size_t)n * sizeof *d);
        for (int64_t j = 0; j < k; j++) {
            floats_from(dweights, row * k + j, 1, &dweight);
            d[its[j]] += (float)args->scale * (dweight - common) / divisor;
        }
        for (int64_t e = 0; e < n; e++) mean += d[e] * s[e];
        for (int64_t e = 0; e < n; e++) d[e] = args->kind == ROUTER_SOFTMAX ? s[e] * (d[e] - mean) : d[e] * s[e] * (1 - s[e]);
        run_write(dlogits, row * n, n, d, (float)beta);
    }
}

/* Tokens have several slots, so threads share the columns instead of the rows: each token's sum has the order of its slots. */
void ISA_FN(expert_sum)(const Tensor *x, const Tensor *weights, const Tensor *places, const Tensor *addend, Tensor *y) {
    if (!CPU_READS(x, weights, addend) || !CPU_WRITES(y)) {
        device_reference()->expert_sum(x, weights, places, addend, y);
        return;
    }
    enum { COLUMNS = 64 };
    int64_t width = tensor_width(x), n_slots = tensor_rows(x), n = tensor_rows(y), k = tensor_width(weights);
    const int32_t *to = places->elements;
#pragma omp parallel for schedule(static) if (n_slots * width > CPU_SERIAL)
    for (int64_t at = 0; at < width; at += COLUMNS) {
        float buffer[COLUMNS], product[COLUMNS], weight;
        int64_t columns = MIN((int64_t)COLUMNS, width - at);
        memset(product, 0, sizeof product);
        for (int64_t r = 0; r < n && !addend; r++) run_write(y, r * width + at, columns, product, 0);
        for (int64_t r = 0; r < n && addend && addend->elements != y->elements; r++) run_copy(y, r * width + at, addend, r * width + at, columns);
        for (int64_t s = 0; s < n_slots; s++) {
            const float *values = run_read(x, s * width + at, columns, buffer);
            floats_from(weights, to[s], 1, &weight);
            for (int64_t i = 0; i < columns; i++) product[i] = weight * values[i];
            run_write(y, to[s] / k * width + at, columns, product, 1);
        }
    }
}

void ISA_FN(expert_sum_backward)(const Tensor *x, const Tensor *weights, const Tensor *places, const Tensor *dy, const double beta[2], Tensor *dx,
                                 Tensor *dweights) {
    if (!CPU_READS(x, weights, dy) || !CPU_WRITES(dx, dweights)) {
        device_reference()->expert_sum_backward(x, weights, places, dy, beta, dx, dweights);
        return;
    }
    int64_t width = tensor_width(x), n_slots = tensor_rows(x), k = tensor_width(weights);
    const int32_t *from = places->elements;
#pragma omp parallel for schedule(static) if (n_slots * width > CPU_SERIAL)
    for (int64_t s = 0; s < n_slots; s++) {
        float buffer_x[RUN], buffer_dy[RUN], product[RUN], weight, dot = 0;
        int64_t token = from[s] / k;
        floats_from(weights, from[s], 1, &weight);
        for (RUNS(at, n, (int64_t)0, width)) {
            const float *values = run_read(x, s * width + at, n, buffer_x), *d = run_read(dy, token * width + at, n, buffer_dy);
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += values[i] * d[i];
            dot += sum;
            for (int64_t i = 0; i < n; i++) product[i] = weight * d[i];
            if (dx) run_write(dx, s * width + at, n, product, (float)beta[0]);
        }
        if (dweights) run_write(dweights, from[s], 1, &dot, (float)beta[1]);
    }
}

/* Pieces of at most this many results. */
enum { GLU = RUN / 2 };

void ISA_FN(clamped_glu)(const Tensor *x, double limit, double alpha, Tensor *y) {
    if (!CPU_READS(x) || !CPU_WRITES(y)) {
        device_reference()->clamped_glu(x, limit, alpha, y);
        return;
    }
    const float most = (float)limit, slope = (float)alpha;
    int64_t count = tensor_count(y), n_blocks = blocks_of(count, GLU);
#pragma omp parallel for schedule(static) if (count > CPU_SERIAL / 4)
    for (int64_t b = 0; b < n_blocks; b++) {
        float buffer[RUN], value[GLU];
        int64_t at = b * GLU, n = MIN((int64_t)GLU, count - at);
        const float *in = run_read(x, 2 * at, 2 * n, buffer);
        for (int64_t i = 0; i < n; i++) {
            float gate = in[2 * i], up = in[2 * i + 1], g = gate > most ? most : gate, u = up > most ? most : up < -most ? -most : up;
            value[i] = (u + 1.0f) * (g * fast_sigmoid(slope * g));
        }
        run_write(y, at, n, value, 0);
    }
}

void ISA_FN(clamped_glu_backward)(const Tensor *x, double limit, double alpha, const Tensor *dy, double beta, Tensor *dx) {
    if (!CPU_READS(x, dy) || !CPU_WRITES(dx)) {
        device_reference()->clamped_glu_backward(x, limit, alpha, dy, beta, dx);
        return;
    }
    const float most = (float)limit, slope = (float)alpha;
    int64_t count = tensor_count(dy), n_blocks = blocks_of(count, GLU);
#pragma omp parallel for schedule(static) if (count > CPU_SERIAL / 4)
    for (int64_t b = 0; b < n_blocks; b++) {
        float buffer[RUN], buffer_dy[GLU], result[RUN];
        int64_t at = b * GLU, n = MIN((int64_t)GLU, count - at);
        const float *in = run_read(x, 2 * at, 2 * n, buffer), *d = run_read(dy, at, n, buffer_dy);
        for (int64_t i = 0; i < n; i++) {
            float gate = in[2 * i], up = in[2 * i + 1], g = gate > most ? most : gate,
                  u = up > most    ? most
                      : up < -most ? -most
                                   : up,
                  s = fast_sigmoid(slope * g);
            result[2 * i] = gate > most ? 0.0f : d[i] * (u + 1.0f) * s * (1.0f + slope * g * (1.0f - s));
            result[2 * i + 1] = up > most || up < -most ? 0.0f : d[i] * g * s;
        }
        run_write(dx, 2 * at, 2 * n, result, (float)beta);
    }
}
