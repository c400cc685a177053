/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a training on rows: accumulate, clip, update; evaluate, keep the best weights, stop early. */
#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "lib/train/rank_records.h"
#include "lib/train/stepper.h"
#include "lib/train/trained_model.h"
#include "lib/train/trainer_parts.h"

#include <math.h>
#include <string.h>

static const double not_known = (double)NAN;

/* Saved in checkpoints, in addition to tensors. Unknown losses are NaN. */
typedef struct RowCounts {
    int64_t tokens, loss_tokens;
    double first_loss, last_loss, eval_loss, best_eval_loss;
    int64_t best_step, without_improvement; /* evaluations since best_step */
} RowCounts;

struct RowSteps {
    Arena *arena;
    Trainer *trainer;
    const Recipe *recipe;
    Run *run;
    Params *params;
    Stepper stepper;
    Accumulator accumulator;
    RankRecord record;
    LossSums *records; /* of each leaf of a step, each followed by the objective's numbers */
    size_t record_size, n_numbers;
    Tensor **best; /* copies of the trained tensors, in list order; NULL without early stopping */
    RowCounts counts;
    bool stopped;     /* early */
    bool interrupted; /* a rank is to end: all do so in their next call */
    /* of one step */
    int64_t step;
    LossSums sums;
    double began, divisor, loss, norm; /* divisor: of its losses */
};

/* ---- the state in checkpoints ---- */

static size_t count_trained(const Params *params) {
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++) n += params->items[i].trained;
    return n;
}

static Status copy_of(RowSteps *s, const Tensor *tensor, Tensor **copy) {
    *copy = tensor_new(s->arena, tensor_device(tensor), tensor->dtype, tensor->n_dims, tensor->shape);
    if (!*copy) return ST_RESOURCE;
    tensor_device(tensor)->copy(tensor, *copy);
    return ST_OK;
}

static Status best_init(RowSteps *s) {
    size_t k = 0;
    if (s->recipe->train_early_stopping <= 0) return ST_OK;
    s->best = arena_zero(s->arena, count_trained(s->params) * sizeof *s->best);
    if (!s->best) return ST_RESOURCE;
    params_expect_copies(s->params, 1, s->arena);
    for (size_t i = 0; i < s->params->n; i++)
        if (s->params->items[i].trained) TRY(copy_of(s, s->params->items[i].tensor, &s->best[k++]));
    return ST_OK;
}

/* A process may have only a part of the optimiser's states. */
static void rows_list_state(void *context, StateList *states) {
    static const char *const kinds[OPTIMIZER_MAX_STATES] = {"state0", "state1"};
    Trainer *trainer = context;
    RowSteps *s = trainer->steps;
    const int n_states = optimizer_find(s->stepper.optimizer.name)->states(&s->stepper.optimizer);
    size_t k = 0;
    for (size_t i = 0; i < s->params->n; i++) {
        const Param *param = &s->params->items[i];
        if (!param->trained) continue;
        state_of_param(states, "weight", param, param->tensor);
        for (int j = 0; j < n_states; j++)
            if (param->divided)
                state_divided(states, kinds[j], param, k, param->state[j]);
            else
                state_of_param(states, kinds[j], param, param->state[j]);
        if (s->best) state_of_param(states, "best", param, s->best[k]);
        k++;
    }
    if (trainer->objective->list_state) trainer->objective->list_state(trainer, states);
    state_count(states, "tokens", &s->counts.tokens);
    state_count(states, "loss_tokens", &s->counts.loss_tokens);
    state_real(states, "first_loss", &s->counts.first_loss);
    state_real(states, "last_loss", &s->counts.last_loss);
    state_real(states, "eval_loss", &s->counts.eval_loss);
    state_real(states, "best_eval_loss", &s->counts.best_eval_loss);
    state_count(states, "best_step", &s->counts.best_step);
    state_count(states, "without_improvement", &s->counts.without_improvement);
}

