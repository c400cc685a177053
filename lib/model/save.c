/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a Hugging Face directory: weights in one file or in shards, config.json with the new dtype, and the other files of the model. */
#include "lib/base/log.h"
#include "lib/model/convert.h"
#include "lib/model/parts.h"
#include "lib/model/safetensors.h"
#include "lib/model/text_part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t SHARD_BYTES = 5ull * 1000 * 1000 * 1000;

/* ---- other files of a model ---- */

static Status copy_if_there(const char *from, const char *to, const char *name, Arena *arena) {
    const char *source = path_join(arena, from, name), *target = path_join(arena, to, name);
    bool there;
    if (!source || !target) return ST_RESOURCE;
    TRY(file_find(source, &there));
    return there ? file_copy(source, target) : ST_OK;
}

static Status copy_templates(const char *from, const char *to, Arena *arena) {
    static const char *const name = "additional_chat_templates";
    const char *source = path_join(arena, from, name), *target = path_join(arena, to, name);
    char **files;
    size_t n;
    bool is_file;
    if (!source || !target) return ST_RESOURCE;
    TRY(file_find(source, &is_file));
    if (!dir_exists(source)) return ST_OK;
    TRY(dir_make(target));
    TRY(dir_list(source, arena, &files, &n));
    for (size_t i = 0; i < n; i++) /* files that programs read; folders and editors' backups are not copied */
        if (text_ends_with(files[i], ".jinja")) TRY(file_copy(path_join(arena, source, files[i]), path_join(arena, target, files[i])));
    return ST_OK;
}

Status model_copy_files(const char *from, const char *to) {
    static const char *const names[] = {
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "tekken.json",
        "chat_template.jinja",
        "chat_template.json",
        "processor_config.json", /* these three: of models with image or audio input */
        "preprocessor_config.json",
        "video_preprocessor_config.json",
    };
    Arena *arena = arena_new(0);
    if (!arena) return ST_RESOURCE;
    Status status = ST_OK;
    for (size_t i = 0; i < COUNT_OF(names) && status == ST_OK; i++) status = copy_if_there(from, to, names[i], arena);
    if (status == ST_OK) status = copy_templates(from, to, arena);
    arena_free(arena);
    return status;
}

static void write_json(JsonWriter *w, const char *key, const json_t *value) {
    const char *name = json_bare(value);
    json_t *item;
    size_t i;
    if (name) { /* unchanged */
        jw_raw(w, key, name);
        return;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        jw_object(w, key);
        json_object_foreach((json_t *)value, name, item) write_json(w, name, item);
        jw_end_object(w);
        break;
    case JSON_ARRAY:
        jw_array(w, key);
        json_array_foreach(value, i, item) write_json(w, NULL, item);
        jw_end_array(w);
        break;
    case JSON_STRING: jw_string_n(w, key, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: jw_int(w, key, json_integer_value(value)); break;
    case JSON_REAL: jw_double(w, key, json_real_value(value)); break;
    case JSON_TRUE:
    case JSON_FALSE: jw_bool(w, key, json_is_true(value)); break;
    case JSON_NULL: jw_null(w, key); break;
    }
}

static const char *torch_name(DType dtype) {
    return dtype == DT_BF16 ? "bfloat16" : dtype == DT_F16 ? "float16" : dtype == DT_F64 ? "float64" : "float32";
}

/* The settings of transformers' classes for one label. The class of a wrapped model is named after the wrapper. */
static void become_classifier(json_t *json, const char *class_name) {
    static const char *const whole = "ForConditionalGeneration";
    const char *old = json_string_value(json_array_get(json_object_get(json, "architectures"), 0));
    Str name = {0};
    if (text_config_of(json) && old && text_ends_with(old, whole))
        str_append_n(&name, old, strlen(old) - strlen(whole));
    else if (!(text_config_of(json) && old))
        str_append(&name, class_name);
    if (name.len > 0) {
        str_append(&name, "ForSequenceClassification");
        json_object_set_new(json, "architectures", json_pack("[s]", str_text(&name)));
    }
    str_release(&name);
    json_object_set_new(json, "id2label", json_pack("{s:s}", "0", "LABEL_0"));
    json_object_set_new(json, "label2id", json_pack("{s:i}", "LABEL_0", 0));
    json_object_del(json, "num_labels");
}

/* Sets the keys that the object has; false: it has none. */
static bool say_dtype(json_t *json, const char *name) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    bool said = false;
    for (size_t i = 0; json && i < COUNT_OF(keys); i++) {
        if (!json_object_get(json, keys[i])) continue;
        json_object_set_new(json, keys[i], json_string(name));
        said = true;
    }
    return said;
}

