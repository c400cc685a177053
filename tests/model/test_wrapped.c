/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapped models: the text part of a vision model computes what it computes alone, everything else comes out of training and merging byte for byte,
 * and adapters are read by any of the names that classes of transformers give. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/model/adapter.h"
#include "lib/model/convert.h"
#include "lib/model/parts.h"
#include "lib/model/safetensors.h"
#include "lib/model/text_part.h"
#include "sft/merge.h"

#define TEXT \
    "\"vocab_size\": 37, \"hidden_size\": 24, \"intermediate_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2"
static const char plain_config[] = "{\"model_type\": \"mistral\", \"sliding_window\": null, " TEXT ", \"dtype\": \"bfloat16\"}";

/* A checkpoint of the same weights as part of a vision model. `prefix` takes the place of "model." in the text part's names. */
typedef struct Form {
    const char *wrapper, *prefix, *head;
} Form;
static const Form forms[] = {
    {"mistral3", "language_model.model.", "language_model.lm_head"},
    {"mistral3", "model.language_model.", "lm_head"},
    {"llava", "language_model.", "lm_head"}, /* of a class without a head: the first part of the names is left out */
    {"smolvlm", "model.text_model.", "lm_head"},
    {"llava_next", "model.", "lm_head"},
};

/* Other tensors of such a checkpoint: types that we do not compute with, and sizes that misalign the next tensor. */
static const struct {
    const char *name, *dtype;
    int n_dims;
    int64_t shape[8];
    size_t bytes;
} others[] = {
    {"vision_tower.encoder.layers.0.self_attn.q_proj.weight", "BF16", 2, {3, 5}, 30},
    {"vision_tower.patch.weight", "F32", 4, {2, 3, 1, 1}, 24},
    {"vision_tower.position_ids", "I64", 2, {1, 3}, 24},
    {"vision_tower.rotary_emb.inv_freq", "F32", 1, {3}, 12},
    {"multi_modal_projector.scale", "F16", 0, {0}, 2},
    {"multi_modal_projector.table", "U8", 1, {3}, 3},
    {"mtp.norm.weight", "BF16", 1, {7}, 14},
};

static int warnings;
static char last_warning[400];

static void count_warning(void *context, LogLevel level, const char *text) {
    (void)context;
    (void)level;
    warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", text);
}

/* ---- making files ---- */

static const char *wrapped_name(const Form *form, const char *name, Arena *arena) {
    if (text_starts_with(name, "model.")) return arena_printf(arena, "%s%s", form->prefix, name + 6);
    return text_starts_with(name, "lm_head") ? arena_printf(arena, "%s%s", form->head, name + 7) : name;
}

static void write_set(const char *path, const StoredTensor *tensors, size_t n) {
    SafetensorsWriter *writer;
    check_ok(safetensors_writer_new(path, &writer));
    for (size_t i = 0; i < n; i++) safetensors_declare_as(writer, &tensors[i]);
    for (size_t i = 0; i < n; i++) safetensors_write(writer, tensors[i].data, tensors[i].bytes);
    check_ok(safetensors_commit(writer));
}

/* Writes the tensors of `plain` under the names of the form, norms in f32, and other tensors. extra_layer: repeats the last layer. */
static void write_wrapped_tensors(const Form *form, const char *plain, const char *dir, bool extra_layer) {
    static uint8_t bytes[64];
    WeightFile *set;
    check_ok(weight_file_open(plain, &set));
    StoredTensor *all = arena_zero(set->arena, (2 * set->n + COUNT_OF(others)) * sizeof *all);
    size_t n = 0;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(37 * i + 11);
    for (size_t i = 0; i < set->n; i++) {
        StoredTensor *to = &all[n++], from = set->tensors[i];
        *to = from;
        to->name = wrapped_name(form, from.name, set->arena);
        if (extra_layer && strstr(from.name, "layers.1.")) {
            char *name = arena_strdup(set->arena, to->name);
            *(strstr(name, "layers.1.") + 7) = '2';
            all[n] = from;
            all[n++].name = name;
        }
        if (from.n_dims > 1) continue;
        float *wide = arena_alloc(set->arena, (size_t)from.count * sizeof *wide);
        convert_elements(from.data, from.dtype, wide, DT_F32, (size_t)from.count);
        to->dtype_text = "F32";
        to->data = (uint8_t *)wide;
        to->bytes = (size_t)from.count * sizeof *wide;
    }
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        all[n] = (StoredTensor){
            .name = others[i].name, .dtype_text = others[i].dtype, .n_dims = others[i].n_dims, .data = bytes, .bytes = others[i].bytes};
        memcpy(all[n++].shape, others[i].shape, sizeof others[i].shape);
    }
    write_set(temp_file(dir, "model.safetensors"), all, n);
    weight_file_close(set);
}

