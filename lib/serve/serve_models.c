/* SPDX-License-Identifier: Apache-2.0 */
/* The models that requests can name: the base, and adapters on its weights, which come and go while the server runs. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/model/adapter.h"
#include "lib/serve/serve_parts.h"

enum { LONGEST_NAME = 100, MOST_VARIANTS = 4 /* without users */ };

const Model *served_weights(const Server *server, const ServedModel *model) { return model->adapter ? model->adapter : server->config.model; }
const Chat *served_chat(const Server *server, const ServedModel *model) { return model->chat ? model->chat : server->config.chat; }

/* ---- the table ---- */

static ServedModel *served_new(const char *name, const char *root) {
    ServedModel *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    *model = (ServedModel){.name = strdup(name), .root = strdup(root), .created = (int64_t)time(NULL)};
    if (model->name && model->root) return model;
    free(model->name);
    free(model->root);
    free(model);
    return NULL;
}

static void served_free(ServedModel *model) {
    if (model->adapter) model_free(model->adapter);
    chat_close(model->chat);
    free(model->name);
    free(model->root);
    free(model);
}

Status models_begin(Server *server) {
    server->models = served_new(server->config.name, server->config.model->dir ? server->config.model->dir : "");
    return server->models ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the server");
}

void models_release(Server *server) {
    for (ServedModel *model = server->models, *next; model; model = next) {
        next = model->next;
        served_free(model);
    }
}

/* Call it with the lock. */
static ServedModel *served_named(const Server *server, const char *name) {
    for (ServedModel *model = server->models; model; model = model->next)
        if (!model->unloaded && !model->variant && !strcmp(model->name, name)) return model;
    return NULL;
}

ServedModel *served_find(Exchange *x, const char *name) {
    Server *server = x->server;
    pthread_mutex_lock(&server->lock);
    ServedModel *model = name && *name ? served_named(server, name) : server->models;
    if (model) {
        model->users++;
        strncpy(x->model, server->models->name, sizeof x->model - 1);
        if (model->adapter) strncpy(x->adapter, model->name, sizeof x->adapter - 1);
    }
    pthread_mutex_unlock(&server->lock);
    if (!model) exchange_fail(x, 404, "model", "model_not_found", "the model '%.100s' does not exist", name);
    return model;
}

void served_leave(Server *server, ServedModel *model) {
    if (!model) return;
    pthread_mutex_lock(&server->lock);
    model->users--;
    pthread_mutex_unlock(&server->lock);
}

void models_sweep(Server *server) {
    ServedModel *unused = NULL;
    int64_t n_idle = 0;
    pthread_mutex_lock(&server->lock);
    for (ServedModel *model = server->models; model; model = model->next) n_idle += model->variant && !model->unloaded && model->users == 0;
    for (ServedModel *model = server->models; model && n_idle > MOST_VARIANTS; model = model->next) { /* the earliest first */
        if (!model->variant || model->unloaded || model->users > 0) continue;
        model->unloaded = true;
        n_idle--;
    }
    for (ServedModel **place = &server->models; *place;) {
        ServedModel *model = *place;
        if (!model->unloaded || model->users > 0) {
            place = &model->next;
            continue;
        }
        *place = model->next;
        model->next = unused;
        unused = model;
    }
    pthread_mutex_unlock(&server->lock);
    for (ServedModel *next; unused; unused = next) {
        next = unused->next;
        generator_forget(server->generator, unused->adapter);
        served_free(unused);
    }
}

/* ---- loading ---- */

static void scale_adapter(Model *adapter, double scale) {
    for (size_t i = 0; i < adapter->n_linears; i++)
        if (adapter->linears[i]->lora) adapter->linears[i]->lora->scale *= scale;
}

static Status load_served(const Server *server, const char *name, const char *dir, double scale, ServedModel **result) {
    const ServeConfig *config = &server->config;
    ServedModel *model = *result = served_new(name, dir);
    bool own_template = false;
    if (!model) return status_fail(ST_RESOURCE, "out of memory for an adapter");
    Status status = model_can_share_weights(config->model)
                        ? model_share_weights(config->model, &model->adapter)
                        : status_fail(ST_INPUT, "the model has weights of an adapter already, so no other can be loaded");
    if (status == ST_OK) status = adapter_load(model->adapter, dir, false);
    model->scale = scale;
    if (status == ST_OK && scale != 1) scale_adapter(model->adapter, scale);
    if (status == ST_OK && config->tokenizer) status = chat_template_find(dir, &own_template);
    if (status == ST_OK && own_template) status = chat_open(config->model->dir, dir, NULL, NULL, config->tokenizer, &model->chat);
    if (status == ST_OK) return ST_OK;
    served_free(model);
    *result = NULL;
    return status;
}

