/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of every family: embedding, layers of attention and MLP around a residual stream, final norm. ModelConfig describes the
 * differences.
 */
#include "lib/model/model.h"
#include "lib/model/rope.h"

#include <math.h>

typedef struct LayerContext {
    const Model *model;
    ModelBatch batch;
    const RopeTables *ropes; /* indexed by LayerRope */
    int64_t index;
} LayerContext;

/* residual: added to the result; NULL = none. */
static Tensor *norm_forward(const Model *model, Tape *tape, const Norm *norm, Tensor *x, Tensor *residual) {
    const ModelConfig *config = &model->config;
    if (config->norm == NORM_LAYER) return op_layer_norm(tape, x, norm->weight, norm->bias, config->norm_eps);
    Tensor *weight = config->norm_offset != 0 ? op_offset(tape, norm->weight, config->norm_offset) : norm->weight;
    return op_rms_norm(tape, x, weight, config->norm_eps, residual);
}

/* The input of a sublayer: the residual stream, normalised. */
static Tensor *sublayer_input(const Model *model, Tape *tape, const Norm *norm, Tensor *x) {
    return norm->weight ? norm_forward(model, tape, norm, x, NULL) : op_convert(tape, x);
}

/* residual + the sublayer's last projection of x: plain, normalised or scaled. No family has both. */
static Tensor *sublayer_add(const LayerContext *context, Tape *tape, const Linear *last, const Norm *norm, Tensor *x, Tensor *residual) {
    const Model *model = context->model;
    const StepContext *step = &context->batch.step;
    if (norm->weight) return norm_forward(model, tape, norm, linear_forward(last, tape, x, NULL, step), residual);
    if (model->config.residual_scale == 1) return linear_forward(last, tape, x, residual, step);
    return op_add(tape, residual, linear_forward(last, tape, x, NULL, step), model->config.residual_scale);
}

static Split project_qkv(const LayerContext *context, const DecoderLayer *layer, Tape *tape, Tensor *x) {
    const ModelConfig *config = &context->model->config;
    const StepContext *step = &context->batch.step;
    if (config->fused_qkv) {
        const int64_t heads[3] = {config->num_attention_heads, config->num_key_value_heads, config->num_key_value_heads};
        return op_split(tape, linear_forward(&layer->qkv, tape, x, NULL, step), config->head_dim, heads);
    }
    Split qkv;
    linears_forward((const Linear *[]){&layer->q, &layer->k, &layer->v}, 3, tape, x, step, qkv.parts);
    return qkv;
}

/* residual + attention of x, the normalised residual stream. */
static Tensor *attention_forward(const LayerContext *context, const DecoderLayer *layer, Tape *tape, Tensor *x, Tensor *residual) {
    const Model *model = context->model;
    const ModelConfig *config = &model->config;
    Split qkv = project_qkv(context, layer, tape, x);
    Tensor *q = qkv.parts[0], *k = qkv.parts[1], *v = qkv.parts[2];
    if (config->qk_norm) {
        q = norm_forward(model, tape, &layer->q_norm, q, NULL);
        k = norm_forward(model, tape, &layer->k_norm, k, NULL);
    }
    const RopeTables *rope = &context->ropes[config->layer_rope ? config->layer_rope[context->index] : LAYER_ROPE];
    if (rope->cosine) {
        q = op_rope(tape, q, rope->query_cosine, rope->query_sine, config->head_dim, config->rope.neighbours);
        k = op_rope(tape, k, rope->cosine, rope->sine, config->head_dim, config->rope.neighbours);
    }
    AttentionArgs args = {
        .layout = &context->batch.layout,
        .layer = (int)context->index,
        .n_heads = config->num_attention_heads,
        .n_kv_heads = config->num_key_value_heads,
        .head_dim = config->head_dim,
        .scale = config->attention_scale > 0 ? config->attention_scale : 1 / sqrt((double)config->head_dim),
        .window = config->layer_window[context->index],
        .softcap = config->attn_softcap,
    };
    return sublayer_add(context, tape, &layer->o, &layer->attention_norm, op_attention(tape, q, k, v, &args), residual);
}

static Tensor *feed_forward(const LayerContext *context, const DecoderLayer *layer, Tape *tape, Tensor *x, Tensor *residual) {
    const ModelConfig *config = &context->model->config;
    const StepContext *step = &context->batch.step;
    Tensor *h;
    if (config->fused_gate_up) {
        Tensor *both = linear_forward(&layer->gate_up, tape, x, NULL, step);
        h = op_activation_passing(tape, config->activation, both, both);
    } else if (config->gated_mlp) {
        Tensor *both[2];
        linears_forward((const Linear *[]){&layer->gate, &layer->up}, 2, tape, x, step, both);
        h = op_activation_passing(tape, config->activation, both[0], both[1]);
    } else {
        h = op_activation_passing(tape, config->activation, linear_forward(&layer->up, tape, x, NULL, step), NULL);
    }
    return sublayer_add(context, tape, &layer->down, &layer->mlp_norm, h, residual);
}

static Tensor *layer_forward(Tape *tape, Tensor *x, void *given) {
    const LayerContext *context = given;
    const DecoderLayer *layer = &context->model->layers[context->index];
    x = attention_forward(context, layer, tape, sublayer_input(context->model, tape, &layer->input_norm, x), x);
    return feed_forward(context, layer, tape, sublayer_input(context->model, tape, &layer->post_norm, x), x);
}

