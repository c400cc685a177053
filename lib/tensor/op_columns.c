/* SPDX-License-Identifier: Apache-2.0 */
/* columns: a tensor whose columns are those of one or two others, in any order, with repeats and zeros. Columns come in units of equal width. */
#include "lib/tensor/tensor.h"

typedef struct ColumnsNode {
    Tensor *units; /* i32 */
    int64_t first; /* units of x */
} ColumnsNode;

static void part_backward(Tape *tape, const ColumnsNode *columns, int64_t first, const Tensor *dy, Tensor *x) {
    double beta;
    Tensor *dx = tape_grad(tape, x, &beta);
    if (!dx) return;
    if (beta == 0) tape_device(tape)->fill(dx, 0);
    tape_device(tape)->scatter_add_columns(dy, columns->units, first, dx);
}

static void columns_backward(Tape *tape, Node *node) {
    const ColumnsNode *columns = node->attributes;
    part_backward(tape, columns, 0, node->outputs[0]->grad, node->inputs[0]);
    part_backward(tape, columns, columns->first, node->outputs[0]->grad, node->inputs[1]);
}

Tensor *op_columns(Tape *tape, Tensor *x, Tensor *more, const ColumnOrder *map) {
    if (!x) return NULL;
    ASSERT(tensor_width(x) % map->unit == 0 && (!more || (tensor_width(more) % map->unit == 0 && tensor_rows(more) == tensor_rows(x))),
           "columns of width %lld in units of %lld", (long long)tensor_width(x), (long long)map->unit);
    ColumnsNode columns = {tensor_new(tape_arena(tape), tape_device(tape), DT_I32, 1, &map->n), tensor_width(x) / map->unit};
    Tensor *y = tape_tensor(tape, tape_compute(tape), 2, (int64_t[]){tensor_rows(x), map->n * map->unit});
    if (!columns.units || (y && tensor_upload(columns.units, 0, map->n, map->from) != ST_OK))
        return tape_fail(tape, ST_RESOURCE, "out of memory for the tape");
    if (!y) return NULL;
    tape_device(tape)->gather_columns(x, more, columns.units, y);
    tape_push(tape, "columns", columns_backward, (Tensor *[]){x, more}, 2, &y, 1, &columns, sizeof columns);
    return y;
}

OpCost op_columns_cost(const Node *node, bool backward) {
    (void)backward;
    return (OpCost){.bytes = 2 * (double)tensor_bytes(node->outputs[0])};
}

/* 0: of one tensor, 1: of two; with repeats and zeros. */
const int op_columns_variants = 2;

void op_columns_example(OpExample *example) {
    static const int32_t from[][5] = {{2, 0, -1, 2, 1}, {3, 0, 4, -1, 3}};
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){4, 6});
    Tensor *more = example->variant ? example_input(example, true, true, 2, (int64_t[]){4, 4}) : NULL;
    if (!x || (example->variant && !more)) return;
    example_output(example, op_columns(example->tape, x, more, &(ColumnOrder){.unit = 2, .n = 5, .from = from[example->variant]}));
}