/* The adapter can no longer be named, and neither can those of its name with other scales. Call it with the lock. */
static void unload(Server *server, ServedModel *model) {
    model->unloaded = true;
    for (ServedModel *other = server->models; other; other = other->next)
        if (other->variant && !strcmp(other->name, model->name)) other->unloaded = true;
}

static void append_served(Server *server, ServedModel *model) {
    ServedModel **end = &server->models;
    while (*end) end = &(*end)->next;
    *end = model;
}

/* Puts it into the table; the one that had its name can no longer be named. False: the name is taken, and the model was freed. */
static bool add_served(Server *server, ServedModel *model, bool replace) {
    pthread_mutex_lock(&server->lock);
    ServedModel *old = served_named(server, model->name);
    bool taken = old && (!replace || !old->adapter);
    if (!taken) {
        model->id = old ? old->id : server->n_adapters++;
        if (old) {
            unload(server, old);
            model->next = old->next;
            old->next = model;
        } else {
            append_served(server, model);
        }
    }
    pthread_mutex_unlock(&server->lock);
    if (taken) served_free(model);
    return !taken;
}

Status server_add_adapter(Server *server, const char *name, const char *dir) {
    ServedModel *model;
    TRY(load_served(server, name, dir, 1, &model));
    return add_served(server, model, false) ? ST_OK : status_fail(ST_USAGE, "two models are called '%s'", name);
}

/* ---- requests ---- */

static void write_model(JsonWriter *w, const Server *server, const ServedModel *model) {
    jw_object(w, NULL);
    jw_string(w, "id", model->name);
    jw_string(w, "object", "model");
    jw_int(w, "created", model->created);
    jw_string(w, "owned_by", "tune");
    jw_string(w, "root", model->root);
    jw_string(w, "parent", model->adapter ? server->config.name : NULL);
    jw_int(w, "max_model_len", server->max_context);
    if (server->config.rounds_activations && !model->adapter) jw_double(w, "activations_kl", server->config.activations_kl);
    jw_end_object(w);
}

void handle_models(Exchange *x) {
    Server *server = x->server;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "object", "list");
    jw_array(&w, "data");
    pthread_mutex_lock(&server->lock);
    for (const ServedModel *model = server->models; model; model = model->next)
        if (!model->unloaded && !model->variant) write_model(&w, server, model);
    pthread_mutex_unlock(&server->lock);
    jw_end_array(&w);
    jw_end_object(&w);
    exchange_answer_json(x, 200, &w);
}

void handle_model(Exchange *x) {
    JsonWriter w = {0};
    ServedModel *model = served_find(x, x->below);
    if (!model) return;
    write_model(&w, x->server, model);
    served_leave(x->server, model);
    exchange_answer_json(x, 200, &w);
}

void handle_adapters(Exchange *x) {
    Server *server = x->server;
    JsonWriter w = {0};
    jw_array(&w, NULL);
    pthread_mutex_lock(&server->lock);
    for (const ServedModel *model = server->models; model; model = model->next) {
        if (model->unloaded || model->variant || !model->adapter) continue;
        jw_object(&w, NULL);
        jw_int(&w, "id", model->id);
        jw_string(&w, "name", model->name);
        jw_string(&w, "path", model->root);
        jw_double(&w, "scale", model->scale);
        jw_end_object(&w);
    }
    pthread_mutex_unlock(&server->lock);
    jw_end_array(&w);
    exchange_answer_json(x, 200, &w);
}

/* Letters, digits and ._-/ only, so that a name is safe in logs and paths of URLs. */
static bool name_is_plain(const char *name) {
    size_t n = strlen(name);
    return n > 0 && n <= LONGEST_NAME && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:") == n;
}

