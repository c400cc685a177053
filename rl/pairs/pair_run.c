/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a recipe over rows of preferences. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "rl/pairs/pair_run.h"

#include <stdlib.h>
#include <string.h>

#include "lib/train/training.h"
#include "rl/loop/rl_doctor.h"
#include "rl/loop/run_chat.h"
#include "rl/reward/scorer.h"

/* ---- the rows of a step ---- */

static Status add_batch(PairRun *run, const size_t *rows, size_t n, int64_t batch) {
    size_t before = batch ? run->batch_ends[batch - 1] : 0;
    TRY(array_resize(&run->rows, before + n, sizeof *run->rows, "rows of a step"));
    memcpy(run->rows + before, rows, n * sizeof *rows);
    run->batch_ends[batch] = before + n;
    return ST_OK;
}

static Status load_step(PairRun *run, int64_t step) {
    PlanStep at;
    if (run->loaded == step) return ST_OK;
    run->loaded = -1;
    run->n_batches = 0;
    TRY(data_plan_step(&run->plan, step, &at));
    for (; run->n_batches < at.n_batches; run->n_batches++) {
        size_t n;
        TRY(data_plan_batch(&run->plan, at.epoch, at.first_batch + run->n_batches, &run->examples, &n));
        TRY(add_batch(run, run->examples, n, run->n_batches));
    }
    run->loaded = step;
    return ST_OK;
}

Status pair_run_rows(PairRun *run, int64_t step, size_t *n) {
    TRY(load_step(run, step));
    *n = run->batch_ends[run->n_batches - 1];
    return ST_OK;
}

static int64_t tokens_of(const Pairs *pairs, size_t row, const size_t *other) {
    return pair_tokens_with(&pairs->rows[row], other ? &pairs->rows[*other] : NULL);
}

/* Number of the first of n > 0 rows that together have at most so many tokens, at least 1; 0 tokens: no limit. other_rows: as in PairBatchOptions. */
static size_t rows_within(const Pairs *pairs, const size_t *rows, const size_t *other_rows, size_t n, int64_t most_tokens) {
    size_t count = 1;
    int64_t tokens = tokens_of(pairs, rows[0], other_rows);
    if (most_tokens <= 0) return n;
    while (count < n && (tokens += tokens_of(pairs, rows[count], other_rows ? other_rows + count : NULL)) <= most_tokens) count++;
    return count;
}

size_t pair_run_fit(const PairRun *run, const Pairs *pairs, const size_t *rows, const size_t *other_rows, size_t n, int64_t *tokens) {
    const Recipe *recipe = run->recipe;
    size_t count = recipe->train_batch_tokens > 0 ? rows_within(pairs, rows, other_rows, n, recipe->train_batch_tokens)
                                                  : MIN(n, (size_t)recipe->train_batch_size);
    count = rows_within(pairs, rows, other_rows, count, run->part_tokens);
    if (!tokens) return count;
    *tokens = 0;
    for (size_t i = 0; i < count; i++) *tokens += tokens_of(pairs, rows[i], other_rows ? other_rows + i : NULL);
    return count;
}

static double epoch_after(void *context, int64_t steps) { return data_plan_epochs(&((PairRun *)context)->plan, steps); }

static Status micro_rows(PairRun *run, int64_t step, int64_t micro, const size_t **rows, size_t *n) {
    TRY(load_step(run, step));
    size_t first = micro ? run->batch_ends[micro - 1] : 0;
    *rows = run->rows + first;
    *n = run->batch_ends[micro] - first;
    return ST_OK;
}

static void describe_batch(void *context, int64_t step, int64_t micro, Str *text) {
    enum { SHOWN = 8 };
    PairRun *run = context;
    const size_t *rows;
    size_t n;
    if (micro_rows(run, step, micro, &rows, &n) != ST_OK) return;
    for (size_t i = 0; i < MIN(n, (size_t)SHOWN); i++) {
        if (i > 0) str_append(text, ", ");
        pairs_where(run->train, rows[i], text);
    }
    if (n > SHOWN) str_printf(text, " and %zu more", n - SHOWN);
}

/* ---- callbacks of the trainer ---- */

static Status begin_step(void *context, int64_t step, int64_t *micro_batches, double *divisor) {
    PairRun *run = context;
    size_t n;
    TRY(pair_run_rows(run, step, &n));
    run->numbers = (PairNumbers){0};
    *micro_batches = run->n_batches;
    *divisor = (double)n;
    return run->objective->begin ? run->objective->begin(run, run->tape, run->train, run->rows, n) : ST_OK;
}

