/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters: attaching new ones, and reading PEFT's adapter_model.safetensors. */
#include "lib/base/log.h"
#include "lib/model/adapter.h"
#include "lib/model/convert.h"
#include "lib/model/parts.h"
#include "lib/model/text_part.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- fully trained modules ---- */

/* Puts a trained copy of a tensor into its slot; the original stays in the list. */
static Status save_slot(Model *model, const char *path, const char *kind, Tensor **slot, bool trained) {
    const Tensor *original = *slot;
    DType dtype = model->compute == DT_F64 ? DT_F64 : DT_F32;
    Tensor *copy = tensor_new(model->arena, model->device, dtype, original->n_dims, original->shape);
    char *name = arena_printf(model->arena, "%s.%s", path, kind);
    if (!copy || !name) return ST_RESOURCE;
    copy->name = name;
    copy->in_out = original->in_out;
    model->device->copy(original, copy);
    Param *param = params_add(&model->params, name, copy, PARAM_SAVED);
    if (!param) return ST_RESOURCE;
    *slot = copy;
    return trained ? params_train(param, model->arena) : ST_OK;
}

static Status save_module(Model *model, const Module *module, bool trained) {
    TRY(save_slot(model, module->path, "weight", module->weight, trained));
    return module->bias ? save_slot(model, module->path, "bias", module->bias, trained) : ST_OK;
}

/* ---- a new adapter ---- */

size_t linear_kinds(const Model *model, const char **names, size_t cap) {
    size_t n = 0;
    for (size_t i = 0; i < model->n_linears; i++) {
        if (model->linears[i]->copies) continue; /* a parameter, not a module */
        const char *dot = strrchr(model->linears[i]->path, '.'), *name = dot ? dot + 1 : model->linears[i]->path;
        bool known = false;
        for (size_t k = 0; k < n && !known; k++) known = strcmp(names[k], name) == 0;
        if (!known && n < cap) names[n++] = name;
    }
    return n;
}

void adapter_describe(const Model *model, Str *text) {
    const char *names[MAX_KINDS];
    size_t n = linear_kinds(model, names, COUNT_OF(names)), total = 0;
    Str list = {0};
    for (size_t k = 0; k < n; k++) {
        size_t with = 0;
        for (size_t i = 0; i < model->n_linears; i++)
            with += !model->linears[i]->copies && model->linears[i]->lora && module_matches(model->linears[i]->path, &names[k], 1);
        if (with) str_printf(&list, "%s%zu %s", list.len ? ", " : "", with, names[k]);
        total += with;
    }
    const char *path = model->n_linears ? model->linears[0]->path : "", *layers = model->config.family->names->layers;
    const char *at = strstr(path, strrchr(layers, '.') ? strrchr(layers, '.') : layers);
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        if (!linear->copies || !linear->lora) continue;
        const char *dot = strrchr(linear->path, '.');
        bool seen = false;
        size_t with = 0;
        for (size_t k = 0; k < model->n_linears; k++) {
            const Linear *other = model->linears[k];
            bool same = other->copies && other->lora && text_ends_with(other->path, dot);
            seen |= same && k < i;
            with += same;
        }
        if (!seen) str_printf(&list, "%s%zu experts%s of %lld experts each", list.len ? ", " : "", with, dot, (long long)linear->copies);
        total++;
    }
    if (total) str_printf(text, "%zu linear layer%s", total, plural((int64_t)total));
    if (total && model->config.wrapper && at) str_printf(text, " of the text part, %.*s", (int)(at - path), path);
    if (total) str_printf(text, ": %s", str_text(&list));
    str_release(&list);
}

/* Whether a layer has a branch, its own or a part of that of all experts together. */
static bool is_covered(const Linear *linear) { return linear->lora || (linear->together && linear->together->lora); }

