/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of blocks that no family has: what the table of kinds must be able to hold. The models of this test are read as llama, and then their second
 * layer becomes one of the test's own. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/adapter.h"
#include "lib/model/family.h"
#include "lib/model/parts.h"
#include "lib/model/safetensors.h"

enum { WIDTH = 8, EXPERTS = 8, INNER = 2, TOKENS = 7 };
static const char config_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 19, \"hidden_size\": 8, \"intermediate_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"max_position_embeddings\": 64}";

/* ---- experts: a sum of small MLPs, each with tensors of its own or all in tensors of three dimensions ---- */

typedef struct ExpertsForm {
    const char *up, *down;
    bool fused;
} ExpertsForm;
typedef struct ExpertsBlock {
    Linear up[EXPERTS], down[EXPERTS];
    Tensor *all_up, *all_down; /* (E, I, C), (E, C, I), instead of the others */
} ExpertsBlock;

static void experts_build(BlockBuilder *builder, const void *given, void *result) {
    const ExpertsForm *form = given;
    ExpertsBlock *block = result;
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
    char *data = (char *)all->data + dtype_bytes(all->dtype, e * in * out);
    return (Linear){.weight = tensor_view(tape_arena(tape), all->device, all->dtype, 2, (int64_t[]){out, in}, data), .in = in, .out = out};
}

static Tensor *experts_forward(const LayerContext *context, const Sublayer *sublayer, Tape *tape, Tensor *x, Tensor *residual) {
    const ExpertsBlock *block = sublayer->block;
    const StepContext *step = &context->batch.step;
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

static const BlockKind block_experts = {"experts", sizeof(ExpertsBlock), experts_build, experts_forward};

/* ---- layers: three forms of the same function ---- */

#define WITH_MLP(kind, form)                                                                                               \
    {                                                                                                                      \
        { {&block_attention, &llama_attention, "input_layernorm", NULL}, {kind, form, "post_attention_layernorm", NULL}, } \
    }
static const LayerForm one_mlp = WITH_MLP(&block_mlp, (&(const MlpForm){.up = "mlp.up_proj", .down = "mlp.down_proj"}));
static const LayerForm list_of_experts =
    WITH_MLP(&block_experts, (&(const ExpertsForm){.up = "mlp.experts.*.up_proj", .down = "mlp.experts.*.down_proj"}));
static const LayerForm fused_experts =
    WITH_MLP(&block_experts, (&(const ExpertsForm){.up = "mlp.experts.up_proj", .down = "mlp.experts.down_proj", .fused = true}));

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

static void hidden_states(const Model *model, double hidden[TOKENS * WIDTH]) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    tape_record(tape, false);
    const Segment segment = {.end = TOKENS, .parent = -1};
    const ModelBatch batch = {.ids = ids, .layout = {.n_tokens = TOKENS, .n_segments = 1, .segments = &segment}};
    Tensor *result = model_forward(model, tape, &batch);
    check_ok(tape_status(tape));
    tensor_read(result, hidden);
    tape_free(tape);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_found_by_their_number_or_in_one_tensor),
        cmocka_unit_test(experts_that_are_missing_are_named),
        cmocka_unit_test(experts_carry_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
