/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of one output. */
#include "lib/model/scalar_head.h"

/* RNG_INIT streams of heads are numbered above those of adapters; each name has its own. */
static uint64_t stream_of(const char *name) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 1099511628211u;
    return hash >> 9 | (uint64_t)1 << 55;
}

Status scalar_head_add(Model *model, const ScalarHeadConfig *config, Tensor **weight) {
    Tensor *tensor =
        tensor_new(model->arena, model->device, model->compute == DT_F64 ? DT_F64 : DT_F32, 2, (int64_t[]){1, model->config.hidden_size});
    char *name = arena_printf(model->arena, "%s.weight", config->name);
    if (!tensor || !name) return status_prefix(ST_RESOURCE, "head '%s'", config->name);
    tensor->name = name;
    tensor_device(tensor)->fill(tensor, 0);
    RngKey key = rng_key(config->seed, RNG_INIT, stream_of(config->name));
    if (config->deviation > 0 && !model->device->planned)
        for (int64_t i = 0; i < tensor_count(tensor); i++) tensor_set(tensor, i, config->deviation * rng_normal(key, (uint64_t)i));
    Param *param = params_add(&model->params, name, tensor, config->role);
    if (!param) return ST_RESOURCE;
    *weight = tensor;
    return config->trained ? params_train(param, model->arena) : ST_OK;
}

size_t scalar_head_end(const ModelConfig *config, const int32_t *ids, size_t n) {
    size_t end = n;
    while (end > 0 && config->has_pad && ids[end - 1] == config->pad_token_id) end--;
    return end > 0 ? end : n;
}