void adapter_describe_rest(const Model *model, Str *text) {
    const char *names[MAX_KINDS];
    size_t n = linear_kinds(model, names, COUNT_OF(names)), n_kinds = 0;
    for (size_t k = 0; k < n; k++)
        for (int expert = 0; expert < 2; expert++) {
            size_t without = 0;
            for (size_t i = 0; i < model->n_linears; i++) {
                const Linear *linear = model->linears[i];
                without += !linear->copies && (linear->together != NULL) == (expert != 0) && !is_covered(linear) &&
                           module_matches(linear->path, &names[k], 1);
            }
            if (without) str_printf(text, "%s%zu %s%s", n_kinds++ ? ", " : "", without, names[k], expert ? " of experts" : "");
        }
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        if (!linear->copies || !linear->weight || linear->lora) continue;
        str_printf(text, "%s%s", n_kinds++ ? ", " : "", linear->path);
    }
}

static Status unknown_target(const Model *model, const char *target) {
    const char *names[MAX_KINDS];
    size_t n = linear_kinds(model, names, COUNT_OF(names));
    for (size_t i = 0; i < model->n_modules; i++)
        if (module_matches(model->modules[i].path, &target, 1)) {
            status_fail(ST_CONFIG, "no LoRA on '%s': it is not a linear layer inside the model", target);
            return status_hint(ST_CONFIG, "modules_to_save trains it in full");
        }
    Str list = {0};
    for (size_t i = 0; i < n; i++) str_printf(&list, "%s%s", i ? ", " : "", names[i]);
    const char *nearest = text_nearest(target, names, n);
    status_fail(ST_CONFIG, "target module '%s' matches nothing in '%s'", target, model->dir);
    if (nearest)
        status_hint(ST_CONFIG, "did you mean '%s'? there are %s", nearest, str_text(&list));
    else
        status_hint(ST_CONFIG, "there are %s", str_text(&list));
    str_release(&list);
    return ST_CONFIG;
}

static Status check_lora(const Model *model, const LoraConfig *config) {
    if (model->lora.rank > 0) return status_fail(ST_CONFIG, "the model in '%s' has an adapter already", model->dir);
    if (config->rank < 1) return status_fail(ST_CONFIG, "LoRA of rank %lld", (long long)config->rank);
    if (config->target_regex) TRY(pattern_check(config->target_regex));
    for (size_t i = 0; i < config->n_rank_pattern; i++) TRY(pattern_check(config->rank_keys[i]));
    for (size_t i = 0; i < config->n_alpha_pattern; i++) TRY(pattern_check(config->alpha_keys[i]));
    for (size_t i = 0; i < model->n_linears; i++) TRY(lora_decides(config, model->linears[i]->path));
    return ST_OK;
}

/* "q_proj, k_proj": the names in the model, in `list`. */
static void list_kinds(const Model *model, Str *list) {
    const char *names[MAX_KINDS];
    size_t n = linear_kinds(model, names, COUNT_OF(names));
    for (size_t i = 0; i < n; i++) str_printf(list, "%s%s", i ? ", " : "", names[i]);
}

static Status check_regex(const Model *model, const LoraConfig *config) {
    bool found = false;
    for (size_t i = 0; i < model->n_linears && !found; i++) found = lora_targets(config, model->linears[i]);
    if (found) return ST_OK;
    Str list = {0};
    list_kinds(model, &list);
    status_fail(ST_CONFIG, "target pattern '%s' matches nothing in '%s'", config->target_regex, model->dir);
    status_hint(ST_CONFIG, "it has to match full paths, such as %s; there are %s", model->linears[0]->path, str_text(&list));
    str_release(&list);
    return ST_CONFIG;
}

/* "mlp.experts.gate_up_proj, mlp.experts.down_proj": the layers of all experts together, by their names within a layer. */
static Status unknown_parameter(const Model *model, const char *name) {
    Str list = {0};
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        const char *at = linear->copies ? strstr(linear->path, "experts.") : NULL;
        if (at && !strstr(list.data ? list.data : "", at)) str_printf(&list, "%s%s", list.len ? ", " : "", at);
    }
    status_fail(ST_CONFIG, "target parameter '%s' matches nothing in '%s'", name, model->dir);
    if (list.len)
        status_hint(ST_CONFIG, "there are %s", str_text(&list));
    else
        status_hint(ST_CONFIG, "target_parameters are of models with experts, and this one has none");
    str_release(&list);
    return ST_CONFIG;
}

