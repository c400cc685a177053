/* SPDX-License-Identifier: Apache-2.0 */
/* few_shot: shows one to five seeds of one type; the teacher writes a new prompt of that type, and then answers it. */
#include "data/synth/synth_parts.h"

enum { PROMPT, ANSWER };

static const SynthStage stages[] = {
    {.name = "prompt", .prompt = "few_shot_prompt", .max_new_tokens = 192, .temperature = 1, .top_p = 0.95, .base_stop = {"\n\n"}},
    {.name = "answer", .prompt = "answer", .max_new_tokens = 512, .temperature = 0.7, .top_p = 0.95, .base_stop = {"\n\n"}},
    {0},
};

static Status synth_few_shot_open(Synth *s) { return synth_examples_open(s, 1, 5, 0, true); }

/* Requests a prompt of the next type; its examples are recorded in the candidate's provenance. */
static SynthCandidate *ask_for_prompt(Synth *s, SynthRequest **request) {
    const SynthType *type = &s->seeds.types[synth_next_type(s)];
    SynthCandidate *c = synth_candidate(s, type->name);
    if (!c) return NULL;
    json_t *examples = synth_examples(s, type, c);
    *request = synth_request(s, PROMPT, json_pack("{s:s, s:o}", "task_type", type->name, "examples", examples));
    return *request ? c : NULL;
}

static Status make_round(Synth *s) { return synth_prompt_round(s, ask_for_prompt, true, ANSWER); }

const SynthPreset synth_preset_few_shot = {
    .name = "few_shot",
    .help = "the teacher sees seeds of one type, writes a new prompt and answers it",
    .stages = stages,
    .needs = NEEDS_INSTRUCTION,
    .new_prompts = true,
    .keys = "examples machine_examples labels system keep_cut",
    .open = synth_few_shot_open,
    .make_round = make_round,
};
