/* SPDX-License-Identifier: Apache-2.0 */
/* How far the policy has gone from the reference: estimates of KL(policy || reference) from the log-probabilities of sampled tokens, in the loss or
 * in the reward.
 *
 *     KlEstimate kl = kl_estimate(KL_K3, logprob, ref_logprob);
 *     loss += beta * kl.value; grad += beta * kl.slope;
 */
#ifndef TUNE_KL_H
#define TUNE_KL_H

#include "rl/core/rl.h"

/* With d = logprob - ref_logprob: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. In the reward k1 is the right one. In the loss the gradient of k1 has
 * mean 0, that of k2 is the gradient of KL(policy || reference), that of k3 is the one of KL(reference || policy). Source: J. Schulman,
 * "Approximating KL divergence". */
typedef enum KlKind { KL_K1, KL_K2, KL_K3 } KlKind;

typedef struct KlEstimate {
    double value, slope;
} KlEstimate; /* nats; slope: derivative by logprob */
/* d is kept within +-20 (ratio.h); outside the slope is 0. */
KlEstimate kl_estimate(KlKind kind, double logprob, double ref_logprob);

/* Rewards of tokens: -coef x kl at each, and the sequence's score (NULL: none) added at its last one. Sequence i has tokens begin[i] .. begin[i + 1]
 * - 1; an empty sequence loses its score. */
void kl_rewards(KlKind kind, double coef, const double *logprobs, const double *ref_logprobs, const double *scores, int64_t n_sequences,
                const int64_t *begin, double *rewards);
/* The same for rewards that are one number a sequence: scores[i] -= coef x the sum of kl over its tokens. RLOO and GRPO take it so, before
 * completions are compared. */
void kl_scores(KlKind kind, double coef, const double *logprobs, const double *ref_logprobs, int64_t n_sequences, const int64_t *begin,
               double *scores);
/* The coefficient after n_samples more at this mean KL per sequence: coef x (1 + clip(kl / target - 1, +-0.2) n_samples / horizon). Source: arXiv
 * 1909.08593, section 2.2. */
double kl_adapt(double coef, double kl, double target, double n_samples, double horizon);

#endif