static Status check_parameters(const Model *model, const LoraConfig *config) {
    for (size_t t = 0; t < config->n_parameters; t++) {
        bool found = false;
        for (size_t i = 0; i < model->n_linears && !found; i++)
            found = model->linears[i]->copies && module_matches(model->linears[i]->path, &config->parameters[t], 1);
        if (!found) return unknown_parameter(model, config->parameters[t]);
    }
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        if (linear->together && lora_targets(config, linear) && lora_targets(config, linear->together)) {
            status_fail(ST_CONFIG, "'%s' would get two adapters: one of its own, and one of all experts together", linear->path);
            return status_hint(ST_CONFIG, "name experts in target_modules or in target_parameters, not in both");
        }
    }
    return ST_OK;
}

static Status check_targets(const Model *model, const LoraConfig *config) {
    TRY(check_parameters(model, config));
    if (config->target_regex) return check_regex(model, config);
    for (size_t t = 0; t < config->n_targets; t++) {
        bool found = false;
        for (size_t i = 0; i < model->n_linears && !found; i++)
            found = !model->linears[i]->copies && module_matches(model->linears[i]->path, &config->targets[t], 1);
        if (!found) return unknown_target(model, config->targets[t]);
    }
    return ST_OK;
}

/* A pattern that matches no adapted module would have no effect, so it is an error. */
static Status check_patterns(const Model *model, const LoraConfig *config, const char *const *keys, size_t n, const char *what) {
    for (size_t k = 0; k < n; k++) {
        bool found = false;
        for (size_t i = 0; i < model->n_linears && !found; i++)
            found = lora_targets(config, model->linears[i]) && pattern_key_matches(keys[k], model->linears[i]->path);
        if (!found)
            return status_hint(status_fail(ST_CONFIG, "'%s' of %s matches no module that gets an adapter", keys[k], what),
                               "it is a module's name or path, or a regular expression for one");
    }
    return ST_OK;
}

static Status check_saved(const Model *model, const Module *module) {
    const StoredTensor *stored = model->files ? stored_find(model, module->path, module->bare ? NULL : "weight") : NULL;
    if (!stored || !stored_is_quantised(stored)) return ST_OK;
    status_fail(ST_CONFIG, "'%s' of modules_to_save is quantised, and cannot be trained in full: tensor '%s' in '%s' is %s", module->path,
                stored->name, stored->file, stored->dtype_text);
    return status_hint(ST_CONFIG, "leave it out of lora.modules_to_save, or take the model that the base was made from");
}

static Status save_named_modules(Model *model, const LoraConfig *config) {
    for (size_t t = 0; t < config->n_saved; t++) {
        bool found = false;
        for (size_t i = 0; i < model->n_modules; i++) {
            const Module *module = &model->modules[i];
            if (module->bare || !module_matches(module->path, &config->saved[t], 1)) continue; /* bare: no module to PEFT */
            found = true;
            if (module_matches(module->path, config->saved, t)) continue; /* already saved under a name */
            if (module->linear && lora_targets(config, module->linear))
                return status_fail(ST_CONFIG, "'%s' is in modules_to_save and a LoRA target at once", module->path);
            TRY(check_saved(model, module));
            TRY(save_module(model, module, true));
        }
        if (!found) return status_fail(ST_CONFIG, "module '%s' of modules_to_save matches nothing in '%s'", config->saved[t], model->dir);
    }
    return ST_OK;
}

/* ---- names that differ from the checkpoint's ---- */

/* Whether each target, or the pattern for them, matches some linear layer. */
static bool targets_fit(const Model *model, const LoraConfig *config) {
    bool fit = !config->target_regex;
    for (size_t i = 0; i < model->n_linears && !fit; i++) fit = pattern_matches(config->target_regex, model->linears[i]->path);
    for (size_t t = 0; t < config->n_targets && fit && !config->target_regex; t++) {
        fit = false;
        for (size_t i = 0; i < model->n_linears && !fit; i++) fit = module_matches(model->linears[i]->path, &config->targets[t], 1);
    }
    return fit;
}

/* Renames the model's modules so that the targets match its layers: paths and patterns depend on the version of the transformers class that they were
 * written for. */
