/* SPDX-License-Identifier: Apache-2.0 */
/* Reference attention: one query of one head at a time, over the list of visible keys. */
#include "lib/tensor/ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One query token and its visible keys, at positions first..position of its sequence. */
typedef struct Query {
    const AttentionArgs *args;
    int32_t segment;
    int64_t row, position, first;
} Query;

static Query query_at(const AttentionArgs *args, int32_t segment, int64_t row) {
    const Segment *segments = layout_segments(args->layout);
    int64_t position = layout_offset(segments, segment) + row - segments[segment].begin;
    int64_t first = args->window > 0 ? MAX(0, position - args->window + 1) : 0;
    return (Query){args, segment, row, position, first};
}

static int64_t cache_row(const Layout *layout, const Segment *segment, int64_t position) {
    int64_t size = layout->cache->page_size;
    return layout_pages(layout)[segment->first_page + position / size] * size + position % size;
}

/* Row of the token at `position`: in the cache's pages if there is a cache, else in the flat batch, in the segment or an ancestor. */
static int64_t key_row(const Query *query, int64_t position) {
    const Layout *layout = query->args->layout;
    const Segment *segments = layout_segments(layout);
    if (layout->cache) return cache_row(layout, &segments[query->segment], position);
    int32_t s = query->segment;
    while (position < layout_offset(segments, s)) s = segments[s].parent;
    return segments[s].begin + position - layout_offset(segments, s);
}

static double ref_attention_dot(const Tensor *a, int64_t a_start, const Tensor *b, int64_t b_start, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += element_get(a, a_start + i) * element_get(b, b_start + i);
    return sum;
}

/* Score of a plain product q k, and its derivative with respect to that product. */
static double score_of(const AttentionArgs *args, double product, double *slope) {
    double score = args->scale * product;
    *slope = args->scale;
    if (args->softcap == 0) return score;
    double t = tanh(score / args->softcap);
    *slope *= 1 - t * t;
    return args->softcap * t;
}

void ref_kv_store(const AttentionArgs *args, const Tensor *k, const Tensor *v) {
    const Layout *layout = args->layout;
    int64_t width = args->n_kv_heads * args->head_dim;
    Tensor *pages[] = {layout->cache->k[args->layer], layout->cache->v[args->layer]};
    const Tensor *news[] = {k, v};
    for (int32_t s = 0; s < layout->n_segments; s++) {
        const Segment *segment = &layout_segments(layout)[s];
        for (int64_t row = segment->begin; row < segment->end; row++)
            for (int64_t c = 0; c < 2 * width; c++) {
                int64_t target = cache_row(layout, segment, segment->past + row - segment->begin) * width + c % width;
                element_set(pages[c / width], target, element_get(news[c / width], row * width + c % width));
            }
    }
}

static void attend(const Query *query, int64_t h, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y, Tensor *logsumexp, double *scores,
                   double *out) {
    const AttentionArgs *args = query->args;
    int64_t d = args->head_dim, kv_width = args->n_kv_heads * d, kv_start = h / (args->n_heads / args->n_kv_heads) * d;
    int64_t q_start = (query->row * args->n_heads + h) * d, n_keys = query->position - query->first + 1;
    double largest = -HUGE_VAL, sum = 0, slope;
    for (int64_t j = 0; j < n_keys; j++) {
        scores[j] = score_of(args, ref_attention_dot(q, q_start, k, key_row(query, query->first + j) * kv_width + kv_start, d), &slope);
        if (scores[j] > largest || isnan(scores[j])) largest = scores[j];
    }
    for (int64_t j = 0; j < n_keys; j++) sum += scores[j] = exp(scores[j] - largest);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t j = 0; j < n_keys; j++) {
        int64_t key = key_row(query, query->first + j) * kv_width + kv_start;
        for (int64_t c = 0; c < d; c++) out[c] += scores[j] / sum * element_get(v, key + c);
    }
    for (int64_t c = 0; c < d; c++) element_set(y, q_start + c, out[c]);
    if (logsumexp) element_set(logsumexp, query->row * args->n_heads + h, largest + log(sum));
}

static int64_t longest_sequence(const Layout *layout) {
    const Segment *segments = layout_segments(layout);
    int64_t longest = 0;
    for (int32_t s = 0; s < layout->n_segments; s++) longest = MAX(longest, layout_offset(segments, s) + segments[s].end - segments[s].begin);
    return longest;
}

void ref_attention(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, Tensor *y, Tensor *logsumexp) {
    const Layout *layout = args->layout;
    const Tensor *keys = layout->cache ? layout->cache->k[args->layer] : k, *values = layout->cache ? layout->cache->v[args->layer] : v;
    const Segment *segments = layout_segments(layout);
    double *scores = ref_zeros(longest_sequence(layout)), *out = ref_zeros(args->head_dim);
    for (int32_t s = 0; scores && out && s < layout->n_segments; s++)
        for (int64_t row = segments[s].begin; row < segments[s].end; row++) {
            Query query = query_at(args, s, row);
            for (int64_t h = 0; h < args->n_heads; h++) attend(&query, h, q, keys, values, y, logsumexp, scores, out);
        }
    free(scores);
    free(out);
}

