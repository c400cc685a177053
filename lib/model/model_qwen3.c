/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3: optional biases, RMS norms over each query and key head before the rotation, an independent head size. Checked against transformers'
 * Qwen3ForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 32768});
    config_read_windows(reader);
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    config->qk_norm = true;
    if (!json_object_get(reader->json, "head_dim")) config->head_dim = 128;
}

const ModelFamily family_qwen3 = {"qwen3", read_config, &llama_names, "Qwen3"};
