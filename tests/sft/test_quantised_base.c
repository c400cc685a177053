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

static void check_curve(const char *dir, const json_t *expected) {
    static const struct {
        const char *key;
        double tolerance;
    } keys[] = {{"loss", 1e-5}, {"grad_norm", 1e-4}}; /* golden/README.md: float32 */
    const json_t *steps = golden_at(expected, "steps");
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        double got[32], want[32];
        size_t n = json_array_size(steps);
        assert_int_equal(metrics_read(dir, keys[k].key, got, 32), n);
        for (size_t s = 0; s < n; s++) want[s] = golden_value(json_array_get(steps, s), keys[k].key);
        check_close_f64(keys[k].key, got, want, n, 0, keys[k].tolerance);
    }
}

static void check_adapter(const char *got_path, const char *want_path) {
    WeightFile *got, *want;
    check_ok(weight_file_open(got_path, &got));
    check_ok(weight_file_open(want_path, &want));
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        const StoredTensor *w = &want->tensors[i], *g = weight_file_find(got, w->name);
        if (!g) fail_msg("'%s' is missing", w->name);
        for (int64_t k = 0; k < w->count; k++) check_close(stored_get(g, k), stored_get(w, k), 3e-4); /* as in test_sft.c: Adam's steps are 0.005 */
    }
    weight_file_close(got);
    weight_file_close(want);
}

/* form: of model.quantize */
static void golden_run(const char *name, const char *base, const char *form, const char *prefix) {
    char path[512], model[512], initial[512], file[600];
    json_t *all = golden_open("deploy/qlora/expected.json");
    if (!all) skip();
    const json_t *expected = golden_at(all, name);
    if (!shared_path(base, model, sizeof model)) skip();
    snprintf(path, sizeof path, "golden/deploy/qlora/%s/initial", name);
    assert_true(shared_path(path, initial, sizeof initial));
    char *rows = strdup(temp_file(test_folder, "rows.jsonl")), *output = strdup(temp_file(test_folder, strcmp(form, "none") == 0 ? name : form));
    write_rows(expected, prefix, rows);
    Recipe *recipe = recipe_of_lines(
        "model.path=%s\nmodel.quantize=%s\nmodel.adapter=%s\nmodel.compute=f32\ndata.train=%s\noutput=%s\ndata.shuffle=false\ntrain.batch_size=2\n"
        "train.learning_rate=0.005\ntrain.lr_scheduler=constant\ntrain.weight_decay=0\ntrain.max_grad_norm=1\nlora.lr_ratio=1\n"
        "train.max_steps=%d\ntrain.warmup_steps=0",
        model, form, initial, rows, output, (int)json_array_size(golden_at(expected, "steps")));
    TrainResult result;
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result));
    recipe_free(recipe);
    check_curve(output, expected);
    snprintf(path, sizeof path, "golden/deploy/qlora/%s/final/adapter_model.safetensors", name);
    assert_true(shared_path(path, model, sizeof model));
    snprintf(file, sizeof file, "%s/adapter/adapter_model.safetensors", output);
    check_adapter(file, model);
    free(rows);
    free(output);
    json_decref(all);
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
    check_ok(dir_remove(temp_file(test_folder, "nf4")));
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

static void check_refused(const char *line, const char *text) {
    char model[512];
    if (!shared_path("golden/models/llama", model, sizeof model)) skip();
    Recipe *recipe =
        recipe_of_lines("model.path=%s\nmodel.quantize=nf4\ndata.train=missing.jsonl\noutput=%s\n%s", model, temp_file(test_folder, "refused"), line);
    TrainResult result;
    check_status(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result), ST_CONFIG);
    check_text(text);
    recipe_free(recipe);
}

TEST(quantised_weights_are_not_trained) {
    check_refused("lora=null", "'model.quantize: nf4' without a 'lora' section");
    check_refused(
        "lora.target_modules=[q_proj]\nlora.modules_to_save=[v_proj]",
        "self_attn.v_proj' of modules_to_save is quantised, and cannot be trained in full: tensor 'model.layers.0.self_attn.v_proj.weight'");
    check_refused("lora.rank=2\nmodel.quantize_modules=[q_porj]", "'q_porj' of model.quantize_modules matches no linear layer");
    check_refused("lora.rank=2\nmodel.quantize_modules=[all-linear, q_proj]", "'all-linear' in 'model.quantize_modules' cannot be combined");
}

/* The merge into the dequantised base computes what base and adapter do; its directory is an ordinary one. */
static void merge_of(const char *base, const char *adapter, bool tokenizer) {
    char model[512], lora[512];
    if (!shared_path(base, model, sizeof model) || !shared_path(adapter, lora, sizeof lora)) skip();
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

TEST(merges_are_ordinary_models) {
    merge_of("golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", "golden/deploy/qlora/llama-wide-q8_0/final", true);
    merge_of("golden/deploy/hfquant/bnb-nf4-double", "golden/deploy/qlora/llama-nf4/final", false);
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
        cmocka_unit_test(quantised_weights_are_not_trained),
        cmocka_unit_test(merges_are_ordinary_models),
        cmocka_unit_test(merge_figures_equal_the_golden_ones),
        cmocka_unit_test(another_base_is_told),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
