/* SPDX-License-Identifier: Apache-2.0 */
/* Models: the decoder against values that other implementations computed in double precision, and against itself. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/system.h"
#include "lib/model/adapter.h"
#include "lib/model/convert.h"
#include "lib/model/model.h"
#include "lib/model/rope.h"

typedef struct Precision {
    const Device *device;
    DType compute;
    double logits, logprobs, loss, grads;
} Precision;

/* golden/README.md: five times what float32 differs in the reference library. In double the limit is that the expected arrays are stored as float32.
 */
static Precision in_f32(void) { return (Precision){device_cpu(), DT_F32, 5e-5, 5e-5, 1e-5, 2e-5}; }
static Precision in_f64(void) { return (Precision){device_reference(), DT_F64, 1e-6, 1e-9, 1e-10, 1e-7}; }

/* Folders of golden/. `v4`: also has a config.json of transformers 4. */
static const struct {
    const char *name;
    bool v4;
} families[] = {
    {"models/llama", false},
    {"models/llama-sharded", false},
    {"models/llama3-rope", true},
    {"models/mistral", false},
    {"models/qwen2", false},
    {"models/qwen3", false},
    {"models/gpt2", false},
    {"models/gemma2", false},
    {"models/gemma3", true},
    {"models/phi3", false},
    {"models/smollm3", false},
    {"models/olmo2", false},
    {"families/olmo3", true},
    {"families/ministral3", false},
    {"families/ministral3-wrapped", false},
    {"families/granite", true},
    {"families/granitemoehybrid-dense", false},
    {"families/glm4", true},
    {"models/mixtral", false},
    {"models/qwen3_moe", false},
    {"families/glm4_moe", true},
    {"families/gpt_oss", true},
    {"models/deepseek_v2", false},
    {"models/deepseek_v3", true},
    {"families/glm4_moe_lite", false},
    {"families/lfm2", true},
    {"families/lfm2_moe", false},
};

/* ---- sequences and expected values ---- */

typedef struct Sequences {
    int32_t ids[2][256];
    int64_t n[2];
} Sequences;

static Sequences read_sequences(const WeightFile *expected) {
    Sequences sequences;
    for (int s = 0; s < 2; s++) {
        const StoredTensor *ids = weight_file_find(expected, s ? "seq1.input_ids" : "seq0.input_ids");
        assert_non_null(ids);
        sequences.n[s] = ids->count;
        assert_true(sequences.n[s] <= 256);
        for (int64_t i = 0; i < sequences.n[s]; i++) sequences.ids[s][i] = (int32_t)stored_get(ids, i);
    }
    return sequences;
}

static double *read_stored(const WeightFile *set, const char *name, int64_t *count) {
    const StoredTensor *stored = weight_file_find(set, name);
    if (!stored) fail_msg("no '%s' in the expected values", name);
    *count = stored->count;
    double *values = malloc((size_t)*count * sizeof *values);
    for (int64_t i = 0; i < *count; i++) values[i] = stored_get(stored, i);
    return values;
}

static void check_stored(const char *what, const double *got, const WeightFile *set, const char *name, double tolerance) {
    int64_t count;
    double *want = read_stored(set, name, &count);
    char label[200];
    snprintf(label, sizeof label, "%s %s", what, name);
    check_close_f64(label, got, want, (size_t)count, tolerance, 0);
    free(want);
}

static double read_loss(const char *path) {
    json_t *json;
    check_ok(json_read_file(path, &json));
    double loss = json_number_value(json_object_get(json, "loss"));
    json_decref(json);
    return loss;
}

/* Both sequences in one flat batch, as segments that don't see each other. */
typedef struct Pair {
    int32_t ids[512];
    Segment segments[2];
    ModelBatch batch;
    int64_t n_targets;
    int32_t rows[512], targets[512];
} Pair;

static void pair_init(Pair *pair, const Sequences *sequences) {
    memset(pair, 0, sizeof *pair);
    int64_t n = 0;
    for (int s = 0; s < 2; s++) {
        pair->segments[s] = (Segment){.begin = n, .end = n + sequences->n[s], .parent = -1};
        for (int64_t i = 0; i < sequences->n[s]; i++) {
            pair->ids[n + i] = sequences->ids[s][i];
            if (i + 1 == sequences->n[s]) continue;
            pair->rows[pair->n_targets] = (int32_t)(n + i);
            pair->targets[pair->n_targets++] = sequences->ids[s][i + 1];
        }
        n += sequences->n[s];
    }
    pair->batch = (ModelBatch){.ids = pair->ids, .layout = {.n_tokens = n, .n_segments = 2, .segments = pair->segments}};
}

static Tensor *ids_tensor(Tape *tape, const int32_t *ids, int64_t n) {
    Tensor *tensor = tensor_new(tape_arena(tape), tape_device(tape), DT_I32, 1, &n);
    memcpy(tensor->elements, ids, (size_t)n * sizeof *ids);
    return tensor;
}

static double *values_of(const Tensor *tensor) {
    if (!tensor) fail_msg("no tensor: %s", status_text());
    double *values = malloc((size_t)tensor_count(tensor) * sizeof *values);
    tensor_read(tensor, values);
    return values;
}

/* Log-probabilities of all next tokens, and backward of minus their mean. */
static double *run_loss(const Model *model, Tape *tape, const Pair *pair, double *loss) {
    Tensor *hidden = model_forward(model, tape, &pair->batch);
    Tensor *rows = ids_tensor(tape, pair->rows, pair->n_targets), *targets = ids_tensor(tape, pair->targets, pair->n_targets);
    Tensor *logprob = op_token_logprobs(tape, hidden, model->head, rows, targets, &model->logprob).logprob;
    check_ok(tape_status(tape));
    double *logprobs = values_of(logprob), *seed = malloc((size_t)pair->n_targets * sizeof *seed);
    *loss = 0;
    for (int64_t i = 0; i < pair->n_targets; i++) {
        *loss -= logprobs[i] / (double)pair->n_targets;
        seed[i] = -1 / (double)pair->n_targets;
    }
    tensor_seed_grad(tape, logprob, seed);
    check_ok(tape_backward(tape));
    free(seed);
    return logprobs;
}

