/* rms_norm: x / sqrt(mean(x^2) + eps) * weight, over the weight's width: whole rows, or heads one by one. numerics.md section 4. */
#include "lib/tensor/tensor.h"

static void rms_norm_backward(Tape *tape, Node *node) {
    double beta, weight_beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    Tensor *dweight = tape_grad(tape, node->inputs[1], &weight_beta);
    if (dweight && weight_beta == 0) tape_device(tape)->fill(dweight, 0);
    tape_device(tape)->rms_norm_backward(node->inputs[0], node->inputs[1], node->saved[0], node->outputs[0]->grad, beta, dx, dweight);
}

Tensor *op_rms_norm(Tape *tape, Tensor *x, Tensor *weight, double eps) {
    if (!x || !weight) return NULL;
    int64_t width = tensor_width(weight);
    if (tensor_width(x) % width != 0) {
        char have[96];
        return tape_fail(tape, ST_INPUT, "cannot normalise %s by '%s' of width %lld", tensor_describe(x, have), weight->name ? weight->name : "?", (long long)width);
    }
    Tensor *y = tape_tensor_like(tape, tape_compute(tape), x);
    Tensor *rstd = tape_tensor(tape, tape_residual(tape), 1, (int64_t[]){tensor_count(x) / width});
    if (!y || !rstd) return NULL;
    tape_device(tape)->rms_norm(x, weight, eps, y, rstd);
    Node *node = tape_push(tape, "rms_norm", rms_norm_backward, (Tensor *[]){x, weight}, 2, &y, 1, NULL, 0);
    if (node) node->saved[0] = rstd;
    return y;
}

OpCost op_rms_norm_cost(const Node *node, bool backward) { return (OpCost){.bytes = node_bytes(node, backward)}; }

/* 0: whole rows, 1: per head, weight frozen. */
const int op_rms_norm_variants = 2;

void op_rms_norm_example(OpExample *example) {
    bool heads = example->variant == 1;
    Tensor *x = example_input(example, heads, true, 2, (int64_t[]){5, 12});
    Tensor *weight = example_input(example, false, !heads, 1, (int64_t[]){heads ? 4 : 12});
    example_output(example, op_rms_norm(example->tape, x, weight, 1e-5));
}
