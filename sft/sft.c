/* SPDX-License-Identifier: Apache-2.0 */
/* Supervised fine-tuning: model, adapter, tokenizer and rows from the recipe, the objective, and the files written at the end. */
#include "sft/sft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/train/router_loads.h"
#include "lib/train/trainer.h"
#include "sft/distil.h"
#include "sft/distil_answers.h"
#include "sft/started.h"

typedef struct Sft {
    /* opened */
    DistilAnswers answers;
    RecipeRows rows;
    DataCheck check;
    SftLoss loss;
    Distil *distil; /* NULL: there is no teacher */
    RouterLoads routers;
    double *numbers; /* of a student with experts: the sums of distillation, then those of its routers; else NULL */
    /* of one batch */
    Batch batch;
    RngKey *noise_keys;     /* one for each segment */
    double *values, *means; /* of the trained tokens; later the upstream gradients */
    int64_t cap_values;
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

/* Reads the log-probabilities of the batch's targets into sft->values, and with `mean` the means over the vocabulary into sft->means. *p: on the
 * tape, for the backward pass. */
static Status sft_forward(Sft *sft, const Model *model, Tape *tape, bool mean, TokenLogprobs *p) {
    const Batch *batch = &sft->batch;
    int64_t n = batch->n_targets;
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, batch->rows);
    Tensor *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, batch->targets);
    if (!rows || !targets) return ST_RESOURCE;
    TRY(reserve_values(sft, n));
    TRY(router_loads_pass(&sft->routers, &sft->batch.model));
    Tensor *hidden = model_forward(model, tape, &batch->model);
    LogprobArgs args = model->logprob;
    args.mean = mean;
    *p = op_token_logprobs(tape, hidden, model->head, rows, targets, &args);
    TRY(tape_status(tape));
    memset(sft->values, 0, (size_t)n * sizeof *sft->values);
    memset(sft->means, 0, (size_t)n * sizeof *sft->means);
    if (!device_computes(tape_device(tape))) return ST_OK; /* the meta device computes no values */
    router_loads_count(&sft->routers);
    tensor_read(p->logprob, sft->values);
    if (mean) tensor_read(p->mean, sft->means);
    return ST_OK;
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
    sums->loss_sum += sum;
    sums->count += count;
}

/* ---- a batch ---- */

/* Keys of the embeddings' noise, one for each segment of the batch: a function of (seed, step, row), so that they do not depend on how a step is
 * split. */
static Status draw_noise(Sft *sft, const Recipe *recipe, const Pass *pass) {
    int32_t n_segments = sft->batch.model.layout.n_segments, segment = 0;
    if (recipe->train_neftune_alpha == 0) return ST_OK;
    TRY(array_resize(&sft->noise_keys, (size_t)n_segments, sizeof *sft->noise_keys, "rows of a batch"));
    RngKey of_step = rng_key((uint64_t)recipe->seed, RNG_NOISE, (uint64_t)pass->step);
    for (size_t i = 0; i < pass->n; i++) {
        RngKey of_row = rng_key(rng_u64(of_step, pass->rows[i]), RNG_NOISE, 0);
        int32_t n_branches = dataset_example(sft->rows.train, pass->rows[i]).n_branches;
        sft->noise_keys[segment++] = of_row;
        for (int32_t b = 1; b < n_branches; b++) sft->noise_keys[segment++] = rng_key(rng_u64(of_row, (uint64_t)b), RNG_NOISE, 1);
    }
    sft->batch.model.noise = (EmbedNoise){recipe->train_neftune_alpha, sft->noise_keys};
    return ST_OK;
}

/* Plain cross-entropy for any objective, so that its exponential is the perplexity. Adds tokens one by one, so that the sum does not depend on how a
 * batch is split. */
static Status evaluate_batch(Sft *sft, const Model *model, Tape *tape, LossSums *sums) {
    TokenLogprobs p;
    TRY(sft_forward(sft, model, tape, false, &p));
    for (int64_t i = 0; i < sft->batch.n_targets; i++) sums->loss_sum -= sft->values[i];
    sums->count += (double)sft->batch.n_targets;
    return ST_OK;
}

