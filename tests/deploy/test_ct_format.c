/* SPDX-License-Identifier: Apache-2.0 */
/* What vLLM demands of a compressed-tensors directory before it makes a layer of it, checked on the directories that are written. docs/quantize.md
 * has the list with its sources. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/deploy/compress/ptq.h"
#include "lib/model/weight_file.h"

enum { N_ROWS = 6, ROW_TOKENS = 24, VOCAB = 60 };
static const char config_text[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 60, \"hidden_size\": 64, \"intermediate_size\": 160,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5,"
    " \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\"}";

/* ---- what vLLM demands ---- */

typedef struct Directory {
    json_t *config;
    WeightFile *file;
    const json_t *weights, *inputs; /* of the settings; inputs: NULL if activations are not rounded */
    bool packed;
    int bits;
    int64_t group; /* -1: a row */
} Directory;

static bool is_true(const json_t *object, const char *key) { return json_is_true(golden_at(object, key)); }

static bool is_one_of(const json_t *object, const char *key, const char *first, const char *second) {
    return golden_is(object, key, first) || golden_is(object, key, second);
}

/* pydantic refuses other keys. */
static void check_keys(const json_t *arguments) {
    static const char *const known[] = {"num_bits", "type",     "symmetric", "group_size",      "strategy",    "block_structure",
                                        "dynamic",  "actorder", "observer",  "observer_kwargs", "scale_dtype", "zp_dtype"};
    for (void *at = json_object_iter((json_t *)(uintptr_t)arguments); at; at = json_object_iter_next((json_t *)(uintptr_t)arguments, at)) {
        bool found = false;
        for (size_t i = 0; i < COUNT_OF(known); i++) found |= strcmp(json_object_iter_key(at), known[i]) == 0;
        if (!found) fail_msg("compressed-tensors has no argument '%s'", json_object_iter_key(at));
    }
}

static void check_weights(Directory *dir) {
    check_keys(dir->weights);
    assert_true(golden_is(dir->weights, "type", "int"));
    assert_true(is_one_of(dir->weights, "strategy", "group", "channel"));
    assert_false(is_true(dir->weights, "dynamic"));
    const bool grouped = golden_is(dir->weights, "strategy", "group");
    dir->bits = (int)golden_value(dir->weights, "num_bits");
    dir->group = grouped ? (int64_t)golden_value(dir->weights, "group_size") : -1;
    assert_true(grouped ? dir->group > 0 : json_is_null(golden_at(dir->weights, "group_size")));
    /* "group" would need weight_g_idx */
    if (!json_is_null(golden_at(dir->weights, "actorder"))) assert_true(is_one_of(dir->weights, "actorder", "weight", "static"));
}

/* CompressedTensorsWNA16: bits with a symmetric grid, bits with zero points. */
static void check_weight_only(const Directory *dir) {
    assert_null(dir->inputs);
    if (is_true(dir->weights, "symmetric"))
        assert_true(dir->bits >= 2 && dir->bits <= 8);
    else
        assert_true(dir->bits == 4 || dir->bits == 8);
}

/* CompressedTensorsW8A8Int8 */
static void check_both(const Directory *dir) {
    assert_non_null(dir->inputs);
    check_keys(dir->inputs);
    assert_true(dir->bits == 8 && golden_value(dir->inputs, "num_bits") == 8);
    assert_true(golden_is(dir->weights, "strategy", "channel") && is_true(dir->weights, "symmetric") && is_true(dir->inputs, "symmetric"));
    assert_true(golden_is(dir->inputs, "strategy", is_true(dir->inputs, "dynamic") ? "token" : "tensor"));
}

static void directory_open(const char *path, Directory *dir) {
    *dir = (Directory){0};
    check_ok(json_read_file(temp_file(path, "config.json"), &dir->config));
    check_ok(weight_file_open(temp_file(path, "model.safetensors"), &dir->file));
    const json_t *settings = golden_at(dir->config, "quantization_config"), *groups = golden_at(settings, "config_groups");
    assert_true(golden_is(settings, "quant_method", "compressed-tensors") && is_one_of(settings, "format", "pack-quantized", "int-quantized"));
    assert_int_equal(json_object_size(groups), 1);
    const json_t *group = golden_at(groups, "group_0"), *inputs = golden_at(group, "input_activations"), *targets = golden_at(group, "targets");
    assert_true(json_array_size(targets) == 1 && strcmp(json_string_value(json_array_get(targets, 0)), "Linear") == 0);
    dir->weights = golden_at(group, "weights");
    dir->inputs = json_is_null(inputs) ? NULL : inputs;
    dir->packed = golden_is(settings, "format", "pack-quantized");
    check_weights(dir);
    dir->packed ? check_weight_only(dir) : check_both(dir);
}