static void write_wrapped_config(const char *dir, const char *wrapper, const char *text, const char *more) {
    Str json = {0};
    str_printf(
        &json,
        "{\"model_type\": \"%s\", \"architectures\": [\"AnyForConditionalGeneration\"], \"eos_token_id\": [5, 3], \"image_token_index\": 6,"
        " \"vision_config\": {\"hidden_size\": 5, \"limits\": [0.5, Infinity, -Infinity, NaN]}, \"dtype\": \"bfloat16\", \"text_config\": {%s}%s}",
        wrapper, text, more);
    temp_text(dir, "config.json", str_text(&json));
    str_release(&json);
}

static const char mistral_text[] = "\"model_type\": \"mistral\", \"sliding_window\": null, \"eos_token_id\": 2, \"dtype\": \"bfloat16\", " TEXT;
static const char llama_text[] = TEXT ", \"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 131072, \"eos_token_id\": 2";

/* `root`/plain, and `root`/wrapped in the form; the plain one's norms are in f32, too: all values are the same. */
static void make_pair(const char *root, const Form *form, bool extra_layer) {
    char dir[300];
    snprintf(dir, sizeof dir, "%s/wrapped", root);
    check_ok(model_write_random(temp_file(root, "plain"), plain_config, DT_BF16, 5, 0.3));
    check_ok(dir_make(dir));
    write_wrapped_tensors(form, temp_file(root, "plain"), dir, extra_layer);
    write_wrapped_config(dir, form->wrapper, strcmp(form->wrapper, "mistral3") == 0 ? mistral_text : llama_text, "");
    if (strncmp(form->wrapper, "llava_", 6) == 0) write_wrapped_config(dir, form->wrapper, mistral_text, "");
    static const char *const files[] = {"processor_config.json", "preprocessor_config.json", "chat_template.jinja", "tekken.json"};
    for (size_t i = 0; i < COUNT_OF(files); i++) temp_text(dir, files[i], files[i]);
}

/* ---- running them ---- */

static Model *wrapped_load(const char *dir) {
    Model *model;
    check_ok(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model));
    return model;
}

/* Hidden states of a few tokens: the caller frees them. */
static float *wrapped_run(const Model *model, size_t *bytes) {
    int32_t ids[12];
    for (int32_t i = 0; i < 12; i++) ids[i] = (i * 7) % 37;
    Segment segment = {.end = 12, .parent = -1};
    Tape *tape = tape_new(device_cpu(), DT_F32, 0);
    Tensor *hidden = model_forward(model, tape, &(ModelBatch){.ids = ids, .layout = {.n_tokens = 12, .n_segments = 1, .segments = &segment}});
    check_ok(tape_status(tape));
    *bytes = tensor_bytes(hidden);
    float *values = malloc(*bytes);
    memcpy(values, hidden->elements, *bytes);
    tape_free(tape);
    return values;
}

static void check_same(const Model *a, const Model *b) {
    size_t n_a, n_b;
    float *x = wrapped_run(a, &n_a), *y = wrapped_run(b, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(x, y, n_a);
    free(x);
    free(y);
}

/* Every tensor of another part is there with the same name, type, shape and bytes, and every tensor is aligned. */
static void check_others(const char *dir, size_t n_tensors) {
    WeightFile *set;
    check_ok(weight_file_open(dir, &set));
    assert_int_equal(set->n, n_tensors);
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        const StoredTensor *tensor = weight_file_find(set, others[i].name);
        if (!tensor) fail_msg("'%s' is not in '%s'", others[i].name, dir);
        assert_string_equal(tensor->dtype_text, others[i].dtype);
        assert_int_equal(tensor->n_dims, others[i].n_dims);
        assert_memory_equal(tensor->shape, others[i].shape, (size_t)tensor->n_dims * sizeof *tensor->shape);
        for (size_t k = 0; k < tensor->bytes; k++) assert_int_equal(tensor->data[k], (uint8_t)(37 * k + 11));
    }
    for (size_t i = 0; i < set->n; i++)
        assert_int_equal((uintptr_t)set->tensors[i].data % (set->tensors[i].bytes / (size_t)set->tensors[i].count), 0);
    weight_file_close(set);
}

TEST(a_text_part_computes_what_it_does_alone) {
    for (size_t f = 0; f < COUNT_OF(forms); f++) {
        char root[256];
        temp_dir_make(root, sizeof root);
        make_pair(root, &forms[f], false);
        Model *plain = wrapped_load(temp_file(root, "plain")), *wrapped = wrapped_load(temp_file(root, "wrapped"));
        assert_string_equal(wrapped->config.wrapper, forms[f].wrapper);
        assert_null(plain->config.wrapper);
        assert_int_equal(wrapped->n_passthrough, COUNT_OF(others));
        assert_int_equal(wrapped->config.n_eos, 3); /* of both levels: 2, 5, 3 */
        assert_string_equal(wrapped->linears[0]->path, f == 0   ? "language_model.model.layers.0.self_attn.q_proj"
                                                       : f <= 2 ? "model.language_model.layers.0.self_attn.q_proj"
                                                       : f == 3 ? "model.text_model.layers.0.self_attn.q_proj"
                                                                : "model.layers.0.self_attn.q_proj");
        check_same(plain, wrapped);
        Str parts = {0};
        text_describe_passthrough(wrapped, &parts);
        assert_string_equal(str_text(&parts), "vision_tower (4 tensors), multi_modal_projector (2 tensors), mtp (1 tensor)");
        str_release(&parts);
        model_free(plain);
        model_free(wrapped);
        temp_dir_remove(root);
    }
}