static Status micro_batch(void *context, Tape *tape, int64_t step, int64_t micro, double divisor, LossSums *sums) {
    PairRun *run = context;
    const size_t *rows;
    size_t n_rows;
    TRY(micro_rows(run, step, micro, &rows, &n_rows));
    /* dropout: a new mask in every accumulation step */
    uint64_t number = (uint64_t)(step * run->recipe->train_gradient_accumulation_steps + micro);
    run->step = (StepContext){.training = true, .seed = (uint64_t)run->recipe->seed, .number = number};
    Status status = ST_OK;
    for (size_t first = 0, n; first < n_rows && status == ST_OK; first += n) {
        n = rows_within(run->train, rows + first, NULL, n_rows - first, run->part_tokens);
        if (first > 0) tape_reset(tape);
        status = run->objective->batch(run, tape, run->train, rows + first, n, true, divisor, sums);
        run->step.first_token += run->batch.model.layout.n_tokens;
    }
    run->step = (StepContext){0};
    return status;
}

static void pair_run_split(void *context, int64_t most_tokens) { ((PairRun *)context)->part_tokens = most_tokens; }

/* A pass of the reference or of an evaluation: with checkpointing it uses other parts of the tape's memory than a step. */
static Status pair_run_forward_only(PairRun *run, Tape *tape, const Pairs *pairs, const size_t *rows, size_t n) {
    LossSums sums = {0};
    tape_record(tape, false);
    Status status = run->objective->batch(run, tape, pairs, rows, n, false, (double)n, &sums);
    tape_record(tape, true);
    if (status == ST_OK) tape_reset(tape);
    return status;
}

/* The largest batch of an evaluation, in tokens. */
static Status largest_evaluation(PairRun *run, Tape *tape) {
    const Pairs *pairs = run->eval;
    size_t *rows = malloc(pairs->n * sizeof *rows), at = 0, most_rows = 0;
    int64_t most = -1;
    if (!rows) return status_fail(ST_RESOURCE, "out of memory for %zu rows", pairs->n);
    for (size_t i = 0; i < pairs->n; i++) rows[i] = i;
    for (size_t i = 0, n; i < pairs->n; i += n) {
        int64_t tokens;
        n = pair_run_fit(run, pairs, rows + i, NULL, pairs->n - i, &tokens);
        if (tokens > most) most = tokens, at = i, most_rows = n;
    }
    Status status = most_rows > 0 ? pair_run_forward_only(run, tape, pairs, rows + at, most_rows) : ST_OK;
    free(rows);
    return status;
}

static Status largest_batch(void *context, Tape *tape) {
    PairRun *run = context;
    LossSums sums = {0};
    size_t n;
    if (run->objective->plan) TRY(run->objective->plan(run, tape)); /* first, because it loads steps, which overwrites run->examples */
    TRY(data_plan_largest_part(&run->plan, run->total_steps, run->part_tokens, &run->examples, &n));
    if (run->objective->open) TRY(pair_run_forward_only(run, tape, run->train, run->examples, n));
    if (run->eval) TRY(largest_evaluation(run, tape));
    run->step = (StepContext){.training = true};
    Status status = run->objective->batch(run, tape, run->train, run->examples, n, true, (double)n, &sums);
    run->step = (StepContext){0};
    return status;
}

static Status evaluate_rows(PairRun *run, Tape *tape, size_t *rows, LossSums *sums) {
    const Pairs *pairs = run->eval;
    for (size_t i = 0; i < pairs->n; i++) rows[i] = i;
    if (run->objective->begin) TRY(run->objective->begin(run, tape, pairs, rows, pairs->n));
    for (size_t i = 0, n; i < pairs->n; i += n) {
        n = pair_run_fit(run, pairs, rows + i, NULL, pairs->n - i, NULL);
        if (interrupt_requested()) return ST_INTERRUPTED;
        work_at("evaluating on held-out rows", i, pairs->n);
        tape_reset(tape);
        TRY(run->objective->batch(run, tape, pairs, rows + i, n, false, (double)pairs->n, sums));
    }
    work_end("evaluating on held-out rows");
    sums->count = (double)pairs->n;
    return ST_OK;
}

