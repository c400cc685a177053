/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of synthesis share, and what a preset is made of. A preset's round is plain code: it adds requests, asks them all at once, and makes
 * candidates of the answers.
 *
 *     SynthRequest *request = synth_request(s, PROMPT, json_pack(...));       // the stage's template, rendered
 *     TRY(synth_ask(s));                                                      // all requests since the last time
 *     candidate->instruction = synth_clean(s, request->text);
 *     TRY(synth_apply_filters(s, FILTER_PROMPT, candidates, n));                      // what is rejected goes to rejected.jsonl
 *     ...
 *     TRY(synth_write_rows(s, candidates, n));                                      // the filters of whole rows, then rows.jsonl
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
} SynthLabels; /* answers of which one is right; n 0: any text is an answer */
typedef struct SynthSeed {
    const char *id, *type;
    const char *instruction, *input, *output, *system; /* "" where there is none; system NULL */
    const char *prompt;                                /* what a user would say: instruction and input */
    const char
        *hidden_part; /* what stands before or beside its prompt and no teacher is shown: "earlier_turns", "tools", "documents"; NULL: nothing */
    bool classification;
    SynthLabels labels; /* its own, by synth.labels */
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
/* Reads synth.seeds. optional: without a path there is one type, "general", without seeds. ST_INPUT with file and line: a row that is no seed, or
 * lacks what is needed. */
Status seeds_read(const char *path, int needs, bool optional, Arena *arena, SynthSeeds *seeds);
void seeds_release(SynthSeeds *seeds);

/* ---- stages: a template and how its answers are drawn ---- */

typedef struct SynthStage {
    const char *name;   /* its key in synth.prompts and synth.sampling */
    const char *prompt; /* recipes/prompts/NAME.jinja; for teachers that continue texts NAME.base.jinja */
    int64_t max_new_tokens;
    double temperature, top_p, presence_penalty;
    const char *stop[4], *base_stop[4]; /* base_stop: for teachers that continue texts */
    bool by_judge;                      /* asked of synth.judge, where there is one */
    bool checks_labels;                 /* only there with synth.check_labels; behind all others */
} SynthStage;
enum { SYNTH_MAX_STAGES = 8 };
typedef struct StageState {
    ChatTemplate *template;
    char hash[33]; /* of the template's text */
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
    size_t n_unread; /* lines of the log about what replies to it cost that could not be read */
    /* the answer */
    const char *text; /* without white space around it */
    bool answered, cut, refused, too_long, nul;
    double margin, mean;
} SynthRequest;

/* ---- candidates: rows on their way ---- */

/* id: "rows.jsonl line 7", until a row is written of it ""; remembered: a row was kept of it, so that others must differ */
typedef struct SynthPrompt {
    FilterRow row;
    char *id;
    bool remembered;
} SynthPrompt;
typedef struct SynthCandidate {
    const char *type;
    const char *instruction, *input, *output, *system; /* "" and NULL as of seeds; in the round's arena or longer */
    const SynthSeed *seed;                             /* whose very prompt it answers; NULL: a new prompt */
    const char *worse;                                 /* the answer that was not preferred; NULL: there is none */
    json_t *more;                                      /* further columns; NULL: none */
    const char **seed_ids;
    size_t n_seed_ids;
    int64_t *parents;
    size_t n_parents; /* rows of rows.jsonl, from 0 */
    const SynthRequest **requests;
    size_t n_requests;
    const char *rejected;          /* why; NULL: it is still in */
    struct SynthPrompt *judged;    /* the prompt that passed its filters, which the candidates made of it share; NULL: none was judged */
    json_t *scores;                /* NULL: none */
    char *id;                      /* as others' "nearest" names it: see SynthPrompt. NULL: not judged as a whole yet */
    struct SynthCandidate *before; /* the one that was made before it in this round */
} SynthCandidate;
/* A row that was kept, as later ones need it. */
typedef struct SynthRow {
    const char *type, *instruction, *input, *output, *prompt;
} SynthRow;

/* ---- a run ---- */

/* A file of lines that is written anew by a resumed run: what stands there already, in the same bytes, is left as it is. */
typedef struct SynthFile {
    const char *path;
    Mapping before;
    uint64_t at;
    bool replaying;
} SynthFile;

typedef struct Synth Synth;
typedef struct SynthPreset {
    const char *name, *help;
    const SynthStage *stages; /* ends before the first without a name */
    int needs;                /* of seeds */
    bool seeds_optional;
    bool new_prompts;               /* its prompts must differ from the seeds */
    bool given_prompts;             /* its prompts are the seeds' */
    const char *filters;            /* YAML: changes of what is on by default; NULL: none */
    const char *keys;               /* of the section synth, beside those that every preset reads: names with a blank between */
    const char *types;              /* task types that it gives by itself; NULL: those of the seeds */
    const char *scores;             /* numbers that its rows have beside those of filters; NULL: none */
    Status (*open)(Synth *s);       /* checks keys; NULL: nothing to check */
    Status (*make_round)(Synth *s); /* sets s->exhausted when nothing is left to ask */
} SynthPreset;
#define SYNTH_GIVEN_FILTERS "{exact: false, rouge_l: false}" /* of presets whose prompts are given: they may be alike */
#define PRESET(id) extern const SynthPreset synth_preset_##id;
#include "data/synth/synth_presets.def"
#undef PRESET

struct Synth {
    const SynthConfig *config;
    const Recipe *recipe;
    Recipe dated; /* the recipe with the day that the run began, where it names none */
    const SynthPreset *preset;
    SynthStage stage_list[SYNTH_MAX_STAGES]; /* the preset's, and the judge's where the filter of that name is on */
    Arena *arena, *round_arena;              /* of the run; of a round */
    Run *run;
    Teacher *teacher, *judge; /* judge NULL: the teacher */
    TeacherConfig teacher_config, judge_config;
    Filters *filters;
    Journal *journal;
    SynthSeeds seeds;
    SynthLabels *labels; /* by task type, as seeds.types; NULL: none has any */
    StageState stages[SYNTH_MAX_STAGES];
    SynthCount stage_counts[SYNTH_MAX_STAGES]; /* of these, as SynthProgress shows them */
    int n_stages;
    uint64_t next_number;
    SynthRequest **asked;
    size_t n_asked, cap_asked;  /* since the last synth_ask */
    SynthCandidate *candidates; /* of the round, the last one first */
    SynthRow *rows;
    size_t n_rows, cap_rows;
    SynthFile rows_file, rejected_file;
    SynthCount *types, *reasons;
    size_t n_reasons;
    int64_t n_types_drawn; /* turns of synth_next_type */
    int64_t made, rejected, round, empty_rounds, requests, replayed, tokens, prompt_tokens, generated_tokens;
    /* fruitless: requests of rounds that gave no candidate at all */
    double cost, started, teacher_seconds, filter_seconds;
    const char *refusal; /* what the first refusal said; NULL: there was none */
    Status status;       /* the first failure of a request or of writing */
    bool exhausted;
    size_t examples_low, examples_high, machine_examples; /* see synth_examples_open */
    size_t cursor, pass;                                  /* for presets that go through the seeds: the next one; how often all were taken */
    void *state;                                          /* the preset's, in the run's arena */
};

/* ---- for presets (synth_ask.c, synth_rows.c) ---- */

size_t synth_batch(const Synth *s);                                               /* candidates at a time */
size_t synth_round_size(const Synth *s);                                          /* candidates worth beginning, given how many are kept */
size_t synth_next_type(Synth *s);                                                 /* types take turns */
uint64_t synth_draw(const Synth *s, uint64_t number, uint64_t index, uint64_t n); /* 0..n-1, keyed by a request's number */
/* Renders the stage's template with `variables` (taken over). NULL: the failure is kept and comes out of synth_ask. */
SynthRequest *synth_request(Synth *s, int stage, json_t *variables);
SynthRequest *synth_request_choice(Synth *s, int stage, json_t *variables, const char *const *choices, size_t n);
SynthRequest *synth_request_rendered(Synth *s, int stage, const char *text); /* as the chat template wrote it */
Status synth_ask(Synth *s);
/* How many seeds, and rows that were kept, are shown: by synth.examples and synth.machine_examples, else these. ST_INPUT: a type has fewer seeds;
 * by_type false: all types together have. */
Status synth_examples_open(Synth *s, size_t low, size_t high, size_t machine, bool by_type);
/* A list of them for a template, of `type` (NULL: of all), shuffled, as the number of the coming request draws them; they are noted in `c`. */
json_t *synth_examples(Synth *s, const SynthType *type, SynthCandidate *c);

SynthCandidate *synth_candidate(Synth *s, const char *type);              /* NULL without memory */
SynthCandidate *synth_candidate_of_seed(Synth *s, const SynthSeed *seed); /* its prompt, which came from this seed */
void candidate_seed(Synth *s, SynthCandidate *c, const char *id);
void candidate_parent(Synth *s, SynthCandidate *c, int64_t row);
void candidate_request(Synth *s, SynthCandidate *c, const SynthRequest *request);
void candidate_score(SynthCandidate *c, const char *name, double score);
void candidate_more(SynthCandidate *c, const char *column, json_t *value); /* takes it over */
void synth_end_candidates(Synth *s);                                       /* frees what the round's candidates hold beside its arena */
/* Rejects for a reason of the preset's own. */
Status synth_reject(Synth *s, SynthCandidate *c, const char *reason);
/* Why there is no answer: "too_long", "nul" or "refused_by_server"; NULL: there is one. */
const char *synth_refusal(const SynthRequest *request);
/* False: refused, or cut (unless synth.keep_cut), and the candidate rejected for it; a failure to write that is kept for synth_apply_filters. */
bool synth_is_answer(Synth *s, SynthCandidate *c, const SynthRequest *request);
/* Filters of a stage over those that are still in. What prompts are like is forgotten with the round, unless a row is kept of them. */
Status synth_apply_filters(Synth *s, FilterStage stage, SynthCandidate **candidates, size_t n);
/* Of the next n_seeds seeds those whose prompts pass their filters, `each` candidates of every one in a row; of further seeds when none does. Seeds
 * with something that no teacher is shown are rejected. s->exhausted: no seed is left. */
Status synth_given(Synth *s, size_t n_seeds, size_t each, SynthCandidate ***candidates, size_t *n);
/* The filters of whole rows, then rows.jsonl, until num_rows are there; further ones go to rejected.jsonl as "beyond_num_rows". */
Status synth_write_rows(Synth *s, SynthCandidate **candidates, size_t n);
/* Sends each remaining candidate's prompt as the user's turn and takes the reply as its output; where synth.labels has some for it, the one that was
 * chosen. */
Status synth_answer(Synth *s, int stage, SynthCandidate **candidates, size_t n);
/* A round of presets that ask for a prompt and then for its answer: candidates and requests as `begin` makes them (NULL: s->status, else no memory),
 * what comes is the instruction, with synth_clean if `clean`; filters, stage `answer`, synth_write_rows. */
typedef SynthCandidate *SynthBegin(Synth *s, SynthRequest **request);
Status synth_prompt_round(Synth *s, SynthBegin *begin, bool clean, int answer);

/* ---- synth.select (synth_select.c) ---- */

Status synth_select_open(Synth *s);                                                  /* ST_CONFIG: quotas, or a quality, that the rows cannot have */
Status synth_select_check(const Synth *s, const FilterRow *row, const json_t *json); /* of a row that is kept: ST_INPUT when it has no quality */
Status synth_select_write(const Synth *s, int64_t *n);                               /* selected.jsonl; *n: its rows, -1 without synth.select */

/* ---- labels (synth_labels.c) ---- */

Status synth_labels_open(Synth *s); /* synth.labels. ST_CONFIG, ST_INPUT: a row without a list */
/* Those of its prompt as the teacher is to write them, in the round's arena or longer */
SynthLabels synth_labels(const Synth *s, const SynthCandidate *c);
json_t *synth_labels_json(const SynthLabels *labels);        /* for templates */
const char *synth_chosen_label(const SynthRequest *request); /* "": none */
/* Rows of this type, those of one task in a row, are asked for their labels again, among those that the task has; others than before, or none, reject
 * them. */
Status synth_check_labels(Synth *s, int stage, const char *type, SynthCandidate **rows, size_t n);

/* ---- scores ---- */

/* Scores from 1 to 10 of answers by the judge, NaN where there is none; of those that are still in. A judge that compares gives the mean of the ten,
 * others say a number (rating_of). The requests are noted in the candidates. */
Status synth_scores(Synth *s, int stage, SynthCandidate **candidates, size_t n, double *scores);
Status synth_filter_scores(void *context, const FilterRow *rows, size_t n, double *values); /* a FilterScore; context: the Synth */
/* The same; those that the preset has asked for already are taken as they are */
Status synth_filter_rewards(void *context, const FilterRow *rows, size_t n, double *values);

/* ---- text ---- */

const char *synth_text(Synth *s, const char *text, size_t len); /* a copy in the round's arena, without white space around it */
/* The same without the ** that chat models put around a field, or leave at one end of it where the field's name stood between them. */
const char *synth_field(Synth *s, const char *begin, const char *end);
/* The text behind "NAME:" at the beginning of a line, whatever the letters' case, with numbers, stars and the like around the name ("3.
 * **Output:**"); NULL: another line. */
const char *synth_text_after_name(const char *line, const char *name);
/* A new prompt: a field without leading numbers, bullets, "Instruction:", "**Task 5:**". */
const char *synth_clean(Synth *s, const char *text);
char *synth_prompt_of(Arena *arena, const char *instruction, const char *input); /* as a user would say it */

/* ---- files and pages (synth_rows.c, synth_page.c) ---- */

/* A file that a resumed run writes anew: lines that are as they were are not written again. ST_INPUT, ST_RESOURCE. */
Status synth_file_open(SynthFile *file, const char *path);
Status synth_file_close(SynthFile *file); /* what is left of an earlier run's bytes is cut off */
void synth_progress(Synth *s, size_t asked, bool round_over, SynthProgress *progress);
Status synth_pages_write(const Synth *s, const json_t *summary); /* dataset_card.md and report.html; summary: of finished.json */

#endif
