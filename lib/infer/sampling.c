/* SPDX-License-Identifier: Apache-2.0 */
/* From logits to a token. The order and the formulas are those of transformers' logits processors: biases, presence and frequency, repetition,
 * repeated n-grams, temperature, top-k, top-p, min-p, typical, epsilon, eta. Filtered tokens have logit -infinity. */
#include "lib/infer/infer.h"

#include <math.h>
#include <string.h>

static void penalize_counts(const SampleConfig *config, double *logits, const int32_t *tokens, size_t n, int32_t *counts, int64_t vocab) {
    if (config->presence_penalty == 0 && config->frequency_penalty == 0) return;
    memset(counts, 0, (size_t)vocab * sizeof *counts);
    for (size_t i = 0; i < n; i++) counts[tokens[i]]++;
    for (int64_t v = 0; v < vocab; v++)
        if (counts[v]) logits[v] -= config->presence_penalty + config->frequency_penalty * counts[v];
}

static void add_biases(const SampleConfig *config, double *logits) {
    for (size_t i = 0; i < config->n_bias; i++) logits[config->bias[i].id] += config->bias[i].bias;
}

/* Penalises each distinct token once, however often it occurs. */
static void penalize_repetition(double penalty, double *logits, const int32_t *tokens, size_t n, int32_t *seen, int64_t vocab) {
    if (penalty == 1) return;
    memset(seen, 0, (size_t)vocab * sizeof *seen);
    for (size_t i = 0; i < n; i++) {
        int32_t v = tokens[i];
        if (seen[v]++) continue;
        logits[v] = logits[v] < 0 ? logits[v] * penalty : logits[v] / penalty;
    }
}

static void ban_repeated_ngrams(int64_t size, double *logits, const int32_t *tokens, size_t n) {
    if (size <= 0 || n + 1 < (size_t)size) return;
    size_t context = (size_t)size - 1;
    for (size_t i = 0; i + context < n; i++)
        if (!memcmp(tokens + i, tokens + n - context, context * sizeof *tokens)) logits[tokens[i + context]] = -HUGE_VAL;
}

