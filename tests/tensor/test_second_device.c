/* SPDX-License-Identifier: Apache-2.0 */
/* The promise of tensor.h: ops, training, generation and checkpoints run on a device whose memory the host cannot read, to the bits of the CPU; also
 * with experts and on quantised weights. */
#include "lib/infer/infer.h"
#include "lib/model/adapter.h"
#include "lib/model/quantized/quantise.h"
#include "lib/run/checkpoint.h"
#include "tests/support/check.h"
#include "tests/support/locked_device.h"

#include <math.h>
#include <string.h>
#include <sys/wait.h>

enum { MAX_VALUES = 8192, VOCAB = 48, TOKENS = 24, STEPS = 3 };

/* ---- ops ---- */

typedef struct Values {
    int64_t n;
    double items[MAX_VALUES];
} Values;

static void append(Values *values, const Tensor *tensor) {
    assert_true(values->n + tensor_count(tensor) <= MAX_VALUES);
    tensor_read(tensor, values->items + values->n);
    values->n += tensor_count(tensor);
}

static void run_example(const OpInfo *op, const Device *device, DType dtype, int variant, Values *values) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device, dtype, 0);
    OpExample example = {.tape = tape, .arena = arena, .seed = 11, .dtype = dtype, .variant = variant};
    values->n = 0;
    op->example(&example);
    check_ok(tape_status(tape));
    for (int o = 0; o < example.n_outputs; o++) {
        double seeds[MAX_VALUES];
        append(values, example.outputs[o]);
        for (int64_t i = 0; i < tensor_count(example.outputs[o]); i++) seeds[i] = rng_normal(rng_key(3, RNG_TEST, (uint64_t)o), (uint64_t)i);
        tensor_seed_grad(tape, example.outputs[o], seeds);
    }
    check_ok(tape_backward(tape));
    for (int i = 0; i < example.n_inputs; i++)
        if (example.inputs[i]->needs_grad) append(values, example.inputs[i]->grad);
    tape_free(tape);
    arena_free(arena);
}

TEST(every_op_has_the_bits_of_the_cpu) {
    static const DType dtypes[] = {DT_F32, DT_BF16};
    static Values here, there;
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (int i = 0; i < n_op_infos; i++)
            for (int variant = 0; variant < *op_infos[i].variants; variant++) {
                run_example(&op_infos[i], device_cpu(), dtypes[d], variant, &here);
                run_example(&op_infos[i], device_locked(), dtypes[d], variant, &there);
                assert_int_equal(here.n, there.n);
                if (memcmp(here.items, there.items, (size_t)here.n * sizeof *here.items) != 0)
                    fail_msg("op %s, example %d, %s: other bits on the second device", op_infos[i].name, variant, dtype_name(dtypes[d]));
            }
    assert_int_equal(locked_bytes(), 0);
}

/* ---- a tiny model ---- */

#define TINY(type)                                                                                                                         \
    "{\"model_type\": \"" type "\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4," \
    " \"num_key_value_heads\": 2, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5, \"vocab_size\": 48, \"eos_token_id\": 1,"      \
    " \"tie_word_embeddings\": false"
static const char dense[] = TINY("llama") "}", experts[] = TINY("mixtral") ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2}";

typedef struct Case {
    const char *config;
    DType stored, compute;
    bool all;                 /* trains everything, else an adapter */
    const Quantise *quantise; /* NULL: the weights stay as they are stored */
} Case;

static Status token_keep(void *context, const Completion *completion) {
    Ids *ids = context;
    ids_append(ids, completion->ids.data, completion->ids.n);
    return ST_OK;
}

/* Losses of the steps, the weights' fingerprint, sampled tokens, and the bytes of a checkpoint. */
typedef struct Result {
    double losses[STEPS];
    uint64_t fingerprint;
    Ids ids;
    char checkpoint[512];
    TapeBytes planned, used;
} Result;

