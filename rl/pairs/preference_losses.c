/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rl/pairs/preference_losses.h"
#include "rl/core/ratio.h"

/* ---- the losses of one pair ---- */

/* -(1 - e) log sigmoid(u) - e log sigmoid(-u), as a function of u. */
static PairLoss logistic(double u, double smoothing, double slope_of_u) {
    double slope = -(1 - smoothing) * sigmoid(-u) + smoothing * sigmoid(u);
    return (PairLoss){-(1 - smoothing) * log_sigmoid(u) - smoothing * log_sigmoid(-u), slope * slope_of_u, -slope * slope_of_u};
}

static PairLoss pair_sigmoid(const PreferenceConfig *config, double chosen, double rejected) {
    return logistic(config->beta * (chosen - rejected), config->label_smoothing, config->beta);
}

static PairLoss pair_margin(const PreferenceConfig *config, double chosen, double rejected) {
    return logistic(config->beta * (chosen - rejected) - config->simpo_gamma, config->label_smoothing, config->beta);
}

static PairLoss pair_hinge(const PreferenceConfig *config, double chosen, double rejected) {
    double short_of = 1 - config->beta * (chosen - rejected);
    if (short_of <= 0) return (PairLoss){0};
    return (PairLoss){short_of, -config->beta, config->beta};
}

static PairLoss pair_square(const PreferenceConfig *config, double chosen, double rejected) {
    double off = chosen - rejected - 1 / (2 * config->beta);
    return (PairLoss){off * off, 2 * off, -2 * off};
}

/* With labels swapped with probability e its expected value is that of the sigmoid loss with correct labels. */
static PairLoss pair_robust(const PreferenceConfig *config, double chosen, double rejected) {
    double u = config->beta * (chosen - rejected), e = config->label_smoothing;
    double slope = config->beta * (-(1 - e) * sigmoid(-u) - e * sigmoid(u)) / (1 - 2 * e);
    return (PairLoss){(-(1 - e) * log_sigmoid(u) + e * log_sigmoid(-u)) / (1 - 2 * e), slope, -slope};
}

/* KL of (q, 1 - q), q = sigmoid(u), from the smoothed label (1 - e, e). */
static PairLoss pair_exo(const PreferenceConfig *config, double chosen, double rejected) {
    double u = config->beta * (chosen - rejected), q = sigmoid(u), p = sigmoid(-u), e = config->label_smoothing > 0 ? config->label_smoothing : 1e-3;
    double slope = config->beta * q * p * (u - log1p(-e) + log(e));
    return (PairLoss){q * (log_sigmoid(u) - log1p(-e)) + p * (log_sigmoid(-u) - log(e)), slope, -slope};
}

static PairLoss pair_nca(const PreferenceConfig *config, double chosen, double rejected) {
    double c = config->beta * chosen, r = config->beta * rejected;
    double value = -log_sigmoid(c) - log_sigmoid(-c) / 2 - log_sigmoid(-r) / 2;
    return (PairLoss){value, config->beta * (sigmoid(c) / 2 - sigmoid(-c)), config->beta * sigmoid(r) / 2};
}

static PairLoss pair_bco(const PreferenceConfig *config, double chosen, double rejected) {
    double c = config->beta * chosen, r = config->beta * rejected;
    return (PairLoss){-log_sigmoid(c) - log_sigmoid(-r), -config->beta * sigmoid(-c), config->beta * sigmoid(r)};
}

static PairLoss pair_sppo(const PreferenceConfig *config, double chosen, double rejected) {
    double c = chosen - 1 / (2 * config->beta), r = rejected + 1 / (2 * config->beta);
    return (PairLoss){c * c + r * r, 2 * c, 2 * r};
}

static double sigmoid_slope(double x) { return sigmoid(x) * sigmoid(-x); }

/* Raises chosen and lowers rejected scores. */
static PairLoss pair_apo_zero(const PreferenceConfig *config, double chosen, double rejected) {
    double beta = config->beta;
    return (PairLoss){sigmoid(-beta * chosen) + sigmoid(beta * rejected), -beta * sigmoid_slope(beta * chosen),
                      beta * sigmoid_slope(beta * rejected)};
}

/* Lowers both, rejected ones more. */
static PairLoss pair_apo_down(const PreferenceConfig *config, double chosen, double rejected) {
    double beta = config->beta, u = beta * (chosen - rejected);
    return (PairLoss){sigmoid(beta * chosen) + sigmoid(-u), beta * (sigmoid_slope(beta * chosen) - sigmoid_slope(u)), beta * sigmoid_slope(u)};
}

