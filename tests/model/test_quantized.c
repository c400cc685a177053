/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised Hugging Face directories: values and logits that other programs gave, and directories made here. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/model/model.h"
#include "lib/model/safetensors.h"

enum { MOST_TOKENS = 256 };

static double *logits_by(const char *path, DType compute, bool dequantize, const int32_t *ids, int64_t n, size_t *count) {
    Model *model;
    check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = compute, .dequantize = dequantize}, &model));
    Tape *tape = tape_new(device_cpu(), compute, 0);
    tape_record(tape, false);
    Segment segment = {.end = n, .parent = -1};
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = n, .n_segments = 1, .segments = &segment}};
    Tensor *rows = tensor_new(tape_arena(tape), device_cpu(), DT_I32, 1, &n);
    for (int64_t i = 0; i < n; i++) tensor_set(rows, i, (double)i);
    Tensor *logits = model_logits(model, tape, model_forward(model, tape, &batch), rows).logits;
    check_ok(tape_status(tape));
    *count = (size_t)tensor_count(logits);
    double *values = malloc(*count * sizeof *values);
    tensor_read(logits, values);
    tape_free(tape);
    model_free(model);
    return values;
}

static double *logits_of(const char *path, const int32_t *ids, int64_t n, size_t *count) { return logits_by(path, DT_F32, false, ids, n, count); }

static double *all_of(const WeightFile *set, const char *name, size_t *n) {
    const StoredTensor *stored = weight_file_find(set, name);
    if (!stored) fail_msg("no '%s' in the expected values", name);
    *n = (size_t)stored->count;
    double *values = malloc(*n * sizeof *values);
    for (size_t i = 0; i < *n; i++) values[i] = stored_get(stored, (int64_t)i);
    return values;
}

/* A copy in which the tensors that bnb-int8 stores in float16, and that are not quantised, have the values of the model they were made from: the
 * expected logits were computed with those. */
static void with_the_bases_floats(const char *dir, const char *to) {
    char file[700], base[512];
    WeightFile *own, *original;
    SafetensorsWriter *writer;
    snprintf(file, sizeof file, "%s/config.json", dir);
    check_ok(file_copy(file, temp_file(to, "config.json")));
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    check_ok(weight_file_open(file, &own));
    assert_true(shared_path("golden/models/llama", base, sizeof base));
    check_ok(weight_file_open(base, &original));
    check_ok(safetensors_writer_new(temp_file(to, "model.safetensors"), &writer));
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < own->n; i++) {
            const StoredTensor *tensor = &own->tensors[i], *float32 = weight_file_find(original, tensor->name);
            if (strcmp(tensor->dtype_text, "F16") == 0 && float32) tensor = float32;
            if (round == 0)
                safetensors_declare_as(writer, tensor);
            else
                safetensors_write(writer, tensor->data, tensor->bytes);
        }
    check_ok(safetensors_commit(writer));
    weight_file_close(own);
    weight_file_close(original);
}