static Status step_forward(const Model *model, Tape *tape, int64_t step, double *loss) {
    int32_t ids[TOKENS], rows[TOKENS - 1];
    double values[TOKENS - 1], seeds[TOKENS - 1];
    int64_t n = TOKENS - 1;
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = 2 + (int32_t)rng_below(rng_key(1, RNG_TEST, (uint64_t)step), (uint64_t)i, VOCAB - 2);
    for (int32_t i = 0; i < n; i++) rows[i] = i, seeds[i] = -1 / (double)n;
    Segment segment = {.begin = 0, .end = TOKENS, .parent = -1};
    ModelBatch batch = {.ids = ids,
                        .layout = {.n_tokens = TOKENS, .n_segments = 1, .segments = &segment},
                        .step = {.training = true, .seed = 7, .number = (uint64_t)step}};
    tape_reset(tape);
    Tensor *hidden = model_forward(model, tape, &batch);
    Tensor *where = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, rows),
           *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, ids + 1);
    assert_non_null(where);
    assert_non_null(targets);
    TokenLogprobs p = op_token_logprobs(tape, hidden, model->head, where, targets, &model->logprob);
    TRY(tape_status(tape));
    tensor_read(p.logprob, values);
    *loss = 0;
    for (int32_t i = 0; i < n; i++) *loss -= values[i] / (double)n;
    tensor_seed_grad(tape, p.logprob, seeds);
    return tape_backward(tape);
}

static size_t trained_items(const Model *model, CheckpointItem *items, size_t most) {
    size_t n = 0;
    for (size_t i = 0; i < model->params.n; i++)
        if (model->params.items[i].trained) {
            assert_true(n < most);
            items[n++] = (CheckpointItem){.name = model->params.items[i].name, .tensor = model->params.items[i].tensor};
        }
    return n;
}

/* Trains everything, or an adapter, for some steps; samples; saves the trained tensors, and loads them again after they were overwritten. */
static void use_model(const char *dir, const Device *device, const Case *c, Result *result) {
    Model *model;
    double unused;
    CheckpointItem items[256];
    Arena *arena = arena_new(0);
    check_ok(model_load(dir, &(ModelOptions){.device = device, .compute = c->compute, .train_all = c->all, .quantise = c->quantise}, &model));
    LoraConfig lora = {.rank = 4, .alpha = 8, .dropout = 0.1, .lr_ratio = 1, .n_saved = 1, .saved = (const char *[]){"lm_head"}};
    if (!c->all) check_ok(model_attach_lora(model, &lora, 5));
    OptimizerConfig optimizer = {.name = "adamw", .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    check_ok(optimizer_init(&optimizer, &model->params, arena));
    Tape *plan = tape_new(device->planner, c->compute, 0), *tape = tape_new(device, c->compute, 0);
    check_ok(step_forward(model, plan, 0, &unused));
    result->planned = tape_bytes(plan);
    tape_free(plan);
    for (int64_t step = 0; step < STEPS; step++) {
        check_ok(step_forward(model, tape, step, &result->losses[step]));
        double norm = params_grad_norm(&model->params);
        optimizer_step(&optimizer, &model->params, clip_scale(norm, 1), 1e-2, step + 1);
        params_zero_grad(&model->params);
    }
    result->used = tape_bytes(tape);
    tape_free(tape);
    size_t n = trained_items(model, items, COUNT_OF(items));
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s", temp_file(dir, device->name));
    check_ok(tensors_save(result->checkpoint, items, n));
    result->fingerprint = params_fingerprint(&model->params);
    for (size_t i = 0; i < n; i++) device->fill(items[i].tensor, 0);
    assert_true(result->fingerprint != params_fingerprint(&model->params));
    check_ok(tensors_load(result->checkpoint, items, n));
    assert_true(result->fingerprint == params_fingerprint(&model->params));

    static const int32_t prompt[] = {5, 9, 13, 2, 7};
    GenerateConfig config = {.sample = {.temperature = 0.8, .top_k = 20, .top_p = 1, .typical_p = 1, .repetition_penalty = 1},
                             .max_new_tokens = 40,
                             .n = 2,
                             .seed = 3,
                             .ignore_eos = true};
    Prompt prompts[] = {{prompt, 5, 0}, {prompt + 1, 3, 1}};
    check_ok(generate(model, NULL, prompts, 2, &config, NULL, token_keep, &result->ids));
    model_free(model);
    arena_free(arena);
}

static void check_same_file(const char *a, const char *b) {
    Str here = {0}, there = {0};
    check_ok(file_read(a, 1 << 20, &here));
    check_ok(file_read(b, 1 << 20, &there));
    assert_int_equal(here.len, there.len);
    assert_memory_equal(here.data, there.data, here.len);
    str_release(&here);
    str_release(&there);
}

static void compare_devices(const Case *c) {
    char dir[256];
    Result here = {0}, there = {0};
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, c->config, c->stored, 3, 0.2));
    use_model(dir, device_cpu(), c, &here);
    use_model(dir, device_locked(), c, &there);
    for (int i = 0; i < STEPS; i++)
        if (here.losses[i] != there.losses[i]) fail_msg("step %d: loss %.17g, on the second device %.17g", i, here.losses[i], there.losses[i]);
    assert_true(here.losses[0] != here.losses[1]);
    assert_true(here.fingerprint == there.fingerprint);
    check_ids("sampled tokens", there.ids.data, there.ids.n, here.ids.data, here.ids.n);
    check_same_file(here.checkpoint, there.checkpoint);
    assert_int_equal(there.planned.activations, there.used.activations);
    assert_int_equal(there.planned.gradients, there.used.gradients);
    assert_int_equal(locked_bytes(), 0);
    ids_release(&here.ids);
    ids_release(&there.ids);
    temp_dir_remove(dir);
}

