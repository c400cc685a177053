/* SPDX-License-Identifier: Apache-2.0 */
/* The text part of a wrapped model: its config, its names, and the other contents of the checkpoint. */
#include "lib/model/text_part.h"
#include "lib/base/log.h"
#include "lib/model/parts.h"

#include <stdlib.h>
#include <string.h>

const TextNames text_names[N_NAMES] = {
    [NAMES_PLAIN] = {"", true},
    [NAMES_MODEL_LANGUAGE_MODEL] = {"model.language_model.", false}, /* transformers since 4.52; Qwen3.5, Gemma 4 as published */
    [NAMES_LANGUAGE_MODEL] = {"language_model.", true},              /* older versions; Gemma 3, Mistral, LLaVA as published */
    [NAMES_TEXT_MODEL] = {"model.text_model.", false},               /* Idefics 3, SmolVLM */
};

/* ---- config.json ---- */

typedef struct Wrapper {
    const char *model_type, *text_type;
    int names;
} Wrapper;
static const Wrapper wrappers[] = {
#define WRAPPER(model_type, text_type, names) {#model_type, #text_type, names},
#include "lib/model/wrappers.def"
#undef WRAPPER
};

static const Wrapper *find_wrapper(const char *model_type) {
    for (size_t i = 0; i < COUNT_OF(wrappers); i++)
        if (strcmp(wrappers[i].model_type, model_type) == 0) return &wrappers[i];
    return NULL;
}

static Status unknown_wrapper(const char *model_type, const json_t *text, const char *path) {
    const char *text_type = json_string_value(json_object_get(text, "model_type"));
    Str known = {0};
    for (size_t i = 0; i < COUNT_OF(wrappers); i++) str_printf(&known, "%s%s", i ? ", " : "", wrappers[i].model_type);
    status_fail(ST_INPUT, "model_type '%s' in '%s' is not supported", model_type, path);
    status_hint(ST_INPUT,
                "its text_config (%s) is not used by itself, since the full model may compute something else; the "
                "text part can be trained of: %s",
                text_type ? text_type : "no model_type", str_text(&known));
    str_release(&known);
    return ST_INPUT;
}

/* Top-level keys that also apply to the text part unless text_config has them. */
static const char *const inherited[] = {
    "compression_config",  "dtype",       "id2label",   "initializer_range", "label2id", "num_labels", "pad_token_id", "quantization_config",
    "tie_word_embeddings", "torch_dtype", "vocab_size",
};

/* Prefixes and suffixes of keys about other parts, or about tokens that stand for them. */
static const char *const outer_begins[] = {
    "audio", "boa_",   "boi_", "eoa_", "eoi_", "image", "img_", "mm_", "multimodal_", "pixel_", "projector_", "scale_factor", "spatial_merge_size",
    "video", "vision",
};

static bool is_outer(const char *key) {
    bool known = *key == '_' || strcmp(key, "text_config") == 0 || text_ends_with(key, "_config") || config_key_is_harmless(key);
    for (size_t i = 0; i < COUNT_OF(outer_begins) && !known; i++) known = text_starts_with(key, outer_begins[i]);
    for (size_t i = 0; i < COUNT_OF(inherited) && !known; i++) known = strcmp(key, inherited[i]) == 0;
    return known;
}

static void warn_of_unused(const json_t *json, const json_t *text, const char *path) {
    Str names = {0};
    size_t n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value) {
        if (json_is_null(value) || is_outer(key) || json_equal(json_object_get(text, key), value)) continue;
        str_printf(&names, "%s%s", n++ ? ", " : "", key);
    }
    if (n) log_message(LOG_WARNING, "%zu key%s outside text_config in '%s' ignored: %s", n, n == 1 ? "" : "s", path, str_text(&names));
    str_release(&names);
}

static json_t *text_part_flatten(const json_t *json, const json_t *text, const Wrapper *wrapper) {
    json_t *flat = json_copy((json_t *)(uintptr_t)text);
    for (size_t i = 0; i < COUNT_OF(inherited); i++) {
        json_t *outer = json_object_get(json, inherited[i]), *inner = json_object_get(flat, inherited[i]);
        if (outer && (!inner || json_is_null(inner))) json_object_set(flat, inherited[i], outer);
    }
    /* Files of some versions have the key at both levels, one of them a default: a head is tied if either says so and no other head is stored. */
    if (json_is_true(json_object_get(json, "tie_word_embeddings"))) json_object_set_new(flat, "tie_word_embeddings", json_true());
    if (!json_is_string(json_object_get(flat, "model_type"))) json_object_set_new(flat, "model_type", json_string(wrapper->text_type));
    /* The wrapper's class, which is one for conditional generation, or one for scores */
    json_t *classes = json_object_get(json, "architectures");
    const char *name = json_string_value(json_array_get(classes, 0));
    if (name && !text_ends_with(name, "ForConditionalGeneration"))
        json_object_set(flat, "architectures", classes);
    else
        json_object_del(flat, "architectures");
    return flat;
}

