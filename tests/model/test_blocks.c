/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of blocks that no family has: what the table of kinds must be able to hold. The models of this test are read as llama, and then their second
 * layer becomes one of the test's own. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/infer/infer.h"
#include "lib/infer/kv_cache.h"
#include "lib/model/adapter.h"
#include "lib/model/family.h"
#include "lib/model/parts.h"
#include "lib/model/safetensors.h"

enum { WIDTH = 8, EXPERTS = 8, INNER = 2, TOKENS = 7 };
static const char config_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 19, \"hidden_size\": 8, \"intermediate_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"max_position_embeddings\": 4096}";

/* ---- experts: a sum of small MLPs, each with tensors of its own or all in tensors of three dimensions ---- */

typedef struct SumForm {
    const char *up, *down;
    bool fused;
} SumForm;
typedef struct SumBlock {
    Linear up[EXPERTS], down[EXPERTS];
    Tensor *all_up, *all_down; /* (E, I, C), (E, C, I), instead of the others */
} SumBlock;

static void sum_build(BlockBuilder *builder, const void *given, void *result) {
    const SumForm *form = given;
    SumBlock *block = result;
    if (form->fused) {
        build_weight(builder, form->up, true, &block->all_up, 3, (int64_t[]){EXPERTS, INNER, WIDTH});
        build_weight(builder, form->down, true, &block->all_down, 3, (int64_t[]){EXPERTS, WIDTH, INNER});
        return;
    }
    for (int e = 0; e < EXPERTS; e++) {
        builder->index = e;
        build_linear(builder, form->up, &block->up[e], WIDTH, INNER, false);
        build_linear(builder, form->down, &block->down[e], INNER, WIDTH, false);
    }
}

/* Expert `e` of a tensor of all of them, as a linear layer without LoRA. */
static Linear one_of(Tape *tape, const Tensor *all, int e, int64_t in, int64_t out) {
    const Tensor part = tensor_part(all, e * in * out, in * out);
    return (Linear){.weight = tensor_reshape(tape_arena(tape), &part, 2, (int64_t[]){out, in}), .in = in, .out = out};
}

static Tensor *sum_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const SumBlock *block = sublayer->block;
    const StepContext *step = &context->batch->step;
    Tensor *sum = NULL;
    for (int e = 0; e < EXPERTS; e++) {
        Linear up = block->all_up ? one_of(tape, block->all_up, e, WIDTH, INNER) : block->up[e];
        Linear down = block->all_down ? one_of(tape, block->all_down, e, INNER, WIDTH) : block->down[e];
        Tensor *h = op_activation_passing(tape, context->model->config.activation, linear_forward(&up, tape, x, NULL, step), NULL);
        Tensor *y = linear_forward(&down, tape, h, NULL, step);
        sum = sum ? op_add(tape, sum, y, 1) : y;
    }
    return sublayer_add(context, sublayer, tape, sum, residual);
}

static const BlockKind block_sum = {sizeof(SumBlock), sum_build, sum_forward};

/* ---- a recurrence: each channel is a leaky sum over the tokens of a sequence ---- */

typedef struct LeakyForm {
    const char *in, *decay, *out;
} LeakyForm;
typedef struct LeakyBlock {
    Linear in, out;
    Tensor *decay; /* (C) */
    int state;
} LeakyBlock;
typedef struct LeakyArgs {
    const LayerContext *context;
    const Tensor *decay;
    int state;
} LeakyArgs;

static void leaky_build(BlockBuilder *builder, const void *given, void *result) {
    const LeakyForm *form = given;
    LeakyBlock *block = result;
    build_linear(builder, form->in, &block->in, WIDTH, WIDTH, false);
    build_weight(builder, form->decay, true, &block->decay, 1, (int64_t[]){WIDTH});
    build_linear(builder, form->out, &block->out, WIDTH, WIDTH, false);
    block->state = build_state(builder, WIDTH);
}

/* y_t = decay y_(t-1) + x_t. The sum before a segment is that of its parent's last token, or the sequence's state in the cache. */
static void leaky_sum(const LeakyArgs *args, const Tensor *x, Tensor *y) {
    const Layout *layout = &args->context->batch->layout;
    for (int32_t s = 0; s < layout->n_segments; s++) {
        const Segment *segment = &layout->segments[s];
        int64_t offset, parent_end = segment->parent >= 0 ? layout->segments[segment->parent].end : 0;
        Tensor *state = segment_state(args->context, s, args->state, &offset);
        for (int64_t c = 0; c < WIDTH; c++) {
            double sum = parent_end > 0 ? tensor_get(y, (parent_end - 1) * WIDTH + c) : segment->past > 0 ? tensor_get(state, offset + c) : 0;
            for (int64_t t = segment->begin; t < segment->end; t++) {
                sum = tensor_get(args->decay, c) * sum + tensor_get(x, t * WIDTH + c);
                tensor_set(y, t * WIDTH + c, sum);
            }
            if (state) tensor_set(state, offset + c, sum);
        }
    }
}

