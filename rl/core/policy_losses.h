/* SPDX-License-Identifier: Apache-2.0 */
/* Policy-gradient losses as plain functions in double, from log-probabilities and advantages to a loss and its gradient. CartPole's actions and a
 * model's tokens are the same here.
 *
 *     PolicyBatch batch = {.n_sequences = n, .begin = begin, .logprobs = now, .old_logprobs = old, .advantages = advantages};
 *     policy_loss(policy_loss_find("grpo"), &(PolicyLossConfig){.clip = 0.2, .beta = 0.04, .kl = KL_K3}, &batch, grad, &metrics);
 *     // loss += metrics.loss; d loss / d logprobs[t] = grad[t]
 */
#ifndef TUNE_POLICY_LOSSES_H
#define TUNE_POLICY_LOSSES_H

#include "rl/core/kl.h"

/* Whose probability is compared with what it was: each token's, the whole sequence's (product of its tokens'), or the geometric mean of its tokens'.
 */
typedef enum RatioOf { RATIO_OF_TOKEN, RATIO_OF_SEQUENCE, RATIO_GEOMETRIC } RatioOf;
/* What becomes of the tokens' losses. SEQUENCE_MEAN: mean over sequences of the mean over their tokens; SEQUENCE_SUM: mean over sequences of the sum;
 * CONSTANT: sum / (sequences x max_length). */
typedef enum Aggregation { AGGREGATE_OWN, TOKEN_MEAN, SEQUENCE_MEAN, SEQUENCE_SUM, CONSTANT } Aggregation;

/* One token's loss, before it is averaged, and its derivatives. */
typedef struct Surrogate {
    double value, by_logprob, by_log_ratio;
} Surrogate;
typedef struct PolicyLossConfig {
    double clip;      /* the ratio counts within 1 - clip .. 1 + clip_high */
    double clip_high; /* 0: as clip. cispo: the largest ratio itself, 0: 5 */
    double dual_clip; /* where the advantage is negative the loss is at most -advantage x dual_clip (3 is usual); 0: no limit */
    double ratio_cap; /* the ratio is at most this, also where clipping would not bite (the two-sided clip's delta); 0: no limit */
    double beta;      /* weight of the KL to the reference in the loss; needs ref_logprobs unless 0 */
    KlKind kl;
    bool kl_corrected; /* the KL is weighted by the ratio: unbiased on samples of an older policy */
    double ent_coef;   /* weight of the mean entropy, which is subtracted; needs entropies unless 0 */
    Aggregation aggregation;
    int64_t max_length; /* of a sequence, for CONSTANT */
    /* Of the whole optimiser step when it is cut into several calls, whose losses then add up; 0: of this batch */
    int64_t total_tokens, total_sequences;
} PolicyLossConfig;

typedef struct PolicyLoss {
    const char *name;
    Surrogate (*surrogate)(const PolicyLossConfig *config, double logprob, double log_ratio, double advantage);
    RatioOf ratio_of;
    Aggregation aggregation;
} PolicyLoss;
const PolicyLoss *policy_loss_find(const char *name); /* a row of policy_losses.def; NULL: none */

/* Sequence i has tokens begin[i] .. begin[i + 1] - 1 of the arrays; begin NULL: n_sequences single actions. */
typedef struct PolicyBatch {
    int64_t n_sequences;
    const int64_t *begin;
    const double *logprobs;     /* under the policy that learns */
    const double *old_logprobs; /* as they were before the first pass over this batch; NULL: this is the first, every ratio is exactly 1 */
    const double *ref_logprobs; /* under the reference; NULL: no KL is computed */
    const double *advantages;   /* per token */
    const double *weights;      /* of each token's policy loss, not of its KL (sampler_correction.h); NULL: 1 */
    const double *entropies;    /* NULL: not known */
    const bool *trained;        /* NULL: all. The others take no part, and a sequence without any (mask_truncated) still counts as a sequence */
} PolicyBatch;

/* Means over the trained tokens; over sequences where the ratio is theirs. */
typedef struct PolicyMetrics {
    double loss; /* what `grad` is the gradient of: policy_loss + beta x KL - ent_coef x entropy, as aggregated */
    double policy_loss;
    double grad_entropy;        /* d loss / d entropy, the same for every trained token */
    double kl, entropy;         /* plain means; 0 when not known */
    double clip_low, clip_high; /* share with a negative advantage below 1 - clip, with a positive one above 1 + clip_high (cispo: above its cap);
                                   their sum is what lost its gradient. 0 for losses without a clip, as the next */
    double outside;             /* share with a ratio outside, whatever the advantage: stable-baselines3's and cleanrl's clip fraction */
    double approx_kl;           /* of the new policy from the old: mean of ratio - 1 - log ratio, per token */
    double ratio_min, ratio_max;
    int64_t tokens, ratios; /* what the means are over */
} PolicyMetrics;

/* grad: per token, written; 0 where not trained. At kinks torch's sub-gradients: both sides of a tie count half, and on the first pass every ratio is
 * 1 and the gradient that of REINFORCE. Log-ratios are kept within +-20, with slope 0 outside (ratio.h). */
void policy_loss(const PolicyLoss *loss, const PolicyLossConfig *config, const PolicyBatch *batch, double *grad, PolicyMetrics *metrics);

#endif
