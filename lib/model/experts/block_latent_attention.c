/* SPDX-License-Identifier: Apache-2.0 */
/* latent_attention: multi-head latent attention (MLA). Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
 *
 * A token has a latent vector c and one rotated key r that all heads share. A head's key is [r | its part of W c], its value another part of W c.
 * Without a cache keys and values are made and pass op_attention as those of any model, values padded to the width of keys. A cache keeps [c | r]
 * alone, as keys and as values of a single head: queries pass W first, results pass it afterwards, so that keys and values are never made. */
#include "lib/model/block.h"

#include <math.h>

/* Where numbers of a token go: see ColumnOrder. Heads come first in all products, numbers with rotation first within a head. */
typedef struct LatentMaps {
    ColumnOrder c, r;                             /* of [c | r] */
    ColumnOrder q, k, v, o;                       /* of projections; o: of attention's result */
    ColumnOrder q_nope, q_whole, k_whole, latent; /* with a cache */
} LatentMaps;
typedef struct LatentBlock {
    Linear q, q_a, q_b, kv_a, kv_b, o;
    Norm q_norm, kv_norm;
    LatentMaps maps;
    AttentionArgs args, cached;
    LayerRope rope;
} LatentBlock;

static const double LATENT_EPS = 1e-6; /* of both inner norms, whatever rms_norm_eps is */

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* A map under construction. */
typedef struct MapBuilder {
    Arena *arena;
    int64_t unit;
    int32_t *list;
    int64_t n;
    bool failed;
} MapBuilder;

static void map_begin(MapBuilder *builder, int64_t columns) {
    builder->list = arena_alloc(builder->arena, (size_t)(columns / builder->unit + 1) * sizeof *builder->list);
    builder->n = 0;
    builder->failed |= !builder->list;
}

/* Appends `columns` columns from number `first` on; first < 0: zeros. */
static void map_add(MapBuilder *builder, int64_t first, int64_t columns) {
    for (int64_t i = 0; i < columns && !builder->failed; i += builder->unit)
        builder->list[builder->n++] = first < 0 ? -1 : (int32_t)((first + i) / builder->unit);
}

static ColumnOrder map_end(const MapBuilder *builder) { return (ColumnOrder){builder->unit, builder->n, builder->list}; }

static void maps_build(BlockBuilder *model_builder, LatentMaps *maps) {
    const ModelConfig *config = &model_builder->model->config;
    const LatentConfig *l = &config->latent;
    const int64_t H = config->num_attention_heads, D = l->nope + l->rope, per_head = l->nope + l->v;
    MapBuilder builder = {.arena = model_builder->model->arena, .unit = common_divisor(l->kv_rank, l->rope)};
    map_begin(&builder, l->kv_rank);
    map_add(&builder, 0, l->kv_rank);
    maps->c = map_end(&builder);
    map_begin(&builder, l->rope);
    map_add(&builder, l->kv_rank, l->rope);
    maps->r = map_end(&builder);
    map_begin(&builder, l->kv_rank + l->rope);
    map_add(&builder, 0, l->kv_rank + l->rope);
    maps->k_whole = map_end(&builder);
    map_begin(&builder, H * l->kv_rank);
    for (int64_t h = 0; h < H; h++) map_add(&builder, h * (l->kv_rank + l->rope), l->kv_rank);
    maps->latent = map_end(&builder);

    builder.unit = common_divisor(common_divisor(l->nope, l->rope), l->v);
    map_begin(&builder, H * D);
    for (int64_t h = 0; h < H; h++) {
        map_add(&builder, h * D + l->nope, l->rope);
        map_add(&builder, h * D, l->nope);
    }
    maps->q = map_end(&builder);
    map_begin(&builder, H * D);
    for (int64_t h = 0; h < H; h++) { /* r, then the projection */
        map_add(&builder, 0, l->rope);
        map_add(&builder, l->rope + h * per_head, l->nope);
    }
    maps->k = map_end(&builder);
    map_begin(&builder, H * D);
    for (int64_t h = 0; h < H; h++) {
        map_add(&builder, h * per_head + l->nope, l->v);
        map_add(&builder, -1, D - l->v);
    }
    maps->v = map_end(&builder);
    map_begin(&builder, H * l->v);
    for (int64_t h = 0; h < H; h++) map_add(&builder, h * D, l->v);
    maps->o = map_end(&builder);
    map_begin(&builder, H * l->nope);
    for (int64_t h = 0; h < H; h++) map_add(&builder, h * D + l->rope, l->nope);
    maps->q_nope = map_end(&builder);

    builder.unit = common_divisor(common_divisor(l->nope, l->rope), l->kv_rank);
    map_begin(&builder, H * (l->kv_rank + l->rope));
    for (int64_t h = 0; h < H; h++) { /* the queries after W, then the rotated queries */
        map_add(&builder, h * l->kv_rank, l->kv_rank);
        map_add(&builder, H * l->kv_rank + h * D, l->rope);
    }
    maps->q_whole = map_end(&builder);
    if (builder.failed) model_builder->status = ST_RESOURCE;
}

