/* SPDX-License-Identifier: Apache-2.0 */
/* Policy-gradient losses as plain functions in double, from log-probabilities and advantages to a loss and its gradient. They serve environment
 * actions and text tokens alike.
 *
 *     PolicyBatch batch = {.n_sequences = n, .begin = begin, .logprobs = now, .old_logprobs = old, .advantages = advantages};
 *     policy_loss(policy_loss_find("grpo"), &(PolicyLossConfig){.clip = 0.2, .beta = 0.04, .kl = KL_K3}, &batch, grad, &metrics);
 *     // loss += metrics.loss; d loss / d logprobs[t] = grad[t]
 */
#ifndef TUNE_POLICY_LOSSES_H
#define TUNE_POLICY_LOSSES_H

#include "rl/core/kl.h"

/* The unit of the importance ratio: each token, the sequence (product over its tokens), or the geometric mean over its tokens.
 */
typedef enum RatioOf { RATIO_OF_TOKEN, RATIO_OF_SEQUENCE, RATIO_GEOMETRIC } RatioOf;
/* How per-token losses are reduced. AGGREGATE_OWN: as the loss's row in policy_losses.def says; TOKEN_MEAN: mean over tokens; SEQUENCE_MEAN: mean
 * over sequences of the mean over their tokens; SEQUENCE_SUM: mean over sequences of the sum; CONSTANT: sum / (sequences x max_length). */
typedef enum Aggregation { AGGREGATE_OWN, TOKEN_MEAN, SEQUENCE_MEAN, SEQUENCE_SUM, CONSTANT } Aggregation;

/* One token's loss, before it is averaged, and its derivatives. */
typedef struct Surrogate {
    double value, by_logprob, by_log_ratio;
} Surrogate;
typedef struct PolicyLossConfig {
    double clip;      /* the ratio is clipped to 1 - clip .. 1 + clip_high */
    double clip_high; /* 0: the same as clip. cispo: the cap of the ratio itself, 0: 5 */
    double dual_clip; /* for negative advantages the loss is at most -advantage x dual_clip (usually 3); 0: no limit */
    double ratio_cap; /* upper limit of the ratio also where the clip has no effect (delta of the two-sided clip); 0: no limit */
    double beta;      /* weight of the KL to the reference in the loss; ref_logprobs are required unless it is 0 */
    KlKind kl;
    bool kl_corrected; /* weight the KL by the ratio, which makes it unbiased on samples of an older policy */
    double ent_coef;   /* weight of the mean entropy, which is subtracted; entropies are required unless it is 0 */
    Aggregation aggregation;
    int64_t max_length; /* longest sequence in tokens, for CONSTANT */
    /* Counts of the optimiser step when several calls share it, so that their losses add up; 0: of this batch */
    int64_t total_tokens, total_sequences;
} PolicyLossConfig;

typedef struct PolicyLoss {
    const char *name;
    Surrogate (*surrogate)(const PolicyLossConfig *config, double logprob, double log_ratio, double advantage);
    RatioOf ratio_of;
    Aggregation aggregation;
} PolicyLoss;
const PolicyLoss *policy_loss_find(const char *name); /* a row of policy_losses.def; NULL: unknown name */

/* Sequence i has tokens begin[i] .. begin[i + 1] - 1 of the arrays; begin NULL: n_sequences single actions. */
typedef struct PolicyBatch {
    int64_t n_sequences;
    const int64_t *begin;
    const double *logprobs;     /* under the policy being trained */
    const double *old_logprobs; /* before the first pass over this batch; NULL: this is the first pass, every ratio is exactly 1 */
    const double *ref_logprobs; /* under the reference; NULL: no KL is computed */
    const double *advantages;   /* per token */
    const double *weights;      /* of each token's policy loss, not of its KL (sampler_correction.h); NULL: 1 */
    const double *entropies;    /* NULL: not known */
    /* NULL: all. Other tokens are ignored; a sequence without trained tokens (mask_truncated) still counts as a sequence */
    const bool *trained;
} PolicyBatch;

/* Means over the trained tokens, or over sequences where the ratio is per sequence. */
typedef struct PolicyMetrics {
    double loss; /* policy_loss + beta x KL - ent_coef x entropy, aggregated; `grad` is its gradient */
    double policy_loss;
    double grad_entropy; /* d loss / d entropy, the same for every trained token */
    double kl, entropy;  /* plain means; 0 when unknown */
    /* fraction with a negative advantage and a ratio below 1 - clip, and with a positive advantage and a ratio above 1 + clip_high (cispo: above its
     * cap); their sum has no gradient. 0 for losses without a clip, as is `outside` */
    double clip_low, clip_high;
    /* fraction with a ratio outside the clip range, whatever the advantage: the clip fraction of stable-baselines3 and cleanrl */
    double outside;
    double approx_kl; /* KL between the old and the new policy: mean of ratio - 1 - log ratio, per token */
    double ratio_min, ratio_max;
    int64_t tokens, ratios; /* numbers of tokens and of ratios that the means are taken over */
} PolicyMetrics;

/* Computes the loss, its gradient and the metrics. grad: per token, written; 0 where not trained. At kinks it takes torch's sub-gradient, half from
 * each side. On the first pass every ratio is 1 and the gradient equals REINFORCE's. Log-ratios are clamped to +-20, with slope 0 where clamped
 * (ratio.h). */
void policy_loss(const PolicyLoss *loss, const PolicyLossConfig *config, const PolicyBatch *batch, double *grad, PolicyMetrics *metrics);

#endif
