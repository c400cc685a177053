/* SPDX-License-Identifier: Apache-2.0 */
/* Supervised fine-tuning: equal to the reference library step by step, independent of how a step is split, and it learns. */
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/locked_device.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- running recipes ---- */

/* A recipe as overrides only; those of `extra` win. */
static Recipe *recipe_of(const char *text, const char *const *extra, size_t n_extra) {
    Str lines = {0};
    str_append(&lines, text);
    for (size_t i = 0; i < n_extra; i++) str_printf(&lines, "\n%s", extra[i]);
    Recipe *recipe = recipe_of_lines("%s", str_text(&lines));
    str_release(&lines);
    return recipe;
}

static Status run_recipe(const char *text, const char *const *extra, size_t n_extra, bool resume, TrainResult *result) {
    Recipe *recipe = recipe_of(text, extra, n_extra);
    Status status = sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume}, result);
    recipe_free(recipe);
    return status;
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
    WeightFile *got, *want;
    check_ok(weight_file_open(got_path, &got));
    check_ok(weight_file_open(want_path, &want));
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        const StoredTensor *w = &want->tensors[i], *g = weight_file_find(got, w->name);
        if (!g) fail_msg("'%s' is missing", w->name);
        assert_int_equal(g->count, w->count);
        double worst = 0;
        for (int64_t k = 0; k < w->count; k++) worst = fmax(worst, fabs(stored_get(g, k) - stored_get(w, k)));
        if (!(worst <= tolerance)) fail_msg("'%s' is off by %g, allowed %g", w->name, worst, tolerance);
    }
    weight_file_close(got);
    weight_file_close(want);
}

typedef struct GoldenRun {
    const char *name, *settings, *result;
    size_t n_steps;
} GoldenRun;

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
        assert_int_equal(metrics_read(dir, keys[k][0], got, 64), n_steps);
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
    char *out = strdup(temp_file(test_folder, run->name)), *rows = strdup(temp_file(test_folder, "golden.jsonl"));
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
    /* Steps of up to 0.01, and Adam's go by a gradient's sign where that is mere rounding: measured 1.04e-4 on AVX-512 */
    compare_tensors(temp_file(out, run->result), final, 3e-4);
    free(out);
    free(rows);
}

#define GOLDEN_SETTINGS \
    "model.compute=f32\ndata.shuffle=false\ntrain.batch_size=2\ntrain.gradient_accumulation_steps=2\ntrain.weight_decay=0.01\ntrain.lr_scheduler=cosine\n"

TEST(lora_curve_equals_the_reference) {
    golden_run(&(GoldenRun){"lora", GOLDEN_SETTINGS "lora.lr_ratio=1\ntrain.learning_rate=0.01\ntrain.warmup_steps=3\ntrain.max_steps=20\n",
                            "adapter/adapter_model.safetensors", 20});
}

TEST(lora_plus_curve_equals_the_reference) {
    golden_run(&(GoldenRun){"lora-plus", GOLDEN_SETTINGS "lora.lr_ratio=16\ntrain.learning_rate=0.001\ntrain.warmup_steps=3\ntrain.max_steps=20\n",
                            "adapter/adapter_model.safetensors", 20});
}

TEST(full_curve_equals_the_reference) {
    golden_run(
        &(GoldenRun){"full", GOLDEN_SETTINGS "train.learning_rate=0.001\ntrain.warmup_steps=2\ntrain.max_steps=10\n", "model/model.safetensors", 10});
}

/* ---- the objective ---- */

