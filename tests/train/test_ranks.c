/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs on ranks: the same files as in one process, on any number of ranks, whatever they divide; also resumed on another number of ranks. */
#include "lib/base/system.h"
#include "rl/pairs/preference.h"
#include "rl/pairs/reward_training.h"
#include "rl/text/text_rl.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/ranks.h"
#include "tests/support/runs.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a run on some ranks ---- */

typedef Status RunFn(const TrainingConfig *config, TrainResult *result);
typedef struct RankedRun {
    RunFn *run;
    const char *name, *settings, *more; /* settings: "key=value" lines, those of `more` after them */
    bool resume;
    int64_t stop_after; /* interrupts one rank after this step; 0: none */
} RankedRun;

static void stop(void *context, const Progress *progress) {
    if (progress->step == *(const int64_t *)context) interrupt_request();
}

static Status run_on_rank(Comm *comm, void *data) {
    const RankedRun *ranked = data;
    TrainResult result;
    omp_set_num_threads(1);
    Recipe *recipe = recipe_of_lines("model.path=recipes/demo/model\nmodel.compute=f32\noutput=%s\n%s\n%s", temp_file(test_folder, ranked->name),
                                     ranked->settings, ranked->more);
    bool stops = ranked->stop_after > 0 && comm_rank(comm) == comm_size(comm) - 1;
    int64_t stop_after = ranked->stop_after;
    Status status = ranked->run(&(TrainingConfig){.recipe = recipe,
                                                  .runtime = runtime_of(recipe),
                                                  .options.resume = ranked->resume,
                                                  .comm = comm,
                                                  .on_progress = stops ? stop : NULL,
                                                  .context = &stop_after},
                                &result);
    recipe_free(recipe);
    return status;
}

static void run_on(int ranks, const RankedRun *ranked, Status wanted) {
    RankRun run = {.config.timeout = 120};
    Status status = ranks_fork(ranks, &run, run_on_rank, (void *)(uintptr_t)ranked);
    if (status != wanted) fail_msg("%s on %d ranks: %s", ranked->name, ranks, status_text());
}

/* ---- what a run leaves ---- */

static void check_same_metrics(const char *a, const char *b) {
    Str texts[2] = {{0}, {0}};
    metrics_text(temp_file(test_folder, a), &texts[0]);
    metrics_text(temp_file(test_folder, b), &texts[1]);
    assert_true(texts[0].len > 0);
    if (strcmp(str_text(&texts[0]), str_text(&texts[1])) != 0) fail_msg("%s:\n%s%s:\n%s", a, str_text(&texts[0]), b, str_text(&texts[1]));
    str_release(&texts[0]);
    str_release(&texts[1]);
}

static void check_same_run(const char *a, const char *b, const char *result, const char *checkpoint) {
    check_same_file(test_folder, a, b, result);
    check_same_file(test_folder, a, b, checkpoint);
    check_same_metrics(a, b);
}

/* ---- rows ---- */

static const char *seven_rows(void) {
    return temp_text(test_folder, "rows.jsonl",
                     "{\"prompt\": \"two plus two is\", \"completion\": \" four\"}\n"
                     "{\"prompt\": \"one plus two is\", \"completion\": \" three, and that is all that there is to say about it\"}\n"
                     "{\"prompt\": \"one plus one is\", \"completion\": \" two\"}\n"
                     "{\"prompt\": \"ten plus one is\", \"completion\": \" eleven of them\"}\n"
                     "{\"prompt\": \"five plus one is\", \"completion\": \" six\"}\n"
                     "{\"prompt\": \"five plus three is\", \"completion\": \" eight, or two times four, or a half of sixteen\"}\n"
                     "{\"prompt\": \"ten plus two is\", \"completion\": \" twelve\"}\n");
}

/* Seven rows in steps of four batches of one: the second step of an epoch has three. */
#define SEVEN \
    "data.train=%s\ndata.eval_split=0\ntrain.batch_size=1\ntrain.gradient_accumulation_steps=4\ntrain.max_steps=4\ntrain.learning_rate=1e-2\n"
#define ADAPTER SEVEN "lora.rank=4\nlora.dropout=0.1\ntrain.neftune_alpha=5\nparallel.lanes=8\ntrain.save_every=2"
#define FULL SEVEN "parallel.lanes=8\ntrain.learning_rate=1e-3\ntrain.save_every=2"

