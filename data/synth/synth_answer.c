/* SPDX-License-Identifier: Apache-2.0 */
/* answer: answers existing prompts, synth.n times each. */
#include "data/synth/synth_parts.h"

#include <string.h>

enum { ANSWER };

static const SynthStage stages[] = {
    {.name = "answer", .prompt = "answer", .max_new_tokens = 512, .temperature = 0.7, .top_p = 0.95, .base_stop = {"\n\n"}},
    {0},
};

static const char *const same_answer = "same_answer";

static Status make_round(Synth *s) {
    size_t each = s->recipe->synth_n > 0 ? (size_t)s->recipe->synth_n : 1, n;
    SynthCandidate **candidates;
    TRY(synth_given(s, MAX(synth_round_size(s) / each, 1), each, &candidates, &n));
    TRY(synth_answer(s, ANSWER, candidates, n));
    for (size_t i = 0; i < n; i++)
        for (size_t j = i - i % each; j < i && !candidates[i]->rejected; j++)
            if (!candidates[j]->rejected && strcmp(candidates[i]->output, candidates[j]->output) == 0) synth_reject(s, candidates[i], same_answer);
    return synth_write_rows(s, candidates, n);
}

const SynthPreset synth_preset_answer = {.name = "answer",
                                         .help = "answers for given prompts, synth.n of each",
                                         .stages = stages,
                                         .needs = NEEDS_INSTRUCTION,
                                         .filters = SYNTH_GIVEN_FILTERS,
                                         .given_prompts = true,
                                         .keys = "n labels system keep_cut",
                                         .make_round = make_round};
