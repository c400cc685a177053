/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of every family: embedding, layers of attention and MLP around a residual stream, final norm. What differs comes from ModelConfig.
 */
#include "lib/model/model.h"

#include <math.h>

typedef struct LayerContext {
    const Model *model;
    ModelBatch batch;
    const Tensor *cosine, *sine;
    int64_t index;
} LayerContext;

static Tensor *norm_forward(const Model *model, Tape *tape, const Norm *norm, Tensor *x) {
    if (model->config.norm == NORM_LAYER) return op_layer_norm(tape, x, norm->weight, norm->bias, model->config.norm_eps);
    return op_rms_norm(tape, x, norm->weight, model->config.norm_eps, NULL);
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

/* residual + attention of x, which is the residual stream under its norm. */
static Tensor *attention_forward(const LayerContext *context, const DecoderLayer *layer, Tape *tape, Tensor *x, Tensor *residual) {
    const Model *model = context->model;
    const ModelConfig *config = &model->config;
    Split qkv = project_qkv(context, layer, tape, x);
    Tensor *q = qkv.parts[0], *k = qkv.parts[1], *v = qkv.parts[2];
    if (config->qk_norm) {
        q = norm_forward(model, tape, &layer->q_norm, q);
        k = norm_forward(model, tape, &layer->k_norm, k);
    }
    if (context->cosine) {
        q = op_rope(tape, q, context->cosine, context->sine, config->head_dim, false);
        k = op_rope(tape, k, context->cosine, context->sine, config->head_dim, false);
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
    return linear_forward(&layer->o, tape, op_attention(tape, q, k, v, &args), residual, &context->batch.step);
}

static Tensor *feed_forward(const LayerContext *context, const DecoderLayer *layer, Tape *tape, Tensor *x, Tensor *residual) {
    const ModelConfig *config = &context->model->config;
    const StepContext *step = &context->batch.step;
    Tensor *h;
    if (config->gated_mlp) {
        Tensor *both[2];
        linears_forward((const Linear *[]){&layer->gate, &layer->up}, 2, tape, x, step, both);
        h = op_activation_passing(tape, config->activation, both[0], both[1]);
    } else {
        h = op_activation_passing(tape, config->activation, linear_forward(&layer->up, tape, x, NULL, step), NULL);
    }
    return linear_forward(&layer->down, tape, h, residual, step);
}

static Tensor *layer_forward(Tape *tape, Tensor *x, void *given) {
    const LayerContext *context = given;
    const DecoderLayer *layer = &context->model->layers[context->index];
    x = attention_forward(context, layer, tape, norm_forward(context->model, tape, &layer->input_norm, x), x);
    return feed_forward(context, layer, tape, norm_forward(context->model, tape, &layer->post_norm, x), x);
}

static Tensor *ids_tensor(const Model *model, Tape *tape, const ModelBatch *batch) {
    int64_t n = batch->layout.n_tokens;
    Tensor *ids = tensor_new(tape_arena(tape), model->device, DT_I32, 1, &n);
    if (!ids) return tape_fail(tape, ST_RESOURCE, "out of memory for %lld token ids", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        if (batch->ids[i] < 0 || batch->ids[i] >= model->config.vocab_size)
            return tape_fail(tape, ST_INPUT, "unknown token id %d, the model's vocabulary has %lld", (int)batch->ids[i],
                             (long long)model->config.vocab_size);
        ((int32_t *)ids->data)[i] = batch->ids[i];
    }
    return ids;
}

/* In place: a constant that is added changes no gradient. */
static void add_noise(const EmbedNoise *noise, const Layout *layout, Tensor *x) {
    for (int32_t s = 0; s < layout->n_segments; s++) {
        int64_t begin = layout->segments[s].begin, n = layout->segments[s].end - begin;
        double most = noise->alpha / sqrt((double)(tree_length(layout, s) * tensor_width(x)));
        x->device->add_uniform(begin, n, most, noise->keys[s], x);
    }
}

static Tensor *embed(const Model *model, Tape *tape, const ModelBatch *batch) {
    Tensor *ids = ids_tensor(model, tape, batch);
    Tensor *x = op_embedding(tape, ids, model->embed, 1);
    if (x && batch->noise.alpha > 0) add_noise(&batch->noise, &batch->layout, x);
    if (!x || !model->position_embed) return x;
    Tensor *positions = layout_positions(&batch->layout, tape_arena(tape), model->device);
    if (!positions) return tape_fail(tape, ST_RESOURCE, "out of memory for positions");
    for (int64_t i = 0; i < batch->layout.n_tokens; i++)
        if (((const int32_t *)positions->data)[i] >= model->config.max_position_embeddings)
            return tape_fail(tape, ST_INPUT, "a sequence has more than the %lld tokens that the model has positions for",
                             (long long)model->config.max_position_embeddings);
    return op_add(tape, x, op_embedding(tape, positions, model->position_embed, 1), 1);
}

Tensor *model_residual(const Model *model, Tape *tape, const ModelBatch *batch, int64_t n_layers) {
    profile_lap(NULL);
    Tensor *x = embed(model, tape, batch), *cosine = NULL, *sine = NULL;
    if (!x) return NULL;
    if (model->config.rope.type != ROPE_NONE &&
        rope_tables(&model->config, &batch->layout, tape_arena(tape), model->device, tape_residual(tape), &cosine, &sine) != ST_OK)
        return tape_fail(tape, ST_RESOURCE, "out of memory for rotary positions");
    profile_lap("positions");
    if (model->checkpointing != CHECKPOINT_NONE) tape_checkpoint(tape, model->checkpointing);
    for (int64_t i = 0; i < n_layers && x; i++) {
        LayerContext *context = tape_copy(tape, &(LayerContext){model, *batch, cosine, sine, i}, sizeof(LayerContext));
        x = context ? op_layer(tape, layer_forward, x, context) : NULL;
    }
    return x;
}

Tensor *model_forward(const Model *model, Tape *tape, const ModelBatch *batch) {
    return norm_forward(model, tape, &model->final_norm, model_residual(model, tape, batch, model->config.num_hidden_layers));
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
