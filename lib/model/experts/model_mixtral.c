/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral: Mistral's layers with experts instead of the MLP, the weights of the chosen ones sum to 1. Checked against transformers'
 * MixtralForCausalLM. */
#include "lib/model/experts/experts.h"

static const LayerForm layer = {{
    {&block_attention, &llama_attention, .input_norm = "input_layernorm"},
    {&block_experts,
     &(const ExpertsForm){.router = "block_sparse_moe.gate",
                          .gate = "block_sparse_moe.experts.*.w1",
                          .up = "block_sparse_moe.experts.*.w3",
                          .down = "block_sparse_moe.experts.*.w2",
                          .gate_up_together = "mlp.experts.gate_up_proj", /* as transformers 5 and its adapters name them */
                          .down_together = "mlp.experts.down_proj"},
     .input_norm = "post_attention_layernorm"},
}};

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader,
                        &(DecoderDefaults){.max_position_embeddings = 131072, .rms_norm_eps = 1e-5, .rope_theta = 1e6, .num_key_value_heads = 8});
    config_set_windows(reader, config_window(reader, 0), 0);
    experts_read(reader, "num_experts num_local_experts", "intermediate_size");
    config->experts.router.normalise = true;
    experts_check(reader);
}

const ModelFamily family_mixtral = {"mixtral", read_config, &llama_names, &layer, "Mixtral"};
