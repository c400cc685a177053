/* SPDX-License-Identifier: Apache-2.0 */
/* Run directories and checkpoints: taken, refused, damaged, killed, resumed. */
#include "lib/base/system.h"
#include "lib/run/run_parts.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/durable.h"
#include "tests/support/runs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- checkpoints of a few tensors ---- */

static Recipe *recipe_for(const char *name) {
    char output[400];
    snprintf(output, sizeof output, "output=%s/%s", test_folder, name);
    const char *overrides[] = {output};
    Recipe *recipe;
    check_ok(recipe_read(NULL, overrides, 1, &recipe));
    return recipe;
}

typedef struct Things {
    Arena *arena;
    CheckpointItem items[2];
} Things;

static Things things_of(double value) {
    Things things = {.arena = arena_new(0)};
    const char *names[] = {"weight/a", "state0/a"};
    for (int i = 0; i < 2; i++) {
        Tensor *tensor = tensor_new(things.arena, device_reference(), DT_F32, 2, (int64_t[]){37, 29});
        for (int64_t k = 0; k < tensor_count(tensor); k++) tensor_set(tensor, k, value + i + (double)k / 1024);
        things.items[i] = (CheckpointItem){.name = names[i], .tensor = tensor};
    }
    return things;
}

static Status save_step(Run *run, int64_t step, int64_t keep) {
    Things things = things_of((double)step);
    json_t *state = json_pack("{s:I, s:f}", "step", (json_int_t)step, "loss", 0.1 * (double)step);
    Status status = checkpoint_save(run, step, things.items, 2, state, keep);
    json_decref(state);
    arena_free(things.arena);
    return status;
}

static void check_load(Run *run, int64_t step) {
    Things want = things_of((double)step), got = things_of(-1);
    json_t *state;
    check_ok(checkpoint_load(run, step, got.items, 2, &state));
    for (int i = 0; i < 2; i++)
        assert_memory_equal(got.items[i].tensor->elements, want.items[i].tensor->elements, tensor_bytes(want.items[i].tensor));
    assert_true(json_real_value(json_object_get(state, "loss")) == 0.1 * (double)step);
    json_decref(state);
    arena_free(want.arena);
    arena_free(got.arena);
}

static int64_t found(const char *name) {
    char dir[400];
    snprintf(dir, sizeof dir, "%s/%s/checkpoints", test_folder, name);
    int64_t step;
    check_ok(checkpoint_find(dir, &step));
    return step;
}

TEST(saved_found_loaded_and_thinned_out) {
    Recipe *recipe = recipe_for("plain");
    Run *run;
    check_ok(run_open(recipe, false, &run));
    assert_int_equal(run_step(run), -1);
    assert_int_equal(found("plain"), -1);
    for (int64_t step = 8; step <= 12; step += 2) {
        check_ok(save_step(run, step, 2));
        assert_int_equal(found("plain"), step);
    }
    check_load(run, 12);
    check_load(run, 10);
    char old[400];
    snprintf(old, sizeof old, "%s/plain/checkpoints/step-8", test_folder);
    assert_false(dir_exists(old));
    check_ok(save_step(run, 12, 2)); /* once more: nothing changes */
    check_load(run, 12);
    Things other = things_of(0);
    json_t *json;
    other.items[0].name = "weight/b";
    check_status(checkpoint_load(run, 12, other.items, 2, &json), ST_INPUT);
    check_status(checkpoint_load(run, 12, other.items, 1, &json), ST_INPUT);
    arena_free(other.arena);
    run_close(run);
    recipe_free(recipe);
}

/* Every file of the newest checkpoint cut at every length, changed in every byte, or missing: the one before is taken. */
TEST(damaged_ones_are_never_taken) {
    static const char *const files[] = {"tensors.safetensors", "state.json", "manifest.json"};
    Recipe *recipe = recipe_for("damaged");
    Run *run;
    check_ok(run_open(recipe, false, &run));
    check_ok(save_step(run, 3, 5));
    check_ok(save_step(run, 9, 5));
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        char path[500];
        snprintf(path, sizeof path, "%s/damaged/checkpoints/step-9/%s", test_folder, files[f]);
        Str whole = {0};
        check_ok(file_read(path, 1 << 20, &whole));
        size_t stride = whole.len > 1000 ? whole.len / 97 : 1;
        for (size_t len = 0; len < whole.len; len += stride) {
            check_ok(file_write_all(path, whole.data, len));
            /* A manifest without its last newline is still all there; nothing else is. */
            if (found("damaged") != 3) fail_msg("%s cut to %zu of %zu bytes was taken", files[f], len, whole.len);
        }
        for (size_t i = 0; i < whole.len && f < 2; i += stride) {
            whole.data[i] ^= 1;
            check_ok(file_write_all(path, whole.data, whole.len));
            if (found("damaged") != 3) fail_msg("%s with byte %zu changed was taken", files[f], i);
            whole.data[i] ^= 1;
        }
        assert_int_equal(unlink(path), 0);
        assert_int_equal(found("damaged"), 3);
        check_ok(file_write_all(path, whole.data, whole.len));
        assert_int_equal(found("damaged"), 9);
        str_release(&whole);
    }
    run_close(run);
    recipe_free(recipe);
}

