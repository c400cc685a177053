/* SPDX-License-Identifier: Apache-2.0 */
/* Reads PEFT's adapter_config.json: the LoRA settings, and which layers get no branch. */
#include "lib/base/log.h"
#include "lib/model/adapter.h"
#include "lib/model/not_a_model.h"
#include "lib/model/parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- LoRA ---- */

/* Keys of other adapter kinds: refused unless null, false, zero or empty. */
static const char *const unsupported[] = {
    "lora_bias",    "layer_replication", "trainable_token_indices", "use_qalora",  "alora_invocation_tokens", "use_bdlora",
    "arrow_config", "megatron_config",   "monteclora_config",       "kasa_config", "velora_config",
};

static bool is_off(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) || (json_is_object(value) && json_object_size(value) == 0);
}

static Status read_names(const json_t *json, const char *path, const char *key, Arena *arena, size_t *n, const char ***names) {
    const json_t *list = json_object_get(json, key);
    *n = 0;
    if (!list || json_is_null(list)) return ST_OK;
    if (!json_is_array(list)) return status_fail(ST_INPUT, "wrong type of '%s' in '%s': expected a list of names", key, path);
    *names = arena_alloc(arena, (json_array_size(list) + 1) * sizeof **names);
    if (!*names) return ST_RESOURCE;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name) return status_fail(ST_INPUT, "wrong type of '%s' in '%s': expected a list of names", key, path);
        if (!((*names)[(*n)++] = arena_strdup(arena, name))) return ST_RESOURCE;
    }
    return ST_OK;
}

static Status read_patterns(const json_t *json, const char *path, const char *key, Arena *arena, size_t *n, const char ***keys, double **values) {
    const json_t *map = json_object_get(json, key);
    *n = 0;
    if (!map || json_is_null(map)) return ST_OK;
    if (!json_is_object(map)) return status_fail(ST_INPUT, "wrong type of '%s' in '%s': expected an object", key, path);
    size_t size = json_object_size(map) + 1;
    *keys = arena_alloc(arena, size * sizeof **keys);
    *values = arena_alloc(arena, size * sizeof **values);
    if (!*keys || !*values) return ST_RESOURCE;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)map, name, value) {
        if (!json_is_number(value)) return status_fail(ST_INPUT, "wrong type of '%s' for '%s' in '%s': expected a number", key, name, path);
        if (pattern_check(name) != ST_OK) return status_prefix(ST_INPUT, "'%s' in '%s'", key, path);
        (*values)[*n] = json_number_value(value);
        if (!((*keys)[(*n)++] = arena_strdup(arena, name))) return ST_RESOURCE;
    }
    return ST_OK;
}

/* A string is a regex for full paths; a list contains names. */
static Status read_regex_or_names(const json_t *json, const char *path, const char *key, Arena *arena, const char **regex, size_t *n,
                                  const char ***names) {
    const json_t *value = json_object_get(json, key);
    if (!json_is_string(value)) return read_names(json, path, key, arena, n, names);
    if (pattern_check(json_string_value(value)) != ST_OK) return status_prefix(ST_INPUT, "%s in '%s'", key, path);
    *regex = arena_strdup(arena, json_string_value(value));
    return *regex ? ST_OK : ST_RESOURCE;
}

static Status read_targets(const json_t *json, const char *path, Arena *arena, LoraConfig *config) {
    const json_t *targets = json_object_get(json, "target_modules");
    if (json_is_string(targets) && strcmp(json_string_value(targets), "all-linear") == 0) return ST_OK;
    TRY(read_regex_or_names(json, path, "target_modules", arena, &config->target_regex, &config->n_targets, &config->targets));
    if (config->target_regex || config->n_targets > 0) return ST_OK;
    config->only_parameters = config->n_parameters > 0;
    if (config->only_parameters) return ST_OK;
    status_fail(ST_INPUT, "'target_modules' in '%s' names no module", path);
    return status_hint(ST_INPUT, "PEFT would guess them by the model's family: name those that adapter_model.safetensors has tensors of");
}

