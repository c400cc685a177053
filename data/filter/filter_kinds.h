/* SPDX-License-Identifier: Apache-2.0 */
/* The definitions in a file filter_<name>.c: its options, and one of three ways to judge a row.
 *
 *     enum { MAX };
 *     static const OptionSpec options[] = {[MAX] = {"max", OPTION_WHOLE, .value = 150, .low = 1, .high = 1e9, .help = "most words"}, {0}};
 *     static bool rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) { ... filter->options[MAX].number ... }
 *     const FilterKind filter_kind_words = {
 *         .name = "words", .help = "...", .argument = "N", .stage = FILTER_PROMPT, .options = options, .rejects = rejects};
 *
 * `name: VALUE` sets the first option. */
#ifndef TUNE_FILTER_KINDS_H
#define TUNE_FILTER_KINDS_H

#include "data/filter/filter.h"
#include "lib/recipe/option.h"

enum { FILTER_BLOCK = 256 }; /* rows that are judged in parallel */

typedef struct FilterKind FilterKind;
typedef struct Filter {
    const FilterKind *kind;
    FilterInfo info; /* its stage is the kind's, or depends on the options: see filter_on */
    OptionValue options[OPTIONS_MOST];
    const FilterConfig *config;
    Arena *arena;            /* lives as long as the filters */
    int n_workers;           /* number of threads that search */
    void *state;             /* private to the kind */
    uint32_t *entries;       /* of a filter with a memory: the ledger entry of each remembered row */
    size_t n_rows, cap_rows; /* number of remembered rows */
} Filter;

typedef struct FilterResult {
    double score;
    const char *what, *nearest_id, *nearest_text;
} FilterResult; /* score is NaN and the others are NULL until set */
typedef struct FilterMatch {
    double score;
    size_t row;
} FilterMatch; /* row: index of a remembered row, in order; SIZE_MAX: none */
/* Rows are put into FILTER_BLOCK slots. The rows of a block search the older memory in parallel, then, one after the other, the rows that the block
 * has added. */
typedef struct FilterMemory {
    Status (*take)(Filter *filter, const FilterRow *row, size_t slot);    /* called for one row after the other; may be NULL */
    Status (*prepare)(Filter *filter, const FilterRow *row, size_t slot); /* called in parallel, after `take` of all rows; may be NULL */
    Status (*fit)(Filter *filter);                                        /* called before searches, to allocate memory; may be NULL */
    /* Finds the most similar remembered row from index `from` on, the first of equals, if it is more similar than `best` */
    void (*search)(const Filter *filter, size_t slot, int worker, size_t from, FilterMatch *best);
    const char *(*rejects)(const Filter *filter, double score); /* the reason to reject a row of this similarity; NULL: none */
    Status (*remember)(Filter *filter, size_t slot);            /* ST_RESOURCE */
} FilterMemory;

struct FilterKind {
    const char *name, *help;
    const char *argument; /* the meaning of the first option, for the help: "N", "[WORD, ...]" */
    bool on;              /* by default */
    FilterStage stage;
    const OptionSpec *options;
    Status (*open)(Filter *filter); /* NULL: nothing to prepare. Fails with filter_refuse */
    void (*close)(Filter *filter);  /* also called after a failed open; state may be NULL */
    /* One of three: judges the row alone (called in parallel); compares it with earlier rows; measures it with a model. */
    bool (*rejects)(const Filter *filter, const FilterRow *row, FilterResult *finding);
    bool each_answer; /* for a conversation `rejects` is called for each answer as if it were the only one */
    const FilterMemory *memory;
    Status (*measure)(Filter *filter, const FilterRow *rows, size_t n, double *values);
    const char *(*out_of_range)(const Filter *filter, double value); /* the reason to reject a measured value; NULL: none */
};
#define FILTER(name) extern const FilterKind filter_kind_##name;
#include "data/filter/filters.def"
#undef FILTER

/* ST_CONFIG: "filter 'rouge_l' in 'recipe.yaml' line 7: ...". line: 0 = not from a file. */
Status filter_refuse(const Filter *filter, int line, const char *format, ...) PRINTF_LIKE(3, 4);
double filter_number(const Filter *filter, size_t option);

/* ---- texts ---- */

/* The text of a row that a filter looks at, as set by option `on`. prompt: instruction and input; row: prompt and completion. */
#define FILTER_FIELDS "instruction|input|prompt|completion|row"
/* Borrowed from the row, or built in `room`. data NULL: the row has no completion yet. */
Slice filter_field(const FilterRow *row, const char *field, Str *room);
/* The same for filters that compare or judge texts: for a row that is a single text, or has no answer, the text that exists. */
Slice filter_subject(const FilterRow *row, const char *field, Str *room);
FilterStage filter_on(const char *field); /* the stage at which a field is available */
Slice text_trim(Slice text);              /* without white space at both ends */
size_t text_characters(Slice text);
/* Unicode NFKC with case folding, typographic quotes replaced by straight ones, runs of white space by one space, none at the ends. Replaces
 * `out`. */
void text_fold(Slice text, Str *out);
/* The next word of text[*at..]: a run of letters, marks and digits, or one character of a script that is written without spaces. False at the end. */
bool text_word(Slice text, size_t *at, Slice *word);
/* The same split by white space only, as len(text.split()) counts in Python, except for those single characters. */
bool text_spaced_word(Slice text, size_t *at, Slice *word);

/* ---- numbers from a model: filter_model.c ---- */

/* For each row's answer: mean negative log-probability (nats a token) given its prompt, and without it, both over the same tokens. alone NULL: not
 * needed. NaN: the row has no answer, or with `alone` no prompt. */
Status filter_model_losses(Filter *filter, const FilterRow *rows, size_t n, double *prompted, double *alone);
Status filter_model_open(Filter *filter); /* ST_CONFIG without a model */

#endif
