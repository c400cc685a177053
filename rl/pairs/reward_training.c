/* SPDX-License-Identifier: Apache-2.0 */
/* Trains scores at the last token of answers or of their steps. */
#include "lib/base/system.h"
#include "rl/pairs/reward_training.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "data/formats/row_form.h"
#include "lib/recipe/keys.h"
#include "lib/train/router_loads.h"
#include "rl/pairs/preference_losses.h"
#include "rl/core/ratio.h"
#include "rl/common/rl_doctor.h"

typedef struct RewardTraining {
    /* from the recipe and its first row */
    bool stepwise;
    double centering;
    /* opened; not used by an evaluation of a finished model */
    PairRows set;
    RouterLoads routers;
    /* of an optimiser step or an evaluation */
    double steps;          /* labelled steps */
    RewardNumbers numbers; /* sums */
    /* of a batch */
    Arena *scratch;
    int32_t *rows;  /* row numbers of its scores in the hidden states */
    double *scores; /* their values; later their gradients */
    int64_t cap;
} RewardTraining;

static Status reward_training_reserve(RewardTraining *t, int64_t n) {
    if (n <= t->cap) return ST_OK;
    TRY(array_resize(&t->rows, (size_t)n, sizeof *t->rows, "scores"));
    TRY(array_resize(&t->scores, (size_t)n, sizeof *t->scores, "scores"));
    t->cap = n;
    return ST_OK;
}

/* ---- rows to score ---- */

/* The last tokens of both answers of each pair, in order. */
static Status rows_of_pairs(RewardTraining *t, const PairBatch *batch, int64_t *n) {
    *n = batch->n_branches;
    TRY(reward_training_reserve(t, *n));
    memcpy(t->rows, batch->ends, (size_t)*n * sizeof *t->rows);
    return ST_OK;
}

/* The trained tokens of each answer: the last token of each step. */
static Status rows_of_steps(RewardTraining *t, const Pairs *pairs, const size_t *rows, size_t n_rows, const PairBatch *batch, int64_t *n) {
    int64_t total = 0;
    for (size_t i = 0; i < n_rows; i++) total += pairs->rows[rows[i]].sides[0].n_trained;
    TRY(reward_training_reserve(t, total));
    *n = 0;
    for (size_t i = 0; i < n_rows; i++) {
        const PairSide *side = &pairs->rows[rows[i]].sides[0];
        int32_t first = batch->ends[2 * i] - (side->n - 1);
        for (int32_t k = 0; k < side->n; k++)
            if (side->trained[k]) t->rows[(*n)++] = first + k;
    }
    return ST_OK;
}

/* Runs the model on the prepared batch; `result`: on the tape, for the backward pass. On the meta device scores are 0. */
static Status reward_training_forward(RewardTraining *t, const Model *model, Tape *tape, PairBatch *batch, int64_t n, Tensor **result) {
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &n, t->rows);
    if (!rows) return ST_RESOURCE;
    TRY(router_loads_pass(&t->routers, &batch->model));
    *result = op_row_scores(tape, model_forward(model, tape, &batch->model), model->score, rows);
    TRY(tape_status(tape));
    memset(t->scores, 0, (size_t)n * sizeof *t->scores);
    if (!device_computes(tape_device(tape))) return ST_OK;
    router_loads_count(&t->routers);
    tensor_read(*result, t->scores);
    return ST_OK;
}

/* ---- losses ---- */

static Status pair_losses(RewardTraining *t, const Pairs *pairs, const size_t *rows, size_t n, double total, double *loss) {
    double *columns = arena_alloc(t->scratch, 6 * n * sizeof *columns), *chosen = columns, *rejected = columns + n, *margins = columns + 2 * n,
           *weights = columns + 3 * n;
    if (!columns) return ST_RESOURCE;
    RewardNumbers *sum = &t->numbers;
    for (size_t i = 0; i < n; i++) {
        chosen[i] = t->scores[2 * i], rejected[i] = t->scores[2 * i + 1];
        margins[i] = pairs->rows[rows[i]].margin, weights[i] = pairs->rows[rows[i]].weight;
        sum->rewards_chosen += chosen[i], sum->rewards_rejected += rejected[i];
        calibration_add(&sum->calibration, sigmoid(chosen[i] - rejected[i]), 1);
    }
    RewardBatch batch = {.n = (int64_t)n,
                         .chosen = chosen,
                         .rejected = rejected,
                         .margins = margins,
                         .weights = weights,
                         .centering = t->centering,
                         .total = (int64_t)total};
    RewardMetrics metrics;
    reward_model_loss(&batch, columns + 4 * n, columns + 5 * n, &metrics);
    for (size_t i = 0; i < n; i++) t->scores[2 * i] = columns[4 * n + i], t->scores[2 * i + 1] = columns[5 * n + i];
    double pairs_done = (double)n;
    sum->n += pairs_done, sum->chosen += pairs_done, sum->rejected += pairs_done;
    sum->accuracy += pairs_done * metrics.accuracy;
    *loss = metrics.loss;
    return ST_OK;
}

