/* SPDX-License-Identifier: Apache-2.0 */
/* Preference losses as plain functions in double: from sums of log-probabilities of completions (or from a reward model's scores) to a loss and its
 * gradient.
 *
 *     PreferenceBatch batch = {.n = n, .chosen = chosen, .rejected = rejected, .ref_chosen = ref_chosen, .ref_rejected = ref_rejected};
 *     TRY(preference_loss(preference_loss_find("sigmoid"), &(PreferenceConfig){.beta = 0.1}, &batch, scratch, grad_chosen, grad_rejected, &metrics));
 *     // d loss / d log-probability of every token of chosen completion i = grad_chosen[i]
 */
#ifndef TUNE_PREFERENCE_LOSSES_H
#define TUNE_PREFERENCE_LOSSES_H

#include "rl/core/rl.h"

/* The divergence that transforms the policy's ratio to the reference; the default reverse_kl is the log-ratio itself. Source: arXiv 2309.16240. */
typedef enum Divergence {
    REVERSE_KL, /* KL(policy || reference) */
    FORWARD_KL, /* KL(reference || policy) */
    JENSEN_SHANNON
} Divergence;

typedef struct PreferenceConfig {
    double beta; /* the loss's inverse temperature, above 0 */
    /* Assumed fraction of swapped labels, below 0.5: for sigmoid, robust, aot, simpo, cpo; for exo_pair, where 0 means 1e-3 */
    double label_smoothing;
    double simpo_gamma;    /* margin in the scores' unit after beta (simpo) */
    double alpha;          /* simpo: AlphaPO's transformation of the mean log-probability; 0: none */
    double discopop_tau;   /* 0: 0.05 */
    Divergence divergence; /* for losses with a reference */
    bool nll_given;        /* use nll_weight; false: the loss's default (1 for orpo and cpo) */
    double nll_weight;     /* weight of the mean negative log-likelihood of the batch's chosen tokens: CPO's alpha, RPO when added to sigmoid */
    /* Counts of the optimiser step when several calls share it, so that their losses add up; 0: of this batch */
    int64_t total_pairs, total_chosen_tokens;
} PreferenceConfig;

/* The score of a completion. */
typedef enum PairScores {
    RATIO_SUM,   /* log-ratio to the reference, summed over the tokens */
    RATIO_MEAN,  /* the same, mean over the tokens */
    LOGPROB_SUM, /* log-probability, summed over the tokens */
    LOGPROB_MEAN /* the same, mean over the tokens */
} PairScores;
/* Which scores a loss compares. */
typedef enum PairMatching {
    AS_PAIRED,      /* those of a pair */
    SORTED_MARGINS, /* the policy's margin and the reference's margin of the same rank in the batch */
    SORTED_SCORES   /* a chosen and a rejected score of the same rank in the batch */
} PairMatching;
/* The loss of one pair and its derivatives by the two scores. */
typedef struct PairLoss {
    double value, by_chosen, by_rejected;
} PairLoss;
/* A row of preference_losses.def, which explains the fields. */
typedef struct PreferenceLoss {
    const char *name;
    PairLoss (*pair)(const PreferenceConfig *config, double chosen, double rejected);
    PairScores scores;
    PairMatching matching;
    bool diverges, smooths;
    double nll_weight;
} PreferenceLoss;
const PreferenceLoss *preference_loss_find(const char *name); /* a row of preference_losses.def; NULL: unknown name */
bool preference_loss_has_reference(const PreferenceLoss *loss);

/* A batch of n pairs. Sums may be over some of the tokens, or discounted, as long as the lengths match. */
typedef struct PreferenceBatch {
    int64_t n;
    const double *chosen, *rejected;                /* sums of completion log-probabilities under the policy */
    const double *ref_chosen, *ref_rejected;        /* sums under the reference; NULL if the loss has none */
    const int64_t *chosen_tokens, *rejected_tokens; /* lengths; NULL if the loss uses neither means nor the likelihood */
    const double *weights;                          /* weights of pairs; NULL: 1 */
} PreferenceBatch;

/* Means over the pairs, by the names in metrics.jsonl. */
typedef struct PreferenceMetrics {
    double loss, nll;
    double rewards_chosen, rewards_rejected, margin; /* beta x summed log-ratio; without a reference beta x the score */
    double accuracy;                                 /* fraction of pairs in which the chosen completion has the larger reward */
    double logps_chosen, logps_rejected;
} PreferenceMetrics;

/* grad_chosen, grad_rejected: (n), d loss / d sum of log-probabilities, written. `scratch` is used for a few numbers per pair during the call.
 * ST_RESOURCE when it is full. */
Status preference_loss(const PreferenceLoss *loss, const PreferenceConfig *config, const PreferenceBatch *batch, Arena *scratch, double *grad_chosen,
                       double *grad_rejected, PreferenceMetrics *metrics);

/* ---- KTO: single completions, desirable or not ---- */

typedef struct KtoConfig {
    double beta, desirable_weight, undesirable_weight;
    int64_t total; /* completions of the optimiser step when several calls share it; 0: of this batch */
} KtoConfig;
typedef struct KtoBatch {
    int64_t n;
    const double *logprobs, *ref_logprobs; /* sums */
    const bool *desirable;
    const double *weights; /* weights of completions; NULL: 1 */
    double baseline;       /* result of kto_baseline; 0: the loss apo_zero_unpaired */
} KtoBatch;
typedef struct KtoMetrics {
    double loss;
    double rewards_chosen, rewards_rejected; /* mean beta x log-ratio of desirable and of undesirable completions; 0 if there are none */
    double logps_chosen, logps_rejected;
    int64_t n_chosen, n_rejected;
} KtoMetrics;
/* Estimate of the KL from the reference to the policy on mismatched completions (those of the batch, shifted by one prompt): the mean log-ratio, at
 * least 0. A constant in the loss. */
double kto_baseline(const double *logprobs, const double *ref_logprobs, int64_t n);
/* Mean of w (1 - sigmoid(beta (log-ratio - baseline))) for desirable completions, of w (1 - sigmoid(beta (baseline - log-ratio))) for the others.
 * Source: arXiv 2402.01306. */
void kto_loss(const KtoConfig *config, const KtoBatch *batch, double *grad, KtoMetrics *metrics);

/* ---- reward models ---- */

typedef struct RewardBatch {
    int64_t n;
    const double *chosen, *rejected; /* scores */
    const double *margins;           /* required margin of the chosen score; NULL: 0 */
    const double *weights;           /* of the pairs; NULL: 1 */
    double centering;                /* weight of mean (chosen + rejected)^2, which keeps scores near 0; 0: off (0.01 is usual) */
    int64_t total;                   /* pairs of the optimiser step; 0: of this batch */
} RewardBatch;
typedef struct RewardMetrics {
    double loss, accuracy, margin; /* accuracy: fraction with chosen > rejected; margin: mean of chosen - rejected */
} RewardMetrics;
/* Mean of -log sigmoid(chosen - rejected - margin): Bradley and Terry's model of choices. Source: arXiv 2203.02155, section 3.5; margins arXiv
 * 2307.09288. */
void reward_model_loss(const RewardBatch *batch, double *grad_chosen, double *grad_rejected, RewardMetrics *metrics);

#endif