/* What the tokens after the last one of segment `s` add to its gradient, before the decay. */
static double later_grad(const Layout *layout, int32_t s, const double *grad, int64_t c) {
    double sum = 0;
    for (int32_t child = s + 1; child < layout->n_segments; child++)
        if (layout->segments[child].parent == s) sum += grad[layout->segments[child].begin * WIDTH + c];
    return sum;
}

static void leaky_backward(Tape *tape, Node *node) {
    const LeakyArgs *args = node->attributes;
    const Layout *layout = &args->context->batch->layout;
    double beta, *grad = calloc((size_t)(layout->n_tokens * WIDTH), sizeof *grad);
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta), *dy = node->outputs[0]->grad;
    for (int32_t s = layout->n_segments; dx && s-- > 0;)
        for (int64_t c = 0; c < WIDTH; c++) {
            double later = later_grad(layout, s, grad, c);
            for (int64_t t = layout->segments[s].end; t-- > layout->segments[s].begin;) {
                int64_t at = t * WIDTH + c;
                later = grad[at] = tensor_get(dy, at) + tensor_get(args->decay, c) * later;
                tensor_set(dx, at, grad[at] + (beta != 0 ? tensor_get(dx, at) : 0));
            }
        }
    free(grad);
}

static Tensor *op_leaky(Tape *tape, Tensor *x, const LeakyArgs *args) {
    bool there;
    Tensor *y = x ? tape_result(tape, tape_compute(tape), x->n_dims, x->shape, &there) : NULL;
    if (!y) return NULL;
    if (!there && !tape_device(tape)->planned) leaky_sum(args, x, y);
    tape_push(tape, "leaky", leaky_backward, &x, 1, &y, 1, args, sizeof *args);
    return y;
}

static Tensor *leaky_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const LeakyBlock *block = sublayer->block;
    const LeakyArgs args = {context, block->decay, block->state};
    Tensor *y = op_leaky(tape, linear_forward(&block->in, tape, x, NULL, &context->batch->step), &args);
    return sublayer_project(context, sublayer, tape, &block->out, y, residual);
}

static const BlockKind block_leaky = {sizeof(LeakyBlock), leaky_build, leaky_forward};

static const LayerForm recurrent = {{
    {&block_leaky, &(const LeakyForm){"mixer.in_proj", "mixer.decay", "mixer.out_proj"}, "input_layernorm", NULL},
    {&block_gated_mlp, &llama_mlp, "post_attention_layernorm", NULL},
}};

/* ---- hints: numbers of each token that the first layer computes for all later ones ---- */

typedef struct HintsBlock {
    Linear in;
    int place;
} HintsBlock;
typedef struct HintedBlock {
    Linear gate, out;
    int place, part; /* hints of a layer are a third of the columns */
} HintedBlock;

static void hints_build(BlockBuilder *builder, const void *given, void *result) {
    HintsBlock *block = result;
    (void)given;
    build_linear(builder, "hints.in_proj", &block->in, WIDTH, 3 * INNER, false);
    block->place = build_result(builder);
}

static Tensor *hints_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const HintsBlock *block = sublayer->block;
    context->shared[block->place] = linear_forward(&block->in, tape, x, NULL, &context->batch->step);
    return residual;
}

static const BlockKind block_hints = {sizeof(HintsBlock), hints_build, hints_forward};

static void hinted_build(BlockBuilder *builder, const void *given, void *result) {
    HintedBlock *block = result;
    (void)given;
    build_linear(builder, "hinted.gate_proj", &block->gate, WIDTH, INNER, false);
    build_linear(builder, "hinted.out_proj", &block->out, INNER, WIDTH, false);
    block->place = ((const HintsBlock *)builder->model->layers[0].sublayers[0].block)->place;
    block->part = (int)builder->layer - 1;
}

static Tensor *hinted_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const HintedBlock *block = sublayer->block;
    Split hints = op_split(tape, context->shared[block->place], INNER, (int64_t[]){1, 1, 1});
    Tensor *gate = linear_forward(&block->gate, tape, x, NULL, &context->batch->step);
    Tensor *y = op_activation(tape, ACT_GELU_TANH, gate, hints.parts[block->part]);
    return sublayer_project(context, sublayer, tape, &block->out, y, residual);
}

