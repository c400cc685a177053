/* SPDX-License-Identifier: Apache-2.0 */
/* Learning on text over ranks: the files of one process, whatever ranks divide; what has to be equal; reward programs; answers of teachers. */
#include "rl/text/text_rl.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/ranked_run.h"
#include "tests/support/runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char adapter[] = "adapter/adapter_model.safetensors", checkpoint[] = "checkpoints/step-3/tensors.safetensors";

static Status policy_run(const TrainingConfig *config, TrainResult *result) {
    return text_rl_run(config, &(RewardOptions){.max_new_tokens = 6}, result);
}

static const char *prompts(void) {
    return temp_text(test_folder, "prompts.jsonl",
                     "{\"prompt\": \"Spell 'able' backwards.\", \"completion\": \"elba\"}\n"
                     "{\"prompt\": \"Please shout 'pepper'.\", \"completion\": \"PEPPER\"}\n"
                     "{\"prompt\": \"How many letters are in 'violin'?\", \"completion\": \"6\"}\n"
                     "{\"prompt\": \"What is 'pie' in reverse?\", \"completion\": \"eip\"}\n");
}

/* Three steps of three prompts with two completions each, in passes of few tokens */
static const char *policy_lines(void) {
    static char lines[2048];
    snprintf(lines, sizeof lines,
             "data.train=%s\ntrain.max_steps=3\ntrain.learning_rate=1e-2\ngenerate.max_new_tokens=6\ngenerate.temperature=6\n"
             "rl.num_generations=2\nrl.prompts_per_step=3\ntrain.batch_tokens=24\nparallel.lanes=8",
             prompts());
    return lines;
}

#define LENGTH "reward=[{type: length, target: 3}]\n"
#define ADAPTER "lora.rank=4\n"

/* Each step has learned. */
static void check_learned(const char *name) {
    double norms[3];
    assert_int_equal(metrics_read(temp_file(test_folder, name), "grad_norm", norms, 3), 3);
    for (int i = 0; i < 3; i++)
        if (!(norms[i] > 0)) fail_msg("%s: a gradient of %g in step %d", name, norms[i], i + 1);
}

static void compare(const char *name, const char *more, int ranks, const char *shard) {
    char one[32], many[48], lines[512];
    snprintf(one, sizeof one, "%s-1", name);
    snprintf(many, sizeof many, "%s-%d-%s", name, ranks, shard);
    snprintf(lines, sizeof lines, "%s\nparallel.shard=%s", more, shard);
    if (!dir_exists(temp_file(test_folder, one))) run_on(1, &(RankedRun){policy_run, one, policy_lines(), more, .resume = false}, ST_OK);
    run_on(ranks, &(RankedRun){policy_run, many, policy_lines(), lines, .resume = false}, ST_OK);
    check_learned(one);
    check_same_run(one, many, adapter, checkpoint);
    check_same_file(test_folder, one, many, "samples.jsonl");
}

/* All numbers of ranks; fewer without TEST_LONG=1 */
static void compare_all(const char *name, const char *more, int ranks, const char *shard) {
    if (!long_tests()) {
        compare(name, more, ranks, shard);
        return;
    }
    for (int n = 2; n <= 4; n += 2) {
        compare(name, more, n, "none");
        compare(name, more, n, "optimizer");
        compare(name, more, n, "gradients");
    }
}

#define GRPO ADAPTER LENGTH "rl.algorithm=grpo\nrl.num_iterations=2\nrl.beta=0.05\n"

TEST(policies_of_ranks_are_those_of_one_process) {
    compare("grpo", GRPO, 2, "none");
    compare("grpo", GRPO, 4, "optimizer");
    if (!ALL_OR_FEW(true, long_tests())) return;
    compare_all("ppo", ADAPTER LENGTH "rl.algorithm=ppo\nrl.num_iterations=2", 4, "gradients");
    compare_all("online-dpo", ADAPTER LENGTH "rl.algorithm=online_dpo\nrl.sampling_rounds=3", 2, "none");
}

/* Groups without a difference are replaced: all ranks ask for the same further prompts. */
TEST(ranks_replace_the_same_groups) {
    double rounds[3];
    compare_all("dapo", ADAPTER "reward=[{type: regex, pattern: '[ae]'}]\nrl.algorithm=dapo\nrl.sampling_rounds=4", 4, "none");
    assert_int_equal(metrics_read(temp_file(test_folder, "dapo-4-none"), "sampling_rounds", rounds, 3), 3);
    assert_true(rounds[0] + rounds[1] + rounds[2] > 3);
}

