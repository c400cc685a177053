/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs on ranks: the same files as in one process, on any number of ranks, whatever they divide; also resumed on another number of ranks. */
#include "lib/base/system.h"
#include "rl/pairs/preference.h"
#include "rl/pairs/reward_training.h"
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/ranked_run.h"
#include "tests/support/runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        run_on(1, &(RankedRun){run, one, lines, more, .resume = false}, ST_OK);
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            char name[32];
            if (!all && (s + i) % 3 != 0) continue;
            snprintf(name, sizeof name, "%s-%d-%s", full ? "full" : "adapter", sizes[i], shards[s]);
            run_on(sizes[i], &(RankedRun){run, name, lines, more, .resume = false}, ST_OK);
            check_same_run(one, name, result, "checkpoints/step-4/tensors.safetensors");
        }
    }
}

TEST(adapters_of_ranks_are_those_of_one_process) { compare_all(sft_run, ADAPTER, "adapter/adapter_model.safetensors", false, long_tests()); }

TEST(models_of_ranks_are_those_of_one_process) { compare_all(sft_run, FULL, "model/model.safetensors", true, long_tests()); }

/* n bytes of gradients, N ranks: all ranks together send (N - 1) n to owners, and (N - 1) n to all. With divided gradients they send once for each of
 * their leaves: of four, rank 0 of three has two. */
TEST(runs_move_the_bytes_of_formulas) {
    static const struct {
        const char *name;
        int ranks;
        bool divided, rounds;
    } runs[] = {{"full-2-none", 2, false, false},
                {"full-8-none", 8, false, false},
                {"full-4-optimizer", 4, true, false},
                {"full-3-gradients", 3, true, true}};
    const double n = 4.0 * (258 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 64); /* of the demo's model */
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        const double each = (runs[i].ranks - 1) * n;
        double gradients = 0, weights = 0;
        for (int rank = 0; rank < runs[i].ranks; rank++) {
            gradients += bytes_sent(runs[i].name, 1, rank, "gradients") / (runs[i].rounds && rank == 0 ? 2 : 1);
            weights += bytes_sent(runs[i].name, 1, rank, "weights");
        }
        if (gradients != (runs[i].divided ? 1 : 2) * each) fail_msg("%s: %.0f bytes of gradients, %.0f n", runs[i].name, gradients, gradients / n);
        if (weights != (runs[i].divided ? each : 0)) fail_msg("%s: %.0f bytes of weights, %.0f n", runs[i].name, weights, weights / n);
    }
}

/* Gradients that leave after the backward pass have the same sums. */
TEST(overlap_does_not_matter) {
    static char lines[2048];
    static const char *const names[] = {"full-3-late-none", "full-3-late-gradients"};
    snprintf(lines, sizeof lines, FULL, seven_rows());
    for (int i = 0; i < 2; i++) {
        char more[64];
        snprintf(more, sizeof more, "parallel.shard=%s\nparallel.overlap=off", shards[2 * i]);
        run_on(3, &(RankedRun){sft_run, names[i], lines, more, .resume = false}, ST_OK);
        for (int rank = 0; rank < 3; rank++) {
            assert_true(rank_noted(names[i], 1, rank, NULL, "buckets") > 0);
            assert_true(rank_noted(names[i], 1, rank, NULL, "buckets_in_backward") == 0);
        }
    }
    check_same_file(test_folder, "full-1-none", names[0], "model/model.safetensors");
    check_same_file(test_folder, "full-1-gradients", names[1], "model/model.safetensors");
}

/* Each rank rounds the sum of its lanes: half the bytes to owners, and other bits, the same each time. */
TEST(bf16_is_told_and_moves_half) {
    static char lines[2048];
    const double n = 4.0 * (258 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 64);
    snprintf(lines, sizeof lines, FULL, seven_rows());
    run_on(2, &(RankedRun){sft_run, "full-bf16", lines, "parallel.reduce_dtype=bf16", .resume = false}, ST_OK);
    run_on(2, &(RankedRun){sft_run, "full-bf16-again", lines, "parallel.reduce_dtype=bf16", .resume = false}, ST_OK);
    check_same_file(test_folder, "full-bf16", "full-bf16-again", "model/model.safetensors");
    const double moved = bytes_sent("full-bf16", 1, 0, "gradients") + bytes_sent("full-bf16", 1, 1, "gradients");
    if (moved != 1.5 * n) fail_msg("%.0f bytes of gradients, %.0f n", moved, moved / n);
    Str log = {0};
    check_ok(file_read(temp_file(temp_file(test_folder, "full-bf16"), "log.txt"), 1 << 20, &log));
    check_contains(str_text(&log), "gradients travel as bf16");
    str_release(&log);
}

