/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek V3 and R1: latent attention, dense layers first, a router by sigmoids with groups, shared experts. Checked against transformers'
 * DeepseekV3ForCausalLM. */
#include "lib/model/experts/experts.h"

const ExpertsForm deepseek_experts = {
    .router = "mlp.gate",
    .choice_bias = "mlp.gate.e_score_correction_bias",
    .gate = "mlp.experts.*.gate_proj",
    .up = "mlp.experts.*.up_proj",
    .down = "mlp.experts.*.down_proj",
    .gate_up_together = "mlp.experts.gate_up_proj",
    .down_together = "mlp.experts.down_proj",
    .shared_gate = "mlp.shared_experts.gate_proj",
    .shared_up = "mlp.shared_experts.up_proj",
    .shared_down = "mlp.shared_experts.down_proj",
};
static const LayerForm dense = {{
    {&block_latent_attention, &deepseek_latent, .input_norm = "input_layernorm"},
    {&block_gated_mlp, &llama_mlp, .input_norm = "post_attention_layernorm"},
}};
static const LayerForm sparse = {{
    {&block_latent_attention, &deepseek_latent, .input_norm = "input_layernorm"},
    {&block_experts, &deepseek_experts, .input_norm = "post_attention_layernorm"},
}};

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 4096});
    latent_read(reader);
    experts_read(reader, "n_routed_experts num_experts num_local_experts", "moe_intermediate_size");
    experts_read_shared(reader);
    experts_read_sigmoid(reader, 2.5);
    experts_check(reader);
    int64_t first = (int64_t)config_real(reader, "first_k_dense_replace", 3);
    experts_set_layers(reader, experts_before, &first, &dense, &sparse);
    (void)config;
}

const ModelFamily family_deepseek_v3 = {"deepseek_v3", read_config, &llama_names, &sparse, "DeepseekV3"};
