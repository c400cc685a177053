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
    config->fused_gate_up = true;
}

static const PartNames names = {
    .prefix = "model.",
    .layers = "model.layers",
    .parts =
        {
            [PART_EMBED] = "model.embed_tokens",
            [PART_FINAL_NORM] = "model.norm",
            [PART_HEAD] = "lm_head",
            [PART_INPUT_NORM] = "input_layernorm",
            [PART_ATTENTION_NORM] = "post_self_attn_layernorm",
            [PART_POST_NORM] = "post_attention_layernorm",
            [PART_MLP_NORM] = "post_mlp_layernorm",
            [PART_Q] = "self_attn.q_proj",
            [PART_K] = "self_attn.k_proj",
            [PART_V] = "self_attn.v_proj",
            [PART_O] = "self_attn.o_proj",
            [PART_GATE_UP] = "mlp.gate_up_proj",
            [PART_DOWN] = "mlp.down_proj",
        },
    .ignored = {"rotary_emb.inv_freq"},
};

const ModelFamily family_glm4 = {"glm4", read_config, &names, "Glm4"};