Status config_write(json_t *json, DType dtype, const char *path) {
    JsonWriter writer = {.pretty = true};
    bool outside = say_dtype(json, torch_name(dtype)), inside = say_dtype(text_config_of(json), torch_name(dtype));
    if (!outside && !inside) json_object_set_new(json, "torch_dtype", json_string(torch_name(dtype)));
    write_json(&writer, NULL, json);
    str_append_char(&writer.text, '\n');
    Status status = file_write_all(path, writer.text.data, writer.text.len);
    jw_release(&writer);
    return status;
}

Status model_copy_config(const char *from, const char *to, DType dtype, bool untie, const char *class_name) {
    Arena *arena = arena_new(0);
    if (!arena) return ST_RESOURCE;
    Status status = ST_OK;
    json_t *json = NULL;
    const char *source = path_join(arena, from, "config.json"), *target = path_join(arena, to, "config.json");
    if (!source || !target) {
        status = ST_RESOURCE;
        goto done;
    }
    TRY_GOTO(json_read_config(source, true, &json), done);
    if (untie) json_object_set_new(json, "tie_word_embeddings", json_false());
    if (untie && text_config_of(json)) json_object_set_new(text_config_of(json), "tie_word_embeddings", json_false());
    if (class_name) become_classifier(json, class_name);
    status = config_write(json, dtype, target);
done:
    json_decref(json);
    arena_free(arena);
    return status;
}

/* ---- weights ---- */

/* A tensor to write: a parameter of the model, or one that is carried along. */
typedef struct Saved {
    const Param *param; /* NULL: carried along */
    const StoredTensor *passthrough;
    DType dtype; /* of the parameter */
    size_t place, element, bytes;
} Saved;

/* Shard s: tensors first[s] .. first[s + 1] - 1 */
typedef struct Shards {
    const Model *model;
    const DType *dtype; /* of all parameters; NULL: each in its own */
    RoundingLoss *loss;
    bool coarse;   /* some tensor is stored with fewer bits than it was trained in */
    bool base_cut; /* so the loss is unknown */
    Saved *tensors;
    size_t n_tensors;
    size_t n, *first, total;
} Shards;

static const char *saved_name(const Saved *saved) { return saved->param ? saved->param->name : saved->passthrough->name; }

/* The dtype in the checkpoint, so that f32 norms in a bf16 file stay f32. */
static DType own_dtype(const Model *model, const char *name) {
    const StoredTensor *base = weight_file_find(model->files, name);
    return base ? base->dtype : model->config.stored_dtype;
}

