/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek V2: latent attention, dense layers first, a router by softmax whose groups count as much as their best expert, shared experts. Checked
 * against transformers' DeepseekV2ForCausalLM. */
#include "lib/model/experts/experts.h"

#include <string.h>

static const ExpertsForm experts = {
    .router = "mlp.gate",
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
    {&block_experts, &experts, .input_norm = "post_attention_layernorm"},
}};

static void read_router(ConfigReader *reader, RouterArgs *router) {
    const char *method = config_text(reader, "topk_method", "greedy"), *kind = config_text(reader, "scoring_func", "softmax");
    router->scale = config_positive(reader, "routed_scaling_factor", 1);
    if (reader->status != ST_OK) return;
    bool groups = strcmp(method, "group_limited_greedy") == 0;
    if (!groups && strcmp(method, "greedy") != 0) {
        CONFIG_FAIL(reader, "topk_method '%s' in '%s' is not supported", method, reader->path);
        status_hint(ST_INPUT, "known: greedy, group_limited_greedy");
    }
    if (strcmp(kind, "softmax") != 0) CONFIG_FAIL(reader, "scoring_func '%s' in '%s' is not supported: a router by softmax is", kind, reader->path);
    int64_t n_groups = config_size(reader, "n_group", 1), top_groups = config_size(reader, "topk_group", 1);
    router->n_groups = groups ? n_groups : 1;
    router->top_groups = groups ? top_groups : 1;
    config_refuse(reader, "norm_topk_prob");
    reader->config->experts.wide_router = true;
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 2048});
    latent_read(reader);
    config->mlp_bias = config_flag(reader, "mlp_bias", false);
    experts_read(reader, "n_routed_experts num_experts num_local_experts", "moe_intermediate_size");
    experts_read_shared(reader);
    read_router(reader, &config->experts.router);
    experts_check(reader);
    int64_t first = (int64_t)config_real(reader, "first_k_dense_replace", 0);
    experts_set_layers(reader, experts_before, &first, &dense, &sparse);
}

const ModelFamily family_deepseek_v2 = {"deepseek_v2", read_config, &llama_names, &sparse, "DeepseekV2"};
