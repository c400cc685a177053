/* SPDX-License-Identifier: Apache-2.0 */
/* Learning a teacher's distributions on completions: losses of another program, where completions come from, what is refused. */
#include "lib/base/json.h"
#include "rl/text/text_pass.h"
#include "rl/text/text_rl.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of prompt and completion as ids. */
static void write_rows(const char *path, const json_t *prompts, const json_t *completions) {
    Str text = {0};
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *parts[] = {json_array_get(prompts, i), json_array_get(completions, i)};
        for (int labels = 0; labels < 2; labels++) {
            str_append(&text, labels ? "], \"labels\": [" : "{\"input_ids\": [");
            for (size_t k = 0, n = 0; k < 2; k++)
                for (size_t t = 0; t < json_array_size(parts[k]); t++)
                    str_printf(&text, "%s%d", n++ ? ", " : "", labels && k == 0 ? -100 : (int)json_integer_value(json_array_get(parts[k], t)));
        }
        str_append(&text, "]}\n");
    }
    check_ok(file_write_all(path, str_text(&text), text.len));
    str_release(&text);
}

/* The golden completions are those that the student samples greedily; here they are given as rows, since a run samples. */
static void golden_step(const char *name, const char *settings, bool doubles, double tolerance) {
    char path[512], student[512], teacher[512], rows[512], out[512];
    json_t *expected;
    TrainResult result;
    if (!shared_path("golden/deploy/distil/expected.json", path, sizeof path)) skip();
    shared_path("golden/models/llama", student, sizeof student);
    shared_path("golden/deploy/distil/teacher", teacher, sizeof teacher);
    check_ok(json_read_file(path, &expected));
    const json_t *golden = json_object_get(expected, name);
    snprintf(rows, sizeof rows, "%s", temp_file(test_folder, "rows.jsonl"));
    snprintf(out, sizeof out, "%s", temp_file(test_folder, doubles ? "doubles" : "floats"));
    check_ok(dir_remove(out));
    write_rows(rows, json_object_get(json_object_get(expected, "sequence-level"), "prompts"), json_object_get(golden, "completions"));
    Recipe *recipe =
        recipe_of_lines("model.path=%s\nmodel.compute=f32\nlora=null\ndata.train=%s\ndata.shuffle=false\nrl.algorithm=gkd\nrl.lmbda=0\n"
                        "rl.num_generations=1\nrl.prompts_per_step=4\ngenerate.max_new_tokens=8\ntrain.max_steps=1\ntrain.max_grad_norm=0\n"
                        "train.learning_rate=0.001\noutput=%s\ndistil.teacher=%s\n%s",
                        student, rows, out, teacher, settings);
    Runtime runtime = doubles ? (Runtime){device_reference(), DT_F64} : runtime_of(recipe);
    check_ok(text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &(RewardOptions){0}, &result));
    double got, want = json_number_value(json_object_get(golden, "loss"));
    assert_int_equal(metrics_read(out, "loss", &got, 1), 1);
    check_close_f64("loss", &got, &want, 1, 0, tolerance);
    /* The golden norm leaves out the embedding of the padding token, which is one of the tokens: 2.4e-4 of it. golden_gradients is exact. */
    want = json_number_value(json_object_get(golden, "grad_norm"));
    assert_int_equal(metrics_read(out, "grad_norm", &got, 1), 1);
    check_close(got, want, 3e-4 * want);
    recipe_free(recipe);
    json_decref(expected);
}

static Model *golden_model(const char *name, bool trained) {
    char path[512];
    Model *model;
    shared_path(name, path, sizeof path);
    check_ok(model_load(path, &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = trained}, &model));
    return model;
}

static void read_ids(const json_t *array, int32_t *ids) {
    for (size_t t = 0; t < json_array_size(array); t++) ids[t] = (int32_t)json_integer_value(json_array_get(array, t));
}

