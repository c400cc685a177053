/* SPDX-License-Identifier: Apache-2.0 */
/* See state_list.h. */
#include "lib/train/state_list.h"

#include <math.h>
#include <string.h>

/* The place of the next entry. NULL: out of memory. */
static CheckpointItem *next_item(StateList *states) {
    if (states->status == ST_OK && states->n == states->cap) {
        size_t cap = states->cap ? 2 * states->cap : 32;
        CheckpointItem *items = arena_alloc(states->arena, cap * sizeof *items);
        if (items && states->n) memcpy(items, states->items, states->n * sizeof *items);
        if (items) states->items = items, states->cap = cap;
        if (!items) states->status = ST_RESOURCE;
    }
    return states->status == ST_OK ? &states->items[states->n] : NULL;
}

void state_tensor(StateList *states, const char *name, Tensor *tensor) {
    CheckpointItem *item = next_item(states);
    const char *kept = item ? arena_strdup(states->arena, name) : NULL;
    if (!item) return;
    if (!tensor || !kept) {
        states->status = ST_RESOURCE;
        return;
    }
    *item = (CheckpointItem){.name = kept, .tensor = tensor};
    states->n++;
}

static void state_array(StateList *states, const char *name, DType dtype, void *values, int64_t n) {
    if (n > 0) state_tensor(states, name, tensor_of_host(states->arena, dtype, n, values));
}

void state_f64(StateList *states, const char *name, double *values, int64_t n) { state_array(states, name, DT_F64, values, n); }

void state_f32(StateList *states, const char *name, float *values, int64_t n) { state_array(states, name, DT_F32, values, n); }

void state_bytes(StateList *states, const char *name, void *bytes, size_t n) {
    ASSERT(n % 4 == 0, "%zu bytes of '%s' are no multiple of 4", n, name);
    state_array(states, name, DT_I32, bytes, (int64_t)(n / 4));
}

void state_of_param(StateList *states, const char *kind, const Param *param, Tensor *tensor) {
    const char *name = arena_printf(states->arena, "%s/%s", kind, param->name);
    if (name)
        state_tensor(states, name, tensor);
    else
        states->status = ST_RESOURCE;
}

void state_divided(StateList *states, const char *kind, const Param *param, size_t k, Tensor *own) {
    const char *name = arena_printf(states->arena, "%s/%s", kind, param->name);
    CheckpointItem *item = next_item(states);
    states->divided = true;
    if (!item) return;
    states->status = name ? rank_checkpoint_part(states->checkpoint, name, k, own, states->arena, item) : ST_RESOURCE;
    states->n += states->status == ST_OK;
}

void state_count(StateList *states, const char *name, int64_t *value) {
    ASSERT(states->n_counts < STATE_NUMBERS, "more than %d counts", STATE_NUMBERS);
    states->counts[states->n_counts++] = (StateCount){name, value};
}

void state_real(StateList *states, const char *name, double *value) {
    ASSERT(states->n_reals < STATE_NUMBERS, "more than %d numbers", STATE_NUMBERS);
    states->reals[states->n_reals++] = (StateReal){name, value};
}

void state_weights(StateList *states, const Params *params) {
    for (size_t i = 0; i < params->n; i++)
        if (params->items[i].trained) state_tensor(states, params->items[i].name, params->items[i].tensor);
}

void state_optimizer(StateList *states, const Params *params) {
    static const char *const kinds[OPTIMIZER_MAX_STATES] = {"state0", "state1"};
    for (size_t i = 0; i < params->n; i++)
        for (int s = 0; s < OPTIMIZER_MAX_STATES; s++)
            if (params->items[i].state[s]) state_of_param(states, kinds[s], &params->items[i], params->items[i].state[s]);
}

const CheckpointItem *state_nonfinite(const StateList *states) {
    for (size_t i = 0; i < states->n; i++) {
        const CheckpointItem *item = &states->items[i];
        if (!item->part && item->tensor->dtype != DT_I32 && tensor_find_nonfinite(item->tensor) >= 0) return item;
    }
    return NULL;
}

void state_numbers_write(const StateList *states, json_t *json) {
    for (size_t i = 0; i < states->n_counts; i++) json_object_set_new(json, states->counts[i].name, json_integer(*states->counts[i].value));
    for (size_t i = 0; i < states->n_reals; i++) json_object_set_new(json, states->reals[i].name, json_real_or_null(*states->reals[i].value));
}

Status state_numbers_read(const StateList *states, const json_t *json) {
    static const char where[] = "state.json";
    for (size_t i = 0; i < states->n_counts; i++) TRY(json_get_int(json, where, states->counts[i].name, states->counts[i].value));
    for (size_t i = 0; i < states->n_reals; i++) {
        *states->reals[i].value = (double)NAN; /* null means NaN */
        TRY(json_get_double(json, where, states->reals[i].name, states->reals[i].value));
    }
    return ST_OK;
}
