/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters on a model: new ones, and those of PEFT directories (adapter_config.json, adapter_model.safetensors).
 *
 *     TRY(adapter_load(model, "adapter-dir", false)); // or model_attach_lora(model, &config, seed)
 *     TRY(adapter_save(model, "out-dir", model->dir));
 */
#ifndef TUNE_ADAPTER_H
#define TUNE_ADAPTER_H

#include "lib/model/model.h"

/* Attaches new LoRA branches to the targets, and full copies of modules_to_save. The names in `config` must outlive the model. ST_CONFIG names a
 * target that matches nothing, and lists the existing names. */
Status model_attach_lora(Model *model, const LoraConfig *config, uint64_t seed);
/* Reads a PEFT directory (adapter_config.json, adapter_model.safetensors) into the model. trained: its tensors are trained further. ST_INPUT: missing
 * files, another model's shapes, an unsupported adapter kind (DoRA, embedding LoRA, ...: named), unused tensors. */
Status adapter_load(Model *model, const char *dir, bool trained);
/* The LoRA settings of adapter_config.json. ST_INPUT as above. */
Status adapter_config_read(const char *dir, Arena *arena, LoraConfig *config);
/* The base that adapter_config.json names, "" if none. */
Status adapter_base(const char *dir, Arena *arena, const char **base);
/* The same, and the digest of the base's weights (model_base_digest) that adapter_config.json has if the base is quantised, "" if none. */
Status adapter_base_digest(const char *dir, Arena *arena, const char **base, const char **digest);
/* Appends the layers with a branch: "28 linear layers: 4 q_proj, 4 k_proj, ...", for a wrapped model with their place; nothing if there are none. */
void adapter_describe(const Model *model, Str *text);
/* Appends the layers without a branch, by kind: "6 up_proj of experts, 1 gate"; nothing if all have one. */
void adapter_describe_rest(const Model *model, Str *text);
/* Appends what the adapter in `dir` has pairs for in the model in `base` (adapter_describe), and what it has none for (adapter_describe_rest). Reads
 * names only. ST_INPUT: no such model or adapter. */
Status adapter_cover(const char *dir, const char *base, Str *with, Str *without);
/* Writes adapter_config.json and adapter_model.safetensors in PEFT's format. base: name_or_path of the base model. The folder appears complete or not
 * at all. Returns failures of writing. */
Status adapter_save(const Model *model, const char *dir, const char *base);

#endif
