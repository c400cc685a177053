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

void linear_mask(const Linear *linear, const StepContext *step, LoraBranch *branch) {
    if (!step->training) branch->dropout = 0;
    branch->first_draw = (uint64_t)(step->first_token * linear->in);
    branch->key = rng_key(step->seed, RNG_DROPOUT, step->number * DROPOUT_LAYERS + linear->index);
}

/* The layer's arguments in this step; `branch` receives its low-rank branch. */
static LinearArgs linear_args(const Linear *linear, Tape *tape, const StepContext *step, LoraBranch *branch) {
    if (step->n_adapters > 0) return (LinearArgs){linear->weight, linear->bias, branches_of_rows(linear, tape, step)};
    if (!linear->lora) return (LinearArgs){linear->weight, linear->bias, NULL};
    *branch = *linear->lora;
    linear_mask(linear, step, branch);
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

/* ---- DoRA ---- */

static LoraBranch *branch_of_rows(const Linear *linear, const StepContext *step, int i) { return step->adapters[i].linears[linear->index]->lora; }

/* Whether the layer's branch, or that of some rows, has a magnitude. */
static bool has_magnitude(const Linear *linear, const StepContext *step) {
    bool found = step->n_adapters == 0 && linear->lora && linear->lora->magnitude;
    for (int i = 0; i < step->n_adapters && !found; i++) {
        const LoraBranch *lora = branch_of_rows(linear, step, i);
        found = lora && lora->magnitude;
    }
    return found;
}

static bool is_dropped(const Linear *linear, const StepContext *step) {
    return step->n_adapters == 0 && step->training && linear->lora && linear->lora->magnitude && linear->lora->dropout > 0;
}

bool linear_reads_once(const Linear *linear, const StepContext *step) { return !is_dropped(linear, step) && !step->watch; }

/* The first pass keeps the norms of a branch that never changes. */
static const Tensor *norms_of(const Linear *linear, Tape *tape, LoraBranch *lora) {
    if (lora->norms_known) return lora->norms;
    const Tensor *norms = dora_norms(tape, linear->weight, lora);
    if (norms && lora->norms && device_computes(tape_device(tape))) {
        tape_device(tape)->copy(norms, lora->norms);
        lora->norms_known = true;
    }
    return norms;
}

static const DoraScale *scales_of_rows(const Linear *linear, Tape *tape, const StepContext *step) {
    DoraScale *first = NULL;
    for (int i = step->n_adapters; i-- > 0;) {
        LoraBranch *lora = branch_of_rows(linear, step, i);
        if (!lora || !lora->magnitude) continue;
        DoraScale scale = {.magnitude = lora->magnitude,
                           .norms = norms_of(linear, tape, lora),
                           .begin = step->adapters[i].begin,
                           .end = step->adapters[i].end,
                           .next = first};
        first = scale.norms ? tape_copy(tape, &scale, sizeof scale) : NULL;
        if (!first) return NULL; /* the tape has the failure */
    }
    return first;
}

/* The rest of a layer with a magnitude after its products, z. */
static Tensor *dora_end(const Linear *linear, Tape *tape, Tensor *z, Tensor *residual, const StepContext *step) {
    if (step->n_adapters > 0) return op_dora(tape, z, scales_of_rows(linear, tape, step), linear->bias, residual);
    const DoraScale scale = {.magnitude = linear->lora->magnitude, .norms = z ? norms_of(linear, tape, linear->lora) : NULL};
    return scale.norms ? op_dora(tape, z, &scale, linear->bias, residual) : NULL;
}

/* With dropout, the part of the layer that does not change has the whole input, and the change has the input after dropout, x~, as in PEFT:
 * y = x W^T + bias + (magnitude / norm - 1) x~ W^T + magnitude / norm * scale x~ A^T B^T; here the two products of W are those of x - x~ and x~. */
static Tensor *dropped_forward(const Linear *linear, Tape *tape, Tensor *x, Tensor *residual, const StepContext *step) {
    LoraBranch branch;
    LinearArgs args = linear_args(linear, tape, step, &branch);
    Tensor *kept = op_dropout(tape, x, branch.dropout, branch.key, branch.first_draw);
    Tensor *others = op_linear(tape, op_convert(tape, op_add(tape, x, kept, -1)), args.weight, args.bias, NULL, residual);
    branch.dropout = 0;
    Tensor *z = op_linear(tape, kept, args.weight, NULL, &branch, NULL);
    const DoraScale scale = {.magnitude = branch.magnitude, .norms = z ? dora_norms(tape, args.weight, &branch) : NULL};
    return scale.norms ? op_dora(tape, z, &scale, NULL, others) : NULL;
}

/* ---- layers ---- */

/* The input that the layers get; NULL: none, after a failure or at the end of the pass. */
static Tensor *watched_input(const Linear *const *linears, int n, Tape *tape, Tensor *x, const StepContext *step) {
    if (!step->watch || !x) return x;
    Tensor *given = step->watch->see(step->watch->context, tape, linears, n, x);
    if (!given && tape_status(tape) == ST_OK) tape_fail(tape, ST_INTERRUPTED, "the pass ends at '%s'", linears[0]->path);
    return given;
}

static Tensor *apply_linear(const Linear *linear, Tape *tape, Tensor *x, Tensor *residual, const StepContext *step) {
    if (is_dropped(linear, step)) return dropped_forward(linear, tape, x, residual, step);
    LoraBranch branch;
    LinearArgs args = linear_args(linear, tape, step, &branch);
    if (has_magnitude(linear, step)) return dora_end(linear, tape, op_linear(tape, x, args.weight, NULL, args.lora, NULL), residual, step);
    return op_linear(tape, x, args.weight, args.bias, args.lora, residual);
}

Tensor *linear_forward(const Linear *linear, Tape *tape, Tensor *x, Tensor *residual, const StepContext *step) {
    return apply_linear(linear, tape, watched_input(&linear, 1, tape, x, step), residual, step);
}

void linears_forward(const Linear *const *linears, int n, Tape *tape, Tensor *x, const StepContext *step, Tensor **y) {
    LoraBranch branches[LINEARS_MOST];
    LinearArgs args[LINEARS_MOST] = {0};
    bool together = true;
    ASSERT(n <= LINEARS_MOST, "%d linear layers at once", n);
    x = watched_input(linears, n, tape, x, step);
    for (int i = 0; i < n; i++) together = together && !is_dropped(linears[i], step);
    for (int i = 0; i < n && !together; i++) y[i] = apply_linear(linears[i], tape, x, NULL, step);
    if (!together) return;
    for (int i = 0; i < n; i++) {
        args[i] = linear_args(linears[i], tape, step, &branches[i]);
        if (has_magnitude(linears[i], step)) args[i].bias = NULL;
    }
    op_linears(tape, x, args, n, y);
    for (int i = 0; i < n; i++)
        if (has_magnitude(linears[i], step)) y[i] = dora_end(linears[i], tape, y[i], NULL, step);
}
