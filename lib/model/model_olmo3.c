/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 3: OLMo 2 with a window on three of four layers; rope scaling applies only to the others. Checked against transformers' Olmo3ForCausalLM. */
#include "lib/model/family.h"

static bool model_olmo3_slides(int64_t layer, const void *given) {
    (void)given;
    return (layer + 1) % 4 != 0;
}

static void read_config(ConfigReader *reader, ModelConfig *config) {
    config_read_decoder(
        reader,
        &(DecoderDefaults){
            .max_position_embeddings = 2048, .rms_norm_eps = 1e-5, .rope_theta = 500000, .window_theta_key = "rope_theta", .window_theta = 500000});
    olmo_read(reader, config);
    config_slide(reader, config_window(reader, 4096), model_olmo3_slides, NULL);
}

const ModelFamily family_olmo3 = {"olmo3", read_config, &llama_names, &olmo_layer, "Olmo3"};
