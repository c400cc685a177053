/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss: attention with sinks and biases, windows on every second layer, experts with biases and a clamped gate, all of a layer in one tensor.
 * Checked against transformers' GptOssForCausalLM. */
#include "lib/model/experts/experts.h"

static const LayerForm layer = {{
    {&block_attention,
     &(const AttentionForm){
         .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj", .o = "self_attn.o_proj", .sinks = "self_attn.sinks"},
     .input_norm = "input_layernorm"},
    {&block_experts,
     &(const ExpertsForm){
         .router = "mlp.router", .gate_up_together = "mlp.experts.gate_up_proj", .down_together = "mlp.experts.down_proj", .in_out = true},
     .input_norm = "post_attention_layernorm"},
}};

static bool slides(int64_t at, const void *unused) {
    (void)unused;
    return at % 2 == 0;
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 131072,
                                                   .original_max_position_embeddings = 4096,
                                                   .rms_norm_eps = 1e-5,
                                                   .rope_theta = 150000,
                                                   .head_dim = 64,
                                                   .num_key_value_heads = 8});
    config_slide(reader, config_window(reader, 128), slides, NULL);
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", true);
    experts_read(reader, "num_local_experts num_experts", "intermediate_size");
    config_ignore(reader, "experts_per_token"); /* these two: the names of the same numbers in the original files */
    config_ignore(reader, "initial_context_length");
    ExpertsConfig *experts = &config->experts;
    experts->router.normalise = true; /* the softmax over the chosen logits is that over all, divided by its sum over the chosen */
    experts->limit = config_positive(reader, "swiglu_limit", 7);
    experts->alpha = config_positive(reader, "swiglu_alpha", 1.702);
    experts->together = true;
    experts_check(reader);
}

const ModelFamily family_gpt_oss = {"gpt_oss", read_config, &llama_names, &layer, "GptOss"};
