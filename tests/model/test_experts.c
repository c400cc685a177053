/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of experts: adapters on them in both of PEFT's forms, the forms of checkpoints, the experts that a step reads, and what is refused. */
#include "tests/support/check.h"
#include "tests/support/model_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/adapter.h"
#include "lib/model/model.h"
#include "lib/model/safetensors.h"

static bool golden_dir(const char *name, char dir[512]) {
    char path[200];
    snprintf(path, sizeof path, "golden/%s", name);
    return shared_path(path, dir, 512);
}

/* ---- adapters, against PEFT ---- */

static const struct {
    const char *name, *base;
    bool grads; /* PEFT loads the last one wrongly: its values are from merging by hand, without gradients */
} goldens[] = {
    {"families/lora/glm4_moe-converted", "families/glm4_moe", true},   {"families/lora/gpt_oss-experts", "families/gpt_oss", true},
    {"families/lora/gpt_oss-experts", "families/gpt_oss/mxfp4", true}, /* the same values as codes */
    {"families/lora/glm4_moe-per-expert", "families/glm4_moe", false}, {"families/lora/lfm2-all", "families/lfm2", true},
};

/* The gradient of a branch, in the layout and under the name of PEFT. */
static void check_gradient(const char *what, const Linear *linear, bool is_b, const WeightFile *grads, double tolerance) {
    const Tensor *tensor = is_b ? linear->lora->b : linear->lora->a;
    int64_t count = tensor_count(tensor), E = linear->copies, rank = tensor_width(linear->lora->b), out = linear->out;
    double *ours = malloc((size_t)count * sizeof *ours), *theirs = malloc((size_t)count * sizeof *theirs);
    tensor_read(tensor->grad, ours);
    for (int64_t i = 0; i < count; i++) {
        int64_t e = i / (out * rank), o = i / rank % out, j = i % rank;
        theirs[is_b && E ? o * E * rank + j * E + e : i] = ours[i];
    }
    char key[300];
    const char *dot = strrchr(linear->path, '.'), *inner = strcmp(dot, ".gate_up_proj") == 0 ? ".base_layer" : "";
    if (E)
        snprintf(key, sizeof key, "base_model.model.%.*s%s.lora_%c.weight", (int)(dot - linear->path), linear->path, inner, is_b ? 'B' : 'A');
    else
        snprintf(key, sizeof key, "base_model.model.%s.lora_%c.weight", linear->path, is_b ? 'B' : 'A');
    check_stored(what, theirs, grads, key, tolerance);
    free(theirs);
    free(ours);
}

static void check_golden(const char *name, const char *adapter, const char *base, bool with_grads, const Device *device, DType compute,
                         double tolerance, double gradients) {
    ModelRun run;
    model_run_open(&run, base, device, compute);
    check_ok(adapter_load(run.model, adapter, true));
    WeightFile *expected = weights_open(adapter, "expected.safetensors");
    int64_t lengths[2] = {stored_ids(expected, 0, run.ids), stored_ids(expected, 1, run.ids)};
    for (int s = 0; s < 2; s++) {
        model_run_ids(&run, stored_ids(expected, s, run.ids));
        size_t count;
        double *values = model_run_logits(&run, &count);
        check_stored(name, values, expected, s ? "seq1.logits" : "seq0.logits", tolerance);
        free(values);
        model_run_ids(&run, lengths[s]);
        model_run_backward(&run, (double)(lengths[0] + lengths[1] - 2));
    }
    if (with_grads) {
        WeightFile *grads = weights_open(adapter, "grads.safetensors");
        size_t n = 0;
        for (size_t i = 0; i < run.model->n_linears; i++) {
            const Linear *linear = run.model->linears[i];
            if (!linear->lora) continue;
            check_gradient(name, linear, false, grads, gradients);
            check_gradient(name, linear, true, grads, gradients);
            n += 2;
        }
        assert_int_equal(n, grads->n);
        weight_file_close(grads);
    }
    weight_file_close(expected);
    model_run_close(&run);
}

TEST(adapters_of_experts_equal_peft) {
    char adapter[512], base[512];
    for (size_t i = 0; i < COUNT_OF(goldens); i++) {
        if (!golden_dir(goldens[i].name, adapter) || !golden_dir(goldens[i].base, base)) skip();
        check_golden(goldens[i].name, adapter, base, goldens[i].grads, device_cpu(), DT_F32, 1e-4, 5e-5);
        check_golden(goldens[i].name, adapter, base, goldens[i].grads, device_reference(), DT_F64, 1e-6, 1e-7);
    }
}

