/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3: llama with four multipliers. Checked against transformers' GraniteForCausalLM. */
#include "lib/model/family.h"

void granite_read(ConfigReader *reader, ModelConfig *config) {
    config->embed_scale = config_positive(reader, "embedding_multiplier", 1);
    config->residual_scale = config_positive(reader, "residual_multiplier", 1);
    config->attention_scale = config_positive(reader, "attention_multiplier", 1);
    config->logits_scaling = config_positive(reader, "logits_scaling", 1);
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 2048});
    granite_read(reader, config);
    config->mlp_bias = config_flag(reader, "mlp_bias", false);
}

const ModelFamily family_granite = {"granite", read_config, &llama_names, &llama_layer, "Granite"};