/* The disk ends after `limit` bytes of a file. With the signal's own action the process dies at that very write. */
static int save_with_limit(Run *run, size_t limit, bool die) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit bytes = {limit, limit};
        signal(SIGXFSZ, die ? SIG_DFL : SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &bytes);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        Status status = save_step(run, 6, 5);
        _exit(status == ST_OK ? 0 : status == ST_RESOURCE ? 5 : 99);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFSIGNALED(result) ? -WTERMSIG(result) : WEXITSTATUS(result);
}

TEST(full_disks_and_kills_leave_the_last_one) {
    Recipe *recipe = recipe_for("full");
    Run *run;
    check_ok(run_open(recipe, false, &run));
    check_ok(save_step(run, 5, 5));
    for (size_t limit = 0; limit < 9000; limit += 311) {
        assert_int_equal(save_with_limit(run, limit, false), 5);
        assert_int_equal(found("full"), 5);
        char left[400];
        snprintf(left, sizeof left, "%s/full/checkpoints/.tmp-step-6", test_folder);
        assert_false(dir_exists(left)); /* the space is given back */
        assert_int_equal(save_with_limit(run, limit, true), -SIGXFSZ);
        assert_int_equal(found("full"), 5);
    }
    assert_int_equal(save_with_limit(run, 1 << 20, false), 0);
    assert_int_equal(found("full"), 6);
    check_load(run, 6);
    run_close(run);
    recipe_free(recipe);
}

/* The names of a run's files are synced with its checkpoint. Even without metrics.jsonl, the checkpoint is valid. */
TEST(names_are_kept_with_a_checkpoint) {
    Recipe *recipe = recipe_for("deep/er/names");
    Run *run;
    Str text = {0};
    durable_begin("step-3", 1);
    check_ok(run_open(recipe, false, &run));
    check_ok(run_metric(run, "{\"step\": 3}"));
    check_ok(save_step(run, 3, 5));
    check_ok(run_metric(run, "{\"step\": 4}"));
    assert_null(strstr(durable_lost(), "metrics.jsonl "));
    assert_null(strstr(durable_lost(), "names "));
    assert_null(strstr(durable_lost(), "never"));
    durable_again("finished.json", 0);
    json_t *summary = json_pack("{s:i}", "steps", 4);
    check_ok(run_mark_finished(run, summary));
    assert_string_equal(durable_lost(), "");
    json_decref(summary);
    run_close(run);
    assert_int_equal(unlink(temp_file(test_folder, "deep/er/names/finished.json")), 0);
    assert_int_equal(unlink(temp_file(test_folder, "deep/er/names/metrics.jsonl")), 0);
    temp_text(test_folder, "deep/er/names/.tune-rows-AbCdEf", "left by a kill");
    check_ok(run_open(recipe, true, &run));
    assert_int_equal(run_step(run), 3);
    assert_false(file_exists(temp_file(test_folder, "deep/er/names/.tune-rows-AbCdEf")));
    run_close(run);
    check_ok(file_read(temp_file(test_folder, "deep/er/names/log.txt"), 1 << 20, &text));
    check_contains(str_text(&text), "metrics.jsonl' is missing: its lines up to step 3 are lost");
    str_release(&text);
    recipe_free(recipe);
}

