/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of experts in config.json, and forms of experts in checkpoints. */
#include "lib/model/experts/experts.h"

#include <string.h>

enum { MOST_EXPERTS = 65536 };

/* The first of the keys that the file has; the last one if it has none. In the reader's arena. */
static const char *first_key(ConfigReader *reader, const char *keys) {
    const char *key = NULL;
    for (const char *at = keys; *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        key = arena_printf(reader->arena, "%.*s", (int)n, at);
        if (!key) {
            config_failed(reader, ST_RESOURCE);
            return keys;
        }
        if (config_value(reader, key)) return key;
        at += n;
    }
    return key;
}

void experts_read(ConfigReader *reader, const char *number_keys, const char *width_key) {
    static const char *const unused[] = {
        "router_aux_loss_coef", "output_router_logits", "router_jitter_noise", "aux_loss_alpha", "seq_aux", "moe_layer_freq", "ep_size",
        "scoring_func",         "topk_method"};
    ExpertsConfig *experts = &reader->config->experts;
    experts->n = config_size(reader, first_key(reader, number_keys), 0);
    experts->width = config_size(reader, width_key, 0);
    experts->router = (RouterArgs){.n_experts = experts->n, .top_k = config_size(reader, "num_experts_per_tok", 0), .scale = 1};
    for (size_t i = 0; i < COUNT_OF(unused); i++) config_ignore(reader, unused[i]);
}

void experts_read_sigmoid(ConfigReader *reader, double scale) {
    RouterArgs *router = &reader->config->experts.router;
    router->kind = ROUTER_SIGMOID;
    router->n_groups = config_size(reader, "n_group", 1);
    router->top_groups = config_size(reader, "topk_group", 1);
    router->group_pairs = true;
    router->normalise = config_flag(reader, "norm_topk_prob", true);
    router->eps = 1e-20;
    router->scale = config_positive(reader, "routed_scaling_factor", scale);
    reader->config->experts.wide_router = true;
    const char *kind = config_text(reader, "scoring_func", "sigmoid"), *method = config_text(reader, "topk_method", "noaux_tc");
    if (reader->status != ST_OK) return;
    if (strcmp(kind, "sigmoid") != 0) CONFIG_FAIL(reader, "scoring_func '%s' in '%s' is not supported: a router by sigmoid is", kind, reader->path);
    if (strcmp(method, "noaux_tc") != 0) CONFIG_FAIL(reader, "topk_method '%s' in '%s' is not supported: noaux_tc is", method, reader->path);
}

void experts_read_shared(ConfigReader *reader) {
    ExpertsConfig *experts = &reader->config->experts;
    const json_t *value = config_value(reader, "n_shared_experts");
    bool none = !value || (json_is_integer(value) && json_integer_value(value) == 0);
    experts->shared_width = none ? 0 : config_size(reader, "n_shared_experts", 1) * experts->width;
    if (experts->shared_width > INT32_MAX) CONFIG_FAIL(reader, "'%s' has %lld shared inner values", reader->path, (long long)experts->shared_width);
}

void experts_check(ConfigReader *reader) {
    const ExpertsConfig *experts = &reader->config->experts;
    const RouterArgs *router = &experts->router;
    if (reader->status != ST_OK) return;
    if (experts->n > MOST_EXPERTS) CONFIG_FAIL(reader, "'%s' has %lld experts", reader->path, (long long)experts->n);
    if (router->top_k > experts->n)
        CONFIG_FAIL(reader, "'num_experts_per_tok' in '%s' is %lld, and there are %lld experts", reader->path, (long long)router->top_k,
                    (long long)experts->n);
    if (router->n_groups <= 1) return;
    int64_t size = experts->n / router->n_groups;
    if (experts->n % router->n_groups != 0)
        CONFIG_FAIL(reader, "%lld experts in '%s' are no multiple of %lld groups", (long long)experts->n, reader->path, (long long)router->n_groups);
    else if (router->top_groups > router->n_groups || router->top_groups > router->top_k || router->top_k > size * router->top_groups)
        CONFIG_FAIL(reader, "%lld experts for each token do not fit %lld of %lld groups of %lld experts in '%s'", (long long)router->top_k,
                    (long long)router->top_groups, (long long)router->n_groups, (long long)size, reader->path);
}

void experts_set_layers(ConfigReader *reader, LayerTest *is_dense, const void *given, const LayerForm *dense, const LayerForm *sparse) {
    ModelConfig *config = reader->config;
    if (reader->status != ST_OK) return;
    config->layer_forms = arena_alloc(reader->arena, (size_t)config->num_hidden_layers * sizeof *config->layer_forms);
    if (!config->layer_forms) {
        reader->status = ST_RESOURCE;
        return;
    }
    for (int64_t i = 0; i < config->num_hidden_layers; i++) config->layer_forms[i] = is_dense(i, given) ? dense : sparse;
}

bool experts_before(int64_t layer, const void *first) { return layer < *(const int64_t *)first; }

Status experts_find(ModelConfig *config, const WeightFile *files) {
    static const char *const unknown[] = {".experts.up_gate_proj", ".experts.w13", ".experts.w13_weight", ".experts.gate_and_up_proj"};
    bool in_out = config->experts.together; /* the family's only form */
    int64_t n_layers = 0;
    for (int64_t i = 0; i < config->num_hidden_layers; i++) {
        const LayerForm *form = config->layer_forms ? config->layer_forms[i] : config->family->layer;
        for (int s = 0; s < MOST_SUBLAYERS; s++) n_layers += form->sublayers[s].kind == &block_experts;
    }
    for (size_t i = 0; i < files->n; i++) {
        const StoredTensor *stored = &files->tensors[i];
        for (size_t k = 0; k < COUNT_OF(unknown); k++)
            if (text_ends_with(stored->name, unknown[k])) {
                status_fail(ST_INPUT, "tensor '%s' in '%s': the order of gate and up in it is not known", stored->name, stored->file);
                return status_hint(ST_INPUT, "known: experts.gate_up_proj with gate first, or a gate_proj and an up_proj for each expert");
            }
        if (text_ends_with(stored->name, ".experts.gate_up_proj")) config->experts.together = true;
        bool turned = config->experts.together && !in_out && stored->n_dims == 3 && text_ends_with(stored->name, ".experts.gate_up_proj") &&
                      stored->shape[1] == config->hidden_size && stored->shape[2] == 2 * config->experts.width &&
                      stored->shape[1] != stored->shape[2];
        if (!turned) continue;
        status_fail(ST_INPUT, "tensor '%s' in '%s' has shape (%lld,%lld,%lld): the order of gate and up in it is not known", stored->name,
                    stored->file, (long long)stored->shape[0], (long long)stored->shape[1], (long long)stored->shape[2]);
        return status_hint(ST_INPUT, "expected (%lld,%lld,%lld), gate first", (long long)stored->shape[0], (long long)stored->shape[2],
                           (long long)stored->shape[1]);
    }
    /* A config of another model must not take memory for experts that nothing holds. */
    const int64_t most = 1024 + 4 * (int64_t)files->n;
    if (!config->experts.together && n_layers > 0 && config->experts.n > most / n_layers) {
        status_fail(ST_INPUT, "config.json has %lld experts in each of %lld layers, and the checkpoint has %zu tensors", (long long)config->experts.n,
                    (long long)n_layers, files->n);
        return status_hint(ST_INPUT, "config.json and the weights may be of different models");
    }
    return ST_OK;
}
