/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen2 and Qwen2.5: llama with biases on q, k and v, and an optional window on the upper layers. Checked against transformers' Qwen2ForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 32768});
    config_read_windows(reader);
    config->qkv_bias = true;
}

const ModelFamily family_qwen2 = {"qwen2", read_config, &llama_names, &llama_layer, "Qwen2"};