TEST(objectives_equal_the_reference) {
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

/* Logits 2, 1, 0.5 with target 0: probabilities .62853172, .23122390, .14024436. */
TEST(objectives_by_hand) {
    double p[3], sum = exp(2) + exp(1) + exp(0.5), z[3] = {2, 1, 0.5}, mean = 0, d_logprob, d_mean;
    for (int v = 0; v < 3; v++) p[v] = exp(z[v]) / sum, mean += log(p[v]) / 3;
    check_close(p[0], 0.62853172, 1e-8);
    check_close(sft_token_loss(&(SftLoss){0}, log(p[0]), mean, &d_logprob, &d_mean), 0.4643687841, 1e-10);
    check_close(d_logprob, -1, 0);
    check_close(d_mean, 0, 0);
    /* A fifth of the target spread over all three: .8 x .4643687841 + .2 x (.4643687841 + 1.4643687841 + 1.9643687841) / 3. */
    check_close(sft_token_loss(&(SftLoss){.label_smoothing = 0.2}, log(p[0]), mean, &d_logprob, &d_mean), 0.6310354508, 1e-10);
    check_close(d_logprob, -0.8, 1e-15);
    check_close(d_mean, -0.2, 1e-15);
    check_close(d_logprob * (1 - p[0]) + d_mean * (1.0 / 3 - p[0]), p[0] - (0.8 + 0.2 / 3), 1e-15); /* by the first logit: probability - target */
    /* .62853172 x .4643687841, and its gradient as if the probability were a constant. */
    check_close(sft_token_loss(&(SftLoss){.dft = true}, log(p[0]), mean, &d_logprob, &d_mean), 0.2918705111, 1e-9);
    check_close(d_logprob, -p[0], 1e-15);
    check_close(d_mean, 0, 0);
}

/* ---- a tiny model of our own ---- */

static const char tiny_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 96, \"hidden_size\": 32, \"intermediate_size\": 64, "
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
    snprintf(model, sizeof model, "%s/model-%llu", test_folder, (unsigned long long)seed);
    snprintf(rows, sizeof rows, "%s/rows-%llu.jsonl", test_folder, (unsigned long long)seed);
    if (!dir_exists(model)) check_ok(model_write_random(model, tiny_config, DT_F32, seed, 0.1));
    write_rows(rows, 32, seed);
    Str text = {0};
    str_printf(&text, "model.path=%s\nmodel.compute=f32\ndata.train=%s\noutput=%s/%s\nseed=%llu\n%s", model, rows, test_folder, name,
               (unsigned long long)seed, settings);
    return text.data;
}

static void run_tiny(const char *name, uint64_t seed, const char *settings, bool resume, Status wanted, TrainResult *result) {
    char *text = tiny_settings(name, seed, settings);
    check_status(run_recipe(text, NULL, 0, resume, result), wanted);
    free(text);
}

TEST(rows_are_learned) {
    for (uint64_t seed = 1; seed <= 3; seed++) {
        char name[32];
        snprintf(name, sizeof name, "learned-%llu", (unsigned long long)seed);
        TrainResult result;
        run_tiny(
            name, seed,
            "lora.rank=16\nlora.modules_to_save=[lm_head, embed_tokens]\ntrain.learning_rate=1e-2\ntrain.epochs=100\ntrain.batch_size=16\ntrain.warmup_steps=0.1\n",
            false, ST_OK, &result);
        assert_int_equal(metric_get(&result.numbers, "steps"), 200);
        assert_true(metric_get(&result.numbers, "first_loss") > 4); /* ln 96 = 4.56 */
        if (!(metric_get(&result.numbers, "last_loss") < 0.02))
            fail_msg("seed %llu: the loss is still %g", (unsigned long long)seed, metric_get(&result.numbers, "last_loss"));
    }
}

static void compare_runs(const char *a, const char *b, const char *result_file, double tolerance) {
    double loss_a[64], loss_b[64], norm_a[64], norm_b[64];
    char *dir_a = strdup(temp_file(test_folder, a)), *dir_b = strdup(temp_file(test_folder, b));
    size_t n = metrics_read(dir_a, "loss", loss_a, 64);
    assert_int_equal(metrics_read(dir_b, "loss", loss_b, 64), n);
    assert_true(n > 3);
    metrics_read(dir_a, "grad_norm", norm_a, 64);
    metrics_read(dir_b, "grad_norm", norm_b, 64);
    check_close_f64("loss", loss_b, loss_a, n, tolerance, tolerance);
    check_close_f64("grad_norm", norm_b, norm_a, n, tolerance, 10 * tolerance);
    compare_tensors(temp_file(dir_b, result_file), temp_file(dir_a, result_file), tolerance == 0 ? 0 : 1e-4);
    free(dir_a);
    free(dir_b);
}

#define SHORT_RUN "lora.rank=4\ntrain.learning_rate=1e-3\ntrain.max_steps=6\n"
static const char adapter_file[] = "adapter/adapter_model.safetensors";

