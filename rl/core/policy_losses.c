/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "rl/core/policy_losses.h"
#include "rl/core/ratio.h"

/* ---- the losses of one token ---- */

/* -A log pi: REINFORCE. */
static Surrogate surrogate_logprob(const PolicyLossConfig *config, double logprob, double log_ratio, double advantage) {
    (void)config, (void)log_ratio;
    return (Surrogate){.value = -advantage * logprob, .by_logprob = -advantage};
}

static double clip_high_of(const PolicyLossConfig *config) { return config->clip_high > 0 ? config->clip_high : config->clip; }

/* -min(ratio A, clip(ratio) A): the loss does not reward moving a token's probability beyond the clip. */
static Surrogate surrogate_clipped(const PolicyLossConfig *config, double logprob, double log_ratio, double advantage) {
    (void)logprob;
    double ratio = exp(log_ratio), plain = ratio, clipped = clamp(ratio, 1 - config->clip, 1 + clip_high_of(config));
    if (config->ratio_cap > 0) plain = clamp(ratio, 0, config->ratio_cap);
    double plain_slope = plain == ratio ? ratio : 0, clipped_slope = clipped == ratio ? ratio : 0;
    double value = MIN(plain * advantage, clipped * advantage);
    double slope = (plain_slope + clipped_slope) / 2; /* a tie: half of each slope */
    if (plain * advantage != clipped * advantage) slope = plain * advantage < clipped * advantage ? plain_slope : clipped_slope;
    if (config->dual_clip > 0 && advantage < 0 && value < config->dual_clip * advantage) value = config->dual_clip * advantage, slope = 0;
    return (Surrogate){.value = -value, .by_log_ratio = -slope * advantage};
}

static double cap_of(const PolicyLossConfig *config) { return config->clip_high > 0 ? config->clip_high : 5; }

/* -min(ratio, cap) A log pi: the capped ratio is a constant weight, so no token loses its gradient. */
static Surrogate surrogate_capped(const PolicyLossConfig *config, double logprob, double log_ratio, double advantage) {
    double weight = clamp(exp(log_ratio), 0, cap_of(config));
    return (Surrogate){.value = -weight * advantage * logprob, .by_logprob = -weight * advantage};
}

/* -(4 / tau) sigmoid(tau (ratio - 1)) A, with a larger tau where the advantage is not positive. */
static Surrogate surrogate_gated(const PolicyLossConfig *config, double logprob, double log_ratio, double advantage) {
    (void)config, (void)logprob;
    double tau = advantage > 0 ? 1 : 1.05, ratio = exp(log_ratio), gate = sigmoid(tau * (ratio - 1));
    return (Surrogate){.value = -4 / tau * gate * advantage, .by_log_ratio = -4 * gate * (1 - gate) * ratio * advantage};
}

/* -phi(w) A log pi. phi, shaped like a gamma density of the sequence's ratio w and 1 at w = 1, is a constant weight: sequences far from the policy
 * fade out smoothly. */
static Surrogate surrogate_faded(const PolicyLossConfig *config, double logprob, double log_ratio, double advantage) {
    (void)config;
    double power = advantage >= 0 ? 2 : 3, rate = advantage >= 0 ? 3 : 2, log_w = clamp(log_ratio, log(1e-8), LOG_RATIO_LIMIT);
    double weight = exp(rate + power * log_w - rate * exp(log_w));
    return (Surrogate){.value = -weight * advantage * logprob, .by_logprob = -weight * advantage};
}

static const PolicyLoss policy_losses[] = {
#define POLICY_LOSS(name, surrogate, ratio_of, aggregation) {#name, surrogate_##surrogate, ratio_of, aggregation},
#include "rl/core/policy_losses.def"
#undef POLICY_LOSS
};

const PolicyLoss *policy_loss_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(policy_losses); i++)
        if (strcmp(policy_losses[i].name, name) == 0) return &policy_losses[i];
    return NULL;
}

/* ---- a batch ---- */

static int64_t begin_of(const PolicyBatch *batch, int64_t sequence) { return batch->begin ? batch->begin[sequence] : sequence; }

static bool is_trained(const PolicyBatch *batch, int64_t t) { return !batch->trained || batch->trained[t]; }

static int64_t count_trained(const PolicyBatch *batch, int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t t = begin; t < end; t++) count += is_trained(batch, t);
    return count;
}

/* A clamped log-ratio and its derivative with respect to the log-probability: 0 where it was clamped. */
typedef struct LogRatio {
    double value, slope;
} LogRatio;

static LogRatio policy_losses_bounded(double x) {
    double value = clamp(x, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT);
    return (LogRatio){value, value == x};
}

static double token_log_ratio(const PolicyBatch *batch, int64_t t) { return batch->old_logprobs ? batch->logprobs[t] - batch->old_logprobs[t] : 0; }

/* The log-ratio of a sequence with n trained tokens; the slope is with respect to the log-probability of each of them. */
static LogRatio sequence_log_ratio(const PolicyBatch *batch, int64_t begin, int64_t end, RatioOf ratio_of, int64_t n) {
    double sum = 0, part = ratio_of == RATIO_GEOMETRIC ? 1 / (double)MAX(n, 1) : 1;
    for (int64_t t = begin; t < end; t++)
        if (is_trained(batch, t)) sum += token_log_ratio(batch, t);
    LogRatio ratio = policy_losses_bounded(sum * part);
    ratio.slope *= part;
    return ratio;
}

/* The weight in the loss of each token of a sequence with n trained tokens. */
static double token_share(const PolicyLossConfig *config, Aggregation aggregation, double total_tokens, double total_sequences, int64_t n) {
    switch (aggregation) {
    case SEQUENCE_MEAN: return 1 / (total_sequences * (double)MAX(n, 1));
    case SEQUENCE_SUM: return 1 / total_sequences;
    case CONSTANT: return 1 / (total_sequences * (double)config->max_length);
    default: return 1 / total_tokens;
    }
}

