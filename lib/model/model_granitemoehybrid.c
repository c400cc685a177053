/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 4 without experts and without mamba layers (350M, 1B, micro): Granite 3 with one projection for gate and up. Checked against transformers'
 * GraniteMoeHybridForCausalLM. */
#include "lib/model/family.h"

#include <string.h>

/* The layer types: only attention is supported, under both names. Without the key all layers are mamba. */
static void check_layers(ConfigReader *reader, int64_t n) {
    const json_t *types = config_value(reader, "layer_types");
    if (reader->status != ST_OK) return;
    if (types && json_array_size(types) != (size_t)n)
        CONFIG_FAIL(reader, "'%s' has %zu layer_types for %lld layers", reader->path, json_array_size(types), (long long)n);
    for (int64_t i = 0; i < n && reader->status == ST_OK; i++) {
        const char *type = types ? json_string_value(json_array_get(types, (size_t)i)) : "mamba";
        if (type && (strcmp(type, "attention") == 0 || strcmp(type, "full_attention") == 0)) continue;
        CONFIG_FAIL(reader, "layer_types[%lld] in '%s' is '%s', which is not supported for model_type 'granitemoehybrid'", (long long)i, reader->path,
                    type ? type : "not a string");
        status_hint(ST_INPUT, "known: attention, full_attention; models with mamba layers are not read");
    }
}

static void ignore_others(ConfigReader *reader) {
    static const char *const unused[] = {
        "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv",         "mamba_d_head",    "mamba_d_state",       "mamba_expand",
        "mamba_n_groups",   "mamba_n_heads",   "mamba_proj_bias",      "time_step_limit", "num_experts_per_tok", "time_step_min",
        "time_step_max",    "time_step_floor", "output_router_logits", "init_method",     "layers_block_type",   "router_aux_loss_coef",
    };
    for (size_t i = 0; i < COUNT_OF(unused); i++) config_ignore(reader, unused[i]);
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(reader, &(DecoderDefaults){.intermediate_size = 11008, .max_position_embeddings = 2048});
    granite_read(reader, config);
    config->intermediate_size = config_size(reader, "shared_intermediate_size", 1024);
    double experts = config_real(reader, "num_local_experts", 8);
    if (experts != 0)
        CONFIG_FAIL(reader, "'%s' has %g num_local_experts: of model_type 'granitemoehybrid' those without are read", reader->path, experts);
    check_layers(reader, config->num_hidden_layers);
    const char *positions = config_text(reader, "position_embedding_type", "nope"), *norm = config_text(reader, "normalization_function", "rmsnorm");
    if (reader->status != ST_OK) return;
    if (strcmp(positions, "nope") == 0)
        config->rope.type = ROPE_NONE;
    else if (strcmp(positions, "rope") != 0)
        CONFIG_FAIL(reader, "'%s' asks for position_embedding_type '%s', expected rope or nope", reader->path, positions);
    if (strcmp(norm, "rmsnorm") != 0) CONFIG_FAIL(reader, "'%s' asks for normalization_function '%s', expected rmsnorm", reader->path, norm);
    ignore_others(reader);
}

static const LayerForm layer = {{
    {&block_attention, &llama_attention, .input_norm = "input_layernorm"},
    {&block_gated_mlp, &(const GatedMlpForm){.gate_up = "shared_mlp.input_linear", .down = "shared_mlp.output_linear"},
     .input_norm = "post_attention_layernorm"},
}};

const ModelFamily family_granitemoehybrid = {"granitemoehybrid", read_config, &llama_names, &layer, "GraniteMoeHybrid"};