/* Layers that predict further tokens, which config.json speaks of, are part of a language model's files too. */
TEST(prediction_layers_are_carried) {
    char root[256], dir[300];
    temp_dir_make(root, sizeof root);
    make_pair(root, &(Form){"llava_next", "model.", "lm_head"}, true);
    snprintf(dir, sizeof dir, "%s/wrapped", root);
    for (int said = 0; said < 2; said++) {
        Str config = {0};
        str_printf(&config, "%.*s%s}", (int)strlen(plain_config) - 1, plain_config, said ? ", \"num_nextn_predict_layers\": 1" : "");
        temp_text(dir, "config.json", str_text(&config));
        str_release(&config);
        Model *model;
        check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
        check_text("tensor 'vision_tower."); /* it is not said to be a vision model */
        WeightFile *set;
        check_ok(weight_file_open(dir, &set));
        StoredTensor *kept = arena_alloc(set->arena, set->n * sizeof *kept);
        size_t n = 0;
        for (size_t i = 0; i < set->n; i++)
            if (!strstr(set->tensors[i].name, "vision_tower") && !strstr(set->tensors[i].name, "projector")) kept[n++] = set->tensors[i];
        char text[300];
        snprintf(text, sizeof text, "%s/text-%d", root, said);
        check_ok(dir_make(text));
        write_set(temp_file(text, "model.safetensors"), kept, n);
        check_ok(file_copy(temp_file(dir, "config.json"), temp_file(text, "config.json")));
        weight_file_close(set);
        log_set_record(count_warning, NULL);
        warnings = 0;
        model = wrapped_load(text);
        log_set_record(NULL, NULL);
        assert_int_equal(warnings, !said);
        assert_int_equal(model->n_passthrough, 9 + 1); /* the layer, mtp.norm */
        model_free(model);
    }
    temp_dir_remove(root);
}

/* ---- saving ---- */

static json_t *read_config(const char *dir) {
    json_t *json;
    check_ok(json_read_config(temp_file(dir, "config.json"), true, &json));
    return json;
}

static void check_wrapped_config(const char *dir, const char *dtype) {
    json_t *json = read_config(dir), *text = json_object_get(json, "text_config");
    assert_string_equal(json_string_value(json_object_get(json, "model_type")), "mistral3");
    assert_string_equal(json_string_value(json_array_get(json_object_get(json, "architectures"), 0)), "AnyForConditionalGeneration");
    assert_string_equal(json_string_value(json_object_get(json, "dtype")), dtype);
    assert_string_equal(json_string_value(json_object_get(text, "dtype")), dtype);
    assert_null(json_object_get(json, "torch_dtype"));
    json_decref(json);
    Str written = {0};
    check_ok(file_read(temp_file(dir, "config.json"), 1 << 16, &written));
    check_contains(str_text(&written), "      Infinity,\n      -Infinity,\n      NaN\n");
    str_release(&written);
    static const char *const files[] = {"processor_config.json", "preprocessor_config.json", "chat_template.jinja", "tekken.json"};
    for (size_t i = 0; i < COUNT_OF(files); i++) assert_true(file_exists(temp_file(dir, files[i])));
}

static void check_dtypes(const char *dir, const char *matrices, const char *norms) {
    WeightFile *set;
    check_ok(weight_file_open(dir, &set));
    for (size_t i = 0; i < set->n; i++)
        if (text_starts_with(set->tensors[i].name, "language_model.") && !strstr(set->tensors[i].name, "layers.2."))
            assert_string_equal(set->tensors[i].dtype_text, set->tensors[i].n_dims == 1 ? norms : matrices);
    weight_file_close(set);
}