TEST(a_value_model_of_its_own_is_not_divided) {
    static const char more[] = ADAPTER LENGTH "rl.algorithm=ppo\nrl.value_model=base\n";
    compare("own", more, 2, "none");
    for (int rank = 0; rank < 2; rank++) { /* the gradients of both models leave while their passes go on */
        const double buckets = rank_noted("own-2-none", 1, rank, NULL, "buckets"),
                     early = rank_noted("own-2-none", 1, rank, NULL, "buckets_in_backward");
        if (buckets < 2 || early != buckets) fail_msg("rank %d: %.0f of %.0f buckets left during a backward pass", rank, early, buckets);
    }
    if (long_tests()) compare("own", more, 4, "none");
    run_on(2,
           &(RankedRun){policy_run, "own-divided", policy_lines(), ADAPTER LENGTH "rl.algorithm=ppo\nrl.value_model=base\nparallel.shard=optimizer",
                        .resume = false},
           ST_CONFIG);
    check_contains(status_text(), "trains a second one");
    assert_false(dir_exists(temp_file(test_folder, "own-divided")));
}

/* Every weight: the gradients of a pass leave while it goes on, and their memory is used again. */
static void compare_whole(const char *name, const char *algorithm, const char *shard) {
    char one[32], three[48], more[512], divided[600];
    snprintf(one, sizeof one, "%s-1", name);
    snprintf(three, sizeof three, "%s-3-%s", name, shard);
    snprintf(more, sizeof more, "%s\nlora=null\ntrain.learning_rate=1e-3\nparallel.lanes=leaves\nparallel.bucket=1", algorithm);
    snprintf(divided, sizeof divided, "%s\nparallel.shard=%s", more, shard);
    if (!dir_exists(temp_file(test_folder, one))) run_on(1, &(RankedRun){policy_run, one, policy_lines(), more, .resume = false}, ST_OK);
    run_on(3, &(RankedRun){policy_run, three, policy_lines(), divided, .resume = false}, ST_OK);
    check_learned(one);
    check_same_run(one, three, "model/model.safetensors", checkpoint);
}

TEST(whole_models_of_ranks_are_those_of_one_process) {
    static const char grpo[] = LENGTH "rl.algorithm=grpo",
                      gkd[] = "rl.algorithm=gkd\ndistil.teacher=recipes/demo/model\nrl.beta=0.5\nrl.temperature=1.5";
    compare_whole("whole", grpo, "gradients");
    if (!ALL_OR_FEW(true, long_tests())) return;
    compare_whole("student", gkd, "gradients");
    if (!long_tests()) return;
    compare_whole("whole", grpo, "optimizer");
    compare_whole("whole", grpo, "none");
}

/* The ranks ask each other before a step, and save together. */
TEST(a_policy_goes_on_with_other_ranks) {
    run_on(4, &(RankedRun){policy_run, "changing", policy_lines(), GRPO "parallel.shard=optimizer", .stop_after = 1}, ST_INTERRUPTED);
    assert_true(dir_exists(temp_file(temp_file(test_folder, "changing"), "checkpoints/step-1")));
    run_on(1, &(RankedRun){policy_run, "changing", policy_lines(), GRPO, .resume = true, .stop_after = 2}, ST_INTERRUPTED);
    run_on(3, &(RankedRun){policy_run, "changing", policy_lines(), GRPO "parallel.shard=optimizer", .resume = true}, ST_OK);
    check_same_run("grpo-1", "changing", adapter, checkpoint);
}

TEST(steps_of_policies_have_records) {
    for (int64_t step = 1; step <= 3; step++)
        for (int rank = 0; rank < 2; rank++) {
            assert_true(bytes_sent("grpo-2-none", step, rank, "gradients") > 0);
            assert_true(rank_noted("grpo-2-none", step, rank, NULL, "buckets_in_backward") > 0);
            assert_true(bytes_sent("grpo-2-none", step, rank, "experience") > 0);
        }
    assert_true(bytes_sent("grpo-4-optimizer", 2, 1, "weights") > 0);
    assert_true(bytes_sent("grpo-2-none", 2, 1, "weights") == 0);
}

