/* SPDX-License-Identifier: Apache-2.0 */
/* Phi-3, Phi-4 and Phi-4-mini: llama with one projection for q, k and v and one for gate and up, a part of each head rotated, longrope. Checked
 * against transformers' Phi3ForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 4096,
                                                   .original_max_position_embeddings = 4096,
                                                   .rms_norm_eps = 1e-5,
                                                   .partial_rotary_factor = 1,
                                                   .old_longrope = true});
    config->fused_qkv = config->fused_gate_up = true;
    config_refuse(reader, "attention_bias");
    config_refuse(reader, "mlp_bias");
    config_refuse(reader, "lm_head_bias");
    config_set_windows(reader, config_window(reader, 0), 0);
    /* Leftovers of a search for longer contexts, which no program reads. */
    config_ignore(reader, "full_attn_mod");
    config_ignore(reader, "interpolate_factor");
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
            [PART_POST_NORM] = "post_attention_layernorm",
            [PART_QKV] = "self_attn.qkv_proj",
            [PART_O] = "self_attn.o_proj",
            [PART_GATE_UP] = "mlp.gate_up_proj",
            [PART_DOWN] = "mlp.down_proj",
        },
    .ignored = {"rotary_emb.inv_freq"},
};

const ModelFamily family_phi3 = {"phi3", read_config, &names, "Phi3"};
