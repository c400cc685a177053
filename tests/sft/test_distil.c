/* SPDX-License-Identifier: Apache-2.0 */
/* Distillation: curves of another program, what the loss is at its limits, teachers that do not fit. */
#include "lib/base/file.h"
#include "lib/base/json.h"
#include "lib/base/system.h"
#include "lib/infer/top_file.h"
#include "lib/model/safetensors.h"
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

/* What the golden teacher says of the golden rows. Computed in double: only the file's dtype rounds. */
static void save_golden_teacher(const char *path, int64_t k, DType dtype) {
    char stored[512], teacher[512], name[16];
    WeightFile *rows;
    Model *model;
    TopWriter *writer;
    TopShape shape = {.k = k, .vocab = 160, .n_rows = 4, .dtype = dtype};
    shared_path("golden/deploy/distil/rows.safetensors", stored, sizeof stored);
    shared_path("golden/deploy/distil/teacher", teacher, sizeof teacher);
    check_ok(weight_file_open(stored, &rows));
    check_ok(model_load(teacher, &(ModelOptions){.device = device_reference(), .compute = DT_F64}, &model));
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "row%d", i);
        shape.n_tokens += weight_file_find(rows, name)->count;
    }
    check_ok(top_writer_open(path, &shape, &writer));
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "row%d", i);
        const StoredTensor *row = weight_file_find(rows, name);
        int32_t ids[64];
        double logprobs[64];
        TokenLogprob top[64 * 16];
        for (int64_t t = 0; t < row->count; t++) ids[t] = (int32_t)stored_get(row, t);
        check_ok(score_top(model, &(ScoreRow){ids, (size_t)row->count, logprobs}, k, top));
        top_writer_add(writer, ids, (size_t)row->count, top);
    }
    check_ok(top_writer_close(writer, ST_OK));
    model_free(model);
    weight_file_close(rows);
}

/* file: of log-probabilities; NULL = the teacher itself. tolerance: relative, of losses; gradient norms have ten times as much in f32. */
static void golden_curve(const char *name, const char *file, const char *settings, bool doubles, double tolerance) {
    static const char *const keys[] = {"loss", "divergence", "cross_entropy", "grad_norm"};
    char path[512], student[512], teacher[512];
    json_t *expected;
    TrainResult result;
    if (!shared_path("golden/deploy/distil/expected.json", path, sizeof path)) skip();
    shared_path("golden/models/llama", student, sizeof student);
    shared_path("golden/deploy/distil/teacher", teacher, sizeof teacher);
    if (file) snprintf(teacher, sizeof teacher, "%s", file);
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
    golden_curve(name, NULL, settings, true, 1e-9);
    golden_curve(name, NULL, settings, false, 3e-5);
}

TEST(forward_kl_equals_the_reference) { golden_run("forward-kl", ""); }
TEST(reverse_kl_equals_the_reference) { golden_run("reverse-kl", "distil.loss=reverse_kl\n"); }
TEST(jsd_equals_the_reference) { golden_run("jsd", "distil.loss=jsd\ndistil.beta=0.5\ndistil.temperature=0.9\n"); }
TEST(hintons_mix_equals_the_reference) { golden_run("hinton", "distil.temperature=2\ndistil.alpha=0.7\ndistil.times_temperature_squared=true\n"); }
TEST(top_k_equals_the_reference) { golden_run("top-k", "distil.loss=top_k\ndistil.top_k=8\n"); }

/* Rounding of log-probabilities: 2^-24 and 2^-11, times their size, 8 at most. */
TEST(stored_log_probabilities_replace_the_teacher) {
    char path[512];
    if (!shared_path("golden/deploy/distil/expected.json", path, sizeof path)) skip();
    snprintf(path, sizeof path, "%s", temp_file(test_folder, "teacher.safetensors"));
    save_golden_teacher(path, 16, DT_F32); /* more than are asked for: the rest takes them up */
    golden_curve("top-k", path, "distil.loss=top_k\ndistil.top_k=8\n", true, 1e-6);
    save_golden_teacher(path, 8, DT_F16);
    golden_curve("top-k", path, "distil.loss=top_k\ndistil.top_k=8\n", false, 1e-3);
}

