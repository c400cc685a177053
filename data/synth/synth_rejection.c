/* SPDX-License-Identifier: Apache-2.0 */
/* rejection: several answers for each given prompt. Those that a reward of the recipe's section `reward` prefers are kept: the best one, or all that
 * reach synth.threshold. */
#include "data/synth/synth_parts.h"

#include <math.h>
#include <string.h>

enum { ANSWER };

static const SynthStage stages[] = {
    {.name = "answer", .prompt = "answer", .max_new_tokens = 512, .temperature = 1, .top_p = 1, .base_stop = {"\n\n"}},
    {0},
};

static Status synth_rejection_open(Synth *s) {
    if (s->config->reward) return ST_OK;
    status_fail(ST_CONFIG, "preset 'rejection' needs a reward");
    return status_hint(ST_CONFIG, "reward: [{type: exact}] and the like, as for tune rl");
}

/* The reward of every remaining answer, with its seed's row as columns. */
static Status synth_rejection_score(Synth *s, SynthCandidate **candidates, size_t n) {
    FilterRow *rows = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *rows);
    double *values = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *values);
    size_t n_rows = 0;
    if (!rows || !values) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        const SynthSeed *seed = candidates[i]->seed;
        if (candidates[i]->rejected) continue;
        rows[n_rows++] = (FilterRow){.instruction = {seed->prompt, strlen(seed->prompt)},
                                     .completion = {candidates[i]->output, strlen(candidates[i]->output)},
                                     .json = seed->row.json};
    }
    if (n_rows) TRY(s->config->reward(s->config->context, rows, n_rows, values));
    for (size_t i = 0, at = 0; i < n; i++)
        if (!candidates[i]->rejected) candidate_score(candidates[i], "reward", values[at++]);
    return ST_OK;
}

static double reward_of(const SynthCandidate *c) { return json_number_value(json_object_get(c->scores, "reward")); }

/* Selects among a prompt's answers; the first of equals. If at most one is kept, the prompt counts as one candidate. */
static Status synth_rejection_choose(Synth *s, SynthCandidate **candidates, size_t n) {
    size_t best = n;
    double least = s->recipe->synth_threshold;
    bool all = s->recipe->synth_keep == SYNTH_KEEP_ALL;
    if (!all) s->counts.made -= (int64_t)n - 1;
    for (size_t i = 0; i < n; i++)
        if (!candidates[i]->rejected && (best == n || reward_of(candidates[i]) > reward_of(candidates[best]))) best = i;
    for (size_t i = 0; i < n; i++) {
        if (candidates[i]->rejected) continue;
        bool low = !isnan(least) && reward_of(candidates[i]) < least;
        bool same = false;
        for (size_t j = 0; j < i && all; j++) same |= !candidates[j]->rejected && strcmp(candidates[i]->output, candidates[j]->output) == 0;
        if (low)
            TRY(synth_reject(s, candidates[i], "low_reward"));
        else if (!all && i != best)
            TRY(synth_reject(s, candidates[i], "not_best"));
        else if (same)
            TRY(synth_reject(s, candidates[i], "same_answer"));
    }
    return ST_OK;
}

static Status make_round(Synth *s) {
    size_t each = s->recipe->synth_n > 0 ? (size_t)s->recipe->synth_n : 4, size = synth_round_size(s);
    bool all = s->recipe->synth_keep == SYNTH_KEEP_ALL;
    size_t wanted = all ? size / each : MIN(size, synth_batch(s) / each), n;
    SynthCandidate **candidates;
    TRY(synth_given(s, MAX(wanted, 1), each, &candidates, &n));
    TRY(synth_answer(s, ANSWER, candidates, n));
    TRY(synth_rejection_score(s, candidates, n));
    for (size_t i = 0; i < n; i += each) TRY(synth_rejection_choose(s, candidates + i, each));
    return synth_write_rows(s, candidates, n);
}

const SynthPreset synth_preset_rejection = {
    .name = "rejection",
    .help = "several answers for each given prompt; a reward keeps the best",
    .stages = stages,
    .needs = NEEDS_INSTRUCTION,
    .filters = SYNTH_GIVEN_FILTERS,
    .scores = "reward",
    .keys = "n keep threshold system keep_cut",
    .open = synth_rejection_open,
    .make_round = make_round,
};
