/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM3: llama with no positions in every fourth layer. Checked against transformers' SmolLM3ForCausalLM. */
#include "lib/model/family.h"

/* no_rope_layers: 1 for a layer with rope. */
static bool has_rope(ConfigReader *reader, const json_t *layers, int64_t layer, int64_t interval) {
    if (!layers) return (layer + 1) % interval != 0;
    const json_t *value = json_array_get(layers, (size_t)layer);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > 1)
        CONFIG_FAIL(reader, "no_rope_layers[%lld] in '%s' is missing, or neither 0 nor 1", (long long)layer, reader->path);
    return json_integer_value(value) == 1;
}

static bool has_no_rope(int64_t layer, const void *ropes) { return ((const LayerRope *)ropes)[layer] == LAYER_NO_ROPE; }

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 32768, .rope_theta = 2e6, .tie_word_embeddings = true});
    config->qkv_bias = config->o_bias = config_flag(reader, "attention_bias", false);
    config->mlp_bias = config_flag(reader, "mlp_bias", false);
    const json_t *layers = config_value(reader, "no_rope_layers");
    int64_t interval = config_size(reader, "no_rope_layer_interval", 4);
    bool windows = config_flag(reader, "use_sliding_window", false);
    int64_t window = config_window(reader, 0);
    if (reader->status != ST_OK) return;
    LayerRope *ropes = arena_zero(reader->arena, (size_t)config->num_hidden_layers * sizeof *ropes);
    if (!ropes) {
        config_failed(reader, ST_RESOURCE);
        return;
    }
    for (int64_t i = 0; i < config->num_hidden_layers; i++) ropes[i] = has_rope(reader, layers, i, interval) ? LAYER_ROPE : LAYER_NO_ROPE;
    config_slide(reader, windows ? window : 0, has_no_rope, ropes);
    config->layer_rope = ropes;
}

const ModelFamily family_smollm3 = {"smollm3", read_config, &llama_names, &llama_layer, "SmolLM3"};
