/* SPDX-License-Identifier: Apache-2.0 */
/* The list of named parameters. */
#include "lib/nn/nn.h"
#include "lib/base/memory.h"
#include "lib/base/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

Param *params_add(Params *params, const char *name, Tensor *tensor, ParamRole role) {
    if (array_grow(&params->items, &params->cap, params->n + 1, sizeof *params->items, "parameters") != ST_OK) return NULL;
    Param *param = &params->items[params->n++];
    *param = (Param){.name = name, .tensor = tensor, .role = role, .lr_scale = 1, .decay = true};
    return param;
}

Param *params_find(const Params *params, const char *name) {
    for (size_t i = 0; i < params->n; i++)
        if (strcmp(params->items[i].name, name) == 0) return &params->items[i];
    return NULL;
}

void params_release(Params *params) {
    free(params->items);
    *params = (Params){0};
}

/* Adds the values of a quantised tensor, in the dtype that a dequantised copy would have. */
static void hash_values(XXH3_state_t *state, const Tensor *tensor) {
    enum { PIECE = 1024 };
    for (int64_t at = 0, n; at < tensor_count(tensor); at += n) {
        float values[PIECE];
        uint16_t rounded[PIECE];
        n = MIN(tensor_count(tensor) - at, (int64_t)PIECE);
        tensor_dequantise(tensor, at, n, values);
        bool rounds = tensor->storage->rounds;
        for (int64_t i = 0; rounds && i < n; i++) rounded[i] = float_to_bf16(values[i]);
        XXH3_64bits_update(state, rounds ? (const void *)rounded : values, (size_t)n * (rounds ? sizeof *rounded : sizeof *values));
    }
}

static uint64_t hash_elements(const Tensor *tensor) {
    XXH3_state_t *state = XXH3_createState();
    if (!state) {
        memory_ran_out(1);
        return 0;
    }
    double buffer[1024];
    XXH3_64bits_reset(state);
    bool quantised = dtype_is_quantised(tensor->dtype);
    if (quantised) hash_values(state, tensor);
    for (int64_t at = 0, n; at < tensor_count(tensor) && !quantised; at += n) {
        n = tensor_count(tensor) - at;
        const void *piece = tensor_piece(tensor, at, &n, buffer, sizeof buffer);
        if (piece) XXH3_64bits_update(state, piece, dtype_bytes(tensor->dtype, n));
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

static uint64_t param_fingerprint(const Param *param) {
    const Tensor *tensor = param->tensor;
    uint64_t hash = hash_elements(tensor);
    hash = XXH3_64bits_withSeed(tensor->shape, (size_t)tensor->n_dims * sizeof *tensor->shape, hash);
    return XXH3_64bits_withSeed(param->name, strlen(param->name), hash);
}

/* A sum over tensors, each hashed with its name, so that threads may process them in any order. */
uint64_t params_fingerprint(const Params *params) {
    uint64_t sum = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : sum)
    for (size_t i = 0; i < params->n; i++) {
        work_at("looking at every weight, tensors", i, params->n);
        sum += param_fingerprint(&params->items[i]);
    }
    work_end("looking at every weight, tensors");
    return sum;
}

static Status train_with(Param *param, Tensor *grad) {
    Tensor *tensor = param->tensor;
    ASSERT(tensor->dtype == DT_F32 || tensor->dtype == DT_F64, "trained parameter '%s' is %s, not f32", param->name, dtype_name(tensor->dtype));
    if (!grad) return status_prefix(ST_RESOURCE, "gradient of '%s'", param->name);
    tensor_unpack(tensor);
    tensor->storage->constant = false;
    tensor->needs_grad = true;
    tensor->grad = grad;
    param->trained = true;
    return ST_OK;
}

Status params_train(Param *param, Arena *arena) {
    const Tensor *tensor = param->tensor;
    Tensor *grad = tensor_new(arena, tensor_device(tensor), tensor->dtype, tensor->n_dims, tensor->shape);
    if (grad) tensor_device(tensor)->fill(grad, 0);
    return train_with(param, grad);
}

Status params_train_lent(Param *param, Arena *arena) {
    const Tensor *tensor = param->tensor;
    Tensor *grad = tensor_header(arena, tensor_device(tensor), tensor->dtype, tensor->n_dims, tensor->shape);
    if (grad) grad->lent = grad->blank = true;
    return train_with(param, grad);
}

void params_return_grads(const Params *params) {
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained && params->items[i].tensor->grad->lent) tape_grad_free(NULL, params->items[i].tensor->grad);
}

Status params_own_grads(const Params *params, Arena *arena) {
    for (size_t i = 0; i < params->n; i++) {
        Tensor *grad = params->items[i].trained ? params->items[i].tensor->grad : NULL;
        if (!grad || !grad->lent) continue;
        if (tensor_allocate(grad, arena) != ST_OK) return status_prefix(ST_RESOURCE, "gradient of '%s'", params->items[i].name);
        grad->lent = false;
    }
    return ST_OK;
}

/* Memory for the copies, with some extra for the data that accompanies tensors, such as names, which would otherwise start a new page. */
static size_t copies_room(const Params *params, int copies) {
    enum { EXTRA = 256 };
    size_t bytes = 0;
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained) bytes += arena_rounded(TENSOR_HEADER) + arena_rounded(tensor_bytes(params->items[i].tensor)) + EXTRA;
    return (size_t)copies * bytes;
}

size_t params_copies_bytes(const Params *params, int copies) { return arena_pages(copies_room(params, copies)); }
void params_expect_copies(const Params *params, int copies, Arena *arena) { arena_expect(arena, copies_room(params, copies)); }

void params_zero_grad(const Params *params) {
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained) params->items[i].tensor->grad->blank = true;
}

Tensor *param_grad(const Param *param) {
    Tensor *grad = param->tensor->grad;
    ASSERT(tensor_is_allocated(grad), "the gradient of '%s' has no memory now", param->name);
    if (grad->blank) tensor_device(grad)->fill(grad, 0);
    grad->blank = false;
    return grad;
}

Tensor param_own_grad(const Param *param) { return param->own_grad ? *param->own_grad : tensor_part(param_grad(param), param->first, param->n); }

double params_grad_norm(const Params *params) {
    double total = 0;
    profile_lap(NULL);
    for (size_t i = 0; i < params->n; i++) {
        if (!params->items[i].trained) continue;
        const Tensor *grad = param_grad(&params->items[i]);
        double squares = 0;
        tensor_device(grad)->sum_squares(grad, &squares);
        total += squares;
    }
    profile_lap("gradient norm");
    return sqrt(total);
}

double clip_scale(double norm, double max_norm) {
    if (max_norm <= 0) return 1;
    double scale = max_norm / (norm + 1e-6);
    return scale < 1 ? scale : 1;
}

/* What this process has of a gradient; NULL: nothing. */
static const Tensor *known_grad(const Param *param) {
    if (tensor_is_allocated(param->tensor->grad)) return param_grad(param);
    return param->own_grad;
}

const Param *params_nonfinite(const Params *params, bool gradient) {
    for (size_t i = 0; i < params->n; i++) {
        const Param *param = &params->items[i];
        const Tensor *values = !param->trained ? NULL : gradient ? known_grad(param) : param->tensor;
        if (values && tensor_find_nonfinite(values) >= 0) return param;
    }
    return NULL;
}

int64_t params_count(const Params *params, bool trained_only) {
    int64_t count = 0;
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained || !trained_only) count += tensor_count(params->items[i].tensor);
    return count;
}
