/* SPDX-License-Identifier: Apache-2.0 */
/* add: the residual stream. The gradient passes to both; the first takes over the buffer. */
#include "lib/tensor/tensor.h"

static void add_backward(Tape *tape, Node *node) {
    const Device *device = tape_device(tape);
    Tensor *y = node->outputs[0];
    for (int i = 1; i >= 0; i--) {
        if (i == 0 && tensor_grad_move(y, node->inputs[0])) return;
        double beta;
        Tensor *dx = tape_grad(tape, node->inputs[i], &beta);
        if (dx) device->accumulate(y->grad, 1, beta, dx);
    }
}

Tensor *op_add(Tape *tape, Tensor *a, Tensor *b) {
    if (!a || !b) return NULL;
    if (tensor_count(a) != tensor_count(b)) {
        char left[96], right[96];
        return tape_fail(tape, ST_INPUT, "cannot add %s and %s", tensor_describe(a, left), tensor_describe(b, right));
    }
    Tensor *y = tape_tensor_like(tape, tape_residual(tape), a);
    if (!y) return NULL;
    tape_device(tape)->add(a, b, y);
    tape_push(tape, "add", add_backward, (Tensor *[]){a, b}, 2, &y, 1, NULL, 0);
    return y;
}

/* Going back, the first input takes the gradient as it is. */
OpCost op_add_cost(const Node *node, bool backward) {
    return (OpCost){.bytes = backward ? (double)(tensor_bytes(node->outputs[0]) + tensor_bytes(node->inputs[1])) : node_bytes(node, false)};
}

const int op_add_variants = 2;

void op_add_example(OpExample *example) {
    Tensor *a = example_input(example, example->variant == 1, true, 2, (int64_t[]){4, 9});
    Tensor *b = example_input(example, true, true, 2, (int64_t[]){4, 9});
    example_output(example, op_add(example->tape, a, b));
}