static Status pair_run_evaluate(void *context, Tape *tape, LossSums *sums) {
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

static Status load_held_out(PairRun *run, const char *key, YamlNode node, const PairSource *source) {
    TRY(pairs_load(run->recipe, key, node, source, &run->eval));
    row_notes_warn(&run->eval->table.notes, key);
    for (size_t i = 0; i < run->eval->table.n_sources; i++)
        if (run->eval->table.sources[i].weight > 0) return status_fail(ST_CONFIG, "'weight' has no place in '%s': each row is evaluated once", key);
    return ST_OK;
}

static Status load_pairs(PairRun *run, const Tokenizer *tokenizer, const Chat *chat) {
    const Recipe *recipe = run->recipe;
    const PairObjective *objective = run->objective;
    PairSource source = {.model = &run->model->config,
                         .tokenizer = tokenizer,
                         .chat = chat,
                         .unpaired = objective->unpaired,
                         .stepwise = objective->stepwise,
                         .ends = objective->scores,
                         .reader = objective->reader};
    if (objective->scores && run->config->options.resume && recipe->output) TRY(run_scores_turns(recipe->output, &run->at_turn));
    source.at_turn = run->at_turn;
    TRY(pairs_load(recipe, "data.train", recipe->data_train, &source, &run->train));
    row_notes_warn(&run->train->table.notes, "data.train");
    const char *key;
    const Yaml *eval = recipe_eval_rows(recipe, &key);
    if (eval) return load_held_out(run, key, eval, &source);
    recipe_warn_eval_every(recipe);
    return recipe->data_eval_split > 0 ? pairs_split(run->train, recipe->data_eval_split, (uint64_t)recipe->seed, &run->eval) : ST_OK;
}

/* Frees tokenizer and template before memory is planned: they are not needed afterwards. */
static Status load_rows(PairRun *run) {
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    Status status = run_chat_open(&run->recipe, run->config->options.resume, &run->dated, &tokenizer, &chat);
    if (status == ST_OK) status = load_pairs(run, tokenizer, chat);
    chat_close(chat);
    tokenizer_free(tokenizer);
    return status;
}

static Status total_of(PairRun *run, const Recipe *recipe, int64_t *steps) {
    *steps = recipe->train_max_steps;
    return *steps < 0 ? data_plan_total(&run->plan, recipe->train_epochs, steps) : ST_OK;
}

static Status plan_steps(PairRun *run) {
    const Recipe *recipe = run->recipe;
    DataOrder order = {.dataset = &run->train->table, .seed = (uint64_t)recipe->seed, .shuffle = recipe->data_shuffle};
    data_plan_init(&run->plan, &order, recipe->train_batch_size, recipe->train_batch_tokens, recipe->train_gradient_accumulation_steps);
    run->batch_ends = malloc((size_t)recipe->train_gradient_accumulation_steps * sizeof *run->batch_ends);
    if (!run->batch_ends) return status_fail(ST_RESOURCE, "out of memory for the batches of a step");
    run->loaded = -1;
    TRY(total_of(run, recipe, &run->total_steps));
    return recipe_check_steps(recipe, run->total_steps);
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
                .inputs = {{"model.path", model_fingerprint(run->model)},
                           {"data.train", pairs_fingerprint(run->train)},
                           {run->eval ? "data.eval" : NULL, run->eval ? pairs_fingerprint(run->eval) : 0}},
                .total_steps = run->total_steps,
                .epoch = epoch_after,
                .begin_step = begin_step,
                .micro_batch = micro_batch,
                .largest_batch = largest_batch,
                .split = run->objective->together ? NULL : pair_run_split,
                .evaluate = run->eval ? pair_run_evaluate : NULL,
                .describe_batch = describe_batch,
                .write_metrics = write_metrics,
            },
        .on_progress = run->config->on_progress,
        .progress_context = run->config->context,
        .save_result = save_result,
    };
}

static void note_warning(void *output, const char *text) { run_note(output, "%s", text); }

static void note_plan(const PairRun *run, Run *output, const PairPlan *plan) {
    const Pairs *pairs = run->train;
    Str memory = {0};
    train_memory_describe(&plan->memory, &memory);
    row_notes_report(&pairs->table.notes, "data.train", note_warning, output);
    run_note(output, "%zu row%s, %lld token%s, %lld of them trained; %zu held out", pairs->n, plural((int64_t)pairs->n), (long long)pairs->tokens,
             plural(pairs->tokens), (long long)pairs->trained_tokens, run->eval ? run->eval->n : 0);
    data_counts_warn(&pairs->table.counts, "data.train", note_warning, output);
    pairs_report(pairs, run->recipe, "data.train", note_warning, output);
    if (run->eval) pairs_report(run->eval, run->recipe, "data.eval", note_warning, output);
    run_note(output, "%lld of %lld parameter%s trained, %lld step%s", (long long)plan->trained_parameters, (long long)plan->parameters,
             plural(plan->parameters), (long long)plan->total_steps, plural(plan->total_steps));
    run_note(output, "memory: %s", str_text(&memory));
    str_release(&memory);
}

/* ---- complete runs ---- */

typedef struct Whole {
    PairRun *run;
    TrainerConfig trainer;
    PairPlan plan;
    TrainResult *result;
} Whole;

