/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files as models: logits and tokens that other programs computed, files made here against the same model as a directory, and broken files. */
#include "tests/support/check.h"
#include "tests/support/gguf_made.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/gguf.h"
#include "lib/model/gguf/gguf_model.h"
#include "lib/model/model.h"
#include "lib/model/safetensors.h"
#include "lib/tensor/quant/quant.h"
#include "lib/text/chat.h"
#include "lib/text/text.h"

/* ---- logits ---- */

enum { MOST_TOKENS = 256 };

/* Logits of all positions of one sequence; the caller frees them. */
static double *logits_of(const char *path, const int32_t *ids, int64_t n, size_t *count) {
    Model *model;
    int32_t rows[MOST_TOKENS];
    for (int64_t i = 0; i < n; i++) rows[i] = (int32_t)i;
    check_ok(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    tape_record(tape, false);
    Segment segment = {.end = n, .parent = -1};
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = n, .n_segments = 1, .segments = &segment}};
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

/* Both sequences of a golden file. prefix: of the names of the logits. */
static void check_golden(const char *path, const WeightFile *expected, const char *prefix) {
    for (int s = 0; s < 2; s++) {
        char name[100];
        int32_t ids[MOST_TOKENS];
        snprintf(name, sizeof name, "seq%d.input_ids", s);
        const StoredTensor *tokens = weight_file_find(expected, name);
        snprintf(name, sizeof name, "%sseq%d.logits", prefix, s);
        const StoredTensor *logits = weight_file_find(expected, name);
        if (!tokens || !logits || tokens->count > MOST_TOKENS) fail_msg("no '%s' in the expected values", name);
        for (int64_t i = 0; i < tokens->count; i++) ids[i] = (int32_t)stored_get(tokens, i);
        size_t n;
        double *got = logits_of(path, ids, tokens->count, &n), *want = malloc((size_t)logits->count * sizeof *want);
        assert_int_equal(n, logits->count);
        for (size_t i = 0; i < n; i++) want[i] = stored_get(logits, (int64_t)i);
        check_close_f64(path, got, want, n, 5e-5, 0); /* golden/README.md: float32 arithmetic against double */
        free(got);
        free(want);
    }
}

TEST(whole_files_give_their_logits) {
    static const struct {
        const char *model, *types;
    } sets[] = {{"llama-wide", "q8_0 q4_0 q5_1 q2_k q3_k_m q4_k_m q5_k_m q6_k iq4_xs"},
                {"qwen2-wide", "q8_0 q4_0 q4_k_m q6_k"},
                {"gemma3-wide", "q8_0 q4_0 q4_k_m q6_k"},
                {"qwen3_moe-wide", "q8_0 q4_0 q4_k_m mxfp4"}};
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        char name[200], path[512], file[600], prefix[40];
        snprintf(name, sizeof name, "golden/deploy/gguf/%s", sets[i].model);
        if (!shared_path(name, path, sizeof path)) skip();
        WeightFile *expected;
        snprintf(file, sizeof file, "%s/expected.safetensors", path);
        check_ok(weight_file_open(file, &expected));
        const char *list = sets[i].types;
        for (Slice type; text_next(&list, ' ', &type);) {
            snprintf(file, sizeof file, "%s/%s.%.*s.gguf", path, sets[i].model, (int)type.len, type.data);
            snprintf(prefix, sizeof prefix, "%.*s.", (int)type.len, type.data);
            check_golden(file, expected, prefix);
        }
        weight_file_close(expected);
    }
}

TEST(families_give_their_logits) {
    static const char *const names[] = {"llama", "llama-sharded", "llama3-rope", "qwen2", "qwen3", "gpt2", "gemma3", "phi3", "olmo2", "mixtral"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char name[200], path[512], file[600];
        WeightFile *expected;
        snprintf(name, sizeof name, "golden/models/%s/expected.safetensors", names[i]);
        if (!shared_path(name, path, sizeof path)) skip();
        check_ok(weight_file_open(path, &expected));
        snprintf(name, sizeof name, "golden/deploy/gguf/tiny/%s.f32.gguf", names[i]);
        if (!shared_path(name, file, sizeof file)) skip();
        check_golden(file, expected, "");
        weight_file_close(expected);
    }
}

