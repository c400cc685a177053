/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of both generations of transformers (4: rope_theta, rope_scaling, torch_dtype; 5: rope_parameters, dtype): checked access to its keys,
 * and the parts that families share. */
#include "lib/base/log.h"
#include "lib/model/family.h"
#include "lib/model/gguf/gguf_model.h"
#include "lib/model/not_a_model.h"
#include "lib/model/parts.h"
#include "lib/model/quantized/quantized.h"
#include "lib/model/text_part.h"

#include <math.h>
#include <string.h>

/* Keys without an effect on the decoder's result. */
static const char *const harmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_length",
    "max_window_layers",
    "min_length",
    "model_type",
    "name_or_path",
    "num_labels",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};
/* Features of other models under keys that appear in configs of these families: refused unless off. */
static const char *const refused[] = {
    "quantization_config",
    "compression_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "rope_interleaved",
    "rope_interleave",
    "use_qk_norm",
    "qk_layernorm",
    "clip_qkv",
    "alibi",
    "query_pre_attn_scalar",
    "no_rope_layers",
    "no_rope_layer_interval",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
    "is_encoder_decoder",
    "add_cross_attention",
    "pruned_heads",
    "layer_replication",
    "use_mrope",
};

const json_t *config_value(ConfigReader *reader, const char *key) {
    if (reader->n_seen < CONFIG_MAX_KEYS) reader->seen[reader->n_seen++] = key;
    const json_t *value = json_object_get(reader->json, key);
    return value && !json_is_null(value) ? value : NULL;
}

int64_t config_size(ConfigReader *reader, const char *key, int64_t fallback) {
    const json_t *value = config_value(reader, key);
    if (!value && fallback == 0) CONFIG_FAIL(reader, "'%s' lacks '%s'", reader->path, key);
    if (!value || reader->status != ST_OK) return fallback;
    int64_t size = json_is_integer(value) ? json_integer_value(value) : -1;
    if (size >= 1 && size <= INT32_MAX) return size;
    CONFIG_FAIL(reader, "wrong '%s' in '%s': expected a whole number from 1 to %d", key, reader->path, INT32_MAX);
    return fallback;
}

double config_real(ConfigReader *reader, const char *key, double fallback) {
    config_value(reader, key);
    if (reader->status == ST_OK) reader->status = json_get_double(reader->json, reader->path, key, &fallback);
    return fallback;
}

double config_positive(ConfigReader *reader, const char *key, double fallback) {
    double value = config_real(reader, key, fallback);
    if (value > 0 && value < HUGE_VAL) return value;
    CONFIG_FAIL(reader, "wrong '%s' in '%s': expected a number above 0, got %g", key, reader->path, value);
    return fallback;
}

double config_cap(ConfigReader *reader, const char *key, double fallback) {
    double cap = json_is_null(json_object_get(reader->json, key)) ? 0 : config_real(reader, key, fallback);
    config_ignore(reader, key);
    if (!(cap >= 0 && cap < HUGE_VAL)) CONFIG_FAIL(reader, "wrong '%s' in '%s': expected a number above 0, got %g", key, reader->path, cap);
    return cap;
}

bool config_flag(ConfigReader *reader, const char *key, bool fallback) {
    config_value(reader, key);
    if (reader->status == ST_OK) reader->status = json_get_bool(reader->json, reader->path, key, &fallback);
    return fallback;
}

const char *config_text(ConfigReader *reader, const char *key, const char *fallback) {
    config_value(reader, key);
    if (reader->status == ST_OK) reader->status = json_get_string(reader->json, reader->path, key, &fallback);
    return fallback;
}

Activation config_activation(ConfigReader *reader, const char *key, const char *fallback) {
    static const struct {
        const char *name;
        Activation kind;
    } known[] = {
        {"silu", ACT_SILU},           {"swish", ACT_SILU},
        {"gelu", ACT_GELU_ERF},       {"gelu_python", ACT_GELU_ERF},
        {"gelu_new", ACT_GELU_TANH},  {"gelu_pytorch_tanh", ACT_GELU_TANH},
        {"gelu_fast", ACT_GELU_TANH}, {"relu", ACT_RELU},
        {"sigmoid", ACT_SIGMOID},
    };
    const char *name = config_text(reader, key, fallback);
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, name) == 0) return known[i].kind;
    CONFIG_FAIL(reader, "'%s' asks for %s '%s', which is not supported", reader->path, key, name);
    return ACT_SILU;
}