/* Sums of the backward pass: dq of one query head, dk and dv of the whole batch. */
typedef struct Sums {
    double *dq, *dk, *dv;
} Sums;

static void attend_backward(const Query *query, int64_t h, const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *y,
                            const Tensor *logsumexp, const Tensor *dy, Sums *sums) {
    const AttentionArgs *args = query->args;
    int64_t d = args->head_dim, kv_width = args->n_kv_heads * d, kv_start = h / (args->n_heads / args->n_kv_heads) * d;
    int64_t q_start = (query->row * args->n_heads + h) * d;
    double norm = element_get(logsumexp, query->row * args->n_heads + h), mean = ref_attention_dot(dy, q_start, y, q_start, d);
    for (int64_t position = query->first; position <= query->position; position++) {
        int64_t key = key_row(query, position) * kv_width + kv_start;
        double slope, score = score_of(args, ref_attention_dot(q, q_start, k, key, d), &slope), prob = exp(score - norm);
        double dproduct = prob * (ref_attention_dot(dy, q_start, v, key, d) - mean) * slope;
        for (int64_t c = 0; c < d; c++) {
            sums->dq[q_start + c] += dproduct * element_get(k, key + c);
            sums->dk[key + c] += dproduct * element_get(q, q_start + c);
            sums->dv[key + c] += prob * element_get(dy, q_start + c);
        }
    }
}

void ref_attention_backward(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *v, const Tensor *y, const Tensor *logsumexp,
                            const Tensor *dy, const double beta[3], Tensor *dq, Tensor *dk, Tensor *dv) {
    const Layout *layout = args->layout;
    ASSERT(!layout->cache, "attention's backward pass knows no cache");
    int64_t n_q = tensor_count(q), n_k = tensor_count(k);
    Sums sums = {ref_zeros(n_q), ref_zeros(n_k), ref_zeros(n_k)};
    bool whole = sums.dq && sums.dk && sums.dv;
    const Segment *segments = layout_segments(layout);
    for (int32_t s = 0; whole && s < layout->n_segments; s++)
        for (int64_t row = segments[s].begin; row < segments[s].end; row++) {
            Query query = query_at(args, s, row);
            for (int64_t h = 0; h < args->n_heads; h++) attend_backward(&query, h, q, k, v, y, logsumexp, dy, &sums);
        }
    for (int64_t i = 0; whole && dq && i < n_q; i++) ref_put(dq, i, sums.dq[i], beta[0]);
    for (int64_t i = 0; whole && dk && i < n_k; i++) ref_put(dk, i, sums.dk[i], beta[1]);
    for (int64_t i = 0; whole && dv && i < n_k; i++) ref_put(dv, i, sums.dv[i], beta[2]);
    free(sums.dq);
    free(sums.dk);
    free(sums.dv);
}

void ref_attention_sinks(const Tensor *sinks, Tensor *y, Tensor *logsumexp) {
    int64_t n_heads = tensor_count(sinks), d = tensor_width(y) / n_heads;
    for (int64_t i = 0; i < tensor_count(logsumexp); i++) {
        double keys = element_get(logsumexp, i), sink = element_get(sinks, i % n_heads), largest = fmax(keys, sink),
               all = largest + log(exp(keys - largest) + exp(sink - largest));
        for (int64_t c = i * d; c < (i + 1) * d; c++) element_set(y, c, exp(keys - all) * element_get(y, c));
        element_set(logsumexp, i, all);
    }
}

void ref_attention_sinks_backward(const Tensor *sinks, const Tensor *y, const Tensor *logsumexp, const Tensor *dy, Tensor *dsinks) {
    int64_t n_heads = tensor_count(sinks), d = tensor_width(y) / n_heads;
    for (int64_t h = 0; h < n_heads; h++) {
        double sum = 0;
        for (int64_t i = h; i < tensor_count(logsumexp); i += n_heads)
            sum -= exp(element_get(sinks, h) - element_get(logsumexp, i)) * ref_attention_dot(dy, i * d, y, i * d, d);
        ref_put(dsinks, h, sum, 1);
    }
}