/* Both files have the same numbers, so every step has the same bits. */
TEST(a_gguf_file_teaches_as_its_directory) {
    static const char *const teachers[] = {"golden/models/llama", "golden/deploy/gguf/tiny/llama.f32.gguf"};
    char student[512], teacher[512], rows[512], out[512];
    Str found[2] = {0};
    if (!shared_path(teachers[1], teacher, sizeof teacher)) skip();
    shared_path("golden/deploy/distil/teacher", student, sizeof student);
    snprintf(rows, sizeof rows, "%s", temp_file(test_folder, "gguf.jsonl"));
    write_golden_rows(rows);
    for (int i = 0; i < 2; i++) {
        TrainResult result;
        shared_path(teachers[i], teacher, sizeof teacher);
        snprintf(out, sizeof out, "%s", temp_file(test_folder, i ? "gguf" : "directory"));
        Recipe *recipe = recipe_of_lines("model.path=%s\nmodel.compute=f32\nlora=null\ndata.train=%s\ntrain.batch_size=2\ntrain.max_steps=4\n"
                                         "train.learning_rate=0.001\noutput=%s\ndistil.teacher=%s\ndistil.hidden=1\n",
                                         student, rows, out, teacher);
        check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result));
        recipe_free(recipe);
        metrics_text(out, &found[i]);
    }
    assert_string_equal(str_text(&found[0]), str_text(&found[1]));
    check_same_file(test_folder, "directory", "gguf", "model/model.safetensors");
    str_release(&found[0]);
    str_release(&found[1]);
}

/* ---- the teacher's answers ---- */

/* {"input_ids": the prompt and one more token, which is the row's own answer}. */
static void write_golden_prompts(const char *path, const json_t *prompts) {
    Str text = {0};
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        str_append(&text, "{\"input_ids\": [");
        for (size_t t = 0; t < json_array_size(prompt); t++) str_printf(&text, "%d, ", (int)json_integer_value(json_array_get(prompt, t)));
        str_append(&text, "3], \"labels\": [");
        for (size_t t = 0; t < json_array_size(prompt); t++) str_append(&text, "-100, ");
        str_append(&text, "3]}\n");
    }
    check_ok(file_write_all(path, str_text(&text), text.len));
    str_release(&text);
}

TEST(answers_of_the_teacher_equal_the_reference) {
    char path[512], student[512], teacher[512], rows[512], out[512];
    json_t *expected, *line;
    TrainResult result;
    if (!shared_path("golden/deploy/distil/expected.json", path, sizeof path)) skip();
    shared_path("golden/models/llama", student, sizeof student);
    shared_path("golden/deploy/distil/teacher", teacher, sizeof teacher);
    check_ok(json_read_file(path, &expected));
    const json_t *golden = json_object_get(expected, "sequence-level"), *answers = json_object_get(golden, "teacher_greedy");
    snprintf(rows, sizeof rows, "%s", temp_file(test_folder, "prompts.jsonl"));
    snprintf(out, sizeof out, "%s", temp_file(test_folder, "answered"));
    write_golden_prompts(rows, json_object_get(golden, "prompts"));
    for (int again = 0; again < 2; again++) { /* the second run finds the answers */
        Recipe *recipe = recipe_of_lines("model.path=%s\nmodel.compute=f32\nlora=null\ndata.train=%s\ntrain.batch_size=4\ntrain.max_steps=1\n"
                                         "output=%s\ndistil.teacher=%s\ndistil.loss=sequence\ngenerate.greedy=true\ngenerate.max_new_tokens=8\n",
                                         student, rows, out, teacher);
        check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = {device_reference(), DT_F64}, .options.force = again > 0}, &result));
        recipe_free(recipe);
        double loss;
        assert_int_equal(metrics_read(out, "loss", &loss, 1), 1);
        check_close(loss, json_number_value(json_object_get(golden, "student_loss")), 1e-9 * loss);
        json_t *started; /* its plan counts the teacher that answers */
        check_ok(json_read_file(temp_file(out, "started.json"), &started));
        const json_t *memory = json_object_get(started, "memory");
        const json_int_t before = json_integer_value(json_object_get(memory, "before"));
        assert_int_equal(before > 0, !again);
        assert_true(json_integer_value(json_object_get(memory, "total")) >= before);
        json_decref(started);
    }
    Arena *arena = arena_new(0);
    char **names;
    size_t n, found = 0;
    check_ok(dir_list(test_folder, arena, &names, &n));
    for (size_t i = 0; i < n; i++) {
        Lines lines;
        Slice slice;
        if (!text_starts_with(names[i], "answers-")) continue;
        check_ok(lines_open(&lines, temp_file(test_folder, names[i])));
        for (; lines_next(&lines, &slice); found++) {
            check_ok(json_read_text(slice.data, slice.len, names[i], &line));
            const json_t *ids = json_object_get(line, "input_ids");
            assert_int_equal(json_array_size(ids), 13);
            for (size_t t = 0; t < 8; t++)
                assert_int_equal(json_integer_value(json_array_get(ids, 5 + t)),
                                 json_integer_value(json_array_get(json_array_get(answers, found), t)));
            json_decref(line);
        }
        check_ok(lines_close(&lines));
    }
    assert_int_equal(found, 4);
    arena_free(arena);
    json_decref(expected);
}

