/* SPDX-License-Identifier: Apache-2.0 */
/* Texts and tokens: tokenize, detokenize, apply-template, tokenizer_info; and texts as vectors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/serve/serve_parts.h"

/* ---- tokenize: vLLM's names (prompt, tokens, count) and llama.cpp's (content) ---- */

static void write_ids(JsonWriter *w, const char *key, const Ids *ids) {
    jw_array(w, key);
    for (size_t i = 0; i < ids->n; i++) jw_int(w, NULL, ids->data[i]);
    jw_end_array(w);
}

static bool tokenize_ids(Exchange *x, const json_t *body, Ids *ids) {
    const char *name = NULL, *text = NULL;
    bool special = !json_object_get(body, "content"); /* llama.cpp adds none unless it is told to */
    if (!field_text(x, body, "model", &name) || !field_text(x, body, "prompt", &text) || !field_text(x, body, "content", &text) ||
        !field_bool(x, body, "add_special_tokens", &special) || !field_bool(x, body, "add_special", &special))
        return false;
    if (text) return prompt_of_text(x, text, strlen(text), special, ids);
    ServedModel *model = served_find(x, name);
    if (!model) return false;
    bool fine = prompt_of_messages(x, body, model, ids, NULL);
    served_leave(x->server, model);
    return fine;
}

void handle_tokenize(Exchange *x) {
    json_t *body;
    Ids ids = {0};
    if (!body_read(x, &body)) return;
    if (fields_known(x, body,
                     "model prompt content messages add_special_tokens add_special add_generation_prompt tools documents chat_template_kwargs") &&
        tokenize_ids(x, body, &ids)) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        write_ids(&w, "tokens", &ids);
        jw_int(&w, "count", (int64_t)ids.n);
        jw_int(&w, "max_model_len", x->server->max_context);
        jw_end_object(&w);
        exchange_answer_json(x, 200, &w);
    }
    ids_release(&ids);
    json_decref(body);
}

void handle_detokenize(Exchange *x) {
    json_t *body;
    Ids ids = {0};
    Str text = {0};
    const Tokenizer *tokenizer = x->server->config.tokenizer;
    if (!body_read(x, &body)) return;
    const json_t *tokens = json_object_get(body, "tokens");
    if (!fields_known(x, body, "model tokens")) {
    } else if (!tokenizer) {
        exchange_fail(x, 400, NULL, "no_tokenizer", "the model has no tokenizer");
    } else if (!json_is_array(tokens)) {
        exchange_fail(x, 400, "tokens", "invalid_type", "'tokens' must be a list of token ids");
    } else if (prompt_of_ids(x, tokens, "tokens", &ids)) {
        Status status = tokenizer_decode(tokenizer, ids.data, ids.n, false, &text);
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_string_n(&w, "prompt", str_text(&text), text.len);
        jw_string_n(&w, "content", str_text(&text), text.len);
        jw_end_object(&w);
        if (status == ST_OK)
            exchange_answer_json(x, 200, &w);
        else
            exchange_fail_status(x, status);
        jw_release(&w);
    }
    str_release(&text);
    ids_release(&ids);
    json_decref(body);
}

/* vLLM's path, with which lm-eval does without a tokenizer of its own. */
void handle_tokenizer(Exchange *x) {
    const ServeConfig *config = &x->server->config;
    const Tokenizer *tokenizer = config->tokenizer;
    JsonWriter w = {0};
    if (!tokenizer) {
        exchange_fail(x, 400, NULL, "no_tokenizer", "the model has no tokenizer");
        return;
    }
    int32_t bos = tokenizer_bos(tokenizer), eos = tokenizer_eos(tokenizer);
    jw_object(&w, NULL);
    jw_string(&w, "bos_token", bos >= 0 ? tokenizer_token(tokenizer, bos) : NULL);
    jw_string(&w, "eos_token", eos >= 0 ? tokenizer_token(tokenizer, eos) : NULL);
    jw_int(&w, "vocab_size", tokenizer_vocab_size(tokenizer));
    jw_int(&w, "model_max_length", x->server->max_context);
    write_template(&w, "chat_template", config->chat);
    jw_end_object(&w);
    exchange_answer_json(x, 200, &w);
}

void handle_template(Exchange *x) {
    json_t *body;
    Str text = {0};
    const char *name = NULL;
    if (!body_read(x, &body)) return;
    ServedModel *model =
        fields_known(x, body, "model messages tools documents chat_template_kwargs add_generation_prompt") && field_text(x, body, "model", &name)
            ? served_find(x, name)
            : NULL;
    if (model && prompt_of_messages(x, body, model, NULL, &text)) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        jw_string_n(&w, "prompt", str_text(&text), text.len);
        jw_end_object(&w);
        exchange_answer_json(x, 200, &w);
    }
    served_leave(x->server, model);
    str_release(&text);
    json_decref(body);
}

/* ---- the texts of a request, one after the other ---- */

static bool read_input(Exchange *x, const json_t *value, Ids *ids) {
    bool fine = json_is_string(value)  ? prompt_of_text(x, json_string_value(value), json_string_length(value), true, ids)
                : json_is_array(value) ? prompt_of_ids(x, value, "input", ids)
                                       : false;
    int64_t positions = x->server->max_context;
    if (!fine && !x->ended) exchange_fail(x, 400, "input", "invalid_type", "'input' must be a text, token ids, or a list of these");
    if (!fine) return false;
    if (ids->n > 0 && (int64_t)ids->n <= positions) return true;
    exchange_fail(x, 400, "input", "context_length_exceeded", "'input' has %zu tokens, and 1 to %lld are allowed", ids->n, (long long)positions);
    return false;
}