static const char *const shards[] = {"none", "optimizer", "gradients"};

/* Compares runs on ranks with the run of one process. all: every number of ranks. */
static void compare_all(RunFn *run, const char *settings, const char *result, bool full, bool all) {
    static const int sizes[] = {2, 3, 4, 8};
    static char lines[2048];
    snprintf(lines, sizeof lines, settings, seven_rows());
    for (size_t s = 0; s < COUNT_OF(shards); s++) {
        char more[64], one[32];
        snprintf(more, sizeof more, "parallel.shard=%s", shards[s]);
        snprintf(one, sizeof one, "%s-1-%s", full ? "full" : "adapter", shards[s]);
        run_on(1, &(RankedRun){run, one, lines, more, false, 0}, ST_OK);
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            char name[32];
            if (!all && (s + i) % 3 != 0) continue;
            snprintf(name, sizeof name, "%s-%d-%s", full ? "full" : "adapter", sizes[i], shards[s]);
            run_on(sizes[i], &(RankedRun){run, name, lines, more, false, 0}, ST_OK);
            check_same_run(one, name, result, "checkpoints/step-4/tensors.safetensors");
        }
    }
}

TEST(adapters_of_ranks_are_those_of_one_process) { compare_all(sft_run, ADAPTER, "adapter/adapter_model.safetensors", false, long_tests()); }

TEST(models_of_ranks_are_those_of_one_process) { compare_all(sft_run, FULL, "model/model.safetensors", true, long_tests()); }

/* Lanes alone decide the bits of an adapter: what ranks divide does not. */
TEST(what_is_divided_does_not_matter) {
    static const char file[] = "adapter/adapter_model.safetensors";
    check_same_file(test_folder, "adapter-1-none", "adapter-1-optimizer", file);
    check_same_file(test_folder, "adapter-1-none", "adapter-1-gradients", file);
    check_same_file(test_folder, "full-1-none", "full-1-optimizer", "model/model.safetensors");
}

/* ---- ends and beginnings ---- */

TEST(a_run_goes_on_with_other_ranks) {
    static char lines[2048];
    snprintf(lines, sizeof lines, FULL, seven_rows());
    run_on(1, &(RankedRun){sft_run, "whole", lines, "", false, 0}, ST_OK);
    run_on(4, &(RankedRun){sft_run, "changing", lines, "parallel.shard=optimizer", false, 1}, ST_INTERRUPTED);
    assert_true(dir_exists(temp_file(temp_file(test_folder, "changing"), "checkpoints/step-2")));
    run_on(1, &(RankedRun){sft_run, "changing", lines, "", true, 3}, ST_INTERRUPTED);
    run_on(3, &(RankedRun){sft_run, "changing", lines, "parallel.shard=optimizer", true, 0}, ST_OK);
    check_same_run("whole", "changing", "model/model.safetensors", "checkpoints/step-4/tensors.safetensors");
    run_on(2, &(RankedRun){sft_run, "changing", lines, "", true, 0}, ST_OK); /* it is finished */
}

/* A failure of one rank ends all. */
TEST(a_failure_of_one_rank_ends_all) {
    static char lines[2048];
    snprintf(lines, sizeof lines, ADAPTER, temp_text(test_folder, "none.jsonl", ""));
    run_on(3, &(RankedRun){sft_run, "no-rows", lines, "", false, 0}, ST_INPUT);
    assert_false(dir_exists(temp_file(test_folder, "no-rows")));
}

/* ---- other objectives, and evaluations ---- */

static const char *pair_lines(void) {
    return temp_text(test_folder, "pairs.jsonl",
                     "{\"prompt\": \"two plus two is\", \"chosen\": \" four\", \"rejected\": \" five\"}\n"
                     "{\"prompt\": \"one plus two is\", \"chosen\": \" three, of course\", \"rejected\": \" one\"}\n"
                     "{\"prompt\": \"ten plus two is\", \"chosen\": \" twelve\", \"rejected\": \" two, or so it seems to me\"}\n"
                     "{\"prompt\": \"one plus one is\", \"chosen\": \" two\", \"rejected\": \" eleven\"}\n"
                     "{\"prompt\": \"five plus one is\", \"chosen\": \" six\", \"rejected\": \" none\"}\n"
                     "{\"prompt\": \"nine plus one is\", \"chosen\": \" ten\", \"rejected\": \" ninety-one\"}\n");
}

