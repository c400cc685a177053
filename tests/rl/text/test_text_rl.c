/* SPDX-License-Identifier: Apache-2.0 */
/* Reinforcement learning on text: passes over branches of one prompt, sampler and trainer, invariants of groups, the same bytes after a resume and
 * for any number of threads. */
#include "lib/base/system.h"
#include "lib/train/trained_model.h"
#include "rl/keys/algorithm_keys.h"
#include "rl/text/text_pass.h"
#include "rl/text/text_rl.h"
#include "rl/text/text_run.h"
#include "rl/text/text_value.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model_dir[] = "recipes/demo/model";
static const char rows[] = "{\"prompt\": \"< 'pirate' =\", \"answer\": \"etarip\"}\n"
                           "{\"prompt\": \"> 'at' =\", \"answer\": \"at\"}\n"
                           "{\"prompt\": \"< 'no' =\", \"answer\": \"on\"}\n"
                           "{\"prompt\": \"# 'able' =\", \"answer\": \"4\"}\n"
                           "{\"prompt\": \"^ 'lip' =\", \"answer\": \"LIP\"}\n";

static Recipe *recipe_of(const char *name, const char *const *more, size_t n_more) {
    char texts[4][400];
    const char *settings[24] = {
        "rl.algorithm=grpo",         "lora.rank=4",       "rl.num_generations=4", "rl.prompts_per_step=4", "generate.max_new_tokens=6",
        "train.learning_rate=0.003", "train.max_steps=4", "rl.samples_every=1"};
    size_t n = 8;
    snprintf(texts[0], 400, "output=%s/%s", test_folder, name);
    snprintf(texts[1], 400, "model.path=%s", model_dir);
    snprintf(texts[2], 400, "data.train=%s", temp_text(test_folder, "rows.jsonl", rows));
    snprintf(texts[3], 400, "reward=[{type: length, target: 3}]");
    for (size_t i = 0; i < COUNT_OF(texts); i++) settings[n++] = texts[i];
    for (size_t i = 0; i < n_more; i++) settings[n++] = more[i];
    Recipe *recipe;
    check_ok(recipe_read(NULL, settings, n, &recipe));
    return recipe;
}

static void interrupt_in_the_middle(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == 2) interrupt_request();
}

static void test_text_rl_run(const Recipe *recipe, bool resume, bool interrupted) {
    TrainResult result;
    Status status = text_rl_run(
        &(TrainingConfig){
            .recipe = recipe, .runtime = runtime_of(recipe), .options.resume = resume, .on_progress = interrupted ? interrupt_in_the_middle : NULL},
        &(RewardOptions){0}, &result);
    interrupt_clear();
    check_status_at(__FILE__, __LINE__, recipe->rl_algorithm, status, interrupted ? ST_INTERRUPTED : ST_OK);
}

static const char *in_run(const char *run_name, const char *file) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s/%s", test_folder, run_name, file);
    return path;
}

static void read_file(const char *run_name, const char *file, Str *text) { check_ok(file_read(in_run(run_name, file), 1 << 24, text)); }

/* The number `key` of the last line of metrics.jsonl. */
static double last_metric(const char *run_name, const char *key) {
    Str text = {0};
    json_t *json;
    read_file(run_name, "metrics.jsonl", &text);
    char *line = text.data + text.len - 1;
    while (line > text.data && line[-1] != '\n') line--;
    check_ok(json_read_text(line, strlen(line), "metrics.jsonl", &json));
    double value = json_number_value(json_object_get(json, key));
    assert_true(json_is_number(json_object_get(json, key)));
    json_decref(json);
    str_release(&text);
    return value;
}

/* A teacher with the demo's tokens and other weights. */
static const char *other_teacher(void) {
    static char dir[512];
    Str config = {0};
    snprintf(dir, sizeof dir, "%s/teacher", test_folder);
    check_ok(file_read("recipes/demo/model/config.json", 1 << 20, &config));
    check_ok(model_write_random(dir, str_text(&config), DT_F32, 3, 0.2));
    check_ok(model_copy_files(model_dir, dir));
    str_release(&config);
    return dir;
}

TEST(every_algorithm_resumes_to_the_same_bytes) {
    int threads = omp_get_max_threads();
    char teacher[600];
    snprintf(teacher, sizeof teacher, "distil.teacher=%s", other_teacher());
    for (size_t i = 0; text_algorithm_at(i); i++) {
        if (ALL_OR_FEW(false, i % 3 > 0)) continue;
        char algorithm[64], names[3][64];
        snprintf(algorithm, sizeof algorithm, "rl.algorithm=%s", text_algorithm_at(i)->name);
        const char *more[] = {algorithm,          "rl.num_iterations=2",    "rl.num_minibatches=2", "rl.beta=0.05",
                              "rl.ent_coef=0.01", "generate.temperature=2", "rl.seq_kd=true",       teacher};
        const size_t n_more = COUNT_OF(more) - !text_algorithm_at(i)->taught; /* only these have a teacher */
        Recipe *recipes[3];
        for (int k = 0; k < 3; k++) {
            snprintf(names[k], sizeof names[k], "%zu-%d", i, k);
            recipes[k] = recipe_of(names[k], more, n_more);
        }
        test_text_rl_run(recipes[0], false, false);
        test_text_rl_run(recipes[1], false, true);
        test_text_rl_run(recipes[1], true, false);
        omp_set_num_threads(threads > 1 ? 1 : 2);
        test_text_rl_run(recipes[2], false, false);
        omp_set_num_threads(threads);
        for (int k = 0; k < 3; k++) {
            if (k > 0) check_same_file(test_folder, names[k], names[0], "adapter/adapter_model.safetensors");
            if (k > 0) check_same_file(test_folder, names[k], names[0], "samples.jsonl");
            recipe_free(recipes[k]);
        }
        assert_true(last_metric(names[0], "grad_norm") > 0);
    }
}

