/* SPDX-License-Identifier: Apache-2.0 */
/* Preference losses over batches of pairs: sums log-probabilities on the tape, applies a loss of preference_losses.h and passes its gradient back. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "lib/train/router_loads.h"
#include "rl/pairs/preference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rl/pairs/preference_losses.h"
#include "rl/common/reference.h"
#include "rl/common/rl_doctor.h"

static const PairAlgorithm algorithms[] = {
#define PAIR_ALGORITHM(name, losses, beta, keys, help) {#name, losses, keys, help, beta},
#include "rl/pairs/pair_algorithms.def"
#undef PAIR_ALGORITHM
};

const PairAlgorithm *preference_algorithm(const char *name) {
    for (size_t i = 0; i < COUNT_OF(algorithms); i++)
        if (strcmp(algorithms[i].name, name) == 0) return &algorithms[i];
    return NULL;
}

const PairAlgorithm *preference_algorithm_at(size_t i) { return i < COUNT_OF(algorithms) ? &algorithms[i] : NULL; }

/* Sums over a step or an evaluation. chosen, rejected: the counts for means: pairs, or for KTO the answers of either kind. */
typedef struct PairNumbers {
    double pairs, chosen, rejected;
    double rewards_chosen, rewards_rejected, margin, accuracy, logps_chosen, logps_rejected;
} PairNumbers;

typedef struct Preference {
    /* from the recipe */
    const PairAlgorithm *algorithm;
    const PreferenceLoss *loss; /* NULL: KTO */
    bool compares;              /* KTO with its KL baseline */
    PreferenceConfig config;    /* total_pairs, total_chosen_tokens: of the current step */
    /* opened */
    PairRows rows;
    Reference *reference;       /* open only while it is needed */
    RouterLoads routers;        /* of the policy */
    double *of_train, *of_eval; /* 2 per row: the reference's summed log-probabilities of its answers; NULL: no reference */
    /* of a step or an evaluation */
    double baseline; /* KTO's */
    PairNumbers numbers;
    /* of a batch */
    Arena *scratch;
    double *values; /* log-probabilities of a batch's targets; later their gradients */
    int64_t cap_values;
} Preference;

/* ---- log-probabilities of answers ---- */

static Status reserve_values(Preference *p, int64_t n) {
    if (n <= p->cap_values) return ST_OK;
    TRY(array_resize(&p->values, (size_t)n, sizeof *p->values, "trained tokens"));
    p->cap_values = n;
    return ST_OK;
}

/* Runs `model` on the prepared batch and sums each branch. `result`: on the tape, for the backward pass. */
static Status branch_sums(Preference *p, Tape *tape, const Model *model, const StepContext *dropout, double *sums, Tensor **result) {
    PairBatch *batch = &p->rows.batch;
    TRY(reserve_values(p, batch->n_targets));
    Tensor *rows = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &batch->n_targets, batch->rows);
    Tensor *targets = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &batch->n_targets, batch->targets);
    if (!rows || !targets) return ST_RESOURCE;
    batch->model.step = *dropout;
    Tensor *hidden = model_forward(model, tape, &batch->model);
    *result = op_token_logprobs(tape, hidden, model->head, rows, targets, &model->logprob).logprob;
    TRY(tape_status(tape));
    memset(sums, 0, (size_t)batch->n_branches * sizeof *sums);
    if (!device_computes(tape_device(tape))) return ST_OK; /* the meta device computes no values */
    tensor_read(*result, p->values);
    for (int64_t k = 0; k < batch->n_targets; k++) sums[batch->branch[k]] += p->values[k];
    return ST_OK;
}

/* ---- the reference ---- */

/* Sums of both branches of each row, batch by batch in the given order, so that they do not depend on when they are computed. other_rows: as in
 * PairBatchOptions, or NULL. */
