/* SPDX-License-Identifier: Apache-2.0 */
/* evol (Xu et al. 2023): each prompt is repeatedly made harder, or varied; every generation that passes is answered. */
#include "data/synth/synth_parts.h"

#include <string.h>

enum { EVOLVE, ANSWER };

static const SynthStage stages[] = {
    {.name = "evolve", .prompt = "evol_evolve", .max_new_tokens = 512, .temperature = 0.7, .top_p = 0.95},
    {.name = "answer", .prompt = "answer", .max_new_tokens = 512, .temperature = 0.7, .top_p = 0.95},
    {0},
};

/* The current state of each seed: the prompt of its last generation that passed, and the row with it. */
typedef struct Line {
    const char *prompt;
    int64_t row;
} Line;
typedef struct Evolution {
    Line *lines;
} Evolution;

static Status synth_evol_open(Synth *s) {
    Evolution *evolution = s->state = arena_alloc(s->arena, sizeof *evolution);
    Line *lines = arena_alloc(s->arena, s->seeds.n * sizeof *lines);
    if (!evolution || !lines) return ST_RESOURCE;
    for (size_t i = 0; i < s->seeds.n; i++) lines[i] = (Line){s->seeds.items[i].prompt, -1};
    evolution->lines = lines;
    if (s->recipe->synth_mutations.n == 0) return status_fail(ST_CONFIG, "'synth.mutations' is empty");
    return ST_OK;
}

static SynthCandidate *synth_evol_begin(Synth *s, size_t seed, SynthRequest **request) {
    const Evolution *evolution = s->state;
    const TextList *mutations = &s->recipe->synth_mutations;
    const Line *line = &evolution->lines[seed];
    const char *mutation = mutations->items[synth_draw(s, s->counts.next_number, 0, mutations->n)];
    SynthCandidate *c = synth_candidate_of_seed(s, &s->seeds.items[seed]);
    if (!c) return NULL;
    if (line->row >= 0) candidate_parent(s, c, line->row);
    candidate_more(c, "mutation", json_string(mutation));
    c->input = "";
    *request = synth_request(s, EVOLVE, json_pack("{s:s, s:s, s:s}", "prompt", line->prompt, "mutation", mutation, "task_type", c->type));
    return *request ? c : NULL;
}

/* The rows kept in this round are the parents of the next generation. */
static void take_over(Synth *s, SynthCandidate **candidates, const size_t *seeds, size_t n, size_t first_row) {
    const Evolution *evolution = s->state;
    for (size_t row = first_row, i = 0; row < s->n_rows; row++) {
        while (i < n && (candidates[i]->rejected || strcmp(candidates[i]->instruction, s->rows[row].instruction) != 0)) i++;
        if (i < n) evolution->lines[seeds[i++]] = (Line){s->rows[row].prompt, (int64_t)row};
    }
}

static Status make_round(Synth *s) {
    size_t n = MIN(synth_round_size(s), s->seeds.n - s->cursor), first_row = s->n_rows;
    SynthCandidate **candidates = arena_alloc(s->round.arena, n * sizeof *candidates);
    SynthRequest **requests = arena_alloc(s->round.arena, n * sizeof *requests);
    size_t *seeds = arena_alloc(s->round.arena, n * sizeof *seeds);
    if (!candidates || !requests || !seeds) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        seeds[i] = s->cursor + i;
        if (!(candidates[i] = synth_evol_begin(s, seeds[i], &requests[i]))) return s->status == ST_OK ? ST_RESOURCE : s->status;
    }
    s->cursor += n;
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        candidate_request(s, candidates[i], requests[i]);
        if (synth_is_answer(s, candidates[i], requests[i]) && !(candidates[i]->instruction = synth_clean(s, requests[i]->text))) return ST_RESOURCE;
    }
    TRY(synth_apply_filters(s, FILTER_PROMPT, candidates, n));
    TRY(synth_answer(s, ANSWER, candidates, n));
    TRY(synth_write_rows(s, candidates, n));
    take_over(s, candidates, seeds, n, first_row);
    if (s->cursor == s->seeds.n) s->cursor = 0, s->pass++;
    s->exhausted = (int64_t)s->pass == s->recipe->synth_generations;
    return ST_OK;
}

const SynthPreset synth_preset_evol = {
    .name = "evol",
    .help = "the teacher changes seeds' prompts or makes them harder, in several generations, and answers them",
    .stages = stages,
    .needs = NEEDS_INSTRUCTION,
    .new_prompts = true,
    .filters = "{rouge_l: false}", /* a harder prompt contains the one that it came from */
    .keys = "mutations generations system keep_cut",
    .open = synth_evol_open,
    .make_round = make_round,
};
