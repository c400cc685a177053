/* SPDX-License-Identifier: Apache-2.0 */
/* Switches a model to its reference weights and back. */
#include "rl/common/reference.h"
#include "lib/train/train.h"
#include "lib/train/trained_model.h"
#include "lib/model/adapter.h"

#include <string.h>

struct Reference {
    Model *model;          /* the policy, borrowed */
    Model *other;          /* the reference from a directory, owned; NULL: the initial policy */
    bool adapter_off;      /* the reference is the policy without its adapter: leave out the LoRA branches */
    Tensor **first;        /* per parameter: initial values; NULL where it is not trained or left out */
    LoraBranch **branches; /* branches of the linear layers while they are left out */
    Arena *arena;
};

static Status open_other(const Recipe *recipe, Comm *comm, Reference *reference) {
    const char *dir = recipe->rl_reference;
    const Model *model = reference->model;
    ModelOptions options = {.device = model->device, .compute = model->compute, .comm = recipe_sharing(recipe, comm)};
    const char *config = path_join(reference->arena, dir, "adapter_config.json");
    bool adapter = config && file_exists(config);
    const char *base = dir;
    if (adapter) TRY(trained_base(recipe, dir, reference->arena, &base));
    TRY(model_load(base, &options, &reference->other));
    if (adapter) TRY(adapter_load(reference->other, dir, false));
    if (reference->other->config.vocab_size == model->config.vocab_size) return ST_OK;
    status_fail(ST_INPUT, "the reference '%s' has %lld tokens in its vocabulary, the policy %lld", dir,
                (long long)reference->other->config.vocab_size, (long long)model->config.vocab_size);
    return status_hint(ST_INPUT, "they need the same tokenizer");
}

/* A new adapter adds nothing, so the initial policy is the model without it. */
static Status keep_first(const Recipe *recipe, Reference *reference) {
    const Params *params = &reference->model->params;
    bool base = recipe->rl_reference != NULL;
    reference->adapter_off = recipe->has_lora && (base || !recipe->model_adapter);
    reference->first = arena_zero(reference->arena, params->n * sizeof *reference->first);
    reference->branches = arena_zero(reference->arena, reference->model->n_linears * sizeof *reference->branches);
    if (!reference->first || !reference->branches) return ST_RESOURCE;
    for (size_t i = 0; i < params->n; i++) {
        const Param *param = &params->items[i];
        bool lora = param->role == PARAM_LORA_A || param->role == PARAM_LORA_B || param->role == PARAM_MAGNITUDE;
        if (!param->trained || (lora && reference->adapter_off)) continue;
        if (base && param->role == PARAM_SAVED && recipe->model_adapter) {
            status_fail(ST_CONFIG, "'rl.reference: base' does not go with 'model.adapter' that has modules_to_save");
            return status_hint(ST_CONFIG, "give the base model's directory");
        }
        const Tensor *tensor = param->tensor;
        Tensor *copy = reference->first[i] = tensor_new(reference->arena, tensor_device(tensor), tensor->dtype, tensor->n_dims, tensor->shape);
        if (!copy) return ST_RESOURCE;
        tensor_device(tensor)->copy(tensor, copy);
    }
    return ST_OK;
}

Status reference_open(const Recipe *recipe, Comm *comm, Model *model, Reference **out) {
    *out = NULL;
    Arena *arena = arena_new(0);
    Reference *reference = arena ? arena_zero(arena, sizeof *reference) : NULL;
    if (!reference) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for the reference");
    }
    *reference = (Reference){.model = model, .arena = arena};
    const char *which = recipe->rl_reference;
    Status status = which && strcmp(which, "base") != 0 ? open_other(recipe, comm, reference) : keep_first(recipe, reference);
    if (status == ST_OK)
        *out = reference;
    else
        reference_free(reference);
    return status;
}

void reference_free(Reference *reference) {
    if (!reference) return;
    if (reference->other) model_free(reference->other);
    arena_free(reference->arena);
}

uint64_t reference_fingerprint(const Reference *reference) { return reference && reference->other ? model_fingerprint(reference->other) : 0; }

static void swap_first(Reference *reference) {
    const Params *params = &reference->model->params;
    for (size_t i = 0; i < params->n; i++) {
        if (reference->first[i]) tensor_swap(reference->first[i], params->items[i].tensor);
    }
}

const Model *reference_begin(Reference *reference) {
    if (reference->other) return reference->other;
    Model *model = reference->model;
    swap_first(reference);
    for (size_t i = 0; reference->adapter_off && i < model->n_linears; i++) {
        reference->branches[i] = model->linears[i]->lora;
        model->linears[i]->lora = NULL;
    }
    return model;
}

void reference_end(Reference *reference) {
    if (reference->other) return;
    Model *model = reference->model;
    swap_first(reference);
    for (size_t i = 0; reference->adapter_off && i < model->n_linears; i++) model->linears[i]->lora = reference->branches[i];
}
