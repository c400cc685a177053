/* Supervised fine-tuning: equal to the reference library step by step, independent of how a step is split, and it learns. */
#include "sft/sft.h"
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[256];

static int make_folder(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    temp_dir_remove(folder);
    return 0;
}

/* ---- running recipes ---- */

enum { MAX_OVERRIDES = 32 };
/* A recipe as overrides only; those of `extra` win. */
static Recipe *recipe_of(const char *text, const char *const *extra, size_t n_extra) {
    const char *overrides[MAX_OVERRIDES];
    char *copy = strdup(text);
    size_t n = 0;
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) overrides[n++] = line;
    for (size_t i = 0; i < n_extra; i++) overrides[n++] = extra[i];
    Recipe *recipe;
    check_ok(recipe_read(NULL, overrides, n, &recipe));
    free(copy);
    return recipe;
}

static Status run_recipe(const char *text, const char *const *extra, size_t n_extra, bool resume, TrainResult *result) {
    Recipe *recipe = recipe_of(text, extra, n_extra);
    Status status = sft_run(&(SftConfig){.recipe = recipe, .resume = resume}, result);
    recipe_free(recipe);
    return status;
}

/* Numbers of one key in metrics.jsonl, in order; rows without it are left out. */
static size_t read_metric(const char *dir, const char *key, double *values, size_t cap) {
    Lines lines;
    Slice line;
    size_t n = 0;
    check_ok(lines_open(&lines, temp_file(dir, "metrics.jsonl")));
    while (lines_next(&lines, &line)) {
        json_t *row;
        check_ok(json_read_text(line.data, line.len, "metrics.jsonl", &row));
        const json_t *value = json_object_get(row, key);
        if (value && n < cap) values[n++] = json_number_value(value);
        json_decref(row);
    }
    check_ok(lines_close(&lines));
    return n;
}

/* ---- golden runs ---- */

/* The rows of all steps, in order, as a file of ids. */
static void write_golden_rows(const char *path) {
    char source[512];
    json_t *root;
    shared_path("golden/sft/batches.json", source, sizeof source);
    check_ok(json_read_file(source, &root));
    const json_t *rows = json_object_get(root, "rows"), *steps = json_object_get(root, "steps");
    Str text = {0};
    for (size_t s = 0; s < json_array_size(steps); s++) {
        for (size_t m = 0; m < json_array_size(json_array_get(steps, s)); m++) {
            const json_t *batch = json_array_get(json_array_get(steps, s), m);
            for (size_t i = 0; i < json_array_size(batch); i++) {
                char *row = json_dumps(json_array_get(rows, (size_t)json_integer_value(json_array_get(batch, i))), JSON_COMPACT);
                str_printf(&text, "%s\n", row);
                free(row);
            }
        }
    }
    check_ok(file_write_all(path, str_text(&text), text.len));
    str_release(&text);
    json_decref(root);
}

static void compare_tensors(const char *got_path, const char *want_path, double tolerance) {
    Safetensors *got, *want;
    check_ok(safetensors_open(got_path, &got));
    check_ok(safetensors_open(want_path, &want));
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        const StoredTensor *w = &want->tensors[i], *g = safetensors_find(got, w->name);
        if (!g) fail_msg("'%s' is missing", w->name);
        assert_int_equal(stored_count(g), stored_count(w));
        double worst = 0;
        for (int64_t k = 0; k < stored_count(w); k++) worst = fmax(worst, fabs(stored_get(g, k) - stored_get(w, k)));
        if (!(worst <= tolerance)) fail_msg("'%s' is off by %g, allowed %g", w->name, worst, tolerance);
    }
    safetensors_close(got);
    safetensors_close(want);
}

typedef struct GoldenRun { const char *name, *settings, *result; size_t n_steps; } GoldenRun;