/* ---- tokens ---- */

static Tokenizer *tokenizer_of(const char *path) {
    Tokenizer *tokenizer;
    check_ok(tokenizer_load(path, &tokenizer));
    return tokenizer;
}

static void check_text_ids(const Tokenizer *tokenizer, const char *text, const int32_t *want, size_t n) {
    Ids ids = {0};
    Str back = {0};
    check_ok(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_PLAIN, &ids));
    check_ids(text, ids.data, ids.n, want, n);
    check_ok(tokenizer_decode(tokenizer, ids.data, ids.n, false, &back));
    assert_string_equal(str_text(&back), text);
    ids_release(&ids);
    str_release(&back);
}

TEST(tokenizers_give_the_ids_of_their_directories) {
    static const char *const names[] = {"llama-wide", "qwen2-wide", "gemma3-wide"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char name[200], path[512];
        snprintf(name, sizeof name, "deploy/gguf/%s/expected.json", names[i]);
        json_t *json = golden_open(name);
        if (!json) skip();
        const json_t *texts = golden_at(json, "texts"), *item;
        size_t k;
        snprintf(name, sizeof name, "golden/deploy/gguf/%s/%s.q8_0.gguf", names[i], names[i]);
        assert_true(shared_path(name, path, sizeof path));
        Tokenizer *tokenizer = tokenizer_of(path);
        assert_true(json_array_size(texts) > 4);
        json_array_foreach(texts, k, item) {
            double numbers[512];
            int32_t want[512];
            size_t n = golden_numbers(golden_at(item, "hf_ids"), numbers, COUNT_OF(numbers));
            for (size_t t = 0; t < n; t++) want[t] = (int32_t)numbers[t];
            check_text_ids(tokenizer, json_string_value(golden_at(item, "text")), want, n);
        }
        tokenizer_free(tokenizer);
        json_decref(json);
    }
}

/* Vocabularies of llama.cpp's own tests. */
TEST(real_vocabularies_give_llama_cpps_ids) {
    static const char *const names[] = {"gpt-2", "mpt", "falcon"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        static const char between[] = "\n__ggml_vocab_test__\n";
        char name[200], path[512];
        Str texts = {0}, wanted = {0};
        snprintf(name, sizeof name, "data/tokenizers/gguf-vocab/ggml-vocab-%s.gguf", names[i]);
        if (!shared_path(name, path, sizeof path)) skip();
        Tokenizer *tokenizer = tokenizer_of(path);
        memcpy(path + strlen(path), ".inp", 5);
        check_ok(file_read(path, 1 << 20, &texts));
        memcpy(path + strlen(path) - 3, "out", 3);
        check_ok(file_read(path, 1 << 20, &wanted));
        char *text = texts.data, *line = wanted.data;
        size_t n_texts = 0;
        for (char *end; (end = strstr(text, between)) != NULL; text = end + strlen(between), n_texts++) {
            int32_t want[1024];
            size_t n = 0;
            *end = '\0';
            for (char *next; *line && *line != '\n'; line = next) {
                want[n++] = (int32_t)strtol(line, &next, 10);
                while (*next == ' ') next++;
            }
            line += *line == '\n';
            check_text_ids(tokenizer, text, want, n);
        }
        assert_true(n_texts > 40);
        tokenizer_free(tokenizer);
        str_release(&texts);
        str_release(&wanted);
    }
}

/* DeepSeek's older vocabularies: line breaks, letters, punctuation and each digit are apart, with the space before them. Their ids of llama.cpp's 46
 * texts were compared by hand. */