TEST(full_training_has_the_bits_of_the_cpu) { compare_devices(&(Case){dense, DT_F32, DT_F32, true, NULL}); }
TEST(an_adapter_has_the_bits_of_the_cpu) { compare_devices(&(Case){dense, DT_BF16, DT_BF16, false, NULL}); }

TEST(an_adapter_on_a_quantised_base_has_the_bits_of_the_cpu) {
    static const Quantise forms[] = {{.form = "nf4", .nested = true, .block = 32}, {.form = "q8_0"}};
    for (size_t i = 0; i < COUNT_OF(forms); i++) compare_devices(&(Case){dense, DT_F32, i == 0 ? DT_BF16 : DT_F32, false, &forms[i]});
}

TEST(experts_have_the_bits_of_the_cpu) {
    static const Quantise nf4 = {.form = "nf4", .block = 32};
    compare_devices(&(Case){experts, DT_F32, DT_F32, true, NULL});
    compare_devices(&(Case){experts, DT_BF16, DT_BF16, false, NULL});
    compare_devices(&(Case){experts, DT_F32, DT_F32, false, &nf4});
}

/* ---- what goes wrong ---- */

static void read_elements(void) {
    Arena *arena = arena_new(0);
    Tensor *tensor = tensor_new(arena, device_locked(), DT_F32, 1, (int64_t[]){4});
    *(volatile float *)tensor->elements = 1;
}

TEST(the_host_cannot_touch_the_elements) {
    int status = in_child(read_elements);
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

TEST(a_fault_of_the_device_is_a_status) {
    Arena *arena = arena_new(0);
    Tape *tape = tape_new(device_locked(), DT_F32, 0);
    Tensor *x = tensor_new(arena, device_locked(), DT_F32, 1, (int64_t[]){4});
    float values[4] = {1, 2, 3, 4}, back[4];
    check_ok(tensor_upload(x, 0, 4, values));
    locked_fail("no power");
    check_status(tensor_download(x, 0, 4, back), ST_RESOURCE);
    check_text("the device 'locked' failed: no power");
    assert_true(isnan(tensor_get(x, 0)));
    check_status(tape_backward(tape), ST_RESOURCE);
    locked_fail(NULL);
    tape_reset(tape);
    check_ok(tape_backward(tape));
    check_ok(tensor_download(x, 0, 4, back));
    assert_memory_equal(values, back, sizeof values);
    tape_free(tape);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_the_bits_of_the_cpu),   cmocka_unit_test(full_training_has_the_bits_of_the_cpu),
        cmocka_unit_test(an_adapter_has_the_bits_of_the_cpu), cmocka_unit_test(an_adapter_on_a_quantised_base_has_the_bits_of_the_cpu),
        cmocka_unit_test(experts_have_the_bits_of_the_cpu),   cmocka_unit_test(the_host_cannot_touch_the_elements),
        cmocka_unit_test(a_fault_of_the_device_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