/* ---- what has to be equal ---- */

TEST(other_prompts_on_a_rank_are_refused) {
    char other[600];
    snprintf(other, sizeof other, "data.train=%s", temp_text(test_folder, "other.jsonl", "{\"prompt\": \"Spell 'table' backwards.\"}\n"));
    run_on(2, &(RankedRun){policy_run, "other", policy_lines(), GRPO, .last = other}, ST_INPUT);
    check_contains(status_text(), "rank 1 (hostB) has another data.train");
    assert_false(dir_exists(temp_file(test_folder, "other")));
}

/* ---- reward programs ---- */

/* Each call adds a line to a file, named by the program's rank. Not every answer has every number. */
static int count_lines(const char *path) {
    Str text = {0};
    int n = 0;
    if (file_exists(path)) check_ok(file_read(path, 1 << 20, &text));
    for (size_t i = 0; i < text.len; i++) n += text.data[i] == '\n';
    str_release(&text);
    return n;
}

TEST(each_completion_is_judged_once) {
    static const int sizes[] = {1, 2, 4};
    const size_t n_sizes = ALL_OR_FEW(3, 2);
    char script[512], more[2048], name[32], calls[64];
    snprintf(
        script, sizeof script, "%s",
        temp_text(
            test_folder, "reward.sh",
            "#!/bin/sh\nwhile read -r row; do\n    echo call >>\"$1\"\n    echo \"{\\\"reward\\\": ${#row}, \\\"rest$((${#row} % 3))\\\": 1}\"\ndone\n"));
    int alone = 0;
    for (size_t i = 0; i < n_sizes; i++) {
        int total = 0, asked = 0;
        snprintf(name, sizeof name, "program-%d", sizes[i]);
        snprintf(more, sizeof more,
                 "reward=[{type: command, command: [sh, %s, '%s/calls-%d-{rank}-{ranks}'], weight: 0.01}, {type: length, target: 3}]\n"
                 "rl.algorithm=grpo\nlora.rank=4",
                 script, test_folder, sizes[i]);
        run_on(sizes[i], &(RankedRun){policy_run, name, policy_lines(), more, .resume = false}, ST_OK);
        for (int rank = 0; rank < sizes[i]; rank++) {
            snprintf(calls, sizeof calls, "calls-%d-%d-%d", sizes[i], rank, sizes[i]);
            const int n = count_lines(temp_file(test_folder, calls));
            asked += n > 0;
            total += n;
        }
        if (asked < MIN(sizes[i], 3)) fail_msg("%d of %d ranks were asked", asked, sizes[i]); /* a step has three prompts */
        if (i == 0) alone = total;
        if (total != alone || total < 12 || total > 18) fail_msg("%d ranks: %d calls for 18 completions, %d in one process", sizes[i], total, alone);
        if (i > 0) check_same_run("program-1", name, adapter, checkpoint);
        if (i > 0) check_same_file(test_folder, "program-1", name, "samples.jsonl");
    }
}

TEST(a_program_that_fails_on_a_rank_ends_all) {
    char more[2048];
    snprintf(more, sizeof more,
             "reward=[{type: command, command: [sh, -c, 'while read -r row; do [ {rank} = 1 ] && echo no || echo 1; done']}]\n"
             "rl.algorithm=grpo\nlora.rank=4");
    run_on(2, &(RankedRun){policy_run, "failing", policy_lines(), more, .resume = false}, ST_INPUT);
    check_contains(status_text(), "rank 1 (hostB): reward 'command'");
    check_contains(status_text(), "answers wrongly");
}

/* ---- experts ---- */

TEST(loads_of_experts_are_of_all_ranks) {
    char more[1024];
    Str metrics = {0};
    check_ok(model_write_random(temp_file(test_folder, "experts"),
                                "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, "
                                "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 4, "
                                "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\", "
                                "\"max_position_embeddings\": 64, \"num_experts\": 5, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, "
                                "\"norm_topk_prob\": true}",
                                DT_F32, 5, 0.4));
    snprintf(more, sizeof more, ADAPTER "reward=[{type: length, target: 6}]\nrl.algorithm=ppo\nmodel.path=%s/experts\ndata.train=%s", test_folder,
             temp_text(test_folder, "ids.jsonl", "{\"ids\": [5, 6, 7, 8]}\n{\"ids\": [9, 6, 4]}\n{\"ids\": [1, 2, 3, 4, 5]}\n"));
    compare_all("experts", more, 2, "none");
    metrics_text(temp_file(test_folder, "experts-2-none"), &metrics);
    check_contains(str_text(&metrics), "\"expert_load\": [");
    str_release(&metrics);
}

