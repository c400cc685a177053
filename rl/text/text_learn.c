/* SPDX-License-Identifier: Apache-2.0 */
/* Learning from a batch of rollouts: advantages of tokens, and the optimiser steps. */
#include "lib/base/system.h"
#include "rl/text/text_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rl/core/kl.h"
#include "rl/core/returns.h"
#include "rl/text/sampler_correction.h"
#include "rl/core/value_losses.h"

bool text_kl_in_reward(const TextRl *rl) {
    enum rl_kl_in where = rl->recipe->rl_kl_in;
    if (rl->algorithm->paired) return false;
    return where == RL_KL_IN_AUTO ? rl->algorithm->kl_in_reward : where == RL_KL_IN_REWARD;
}

bool text_rewards_tokens(const TextRl *rl) {
    return rl->algorithm->token_rewards || rl->algorithm->values == VALUES_NEEDED || rl->recipe->rl_value_model;
}

int64_t text_steps_per_rollout(const TextRl *rl) { return rl->recipe->rl_num_iterations * rl->recipe->rl_num_minibatches; }

static bool corrects_sampler(const TextRl *rl) { return rl->recipe->rl_sampler_correction != RL_SAMPLER_CORRECTION_NONE; }

static bool adapts_kl(const TextRl *rl) { return rl->reference && !isnan(rl->recipe->rl_adaptive_kl); }

/* Divides sequences into passes, each of a multiple of `unit` sequences. Returns the number of passes. */
static int64_t find_passes(TextRl *rl, int64_t first, int64_t end, int64_t unit) {
    const Experience *e = &rl->step.experience;
    int64_t n_passes = 0;
    for (int64_t i = first, n; i < end; i += n) {
        n = text_pass_fit(&rl->pass, e, i, end);
        n = MAX(n - n % unit, unit);
        rl->update.passes[n_passes++] = i;
    }
    rl->update.passes[n_passes] = end;
    return n_passes;
}

/* ---- passes without gradients: log-probs and values under the current policy, or under the reference ---- */

typedef struct Wanted {
    double *logprobs, *values, *final_values;
} Wanted;

static double *at(double *array, int64_t i) { return array ? array + i : NULL; }

static Status text_learn_forward_only(TextRl *rl, const Model *model, const Wanted *wanted) {
    Experience *e = &rl->step.experience;
    double *const arrays[] = {wanted->logprobs, wanted->values, wanted->final_values};
    const int64_t n_passes = find_passes(rl, 0, e->n, 1), ranks = comm_size(rl->comm), rank = comm_rank(rl->comm);
    Status status = ST_OK;
    tape_record(rl->pass.tape, false);
    for (int64_t i = rank * n_passes / ranks; i < (rank + 1) * n_passes / ranks && status == ST_OK; i++) {
        int64_t first = rl->update.passes[i], begin = e->begin[first];
        TRY_GOTO(comm_check(rl->comm), out);
        TextResults results = {
            .logprobs = at(wanted->logprobs, begin), .values = at(wanted->values, begin), .final_values = at(wanted->final_values, begin)};
        status = interrupt_requested() ? ST_INTERRUPTED : text_pass_forward(&rl->pass, model, e, first, rl->update.passes[i + 1] - first, &results);
    }
out:
    tape_record(rl->pass.tape, true);
    return status == ST_OK ? text_share_tokens(rl, rl->update.passes, n_passes, arrays, COUNT_OF(arrays)) : status;
}

static Status ask_reference(TextRl *rl) {
    if (!rl->reference) return ST_OK;
    const Model *model = reference_begin(rl->reference);
    Status status = text_learn_forward_only(rl, model, &(Wanted){.logprobs = rl->step.experience.ref_logprobs});
    reference_end(rl->reference);
    return status;
}

/* With one optimiser step per rollout the old policy is the current one: every ratio is exactly 1, and the old log-probs need no pass. */
static bool needs_old(const TextRl *rl) {
    return !rl->algorithm->paired &&
           (text_steps_per_rollout(rl) > 1 || (rl->reference && text_kl_in_reward(rl)) || adapts_kl(rl) || corrects_sampler(rl));
}

