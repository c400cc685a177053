/* SPDX-License-Identifier: Apache-2.0 */
/* Preference losses in training: known first losses, steps that do not depend on how they are split, exact resume, held-out accuracy, and rows that
 * are wrong. */
#include "lib/base/system.h"
#include "data/formats/formats.h"
#include "rl/pairs/preference.h"
#include "rl/pairs/preference_losses.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[256];

static const char tiny_config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\", \"bos_token_id\": 1, \"eos_token_id\": 2}";

/* ---- rows: the chosen answer repeats the prompt's last token, the rejected one another token of the prompt ---- */

static void write_ids(Str *text, const char *key, const int *ids, int n) {
    str_printf(text, "\"%s\": [", key);
    for (int i = 0; i < n; i++) str_printf(text, "%s%d", i ? ", " : "", ids[i]);
    str_append(text, "]");
}

static void write_rows(const char *name, int n, bool unpaired) {
    Str text = {0};
    RngKey key = rng_key(5, RNG_TEST, unpaired);
    uint64_t draw = 0;
    for (int i = 0; i < n; i++) {
        int prompt[3], chosen[4], rejected[4], length = 1 + (int)rng_below(key, draw++, 4), other = 1 + (int)rng_below(key, draw++, 4);
        for (int t = 0; t < 3; t++) prompt[t] = 8 + 8 * t + (int)rng_below(key, draw++, 8);
        for (int t = 0; t < 4; t++) chosen[t] = prompt[2], rejected[t] = prompt[0];
        str_append(&text, "{");
        write_ids(&text, "prompt_ids", prompt, 3);
        str_append(&text, ", ");
        if (unpaired) {
            write_ids(&text, "completion_ids", i % 2 ? chosen : rejected, length);
            str_printf(&text, ", \"label\": %s}\n", i % 2 ? "true" : "false");
            continue;
        }
        write_ids(&text, "chosen_ids", chosen, length);
        str_append(&text, ", ");
        write_ids(&text, "rejected_ids", rejected, other);
        str_append(&text, "}\n");
    }
    check_ok(file_write_all(temp_file(folder, name), str_text(&text), text.len));
    str_release(&text);
}

static int make_folder(void **state) {
    (void)state;
    temp_dir_make(folder, sizeof folder);
    check_ok(model_write_random(temp_file(folder, "model"), tiny_config, DT_F32, 3, 0.1));
    write_rows("pairs.jsonl", 200, false);
    write_rows("kto.jsonl", 200, true);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    temp_dir_remove(folder);
    return 0;
}

/* ---- runs ---- */

/* Settings, one a line; output and files are below the folder. */
static Status run_lines(const char *name, const char *rows, const char *lines, bool resume, TrainResult *result) {
    Recipe *recipe = recipe_of_lines(
        "model.path=%s/model\nmodel.compute=f32\ndata.train=%s/%s\noutput=%s/%s\nseed=4\nlora.rank=4\nlora.alpha=8\ntrain.weight_decay=0\ntrain.lr_scheduler=constant\n%s",
        folder, folder, rows, folder, name, lines);
    Status status = preference_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume}, result);
    recipe_free(recipe);
    return status;
}

/* A policy that is the reference: every difference is 0, so the losses are those of TRL's formulas (dpo_trainer.py) there: ln 2, 1, (1 / (2 beta))^2.
 */
