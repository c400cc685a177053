/* SPDX-License-Identifier: Apache-2.0 */
/* For family files: reading config.json key by key, and the names of the decoder's parts.
 *
 *     static void read_config(ConfigReader *reader, ModelConfig *config) {
 *         config_read_decoder(reader, 32768);                        // what all families after llama share
 *         config->qkv_bias = config_flag(reader, "attention_bias", false);
 *     }
 *     const ModelFamily family_newmodel = {"newmodel", read_config, &llama_names, "NewModel"};
 *
 * Every key that is read counts as understood. A failure sticks to the reader; what is read after it is not used.
 */
#ifndef TUNE_FAMILY_H
#define TUNE_FAMILY_H

#include "lib/model/model.h"

enum { CONFIG_MAX_KEYS = 128 };
typedef struct ConfigReader {
    const json_t *json;
    const char *path;
    Arena *arena;
    ModelConfig *config;
    Status status;
    size_t n_seen;
    const char *seen[CONFIG_MAX_KEYS];
} ConfigReader;

/* Members of config.json; missing or null gives `fallback`. A wrong type, or a size that is not in 1..2^31-1, fails. */
int64_t config_size(ConfigReader *reader, const char *key, int64_t fallback); /* fallback 0: the key is required */
double config_real(ConfigReader *reader, const char *key, double fallback);
bool config_flag(ConfigReader *reader, const char *key, bool fallback);
const char *config_text(ConfigReader *reader, const char *key, const char *fallback);
Activation config_activation(ConfigReader *reader, const char *key, const char *fallback);
/* Fails, naming the key, unless it is missing, null, false, zero or empty: a feature that this family's decoder does not have. */
void config_refuse(ConfigReader *reader, const char *key);
/* A key whose value makes no difference here. */
void config_ignore(ConfigReader *reader, const char *key);
/* Sizes, RMS norms, gated MLP and rotary positions under the keys that llama gave them; no biases, full attention. */
void config_read_decoder(ConfigReader *reader, int64_t max_position_embeddings);
/* dropout: the largest of the known kinds; `fallback`: of resid_pdrop, embd_pdrop and attn_pdrop when they are missing. */
void config_read_dropout(ConfigReader *reader, double fallback);
/* layer_window: `window` (0 or less: none) on the layers that layer_types names, or on those from `from` on where it is missing. */
void config_set_windows(ConfigReader *reader, int64_t window, int64_t from);
/* The same from use_sliding_window, sliding_window, max_window_layers and layer_types, as qwen2 and qwen3 have them. */
void config_read_windows(ConfigReader *reader);

/* llama's names, which most families share. */
extern const PartNames llama_names;

#define FAMILY(name) extern const ModelFamily family_##name;
#include "lib/model/models.def"
#undef FAMILY

#endif
