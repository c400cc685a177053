/* SPDX-License-Identifier: Apache-2.0 */
/* convert: a residual stream that a product reads without a norm before it. */
#include "lib/tensor/tensor.h"

static void convert_backward(Tape *tape, Node *node) {
    double beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    if (dx) tape_device(tape)->accumulate(node->outputs[0]->grad, 1, beta, dx);
}

Tensor *op_convert(Tape *tape, Tensor *x) {
    if (!x || x->dtype == tape_compute(tape)) return x;
    Tensor *y = tape_tensor_like(tape, tape_compute(tape), x);
    if (!y) return NULL;
    tape_device(tape)->copy(x, y);
    tape_push(tape, "convert", convert_backward, &x, 1, &y, 1, NULL, 0);
    return y;
}

OpCost op_convert_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

const int op_convert_variants = 1;

/* In the gradient check both dtypes are the same. */
void op_convert_example(OpExample *example) {
    Tensor *x = example_input(example, false, true, 2, (int64_t[]){4, 9});
    example_output(example, op_convert(example->tape, x));
}
