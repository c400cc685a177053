/* SPDX-License-Identifier: Apache-2.0 */
/* offset: x + a number. The gradient passes unchanged. */
#include "lib/tensor/tensor.h"

static void offset_backward(Tape *tape, Node *node) {
    double beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    if (dx) tape_device(tape)->accumulate(node->outputs[0]->grad, 1, beta, dx);
}

Tensor *op_offset(Tape *tape, Tensor *x, double offset) {
    Tensor *y = tape_tensor_like(tape, x ? x->dtype : DT_F32, x);
    if (!y) return NULL;
    tape_device(tape)->fill(y, offset);
    tape_device(tape)->accumulate(x, 1, 1, y);
    y->name = x->name;
    tape_push(tape, "offset", offset_backward, &x, 1, &y, 1, NULL, 0);
    return y;
}

OpCost op_offset_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

const int op_offset_variants = 1;

void op_offset_example(OpExample *example) {
    Tensor *x = example_input(example, false, true, 1, (int64_t[]){9});
    example_output(example, op_offset(example->tape, x, 1));
}
