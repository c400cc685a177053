/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA on quantised bases: the curves and adapters that PEFT gave in double on the dequantised values, and merging. */
#include "sft/merge.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/adapter.h"
#include "lib/model/model.h"
#include "lib/model/quantized/quantise.h"

/* The rows of all steps, in order. */
static void write_rows(const json_t *expected, const char *prefix, const char *path) {
    char file[512], name[64];
    WeightFile *rows;
    Str text = {0};
    const json_t *step, *row;
    size_t s, r;
    assert_true(shared_path("golden/deploy/qlora/rows.safetensors", file, sizeof file));
    check_ok(weight_file_open(file, &rows));
    json_array_foreach(golden_at(expected, "rows_of_step"), s, step) json_array_foreach(step, r, row) {
        snprintf(name, sizeof name, "%srow%d", prefix, (int)json_integer_value(row));
        const StoredTensor *ids = weight_file_find(rows, name);
        assert_non_null(ids);
        str_append(&text, "{\"ids\": [");
        for (int64_t i = 0; i < ids->count; i++) str_printf(&text, "%s%d", i ? ", " : "", (int)stored_get(ids, i));
        str_append(&text, "]}\n");
    }
    check_ok(file_write_all(path, str_text(&text), text.len));
    str_release(&text);
    weight_file_close(rows);
}

/* tolerance: relative, of losses; that of gradient norms is ten times as large. */
static void check_curve(const char *dir, const json_t *expected, double tolerance) {
    const struct {
        const char *key;
        double tolerance;
    } keys[] = {{"loss", tolerance}, {"grad_norm", 10 * tolerance}};
    const json_t *steps = golden_at(expected, "steps");
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        double got[32], want[32];
        size_t n = json_array_size(steps);
        assert_int_equal(metrics_read(dir, keys[k].key, got, 32), n);
        for (size_t s = 0; s < n; s++) want[s] = golden_value(json_array_get(steps, s), keys[k].key);
        check_close_f64(keys[k].key, got, want, n, 0, keys[k].tolerance);
    }
}

static void check_adapter(const char *got_path, const char *want_path, double tolerance) {
    WeightFile *got, *want;
    check_ok(weight_file_open(got_path, &got));
    check_ok(weight_file_open(want_path, &want));
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        const StoredTensor *w = &want->tensors[i], *g = weight_file_find(got, w->name);
        if (!g) fail_msg("'%s' is missing", w->name);
        for (int64_t k = 0; k < w->count; k++) check_close(stored_get(g, k), stored_get(w, k), tolerance);
    }
    weight_file_close(got);
    weight_file_close(want);
}

/* form: of model.quantize; doubles: on the reference device, which would read the larger model's codes one by one, so it gets values. */
static void golden_curve(const char *name, const char *base, const char *form, const char *prefix, bool doubles, double tolerance) {
    char path[512], model[512], initial[512], file[600];
    json_t *all = golden_open("deploy/qlora/expected.json");
    if (!all) skip();
    const json_t *expected = golden_at(all, name);
    if (!shared_path(base, model, sizeof model)) skip();
    snprintf(path, sizeof path, "golden/deploy/qlora/%s/initial", name);
    assert_true(shared_path(path, initial, sizeof initial));
    char *rows = strdup(temp_file(test_folder, "rows.jsonl")), *output = strdup(temp_file(test_folder, strcmp(form, "none") == 0 ? name : form));
    check_ok(dir_remove(output));
    write_rows(expected, prefix, rows);
    Recipe *recipe = recipe_of_lines(
        "model.path=%s\nmodel.quantize=%s\nmodel.adapter=%s\nmodel.dequantize=%s\nmodel.compute=f32\ndata.train=%s\noutput=%s\ndata.shuffle=false\ntrain.batch_size=2\n"
        "train.learning_rate=0.005\ntrain.lr_scheduler=constant\ntrain.weight_decay=0\ntrain.max_grad_norm=1\nlora.lr_ratio=1\n"
        "train.max_steps=%d\ntrain.warmup_steps=0",
        model, form, initial, doubles && prefix[0] ? "true" : "false", rows, output, (int)json_array_size(golden_at(expected, "steps")));
    TrainResult result;
    const Runtime runtime = doubles ? (Runtime){device_reference(), DT_F64} : runtime_of(recipe);
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &result));
    recipe_free(recipe);
    check_curve(output, expected, tolerance);
    snprintf(path, sizeof path, "golden/deploy/qlora/%s/final/adapter_model.safetensors", name);
    assert_true(shared_path(path, model, sizeof model));
    snprintf(file, sizeof file, "%s/adapter/adapter_model.safetensors", output);
    check_adapter(file, model, doubles ? 1e-6 : 3e-4); /* saved in f32; as in test_sft.c: Adam's steps are 0.005 */
    free(rows);
    free(output);
    json_decref(all);
}