/* Whether a run ends early after so many steps. */
static bool out_of_patience(const RowSteps *s, int64_t done) {
    const int64_t patience = s->recipe->train_early_stopping;
    return patience > 0 && s->counts.without_improvement >= patience && done < s->trainer->total_steps;
}

static Status rows_resumed(void *context, int64_t done) {
    RowSteps *s = ((Trainer *)context)->steps;
    s->stopped = out_of_patience(s, done);
    return ST_OK;
}

static bool rows_stopped(const void *context) { return ((const Trainer *)context)->steps->stopped; }

/* ---- losses and weights that are not finite ---- */

/* Describes the rows of one batch, or of the entire step when `batch` is -1. */
static void describe_rows(const RowSteps *s, int64_t batch, Str *text) {
    if (batch >= 0) {
        trainer_describe(s->trainer, s->step, batch, text);
        return;
    }
    for (int64_t i = 0; i < s->trainer->n_batches && text->len < 400; i++) {
        if (i > 0) str_append(text, ", ");
        trainer_describe(s->trainer, s->step, i, text);
    }
}

static Status not_finite(const RowSteps *s, const char *what, int64_t batch) {
    const Param *weight = params_nonfinite(s->params, false), *gradient = weight ? NULL : params_nonfinite(s->params, true);
    Str rows = {0};
    describe_rows(s, batch, &rows);
    Str text = {0};
    str_printf(&text, "%s is not finite in step %lld", what, (long long)s->step + 1);
    if (weight) str_printf(&text, ": weight '%s' holds a NaN or an infinity", weight->name);
    if (gradient) str_printf(&text, ": the gradient of '%s' holds a NaN or an infinity", gradient->name);
    if (rows.len > 0) str_printf(&text, "; rows: %s", str_text(&rows));
    status_fail(ST_NUMERIC, "%s", str_text(&text));
    run_log(s->run, "%s", str_text(&text));
    str_release(&rows);
    str_release(&text);
    return status_hint(ST_NUMERIC, "lower train.learning_rate, add train.warmup_steps, or look at these rows");
}

/* ---- one optimiser step ---- */

static LossSums *record_of(const RowSteps *s, int64_t leaf) { return (LossSums *)((char *)s->records + (size_t)leaf * s->record_size); }

static double *numbers_of(const RowSteps *s) {
    size_t n;
    return s->n_numbers ? s->trainer->objective->numbers(s->trainer, &n) : NULL;
}

static void clear_numbers(double *numbers, size_t n) {
    for (size_t i = 0; i < n; i++) numbers[i] = 0;
}

/* Forward and backward of one leaf. Ranks end a step together: see accumulator_vote. */
static Status train_leaf(void *context, int64_t leaf, const TapeWatch *watch) {
    RowSteps *s = context;
    Trainer *trainer = s->trainer;
    LossSums *sums = record_of(s, leaf);
    double *numbers = numbers_of(s);
    if (trainer->ranks == 1 && interrupt_requested()) return ST_INTERRUPTED;
    tape_reset(trainer->tape);
    clear_numbers(numbers, s->n_numbers);
    *sums = (LossSums){0};
    comm_phase(trainer->comm, s->step + 1, "leaf", leaf);
    trainer->watch = watch;
    const double began = clock_seconds(), before = tape_backward_seconds(trainer->tape);
    Status status = rows_train(trainer, s->step, leaf, s->divisor, sums);
    const double backward = tape_backward_seconds(trainer->tape) - before;
    rank_record_add(&s->record, RANK_FORWARD, clock_seconds() - began - backward);
    rank_record_add(&s->record, RANK_BACKWARD, backward);
    trainer->watch = NULL;
    tape_watch(trainer->tape, NULL);
    TRY(status);
    if (numbers) memcpy(sums + 1, numbers, s->n_numbers * sizeof *numbers);
    return isfinite(sums->loss_sum) ? ST_OK : not_finite(s, "the loss", leaf / trainer->lanes.cuts);
}