TEST(first_losses) {
    static const struct {
        const char *lines, *rows;
        double loss;
    } cases[] = {
        {"rl.algorithm=dpo", "pairs.jsonl", 0.6931471805599453},
        {"rl.algorithm=dpo\nrl.loss_type=hinge", "pairs.jsonl", 1},
        {"rl.algorithm=ipo", "pairs.jsonl", 25},
        {"rl.algorithm=dpo\nrl.loss_type=apo_zero", "pairs.jsonl", 1},
        {"rl.algorithm=kto", "kto.jsonl", 0.5},
        {"rl.algorithm=kto\nrl.undesirable_weight=3", "kto.jsonl", 1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TrainResult result;
        char name[32], lines[200];
        snprintf(name, sizeof name, "first%zu", i);
        snprintf(lines, sizeof lines, "%s\ntrain.max_steps=1\ntrain.batch_size=200", cases[i].lines);
        check_ok(run_lines(name, cases[i].rows, lines, false, &result));
        /* OpenBLAS alone: a row's bits depend on its place in the batch, and the reference is computed in other batches */
        check_close(metric_get(&result.numbers, "first_loss"), cases[i].loss, 1e-6 * (1 + cases[i].loss));
    }
}

/* 1e-5 relative: f32 sums in another order. */
TEST(splitting_changes_nothing) {
    static const struct {
        const char *algorithm, *rows;
    } cases[] = {{"dpo", "pairs.jsonl"},   {"ipo", "pairs.jsonl"}, {"orpo", "pairs.jsonl"},
                 {"simpo", "pairs.jsonl"}, {"cpo", "pairs.jsonl"}, {"kto", "kto.jsonl"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        static const char *const splits[] = {"train.batch_size=12", "train.batch_size=3\ntrain.gradient_accumulation_steps=4"};
        double losses[2][8], norms[2][8];
        for (int s = 0; s < 2; s++) {
            char name[32], lines[300];
            TrainResult result;
            snprintf(name, sizeof name, "split-%s-%d", cases[i].algorithm, s);
            snprintf(lines, sizeof lines, "rl.algorithm=%s\ntrain.max_steps=5\ntrain.learning_rate=5e-3\n%s", cases[i].algorithm, splits[s]);
            check_ok(run_lines(name, cases[i].rows, lines, false, &result));
            assert_int_equal(metrics_read(temp_file(folder, name), "loss", losses[s], 8), 5);
            assert_int_equal(metrics_read(temp_file(folder, name), "grad_norm", norms[s], 8), 5);
        }
        check_close_f64(cases[i].algorithm, losses[1], losses[0], 5, 0, 1e-5);
        check_close_f64(cases[i].algorithm, norms[1], norms[0], 5, 0, 1e-4);
    }
}

static double planned(const char *name, const char *key) {
    char path[400];
    json_t *json;
    snprintf(path, sizeof path, "%s/%s/started.json", folder, name);
    check_ok(json_read_file(path, &json));
    double value = json_number_value(json_object_get(json_object_get(json, "memory"), key));
    json_decref(json);
    return value;
}

/* train.max_memory cuts batches, but not where a loss compares all rows of one. */
TEST(memory_is_kept_with_the_same_result) {
#ifdef SANITIZED
    skip(); /* what they take of memory themselves decides there */
#endif
    static const char *const names[] = {"memory-whole", "memory-cut"};
    static const char plain[] = "rl.algorithm=dpo\ntrain.max_steps=3\ntrain.learning_rate=5e-3\nlora.dropout=0.2\ntrain.batch_size=200";
    char cut[sizeof plain + 64];
    double losses[2][3], norms[2][3];
    for (int i = 0; i < 2; i++) {
        TrainResult result;
        if (i == 1)
            snprintf(cut, sizeof cut, "%s\ntrain.max_memory=%.0f", plain, planned(names[0], "total") - 0.8 * planned(names[0], "activations"));
        check_ok(run_lines(names[i], "pairs.jsonl", i ? cut : plain, false, &result));
        assert_int_equal(metrics_read(temp_file(folder, names[i]), "loss", losses[i], 3), 3);
        assert_int_equal(metrics_read(temp_file(folder, names[i]), "grad_norm", norms[i], 3), 3);
    }
    assert_true(planned("memory-whole", "part_tokens") == 0 && planned("memory-cut", "part_tokens") > 0 &&
                planned("memory-cut", "activations") < 0.5 * planned("memory-whole", "activations"));
    check_close_f64("loss", losses[1], losses[0], 3, 0, 1e-5);
    check_close_f64("norm", norms[1], norms[0], 3, 0, 1e-4);
    TrainResult result;
    check_status(run_lines("together", "pairs.jsonl",
                           "rl.algorithm=dpo\nrl.loss_type=aot\ntrain.max_steps=1\ntrain.batch_size=200\ntrain.max_memory=1000", false, &result),
                 ST_RESOURCE);
    assert_non_null(strstr(status_hint_text(), "smaller batches"));
}

/* Long prompts with short answers, and short prompts with long ones: KTO pairs long prompts with long answers, in passes larger than any batch. */
TEST(comparisons_are_planned) {
    enum { ROWS = 16, LONG = 60 };
    static const char *const losses[] = {"apo_zero_unpaired", "kto"}; /* the first compares nothing */
    static const char common[] = "rl.algorithm=kto\ndata.shuffle=false\ntrain.max_steps=1\ntrain.checkpointing=layer\ntrain.batch_size=1";
    Str text = {0};
    int ids[LONG];
    for (int i = 0; i < LONG; i++) ids[i] = 8 + i % 50;
    for (int i = 0; i < ROWS; i++) {
        str_append(&text, "{");
        write_ids(&text, "prompt_ids", ids, i % 2 ? LONG : 1);
        str_append(&text, ", ");
        write_ids(&text, "completion_ids", ids, i % 2 ? 1 : LONG);
        str_printf(&text, ", \"label\": %s}\n", i % 3 ? "true" : "false");
    }
    check_ok(file_write_all(temp_file(folder, "skew.jsonl"), str_text(&text), text.len));
    str_release(&text);
    for (size_t i = 0; i < COUNT_OF(losses); i++) {
        TrainResult result;
        char lines[300];
        snprintf(lines, sizeof lines, "%s\ntrain.gradient_accumulation_steps=%d\nrl.loss_type=%s", common, ROWS, losses[i]);
        check_ok(run_lines(losses[i], "skew.jsonl", lines, false, &result));
    }
    assert_true(planned("kto", "activations") > 1.3 * planned("apo_zero_unpaired", "activations"));
    TrainResult result;
    check_status(run_lines("alone", "skew.jsonl", common, false, &result), ST_CONFIG); /* it would be compared with itself */
    assert_non_null(strstr(status_text(), "a step has one row"));
}

/* A comparison contains only prompts with answers of other rows. */
TEST(comparisons_leave_out_own_answers) {
    const int32_t prompts[] = {9, 17}, answers[] = {20, 21, 22, 30, 31};
    const bool trained[] = {true, true, true};
    PairRow both[] = {{.prompt = prompts, .n_prompt = 1, .sides = {{answers, trained, 3, 3, NULL}}, .weight = 1},
                      {.prompt = prompts + 1, .n_prompt = 1, .sides = {{answers + 3, trained, 2, 2, NULL}}, .weight = 1}};
    Pairs pairs = {.rows = both, .n = 2};
    PairBatch batch = {0};
    static const size_t rows[] = {0, 1}, others[] = {1, 0};
    static const int32_t ids[] = {9, 30, 17, 20, 21}, targets[] = {30, 31, 20, 21, 22};
    check_ok(pair_batch_build(&pairs, rows, 2, &(PairBatchOptions){.other_rows = others}, &batch));
    assert_int_equal(batch.model.layout.n_tokens, COUNT_OF(ids)); /* last tokens predict nothing */
    assert_int_equal(batch.n_targets, COUNT_OF(targets));
    assert_memory_equal(batch.ids, ids, sizeof ids);
    assert_memory_equal(batch.targets, targets, sizeof targets);
    assert_int_equal(batch.counts[0], 2);
    assert_int_equal(batch.counts[2], 3);
    pair_batch_release(&batch);
}

/* Two answers to one prompt in one batch have the same log-probabilities as each alone. */
TEST(prompts_are_shared) {
    Model *model;
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    check_ok(model_load(temp_file(folder, "model"), &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    const int32_t prompt[] = {9, 17, 25}, whole[2][5] = {{9, 17, 25, 30, 31}, {9, 17, 25, 40, 41}};
    const bool trained[] = {true, true};
    PairRow row = {.prompt = prompt, .n_prompt = 3, .sides = {{whole[0] + 3, trained, 2, 2, NULL}, {whole[1] + 3, trained, 2, 2, NULL}}, .weight = 1};
    Pairs pairs = {.rows = &row, .n = 1};
    PairBatch batch = {0};
    check_ok(pair_batch_build(&pairs, &(size_t){0}, 1, &(PairBatchOptions){0}, &batch));
    assert_int_equal(batch.model.layout.n_tokens, 5); /* the prompt once, the last tokens not at all */
    assert_int_equal(batch.n_targets, 4);
    double shared[4], alone[4];
    for (int pass = 0; pass < 3; pass++) {
        int64_t n = pass ? 2 : 4;
        int32_t rows[] = {2, 3};
        Segment segment = {.begin = 0, .end = 5, .parent = -1};
        ModelBatch single = {.ids = pass ? whole[pass - 1] : NULL, .layout = {.n_tokens = 5, .n_segments = 1, .segments = &segment}};
        int32_t targets[] = {pass ? whole[pass - 1][3] : 0, pass ? whole[pass - 1][4] : 0};
        tape_reset(tape);
        Tensor *at = tensor_view(tape_arena(tape), device_cpu(), DT_I32, 1, &n, pass ? rows : batch.rows);
        Tensor *of = tensor_view(tape_arena(tape), device_cpu(), DT_I32, 1, &n, pass ? targets : batch.targets);
        Tensor *hidden = model_forward(model, tape, pass ? &single : &batch.model);
        TokenLogprobs p = op_token_logprobs(tape, hidden, model->head, at, of, &model->logprob);
        check_ok(tape_status(tape));
        tensor_read(p.logprob, pass ? alone + 2 * (pass - 1) : shared);
    }
    check_close_f64("log-probabilities", shared, alone, 4, 2e-6, 0);
    pair_batch_release(&batch);
    tape_free(tape);
    model_free(model);
}

/* Single answers (KTO) are judged against a baseline instead of each other, and 60 held-out ones are few: clearly above chance is what is asked. */
TEST(learns) {
    static const struct {
        const char *algorithm, *rows;
        int epochs;
        double least;
    } cases[] = {{"dpo", "pairs.jsonl", 8, 0.95}, {"simpo", "pairs.jsonl", 8, 0.95}, {"kto", "kto.jsonl", 10, 0.8}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TrainResult result;
        char name[32], lines[300];
        double accuracy[4];
        snprintf(name, sizeof name, "learns-%s", cases[i].algorithm);
        snprintf(lines, sizeof lines, "rl.algorithm=%s\ntrain.epochs=%d\ntrain.batch_size=10\ntrain.learning_rate=1e-2\ndata.eval_split=0.3",
                 cases[i].algorithm, cases[i].epochs);
        check_ok(run_lines(name, cases[i].rows, lines, false, &result));
        assert_int_equal(metrics_read(temp_file(folder, name), "eval_accuracy", accuracy, 4), 1);
        if (!(accuracy[0] > cases[i].least)) fail_msg("%s: held-out accuracy %g", cases[i].algorithm, accuracy[0]);
    }
}

/* Every algorithm, in at least four of five seeds; with TEST_LONG=1 (make test-long). */
TEST(every_algorithm_learns) {
    if (!long_tests()) skip();
    for (size_t i = 0; preference_algorithm_at(i); i++) {
        const char *algorithm = preference_algorithm_at(i)->name;
        bool unpaired = strcmp(algorithm, "kto") == 0;
        int learned = 0;
        for (int seed = 1; seed <= 5; seed++) {
            TrainResult result;
            char name[48], lines[300];
            double accuracy[4];
            snprintf(name, sizeof name, "long-%s-%d", algorithm, seed);
            snprintf(lines, sizeof lines,
                     "rl.algorithm=%s\nseed=%d\ntrain.epochs=10\ntrain.batch_size=10\ntrain.learning_rate=1e-2\ndata.eval_split=0.3", algorithm,
                     seed);
            check_ok(run_lines(name, unpaired ? "kto.jsonl" : "pairs.jsonl", lines, false, &result));
            assert_int_equal(metrics_read(temp_file(folder, name), "eval_accuracy", accuracy, 4), 1);
            learned += accuracy[0] > (unpaired ? 0.75 : 0.9);
            print_message("%s, seed %d: held-out accuracy %.3f\n", algorithm, seed, accuracy[0]);
        }
        if (learned < 4) fail_msg("%s learns in %d of 5 seeds", algorithm, learned);
    }
}

/* Metrics but for times, and the adapter, byte by byte. */
TEST(resumes_exactly) {
    const char *lines =
        "rl.algorithm=dpo\ntrain.epochs=1\ntrain.batch_size=10\ntrain.learning_rate=5e-3\nlora.dropout=0.1\ntrain.save_every=7\ntrain.keep_checkpoints=9";
    TrainResult result;
    char path[400];
    double first[64], second[64];
    check_ok(run_lines("whole", "pairs.jsonl", lines, false, &result));
    check_ok(run_lines("again", "pairs.jsonl", lines, false, &result));
    snprintf(path, sizeof path, "%s/again/finished.json", folder);
    assert_int_equal(remove(path), 0);
    snprintf(path, sizeof path, "%s/again/checkpoints/step-14", folder);
    if (dir_exists(path)) check_ok(dir_remove(path));
    check_ok(run_lines("again", "pairs.jsonl", lines, true, &result));
    size_t n = metrics_read(temp_file(folder, "whole"), "loss", first, 64);
    assert_int_equal(metrics_read(temp_file(folder, "again"), "loss", second, 64), n);
    check_close_f64("loss", second, first, n, 0, 0);
    check_same_file(folder, "whole", "again", "adapter/adapter_model.safetensors");
}

static void refuses(const char *row, const char *lines, Status wanted, const char *part) {
    static int number;
    TrainResult result;
    char name[32];
    snprintf(name, sizeof name, "bad%d", number++);
    Str text = {0};
    str_printf(&text, "{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": [11]}\n%s\n", row);
    check_ok(file_write_all(temp_file(folder, "bad.jsonl"), str_text(&text), text.len));
    str_release(&text);
    check_status(run_lines(name, "bad.jsonl", lines, false, &result), wanted);
    check_text(part);
    if (wanted == ST_INPUT && !strstr(part, "batch_tokens")) check_text("bad.jsonl' line 2");
}

TEST(wrong_rows) {
    const char *dpo = "rl.algorithm=dpo\ntrain.max_steps=1";
    refuses("{\"prompt_ids\": [9], \"chosen_ids\": [10]}", dpo, ST_INPUT, "lacks 'rejected_ids'");
    refuses("{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": [64]}", dpo, ST_INPUT, "outside of the model's vocabulary");
    refuses("{\"prompt_ids\": [9], \"chosen_ids\": 4, \"rejected_ids\": [6]}", dpo, ST_INPUT, "no list of token ids");
    refuses("{\"prompt\": \"a question\"}", dpo, ST_INPUT, "no chosen and rejected answer, which algorithm 'dpo' needs");
    refuses("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", dpo, ST_INPUT, "no tokenizer");
    refuses("{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": [12], \"margin\": \"wide\"}", dpo, ST_INPUT, "'margin' is not a number");
    const char *good = "{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": [12]}";
    refuses(good, "rl.algorithm=dpo\nrl.loss_type=orpo", ST_CONFIG, "has no loss 'orpo'");
    refuses(good, "rl.algorithm=dpo\nrl.loss_type=aot\ntrain.gradient_accumulation_steps=2", ST_CONFIG, "compares all pairs");
    refuses("{\"prompt_ids\": [9, 9, 9], \"chosen_ids\": [10], \"rejected_ids\": [12]}", "rl.algorithm=dpo\ntrain.batch_tokens=4", ST_INPUT,
            "more than the 4 of 'train.batch_tokens'");
}

/* Every loss of the issue by its name in a recipe. A policy that is the reference gives a loss without NaN. */
TEST(all_losses) {
    static const char *const types[] = {
        "dpo:sigmoid",   "dpo:sigmoid_norm", "dpo:hinge",    "dpo:ipo",      "dpo:robust", "dpo:exo_pair",         "dpo:nca_pair", "dpo:bco_pair",
        "dpo:sppo_hard", "dpo:apo_zero",     "dpo:apo_down", "dpo:discopop", "dpo:aot",    "dpo:aot_unpaired",     "ipo:ipo",      "orpo:orpo",
        "simpo:simpo",   "cpo:sigmoid",      "cpo:hinge",    "cpo:ipo",      "kto:kto",    "kto:apo_zero_unpaired"};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        char algorithm[32], lines[200], name[64];
        TrainResult result;
        snprintf(algorithm, sizeof algorithm, "%s", types[i]);
        char *type = strchr(algorithm, ':');
        *type++ = '\0';
        snprintf(name, sizeof name, "all-%s-%s", algorithm, type);
        snprintf(lines, sizeof lines, "rl.algorithm=%s\nrl.loss_type=%s\ntrain.max_steps=2\ntrain.batch_size=4%s", algorithm, type,
                 strcmp(algorithm, "dpo") == 0 && preference_loss_find(type)->smooths ? "\nrl.label_smoothing=0.1" : "");
        check_ok(run_lines(name, strcmp(algorithm, "kto") == 0 ? "kto.jsonl" : "pairs.jsonl", lines, false, &result));
        assert_true(isfinite(metric_get(&result.numbers, "last_loss")));
    }
}

/* `weight` multiplies a row's loss, whatever the loss is. */
TEST(weights_of_rows) {
    static const char *const kinds[][2] = {{"dpo", "\"chosen_ids\": [12, 13], \"rejected_ids\": [14]"},
                                           {"kto", "\"completion_ids\": [12, 13], \"label\": true"}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        double losses[2];
        for (int w = 0; w < 2; w++) {
            char name[32], row[200], text[420], lines[64];
            TrainResult result;
            snprintf(name, sizeof name, "weight-%s-%d", kinds[i][0], w);
            snprintf(row, sizeof row, "{\"prompt_ids\": [9], %s%s}\n", kinds[i][1], w ? ", \"weight\": 2.5" : "");
            snprintf(text, sizeof text, "%s%s", row, row); /* kto asks for two */
            snprintf(lines, sizeof lines, "rl.algorithm=%s\ntrain.max_steps=1", kinds[i][0]);
            check_ok(file_write_all(temp_file(folder, "weighted.jsonl"), text, strlen(text)));
            check_ok(run_lines(name, "weighted.jsonl", lines, false, &result));
            losses[w] = metric_get(&result.numbers, "first_loss");
        }
        check_close(losses[1], 2.5 * losses[0], 1e-12);
    }
}

/* Sources with weights and limits, as supervised training has them: 3 rows of one file twice, half of the 4 of the other. */
TEST(weights_of_sources) {
    TrainResult result;
    char lines[900];
    double epochs[16];
    snprintf(
        lines, sizeof lines,
        "rl.algorithm=dpo\ntrain.epochs=2\ntrain.batch_size=1\ndata.train=[{path: %s/pairs.jsonl, weight: 2, max_rows: 3}, {path: %s/pairs.jsonl, weight: 0.5, max_rows: 4}]",
        folder, folder);
    check_ok(run_lines("sources", "pairs.jsonl", lines, false, &result));
    assert_int_equal(metric_get(&result.numbers, "steps"), 16);
    assert_int_equal(metrics_read(temp_file(folder, "sources"), "epoch", epochs, 16), 16);
    check_close(epochs[7], 1, 1e-12);
    snprintf(lines, sizeof lines, "rl.algorithm=dpo\ntrain.epochs=1\ndata.eval=[{path: %s/pairs.jsonl, weight: 2}]", folder);
    check_status(run_lines("held-twice", "pairs.jsonl", lines, false, &result), ST_CONFIG);
    check_text("each row is evaluated once");
}

/* Every row once an epoch, no batch over its limit. */
TEST(batches_by_tokens) {
    TrainResult result;
    double tokens[200], sum = 0, all;
    check_ok(run_lines("by-one", "pairs.jsonl", "rl.algorithm=dpo\ntrain.epochs=1\ntrain.batch_size=200", false, &result));
    assert_int_equal(metrics_read(temp_file(folder, "by-one"), "tokens", &all, 1), 1);
    check_ok(run_lines("by-tokens", "pairs.jsonl", "rl.algorithm=dpo\ntrain.epochs=1\ntrain.batch_tokens=50", false, &result));
    size_t n = metrics_read(temp_file(folder, "by-tokens"), "tokens", tokens, 200);
    for (size_t i = 0; i < n; i++) {
        assert_true(tokens[i] <= 50);
        sum += tokens[i];
    }
    check_close(sum, all, 0);
    assert_true((double)n < all / 50 * 1.5);
}

/* What teaches nothing is left out and counted. */
TEST(same_answers) {
    const char *rows =
        "{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": [10]}\n{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": [11]}\n";
    const Yaml file = {.kind = YAML_SCALAR, .text = temp_file(folder, "same.jsonl")};
    const ModelConfig model = {.vocab_size = 64};
    Recipe *recipe;
    Pairs *pairs;
    check_ok(file_write_all(file.text, rows, strlen(rows)));
    check_ok(recipe_read(NULL, NULL, 0, &recipe));
    check_ok(pairs_load(recipe, "data.train", &file, &(PairSource){.model = &model, .reader = "the test"}, &pairs));
    assert_int_equal(pairs->n, 1);
    assert_int_equal(pairs->dropped[PAIR_SAME], 1);
    pairs_free(pairs);
    recipe_free(recipe);

    rows = "{\"prompt_ids\": [9], \"chosen_ids\": [10, 11, 12], \"rejected_ids\": [10, 11, 13]}\n" /* the same when they are cut */
           "{\"prompt_ids\": [9], \"chosen_ids\": [10, 11, 12], \"rejected_ids\": [10]}\n"
           "{\"prompt_ids\": [9], \"chosen_ids\": [10, 11], \"rejected_ids\": [10, 12]}\n";
    const char *cut[] = {"data.max_length=3", "data.truncation=keep_start"};
    check_ok(file_write_all(file.text, rows, strlen(rows)));
    check_ok(recipe_read(NULL, cut, COUNT_OF(cut), &recipe));
    check_ok(pairs_load(recipe, "data.train", &file, &(PairSource){.model = &model, .reader = "the test"}, &pairs));
    assert_int_equal(pairs->n, 2);
    assert_int_equal(pairs->dropped[PAIR_SAME], 1);
    assert_int_equal(pairs->cut, 1);
    pairs_free(pairs);
    recipe_free(recipe);
}

/* One row never ends the run for that, whatever its form. */
TEST(rows_that_teach_nothing_are_left_out) {
    static const struct {
        const char *row;
        PairDrop why;
    } cases[] = {
        {"{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": []}", PAIR_EMPTY},
        {"{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"b\"}", PAIR_EMPTY},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": null}", PAIR_EMPTY},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}", PAIR_SAME},
        {"{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], "
         "\"rejected\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
         PAIR_SAME},
        {"{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], "
         "\"rejected\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
         PAIR_PROMPTS_DIFFER},
        {"{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\"}], "
         "\"rejected\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
         PAIR_EMPTY},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"chosen\": [], \"rejected\": [{\"role\": \"assistant\", \"content\": \"b\"}]}",
         PAIR_EMPTY},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}], \"chosen\": {\"from\": \"gpt\", \"value\": \"b\"}, "
         "\"rejected\": {\"from\": \"gpt\", \"value\": \"\"}}",
         PAIR_EMPTY},
    };
    const Yaml file = {.kind = YAML_SCALAR, .text = temp_file(folder, "nothing.jsonl")};
    const ModelConfig model = {.vocab_size = 64};
    const char *good = "{\"prompt_ids\": [9], \"chosen_ids\": [10], \"rejected_ids\": [12], \"chosen_score\": 1, \"rejected_score\": 9}\n";
    Recipe *recipe;
    check_ok(recipe_read(NULL, NULL, 0, &recipe));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Pairs *pairs;
        Str text = {0};
        str_printf(&text, "%s%s\n", good, cases[i].row);
        check_ok(file_write_all(file.text, str_text(&text), text.len));
        str_release(&text);
        check_ok(pairs_load(recipe, "data.train", &file, &(PairSource){.model = &model, .reader = "the test"}, &pairs));
        assert_int_equal(pairs->n, 1);
        assert_int_equal(pairs->dropped[cases[i].why], 1);
        check_contains(pairs->where[cases[i].why], "nothing.jsonl line 2");
        assert_int_equal(pairs->against, 1);
        pairs_free(pairs);
    }
    recipe_free(recipe);
}

