/* SPDX-License-Identifier: Apache-2.0 */
/* Targets and losses of Q and V that are learned by Bellman updates: DQN on environments, implicit Q-learning (ILQL) on tokens.
 *
 *     targets[i] = q_target(reward, gamma, terminated, next_q, NULL, n_actions);       // r + gamma max_a Q(s', a)
 *     double loss = td_loss(n, q_of_action, targets, NULL, 0, grad);                   // mean (q - target)^2
 *
 * For tokens the Bellman targets r_t + gamma V(s_{t+1}) are returns_td_lambda's with lambda = 0 and the V head's numbers as values.
 */
#ifndef TUNE_Q_LOSSES_H
#define TUNE_Q_LOSSES_H

#include "rl/core/rl.h"

/* r + gamma x the value of the best next action, 0 behind a terminated step (a truncated one is given the values of its final observation). next_q:
 * (n_actions), of the target network; choose_q: the network that says which action is best (double Q-learning); NULL: next_q itself. Sources: Nature
 * 518, 529; arXiv 1509.06461. */
double q_target(double reward, double gamma, bool terminated, const double *next_q, const double *choose_q, int64_t n_actions);
/* Mean of w (q - target)^2 when huber is 0, else of w times Huber's loss, |error| < huber: error^2 / 2, beyond: huber (|error| - huber / 2). weights:
 * of prioritised replay; NULL: 1. grad: (n), d loss / d q, written. */
double td_loss(int64_t n, const double *q, const double *targets, const double *weights, double huber, double *grad);
/* Mean of |tau - (u < 0)| u^2, u = target - value: tau 0.5 is the mean, towards 1 the value leans on the best of its targets. grad: (n), by value.
 * trained NULL: all. Source: arXiv 2110.06169, eq. 5. */
double expectile_loss(int64_t n, const double *values, const double *targets, const bool *trained, double tau, double *grad);
/* Mean over rows of log sum_a exp q(a) - q(action): what keeps actions that the data lacks from being overrated. q: (n, n_actions); grad: the same
 * shape, written. Source: arXiv 2006.04779, eq. 4 (with the uniform prior); on a vocabulary it is the cross-entropy of the Q head. */
double conservative_loss(int64_t n, int64_t n_actions, const double *q, const int32_t *actions, const bool *trained, double *grad);

#endif