/* ---- samples ---- */

/* Samples after the checkpoint are written again; missing samples from before it are reported. */
TEST(samples_are_those_of_the_checkpoint) {
    static const char *const names[] = {"whole", "longer", "shorter"};
    static const char told[] = "some samples from before it are lost";
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Recipe *recipe = recipe_of(names[i], NULL, 0);
        Str log = {0};
        test_text_rl_run(recipe, false, i > 0);
        if (i == 1) check_ok(file_append(in_run(names[i], "samples.jsonl"), "{\"step\": 1}\n", 12));
        if (i == 2) check_ok(file_truncate(in_run(names[i], "samples.jsonl"), 0));
        if (i > 0) test_text_rl_run(recipe, true, false);
        if (i == 1) check_same_file(test_folder, names[i], names[0], "samples.jsonl");
        read_file(names[i], "log.txt", &log);
        assert_int_equal(strstr(str_text(&log), told) != NULL, i == 2);
        str_release(&log);
        recipe_free(recipe);
    }
}

/* ---- a reward program that dies ---- */

static const char *death; /* the file that kills the program */
static int64_t death_after;

static void die_after(void *context, const Progress *progress) {
    (void)context;
    if (progress->step == death_after) check_ok(file_write_all(death, "", 0));
}

/* Whether the program dies at samples or at held-out prompts, the resumed run is the same as an undisturbed one. */
TEST(a_reward_program_that_dies_loses_nothing) {
    static const struct {
        const char *name, *on, *step;
        int64_t after;
    } deaths[] = {{"sampling", "*", "a checkpoint of step 2 is saved in", 2},
                  {"judging", "*held*", "a checkpoint of step 2 is saved in", 1},
                  {"the_last", "*held*", "a checkpoint of step 4 is saved in", 3}};
    char path[300], reward[900], data[400];
    snprintf(path, sizeof path, "%s", temp_file(test_folder, "death"));
    snprintf(data, sizeof data, "data.eval=%s", temp_text(test_folder, "held.jsonl", "{\"prompt\": \"> 'held' =\", \"answer\": \"held\"}\n"));
    for (size_t i = 0; i < COUNT_OF(deaths); i++) {
        TrainResult result;
        Str got = {0}, want = {0};
        char name[32];
        snprintf(
            reward, sizeof reward,
            "reward=[{type: length, target: 3}, {type: command, cache: false, command: [sh, -c, 'while read -r line; do case \"$line\" in %s) [ -e %s ] && exit 3;; esac; echo 1; done']}]",
            deaths[i].on, path);
        snprintf(name, sizeof name, "whole_%s", deaths[i].name);
        const char *more[] = {reward, data, "train.eval_every=1"};
        Recipe *whole = recipe_of(name, more, 3), *dies = recipe_of(deaths[i].name, more, 3);
        test_text_rl_run(whole, false, false);
        death = path;
        death_after = deaths[i].after;
        check_status(
            text_rl_run(&(TrainingConfig){.recipe = dies, .runtime = runtime_of(dies), .on_progress = die_after}, &(RewardOptions){0}, &result),
            ST_RESOURCE);
        check_contains(status_hint_text(), deaths[i].step);
        remove(path);
        test_text_rl_run(dies, true, false);
        metrics_text(temp_file(test_folder, deaths[i].name), &got);
        metrics_text(temp_file(test_folder, name), &want);
        assert_string_equal(str_text(&got), str_text(&want));
        check_same_file(test_folder, deaths[i].name, name, "adapter/adapter_model.safetensors");
        check_same_file(test_folder, deaths[i].name, name, "samples.jsonl");
        str_release(&got);
        str_release(&want);
        recipe_free(whole);
        recipe_free(dies);
    }
}

static void take_samples_away(void *context, const Progress *progress) {
    if (progress->step != 2) return;
    check_ok(dir_rename(in_run("unshown", "samples.jsonl"), context));
    check_ok(dir_make(in_run("unshown", "samples.jsonl")));
}