/* Adds what the leaves gave, in order. */
static void add_records(RowSteps *s, int64_t n_leaves) {
    double *numbers = numbers_of(s);
    clear_numbers(numbers, s->n_numbers);
    s->sums = (LossSums){0};
    for (int64_t leaf = 0; leaf < n_leaves; leaf++) {
        const LossSums *of_leaf = record_of(s, leaf);
        const double *more = (const double *)(of_leaf + 1);
        s->sums.loss_sum += of_leaf->loss_sum;
        s->sums.count += of_leaf->count;
        s->sums.tokens += of_leaf->tokens;
        s->sums.loss_tokens += of_leaf->loss_tokens;
        for (size_t i = 0; i < s->n_numbers; i++) numbers[i] += more[i];
    }
}

static double leaf_seconds(const RankRecord *record) { return record->seconds[RANK_FORWARD] + record->seconds[RANK_BACKWARD]; }

/* The gradients of a step. */
static Status rows_gather(void *context, int64_t step, Metrics *metrics) {
    Trainer *trainer = context;
    RowSteps *s = trainer->steps;
    Leaves leaves = {.run = train_leaf, .context = s};
    (void)metrics;
    if (s->interrupted) return ST_INTERRUPTED;
    s->step = step;
    s->began = clock_seconds();
    profile_lap(NULL);
    TRY(rows_begin(trainer, step, &leaves.n, &s->divisor));
    profile_lap("data");
    leaves.n_lanes = lanes_in(&trainer->lanes, leaves.n);
    const double began = clock_seconds(), before = leaf_seconds(&s->record);
    TRY(accumulator_run(&s->accumulator, &leaves));
    rank_record_add(&s->record, RANK_REDUCE, clock_seconds() - began - (leaf_seconds(&s->record) - before));
    s->interrupted = trainer->ranks > 1 && interrupt_requested();
    TRY(accumulator_vote(&s->accumulator, &leaves, s->records, s->record_size, &s->interrupted));
    add_records(s, leaves.n);
    s->loss = s->sums.loss_sum / s->divisor;
    TRY(accumulator_norm(&s->accumulator, 0, &s->norm));
    return isfinite(s->norm) ? ST_OK : not_finite(s, "the gradient", -1);
}

static void measure_step(const RowSteps *s, double rate, Metrics *metrics) {
    Trainer *trainer = s->trainer;
    metric_set(metrics, "loss", s->loss);
    metric_set(metrics, "grad_norm", s->norm);
    metric_set(metrics, "learning_rate", rate);
    metric_count(metrics, "tokens", s->sums.tokens);
    metric_count(metrics, "loss_tokens", s->sums.loss_tokens);
    metric_set(metrics, "tokens_per_second", (double)s->sums.tokens / fmax(clock_seconds() - s->began, 1e-9));
    metric_set(metrics, "epoch", data_plan_epochs(&trainer->order, s->step + 1));
    if (trainer->objective->metrics) trainer->objective->metrics(trainer, metrics);
    if (trainer->objective->step_metrics) trainer->objective->step_metrics(trainer, metrics);
}

static Status rows_step(void *context, int64_t step, Metrics *metrics) {
    Trainer *trainer = context;
    RowSteps *s = trainer->steps;
    const double rate = stepper_rate(&s->stepper, step);
    const double began = clock_seconds();
    stepper_update(&s->stepper, s->params, s->norm, rate, step + 1);
    const double updated = clock_seconds();
    rank_record_add(&s->record, RANK_OPTIMIZER, updated - began);
    TRY(accumulator_share(&s->accumulator));
    rank_record_add(&s->record, RANK_REDUCE, clock_seconds() - updated);
    s->record.buckets = accumulator_buckets(&s->accumulator);
    TRY(rank_record_write(&s->record, s->run, step + 1));
    if (trainer->objective->updated) trainer->objective->updated(trainer, step + 1);
    if (step == 0) s->counts.first_loss = s->loss;
    s->counts.last_loss = s->loss;
    s->counts.tokens += s->sums.tokens;
    s->counts.loss_tokens += s->sums.loss_tokens;
    measure_step(s, rate, metrics);
    return ST_OK;
}

/* ---- evaluation ---- */