static Status sums_of_rows(Trainer *trainer, Tape *tape, const Model *model, const Pairs *pairs, const size_t *rows, const size_t *other_rows,
                           size_t n, double *sums) {
    Preference *p = trainer->context;
    bool recording = tape_recording(tape);
    Status status = ST_OK;
    tape_record(tape, false);
    for (size_t i = 0, count; i < n && status == ST_OK; i += count) {
        count = pair_rows_fit(trainer, pairs, rows + i, other_rows ? other_rows + i : NULL, n - i, NULL);
        Tensor *result;
        PairBatchOptions options = {.other_rows = other_rows ? other_rows + i : NULL};
        tape_reset(tape);
        work_at("log-probabilities of rows by the reference", i, n);
        if (interrupt_requested())
            status = status_hint(status_fail(ST_INTERRUPTED, "interrupted while log-probabilities were computed"), "--resume goes on");
        if (status == ST_OK) status = pair_batch_build(pairs, rows + i, count, &options, &p->rows.batch);
        if (status == ST_OK) status = branch_sums(p, tape, model, &(StepContext){0}, sums + 2 * i, &result);
    }
    work_end("log-probabilities of rows by the reference");
    tape_reset(tape);
    tape_record(tape, recording);
    return status;
}

/* Marks the rows that the run's steps take. */
static Status used_rows(Trainer *trainer, bool *used) {
    const size_t *rows;
    size_t found = 0, n;
    for (int64_t step = 0; step < trainer->total_steps && found < trainer->train->n; step++) {
        TRY(trainer_rows(trainer, step, &rows, &n));
        for (size_t i = 0; i < n; i++) {
            found += !used[rows[i]];
            used[rows[i]] = true;
        }
    }
    return ST_OK;
}

static Status reference_sums(Trainer *trainer, const Pairs *pairs, const bool *used, double *out) {
    Preference *p = trainer->context;
    size_t *rows = malloc(pairs->n * sizeof *rows), n = 0;
    double *sums = malloc(2 * pairs->n * sizeof *sums);
    Status status = rows && sums ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu rows", pairs->n);
    for (size_t i = 0; i < pairs->n && status == ST_OK; i++)
        if (!used || used[i]) rows[n++] = i;
    if (status == ST_OK) {
        const Model *model = reference_begin(p->reference);
        status = sums_of_rows(trainer, trainer->tape, model, pairs, rows, NULL, n, sums);
        reference_end(p->reference);
    }
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        out[2 * rows[i]] = sums[2 * i];
        out[2 * rows[i] + 1] = sums[2 * i + 1];
        if (isfinite(sums[2 * i] + sums[2 * i + 1])) continue;
        Str where = {0};
        pairs_where(pairs, rows[i], &where);
        status = status_fail(ST_NUMERIC, "%s: the reference's log-probability is not finite", str_text(&where));
        str_release(&where);
    }
    free(rows);
    free(sums);
    return status;
}

static Status preference_prepare(Trainer *trainer) {
    Preference *p = trainer->context;
    const Pairs *train = p->rows.train, *eval = p->rows.eval;
    if (p->loss && !preference_loss_has_reference(p->loss)) return ST_OK;
    TRY(reference_open(trainer->recipe, trainer->comm, trainer->model, &p->reference));
    uint64_t fingerprint = reference_fingerprint(p->reference);
    if (fingerprint) trainer_input(trainer, "rl.reference", fingerprint);
    bool *used = calloc(train->n, sizeof *used);
    p->of_train = calloc(2 * train->n, sizeof *p->of_train);
    p->of_eval = eval ? calloc(2 * eval->n, sizeof *p->of_eval) : NULL;
    Status status =
        used && p->of_train && (p->of_eval || !eval) ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the reference's log-probabilities");
    if (status == ST_OK) status = used_rows(trainer, used);
    if (status == ST_OK) status = reference_sums(trainer, train, used, p->of_train);
    if (status == ST_OK && eval) status = reference_sums(trainer, eval, NULL, p->of_eval);
    free(used);
    if (status != ST_OK || p->compares) return status;
    reference_free(p->reference);
    p->reference = NULL;
    return ST_OK;
}

/* ---- all rows of a step: KTO's baseline, and the counts for means ---- */

/* Pairs each prompt with the answer of the previous row of the step: writes those rows. A single row, as in an epoch's last step, takes the previous
 * row of the set. */