static Status take_names_of_targets(Model *model, const LoraConfig *config) {
    const TextNames *own = model->config.text_names;
    for (int i = 0; i < N_NAMES && !targets_fit(model, config); i++) TRY(text_rename(model, &text_names[i]));
    return targets_fit(model, config) ? ST_OK : text_rename(model, own ? own : &text_names[NAMES_PLAIN]);
}

static Status rename_all(const Model *model, const TextNames *names, size_t n, const char ***list) {
    const char **renamed = arena_alloc(model->arena, (n + 1) * sizeof *renamed);
    if (!renamed) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++)
        if (!(renamed[i] = text_path(&model->config, names, (*list)[i], model->arena))) return ST_RESOURCE;
    *list = renamed;
    return ST_OK;
}

/* Restores the checkpoint's names, also in the paths of the adapter's settings. */
static Status take_own_names(Model *model, const TextNames *own) {
    if (!own) own = &text_names[NAMES_PLAIN];
    if (!model->config.text_names || model->config.text_names == own) return ST_OK;
    TRY(rename_all(model, own, model->lora.n_targets, &model->lora.targets));
    TRY(rename_all(model, own, model->lora.n_saved, &model->lora.saved));
    return text_rename(model, own);
}

static Status attach(Model *model, const LoraConfig *config, uint64_t seed) {
    TRY(check_targets(model, config));
    TRY(check_patterns(model, config, config->rank_keys, config->n_rank_pattern, "rank_pattern"));
    TRY(check_patterns(model, config, config->alpha_keys, config->n_alpha_pattern, "alpha_pattern"));
    DType dtype = model->compute == DT_F64 ? DT_F64 : DT_F32;
    for (size_t i = 0; i < model->n_linears; i++)
        if (lora_targets(config, model->linears[i]))
            TRY(lora_attach(model->linears[i], config, seed, dtype, model->device, model->arena, &model->params));
    lora_set_lr_ratio(&model->params, config->lr_ratio > 0 ? config->lr_ratio : 1);
    TRY(save_named_modules(model, config));
    model->lora = *config;
    return ST_OK;
}

Status model_attach_lora(Model *model, const LoraConfig *config, uint64_t seed) {
    const TextNames *own = model->config.text_names;
    TRY(check_lora(model, config));
    TRY(take_names_of_targets(model, config));
    TRY(attach(model, config, seed));
    return take_own_names(model, own);
}

/* ---- reading adapter_model.safetensors ---- */

typedef struct AdapterReader {
    Model *model;
    const WeightFile *files;
    const AdapterSettings *settings;
    bool *used;
    bool trained;
} AdapterReader;

/* The tensor "path.kind", by the naming that most of the adapter uses, or else by others: PEFT may name fully trained modules differently. */
static const StoredTensor *find_tensor(const AdapterReader *reader, const char *path, const char *kind) {
    const Model *model = reader->model;
    const StoredTensor *stored = NULL;
    for (int i = -1; i < (reader->settings->lora.n_saved ? N_NAMES : 0) && !stored; i++) {
        const char *other = i < 0 ? path : text_path(&model->config, &text_names[i], path, model->arena);
        Str name = {0};
        str_printf(&name, "%s%s.%s", PEFT_PREFIX, other ? other : path, kind);
        stored = weight_file_find(reader->files, str_text(&name));
        str_release(&name);
    }
    return stored;
}

/* Whether a name in modules_to_save refers to the module, by any of its names. */
static bool saved_means(const Model *model, const char *name, const char *path) {
    bool means = module_matches(path, &name, 1);
    for (int i = 0; i < N_NAMES && !means; i++) {
        const char *other = text_path(&model->config, &text_names[i], path, model->arena);
        means = other && module_matches(other, &name, 1);
    }
    return means;
}

/* ---- pairs of all experts together, as PEFT stores them ---- */

const char *together_path(const Linear *linear, bool both, Arena *arena) {
    const char *dot = strrchr(linear->path, '.');
    bool inner = both && strcmp(dot, ".gate_up_proj") == 0;
    return arena_printf(arena, "%.*s%s", (int)(dot - linear->path), linear->path, inner ? ".base_layer" : "");
}

