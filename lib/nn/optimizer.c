/* SPDX-License-Identifier: Apache-2.0 */
/* The table of optimisers, and the loop over trained parameters that they share. */
#include "lib/nn/nn.h"

#include <string.h>

static const OptimizerInfo *const optimizers[] = {
#define OPTIMIZER(name) &optimizer_##name,
#include "lib/nn/optimizers.def"
#undef OPTIMIZER
};

const OptimizerInfo *optimizer_at(size_t i) { return i < COUNT_OF(optimizers) ? optimizers[i] : NULL; }

const OptimizerInfo *optimizer_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(optimizers); i++)
        if (strcmp(optimizers[i]->name, name) == 0) return optimizers[i];
    return NULL;
}

static const OptimizerInfo *info_of(const OptimizerConfig *config) {
    const OptimizerInfo *info = optimizer_find(config->name);
    ASSERT(info, "optimizer '%s' is not in optimizers.def", config->name);
    return info;
}

Status optimizer_init(const OptimizerConfig *config, Params *params, Arena *arena) {
    int n_states = info_of(config)->states(config);
    params_expect_copies(params, n_states, arena);
    for (size_t i = 0; i < params->n; i++) {
        Param *param = &params->items[i];
        for (int s = 0; s < n_states && param->trained; s++) {
            const Tensor *like = param->tensor;
            Tensor *state = tensor_new(arena, tensor_device(like), like->dtype, like->n_dims, like->shape);
            if (!state) return status_prefix(ST_RESOURCE, "optimizer state of '%s'", param->name);
            tensor_device(like)->fill(state, 0);
            param->state[s] = state;
        }
    }
    return ST_OK;
}

size_t optimizer_bytes(const OptimizerConfig *config, const Params *params) { return params_copies_bytes(params, info_of(config)->states(config)); }

void optimizer_step(const OptimizerConfig *config, Params *params, double grad_scale, double lr, int64_t step) {
    const OptimizerInfo *info = info_of(config);
    profile_lap(NULL);
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained) info->update(config, &params->items[i], grad_scale, lr * params->items[i].lr_scale, step);
    profile_lap("optimizer");
}
