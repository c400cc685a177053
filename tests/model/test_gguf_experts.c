/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files of families with experts or latent attention: made here as llama.cpp's converter makes them, they compute and train to the bit what the
 * directory with their values does. */
#include "sft/sft.h"
#include "tests/support/check.h"
#include "tests/support/gguf_made.h"
#include "tests/support/runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/rng.h"
#include "lib/model/model.h"
#include "lib/model/safetensors.h"
#include "lib/tensor/quant/quant.h"

#define COMMON                                                                                                                      \
    "\"vocab_size\": 50, \"hidden_size\": 64, \"num_hidden_layers\": 3, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-06, " \
    "\"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"num_experts_per_tok\": 3, "
#define LATENT                                                                                                                \
    "\"intermediate_size\": 96, \"moe_intermediate_size\": 32, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "      \
    "\"kv_lora_rank\": 32, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16, \"v_head_dim\": 48, \"n_routed_experts\": 8, " \
    "\"first_k_dense_replace\": 1, "

/* ---- families: their settings as config.json and as metadata ---- */

static void common_keys(Made *made, const char *arch, uint32_t layers, uint32_t heads, uint32_t kv_heads) {
    const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"block_count", layers},
                {"context_length", 64},
                {"embedding_length", 64},
                {"feed_forward_length", 96},
                {"attention.head_count", heads},
                {"attention.head_count_kv", kv_heads},
                {"expert_feed_forward_length", 32},
                {"expert_used_count", 3}};
    char key[100];
    made_text(made, "general.architecture", arch);
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, keys[i].key);
        made_int(made, key, keys[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    made_real(made, key, 1e-6f);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    made_real(made, key, 10000);
}

static void yarn_keys(Made *made, const char *arch, float factor, uint32_t original) {
    char key[100];
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    made_text(made, key, "yarn");
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    made_real(made, key, factor);
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", arch);
    made_int(made, key, original);
}

static void gpt_oss_keys(Made *made) {
    common_keys(made, "gpt-oss", 3, 4, 2);
    made_int(made, "gpt-oss.expert_count", 4);
    made_int(made, "gpt-oss.attention.key_length", 24);
    made_int(made, "gpt-oss.attention.value_length", 24);
    made_int(made, "gpt-oss.attention.sliding_window", 6);
    yarn_keys(made, "gpt-oss", 8, 32);
}

static void glm_keys(Made *made, uint32_t layers) {
    common_keys(made, "glm4moe", layers, 4, 2);
    made_int(made, "glm4moe.expert_count", 6);
    made_int(made, "glm4moe.attention.key_length", 24);
    made_int(made, "glm4moe.attention.value_length", 24);
    made_int(made, "glm4moe.rope.dimension_count", 12);
    made_int(made, "glm4moe.expert_shared_count", 1);
    made_int(made, "glm4moe.leading_dense_block_count", 1);
    made_int(made, "glm4moe.expert_gating_func", 2);
    made_real(made, "glm4moe.expert_weights_scale", 1.5f);
    made_bool(made, "glm4moe.expert_weights_norm", true);
}

static void glm4_moe_keys(Made *made) { glm_keys(made, 3); }

static void latent_keys(Made *made, uint32_t gating, uint32_t shared, float scale, float tenth) {
    common_keys(made, "deepseek2", 3, 2, 1);
    made_int(made, "deepseek2.expert_count", 8);
    made_int(made, "deepseek2.attention.kv_lora_rank", 32);
    made_int(made, "deepseek2.attention.key_length", 48);
    made_int(made, "deepseek2.attention.value_length", 32);
    made_int(made, "deepseek2.attention.key_length_mla", 48);
    made_int(made, "deepseek2.attention.value_length_mla", 48);
    made_int(made, "deepseek2.rope.dimension_count", 16);
    made_int(made, "deepseek2.leading_dense_block_count", 1);
    made_int(made, "deepseek2.expert_shared_count", shared);
    if (gating) made_int(made, "deepseek2.expert_gating_func", gating);
    made_real(made, "deepseek2.expert_weights_scale", scale);
    yarn_keys(made, "deepseek2", 4, 16);
    if (tenth != 0) made_real(made, "deepseek2.rope.scaling.yarn_log_multiplier", tenth);
}

static void deepseek_v2_keys(Made *made) { latent_keys(made, 1, 2, 1.5f, 0.0707f); }

static void deepseek_v3_keys(Made *made) {
    latent_keys(made, 2, 1, 2.5f, 0.1f);
    made_int(made, "deepseek2.attention.q_lora_rank", 32);
    made_int(made, "deepseek2.expert_group_count", 4);
    made_int(made, "deepseek2.expert_group_used_count", 2);
    made_bool(made, "deepseek2.expert_weights_norm", true);
}

static const struct Family {
    const char *config;
    void (*keys)(Made *made);
    const char *post_norm; /* llama.cpp's name of post_attention_layernorm */
} families[] = {
    {"{\"model_type\": \"gpt_oss\", " COMMON "\"intermediate_size\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 24, "
     "\"num_local_experts\": 4, \"sliding_window\": 6, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"truncate\": false, "
     "\"original_max_position_embeddings\": 32}}",
     gpt_oss_keys, "post_attention_norm"},
    {"{\"model_type\": \"glm4_moe\", " COMMON "\"intermediate_size\": 96, \"moe_intermediate_size\": 32, \"num_attention_heads\": 4, "
     "\"num_key_value_heads\": 2, \"head_dim\": 24, \"n_routed_experts\": 6, \"n_shared_experts\": 1, \"routed_scaling_factor\": 1.5, "
     "\"attention_bias\": true, \"use_qk_norm\": true, \"first_k_dense_replace\": 1}",
     glm4_moe_keys, "post_attention_norm"},
    {"{\"model_type\": \"deepseek_v2\", " COMMON LATENT "\"q_lora_rank\": null, \"n_shared_experts\": 2, \"routed_scaling_factor\": 1.5, "
     "\"topk_method\": \"greedy\", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 16, "
     "\"mscale\": 0.707, \"mscale_all_dim\": 0.707}}",
     deepseek_v2_keys, "ffn_norm"},
    {"{\"model_type\": \"deepseek_v3\", " COMMON LATENT "\"q_lora_rank\": 32, \"n_shared_experts\": 1, \"routed_scaling_factor\": 2.5, "
     "\"n_group\": 4, \"topk_group\": 2, \"norm_topk_prob\": true, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
     "\"original_max_position_embeddings\": 16, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}",
     deepseek_v3_keys, "ffn_norm"},
};
enum { GPT_OSS, GLM4_MOE, DEEPSEEK_V2, DEEPSEEK_V3 };

/* ---- from a directory to a file ---- */

typedef struct Source {
    const WeightFile *file;
    float **values; /* of each tensor */
    const struct Family *family;
    const QuantFormat *format; /* of matrices; NULL: float32 */
    Made *made;
} Source;

static float *values_of(const Source *source, const char *name) {
    const StoredTensor *tensor = weight_file_find(source->file, name);
    if (!tensor) fail_msg("'%s' is missing", name);
    return source->values[tensor - source->file->tensors];
}

/* Adds a tensor; if it is quantised, `values` become what its blocks say. */
static void add(const Source *source, const char *name, int n_dims, const int64_t *shape, float *values) {
    const QuantFormat *format = source->format;
    int64_t count = 1, row = shape[n_dims - 1];
    for (int d = 0; d < n_dims; d++) count *= shape[d];
    if (!format || n_dims < 2 || row % format->block != 0 || strstr(name, "ffn_gate_inp") || strstr(name, ".bias")) {
        made_tensor(source->made, name, n_dims, shape, 0, values, (size_t)count * sizeof *values);
        return;
    }
    uint8_t *blocks = malloc(dtype_bytes(format->dtype, count));
    for (int64_t at = 0; at < count; at += row) {
        uint8_t *to = blocks + dtype_bytes(format->dtype, at);
        format->write(values + at, row, NULL, to);
        format->read(to, row / format->block, values + at);
    }
    made_tensor(source->made, name, n_dims, shape, (uint32_t)format->ggml_type, blocks, dtype_bytes(format->dtype, count));
    free(blocks);
}

/* One of all experts of a layer, (experts, out, in). */
static void add_stack(const Source *source, int layer, const char *part, const char *own, const StoredTensor *first) {
    const int64_t size = first->count, shape[] = {source->family == &families[GLM4_MOE] ? 6 : 8, first->shape[0], first->shape[1]};
    float *stack = malloc((size_t)(shape[0] * size) * sizeof *stack);
    char name[200];
    for (int back = 0; back < 2; back++) {
        for (int e = 0; e < shape[0]; e++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e, part);
            float *its = values_of(source, name), *there = stack + e * size;
            memcpy(back ? its : there, back ? there : its, (size_t)size * sizeof *stack);
        }
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, own);
        if (!back) add(source, name, 3, shape, stack);
    }
    free(stack);
}

