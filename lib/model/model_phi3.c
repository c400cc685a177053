/* SPDX-License-Identifier: Apache-2.0 */
/* Phi-3, Phi-4 and Phi-4-mini: llama with one projection for q, k and v and one for gate and up, a part of each head rotated, longrope. Checked
 * against transformers' Phi3ForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    (void)config;
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 4096,
                                                   .original_max_position_embeddings = 4096,
                                                   .rms_norm_eps = 1e-5,
                                                   .partial_rotary_factor = 1,
                                                   .old_longrope = true});
    config_refuse(reader, "attention_bias");
    config_refuse(reader, "mlp_bias");
    config_refuse(reader, "lm_head_bias");
    config_set_windows(reader, config_window(reader, 0), 0);
    /* Leftovers of a search for longer contexts, which no program reads. */
    config_ignore(reader, "full_attn_mod");
    config_ignore(reader, "interpolate_factor");
}

const GatedMlpForm fused_mlp = {.gate_up = "mlp.gate_up_proj", .down = "mlp.down_proj"};
static const LayerForm layer = {{
    {&block_attention, &(const AttentionForm){.qkv = "self_attn.qkv_proj", .o = "self_attn.o_proj"}, .input_norm = "input_layernorm"},
    {&block_gated_mlp, &fused_mlp, .input_norm = "post_attention_layernorm"},
}};

const ModelFamily family_phi3 = {"phi3", read_config, &llama_names, &layer, "Phi3"};
