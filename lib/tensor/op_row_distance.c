/* SPDX-License-Identifier: Apache-2.0 */
/* row_distance: the mean square of the difference of two rows. */
#include "lib/tensor/tensor.h"

static void row_distance_backward(Tape *tape, Node *node) {
    double beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    if (dx) tape_device(tape)->row_distance_backward(node->inputs[0], node->saved[0], node->outputs[0]->grad, beta, dx);
}

Tensor *op_row_distance(Tape *tape, Tensor *x, Tensor *target) {
    if (!x || !target) return NULL;
    ASSERT(tensor_rows(x) == tensor_rows(target) && tensor_width(x) == tensor_width(target), "rows (%lld,%lld) and (%lld,%lld)",
           (long long)tensor_rows(x), (long long)tensor_width(x), (long long)tensor_rows(target), (long long)tensor_width(target));
    int64_t n = tensor_rows(x);
    Tensor *y = tape_tensor(tape, tape_residual(tape), 1, &n);
    if (!y) return NULL;
    tape_device(tape)->row_distance(x, target, y);
    Node *node = tape_push(tape, "row_distance", row_distance_backward, &x, 1, &y, 1, NULL, 0);
    if (node) node->saved[0] = target;
    return y;
}

OpCost op_row_distance_cost(const Node *node, bool backward) {
    double bytes = 2 * (double)tensor_bytes(node->inputs[0]);
    return (OpCost){0, backward ? 1.5 * bytes : bytes};
}

const int op_row_distance_variants = 1;

void op_row_distance_example(OpExample *example) {
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){4, 7});
    Tensor *target = example_input(example, true, false, 2, (int64_t[]){4, 7});
    example_output(example, op_row_distance(example->tape, x, target));
}
