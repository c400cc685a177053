/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a step or an evaluation: which they are, and how they go through the model. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "lib/train/trainer_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- the rows of a step ---- */

static Status add_batch(Trainer *trainer, const size_t *rows, size_t n, int64_t batch) {
    size_t before = batch ? trainer->batch_ends[batch - 1] : 0;
    TRY(array_resize(&trainer->rows, before + n, sizeof *trainer->rows, "rows of a step"));
    memcpy(trainer->rows + before, rows, n * sizeof *rows);
    trainer->batch_ends[batch] = before + n;
    return ST_OK;
}

static Status load_step(Trainer *trainer, int64_t step) {
    PlanStep at;
    if (trainer->loaded == step) return ST_OK;
    trainer->loaded = -1;
    trainer->n_batches = 0;
    TRY(data_plan_step(&trainer->order, step, &at));
    for (; trainer->n_batches < at.n_batches; trainer->n_batches++) {
        size_t n;
        TRY(data_plan_batch(&trainer->order, at.epoch, at.first_batch + trainer->n_batches, &trainer->examples, &n));
        TRY(add_batch(trainer, trainer->examples, n, trainer->n_batches));
    }
    trainer->loaded = step;
    return ST_OK;
}

Status trainer_rows(Trainer *trainer, int64_t step, const size_t **rows, size_t *n) {
    TRY(load_step(trainer, step));
    *rows = trainer->rows;
    *n = trainer->batch_ends[trainer->n_batches - 1];
    return ST_OK;
}

static Status batch_rows(Trainer *trainer, int64_t step, int64_t batch, const size_t **rows, size_t *n) {
    TRY(load_step(trainer, step));
    size_t first = batch ? trainer->batch_ends[batch - 1] : 0;
    *rows = trainer->rows + first;
    *n = trainer->batch_ends[batch] - first;
    return ST_OK;
}

void trainer_describe(Trainer *trainer, int64_t step, int64_t batch, Str *text) {
    enum { SHOWN = 8 };
    const size_t *rows;
    size_t n;
    if (batch_rows(trainer, step, batch, &rows, &n) != ST_OK) return;
    for (size_t i = 0; i < MIN(n, (size_t)SHOWN); i++) {
        if (i > 0) str_append(text, ", ");
        dataset_where(trainer->train, rows[i], text);
    }
    if (n > SHOWN) str_printf(text, " and %zu more", n - SHOWN);
}

/* ---- parts ---- */

void rows_split(void *context, int64_t most_tokens) { ((Trainer *)context)->part_tokens = most_tokens; }

/* Runs the rows of a batch in parts: rows that together have at most part_tokens tokens, at least one row. */
static Status run_parts(Trainer *trainer, Pass pass, LossSums *sums) {
    const Dataset *set = pass.held_out ? trainer->eval : trainer->train;
    const size_t *rows = pass.rows, *end = rows + pass.n;
    const int64_t first_token = pass.dropout.first_token;
    for (pass.rows = rows; pass.rows < end; pass.rows += pass.n) {
        int64_t tokens = dataset_length(set, *pass.rows);
        size_t left = (size_t)(end - pass.rows);
        pass.n = trainer->part_tokens > 0 ? 1 : left;
        while (pass.n < left && (tokens += dataset_length(set, pass.rows[pass.n])) <= trainer->part_tokens) pass.n++;
        if (pass.held_out && interrupt_requested()) return ST_INTERRUPTED;
        if (pass.training) pass.dropout.first_token = first_token + sums->tokens; /* the same masks however the batch is split */
        if (pass.held_out || pass.rows > rows) tape_reset(pass.tape);
        TRY(trainer->objective->batch(trainer, &pass, sums));
    }
    return ST_OK;
}

/* ---- a step ---- */

Status rows_begin(Trainer *trainer, int64_t step, int64_t *n_leaves, double *divisor) {
    Pass all = {.tape = trainer->tape, .training = true, .step = step};
    TRY(trainer_rows(trainer, step, &all.rows, &all.n));
    *n_leaves = trainer->n_batches * trainer->lanes.cuts;
    *divisor = (double)all.n;
    return trainer->objective->begin ? trainer->objective->begin(trainer, &all, divisor) : ST_OK;
}

/* Reduces a batch to the rows of one of its cuts. */
static void take_cut(const Trainer *trainer, int64_t cut, Pass *pass) {
    const int64_t cuts = trainer->lanes.cuts;
    const Objective *objective = trainer->objective;
    const size_t *rows = pass->rows;
    const size_t first = (size_t)lane_begin(cut, cuts, (int64_t)pass->n), end = (size_t)lane_begin(cut + 1, cuts, (int64_t)pass->n);
    for (size_t i = 0; i < first; i++)
        pass->dropout.first_token += objective->tokens ? objective->tokens(trainer, rows[i]) : dataset_length(trainer->train, rows[i]);
    pass->rows = rows + first;
    pass->n = end - first;
}

