/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapped models: a language model as one part of a vision or audio model. config.json has it as text_config, the checkpoint has its tensors under a
 * prefix, and all other tensors are carried along, byte for byte.
 *
 * Paths of modules are those of the checkpoint: "model.language_model.layers.0.self_attn.q_proj". The family's name of the same module,
 * "model.layers.0.self_attn.q_proj", is its name in a plain language model.
 */
#ifndef TUNE_TEXT_PART_H
#define TUNE_TEXT_PART_H

#include "lib/model/model.h"

/* How a checkpoint or an adapter names the modules of the text part. */
struct TextNames {
    const char *prefix;
    bool whole; /* prefix precedes the full path: "language_model.model.layers.0"; false: it replaces the family's prefix "model." */
};
enum { NAMES_PLAIN, NAMES_MODEL_LANGUAGE_MODEL, NAMES_LANGUAGE_MODEL, NAMES_TEXT_MODEL, N_NAMES };
extern const TextNames text_names[N_NAMES]; /* NAMES_PLAIN: as in the family's files */

/* ---- config.json ---- */

typedef struct TextConfig {
    json_t *json;           /* the config of a plain language model: text_config, with the shared keys of the top level; the caller releases it */
    const char *path;       /* for messages */
    const char *wrapper;    /* its model_type; NULL: nothing is wrapped */
    const TextNames *names; /* those of published files of this wrapper */
} TextConfig;
/* Extracts the text part of config.json, which is the full file if nothing is wrapped (wrapper NULL). ST_INPUT: a missing text_config, an unknown
 * wrapper. Unused keys outside text_config that may matter are a warning. */
Status text_config_find(const json_t *json, const char *path, Arena *arena, TextConfig *text);
/* text_config of a wrapped config.json, borrowed from `json`; NULL: nothing is wrapped. */
json_t *text_config_of(const json_t *json);

/* ---- names ---- */

/* Translates the path of a module of this model to another naming. In `arena`, or `path` itself; NULL: out of memory. A part without the family's
 * prefix (a head) gets a prefix only if names->whole. */
const char *text_path(const ModelConfig *config, const TextNames *names, const char *path, Arena *arena);
/* Finds the naming of the stored tensors, whose names begin with `root` ("" or PEFT's prefix). NULL: none of them is of the text part. */
const TextNames *text_names_in(const ModelConfig *config, const WeightFile *files, const char *root);
/* Detects config->text_names from the checkpoint. ST_INPUT: it has no text part; names the tensor that was expected. */
Status text_names_find(ModelConfig *config, const WeightFile *files, const char *dir);
/* Renames all modules, and the parameters of adapters, as `names` says: adapters may use other names than the checkpoint. ST_RESOURCE. */
Status text_rename(Model *model, const TextNames *names);

/* ---- other contents of a checkpoint ---- */

/* Whether the tensor, which the decoder does not use, is of a kind that is carried along: other parts of a wrapped model, layers that predict further
 * tokens (mtp.*), layers after the last one. */
bool text_is_passthrough(const ModelConfig *config, const char *name);
bool text_is_unused_part(const ModelConfig *config, const char *name); /* the first of these */
/* The carried tensors, by part: "model.visual (31 tensors), mtp (2)". */
void text_describe_passthrough(const Model *model, Str *text);
/* Warns about layers after the last one that config.json does not mention. */
void text_warn_of_layers(const Model *model);

#endif