static Status check_kind(const json_t *json, const char *path) {
    const char *kind = NULL, *bias = "none";
    TRY(json_get_string(json, path, "peft_type", &kind));
    if (!kind || strcmp(kind, "LORA") != 0) return status_fail(ST_INPUT, "peft_type '%s' in '%s' is not supported", kind ? kind : "", path);
    TRY(json_get_string(json, path, "bias", &bias));
    if (strcmp(bias, "none") != 0) return status_fail(ST_INPUT, "trained biases ('bias': '%s') in '%s' are not supported", bias, path);
    for (size_t i = 0; i < COUNT_OF(unsupported); i++)
        if (!is_off(json_object_get(json, unsupported[i]))) return status_fail(ST_INPUT, "'%s' in '%s' is not supported", unsupported[i], path);
    /* These initialisations also change the base's weights, so the adapter alone does not determine the trained model. */
    static const char *const changing[] = {"pissa", "olora", "loftq", "corda", "lora_ga"};
    const char *init = json_string_value(json_object_get(json, "init_lora_weights"));
    for (size_t i = 0; init && i < COUNT_OF(changing); i++)
        if (text_starts_with(init, changing[i])) return status_fail(ST_INPUT, "'init_lora_weights': '%s' in '%s' is not supported", init, path);
    return ST_OK;
}

/* Keys without an effect on the mathematics, or only on the initialisation. */
static const char *const harmless[] = {
    "peft_type",
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "target_parameters",
    "exclude_modules",
    "modules_to_save",
    "bias",
    "fan_in_fan_out",
    "init_lora_weights",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "tune_base",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "megatron_core",
    "runtime_config",
    "qalora_group_size",
    "ensure_weight_tying",
};

/* A key of a later PEFT may or may not matter, so it is reported. */
static void warn_unknown(const json_t *json, const char *path) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value) {
        bool known = is_off(value);
        for (size_t i = 0; i < COUNT_OF(harmless) && !known; i++) known = strcmp(key, harmless[i]) == 0;
        if (!known)
            log_message(LOG_WARNING, "'%s' in '%s' is not known here: if it changes what the adapter computes, results will differ", key, path);
    }
}

static Status parse_lora(const json_t *json, const char *path, Arena *arena, LoraConfig *config) {
    *config = (LoraConfig){.rank = 8, .alpha = 8, .lr_ratio = 1};
    if (!json_is_object(json)) return status_fail(ST_INPUT, "'%s' is not a JSON object", path);
    TRY(check_kind(json, path));
    TRY(json_get_int(json, path, "r", &config->rank));
    TRY(json_get_double(json, path, "lora_alpha", &config->alpha));
    TRY(json_get_double(json, path, "lora_dropout", &config->dropout));
    TRY(json_get_bool(json, path, "use_rslora", &config->use_rslora));
    TRY(json_get_bool(json, path, "use_dora", &config->use_dora));
    if (config->rank < 1 || config->rank > 1 << 20) return status_fail(ST_INPUT, "rank %lld in '%s'", (long long)config->rank, path);
    if (!(config->dropout >= 0 && config->dropout < 1)) return status_fail(ST_INPUT, "lora_dropout %g in '%s'", config->dropout, path);
    TRY(read_names(json, path, "target_parameters", arena, &config->n_parameters, &config->parameters));
    TRY(read_targets(json, path, arena, config));
    TRY(read_names(json, path, "modules_to_save", arena, &config->n_saved, &config->saved));
    double *ranks = NULL;
    TRY(read_patterns(json, path, "rank_pattern", arena, &config->n_rank_pattern, &config->rank_keys, &ranks));
    TRY(read_patterns(json, path, "alpha_pattern", arena, &config->n_alpha_pattern, &config->alpha_keys, &config->alpha_values));
    config->rank_values = arena_alloc(arena, (config->n_rank_pattern + 1) * sizeof *config->rank_values);
    if (!config->rank_values) return ST_RESOURCE;
    for (size_t i = 0; i < config->n_rank_pattern; i++) {
        if (!(ranks[i] >= 1 && ranks[i] <= 1 << 20)) return status_fail(ST_INPUT, "rank %g for '%s' in '%s'", ranks[i], config->rank_keys[i], path);
        config->rank_values[i] = (int64_t)ranks[i];
    }
    return ST_OK;
}

