/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates of KL(policy || reference) from the log-probabilities of sampled tokens, for use in the loss or in the reward.
 *
 *     KlEstimate kl = kl_estimate(KL_K3, logprob, ref_logprob);
 *     loss += beta * kl.value; grad += beta * kl.slope;
 */
#ifndef TUNE_KL_H
#define TUNE_KL_H

#include "rl/core/rl.h"

/* With d = logprob - ref_logprob: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. Use k1 in the reward. In the loss the expected gradient of k1 is 0, of
 * k2 the gradient of KL(policy || reference), of k3 the gradient of KL(reference || policy). Source: J. Schulman, "Approximating KL divergence". */
typedef enum KlKind { KL_K1, KL_K2, KL_K3 } KlKind;

typedef struct KlEstimate {
    double value, slope;
} KlEstimate; /* value in nats; slope: derivative with respect to logprob */
/* d is clamped to +-20 (ratio.h); the slope is 0 where it was clamped. */
KlEstimate kl_estimate(KlKind kind, double logprob, double ref_logprob);

/* Per-token rewards, written: -coef x kl at each token, plus the sequence's score (NULL: none) at its last token. Sequence i has tokens begin[i] ..
 * begin[i + 1] - 1; the score of an empty sequence is dropped. */
void kl_rewards(KlKind kind, double coef, const double *logprobs, const double *ref_logprobs, const double *scores, int64_t n_sequences,
                const int64_t *begin, double *rewards);
/* Per-sequence rewards: scores[i] -= coef x the sum of kl over its tokens. RLOO and GRPO apply the KL this way, before they compare completions. */
void kl_scores(KlKind kind, double coef, const double *logprobs, const double *ref_logprobs, int64_t n_sequences, const int64_t *begin,
               double *scores);
/* Adaptive coefficient: its value after n_samples more samples with mean KL `kl` per sequence: coef x (1 + clip(kl / target - 1, +-0.2) n_samples /
 * horizon). Source: arXiv 1909.08593, section 2.2. */
double kl_adapt(double coef, double kl, double target, double n_samples, double horizon);

#endif
