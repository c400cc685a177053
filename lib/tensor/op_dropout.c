/* SPDX-License-Identifier: Apache-2.0 */
/* dropout: random zeros, as op_linear has them in a low-rank branch. Backward draws the same mask again. */
#include "lib/tensor/tensor.h"

typedef struct Mask {
    double p;
    RngKey key;
    uint64_t first;
} Mask;

static void dropout_backward(Tape *tape, Node *node) {
    const Mask *mask = node->attributes;
    double beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    if (dx) tape_device(tape)->dropout(node->outputs[0]->grad, mask->p, mask->key, mask->first, beta, dx);
}

Tensor *op_dropout(Tape *tape, Tensor *x, double p, RngKey key, uint64_t first) {
    Tensor *y = x ? tape_tensor_like(tape, x->dtype, x) : NULL;
    if (!y) return NULL;
    tape_device(tape)->dropout(x, p, key, first, 0, y);
    tape_push(tape, "dropout", dropout_backward, &x, 1, &y, 1, &(Mask){p, key, first}, sizeof(Mask));
    return y;
}

OpCost op_dropout_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

const int op_dropout_variants = 1;

void op_dropout_example(OpExample *example) {
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){5, 9});
    example_output(example, op_dropout(example->tape, x, 0.4, rng_key(example->seed, RNG_DROPOUT, 3), 6));
}