/* Cross-entropy of sigmoid(score) with the label, which may be a probability. */
static void step_losses(RewardTraining *t, const Pairs *pairs, const size_t *rows, size_t n, double *loss) {
    RewardNumbers *sum = &t->numbers;
    int64_t k = 0;
    *loss = 0;
    for (size_t i = 0; i < n; i++) {
        const PairRow *row = &pairs->rows[rows[i]];
        double share = row->weight / t->steps;
        for (int32_t s = 0; s < row->sides[0].n_trained; s++, k++) {
            double label = row->sides[0].labels[s], score = t->scores[k], p = sigmoid(score);
            bool right = label >= 0.5;
            *loss -= share * (label * log_sigmoid(score) + (1 - label) * log_sigmoid(-score));
            t->scores[k] = share * (p - label);
            sum->n++;
            sum->accuracy += (score > 0) == right;
            *(right ? &sum->chosen : &sum->rejected) += 1;
            *(right ? &sum->rewards_chosen : &sum->rewards_rejected) += score;
            calibration_add(&sum->calibration, p, label);
        }
    }
}

/* Computes scores and losses of a batch's rows and replaces t->scores by the gradients. loss: their part of the mean over the step. */
static Status score_batch(RewardTraining *t, const Model *model, Tape *tape, PairBatch *batch, const StepContext *step, const Pairs *pairs,
                          const size_t *rows, size_t n, double total, Tensor **result, double *loss) {
    int64_t n_scores;
    TRY(pair_batch_build(pairs, rows, n, &(PairBatchOptions){.ends = true}, batch));
    batch->model.step = *step;
    TRY(t->stepwise ? rows_of_steps(t, pairs, rows, n, batch, &n_scores) : rows_of_pairs(t, batch, &n_scores));
    TRY(reward_training_forward(t, model, tape, batch, n_scores, result));
    arena_reset(t->scratch);
    if (!t->stepwise) return pair_losses(t, pairs, rows, n, total, loss);
    step_losses(t, pairs, rows, n, loss);
    return ST_OK;
}

static void count_steps(RewardTraining *t, const Pairs *pairs, const size_t *rows, size_t n) {
    t->numbers = (RewardNumbers){0};
    t->steps = 0;
    for (size_t i = 0; i < n; i++) t->steps += pairs->rows[rows[i]].sides[0].n_trained;
}

/* ---- the objective ---- */

static Status reward_training_begin(Trainer *trainer, const Pass *all, double *divisor) {
    RewardTraining *t = trainer->context;
    (void)divisor;
    router_loads_begin(&t->routers, all->n);
    count_steps(t, pair_rows_set(&t->set, all), all->rows, all->n);
    return ST_OK;
}

static Status reward_training_batch(Trainer *trainer, const Pass *pass, LossSums *sums) {
    RewardTraining *t = trainer->context;
    const Pairs *pairs = pair_rows_set(&t->set, pass);
    PairBatch *batch = &t->set.batch;
    Tensor *result;
    double loss;
    if (t->steps == 0) count_steps(t, pairs, pass->rows, pass->n); /* the batch of the memory plan, which belongs to no step */
    TRY(score_batch(t, trainer->model, pass->tape, batch, &pass->dropout, pairs, pass->rows, pass->n, pass->divisor, &result, &loss));
    t->numbers.loss += loss;
    sums->loss_sum += loss * pass->divisor;
    sums->count += (double)pass->n;
    sums->tokens += batch->model.layout.n_tokens;
    sums->loss_tokens += tensor_count(result);
    if (!pass->training) return ST_OK;
    tensor_seed_grad(pass->tape, result, t->scores);
    return tape_backward(pass->tape);
}

static double *reward_training_numbers(Trainer *trainer, size_t *n) {
    RewardTraining *t = trainer->context;
    *n = offsetof(RewardNumbers, left_out) / sizeof(double);
    return &t->numbers.n;
}

static int64_t reward_training_tokens(const Trainer *trainer, size_t row) {
    const RewardTraining *t = trainer->context;
    return pair_row_computed(&t->set.train->rows[row], true);
}

