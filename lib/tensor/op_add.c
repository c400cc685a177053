/* SPDX-License-Identifier: Apache-2.0 */
/* add: the residual stream, in place if nothing reads the old one any more. The gradient passes to both inputs; the first takes over the buffer. */
#include "lib/tensor/tensor.h"

static void add_backward(Tape *tape, Node *node) {
    const Device *device = tape_device(tape);
    const double *scale = node->attributes;
    Tensor *y = node->outputs[0];
    for (int i = 1; i >= 0; i--) {
        if (i == 0 && tensor_grad_move(y, node->inputs[0])) return;
        double beta;
        Tensor *dx = tape_grad(tape, node->inputs[i], &beta);
        if (dx) device->accumulate(y->grad, i == 1 ? *scale : 1, beta, dx);
    }
}

Tensor *op_add(Tape *tape, Tensor *a, Tensor *b, double scale) {
    if (!a || !b) return NULL;
    if (tensor_count(a) != tensor_count(b)) {
        char left[96], right[96];
        return tape_fail(tape, ST_INPUT, "cannot add %s and %s", tensor_describe(a, left), tensor_describe(b, right));
    }
    Tensor *in_place = a->elements != b->elements ? tape_reuse(tape, a) : NULL,
           *y = in_place ? in_place : tape_tensor_like(tape, tape_residual(tape), a);
    if (!y) return NULL;
    if (scale == 1) {
        tape_device(tape)->add(a, b, y);
    } else {
        if (!in_place) tape_device(tape)->copy(a, y);
        tape_device(tape)->accumulate(b, scale, 1, y);
    }
    tape_push(tape, "add", add_backward, (Tensor *[]){a, b}, 2, &y, 1, &scale, sizeof scale);
    return y;
}

/* In the backward pass, the first input takes the gradient unchanged. */
OpCost op_add_cost(const Node *node, bool backward) {
    return (OpCost){.bytes = backward ? (double)(tensor_bytes(node->outputs[0]) + tensor_bytes(node->inputs[1])) : node_bytes(node, false)};
}

/* 0: in the residual dtype, 1: in the compute dtype, 2: the second scaled, 3: the same in place of the first. */
const int op_add_variants = 4;

void op_add_example(OpExample *example) {
    Tensor *a = example_input(example, example->variant == 1, true, 2, (int64_t[]){4, 9});
    Tensor *b = example_input(example, true, true, 2, (int64_t[]){4, 9});
    if (example->variant == 3) {
        Tensor *weight = example_input(example, false, false, 1, (int64_t[]){9});
        a = op_add(example->tape, a, a, 1);
        b = op_rms_norm(example->tape, a, weight, 1e-5, NULL);
    }
    example_output(example, op_add(example->tape, a, b, example->variant >= 2 ? -0.7 : 1));
}
