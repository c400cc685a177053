/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop: accumulate, clip, step; evaluate, save, stop. An interrupted and resumed run writes the same bytes. */
#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/run/run_parts.h"
#include "lib/train/stepper.h"
#include "lib/train/train.h"

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

typedef struct Trainer {
    const TrainerConfig *config;
    const Recipe *recipe;
    Params *params;
    Stepper stepper;
    Arena *arena;
    CheckpointItem *items;
    size_t n_items;
    Tensor **best; /* copies of the trained tensors, in list order; NULL without early stopping */
    State state;
    int64_t saved_step; /* of the newest checkpoint; -1 = none */
    bool torn;          /* weights and optimiser state are in the middle of a step and must not be saved */
    double began;       /* clock at the start of this process's training */
    int64_t began_step;
    double seconds_before; /* of earlier processes of this run */
} Trainer;

/* ---- contents of a checkpoint ---- */

static size_t count_trained(const Params *params) {
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++) n += params->items[i].trained;
    return n;
}

static Status add_item(Trainer *trainer, const char *kind, const Param *param, Tensor *tensor) {
    const char *name = arena_printf(trainer->arena, "%s/%s", kind, param->name);
    if (!name) return ST_RESOURCE;
    trainer->items[trainer->n_items++] = (CheckpointItem){name, tensor};
    return ST_OK;
}

static Status copy_of(Trainer *trainer, const Tensor *tensor, Tensor **copy) {
    *copy = tensor_new(trainer->arena, tensor_device(tensor), tensor->dtype, tensor->n_dims, tensor->shape);
    if (!*copy) return ST_RESOURCE;
    tensor_device(tensor)->copy(tensor, *copy);
    return ST_OK;
}

