/* SPDX-License-Identifier: Apache-2.0 */
/* Implicit Q-learning on tokens. */
#include "lib/base/system.h"
#include "rl/offline/ilql.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/train/stepper.h"
#include "lib/train/trained_model.h"
#include "lib/train/training.h"
#include "rl/loop/rl_doctor.h"
#include "rl/loop/run_chat.h"
#include "rl/text/text_pass.h"

enum { PASS_TOKENS = 2048, PASS_VALUES = 1 << 23 }; /* limits of a pass: tokens; Q values of a head */

typedef struct Ilql {
    const TrainingConfig *config;
    /* opened */
    const Recipe *recipe;
    Recipe dated; /* the recipe with the date on which the run began, if the template writes the date */
    IlqlConfig loss;
    double tau;
    int64_t target_every;
    Model *model;
    IlqlHeads heads;
    OfflineRows rows;
    TextPass pass;
    Stepper stepper;
    Arena *arena;
    int64_t rows_per_step, steps_per_epoch, total_steps;
    /* of a step and its passes */
    Experience experience;
    double *q, *dq;                              /* (tokens of a pass, V) */
    double *target_q, *targets, *dv, *dlogprobs; /* (tokens of a pass and the states after them) */
    int64_t cap_tokens;
    /* counters */
    int64_t done;
    double first_loss, last_loss;
} Ilql;

/* ---- one pass ---- */

static Status ilql_reserve(Ilql *il, int64_t tokens) {
    if (tokens <= il->cap_tokens) return ST_OK;
    size_t n = (size_t)tokens, vocab = (size_t)il->model->config.vocab_size;
    double **const by_action[] = {&il->q, &il->dq}, **const by_token[] = {&il->target_q, &il->targets, &il->dv, &il->dlogprobs};
    for (size_t i = 0; i < COUNT_OF(by_action); i++) TRY(array_resize(by_action[i], n, vocab * sizeof(double), "values of actions"));
    for (size_t i = 0; i < COUNT_OF(by_token); i++) TRY(array_resize(by_token[i], n, sizeof(double), "values of tokens"));
    il->cap_tokens = tokens;
    return ST_OK;
}

/* Outputs of the heads for a pass's states. */
typedef struct Heads {
    Tensor *q[2], *target[2], *v;
} Heads;

static Status run_heads(const IlqlHeads *heads, TextPass *pass, Heads *out) {
    Tape *tape = pass->tape;
    /* Rows of the states in which an action was taken */
    Tensor *states = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &pass->n_targets, pass->rows);
    if (!states) return ST_RESOURCE;
    out->v = ilql_head_forward(tape, &heads->v, pass->hidden, pass->places);
    for (int k = 0; k < 2; k++) out->q[k] = ilql_head_forward(tape, &heads->q[k], pass->hidden, states);
    tape_record(tape, false);
    for (int k = 0; k < 2; k++) out->target[k] = ilql_head_forward(tape, &heads->target[k], pass->hidden, states);
    tape_record(tape, true);
    return tape_status(tape);
}

/* Computes V of the states and the smaller target Q of the actions of sequences first .. first + n - 1. */
static void read_heads(Ilql *il, const Heads *heads, int64_t first, int64_t n) {
    Experience *e = &il->experience;
    int64_t begin = e->begin[first], count = il->pass.n_targets, vocab = il->model->config.vocab_size, final = count;
    for (int64_t t = 0; t < count; t++) {
        int64_t at = t * vocab + e->ids[begin + t];
        e->values[begin + t] = tensor_get(heads->v, t);
        il->target_q[t] = fmin(tensor_get(heads->target[0], at), tensor_get(heads->target[1], at));
    }
    for (int64_t i = first; i < first + n; i++)
        if (!e->ended[i]) e->final_values[e->begin[i + 1] - 1] = tensor_get(heads->v, final++);
}