TEST(samples_that_cannot_be_written_lose_nothing) {
    TrainResult result;
    char aside[400];
    snprintf(aside, sizeof aside, "%s", temp_file(test_folder, "aside.jsonl"));
    Recipe *shown = recipe_of("shown", NULL, 0), *hidden_part = recipe_of("unshown", NULL, 0);
    test_text_rl_run(shown, false, false);
    assert_int_not_equal(
        text_rl_run(&(TrainingConfig){.recipe = hidden_part, .runtime = runtime_of(hidden_part), .on_progress = take_samples_away, .context = aside},
                    &(RewardOptions){0}, &result),
        ST_OK);
    check_contains(status_text(), "samples.jsonl");
    check_contains(status_hint_text(), "a checkpoint of step 2 is saved in");
    check_ok(dir_remove(in_run("unshown", "samples.jsonl")));
    check_ok(dir_rename(aside, in_run("unshown", "samples.jsonl")));
    test_text_rl_run(hidden_part, true, false);
    check_same_file(test_folder, "unshown", "shown", "adapter/adapter_model.safetensors");
    check_same_file(test_folder, "unshown", "shown", "samples.jsonl");
    recipe_free(shown);
    recipe_free(hidden_part);
}

/* What values are learned by, how the KL is steered: all of it is in the checkpoint. */
TEST(values_resume_to_the_same_bytes) {
    static const struct {
        const char *name, *settings[4], *value;
    } runs[] = {
        {"head", {"rl.algorithm=ppo", "rl.value_learning_rate=0.01", "rl.adaptive_kl=0.1", "rl.kl_horizon=100"}, "value_head.safetensors"},
        {"own",
         {"rl.algorithm=ppo", "rl.value_model=base", "rl.value_lambda=1", "rl.sampler_correction=sequence_mask"},
         "value/adapter_model.safetensors"},
        {"own_head", {"rl.algorithm=ppo", "rl.value_model=base", "rl.target_kl=0.0001", "rl.dual_clip=3"}, "value/value_head.safetensors"},
        {"reinforce", {"rl.algorithm=reinforce", "rl.value_model=head", "rl.kl_in=reward", "rl.kl=k1"}, "value_head.safetensors"},
    };
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        char parts[64];
        const char *settings[8] = {"rl.beta=0.05", "rl.num_iterations=2", "rl.num_minibatches=2", "generate.max_new_tokens=4"};
        memcpy(settings + 4, runs[i].settings, sizeof runs[i].settings);
        snprintf(parts, sizeof parts, "%s_parts", runs[i].name);
        Recipe *whole = recipe_of(runs[i].name, settings, 8), *halves = recipe_of(parts, settings, 8);
        test_text_rl_run(whole, false, false);
        test_text_rl_run(halves, false, true);
        test_text_rl_run(halves, true, false);
        check_same_file(test_folder, parts, runs[i].name, "adapter/adapter_model.safetensors");
        check_same_file(test_folder, parts, runs[i].name, runs[i].value);
        check_same_file(test_folder, parts, runs[i].name, "samples.jsonl");
        assert_true(last_metric(runs[i].name, "value_loss") > 0);
        assert_true(last_metric(runs[i].name, "explained_variance") < 1);
        recipe_free(whole);
        recipe_free(halves);
    }
    assert_true(last_metric("head", "kl_coef") != 0.05);
    assert_true(last_metric("own", "value_grad_norm") > 0);
}

