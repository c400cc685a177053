/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters: PEFT's files read, their logits and gradients, and what is written back. */
#include "tests/support/check.h"
#include "tests/support/model_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/adapter.h"
#include "lib/model/model.h"

static const char *const goldens[][2] = {
    {"llama-plain", "llama"}, {"llama-rslora", "llama"},     {"llama-patterns", "llama"}, {"llama-modules-to-save", "llama"},
    {"qwen2-plain", "qwen2"}, {"qwen2-all-linear", "qwen2"}, {"gpt2-conv1d", "gpt2"},     {"llama-dora", "llama"},
};

static const char tiny_config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 37, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"tie_word_embeddings\": true}";

/* ---- against PEFT ---- */

static void check_gradients(const char *name, const Model *model, const WeightFile *grads, double tolerance) {
    size_t n = 0;
    for (size_t i = 0; i < model->params.n; i++) {
        const Param *param = &model->params.items[i];
        if (!param->trained) continue;
        char key[256];
        snprintf(key, sizeof key, "base_model.model.%s", param->name);
        size_t count = (size_t)tensor_count(param->tensor);
        double *values = malloc(count * sizeof *values);
        tensor_read(param->tensor->grad, values);
        check_stored(name, values, grads, key, tolerance);
        free(values);
        n++;
    }
    assert_int_equal(n, grads->n);
}

static void check_golden(const char *name, const char *adapter, const char *base, const Device *device, DType compute, double logits,
                         double gradients) {
    ModelRun run;
    model_run_open(&run, base, device, compute);
    check_ok(adapter_load(run.model, adapter, true));
    WeightFile *expected = weights_open(adapter, "expected.safetensors"), *grads = weights_open(adapter, "grads.safetensors");
    json_t *json;
    check_ok(json_read_file(temp_file(adapter, "expected.json"), &json));
    double want_loss = json_number_value(json_object_get(json, "loss")), loss = 0;
    json_decref(json);
    int64_t lengths[2] = {stored_ids(expected, 0, run.ids), stored_ids(expected, 1, run.ids)};
    for (int s = 0; s < 2; s++) {
        model_run_ids(&run, stored_ids(expected, s, run.ids));
        size_t count;
        double *values = model_run_logits(&run, &count);
        check_stored(name, values, expected, s ? "seq1.logits" : "seq0.logits", logits);
        free(values);
        model_run_ids(&run, lengths[s]);
        loss += model_run_backward(&run, (double)(lengths[0] + lengths[1] - 2));
    }
    check_close(loss, want_loss, logits);
    check_gradients(name, run.model, grads, gradients);
    weight_file_close(grads);
    weight_file_close(expected);
    model_run_close(&run);
}

TEST(adapters_equal_peft) {
    char path[200], adapter[512], base[512];
    for (size_t i = 0; i < COUNT_OF(goldens); i++) {
        snprintf(path, sizeof path, "golden/lora/%s", goldens[i][0]);
        if (!shared_path(path, adapter, sizeof adapter)) skip();
        snprintf(path, sizeof path, "golden/models/%s", goldens[i][1]);
        if (!shared_path(path, base, sizeof base)) skip();
        check_golden(goldens[i][0], adapter, base, device_cpu(), DT_F32, 1e-4, 2e-5);
        check_golden(goldens[i][0], adapter, base, device_reference(), DT_F64, 1e-6, 1e-7);
    }
}

