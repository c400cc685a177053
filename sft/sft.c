/* SPDX-License-Identifier: Apache-2.0 */
/* Supervised fine-tuning: model, adapter, tokenizer and rows from the recipe, the objective, and the files written at the end. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "sft/started.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/train/trained_model.h"
#include "lib/train/training.h"

typedef struct Sft {
    const SftConfig *config;
    const Recipe *recipe;
    Recipe dated; /* the recipe, with the date of the run's start if the template writes it */
    Model *model;
    RecipeRows rows;
    DataCheck check;
    JsonWriter sample; /* sample of the first rows, for started.json */
    Tape *tape;
    DataPlan plan;
    int64_t total_steps;
    SftLoss loss;
    Batch batch;
    size_t *examples, n_examples;
    int64_t part_tokens;    /* limit in tokens of a part: accumulation steps and evaluations go through their rows in such parts; 0 = no limit */
    RngKey *noise_keys;     /* one for each segment of the batch */
    double *values, *means; /* of one batch's trained tokens; later the upstream gradients */
    int64_t cap_values;
    TrainerConfig trainer;
    SftPlan told;
    TrainResult *result;
} Sft;

/* ---- the objective ---- */

double sft_token_loss(const SftLoss *loss, double logprob, double mean, double *d_logprob, double *d_mean) {
    double s = loss->label_smoothing, weight = loss->dft ? exp(logprob) : 1 - s;
    *d_logprob = -weight;
    *d_mean = -s;
    return -weight * logprob - (s > 0 ? s * mean : 0);
}

static Status reserve_values(Sft *sft, int64_t n) {
    if (n <= sft->cap_values) return ST_OK;
    TRY(array_resize(&sft->values, (size_t)n, sizeof *sft->values, "trained tokens"));
    TRY(array_resize(&sft->means, (size_t)n, sizeof *sft->means, "trained tokens"));
    sft->cap_values = n;
    return ST_OK;
}

/* Log-probabilities of the batch's targets, on the tape. */
static Status sft_forward(Sft *sft, Tape *tape, bool mean, TokenLogprobs *p) {
    const Batch *batch = &sft->batch;
    int64_t n = batch->n_targets;
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, batch->rows);
    Tensor *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, batch->targets);
    if (!rows || !targets) return ST_RESOURCE;
    Tensor *hidden = model_forward(sft->model, tape, &batch->model);
    LogprobArgs args = sft->model->logprob;
    args.mean = mean;
    *p = op_token_logprobs(tape, hidden, sft->model->head, rows, targets, &args);
    return tape_status(tape);
}

/* count: the divisor of the losses. */
static void add_batch(const Batch *batch, double loss, double count, LossSums *sums) {
    sums->loss_sum += loss;
    sums->count += count;
    sums->tokens += batch->model.layout.n_tokens;
    sums->loss_tokens += batch->n_targets;
}

/* Replaces the values read from the tape by the upstream gradients. */
static void losses_to_seeds(Sft *sft, double divisor, LossSums *sums) {
    double sum = 0, count = 0;
    for (int64_t i = 0; i < sft->batch.n_targets; i++) {
        double d_logprob, d_mean, weight = sft->batch.weights[i];
        sum += weight * sft_token_loss(&sft->loss, sft->values[i], sft->means[i], &d_logprob, &d_mean);
        count += weight;
        sft->values[i] = weight * d_logprob / divisor;
        sft->means[i] = weight * d_mean / divisor;
    }
    add_batch(&sft->batch, sum, count, sums);
}

/* Forward and backward of the current batch. */
static Status train_batch(Sft *sft, Tape *tape, double divisor, LossSums *sums) {
    int64_t n = sft->batch.n_targets;
    bool smooth = sft->loss.label_smoothing > 0;
    TokenLogprobs p;
    if (n == 0) { /* no token of this batch is trained; other batches of the step have some */
        add_batch(&sft->batch, 0, 0, sums);
        return ST_OK;
    }
    TRY(reserve_values(sft, n));
    TRY(sft_forward(sft, tape, smooth, &p));
    memset(sft->values, 0, (size_t)n * sizeof *sft->values);
    memset(sft->means, 0, (size_t)n * sizeof *sft->means);
    if (tape_device(tape) != device_meta()) { /* the meta device computes no values */
        tensor_read(p.logprob, sft->values);
        if (smooth) tensor_read(p.mean, sft->means);
    }
    losses_to_seeds(sft, divisor, sums);
    tensor_seed_grad(tape, p.logprob, sft->values);
    if (smooth) tensor_seed_grad(tape, p.mean, sft->means);
    return tape_backward(tape);
}