static Status ask_policy(TextRl *rl) {
    Experience *e = &rl->step.experience;
    /* values come from a separate model (own) or from a head on the policy (head) */
    bool own = rl->value && rl->value->own, head = rl->value && !own;
    Wanted wanted = {needs_old(rl) ? e->old_logprobs : NULL, head ? e->values : NULL, head ? e->final_values : NULL};
    if (wanted.logprobs || head) TRY(text_learn_forward_only(rl, rl->model, &wanted));
    return own ? text_learn_forward_only(rl, rl->value->model, &(Wanted){NULL, e->values, e->final_values}) : ST_OK;
}

/* ---- rewards and advantages ---- */

static Status text_learn_reserve(TextRl *rl) {
    int64_t n = rl->step.experience.n_tokens;
    if (n <= rl->step.cap_tokens) return ST_OK;
    double **const arrays[] = {&rl->step.gradients, &rl->step.entropy_gradients, &rl->step.value_gradients, &rl->step.weights};
    for (size_t i = 0; i < COUNT_OF(arrays); i++) TRY(array_resize(arrays[i], (size_t)n, sizeof **arrays[i], "tokens of a step"));
    rl->step.cap_tokens = n;
    return ST_OK;
}

/* Rewards of tokens or of completions, minus the KL if it belongs in the reward. */
static void take_off_kl(TextRl *rl) {
    Experience *e = &rl->step.experience;
    bool per_token = text_rewards_tokens(rl), off = rl->reference && text_kl_in_reward(rl);
    KlKind kind = rl->loss.kl;
    if (off && per_token)
        kl_rewards(kind, rl->counts.beta, e->old_logprobs, e->ref_logprobs, NULL, e->n, e->begin, e->token_rewards);
    else if (off)
        kl_scores(kind, rl->counts.beta, e->old_logprobs, e->ref_logprobs, e->n, e->begin, e->rewards);
    else if (per_token)
        memset(e->token_rewards, 0, (size_t)e->n_tokens * sizeof *e->token_rewards);
    if (per_token) text_add_rewards(e);
}

static void set_targets(TextRl *rl) {
    Experience *e = &rl->step.experience;
    const Recipe *r = rl->recipe;
    Trajectory tokens = text_trajectory(e, true);
    returns_td_lambda(&tokens, (Bootstrap){.final_values = e->final_values}, r->rl_gamma,
                      isnan(r->rl_value_lambda) ? r->rl_gae_lambda : r->rl_value_lambda, e->targets);
}

static void correct_sampler(TextRl *rl, Metrics *metrics) {
    const Experience *e = &rl->step.experience;
    const Recipe *r = rl->recipe;
    double sum = 0, count = 0;
    static const SamplerCorrection corrections[] = {[RL_SAMPLER_CORRECTION_TOKEN_TRUNCATE] = CORRECT_TOKEN_TRUNCATE,
                                                    [RL_SAMPLER_CORRECTION_TOKEN_MASK] = CORRECT_TOKEN_MASK,
                                                    [RL_SAMPLER_CORRECTION_SEQUENCE_TRUNCATE] = CORRECT_SEQUENCE_TRUNCATE,
                                                    [RL_SAMPLER_CORRECTION_SEQUENCE_MASK] = CORRECT_SEQUENCE_MASK};
    sampler_correction(corrections[r->rl_sampler_correction], r->rl_correction_low, r->rl_correction_high, e->n, e->begin, e->old_logprobs,
                       e->sampled, e->trained, rl->step.weights);
    for (int64_t t = 0; t < e->n_tokens; t++) {
        sum += e->trained[t] ? rl->step.weights[t] : 0;
        count += e->trained[t];
    }
    metric_set(metrics, "sampler_weight", count > 0 ? sum / count : (double)NAN);
}

/* Adapts beta for the next step to the KL of this step's completions. */
static void adapt_kl(TextRl *rl, Metrics *metrics) {
    const Experience *e = &rl->step.experience;
    double sum = 0;
    for (int64_t t = 0; t < e->n_tokens; t++) sum += e->old_logprobs[t] - e->ref_logprobs[t];
    metric_set(metrics, "kl_per_completion", sum / (double)e->n);
    metric_set(metrics, "kl_coef", rl->counts.beta);
    rl->counts.beta = kl_adapt(rl->counts.beta, sum / (double)e->n, rl->recipe->rl_adaptive_kl, (double)e->n, (double)rl->recipe->rl_kl_horizon);
}

/* The policy did not choose the environment's tokens, so they have no KL. */
static void forget_told(Experience *e) {
    for (int64_t t = 0; t < e->n_tokens; t++)
        if (!e->trained[t]) e->ref_logprobs[t] = e->old_logprobs[t];
}

