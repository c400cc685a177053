/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA (arXiv 2106.09685) with PEFT's rules: which modules a configuration targets, their rank and scale, and the initial A and B. */
#include "lib/base/regex.h"
#include "lib/nn/nn.h"

#include <math.h>
#include <string.h>

/* RNG_INIT streams of adapters come after those of complete models. */
static const uint64_t LORA_STREAMS = (uint64_t)1 << 32;

bool module_matches(const char *path, const char *const *names, size_t n) {
    size_t path_len = strlen(path);
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(names[i]);
        if (len > path_len || strcmp(path + path_len - len, names[i]) != 0) continue;
        if (len == path_len || path[path_len - len - 1] == '.') return true;
    }
    return false;
}

static RegexResult match_pattern(const char *pattern, const char *path) {
    Regex *regex = regex_new(pattern, REGEX_WHOLE | REGEX_ONCE, 0, NULL);
    RegexResult result = regex ? regex_find(regex, (Slice){path, strlen(path)}, 0, 0, NULL) : REGEX_NONE;
    regex_free(regex);
    return result;
}

bool pattern_matches(const char *pattern, const char *path) { return match_pattern(pattern, path) == REGEX_FOUND; }

Status pattern_check(const char *pattern) {
    RegexFault fault;
    Regex *regex = regex_new(pattern, REGEX_ONCE, 0, &fault);
    regex_free(regex);
    return regex ? ST_OK : status_fail(ST_CONFIG, "'%s' is not a regular expression: %s at character %zu", pattern, fault.reason, fault.at + 1);
}

bool lora_targets(const LoraConfig *config, const Linear *linear) {
    const char *path = linear->path;
    if (linear->copies) return module_matches(path, config->parameters, config->n_parameters);
    if (config->target_regex) return pattern_matches(config->target_regex, path);
    if (config->n_targets == 0) return !config->only_parameters && !linear->only_named;
    return module_matches(path, config->targets, config->n_targets);
}

/* Whether a key of rank_pattern or alpha_pattern is the end of the path, or a regex for it. */
static RegexResult match_key(const char *key, const char *path) {
    Str pattern = {0};
    str_printf(&pattern, "(.*\\.)?(%s)", key);
    RegexResult result = match_pattern(str_text(&pattern), path);
    str_release(&pattern);
    return result;
}

/* The first key that matches the path; -1 = none. */
static int find_pattern(const char *const *keys, size_t n, const char *path) {
    int found = -1;
    for (size_t i = 0; i < n && found < 0; i++)
        if (match_key(keys[i], path) == REGEX_FOUND) found = (int)i;
    return found;
}

bool pattern_key_matches(const char *key, const char *path) { return match_key(key, path) == REGEX_FOUND; }

static Status undecided(const char *pattern, const char *path) {
    status_fail(ST_CONFIG, "the pattern '%s' takes too many steps on '%s'", pattern, path);
    return status_hint(ST_CONFIG, "write it without repeats in repeats, such as (a+)+");
}

Status pattern_decides(const char *pattern, const char *path) {
    return match_pattern(pattern, path) == REGEX_UNDECIDED ? undecided(pattern, path) : ST_OK;
}

Status lora_decides(const LoraConfig *config, const char *path) {
    if (config->target_regex) TRY(pattern_decides(config->target_regex, path));
    for (size_t i = 0; i < config->n_rank_pattern + config->n_alpha_pattern; i++) {
        const char *key = i < config->n_rank_pattern ? config->rank_keys[i] : config->alpha_keys[i - config->n_rank_pattern];
        if (match_key(key, path) == REGEX_UNDECIDED) return undecided(key, path);
    }
    return ST_OK;
}

void lora_rank_and_scale(const LoraConfig *config, const char *path, int64_t *rank, double *scale, double *alpha) {
    int i = find_pattern(config->rank_keys, config->n_rank_pattern, path), j = find_pattern(config->alpha_keys, config->n_alpha_pattern, path);
    *rank = i >= 0 ? config->rank_values[i] : config->rank;
    *alpha = j >= 0 ? config->alpha_values[j] : config->alpha;
    *scale = config->use_rslora ? *alpha / sqrt((double)*rank) : *alpha / (double)*rank;
}

static Param *add_param(Params *params, Arena *arena, const char *name, const Device *device, DType dtype, int n_dims, const int64_t *shape,
                        ParamRole role) {
    Tensor *tensor = name ? tensor_new(arena, device, dtype, n_dims, shape) : NULL;
    if (!tensor) return NULL;
    tensor->name = name;
    return params_add(params, name, tensor, role);
}

