/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 3, the language model: as Gemma 2 with norms over each query and key head instead of soft caps, and a separate rope on layers with a window,
 * which are five of six. Checked against transformers' Gemma3ForCausalLM. */
#include "lib/model/family.h"

static bool model_gemma3_text_slides(int64_t layer, const void *pattern) { return (layer + 1) % *(const int64_t *)pattern != 0; }

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.vocab_size = 262208,
                                                   .hidden_size = 2304,
                                                   .intermediate_size = 9216,
                                                   .num_hidden_layers = 26,
                                                   .num_attention_heads = 8,
                                                   .num_key_value_heads = 4,
                                                   .head_dim = 256,
                                                   .max_position_embeddings = 131072,
                                                   .rope_theta = 1e6,
                                                   .tie_word_embeddings = true,
                                                   .hidden_activation = "gelu_pytorch_tanh",
                                                   .window_theta_key = "rope_local_base_freq",
                                                   .window_theta = 1e4});
    gemma_read(reader, config);
    config->attn_softcap = config_cap(reader, "attn_logit_softcapping", 0);
    config->final_softcap = config_cap(reader, "final_logit_softcapping", 0);
    int64_t pattern = config_size(reader, "sliding_window_pattern", config_size(reader, "_sliding_window_pattern", 6));
    config_slide(reader, config_window(reader, 4096), model_gemma3_text_slides, &pattern);
}

static const LayerForm gemma3_text_layer = {{
    {&block_attention, &normed_attention, "input_layernorm", "post_attention_layernorm"},
    {&block_gated_mlp, &llama_mlp, "pre_feedforward_layernorm", "post_feedforward_layernorm"},
}};

const ModelFamily family_gemma3_text = {"gemma3_text", read_config, &llama_names, &gemma3_text_layer, "Gemma3Text"};