/* Loading and saving gives the same tensors, byte for byte, and settings that mean the same. */
TEST(round_trips_keep_every_byte) {
    char path[200], adapter[512], base[512], dir[512], out[600];
    temp_dir_make(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/adapter", dir);
    for (size_t i = 0; i < COUNT_OF(goldens); i++) {
        snprintf(path, sizeof path, "golden/lora/%s", goldens[i][0]);
        if (!shared_path(path, adapter, sizeof adapter)) skip();
        snprintf(path, sizeof path, "golden/models/%s", goldens[i][1]);
        if (!shared_path(path, base, sizeof base)) skip();
        ModelRun run;
        model_run_open(&run, base, device_cpu(), DT_F32);
        check_ok(adapter_load(run.model, adapter, false));
        check_ok(adapter_save(run.model, out, "models/base"));
        WeightFile *before = weights_open(adapter, "adapter_model.safetensors"), *after = weights_open(out, "adapter_model.safetensors");
        assert_int_equal(before->n, after->n);
        for (size_t t = 0; t < before->n; t++) {
            const StoredTensor *a = &before->tensors[t], *b = weight_file_find(after, a->name);
            if (!b) fail_msg("'%s' was not written", a->name);
            assert_int_equal(a->bytes, b->bytes);
            assert_memory_equal(a->data, b->data, a->bytes);
        }
        LoraConfig again;
        Arena *arena = arena_new(0);
        check_ok(adapter_config_read(out, arena, &again));
        const LoraConfig *lora = &run.model->lora;
        assert_true(again.rank == lora->rank && again.alpha == lora->alpha && again.dropout == lora->dropout &&
                    again.use_rslora == lora->use_rslora && again.use_dora == lora->use_dora);
        assert_true(again.n_rank_pattern == lora->n_rank_pattern && again.n_alpha_pattern == lora->n_alpha_pattern && again.n_saved == lora->n_saved);
        for (size_t l = 0; l < run.model->n_linears; l++)
            assert_int_equal(lora_targets(&again, run.model->linears[l]), run.model->linears[l]->lora != NULL);
        arena_free(arena);
        weight_file_close(after);
        weight_file_close(before);
        model_run_close(&run);
    }
    temp_dir_remove(dir);
}

TEST(other_kinds_of_adapter_are_refused_by_name) {
    char embedding[512], base[512], other[512];
    if (!shared_path("golden/lora/llama-embedding", embedding, sizeof embedding) || !shared_path("golden/models/llama", base, sizeof base) ||
        !shared_path("golden/lora/qwen2-plain", other, sizeof other))
        skip();
    const char *const cases[][2] = {{embedding, "this kind of adapter is not supported"}, {other, "shape ("}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ModelRun run;
        model_run_open(&run, base, device_cpu(), DT_F32);
        check_status(adapter_load(run.model, cases[i][0], false), ST_INPUT);
        check_text(cases[i][1]);
        model_run_close(&run);
    }
}

/* ---- with a small model of our own ---- */

static void tiny_open(ModelRun *run, char dir[512], const Device *device, DType compute) {
    temp_dir_make(dir, 512);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 5, 0.3));
    model_run_open(run, dir, device, compute);
    for (int32_t i = 0; i < 12; i++) run->ids[i] = (i * 7) % 37;
    model_run_ids(run, 12);
}

TEST(a_new_adapter_changes_nothing_until_it_is_trained) {
    char dir[512];
    ModelRun run;
    tiny_open(&run, dir, device_cpu(), DT_F32);
    size_t count;
    double *before = model_run_logits(&run, &count);
    const char *saved[] = {"lm_head"};
    LoraConfig config = {.rank = 4, .alpha = 8, .dropout = 0.5, .n_saved = 1, .saved = saved, .lr_ratio = 16};
    check_ok(model_attach_lora(run.model, &config, 1));
    assert_ptr_not_equal(run.model->head, run.model->embed); /* the tied embedding stays frozen */
    assert_false(run.model->embed->needs_grad);
    tape_reset(run.tape);
    run.batch.step = (StepContext){.training = true, .seed = 1, .number = 1};
    double *after = model_run_logits(&run, &count);
    assert_memory_equal(before, after, count * sizeof *after);
    size_t n = 0;
    for (size_t i = 0; i < run.model->params.n; i++) {
        const Param *param = &run.model->params.items[i];
        if (!param->trained) continue;
        n++;
        check_close(param->lr_scale, param->role == PARAM_LORA_B ? 16 : 1, 0);
    }
    assert_int_equal(n, 2 * 14 + 1);
    check_status(model_attach_lora(run.model, &config, 1), ST_CONFIG);
    free(before);
    free(after);
    model_run_close(&run);
    temp_dir_remove(dir);
}

static void randomise_b(const Model *model) {
    for (size_t i = 0; i < model->params.n; i++) {
        Tensor *tensor = model->params.items[i].tensor;
        if (model->params.items[i].role != PARAM_LORA_B) continue;
        for (int64_t k = 0; k < tensor_count(tensor); k++) tensor_set(tensor, k, 0.3 * rng_normal(rng_key(9, RNG_TEST, i), (uint64_t)k));
    }
}

