/* SPDX-License-Identifier: Apache-2.0 */
/* The divergence of two models' attention. Forward: a thread takes a query, with all heads of both models. Backward: a thread takes a key/value head,
 * with all queries, so that no two threads add to the same gradient. */
#include "lib/tensor/cpu/blocks.h"

#include <string.h>

/* One model's queries and keys. */
typedef struct Side {
    const AttentionArgs *args;
    const Tensor *q, *k;
} Side;

/* The rows of the keys that the token in `row` of segment s sees, in order. Returns their number. */
static int64_t seen_rows(const Segment *segments, int32_t s, int64_t row, int32_t *rows) {
    int64_t n = layout_offset(segments, s) + row - segments[s].begin + 1;
    int64_t at = n;
    for (int64_t end = row + 1; at > 0;) {
        for (int64_t r = end - 1; r >= segments[s].begin; r--) rows[--at] = (int32_t)r;
        s = segments[s].parent;
        if (s >= 0) end = segments[s].end;
    }
    return n;
}

static float head_dot(const float *a, const float *b, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* probs[j] = the probability of key rows[j] for head h of the query in `row`. slopes: of scores by products; NULL: not wanted. */
static void head_probs(const Side *side, int64_t row, int64_t h, const int32_t *rows, int64_t n, float *probs, float *slopes) {
    const AttentionArgs *args = side->args;
    const int64_t d = args->head_dim, kv_width = args->n_kv_heads * d, kv_start = h / (args->n_heads / args->n_kv_heads) * d;
    const float scale = (float)args->scale, cap = (float)args->softcap;
    float q_buffer[RUN], k_buffer[RUN], largest = -INFINITY, sum = 0;
    const float *q = run_read(side->q, (row * args->n_heads + h) * d, d, q_buffer);
    for (int64_t j = 0; j < n; j++) {
        float score = scale * head_dot(q, run_read(side->k, rows[j] * kv_width + kv_start, d, k_buffer), d),
              t = cap != 0 ? fast_tanh(score / cap) : 0;
        probs[j] = cap != 0 ? cap * t : score;
        if (slopes) slopes[j] = scale * (1 - t * t);
        largest = probs[j] > largest ? probs[j] : largest;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) sum += probs[j] = fast_exp(probs[j] - largest);
    for (int64_t j = 0; j < n; j++) probs[j] /= sum;
}

static void mean_probs(const Side *side, int64_t row, const int32_t *rows, int64_t n, float *probs, float *means) {
    const float share = 1 / (float)side->args->n_heads;
    memset(means, 0, (size_t)n * sizeof *means);
    for (int64_t h = 0; h < side->args->n_heads; h++) {
        head_probs(side, row, h, rows, n, probs, NULL);
        for (int64_t j = 0; j < n; j++) means[j] += probs[j] * share;
    }
}

/* The result of a query; writes its ratios. */
static float query_divergence(const float *s, const float *t, int64_t n, float *ratios) {
    const float least = 1e-30f; /* a probability that rounds to 0 must not divide */
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
        ratios[j] = t[j] > 0 ? t[j] / (s[j] > least ? s[j] : least) : 0;
        sum += t[j] > 0 ? (double)(t[j] * fast_log(ratios[j])) : 0;
    }
    return (float)sum;
}

/* Whether these kernels take the tensors; a head's row must fit into a buffer. */
static bool takes(const AttentionArgs *args, const Tensor *q, const Tensor *k) { return CPU_READS(q, k) && args->head_dim <= RUN; }