/* Loading and saving gives the same tensors, byte for byte, and settings that mean the same. */
TEST(adapters_of_experts_are_written_as_they_were) {
    char adapter[512], base[512], dir[512], out[600];
    temp_dir_make(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/adapter", dir);
    for (size_t i = 0; i < COUNT_OF(goldens); i++) {
        if (!golden_dir(goldens[i].name, adapter) || !golden_dir(goldens[i].base, base)) skip();
        ModelRun run;
        model_run_open(&run, base, device_cpu(), DT_F32);
        check_ok(adapter_load(run.model, adapter, false));
        check_ok(adapter_save(run.model, out, "base"));
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
        for (size_t l = 0; l < run.model->n_linears; l++) {
            const Linear *linear = run.model->linears[l];
            int64_t rank;
            double scale, alpha;
            lora_rank_and_scale(&again, linear->path, &rank, &scale, &alpha);
            assert_int_equal(lora_targets(&again, linear), linear->lora != NULL);
            if (linear->lora) assert_true(rank == tensor_width(linear->lora->b) && scale == linear->lora->scale);
        }
        arena_free(arena);
        weight_file_close(after);
        weight_file_close(before);
        model_run_close(&run);
    }
    temp_dir_remove(dir);
}

TEST(an_adapter_says_what_it_covers) {
    static const struct {
        const char *name, *with, *without;
    } cases[] = {
        {"families/lora/glm4_moe-converted",
         "10 linear layers: 2 q_proj, 2 k_proj, 2 v_proj, 2 o_proj, 1 experts.gate_up_proj of 6 experts each, 1 "
         "experts.down_proj of 6 experts each",
         "2 gate_proj, 2 up_proj, 2 down_proj, 1 gate"},
        {"families/lora/glm4_moe-per-expert", "24 linear layers: 8 gate_proj, 8 up_proj, 8 down_proj",
         "2 q_proj, 2 k_proj, 2 v_proj, 2 o_proj, 1 gate"},
    };
    char adapter[512], base[512];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Str with = {0}, without = {0};
        if (!golden_dir(cases[i].name, adapter) || !golden_dir("families/glm4_moe", base)) skip();
        check_ok(adapter_cover(adapter, base, &with, &without));
        assert_string_equal(str_text(&with), cases[i].with);
        assert_string_equal(str_text(&without), cases[i].without);
        str_release(&with);
        str_release(&without);
    }
}

/* ---- what other tools do to adapters of experts, and this one does not ---- */

static const char tiny_config[] =
    "{\"model_type\": \"glm4_moe\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"n_routed_experts\": 6, \"num_experts_per_tok\": 2,"
    " \"moe_intermediate_size\": 10, \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, \"n_group\": 1, \"topk_group\": 1}";

/* One for each router and each kind of state: experts by softmax, latent attention, short convolutions. */
static const char *const tiny_families[] = {
    tiny_config,
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"num_experts\": 6, \"num_experts_per_tok\": 2,"
    " \"moe_intermediate_size\": 10, \"norm_topk_prob\": true}",
    "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"q_lora_rank\": 8, \"kv_lora_rank\": 8, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 8, \"v_head_dim\": 8,"
    " \"n_routed_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 10, \"n_shared_experts\": 1,"
    " \"first_k_dense_replace\": 1, \"n_group\": 1, \"topk_group\": 1}",
    "{\"model_type\": \"lfm2_moe\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 3,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"layer_types\": [\"conv\", \"full_attention\", \"conv\"], \"num_experts\": 6,"
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 10, \"num_dense_layers\": 1, \"routed_scaling_factor\": 1.5}",
};

static void tiny_open(ModelRun *run, char dir[512], const LoraConfig *lora) {
    temp_dir_make(dir, 512);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 5, 0.4));
    model_run_open(run, dir, device_cpu(), DT_F32);
    if (lora) check_ok(model_attach_lora(run->model, lora, 3));
}

static size_t with_branch(const Model *model, const char *end, bool expert) {
    size_t n = 0;
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        n += linear->lora && !linear->copies && (linear->together != NULL) == expert && text_ends_with(linear->path, end);
    }
    return n;
}