TEST(directories_give_their_values_and_logits) {
    static const char *const names[] = {"gptq",     "gptq-actorder-asym", "gptq_v2",       "awq",     "bnb-nf4",  "bnb-nf4-double",
                                        "bnb-int8", "ct-pack4-sym",       "ct-pack4-asym", "ct-int8", "fp8-block"};
    char path[512], dir[600], name[200];
    WeightFile *expected, *base;
    if (!shared_path("golden/deploy/hfquant/expected.safetensors", path, sizeof path)) skip();
    check_ok(weight_file_open(path, &expected));
    if (!shared_path("golden/models/llama/expected.safetensors", path, sizeof path)) skip();
    check_ok(weight_file_open(path, &base));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        static const char down[] = "model.layers.0.mlp.down_proj";
        WeightFile *file;
        size_t n, n_want;
        snprintf(name, sizeof name, "golden/deploy/hfquant/%s", names[i]);
        assert_true(shared_path(name, dir, sizeof dir));
        check_ok(weight_file_open(dir, &file));
        snprintf(name, sizeof name, "%s.weight", down);
        double *got = all_of(file, name, &n);
        snprintf(name, sizeof name, "%s.%s.dequantized", names[i], down);
        double *want = all_of(expected, name, &n_want);
        assert_int_equal(n, n_want);
        check_close_f64(name, got, want, n, 0, 0); /* the same bits */
        weight_file_close(file);
        free(got);
        free(want);
        char floats[512];
        temp_dir_make(floats, sizeof floats);
        if (strcmp(names[i], "bnb-int8") == 0) with_the_bases_floats(dir, floats);
        for (int s = 0; s < 2; s++) {
            int32_t ids[MOST_TOKENS];
            snprintf(name, sizeof name, "seq%d.input_ids", s);
            double *tokens = all_of(base, name, &n);
            assert_true(n <= MOST_TOKENS);
            for (size_t t = 0; t < n; t++) ids[t] = (int32_t)tokens[t];
            got = logits_of(strcmp(names[i], "bnb-int8") == 0 ? floats : dir, ids, (int64_t)n, &n);
            snprintf(name, sizeof name, "%s.seq%d.logits", names[i], s);
            want = all_of(expected, name, &n_want);
            assert_int_equal(n, n_want);
            check_close_f64(name, got, want, n, 5e-5, 0); /* golden/README.md */
            free(tokens);
            free(got);
            free(want);
        }
        temp_dir_remove(floats);
    }
    weight_file_close(base);
    weight_file_close(expected);
}

/* ---- codes in memory ---- */

#define WIDE(type) "gguf/llama-wide/llama-wide." type ".gguf"
static const char *const quantised[] = {"../families/gpt_oss/mxfp4",
                                        "gguf/qwen3_moe-wide/qwen3_moe-wide.mxfp4.gguf",
                                        "gguf/qwen3_moe-wide/qwen3_moe-wide.q4_k_m.gguf",
                                        "hfquant/gptq",
                                        "hfquant/gptq-actorder-asym",
                                        "hfquant/gptq_v2",
                                        "hfquant/awq",
                                        "hfquant/bnb-nf4",
                                        "hfquant/bnb-nf4-double",
                                        "hfquant/bnb-int8",
                                        "hfquant/ct-pack4-sym",
                                        "hfquant/ct-pack4-asym",
                                        "hfquant/ct-int8",
                                        "hfquant/fp8-block",
                                        WIDE("q8_0"),
                                        WIDE("q4_k_m"),
                                        WIDE("q4_0"),
                                        WIDE("q5_1"),
                                        WIDE("q5_k_m"),
                                        WIDE("q2_k"),
                                        WIDE("q3_k_m"),
                                        WIDE("iq4_xs")};

/* Products of codes give the bits of products of values, with every instruction set. */
TEST(codes_give_the_logits_of_values) {
    static const int32_t ids[] = {1, 17, 5, 99, 123, 4, 31, 77, 130, 12, 3};
    for (size_t i = 0; i < COUNT_OF(quantised); i++)
        for (int run = 0; run < 2; run++) {
            DType compute = (i + (size_t)run) % 2 ? DT_BF16 : DT_F32;
            char name[200], path[512];
            size_t n[2];
            snprintf(name, sizeof name, "golden/deploy/%s", quantised[i]);
            if (!shared_path(name, path, sizeof path)) skip();
            if (cpu_configure(NULL, run ? "avx2" : "base") != ST_OK) continue;
            double *codes = logits_by(path, compute, false, ids, COUNT_OF(ids), &n[0]);
            double *values = logits_by(path, compute, true, ids, COUNT_OF(ids), &n[1]);
            assert_int_equal(n[0], n[1]);
            check_close_f64(quantised[i], codes, values, n[0], 0, 0);
            free(codes);
            free(values);
        }
    check_ok(cpu_configure(NULL, NULL));
}