TEST(deepseeks_words_are_cut_before_merging) {
    enum { NEW_LINE, SPACE, EXCLAMATION, ONE, TWO, A, B, E_1, E_2, AB, SPACE_A, TWELVE, LINE_A, A_ONE, EXCLAMATION_A, E, SPACE_E };
    static const char *const tokens[] = {"\u010a",
                                         "\u0120",
                                         "!",
                                         "1",
                                         "2",
                                         "a",
                                         "b",
                                         "\u00c3",
                                         "\u00a9",
                                         "ab",
                                         "\u0120a",
                                         "12",
                                         "\u010aa",
                                         "a1",
                                         "!a",
                                         "\u00c3\u00a9",
                                         "\u0120\u00c3\u00a9"},
                             *const merges[] = {"a b", "\u0120 a", "1 2", "\u010a a", "a 1", "! a", "\u00c3 \u00a9", "\u0120 \u00c3\u00a9"},
                             *const pres[] = {"deepseek-llm", "deepseek-coder"};
    static const int32_t want[] = {AB, ONE, TWO, SPACE_A, NEW_LINE, A, EXCLAMATION, A, ONE, SPACE_E};
    for (size_t i = 0; i < COUNT_OF(pres); i++) {
        char dir[512];
        Made made = {0};
        temp_dir_make(dir, sizeof dir);
        made_text(&made, "general.architecture", "deepseek2");
        made_text(&made, "tokenizer.ggml.model", "gpt2");
        made_text(&made, "tokenizer.ggml.pre", pres[i]);
        made_texts(&made, "tokenizer.ggml.tokens", tokens, COUNT_OF(tokens));
        made_texts(&made, "tokenizer.ggml.merges", merges, COUNT_OF(merges));
        Tokenizer *tokenizer = tokenizer_of(made_save(&made, dir, "words.gguf"));
        check_text_ids(tokenizer, "ab12 a\na!a1 \u00e9", want, COUNT_OF(want));
        tokenizer_free(tokenizer);
        temp_dir_remove(dir);
    }
}

TEST(the_chat_template_is_read) {
    char path[512];
    if (!shared_path("golden/deploy/gguf/qwen2-wide/qwen2-wide.q8_0.gguf", path, sizeof path)) skip();
    ChatTemplate *chat;
    ChatRendering rendering = {0};
    check_ok(chat_template_load(path, NULL, NULL, &chat));
    assert_non_null(chat);
    json_t *variables = json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user", "content", "Hi", "add_generation_prompt", true);
    check_ok(chat_template_render(chat, variables, &(ChatOptions){0}, &rendering));
    assert_string_equal(str_text(&rendering.text), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    json_decref(variables);
    chat_rendering_release(&rendering);
    chat_template_free(chat);
}

/* ---- files made here ---- */

enum { WIDTH = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, FEED_FORWARD = 96, WORDS = 50, LAYERS = 2 };

static void llama_keys(Made *made) {
    made_text(made, "general.architecture", "llama");
    made_int(made, "llama.block_count", LAYERS);
    made_int(made, "llama.context_length", 64);
    made_int(made, "llama.embedding_length", WIDTH);
    made_int(made, "llama.feed_forward_length", FEED_FORWARD);
    made_int(made, "llama.attention.head_count", HEADS);
    made_int(made, "llama.attention.head_count_kv", KV_HEADS);
    made_real(made, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    made_int(made, "llama.rope.dimension_count", HEAD_DIM);
    made_real(made, "llama.rope.freq_base", 10000);
}

static const char llama_json[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 50, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-05,"
    " \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";

/* A name of llama.cpp for one of Hugging Face. */
static const char *llama_name(const char *name, char *out, size_t size) {
    static const char *const pairs[][2] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                           {"model.norm.weight", "output_norm.weight"},
                                           {"lm_head.weight", "output.weight"},
                                           {"input_layernorm", "attn_norm"},
                                           {"post_attention_layernorm", "ffn_norm"},
                                           {"self_attn.q_proj", "attn_q"},
                                           {"self_attn.k_proj", "attn_k"},
                                           {"self_attn.v_proj", "attn_v"},
                                           {"self_attn.o_proj", "attn_output"},
                                           {"mlp.gate_proj", "ffn_gate"},
                                           {"mlp.up_proj", "ffn_up"},
                                           {"mlp.down_proj", "ffn_down"}};
    int layer;
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        if (strcmp(pairs[i][0], name) == 0) snprintf(out, size, "%s", pairs[i][1]);
        if (i > 2 && strstr(name, pairs[i][0]) && sscanf(name, "model.layers.%d.", &layer) == 1)
            snprintf(out, size, "blk.%d.%s.weight", layer, pairs[i][1]);
    }
    return out;
}

/* As llama.cpp's converter does: reshape (heads, 2, dim / 2, in), exchange the middle two. */
static void permute(const float *from, float *to, int64_t heads, int64_t rows, int64_t in) {
    int64_t half = rows / heads / 2;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t j = 0; j < 2; j++)
            for (int64_t i = 0; i < half; i++)
                memcpy(to + ((h * half + i) * 2 + j) * in, from + ((h * 2 + j) * half + i) * in, (size_t)in * sizeof *to);
}