static void set_others(const Pairs *pairs, const size_t *rows, size_t n, size_t *others) {
    for (size_t i = 0; i < n; i++) others[i] = n > 1 ? rows[(i + n - 1) % n] : (rows[0] + pairs->n - 1) % pairs->n;
}

static Status compare_rows(Trainer *trainer, Tape *tape, const Pairs *pairs, const size_t *rows, size_t n) {
    Preference *p = trainer->context;
    size_t *others = malloc(n * sizeof *others);
    double *sums = malloc(4 * n * sizeof *sums), *policy = sums, *reference = sums ? sums + 2 * n : NULL;
    Status status = others && sums ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    if (status == ST_OK) set_others(pairs, rows, n, others);
    if (status == ST_OK) status = sums_of_rows(trainer, tape, trainer->model, pairs, rows, others, n, policy);
    if (status == ST_OK) {
        const Model *model = reference_begin(p->reference);
        status = sums_of_rows(trainer, tape, model, pairs, rows, others, n, reference);
        reference_end(p->reference);
    }
    for (size_t i = 0; i < n && status == ST_OK; i++) {
        policy[i] = policy[2 * i];
        reference[i] = reference[2 * i];
    }
    if (status == ST_OK) p->baseline = kto_baseline(policy, reference, (int64_t)n);
    free(others);
    free(sums);
    return status;
}

/* The largest pass of a comparison so far, in tokens. */
typedef struct Comparison {
    size_t *rows, *others, n;
    int64_t tokens;
} Comparison;

static Status find_largest(const Trainer *trainer, const Pairs *pairs, const size_t *rows, size_t n, Comparison *largest) {
    size_t *others = malloc(n * sizeof *others);
    Status status = others ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    if (others) set_others(pairs, rows, n, others);
    for (size_t i = 0, count; i < n && status == ST_OK; i += count) {
        int64_t tokens;
        count = pair_rows_fit(trainer, pairs, rows + i, others + i, n - i, &tokens);
        if (tokens <= largest->tokens) continue;
        status = array_resize(&largest->rows, count, sizeof *rows, "rows of a step");
        if (status == ST_OK) status = array_resize(&largest->others, count, sizeof *others, "rows of a step");
        if (status != ST_OK) break;
        memcpy(largest->rows, rows + i, count * sizeof *rows);
        memcpy(largest->others, others + i, count * sizeof *others);
        largest->n = count;
        largest->tokens = tokens;
    }
    free(others);
    return status;
}

static Status find_largest_of_steps(Trainer *trainer, const Pairs *train, Comparison *largest) {
    const size_t *rows;
    size_t n;
    for (int64_t step = 0; step < trainer->total_steps; step++) {
        TRY(trainer_rows(trainer, step, &rows, &n));
        TRY(find_largest(trainer, train, rows, n, largest));
    }
    return ST_OK;
}

static Status find_largest_of_evaluation(const Trainer *trainer, const Pairs *eval, Comparison *largest) {
    size_t *rows = malloc(eval->n * sizeof *rows);
    if (!rows) return status_fail(ST_RESOURCE, "out of memory for %zu rows", eval->n);
    for (size_t i = 0; i < eval->n; i++) rows[i] = i;
    Status status = find_largest(trainer, eval, rows, eval->n, largest);
    free(rows);
    return status;
}

/* A prompt with the answer of another row may be longer than any row, so such a pass may be larger than a batch. */
static Status plan_comparison(Trainer *trainer, Tape *meta, const Pairs *pairs, bool held_out) {
    Comparison largest = {0};
    if (pairs->n < 2)
        return status_hint(status_fail(ST_CONFIG, "'kto' compares each prompt with the answer of another row, but '%s' has one row",
                                       held_out ? "data.eval" : "data.train"),
                           "use more rows, or rl.loss_type: apo_zero_unpaired");
    Status status = held_out ? find_largest_of_evaluation(trainer, pairs, &largest) : find_largest_of_steps(trainer, pairs, &largest);
    double *sums = status == ST_OK ? malloc(2 * largest.n * sizeof *sums) : NULL;
    if (status == ST_OK && !sums) status = status_fail(ST_RESOURCE, "out of memory for %zu rows", largest.n);
    if (status == ST_OK) status = sums_of_rows(trainer, meta, trainer->model, pairs, largest.rows, largest.others, largest.n, sums);
    free(sums);
    free(largest.rows);
    free(largest.others);
    return status;
}

