/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward passes over samples. The completions of a prompt are branches of a tree with the prompt as the trunk, so the prompt is
 * computed once per group. There is no padding, and the last token of a completion, which predicts nothing, is not computed.
 *
 *     for (int64_t i = first; i < end; i += n) {
 *         n = text_pass_fit(&pass, experience, i, end);
 *         TRY(text_pass_forward(&pass, model, experience, i, n, &results));   // log-probs and entropies of the tokens
 *         ... a loss and its gradients with respect to them ...
 *         TRY(text_pass_backward(&pass, &gradients));
 *     }
 */
#ifndef TUNE_TEXT_PASS_H
#define TUNE_TEXT_PASS_H

#include "lib/train/router_loads.h"
#include "rl/text/experience.h"

typedef struct TextPass {
    Tape *tape;
    double temperature; /* logits are divided by it */
    int64_t max_tokens; /* limit per pass, unless a single sequence with its prompt has more */
    Tensor *value_head; /* (1, C), on the hidden states of the model that computes values; NULL: no values */
    RouterLoads *loads; /* receive what the model's routers do; NULL: nothing does */
    bool finals;        /* include the rows after the last tokens of truncated sequences even without a value head */
    /* of the current pass */
    int32_t *ids, *rows, *targets;
    Segment *segments;
    size_t cap_tokens, cap_targets, cap_segments;
    ModelBatch batch;
    int64_t n_targets, n_finals; /* rows that predict tokens, and rows after the last tokens of truncated sequences */
    TokenLogprobs logprobs;
    Tensor *values;
    /* Hidden states, and the row numbers of n_targets + n_finals states: for other heads, between text_pass_forward and text_pass_backward */
    Tensor *hidden, *places;
} TextPass;
/* Per token of the sequences, in order; NULL where not wanted. values: of the state before the token; final_values: of the state after it, written at
 * the last tokens of truncated sequences. */
typedef struct TextResults {
    double *logprobs, *entropies, *values, *final_values;
    bool entropies_trained; /* false: TextGradients has no gradients of entropies */
} TextResults;
/* Gradients of the loss with respect to these results, by token; NULL: none. */
typedef struct TextGradients {
    const double *logprobs, *entropies, *values;
} TextGradients;

/* Number of the sequences first .. end - 1 that fit into one pass, at least 1. */
int64_t text_pass_fit(const TextPass *pass, const Experience *experience, int64_t first, int64_t end);
/* Number of tokens of n sequences in one pass. */
int64_t text_pass_rows(const Experience *experience, int64_t first, int64_t n);
/* Resets the tape, runs the model on n sequences from `first` on, and writes `results`. Fails as model_forward does; ST_RESOURCE. */
Status text_pass_forward(TextPass *pass, const Model *model, const Experience *experience, int64_t first, int64_t n, const TextResults *results);
/* The same with the losses of a student: also runs the teacher. *d: on the tape, a value for each token of the sequences. args must live until the
 * step ends. Fails likewise. */
Status text_pass_taught(TextPass *pass, const Model *model, const Model *teacher, const Experience *experience, int64_t first, int64_t n,
                        const DivergenceArgs *args, Divergences *d);
/* Adds to the gradients of the model's trained parameters, given the gradients of the last pass's results. Fails as tape_backward does. */
Status text_pass_backward(TextPass *pass, const TextGradients *gradients);
void text_pass_release(TextPass *pass); /* does not free the tape */

#endif