static void check_curve(const char *dir, const char *expected_path, size_t n_steps) {
    static const char *const keys[][2] = {{"loss", "loss"}, {"grad_norm", "grad_norm"}, {"learning_rate", "lr"}, {"loss_tokens", "n_tokens"}};
    /* As golden/README.md: 1e-5 relative. The learning rate is the same formula in double: its last bits. */
    static const double tolerances[] = {1e-5, 1e-5, 1e-15, 0};
    json_t *expected;
    check_ok(json_read_file(expected_path, &expected));
    const json_t *steps = json_object_get(expected, "steps");
    assert_int_equal(json_array_size(steps), n_steps);
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        double got[64], want[64];
        assert_int_equal(read_metric(dir, keys[k][0], got, 64), n_steps);
        for (size_t s = 0; s < n_steps; s++) want[s] = json_number_value(json_object_get(json_array_get(steps, s), keys[k][1]));
        check_close_f64(keys[k][0], got, want, n_steps, 0, tolerances[k]);
    }
    json_decref(expected);
}

static void golden_run(const GoldenRun *run) {
    char expected[512], base[512], initial[512], final[512], name[128];
    if (!shared_path("golden/sft/batches.json", expected, sizeof expected)) skip();
    snprintf(name, sizeof name, "golden/sft/%s/expected.json", run->name);
    shared_path(name, expected, sizeof expected);
    shared_path("golden/models/llama", base, sizeof base);
    char *out = strdup(temp_file(folder, run->name)), *rows = strdup(temp_file(folder, "golden.jsonl"));
    write_golden_rows(rows);
    char output[600], model[600], train[600], adapter[600];
    snprintf(output, sizeof output, "output=%s", out);
    snprintf(model, sizeof model, "model.path=%s", base);
    snprintf(train, sizeof train, "data.train=%s", rows);
    const char *extra[] = {output, model, train, adapter};
    bool full = strcmp(run->name, "full") == 0;
    snprintf(name, sizeof name, "golden/sft/%s/initial", run->name);
    if (full) {
        snprintf(adapter, sizeof adapter, "lora=null");
    } else {
        shared_path(name, initial, sizeof initial);
        snprintf(adapter, sizeof adapter, "model.adapter=%s", initial);
    }
    TrainResult result;
    check_ok(run_recipe(run->settings, extra, COUNT_OF(extra), false, &result));
    check_curve(out, expected, run->n_steps);
    snprintf(name, sizeof name, "golden/sft/%s/%s", run->name, full ? "final.safetensors" : "final/adapter_model.safetensors");
    shared_path(name, final, sizeof final);
    compare_tensors(temp_file(out, run->result), final, 1e-4);
    free(out);
    free(rows);
}

#define GOLDEN_SETTINGS                                                                                                                                  \
    "model.compute=f32\ndata.shuffle=false\ntrain.batch_size=2\ntrain.gradient_accumulation_steps=2\ntrain.weight_decay=0.01\ntrain.lr_scheduler=cosine\n"

static void lora_curve_equals_the_reference(void **state) {
    (void)state;
    golden_run(&(GoldenRun){"lora", GOLDEN_SETTINGS "lora.lr_ratio=1\ntrain.learning_rate=0.01\ntrain.warmup_steps=3\ntrain.max_steps=20\n", "adapter/adapter_model.safetensors", 20});
}

static void lora_plus_curve_equals_the_reference(void **state) {
    (void)state;
    golden_run(&(GoldenRun){"lora-plus", GOLDEN_SETTINGS "lora.lr_ratio=16\ntrain.learning_rate=0.001\ntrain.warmup_steps=3\ntrain.max_steps=20\n",
                            "adapter/adapter_model.safetensors", 20});
}

static void full_curve_equals_the_reference(void **state) {
    (void)state;
    golden_run(&(GoldenRun){"full", GOLDEN_SETTINGS "train.learning_rate=0.001\ntrain.warmup_steps=2\ntrain.max_steps=10\n", "model/model.safetensors", 10});
}

/* ---- the objective ---- */