static void reward_training_metrics(const Trainer *trainer, Metrics *metrics) {
    const RewardTraining *t = trainer->context;
    const RewardNumbers *m = &t->numbers;
    double chosen = m->rewards_chosen / m->chosen, rejected = m->rewards_rejected / m->rejected;
    metric_set(metrics, t->stepwise ? "rewards_right" : "rewards_chosen", chosen);
    metric_set(metrics, t->stepwise ? "rewards_wrong" : "rewards_rejected", rejected);
    metric_set(metrics, "margin", chosen - rejected);
    metric_set(metrics, "accuracy", m->accuracy / m->n);
    metric_set(metrics, "calibration_error", calibration_error(&m->calibration));
    metric_set(metrics, "brier", calibration_brier(&m->calibration));
}

/* As of tune sft: only if all rows of the step were computed by this process. */
static void reward_training_step_metrics(const Trainer *trainer, Metrics *metrics) {
    const RewardTraining *t = trainer->context;
    if (trainer->ranks == 1) router_loads_metrics(&t->routers, metrics);
}

/* ---- pairs or steps ---- */

typedef struct FirstRow {
    RowForm form;
    bool stepwise;
} FirstRow;

static Status reward_training_read_first(void *context, const Row *row) {
    FirstRow *first = context;
    const char *shape;
    json_t *json;
    TRY(row_shape(&first->form, row->json, &json, &shape));
    first->stepwise = data_format_find("stepwise")->detect(json) || (json_object_get(json, "completions_ids") && json_object_get(json, "labels"));
    json_decref(json);
    return ST_OK;
}

/* Errors are left to the code that reads all rows. */
static Status pass_over(void *context, const Row *row) {
    (void)context, (void)row;
    return ST_OK;
}

static Status first_row(const Recipe *recipe, const DataSource *source, bool *stepwise) {
    const char **paths;
    size_t n;
    FirstRow first = {.form = row_form(&(DataConfig){.columns = recipe->data_columns}, ROWS_AS_SCORED)};
    TRY(rows_expand(source->path, recipe->arena, &paths, &n));
    TRY(row_form_begin(&first.form, source));
    Status status = rows_read_as(paths[0], &(RowsConfig){.max_rows = 1, .bad = pass_over}, reward_training_read_first, &first);
    row_form_release(&first.form);
    *stepwise = first.stepwise;
    return status;
}

static Status kind_of_rows(const Recipe *recipe, bool *stepwise) {
    const char *format = recipe->data_format;
    *stepwise = strcmp(format, "stepwise") == 0;
    if (*stepwise || strcmp(format, "preference") == 0) return ST_OK;
    if (strcmp(format, "auto") != 0) {
        status_fail(ST_CONFIG, "rows of format '%s' have no preferences", format);
        return status_hint(ST_CONFIG, "data.format: preference for pairs, stepwise for answers with judged steps");
    }
    DataSource *sources;
    size_t n;
    TRY(data_sources(recipe->data_train, "data.train", recipe->arena, &sources, &n));
    return n > 0 ? first_row(recipe, &sources[0], stepwise) : ST_OK;
}

static Status reward_training_open(Trainer *trainer, RunPlan *plan) {
    RewardTraining *t = trainer->context;
    Str use = {0};
    TRY(pair_rows_open(trainer, &t->set, plan));
    if (!t->stepwise && !t->set.at_turn) reward_use(trainer->recipe, &trainer->model->config, &use);
    if (use.len > 0) run_plan_text(plan, PLAN_RECORD, "use", str_text(&use));
    str_release(&use);
    return router_loads_open(&t->routers, trainer->model, trainer->recipe->train_router_aux_loss_coef);
}

static void reward_training_free(RewardTraining *t) {
    pair_rows_release(&t->set);
    router_loads_release(&t->routers);
    arena_free(t->scratch);
    free(t->rows);
    free(t->scores);
}

static void reward_training_release(Trainer *trainer) { reward_training_free(trainer->context); }

