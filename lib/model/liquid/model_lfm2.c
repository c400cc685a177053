/* SPDX-License-Identifier: Apache-2.0 */
/* LFM2 and LFM2.5: short convolutions on most layers, attention with norms over each query and key head on the others. Checked against transformers'
 * Lfm2ForCausalLM. */
#include "lib/model/liquid/liquid.h"

#include <math.h>
#include <string.h>

const ShortConvForm liquid_conv = {.in = "conv.in_proj", .kernel = "conv.conv", .bias = "conv.conv.bias", .out = "conv.out_proj"};
const AttentionForm liquid_attention = {
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.out_proj",
    .q_norm = "self_attn.q_layernorm",
    .k_norm = "self_attn.k_layernorm",
};
const GatedMlpForm liquid_mlp = {.gate = "feed_forward.w1", .up = "feed_forward.w3", .down = "feed_forward.w2"};
const PartNames liquid_names = {
    .prefix = "model.", .layers = "model.layers", .embed = "model.embed_tokens", .final_norm = "model.embedding_norm", .head = "lm_head"};

static const LayerForm with_conv = LIQUID_LAYER(&block_short_conv, &liquid_conv, &block_gated_mlp, &liquid_mlp),
                       with_attention = LIQUID_LAYER(&block_attention, &liquid_attention, &block_gated_mlp, &liquid_mlp);

bool liquid_has_attention(ConfigReader *reader, int64_t layer) {
    const json_t *types = json_object_get(reader->json, "layer_types"), *full = json_object_get(reader->json, "full_attn_idxs");
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    for (size_t i = 0; !json_is_array(types) && i < json_array_size(full); i++)
        if (json_integer_value(json_array_get(full, i)) == layer) return true;
    if (!json_is_array(types)) return !json_is_array(full);
    bool attention = type && strcmp(type, "full_attention") == 0;
    if (attention || (type && strcmp(type, "conv") == 0)) return attention;
    CONFIG_FAIL(reader, "layer_types[%lld] in '%s' is '%s', which is not supported", (long long)layer, reader->path, type ? type : "not a string");
    status_hint(ST_INPUT, "known: conv, full_attention");
    return false;
}

static void check_layer_types(ConfigReader *reader) {
    const json_t *types = config_value(reader, "layer_types");
    config_ignore(reader, "full_attn_idxs");
    if (types && json_array_size(types) != (size_t)reader->config->num_hidden_layers)
        CONFIG_FAIL(reader, "'%s' has %zu layer_types for %lld layers", reader->path, json_array_size(types),
                    (long long)reader->config->num_hidden_layers);
}

/* Keys of published files without an effect here: widths that others repeat, and how weights were drawn. */
static void ignore_unused(ConfigReader *reader) {
    static const char *const unused[] = {
        "block_dim",        "block_norm_eps", "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init",
        "block_use_swiglu", "conv_dim",       "conv_dim_out",         "conv_use_xavier_init", "use_pos_enc",
        "num_heads",        "theta"};
    for (size_t i = 0; i < COUNT_OF(unused); i++) config_ignore(reader, unused[i]);
}

void liquid_read(ConfigReader *reader, int64_t intermediate_size) {
    ModelConfig *config = reader->config;
    const bool tied = config_flag(reader, "tie_embedding", true);
    config_read_decoder(reader, &(DecoderDefaults){.intermediate_size = intermediate_size,
                                                   .num_key_value_heads = 8,
                                                   .max_position_embeddings = 128000,
                                                   .rope_theta = 1e6,
                                                   .tie_word_embeddings = tied});
    config->intermediate_size = config_size(reader, "block_ff_dim", config->intermediate_size);
    config->norm_eps = config_real(reader, "norm_eps", 1e-5);
    config->conv_taps = config_size(reader, "conv_L_cache", 3);
    config->conv_bias = config_flag(reader, "conv_bias", false);
    check_layer_types(reader);
    ignore_unused(reader);
    if (config->conv_taps < 2 || config->conv_taps > 64)
        CONFIG_FAIL(reader, "'conv_L_cache' in '%s' is %lld, expected 2 to 64", reader->path, (long long)config->conv_taps);
}

/* Two thirds of the width, times a factor, up to a multiple. */
static void adjust_width(ConfigReader *reader, ModelConfig *config) {
    bool adjusted = config_flag(reader, "block_auto_adjust_ff_dim", true);
    int64_t multiple = config_size(reader, "block_multiple_of", 256);
    double factor = config_positive(reader, "block_ffn_dim_multiplier", 1);
    if (!adjusted || reader->status != ST_OK) return;
    double width = floor(factor * floor(2 * (double)config->intermediate_size / 3));
    width = ceil(width / (double)multiple) * (double)multiple;
    if (!(width >= 1 && width <= INT32_MAX)) {
        CONFIG_FAIL(reader, "'%s' has a feed-forward width of %g", reader->path, width);
        return;
    }
    config->intermediate_size = (int64_t)width;
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    liquid_read(reader, 12288);
    adjust_width(reader, config);
    if (reader->status != ST_OK) return;
    config->layer_forms = arena_alloc(reader->arena, (size_t)config->num_hidden_layers * sizeof *config->layer_forms);
    if (!config->layer_forms) config_failed(reader, ST_RESOURCE);
    for (int64_t i = 0; i < config->num_hidden_layers && reader->status == ST_OK; i++)
        config->layer_forms[i] = liquid_has_attention(reader, i) ? &with_attention : &with_conv;
}

const ModelFamily family_lfm2 = {"lfm2", read_config, &liquid_names, &with_attention, "Lfm2"};
