/* SPDX-License-Identifier: Apache-2.0 */
/* Ministral 3: llama with yarn, and queries that grow beyond the original context. Checked against transformers' Ministral3ForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    (void)config;
    config_read_decoder(reader, &(DecoderDefaults){.num_key_value_heads = 8,
                                                   .head_dim = 128,
                                                   .max_position_embeddings = 262144,
                                                   .rms_norm_eps = 1e-5,
                                                   .rope_theta = 1e6,
                                                   .scaled_queries = true});
    if (!config_value(reader, "rope_parameters") && !config_value(reader, "rope_scaling"))
        CONFIG_FAIL(reader, "'%s' lacks 'rope_parameters', which model_type 'ministral3' needs", reader->path);
    config_set_windows(reader, config_window(reader, 0), 0);
}

const ModelFamily family_ministral3 = {"ministral3", read_config, &llama_names, &llama_layer, "Ministral3"};