void config_refuse(ConfigReader *reader, const char *key) {
    const json_t *value = config_value(reader, key);
    if (strcmp(key, "quantization_config") == 0 && quantized_is_read(value)) return;
    bool off = !value || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
               (json_is_object(value) && json_object_size(value) == 0) || (json_is_array(value) && json_array_size(value) == 0);
    bool first = !off && reader->status == ST_OK;
    if (!off) CONFIG_FAIL(reader, "'%s' sets '%s', which is not supported for model_type '%s'", reader->path, key, reader->config->model_type);
    if (first && strcmp(key, "quantization_config") == 0) quantized_hint(ST_INPUT, value);
}

void config_ignore(ConfigReader *reader, const char *key) { config_value(reader, key); }

/* ---- parts that families share ---- */

static int64_t *new_windows(ConfigReader *reader) {
    int64_t n = reader->config->num_hidden_layers;
    if (reader->status != ST_OK) return NULL;
    if (n > 100000) {
        CONFIG_FAIL(reader, "'%s' has %lld layers", reader->path, (long long)n);
        return NULL;
    }
    int64_t *windows = arena_zero(reader->arena, (size_t)n * sizeof *windows);
    if (!windows) reader->status = ST_RESOURCE;
    return windows;
}

void config_read_decoder(ConfigReader *reader, const DecoderDefaults *usual) {
    ModelConfig *config = reader->config;
    config->vocab_size = config_size(reader, "vocab_size", usual->vocab_size);
    config->hidden_size = config_size(reader, "hidden_size", usual->hidden_size);
    config->intermediate_size = config_size(reader, "intermediate_size", usual->intermediate_size);
    config->num_hidden_layers = config_size(reader, "num_hidden_layers", usual->num_hidden_layers);
    config->num_attention_heads = config_size(reader, "num_attention_heads", usual->num_attention_heads);
    config->num_key_value_heads =
        config_size(reader, "num_key_value_heads", usual->num_key_value_heads ? usual->num_key_value_heads : config->num_attention_heads);
    config->head_dim = config_size(reader, "head_dim", usual->head_dim ? usual->head_dim : -1);
    config->max_position_embeddings = config_size(reader, "max_position_embeddings", usual->max_position_embeddings);
    config->norm = NORM_RMS;
    config->norm_eps = config_real(reader, "rms_norm_eps", usual->rms_norm_eps ? usual->rms_norm_eps : 1e-6);
    if (!usual->hidden_activation) config->activation = config_activation(reader, "hidden_act", "silu");
    if (usual->hidden_activation) config->activation = config_activation(reader, "hidden_activation", usual->hidden_activation);
    config->tie_word_embeddings = config_flag(reader, "tie_word_embeddings", usual->tie_word_embeddings);
    config->layer_window = new_windows(reader);
    config_read_rope(reader, usual);
    config_read_dropout(reader, 0);
}

