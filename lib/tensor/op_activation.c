/* SPDX-License-Identifier: Apache-2.0 */
/* activation: f(x), or f(x) * up for gated feed-forward layers (SwiGLU: f = silu). up may be x, which then contains both factors, from a single
 * projection. */
#include "lib/tensor/tensor.h"

typedef struct Grads {
    Tensor *x, *up;
    double beta[2];
} Grads;

static Grads grads_of(Tape *tape, Tensor *x, Tensor *up) {
    Grads grads = {0};
    grads.x = tape_grad(tape, x, &grads.beta[0]);
    grads.up = up == x ? grads.x : tape_grad(tape, up, &grads.beta[1]);
    return grads;
}

static void activation_backward(Tape *tape, Node *node) {
    const Activation *kind = node->attributes;
    Grads grads = grads_of(tape, node->inputs[0], node->inputs[1]);
    if (grads.x || grads.up)
        tape_device(tape)->activation_backward(*kind, node->inputs[0], node->inputs[1], node->outputs[0]->grad, grads.beta, grads.x, grads.up, NULL);
}

/* The result tensor of `activation` for x and up, without elements. */
static Tensor *result_like(Tape *tape, Tensor *x, Tensor *up) {
    Tensor *y = tape_header(tape, tape_compute(tape), x->n_dims, x->shape);
    if (y && up == x) y->shape[y->n_dims - 1] /= 2;
    return y;
}

Tensor *op_activation(Tape *tape, Activation kind, Tensor *x, Tensor *up) {
    if (!x) return NULL;
    ASSERT(!up || tensor_count(x) == tensor_count(up), "gate has %lld elements, up %lld", (long long)tensor_count(x), (long long)tensor_count(up));
    Tensor *form = result_like(tape, x, up), *y = tape_tensor_like(tape, tape_compute(tape), form);
    if (!y) return NULL;
    tape_device(tape)->activation(kind, x, up, y);
    tape_push(tape, "activation", activation_backward, (Tensor *[]){x, up}, 2, &y, 1, &kind, sizeof kind);
    return y;
}

OpCost op_activation_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* ---- lazy activations: values that are not kept ---- */

struct Recompute {
    Activation kind;
    Tensor *x, *up;
};

static const Recompute *recompute_of(const Tensor *tensor) { return tensor->state ? tensor->state->recompute : NULL; }

Tensor *op_activation_passing(Tape *tape, Activation kind, Tensor *x, Tensor *up) {
    if (!x || tape_status(tape) != ST_OK) return NULL;
    Tensor *y = result_like(tape, x, up);
    Recompute *recompute = tape_copy(tape, &(Recompute){kind, x, up}, sizeof *recompute);
    if (!y || !recompute) return tape_fail(tape, ST_RESOURCE, "out of memory for the tape");
    y->state->recompute = recompute;
    y->needs_grad = x->needs_grad || (up && up->needs_grad);
    if (x->state) x->state->readers++;
    if (up && up != x && up->state) up->state->readers++;
    return y;
}

/* Costs as much as op_activation's node; the backward pass also writes y. `backward`: in that pass; `gradients`: what was done. */
static void profile_making(Tape *tape, const Tensor *y, bool backward, bool gradients) {
    const Recompute *recompute = recompute_of(y);
    Node node = {.inputs = {recompute->x, recompute->up}, .outputs = {(Tensor *)(uintptr_t)y}};
    OpCost cost = op_activation_cost(&node, gradients);
    if (gradients) cost.bytes += (double)tensor_bytes(y);
    profile_call(tape_device(tape), "activation", backward, cost);
}

static void op_activation_make(Tape *tape, Tensor *y, bool backward) {
    const Recompute *recompute = recompute_of(y);
    if (!recompute || y->elements || !tape_temp(tape, y)) return;
    tape_device(tape)->activation(recompute->kind, recompute->x, recompute->up, y);
    profile_making(tape, y, backward, false);
}

void recompute_run(Tape *tape, Tensor *y) { op_activation_make(tape, y, false); }

void recompute_backward(Tape *tape, Tensor *y, const char *reader) {
    const Recompute *recompute = recompute_of(y);
    if (!recompute || tape_status(tape) != ST_OK) return;
    profile_part(tape_device(tape), reader, true);
    if (!y->grad) { /* not needed */
        op_activation_make(tape, y, true);
        return;
    }
    Grads grads = grads_of(tape, recompute->x, recompute->up);
    if (tape_status(tape) != ST_OK) return;
    y->elements = y->grad->elements;
    tape_device(tape)->activation_backward(recompute->kind, recompute->x, recompute->up, y->grad, grads.beta, grads.x, grads.up, y);
    profile_making(tape, y, true, true);
}

void recompute_end(Tape *tape, Tensor *y) {
    if (recompute_of(y)) tape_temp_free(tape, y);
}

/* Every kind, plain and gated; and two with both factors in one tensor. */
const int op_activation_variants = 14;

void op_activation_example(OpExample *example) {
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){4, 10});
    if (example->variant >= 12) {
        example_output(example, op_activation(example->tape, example->variant == 12 ? ACT_GELU_TANH : ACT_SIGMOID, x, x));
        return;
    }
    Tensor *up = example->variant % 2 ? example_input(example, true, true, 2, (int64_t[]){4, 10}) : NULL;
    example_output(example, op_activation(example->tape, (Activation)(example->variant / 2), x, up));
}