/* (1 - g) x logistic + g x exponential loss with g = sigmoid(u / tau); g exp(-u) tends to 0 on both sides, so it is computed as one exponential. */
static PairLoss pair_discopop(const PreferenceConfig *config, double chosen, double rejected) {
    double u = config->beta * (chosen - rejected), tau = config->discopop_tau > 0 ? config->discopop_tau : 0.05;
    double g = sigmoid(u / tau), not_g = sigmoid(-u / tau), exponential = exp(log_sigmoid(u / tau) - u);
    double slope = -sigmoid(-u) * not_g + log_sigmoid(u) * g * not_g / tau - exponential + exponential * not_g / tau;
    return (PairLoss){-log_sigmoid(u) * not_g + exponential, config->beta * slope, -config->beta * slope};
}

/* Logarithm of the odds p / (1 - p) of a mean log-probability, and its slope. p is clamped 1e-7 (about the resolution of f32) below 1, where the odds
 * are infinite; the slope is 0 there. */
static double log_odds(double logprob, double *slope) {
    double x = clamp(logprob, -HUGE_VAL, -1e-7);
    *slope = x < logprob ? 0 : -1 / expm1(x);
    return x - (x > -M_LN2 ? log(-expm1(x)) : log1p(-exp(x)));
}

static PairLoss pair_odds(const PreferenceConfig *config, double chosen, double rejected) {
    double by_chosen, by_rejected, ratio = log_odds(chosen, &by_chosen) - log_odds(rejected, &by_rejected), slope = -config->beta * sigmoid(-ratio);
    return (PairLoss){-config->beta * log_sigmoid(ratio), slope * by_chosen, -slope * by_rejected};
}

static const PreferenceLoss preference_losses[] = {
#define PREFERENCE_LOSS(name, pair, scores, matching, diverges, smooths, nll_weight) \
    {#name, pair_##pair, scores, matching, diverges, smooths, nll_weight},
#include "rl/pairs/preference_losses.def"
#undef PREFERENCE_LOSS
};

const PreferenceLoss *preference_loss_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(preference_losses); i++)
        if (strcmp(preference_losses[i].name, name) == 0) return &preference_losses[i];
    return NULL;
}

bool preference_loss_has_reference(const PreferenceLoss *loss) { return loss->scores == RATIO_SUM || loss->scores == RATIO_MEAN; }

/* ---- scores of completions ---- */

/* The score of a completion, its derivative with respect to the sum of log-probabilities, and the reported reward. */
typedef struct Score {
    double value, slope, reward;
} Score;

/* The log-ratio transformed by the divergence; exponents are limited to 80, as in TRL. */
static Score diverged(Divergence divergence, double log_ratio_sum) {
    double inverse = exp(clamp(-log_ratio_sum, -HUGE_VAL, 80));
    switch (divergence) {
    case FORWARD_KL: return (Score){.value = 1 - inverse, .slope = -log_ratio_sum > 80 ? 0 : inverse};
    case JENSEN_SHANNON: return (Score){.value = M_LN2 + log_sigmoid(log_ratio_sum), .slope = sigmoid(-log_ratio_sum)};
    default: return (Score){.value = log_ratio_sum, .slope = 1};
    }
}

static Score score_of(const PreferenceLoss *loss, const PreferenceConfig *config, double sum, double ref_sum, int64_t tokens) {
    double length = (double)MAX(tokens, 1);
    Score score;
    if (preference_loss_has_reference(loss)) {
        double per = loss->scores == RATIO_MEAN ? length : 1;
        score = diverged(loss->diverges ? config->divergence : REVERSE_KL, sum - ref_sum);
        return (Score){score.value / per, score.slope / per, config->beta * (sum - ref_sum)};
    }
    double per = loss->scores == LOGPROB_MEAN ? length : 1;
    score = (Score){sum / per, 1 / per, config->beta * sum / per};
    if (config->alpha != 0) {
        double power = exp(clamp(-config->alpha * score.value, -HUGE_VAL, 80)); /* p^-alpha */
        score.value = (1 - power) / config->alpha;
        score.slope *= power;
    }
    return score;
}

/* ---- matching chosen with rejected completions ---- */

typedef struct Ranked {
    double value;
    int64_t index;
} Ranked;

static int compare_ranked(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static void rank(Ranked *ranked, int64_t n) { qsort(ranked, (size_t)n, sizeof *ranked, compare_ranked); }

/* The chosen completion of each rank against the rejected one of the same rank. */
static double match_scores(const PreferenceLoss *loss, const PreferenceConfig *config, const Score *chosen, const Score *rejected, int64_t n,
                           Ranked *a, Ranked *b, const double *shares, double *grad_chosen, double *grad_rejected) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) a[i] = (Ranked){chosen[i].value, i}, b[i] = (Ranked){rejected[i].value, i};
    if (loss->matching == SORTED_SCORES) rank(a, n), rank(b, n);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = a[k].index, j = b[k].index;
        PairLoss pair = loss->pair(config, a[k].value, b[k].value);
        sum += shares[i] * pair.value;
        grad_chosen[i] = shares[i] * pair.by_chosen * chosen[i].slope;
        grad_rejected[j] = shares[i] * pair.by_rejected * rejected[j].slope;
    }
    return sum;
}

