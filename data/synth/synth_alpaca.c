/* SPDX-License-Identifier: Apache-2.0 */
/* alpaca (Taori et al. 2023): shows three seeds with inputs and outputs; one reply contains as many further tasks, with all three parts, as it
 * can. */
#include "data/synth/synth_parts.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { TASKS };
enum { MOST_TASKS = 64 };

static const SynthStage stages[] = {
    {.name = "tasks", .prompt = "alpaca_tasks", .max_new_tokens = 3072, .temperature = 1, .top_p = 1},
    {0},
};

static Status synth_alpaca_open(Synth *s) { return synth_examples_open(s, 3, 3, 0, false); }

typedef struct Parts {
    const char *begin[3], *end[3];
    int found;
} Parts; /* instruction, input, output: each once, in this order */

/* The block's fields; false unless it has exactly the three. */
static bool read_parts(const char *block, const char *end, Parts *parts) {
    static const char *const names[] = {"instruction", "input", "output"};
    *parts = (Parts){0};
    for (const char *line = block; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line)), *text;
        for (int i = 0; i < 3; i++) {
            if (!(text = synth_text_after_name(line, names[i]))) continue;
            if (parts->found != i) return false;
            if (i > 0) parts->end[i - 1] = line;
            parts->begin[parts->found++] = text;
        }
        line = stop ? stop + 1 : end;
    }
    if (parts->found == 3) parts->end[2] = end;
    return parts->found == 3;
}

static const char *part_text(Synth *s, const Parts *parts, int i) {
    const char *text = synth_field(s, parts->begin[i], parts->end[i]);
    return text && i == 1 && (strcasecmp(text, "<noinput>") == 0 || strcasecmp(text, "none") == 0) ? "" : text;
}

static Status add_block(Synth *s, const SynthRequest *request, const SynthCandidate *origin, const char *block, const char *end, bool cut,
                        SynthCandidate **candidates, size_t *n) {
    const char *type = s->seeds.types[0].name;
    Parts parts;
    SynthCandidate *c = candidates[(*n)++] = synth_candidate(s, type);
    if (!c) return ST_RESOURCE;
    c->seed_ids = origin->seed_ids, c->n_seed_ids = origin->n_seed_ids;
    c->parents = origin->parents, c->n_parents = origin->n_parents;
    candidate_request(s, c, request);
    bool whole = !request->refused && read_parts(block, end, &parts);
    if (cut || !whole) {
        c->instruction = synth_text(s, block, (size_t)(end - block));
        return c->instruction ? synth_reject(s, c, request->refused ? synth_refusal(request) : cut ? "cut" : "wrong_form") : ST_RESOURCE;
    }
    c->instruction = part_text(s, &parts, 0);
    c->input = part_text(s, &parts, 1);
    c->output = part_text(s, &parts, 2);
    return c->instruction && c->input && c->output ? ST_OK : ST_RESOURCE;
}

/* The next line of three # or more and nothing else: in a Markdown heading words follow. */
static const char *next_rule(const char *text, const char *at) {
    for (; (at = strstr(at, "###")); at += strspn(at, "#")) {
        const char *before = at, *after = at + strspn(at, "#");
        while (before > text && (before[-1] == ' ' || before[-1] == '\t')) before--;
        after += strspn(after, " \t\r");
        if ((before == text || before[-1] == '\n') && (!*after || *after == '\n')) return at;
    }
    return NULL;
}

/* Blocks are separated by lines of ###; the last one of a truncated reply is incomplete. A reply without any block counts as one of the wrong
 * form. */
static Status take_blocks(Synth *s, const SynthRequest *request, const SynthCandidate *origin, SynthCandidate **candidates, size_t *n) {
    const char *text_end = request->text + strlen(request->text);
    if (request->refused) return add_block(s, request, origin, request->text, text_end, false, candidates, n);
    s->stages[TASKS].count.kept++;
    for (const char *at = request->text; at && *n < MOST_TASKS;) {
        const char *end = next_rule(request->text, at), *stop = end ? end : text_end;
        while (at < stop && isspace((unsigned char)*at)) at++;
        if (at < stop) TRY(add_block(s, request, origin, at, stop, request->cut && !end, candidates, n));
        at = end ? end + strspn(end, "#") : NULL;
    }
    return *n ? ST_OK : add_block(s, request, origin, request->text, text_end, request->cut, candidates, n);
}

static Status make_round(Synth *s) {
    int64_t each = s->recipe->synth_tasks_per_request > 0 ? s->recipe->synth_tasks_per_request : 20;
    size_t n = (synth_round_size(s) + (size_t)each - 1) / (size_t)each, n_candidates = 0;
    SynthCandidate *origins = arena_zero(s->round.arena, n * sizeof *origins),
                   **candidates = arena_alloc(s->round.arena, n * MOST_TASKS * sizeof *candidates);
    SynthRequest **requests = arena_alloc(s->round.arena, n * sizeof *requests);
    if (!origins || !candidates || !requests) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        json_t *examples = synth_examples(s, NULL, &origins[i]);
        requests[i] = synth_request(s, TASKS, json_pack("{s:o, s:I}", "examples", examples, "n", (json_int_t)each));
        if (!requests[i]) return s->status;
    }
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        size_t before = n_candidates;
        n_candidates = 0;
        TRY(take_blocks(s, requests[i], &origins[i], candidates + before, &n_candidates));
        n_candidates += before;
    }
    TRY(synth_apply_filters(s, FILTER_PROMPT, candidates, n_candidates));
    return synth_write_rows(s, candidates, n_candidates);
}

const SynthPreset synth_preset_alpaca = {
    .name = "alpaca",
    .help = "the teacher sees 3 seeds and writes many tasks with inputs and outputs in one reply",
    .stages = stages,
    .needs = NEEDS_INSTRUCTION | NEEDS_OUTPUT,
    .new_prompts = true,
    .filters =
        "{empty: true, length: true, refusal: true, exact: true, words: {min: 4, max: 150}, blacklist: {preset: alpaca}, punctuation_start: true, ascii_start: true, rouge_l: {threshold: 0.7, on: instruction}}",
    .keys = "examples machine_examples tasks_per_request",
    .open = synth_alpaca_open,
    .make_round = make_round,
};
