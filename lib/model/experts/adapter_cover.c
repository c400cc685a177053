/* SPDX-License-Identifier: Apache-2.0 */
/* Which linear layers of its base an adapter has pairs for, from the names in its file. No weights are read. */
#include "lib/model/adapter.h"
#include "lib/model/experts/experts.h"
#include "lib/model/parts.h"
#include "lib/model/text_part.h"

/* The layers of the base, without tensors. */
static Status build_base(const char *base, Model *model) {
    TRY(model_config_read(base, model->arena, &model->config));
    TRY(weight_file_open(base, &model->files));
    if (model->config.wrapper) TRY(text_names_find(&model->config, model->files, base));
    if (model->config.experts.n) TRY(experts_find(&model->config, model->files));
    return model_build(model, model->config.scores);
}

static bool has_pair(const Model *model, const WeightFile *files, const LoraConfig *lora, const Linear *linear) {
    const char *path = linear->path;
    if (linear->copies && !lora_targets(lora, linear)) return false;
    if (linear->copies) path = together_path(linear, together_has_both(model, lora, linear), model->arena);
    Str name = {0};
    str_printf(&name, "%s%s.lora_A.weight", PEFT_PREFIX, path ? path : "");
    bool found = path && weight_file_find(files, str_text(&name));
    str_release(&name);
    return found;
}

static Status find_pairs(Model *model, const char *dir) {
    static LoraBranch pair; /* an example of any */
    AdapterSettings settings;
    WeightFile *files;
    const char *weights = path_join(model->arena, dir, "adapter_model.safetensors");
    if (!weights) return ST_RESOURCE;
    TRY(adapter_settings_read(dir, model->arena, &settings));
    TRY(weight_file_open(weights, &files));
    Status status = text_rename(model, text_names_in(&model->config, files, PEFT_PREFIX));
    for (size_t i = 0; status == ST_OK && i < model->n_linears; i++)
        if (has_pair(model, files, &settings.lora, model->linears[i])) model->linears[i]->lora = &pair;
    weight_file_close(files);
    return status;
}

Status adapter_cover(const char *dir, const char *base, Str *with, Str *without) {
    Model model = {.arena = arena_new(0), .dir = base};
    if (!model.arena) return ST_RESOURCE;
    Status status = build_base(base, &model);
    if (status == ST_OK) status = find_pairs(&model, dir);
    if (status == ST_OK) adapter_describe(&model, with);
    if (status == ST_OK) adapter_describe_rest(&model, without);
    weight_file_close(model.files);
    arena_free(model.arena);
    return status;
}
