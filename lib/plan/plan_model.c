/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of a decoder from config.json. Everything is derived from one list: the matrices of a layer, and how ranks divide them. */
#include "lib/plan/plan_model.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/file.h"

/* ---- config.json ---- */

static const struct {
    const char *model_type;
    bool qkv_bias;
    int64_t norms;
    QkNorm qk_norm;
    bool tied, fused;
} plan_families[] = {
#define PLAN_FAMILY(name, qkv_bias, norms, qk_norm, tied, fused) {#name, qkv_bias, norms, qk_norm, tied, fused},
#include "lib/plan/plan_families.def"
#undef PLAN_FAMILY
};

/* A size under the first of `names` that the file has. Products of three sizes stay within int64_t and are exact in double up to 2^53. */
enum { LARGEST_SIZE = 1 << 24 };

static Status size_of(const json_t *config, const char *where, const char *names, int64_t *size) {
    for (Slice word; text_next(&names, ' ', &word);) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)word.len, word.data);
        const json_t *member = json_object_get(config, key);
        if (!member || json_is_null(member)) continue;
        TRY(json_get_int(config, where, key, size));
        if (*size < 0 || *size > LARGEST_SIZE)
            return status_fail(ST_INPUT, "'%s' in '%s' is %lld, expected 0 to %d", key, where, (long long)*size, LARGEST_SIZE);
        return ST_OK;
    }
    return ST_OK;
}

static Status required_size(const json_t *config, const char *where, const char *names, int64_t *size) {
    *size = 0;
    TRY(size_of(config, where, names, size));
    if (*size > 0) return ST_OK;
    return status_fail(ST_INPUT, "'%.*s' is missing in '%s', or 0", (int)strcspn(names, " "), names, where);
}

/* Layers that keep a state instead of keys and values have other sizes than this file computes. */
static Status refuse_other_layers(const json_t *config, const char *where, const char *model_type) {
    const json_t *kinds = json_object_get(config, "layer_types"), *kind;
    size_t i;
    json_array_foreach(kinds, i, kind) {
        const char *name = json_string_value(kind);
        if (name && strstr(name, "attention") && !strstr(name, "linear")) continue;
        return status_fail(ST_INPUT, "cannot plan '%s': '%s' has layers of the kind '%s', only attention is known", where, model_type,
                           name ? name : "?");
    }
    static const char *const keys[] = {"mamba_n_heads", "mamba_num_heads", "hybrid_override_pattern", "ssm_cfg"};
    for (i = 0; i < COUNT_OF(keys); i++)
        if (json_object_get(config, keys[i])) return status_fail(ST_INPUT, "cannot plan '%s': '%s' has layers without attention", where, model_type);
    return ST_OK;
}

static Status read_family(const json_t *config, const char *where, PlanModel *model) {
    const char *type = "llama", *dtype = NULL;
    TRY(json_get_string(config, where, "model_type", &type));
    TRY(json_get_string(config, where, "torch_dtype", &dtype));
    TRY(json_get_string(config, where, "dtype", &dtype));
    TRY(refuse_other_layers(config, where, type));
    *model = (PlanModel){.norms = 2, .gated = true, .stored = dtype && strcmp(dtype, "float32") == 0 ? 4 : 2};
    snprintf(model->model_type, sizeof model->model_type, "%s", type);
    for (size_t i = 0; i < COUNT_OF(plan_families); i++) {
        if (strcmp(plan_families[i].model_type, type) != 0) continue;
        model->known = true;
        model->qkv_bias = plan_families[i].qkv_bias;
        model->norms = plan_families[i].norms;
        model->qk_norm = plan_families[i].qk_norm;
        model->tie_word_embeddings = plan_families[i].tied;
        model->fused = plan_families[i].fused;
    }
    return ST_OK;
}

static Status read_gpt2(const json_t *config, const char *where, PlanModel *model) {
    TRY(required_size(config, where, "n_positions n_ctx", &model->positions));
    model->gated = false;
    model->norm_bias = model->o_bias = model->mlp_bias = true;
    model->intermediate_size = 4 * model->hidden_size;
    return size_of(config, where, "n_inner", &model->intermediate_size);
}

