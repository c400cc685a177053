/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop: accumulate, clip, step; evaluate, save, stop. An interrupted and resumed run writes the same bytes. */
#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/run/run_parts.h"
#include "lib/train/rank_checkpoint.h"
#include "lib/train/rank_records.h"
#include "lib/train/stepper.h"
#include "lib/train/trained_model.h"
#include "lib/train/trainer_parts.h"

#include <math.h>
#include <string.h>

static const double not_known = (double)NAN;

/* The counters of a checkpoint, in addition to its tensors. Unknown losses are NaN, written as null. */
typedef struct State {
    int64_t step; /* steps done */
    int64_t tokens, loss_tokens;
    double first_loss, last_loss, seconds;
    double eval_loss, best_eval_loss;
    int64_t best_step, without_improvement;
    bool evaluation_due, stopped;
} State;

typedef struct Loop {
    Trainer *trainer;
    const Recipe *recipe;
    Run *run;
    Params *params;
    Stepper stepper;
    Accumulator accumulator;
    RankRecord record;
    LossSums *records; /* of each leaf of a step, each followed by the objective's numbers */
    size_t record_size, n_numbers;
    double divisor;   /* of the step's losses */
    bool interrupted; /* a rank is to end after this step */
    Arena *arena;
    CheckpointItem *items;
    size_t n_items;
    RankCheckpoint checkpoint;
    Tensor **best; /* copies of the trained tensors, in list order; NULL without early stopping */
    State state;
    int64_t saved_step; /* of the newest checkpoint; -1 = none */
    bool torn;          /* weights and optimiser state are in the middle of a step and must not be saved */
    double began;       /* clock at the start of this process's training */
    int64_t began_step;
    double seconds_before; /* of earlier processes of this run */
} Loop;

/* ---- contents of a checkpoint ---- */

static size_t count_trained(const Params *params) {
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++) n += params->items[i].trained;
    return n;
}

static Status add_item(Loop *loop, const char *kind, const Param *param, Tensor *tensor) {
    const char *name = arena_printf(loop->arena, "%s/%s", kind, param->name);
    if (!name) return ST_RESOURCE;
    loop->items[loop->n_items++] = (CheckpointItem){.name = name, .tensor = tensor};
    return ST_OK;
}

static Status copy_of(Loop *loop, const Tensor *tensor, Tensor **copy) {
    *copy = tensor_new(loop->arena, tensor_device(tensor), tensor->dtype, tensor->n_dims, tensor->shape);
    if (!*copy) return ST_RESOURCE;
    tensor_device(tensor)->copy(tensor, *copy);
    return ST_OK;
}

/* A state of the optimiser; this process may have only a part of it. */
static Status add_state(Loop *loop, const char *kind, const Param *param, size_t k, Tensor *state) {
    const char *name = arena_printf(loop->arena, "%s/%s", kind, param->name);
    if (!name) return ST_RESOURCE;
    return rank_checkpoint_part(&loop->checkpoint, name, k, state, loop->arena, &loop->items[loop->n_items++]);
}

static Status collect_items(Loop *loop) {
    const Objective *objective = loop->trainer->objective;
    static const char *const state_names[OPTIMIZER_MAX_STATES] = {"state0", "state1"};
    size_t n = count_trained(loop->params), k = 0, place = 0;
    int n_states = optimizer_find(loop->stepper.optimizer.name)->states(&loop->stepper.optimizer);
    bool keep_best = loop->recipe->train_early_stopping > 0;
    loop->items = arena_alloc(loop->arena, (n * (2 + OPTIMIZER_MAX_STATES) + OBJECTIVE_MOST_ITEMS) * sizeof *loop->items);
    loop->best = keep_best ? arena_zero(loop->arena, n * sizeof *loop->best) : NULL;
    if (!loop->items || (keep_best && !loop->best)) return ST_RESOURCE;
    if (keep_best) params_expect_copies(loop->params, 1, loop->arena);
    for (size_t i = 0; i < loop->params->n; i++) {
        const Param *param = &loop->params->items[i];
        if (!param->trained) continue;
        TRY(add_item(loop, "weight", param, param->tensor));
        for (int s = 0; s < n_states; s++)
            TRY((param->divided ? add_state(loop, state_names[s], param, place, param->state[s])
                                : add_item(loop, state_names[s], param, param->state[s])));
        place++;
        if (!keep_best) continue;
        TRY(copy_of(loop, param->tensor, &loop->best[k]));
        TRY(add_item(loop, "best", param, loop->best[k++]));
    }
    if (objective->keep) loop->n_items += objective->keep(loop->trainer, loop->items + loop->n_items);
    return ST_OK;
}

