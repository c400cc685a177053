/* Learning from a batch of rollouts: what each token is worth, and the passes that follow the gradient. */
#include "rl/text_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rl/kl.h"

/* ---- passes that learn nothing: log-probs under the policy as it is, or under the reference ---- */

static Status logprobs_of(TextRl *rl, const Model *model, double *logprobs) {
    Experience *e = &rl->experience;
    Status status = ST_OK;
    tape_record(rl->pass.tape, false);
    for (int64_t i = 0, n; i < e->n && status == ST_OK; i += n) {
        n = text_pass_fit(&rl->pass, e, i, e->n);
        status = interrupt_requested() ? ST_INTERRUPTED : text_pass_forward(&rl->pass, model, e, i, n, &(TextResults){.logprobs = logprobs + e->begin[i]});
    }
    tape_record(rl->pass.tape, true);
    return status;
}

static Status ask_reference(TextRl *rl) {
    if (!rl->reference) return ST_OK;
    const Model *model = reference_begin(rl->reference);
    Status status = logprobs_of(rl, model, rl->experience.ref_logprobs);
    reference_end(rl->reference);
    return status;
}

bool text_kl_in_reward(const TextRl *rl) { return !rl->algorithm->paired && rl->recipe->rl_beta > 0 && (rl->algorithm->token_kl || strcmp(rl->recipe->rl_kl_in, "reward") == 0); }

int64_t text_steps_per_rollout(const TextRl *rl) { return rl->recipe->rl_num_iterations * rl->recipe->rl_num_minibatches; }

/* With one optimiser step a rollout the policy that learns is the one that sampled: every ratio is exactly 1, and nothing is computed twice. */
static bool needs_old(const TextRl *rl) { return !rl->algorithm->paired && (text_steps_per_rollout(rl) > 1 || text_kl_in_reward(rl) || rl->algorithm->token_kl); }

static Status reserve(TextRl *rl) {
    int64_t n = rl->experience.n_tokens;
    if (n <= rl->cap_tokens) return ST_OK;
    double *gradients = realloc(rl->gradients, (size_t)n * sizeof *gradients);
    if (gradients) rl->gradients = gradients;
    double *entropies = realloc(rl->entropy_gradients, (size_t)n * sizeof *entropies);
    if (entropies) rl->entropy_gradients = entropies;
    if (!gradients || !entropies) return status_fail(ST_RESOURCE, "out of memory for %lld tokens", (long long)n);
    rl->cap_tokens = n;
    return ST_OK;
}

static Status weigh(TextRl *rl) {
    Experience *e = &rl->experience;
    TRY(ask_reference(rl));
    if (needs_old(rl)) TRY(logprobs_of(rl, rl->model, e->old_logprobs));
    if (!rl->reference) memcpy(e->ref_logprobs, e->old_logprobs, (size_t)e->n_tokens * sizeof(double));
    if (text_kl_in_reward(rl) && !rl->algorithm->token_kl)
        kl_scores(kl_from_text(rl->recipe->rl_kl), rl->recipe->rl_beta, e->old_logprobs, e->ref_logprobs, e->n, e->begin, e->rewards);
    if (rl->algorithm->paired) text_pairs_advantages(e);
    else rl->algorithm->advantages(rl->recipe, rl->scale, e);
    return ST_OK;
}

/* ---- learning ---- */

/* Sums over the tokens of a step's passes. */
typedef struct Sums { double loss, kl, entropy, clip_low, clip_high, approx_kl, grad_norm, diff; int64_t tokens, updates; } Sums;

static void add(Sums *sums, const PolicyMetrics *m) {
    double n = (double)m->tokens;
    sums->loss += m->loss;
    sums->kl += m->kl * n;
    sums->entropy += m->entropy * n;
    sums->clip_low += m->clip_low * n;
    sums->clip_high += m->clip_high * n;
    sums->approx_kl += m->approx_kl * n;
    sums->tokens += m->tokens;
}

/* How far the trainer's numbers are from the sampler's, before anything was learned. */
static Status compare(TextRl *rl, const double *logprobs, int64_t begin, int64_t end, Sums *sums) {
    const Experience *e = &rl->experience;
    for (int64_t t = begin; t < end; t++) sums->diff = fmax(sums->diff, fabs(logprobs[t] - e->sampled[t]));
    if (isnan(rl->recipe->rl_max_logprob_diff) || sums->diff <= rl->recipe->rl_max_logprob_diff) return ST_OK;
    status_fail(ST_NUMERIC, "the sampler's and the trainer's log-probabilities differ by %.3g, more than rl.max_logprob_diff %.3g", sums->diff, rl->recipe->rl_max_logprob_diff);
    return status_hint(ST_NUMERIC, "model.compute: f32 brings them together");
}

