/* SPDX-License-Identifier: Apache-2.0 */
/* LFM2-MoE: LFM2's layers; dense ones first, then experts chosen by sigmoids, with a bias for the choice unless use_expert_bias is off. Checked
 * against transformers' Lfm2MoeForCausalLM. */
#include "lib/model/experts/experts.h"
#include "lib/model/liquid/liquid.h"

#define EXPERTS(bias)                                                                                                 \
    (&(const ExpertsForm){.router = "feed_forward.gate",                                                              \
                          .choice_bias = bias,                                                                        \
                          .gate = "feed_forward.experts.*.w1",                                                        \
                          .up = "feed_forward.experts.*.w3",                                                          \
                          .down = "feed_forward.experts.*.w2",                                                        \
                          .gate_up_together = "feed_forward.experts.gate_up_proj", /* as transformers 5 names them */ \
                          .down_together = "feed_forward.experts.down_proj"})
#define WITH(operator, form)                                                                                                      \
    {                                                                                                                             \
        LIQUID_LAYER(operator, form, &block_gated_mlp, &liquid_mlp), LIQUID_LAYER(operator, form, &block_experts, EXPERTS(NULL)), \
            LIQUID_LAYER(operator, form, &block_experts, EXPERTS("feed_forward.expert_bias")),                                    \
    }
enum { DENSE, PLAIN, BIASED, KINDS };
static const LayerForm forms[2][KINDS] = {WITH(&block_short_conv, &liquid_conv), WITH(&block_attention, &liquid_attention)}; /* [attention] */

static void read_router(ConfigReader *reader, RouterArgs *router) {
    router->kind = ROUTER_SIGMOID;
    router->normalise = config_flag(reader, "norm_topk_prob", true);
    router->eps = 1e-6;
    router->scale = config_positive(reader, "routed_scaling_factor", 1);
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    liquid_read(reader, 7168);
    experts_read(reader, "num_experts num_local_experts", "moe_intermediate_size");
    read_router(reader, &config->experts.router);
    experts_check(reader);
    const bool biased = config_flag(reader, "use_expert_bias", true);
    double n_dense = config_real(reader, "num_dense_layers", 2);
    if (reader->status != ST_OK) return;
    config->layer_forms = arena_alloc(reader->arena, (size_t)config->num_hidden_layers * sizeof *config->layer_forms);
    if (!config->layer_forms) config_failed(reader, ST_RESOURCE);
    for (int64_t i = 0; i < config->num_hidden_layers && reader->status == ST_OK; i++)
        config->layer_forms[i] = &forms[liquid_has_attention(reader, i)][(double)i < n_dense ? DENSE : biased ? BIASED : PLAIN];
}

const ModelFamily family_lfm2_moe = {"lfm2_moe", read_config, &liquid_names, &forms[1][PLAIN], "Lfm2Moe"};
