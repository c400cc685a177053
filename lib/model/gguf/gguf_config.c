/* SPDX-License-Identifier: Apache-2.0 */
/* From the metadata of a GGUF file to config.json. */
#include "lib/model/gguf/gguf_model.h"
#include "lib/text/gguf_tokenizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

static const GgufArch archs[] = {
#define ARCH(name, model_type, class_name, permuted, norms, biased, experts, gating) \
    {name, model_type, class_name, permuted, norms, biased, experts, gating},
#include "lib/model/gguf/gguf_archs.def"
#undef ARCH
};

/* expert_gating_func. Converters leave it out if config.json does not say it; only routers by sigmoids (2) have a bias for the choice. */
static Status read_gating(Gguf *gguf, const char *name, int64_t *gating) {
    const char *key = arena_printf(gguf->arena, "%s.expert_gating_func", name);
    *gating = 0;
    if (!key) return ST_RESOURCE;
    for (size_t i = 0; i < gguf->n_tensors; i++)
        if (text_ends_with(gguf->tensors[i].name, ".exp_probs_b.bias")) *gating = 2;
    return gguf_int(gguf, key, gating);
}

Status gguf_arch_find(Gguf *gguf, const GgufArch **arch) {
    const char *name = NULL, *kind = "model";
    TRY(gguf_text(gguf, "general.architecture", &name));
    TRY(gguf_text(gguf, "general.type", &kind));
    if (!name) return status_fail(ST_INPUT, "'%s' lacks 'general.architecture'", gguf->files[0].path);
    if (strcmp(kind, "model") != 0) return status_fail(ST_INPUT, "'%s' is no model: its 'general.type' is '%s'", gguf->files[0].path, kind);
    int64_t experts = 0, gating;
    const char *key = arena_printf(gguf->arena, "%s.expert_count", name);
    if (!key) return ST_RESOURCE;
    TRY(gguf_int(gguf, key, &experts));
    TRY(read_gating(gguf, name, &gating));
    for (size_t i = 0; i < COUNT_OF(archs); i++) {
        if (strcmp(archs[i].name, name) != 0 || archs[i].experts != (experts > 0) || (archs[i].gating && archs[i].gating != gating)) continue;
        *arch = &archs[i];
        return ST_OK;
    }
    Str known = {0};
    for (size_t i = 0; i < COUNT_OF(archs); i++)
        if (archs[i].gating == 0) str_printf(&known, "%s%s%s", i ? ", " : "", archs[i].name, archs[i].experts ? " with experts" : "");
    status_fail(ST_INPUT, "architecture '%s'%s in '%s' is not supported", name, experts > 0 ? " with experts" : "", gguf->files[0].path);
    status_hint(ST_INPUT, "supported in GGUF files: %s", str_text(&known));
    str_release(&known);
    return ST_INPUT;
}

Status gguf_prediction_layers(Gguf *gguf, const GgufArch *arch, int64_t *n_layers, int64_t *extra) {
    const char *all = arena_printf(gguf->arena, "%s.block_count", arch->name),
               *more = arena_printf(gguf->arena, "%s.nextn_predict_layers", arch->name);
    if (!all || !more) return ST_RESOURCE;
    *n_layers = *extra = 0;
    TRY(gguf_int(gguf, all, n_layers));
    TRY(gguf_int(gguf, more, extra));
    if (*extra < 0 || (*extra > 0 && *extra >= *n_layers))
        return status_fail(ST_INPUT, "'%s' in '%s' is %lld of %lld layers", more, gguf->files[0].path, (long long)*extra, (long long)*n_layers);
    *n_layers -= *extra;
    return ST_OK;
}

typedef enum KeyKind { KEY_SIZE, KEY_REAL, KEY_OTHER, KEY_IGNORED } KeyKind;
static const struct Key {
    const char *archs, *key, *config;
    KeyKind kind;
} keys[] = {
#define KEY(archs, key, config, kind) {archs, key, config, KEY_##kind},
#include "lib/model/gguf/gguf_keys.def"
#undef KEY
};

static const struct Key *key_find(const GgufArch *arch, const char *key) {
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (strcmp(keys[i].key, key) == 0 && (strcmp(keys[i].archs, "*") == 0 || text_among(keys[i].archs, ' ', arch->name))) return &keys[i];
    return NULL;
}

/* ---- reading ---- */

typedef struct Reading {
    Gguf *gguf;
    const GgufArch *arch;
    json_t *config;
} Reading;