/* probs[j] = the head's probability of key j, of the n_keys that the query sees. */
static void head_probs(const Query *query, int64_t h, const Tensor *q, const Tensor *k, double *probs) {
    const AttentionArgs *args = query->args;
    int64_t d = args->head_dim, kv_width = args->n_kv_heads * d, kv_start = h / (args->n_heads / args->n_kv_heads) * d;
    double largest = -HUGE_VAL, sum = 0, slope;
    for (int64_t j = 0; j <= query->position; j++) {
        probs[j] = score_of(args, ref_attention_dot(q, (query->row * args->n_heads + h) * d, k, key_row(query, j) * kv_width + kv_start, d), &slope);
        largest = fmax(largest, probs[j]);
    }
    for (int64_t j = 0; j <= query->position; j++) sum += probs[j] = exp(probs[j] - largest);
    for (int64_t j = 0; j <= query->position; j++) probs[j] /= sum;
}

/* means[j] = the mean over heads. */
static void mean_probs(const Query *query, const Tensor *q, const Tensor *k, double *probs, double *means) {
    const int64_t n_heads = query->args->n_heads;
    memset(means, 0, (size_t)(query->position + 1) * sizeof *means);
    for (int64_t h = 0; h < n_heads; h++) {
        head_probs(query, h, q, k, probs);
        for (int64_t j = 0; j <= query->position; j++) means[j] += probs[j] / (double)n_heads;
    }
}

void ref_attention_divergence(const AttentionArgs *args, const Tensor *q, const Tensor *k, const AttentionArgs *teacher, const Tensor *teacher_q,
                              const Tensor *teacher_k, Tensor *y, Tensor *ratios) {
    const Layout *layout = args->layout;
    const Segment *segments = layout_segments(layout);
    int64_t longest = longest_sequence(layout);
    double *probs = ref_zeros(longest), *s = ref_zeros(longest), *t = ref_zeros(longest);
    for (int32_t i = 0; probs && s && t && i < layout->n_segments; i++)
        for (int64_t row = segments[i].begin; row < segments[i].end; row++) {
            Query query = query_at(args, i, row), theirs = query_at(teacher, i, row);
            double sum = 0;
            mean_probs(&query, q, k, probs, s);
            mean_probs(&theirs, teacher_q, teacher_k, probs, t);
            for (int64_t j = 0; j <= query.position; j++) {
                sum += t[j] > 0 ? t[j] * log(t[j] / s[j]) : 0;
                element_set(ratios, row * tensor_width(ratios) + j, t[j] > 0 ? t[j] / s[j] : 0);
            }
            element_set(y, row, sum);
        }
    free(probs);
    free(s);
    free(t);
}

/* Adds to the sums of dq and dk for one query of one head. */
static void head_divergence_backward(const Query *query, int64_t h, const Tensor *q, const Tensor *k, const Tensor *ratios, double dy, double *probs,
                                     Sums *sums) {
    const AttentionArgs *args = query->args;
    int64_t d = args->head_dim, kv_width = args->n_kv_heads * d, kv_start = h / (args->n_heads / args->n_kv_heads) * d,
            q_start = (query->row * args->n_heads + h) * d, at = query->row * tensor_width(ratios);
    double mean = 0;
    head_probs(query, h, q, k, probs);
    for (int64_t j = 0; j <= query->position; j++) mean += probs[j] * element_get(ratios, at + j);
    for (int64_t j = 0; j <= query->position; j++) {
        int64_t key = key_row(query, j) * kv_width + kv_start;
        double slope;
        (void)score_of(args, ref_attention_dot(q, q_start, k, key, d), &slope);
        double dproduct = -dy / (double)args->n_heads * probs[j] * (element_get(ratios, at + j) - mean) * slope;
        for (int64_t c = 0; c < d; c++) {
            sums->dq[q_start + c] += dproduct * element_get(k, key + c);
            sums->dk[key + c] += dproduct * element_get(q, q_start + c);
        }
    }
}

void ref_attention_divergence_backward(const AttentionArgs *args, const Tensor *q, const Tensor *k, const Tensor *ratios, const Tensor *dy,
                                       Tensor *dq, Tensor *dk) {
    const Layout *layout = args->layout;
    const Segment *segments = layout_segments(layout);
    int64_t n_q = tensor_count(q), n_k = tensor_count(k);
    Sums sums = {.dq = ref_zeros(n_q), .dk = ref_zeros(n_k)};
    double *probs = ref_zeros(longest_sequence(layout));
    bool whole = sums.dq && sums.dk && probs;
    for (int32_t s = 0; whole && s < layout->n_segments; s++)
        for (int64_t row = segments[s].begin; row < segments[s].end; row++) {
            Query query = query_at(args, s, row);
            for (int64_t h = 0; h < args->n_heads; h++) head_divergence_backward(&query, h, q, k, ratios, element_get(dy, row), probs, &sums);
        }
    for (int64_t i = 0; whole && i < n_q; i++) element_set(dq, i, sums.dq[i]);
    for (int64_t i = 0; whole && i < n_k; i++) element_set(dk, i, sums.dk[i]);
    free(sums.dq);
    free(sums.dk);
    free(probs);
}