bool together_has_both(const Model *model, const LoraConfig *config, const Linear *linear) {
    size_t n = (size_t)(strrchr(linear->path, '.') - linear->path);
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *other = model->linears[i];
        if (other != linear && other->copies && strncmp(other->path, linear->path, n + 1) == 0 && lora_targets(config, other))
            return lora_targets(config, linear);
    }
    return false;
}

/* A hint for the most common cause: the adapter was made for another base. */
static Status hint_other_model(const AdapterReader *reader) {
    if (reader->settings->base[0] == '\0') return status_hint(ST_INPUT, "the adapter may be for another model than '%s'", reader->model->dir);
    if (strcmp(reader->settings->base, reader->model->dir) == 0)
        return status_hint(ST_INPUT,
                           "the adapter was made for this model, to go by its adapter_config.json: are its tensors those that were saved with it?");
    return status_hint(ST_INPUT, "the adapter was made for '%s', this model is '%s'", reader->settings->base, reader->model->dir);
}

/* Compares the rank in a module's settings with that of its tensors. Other differences mean another model. */
static Status check_rank(const StoredTensor *a, const Linear *linear) {
    int64_t rank = linear->lora->a->shape[0];
    if (a->n_dims != 2 || a->shape[0] == rank || a->shape[1] != linear->in) return ST_OK;
    status_fail(ST_INPUT, "tensor '%s' in '%s' has rank %lld, and adapter_config.json says %lld", a->name, a->file, (long long)a->shape[0],
                (long long)rank);
    return status_hint(ST_INPUT,
                       "take the adapter_config.json that was saved with these tensors, or set its 'r' (or 'rank_pattern') to what they have");
}

static Status adapter_fill(AdapterReader *reader, const StoredTensor *stored, Param *param) {
    Tensor *tensor = param->tensor;
    if (stored_check(stored, tensor->n_dims, tensor->shape) != ST_OK) return hint_other_model(reader);
    reader->used[stored - reader->files->tensors] = true;
    TRY(tensor_convert(tensor, 0, stored->data, stored->dtype, tensor_count(tensor)));
    TRY(tensor_check_finite(tensor, stored->name, stored->file));
    if (reader->trained) return param->trained ? ST_OK : params_train(param, reader->model->arena);
    tensor->storage->constant = true;
    return ST_OK;
}

static Status load_magnitude(AdapterReader *reader, const Linear *linear, const char *file, Param *param) {
    const StoredTensor *magnitude = find_tensor(reader, linear->path, "lora_magnitude_vector");
    if (!magnitude) {
        status_fail(ST_INPUT, "tensor '%s%s.lora_magnitude_vector' is missing in '%s'", PEFT_PREFIX, linear->path, file);
        return status_hint(ST_INPUT, "adapter_config.json says 'use_dora': take the one that was saved with these tensors");
    }
    TRY(adapter_fill(reader, magnitude, param));
    return reader->trained ? ST_OK : lora_keep_norms(linear->lora, reader->model->arena);
}

/* DoRA reads the weight when its branch is made; here a weight in a file is read once and not kept. */
static void drop_weight(const Model *model, const Linear *linear) {
    const StoredTensor *stored = linear->lora->magnitude && model->files ? weight_file_find(model->files, linear->weight->name) : NULL;
    if (stored && linear->weight->storage->kind == STORAGE_MAPPED) model_drop_pages(model, stored->data, stored->bytes);
}

/* B of all experts, (out, E r) with the expert's number running fastest, becomes (E out, r). */
static Status fill_together(AdapterReader *reader, const StoredTensor *stored, const Linear *linear, Param *param) {
    int64_t E = linear->copies, out = linear->out, rank = tensor_width(param->tensor), count = tensor_count(param->tensor);
    if (stored_check(stored, 2, (int64_t[]){out, E * rank}) != ST_OK) return hint_other_model(reader);
    reader->used[stored - reader->files->tensors] = true;
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    if (!values) return status_fail(ST_RESOURCE, "out of memory for tensor '%s'", stored->name);
    for (int64_t e = 0; e < E; e++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t j = 0; j < rank; j++) values[(e * out + o) * rank + j] = (float)stored_get(stored, o * E * rank + j * E + e);
    Status status = tensor_convert(param->tensor, 0, values, DT_F32, count);
    free(values);
    TRY(status);
    TRY(tensor_check_finite(param->tensor, stored->name, stored->file));
    if (reader->trained) return param->trained ? ST_OK : params_train(param, reader->model->arena);
    param->tensor->storage->constant = true;
    return ST_OK;
}

