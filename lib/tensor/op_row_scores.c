/* SPDX-License-Identifier: Apache-2.0 */
/* row_scores: outputs of a small head for chosen rows. Its products are f32 whatever the dtype of activations: a score in bf16 would have two
 * significant digits. */
#include "lib/tensor/tensor.h"

enum { HIDDEN, WEIGHT };

static void row_scores_backward(Tape *tape, Node *node) {
    const Device *device = tape_device(tape);
    Tensor *hidden = node->inputs[HIDDEN], *weight = node->inputs[WEIGHT], *selected = node->saved[0];
    const Tensor *dy = node->outputs[0]->grad;
    double beta;
    Tensor *dweight = tape_grad(tape, weight, &beta);
    if (dweight) device->matmul(&(Matmul){.a = dy, .b = selected, .c = dweight, .transpose_a = true, .alpha = 1, .beta = beta});
    Tensor *dhidden = tape_grad(tape, hidden, &beta);
    Tensor *dselected = dhidden ? tape_scratch(tape, selected->dtype, 2, selected->shape) : NULL;
    if (!dselected) return;
    device->matmul(&(Matmul){.a = dy, .b = weight, .c = dselected, .alpha = 1});
    if (beta == 0) device->fill(dhidden, 0);
    device->scatter_add_rows(dselected, *(const Tensor *const *)node->attributes, dhidden);
}

Tensor *op_row_scores(Tape *tape, Tensor *hidden, Tensor *weight, const Tensor *rows) {
    if (!hidden || !weight || !rows) return NULL;
    if (tensor_width(hidden) != tensor_width(weight)) {
        char have[96], want[96];
        return tape_fail(tape, ST_INPUT, "cannot multiply %s with weight '%s' %s", tensor_describe(hidden, have), weight->name ? weight->name : "?",
                         tensor_describe(weight, want));
    }
    int64_t n = tensor_count(rows);
    DType dtype = tape_residual(tape);
    Tensor *y = tape_tensor(tape, dtype, 2, (int64_t[]){n, tensor_rows(weight)}),
           *selected = tape_tensor(tape, dtype, 2, (int64_t[]){n, tensor_width(hidden)});
    if (!y || !selected) return NULL;
    tape_device(tape)->gather_rows(hidden, rows, selected);
    tape_device(tape)->matmul(&(Matmul){.a = selected, .b = weight, .c = y, .transpose_b = true, .alpha = 1});
    Node *node = tape_push(tape, "row_scores", row_scores_backward, (Tensor *[]){hidden, weight}, 2, &y, 1, &rows, sizeof rows);
    if (node) node->saved[0] = selected;
    return y;
}

OpCost op_row_scores_cost(const Node *node, bool backward) {
    const Tensor *hidden = node->inputs[HIDDEN], *weight = node->inputs[WEIGHT], *y = node->outputs[0];
    double product = 2 * (double)tensor_rows(y) * (double)tensor_count(weight),
           selected = (double)(tensor_rows(y) * tensor_width(hidden)) * (double)dtype_bytes(hidden->dtype, 1);
    double wanted = hidden->needs_grad + weight->needs_grad, bytes = (double)(tensor_bytes(weight) + tensor_bytes(y)) + selected;
    if (!backward) return (OpCost){product, bytes};
    return (OpCost){wanted * product, bytes + hidden->needs_grad * selected + weight->needs_grad * (double)tensor_bytes(weight)};
}

/* 0: one number per row, one row twice; 1: three numbers, head frozen. */
const int op_row_scores_variants = 2;

void op_row_scores_example(OpExample *example) {
    int64_t out = example->variant == 1 ? 3 : 1;
    Tensor *hidden = example_input(example, true, true, 2, (int64_t[]){6, 5});
    Tensor *weight = example_input(example, false, example->variant == 0, 2, (int64_t[]){out, 5});
    Tensor *rows = example_ids(example, 4, (int32_t[]){5, 0, 2, 5});
    example_output(example, op_row_scores(example->tape, hidden, weight, rows));
}