json_t *text_config_of(const json_t *json) {
    const char *model_type = json_string_value(json_object_get(json, "model_type"));
    json_t *text = json_object_get(json, "text_config");
    return model_type && json_is_object(text) && find_wrapper(model_type) ? text : NULL;
}

Status text_config_find(const json_t *json, const char *path, Arena *arena, TextConfig *text) {
    const char *model_type = json_string_value(json_object_get(json, "model_type"));
    const json_t *inner = json_object_get(json, "text_config");
    const Wrapper *wrapper = model_type ? find_wrapper(model_type) : NULL;
    *text = (TextConfig){.path = path};
    bool known = !model_type || config_knows_family(model_type);
    if (!wrapper && !known && json_is_object(inner)) return unknown_wrapper(model_type, inner, path);
    if (wrapper && inner && !json_is_null(inner) && !json_is_object(inner))
        return status_fail(ST_INPUT, "wrong type of 'text_config' in '%s': expected an object", path);
    if (wrapper && !known && !json_is_object(inner)) {
        status_fail(ST_INPUT, "'%s' lacks 'text_config': model_type '%s' has a language model as one of its parts", path, model_type);
        return status_hint(ST_INPUT, "an object with a separate model_type, such as %s, and its sizes", wrapper->text_type);
    }
    if (!wrapper || !json_is_object(inner)) {
        text->json = json_incref((json_t *)(uintptr_t)json);
        return ST_OK;
    }
    text->wrapper = wrapper->model_type;
    text->names = &text_names[wrapper->names];
    text->json = text_part_flatten(json, inner, wrapper);
    text->path = arena_printf(arena, "%s: text_config", path);
    if (text->json && text->path) {
        warn_of_unused(json, inner, path);
        return ST_OK;
    }
    json_decref(text->json);
    return status_fail(ST_RESOURCE, "out of memory for '%s'", path);
}

/* ---- names ---- */

static const TextNames *names_of(const ModelConfig *config) { return config->text_names ? config->text_names : &text_names[NAMES_PLAIN]; }

static const char *path_alone(const ModelConfig *config, const char *path, Arena *arena) {
    const TextNames *own = names_of(config);
    if (!text_starts_with(path, own->prefix)) return path;
    const char *rest = path + strlen(own->prefix);
    return own->whole ? rest : arena_printf(arena, "%s%s", config->family->names->prefix, rest);
}

const char *text_path(const ModelConfig *config, const TextNames *names, const char *path, Arena *arena) {
    const PartNames *family = config->family->names;
    const char *alone = path_alone(config, path, arena);
    if (!alone) return NULL;
    bool prefixed = text_starts_with(alone, family->prefix);
    if (names->whole && *names->prefix && (prefixed || text_starts_with(alone, family->head)))
        return arena_printf(arena, "%s%s", names->prefix, alone);
    return !names->whole && prefixed ? arena_printf(arena, "%s%s", names->prefix, alone + strlen(family->prefix)) : alone;
}

/* "path." with the family's prefix at its start, and also without it for checkpoints of base models. */
static bool begins_with_path(const ModelConfig *config, const char *name, const char *path) {
    size_t n = strlen(path), drop = text_starts_with(path, config->family->names->prefix) ? strlen(config->family->names->prefix) : 0;
    return (strncmp(name, path, n) == 0 && name[n] == '.') || (drop && strncmp(name, path + drop, n - drop) == 0 && name[n - drop] == '.');
}

/* Whether the tensor is a layer, the embedding or the last norm of a text part with these names, or its head if that has a prefix. */
static bool belongs(const ModelConfig *config, const TextNames *names, const char *name, Arena *arena) {
    const PartNames *family = config->family->names;
    const char *const parts[] = {family->layers, family->embed, family->final_norm, family->head};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const char *path = text_path(config, names, parts[i], arena);
        bool head = i == 3 && !(names->whole && *names->prefix);
        if (path && !head && begins_with_path(config, name, path)) return true;
    }
    return false;
}

const TextNames *text_names_in(const ModelConfig *config, const WeightFile *files, const char *root) {
    Arena *arena = arena_new(0);
    const TextNames *found = NULL;
    size_t skip = strlen(root);
    for (int i = -1; arena && i <= N_NAMES && !found; i++) {
        const TextNames *names = i < 0 ? names_of(config) : &text_names[i % N_NAMES];
        if (i == NAMES_PLAIN) continue; /* the last one, at index N_NAMES */
        for (size_t t = 0; t < files->n && !found; t++)
            if (text_starts_with(files->tensors[t].name, root) && belongs(config, names, files->tensors[t].name + skip, arena)) found = names;
    }
    arena_free(arena);
    return found;
}