static Status train_batch(Sft *sft, const Model *model, Tape *tape, double divisor, LossSums *sums) {
    bool smooth = sft->loss.label_smoothing > 0;
    TokenLogprobs p;
    TRY(sft_forward(sft, model, tape, smooth, &p));
    losses_to_seeds(sft, divisor, sums);
    tensor_seed_grad(tape, p.logprob, sft->values);
    if (smooth) tensor_seed_grad(tape, p.mean, sft->means);
    return tape_backward(tape);
}

/* The sums of a student with experts are in two places. `use` gets each of them, and its place in sft->numbers. */
static void student_numbers(const Sft *sft, void (*use)(double *part, double *number)) {
    size_t n_distil, n_loads;
    double *distil = distil_numbers(sft->distil, &n_distil), *loads = router_loads_numbers(&sft->routers, &n_loads);
    for (size_t i = 0; sft->numbers && i < n_distil; i++) use(&distil[i], &sft->numbers[i]);
    for (size_t i = 0; sft->numbers && i < n_loads; i++) use(&loads[i], &sft->numbers[n_distil + i]);
}

static void part_clear(double *part, double *number) { (void)number, *part = 0; }
static void part_add(double *part, double *number) { *number += *part; }
static void part_take(double *part, double *number) { *part = *number; }

/* As train_batch, with the losses of a student. */
static Status teach_batch(Sft *sft, const Model *model, const Pass *pass, LossSums *sums) {
    student_numbers(sft, part_clear);
    TRY(router_loads_pass(&sft->routers, &sft->batch.model));
    TRY(distil_batch(sft->distil, model, pass, &sft->batch, sums));
    if (device_computes(tape_device(pass->tape))) router_loads_count(&sft->routers);
    student_numbers(sft, part_add);
    return tape_backward(pass->tape);
}

static Status student_open(Sft *sft) {
    size_t n_distil, n_loads;
    router_loads_numbers(&sft->routers, &n_loads);
    if (!sft->distil || n_loads == 0) return ST_OK;
    distil_numbers(sft->distil, &n_distil);
    sft->numbers = calloc(n_distil + n_loads, sizeof *sft->numbers);
    return sft->numbers ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the loads of experts");
}

static Status sft_batch(Trainer *trainer, const Pass *pass, LossSums *sums) {
    Sft *sft = trainer->context;
    TRY(batch_build(pass->held_out ? sft->rows.eval : sft->rows.train, pass->rows, pass->n, &sft->batch));
    if (pass->training && device_computes(tape_device(pass->tape))) TRY(draw_noise(sft, trainer->recipe, pass));
    sft->batch.model.step = pass->dropout;
    sums->tokens += sft->batch.model.layout.n_tokens;
    sums->loss_tokens += sft->batch.n_targets;
    if (sft->batch.n_targets == 0) return ST_OK; /* no token of these rows is trained; other batches of the step have some */
    if (pass->training && sft->distil) return teach_batch(sft, trainer->model, pass, sums);
    return pass->training ? train_batch(sft, trainer->model, pass->tape, pass->divisor, sums) : evaluate_batch(sft, trainer->model, pass->tape, sums);
}

/* The divisor of a step: the sum of the weights of its trained tokens. */
static Status sft_begin(Trainer *trainer, const Pass *all, double *divisor) {
    Sft *sft = trainer->context;
    double weights = 0;
    router_loads_begin(&sft->routers, all->n);
    if (all->held_out) return ST_OK;
    for (size_t i = 0; i < all->n; i++) {
        Example example = dataset_example(sft->rows.train, all->rows[i]);
        weights += example.weight * example.trained;
    }
    if (sft->distil) distil_begin(sft->distil, all->rows, all->n);
    *divisor = weights;
    if (weights > 0) return ST_OK;
    Str rows = {0};
    trainer_describe(trainer, all->step, 0, &rows);
    status_fail(ST_INPUT, "no token of the batch of step %lld is trained: %s", (long long)all->step + 1, str_text(&rows));
    str_release(&rows);
    return status_hint(ST_INPUT, "look at the labels of these rows, or take larger batches");
}

/* ---- rows ---- */