static const BlockKind block_hinted = {sizeof(HintedBlock), hinted_build, hinted_forward};

/* ---- layers: three forms of the same function ---- */

#define WITH_MLP(kind, form)                                                                                               \
    {                                                                                                                      \
        { {&block_attention, &llama_attention, "input_layernorm", NULL}, {kind, form, "post_attention_layernorm", NULL}, } \
    }
static const LayerForm one_mlp = WITH_MLP(&block_mlp, (&(const MlpForm){.up = "mlp.up_proj", .down = "mlp.down_proj"}));
static const LayerForm list_of_experts = WITH_MLP(&block_sum, (&(const SumForm){.up = "mlp.experts.*.up_proj", .down = "mlp.experts.*.down_proj"}));
static const LayerForm fused_experts =
    WITH_MLP(&block_sum, (&(const SumForm){.up = "mlp.experts.up_proj", .down = "mlp.experts.down_proj", .fused = true}));

/* Experts next to one that all tokens pass, which has a gate of its own in one form. */
#define EXPERTS_WITH(scale)                                               \
    (&(const ExpertsForm){.router = "mlp.gate",                           \
                          .gate = "mlp.experts.*.gate_proj",              \
                          .up = "mlp.experts.*.up_proj",                  \
                          .down = "mlp.experts.*.down_proj",              \
                          .gate_up_together = "mlp.experts.gate_up_proj", \
                          .down_together = "mlp.experts.down_proj",       \
                          .shared_gate = "mlp.shared_expert.gate_proj",   \
                          .shared_up = "mlp.shared_expert.up_proj",       \
                          .shared_down = "mlp.shared_expert.down_proj",   \
                          .shared_scale = scale})
static const LayerForm gated_shared = WITH_MLP(&block_experts, EXPERTS_WITH("mlp.shared_expert_gate")),
                       plain_shared = WITH_MLP(&block_experts, EXPERTS_WITH(NULL));
static const ExpertsConfig few_experts = {
    .n = 4, .width = 3, .shared_width = 5, .router = {.n_experts = 4, .top_k = 2, .normalise = true, .scale = 1}};

/* A number for each weight. Expert e's are those of its rows or columns in the MLP that has all inner values. */
static float weight_value(const Module *module, int64_t i) {
    const char *experts = strstr(module->path, "experts.");
    bool up = strstr(module->path, "up_proj") != NULL, down = strstr(module->path, "down_proj") != NULL,
         layer_1 = strstr(module->path, ".1.") != NULL;
    uint64_t place = (uint64_t)i, stream = 0;
    for (const char *at = module->path; *at; at++) stream = (stream * 31 + (uint8_t)*at) % 1000003;
    if (layer_1 && (up || down)) {
        int64_t in = module->shape[module->n_dims - 1], out = module->shape[module->n_dims - 2], row = i / in % out, col = i % in;
        int64_t expert = module->n_dims == 3 ? i / (in * out) : experts ? strtoll(experts + strlen("experts."), NULL, 10) : 0;
        place = (uint64_t)(up ? (expert * INNER + row) * WIDTH + col : row * EXPERTS * INNER + expert * INNER + col);
        stream = up;
    }
    if (module->bare && module->n_dims == 1) return 0.5f + 0.05f * (float)i; /* decay */
    return module->n_dims == 1 ? 1 : (float)(0.4 * rng_normal(rng_key(1, RNG_INIT, stream), place));
}

static void write_weights(const Model *model, const char *path) {
    SafetensorsWriter *writer;
    check_ok(safetensors_writer_new(path, &writer));
    for (size_t m = 0; m < model->n_modules; m++) {
        const Module *module = &model->modules[m];
        char name[200];
        snprintf(name, sizeof name, "%s%s", module->path, module->bare ? "" : ".weight");
        safetensors_declare(writer, name, DT_F32, module->n_dims, module->shape);
    }
    for (size_t m = 0; m < model->n_modules; m++)
        for (int64_t i = 0; i < module_count(&model->modules[m]); i++)
            safetensors_write(writer, &(float){weight_value(&model->modules[m], i)}, sizeof(float));
    check_ok(safetensors_commit(writer));
}

/* A model whose second layer has this form, without weights. */
static Model *new_model(const char *dir, const LayerForm *second, const Device *device, DType compute) {
    Model *model = calloc(1, sizeof *model);
    model->arena = arena_new(0);
    model->dir = arena_strdup(model->arena, dir);
    model->device = device;
    model->compute = compute;
    check_ok(model_config_read(dir, model->arena, &model->config));
    model->config.layer_forms = arena_alloc(model->arena, 2 * sizeof *model->config.layer_forms);
    model->config.layer_forms[0] = model->config.family->layer;
    model->config.layer_forms[1] = second;
    if (second->sublayers[1].kind == &block_experts) model->config.experts = few_experts;
    return model;
}

