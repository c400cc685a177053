/* SPDX-License-Identifier: Apache-2.0 */
/* Writes adapters in PEFT's format: adapter_config.json and adapter_model.safetensors. */
#include "lib/base/sha256.h"
#include "lib/model/adapter.h"
#include "lib/model/parts.h"
#include "lib/model/safetensors.h"
#include "lib/model/text_part.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void write_names(JsonWriter *w, const char *key, const char *const *names, size_t n) {
    jw_array(w, key);
    for (size_t i = 0; i < n; i++) jw_string(w, NULL, names[i]);
    jw_end_array(w);
}

/* Writes integers without a point, as in PEFT's own files: "lora_alpha": 16. */
static void write_number(JsonWriter *w, const char *key, double value) {
    if (value == floor(value) && fabs(value) < 1e15)
        jw_int(w, key, (int64_t)value);
    else
        jw_double(w, key, value);
}

/* Whether the model's paths begin differently than those of a plain language model. */
static bool is_text_part(const Model *model) { return model->config.wrapper && model->config.text_names != &text_names[NAMES_PLAIN]; }

/* The name under which PEFT looks for a fully trained module: that of current transformers classes, which differs from an older checkpoint's. PEFT
 * finds LoRA matrices by either name; serving engines know the checkpoint's name, and load no fully trained modules. */
static const char *saved_path(const Model *model, const char *path) {
    const TextNames *names = &text_names[NAMES_MODEL_LANGUAGE_MODEL];
    bool older = model->config.wrapper && model->config.text_names == &text_names[NAMES_LANGUAGE_MODEL] && !text_starts_with(path, names->prefix);
    const char *today = older ? text_path(&model->config, names, path, model->arena) : NULL;
    return today ? today : path;
}

/* A layer's path without the part before "layers", which depends on the version of transformers. */
static const char *inner_path(const Model *model, const Linear *linear) {
    const char *path = text_path(&model->config, &text_names[NAMES_PLAIN], linear->path, model->arena), *prefix = model->config.family->names->prefix;
    return path && text_starts_with(path, prefix) ? path + strlen(prefix) : path;
}

/* "layers\.0\.self_attn\.q_proj": a name escaped for a pattern. */
static void append_escaped(Str *pattern, const char *name) {
    for (; *name; name++) str_printf(pattern, "%s%c", *name == '.' ? "\\" : "", *name);
}

/* The targets of a wrapped model are a pattern: PEFT would match a name in vision towers, too, and full paths depend on the version of transformers.
 * All versions have a component "language_model" (or text_model) before the layer's path. */
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

/* Whether the pattern matches exactly the layers with a branch, by the names that `names` makes. */
static bool regex_says(const Model *model, const char *regex, const TextNames *names) {
    bool exact = true;
    for (size_t i = 0; i < model->n_linears && exact; i++) {
        const Linear *linear = model->linears[i];
        const char *path = text_path(&model->config, names, linear->path, model->arena);
        exact = path && pattern_matches(regex, path) == (linear->lora != NULL);
    }
    return exact;
}

/* The targets as given if they match exactly the layers with a branch; otherwise the full paths of these. */
static void write_targets(JsonWriter *w, const Model *model) {
    const LoraConfig *lora = &model->lora;
    bool exact = true, text_part = is_text_part(model);
    for (size_t i = 0; i < model->n_linears; i++) exact &= (model->linears[i]->lora != NULL) == lora_targets(lora, model->linears[i]);
    for (int i = NAMES_MODEL_LANGUAGE_MODEL; i <= NAMES_LANGUAGE_MODEL && text_part && exact && lora->target_regex; i++)
        exact = regex_says(model, lora->target_regex, &text_names[i]);
    if (lora->only_parameters) {
        write_names(w, "target_modules", NULL, 0);
    } else if (exact && lora->target_regex) {
        jw_string(w, "target_modules", lora->target_regex);
    } else if (text_part) {
        write_text_targets(w, model, by_kinds(model));
    } else if (exact && lora->n_targets) {
        write_names(w, "target_modules", lora->targets, lora->n_targets);
    } else if (exact && model->n_routers == 0) {
        const char *names[MAX_KINDS];
        write_names(w, "target_modules", names, linear_kinds(model, names, COUNT_OF(names)));
    } else { /* with experts a name such as up_proj would match those, too */
        jw_array(w, "target_modules");
        for (size_t i = 0; i < model->n_linears; i++)
            if (model->linears[i]->lora && !model->linears[i]->copies) jw_string(w, NULL, model->linears[i]->path);
        jw_end_array(w);
    }
}

/* The names of parameters that got pairs: only where some did, since old versions of PEFT refuse the key. */
static void write_parameters(JsonWriter *w, const Model *model) {
    const LoraConfig *lora = &model->lora;
    if (lora->n_parameters > 0) write_names(w, "target_parameters", lora->parameters, lora->n_parameters);
}

/* Ranks and scales as given by the patterns if these match the written paths; otherwise by full paths. */
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
        exact = exact && (!branch || (rank == tensor_width(branch->b) && scale == branch->scale));
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
        rank = tensor_width(linear->lora->b);
        alpha = linear->lora->scale * (lora->use_rslora ? sqrt((double)rank) : (double)rank);
        const char *path = is_text_part(model) ? inner_path(model, linear) : linear->path;
        if (ranks && rank != lora->rank) jw_int(w, path, rank);
        if (!ranks && fabs(alpha - lora->alpha) > 1e-9 * fabs(lora->alpha)) write_number(w, path, alpha);
    }
    jw_end_object(w);
}