static void check_logits(const char *name, const Model *model, const Pair *pair, const WeightFile *expected, double tolerance) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    tape_record(tape, false);
    for (int s = 0; s < 2; s++) {
        int32_t rows[256];
        int64_t n = 0;
        for (int64_t row = pair->segments[s].begin; row < pair->segments[s].end; row++) rows[n++] = (int32_t)row;
        Tensor *logits = model_logits(model, tape, model_forward(model, tape, &pair->batch), ids_tensor(tape, rows, n)).logits;
        double *values = values_of(logits);
        check_stored(name, values, expected, s ? "seq1.logits" : "seq0.logits", tolerance);
        free(values);
        tape_reset(tape);
    }
    tape_free(tape);
}

/* The residual stream of sequence 1, alone. */
static void check_hidden(const char *name, const Model *model, const Sequences *sequences, const WeightFile *expected, double tolerance) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    Segment segment = {.end = sequences->n[1], .parent = -1};
    ModelBatch batch = {.ids = sequences->ids[1], .layout = {.n_tokens = sequences->n[1], .n_segments = 1, .segments = &segment}};
    int64_t n_layers = model->config.num_hidden_layers;
    for (int64_t j = 0; j <= n_layers; j++) {
        double *values = values_of(j < n_layers ? model_residual(model, tape, &batch, j) : model_forward(model, tape, &batch));
        char key[40];
        snprintf(key, sizeof key, "seq1.hidden.%d", (int)j);
        check_stored(name, values, expected, key, tolerance);
        free(values);
        tape_reset(tape);
    }
    tape_free(tape);
}

static void check_grads(const char *name, const Model *model, const WeightFile *grads, const char *prefix, double tolerance) {
    size_t n_checked = 0;
    for (size_t i = 0; i < model->params.n; i++) {
        const Param *param = &model->params.items[i];
        if (!param->trained) continue;
        char key[256];
        snprintf(key, sizeof key, "%s%s", prefix, param->name);
        double *values = values_of(param->tensor->grad);
        check_stored(name, values, grads, key, tolerance);
        free(values);
        n_checked++;
    }
    assert_int_equal(n_checked, grads->n);
}

/* Everything that golden/models/NAME says, for the model in `dir`. */
static void check_model(const char *name, const char *dir, const char *golden, Precision p) {
    char path[600];
    WeightFile *expected, *grads;
    snprintf(path, sizeof path, "%s/expected.safetensors", golden);
    check_ok(weight_file_open(path, &expected));
    snprintf(path, sizeof path, "%s/grads.safetensors", golden);
    check_ok(weight_file_open(path, &grads));
    snprintf(path, sizeof path, "%s/expected.json", golden);
    double want_loss = read_loss(path), loss;
    Sequences sequences = read_sequences(expected);
    Pair pair;
    pair_init(&pair, &sequences);
    Model *model;
    check_ok(model_load(dir, &(ModelOptions){.device = p.device, .compute = p.compute}, &model));
    check_logits(name, model, &pair, expected, p.logits);
    check_hidden(name, model, &sequences, expected, p.logits);
    model_free(model);

    for (Checkpointing checkpointing = CHECKPOINT_NONE; checkpointing <= CHECKPOINT_LAYER; checkpointing++) {
        check_ok(model_load(dir, &(ModelOptions){.device = p.device, .compute = p.compute, .train_all = true}, &model));
        model->checkpointing = checkpointing;
        Tape *tape = tape_new(p.device, p.compute, 0);
        double *logprobs = run_loss(model, tape, &pair, &loss);
        check_stored(name, logprobs, expected, "seq0.next_logprobs", p.logprobs);
        check_stored(name, logprobs + sequences.n[0] - 1, expected, "seq1.next_logprobs", p.logprobs);
        check_close(loss, want_loss, p.loss);
        check_grads(name, model, grads, "", p.grads);
        free(logprobs);
        tape_free(tape);
        model_free(model);
    }
    weight_file_close(grads);
    weight_file_close(expected);
}

static void golden_models(Precision p) {
    char dir[512], golden[600];
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        snprintf(golden, sizeof golden, "golden/%s", families[i].name);
        if (!shared_path(golden, dir, sizeof dir)) skip();
        check_model(families[i].name, dir, dir, p);
    }
}

TEST(models_equal_the_reference_in_f32) { golden_models(in_f32()); }

TEST(models_equal_the_reference_in_f64) { golden_models(in_f64()); }

TEST(a_config_of_transformers_4_reads_the_same) {
    char golden[512], dir[512], from[600], name[100];
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        snprintf(name, sizeof name, "golden/%s", families[i].name);
        if (!families[i].v4) continue;
        if (!shared_path(name, golden, sizeof golden)) skip();
        temp_dir_make(dir, sizeof dir);
        snprintf(from, sizeof from, "%s/v4/config.json", golden);
        check_ok(file_copy(from, temp_file(dir, "config.json")));
        snprintf(from, sizeof from, "%s/model.safetensors", golden);
        check_ok(file_copy(from, temp_file(dir, "model.safetensors")));
        snprintf(name, sizeof name, "%s v4", families[i].name);
        check_model(name, dir, golden, in_f32());
        temp_dir_remove(dir);
    }
}

TEST(a_really_trained_model_gives_its_logits) {
    char dir[512], path[512];
    if (!shared_path("data/models/stories260K-hf", dir, sizeof dir) || !shared_path("golden/stories260K/expected.safetensors", path, sizeof path))
        skip();
    WeightFile *expected;
    check_ok(weight_file_open(path, &expected));
    const StoredTensor *ids = weight_file_find(expected, "input_ids");
    assert_non_null(ids);
    int32_t tokens[256], rows[256];
    int64_t n = ids->count;
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)stored_get(ids, i);
        rows[i] = (int32_t)i;
    }
    Model *model;
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    Segment segment = {.end = n, .parent = -1};
    ModelBatch batch = {.ids = tokens, .layout = {.n_tokens = n, .n_segments = 1, .segments = &segment}};
    double *values = values_of(model_logits(model, tape, model_forward(model, tape, &batch), ids_tensor(tape, rows, n)).logits);
    check_stored("stories260K", values, expected, "logits", 5e-5); /* 1.5e-5 measured */
    free(values);
    tape_free(tape);
    model_free(model);
    weight_file_close(expected);
}

/* ---- a small model of our own: needs nothing from outside ---- */

