/* SPDX-License-Identifier: Apache-2.0 */
#include "rl/offline/ilql_loss.h"

#include <math.h>

#include "rl/core/q_losses.h"
#include "rl/core/ratio.h"
#include "rl/core/returns.h"

static bool is_trained(const IlqlBatch *batch, int64_t t) { return !batch->tokens.valid || batch->tokens.valid[t]; }

static int64_t ilql_loss_count(const IlqlBatch *batch) {
    int64_t n = 0;
    for (int64_t t = 0; t < batch->tokens.T; t++) n += is_trained(batch, t);
    return n;
}

/* The weight of a token in the step's mean. */
static double share_of(const IlqlBatch *batch) { return 1 / (double)MAX(batch->total ? batch->total : ilql_loss_count(batch), 1); }

void ilql_targets(const IlqlConfig *config, const IlqlBatch *batch, double *targets) {
    returns_td_lambda(&batch->tokens, (Bootstrap){.final_values = batch->final_values}, config->gamma, 0, targets);
}

void ilql_q_loss(const IlqlConfig *config, const IlqlBatch *batch, const double *q, int64_t n_actions, const double *targets, double *grad,
                 IlqlMetrics *metrics) {
    const Trajectory *tokens = &batch->tokens;
    double share = share_of(batch), scale = share * (double)ilql_loss_count(batch); /* rescales a mean over this batch to the step */
    metrics->cql_loss += scale * conservative_loss(tokens->T, n_actions, q, tokens->actions, tokens->valid, grad);
    for (int64_t i = 0; i < tokens->T * n_actions; i++) grad[i] *= scale * config->cql;
    for (int64_t t = 0; t < tokens->T; t++) {
        if (!is_trained(batch, t)) continue;
        int64_t at = t * n_actions + tokens->actions[t];
        double error = q[at] - targets[t];
        metrics->q_loss += share * error * error;
        grad[at] += share * 2 * error;
    }
}

void ilql_v_loss(const IlqlConfig *config, const IlqlBatch *batch, double *grad, IlqlMetrics *metrics) {
    const Trajectory *tokens = &batch->tokens;
    double scale = share_of(batch) * (double)ilql_loss_count(batch);
    metrics->v_loss += scale * expectile_loss(tokens->T, tokens->values, batch->target_q, tokens->valid, config->expectile, grad);
    for (int64_t t = 0; t < tokens->T; t++) {
        grad[t] *= scale;
        if (!is_trained(batch, t)) continue;
        metrics->tokens++;
        metrics->q += batch->target_q[t];
        metrics->v += tokens->values[t];
        metrics->advantage += batch->target_q[t] - tokens->values[t];
    }
}

void ilql_policy_loss(const IlqlConfig *config, const IlqlBatch *batch, double *grad, IlqlMetrics *metrics) {
    double share = share_of(batch);
    for (int64_t t = 0; t < batch->tokens.T; t++) {
        double weight =
            !is_trained(batch, t)
                ? 0
                : share * exp(clamp(config->awac_beta * (batch->target_q[t] - batch->tokens.values[t]), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT));
        metrics->awac_loss -= weight * batch->logprobs[t];
        grad[t] = -config->awac * weight;
    }
}
