#include <math.h>

#include "rl/heads.h"

static double log_sum_exp(const double *logits, int64_t n) {
    double most = logits[categorical_best(logits, n)], sum = 0;
    for (int64_t a = 0; a < n; a++) sum += exp(logits[a] - most);
    return most + log(sum);
}

/* -sum p log p; an action with probability 0 adds nothing. */
static double categorical_entropy(const double *logits, int64_t n, double log_sum) {
    double entropy = 0;
    for (int64_t a = 0; a < n; a++) {
        double logprob = logits[a] - log_sum, p = exp(logprob);
        if (p != 0) entropy -= p * logprob;
    }
    return entropy;
}

Likelihood categorical_likelihood(const double *logits, int64_t n, int64_t action) {
    double log_sum = log_sum_exp(logits, n);
    return (Likelihood){logits[action] - log_sum, categorical_entropy(logits, n, log_sum)};
}

void categorical_grad(const double *logits, int64_t n, int64_t action, double dlogprob, double dentropy, double *dlogits) {
    double log_sum = log_sum_exp(logits, n), entropy = categorical_entropy(logits, n, log_sum);
    for (int64_t a = 0; a < n; a++) {
        double logprob = logits[a] - log_sum, p = exp(logprob);
        dlogits[a] = dlogprob * ((a == action) - p);
        if (p != 0) dlogits[a] -= dentropy * p * (logprob + entropy);
    }
}

int64_t categorical_best(const double *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t a = 1; a < n; a++)
        if (logits[a] > logits[best]) best = a;
    return best;
}

int64_t categorical_draw(const double *logits, int64_t n, double uniform) {
    double log_sum = log_sum_exp(logits, n), below = 0;
    int64_t last = 0; /* rounding may leave a little above the sum of all: that is the last action that can be taken */
    for (int64_t a = 0; a < n; a++) {
        double p = exp(logits[a] - log_sum);
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
