/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/heads.h"
#include "rl/core/q_losses.h"

double q_target(double reward, double gamma, bool terminated, const double *next_q, const double *choose_q, int64_t n_actions) {
    if (terminated) return reward;
    return reward + gamma * next_q[categorical_best(choose_q ? choose_q : next_q, n_actions)];
}

double td_loss(int64_t n, const double *q, const double *targets, const double *weights, double huber, double *grad) {
    double loss = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = q[i] - targets[i], share = (weights ? weights[i] : 1) / (double)n;
        if (huber <= 0) {
            loss += share * error * error;
            grad[i] = share * 2 * error;
        } else if (fabs(error) > huber) {
            loss += share * huber * (fabs(error) - huber / 2);
            grad[i] = share * copysign(huber, error);
        } else {
            loss += share * error * error / 2;
            grad[i] = share * error;
        }
    }
    return loss;
}

static int64_t count_trained(const bool *trained, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += !trained || trained[i];
    return MAX(count, 1);
}

double expectile_loss(int64_t n, const double *values, const double *targets, const bool *trained, double tau, double *grad) {
    double loss = 0, share = 1 / (double)count_trained(trained, n);
    for (int64_t i = 0; i < n; i++) {
        double below = targets[i] - values[i], weight = trained && !trained[i] ? 0 : share * (below < 0 ? 1 - tau : tau);
        loss += weight * below * below;
        grad[i] = -2 * weight * below;
    }
    return loss;
}

double conservative_loss(int64_t n, int64_t n_actions, const double *q, const int32_t *actions, const bool *trained, double *grad) {
    double loss = 0, share = 1 / (double)count_trained(trained, n);
    for (int64_t i = 0; i < n; i++) {
        double weight = trained && !trained[i] ? 0 : share;
        loss -= weight * categorical_likelihood(q + i * n_actions, n_actions, actions[i]).logprob;
        categorical_grad(q + i * n_actions, n_actions, actions[i], -weight, 0, grad + i * n_actions);
    }
    return loss;
}