TEST(full_training_saves_the_whole) {
    char root[256];
    temp_dir_make(root, sizeof root);
    make_pair(root, &forms[0], true);
    Model *model;
    log_set_record(count_warning, NULL);
    warnings = 0;
    check_ok(model_load(temp_file(root, "wrapped"), &(ModelOptions){.device = device_cpu(), .compute = DT_F32, .train_all = true}, &model));
    log_set_record(NULL, NULL);
    assert_int_equal(warnings, 1);
    check_contains(last_warning, "has 1 layer after the 2 that config.json names (num_hidden_layers)");
    assert_int_equal(model->n_passthrough, COUNT_OF(others) + 9);
    tensor_set(model->final_norm.weight, 3, 1.0009765625); /* exact in f32, not in bf16 */
    tensor_set(model->embed, 3, 0.5);
    char out[300];
    snprintf(out, sizeof out, "%s/saved", root);
    RoundingLoss loss;
    check_ok(model_save(model, out, NULL, &loss));
    assert_true(loss.n_moved == 2 && loss.lost == 0);
    check_others(out, 21 + 9 + COUNT_OF(others));
    check_dtypes(out, "BF16", "F32");
    check_wrapped_config(out, "bfloat16");
    Model *again = wrapped_load(out);
    check_same(model, again);
    assert_true(tensor_get(again->final_norm.weight, 3) == 1.0009765625);
    model_free(again);
    check_ok(model_save(model, out, &(DType){DT_F32}, NULL));
    check_others(out, 21 + 9 + COUNT_OF(others));
    check_wrapped_config(out, "float32");
    WeightFile *set;
    check_ok(weight_file_open(out, &set));
    assert_string_equal(weight_file_find(set, "language_model.model.layers.1.mlp.up_proj.weight")->dtype_text, "F32");
    assert_string_equal(weight_file_find(set, "language_model.model.layers.2.mlp.up_proj.weight")->dtype_text, "BF16");
    weight_file_close(set);
    model_free(model);
    temp_dir_remove(root);
}

static void randomise(const Model *model) {
    for (size_t i = 0; i < model->params.n; i++) {
        const Param *param = &model->params.items[i];
        for (int64_t k = 0; param->role != PARAM_BASE && k < tensor_count(param->tensor); k++)
            tensor_set(param->tensor, k, 0.2 * rng_normal(rng_key(3, RNG_TEST, i), (uint64_t)k));
    }
}

static void make_adapter(const char *base, const char *dir, const LoraConfig *config) {
    Model *model = wrapped_load(base);
    check_ok(model_attach_lora(model, config, 1));
    randomise(model);
    check_ok(adapter_save(model, dir, "base"));
    model_free(model);
}

static const LoraConfig every = {.rank = 2, .alpha = 3, .lr_ratio = 1};

static void wrapped_merge(const char *base, const char *adapter, const char *output, bool convert) {
    MergeResult *result;
    MergeAdapter adapters[] = {{adapter, 1}};
    MergeConfig config = {.base = base, .adapters = adapters, .n_adapters = 1, .output = output, .prove = true, .runtime = {device_cpu(), DT_F32}};
    config.convert = convert;
    check_ok(merge_run(&config, &result));
    assert_int_equal(result->n_changed, 14);
    assert_true(convert ? result->kl < 1e-7 : result->kl < 1e-2);
    merge_free(result);
}

TEST(a_merge_keeps_the_whole) {
    for (size_t f = 0; f < 2; f++) {
        char root[256];
        temp_dir_make(root, sizeof root);
        make_pair(root, &forms[f], false);
        make_adapter(temp_file(root, "plain"), temp_file(root, "adapter"), &every);
        for (int convert = 0; convert < 2; convert++) {
            const char *name = convert ? "wide" : "merged", *alone = convert ? "wide_alone" : "alone";
            char whole_dir[300];
            snprintf(whole_dir, sizeof whole_dir, "%s/%s", root, name);
            wrapped_merge(temp_file(root, "wrapped"), temp_file(root, "adapter"), whole_dir, convert);
            wrapped_merge(temp_file(root, "plain"), temp_file(root, "adapter"), temp_file(root, alone), convert);
            check_others(whole_dir, 21 + COUNT_OF(others));
            check_wrapped_config(whole_dir, convert ? "float32" : "bfloat16");
            if (f == 0) check_dtypes(whole_dir, convert ? "F32" : "BF16", "F32");
            Model *whole = wrapped_load(whole_dir), *part = wrapped_load(temp_file(root, alone));
            check_same(whole, part);
            model_free(whole);
            model_free(part);
        }
        temp_dir_remove(root);
    }
}

/* ---- adapters ---- */

static void check_adapter_names(const char *dir, const char *prefix) {
    WeightFile *set;
    check_ok(weight_file_open(temp_file(dir, "adapter_model.safetensors"), &set));
    for (size_t i = 0; i < set->n; i++)
        if (!text_starts_with(set->tensors[i].name, prefix)) fail_msg("'%s' does not begin with '%s'", set->tensors[i].name, prefix);
    weight_file_close(set);
}

