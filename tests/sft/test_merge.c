/* SPDX-License-Identifier: Apache-2.0 */
/* Merging: golden merged models, weighted sums, untied heads, shards, what is refused, and that nothing half-made stays. */
#include "tests/support/check.h"
#include "tests/support/model_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "rl/reward/scorer.h"
#include "sft/merge.h"
#include "lib/model/adapter.h"

static const char tied_config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 37, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"tie_word_embeddings\": true, \"dtype\": \"bfloat16\"}";

typedef struct Place {
    char dir[256];
} Place;

static void *make_place(void) {
    static Place place;
    temp_dir_make(place.dir, sizeof place.dir);
    return &place;
}

/* A tied model of random bf16 weights in `dir`/base, and an adapter for it in `dir`/NAME: LoRA on q_proj, and `saved` trained whole; both random. */
static void make_base(const Place *place) { check_ok(model_write_random(temp_file(place->dir, "base"), tied_config, DT_BF16, 7, 0.3)); }

static void make_adapter(const Place *place, const char *name, const char *saved, int64_t rank) {
    Model *model;
    const char *targets[] = {"q_proj"}, *saves[] = {saved};
    LoraConfig lora = {.rank = rank, .alpha = 3, .n_targets = 1, .targets = targets, .n_saved = saved ? 1 : 0, .saved = saves, .lr_ratio = 1};
    check_ok(model_load(temp_file(place->dir, "base"),
                        &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .scores = saved && !strcmp(saved, "score")}, &model));
    check_ok(model_attach_lora(model, &lora, (uint64_t)rank));
    for (size_t i = 0; i < model->params.n; i++) {
        const Param *param = &model->params.items[i];
        if (param->role != PARAM_BASE)
            for (int64_t k = 0; k < tensor_count(param->tensor); k++)
                tensor_set(param->tensor, k, 0.2 * rng_normal(rng_key((uint64_t)rank, RNG_TEST, i), (uint64_t)k));
    }
    check_ok(adapter_save(model, temp_file(place->dir, name), "base"));
    model_free(model);
}

static Status merge_adapter(const char *base, const MergeAdapter *adapters, size_t n, const char *output, MergeConfig options, MergeResult **result) {
    options.base = base;
    options.adapters = adapters;
    options.n_adapters = n;
    options.output = output;
    options.runtime = (Runtime){device_cpu(), DT_F32};
    return merge_run(&options, result);
}

static double largest_distance(const char *got_path, const char *want_path) {
    WeightFile *got, *want;
    double worst = 0;
    check_ok(weight_file_open(got_path, &got));
    check_ok(weight_file_open(want_path, &want));
    for (size_t i = 0; i < want->n; i++) {
        const StoredTensor *w = &want->tensors[i], *g = weight_file_find(got, w->name);
        if (!g) fail_msg("'%s' is missing in '%s'", w->name, got_path);
        assert_int_equal(g->count, w->count);
        for (int64_t k = 0; k < w->count; k++) worst = fmax(worst, fabs(stored_get(g, k) - stored_get(w, k)));
    }
    assert_int_equal(got->n, want->n);
    weight_file_close(got);
    weight_file_close(want);
    return worst;
}

TEST(golden_models) {
    static const char *const cases[][2] = {
        {"llama-plain", "llama"}, {"llama-rslora", "llama"},     {"llama-patterns", "llama"}, {"llama-modules-to-save", "llama"},
        {"qwen2-plain", "qwen2"}, {"qwen2-all-linear", "qwen2"}, {"gpt2-conv1d", "gpt2"},     {"llama-dora", "llama"},
    };
    char root[512];
    if (!shared_path("golden/lora", root, sizeof root)) skip();
    const Place *place = make_place();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char base[600], adapter[600], want[700];
        MergeResult *result;
        snprintf(base, sizeof base, "%s/../models/%s", root, cases[i][1]);
        snprintf(adapter, sizeof adapter, "%s/%s", root, cases[i][0]);
        snprintf(want, sizeof want, "%s/merged.safetensors", adapter);
        const char *output = temp_file(place->dir, cases[i][0]);
        check_ok(merge_adapter(base, &(MergeAdapter){adapter, 1}, 1, output, (MergeConfig){.prove = true}, &result));
        double distance = largest_distance(output, want);
        if (!(distance < 1e-6)) fail_msg("%s: %g from the golden merged model", cases[i][0], distance);
        assert_true(result->n_changed > 0 && result->kl < 1e-7 && result->top1_agreement > 0.98 && result->worst->error < 1e-6);
        merge_free(result);
    }
    temp_dir_remove(place->dir);
}