/* Forward and backward pass of sequences first .. first + n - 1 of a step with `total` trained tokens. */
static Status ilql_learn(Ilql *il, int64_t first, int64_t n, int64_t total, IlqlMetrics *metrics) {
    Experience *e = &il->experience;
    Tape *tape = il->pass.tape;
    int64_t begin = e->begin[first];
    Heads heads;
    TRY(text_pass_forward(&il->pass, il->model, e, first, n, &(TextResults){.logprobs = e->logprobs + begin}));
    TRY(run_heads(&il->heads, &il->pass, &heads));
    TRY(ilql_reserve(il, il->pass.n_targets + il->pass.n_finals));
    read_heads(il, &heads, first, n);
    IlqlBatch batch = {
        .tokens = {.T = il->pass.n_targets,
                   .B = 1,
                   .actions = e->ids + begin,
                   .values = e->values + begin,
                   .rewards = e->token_rewards + begin,
                   .terminated = e->terminated + begin,
                   .truncated = e->truncated + begin,
                   .valid = e->trained + begin},
        .final_values = e->final_values + begin,
        .target_q = il->target_q,
        .logprobs = e->logprobs + begin,
        .total = total,
    };
    ilql_targets(&il->loss, &batch, il->targets);
    for (int k = 0; k < 2; k++) {
        tensor_read(heads.q[k], il->q);
        ilql_q_loss(&il->loss, &batch, il->q, il->model->config.vocab_size, il->targets, il->dq, metrics);
        tensor_seed_grad(tape, heads.q[k], il->dq);
    }
    ilql_v_loss(&il->loss, &batch, il->dv, metrics);
    /* final states are targets only, without gradient */
    for (int64_t t = il->pass.n_targets; t < il->pass.n_targets + il->pass.n_finals; t++) il->dv[t] = 0;
    tensor_seed_grad(tape, heads.v, il->dv);
    ilql_policy_loss(&il->loss, &batch, il->dlogprobs, metrics);
    return text_pass_backward(&il->pass, &(TextGradients){.logprobs = il->dlogprobs});
}

/* ---- steps ---- */

static Status take_rows(Ilql *il, int64_t step) {
    DataOrder order = {&il->rows.table, (uint64_t)il->recipe->seed, il->recipe->data_shuffle};
    experience_clear(&il->experience, 1);
    for (int64_t i = 0; i < il->rows_per_step; i++)
        TRY(offline_rows_add(&il->rows, data_order_place(&order, step * il->rows_per_step + i), &il->experience));
    return ST_OK;
}

static Status not_finite(const Ilql *il, const char *what) {
    return status_hint(status_fail(ST_NUMERIC, "the %s is not finite in step %lld", what, (long long)il->done + 1), "lower train.learning_rate");
}

static double loss_of(const IlqlConfig *config, const IlqlMetrics *m) {
    return m->q_loss + m->v_loss + config->cql * m->cql_loss + config->awac * m->awac_loss;
}

static void ilql_report(const Ilql *il, const IlqlMetrics *m, double norm, double rate, Metrics *metrics) {
    double n = fmax(1, (double)m->tokens);
    metric_set(metrics, "loss", loss_of(&il->loss, m));
    metric_set(metrics, "q_loss", m->q_loss);
    metric_set(metrics, "v_loss", m->v_loss);
    metric_set(metrics, "cql_loss", m->cql_loss);
    metric_set(metrics, "awac_loss", m->awac_loss);
    metric_set(metrics, "q", m->q / n);
    metric_set(metrics, "v", m->v / n);
    metric_set(metrics, "advantage", m->advantage / n);
    metric_set(metrics, "grad_norm", norm);
    metric_set(metrics, "learning_rate", rate);
    metric_count(metrics, "tokens", il->experience.n_tokens);
    metric_set(metrics, "epoch", (double)(il->done + 1) / (double)il->steps_per_epoch);
}

static Status ilql_step(void *context, int64_t number, Metrics *metrics) {
    Ilql *il = context;
    Params *params = &il->model->params;
    IlqlMetrics m = {0};
    int64_t total = 0;
    TRY(take_rows(il, number));
    for (int64_t t = 0; t < il->experience.n_tokens; t++) total += il->experience.trained[t];
    for (int64_t i = 0, n; i < il->experience.n; i += n) {
        if (interrupt_requested()) {
            params_zero_grad(params);
            return ST_INTERRUPTED;
        }
        n = text_pass_fit(&il->pass, &il->experience, i, il->experience.n);
        TRY(ilql_learn(il, i, n, total, &m));
    }
    double norm = stepper_norm(&il->stepper, params), rate = stepper_rate(&il->stepper, il->done);
    if (!isfinite(loss_of(&il->loss, &m))) return not_finite(il, "loss");
    if (!isfinite(norm)) return not_finite(il, "gradient");
    stepper_update(&il->stepper, params, norm, rate, il->done + 1);
    ilql_report(il, &m, norm, rate, metrics);
    il->done = number + 1;
    if (il->done % il->target_every == 0) ilql_heads_follow(&il->heads, il->tau);
    il->last_loss = metric_get(metrics, "loss");
    if (number == 0) il->first_loss = il->last_loss;
    return ST_OK;
}