static void write_model(const char *dir, const LayerForm *second) {
    temp_text(dir, "config.json", config_json);
    Model *model = new_model(dir, second, device_reference(), DT_F64);
    check_ok(model_build(model, false));
    write_weights(model, temp_file(dir, "model.safetensors"));
    model_free(model);
}

static Model *load_model(const char *dir, const LayerForm *second, const Device *device, DType compute) {
    Model *model = new_model(dir, second, device, compute);
    check_ok(model_load_weights(model, &(ModelOptions){.device = device, .compute = compute}));
    return model;
}

static const int32_t ids[TOKENS] = {3, 1, 4, 1, 5, 9, 2};

static void hidden_of(const Model *model, const int32_t *tokens, const Segment *segments, int32_t n_segments, double *hidden) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    tape_record(tape, false);
    const ModelBatch batch = {.ids = tokens, .layout = {.n_tokens = segments[n_segments - 1].end, .n_segments = n_segments, .segments = segments}};
    Tensor *result = model_forward(model, tape, &batch);
    check_ok(tape_status(tape));
    tensor_read(result, hidden);
    tape_free(tape);
}

static void hidden_states(const Model *model, double hidden[TOKENS * WIDTH]) {
    hidden_of(model, ids, &(Segment){.end = TOKENS, .parent = -1}, 1, hidden);
}

TEST(experts_are_found_by_their_number_or_in_one_tensor) {
    static const LayerForm *const forms[] = {&one_mlp, &list_of_experts, &fused_experts};
    double hidden[COUNT_OF(forms)][TOKENS * WIDTH];
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        char dir[512];
        temp_dir_make(dir, sizeof dir);
        write_model(dir, forms[f]);
        Model *model = load_model(dir, forms[f], device_reference(), DT_F64);
        hidden_states(model, hidden[f]);
        if (f > 0) check_close_f64("experts", hidden[f], hidden[0], TOKENS * WIDTH, 1e-13, 0);
        /* attention's, gate, up and down of the first layer; attention's of the second */
        assert_int_equal(model->n_linears, 7 + 4 + (f == 0 ? 2 : f == 1 ? 2 * EXPERTS : 0));
        assert_int_equal(model->n_cache_rows, 2);
        /* saved under the same names, with the same bytes */
        const char *out = temp_file(dir, "saved");
        check_ok(model_save(model, out, NULL, NULL));
        Model *again = load_model(out, forms[f], device_reference(), DT_F64);
        assert_int_equal(model_fingerprint(again), model_fingerprint(model));
        model_free(again);
        model_free(model);
        temp_dir_remove(dir);
    }
}

TEST(experts_that_are_missing_are_named) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    write_model(dir, &one_mlp);
    static const struct {
        const LayerForm *form;
        const char *name;
    } cases[] = {{&list_of_experts, "'model.layers.1.mlp.experts.0.up_proj.weight' is missing"},
                 {&fused_experts, "'model.layers.1.mlp.experts.up_proj' is missing"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Model *model = new_model(dir, cases[i].form, device_reference(), DT_F64);
        check_status(model_load_weights(model, &(ModelOptions){.device = device_reference(), .compute = DT_F64}), ST_INPUT);
        check_text(cases[i].name);
        model_free(model);
    }
    temp_dir_remove(dir);
}

/* Each expert has a branch of its own, which is saved and read under its own name. */
TEST(experts_carry_adapters) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    write_model(dir, &list_of_experts);
    double hidden[2][TOKENS * WIDTH], plain[TOKENS * WIDTH];
    Model *model = load_model(dir, &list_of_experts, device_reference(), DT_F64), *again;
    hidden_states(model, plain);
    const char *target = "experts.5.down_proj";
    check_ok(model_attach_lora(model, &(LoraConfig){.rank = 2, .alpha = 4, .n_targets = 1, .targets = &target, .lr_ratio = 1}, 1));
    size_t n = 0;
    for (size_t i = 0; i < model->n_linears; i++) {
        LoraBranch *lora = model->linears[i]->lora;
        if (!lora) continue;
        assert_string_equal(model->linears[i]->path, "model.layers.1.mlp.experts.5.down_proj");
        for (int64_t k = 0; k < tensor_count(lora->b); k++) tensor_set(lora->b, k, 0.25 * (double)(k % 5));
        n++;
    }
    assert_int_equal(n, 1);
    hidden_states(model, hidden[0]);
    assert_memory_not_equal(hidden[0], plain, sizeof plain);
    const char *adapter = temp_file(dir, "adapter");
    check_ok(adapter_save(model, adapter, dir));
    again = load_model(dir, &list_of_experts, device_reference(), DT_F64);
    check_ok(adapter_load(again, adapter, false));
    hidden_states(again, hidden[1]);
    check_close_f64("adapter", hidden[1], hidden[0], TOKENS * WIDTH, 1e-6, 0); /* saved as f32 */
    model_free(again);
    model_free(model);
    temp_dir_remove(dir);
}

