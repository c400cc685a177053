/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass of every family: embedding, layers of blocks around a residual stream, final norm. */
#include "lib/model/block.h"

#include <math.h>

Tensor *norm_forward(const Model *model, Tape *tape, const Norm *norm, Tensor *x, Tensor *residual) {
    const ModelConfig *config = &model->config;
    if (config->norm == NORM_LAYER) return op_layer_norm(tape, x, norm->weight, norm->bias, config->norm_eps);
    Tensor *weight = config->norm_offset != 0 ? op_offset(tape, norm->weight, config->norm_offset) : norm->weight;
    return op_rms_norm(tape, x, weight, config->norm_eps, residual);
}

/* The input of a sublayer: the residual stream, normalised. */
static Tensor *sublayer_input(const Model *model, Tape *tape, const Norm *norm, Tensor *x) {
    return norm->weight ? norm_forward(model, tape, norm, x, NULL) : op_convert(tape, x);
}

/* No family has both a norm and a scale. */
Tensor *sublayer_add(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *y, Tensor *residual) {
    if (sublayer->output_norm.weight) return norm_forward(context->model, tape, &sublayer->output_norm, y, residual);
    return op_add(tape, residual, y, context->model->config.residual_scale);
}

Tensor *sublayer_project(const LayerContext *context, const Sublayer *sublayer, Tape *tape, const Linear *last, Tensor *x, Tensor *residual) {
    const StepContext *step = &context->batch->step;
    bool plain = !sublayer->output_norm.weight && context->model->config.residual_scale == 1;
    if (plain) return linear_forward(last, tape, x, residual, step);
    return sublayer_add(context, sublayer, tape, linear_forward(last, tape, x, NULL, step), residual);
}

Tensor *sublayer_activate(const LayerContext *context, Tape *tape, Tensor *x, Tensor *up, const Linear *reader) {
    const Activation kind = context->model->config.activation;
    return linear_reads_once(reader, &context->batch->step) ? op_activation_passing(tape, kind, x, up) : op_activation(tape, kind, x, up);
}

Tensor *segment_state(const LayerContext *context, int32_t segment, int state, int64_t *offset) {
    const Layout *layout = &context->batch->layout;
    const SequenceStates *states = context->batch->states;
    if (!layout->cache) return NULL;
    ASSERT(states && state < states->n, "a cache without state %d", state);
    *offset = layout->segments[segment].state * tensor_width(states->items[state]);
    return states->items[state];
}

static Tensor *layer_forward(Tape *tape, Tensor *x, void *given) {
    const LayerContext *context = given;
    const DecoderLayer *layer = &context->model->layers[context->index];
    for (int i = 0; i < layer->n_sublayers; i++) {
        const Sublayer *sublayer = &layer->sublayers[i];
        x = sublayer->kind->forward(context, sublayer, tape, sublayer_input(context->model, tape, &sublayer->input_norm, x), x);
    }
    return x;
}

static Tensor *ids_tensor(const Model *model, Tape *tape, const ModelBatch *batch) {
    int64_t n = batch->layout.n_tokens;
    Tensor *ids = tensor_new(tape_arena(tape), tape_device(tape), DT_I32, 1, &n);
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
    Tensor *positions = layout_positions(&batch->layout, tape_arena(tape), tape_device(tape));
    if (!positions) return tape_fail(tape, ST_RESOURCE, "out of memory for positions");
    for (int32_t s = 0; s < batch->layout.n_segments; s++)
        if (layout_offset(batch->layout.segments, s) + batch->layout.segments[s].end - batch->layout.segments[s].begin >
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
            rope_tables(config, kinds[i], &batch->layout, tape_arena(tape), tape_device(tape), tape_residual(tape), &ropes[i]) != ST_OK) {
            tape_fail(tape, ST_RESOURCE, "out of memory for rotary positions");
            return NULL;
        }
    return tape_copy(tape, ropes, sizeof ropes);
}

/* A copy of the batch that lives until the step ends, with the arrays for kernels. */
static const ModelBatch *batch_keep(Tape *tape, const ModelBatch *given) {
    ModelBatch *batch = tape_copy(tape, given, sizeof *given);
    if (batch && layout_upload(&batch->layout, tape_arena(tape), tape_device(tape)) != ST_OK) {
        tape_fail(tape, ST_RESOURCE, "out of memory for the segments of a batch");
        return NULL;
    }
    return batch;
}

Tensor *model_layers(const Model *model, Tape *tape, const ModelBatch *given, Tensor *x, int64_t first, int64_t end) {
    profile_lap(NULL);
    const ModelBatch *batch = batch_keep(tape, given);
    if (!batch) return NULL;
    if (!x) x = embed(model, tape, batch);
    const RopeTables *ropes = x ? all_ropes(model, tape, batch) : NULL;
    if (!ropes) return NULL;
    profile_lap(device_computes(tape_device(tape)) ? "positions" : NULL);
    if (model->checkpointing != CHECKPOINT_NONE) tape_checkpoint(tape, model->checkpointing);
    Tensor **shared = model->n_shared > 0 ? arena_zero(tape_arena(tape), (size_t)model->n_shared * sizeof *shared) : NULL;
    if (model->n_shared > 0 && !shared) return tape_fail(tape, ST_RESOURCE, "out of memory for what layers hand on");
    for (int64_t i = first; i < end && x; i++) {
        LayerContext *context = tape_copy(tape, &(LayerContext){model, batch, ropes, shared, i}, sizeof(LayerContext));
        x = context ? op_layer_shared(tape, layer_forward, x, context, shared, model->n_shared) : NULL;
    }
    if (x && batch->shown) {
        *batch->shown = (ShownAttention){shared[model->shown.place], shared[model->shown.place + 1], *model->shown.args};
        batch->shown->args.layout = &batch->layout;
    }
    return x;
}

Tensor *model_residual(const Model *model, Tape *tape, const ModelBatch *batch, int64_t n_layers) {
    return model_layers(model, tape, batch, NULL, 0, n_layers);
}

Tensor *model_forward(const Model *model, Tape *tape, const ModelBatch *batch) {
    return norm_forward(model, tape, &model->final_norm, model_residual(model, tape, batch, model->config.num_hidden_layers), NULL);
}

Logits model_logits(const Model *model, Tape *tape, Tensor *hidden, const Tensor *rows) {
    if (!hidden) return (Logits){0};
    const Device *device = tape_device(tape);
    int64_t n = tensor_count(rows);
    Logits result = {tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){n, model->config.vocab_size}), tape_tensor(tape, DT_F64, 1, &n)};
    Tensor *chosen = tape_tensor(tape, hidden->dtype, 2, (int64_t[]){n, model->config.hidden_size});
    if (!result.logits || !result.logsumexp || !chosen) return (Logits){0};
    device->gather_rows(hidden, rows, chosen);
    device->token_logits(&model->logprob, chosen, model->head, result.logits, result.logsumexp);
    profile_call(device, "token_logits", false,
                 (OpCost){2 * (double)n * (double)tensor_count(model->head),
                          (double)(tensor_bytes(model->head) + tensor_bytes(chosen) + tensor_bytes(result.logits))});
    return result;
}

double logits_logprob(const Logits *logits, int64_t row, int32_t id) {
    double logprob = tensor_get(logits->logits, row * tensor_width(logits->logits) + id) - tensor_get(logits->logsumexp, row);
    return logits->logits->dtype == DT_F32 ? (double)(float)logprob : logprob;
}
