/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2: learned positions, layer norms, one projection for q, k and v, weights stored (in, out). Checked against transformers' GPT2LMHeadModel. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config->vocab_size = config_size(reader, "vocab_size", 50257);
    config->hidden_size = config_size(reader, "n_embd", 0);
    config->num_hidden_layers = config_size(reader, "n_layer", 0);
    config->num_attention_heads = config->num_key_value_heads = config_size(reader, "n_head", 0);
    config->max_position_embeddings = config_size(reader, "n_positions", 1024);
    config->intermediate_size = config_size(reader, "n_inner", 4 * config->hidden_size);
    config->activation = config_activation(reader, "activation_function", "gelu_new");
    config->norm = NORM_LAYER;
    config->norm_eps = config_real(reader, "layer_norm_epsilon", 1e-5);
    config->tie_word_embeddings = config_flag(reader, "tie_word_embeddings", true);
    if (!config_flag(reader, "scale_attn_weights", true)) config->attention_scale = 1;
    config_refuse(reader, "scale_attn_by_inverse_layer_idx");
    config_refuse(reader, "reorder_and_upcast_attn");
    config_refuse(reader, "add_cross_attention");
    config->rope.type = ROPE_NONE;
    config->learned_positions = config->in_out_weights = true;
    config->qkv_bias = config->o_bias = config->mlp_bias = true;
    config_ignore(reader, "n_ctx");
    config_read_dropout(reader, 0.1); /* transformers' default for a missing key */
}

static const PartNames names = {
    .prefix = "transformer.",
    .layers = "transformer.h",
    .embed = "transformer.wte",
    .positions = "transformer.wpe",
    .final_norm = "transformer.ln_f",
    .head = "lm_head",
    .ignored = {"attn.bias", "attn.masked_bias"},
};
static const LayerForm layer = {{
    {&block_attention, &(const AttentionForm){.qkv = "attn.c_attn", .o = "attn.c_proj"}, .input_norm = "ln_1"},
    {&block_mlp, &(const MlpForm){.up = "mlp.c_fc", .down = "mlp.c_proj"}, .input_norm = "ln_2"},
}};

const ModelFamily family_gpt2 = {"gpt2", read_config, &names, &layer, "GPT2"};
