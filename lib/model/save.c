/* Writing a Hugging Face directory: weights in one file or in shards, config.json with the new dtype, and the files beside them. */
#include "lib/model/parts.h"

#include <stdio.h>
#include <string.h>

static const size_t SHARD_BYTES = 5ull * 1000 * 1000 * 1000;

/* ---- files that go with a model ---- */

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
        "chat_template.jinja",
        "chat_template.json",
    };
    Arena *arena = arena_new(0);
    if (!arena) return ST_RESOURCE;
    Status status = ST_OK;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *source = path_join(arena, from, names[i]), *target = path_join(arena, to, names[i]);
        bool there;
        TRY_GOTO(file_find(source, &there), done);
        if (there) TRY_GOTO(file_copy(source, target), done);
    }
    const char *templates = path_join(arena, from, "additional_chat_templates"), *copies = path_join(arena, to, "additional_chat_templates");
    if (templates && copies && dir_exists(templates)) {
        char **files;
        size_t n;
        TRY_GOTO(dir_make(copies), done);
        TRY_GOTO(dir_list(templates, arena, &files, &n), done);
        for (size_t i = 0; i < n; i++) TRY_GOTO(file_copy(path_join(arena, templates, files[i]), path_join(arena, copies, files[i])), done);
    }
done:
    arena_free(arena);
    return status;
}

static void write_json(JsonWriter *w, const char *key, const json_t *value) {
    const char *name;
    json_t *item;
    size_t i;
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

/* What transformers' classes for one label have in their config. */
static void become_classifier(json_t *json, const char *class_name) {
    char name[64];
    snprintf(name, sizeof name, "%sForSequenceClassification", class_name);
    const json_t *pad = json_object_get(json, "pad_token_id"), *eos = json_object_get(json, "eos_token_id");
    bool ends = pad && json_is_integer(pad) && json_equal(pad, eos);
    for (size_t i = 0; pad && json_is_array(eos) && i < json_array_size(eos); i++)
        ends |= json_is_integer(pad) && json_equal(pad, json_array_get(eos, i)) != 0;
    if (ends) json_object_set_new(json, "pad_token_id", json_null());
    json_object_set_new(json, "architectures", json_pack("[s]", name));
    json_object_set_new(json, "id2label", json_pack("{s:s}", "0", "LABEL_0"));
    json_object_set_new(json, "label2id", json_pack("{s:i}", "LABEL_0", 0));
    json_object_del(json, "num_labels");
}

Status model_copy_config(const char *from, const char *to, DType dtype, bool untie, const char *class_name) {
    Arena *arena = arena_new(0);
    if (!arena) return ST_RESOURCE;
    Status status = ST_OK;
    json_t *json = NULL;
    JsonWriter writer = {.pretty = true};
    const char *source = path_join(arena, from, "config.json"), *target = path_join(arena, to, "config.json");
    if (!source || !target) {
        status = ST_RESOURCE;
        goto done;
    }
    TRY_GOTO(json_read_file(source, &json), done);
    if (json_object_get(json, "dtype")) json_object_set_new(json, "dtype", json_string(torch_name(dtype)));
    if (json_object_get(json, "torch_dtype") || !json_object_get(json, "dtype"))
        json_object_set_new(json, "torch_dtype", json_string(torch_name(dtype)));
    if (untie) json_object_set_new(json, "tie_word_embeddings", json_false());
    if (class_name) become_classifier(json, class_name);
    write_json(&writer, NULL, json);
    str_append_char(&writer.text, '\n');
    status = file_write_all(target, writer.text.data, writer.text.len);
done:
    jw_release(&writer);
    json_decref(json);
    arena_free(arena);
    return status;
}

/* ---- weights ---- */

/* Shard s: parameters first[s] .. first[s + 1] - 1 */
typedef struct Shards { const Model *model; DType dtype; size_t n; size_t *first; size_t total; } Shards;

static size_t saved_bytes(const Param *param, DType dtype) { return (size_t)tensor_count(param->tensor) * dtype_size(dtype); }

static Status plan_shards(const Model *model, DType dtype, Arena *arena, Shards *shards) {
    const Params *params = &model->params;
    *shards = (Shards){.model = model, .dtype = dtype, .first = arena_alloc(arena, (params->n + 1) * sizeof(size_t))};
    if (!shards->first) return ST_RESOURCE;
    size_t filled = SHARD_BYTES;
    for (size_t i = 0; i < params->n; i++) {
        if (params->items[i].role != PARAM_BASE) continue;
        size_t bytes = saved_bytes(&params->items[i], dtype);
        if (filled + bytes > SHARD_BYTES) {
            shards->first[shards->n++] = i;
            filled = 0;
        }
        filled += bytes;
        shards->total += bytes;
    }
    shards->first[shards->n] = params->n;
    return ST_OK;
}

static const char *shard_name(const Shards *shards, size_t s, Arena *arena) {
    return shards->n == 1 ? "model.safetensors" : arena_printf(arena, "model-%05zu-of-%05zu.safetensors", s + 1, shards->n);
}

static Status write_shard(const Shards *shards, size_t s, const char *path) {
    SafetensorsWriter *writer;
    TRY(safetensors_writer_new(path, &writer));
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = shards->first[s]; i < shards->first[s + 1] && !safetensors_failed(writer); i++) {
            const Param *param = &shards->model->params.items[i];
            const Tensor *tensor = param->tensor;
            if (param->role != PARAM_BASE) continue;
            if (pass == 0) safetensors_declare(writer, param->name, shards->dtype, tensor->n_dims, tensor->shape);
            else safetensors_write_as(writer, tensor->data, tensor->dtype, shards->dtype, (size_t)tensor_count(tensor));
        }
    return safetensors_commit(writer);
}