Status rows_train(Trainer *trainer, int64_t step, int64_t leaf, double divisor, LossSums *sums) {
    int64_t batch = leaf / trainer->lanes.cuts;
    /* dropout: another mask in every batch */
    uint64_t number = (uint64_t)(step * trainer->order.accumulation + batch);
    Pass pass = {.tape = trainer->tape,
                 .training = true,
                 .divisor = divisor,
                 .step = step,
                 .dropout = {.training = true, .seed = (uint64_t)trainer->recipe->seed, .number = number}};
    TRY(batch_rows(trainer, step, batch, &pass.rows, &pass.n));
    take_cut(trainer, leaf % trainer->lanes.cuts, &pass);
    return run_parts(trainer, pass, sums);
}

/* ---- held-out rows ---- */

/* In file order; a row longer than a batch may be is a batch of its own. */
static void plan_evaluation(const Trainer *trainer, DataPlan *plan) {
    const DataPlan *order = &trainer->order;
    int64_t most = order->batch_tokens > 0 ? MAX(order->batch_tokens, trainer->eval->longest) : 0;
    data_plan_init(plan, &(DataOrder){.dataset = trainer->eval}, order->batch_size, most, 1);
}

static Status begin_evaluation(Trainer *trainer, double *divisor) {
    size_t n = trainer->eval->n, *rows = malloc(n * sizeof *rows);
    if (!rows) return status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    for (size_t i = 0; i < n; i++) rows[i] = i;
    Status status = trainer->objective->begin(trainer, &(Pass){.tape = trainer->tape, .rows = rows, .n = n, .held_out = true}, divisor);
    free(rows);
    return status;
}

/* The sums of a batch are added as a whole, so that the loss does not depend on how a batch is split. */
static Status evaluate_batches(Trainer *trainer, DataPlan *plan, double divisor, size_t **examples, LossSums *sums) {
    int64_t n_batches;
    TRY(data_plan_epoch(plan, 0, &n_batches));
    for (int64_t i = 0; i < n_batches; i++) {
        Pass pass = {.tape = trainer->tape, .held_out = true, .divisor = divisor};
        LossSums batch = {0};
        TRY(data_plan_batch(plan, 0, i, examples, &pass.n));
        pass.rows = *examples;
        work_at("evaluating on held-out rows, batches", (uint64_t)i, (uint64_t)n_batches);
        TRY(run_parts(trainer, pass, &batch));
        sums->loss_sum += batch.loss_sum;
        sums->count += batch.count;
        sums->tokens += batch.tokens;
        sums->loss_tokens += batch.loss_tokens;
    }
    return ST_OK;
}

Status rows_evaluate(Trainer *trainer, LossSums *sums) {
    DataPlan plan;
    size_t *examples = NULL;
    double divisor = (double)trainer->eval->n;
    if (trainer->objective->begin) TRY(begin_evaluation(trainer, &divisor));
    plan_evaluation(trainer, &plan);
    Status status = evaluate_batches(trainer, &plan, divisor, &examples, sums);
    work_end("evaluating on held-out rows, batches");
    free(examples);
    data_plan_release(&plan);
    return status;
}

/* ---- the largest step, for the memory plan ---- */

/* A pass of the objective's preparation or of an evaluation: with checkpointing it uses other parts of the tape's memory than a step. */
static Status forward_only(Trainer *trainer, Tape *meta, const size_t *rows, size_t n, bool held_out) {
    LossSums sums = {0};
    tape_record(meta, false);
    Status status =
        trainer->objective->batch(trainer, &(Pass){.tape = meta, .rows = rows, .n = n, .held_out = held_out, .divisor = (double)n}, &sums);
    tape_record(meta, true);
    if (status == ST_OK) tape_reset(meta);
    return status;
}

static Status largest_evaluation(Trainer *trainer, Tape *meta) {
    DataPlan plan;
    int64_t n_batches;
    size_t *examples = NULL, n;
    plan_evaluation(trainer, &plan);
    Status status = data_plan_epoch(&plan, 0, &n_batches);
    if (status == ST_OK) status = data_plan_largest_part(&plan, n_batches, trainer->part_tokens, &examples, &n);
    if (status == ST_OK) status = forward_only(trainer, meta, examples, n, true);
    free(examples);
    data_plan_release(&plan);
    return status;
}

Status rows_largest(void *context, Tape *meta) {
    Trainer *trainer = context;
    const Objective *objective = trainer->objective;
    Pass pass = {.tape = meta, .training = true, .dropout = {.training = true}};
    LossSums sums = {0};
    if (objective->plan) TRY(objective->plan(trainer, meta)); /* first, because it may load steps, which overwrites trainer->examples */
    TRY(data_plan_largest_part(&trainer->order, trainer->total_steps, trainer->part_tokens, &trainer->examples, &pass.n));
    pass.rows = trainer->examples;
    pass.divisor = (double)pass.n;
    if (objective->prepare) TRY(forward_only(trainer, meta, pass.rows, pass.n, false));
    if (trainer->eval) TRY(largest_evaluation(trainer, meta));
    return objective->batch(trainer, &pass, &sums);
}