static const char *const tiny_configs[] = {
    "{\"model_type\": \"llama\", \"vocab_size\": 37, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}, \"attention_bias\": true, \"mlp_bias\": true}",
    "{\"model_type\": \"qwen3\", \"vocab_size\": 31, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 6, \"tie_word_embeddings\": true, \"use_sliding_window\": true, \"sliding_window\": 3, \"max_window_layers\": 1}",
    "{\"model_type\": \"gpt2\", \"vocab_size\": 29, \"n_embd\": 12, \"n_layer\": 2, \"n_head\": 3, \"n_positions\": 32}",
#define TINY(type)                                                                                                                  \
    "{\"model_type\": \"" type                                                                                                      \
    "\", \"vocab_size\": 29, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 2," \
    " \"num_key_value_heads\": 1, \"sliding_window\": 3"
    TINY("gemma2") ", \"head_dim\": 6, \"attn_logit_softcapping\": 2, \"final_logit_softcapping\": 3, \"query_pre_attn_scalar\": 5}",
    TINY("gemma3_text") ", \"head_dim\": 6, \"sliding_window_pattern\": 2, \"attention_bias\": true}",
    TINY("phi3") ", \"partial_rotary_factor\": 0.5, \"max_position_embeddings\": 12, \"original_max_position_embeddings\": 6,"
                 " \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 2], \"long_factor\": [3, 5]}}",
    TINY("olmo3") "}",
    TINY("granite") ", \"attention_bias\": true, \"mlp_bias\": true, \"embedding_multiplier\": 3, \"residual_multiplier\": 0.4,"
                    " \"attention_multiplier\": 0.3, \"logits_scaling\": 0.5}",
    TINY("glm4") ", \"head_dim\": 8}",
    TINY("ministral3") ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 4,"
                       " \"llama_4_scaling_beta\": 0.3}}",
    TINY("smollm3") ", \"no_rope_layer_interval\": 2}",
    TINY("mixtral") ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2}",
    TINY("gpt_oss") ", \"head_dim\": 8, \"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"swiglu_limit\": 0.8}",
    TINY("deepseek_v3") ", \"q_lora_rank\": 8, \"kv_lora_rank\": 8, \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8,"
                        " \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, \"n_group\": 4, \"topk_group\": 2, \"n_shared_experts\": 1,"
                        " \"moe_intermediate_size\": 6, \"first_k_dense_replace\": 1}",
    TINY("llama") ", \"hidden_act\": \"sigmoid\", \"mlp_bias\": true}", /* GLU as first published */
    TINY("lfm2_moe") ", \"conv_L_cache\": 4, \"conv_bias\": true, \"full_attn_idxs\": [1], \"num_experts\": 4, \"num_experts_per_tok\": 2,"
                     " \"moe_intermediate_size\": 6, \"num_dense_layers\": 1}",
};

static Sequences tiny_sequences(void) {
    Sequences sequences = {.n = {9, 6}};
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < sequences.n[s]; i++) sequences.ids[s][i] = (int32_t)rng_below(rng_key(7, RNG_TEST, (uint64_t)s), (uint64_t)i, 29);
    return sequences;
}

static double tiny_loss(const Model *model, const Pair *pair) {
    Tape *tape = tape_new(model->device, model->compute, 0);
    tape_record(tape, false);
    Tensor *hidden = model_forward(model, tape, &pair->batch);
    Tensor *rows = ids_tensor(tape, pair->rows, pair->n_targets), *targets = ids_tensor(tape, pair->targets, pair->n_targets);
    double *logprobs = values_of(op_token_logprobs(tape, hidden, model->head, rows, targets, &model->logprob).logprob), loss = 0;
    for (int64_t i = 0; i < pair->n_targets; i++) loss -= logprobs[i] / (double)pair->n_targets;
    free(logprobs);
    tape_free(tape);
    return loss;
}

TEST(gradients_agree_with_finite_differences) {
    char dir[512];
    Sequences sequences = tiny_sequences();
    Pair pair;
    pair_init(&pair, &sequences);
    for (size_t c = 0; c < COUNT_OF(tiny_configs); c++) {
        temp_dir_make(dir, sizeof dir);
        check_ok(model_write_random(dir, tiny_configs[c], DT_F32, 5, 0.4));
        Model *model;
        check_ok(model_load(dir, &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = true}, &model));
        Tape *tape = tape_new(device_reference(), DT_F64, 0);
        double loss;
        free(run_loss(model, tape, &pair, &loss));
        check_close(tiny_loss(model, &pair), loss, 1e-12);
        for (size_t i = 0; i < model->params.n; i++) {
            Tensor *tensor = model->params.items[i].tensor;
            if (!model->params.items[i].trained) continue; /* a router's bias for the choice */
            for (uint64_t k = 0; k < 3; k++) {
                int64_t at = (int64_t)rng_below(rng_key(3, RNG_TEST, i), k, (uint64_t)tensor_count(tensor));
                double value = tensor_get(tensor, at), step = 1e-5;
                tensor_set(tensor, at, value + step);
                double above = tiny_loss(model, &pair);
                tensor_set(tensor, at, value - step);
                double below = tiny_loss(model, &pair);
                tensor_set(tensor, at, value);
                check_close(tensor_get(tensor->grad, at), (above - below) / (2 * step), 1e-8);
            }
        }
        tape_free(tape);
        model_free(model);
        temp_dir_remove(dir);
    }
}

/* Gradients of the mean over `n_targets` chosen rows, one after the other in a list that the caller frees. */
static double *gradients_of(const char *dir, const ModelBatch *batch, const int32_t *rows, const int32_t *targets, const double *weights,
                            int64_t n_targets, Checkpointing checkpointing, size_t *count) {
    Model *model;
    check_ok(model_load(dir, &(ModelOptions){.device = device_reference(), .compute = DT_F64, .train_all = true}, &model));
    model->checkpointing = checkpointing;
    Tape *tape = tape_new(device_reference(), DT_F64, 0);
    Tensor *hidden = model_forward(model, tape, batch);
    Tensor *logprob =
        op_token_logprobs(tape, hidden, model->head, ids_tensor(tape, rows, n_targets), ids_tensor(tape, targets, n_targets), &model->logprob)
            .logprob;
    tensor_seed_grad(tape, logprob, weights);
    check_ok(tape_backward(tape));
    *count = (size_t)params_count(&model->params, true);
    double *all = malloc(*count * sizeof *all), *at = all;
    for (size_t i = 0; i < model->params.n; i++) {
        if (!model->params.items[i].trained) continue;
        tensor_read(model->params.items[i].tensor->grad, at);
        at += tensor_count(model->params.items[i].tensor);
    }
    tape_free(tape);
    model_free(model);
    return all;
}

