/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward passes over what was sampled. Completions of one prompt lie behind it as branches of one tree, so the prompt is computed once
 * for the group; nothing is computed for padding, nor for a completion's last token, which predicts nothing.
 *
 *     for (int64_t i = first; i < end; i += n) {
 *         n = text_pass_fit(&pass, experience, i, end);
 *         TRY(text_pass_forward(&pass, model, experience, i, n, &results));   // log-probs, entropies of their tokens
 *         ... a loss and its gradients by these ...
 *         TRY(text_pass_backward(&pass, &gradients));
 *     }
 */
#ifndef TUNE_TEXT_PASS_H
#define TUNE_TEXT_PASS_H

#include "rl/text/experience.h"

typedef struct TextPass {
    Tape *tape;
    double temperature; /* of the policy: logits are divided by it */
    int64_t max_tokens; /* of a pass, unless one sequence with its prompt has more */
    Tensor *value_head; /* (1, C) on the hidden states of the model that values are asked of; NULL: none */
    bool finals;        /* rows behind the last tokens of sequences that were cut are there, also where no value head asks for them */
    /* of the pass in work */
    int32_t *ids, *rows, *targets;
    Segment *segments;
    size_t cap_tokens, cap_targets, cap_segments;
    ModelBatch batch;
    int64_t n_targets, n_finals; /* rows that predict tokens, and those behind the last tokens of sequences that were cut */
    TokenLogprobs logprobs;
    Tensor *values;
    /* Hidden states, and the rows of n_targets + n_finals states: for other heads, between text_pass_forward and text_pass_backward */
    Tensor *hidden, *places;
} TextPass;
/* Per token of the sequences, in their order; NULL where not wanted. values: of the state before the token; final_values: of the state behind it,
 * written at the last tokens of sequences that were cut. */
typedef struct TextResults {
    double *logprobs, *entropies, *values, *final_values;
    bool entropies_trained; /* else there are no TextGradients of them */
} TextResults;
typedef struct TextGradients {
    const double *logprobs, *entropies, *values;
} TextGradients; /* NULL: none */

/* How many of the sequences first .. end - 1 go into one pass, at least 1. */
int64_t text_pass_fit(const TextPass *pass, const Experience *experience, int64_t first, int64_t end);
/* Tokens that n sequences take in one pass. */
int64_t text_pass_rows(const Experience *experience, int64_t first, int64_t n);
Status text_pass_forward(TextPass *pass, const Model *model, const Experience *experience, int64_t first, int64_t n, const TextResults *results);
Status text_pass_backward(TextPass *pass, const TextGradients *gradients);
void text_pass_release(TextPass *pass); /* not the tape */

#endif