TEST(split_of_a_step_does_not_matter) {
    TrainResult result;
    run_tiny("split-8x1", 5, SHORT_RUN "train.batch_size=8\n", false, ST_OK, &result);
    run_tiny("split-1x8", 5, SHORT_RUN "train.batch_size=1\ntrain.gradient_accumulation_steps=8\n", false, ST_OK, &result);
    run_tiny("split-3x3", 5, SHORT_RUN "train.batch_size=2\ntrain.gradient_accumulation_steps=4\n", false, ST_OK, &result);
    compare_runs("split-8x1", "split-1x8", adapter_file, 1e-6);
    compare_runs("split-8x1", "split-3x3", adapter_file, 1e-6);
}

/* Eight lanes of a batch of eight rows, and of eight batches of one row, are the same sums; also in the last step of an epoch, which is short. */
TEST(lanes_decide_the_bits) {
    TrainResult result;
    run_tiny("lanes-8x1", 5, SHORT_RUN "train.batch_size=8\nparallel.lanes=8\n", false, ST_OK, &result);
    run_tiny("lanes-1x8", 5, SHORT_RUN "train.batch_size=1\ntrain.gradient_accumulation_steps=8\nparallel.lanes=8\n", false, ST_OK, &result);
    run_tiny("lanes-auto", 5, SHORT_RUN "train.batch_size=1\ntrain.gradient_accumulation_steps=8\n", false, ST_OK, &result);
    run_tiny("lanes-1", 5, SHORT_RUN "train.batch_size=1\ntrain.gradient_accumulation_steps=8\nparallel.lanes=1\n", false, ST_OK, &result);
    compare_runs("lanes-8x1", "lanes-1x8", adapter_file, 0);
    compare_runs("lanes-1x8", "lanes-auto", adapter_file, 0);
    compare_runs("lanes-auto", "lanes-1", adapter_file, 1e-6);
}

TEST(checkpointed_layers_give_the_same) {
    TrainResult result;
    run_tiny("layers-kept", 6, SHORT_RUN "lora.dropout=0.1\n", false, ST_OK, &result);
    run_tiny("layers-again", 6, SHORT_RUN "lora.dropout=0.1\ntrain.checkpointing=layer\n", false, ST_OK, &result);
    run_tiny("layers-some", 6, SHORT_RUN "lora.dropout=0.1\ntrain.checkpointing=selective\n", false, ST_OK, &result);
    compare_runs("layers-kept", "layers-again", adapter_file, 0);
    compare_runs("layers-kept", "layers-some", adapter_file, 0);
    run_tiny("full-kept", 6, "train.max_steps=6\ntrain.learning_rate=1e-3\n", false, ST_OK, &result);
    run_tiny("full-again", 6, "train.max_steps=6\ntrain.learning_rate=1e-3\ntrain.checkpointing=layer\n", false, ST_OK, &result);
    compare_runs("full-kept", "full-again", "model/model.safetensors", 0);
}

/* ---- train.max_memory ---- */

typedef struct PlannedMemory {
    double total, activations;
    int64_t part_tokens;
    char checkpointing[16];
} PlannedMemory;

static PlannedMemory planned_memory(const char *name) {
    json_t *started;
    PlannedMemory planned = {0};
    check_ok(json_read_file(temp_file(temp_file(test_folder, name), "started.json"), &started));
    const json_t *memory = json_object_get(started, "memory");
    planned.total = json_number_value(json_object_get(memory, "total"));
    planned.activations = json_number_value(json_object_get(memory, "activations"));
    planned.part_tokens = json_integer_value(json_object_get(memory, "part_tokens"));
    snprintf(planned.checkpointing, sizeof planned.checkpointing, "%s", json_string_value(json_object_get(memory, "checkpointing")));
    json_decref(started);
    return planned;
}