/* The folder that a request names, if it is below --adapter-dir and no link leads out of that. The caller frees it; NULL: x has failed. */
static char *adapter_folder(Exchange *x, const char *path) {
    const char *root = x->server->config.adapter_dir;
    char joined[PATH_MAX], *real = NULL;
    if (!root) {
        exchange_fail(x, 403, "lora_path", "not_allowed", "this server loads no adapters: it was started without --adapter-dir");
        return NULL;
    }
    bool inside = text_starts_with(path, "/");
    int n = snprintf(joined, sizeof joined, "%s%s%s", inside ? "" : root, inside ? "" : "/", path);
    for (const char *at = path; (at = strstr(at, "..")); at += 2)
        if ((at == path || at[-1] == '/') && (!at[2] || at[2] == '/')) n = -1;
    if (n > 0 && (size_t)n < sizeof joined) real = realpath(joined, NULL);
    if (real && path_inside(real, root)) return real;
    free(real);
    exchange_fail(x, 400, "lora_path", "invalid_value", "'lora_path' is no folder below the server's --adapter-dir");
    return NULL;
}

static bool load_work(Server *server, Job *job) {
    const char *name = json_string_value(json_object_get(job->body, "lora_name")), *dir = json_string_value(json_object_get(job->body, "lora_path"));
    bool replace = json_is_true(json_object_get(job->body, "load_inplace"));
    ServedModel *model;
    JsonWriter w = {0};
    Status status = load_served(server, name, dir, 1, &model);
    if (status != ST_OK) {
        exchange_fail_status(job->exchange, status);
        return true;
    }
    if (!add_served(server, model, replace)) {
        exchange_fail(job->exchange, 400, "lora_name", "already_loaded", "the name '%s' is taken: 'load_inplace' replaces an adapter", name);
        return true;
    }
    jw_object(&w, NULL);
    jw_string(&w, "status", "success");
    jw_string(&w, "lora_name", name);
    jw_end_object(&w);
    exchange_answer_json(job->exchange, 200, &w);
    return true;
}

void handle_load(Exchange *x) {
    json_t *body;
    const char *name = "", *path = "";
    bool replace = false;
    if (!body_read(x, &body)) return;
    char *dir = NULL;
    if (fields_known(x, body, "lora_name lora_path load_inplace base_model_name") && field_text(x, body, "lora_name", &name) &&
        field_text(x, body, "lora_path", &path) && field_bool(x, body, "load_inplace", &replace)) {
        if (name_is_plain(name))
            dir = adapter_folder(x, path);
        else
            exchange_fail(x, 400, "lora_name", "invalid_value", "'lora_name' must be up to %d letters, digits and ._-/:", LONGEST_NAME);
    }
    Job *job = dir ? job_new(x, NULL) : NULL;
    if (job) {
        json_object_set_new(body, "lora_path", json_string(dir));
        json_object_set_new(body, "load_inplace", json_boolean(replace));
        job->body = body;
        job->work = load_work;
        body = NULL;
        engine_submit(job);
    }
    free(dir);
    json_decref(body);
}

void handle_unload(Exchange *x) {
    Server *server = x->server;
    json_t *body;
    const char *name = "";
    if (!body_read(x, &body)) return;
    if (fields_known(x, body, "lora_name lora_int_id") && field_text(x, body, "lora_name", &name)) {
        pthread_mutex_lock(&server->lock);
        ServedModel *model = served_named(server, name);
        bool found = model && model->adapter;
        if (found) unload(server, model);
        pthread_mutex_unlock(&server->lock);
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_string(&w, "status", "success");
        jw_end_object(&w);
        if (found)
            exchange_answer_json(x, 200, &w);
        else
            exchange_fail(x, 404, "lora_name", "model_not_found", "there is no adapter '%.100s'", name);
        jw_release(&w);
    }
    json_decref(body);
}

/* ---- scales, as llama.cpp has them ---- */

/* The adapter with this id; the caller is its user. NULL: there is none. */
static ServedModel *served_with_id(Server *server, int64_t id) {
    pthread_mutex_lock(&server->lock);
    ServedModel *model = server->models;
    while (model && (!model->adapter || model->variant || model->unloaded || model->id != id)) model = model->next;
    if (model) model->users++;
    pthread_mutex_unlock(&server->lock);
    return model;
}