/* Adapters of newer families, in all forms of pairs of experts: the changed tensors, as far as there are golden ones, and the logits. */
TEST(golden_experts) {
    static const char *const cases[][2] = {
        {"glm4_moe-per-expert", "glm4_moe"}, {"glm4_moe-converted", "glm4_moe"}, {"gpt_oss-experts", "gpt_oss"}, {"lfm2-all", "lfm2"}};
    char root[512];
    if (!shared_path("golden/families", root, sizeof root)) skip();
    const Place *place = make_place();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char base[600], adapter[600], want[700];
        MergeResult *result;
        ModelRun run;
        snprintf(base, sizeof base, "%s/%s", root, cases[i][1]);
        snprintf(adapter, sizeof adapter, "%s/lora/%s", root, cases[i][0]);
        snprintf(want, sizeof want, "%s/merged.safetensors", adapter);
        const char *output = temp_file(place->dir, cases[i][0]);
        check_ok(merge_adapter(base, &(MergeAdapter){adapter, 1}, 1, output, (MergeConfig){.convert = true, .dtype = DT_F32}, &result));
        if (file_exists(want)) {
            WeightFile *after = weights_open(output, "model.safetensors"), *merged = weights_open(adapter, "merged.safetensors");
            for (size_t t = 0; t < merged->n; t++) {
                const StoredTensor *w = &merged->tensors[t], *g = weight_file_find(after, w->name);
                if (!g) fail_msg("'%s' is missing in '%s'", w->name, output);
                assert_int_equal(g->count, w->count);
                for (int64_t k = 0; k < w->count; k++)
                    if (!(fabs(stored_get(g, k) - stored_get(w, k)) < 1e-6)) fail_msg("%s: '%s' differs at %lld", cases[i][0], w->name, (long long)k);
            }
            assert_int_equal(result->n_changed, merged->n);
            weight_file_close(merged);
            weight_file_close(after);
        }
        WeightFile *expected = weights_open(adapter, "expected.safetensors");
        model_run_open(&run, output, device_cpu(), DT_F32);
        model_run_ids(&run, stored_ids(expected, 0, run.ids));
        size_t count;
        double *logits = model_run_logits(&run, &count);
        check_stored(cases[i][0], logits, expected, "seq0.logits", 1e-4);
        free(logits);
        model_run_close(&run);
        weight_file_close(expected);
        merge_free(result);
    }
    temp_dir_remove(place->dir);
}

TEST(refused_kinds) {
    static const char *const cases[][2] = {{"llama-embedding", "not supported"}, {"qwen2-plain", "expected (16,8)"}};
    char root[512];
    if (!shared_path("golden/lora", root, sizeof root)) skip();
    const Place *place = make_place();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char base[600], adapter[600];
        MergeResult *result;
        snprintf(base, sizeof base, "%s/../models/llama", root);
        snprintf(adapter, sizeof adapter, "%s/%s", root, cases[i][0]);
        check_status(merge_adapter(base, &(MergeAdapter){adapter, 1}, 1, temp_file(place->dir, "out"), (MergeConfig){0}, &result), ST_INPUT);
        check_text(cases[i][1]);
        assert_false(dir_exists(temp_file(place->dir, "out")));
    }
    temp_dir_remove(place->dir);
}

TEST(dora_is_merged_alone) {
    char root[512], base[600], dora[600], other[600];
    if (!shared_path("golden/lora", root, sizeof root)) skip();
    const Place *place = make_place();
    MergeResult *result;
    snprintf(base, sizeof base, "%s/../models/llama", root);
    snprintf(dora, sizeof dora, "%s/llama-dora", root);
    snprintf(other, sizeof other, "%s/llama-plain", root);
    const char *output = temp_file(place->dir, "out");
    check_status(merge_adapter(base, (MergeAdapter[]){{other, 1}, {dora, 1}}, 2, output, (MergeConfig){0}, &result), ST_CONFIG);
    check_text("llama-dora' is DoRA: it is merged alone, with weight 1");
    check_status(merge_adapter(base, &(MergeAdapter){dora, 0.5}, 1, output, (MergeConfig){0}, &result), ST_CONFIG);
    assert_false(dir_exists(output));
    temp_dir_remove(place->dir);
}

