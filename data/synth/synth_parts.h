/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of synthesis share, and the building blocks of a preset. A preset's round is plain code: it adds requests, sends them
 * all at once, and makes candidates from the answers.
 *
 *     SynthRequest *request = synth_request(s, PROMPT, json_pack(...));       // the stage's template, rendered
 *     TRY(synth_ask(s));                                                      // all requests since the last call
 *     candidate->instruction = synth_clean(s, request->text);
 *     TRY(synth_apply_filters(s, FILTER_PROMPT, candidates, n));              // rejected candidates go to rejected.jsonl
 *     ...
 *     TRY(synth_write_rows(s, candidates, n));                                // the filters of full rows, then rows.jsonl
 */
#ifndef TUNE_SYNTH_PARTS_H
#define TUNE_SYNTH_PARTS_H

#include "data/synth/synth.h"
#include "data/synth/synth_journal.h"
#include "lib/text/chat.h"

/* ---- seeds (synth_seeds.c) ---- */

typedef struct SynthLabels {
    const char **items;
    size_t n;
} SynthLabels; /* answers to choose from; n 0: any text is an answer */
typedef struct SynthSeed {
    const char *id, *type;
    const char *instruction, *input, *output, *system; /* "" if missing; system NULL */
    const char *prompt;                                /* the user's message: instruction and input */
    const char *hidden_part; /* parts of its row that no teacher is shown: "earlier_turns", "tools", "documents"; NULL: none */
    bool classification;
    SynthLabels labels; /* the seed's labels, by synth.labels */
    FilterRow row;
} SynthSeed;
typedef struct SynthType {
    const char *name;
    size_t *seeds, n, cap;
} SynthType; /* indices of its seeds */
typedef struct SynthSeeds {
    SynthSeed *items;
    size_t n, cap;
    SynthType *types;
    size_t n_types, cap_types;
    Arena *arena;
} SynthSeeds;
typedef enum SynthNeeds { NEEDS_INSTRUCTION = 1, NEEDS_OUTPUT = 2 } SynthNeeds;
/* Reads synth.seeds. optional: without a path there is one type, "general", without seeds. ST_INPUT with file and line: an invalid seed, or a missing
 * field. */
Status seeds_read(const char *path, int needs, bool optional, Arena *arena, SynthSeeds *seeds);
void seeds_release(SynthSeeds *seeds);

/* ---- stages: a template and the sampling of its answers ---- */

typedef struct SynthStage {
    const char *name;   /* its key in synth.prompts and synth.sampling */
    const char *prompt; /* recipes/prompts/NAME.jinja; NAME.base.jinja for teachers that continue texts */
    int64_t max_new_tokens;
    double temperature, top_p, presence_penalty;
    const char *stop[4], *base_stop[4]; /* base_stop: for teachers that continue texts */
    bool by_judge;                      /* asks synth.judge, if there is one */
    bool checks_labels;                 /* used only with synth.check_labels; comes after all other stages */
} SynthStage;
enum { SYNTH_MAX_STAGES = 8 };
typedef struct StageState {
    ChatTemplate *template;
    char hash[33]; /* hash of the template's text */
    TeacherSampling sampling;
    SynthCount count;
} StageState;

typedef struct SynthRequest {
    int stage;
    uint64_t number;
    char key[JOURNAL_KEY + 1];
    Teacher *teacher;
    json_t *messages; /* or text */
    const char *text_asked;
    bool rendered;
    const char *const *choices;
    size_t n_choices;
    size_t n_unread; /* log lines about the cost of its unreadable replies */
    /* the answer */
    const char *text; /* without surrounding white space */
    bool answered, cut, refused, too_long, nul;
    double margin, mean;
} SynthRequest;

/* ---- candidates: rows in progress ---- */

