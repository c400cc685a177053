/* Linear layers: the op with this layer's weight, bias and low-rank branch. */
#include "lib/nn/nn.h"

/* Number of linear layers that a dropout stream has room for beside each pass number. */
enum { DROPOUT_LAYERS = 1 << 20 };

Tensor *linear_forward(const Linear *linear, Tape *tape, Tensor *x, Tensor *residual, const StepContext *step) {
    if (!linear->lora) return op_linear(tape, x, linear->weight, linear->bias, NULL, residual);
    LoraBranch branch = *linear->lora;
    if (!step->training) branch.dropout = 0;
    branch.first_draw = (uint64_t)(step->first_token * linear->in);
    branch.key = rng_key(step->seed, RNG_DROPOUT, step->number * DROPOUT_LAYERS + linear->index);
    return op_linear(tape, x, linear->weight, linear->bias, &branch, residual);
}