Status reward_training_run(const TrainingConfig *config, TrainResult *result) {
    static const Objective objective = {.scores = true,
                                        .open = reward_training_open,
                                        .begin = reward_training_begin,
                                        .batch = reward_training_batch,
                                        .numbers = reward_training_numbers,
                                        .tokens = reward_training_tokens,
                                        .metrics = reward_training_metrics,
                                        .step_metrics = reward_training_step_metrics,
                                        .release = reward_training_release,
                                        .reader = &rl_report_reader};
    RewardTraining t = {.centering = config->recipe->train_center_rewards_coefficient};
    TRY(kind_of_rows(config->recipe, &t.stepwise));
    if (!t.stepwise)
        TRY(recipe_unread(config->recipe, "data.step_separator", "leave it out", "does nothing: the rows are of format preference, not stepwise"));
    if (!t.stepwise) TRY(recipe_unread(config->recipe, "data.train_on", "leave it out", "does nothing: a score is of a whole answer"));
    TRY(recipe_unread(config->recipe, "eval.metrics", "leave it out", "does nothing: a reward model has metrics of its own"));
    if (t.stepwise && t.centering > 0)
        return status_fail(
            ST_CONFIG, "'train.center_rewards_coefficient' is for pairs: the score of a step is the logit of a probability and cannot be shifted");
    t.set = (PairRows){.reader = "a reward model", .unpaired = t.stepwise, .stepwise = t.stepwise};
    t.scratch = arena_new(0);
    if (!t.scratch) return status_fail(ST_RESOURCE, "out of memory");
    return trainer_run(&objective, &t, config, result);
}

/* ---- evaluating a finished model ---- */

enum { EVALUATION_ROWS = 8 };

static Status evaluate_pairs(const RewardEvaluation *config, RewardTraining *t, Tape *tape, const Pairs *pairs) {
    PairBatch batch = {0};
    size_t *rows = malloc(pairs->n * sizeof *rows);
    Status status = rows ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu rows", pairs->n);
    for (size_t i = 0; rows && i < pairs->n; i++) rows[i] = i;
    if (rows) count_steps(t, pairs, rows, pairs->n);
    for (size_t i = 0; i < pairs->n && status == ST_OK; i += EVALUATION_ROWS) {
        size_t n = MIN((size_t)EVALUATION_ROWS, pairs->n - i);
        Tensor *result;
        double loss = 0;
        tape_reset(tape);
        status = interrupt_requested()
                     ? status_fail(ST_INTERRUPTED, "interrupted")
                     : score_batch(t, config->model, tape, &batch, &(StepContext){0}, pairs, rows + i, n, (double)pairs->n, &result, &loss);
        t->numbers.loss += loss;
        if (config->on_progress) config->on_progress(config->context, i + n, pairs->n);
    }
    pair_batch_release(&batch);
    free(rows);
    return status;
}

static Status reward_training_evaluate(const RewardEvaluation *config, const Recipe *recipe, RewardTraining *t) {
    Tape *tape = tape_new(config->model->device, config->model->compute, 0);
    Pairs *pairs = NULL;
    PairSource source = {.model = &config->model->config,
                         .tokenizer = config->tokenizer,
                         .chat = config->chat,
                         .unpaired = t->stepwise,
                         .stepwise = t->stepwise,
                         .ends = true,
                         .at_turn = config->at_turn,
                         .reader = "a reward model"};
    Status status = tape && t->scratch ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the tape");
    if (tape) tape_record(tape, false);
    if (status == ST_OK) status = pairs_load(recipe, "--data", recipe->data_train, &source, &pairs);
    if (status == ST_OK && config->say) pairs_report(pairs, recipe, config->data, config->say, config->context);
    if (status == ST_OK) status = evaluate_pairs(config, t, tape, pairs);
    for (int i = 0; status == ST_OK && i < PAIR_DROPS; i++) t->numbers.left_out += pairs->dropped[i];
    pairs_free(pairs);
    tape_free(tape);
    return status;
}

Status reward_evaluate(const RewardEvaluation *config, RewardNumbers *numbers, bool *stepwise) {
    Arena *arena = arena_new(0);
    RewardTraining t = {.scratch = arena_new(0)};
    Recipe *recipe = NULL;
    const char *overrides[] = {arena ? arena_printf(arena, "data.max_length=%lld", (long long)config->max_length) : NULL,
                               arena ? arena_printf(arena, "data.truncation=%s", config->truncation) : NULL};
    Yaml data = {.kind = YAML_SCALAR, .text = config->data};
    Status status = overrides[0] && overrides[1] ? recipe_read(NULL, overrides, COUNT_OF(overrides), &recipe) : ST_RESOURCE;
    if (status == ST_OK) {
        recipe->data_train = &data;
        recipe->data_system = config->system;
        recipe->data_as = config->as ? (enum data_as)key_choice(key_find("data.as"), config->as) : DATA_AS_TEXT;
        status = first_row(recipe, &(DataSource){.path = config->data}, &t.stepwise);
    }
    if (status == ST_OK) status = reward_training_evaluate(config, recipe, &t);
    *numbers = t.numbers;
    *stepwise = t.stepwise;
    if (recipe) {
        recipe->data_train = NULL;
        recipe_free(recipe);
    }
    reward_training_free(&t);
    arena_free(arena);
    return status;
}
