/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps bad rows out of training data: one file filter_<name>.c and one line of filters.def a filter.
 *
 *     Filters *filters;
 *     TRY(filters_open(&(FilterConfig){.filters = recipe->synth_filters, .file = recipe->path}, &filters));
 *     TRY(filters_remember_file(filters, FILTER_BOTH, "seeds.jsonl"));          // what new rows must differ from
 *     FilterRow row;
 *     TRY(filter_row_read(json, arena, &row));                                  // any format of rows that holds text
 *     FilterVerdict verdict;
 *     TRY(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));                // a row that is kept is remembered
 *     if (!verdict.kept) filter_write_rejected(&row, &verdict, &line);          // {"row": ..., "reason": "rouge_l", "score": 0.83, "nearest": ...}
 *
 * A pipeline that asks for answers later tries FILTER_PROMPT on new prompts, runs FILTER_ANSWER on whole rows, and has the prompts of those
 * remembered that are kept; each stage has its filters and its memory. Verdicts are a function of the rows and their order alone: not of how they are
 * cut into calls, nor of threads. A resumed run is where it was after filters_remember of the rows that were kept, in their order. */
#ifndef TUNE_FILTER_H
#define TUNE_FILTER_H

#include "data/data.h"

/* ---- rows ---- */

/* A row as filters see it; texts are UTF-8. data NULL: there is none. Of a conversation with several rounds the texts of all user turns, and of all
 * answers, with a blank line between. */
typedef struct FilterRow {
    Slice instruction;    /* what is asked: the instruction, the prompt, the user's turns */
    Slice input;          /* of an Alpaca row or a seed's first instance; empty: none */
    Slice completion;     /* what answers it; calls of tools as JSON behind the words */
    const Slice *answers; /* n_answers: of a conversation the answers one by one, without those that do nothing but call tools */
    size_t n_answers;
    Slice system;          /* of a conversation or an Alpaca row; data NULL: none */
    Slice context;         /* what else is given with the question: tools, documents, what tools answer, earlier answers; empty: nothing */
    Slice rest;            /* what else makes the row: label or labels, steps, the rejected answer, reasoning; empty: nothing */
    bool behind;           /* other turns, such as earlier answers, stand before the question; they are part of `context` */
    bool plain;            /* a text alone, which is its completion */
    const char *task_type; /* NULL: none */
    const char *id;        /* of the row, as "nearest" names it; NULL: none */
    /* Its id lives as long as the filters and is read where it is written: a row whose place is not known yet has "", none so far */
    bool id_stays;
    /* Of a task, its instruction: what prompts are like was judged with the task's first row, and another input of it is no duplicate */
    bool instance;
    const json_t *json;   /* the whole row, for the ledger and for filters with a model; borrowed */
    double judge, reward; /* numbers that the row brings; NaN: none */
    Slice text;           /* the row as its file has it, which is how it is written again; data NULL: by its json */
} FilterRow;
/* Fills `row` (with judge and reward as row_number finds them) from any format with texts: messages, sharegpt, alpaca (also with `instances`, as
 * self-instruct's seeds have it), prompt_completion, prompt, preference (the chosen answer), kto, text (a completion), question and answer. Rows that
 * say of themselves to be made by self-instruct are instances. Texts live as long as `json` and `arena`. ST_INPUT: the row is none of these, or lacks
 * a field. */
Status filter_row_read(const json_t *json, Arena *arena, FilterRow *row);

/* a number of the row: its column `key`, or that member of scores, provenance.scores or provenance.filters; NaN: there is none */
double row_number(const json_t *row, const char *key);
/* A row in one line: by its text, with blanks in the place of its line ends, or else as JSON, columns in their order, each number the shortest text
 * that reads back the same */
void filter_row_write(const FilterRow *row, Str *line);

/* ---- the filters of a run ---- */

/* What a row has by now: FILTER_ANSWER are the filters that need its completion */
typedef enum FilterStage { FILTER_PROMPT = 1, FILTER_ANSWER = 2, FILTER_BOTH = 3 } FilterStage;

/* Numbers that filters cannot compute by themselves: a judge's, a reward's. One value a row, NaN = none could be had (the row is rejected). A failure
 * ends the run of filters. */
typedef Status FilterScore(void *context, const FilterRow *rows, size_t n, double *values);
typedef struct FilterScorer {
    FilterScore *score;
    void *context;
} FilterScorer;
typedef struct FilterConfig {
    const Yaml *base;    /* a preset's changes of what is on by default, in the form below; NULL: none */
    const Yaml *filters; /* {name: number | {option: value} | true | false | null}, changes of that; NULL: none */
    bool only;           /* nothing is on but what `filters` names */
    const char *file;    /* where `filters` stands, for messages; NULL: the command line */
    const Model *model;  /* for logprob and ifd; NULL: they are refused */
    const Tokenizer *tokenizer;
    const Chat *chat;           /* how that model's conversations are rendered; NULL: rows of messages are refused by them */
    const char *as, *system;    /* for that model, as DataConfig's; as NULL: auto, as training reads rows */
    FilterScorer judge, reward; /* score NULL: the rows' own numbers, else the filter is refused */
} FilterConfig;
typedef struct Filters Filters;
/* ST_CONFIG with line and nearest name: an unknown filter or option, a value out of range. */
Status filters_open(const FilterConfig *config, Filters **filters);
void filters_close(Filters *filters); /* NULL is fine */

