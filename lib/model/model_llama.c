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
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .head = "lm_head",
    .ignored = {"rotary_emb.inv_freq"},
};
const AttentionForm llama_attention = {
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
};
const GatedMlpForm llama_mlp = {.gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"};
const LayerForm llama_layer = {{
    {&block_attention, &llama_attention, .input_norm = "input_layernorm"},
    {&block_gated_mlp, &llama_mlp, .input_norm = "post_attention_layernorm"},
}};

const ModelFamily family_llama = {"llama", read_config, &llama_names, &llama_layer, "Llama"};