/* ---- recurrences ---- */

static Model *recurrent_model(char dir[512], const Device *device, DType compute) {
    temp_dir_make(dir, 512);
    write_model(dir, &recurrent);
    return load_model(dir, &recurrent, device, compute);
}

/* A prompt of three tokens with two continuations, and a sequence on its own. */
static const Segment tree[] = {{0, 3, -1, 0, 0, 0}, {3, 5, 0, 0, 0, 0}, {5, 9, 0, 0, 0, 0}, {9, 12, -1, 0, 0, 0}};
static const int32_t tree_ids[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
enum { TREE_TOKENS = COUNT_OF(tree_ids) };

TEST(a_state_begins_at_zero_and_goes_on_from_a_shared_prompt) {
    char dir[512];
    Model *model = recurrent_model(dir, device_reference(), DT_F64);
    assert_int_equal(model->n_cache_rows, 1); /* of the other layer */
    assert_int_equal(model->n_states, 1);
    double together[TREE_TOKENS * WIDTH], alone[TREE_TOKENS * WIDTH];
    hidden_of(model, tree_ids, tree, COUNT_OF(tree), together);
    for (size_t s = 0; s < COUNT_OF(tree); s++) {
        int32_t row[TREE_TOKENS];
        int64_t before = tree[s].parent < 0 ? 0 : tree[0].end, n = tree[s].end - tree[s].begin;
        memcpy(row, tree_ids, (size_t)before * sizeof *row);
        memcpy(row + before, tree_ids + tree[s].begin, (size_t)n * sizeof *row);
        hidden_of(model, row, &(Segment){.end = before + n, .parent = -1}, 1, alone);
        check_close_f64("segment", together + tree[s].begin * WIDTH, alone + before * WIDTH, (size_t)(n * WIDTH), 1e-13, 0);
    }
    model_free(model);
    temp_dir_remove(dir);
}

/* The loss is a weighted sum of all hidden values. */
static double loss_on(Tape *tape, const Model *model, bool backward) {
    double weights[TREE_TOKENS * WIDTH], hidden[TREE_TOKENS * WIDTH], loss = 0;
    const ModelBatch batch = {.ids = tree_ids, .layout = {.n_tokens = TREE_TOKENS, .n_segments = COUNT_OF(tree), .segments = tree}};
    for (size_t i = 0; i < COUNT_OF(weights); i++) weights[i] = rng_normal(rng_key(2, RNG_TEST, 0), i);
    Tensor *result = model_forward(model, tape, &batch);
    check_ok(tape_status(tape));
    tensor_read(result, hidden);
    for (size_t i = 0; i < COUNT_OF(weights); i++) loss += weights[i] * hidden[i];
    if (backward) {
        tensor_seed_grad(tape, result, weights);
        check_ok(tape_backward(tape));
    }
    return loss;
}

static double weighted_loss(const Model *model, bool backward, Checkpointing kind) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    tape_checkpoint(tape, kind);
    double loss = loss_on(tape, model, backward);
    tape_free(tape);
    return loss;
}

TEST(a_recurrence_learns) {
    char dir[512];
    Model *model = recurrent_model(dir, device_reference(), DT_F64);
    const char *targets[] = {"mixer.in_proj", "q_proj"}; /* through the recurrence; in the layer before it */
    check_ok(model_attach_lora(model, &(LoraConfig){.rank = 2, .alpha = 4, .n_targets = 2, .targets = targets, .lr_ratio = 1}, 1));
    for (Checkpointing kind = CHECKPOINT_NONE; kind <= CHECKPOINT_LAYER; kind++) {
        params_zero_grad(&model->params);
        weighted_loss(model, true, kind);
        size_t n_trained = 0;
        for (size_t p = 0; p < model->params.n; p++) {
            const Param *param = &model->params.items[p];
            if (param->role != PARAM_LORA_B) continue;
            for (int64_t i = 0; i < tensor_count(param->tensor); i++) {
                const double step = 1e-5, value = tensor_get(param->tensor, i);
                double loss[2];
                for (int side = 0; side < 2; side++) {
                    tensor_set(param->tensor, i, value + (side ? step : -step));
                    loss[side] = weighted_loss(model, false, CHECKPOINT_NONE);
                }
                tensor_set(param->tensor, i, value);
                check_close(tensor_get(param_grad(param), i), (loss[1] - loss[0]) / (2 * step), 1e-7);
            }
            n_trained++;
        }
        assert_int_equal(n_trained, 2);
    }
    model_free(model);
    temp_dir_remove(dir);
}