static Status plan_comparisons(Trainer *trainer, Tape *meta) {
    const PairRows *rows = &((const Preference *)trainer->context)->rows;
    TRY(plan_comparison(trainer, meta, rows->train, false));
    return rows->eval ? plan_comparison(trainer, meta, rows->eval, true) : ST_OK;
}

static Status preference_begin(Trainer *trainer, const Pass *all, double *divisor) {
    Preference *p = trainer->context;
    const Pairs *pairs = pair_rows_set(&p->rows, all);
    (void)divisor;
    p->numbers = (PairNumbers){0};
    router_loads_begin(&p->routers, all->n);
    p->config.total_pairs = (int64_t)all->n;
    p->config.total_chosen_tokens = 0;
    for (size_t i = 0; i < all->n; i++) p->config.total_chosen_tokens += pairs->rows[all->rows[i]].sides[PAIR_CHOSEN].n_trained;
    return p->compares ? compare_rows(trainer, all->tape, pairs, all->rows, all->n) : ST_OK;
}

/* ---- losses ---- */

/* The numbers of a batch, per pair or per answer. */
typedef struct Columns {
    double *chosen, *rejected, *ref_chosen, *ref_rejected, *weights, *grad_chosen, *grad_rejected;
    int64_t *chosen_tokens, *rejected_tokens;
    bool *desirable;
} Columns;

static Status new_columns(Arena *arena, size_t n, Columns *c) {
    double *numbers = arena_alloc(arena, 7 * n * sizeof *numbers);
    int64_t *lengths = arena_alloc(arena, 2 * n * sizeof *lengths);
    bool *desirable = arena_alloc(arena, n * sizeof *desirable);
    if (!numbers || !lengths || !desirable) return ST_RESOURCE;
    *c = (Columns){numbers,         numbers + n,     numbers + 2 * n, numbers + 3 * n, numbers + 4 * n,
                   numbers + 5 * n, numbers + 6 * n, lengths,         lengths + n,     desirable};
    return ST_OK;
}

static void fill_columns(const Preference *p, const Pass *pass, const double *sums, Columns *c) {
    const Pairs *pairs = pair_rows_set(&p->rows, pass);
    const double *reference = pass->held_out ? p->of_eval : p->of_train;
    for (size_t i = 0; i < pass->n; i++) {
        size_t row = pass->rows[i];
        c->chosen[i] = sums[2 * i];
        c->rejected[i] = sums[2 * i + 1];
        c->ref_chosen[i] = reference ? reference[2 * row] : 0;
        c->ref_rejected[i] = reference ? reference[2 * row + 1] : 0;
        c->weights[i] = pairs->rows[row].weight;
        c->chosen_tokens[i] = p->rows.batch.counts[2 * i];
        c->rejected_tokens[i] = p->rows.batch.counts[2 * i + 1];
        c->desirable[i] = pairs->rows[row].desirable;
    }
}

static Status pair_losses(Preference *p, int64_t n, const Columns *c, double *loss) {
    PreferenceBatch batch = {n, c->chosen, c->rejected, c->ref_chosen, c->ref_rejected, c->chosen_tokens, c->rejected_tokens, c->weights};
    PreferenceMetrics m;
    TRY(preference_loss(p->loss, &p->config, &batch, p->scratch, c->grad_chosen, c->grad_rejected, &m));
    double pairs = (double)n;
    PairNumbers *sum = &p->numbers;
    sum->pairs += pairs, sum->chosen += pairs, sum->rejected += pairs;
    sum->rewards_chosen += pairs * m.rewards_chosen, sum->rewards_rejected += pairs * m.rewards_rejected;
    sum->margin += pairs * m.margin, sum->accuracy += pairs * m.accuracy;
    sum->logps_chosen += pairs * m.logps_chosen, sum->logps_rejected += pairs * m.logps_rejected;
    *loss = m.loss;
    return ST_OK;
}

