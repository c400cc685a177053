/* SPDX-License-Identifier: Apache-2.0 */
/* One number from a hidden state: what a reward model says of a sequence at its last token, or a value function at every token.
 *
 *     Tensor *weight;
 *     TRY(scalar_head_add(model, &(ScalarHeadConfig){.name = "value", .role = PARAM_CHECKPOINT_ONLY, .trained = true}, &weight));   // starts at zero
 *     Tensor *hidden = model_forward(model, tape, &batch);                     // (N, C)
 *     Tensor *values = op_row_scores(tape, hidden, weight, rows);              // (P, 1), one of each row asked for; gradients to hidden and weight
 */
#ifndef TUNE_SCALAR_HEAD_H
#define TUNE_SCALAR_HEAD_H

#include "lib/model/model.h"

typedef struct ScalarHeadConfig {
    const char *name; /* "score" makes the parameter "score.weight" */
    /* What becomes of it on disk: PARAM_SAVED goes with an adapter, PARAM_BASE with a whole model, PARAM_CHECKPOINT_ONLY only into checkpoints */
    ParamRole role;
    double deviation; /* of the normal distribution that it starts from; 0 = zeros. Hugging Face starts `score` at initializer_range (0.02); a value
                       * function starts at zero: it then says 0 of every state, and the first advantages are the returns themselves */
    uint64_t seed;    /* with the name it chooses the draws */
    bool trained;
} ScalarHeadConfig;
/* A weight (1, C) without bias, f32 (f64 on the reference device), at the end of model->params. The name must outlive the model. ST_RESOURCE. */
Status scalar_head_add(Model *model, const ScalarHeadConfig *config, Tensor **weight);
/* How many of n tokens there are up to the one whose score counts, as transformers' ...ForSequenceClassification has it: the last that is not the pad
 * token of config.json. n where that is no other token. */
size_t scalar_head_end(const ModelConfig *config, const int32_t *ids, size_t n);

#endif
