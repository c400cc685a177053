/* SPDX-License-Identifier: Apache-2.0 */
/* gated_mlp: a feed-forward block whose inner values are multiplied by an activated gate, from one projection or from two. */
#include "lib/model/block.h"

typedef struct GatedMlpBlock {
    Linear gate, up, gate_up, down; /* gate_up, or the two before it */
} GatedMlpBlock;

static void gated_mlp_build(BlockBuilder *builder, const void *given, void *result) {
    const GatedMlpForm *form = given;
    GatedMlpBlock *block = result;
    const ModelConfig *c = &builder->model->config;
    if (form->gate_up) {
        build_linear(builder, form->gate_up, &block->gate_up, c->hidden_size, 2 * c->intermediate_size, c->mlp_bias);
    } else {
        build_linear(builder, form->gate, &block->gate, c->hidden_size, c->intermediate_size, c->mlp_bias);
        build_linear(builder, form->up, &block->up, c->hidden_size, c->intermediate_size, c->mlp_bias);
    }
    build_linear(builder, form->down, &block->down, c->intermediate_size, c->hidden_size, c->mlp_bias);
}

static Tensor *gated_mlp_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const GatedMlpBlock *block = sublayer->block;
    const StepContext *step = &context->batch->step;
    Tensor *both[2];
    if (block->gate_up.path)
        both[0] = both[1] = linear_forward(&block->gate_up, tape, x, NULL, step); /* op_activation_passing finds the halves */
    else
        linears_forward((const Linear *[]){&block->gate, &block->up}, 2, tape, x, step, both);
    Tensor *h = sublayer_activate(context, tape, both[0], both[1], &block->down);
    return sublayer_project(context, sublayer, tape, &block->down, h, residual);
}

const BlockKind block_gated_mlp = {sizeof(GatedMlpBlock), gated_mlp_build, gated_mlp_forward};
