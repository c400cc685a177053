/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 2: norms only after attention and MLP, and over all queries and all keys of a token. Checked against transformers' Olmo2ForCausalLM. */
#include "lib/model/family.h"

void olmo_read(ConfigReader *reader, ModelConfig *config) { config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false); }

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 2048, .rms_norm_eps = 1e-5});
    olmo_read(reader, config);
}

static const AttentionForm attention = {
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .norm_all_heads = true,
};
const LayerForm olmo_layer = {{
    {&block_attention, &attention, .output_norm = "post_attention_layernorm"},
    {&block_gated_mlp, &llama_mlp, .output_norm = "post_feedforward_layernorm"},
}};

const ModelFamily family_olmo2 = {"olmo2", read_config, &llama_names, &olmo_layer, "Olmo2"};
