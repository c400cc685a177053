/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3: optional biases, RMS norms over each query and key head before the rotation, an independent head size. Checked against transformers'
 * Qwen3ForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 32768});
    config_read_windows(reader);
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    if (!json_object_get(reader->json, "head_dim")) config->head_dim = 128;
}

const AttentionForm normed_attention = {
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
};
static const LayerForm layer = {{
    {&block_attention, &normed_attention, .input_norm = "input_layernorm"},
    {&block_gated_mlp, &llama_mlp, .input_norm = "post_attention_layernorm"},
}};

const ModelFamily family_qwen3 = {"qwen3", read_config, &llama_names, &layer, "Qwen3"};