static Status read_attention(const json_t *config, const char *where, PlanModel *model) {
    TRY(size_of(config, where, "kv_lora_rank", &model->kv_lora_rank));
    if (model->kv_lora_rank > 0) {
        TRY(size_of(config, where, "q_lora_rank", &model->q_lora_rank));
        TRY(required_size(config, where, "qk_nope_head_dim", &model->qk_nope_head_dim));
        TRY(required_size(config, where, "qk_rope_head_dim", &model->qk_rope_head_dim));
        TRY(required_size(config, where, "v_head_dim", &model->v_head_dim));
        model->head_dim = model->qk_nope_head_dim + model->qk_rope_head_dim;
        model->num_key_value_heads = model->num_attention_heads;
        return ST_OK;
    }
    model->num_key_value_heads = model->num_attention_heads;
    TRY(size_of(config, where, "num_key_value_heads", &model->num_key_value_heads));
    TRY(size_of(config, where, "head_dim", &model->head_dim));
    if (model->head_dim == 0 && model->hidden_size % model->num_attention_heads != 0)
        return status_fail(ST_INPUT, "'hidden_size' %lld in '%s' is not divisible by %lld heads", (long long)model->hidden_size, where,
                           (long long)model->num_attention_heads);
    if (model->head_dim == 0) model->head_dim = model->hidden_size / model->num_attention_heads;
    if (model->num_key_value_heads == 0 || model->num_attention_heads % model->num_key_value_heads != 0)
        return status_fail(ST_INPUT, "%lld heads in '%s' are not divisible by %lld key/value heads", (long long)model->num_attention_heads, where,
                           (long long)model->num_key_value_heads);
    return ST_OK;
}

static Status read_experts(const json_t *config, const char *where, PlanModel *model) {
    TRY(size_of(config, where, "num_local_experts n_routed_experts num_experts", &model->num_experts));
    if (model->num_experts == 0) return ST_OK;
    TRY(required_size(config, where, "num_experts_per_tok", &model->num_experts_per_tok));
    model->moe_intermediate_size = model->intermediate_size;
    TRY(size_of(config, where, "moe_intermediate_size", &model->moe_intermediate_size));
    TRY(size_of(config, where, "n_shared_experts", &model->n_shared_experts));
    TRY(size_of(config, where, "first_k_dense_replace", &model->first_k_dense_replace));
    if (model->num_experts_per_tok <= model->num_experts && model->moe_intermediate_size > 0) return ST_OK;
    return status_fail(ST_INPUT, "'num_experts_per_tok' in '%s' is %lld, there are %lld experts", where, (long long)model->num_experts_per_tok,
                       (long long)model->num_experts);
}

Status plan_model_parse(const json_t *config, const char *where, PlanModel *model) {
    const json_t *text = json_object_get(config, "text_config"); /* the language model of a multimodal one */
    if (json_is_object(text)) config = text;
    if (!json_is_object(config)) return status_fail(ST_INPUT, "'%s' is not a JSON object", where);
    TRY(read_family(config, where, model));
    TRY(required_size(config, where, "hidden_size n_embd", &model->hidden_size));
    TRY(required_size(config, where, "num_hidden_layers n_layer", &model->num_hidden_layers));
    TRY(required_size(config, where, "num_attention_heads n_head", &model->num_attention_heads));
    TRY(required_size(config, where, "vocab_size", &model->vocab_size));
    if (strcmp(model->model_type, "gpt2") == 0)
        TRY(read_gpt2(config, where, model));
    else
        TRY(required_size(config, where, "intermediate_size", &model->intermediate_size));
    TRY(read_attention(config, where, model));
    TRY(read_experts(config, where, model));
    bool attention_bias = false;
    TRY(json_get_bool(config, where, "attention_bias", &attention_bias));
    TRY(json_get_bool(config, where, "mlp_bias", &model->mlp_bias));
    TRY(json_get_bool(config, where, "tie_word_embeddings", &model->tie_word_embeddings));
    model->qkv_bias |= attention_bias;
    model->o_bias |= attention_bias && strcmp(model->model_type, "glm4") != 0;
    if (model->kv_lora_rank > 0) model->qkv_bias = false;
    return ST_OK;
}

