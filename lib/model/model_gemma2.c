/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2: norms before and after attention and MLP, whose weights are stored minus 1, scaled embeddings, soft caps, windows on every other layer.
 * Checked against transformers' Gemma2ForCausalLM. */
#include "lib/model/family.h"

#include <math.h>

static bool model_gemma2_slides(int64_t layer, const void *given) {
    (void)given;
    return layer % 2 == 0;
}

void gemma_read(ConfigReader *reader, ModelConfig *config) {
    config->norm_offset = 1;
    config->embed_scale = sqrt((double)config->hidden_size);
    config->round_embed_scale = true;
    config->attention_scale = 1 / sqrt(config_positive(reader, "query_pre_attn_scalar", 256));
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    config_refuse(reader, "use_bidirectional_attention");
    config_ignore(reader, "hidden_act"); /* an older key, which names another activation in some files */
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.vocab_size = 256000,
                                                   .hidden_size = 2304,
                                                   .intermediate_size = 9216,
                                                   .num_hidden_layers = 26,
                                                   .num_attention_heads = 8,
                                                   .num_key_value_heads = 4,
                                                   .head_dim = 256,
                                                   .max_position_embeddings = 8192,
                                                   .tie_word_embeddings = true,
                                                   .hidden_activation = "gelu_pytorch_tanh"});
    gemma_read(reader, config);
    config->attn_softcap = config_cap(reader, "attn_logit_softcapping", 50);
    config->final_softcap = config_cap(reader, "final_logit_softcapping", 30);
    config_slide(reader, config_window(reader, 4096), model_gemma2_slides, NULL);
}

static const LayerForm gemma2_layer = {{
    {&block_attention, &llama_attention, "input_layernorm", "post_attention_layernorm"},
    {&block_gated_mlp, &llama_mlp, "pre_feedforward_layernorm", "post_feedforward_layernorm"},
}};

const ModelFamily family_gemma2 = {"gemma2", read_config, &llama_names, &gemma2_layer, "Gemma2"};
