/* SPDX-License-Identifier: Apache-2.0 */
/* Distillation: curves of another program, what the loss is at its limits, teachers that do not fit. */
#include "lib/base/file.h"
#include "lib/base/json.h"
#include "lib/model/weight_file.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- golden runs ---- */

/* The rows of five steps, two each, in order. */
static void write_golden_rows(const char *path) {
    static const int order[] = {0, 1, 1, 2, 2, 3, 3, 0, 0, 1};
    char stored[512], name[16];
    WeightFile *file;
    Str text = {0};
    shared_path("golden/deploy/distil/rows.safetensors", stored, sizeof stored);
    check_ok(weight_file_open(stored, &file));
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        snprintf(name, sizeof name, "row%d", order[i]);
        const StoredTensor *row = weight_file_find(file, name);
        snprintf(name, sizeof name, "mask%d", order[i]);
        const StoredTensor *mask = weight_file_find(file, name);
        str_append(&text, "{\"input_ids\": [");
        for (int64_t k = 0; k < row->count; k++) str_printf(&text, "%s%d", k ? ", " : "", (int)stored_get(row, k));
        str_append(&text, "], \"labels\": [-100");
        for (int64_t k = 0; k < mask->count; k++) str_printf(&text, ", %d", mask->data[k] ? (int)stored_get(row, k + 1) : -100);
        str_append(&text, "]}\n");
    }
    check_ok(file_write_all(path, str_text(&text), text.len));
    str_release(&text);
    weight_file_close(file);
}

/* tolerance: relative, of losses; gradient norms have ten times as much in f32. */
static void golden_curve(const char *name, const char *settings, bool doubles, double tolerance) {
    static const char *const keys[] = {"loss", "divergence", "cross_entropy", "grad_norm"};
    char path[512], student[512], teacher[512];
    json_t *expected;
    TrainResult result;
    if (!shared_path("golden/deploy/distil/expected.json", path, sizeof path)) skip();
    shared_path("golden/models/llama", student, sizeof student);
    shared_path("golden/deploy/distil/teacher", teacher, sizeof teacher);
    char *rows = strdup(temp_file(test_folder, "rows.jsonl")), *out = strdup(temp_file(test_folder, doubles ? "doubles" : "floats"));
    check_ok(dir_remove(out));
    write_golden_rows(rows);
    check_ok(json_read_file(path, &expected));
    const json_t *steps = json_object_get(json_object_get(expected, name), "steps");
    Recipe *recipe = recipe_of_lines(
        "model.path=%s\nmodel.compute=f32\nlora=null\ndata.train=%s\ndata.shuffle=false\ntrain.batch_size=2\ntrain.max_steps=5\ntrain.learning_rate="
        "0.001\ntrain.lr_scheduler=constant\ntrain.weight_decay=0\ntrain.max_grad_norm=0\ntrain.warmup_steps=0\noutput=%s\ndistil.teacher=%s\n%s",
        student, rows, out, teacher, settings);
    Runtime runtime = doubles ? (Runtime){device_reference(), DT_F64} : runtime_of(recipe);
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &result));
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        double got[8], want[8];
        assert_int_equal(metrics_read(out, keys[k], got, 8), 5);
        for (size_t s = 0; s < 5; s++) want[s] = json_number_value(json_object_get(json_array_get(steps, s), keys[k]));
        check_close_f64(keys[k], got, want, 5, 0, strcmp(keys[k], "grad_norm") == 0 ? 10 * tolerance : tolerance);
    }
    recipe_free(recipe);
    json_decref(expected);
    free(rows);
    free(out);
}

/* In double; and in f32, where Adam goes by the sign of gradients that are mere rounding: 1.5e-5 measured at the fifth step. */
static void golden_run(const char *name, const char *settings) {
    golden_curve(name, settings, true, 1e-9);
    golden_curve(name, settings, false, 3e-5);
}

TEST(forward_kl_equals_the_reference) { golden_run("forward-kl", ""); }
TEST(reverse_kl_equals_the_reference) { golden_run("reverse-kl", "distil.loss=reverse_kl\n"); }
TEST(jsd_equals_the_reference) { golden_run("jsd", "distil.loss=jsd\ndistil.beta=0.5\ndistil.temperature=0.9\n"); }
TEST(hintons_mix_equals_the_reference) { golden_run("hinton", "distil.temperature=2\ndistil.alpha=0.7\ndistil.times_temperature_squared=true\n"); }
TEST(top_k_equals_the_reference) { golden_run("top-k", "distil.loss=top_k\ndistil.top_k=8\n"); }

/* ---- without golden values ---- */

static char *rows_file(void) {
    static const char text[] = "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}\n{\"prompt\": \"one, two,\", \"completion\": \" three\"}\n"
                               "{\"prompt\": \"a b\", \"completion\": \" c d e f\"}\n{\"prompt\": \"red\", \"completion\": \" green blue\"}\n";
    char *path = strdup(temp_file(test_folder, "small.jsonl"));
    check_ok(file_write_all(path, text, sizeof text - 1));
    return path;
}

static Status small_run(const char *name, const char *settings, bool resume) {
    TrainResult result;
    char *rows = rows_file();
    Recipe *recipe =
        recipe_of_lines("model.path=recipes/demo/model\nmodel.compute=f32\nlora.rank=4\ndata.train=%s\ntrain.batch_size=2\ntrain.max_steps=4\n"
                        "train.learning_rate=0.01\ntrain.save_every=1\noutput=%s\n%s",
                        rows, temp_file(test_folder, name), settings);
    Status status = sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume}, &result);
    recipe_free(recipe);
    free(rows);
    return status;
}

