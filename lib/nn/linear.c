/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: the op with this layer's weight, bias and low-rank branch. */
#include "lib/nn/nn.h"

/* Maximum number of linear layers: each pass number has that many dropout streams. */
enum { DROPOUT_LAYERS = 1 << 20 };

/* The layer's arguments in this step; `branch` receives its low-rank branch. */
static LinearArgs linear_args(const Linear *linear, const StepContext *step, LoraBranch *branch) {
    if (!linear->lora) return (LinearArgs){linear->weight, linear->bias, NULL};
    *branch = *linear->lora;
    if (!step->training) branch->dropout = 0;
    branch->first_draw = (uint64_t)(step->first_token * linear->in);
    branch->key = rng_key(step->seed, RNG_DROPOUT, step->number * DROPOUT_LAYERS + linear->index);
    return (LinearArgs){linear->weight, linear->bias, branch};
}

Tensor *linear_forward(const Linear *linear, Tape *tape, Tensor *x, Tensor *residual, const StepContext *step) {
    LoraBranch branch;
    LinearArgs args = linear_args(linear, step, &branch);
    return op_linear(tape, x, args.weight, args.bias, args.lora, residual);
}

void linears_forward(const Linear *const *linears, int n, Tape *tape, Tensor *x, const StepContext *step, Tensor **y) {
    LoraBranch branches[LINEARS_MOST];
    LinearArgs args[LINEARS_MOST];
    ASSERT(n <= LINEARS_MOST, "%d linear layers at once", n);
    for (int i = 0; i < n; i++) args[i] = linear_args(linears[i], step, &branches[i]);
    op_linears(tape, x, args, n, y);
}