/* rl.mask_truncated excludes truncated completions from training. Their rewards still count in their group, and their KL in rewards and for
 * rl.adaptive_kl. */
static void mask_truncated(Experience *e) {
    for (int64_t i = 0; i < e->n; i++)
        for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) e->trained[t] &= e->ended[i];
}

/* Computes advantages from rewards minus KL; restores the original rewards afterwards, for samples.jsonl. */
static Status set_advantages(TextRl *rl) {
    Experience *e = &rl->step.experience;
    if (e->n == 0) return ST_OK; /* no pair was found */
    size_t bytes = (size_t)e->n * sizeof *e->rewards;
    double *given = malloc(bytes);
    if (!given) return status_fail(ST_RESOURCE, "out of memory for %lld rewards", (long long)e->n);
    memcpy(given, e->rewards, bytes);
    take_off_kl(rl);
    if (rl->algorithm->paired)
        text_pairs_advantages(e);
    else
        rl->algorithm->advantages(&(TextAdvantageOptions){rl->recipe, rl->scale, rl->value != NULL}, e);
    memcpy(e->rewards, given, bytes);
    free(given);
    return ST_OK;
}

Status text_advantages(TextRl *rl, Metrics *metrics) {
    TRY(text_learn_reserve(rl));
    if (rl->algorithm->taught) {
        Experience *e = &rl->step.experience;
        if (rl->recipe->rl_mask_truncated) mask_truncated(e);
        memset(e->advantages, 0, (size_t)e->n_tokens * sizeof *e->advantages); /* for samples.jsonl */
        return ST_OK;
    }
    TRY(ask_reference(rl));
    TRY(ask_policy(rl));
    if (rl->turns.env && rl->reference) forget_told(&rl->step.experience);
    if (rl->recipe->rl_mask_truncated) mask_truncated(&rl->step.experience);
    TRY(set_advantages(rl));
    if (rl->value) set_targets(rl);
    if (corrects_sampler(rl)) correct_sampler(rl, metrics);
    return ST_OK;
}

/* ---- learning ---- */

/* Sums over the tokens of a step's passes; those of the clip are over ratios. */
typedef struct Sums {
    double loss, kl, entropy, clipped, approx_kl, grad_norm, value_loss, value_clipped, value_grad_norm;
    double diff; /* largest difference; NaN: nothing was compared */
    int64_t tokens, ratios, updates;
} Sums;

static void text_learn_add(Sums *sums, const PolicyMetrics *m) {
    double n = (double)m->tokens;
    sums->loss += m->loss;
    sums->kl += m->kl * n;
    sums->entropy += m->entropy * n;
    sums->clipped += (m->clip_low + m->clip_high) * (double)m->ratios;
    sums->approx_kl += m->approx_kl * n;
    sums->tokens += m->tokens;
    sums->ratios += m->ratios;
}

/* Compares the trainer's log-probs with the sampler's, before the first update. */
static Status text_learn_compare(TextRl *rl, const double *logprobs, int64_t begin, int64_t end, Sums *sums) {
    const Experience *e = &rl->step.experience;
    for (int64_t t = begin; t < end; t++)
        if (e->trained[t]) sums->diff = fmax(sums->diff, fabs(logprobs[t] - e->sampled[t])); /* other tokens may not have been sampled */
    /* NaN passes: no limit is set, or nothing was compared */
    if (!(sums->diff > rl->recipe->rl_max_logprob_diff)) return ST_OK;
    status_fail(ST_NUMERIC, "the sampler's and the trainer's log-probabilities differ by %.3g, more than rl.max_logprob_diff %.3g", sums->diff,
                rl->recipe->rl_max_logprob_diff);
    return status_hint(ST_NUMERIC, "model.compute: f32 brings them together");
}

static Status not_finite(const TextRl *rl, const char *what) {
    return status_hint(status_fail(ST_NUMERIC, "the %s is not finite in optimiser step %lld", what, (long long)rl->counts.updates + 1),
                       "lower train.learning_rate");
}

/* Returns vf_coef times the value loss of tokens begin .. end - 1 at new_values, and writes its gradients to rl->step.value_gradients. total: trained
 * tokens of the optimiser step. */
