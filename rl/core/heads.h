/* SPDX-License-Identifier: Apache-2.0 */
/* Action distributions over a policy network's outputs: categorical over logits, or Gaussian with a mean and a separate log standard deviation.
 * Log-probability, entropy and their gradients, one row at a time.
 *
 *     Likelihood now = categorical_likelihood(logits, n_actions, action); // for logprobs and entropies of a PolicyBatch
 *     policy_loss(loss, &config, &batch, grad, &metrics);
 *     categorical_grad(logits, n_actions, action, grad[i], metrics.grad_entropy, dlogits);
 */
#ifndef TUNE_HEADS_H
#define TUNE_HEADS_H

#include "rl/core/rl.h"

typedef struct Likelihood {
    double logprob, entropy;
} Likelihood; /* nats */

/* Probabilities are softmax(logits), logits: (n). A logit of minus infinity masks the action. */
Likelihood categorical_likelihood(const double *logits, int64_t n, int64_t action);
/* dlogits: (n), written: dlogprob x d logprob(action) / d logits + dentropy x d entropy / d logits. */
void categorical_grad(const double *logits, int64_t n, int64_t action, double dlogprob, double dentropy, double *dlogits);
int64_t categorical_draw(const double *logits, int64_t n, double uniform); /* inverse CDF; uniform: in [0, 1) */
int64_t categorical_best(const double *logits, int64_t n);                 /* the first of equal largest logits */

/* n independent Gaussians; log-probability and entropy are sums over them. */
Likelihood gaussian_likelihood(const double *mean, const double *log_std, int64_t n, const double *action);
/* dmean, dlog_std: (n), written. */
void gaussian_grad(const double *mean, const double *log_std, int64_t n, const double *action, double dlogprob, double dentropy, double *dmean,
                   double *dlog_std);
/* Samples an action with draws index * n .. index * n + n - 1 of `key`. */
void gaussian_draw(const double *mean, const double *log_std, int64_t n, RngKey key, uint64_t index, double *action);

#endif