/* Rows of 1 to 4 times 600 tokens, 16 of them in a step: what their activations take is far more than anything that differs from run to run. */
static void run_limited(const char *name, double bytes, const char *more, bool resume, Status wanted) {
    char rows[300];
    Str text = {0}, settings = {0};
    snprintf(rows, sizeof rows, "%s/rows-long.jsonl", test_folder);
    for (int i = 0; i < 64; i++) {
        str_append(&text, "{\"input_ids\": [");
        for (int t = 0; t < 600 * (1 + i % 4); t++) str_printf(&text, "%s%d", t ? ", " : "", 3 + (i * 31 + t * 7 + t * t % 11) % 93);
        str_append(&text, "]}\n");
    }
    check_ok(file_write_all(rows, str_text(&text), text.len));
    str_printf(&settings, SHORT_RUN "lora.dropout=0.1\ntrain.neftune_alpha=1\ntrain.batch_size=16\ndata.max_length=4096\ndata.train=%s\n%s", rows,
               more);
    if (bytes > 0) str_printf(&settings, "train.max_memory=%.0f\n", bytes);
    TrainResult result;
    run_tiny(name, 9, str_text(&settings), resume, wanted, &result);
    str_release(&settings);
    str_release(&text);
}

TEST(max_memory_is_kept_by_other_means_with_the_same_result) {
    run_limited("memory-none", 1000, "", false, ST_RESOURCE);
    run_limited("memory-odd", 0, "train.max_memory=12 apples\n", false, ST_CONFIG);
#ifdef SANITIZED
    skip(); /* what they take of memory themselves decides there */
#endif
    run_limited("memory-free", 0, "", false, ST_OK);
    PlannedMemory plain = planned_memory("memory-free");
    assert_string_equal(plain.checkpointing, "none");
    assert_true(plain.activations > 0.5 * plain.total);
    run_limited("memory-less", plain.total - 0.1 * plain.activations, "", false, ST_OK);
    PlannedMemory less = planned_memory("memory-less");
    assert_string_equal(less.checkpointing, "selective");
    assert_int_equal(less.part_tokens, 0);
    assert_true(less.activations < 0.9 * plain.activations);
    compare_runs("memory-free", "memory-less", adapter_file, 0);
    run_limited("memory-little", plain.total - 0.8 * plain.activations, "", false, ST_OK);
    PlannedMemory little = planned_memory("memory-little");
    assert_true(little.part_tokens > 0 && little.activations < 0.2 * plain.activations);
    compare_runs("memory-free", "memory-little", adapter_file, 1e-5); /* sums are rounded in another order */
}

TEST(same_seed_same_bytes_other_seed_other_run) {
    TrainResult result, other;
    static const char settings[] = SHORT_RUN "lora.dropout=0.2\ntrain.batch_tokens=40\n";
    run_tiny("again-1", 7, settings, false, ST_OK, &result);
    run_tiny("again-2", 7, settings, false, ST_OK, &other);
    compare_runs("again-1", "again-2", adapter_file, 0);
    run_tiny("again-3", 8, settings, false, ST_OK, &other);
    assert_true(metric_get(&result.numbers, "last_loss") != metric_get(&other.numbers, "last_loss"));
}

/* Nothing above lib/tensor reads or writes the elements of a tensor: this device's memory is closed to the host between calls. */
TEST(a_second_device_trains_to_the_same_bytes) {
    TrainResult result;
    static const char settings[] = SHORT_RUN "lora.dropout=0.2\ntrain.neftune_alpha=10\ntrain.save_every=2\n";
    char *text = tiny_settings("device-2", 7, settings);
    Recipe *recipe = recipe_of(text, NULL, 0);
    Runtime runtime = runtime_of(recipe);
    runtime.device = device_locked();
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime}, &result));
    recipe_free(recipe);
    free(text);
    assert_int_equal(locked_bytes(), 0);
    run_tiny("device-1", 7, settings, false, ST_OK, &result);
    compare_runs("device-1", "device-2", adapter_file, 0);
}

/* ---- objectives in a whole step ---- */

typedef struct Step {
    Model *model;
    Tape *tape;
    Batch batch;
    SftLoss loss;
    double *frozen, *d_logprob, *d_mean;
} Step;