/* ---- which layers ---- */

static Status read_layer_numbers(const json_t *json, const char *path, Arena *arena, AdapterSettings *settings) {
    const json_t *layers = json_object_get(json, "layers_to_transform");
    if (!layers || json_is_null(layers)) return ST_OK;
    settings->n_layers = json_is_array(layers) ? json_array_size(layers) : 1;
    if (!(settings->layers = arena_alloc(arena, (settings->n_layers + 1) * sizeof *settings->layers))) return ST_RESOURCE;
    for (size_t i = 0; i < settings->n_layers; i++) {
        const json_t *layer = json_is_array(layers) ? json_array_get(layers, i) : layers;
        if (!json_is_integer(layer)) return status_fail(ST_INPUT, "wrong type of 'layers_to_transform' in '%s': expected a list of integers", path);
        settings->layers[i] = json_integer_value(layer);
    }
    return ST_OK;
}

/* PEFT allows no list of layers with a string of targets, and no pattern without layers. */
static Status read_layers(const json_t *json, const char *path, Arena *arena, AdapterSettings *settings) {
    const char *pattern = NULL;
    TRY(read_layer_numbers(json, path, arena, settings));
    TRY(read_regex_or_names(json, path, "layers_pattern", arena, &pattern, &settings->n_layers_patterns, &settings->layers_patterns));
    if (pattern && *pattern) {
        settings->n_layers_patterns = 1;
        settings->layers_patterns = arena_alloc(arena, sizeof *settings->layers_patterns);
        if (!settings->layers_patterns) return ST_RESOURCE;
        settings->layers_patterns[0] = pattern;
    }
    if (settings->n_layers > 0 && json_is_string(json_object_get(json, "target_modules")))
        return status_fail(ST_INPUT, "'layers_to_transform' in '%s' needs a list of 'target_modules', not a string", path);
    if (settings->n_layers == 0 && settings->n_layers_patterns > 0)
        return status_fail(ST_INPUT, "'layers_pattern' in '%s' needs 'layers_to_transform'", path);
    return ST_OK;
}

static Status parse_settings(const json_t *json, const char *path, Arena *arena, AdapterSettings *settings) {
    const char *base = "";
    TRY(json_get_string(json, path, "base_model_name_or_path", &base));
    if (!(settings->base = arena_strdup(arena, base))) return ST_RESOURCE;
    TRY(json_get_bool(json, path, "ensure_weight_tying", &settings->tied));
    TRY(read_regex_or_names(json, path, "exclude_modules", arena, &settings->excluded_regex, &settings->n_excluded, &settings->excluded));
    return read_layers(json, path, arena, settings);
}

/* The first number in a module's path; -1: none. */
static int64_t layer_number(const char *path) {
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.')) {
        size_t digits = strspn(dot + 1, "0123456789");
        if (digits > 0 && dot[1 + digits] == '.') return strtoll(dot + 1, NULL, 10);
    }
    return -1;
}

static void layers_pattern(const char *before, int64_t number, Str *pattern) {
    str_printf(pattern, "(?:^|.*?\\.)%s\\.%lld\\..*", before, (long long)number);
}

static bool in_layers(const AdapterSettings *settings, const char *path) {
    int64_t number = layer_number(path);
    bool listed = false, named = settings->n_layers_patterns == 0;
    for (size_t i = 0; i < settings->n_layers && !listed; i++) listed = settings->layers[i] == number;
    for (size_t i = 0; i < settings->n_layers_patterns && listed && !named; i++) {
        Str pattern = {0};
        layers_pattern(settings->layers_patterns[i], number, &pattern);
        named = pattern_matches(str_text(&pattern), path);
        str_release(&pattern);
    }
    return listed && named;
}