static Status collect_items(Trainer *trainer) {
    static const char *const state_names[OPTIMIZER_MAX_STATES] = {"state0", "state1"};
    size_t n = count_trained(trainer->params), k = 0;
    bool keep_best = trainer->recipe->train_early_stopping > 0;
    trainer->items = arena_alloc(trainer->arena, n * (2 + OPTIMIZER_MAX_STATES) * sizeof *trainer->items);
    trainer->best = keep_best ? arena_zero(trainer->arena, n * sizeof *trainer->best) : NULL;
    if (!trainer->items || (keep_best && !trainer->best)) return ST_RESOURCE;
    if (keep_best) params_expect_copies(trainer->params, 1, trainer->arena);
    for (size_t i = 0; i < trainer->params->n; i++) {
        const Param *param = &trainer->params->items[i];
        if (!param->trained) continue;
        TRY(add_item(trainer, "weight", param, param->tensor));
        for (int s = 0; s < OPTIMIZER_MAX_STATES; s++)
            if (param->state[s]) TRY(add_item(trainer, state_names[s], param, param->state[s]));
        if (!keep_best) continue;
        TRY(copy_of(trainer, param->tensor, &trainer->best[k]));
        TRY(add_item(trainer, "best", param, trainer->best[k++]));
    }
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

static double elapsed(const Trainer *trainer) { return trainer->seconds_before + (clock_seconds() - trainer->began); }

static Status save_checkpoint(Trainer *trainer) {
    if (trainer->saved_step == trainer->state.step) return ST_OK;
    trainer->state.seconds = elapsed(trainer);
    json_t *json = state_to_json(&trainer->state);
    if (!json) return status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    Status status = json_object_set_new(json, "inputs", run_inputs_to_json(trainer->config->task.inputs)) == 0
                        ? ST_OK
                        : status_fail(ST_RESOURCE, "out of memory for a checkpoint");
    if (status == ST_OK)
        status = checkpoint_save(trainer->config->run, trainer->state.step, trainer->items, trainer->n_items, json,
                                 trainer->recipe->train_keep_checkpoints);
    json_decref(json);
    if (status == ST_OK) trainer->saved_step = trainer->state.step;
    return status;
}

static bool last_step(const Trainer *trainer) { return trainer->state.step >= trainer->config->task.total_steps; }

static bool evaluation_due(const Trainer *trainer) {
    int64_t every = trainer->recipe->train_eval_every;
    return trainer->config->task.evaluate && (last_step(trainer) || (every > 0 && trainer->state.step % every == 0));
}

/* A run that was to end with this step and is longer now does what follows the step in a longer run. */
static void go_on(Trainer *trainer) {
    State *state = &trainer->state;
    int64_t patience = trainer->recipe->train_early_stopping;
    if (last_step(trainer)) return;
    state->evaluation_due = state->evaluation_due && evaluation_due(trainer);
    state->stopped = state->stopped || (patience > 0 && state->without_improvement >= patience);
}

static Status load_checkpoint(Trainer *trainer) {
    Run *run = trainer->config->run;
    int64_t step = run_step(run);
    if (step < 0) return ST_OK;
    json_t *json;
    TRY(checkpoint_load(run, step, trainer->items, trainer->n_items, &json));
    Status status = run_check_inputs(run, trainer->config->task.inputs, json);
    if (status == ST_OK) status = state_from_json(json, &trainer->state);
    json_decref(json);
    go_on(trainer);
    trainer->saved_step = step;
    trainer->seconds_before = trainer->state.seconds;
    if (status == ST_OK) run_log(run, "resumed from the checkpoint of step %lld", (long long)step);
    return status;
}

static Status save_whole_step(void *context) {
    Trainer *trainer = context;
    return trainer->state.step > 0 && !trainer->torn ? save_checkpoint(trainer) : ST_OK;
}

static Status interrupted(Trainer *trainer) {
    TRY(save_checkpoint(trainer));
    return run_interrupted(trainer->config->run, trainer->state.step);
}

/* ---- losses and weights that are not finite ---- */

/* Describes the rows of one accumulation step, or of the entire step when `micro` is -1. */
static void describe_rows(const Trainer *trainer, int64_t step, int64_t micro, int64_t n_micro, Str *text) {
    const Task *task = &trainer->config->task;
    if (!task->describe_batch) return;
    if (micro >= 0) {
        task->describe_batch(task->context, step, micro, text);
        return;
    }
    for (int64_t m = 0; m < n_micro && text->len < 400; m++) {
        if (m > 0) str_append(text, ", ");
        task->describe_batch(task->context, step, m, text);
    }
}

static Status not_finite(const Trainer *trainer, const char *what, int64_t micro, int64_t n_micro) {
    const Param *weight = params_nonfinite(trainer->params, false), *gradient = weight ? NULL : params_nonfinite(trainer->params, true);
    int64_t step = trainer->state.step;
    Str rows = {0};
    describe_rows(trainer, step, micro, n_micro, &rows);
    Str text = {0};
    str_printf(&text, "%s is not finite in step %lld", what, (long long)step + 1);
    if (weight) str_printf(&text, ": weight '%s' holds a NaN or an infinity", weight->name);
    if (gradient) str_printf(&text, ": the gradient of '%s' holds a NaN or an infinity", gradient->name);
    if (rows.len > 0) str_printf(&text, "; rows: %s", str_text(&rows));
    status_fail(ST_NUMERIC, "%s", str_text(&text));
    run_log(trainer->config->run, "%s", str_text(&text));
    str_release(&rows);
    str_release(&text);
    return status_hint(ST_NUMERIC, "lower train.learning_rate, add train.warmup_steps, or look at these rows");
}

/* ---- one optimiser step ---- */

typedef struct StepResult {
    LossSums sums;
    double loss, grad_norm, learning_rate, seconds;
} StepResult;

static Status accumulate(Trainer *trainer, StepResult *result, int64_t *n_micro) {
    const TrainerConfig *config = trainer->config;
    const Task *task = &config->task;
    double divisor;
    profile_lap(NULL);
    Status begun = task->begin_step(task->context, trainer->state.step, n_micro, &divisor);
    if (begun == ST_INTERRUPTED) return interrupted(trainer);
    TRY(begun);
    profile_lap("data");
    for (int64_t micro = 0; micro < *n_micro; micro++) {
        if (interrupt_requested()) return interrupted(trainer);
        tape_reset(config->tape);
        LossSums sums = {0};
        TRY(task->micro_batch(task->context, config->tape, trainer->state.step, micro, divisor, &sums));
        if (!isfinite(sums.loss_sum)) return not_finite(trainer, "the loss", micro, *n_micro);
        result->sums.loss_sum += sums.loss_sum;
        result->sums.count += sums.count;
        result->sums.tokens += sums.tokens;
        result->sums.loss_tokens += sums.loss_tokens;
    }
    result->loss = result->sums.loss_sum / divisor;
    return ST_OK;
}

static Status train_step(Trainer *trainer, StepResult *result) {
    double began = clock_seconds();
    int64_t n_micro;
    *result = (StepResult){0};
    TRY(accumulate(trainer, result, &n_micro));
    result->grad_norm = stepper_norm(&trainer->stepper, trainer->params);
    if (!isfinite(result->grad_norm)) return not_finite(trainer, "the gradient", -1, n_micro);
    result->learning_rate = stepper_rate(&trainer->stepper, trainer->state.step);
    TRY(memory_check(ST_OK)); /* rows or gradients may be incomplete */
    trainer->torn = true;
    stepper_update(&trainer->stepper, trainer->params, result->grad_norm, result->learning_rate, trainer->state.step + 1);
    TRY(memory_check(ST_OK));
    trainer->torn = false;
    result->seconds = clock_seconds() - began;
    return ST_OK;
}

static Status write_step(const Trainer *trainer, const StepResult *result) {
    const Task *task = &trainer->config->task;
    const State *state = &trainer->state;
    if (state->step % trainer->recipe->train_log_every != 0 && !last_step(trainer)) return ST_OK;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "step", state->step);
    jw_double(&w, "loss", result->loss);
    jw_double(&w, "grad_norm", result->grad_norm);
    jw_double(&w, "learning_rate", result->learning_rate);
    jw_int(&w, "tokens", result->sums.tokens);
    jw_int(&w, "loss_tokens", result->sums.loss_tokens);
    jw_double(&w, "tokens_per_second", (double)result->sums.tokens / fmax(result->seconds, 1e-9));
    if (task->epoch) jw_double(&w, "epoch", task->epoch(task->context, state->step));
    if (task->write_metrics) task->write_metrics(task->context, false, &w);
    jw_double(&w, "seconds", elapsed(trainer));
    jw_end_object(&w);
    Status status = run_metric(trainer->config->run, str_text(&w.text));
    jw_release(&w);
    return status;
}