static const char *gguf_path(const Reading *reading) { return reading->gguf->files[0].path; }

/* "llama.block_count"; NULL: no memory */
static const char *full_key(const Reading *reading, const char *key) { return arena_printf(reading->gguf->arena, "%s.%s", reading->arch->name, key); }

static Status arch_int(const Reading *reading, const char *key, int64_t *value) {
    const char *full = full_key(reading, key);
    return full ? gguf_int(reading->gguf, full, value) : ST_RESOURCE;
}

static Status arch_real(const Reading *reading, const char *key, double *value) {
    const char *full = full_key(reading, key);
    return full ? gguf_real(reading->gguf, full, value) : ST_RESOURCE;
}

/* A list with a value for each layer, which must all be equal, counts as one value. */
static Status single_value(const Reading *reading, const GgufValue *value, json_t **json) {
    json_t *list;
    TRY(gguf_json(reading->gguf, value, &list));
    *json = list;
    if (!value->list) return ST_OK;
    for (size_t i = 1; i < json_array_size(list); i++)
        if (!json_equal(json_array_get(list, i), json_array_get(list, 0))) {
            json_decref(list);
            return status_fail(ST_INPUT, "'%s' in '%s' differs between layers, which is not supported", value->key, gguf_path(reading));
        }
    *json = json_array_size(list) ? json_incref(json_array_get(list, 0)) : NULL;
    json_decref(list);
    return *json ? ST_OK : status_fail(ST_INPUT, "'%s' in '%s' is an empty list", value->key, gguf_path(reading));
}

static Status copy_value(const Reading *reading, const struct Key *key, const GgufValue *value) {
    json_t *json;
    TRY(single_value(reading, value, &json));
    bool fits = key->kind == KEY_SIZE ? json_is_integer(json) && json_integer_value(json) >= 0 && json_integer_value(json) <= INT32_MAX
                                      : json_is_number(json);
    bool off = key->kind == KEY_SIZE && json_integer_value(json) == 0;
    if (fits && !off)
        json_object_set_new(reading->config, key->config, json);
    else
        json_decref(json);
    return fits ? ST_OK : status_fail(ST_INPUT, "wrong '%s' in '%s'", value->key, gguf_path(reading));
}

static Status copy_values(const Reading *reading) {
    size_t skip = strlen(reading->arch->name);
    for (size_t i = 0; i < reading->gguf->n_values; i++) {
        const GgufValue *value = &reading->gguf->values[i];
        if (!text_starts_with(value->key, reading->arch->name) || value->key[skip] != '.') continue;
        const struct Key *key = key_find(reading->arch, value->key + skip + 1);
        if (!key) {
            status_fail(ST_INPUT, "'%s' in '%s' is not supported, and may change what the model computes", value->key, gguf_path(reading));
            return status_hint(ST_INPUT, "take the Hugging Face directory that the file was made from");
        }
        if (key->kind == KEY_SIZE || key->kind == KEY_REAL) TRY(copy_value(reading, key, value));
    }
    return ST_OK;
}

static Status arch_bool(const Reading *reading, const char *key, bool *value) {
    const char *full = full_key(reading, key);
    return full ? gguf_bool(reading->gguf, full, value) : ST_RESOURCE;
}

static Status unsupported(const Reading *reading, const char *key, int64_t value) {
    return status_fail(ST_INPUT, "'%s.%s' in '%s' is %lld, which is not supported", reading->arch->name, key, gguf_path(reading), (long long)value);
}

static int64_t config_int(const Reading *reading, const char *key) { return json_integer_value(json_object_get(reading->config, key)); }

static Status needed_int(const Reading *reading, const char *key, int64_t *value) {
    *value = config_int(reading, key);
    return *value > 0 ? ST_OK : status_fail(ST_INPUT, "the metadata in '%s' lack what is '%s' in config.json", gguf_path(reading), key);
}

/* ---- rotary positions ---- */

/* A list of divisors of the frequencies, as a JSON array; NULL: there is no such tensor. */
static Status read_divisors(const Reading *reading, const char *name, json_t **list) {
    const GgufTensor *tensor = gguf_tensor_find(reading->gguf, name);
    float *values;
    *list = NULL;
    if (!tensor) return ST_OK;
    TRY(gguf_tensor_floats(reading->gguf, tensor, reading->gguf->arena, &values));
    *list = json_array();
    for (int64_t i = 0; i < tensor->count; i++) json_array_append_new(*list, json_real(isfinite(values[i]) ? (double)values[i] : 0));
    return ST_OK;
}