/* Token values of branches, and after cut completions, are those of whole rows computed alone. */
TEST(values_are_those_of_rows) {
    static const char *const settings[] = {"model.compute=f32"};
    Recipe *recipe = recipe_of("values", settings, 1);
    Model *model;
    PromptSet prompts;
    Tokenizer *tokenizer;
    TextValue *value;
    check_ok(trained_model_open(recipe, runtime_of(recipe), &model));
    check_ok(text_value_open(recipe, NULL, "head", model, &value));
    for (int64_t i = 0; i < tensor_count(value->head); i++) tensor_set(value->head, i, (double)(i % 7) - 3);
    check_ok(tokenizer_load(model_dir, &tokenizer));
    check_ok(prompts_read(recipe->data_train, "data.train", recipe, &model->config, NULL, tokenizer, &prompts));
    const PromptRow *asked[] = {&prompts.items[0], &prompts.items[3]};
    GenerateConfig config = {
        .sample = {.temperature = 2, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = 5, .n = 4, .seed = 3};
    Experience e = {0};
    check_ok(experience_sample(model, tokenizer, asked, 2, 0, &config, NULL, &e));
    TextPass pass = {.tape = tape_new(device_cpu(), DT_F32, 0), .temperature = 1, .max_tokens = 1000, .value_head = value->head};
    tape_record(pass.tape, false);
    check_ok(text_pass_forward(&pass, model, &e, 0, e.n, &(TextResults){.logprobs = e.logprobs, .values = e.values, .final_values = e.final_values}));
    Tape *plain = tape_new(device_cpu(), DT_F32, 0);
    tape_record(plain, false);
    int cut = 0;
    for (int64_t i = 0; i < e.n; i++) {
        const Ids *prompt = &asked[i / 4]->ids;
        int64_t length = e.begin[i + 1] - e.begin[i], n = (int64_t)prompt->n + length;
        int32_t ids[64], places[64];
        double want[64];
        memcpy(ids, prompt->data, prompt->n * sizeof *ids);
        memcpy(ids + prompt->n, e.ids + e.begin[i], (size_t)length * sizeof *ids);
        for (int32_t t = 0; t < n; t++) places[t] = t;
        tape_reset(plain);
        Segment segment = {.begin = 0, .end = n, .parent = -1};
        Tensor *hidden = model_forward(model, plain, &(ModelBatch){.ids = ids, .layout = {.n_tokens = n, .n_segments = 1, .segments = &segment}});
        Tensor *values = op_row_scores(plain, hidden, value->head, tensor_view(tape_arena(plain), device_cpu(), DT_I32, 1, &n, places));
        check_ok(tape_status(plain));
        tensor_read(values, want);
        check_close_f64("value", e.values + e.begin[i], want + prompt->n - 1, (size_t)length, 1e-4, 1e-5);
        if (e.ended[i]) continue;
        cut++;
        check_close(e.final_values[e.begin[i + 1] - 1], want[n - 1], 1e-4);
    }
    assert_true(cut > 0);
    tape_free(plain);
    tape_free(pass.tape);
    text_pass_release(&pass);
    experience_release(&e);
    text_value_free(value);
    prompts_free(&prompts);
    tokenizer_free(tokenizer);
    model_free(model);
    recipe_free(recipe);
}

/* One optimiser step a rollout: the policy is the one that sampled, so no ratio is anything but 1. */
TEST(first_step_is_on_policy) {
    static const char *const algorithms[] = {"grpo", "ppo", "rloo", "gspo", "luspo", "sapo", "vespo"};
    for (size_t i = 0; i < COUNT_OF(algorithms); i++) {
        char setting[64];
        snprintf(setting, sizeof setting, "rl.algorithm=%s", algorithms[i]);
        const char *settings[] = {setting, "generate.temperature=2"};
        Recipe *recipe = recipe_of(algorithms[i], settings, 2);
        test_text_rl_run(recipe, false, false);
        assert_true(last_metric(algorithms[i], "approx_kl") == 0 && last_metric(algorithms[i], "clip_fraction") == 0);
        assert_true(last_metric(algorithms[i], "grad_norm") > 0);
        recipe_free(recipe);
    }
}

/* What all completions earn alike makes no difference. */
TEST(constants_change_nothing) {
    static const char *const algorithms[] = {"rl.algorithm=grpo", "rl.algorithm=rloo", "rl.algorithm=dr_grpo"};
    for (size_t i = 0; i < COUNT_OF(algorithms); i++) {
        char names[2][32];
        snprintf(names[0], 32, "plain%zu", i);
        snprintf(names[1], 32, "raised%zu", i);
        const char *plain[] = {algorithms[i], "reward=[{type: regex, pattern: 'o'}]", "generate.temperature=2", "rl.samples_every=0"};
        const char *raised[] = {algorithms[i], "reward=[{type: regex, pattern: 'o'}, {type: regex, pattern: '^', weight: 4}]",
                                "generate.temperature=2", "rl.samples_every=0"};
        Recipe *a = recipe_of(names[0], plain, 4), *b = recipe_of(names[1], raised, 4);
        test_text_rl_run(a, false, false);
        test_text_rl_run(b, false, false);
        check_close(last_metric(names[1], "reward"), last_metric(names[0], "reward") + 4, 1e-12);
        check_same_file(test_folder, names[1], names[0], "adapter/adapter_model.safetensors");
        recipe_free(a);
        recipe_free(b);
    }
}

/* Our own products sum every element in the same order for any set of rows. */
static bool products_are_our_own(bool bf16) {
    const CpuInfo *info = cpu_info();
    bool own = !strcmp(info->gemm_f32, "avx2") || !strcmp(info->gemm_f32, "avx512") || !strcmp(info->gemm_f32, "neon");
    return own && (!bf16 || !strcmp(info->gemm_bf16, info->isa));
}

/* Equal to the bit at temperature 1, for any number of completions at once. Other temperatures divide in float in one place and in double in the
 * other. Products of libraries may round a row depending on the other rows. */
TEST(sampler_and_trainer_agree) {
    static const char *const settings[][3] = {
        {"generate.temperature=1", "seed=1", "rl.num_generations=4"},
        {"generate.temperature=1", "train.batch_tokens=40", "rl.num_generations=4"},
        {"generate.temperature=1", "train.batch_tokens=100", "rl.num_generations=2"},
        {"generate.temperature=1", "train.batch_tokens=1000", "rl.num_generations=13"},
        {"generate.temperature=0.7", "seed=2", "rl.num_generations=4"},
        {"generate.temperature=1.3", "train.batch_tokens=40", "rl.num_generations=4"},
    };
    static const char *const computes[] = {"model.compute=f32", "model.compute=bf16"};
    for (size_t c = 0; c < (cpu_info()->auto_bf16 ? COUNT_OF(computes) : 1); c++)
        for (size_t i = 0; i < COUNT_OF(settings); i++) {
            const char *more[] = {settings[i][0], settings[i][1], settings[i][2], computes[c]};
            char name[32];
            snprintf(name, sizeof name, "agree%zu-%zu", c, i);
            Recipe *recipe = recipe_of(name, more, COUNT_OF(more));
            test_text_rl_run(recipe, false, false);
            bool exact = products_are_our_own(c == 1) && strcmp(settings[i][0], "generate.temperature=1") == 0;
            double most = last_metric(name, "sampler_logprob_diff");
            if (!(most <= (exact ? 0 : 1e-5)))
                fail_msg("%s, %s, %s, %s: differ by %g", computes[c], settings[i][0], settings[i][1], settings[i][2], most);
            recipe_free(recipe);
        }
}

/* Held-out prompts: the same numbers after a resume, the finished run evaluates to what its last step said, and no held-out row is trained on. */
TEST(held_out_prompts) {
    static const char *const more[] = {"data.eval_split=0.4", "train.eval_every=1", "rl.num_generations=2"};
    Recipe *recipes[2] = {recipe_of("held", more, COUNT_OF(more)), recipe_of("held-again", more, COUNT_OF(more))};
    test_text_rl_run(recipes[0], false, false);
    test_text_rl_run(recipes[1], false, true);
    test_text_rl_run(recipes[1], true, false);
    check_same_file(test_folder, "held-again", "held", "adapter/adapter_model.safetensors");
    static const char *const keys[] = {"eval_reward", "eval_reward_std", "eval_completion_length", "eval_eos_fraction"};
    for (size_t i = 0; i < COUNT_OF(keys); i++) assert_true(last_metric("held", keys[i]) == last_metric("held-again", keys[i]));
    char dir[600], data[600];
    snprintf(dir, sizeof dir, "%s/held", test_folder);
    TextEvaluation found;
    check_ok(text_rl_evaluate(device_cpu(), NULL, dir, NULL, &(RewardOptions){0}, &found));
    assert_int_equal(found.rows, 2);
    assert_true(found.reward == last_metric("held", "eval_reward"));
    arena_free(found.arena);
    snprintf(data, sizeof data, "%s", temp_text(test_folder, "others.jsonl", rows));
    check_ok(text_rl_evaluate(device_cpu(), NULL, dir, data, &(RewardOptions){0}, &found));
    assert_int_equal(found.rows, 5);
    arena_free(found.arena);
    Str samples = {0};
    read_file("held", "samples.jsonl", &samples);
    size_t seen = 0;
    static const char *const prompts[] = {"< 'pirate' =", "> 'at' =", "< 'no' =", "# 'able' =", "^ 'lip' ="};
    for (size_t i = 0; i < COUNT_OF(prompts); i++) seen += strstr(samples.data, prompts[i]) != NULL;
    assert_true(seen > 0 && seen <= 3);
    str_release(&samples);
    snprintf(dir, sizeof dir, "%s/nowhere", test_folder);
    check_status(text_rl_evaluate(device_cpu(), NULL, dir, NULL, &(RewardOptions){0}, &found), ST_CONFIG);
    arena_free(found.arena);
    recipe_free(recipes[0]);
    recipe_free(recipes[1]);
}

/* What earns the same everywhere teaches nothing: no gradient at all. */
TEST(equal_rewards_change_nothing) {
    static const char *const settings[] = {"reward=[{type: regex, pattern: 'never found'}]"};
    Recipe *recipe = recipe_of("equal", settings, 1);
    test_text_rl_run(recipe, false, false);
    assert_true(last_metric("equal", "grad_norm") == 0);
    assert_true(last_metric("equal", "zero_std_fraction") == 1);
    recipe_free(recipe);
}

/* A step without a trained token has measured nothing, and that is said instead of what zeros would look like. */
TEST(untrained_steps_measure_nothing) {
    static const char *const metrics[] = {"entropy", "clip_fraction", "approx_kl", "sampler_logprob_diff"};
    static const struct {
        const char *name, *settings[3], *said;
    } cases[] = {{"cut", {"rl.mask_truncated=true", "generate.max_new_tokens=1", "train.max_steps=4"}, "rl.mask_truncated excludes those"},
                 {"ties", {"rl.algorithm=online_dpo", "reward=[{type: regex, pattern: 'never found'}]", "rl.beta=0.1"}, "there was no pair"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Recipe *recipe = recipe_of(cases[i].name, cases[i].settings, COUNT_OF(cases[i].settings));
        Str text = {0};
        test_text_rl_run(recipe, false, false);
        read_file(cases[i].name, "metrics.jsonl", &text);
        for (size_t k = 0; k < COUNT_OF(metrics); k++) {
            char unknown[64];
            snprintf(unknown, sizeof unknown, "\"%s\": null", metrics[k]);
            check_contains(str_text(&text), unknown);
        }
        str_clear(&text);
        read_file(cases[i].name, "log.txt", &text);
        check_contains(str_text(&text), "no token was trained in the last steps");
        check_contains(str_text(&text), cases[i].said);
        str_release(&text);
        recipe_free(recipe);
    }
}

/* Ratios of sequences count once each, in passes of however many tokens. */
TEST(clip_fraction_is_of_ratios) {
    static const char *const cuts[] = {"train.batch_tokens=24", "train.batch_tokens=1000"};
    double fractions[2];
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        const char *settings[] = {"rl.algorithm=rloo", "rl.num_iterations=2", "rl.clip=0.02", "generate.temperature=2", "train.max_steps=1", cuts[i]};
        Recipe *recipe = recipe_of(i ? "at-once" : "in-passes", settings, COUNT_OF(settings));
        test_text_rl_run(recipe, false, false);
        fractions[i] = last_metric(i ? "at-once" : "in-passes", "clip_fraction");
        recipe_free(recipe);
    }
    assert_true(fractions[0] > 0 && fractions[0] < 1);
    check_close(fractions[0], fractions[1], 1e-12);
}

/* Groups with equal rewards are replaced by further prompts, up to the number of rounds. All samples are counted, and the stream of prompts
 * continues from a checkpoint. */
TEST(flat_groups_are_replaced) {
    static const char *const settings[] = {"rl.algorithm=dapo", "reward=[{type: regex, pattern: '[xyz]'}]", "rl.sampling_rounds=40",
                                           "generate.temperature=2"};
    Recipe *whole = recipe_of("whole", settings, COUNT_OF(settings)), *parts = recipe_of("parts", settings, COUNT_OF(settings));
    test_text_rl_run(whole, false, false);
    test_text_rl_run(parts, false, true);
    test_text_rl_run(parts, true, false);
    check_same_file(test_folder, "parts", "whole", "adapter/adapter_model.safetensors");
    check_same_file(test_folder, "parts", "whole", "samples.jsonl");
    double sampled = last_metric("whole", "groups_sampled"), flat = last_metric("whole", "zero_std_fraction") * sampled;
    assert_true(last_metric("whole", "sampling_rounds") > 1 && last_metric("whole", "sampling_rounds") < 40);
    check_close(last_metric("whole", "groups_replaced"), flat, 1e-9); /* so none is left */
    check_close(sampled - flat, 4, 1e-9);
    assert_true(last_metric("whole", "epoch") > 4 * 4 / 5.0); /* more prompts were asked than without */
    recipe_free(whole);
    recipe_free(parts);

    static const char *const never[] = {"rl.algorithm=dapo", "reward=[{type: regex, pattern: 'never found'}]", "rl.sampling_rounds=3"};
    Recipe *recipe = recipe_of("never", never, COUNT_OF(never));
    test_text_rl_run(recipe, false, false);
    assert_true(last_metric("never", "sampling_rounds") == 3 && last_metric("never", "groups_sampled") == 12 &&
                last_metric("never", "groups_replaced") == 8);
    assert_true(last_metric("never", "grad_norm") == 0);
    recipe_free(recipe);
}

/* Log-probabilities of completions as branches of their prompt are those of whole rows computed alone. */
TEST(branches_are_scored_as_rows) {
    Recipe *recipe = recipe_of("branches", NULL, 0);
    Model *model;
    PromptSet prompts;
    Tokenizer *tokenizer;
    check_ok(trained_model_open(recipe, runtime_of(recipe), &model));
    check_ok(tokenizer_load(model_dir, &tokenizer));
    check_ok(prompts_read(recipe->data_train, "data.train", recipe, &model->config, NULL, tokenizer, &prompts));
    const PromptRow *asked[] = {&prompts.items[0], &prompts.items[3]};
    GenerateConfig config = {
        .sample = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = 7, .n = 3, .seed = 5};
    Experience e = {0};
    check_ok(experience_sample(model, tokenizer, asked, 2, 0, &config, NULL, &e));
    assert_int_equal(e.n, 6);
    TextPass pass = {.tape = tape_new(device_cpu(), model->compute, 0), .temperature = 1, .max_tokens = 1000};
    assert_int_equal(text_pass_fit(&pass, &e, 0, e.n), 6);
    check_ok(text_pass_forward(&pass, model, &e, 0, e.n, &(TextResults){.logprobs = e.logprobs}));
    for (int64_t i = 0; i < e.n; i++) {
        const Ids *prompt = &asked[i / 3]->ids;
        size_t length = (size_t)(e.begin[i + 1] - e.begin[i]), n = prompt->n + length;
        int32_t ids[64];
        double logprobs[64];
        memcpy(ids, prompt->data, prompt->n * sizeof *ids);
        memcpy(ids + prompt->n, e.ids + e.begin[i], length * sizeof *ids);
        check_ok(score_rows(model, &(ScoreRow){ids, n, logprobs}, 1, NULL, NULL));
        /* the bits of a row may depend on the other rows */
        check_close_f64("branch", e.logprobs + e.begin[i], logprobs + prompt->n, length, 1e-6, 0);
        check_close_f64("sampled", e.sampled + e.begin[i], logprobs + prompt->n, length, 1e-6, 0);
    }
    Tape *tape = pass.tape;
    text_pass_release(&pass);
    tape_free(tape);
    experience_release(&e);
    prompts_free(&prompts);
    tokenizer_free(tokenizer);
    model_free(model);
    recipe_free(recipe);
}

/* Mean of "reward" over steps first .. end - 1 (from 0). */
static double mean_reward(const char *run_name, int first, int end) {
    Str text = {0};
    double sum = 0;
    int step = 0;
    read_file(run_name, "metrics.jsonl", &text);
    for (char *line = text.data, *next; (next = strchr(line, '\n')); line = next + 1, step++) {
        json_t *json;
        check_ok(json_read_text(line, (size_t)(next - line), "metrics.jsonl", &json));
        if (step >= first && step < end) sum += json_number_value(json_object_get(json, "reward"));
        json_decref(json);
    }
    assert_true(step >= end);
    str_release(&text);
    return sum / (end - first);
}

/* A letter that earns comes up more and more. */
TEST(rewards_are_learned) {
    skip_learning_under_sanitizers();
    static const char *const how[][2] = {
        {"rl.algorithm=grpo", "rl.beta=0"}, {"rl.algorithm=ppo", "rl.value_learning_rate=0.02"}, {"rl.algorithm=ppo", "rl.value_model=base"}};
    for (size_t i = 0; i < COUNT_OF(how); i++) {
        char name[32];
        snprintf(name, sizeof name, "learns%zu", i);
        const char *settings[] = {how[i][0],
                                  how[i][1],
                                  "reward=[{type: regex, pattern: 'o'}]",
                                  "train.max_steps=60",
                                  "rl.num_generations=8",
                                  "generate.temperature=3",
                                  "generate.max_new_tokens=12"};
        Recipe *recipe = recipe_of(name, settings, COUNT_OF(settings));
        test_text_rl_run(recipe, false, false);
        double before = mean_reward(name, 0, 10), after = mean_reward(name, 50, 60);
        if (!(after > before + 0.25)) fail_msg("%s: mean reward %g of the first ten steps, %g of the last", how[i][0], before, after);
        recipe_free(recipe);
    }
}

/* The same of every algorithm, in at least four of five seeds; with TEST_LONG=1 (make test-long). */
TEST(every_algorithm_learns) {
    if (!long_tests()) skip();
    for (size_t i = 0; text_algorithm_at(i); i++) {
        const char *algorithm = text_algorithm_at(i)->name;
        int learned = 0;
        for (int seed = 1; seed <= 5; seed++) {
            char name[64], texts[2][64];
            snprintf(name, sizeof name, "%zu-seed%d", i, seed);
            snprintf(texts[0], sizeof texts[0], "rl.algorithm=%s", algorithm);
            snprintf(texts[1], sizeof texts[1], "seed=%d", seed);
            const char *settings[] = {texts[0],
                                      texts[1],
                                      "reward=[{type: regex, pattern: 'o'}]",
                                      "train.max_steps=60",
                                      "rl.num_generations=8",
                                      "generate.temperature=3",
                                      "generate.max_new_tokens=12"};
            Recipe *recipe = recipe_of(name, settings, COUNT_OF(settings));
            test_text_rl_run(recipe, false, false);
            double before = mean_reward(name, 0, 10), after = mean_reward(name, 50, 60);
            learned += after > before + 0.15;
            print_message("%s, seed %d: %.3f -> %.3f\n", algorithm, seed, before, after);
            recipe_free(recipe);
        }
        if (learned < 4) fail_msg("%s learns in %d of 5 seeds", algorithm, learned);
    }
}

TEST(what_does_not_go_together_is_named) {
    static const struct {
        const char *setting, *message;
    } faults[] = {
        {"rl.num_generations=1", "algorithm 'grpo' compares completions of the same prompt"},
        {"generate.greedy=true", "a policy gradient needs sampled answers"},
        {"lora.dropout=0.1", "'lora.dropout' would make"},
        {"rl.algorithm=q_learning", "'rl.algorithm: q_learning' needs an environment"},
        {"reward=null", "'reward' is missing"},
        {"rl.scale_rewards=batch rl.algorithm=rloo", "algorithm 'rloo' on text does not take 'rl.scale_rewards'"},
        {"rl.value_model=head", "algorithm 'grpo' on text does not take 'rl.value_model'"},
        {"rl.dual_clip=3 rl.algorithm=reinforce", "algorithm 'reinforce' on text does not take 'rl.dual_clip'"},
        {"rl.adaptive_kl=3 rl.algorithm=ppo", "'rl.adaptive_kl' adapts rl.beta"},
        {"rl.kl_corrected=true", "'rl.kl_corrected' applies to a KL in the loss"},
        {"rl.algorithm=reinforce rl.sampling_rounds=2", "'rl.sampling_rounds' replaces groups"},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        TrainResult result;
        char text[400];
        const char *settings[8];
        snprintf(text, sizeof text, "%s", faults[i].setting);
        size_t n = 0;
        for (char *at = strtok(text, " "); at; at = strtok(NULL, " ")) settings[n++] = at;
        Recipe *recipe = recipe_of("fault", settings, n);
        Status status = rl_check_keys(recipe);
        check_status(status == ST_OK ? text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &(RewardOptions){0}, &result)
                                     : status,
                     ST_CONFIG);
        check_text(faults[i].message);
        recipe_free(recipe);
    }
}