/* Single answers. An answer counts as correct if its log-ratio is on its label's side of the baseline, where the loss changes direction. */
static void kto_losses(Preference *p, const Recipe *recipe, int64_t n, const Columns *c, double *loss) {
    KtoConfig config = {p->config.beta, recipe->rl_desirable_weight, recipe->rl_undesirable_weight, p->config.total_pairs};
    KtoBatch batch = {n, c->chosen, c->ref_chosen, c->desirable, c->weights, p->compares ? p->baseline : 0};
    KtoMetrics m;
    kto_loss(&config, &batch, c->grad_chosen, &m);
    memset(c->grad_rejected, 0, (size_t)n * sizeof *c->grad_rejected);
    double chosen = (double)m.n_chosen, rejected = (double)m.n_rejected;
    PairNumbers *sum = &p->numbers;
    sum->pairs += (double)n, sum->chosen += chosen, sum->rejected += rejected;
    sum->rewards_chosen += chosen * m.rewards_chosen, sum->rewards_rejected += rejected * m.rewards_rejected;
    sum->logps_chosen += chosen * m.logps_chosen, sum->logps_rejected += rejected * m.logps_rejected;
    for (int64_t i = 0; i < n; i++) sum->accuracy += (c->chosen[i] - c->ref_chosen[i] > batch.baseline) == c->desirable[i];
    *loss = m.loss;
}

static Status preference_batch(Trainer *trainer, const Pass *pass, LossSums *sums) {
    Preference *p = trainer->context;
    PairBatch *batch = &p->rows.batch;
    Tensor *result;
    Columns columns;
    double loss;
    TRY(pair_batch_build(pair_rows_set(&p->rows, pass), pass->rows, pass->n, &(PairBatchOptions){0}, batch));
    arena_reset(p->scratch);
    double *branch = arena_alloc(p->scratch, 2 * pass->n * sizeof *branch);
    if (!branch) return ST_RESOURCE;
    TRY(router_loads_pass(&p->routers, &batch->model));
    TRY(branch_sums(p, pass->tape, trainer->model, &pass->dropout, branch, &result));
    if (device_computes(tape_device(pass->tape))) router_loads_count(&p->routers);
    TRY(new_columns(p->scratch, pass->n, &columns));
    fill_columns(p, pass, branch, &columns);
    if (p->loss)
        TRY(pair_losses(p, (int64_t)pass->n, &columns, &loss));
    else
        kto_losses(p, trainer->recipe, (int64_t)pass->n, &columns, &loss);
    sums->loss_sum += loss * pass->divisor;
    sums->count += (double)pass->n;
    sums->tokens += batch->model.layout.n_tokens;
    sums->loss_tokens += batch->n_targets;
    if (!pass->training) return ST_OK;
    for (int64_t k = 0; k < batch->n_targets; k++) {
        int32_t b = batch->branch[k];
        p->values[k] = b % 2 ? columns.grad_rejected[b / 2] : columns.grad_chosen[b / 2];
    }
    tensor_seed_grad(pass->tape, result, p->values);
    return tape_backward(pass->tape);
}

static double *preference_numbers(Trainer *trainer, size_t *n) {
    Preference *p = trainer->context;
    *n = sizeof p->numbers / sizeof(double);
    return &p->numbers.pairs;
}

static int64_t preference_tokens(const Trainer *trainer, size_t row) {
    const Preference *p = trainer->context;
    return pair_row_computed(&p->rows.train->rows[row], false);
}

/* A mean; unknown without any. */
static void metric_mean(Metrics *metrics, const char *name, double sum, double count) {
    metric_set(metrics, name, count > 0 ? sum / count : (double)NAN);
}

