/* SPDX-License-Identifier: Apache-2.0 */
#include "rl/pairs/preference_losses.h"
#include "rl/core/ratio.h"

double kto_baseline(const double *logprobs, const double *ref_logprobs, int64_t n) {
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += (logprobs[i] - ref_logprobs[i]) / (double)n;
    return mean < 0 ? 0 : mean;
}

void kto_loss(const KtoConfig *config, const KtoBatch *batch, double *grad, KtoMetrics *metrics) {
    double share = 1 / (double)MAX(config->total ? config->total : batch->n, 1), beta = config->beta;
    *metrics = (KtoMetrics){0};
    for (int64_t i = 0; i < batch->n; i++) {
        double ratio = batch->logprobs[i] - batch->ref_logprobs[i], sign = batch->desirable[i] ? 1 : -1;
        double u = beta * sign * (ratio - batch->baseline);
        double weight =
            share * (batch->weights ? batch->weights[i] : 1) * (batch->desirable[i] ? config->desirable_weight : config->undesirable_weight);
        metrics->loss += weight * sigmoid(-u);
        grad[i] = -weight * sigmoid(u) * sigmoid(-u) * beta * sign;
        *(batch->desirable[i] ? &metrics->n_chosen : &metrics->n_rejected) += 1;
        *(batch->desirable[i] ? &metrics->rewards_chosen : &metrics->rewards_rejected) += beta * ratio;
        *(batch->desirable[i] ? &metrics->logps_chosen : &metrics->logps_rejected) += batch->logprobs[i];
    }
    double chosen = (double)MAX(metrics->n_chosen, 1), rejected = (double)MAX(metrics->n_rejected, 1);
    metrics->rewards_chosen /= chosen, metrics->logps_chosen /= chosen;
    metrics->rewards_rejected /= rejected, metrics->logps_rejected /= rejected;
}

void reward_model_loss(const RewardBatch *batch, double *grad_chosen, double *grad_rejected, RewardMetrics *metrics) {
    double share = 1 / (double)MAX(batch->total ? batch->total : batch->n, 1), per_pair = 1 / (double)MAX(batch->n, 1);
    *metrics = (RewardMetrics){0};
    for (int64_t i = 0; i < batch->n; i++) {
        double difference = batch->chosen[i] - batch->rejected[i], sum = batch->chosen[i] + batch->rejected[i];
        double beyond = difference - (batch->margins ? batch->margins[i] : 0), part = share * (batch->weights ? batch->weights[i] : 1);
        metrics->loss += part * (batch->centering * sum * sum - log_sigmoid(beyond));
        grad_chosen[i] = part * (2 * batch->centering * sum - sigmoid(-beyond));
        grad_rejected[i] = part * (2 * batch->centering * sum + sigmoid(-beyond));
        metrics->accuracy += difference > 0; /* a count, divided later: thirds do not add up to one */
        metrics->margin += per_pair * difference;
    }
    metrics->accuracy /= (double)MAX(batch->n, 1);
}