static Status sft_before(Trainer *trainer) {
    Sft *sft = trainer->context;
    TRY(distil_answer(trainer->recipe, trainer->config, &sft->answers));
    trainer->before = sft->answers.memory;
    return ST_OK;
}

static void say_answers(const DistilAnswers *answers, const RecipeRows *rows, RunPlan *plan) {
    if (answers->made)
        run_plan_say(plan, "teacher: %zu answers in %s", rows->train->n, answers->path);
    else if (answers->wanted)
        run_plan_say(plan, "teacher: its answers are not made in a dry run; this plan is of the rows' own answers");
}

/* If the template writes the date, the run's recipe records it. Rows are tokenised before memory is planned. */
static Status sft_open(Trainer *trainer, RunPlan *plan) {
    Sft *sft = trainer->context;
    RecipeRows *rows = &sft->rows;
    const char *day;
    TRY(recipe_day(trainer->recipe, trainer->config->options.resume, &day));
    TRY(recipe_rows_open(sft->answers.made ? &sft->answers.recipe : trainer->recipe, &trainer->model->config, day, rows));
    if (!trainer->recipe->data_now && chat_writes_date(rows->chat)) {
        trainer->dated = recipe_dated(trainer->recipe, day);
        trainer->recipe = &trainer->dated;
    }
    TRY(data_check(rows, &trainer->model->config, &sft->check));
    TRY(started_sample(rows->train, rows->tokenizer, plan));
    TRY(distil_open(trainer, rows, plan, &sft->distil));
    say_answers(&sft->answers, rows, plan);
    TRY(router_loads_open(&sft->routers, trainer->model, trainer->recipe->train_router_aux_loss_coef));
    TRY(student_open(sft));
    recipe_rows_are_read(rows);
    trainer->train = rows->train;
    trainer->eval = rows->eval;
    trainer_input(trainer, "data.train", dataset_fingerprint(rows->train));
    if (rows->eval) trainer_input(trainer, "data.eval", dataset_fingerprint(rows->eval));
    started_rows(rows, &sft->check, plan);
    return ST_OK;
}

/* If some rows have no trained token, a full step may consist of them: this is reported now rather than after hours. */
static Status sft_check(Trainer *trainer) {
    double divisor;
    if (trainer->train->counts.untrained == 0) return ST_OK;
    for (Pass all = {.training = true}; all.step < trainer->total_steps; all.step++) {
        TRY(trainer_rows(trainer, all.step, &all.rows, &all.n));
        TRY(sft_begin(trainer, &all, &divisor));
    }
    return ST_OK;
}

static void sft_release(Trainer *trainer) {
    Sft *sft = trainer->context;
    data_check_release(&sft->check);
    distil_close(sft->distil);
    router_loads_release(&sft->routers);
    batch_release(&sft->batch);
    free(sft->numbers);
    free(sft->noise_keys);
    free(sft->values);
    free(sft->means);
    recipe_rows_close(&sft->rows);
}

static double *sft_numbers(Trainer *trainer, size_t *n) {
    Sft *sft = trainer->context;
    size_t n_distil = 0;
    double *distil = sft->distil ? distil_numbers(sft->distil, &n_distil) : NULL, *loads = router_loads_numbers(&sft->routers, n);
    *n += n_distil;
    return sft->numbers ? sft->numbers : distil ? distil : loads;
}

static void sft_step_metrics(const Trainer *trainer, Metrics *metrics) {
    const Sft *sft = trainer->context;
    if (sft->distil) student_numbers(sft, part_take);
    if (sft->distil) distil_metrics(sft->distil, metrics);
    router_loads_metrics(&sft->routers, metrics);
}

static const Objective objective = {.before = sft_before,
                                    .open = sft_open,
                                    .check = sft_check,
                                    .begin = sft_begin,
                                    .batch = sft_batch,
                                    .numbers = sft_numbers,
                                    .step_metrics = sft_step_metrics,
                                    .release = sft_release};

Status sft_run(const TrainingConfig *config, TrainResult *result) {
    const Recipe *recipe = config->recipe;
    Sft sft = {.loss = {.dft = recipe->train_loss == TRAIN_LOSS_DFT, .label_smoothing = recipe->train_label_smoothing}};
    return trainer_run(&objective, &sft, config, result);
}
