/* SPDX-License-Identifier: Apache-2.0 */
/* short_conv: a projection to two gates and an input, a causal convolution over a few tokens between them, a projection back. A cache keeps the last
 * inputs of the convolution of each sequence. */
#include "lib/model/block.h"

typedef struct ShortConvBlock {
    Linear in, out;
    Tensor *kernel, *bias; /* (C, 1, K), (C) */
    int state;
} ShortConvBlock;

static void short_conv_build(BlockBuilder *builder, const void *given, void *result) {
    const ShortConvForm *form = given;
    ShortConvBlock *block = result;
    const ModelConfig *c = &builder->model->config;
    int64_t width = c->hidden_size;
    build_linear(builder, form->in, &block->in, width, 3 * width, c->conv_bias);
    build_weight(builder, form->kernel, false, &block->kernel, 3, (int64_t[]){width, 1, c->conv_taps});
    if (c->conv_bias) build_weight(builder, form->bias, true, &block->bias, 1, &width);
    build_linear(builder, form->out, &block->out, width, width, c->conv_bias);
    block->state = build_state(builder, (c->conv_taps - 1) * width);
}

static Tensor *short_conv_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const ShortConvBlock *block = sublayer->block;
    const ModelBatch *batch = context->batch;
    const ShortConvArgs args = {.layout = &batch->layout, .states = batch->layout.cache ? batch->states->items[block->state] : NULL};
    Tensor *y = op_short_conv(tape, linear_forward(&block->in, tape, x, NULL, &batch->step), block->kernel, block->bias, &args);
    return sublayer_project(context, sublayer, tape, &block->out, y, residual);
}

const BlockKind block_short_conv = {sizeof(ShortConvBlock), short_conv_build, short_conv_forward};