static json_t *state_to_json(const State *state) {
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:f, s:o, s:o, s:I, s:I, s:b, s:b}", "step", (json_int_t)state->step, "tokens",
                     (json_int_t)state->tokens, "loss_tokens", (json_int_t)state->loss_tokens, "first_loss", json_real_or_null(state->first_loss),
                     "last_loss", json_real_or_null(state->last_loss), "seconds", state->seconds, "eval_loss", json_real_or_null(state->eval_loss),
                     "best_eval_loss", json_real_or_null(state->best_eval_loss), "best_step", (json_int_t)state->best_step, "without_improvement",
                     (json_int_t)state->without_improvement, "evaluation_due", (int)state->evaluation_due, "stopped", (int)state->stopped);
}

static Status state_from_json(const json_t *json, State *state) {
    static const char where[] = "state.json";
    TRY(json_get_int(json, where, "step", &state->step));
    TRY(json_get_int(json, where, "tokens", &state->tokens));
    TRY(json_get_int(json, where, "loss_tokens", &state->loss_tokens));
    TRY(json_get_int(json, where, "best_step", &state->best_step));
    TRY(json_get_int(json, where, "without_improvement", &state->without_improvement));
    TRY(json_get_bool(json, where, "evaluation_due", &state->evaluation_due));
    TRY(json_get_bool(json, where, "stopped", &state->stopped));
    TRY(json_get_double(json, where, "seconds", &state->seconds));
    state->first_loss = json_real_of(json, "first_loss");
    state->last_loss = json_real_of(json, "last_loss");
    state->eval_loss = json_real_of(json, "eval_loss");
    state->best_eval_loss = json_real_of(json, "best_eval_loss");
    return ST_OK;
}

static double elapsed(const Loop *loop) { return loop->seconds_before + (clock_seconds() - loop->began); }

static Status save_checkpoint(Loop *loop) {
    if (loop->saved_step == loop->state.step) return ST_OK;
    loop->state.seconds = elapsed(loop);
    json_t *json = state_to_json(&loop->state);
    if (!json) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = json_object_set_new(json, "inputs", run_inputs_to_json(loop->trainer->inputs)) == 0
                        ? ST_OK
                        : status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    if (status == ST_OK) status = rank_checkpoint_save(&loop->checkpoint, loop->state.step, json, loop->recipe->train_keep_checkpoints);
    json_decref(json);
    if (status == ST_OK) loop->saved_step = loop->state.step;
    return status;
}

static bool last_step(const Loop *loop) { return loop->state.step >= loop->trainer->total_steps; }

static bool evaluation_due(const Loop *loop) {
    int64_t every = loop->recipe->train_eval_every;
    return loop->trainer->eval && (last_step(loop) || (every > 0 && loop->state.step % every == 0));
}

/* A run that was to end with this step and is longer now does what follows the step in a longer run. */
static void go_on(Loop *loop) {
    State *state = &loop->state;
    int64_t patience = loop->recipe->train_early_stopping;
    if (last_step(loop)) return;
    state->evaluation_due = state->evaluation_due && evaluation_due(loop);
    state->stopped = state->stopped || (patience > 0 && state->without_improvement >= patience);
}