/* The settings of published models whose scaling is of type llama3. */
static const struct {
    double factor, low, high;
    int64_t original;
} llama3_settings[] = {{8, 1, 4, 8192}, {32, 1, 4, 8192}};

/* llama3's divisor of a frequency of this wavelength: 1 for short ones, `factor` for long ones, a mean between. */
static double llama3_divisor(size_t setting, double wavelength) {
    double factor = llama3_settings[setting].factor, low = llama3_settings[setting].low, high = llama3_settings[setting].high;
    double turns = (double)llama3_settings[setting].original / wavelength;
    if (turns > high) return 1;
    if (turns < low) return factor;
    double smooth = (turns - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
}

/* Whether the divisors are those of a setting, up to the noise of float32 in which they were computed. */
static bool is_llama3(const Reading *reading, const json_t *divisors, size_t setting) {
    double theta = json_number_value(json_object_get(reading->config, "rope_theta"));
    size_t n = json_array_size(divisors);
    for (size_t i = 0; i < n; i++) {
        double wavelength = 2 * 3.14159265358979323846 * pow(theta, (double)i / (double)n);
        double want = llama3_divisor(setting, wavelength), got = json_number_value(json_array_get(divisors, i));
        if (!(fabs(got - want) <= 1e-4 * want)) return false;
    }
    return n > 0;
}

/* One list of divisors for short and long contexts: llama3's scaling with known settings, else as it is. */
static json_t *common_scaling(const Reading *reading, json_t *divisors) {
    for (size_t i = 0; i < COUNT_OF(llama3_settings); i++)
        if (is_llama3(reading, divisors, i))
            return json_pack("{s:s,s:f,s:f,s:f,s:I}", "rope_type", "llama3", "factor", llama3_settings[i].factor, "low_freq_factor",
                             llama3_settings[i].low, "high_freq_factor", llama3_settings[i].high, "original_max_position_embeddings",
                             (json_int_t)llama3_settings[i].original);
    return json_pack("{s:s,s:O,s:O,s:f}", "rope_type", "longrope", "short_factor", divisors, "long_factor", divisors, "attention_factor", 1.0);
}

/* Divisors for short and for long contexts (phi3), or one list for both. */
static Status divisors_scaling(const Reading *reading, json_t **scaling) {
    json_t *both, *near = NULL, *far = NULL;
    double factor = 0;
    Status status = read_divisors(reading, "rope_freqs.weight", &both);
    if (status == ST_OK) status = read_divisors(reading, "rope_factors_short.weight", &near);
    if (status == ST_OK) status = read_divisors(reading, "rope_factors_long.weight", &far);
    if (status == ST_OK) status = arch_real(reading, "rope.scaling.attn_factor", &factor);
    if (status == ST_OK && both) {
        *scaling = common_scaling(reading, both);
    } else if (status == ST_OK && near && far) {
        *scaling = json_pack("{s:s,s:O,s:O}", "rope_type", "longrope", "short_factor", near, "long_factor", far);
        if (factor > 0) json_object_set_new(*scaling, "attention_factor", json_real(factor));
    }
    json_decref(both);
    json_decref(near);
    json_decref(far);
    return status;
}

/* With yarn, scores of latent attention grow with the factor. The file has a tenth of mscale_all_dim; mscale is the same in all published models.
 * Older converters did not write it, and then nobody knows. */
static Status read_mscale(const Reading *reading, json_t *scaling) {
    double tenth = 0;
    TRY(arch_real(reading, "rope.scaling.yarn_log_multiplier", &tenth));
    const double mscale = round(tenth * 1e7) / 1e6;
    if (!isfinite(mscale) || mscale < 0)
        return status_fail(ST_INPUT, "wrong 'deepseek2.rope.scaling.yarn_log_multiplier' in '%s'", gguf_path(reading));
    json_object_set_new(scaling, "mscale", json_real(mscale));
    json_object_set_new(scaling, "mscale_all_dim", json_real(mscale));
    if (mscale > 0) return ST_OK;
    status_fail(ST_INPUT, "'%s' lacks 'deepseek2.rope.scaling.yarn_log_multiplier', without which the scale of attention is not known",
                gguf_path(reading));
    return status_hint(ST_INPUT, "make the file again with a newer converter, or take the Hugging Face directory");
}

static Status named_scaling(const Reading *reading, json_t **scaling) {
    const char *type = "none", *key = full_key(reading, "rope.scaling.type");
    double factor = 0, fast = 0, slow = 0, attention = 1;
    if (!key) return ST_RESOURCE;
    TRY(gguf_text(reading->gguf, key, &type));
    if (strcmp(type, "none") == 0 || strcmp(type, "longrope") == 0) return ST_OK;
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return status_fail(ST_INPUT, "'%s' in '%s' is '%s', which is not supported", key, gguf_path(reading), type);
    TRY(arch_real(reading, "rope.scaling.factor", &factor));
    TRY(arch_real(reading, "rope.scaling.yarn_beta_fast", &fast));
    TRY(arch_real(reading, "rope.scaling.yarn_beta_slow", &slow));
    TRY(arch_real(reading, "rope.scaling.attn_factor", &attention));
    if (attention != 1)
        return status_fail(ST_INPUT, "'%s.rope.scaling.attn_factor' in '%s' is not supported", reading->arch->name, gguf_path(reading));
    *scaling = json_pack("{s:s,s:f}", "rope_type", type, "factor", factor);
    if (fast > 0) json_object_set_new(*scaling, "beta_fast", json_real(fast));
    if (slow > 0) json_object_set_new(*scaling, "beta_slow", json_real(slow));
    if (strcmp(reading->arch->name, "gpt-oss") == 0) json_object_set_new(*scaling, "truncate", json_false()); /* as in all published models */
    return strcmp(reading->arch->name, "deepseek2") == 0 && strcmp(type, "yarn") == 0 ? read_mscale(reading, *scaling) : ST_OK;
}

static Status read_scaling(const Reading *reading) {
    int64_t original = 0;
    json_t *scaling = NULL;
    Status status = divisors_scaling(reading, &scaling);
    if (status == ST_OK && !scaling) status = named_scaling(reading, &scaling);
    if (status == ST_OK) status = arch_int(reading, "rope.scaling.original_context_length", &original);
    if (scaling && original > 0) json_object_set_new(scaling, "original_max_position_embeddings", json_integer(original));
    if (scaling) json_object_set_new(reading->config, "rope_scaling", scaling);
    return status;
}

static Status read_positions(const Reading *reading, int64_t head_dim) {
    int64_t rotated = head_dim;
    if (strcmp(reading->arch->name, "gpt2") == 0) return ST_OK; /* learned positions */
    if (!json_object_get(reading->config, "rope_theta")) json_object_set_new(reading->config, "rope_theta", json_real(10000));
    TRY(arch_int(reading, "rope.dimension_count", &rotated));
    if (rotated != head_dim || text_starts_with(reading->arch->name, "glm4")) /* GLM's default is not 1 */
        json_object_set_new(reading->config, "partial_rotary_factor", json_real((double)rotated / (double)head_dim));
    return read_scaling(reading);
}

/* ---- what only some architectures have ---- */

/* The windows of Gemma 3's layers: a list of true and false, or a number of which the last layer has none. The scale of attention is fixed by the
 * size of the model: that of the 27B models is by the width of the residual stream. */
static Status read_gemma(const Reading *reading, int64_t layers, int64_t heads, int64_t head_dim) {
    bool third = strcmp(reading->arch->name, "gemma3") == 0, large = layers == (third ? 62 : 46);
    int64_t scalar = large ? config_int(reading, "hidden_size") / heads : head_dim, interval = 6;
    json_object_set_new(reading->config, "query_pre_attn_scalar", json_integer(scalar));
    const GgufValue *pattern = third ? gguf_find(reading->gguf, "gemma3.attention.sliding_window_pattern") : NULL;
    if (!third) return ST_OK;
    if (!pattern || !pattern->list) {
        TRY(gguf_int(reading->gguf, "gemma3.attention.sliding_window_pattern", &interval));
        json_object_set_new(reading->config, "sliding_window_pattern", json_integer(interval));
        return ST_OK;
    }
    if (pattern->n != (uint64_t)layers || pattern->type == GGUF_STRING)
        return status_fail(ST_INPUT, "'%s' in '%s' has %llu elements for %lld layers", pattern->key, gguf_path(reading),
                           (unsigned long long)pattern->n, (long long)layers);
    json_t *types = json_array();
    for (uint64_t i = 0; i < pattern->n; i++)
        json_array_append_new(types, json_string(gguf_number_at(pattern, i) != 0 ? "sliding_attention" : "full_attention"));
    json_object_set_new(reading->config, "layer_types", types);
    return ST_OK;
}

/* The sizes of latent attention. In the file keys are as long as the cache's, [c | r], and *_mla are the lengths of a head; older files have only the
 * latter, under the names of the former. */
static Status read_latent(const Reading *reading) {
    int64_t key = 0, value = 0, rope = 0;
    TRY(arch_int(reading, "attention.key_length", &key));
    TRY(arch_int(reading, "attention.value_length", &value));
    TRY(arch_int(reading, "attention.key_length_mla", &key));
    TRY(arch_int(reading, "attention.value_length_mla", &value));
    TRY(arch_int(reading, "rope.dimension_count", &rope));
    if (rope <= 0 || key <= rope || value <= 0)
        return status_fail(ST_INPUT, "'%s' has keys of %lld numbers (%lld rotated) and values of %lld: these sizes are not supported",
                           gguf_path(reading), (long long)key, (long long)rope, (long long)value);
    json_object_set_new(reading->config, "qk_rope_head_dim", json_integer(rope));
    json_object_set_new(reading->config, "qk_nope_head_dim", json_integer(key - rope));
    json_object_set_new(reading->config, "v_head_dim", json_integer(value));
    if (!json_object_get(reading->config, "rope_theta")) json_object_set_new(reading->config, "rope_theta", json_real(10000));
    return read_scaling(reading);
}

/* What DeepSeek's and GLM's experts need beyond numbers and widths. Missing keys have llama.cpp's defaults, which are not those of the families. */
static Status read_experts(const Reading *reading) {
    const bool softmax = strcmp(reading->arch->model_type, "deepseek_v2") == 0;
    int64_t gating = softmax ? 1 : 2, dense = 0, layers, extra;
    double scale = 0;
    bool norm = false;
    TRY(arch_int(reading, "expert_gating_func", &gating));
    TRY(arch_int(reading, "leading_dense_block_count", &dense));
    TRY(arch_bool(reading, "expert_weights_norm", &norm));
    TRY(arch_real(reading, "expert_weights_scale", &scale));
    TRY(gguf_prediction_layers(reading->gguf, reading->arch, &layers, &extra));
    if (!isfinite(scale) || scale < 0)
        return status_fail(ST_INPUT, "wrong '%s.expert_weights_scale' in '%s'", reading->arch->name, gguf_path(reading));
    if (gating != (softmax ? 1 : 2)) return unsupported(reading, "expert_gating_func", gating);
    if (softmax && config_int(reading, "n_group") > 1) { /* the best of a group counts; readers take the best two */
        unsupported(reading, "expert_group_count", config_int(reading, "n_group"));
        return status_hint(ST_INPUT, "GGUF cannot say how groups of experts are chosen with a softmax: take the Hugging Face directory");
    }
    json_object_set_new(reading->config, "num_hidden_layers", json_integer(layers));
    json_object_set_new(reading->config, "first_k_dense_replace", json_integer(dense));
    json_object_set_new(reading->config, "norm_topk_prob", json_boolean(norm));
    json_object_set_new(reading->config, "routed_scaling_factor", json_real(scale > 0 ? scale : 1));
    return ST_OK;
}

/* ---- tokens ---- */

static Status read_tokens(const Reading *reading) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    int64_t bos = -1, pad = -1;
    json_t *list = json_array();
    Status status = ST_OK;
    for (size_t i = 0; i < COUNT_OF(ends) && status == ST_OK; i++) {
        int64_t id = -1;
        status = gguf_int(reading->gguf, ends[i], &id);
        if (id >= 0 && id < INT32_MAX) json_array_append_new(list, json_integer(id));
    }
    json_object_set_new(reading->config, "eos_token_id", list);
    TRY(status);
    TRY(gguf_int(reading->gguf, "tokenizer.ggml.bos_token_id", &bos));
    TRY(gguf_int(reading->gguf, "tokenizer.ggml.padding_token_id", &pad));
    if (bos >= 0 && bos < INT32_MAX) json_object_set_new(reading->config, "bos_token_id", json_integer(bos));
    if (pad >= 0 && pad < INT32_MAX) json_object_set_new(reading->config, "pad_token_id", json_integer(pad));
    return ST_OK;
}