/* {"id", "scale"}. */
static bool read_scale(Exchange *x, const json_t *entry, const char *param, int64_t *id, double *scale) {
    *id = -1;
    *scale = (double)NAN;
    if (json_is_object(entry) && (!field_int(x, entry, "id", 0, INT32_MAX, id) || !field_real(x, entry, "scale", -100, 100, scale))) return false;
    if (*id >= 0 && !isnan(*scale)) return true;
    exchange_fail(x, 400, param, "invalid_value", "adapters and their scales must be a list of {\"id\": N, \"scale\": X}");
    return false;
}

static bool no_adapter(Exchange *x, const char *param, int64_t id) {
    exchange_fail(x, 400, param, "model_not_found", "there is no adapter with the id %lld: /lora-adapters lists them", (long long)id);
    return false;
}

bool read_lora(Exchange *x, const json_t *body, ServedModel **model, double *scale) {
    const json_t *list = json_object_get(body, "lora");
    int64_t chosen = -1, id;
    double given;
    if (!list || json_is_null(list)) return true;
    if (!json_is_array(list)) {
        exchange_fail(x, 400, "lora", "invalid_type", "'lora' must be a list of {\"id\": N, \"scale\": X}");
        return false;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!read_scale(x, json_array_get(list, i), "lora", &id, &given)) return false;
        if (given == 0) continue;
        if (chosen >= 0 || (*model)->adapter) {
            exchange_fail(x, 400, "lora", "unsupported_value",
                          "a request uses one adapter: name one with a scale that is not 0, and the base as its model");
            return false;
        }
        chosen = id;
        *scale = given;
    }
    if (chosen < 0) return true;
    ServedModel *adapter = served_with_id(x->server, chosen);
    if (!adapter) return no_adapter(x, "lora", chosen);
    served_leave(x->server, *model);
    strncpy(x->adapter, adapter->name, sizeof x->adapter - 1);
    *model = adapter;
    return true;
}

static ServedModel *find_variant(Server *server, const ServedModel *of, double scale) {
    pthread_mutex_lock(&server->lock);
    ServedModel *model = server->models;
    while (model && (!model->variant || model->unloaded || model->scale != scale || strcmp(model->name, of->name) != 0)) model = model->next;
    if (model) model->users++;
    pthread_mutex_unlock(&server->lock);
    return model;
}

Status served_scaled(Server *server, ServedModel **model, double scale) {
    ServedModel *of = *model;
    if (of->scale == scale) return ST_OK;
    ServedModel *variant = find_variant(server, of, scale);
    if (!variant) {
        TRY(load_served(server, of->name, of->root, scale, &variant));
        variant->variant = true;
        variant->users = 1;
        pthread_mutex_lock(&server->lock);
        variant->unloaded = of->unloaded; /* then its name may mean another adapter by now */
        append_served(server, variant);
        pthread_mutex_unlock(&server->lock);
    }
    served_leave(server, of);
    *model = variant;
    return ST_OK;
}

/* One adapter at a call is loaded again with its new scale; requests in work keep the old one. */
static bool scale_work(Server *server, Job *job) {
    size_t n = json_array_size(job->body);
    const json_t *entry = json_array_get(job->body, job->n_worked);
    int64_t id = json_integer_value(json_object_get(entry, "id"));
    ServedModel *old = n > 0 ? served_with_id(server, id) : NULL, *model;
    if (n > 0 && !old) return no_adapter(job->exchange, NULL, id), true;
    Status status = old ? load_served(server, old->name, old->root, json_number_value(json_object_get(entry, "scale")), &model) : ST_OK;
    served_leave(server, old);
    if (status != ST_OK) {
        exchange_fail_status(job->exchange, status);
        return true;
    }
    if (old) (void)add_served(server, model, true);
    if (++job->n_worked < n) return exchange_is_gone(job->exchange);
    handle_adapters(job->exchange);
    return true;
}

void handle_scales(Exchange *x) {
    json_t *body;
    if (!body_list(x, &body)) return;
    bool fine = true;
    for (size_t i = 0; i < json_array_size(body) && fine; i++) {
        int64_t id;
        double scale;
        fine = read_scale(x, json_array_get(body, i), NULL, &id, &scale);
        ServedModel *model = fine ? served_with_id(x->server, id) : NULL;
        if (fine && !model) fine = no_adapter(x, NULL, id);
        served_leave(x->server, model);
    }
    Job *job = fine ? job_new(x, NULL) : NULL;
    if (job) {
        job->body = body;
        job->work = scale_work;
        body = NULL;
        engine_submit(job);
    }
    json_decref(body);
}