/* Tied and untied heads, biases, grouped keys, experts, latent attention */
TEST(families_on_ranks_are_those_of_one_process) {
    static const char *const families[] = {"qwen2", "gpt2",    "llama",   "gemma3", "gemma2",    "mixtral",     "olmo2",
                                           "phi3",  "smollm3", "mistral", "qwen3",  "qwen3_moe", "deepseek_v2", "deepseek_v3"};
    static const char *const kinds[] = {"lora.rank=2", "train.learning_rate=1e-3\nparallel.shard=gradients"};
    static char lines[2048];
    char path[512], key[64], one[64], three[64];
    for (size_t f = 0; f < (long_tests() ? COUNT_OF(families) : ALL_OR_FEW(2, 1)); f++)
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            if (!long_tests() && k != f % 2) continue;
            snprintf(key, sizeof key, "golden/models/%s", families[f]);
            if (!shared_path(key, path, sizeof path)) skip();
            snprintf(lines, sizeof lines,
                     "model.path=%s\ndata.train=%s\ndata.eval_split=0\ntrain.batch_size=1\ntrain.gradient_accumulation_steps=5\ntrain.max_steps=2\n"
                     "train.learning_rate=1e-2\nparallel.lanes=8",
                     path,
                     temp_text(test_folder, "family.jsonl",
                               "{\"input_ids\": [5, 6, 7, 8]}\n{\"input_ids\": [9, 6, 4]}\n{\"input_ids\": [1, 2, 3, 4, 5, 6, 7]}\n"
                               "{\"input_ids\": [8, 3, 9, 11]}\n{\"input_ids\": [17, 16, 15, 14, 13]}\n{\"input_ids\": [2, 9]}\n"));
            snprintf(one, sizeof one, "%s-%zu-1", families[f], k);
            snprintf(three, sizeof three, "%s-%zu-3", families[f], k);
            run_on(1, &(RankedRun){sft_run, one, lines, kinds[k], .resume = false}, ST_OK);
            run_on(3, &(RankedRun){sft_run, three, lines, kinds[k], .resume = false}, ST_OK);
            check_same_run(one, three, k ? "model/model.safetensors" : "adapter/adapter_model.safetensors", "checkpoints/step-2/tensors.safetensors");
        }
}

/* Lanes alone decide the bits of an adapter: what ranks divide does not. */
TEST(what_is_divided_does_not_matter) {
    static const char file[] = "adapter/adapter_model.safetensors";
    check_same_file(test_folder, "adapter-1-none", "adapter-1-optimizer", file);
    check_same_file(test_folder, "adapter-1-none", "adapter-1-gradients", file);
    check_same_file(test_folder, "full-1-none", "full-1-optimizer", "model/model.safetensors");
}

/* ---- memory ---- */

/* A value of started.json or finished.json of a run */
static double told(const char *name, const char *file, const char *map, const char *key) {
    json_t *json;
    check_ok(json_read_file(temp_file(temp_file(test_folder, name), file), &json));
    const double value = json_number_value(json_object_get(map ? json_object_get(json, map) : json, key));
    json_decref(json);
    assert_true(value > 0);
    return value;
}

/* 13 million weights: 50 MB of them, of gradients, and of each state of AdamW */
static void wide_model(const char *dir) {
    check_ok(model_write_random(dir,
                                "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 256, \"head_dim\": 64, "
                                "\"intermediate_size\": 1024, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"num_hidden_layers\": 12, "
                                "\"vocab_size\": 258, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, "
                                "\"hidden_act\": \"silu\", \"max_position_embeddings\": 256, \"initializer_range\": 0.02}",
                                DT_F32, 1, 0.02));
}