static void golden_run(const char *name, const char *base, const char *form, const char *prefix) {
    golden_curve(name, base, form, prefix, false, 1e-5);
}

/* Every step in double. Values of blocks are exact in float32. Those of bitsandbytes' forms are rounded to it, as there, but not in the reference:
 * 2e-8 of the loss was measured. */
TEST(curves_in_double_equal_peft) {
    golden_curve("llama-nf4-dora", "golden/deploy/hfquant/bnb-nf4-double", "none", "", true, 1e-7);
    if (ALL_OR_FEW(false, true)) return;
    golden_curve("llama-nf4", "golden/deploy/hfquant/bnb-nf4-double", "none", "", true, 1e-7);
    golden_curve("llama-int8", "golden/models/llama", "int8", "", true, 1e-7);
    if (!long_tests()) return; /* 60 times as many products */
    golden_curve("llama-wide-q8_0", "golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", "none", "wide.", true, 1e-9);
    golden_curve("llama-wide-q4_k_m", "golden/deploy/gguf/llama-wide/llama-wide.q4_k_m.gguf", "none", "wide.", true, 1e-9);
}

TEST(lora_on_gguf_equals_peft) {
    golden_run("llama-wide-q8_0", "golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", "none", "wide.");
    golden_run("llama-wide-q4_k_m", "golden/deploy/gguf/llama-wide/llama-wide.q4_k_m.gguf", "none", "wide.");
}

TEST(lora_on_nf4_equals_peft) {
    golden_run("llama-nf4", "golden/deploy/hfquant/bnb-nf4-double", "none", "");
    golden_run("llama-nf4-dora", "golden/deploy/hfquant/bnb-nf4-double", "none", "");
}

/* The same curves from the plain model, and the base that the run keeps in its parent folder. */
TEST(quantised_while_loading_equals_peft) {
    golden_run("llama-nf4", "golden/models/llama", "nf4", "");
    golden_run("llama-nf4-dora", "golden/models/llama", "nf4", "");
    golden_run("llama-int8", "golden/models/llama", "int8", "");
    Arena *arena = arena_new(0);
    char **names;
    size_t n, kept = 0;
    check_ok(dir_list(test_folder, arena, &names, &n));
    for (size_t i = 0; i < n; i++) kept += text_starts_with(names[i], "llama-nf4-") && strlen(names[i]) == strlen("llama-nf4-") + 16;
    assert_int_equal(kept, 1); /* both runs share it */
    arena_free(arena);
}

