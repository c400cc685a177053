/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are quantised while a model is loaded: bitsandbytes' and llama.cpp's bytes, the directory that keeps them, and refusals. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/system.h"
#include "lib/model/model.h"
#include "lib/model/quantized/quantise.h"
#include "lib/tensor/quant/quant.h"

static Model *loaded(const char *dir, const Quantise *how) {
    Model *model;
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .dequantize = true, .quantise = how}, &model));
    return model;
}

static void check_same_weights(const Model *a, const Model *b, bool linears_only) {
    assert_int_equal(a->n_modules, b->n_modules);
    for (size_t i = 0; i < a->n_modules; i++) {
        const Tensor *left = *a->modules[i].weight, *right = *b->modules[i].weight;
        if (linears_only && !a->modules[i].linear) continue;
        assert_int_equal(tensor_count(left), tensor_count(right));
        for (int64_t k = 0; k < tensor_count(left); k++)
            if (tensor_get(left, k) != tensor_get(right, k)) fail_msg("'%s', element %lld", a->modules[i].path, (long long)k);
    }
}

static const StoredTensor *part_of(const WeightFile *file, const char *name, const char *part) {
    char full[300];
    snprintf(full, sizeof full, "%s%s", name, part);
    const StoredTensor *tensor = weight_file_find(file, full);
    if (!tensor) fail_msg("no '%s'", full);
    return tensor;
}

/* Codes and scales of weights are equal. Nested statistics are quantised less their mean, which torch sums in float32 and in another order: the code
 * of a scale close to the mean may be another one, and the map's steps are 1e-6 of nested_absmax there. */
static void check_part(const char *part, const StoredTensor *got, const StoredTensor *want) {
    const bool codes = strcmp(part, ".weight.absmax") == 0, scales = strcmp(part, ".weight.nested_absmax") == 0;
    float map[256];
    dynamic_map(map);
    for (int64_t i = 0; codes && i < want->count; i++) check_close((double)map[got->data[i]], (double)map[want->data[i]], 1e-5);
    for (int64_t i = 0; scales && i < want->count; i++) check_close(stored_get(got, i), stored_get(want, i), 1e-6 * stored_get(want, i));
    if (!codes && !scales) assert_memory_equal(got->data, want->data, got->bytes);
}

/* The parts in the directory have the bytes that bitsandbytes wrote. */
static void check_bytes(const char *dir, const char *golden, const char *const (*parts)[2], size_t n_parts) {
    char path[600];
    WeightFile *got, *want;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    check_ok(weight_file_open(path, &got));
    check_ok(weight_file_open(golden, &want));
    for (size_t i = 0; i < want->n; i++) {
        const char *dot = strstr(want->tensors[i].name, ".weight.absmax");
        if (!dot || dot[strlen(".weight.absmax")] != '\0') continue;
        char name[200];
        snprintf(name, sizeof name, "%.*s", (int)(dot - want->tensors[i].name), want->tensors[i].name);
        for (size_t k = 0; k < n_parts; k++) {
            const StoredTensor *g = part_of(got, name, parts[k][0]), *w = part_of(want, name, parts[k][1]);
            assert_int_equal(g->bytes, w->bytes);
            check_part(parts[k][0], g, w);
        }
        n++;
    }
    assert_int_equal(n, 21);
    weight_file_close(want);
    weight_file_close(got);
}

TEST(bytes_are_those_of_bitsandbytes) {
    char base[512], nf4[512], int8[512];
    if (!shared_path("golden/models/llama", base, sizeof base) ||
        !shared_path("golden/deploy/qlora/llama-nf4/quantized.safetensors", nf4, sizeof nf4) ||
        !shared_path("golden/deploy/qlora/llama-int8/quantized.safetensors", int8, sizeof int8))
        skip();
    static const char *const four[][2] = {
        {".weight", ".weight.packed"}, {".weight.absmax", ".weight.absmax"}, {".weight.nested_absmax", ".weight.nested_absmax"}};
    static const char *const eight[][2] = {{".weight", ".weight.q"}, {".SCB", ".weight.absmax"}};
    const char *dir = temp_file(test_folder, "bytes");
    check_ok(quantise_save(base, &(Quantise){.form = "nf4", .nested = true, .block = 64}, dir));
    check_bytes(dir, nf4, four, COUNT_OF(four));
    check_ok(quantise_save(base, &(Quantise){.form = "int8"}, dir));
    check_bytes(dir, int8, eight, COUNT_OF(eight));
}