TEST(memory_falls_with_what_is_divided) {
    static char lines[2048];
    const double weights = 12 * (4 * 256.0 * 256 + 3 * 256 * 1024) * 4;
    double peak[COUNT_OF(shards)];
#ifdef SANITIZED
    skip(); /* they take memory themselves */
#endif
    wide_model(temp_file(test_folder, "wide"));
    snprintf(lines, sizeof lines,
             "model.path=%s/wide\ndata.train=%s\ndata.eval_split=0\ntrain.batch_size=1\ntrain.gradient_accumulation_steps=2\n"
             "train.max_steps=2\ntrain.save_last=false\nparallel.bucket=1\nparallel.lanes=2",
             test_folder, temp_text(test_folder, "ids.jsonl", "{\"input_ids\": [5, 6, 7, 8]}\n{\"input_ids\": [9, 6, 4]}\n"));
    for (size_t s = 0; s < COUNT_OF(shards); s++) {
        char more[64], name[32];
        /* A checkpoint takes no memory: rank 0 gets the others' states piece by piece. */
        snprintf(more, sizeof more, "parallel.shard=%s\ntrain.save_last=%s", shards[s], s == 1 ? "true" : "false");
        snprintf(name, sizeof name, "wide-%s", shards[s]);
        run_on(2, &(RankedRun){sft_run, name, lines, more, .resume = false}, ST_OK);
        peak[s] = told(name, "finished.json", NULL, "peak_rss_bytes");
        const double planned = told(name, "started.json", "memory", "total");
        if (peak[s] > 1.05 * planned + RANKS_WAITING || peak[s] < 0.85 * planned)
            fail_msg("%s: planned %.0f, took %.0f", shards[s], planned, peak[s]);
        for (int rank = 0; rank < 2; rank++) { /* of 52 buckets at least those of the last eight layers */
            const double buckets = rank_noted(name, 1, rank, NULL, "buckets"), early = rank_noted(name, 1, rank, NULL, "buckets_in_backward");
            if (buckets < 40 || early < 32) fail_msg("%s: %.0f of %.0f buckets left during the backward pass", name, early, buckets);
        }
    }
    /* Half of two states; then half of the gradients, without the layer that is computed and the bucket that is filled */
    if (peak[0] - peak[1] < 0.9 * weights) fail_msg("the optimiser's states: %.0f, then %.0f", peak[0], peak[1]);
    if (peak[1] - peak[2] < 0.25 * weights) fail_msg("the gradients: %.0f, then %.0f", peak[1], peak[2]);
    check_same_file(test_folder, "wide-none", "wide-optimizer", "model/model.safetensors");
    check_same_file(test_folder, "wide-none", "wide-gradients", "model/model.safetensors");
}

/* ---- frozen weights ---- */

/* Ranks 0 and 1 of three are on one machine: what is converted for products is there once. Statistics of codes add to `bytes`. */
static void compare_shared(const char *name, const char *settings, const char *more, const char *gemm, double bytes) {
    char one[32], three[32];
    snprintf(one, sizeof one, "%s-1", name);
    snprintf(three, sizeof three, "%s-3", name);
    run_on(1, &(RankedRun){sft_run, one, settings, more, .gemm = gemm}, ST_OK);
    run_on(3, &(RankedRun){sft_run, three, settings, more, .gemm = gemm}, ST_OK);
    check_same_file(test_folder, one, three, "adapter/adapter_model.safetensors");
    const double shared = told(three, "started.json", "memory", "shared");
    if (shared < bytes || shared > 1.4 * bytes) fail_msg("%s: %.0f bytes are shared, expected %.0f", name, shared, bytes);
#ifndef SANITIZED
    const double whole = told(three, "started.json", "memory", "total"), peak = told(three, "finished.json", NULL, "peak_rss_bytes");
    if (bytes > 1e7 && (peak > 1.05 * whole || peak < 0.85 * whole)) fail_msg("%s: planned %.0f, took %.0f", name, whole, peak);
#endif
}

TEST(frozen_weights_are_there_once) {
    static char lines[2048];
    const double n = 4 * (4 * 64.0 * 64 + 3 * 64 * 176); /* of the demo's linear layers */
    char more[512];
    snprintf(lines, sizeof lines, SEVEN "lora.rank=4\nparallel.lanes=8", seven_rows());
    compare_shared("codes", lines, "model.quantize=nf4", NULL, n / 2);
    snprintf(more, sizeof more, "model.path=%s/wide\nmodel.quantize=int8\nmodel.dequantize=true\ndata.train=%s", test_folder,
             temp_text(test_folder, "ids.jsonl", "{\"input_ids\": [5, 6, 7, 8]}\n{\"input_ids\": [9, 6, 4]}\n"));
    wide_model(temp_file(test_folder, "wide"));
    compare_shared("values", lines, more, NULL, 12 * (4 * 256.0 * 256 + 3 * 256 * 1024) * 4);
    check_ok(model_write_random(temp_file(test_folder, "half"),
                                "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 64, \"head_dim\": 16, "
                                "\"intermediate_size\": 176, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"num_hidden_layers\": 4, "
                                "\"vocab_size\": 258, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, "
                                "\"hidden_act\": \"silu\", \"max_position_embeddings\": 256, \"initializer_range\": 0.02}",
                                DT_BF16, 1, 0.02));
    snprintf(more, sizeof more, "model.path=%s/half\ndata.train=%s/ids.jsonl", test_folder, test_folder);
    compare_shared("plain", lines, more, "openblas", 4 * (n + 258 * 64));
}