/* A prompt with two continuations gives the same as the two whole sequences, in one batch or not; and recomputed layers give the same bits. */
TEST(segments_and_recomputation_change_nothing) {
    static const int32_t prompt[5] = {3, 11, 7, 20, 5}, answers[2][3] = {{9, 1, 14}, {2, 28, 9}};
    const Segment tree[] = {{0, 5, -1, 0, 0, 0}, {5, 8, 0, 0, 0, 0}, {8, 11, 0, 0, 0, 0}}, flat[] = {{0, 8, -1, 0, 0, 0}, {8, 16, -1, 0, 0, 0}};
    int32_t tree_ids[11], flat_ids[16], tree_rows[6], flat_rows[6], targets[6];
    double weights[6];
    memcpy(tree_ids, prompt, sizeof prompt);
    for (int s = 0; s < 2; s++) {
        memcpy(tree_ids + 5 + 3 * s, answers[s], sizeof answers[s]);
        memcpy(flat_ids + 8 * s, prompt, sizeof prompt);
        memcpy(flat_ids + 8 * s + 5, answers[s], sizeof answers[s]);
        for (int i = 0; i < 3; i++) {
            tree_rows[3 * s + i] = i == 0 ? 4 : 5 + 3 * s + i - 1; /* the token before: the prompt's last, or the answer's own */
            flat_rows[3 * s + i] = 8 * s + 4 + i;
            targets[3 * s + i] = answers[s][i];
            weights[3 * s + i] = 0.3 - 0.2 * (3 * s + i);
        }
    }
    const ModelBatch tree_batch = {.ids = tree_ids, .layout = {.n_tokens = 11, .n_segments = 3, .segments = tree}};
    const ModelBatch flat_batch = {.ids = flat_ids, .layout = {.n_tokens = 16, .n_segments = 2, .segments = flat}};
    for (size_t c = 0; c < COUNT_OF(tiny_configs); c++) {
        char dir[512];
        size_t count;
        temp_dir_make(dir, sizeof dir);
        check_ok(model_write_random(dir, tiny_configs[c], DT_F32, 5, 0.4));
        double *as_tree = gradients_of(dir, &tree_batch, tree_rows, targets, weights, 6, false, &count);
        double *as_flat = gradients_of(dir, &flat_batch, flat_rows, targets, weights, 6, false, &count);
        double *again = gradients_of(dir, &tree_batch, tree_rows, targets, weights, 6, true, &count);
        check_close_f64("shared prompt", as_tree, as_flat, count, 1e-12, 0);
        check_close_f64("checkpointed layers", again, as_tree, count, 0, 0);
        free(as_tree);
        free(as_flat);
        free(again);
        temp_dir_remove(dir);
    }
}

/* A matrix of 8 Mi elements, nearly the whole model: 64 MiB in the file, 32 MiB in f32, to which it is converted in halves. */
TEST(a_large_matrix_is_not_in_memory_twice) {
#ifdef SANITIZED
    skip(); /* sanitizers need extra memory */
#endif
    static const char config[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 65536, \"hidden_size\": 128, \"intermediate_size\": 8, \"num_hidden_layers\": 1,"
        " \"num_attention_heads\": 1, \"tie_word_embeddings\": true}";
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, config, DT_F64, 5, 0.2));
    FILE *refs = fopen("/proc/self/clear_refs", "w"); /* 5: the peak begins again */
    bool reset = refs && fputs("5", refs) >= 0;
    if (refs && fclose(refs)) reset = false;
    uint64_t before = memory_resident();
    if (!reset || memory_peak() > before + (1 << 20)) skip();
    Model *model;
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    double grown = ((double)memory_peak() - (double)before) / (1 << 20);
    if (grown > 32 + 32 + 12) fail_msg("%.1f MiB", grown);
    model_free(model);
    temp_dir_remove(dir);
}

/* On the device that computes nothing a model takes the memory that the real one would, and reads no weights. */
TEST(memory_is_known_without_computing) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_configs[0], DT_BF16, 5, 0.2));
    Sequences sequences = tiny_sequences();
    Pair pair;
    pair_init(&pair, &sequences);
    size_t peak[2];
    ModelMemory memory[2];
    for (int k = 0; k < 2; k++) {
        const Device *device = k ? device_meta() : device_cpu();
        Model *model;
        check_ok(model_load(dir, &(ModelOptions){.device = device, .compute = DT_F32}, &model));
        check_ok(model_attach_lora(model, &(LoraConfig){.rank = 2, .alpha = 4}, 1));
        Tape *tape = tape_new(device, DT_F32, 0);
        double loss;
        free(run_loss(model, tape, &pair, &loss));
        peak[k] = tape_peak_bytes(tape);
        memory[k] = model_memory(model, true);
        tape_free(tape);
        model_free(model);
    }
    assert_int_equal(peak[0], peak[1]);
    assert_true(memory[0].mapped == memory[1].mapped && memory[0].weights == memory[1].weights && memory[0].gradients == memory[1].gradients);
    /* f32, two layers, rank 2, inputs and outputs of q k v o gate up down */
    assert_int_equal(memory[0].gradients, 4 * 2 * 2 * (48 + 36 + 36 + 48 + 44 + 44 + 44));
    temp_dir_remove(dir);
}

TEST(devices_agree_on_a_random_model) {
    char dir[512];
    Sequences sequences = tiny_sequences();
    Pair pair;
    pair_init(&pair, &sequences);
    for (size_t c = 0; c < COUNT_OF(tiny_configs); c++) {
        temp_dir_make(dir, sizeof dir);
        check_ok(model_write_random(dir, tiny_configs[c], DT_BF16, 5, 0.2));
        Model *exact, *fast;
        check_ok(model_load(dir, &(ModelOptions){.device = device_reference(), .compute = DT_F64}, &exact));
        check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &fast));
        check_close(tiny_loss(fast, &pair), tiny_loss(exact, &pair), 1e-6);
        model_free(fast);
        model_free(exact);
        temp_dir_remove(dir);
    }
}