static Tensor *ids_tensor(const Model *model, Tape *tape, const ModelBatch *batch) {
    int64_t n = batch->layout.n_tokens;
    Tensor *ids = tensor_new(tape_arena(tape), model->device, DT_I32, 1, &n);
    if (!ids) return tape_fail(tape, ST_RESOURCE, "out of memory for %lld token ids", (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (batch->ids[i] < 0 || batch->ids[i] >= model->config.vocab_size)
            return tape_fail(tape, ST_INPUT, "unknown token id %d, the model's vocabulary has %lld", (int)batch->ids[i],
                             (long long)model->config.vocab_size);
    return tensor_upload(ids, 0, n, batch->ids) == ST_OK ? ids : tape_fail(tape, ST_RESOURCE, "the device failed to take token ids");
}

/* In place, since an added constant does not change gradients. */
static void add_noise(const EmbedNoise *noise, const Layout *layout, Tensor *x) {
    for (int32_t s = 0; s < layout->n_segments; s++) {
        int64_t begin = layout->segments[s].begin, n = layout->segments[s].end - begin;
        double most = noise->alpha / sqrt((double)(tree_length(layout, s) * tensor_width(x)));
        tensor_device(x)->add_uniform(begin, n, most, noise->keys[s], x);
    }
}

static double embed_scale(const Model *model) {
    double scale = model->config.embed_scale;
    return model->config.round_embed_scale && model->compute == DT_BF16 ? (double)bf16_to_float(float_to_bf16((float)scale)) : scale;
}

static Tensor *embed(const Model *model, Tape *tape, const ModelBatch *batch) {
    Tensor *ids = ids_tensor(model, tape, batch);
    Tensor *x = op_embedding(tape, ids, model->embed, embed_scale(model));
    if (x && batch->noise.alpha > 0) add_noise(&batch->noise, &batch->layout, x);
    if (!x || !model->position_embed) return x;
    Tensor *positions = layout_positions(&batch->layout, tape_arena(tape), model->device);
    if (!positions) return tape_fail(tape, ST_RESOURCE, "out of memory for positions");
    for (int32_t s = 0; s < batch->layout.n_segments; s++)
        if (layout_offset(&batch->layout, s) + batch->layout.segments[s].end - batch->layout.segments[s].begin >
            model->config.max_position_embeddings)
            return tape_fail(tape, ST_INPUT, "a sequence has more than the %lld tokens that the model has positions for",
                             (long long)model->config.max_position_embeddings);
    return op_add(tape, x, op_embedding(tape, positions, model->position_embed, 1), 1);
}

/* Indexed by LayerRope: entries that no layer uses stay empty. NULL after a failure. */
static const RopeTables *all_ropes(const Model *model, Tape *tape, const ModelBatch *batch) {
    const ModelConfig *config = &model->config;
    RopeTables ropes[LAYER_NO_ROPE + 1] = {0};
    const RopeConfig *kinds[] = {&config->rope, &config->window_rope};
    for (int i = 0; i < LAYER_NO_ROPE; i++)
        if (kinds[i]->type != ROPE_NONE &&
            rope_tables(config, kinds[i], &batch->layout, tape_arena(tape), model->device, tape_residual(tape), &ropes[i]) != ST_OK) {
            tape_fail(tape, ST_RESOURCE, "out of memory for rotary positions");
            return NULL;
        }
    return tape_copy(tape, ropes, sizeof ropes);
}

Tensor *model_residual(const Model *model, Tape *tape, const ModelBatch *batch, int64_t n_layers) {
    profile_lap(NULL);
    Tensor *x = embed(model, tape, batch);
    const RopeTables *ropes = x ? all_ropes(model, tape, batch) : NULL;
    if (!ropes) return NULL;
    profile_lap("positions");
    if (model->checkpointing != CHECKPOINT_NONE) tape_checkpoint(tape, model->checkpointing);
    for (int64_t i = 0; i < n_layers && x; i++) {
        LayerContext *context = tape_copy(tape, &(LayerContext){model, *batch, ropes, i}, sizeof(LayerContext));
        x = context ? op_layer(tape, layer_forward, x, context) : NULL;
    }
    return x;
}

Tensor *model_forward(const Model *model, Tape *tape, const ModelBatch *batch) {
    return norm_forward(model, tape, &model->final_norm, model_residual(model, tape, batch, model->config.num_hidden_layers), NULL);
}

Logits model_logits(const Model *model, Tape *tape, Tensor *hidden, const Tensor *rows) {
    if (!hidden) return (Logits){0};
    int64_t n = tensor_count(rows);
    Logits result = {tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){n, model->config.vocab_size}), tape_tensor(tape, DT_F64, 1, &n)};
    Tensor *chosen = tape_tensor(tape, hidden->dtype, 2, (int64_t[]){n, model->config.hidden_size});
    if (!result.logits || !result.logsumexp || !chosen) return (Logits){0};
    model->device->gather_rows(hidden, rows, chosen);
    model->device->token_logits(&model->logprob, chosen, model->head, result.logits, result.logsumexp);
    profile_call(model->device, "token_logits", false,
                 (OpCost){2 * (double)n * (double)tensor_count(model->head),
                          (double)(tensor_bytes(model->head) + tensor_bytes(chosen) + tensor_bytes(result.logits))});
    return result;
}

double logits_logprob(const Logits *logits, int64_t row, int32_t id) {
    double logprob = tensor_get(logits->logits, row * tensor_width(logits->logits) + id) - tensor_get(logits->logsumexp, row);
    return logits->logits->dtype == DT_F32 ? (double)(float)logprob : logprob;
}