/* PEFT 0.21 with transformers 5 makes target_parameters of these names, and leaves dense and shared layers without a pair. */
TEST(named_projections_get_pairs_in_dense_shared_and_all_experts) {
    char dir[512];
    ModelRun run;
    const char *targets[] = {"gate_proj", "up_proj", "down_proj"};
    tiny_open(&run, dir, &(LoraConfig){.rank = 2, .alpha = 4, .n_targets = 3, .targets = targets, .lr_ratio = 1});
    for (int t = 0; t < 3; t++) {
        assert_int_equal(with_branch(run.model, targets[t], true), 6);
        assert_int_equal(with_branch(run.model, targets[t], false), 2); /* the dense layer's, and the shared expert's */
    }
    assert_int_equal(with_branch(run.model, "mlp.gate", false), 0);
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* all-linear takes routers there. Here neither routers nor experts are trained unless they are named. */
TEST(all_linear_layers_are_without_routers_and_experts) {
    char dir[512];
    ModelRun run;
    tiny_open(&run, dir, &(LoraConfig){.rank = 2, .alpha = 4, .lr_ratio = 1});
    Str text = {0};
    size_t n = 0;
    for (size_t i = 0; i < run.model->n_linears; i++) n += run.model->linears[i]->lora != NULL;
    assert_int_equal(n, 2 * 4 + 3 + 3);
    assert_int_equal(with_branch(run.model, "mlp.gate", false), 0);
    adapter_describe_rest(run.model, &text);
    assert_string_equal(str_text(&text), "6 gate_proj of experts, 6 up_proj of experts, 6 down_proj of experts, 1 gate");
    str_release(&text);
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* Pairs for each expert are lost there on loading, and dropped by engines. */
TEST(no_pair_of_an_expert_is_lost) {
    char dir[512], out[600];
    ModelRun run, again;
    const char *targets[] = {"gate_proj", "up_proj", "down_proj"}, *keys[] = {"experts.3.up_proj"};
    int64_t ranks[] = {4};
    tiny_open(&run, dir,
              &(LoraConfig){.rank = 2,
                            .alpha = 4,
                            .n_targets = 3,
                            .targets = targets,
                            .lr_ratio = 1,
                            .n_rank_pattern = 1,
                            .rank_keys = keys,
                            .rank_values = ranks,
                            .n_alpha_pattern = 1,
                            .alpha_keys = keys,
                            .alpha_values = (double[]){12}});
    snprintf(out, sizeof out, "%s/adapter", dir);
    size_t n = 0;
    for (size_t i = 0; i < run.model->n_linears; i++) {
        const Linear *linear = run.model->linears[i];
        if (!linear->lora) continue;
        for (int64_t k = 0; k < tensor_count(linear->lora->b); k++)
            tensor_set(linear->lora->b, k, 0.1 * rng_normal(rng_key(4, RNG_TEST, i), (uint64_t)k));
        bool other = text_ends_with(linear->path, "experts.3.up_proj");
        assert_int_equal(tensor_width(linear->lora->b), other ? 4 : 2);
        assert_true(linear->lora->scale == (other ? 12.0 / 4 : 4.0 / 2));
        n++;
    }
    check_ok(adapter_save(run.model, out, dir));
    model_run_open(&again, dir, device_cpu(), DT_F32);
    check_ok(adapter_load(again.model, out, false));
    for (size_t i = 0; i < again.model->n_linears; i++) n -= again.model->linears[i]->lora != NULL;
    assert_int_equal(n, 0);
    for (int k = 0; k < 12; k++) run.ids[k] = again.ids[k] = k % 7;
    model_run_ids(&run, 12);
    model_run_ids(&again, 12);
    size_t count;
    double *before = model_run_logits(&run, &count), *after = model_run_logits(&again, &count);
    assert_memory_equal(before, after, count * sizeof *before);
    free(before);
    free(after);
    model_run_close(&again);
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* Pairs of all experts together, on tensors of each expert: trained, written, read, and merged like a branch of each. */
TEST(parameters_of_all_experts_are_trained_by_name) {
    char dir[512], out[600];
    ModelRun run, again;
    const char *parameters[] = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    const LoraConfig config = {.rank = 3, .alpha = 6, .n_parameters = 2, .parameters = parameters, .only_parameters = true, .lr_ratio = 1};
    tiny_open(&run, dir, &config);
    snprintf(out, sizeof out, "%s/adapter", dir);
    assert_int_equal(run.model->lora.rank, 3);
    size_t n = 0;
    for (size_t i = 0; i < run.model->n_linears; i++) {
        const Linear *linear = run.model->linears[i];
        if (!linear->lora) continue;
        assert_int_equal(linear->copies, 6);
        for (int64_t k = 0; k < tensor_count(linear->lora->b); k++)
            tensor_set(linear->lora->b, k, 0.1 * rng_normal(rng_key(4, RNG_TEST, i), (uint64_t)k));
        n++;
    }
    assert_int_equal(n, 2);
    for (int k = 0; k < 12; k++) run.ids[k] = k % 7;
    model_run_ids(&run, 12);
    model_run_backward(&run, 11);
    double norm = params_grad_norm(&run.model->params);
    assert_true(norm > 0 && isfinite(norm));
    check_ok(adapter_save(run.model, out, dir));
    model_run_open(&again, dir, device_cpu(), DT_F32);
    check_ok(adapter_load(again.model, out, false));
    for (int k = 0; k < 12; k++) again.ids[k] = k % 7;
    model_run_ids(&run, 12);
    model_run_ids(&again, 12);
    size_t count;
    double *before = model_run_logits(&run, &count), *after = model_run_logits(&again, &count);
    assert_memory_equal(before, after, count * sizeof *before);
    free(after);
    model_run_close(&again);
    /* the same change as a branch of each expert */
    for (size_t i = 0; i < run.model->n_linears; i++) {
        Linear *linear = run.model->linears[i];
        LoraBranch branch, *own;
        Tensor parts[2];
        if (!linear->together || !linear_change(linear, 0, &branch, parts)) continue;
        own = arena_zero(run.model->arena, sizeof *own);
        Tensor *copies = arena_alloc(run.model->arena, 2 * sizeof *copies);
        memcpy(copies, parts, 2 * sizeof *copies);
        *own = (LoraBranch){.a = &copies[0], .b = &copies[1], .scale = branch.scale};
        linear->lora = own;
    }
    for (size_t i = 0; i < run.model->n_linears; i++)
        if (run.model->linears[i]->copies) run.model->linears[i]->lora = NULL;
    model_run_ids(&run, 12);
    after = model_run_logits(&run, &count);
    check_close_f64("as a branch of each", after, before, count, 0, 0);
    free(before);
    free(after);
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* ---- forms of checkpoints ---- */

/* The golden Qwen3-MoE with one tensor for all experts of a layer, gate first. */
static void write_together(const char *from, const char *dir) {
    WeightFile *files = weights_open(from, "model.safetensors");
    SafetensorsWriter *writer;
    check_ok(file_copy(temp_file(from, "config.json"), temp_file(dir, "config.json")));
    check_ok(safetensors_writer_new(temp_file(dir, "model.safetensors"), &writer));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < files->n; i++) {
            const StoredTensor *stored = &files->tensors[i];
            if (strstr(stored->name, ".experts.")) continue;
            if (pass == 0)
                safetensors_declare_as(writer, stored);
            else
                safetensors_write(writer, stored->data, stored->bytes);
        }
        for (int layer = 0; layer < 3; layer += 2)
            for (int part = 0; part < 2; part++) {
                char name[200];
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", layer, part ? "down_proj" : "gate_up_proj");
                if (pass == 0) safetensors_declare(writer, name, DT_BF16, 3, part ? (int64_t[]){6, 40, 24} : (int64_t[]){6, 48, 40});
                for (int e = 0; e < 6 && pass == 1; e++)
                    for (int p = 0; p < (part ? 1 : 2); p++) {
                        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, e, part ? "down" : p ? "up" : "gate");
                        const StoredTensor *stored = weight_file_find(files, name);
                        assert_non_null(stored);
                        safetensors_write(writer, stored->data, stored->bytes);
                    }
            }
    }
    check_ok(safetensors_commit(writer));
    weight_file_close(files);
}

static void logits_of(const char *dir, const WeightFile *expected, const char *what, double tolerance) {
    ModelRun run;
    model_run_open(&run, dir, device_cpu(), DT_F32);
    for (int s = 0; s < 2; s++) {
        model_run_ids(&run, stored_ids(expected, s, run.ids));
        size_t count;
        double *values = model_run_logits(&run, &count);
        check_stored(what, values, expected, s ? "seq1.logits" : "seq0.logits", tolerance);
        free(values);
    }
    model_run_close(&run);
}

TEST(experts_in_one_tensor_are_read_and_written_as_they_were) {
    char golden[512], dir[512], out[600];
    if (!golden_dir("models/qwen3_moe", golden)) skip();
    temp_dir_make(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/saved", dir);
    write_together(golden, dir);
    WeightFile *expected = weights_open(golden, "expected.safetensors");
    logits_of(dir, expected, "together", 5e-5);
    weight_file_close(expected);
    const char *forms[] = {golden, dir};
    for (int f = 0; f < 2; f++) {
        Model *model;
        check_ok(model_load(forms[f], &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .train_all = true}, &model));
        check_ok(model_save(model, out, NULL, NULL));
        WeightFile *before = weights_open(forms[f], "model.safetensors"), *after = weights_open(out, "model.safetensors");
        assert_int_equal(before->n, after->n);
        for (size_t t = 0; t < before->n; t++) {
            const StoredTensor *a = &before->tensors[t], *b = weight_file_find(after, a->name);
            if (!b) fail_msg("'%s' was not written", a->name);
            assert_int_equal(a->bytes, b->bytes);
            assert_memory_equal(a->data, b->data, a->bytes);
        }
        weight_file_close(after);
        weight_file_close(before);
        model_free(model);
    }
    temp_dir_remove(dir);
}

TEST(mxfp4_experts_are_the_same_weights) {
    char golden[512], dir[600];
    if (!golden_dir("families/gpt_oss", golden)) skip();
    snprintf(dir, sizeof dir, "%s/mxfp4", golden);
    WeightFile *expected = weights_open(golden, "expected.safetensors");
    logits_of(dir, expected, "mxfp4", 5e-5);
    weight_file_close(expected);
}

/* ---- what a step reads ---- */

/* Experts that no token chooses may hold anything: they are not read, neither by the step nor when the model is loaded. */
TEST(only_experts_that_a_step_uses_are_read) {
    char dir[512];
    ModelRun run;
    double counts[6] = {0}, scores[6] = {0};
    const int64_t end = 2;
    RouterLoad load = {.n_parts = 1, .ends = &end, .counts = counts, .scores = scores};
    tiny_open(&run, dir, NULL);
    run.batch.loads = &load;
    for (int k = 0; k < 2; k++) run.ids[k] = k;
    model_run_ids(&run, 2);
    size_t count;
    double *before = model_run_logits(&run, &count), sum = 0, shares = 0;
    model_run_close(&run);
    for (int e = 0; e < 6; e++) sum += counts[e], shares += scores[e];
    assert_true(sum == 4);
    check_close(shares, 2, 1e-5);
    WeightFile *files = weights_open(dir, "model.safetensors");
    SafetensorsWriter *writer;
    int n_unused = 0;
    char path[600];
    snprintf(path, sizeof path, "%s/other.safetensors", dir);
    check_ok(safetensors_writer_new(path, &writer));
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < files->n; i++) {
            const StoredTensor *stored = &files->tensors[i];
            const char *at = strstr(stored->name, ".experts.");
            bool unused = at && counts[atoi(at + strlen(".experts."))] == 0;
            n_unused += unused;
            if (pass == 0) safetensors_declare_as(writer, stored);
            for (int64_t k = 0; k < stored->count && pass == 1; k++)
                safetensors_write(writer, &(float){unused ? NAN : (float)stored_get(stored, k)}, sizeof(float));
        }
    check_ok(safetensors_commit(writer));
    weight_file_close(files);
    assert_true(n_unused >= 2 * 2 * 3);
    check_ok(file_copy(path, temp_file(dir, "model.safetensors")));
    remove(path);
    model_run_open(&run, dir, device_cpu(), DT_F32);
    for (int k = 0; k < 2; k++) run.ids[k] = k;
    model_run_ids(&run, 2);
    double *after = model_run_logits(&run, &count);
    assert_memory_equal(before, after, count * sizeof *before);
    free(before);
    free(after);
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* ---- a row among others, and its memory ---- */

/* Hidden states of tokens begin..end-1 of a batch. */
static double *hidden_of(const Model *model, const StepContext *step, const int32_t *ids, const Segment *segments, int32_t n, int64_t begin,
                         int64_t end) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    tape_record(tape, false);
    const ModelBatch batch = {.ids = ids, .layout = {.n_tokens = segments[n - 1].end, .n_segments = n, .segments = segments}, .step = *step};
    Tensor *hidden = model_forward(model, tape, &batch);
    check_ok(tape_status(tape));
    int64_t width = tensor_width(hidden);
    double *values = malloc((size_t)((end - begin) * width) * sizeof *values);
    tensor_read_part(hidden, begin * width, (end - begin) * width, values);
    tape_free(tape);
    return values;
}