static void objectives_equal_the_reference(void **state) {
    (void)state;
    char path[512];
    json_t *root;
    if (!shared_path("golden/losses/token.json", path, sizeof path)) skip();
    check_ok(json_read_file(path, &root));
    const json_t *logits = json_object_get(root, "logits"), *labels = json_object_get(root, "labels"), *cases = json_object_get(root, "cases");
    size_t n = json_array_size(labels);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *item = json_array_get(cases, c);
        SftLoss loss = {.dft = strcmp(json_string_value(json_object_get(item, "loss_type")), "dft") == 0,
                        .label_smoothing = json_number_value(json_object_get(item, "label_smoothing"))};
        double sum = 0, count = 0;
        for (int pass = 0; pass < 2; pass++) { /* the count is needed for the gradients */
            for (size_t i = 0; i < n; i++) {
                json_int_t label = json_integer_value(json_array_get(labels, i));
                const json_t *row = json_array_get(logits, i), *grad = json_array_get(json_object_get(item, "grad_logits"), i);
                if (label == LABEL_NONE) continue;
                size_t width = json_array_size(row);
                double most = -1e300, total = 0, mean = 0, d_logprob, d_mean, z[64] = {0};
                for (size_t v = 0; v < width; v++) z[v] = json_number_value(json_array_get(row, v));
                for (size_t v = 0; v < width; v++) most = fmax(most, z[v]);
                for (size_t v = 0; v < width; v++) total += exp(z[v] - most);
                double logsumexp = most + log(total);
                for (size_t v = 0; v < width; v++) mean += (z[v] - logsumexp) / (double)width;
                double value = sft_token_loss(&loss, z[label] - logsumexp, mean, &d_logprob, &d_mean);
                if (pass == 0) {
                    sum += value;
                    count++;
                    continue;
                }
                for (size_t v = 0; v < width; v++) {
                    double p = exp(z[v] - logsumexp), got = (d_logprob * ((v == (size_t)label) - p) + d_mean * (1 / (double)width - p)) / count;
                    double want = json_number_value(json_array_get(grad, v));
                    check_close(got, want, 1e-12);
                }
            }
        }
        check_close(sum / count, json_number_value(json_object_get(item, "loss")), 1e-12);
    }
    json_decref(root);
}

/* ---- a tiny model of our own ---- */

static const char tiny_config[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 96, \"hidden_size\": 32, \"intermediate_size\": 64, "
                                  "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5, "
                                  "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"bos_token_id\": 1, \"eos_token_id\": 2}";

/* Rows of random ids; the same `seed` gives the same rows. */
static void write_rows(const char *path, size_t n, uint64_t seed) {
    Str text = {0};
    RngKey key = rng_key(seed, RNG_TEST, 0);
    uint64_t draw = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len = 6 + (size_t)rng_below(key, draw++, 9), prompt = 2 + (size_t)rng_below(key, draw++, 3);
        Str labels = {0};
        str_append(&text, "{\"input_ids\": [");
        for (size_t t = 0; t < len; t++) {
            int id = t == 0 ? 3 + (int)i % 90 : 3 + (int)rng_below(key, draw++, 93);
            str_printf(&text, "%s%d", t ? ", " : "", id);
            str_printf(&labels, "%s%d", t ? ", " : "", t < prompt ? -100 : id);
        }
        str_printf(&text, "], \"labels\": [%s]}\n", str_text(&labels));
        str_release(&labels);
    }
    check_ok(file_write_all(path, str_text(&text), text.len));
    str_release(&text);
}

/* Settings that name the tiny model of `seed` and 32 rows; the caller frees. */
static char *tiny_settings(const char *name, uint64_t seed, const char *settings) {
    char model[300], rows[300];
    snprintf(model, sizeof model, "%s/model-%llu", folder, (unsigned long long)seed);
    snprintf(rows, sizeof rows, "%s/rows-%llu.jsonl", folder, (unsigned long long)seed);
    if (!dir_exists(model)) check_ok(model_write_random(model, tiny_config, DT_F32, seed, 0.1));
    write_rows(rows, 32, seed);
    Str text = {0};
    str_printf(&text, "model.path=%s\nmodel.compute=f32\ndata.train=%s\noutput=%s/%s\nseed=%llu\n%s", model, rows, folder, name, (unsigned long long)seed, settings);
    return text.data;
}

static void run_tiny(const char *name, uint64_t seed, const char *settings, bool resume, Status wanted, TrainResult *result) {
    char *text = tiny_settings(name, seed, settings);
    check_status(run_recipe(text, NULL, 0, resume, result), wanted);
    free(text);
}

static void rows_are_learned(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        char name[32];
        snprintf(name, sizeof name, "learned-%llu", (unsigned long long)seed);
        TrainResult result;
        run_tiny(name, seed, "lora.rank=16\nlora.modules_to_save=[lm_head, embed_tokens]\ntrain.learning_rate=1e-2\ntrain.epochs=100\ntrain.batch_size=16\ntrain.warmup_steps=0.1\n", false,
                 ST_OK, &result);
        assert_int_equal(result.steps, 200);
        assert_true(result.first_loss > 4); /* ln 96 = 4.56 */
        if (!(result.last_loss < 0.02)) fail_msg("seed %llu: the loss is still %g", (unsigned long long)seed, result.last_loss);
    }
}