/* (experts, in, n out) to n tensors (experts, out, in), of which tensor k has the columns n o + k. A bias has one input. */
static void add_turned(const Source *source, int layer, const StoredTensor *tensor, const char *const *names, int n, const char *kind) {
    const bool bias = tensor->n_dims == 2;
    const int64_t experts = tensor->shape[0], in = bias ? 1 : tensor->shape[1], out = tensor->shape[bias ? 1 : 2] / n;
    float *turned = malloc((size_t)(experts * in * out) * sizeof *turned), *values = values_of(source, tensor->name);
    char name[200];
    for (int k = 0; k < n; k++)
        for (int back = 0; back < 2; back++) {
            for (int64_t e = 0; e < experts; e++)
                for (int64_t i = 0; i < in; i++)
                    for (int64_t o = 0; o < out; o++) {
                        float *a = &values[((e * in + i) * out + o) * n + k], *b = &turned[(e * out + o) * in + i];
                        if (back)
                            *a = *b;
                        else
                            *b = *a;
                    }
            snprintf(name, sizeof name, "blk.%d.%s.%s", layer, names[k], kind);
            if (!back) add(source, name, bias ? 2 : 3, bias ? (int64_t[]){experts, out} : (int64_t[]){experts, out, in}, turned);
        }
    free(turned);
}

