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

static int64_t part_limit(const Trainer *trainer) {
    const int64_t part = trainer->part_tokens, most = trainer->pass_tokens;
    return part == 0 ? most : most == 0 ? part : MIN(part, most);
}

/* Runs the rows of a batch in parts: rows that together have at most part_limit tokens, at least one row. */
static Status run_parts(Trainer *trainer, Pass pass, LossSums *sums) {
    const Dataset *set = pass.held_out ? trainer->eval : trainer->train;
    const size_t *rows = pass.rows, *end = rows + pass.n;
    const int64_t first_token = pass.dropout.first_token, limit = part_limit(trainer);
    for (pass.rows = rows; pass.rows < end; pass.rows += pass.n) {
        int64_t tokens = dataset_length(set, *pass.rows);
        size_t left = (size_t)(end - pass.rows);
        pass.n = limit > 0 ? 1 : left;
        while (pass.n < left && (tokens += dataset_length(set, pass.rows[pass.n])) <= limit) pass.n++;
        if (pass.held_out && trainer->ranks == 1 && interrupt_requested()) return ST_INTERRUPTED;
        TRY(comm_check(trainer->comm));
        if (pass.training) pass.dropout.first_token = first_token + sums->tokens; /* the same masks however the batch is split */
        if (pass.held_out || pass.rows > rows) tape_reset(pass.tape);
        if (pass.rows + pass.n == end) tape_watch(pass.tape, trainer->watch);
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

/* What a batch gives: its losses, and then the objective's numbers. */
static void read_record(Trainer *trainer, const LossSums *batch, double *record) {
    size_t n = 0;
    const double *numbers = trainer->objective->numbers ? trainer->objective->numbers(trainer, &n) : NULL;
    const double sums[] = {batch->loss_sum, batch->count, (double)batch->tokens, (double)batch->loss_tokens};
    memcpy(record, sums, sizeof sums);
    if (n) memcpy(record + COUNT_OF(sums), numbers, n * sizeof *numbers);
}

static void add_record(Trainer *trainer, const double *record, LossSums *sums) {
    size_t n = 0;
    double *numbers = trainer->objective->numbers ? trainer->objective->numbers(trainer, &n) : NULL;
    sums->loss_sum += record[0];
    sums->count += record[1];
    sums->tokens += (int64_t)record[2];
    sums->loss_tokens += (int64_t)record[3];
    for (size_t i = 0; i < n; i++) numbers[i] += record[4 + i];
}

static void clear_numbers(Trainer *trainer) {
    size_t n = 0;
    double *numbers = trainer->objective->numbers ? trainer->objective->numbers(trainer, &n) : NULL;
    for (size_t i = 0; i < n; i++) numbers[i] = 0;
}

/* Ranks take turns with the batches. An interruption ends the turns of its rank. */
static Status run_batches(Trainer *trainer, DataPlan *plan, int64_t n_batches, double divisor, size_t **examples, double *records, size_t size) {
    for (int64_t i = trainer->rank; i < n_batches; i += trainer->ranks) {
        Pass pass = {.tape = trainer->tape, .held_out = true, .divisor = divisor};
        LossSums batch = {0};
        if (trainer->ranks > 1 && interrupt_requested()) return ST_OK;
        TRY(data_plan_batch(plan, 0, i, examples, &pass.n));
        pass.rows = *examples;
        work_at("evaluating on held-out rows, batches", (uint64_t)i, (uint64_t)n_batches);
        clear_numbers(trainer);
        TRY(run_parts(trainer, pass, &batch));
        read_record(trainer, &batch, records + (size_t)(i / trainer->ranks) * size);
    }
    return ST_OK;
}

/* The sums of a batch are added as a whole and in order, so that the loss depends neither on how a batch is split nor on the ranks. The records of a
 * rank, one for each turn, end with whether the rank is to end. */
static Status evaluate_batches(Trainer *trainer, DataPlan *plan, double divisor, size_t **examples, LossSums *sums) {
    int64_t n_batches;
    size_t n_numbers = 0;
    TRY(data_plan_epoch(plan, 0, &n_batches));
    if (trainer->objective->numbers) trainer->objective->numbers(trainer, &n_numbers);
    const size_t ranks = (size_t)trainer->ranks, turns = ((size_t)n_batches + ranks - 1) / ranks, size = 4 + n_numbers, each = turns * size + 1;
    double *mine = calloc(each, sizeof *mine), *all = ranks > 1 ? malloc(ranks * each * sizeof *all) : mine;
    Status status = mine && all ? ST_OK : status_fail(ST_RESOURCE, "out of memory for an evaluation");
    if (status == ST_OK) status = run_batches(trainer, plan, n_batches, divisor, examples, mine, size);
    if (status == ST_OK && ranks > 1) {
        mine[each - 1] = interrupt_requested();
        status = comm_gather_small(trainer->comm, "evaluation", mine, each * sizeof *mine, all);
        for (size_t r = 0; r < ranks && status == ST_OK; r++)
            if (all[r * each + each - 1] != 0) status = ST_INTERRUPTED;
    }
    clear_numbers(trainer);
    for (size_t i = 0; status == ST_OK && i < (size_t)n_batches; i++) add_record(trainer, all + i % ranks * each + i / ranks * size, sums);
    if (ranks > 1) free(all);
    free(mine);
    return status;
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
    if (status == ST_OK) status = data_plan_largest_part(&plan, n_batches, part_limit(trainer), &examples, &n);
    if (status == ST_OK) status = forward_only(trainer, meta, examples, n, true);
    free(examples);
    data_plan_release(&plan);
    return status;
}

/* Gradients that a tape lends are gone when the next part of a leaf resets it, so with parts all are in memory of their own. */
bool rows_lend(const Trainer *trainer) { return part_limit(trainer) == 0; }

static Status largest_training(Trainer *trainer, const Pass *pass) {
    LossSums sums = {0};
    const TapeWatch *watch = NULL;
    Arena *arena = arena_new(0);
    Status status = arena ? ST_OK : ST_RESOURCE;
    if (status == ST_OK && rows_lend(trainer)) status = accumulator_plan_begin(&trainer->division, arena, &watch);
    tape_watch(pass->tape, watch);
    if (status == ST_OK) status = trainer->objective->batch(trainer, pass, &sums);
    tape_watch(pass->tape, NULL);
    accumulator_plan_end(&trainer->division);
    arena_free(arena);
    return status;
}

Status rows_largest(void *context, Tape *meta) {
    Trainer *trainer = context;
    const Objective *objective = trainer->objective;
    Pass pass = {.tape = meta, .training = true, .dropout = {.training = true}};
    if (objective->plan) TRY(objective->plan(trainer, meta)); /* first, because it may load steps, which overwrites trainer->examples */
    TRY(data_plan_largest_part(&trainer->order, trainer->total_steps, part_limit(trainer), &trainer->examples, &pass.n));
    pass.rows = trainer->examples;
    pass.divisor = (double)pass.n;
    if (objective->prepare) TRY(forward_only(trainer, meta, pass.rows, pass.n, false));
    if (trainer->eval) TRY(largest_evaluation(trainer, meta));
    return largest_training(trainer, &pass);
}
