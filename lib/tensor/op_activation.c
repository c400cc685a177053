/* activation: f(x), or f(x) * up for gated feed-forward layers (SwiGLU: f = silu). */
#include "lib/tensor/tensor.h"

static void activation_backward(Tape *tape, Node *node) {
    const Activation *kind = node->attributes;
    double beta[2];
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta[0]), *dup = tape_grad(tape, node->inputs[1], &beta[1]);
    if (dx || dup) tape_device(tape)->activation_backward(*kind, node->inputs[0], node->inputs[1], node->outputs[0]->grad, beta, dx, dup);
}

Tensor *op_activation(Tape *tape, Activation kind, Tensor *x, Tensor *up) {
    if (!x) return NULL;
    ASSERT(!up || tensor_count(x) == tensor_count(up), "gate has %lld elements, up %lld", (long long)tensor_count(x), (long long)tensor_count(up));
    Tensor *y = tape_tensor_like(tape, tape_compute(tape), x);
    if (!y) return NULL;
    tape_device(tape)->activation(kind, x, up, y);
    tape_push(tape, "activation", activation_backward, (Tensor *[]){x, up}, 2, &y, 1, &kind, sizeof kind);
    return y;
}

OpCost op_activation_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* Every kind, plain and gated. */
const int op_activation_variants = 10;

void op_activation_example(OpExample *example) {
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){4, 10});
    Tensor *up = example->variant % 2 ? example_input(example, true, true, 2, (int64_t[]){4, 10}) : NULL;
    example_output(example, op_activation(example->tape, (Activation)(example->variant / 2), x, up));
}
