/* SPDX-License-Identifier: Apache-2.0 */
/* The losses of implicit Q-learning on tokens, as plain functions in double. Source: Snell et al. 2022, arXiv 2206.11871, section 4, with the terms
 * and defaults of its reference implementations.
 *
 *     Q heads:  mean (Q_k(s, a) - (r + gamma V(s')))^2 for each head, Bellman targets from returns.h,
 *               + cql x the cross-entropy of Q_k, which prevents overestimation of tokens that are not in the rows
 *     V head:   expectile of the smaller target Q
 *     policy:   awac x mean exp(awac_beta (Q - V)) (-log p); with awac_beta 0 plain likelihood
 */
#ifndef TUNE_ILQL_LOSS_H
#define TUNE_ILQL_LOSS_H

#include "rl/core/rl.h"

typedef struct IlqlConfig {
    double gamma, expectile, cql, awac, awac_beta; /* discount; of the V loss, 0.5: the mean; cql, awac, awac_beta: as above */
} IlqlConfig;
typedef struct IlqlBatch {
    Trajectory tokens;          /* B = 1: actions, rewards, values (V of the state before each), terminated, truncated, valid (trained) */
    const double *final_values; /* V of the state after the last token of a truncated row; NULL: 0 */
    const double *target_q;     /* the smaller of the target heads' Q of the action */
    const double *logprobs;     /* under the policy */
    int64_t total;              /* trained tokens of the optimiser step when several calls share it; 0: of this batch */
} IlqlBatch;
typedef struct IlqlMetrics {
    double q_loss, v_loss, cql_loss, awac_loss, q, v, advantage; /* losses: parts of the step's means; the others: sums over trained tokens */
    int64_t tokens;                                              /* trained ones */
} IlqlMetrics;

/* Bellman targets r + gamma V(s'): (T), written. */
void ilql_targets(const IlqlConfig *config, const IlqlBatch *batch, double *targets);
/* Losses of one Q head; q: (T, n_actions); grad: the same shape, written. */
void ilql_q_loss(const IlqlConfig *config, const IlqlBatch *batch, const double *q, int64_t n_actions, const double *targets, double *grad,
                 IlqlMetrics *metrics);
/* Loss of the V head; grad: (T), written. */
void ilql_v_loss(const IlqlConfig *config, const IlqlBatch *batch, double *grad, IlqlMetrics *metrics);
/* Loss of the policy; grad: (T), d loss / d log-probability, written. Weights are constants; their logarithms are clamped to +-20. */
void ilql_policy_loss(const IlqlConfig *config, const IlqlBatch *batch, double *grad, IlqlMetrics *metrics);

#endif