static Status load_checkpoint(Loop *loop) {
    Run *run = loop->run;
    int64_t step;
    json_t *json;
    TRY(rank_checkpoint_load(&loop->checkpoint, &step, &json));
    if (step < 0) return ST_OK;
    Status status = run_check_inputs(run, loop->trainer->inputs, json);
    if (status == ST_OK) status = state_from_json(json, &loop->state);
    json_decref(json);
    go_on(loop);
    loop->saved_step = step;
    loop->seconds_before = loop->state.seconds;
    if (status == ST_OK) run_log(run, "resumed from the checkpoint of step %lld", (long long)step);
    return status;
}

/* After a failure; other ranks may not answer any more. */
static Status save_whole_step(void *context) {
    Loop *loop = context;
    if (loop->trainer->ranks > 1 && loop->trainer->division.divided) return ST_OK;
    loop->checkpoint.comm = NULL;
    return loop->state.step > 0 && !loop->torn ? save_checkpoint(loop) : ST_OK;
}

static Status interrupted(Loop *loop) {
    TRY(save_checkpoint(loop));
    return run_interrupted(loop->run, loop->state.step);
}

/* ---- losses and weights that are not finite ---- */

/* Describes the rows of one batch, or of the entire step when `batch` is -1. */
static void describe_rows(const Loop *loop, int64_t step, int64_t batch, Str *text) {
    if (batch >= 0) {
        trainer_describe(loop->trainer, step, batch, text);
        return;
    }
    for (int64_t i = 0; i < loop->trainer->n_batches && text->len < 400; i++) {
        if (i > 0) str_append(text, ", ");
        trainer_describe(loop->trainer, step, i, text);
    }
}

static Status not_finite(const Loop *loop, const char *what, int64_t batch) {
    const Param *weight = params_nonfinite(loop->params, false), *gradient = weight ? NULL : params_nonfinite(loop->params, true);
    int64_t step = loop->state.step;
    Str rows = {0};
    describe_rows(loop, step, batch, &rows);
    Str text = {0};
    str_printf(&text, "%s is not finite in step %lld", what, (long long)step + 1);
    if (weight) str_printf(&text, ": weight '%s' holds a NaN or an infinity", weight->name);
    if (gradient) str_printf(&text, ": the gradient of '%s' holds a NaN or an infinity", gradient->name);
    if (rows.len > 0) str_printf(&text, "; rows: %s", str_text(&rows));
    status_fail(ST_NUMERIC, "%s", str_text(&text));
    run_log(loop->run, "%s", str_text(&text));
    str_release(&rows);
    str_release(&text);
    return status_hint(ST_NUMERIC, "lower train.learning_rate, add train.warmup_steps, or look at these rows");
}

/* ---- one optimiser step ---- */

typedef struct StepResult {
    LossSums sums;
    double loss, seconds;
    Metrics metrics;
} StepResult;

static LossSums *record_of(const Loop *loop, int64_t leaf) { return (LossSums *)((char *)loop->records + (size_t)leaf * loop->record_size); }

static double *numbers_of(const Loop *loop) {
    size_t n;
    return loop->n_numbers ? loop->trainer->objective->numbers(loop->trainer, &n) : NULL;
}

static void clear_numbers(double *numbers, size_t n) {
    for (size_t i = 0; i < n; i++) numbers[i] = 0;
}

/* Forward and backward of one leaf. Ranks end a step together: see accumulator_vote. */
static Status train_leaf(void *context, int64_t leaf, const TapeWatch *watch) {
    Loop *loop = context;
    Trainer *trainer = loop->trainer;
    LossSums *sums = record_of(loop, leaf);
    double *numbers = numbers_of(loop);
    if (trainer->ranks == 1 && interrupt_requested()) return ST_INTERRUPTED;
    tape_reset(trainer->tape);
    clear_numbers(numbers, loop->n_numbers);
    *sums = (LossSums){0};
    comm_phase(trainer->comm, loop->state.step + 1, "leaf", leaf);
    trainer->watch = watch;
    const double began = clock_seconds(), before = tape_backward_seconds(trainer->tape);
    Status status = rows_train(trainer, loop->state.step, leaf, loop->divisor, sums);
    const double backward = tape_backward_seconds(trainer->tape) - before;
    rank_record_add(&loop->record, RANK_FORWARD, clock_seconds() - began - backward);
    rank_record_add(&loop->record, RANK_BACKWARD, backward);
    trainer->watch = NULL;
    tape_watch(trainer->tape, NULL);
    TRY(status);
    if (numbers) memcpy(sums + 1, numbers, loop->n_numbers * sizeof *numbers);
    return isfinite(sums->loss_sum) ? ST_OK : not_finite(loop, "the loss", leaf / trainer->lanes.cuts);
}