Status text_names_find(ModelConfig *config, const WeightFile *files, const char *dir) {
    const TextNames *found = text_names_in(config, files, "");
    if (found) {
        config->text_names = found;
        return ST_OK;
    }
    Arena *arena = arena_new(0);
    const char *embed = arena ? text_path(config, names_of(config), config->family->names->embed, arena) : NULL;
    status_fail(ST_INPUT, "tensor '%s.weight' is missing in '%s', as is the rest of the text part", embed ? embed : "", dir);
    Str prefixes = {0};
    for (int i = 1; i < N_NAMES; i++) str_printf(&prefixes, "%s, ", text_names[i].prefix);
    status_hint(ST_INPUT, "config.json describes a %s as the text part of a %s: its tensors may begin with %s%s", config->model_type, config->wrapper,
                str_text(&prefixes), config->family->names->prefix);
    str_release(&prefixes);
    arena_free(arena);
    return ST_INPUT;
}

Status text_rename(Model *model, const TextNames *names) {
    const ModelConfig *config = &model->config;
    if (!names || names == names_of(config)) return ST_OK;
    for (size_t i = 0; i < model->n_modules; i++)
        if (!(model->modules[i].path = text_path(config, names, model->modules[i].path, model->arena))) return ST_RESOURCE;
    for (size_t i = 0; i < model->n_linears; i++)
        if (!(model->linears[i]->path = text_path(config, names, model->linears[i]->path, model->arena))) return ST_RESOURCE;
    for (size_t i = 0; i < model->params.n; i++) {
        Param *param = &model->params.items[i];
        if (param->role == PARAM_BASE || param->role == PARAM_CHECKPOINT_ONLY) continue;
        char *name = arena_strdup(model->arena, text_path(config, names, param->name, model->arena));
        if (!name) return ST_RESOURCE;
        param->name = param->tensor->name = name;
    }
    model->config.text_names = names;
    return ST_OK;
}

/* ---- other contents of a checkpoint ---- */

/* The number of the text part's layer that the tensor belongs to; -1: none. */
static int64_t layer_of(const ModelConfig *config, const char *name, Arena *arena) {
    const PartNames *family = config->family->names;
    const char *layers = text_path(config, names_of(config), family->layers, arena);
    if (!layers || !begins_with_path(config, name, layers)) return -1;
    size_t drop = strncmp(name, layers, strlen(layers)) == 0 ? 0 : strlen(family->prefix);
    const char *number = name + strlen(layers) - drop + 1;
    return *number >= '0' && *number <= '9' ? strtoll(number, NULL, 10) : -1;
}

static bool of_text_part(const ModelConfig *config, const char *name, Arena *arena) {
    const TextNames *own = names_of(config);
    if ((*own->prefix && text_starts_with(name, own->prefix)) || begins_with_path(config, name, config->family->names->head)) return true;
    for (int i = 0; i < N_NAMES; i++)
        if (belongs(config, &text_names[i], name, arena)) return true;
    return false;
}

bool text_is_unused_part(const ModelConfig *config, const char *name) {
    Arena *arena = config->wrapper ? arena_new(0) : NULL;
    bool other = arena && !of_text_part(config, name, arena);
    arena_free(arena);
    return other;
}

bool text_is_passthrough(const ModelConfig *config, const char *name) {
    if (text_starts_with(name, "mtp.") || strstr(name, ".mtp.") || text_is_unused_part(config, name)) return true;
    Arena *arena = arena_new(0);
    bool after_last = arena && layer_of(config, name, arena) >= config->num_hidden_layers;
    arena_free(arena);
    return after_last;
}

/* "model.visual", "vision_tower": the first components of the name, which identify the part. */
static size_t part_length(const char *name) {
    size_t n = strcspn(name, ".");
    return strncmp(name, "model.", 6) == 0 ? n + 1 + strcspn(name + n + 1, ".") : n;
}

void text_describe_passthrough(const Model *model, Str *text) {
    for (size_t i = 0; i < model->n_passthrough; i++) {
        const char *name = model->passthrough[i]->name;
        size_t n = part_length(name), count = 0;
        bool first = true;
        for (size_t k = 0; k < model->n_passthrough; k++) {
            const char *other = model->passthrough[k]->name;
            bool same = part_length(other) == n && strncmp(other, name, n) == 0;
            count += same;
            first = first && !(same && k < i);
        }
        if (first) str_printf(text, "%s%.*s (%zu tensor%s)", text->len ? ", " : "", (int)n, name, count, plural((int64_t)count));
    }
}

void text_warn_of_layers(const Model *model) {
    const ModelConfig *config = &model->config;
    Arena *arena = arena_new(0);
    int64_t last = config->num_hidden_layers - 1;
    for (size_t i = 0; arena && i < model->n_passthrough; i++) last = MAX(last, layer_of(config, model->passthrough[i]->name, arena));
    arena_free(arena);
    int64_t extra = last + 1 - config->num_hidden_layers;
    if (extra > MAX(config->prediction_layers, 0))
        log_message(LOG_WARNING,
                    "'%s' has %lld layer%s after the %lld that config.json names (num_hidden_layers): %s not used, and "
                    "carried along",
                    model->dir, (long long)extra, plural(extra), (long long)config->num_hidden_layers, extra == 1 ? "it is" : "they are");
}