/* A random llama as a directory in `dir`/hf with float32 weights, which are those that the returned file in `format` holds (NULL: float32). */
static const char *make_pair(const char *dir, const QuantFormat *format, Made *made) {
    static char hf[600];
    snprintf(hf, sizeof hf, "%s/hf", dir);
    WeightFile *random;
    SafetensorsWriter *writer;
    char drawn[600], path[700], name[100];
    snprintf(drawn, sizeof drawn, "%s/drawn", dir);
    check_ok(model_write_random(drawn, llama_json, DT_F32, 7, 0.2));
    check_ok(weight_file_open(drawn, &random));
    check_ok(dir_make(hf));
    snprintf(path, sizeof path, "%s/config.json", drawn);
    check_ok(file_copy(path, temp_file(hf, "config.json")));
    snprintf(path, sizeof path, "%s/model.safetensors", hf);
    check_ok(safetensors_writer_new(path, &writer));
    for (size_t i = 0; i < random->n; i++)
        safetensors_declare(writer, random->tensors[i].name, DT_F32, random->tensors[i].n_dims, random->tensors[i].shape);
    llama_keys(made);
    for (size_t i = 0; i < random->n; i++) {
        const StoredTensor *tensor = &random->tensors[i];
        int64_t rows = tensor->shape[0], in = tensor->n_dims == 2 ? tensor->shape[1] : 1;
        bool quantised = format && tensor->n_dims == 2, q = strstr(tensor->name, "q_proj"), k = strstr(tensor->name, "k_proj");
        float *values = malloc(tensor->bytes), *ordered = malloc(tensor->bytes);
        uint8_t *blocks = malloc(tensor->bytes);
        memcpy(values, tensor->data, tensor->bytes);
        size_t size = tensor->bytes;
        if (quantised) { /* row by row, so that quantising and permuting can be exchanged */
            size_t row = dtype_bytes(format->dtype, in);
            for (int64_t r = 0; r < rows; r++) {
                format->write(values + r * in, in, NULL, blocks + (size_t)r * row);
                format->read(blocks + (size_t)r * row, in / format->block, values + r * in);
            }
        }
        memcpy(ordered, values, tensor->bytes);
        if (q || k) permute(values, ordered, q ? HEADS : KV_HEADS, rows, in);
        if (quantised) {
            size = dtype_bytes(format->dtype, rows * in);
            for (int64_t r = 0; r < rows; r++) format->write(ordered + r * in, in, NULL, blocks + (size_t)r * dtype_bytes(format->dtype, in));
        }
        safetensors_write(writer, values, tensor->bytes);
        made_tensor(made, llama_name(tensor->name, name, sizeof name), tensor->n_dims, tensor->shape, quantised ? (uint32_t)format->ggml_type : 0,
                    quantised ? (const void *)blocks : ordered, size);
        free(values);
        free(ordered);
        free(blocks);
    }
    check_ok(safetensors_commit(writer));
    weight_file_close(random);
    return hf;
}