/* In memory, and from the directory: the same values in every form. */
TEST(the_directory_keeps_the_values) {
    static const Quantise forms[] = {{.form = "nf4", .nested = true, .block = 64},
                                     {.form = "nf4", .block = 32},
                                     {.form = "fp4", .nested = true, .block = 128},
                                     {.form = "int8"},
                                     {.form = "q8_0"},
                                     {.form = "q4_k"},
                                     {.form = "mxfp4"}};
    char base[512];
    if (!shared_path("golden/deploy/gguf/llama-wide/hf", base, sizeof base)) skip();
    const char *dir = temp_file(test_folder, "kept");
    for (size_t i = 0; i < ALL_OR_FEW(COUNT_OF(forms), 2); i++) {
        check_ok(quantise_save(base, &forms[i], dir));
        Model *memory = loaded(base, &forms[i]), *kept = loaded(dir, NULL);
        check_same_weights(memory, kept, false);
        model_free(kept);
        model_free(memory);
    }
}

TEST(blocks_are_those_of_llama_cpp) {
    char base[512], gguf[512];
    if (!shared_path("golden/deploy/gguf/llama-wide/hf", base, sizeof base) ||
        !shared_path("golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", gguf, sizeof gguf))
        skip();
    Model *ours = loaded(base, &(Quantise){.form = "q8_0"}), *theirs = loaded(gguf, NULL);
    check_same_weights(ours, theirs, true);
    model_free(theirs);
    model_free(ours);
}

/* Rows of 48: no format has such blocks, so the weights stay; 96 is a multiple of 32. */
TEST(rows_that_do_not_divide_stay) {
    char base[512];
    if (!shared_path("golden/models/llama", base, sizeof base)) skip();
    Model *model = loaded(base, &(Quantise){.form = "q4_k"});
    for (size_t i = 0; i < model->files->n; i++) {
        const StoredTensor *stored = &model->files->tensors[i];
        bool down = strstr(stored->name, "down_proj") != NULL;
        assert_int_equal(stored_is_quantised(stored), down);
        if (down) assert_string_equal(stored->dtype_text, "q5_0");
    }
    model_free(model);
}

TEST(only_the_chosen_modules) {
    static const char *const names[] = {"q_proj", "mlp.up_proj"};
    char base[512];
    if (!shared_path("golden/models/llama", base, sizeof base)) skip();
    Model *model = loaded(base, &(Quantise){.form = "int8", .n_modules = 2, .modules = names});
    size_t n = 0;
    for (size_t i = 0; i < model->files->n; i++) {
        const StoredTensor *stored = &model->files->tensors[i];
        bool chosen = strstr(stored->name, "q_proj") || strstr(stored->name, "up_proj");
        assert_int_equal(stored_is_quantised(stored), chosen);
        n += chosen;
    }
    assert_int_equal(n, 6);
    model_free(model);
}

static void check_refused(const char *base, const Quantise *how, const char *text) {
    Model *model;
    check_status(model_load(base, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .quantise = how}, &model), ST_CONFIG);
    check_text(text);
}

TEST(refusals_name_the_cause) {
    static const char *const unknown[] = {"q_porj"}, *const head[] = {"lm_head"};
    char base[512], gguf[512], gpt2[512];
    if (!shared_path("golden/models/llama", base, sizeof base) || !shared_path("golden/models/gpt2", gpt2, sizeof gpt2) ||
        !shared_path("golden/deploy/gguf/llama-wide/llama-wide.q8_0.gguf", gguf, sizeof gguf))
        skip();
    check_refused(base, &(Quantise){.form = "int8", .n_modules = 1, .modules = unknown},
                  "'q_porj' of model.quantize_modules matches no linear layer");
    check_refused(base, &(Quantise){.form = "int8", .n_modules = 1, .modules = head}, "'lm_head' of model.quantize_modules matches no linear layer");
    check_refused(base, &(Quantise){.form = "nf4", .block = 96}, "'model.quantize_block' is 96");
    check_refused(gguf, &(Quantise){.form = "int8"}, "'model.quantize: int8' of a base that is quantised already: tensor 'lm_head.weight' in '");
    check_refused(gpt2, &(Quantise){.form = "int8"}, "stored (in, out)");
    const char *dir = temp_file(test_folder, "once");
    check_ok(quantise_save(base, &(Quantise){.form = "fp4", .block = 64}, dir));
    check_refused(dir, &(Quantise){.form = "q8_0"}, "of a base that is quantised already: tensor 'model.layers.0.mlp.down_proj.weight' in '");
    check_contains(status_hint_text(), "the base is FP4; leave model.quantize out");
}