/* Tensors with larger elements come first, so that each tensor is aligned for readers that map the file; otherwise in their original order. */
static int by_element(const void *left, const void *right) {
    const Saved *a = left, *b = right;
    if (a->element != b->element) return a->element > b->element ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static Status list_tensors(Shards *shards, Arena *arena) {
    const Model *model = shards->model;
    shards->tensors = arena_alloc(arena, (model->params.n + model->n_passthrough + 1) * sizeof *shards->tensors);
    if (!shards->tensors) return ST_RESOURCE;
    for (size_t i = 0; i < model->params.n; i++) {
        const Param *param = &model->params.items[i];
        if (param->role != PARAM_BASE) continue;
        DType dtype = shards->dtype ? *shards->dtype : own_dtype(model, param->name);
        shards->tensors[shards->n_tensors] = (Saved){param, NULL, dtype, shards->n_tensors, dtype_bytes(dtype, 1), 0};
        shards->tensors[shards->n_tensors++].bytes = dtype_bytes(dtype, tensor_count(param->tensor));
        shards->coarse |= dtype == DT_BF16 || dtype == DT_F16;
    }
    for (size_t i = 0; i < model->n_passthrough; i++) {
        const StoredTensor *passthrough = model->passthrough[i];
        size_t element = passthrough->count > 0 ? passthrough->bytes / (size_t)passthrough->count : 1;
        shards->tensors[shards->n_tensors] = (Saved){NULL, passthrough, DT_F32, shards->n_tensors, element, passthrough->bytes};
        shards->n_tensors++;
    }
    return ST_OK;
}

static Status plan_shards(Shards *shards, Arena *arena) {
    TRY(list_tensors(shards, arena));
    shards->first = arena_alloc(arena, (shards->n_tensors + 1) * sizeof(size_t));
    if (!shards->first) return ST_RESOURCE;
    size_t filled = SHARD_BYTES;
    for (size_t i = 0; i < shards->n_tensors; i++) {
        size_t bytes = shards->tensors[i].bytes;
        if (filled + bytes > SHARD_BYTES) {
            shards->first[shards->n++] = i;
            filled = 0;
        }
        filled += bytes;
        shards->total += bytes;
    }
    shards->first[shards->n] = shards->n_tensors;
    for (size_t s = 0; s < shards->n; s++)
        qsort(shards->tensors + shards->first[s], shards->first[s + 1] - shards->first[s], sizeof *shards->tensors, by_element);
    return ST_OK;
}

static const char *shard_name(const Shards *shards, size_t s, Arena *arena) {
    return shards->n == 1 ? "model.safetensors" : arena_printf(arena, "model-%05zu-of-%05zu.safetensors", s + 1, shards->n);
}

/* Stores values and measures the loss: bf16 or f16 may be too coarse for the learned changes, or have too small a range. The base's values are read
 * from its mapped file, which is released at once. A weight that the base lacks is new: its rounding is no loss of a change. */
static Status write_rounded(Shards *shards, const Saved *saved, SafetensorsWriter *writer) {
    enum { GIVEN_BACK = 1 << 18 };
    const Param *param = saved->param;
    const Tensor *tensor = param->tensor;
    const StoredTensor *base = weight_file_find(shards->model->files, param->name);
    size_t count = (size_t)tensor_count(tensor), size = base ? dtype_bytes(base->dtype, 1) : 0;
    double error = 0;
    RoundingLoss unasked = {0};
    for (size_t at = 0, n; at < count && isfinite(error) && !safetensors_failed(writer); at += n) {
        float values[ROUNDING_PIECE], before[ROUNDING_PIECE], change[ROUNDING_PIECE], stored[ROUNDING_PIECE];
        n = MIN(count - at, (size_t)ROUNDING_PIECE);
        TRY(tensor_floats(tensor, (int64_t)at, (int64_t)n, values));
        if (base)
            convert_elements(base->data + at * size, base->dtype, before, DT_F32, n);
        else
            memcpy(before, values, n * sizeof *before);
        for (size_t i = 0; i < n; i++) change[i] = values[i] - before[i];
        error = round_sums(values, before, change, n, saved->dtype, stored, base ? shards->loss : &unasked);
        safetensors_write(writer, stored, n * saved->element);
        size_t seen = (at + n) % GIVEN_BACK ? (at + n) % GIVEN_BACK : GIVEN_BACK;
        if (base && (seen == GIVEN_BACK || at + n == count)) model_drop_pages(shards->model, base->data + (at + n - seen) * size, seen * size);
    }
    const Mapping *mapping = base ? model_mapping(shards->model, base->data) : NULL;
    if (mapping && shards->model->n_passthrough == 0 && file_ignore_truncation(mapping))
        shards->base_cut = true; /* the weights belong to the model */
    if (isfinite(error)) return ST_OK;
    status_fail(ST_NUMERIC, "a trained value of tensor '%s' does not fit into %s", param->name, dtype_name(saved->dtype));
    return status_hint(ST_NUMERIC, "f32 and bf16 hold larger values");
}

/* Copies the bytes unchanged, piece by piece: only one piece of the mapped file is in memory at a time. */
static void write_carried(const Model *model, const StoredTensor *passthrough, SafetensorsWriter *writer) {
    const size_t most = (size_t)8 << 20;
    for (size_t at = 0; at < passthrough->bytes && !safetensors_failed(writer); at += most) {
        safetensors_write(writer, passthrough->data + at, MIN(most, passthrough->bytes - at));
        model_drop_pages(model, passthrough->data + at, MIN(most, passthrough->bytes - at));
    }
}

static Status write_tensors(Shards *shards, size_t s, SafetensorsWriter *writer) {
    for (size_t i = shards->first[s]; i < shards->first[s + 1]; i++) {
        const Saved *saved = &shards->tensors[i];
        if (saved->passthrough)
            safetensors_declare_as(writer, saved->passthrough);
        else
            safetensors_declare(writer, saved->param->name, saved->dtype, saved->param->tensor->n_dims, saved->param->tensor->shape);
    }
    for (size_t i = shards->first[s]; i < shards->first[s + 1] && !safetensors_failed(writer); i++) {
        const Saved *saved = &shards->tensors[i];
        const Tensor *tensor = saved->param ? saved->param->tensor : NULL;
        if (saved->passthrough)
            write_carried(shards->model, saved->passthrough, writer);
        else if (shards->coarse && saved->dtype != DT_F64)
            TRY(write_rounded(shards, saved, writer));
        else
            safetensors_write_tensor(writer, tensor, saved->dtype);
    }
    return ST_OK;
}

static Status write_shard(Shards *shards, size_t s, const char *path) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    Status status = write_tensors(shards, s, writer);
    if (status == ST_OK) return safetensors_commit(writer);
    safetensors_abandon(writer);
    return status;
}

