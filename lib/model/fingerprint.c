/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of the model, so that a run is never resumed with another one, and an adapter not merged into another base unnoticed. */
#include "lib/model/model.h"

#include <stdlib.h>
#include <xxhash.h>

#include "lib/base/sha256.h"
#include "lib/model/parts.h"

static void add_rope(const RopeConfig *rope, Str *text) {
    str_printf(text, " rope %d %a %a %a %a %lld %a %a %a %a %a %d", rope->type, rope->rope_theta, rope->factor, rope->low_freq_factor,
               rope->high_freq_factor, (long long)rope->original_max_position_embeddings, rope->beta_fast, rope->beta_slow, rope->attention_factor,
               rope->mscale, rope->mscale_all_dim, rope->truncate);
}

static void add_real(Str *text, const char *name, double value, double usual) {
    if (value != usual) str_printf(text, " %s %a", name, value);
}

/* Features that the first families lack count only if present, so that older models keep their fingerprint. */
static void add_more_rope(const RopeConfig *rope, Str *text) {
    add_real(text, "partial", rope->partial, 0);
    add_real(text, "neighbours", rope->neighbours, 0);
    add_real(text, "query beta", rope->query_beta, 0);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < rope->n_factors; i++) str_printf(text, " %a", rope->factors[k][i]);
}

static void add_more(const ModelConfig *config, Str *text) {
    add_more_rope(&config->rope, text);
    if (config->window_rope.type != ROPE_NONE) {
        add_rope(&config->window_rope, text);
        add_more_rope(&config->window_rope, text);
    }
    for (int64_t l = 0; config->layer_rope && l < config->num_hidden_layers; l++) str_printf(text, " %d", (int)config->layer_rope[l]);
    for (int64_t l = 0; config->layer_kv && l < config->num_hidden_layers; l++) str_printf(text, " keys %lld", (long long)config->layer_kv[l]);
    add_real(text, "norms", config->norm_offset, 0);
    add_real(text, "embed", config->embed_scale, 1);
    add_real(text, "residual", config->residual_scale, 1);
    add_real(text, "logits", config->logits_scaling, 1);
}

/* Settings of config.json that tensor names and shapes do not show. */
static void add_config(const ModelConfig *config, Str *text) {
    str_printf(text, "%s %d %lld %lld %lld %lld %lld", config->model_type, config->scores, (long long)config->num_hidden_layers,
               (long long)config->num_attention_heads, (long long)config->num_key_value_heads, (long long)config->head_dim,
               (long long)config->max_position_embeddings);
    str_printf(text, " norm %d %a", config->norm, config->norm_eps);
    add_rope(&config->rope, text);
    str_printf(text, " activation %d scale %a caps %a %a tied %d windows", config->activation, config->attention_scale, config->attn_softcap,
               config->final_softcap, config->tie_word_embeddings);
    for (int64_t l = 0; l < config->num_hidden_layers; l++) str_printf(text, " %lld", (long long)config->layer_window[l]);
    add_more(config, text);
    str_append(text, " ends");
    for (size_t i = 0; i < config->n_eos; i++) str_printf(text, " %lld", (long long)config->eos_token_id[i]);
}

uint64_t model_fingerprint(const Model *model) {
    Str text = {0};
    add_config(&model->config, &text);
    for (size_t i = 0; i < model->n_linears; i++)
        if (model->linears[i]->lora) str_printf(&text, " %s %a", model->linears[i]->path, model->linears[i]->lora->scale);
    uint64_t hash = XXH3_64bits_withSeed(str_text(&text), text.len, params_fingerprint(&model->params));
    str_release(&text);
    return hash;
}

/* ---- the base of an adapter ---- */

/* The SHA-256 of a weight's values. The pages of its codes are released again: products read copies of them. */
static Status digest_weight(const Model *model, const StoredTensor *stored, char text[SHA256_TEXT]) {
    const int64_t width = stored->shape[stored->n_dims - 1], most = MAX((1 << 16) / width, 1) * width;
    float *values = malloc((size_t)most * sizeof *values);
    Status status = values ? ST_OK : status_fail(ST_RESOURCE, "no memory for rows of tensor '%s'", stored->name);
    Sha256 sha = sha256_begin();
    for (int64_t at = 0; at < stored->count && status == ST_OK; at += most) {
        const int64_t n = MIN(most, stored->count - at);
        status = stored_read(stored, at, n, DT_F32, values);
        sha256_add(&sha, values, (size_t)n * sizeof *values);
    }
    free(values);
    sha256_end(&sha, text);
    if (stored->data) model_drop_pages(model, stored->data, stored->bytes);
    if (stored->codes) model_drop_pages(model, stored->codes, stored->codes_bytes);
    return status;
}

Status model_base_digest(const Model *model, char digest[SHA256_TEXT]) {
    char(*texts)[SHA256_TEXT] = malloc((model->n_linears + 1) * sizeof *texts);
    if (!texts) return status_fail(ST_RESOURCE, "no memory for the fingerprint of '%s'", model->dir);
    int worst = ST_OK;
#pragma omp parallel for schedule(dynamic) reduction(max : worst)
    for (size_t i = 0; i < model->n_linears; i++) {
        const StoredTensor *stored = stored_find(model, model->linears[i]->path, "weight");
        texts[i][0] = '\0'; /* experts together may be parts of other tensors */
        int done = stored && stored->known ? (int)digest_weight(model, stored, texts[i]) : (int)ST_OK;
        worst = MAX(worst, done);
    }
    Sha256 sha = sha256_begin();
    for (size_t i = 0; i < model->n_linears && worst == ST_OK; i++) {
        if (!texts[i][0]) continue;
        Str line = {0};
        str_printf(&line, "%s %s\n", model->linears[i]->path, texts[i]);
        sha256_add(&sha, str_text(&line), line.len);
        str_release(&line);
    }
    sha256_end(&sha, digest);
    free(texts);
    return worst == ST_OK ? ST_OK : status_fail((Status)worst, "no fingerprint of the weights in '%s'", model->dir);
}