static void directory_close(Directory *dir) {
    weight_file_close(dir->file);
    json_decref(dir->config);
}

/* Fails unless the tensor has this type, or one of two for scales, and shape. n_dims 0: fails if it is there. */
static const StoredTensor *check_tensor(const Directory *dir, const char *path, const char *part, const char *dtype, int n_dims, int64_t rows,
                                        int64_t columns) {
    char name[200];
    snprintf(name, sizeof name, "%s.%s", path, part);
    const StoredTensor *tensor = weight_file_find(dir->file, name);
    if (n_dims == 0) assert_null(tensor);
    if (n_dims == 0) return NULL;
    if (!tensor) fail_msg("'%s' is missing", name);
    if (strcmp(tensor->dtype_text, dtype) != 0) fail_msg("'%s' is %s, not %s", name, tensor->dtype_text, dtype);
    assert_int_equal(tensor->n_dims, n_dims);
    assert_int_equal(tensor->shape[0], rows);
    if (n_dims == 2) assert_int_equal(tensor->shape[1], columns);
    return tensor;
}

static int64_t words(int64_t n, int bits) { return (n * bits + 31) / 32; }

static void check_packed_layer(const Directory *dir, const char *path, int64_t out, int64_t in) {
    const int64_t group = dir->group > 0 ? dir->group : in;
    assert_int_equal(in % group, 0);
    check_tensor(dir, path, "weight_packed", "I32", 2, out, words(in, dir->bits));
    check_tensor(dir, path, "weight_scale", "BF16", 2, out, in / group);
    const StoredTensor *shape = check_tensor(dir, path, "weight_shape", "I64", 1, 2, 0);
    assert_true(stored_get(shape, 0) == (double)out && stored_get(shape, 1) == (double)in);
    check_tensor(dir, path, "weight_zero_point", "I32", is_true(dir->weights, "symmetric") ? 0 : 2, words(out, dir->bits), in / group);
    check_tensor(dir, path, "weight_g_idx", "I32", 0, 0, 0);
    check_tensor(dir, path, "weight", "BF16", 0, 0, 0);
}

static void check_int8_layer(const Directory *dir, const char *path, int64_t out, int64_t in) {
    check_tensor(dir, path, "weight", "I8", 2, out, in);
    check_tensor(dir, path, "weight_scale", "BF16", 2, out, 1);
    check_tensor(dir, path, "input_scale", "BF16", is_true(dir->inputs, "dynamic") ? 0 : 1, 1, 0);
    check_tensor(dir, path, "weight_zero_point", "I8", 0, 0, 0);
    check_tensor(dir, path, "input_zero_point", "I8", 0, 0, 0);
}

static bool is_ignored(const Directory *dir, const char *path) {
    const json_t *ignored = golden_at(golden_at(dir->config, "quantization_config"), "ignore");
    for (size_t i = 0; i < json_array_size(ignored); i++)
        if (strcmp(json_string_value(json_array_get(ignored, i)), path) == 0) return true;
    return false;
}

/* Layers whose outputs vLLM computes in one product: all of them are quantised or none, and rounded inputs have one scale. */
static void check_joined(const Directory *dir, const char *block, const char *const *parts, int n) {
    char first[200], other[200], scale[220];
    snprintf(first, sizeof first, "%s.%s", block, parts[0]);
    snprintf(scale, sizeof scale, "%s.input_scale", first);
    const StoredTensor *common = weight_file_find(dir->file, scale);
    for (int i = 1; i < n; i++) {
        snprintf(other, sizeof other, "%s.%s", block, parts[i]);
        snprintf(scale, sizeof scale, "%s.input_scale", other);
        assert_true(is_ignored(dir, first) == is_ignored(dir, other));
        const StoredTensor *its = weight_file_find(dir->file, scale);
        assert_true(!common == !its && (!its || stored_get(its, 0) == stored_get(common, 0)));
    }
}