static void check_same_logits(const char *gguf, const char *hf) {
    static const int32_t ids[] = {3, 17, 4, 4, 49, 0, 21, 8, 30, 11, 2, 45};
    size_t n, n_want;
    double *got = logits_of(gguf, ids, COUNT_OF(ids), &n), *want = logits_of(hf, ids, COUNT_OF(ids), &n_want);
    assert_int_equal(n, n_want);
    check_close_f64(gguf, got, want, n, 0, 0); /* the same numbers in the same order */
    free(got);
    free(want);
}

TEST(a_file_computes_what_its_directory_does) {
    char dir[512];
    Made made = {0};
    temp_dir_make(dir, sizeof dir);
    const char *hf = make_pair(dir, NULL, &made);
    check_same_logits(made_save(&made, dir, "plain.gguf"), hf);
    ModelConfig config;
    Arena *arena = arena_new(0);
    check_ok(model_config_read(temp_file(dir, "plain.gguf"), arena, &config));
    check_close(config.norm_eps, 1e-5, 0); /* the decimal number, not the float32 nearest to it */
    assert_int_equal(config.vocab_size, WORDS);
    assert_false(config.tie_word_embeddings);
    arena_free(arena);
    temp_dir_remove(dir);
}

/* Values of these formats are written as the same bytes again, so the directory can have exactly the file's values. */
TEST(quantised_files_compute_what_their_dequantised_directories_do) {
    static const char *const formats[] = {"q8_0", "q4_0", "mxfp4"};
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        char dir[512];
        Made made = {0};
        temp_dir_make(dir, sizeof dir);
        const char *hf = make_pair(dir, quant_format_named(formats[f]), &made);
        check_same_logits(made_save(&made, dir, "quantised.gguf"), hf);
        temp_dir_remove(dir);
    }
}

/* The divisors of the frequencies of Llama 3.2 1B, and the same with one changed. */
TEST(llama_3s_scaling_is_recognised) {
    char dir[512];
    Made made = {0};
    float divisors[32], embed[8 * 64] = {0};
    ModelConfig config;
    Arena *arena = arena_new(0);
    for (int i = 0; i < 32; i++) {
        double turns = 8192 / (2 * 3.14159265358979 * pow(500000, i / 32.0)), smooth = (turns - 1) / 3;
        divisors[i] = (float)(turns > 4 ? 1 : turns < 1 ? 32 : 1 / ((1 - smooth) / 32 + smooth));
    }
    temp_dir_make(dir, sizeof dir);
    for (int known = 0; known < 2; known++) {
        made_text(&made, "general.architecture", "llama");
        made_int(&made, "llama.block_count", 1);
        made_int(&made, "llama.context_length", 131072);
        made_int(&made, "llama.embedding_length", 64);
        made_int(&made, "llama.feed_forward_length", 64);
        made_int(&made, "llama.attention.head_count", 1);
        made_real(&made, "llama.rope.freq_base", 500000);
        if (!known) divisors[31] = 33;
        made_tensor(&made, "token_embd.weight", 2, (const int64_t[]){8, 64}, 0, embed, sizeof embed);
        made_tensor(&made, "rope_freqs.weight", 1, (const int64_t[]){32}, 0, divisors, sizeof divisors);
        check_ok(model_config_read(made_save(&made, dir, "rope.gguf"), arena, &config));
        assert_int_equal(config.rope.type, known ? ROPE_LLAMA3 : ROPE_LONGROPE);
        if (known) check_close(config.rope.factor, 32, 0);
        if (!known) check_close(config.rope.factors[0][31], 33, 0);
        divisors[31] = 32;
    }
    arena_free(arena);
    temp_dir_remove(dir);
}

/* ---- split models ---- */