TEST(dropout_follows_its_key_and_has_the_right_gradient) {
    char dir[512];
    ModelRun run;
    tiny_open(&run, dir, device_reference(), DT_F64);
    const char *targets[] = {"q_proj", "down_proj"};
    LoraConfig config = {.rank = 2, .alpha = 4, .dropout = 0.3, .n_targets = 2, .targets = targets, .lr_ratio = 1};
    check_ok(model_attach_lora(run.model, &config, 1));
    randomise_b(run.model);
    size_t count;
    double *plain = model_run_logits(&run, &count), *runs[3];
    for (int k = 0; k < 3; k++) {
        tape_reset(run.tape);
        run.batch.step = (StepContext){.training = true, .seed = 1, .number = k == 2 ? 6 : 5};
        runs[k] = model_run_logits(&run, &count);
    }
    assert_memory_equal(runs[0], runs[1], count * sizeof(double));
    assert_memory_not_equal(runs[0], runs[2], count * sizeof(double));
    assert_memory_not_equal(runs[0], plain, count * sizeof(double));
    for (int k = 0; k < 3; k++) free(runs[k]);
    free(plain);

    for (size_t i = 0; i < run.model->params.n; i++) {
        const Param *param = &run.model->params.items[i];
        if (!param->trained) continue;
        params_zero_grad(&run.model->params);
        tape_reset(run.tape);
        model_run_backward(&run, 11);
        double got = tensor_get(param->tensor->grad, 3), value = tensor_get(param->tensor, 3), losses[2];
        for (int side = 0; side < 2; side++) {
            tensor_set(param->tensor, 3, value + (side ? -1e-5 : 1e-5));
            tape_reset(run.tape);
            losses[side] = model_run_backward(&run, 11);
        }
        tensor_set(param->tensor, 3, value);
        check_close(got, (losses[0] - losses[1]) / 2e-5, 1e-8);
    }
    model_run_close(&run);
    temp_dir_remove(dir);
}