/* A run that is continued takes the base that it kept, and one whose base is gone makes it again: the same bits. */
TEST(the_kept_base_is_used_again) {
    char model[512];
    if (!shared_path("golden/models/llama", model, sizeof model)) skip();
    char *rows = strdup(temp_file(test_folder, "few.jsonl")), *output = strdup(temp_file(test_folder, "resumed"));
    static const char few[] = "{\"ids\": [1, 2, 3, 4, 5]}\n{\"ids\": [9, 8, 7, 6]}\n";
    check_ok(file_write_all(rows, few, strlen(few)));
    double losses[3][8];
    for (int i = 0; i < 3; i++) {
        Recipe *recipe =
            recipe_of_lines("model.path=%s\nmodel.quantize=fp4\nmodel.compute=f32\ndata.train=%s\noutput=%s\ntrain.max_steps=%d\nlora.rank=2\n"
                            "lora.use_dora=true\nlora.dropout=0.1\ntrain.lr_scheduler=constant\ntrain.warmup_steps=0",
                            model, rows, output, i == 0 ? 2 : 4);
        TrainResult result;
        TrainingConfig config = {.recipe = recipe, .runtime = runtime_of(recipe)};
        config.options.resume = i == 1;
        config.options.force = i == 2;
        check_ok(sft_run(&config, &result));
        recipe_free(recipe);
        assert_int_equal(metrics_read(output, "loss", losses[i], 8), i == 0 ? 2 : 4);
    }
    for (int s = 0; s < 4; s++) check_close(losses[1][s], losses[2][s], 0);
    free(rows);
    free(output);
}

static void refused_on(const char *base, const char *form, const char *line, const char *text) {
    char model[512];
    if (!shared_path(base, model, sizeof model)) skip();
    Recipe *recipe = recipe_of_lines("model.path=%s\nmodel.quantize=%s\ndata.train=missing.jsonl\noutput=%s\n%s", model, form,
                                     temp_file(test_folder, "refused"), line);
    TrainResult result;
    check_status(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result), ST_CONFIG);
    check_text(text);
    recipe_free(recipe);
}

static void check_refused(const char *line, const char *text) { refused_on("golden/models/llama", "nf4", line, text); }

TEST(quantised_weights_are_not_trained) {
    check_refused("lora=null", "'model.quantize: nf4' without a 'lora' section");
    check_refused(
        "lora.target_modules=[q_proj]\nlora.modules_to_save=[v_proj]",
        "self_attn.v_proj' of modules_to_save is quantised, and cannot be trained in full: tensor 'model.layers.0.self_attn.v_proj.weight'");
    check_refused("lora.rank=2\nmodel.quantize_modules=[q_porj]", "'q_porj' of model.quantize_modules matches no linear layer");
    check_refused("lora.rank=2\nmodel.quantize_modules=[all-linear, q_proj]", "'all-linear' in 'model.quantize_modules' cannot be combined");
}

/* Bases that are quantised already: a GGUF file, and a directory. */
TEST(quantised_bases_are_neither_trained_nor_quantised_again) {
    static const char *const bases[][2] = {
        {"golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", "v_proj.weight' in '"},
        {"golden/deploy/hfquant/bnb-nf4", "v_proj.weight' in '"},
        {"golden/deploy/hfquant/gptq", "v_proj.weight' in '"},
    };
    for (size_t i = 0; i < COUNT_OF(bases); i++) {
        refused_on(bases[i][0], "none", "lora=null", "full fine-tuning of quantised weights: tensor 'model.");
        refused_on(bases[i][0], "none", "lora.target_modules=[q_proj]\nlora.modules_to_save=[v_proj]", "cannot be trained in full: tensor '");
        check_text(bases[i][1]);
        refused_on(bases[i][0], "int8", "lora.rank=2", "'model.quantize: int8' of a base that is quantised already: tensor '");
    }
}

/* ---- merging ---- */

/* The merge into the dequantised base computes what base and adapter do; its directory is an ordinary one. */