/* An adapter of another number of experts. */
static Status check_experts(const StoredTensor *a, const Linear *linear) {
    int64_t rank = tensor_width(linear->lora->b), n = a->n_dims == 2 ? a->shape[0] : 0;
    if (!linear->copies || a->n_dims != 2 || n == rank * linear->copies || n % rank != 0 || a->shape[1] != linear->in) return ST_OK;
    status_fail(ST_INPUT, "tensor '%s' in '%s' has pairs of %lld experts of rank %lld, and the model has %lld experts", a->name, a->file,
                (long long)(n / rank), (long long)rank, (long long)linear->copies);
    return status_hint(ST_INPUT, "the adapter is of another model, or adapter_config.json has another rank ('r', 'rank_pattern')");
}

static Status load_branch(AdapterReader *reader, Linear *linear) {
    Model *model = reader->model;
    const LoraConfig *config = &reader->settings->lora;
    if (linear->copies && !lora_targets(config, linear)) return ST_OK;
    const char *path = linear->copies ? together_path(linear, together_has_both(model, config, linear), model->arena) : linear->path;
    if (!path) return ST_RESOURCE;
    const StoredTensor *a = find_tensor(reader, path, "lora_A.weight"), *b = find_tensor(reader, path, "lora_B.weight");
    if (!a && !b) return ST_OK;
    if (!a || !b)
        return status_fail(ST_INPUT, "tensor '%s%s.%s' is missing in '%s'", PEFT_PREFIX, path, a ? "lora_B.weight" : "lora_A.weight",
                           (a ? a : b)->file);
    const size_t first = model->params.n;
    TRY(lora_add_branch(linear, &reader->settings->lora, model->compute == DT_F64 ? DT_F64 : DT_F32, model->device, model->arena, &model->params));
    drop_weight(model, linear);
    TRY(linear->copies ? check_experts(a, linear) : check_rank(a, linear));
    TRY(adapter_fill(reader, a, &model->params.items[first]));
    if (linear->copies) return fill_together(reader, b, linear, &model->params.items[first + 1]);
    TRY(adapter_fill(reader, b, &model->params.items[first + 1]));
    return linear->lora->magnitude ? load_magnitude(reader, linear, a->file, &model->params.items[first + 2]) : ST_OK;
}

static Status load_saved(AdapterReader *reader, const Module *module) {
    Model *model = reader->model;
    const StoredTensor *weight = find_tensor(reader, module->path, "weight"), *bias = find_tensor(reader, module->path, "bias");
    if (!weight) return ST_OK;
    if (module->bias && !bias) return status_fail(ST_INPUT, "tensor '%s%s.bias' is missing in '%s'", PEFT_PREFIX, module->path, weight->file);
    TRY(save_slot(model, module->path, "weight", module->weight, false));
    TRY(adapter_fill(reader, weight, &model->params.items[model->params.n - 1]));
    if (!module->bias) return ST_OK;
    TRY(save_slot(model, module->path, "bias", module->bias, false));
    return adapter_fill(reader, bias, &model->params.items[model->params.n - 1]);
}

/* PEFT also saves a fully trained part of a layer. */
static Status missing_saved(const Model *model, const char *name, const char *dir) {
    Str part = {0};
    bool whole = false;
    str_printf(&part, ".%s.", name);
    for (size_t i = 0; i < model->n_modules && !whole; i++) whole = strstr(model->modules[i].path, str_text(&part)) != NULL;
    str_release(&part);
    if (!whole) return status_fail(ST_INPUT, "weights of '%s' are missing in '%s'", name, dir);
    status_fail(ST_INPUT, "'%s' of modules_to_save in '%s' is a part of a layer that contains modules, which is not supported", name, dir);
    return status_hint(ST_INPUT, "save its modules by their names: up_proj, o_proj, ...");
}