TEST(adapters_are_read_by_any_names_and_written_by_the_checkpoints) {
    static const char *const prefixes[] = {"base_model.model.language_model.model.layers.", "base_model.model.model.language_model.layers.",
                                           "base_model.model.model.layers."};
    static const char *const rank_keys[] = {"model.layers.1.mlp.up_proj"}; /* a path, which other names change */
    static const int64_t ranks[] = {3};
    LoraConfig config = every;
    config.n_rank_pattern = 1;
    config.rank_keys = (const char **)(uintptr_t)rank_keys;
    config.rank_values = (int64_t *)(uintptr_t)ranks;
    char root[256], bases[3][300];
    temp_dir_make(root, sizeof root);
    make_pair(root, &forms[0], false);
    snprintf(bases[0], sizeof bases[0], "%s/wrapped", root);
    snprintf(bases[2], sizeof bases[2], "%s/plain", root);
    snprintf(bases[1], sizeof bases[1], "%s/new", root);
    check_ok(dir_make(bases[1]));
    write_wrapped_tensors(&forms[1], bases[2], bases[1], false);
    write_wrapped_config(bases[1], "mistral3", mistral_text, "");
    make_adapter(bases[2], temp_file(root, "made-2"), &config);
    for (int from = 2; from >= 0; from--) {
        Model *first = wrapped_load(bases[2]);
        check_ok(adapter_load(first, temp_file(root, "made-2"), false));
        for (int to = 0; to < 3; to++) {
            char made[300], read[300];
            snprintf(read, sizeof read, "%s/made-%d", root, from);
            snprintf(made, sizeof made, "%s/made-%d", root, to);
            Model *model = wrapped_load(bases[to]);
            check_ok(adapter_load(model, read, to == 1));
            check_same(first, model);
            check_ok(adapter_save(model, made, "base"));
            check_adapter_names(made, prefixes[to]);
            model_free(model);
        }
        model_free(first);
    }
    json_t *json;
    check_ok(json_read_file(temp_file(root, "made-0/adapter_config.json"), &json));
    assert_string_equal(json_string_value(json_object_get(json, "target_modules")),
                        "(?:.*\\.)?language_model\\.(?:.*\\.)?(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "rank_pattern"), "layers.1.mlp.up_proj")), 3);
    json_decref(json);
    temp_dir_remove(root);
}

/* Fully trained modules have the names of today's classes, by which PEFT finds them; "norm" would also match the tower's. */
TEST(whole_modules_are_named_as_peft_looks_for_them) {
    char root[256];
    temp_dir_make(root, sizeof root);
    make_pair(root, &forms[0], false);
    LoraConfig config = every;
    config.n_saved = 2;
    config.saved = (const char *[]){"lm_head", "norm"};
    make_adapter(temp_file(root, "wrapped"), temp_file(root, "adapter"), &config);
    json_t *json;
    check_ok(json_read_file(temp_file(root, "adapter/adapter_config.json"), &json));
    const json_t *saved = json_object_get(json, "modules_to_save");
    assert_int_equal(json_array_size(saved), 2);
    assert_string_equal(json_string_value(json_array_get(saved, 0)), "lm_head");
    assert_string_equal(json_string_value(json_array_get(saved, 1)), "model.language_model.norm");
    json_decref(json);
    WeightFile *set;
    check_ok(weight_file_open(temp_file(root, "adapter/adapter_model.safetensors"), &set));
    assert_non_null(weight_file_find(set, "base_model.model.lm_head.weight"));
    assert_non_null(weight_file_find(set, "base_model.model.model.language_model.norm.weight"));
    assert_non_null(weight_file_find(set, "base_model.model.language_model.model.layers.1.mlp.up_proj.lora_B.weight"));
    weight_file_close(set);
    Model *first = wrapped_load(temp_file(root, "wrapped")), *again = wrapped_load(temp_file(root, "wrapped"));
    check_ok(adapter_load(first, temp_file(root, "adapter"), false));
    check_ok(adapter_save(first, temp_file(root, "second"), "base"));
    check_ok(adapter_load(again, temp_file(root, "second"), false));
    check_same(first, again);
    assert_memory_equal(first->head->elements, again->head->elements, tensor_bytes(first->head));
    assert_string_equal(again->head->name, "language_model.lm_head.weight");
    model_free(first);
    model_free(again);
    temp_dir_remove(root);
}

/* As PEFT: a pattern has to match whole paths, by the names of one class or the other. */
TEST(targets_are_written_for_either_class) {
    static const struct {
        const char *target;
        bool regex;
        int n; /* of 14; 0: refused */
    } cases[] = {
        {"model\\.language_model\\..*\\.(q_proj|v_proj)", true, 4},
        {".*language_model.*\\.mlp\\..*", true, 6},
        {"language_model\\.model\\.layers\\.[\\d]+\\.(mlp|cross_attn|self_attn)\\.(up|down|gate|q|k|v|o)_proj", true, 14},
        {"model\\.layers\\.1\\..*", true, 7},
        {"(?:.*?(?:language|text).*?(?:self_attn|attn|mlp).*?(?:q_proj|k_proj).*?)|(?:\\bmodel\\.layers\\.\\d{1,}\\.(?:mlp)\\.(?:(?:up_proj)))", true,
         4},
        {"language_model", true, 0},
        {"vision_tower.*", true, 0},
        {"model.language_model.layers.0.self_attn.q_proj", false, 1},
        {"language_model.model.layers.0.self_attn.q_proj", false, 1},
        {"model.layers.0.self_attn.q_proj", false, 1},
        {"q_proj", false, 2},
        {"visual", false, 0},
    };
    char root[256];
    temp_dir_make(root, sizeof root);
    make_pair(root, &forms[0], false);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        LoraConfig config = every;
        config.n_targets = cases[i].regex ? 0 : 1;
        config.targets = (const char *[]){cases[i].target};
        config.target_regex = cases[i].regex ? cases[i].target : NULL;
        Model *model = wrapped_load(temp_file(root, "wrapped"));
        check_status(model_attach_lora(model, &config, 1), cases[i].n ? ST_OK : ST_CONFIG);
        int n = 0;
        for (size_t l = 0; l < model->n_linears; l++) n += model->linears[l]->lora != NULL;
        if (n != cases[i].n) fail_msg("%s: %d layers, not %d", cases[i].target, n, cases[i].n);
        assert_string_equal(model->linears[0]->path, "language_model.model.layers.0.self_attn.q_proj");
        if (n) {
            check_ok(adapter_save(model, temp_file(root, "adapter"), "base"));
            Model *again = wrapped_load(temp_file(root, "wrapped"));
            check_ok(adapter_load(again, temp_file(root, "adapter"), false));
            check_same(model, again);
            model_free(again);
        } else {
            check_text("matches nothing");
        }
        model_free(model);
    }
    temp_dir_remove(root);
}