static void ilql_list_state(void *context, StateList *states) {
    Ilql *il = context;
    state_weights(states, &il->model->params);
    state_optimizer(states, &il->model->params);
    ilql_heads_list_state(&il->heads, states);
    state_count(states, "done", &il->done);
    state_real(states, "first_loss", &il->first_loss);
    state_real(states, "last_loss", &il->last_loss);
}

static Status ilql_finish(void *context, Run *run) {
    const Ilql *il = context;
    const char *path = run_path(run, "ilql_heads.safetensors");
    if (!path) return ST_RESOURCE;
    TRY(ilql_heads_save(&il->heads, path));
    return trained_model_save(il->recipe, il->model, run_dir(run));
}

static json_t *ilql_summary(void *context) {
    const Ilql *il = context;
    return json_pack("{s:o, s:o}", "first_loss", json_real_or_null(il->first_loss), "last_loss", json_real_or_null(il->last_loss));
}

/* ---- memory ---- */

/* The largest pass: the longest rows that fit together. */
typedef struct Largest {
    Ilql *il;
    Experience experience;
    int64_t pass_tokens;
} Largest;
typedef struct RowLength {
    size_t row;
    int64_t n;
} RowLength;

static int longer_first(const void *a, const void *b) {
    const RowLength *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : (x->row > y->row) - (x->row < y->row);
}

static Status gather_longest(const Ilql *il, Experience *e) {
    size_t n = il->rows.n;
    RowLength *lengths = malloc(n * sizeof *lengths);
    if (!lengths) return status_fail(ST_RESOURCE, "out of memory for the plan of a step");
    /* Counts as text_pass_rows does */
    for (size_t i = 0; i < n; i++) lengths[i] = (RowLength){i, (int64_t)il->rows.items[i].prompt.ids.n + il->rows.items[i].n - 1};
    qsort(lengths, n, sizeof *lengths, longer_first);
    experience_clear(e, 1);
    Status status = ST_OK;
    int64_t left = MAX(il->pass.max_tokens, lengths[0].n), rows = 0;
    for (size_t i = 0; i < MAX(n, (size_t)il->rows_per_step) && rows < il->rows_per_step && status == ST_OK; i++) {
        const RowLength *row = &lengths[i % n];
        if (row->n > left) continue;
        left -= row->n;
        rows++;
        status = offline_rows_add(&il->rows, row->row, e);
    }
    free(lengths);
    return status;
}

static Status seed_heads(Tape *tape, const Heads *heads) {
    double *zeros = calloc((size_t)MAX(tensor_count(heads->q[0]), tensor_count(heads->v)), sizeof *zeros);
    if (!zeros) return status_fail(ST_RESOURCE, "out of memory for the plan of a step");
    for (int k = 0; k < 2; k++) tensor_seed_grad(tape, heads->q[k], zeros);
    tensor_seed_grad(tape, heads->v, zeros);
    free(zeros);
    return tape_status(tape);
}