/* Adds what the leaves gave, in order. */
static void add_records(Loop *loop, int64_t n_leaves, LossSums *sums) {
    double *numbers = numbers_of(loop);
    clear_numbers(numbers, loop->n_numbers);
    for (int64_t leaf = 0; leaf < n_leaves; leaf++) {
        const LossSums *of_leaf = record_of(loop, leaf);
        const double *more = (const double *)(of_leaf + 1);
        sums->loss_sum += of_leaf->loss_sum;
        sums->count += of_leaf->count;
        sums->tokens += of_leaf->tokens;
        sums->loss_tokens += of_leaf->loss_tokens;
        for (size_t i = 0; i < loop->n_numbers; i++) numbers[i] += more[i];
    }
}

static double leaf_seconds(const RankRecord *record) { return record->seconds[RANK_FORWARD] + record->seconds[RANK_BACKWARD]; }

static Status accumulate(Loop *loop, StepResult *result) {
    Trainer *trainer = loop->trainer;
    Leaves leaves = {.run = train_leaf, .context = loop};
    profile_lap(NULL);
    Status begun = rows_begin(trainer, loop->state.step, &leaves.n, &loop->divisor);
    if (begun == ST_INTERRUPTED) return interrupted(loop);
    TRY(begun);
    profile_lap("data");
    leaves.n_lanes = lanes_in(&trainer->lanes, leaves.n);
    const double began = clock_seconds(), before = leaf_seconds(&loop->record);
    Status status = accumulator_run(&loop->accumulator, &leaves);
    rank_record_add(&loop->record, RANK_REDUCE, clock_seconds() - began - (leaf_seconds(&loop->record) - before));
    if (status == ST_INTERRUPTED) return interrupted(loop);
    TRY(status);
    loop->interrupted = trainer->ranks > 1 && interrupt_requested();
    TRY(accumulator_vote(&loop->accumulator, &leaves, loop->records, loop->record_size, &loop->interrupted));
    add_records(loop, leaves.n, &result->sums);
    result->loss = result->sums.loss_sum / loop->divisor;
    return ST_OK;
}

/* state->step has been counted up. */
static void measure_step(const Loop *loop, StepResult *result, double norm, double rate) {
    Trainer *trainer = loop->trainer;
    Metrics *metrics = &result->metrics;
    metric_set(metrics, "loss", result->loss);
    metric_set(metrics, "grad_norm", norm);
    metric_set(metrics, "learning_rate", rate);
    metric_count(metrics, "tokens", result->sums.tokens);
    metric_count(metrics, "loss_tokens", result->sums.loss_tokens);
    metric_set(metrics, "tokens_per_second", (double)result->sums.tokens / fmax(result->seconds, 1e-9));
    metric_set(metrics, "epoch", data_plan_epochs(&trainer->order, loop->state.step));
    if (trainer->objective->metrics) trainer->objective->metrics(trainer, metrics);
    if (trainer->objective->step_metrics) trainer->objective->step_metrics(trainer, metrics);
}