/* The policy's margin of each rank against the reference's margin of the same rank. */
static double match_margins(const PreferenceLoss *loss, const PreferenceConfig *config, const PreferenceBatch *batch, Ranked *policy,
                            Ranked *reference, const double *shares, double *grad_chosen, double *grad_rejected) {
    double sum = 0;
    for (int64_t i = 0; i < batch->n; i++) {
        policy[i] = (Ranked){batch->chosen[i] - batch->rejected[i], i};
        reference[i] = (Ranked){batch->ref_chosen[i] - batch->ref_rejected[i], i};
    }
    rank(policy, batch->n), rank(reference, batch->n);
    for (int64_t k = 0; k < batch->n; k++) {
        int64_t i = policy[k].index;
        PairLoss pair = loss->pair(config, policy[k].value, reference[k].value);
        sum += shares[i] * pair.value;
        grad_chosen[i] = shares[i] * pair.by_chosen;
        grad_rejected[i] = -grad_chosen[i];
    }
    return sum;
}

/* Adds the chosen completions' mean negative log-likelihood per token. */
static void add_likelihood(const PreferenceConfig *config, const PreferenceBatch *batch, double weight, double *grad_chosen,
                           PreferenceMetrics *metrics) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < batch->n; i++) tokens += batch->chosen_tokens[i];
    double per_token = 1 / (double)MAX(config->total_chosen_tokens ? config->total_chosen_tokens : tokens, 1);
    for (int64_t i = 0; i < batch->n; i++) {
        metrics->nll -= batch->chosen[i] * per_token;
        grad_chosen[i] -= weight * per_token;
    }
    metrics->loss += weight * metrics->nll;
}

static void add_metrics(const PreferenceBatch *batch, int64_t i, Score chosen, Score rejected, PreferenceMetrics *metrics) {
    double share = 1 / (double)batch->n;
    metrics->rewards_chosen += share * chosen.reward;
    metrics->rewards_rejected += share * rejected.reward;
    metrics->margin += share * (chosen.reward - rejected.reward);
    metrics->accuracy += chosen.reward > rejected.reward; /* a count, divided later: thirds do not add up to one */
    metrics->logps_chosen += share * batch->chosen[i];
    metrics->logps_rejected += share * batch->rejected[i];
}

Status preference_loss(const PreferenceLoss *loss, const PreferenceConfig *config, const PreferenceBatch *batch, Arena *scratch, double *grad_chosen,
                       double *grad_rejected, PreferenceMetrics *metrics) {
    int64_t n = batch->n;
    bool reference = preference_loss_has_reference(loss);
    ArenaMark mark = arena_mark(scratch);
    Score *chosen = arena_alloc(scratch, (size_t)n * sizeof *chosen), *rejected = arena_alloc(scratch, (size_t)n * sizeof *rejected);
    Ranked *a = arena_alloc(scratch, (size_t)n * sizeof *a), *b = arena_alloc(scratch, (size_t)n * sizeof *b);
    double *shares = arena_alloc(scratch, (size_t)n * sizeof *shares);
    if (!chosen || !rejected || !a || !b || !shares) return ST_RESOURCE;
    *metrics = (PreferenceMetrics){0};
    for (int64_t i = 0; i < n; i++) {
        int64_t chosen_tokens = batch->chosen_tokens ? batch->chosen_tokens[i] : 1,
                rejected_tokens = batch->rejected_tokens ? batch->rejected_tokens[i] : 1;
        chosen[i] = score_of(loss, config, batch->chosen[i], reference ? batch->ref_chosen[i] : 0, chosen_tokens);
        rejected[i] = score_of(loss, config, batch->rejected[i], reference ? batch->ref_rejected[i] : 0, rejected_tokens);
        shares[i] = (batch->weights ? batch->weights[i] : 1) / (double)(config->total_pairs ? config->total_pairs : n);
        add_metrics(batch, i, chosen[i], rejected[i], metrics);
    }
    metrics->accuracy /= (double)n;
    metrics->loss = loss->matching == SORTED_MARGINS ? match_margins(loss, config, batch, a, b, shares, grad_chosen, grad_rejected)
                                                     : match_scores(loss, config, chosen, rejected, n, a, b, shares, grad_chosen, grad_rejected);
    double nll_weight = config->nll_given ? config->nll_weight : loss->nll_weight;
    if (nll_weight != 0) add_likelihood(config, batch, nll_weight, grad_chosen, metrics);
    arena_rewind(scratch, mark);
    return ST_OK;
}