static Status learn_values(TextRl *rl, int64_t begin, int64_t end, int64_t total, Sums *sums) {
    Experience *e = &rl->step.experience;
    ValueBatch batch = {.n = end - begin,
                        .values = e->new_values + begin,
                        .old_values = text_steps_per_rollout(rl) > 1 ? e->values + begin : NULL,
                        .targets = e->targets + begin,
                        .trained = e->trained + begin,
                        .total = total};
    ValueMetrics metrics;
    value_loss(&batch, rl->recipe->rl_clip_value, rl->step.value_gradients + begin, &metrics);
    if (!isfinite(metrics.loss)) return not_finite(rl, "value loss");
    for (int64_t t = begin; t < end; t++) rl->step.value_gradients[t] *= rl->recipe->rl_vf_coef;
    sums->value_loss += metrics.loss;
    for (int64_t t = begin; t < end; t++) sums->value_clipped += e->trained[t] ? metrics.clip_fraction : 0;
    return ST_OK;
}

/* The pass of a separate value model over the same sequences. */
static Status learn_value_model(TextRl *rl, int64_t first, int64_t n, int64_t total, Sums *sums) {
    Experience *e = &rl->step.experience;
    int64_t begin = e->begin[first], end = e->begin[first + n];
    TRY(text_pass_forward(&rl->pass, rl->value->model, e, first, n, &(TextResults){.values = e->new_values + begin}));
    TRY(learn_values(rl, begin, end, total, sums));
    return text_pass_backward(&rl->pass, &(TextGradients){.values = rl->step.value_gradients + begin});
}

/* The same for algorithms that are `taught`. */
static Status learn_from_teacher(TextRl *rl, int64_t first, int64_t n, int64_t total, Sums *sums) {
    double loss;
    TRY(text_gkd_pass(rl, first, n, total, &loss));
    if (!isfinite(loss)) return not_finite(rl, "loss");
    sums->loss += loss;
    return ST_OK;
}

static Status learn_from(TextRl *rl, int64_t first, int64_t n, PolicyLossConfig *loss, bool fresh, Sums *sums) {
    if (rl->algorithm->taught) return learn_from_teacher(rl, first, n, loss->total_tokens, sums);
    Experience *e = &rl->step.experience;
    int64_t begin = e->begin[first], end = e->begin[first + n];
    bool head = rl->value && !rl->value->own;
    TextResults results = {.logprobs = e->logprobs + begin,
                           .entropies = e->entropies + begin,
                           .values = head ? e->new_values + begin : NULL,
                           .entropies_trained = rl->recipe->rl_ent_coef != 0};
    rl->pass.loads = &rl->routers;
    Status status = text_pass_forward(&rl->pass, rl->model, e, first, n, &results);
    rl->pass.loads = NULL;
    TRY(status);
    if (fresh) TRY(text_learn_compare(rl, e->logprobs, begin, end, sums));
    PolicyBatch batch = {
        .n_sequences = n,
        .begin = e->begin + first,
        .logprobs = e->logprobs,
        .old_logprobs = text_steps_per_rollout(rl) > 1 ? e->old_logprobs : NULL,
        .ref_logprobs = rl->reference ? e->ref_logprobs : NULL,
        .advantages = e->advantages,
        .weights = corrects_sampler(rl) ? rl->step.weights : NULL,
        .entropies = e->entropies,
        .trained = e->trained,
    };
    PolicyMetrics metrics;
    if (rl->algorithm->paired)
        TRY(text_pairs_loss(rl, first, n, loss, rl->step.gradients, &metrics));
    else
        policy_loss(rl->policy_loss, loss, &batch, rl->step.gradients, &metrics);
    if (!isfinite(metrics.loss)) return not_finite(rl, "loss");
    text_learn_add(sums, &metrics);
    if (head) TRY(learn_values(rl, begin, end, loss->total_tokens, sums));
    for (int64_t t = begin; t < end; t++) rl->step.entropy_gradients[t] = e->trained[t] ? metrics.grad_entropy : 0;
    TextGradients gradients = {rl->step.gradients + begin, rl->recipe->rl_ent_coef != 0 ? rl->step.entropy_gradients + begin : NULL,
                               head ? rl->step.value_gradients + begin : NULL};
    TRY(text_pass_backward(&rl->pass, &gradients));
    return rl->value && rl->value->own ? learn_value_model(rl, first, n, loss->total_tokens, sums) : ST_OK;
}