static void merge_into(const char *model, const char *lora, bool tokenizer) {
    const char *output = temp_file(test_folder, "merged");
    MergeAdapter adapters[] = {{.dir = lora, .weight = 1}};
    MergeResult *result;
    MergeConfig config = {.base = model,
                          .adapters = adapters,
                          .n_adapters = 1,
                          .output = output,
                          .runtime = {device_cpu(), DT_F32},
                          .dtype = DT_F32,
                          .convert = true,
                          .prove = true};
    check_ok(merge_run(&config, &result));
    check_close(result->kl, 0, 1e-9); /* f32 sums instead of the branch's: 1e-14 in double */
    merge_free(result);
    json_t *json;
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", output);
    check_ok(json_read_file(path, &json));
    assert_null(json_object_get(json, "quantization_config"));
    json_decref(json);
    snprintf(path, sizeof path, "%s/tokenizer.json", output);
    assert_int_equal(file_exists(path), tokenizer);
    Model *model_loaded;
    check_ok(model_load(output, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .train_all = true}, &model_loaded));
    model_free(model_loaded);
    check_ok(dir_remove(output));
}

static void merge_of(const char *base, const char *adapter, bool tokenizer) {
    char model[512], lora[512];
    if (!shared_path(base, model, sizeof model) || !shared_path(adapter, lora, sizeof lora)) skip();
    merge_into(model, lora, tokenizer);
}

TEST(merges_are_ordinary_models) {
    merge_of("golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", "golden/deploy/qlora/llama-wide-q8_0/final", true);
    merge_of("golden/deploy/hfquant/bnb-nf4-double", "golden/deploy/qlora/llama-nf4/final", false);
}

/* ---- every form ---- */

static void form_run(const char *model, const char *form, const char *output, int steps, bool resume, const char *more, double losses[4]) {
    char *rows = strdup(temp_file(test_folder, "forms.jsonl"));
    static const char few[] = "{\"ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n{\"ids\": [9, 8, 7, 6, 33, 40]}\n";
    check_ok(file_write_all(rows, few, strlen(few)));
    Recipe *recipe =
        recipe_of_lines("model.path=%s\nmodel.quantize=%s\nmodel.compute=f32\ndata.train=%s\noutput=%s\ntrain.max_steps=%d\nlora.rank=2\n"
                        "train.learning_rate=0.01\ntrain.lr_scheduler=constant\ntrain.warmup_steps=0\n%s",
                        model, form, rows, output, steps, more);
    TrainResult result;
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume}, &result));
    recipe_free(recipe);
    assert_int_equal(metrics_read(output, "loss", losses, 4), steps);
    free(rows);
}

/* A run on codes has the bits of one on their values: of a GGUF file, a directory, and a base that is made here. */
TEST(codes_train_as_their_values_do) {
    static const char *const bases[][2] = {{"golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", "none"},
                                           {"golden/deploy/gguf/llama-wide/llama-wide.q4_k_m.gguf", "none"},
                                           {"golden/deploy/hfquant/gptq-actorder-asym", "none"},
                                           {"golden/deploy/gguf/llama-wide/hf", "nf4"},
                                           {"golden/families/gpt_oss/mxfp4", "none"}};
    for (size_t i = 0; i < ALL_OR_FEW(COUNT_OF(bases), 2); i++) {
        char model[512];
        double codes[4], values[4];
        if (!shared_path(bases[i][0], model, sizeof model)) skip();
        char *output = strdup(temp_file(test_folder, "codes"));
        form_run(model, bases[i][1], output, 4, false, "", codes);
        check_ok(dir_remove(output));
        form_run(model, bases[i][1], output, 4, false, "model.dequantize=true", values);
        check_close_f64(bases[i][0], codes, values, 4, 0, 0);
        check_ok(dir_remove(output));
        free(output);
    }
}

