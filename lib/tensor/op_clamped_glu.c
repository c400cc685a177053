/* SPDX-License-Identifier: Apache-2.0 */
/* clamped_glu: the gated activation of gpt-oss, from one projection whose columns are gate and up in turn:
 *     g = min(gate, limit), u = max(-limit, min(up, limit)), y = (u + 1) g sigmoid(alpha g)
 * A clamped value has no gradient. */
#include "lib/tensor/tensor.h"

typedef struct Clamp {
    double limit, alpha;
} Clamp;

static void clamped_glu_backward(Tape *tape, Node *node) {
    const Clamp *clamp = node->attributes;
    double beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    if (dx) tape_device(tape)->clamped_glu_backward(node->inputs[0], clamp->limit, clamp->alpha, node->outputs[0]->grad, beta, dx);
}

Tensor *op_clamped_glu(Tape *tape, Tensor *x, double limit, double alpha) {
    if (!x) return NULL;
    Tensor *y = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){tensor_rows(x), tensor_width(x) / 2});
    if (!y) return NULL;
    const Clamp clamp = {limit, alpha};
    tape_device(tape)->clamped_glu(x, limit, alpha, y);
    tape_push(tape, "clamped_glu", clamped_glu_backward, &x, 1, &y, 1, &clamp, sizeof clamp);
    return y;
}

OpCost op_clamped_glu_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* 0: few values are clamped, 1: many. */
const int op_clamped_glu_variants = 2;

void op_clamped_glu_example(OpExample *example) {
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){6, 10});
    if (x) example_output(example, op_clamped_glu(example->tape, x, example->variant ? 0.37 : 0.91, 1.702));
}
