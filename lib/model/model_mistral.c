/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral: llama with a sliding window on every layer, or on those that layer_types names (transformers reads such a config as Ministral). Checked
 * against transformers' MistralForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    (void)config;
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 131072});
    /* transformers takes 4096 when the key is missing, and no window when it is null. */
    config_set_windows(reader, config_window(reader, 4096), 0);
}

const ModelFamily family_mistral = {"mistral", read_config, &llama_names, &llama_layer, "Mistral"};