/* The objective of the batch in double, from the log-probabilities alone; dft with its probabilities as they were when `frozen` was filled. */
static double step_loss(Step *step, bool fill, TokenLogprobs *p) {
    Batch *batch = &step->batch;
    int64_t n = batch->n_targets;
    LogprobArgs args = step->model->logprob;
    args.mean = true;
    tape_reset(step->tape);
    Tensor *rows = tensor_view(tape_arena(step->tape), device_reference(), DT_I32, 1, &n, batch->rows),
           *targets = tensor_view(tape_arena(step->tape), device_reference(), DT_I32, 1, &n, batch->targets);
    *p = op_token_logprobs(step->tape, model_forward(step->model, step->tape, &batch->model), step->model->head, rows, targets, &args);
    check_ok(tape_status(step->tape));
    double loss = 0, weights = 0, s = step->loss.label_smoothing;
    for (int64_t i = 0; i < n; i++) {
        double logprob = tensor_get(p->logprob, i), mean = tensor_get(p->mean, i), weight = batch->weights[i];
        if (fill) step->frozen[i] = exp(logprob);
        loss -= weight * (step->loss.dft ? step->frozen[i] * logprob : (1 - s) * logprob + s * mean);
        weights += weight;
    }
    return loss / weights;
}

/* The slope of the loss along its own gradient is the gradient's length: what a step of training reports is compared with central differences of the
 * loss in double. 1e-5: the run computes in f32. */
static void check_objective(const char *name, SftLoss loss, const char *settings) {
    TrainResult result;
    double reported[2];
    char *text = tiny_settings(name, 31, settings), *rows = strdup(temp_file(test_folder, "weighted.jsonl"));
    temp_text(
        test_folder, "weighted.jsonl",
        "{\"input_ids\": [5, 9, 17, 33], \"labels\": [-100, 9, 17, 33], \"weight\": 0.5}\n{\"input_ids\": [40, 41, 7], \"labels\": [-100, -100, 7], \"weight\": 3}\n"
        "{\"input_ids\": [6, 95, 2]}\n");
    char train[400];
    snprintf(train, sizeof train, "data.train=%s", rows);
    check_ok(run_recipe(text, (const char *const[]){train}, 1, false, &result));
    char *dir = strdup(temp_file(test_folder, name));
    assert_int_equal(metrics_read(dir, "loss", reported, 1), 1);
    assert_int_equal(metrics_read(dir, "grad_norm", reported + 1, 1), 1);

    Step step = {.loss = loss, .tape = tape_new(device_reference(), DT_F64, 0)};
    Dataset *dataset;
    check_ok(model_load(temp_file(test_folder, "model-31"), &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = true},
                        &step.model));
    check_ok(dataset_load(&(DataConfig){.max_length = 100, .truncation = "error"}, &(DataSource){.path = rows}, 1, NULL, &dataset));
    check_ok(batch_build(dataset, (const size_t[]){0, 1, 2}, 3, &step.batch));
    int64_t n = step.batch.n_targets;
    step.frozen = malloc(3 * (size_t)n * sizeof *step.frozen);
    step.d_logprob = step.frozen + n;
    step.d_mean = step.frozen + 2 * n;
    TokenLogprobs p;
    double at = step_loss(&step, true, &p), weights = 0;
    check_close(reported[0], at, 1e-5);
    for (int64_t i = 0; i < n; i++) weights += step.batch.weights[i];
    for (int64_t i = 0; i < n; i++) {
        sft_token_loss(&loss, tensor_get(p.logprob, i), tensor_get(p.mean, i), &step.d_logprob[i], &step.d_mean[i]);
        step.d_logprob[i] *= step.batch.weights[i] / weights;
        step.d_mean[i] *= step.batch.weights[i] / weights;
    }
    tensor_seed_grad(step.tape, p.logprob, step.d_logprob);
    tensor_seed_grad(step.tape, p.mean, step.d_mean);
    check_ok(tape_backward(step.tape));
    double norm = params_grad_norm(&step.model->params), slope = 0, h = 1e-5;
    for (int side = -1; side <= 1; side += 2) {
        for (int pass = 1; pass >= -1; pass -= 2) { /* there, and back again */
            if (pass < 0) slope += side * step_loss(&step, false, &p) / (2 * h);
            for (size_t k = 0; k < step.model->params.n; k++) {
                Tensor *tensor = step.model->params.items[k].tensor;
                if (tensor->grad) device_reference()->accumulate(tensor->grad, pass * side * h / norm, 1, tensor);
            }
        }
    }
    check_close(slope, norm, 1e-7 * norm);
    check_close(reported[1], norm, 1e-5 * norm);
    batch_release(&step.batch);
    dataset_free(dataset);
    tape_free(step.tape);
    model_free(step.model);
    free(step.frozen);
    free(dir);
    free(rows);
    free(text);
}

