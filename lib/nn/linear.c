/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: the op with this layer's weight, bias and low-rank branch. */
#include "lib/nn/nn.h"

/* Maximum number of linear layers: each pass number has that many dropout streams. */
enum { DROPOUT_LAYERS = 1 << 20 };

/* The branches that the rows' adapters have for this layer, in the step's memory. */
static const LoraBranch *branches_of_rows(const Linear *linear, Tape *tape, const StepContext *step) {
    LoraBranch *first = NULL;
    for (int i = step->n_adapters; i-- > 0;) {
        const AdapterRows *rows = &step->adapters[i];
        const LoraBranch *lora = rows->linears[linear->index]->lora;
        if (!lora) continue;
        LoraBranch branch = {.a = lora->a, .b = lora->b, .scale = lora->scale, .begin = rows->begin, .end = rows->end, .next = first};
        first = tape_copy(tape, &branch, sizeof branch);
        if (!first) return NULL; /* the tape has the failure */
    }
    return first;
}

/* The layer's arguments in this step; `branch` receives its low-rank branch. */
static LinearArgs linear_args(const Linear *linear, Tape *tape, const StepContext *step, LoraBranch *branch) {
    if (step->n_adapters > 0) return (LinearArgs){linear->weight, linear->bias, branches_of_rows(linear, tape, step)};
    if (!linear->lora) return (LinearArgs){linear->weight, linear->bias, NULL};
    *branch = *linear->lora;
    if (!step->training) branch->dropout = 0;
    branch->first_draw = (uint64_t)(step->first_token * linear->in);
    branch->key = rng_key(step->seed, RNG_DROPOUT, step->number * DROPOUT_LAYERS + linear->index);
    return (LinearArgs){linear->weight, linear->bias, branch};
}

/* The rows of one expert in the branch of all of them: `rows` of each one's `all_rows` rows of B, from `first` on. */
static void branch_part(const LoraBranch *all, int64_t expert, int64_t all_rows, int64_t first, int64_t rows, LoraBranch *branch, Tensor parts[2]) {
    int64_t rank = tensor_width(all->b), begin = expert * all_rows + first;
    parts[0] = matrix_rows(all->a, expert * rank, (expert + 1) * rank);
    parts[1] = matrix_rows(all->b, begin, begin + rows);
    *branch = (LoraBranch){.a = &parts[0], .b = &parts[1], .scale = all->scale, .dropout = all->dropout};
}

bool linear_change(const Linear *linear, int64_t expert, LoraBranch *branch, Tensor parts[2]) {
    const Linear *together = linear->together;
    if (linear->copies && linear->lora)
        branch_part(linear->lora, expert, linear->out, 0, linear->out, branch, parts);
    else if (!linear->lora && together && together->lora)
        branch_part(together->lora, linear->number, together->out, linear->first_row, linear->out, branch, parts);
    else if (linear->lora)
        *branch = *linear->lora;
    return linear->lora || (together && together->lora);
}

const LoraBranch *linear_branch(const Linear *linear, Tape *tape, const StepContext *step) {
    LoraBranch branch;
    LinearArgs args = linear_args(linear, tape, step, &branch);
    return args.lora == &branch ? tape_copy(tape, &branch, sizeof branch) : args.lora;
}

Tensor *linear_forward(const Linear *linear, Tape *tape, Tensor *x, Tensor *residual, const StepContext *step) {
    LoraBranch branch;
    LinearArgs args = linear_args(linear, tape, step, &branch);
    return op_linear(tape, x, args.weight, args.bias, args.lora, residual);
}

void linears_forward(const Linear *const *linears, int n, Tape *tape, Tensor *x, const StepContext *step, Tensor **y) {
    LoraBranch branches[LINEARS_MOST];
    LinearArgs args[LINEARS_MOST];
    ASSERT(n <= LINEARS_MOST, "%d linear layers at once", n);
    for (int i = 0; i < n; i++) args[i] = linear_args(linears[i], tape, step, &branches[i]);
    op_linears(tape, x, args, n, y);
}