/* Trains, resumes with the same bits, keeps its base, which is read again, and merges into a model that computes the same. */
TEST(every_form_trains_resumes_and_merges) {
    static const char *const forms[] = {"nf4", "q4_k", "fp4", "int8", "q8_0", "q4_0", "q6_k"};
    char model[512];
    if (!shared_path("golden/deploy/gguf/llama-wide/hf", model, sizeof model)) skip();
    for (size_t i = 0; i < ALL_OR_FEW(COUNT_OF(forms), 2); i++) {
        double whole[4], parts[4];
        const char *base;
        char *output = strdup(temp_file(test_folder, "whole")), *again = strdup(temp_file(test_folder, "parts")), adapter[600];
        Arena *arena = arena_new(0);
        Model *kept;
        form_run(model, forms[i], output, 4, false, "", whole);
        form_run(model, forms[i], again, 2, false, "", parts);
        form_run(model, forms[i], again, 4, true, "", parts);
        check_close_f64(forms[i], parts, whole, 4, 0, 0);
        assert_true(whole[3] < whole[0]);
        snprintf(adapter, sizeof adapter, "%s/adapter", output);
        check_ok(adapter_base(adapter, arena, &base));
        check_ok(model_load(base, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &kept));
        assert_true(weight_file_is_quantised(kept->files));
        model_free(kept);
        merge_into(base, adapter, true);
        check_ok(dir_remove(output));
        check_ok(dir_remove(again));
        check_ok(dir_remove(base));
        arena_free(arena);
        free(output);
        free(again);
    }
}

/* ---- merging figures ---- */

/* Logits of row 0 and row 1, one after the other; the caller frees them. */
static double *row_logits(const char *base, const char *adapter, size_t *n_positions, int64_t *vocab) {
    char path[512];
    Model *model;
    WeightFile *rows;
    double *values = NULL;
    assert_true(shared_path("golden/deploy/qlora/rows.safetensors", path, sizeof path));
    check_ok(weight_file_open(path, &rows));
    check_ok(model_load(base, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    if (adapter) check_ok(adapter_load(model, adapter, false));
    *vocab = model->config.vocab_size;
    *n_positions = 0;
    for (int r = 0; r < 2; r++) {
        const StoredTensor *stored = weight_file_find(rows, r ? "row1" : "row0");
        const int64_t n = stored->count;
        int32_t ids[64], positions[64];
        for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)stored_get(stored, i), positions[i] = (int32_t)i;
        Tape *tape = tape_new(device_cpu(), DT_F32, 0);
        Segment segment = {.end = n, .parent = -1};
        ModelBatch batch = {.ids = ids, .layout = {.n_tokens = n, .n_segments = 1, .segments = &segment}};
        Tensor *all = tensor_view(tape_arena(tape), device_cpu(), DT_I32, 1, &n, positions);
        Logits logits = model_logits(model, tape, model_forward(model, tape, &batch), all);
        check_ok(tape_status(tape));
        values = realloc(values, (*n_positions + (size_t)n) * (size_t)*vocab * sizeof *values);
        tensor_read(logits.logits, values + *n_positions * (size_t)*vocab);
        *n_positions += (size_t)n;
        tape_free(tape);
    }
    model_free(model);
    weight_file_close(rows);
    return values;
}

static double log_sum(const double *logits, int64_t n) {
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < n; i++) most = fmax(most, logits[i]);
    for (int64_t i = 0; i < n; i++) sum += exp(logits[i] - most);
    return most + log(sum);
}

/* Mean KL(p || q) over all positions. */
static double mean_kl(const double *p, const double *q, size_t n, int64_t vocab) {
    double kl = 0;
    for (size_t i = 0; i < n; i++, p += vocab, q += vocab) {
        const double sum_p = log_sum(p, vocab), sum_q = log_sum(q, vocab);
        for (int64_t k = 0; k < vocab; k++) kl += exp(p[k] - sum_p) * ((p[k] - sum_p) - (q[k] - sum_q)) / (double)n;
    }
    return kl;
}