#define SHAPE(family, architecture, vocab_size)                                                                          \
    "{\"model_type\": \"" family "\", \"architectures\": [\"" architecture "\"], \"vocab_size\": " vocab_size            \
    ", \"hidden_size\": 16, \"intermediate_size\": 16, "                                                                 \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64," \
    " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "                                       \
    "\"tie_word_embeddings\": true, \"num_labels\": 1, \"id2label\": {\"0\": \"LABEL_0\"}, \"bos_token_id\": 0, \"eos_token_id\": 1}"

/* Value models and reward models that read other tokens than the policy writes. */
TEST(models_of_other_tokens_are_named) {
    static const struct {
        const char *config;
        bool other_tokens;
        const char *lines[2], *message;
    } faults[] = {
        {SHAPE("qwen2", "Qwen2ForCausalLM", "258"), false, {"rl.algorithm=ppo", "rl.value_model=%s"}, "is of family 'qwen2', the policy of 'llama'"},
        {SHAPE("llama", "LlamaForCausalLM", "300"),
         false,
         {"rl.algorithm=ppo", "rl.value_model=%s"},
         "is of vocabulary '300 tokens', the policy of '258 tokens'"},
        {SHAPE("llama", "LlamaForCausalLM", "258"), true, {"rl.algorithm=ppo", "rl.value_model=%s"}, "has another tokenizer than the policy"},
        {SHAPE("llama", "LlamaForSequenceClassification", "258"),
         true,
         {"rl.algorithm=grpo", "reward=[{type: model, model: %s}]"},
         "the tokenizer of the reward model"},
        {SHAPE("llama", "LlamaForSequenceClassification", "200"),
         false,
         {"rl.algorithm=grpo", "reward=[{type: model, model: %s}]"},
         "the vocabulary of the reward model"},
    };
    Str tokens = {0};
    check_ok(file_read(temp_file(model_dir, "tokenizer.json"), 1 << 20, &tokens));
    for (char *at = tokens.data; (at = strstr(at, "<bos>")); at++) memcpy(at, "<BOS>", 5);
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        TrainResult result;
        char dir[300], line[400];
        const char *settings[] = {faults[i].lines[0], line};
        snprintf(dir, sizeof dir, "%s/other-%zu", test_folder, i);
        snprintf(line, sizeof line, faults[i].lines[1], dir);
        check_ok(model_write_random(dir, faults[i].config, DT_F32, 1, 0.1));
        if (faults[i].other_tokens) check_ok(file_write_all(temp_file(dir, "tokenizer.json"), tokens.data, tokens.len));
        Recipe *recipe = recipe_of("fault", settings, 2);
        check_status(text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &(RewardOptions){0}, &result), ST_INPUT);
        check_text(faults[i].message);
        assert_false(dir_exists(recipe->output)); /* nothing was begun */
        recipe_free(recipe);
    }
    str_release(&tokens);
}