/* Forward and backward. */
static Status largest_pass(void *context, Tape *meta) {
    Largest *largest = context;
    const Ilql *il = largest->il;
    const Experience *e = &largest->experience;
    TRY(gather_longest(il, &largest->experience));
    memset(e->logprobs, 0, (size_t)e->n_tokens * sizeof(double));
    TextPass pass = {.tape = meta, .temperature = il->pass.temperature, .max_tokens = il->pass.max_tokens, .finals = il->pass.finals};
    int64_t n = text_pass_fit(&pass, e, 0, e->n);
    Heads heads;
    Status status = text_pass_forward(&pass, il->model, e, 0, n, &(TextResults){.logprobs = e->logprobs});
    if (status == ST_OK && !tape_tensor(meta, DT_F64, 2, (int64_t[]){pass.n_targets + pass.n_finals, 2 * il->model->config.vocab_size + 4}))
        status = tape_status(meta); /* as the real allocation does */
    if (status == ST_OK) status = run_heads(&il->heads, &pass, &heads);
    if (status == ST_OK) status = seed_heads(meta, &heads);
    if (status == ST_OK) status = text_pass_backward(&pass, &(TextGradients){.logprobs = e->logprobs});
    text_pass_release(&pass);
    return status;
}

static void ilql_split(void *context, int64_t most_tokens) {
    Largest *largest = context;
    largest->il->pass.max_tokens = most_tokens > 0 ? MIN(most_tokens, largest->pass_tokens) : largest->pass_tokens;
}

static Status plan_ilql_memory(Ilql *il, TrainMemory *memory) {
    Largest largest = {.il = il, .pass_tokens = il->pass.max_tokens};
    MemoryTask task = {
        .recipe = il->recipe, .model = il->model, .tape = il->pass.tape, .context = &largest, .largest = largest_pass, .split = ilql_split};
    Status status = train_memory_plan(&task, il->config->options.resume ? il->recipe->output : NULL, memory);
    experience_release(&largest.experience);
    return status;
}

/* ---- the run ---- */

/* Frees tokenizer and template before memory is planned. */
static Status read_rows(Ilql *il) {
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    Status status = run_chat_open(&il->recipe, il->config->options.resume, &il->dated, &tokenizer, &chat);
    if (status == ST_OK) status = offline_rows_read(il->recipe, &il->model->config, chat, tokenizer, &il->rows);
    if (status == ST_OK) row_notes_warn(&il->rows.table.notes, "data.train");
    chat_close(chat);
    tokenizer_free(tokenizer);
    return status;
}

static int64_t total_of(const Ilql *il, const Recipe *r) {
    return r->train_max_steps > 0 ? r->train_max_steps : (int64_t)ceil(r->train_epochs * (double)il->steps_per_epoch);
}

static Status ilql_length(void *context, const Recipe *recipe, RunLength *length) {
    int64_t steps = total_of(context, recipe);
    *length = (RunLength){.steps = steps, .schedule_steps = steps, .schedule_rate = 1};
    return ST_OK;
}

static Status open_parts(Ilql *il) {
    const Recipe *r = il->recipe;
    if (r->data_eval || r->eval_data || r->data_eval_split > 0)
        return status_hint(status_fail(ST_CONFIG, "algorithm 'ilql' does not evaluate on held-out rows"),
                           "leave out data.eval and data.eval_split, and look at its answers with tune generate --ilql");
    if (r->reward)
        return status_hint(status_fail(ST_CONFIG, "algorithm 'ilql' learns from the rewards in its rows, not from 'reward'"),
                           "leave out reward; rows have \"reward\" or \"rewards\"");
    if (r->has_lora && r->lora_dropout > 0) return status_hint(status_fail(ST_CONFIG, "'lora.dropout' is not possible in rl"), "leave it at 0");
    il->loss = (IlqlConfig){
        .gamma = r->rl_gamma, .expectile = r->rl_expectile, .cql = r->rl_cql_alpha, .awac = r->rl_awac_coef, .awac_beta = r->rl_awac_beta};
    il->tau = isnan(r->rl_tau) ? 0.005 : r->rl_tau;
    il->target_every = r->rl_target_every > 0 ? r->rl_target_every : 1;
    TRY(trained_model_open(r, il->config->runtime, &il->model));
    TRY(read_rows(il));
    r = il->recipe;
    TRY(ilql_heads_add(il->model, r->rl_q_width, (uint64_t)r->seed, true, &il->heads));
    int64_t most = MAX(PASS_VALUES / il->model->config.vocab_size, 16);
    il->pass = (TextPass){.tape = tape_new(il->model->device, il->model->compute, 0),
                          .temperature = 1,
                          .max_tokens = MIN(r->train_batch_tokens > 0 ? r->train_batch_tokens : PASS_TOKENS, most),
                          .finals = true};
    if (!il->pass.tape) return status_fail(ST_RESOURCE, "out of memory for the run");
    il->rows_per_step = r->train_batch_size * r->train_gradient_accumulation_steps;
    il->steps_per_epoch = ((int64_t)il->rows.n + il->rows_per_step - 1) / il->rows_per_step;
    il->total_steps = total_of(il, r);
    TRY(recipe_check_steps(r, il->total_steps));
    return stepper_init(&il->stepper, r, il->total_steps);
}

