/* SPDX-License-Identifier: Apache-2.0 */
/* Corrects for a sampler whose log-probabilities differ from the trainer's (another precision, a server, older weights): weights of tokens for
 * PolicyBatch.weights, constants without gradient.
 *
 *     sampler_correction(CORRECT_SEQUENCE_MASK, 0, 3, n_sequences, begin, old_logprobs, sampler_logprobs, NULL, weights);
 */
#ifndef TUNE_SAMPLER_CORRECTION_H
#define TUNE_SAMPLER_CORRECTION_H

#include "rl/core/rl.h"

/* The weight of a token, from u = exp(old - sampler) of the token or, for a sequence, the product of u over its trained tokens. */
typedef enum SamplerCorrection {
    CORRECT_TOKEN_TRUNCATE,    /* the token's u, clamped to low..high */
    CORRECT_TOKEN_MASK,        /* the token's u, or 0 if it is not in low..high */
    CORRECT_SEQUENCE_TRUNCATE, /* the sequence's u, clamped to low..high */
    CORRECT_SEQUENCE_MASK      /* the sequence's u, or 0 if it is not in low..high: TRL's default, with 0..3; products grow with the length */
} SamplerCorrection;

/* Writes weights (one for each token): 1 where not trained (trained NULL: all are). Sequence i has tokens begin[i] .. begin[i + 1] - 1. Log-ratios
 * are clamped to +-20. */
void sampler_correction(SamplerCorrection how, double low, double high, int64_t n_sequences, const int64_t *begin, const double *old_logprobs,
                        const double *sampler_logprobs, const bool *trained, double *weights);

#endif