static Status train_step(Loop *loop, StepResult *result) {
    State *state = &loop->state;
    double began = clock_seconds();
    *result = (StepResult){.metrics.n = 0};
    TRY(accumulate(loop, result));
    double norm, rate = stepper_rate(&loop->stepper, state->step), summed = clock_seconds();
    TRY(accumulator_norm(&loop->accumulator, 0, &norm));
    if (!isfinite(norm)) return not_finite(loop, "the gradient", -1);
    TRY(memory_check(ST_OK)); /* rows or gradients may be incomplete */
    loop->torn = true;
    stepper_update(&loop->stepper, loop->params, norm, rate, state->step + 1);
    const double updated = clock_seconds();
    rank_record_add(&loop->record, RANK_OPTIMIZER, updated - summed);
    TRY(accumulator_share(&loop->accumulator));
    rank_record_add(&loop->record, RANK_REDUCE, clock_seconds() - updated);
    if (loop->trainer->objective->updated) loop->trainer->objective->updated(loop->trainer, state->step + 1);
    TRY(memory_check(ST_OK));
    loop->torn = false;
    result->seconds = clock_seconds() - began;
    if (state->step == 0) state->first_loss = result->loss;
    state->step++;
    state->last_loss = result->loss;
    state->tokens += result->sums.tokens;
    state->loss_tokens += result->sums.loss_tokens;
    state->evaluation_due = evaluation_due(loop);
    measure_step(loop, result, norm, rate);
    return ST_OK;
}

static Status write_line(const Loop *loop, const Metrics *metrics, const char *prefix) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "step", loop->state.step);
    metrics_write(&w, metrics, prefix);
    jw_double(&w, "seconds", elapsed(loop));
    jw_end_object(&w);
    Status status = run_metric(loop->run, str_text(&w.text));
    jw_release(&w);
    return status;
}

static Status write_step(const Loop *loop, const StepResult *result) {
    bool due = loop->state.step % loop->recipe->train_log_every == 0 || last_step(loop);
    return due ? write_line(loop, &result->metrics, "") : ST_OK;
}

static void report_progress(const Loop *loop, const StepResult *result, const Metrics *evaluation) {
    static const Shown shown[] = {{.metric = "loss", .label = "loss", .digits = 4}, {0}};
    const TrainingConfig *config = loop->trainer->config;
    if (!config->on_progress) return;
    int64_t total = loop->trainer->total_steps, done = loop->state.step - loop->began_step, left = total - loop->state.step;
    double seconds = clock_seconds() - loop->began;
    config->on_progress(config->context, &(Progress){
                                             .step = loop->state.step,
                                             .total = total,
                                             .metrics = evaluation ? evaluation : &result->metrics,
                                             .evaluation = evaluation != NULL,
                                             .shown = shown,
                                             .rate = "tokens",
                                             .per_second = (double)result->sums.tokens / fmax(result->seconds, 1e-9),
                                             .seconds_left = done > 0 ? seconds / (double)done * (double)left : 0,
                                             .memory = memory_peak(),
                                         });
}

/* ---- evaluation ---- */

static void keep_best_weights(const Loop *loop) {
    size_t k = 0;
    for (size_t i = 0; i < loop->params->n; i++) {
        const Param *param = &loop->params->items[i];
        if (param->trained) tensor_device(param->tensor)->copy(param->tensor, loop->best[k++]);
    }
}

static void loop_judge(Loop *loop) {
    State *state = &loop->state;
    int64_t patience = loop->recipe->train_early_stopping;
    if (isnan(state->best_eval_loss) || state->eval_loss < state->best_eval_loss) {
        state->best_eval_loss = state->eval_loss;
        state->best_step = state->step;
        state->without_improvement = 0;
        if (loop->best) keep_best_weights(loop);
        return;
    }
    state->without_improvement++;
    if (patience == 0 || state->without_improvement < patience || last_step(loop)) return;
    state->stopped = true;
    run_log(loop->run, "stopped early: %lld evaluations without improvement since step %lld", (long long)state->without_improvement,
            (long long)state->best_step);
}

static bool wants_metric(const Recipe *recipe, const char *name) {
    for (size_t i = 0; i < recipe->eval_metrics.n; i++)
        if (strcmp(recipe->eval_metrics.items[i], name) == 0) return true;
    return false;
}