static Param *add_matrix(Params *params, Arena *arena, const char *path, const char *kind, const Device *device, DType dtype, int64_t rows,
                         int64_t cols, ParamRole role) {
    return add_param(params, arena, arena_printf(arena, "%s.%s.weight", path, kind), device, dtype, 2, (int64_t[]){rows, cols}, role);
}

/* PEFT stores the magnitude without ".weight". */
static Status add_magnitude(const Linear *linear, LoraBranch *lora, DType dtype, const Device *device, Arena *arena, Params *params) {
    Param *magnitude =
        add_param(params, arena, arena_printf(arena, "%s.lora_magnitude_vector", linear->path), device, dtype, 1, &linear->out, PARAM_MAGNITUDE);
    lora->squares = magnitude ? tensor_new(arena, device, dtype, 1, &linear->out) : NULL;
    if (!lora->squares) return ST_RESOURCE;
    lora->magnitude = magnitude->tensor;
    device->dora_squares(linear->weight, lora->squares);
    return ST_OK;
}

static Status check_dora(const Linear *linear) {
    if (!linear->no_dora && !linear->copies && !linear->together && !linear->only_named) return ST_OK;
    status_fail(ST_CONFIG, "'use_dora' and the target '%s': DoRA of experts, routers and compressed keys and values is not supported", linear->path);
    return status_hint(ST_CONFIG, "leave it out of the target modules, or use_dora off");
}

Status lora_add_branch(Linear *linear, const LoraConfig *config, DType dtype, const Device *device, Arena *arena, Params *params) {
    int64_t rank;
    double scale, alpha;
    if (config->use_dora) TRY(check_dora(linear));
    lora_rank_and_scale(config, linear->path, &rank, &scale, &alpha);
    LoraBranch *lora = arena_zero(arena, sizeof *lora);
    if (!lora) return ST_RESOURCE;
    int64_t copies = MAX(linear->copies, (int64_t)1);
    Param *a = add_matrix(params, arena, linear->path, "lora_A", device, dtype, copies * rank, linear->in, PARAM_LORA_A);
    if (!a) return ST_RESOURCE;
    lora->a = a->tensor;
    Param *b = add_matrix(params, arena, linear->path, "lora_B", device, dtype, copies * linear->out, rank, PARAM_LORA_B);
    if (!b) return ST_RESOURCE;
    lora->b = b->tensor;
    lora->scale = scale;
    lora->dropout = config->dropout;
    if (config->use_dora) TRY(add_magnitude(linear, lora, dtype, device, arena, params));
    linear->lora = lora;
    return ST_OK;
}

/* The length of each row of the weight: the norms of a branch whose B is zero. */
static void start_magnitude(const LoraBranch *lora) {
    for (int64_t o = 0; o < tensor_count(lora->magnitude); o++) tensor_set(lora->magnitude, o, sqrt(tensor_get(lora->squares, o)));
}

Status lora_attach(Linear *linear, const LoraConfig *config, uint64_t seed, DType dtype, const Device *device, Arena *arena, Params *params) {
    const size_t first = params->n;
    TRY(lora_add_branch(linear, config, dtype, device, arena, params));
    Tensor *a = linear->lora->a;
    RngKey key = rng_key(seed, RNG_INIT, LORA_STREAMS + linear->index);
    double bound = 1 / sqrt((double)linear->in), deviation = 1 / (double)tensor_width(linear->lora->b);
    int64_t count = tensor_count(a);
    for (int64_t i = 0; i < count; i++)
        tensor_set(a, i, config->gaussian ? deviation * rng_normal(key, (uint64_t)i) : bound * (2 * rng_uniform(key, (uint64_t)i) - 1));
    device->fill(linear->lora->b, 0);
    if (linear->lora->magnitude) start_magnitude(linear->lora);
    for (size_t i = first; i < params->n; i++) TRY(params_train(&params->items[i], arena));
    return ST_OK;
}

Status lora_keep_norms(LoraBranch *lora, Arena *arena) {
    if (!lora->magnitude) return ST_OK;
    lora->norms = tensor_new(arena, tensor_device(lora->magnitude), lora->magnitude->dtype, 1, lora->magnitude->shape);
    return lora->norms ? ST_OK : ST_RESOURCE;
}

void lora_set_lr_ratio(const Params *params, double ratio) {
    for (size_t i = 0; i < params->n; i++) {
        Param *param = &params->items[i];
        bool magnitude = param->role == PARAM_MAGNITUDE;
        if (param->role == PARAM_LORA_B || magnitude) param->lr_scale = ratio;
        if (magnitude && ratio != 1) param->decay = false;
    }
}
