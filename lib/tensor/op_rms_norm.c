/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm: x / sqrt(mean(x^2) + eps) * weight, over the weight's width (full rows, or separate heads), plus an optional residual stream, whose
 * gradient is the result's. Source: arXiv 1910.07467. */
#include "lib/tensor/tensor.h"

#include <math.h>

enum { X, WEIGHT, RESIDUAL };
enum { RSTD, INVERSE };

static void rms_norm_backward(Tape *tape, Node *node) {
    const Tensor *weight = node->inputs[WEIGHT], *rstd = node->saved[RSTD], *inverse = node->saved[INVERSE], *dy = node->outputs[0]->grad;
    double beta, weight_beta;
    Tensor *dx = tape_grad(tape, node->inputs[X], &beta);
    Tensor *dweight = tape_grad(tape, node->inputs[WEIGHT], &weight_beta);
    if (dweight && weight_beta == 0) tape_device(tape)->fill(dweight, 0);
    if (inverse)
        tape_device(tape)->rms_norm_backward_result(node->outputs[0], weight, inverse, rstd, dy, beta, dx, dweight);
    else
        tape_device(tape)->rms_norm_backward(node->inputs[X], weight, rstd, dy, beta, dx, dweight);
    Tensor *residual = node->inputs[RESIDUAL];
    if (!residual || tensor_grad_move(node->outputs[0], residual)) return;
    Tensor *dresidual = tape_grad(tape, residual, &beta);
    if (dresidual) tape_device(tape)->accumulate(dy, 1, beta, dresidual);
}

/* 1 / weight, with which the backward pass computes x from y, which is kept anyway; NULL if an element of the weight is almost zero. A plan writes
 * no values. */
static Tensor *inverse_of(Tape *tape, const Tensor *weight) {
    const double least = 0x1p-40;
    int64_t width = tensor_count(weight);
    for (int64_t i = 0; i < width && !tensor_device(weight)->planned; i++)
        if (!(fabs(tensor_get(weight, i)) >= least)) return NULL;
    Tensor *inverse = tape_tensor(tape, tape_residual(tape), 1, &width);
    for (int64_t i = 0; inverse && i < width && !tape_device(tape)->planned; i++) tensor_set(inverse, i, 1 / tensor_get(weight, i));
    return inverse;
}

/* Memory of the sum: that of the previous stream, if nothing reads it any more. */
static Tensor *sum_of(Tape *tape, const Tensor *x, const Tensor *residual) {
    ASSERT(tensor_count(residual) == tensor_count(x), "a residual of %lld elements, a norm of %lld", (long long)tensor_count(residual),
           (long long)tensor_count(x));
    Tensor *in_place = residual->elements != x->elements ? tape_reuse(tape, residual) : NULL;
    return in_place ? in_place : tape_tensor_like(tape, tape_residual(tape), residual);
}

Tensor *op_rms_norm(Tape *tape, Tensor *x, Tensor *weight, double eps, Tensor *residual) {
    if (!x || !weight) return NULL;
    int64_t width = tensor_width(weight);
    if (tensor_width(x) % width != 0) {
        char have[96];
        return tape_fail(tape, ST_INPUT, "cannot normalise %s by '%s' of width %lld", tensor_describe(x, have), weight->name ? weight->name : "?",
                         (long long)width);
    }
    Tensor *y = residual ? sum_of(tape, x, residual) : tape_tensor_like(tape, tape_compute(tape), x);
    Tensor *rstd = tape_tensor(tape, tape_residual(tape), 1, (int64_t[]){tensor_count(x) / width});
    if (!y || !rstd) return NULL;
    Tensor *inverse = !residual && width == tensor_width(x) && tape_recording(tape) ? inverse_of(tape, weight) : NULL;
    tape_device(tape)->rms_norm(x, weight, eps, residual, y, rstd);
    if (x->state) x->state->dead_after_use = inverse != NULL;
    y->state->saved_by_output = inverse != NULL;
    Node *node = tape_push(tape, "rms_norm", rms_norm_backward, (Tensor *[]){x, weight, residual}, 3, &y, 1, NULL, 0);
    if (node) node->saved[RSTD] = rstd, node->saved[INVERSE] = inverse;
    return y;
}

/* Makes the backward pass read y instead of x, if possible. */
OpCost op_rms_norm_cost(const Node *node, bool backward) {
    double instead = backward && node->saved[INVERSE] ? (double)tensor_bytes(node->outputs[0]) - (double)tensor_bytes(node->inputs[0]) : 0;
    return (OpCost){.bytes = node_bytes(node, backward) + instead};
}

/* 0: full rows, 1: per head, weight frozen, 2: full rows, weight frozen, 3: the same with a zero, 4: as 2, and the residual stream takes x's
 * place, 5: which is a norm's result, 6: and also the input of the product, 7: added to a stream, 8: whose place the sum takes. */
const int op_rms_norm_variants = 9;

static void residual_example(OpExample *example, Tensor *x, Tensor *weight) {
    Tape *tape = example->tape;
    Tensor *after = example_input(example, false, true, 1, (int64_t[]){12}), *square = example_input(example, false, true, 2, (int64_t[]){12, 12}),
           *stream = example->variant == 7 ? x : op_add(tape, x, x, 1);
    Tensor *h = op_linear(tape, op_rms_norm(tape, stream, weight, 1e-5, NULL), square, NULL, NULL, NULL);
    example_output(example, op_rms_norm(tape, h, after, 1e-5, stream));
}

void op_rms_norm_example(OpExample *example) {
    bool heads = example->variant == 1;
    Tensor *x = example_input(example, heads, true, 2, (int64_t[]){5, 12});
    Tensor *weight = example_input(example, false, example->variant == 0, 1, (int64_t[]){heads ? 4 : 12});
    if (example->variant == 3 && weight) tensor_set(weight, 7, 0);
    if (example->variant < 4) {
        example_output(example, op_rms_norm(example->tape, x, weight, 1e-5, NULL));
        return;
    }
    if (example->variant >= 7) {
        residual_example(example, x, weight);
        return;
    }
    Tensor *square = example_input(example, false, true, 2, (int64_t[]){12, 12}),
           *stream = example->variant == 5 ? op_rms_norm(example->tape, x, weight, 1e-5, NULL) : op_add(example->tape, x, x, 1);
    Tensor *y = op_rms_norm(example->tape, stream, weight, 1e-5, NULL);
    example_output(example, op_linear(example->tape, example->variant == 6 ? stream : y, square, NULL, NULL, stream));
    if (example->variant == 6) example_output(example, y);
}