static Status pair_run_length(void *context, const Recipe *recipe, RunLength *length) {
    TRY(total_of(((Whole *)context)->run, recipe, &length->steps));
    length->schedule_steps = length->steps;
    length->schedule_rate = 1;
    return ST_OK;
}

static Status pair_run_load_result(void *context, const Run *output) { return trainer_load_result(output, ((Whole *)context)->result); }

static Status open_parts(PairRun *run) {
    if (!run->model) TRY(run->objective->scores ? trained_model_open_scores(run->recipe, &run->model) : trained_model_open(run->recipe, &run->model));
    run->tape = tape_new(device_cpu(), run->model->compute, 0);
    if (!run->tape) return status_fail(ST_RESOURCE, "out of memory for the tape");
    TRY(load_rows(run));
    return plan_steps(run);
}

static Status pair_run_open(void *context, TrainMemory *memory) {
    Whole *whole = context;
    PairRun *run = whole->run;
    PlanStep first;
    size_t n;
    TRY(open_parts(run));
    whole->trainer = trainer_config(run);
    TRY(data_plan_step(&run->plan, 0, &first));
    TRY(trainer_memory(&whole->trainer, run->config->options.resume ? run->recipe->output : NULL, memory));
    TRY(data_plan_largest(&run->plan, run->total_steps, &run->examples, &n));
    whole->plan = (PairPlan){.total_steps = run->total_steps,
                             .steps_per_epoch = (double)first.epoch_steps,
                             .largest_batch_tokens = dataset_tokens(&run->train->table, run->examples, n),
                             .trained_parameters = params_count(&run->model->params, true),
                             .parameters = params_count(&run->model->params, false),
                             .memory = *memory};
    return ST_OK;
}

static void pair_run_report_plan(void *context, const TrainMemory *memory) {
    const Whole *whole = context;
    const PairRunConfig *config = whole->run->config;
    (void)memory;
    if (config->on_plan) config->on_plan(config->context, whole->run, &whole->plan);
}

static void add_warning(void *w, const char *text) { jw_string(w, NULL, text); }

static void pair_run_started(void *context, JsonWriter *w) {
    const Whole *whole = context;
    const PairRun *run = whole->run;
    const PairPlan *plan = &whole->plan;
    jw_int(w, "steps", plan->total_steps);
    jw_double(w, "steps_per_epoch", plan->steps_per_epoch);
    jw_int(w, "largest_step_tokens", plan->largest_batch_tokens);
    jw_int(w, "parameters", plan->parameters);
    jw_int(w, "trained_parameters", plan->trained_parameters);
    jw_string(w, "compute", dtype_name(run->model->compute));
    if (run->objective->scores && !run->at_turn) jw_string(w, "score_token", "last");
    jw_array(w, "warnings");
    pairs_report(run->train, run->recipe, "data.train", add_warning, w);
    if (run->eval) pairs_report(run->eval, run->recipe, "data.eval", add_warning, w);
    jw_end_array(w);
    Str text = {0};
    if (run->objective->use) run->objective->use(run, &text);
    if (text.len > 0) jw_string(w, "use", text.data);
    str_release(&text);
    jw_string(w, "format", run->objective->stepwise ? "stepwise" : run->objective->unpaired ? "kto" : "preference");
}

static Status pair_run_train(void *context, Run *output) {
    Whole *whole = context;
    PairRun *run = whole->run;
    note_plan(run, output, &whole->plan);
    if (run->objective->open) TRY(run->objective->open(run));
    if (run->reference) whole->trainer.task.inputs[TASK_MAX_INPUTS - 1] = (TaskInput){"rl.reference", run->reference};
    whole->trainer.run = output;
    return trainer_run(&whole->trainer, whole->result);
}

static void pair_run_release(void *context) {
    PairRun *run = ((Whole *)context)->run;
    pair_batch_release(&run->batch);
    data_plan_release(&run->plan);
    free(run->rows);
    free(run->batch_ends);
    free(run->examples);
    tape_free(run->tape);
    pairs_free(run->eval);
    pairs_free(run->train);
    if (run->model) model_free(run->model);
}

static const TrainingKind kind = {pair_run_load_result, pair_run_open, pair_run_report_plan,      pair_run_started,           pair_run_train,
                                  pair_run_release,     true,          .length = pair_run_length, .reader = &rl_report_reader};

Status pair_run(PairRun *run, TrainResult *result) {
    Whole whole = {.run = run, .result = result};
    *result = (TrainResult){.best_step = -1};
    return training_run(&kind, &whole, &run->recipe, &run->config->options);
}