/* ---- losses inside of the models ---- */

/* Loads a golden model in double. */
static Model *golden_model(const char *name, bool trained) {
    char path[512];
    Model *model;
    shared_path(name, path, sizeof path);
    check_ok(model_load(path, &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = trained}, &model));
    check_ok(model_show_attention(model));
    return model;
}

/* Runs both models on the first golden row, and compares the mean over its tokens, and the norm of the student's gradient. */
static void golden_inner(const char *name, bool attention) {
    char path[512];
    json_t *expected;
    WeightFile *file;
    if (!shared_path("golden/deploy/distil/expected.json", path, sizeof path)) skip();
    check_ok(json_read_file(path, &expected));
    shared_path("golden/deploy/distil/rows.safetensors", path, sizeof path);
    check_ok(weight_file_open(path, &file));
    Model *student = golden_model("golden/models/llama", true), *teacher = golden_model("golden/deploy/distil/teacher", false);
    const StoredTensor *row = weight_file_find(file, "row0"), *stored = weight_file_find(file, "projector");
    int32_t ids[64];
    double values[64], sum = 0;
    for (int64_t t = 0; t < row->count; t++) ids[t] = (int32_t)stored_get(row, t);
    Segment segment = {.end = (int32_t)row->count, .parent = -1};
    ShownAttention ours, theirs;
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = row->count, .n_segments = 1, .segments = &segment}, .shown = &theirs};
    Tape *tape = tape_new(device_reference(), DT_F64, 0);
    Tensor *projector = tensor_new(student->arena, device_reference(), DT_F64, 2, stored->shape);
    for (int64_t i = 0; i < stored->count; i++) tensor_set(projector, i, stored_get(stored, i));
    tape_record(tape, false);
    Tensor *target = model_forward(teacher, tape, &batch);
    tape_record(tape, true);
    batch.shown = &ours;
    Tensor *hidden = model_forward(student, tape, &batch);
    Tensor *losses = attention ? op_attention_divergence(tape, ours.q, ours.k, &ours.args, theirs.q, theirs.k, &theirs.args)
                               : op_row_distance(tape, op_linear(tape, hidden, projector, NULL, NULL, NULL), target);
    check_ok(tape_status(tape));
    for (int64_t t = 0; t < row->count; t++) {
        sum += tensor_get(losses, t) / (double)row->count;
        values[t] = 1 / (double)row->count;
    }
    tensor_seed_grad(tape, losses, values);
    check_ok(tape_backward(tape));
    const double want[2] = {json_number_value(json_object_get(json_object_get(expected, name), "loss")),
                            json_number_value(json_object_get(json_object_get(expected, name), "grad_norm"))},
                 got[2] = {sum, params_grad_norm(&student->params)};
    check_close_f64(name, got, want, 2, 0, 1e-9);
    tape_free(tape);
    model_free(student);
    model_free(teacher);
    weight_file_close(file);
    json_decref(expected);
}

TEST(hidden_states_equal_the_reference) { golden_inner("hidden-mse", false); }
TEST(attention_equals_the_reference) { golden_inner("attention-kl", true); }

/* ---- without golden values ---- */

