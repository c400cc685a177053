/* SPDX-License-Identifier: Apache-2.0 */
/* Two adapters on one base. */
#include "lib/model/parts.h"
#include "lib/model/scalar_head.h"

#include <stdlib.h>

static bool is_frozen_base(const Model *model, const Tensor *tensor) {
    for (size_t i = 0; i < model->params.n; i++)
        if (model->params.items[i].tensor == tensor) return model->params.items[i].role == PARAM_BASE && !model->params.items[i].trained;
    return false;
}

bool model_can_share_weights(const Model *model) {
    for (size_t i = 0; i < model->n_modules; i++) {
        const Module *module = &model->modules[i];
        if (!is_frozen_base(model, *module->weight) || (module->bias && !is_frozen_base(model, *module->bias))) return false;
    }
    return true;
}

static Status make_twin(const Model *model, bool scores, Model **result) {
    Model *twin = *result = calloc(1, sizeof *twin);
    if (twin)
        *twin = (Model){.config = model->config,
                        .dir = model->dir,
                        .device = model->device,
                        .compute = model->compute,
                        .logprob = model->logprob,
                        .checkpointing = model->checkpointing,
                        .arena = arena_new(0)};
    Status status = twin && twin->arena ? model_build(twin, scores) : status_fail(ST_RESOURCE, "out of memory for a second adapter");
    if (status != ST_OK) {
        if (twin && twin->arena)
            model_free(twin);
        else
            free(twin);
        *result = NULL;
        return status;
    }
    size_t last = twin->n_modules - 1; /* the head, or the score in place of it */
    for (size_t i = 0; i < (scores ? last : last + 1); i++) {
        *twin->modules[i].weight = *model->modules[i].weight;
        if (twin->modules[i].bias) *twin->modules[i].bias = *model->modules[i].bias;
    }
    return ST_OK;
}

Status model_share_weights(const Model *model, Model **twin) {
    ASSERT(!model->score, "a twin of the reward model '%s' needs a score", model->dir);
    return make_twin(model, false, twin);
}

Status model_share_weights_scored(const Model *model, uint64_t seed, Model **twin) {
    TRY(make_twin(model, true, twin));
    Status status = scalar_head_add(
        *twin, &(ScalarHeadConfig){.name = "score", .role = PARAM_BASE, .deviation = model->config.initializer_range, .seed = seed}, &(*twin)->score);
    if (status == ST_OK) return ST_OK;
    model_free(*twin);
    *twin = NULL;
    return status;
}