TEST(names_depend_on_files_and_keys) {
    char base[512], other[512];
    if (!shared_path("golden/models/llama", base, sizeof base) || !shared_path("golden/models/qwen2", other, sizeof other)) skip();
    Arena *arena = arena_new(0);
    const char *name, *again, *nested, *form, *model;
    check_ok(quantise_name(base, &(Quantise){.form = "nf4", .block = 64}, arena, &name));
    check_ok(quantise_name(base, &(Quantise){.form = "nf4", .block = 64}, arena, &again));
    check_ok(quantise_name(base, &(Quantise){.form = "nf4", .block = 64, .nested = true}, arena, &nested));
    check_ok(quantise_name(base, &(Quantise){.form = "int8"}, arena, &form));
    check_ok(quantise_name(other, &(Quantise){.form = "nf4", .block = 64}, arena, &model));
    assert_true(text_starts_with(name, "llama-nf4-"));
    assert_string_equal(name, again);
    assert_string_not_equal(name, nested);
    assert_string_not_equal(strrchr(name, '-'), strrchr(form, '-'));
    assert_string_not_equal(strrchr(name, '-'), strrchr(model, '-'));
    arena_free(arena);
}

/* Changed settings of a kept directory: each is told, none is read beyond the bytes. */
TEST(broken_directories_are_refused) {
    static const struct {
        const char *types, *text;
    } cases[] = {{"{\"model.layers.0.mlp.down_proj.weight\": \"q9_9\"}", "its format in 'types' is not known"},
                 {"{\"model.layers.0.mlp.down_proj.weight\": 7}", "its format in 'types' is not known"},
                 {"{\"model.layers.0.mlp.down_proj.weight\": \"mxfp4\"}", "expected (48,96)"},
                 {"{\"model.layers.0.mlp.down_proj.weight\": \"q4_k\"}", "it has no rows of whole blocks"},
                 {"{\"model.norm.weight\": \"q8_0\"}", "it has no rows of whole blocks"},
                 {"{\"nothing\": \"q8_0\"}", "tensor 'nothing' is missing"}};
    char base[512], config[700];
    if (!shared_path("golden/models/llama", base, sizeof base)) skip();
    const char *dir = temp_file(test_folder, "broken");
    check_ok(quantise_save(base, &(Quantise){.form = "q8_0"}, dir));
    snprintf(config, sizeof config, "%s/config.json", dir);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *json, *types = json_loads(cases[i].types, 0, NULL);
        check_ok(json_read_file(config, &json));
        json_object_set_new(json_object_get(json, "quantization_config"), "types", types);
        char *text = json_dumps(json, 0);
        check_ok(file_write_all(config, text, strlen(text)));
        free(text);
        json_decref(json);
        Model *model;
        check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
        check_text(cases[i].text);
    }
}