TEST(split_models_are_one_model) {
    char dir[512];
    Made made = {0}, first = {0}, second = {0};
    temp_dir_make(dir, sizeof dir);
    const char *hf = make_pair(dir, NULL, &made);
    made_save(&made, dir, "whole.gguf");
    Gguf *whole;
    check_ok(gguf_open(temp_file(dir, "whole.gguf"), &whole));
    llama_keys(&first);
    for (int part = 0; part < 2; part++) {
        Made *out = part ? &second : &first;
        made_int(out, "split.no", (uint32_t)part);
        made_int(out, "split.count", 2);
        made_int(out, "split.tensors.count", (uint32_t)whole->n_tensors);
        for (size_t i = part ? 5 : 0; i < (part ? whole->n_tensors : 5); i++) {
            const GgufTensor *tensor = &whole->tensors[i];
            made_tensor(out, tensor->name, tensor->n_dims, tensor->shape, tensor->type, whole->files[0].mapping.data + tensor->offset,
                        (size_t)tensor->count * 4);
        }
    }
    const char *path = made_save(&first, dir, "part-00001-of-00002.gguf");
    Model *model;
    ModelOptions options = {.device = device_cpu(), .compute = DT_F32};
    check_status(model_load(path, &options, &model), ST_INPUT);
    check_text("part-00002-of-00002.gguf' is missing");
    made_save(&second, dir, "part-00002-of-00002.gguf");
    check_same_logits(temp_file(dir, "part-00001-of-00002.gguf"), hf);
    check_status(model_load(temp_file(dir, "part-00002-of-00002.gguf"), &options, &model), ST_INPUT);
    check_text("is file 2 of the 2 files of a model");
    gguf_close(whole);
    temp_dir_remove(dir);
}

/* ---- what is refused ---- */

static void fails(Made *made, const char *part) {
    char dir[512];
    Model *model;
    temp_dir_make(dir, sizeof dir);
    const char *path = made_save(made, dir, "wrong.gguf");
    check_status(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text(part);
    temp_dir_remove(dir);
}

static const int64_t embed_shape[] = {WORDS, WIDTH};
static const float zeros[WORDS * WIDTH];

TEST(what_a_file_cannot_be_read_as_is_refused_by_name) {
    Made made = {0};
    llama_keys(&made);
    made_int(&made, "llama.attention.sliding_window", 8);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 0, zeros, sizeof zeros);
    fails(&made, "'llama.attention.sliding_window' in");
    made_text(&made, "general.architecture", "mamba");
    fails(&made, "architecture 'mamba' in");
    made_text(&made, "general.architecture", "qwen3");
    made_int(&made, "qwen3.expert_count", 8);
    fails(&made, "architecture 'qwen3' with experts in");
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 31, zeros, sizeof zeros);
    fails(&made, "has type 31 (q4_0_4_4, removed from ggml)");
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 99, zeros, sizeof zeros);
    fails(&made, "has an unknown type 99");
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 12, zeros, sizeof zeros);
    fails(&made, "rows of 64 elements are no whole blocks of q4_k");
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 0, zeros, sizeof zeros - 4);
    fails(&made, "12800 bytes of F32 from byte");
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 0, zeros, sizeof zeros);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 0, zeros, sizeof zeros);
    fails(&made, "tensor 'token_embd.weight' is there twice");
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 0, zeros, sizeof zeros);
    fails(&made, "tensor 'model.layers.0.input_layernorm.weight' is missing");
    llama_keys(&made);
    fails(&made, "lacks the tensor 'token_embd.weight'");
    made_text(&made, "general.architecture", "llama");
    made_text(&made, "general.architecture", "llama");
    fails(&made, "metadata 'general.architecture' is there twice");
}