static void preference_metrics(const Trainer *trainer, Metrics *metrics) {
    const Preference *p = trainer->context;
    const PairNumbers *m = &p->numbers;
    double margin = p->loss ? m->margin : m->rewards_chosen / fmax(m->chosen, 1) - m->rewards_rejected / fmax(m->rejected, 1);
    bool both = m->chosen > 0 && m->rejected > 0;
    metric_mean(metrics, "rewards_chosen", m->rewards_chosen, m->chosen);
    metric_mean(metrics, "rewards_rejected", m->rewards_rejected, m->rejected);
    metric_mean(metrics, "margin", margin, p->loss ? m->pairs : both);
    metric_mean(metrics, "accuracy", m->accuracy, m->pairs);
    metric_mean(metrics, "logps_chosen", m->logps_chosen, m->chosen);
    metric_mean(metrics, "logps_rejected", m->logps_rejected, m->rejected);
    if (p->compares) metric_set(metrics, "kl", p->baseline);
}

/* As of tune sft: only if all rows of the step were computed by this process. */
static void preference_step_metrics(const Trainer *trainer, Metrics *metrics) {
    const Preference *p = trainer->context;
    if (trainer->ranks == 1) router_loads_metrics(&p->routers, metrics);
}

/* ---- the run ---- */

/* Splits "hinge=cpo_hinge" into both parts; "hinge" gives the same name twice. False after the last. */
static bool next_loss(const char **losses, Slice *type, Slice *row) {
    *losses += strspn(*losses, " ");
    size_t n = strcspn(*losses, " "), name = strcspn(*losses, " =");
    *type = (Slice){*losses, name};
    *row = name < n ? (Slice){*losses + name + 1, n - name - 1} : *type;
    *losses += n;
    return n > 0;
}

static Status no_such_loss(const Recipe *recipe, const PairAlgorithm *algorithm) {
    Str known = {0};
    Slice type, row;
    for (const char *at = algorithm->losses; next_loss(&at, &type, &row);)
        str_printf(&known, "%s%.*s", known.len ? ", " : "", (int)type.len, type.data);
    status_fail(ST_CONFIG, "algorithm '%s' has no loss '%s'", algorithm->name, recipe->rl_loss_type);
    status_hint(ST_CONFIG, "'rl.loss_type' may be %s", str_text(&known));
    str_release(&known);
    return ST_CONFIG;
}

static Status choose_loss(const Recipe *recipe, const PairAlgorithm *algorithm, const PreferenceLoss **loss) {
    const char *wanted = recipe->rl_loss_type;
    char name[64];
    Slice type, row;
    bool found = false;
    for (const char *at = algorithm->losses; !found && next_loss(&at, &type, &row);)
        found = !wanted || (strlen(wanted) == type.len && memcmp(wanted, type.data, type.len) == 0);
    if (!found) return no_such_loss(recipe, algorithm);
    snprintf(name, sizeof name, "%.*s", (int)row.len, row.data);
    *loss = preference_loss_find(name); /* NULL: a loss over single answers */
    if (*loss && (*loss)->matching != AS_PAIRED && recipe->train_gradient_accumulation_steps > 1)
        return status_hint(status_fail(ST_CONFIG, "loss '%s' compares all pairs of a step: 'train.gradient_accumulation_steps' must be 1", name),
                           "make train.batch_size larger instead");
    return ST_OK;
}

/* Keys that the algorithm reads only for some of its losses. */
static Status check_loss_keys(const Recipe *recipe, const PreferenceLoss *loss) {
    if (!loss->smooths)
        TRY(recipe_unread(recipe, "rl.label_smoothing", "leave it out, or use a loss such as sigmoid", "does nothing with loss '%s'", loss->name));
    if (strcmp(loss->name, "discopop") == 0) return ST_OK;
    return recipe_unread(recipe, "rl.discopop_tau", "it belongs to rl.loss_type: discopop", "does nothing with loss '%s'", loss->name);
}