TEST(saved_models_come_back_the_same) {
    char dir[512], out[600];
    Sequences sequences = tiny_sequences();
    Pair pair;
    pair_init(&pair, &sequences);
    temp_dir_make(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/saved", dir);
    check_ok(model_write_random(dir, tiny_configs[1], DT_F32, 5, 0.2));
    temp_text(dir, "tokenizer_config.json", "{}");
    check_ok(dir_make(temp_file(dir, "additional_chat_templates/.checkpoints")));
    temp_text(temp_file(dir, "additional_chat_templates"), "rag.jinja", "{{ messages }}");
    Model *model, *again;
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .train_all = true}, &model));
    for (int round = 0; round < 2; round++) check_ok(model_save(model, out, &(DType){DT_F32}, NULL)); /* the second takes the place of the first */
    check_ok(model_load(out, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &again));
    assert_true(tiny_loss(model, &pair) == tiny_loss(again, &pair));
    assert_true(file_exists(temp_file(out, "tokenizer_config.json")));
    assert_true(file_exists(temp_file(out, "additional_chat_templates/rag.jinja")));
    model_free(again);
    check_ok(model_save(model, out, &(DType){DT_BF16}, NULL));
    check_ok(model_load(out, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &again));
    assert_int_equal(again->config.stored_dtype, DT_BF16);
    check_close(tiny_loss(again, &pair), tiny_loss(model, &pair), 0.02);
    model_free(again);
    model_free(model);
    temp_dir_remove(dir);
}

/* Another program cuts the base's file during training. Weights of the model's own are saved all the same; what would be of a base that reads as
 * zeros is not. */
TEST(a_base_may_be_cut_meanwhile) {
    enum { WHOLE, ADAPTER, KINDS };
    file_handle_truncation();
    for (int kind = 0; kind < KINDS; kind++) {
        char dir[512], out[600];
        temp_dir_make(dir, sizeof dir);
        snprintf(out, sizeof out, "%s/saved", dir);
        check_ok(model_write_random(dir, tiny_configs[0], DT_BF16, 5, 0.3));
        Model *model;
        RoundingLoss loss = {.lost = 1};
        ModelOptions options = {.device = device_cpu(), .compute = DT_F32, .train_all = kind == WHOLE, .streamed = kind == ADAPTER};
        check_ok(model_load(dir, &options, &model));
        if (kind == ADAPTER) check_ok(model_attach_lora(model, &(LoraConfig){.rank = 2, .alpha = 4}, 1));
        const Mapping *mapping = &model->files->mappings[0];
        file_drop_pages(mapping, 0, mapping->size);
        assert_int_equal(truncate(temp_file(dir, "model.safetensors"), 8), 0);
        if (kind == WHOLE) {
            check_ok(model_save(model, out, &(DType){DT_BF16}, &loss));
            assert_true(rounding_lost(&loss) == 0);
        } else {
            assert_true(tensor_get(model->embed, tensor_count(model->embed) - 1) == 0);
            check_status(adapter_save(model, out, "base"), ST_INPUT);
            check_text("model.safetensors' was truncated by another program");
            assert_false(dir_exists(out));
            assert_true(file_ignore_truncation(mapping));
            check_ok(adapter_save(model, out, "base"));
        }
        model_free(model);
        temp_dir_remove(dir);
    }
}

/* Weights of a bf16 model after training: what bf16 takes of the changes is counted, and what f16 cannot hold is refused and leaves all as it was. */
TEST(rounding_of_saved_models_is_told) {
    char dir[512], out[600];
    temp_dir_make(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/saved", dir);
    check_ok(model_write_random(dir, tiny_configs[0], DT_BF16, 5, 0.3));
    Model *model;
    RoundingLoss loss, want = {0};
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .train_all = true}, &model));
    for (size_t p = 0; p < model->params.n; p++)
        for (int64_t i = 0; i < tensor_count(model->params.items[p].tensor); i++) {
            Tensor *tensor = model->params.items[p].tensor;
            float base = (float)tensor_get(tensor, i), trained = base + (i % 3 == 0 ? 0.0f : i % 2 == 0 ? 2e-4f : 0.125f);
            float stored = bf16_to_float(float_to_bf16(trained));
            tensor_set(tensor, i, (double)trained);
            want.change += pow((double)trained - (double)base, 2);
            want.lost += pow((double)trained - (double)stored, 2);
            want.n_moved += trained != base;
            want.n_unmoved += trained != base && stored == base;
        }
    check_ok(model_save(model, out, &(DType){DT_BF16}, &loss));
    check_close(loss.change, want.change, 1e-9 * want.change);
    check_close(loss.lost, want.lost, 1e-9 * want.lost);
    assert_int_equal(loss.n_moved, want.n_moved);
    assert_int_equal(loss.n_unmoved, want.n_unmoved);
    check_close(rounding_lost(&loss), sqrt(want.lost / want.change), 1e-9);
    check_ok(model_save(model, out, &(DType){DT_F32}, &loss));
    assert_true(rounding_lost(&loss) == 0 && rounding_unmoved(&loss) == 0);

    tensor_set(model->final_norm.weight, 1, 65520);
    check_status(model_save(model, out, &(DType){DT_F16}, &loss), ST_NUMERIC);
    check_text("tensor 'model.norm.weight' does not fit into f16");
    assert_false(dir_exists(temp_file(dir, ".saved.tune-partial")));
    Model *again;
    check_ok(model_load(out, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &again));
    assert_int_equal(again->config.stored_dtype, DT_F32); /* what was there before */
    model_free(again);
    model_free(model);
    temp_dir_remove(dir);
}

/* Random weights are stored in the dtype that their config.json then says. */
TEST(random_models_say_their_dtype) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        json_t *config = json_loads(tiny_configs[0], 0, NULL), *written;
        json_object_del(config, "torch_dtype");
        json_object_set_new(config, keys[i], json_string("bfloat16"));
        char *text = json_dumps(config, 0);
        check_ok(model_write_random(dir, text, DT_F32, 5, 0.02));
        check_ok(json_read_file(temp_file(dir, "config.json"), &written));
        assert_string_equal(json_string_value(json_object_get(written, keys[i])), "float32");
        assert_int_equal(json_object_size(written), json_object_size(config));
        free(text);
        json_decref(written);
        json_decref(config);
    }
    temp_dir_remove(dir);
}

/* ---- what must be refused, with words that help ---- */

static void load_fails(const char *dir, Status status, const char *words) {
    Model *model;
    check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), status);
    assert_null(model);
    check_text(words);
}