/* ---- callbacks of the trainer ---- */

static double epoch_after(void *context, int64_t steps) { return data_plan_epochs(&((Sft *)context)->plan, steps); }

static Status load_batch(Sft *sft, int64_t step, int64_t micro, PlanStep *at) {
    TRY(data_plan_step(&sft->plan, step, at));
    TRY(data_plan_batch(&sft->plan, at->epoch, at->first_batch + micro, &sft->examples, &sft->n_examples));
    return batch_build(sft->rows.train, sft->examples, sft->n_examples, &sft->batch);
}

static void describe_batch(void *context, int64_t step, int64_t micro, Str *text) {
    Sft *sft = context;
    enum { SHOWN = 8 };
    PlanStep at;
    if (load_batch(sft, step, micro, &at) != ST_OK) return;
    for (size_t i = 0; i < MIN(sft->n_examples, (size_t)SHOWN); i++) {
        if (i > 0) str_append(text, ", ");
        dataset_where(sft->rows.train, sft->examples[i], text);
    }
    if (sft->n_examples > SHOWN) str_printf(text, " and %zu more", sft->n_examples - SHOWN);
}

/* The sum of the weights of its trained tokens. */
static double trained_weight(const Dataset *dataset, size_t i) {
    Example example = dataset_example(dataset, i);
    return example.weight * example.trained;
}

static Status begin_step(void *context, int64_t step, int64_t *micro_batches, double *divisor) {
    Sft *sft = context;
    PlanStep at;
    double weights = 0;
    TRY(data_plan_step(&sft->plan, step, &at));
    for (int64_t micro = 0; micro < at.n_batches; micro++) {
        TRY(data_plan_batch(&sft->plan, at.epoch, at.first_batch + micro, &sft->examples, &sft->n_examples));
        for (size_t i = 0; i < sft->n_examples; i++) weights += trained_weight(sft->rows.train, sft->examples[i]);
    }
    *micro_batches = at.n_batches;
    *divisor = weights;
    if (weights > 0) return ST_OK;
    Str rows = {0};
    describe_batch(sft, step, 0, &rows);
    status_fail(ST_INPUT, "no token of the batch of step %lld is trained: %s", (long long)step + 1, str_text(&rows));
    str_release(&rows);
    return status_hint(ST_INPUT, "look at the labels of these rows, or take larger batches");
}

/* Keys of the embeddings' noise, one for each segment of the batch: a function of (seed, step, row), so that they do not depend on how a step is
 * split. */
static Status draw_noise(Sft *sft, int64_t step, const size_t *examples, size_t n) {
    int32_t n_segments = sft->batch.model.layout.n_segments, segment = 0;
    if (sft->recipe->train_neftune_alpha == 0) return ST_OK;
    TRY(array_resize(&sft->noise_keys, (size_t)n_segments, sizeof *sft->noise_keys, "rows of a batch"));
    RngKey of_step = rng_key((uint64_t)sft->recipe->seed, RNG_NOISE, (uint64_t)step);
    for (size_t i = 0; i < n; i++) {
        RngKey of_row = rng_key(rng_u64(of_step, examples[i]), RNG_NOISE, 0);
        int32_t n_branches = dataset_example(sft->rows.train, examples[i]).n_branches;
        sft->noise_keys[segment++] = of_row;
        for (int32_t b = 1; b < n_branches; b++) sft->noise_keys[segment++] = rng_key(rng_u64(of_row, (uint64_t)b), RNG_NOISE, 1);
    }
    sft->batch.model.noise = (EmbedNoise){sft->recipe->train_neftune_alpha, sft->noise_keys};
    return ST_OK;
}

/* The number of rows, of the first n > 0, that go through the model together. */
static size_t part_rows(const Sft *sft, const Dataset *dataset, const size_t *examples, size_t n) {
    size_t count = 1;
    int64_t tokens = dataset_length(dataset, examples[0]);
    if (sft->part_tokens == 0) return n;
    while (count < n && (tokens += dataset_length(dataset, examples[count])) <= sft->part_tokens) count++;
    return count;
}