#define ONE_STEP "train.max_steps=1\ntrain.batch_size=1\ntrain.gradient_accumulation_steps=3\ndata.shuffle=false\n"

TEST(gradients_of_objectives_are_exact) {
    check_objective("objective-nll", (SftLoss){0}, ONE_STEP);
    check_objective("objective-smooth", (SftLoss){.label_smoothing = 0.3}, ONE_STEP "train.label_smoothing=0.3\n");
    check_objective("objective-dft", (SftLoss){.dft = true}, ONE_STEP "train.loss=dft\n");
}

/* ---- weights of rows ---- */

static void run_rows(const char *name, const char *rows, const char *settings) {
    TrainResult result;
    char *text = tiny_settings(name, 32, settings), train[400];
    char file[100];
    snprintf(file, sizeof file, "%s.jsonl", name);
    snprintf(train, sizeof train, "data.train=%s", temp_text(test_folder, file, rows));
    check_ok(run_recipe(text, (const char *const[]){train}, 1, false, &result));
    free(text);
}

#define WEIGHT_RUN "lora.rank=4\ntrain.learning_rate=1e-2\ntrain.max_steps=4\ntrain.batch_size=8\ndata.shuffle=false\n"
#define ROW_A "{\"input_ids\": [5, 9, 17, 33, 60, 2]"
#define ROW_B "{\"input_ids\": [40, 41, 7]"

TEST(a_weight_counts_like_copies_of_the_row) {
    run_rows("weight-2", ROW_A "}\n" ROW_B ", \"weight\": 2}\n", WEIGHT_RUN);
    run_rows("weight-copies", ROW_A "}\n" ROW_B "}\n" ROW_B "}\n", WEIGHT_RUN);
    run_rows("weight-scaled", ROW_A ", \"weight\": 0.25}\n" ROW_B ", \"weight\": 0.5}\n", WEIGHT_RUN);
    compare_runs("weight-2", "weight-copies", adapter_file, 1e-6);
    compare_runs("weight-2", "weight-scaled", adapter_file, 1e-6);
    run_rows("weight-none", ROW_A ", \"weight\": 1}\n" ROW_B ", \"weight\": 0}\n", WEIGHT_RUN);
    run_rows("weight-alone", ROW_A "}\n", WEIGHT_RUN);
    compare_runs("weight-alone", "weight-none", adapter_file, 1e-6);
}

/* ---- noise on the embeddings ---- */

/* What NEFTune adds to the embeddings of `ids`, cut into segments of `lengths`. */
static void read_noise(const Model *model, double alpha, const RngKey *keys, const int32_t *ids, const int64_t *lengths, int32_t n_segments,
                       float *noise) {
    Segment segments[4];
    int64_t at = 0, count;
    for (int32_t i = 0; i < n_segments; i++, at += lengths[i - 1]) segments[i] = (Segment){.begin = at, .end = at + lengths[i], .parent = -1};
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = at, .n_segments = n_segments, .segments = segments}};
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    Tensor *plain = model_residual(model, tape, &batch, 0);
    batch.noise = (EmbedNoise){alpha, keys};
    Tensor *noisy = model_residual(model, tape, &batch, 0);
    check_ok(tape_status(tape));
    count = tensor_count(noisy);
    for (int64_t i = 0; i < count; i++) noise[i] = (float)(tensor_get(noisy, i) - tensor_get(plain, i));
    tape_free(tape);
}