/* ---- all of it ---- */

static Status read_sizes(const Reading *reading, const GgufTensor *embed) {
    bool gpt2 = strcmp(reading->arch->name, "gpt2") == 0;
    int64_t layers, heads, width, head_dim = config_int(reading, "head_dim"), value_length;
    TRY(needed_int(reading, gpt2 ? "n_layer" : "num_hidden_layers", &layers));
    TRY(needed_int(reading, gpt2 ? "n_head" : "num_attention_heads", &heads));
    TRY(needed_int(reading, gpt2 ? "n_embd" : "hidden_size", &width));
    if (head_dim == 0) head_dim = width / heads;
    json_object_set_new(reading->config, "vocab_size", json_integer(embed->shape[0]));
    if (strcmp(reading->arch->name, "deepseek2") == 0) return read_latent(reading);
    value_length = head_dim;
    TRY(arch_int(reading, "attention.value_length", &value_length));
    if (value_length != head_dim || head_dim == 0)
        return status_fail(ST_INPUT, "'%s' has keys of %lld numbers and values of %lld, which is not supported", gguf_path(reading),
                           (long long)head_dim, (long long)value_length);
    TRY(read_positions(reading, head_dim));
    return text_starts_with(reading->arch->name, "gemma") ? read_gemma(reading, layers, heads, head_dim) : ST_OK;
}