static Status micro_batch(void *context, Tape *tape, int64_t step, int64_t micro, double divisor, LossSums *sums) {
    Sft *sft = context;
    PlanStep at;
    TRY(data_plan_step(&sft->plan, step, &at));
    TRY(data_plan_batch(&sft->plan, at.epoch, at.first_batch + micro, &sft->examples, &sft->n_examples));
    /* dropout: another mask in every accumulation step */
    StepContext pass = {.training = true, .seed = (uint64_t)sft->recipe->seed, .number = (uint64_t)(step * sft->plan.accumulation + micro)};
    for (size_t first = 0, n; first < sft->n_examples; first += n) {
        n = part_rows(sft, sft->rows.train, sft->examples + first, sft->n_examples - first);
        TRY(batch_build(sft->rows.train, sft->examples + first, n, &sft->batch));
        TRY(draw_noise(sft, step, sft->examples + first, n));
        sft->batch.model.step = pass;
        if (first > 0) tape_reset(tape);
        TRY(train_batch(sft, tape, divisor, sums));
        pass.first_token += sft->batch.model.layout.n_tokens;
    }
    return ST_OK;
}

static void sft_split(void *context, int64_t most_tokens) { ((Sft *)context)->part_tokens = most_tokens; }

static void plan_evaluation(const Sft *sft, DataPlan *plan) {
    int64_t most = sft->plan.batch_tokens > 0 ? MAX(sft->plan.batch_tokens, sft->rows.eval->longest) : 0;
    data_plan_init(plan, &(DataOrder){.dataset = sft->rows.eval}, sft->plan.batch_size, most, 1);
}

/* With checkpointing, this pass uses other parts of the tape's memory than a step. */
static Status largest_evaluation(Sft *sft, Tape *tape) {
    DataPlan plan;
    int64_t n_batches;
    size_t *examples = NULL, n;
    TokenLogprobs p;
    plan_evaluation(sft, &plan);
    tape_record(tape, false);
    Status status = data_plan_epoch(&plan, 0, &n_batches);
    if (status == ST_OK) status = data_plan_largest_part(&plan, n_batches, sft->part_tokens, &examples, &n);
    if (status == ST_OK) status = batch_build(sft->rows.eval, examples, n, &sft->batch);
    if (status == ST_OK && sft->batch.n_targets > 0) status = sft_forward(sft, tape, false, &p);
    tape_record(tape, true);
    free(examples);
    data_plan_release(&plan);
    return status;
}

static Status largest_batch(void *context, Tape *tape) {
    Sft *sft = context;
    LossSums sums = {0};
    if (sft->rows.eval) TRY(largest_evaluation(sft, tape));
    TRY(data_plan_largest_part(&sft->plan, sft->total_steps, sft->part_tokens, &sft->examples, &sft->n_examples));
    TRY(batch_build(sft->rows.train, sft->examples, sft->n_examples, &sft->batch));
    sft->batch.model.step = (StepContext){.training = true};
    tape_reset(tape);
    return train_batch(sft, tape, 1, &sums);
}

/* Adds minus the log-probabilities of all trained tokens of some held-out rows to *loss one by one, so that the sum does not depend on how a batch is
 * split. */
static Status evaluate_part(Sft *sft, Tape *tape, const size_t *examples, size_t n, double *loss, LossSums *sums) {
    TokenLogprobs p;
    TRY(batch_build(sft->rows.eval, examples, n, &sft->batch));
    if (sft->batch.n_targets == 0) return ST_OK;
    tape_reset(tape);
    TRY(reserve_values(sft, sft->batch.n_targets));
    TRY(sft_forward(sft, tape, false, &p));
    tensor_read(p.logprob, sft->values);
    for (int64_t t = 0; t < sft->batch.n_targets; t++) *loss -= sft->values[t];
    add_batch(&sft->batch, 0, (double)sft->batch.n_targets, sums);
    return ST_OK;
}

static Status evaluate_batch(Sft *sft, Tape *tape, const size_t *examples, size_t n, LossSums *sums) {
    double loss = 0;
    for (size_t first = 0, count; first < n; first += count) {
        if (interrupt_requested()) return ST_INTERRUPTED;
        count = part_rows(sft, sft->rows.eval, examples + first, n - first);
        TRY(evaluate_part(sft, tape, examples + first, count, &loss, sums));
    }
    sums->loss_sum += loss;
    return ST_OK;
}

