/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapped models: a language model as one part of a vision or audio model. config.json has it as text_config, the checkpoint has its tensors below a
 * prefix, and everything else there is carried along, byte for byte.
 *
 * Paths of modules are those of the checkpoint: "model.language_model.layers.0.self_attn.q_proj". The family's own name of the same module,
 * "model.layers.0.self_attn.q_proj", is what it has alone.
 */
#ifndef TUNE_TEXT_PART_H
#define TUNE_TEXT_PART_H

#include "lib/model/model.h"

/* How a checkpoint or an adapter names the text part: `prefix` before the whole path, or instead of the family's own prefix ("model."). */
struct TextNames {
    const char *prefix;
    bool whole;
};
enum { NAMES_PLAIN, NAMES_MODEL_LANGUAGE_MODEL, NAMES_LANGUAGE_MODEL, NAMES_TEXT_MODEL, N_NAMES };
extern const TextNames text_names[N_NAMES]; /* NAMES_PLAIN: as the family's files have them */

/* ---- config.json ---- */

typedef struct TextConfig {
    json_t *json;     /* what a language model alone would say: text_config, with what stands beside it; released by the caller */
    const char *path; /* for messages */
    const char *wrapper;
    const TextNames *names;
} TextConfig;
/* The text part of config.json, which is the file itself where nothing is wrapped (wrapper NULL). ST_INPUT: no text_config where there has to be one,
 * a wrapper that is not known. Keys beside text_config that could mean something and are not used are a warning. */
Status text_config_find(const json_t *json, const char *path, Arena *arena, TextConfig *text);
/* text_config of a wrapped config.json; NULL: nothing is wrapped. */
json_t *text_config_of(const json_t *json);

/* ---- names ---- */

/* What the family calls `path` of this model, and what `names` make of that. In `arena`; NULL: out of memory. Parts that have no prefix in the
 * family (a head) get none but that of a whole path. */
const char *text_path(const ModelConfig *config, const TextNames *names, const char *path, Arena *arena);
/* The names that the tensors (each below `root`, "" or PEFT's prefix) are stored under; NULL: none of them is a layer of the text part. */
const TextNames *text_names_in(const ModelConfig *config, const Safetensors *files, const char *root);
/* Sets config->text_names by the checkpoint. ST_INPUT: it has no text part, with the tensor that was expected. */
Status text_names_find(ModelConfig *config, const Safetensors *files, const char *dir);
/* Gives all modules, and the parameters of adapters, the paths that `names` make: adapters may be made with other names than the checkpoint's. */
Status text_rename(Model *model, const TextNames *names);

/* ---- what else a checkpoint holds ---- */

/* Whether the tensor, which the decoder has no place for, is of a kind that is carried along: other parts of a wrapped model, layers that predict
 * further tokens (mtp.*), layers behind the last one. */
bool text_is_passthrough(const ModelConfig *config, const char *name);
bool text_is_unused_part(const ModelConfig *config, const char *name); /* the first of these */
/* What is carried, by its parts: "model.visual (31 tensors), mtp (2)". */
void text_describe_passthrough(const Model *model, Str *text);
/* Warns of layers behind the last one that config.json does not speak of. */
void text_warn_of_layers(const Model *model);

#endif