static Status write_index(const Shards *shards, const char *path, Arena *arena) {
    JsonWriter writer = {.pretty = true};
    jw_object(&writer, NULL);
    jw_object(&writer, "metadata");
    jw_int(&writer, "total_size", (int64_t)shards->total);
    jw_end_object(&writer);
    jw_object(&writer, "weight_map");
    for (size_t s = 0; s < shards->n; s++)
        for (size_t i = shards->first[s]; i < shards->first[s + 1]; i++)
            if (shards->model->params.items[i].role == PARAM_BASE)
                jw_string(&writer, shards->model->params.items[i].name, shard_name(shards, s, arena));
    jw_end_object(&writer);
    jw_end_object(&writer);
    Status status = file_write_all(path, writer.text.data, writer.text.len);
    jw_release(&writer);
    return status;
}

static Status write_directory(const Model *model, const char *dir, DType dtype, Arena *arena) {
    Shards shards;
    TRY(plan_shards(model, dtype, arena, &shards));
    TRY(dir_make(dir));
    for (size_t s = 0; s < shards.n; s++) TRY(write_shard(&shards, s, path_join(arena, dir, shard_name(&shards, s, arena))));
    if (shards.n > 1) TRY(write_index(&shards, path_join(arena, dir, "model.safetensors.index.json"), arena));
    TRY(model_copy_files(model->dir, dir));
    return model_copy_config(model->dir, dir, dtype, model->head && model->head != model->embed,
                             model->score ? model->config.family->class_name : NULL);
}

const char *dir_beside(const char *dir, const char *end, Arena *arena) {
    const char *name = path_name(dir);
    return arena_printf(arena, "%.*s.%s.tune-%s", (int)(name - dir), dir, name, end);
}

Status dir_replace(const char *made, const char *dir, Arena *arena) {
    const char *old = dir_beside(dir, "old", arena);
    if (!old) return ST_RESOURCE;
    TRY(dir_remove(old));
    if (dir_exists(dir)) TRY(dir_rename(dir, old));
    TRY(dir_rename(made, dir));
    return dir_remove(old);
}

Status model_save(const Model *model, const char *dir, DType dtype) {
    Arena *arena = arena_new(0);
    const char *made = arena ? dir_beside(dir, "partial", arena) : NULL;
    Status status = made ? dir_remove(made) : ST_RESOURCE;
    if (status == ST_OK) status = write_directory(model, made, dtype, arena);
    if (status == ST_OK) status = dir_replace(made, dir, arena);
    arena_free(arena);
    return status;
}