/* Plain cross-entropy for any objective, so that its exponential is the perplexity. Exact over all tokens of all rows. */
static Status sft_evaluate(void *context, Tape *tape, LossSums *sums) {
    Sft *sft = context;
    DataPlan plan;
    int64_t n_batches = 0;
    size_t *examples = NULL, n;
    plan_evaluation(sft, &plan);
    Status status = data_plan_epoch(&plan, 0, &n_batches);
    for (int64_t i = 0; i < n_batches && status == ST_OK; i++) {
        status = data_plan_batch(&plan, 0, i, &examples, &n);
        work_at("evaluating on held-out rows, batches", (uint64_t)i, (uint64_t)n_batches);
        if (status == ST_OK) status = evaluate_batch(sft, tape, examples, n, sums);
    }
    work_end("evaluating on held-out rows, batches");
    free(examples);
    data_plan_release(&plan);
    return status;
}

static Status save_result(void *context, const char *run_dir) {
    const Sft *sft = context;
    return trained_model_save(sft->recipe, sft->model, run_dir);
}

/* ---- rows ---- */

/* If the template writes the date, the run's recipe records it. Rows are tokenised before memory is planned. */
static Status load_data(Sft *sft) {
    const char *day;
    TRY(recipe_day(sft->recipe, sft->config->options.resume, &day));
    TRY(recipe_rows_open(sft->recipe, &sft->model->config, day, &sft->rows));
    if (!sft->recipe->data_now && chat_writes_date(sft->rows.chat)) {
        sft->dated = recipe_dated(sft->recipe, day);
        sft->recipe = &sft->dated;
    }
    TRY(data_check(&sft->rows, &sft->model->config, &sft->check));
    TRY(started_sample(sft->rows.train, sft->rows.tokenizer, &sft->sample));
    recipe_rows_are_read(&sft->rows);
    return ST_OK;
}

/* If some rows have no trained token, a full step may consist of them: this is reported now rather than after hours. */
static Status check_steps(Sft *sft) {
    int64_t n_micro;
    double divisor;
    if (sft->rows.train->counts.untrained == 0) return ST_OK;
    for (int64_t step = 0; step < sft->total_steps; step++) TRY(begin_step(sft, step, &n_micro, &divisor));
    return ST_OK;
}

static Status total_of(Sft *sft, const Recipe *recipe, int64_t *steps) {
    *steps = recipe->train_max_steps;
    return *steps < 0 ? data_plan_total(&sft->plan, recipe->train_epochs, steps) : ST_OK;
}

static Status sft_length(void *context, const Recipe *recipe, RunLength *length) {
    TRY(total_of(context, recipe, &length->steps));
    length->schedule_steps = length->steps;
    length->schedule_rate = 1;
    return ST_OK;
}

static Status plan_steps(Sft *sft) {
    const Recipe *recipe = sft->recipe;
    DataOrder order = {.dataset = sft->rows.train, .seed = (uint64_t)recipe->seed, .shuffle = recipe->data_shuffle};
    data_plan_init(&sft->plan, &order, recipe->train_batch_size, recipe->train_batch_tokens, recipe->train_gradient_accumulation_steps);
    TRY(total_of(sft, recipe, &sft->total_steps));
    TRY(recipe_check_steps(recipe, sft->total_steps));
    return check_steps(sft);
}

/* ---- the run ---- */

static TrainerConfig trainer_config(Sft *sft) {
    return (TrainerConfig){
        .recipe = sft->recipe,
        .model = sft->model,
        .tape = sft->tape,
        .task =
            {
                .context = sft,
                .inputs = {{"model.path", model_fingerprint(sft->model)},
                           {"data.train", dataset_fingerprint(sft->rows.train)},
                           {sft->rows.eval ? "data.eval" : NULL, sft->rows.eval ? dataset_fingerprint(sft->rows.eval) : 0}},
                .total_steps = sft->total_steps,
                .epoch = epoch_after,
                .begin_step = begin_step,
                .micro_batch = micro_batch,
                .largest_batch = largest_batch,
                .split = sft_split,
                .evaluate = sft->rows.eval ? sft_evaluate : NULL,
                .describe_batch = describe_batch,
            },
        .on_progress = sft->config->on_progress,
        .progress_context = sft->config->context,
        .save_result = save_result,
    };
}

static void note_row(void *run, const char *text) { run_note(run, "%s", text); }