/* ---- ends and beginnings ---- */

TEST(a_run_goes_on_with_other_ranks) {
    static char lines[2048];
    snprintf(lines, sizeof lines, FULL, seven_rows());
    run_on(1, &(RankedRun){sft_run, "whole", lines, "", .resume = false}, ST_OK);
    run_on(4, &(RankedRun){sft_run, "changing", lines, "parallel.shard=optimizer", .stop_after = 1}, ST_INTERRUPTED);
    assert_true(dir_exists(temp_file(temp_file(test_folder, "changing"), "checkpoints/step-2")));
    run_on(1, &(RankedRun){sft_run, "changing", lines, "", .resume = true, .stop_after = 3}, ST_INTERRUPTED);
    run_on(3, &(RankedRun){sft_run, "changing", lines, "parallel.shard=optimizer", .resume = true}, ST_OK);
    check_same_run("whole", "changing", "model/model.safetensors", "checkpoints/step-4/tensors.safetensors");
    run_on(2, &(RankedRun){sft_run, "changing", lines, "", .resume = true}, ST_OK); /* it is finished */
}

/* A failure of one rank ends all, and the last checkpoint resumes. */
TEST(a_failure_of_one_rank_ends_all) {
    static char lines[2048];
    snprintf(lines, sizeof lines, FULL, seven_rows());
    run_on(3, &(RankedRun){sft_run, "full-memory", lines, "", .stop_after = 3, .no_memory = true}, ST_RESOURCE);
    assert_false(file_exists(temp_file(temp_file(test_folder, "full-memory"), "finished.json")));
    run_on(2, &(RankedRun){sft_run, "full-memory", lines, "", .resume = true}, ST_OK);
    check_same_run("whole", "full-memory", "model/model.safetensors", "checkpoints/step-4/tensors.safetensors");
    snprintf(lines, sizeof lines, ADAPTER, temp_text(test_folder, "none.jsonl", ""));
    run_on(3, &(RankedRun){sft_run, "no-rows", lines, "", .resume = false}, ST_INPUT);
    assert_false(dir_exists(temp_file(test_folder, "no-rows")));
}

static void check_goes_on(const char *name, const char *more) {
    static char lines[2048];
    snprintf(lines, sizeof lines, FULL, seven_rows());
    assert_false(file_exists(temp_file(temp_file(test_folder, name), "finished.json")));
    run_on(2, &(RankedRun){sft_run, name, lines, more, .resume = true}, ST_OK);
    check_same_run("whole", name, "model/model.safetensors", "checkpoints/step-4/tensors.safetensors");
}

/* A rank that is killed at any of its messages: votes, sums, copies of weights, pieces of a checkpoint. */
TEST(a_killed_rank_ends_all) {
    static const struct { int rank, at; } deaths[] = {{2, 40}, {0, 60}, {1, 30}, {0, 35}, {2, 50}, {1, 60}, {2, 70}, {0, 80}, {1, 80}, {2, 100}};
    static const char more[] = "parallel.shard=optimizer\ntrain.save_every=1\ntrain.keep_checkpoints=9";
    static char lines[2048];
    snprintf(lines, sizeof lines, FULL, seven_rows());
    for (size_t i = 0; i < (long_tests() ? COUNT_OF(deaths) : ALL_OR_FEW(2, 1)); i++) {
        char name[32];
        snprintf(name, sizeof name, "killed-%d-%d", deaths[i].rank, deaths[i].at);
        run_on(3, &(RankedRun){sft_run, name, lines, more, .killed = deaths[i].rank, .at = deaths[i].at}, ST_RESOURCE);
        check_goes_on(name, more);
    }
}

/* A checkpoint of 3 MB does not fit. */
TEST(a_full_disk_ends_all) {
    static char lines[2048];
    snprintf(lines, sizeof lines, FULL, seven_rows());
    run_on(3, &(RankedRun){sft_run, "full-disk", lines, "parallel.shard=optimizer", .file_limit = 1 << 20}, ST_RESOURCE);
    check_contains(status_text(), "step-2");
    check_goes_on("full-disk", "");
}

