/* From a recipe to steps over pairs. */
#include "rl/pair_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/train/report.h"

/* ---- which rows a step takes ---- */

size_t pair_run_rows(PairRun *run, int64_t step) {
    int64_t n = (int64_t)run->train->n, epoch = step / run->steps_per_epoch, first = step % run->steps_per_epoch * run->rows_per_step;
    int64_t count = MIN(run->rows_per_step, n - first);
    RngKey key = rng_key((uint64_t)run->recipe->seed, RNG_SHUFFLE, (uint64_t)epoch);
    for (int64_t i = 0; i < count; i++) run->rows[i] = run->recipe->data_shuffle ? (size_t)rng_permute(key, (uint64_t)n, (uint64_t)(first + i)) : (size_t)(first + i);
    return (size_t)count;
}

static double epoch_after(void *context, int64_t steps) {
    const PairRun *run = context;
    return (double)steps / (double)run->steps_per_epoch;
}

static size_t micro_rows(PairRun *run, int64_t step, int64_t micro, const size_t **rows) {
    size_t n = pair_run_rows(run, step), size = (size_t)run->recipe->train_batch_size, first = (size_t)micro * size;
    *rows = run->rows + first;
    return MIN(size, n - first);
}

static void describe_batch(void *context, int64_t step, int64_t micro, Str *text) {
    enum { SHOWN = 8 };
    PairRun *run = context;
    const size_t *rows;
    size_t n = micro_rows(run, step, micro, &rows);
    for (size_t i = 0; i < MIN(n, (size_t)SHOWN); i++) {
        if (i > 0) str_append(text, ", ");
        pairs_where(run->train, rows[i], text);
    }
    if (n > SHOWN) str_printf(text, " and %zu more", n - SHOWN);
}

/* ---- what the trainer asks ---- */

static Status begin_step(void *context, int64_t step, int64_t *micro_batches, double *divisor) {
    PairRun *run = context;
    int64_t size = run->recipe->train_batch_size;
    size_t n = pair_run_rows(run, step);
    run->numbers = (PairNumbers){0};
    *micro_batches = ((int64_t)n + size - 1) / size;
    *divisor = (double)n;
    return run->objective->begin ? run->objective->begin(run, run->tape, run->train, run->rows, n) : ST_OK;
}

static Status micro_batch(void *context, Tape *tape, int64_t step, int64_t micro, double divisor, LossSums *sums) {
    PairRun *run = context;
    const size_t *rows;
    size_t n = micro_rows(run, step, micro, &rows);
    uint64_t number = (uint64_t)(step * run->recipe->train_gradient_accumulation_steps + micro); /* dropout: another mask in every accumulation step */
    run->step = (StepContext){.training = true, .seed = (uint64_t)run->recipe->seed, .number = number};
    Status status = run->objective->batch(run, tape, run->train, rows, n, true, divisor, sums);
    run->step = (StepContext){0};
    return status;
}

typedef struct SizedRow { int64_t tokens; size_t row; } SizedRow;

static int longer(const void *a, const void *b) {
    int64_t x = ((const SizedRow *)a)->tokens, y = ((const SizedRow *)b)->tokens;
    return (x < y) - (x > y);
}

/* No batch has more tokens than the longest rows together. */
static Status largest_batch(void *context, Tape *tape) {
    PairRun *run = context;
    const Pairs *pairs = run->train;
    size_t n = MIN(pairs->n, (size_t)run->recipe->train_batch_size);
    SizedRow *sized = malloc(pairs->n * sizeof *sized);
    if (!sized) return status_fail(ST_RESOURCE, "out of memory for %zu rows", pairs->n);
    for (size_t i = 0; i < pairs->n; i++) sized[i] = (SizedRow){pair_row_tokens(&pairs->rows[i]), i};
    qsort(sized, pairs->n, sizeof *sized, longer);
    for (size_t i = 0; i < n; i++) run->rows[i] = sized[i].row;
    free(sized);
    LossSums sums = {0};
    run->step = (StepContext){.training = true};
    Status status = run->objective->batch(run, tape, pairs, run->rows, n, true, (double)n, &sums);
    run->step = (StepContext){0};
    return status;
}

static Status evaluate_rows(PairRun *run, Tape *tape, size_t *rows, LossSums *sums) {
    const Pairs *pairs = run->eval;
    size_t size = (size_t)run->recipe->train_batch_size;
    for (size_t i = 0; i < pairs->n; i++) rows[i] = i;
    if (run->objective->begin) TRY(run->objective->begin(run, tape, pairs, rows, pairs->n));
    for (size_t i = 0; i < pairs->n; i += size) {
        if (interrupt_requested()) return ST_INTERRUPTED;
        tape_reset(tape);
        TRY(run->objective->batch(run, tape, pairs, rows + i, MIN(size, pairs->n - i), false, (double)pairs->n, sums));
    }
    sums->count = (double)pairs->n;
    return ST_OK;
}