/* A checkpoint is valid even if lines of metrics.jsonl are lost; an incomplete line is removed. */
TEST(metrics_that_are_shorter_are_a_warning) {
    Recipe *recipe = recipe_for("shorter");
    const char *metrics = temp_file(test_folder, "shorter/metrics.jsonl");
    static const uint64_t sizes[] = {20, 12, 5, 0};
    Run *run;
    check_ok(run_open(recipe, false, &run));
    check_ok(run_metric(run, "{\"step\": 1}"));
    check_ok(run_metric(run, "{\"step\": 2}"));
    check_ok(save_step(run, 2, 5));
    run_close(run);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        Str text = {0}, log = {0};
        check_ok(file_truncate(metrics, sizes[i]));
        check_ok(run_open(recipe, true, &run));
        assert_int_equal(run_step(run), 2);
        run_close(run);
        check_ok(file_read(metrics, 1 << 10, &text));
        assert_string_equal(str_text(&text), sizes[i] >= 12 ? "{\"step\": 1}\n" : "");
        check_ok(file_read(temp_file(test_folder, "shorter/log.txt"), 1 << 20, &log));
        check_contains(str_text(&log), sizes[i] >= 12 ? "shorter than at the checkpoint of step 2: its last 12 bytes up to there are lost"
                                                      : "shorter than at the checkpoint of step 2: its last 24 bytes up to there are lost");
        str_release(&text);
        str_release(&log);
    }
    check_ok(file_write_all(metrics, "what somebody else wrote there", 30));
    check_status(run_open(recipe, true, &run), ST_INPUT);
    check_text("it changed after the checkpoint of step 2");
    recipe_free(recipe);
}

/* A manifest has a checksum, like the files that it lists; manifests of older programs have none. */
TEST(a_changed_manifest_is_damaged) {
    Recipe *recipe = recipe_for("sums");
    Run *run;
    json_t *manifest;
    const char *path = temp_file(test_folder, "sums/checkpoints/step-5/manifest.json");
    check_ok(run_open(recipe, false, &run));
    check_ok(run_metric(run, "{\"step\": 1}"));
    check_ok(save_step(run, 5, 5));
    assert_int_equal(found("sums"), 5);
    check_ok(json_read_file(path, &manifest));
    json_object_set_new(manifest, "metrics_bytes", json_integer(0));
    assert_int_equal(json_dump_file(manifest, path, 0), 0);
    assert_int_equal(found("sums"), -1);
    json_object_del(manifest, "crc32");
    assert_int_equal(json_dump_file(manifest, path, 0), 0);
    assert_int_equal(found("sums"), 5);
    json_decref(manifest);
    run_close(run);
    recipe_free(recipe);
}

/* Somebody else may have made the folder: what grows is not written through links. */
TEST(links_in_a_run_are_not_followed) {
    Recipe *recipe = recipe_for("links");
    Run *run;
    check_ok(dir_make(temp_file(test_folder, "links")));
    temp_text(test_folder, "precious", "mine");
    assert_int_equal(symlink("../precious", temp_file(test_folder, "links/log.txt")), 0);
    check_status(run_open(recipe, false, &run), ST_RESOURCE);
    check_text("log.txt': it is a link");
    assert_int_equal(unlink(temp_file(test_folder, "links/log.txt")), 0);
    assert_int_equal(symlink("../planted", temp_file(test_folder, "links/metrics.jsonl")), 0);
    check_ok(run_open(recipe, true, &run));
    check_status(run_metric(run, "{}"), ST_RESOURCE);
    check_text("metrics.jsonl': it is a link");
    run_close(run);
    assert_false(file_exists(temp_file(test_folder, "planted")));
    recipe_free(recipe);
}

static Status count_saves(void *context) {
    ++*(int *)context;
    return ST_OK;
}

/* Nothing is saved without the line of metrics that belongs to it: a resumed run would never write it. */
TEST(lines_that_failed_come_before_checkpoints) {
    Recipe *recipe = recipe_for("unwritten");
    Run *run;
    Str text = {0};
    int saves = 0;
    int64_t saved_step = -1;
    char metrics[400];
    snprintf(metrics, sizeof metrics, "%s/unwritten/metrics.jsonl", test_folder);
    check_ok(run_open(recipe, false, &run));
    check_ok(run_metric(run, "{\"step\": 1}"));
    assert_int_equal(unlink(metrics), 0);
    assert_int_equal(mkdir(metrics, 0777), 0); /* in the way */
    Status status = run_metric(run, "{\"step\": 2}");
    assert_int_not_equal(status, ST_OK);
    assert_int_equal(run_failed(run, status, count_saves, &saves, &saved_step), status);
    assert_int_equal(saves, 0);
    assert_int_equal(rmdir(metrics), 0);
    assert_int_equal(run_failed(run, status, count_saves, &saves, &saved_step), status);
    assert_int_equal(saves, 1);
    check_ok(file_read(metrics, 100, &text));
    assert_string_equal(str_text(&text), "{\"step\": 2}\n");
    str_release(&text);
    run_close(run);
    recipe_free(recipe);
}

