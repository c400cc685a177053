/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of distillation. A thread takes a row of logits of both models, a few passes over each; sums of a run are in float, those of a row in
 * double. */
#include "lib/tensor/cpu/blocks.h"

static float row_largest(const float *z, int64_t n) {
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) largest = z[i] > largest ? z[i] : largest;
    return largest;
}

/* The first element that is the largest. */
static int64_t row_place(const float *z, int64_t n, float largest) {
    for (int64_t i = 0; i < n; i++)
        if (z[i] == largest) return i;
    return 0;
}

/* Sum of e^((z - largest) factor). */
static double row_sum(const float *z, int64_t n, float factor, float largest) {
    double total = 0;
    for (RUNS(at, count, 0, n)) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) sum += fast_exp((z[at + i] - largest) * factor);
        total += (double)sum;
    }
    return total;
}

/* A softmax of logits: log p = (z - largest) factor - log_sum. */
typedef struct RowSoftmax {
    const float *z;
    float factor, largest, log_sum;
} RowSoftmax;

static RowSoftmax softmax_of(const float *z, int64_t n, double temperature) {
    RowSoftmax row = {.z = z, .factor = (float)(1 / temperature), .largest = row_largest(z, n)};
    row.log_sum = (float)log(row_sum(z, n, row.factor, row.largest));
    return row;
}

static inline float log_of(const RowSoftmax *row, int64_t v) { return (row->z[v] - row->largest) * row->factor - row->log_sum; }

/* The divergence of kind KL, reverse KL or JSD; *mean: what the gradient of the last two subtracts. */
static double row_divergence(const DivergenceArgs *args, const RowSoftmax *s, const RowSoftmax *t, int64_t n, double *mean) {
    const float beta = (float)args->beta;
    const DivergenceKind kind = args->kind;
    double total = 0, total_mean = 0;
    for (RUNS(at, count, 0, n)) {
        float sum = 0, by_p = 0;
        if (kind == DIVERGENCE_KL)
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < count; i++) {
                float a = log_of(s, at + i), b = log_of(t, at + i);
                sum += fast_exp(b) * (b - a);
            }
        else if (kind == DIVERGENCE_REVERSE_KL)
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < count; i++) {
                float a = log_of(s, at + i), b = log_of(t, at + i);
                sum += fast_exp(a) * (a - b);
            }
        else
#pragma omp simd reduction(+ : sum, by_p)
            for (int64_t i = 0; i < count; i++) {
                float a = log_of(s, at + i), b = log_of(t, at + i), p = fast_exp(a), q = fast_exp(b), m = fast_log(beta * q + (1 - beta) * p);
                sum += beta * q * (b - m) + (1 - beta) * p * (a - m);
                by_p += p * (1 - beta) * (a - m);
            }
        total += (double)sum;
        total_mean += (double)by_p;
    }
    *mean = kind == DIVERGENCE_REVERSE_KL ? total : total_mean;
    return total;
}

/* The tokens of the top_k largest logits, the lower id first among equal ones, in falling order. */
static void find_largest(const float *z, int64_t n, int64_t k, int32_t *ids) {
    int64_t found = 0;
    float least = -INFINITY;
    for (int64_t v = 0; v < n; v++) {
        if (found == k && !(z[v] > least)) continue;
        int64_t at = found < k ? found++ : k - 1;
        for (; at > 0 && z[ids[at - 1]] < z[v]; at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)v;
        least = z[ids[found - 1]];
    }
}

/* Share of the probability that tokens other than ids (k) have. Changes z for the moment, so that no difference of two sums near 1 is taken. */
static double rest_of(RowSoftmax *row, float *z, int64_t n, const int32_t *ids, int64_t k, float *kept) {
    for (int64_t i = 0; i < k; i++) kept[i] = z[ids[i]], z[ids[i]] = -INFINITY;
    double rest = row_sum(z, n, row->factor, row->largest) * exp(-(double)row->log_sum);
    for (int64_t i = 0; i < k; i++) z[ids[i]] = kept[i];
    return rest;
}

enum { MOST_TOP = 1024 };

/* A teacher's likeliest tokens in a row, k of them; their log-probabilities, and the probability of all others. */
typedef struct Likeliest {
    int32_t ids[MOST_TOP];
    float logs[MOST_TOP];
    double rest;
    int64_t k;
} Likeliest;