/* PEFT's "cat" is 0.7 x a + 0.4 x c: its deltas, tensor by tensor. */
TEST(weighted_sum) {
    char root[512], a[600], c[600], deltas[600], base[600];
    if (!shared_path("golden/lora/mix", root, sizeof root)) skip();
    const Place *place = make_place();
    MergeResult *result;
    WeightFile *before, *after, *want;
    snprintf(base, sizeof base, "%s/../../models/llama", root);
    snprintf(a, sizeof a, "%s/in-a", root);
    snprintf(c, sizeof c, "%s/in-c", root);
    snprintf(deltas, sizeof deltas, "%s/delta_weights.safetensors", root);
    check_ok(merge_adapter(base, (MergeAdapter[]){{a, 0.7}, {c, 0.4}}, 2, temp_file(place->dir, "sum"), (MergeConfig){.prove = true}, &result));
    assert_true(result->kl < 1e-7);
    check_ok(weight_file_open(base, &before));
    check_ok(weight_file_open(temp_file(place->dir, "sum"), &after));
    check_ok(weight_file_open(deltas, &want));
    size_t n_compared = 0;
    for (size_t i = 0; i < want->n; i++) {
        const StoredTensor *delta = &want->tensors[i];
        char name[300];
        if (!text_starts_with(delta->name, "cat.model.")) continue;
        snprintf(name, sizeof name, "%s.weight", delta->name + strlen("cat."));
        const StoredTensor *x = weight_file_find(before, name), *y = weight_file_find(after, name);
        n_compared++;
        for (int64_t k = 0; k < delta->count; k++) check_close(stored_get(y, k), stored_get(x, k) + stored_get(delta, k), 1e-6);
    }
    assert_int_equal(n_compared, result->n_changed);
    weight_file_close(before);
    weight_file_close(after);
    weight_file_close(want);
    merge_free(result);
    temp_dir_remove(place->dir);
}