static void trainer_report(const Trainer *trainer, const StepResult *result, bool evaluation) {
    const TrainerConfig *config = trainer->config;
    if (!config->on_progress) return;
    int64_t done = trainer->state.step - trainer->began_step, left = config->task.total_steps - trainer->state.step;
    double seconds = clock_seconds() - trainer->began;
    config->on_progress(config->progress_context, &(Progress){
                                                      .step = trainer->state.step,
                                                      .total_steps = config->task.total_steps,
                                                      .loss = result->loss,
                                                      .tokens_per_second = (double)result->sums.tokens / fmax(result->seconds, 1e-9),
                                                      .seconds_left = done > 0 ? seconds / (double)done * (double)left : 0,
                                                      .learning_rate = result->learning_rate,
                                                      .grad_norm = result->grad_norm,
                                                      .memory = memory_peak(),
                                                      .evaluation = evaluation,
                                                      .eval_loss = trainer->state.eval_loss,
                                                  });
}

/* ---- evaluation ---- */

static void keep_best_weights(const Trainer *trainer) {
    size_t k = 0;
    for (size_t i = 0; i < trainer->params->n; i++) {
        const Param *param = &trainer->params->items[i];
        if (param->trained) tensor_device(param->tensor)->copy(param->tensor, trainer->best[k++]);
    }
}

static void trainer_judge(Trainer *trainer) {
    State *state = &trainer->state;
    int64_t patience = trainer->recipe->train_early_stopping;
    if (isnan(state->best_eval_loss) || state->eval_loss < state->best_eval_loss) {
        state->best_eval_loss = state->eval_loss;
        state->best_step = state->step;
        state->without_improvement = 0;
        if (trainer->best) keep_best_weights(trainer);
        return;
    }
    state->without_improvement++;
    if (patience == 0 || state->without_improvement < patience || last_step(trainer)) return;
    state->stopped = true;
    run_log(trainer->config->run, "stopped early: %lld evaluations without improvement since step %lld", (long long)state->without_improvement,
            (long long)state->best_step);
}

static bool wants_metric(const Recipe *recipe, const char *name) {
    for (size_t i = 0; i < recipe->eval_metrics.n; i++)
        if (strcmp(recipe->eval_metrics.items[i], name) == 0) return true;
    return false;
}