/* ---- a shared expert with a gate ---- */

static Tensor *tensor_named(const Model *model, const char *name) {
    const Param *param = params_find(&model->params, name);
    if (!param) fail_msg("no tensor '%s'", name);
    return param->tensor;
}

static Model *load_trained(char dir[512], const LayerForm *second) {
    temp_dir_make(dir, 512);
    write_model(dir, second);
    Model *model = new_model(dir, second, device_reference(), DT_F64);
    check_ok(model_load_weights(model, &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = true}));
    return model;
}

/* A gate of zeros halves the shared expert, as halves of its last weight do. */
TEST(a_shared_expert_may_have_a_gate) {
    static const char gate_name[] = "model.layers.1.mlp.shared_expert_gate.weight", down[] = "model.layers.1.mlp.shared_expert.down_proj.weight";
    char dir[512], other[512];
    Model *gated = load_trained(dir, &gated_shared), *plain = load_trained(other, &plain_shared);
    Tensor *gate = tensor_named(gated, gate_name), *last = tensor_named(plain, down);
    double hidden[2][TOKENS * WIDTH], values[WIDTH];
    tensor_read(gate, values);
    for (int64_t i = 0; i < WIDTH; i++) tensor_set(gate, i, 0);
    for (int64_t i = 0; i < tensor_count(last); i++) tensor_set(last, i, tensor_get(last, i) / 2);
    hidden_states(gated, hidden[0]);
    hidden_states(plain, hidden[1]);
    check_close_f64("half", hidden[0], hidden[1], TOKENS * WIDTH, 1e-13, 0);
    tensor_write(gate, values);
    weighted_loss(gated, true, CHECKPOINT_NONE);
    for (int64_t i = 0; i < WIDTH; i++) {
        const double step = 1e-5;
        double loss[2];
        for (int side = 0; side < 2; side++) {
            tensor_set(gate, i, values[i] + (side ? step : -step));
            loss[side] = weighted_loss(gated, false, CHECKPOINT_NONE);
        }
        tensor_set(gate, i, values[i]);
        check_close(tensor_get(gate->grad, i), (loss[1] - loss[0]) / (2 * step), 1e-7);
    }
    model_free(plain);
    model_free(gated);
    temp_dir_remove(other);
    temp_dir_remove(dir);
}

/* ---- layers with several results ---- */

#define WITH_HINTS(block)                                                                             \
    {                                                                                                 \
        {                                                                                             \
            {block, NULL, NULL, NULL}, {&block_attention, &llama_attention, "input_layernorm", NULL}, \
                {&block_gated_mlp, &llama_mlp, "post_attention_layernorm", NULL},                     \
        }                                                                                             \
    }
static const LayerForm with_hints = WITH_HINTS(&block_hints), hinted = WITH_HINTS(&block_hinted);

/* Four layers, of which the last two read keys and values of the first two, and all but the first read the hints that the first computes. */
static Model *sharing_model(const char *dir, const Device *device, DType compute) {
    Model *model = new_model(dir, &hinted, device, compute);
    ModelConfig *config = &model->config;
    config->num_hidden_layers = 4;
    config->layer_forms = arena_alloc(model->arena, 4 * sizeof *config->layer_forms);
    config->layer_kv = arena_alloc(model->arena, 4 * sizeof *config->layer_kv);
    config->layer_window = arena_alloc(model->arena, 4 * sizeof *config->layer_window);
    for (int64_t l = 0; l < 4; l++) {
        config->layer_forms[l] = l == 0 ? &with_hints : &hinted;
        config->layer_kv[l] = l % 2;
        config->layer_window[l] = l % 2 ? 3 : 0;
    }
    return model;
}

static Model *load_sharing(char dir[512], const Device *device, DType compute) {
    temp_dir_make(dir, 512);
    temp_text(dir, "config.json", config_json);
    Model *model = sharing_model(dir, device, compute);
    check_ok(model_build(model, false));
    write_weights(model, temp_file(dir, "model.safetensors"));
    model_free(model);
    model = sharing_model(dir, device, compute);
    check_ok(model_load_weights(model, &(ModelOptions){.device = device, .compute = compute}));
    const char *targets[] = {"k_proj", "v_proj", "hints.in_proj", "q_proj"};
    check_ok(model_attach_lora(model, &(LoraConfig){.rank = 2, .alpha = 4, .n_targets = 4, .targets = targets, .lr_ratio = 1}, 1));
    return model;
}