/* Adds one ratio (of a token or a sequence) to the metrics. Only losses with a clip or a cap have bounds. */
static void count_ratio(const PolicyLoss *loss, const PolicyLossConfig *config, double log_ratio, double advantage, PolicyMetrics *metrics) {
    double ratio = exp(log_ratio), capped = ratio, low = 0, high = HUGE_VAL;
    if (loss->surrogate == surrogate_capped) high = cap_of(config);
    if (loss->surrogate == surrogate_clipped) {
        low = 1 - config->clip, high = 1 + clip_high_of(config);
        if (config->ratio_cap > 0) capped = MIN(ratio, config->ratio_cap);
    }
    metrics->clip_low += capped < low && advantage < 0;
    metrics->clip_high += capped > high && advantage > 0;
    metrics->outside += ratio < low || ratio > high;
    metrics->ratio_min = MIN(metrics->ratio_min, ratio);
    metrics->ratio_max = MAX(metrics->ratio_max, ratio);
}

/* Adds weight x surrogate + beta x KL of token t to the loss in the metrics. */
static Surrogate token_loss(const PolicyLoss *loss, const PolicyLossConfig *config, const PolicyBatch *batch, int64_t t, double log_ratio,
                            double share, PolicyMetrics *metrics) {
    double weight = batch->weights ? batch->weights[t] : 1;
    Surrogate term = loss->surrogate(config, batch->logprobs[t], log_ratio, batch->advantages[t]);
    term = (Surrogate){weight * term.value, weight * term.by_logprob, weight * term.by_log_ratio};
    metrics->policy_loss += share * term.value;
    if (batch->ref_logprobs) {
        KlEstimate kl = kl_estimate(config->kl, batch->logprobs[t], batch->ref_logprobs[t]);
        double importance = config->kl_corrected ? exp(log_ratio) : 1;
        metrics->kl += importance * kl.value;
        term.value += config->beta * importance * kl.value;
        term.by_logprob += config->beta * importance * kl.slope;
        if (config->kl_corrected) term.by_log_ratio += config->beta * importance * kl.value;
    }
    metrics->loss += share * term.value;
    return term;
}

/* Ratios, losses and gradients of one sequence with n trained tokens. Returns the number of ratios. */
static int64_t sequence_loss(const PolicyLoss *loss, const PolicyLossConfig *config, const PolicyBatch *batch, int64_t begin, int64_t end, int64_t n,
                             double share, double *grad, PolicyMetrics *metrics) {
    bool per_token = loss->ratio_of == RATIO_OF_TOKEN;
    LogRatio ratio = per_token ? (LogRatio){0} : sequence_log_ratio(batch, begin, end, loss->ratio_of, n);
    double by_sequence = 0, advantage = 0; /* d loss / d log-ratio of the sequence; the advantage of its tokens */
    for (int64_t t = begin; t < end; t++) {
        grad[t] = 0;
        if (!is_trained(batch, t)) continue;
        LogRatio token = policy_losses_bounded(token_log_ratio(batch, t));
        metrics->approx_kl += expm1(token.value) - token.value;
        if (batch->entropies) metrics->entropy += batch->entropies[t];
        if (per_token) ratio = token;
        advantage = batch->advantages[t];
        Surrogate term = token_loss(loss, config, batch, t, ratio.value, share, metrics);
        grad[t] = share * term.by_logprob;
        if (per_token) {
            grad[t] += share * term.by_log_ratio * ratio.slope;
            count_ratio(loss, config, ratio.value, advantage, metrics);
        } else {
            by_sequence += share * term.by_log_ratio;
        }
    }
    if (per_token || n == 0) return n;
    for (int64_t t = begin; t < end; t++)
        if (is_trained(batch, t)) grad[t] += by_sequence * ratio.slope;
    count_ratio(loss, config, ratio.value, advantage, metrics);
    return 1;
}

void policy_loss(const PolicyLoss *loss, const PolicyLossConfig *config, const PolicyBatch *batch, double *grad, PolicyMetrics *metrics) {
    int64_t tokens = count_trained(batch, begin_of(batch, 0), begin_of(batch, batch->n_sequences));
    double total_tokens = (double)MAX(config->total_tokens ? config->total_tokens : tokens, 1);
    double total_sequences = (double)MAX(config->total_sequences ? config->total_sequences : batch->n_sequences, 1);
    Aggregation aggregation = config->aggregation ? config->aggregation : loss->aggregation;
    *metrics = (PolicyMetrics){.tokens = tokens, .ratio_min = HUGE_VAL, .ratio_max = -HUGE_VAL, .grad_entropy = -config->ent_coef / total_tokens};
    for (int64_t i = 0; i < batch->n_sequences; i++) {
        int64_t begin = begin_of(batch, i), end = begin_of(batch, i + 1), n = count_trained(batch, begin, end);
        double share = token_share(config, aggregation, total_tokens, total_sequences, n);
        metrics->ratios += sequence_loss(loss, config, batch, begin, end, n, share, grad, metrics);
    }
    metrics->loss += metrics->grad_entropy * metrics->entropy;
    if (metrics->ratios == 0) metrics->ratio_min = metrics->ratio_max = 1;
    double per_token = 1 / (double)MAX(tokens, 1), per_ratio = 1 / (double)MAX(metrics->ratios, 1);
    metrics->kl *= per_token, metrics->entropy *= per_token, metrics->approx_kl *= per_token;
    metrics->clip_low *= per_ratio, metrics->clip_high *= per_ratio, metrics->outside *= per_ratio;
}