static void latent_build(BlockBuilder *builder, const void *given, void *result) {
    const LatentForm *form = given;
    LatentBlock *block = result;
    const ModelConfig *c = &builder->model->config;
    const LatentConfig *l = &c->latent;
    const int64_t H = c->num_attention_heads, D = l->nope + l->rope;
    if (l->q_rank == 0) {
        build_linear(builder, form->q, &block->q, c->hidden_size, H * D, false);
    } else {
        build_linear(builder, form->q_a, &block->q_a, c->hidden_size, l->q_rank, c->qkv_bias);
        build_norm(builder, form->q_norm, &block->q_norm, l->q_rank);
        build_linear(builder, form->q_b, &block->q_b, l->q_rank, H * D, false);
    }
    build_linear(builder, form->kv_a, &block->kv_a, c->hidden_size, l->kv_rank + l->rope, c->qkv_bias);
    build_norm(builder, form->kv_norm, &block->kv_norm, l->kv_rank);
    build_linear(builder, form->kv_b, &block->kv_b, l->kv_rank, H * (l->nope + l->v), false);
    block->kv_b.no_dora = true; /* with a cache its weight is a part of the queries and the results */
    build_linear(builder, form->o, &block->o, H * l->v, c->hidden_size, c->o_bias);
    maps_build(builder, &block->maps);
    double scale = c->attention_scale > 0 ? c->attention_scale : 1 / sqrt((double)D);
    block->args = (AttentionArgs){.n_heads = H, .n_kv_heads = H, .head_dim = D, .scale = scale};
    block->cached = (AttentionArgs){
        .layer = build_cache_row(builder, l->kv_rank + l->rope, 0), .n_heads = H, .n_kv_heads = 1, .head_dim = l->kv_rank + l->rope, .scale = scale};
}

static Tensor *queries(const LayerContext *context, const LatentBlock *block, Tape *tape, Tensor *x) {
    const StepContext *step = &context->batch->step;
    Tensor *q =
        block->q.path
            ? linear_forward(&block->q, tape, x, NULL, step)
            : linear_forward(&block->q_b, tape,
                             op_rms_norm(tape, linear_forward(&block->q_a, tape, x, NULL, step), block->q_norm.weight, LATENT_EPS, NULL), NULL, step);
    return op_columns(tape, q, NULL, &block->maps.q);
}

/* With a cache: [c | r] are keys and values. */
static Tensor *cached_forward(const LayerContext *context, const LatentBlock *block, Tape *tape, Tensor *q, Tensor *c, Tensor *r) {
    const LatentConfig *l = &context->model->config.latent;
    HeadProducts products = {.n_heads = block->args.n_heads,
                             .rows = l->nope + l->v,
                             .count = l->nope,
                             .weight = block->kv_b.weight,
                             .lora = linear_branch(&block->kv_b, tape, &context->batch->step)};
    Tensor *inner = head_products(tape, op_columns(tape, q, NULL, &block->maps.q_nope), &products);
    Tensor *whole = op_columns(tape, inner, q, &block->maps.q_whole), *keys = op_columns(tape, c, r, &block->maps.k_whole);
    AttentionArgs args = block->cached;
    args.layout = &context->batch->layout;
    Tensor *y = op_columns(tape, op_attention(tape, whole, keys, keys, &args), NULL, &block->maps.latent);
    products.first = l->nope;
    products.count = l->v;
    products.transposed = true;
    return head_products(tape, y, &products);
}

static Tensor *latent_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const LatentBlock *block = sublayer->block;
    const LatentMaps *maps = &block->maps;
    const StepContext *step = &context->batch->step;
    const RopeTables *rope = &context->ropes[block->rope];
    const bool neighbours = context->model->config.rope.neighbours;
    Tensor *q = queries(context, block, tape, x), *both = linear_forward(&block->kv_a, tape, x, NULL, step);
    Tensor *c = op_rms_norm(tape, op_columns(tape, both, NULL, &maps->c), block->kv_norm.weight, LATENT_EPS, NULL);
    Tensor *r = op_columns(tape, both, NULL, &maps->r);
    q = op_rope(tape, q, rope->query_cosine, rope->query_sine, block->args.head_dim, neighbours);
    r = op_rope(tape, r, rope->cosine, rope->sine, context->model->config.latent.rope, neighbours);
    if (!q || !c || !r) return NULL;
    if (context->batch->layout.cache)
        return sublayer_project(context, sublayer, tape, &block->o, cached_forward(context, block, tape, q, c, r), residual);
    Tensor *kv = linear_forward(&block->kv_b, tape, c, NULL, step);
    AttentionArgs args = block->args;
    args.layout = &context->batch->layout;
    Tensor *k = op_columns(tape, r, kv, &maps->k), *v = op_columns(tape, kv, NULL, &maps->v);
    Tensor *y = op_columns(tape, op_attention(tape, q, k, v, &args), NULL, &maps->o);
    return sublayer_project(context, sublayer, tape, &block->o, y, residual);
}

const BlockKind block_latent_attention = {sizeof(LatentBlock), latent_build, latent_forward};