/* kv_b_proj (heads (nope + v), rank) to attn_k_b (heads, rank, nope) and attn_v_b (heads, v, rank). */
static void add_latent(const Source *source, int layer, const StoredTensor *tensor) {
    enum { LATENT_HEADS = 2, NOPE = 32, V = 48, RANK = 32 };
    float k[LATENT_HEADS][RANK][NOPE], v[LATENT_HEADS][V][RANK], *values = values_of(source, tensor->name);
    char name[100];
    for (int back = 0; back < 2; back++) {
        for (int h = 0; h < LATENT_HEADS; h++)
            for (int j = 0; j < NOPE + V; j++)
                for (int r = 0; r < RANK; r++) {
                    float *a = &values[(h * (NOPE + V) + j) * RANK + r], *b = j < NOPE ? &k[h][r][j] : &v[h][j - NOPE][r];
                    if (back)
                        *a = *b;
                    else
                        *b = *a;
                }
        snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", layer);
        if (!back) add(source, name, 3, (int64_t[]){LATENT_HEADS, RANK, NOPE}, k[0][0]);
        snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", layer);
        if (!back) add(source, name, 3, (int64_t[]){LATENT_HEADS, V, RANK}, v[0][0]);
    }
}

/* What is the same tensor under another name. */
static void add_renamed(const Source *source, int layer, const char *rest, const StoredTensor *tensor) {
    const char *const pairs[][2] = {{"input_layernorm.", "attn_norm"},
                                    {"post_attention_layernorm.", source->family->post_norm},
                                    {"self_attn.q_proj.", "attn_q"},
                                    {"self_attn.k_proj.", "attn_k"},
                                    {"self_attn.v_proj.", "attn_v"},
                                    {"self_attn.o_proj.", "attn_output"},
                                    {"self_attn.q_norm.", "attn_q_norm"},
                                    {"self_attn.k_norm.", "attn_k_norm"},
                                    {"self_attn.sinks", "attn_sinks.weight"},
                                    {"self_attn.q_a_proj.", "attn_q_a"},
                                    {"self_attn.q_a_layernorm.", "attn_q_a_norm"},
                                    {"self_attn.q_b_proj.", "attn_q_b"},
                                    {"self_attn.kv_a_proj_with_mqa.", "attn_kv_a_mqa"},
                                    {"self_attn.kv_a_layernorm.", "attn_kv_a_norm"},
                                    {"mlp.gate_proj.", "ffn_gate"},
                                    {"mlp.up_proj.", "ffn_up"},
                                    {"mlp.down_proj.", "ffn_down"},
                                    {"mlp.shared_experts.gate_proj.", "ffn_gate_shexp"},
                                    {"mlp.shared_experts.up_proj.", "ffn_up_shexp"},
                                    {"mlp.shared_experts.down_proj.", "ffn_down_shexp"},
                                    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
                                    {"mlp.gate.", "ffn_gate_inp"},
                                    {"mlp.router.", "ffn_gate_inp"}};
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        size_t n = strlen(pairs[i][0]);
        char name[200];
        if (strncmp(rest, pairs[i][0], n) != 0) continue;
        snprintf(name, sizeof name, "blk.%d.%s%s%s", layer, pairs[i][1], rest[n] ? "." : "", rest + n);
        add(source, name, tensor->n_dims, tensor->shape, values_of(source, tensor->name));
        return;
    }
    fail_msg("'%s' has no name in GGUF files", rest);
}