TEST(wrong_models_are_refused_by_name) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    load_fails(temp_file(dir, "nowhere"), ST_INPUT, "no model directory");
    load_fails(dir, ST_INPUT, "config.json");
    static const struct {
        const char *config, *words;
    } cases[] = {
        {"[]", "is not a JSON object"},
        {"{\"vocab_size\": 4}", "lacks 'model_type'"},
        {"{\"model_type\": \"mamba2\"}", "model_type 'mamba2'"},
        {"{\"model_type\": \"llama\"}", "lacks 'vocab_size'"},
        {"{\"model_type\": \"llama\", \"vocab_size\": -3}", "wrong 'vocab_size'"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 99999999999999999}", "wrong 'vocab_size'"},
#define SIZES \
    "{\"model_type\": \"llama\", \"vocab_size\": 37, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 4"
        {SIZES ", \"hidden_act\": \"mish\"}", "hidden_act 'mish'"},
        {SIZES ", \"num_key_value_heads\": 3}", "no multiple of 3"},
        {SIZES ", \"head_dim\": 7}", "head_dim 7"},
        {SIZES ", \"quantization_config\": {\"bits\": 4}}", "'quantization_config'"},
        {SIZES ", \"partial_rotary_factor\": 0.5}", "'partial_rotary_factor'"},
        {SIZES ", \"num_experts\": 4}", "'num_experts'"},
        {SIZES ", \"attn_logit_softcapping\": 50.0}", "'attn_logit_softcapping'"},
        {SIZES ", \"rope_scaling\": {\"type\": \"su\", \"factor\": 2.0}}", "rope_type 'su'"},
        {SIZES ", \"rope_scaling\": {\"type\": \"linear\"}}", "lacks 'factor'"},
        {SIZES ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0, \"mrope_section\": [1]}}", "'mrope_section'"},
        {SIZES ", \"rope_theta\": \"x\"}", "'rope_theta'"},
        {SIZES ", \"architectures\": [\"LlamaForSequenceClassification\"]}", "'LlamaForSequenceClassification'"},
        {SIZES ", \"eos_token_id\": \"x\"}", "'eos_token_id'"},
        {SIZES ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}, \"sliding_attention\": {\"rope_theta\": 1e4}}}",
         "different rope_parameters for its layers"},
        {SIZES ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2, \"short_factor\": [1, 1, 1]}}", "lacks 'long_factor'"},
        {SIZES ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 1], \"long_factor\": [1, 1]}}",
         "have 2 numbers, expected 3 for 6 rotary dimensions"},
        {SIZES ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"short_factor\": [1, 0, 1], \"long_factor\": [1, 1, 1]}}", "'short_factor' in"},
        {SIZES ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, \"llama_4_scaling_beta\": 0.1}}", "'llama_4_scaling_beta'"},
        {SIZES ", \"query_pre_attn_scalar\": 20}", "'query_pre_attn_scalar'"},
        {TINY("gemma3_text") ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}, \"conv\": {\"rope_theta\": 1e4}}}",
         "rope_parameters for 'conv'"},
        {TINY("gemma3_text") ", \"use_bidirectional_attention\": true}", "'use_bidirectional_attention'"},
        {TINY("gemma2") ", \"layer_types\": [\"sliding_attention\", \"chunked_attention\"]}", "layer_types[1]"},
        {TINY("gemma2") ", \"final_logit_softcapping\": -3}", "wrong 'final_logit_softcapping'"},
        {TINY("gemma2") ", \"query_pre_attn_scalar\": 0}", "wrong 'query_pre_attn_scalar'"},
        {TINY("glm4") ", \"partial_rotary_factor\": 1.5}", "wrong 'partial_rotary_factor'"},
        {TINY("glm4") ", \"head_dim\": 6}", "3 rotary dimensions"},
        {TINY("smollm3") ", \"no_rope_layers\": [1]}", "no_rope_layers[1]"},
        {TINY("smollm3") ", \"no_rope_layers\": [1, 2]}", "no_rope_layers[1]"},
        {TINY("ministral3") "}", "lacks 'rope_parameters'"},
        {TINY("ministral3") ", \"rope_parameters\": {\"type\": \"ntk\"}}", "rope_type 'ntk'"},
        {TINY("phi3") ", \"lm_head_bias\": true}", "'lm_head_bias'"},
        {TINY("granitemoehybrid") "}", "8 num_local_experts"},
        {TINY("granitemoehybrid") ", \"num_local_experts\": 0}", "layer_types[0]"},
        {TINY("granitemoehybrid") ", \"num_local_experts\": 0, \"layer_types\": [\"attention\", \"mamba\"]}", "layer_types[1]"},
        {TINY("granitemoehybrid") ", \"num_local_experts\": 0, \"layer_types\": [\"attention\", \"attention\"],"
                                  " \"position_embedding_type\": \"alibi\"}",
         "position_embedding_type 'alibi'"},
        {TINY("granite") ", \"logits_scaling\": 0}", "wrong 'logits_scaling'"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 12, \"n_layer\": 2, \"n_head\": 3, \"scale_attn_by_inverse_layer_idx\": true}",
         "'scale_attn_by_inverse_layer_idx'"},
        {"{\"model_type\": \"gpt2\", \"n_embd\": 13, \"n_layer\": 2, \"n_head\": 3}", "no multiple of 3 heads"},
        {SIZES "}", "no model.safetensors"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        temp_text(dir, "config.json", cases[i].config);
        load_fails(dir, ST_INPUT, cases[i].words);
    }
    temp_dir_remove(dir);
}

static void replace_in_config(const char *dir, const char *config, const char *from, const char *to) {
    Str text = {0};
    const char *at = strstr(config, from);
    assert_non_null(at);
    str_append_n(&text, config, (size_t)(at - config));
    str_printf(&text, "%s%s", to, at + strlen(from));
    temp_text(dir, "config.json", str_text(&text));
    str_release(&text);
}

TEST(weights_that_disagree_with_the_config_are_named) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_configs[0], DT_F32, 5, 0.2));
    replace_in_config(dir, tiny_configs[0], "\"vocab_size\": 37", "\"vocab_size\": 38");
    load_fails(dir, ST_INPUT, "shape (37,24), expected (38,24)");
    replace_in_config(dir, tiny_configs[0], "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    load_fails(dir, ST_INPUT, "tensor 'model.layers.2.input_layernorm.weight' is missing");
    check_text("shape (24) is expected");
    replace_in_config(dir, tiny_configs[0], "\"mlp_bias\": true", "\"mlp_bias\": false");
    load_fails(dir, ST_INPUT, "has no place");
    temp_dir_remove(dir);
}