/* ---- who may write where ---- */

TEST(taken_directories_are_refused) {
    Recipe *recipe = recipe_for("taken");
    Run *run;
    bool finished;
    check_ok(run_check(recipe, false, &finished));
    check_ok(run_open(recipe, false, &run));
    check_ok(run_metric(run, "{\"step\":1}"));
    check_ok(run_metric(run, "{\"step\":2}"));
    check_ok(save_step(run, 2, 2));
    check_ok(run_metric(run, "{\"step\":3}"));
    run_close(run);
    check_status(run_open(recipe, false, &run), ST_CONFIG);
    check_text("already contains a run");
    check_contains(status_hint_text(), "--resume");
    check_status(run_check(recipe, false, &finished), ST_CONFIG);
    recipe->seed = 43;
    check_status(run_open(recipe, true, &run), ST_CONFIG);
    check_text("'seed' was 42, now it is 43");
    recipe->seed = 42;
    recipe->threads = 7;
    recipe->train_log_every = 3;
    check_ok(run_open(recipe, true, &run));
    assert_int_equal(run_step(run), 2);
    Str metrics = {0};
    check_ok(file_read(run_path(run, "metrics.jsonl"), 1000, &metrics));
    assert_string_equal(str_text(&metrics), "{\"step\":1}\n{\"step\":2}\n");
    str_release(&metrics);
    pid_t child = fork(); /* locks are between processes */
    if (child == 0) {
        Run *second;
        _exit(run_open(recipe, true, &second) == ST_CONFIG && strstr(status_text(), "another process") ? 0 : 1);
    }
    int result;
    waitpid(child, &result, 0);
    assert_int_equal(WEXITSTATUS(result), 0);
    json_t *summary = json_pack("{s:i}", "steps", 2), *again;
    check_ok(run_mark_finished(run, summary));
    json_decref(summary);
    run_close(run);
    check_ok(run_open(recipe, true, &run));
    assert_true(run_finished(run));
    check_ok(run_summary(run, &again));
    json_decref(again);
    run_close(run);
    recipe_free(recipe);
}

TEST(without_a_whole_checkpoint_it_starts_again) {
    Recipe *recipe = recipe_for("fresh");
    Run *run;
    check_ok(run_open(recipe, true, &run)); /* nothing to resume is fine */
    check_ok(run_metric(run, "{\"step\":1}"));
    char damaged[400];
    snprintf(damaged, sizeof damaged, "%s/fresh/checkpoints/step-1", test_folder);
    check_ok(dir_make(damaged));
    run_close(run);
    check_ok(run_open(recipe, true, &run));
    assert_int_equal(run_step(run), -1);
    assert_false(dir_exists(damaged));
    struct stat info;
    assert_int_equal(stat(run_path(run, "metrics.jsonl"), &info), 0);
    assert_int_equal(info.st_size, 0);
    run_close(run);
    recipe_free(recipe);
}

/* ---- training that is cut short ---- */

static const char tiny_config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 16, \"intermediate_size\": 32, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, "
    "\"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"bos_token_id\": 1, \"eos_token_id\": 2}";

static Recipe *training_recipe(const char *name) {
    char model[300], output[300], model_key[320], rows_key[320], output_key[320];
    snprintf(model, sizeof model, "%s/model", test_folder);
    snprintf(output, sizeof output, "%s/%s", test_folder, name);
    if (!dir_exists(model)) {
        check_ok(model_write_random(model, tiny_config, DT_F32, 3, 0.1));
        Str rows = {0};
        RngKey key = rng_key(1, RNG_TEST, 0);
        for (uint64_t i = 0, draw = 0; i < 24; i++) {
            str_append(&rows, "{\"input_ids\": [1");
            for (uint64_t n = 4 + i % 5, t = 0; t < n; t++) str_printf(&rows, ", %d", 3 + (int)rng_below(key, draw++, 60));
            str_append(&rows, "]}\n");
        }
        temp_text(test_folder, "rows.jsonl", str_text(&rows));
        str_release(&rows);
    }
    snprintf(model_key, sizeof model_key, "model.path=%s", model);
    snprintf(rows_key, sizeof rows_key, "data.train=%s/rows.jsonl", test_folder);
    snprintf(output_key, sizeof output_key, "output=%s", output);
    const char *overrides[] = {model_key,
                               rows_key,
                               output_key,
                               "model.compute=f32",
                               "lora.rank=4",
                               "lora.dropout=0.1",
                               "train.neftune_alpha=5",
                               "train.batch_size=3",
                               "train.learning_rate=1e-2",
                               "train.gradient_accumulation_steps=2",
                               "data.eval_split=0.2",
                               "train.eval_every=3",
                               "train.save_every=2",
                               "train.early_stopping=3",
                               "train.max_steps=11"};
    Recipe *recipe;
    check_ok(recipe_read(NULL, overrides, COUNT_OF(overrides), &recipe));
    return recipe;
}