/* Whether a passthrough module has a path that ends with the name. */
static bool names_other_part(const Model *model, const char *name) {
    size_t n = strlen(name);
    bool found = false;
    for (size_t i = 0; i < model->n_passthrough && !found; i++) {
        const char *path = model->passthrough[i]->name, *end = strrchr(path, '.');
        found = end && (size_t)(end - path) >= n && strncmp(end - n, name, n) == 0;
    }
    return found;
}

/* PEFT matches every module whose path ends with a name: "norm" would also match each input_layernorm. Such a name is written as the paths that it
 * refers to here, except those that an earlier name covers. */
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
        plain = plain && !names_other_part(model, lora->saved[t]);
        if (plain) jw_string(w, NULL, saved_path(model, lora->saved[t]));
        for (size_t i = 0; i < model->n_modules && !plain; i++)
            if (module_matches(model->modules[i].path, &lora->saved[t], 1) && !module_matches(model->modules[i].path, lora->saved, t))
                jw_string(w, NULL, saved_path(model, model->modules[i].path));
    }
    jw_end_array(w);
}

/* The keys that every version of PEFT since 0.7 knows, and later ones only if they are set: old versions refuse unknown keys. */
static Status write_config(const Model *model, const char *path, const char *base) {
    char digest[SHA256_TEXT] = "";
    if (model->files && weight_file_is_quantised(model->files)) TRY(model_base_digest(model, digest));
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
    write_parameters(&w, model);
    if (digest[0]) jw_string(&w, "tune_base", digest); /* of a quantised base: its original has the same name and other values */
    jw_string(&w, "task_type", model->score ? "SEQ_CLS" : "CAUSAL_LM");
    if (lora->use_dora) jw_bool(&w, "use_dora", true);
    jw_bool(&w, "use_rslora", lora->use_rslora);
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    Status status = file_write_all(path, w.text.data, w.text.len);
    jw_release(&w);
    return status;
}

/* The layer of all experts together that a parameter is a factor of; NULL: it is of another kind. */
static const Linear *together_of(const Model *model, const Param *param) {
    if (param->role != PARAM_LORA_A && param->role != PARAM_LORA_B) return NULL;
    for (size_t i = 0; i < model->n_linears; i++) {
        const Linear *linear = model->linears[i];
        if (linear->copies && linear->lora && (linear->lora->a == param->tensor || linear->lora->b == param->tensor)) return linear;
    }
    return NULL;
}

/* B (E out, r) as PEFT has it: (out, E r), the expert's number running fastest. */
static Status write_together(SafetensorsWriter *writer, const Tensor *b, const Linear *linear) {
    int64_t E = linear->copies, out = linear->out, rank = tensor_width(b), count = tensor_count(b);
    float *ours = malloc((size_t)(2 * count + 1) * sizeof *ours), *theirs = ours + count;
    if (!ours) return status_fail(ST_RESOURCE, "out of memory for tensor '%s'", b->name);
    Status status = tensor_floats(b, 0, count, ours);
    for (int64_t e = 0; e < E; e++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t j = 0; j < rank; j++) theirs[o * E * rank + j * E + e] = ours[(e * out + o) * rank + j];
    if (status == ST_OK) safetensors_write(writer, theirs, (size_t)count * sizeof *theirs);
    free(ours);
    return status;
}

/* The name of a parameter in the file, after PEFT's prefix. */
static const char *param_name(const Model *model, const Param *param, const Linear *together) {
    if (param->role == PARAM_SAVED) return saved_path(model, param->name);
    if (!together) return param->name;
    const char *path = together_path(together, together_has_both(model, &model->lora, together), model->arena);
    return path ? arena_printf(model->arena, "%s.lora_%c.weight", path, param->role == PARAM_LORA_A ? 'A' : 'B') : NULL;
}

static Status write_tensors(const Model *model, const char *path) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < model->params.n; i++) {
            const Param *param = &model->params.items[i];
            const Tensor *tensor = param->tensor;
            if (param->role == PARAM_BASE || param->role == PARAM_CHECKPOINT_ONLY) continue;
            const Linear *together = together_of(model, param);
            bool turned = together && param->role == PARAM_LORA_B;
            if (pass == 1) {
                Status status = turned ? write_together(writer, tensor, together) : ST_OK;
                if (!turned) safetensors_write_tensor(writer, tensor, DT_F32);
                if (status == ST_OK) continue;
                safetensors_abandon(writer);
                return status;
            }
            const int64_t shape[] = {together ? together->out : 0, together ? together->copies * tensor_width(tensor) : 0};
            const char *its = param_name(model, param, together);
            Str name = {0};
            if (!its) {
                safetensors_abandon(writer);
                return ST_RESOURCE;
            }
            str_printf(&name, "%s%s", PEFT_PREFIX, its);
            safetensors_declare(writer, str_text(&name), DT_F32, tensor->n_dims, turned ? shape : tensor->shape);
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
