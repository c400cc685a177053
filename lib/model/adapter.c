/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters: attaching, and as PEFT has them on disk: reading adapter_model.safetensors, writing it and adapter_config.json. */
#include "lib/base/log.h"
#include "lib/model/parts.h"
#include "lib/model/text_part.h"

#include <math.h>
#include <string.h>

static const char *const PEFT_PREFIX = "base_model.model.";

Linear *module_linear(const Model *model, const Module *module) {
    for (size_t i = 0; i < model->n_linears; i++)
        if (&model->linears[i]->weight == module->weight) return model->linears[i];
    return NULL;
}

/* ---- whole copies of modules ---- */

/* A trained copy of one tensor in its slot; the original stays in the list. */
static Status save_slot(Model *model, const char *path, const char *kind, Tensor **slot, bool trained) {
    const Tensor *original = *slot;
    DType dtype = model->compute == DT_F64 ? DT_F64 : DT_F32;
    Tensor *copy = tensor_new(model->arena, model->device, dtype, original->n_dims, original->shape);
    char *name = arena_printf(model->arena, "%s.%s", path, kind);
    if (!copy || !name) return ST_RESOURCE;
    copy->name = name;
    copy->in_out = original->in_out;
    if (model->device != device_meta()) convert_elements(original->data, original->dtype, copy->data, dtype, (size_t)tensor_count(original));
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

enum { MAX_KINDS = 32 };

/* Last components of the linear layers' names, each once: "q_proj", "k_proj", ... */
static size_t linear_kinds(const Model *model, const char **names, size_t cap) {
    size_t n = 0;
    for (size_t i = 0; i < model->n_linears; i++) {
        const char *dot = strrchr(model->linears[i]->path, '.'), *name = dot ? dot + 1 : model->linears[i]->path;
        bool known = false;
        for (size_t k = 0; k < n && !known; k++) known = strcmp(names[k], name) == 0;
        if (!known && n < cap) names[n++] = name;
    }
    return n;
}

static Status unknown_target(const Model *model, const char *target) {
    const char *names[MAX_KINDS];
    size_t n = linear_kinds(model, names, COUNT_OF(names));
    for (size_t i = 0; i < model->n_modules; i++)
        if (module_matches(model->modules[i].path, &target, 1)) {
            status_fail(ST_CONFIG, "no LoRA on '%s': it is not a linear layer inside the model", target);
            return status_hint(ST_CONFIG, "modules_to_save trains it whole");
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
    return ST_OK;
}

/* "q_proj, k_proj": what the model has, in `list`. */
static void list_kinds(const Model *model, Str *list) {
    const char *names[MAX_KINDS];
    size_t n = linear_kinds(model, names, COUNT_OF(names));
    for (size_t i = 0; i < n; i++) str_printf(list, "%s%s", i ? ", " : "", names[i]);
}

static Status check_regex(const Model *model, const LoraConfig *config) {
    bool found = false;
    for (size_t i = 0; i < model->n_linears && !found; i++) found = lora_targets(config, model->linears[i]->path);
    if (found) return ST_OK;
    Str list = {0};
    list_kinds(model, &list);
    status_fail(ST_CONFIG, "target pattern '%s' matches nothing in '%s'", config->target_regex, model->dir);
    status_hint(ST_CONFIG, "it has to match whole paths, such as %s; there are %s", model->linears[0]->path, str_text(&list));
    str_release(&list);
    return ST_CONFIG;
}

static Status check_targets(const Model *model, const LoraConfig *config) {
    if (config->target_regex) return check_regex(model, config);
    for (size_t t = 0; t < config->n_targets; t++) {
        bool found = false;
        for (size_t i = 0; i < model->n_linears && !found; i++) found = module_matches(model->linears[i]->path, &config->targets[t], 1);
        if (!found) return unknown_target(model, config->targets[t]);
    }
    return ST_OK;
}

/* A pattern that names no adapted module would be a wish silently not granted. */
static Status check_patterns(const Model *model, const LoraConfig *config, const char *const *keys, size_t n, const char *what) {
    for (size_t k = 0; k < n; k++) {
        bool found = false;
        Str pattern = {0};
        str_printf(&pattern, "(.*\\.)?(%s)", keys[k]);
        for (size_t i = 0; i < model->n_linears && !found; i++)
            found = lora_targets(config, model->linears[i]->path) && pattern_matches(str_text(&pattern), model->linears[i]->path);
        str_release(&pattern);
        if (!found)
            return status_hint(status_fail(ST_CONFIG, "'%s' of %s matches no module that gets an adapter", keys[k], what),
                               "it is a module's name or path, or a regular expression for one");
    }
    return ST_OK;
}

static Status save_named_modules(Model *model, const LoraConfig *config) {
    for (size_t t = 0; t < config->n_saved; t++) {
        bool found = false;
        for (size_t i = 0; i < model->n_modules; i++) {
            const Module *module = &model->modules[i];
            if (!module_matches(module->path, &config->saved[t], 1)) continue;
            found = true;
            if (module_matches(module->path, config->saved, t)) continue; /* saved by a name before */
            if (module_linear(model, module) && lora_targets(config, module->path))
                return status_fail(ST_CONFIG, "'%s' is in modules_to_save and a LoRA target at once", module->path);
            TRY(save_module(model, module, true));
        }
        if (!found) return status_fail(ST_CONFIG, "module '%s' of modules_to_save matches nothing in '%s'", config->saved[t], model->dir);
    }
    return ST_OK;
}

/* ---- other names than the checkpoint's ---- */

/* Whether each target, or the pattern for them, is the name of some linear layer. */
static bool targets_fit(const Model *model, const LoraConfig *config) {
    bool fit = !config->target_regex;
    for (size_t i = 0; i < model->n_linears && !fit; i++) fit = pattern_matches(config->target_regex, model->linears[i]->path);
    for (size_t t = 0; t < config->n_targets && fit && !config->target_regex; t++) {
        fit = false;
        for (size_t i = 0; i < model->n_linears && !fit; i++) fit = module_matches(model->linears[i]->path, &config->targets[t], 1);
    }
    return fit;
}

/* Gives the model the names by which the targets are names of its layers: paths and patterns are written for one class of transformers or another. */
static Status take_names_of_targets(Model *model, const LoraConfig *config) {
    const TextNames *own = model->config.text_names;
    for (int i = 0; i < N_NAMES && !targets_fit(model, config); i++) TRY(text_rename(model, &text_names[i]));
    return targets_fit(model, config) ? ST_OK : text_rename(model, own ? own : &text_names[NAMES_ALONE]);
}

static Status rename_all(const Model *model, const TextNames *names, size_t n, const char ***list) {
    const char **renamed = arena_alloc(model->arena, (n + 1) * sizeof *renamed);
    if (!renamed) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++)
        if (!(renamed[i] = text_path(&model->config, names, (*list)[i], model->arena))) return ST_RESOURCE;
    *list = renamed;
    return ST_OK;
}

/* Back to the checkpoint's names, as are the paths among the adapter's settings. */
static Status take_own_names(Model *model, const TextNames *own) {
    if (!own) own = &text_names[NAMES_ALONE];
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
        if (lora_targets(config, model->linears[i]->path))
            TRY(lora_attach(model->linears[i], config, seed, dtype, model->device, model->arena, &model->params));
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

/* ---- adapter_model.safetensors, read ---- */

typedef struct AdapterReader {
    Model *model;
    const Safetensors *files;
    const AdapterSettings *settings;
    bool *used;
    bool trained;
} AdapterReader;

static const StoredTensor *find_tensor(const AdapterReader *reader, const char *path, const char *kind) {
    Str name = {0};
    str_printf(&name, "%s%s.%s", PEFT_PREFIX, path, kind);
    const StoredTensor *stored = safetensors_find(reader->files, str_text(&name));
    str_release(&name);
    return stored;
}

/* A hint for what mostly means that the adapter was made for another base. */
static Status hint_other_model(const AdapterReader *reader) {
    if (reader->settings->base[0] == '\0') return status_hint(ST_INPUT, "the adapter may be for another model than '%s'", reader->model->dir);
    if (strcmp(reader->settings->base, reader->model->dir) == 0)
        return status_hint(ST_INPUT,
                           "the adapter was made for this model, to go by its adapter_config.json: are its tensors those that were saved with it?");
    return status_hint(ST_INPUT, "the adapter was made for '%s', this model is '%s'", reader->settings->base, reader->model->dir);
}

/* The rank that the settings promise a module, and the tensors' own. Other differences are another model's. */
static Status check_rank(const StoredTensor *a, const Linear *linear) {
    int64_t rank = linear->lora->a->shape[0];
    if (a->n_dims != 2 || a->shape[0] == rank || a->shape[1] != linear->in) return ST_OK;
    status_fail(ST_INPUT, "tensor '%s' in '%s' has rank %lld, and adapter_config.json says %lld", a->name, a->file, (long long)a->shape[0],
                (long long)rank);
    return status_hint(ST_INPUT,
                       "take the adapter_config.json that was saved with these tensors, or set its 'r' (or 'rank_pattern') to what they have");
}

static Status fill(AdapterReader *reader, const StoredTensor *stored, Param *param) {
    Tensor *tensor = param->tensor;
    if (stored_check(stored, tensor->n_dims, tensor->shape) != ST_OK) return hint_other_model(reader);
    reader->used[stored - reader->files->tensors] = true;
    if (tensor->device != device_meta()) convert_elements(stored->data, stored->dtype, tensor->data, tensor->dtype, (size_t)tensor_count(tensor));
    TRY(tensor_check_finite(tensor, stored->name, stored->file));
    if (reader->trained) return param->trained ? ST_OK : params_train(param, reader->model->arena);
    tensor->constant = true;
    return ST_OK;
}

static Status load_branch(AdapterReader *reader, Linear *linear) {
    Model *model = reader->model;
    const StoredTensor *a = find_tensor(reader, linear->path, "lora_A.weight"), *b = find_tensor(reader, linear->path, "lora_B.weight");
    if (!a && !b) return ST_OK;
    if (!a || !b)
        return status_fail(ST_INPUT, "tensor '%s%s.%s' is missing in '%s'", PEFT_PREFIX, linear->path, a ? "lora_B.weight" : "lora_A.weight",
                           (a ? a : b)->file);
    TRY(lora_add_branch(linear, &reader->settings->lora, model->compute == DT_F64 ? DT_F64 : DT_F32, model->device, model->arena, &model->params));
    TRY(check_rank(a, linear));
    TRY(fill(reader, a, &model->params.items[model->params.n - 2]));
    return fill(reader, b, &model->params.items[model->params.n - 1]);
}

static Status load_saved(AdapterReader *reader, const Module *module) {
    Model *model = reader->model;
    const StoredTensor *weight = find_tensor(reader, module->path, "weight"), *bias = find_tensor(reader, module->path, "bias");
    if (!weight) return ST_OK;
    if (module->bias && !bias) return status_fail(ST_INPUT, "tensor '%s%s.bias' is missing in '%s'", PEFT_PREFIX, module->path, weight->file);
    TRY(save_slot(model, module->path, "weight", module->weight, false));
    TRY(fill(reader, weight, &model->params.items[model->params.n - 1]));
    if (!module->bias) return ST_OK;
    TRY(save_slot(model, module->path, "bias", module->bias, false));
    return fill(reader, bias, &model->params.items[model->params.n - 1]);
}

/* PEFT also saves a part of a layer as a whole. */
static Status missing_saved(const Model *model, const char *name, const char *dir) {
    Str part = {0};
    bool whole = false;
    str_printf(&part, ".%s.", name);
    for (size_t i = 0; i < model->n_modules && !whole; i++) whole = strstr(model->modules[i].path, str_text(&part)) != NULL;
    str_release(&part);
    if (!whole) return status_fail(ST_INPUT, "weights of '%s' are missing in '%s'", name, dir);
    status_fail(ST_INPUT, "'%s' of modules_to_save in '%s' is a part of a layer with modules of its own, which is not supported", name, dir);
    return status_hint(ST_INPUT, "save its modules by their names: up_proj, o_proj, ...");
}

static bool is_zero(const StoredTensor *stored) {
    bool zero = stored->known;
    for (int64_t i = 0; i < stored->count && zero; i++) zero = stored_get(stored, i) == 0;
    return zero;
}

/* The tensor is half of a pair on another part of the model, such as a vision tower, that changes nothing: PEFT adds them where names of targets are
 * names of the tower's layers too, and training on text leaves their B at zero. */
static bool is_idle_pair(const AdapterReader *reader, const StoredTensor *stored) {
    const char *end = strstr(stored->name, ".lora_"), *name = stored->name + strlen(PEFT_PREFIX);
    if (!end || !text_starts_with(stored->name, PEFT_PREFIX) || !text_is_other_part(&reader->model->config, name)) return false;
    Str b = {0};
    str_printf(&b, "%.*s.lora_B.weight", (int)(end - stored->name), stored->name);
    const StoredTensor *other = safetensors_find(reader->files, str_text(&b));
    str_release(&b);
    return other && is_zero(other);
}

/* Everything that is there has to have found its place. */
static Status check_surplus(const AdapterReader *reader, const char *dir) {
    const Model *model = reader->model;
    size_t n_idle = 0;
    for (size_t i = 0; i < reader->files->n; i++) {
        const StoredTensor *stored = &reader->files->tensors[i];
        if (strstr(stored->name, "lora_embedding_") || strstr(stored->name, "lora_magnitude_vector") || strstr(stored->name, "lm_head.lora_"))
            return status_fail(ST_INPUT, "tensor '%s' in '%s': this kind of adapter is not supported", stored->name, stored->file);
    }
    for (size_t i = 0; i < reader->files->n; i++) {
        const StoredTensor *stored = &reader->files->tensors[i];
        bool idle = !reader->used[i] && is_idle_pair(reader, stored);
        n_idle += idle;
        if (reader->used[i] || idle) continue;
        bool outside = text_starts_with(stored->name, PEFT_PREFIX) && text_is_other_part(&model->config, stored->name + strlen(PEFT_PREFIX));
        if (outside) {
            status_fail(ST_INPUT, "tensor '%s' in '%s' is an adapter of another part than the text model in '%s', which is not supported",
                        stored->name, stored->file, model->dir);
            return status_hint(ST_INPUT, "adapters of layers below %s are", model->linears[0]->path);
        }
        status_fail(ST_INPUT, "tensor '%s' in '%s' has no place in the model in '%s'", stored->name, stored->file, model->dir);
        return hint_other_model(reader);
    }
    if (n_idle)
        log_message(
            LOG_WARNING,
            "%zu tensors in '%s' are of pairs on other parts than the text model that change nothing, since their B is zero: they are left out",
            n_idle, dir);
    return ST_OK;
}

/* Everything that the settings promise has to be there too. */
static Status check_complete(const AdapterReader *reader, const char *dir) {
    const Model *model = reader->model;
    const LoraConfig *lora = &reader->settings->lora;
    TRY(check_surplus(reader, dir));
    size_t n = 0;
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        n += linear->lora != NULL;
        const char *key = adapter_left_out_by(reader->settings, linear->path);
        if (linear->lora && key) {
            status_fail(ST_INPUT, "'%s' has tensors of '%s', which '%s' in adapter_config.json leaves out", dir, linear->path, key);
            return status_hint(ST_INPUT, "PEFT would leave them out: take the adapter_config.json that was saved with these tensors");
        }
        if (linear->lora || key) continue;
        status_fail(ST_INPUT, "tensor '%s%s.lora_A.weight' is missing in '%s'", PEFT_PREFIX, linear->path, dir);
        return hint_other_model(reader);
    }
    for (size_t t = 0; t < lora->n_saved; t++) {
        bool found = false;
        for (size_t i = 0; i < model->n_modules && !found; i++)
            found = module_matches(model->modules[i].path, &lora->saved[t], 1) && find_tensor(reader, model->modules[i].path, "weight");
        /* PEFT names both heads of classifiers that there are, whatever this one has. */
        if (!found && model->score && strcmp(lora->saved[t], "classifier") == 0) continue;
        if (!found) return missing_saved(model, lora->saved[t], dir);
    }
    return n + lora->n_saved > 0 ? ST_OK : status_fail(ST_INPUT, "the adapter in '%s' is empty", dir);
}

/* ensure_weight_tying makes a tied head follow the embedding that was trained, or the other way round; without it the two part, as is done here. */
static Status check_tying(const AdapterReader *reader, const char *dir) {
    const Model *model = reader->model;
    const LoraConfig *lora = &reader->settings->lora;
    if (!reader->settings->tied || model->head != model->embed) return ST_OK;
    if (!module_matches(model->modules[0].path, lora->saved, lora->n_saved) &&
        !module_matches(model->modules[model->n_modules - 1].path, lora->saved, lora->n_saved))
        return ST_OK;
    const char *path = path_join(model->arena, dir, "adapter_config.json");
    if (!path) return ST_RESOURCE;
    return status_fail(ST_INPUT, "'ensure_weight_tying' in '%s' is not supported for an embedding or head that was trained whole", path);
}

static Status load_tensors(AdapterReader *reader, const char *dir) {
    Model *model = reader->model;
    TRY(check_tying(reader, dir));
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
    Safetensors *files;
    TRY(safetensors_open(weights, &files));
    AdapterReader reader = {model, files, &settings, arena_zero(model->arena, files->n + 1), trained};
    const TextNames *own = model->config.text_names;
    Status status = reader.used ? text_rename(model, text_names_in(&model->config, files, PEFT_PREFIX)) : ST_RESOURCE;
    if (status == ST_OK) status = load_tensors(&reader, dir);
    safetensors_close(files);
    if (status == ST_OK && lora->alpha == 0 && lora->n_alpha_pattern == 0)
        log_message(LOG_WARNING, "the adapter in '%s' changes nothing: its lora_alpha is 0", dir);
    if (status == ST_OK) model->lora = *lora;
    return status == ST_OK ? take_own_names(model, own) : status;
}

/* ---- writing ---- */

static void write_names(JsonWriter *w, const char *key, const char *const *names, size_t n) {
    jw_array(w, key);
    for (size_t i = 0; i < n; i++) jw_string(w, NULL, names[i]);
    jw_end_array(w);
}

/* Whole numbers as such: PEFT's own files have "lora_alpha": 16. */
static void write_number(JsonWriter *w, const char *key, double value) {
    if (value == floor(value) && fabs(value) < 1e15)
        jw_int(w, key, (int64_t)value);
    else
        jw_double(w, key, value);
}

/* Whether the model's paths begin otherwise than those of a language model alone. */
static bool is_text_part(const Model *model) { return model->config.wrapper && model->config.text_names != &text_names[NAMES_ALONE]; }

/* A layer's path without what comes before "layers", which differs from one version of transformers to another. */
static const char *inner_path(const Model *model, const Linear *linear) {
    const char *path = text_path(&model->config, &text_names[NAMES_ALONE], linear->path, model->arena), *prefix = model->config.family->names->prefix;
    return path && text_starts_with(path, prefix) ? path + strlen(prefix) : path;
}

/* "layers\.0\.self_attn\.q_proj": a name as a part of a pattern. */
static void append_escaped(Str *pattern, const char *name) {
    for (; *name; name++) str_printf(pattern, "%s%c", *name == '.' ? "\\" : "", *name);
}

/* Of a wrapped model, by a pattern: PEFT would take a name for layers of vision towers too, and whole paths differ from one version of transformers
 * to another. What all versions have is a component "language_model" (or text_model) before the layer's path. */
static void write_text_targets(JsonWriter *w, const Model *model, bool kinds) {
    const char *names[MAX_KINDS];
    size_t n = kinds ? linear_kinds(model, names, COUNT_OF(names)) : model->n_linears, written = 0;
    Str pattern = {0};
    str_printf(&pattern, "(?:.*\\.)?%s\\.(?:.*\\.)?(?:", model->config.text_names == &text_names[NAMES_TEXT_MODEL] ? "text_model" : "language_model");
    for (size_t i = 0; i < n; i++) {
        const char *name = kinds ? names[i] : inner_path(model, model->linears[i]);
        bool taken = !kinds && model->linears[i]->lora;
        for (size_t k = 0; k < model->n_linears && kinds && !taken; k++)
            taken = model->linears[k]->lora && module_matches(model->linears[k]->path, &name, 1);
        if (!taken || !name) continue;
        str_append(&pattern, written++ ? "|" : "");
        append_escaped(&pattern, name);
    }
    str_append(&pattern, ")");
    jw_string(w, "target_modules", str_text(&pattern));
    str_release(&pattern);
}

/* Whether a kind of layer has a branch in all layers of the model or in none. */
static bool by_kinds(const Model *model) {
    const char *names[MAX_KINDS];
    size_t n = linear_kinds(model, names, COUNT_OF(names));
    bool all = n < MAX_KINDS;
    for (size_t k = 0; k < n; k++) {
        size_t with = 0, without = 0;
        for (size_t i = 0; i < model->n_linears; i++) {
            bool one = module_matches(model->linears[i]->path, &names[k], 1);
            with += one && model->linears[i]->lora;
            without += one && !model->linears[i]->lora;
        }
        all = all && (with == 0 || without == 0);
    }
    return all;
}

/* Whether the pattern says exactly which layers have a branch, by the names that `names` make. */
static bool regex_says(const Model *model, const char *regex, const TextNames *names) {
    bool exact = true;
    for (size_t i = 0; i < model->n_linears && exact; i++) {
        const Linear *linear = model->linears[i];
        const char *path = text_path(&model->config, names, linear->path, model->arena);
        exact = path && pattern_matches(regex, path) == (linear->lora != NULL);
    }
    return exact;
}

/* The targets as they were given when that says exactly which layers have a branch; their whole paths otherwise. */
static void write_targets(JsonWriter *w, const Model *model) {
    const LoraConfig *lora = &model->lora;
    bool exact = true, text_part = is_text_part(model);
    for (size_t i = 0; i < model->n_linears; i++) exact &= (model->linears[i]->lora != NULL) == lora_targets(lora, model->linears[i]->path);
    for (int i = NAMES_MODEL_LANGUAGE_MODEL; i <= NAMES_LANGUAGE_MODEL && text_part && exact && lora->target_regex; i++)
        exact = regex_says(model, lora->target_regex, &text_names[i]);
    if (exact && lora->target_regex) {
        jw_string(w, "target_modules", lora->target_regex);
    } else if (text_part) {
        write_text_targets(w, model, by_kinds(model));
    } else if (exact && lora->n_targets) {
        write_names(w, "target_modules", lora->targets, lora->n_targets);
    } else if (exact) {
        const char *names[MAX_KINDS];
        write_names(w, "target_modules", names, linear_kinds(model, names, COUNT_OF(names)));
    } else {
        jw_array(w, "target_modules");
        for (size_t i = 0; i < model->n_linears; i++)
            if (model->linears[i]->lora) jw_string(w, NULL, model->linears[i]->path);
        jw_end_array(w);
    }
}

/* Ranks and scales as the patterns give them when these are written for the paths that are written; else by whole paths. */
static void write_patterns(JsonWriter *w, const Model *model, bool ranks) {
    const LoraConfig *lora = &model->lora;
    size_t n = ranks ? lora->n_rank_pattern : lora->n_alpha_pattern;
    bool exact = true;
    int64_t rank;
    double scale, alpha;
    jw_object(w, ranks ? "rank_pattern" : "alpha_pattern");
    for (size_t i = 0; i < model->n_linears; i++) {
        const LoraBranch *branch = model->linears[i]->lora;
        if (branch) lora_rank_and_scale(lora, model->linears[i]->path, &rank, &scale, &alpha);
        exact = exact && (!branch || (rank == branch->a->shape[0] && scale == branch->scale));
    }
    for (size_t i = 0; i < n && exact && is_text_part(model); i++) exact = !strstr(ranks ? lora->rank_keys[i] : lora->alpha_keys[i], "_model");
    for (size_t i = 0; i < n && exact; i++) {
        if (ranks)
            jw_int(w, lora->rank_keys[i], lora->rank_values[i]);
        else
            write_number(w, lora->alpha_keys[i], lora->alpha_values[i]);
    }
    for (size_t i = 0; i < model->n_linears && !exact; i++) {
        const Linear *linear = model->linears[i];
        if (!linear->lora) continue;
        rank = linear->lora->a->shape[0];
        alpha = linear->lora->scale * (lora->use_rslora ? sqrt((double)rank) : (double)rank);
        const char *path = is_text_part(model) ? inner_path(model, linear) : linear->path;
        if (ranks && rank != lora->rank) jw_int(w, path, rank);
        if (!ranks && fabs(alpha - lora->alpha) > 1e-9 * fabs(lora->alpha)) write_number(w, path, alpha);
    }
    jw_end_object(w);
}

/* PEFT takes every module whose path ends with a name's letters: "norm" would be each input_layernorm as well. Such a name is written as the paths
 * that it stands for here. What names before it stand for is not written again. */
static void write_saved(JsonWriter *w, const Model *model) {
    const LoraConfig *lora = &model->lora;
    if (lora->n_saved == 0) {
        jw_null(w, "modules_to_save");
        return;
    }
    jw_array(w, "modules_to_save");
    for (size_t t = 0; t < lora->n_saved; t++) {
        bool plain = true, matches = false, adds = false;
        for (size_t i = 0; i < model->n_modules; i++) {
            bool match = module_matches(model->modules[i].path, &lora->saved[t], 1);
            plain &= text_ends_with(model->modules[i].path, lora->saved[t]) == match;
            matches |= match;
            adds |= match && !module_matches(model->modules[i].path, lora->saved, t);
        }
        if (matches && !adds) continue;
        if (plain) jw_string(w, NULL, lora->saved[t]);
        for (size_t i = 0; i < model->n_modules && !plain; i++)
            if (module_matches(model->modules[i].path, &lora->saved[t], 1) && !module_matches(model->modules[i].path, lora->saved, t))
                jw_string(w, NULL, model->modules[i].path);
    }
    jw_end_array(w);
}

/* The keys that every version of PEFT since 0.7 knows: old ones refuse a key that they don't. */
static Status write_config(const Model *model, const char *path, const char *base) {
    const LoraConfig *lora = &model->lora;
    JsonWriter w = {.pretty = true};
    jw_object(&w, NULL);
    write_patterns(&w, model, false);
    jw_null(&w, "auto_mapping");
    jw_string(&w, "base_model_name_or_path", base);
    jw_string(&w, "bias", "none");
    jw_bool(&w, "fan_in_fan_out", model->config.in_out_weights);
    jw_bool(&w, "inference_mode", true);
    jw_bool(&w, "init_lora_weights", true);
    jw_null(&w, "layers_pattern");
    jw_null(&w, "layers_to_transform");
    write_number(&w, "lora_alpha", lora->alpha);
    jw_double(&w, "lora_dropout", lora->dropout);
    write_saved(&w, model);
    jw_string(&w, "peft_type", "LORA");
    jw_int(&w, "r", lora->rank);
    write_patterns(&w, model, true);
    jw_null(&w, "revision");
    write_targets(&w, model);
    jw_string(&w, "task_type", model->score ? "SEQ_CLS" : "CAUSAL_LM");
    jw_bool(&w, "use_rslora", lora->use_rslora);
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    Status status = file_write_all(path, w.text.data, w.text.len);
    jw_release(&w);
    return status;
}

static Status write_tensors(const Model *model, const char *path) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < model->params.n; i++) {
            const Param *param = &model->params.items[i];
            const Tensor *tensor = param->tensor;
            if (param->role == PARAM_BASE || param->role == PARAM_BESIDE) continue;
            if (pass == 1) {
                safetensors_write_as(writer, tensor->data, tensor->dtype, DT_F32, (size_t)tensor_count(tensor));
                continue;
            }
            Str name = {0};
            str_printf(&name, "%s%s", PEFT_PREFIX, param->name);
            safetensors_declare(writer, str_text(&name), DT_F32, tensor->n_dims, tensor->shape);
            str_release(&name);
        }
    return safetensors_commit(writer);
}

typedef struct AdapterSave {
    const Model *model;
    const char *base;
    Arena *arena;
} AdapterSave;

static Status write_adapter(void *context, const char *dir) {
    const AdapterSave *save = context;
    TRY(write_tensors(save->model, path_join(save->arena, dir, "adapter_model.safetensors")));
    return write_config(save->model, path_join(save->arena, dir, "adapter_config.json"), save->base);
}

Status adapter_save(const Model *model, const char *dir, const char *base) {
    Arena *arena = arena_new(0);
    Status status = arena ? dir_build(dir, write_adapter, &(AdapterSave){model, base, arena}) : ST_RESOURCE;
    arena_free(arena);
    return status;
}