/* The last rank takes a step of its own, after which its losses are not numbers. */
TEST(a_loss_that_is_not_finite_on_one_rank_ends_all) {
    static char lines[2048];
    snprintf(lines, sizeof lines, FULL, seven_rows());
    run_on(3, &(RankedRun){sft_run, "infinite", lines, "train.save_every=1", .last = "train.learning_rate=1e15"}, ST_NUMERIC);
    check_contains(status_text(), "rank 2 (hostB): the loss is not finite in step 2");
    check_goes_on("infinite", "train.save_every=1");
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
    run_on(1, &(RankedRun){run, one, lines, more, .resume = false}, ST_OK);
    run_on(3, &(RankedRun){run, three, lines, more, .resume = false}, ST_OK);
    check_same_run(one, three, "adapter/adapter_model.safetensors", "checkpoints/step-2/tensors.safetensors");
}

TEST(pairs_on_ranks_are_those_of_one_process) {
    compare_pairs(preference_run, "dpo", "rl.algorithm=dpo");
    compare_pairs(reward_training_run, "reward", "");
}

/* ---- experts ---- */

/* The loads of experts in the metrics are those of all ranks. */
TEST(loads_of_experts_are_of_all_ranks) {
    static char lines[2048];
    static const char file[] = "adapter/adapter_model.safetensors";
    char teacher[256];
    Str metrics = {0};
    check_ok(model_write_random(temp_file(test_folder, "experts"),
                                "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, "
                                "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 4, "
                                "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\", "
                                "\"max_position_embeddings\": 64, \"num_experts\": 5, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 6, "
                                "\"norm_topk_prob\": true}",
                                DT_F32, 5, 0.4));
    snprintf(lines, sizeof lines,
             "model.path=%s/experts\ndata.train=%s\ndata.eval_split=0\ntrain.batch_size=1\ntrain.gradient_accumulation_steps=5\ntrain.max_steps=2\n"
             "train.learning_rate=1e-2\nlora.rank=2\ntrain.router_aux_loss_coef=0.01\nparallel.lanes=8",
             test_folder,
             temp_text(test_folder, "expert-rows.jsonl",
                       "{\"input_ids\": [5, 6, 7, 8]}\n{\"input_ids\": [9, 6, 4]}\n{\"input_ids\": [1, 2, 3, 4, 5, 6, 7]}\n"
                       "{\"input_ids\": [28, 3, 9, 11]}\n{\"input_ids\": [17, 16, 15, 14, 13]}\n"));
    run_on(1, &(RankedRun){sft_run, "experts-1", lines, "", .resume = false}, ST_OK);
    run_on(3, &(RankedRun){sft_run, "experts-3", lines, "", .resume = false}, ST_OK);
    check_same_file(test_folder, "experts-1", "experts-3", file);
    check_same_metrics("experts-1", "experts-3");
    metrics_text(temp_file(test_folder, "experts-3"), &metrics);
    check_contains(str_text(&metrics), "\"expert_load\": [");
    check_contains(str_text(&metrics), "\"router_aux_loss\": ");
    str_clear(&metrics);
    snprintf(teacher, sizeof teacher, "distil.teacher=%s/experts\ntrain.router_aux_loss_coef=0.01", test_folder);
    run_on(1, &(RankedRun){sft_run, "student-1", lines, teacher, .resume = false}, ST_OK);
    run_on(3, &(RankedRun){sft_run, "student-3", lines, teacher, .resume = false}, ST_OK);
    check_same_file(test_folder, "student-1", "student-3", file);
    check_same_metrics("student-1", "student-3");
    metrics_text(temp_file(test_folder, "student-3"), &metrics);
    check_contains(str_text(&metrics), "\"expert_load\": [");
    check_contains(str_text(&metrics), "\"divergence\": ");
    str_release(&metrics);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_of_ranks_are_those_of_one_process),
        cmocka_unit_test(models_of_ranks_are_those_of_one_process),
        cmocka_unit_test(runs_move_the_bytes_of_formulas),
        cmocka_unit_test(overlap_does_not_matter),
        cmocka_unit_test(bf16_is_told_and_moves_half),
        cmocka_unit_test(families_on_ranks_are_those_of_one_process),
        cmocka_unit_test(what_is_divided_does_not_matter),
        cmocka_unit_test(memory_falls_with_what_is_divided),
        cmocka_unit_test(frozen_weights_are_there_once),
        cmocka_unit_test(a_run_goes_on_with_other_ranks),
        cmocka_unit_test(a_failure_of_one_rank_ends_all),
        cmocka_unit_test(a_killed_rank_ends_all),
        cmocka_unit_test(a_full_disk_ends_all),
        cmocka_unit_test(a_loss_that_is_not_finite_on_one_rank_ends_all),
        cmocka_unit_test(pairs_on_ranks_are_those_of_one_process),
        cmocka_unit_test(loads_of_experts_are_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