TEST(a_row_has_the_same_bits_whatever_else_is_in_the_batch) {
    static const DType dtypes[] = {DT_F32, DT_BF16};
    static const Segment packed[] = {{.end = 21, .parent = -1}, {.begin = 21, .end = 34, .parent = -1}, {.begin = 34, .end = 50, .parent = -1}};
    char dir[512];
    int32_t ids[50];
    if (!strcmp(cpu_info()->gemm_f32, "openblas")) skip(); /* whose bits depend on a row's position */
    for (int i = 0; i < 50; i++) ids[i] = (int32_t)rng_below(rng_key(9, RNG_TEST, 0), (uint64_t)i, 29);
    for (size_t d = 0; d < COUNT_OF(dtypes) * COUNT_OF(tiny_families); d++) {
        Model *model;
        temp_dir_make(dir, sizeof dir);
        check_ok(model_write_random(dir, tiny_families[d / COUNT_OF(dtypes)], DT_BF16, 5, 0.4));
        check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = dtypes[d % COUNT_OF(dtypes)]}, &model));
        double *among = hidden_of(model, &(StepContext){0}, ids, packed, 3, 21, 34),
               *alone = hidden_of(model, &(StepContext){0}, ids + 21, &(Segment){.end = 13, .parent = -1}, 1, 0, 13);
        assert_memory_equal(among, alone, 13 * 16 * sizeof *alone);
        free(among);
        free(alone);
        model_free(model);
        temp_dir_remove(dir);
    }
}