static double sampling_largest(const double *x, int64_t n) {
    double best = -HUGE_VAL;
    for (int64_t i = 0; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

/* log sum exp of all logits. */
static double log_sum(const double *logits, int64_t n) {
    double top = sampling_largest(logits, n), sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp(logits[i] - top);
    return top + log(sum);
}

/* ---- token ids by decreasing probability without a full sort: a heap; of equal ones the higher id comes first, as in a stable ascending sort
 * read backwards ---- */

typedef struct Likeliest {
    const double *keys;
    int32_t *ids;
    int64_t n;
} Likeliest;

static bool sampling_before(const Likeliest *heap, int32_t a, int32_t b) {
    return heap->keys[a] != heap->keys[b] ? heap->keys[a] > heap->keys[b] : a > b;
}

static void sift(Likeliest *heap, int64_t i) {
    int32_t id = heap->ids[i];
    for (int64_t child; (child = 2 * i + 1) < heap->n; i = child) {
        if (child + 1 < heap->n && sampling_before(heap, heap->ids[child + 1], heap->ids[child])) child++;
        if (!sampling_before(heap, heap->ids[child], id)) break;
        heap->ids[i] = heap->ids[child];
    }
    heap->ids[i] = id;
}

static Likeliest likeliest(const double *keys, int32_t *ids, int64_t n) {
    Likeliest heap = {keys, ids, n};
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)i;
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(&heap, i);
    return heap;
}

/* Removes the first id from the heap; the removed ids are at the end of `ids`. */
static int32_t sampling_take(Likeliest *heap) {
    int32_t id = heap->ids[0];
    heap->ids[0] = heap->ids[--heap->n];
    heap->ids[heap->n] = id;
    if (heap->n) sift(heap, 0);
    return id;
}

/* ---- filters ---- */

static void keep_top_k(int64_t k, double *logits, int64_t vocab, int32_t *scratch) {
    if (k <= 0 || k >= vocab) return;
    Likeliest heap = likeliest(logits, scratch, vocab);
    double kth = 0;
    for (int64_t i = 0; i < k; i++) kth = logits[sampling_take(&heap)];
    for (int64_t v = 0; v < vocab; v++)
        if (logits[v] < kth) logits[v] = -HUGE_VAL; /* tokens equal to the k-th stay */
}

/* Keeps the smallest set of most likely tokens with at least the mass p, including the token that crosses it. */
static void keep_top_p(double p, double *logits, int64_t vocab, int32_t *scratch) {
    if (p >= 1) return;
    double total = log_sum(logits, vocab), mass = 0;
    Likeliest heap = likeliest(logits, scratch, vocab);
    while (heap.n > 0) {
        mass += exp(logits[sampling_take(&heap)] - total);
        if (mass >= p) break;
    }
    for (int64_t i = 0; i < heap.n; i++) logits[heap.ids[i]] = -HUGE_VAL;
}

static void keep_min_p(double min_p, double *logits, int64_t vocab) {
    if (min_p <= 0) return;
    double floor = sampling_largest(logits, vocab) + log(min_p);
    for (int64_t v = 0; v < vocab; v++)
        if (logits[v] < floor) logits[v] = -HUGE_VAL;
}

static double entropy_of(const double *logits, int64_t vocab, double total) {
    double entropy = 0;
    for (int64_t v = 0; v < vocab; v++) {
        double logprob = logits[v] - total;
        if (logprob > -HUGE_VAL) entropy -= exp(logprob) * logprob;
    }
    return entropy;
}

/* Keeps the tokens whose surprise is nearest to the expected one, up to the mass. Source: arXiv 2202.00666. */
static void keep_typical(double mass, double *logits, int64_t vocab, const SampleScratch *scratch) {
    if (mass >= 1) return;
    double total = log_sum(logits, vocab), entropy = entropy_of(logits, vocab, total), sum = 0, farthest = 0;
    for (int64_t v = 0; v < vocab; v++) scratch->keys[v] = -fabs(total - logits[v] - entropy);
    Likeliest heap = likeliest(scratch->keys, scratch->ids, vocab);
    while (heap.n > 0) {
        int32_t id = sampling_take(&heap);
        farthest = scratch->keys[id];
        sum += exp(logits[id] - total);
        if (sum >= mass) break;
    }
    for (int64_t v = 0; v < vocab; v++)
        if (scratch->keys[v] < farthest) logits[v] = -HUGE_VAL;
}

/* Drops tokens below a probability, but never the most likely one. */
static void keep_above(double probability, double *logits, int64_t vocab) {
    double total = log_sum(logits, vocab), top = sampling_largest(logits, vocab);
    for (int64_t v = 0; v < vocab; v++)
        if (exp(logits[v] - total) < probability && logits[v] < top) logits[v] = -HUGE_VAL;
}

/* The threshold falls with the entropy of the distribution. Source: arXiv 2210.15191. */
static void keep_eta(double epsilon, double *logits, int64_t vocab) {
    double total = log_sum(logits, vocab);
    keep_above(fmin(epsilon, sqrt(epsilon) * exp(-entropy_of(logits, vocab, total))), logits, vocab);
}

bool sample_distribution(const SampleConfig *config, double *logits, int64_t vocab, const int32_t *history, size_t n_history, size_t prompt_length,
                         const SampleScratch *scratch) {
    ASSERT(prompt_length <= n_history, "a prompt of %zu tokens in a history of %zu", prompt_length, n_history);
    add_biases(config, logits);
    penalize_counts(config, logits, history + prompt_length, n_history - prompt_length, scratch->ids, vocab);
    penalize_repetition(config->repetition_penalty, logits, history, n_history, scratch->ids, vocab);
    ban_repeated_ngrams(config->no_repeat_ngram_size, logits, history, n_history);
    if (config->temperature != 1)
        for (int64_t v = 0; v < vocab; v++) logits[v] /= config->temperature;
    keep_top_k(config->top_k, logits, vocab, scratch->ids);
    keep_top_p(config->top_p, logits, vocab, scratch->ids);
    keep_min_p(config->min_p, logits, vocab);
    keep_typical(config->typical_p, logits, vocab, scratch);
    if (config->epsilon_cutoff > 0) keep_above(config->epsilon_cutoff, logits, vocab);
    if (config->eta_cutoff > 0) keep_eta(config->eta_cutoff, logits, vocab);
    double top = sampling_largest(logits, vocab), sum = 0;
    if (top == -HUGE_VAL) return false;
    for (int64_t v = 0; v < vocab; v++) sum += logits[v] = exp(logits[v] - top);
    for (int64_t v = 0; v < vocab; v++) logits[v] /= sum;
    return true;
}

int32_t sample_greedy(const SampleConfig *config, double *logits, int64_t vocab, const int32_t *history, size_t n_history, size_t prompt_length,
                      const SampleScratch *scratch) {
    add_biases(config, logits);
    penalize_counts(config, logits, history + prompt_length, n_history - prompt_length, scratch->ids, vocab);
    penalize_repetition(config->repetition_penalty, logits, history, n_history, scratch->ids, vocab);
    ban_repeated_ngrams(config->no_repeat_ngram_size, logits, history, n_history);
    double top = -HUGE_VAL;
    int32_t best = -1;
    for (int64_t v = 0; v < vocab; v++)
        if (logits[v] > top) top = logits[v], best = (int32_t)v;
    return best;
}

bool sample_is_greedy(const SampleConfig *config) { return config->greedy || config->temperature == 0; }

bool sample_is_plain(const SampleConfig *config) {
    bool penalties = config->repetition_penalty != 1 || config->presence_penalty != 0 || config->frequency_penalty != 0 ||
                     config->no_repeat_ngram_size > 0 || config->n_bias > 0;
    bool filters =
        config->top_k > 0 || config->top_p < 1 || config->min_p > 0 || config->typical_p < 1 || config->epsilon_cutoff > 0 || config->eta_cutoff > 0;
    return !penalties && (sample_is_greedy(config) || !filters);
}

int32_t sample_pick(const double *probabilities, int64_t vocab, double u) {
    double sum = 0;
    int64_t last = 0;
    for (int64_t v = 0; v < vocab; v++) {
        if (probabilities[v] <= 0) continue;
        sum += probabilities[v];
        if (sum > u) return (int32_t)v;
        last = v;
    }
    return (int32_t)last; /* u exceeds the sum, which rounding left below 1 */
}
