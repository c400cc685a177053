/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the log-probabilities of tokens: one row of logits at a time. */
#include "lib/tensor/ref/ref.h"

#include <math.h>
#include <stdlib.h>

/* Logits of row `p` after soft-cap and temperature; slopes (NULL: not needed): derivative of each with respect to the plain product. */
static void row_logits(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, int64_t p, double *logits, double *slopes) {
    int64_t width = tensor_width(hidden), n_vocab = tensor_rows(head);
    for (int64_t v = 0; v < n_vocab; v++) {
        double sum = 0, slope = 1 / args->temperature;
        for (int64_t c = 0; c < width; c++) sum += element_get(hidden, p * width + c) * ref_weight(head, v * width + c);
        if (args->softcap != 0) {
            double t = tanh(sum / args->softcap);
            sum = args->softcap * t;
            slope *= 1 - t * t;
        }
        logits[v] = sum / args->temperature;
        if (slopes) slopes[v] = slope;
    }
}

void ref_token_logprobs(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets, const LogprobResults *results) {
    int64_t n_vocab = tensor_rows(head), width = tensor_width(head);
    double *logits = ref_zeros(n_vocab), *slopes = ref_zeros(n_vocab);
    for (int64_t p = 0; logits && slopes && p < tensor_rows(hidden); p++) {
        row_logits(args, hidden, head, p, logits, slopes);
        double largest = logits[0], sum = 0, weighted = 0, total = 0;
        for (int64_t v = 1; v < n_vocab; v++) largest = logits[v] > largest || isnan(logits[v]) ? logits[v] : largest;
        for (int64_t v = 0; v < n_vocab; v++) {
            sum += exp(logits[v] - largest);
            weighted += exp(logits[v] - largest) * logits[v];
            total += logits[v];
        }
        double norm = largest + log(sum);
        element_set(results->logsumexp, p, norm);
        element_set(results->logprob, p, logits[ref_index(targets, p)] - norm);
        if (results->entropy) element_set(results->entropy, p, norm - weighted / sum);
        if (results->mean) element_set(results->mean, p, total / (double)n_vocab - norm);
        if (!results->dlogp_dhidden) continue;
        for (int64_t v = 0; v < n_vocab; v++) slopes[v] *= (v == ref_index(targets, p)) - exp(logits[v] - norm);
        for (int64_t c = 0; c < width; c++) {
            double by_c = 0;
            for (int64_t v = 0; v < n_vocab; v++) by_c += slopes[v] * ref_weight(head, v * width + c);
            element_set(results->dlogp_dhidden, p * width + c, by_c);
        }
    }
    free(logits);
    free(slopes);
}

void ref_token_logits(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, Tensor *logits, Tensor *logsumexp) {
    int64_t n_vocab = tensor_rows(head);
    double *row = ref_zeros(n_vocab);
    for (int64_t p = 0; row && p < tensor_rows(hidden); p++) {
        row_logits(args, hidden, head, p, row, NULL);
        double largest = row[0], sum = 0;
        bool finite = true;
        for (int64_t v = 1; v < n_vocab; v++) largest = row[v] > largest ? row[v] : largest;
        for (int64_t v = 0; v < n_vocab; v++) {
            element_set(logits, p * n_vocab + v, row[v]);
            sum += exp(row[v] - largest);
            finite = finite && isfinite(row[v]);
        }
        element_set(logsumexp, p, finite ? largest + log(sum) : (double)NAN);
    }
    free(row);
}

void ref_token_logprobs_backward(const LogprobArgs *args, const Tensor *hidden, const Tensor *head, const Tensor *targets,
                                 const LogprobResults *results, const TokenLogprobs *grads, Tensor *dhidden, double head_beta, Tensor *dhead) {
    int64_t width = tensor_width(hidden), n_vocab = tensor_rows(head), n_rows = tensor_rows(hidden);
    double *logits = ref_zeros(n_vocab), *slopes = ref_zeros(n_vocab), *sums = ref_zeros(dhead ? n_vocab * width : 0);
    bool whole = logits && slopes && sums;
    for (int64_t p = 0; whole && p < n_rows; p++) {
        row_logits(args, hidden, head, p, logits, slopes);
        double norm = element_get(results->logsumexp, p);
        for (int64_t v = 0; v < n_vocab; v++) { /* logits become the gradient of the plain products */
            double logp = logits[v] - norm, prob = exp(logp), d = 0;
            if (grads->logprob) d += element_get(grads->logprob, p) * ((v == ref_index(targets, p)) - prob);
            if (grads->entropy) d -= element_get(grads->entropy, p) * prob * (logp + element_get(results->entropy, p));
            if (grads->mean) d += element_get(grads->mean, p) * (1 / (double)n_vocab - prob);
            logits[v] = d * slopes[v];
        }
        for (int64_t c = 0; c < width; c++) {
            double sum = 0;
            for (int64_t v = 0; v < n_vocab; v++) sum += logits[v] * ref_weight(head, v * width + c);
            if (dhidden) element_set(dhidden, p * width + c, sum);
        }
        for (int64_t v = 0; dhead && v < n_vocab; v++)
            for (int64_t c = 0; c < width; c++) sums[v * width + c] += logits[v] * element_get(hidden, p * width + c);
    }
    for (int64_t i = 0; whole && dhead && i < n_vocab * width; i++) ref_put(dhead, i, sums[i], head_beta);
    free(logits);
    free(slopes);
    free(sums);
}
