/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that keep bad rows out of training data: one file filter_<name>.c and one line of filters.def for each.
 *
 *     Filters *filters;
 *     TRY(filters_open(&(FilterConfig){.filters = recipe->synth_filters, .file = recipe->path}, &filters));
 *     TRY(filters_remember_file(filters, FILTER_BOTH, "seeds.jsonl"));          // what new rows must differ from
 *     FilterRow row;
 *     TRY(filter_row_read(json, arena, &row));                                  // any row format with texts
 *     FilterVerdict verdict;
 *     TRY(filters_run(filters, FILTER_BOTH, &row, 1, &verdict));                // a row that is kept is remembered
 *     if (!verdict.kept) filter_write_rejected(&row, &verdict, &line);          // {"row": ..., "reason": "rouge_l", "score": 0.83, "nearest": ...}
 *
 * A pipeline that generates answers after prompts tries FILTER_PROMPT on new prompts, runs FILTER_ANSWER on complete rows, and remembers the prompts
 * of rows that are kept; each stage has its own filters and memory. Verdicts depend only on the rows and their order, not on how they are divided
 * into calls, or on threads. A resumed run restores its state with filters_remember of the kept rows in their order. */
#ifndef TUNE_FILTER_H
#define TUNE_FILTER_H

#include "data/data.h"

/* ---- rows ---- */

/* A row as filters see it; texts are UTF-8. data NULL: missing. For a conversation with several rounds, the texts of all user turns, and of all
 * answers, each joined with a blank line. */
typedef struct FilterRow {
    Slice instruction;    /* the question: the instruction, the prompt, the user's turns */
    Slice input;          /* of an Alpaca row or a seed's first instance; empty: none */
    Slice completion;     /* the answer; tool calls follow the words as JSON */
    const Slice *answers; /* n_answers: for a conversation each answer separately, without those that only call tools */
    size_t n_answers;
    Slice system;          /* of a conversation or an Alpaca row; data NULL: none */
    Slice context;         /* other input of the question: tools, documents, tool results, earlier answers; empty: nothing */
    Slice rest;            /* other parts of the row: label or labels, steps, the rejected answer, reasoning; empty: nothing */
    bool has_history;      /* other turns, such as earlier answers, precede the question; they are part of `context` */
    bool plain;            /* a single text, which is the completion */
    const char *task_type; /* NULL: none */
    const char *id;        /* the row's id, as "nearest" names it; NULL: none */
    /* The id must live as long as the filters, which read it when they report it; a row without a place in a file has "" until it gets one */
    bool id_stays;
    /* One of several instances of a task: the prompt's similarity was judged with the first one, and another input is no duplicate */
    bool instance;
    const json_t *json;   /* the full row, for the ledger and for filters with a model; borrowed */
    double judge, reward; /* numbers in the row; NaN: none */
    Slice text;           /* the row's text in its file, which is written again unchanged; data NULL: written from its json */
} FilterRow;
/* Fills `row` (with judge and reward from row_number) from any format with texts: messages, sharegpt, alpaca (also with `instances`, as
 * self-instruct's seeds), prompt_completion, prompt, preference (the chosen answer), kto, text (a completion), question and answer. Rows marked as
 * made by self-instruct are instances. Texts live as long as `json` and `arena`. ST_INPUT: an unknown format, or a missing field. */
Status filter_row_read(const json_t *json, Arena *arena, FilterRow *row);

/* a number of the row: its column `key`, or that member of scores, provenance.scores or provenance.filters; NaN: missing */
double row_number(const json_t *row, const char *key);
/* The row as one line: its text with line ends replaced by blanks, or else JSON with columns in their order, and each number as the shortest text
 * that reads back the same */
void filter_row_write(const FilterRow *row, Str *line);

/* ---- the filters of a run ---- */

/* The parts of a row that exist: FILTER_ANSWER are the filters that need its completion */
typedef enum FilterStage { FILTER_PROMPT = 1, FILTER_ANSWER = 2, FILTER_BOTH = 3 } FilterStage;

/* Numbers from outside: a judge's, a reward's. One value a row, NaN = not available (the row is rejected). A failure ends the call. */
typedef Status FilterScore(void *context, const FilterRow *rows, size_t n, double *values);
typedef struct FilterScorer {
    FilterScore *score;
    void *context;
} FilterScorer;
typedef struct FilterConfig {
    const Yaml *base;    /* a preset's changes to the default filters, in the form below; NULL: none */
    const Yaml *filters; /* {name: number | {option: value} | true | false | null}, applied to those; NULL: no changes */
    bool only;           /* only the filters in `filters` are on */
    const char *file;    /* the file of `filters`, for messages; NULL: the command line */
    const Model *model;  /* for logprob and ifd; NULL: these are refused */
    const Tokenizer *tokenizer;
    const Chat *chat;           /* renders conversations for that model; NULL: these filters refuse rows of messages */
    const char *as, *system;    /* for that model, as DataConfig's; as NULL: auto, as training reads rows */
    FilterScorer judge, reward; /* score NULL: uses the number in each row; otherwise the filter is refused */
} FilterConfig;
typedef struct Filters Filters;
/* ST_CONFIG with line and nearest name: an unknown filter or option, a value out of range. */
Status filters_open(const FilterConfig *config, Filters **filters);
void filters_close(Filters *filters); /* NULL is fine */

