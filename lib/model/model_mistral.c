/* Mistral: llama with a sliding window on every layer. Checked against transformers' MistralForCausalLM. */
#include "lib/model/family.h"

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, 131072);
    /* transformers takes 4096 when the key is missing, and no window when it is null. */
    int64_t window = json_object_get(reader->json, "sliding_window") ? config_size(reader, "sliding_window", -1) : 4096;
    for (int64_t i = 0; window > 0 && reader->status == ST_OK && i < config->num_hidden_layers; i++) config->layer_window[i] = window;
}

const ModelFamily family_mistral = {"mistral", read_config, &llama_names, "Mistral"};