/* id: "rows.jsonl line 7", or "" until a row with it is written; remembered: such a row was kept, so others must differ from it */
typedef struct SynthPrompt {
    FilterRow row;
    char *id;
    bool remembered;
} SynthPrompt;
typedef struct SynthCandidate {
    const char *type;
    const char *instruction, *input, *output, *system; /* "" and NULL as for seeds; in the round's arena, or longer-lived */
    const SynthSeed *seed;                             /* the seed whose prompt it answers; NULL: a new prompt */
    const char *worse;                                 /* the rejected answer; NULL: there is none */
    json_t *more;                                      /* further columns; NULL: none */
    const char **seed_ids;
    size_t n_seed_ids;
    int64_t *parents;
    size_t n_parents; /* rows of rows.jsonl, from 0 */
    const SynthRequest **requests;
    size_t n_requests;
    const char *rejected;          /* the reason for rejection; NULL: not rejected */
    struct SynthPrompt *judged;    /* the prompt that passed its filters, shared by the candidates made from it; NULL: none was judged */
    json_t *scores;                /* NULL: none */
    char *id;                      /* the id that "nearest" reports: see SynthPrompt. NULL: not judged as a full row yet */
    struct SynthCandidate *before; /* the candidate made before it in this round */
} SynthCandidate;
/* A kept row, with what later requests need of it. */
typedef struct SynthRow {
    const char *type, *instruction, *input, *output, *prompt;
} SynthRow;

/* ---- a run ---- */

/* An output file that a resumed run writes again: lines that are already there, with the same bytes, are not rewritten. */
typedef struct SynthFile {
    const char *path;
    Mapping before;
    uint64_t at;
    bool replaying;
} SynthFile;

typedef struct Synth Synth;
typedef struct SynthPreset {
    const char *name, *help;
    const SynthStage *stages; /* ends before the first stage without a name */
    int needs;                /* required number of seeds */
    bool seeds_optional;
    bool new_prompts;               /* its prompts must differ from the seeds */
    bool given_prompts;             /* its prompts are those of the seeds */
    const char *filters;            /* YAML: changes to the default filters; NULL: none */
    const char *keys;               /* keys of the section synth besides those that every preset reads: names separated by blanks */
    const char *types;              /* task types that it assigns itself; NULL: those of the seeds */
    const char *scores;             /* numbers that its rows have in addition to those of filters; NULL: none */
    Status (*open)(Synth *s);       /* checks keys; NULL: nothing to check */
    Status (*make_round)(Synth *s); /* sets s->exhausted if there is nothing left to request */
} SynthPreset;
#define SYNTH_GIVEN_FILTERS "{exact: false, rouge_l: false}" /* of presets with given prompts: these may be similar */
#define PRESET(id) extern const SynthPreset synth_preset_##id;
#include "data/synth/synth_presets.def"
#undef PRESET

/* What a round makes and the next one replaces. */
typedef struct SynthRound {
    Arena *arena;
    SynthRequest **asked;
    size_t n_asked, cap_asked;  /* since the last synth_ask */
    SynthCandidate *candidates; /* the last one first */
} SynthRound;

/* Counters of the run; a resumed run repeats its rounds from the journal and counts the same. */
typedef struct SynthCounts {
    uint64_t next_number; /* of the next request */
    SynthCount *types, *reasons;
    size_t n_reasons;
    int64_t n_types_drawn; /* counter of synth_next_type */
    int64_t made, rejected, round, empty_rounds, requests, replayed, tokens, prompt_tokens, generated_tokens;
    double cost, started, teacher_seconds, filter_seconds;
    const char *refusal; /* the text of the first refusal; NULL: there was none */
} SynthCounts;