static Status read_all(const Reading *reading) {
    const GgufTensor *embed = gguf_tensor_find(reading->gguf, "token_embd.weight");
    if (!embed || embed->n_dims != 2 || embed->shape[0] > INT32_MAX)
        return status_fail(ST_INPUT, "'%s' is no model: it lacks the tensor 'token_embd.weight' with two dimensions", gguf_path(reading));
    TRY(copy_values(reading));
    TRY(read_sizes(reading, embed));
    json_object_set_new(reading->config, "tie_word_embeddings", json_boolean(!gguf_tensor_find(reading->gguf, "output.weight")));
    if (reading->arch->biased)
        json_object_set_new(reading->config, "attention_bias", json_boolean(gguf_tensor_find(reading->gguf, "blk.0.attn_q.bias") != NULL));
    if (text_among("deepseek2 glm4moe", ' ', reading->arch->name)) TRY(read_experts(reading));
    if (strcmp(reading->arch->name, "glm4moe") == 0)
        json_object_set_new(reading->config, "use_qk_norm", json_boolean(gguf_tensor_find(reading->gguf, "blk.0.attn_q_norm.weight") != NULL));
    if (strcmp(reading->arch->name, "qwen3moe") == 0) json_object_set_new(reading->config, "norm_topk_prob", json_true()); /* as in llama.cpp */
    if (reading->arch->biased && gguf_tensor_find(reading->gguf, "blk.0.ffn_up.bias")) json_object_set_new(reading->config, "mlp_bias", json_true());
    return read_tokens(reading);
}