static char *rows_file(void) {
    static const char text[] = "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}\n{\"prompt\": \"one, two,\", \"completion\": \" three\"}\n"
                               "{\"prompt\": \"a b\", \"completion\": \" c d e f\"}\n{\"prompt\": \"red\", \"completion\": \" green blue\"}\n";
    char *path = strdup(temp_file(test_folder, "small.jsonl"));
    check_ok(file_write_all(path, text, sizeof text - 1));
    return path;
}

typedef void OnProgress(void *context, const Progress *progress);

static Status watched_run(const char *name, const char *settings, bool resume, OnProgress *on_progress) {
    TrainResult result;
    char *rows = rows_file();
    Recipe *recipe =
        recipe_of_lines("model.path=recipes/demo/model\nmodel.compute=f32\nlora.rank=4\ndata.train=%s\ntrain.batch_size=2\ntrain.max_steps=4\n"
                        "train.learning_rate=0.01\ntrain.save_every=1\noutput=%s\n%s",
                        rows, temp_file(test_folder, name), settings);
    Status status =
        sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume, .on_progress = on_progress}, &result);
    recipe_free(recipe);
    free(rows);
    return status;
}

static Status small_run(const char *name, const char *settings, bool resume) { return watched_run(name, settings, resume, NULL); }

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

/* Layers that are computed again hand their queries and keys on like others. */
TEST(inner_losses_do_not_depend_on_checkpointing) {
    static const char *const keys[] = {"loss", "hidden_distance", "attention_divergence"};
    double plain[4], again[4], divergence[4];
    const char *settings = SELF "distil.hidden=0.5\ndistil.attention=2\n";
    Str checkpointed = {0};
    str_printf(&checkpointed, "%strain.checkpointing=layer\n", settings);
    check_ok(small_run("inner", settings, false));
    check_ok(small_run("again", str_text(&checkpointed), false));
    str_release(&checkpointed);
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        read_metric("inner", keys[k], plain);
        read_metric("again", keys[k], again);
        for (int i = 0; i < 4; i++) check_close(again[i], plain[i], 1e-6 * fabs(plain[i]));
    }
    read_metric("inner", "divergence", divergence);
    read_metric("inner", "hidden_distance", plain);
    assert_true(plain[3] < 0.9 * plain[0]); /* the projector learns */
    read_metric("inner", "attention_divergence", again);
    check_close(again[0], 0, 1e-6); /* a new adapter changes nothing */
    read_metric("inner", "loss", plain);
    assert_true(plain[0] > divergence[0]);
}

/* Sums over parts of a step are those over the whole. */
TEST(inner_losses_do_not_depend_on_parts) {
    double whole[4], parts[4];
    const char *settings = SELF "distil.hidden=0.5\ndistil.attention=2\n";
    Str divided = {0};
    str_printf(&divided, "%sparallel.lanes=2\n", settings);
    check_ok(small_run("one", settings, false));
    check_ok(small_run("two", str_text(&divided), false));
    str_release(&divided);
    read_metric("one", "loss", whole);
    read_metric("two", "loss", parts);
    for (int i = 0; i < 4; i++) check_close(parts[i], whole[i], 1e-5 * whole[i]);
}

static void interrupt_at_two(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 2) interrupt_request();
}

/* The projector and its moments are in the checkpoint too. */
TEST(an_interrupted_run_has_the_same_bytes) {
    const char *settings = SELF "distil.alpha=0.3\ndistil.loss=jsd\ndistil.hidden=1\ndistil.attention=1\ntrain.save_every=0\n";
    Str whole = {0}, half = {0};
    check_ok(small_run("whole", settings, false));
    check_status(watched_run("half", settings, false, interrupt_at_two), ST_INTERRUPTED);
    interrupt_clear();
    assert_true(dir_exists(temp_file(test_folder, "half/checkpoints/step-2")));
    check_ok(small_run("half", settings, true));
    metrics_text(temp_file(test_folder, "whole"), &whole);
    metrics_text(temp_file(test_folder, "half"), &half);
    assert_string_equal(str_text(&whole), str_text(&half));
    check_same_file(test_folder, "whole", "half", "adapter/adapter_model.safetensors");
    check_same_file(test_folder, "whole", "half", "checkpoints/step-4/tensors.safetensors");
    str_release(&whole);
    str_release(&half);
}