TEST(wrong_targets_are_named) {
    static const struct {
        const char *target, *text, *hint;
    } cases[] = {
        {"q_prj", "target module 'q_prj' matches nothing", "did you mean 'q_proj'?"},
        {"proj", "target module 'proj' matches nothing", "q_proj, k_proj"},
        {"lm_head", "no LoRA on 'lm_head'", "modules_to_save"},
        {"embed_tokens", "no LoRA on 'embed_tokens'", "modules_to_save"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char dir[512];
        ModelRun run;
        tiny_open(&run, dir, device_cpu(), DT_F32);
        const char *targets[] = {cases[i].target};
        check_status(model_attach_lora(run.model, &(LoraConfig){.rank = 2, .alpha = 4, .n_targets = 1, .targets = targets}, 1), ST_CONFIG);
        check_text(cases[i].text);
        check_contains(status_hint_text(), cases[i].hint);
        model_run_close(&run);
        temp_dir_remove(dir);
    }
}

static size_t count_saved(const Model *model) {
    size_t n = 0;
    for (size_t i = 0; i < model->params.n; i++) n += model->params.items[i].role == PARAM_SAVED;
    return n;
}

/* PEFT takes every module whose path ends with a name: what it means here is written. Two names of one module save it once. */
TEST(saved_modules_are_named_as_peft_reads_them) {
    static const struct {
        const char *names[2], *written[2];
        size_t n_tensors;
    } cases[] = {
        {{"norm"}, {"model.norm"}, 1},
        {{"lm_head"}, {"lm_head"}, 1},
        {{"input_layernorm"}, {"input_layernorm"}, 2},
        {{"lm_head", "lm_head"}, {"lm_head"}, 1},
        {{"norm", "model.norm"}, {"model.norm"}, 1},
        {{"model.norm", "norm"}, {"model.norm"}, 1},
        {{"layers.0.input_layernorm", "input_layernorm"}, {"layers.0.input_layernorm", "input_layernorm"}, 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char dir[512];
        ModelRun run;
        LoraConfig config = {.rank = 2, .alpha = 4, .n_saved = cases[i].names[1] ? 2 : 1, .saved = (const char **)cases[i].names}, again;
        tiny_open(&run, dir, device_cpu(), DT_F32);
        check_ok(model_attach_lora(run.model, &config, 1));
        assert_int_equal(count_saved(run.model), cases[i].n_tensors);
        check_ok(adapter_save(run.model, temp_file(dir, "adapter"), "base"));
        check_ok(adapter_config_read(temp_file(dir, "adapter"), run.model->arena, &again));
        assert_int_equal(again.n_saved, cases[i].written[1] ? 2 : 1);
        for (size_t k = 0; k < again.n_saved; k++) assert_string_equal(again.saved[k], cases[i].written[k]);
        model_run_close(&run);
        model_run_open(&run, dir, device_cpu(), DT_F32);
        check_ok(adapter_load(run.model, temp_file(dir, "adapter"), true));
        assert_int_equal(count_saved(run.model), cases[i].n_tensors);
        model_run_close(&run);
        temp_dir_remove(dir);
    }
}

#define ALL "[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", \"down_proj\"]"

TEST(broken_adapters_are_refused) {
    char dir[512], adapter[600];
    ModelRun run;
    tiny_open(&run, dir, device_cpu(), DT_F32);
    snprintf(adapter, sizeof adapter, "%s/adapter", dir);
    LoraConfig config = {.rank = 2, .alpha = 4};
    check_ok(model_attach_lora(run.model, &config, 1));
    check_ok(adapter_save(run.model, adapter, "base"));
    model_run_close(&run);
    static const struct {
        const char *config, *words;
    } cases[] = {
        {"{}", "peft_type ''"},
        {"{\"peft_type\": \"IA3\"}", "peft_type 'IA3'"},
        {"{\"peft_type\": \"LORA\", \"bias\": \"all\"}", "trained biases"},
        {"{\"peft_type\": \"LORA\", \"r\": 0}", "rank 0"},
        {"{\"peft_type\": \"LORA\", \"r\": 3, \"target_modules\": \"all-linear\"}", "has rank 2, and adapter_config.json says 3"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"rank_pattern\": {\"q_proj\": 9}}",
         "has rank 2, and adapter_config.json says 9"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"rank_pattern\": {\"(\": 9}}", "not a regular expression"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"(\"}", "not a regular expression"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"modules_to_save\": [\"lm_head\"]}",
         "weights of 'lm_head' are missing"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"modules_to_save\": [\"mlp\"]}", "'mlp' of modules_to_save"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"init_lora_weights\": \"pissa_niter_4\"}", "'pissa_niter_4'"},
        {"{\"peft_type\": \"LORA\", \"r\": \"2\"}", "wrong type of 'r'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2}", "names no module"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": null}", "names no module"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": []}", "names no module"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"q_proj\"]}", "which 'target_modules' in adapter_config.json leaves out"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"exclude_modules\": [\"q_proj\"]}",
         "'model.layers.0.self_attn.q_proj', which 'exclude_modules'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"exclude_modules\": \".*1.*up_proj\"}",
         "'model.layers.1.mlp.up_proj', which 'exclude_modules'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": " ALL ", \"layers_to_transform\": 0}",
         "'model.layers.1.self_attn.q_proj', which 'layers_to_transform'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": " ALL ", \"layers_to_transform\": [1]}",
         "'model.layers.0.self_attn.q_proj', which 'layers_to_transform'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": " ALL ", \"layers_to_transform\": [0, 1], \"layers_pattern\": \"h\"}",
         "which 'layers_to_transform'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": " ALL ", \"layers_to_transform\": [\"1\"]}", "expected a list of integers"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \".*\", \"layers_to_transform\": [1]}", "needs a list of 'target_modules'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": " ALL ", \"layers_pattern\": \"layers\"}", "needs 'layers_to_transform'"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        temp_text(adapter, "adapter_config.json", cases[i].config);
        model_run_open(&run, dir, device_cpu(), DT_F32);
        check_status(adapter_load(run.model, adapter, false), ST_INPUT);
        check_text(cases[i].words);
        model_run_close(&run);
    }
    model_run_open(&run, dir, device_cpu(), DT_F32);
    check_status(adapter_load(run.model, temp_file(dir, "nowhere"), false), ST_INPUT);
    check_text("no adapter directory");
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* PEFT takes a string of target_modules as a regex; exclude_modules and layers_to_transform leave some of the targets out. */
TEST(settings_that_choose_layers_are_understood) {
    char dir[512], adapter[600];
    ModelRun run;
    tiny_open(&run, dir, device_cpu(), DT_F32);
    snprintf(adapter, sizeof adapter, "%s/adapter", dir);
    LoraConfig config = {.rank = 2, .alpha = 4, .target_regex = ".*\\.1\\..*(q|v)_proj"};
    check_ok(model_attach_lora(run.model, &config, 1));
    check_ok(adapter_save(run.model, adapter, "base"));
    model_run_close(&run);
    static const char *const configs[] = {
        "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \".*\\\\.1\\\\..*(q|v)_proj\"}",
        "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"q_proj\", \"v_proj\"], \"layers_to_transform\": [1]}",
        "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"q_proj\", \"v_proj\"], \"layers_to_transform\": 1, \"layers_pattern\": \"layers\"}",
        "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"self_attn.q_proj\", \"model.layers.1.self_attn.v_proj\"],"
        " \"layers_to_transform\": [1, 7], \"layers_pattern\": [\"h\", \"lay.*\"]}",
        "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"model.layers.1.self_attn.q_proj\", \"v_proj\"], \"layers_to_transform\": [0, 1],"
        " \"exclude_modules\": [\"layers.0.self_attn.v_proj\"]}",
        "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\", \"exclude_modules\": \".*(0\\\\..*|(k|o|up|gate|down)_proj)\"}",
    };
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        temp_text(adapter, "adapter_config.json", configs[i]);
        model_run_open(&run, dir, device_cpu(), DT_F32);
        check_ok(adapter_load(run.model, adapter, true));
        for (size_t l = 0; l < run.model->n_linears; l++) assert_int_equal(run.model->linears[l]->lora != NULL, l == 7 || l == 9);
        check_ok(adapter_save(run.model, temp_file(dir, "again"), "base"));
        LoraConfig again;
        check_ok(adapter_config_read(temp_file(dir, "again"), run.model->arena, &again));
        for (size_t l = 0; l < run.model->n_linears; l++) assert_int_equal(lora_targets(&again, run.model->linears[l]), l == 7 || l == 9);
        model_run_close(&run);
    }
    temp_text(adapter, "adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"q_proj\", \"v_proj\"]}");
    model_run_open(&run, dir, device_cpu(), DT_F32);
    check_status(adapter_load(run.model, adapter, true), ST_INPUT);
    check_text("'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight' is missing");
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* PEFT gives a target no branch where modules_to_save names it too. */
TEST(a_target_that_is_saved_whole_has_no_branch) {
    char dir[512];
    ModelRun run;
    tiny_open(&run, dir, device_cpu(), DT_F32);
    LoraConfig config = {.rank = 2, .n_targets = 1, .targets = (const char *[]){"q_proj"}, .n_saved = 1, .saved = (const char *[]){"up_proj"}};
    check_ok(model_attach_lora(run.model, &config, 1));
    check_ok(adapter_save(run.model, temp_file(dir, "adapter"), "base"));
    model_run_close(&run);
    temp_text(temp_file(dir, "adapter"), "adapter_config.json",
              "{\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"q_proj\", \"up_proj\"], \"modules_to_save\": [\"up_proj\"]}");
    model_run_open(&run, dir, device_cpu(), DT_F32);
    check_ok(adapter_load(run.model, temp_file(dir, "adapter"), false));
    model_run_close(&run);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_equal_peft),
        cmocka_unit_test(round_trips_keep_every_byte),
        cmocka_unit_test(other_kinds_of_adapter_are_refused_by_name),
        cmocka_unit_test(a_new_adapter_changes_nothing_until_it_is_trained),
        cmocka_unit_test(dropout_follows_its_key_and_has_the_right_gradient),
        cmocka_unit_test(wrong_targets_are_named),
        cmocka_unit_test(saved_modules_are_named_as_peft_reads_them),
        cmocka_unit_test(broken_adapters_are_refused),
        cmocka_unit_test(settings_that_choose_layers_are_understood),
        cmocka_unit_test(a_target_that_is_saved_whole_has_no_branch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