static void compare_runs(const char *a, const char *b, const char *result_file, double tolerance) {
    double loss_a[64], loss_b[64], norm_a[64], norm_b[64];
    char *dir_a = strdup(temp_file(folder, a)), *dir_b = strdup(temp_file(folder, b));
    size_t n = read_metric(dir_a, "loss", loss_a, 64);
    assert_int_equal(read_metric(dir_b, "loss", loss_b, 64), n);
    assert_true(n > 3);
    read_metric(dir_a, "grad_norm", norm_a, 64);
    read_metric(dir_b, "grad_norm", norm_b, 64);
    check_close_f64("loss", loss_b, loss_a, n, tolerance, tolerance);
    check_close_f64("grad_norm", norm_b, norm_a, n, tolerance, 10 * tolerance);
    compare_tensors(temp_file(dir_b, result_file), temp_file(dir_a, result_file), tolerance == 0 ? 0 : 1e-4);
    free(dir_a);
    free(dir_b);
}

#define SHORT_RUN "lora.rank=4\ntrain.learning_rate=1e-3\ntrain.max_steps=6\n"
static const char adapter_file[] = "adapter/adapter_model.safetensors";

static void split_of_a_step_does_not_matter(void **state) {
    (void)state;
    TrainResult result;
    run_tiny("split-8x1", 5, SHORT_RUN "train.batch_size=8\n", false, ST_OK, &result);
    run_tiny("split-1x8", 5, SHORT_RUN "train.batch_size=1\ntrain.gradient_accumulation_steps=8\n", false, ST_OK, &result);
    run_tiny("split-3x3", 5, SHORT_RUN "train.batch_size=2\ntrain.gradient_accumulation_steps=4\n", false, ST_OK, &result);
    compare_runs("split-8x1", "split-1x8", adapter_file, 1e-6);
    compare_runs("split-8x1", "split-3x3", adapter_file, 1e-6);
}

static void checkpointed_layers_give_the_same(void **state) {
    (void)state;
    TrainResult result;
    run_tiny("layers-kept", 6, SHORT_RUN "lora.dropout=0.1\n", false, ST_OK, &result);
    run_tiny("layers-again", 6, SHORT_RUN "lora.dropout=0.1\ntrain.checkpointing=layer\n", false, ST_OK, &result);
    compare_runs("layers-kept", "layers-again", adapter_file, 1e-6);
    run_tiny("full-kept", 6, "train.max_steps=6\ntrain.learning_rate=1e-3\n", false, ST_OK, &result);
    run_tiny("full-again", 6, "train.max_steps=6\ntrain.learning_rate=1e-3\ntrain.checkpointing=layer\n", false, ST_OK, &result);
    compare_runs("full-kept", "full-again", "model/model.safetensors", 1e-6);
}

static void same_seed_same_bytes_other_seed_other_run(void **state) {
    (void)state;
    TrainResult result, other;
    static const char settings[] = SHORT_RUN "lora.dropout=0.2\ntrain.batch_tokens=40\n";
    run_tiny("again-1", 7, settings, false, ST_OK, &result);
    run_tiny("again-2", 7, settings, false, ST_OK, &other);
    compare_runs("again-1", "again-2", adapter_file, 0);
    run_tiny("again-3", 8, settings, false, ST_OK, &other);
    assert_true(result.last_loss != other.last_loss);
}

/* ---- evaluation ---- */

