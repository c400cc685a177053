/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/heads.h"

/* Sums for softmax and entropy in one pass: of e^(l - max), and of e^(l - max) (l - max); an action with probability 0 adds nothing. */
typedef struct Sums {
    double most, sum, weighted;
} Sums;

static inline double weight_of(double logit, double most) { return logit == most ? 1 : exp(logit - most); }

static Sums sums_of(const double *logits, int64_t n) {
    Sums sums = {.most = logits[categorical_best(logits, n)]};
    for (int64_t a = 0; a < n; a++) {
        double e = weight_of(logits[a], sums.most);
        sums.sum += e;
        if (e != 0) sums.weighted += e * (logits[a] - sums.most);
    }
    return sums;
}

/* -sum p log p */
static double entropy_of(const Sums *sums) { return log(sums->sum) - sums->weighted / sums->sum; }

Likelihood categorical_likelihood(const double *logits, int64_t n, int64_t action) {
    Sums sums = sums_of(logits, n);
    return (Likelihood){logits[action] - sums.most - log(sums.sum), entropy_of(&sums)};
}

void categorical_grad(const double *logits, int64_t n, int64_t action, double dlogprob, double dentropy, double *dlogits) {
    Sums sums = sums_of(logits, n);
    double log_sum = log(sums.sum), entropy = log_sum - sums.weighted / sums.sum;
    for (int64_t a = 0; a < n; a++) {
        double p = weight_of(logits[a], sums.most) / sums.sum;
        dlogits[a] = dlogprob * ((a == action) - p);
        if (p != 0) dlogits[a] -= dentropy * p * (logits[a] - sums.most - log_sum + entropy);
    }
}

int64_t categorical_best(const double *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t a = 1; a < n; a++)
        if (logits[a] > logits[best]) best = a;
    return best;
}

int64_t categorical_draw(const double *logits, int64_t n, double uniform) {
    Sums sums = sums_of(logits, n);
    double below = 0;
    int64_t last = 0; /* rounding may leave `uniform` above the sum of all probabilities: then the last action that is not masked is drawn */
    for (int64_t a = 0; a < n; a++) {
        double p = weight_of(logits[a], sums.most) / sums.sum;
        if (p > 0) last = a;
        below += p;
        if (uniform < below) return a;
    }
    return last;
}

/* log sqrt(2 pi) */
#define GAUSSIAN_NORM 0.91893853320467274178

Likelihood gaussian_likelihood(const double *mean, const double *log_std, int64_t n, const double *action) {
    Likelihood likelihood = {0};
    for (int64_t k = 0; k < n; k++) {
        double z = (action[k] - mean[k]) * exp(-log_std[k]);
        likelihood.logprob -= z * z / 2 + log_std[k] + GAUSSIAN_NORM;
        likelihood.entropy += 0.5 + GAUSSIAN_NORM + log_std[k];
    }
    return likelihood;
}

void gaussian_grad(const double *mean, const double *log_std, int64_t n, const double *action, double dlogprob, double dentropy, double *dmean,
                   double *dlog_std) {
    for (int64_t k = 0; k < n; k++) {
        double precision = exp(-log_std[k]), z = (action[k] - mean[k]) * precision;
        dmean[k] = dlogprob * z * precision;
        dlog_std[k] = dlogprob * (z * z - 1) + dentropy;
    }
}

void gaussian_draw(const double *mean, const double *log_std, int64_t n, RngKey key, uint64_t index, double *action) {
    for (int64_t k = 0; k < n; k++) action[k] = mean[k] + exp(log_std[k]) * rng_normal(key, index * (uint64_t)n + (uint64_t)k);
}