static Status write_evaluation(const Trainer *trainer, const LossSums *sums) {
    const Task *task = &trainer->config->task;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "step", trainer->state.step);
    jw_double(&w, "eval_loss", trainer->state.eval_loss);
    if (task->write_metrics)
        task->write_metrics(task->context, true, &w);
    else if (wants_metric(trainer->recipe, "perplexity"))
        jw_double(&w, "eval_perplexity", exp(trainer->state.eval_loss));
    jw_int(&w, "eval_tokens", sums->loss_tokens);
    jw_double(&w, "seconds", elapsed(trainer));
    jw_end_object(&w);
    Status status = run_metric(trainer->config->run, str_text(&w.text));
    jw_release(&w);
    return status;
}

/* Runs the evaluation that is due after a step. An interruption leaves it due, so that a resumed run does it first. */
static Status trainer_evaluate(Trainer *trainer, const StepResult *result) {
    const TrainerConfig *config = trainer->config;
    LossSums sums = {0};
    tape_reset(config->tape);
    tape_record(config->tape, false);
    Status status = config->task.evaluate(config->task.context, config->tape, &sums);
    tape_record(config->tape, true);
    if (status == ST_INTERRUPTED) return interrupted(trainer);
    TRY(memory_check(status));
    trainer->state.eval_loss = sums.loss_sum / sums.count;
    if (!isfinite(trainer->state.eval_loss))
        return status_fail(ST_NUMERIC, "the loss of the evaluation after step %lld is not finite", (long long)trainer->state.step);
    trainer->state.evaluation_due = false;
    trainer_judge(trainer);
    TRY(write_evaluation(trainer, &sums));
    trainer_report(trainer, result, true);
    return ST_OK;
}

static bool save_due(const Trainer *trainer) {
    int64_t every = trainer->recipe->train_save_every;
    return every > 0 && trainer->state.step > trainer->began_step && trainer->state.step % every == 0;
}

/* Saves before the final evaluation, so that a longer run can continue from here. A full disk loses only this checkpoint. */
static Status save_end(Trainer *trainer) {
    Run *run = trainer->config->run;
    if (save_due(trainer)) return save_checkpoint(trainer);
    if (!trainer->recipe->train_save_last || params_nonfinite(trainer->params, false)) return ST_OK;
    if (save_checkpoint(trainer) != ST_OK) run_warn(run, "%s; without it the run cannot be made longer", status_text());
    return ST_OK;
}

/* ---- the run ---- */

static Status trainer_train(Trainer *trainer) {
    State *state = &trainer->state;
    StepResult result = {.loss = state->last_loss};
    for (;;) {
        if (last_step(trainer)) TRY(save_end(trainer));
        if (state->evaluation_due) TRY(trainer_evaluate(trainer, &result));
        if (save_due(trainer)) TRY(save_checkpoint(trainer));
        if (state->stopped || last_step(trainer)) return ST_OK;
        TRY(train_step(trainer, &result));
        if (state->step == 0) state->first_loss = result.loss;
        state->step++;
        state->last_loss = result.loss;
        state->tokens += result.sums.tokens;
        state->loss_tokens += result.sums.loss_tokens;
        state->evaluation_due = evaluation_due(trainer);
        TRY(write_step(trainer, &result));
        trainer_report(trainer, &result, false);
    }
}

static json_t *summary_json(const TrainResult *result) {
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:I, s:f, s:I, s:I, s:b, s:I}", "steps", (json_int_t)result->steps, "first_loss",
                     json_real_or_null(result->first_loss), "last_loss", json_real_or_null(result->last_loss), "eval_loss",
                     json_real_or_null(result->eval_loss), "best_eval_loss", json_real_or_null(result->best_eval_loss), "best_step",
                     (json_int_t)result->best_step, "seconds", result->seconds, "tokens", (json_int_t)result->tokens, "loss_tokens",
                     (json_int_t)result->loss_tokens, "early_stopped", (int)result->early_stopped, "peak_rss_bytes", (json_int_t)memory_peak());
}

static TrainResult result_of(const Trainer *trainer) {
    const State *state = &trainer->state;
    return (TrainResult){
        .steps = state->step,
        .first_loss = state->first_loss,
        .last_loss = state->last_loss,
        .eval_loss = state->eval_loss,
        .best_eval_loss = state->best_eval_loss,
        .best_step = state->best_step,
        .seconds = elapsed(trainer),
        .tokens = state->tokens,
        .loss_tokens = state->loss_tokens,
        .early_stopped = state->stopped,
    };
}