static Status learn_from(TextRl *rl, int64_t first, int64_t n, PolicyLossConfig *loss, bool fresh, Sums *sums) {
    Experience *e = &rl->experience;
    int64_t begin = e->begin[first], tokens = e->begin[first + n] - begin;
    TextResults results = {.logprobs = e->logprobs + begin, .entropies = e->entropies + begin};
    TRY(text_pass_forward(&rl->pass, rl->model, e, first, n, &results));
    if (fresh) TRY(compare(rl, e->logprobs, begin, begin + tokens, sums));
    PolicyBatch batch = {
        .n_sequences = n,
        .begin = e->begin + first,
        .logprobs = e->logprobs,
        .old_logprobs = text_steps_per_rollout(rl) > 1 ? e->old_logprobs : NULL,
        .ref_logprobs = rl->reference ? e->ref_logprobs : NULL,
        .advantages = e->advantages,
        .entropies = e->entropies,
        .trained = e->trained,
    };
    PolicyMetrics metrics;
    if (rl->algorithm->paired) TRY(text_pairs_loss(rl, first, n, loss, rl->gradients, &metrics));
    else policy_loss(policy_loss_find(rl->algorithm->loss), loss, &batch, rl->gradients, &metrics);
    if (!isfinite(metrics.loss)) return status_hint(status_fail(ST_NUMERIC, "the loss is not finite in optimiser step %lld", (long long)rl->updates + 1), "lower train.learning_rate");
    add(sums, &metrics);
    for (int64_t t = begin; t < begin + tokens; t++) rl->entropy_gradients[t] = e->trained[t] ? metrics.grad_entropy : 0;
    return text_pass_backward(&rl->pass, &(TextGradients){.logprobs = rl->gradients + begin, .entropies = rl->recipe->rl_ent_coef != 0 ? rl->entropy_gradients + begin : NULL});
}

static Status update_weights(TextRl *rl, Sums *sums) {
    Params *params = &rl->model->params;
    double norm = params_grad_norm(params);
    if (!isfinite(norm)) return status_hint(status_fail(ST_NUMERIC, "the gradient is not finite in optimiser step %lld", (long long)rl->updates + 1), "lower train.learning_rate");
    double lr = rl->recipe->train_learning_rate * schedule_factor(&rl->schedule, rl->updates);
    optimizer_step(&rl->optimizer, params, clip_scale(norm, rl->recipe->train_max_grad_norm), lr, rl->updates + 1);
    params_zero_grad(params);
    sums->grad_norm += norm;
    sums->updates++;
    rl->updates++;
    return ST_OK;
}

/* One optimiser step on the sequences first .. end - 1. Whole groups, so that prompts are shared. */
static Status learn_minibatch(TextRl *rl, int64_t first, int64_t end, bool fresh, Sums *sums) {
    const Experience *e = &rl->experience;
    PolicyLossConfig loss = rl->loss;
    loss.total_sequences = end - first;
    for (int64_t t = e->begin[first]; t < e->begin[end]; t++) loss.total_tokens += e->trained[t];
    if (loss.total_tokens == 0) return ST_OK;
    if (rl->algorithm->paired) text_pairs_begin(rl, first, end);
    for (int64_t i = first, n; i < end; i += n) {
        if (sums->updates == 0 && interrupt_requested()) return ST_INTERRUPTED; /* later the step is finished first: half of it could not be done again */
        n = text_pass_fit(&rl->pass, e, i, end);
        if (rl->algorithm->paired) n = MAX(n - n % 2, 2);
        TRY(learn_from(rl, i, n, &loss, fresh, sums));
    }
    return update_weights(rl, sums);
}

static Status learn(TextRl *rl, Sums *sums) {
    const Experience *e = &rl->experience;
    int64_t parts = MIN(rl->recipe->rl_num_minibatches, e->n_groups);
    for (int64_t pass = 0; pass < rl->recipe->rl_num_iterations; pass++)
        for (int64_t part = 0; part < parts; part++) {
            int64_t first = part * e->n_groups / parts * e->group_size, end = (part + 1) * e->n_groups / parts * e->group_size;
            TRY(learn_minibatch(rl, first, end, pass == 0 && part == 0, sums));
        }
    return ST_OK;
}

static void report(const TextRl *rl, const Sums *sums, Metrics *metrics) {
    double n = fmax(1, (double)sums->tokens), updates = fmax(1, (double)sums->updates);
    metric_set(metrics, "loss", sums->loss / updates);
    metric_set(metrics, "grad_norm", sums->grad_norm / updates);
    metric_set(metrics, "learning_rate", rl->recipe->train_learning_rate * schedule_factor(&rl->schedule, MAX(rl->updates - 1, 0)));
    metric_set(metrics, "kl", rl->reference ? sums->kl / n : (double)NAN);
    metric_set(metrics, "entropy", sums->entropy / n);
    metric_set(metrics, "clip_fraction", (sums->clip_low + sums->clip_high) / n);
    metric_set(metrics, "approx_kl", sums->approx_kl / n);
    metric_set(metrics, "sampler_logprob_diff", sums->diff);
}

Status text_learn(TextRl *rl, Metrics *metrics) {
    Sums sums = {0};
    TRY(reserve(rl));
    TRY(weigh(rl));
    TRY(learn(rl, &sums));
    report(rl, &sums, metrics);
    if (rl->algorithm->paired) text_pairs_report(rl, metrics);
    return ST_OK;
}