/* Logs the plan; on_plan shows it. */
static void note_plan(Run *run, const SftPlan *plan) {
    Str memory = {0};
    train_memory_describe(&plan->memory, &memory);
    data_files_report(plan->train_rows, note_row, run);
    data_turns_report(&plan->train, "data.train", note_row, run);
    data_turns_report(&plan->eval, "data.eval", note_row, run);
    data_counts_warn(&plan->train, "data.train", note_row, run);
    data_counts_warn(&plan->eval, "data.eval", note_row, run);
    run_note(run, "%lld row%s of format %s, %lld token%s, %lld of them trained", (long long)plan->train.rows, plural(plan->train.rows), plan->format,
             (long long)plan->train.tokens, plural(plan->train.tokens), (long long)plan->train.trained_tokens);
    run_note(run, "%lld of %lld parameter%s trained, %lld step%s, %s", (long long)plan->trained_parameters, (long long)plan->parameters,
             plural(plan->parameters), (long long)plan->total_steps, plural(plan->total_steps), dtype_name(plan->compute));
    run_note(run, "memory: %s", str_text(&memory));
    str_release(&memory);
}

/* Reports everything that is known before the first step. */
static Status make_plan(Sft *sft, TrainMemory *memory) {
    const Params *params = &sft->model->params;
    PlanStep first;
    TRY(data_plan_step(&sft->plan, 0, &first));
    TRY(trainer_memory(&sft->trainer, sft->config->options.resume ? sft->recipe->output : NULL, memory));
    TRY(data_plan_largest(&sft->plan, sft->total_steps, &sft->examples, &sft->n_examples));
    sft->told = (SftPlan){
        .train = sft->rows.train->counts,
        .eval = sft->rows.eval ? sft->rows.eval->counts : (DataCounts){0},
        .train_rows = sft->rows.train,
        .eval_rows = sft->rows.eval,
        .rows = &sft->rows,
        .check = &sft->check,
        .format = sft->rows.train->format,
        .total_steps = sft->total_steps,
        .trained_parameters = params_count(params, true),
        .parameters = params_count(params, false),
        .compute = sft->model->compute,
        .steps_per_epoch = (double)first.epoch_steps,
        .largest_batch_tokens = dataset_tokens(sft->rows.train, sft->examples, sft->n_examples),
        .memory = *memory,
        .model = sft->model,
    };
    return ST_OK;
}

static Status sft_load_result(void *context, const Run *run) { return trainer_load_result(run, ((Sft *)context)->result); }

static Status sft_open(void *context, TrainMemory *memory) {
    Sft *sft = context;
    TRY(trained_model_open(sft->recipe, &sft->model));
    sft->tape = tape_new(device_cpu(), sft->model->compute, 0);
    if (!sft->tape) return status_fail(ST_RESOURCE, "out of memory for the tape");
    TRY(load_data(sft));
    TRY(plan_steps(sft));
    sft->trainer = trainer_config(sft);
    return make_plan(sft, memory);
}

static void sft_report_plan(void *context, const TrainMemory *memory) {
    const Sft *sft = context;
    (void)memory;
    if (sft->config->on_plan) sft->config->on_plan(sft->config->context, &sft->told);
}

static void sft_started(void *context, JsonWriter *w) {
    const Sft *sft = context;
    started_write(w, &sft->told, &sft->sample);
}

static Status sft_train(void *context, Run *run) {
    Sft *sft = context;
    note_plan(run, &sft->told);
    sft->trainer.run = run;
    return trainer_run(&sft->trainer, sft->result);
}

static void sft_release(void *context) {
    Sft *sft = context;
    data_plan_release(&sft->plan);
    data_check_release(&sft->check);
    jw_release(&sft->sample);
    batch_release(&sft->batch);
    free(sft->examples);
    free(sft->noise_keys);
    free(sft->values);
    free(sft->means);
    tape_free(sft->tape);
    recipe_rows_close(&sft->rows);
    if (sft->model) model_free(sft->model);
}

static const TrainingKind kind = {sft_load_result, sft_open, sft_report_plan, sft_started, sft_train, sft_release, true, .length = sft_length};

Status sft_run(const SftConfig *config, TrainResult *result) {
    Sft sft = {
        .config = config,
        .recipe = config->recipe,
        .loss = {.dft = config->recipe->train_loss == TRAIN_LOSS_DFT, .label_smoothing = config->recipe->train_label_smoothing},
        .result = result,
    };
    *result = (TrainResult){.best_step = -1};
    return training_run(&kind, &sft, &sft.recipe, &config->options);
}