static void compare_pairs(RunFn *run, const char *name, const char *more) {
    static char lines[2048];
    char one[32], three[32];
    snprintf(lines, sizeof lines,
             "data.train=%s\ndata.eval=%s\ntrain.batch_size=1\ntrain.gradient_accumulation_steps=4\ntrain.max_steps=2\ntrain.eval_every=1\n"
             "train.learning_rate=1e-2\nlora.rank=4\nlora.dropout=0.1\nparallel.lanes=8",
             pair_lines(), pair_lines());
    snprintf(one, sizeof one, "%s-1", name);
    snprintf(three, sizeof three, "%s-3", name);
    run_on(1, &(RankedRun){run, one, lines, more, false, 0}, ST_OK);
    run_on(3, &(RankedRun){run, three, lines, more, false, 0}, ST_OK);
    check_same_run(one, three, "adapter/adapter_model.safetensors", "checkpoints/step-2/tensors.safetensors");
}

TEST(pairs_on_ranks_are_those_of_one_process) {
    compare_pairs(preference_run, "dpo", "rl.algorithm=dpo");
    compare_pairs(reward_training_run, "reward", "");
}

/* ---- policy gradients on text ---- */

static Status policy_run(const TrainingConfig *config, TrainResult *result) {
    return text_rl_run(config, &(RewardOptions){.max_new_tokens = 6}, result);
}

static const char *policy_lines(void) {
    static char lines[2048];
    snprintf(
        lines, sizeof lines,
        "data.train=%s\ntrain.max_steps=2\ntrain.learning_rate=1e-2\nlora.rank=4\ngenerate.max_new_tokens=6\ngenerate.temperature=2\n"
        "rl.num_generations=2\nrl.prompts_per_step=3\ntrain.batch_tokens=24\nparallel.lanes=8\nreward=[{type: length, target: 3}]\n"
        "rl.num_iterations=2\nrl.beta=0.05",
        temp_text(test_folder, "prompts.jsonl",
                  "{\"prompt\": \"two plus two is\"}\n{\"prompt\": \"one plus two is\"}\n{\"prompt\": \"nine is\"}\n{\"prompt\": \"ten is\"}\n"));
    return lines;
}

static void compare_policies(const char *name, const char *more, int ranks) {
    char one[32], many[32];
    snprintf(one, sizeof one, "%s-1", name);
    snprintf(many, sizeof many, "%s-%d", name, ranks);
    run_on(1, &(RankedRun){policy_run, one, policy_lines(), more, false, 0}, ST_OK);
    run_on(ranks, &(RankedRun){policy_run, many, policy_lines(), more, false, 0}, ST_OK);
    check_same_run(one, many, "adapter/adapter_model.safetensors", "checkpoints/step-2/tensors.safetensors");
}

TEST(policies_on_ranks_are_those_of_one_process) {
    compare_policies("grpo", "rl.algorithm=grpo", 2);
    compare_policies("ppo", "rl.algorithm=ppo", 4);
}

/* The ranks ask each other before a step, and save together. */
TEST(a_policy_goes_on_with_other_ranks) {
    static const char more[] = "rl.algorithm=grpo";
    run_on(2, &(RankedRun){policy_run, "grpo-changing", policy_lines(), more, false, 1}, ST_INTERRUPTED);
    assert_true(dir_exists(temp_file(temp_file(test_folder, "grpo-changing"), "checkpoints/step-1")));
    run_on(3, &(RankedRun){policy_run, "grpo-changing", policy_lines(), more, true, 0}, ST_OK);
    check_same_run("grpo-1", "grpo-changing", "adapter/adapter_model.safetensors", "checkpoints/step-2/tensors.safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_of_ranks_are_those_of_one_process),
        cmocka_unit_test(models_of_ranks_are_those_of_one_process),
        cmocka_unit_test(what_is_divided_does_not_matter),
        cmocka_unit_test(a_run_goes_on_with_other_ranks),
        cmocka_unit_test(a_failure_of_one_rank_ends_all),
        cmocka_unit_test(pairs_on_ranks_are_those_of_one_process),
        cmocka_unit_test(policies_on_ranks_are_those_of_one_process),
        cmocka_unit_test(a_policy_goes_on_with_other_ranks),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