static void add_in_layer(const Source *source, int layer, const char *rest, const StoredTensor *tensor) {
    static const char *const both[] = {"ffn_gate_exps", "ffn_up_exps"}, *const down[] = {"ffn_down_exps"};
    int expert = -1;
    char part[20];
    const char *kind = tensor->n_dims == 2 ? "bias" : "weight";
    if (strcmp(rest, "self_attn.kv_b_proj.weight") == 0) {
        add_latent(source, layer, tensor);
    } else if (strncmp(rest, "mlp.experts.gate_up_proj", 24) == 0) {
        add_turned(source, layer, tensor, both, 2, kind);
    } else if (strncmp(rest, "mlp.experts.down_proj", 21) == 0) {
        add_turned(source, layer, tensor, down, 1, kind);
    } else if (sscanf(rest, "mlp.experts.%d.%19[a-z_].weight", &expert, part) == 2) {
        const char *own = part[0] == 'g' ? both[0] : part[0] == 'u' ? both[1] : down[0];
        if (expert == 0) add_stack(source, layer, part, own, tensor);
    } else {
        add_renamed(source, layer, rest, tensor);
    }
}

/* Tensors whose random values would be constants: biases and sinks. */
static void draw(const StoredTensor *tensor, float *values) {
    if (!strstr(tensor->name, "bias") && !strstr(tensor->name, "sinks")) return;
    RngKey key = rng_key(7, RNG_TEST, tensor->name[13] - '0'); /* another one in each layer */
    for (int64_t i = 0; i < tensor->count; i++) values[i] = (float)(rng_uniform(key, (uint64_t)i) - 0.5);
}

static void write_directory(const Source *source, const char *hf) {
    SafetensorsWriter *writer;
    check_ok(safetensors_writer_new(temp_file(hf, "model.safetensors"), &writer));
    for (size_t i = 0; i < source->file->n; i++) {
        const StoredTensor *tensor = &source->file->tensors[i];
        safetensors_declare(writer, tensor->name, DT_F32, tensor->n_dims, tensor->shape);
    }
    for (size_t i = 0; i < source->file->n; i++) safetensors_write(writer, source->values[i], (size_t)source->file->tensors[i].count * sizeof(float));
    check_ok(safetensors_commit(writer));
}

/* Makes a random model of the family: `hf`, a directory in float32 whose values are those of the file, and the tensors of the file, after the keys
 * that are there. */
static void make_pair(size_t family, const QuantFormat *format, const char *dir, const char *hf, Made *made) {
    char drawn[600];
    WeightFile *file;
    snprintf(drawn, sizeof drawn, "%s/drawn", dir);
    check_ok(model_write_random(drawn, families[family].config, DT_F32, 7, 0.2));
    check_ok(weight_file_open(drawn, &file));
    check_ok(dir_make(hf));
    check_ok(file_copy(temp_file(drawn, "config.json"), temp_file(hf, "config.json")));
    Source source = {.file = file, .values = malloc(file->n * sizeof(float *)), .family = &families[family], .format = format, .made = made};
    for (size_t i = 0; i < file->n; i++) {
        source.values[i] = malloc(file->tensors[i].bytes);
        memcpy(source.values[i], file->tensors[i].data, file->tensors[i].bytes);
        draw(&file->tensors[i], source.values[i]);
    }
    for (size_t i = 0; i < file->n; i++) {
        const StoredTensor *tensor = &file->tensors[i];
        const char *top = strcmp(tensor->name, "model.embed_tokens.weight") == 0 ? "token_embd.weight"
                          : strcmp(tensor->name, "model.norm.weight") == 0       ? "output_norm.weight"
                          : strcmp(tensor->name, "lm_head.weight") == 0          ? "output.weight"
                                                                                 : NULL;
        int layer = -1, used = 0;
        if (top)
            add(&source, top, tensor->n_dims, tensor->shape, source.values[i]);
        else if (sscanf(tensor->name, "model.layers.%d.%n", &layer, &used) == 1)
            add_in_layer(&source, layer, tensor->name + used, tensor);
    }
    write_directory(&source, hf);
    for (size_t i = 0; i < file->n; i++) free(source.values[i]);
    free(source.values);
    weight_file_close(file);
    check_ok(dir_remove(drawn));
}