/* Masks of an expert's branch are those of its tokens, however a step is split. */
TEST(dropout_of_an_expert_is_that_of_its_tokens) {
    static const Segment packed[] = {{.end = 21, .parent = -1}, {.begin = 21, .end = 34, .parent = -1}};
    const char *targets[] = {"gate_proj", "up_proj", "down_proj"};
    char dir[512];
    int32_t ids[34];
    ModelRun run;
    tiny_open(&run, dir, &(LoraConfig){.rank = 2, .alpha = 4, .dropout = 0.3, .n_targets = 3, .targets = targets, .lr_ratio = 1});
    for (size_t i = 0; i < run.model->n_linears; i++) {
        const Linear *linear = run.model->linears[i];
        for (int64_t k = 0; linear->lora && k < tensor_count(linear->lora->b); k++)
            tensor_set(linear->lora->b, k, rng_normal(rng_key(4, RNG_TEST, i), (uint64_t)k));
    }
    for (int i = 0; i < 34; i++) ids[i] = (int32_t)rng_below(rng_key(9, RNG_TEST, 0), (uint64_t)i, 29);
    const StepContext first = {.training = true, .seed = 3, .number = 7}, second = {.training = true, .seed = 3, .number = 7, .first_token = 21},
                      other = {.training = true, .seed = 3, .number = 8};
    double *among = hidden_of(run.model, &first, ids, packed, 2, 21, 34),
           *alone = hidden_of(run.model, &second, ids + 21, &(Segment){.end = 13, .parent = -1}, 1, 0, 13),
           *others = hidden_of(run.model, &other, ids, packed, 2, 21, 34), *none = hidden_of(run.model, &(StepContext){0}, ids, packed, 2, 21, 34);
    check_close_f64("a part of a step", alone, among, 13 * 16, 1e-6, 1e-6);
    for (int t = 0; t < 13; t++) {
        double change = 0, drop = 0;
        for (int c = 0; c < 16; c++) {
            change += fabs(among[16 * t + c] - others[16 * t + c]);
            drop += fabs(among[16 * t + c] - none[16 * t + c]);
        }
        assert_true(change > 1e-3 && drop > 1e-3);
    }
    free(among);
    free(alone);
    free(others);
    free(none);
    model_run_close(&run);
    temp_dir_remove(dir);
}