static Status write_index(const Shards *shards, const char *dir, Arena *arena) {
    IndexedTensor *tensors = arena_alloc(arena, (shards->n_tensors + 1) * sizeof *tensors);
    if (!tensors) return ST_RESOURCE;
    for (size_t s = 0; s < shards->n; s++) {
        const char *file = shard_name(shards, s, arena);
        if (!file) return ST_RESOURCE;
        for (size_t i = shards->first[s]; i < shards->first[s + 1]; i++) tensors[i] = (IndexedTensor){saved_name(&shards->tensors[i]), file};
    }
    return safetensors_write_index(dir, tensors, shards->n_tensors, shards->total);
}

static Status write_directory(void *context, const char *dir) {
    Shards *shards = context;
    const Model *model = shards->model;
    Arena *arena = arena_new(0);
    Status status = arena ? plan_shards(shards, arena) : ST_RESOURCE;
    if (status == ST_OK) status = dir_check_space(dir, shards->total);
    for (size_t s = 0; status == ST_OK && s < shards->n; s++) status = write_shard(shards, s, path_join(arena, dir, shard_name(shards, s, arena)));
    if (status == ST_OK && shards->n > 1) status = write_index(shards, dir, arena);
    arena_free(arena);
    TRY(status);
    TRY(model_copy_files(model->dir, dir));
    return model_copy_config(model->dir, dir, shards->dtype ? *shards->dtype : model->config.stored_dtype, model->head && model->head != model->embed,
                             model->score ? model->config.family->class_name : NULL);
}

Status model_save(const Model *model, const char *dir, const DType *dtype, RoundingLoss *loss) {
    RoundingLoss sums = {0};
    Shards shards = {.model = model, .dtype = dtype, .loss = &sums};
    TRY(dir_build(dir, write_directory, &shards));
    if (shards.base_cut)
        log_message(LOG_WARNING,
                    "the weights in '%s' were truncated by another program: the loss of learned changes by rounding to "
                    "%s is unknown",
                    model->dir, dtype_name(dtype ? *dtype : model->config.stored_dtype));
    if (loss) *loss = shards.base_cut ? (RoundingLoss){0} : sums;
    return ST_OK;
}
