/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral: llama with a sliding window on every layer, or on those that layer_types names (transformers reads such a config as Ministral). Checked
 * against transformers' MistralForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    (void)config;
    config_read_decoder(reader, 131072);
    /* transformers takes 4096 when the key is missing, and no window when it is null. */
    int64_t window = json_object_get(reader->json, "sliding_window") ? config_size(reader, "sliding_window", -1) : 4096;
    config_set_windows(reader, window, 0);
}

const ModelFamily family_mistral = {"mistral", read_config, &llama_names, "Mistral"};