/* A plan does not know the choice of experts, and needs the same memory whatever it is. */
TEST(memory_does_not_depend_on_the_choice) {
    const char *parameters[] = {"experts.gate_up_proj"};
    const LoraConfig configs[] = {{.rank = 2, .alpha = 4, .n_parameters = 1, .parameters = parameters, .lr_ratio = 1},
                                  {.rank = 2, .alpha = 4, .dropout = 0.1, .target_regex = ".*(gate_proj|w1|o_proj|out_proj)", .lr_ratio = 1}};
    char dir[512];
    size_t peak[2];
    ModelRun run;
    for (size_t f = 0; f < COUNT_OF(tiny_families); f++) {
        temp_dir_make(dir, sizeof dir);
        check_ok(model_write_random(dir, tiny_families[f], DT_F32, 5, 0.4));
        for (size_t i = 0; i < 2 * (CHECKPOINT_LAYER + 1); i++) {
            for (int k = 0; k < 2; k++) {
                model_run_open(&run, dir, k ? device_meta() : device_cpu(), DT_F32);
                check_ok(model_attach_lora(run.model, &configs[i % 2], 1));
                run.model->checkpointing = (Checkpointing)(i / 2);
                for (int t = 0; t < 40; t++) run.ids[t] = t % 29;
                model_run_ids(&run, 40);
                run.batch.step.training = i % 2 == 1;
                model_run_backward(&run, 39);
                peak[k] = tape_peak_bytes(run.tape);
                model_run_close(&run);
            }
            assert_int_equal(peak[0], peak[1]);
        }
        temp_dir_remove(dir);
    }
}