static void likeliest_of(RowSoftmax *t, float *z, int64_t n, Likeliest *top) {
    float kept[MOST_TOP];
    find_largest(z, n, top->k, top->ids);
    for (int64_t i = 0; i < top->k; i++) top->logs[i] = log_of(t, top->ids[i]);
    top->rest = rest_of(t, z, n, top->ids, top->k, kept);
}

static void likeliest_stored(const DivergenceArgs *args, int64_t row, Likeliest *top) {
    const int32_t *ids = (const int32_t *)args->top_ids->elements + row * top->k;
    const float *logs = (const float *)args->top_logprobs->elements + row * (top->k + 1);
    for (int64_t i = 0; i < top->k; i++) {
        top->ids[i] = ids[i];
        top->logs[i] = logs[i];
    }
    top->rest = exp((double)logs[top->k]);
}

/* What the rows of a call share, and how a row is scaled. */
typedef struct Mix {
    float divergence, entropy; /* factors of both gradients */
    float mean, other;         /* of the row; other: what tokens outside of the top k lose of their gradient */
    float inverse_cap;
} Mix;

/* z = the gradient of the row, without what the target and the top-k tokens add. */
static void row_gradient(const DivergenceArgs *args, const RowSoftmax *s, const RowSoftmax *t, const RowSoftmax *plain, const Mix *mix, float *z,
                         int64_t n) {
    const float beta = (float)args->beta;
    const DivergenceKind kind = args->kind;
    for (RUNS(at, count, 0, n)) {
        float d[RUN];
        if (kind == DIVERGENCE_KL)
            for (int64_t i = 0; i < count; i++) d[i] = fast_exp(log_of(s, at + i)) - fast_exp(log_of(t, at + i));
        else if (kind == DIVERGENCE_REVERSE_KL)
            for (int64_t i = 0; i < count; i++) {
                float a = log_of(s, at + i);
                d[i] = fast_exp(a) * (a - log_of(t, at + i) - mix->mean);
            }
        else if (kind == DIVERGENCE_JSD)
            for (int64_t i = 0; i < count; i++) {
                float a = log_of(s, at + i), p = fast_exp(a), m = fast_log(beta * fast_exp(log_of(t, at + i)) + (1 - beta) * p);
                d[i] = p * ((1 - beta) * (a - m) - mix->mean);
            }
        else
            for (int64_t i = 0; i < count; i++) d[i] = fast_exp(log_of(s, at + i)) * mix->other;
        for (int64_t i = 0; i < count; i++) d[i] *= mix->divergence;
        if (mix->entropy != 0)
            for (int64_t i = 0; i < count; i++) d[i] += mix->entropy * fast_exp(log_of(plain, at + i));
        for (int64_t i = 0; i < count; i++) {
            float capped = z[at + i] * mix->inverse_cap;
            z[at + i] = d[i] * (1 - capped * capped);
        }
    }
}