/* ---- vocabularies ---- */

/* A copy of the demo's model whose embedding has more rows than its tokenizer has tokens. */
static void write_padded(const char *dir) {
    enum { MORE = 6 };
    static const char from[] = "recipes/demo/model";
    WeightFile *file;
    SafetensorsWriter *writer;
    json_t *config;
    check_ok(dir_make(dir));
    check_ok(file_copy(temp_file(from, "tokenizer.json"), temp_file(dir, "tokenizer.json")));
    check_ok(file_copy(temp_file(from, "tokenizer_config.json"), temp_file(dir, "tokenizer_config.json")));
    check_ok(json_read_file(temp_file(from, "config.json"), &config));
    int64_t vocab = json_integer_value(json_object_get(config, "vocab_size"));
    json_object_set_new(config, "vocab_size", json_integer(vocab + MORE));
    assert_int_equal(json_dump_file(config, temp_file(dir, "config.json"), 0), 0);
    json_decref(config);
    check_ok(weight_file_open(from, &file));
    check_ok(safetensors_writer_new(temp_file(dir, "model.safetensors"), &writer));
    for (size_t i = 0; i < file->n; i++) {
        StoredTensor tensor = file->tensors[i];
        if (tensor.shape[0] == vocab) {
            tensor.bytes += tensor.bytes / (size_t)vocab * MORE;
            tensor.shape[0] += MORE;
        }
        safetensors_declare_as(writer, &tensor);
    }
    for (size_t i = 0; i < file->n; i++) {
        const StoredTensor *tensor = &file->tensors[i];
        safetensors_write(writer, tensor->data, tensor->bytes);
        if (tensor->shape[0] == vocab) safetensors_write(writer, tensor->data, tensor->bytes / (size_t)vocab * MORE); /* as likely as real tokens */
    }
    check_ok(safetensors_commit(writer));
    weight_file_close(file);
}

/* Rows of either embedding that the other model lacks are left out. */
TEST(padding_of_embeddings_does_not_count) {
    static const char *const keys[] = {"loss", "divergence", "agreement", "grad_norm"};
    char dir[512];
    double plain[4], padded[4];
    Str teacher = {0}, student = {0};
    snprintf(dir, sizeof dir, "%s", temp_file(test_folder, "padded"));
    write_padded(dir);
    str_printf(&teacher, "distil.teacher=%s\ndistil.alpha=0.5\n", dir);
    str_printf(&student, SELF "distil.alpha=0.5\nmodel.path=%s\n", dir);
    check_ok(small_run("not-padded", SELF "distil.alpha=0.5\n", false));
    check_ok(small_run("padded-teacher", str_text(&teacher), false));
    check_ok(small_run("padded-student", str_text(&student), false));
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        read_metric("not-padded", keys[k], plain);
        read_metric("padded-teacher", keys[k], padded);
        for (int i = 0; i < 4; i++) check_close(padded[i], plain[i], 1e-9 + 1e-6 * plain[i]);
        read_metric("padded-student", keys[k], padded);
        for (int i = 0; i < 4; i++) check_close(padded[i], plain[i], 1e-9 + 1e-6 * plain[i]);
    }
    str_release(&teacher);
    str_release(&student);
}

/* Checks that a file of answers has rows of the student's tokens: prompt and answer as they read. */
static void check_answers(const char *name, const Tokenizer *tokenizer) {
    Lines lines;
    Slice slice;
    size_t n = 0;
    check_ok(lines_open(&lines, temp_file(temp_file(test_folder, "tokens"), name)));
    for (; lines_next(&lines, &slice); n++) {
        json_t *line;
        int32_t ids[256];
        size_t n_ids = 0;
        Str text = {0};
        check_ok(json_read_text(slice.data, slice.len, name, &line));
        const json_t *labels = json_object_get(line, "labels");
        assert_true(json_array_size(labels) <= COUNT_OF(ids));
        for (size_t t = 0; t < json_array_size(labels); t++)
            if (json_integer_value(json_array_get(labels, t)) >= 0) ids[n_ids++] = (int32_t)json_integer_value(json_array_get(labels, t));
        assert_true(n_ids > 0);
        check_ok(tokenizer_decode(tokenizer, ids, n_ids, true, &text));
        assert_string_equal(str_text(&text), json_string_value(json_object_get(line, "answer")));
        str_release(&text);
        json_decref(line);
    }
    check_ok(lines_close(&lines));
    assert_int_equal(n, 4);
}