/* ---- what is refused ---- */

static void refused(const char *dir, const char *text) {
    Model *model;
    check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text(text);
}

/* Writes the config with `from` replaced by `to`. */
static void change_config(const char *dir, const char *from, const char *to) {
    Str text = {0};
    const char *at = strstr(tiny_config, from);
    assert_non_null(at);
    str_printf(&text, "%.*s%s%s", (int)(at - tiny_config), tiny_config, to, at + strlen(from));
    temp_text(dir, "config.json", str_text(&text));
    str_release(&text);
}

TEST(experts_that_do_not_fit_are_named) {
    static const char n_experts[] = "\"n_routed_experts\": 6";
    static const struct {
        const char *from, *to, *text;
    } cases[] = {
        {n_experts, "\"n_routed_experts\": 8", "shape (6,16), expected (8,16)"},
        {n_experts, "\"n_routed_experts\": 1", "'num_experts_per_tok'"},
        {"\"n_group\": 1", "\"n_group\": 4", "6 experts"},
        {"\"n_group\": 1", "\"n_group\": 6", "groups"},
        {n_experts, "\"n_routed_experts\": 6, \"scoring_func\": \"tanh\"", "scoring_func 'tanh'"},
        {n_experts, "\"n_routed_experts\": 6, \"topk_method\": \"random\"", "topk_method 'random'"},
    };
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 5, 0.4));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        change_config(dir, cases[i].from, cases[i].to);
        refused(dir, cases[i].text);
    }
    temp_dir_remove(dir);
}

/* Copies the weights, except for one tensor, which has another name. */
static void rename_tensor(const char *dir, const char *name, const char *other) {
    WeightFile *files = weights_open(dir, "model.safetensors");
    SafetensorsWriter *writer;
    char path[600];
    snprintf(path, sizeof path, "%s/other.safetensors", dir);
    check_ok(safetensors_writer_new(path, &writer));
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < files->n; i++) {
            const StoredTensor *stored = &files->tensors[i];
            bool its = strcmp(stored->name, name) == 0;
            if (pass == 1)
                safetensors_write(writer, stored->data, stored->bytes);
            else
                safetensors_declare(writer, its ? other : stored->name, stored->dtype, stored->n_dims, stored->shape);
        }
    check_ok(safetensors_commit(writer));
    weight_file_close(files);
    check_ok(file_copy(path, temp_file(dir, "model.safetensors")));
    remove(path);
}