static Status update_weights(TextRl *rl, Sums *sums) {
    Params *params = &rl->model->params;
    double norm, value_norm = 0, rate = stepper_rate(&rl->update.stepper, rl->counts.updates);
    bool own = rl->value && rl->value->own;
    TRY(accumulator_norm(&rl->update.accumulator, 0, &norm));
    if (own) TRY(accumulator_norm(&rl->update.accumulator, 1, &value_norm));
    if (!isfinite(norm)) return not_finite(rl, "gradient");
    const double began = clock_seconds();
    stepper_update(&rl->update.stepper, params, norm, rate, rl->counts.updates + 1);
    sums->grad_norm += norm;
    if (own) text_value_update(rl->value, rl->recipe, &rl->update.stepper, value_norm, rate, rl->counts.updates + 1);
    sums->value_grad_norm += value_norm;
    if (!isfinite(sums->value_grad_norm)) return not_finite(rl, "gradient of the values");
    const double updated = clock_seconds();
    rank_record_add(&rl->update.record, RANK_OPTIMIZER, updated - began);
    TRY(accumulator_share(&rl->update.accumulator));
    rank_record_add(&rl->update.record, RANK_REDUCE, clock_seconds() - updated);
    sums->updates++;
    rl->counts.updates++;
    return ST_OK;
}

/* rl.target_kl: whether the policy has moved too far; if so, this minibatch's gradients are discarded. */
static bool moved_too_far(TextRl *rl, const Sums *sums, const Sums *before) {
    double tokens = (double)(sums->tokens - before->tokens);
    if (isnan(rl->recipe->rl_target_kl) || sums->approx_kl - before->approx_kl <= 1.5 * rl->recipe->rl_target_kl * tokens) return false;
    accumulator_drop(&rl->update.accumulator);
    return true;
}

/* ---- passes as leaves of an optimiser step ---- */

static Lanes lanes_for(const TextRl *rl, int64_t n_passes, int ranks) {
    const char *asked = rl->update.division.n_rounds ? "leaves" : rl->recipe->parallel_lanes;
    return lanes_of(asked, n_passes, rl->recipe->has_lora, ranks);
}

int64_t text_lanes(const TextRl *rl, int64_t n_passes) {
    const Lanes lanes = lanes_for(rl, n_passes, comm_size(rl->comm));
    return lanes_in(&lanes, n_passes);
}

void text_say_lanes(const TextRl *rl, RunPlan *plan) {
    const Lanes alone = lanes_for(rl, rl->update.most_passes, 1), here = lanes_for(rl, rl->update.most_passes, comm_size(rl->comm));
    if (alone.n < here.n) run_plan_say(plan, "bits depend on the number of ranks; parallel.lanes=%lld makes them independent", (long long)here.n);
}

Status text_division_init(TextRl *rl) {
    const Recipe *r = rl->recipe;
    rl->update.passes = arena_alloc(rl->arena, (size_t)(r->rl_prompts_per_step * r->rl_num_generations + 1) * sizeof *rl->update.passes);
    router_loads_numbers(&rl->routers, &rl->update.n_loads);
    rl->update.loads = arena_alloc(rl->arena, (rl->update.n_loads + 1) * sizeof *rl->update.loads);
    return rl->update.passes && rl->update.loads ? accumulator_init(&rl->update.accumulator, &rl->update.division, rl->arena) : ST_RESOURCE;
}

/* What a pass gives: sums over it, which the numbers of routers follow. */
typedef struct PassRecord {
    Sums sums;
    PairMeans pairs;
    GkdSums gkd;
} PassRecord;

typedef struct Learning {
    TextRl *rl;
    PolicyLossConfig *loss;
    bool fresh;          /* the policy is the one that sampled */
    bool first;          /* no optimiser step has been taken on these rollouts */
    PassRecord *records; /* of each pass */
    size_t record_size;
} Learning;

static PassRecord *record_of(const Learning *learning, int64_t i) {
    return (PassRecord *)((char *)learning->records + (size_t)i * learning->record_size);
}