static void measure_evaluation(const Loop *loop, const LossSums *sums, Metrics *metrics) {
    Trainer *trainer = loop->trainer;
    metric_set(metrics, "loss", loop->state.eval_loss);
    if (trainer->objective->metrics)
        trainer->objective->metrics(trainer, metrics);
    else if (wants_metric(loop->recipe, "perplexity"))
        metric_set(metrics, "perplexity", exp(loop->state.eval_loss));
    metric_count(metrics, "tokens", sums->loss_tokens);
}

/* Runs the evaluation that is due after a step. An interruption leaves it due, so that a resumed run does it first. */
static Status loop_evaluate(Loop *loop, const StepResult *result) {
    Tape *tape = loop->trainer->tape;
    LossSums sums = {0};
    Metrics metrics = {.n = 0};
    tape_reset(tape);
    tape_record(tape, false);
    Status status = rows_evaluate(loop->trainer, &sums);
    tape_record(tape, true);
    if (status == ST_INTERRUPTED) return interrupted(loop);
    TRY(memory_check(status));
    loop->state.eval_loss = sums.loss_sum / sums.count;
    if (!isfinite(loop->state.eval_loss))
        return status_fail(ST_NUMERIC, "the loss of the evaluation after step %lld is not finite", (long long)loop->state.step);
    loop->state.evaluation_due = false;
    loop_judge(loop);
    measure_evaluation(loop, &sums, &metrics);
    TRY(write_line(loop, &metrics, "eval_"));
    report_progress(loop, result, &metrics);
    return ST_OK;
}

static bool save_due(const Loop *loop) {
    int64_t every = loop->recipe->train_save_every;
    return every > 0 && loop->state.step > loop->began_step && loop->state.step % every == 0;
}

/* Saves before the final evaluation, so that a longer run can continue from here. A full disk loses only this checkpoint. */
static Status save_end(Loop *loop) {
    if (save_due(loop)) return save_checkpoint(loop);
    if (!loop->recipe->train_save_last || params_nonfinite(loop->params, false)) return ST_OK;
    if (save_checkpoint(loop) != ST_OK) run_warn(loop->run, "%s; without it the run cannot be made longer", status_text());
    return ST_OK;
}

/* ---- the run ---- */

static Status loop_train(Loop *loop) {
    State *state = &loop->state;
    StepResult result = {.loss = state->last_loss};
    for (;;) {
        if (last_step(loop)) TRY(save_end(loop));
        if (state->evaluation_due) TRY(loop_evaluate(loop, &result));
        if (save_due(loop)) TRY(save_checkpoint(loop));
        if (state->stopped || last_step(loop)) return ST_OK;
        TRY(train_step(loop, &result));
        TRY(rank_record_write(&loop->record, loop->run, state->step));
        TRY(write_step(loop, &result));
        report_progress(loop, &result, NULL);
        if (loop->interrupted) return interrupted(loop);
    }
}

static json_t *summary_json(const Loop *loop) {
    const State *state = &loop->state;
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:I, s:f, s:I, s:I, s:b, s:I}", "steps", (json_int_t)state->step, "first_loss",
                     json_real_or_null(state->first_loss), "last_loss", json_real_or_null(state->last_loss), "eval_loss",
                     json_real_or_null(state->eval_loss), "best_eval_loss", json_real_or_null(state->best_eval_loss), "best_step",
                     (json_int_t)state->best_step, "seconds", elapsed(loop), "tokens", (json_int_t)state->tokens, "loss_tokens",
                     (json_int_t)state->loss_tokens, "early_stopped", (int)state->stopped, "peak_rss_bytes", (json_int_t)memory_peak());
}

/* Swaps the model's weights with the kept ones: the best evaluation's and the last step's. */
static void swap_best_weights(const Loop *loop) {
    size_t k = 0;
    for (size_t i = 0; i < loop->params->n; i++) {
        const Param *param = &loop->params->items[i];
        if (param->trained) tensor_swap(param->tensor, loop->best[k++]);
    }
}

