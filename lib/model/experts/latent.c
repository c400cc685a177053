/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of latent attention in config.json. */
#include "lib/model/experts/experts.h"

#include <math.h>

const LatentForm deepseek_latent = {
    .q = "self_attn.q_proj",
    .q_a = "self_attn.q_a_proj",
    .q_norm = "self_attn.q_a_layernorm",
    .q_b = "self_attn.q_b_proj",
    .kv_a = "self_attn.kv_a_proj_with_mqa",
    .kv_norm = "self_attn.kv_a_layernorm",
    .kv_b = "self_attn.kv_b_proj",
    .o = "self_attn.o_proj",
};

/* With yarn, scores grow with the factor: DeepSeek-V2, appendix B.1. */
static double mscale_of(const RopeConfig *rope) {
    if (rope->type != ROPE_YARN || rope->mscale_all_dim == 0 || rope->factor <= 1) return 1;
    return 0.1 * rope->mscale_all_dim * log(rope->factor) + 1;
}

void latent_read(ConfigReader *reader) {
    ModelConfig *config = reader->config;
    LatentConfig *l = &config->latent;
    l->q_rank = config_value(reader, "q_lora_rank") ? config_size(reader, "q_lora_rank", 0) : 0;
    l->kv_rank = config_size(reader, "kv_lora_rank", 0);
    l->nope = config_size(reader, "qk_nope_head_dim", 0);
    l->rope = config_size(reader, "qk_rope_head_dim", 0);
    l->v = config_size(reader, "v_head_dim", 0);
    config_ignore(reader, "qk_head_dim");
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    config->rope.neighbours = config_flag(reader, "rope_interleave", true);
    config->head_dim = l->rope; /* what rotates */
    config->num_key_value_heads = config->num_attention_heads;
    if (reader->status != ST_OK) return;
    if (l->v > l->nope + l->rope)
        CONFIG_FAIL(reader, "'%s' has v_head_dim %lld, which is not supported: at most the %lld of queries and keys", reader->path, (long long)l->v,
                    (long long)(l->nope + l->rope));
    double mscale = mscale_of(&config->rope);
    config->attention_scale = mscale * mscale / sqrt((double)(l->nope + l->rope));
}
