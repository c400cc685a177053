/* SPDX-License-Identifier: Apache-2.0 */
/* embedding: rows of a table, times a number. Backward adds to the rows that were used. */
#include "lib/tensor/tensor.h"

static void embedding_backward(Tape *tape, Node *node) {
    const double *scale = node->attributes;
    Tensor *dy = node->outputs[0]->grad;
    double beta;
    Tensor *dtable = tape_grad(tape, node->inputs[1], &beta);
    if (!dtable) return;
    if (beta == 0) tape_device(tape)->fill(dtable, 0);
    if (*scale != 1) tape_device(tape)->accumulate(dy, *scale, 0, dy); /* it has no other reader */
    tape_device(tape)->scatter_add_rows(dy, node->inputs[0], dtable);
}

Tensor *op_embedding(Tape *tape, Tensor *ids, Tensor *table, double scale) {
    if (!ids || !table) return NULL;
    int64_t shape[2] = {tensor_count(ids), tensor_width(table)};
    Tensor *y = tape_tensor(tape, tape_residual(tape), 2, shape);
    if (!y) return NULL;
    tape_device(tape)->gather_rows(table, ids, y);
    if (scale != 1) tape_device(tape)->accumulate(y, scale, 0, y);
    tape_push(tape, "embedding", embedding_backward, (Tensor *[]){ids, table}, 2, &y, 1, &scale, sizeof scale);
    return y;
}

/* Only the used rows of the table count. */
OpCost op_embedding_cost(const Node *node, bool backward) {
    (void)backward;
    const Tensor *ids = node->inputs[0], *table = node->inputs[1], *y = node->outputs[0];
    double rows = (double)tensor_bytes(table) / (double)MAX(tensor_rows(table), 1) * (double)tensor_count(ids);
    return (OpCost){.bytes = (double)(tensor_bytes(ids) + tensor_bytes(y)) + rows};
}

/* 0: unscaled rows, 1: scaled rows. */
const int op_embedding_variants = 2;

void op_embedding_example(OpExample *example) {
    Tensor *ids = example_ids(example, 6, (int32_t[]){3, 0, 3, 4, 1, 3});
    Tensor *table = example_input(example, false, true, 2, (int64_t[]){5, 7});
    example_output(example, op_embedding(example->tape, ids, table, example->variant ? 2.5 : 1));
}