/* other: the teacher's logits; NULL: its likeliest tokens are stored. */
static void divergence_row(const DivergenceArgs *args, float *z, float *other, int64_t n, int32_t target, Tensor *const results[4], int64_t p) {
    Likeliest top;
    float kept[MOST_TOP], gradients[MOST_TOP], lost = args->softcap != 0 ? (float)(args->scaling / args->softcap) : 0;
    RowSoftmax s = softmax_of(z, n, args->temperature), t = other ? softmax_of(other, n, args->temperature) : s,
               plain = args->temperature == 1 ? s : softmax_of(z, n, 1);
    const double scale = args->squared ? args->temperature * args->temperature : 1, logprob = (double)log_of(&plain, target);
    const int64_t k = top.k = !other ? tensor_width(args->top_ids) : args->kind == DIVERGENCE_TOP_K ? MIN((int64_t)args->top_k, n) : 0;
    Mix mix = {.divergence = (float)(args->alpha * scale / (args->temperature * args->scaling)),
               .entropy = (float)((1 - args->alpha) / args->scaling),
               .inverse_cap = lost};
    double divergence = 0, mean = 0;
    const int64_t likeliest = other ? row_place(other, n, t.largest) : *((const int32_t *)args->top_ids->elements + p * k);
    const bool agrees = z[likeliest] == s.largest;
    if (k == 0) {
        divergence = row_divergence(args, &s, &t, n, &mean);
        mix.mean = (float)mean;
    } else {
        if (other)
            likeliest_of(&t, other, n, &top);
        else
            likeliest_stored(args, p, &top);
        double rest_s = rest_of(&s, z, n, top.ids, k, kept);
        mix.other = (float)(top.rest > 0 ? 1 - top.rest / rest_s : 1);
        for (int64_t i = 0; i < k; i++) {
            float a = log_of(&s, top.ids[i]), b = top.logs[i];
            divergence += (double)(fast_exp(b) * (b - a));
            gradients[i] = fast_exp(a) * (1 - mix.other) - fast_exp(b); /* instead of what row_gradient computes */
            float capped = z[top.ids[i]] * lost;
            gradients[i] *= mix.divergence * (1 - capped * capped);
        }
        if (top.rest > 0) divergence += top.rest * log(top.rest / rest_s);
    }
    float capped = z[target] * lost, at_target = mix.entropy * (1 - capped * capped);
    row_gradient(args, &s, &t, &plain, &mix, z, n);
    for (int64_t i = 0; i < k; i++) z[top.ids[i]] += gradients[i];
    z[target] -= at_target;
    const double values[4] = {args->alpha * scale * divergence - (1 - args->alpha) * logprob, divergence, logprob, agrees};
    for (int i = 0; i < 4; i++) run_write(results[i], p, 1, &(float){(float)values[i]}, 0);
}

void ISA_FN(divergence)(const DivergenceArgs *args, Tensor *student, const Tensor *teacher, const Tensor *targets, const Divergences *results) {
    Tensor *const each[] = {results->loss, results->divergence, results->logprob, results->agreement};
    const int32_t *ids = targets->elements;
    int64_t n = tensor_width(student), rows = tensor_rows(student);
    const int64_t top_k = args->top_ids ? tensor_width(args->top_ids) : args->top_k;
    const DType other = teacher ? teacher->dtype : args->top_logprobs->dtype;
    if (student->dtype != DT_F32 || other != DT_F32 || !CPU_WRITES(each[0], each[1], each[2]) || top_k > MOST_TOP) {
        device_reference()->divergence(args, student, teacher, targets, results);
        return;
    }
#pragma omp parallel for schedule(static) if (rows * n > CPU_SERIAL)
    for (int64_t p = 0; p < rows; p++)
        divergence_row(args, (float *)student->elements + p * n, teacher ? (float *)teacher->elements + p * n : NULL, n, ids[p], each, p);
}

void ISA_FN(row_distance)(const Tensor *x, const Tensor *target, Tensor *y) {
    int64_t rows = tensor_rows(x), width = tensor_width(x);
    if (!CPU_READS(x, target) || !CPU_WRITES(y)) {
        device_reference()->row_distance(x, target, y);
        return;
    }
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        for (RUNS(at, n, r * width, (r + 1) * width)) {
            float one[RUN], other[RUN], sum = 0;
            const float *a = run_read(x, at, n, one), *b = run_read(target, at, n, other);
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
            total += (double)sum;
        }
        run_write(y, r, 1, &(float){(float)(total / (double)width)}, 0);
    }
}

void ISA_FN(row_distance_backward)(const Tensor *x, const Tensor *target, const Tensor *dy, double beta, Tensor *dx) {
    int64_t rows = tensor_rows(x), width = tensor_width(x);
    if (!CPU_READS(x, target, dy) || !CPU_WRITES(dx)) {
        device_reference()->row_distance_backward(x, target, dy, beta, dx);
        return;
    }
#pragma omp parallel for schedule(static) if (rows * width > CPU_SERIAL)
    for (int64_t r = 0; r < rows; r++) {
        float slope;
        const float factor = *run_read(dy, r, 1, &slope) * 2 / (float)width;
        for (RUNS(at, n, r * width, (r + 1) * width)) {
            float one[RUN], other[RUN], result[RUN];
            const float *a = run_read(x, at, n, one), *b = run_read(target, at, n, other);
            for (int64_t i = 0; i < n; i++) result[i] = factor * (a[i] - b[i]);
            run_write(dx, at, n, result, (float)beta);
        }
    }
}
