/* SPDX-License-Identifier: Apache-2.0 */
/* qa: documents are split into passages, and the teacher writes questions that each passage answers. The seeds are the documents; a row keeps its
 * passage. */
#include "data/synth/synth_parts.h"

#include <ctype.h>
#include <string.h>

enum { PAIRS };
enum { MOST_PAIRS = 64 };

static const SynthStage stages[] = {
    {.name = "pairs", .prompt = "qa_pairs", .max_new_tokens = 1024, .temperature = 0.7, .top_p = 0.95},
    {0},
};

typedef struct Passage {
    size_t seed, begin, end;
} Passage;
typedef struct Passages {
    Passage *items;
    size_t n, cap;
} Passages;

static Status synth_qa_open(Synth *s) {
    s->state = arena_zero(s->arena, sizeof(Passages));
    if (!s->state) return ST_RESOURCE;
    return s->recipe->synth_chunk_overlap < s->recipe->synth_chunk_size
               ? ST_OK
               : status_fail(ST_CONFIG, "'synth.chunk_overlap' is not less than 'synth.chunk_size'");
}

/* The end of a passage of at most `most` bytes: after a blank line, or else a sentence, or else a word, in its second half; never within a
 * character. */
static size_t passage_end(const char *text, size_t begin, size_t len, size_t most) {
    size_t end = begin + most, line = 0, sentence = 0, word = 0;
    if (end >= len) return len;
    for (size_t i = begin + most / 2; i < end; i++) {
        if (text[i] == '\n' && text[i - 1] == '\n') line = i + 1;
        if (isspace((unsigned char)text[i])) word = i + 1;
        if (isspace((unsigned char)text[i]) && strchr(".!?", text[i - 1])) sentence = i + 1;
    }
    if (line || sentence || word) return line ? line : sentence ? sentence : word;
    return begin + utf8_whole_prefix(text + begin, end - begin);
}

/* The start of the next passage, at a word, so that both share `overlap` bytes. */
static size_t next_begin(const char *text, size_t begin, size_t end, size_t overlap) {
    size_t at = end > begin + overlap ? end - overlap : end;
    while (at < end && !isspace((unsigned char)text[at])) at++;
    while (at < end && isspace((unsigned char)text[at])) at++;
    return at > begin ? at : end;
}

static Status cut_document(Synth *s, size_t seed) {
    Passages *list = s->state;
    const char *text = s->seeds.items[seed].output;
    size_t len = strlen(text), most = (size_t)s->recipe->synth_chunk_size, overlap = (size_t)s->recipe->synth_chunk_overlap;
    for (size_t begin = 0; begin < len;) {
        TRY(arena_array_grow(s->arena, &list->items, &list->cap, list->n + 1, sizeof *list->items));
        size_t end = passage_end(text, begin, len, most);
        if (end <= begin) end = MIN(len, begin + most); /* no complete character there: the text is no UTF-8, which was refused before */
        list->items[list->n++] = (Passage){seed, begin, end};
        begin = end == len ? len : next_begin(text, begin, end, overlap);
    }
    return ST_OK;
}

/* ---- pairs ---- */

static Status add_pair(Synth *s, const Passage *passage, const SynthRequest *request, const char *text, const char *question,
                       const char *question_end, const char *answer, const char *answer_end, SynthCandidate **candidates, size_t *n) {
    SynthCandidate *c = candidates[(*n)++] = synth_candidate_of_seed(s, &s->seeds.items[passage->seed]);
    if (!c) return ST_RESOURCE;
    c->input = "";
    c->instruction = synth_field(s, question, question_end);
    c->output = synth_field(s, answer, answer_end);
    candidate_request(s, c, request);
    candidate_more(c, "passage", json_string(text));
    return c->instruction && c->output ? ST_OK : ST_RESOURCE;
}

/* Repeated "Question: ..." and "Answer: ..."; an answer that was truncated is left out. */
static Status take_pairs(Synth *s, const Passage *passage, const SynthRequest *request, const char *text, SynthCandidate **candidates, size_t *n) {
    const char *question = NULL, *question_end = NULL, *answer = NULL;
    for (const char *line = request->text; *n < MOST_PAIRS; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line)) {
        const char *q = synth_text_after_name(line, "question"), *a = synth_text_after_name(line, "answer");
        bool last = *line == '\0';
        if ((q || last) && answer && !(last && request->cut))
            TRY(add_pair(s, passage, request, text, question, question_end, answer, line, candidates, n));
        if (last) break;
        if (q) question = q, question_end = answer = NULL;
        if (a && question && !answer) question_end = line, answer = a;
    }
    if (*n) return ST_OK;
    SynthCandidate *c = candidates[(*n)++] = synth_candidate_of_seed(s, &s->seeds.items[passage->seed]);
    if (!c) return ST_RESOURCE;
    c->instruction = request->text;
    c->input = "";
    candidate_request(s, c, request);
    candidate_more(c, "passage", json_string(text));
    return synth_reject(s, c, request->refused ? synth_refusal(request) : request->cut ? "cut" : "no_pair");
}

static Status make_round(Synth *s) {
    Passages *list = s->state;
    for (size_t i = 0; i < s->seeds.n && s->pass == 0; i++) TRY(cut_document(s, i));
    s->pass = 1;
    size_t pairs = (size_t)s->recipe->synth_pairs, n = MIN((synth_round_size(s) + pairs - 1) / pairs, list->n - s->cursor), n_candidates = 0;
    SynthRequest **requests = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *requests);
    SynthCandidate **candidates = arena_alloc(s->round.arena, MAX(n, 1) * MOST_PAIRS * sizeof *candidates);
    const char **texts = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *texts);
    if (!requests || !candidates || !texts) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        const Passage *p = &list->items[s->cursor + i];
        if (!(texts[i] = synth_text(s, s->seeds.items[p->seed].output + p->begin, p->end - p->begin))) return ST_RESOURCE;
        if (!(requests[i] = synth_request(s, PAIRS, json_pack("{s:s, s:I}", "passage", texts[i], "n", (json_int_t)pairs)))) return s->status;
    }
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        size_t found = 0;
        TRY(take_pairs(s, &list->items[s->cursor + i], requests[i], texts[i], candidates + n_candidates, &found));
        s->stages[PAIRS].count.kept += !requests[i]->refused;
        n_candidates += found;
    }
    s->cursor += n;
    s->exhausted = s->cursor == list->n;
    TRY(synth_apply_filters(s, FILTER_PROMPT, candidates, n_candidates));
    return synth_write_rows(s, candidates, n_candidates);
}

const SynthPreset synth_preset_qa = {.name = "qa",
                                     .help = "documents are cut into passages; the teacher writes questions and answers for each",
                                     .stages = stages,
                                     .needs = NEEDS_OUTPUT,
                                     .keys = "chunk_size chunk_overlap pairs",
                                     .open = synth_qa_open,
                                     .make_round = make_round};