static void check_directory(const char *path, bool skipped_down) {
    static const char *const attention[] = {"q_proj", "k_proj", "v_proj"}, *const mlp[] = {"gate_proj", "up_proj"};
    static const struct {
        const char *name;
        int64_t out, in;
    } layers[] = {{"self_attn.q_proj", 64, 64}, {"self_attn.k_proj", 32, 64}, {"self_attn.v_proj", 32, 64}, {"self_attn.o_proj", 64, 64},
                  {"mlp.gate_proj", 160, 64},   {"mlp.up_proj", 160, 64},     {"mlp.down_proj", 64, 160}};
    Directory dir;
    char name[200];
    directory_open(path, &dir);
    assert_true(is_ignored(&dir, "lm_head"));
    for (int layer = 0; layer < 2; layer++) {
        for (size_t i = 0; i < COUNT_OF(layers); i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, layers[i].name);
            const bool plain = skipped_down && strstr(name, "down_proj");
            assert_true(is_ignored(&dir, name) == plain);
            if (plain)
                check_tensor(&dir, name, "weight", "BF16", 2, layers[i].out, layers[i].in);
            else
                (dir.packed ? check_packed_layer : check_int8_layer)(&dir, name, layers[i].out, layers[i].in);
        }
        snprintf(name, sizeof name, "model.layers.%d.self_attn", layer);
        check_joined(&dir, name, attention, 3);
        snprintf(name, sizeof name, "model.layers.%d.mlp", layer);
        check_joined(&dir, name, mlp, 2);
    }
    directory_close(&dir);
}

/* ---- directories ---- */

static void rows_make(IdRow *rows, int32_t (*ids)[ROW_TOKENS]) {
    for (int r = 0; r < N_ROWS; r++) {
        for (int t = 0; t < ROW_TOKENS; t++) ids[r][t] = (int32_t)rng_below(rng_key(5, RNG_TEST, (uint64_t)r), (uint64_t)t, VOCAB);
        rows[r] = (IdRow){ids[r], ROW_TOKENS};
    }
}

TEST(directories_are_as_vllm_wants_them) {
    static const PtqConfig kinds[] = {
        {.method = "rtn", .bits = 4, .group = 32, .symmetric = true},
        {.method = "rtn", .bits = 4, .group = 32},
        {.method = "rtn", .bits = 8, .group = PTQ_GROUP_ROW, .symmetric = true},
        {.method = "rtn", .bits = 3, .group = 32, .symmetric = true},
        {.method = "rtn", .bits = 2, .group = 16, .symmetric = true},
        {.method = "gptq", .bits = 4, .group = 32, .symmetric = true, .act_order = true},
        {.method = "gptq", .bits = 8, .group = 32},
        {.method = "awq", .bits = 4, .group = 32},
        {.method = "int8", .bits = 8, .alpha = 0.5},
        {.method = "int8", .bits = 8, .alpha = 0.5, .calibrate = "absmax"},
    };
    static const char *const skipped[] = {"down_proj"};
    IdRow rows[N_ROWS];
    int32_t ids[N_ROWS][ROW_TOKENS];
    char model[600], dir[600];
    rows_make(rows, ids);
    snprintf(model, sizeof model, "%s", temp_file(test_folder, "plain"));
    snprintf(dir, sizeof dir, "%s", temp_file(test_folder, "quantised"));
    check_ok(model_write_random(model, config_text, DT_BF16, 1, 0.05));
    for (size_t i = 0; i < 2 * COUNT_OF(kinds); i++) {
        PtqConfig config = kinds[i / 2];
        PtqReport *report;
        config.model = model;
        config.output = dir;
        config.force = true;
        config.damp = 0.01;
        config.rows = rows;
        config.n_rows = N_ROWS;
        config.hold_back = 0.2;
        config.runtime = (Runtime){device_cpu(), DT_F32};
        config.skip = skipped;
        config.n_skip = i % 2;
        check_ok(ptq_run(&config, &report));
        ptq_free(report);
        check_directory(dir, i % 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(directories_are_as_vllm_wants_them)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