static void evaluation_early_stopping_and_best_weights(void **state) {
    (void)state;
    TrainResult result;
    /* Random rows cannot be generalised: the evaluation gets worse while training goes on. */
    run_tiny("stopped", 9, "lora.rank=16\ntrain.learning_rate=2e-2\ntrain.max_steps=60\ntrain.batch_size=28\ntrain.eval_every=2\ntrain.early_stopping=2\ndata.eval_split=0.25\n", false,
             ST_OK, &result);
    assert_true(result.early_stopped);
    assert_true(result.steps < 60);
    assert_int_equal(result.best_step, result.steps - 4);
    double losses[64], perplexities[64];
    char *dir = strdup(temp_file(folder, "stopped"));
    size_t n = read_metric(dir, "eval_loss", losses, 64);
    assert_int_equal(n, result.steps / 2);
    assert_true(losses[n - 3] == result.best_eval_loss && losses[n - 1] == result.eval_loss);
    assert_int_equal(read_metric(dir, "eval_perplexity", perplexities, 64), n);
    check_close(perplexities[0], exp(losses[0]), 1e-12 * perplexities[0]);
    free(dir);
    /* What was written are the weights of the best evaluation: the same run, ended there without a schedule in its way. */
    char settings[256];
    snprintf(settings, sizeof settings,
             "lora.rank=16\ntrain.learning_rate=2e-2\ntrain.max_steps=60\ntrain.batch_size=28\ntrain.eval_every=2\ntrain.early_stopping=1\ndata.eval_split=0.25\n");
    run_tiny("stopped-sooner", 9, settings, false, ST_OK, &result);
    compare_tensors(temp_file(folder, "stopped-sooner/adapter/adapter_model.safetensors"), temp_file(folder, "stopped/adapter/adapter_model.safetensors"), 0);
}

/* ---- what is refused ---- */

static void divergence_names_step_tensor_and_rows(void **state) {
    (void)state;
    TrainResult result;
    run_tiny("nan", 10, "train.learning_rate=1e30\ntrain.max_grad_norm=0\ntrain.optimizer=sgd\ntrain.max_steps=20\ntrain.batch_size=2\n", false, ST_NUMERIC, &result);
    check_text("is not finite in step ");
    check_text("'model.");
    check_text("rows-10.jsonl line ");
    assert_false(dir_exists(temp_file(folder, "nan/model")));
}

static void refusals_leave_nothing_behind(void **state) {
    (void)state;
    TrainResult result;
    run_tiny("refused", 11, "lora.target_modules=[nothing]\n", false, ST_CONFIG, &result);
    run_tiny("refused", 11, "model.path=missing-model\n", false, ST_INPUT, &result);
    run_tiny("refused", 11, "data.train=missing.jsonl\n", false, ST_INPUT, &result);
    run_tiny("refused", 11, "data.max_length=4\n", false, ST_INPUT, &result);
    check_text("tokens, more than the 4 of 'data.max_length'");
    run_tiny("refused", 11, "model.adapter=somewhere\n", false, ST_CONFIG, &result);
    char path[300];
    snprintf(path, sizeof path, "%s/untrained.jsonl", folder);
    temp_text(folder, "untrained.jsonl", "{\"input_ids\": [4, 5], \"labels\": [-100, 5]}\n{\"input_ids\": [4, 5], \"labels\": [-100, -100]}\n");
    char settings[400];
    snprintf(settings, sizeof settings, "data.train=%s\ntrain.batch_size=1\ndata.shuffle=false\n", path);
    run_tiny("refused", 11, settings, false, ST_INPUT, &result);
    check_text("no token of the batch of step 2 is trained");
    check_text("untrained.jsonl line 2");
    assert_false(dir_exists(temp_file(folder, "refused")));
}

static void dry_run_writes_nothing(void **state) {
    (void)state;
    char *text = tiny_settings("dry", 12, SHORT_RUN);
    Recipe *recipe = recipe_of(text, NULL, 0);
    TrainResult result;
    check_ok(sft_run(&(SftConfig){.recipe = recipe, .dry_run = true}, &result));
    assert_false(dir_exists(temp_file(folder, "dry")));
    recipe_free(recipe);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_curve_equals_the_reference),
        cmocka_unit_test(lora_plus_curve_equals_the_reference),
        cmocka_unit_test(full_curve_equals_the_reference),
        cmocka_unit_test(objectives_equal_the_reference),
        cmocka_unit_test(rows_are_learned),
        cmocka_unit_test(split_of_a_step_does_not_matter),
        cmocka_unit_test(checkpointed_layers_give_the_same),
        cmocka_unit_test(same_seed_same_bytes_other_seed_other_run),
        cmocka_unit_test(evaluation_early_stopping_and_best_weights),
        cmocka_unit_test(divergence_names_step_tensor_and_rows),
        cmocka_unit_test(refusals_leave_nothing_behind),
        cmocka_unit_test(dry_run_writes_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