static void read_bytes(const char *name, const char *file, Str *bytes) {
    char path[500];
    snprintf(path, sizeof path, "%s/%s/%s", test_folder, name, file);
    check_ok(file_read(path, 1 << 24, bytes));
}

/* The same weights, and the same numbers but for the times. */
static void check_same_run(const char *name, const char *reference) {
    Str a = {0}, b = {0};
    check_same_file(test_folder, name, reference, "adapter/adapter_model.safetensors");
    metrics_text(temp_file(test_folder, reference), &a);
    metrics_text(temp_file(test_folder, name), &b);
    assert_string_equal(str_text(&b), str_text(&a));
    str_release(&a);
    str_release(&b);
}

typedef struct Stop {
    int64_t step;
    bool kill;
} Stop; /* step 0: none */

static void stop_at(void *context, const Progress *progress) {
    const Stop *stop = context;
    if (progress->step != stop->step) return;
    if (stop->kill) raise(SIGKILL);
    interrupt_request();
}

/* Trains in a child process, which ends after step stop.step. Returns the exit code, or minus the signal. ballast: extra bytes that the process
 * allocates. */
static int run_in_child(Recipe *recipe, bool resume, Stop stop, size_t ballast) {
    pid_t child = fork();
    if (child == 0) {
        TrainResult result;
        char *held = malloc(ballast + 1);
        if (!held) _exit(75);
        memset(held, 1, ballast + 1);
        Status status = sft_run(
            &(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume, .on_progress = stop_at, .context = &stop},
            &result);
        _exit(held[ballast] != 1 ? 76 : status == ST_OK ? (result.already_finished ? 77 : 0) : status_exit_code(status));
    }
    recipe_free(recipe);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFSIGNALED(result) ? -WTERMSIG(result) : WEXITSTATUS(result);
}

static int train_in_child(const char *name, bool resume, int64_t at, bool kill) {
    return run_in_child(training_recipe(name), resume, (Stop){at, kill}, 0);
}

TEST(killed_anywhere_and_resumed_it_is_the_same_run) {
    recipe_free(training_recipe("unbroken")); /* makes the model */
    assert_int_equal(train_in_child("unbroken", false, 0, false), 0);
    for (int64_t at = 1; at <= 11; at++) {
        char name[32];
        snprintf(name, sizeof name, "killed-%d", (int)at);
        assert_int_equal(train_in_child(name, false, at, true), -SIGKILL);
        assert_int_equal(train_in_child(name, false, 0, false), 3);
        assert_int_equal(train_in_child(name, true, 0, false), 0);
        check_same_run(name, "unbroken");
    }
    for (int64_t at = 1; at <= 10; at += 3) {
        char name[32];
        snprintf(name, sizeof name, "stopped-%d", (int)at);
        assert_int_equal(train_in_child(name, false, at, false), 130);
        char saved[400];
        snprintf(saved, sizeof saved, "%s/%s/checkpoints", test_folder, name);
        int64_t step;
        check_ok(checkpoint_find(saved, &step));
        assert_int_equal(step, at);
        assert_int_equal(train_in_child(name, true, 0, false), 0);
        check_same_run(name, "unbroken");
    }
    Str before = {0}, after = {0};
    read_bytes("unbroken", "log.txt", &before);
    assert_int_equal(train_in_child("unbroken", true, 0, false), 77);
    read_bytes("unbroken", "log.txt", &after);
    assert_string_equal(str_text(&before), str_text(&after));
    str_release(&before);
    str_release(&after);
}

/* ---- train.max_memory ---- */

/* Steps of 16 rows, 1 to 4 times 600 tokens each: their activations are far more than anything that differs from process to process. limit 0: none.
 */
