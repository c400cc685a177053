/* SPDX-License-Identifier: Apache-2.0 */
/* Targets and losses for learning Q and V by Bellman updates: DQN on environments, implicit Q-learning (ILQL) on tokens.
 *
 *     targets[i] = q_target(reward, gamma, terminated, next_q, NULL, n_actions);       // r + gamma max_a Q(s', a)
 *     double loss = td_loss(n, q_of_action, targets, NULL, 0, grad);                   // mean (q - target)^2
 *
 * For tokens the Bellman targets r_t + gamma V(s_{t+1}) come from returns_td_lambda with lambda = 0 and the V head's outputs as values.
 */
#ifndef TUNE_Q_LOSSES_H
#define TUNE_Q_LOSSES_H

#include "rl/core/rl.h"

/* r + gamma x the value of the best next action; the next state is worth 0 if the step terminated. For a truncated step pass the values of its final
 * observation. next_q: (n_actions), from the target network; choose_q: the values that select the best action (double Q-learning); NULL: next_q.
 * Sources: Nature 518, 529; arXiv 1509.06461. */
double q_target(double reward, double gamma, bool terminated, const double *next_q, const double *choose_q, int64_t n_actions);
/* Mean of w (q - target)^2 when huber is 0, else of w times Huber's loss: error^2 / 2 where |error| < huber, huber (|error| - huber / 2) beyond.
 * weights: w, from prioritised replay; NULL: 1. grad: (n), d loss / d q, written. */
double td_loss(int64_t n, const double *q, const double *targets, const double *weights, double huber, double *grad);
/* Mean of |tau - (u < 0)| u^2, u = target - value: tau 0.5 gives the mean; as tau approaches 1 the value approaches the largest of its targets. grad:
 * (n), d loss / d value, written. trained NULL: all. Source: arXiv 2110.06169, eq. 5. */
double expectile_loss(int64_t n, const double *values, const double *targets, const bool *trained, double tau, double *grad);
/* Mean over rows of log sum_a exp q(a) - q(action): prevents overestimation of actions that are not in the data. q: (n, n_actions); grad: the same
 * shape, written. Source: arXiv 2006.04779, eq. 4 (with the uniform prior); on a vocabulary it is the cross-entropy of the Q head. */
double conservative_loss(int64_t n, int64_t n_actions, const double *q, const int32_t *actions, const bool *trained, double *grad);

#endif