static bool rows_evaluates(const void *context, int64_t done) {
    const Trainer *trainer = context;
    const int64_t every = trainer->recipe->train_eval_every;
    return trainer->eval && (done >= trainer->total_steps || (every > 0 && done % every == 0));
}

static void keep_best_weights(const RowSteps *s) {
    size_t k = 0;
    for (size_t i = 0; i < s->params->n; i++) {
        const Param *param = &s->params->items[i];
        if (param->trained) tensor_device(param->tensor)->copy(param->tensor, s->best[k++]);
    }
}

static void rows_judge(RowSteps *s, int64_t done) {
    RowCounts *counts = &s->counts;
    if (isnan(counts->best_eval_loss) || counts->eval_loss < counts->best_eval_loss) {
        counts->best_eval_loss = counts->eval_loss;
        counts->best_step = done;
        counts->without_improvement = 0;
        if (s->best) keep_best_weights(s);
        return;
    }
    counts->without_improvement++;
    s->stopped = out_of_patience(s, done);
    if (s->stopped)
        run_log(s->run, "stopped early: %lld evaluations without improvement since step %lld", (long long)counts->without_improvement,
                (long long)counts->best_step);
}

static bool wants_metric(const Recipe *recipe, const char *name) {
    for (size_t i = 0; i < recipe->eval_metrics.n; i++)
        if (strcmp(recipe->eval_metrics.items[i], name) == 0) return true;
    return false;
}

/* An interruption leaves the evaluation due, so that a resumed run does it first. */
static Status rows_held_out(void *context, int64_t step, Metrics *metrics) {
    Trainer *trainer = context;
    RowSteps *s = trainer->steps;
    LossSums sums = {0};
    if (s->interrupted) return ST_INTERRUPTED;
    tape_reset(trainer->tape);
    tape_record(trainer->tape, false);
    Status status = rows_evaluate(trainer, &sums);
    tape_record(trainer->tape, true);
    TRY(memory_check(status));
    const double loss = sums.loss_sum / sums.count;
    if (!isfinite(loss)) return status_fail(ST_NUMERIC, "the loss of the evaluation after step %lld is not finite", (long long)step + 1);
    s->counts.eval_loss = loss;
    rows_judge(s, step + 1);
    metric_set(metrics, "loss", loss);
    if (trainer->objective->metrics)
        trainer->objective->metrics(trainer, metrics);
    else if (wants_metric(s->recipe, "perplexity"))
        metric_set(metrics, "perplexity", exp(loss));
    metric_count(metrics, "tokens", sums.loss_tokens);
    return ST_OK;
}

/* ---- the run ---- */

static json_t *rows_summary(void *context, int64_t done) {
    const RowSteps *s = ((Trainer *)context)->steps;
    const RowCounts *counts = &s->counts;
    (void)done;
    return json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:b}", "first_loss", json_real_or_null(counts->first_loss), "last_loss",
                     json_real_or_null(counts->last_loss), "eval_loss", json_real_or_null(counts->eval_loss), "best_eval_loss",
                     json_real_or_null(counts->best_eval_loss), "best_step", (json_int_t)counts->best_step, "tokens", (json_int_t)counts->tokens,
                     "loss_tokens", (json_int_t)counts->loss_tokens, "early_stopped", (int)s->stopped);
}

/* Swaps the model's weights with the kept ones: the best evaluation's and the last step's. */
static void swap_best_weights(const RowSteps *s) {
    size_t k = 0;
    for (size_t i = 0; i < s->params->n; i++) {
        const Param *param = &s->params->items[i];
        if (param->trained) tensor_swap(param->tensor, s->best[k++]);
    }
}

static Status write_files(Trainer *trainer) {
    if (trainer->objective->save) TRY(trainer->objective->save(trainer));
    return trained_model_save(trainer->recipe, trainer->model, run_dir(trainer->run));
}