void config_read_dropout(ConfigReader *reader, double fallback) {
    static const char *const pdrops[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"}, *const others[] = {"attention_dropout", "hidden_dropout"};
    double most = 0;
    for (size_t i = 0; i < COUNT_OF(pdrops); i++) most = fmax(most, config_real(reader, pdrops[i], fallback));
    for (size_t i = 0; i < COUNT_OF(others); i++) most = fmax(most, config_real(reader, others[i], 0));
    reader->config->dropout = most;
}

/* Whether the layer has a window, by its name in layer_types. */
static bool layer_slides(ConfigReader *reader, const json_t *types, int64_t layer) {
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    bool slides = type && strcmp(type, "sliding_attention") == 0, known = slides || (type && strcmp(type, "full_attention") == 0);
    if (known || reader->status != ST_OK) return slides;
    CONFIG_FAIL(reader, "layer_types[%lld] in '%s' is '%s', which is not supported", (long long)layer, reader->path, type ? type : "not a string");
    status_hint(ST_INPUT, "known: full_attention, sliding_attention");
    return false;
}

static void layer_types(ConfigReader *reader, LayerTest *slides, const void *given, bool *types) {
    const json_t *named = config_value(reader, "layer_types");
    int64_t n = reader->config->num_hidden_layers;
    if (reader->status != ST_OK) return;
    if (named && json_array_size(named) != (size_t)n) {
        CONFIG_FAIL(reader, "'%s' has %zu layer_types for %lld layers", reader->path, json_array_size(named), (long long)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) types[i] = named ? layer_slides(reader, named, i) : slides(i, given);
}

void config_slide(ConfigReader *reader, int64_t window, LayerTest *slides, const void *given) {
    ModelConfig *config = reader->config;
    bool *types = reader->status == ST_OK ? arena_zero(reader->arena, (size_t)config->num_hidden_layers * sizeof *types) : NULL;
    if (!types && reader->status == ST_OK) reader->status = ST_RESOURCE;
    layer_types(reader, slides, given, types);
    for (int64_t i = 0; reader->status == ST_OK && i < config->num_hidden_layers; i++) {
        config->layer_window[i] = window > 0 && types[i] ? window : 0;
        if (config->layer_rope) config->layer_rope[i] = types[i] ? LAYER_WINDOW_ROPE : LAYER_ROPE;
    }
}

static bool slides_from(int64_t layer, const void *from) { return layer >= *(const int64_t *)from; }

void config_set_windows(ConfigReader *reader, int64_t window, int64_t from) { config_slide(reader, window, slides_from, &from); }

int64_t config_window(ConfigReader *reader, int64_t fallback) {
    const json_t *value = json_object_get(reader->json, "sliding_window");
    config_ignore(reader, "sliding_window");
    return !value ? fallback : json_is_null(value) ? 0 : config_size(reader, "sliding_window", 0);
}

void config_read_windows(ConfigReader *reader) {
    bool use = config_flag(reader, "use_sliding_window", false);
    int64_t window = config_size(reader, "sliding_window", use && !json_object_get(reader->json, "sliding_window") ? 4096 : -1);
    int64_t from = json_is_integer(json_object_get(reader->json, "max_window_layers"))
                       ? json_integer_value(json_object_get(reader->json, "max_window_layers"))
                       : 28;
    config_set_windows(reader, use ? window : 0, from);
}

/* ---- the file ---- */

static bool text_in(const char *text, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], text) == 0) return true;
    return false;
}

bool config_key_is_harmless(const char *key) { return text_in(key, harmless, COUNT_OF(harmless)); }

static void warn_unknown_keys(const ConfigReader *reader) {
    Str names = {0};
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)reader->json, key, value) {
        if (json_is_null(value) || text_in(key, reader->seen, reader->n_seen) || text_in(key, harmless, COUNT_OF(harmless))) continue;
        str_printf(&names, "%s%s", n++ ? ", " : "", key);
    }
    if (n) log_message(LOG_WARNING, "%zu unknown key%s in '%s' ignored: %s", n, n == 1 ? "" : "s", reader->path, str_text(&names));
    str_release(&names);
}

static void check_sizes(ConfigReader *reader) {
    ModelConfig *c = reader->config;
    if (reader->status != ST_OK) return;
    if (c->head_dim <= 0) {
        c->head_dim = c->hidden_size / c->num_attention_heads;
        if (c->hidden_size % c->num_attention_heads != 0)
            CONFIG_FAIL(reader, "hidden size %lld in '%s' is no multiple of %lld heads", (long long)c->hidden_size, reader->path,
                        (long long)c->num_attention_heads);
    }
    if (reader->status != ST_OK) return; /* a head_dim of 0 must not be a divisor */
    if (c->num_attention_heads % c->num_key_value_heads != 0)
        CONFIG_FAIL(reader, "%lld heads in '%s' are no multiple of %lld key/value heads", (long long)c->num_attention_heads, reader->path,
                    (long long)c->num_key_value_heads);
    config_check_rope(reader, &c->rope);
    config_check_rope(reader, &c->window_rope);
    if (c->num_attention_heads > INT32_MAX / c->head_dim)
        CONFIG_FAIL(reader, "%lld heads of %lld in '%s'", (long long)c->num_attention_heads, (long long)c->head_dim, reader->path);
    if (!(c->initializer_range >= 0 && c->initializer_range < 1e3))
        CONFIG_FAIL(reader, "initializer_range %g in '%s'", c->initializer_range, reader->path);
    if (!(c->norm_eps >= 0)) CONFIG_FAIL(reader, "norm epsilon %g in '%s'", c->norm_eps, reader->path);
    if (!c->layer_window) c->layer_window = new_windows(reader);
}

