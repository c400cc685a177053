/* SPDX-License-Identifier: Apache-2.0 */
/* Value heads and value models. */
#include "rl/text/text_value.h"

#include <math.h>
#include <string.h>

#include "lib/train/train.h"
#include "lib/model/scalar_head.h"
#include "lib/train/trained_model.h"

static const char head_name[] = "v_head.summary", head_file[] = "value_head.safetensors";

/* ---- opening ---- */

static Status another(const char *dir, const char *what, const char *theirs, const char *ours) {
    status_fail(ST_INPUT, "the value model '%s' is of %s '%s', the policy of '%s'", dir, what, theirs, ours);
    return status_hint(ST_INPUT, "they read the same tokens, so they need the same family and tokenizer");
}

/* Checks that two directories have the same tokenizer file; a directory without one passes. */
static Status check_tokenizer(const char *dir, const char *policy_dir, Arena *arena) {
    const char *paths[2] = {path_join(arena, dir, "tokenizer.json"), path_join(arena, policy_dir, "tokenizer.json")};
    if (!paths[0] || !paths[1]) return ST_RESOURCE;
    if (!file_exists(paths[0]) || !file_exists(paths[1])) return ST_OK;
    Str texts[2] = {{0}, {0}};
    Status status = file_read(paths[0], (size_t)1 << 30, &texts[0]);
    if (status == ST_OK) status = file_read(paths[1], (size_t)1 << 30, &texts[1]);
    bool same = texts[0].len == texts[1].len && memcmp(str_text(&texts[0]), str_text(&texts[1]), texts[0].len) == 0;
    str_release(&texts[0]);
    str_release(&texts[1]);
    if (status != ST_OK || same) return status;
    status_fail(ST_INPUT, "the value model '%s' has another tokenizer than the policy '%s'", dir, policy_dir);
    return status_hint(ST_INPUT, "they read the same tokens, so they need the same family and tokenizer");
}

/* Checks before opening the weights. */
static Status check_family(const char *dir, const Model *policy, Arena *arena) {
    ModelConfig config;
    TRY(model_config_read(dir, arena, &config));
    if (strcmp(config.model_type, policy->config.model_type) != 0) return another(dir, "family", config.model_type, policy->config.model_type);
    if (config.vocab_size != policy->config.vocab_size)
        return another(dir, "vocabulary", arena_printf(arena, "%lld tokens", (long long)config.vocab_size),
                       arena_printf(arena, "%lld tokens", (long long)policy->config.vocab_size));
    return check_tokenizer(dir, policy->dir, arena);
}

static Status open_own(const Recipe *recipe, Comm *comm, const char *which, Model *policy, TextValue *value) {
    Recipe own = *recipe;
    const char *config = path_join(value->arena, which, "adapter_config.json");
    bool base = strcmp(which, "base") == 0, adapter = config && file_exists(config);
    own.model_adapter = adapter ? which : NULL;
    own.seed++; /* a separate adapter: other initial weights than the policy's */
    if (!base && !adapter) {
        TRY(check_family(which, policy, value->arena));
        own.model_path = which;
    }
    bool shared = strcmp(own.model_path, recipe->model_path) == 0 && recipe->has_lora && model_can_share_weights(policy);
    return shared ? trained_model_share_weights(&own, policy, &value->model)
                  : trained_model_open_as(&own, (Runtime){policy->device, policy->compute}, &(ModelUse){.comm = comm}, &value->model);
}

static Status load_head(const TextValue *value, const char *path) {
    CheckpointItem item = {.name = "v_head.summary.weight", .tensor = value->head};
    return tensors_load(path, &item, 1);
}

static Status open_head(const Recipe *recipe, const char *which, TextValue *value) {
    const char *path = value->own ? path_join(value->arena, which, head_file) : text_ends_with(which, ".safetensors") ? which : NULL;
    double rate = isnan(recipe->rl_value_learning_rate) ? recipe->train_learning_rate : recipe->rl_value_learning_rate;
    TRY(scalar_head_add(value->model, &(ScalarHeadConfig){.name = head_name, .role = PARAM_CHECKPOINT_ONLY, .trained = true}, &value->head));
    if (!value->own && recipe->train_learning_rate > 0)
        params_find(&value->model->params, value->head->name)->lr_scale = rate / recipe->train_learning_rate;
    return path && (!value->own || file_exists(path)) ? load_head(value, path) : ST_OK;
}

static Status open_into(const Recipe *recipe, Comm *comm, const char *which, Model *policy, TextValue *value) {
    OptimizerConfig optimizer;
    value->own = strcmp(which, "head") != 0 && !text_ends_with(which, ".safetensors");
    if (value->own)
        TRY(open_own(recipe, comm, which, policy, value));
    else
        value->model = policy;
    TRY(open_head(recipe, which, value));
    if (!value->own) return ST_OK;
    TRY(recipe_optimizer(recipe, &optimizer));
    return optimizer_init(&optimizer, &value->model->params, value->arena);
}

Status text_value_open(const Recipe *recipe, Comm *comm, const char *which, Model *policy, TextValue **result) {
    Arena *arena = arena_new(0);
    TextValue *value = *result = arena ? arena_zero(arena, sizeof *value) : NULL;
    if (!value) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for the values");
    }
    value->arena = arena;
    Status status = open_into(recipe, comm, which, policy, value);
    if (status == ST_OK) return ST_OK;
    text_value_free(value);
    *result = NULL;
    return status;
}

void text_value_free(TextValue *value) {
    if (!value) return;
    if (value->own) model_free(value->model);
    arena_free(value->arena);
}

/* ---- learning, checkpoints, saving ---- */

void text_value_update(const TextValue *value, const Recipe *recipe, const Stepper *stepper, double norm, double learning_rate, int64_t step) {
    double scale =
        isnan(recipe->rl_value_learning_rate) || recipe->train_learning_rate <= 0 ? 1 : recipe->rl_value_learning_rate / recipe->train_learning_rate;
    stepper_update(stepper, &value->model->params, norm, scale * learning_rate, step);
}

void text_value_list_state(TextValue *value, StateList *states) {
    static const char *const names[OPTIMIZER_MAX_STATES] = {"value/state0", "value/state1"};
    if (!value->own) return;
    for (size_t i = 0; i < value->model->params.n; i++) {
        const Param *param = &value->model->params.items[i];
        if (param->trained) state_of_param(states, "value", param, param->tensor);
        for (int s = 0; s < OPTIMIZER_MAX_STATES; s++)
            if (param->state[s]) state_of_param(states, names[s], param, param->state[s]);
    }
}

Status text_value_save(const TextValue *value, const Recipe *recipe, const char *run_dir) {
    Arena *arena = arena_new(0);
    const char *dir = arena ? path_join(arena, run_dir, "value") : NULL;
    Status status = dir ? ST_OK : ST_RESOURCE;
    if (status == ST_OK && value->own) status = trained_weights_save(recipe, value->model, dir);
    const char *path = status == ST_OK ? path_join(arena, value->own ? dir : run_dir, head_file) : NULL;
    CheckpointItem item = {.name = "v_head.summary.weight", .tensor = value->head};
    if (status == ST_OK) status = path ? tensors_save(path, &item, 1) : ST_RESOURCE;
    arena_free(arena);
    return status;
}
