/* SPDX-License-Identifier: Apache-2.0 */
/* Corrects for a sampler whose log-probabilities differ from the trainer's (another precision, a server, older weights): weights of tokens for
 * PolicyBatch.weights, constants without gradient.
 *
 *     sampler_correction(CORRECT_SEQUENCE_MASK, 0, 3, n_sequences, begin, old_logprobs, sampler_logprobs, NULL, weights);
 */
#ifndef TUNE_SAMPLER_CORRECTION_H
#define TUNE_SAMPLER_CORRECTION_H

#include "rl/core/rl.h"

/* u = exp(old - sampler) of a token, or of the sequence (the product over its tokens). TRUNCATE: clamps u to low..high. MASK: 0 where u is outside.
 * TRL's default is the mask of sequences, 0..3; since products grow with the length, sequence masks suit short completions. */
typedef enum SamplerCorrection { CORRECT_TOKEN_TRUNCATE, CORRECT_TOKEN_MASK, CORRECT_SEQUENCE_TRUNCATE, CORRECT_SEQUENCE_MASK } SamplerCorrection;

/* weights: per token, written; 1 where not trained (trained NULL: all are). Sequence i has tokens begin[i] .. begin[i + 1] - 1. Log-ratios are
 * clamped to +-20. */
void sampler_correction(SamplerCorrection how, double low, double high, int64_t n_sequences, const int64_t *begin, const double *old_logprobs,
                        const double *sampler_logprobs, const bool *trained, double *weights);

#endif