/* A weight takes the memory of its codes and statistics, and the plan says so: on the device that plans as on the other. */
TEST(memory_is_that_of_codes) {
    for (size_t i = 0; i < COUNT_OF(quantised); i++) {
        char name[200], path[512];
        ModelMemory memory[3];
        size_t file = 0;
        snprintf(name, sizeof name, "golden/deploy/%s", quantised[i]);
        if (!shared_path(name, path, sizeof path)) skip();
        for (int k = 0; k < 3; k++) {
            Model *model;
            ModelOptions options = {.device = k == 1 ? device_meta() : device_cpu(), .compute = DT_F32, .dequantize = k == 2};
            check_ok(model_load(path, &options, &model));
            memory[k] = model_memory(model, true);
            for (size_t t = 0; k == 0 && t < model->files->n; t++) file += model->files->tensors[t].bytes;
            model_free(model);
        }
        assert_int_equal(memory[0].packed, 0);
        assert_int_equal(memory[0].mapped + memory[0].weights, memory[1].mapped + memory[1].weights);
        assert_true(memory[0].mapped + memory[0].weights < memory[2].mapped + memory[2].weights);
        check_close((double)(memory[0].mapped + memory[0].weights) / (double)file, 1, 0.25); /* scales may be wider than in the file */
    }
}

/* A fingerprint is that of the values, so a run continues whichever way its base is kept. */
TEST(fingerprints_are_of_values) {
    for (size_t i = 0; i < COUNT_OF(quantised); i++) {
        char name[200], path[512];
        uint64_t prints[2];
        snprintf(name, sizeof name, "golden/deploy/%s", quantised[i]);
        if (!shared_path(name, path, sizeof path)) skip();
        for (int k = 0; k < 2; k++) {
            Model *model;
            check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = i % 2 ? DT_F32 : DT_BF16, .dequantize = k}, &model));
            prints[k] = model_fingerprint(model);
            model_free(model);
        }
        assert_true(prints[0] == prints[1]);
    }
}

/* ---- made here ---- */

typedef struct Piece {
    const char *name;
    DType dtype;
    int n_dims;
    int64_t shape[4];
    const void *data;
} Piece;

/* A directory with these tensors and this quantization_config. */
static void make_directory(const char *dir, const char *settings, const Piece *parts, size_t n) {
    SafetensorsWriter *writer;
    Str config = {0};
    str_printf(&config, "{\"model_type\": \"llama\", \"quantization_config\": %s}", settings);
    temp_text(dir, "config.json", str_text(&config));
    str_release(&config);
    check_ok(safetensors_writer_new(temp_file(dir, "model.safetensors"), &writer));
    for (size_t i = 0; i < n; i++) safetensors_declare(writer, parts[i].name, parts[i].dtype, parts[i].n_dims, parts[i].shape);
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        assert_true(dtype_bytes_fit(parts[i].dtype, parts[i].n_dims, parts[i].shape, &bytes));
        safetensors_write(writer, parts[i].data, bytes);
    }
    check_ok(safetensors_commit(writer));
}

/* Two groups of 8 inputs, 8 outputs: the code of input i and output o is (i + o) % 16, the scale of group g (g + 1) / 2, the stored zero 7. */
static void gptq_parts(int32_t *weights, int32_t *zeros, float *scales, Piece *parts) {
    for (int o = 0; o < 8; o++)
        for (int w = 0; w < 2; w++) {
            uint32_t word = 0;
            for (int k = 0; k < 8; k++) word |= (uint32_t)((w * 8 + k + o) % 16) << (4 * k);
            weights[w * 8 + o] = (int32_t)word;
        }
    for (int g = 0; g < 2; g++) {
        zeros[g] = 0x77777777;
        for (int o = 0; o < 8; o++) scales[g * 8 + o] = (float)(g + 1) / 2;
    }
    parts[0] = (Piece){"a.qweight", DT_I32, 2, {2, 8}, weights};
    parts[1] = (Piece){"a.qzeros", DT_I32, 2, {2, 1}, zeros};
    parts[2] = (Piece){"a.scales", DT_F32, 2, {2, 8}, scales};
}

static double gptq_value(int o, int i, int zero) { return (i / 8 + 1) / 2.0 * ((i + o) % 16 - zero); }

