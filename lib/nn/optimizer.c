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

static bool updates(const Param *param) { return param->trained && (!param->divided || param->n > 0); }

/* Bytes of the states of divided parameters, and the smaller memory that belongs to tensors. */
static size_t divided_bytes(const Params *params, int n_states) {
    enum { EXTRA = 256 };
    size_t bytes = 0;
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].divided && updates(&params->items[i]))
            bytes += arena_rounded(TENSOR_HEADER) + arena_rounded(dtype_bytes(params->items[i].tensor->dtype, params->items[i].n)) + EXTRA;
    return (size_t)n_states * bytes;
}

static bool are_divided(const Params *params) {
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].divided) return true;
    return false;
}

Status optimizer_init(const OptimizerConfig *config, Params *params, Arena *arena) {
    int n_states = info_of(config)->states(config);
    if (are_divided(params))
        arena_expect(arena, divided_bytes(params, n_states));
    else
        params_expect_copies(params, n_states, arena);
    for (size_t i = 0; i < params->n; i++) {
        Param *param = &params->items[i];
        for (int s = 0; s < n_states && updates(param); s++) {
            const Tensor *like = param->tensor;
            Tensor *state = param->divided ? tensor_new(arena, tensor_device(like), like->dtype, 1, &param->n)
                                           : tensor_new(arena, tensor_device(like), like->dtype, like->n_dims, like->shape);
            if (!state) return status_prefix(ST_RESOURCE, "optimizer state of '%s'", param->name);
            tensor_device(like)->fill(state, 0);
            param->state[s] = state;
        }
    }
    return ST_OK;
}

size_t optimizer_bytes(const OptimizerConfig *config, const Params *params) {
    int n_states = info_of(config)->states(config);
    return are_divided(params) ? arena_pages(divided_bytes(params, n_states)) : params_copies_bytes(params, n_states);
}

/* Updates this process's elements. */
static void update_part(const OptimizerInfo *info, const OptimizerConfig *config, const Param *param, double grad_scale, double lr, int64_t step) {
    Tensor values = tensor_part(param->tensor, param->first, param->n), gradient = param_own_grad(param);
    Param part = *param;
    values.grad = &gradient;
    part.tensor = &values;
    info->update(config, &part, grad_scale, lr, step);
}

void optimizer_step(const OptimizerConfig *config, Params *params, double grad_scale, double lr, int64_t step) {
    const OptimizerInfo *info = info_of(config);
    profile_lap(NULL);
    for (size_t i = 0; i < params->n; i++) {
        Param *param = &params->items[i];
        if (!updates(param)) continue;
        if (param->divided)
            update_part(info, config, param, grad_scale, lr * param->lr_scale, step);
        else
            info->update(config, param, grad_scale, lr * param->lr_scale, step);
    }
    profile_lap("optimizer");
}
