/* SPDX-License-Identifier: Apache-2.0 */
/* split: cuts the columns of a fused projection (q, k and v side by side) into three tensors. Columns come in units of equal width; with every
 * unit viewed as a row, each part is a selection of rows. */
#include "lib/tensor/tensor.h"

typedef struct Columns {
    Tensor *rows[3];
    int64_t unit;
} Columns;

/* The same elements, one unit per row. */
static Tensor *as_units(Tape *tape, const Tensor *x, int64_t unit) { return tape_reshape(tape, x, 2, (int64_t[]){tensor_count(x) / unit, unit}); }

/* The numbers of the rows that make up a part: `units` of the `total` units of each token, from `first` on. */
static Status rows_fill(Tensor *rows, int64_t first, int64_t units, int64_t total) {
    int32_t buffer[512];
    for (int64_t at = 0, n; at < tensor_count(rows); at += n) {
        n = tensor_count(rows) - at;
        int32_t *row = tensor_stage(rows, at, &n, buffer, sizeof buffer);
        for (int64_t i = 0; i < n; i++) row[i] = (int32_t)((at + i) / units * total + first + (at + i) % units);
        TRY(tensor_upload(rows, at, n, row));
    }
    return ST_OK;
}

static void split_backward(Tape *tape, Node *node) {
    const Columns *columns = node->attributes;
    double beta;
    Tensor *dx = tape_grad(tape, node->inputs[0], &beta);
    if (!dx) return;
    if (beta == 0) tape_device(tape)->fill(dx, 0);
    Tensor *dx_units = as_units(tape, dx, columns->unit);
    for (int i = 0; i < 3 && dx_units; i++) {
        const Tensor *dy = node->outputs[i]->grad;
        Tensor *dy_units = dy ? as_units(tape, dy, columns->unit) : NULL;
        if (dy_units) tape_device(tape)->scatter_add_rows(dy_units, columns->rows[i], dx_units);
    }
}

Split op_split(Tape *tape, Tensor *x, int64_t unit, const int64_t units[3]) {
    Split result = {0};
    if (!x) return result;
    int64_t n = tensor_rows(x), total = units[0] + units[1] + units[2];
    ASSERT(tensor_width(x) == total * unit, "split of width %lld into %lld units of %lld", (long long)tensor_width(x), (long long)total,
           (long long)unit);
    Columns columns = {.unit = unit};
    Tensor *x_units = as_units(tape, x, unit), *parts[3];
    for (int64_t i = 0, first = 0; i < 3; first += units[i++]) {
        int64_t count = n * units[i];
        Tensor *rows = columns.rows[i] = tensor_new(tape_arena(tape), tape_device(tape), DT_I32, 1, &count);
        parts[i] = tape_tensor(tape, x->dtype, 2, (int64_t[]){n, units[i] * unit});
        if (!rows || !x_units || !parts[i] || rows_fill(rows, first, units[i], total) != ST_OK) {
            tape_fail(tape, ST_RESOURCE, "out of memory for the tape");
            return result;
        }
        Tensor *part_units = as_units(tape, parts[i], unit);
        if (part_units) tape_device(tape)->gather_rows(x_units, rows, part_units);
    }
    tape_push(tape, "split", split_backward, &x, 1, parts, 3, &columns, sizeof columns);
    for (int i = 0; i < 3; i++) result.parts[i] = parts[i];
    return result;
}

OpCost op_split_cost(const Node *node, bool backward) {
    (void)backward;
    return (OpCost){.bytes = 2 * (double)tensor_bytes(node->inputs[0])};
}

/* 0: equal parts, 1: more query than key columns. */
const int op_split_variants = 2;

void op_split_example(OpExample *example) {
    int64_t unit = 3, units[3] = {example->variant ? 4 : 1, 1, 1};
    Tensor *x = example_input(example, true, true, 2, (int64_t[]){4, (units[0] + 2) * unit});
    Split split = op_split(example->tape, x, unit, units);
    for (int i = 0; i < 3; i++) example_output(example, split.parts[i]);
}