static Status evaluate(void *context, Tape *tape, LossSums *sums) {
    PairRun *run = context;
    size_t *rows = malloc(run->eval->n * sizeof *rows);
    if (!rows) return status_fail(ST_RESOURCE, "out of memory for %zu rows", run->eval->n);
    run->numbers = (PairNumbers){0};
    Status status = evaluate_rows(run, tape, rows, sums);
    free(rows);
    return status;
}

static void write_metrics(void *context, bool evaluation, JsonWriter *w) {
    const PairRun *run = context;
    run->objective->write_metrics(run, evaluation ? "eval_" : "", w);
}

static Status save_result(void *context, const char *run_dir) {
    PairRun *run = context;
    return run->objective->save ? run->objective->save(run, run_dir) : trained_model_save(run->recipe, run->model, run_dir);
}

/* ---- rows ---- */

/* The day that the run began: rows must not change when it is resumed on another one. */
static Status first_day(const PairRun *run, char day[32]) {
    const Recipe *recipe = run->recipe;
    const char *path = path_join(recipe->arena, recipe->output ? recipe->output : "", "recipe.yaml");
    time_t now = time(NULL);
    struct tm today;
    Recipe *before;
    if (!path) return ST_RESOURCE;
    localtime_r(&now, &today);
    strftime(day, 32, "%Y-%m-%d", &today);
    if (!run->config->resume || !file_exists(path)) return ST_OK;
    TRY(recipe_read(path, NULL, 0, &before));
    if (before->data_now) {
        size_t len = MIN(strlen(before->data_now), (size_t)31);
        memcpy(day, before->data_now, len);
        day[len] = '\0';
    }
    recipe_free(before);
    return ST_OK;
}

static Status open_text(PairRun *run) {
    const Recipe *recipe = run->recipe;
    char day[32];
    TRY(first_day(run, day));
    TRY(tokenizer_load_if_any(recipe->model_path, &run->tokenizer));
    TRY(chat_open(recipe->model_path, recipe->model_chat_template, recipe->data_now, run->tokenizer, &run->chat));
    if (recipe->data_now || !chat_writes_date(run->chat)) return ST_OK;
    TRY(chat_set_now(run->chat, day));
    run->dated = *recipe;
    run->dated.data_now = arena_strdup(recipe->arena, day);
    run->recipe = &run->dated;
    return run->dated.data_now ? ST_OK : ST_RESOURCE;
}

static Status load_rows(PairRun *run) {
    TRY(open_text(run));
    const Recipe *recipe = run->recipe;
    PairSource source = {&run->model->config, run->tokenizer, run->chat, run->objective->unpaired, run->objective->reader};
    TRY(pairs_load(recipe, "data.train", recipe->data_train, &source, &run->train));
    const Yaml *eval = recipe->data_eval ? recipe->data_eval : recipe->eval_data;
    if (eval) return pairs_load(recipe, recipe->data_eval ? "data.eval" : "eval.data", eval, &source, &run->eval);
    if (recipe->data_eval_split == 0 && recipe->train_eval_every > 0) log_message(LOG_WARNING, "'train.eval_every' does nothing: there is neither 'data.eval' nor 'data.eval_split'");
    return recipe->data_eval_split > 0 ? pairs_split(run->train, recipe->data_eval_split, (uint64_t)recipe->seed, &run->eval) : ST_OK;
}

static Status plan_steps(PairRun *run) {
    const Recipe *recipe = run->recipe;
    if (recipe->train_batch_tokens > 0) return status_hint(status_fail(ST_CONFIG, "'train.batch_tokens' has no place in runs over pairs"), "say how many pairs a batch has: train.batch_size");
    run->rows_per_step = recipe->train_batch_size * recipe->train_gradient_accumulation_steps;
    run->steps_per_epoch = ((int64_t)run->train->n + run->rows_per_step - 1) / run->rows_per_step;
    run->total_steps = recipe->train_max_steps >= 0 ? recipe->train_max_steps : (int64_t)ceil(recipe->train_epochs * (double)run->steps_per_epoch - 1e-9);
    if (run->total_steps <= 0) return status_fail(ST_CONFIG, "'train.epochs' leaves no step to do");
    run->rows = malloc((size_t)MAX(run->rows_per_step, 1) * sizeof *run->rows);
    return run->rows ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a step of %lld rows", (long long)run->rows_per_step);
}

/* ---- the run ---- */

static TrainerConfig trainer_config(PairRun *run) {
    return (TrainerConfig){
        .recipe = run->recipe,
        .model = run->model,
        .tape = run->tape,
        .task =
            {
                .context = run,
                .inputs = {{"model.path", params_fingerprint(&run->model->params)}, {"data.train", pairs_fingerprint(run->train)}, {run->eval ? "data.eval" : NULL, run->eval ? pairs_fingerprint(run->eval) : 0}},
                .total_steps = run->total_steps,
                .epoch = epoch_after,
                .begin_step = begin_step,
                .micro_batch = micro_batch,
                .largest_batch = largest_batch,
                .evaluate = run->eval ? evaluate : NULL,
                .describe_batch = describe_batch,
                .write_metrics = write_metrics,
            },
        .on_progress = run->config->on_progress,
        .progress_context = run->config->context,
        .save_result = save_result,
    };
}

