/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/kl.h"
#include "rl/core/ratio.h"

KlEstimate kl_estimate(KlKind kind, double logprob, double ref_logprob) {
    double d = log_ratio(logprob, ref_logprob);
    KlEstimate kl = kind == KL_K1 ? (KlEstimate){d, 1} : kind == KL_K2 ? (KlEstimate){d * d / 2, d} : (KlEstimate){expm1(-d) + d, -expm1(-d)};
    if (fabs(d) >= LOG_RATIO_LIMIT) kl.slope = 0;
    return kl;
}

void kl_rewards(KlKind kind, double coef, const double *logprobs, const double *ref_logprobs, const double *scores, int64_t n_sequences,
                const int64_t *begin, double *rewards) {
    for (int64_t i = 0; i < n_sequences; i++) {
        for (int64_t t = begin[i]; t < begin[i + 1]; t++) rewards[t] = -coef * kl_estimate(kind, logprobs[t], ref_logprobs[t]).value;
        if (scores && begin[i] < begin[i + 1]) rewards[begin[i + 1] - 1] += scores[i];
    }
}

void kl_scores(KlKind kind, double coef, const double *logprobs, const double *ref_logprobs, int64_t n_sequences, const int64_t *begin,
               double *scores) {
    for (int64_t i = 0; i < n_sequences; i++)
        for (int64_t t = begin[i]; t < begin[i + 1]; t++) scores[i] -= coef * kl_estimate(kind, logprobs[t], ref_logprobs[t]).value;
}

double kl_adapt(double coef, double kl, double target, double n_samples, double horizon) {
    return coef *
           (1 + clamp(kl / target - 1, -0.2, 0.2) *
                    fmin(n_samples / horizon, 1)); /* without the minimum, a batch larger than the horizon could make the coefficient negative */
}