Status preference_configure(const Recipe *recipe, const PairAlgorithm *algorithm, PreferenceConfig *config, const PreferenceLoss **loss) {
    static const Divergence divergences[] = {
        [RL_DIVERGENCE_REVERSE_KL] = REVERSE_KL, [RL_DIVERGENCE_FORWARD_KL] = FORWARD_KL, [RL_DIVERGENCE_JS_DIVERGENCE] = JENSEN_SHANNON};
    TRY(choose_loss(recipe, algorithm, loss));
    *config = (PreferenceConfig){
        .beta = recipe->rl_beta > 0 ? recipe->rl_beta : algorithm->beta,
        .label_smoothing = recipe->rl_label_smoothing,
        .simpo_gamma = recipe->rl_simpo_gamma,
        .alpha = recipe->rl_simpo_alpha,
        .discopop_tau = recipe->rl_discopop_tau,
        .divergence = divergences[recipe->rl_divergence],
        .nll_given = !isnan(recipe->rl_cpo_alpha),
        .nll_weight = isnan(recipe->rl_cpo_alpha) ? 0 : recipe->rl_cpo_alpha,
    };
    if (*loss && config->divergence != REVERSE_KL && !(*loss)->diverges) {
        status_fail(ST_CONFIG, "'rl.divergence: %s' does nothing with loss '%s', which uses the log-ratios themselves",
                    rl_divergence_text(recipe->rl_divergence), (*loss)->name);
        return status_hint(ST_CONFIG, "leave it out, or use sigmoid, sigmoid_norm, hinge, ipo, robust, exo_pair or discopop");
    }
    return *loss ? check_loss_keys(recipe, *loss) : ST_OK;
}

/* A single row would be compared with its own answer. */
static Status check_step_rows(const Recipe *recipe) {
    if (recipe->train_batch_tokens > 0 || recipe->train_batch_size * recipe->train_gradient_accumulation_steps > 1) return ST_OK;
    status_fail(ST_CONFIG, "'kto' compares each prompt with the answer of another row of its step, but a step has one row");
    return status_hint(ST_CONFIG, "raise train.batch_size or train.gradient_accumulation_steps, or use rl.loss_type: apo_zero_unpaired");
}

static Status preference_open(Trainer *trainer, RunPlan *plan) {
    Preference *p = trainer->context;
    TRY(pair_rows_open(trainer, &p->rows, plan));
    return router_loads_open(&p->routers, trainer->model, trainer->recipe->train_router_aux_loss_coef);
}

static void preference_release(Trainer *trainer) {
    Preference *p = trainer->context;
    pair_rows_release(&p->rows);
    router_loads_release(&p->routers);
    reference_free(p->reference);
    arena_free(p->scratch);
    free(p->values);
    free(p->of_train);
    free(p->of_eval);
}

Status preference_run(const TrainingConfig *config, TrainResult *result) {
    const Recipe *recipe = config->recipe;
    Preference p = {.algorithm = preference_algorithm(recipe->rl_algorithm)};
    char reader[64];
    ASSERT(p.algorithm, "'%s' does not learn from pairs", recipe->rl_algorithm);
    TRY(preference_configure(recipe, p.algorithm, &p.config, &p.loss));
    p.compares = !p.loss && strcmp(recipe->rl_loss_type ? recipe->rl_loss_type : "kto", "kto") == 0;
    if (p.compares) TRY(check_step_rows(recipe));
    snprintf(reader, sizeof reader, "algorithm '%s'", p.algorithm->name);
    p.rows = (PairRows){.reader = reader, .unpaired = !p.loss};
    p.scratch = arena_new(0);
    if (!p.scratch) return status_fail(ST_RESOURCE, "out of memory");
    Objective objective = {.whole_batches = p.loss && p.loss->matching != AS_PAIRED,
                           .open = preference_open,
                           .plan = p.compares ? plan_comparisons : NULL,
                           .prepare = preference_prepare,
                           .begin = preference_begin,
                           .batch = preference_batch,
                           .numbers = preference_numbers,
                           .tokens = preference_tokens,
                           .metrics = preference_metrics,
                           .step_metrics = preference_step_metrics,
                           .release = preference_release,
                           .reader = &rl_report_reader};
    return trainer_run(&objective, &p, config, result);
}
