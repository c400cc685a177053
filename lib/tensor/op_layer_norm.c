/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm: (x - mean) / sqrt(var + eps) * weight + bias over whole rows. */
#include "lib/tensor/tensor.h"

static void layer_norm_backward(Tape *tape, Node *node) {
    double beta, weight_beta, bias_beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    Tensor *dweight = tape_grad(tape, node->inputs[1], &weight_beta), *dbias = tape_grad(tape, node->inputs[2], &bias_beta);
    if (dweight && weight_beta == 0) tape_device(tape)->fill(dweight, 0);
    if (dbias && bias_beta == 0) tape_device(tape)->fill(dbias, 0);
    tape_device(tape)->layer_norm_backward(node->inputs[0], node->inputs[1], node->saved[0], node->saved[1], node->outputs[0]->grad, beta, dx,
                                           dweight, dbias);
}

Tensor *op_layer_norm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, double eps) {
    if (!x || !weight || !bias) return NULL;
    if (tensor_width(x) != tensor_width(weight)) {
        char have[96];
        return tape_fail(tape, ST_INPUT, "cannot normalise %s by '%s' of width %lld", tensor_describe(x, have), weight->name ? weight->name : "?",
                         (long long)tensor_width(weight));
    }
    Tensor *y = tape_tensor_like(tape, tape_compute(tape), x);
    int64_t rows = tensor_rows(x);
    Tensor *mean = tape_tensor(tape, tape_residual(tape), 1, &rows), *rstd = tape_tensor(tape, tape_residual(tape), 1, &rows);
    if (!y || !mean || !rstd) return NULL;
    tape_device(tape)->layer_norm(x, weight, bias, eps, y, mean, rstd);
    Node *node = tape_push(tape, "layer_norm", layer_norm_backward, (Tensor *[]){x, weight, bias}, 3, &y, 1, NULL, 0);
    if (node) {
        node->saved[0] = mean;
        node->saved[1] = rstd;
    }
    return y;
}

OpCost op_layer_norm_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

const int op_layer_norm_variants = 1;

void op_layer_norm_example(OpExample *example) {
    Tensor *x = example_input(example, false, true, 2, (int64_t[]){4, 11});
    Tensor *weight = example_input(example, false, true, 1, (int64_t[]){11});
    Tensor *bias = example_input(example, false, true, 1, (int64_t[]){11});
    example_output(example, op_layer_norm(example->tape, x, weight, bias, 1e-5));
}