enum { FILTER_MOST = 32 };
typedef struct FilterVerdict {
    bool kept;
    const char *reason; /* name of the first filter, in the table's order, that rejects the row; NULL: kept */
    const char *what;   /* in words, such as "starts with punctuation"; NULL: kept. Lives until filters_close */
    double score;       /* what was measured by that filter; NaN: nothing to measure */
    /* The remembered row it is too much like (likest, of equals the first); NULL: none. Live until filters_close, of a row that was tried until
     * filters_forget_tried */
    const char *nearest_id, *nearest_text;
    double scores[FILTER_MOST]; /* of each filter, numbered as filters_at, also of a row that is kept; NaN: none, or not asked any more */
} FilterVerdict;
/* Runs the filters of `stage` over n rows in order; those that are kept are remembered by that stage's filters. ST_INPUT, ST_RESOURCE,
 * ST_INTERRUPTED, and what a scorer fails with. */
Status filters_run(Filters *filters, FilterStage stage, const FilterRow *rows, size_t n, FilterVerdict *verdicts);
/* The same for rows that may yet be dropped: those that are kept are remembered only until filters_forget_tried, beside what the filters remember.
 * Whatever came of them, filters_remember adds it. */
Status filters_try(Filters *filters, FilterStage stage, const FilterRow *rows, size_t n, FilterVerdict *verdicts);
void filters_forget_tried(Filters *filters);
/* Rows that are part of the set already, such as seeds and what an earlier run kept: not judged, only remembered. */
Status filters_remember(Filters *filters, FilterStage stage, const FilterRow *rows, size_t n);
Status filters_remember_file(Filters *filters, FilterStage stage, const char *path); /* every row of it; ST_INPUT with file and line */

/* The filters that are on, in the order in which they judge. rejected: rows so far; NULL behind the last. */
typedef struct FilterInfo {
    const char *name;
    FilterStage stage;
    int64_t rejected;
} FilterInfo;
const FilterInfo *filters_at(const Filters *filters, size_t i);
typedef struct FilterCounts {
    int64_t rows, kept;
} FilterCounts;
FilterCounts filters_counts(const Filters *filters, FilterStage stage); /* of filters_run with this very stage */
bool filters_has(const Filters *filters, const char *name);
/* An option that is a text, such as the judge's rubric; NULL: not given, or the filter is off */
const char *filters_text(const Filters *filters, const char *name, const char *option);
uint64_t filters_fingerprint(const Filters *filters); /* the same for the same filters with the same options */

/* One line of rejected.jsonl, without its end; "nearest": null or {"id", "text"}, the id null where it is not known. */
void filter_write_rejected(const FilterRow *row, const FilterVerdict *verdict, Str *line);

/* ---- the table ---- */

/* Name and help of every filter there is, in the table's order; false behind the last. */
/* argument: what its number or text is; on: by default; takes_text: a value alone is one */
typedef struct FilterHelp {
    const char *name, *help, *argument;
    bool on, takes_text;
} FilterHelp;
bool filter_help_at(size_t i, FilterHelp *help);
void filters_write_help(Str *text); /* all of them with their options, a line each */

/* ---- a budget: the best and most different rows ---- */

typedef struct SelectRow {
    Slice text;
    const char *task_type;
    double quality;
} SelectRow; /* quality: 0 or more */
typedef struct SelectQuota {
    const char *task_type;
    int64_t rows;
} SelectQuota;
typedef struct SelectConfig {
    int64_t n; /* rows to choose */
    /* How n is shared by task types: even (those with fewer rows leave theirs to the others), proportional, none; NULL: even */
    const char *share;
    const SelectQuota *quotas;
    size_t n_quotas; /* of single task types; the others share what is left */
} SelectConfig;
/* Greedy: again and again the row with the largest quality x (1 - largest cosine with a chosen one), by TF-IDF of its words, whose task type has
 * room; of equals the first. chosen: config->n entries, in order of choice; *n_chosen: fewer where rows or quotas are. Memory: the words of the rows.
 * ST_USAGE: a quota for a type that no row has, a quality below 0 or NaN. */
Status rows_select(const SelectConfig *config, const SelectRow *rows, size_t n, size_t *chosen, size_t *n_chosen);

/* The number `name` of a row as its quality, else what a filter of that name measured (NaN: nothing); without a name 1. ST_INPUT: there is none, or
 * it is below 0. */
Status select_quality(const FilterRow *row, const char *name, double measured, double *quality);
/* Rows to choose from are gathered (nothing of them is borrowed), then each is told of in its order, as one line of JSON without its end. */
typedef struct SelectPool SelectPool;
typedef Status OnSelect(void *context, const char *line, bool chosen);
Status select_pool_new(SelectPool **pool);
void select_pool_free(SelectPool *pool); /* NULL is fine */
Status select_pool_add(SelectPool *pool, const FilterRow *row, double quality);
Status select_pool_choose(const SelectPool *pool, const SelectConfig *config, OnSelect *on_row, void *context, int64_t *n_chosen);

#endif