struct Synth {
    /* from the recipe */
    const SynthConfig *config;
    const Recipe *recipe;
    Recipe dated; /* the recipe with the date of the run's start, if it names no date */
    const SynthPreset *preset;
    SynthStage stage_list[SYNTH_MAX_STAGES];              /* the preset's stages, and the judge's if its filter is on */
    size_t examples_low, examples_high, machine_examples; /* see synth_examples_open */
    /* opened */
    Arena *arena;
    Run *run;
    Teacher *teacher, *judge; /* judge NULL: the teacher */
    TeacherConfig teacher_config, judge_config;
    Filters *filters;
    Journal *journal;
    SynthSeeds seeds;
    SynthLabels *labels; /* by task type, as seeds.types; NULL: no type has any */
    StageState stages[SYNTH_MAX_STAGES];
    SynthCount stage_counts[SYNTH_MAX_STAGES]; /* number of them, as shown in SynthProgress */
    int n_stages;
    void *state; /* private to the preset, in the run's arena */
    /* made so far */
    SynthRow *rows;
    size_t n_rows, cap_rows;
    SynthFile rows_file, rejected_file;
    size_t cursor, pass; /* for presets that go through the seeds: the next one; number of completed passes */
    bool exhausted;
    Status status; /* the first failure of a request or of writing */

    SynthRound round;
    SynthCounts counts;
};

/* ---- for presets (synth_ask.c, synth_rows.c) ---- */

size_t synth_batch(const Synth *s);                                               /* candidates in one round */
size_t synth_round_size(const Synth *s);                                          /* number of candidates to start, given how many are kept */
size_t synth_next_type(Synth *s);                                                 /* types take turns */
uint64_t synth_draw(const Synth *s, uint64_t number, uint64_t index, uint64_t n); /* 0..n-1, keyed by a request's number */
/* Renders the stage's template with `variables` (takes ownership). NULL: the failure is stored, and synth_ask returns it. */
SynthRequest *synth_request(Synth *s, int stage, json_t *variables);
SynthRequest *synth_request_choice(Synth *s, int stage, json_t *variables, const char *const *choices, size_t n);
SynthRequest *synth_request_rendered(Synth *s, int stage, const char *text); /* as the chat template wrote it */
Status synth_ask(Synth *s);
/* How many seeds and kept rows are shown: synth.examples and synth.machine_examples, or these defaults. ST_INPUT: a type has fewer seeds; with
 * by_type false: all types together. */
Status synth_examples_open(Synth *s, size_t low, size_t high, size_t machine, bool by_type);
/* A shuffled list of examples for a template, of `type` (NULL: of all), drawn by the number of the coming request; they are recorded in `c`. */
json_t *synth_examples(Synth *s, const SynthType *type, SynthCandidate *c);

SynthCandidate *synth_candidate(Synth *s, const char *type);              /* NULL: out of memory */
SynthCandidate *synth_candidate_of_seed(Synth *s, const SynthSeed *seed); /* sets its prompt to that of the seed */
void candidate_seed(Synth *s, SynthCandidate *c, const char *id);
void candidate_parent(Synth *s, SynthCandidate *c, int64_t row);
void candidate_request(Synth *s, SynthCandidate *c, const SynthRequest *request);
void candidate_score(SynthCandidate *c, const char *name, double score);
void candidate_more(SynthCandidate *c, const char *column, json_t *value); /* takes ownership */
void synth_end_candidates(Synth *s);                                       /* frees memory of the round's candidates that is not in its arena */
/* Rejects a candidate for the preset's own reason. */
Status synth_reject(Synth *s, SynthCandidate *c, const char *reason);
/* Why there is no answer: "too_long", "nul" or "refused_by_server"; NULL: there is one. */
const char *synth_refusal(const SynthRequest *request);
/* False: refused, or truncated (unless synth.keep_cut), and the candidate is rejected for it; synth_apply_filters returns a failure to write that. */
bool synth_is_answer(Synth *s, SynthCandidate *c, const SynthRequest *request);
/* Applies a stage's filters to the remaining candidates. Prompts are remembered only for this round, unless a row with them is kept. */
Status synth_apply_filters(Synth *s, FilterStage stage, SynthCandidate **candidates, size_t n);
/* Takes the next n_seeds seeds whose prompts pass their filters, with `each` candidates for every one in sequence; continues with further seeds if
 * none passes. Seeds with parts that no teacher is shown are rejected. s->exhausted: no seed is left. */
