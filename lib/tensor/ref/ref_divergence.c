/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernel of distillation losses: one row of logits at a time. */
#include "lib/tensor/ref/ref.h"

#include <math.h>
#include <stdlib.h>

/* logs[v] = log softmax(logits / temperature). */
static void log_softmax(const Tensor *logits, int64_t row, double temperature, double *logs) {
    int64_t n = tensor_width(logits);
    double largest = -INFINITY, sum = 0;
    for (int64_t v = 0; v < n; v++) {
        logs[v] = element_get(logits, row * n + v) / temperature;
        largest = fmax(largest, logs[v]);
    }
    for (int64_t v = 0; v < n; v++) sum += exp(logs[v] - largest);
    for (int64_t v = 0; v < n; v++) logs[v] -= largest + log(sum);
}

/* Marks the k largest of n values; the first among equal ones. */
static void mark_largest(const double *values, int64_t n, int64_t k, double *marked) {
    for (int64_t v = 0; v < n; v++) marked[v] = 0;
    for (int64_t i = 0; i < MIN(k, n); i++) {
        int64_t best = -1;
        for (int64_t v = 0; v < n; v++)
            if (!(marked[v] > 0) && (best < 0 || values[v] > values[best])) best = v;
        marked[best] = 1;
    }
}

static int64_t first_largest(const double *values, int64_t n) {
    int64_t best = 0;
    for (int64_t v = 1; v < n; v++)
        if (values[v] > values[best]) best = v;
    return best;
}

/* What is stored of a teacher: log-probabilities and marks of its likeliest tokens. Returns the probability of all others. */
static double stored_top(const DivergenceArgs *args, int64_t row, int64_t n, double *logs, double *marked) {
    int64_t k = tensor_width(args->top_ids);
    for (int64_t v = 0; v < n; v++) {
        logs[v] = -INFINITY;
        marked[v] = 0;
    }
    for (int64_t i = 0; i < k; i++) {
        int64_t v = ref_index(args->top_ids, row * k + i);
        logs[v] = element_get(args->top_logprobs, row * (k + 1) + i);
        marked[v] = 1;
    }
    return exp(element_get(args->top_logprobs, row * (k + 1) + k));
}

/* The divergence of one row, and its gradient with respect to the student's logits / temperature. s, t: log-probabilities; marked: top-k tokens;
 * rest_t: probability of tokens that t lacks. */
static double row_divergence(const DivergenceArgs *args, const double *s, const double *t, const double *marked, double rest_t, int64_t n,
                             double *gradient) {
    double sum = 0, rest_s = 0, beta = args->beta;
    for (int64_t v = 0; v < n; v++) {
        double p = exp(s[v]), q = exp(t[v]), m = log(beta * q + (1 - beta) * p);
        if (args->kind == DIVERGENCE_KL) {
            sum += q * (t[v] - s[v]);
            gradient[v] = p - q;
        } else if (args->kind == DIVERGENCE_REVERSE_KL) {
            sum += p * (s[v] - t[v]);
            gradient[v] = s[v] - t[v];
        } else if (args->kind == DIVERGENCE_JSD) {
            sum += beta * q * (t[v] - m) + (1 - beta) * p * (s[v] - m);
            gradient[v] = (1 - beta) * (s[v] - m);
        } else if (marked[v] > 0) {
            sum += q * (t[v] - s[v]);
            gradient[v] = p - q;
        } else {
            rest_t += q;
            rest_s += p;
            gradient[v] = p;
        }
    }
    if (args->kind == DIVERGENCE_TOP_K && rest_t > 0) sum += rest_t * (log(rest_t) - log(rest_s));
    double mean = 0;
    for (int64_t v = 0; v < n; v++) mean += exp(s[v]) * gradient[v];
    for (int64_t v = 0; v < n; v++) {
        if (args->kind == DIVERGENCE_REVERSE_KL || args->kind == DIVERGENCE_JSD) gradient[v] = exp(s[v]) * (gradient[v] - mean);
        if (args->kind == DIVERGENCE_TOP_K && !(marked[v] > 0) && rest_t > 0) gradient[v] *= 1 - rest_t / rest_s;
    }
    return sum;
}

void ref_row_distance(const Tensor *x, const Tensor *target, Tensor *y) {
    int64_t width = tensor_width(x);
    for (int64_t r = 0; r < tensor_rows(x); r++) {
        double sum = 0;
        for (int64_t i = r * width; i < (r + 1) * width; i++) sum += pow(element_get(x, i) - element_get(target, i), 2);
        element_set(y, r, sum / (double)width);
    }
}

void ref_row_distance_backward(const Tensor *x, const Tensor *target, const Tensor *dy, double beta, Tensor *dx) {
    int64_t width = tensor_width(x);
    for (int64_t i = 0; i < tensor_count(x); i++)
        ref_put(dx, i, 2 * element_get(dy, i / width) / (double)width * (element_get(x, i) - element_get(target, i)), beta);
}

void ref_divergence(const DivergenceArgs *args, Tensor *student, const Tensor *teacher, const Tensor *targets, const Divergences *results) {
    int64_t n = tensor_width(student);
    double *s = ref_zeros(n), *t = ref_zeros(n), *plain = ref_zeros(n), *marked = ref_zeros(n), *gradient = ref_zeros(n),
           scale = args->squared ? args->temperature * args->temperature : 1;
    for (int64_t p = 0; s && t && plain && marked && gradient && p < tensor_rows(student); p++) {
        int64_t target = ref_index(targets, p);
        double rest = teacher ? 0 : stored_top(args, p, n, t, marked);
        log_softmax(student, p, args->temperature, s);
        if (teacher) log_softmax(teacher, p, args->temperature, t);
        log_softmax(student, p, 1, plain);
        if (teacher && args->kind == DIVERGENCE_TOP_K) mark_largest(t, n, args->top_k, marked);
        double divergence = row_divergence(args, s, t, marked, rest, n, gradient);
        element_set(results->divergence, p, divergence);
        element_set(results->agreement, p, s[first_largest(t, n)] >= s[first_largest(s, n)] ? 1 : 0);
        element_set(results->logprob, p, plain[target]);
        element_set(results->loss, p, args->alpha * scale * divergence - (1 - args->alpha) * plain[target]);
        for (int64_t v = 0; v < n; v++) {
            double capped = args->softcap != 0 ? element_get(student, p * n + v) * args->scaling / args->softcap : 0,
                   d = args->alpha * scale / args->temperature * gradient[v] + (1 - args->alpha) * (exp(plain[v]) - (v == target));
            element_set(student, p * n + v, d * (1 - capped * capped) / args->scaling);
        }
    }
    free(s);
    free(t);
    free(plain);
    free(marked);
    free(gradient);
}