static void say_rows(const OfflineRows *rows, RunPlan *plan) {
    run_plan_say(plan, "data: %zu row%s, %lld token%s, %lld of them trained; mean reward %s", rows->n, plural((int64_t)rows->n),
                 (long long)rows->tokens, plural(rows->tokens), (long long)rows->trained_tokens, NUMBER(rows->mean_reward));
    run_plan_form(plan, &rows->table);
    data_counts_warn(&rows->table.counts, "data.train", run_plan_warn, plan);
    if (rows->dropped) {
        char text[128];
        snprintf(text, sizeof text, "data.train: %lld row%s longer than data.max_length left out", (long long)rows->dropped, plural(rows->dropped));
        run_plan_warn(plan, text);
    }
    run_plan_count(plan, PLAN_BOTH, "rows", (int64_t)rows->n);
    run_plan_count(plan, PLAN_PRINT, "tokens", rows->tokens);
    run_plan_count(plan, PLAN_PRINT, "trained_tokens", rows->trained_tokens);
    run_plan_count(plan, PLAN_PRINT, "eval_rows", 0);
}

static Status ilql_open(void *context, RunPlan *plan) {
    Ilql *il = context;
    TRY(open_parts(il));
    TRY(plan_ilql_memory(il, &plan->memory));
    run_plan_text(plan, PLAN_RECORD, "algorithm", il->recipe->rl_algorithm);
    say_rows(&il->rows, plan);
    run_plan_count(plan, PLAN_BOTH, "steps", il->total_steps);
    run_plan_model(plan, il->recipe, il->model, " and Q and V heads");
    run_plan_say(plan, "plan: %lld step%s", (long long)il->total_steps, plural(il->total_steps));
    return ST_OK;
}

static Status ilql_train(void *context, Run *run) {
    static const Shown shown[] = {{.metric = "loss", .label = "loss", .digits = 4}, {.metric = "advantage", .label = "advantage"}, {0}};
    Ilql *il = context;
    LoopTask task = {
        .context = il,
        .inputs = {{"model.path", model_fingerprint(il->model)}, {"data.train", offline_rows_fingerprint(&il->rows)}},
        .total = il->total_steps,
        .step = ilql_step,
        .list_state = ilql_list_state,
        .shown = shown,
        .rate = "tokens",
        .rate_kept = true,
        .finish = ilql_finish,
        .summary = ilql_summary,
    };
    TRY(optimizer_init(&il->stepper.optimizer, &il->model->params, il->arena));
    return loop_run(il->config, il->recipe, run, &task);
}

static void ilql_release(void *context) {
    Ilql *il = context;
    double *const arrays[] = {il->q, il->dq, il->target_q, il->targets, il->dv, il->dlogprobs};
    Tape *tape = il->pass.tape;
    text_pass_release(&il->pass);
    tape_free(tape);
    experience_release(&il->experience);
    for (size_t i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
    offline_rows_free(&il->rows);
    if (il->model) model_free(il->model);
    arena_free(il->arena);
}

Status ilql_run(const TrainingConfig *config, TrainResult *result) {
    static const char *const results[] = {"steps", "first_loss", "last_loss", "seconds", NULL};
    static const TrainingKind kind = {.open = ilql_open,
                                      .train = ilql_train,
                                      .release = ilql_release,
                                      .results = results,
                                      .has_template = true,
                                      .length = ilql_length,
                                      .reader = &rl_report_reader};
    Ilql il = {.config = config, .recipe = config->recipe, .arena = arena_new(0), .first_loss = (double)NAN, .last_loss = (double)NAN};
    if (!il.arena) return status_fail(ST_RESOURCE, "out of memory for the run");
    return training_run(&kind, &il, &il.recipe, config, result);
}
