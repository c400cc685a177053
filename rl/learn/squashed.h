/* SPDX-License-Identifier: Apache-2.0 */
/* Tanh-squashed Gaussian actions in (-1, 1): a = tanh(u), u = mean + std x noise, with the log-probability after squashing and its reparameterised
 * gradient. Source: arXiv 1801.01290, appendix C. */
#ifndef TUNE_SQUASHED_H
#define TUNE_SQUASHED_H

#include "rl/core/rl.h"

/* log_std is clamped to this range, and its gradient is 0 outside. */
#define SQUASHED_LEAST (-20.0)
#define SQUASHED_MOST 2.0

/* Writes the action (n) for the given noise (n) and returns log p(action) in nats, which is finite even where tanh(u) rounds to 1. */
double squashed_sample(const double *mean, const double *log_std, const double *noise, int64_t n, double *action);
/* dmean, dlog_std: (n), written: gradients of dlogprob x log p(action) + daction . action, with the noise held fixed. */
void squashed_grad(const double *mean, const double *log_std, const double *noise, int64_t n, double dlogprob, const double *daction, double *dmean,
                   double *dlog_std);

#endif