Status gguf_config_build(Gguf *gguf, json_t **config) {
    Reading reading = {.gguf = gguf};
    *config = NULL;
    TRY(gguf_arch_find(gguf, &reading.arch));
    reading.config =
        json_pack("{s:[s], s:s, s:s}", "architectures", reading.arch->class_name, "model_type", reading.arch->model_type, "dtype", "bfloat16");
    if (!reading.config) return status_fail(ST_RESOURCE, "out of memory for '%s'", gguf_path(&reading));
    Status status = read_all(&reading);
    if (status == ST_OK)
        *config = reading.config;
    else
        json_decref(reading.config);
    return status;
}

Status gguf_config_json(const char *path, json_t **config) {
    Gguf *gguf;
    *config = NULL;
    TRY(gguf_open(path, &gguf));
    Status status = gguf_config_build(gguf, config);
    gguf_close(gguf);
    return status;
}

/* ---- other files of a directory ---- */

static Status write_object(const char *dir, const char *name, const json_t *json) {
    Str path = {0};
    str_printf(&path, "%s/%s", dir, name);
    char *text = json_text(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    Status status = text ? file_write_all(str_text(&path), text, strlen(text)) : status_fail(ST_RESOURCE, "out of memory for '%s'", str_text(&path));
    free(text);
    str_release(&path);
    return status;
}

Status gguf_copy_files(const char *path, const char *dir) {
    json_t *tokenizer = NULL, *settings = NULL;
    TRY(gguf_tokenizer_json(path, &tokenizer));
    Status status = ST_OK;
    if (tokenizer) status = write_object(dir, "tokenizer.json", tokenizer);
    json_decref(tokenizer);
    if (!tokenizer || status != ST_OK) return status;
    TRY(gguf_tokenizer_settings(path, &settings));
    status = write_object(dir, "tokenizer_config.json", settings);
    json_decref(settings);
    return status;
}