TEST(sharded_output) {
    char root[512];
    if (!shared_path("golden/models/llama-sharded", root, sizeof root)) skip();
    const Place *place = make_place();
    Model *model;
    MergeResult *result;
    check_ok(model_load(root, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    check_ok(model_attach_lora(model, &(LoraConfig){.rank = 2, .alpha = 2, .lr_ratio = 1}, 1)); /* B is zero: nothing changes */
    check_ok(adapter_save(model, temp_file(place->dir, "adapter"), root));
    model_free(model);
    check_ok(merge_adapter(root, &(MergeAdapter){temp_file(place->dir, "adapter"), 1}, 1, temp_file(place->dir, "out/"), (MergeConfig){.prove = true},
                           &result));
    assert_true(result->kl == 0 && result->worst->error == 0);
    merge_free(result);
    assert_true(file_exists(temp_file(place->dir, "out/model.safetensors.index.json")));
    assert_true(largest_distance(temp_file(place->dir, "out"), root) == 0);
    temp_dir_remove(place->dir);
}

static bool same_tensor(const WeightFile *a, const char *name_a, const WeightFile *b, const char *name_b) {
    const StoredTensor *x = weight_file_find(a, name_a), *y = weight_file_find(b, name_b);
    assert_non_null(x);
    assert_non_null(y);
    for (int64_t i = 0; i < x->count; i++)
        if (fabs(stored_get(x, i) - stored_get(y, i)) > 1e-6) return false;
    return true;
}

/* A fully trained head or embedding on a tied base: the other one is unchanged. */
TEST(tied_heads) {
    static const char *const trained[] = {"lm_head", "embed_tokens"};
    const Place *place = make_place();
    make_base(place);
    for (int i = 0; i < 2; i++) {
        MergeResult *result;
        WeightFile *base, *adapter, *merged;
        char out[32], name[32], path[300];
        snprintf(out, sizeof out, "out%d", i);
        snprintf(name, sizeof name, "adapter%d", i);
        make_adapter(place, name, trained[i], 3);
        check_ok(merge_adapter(temp_file(place->dir, "base"), &(MergeAdapter){temp_file(place->dir, name), 1}, 1, temp_file(place->dir, out),
                               (MergeConfig){.convert = true, .dtype = DT_F32, .prove = true}, &result));
        assert_true(result->kl < 1e-9 && result->top1_agreement > 0.98);
        merge_free(result);
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", name);
        check_ok(weight_file_open(temp_file(place->dir, "base"), &base));
        check_ok(weight_file_open(temp_file(place->dir, path), &adapter));
        check_ok(weight_file_open(temp_file(place->dir, out), &merged));
        const char *changed = i == 0 ? "lm_head.weight" : "model.embed_tokens.weight",
                   *kept = i == 0 ? "model.embed_tokens.weight" : "lm_head.weight";
        assert_true(same_tensor(merged, kept, base, "model.embed_tokens.weight"));
        assert_true(same_tensor(merged, changed, adapter, i == 0 ? "base_model.model.lm_head.weight" : "base_model.model.model.embed_tokens.weight"));
        Arena *arena = arena_new(0);
        ModelConfig config;
        check_ok(model_config_read(temp_file(place->dir, out), arena, &config));
        assert_false(config.tie_word_embeddings);
        arena_free(arena);
        weight_file_close(base);
        weight_file_close(adapter);
        weight_file_close(merged);
    }
    temp_dir_remove(place->dir);
}

/* Rounding to bf16 takes at most half a unit in the last place, and the proof says how much. */
static void scores_of(const char *dir, const char *base, double scores[2]) {
    static const int32_t ids[] = {5, 9, 33, 2, 17};
    const ScorerRow rows[] = {{ids, ids + 2, 2, 3}, {ids, NULL, 2, 0}};
    Scorer *scorer;
    check_ok(scorer_open(dir, &(ScorerOptions){.device = device_cpu(), .base_dir = base, .compute = "f32"}, &scorer));
    check_ok(scorer_score(scorer, rows, 2, scores));
    scorer_close(scorer);
}

/* On a language model and on a classifier; half an adapter is half its branches and, where the base has no score, half a score. 1e-5: both compute in
 * f32, scores are a few units. */
TEST(reward_models) {
    const Place *place = make_place();
    const char *base = strdup(temp_file(place->dir, "base")), *judge = strdup(temp_file(place->dir, "judge")),
               *merged = strdup(temp_file(place->dir, "merged")), *again = strdup(temp_file(place->dir, "again"));
    MergeResult *result;
    double before[2], after[2];
    make_base(place);
    make_adapter(place, "judge", "score", 3);
    check_ok(merge_adapter(base, &(MergeAdapter){judge, 1}, 1, merged, (MergeConfig){.prove = true, .convert = true, .dtype = DT_F32}, &result));
    assert_true(result->scores && result->score_error < 1e-5 && strcmp(result->tensors[result->n - 1].name, "score.weight") == 0);
    merge_free(result);
    scores_of(judge, base, before);
    scores_of(merged, NULL, after);
    for (int i = 0; i < 2; i++) check_close(after[i], before[i], 1e-5);
    assert_true(fabs(before[0] - before[1]) > 0.01);
    check_ok(merge_adapter(merged, &(MergeAdapter){judge, 1}, 1, again, (MergeConfig){.prove = true}, &result));
    assert_true(result->scores && result->score_error < 1e-5);
    merge_free(result);
    scores_of(judge, merged, before);
    scores_of(again, NULL, after);
    for (int i = 0; i < 2; i++) check_close(after[i], before[i], 1e-5);
    WeightFile *files, *trained;
    check_ok(merge_adapter(base, &(MergeAdapter){judge, 0.5}, 1, merged, (MergeConfig){.force = true, .convert = true, .dtype = DT_F32}, &result));
    merge_free(result);
    check_ok(weight_file_open(merged, &files));
    check_ok(weight_file_open(temp_file(judge, "adapter_model.safetensors"), &trained));
    for (int64_t k = 0; k < 24; k++)
        check_close(stored_get(weight_file_find(files, "score.weight"), k),
                    0.5 * stored_get(weight_file_find(trained, "base_model.model.score.weight"), k), 1e-8);
    assert_null(weight_file_find(files, "lm_head.weight"));
    weight_file_close(files);
    weight_file_close(trained);
    temp_dir_remove(place->dir);
    free((char *)(uintptr_t)base), free((char *)(uintptr_t)judge), free((char *)(uintptr_t)merged), free((char *)(uintptr_t)again);
}

TEST(rounded_once) {
    const Place *place = make_place();
    MergeResult *narrow, *wide;
    make_base(place);
    make_adapter(place, "adapter", NULL, 4);
    MergeAdapter adapter = {temp_file(place->dir, "adapter"), 0.5};
    check_ok(merge_adapter(temp_file(place->dir, "base"), &adapter, 1, temp_file(place->dir, "narrow"), (MergeConfig){.prove = true}, &narrow));
    check_ok(merge_adapter(temp_file(place->dir, "base"), &adapter, 1, temp_file(place->dir, "wide"), (MergeConfig){.convert = true, .dtype = DT_F32},
                           &wide));
    double distance = largest_distance(temp_file(place->dir, "narrow"), temp_file(place->dir, "wide"));
    assert_true(distance > 1e-5 && distance < 1.0 / 256);
    check_close(narrow->worst->error, distance, 1e-6);
    assert_true(narrow->n_changed == 2 && narrow->kl > 0 && narrow->kl < 0.01);
    assert_true(wide->worst->error < 1e-6);
    merge_free(narrow);
    merge_free(wide);
    temp_dir_remove(place->dir);
}

TEST(taken_output) {
    const Place *place = make_place();
    MergeResult *result;
    make_base(place);
    make_adapter(place, "adapter", NULL, 2);
    const char *base = temp_file(place->dir, "base"), *out = temp_file(place->dir, "out");
    MergeAdapter adapter = {temp_file(place->dir, "adapter"), 1};
    check_ok(merge_adapter(base, &adapter, 1, out, (MergeConfig){0}, &result));
    merge_free(result);
    check_status(merge_adapter(base, &adapter, 1, out, (MergeConfig){0}, &result), ST_CONFIG);
    check_contains(status_hint_text(), "--force");
    check_ok(merge_adapter(base, &adapter, 1, out, (MergeConfig){.force = true}, &result));
    merge_free(result);
    check_status(merge_adapter(base, &adapter, 1, base, (MergeConfig){.force = true}, &result), ST_CONFIG);
    check_ok(dir_make(temp_file(place->dir, "mine")));
    check_ok(file_write_all(temp_file(place->dir, "mine/letter.txt"), "dear", 4));
    check_status(merge_adapter(base, &adapter, 1, temp_file(place->dir, "mine"), (MergeConfig){.force = true}, &result), ST_CONFIG);
    assert_true(file_exists(temp_file(place->dir, "mine/letter.txt")));
    temp_dir_remove(place->dir);
}

/* Said before a byte is written; what was there before stays. */
static unsigned long free_blocks = 1 << 20;
int statvfs(const char *path, struct statvfs *disk) {
    (void)path;
    *disk = (struct statvfs){.f_frsize = 512, .f_bsize = 512, .f_blocks = 1 << 20, .f_bavail = free_blocks};
    return 0;
}

TEST(a_disk_without_room) {
    Place *place = make_place();
    make_base(place);
    make_adapter(place, "a", NULL, 2);
    MergeAdapter adapter = {temp_file(place->dir, "a"), 1};
    MergeResult *result;
    const char *base = temp_file(place->dir, "base"), *out = temp_file(place->dir, "out");
    check_ok(merge_adapter(base, &adapter, 1, out, (MergeConfig){0}, &result));
    merge_free(result);
    free_blocks = 40; /* 20,480 bytes: of the weights 14,688 are written in bf16, 29,376 in f32 */
    check_status(merge_adapter(base, &adapter, 1, out, (MergeConfig){.force = true, .convert = true, .dtype = DT_F32}, &result), ST_RESOURCE);
    check_text("not enough disk space: ");
    assert_true(file_exists(temp_file(out, "model.safetensors")));
    assert_false(dir_exists(temp_file(place->dir, "out.1")) || dir_exists(temp_file(place->dir, ".out.tune-partial")));
    check_ok(merge_adapter(base, &adapter, 1, out, (MergeConfig){.force = true}, &result));
    merge_free(result);
    free_blocks = 1 << 20;
    temp_dir_remove(place->dir);
}

TEST(out_of_range) {
    const Place *place = make_place();
    MergeResult *result;
    make_base(place);
    make_adapter(place, "adapter", NULL, 2);
    MergeAdapter adapter = {temp_file(place->dir, "adapter"), 1e9};
    check_status(merge_adapter(temp_file(place->dir, "base"), &adapter, 1, temp_file(place->dir, "out"),
                               (MergeConfig){.convert = true, .dtype = DT_F16}, &result),
                 ST_NUMERIC);
    check_text("q_proj");
    assert_false(dir_exists(temp_file(place->dir, "out")));
    assert_false(dir_exists(temp_file(place->dir, ".out.tune-partial")));
    temp_dir_remove(place->dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models), cmocka_unit_test(golden_experts), cmocka_unit_test(refused_kinds), cmocka_unit_test(dora_is_merged_alone),
        cmocka_unit_test(weighted_sum),  cmocka_unit_test(sharded_output), cmocka_unit_test(tied_heads),    cmocka_unit_test(reward_models),
        cmocka_unit_test(rounded_once),  cmocka_unit_test(taken_output),   cmocka_unit_test(out_of_range),  cmocka_unit_test(a_disk_without_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