/* Models with nothing in common: the first differing token is named, and answers are learned all the same. */
TEST(a_teacher_of_other_tokens_can_only_answer) {
    char teacher[512];
    Str settings = {0};
    Arena *arena = arena_new(0);
    Tokenizer *tokenizer;
    char **names;
    size_t n, found = 0;
    double loss[4];
    if (!shared_path("data/models/stories260K-hf", teacher, sizeof teacher)) skip();
    check_ok(dir_make(temp_file(test_folder, "tokens")));
    str_printf(&settings, "distil.teacher=%s\n", teacher);
    check_status(small_run("tokens/run", str_text(&settings), false), ST_CONFIG);
    check_text("token 0 is '<unk>' in");
    check_text("'<bos>' in the student");
    assert_non_null(strstr(status_hint_text(), "distil.loss=sequence"));
    str_append(&settings, "distil.loss=sequence\ngenerate.greedy=true\ngenerate.max_new_tokens=12\n");
    check_ok(small_run("tokens/run", str_text(&settings), false));
    read_metric("tokens/run", "loss", loss);
    assert_true(loss[2] + loss[3] < loss[0] + loss[1]);
    check_ok(tokenizer_load("recipes/demo/model", &tokenizer));
    check_ok(dir_list(temp_file(test_folder, "tokens"), arena, &names, &n));
    for (size_t i = 0; i < n; i++)
        if (text_starts_with(names[i], "answers-")) check_answers(names[i], tokenizer), found++;
    assert_int_equal(found, 1);
    tokenizer_free(tokenizer);
    arena_free(arena);
    str_release(&settings);
}

TEST(teachers_that_do_not_fit) {
    char other[512];
    check_status(small_run("none", "distil.teacher=/nowhere\n", false), ST_INPUT);
    check_status(small_run("key", SELF "distil.beta=0.4\n", false), ST_CONFIG);
    check_text("distil.beta");
    check_status(small_run("alone", "distil.alpha=0.4\n", false), ST_CONFIG);
    check_text("'distil.teacher' is missing");
    if (!shared_path("golden/models/llama", other, sizeof other)) skip();
    Str settings = {0};
    str_printf(&settings, "distil.teacher=%s\n", other);
    check_status(small_run("other", str_text(&settings), false), ST_CONFIG);
    check_text("tokens");
    str_release(&settings);
}

/* Rows of ids: the demo's tokenizer has no part in it. */
TEST(files_that_do_not_fit) {
    static const char text[] = "{\"input_ids\": [5, 6, 7, 8, 9, 10], \"labels\": [-100, 6, 7, 8, 9, 10]}\n";
    char rows[512], file[512];
    const int32_t ids[6] = {5, 6, 7, 8, 9, 10};
    TokenLogprob top[12];
    TopWriter *writer;
    snprintf(rows, sizeof rows, "%s", temp_text(test_folder, "ids.jsonl", text));
    snprintf(file, sizeof file, "%s", temp_file(test_folder, "top.safetensors"));
    for (int i = 0; i < 12; i++) top[i] = (TokenLogprob){i < 2 ? -1 : i % 2 + 3, i % 2 ? log(0.3) : log(0.6)};
    check_ok(top_writer_open(file, &(TopShape){.k = 2, .vocab = 20, .n_tokens = 6, .n_rows = 1, .dtype = DT_F16}, &writer));
    top_writer_add(writer, ids, 6, top);
    check_ok(top_writer_close(writer, ST_OK));
    static const struct {
        const char *settings, *says; /* says NULL: it runs */
        Status status;
    } cases[] = {
        {"distil.loss=top_k\ndistil.top_k=2\n", NULL, ST_OK},
        {"distil.loss=top_k\ndistil.top_k=1\n", NULL, ST_OK},
        {"", "whole distribution", ST_CONFIG},
        {"distil.loss=top_k\ndistil.top_k=3\n", "has 2 tokens", ST_CONFIG},
        {"distil.loss=top_k\ndistil.top_k=2\ndistil.temperature=2\n", "temperature 1", ST_CONFIG},
        {"distil.loss=top_k\ndistil.top_k=2\ndistil.hidden=1\n", "distil.hidden", ST_CONFIG},
        {"distil.loss=top_k\ndistil.top_k=2\ndata.max_length=5\ndata.truncation=keep_start\n", "no log-probabilities of the 5 tokens", ST_INPUT},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TrainResult result;
        char out[64];
        snprintf(out, sizeof out, "fit-%zu", i);
        Recipe *recipe = recipe_of_lines("model.path=recipes/demo/model\nmodel.compute=f32\nlora.rank=4\ndata.train=%s\ntrain.batch_size=1\n"
                                         "train.max_steps=1\noutput=%s\ndistil.teacher=%s\n%s",
                                         rows, temp_file(test_folder, out), file, cases[i].settings);
        check_status(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result), cases[i].status);
        if (cases[i].says) check_text(cases[i].says);
        recipe_free(recipe);
    }
}

