/* SPDX-License-Identifier: Apache-2.0 */
/* GLM-4.7-Flash: DeepSeek-V3's attention and experts; mlp_layer_types says which layers are dense. Checked against transformers'
 * Glm4MoeLiteForCausalLM. */
#include "lib/model/experts/experts.h"

#include <string.h>

static const LayerForm dense = {{
    {&block_latent_attention, &deepseek_latent, .input_norm = "input_layernorm"},
    {&block_gated_mlp, &llama_mlp, .input_norm = "post_attention_layernorm"},
}};
static const LayerForm sparse = {{
    {&block_latent_attention, &deepseek_latent, .input_norm = "input_layernorm"},
    {&block_experts, &deepseek_experts, .input_norm = "post_attention_layernorm"},
}};

/* Without a list the first layer is dense. */
static bool is_dense(int64_t layer, const void *types) {
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    return types ? type && strcmp(type, "dense") == 0 : layer == 0;
}

static const json_t *read_types(ConfigReader *reader, int64_t n_layers) {
    const json_t *types = config_value(reader, "mlp_layer_types");
    if (!types || reader->status != ST_OK) return NULL;
    if (json_array_size(types) != (size_t)n_layers)
        CONFIG_FAIL(reader, "'%s' has %zu mlp_layer_types for %lld layers", reader->path, json_array_size(types), (long long)n_layers);
    for (size_t i = 0; i < json_array_size(types) && reader->status == ST_OK; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && (strcmp(type, "dense") == 0 || strcmp(type, "sparse") == 0)) continue;
        CONFIG_FAIL(reader, "mlp_layer_types[%zu] in '%s' is '%s', which is not supported", i, reader->path, type ? type : "not a string");
        status_hint(ST_INPUT, "known: dense, sparse");
    }
    return types;
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 202752, .rms_norm_eps = 1e-5});
    latent_read(reader);
    experts_read(reader, "n_routed_experts num_experts num_local_experts", "moe_intermediate_size");
    experts_read_shared(reader);
    experts_read_sigmoid(reader, 1.8);
    experts_check(reader);
    experts_set_layers(reader, is_dense, read_types(reader, config->num_hidden_layers), &dense, &sparse);
}

const ModelFamily family_glm4_moe_lite = {"glm4_moe_lite", read_config, &llama_names, &sparse, "Glm4MoeLite"};