/* Swaps the model's weights with the kept ones: the best evaluation's and the last step's. */
static void swap_best_weights(const Trainer *trainer) {
    size_t k = 0;
    for (size_t i = 0; i < trainer->params->n; i++) {
        const Param *param = &trainer->params->items[i];
        if (param->trained) tensor_swap(param->tensor, trainer->best[k++]);
    }
}

static Status write_result(Trainer *trainer) {
    const TrainerConfig *config = trainer->config;
    bool best = trainer->best && trainer->state.best_step >= 0;
    if (best) swap_best_weights(trainer);
    const Param *bad = params_nonfinite(trainer->params, false);
    Status status = bad ? status_fail(ST_NUMERIC, "weight '%s' holds a NaN or an infinity after step %lld", bad->name, (long long)trainer->state.step)
                        : config->save_result(config->task.context, run_dir(config->run));
    if (best) swap_best_weights(trainer); /* a checkpoint has the last weights, whatever fails from here on */
    if (bad || status != ST_NUMERIC) return status;
    return run_failed(config->run, status, save_whole_step, trainer, &trainer->saved_step); /* a resumed run may use another train.save_dtype */
}

static Status trainer_finish(Trainer *trainer, TrainResult *result) {
    const TrainerConfig *config = trainer->config;
    TRY(write_result(trainer));
    *result = result_of(trainer);
    json_t *summary = summary_json(result);
    Status status = summary ? run_mark_finished(config->run, summary) : status_fail(ST_RESOURCE, "out of memory for the run's summary");
    json_decref(summary);
    return status;
}

Status trainer_load_result(const Run *run, TrainResult *result) {
    json_t *summary;
    TRY(run_summary(run, &summary));
    *result = (TrainResult){.already_finished = true, .best_step = -1};
    Status status = json_get_int(summary, "finished.json", "steps", &result->steps);
    if (status == ST_OK) status = json_get_int(summary, "finished.json", "best_step", &result->best_step);
    if (status == ST_OK) status = json_get_int(summary, "finished.json", "tokens", &result->tokens);
    if (status == ST_OK) status = json_get_int(summary, "finished.json", "loss_tokens", &result->loss_tokens);
    if (status == ST_OK) status = json_get_bool(summary, "finished.json", "early_stopped", &result->early_stopped);
    result->first_loss = json_real_of(summary, "first_loss");
    result->last_loss = json_real_of(summary, "last_loss");
    result->eval_loss = json_real_of(summary, "eval_loss");
    result->best_eval_loss = json_real_of(summary, "best_eval_loss");
    result->seconds = json_real_of(summary, "seconds");
    json_decref(summary);
    return status;
}

static Status trainer_start(Trainer *trainer) {
    TRY(stepper_init(&trainer->stepper, trainer->recipe, trainer->config->task.total_steps));
    TRY(optimizer_init(&trainer->stepper.optimizer, trainer->params, trainer->arena));
    TRY(collect_items(trainer));
    TRY(load_checkpoint(trainer));
    trainer->began = clock_seconds();
    trainer->began_step = trainer->state.step;
    return ST_OK;
}

Status trainer_run(const TrainerConfig *config, TrainResult *result) {
    *result = (TrainResult){.best_step = -1};
    Trainer trainer = {
        .config = config,
        .recipe = config->recipe,
        .params = &config->model->params,
        .arena = arena_new(0),
        .saved_step = -1,
        .state = {.first_loss = not_known, .last_loss = not_known, .eval_loss = not_known, .best_eval_loss = not_known, .best_step = -1},
    };
    if (!trainer.arena) return status_fail(ST_RESOURCE, "out of memory for training");
    Status status = trainer_start(&trainer);
    bool started = status == ST_OK;
    if (started) status = trainer_train(&trainer);
    if (status == ST_OK) status = trainer_finish(&trainer, result);
    if (started && status != ST_OK && status != ST_INTERRUPTED && status != ST_NUMERIC)
        status = run_failed(config->run, status, save_whole_step, &trainer, &trainer.saved_step);
    for (size_t i = 0; i < trainer.params->n; i++) memset(trainer.params->items[i].state, 0, sizeof trainer.params->items[i].state);
    arena_free(trainer.arena);
    return status;
}