bool read_inputs(Exchange *x, const json_t *body, Job *job) {
    const json_t *input = json_object_get(body, "input");
    bool many = json_is_array(input) && !json_is_integer(json_array_get(input, 0));
    size_t n = many ? json_array_size(input) : 1;
    job->ids = n > 0 && n <= MOST_PROMPTS ? calloc(n, sizeof *job->ids) : NULL;
    if (!job->ids) {
        exchange_fail(x, 400, "input", "invalid_value", "'input' must have 1 to %d texts", MOST_PROMPTS);
        return false;
    }
    for (; job->n_ids < n; x->prompt_tokens += (int64_t)job->ids[job->n_ids++].n)
        if (!read_input(x, many ? json_array_get(input, job->n_ids) : input, &job->ids[job->n_ids])) {
            ids_release(&job->ids[job->n_ids]);
            return false;
        }
    return true;
}

bool inputs_work(Server *server, Job *job, Status (*next)(const Server *server, Job *job)) {
    JsonWriter *w = &job->written;
    if (job->n_worked == 0) {
        jw_object(w, NULL);
        jw_string(w, "object", "list");
        jw_array(w, "data");
    }
    Status status = next(server, job);
    if (status != ST_OK) {
        exchange_fail_status(job->exchange, status);
        return true;
    }
    if (++job->n_worked < job->n_ids) return exchange_is_gone(job->exchange);
    jw_end_array(w);
    jw_string(w, "model", job->model->name);
    jw_object(w, "usage");
    jw_int(w, "prompt_tokens", job->exchange->prompt_tokens);
    jw_int(w, "total_tokens", job->exchange->prompt_tokens);
    jw_end_object(w);
    jw_end_object(w);
    exchange_answer_json(job->exchange, 200, w);
    return true;
}

/* ---- embeddings ---- */

static void write_base64(JsonWriter *w, const char *key, const float *values, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)values;
    size_t len = n * sizeof *values;
    Str text = {0};
    for (size_t i = 0; i < len; i += 3) {
        uint32_t three = (uint32_t)bytes[i] << 16 | (i + 1 < len ? (uint32_t)bytes[i + 1] << 8 : 0) | (i + 2 < len ? bytes[i + 2] : 0u);
        for (size_t k = 0; k < 4; k++) str_append_char(&text, i + k > len ? '=' : digits[three >> (18 - 6 * k) & 63]);
    }
    jw_string_n(w, key, str_text(&text), text.len);
    str_release(&text);
}

static void write_vector(JsonWriter *w, size_t index, const double *vector, size_t n, bool base64) {
    float *values = calloc(n, sizeof *values);
    for (size_t i = 0; values && i < n; i++) values[i] = (float)vector[i];
    jw_object(w, NULL);
    jw_string(w, "object", "embedding");
    jw_int(w, "index", (int64_t)index);
    if (!values) {
        jw_null(w, "embedding");
    } else if (base64) {
        write_base64(w, "embedding", values, n);
    } else {
        jw_array(w, "embedding");
        for (size_t i = 0; i < n; i++) jw_double(w, NULL, (double)values[i]);
        jw_end_array(w);
    }
    jw_end_object(w);
    free(values);
}

static Status embed_next(const Server *server, Job *job) {
    const char *format = json_string_value(json_object_get(job->body, "encoding_format")),
               *pooling = json_string_value(json_object_get(job->body, "pooling"));
    size_t n_dims = (size_t)json_integer_value(json_object_get(job->body, "dimensions"));
    bool base64 = format && !strcmp(format, "base64"), mean = !pooling || strcmp(pooling, "last") != 0;
    double *vector = calloc(n_dims, sizeof *vector);
    if (!vector) return status_fail(ST_RESOURCE, "out of memory for a vector");
    const Ids *ids = &job->ids[job->n_worked];
    Status status = text_vector(served_weights(server, job->model), ids->data, ids->n, mean, (int64_t)n_dims, vector);
    if (status == ST_OK) write_vector(&job->written, job->n_worked, vector, n_dims, base64);
    free(vector);
    return status;
}

static bool embed_work(Server *server, Job *job) { return inputs_work(server, job, embed_next); }

static bool embed_fields(Exchange *x, const json_t *body, const char **name, int64_t *n_dims) {
    const char *format = "float", *pooling = "mean";
    int64_t width = x->server->config.model->config.hidden_size;
    *n_dims = width;
    if (!fields_known(x, body, "model input encoding_format dimensions user pooling") || !field_text(x, body, "model", name) ||
        !field_text(x, body, "encoding_format", &format) || !field_text(x, body, "pooling", &pooling) ||
        !field_int(x, body, "dimensions", 1, width, n_dims))
        return false;
    const char *wrong = strcmp(format, "float") && strcmp(format, "base64")  ? "encoding_format"
                        : strcmp(pooling, "mean") && strcmp(pooling, "last") ? "pooling"
                                                                             : NULL;
    if (wrong) exchange_fail(x, 400, wrong, "invalid_value", "'%s' must be %s", wrong, *wrong == 'e' ? "float or base64" : "mean or last");
    return !wrong;
}

void handle_embeddings(Exchange *x) {
    json_t *body;
    const char *name = NULL;
    int64_t n_dims;
    if (!body_read(x, &body)) return;
    ServedModel *model = embed_fields(x, body, &name, &n_dims) ? served_find(x, name) : NULL;
    Job *job = model ? job_new(x, model) : NULL;
    if (job && read_inputs(x, body, job)) {
        json_object_set_new(body, "dimensions", json_integer(n_dims));
        job->body = body;
        job->work = embed_work;
        engine_submit(job);
        return;
    }
    if (job) job_free(job);
    json_decref(body);
}
