/* SPDX-License-Identifier: Apache-2.0 */
/* backtranslation (Li et al. 2023): texts that people wrote become answers, and the teacher writes instructions for them. The seeds are the texts. */
#include "data/synth/synth_parts.h"

enum { INSTRUCTION };

static const SynthStage stages[] = {
    {.name = "instruction", .prompt = "backtranslation_instruction", .max_new_tokens = 192, .temperature = 0.7, .top_p = 0.95},
    {0},
};

static Status make_round(Synth *s) {
    size_t n = MIN(synth_round_size(s), s->seeds.n - s->cursor);
    SynthCandidate **candidates = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *candidates);
    SynthRequest **requests = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *requests);
    if (!candidates || !requests) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        const SynthSeed *seed = &s->seeds.items[s->cursor + i];
        if (!(candidates[i] = synth_candidate_of_seed(s, seed))) return ST_RESOURCE;
        candidates[i]->instruction = candidates[i]->input = "";
        if (!(requests[i] = synth_request(s, INSTRUCTION, json_pack("{s:s, s:s}", "text", seed->output, "task_type", seed->type)))) return s->status;
    }
    s->cursor += n;
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        candidate_request(s, candidates[i], requests[i]);
        if (!synth_is_answer(s, candidates[i], requests[i])) continue;
        candidates[i]->instruction = synth_clean(s, requests[i]->text);
        candidates[i]->output = s->seeds.items[s->cursor - n + i].output;
        if (!candidates[i]->instruction) return ST_RESOURCE;
    }
    s->exhausted = s->cursor == s->seeds.n;
    TRY(synth_apply_filters(s, FILTER_PROMPT, candidates, n));
    return synth_write_rows(s, candidates, n);
}

const SynthPreset synth_preset_backtranslation = {.name = "backtranslation",
                                                  .help = "texts are answers; the teacher writes their instructions",
                                                  .stages = stages,
                                                  .needs = NEEDS_OUTPUT,
                                                  .keys = "keep_cut",
                                                  .make_round = make_round};
