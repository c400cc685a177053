/* SPDX-License-Identifier: Apache-2.0 */
/* attention: queries, keys and values from one projection or from three, norms over them, rotation, softmax attention, output projection. Keys and
 * values may be those of an earlier layer (ModelConfig.layer_kv). */
#include "lib/model/block.h"

#include <math.h>

typedef struct AttentionBlock {
    Linear q, k, v, qkv, o; /* qkv, or the three before it */
    Norm q_norm, k_norm;
    LayerRope rope;
    AttentionArgs args;
    bool takes, gives; /* keys and values of an earlier layer; its own to later layers */
    int shared;        /* the place of these keys, and the next one of the values */
    bool shown;        /* model_show_attention: its queries and keys are wanted */
    Tensor *sinks;
} AttentionBlock;

static int64_t kv_source(const ModelConfig *config, int64_t layer) { return config->layer_kv ? config->layer_kv[layer] : layer; }

static const AttentionBlock *attention_of(const DecoderLayer *layer) {
    for (int i = 0; i < layer->n_sublayers; i++)
        if (layer->sublayers[i].kind == &block_attention) return layer->sublayers[i].block;
    ASSERT(false, "a layer without attention has no keys and values");
    return NULL;
}

/* Finds the keys and values that the layer reads, or gives its own a row in the cache, and places for layers that read them again. */
static void build_keys(BlockBuilder *builder, AttentionBlock *block, int64_t kv_width) {
    const ModelConfig *c = &builder->model->config;
    if (block->takes) {
        const AttentionBlock *source = attention_of(&builder->model->layers[kv_source(c, builder->layer)]);
        block->shared = source->shared;
        block->args.layer = source->args.layer;
        return;
    }
    for (int64_t later = builder->layer + 1; later < c->num_hidden_layers; later++) block->gives |= kv_source(c, later) == builder->layer;
    if (block->gives) {
        block->shared = build_result(builder);
        build_result(builder);
    }
    block->args.layer = build_cache_row(builder, kv_width, kv_width);
}

static void attention_build(BlockBuilder *builder, const void *given, void *result) {
    const AttentionForm *form = given;
    AttentionBlock *block = result;
    const ModelConfig *c = &builder->model->config;
    int64_t q_width = c->num_attention_heads * c->head_dim, kv_width = c->num_key_value_heads * c->head_dim;
    block->takes = kv_source(c, builder->layer) != builder->layer;
    ASSERT(!block->takes || form->q, "a projection of keys and values that layer %lld does not use", (long long)builder->layer);
    if (block->takes) {
        build_linear(builder, form->q, &block->q, c->hidden_size, q_width, c->qkv_bias);
    } else if (form->qkv) {
        build_linear(builder, form->qkv, &block->qkv, c->hidden_size, q_width + 2 * kv_width, c->qkv_bias);
    } else {
        build_linear(builder, form->q, &block->q, c->hidden_size, q_width, c->qkv_bias);
        build_linear(builder, form->k, &block->k, c->hidden_size, kv_width, c->qkv_bias);
        build_linear(builder, form->v, &block->v, c->hidden_size, kv_width, c->qkv_bias);
    }
    build_norm(builder, form->q_norm, &block->q_norm, form->norm_all_heads ? q_width : c->head_dim);
    if (!block->takes) build_norm(builder, form->k_norm, &block->k_norm, form->norm_all_heads ? kv_width : c->head_dim);
    build_linear(builder, form->o, &block->o, q_width, c->hidden_size, c->o_bias);
    if (form->sinks) build_weight(builder, form->sinks, true, &block->sinks, 1, &c->num_attention_heads);
    block->rope = c->layer_rope ? c->layer_rope[builder->layer] : LAYER_ROPE;
    block->args = (AttentionArgs){
        .stored = block->takes,
        .n_heads = c->num_attention_heads,
        .n_kv_heads = c->num_key_value_heads,
        .head_dim = c->head_dim,
        .scale = c->attention_scale > 0 ? c->attention_scale : 1 / sqrt((double)c->head_dim),
        .window = c->layer_window[builder->layer],
        .softcap = c->attn_softcap,
    };
    build_keys(builder, block, kv_width);
}

static Split project(const LayerContext *context, const AttentionBlock *block, Tape *tape, Tensor *x) {
    const StepContext *step = &context->batch->step;
    const AttentionArgs *args = &block->args;
    if (block->qkv.path)
        return op_split(tape, linear_forward(&block->qkv, tape, x, NULL, step), args->head_dim,
                        (int64_t[]){args->n_heads, args->n_kv_heads, args->n_kv_heads});
    if (block->takes)
        return (Split){{linear_forward(&block->q, tape, x, NULL, step), context->shared[block->shared], context->shared[block->shared + 1]}};
    Split qkv;
    linears_forward((const Linear *[]){&block->q, &block->k, &block->v}, 3, tape, x, step, qkv.parts);
    return qkv;
}

static Tensor *attention_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const Model *model = context->model;
    const AttentionBlock *block = sublayer->block;
    const bool neighbours = model->config.rope.neighbours;
    Split qkv = project(context, block, tape, x);
    Tensor *q = qkv.parts[0], *k = qkv.parts[1], *v = qkv.parts[2];
    if (block->q_norm.weight) q = norm_forward(model, tape, &block->q_norm, q, NULL);
    if (block->k_norm.weight) k = norm_forward(model, tape, &block->k_norm, k, NULL);
    const RopeTables *rope = &context->ropes[block->rope];
    if (rope->cosine) {
        q = op_rope(tape, q, rope->query_cosine, rope->query_sine, block->args.head_dim, neighbours);
        if (!block->takes) k = op_rope(tape, k, rope->cosine, rope->sine, block->args.head_dim, neighbours);
    }
    if (block->gives) {
        context->shared[block->shared] = k;
        context->shared[block->shared + 1] = v;
    }
    if (block->shown && context->batch->shown) {
        context->shared[model->shown.place] = q;
        context->shared[model->shown.place + 1] = k;
    }
    AttentionArgs args = block->args;
    args.layout = &context->batch->layout;
    args.sinks = block->sinks;
    return sublayer_project(context, sublayer, tape, &block->o, op_attention(tape, q, k, v, &args), residual);
}

static Status not_plain(const Model *model, const char *why) {
    return status_fail(ST_CONFIG, "the attention of the last layer of '%s' cannot be compared with another model's: it has %s", model->dir, why);
}

Status model_show_attention(Model *model) {
    const DecoderLayer *last = &model->layers[model->config.num_hidden_layers - 1];
    AttentionBlock *block = NULL;
    for (int i = 0; i < last->n_sublayers; i++)
        if (last->sublayers[i].kind == &block_attention) block = last->sublayers[i].block;
    if (!block) return not_plain(model, "no softmax attention with keys for each head");
    if (block->args.window) return not_plain(model, "a window");
    if (block->sinks) return not_plain(model, "sinks");
    if (block->takes) return not_plain(model, "the keys of an earlier layer");
    if (block->shown) return ST_OK;
    block->shown = true;
    model->shown.args = &block->args;
    model->shown.place = model->n_shared;
    model->n_shared += 2;
    return ST_OK;
}

const BlockKind block_attention = {sizeof(AttentionBlock), attention_build, attention_forward};
