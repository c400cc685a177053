/* SPDX-License-Identifier: Apache-2.0 */
/* Implicit Q-learning on tokens. */
#include "rl/offline/ilql.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/train/trainer.h"
#include "rl/common/rl_doctor.h"
#include "rl/common/run_chat.h"
#include "rl/text/text_pass.h"

enum { PASS_TOKENS = 2048, PASS_VALUES = 1 << 23 }; /* limits of a pass: tokens; Q values of a head */

/* Sums for metrics, as IlqlMetrics. */
typedef struct IlqlNumbers {
    double q_loss, v_loss, cql_loss, awac_loss, q, v, advantage, tokens;
} IlqlNumbers;

typedef struct Ilql {
    /* opened */
    IlqlConfig loss;
    double tau;
    int64_t target_every;
    IlqlHeads heads;
    OfflineRows rows;
    TextPass pass;
    /* of a pass */
    Experience experience;
    double *q, *dq;                              /* (tokens of a pass, V) */
    double *target_q, *targets, *dv, *dlogprobs; /* (tokens of a pass and the states after them) */
    int64_t cap_tokens;
    IlqlNumbers numbers;
} Ilql;

/* ---- one pass ---- */

static Status ilql_reserve(Ilql *il, int64_t tokens, size_t vocab) {
    if (tokens <= il->cap_tokens) return ST_OK;
    size_t n = (size_t)tokens;
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

/* Computes V of the states and the smaller target Q of the actions of n sequences. */
static void read_heads(Ilql *il, const Heads *heads, int64_t n) {
    Experience *e = &il->experience;
    int64_t count = il->pass.n_targets, vocab = tensor_width(heads->q[0]), final = count;
    for (int64_t t = 0; t < count; t++) {
        int64_t at = t * vocab + e->ids[t];
        e->values[t] = tensor_get(heads->v, t);
        il->target_q[t] = fmin(tensor_get(heads->target[0], at), tensor_get(heads->target[1], at));
    }
    for (int64_t i = 0; i < n; i++)
        if (!e->ended[i]) e->final_values[e->begin[i + 1] - 1] = tensor_get(heads->v, final++);
}

/* Losses of n sequences of a step with `total` trained tokens, and the gradients of the heads. */
static Status ilql_losses(Ilql *il, const Heads *heads, int64_t n, int64_t total, IlqlMetrics *metrics) {
    Experience *e = &il->experience;
    Tape *tape = il->pass.tape;
    int64_t vocab = tensor_width(heads->q[0]), states = il->pass.n_targets + il->pass.n_finals;
    TRY(ilql_reserve(il, states, (size_t)vocab));
    read_heads(il, heads, n);
    IlqlBatch batch = {
        .tokens = {.T = il->pass.n_targets,
                   .B = 1,
                   .actions = e->ids,
                   .values = e->values,
                   .rewards = e->token_rewards,
                   .terminated = e->terminated,
                   .truncated = e->truncated,
                   .valid = e->trained},
        .final_values = e->final_values,
        .target_q = il->target_q,
        .logprobs = e->logprobs,
        .total = total,
    };
    ilql_targets(&il->loss, &batch, il->targets);
    for (int k = 0; k < 2; k++) {
        tensor_read(heads->q[k], il->q);
        ilql_q_loss(&il->loss, &batch, il->q, vocab, il->targets, il->dq, metrics);
        tensor_seed_grad(tape, heads->q[k], il->dq);
    }
    ilql_v_loss(&il->loss, &batch, il->dv, metrics);
    for (int64_t t = il->pass.n_targets; t < states; t++) il->dv[t] = 0; /* final states are targets only, without gradient */
    tensor_seed_grad(tape, heads->v, il->dv);
    ilql_policy_loss(&il->loss, &batch, il->dlogprobs, metrics);
    return ST_OK;
}

/* Takes the memory of ilql_losses on a device that plans. */
static Status plan_losses(const Ilql *il, const Heads *heads) {
    Tape *tape = il->pass.tape;
    (void)tape_tensor(tape, DT_F64, 2, (int64_t[]){il->pass.n_targets + il->pass.n_finals, 2 * tensor_width(heads->q[0]) + 4});
    for (int k = 0; k < 2; k++) tensor_seed_grad(tape, heads->q[k], NULL);
    tensor_seed_grad(tape, heads->v, NULL);
    return tape_status(tape);
}

/* Forward and backward pass of n sequences of a step with `total` trained tokens. */
static Status ilql_learn(Ilql *il, const Model *model, int64_t n, int64_t total, IlqlMetrics *metrics) {
    Experience *e = &il->experience;
    const bool computes = device_computes(tape_device(il->pass.tape));
    Heads heads;
    TRY(text_pass_forward(&il->pass, model, e, 0, n, &(TextResults){.logprobs = e->logprobs}));
    TRY(run_heads(&il->heads, &il->pass, &heads));
    TRY((computes ? ilql_losses(il, &heads, n, total, metrics) : plan_losses(il, &heads)));
    return text_pass_backward(&il->pass, &(TextGradients){.logprobs = computes ? il->dlogprobs : e->logprobs});
}

/* ---- steps ---- */

static double loss_of(const IlqlConfig *config, const IlqlMetrics *m) {
    return m->q_loss + m->v_loss + config->cql * m->cql_loss + config->awac * m->awac_loss;
}

static Status ilql_begin(Trainer *trainer, const Pass *all, double *divisor) {
    Ilql *il = trainer->context;
    int64_t trained = 0;
    for (size_t i = 0; i < all->n; i++) trained += il->rows.items[all->rows[i]].n_trained;
    *divisor = (double)trained;
    return ST_OK;
}

/* The trainer gives rows of one pass (Trainer.pass_tokens). */
static Status ilql_batch(Trainer *trainer, const Pass *pass, LossSums *sums) {
    Ilql *il = trainer->context;
    Experience *e = &il->experience;
    IlqlNumbers *numbers = &il->numbers;
    IlqlMetrics m = {0};
    experience_clear(e, 1);
    for (size_t i = 0; i < pass->n; i++) TRY(offline_rows_add(&il->rows, pass->rows[i], e));
    il->pass.tape = pass->tape;
    TRY(ilql_learn(il, trainer->model, e->n, (int64_t)pass->divisor, &m));
    numbers->q_loss += m.q_loss, numbers->v_loss += m.v_loss, numbers->cql_loss += m.cql_loss, numbers->awac_loss += m.awac_loss;
    numbers->q += m.q, numbers->v += m.v, numbers->advantage += m.advantage, numbers->tokens += (double)m.tokens;
    sums->loss_sum += loss_of(&il->loss, &m) * pass->divisor;
    sums->count += (double)m.tokens;
    sums->tokens += il->pass.batch.layout.n_tokens;
    sums->loss_tokens += m.tokens;
    return ST_OK;
}

static double *ilql_numbers(Trainer *trainer, size_t *n) {
    *n = sizeof(IlqlNumbers) / sizeof(double);
    return &((Ilql *)trainer->context)->numbers.q_loss;
}

static void ilql_metrics(const Trainer *trainer, Metrics *metrics) {
    const Ilql *il = trainer->context;
    const IlqlNumbers *m = &il->numbers;
    double n = fmax(1, m->tokens);
    metric_set(metrics, "q_loss", m->q_loss);
    metric_set(metrics, "v_loss", m->v_loss);
    metric_set(metrics, "cql_loss", m->cql_loss);
    metric_set(metrics, "awac_loss", m->awac_loss);
    metric_set(metrics, "q", m->q / n);
    metric_set(metrics, "v", m->v / n);
    metric_set(metrics, "advantage", m->advantage / n);
}

static void ilql_updated(Trainer *trainer, int64_t done) {
    Ilql *il = trainer->context;
    if (done % il->target_every == 0) ilql_heads_follow(&il->heads, il->tau);
}

static void ilql_list_state(Trainer *trainer, StateList *states) { ilql_heads_list_state(&((Ilql *)trainer->context)->heads, states); }

static Status ilql_save(Trainer *trainer) {
    const char *path = run_path(trainer->run, "ilql_heads.safetensors");
    return path ? ilql_heads_save(&((Ilql *)trainer->context)->heads, path) : ST_RESOURCE;
}

/* ---- the run ---- */

/* Frees tokenizer and template before memory is planned. */
static Status read_rows(Trainer *trainer, Ilql *il) {
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    Status status = run_chat_open(&trainer->recipe, trainer->config->options.resume, &trainer->dated, &tokenizer, &chat);
    if (status == ST_OK) status = offline_rows_read(trainer->recipe, &trainer->model->config, chat, tokenizer, &il->rows);
    if (status == ST_OK) row_notes_warn(&il->rows.table.notes, "data.train");
    chat_close(chat);
    tokenizer_free(tokenizer);
    return status;
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

static Status ilql_open(Trainer *trainer, RunPlan *plan) {
    Ilql *il = trainer->context;
    TRY(read_rows(trainer, il));
    const Recipe *r = trainer->recipe;
    TRY(ilql_heads_add(trainer->model, r->rl_q_width, (uint64_t)r->seed, true, &il->heads));
    int64_t most = MAX(PASS_VALUES / trainer->model->config.vocab_size, 16);
    il->pass = (TextPass){.temperature = 1, .finals = true};
    trainer->pass_tokens = MIN(r->train_batch_tokens > 0 ? r->train_batch_tokens : PASS_TOKENS, most);
    trainer->train = &il->rows.table;
    trainer_input(trainer, "data.train", offline_rows_fingerprint(&il->rows));
    run_plan_text(plan, PLAN_RECORD, "algorithm", r->rl_algorithm);
    say_rows(&il->rows, plan);
    return ST_OK;
}

static void ilql_release(Trainer *trainer) {
    Ilql *il = trainer->context;
    double *const arrays[] = {il->q, il->dq, il->target_q, il->targets, il->dv, il->dlogprobs};
    text_pass_release(&il->pass);
    experience_release(&il->experience);
    for (size_t i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
    offline_rows_free(&il->rows);
}

static Status check_recipe(const Recipe *r) {
    if (r->data_eval || r->eval_data || r->data_eval_split > 0)
        return status_hint(status_fail(ST_CONFIG, "algorithm 'ilql' does not evaluate on held-out rows"),
                           "leave out data.eval and data.eval_split, and look at its answers with tune generate --ilql");
    if (r->reward)
        return status_hint(status_fail(ST_CONFIG, "algorithm 'ilql' learns from the rewards in its rows, not from 'reward'"),
                           "leave out reward; rows have \"reward\" or \"rewards\"");
    if (r->has_lora && r->lora_dropout > 0) return status_hint(status_fail(ST_CONFIG, "'lora.dropout' is not possible in rl"), "leave it at 0");
    return ST_OK;
}

Status ilql_run(const TrainingConfig *config, TrainResult *result) {
    static const Objective objective = {.open = ilql_open,
                                        .begin = ilql_begin,
                                        .batch = ilql_batch,
                                        .numbers = ilql_numbers,
                                        .metrics = ilql_metrics,
                                        .updated = ilql_updated,
                                        .list_state = ilql_list_state,
                                        .save = ilql_save,
                                        .release = ilql_release,
                                        .reader = &rl_report_reader};
    const Recipe *r = config->recipe;
    Ilql il = {
        .loss = {.gamma = r->rl_gamma, .expectile = r->rl_expectile, .cql = r->rl_cql_alpha, .awac = r->rl_awac_coef, .awac_beta = r->rl_awac_beta},
        .tau = isnan(r->rl_tau) ? 0.005 : r->rl_tau,
        .target_every = r->rl_target_every > 0 ? r->rl_target_every : 1};
    TRY(check_recipe(r));
    return trainer_run(&objective, &il, config, result);
}