TEST(labels_are_read_as_people_write_them) {
    static const struct {
        const char *row;
        int wanted;
    } cases[] = {
        {"{\"label\": true}", 1},  {"{\"label\": 1}", 1},          {"{\"label\": 1.0}", 1},       {"{\"label\": \"True\"}", 1},
        {"{\"label\": false}", 0}, {"{\"label\": -1}", 0},         {"{\"label\": \"FALSE\"}", 0}, {"{\"label\": \"0\"}", 0},
        {"{\"label\": 0.7}", -1},  {"{\"label\": \"maybe\"}", -1}, {"{\"label\": null}", -1},     {"{}", -1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *row = json_loads(cases[i].row, 0, NULL);
        bool wanted = false;
        Status status = row_label(row, &wanted);
        print_message("%s\n", cases[i].row);
        check_status(status, cases[i].wanted < 0 ? ST_INPUT : ST_OK);
        if (status == ST_OK) assert_int_equal(wanted, cases[i].wanted);
        json_decref(row);
    }
}

static void interrupt_at_plan(void *context, const RunPlan *plan) {
    (void)context, (void)plan;
    interrupt_request();
}

/* Ctrl-C while the reference is asked leaves a run that --resume takes on. */
TEST(interrupted_reference) {
    TrainResult result;
    Recipe *recipe;
    const char *overrides[] = {
        "model.compute=f32", "lora.rank=4", "seed=4", "rl.algorithm=dpo", "train.epochs=1", "train.batch_size=50", NULL, NULL, NULL};
    char lines[3][400];
    snprintf(lines[0], sizeof lines[0], "model.path=%s/model", folder);
    snprintf(lines[1], sizeof lines[1], "data.train=%s/pairs.jsonl", folder);
    snprintf(lines[2], sizeof lines[2], "output=%s/cut", folder);
    for (int i = 0; i < 3; i++) overrides[6 + i] = lines[i];
    check_ok(recipe_read(NULL, overrides, COUNT_OF(overrides), &recipe));
    check_status(preference_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .on_plan = interrupt_at_plan}, &result),
                 ST_INTERRUPTED);
    interrupt_clear();
    check_ok(preference_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe), .options.resume = true}, &result));
    assert_int_equal(metric_get(&result.numbers, "steps"), 4);
    recipe_free(recipe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_losses),
        cmocka_unit_test(splitting_changes_nothing),
        cmocka_unit_test(memory_is_kept_with_the_same_result),
        cmocka_unit_test(comparisons_are_planned),
        cmocka_unit_test(comparisons_leave_out_own_answers),
        cmocka_unit_test(prompts_are_shared),
        cmocka_unit_test(learns),
        cmocka_unit_test(every_algorithm_learns),
        cmocka_unit_test(resumes_exactly),
        cmocka_unit_test(wrong_rows),
        cmocka_unit_test(all_losses),
        cmocka_unit_test(weights_of_rows),
        cmocka_unit_test(weights_of_sources),
        cmocka_unit_test(batches_by_tokens),
        cmocka_unit_test(same_answers),
        cmocka_unit_test(rows_that_teach_nothing_are_left_out),
        cmocka_unit_test(labels_are_read_as_people_write_them),
        cmocka_unit_test(interrupted_reference),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