/* Two groups of three. Lengths 1 2 3 and 4 6 8, besides one observation token, with rewards 1 2 3 and 3 5 4: within groups 4 / sqrt(10 x 4). Two
 * rewards; the second one decreases and is unknown in the second group: -1. */
TEST(correlations_are_within_groups) {
    static int64_t begin[] = {0, 1, 4, 7, 11, 17, 25};
    static bool trained[25];
    static double rewards[] = {1, 2, 3, 3, 5, 4}, first[] = {1, 2, 3, 3, 5, 4}, second[] = {1, 2, 3, 7, 7, 7}, flat[6];
    for (int i = 3; i < 6; i++) second[i] = (double)NAN;
    for (int t = 0; t < 25; t++) trained[t] = t != 2;
    const RewardColumn columns[] = {{"a", first, 2}, {"b", second, -1}, {"c", flat, 1}, {"b/extra", second, 0}};
    RewardScores scores = {.n_rows = 6, .n_columns = 4, .sums = rewards, .columns = columns};
    Experience experience = {.n_groups = 2, .group_size = 3, .n = 6, .begin = begin, .trained = trained, .rewards = rewards};
    Correlations sums = {.of[0][1].xy = 0};
    Metrics metrics = {.n = 0};
    TextRl rl = {.arena = arena_new(0)};
    check_ok(text_correlations_add(&rl, &experience, &scores, &sums));
    text_correlations_report(&rl, &sums, &metrics);
    assert_int_equal(metrics.n, 4);
    check_close(metric_get(&metrics, "length_reward_correlation"), 4 / sqrt(40), 1e-12);
    check_close(metric_get(&metrics, "reward_correlation/a:b"), -1, 1e-12);
    assert_true(isnan(metric_get(&metrics, "reward_correlation/a:c"))); /* c does not differ */
    experience.group_size = 1;                                          /* single completions are compared with all */
    experience.n_groups = 6;
    sums = (Correlations){.of[0][1].xy = 0};
    check_ok(text_correlations_add(&rl, &experience, &scores, &sums));
    text_correlations_report(&rl, &sums, &metrics);
    check_close(metric_get(&metrics, "length_reward_correlation"), 16 / sqrt(34 * 10), 1e-12);
    arena_free(rl.arena);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_algorithm_resumes_to_the_same_bytes, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(samples_are_those_of_the_checkpoint, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(samples_that_cannot_be_written_lose_nothing, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(a_reward_program_that_dies_loses_nothing, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(values_resume_to_the_same_bytes, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(values_are_those_of_rows, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(first_step_is_on_policy, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(constants_change_nothing, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(sampler_and_trainer_agree, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(held_out_prompts, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(equal_rewards_change_nothing, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(untrained_steps_measure_nothing, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(clip_fraction_is_of_ratios, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(flat_groups_are_replaced, test_folder_make, test_folder_remove),
        cmocka_unit_test(correlations_are_within_groups),
        cmocka_unit_test_setup_teardown(branches_are_scored_as_rows, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(rewards_are_learned, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(every_algorithm_learns, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(what_does_not_go_together_is_named, test_folder_make, test_folder_remove),
        cmocka_unit_test_setup_teardown(models_of_other_tokens_are_named, test_folder_make, test_folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