Status synth_given(Synth *s, size_t n_seeds, size_t each, SynthCandidate ***candidates, size_t *n);
/* Applies the filters of full rows, then writes rows.jsonl until it has num_rows; further rows go to rejected.jsonl as "beyond_num_rows". */
Status synth_write_rows(Synth *s, SynthCandidate **candidates, size_t n);
/* Sends each remaining candidate's prompt as the user's turn and stores the reply as its output; if synth.labels has a list for it, the chosen
 * label. */
Status synth_answer(Synth *s, int stage, SynthCandidate **candidates, size_t n);
/* A round of presets that request a prompt and then its answer: `begin` makes candidates and requests (NULL: s->status, or out of memory), the reply
 * becomes the instruction, with synth_clean if `clean`; then filters, stage `answer`, synth_write_rows. */
typedef SynthCandidate *SynthBegin(Synth *s, SynthRequest **request);
Status synth_prompt_round(Synth *s, SynthBegin *begin, bool clean, int answer);

/* ---- synth.select (synth_select.c) ---- */

Status synth_select_open(Synth *s);                                                  /* ST_CONFIG: quotas, or a quality, that the rows cannot have */
Status synth_select_check(const Synth *s, const FilterRow *row, const json_t *json); /* of a kept row: ST_INPUT if it has no quality */
Status synth_select_write(const Synth *s, int64_t *n);                               /* selected.jsonl; *n: its rows, -1 without synth.select */

/* ---- labels (synth_labels.c) ---- */

Status synth_labels_open(Synth *s); /* synth.labels. ST_CONFIG, ST_INPUT: a row without a list */
/* The labels of its prompt in the form that the teacher writes, in the round's arena or longer-lived */
SynthLabels synth_labels(const Synth *s, const SynthCandidate *c);
json_t *synth_labels_json(const SynthLabels *labels);        /* for templates */
const char *synth_chosen_label(const SynthRequest *request); /* "": none */
/* Requests the labels of this type's rows again, among the labels of their task; rows of one task must be in sequence. A different label, or none,
 * rejects the row. */
Status synth_check_labels(Synth *s, int stage, const char *type, SynthCandidate **rows, size_t n);

/* ---- scores ---- */

/* Scores from 1 to 10 of the remaining candidates' answers by the judge, NaN if there is none. A judge that compares gives the mean of the ten
 * scores, others write a number (rating_of). The requests are recorded in the candidates. */
Status synth_scores(Synth *s, int stage, SynthCandidate **candidates, size_t n, double *scores);
Status synth_filter_scores(void *context, const FilterRow *rows, size_t n, double *values); /* a FilterScore; context: the Synth */
/* The same; scores that the preset has already requested are reused */
Status synth_filter_rewards(void *context, const FilterRow *rows, size_t n, double *values);

/* ---- text ---- */

const char *synth_text(Synth *s, const char *text, size_t len); /* a copy in the round's arena, without surrounding white space */
/* The same without the ** that chat models put around a field, or that remains at one end of it when the field's name was between them. */
const char *synth_field(Synth *s, const char *begin, const char *end);
/* The text after "NAME:" at the start of a line, in any case, with numbers, asterisks and the like around the name ("3. **Output:**"); NULL: another
 * line. */
const char *synth_text_after_name(const char *line, const char *name);
/* A new prompt: a field without leading numbers, bullets, "Instruction:", "**Task 5:**". */
const char *synth_clean(Synth *s, const char *text);
char *synth_prompt_of(Arena *arena, const char *instruction, const char *input); /* as a user's message */

/* ---- files and pages (synth_rows.c, synth_page.c) ---- */

/* A file that a resumed run writes again: unchanged lines are not rewritten. ST_INPUT, ST_RESOURCE. */
Status synth_file_open(SynthFile *file, const char *path);
Status synth_file_close(SynthFile *file); /* removes remaining bytes of an earlier run */
void synth_progress(Synth *s, size_t asked, bool round_over, SynthProgress *progress);
Status synth_pages_write(const Synth *s, const json_t *summary); /* dataset_card.md and report.html; summary: of finished.json */

#endif