TEST(noise_is_uniform_and_belongs_to_the_row) {
    enum { TOKENS = 90, WIDTH = 32 };
    char *text = tiny_settings("noise", 33, "");
    Model *model;
    check_ok(model_load(temp_file(test_folder, "model-33"), &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = 3 + i % 40;
    static float together[TOKENS * WIDTH], alone[TOKENS * WIDTH];
    RngKey keys[2] = {rng_key(1, RNG_NOISE, 4), rng_key(2, RNG_NOISE, 4)};
    read_noise(model, 5, keys, ids, (const int64_t[]){10, 80}, 2, together);
    double most = 5 / sqrt(80.0 * WIDTH), sum = 0, squares = 0, largest = 0;
    for (int64_t i = 10 * WIDTH; i < TOKENS * WIDTH; i++) {
        sum += (double)together[i];
        squares += (double)together[i] * (double)together[i];
        largest = fmax(largest, fabs((double)together[i]));
    }
    double n = 80 * WIDTH; /* standard errors of mean and mean square of 2560 uniform numbers; four of them */
    assert_true(largest <= most * (1 + 1e-5) && largest > 0.99 * most);
    check_close(sum / n, 0, 4 * most / sqrt(3 * n));
    check_close(squares / n, most * most / 3, 4 * most * most * sqrt(4.0 / 45 / n));
    read_noise(model, 5, keys + 1, ids + 10, (const int64_t[]){80}, 1, alone);
    assert_memory_equal(alone, together + 10 * WIDTH, 80 * WIDTH * sizeof(float));
    model_free(model);
    free(text);
}

TEST(noise_does_not_depend_on_the_split_and_ends_with_training) {
    TrainResult plain, noisy;
#define NOISY SHORT_RUN "train.neftune_alpha=10\n"
    run_tiny("noise-8x1", 34, NOISY "train.batch_size=8\n", false, ST_OK, &noisy);
    run_tiny("noise-1x8", 34, NOISY "train.batch_size=1\ntrain.gradient_accumulation_steps=8\n", false, ST_OK, &noisy);
    compare_runs("noise-8x1", "noise-1x8", adapter_file, 1e-6);
    run_tiny("noise-none", 34, SHORT_RUN, false, ST_OK, &plain);
    assert_true(fabs(metric_get(&plain.numbers, "first_loss") - metric_get(&noisy.numbers, "first_loss")) > 1e-4);
#undef NOISY
    static const char still[] = "lora.rank=4\ntrain.learning_rate=0\ntrain.max_steps=2\ndata.eval_split=0.25\n";
    char settings[200];
    snprintf(settings, sizeof settings, "%strain.neftune_alpha=10\n", still);
    run_tiny("still-noise", 34, settings, false, ST_OK, &noisy);
    run_tiny("still-none", 34, still, false, ST_OK, &plain);
    assert_true(metric_get(&noisy.numbers, "eval_loss") == metric_get(&plain.numbers, "eval_loss"));
    assert_true(metric_get(&noisy.numbers, "last_loss") != metric_get(&plain.numbers, "last_loss"));
}

/* ---- evaluation ---- */

TEST(evaluation_early_stopping_and_best_weights) {
    TrainResult result;
    /* Random rows cannot be generalised: the evaluation gets worse while training goes on. */
    run_tiny(
        "stopped", 9,
        "lora.rank=16\ntrain.learning_rate=2e-2\ntrain.max_steps=60\ntrain.batch_size=28\ntrain.eval_every=2\ntrain.early_stopping=2\ndata.eval_split=0.25\n",
        false, ST_OK, &result);
    assert_true(result.early_stopped);
    assert_true(metric_get(&result.numbers, "steps") < 60);
    double losses[64], perplexities[64];
    char *dir = strdup(temp_file(test_folder, "stopped"));
    json_t *finished;
    check_ok(json_read_file(temp_file(dir, "finished.json"), &finished));
    assert_int_equal(json_integer_value(json_object_get(finished, "best_step")), metric_get(&result.numbers, "steps") - 4);
    json_decref(finished);
    size_t n = metrics_read(dir, "eval_loss", losses, 64);
    assert_int_equal(n, metric_get(&result.numbers, "steps") / 2);
    assert_true(losses[n - 3] == metric_get(&result.numbers, "best_eval_loss") && losses[n - 1] == metric_get(&result.numbers, "eval_loss"));
    assert_int_equal(metrics_read(dir, "eval_perplexity", perplexities, 64), n);
    check_close(perplexities[0], exp(losses[0]), 1e-12 * perplexities[0]);
    free(dir);
    /* What was written are the weights of the best evaluation: the same run, ended there without a schedule in its way. */
    char settings[256];
    snprintf(
        settings, sizeof settings,
        "lora.rank=16\ntrain.learning_rate=2e-2\ntrain.max_steps=60\ntrain.batch_size=28\ntrain.eval_every=2\ntrain.early_stopping=1\ndata.eval_split=0.25\n");
    run_tiny("stopped-sooner", 9, settings, false, ST_OK, &result);
    compare_tensors(temp_file(test_folder, "stopped-sooner/adapter/adapter_model.safetensors"),
                    temp_file(test_folder, "stopped/adapter/adapter_model.safetensors"), 0);
}

/* ---- what is refused ---- */

TEST(divergence_names_step_tensor_and_rows) {
    TrainResult result;
    run_tiny("nan", 10, "train.learning_rate=1e30\ntrain.max_grad_norm=0\ntrain.optimizer=sgd\ntrain.max_steps=20\ntrain.batch_size=2\n", false,
             ST_NUMERIC, &result);
    check_text("is not finite in step ");
    check_text("'model.");
    check_text("rows-10.jsonl line ");
    assert_false(dir_exists(temp_file(test_folder, "nan/model")));
}

TEST(refusals_leave_nothing_behind) {
    TrainResult result;
    run_tiny("refused", 11, "lora.target_modules=[nothing]\n", false, ST_CONFIG, &result);
    run_tiny("refused", 11, "model.path=missing-model\n", false, ST_INPUT, &result);
    run_tiny("refused", 11, "data.train=missing.jsonl\n", false, ST_INPUT, &result);
    run_tiny("refused", 11, "data.max_length=4\n", false, ST_INPUT, &result);
    check_text("tokens, more than the 4 of 'data.max_length'");
    run_tiny("refused", 11, "model.adapter=somewhere\n", false, ST_CONFIG, &result);
    char path[300];
    snprintf(path, sizeof path, "%s/untrained.jsonl", test_folder);
    temp_text(test_folder, "untrained.jsonl", "{\"input_ids\": [4, 5], \"labels\": [-100, 5]}\n{\"input_ids\": [4, 5], \"labels\": [-100, -100]}\n");
    char settings[400];
    snprintf(settings, sizeof settings, "data.train=%s\ntrain.batch_size=1\ndata.shuffle=false\n", path);
    run_tiny("refused", 11, settings, false, ST_INPUT, &result);
    check_text("no token of the batch of step 2 is trained");
    check_text("untrained.jsonl line 2");
    assert_false(dir_exists(temp_file(test_folder, "refused")));
}

TEST(dry_run_writes_nothing) {
    char *text = tiny_settings("dry", 12, SHORT_RUN);
    Recipe *recipe = recipe_of(text, NULL, 0);
    TrainResult result;
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.dry_run = true}, &result));
    assert_false(dir_exists(temp_file(test_folder, "dry")));
    recipe_free(recipe);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_curve_equals_the_reference),
        cmocka_unit_test(lora_plus_curve_equals_the_reference),
        cmocka_unit_test(full_curve_equals_the_reference),
        cmocka_unit_test(objectives_equal_the_reference),
        cmocka_unit_test(objectives_by_hand),
        cmocka_unit_test(rows_are_learned),
        cmocka_unit_test(split_of_a_step_does_not_matter),
        cmocka_unit_test(lanes_decide_the_bits),
        cmocka_unit_test(checkpointed_layers_give_the_same),
        cmocka_unit_test(max_memory_is_kept_by_other_means_with_the_same_result),
        cmocka_unit_test(same_seed_same_bytes_other_seed_other_run),
        cmocka_unit_test(a_second_device_trains_to_the_same_bytes),
        cmocka_unit_test(gradients_of_objectives_are_exact),
        cmocka_unit_test(a_weight_counts_like_copies_of_the_row),
        cmocka_unit_test(noise_is_uniform_and_belongs_to_the_row),
        cmocka_unit_test(noise_does_not_depend_on_the_split_and_ends_with_training),
        cmocka_unit_test(evaluation_early_stopping_and_best_weights),
        cmocka_unit_test(divergence_names_step_tensor_and_rows),
        cmocka_unit_test(refusals_leave_nothing_behind),
        cmocka_unit_test(dry_run_writes_nothing),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