/* ---- tests ---- */

static double *logits_of(const char *path, DType compute, bool values_only, size_t *count) {
    static const int32_t ids[] = {3, 17, 4, 4, 49, 0, 21, 8, 30, 11, 2, 45};
    enum { N = 12 };
    Model *model;
    int32_t rows[N];
    for (int i = 0; i < N; i++) rows[i] = i;
    check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = compute, .dequantize = values_only}, &model));
    Tape *tape = tape_new(device_cpu(), compute, 0);
    tape_record(tape, false);
    const int64_t n = N;
    Segment segment = {.end = N, .parent = -1};
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = N, .n_segments = 1, .segments = &segment}};
    Tensor *list = tensor_new(tape_arena(tape), device_cpu(), DT_I32, 1, &n);
    check_ok(tensor_upload(list, 0, n, rows));
    Tensor *logits = model_logits(model, tape, model_forward(model, tape, &batch), list).logits;
    check_ok(tape_status(tape));
    *count = (size_t)tensor_count(logits);
    double *values = malloc(*count * sizeof *values);
    tensor_read(logits, values);
    tape_free(tape);
    model_free(model);
    return values;
}

/* dequantized: of the second model. */
static void check_same_logits(const char *gguf, const char *hf, DType compute, bool dequantized) {
    size_t n, n_want;
    double *got = logits_of(gguf, compute, false, &n), *want = logits_of(hf, compute, dequantized, &n_want);
    assert_int_equal(n, n_want);
    check_close_f64(gguf, got, want, n, 0, 0);
    free(got);
    free(want);
}

/* Two steps of LoRA on attention and, as parameters, on experts. */
static void train(const char *base, const char *output, size_t family) {
    const char *experts = family == GPT_OSS ? "lora.target_parameters=[mlp.experts.gate_up_proj, mlp.experts.down_proj]" : "";
    const char *modules = family >= DEEPSEEK_V2 ? "kv_b_proj, o_proj" : "q_proj, o_proj";
    Recipe *recipe =
        recipe_of_lines("model.path=%s\nmodel.compute=f32\ndata.train=%s\noutput=%s\ntrain.max_steps=2\ntrain.batch_size=2\nlora.rank=2\n"
                        "lora.target_modules=[%s]\n%s",
                        base, temp_file(test_folder, "rows.jsonl"), output, modules, experts);
    TrainResult result;
    check_ok(sft_run(&(TrainingConfig){.recipe = recipe, .runtime = runtime_of(recipe)}, &result));
    recipe_free(recipe);
}

static void check_family(size_t family, const char *format, bool trains) {
    Made made = {0};
    char hf[600], gguf[600];
    temp_text(test_folder, "rows.jsonl", "{\"ids\": [3, 17, 4, 4, 49, 0, 21]}\n{\"ids\": [8, 30, 11, 2, 45, 9]}\n");
    snprintf(hf, sizeof hf, "%s/hf", test_folder);
    check_ok(dir_remove(hf));
    families[family].keys(&made);
    make_pair(family, format ? quant_format_named(format) : NULL, test_folder, hf, &made);
    snprintf(gguf, sizeof gguf, "%s", made_save(&made, test_folder, "made.gguf"));
    check_same_logits(gguf, hf, DT_F32, false);
    if (format) check_same_logits(gguf, gguf, DT_BF16, true);
    if (!trains) return;
    check_ok(dir_remove(temp_file(test_folder, "of_hf")));
    check_ok(dir_remove(temp_file(test_folder, "of_gguf")));
    train(hf, temp_file(test_folder, "of_hf"), family);
    train(gguf, temp_file(test_folder, "of_gguf"), family);
    check_same_file(test_folder, "of_hf", "of_gguf", "adapter/adapter_model.safetensors");
}