static Status write_started(const PairRun *run, const Run *dir, const PairPlan *plan) {
    const char *path = run_path(dir, "started.json");
    if (!path) return ST_RESOURCE;
    if (run_resumed(dir) && file_exists(path)) return ST_OK;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "program", run->recipe->program);
    jw_string(&w, "command", run->config->command);
    jw_int(&w, "steps", plan->total_steps);
    jw_double(&w, "steps_per_epoch", plan->steps_per_epoch);
    jw_int(&w, "largest_step_tokens", plan->largest_batch_tokens);
    jw_int(&w, "parameters", plan->parameters);
    jw_int(&w, "trained_parameters", plan->trained_parameters);
    jw_string(&w, "compute", dtype_name(run->model->compute));
    jw_string(&w, "format", run->objective->unpaired ? "kto" : "preference");
    jw_end_object(&w);
    str_append_char(&w.text, '\n');
    Status status = file_write_all(path, str_text(&w.text), w.text.len);
    jw_release(&w);
    return status;
}

static void note_plan(const PairRun *run, Run *dir, const PairPlan *plan) {
    const Pairs *pairs = run->train;
    Str memory = {0};
    train_memory_describe(&plan->memory, &memory);
    run_note(dir, "%zu rows, %lld tokens, %lld of them trained; %zu held out", pairs->n, (long long)pairs->tokens, (long long)pairs->trained_tokens, run->eval ? run->eval->n : 0);
    if (pairs->dropped_long > 0) run_note(dir, "%lld rows left out, %lld cut: longer than data.max_length", (long long)pairs->dropped_long, (long long)pairs->cut);
    run_note(dir, "%lld of %lld parameters trained, %lld steps", (long long)plan->trained_parameters, (long long)plan->parameters, (long long)plan->total_steps);
    run_note(dir, "memory: %s", str_text(&memory));
    str_release(&memory);
}

/* The directory is made only when nothing can be refused any more. */
static Status train_in(PairRun *run, Run **dir, TrainResult *result) {
    const Params *params = &run->model->params;
    TrainerConfig trainer = trainer_config(run);
    PairPlan plan = {.total_steps = run->total_steps, .steps_per_epoch = (double)run->steps_per_epoch, .trained_parameters = params_count(params, true), .parameters = params_count(params, false)};
    TRY(trainer_memory(&trainer, &plan.memory));
    plan.largest_batch_tokens = run->batch.model.layout.n_tokens;
    bool dry = run->config->dry_run || trainer_check_memory(run->recipe, &plan.memory) != ST_OK;
    if (!dry) {
        TRY(run_open(run->recipe, run->config->resume, dir));
        note_plan(run, *dir, &plan);
        TRY(write_started(run, *dir, &plan));
    }
    if (run->config->on_plan) run->config->on_plan(run->config->context, run, &plan);
    if (dry) return trainer_check_memory(run->recipe, &plan.memory);
    if (run->objective->open) TRY(run->objective->open(run));
    trainer.run = *dir;
    return trainer_run(&trainer, result);
}

static Status begin(PairRun *run, Run **dir, TrainResult *result) {
    bool finished = false;
    if (!run->config->dry_run) TRY(run_check(run->recipe, run->config->resume, &finished));
    if (finished) {
        TRY(run_open(run->recipe, run->config->resume, dir));
        return trainer_run(&(TrainerConfig){.recipe = run->recipe, .run = *dir}, result);
    }
    if (!run->model) TRY(trained_model_open(run->recipe, &run->model));
    run->tape = tape_new(device_cpu(), run->model->compute, 0);
    if (!run->tape) return status_fail(ST_RESOURCE, "out of memory for the tape");
    TRY(load_rows(run));
    TRY(plan_steps(run));
    return train_in(run, dir, result);
}

/* The page is a convenience: when it can't be written, the run is what it is. `status` and its text stay. */
static Status write_report(Run *dir, Status status) {
    Str text = {0}, hint = {0};
    str_append(&text, status_text());
    str_append(&hint, status_hint_text());
    const char *path_of_run = run_dir(dir), *path = run_path(dir, "report.html");
    if (path && report_write(&path_of_run, 1, path, NULL) != ST_OK) run_warn(dir, "no report.html: %s", status_text());
    if (status != ST_OK) status_fail(status, "%s", str_text(&text));
    if (status != ST_OK && hint.len > 0) status_hint(status, "%s", str_text(&hint));
    str_release(&text);
    str_release(&hint);
    return status;
}

Status pair_run(PairRun *run, TrainResult *result) {
    Run *dir = NULL;
    *result = (TrainResult){.best_step = -1};
    Status status = begin(run, &dir, result);
    pair_batch_release(&run->batch);
    free(run->rows);
    tape_free(run->tape);
    pairs_free(run->eval);
    pairs_free(run->train);
    chat_close(run->chat);
    if (run->tokenizer) tokenizer_free(run->tokenizer);
    if (run->model) model_free(run->model);
    if (dir && !result->already_finished) status = write_report(dir, status);
    run_close(dir);
    return status;
}