static void check_gptq(const char *settings, int zero) {
    char dir[512];
    int32_t weights[16], zeros[2];
    float scales[16];
    Piece parts[3];
    WeightFile *file;
    gptq_parts(weights, zeros, scales, parts);
    temp_dir_make(dir, sizeof dir);
    make_directory(dir, settings, parts, 3);
    check_ok(weight_file_open(dir, &file));
    assert_int_equal(file->n, 1); /* the parts are gone */
    const StoredTensor *weight = weight_file_find(file, "a.weight");
    assert_non_null(weight);
    assert_true(stored_is_quantised(weight));
    assert_int_equal(weight->shape[0], 8);
    assert_int_equal(weight->shape[1], 16);
    float values[8 * 16];
    check_ok(stored_read(weight, 0, 8 * 16, DT_F32, values));
    for (int o = 0; o < 8; o++)
        for (int i = 0; i < 16; i++) check_close((double)values[o * 16 + i], gptq_value(o, i, zero), 0);
    check_ok(stored_read(weight, 3 * 16, 16, DT_F32, values)); /* one row */
    check_close((double)values[9], gptq_value(3, 9, zero), 0);
    weight_file_close(file);
    temp_dir_remove(dir);
}

TEST(gptq_stores_zeros_in_two_ways) {
    check_gptq("{\"quant_method\": \"gptq\", \"bits\": 4, \"sym\": true}", 8);
    check_gptq("{\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"gptq_v2\"}", 7);
}

static void fails(const char *settings, const Piece *parts, size_t n, const char *part) {
    char dir[512];
    WeightFile *file;
    temp_dir_make(dir, sizeof dir);
    make_directory(dir, settings, parts, n);
    check_status(weight_file_open(dir, &file), ST_INPUT);
    check_text(part);
    temp_dir_remove(dir);
}

TEST(parts_that_do_not_fit_are_refused) {
    int32_t weights[16], zeros[2], order[16] = {0};
    float scales[16];
    Piece parts[4];
    gptq_parts(weights, zeros, scales, parts);
    fails("{\"quant_method\": \"gptq\", \"bits\": 4}", parts, 2, "it has no scales");
    fails("{\"quant_method\": \"gptq\", \"bits\": 5}", parts, 3, "'bits' in quantization_config");
    fails("{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"}", parts, 3, "version 'gemv'");
    fails("{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 6}", parts, 3, "'a' in '");
    check_text("its rows of 16 inputs have 2 scales");
    check_contains(status_hint_text(), "groups of 6, as quantization_config says, would have 3");
    order[5] = 2;
    parts[3] = (Piece){"a.g_idx", DT_I32, 1, {16}, order};
    fails("{\"quant_method\": \"gptq\", \"bits\": 4}", parts, 4, "g_idx names a group");
    parts[1].shape[1] = 2;
    parts[1].data = weights;
    fails("{\"quant_method\": \"gptq\", \"bits\": 4}", parts, 3, "expected I32 of shape (2,1)");
    fails("{\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\"}", parts, 3, "in the format 'nvfp4-pack-quantized'");
}

/* Methods that are not read are refused with what to do, before the weights are looked at. */
/* Groups that are not equal: the last one is shorter if quantization_config says how long the others are, and else they are refused. */
TEST(groups_that_do_not_divide) {
    int32_t words[5 * 8] = {0}, zeros[2] = {0};
    float scales[16];
    char dir[512], text[200];
    WeightFile *file;
    for (int i = 0; i < 16; i++) scales[i] = (float)(i / 8 + 1); /* 1 in the first group, 2 in the second */
    const Piece gptq[] = {{"a.qweight", DT_I32, 2, {5, 8}, words}, {"a.qzeros", DT_I32, 2, {2, 1}, zeros}, {"a.scales", DT_F32, 2, {2, 8}, scales}};
    for (int64_t size = 20; size < 40; size += 12) {
        temp_dir_make(dir, sizeof dir);
        snprintf(text, sizeof text, "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": %d}", (int)size);
        make_directory(dir, text, gptq, 3);
        check_ok(weight_file_open(dir, &file));
        for (int64_t i = 0; i < 40; i++) check_close(stored_get(weight_file_find(file, "a.weight"), i), i < size ? -1 : -2, 0);
        weight_file_close(file);
        temp_dir_remove(dir);
    }
    const Piece awq[] = {{"a.qweight", DT_I32, 2, {15, 1}, words}, {"a.qzeros", DT_I32, 2, {2, 1}, zeros}, {"a.scales", DT_F32, 2, {2, 8}, scales}};
    fails("{\"quant_method\": \"awq\", \"bits\": 4}", awq, 3, "its rows of 15 inputs have 2 scales");
    check_contains(status_hint_text(), "the groups are not equal");
    fails("{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 4}", awq, 3, "its rows of 15 inputs have 2 scales");
    const Piece bytes[] = {{"a.weight_packed", DT_I32, 2, {8, 2}, words}, {"a.weight_scale", DT_F32, 2, {8, 2}, scales}};
    fails("{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}", bytes, 2, "tensor 'a.weight_shape' is missing");
}