/* ---- teachers ---- */

/* The demo's model teaches itself. */
static const char gkd[] = ADAPTER "rl.algorithm=gkd\ndistil.teacher=recipes/demo/model\nrl.beta=0.5\nrl.temperature=1.5\n";

TEST(students_of_ranks_are_those_of_one_process) {
    char own[512], rows[512], teacher[512];
    snprintf(own, sizeof own, "%srl.lmbda=1", gkd);
    snprintf(rows, sizeof rows, "%srl.lmbda=0.4", gkd);
    snprintf(teacher, sizeof teacher, "%srl.lmbda=0\nrl.seq_kd=true", gkd);
    compare_all("gkd-own", own, 2, "optimizer");
    compare_all("gkd-rows", rows, 4, "none");
    compare_all("gkd-teacher", teacher, 2, "none");
}

/* The teacher's answers are made by all ranks; a machine with folders of its own gets a copy of the file. */
TEST(answers_of_teachers_are_those_of_one_process) {
    char lines[8192], demo[4096], folder[512];
    static const char sequence[] = "distil.loss=sequence\ngenerate.max_new_tokens=5\ngenerate.temperature=1.5\ngenerate.n=2\n";
    assert_non_null(realpath("recipes/demo/model", demo));
    snprintf(lines, sizeof lines,
             "data.train=%s\ndata.eval_split=0\ntrain.batch_size=2\ntrain.max_steps=3\nlora.rank=4\nparallel.lanes=4\ndistil.teacher=%s\n%s",
             prompts(), demo, sequence);
    snprintf(folder, sizeof folder, "%s", temp_file(test_folder, "hostB"));
    check_ok(dir_make(folder));
    check_ok(dir_make(temp_file(test_folder, "one")));
    check_ok(dir_make(temp_file(test_folder, "many")));
    check_ok(dir_make(temp_file(folder, "many")));
    run_on(1, &(RankedRun){sft_run, "one/run", lines, "", .resume = false}, ST_OK);
    run_on(3, &(RankedRun){sft_run, "many/run", lines, "", .folder = folder}, ST_OK);
    check_same_file(test_folder, "one/run", "many/run", adapter);
    check_same_file(test_folder, "one/run", "many/run", checkpoint);
    check_same_metrics("one/run", "many/run");
    /* the file has one name everywhere */
    char command[4096];
    snprintf(command, sizeof command, "cd %s && cmp one/answers-*.jsonl many/answers-*.jsonl && cmp one/answers-*.jsonl hostB/many/answers-*.jsonl",
             test_folder);
    assert_int_equal(system(command), 0);
    /* rank 0 has the file, and the other machine has lost it */
    snprintf(command, sizeof command, "cd %s && rm -r many/run hostB/many/answers-*.jsonl", test_folder);
    assert_int_equal(system(command), 0);
    run_on(3, &(RankedRun){sft_run, "many/run", lines, "", .folder = folder}, ST_OK);
    check_same_file(test_folder, "one/run", "many/run", adapter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_of_ranks_are_those_of_one_process), cmocka_unit_test(ranks_replace_the_same_groups),
        cmocka_unit_test(a_value_model_of_its_own_is_not_divided),    cmocka_unit_test(whole_models_of_ranks_are_those_of_one_process),
        cmocka_unit_test(a_policy_goes_on_with_other_ranks),          cmocka_unit_test(steps_of_policies_have_records),
        cmocka_unit_test(other_prompts_on_a_rank_are_refused),        cmocka_unit_test(each_completion_is_judged_once),
        cmocka_unit_test(a_program_that_fails_on_a_rank_ends_all),    cmocka_unit_test(loads_of_experts_are_of_all_ranks),
        cmocka_unit_test(students_of_ranks_are_those_of_one_process), cmocka_unit_test(answers_of_teachers_are_those_of_one_process),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