static bool is_zero(const StoredTensor *stored) {
    bool zero = stored->known;
    for (int64_t i = 0; i < stored->count && zero; i++) zero = stored_get(stored, i) == 0;
    return zero;
}

/* The tensor is half of a pair on another part of the model, such as a vision tower, and has no effect: PEFT adds such pairs if target names also
 * match layers of the tower, and training on text leaves their B at zero. */
static bool is_idle_pair(const AdapterReader *reader, const StoredTensor *stored) {
    const char *end = strstr(stored->name, ".lora_"), *name = stored->name + strlen(PEFT_PREFIX);
    if (!end || !text_starts_with(stored->name, PEFT_PREFIX) || !text_is_unused_part(&reader->model->config, name)) return false;
    Str b = {0};
    str_printf(&b, "%.*s.lora_B.weight", (int)(end - stored->name), stored->name);
    const StoredTensor *other = weight_file_find(reader->files, str_text(&b));
    str_release(&b);
    return other && is_zero(other);
}

/* Every tensor of the file must have been used. */
static Status check_surplus(const AdapterReader *reader, const char *dir) {
    const Model *model = reader->model;
    size_t n_idle = 0;
    for (size_t i = 0; i < reader->files->n; i++) {
        const StoredTensor *stored = &reader->files->tensors[i];
        if (strstr(stored->name, "lora_embedding_") || strstr(stored->name, "lm_head.lora_"))
            return status_fail(ST_INPUT, "tensor '%s' in '%s': this kind of adapter is not supported", stored->name, stored->file);
        if (strstr(stored->name, "lora_magnitude_vector") && !reader->settings->lora.use_dora) {
            status_fail(ST_INPUT, "tensor '%s' in '%s' is of DoRA, and adapter_config.json does not say 'use_dora'", stored->name, stored->file);
            return status_hint(ST_INPUT, "take the adapter_config.json that was saved with these tensors");
        }
    }
    for (size_t i = 0; i < reader->files->n; i++) {
        const StoredTensor *stored = &reader->files->tensors[i];
        bool idle = !reader->used[i] && is_idle_pair(reader, stored);
        n_idle += idle;
        if (reader->used[i] || idle) continue;
        bool outside = text_starts_with(stored->name, PEFT_PREFIX) && text_is_unused_part(&model->config, stored->name + strlen(PEFT_PREFIX));
        if (outside) {
            status_fail(ST_INPUT, "tensor '%s' in '%s' is an adapter of another part than the text model in '%s', which is not supported",
                        stored->name, stored->file, model->dir);
            return status_hint(ST_INPUT, "adapters of layers below %s are", model->linears[0]->path);
        }
        status_fail(ST_INPUT, "tensor '%s' in '%s' has no place in the model in '%s'", stored->name, stored->file, model->dir);
        return hint_other_model(reader);
    }
    if (n_idle)
        log_message(LOG_WARNING,
                    "%zu tensors in '%s' belong to pairs outside of the text model that have no effect, since their B is zero: they are left out",
                    n_idle, dir);
    return ST_OK;
}

/* Every module of the settings must have its tensors. */
static Status check_complete(const AdapterReader *reader, const char *dir) {
    const Model *model = reader->model;
    const LoraConfig *lora = &reader->settings->lora;
    TRY(check_surplus(reader, dir));
    size_t n = 0;
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        n += linear->lora != NULL;
        const char *key = adapter_left_out_by(reader->settings, linear);
        if (linear->lora && key) {
            status_fail(ST_INPUT, "'%s' has tensors of '%s', which '%s' in adapter_config.json leaves out", dir, linear->path, key);
            return status_hint(ST_INPUT, "PEFT would leave them out: take the adapter_config.json that was saved with these tensors");
        }
        if (linear->lora || key) continue;
        const char *path = linear->copies ? together_path(linear, together_has_both(model, lora, linear), model->arena) : linear->path;
        if (!path) return ST_RESOURCE;
        status_fail(ST_INPUT, "tensor '%s%s.lora_A.weight' is missing in '%s'", PEFT_PREFIX, path, dir);
        return hint_other_model(reader);
    }
    for (size_t t = 0; t < lora->n_saved; t++) {
        bool found = false;
        for (size_t i = 0; i < model->n_modules && !found; i++)
            found = saved_means(model, lora->saved[t], model->modules[i].path) && find_tensor(reader, model->modules[i].path, "weight");
        /* PEFT names both possible heads of classifiers, whichever the model has. */
        if (!found && model->score && strcmp(lora->saved[t], "classifier") == 0) continue;
        if (!found) return missing_saved(model, lora->saved[t], dir);
    }
    return n + lora->n_saved > 0 ? ST_OK : status_fail(ST_INPUT, "the adapter in '%s' is empty", dir);
}

