/* SPDX-License-Identifier: Apache-2.0 */
/* GLM-4: norms before and after attention and MLP, gate and up in one projection, rope of adjacent pairs on half of each head. Checked against
 * transformers' Glm4ForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(
        reader,
        &(DecoderDefaults){
            .num_key_value_heads = 2, .head_dim = 128, .max_position_embeddings = 131072, .rms_norm_eps = 1.5625e-7, .partial_rotary_factor = 0.5});
    config->rope.neighbours = true;
    config->qkv_bias = config_flag(reader, "attention_bias", true);
}

static const LayerForm layer = {{
    {&block_attention, &llama_attention, "input_layernorm", "post_self_attn_layernorm"},
    {&block_gated_mlp, &fused_mlp, "post_attention_layernorm", "post_mlp_layernorm"},
}};

const ModelFamily family_glm4 = {"glm4", read_config, &llama_names, &layer, "Glm4"};