TEST(plain_files_compute_what_their_directories_do) {
    for (size_t f = 0; f < COUNT_OF(families); f++) check_family(f, NULL, false);
}

TEST(quantised_files_compute_and_train_what_their_directories_do) {
    for (size_t f = 0; f < COUNT_OF(families); f++) check_family(f, f == GPT_OSS ? "mxfp4" : "q8_0", true);
    check_family(GPT_OSS, "q4_0", false);
}

/* Experts of gpt-oss stay codes in the mapped file. */
TEST(memory_of_turned_experts_is_that_of_codes) {
    Made made = {0};
    char hf[600];
    Model *model;
    snprintf(hf, sizeof hf, "%s/codes", test_folder);
    gpt_oss_keys(&made);
    make_pair(GPT_OSS, quant_format_named("mxfp4"), test_folder, hf, &made);
    for (int planned = 0; planned < 2; planned++) {
        const char *path = planned ? temp_file(test_folder, "codes.gguf") : made_save(&made, test_folder, "codes.gguf");
        check_ok(model_load(path, &(ModelOptions){.device = planned ? device_meta() : device_cpu(), .compute = DT_F32}, &model));
        ModelMemory memory = model_memory(model, false);
        assert_int_equal(memory.mapped, 3 * 4 * 3 * 64 * 32 / 32 * 17); /* layers, experts, matrices of 64 x 32 in blocks of 17 bytes */
        model_free(model);
    }
}

/* A bias for the choice says that the router is one by sigmoids. */
TEST(a_missing_gating_function_is_known_by_the_bias) {
    Made made = {0};
    char hf[600];
    snprintf(hf, sizeof hf, "%s/ungated", test_folder);
    latent_keys(&made, 0, 1, 2.5f, 0.1f);
    made_int(&made, "deepseek2.attention.q_lora_rank", 32);
    made_int(&made, "deepseek2.expert_group_count", 4);
    made_int(&made, "deepseek2.expert_group_used_count", 2);
    made_bool(&made, "deepseek2.expert_weights_norm", true);
    make_pair(DEEPSEEK_V3, NULL, test_folder, hf, &made);
    check_same_logits(made_save(&made, test_folder, "ungated.gguf"), hf, DT_F32, false);
}

/* Tensors of layers that predict further tokens are left out, whatever their names are. */
TEST(prediction_layers_are_left_out) {
    Made made = {0};
    const float ones[64] = {1};
    char hf[600];
    snprintf(hf, sizeof hf, "%s/predicts", test_folder);
    glm_keys(&made, 4);
    made_int(&made, "glm4moe.nextn_predict_layers", 1);
    made_tensor(&made, "blk.3.nextn.enorm.weight", 1, (const int64_t[]){64}, 0, ones, sizeof ones);
    made_tensor(&made, "blk.3.attn_norm.weight", 1, (const int64_t[]){64}, 0, ones, sizeof ones);
    make_pair(GLM4_MOE, NULL, test_folder, hf, &made);
    check_same_logits(made_save(&made, test_folder, "predicts.gguf"), hf, DT_F32, false);
}