static Status write_files(Trainer *trainer) {
    if (trainer->objective->save) TRY(trainer->objective->save(trainer));
    return trained_model_save(trainer->recipe, trainer->model, run_dir(trainer->run));
}

static Status write_result(Loop *loop) {
    bool best = loop->best && loop->state.best_step >= 0;
    if (best) swap_best_weights(loop);
    const Param *bad = params_nonfinite(loop->params, false);
    Status status = ST_OK;
    if (bad)
        status = status_fail(ST_NUMERIC, "weight '%s' holds a NaN or an infinity after step %lld", bad->name, (long long)loop->state.step);
    else if (run_writes(loop->run))
        status = write_files(loop->trainer);
    if (best) swap_best_weights(loop); /* a checkpoint has the last weights, whatever fails from here on */
    if (bad || status != ST_NUMERIC) return status;
    return run_failed(loop->run, status, save_whole_step, loop, &loop->saved_step); /* a resumed run may use another train.save_dtype */
}

static Status loop_finish(Loop *loop) {
    TRY(write_result(loop));
    json_t *summary = summary_json(loop);
    Status status = summary ? run_mark_finished(loop->run, summary) : status_fail(ST_RESOURCE, "out of memory for the run's summary");
    json_decref(summary);
    return status;
}

static Status records_init(Loop *loop) {
    const Trainer *trainer = loop->trainer;
    size_t most = (size_t)(loop->recipe->train_gradient_accumulation_steps * trainer->lanes.cuts);
    if (trainer->objective->numbers) trainer->objective->numbers(loop->trainer, &loop->n_numbers);
    loop->record_size = sizeof *loop->records + loop->n_numbers * sizeof(double);
    loop->records = arena_zero(loop->arena, most * loop->record_size);
    return loop->records ? ST_OK : ST_RESOURCE;
}

static Status loop_start(Loop *loop) {
    TRY(stepper_init(&loop->stepper, loop->recipe, loop->trainer->total_steps));
    TRY(optimizer_init(&loop->stepper.optimizer, loop->params, loop->arena));
    TRY(accumulator_init(&loop->accumulator, &loop->trainer->division, loop->arena));
    TRY(records_init(loop));
    loop->checkpoint = (RankCheckpoint){.comm = loop->trainer->comm, .shards = accumulator_shards(&loop->accumulator, 0), .run = loop->run};
    TRY(collect_items(loop));
    loop->checkpoint.items = loop->items;
    loop->checkpoint.n = loop->n_items;
    TRY(load_checkpoint(loop));
    rank_record_begin(&loop->record, loop->trainer->comm);
    loop->began = clock_seconds();
    loop->began_step = loop->state.step;
    return ST_OK;
}

Status trainer_loop(Trainer *trainer) {
    Loop loop = {
        .trainer = trainer,
        .recipe = trainer->recipe,
        .run = trainer->run,
        .params = &trainer->model->params,
        .arena = arena_new(0),
        .saved_step = -1,
        .state = {.first_loss = not_known, .last_loss = not_known, .eval_loss = not_known, .best_eval_loss = not_known, .best_step = -1},
    };
    if (!loop.arena) return status_fail(ST_RESOURCE, "out of memory for training");
    Status status = loop_start(&loop);
    bool started = status == ST_OK;
    if (started) status = loop_train(&loop);
    if (status == ST_OK) status = loop_finish(&loop);
    if (status != ST_OK && status != ST_INTERRUPTED) (void)comm_fail(trainer->comm, status); /* before the memory of messages is freed */
    if (started && status != ST_OK && status != ST_INTERRUPTED && status != ST_NUMERIC)
        status = run_failed(loop.run, status, save_whole_step, &loop, &loop.saved_step);
    for (size_t i = 0; i < loop.params->n; i++) memset(loop.params->items[i].state, 0, sizeof loop.params->items[i].state);
    accumulator_release(&loop.accumulator);
    arena_free(loop.arena);
    return status;
}