Status plan_model_read(const char *dir, PlanModel *model) {
    Str path = {0};
    json_t *config = NULL;
    str_printf(&path, dir_exists(dir) ? "%s/config.json" : "%s", dir);
    Status status = json_read_config(str_text(&path), false, &config);
    if (status == ST_OK) status = plan_model_parse(config, str_text(&path), model);
    json_decref(config);
    str_release(&path);
    return status;
}

/* ---- the matrices of a layer ---- */

static int attention_matrices(const PlanModel *model, PlanMatrix *at) {
    const int64_t h = model->hidden_size, q = model->num_attention_heads * model->head_dim, kv = model->num_key_value_heads * model->head_dim;
    int n = 0;
    if (model->kv_lora_rank > 0) {
        const int64_t heads = model->num_attention_heads, latent = model->kv_lora_rank, wide = heads * (model->qk_nope_head_dim + model->v_head_dim);
        if (model->q_lora_rank > 0) {
            at[n++] = (PlanMatrix){.name = "q_a_proj", .in = h, .out = model->q_lora_rank};
            at[n++] = (PlanMatrix){.name = "q_b_proj", .in = model->q_lora_rank, .out = q, .split_out = SPLIT_HEADS};
        } else {
            at[n++] = (PlanMatrix){.name = "q_proj", .in = h, .out = q, .split_out = SPLIT_HEADS};
        }
        at[n++] = (PlanMatrix){.name = "kv_a_proj_with_mqa", .in = h, .out = latent + model->qk_rope_head_dim};
        at[n++] = (PlanMatrix){.name = "kv_b_proj", .in = latent, .out = wide, .split_out = SPLIT_HEADS};
        at[n++] = (PlanMatrix){.name = "o_proj", .in = heads * model->v_head_dim, .out = h, .split_in = SPLIT_HEADS};
        return n;
    }
    if (model->fused) {
        at[n++] = (PlanMatrix){.name = "qkv_proj", .in = h, .out = q + 2 * kv, .split_out = SPLIT_HEADS, .bias = model->qkv_bias};
    } else {
        at[n++] = (PlanMatrix){.name = "q_proj", .in = h, .out = q, .split_out = SPLIT_HEADS, .bias = model->qkv_bias};
        at[n++] = (PlanMatrix){.name = "k_proj", .in = h, .out = kv, .split_out = SPLIT_KV_HEADS, .bias = model->qkv_bias};
        at[n++] = (PlanMatrix){.name = "v_proj", .in = h, .out = kv, .split_out = SPLIT_KV_HEADS, .bias = model->qkv_bias};
    }
    at[n++] = (PlanMatrix){.name = "o_proj", .in = q, .out = h, .split_in = SPLIT_HEADS, .bias = model->o_bias};
    return n;
}

/* copies: of the whole block; 1 for a dense one */
static int ffn_matrices(const PlanModel *model, int64_t width, int64_t copies, int64_t active, PlanMatrix *at) {
    const int64_t h = model->hidden_size;
    int n = 0;
    if (model->gated && model->fused) {
        at[n++] = (PlanMatrix){.name = "gate_up_proj", .in = h, .out = 2 * width, .split_out = SPLIT_FFN};
    } else {
        if (model->gated) at[n++] = (PlanMatrix){.name = "gate_proj", .in = h, .out = width, .split_out = SPLIT_FFN};
        at[n++] = (PlanMatrix){.name = "up_proj", .in = h, .out = width, .split_out = SPLIT_FFN};
    }
    at[n++] = (PlanMatrix){.name = "down_proj", .in = width, .out = h, .split_in = SPLIT_FFN};
    for (int i = 0; i < n; i++) at[i].bias = model->mlp_bias, at[i].copies = copies, at[i].active = active;
    return n;
}

int plan_matrices(const PlanModel *model, int64_t layer, PlanMatrix matrices[PLAN_MATRICES]) {
    int n = attention_matrices(model, matrices);
    for (int i = 0; i < n; i++) matrices[i].copies = matrices[i].active = 1;
    bool mixture = model->num_experts > 0 && layer >= model->first_k_dense_replace;
    if (!mixture) n += ffn_matrices(model, model->intermediate_size, 1, 1, matrices + n);
    if (mixture) n += ffn_matrices(model, model->moe_intermediate_size, model->num_experts, model->num_experts_per_tok, matrices + n);
    if (mixture && model->n_shared_experts > 0) n += ffn_matrices(model, model->n_shared_experts * model->moe_intermediate_size, 1, 1, matrices + n);
    for (int i = 0; i < n; i++) matrices[i].adapted = true;
    if (mixture) matrices[n++] = (PlanMatrix){.name = "router", .in = model->hidden_size, .out = model->num_experts, .copies = 1, .active = 1};
    return n;
}