static Recipe *limited_recipe(const char *name, double limit) {
    const char *texts[8];
    size_t n = 0;
    Str rows = {0};
    Arena *arena = arena_new(0);
    Recipe *recipe;
    for (int i = 0; i < 64; i++) {
        str_append(&rows, "{\"input_ids\": [1");
        for (int t = 1; t < 600 * (1 + i % 4); t++) str_printf(&rows, ", %d", 3 + (i * 31 + t * 7 + t * t % 11) % 60);
        str_append(&rows, "]}\n");
    }
    temp_text(test_folder, "rows-long.jsonl", str_text(&rows));
    str_release(&rows);
    recipe_free(training_recipe(name)); /* makes the model */
    texts[n++] = arena_printf(arena, "model.path=%s/model", test_folder);
    texts[n++] = arena_printf(arena, "data.train=%s/rows-long.jsonl", test_folder);
    texts[n++] = arena_printf(arena, "output=%s/%s", test_folder, name);
    const char *const more[] = {"model.compute=f32",    "lora.rank=4",        "lora.dropout=0.1", "train.batch_size=16",
                                "data.max_length=4096", "train.save_every=2", "train.max_steps=4"};
    const char *all[COUNT_OF(texts) + COUNT_OF(more)];
    if (limit > 0) texts[n++] = arena_printf(arena, "train.max_memory=%.0f", limit);
    memcpy(all, texts, n * sizeof *texts);
    memcpy(all + n, more, sizeof more);
    check_ok(recipe_read(NULL, all, n + COUNT_OF(more), &recipe));
    arena_free(arena);
    return recipe;
}

/* A number of what started.json says of memory. */
static double planned(const char *name, const char *key) {
    char path[500];
    json_t *started;
    snprintf(path, sizeof path, "%s/%s/started.json", test_folder, name);
    check_ok(json_read_file(path, &started));
    double value = json_number_value(json_object_get(json_object_get(started, "memory"), key));
    json_decref(started);
    return value;
}

/* A resumed run divides its batches into the same parts as before, even if it has less memory, since other parts would round differently. */
TEST(a_run_in_parts_is_resumed_in_the_same_parts) {
#ifdef SANITIZED
    skip(); /* what they take of memory themselves decides there */
#endif
    assert_int_equal(run_in_child(limited_recipe("free", 0), false, (Stop){1, true}, 0), -SIGKILL);
    double activations = planned("free", "activations"), limit = planned("free", "total") - 0.7 * activations;
    assert_true(activations > 0.5 * planned("free", "total"));
    assert_int_equal(run_in_child(limited_recipe("parts", limit), false, (Stop){0}, 0), 0);
    /* All that was left, and well more than processes differ by */
    size_t ballast = (size_t)(limit - planned("parts", "total") + 0.25 * planned("parts", "activations"));
    assert_int_equal(run_in_child(limited_recipe("smaller", limit), false, (Stop){1, true}, ballast), -SIGKILL);
    double parts = planned("parts", "part_tokens");
    assert_true(parts > 0 && planned("smaller", "part_tokens") != parts); /* a new run would choose other parts */
    static const Stop stops[] = {{3, true}, {2, true}, {3, false}};       /* with the checkpoint of step 2; with none; with one of step 3 */
    for (size_t i = 0; i < COUNT_OF(stops); i++) {
        char name[32];
        snprintf(name, sizeof name, "parts-%zu", i);
        assert_int_equal(run_in_child(limited_recipe(name, limit), false, stops[i], 0), stops[i].kill ? -SIGKILL : 130);
        check_close(planned(name, "part_tokens"), parts, 0);
        assert_int_equal(run_in_child(limited_recipe(name, limit), true, (Stop){0}, ballast), 0);
        check_close(planned(name, "part_tokens"), parts, 0);
        check_same_run(name, "parts");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_found_loaded_and_thinned_out),
        cmocka_unit_test(damaged_ones_are_never_taken),
        cmocka_unit_test(full_disks_and_kills_leave_the_last_one),
        cmocka_unit_test(names_are_kept_with_a_checkpoint),
        cmocka_unit_test(metrics_that_are_shorter_are_a_warning),
        cmocka_unit_test(a_changed_manifest_is_damaged),
        cmocka_unit_test(links_in_a_run_are_not_followed),
        cmocka_unit_test(lines_that_failed_come_before_checkpoints),
        cmocka_unit_test(taken_directories_are_refused),
        cmocka_unit_test(without_a_whole_checkpoint_it_starts_again),
        cmocka_unit_test(killed_anywhere_and_resumed_it_is_the_same_run),
        cmocka_unit_test(a_run_in_parts_is_resumed_in_the_same_parts),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
