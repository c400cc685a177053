/* SPDX-License-Identifier: Apache-2.0 */
/* For family files: reads config.json key by key, and names the decoder's parts.
 *
 *     static void read_config(ConfigReader *reader, ModelConfig *config) {
 *         config_read_decoder(reader, &(DecoderDefaults){.max_position_embeddings = 32768}); // common to all families after llama
 *         config->qkv_bias = config_flag(reader, "attention_bias", false);
 *     }
 *     const ModelFamily family_newmodel = {"newmodel", read_config, &llama_names, &llama_layer, "NewModel"};
 *
 * Every key that is read counts as understood. The reader stores the first failure; values read after it are not used.
 */
#ifndef TUNE_FAMILY_H
#define TUNE_FAMILY_H

#include "lib/model/block.h"

enum { CONFIG_MAX_KEYS = 128 };
typedef struct ConfigReader {
    const json_t *json;
    const char *path; /* for messages */
    Arena *arena;     /* of what `config` points to */
    ModelConfig *config;
    Status status;                     /* the first failure */
    size_t n_seen;                     /* keys that count as understood */
    const char *seen[CONFIG_MAX_KEYS]; /* their names */
} ConfigReader;

/* Records a failure unless there was one before. */
static inline void config_failed(ConfigReader *reader, Status status) {
    if (reader->status == ST_OK) reader->status = status;
}
#define CONFIG_FAIL(reader, ...)                                                                  \
    do {                                                                                          \
        if ((reader)->status == ST_OK) config_failed(reader, status_fail(ST_INPUT, __VA_ARGS__)); \
    } while (0)
const json_t *config_value(ConfigReader *reader, const char *key); /* NULL: missing or null */

/* Members of config.json; missing or null gives `fallback`. A wrong type, or a size outside 1..2^31-1, fails. */
int64_t config_size(ConfigReader *reader, const char *key, int64_t fallback); /* fallback 0: the key is required */
double config_real(ConfigReader *reader, const char *key, double fallback);
double config_positive(ConfigReader *reader, const char *key, double fallback);
double config_cap(ConfigReader *reader, const char *key, double fallback); /* a soft cap: above 0; null means none and gives 0 */
bool config_flag(ConfigReader *reader, const char *key, bool fallback);
const char *config_text(ConfigReader *reader, const char *key, const char *fallback);
Activation config_activation(ConfigReader *reader, const char *key, const char *fallback);
/* Fails and names the key, unless it is missing, null, false, zero or empty: a feature that this family's decoder lacks. */
void config_refuse(ConfigReader *reader, const char *key);
/* Marks a key as understood whose value has no effect here. */
void config_ignore(ConfigReader *reader, const char *key);
/* A family's defaults for missing keys. 0 or NULL: as llama, which has no default for most sizes. */
typedef struct DecoderDefaults {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
        max_position_embeddings, original_max_position_embeddings;
    double rms_norm_eps, rope_theta;
    bool tie_word_embeddings;
    const char *hidden_activation; /* gemma: the key of the activation */
    double partial_rotary_factor;  /* 0: the family rotates the complete head */
    const char *window_theta_key;  /* the key of the window layers' rope in files of transformers 4; NULL: all layers share one rope */
    double window_theta;
    bool old_longrope;   /* phi3: "su" and "yarn" are longrope */
    bool scaled_queries; /* ministral3: llama_4_scaling_beta */
} DecoderDefaults;
/* Sizes, RMS norms, gated MLP and rotary positions under llama's keys; no biases, full attention. */
void config_read_decoder(ConfigReader *reader, const DecoderDefaults *usual);
/* Sets config->rope and, if window layers have a separate one, window_rope and layer_rope. config_read_decoder calls it. */
void config_read_rope(ConfigReader *reader, const DecoderDefaults *usual);
void config_check_rope(ConfigReader *reader, const RopeConfig *rope); /* fails unless the rope fits head_dim; called after read_config */
/* dropout: the largest of the known kinds; `fallback`: the default of resid_pdrop, embd_pdrop and attn_pdrop. */
void config_read_dropout(ConfigReader *reader, double fallback);
/* Sets layer_window: `window` (0 or less: none) on the layers that layer_types calls sliding; if that key is missing, on layers `from` and later. */
void config_set_windows(ConfigReader *reader, int64_t window, int64_t from);
/* The same, but if layer_types is missing, on the layers for which `slides` is true. Both also set layer_rope if window layers have a separate rope.
 */
typedef bool LayerTest(int64_t layer, const void *given);
void config_slide(ConfigReader *reader, int64_t window, LayerTest *slides, const void *given);
/* The same from use_sliding_window, sliding_window, max_window_layers and layer_types, as in qwen2 and qwen3. */
void config_read_windows(ConfigReader *reader);

/* sliding_window: `fallback` if missing, 0 (none) if null. */
int64_t config_window(ConfigReader *reader, int64_t fallback);

/* llama's names and layer, which most families share, and its blocks. */
extern const PartNames llama_names;
extern const LayerForm llama_layer;
extern const AttentionForm llama_attention;
extern const GatedMlpForm llama_mlp;
extern const AttentionForm normed_attention; /* qwen3's: with norms over each query and key head */
extern const GatedMlpForm fused_mlp;         /* phi3's: gate and up in one projection */
extern const LayerForm olmo_layer;
/* The keys that both Gemmas, OLMos and Granites share, read after config_read_decoder. */
void gemma_read(ConfigReader *reader, ModelConfig *config);
void olmo_read(ConfigReader *reader, ModelConfig *config);
void granite_read(ConfigReader *reader, ModelConfig *config);

#define FAMILY(name) extern const ModelFamily family_##name;
#include "lib/model/models.def"
#undef FAMILY

#endif