/* With ensure_weight_tying a tied head follows the trained embedding, or the reverse; without it they are untied, as here. */
static Status check_tying(const AdapterReader *reader, const char *dir) {
    const Model *model = reader->model;
    const LoraConfig *lora = &reader->settings->lora;
    if (!reader->settings->tied || model->head != model->embed) return ST_OK;
    if (!module_matches(model->modules[0].path, lora->saved, lora->n_saved) &&
        !module_matches(model->modules[model->n_modules - 1].path, lora->saved, lora->n_saved))
        return ST_OK;
    const char *path = path_join(model->arena, dir, "adapter_config.json");
    if (!path) return ST_RESOURCE;
    return status_fail(ST_INPUT, "'ensure_weight_tying' in '%s' is not supported for a fully trained embedding or head", path);
}

static Status load_tensors(AdapterReader *reader, const char *dir) {
    Model *model = reader->model;
    TRY(check_tying(reader, dir));
    for (size_t i = 0; i < model->n_linears; i++)
        if (adapter_decides(reader->settings, model->linears[i]->path) != ST_OK) return status_prefix(ST_INPUT, "adapter_config.json in '%s'", dir);
    for (size_t i = 0; i < model->n_linears; i++) TRY(load_branch(reader, model->linears[i]));
    for (size_t i = 0; i < model->n_modules; i++) TRY(load_saved(reader, &model->modules[i]));
    return check_complete(reader, dir);
}

/* Reward models and language models have different heads. */
static Status check_score(const Model *model, const LoraConfig *config, const char *dir) {
    static const char *const name = "score";
    bool scores = module_matches(name, config->saved, config->n_saved);
    if (scores && !model->score) {
        status_fail(ST_INPUT, "the adapter in '%s' is a reward model's: it has a score instead of a head over the vocabulary", dir);
        return status_hint(ST_INPUT, "it judges answers: name it in the reward of a recipe for tune rl, as { type: model, model: DIR }");
    }
    if (scores || !model->score || model->config.scores) return ST_OK;
    status_fail(ST_INPUT, "the adapter in '%s' is no reward model: it has no score", dir);
    return status_hint(ST_INPUT, "tune reward makes one; adapter_config.json then has modules_to_save: [score]");
}

Status adapter_load(Model *model, const char *dir, bool trained) {
    if (model->lora.rank > 0) return status_fail(ST_CONFIG, "the model in '%s' has an adapter already", model->dir);
    AdapterSettings settings;
    TRY(adapter_settings_read(dir, model->arena, &settings));
    const LoraConfig *lora = &settings.lora;
    TRY(check_score(model, lora, dir));
    const char *weights = path_join(model->arena, dir, "adapter_model.safetensors");
    if (!weights) return ST_RESOURCE;
    WeightFile *files;
    TRY(weight_file_open(weights, &files));
    AdapterReader reader = {model, files, &settings, arena_zero(model->arena, files->n + 1), trained};
    const TextNames *own = model->config.text_names;
    Status status = reader.used ? text_rename(model, text_names_in(&model->config, files, PEFT_PREFIX)) : ST_RESOURCE;
    if (status == ST_OK) status = load_tensors(&reader, dir);
    weight_file_close(files);
    if (status == ST_OK && lora->alpha == 0 && lora->n_alpha_pattern == 0)
        log_message(LOG_WARNING, "the adapter in '%s' changes nothing: its lora_alpha is 0", dir);
    if (status == ST_OK) model->lora = *lora;
    return status == ST_OK ? take_own_names(model, own) : status;
}
