/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3-MoE: Qwen3's attention; experts on the layers that decoder_sparse_step and mlp_only_layers leave to them. Checked against transformers'
 * Qwen3MoeForCausalLM. */
#include "lib/model/experts/experts.h"

static const LayerForm dense = {{
    {&block_attention, &normed_attention, .input_norm = "input_layernorm"},
    {&block_gated_mlp, &llama_mlp, .input_norm = "post_attention_layernorm"},
}};
static const LayerForm sparse = {{
    {&block_attention, &normed_attention, .input_norm = "input_layernorm"},
    {&block_experts,
     &(const ExpertsForm){.router = "mlp.gate",
                          .gate = "mlp.experts.*.gate_proj",
                          .up = "mlp.experts.*.up_proj",
                          .down = "mlp.experts.*.down_proj",
                          .gate_up_together = "mlp.experts.gate_up_proj",
                          .down_together = "mlp.experts.down_proj"},
     .input_norm = "post_attention_layernorm"},
}};

typedef struct Choice {
    int64_t step;
    const json_t *dense;
} Choice;

static bool is_dense(int64_t at, const void *given) {
    const Choice *choice = given;
    for (size_t i = 0; i < json_array_size(choice->dense); i++)
        if (json_integer_value(json_array_get(choice->dense, i)) == at) return true;
    return (at + 1) % choice->step != 0;
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 32768});
    config_read_windows(reader);
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    experts_read(reader, "num_experts num_local_experts", "moe_intermediate_size");
    config->experts.router.normalise = config_flag(reader, "norm_topk_prob", false);
    experts_check(reader);
    const Choice choice = {config_size(reader, "decoder_sparse_step", 1), config_value(reader, "mlp_only_layers")};
    experts_set_layers(reader, is_dense, &choice, &dense, &sparse);
}

const ModelFamily family_qwen3_moe = {"qwen3_moe", read_config, &llama_names, &sparse, "Qwen3Moe"};