/* onto NULL: into the base itself. */
static double merged_kl(const char *base, const char *adapter, const char *onto, double *requantised) {
    const char *output = temp_file(test_folder, "figures");
    MergeAdapter adapters[] = {{.dir = adapter, .weight = 1}};
    MergeConfig config = {.base = base,
                          .onto = onto,
                          .adapters = adapters,
                          .n_adapters = 1,
                          .output = output,
                          .runtime = {device_cpu(), DT_F32},
                          .dtype = DT_F32,
                          .convert = true};
    MergeResult *result;
    check_ok(merge_run(&config, &result));
    assert_true(result->proved && result->quantised == !onto && result->requantised == !onto);
    if (requantised) *requantised = result->requantised_lost;
    merge_free(result);
    size_t n;
    int64_t vocab;
    double *before = row_logits(base, adapter, &n, &vocab), *after = row_logits(output, NULL, &n, &vocab), kl = mean_kl(before, after, n, vocab);
    free(before);
    free(after);
    check_ok(dir_remove(output));
    return kl;
}

TEST(merge_figures_equal_the_golden_ones) {
    static const char *const names[] = {"llama-nf4", "llama-int8"};
    char original[512], final[512], path[256];
    json_t *all = golden_open("deploy/qlora/expected.json");
    if (!all || !shared_path("golden/models/llama", original, sizeof original)) skip();
    for (int i = 0; i < 2; i++) {
        const json_t *want = golden_at(golden_at(all, names[i]), "merge");
        const double onto = golden_value(golden_at(want, "into_original_weights"), "kl_adapter_to_merged"),
                     lost = golden_value(golden_at(want, "requantized"), "share_of_delta_lost");
        const char *base = temp_file(test_folder, names[i][6] == 'n' ? "figures-nf4" : "figures-int8");
        double requantised = 0;
        snprintf(path, sizeof path, "golden/deploy/qlora/%s/final", names[i]);
        assert_true(shared_path(path, final, sizeof final));
        check_ok(quantise_save(original, &(Quantise){.form = i ? "int8" : "nf4", .nested = true, .block = 64}, base));
        check_close(merged_kl(base, final, NULL, &requantised), 0, 1e-9);
        check_close(requantised, lost, 1e-3 * lost);
        check_close(merged_kl(base, final, original, NULL), onto, i ? 1e-6 : 1e-3 * onto);
    }
    json_decref(all);
}

/* The adapter says which values it was trained on. */
TEST(another_base_is_told) {
    char original[512], *output = strdup(temp_file(test_folder, "resumed")), adapter[600];
    const char *base, *digest;
    char nf4[65], plain[65];
    if (!shared_path("golden/models/llama", original, sizeof original) || !dir_exists(output)) skip();
    Arena *arena = arena_new(0);
    Model *model;
    snprintf(adapter, sizeof adapter, "%s/adapter", output);
    check_ok(adapter_base_digest(adapter, arena, &base, &digest));
    assert_int_equal(strlen(digest), 64);
    check_ok(model_load(base, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(model_base_digest(model, nf4));
    model_free(model);
    check_ok(model_load(original, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(model_base_digest(model, plain));
    model_free(model);
    assert_string_equal(digest, nf4);
    assert_string_not_equal(digest, plain);
    arena_free(arena);
    free(output);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_on_gguf_equals_peft),
        cmocka_unit_test(lora_on_nf4_equals_peft),
        cmocka_unit_test(quantised_while_loading_equals_peft),
        cmocka_unit_test(the_kept_base_is_used_again),
        cmocka_unit_test(curves_in_double_equal_peft),
        cmocka_unit_test(quantised_weights_are_not_trained),
        cmocka_unit_test(quantised_bases_are_neither_trained_nor_quantised_again),
        cmocka_unit_test(every_form_trains_resumes_and_merges),
        cmocka_unit_test(codes_train_as_their_values_do),
        cmocka_unit_test(merges_are_ordinary_models),
        cmocka_unit_test(merge_figures_equal_the_golden_ones),
        cmocka_unit_test(another_base_is_told),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