#define SELF "distil.teacher=recipes/demo/model\n"

static void read_metric(const char *name, const char *key, double values[4]) {
    assert_int_equal(metrics_read(temp_file(test_folder, name), key, values, 4), 4);
}

/* A new adapter adds nothing, so the student equals its teacher until the first step; then it would follow the rows by alpha. */
TEST(a_model_does_not_differ_from_itself) {
    double divergence[4], entropy[4], plain[4], loss[4];
    check_ok(small_run("self", SELF "distil.alpha=0.5\n", false));
    check_ok(small_run("plain", "", false));
    read_metric("self", "divergence", divergence);
    read_metric("self", "cross_entropy", entropy);
    read_metric("self", "loss", loss);
    read_metric("plain", "loss", plain);
    check_close(divergence[0], 0, 1e-6);
    assert_true(divergence[3] > 1e-6);
    check_close(entropy[0], plain[0], 1e-5 * plain[0]);
    for (int i = 0; i < 4; i++) check_close(loss[i], 0.5 * divergence[i] + 0.5 * entropy[i], 1e-6 * loss[i]);
}

TEST(alpha_0_is_plain_training) {
    double with[4], plain[4];
    check_ok(small_run("zero", SELF "distil.alpha=0\n", false));
    check_ok(small_run("zero-plain", "", false));
    read_metric("zero", "loss", with);
    read_metric("zero-plain", "loss", plain);
    for (int i = 0; i < 4; i++) check_close(with[i], plain[i], 1e-4 * plain[i]);
}

/* Granite divides its logits, Gemma caps them: at the first step the cross-entropy is the loss of plain training, in both ways of training. */
TEST(logits_of_a_family_are_scaled_and_capped) {
    static const char *const configs[] = {
        "{\"model_type\": \"granite\", \"vocab_size\": 40, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"tie_word_embeddings\": false, \"logits_scaling\": 0.05}",
        "{\"model_type\": \"gemma2\", \"vocab_size\": 40, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2, \"head_dim\": 6,"
        " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"query_pre_attn_scalar\": 6, \"final_logit_softcapping\": 2.0}"};
    static const char text[] =
        "{\"input_ids\": [1, 2, 3, 4, 5], \"labels\": [-100, 2, 3, 4, 5]}\n{\"input_ids\": [7, 8, 9], \"labels\": [7, 8, 9]}\n";
    char model[512], rows[512];
    snprintf(rows, sizeof rows, "%s", temp_text(test_folder, "ids.jsonl", text));
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        double found[2][2];
        temp_dir_make(model, sizeof model);
        check_ok(model_write_random(model, configs[i], DT_F32, 5, 0.4));
        for (int with = 0; with < 2; with++) {
            TrainResult result;
            char out[512];
            snprintf(out, sizeof out, "%s", temp_file(model, with ? "taught" : "plain"));
            Recipe *recipe = recipe_of_lines("model.path=%s\nmodel.compute=f32\nlora=null\ndata.train=%s\ntrain.batch_size=2\ntrain.max_steps=1\n"
                                             "train.learning_rate=0.01\ntrain.max_grad_norm=0\noutput=%s\n%s%s%s",
                                             model, rows, out, with ? "distil.alpha=0\ndistil.teacher=" : "", with ? model : "", with ? "\n" : "");
            check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result));
            recipe_free(recipe);
            assert_int_equal(metrics_read(out, "loss", &found[with][0], 1), 1);
            assert_int_equal(metrics_read(out, "grad_norm", &found[with][1], 1), 1);
        }
        for (int k = 0; k < 2; k++) check_close(found[1][k], found[0][k], 1e-5 * found[0][k]);
        temp_dir_remove(model);
    }
}

TEST(a_resumed_run_has_the_same_bytes) {
    const char *settings = SELF "distil.alpha=0.3\ndistil.loss=jsd\n";
    check_ok(small_run("whole", settings, false));
    check_ok(small_run("half", settings, false));
    check_ok(dir_remove(temp_file(test_folder, "half/checkpoints/step-4")));
    check_ok(small_run("half", settings, true));
    check_same_file(test_folder, "whole", "half", "adapter/adapter_model.safetensors");
}

TEST(teachers_that_do_not_fit) {
    char other[512];
    check_status(small_run("none", "distil.teacher=/nowhere\n", false), ST_INPUT);
    check_status(small_run("key", SELF "distil.beta=0.4\n", false), ST_CONFIG);
    check_text("distil.beta");
    check_status(small_run("alone", "distil.alpha=0.4\n", false), ST_CONFIG);
    check_text("distil.teacher");
    if (!shared_path("golden/models/llama", other, sizeof other)) skip();
    Str settings = {0};
    str_printf(&settings, "distil.teacher=%s\n", other);
    check_status(small_run("other", str_text(&settings), false), ST_CONFIG);
    check_text("tokens");
    str_release(&settings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_kl_equals_the_reference),
        cmocka_unit_test(reverse_kl_equals_the_reference),
        cmocka_unit_test(jsd_equals_the_reference),
        cmocka_unit_test(hintons_mix_equals_the_reference),
        cmocka_unit_test(top_k_equals_the_reference),
        cmocka_unit_test(a_model_does_not_differ_from_itself),
        cmocka_unit_test(alpha_0_is_plain_training),
        cmocka_unit_test(a_resumed_run_has_the_same_bytes),
        cmocka_unit_test(logits_of_a_family_are_scaled_and_capped),
        cmocka_unit_test(teachers_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
