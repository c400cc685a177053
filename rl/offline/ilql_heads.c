/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of implicit Q-learning. */
#include "rl/offline/ilql_heads.h"
#include "lib/model/weight_file.h"

#include <math.h>

enum { HEADS = 5 };
static const char *const names[HEADS] = {"q1", "q2", "target_q1", "target_q2", "v"};

static IlqlHead *head_at(IlqlHeads *heads, int i) { return i < 2 ? &heads->q[i] : i < 4 ? &heads->target[i - 2] : &heads->v; }

static Status add_weight(Model *model, const char *name, int layer, int64_t rows, int64_t columns, bool trained, Tensor **weight) {
    Tensor *tensor = tensor_new(model->arena, model->device, DT_F32, 2, (int64_t[]){rows, columns});
    char *full = arena_printf(model->arena, "%s.%d.weight", name, layer);
    if (!tensor || !full) return status_prefix(ST_RESOURCE, "head '%s'", name);
    tensor->name = full;
    tensor_device(tensor)->fill(tensor, 0);
    *weight = tensor;
    if (!trained) return ST_OK;
    Param *param = params_add(&model->params, full, tensor, PARAM_CHECKPOINT_ONLY);
    return param ? params_train(param, model->arena) : ST_RESOURCE;
}

/* U(-1/sqrt(in), 1/sqrt(in)), the default of torch's linear layers. */
static void ilql_heads_draw(Tensor *up, RngKey key) {
    double bound = 1 / sqrt((double)tensor_width(up));
    for (int64_t i = 0; i < tensor_count(up); i++) tensor_set(up, i, bound * (2 * rng_uniform(key, (uint64_t)i) - 1));
}

Status ilql_heads_add(Model *model, int64_t width, uint64_t seed, bool trained, IlqlHeads *heads) {
    const ModelConfig *config = &model->config;
    int64_t inner = width > 0 ? width : 2 * config->hidden_size;
    for (int i = 0; i < HEADS; i++) {
        IlqlHead *head = head_at(heads, i);
        bool target = i == 2 || i == 3;
        TRY(add_weight(model, names[i], 0, inner, config->hidden_size, trained && !target, &head->up));
        TRY(add_weight(model, names[i], 2, i < 4 ? config->vocab_size : 1, inner, trained && !target, &head->down));
        if (trained) ilql_heads_draw(head->up, rng_key(seed, RNG_INIT, (uint64_t)3 << 54 | (uint64_t)(target ? i - 2 : i)));
    }
    return ST_OK;
}

Tensor *ilql_head_forward(Tape *tape, const IlqlHead *head, Tensor *hidden, const Tensor *rows) {
    int64_t n = tensor_count(rows);
    int32_t *same = arena_alloc(tape_arena(tape), (size_t)MAX(n, 1) * sizeof *same);
    Tensor *every = same ? tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, same) : NULL;
    if (!every) return tape_fail(tape, ST_RESOURCE, "out of memory for the rows of a head");
    for (int64_t i = 0; i < n; i++) same[i] = (int32_t)i;
    return op_row_scores(tape, op_activation(tape, ACT_RELU, op_row_scores(tape, hidden, head->up, rows), NULL), head->down, every);
}

static void follow(Tensor *target, const Tensor *weight, double tau) {
    for (int64_t i = 0; i < tensor_count(target); i++) tensor_set(target, i, (1 - tau) * tensor_get(target, i) + tau * tensor_get(weight, i));
}

void ilql_heads_follow(IlqlHeads *heads, double tau) {
    for (int k = 0; k < 2; k++) {
        follow(heads->target[k].up, heads->q[k].up, tau);
        follow(heads->target[k].down, heads->q[k].down, tau);
    }
}

void ilql_heads_list_state(const IlqlHeads *heads, StateList *states) {
    for (int k = 0; k < 2; k++) {
        state_tensor(states, heads->target[k].up->name, heads->target[k].up);
        state_tensor(states, heads->target[k].down->name, heads->target[k].down);
    }
}

static void ilql_heads_items(const IlqlHeads *heads, CheckpointItem items[2 * HEADS]) {
    for (int i = 0; i < HEADS; i++) {
        const IlqlHead *head = head_at((IlqlHeads *)(uintptr_t)heads, i);
        items[2 * i] = (CheckpointItem){.name = head->up->name, .tensor = head->up};
        items[2 * i + 1] = (CheckpointItem){.name = head->down->name, .tensor = head->down};
    }
}

Status ilql_heads_save(const IlqlHeads *heads, const char *path) {
    CheckpointItem items[2 * HEADS];
    ilql_heads_items(heads, items);
    return tensors_save(path, items, 2 * HEADS);
}

Status ilql_heads_load(Model *model, const char *path, IlqlHeads *heads) {
    CheckpointItem items[2 * HEADS];
    WeightFile *file;
    TRY(weight_file_open(path, &file));
    const StoredTensor *first = weight_file_find(file, "q1.0.weight");
    int64_t width = first && first->n_dims == 2 ? first->shape[0] : 0, hidden = width > 0 ? first->shape[1] : 0;
    weight_file_close(file);
    if (width > 0 && hidden != model->config.hidden_size)
        return status_hint(status_fail(ST_INPUT, "the heads in '%s' are for a hidden size of %lld, the model has %lld", path, (long long)hidden,
                                       (long long)model->config.hidden_size),
                           "name the heads of this model");
    if (width < 1 || width > 1 << 24)
        return status_hint(status_fail(ST_INPUT, "'%s' has no heads: it lacks 'q1.0.weight'", path), "rl.algorithm: ilql writes them");
    TRY(ilql_heads_add(model, width, 0, false, heads));
    ilql_heads_items(heads, items);
    return tensors_load(path, items, 2 * HEADS);
}

Tensor *ilql_logit_bias(void *context, Tape *tape, Tensor *hidden, const Tensor *rows) {
    const IlqlBias *advice = context;
    Tensor *q[2] = {ilql_head_forward(tape, &advice->heads->target[0], hidden, rows),
                    ilql_head_forward(tape, &advice->heads->target[1], hidden, rows)};
    Tensor *v = ilql_head_forward(tape, &advice->heads->v, hidden, rows);
    if (tape_status(tape) != ST_OK) return NULL;
    int64_t n = tensor_rows(q[0]), vocab = tensor_width(q[0]);
    for (int64_t i = 0; i < n; i++)
        for (int64_t a = 0; a < vocab; a++) {
            int64_t at = i * vocab + a;
            tensor_set(q[0], at, advice->beta * (fmin(tensor_get(q[0], at), tensor_get(q[1], at)) - tensor_get(v, i)));
        }
    return q[0];
}
