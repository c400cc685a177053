/* SPDX-License-Identifier: Apache-2.0 */
/* magpie (Xu et al. 2024): the teacher continues its chat template at the start of a user's turn, so it writes a typical user message, and then
 * answers it. Seeds only define the types: their system messages, if they have any, are used. */
#include "data/synth/synth_parts.h"

enum { PROMPT, ANSWER };

static const SynthStage stages[] = {
    {.name = "prompt", .max_new_tokens = 256, .temperature = 1, .top_p = 1},
    {.name = "answer", .prompt = "answer", .max_new_tokens = 512, .temperature = 0.7, .top_p = 0.95},
    {0},
};

static SynthCandidate *synth_magpie_begin(Synth *s, SynthRequest **request) {
    const SynthType *type = &s->seeds.types[synth_next_type(s)];
    const SynthSeed *seed = type->n ? &s->seeds.items[type->seeds[synth_draw(s, s->counts.next_number, 0, type->n)]] : NULL;
    const char *system = seed && seed->system ? seed->system : s->recipe->synth_system;
    Str text = {0};
    SynthCandidate *c = synth_candidate(s, type->name);
    if (!c) return NULL;
    if (seed && seed->system) candidate_seed(s, c, seed->id);
    Status status = s->recipe->synth_user_turn ? ST_OK : teacher_user_turn(s->teacher, system, &text);
    if (s->recipe->synth_user_turn) str_append(&text, s->recipe->synth_user_turn);
    c->system = system;
    const char *turn = status == ST_OK ? arena_strdup(s->round.arena, str_text(&text)) : NULL;
    str_release(&text);
    if (status != ST_OK && s->status == ST_OK) s->status = status;
    *request = turn ? synth_request_rendered(s, PROMPT, turn) : NULL;
    return *request ? c : NULL;
}

static Status make_round(Synth *s) { return synth_prompt_round(s, synth_magpie_begin, false, ANSWER); }

const SynthPreset synth_preset_magpie = {.name = "magpie",
                                         .help = "the teacher continues its own chat template at the start of a user's turn",
                                         .stages = stages,
                                         .seeds_optional = true,
                                         .new_prompts = true,
                                         .keys = "user_turn system keep_cut",
                                         .make_round = make_round};
