/* SPDX-License-Identifier: Apache-2.0 */
/* preference: two answers for each given prompt, both scored by a judge (synth.judge, or else the teacher itself); the better one is chosen, the
 * other one rejected. */
#include "data/synth/synth_parts.h"

#include <math.h>
#include <string.h>

enum { ANSWER, JUDGE };

static const SynthStage stages[] = {
    {.name = "answer", .prompt = "answer", .max_new_tokens = 512, .temperature = 1, .top_p = 0.95, .base_stop = {"\n\n"}},
    {.name = "judge", .prompt = "judge", .max_new_tokens = 256, .temperature = 0, .by_judge = true},
    {0},
};

static Status synth_preference_open(Synth *s) {
    return s->recipe->synth_n <= 2 ? ST_OK
                                   : status_fail(ST_CONFIG, "preset 'preference' needs two answers, not synth.n %lld", (long long)s->recipe->synth_n);
}

/* A prompt or an answer, in the format of the rows. system: NULL: none. */
static json_t *side(const Synth *s, const char *system, const char *role, const char *text) {
    if (s->recipe->synth_format != SYNTH_FORMAT_MESSAGES) return json_string(text);
    json_t *list = json_array();
    if (system) json_array_append_new(list, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_array_append_new(list, json_pack("{s:s, s:s}", "role", role, "content", text));
    return list;
}

/* Makes one row of both; the second candidate is merged into the first. */
static Status make_pair(Synth *s, SynthCandidate *a, SynthCandidate *b, const double scores[2]) {
    double margin = s->recipe->synth_margin;
    bool both = !a->rejected && !b->rejected, known = isfinite(scores[0]) && isfinite(scores[1]);
    SynthCandidate *left = a->rejected ? b : a;
    if (!both && !left->rejected) return synth_reject(s, left, "no_second_answer");
    if (!both) return ST_OK;
    s->counts.made--; /* one candidate from here on */
    for (size_t i = 0; i < b->n_requests; i++) candidate_request(s, a, b->requests[i]);
    const char *reason = strcmp(a->output, b->output) == 0       ? "same_answer"
                         : !known                                ? "no_score"
                         : fabs(scores[0] - scores[1]) <= margin ? "no_difference"
                                                                 : NULL;
    b->rejected = "joined";
    if (reason) return synth_reject(s, a, reason);
    bool first = scores[0] > scores[1];
    const char *chosen = first ? a->output : b->output, *rejected = first ? b->output : a->output;
    char *prompt = synth_prompt_of(s->round.arena, a->instruction, a->input);
    if (!prompt) return ST_RESOURCE;
    candidate_more(a, "prompt", side(s, a->system, "user", prompt));
    candidate_more(a, "chosen", side(s, NULL, "assistant", chosen));
    candidate_more(a, "rejected", side(s, NULL, "assistant", rejected));
    candidate_score(a, "chosen", first ? scores[0] : scores[1]);
    candidate_score(a, "rejected", first ? scores[1] : scores[0]);
    a->output = chosen;
    a->worse = rejected;
    return s->status;
}

static Status make_round(Synth *s) {
    size_t n;
    SynthCandidate **candidates;
    TRY(synth_given(s, MAX(synth_round_size(s) / 2, 1), 2, &candidates, &n));
    double *scores = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *scores);
    if (!scores) return ST_RESOURCE;
    TRY(synth_answer(s, ANSWER, candidates, n));
    TRY(synth_scores(s, JUDGE, candidates, n, scores));
    for (size_t i = 0; i < n; i += 2) TRY(make_pair(s, candidates[i], candidates[i + 1], scores + i));
    return synth_write_rows(s, candidates, n);
}

const SynthPreset synth_preset_preference = {.name = "preference",
                                             .help = "two answers for each given prompt; a judge prefers one",
                                             .stages = stages,
                                             .needs = NEEDS_INSTRUCTION,
                                             .filters = SYNTH_GIVEN_FILTERS,
                                             .scores = "chosen rejected",
                                             .keys = "n margin system keep_cut",
                                             .open = synth_preference_open,
                                             .make_round = make_round};