TEST(other_methods_are_refused_with_the_remedy) {
    char dir[512];
    Model *model;
    static const char *const methods[][2] = {{"aqlm", "quantised by aqlm: its codebooks are not supported: take the model that it was made from"},
                                             {"quip", "quantised by quip: its codebooks are not supported: take"},
                                             {"vptq", "quantised by vptq: its codebooks are not supported: take"},
                                             {"spqr", "quantised by spqr: its outliers are not supported: take"},
                                             {"hqq", "quantised by hqq: take the model that it was made from, or quantise that"},
                                             {"eetq", "quantised by eetq: take the model that it was made from, or quantise that"},
                                             {"torchao", "quantised by torchao: its weights are pickled objects: take"},
                                             {"fbgemm_fp8", "quantised by fbgemm_fp8: take the model that it was made from, or its fp8 version"},
                                             {"of_tomorrow", "quantised (of_tomorrow), which is not supported: use the model that it was made from"}};
    temp_dir_make(dir, sizeof dir);
    for (size_t i = 0; i < COUNT_OF(methods); i++) {
        char config[400];
        snprintf(config, sizeof config,
                 "{\"model_type\": \"llama\", \"vocab_size\": 8, \"hidden_size\": 8, \"intermediate_size\": 8, \"num_hidden_layers\": 1, "
                 "\"num_attention_heads\": 1, \"quantization_config\": {\"quant_method\": \"%s\"}}",
                 methods[i][0]);
        temp_text(dir, "config.json", config);
        check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
        check_contains(status_hint_text(), methods[i][1]);
    }
    temp_dir_remove(dir);
}

TEST(mxfp4_experts_equal_the_library) {
    char path[512];
    WeightFile *expected, *file;
    size_t n, n_want;
    if (!shared_path("golden/deploy/hfquant/expected.safetensors", path, sizeof path)) skip();
    check_ok(weight_file_open(path, &expected));
    const StoredTensor *blocks = weight_file_find(expected, "mxfp4.blocks"), *scales = weight_file_find(expected, "mxfp4.scales");
    assert_true(blocks && scales);
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    temp_text(dir, "config.json", "{\"model_type\": \"llama\", \"quantization_config\": {\"quant_method\": \"mxfp4\"}}");
    SafetensorsWriter *writer;
    StoredTensor named[2] = {*blocks, *scales};
    named[0].name = "e_blocks";
    named[1].name = "e_scales";
    check_ok(safetensors_writer_new(temp_file(dir, "model.safetensors"), &writer));
    for (int i = 0; i < 2; i++) safetensors_declare_as(writer, &named[i]);
    for (int i = 0; i < 2; i++) safetensors_write(writer, named[i].data, named[i].bytes);
    check_ok(safetensors_commit(writer));
    check_ok(weight_file_open(dir, &file));
    double *got = all_of(file, "e", &n), *want = all_of(expected, "mxfp4.dequantized", &n_want);
    assert_int_equal(n, n_want);
    check_close_f64("mxfp4", got, want, n, 0, 0);
    free(got);
    free(want);
    weight_file_close(file);
    weight_file_close(expected);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(directories_give_their_values_and_logits),
        cmocka_unit_test(codes_give_the_logits_of_values),
        cmocka_unit_test(memory_is_that_of_codes),
        cmocka_unit_test(fingerprints_are_of_values),
        cmocka_unit_test(gptq_stores_zeros_in_two_ways),
        cmocka_unit_test(parts_that_do_not_fit_are_refused),
        cmocka_unit_test(groups_that_do_not_divide),
        cmocka_unit_test(other_methods_are_refused_with_the_remedy),
        cmocka_unit_test(other_methods_are_refused_with_the_remedy),
        cmocka_unit_test(mxfp4_experts_equal_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