/* One pass over the golden completions, in double: the gradients of two weights, and of all but the embedding of token 0. */
static void golden_gradients(const char *name, const DivergenceArgs *args) {
    enum { N = 4, PROMPT = 5, ANSWER = 8 };
    char path[512];
    json_t *expected;
    if (!shared_path("golden/deploy/distil/expected.json", path, sizeof path)) skip();
    check_ok(json_read_file(path, &expected));
    const json_t *golden = json_object_get(expected, name), *prompts = json_object_get(json_object_get(expected, "sequence-level"), "prompts"),
                 *norms = json_object_get(golden, "grad_norm_of");
    Model *student = golden_model("golden/models/llama", true), *teacher = golden_model("golden/deploy/distil/teacher", false);
    int32_t asked[N][PROMPT], ids[N * ANSWER];
    int64_t begin[N + 1];
    bool ended[N] = {0};
    PromptRow rows[N];
    const PromptRow *each[N];
    for (int i = 0; i <= N; i++) begin[i] = i * ANSWER;
    for (int i = 0; i < N; i++) {
        read_ids(json_array_get(prompts, (size_t)i), asked[i]);
        read_ids(json_array_get(json_object_get(golden, "completions"), (size_t)i), ids + i * ANSWER);
        rows[i] = (PromptRow){.ids = {asked[i], PROMPT, PROMPT}};
        each[i] = &rows[i];
    }
    const Experience e = {
        .n_groups = N, .group_size = 1, .n = N, .prompts = each, .begin = begin, .n_tokens = N * ANSWER, .ended = ended, .ids = ids};
    TextPass pass = {.tape = tape_new(device_reference(), DT_F64, 0), .temperature = args->temperature, .max_tokens = 1000};
    Divergences d;
    double seeds[N * ANSWER], squares = 0, first = 0;
    check_ok(text_pass_taught(&pass, student, teacher, &e, 0, N, args, &d));
    for (int t = 0; t < N * ANSWER; t++) seeds[t] = 1.0 / (N * ANSWER);
    tensor_seed_grad(pass.tape, d.loss, seeds);
    check_ok(tape_backward(pass.tape));
    for (size_t i = 0; i < student->params.n; i++) {
        const Param *param = &student->params.items[i];
        double square, norm;
        device_reference()->sum_squares(param_grad(param), &square);
        squares += square;
        norm = sqrt(square);
        if (strcmp(param->name, "model.embed_tokens.weight") == 0)
            for (int64_t c = 0; c < student->config.hidden_size; c++) first += pow(tensor_get(param_grad(param), c), 2);
        if (!json_object_get(norms, param->name)) continue;
        const double want = json_number_value(json_object_get(norms, param->name));
        check_close_f64(param->name, &norm, &want, 1, 0, 1e-9);
    }
    const double all = sqrt(squares - first), want = json_number_value(json_object_get(golden, "grad_norm"));
    check_close_f64("all", &all, &want, 1, 0, 1e-9);
    tape_free(pass.tape);
    text_pass_release(&pass);
    model_free(student);
    model_free(teacher);
    json_decref(expected);
}

TEST(gradients_equal_the_reference) {
    DivergenceArgs args = {.kind = DIVERGENCE_JSD, .temperature = 0.9, .alpha = 1, .beta = 0.5, .scaling = 1, .teacher_scaling = 1};
    golden_gradients("gkd-beta0.5", &args);
    args.kind = DIVERGENCE_REVERSE_KL;
    args.temperature = 1;
    golden_gradients("gkd-beta1.0", &args);
}

TEST(a_mixture_equals_the_reference) {
    golden_step("gkd-beta0.5", "rl.beta=0.5\nrl.temperature=0.9\n", true, 1e-10);
    golden_step("gkd-beta0.5", "rl.beta=0.5\nrl.temperature=0.9\n", false, 1e-5);
}
TEST(the_reverse_divergence_equals_the_reference) {
    golden_step("gkd-beta1.0", "rl.beta=1\n", true, 1e-10);
    golden_step("gkd-beta1.0", "rl.beta=1\n", false, 1e-5);
}

static const char own_rows[] = "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}\n{\"prompt\": \"one, two,\", \"completion\": \" three\"}\n"
                               "{\"prompt\": \"a b\", \"completion\": \" c d e f\"}\n{\"prompt\": \"red\", \"completion\": \" green blue\"}\n";

static Status small_run(const char *name, const char *settings) {
    TrainResult result;
    Recipe *recipe =
        recipe_of_lines("model.path=recipes/demo/model\nmodel.compute=f32\nlora.rank=4\ndata.train=%s\nrl.algorithm=gkd\nrl.num_generations=2\n"
                        "rl.prompts_per_step=4\ngenerate.max_new_tokens=6\ntrain.max_steps=6\ntrain.learning_rate=0.003\noutput=%s\n%s",
                        temp_text(test_folder, "own.jsonl", own_rows), temp_file(test_folder, name), settings);
    Status status = text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &(RewardOptions){0}, &result);
    recipe_free(recipe);
    return status;
}

#define SELF "distil.teacher=recipes/demo/model\n"

/* A new adapter adds nothing, so the divergence from the same model is zero at first. */
TEST(completions_come_from_both) {
    double own[6], divergence[6], lengths[6], sum = 0;
    check_ok(small_run("both", SELF "rl.beta=0.5\n"));
    assert_int_equal(metrics_read(temp_file(test_folder, "both"), "own_samples", own, 6), 6);
    assert_int_equal(metrics_read(temp_file(test_folder, "both"), "divergence", divergence, 6), 6);
    assert_int_equal(metrics_read(temp_file(test_folder, "both"), "completion_length", lengths, 6), 6);
    for (int i = 0; i < 6; i++) {
        sum += own[i];
        assert_true(lengths[i] > 0);
    }
    assert_true(sum > 0 && sum < 6);
    check_close(divergence[0], 0, 1e-6);
}

TEST(what_is_refused) {
    check_status(small_run("none", ""), ST_CONFIG);
    check_text("needs a teacher");
    check_status(small_run("eval", SELF "data.eval_split=0.25\n"), ST_CONFIG);
    check_text("held-out prompts");
    TrainResult result;
    Recipe *recipe = recipe_of_lines("model.path=recipes/demo/model\nlora.rank=4\ndata.train=%s\nrl.algorithm=gkd\noutput=%s\n" SELF,
                                     temp_text(test_folder, "prompts.jsonl", "{\"prompt\": \"2 + 2 =\"}\n"), temp_file(test_folder, "prompts"));
    check_status(text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &(RewardOptions){0}, &result), ST_INPUT);
    check_text("no answer");
    recipe_free(recipe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_the_reference),
        cmocka_unit_test(a_mixture_equals_the_reference),
        cmocka_unit_test(the_reverse_divergence_equals_the_reference),
        cmocka_unit_test(completions_come_from_both),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
