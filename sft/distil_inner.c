/* SPDX-License-Identifier: Apache-2.0 */
/* Losses inside of the models: the last hidden states, through a projector, and the attention of the last layer. Both are means over all tokens of a
 * step's rows, each with its row's weight. */
#include <math.h>
#include <stdlib.h>

#include "sft/distil_parts.h"

static const char projector_name[] = "distil.projector.weight";

/* A normal distribution that keeps the size of the hidden states. It is a parameter of the student only for its optimiser and checkpoints. */
static Status add_projector(Trainer *trainer, Distil *distil) {
    Model *student = trainer->model;
    const int64_t in = student->config.hidden_size, out = distil->teacher->config.hidden_size;
    Tensor *tensor = tensor_new(student->arena, student->device, student->compute == DT_F64 ? DT_F64 : DT_F32, 2, (int64_t[]){out, in});
    if (!tensor) return ST_RESOURCE;
    tensor->name = projector_name;
    RngKey key = rng_key((uint64_t)trainer->recipe->seed, RNG_INIT, (uint64_t)1 << 54);
    for (int64_t i = 0; i < tensor_count(tensor); i++) tensor_set(tensor, i, rng_normal(key, (uint64_t)i) / sqrt((double)in));
    Param *param = params_add(&student->params, projector_name, tensor, PARAM_CHECKPOINT_ONLY);
    if (!param) return ST_RESOURCE;
    distil->projector = tensor;
    return params_train(param, student->arena);
}

Status distil_open_inner(Trainer *trainer, Distil *distil) {
    distil->hidden = trainer->recipe->distil_hidden;
    distil->attention = trainer->recipe->distil_attention;
    if (distil->hidden > 0) TRY(add_projector(trainer, distil));
    if (distil->attention == 0) return ST_OK;
    TRY(model_show_attention(trainer->model));
    return model_show_attention(distil->teacher);
}

/* The weight of each token of the pass: that of its row. Rows without a trained token count nothing, since a batch of them alone is not computed. */
static Status token_weights(Distil *distil, const Pass *pass, int64_t n) {
    if (n > distil->cap_weights) {
        TRY(array_resize(&distil->weights, (size_t)n, sizeof *distil->weights, "tokens"));
        distil->cap_weights = n;
    }
    int64_t at = 0;
    for (size_t i = 0; i < pass->n; i++) {
        Example example = dataset_example(distil->rows, pass->rows[i]);
        for (int32_t t = 0; t < example.n; t++) distil->weights[at++] = example.trained > 0 ? example.weight : 0;
    }
    return ST_OK;
}

/* Adds the mean of `losses` (N) over the step's tokens, times `weight`, to the loss; and its gradient to the tape. */
static Status add_loss(Distil *distil, const Pass *pass, Tensor *losses, double weight, int sum, LossSums *sums) {
    if (!losses) return tape_status(pass->tape);
    const int64_t n = tensor_count(losses);
    TRY(token_weights(distil, pass, n));
    double total = 0;
    for (int64_t i = 0; i < n && device_computes(tape_device(pass->tape)); i++) total += distil->weights[i] * tensor_get(losses, i);
    distil->sums[sum] += total;
    sums->loss_sum += weight * total * pass->divisor / distil->all_tokens;
    for (int64_t i = 0; i < n; i++) distil->weights[i] *= weight / distil->all_tokens;
    tensor_seed_grad(pass->tape, losses, distil->weights);
    return ST_OK;
}

Status distil_add_inner(Distil *distil, const Pass *pass, Tensor *hidden, const ShownAttention *shown, const TeacherStates *teacher, LossSums *sums) {
    Tape *tape = pass->tape;
    if (distil->hidden > 0) {
        Tensor *projected = op_linear(tape, hidden, distil->projector, NULL, NULL, NULL);
        TRY(add_loss(distil, pass, op_row_distance(tape, projected, teacher->hidden), distil->hidden, SUM_HIDDEN, sums));
    }
    if (distil->attention == 0) return ST_OK;
    Tensor *losses = op_attention_divergence(tape, shown->q, shown->k, &shown->args, teacher->shown.q, teacher->shown.k, &teacher->shown.args);
    return add_loss(distil, pass, losses, distil->attention, SUM_ATTENTION, sums);
}
