/* SPDX-License-Identifier: Apache-2.0 */
/* mlp: a feed-forward block of two projections. */
#include "lib/model/block.h"

typedef struct MlpBlock {
    Linear up, down;
} MlpBlock;

static void mlp_build(BlockBuilder *builder, const void *given, void *result) {
    const MlpForm *form = given;
    MlpBlock *block = result;
    const ModelConfig *c = &builder->model->config;
    build_linear(builder, form->up, &block->up, c->hidden_size, c->intermediate_size, c->mlp_bias);
    build_linear(builder, form->down, &block->down, c->intermediate_size, c->hidden_size, c->mlp_bias);
}

static Tensor *mlp_block_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const MlpBlock *block = sublayer->block;
    Tensor *up = linear_forward(&block->up, tape, x, NULL, &context->batch->step);
    Tensor *h = sublayer_activate(context, tape, up, NULL, &block->down);
    return sublayer_project(context, sublayer, tape, &block->down, h, residual);
}

const BlockKind block_mlp = {sizeof(MlpBlock), mlp_build, mlp_block_forward};