/* PEFT gives layers of a tower branches too where they have the same names. They change nothing while their B is zero. */
TEST(branches_on_a_tower_are_left_out_or_refused) {
    char root[256];
    temp_dir_make(root, sizeof root);
    make_pair(root, &forms[0], false);
    LoraConfig config = every;
    config.n_targets = 1;
    config.targets = (const char *[]){"q_proj"};
    make_adapter(temp_file(root, "wrapped"), temp_file(root, "adapter"), &config);
    for (int idle = 1; idle >= 0; idle--) {
        float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {0, 0, 0, idle ? 0 : 0.5f, 0, 0};
        WeightFile *set;
        check_ok(weight_file_open(temp_file(root, "adapter/adapter_model.safetensors"), &set));
        StoredTensor all[8] = {0};
        memcpy(all, set->tensors, set->n * sizeof *all);
        size_t n = set->n;
        if (idle) n += 2;
        all[n - 2] = (StoredTensor){.name = "base_model.model.vision_tower.layers.0.q_proj.lora_A.weight",
                                    .dtype_text = "F32",
                                    .n_dims = 2,
                                    .shape = {2, 3},
                                    .data = (uint8_t *)a,
                                    .bytes = sizeof a};
        all[n - 1] = all[n - 2];
        all[n - 1].name = "base_model.model.vision_tower.layers.0.q_proj.lora_B.weight";
        all[n - 1].data = (uint8_t *)b;
        all[n - 1].shape[0] = 3;
        all[n - 1].shape[1] = 2;
        write_set(temp_file(root, "adapter/new.safetensors"), all, n);
        weight_file_close(set);
        assert_int_equal(rename(temp_file(root, "adapter/new.safetensors"), temp_file(root, "adapter/adapter_model.safetensors")), 0);
        Model *model = wrapped_load(temp_file(root, "wrapped"));
        log_set_record(count_warning, NULL);
        warnings = 0;
        check_status(adapter_load(model, temp_file(root, "adapter"), false), idle ? ST_OK : ST_INPUT);
        log_set_record(NULL, NULL);
        assert_int_equal(warnings, idle);
        if (idle)
            check_contains(last_warning, "2 tensors in ");
        else
            check_text("'base_model.model.vision_tower.layers.0.q_proj.lora_A.weight'");
        model_free(model);
    }
    temp_dir_remove(root);
}

/* ---- config.json ---- */