TEST(a_nan_in_the_weights_is_named) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_configs[0], DT_F32, 5, 0.2));
    WeightFile *files;
    check_ok(weight_file_open(dir, &files));
    const StoredTensor *stored = weight_file_find(files, "model.layers.1.mlp.up_proj.weight");
    Str bytes = {0};
    str_append_n(&bytes, (const char *)files->mappings[0].data, files->mappings[0].size);
    float nan = NAN;
    memcpy(bytes.data + (stored->data - files->mappings[0].data) + 4 * 17, &nan, sizeof nan);
    weight_file_close(files);
    check_ok(file_write_all(temp_file(dir, "model.safetensors"), bytes.data, bytes.len));
    str_release(&bytes);
    load_fails(dir, ST_INPUT, "tensor 'model.layers.1.mlp.up_proj.weight'");
    load_fails(dir, ST_INPUT, "at element 17");
    temp_dir_remove(dir);
}

TEST(wrong_tokens_stop_the_step) {
    char dir[512];
    temp_dir_make(dir, sizeof dir);
    check_ok(model_write_random(dir, tiny_configs[2], DT_F32, 5, 0.2));
    Model *model;
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    int32_t ids[40] = {0};
    Segment segment = {.end = 40, .parent = -1};
    ModelBatch batch = {.ids = ids, .layout = {.n_tokens = 40, .n_segments = 1, .segments = &segment}};
    assert_null(model_forward(model, tape, &batch));
    check_status(tape_status(tape), ST_INPUT);
    check_text("more than the 32 tokens");
    tape_reset(tape);
    batch.layout.n_tokens = segment.end = 3;
    ids[1] = 29;
    assert_null(model_forward(model, tape, &batch));
    check_text("unknown token id 29");
    tape_free(tape);
    model_free(model);
    temp_dir_remove(dir);
}

TEST(real_configs_are_read_or_refused_by_name) {
    static const struct {
        const char *file, *refusal;
    } cases[] = {
        {"Qwen--Qwen3-0.6B_config.json", NULL},
        {"Qwen--Qwen3-8B_config.json", NULL},
        {"meta-llama--Meta-Llama-3.1-8B_config.json", NULL},
        {"deepseek-ai--DeepSeek-V3_config.json", NULL},
        {"google--gemma-2-2b-it_config.json", NULL},
        {"mistralai--Mixtral-8x7B-v0.1_config.json", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[200], path[512];
        snprintf(name, sizeof name, "data/configs/%s", cases[i].file);
        if (!shared_path(name, path, sizeof path)) skip();
        Arena *arena = arena_new(0);
        json_t *json;
        check_ok(json_read_file(path, &json));
        ModelConfig config;
        check_status(model_config_parse(json, path, arena, &config), cases[i].refusal ? ST_INPUT : ST_OK);
        if (cases[i].refusal) check_text(cases[i].refusal);
        json_decref(json);
        arena_free(arena);
    }
}

/* As transformers: a Mistral with layer_types is a Ministral, whose other layers see all. */
TEST(windows_are_those_of_layer_types) {
    static const char text[] =
        "{\"model_type\": \"mistral\", \"vocab_size\": 31, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 3, \"num_attention_heads\": 2,"
        " \"sliding_window\": 7%s}";
    static const struct {
        const char *more;
        int64_t windows[3];
        const char *fault;
    } cases[] = {
        {"", {7, 7, 7}, NULL},
        {", \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"]", {0, 7, 0}, NULL},
        {", \"layer_types\": [\"full_attention\"]", {0}, "1 layer_types for 3 layers"},
        {", \"layer_types\": [\"full_attention\", \"linear_attention\", \"full_attention\"]", {0}, "layer_types[1]"},
        {", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}",
         {0},
         "with different values of 'rope_type'"},
        {", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
         {0},
         "with different values of 'type'"},
        {", \"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 5e5, \"factor\": 2}, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
         {7, 7, 7},
         NULL},
        {", \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}, \"rope_scaling\": {\"rope_theta\": 3}",
         {0},
         "with different values of 'rope_theta'"},
    };
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char whole[1024];
        json_t *json;
        ModelConfig config;
        snprintf(whole, sizeof whole, text, cases[i].more);
        check_ok(json_read_text(whole, strlen(whole), "config.json", &json));
        check_status(model_config_parse(json, "config.json", arena, &config), cases[i].fault ? ST_INPUT : ST_OK);
        if (cases[i].fault)
            check_text(cases[i].fault);
        else
            assert_memory_equal(config.layer_window, cases[i].windows, sizeof cases[i].windows);
        json_decref(json);
    }
    arena_free(arena);
}

/* ---- rotary frequencies: as transformers' modeling_rope_utils gives them ---- */

static void model_parse(const char *text, Arena *arena, ModelConfig *config) {
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    check_ok(model_config_parse(json, "config.json", arena, config));
    json_decref(json);
}

