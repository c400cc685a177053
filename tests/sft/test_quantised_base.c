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

#include "lib/model/model.h"

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

static void golden_run(const char *name, const char *base, const char *prefix) {
    char path[512], model[512], initial[512], file[600];
    json_t *all = golden_open("deploy/qlora/expected.json");
    if (!all) skip();
    const json_t *expected = golden_at(all, name);
    if (!shared_path(base, model, sizeof model)) skip();
    snprintf(path, sizeof path, "golden/deploy/qlora/%s/initial", name);
    assert_true(shared_path(path, initial, sizeof initial));
    char *rows = strdup(temp_file(test_folder, "rows.jsonl")), *output = strdup(temp_file(test_folder, name));
    write_rows(expected, prefix, rows);
    Recipe *recipe =
        recipe_of_lines("model.path=%s\nmodel.adapter=%s\nmodel.compute=f32\ndata.train=%s\noutput=%s\ndata.shuffle=false\ntrain.batch_size=2\n"
                        "train.learning_rate=0.005\ntrain.lr_scheduler=constant\ntrain.weight_decay=0\ntrain.max_grad_norm=1\nlora.lr_ratio=1\n"
                        "train.max_steps=%d\ntrain.warmup_steps=0",
                        model, initial, rows, output, (int)json_array_size(golden_at(expected, "steps")));
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
    golden_run("llama-wide-q8_0", "golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", "wide.");
    golden_run("llama-wide-q4_k_m", "golden/deploy/gguf/llama-wide/llama-wide.q4_k_m.gguf", "wide.");
}

TEST(lora_on_nf4_equals_peft) {
    golden_run("llama-nf4", "golden/deploy/hfquant/bnb-nf4-double", "");
    golden_run("llama-nf4-dora", "golden/deploy/hfquant/bnb-nf4-double", "");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_on_gguf_equals_peft),
        cmocka_unit_test(lora_on_nf4_equals_peft),
        cmocka_unit_test(merges_are_ordinary_models),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