TEST(wrapped_configs_are_read_or_refused_by_name) {
    static const struct {
        const char *json, *fault; /* NULL: it is read */
        bool tied;
        int warnings;
    } cases[] = {
#define WRAP(type, inner, outer) "{\"model_type\": \"" type "\", \"text_config\": {" inner TEXT "}" outer "}"
        {"{\"model_type\": \"mistral3\"}", "'config.json' lacks 'text_config'", false, 0},
        {"{\"model_type\": \"mistral3\", \"text_config\": 3}", "wrong type of 'text_config'", false, 0},
        {WRAP("paligemma", "\"model_type\": \"llama\", ", ""), "model_type 'paligemma' in 'config.json' is not supported", false, 0},
        {WRAP("llava", "\"model_type\": \"opt\", ", ""), "model_type 'opt' in 'config.json: text_config'", false, 0},
        {WRAP("llava", "", ", \"quantization_config\": {\"bits\": 4}"), "sets 'quantization_config'", false, 0},
        {WRAP("llava", "\"clip_qkv\": 8, ", ""), "'config.json: text_config' sets 'clip_qkv'", false, 0},
        {"{\"model_type\": \"llava\", \"text_config\": {}}", "'config.json: text_config' lacks 'vocab_size'", false, 0},
        {WRAP("llava", "", ", \"architectures\": [\"LlavaForImages\"]"), "'LlavaForImages'", false, 0},
        {WRAP("llava", "\"rope_theta\": {\"__float__\": \"Infinity\"}, ", ""), "wrong 'rope_theta' in 'config.json: text_config': expected a finite",
         false, 0},
        {WRAP("llava", "", ""), NULL, false, 0},
        {WRAP("llava", "\"tie_word_embeddings\": true, ", ""), NULL, true, 0},
        {WRAP("llava", "", ", \"tie_word_embeddings\": true"), NULL, true, 0},
        {WRAP("llava", "\"tie_word_embeddings\": false, ", ", \"tie_word_embeddings\": true"), NULL, true, 0},
        {WRAP("llava", "\"tie_word_embeddings\": false, ", ", \"tie_word_embeddings\": false"), NULL, false, 0},
        {WRAP("llava", "", ", \"image_seq_length\": 4, \"vision_feature_layer\": -2, \"projector_hidden_act\": \"gelu\""), NULL, false, 0},
        {WRAP("llava", "", ", \"rope_theta\": 7, \"hidden_size\": 24"), NULL, false, 1},
        {"{\"model_type\": \"llama\", \"text_config\": null, " TEXT "}", NULL, false, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Arena *arena = arena_new(0);
        json_t *json;
        ModelConfig config;
        check_ok(json_read_text(cases[i].json, strlen(cases[i].json), "config.json", &json));
        log_set_record(count_warning, NULL);
        warnings = 0;
        check_status(model_config_parse(json, "config.json", arena, &config), cases[i].fault ? ST_INPUT : ST_OK);
        log_set_record(NULL, NULL);
        if (cases[i].fault) {
            check_text(cases[i].fault);
        } else {
            assert_int_equal(config.tie_word_embeddings, cases[i].tied);
            assert_int_equal(config.hidden_size, 24);
            if (warnings != cases[i].warnings) fail_msg("%d warnings of %s: %s", warnings, cases[i].json, last_warning);
        }
        json_decref(json);
        arena_free(arena);
    }
    check_contains(last_warning, "1 key outside text_config in 'config.json' ignored: rope_theta");
}

/* Names that one of the others would be taken for are no other part. */
TEST(weights_without_their_text_part_are_named) {
    char root[256];
    temp_dir_make(root, sizeof root);
    make_pair(root, &forms[0], false);
    char dir[300];
    Model *model;
    snprintf(dir, sizeof dir, "%s/wrapped", root);
    write_wrapped_tensors(&(Form){"mistral3", "text.model.", "text.lm_head"}, temp_file(root, "plain"), dir, false);
    check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text("tensor 'language_model.model.embed_tokens.weight' is missing in");
    check_contains(status_hint_text(), "a mistral as the text part of a mistral3: its tensors may begin with model.language_model., language_model.");
    write_wrapped_tensors(&(Form){"mistral3", "model.language_model.", "model.lm_head"}, temp_file(root, "plain"), dir, false);
    check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text("tensor 'lm_head.weight' is missing");
    check_text("shape (37,24) is expected");
    /* Two text parts */
    WeightFile *set;
    write_wrapped_tensors(&forms[1], temp_file(root, "plain"), dir, false);
    check_ok(weight_file_open(dir, &set));
    StoredTensor *all = arena_alloc(set->arena, (set->n + 1) * sizeof *all);
    memcpy(all, set->tensors, set->n * sizeof *all);
    all[set->n] = *weight_file_find(set, "model.language_model.norm.weight");
    all[set->n].name = "model.layers.1.input_layernorm.weight";
    write_set(temp_file(root, "two.safetensors"), all, set->n + 1);
    weight_file_close(set);
    assert_int_equal(rename(temp_file(root, "two.safetensors"), temp_file(dir, "model.safetensors")), 0);
    check_status(model_load(dir, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
    check_text("tensor 'model.layers.1.input_layernorm.weight'");
    check_text("has no place");
    temp_dir_remove(root);
}

/* An untied head is written into both levels of the config, and the class for scores has the name of the whole model. */
TEST(configs_are_written_as_they_came) {
    char root[256];
    temp_dir_make(root, sizeof root);
    check_ok(dir_make(temp_file(root, "out")));
    write_wrapped_config(root, "mistral3", "\"model_type\": \"mistral\", \"limit\": {\"__float__\": \"-Infinity\"}, \"tie_word_embeddings\": true",
                         ", \"tie_word_embeddings\": true");
    check_ok(model_copy_config(root, temp_file(root, "out"), DT_F16, true, "Mistral"));
    json_t *json = read_config(temp_file(root, "out")), *text = json_object_get(json, "text_config");
    assert_true(json_is_false(json_object_get(json, "tie_word_embeddings")) && json_is_false(json_object_get(text, "tie_word_embeddings")));
    assert_string_equal(json_string_value(json_array_get(json_object_get(json, "architectures"), 0)), "AnyForSequenceClassification");
    assert_string_equal(json_string_value(json_object_get(json, "dtype")), "float16");
    assert_string_equal(json_string_value(json_object_get(json_object_get(text, "limit"), "__float__")), "-Infinity");
    assert_null(json_bare(json_object_get(text, "limit")));
    assert_string_equal(json_bare(json_array_get(json_object_get(json_object_get(json, "vision_config"), "limits"), 2)), "-Infinity");
    json_decref(json);
    temp_dir_remove(root);
}

/* A tensor that is stored in one instead of in parts, or the other way round in its rows and columns. */
TEST(tensors_of_another_form_are_named_with_what_is_there) {
    char root[256], plain[300];
    temp_dir_make(root, sizeof root);
    snprintf(plain, sizeof plain, "%s/plain", root);
    for (int turned = 0; turned < 2; turned++) {
        WeightFile *set;
        Model *model;
        check_ok(model_write_random(plain, plain_config, DT_BF16, 5, 0.3));
        check_ok(weight_file_open(plain, &set));
        StoredTensor *up = (StoredTensor *)(uintptr_t)weight_file_find(set, "model.layers.0.mlp.up_proj.weight");
        if (turned) {
            up->shape[0] = 24;
            up->shape[1] = 20;
        } else {
            up->name = "model.layers.0.mlp.gate_up_proj.weight";
        }
        write_set(temp_file(root, "other.safetensors"), set->tensors, set->n);
        weight_file_close(set);
        assert_int_equal(rename(temp_file(root, "other.safetensors"), temp_file(plain, "model.safetensors")), 0);
        check_status(model_load(plain, &(ModelOptions){.device = device_cpu(), .compute = DT_F32}, &model), ST_INPUT);
        check_text(turned ? "'model.layers.0.mlp.up_proj.weight'" : "tensor 'model.layers.0.mlp.up_proj.weight' is missing in");
        check_text(turned ? "shape (24,20), expected (20,24)" : "shape (20,24) is expected");
        check_contains(status_hint_text(), turned ? "rows and columns are exchanged"
                                                  : "its tensors of 'model.layers.0.mlp': gate_proj.weight, gate_up_proj.weight, down_proj.weight");
    }
    temp_dir_remove(root);
}

/* ---- against transformers ---- */

TEST(published_forms_equal_the_reference) {
    char dir[512];
    if (!shared_path("golden/families/ministral3-wrapped", dir, sizeof dir)) skip();
    if (!config_knows_family("ministral3")) {
        print_message("skipped: ministral3 is not one of the families\n");
        skip();
    }
    WeightFile *expected;
    Model *model = wrapped_load(dir);
    check_ok(weight_file_open(temp_file(dir, "expected.safetensors"), &expected));
    for (int s = 0; s < 2; s++) {
        int32_t ids[256], rows[256];
        const StoredTensor *stored = weight_file_find(expected, s ? "seq1.input_ids" : "seq0.input_ids"),
                           *want = weight_file_find(expected, s ? "seq1.logits" : "seq0.logits");
        for (int64_t i = 0; i < stored->count; i++) {
            ids[i] = (int32_t)stored_get(stored, i);
            rows[i] = (int32_t)i;
        }
        Segment segment = {.end = stored->count, .parent = -1};
        Tape *tape = tape_new(device_cpu(), DT_F32, 0);
        ModelBatch batch = {.ids = ids, .layout = {.n_tokens = stored->count, .n_segments = 1, .segments = &segment}};
        Tensor *wanted = tensor_view(tape_arena(tape), device_cpu(), DT_I32, 1, &stored->count, rows);
        Tensor *logits = model_logits(model, tape, model_forward(model, tape, &batch), wanted).logits;
        check_ok(tape_status(tape));
        for (int64_t i = 0; i < want->count; i++) check_close(tensor_get(logits, i), stored_get(want, i), 5e-5);
        tape_free(tape);
    }
    weight_file_close(expected);
    model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_part_computes_what_it_does_alone),
        cmocka_unit_test(prediction_layers_are_carried),
        cmocka_unit_test(full_training_saves_the_whole),
        cmocka_unit_test(a_merge_keeps_the_whole),
        cmocka_unit_test(adapters_are_read_by_any_names_and_written_by_the_checkpoints),
        cmocka_unit_test(whole_modules_are_named_as_peft_looks_for_them),
        cmocka_unit_test(targets_are_written_for_either_class),
        cmocka_unit_test(branches_on_a_tower_are_left_out_or_refused),
        cmocka_unit_test(wrapped_configs_are_read_or_refused_by_name),
        cmocka_unit_test(weights_without_their_text_part_are_named),
        cmocka_unit_test(configs_are_written_as_they_came),
        cmocka_unit_test(tensors_of_another_form_are_named_with_what_is_there),
        cmocka_unit_test(published_forms_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