static Status add_eos(ModelConfig *config, const json_t *json, const char *path) {
    const json_t *eos = json_object_get(json, "eos_token_id");
    size_t n = json_is_array(eos) ? json_array_size(eos) : eos && !json_is_null(eos);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(item)) return status_fail(ST_INPUT, "wrong type of 'eos_token_id' in '%s': expected an integer or a list of them", path);
        int64_t id = json_integer_value(item);
        bool known = false;
        for (size_t k = 0; k < config->n_eos; k++) known |= config->eos_token_id[k] == id;
        if (known || id < 0) continue;
        if (id >= config->vocab_size) {
            log_message(LOG_WARNING, "'eos_token_id' %lld in '%s' is outside of the vocabulary of %lld: no answer can end with it", (long long)id,
                        path, (long long)config->vocab_size);
            continue;
        }
        if (config->n_eos == COUNT_OF(config->eos_token_id))
            return status_fail(ST_INPUT, "more than %zu end-of-sequence tokens in '%s'", config->n_eos, path);
        config->eos_token_id[config->n_eos++] = id;
    }
    return ST_OK;
}

static void read_pad(ConfigReader *reader) {
    const json_t *pad = json_object_get(reader->json, "pad_token_id");
    reader->config->has_pad = json_is_integer(pad) && json_integer_value(pad) >= 0;
    reader->config->pad_token_id = reader->config->has_pad ? json_integer_value(pad) : 0;
}

static Status read_dtype(ConfigReader *reader) {
    const char *name = config_text(reader, "dtype", config_text(reader, "torch_dtype", "float32"));
    TRY(reader->status);
    if (text_starts_with(name, "torch.")) name += strlen("torch.");
    if (strcmp(name, "bfloat16") == 0)
        reader->config->stored_dtype = DT_BF16;
    else if (strcmp(name, "float16") == 0)
        reader->config->stored_dtype = DT_F16;
    else
        reader->config->stored_dtype = DT_F32;
    return ST_OK;
}

/* One label means a score. Without num_labels a classifier has two. */
static Status check_labels(const ConfigReader *reader, const char *name) {
    const json_t *number = json_object_get(reader->json, "num_labels"), *names = json_object_get(reader->json, "id2label");
    long long n = json_is_integer(number) ? (long long)json_integer_value(number) : json_is_object(names) ? (long long)json_object_size(names) : 2;
    if (n == 1) return ST_OK;
    status_fail(ST_INPUT, "'%s' in '%s' has %lld labels: a reward model has one", name, reader->path, n);
    return status_hint(ST_INPUT, "num_labels: 1, or one entry in id2label");
}

static Status read_architecture(ConfigReader *reader) {
    read_pad(reader);
    const char *name = json_string_value(json_array_get(json_object_get(reader->json, "architectures"), 0));
    if (!name) return ST_OK;
    reader->config->scores = text_ends_with(name, "ForSequenceClassification");
    if (reader->config->scores)
        TRY(check_labels(reader, name));
    else if (!text_ends_with(name, "ForCausalLM") && !text_ends_with(name, "LMHeadModel") && !text_ends_with(name, "Model"))
        return status_fail(ST_INPUT, "architecture '%s' in '%s' is not a causal language model", name, reader->path);
    reader->config->architecture = arena_strdup(reader->arena, name);
    return reader->config->architecture ? ST_OK : ST_RESOURCE;
}

static const ModelFamily *const families[] = {
#define FAMILY(name) &family_##name,
#include "lib/model/models.def"
#undef FAMILY
};

static const ModelFamily *find_family(const char *model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (strcmp(families[i]->model_type, model_type) == 0) return families[i];
    return NULL;
}

bool config_knows_family(const char *model_type) { return find_family(model_type) != NULL; }

static Status unknown_family(const char *model_type, const char *path) {
    Str known = {0};
    for (size_t i = 0; i < COUNT_OF(families); i++) str_printf(&known, "%s%s", i ? ", " : "", families[i]->model_type);
    status_fail(ST_INPUT, "model_type '%s' in '%s' is not supported", model_type, path);
    status_hint(ST_INPUT, "supported: %s", str_text(&known));
    str_release(&known);
    return ST_INPUT;
}

/* Reports the keys that the family did not read. */
static void refuse_unread(ConfigReader *reader) {
    size_t n_seen = reader->n_seen;
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (!text_in(refused[i], reader->seen, n_seen)) config_refuse(reader, refused[i]);
}