/* Models that GGUF has no place for. A file that says more than the architecture's metadata can is refused by that key. */
TEST(what_the_format_cannot_express_is_refused) {
    static const char *const cases[][3] = {
        {"mistral", "llama", "llama.attention.sliding_window"},
        {"gemma2", "gemma2", "gemma2.attention.query_pre_attn_scalar"},
        {"qwen3_moe", "qwen3moe", "qwen3moe.decoder_sparse_step"},
        {"smollm3", "smollm3", "smollm3.no_rope_layers"},
    };
    json_t *json = golden_open("deploy/gguf/tiny/not_expressed.json");
    if (!json) skip();
    assert_int_equal(json_object_size(json), COUNT_OF(cases) + 2); /* DeepSeek V2 and V3: test_gguf_experts.c */
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Made made = {0};
        char key[100];
        golden_at(json, cases[i][0]);
        made_text(&made, "general.architecture", cases[i][1]);
        snprintf(key, sizeof key, "%s.expert_count", cases[i][1]);
        if (strcmp(cases[i][1], "qwen3moe") == 0) made_int(&made, key, 4);
        if (strchr(cases[i][2], '\'') == NULL) made_int(&made, cases[i][2], 8);
        made_tensor(&made, "token_embd.weight", 2, embed_shape, 0, zeros, sizeof zeros);
        fails(&made, cases[i][2]);
    }
    json_decref(json);
}

/* Files whose bytes are wrong: the message names the tensor and the byte. */
static void fails_as(const Str *file, size_t size, const char *part) {
    char dir[512];
    Model *model;
    temp_dir_make(dir, sizeof dir);
    const char *path = temp_file(dir, "wrong.gguf");
    check_ok(file_write_all(path, file->data, size));
    check_status(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text(part);
    temp_dir_remove(dir);
}

/* A llama with blocks of 8 bits. */
static Str quantised_file(void) {
    char dir[512];
    Made made = {0};
    temp_dir_make(dir, sizeof dir);
    make_pair(dir, quant_format_named("q8_0"), &made);
    temp_dir_remove(dir);
    return made_finish(&made);
}

TEST(wrong_bytes_are_told_with_tensor_and_byte) {
    Str file = quantised_file();
    Gguf *gguf;
    char text[300];
    check_ok(gguf_parse(file.data, file.len, "whole", &gguf));
    const GgufTensor *last = &gguf->tensors[gguf->n_tensors - 1], *beyond = gguf->tensors;
    while (beyond->offset <= file.len / 2) beyond++;
    fails_as(&file, 100, "its header is longer than the file: what begins at byte ");
    check_text("goes beyond byte 100, the end");
    snprintf(text, sizeof text, "it begins at byte %llu of %zu", (unsigned long long)beyond->offset, file.len / 2);
    fails_as(&file, file.len / 2, text);
    snprintf(text, sizeof text, "cannot read tensor '%s' in '", beyond->name);
    check_text(text);
    snprintf(text, sizeof text, "from byte %llu on, the file has %zu", (unsigned long long)last->offset, file.len - 1);
    fails_as(&file, file.len - 1, text);
    snprintf(text, sizeof text, "cannot read tensor '%s' in '", last->name);
    check_text(text);

    uint8_t *bytes = (uint8_t *)file.data;
    const StoredTensor *embed; /* the scale of its fourth block becomes NaN */
    WeightFile *weights;
    check_ok(weight_file_parse(bytes, file.len, "whole", &weights));
    embed = weight_file_find(weights, "model.embed_tokens.weight");
    assert_non_null(embed);
    const size_t scale = (size_t)(embed->data - bytes) + 3 * 34;
    weight_file_close(weights);
    const uint8_t before = bytes[scale + 1];
    bytes[scale + 1] = 0x7e;
    snprintf(text, sizeof text, "holds a NaN or an infinity at element 96, byte %zu of the file", scale);
    fails_as(&file, file.len, text);
    check_text("tensor 'model.embed_tokens.weight' in '");
    bytes[scale + 1] = before;
    gguf_close(gguf);

    memset(bytes + 8, 0x7f, 8); /* the number of tensors */
    fails_as(&file, file.len, "its header is longer than the file");
    memset(bytes + 8, 0, 8);
    memset(bytes + 16, 0x7f, 8); /* of metadata */
    fails_as(&file, file.len, "its header is longer than the file");
    memcpy(bytes + 4, "\0\0\0\3", 4);
    fails_as(&file, file.len, "its version, at byte 4, has the bytes of big-endian machines");
    str_release(&file);
}

/* A tensor whose bytes are another's too, and one of an absurd shape. */
TEST(wrong_places_are_told_with_tensor_and_byte) {
    Made made = {0};
    Gguf *gguf;
    char text[200];
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 2, embed_shape, 0, zeros, sizeof zeros);
    made_tensor(&made, "output.weight", 2, embed_shape, 0, zeros, sizeof zeros);
    made.tensors.data[made.tensors.len - 7] = 1; /* its offset, 12800, becomes 256 */
    made.tensors.data[made.tensors.len - 8] = 0;
    Str file = made_finish(&made);
    check_ok(gguf_parse(file.data, file.len, "whole", &gguf));
    snprintf(text, sizeof text, "its bytes, from byte %llu of the file on, overlap those of 'token_embd.weight'",
             (unsigned long long)gguf->tensors[1].offset);
    gguf_close(gguf);
    fails_as(&file, file.len, text);
    check_text("cannot read tensor 'output.weight' in '");
    str_release(&file);
    llama_keys(&made);
    made_tensor(&made, "token_embd.weight", 3, (const int64_t[]){INT64_MAX, INT64_MAX, 32}, 8, zeros, 34);
    fails(&made, "cannot read tensor 'token_embd.weight' in '");
    check_text("its size does not fit into memory");
}