void ISA_FN(attention_divergence)(const AttentionArgs *args, const Tensor *q, const Tensor *k, const AttentionArgs *teacher, const Tensor *teacher_q,
                                  const Tensor *teacher_k, Tensor *y, Tensor *ratios) {
    if (!takes(args, q, k) || !takes(teacher, teacher_q, teacher_k) || y->dtype != DT_F32 || ratios->dtype != DT_F32) {
        device_reference()->attention_divergence(args, q, k, teacher, teacher_q, teacher_k, y, ratios);
        return;
    }
    const Layout *layout = args->layout;
    const Segment *segments = layout_segments(layout);
    const Side ours = {args, q, k}, theirs = {teacher, teacher_q, teacher_k};
    const int64_t longest = tensor_width(ratios);
    for (int32_t s = 0; s < layout->n_segments; s++) {
        const int64_t begin = segments[s].begin, end = segments[s].end;
#pragma omp parallel for schedule(dynamic) if ((end - begin) * longest > CPU_SERIAL / 16)
        for (int64_t row = begin; row < end; row++) {
            float *memory = cpu_scratch(CPU_LOCAL, (size_t)(4 * longest) * sizeof(float)), *student = memory + longest, *taught = student + longest;
            int32_t *rows = (int32_t *)(void *)(taught + longest);
            int64_t n = seen_rows(segments, s, row, rows);
            mean_probs(&ours, row, rows, n, memory, student);
            mean_probs(&theirs, row, rows, n, memory, taught);
            ((float *)y->elements)[row] = query_divergence(student, taught, n, (float *)ratios->elements + row * longest);
        }
    }
}

/* Adds what one query of head h gives to dq and dk. memory: 2 x n floats. */
static void query_backward(const Side *side, int64_t row, int64_t h, const int32_t *rows, int64_t n, const float *ratios, float dy, float *memory,
                           float *dq, float *dk) {
    const AttentionArgs *args = side->args;
    const int64_t d = args->head_dim, kv_width = args->n_kv_heads * d, kv_start = h / (args->n_heads / args->n_kv_heads) * d;
    float *probs = memory, *slopes = memory + n, q_buffer[RUN], k_buffer[RUN], *dq_row = dq + (row * args->n_heads + h) * d, mean = 0;
    const float *q = run_read(side->q, (row * args->n_heads + h) * d, d, q_buffer), factor = -dy / (float)args->n_heads;
    head_probs(side, row, h, rows, n, probs, slopes);
#pragma omp simd reduction(+ : mean)
    for (int64_t j = 0; j < n; j++) mean += probs[j] * ratios[j];
    for (int64_t j = 0; j < n; j++) {
        const int64_t key = rows[j] * kv_width + kv_start;
        const float *k = run_read(side->k, key, d, k_buffer), dproduct = factor * probs[j] * (ratios[j] - mean) * slopes[j];
        float *dk_row = dk + key;
        for (int64_t c = 0; c < d; c++) dq_row[c] += dproduct * k[c];
        for (int64_t c = 0; c < d; c++) dk_row[c] += dproduct * q[c];
    }
}

void ISA_FN(attention_divergence_backward)(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *ratios, const Tensor *dy,
                                           Tensor *dq, Tensor *dk) {
    if (!takes(args, q, k) || ratios->dtype != DT_F32 || dy->dtype != DT_F32 || dq->dtype != DT_F32 || dk->dtype != DT_F32) {
        device_reference()->attention_divergence_backward(args, q, k, ratios, dy, dq, dk);
        return;
    }
    const Layout *layout = args->layout;
    const Segment *segments = layout_segments(layout);
    const Side side = {args, q, k};
    const int64_t longest = tensor_width(ratios), group = args->n_heads / args->n_kv_heads;
    memset(dq->elements, 0, tensor_bytes(dq));
    memset(dk->elements, 0, tensor_bytes(dk));
#pragma omp parallel for schedule(static) if (layout->n_tokens * longest > CPU_SERIAL / 16)
    for (int64_t kv = 0; kv < args->n_kv_heads; kv++) {
        float *memory = cpu_scratch(CPU_LOCAL, (size_t)(3 * longest) * sizeof(float));
        int32_t *rows = (int32_t *)(void *)(memory + 2 * longest);
        for (int32_t s = 0; s < layout->n_segments; s++)
            for (int64_t row = segments[s].begin; row < segments[s].end; row++) {
                int64_t n = seen_rows(segments, s, row, rows);
                for (int64_t h = kv * group; h < (kv + 1) * group; h++)
                    query_backward(&side, row, h, rows, n, (const float *)ratios->elements + row * longest, ((const float *)dy->elements)[row],
                                   memory, dq->elements, dk->elements);
            }
    }
}