/* Forward and backward of a pass. After the first optimiser step the others are finished: a half-done step could not be repeated. */
static Status learn_pass(void *context, int64_t i, const TapeWatch *watch) {
    Learning *learning = context;
    TextRl *rl = learning->rl;
    PassRecord *record = record_of(learning, i);
    size_t n_loads;
    if (learning->first && rl->update.accumulator.size == 1 && interrupt_requested()) return ST_INTERRUPTED;
    record->sums = (Sums){.diff = (double)NAN};
    rl->step.pair_means = (PairMeans){0};
    rl->step.gkd = (GkdSums){0};
    router_loads_begin(&rl->routers, (size_t)rl->step.experience.n_groups);
    comm_phase(rl->comm, rl->step.number, "pass", i);
    const double began = clock_seconds(), before = tape_backward_seconds(rl->pass.tape);
    tape_watch(rl->pass.tape, watch);
    Status status =
        learn_from(rl, rl->update.passes[i], rl->update.passes[i + 1] - rl->update.passes[i], learning->loss, learning->fresh, &record->sums);
    tape_watch(rl->pass.tape, NULL);
    const double backward = tape_backward_seconds(rl->pass.tape) - before;
    rank_record_add(&rl->update.record, RANK_FORWARD, clock_seconds() - began - backward);
    rank_record_add(&rl->update.record, RANK_BACKWARD, backward);
    record->pairs = rl->step.pair_means;
    record->gkd = rl->step.gkd;
    const double *loads = router_loads_numbers(&rl->routers, &n_loads);
    if (n_loads) memcpy(record + 1, loads, n_loads * sizeof *loads);
    return status == ST_OK ? comm_check(rl->comm) : status;
}

static void add_loads(TextUpdate *update, const double *pass) {
    for (size_t i = 0; i < update->n_loads; i++) update->loads[i] += pass[i];
}

static void add_pairs(PairMeans *sums, const PairMeans *pass) {
    sums->pairs += pass->pairs;
    sums->rewards_chosen += pass->rewards_chosen, sums->rewards_rejected += pass->rewards_rejected;
    sums->margin += pass->margin, sums->accuracy += pass->accuracy;
    sums->logps_chosen += pass->logps_chosen, sums->logps_rejected += pass->logps_rejected;
}

static void add_gkd(GkdSums *sums, const GkdSums *pass) {
    sums->divergence += pass->divergence, sums->cross_entropy += pass->cross_entropy, sums->agreement += pass->agreement;
    sums->tokens += pass->tokens;
}

static void add_pass(Sums *sums, const Sums *pass) {
    sums->loss += pass->loss, sums->kl += pass->kl, sums->entropy += pass->entropy;
    sums->clipped += pass->clipped, sums->approx_kl += pass->approx_kl;
    sums->value_loss += pass->value_loss, sums->value_clipped += pass->value_clipped;
    sums->diff = fmax(sums->diff, pass->diff);
    sums->tokens += pass->tokens, sums->ratios += pass->ratios;
}

static double pass_seconds(const TextRl *rl) {
    const double *seconds = rl->update.record.seconds;
    return seconds[RANK_FORWARD] + seconds[RANK_BACKWARD];
}

/* Forward and backward of all passes of an optimiser step. */
static Status learn_passes(TextRl *rl, int64_t n_passes, PolicyLossConfig *loss, bool fresh, Sums *sums) {
    const size_t size = sizeof(PassRecord) + rl->update.n_loads * sizeof(double);
    PassRecord *records = calloc((size_t)n_passes, size);
    Learning learning = {rl, loss, fresh, sums->updates == 0, records, size};
    Leaves leaves = {.n = n_passes, .n_lanes = text_lanes(rl, n_passes), .run = learn_pass, .context = &learning};
    PairMeans pairs = rl->step.pair_means;
    GkdSums gkd = rl->step.gkd;
    bool interrupted = false; /* ranks finish the step */
    const double began = clock_seconds(), before = pass_seconds(rl);
    Status status = records ? accumulator_run(&rl->update.accumulator, &leaves) : status_fail(ST_RESOURCE, "out of memory for the passes of a step");
    rank_record_add(&rl->update.record, RANK_REDUCE, clock_seconds() - began - (pass_seconds(rl) - before));
    if (status == ST_INTERRUPTED) accumulator_drop(&rl->update.accumulator);
    if (status == ST_OK) status = accumulator_vote(&rl->update.accumulator, &leaves, records, size, &interrupted);
    for (int64_t i = 0; i < n_passes && status == ST_OK; i++) {
        const PassRecord *record = record_of(&learning, i);
        add_pass(sums, &record->sums);
        add_pairs(&pairs, &record->pairs);
        add_gkd(&gkd, &record->gkd);
        add_loads(&rl->update, (const double *)(record + 1));
    }
    rl->step.pair_means = pairs;
    rl->step.gkd = gkd;
    free(records);
    return status;
}