TEST(a_missing_expert_and_an_unknown_order_are_named) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_config, DT_F32, 5, 0.4));
    rename_tensor(dir, "model.layers.1.mlp.experts.4.up_proj.weight", "model.layers.1.mlp.experts.9.up_proj.weight");
    refused(dir, "'model.layers.1.mlp.experts.4.up_proj.weight' is missing");
    rename_tensor(dir, "model.layers.1.mlp.experts.9.up_proj.weight", "model.layers.1.mlp.experts.up_gate_proj");
    refused(dir, "the order of gate and up in it is not known");
    temp_dir_remove(dir);
}

/* Writes an adapter of the model in `dir` with pairs for layers named `target`. */
static void tiny_attached(const char *dir, const char *target, const char *out) {
    ModelRun run;
    model_run_open(&run, dir, device_cpu(), DT_F32);
    check_ok(model_attach_lora(run.model, &(LoraConfig){.rank = 2, .alpha = 4, .n_targets = 1, .targets = &target, .lr_ratio = 1}, 3));
    check_ok(adapter_save(run.model, out, dir));
    model_run_close(&run);
}

TEST(an_adapter_of_other_experts_is_named) {
    char dir[512], other[512], out[600];
    ModelRun run;
    const char *parameters[] = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}, *wrong[] = {"mlp.experts.up_gate_proj"};
    tiny_open(&run, dir, &(LoraConfig){.rank = 3, .alpha = 6, .n_parameters = 2, .parameters = parameters, .only_parameters = true, .lr_ratio = 1});
    snprintf(out, sizeof out, "%s/adapter", dir);
    check_ok(adapter_save(run.model, out, dir));
    model_run_close(&run);
    temp_dir_make(other, sizeof other);
    change_config(other, "\"n_routed_experts\": 6", "\"n_routed_experts\": 9");
    char config[1000];
    FILE *file = fopen(temp_file(other, "config.json"), "r");
    config[fread(config, 1, sizeof config - 1, file)] = '\0';
    fclose(file);
    check_ok(model_write_random(other, config, DT_F32, 5, 0.4));
    model_run_open(&run, other, device_cpu(), DT_F32);
    check_status(adapter_load(run.model, out, false), ST_INPUT);
    check_text("pairs of 6 experts of rank 3, and the model has 9 experts");
    model_run_close(&run);
    tiny_attached(other, "up_proj", out);
    model_run_open(&run, dir, device_cpu(), DT_F32);
    check_status(adapter_load(run.model, out, false), ST_INPUT);
    check_text("experts.6.up_proj.lora_A.weight'");
    model_run_close(&run);
    model_run_open(&run, other, device_cpu(), DT_F32);
    check_status(
        model_attach_lora(run.model, &(LoraConfig){.rank = 3, .alpha = 6, .n_parameters = 1, .parameters = wrong, .only_parameters = true}, 1),
        ST_CONFIG);
    check_text("target parameter 'mlp.experts.up_gate_proj' matches nothing");
    model_run_close(&run);
    temp_dir_remove(other);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_of_experts_equal_peft),
        cmocka_unit_test(adapters_of_experts_are_written_as_they_were),
        cmocka_unit_test(an_adapter_says_what_it_covers),
        cmocka_unit_test(named_projections_get_pairs_in_dense_shared_and_all_experts),
        cmocka_unit_test(all_linear_layers_are_without_routers_and_experts),
        cmocka_unit_test(no_pair_of_an_expert_is_lost),
        cmocka_unit_test(parameters_of_all_experts_are_trained_by_name),
        cmocka_unit_test(experts_in_one_tensor_are_read_and_written_as_they_were),
        cmocka_unit_test(mxfp4_experts_are_the_same_weights),
        cmocka_unit_test(only_experts_that_a_step_uses_are_read),
        cmocka_unit_test(a_row_has_the_same_bits_whatever_else_is_in_the_batch),
        cmocka_unit_test(dropout_of_an_expert_is_that_of_its_tokens),
        cmocka_unit_test(memory_does_not_depend_on_the_choice),
        cmocka_unit_test(experts_that_do_not_fit_are_named),
        cmocka_unit_test(a_missing_expert_and_an_unknown_order_are_named),
        cmocka_unit_test(an_adapter_of_other_experts_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
