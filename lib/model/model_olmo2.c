/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 2: norms only after attention and MLP, and over all queries and all keys of a token. Checked against transformers' Olmo2ForCausalLM. */
#include "lib/model/family.h"

void olmo_read(ConfigReader *reader, ModelConfig *config) {
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    config->qk_norm = config->qk_norm_whole = true;
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 2048, .rms_norm_eps = 1e-5});
    olmo_read(reader, config);
}

const PartNames olmo_names = {
    .prefix = "model.",
    .layers = "model.layers",
    .parts =
        {
            [PART_EMBED] = "model.embed_tokens",
            [PART_FINAL_NORM] = "model.norm",
            [PART_HEAD] = "lm_head",
            [PART_ATTENTION_NORM] = "post_attention_layernorm",
            [PART_MLP_NORM] = "post_feedforward_layernorm",
            [PART_Q_NORM] = "self_attn.q_norm",
            [PART_K_NORM] = "self_attn.k_norm",
            [PART_Q] = "self_attn.q_proj",
            [PART_K] = "self_attn.k_proj",
            [PART_V] = "self_attn.v_proj",
            [PART_O] = "self_attn.o_proj",
            [PART_GATE] = "mlp.gate_proj",
            [PART_UP] = "mlp.up_proj",
            [PART_DOWN] = "mlp.down_proj",
        },
    .ignored = {"rotary_emb.inv_freq"},
};

const ModelFamily family_olmo2 = {"olmo2", read_config, &olmo_names, "Olmo2"};