/* Reads a plain language model, or the text part of a wrapped one. */
static Status parse_text(const json_t *json, const char *path, Arena *arena, ModelConfig *config) {
    *config = (ModelConfig){.architecture = "", .embed_scale = 1, .residual_scale = 1, .logits_scaling = 1};
    ConfigReader reader = {.json = json, .path = path, .arena = arena, .config = config};
    const char *model_type = config_text(&reader, "model_type", NULL);
    TRY(reader.status);
    if (!model_type) return status_fail(ST_INPUT, "'%s' lacks 'model_type'", path);
    const ModelFamily *family = find_family(model_type);
    if (!family) return unknown_family(model_type, path);
    config->model_type = family->model_type;
    config->family = family;
    family->read_config(&reader, config);
    refuse_unread(&reader);
    config->initializer_range = config_real(&reader, "initializer_range", 0.02);
    check_sizes(&reader);
    TRY(reader.status);
    TRY(read_dtype(&reader));
    TRY(read_architecture(&reader));
    TRY(add_eos(config, json, path));
    warn_unknown_keys(&reader);
    return ST_OK;
}

Status model_config_parse(const json_t *json, const char *path, Arena *arena, ModelConfig *config) {
    TextConfig text;
    if (!json_is_object(json)) return status_fail(ST_INPUT, "'%s' is not a JSON object", path);
    TRY(text_config_find(json, path, arena, &text));
    Status status = parse_text(text.json, text.path, arena, config);
    config->wrapper = text.wrapper;
    config->text_names = text.names;
    config->prediction_layers = json_integer_value(json_object_get(text.json, "num_nextn_predict_layers"));
    json_decref(text.json);
    return status == ST_OK && text.wrapper ? add_eos(config, json, path) : status;
}

static Status read_generation_config(const char *dir, Arena *arena, ModelConfig *config) {
    const char *path = path_join(arena, dir, "generation_config.json");
    if (!path) return ST_RESOURCE;
    bool there;
    TRY(file_find(path, &there));
    if (!there) return ST_OK;
    json_t *json;
    TRY(json_read_config(path, false, &json));
    Status status = add_eos(config, json, path);
    json_decref(json);
    return status;
}

/* Hints for paths that are no model. */
static Status no_config(const char *dir, Arena *arena) {
    const char *adapter = path_join(arena, dir, "adapter_config.json"), *trained = path_join(arena, dir, "model"),
               *made = path_join(arena, dir, "adapter");
    if (!adapter || !trained || !made) return ST_RESOURCE;
    status_fail(ST_INPUT, "'%s' is no model: it lacks config.json", dir);
    if (file_exists(adapter)) return status_hint(ST_INPUT, "it is an adapter: name the model that it was trained on, and this one as the adapter");
    if (dir_exists(trained)) return status_hint(ST_INPUT, "it is a run: its model is '%s'", trained);
    if (dir_exists(made)) return status_hint(ST_INPUT, "it is a run: its adapter is '%s'", made);
    return hint_other_files(ST_INPUT, dir);
}

static Status read_gguf_config(const char *path, Arena *arena, ModelConfig *config) {
    json_t *json;
    TRY(gguf_config_json(path, &json));
    Status status = model_config_parse(json, path, arena, config);
    json_decref(json);
    return status;
}

Status model_config_read(const char *dir, Arena *arena, ModelConfig *config) {
    if (gguf_is(dir)) return read_gguf_config(dir, arena, config);
    if (file_exists(dir) && !dir_exists(dir))
        return status_hint(status_fail(ST_INPUT, "'%s' is a file, and a model is a directory or a .gguf file", dir),
                           "name the directory that has its config.json and model.safetensors");
    if (!dir_exists(dir)) return hint_no_directory(status_fail(ST_INPUT, "no model directory '%s'", dir), dir, A_MODEL);
    const char *path = path_join(arena, dir, "config.json");
    if (!path) return ST_RESOURCE;
    bool there;
    TRY(file_find(path, &there));
    if (!there) return no_config(dir, arena);
    json_t *json;
    TRY(json_read_config(path, false, &json));
    Status status = model_config_parse(json, path, arena, config);
    json_decref(json);
    return status == ST_OK ? read_generation_config(dir, arena, config) : status;
}

ContextCount context_count(const ModelConfig *config) {
    return (ContextCount){.positions = config->learned_positions ? 0 : config->max_position_embeddings};
}

void context_add(ContextCount *count, int64_t tokens) {
    if (count->positions <= 0 || tokens <= count->positions) return;
    count->n++;
    count->longest = MAX(count->longest, tokens);
}

bool context_describe(const ContextCount *count, const char *one, const char *many, Str *text) {
    if (count->n == 0) return false;
    str_printf(text, "%lld %s longer than the model's %lld position%s (max_position_embeddings); the longest has %lld token%s", (long long)count->n,
               count->n == 1 ? one : many, (long long)count->positions, plural(count->positions), (long long)count->longest, plural(count->longest));
    return true;
}