/* ---- what a rank of a tensor group holds ---- */

int64_t plan_even(int64_t n, int64_t ranks, int64_t rank) { return n / ranks + (rank < n % ranks); }

static bool heads_divide(const PlanModel *model, int64_t size) {
    const int64_t kv = model->num_key_value_heads, group = model->num_attention_heads / kv;
    return size <= kv || (size % kv == 0 && size / kv <= group);
}

Status plan_tensor_fits(const PlanModel *model, int64_t size) {
    if (size >= 1 && heads_divide(model, size)) return ST_OK;
    Str sizes = {0};
    for (int64_t t = 1; t <= model->num_attention_heads && t <= 64; t++)
        if (heads_divide(model, t)) str_printf(&sizes, "%s%lld", sizes.len ? ", " : "", (long long)t);
    status_fail(ST_CONFIG, "tensor %lld: %lld heads with %lld key/value heads do not divide", (long long)size, (long long)model->num_attention_heads,
                (long long)model->num_key_value_heads);
    status_hint(ST_CONFIG, "sizes that fit: %s", str_text(&sizes));
    str_release(&sizes);
    return ST_CONFIG;
}

static int64_t plan_kv_heads(const PlanModel *model, PlanRank rank) {
    return rank.size <= model->num_key_value_heads ? plan_even(model->num_key_value_heads, rank.size, rank.rank) : 1;
}

int64_t plan_heads(const PlanModel *model, PlanRank rank) {
    const int64_t kv = model->num_key_value_heads, group = model->num_attention_heads / kv;
    if (rank.size <= kv) return group * plan_even(kv, rank.size, rank.rank);
    int64_t sharing = rank.size / kv; /* ranks that hold the same key/value head */
    return plan_even(group, sharing, rank.rank % sharing);
}

int64_t plan_side(const PlanModel *model, int64_t whole, PlanSplit split, PlanRank rank) {
    switch (split) {
    case SPLIT_HEADS: return whole / model->num_attention_heads * plan_heads(model, rank);
    case SPLIT_KV_HEADS: return whole / model->num_key_value_heads * plan_kv_heads(model, rank);
    case SPLIT_FFN: return plan_even(whole, rank.size, rank.rank);
    case SPLIT_WHOLE: break;
    }
    return whole;
}

double plan_embedding(const PlanModel *model, PlanRank rank) {
    int64_t block = (model->vocab_size + rank.size - 1) / rank.size, rows = model->vocab_size - block * rank.rank;
    return (double)MAX(MIN(rows, block), 0) * (double)model->hidden_size;
}

/* Every rank has the norms. */
static double norm_parameters(const PlanModel *model) {
    double n = (double)(model->norms * model->hidden_size * (1 + model->norm_bias));
    if (model->qk_norm == QK_NORM_HEAD) n += 2 * (double)model->head_dim;
    if (model->qk_norm == QK_NORM_WHOLE) n += (double)((model->num_attention_heads + model->num_key_value_heads) * model->head_dim);
    return n + (double)(model->q_lora_rank + model->kv_lora_rank);
}

/* A matrix as a rank has it; a fused matrix of q, k, v contains both kinds of heads. */
static int64_t out_of(const PlanModel *model, const PlanMatrix *matrix, PlanRank rank) {
    if (!model->fused || strcmp(matrix->name, "qkv_proj") != 0) return plan_side(model, matrix->out, matrix->split_out, rank);
    return (plan_heads(model, rank) + 2 * plan_kv_heads(model, rank)) * model->head_dim;
}

double plan_layer_parameters(const PlanModel *model, int64_t layer, PlanRank rank) {
    PlanMatrix matrices[PLAN_MATRICES];
    double sum = norm_parameters(model);
    int n = plan_matrices(model, layer, matrices);
    for (int i = 0; i < n; i++) {
        double in = (double)plan_side(model, matrices[i].in, matrices[i].split_in, rank), out = (double)out_of(model, &matrices[i], rank);
        sum += (double)matrices[i].copies * (in * out + (matrices[i].bias ? out : 0));
    }
    return sum;
}