static void fails(Made *made, const char *part) {
    Model *model;
    const char *path = made_save(made, test_folder, "wrong.gguf");
    check_status(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text(part);
}

static void add_embedding(Made *made) {
    static const float zeros[50 * 64];
    made_tensor(made, "token_embd.weight", 2, (const int64_t[]){50, 64}, 0, zeros, sizeof zeros);
}

/* What the format cannot say (golden/deploy/gguf/tiny/not_expressed.json: deepseek_v2, deepseek_v3), and parts that do not fit together. */
TEST(what_is_not_known_is_refused) {
    const float zeros[64 * 64] = {0};
    Made made = {0};
    deepseek_v2_keys(&made);
    made_int(&made, "deepseek2.expert_group_count", 4);
    add_embedding(&made);
    fails(&made, "'deepseek2.expert_group_count' in '");
    latent_keys(&made, 2, 1, 1, 0);
    add_embedding(&made);
    fails(&made, "lacks 'deepseek2.rope.scaling.yarn_log_multiplier'");
    latent_keys(&made, 4, 1, 1, 0.1f);
    add_embedding(&made);
    fails(&made, "'deepseek2.expert_gating_func' in '");
    glm4_moe_keys(&made);
    made_int(&made, "glm4moe.nextn_predict_layers", 3);
    add_embedding(&made);
    fails(&made, "'glm4moe.nextn_predict_layers' in '");
    check_text("is 3 of 3 layers");
    deepseek_v3_keys(&made);
    add_embedding(&made);
    made_tensor(&made, "blk.0.attn_k_b.weight", 3, (const int64_t[]){2, 32, 32}, 0, zeros, 2 * 32 * 32 * 4);
    fails(&made, "tensor 'blk.0.attn_v_b.weight' is missing");
    deepseek_v3_keys(&made);
    add_embedding(&made);
    made_tensor(&made, "blk.0.attn_k_b.weight", 3, (const int64_t[]){2, 32, 32}, 0, zeros, 2 * 32 * 32 * 4);
    made_tensor(&made, "blk.0.attn_v_b.weight", 3, (const int64_t[]){2, 32, 16}, 0, zeros, 2 * 32 * 16 * 4);
    fails(&made, "cannot read tensor 'blk.0.attn_v_b.weight' in '");
    gpt_oss_keys(&made);
    add_embedding(&made);
    made_tensor(&made, "blk.0.ffn_gate_exps.weight", 3, (const int64_t[]){2, 32, 32}, 0, zeros, 2 * 32 * 32 * 4);
    made_tensor(&made, "blk.0.ffn_up_exps.weight", 3, (const int64_t[]){2, 32, 16}, 0, zeros, 2 * 32 * 16 * 4);
    fails(&made, "cannot read tensor 'blk.0.ffn_up_exps.weight' in '");
}

TEST(scales_that_are_no_numbers_are_refused) {
    static const float wrong[] = {-1, INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        Made made = {0};
        latent_keys(&made, 2, 1, wrong[i], 0.1f);
        add_embedding(&made);
        fails(&made, "wrong 'deepseek2.expert_weights_scale' in '");
        latent_keys(&made, 2, 1, 1, wrong[i]);
        add_embedding(&made);
        fails(&made, "wrong 'deepseek2.rope.scaling.yarn_log_multiplier' in '");
    }
}

static void read_broken(const uint8_t *bytes, size_t len, void *context) {
    (void)context;
    WeightFile *file;
    Status status = weight_file_parse(bytes, len, "broken.gguf", &file);
    if (status != ST_OK) {
        assert_true(status == ST_INPUT || status == ST_RESOURCE);
        return;
    }
    for (size_t i = 0; i < file->n; i++) {
        if (file->tensors[i].count == 0) continue;
        stored_get(&file->tensors[i], 0); /* the address sanitizer watches both ends */
        stored_get(&file->tensors[i], file->tensors[i].count - 1);
    }
    weight_file_close(file);
}

TEST(broken_files_are_refused_or_read) {
    static const size_t some[] = {GPT_OSS, DEEPSEEK_V3};
    for (size_t i = 0; i < COUNT_OF(some); i++) {
        Made made = {0};
        char hf[600];
        snprintf(hf, sizeof hf, "%s/broken%zu", test_folder, i);
        families[some[i]].keys(&made);
        make_pair(some[i], quant_format_named("q4_0"), test_folder, hf, &made);
        Str file = made_finish(&made);
        check_mutations(file.data, MIN(file.len, (size_t)9000), ALL_OR_FEW(1000, 100), read_broken, NULL);
        read_broken((const uint8_t *)file.data, file.len, NULL);
        str_release(&file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_files_compute_what_their_directories_do),
        cmocka_unit_test(quantised_files_compute_and_train_what_their_directories_do),
        cmocka_unit_test(memory_of_turned_experts_is_that_of_codes),
        cmocka_unit_test(a_missing_gating_function_is_known_by_the_bias),
        cmocka_unit_test(prediction_layers_are_left_out),
        cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(scales_that_are_no_numbers_are_refused),
        cmocka_unit_test(broken_files_are_refused_or_read),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