/* A file that is cut, or whose tensors contradict each other, is an error and no crash. */
TEST(broken_files_are_refused) {
    char file[512];
    TopFile *opened;
    const int32_t ids[3] = {1, 2, 3};
    const TokenLogprob top[3] = {{-1, 0}, {4, log(0.5)}, {99, log(0.5)}};
    int32_t read_id;
    float logprobs[2];
    TopWriter *writer;
    snprintf(file, sizeof file, "%s", temp_file(test_folder, "broken.safetensors"));
    check_ok(top_writer_open(file, &(TopShape){.k = 1, .vocab = 20, .n_tokens = 3, .n_rows = 1, .dtype = DT_F32}, &writer));
    top_writer_add(writer, ids, 3, top);
    check_ok(top_writer_close(writer, ST_OK));
    check_ok(top_file_open(file, &opened));
    assert_int_equal(top_file_find(opened, ids, 3), 0);
    assert_int_equal(top_file_find(opened, ids, 2), -1);
    check_ok(top_file_read(opened, 1, 1, 20, &read_id, logprobs));
    assert_int_equal(read_id, 4);
    check_close((double)logprobs[1], log(0.5), 1e-6);
    check_status(top_file_read(opened, 0, 1, 20, &read_id, logprobs), ST_INPUT); /* nothing comes before the first token */
    check_status(top_file_read(opened, 2, 1, 20, &read_id, logprobs), ST_INPUT);
    check_text("99");
    top_file_close(opened);
    check_status(top_file_open("recipes/demo/model", &opened), ST_INPUT);
    check_text("no file of log-probabilities");
    check_status(top_file_open("/nowhere.safetensors", &opened), ST_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_kl_equals_the_reference),
        cmocka_unit_test(reverse_kl_equals_the_reference),
        cmocka_unit_test(jsd_equals_the_reference),
        cmocka_unit_test(hintons_mix_equals_the_reference),
        cmocka_unit_test(top_k_equals_the_reference),
        cmocka_unit_test(stored_log_probabilities_replace_the_teacher),
        cmocka_unit_test(a_gguf_file_teaches_as_its_directory),
        cmocka_unit_test(answers_of_the_teacher_equal_the_reference),
        cmocka_unit_test(hidden_states_equal_the_reference),
        cmocka_unit_test(attention_equals_the_reference),
        cmocka_unit_test(inner_losses_do_not_depend_on_checkpointing),
        cmocka_unit_test(inner_losses_do_not_depend_on_parts),
        cmocka_unit_test(a_model_does_not_differ_from_itself),
        cmocka_unit_test(alpha_0_is_plain_training),
        cmocka_unit_test(an_interrupted_run_has_the_same_bytes),
        cmocka_unit_test(padding_of_embeddings_does_not_count),
        cmocka_unit_test(a_teacher_of_other_tokens_can_only_answer),
        cmocka_unit_test(logits_of_a_family_are_scaled_and_capped),
        cmocka_unit_test(teachers_that_do_not_fit),
        cmocka_unit_test(files_that_do_not_fit),
        cmocka_unit_test(broken_files_are_refused),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