/* What published files leave out, and what they say in the words of transformers 4. */
TEST(published_words_of_the_families_are_read) {
    Arena *arena = arena_new(0);
    ModelConfig c;
    /* gemma-3-4b's text part: five of six layers have a sliding window and their own rope; the scaling applies to the others */
    model_parse(
        "{\"model_type\": \"gemma3_text\", \"hidden_size\": 2560, \"intermediate_size\": 10240, \"num_hidden_layers\": 34, \"sliding_window\": 1024,"
        " \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}}",
        arena, &c);
    assert_true(c.vocab_size == 262208 && c.head_dim == 256 && c.num_attention_heads == 8 && c.num_key_value_heads == 4 && c.tie_word_embeddings);
    assert_true(c.layer_window[4] == 1024 && c.layer_window[5] == 0 && c.layer_rope[4] == LAYER_WINDOW_ROPE && c.layer_rope[5] == LAYER_ROPE);
    assert_true(c.rope.type == ROPE_LINEAR && c.rope.factor == 8 && c.rope.rope_theta == 1e6);
    assert_true(c.window_rope.type == ROPE_DEFAULT && c.window_rope.rope_theta == 1e4);
    assert_true(c.attention_scale == 1.0 / 16 && c.attn_softcap == 0 && c.final_softcap == 0 && c.norm_offset == 1);
    /* gemma 2: null is no cap, a missing key is the usual one */
    model_parse("{\"model_type\": \"gemma2\", \"attn_logit_softcapping\": null}", arena, &c);
    assert_true(c.attn_softcap == 0 && c.final_softcap == 30 && c.layer_window[0] == 4096 && c.layer_window[1] == 0);
    /* SmolLM3 */
    model_parse("{\"model_type\": \"smollm3\", \"vocab_size\": 128256, \"hidden_size\": 2048, \"intermediate_size\": 11008, \"num_hidden_layers\": 4,"
                " \"num_attention_heads\": 16, \"use_sliding_window\": true, \"sliding_window\": 9}",
                arena, &c);
    assert_true(c.tie_word_embeddings && c.rope.rope_theta == 2e6 && c.layer_rope[2] == LAYER_ROPE && c.layer_rope[3] == LAYER_NO_ROPE);
    assert_true(c.layer_window[2] == 0 && c.layer_window[3] == 9);
    /* Phi-3-mini-128k: the square root of 1 + ln(32) / ln(4096) on both cosines and sines */
    model_parse("{\"model_type\": \"phi3\", \"vocab_size\": 10, \"hidden_size\": 16, \"intermediate_size\": 16, \"num_hidden_layers\": 1,"
                " \"num_attention_heads\": 4, \"max_position_embeddings\": 131072, \"original_max_position_embeddings\": 4096,"
                " \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, 2], \"long_factor\": [4, 8]}}",
                arena, &c);
    double f[2], factor;
    assert_int_equal(c.rope.type, ROPE_LONGROPE);
    rope_frequencies(&c.rope, 4, c.max_position_embeddings, 4096, f, &factor);
    check_close(factor, 1.1902380714238083, 1e-15);
    check_close(f[1], 0.01 / 2, 1e-17);
    rope_frequencies(&c.rope, 4, c.max_position_embeddings, 4097, f, &factor);
    check_close(f[1], 0.01 / 8, 1e-17);
    /* OLMo 3: rope_theta is that of both kinds of layers */
    model_parse("{\"model_type\": \"olmo3\", \"vocab_size\": 10, \"hidden_size\": 16, \"intermediate_size\": 16, \"num_hidden_layers\": 4,"
                " \"num_attention_heads\": 4, \"rope_theta\": 70000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
                arena, &c);
    assert_true(c.rope.rope_theta == 70000 && c.window_rope.rope_theta == 70000 && c.rope.factor == 2 && c.window_rope.type == ROPE_DEFAULT);
    arena_free(arena);
}

TEST(rope_scalings_give_the_published_frequencies) {
    double f[64], factor;
    RopeConfig llama3 = {
        .type = ROPE_LLAMA3, .rope_theta = 5e5, .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 8192};
    rope_frequencies(&llama3, 128, 131072, 0, f, &factor);
    const double llama3_at[][2] = {{29, 2.1665707635e-3}, {30, 1.3718935678e-3}, {31, 8.5675141292e-4}, {34, 1.7850781277e-4}, {63, 3.0689259889e-7}};
    for (size_t i = 0; i < COUNT_OF(llama3_at); i++) check_close_f64("llama3", &f[(int)llama3_at[i][0]], &llama3_at[i][1], 1, 0, 1e-10);
    check_close(factor, 1, 0);

    RopeConfig yarn = {.type = ROPE_YARN,
                       .rope_theta = 1e6,
                       .factor = 4,
                       .original_max_position_embeddings = 32768,
                       .beta_fast = 32,
                       .beta_slow = 1,
                       .truncate = true};
    rope_frequencies(&yarn, 128, 131072, 0, f, &factor);
    const double yarn_at[][2] = {{24, 5.3753214908e-3}, {31, 8.0295972755e-4}, {40, 4.4456985251e-5}};
    for (size_t i = 0; i < COUNT_OF(yarn_at); i++) check_close_f64("yarn", &f[(int)yarn_at[i][0]], &yarn_at[i][1], 1, 0, 1e-10);
    check_close(factor, 1.1386294361, 1e-10);
    yarn.mscale = yarn.mscale_all_dim = 1;
    rope_frequencies(&yarn, 128, 131072, 0, f, &factor);
    check_close(factor, 1, 1e-15);

    RopeConfig linear = {.type = ROPE_LINEAR, .rope_theta = 1e4, .factor = 4}, dynamic = {.type = ROPE_DYNAMIC, .rope_theta = 1e4, .factor = 2};
    rope_frequencies(&linear, 8, 64, 0, f, &factor);
    check_close(f[2], 0.01 / 4, 1e-17);
    rope_frequencies(&dynamic, 8, 64, 64, f, &factor);
    check_close(f[2], 0.01, 1e-17);
    rope_frequencies(&dynamic, 8, 64, 128, f, &factor);
    check_close(f[2], pow(1e4 * pow(3, 8.0 / 6.0), -0.5), 1e-17);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_equal_the_reference_in_f32),
        cmocka_unit_test(models_equal_the_reference_in_f64),
        cmocka_unit_test(a_config_of_transformers_4_reads_the_same),
        cmocka_unit_test(a_really_trained_model_gives_its_logits),
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(segments_and_recomputation_change_nothing),
        cmocka_unit_test(a_large_matrix_is_not_in_memory_twice),
        cmocka_unit_test(memory_is_known_without_computing),
        cmocka_unit_test(devices_agree_on_a_random_model),
        cmocka_unit_test(saved_models_come_back_the_same),
        cmocka_unit_test(rounding_of_saved_models_is_told),
        cmocka_unit_test(a_base_may_be_cut_meanwhile),
        cmocka_unit_test(random_models_say_their_dtype),
        cmocka_unit_test(wrong_models_are_refused_by_name),
        cmocka_unit_test(weights_that_disagree_with_the_config_are_named),
        cmocka_unit_test(a_nan_in_the_weights_is_named),
        cmocka_unit_test(wrong_tokens_stop_the_step),
        cmocka_unit_test(real_configs_are_read_or_refused_by_name),
        cmocka_unit_test(windows_are_those_of_layer_types),
        cmocka_unit_test(published_words_of_the_families_are_read),
        cmocka_unit_test(rope_scalings_give_the_published_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