static size_t gradients_of(const Model *model, double *out, size_t most) {
    size_t n = 0;
    for (size_t p = 0; p < model->params.n; p++) {
        const Param *param = &model->params.items[p];
        if (!param->trained) continue;
        assert_true(n + (size_t)tensor_count(param->tensor) <= most);
        tensor_read(param_grad(param), out + n);
        n += (size_t)tensor_count(param->tensor);
    }
    return n;
}

TEST(gradients_of_shared_results_add_up) {
    char dir[512];
    Model *model = load_sharing(dir, device_reference(), DT_F64);
    assert_int_equal(model->n_cache_rows, 2); /* the others keep nothing */
    assert_int_equal(model->n_shared, 5);
    weighted_loss(model, true, CHECKPOINT_NONE);
    size_t n_trained = 0;
    for (size_t p = 0; p < model->params.n; p++) {
        const Param *param = &model->params.items[p];
        if (param->role != PARAM_LORA_B) continue;
        for (int64_t i = 0; i < tensor_count(param->tensor); i++) {
            const double step = 2e-6, value = tensor_get(param->tensor, i);
            double loss[2];
            for (int side = 0; side < 2; side++) {
                tensor_set(param->tensor, i, value + (side ? step : -step));
                loss[side] = weighted_loss(model, false, CHECKPOINT_NONE);
            }
            tensor_set(param->tensor, i, value);
            check_close(tensor_get(param_grad(param), i), (loss[1] - loss[0]) / (2 * step), 1e-7);
        }
        n_trained++;
    }
    assert_int_equal(n_trained, 4 + 2 + 2 + 1); /* q_proj of all layers, k_proj and v_proj of two, the hints */
    model_free(model);
    temp_dir_remove(dir);
}

TEST(shared_results_have_the_same_bits_with_checkpoints) {
    enum { MOST = 1024 };
    static const DType dtypes[] = {DT_F32, DT_BF16};
    for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
        double grads[MOST], plain[MOST], loss = 0;
        char dir[512];
        Model *model = load_sharing(dir, device_cpu(), dtypes[d]);
        for (Checkpointing kind = CHECKPOINT_NONE; kind <= CHECKPOINT_LAYER; kind++) {
            params_zero_grad(&model->params);
            double its = weighted_loss(model, true, kind);
            size_t n = gradients_of(model, kind == CHECKPOINT_NONE ? plain : grads, MOST);
            if (kind == CHECKPOINT_NONE) {
                loss = its;
                continue;
            }
            assert_true(its == loss);
            assert_memory_equal(grads, plain, n * sizeof *grads);
        }
        model_free(model);
        temp_dir_remove(dir);
    }
}

TEST(shared_results_are_planned) {
    char dir[512];
    Model *model = load_sharing(dir, device_cpu(), DT_F32);
    for (Checkpointing kind = CHECKPOINT_NONE; kind <= CHECKPOINT_LAYER; kind++)
        for (int backward = 0; backward < 2; backward++) {
            Tape *real = tape_new(device_cpu(), DT_F32, 0), *meta = tape_new(device_cpu()->planner, DT_F32, 0);
            tape_checkpoint(real, kind);
            tape_checkpoint(meta, kind);
            tape_record(real, backward);
            tape_record(meta, backward);
            loss_on(real, model, backward);
            loss_on(meta, model, backward);
            const TapeBytes used = tape_bytes(real), planned = tape_bytes(meta);
            assert_memory_equal(&used, &planned, sizeof used);
            assert_true(used.kept > 0 || (backward && kind <= CHECKPOINT_HEAD));
            tape_free(real);
            tape_free(meta);
        }
    model_free(model);
    temp_dir_remove(dir);
}

/* ---- recurrences with a cache ---- */

enum { MAX_ROW = 1300 };
static const SampleConfig plain = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1};

/* All log-probabilities of a completion are those of a pass over the whole row, without a cache. */
static Status check_completion(void *context, const Completion *completion) {
    const Prompt *prompt = (const Prompt *)((void *const *)context)[1] + completion->prompt;
    const Model *model = ((void *const *)context)[0];
    int32_t row[MAX_ROW];
    double logprobs[MAX_ROW];
    size_t n = prompt->n + completion->ids.n;
    assert_true(n <= MAX_ROW);
    memcpy(row, prompt->ids, prompt->n * sizeof *row);
    memcpy(row + prompt->n, completion->ids.data, completion->ids.n * sizeof *row);
    check_ok(score_rows(model, &(ScoreRow){row, n, logprobs}, 1, NULL, NULL));
    check_close_f64("completion", completion->logprobs, logprobs + prompt->n, completion->ids.n, 1e-5, 0);
    return ST_OK;
}