/* Overwrites bytes of a tensor in the directory's file, `after` bytes after its first one; returns their place in the file. */
static size_t overwrite(const char *dir, const char *name, size_t after, const void *bytes, size_t n) {
    char path[600];
    WeightFile *file;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    check_ok(weight_file_open(path, &file));
    const size_t at = (size_t)(part_of(file, name, "")->data - file->mappings[0].data) + after;
    weight_file_close(file);
    FILE *out = fopen(path, "r+b");
    assert_non_null(out);
    assert_int_equal(fseek(out, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    return at;
}

static void check_told(const char *dir, const char *element, size_t byte) {
    Model *model;
    char text[200];
    check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text("tensor 'model.layers.1.mlp.down_proj.weight' in '");
    snprintf(text, sizeof text, "holds a NaN or an infinity at element %s", element);
    if (byte) snprintf(text + strlen(text), sizeof text - strlen(text), ", byte %zu of the file", byte);
    check_text(text);
}

/* Scales that are NaN or infinite: of tensors of their own, and in blocks. Rows of down_proj have 96 elements. */
TEST(scales_that_are_no_numbers_are_told) {
    static const char down[] = "model.layers.1.mlp.down_proj";
    const uint32_t nan = 0x7fc00000, infinity = 0x7f800000;
    const uint16_t half_nan = 0x7e00;
    const char *dir = temp_file(test_folder, "scales");
    char base[512], name[100];
    if (!shared_path("golden/models/llama", base, sizeof base)) skip();
    check_ok(quantise_save(base, &(Quantise){.form = "nf4", .block = 64}, dir));
    snprintf(name, sizeof name, "%s.weight.absmax", down);
    overwrite(dir, name, 3 * sizeof nan, &nan, sizeof nan);
    check_told(dir, "192", 0);
    check_ok(quantise_save(base, &(Quantise){.form = "int8"}, dir));
    snprintf(name, sizeof name, "%s.SCB", down);
    overwrite(dir, name, 2 * sizeof infinity, &infinity, sizeof infinity);
    check_told(dir, "192", 0);
    check_ok(quantise_save(base, &(Quantise){.form = "q8_0"}, dir));
    snprintf(name, sizeof name, "%s.weight", down);
    const size_t at = overwrite(dir, name, 5 * 34, &half_nan, sizeof half_nan);
    check_told(dir, "160", at);
}

/* ---- memory ---- */

/* A file of 44 MiB, of which 16 are the embedding. */
static const char large[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 16384, \"hidden_size\": 512, \"intermediate_size\": 1536, \"num_hidden_layers\": 4,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"tie_word_embeddings\": true}";

/* MiB by which the resident size grew at its peak since `before`; -1: it is not known. */
static double grown_since(uint64_t *before) {
    double grown = *before ? ((double)memory_peak() - (double)*before) / (1 << 20) : -1;
    FILE *refs = fopen("/proc/self/clear_refs", "w"); /* 5: the peak begins again */
    bool reset = refs && fputs("5", refs) >= 0;
    if (refs && fclose(refs)) reset = false;
    *before = reset ? memory_resident() : 0;
    return grown;
}

/* The pages of the original are released: when it is hashed, quantised, and copied where it stays as it is. */
TEST(the_original_is_not_kept_in_memory) {
#ifdef SANITIZED
    skip(); /* sanitizers need extra memory */
#endif
    const char *from = strdup(temp_file(test_folder, "large")), *name;
    const Quantise how = {.form = "nf4", .nested = true, .block = 64};
    uint64_t before = 0;
    Arena *arena = arena_new(0);
    check_ok(model_write_random(from, large, DT_BF16, 5, 0.2));
    grown_since(&before);
    if (!before) skip();
    check_ok(quantise_name(from, &how, arena, &name));
    double hashed = grown_since(&before);
    check_ok(quantise_save(from, &how, temp_file(test_folder, name)));
    double saved = grown_since(&before);
    if (hashed > 8) fail_msg("hashing took %.1f MiB", hashed);
    if (saved > 8 + 7) fail_msg("quantising took %.1f MiB, 7 of which are codes", saved); /* 13.6 million weights of 4.13 bits */
    arena_free(arena);
    free((void *)(uintptr_t)from);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_bitsandbytes),
        cmocka_unit_test(the_directory_keeps_the_values),
        cmocka_unit_test(blocks_are_those_of_llama_cpp),
        cmocka_unit_test(rows_that_do_not_divide_stay),
        cmocka_unit_test(only_the_chosen_modules),
        cmocka_unit_test(refusals_name_the_cause),
        cmocka_unit_test(names_depend_on_files_and_keys),
        cmocka_unit_test(broken_directories_are_refused),
        cmocka_unit_test(scales_that_are_no_numbers_are_told),
        cmocka_unit_test(the_original_is_not_kept_in_memory),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
