/* SPDX-License-Identifier: Apache-2.0 */
/* expert_sum: adds the results of a token's experts, times their weights, to the residual stream. */
#include "lib/tensor/tensor.h"

enum { X, WEIGHTS, RESIDUAL, INPUTS };

static void expert_sum_backward(Tape *tape, Node *node) {
    double beta[2], residual_beta;
    const Tensor *const *places = node->attributes;
    Tensor *dy = node->outputs[0]->grad, *dx = tape_grad(tape, node->inputs[X], &beta[0]),
           *dweights = tape_grad(tape, node->inputs[WEIGHTS], &beta[1]);
    if (dx || dweights) tape_device(tape)->expert_sum_backward(node->inputs[X], node->inputs[WEIGHTS], *places, dy, beta, dx, dweights);
    Tensor *residual = node->inputs[RESIDUAL];
    if (!residual || tensor_grad_move(node->outputs[0], residual)) return;
    Tensor *dresidual = tape_grad(tape, residual, &residual_beta);
    if (dresidual) tape_device(tape)->accumulate(dy, 1, residual_beta, dresidual);
}

Tensor *op_expert_sum(Tape *tape, Tensor *x, const Routing *routing, Tensor *residual) {
    if (!x || !routing->weights) return NULL;
    int64_t n = routing->n_tokens, width = tensor_width(x);
    ASSERT(tensor_rows(x) == n * routing->top_k, "%lld rows for %lld slots", (long long)tensor_rows(x), (long long)(n * routing->top_k));
    ASSERT(!residual || (tensor_width(residual) == width && tensor_rows(residual) == n), "a residual of width %lld for %lld",
           residual ? (long long)tensor_width(residual) : 0, (long long)width);
    Tensor *y = residual ? tape_reuse(tape, residual) : NULL;
    if (!y) y = tape_tensor(tape, tape_residual(tape), 2, (int64_t[]){n, width});
    if (!y) return NULL;
    tape_device(tape)->expert_sum(x, routing->weights, routing->places, residual, y);
    tape_push(tape, "expert_sum", expert_sum_backward, (Tensor *[]){x, routing->weights, residual}, INPUTS, &y, 1, &routing->places,
              sizeof routing->places);
    return y;
}

OpCost op_expert_sum_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* 0: alone, 1: added to a residual. */
const int op_expert_sum_variants = 2;

void op_expert_sum_example(OpExample *example) {
    const RouterArgs args = {.n_experts = 4, .top_k = 2, .scale = 1};
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){10, 3});
    Tensor *logits = example_input(example, true, true, 2, (int64_t[]){5, 4});
    Tensor *residual = example->variant ? example_input(example, false, true, 2, (int64_t[]){5, 3}) : NULL;
    if (!x || !logits || (example->variant && !residual)) return;
    Routing routing = op_router(example->tape, logits, NULL, &args, NULL);
    example_output(example, op_expert_sum(example->tape, x, &routing, residual));
}
