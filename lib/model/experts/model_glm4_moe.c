/* SPDX-License-Identifier: Apache-2.0 */
/* GLM-4.5 to 4.7: llama's layers with half of each head rotated, norms of queries and keys if use_qk_norm, dense layers first, then DeepSeek-V3's
 * experts. Checked against transformers' Glm4MoeForCausalLM. */
#include "lib/model/experts/experts.h"

#define LAYER(attention, kind, form)                                                                                                \
    {                                                                                                                               \
        { {&block_attention, attention, .input_norm = "input_layernorm"}, {kind, form, .input_norm = "post_attention_layernorm"}, } \
    }
static const LayerForm forms[2][2] = {
    {LAYER(&llama_attention, &block_experts, &deepseek_experts), LAYER(&llama_attention, &block_gated_mlp, &llama_mlp)},
    {LAYER(&normed_attention, &block_experts, &deepseek_experts), LAYER(&normed_attention, &block_gated_mlp, &llama_mlp)},
}; /* [norms][dense] */

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 131072, .rms_norm_eps = 1e-5, .partial_rotary_factor = 0.5});
    config->qkv_bias = config_flag(reader, "attention_bias", false);
    bool norms = config_flag(reader, "use_qk_norm", false);
    experts_read(reader, "n_routed_experts num_experts num_local_experts", "moe_intermediate_size");
    experts_read_shared(reader);
    experts_read_sigmoid(reader, 1);
    experts_check(reader);
    int64_t first = (int64_t)config_real(reader, "first_k_dense_replace", 1);
    experts_set_layers(reader, experts_before, &first, &forms[norms][1], &forms[norms][0]);
}

const ModelFamily family_glm4_moe = {"glm4_moe", read_config, &llama_names, &forms[1][0], "Glm4Moe"};
