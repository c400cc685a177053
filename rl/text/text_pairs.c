/* SPDX-License-Identifier: Apache-2.0 */
/* Online DPO: the completions of a prompt with the highest and the lowest reward form a pair for a preference loss. Groups with equal rewards give no
 * pair. Source: arXiv 2402.04792. */
#include <math.h>

#include "rl/core/kl.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_run.h"

const TextAlgorithm text_online_dpo = {
    .name = "online_dpo",
    .help = "the best and the worst completion of each prompt are a pair of DPO (arXiv 2402.04792)",
    .least_group = 2,
    .compares = true,
    .paired = true,
    .scale = SCALE_NONE,
    .keys = "loss_type label_smoothing cpo_alpha divergence discopop_tau",
};

Status text_pairs_open(TextRl *rl) {
    PairAlgorithm as_dpo = *preference_algorithm("dpo");
    as_dpo.name = "online_dpo";
    TRY(preference_configure(rl->recipe, &as_dpo, &rl->pair_config, &rl->pair_loss));
    if (rl->pair_loss->matching == AS_PAIRED) return ST_OK;
    status_fail(ST_CONFIG, "loss '%s' compares all pairs of a step, but 'online_dpo' has only one batch of them at a time", rl->pair_loss->name);
    return status_hint(ST_CONFIG, "use sigmoid, hinge, ipo or another loss over single pairs");
}

Status text_pairs_append(TextRl *rl, int64_t group) {
    const Experience *round = &rl->step.round;
    const double *rewards = round->rewards + group * round->group_size;
    int64_t members[2] = {0, 0}; /* chosen, rejected; the first among equals */
    for (int64_t i = 1; i < round->group_size; i++) {
        if (rewards[i] > rewards[members[0]]) members[0] = i;
        if (rewards[i] < rewards[members[1]]) members[1] = i;
    }
    return experience_append_members(&rl->step.experience, round, group, members);
}

/* Shown in samples.jsonl. */
void text_pairs_advantages(Experience *e) {
    for (int64_t i = 0; i < e->n; i++) e->scores[i] = i % 2 ? -1 : 1;
    advantages_spread(e->scores, e->n, e->begin, e->advantages);
}

/* ---- the loss ---- */

typedef struct PairColumns {
    double *logps[2], *refs[2], *gradients[2];
    int64_t *tokens[2];
} PairColumns;

static Status new_columns(Arena *arena, size_t n, PairColumns *c) {
    for (int side = 0; side < 2; side++) {
        double *numbers = arena_zero(arena, 3 * n * sizeof *numbers);
        c->tokens[side] = arena_zero(arena, n * sizeof *c->tokens[side]);
        if (!numbers || !c->tokens[side]) return ST_RESOURCE;
        c->logps[side] = numbers, c->refs[side] = numbers + n, c->gradients[side] = numbers + 2 * n;
    }
    return ST_OK;
}

/* Log-probs summed over the trained tokens of sequences first .. first + n - 1; kl and entropy are means over these tokens. */
static void sum_up(const TextRl *rl, int64_t first, int64_t n, PairColumns *c, PolicyMetrics *metrics) {
    const Experience *e = &rl->step.experience;
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = e->begin[first + i]; t < e->begin[first + i + 1]; t++) {
            if (!e->trained[t]) continue;
            c->logps[i % 2][i / 2] += e->logprobs[t];
            c->refs[i % 2][i / 2] += e->ref_logprobs[t];
            c->tokens[i % 2][i / 2]++;
            metrics->kl += kl_estimate(rl->loss.kl, e->logprobs[t], e->ref_logprobs[t]).value;
            metrics->entropy += e->entropies[t];
            metrics->tokens++;
        }
    metrics->kl /= (double)MAX(metrics->tokens, 1);
    metrics->entropy /= (double)MAX(metrics->tokens, 1);
}

static void add_up(PairMeans *sums, const PreferenceMetrics *m, double n) {
    sums->pairs += n;
    sums->rewards_chosen += n * m->rewards_chosen, sums->rewards_rejected += n * m->rewards_rejected;
    sums->margin += n * m->margin, sums->accuracy += n * m->accuracy;
    sums->logps_chosen += n * m->logps_chosen, sums->logps_rejected += n * m->logps_rejected;
}

void text_pairs_begin(TextRl *rl, int64_t first, int64_t end) {
    const Experience *e = &rl->step.experience;
    rl->pair_config.total_pairs = (end - first) / 2;
    rl->pair_config.total_chosen_tokens = 0;
    for (int64_t i = first; i < end; i += 2)
        for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) rl->pair_config.total_chosen_tokens += e->trained[t];
}

Status text_pairs_loss(TextRl *rl, int64_t first, int64_t n, const PolicyLossConfig *step, double *gradients, PolicyMetrics *metrics) {
    const Experience *e = &rl->step.experience;
    PreferenceMetrics m;
    PairColumns c;
    *metrics = (PolicyMetrics){0};
    arena_reset(rl->step.pair_scratch);
    TRY(new_columns(rl->step.pair_scratch, (size_t)(n / 2), &c));
    sum_up(rl, first, n, &c, metrics);
    PreferenceBatch batch = {n / 2, c.logps[0], c.logps[1], c.refs[0], c.refs[1], c.tokens[0], c.tokens[1], NULL};
    TRY(preference_loss(rl->pair_loss, &rl->pair_config, &batch, rl->step.pair_scratch, c.gradients[0], c.gradients[1], &m));
    add_up(&rl->step.pair_means, &m, (double)(n / 2));
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = e->begin[first + i]; t < e->begin[first + i + 1]; t++) gradients[t] = e->trained[t] ? c.gradients[i % 2][i / 2] : 0;
    metrics->grad_entropy = -step->ent_coef / (double)MAX(step->total_tokens, 1);
    metrics->policy_loss = m.loss;
    metrics->loss = m.loss + metrics->grad_entropy * metrics->entropy * (double)metrics->tokens;
    return ST_OK;
}

void text_pairs_report(TextRl *rl, Metrics *metrics) {
    const PairMeans *sums = &rl->step.pair_means;
    double n = sums->pairs > 0 ? sums->pairs : (double)NAN;
    metric_count(metrics, "pairs", rl->step.experience.n_groups);
    metric_count(metrics, "ties", rl->step.sampled.flat);
    metric_set(metrics, "rewards_chosen", sums->rewards_chosen / n);
    metric_set(metrics, "rewards_rejected", sums->rewards_rejected / n);
    metric_set(metrics, "margin", sums->margin / n);
    metric_set(metrics, "accuracy", sums->accuracy / n);
    metric_set(metrics, "logps_chosen", sums->logps_chosen / n);
    metric_set(metrics, "logps_rejected", sums->logps_rejected / n);
    rl->step.pair_means = (PairMeans){0};
}
