/* SPDX-License-Identifier: Apache-2.0 */
/* One number from a hidden state: a reward model's score of a sequence at its last token, or a value function at every token.
 *
 *     Tensor *weight;
 *     TRY(scalar_head_add(model, &(ScalarHeadConfig){.name = "value", .role = PARAM_CHECKPOINT_ONLY, .trained = true}, &weight));   // starts at zero
 *     Tensor *hidden = model_forward(model, tape, &batch);                     // (N, C)
 *     Tensor *values = op_row_scores(tape, hidden, weight, rows);              // (P, 1), one for each given row; gradients to hidden and weight
 */
#ifndef TUNE_SCALAR_HEAD_H
#define TUNE_SCALAR_HEAD_H

#include "lib/model/model.h"

typedef struct ScalarHeadConfig {
    const char *name; /* "score" makes the parameter "score.weight" */
    /* Where it is saved: PARAM_SAVED with an adapter, PARAM_BASE with a full model, PARAM_CHECKPOINT_ONLY only in checkpoints */
    ParamRole role;
    /* standard deviation of the normal distribution of its initial values; 0 = zeros. Hugging Face initialises `score` with initializer_range
     * (0.02); a value function starts at zero, so that it gives 0 for every state, and the first advantages equal the returns */
    double deviation;
    uint64_t seed; /* together with the name it determines the initial values */
    bool trained;
} ScalarHeadConfig;
/* Appends a weight (1, C) without bias, f32 (f64 on the reference device), to model->params. The name must outlive the model. ST_RESOURCE. */
Status scalar_head_add(Model *model, const ScalarHeadConfig *config, Tensor **weight);
/* The length of the prefix of n tokens that ends with the scored token, as in transformers' ...ForSequenceClassification: the last one that is not
 * the pad token of config.json; n if all are. */
size_t scalar_head_end(const ModelConfig *config, const int32_t *ids, size_t n);

#endif
