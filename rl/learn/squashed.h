/* SPDX-License-Identifier: Apache-2.0 */
/* Actions in (-1, 1): a = tanh(u) of normal u, with the log-probability that the squashing leaves, and its gradient along the path u = mean + std x
 * noise. Source: arXiv 1801.01290, appendix C. */
#ifndef TUNE_SQUASHED_H
#define TUNE_SQUASHED_H

#include "rl/core/rl.h"

/* log_std is brought into this range first, and its gradient is 0 outside. */
#define SQUASHED_LEAST (-20.0)
#define SQUASHED_MOST 2.0

/* n numbers; returns log p(action) for these noises, nats. It is finite also where tanh(u) rounds to 1. */
double squashed_sample(const double *mean, const double *log_std, const double *noise, int64_t n, double *action);
/* dmean, dlog_std: (n), written: of dlogprob x log p(action) + daction . action, the noise held fixed. */
void squashed_grad(const double *mean, const double *log_std, const double *noise, int64_t n, double dlogprob, const double *daction, double *dmean,
                   double *dlog_std);

#endif