/* One optimiser step on the sequences first .. end - 1, which are complete groups, so that they share prompts. */
static Status learn_minibatch(TextRl *rl, int64_t first, int64_t end, bool fresh, Sums *sums, bool *stop) {
    const Experience *e = &rl->step.experience;
    PolicyLossConfig loss = rl->loss;
    Sums before = *sums;
    loss.beta = text_kl_in_reward(rl) ? 0 : rl->counts.beta;
    loss.total_sequences = end - first;
    for (int64_t t = e->begin[first]; t < e->begin[end]; t++) loss.total_tokens += e->trained[t];
    if (loss.total_tokens == 0) return ST_OK;
    if (rl->algorithm->paired) text_pairs_begin(rl, first, end);
    TRY(learn_passes(rl, find_passes(rl, first, end, rl->algorithm->paired ? 2 : 1), &loss, fresh, sums));
    *stop = moved_too_far(rl, sums, &before);
    return *stop ? ST_OK : update_weights(rl, sums);
}

static Status text_learn_passes(TextRl *rl, Sums *sums) {
    const Experience *e = &rl->step.experience;
    int64_t parts = MIN(rl->recipe->rl_num_minibatches, e->n_groups);
    bool stop = false;
    for (int64_t pass = 0; pass < rl->recipe->rl_num_iterations; pass++)
        for (int64_t part = 0; part < parts && !stop; part++) {
            int64_t first = part * e->n_groups / parts * e->group_size, end = (part + 1) * e->n_groups / parts * e->group_size;
            TRY(learn_minibatch(rl, first, end, pass == 0 && part == 0, sums, &stop));
        }
    return ST_OK;
}

/* NaN if there is no measurement: no token was trained, or there are no ratios. */
static void text_learn_report(const TextRl *rl, const Sums *sums, Metrics *metrics) {
    double n = sums->tokens > 0 ? (double)sums->tokens : (double)NAN, ratios = sums->ratios > 0 ? (double)sums->ratios : (double)NAN;
    double updates = fmax(1, (double)sums->updates);
    metric_set(metrics, "loss", sums->loss / updates);
    metric_set(metrics, "grad_norm", sums->grad_norm / updates);
    metric_set(metrics, "learning_rate", stepper_rate(&rl->update.stepper, MAX(rl->counts.updates - 1, 0)));
    if (rl->algorithm->taught) return;
    metric_set(metrics, "kl", rl->reference ? sums->kl / n : (double)NAN);
    metric_set(metrics, "entropy", sums->entropy / n);
    metric_set(metrics, "clip_fraction", sums->clipped / ratios);
    metric_set(metrics, "approx_kl", rl->algorithm->paired ? (double)NAN : sums->approx_kl / n);
    metric_set(metrics, "sampler_logprob_diff", sums->diff);
    if (rl->recipe->rl_mask_truncated) metric_count(metrics, "trained_tokens", sums->tokens);
    if (!rl->value) return;
    const Experience *e = &rl->step.experience;
    metric_set(metrics, "value_loss", sums->value_loss / updates);
    metric_set(metrics, "value_clip_fraction", sums->value_clipped / n);
    metric_set(metrics, "explained_variance", explained_variance(e->values, e->targets, e->trained, e->n_tokens));
    if (rl->value->own) metric_set(metrics, "value_grad_norm", sums->value_grad_norm / updates);
}

static void report_loads(const TextRl *rl, Metrics *metrics) {
    size_t n;
    double *numbers = router_loads_numbers(&rl->routers, &n);
    if (n) memcpy(numbers, rl->update.loads, n * sizeof *numbers);
    router_loads_metrics(&rl->routers, metrics);
}

Status text_learn(TextRl *rl, Metrics *metrics) {
    Sums sums = {.diff = (double)NAN};
    memset(rl->update.loads, 0, rl->update.n_loads * sizeof *rl->update.loads);
    rl->step.gkd = (GkdSums){0};
    TRY(text_learn_passes(rl, &sums));
    text_learn_report(rl, &sums, metrics);
    report_loads(rl, metrics);
    if (rl->algorithm->taught) text_gkd_report(rl, metrics);
    if (rl->algorithm->paired) text_pairs_report(rl, metrics);
    if (adapts_kl(rl)) adapt_kl(rl, metrics);
    return ST_OK;
}