Status adapter_decides(const AdapterSettings *settings, const char *path) {
    int64_t number = layer_number(path);
    TRY(lora_decides(&settings->lora, path));
    if (settings->excluded_regex) TRY(pattern_decides(settings->excluded_regex, path));
    Status status = ST_OK;
    for (size_t i = 0; i < settings->n_layers_patterns && status == ST_OK; i++) {
        Str pattern = {0};
        layers_pattern(settings->layers_patterns[i], number, &pattern);
        status = pattern_decides(str_text(&pattern), path);
        str_release(&pattern);
    }
    return status;
}

const char *adapter_left_out_by(const AdapterSettings *settings, const Linear *linear) {
    const char *path = linear->path;
    const LoraConfig *lora = &settings->lora;
    if (settings->excluded_regex ? pattern_matches(settings->excluded_regex, path) : module_matches(path, settings->excluded, settings->n_excluded))
        return "exclude_modules";
    if (module_matches(path, lora->saved, lora->n_saved)) return "modules_to_save";
    if (!lora_targets(lora, linear)) return linear->copies ? "target_parameters" : "target_modules";
    for (size_t i = 0; i < lora->n_targets; i++)
        if (strcmp(lora->targets[i], path) == 0) return NULL; /* a full path matches in any layer */
    return settings->n_layers == 0 || in_layers(settings, path) ? NULL : "layers_to_transform";
}

/* ---- the file ---- */

static Status open_config(const char *dir, Arena *arena, const char **path, json_t **json) {
    if (!dir_exists(dir)) return hint_no_directory(status_fail(ST_INPUT, "no adapter directory '%s'", dir), dir, AN_ADAPTER);
    const char *model = path_join(arena, dir, "config.json"), *made = path_join(arena, dir, "adapter");
    *path = path_join(arena, dir, "adapter_config.json");
    if (!*path || !model || !made) return ST_RESOURCE;
    bool there;
    TRY(file_find(*path, &there));
    if (there) return json_read_file(*path, json);
    status_fail(ST_INPUT, "'%s' is no adapter: it lacks adapter_config.json", dir);
    if (dir_exists(made)) return status_hint(ST_INPUT, "it is a run: its adapter is '%s'", made);
    return file_exists(model) ? status_hint(ST_INPUT, "it is a model") : status_hint(ST_INPUT, AN_ADAPTER);
}

Status adapter_settings_read(const char *dir, Arena *arena, AdapterSettings *settings) {
    const char *path;
    json_t *json;
    *settings = (AdapterSettings){0};
    TRY(open_config(dir, arena, &path, &json));
    Status status = parse_lora(json, path, arena, &settings->lora);
    if (status == ST_OK) status = parse_settings(json, path, arena, settings);
    if (status == ST_OK) warn_unknown(json, path); /* only here, since each user of an adapter reads its settings once */
    json_decref(json);
    return status;
}

Status adapter_config_read(const char *dir, Arena *arena, LoraConfig *config) {
    const char *path;
    json_t *json;
    TRY(open_config(dir, arena, &path, &json));
    Status status = parse_lora(json, path, arena, config);
    json_decref(json);
    return status;
}

Status adapter_base(const char *dir, Arena *arena, const char **base) {
    const char *digest;
    return adapter_base_digest(dir, arena, base, &digest);
}

Status adapter_base_digest(const char *dir, Arena *arena, const char **base, const char **digest) {
    AdapterSettings settings = {0};
    const char *path;
    json_t *json;
    TRY(open_config(dir, arena, &path, &json));
    Status status = parse_settings(json, path, arena, &settings);
    *base = settings.base;
    const char *text = "";
    if (status == ST_OK) status = json_get_string(json, path, "tune_base", &text);
    *digest = status == ST_OK ? arena_strdup(arena, text) : NULL;
    if (status == ST_OK && !*digest) status = ST_RESOURCE;
    json_decref(json);
    return status;
}