TEST(full_fine_tuning_of_quantised_weights_is_refused) {
    char dir[512];
    Made made = {0};
    Model *model;
    temp_dir_make(dir, sizeof dir);
    make_pair(dir, quant_format_named("q8_0"), &made);
    const char *path = made_save(&made, dir, "quantised.gguf");
    check_status(model_load(path, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .train_all = true}, &model), ST_CONFIG);
    check_text("full fine-tuning of quantised weights");
    temp_dir_remove(dir);
}

/* ---- broken files ---- */

static void read_broken(const uint8_t *bytes, size_t len, void *context) {
    (void)context;
    WeightFile *file;
    Status status = weight_file_parse(bytes, len, "broken.gguf", &file);
    if (status != ST_OK) {
        assert_true(status == ST_INPUT || status == ST_RESOURCE);
        assert_true(status_text()[0]);
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
    char dir[512];
    Made made = {0};
    temp_dir_make(dir, sizeof dir);
    make_pair(dir, quant_format_named("q4_0"), &made);
    Str file = made_finish(&made);
    check_mutations(file.data, MIN(file.len, (size_t)6000), ALL_OR_FEW(4000, 400), read_broken, NULL);
    for (size_t n = 0; n < 1500; n += 7) read_broken((const uint8_t *)file.data, n, NULL);
    read_broken((const uint8_t *)file.data, file.len, NULL);
    str_release(&file);
    temp_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_files_give_their_logits),
        cmocka_unit_test(families_give_their_logits),
        cmocka_unit_test(tokenizers_give_the_ids_of_their_directories),
        cmocka_unit_test(real_vocabularies_give_llama_cpps_ids),
        cmocka_unit_test(deepseeks_words_are_cut_before_merging),
        cmocka_unit_test(the_chat_template_is_read),
        cmocka_unit_test(a_file_computes_what_its_directory_does),
        cmocka_unit_test(quantised_files_compute_what_their_dequantised_directories_do),
        cmocka_unit_test(llama_3s_scaling_is_recognised),
        cmocka_unit_test(split_models_are_one_model),
        cmocka_unit_test(what_a_file_cannot_be_read_as_is_refused_by_name),
        cmocka_unit_test(what_the_format_cannot_express_is_refused),
        cmocka_unit_test(wrong_bytes_are_told_with_tensor_and_byte),
        cmocka_unit_test(wrong_places_are_told_with_tensor_and_byte),
        cmocka_unit_test(full_fine_tuning_of_quantised_weights_is_refused),
        cmocka_unit_test(broken_files_are_refused_or_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