PlanStage plan_whole(const PlanModel *model) { return (PlanStage){0, model->num_hidden_layers, true, true}; }

double plan_stage_parameters(const PlanModel *model, PlanStage stage, PlanRank rank) {
    double sum = 0, block = plan_embedding(model, rank);
    for (int64_t i = 0; i < stage.layers; i++) sum += plan_layer_parameters(model, stage.first + i, rank);
    if (stage.embedding) sum += block + (double)(model->positions * model->hidden_size);
    if (stage.head) sum += (stage.embedding && model->tie_word_embeddings ? 0 : block) + (double)(model->hidden_size * (1 + model->norm_bias));
    return sum;
}

double plan_parameters(const PlanModel *model) { return plan_stage_parameters(model, plan_whole(model), (PlanRank){1, 0}); }

static bool targeted(const char *name, const char *const *targets, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (text_ends_with(name, targets[i])) return true;
    return n == 0;
}

double plan_lora_parameters(const PlanModel *model, PlanStage stage, PlanRank rank, int64_t r, const char *const *targets, size_t n_targets) {
    double sum = 0;
    for (int64_t layer = stage.first; layer < stage.first + stage.layers; layer++) {
        PlanMatrix matrices[PLAN_MATRICES];
        int n = plan_matrices(model, layer, matrices);
        for (int i = 0; i < n; i++)
            if (matrices[i].adapted && targeted(matrices[i].name, targets, n_targets))
                sum += (double)(matrices[i].copies * r) *
                       (double)(plan_side(model, matrices[i].in, matrices[i].split_in, rank) + out_of(model, &matrices[i], rank));
    }
    return sum;
}

/* ---- work ---- */

double plan_layer_elements(const PlanModel *model, int64_t layer) {
    PlanMatrix matrices[PLAN_MATRICES];
    double sum = 0;
    int n = plan_matrices(model, layer, matrices);
    for (int i = 0; i < n; i++) sum += (double)matrices[i].active * (double)matrices[i].in * (double)matrices[i].out;
    return sum;
}

double plan_elements(const PlanModel *model) {
    double sum = (double)model->vocab_size * (double)model->hidden_size;
    for (int64_t i = 0; i < model->num_hidden_layers; i++) sum += plan_layer_elements(model, i);
    return sum;
}

double plan_attention_work(const PlanModel *model, double tokens) {
    double values = (double)(model->kv_lora_rank > 0 ? model->v_head_dim : model->head_dim), pairs = tokens * (tokens + 1) / 2;
    return 2 * (double)model->num_attention_heads * ((double)model->head_dim + values) * pairs;
}

double plan_forward_work(const PlanModel *model, double rows, double tokens) {
    return 2 * plan_elements(model) * rows * tokens + (double)model->num_hidden_layers * plan_attention_work(model, tokens) * rows;
}

double plan_step_work(const PlanModel *model, double rows, double tokens, double lora) {
    double products = plan_elements(model) * rows * tokens, attention = (double)model->num_hidden_layers * plan_attention_work(model, tokens) * rows;
    return lora > 0 ? 4 * products + 3.5 * attention + 6 * lora * rows * tokens : 6 * products + 3.5 * attention;
}

CacheKind plan_cache_kind(const PlanModel *model) {
    if (model->kv_lora_rank > 0) return CACHE_MLA;
    return model->num_key_value_heads == model->num_attention_heads ? CACHE_MHA : model->num_key_value_heads == 1 ? CACHE_MQA : CACHE_GQA;
}

double plan_cache_bytes(const PlanModel *model, CacheKind kind, double element_bytes) {
    double layers = (double)model->num_hidden_layers, dim = (double)model->head_dim;
    switch (kind) {
    case CACHE_MHA: return 2 * layers * (double)model->num_attention_heads * dim * element_bytes;
    case CACHE_GQA: return 2 * layers * (double)model->num_key_value_heads * dim * element_bytes;
    case CACHE_MQA: return 2 * layers * dim * element_bytes;
    case CACHE_MLA: break;
    }
    return layers * (double)(model->kv_lora_rank + model->qk_rope_head_dim) * element_bytes;
}