static void fill_prompt(int32_t *tokens, size_t n, uint64_t stream) {
    for (size_t i = 0; i < n; i++) tokens[i] = (int32_t)rng_below(rng_key(3, RNG_TEST, stream), i, 19);
}

/* Prompts within a page, up to its end, over several pages, and longer than the tokens of a step; their samples share their pages and state. */
TEST(a_state_is_kept_with_the_cache_and_copied_to_samples) {
    static const size_t lengths[] = {1, 31, 32, 33, 70, 1100};
    static int32_t tokens[COUNT_OF(lengths)][MAX_ROW];
    Prompt prompts[COUNT_OF(lengths)];
    char dir[512];
    Model *model = recurrent_model(dir, device_cpu(), DT_F32);
    for (size_t p = 0; p < COUNT_OF(lengths); p++) {
        fill_prompt(tokens[p], lengths[p], p);
        prompts[p] = (Prompt){tokens[p], lengths[p], p};
    }
    for (int64_t max_batch = 0; max_batch <= 2; max_batch += 2) {
        const GenerateConfig config = {.sample = plain, .max_new_tokens = 70, .n = 3, .seed = 1, .max_batch = max_batch};
        check_ok(generate(model, NULL, prompts, COUNT_OF(lengths), &config, NULL, check_completion, (void *[]){model, prompts}));
    }
    model_free(model);
    temp_dir_remove(dir);
}

/* The second prompt goes on from the state of the first; the third has another beginning, so its state is computed anew. */
TEST(a_session_goes_on_from_its_state_or_begins_anew) {
    static const size_t lengths[] = {40, 300, 120};
    static int32_t tokens[MAX_ROW];
    char dir[512];
    Model *model = recurrent_model(dir, device_cpu(), DT_F32);
    Session *session;
    check_ok(session_new(model, 500, &session));
    fill_prompt(tokens, MAX_ROW, 0);
    for (size_t p = 0; p < COUNT_OF(lengths); p++) {
        const Prompt prompt = {tokens, lengths[p], p};
        const GenerateConfig config = {.sample = plain, .max_new_tokens = 20, .n = 1, .seed = 1, .session = session};
        check_ok(generate(model, NULL, &prompt, 1, &config, NULL, check_completion, (void *[]){model, (void *)(uintptr_t)&prompt}));
    }
    session_free(session);
    model_free(model);
    temp_dir_remove(dir);
}

/* Layers that read the keys and values of others read theirs in the cache too; the others' memory is all that a page takes. */
TEST(shared_keys_and_values_are_in_the_cache_once) {
    static const size_t lengths[] = {1, 33, 70};
    static int32_t tokens[COUNT_OF(lengths)][MAX_ROW];
    Prompt prompts[COUNT_OF(lengths)];
    char dir[512];
    Model *model = load_sharing(dir, device_cpu(), DT_F32);
    assert_int_equal(kv_page_bytes(model), KV_PAGE_SIZE * 2 * 2 * 4 * sizeof(float)); /* of two layers, a head of 4 numbers each */
    for (size_t p = 0; p < COUNT_OF(lengths); p++) {
        fill_prompt(tokens[p], lengths[p], p);
        prompts[p] = (Prompt){tokens[p], lengths[p], p};
    }
    const GenerateConfig config = {.sample = plain, .max_new_tokens = 40, .n = 2, .seed = 1};
    check_ok(generate(model, NULL, prompts, COUNT_OF(lengths), &config, NULL, check_completion, (void *[]){model, prompts}));
    model_free(model);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_found_by_their_number_or_in_one_tensor),
        cmocka_unit_test(experts_that_are_missing_are_named),
        cmocka_unit_test(experts_carry_adapters),
        cmocka_unit_test(a_state_begins_at_zero_and_goes_on_from_a_shared_prompt),
        cmocka_unit_test(a_recurrence_learns),
        cmocka_unit_test(a_shared_expert_may_have_a_gate),
        cmocka_unit_test(gradients_of_shared_results_add_up),
        cmocka_unit_test(shared_results_have_the_same_bits_with_checkpoints),
        cmocka_unit_test(shared_results_are_planned),
        cmocka_unit_test(a_state_is_kept_with_the_cache_and_copied_to_samples),
        cmocka_unit_test(a_session_goes_on_from_its_state_or_begins_anew),
        cmocka_unit_test(shared_keys_and_values_are_in_the_cache_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