enum { FILTER_MOST = 32 };
typedef struct FilterVerdict {
    bool kept;
    const char *reason; /* name of the first filter in the table's order that rejects the row; NULL: kept */
    const char *what;   /* in words, such as "starts with punctuation"; NULL: kept. Valid until filters_close */
    double score;       /* the value that the filter measured; NaN: it measures none */
    /* The remembered row that it resembles too much (the most similar one; the first of equals); NULL: none. Valid until filters_close; for a row on
     * trial, until filters_forget_tried */
    const char *nearest_id, *nearest_text;
    double scores[FILTER_MOST]; /* for each filter, numbered as in filters_at, also for a kept row; NaN: none, or not run */
} FilterVerdict;
/* Runs the filters of `stage` over n rows in order; the filters of this stage remember the kept rows. ST_INPUT, ST_RESOURCE, ST_INTERRUPTED, and any
 * failure of a scorer. */
Status filters_run(Filters *filters, FilterStage stage, const FilterRow *rows, size_t n, FilterVerdict *verdicts);
/* The same for rows on trial: the kept ones are remembered only until filters_forget_tried, in addition to the filters' memory. If such a row is
 * finally kept, filters_remember adds it. */
Status filters_try(Filters *filters, FilterStage stage, const FilterRow *rows, size_t n, FilterVerdict *verdicts);
void filters_forget_tried(Filters *filters);
/* Rows that already belong to the set, such as seeds and rows of an earlier run: only remembered, not judged. */
Status filters_remember(Filters *filters, FilterStage stage, const FilterRow *rows, size_t n);
Status filters_remember_file(Filters *filters, FilterStage stage, const char *path); /* all its rows; ST_INPUT with file and line */

/* The filters that are on, in the order in which they judge. rejected: number of rows so far; NULL after the last. */
typedef struct FilterInfo {
    const char *name;
    FilterStage stage;
    int64_t rejected;
} FilterInfo;
const FilterInfo *filters_at(const Filters *filters, size_t i);
typedef struct FilterCounts {
    int64_t rows, kept;
} FilterCounts;
FilterCounts filters_counts(const Filters *filters, FilterStage stage); /* by filters_run with exactly this stage */
bool filters_has(const Filters *filters, const char *name);
/* An option that is a text, such as the judge's rubric; NULL: not set, or the filter is off */
const char *filters_text(const Filters *filters, const char *name, const char *option);
uint64_t filters_fingerprint(const Filters *filters); /* equal for the same filters with the same options */

/* One line of rejected.jsonl, without its end; "nearest": null or {"id", "text"}, the id null if it is unknown. */
void filter_write_rejected(const FilterRow *row, const FilterVerdict *verdict, Str *line);

/* ---- the table ---- */

/* Name and help of every filter, in the table's order; false after the last. */
/* argument: the meaning of its number or text; on: by default; takes_text: its value may be a text */
typedef struct FilterHelp {
    const char *name, *help, *argument;
    bool on, takes_text;
} FilterHelp;
bool filter_help_at(size_t i, FilterHelp *help);
void filters_write_help(Str *text); /* all of them with their options, one a line */

/* ---- selection: the best and most diverse rows ---- */

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
    int64_t n; /* number of rows to choose */
    /* How n is divided among task types: even (types with fewer rows leave theirs to the others), proportional, none; NULL: even */
    const char *share;
    const SelectQuota *quotas;
    size_t n_quotas; /* for single task types; the others share the rest */
} SelectConfig;
/* Greedy: repeatedly takes the row with the largest quality x (1 - largest cosine with a chosen one), by TF-IDF of its words, whose task type has
 * quota left; the first of equals. chosen: config->n entries, in order of choice; *n_chosen: fewer if rows or quotas run out. Memory: the words of
 * the rows. ST_USAGE: a quota for a type without rows, a quality that is below 0 or NaN. */
Status rows_select(const SelectConfig *config, const SelectRow *rows, size_t n, size_t *chosen, size_t *n_chosen);

/* The number `name` of a row as its quality, or else the value that a filter of that name measured (NaN: none); without a name, 1. ST_INPUT: there is
 * none, or it is below 0. */
Status select_quality(const FilterRow *row, const char *name, double measured, double *quality);
/* Collects rows to choose from (it borrows nothing of them), then calls back for each in order, with its JSON as one line without its end. */
typedef struct SelectPool SelectPool;
typedef Status OnSelect(void *context, const char *line, bool chosen);
Status select_pool_new(SelectPool **pool);
void select_pool_free(SelectPool *pool); /* NULL is fine */
Status select_pool_add(SelectPool *pool, const FilterRow *row, double quality);
Status select_pool_choose(const SelectPool *pool, const SelectConfig *config, OnSelect *on_row, void *context, int64_t *n_chosen);

#endif
