/* SPDX-License-Identifier: Apache-2.0 */
/* Online DPO: known first losses, steps that do not depend on how they are cut into passes, ties that are skipped, and that it learns. Resume and
 * threads: test_text_rl. */
#include "rl/text/text_rl.h"
#include "tests/support/check.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdio.h>

static const char prompts[] =
    "{\"prompt\": \"< 'pirate' =\"}\n{\"prompt\": \"> 'at' =\"}\n{\"prompt\": \"< 'no' =\"}\n{\"prompt\": \"# 'able' =\"}\n{\"prompt\": \"^ 'lip' =\"}\n";

/* The recipe of a run: the common settings, then `lines`, one setting a line. */
static Recipe *recipe_of(const char *name, const char *lines) {
    return recipe_of_lines(
        "model.path=recipes/demo/model\nmodel.compute=f32\nlora.rank=4\noutput=%s/%s\ndata.train=%s\ntrain.learning_rate=0.003\ntrain.lr_scheduler=constant\n%s",
        test_folder, name, temp_text(test_folder, "prompts.jsonl", prompts), lines);
}

static void run_online(const char *name, const char *lines) {
    TrainResult result;
    Str all = {0};
    str_printf(
        &all,
        "rl.algorithm=online_dpo\nrl.prompts_per_step=4\nrl.num_generations=4\ngenerate.max_new_tokens=8\nrl.samples_every=1\nreward=[{type: regex, pattern: 'o'}]\n%s",
        lines);
    Recipe *recipe = recipe_of(name, str_text(&all));
    check_ok(text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &(RewardOptions){0}, &result));
    recipe_free(recipe);
    str_release(&all);
}

static double one_metric(const char *name, const char *key) {
    double value;
    assert_int_equal(metrics_read(temp_file(test_folder, name), key, &value, 1), 1);
    return value;
}

/* The policy that is still the reference: every difference is 0, so the losses are those of TRL's formulas (dpo_trainer.py) there. */
TEST(first_losses) {
    static const struct {
        const char *type;
        double loss;
    } cases[] = {{"sigmoid", 0.6931471805599453}, {"hinge", 1}, {"apo_zero", 1}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[32], lines[200];
        snprintf(name, sizeof name, "first-%s", cases[i].type);
        snprintf(lines, sizeof lines, "rl.loss_type=%s\ntrain.max_steps=1\ngenerate.temperature=3\nreward=[{type: length, target: 3}]",
                 cases[i].type);
        run_online(name, lines);
        assert_true(one_metric(name, "pairs") > 0 && one_metric(name, "grad_norm") > 0);
        check_close(one_metric(name, "loss"), cases[i].loss, 1e-5); /* OpenBLAS alone: the reference is computed in other batches */
    }
}

/* 1e-4 relative: f32 sums in another order, over five steps. */
TEST(passes_change_nothing) {
    static const char *const keys[] = {"loss", "grad_norm", "margin", "accuracy", "kl", "sampler_logprob_diff"};
    const char *common = "train.max_steps=5\nrl.num_iterations=2\nrl.ent_coef=0.01\nrl.cpo_alpha=0.1\ngenerate.temperature=2";
    char lines[300];
    run_online("one-pass", common);
    snprintf(lines, sizeof lines, "%s\ntrain.batch_tokens=30", common);
    run_online("passes", lines);
    for (size_t i = 0; i < COUNT_OF(keys) - 1; i++) {
        double whole[5], cut[5];
        assert_int_equal(metrics_read(temp_file(test_folder, "one-pass"), keys[i], whole, 5), 5);
        assert_int_equal(metrics_read(temp_file(test_folder, "passes"), keys[i], cut, 5), 5);
        check_close_f64(keys[i], cut, whole, 5, 1e-6, 1e-4);
    }
    assert_false(one_metric("passes", keys[5]) > 1e-5); /* NaN in a step without a pair */
}

TEST(ties_are_skipped) {
    run_online("ties", "train.max_steps=2\nreward=[{type: regex, pattern: 'never found'}]");
    assert_int_equal(one_metric("ties", "ties"), 4);
    assert_int_equal(one_metric("ties", "pairs"), 0);
    assert_true(one_metric("ties", "grad_norm") == 0);
    assert_true(isnan(one_metric("ties", "margin")) && isnan(one_metric("ties", "entropy")));
    run_online("asked-again", "train.max_steps=1\nrl.sampling_rounds=30\ngenerate.temperature=2\nreward=[{type: length, target: 3}]");
    assert_int_equal(one_metric("asked-again", "pairs"), 4);
}

TEST(rewards_are_learned) {
    double rewards[60], margins[60], before = 0, after = 0;
    run_online("learns", "train.max_steps=60\nrl.num_generations=8\ngenerate.temperature=3\ngenerate.max_new_tokens=12");
    assert_int_equal(metrics_read(temp_file(test_folder, "learns"), "reward", rewards, 60), 60);
    assert_int_equal(metrics_read(temp_file(test_folder, "learns"), "margin", margins, 60), 60);
    for (int i = 0; i < 10; i++) before += rewards[i] / 10, after += rewards[50 + i] / 10;
    if (!(after > before + 0.2)) fail_msg("mean reward %g of the first ten steps, %g of the last", before, after);
}

TEST(wrong_settings) {
    static const struct {
        const char *lines, *message;
    } faults[] = {
        {"rl.loss_type=orpo", "algorithm 'online_dpo' has no loss 'orpo'"},
        {"rl.loss_type=aot", "compares all pairs of a step"},
        {"rl.num_generations=1", "compares completions of the same prompt"},
    };
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        TrainResult result;
        char lines[300];
        snprintf(lines, sizeof lines, "rl.algorithm=online_dpo\nreward=[{type: regex, pattern: 'o'}]\ntrain.max_steps=1\n%s", faults[i].lines);
        Recipe *recipe = recipe_of("fault", lines);
        check_status(text_rl_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &(RewardOptions){0}, &result), ST_CONFIG);
        check_text(faults[i].message);
        recipe_free(recipe);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_losses),        cmocka_unit_test(passes_change_nothing), cmocka_unit_test(ties_are_skipped),
        cmocka_unit_test(rewards_are_learned), cmocka_unit_test(wrong_settings),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
