/* SPDX-License-Identifier: Apache-2.0 */
/* Llama 1-3 and models that use its names (SmolLM2, TinyLlama, ...). Checked against transformers' LlamaForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 2048});
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    config->mlp_bias = config_flag(reader, "mlp_bias", false);
}

const PartNames llama_names = {
    .prefix = "model.",
    .layers = "model.layers",
    .parts =
        {
            [PART_EMBED] = "model.embed_tokens",
            [PART_FINAL_NORM] = "model.norm",
            [PART_HEAD] = "lm_head",
            [PART_INPUT_NORM] = "input_layernorm",
            [PART_POST_NORM] = "post_attention_layernorm",
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

const ModelFamily family_llama = {"llama", read_config, &llama_names, "Llama"};