/* Writes the weights of the best evaluation with early stopping, else the last ones. */
static Status rows_finish(void *context, Run *run) {
    const RowSteps *s = ((Trainer *)context)->steps;
    const bool best = s->best && s->counts.best_step >= 0;
    (void)run;
    if (best) swap_best_weights(s);
    Status status = write_files(context);
    if (best) swap_best_weights(s); /* a checkpoint has the last weights, whatever fails from here on */
    return status;
}

static Status records_init(RowSteps *s) {
    const Trainer *trainer = s->trainer;
    size_t most = (size_t)(s->recipe->train_gradient_accumulation_steps * trainer->lanes.cuts);
    if (trainer->objective->numbers) trainer->objective->numbers(s->trainer, &s->n_numbers);
    s->record_size = sizeof *s->records + s->n_numbers * sizeof(double);
    s->records = arena_zero(s->arena, most * s->record_size);
    return s->records ? ST_OK : ST_RESOURCE;
}

static Status steps_new(Trainer *trainer) {
    Arena *arena = arena_new(0);
    RowSteps *s = trainer->steps = arena ? arena_zero(arena, sizeof *s) : NULL;
    if (!s) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for training");
    }
    *s = (RowSteps){
        .arena = arena,
        .trainer = trainer,
        .recipe = trainer->recipe,
        .run = trainer->run,
        .params = &trainer->model->params,
        .counts = {.first_loss = not_known, .last_loss = not_known, .eval_loss = not_known, .best_eval_loss = not_known, .best_step = -1},
    };
    return ST_OK;
}

static Status rows_start(void *context, Run *run, RunSteps *steps) {
    Trainer *trainer = context;
    trainer->run = run;
    if (trainer->objective->prepare) TRY(trainer->objective->prepare(trainer));
    TRY(steps_new(trainer));
    RowSteps *s = trainer->steps;
    TRY(stepper_init(&s->stepper, s->recipe, trainer->total_steps));
    TRY(optimizer_init(&s->stepper.optimizer, s->params, s->arena));
    TRY(accumulator_init(&s->accumulator, &trainer->division, s->arena));
    rank_record_begin(&s->record, trainer->comm);
    TRY(records_init(s));
    TRY(best_init(s));
    memcpy(steps->inputs, trainer->inputs, sizeof steps->inputs);
    steps->total = trainer->total_steps;
    steps->shards = accumulator_shards(&s->accumulator, 0);
    return ST_OK;
}

static void trainer_release(void *context) {
    Trainer *trainer = context;
    trainer->objective->release(trainer);
    if (trainer->steps) {
        accumulator_release(&trainer->steps->accumulator);
        arena_free(trainer->steps->arena);
    }
    trainer_close(trainer);
}

Status trainer_run(const Objective *objective, void *context, const TrainingConfig *config, TrainResult *result) {
    static const char *const results[] = {"steps",  "first_loss",  "last_loss", "eval_loss", "best_eval_loss",
                                          "tokens", "loss_tokens", "seconds",   NULL};
    static const Shown shown[] = {{.metric = "loss", .label = "loss", .digits = 4}, {.metric = "agreement", .label = "agreement", .digits = 2}, {0}};
    const TrainingKind kind = {.open = trainer_open,
                               .begin = rows_start,
                               .release = trainer_release,
                               .length = trainer_length,
                               .gather = rows_gather,
                               .step = rows_step,
                               .evaluate = rows_held_out,
                               .evaluates = rows_evaluates,
                               .stopped = rows_stopped,
                               .list_state = rows_list_state,
                               .resumed = rows_resumed,
                               .finish = rows_finish,
                               .summary = rows_summary,
                               .results = results,
                               .reader = objective->reader,
                               .shown = shown,
                               .rate = "tokens",
                               .evaluates_apart = true,
                               .memory_shown = true,
                               .has_template = true,
                               .over_ranks = true,
                               .agrees = true};
    Trainer trainer = {.objective = objective,
                       .context = context,
                       .config = config,
                       .recipe = config->recipe,
                       .comm = config->comm,
                       .rank = comm_rank(config->comm),
                       .ranks = comm_size(config->comm)};
    return training_run(&kind, &trainer, &trainer.recipe, config, result);
}
