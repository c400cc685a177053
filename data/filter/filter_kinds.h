/* SPDX-License-Identifier: Apache-2.0 */
/* What a file filter_<name>.c defines: its options, and one of three ways to judge a row.
 *
 *     enum { MAX };
 *     static const OptionSpec options[] = {[MAX] = {"max", OPTION_WHOLE, .value = 150, .low = 1, .high = 1e9, .help = "most words"}, {0}};
 *     static bool rejects(const Filter *filter, const FilterRow *row, FilterResult *finding) { ... filter->options[MAX].number ... }
 *     const FilterKind filter_kind_words = {.name = "words", .help = "...", .argument = "N", .stage = FILTER_PROMPT, .options = options, .rejects =
 * rejects};
 *
 * The first option is what `name: VALUE` sets. */
#ifndef TUNE_FILTER_KINDS_H
#define TUNE_FILTER_KINDS_H

#include "data/filter/filter.h"
#include "lib/recipe/option.h"

enum { FILTER_BLOCK = 256 }; /* rows that are looked at side by side */

typedef struct FilterKind FilterKind;
typedef struct Filter {
    const FilterKind *kind;
    FilterInfo info; /* its stage is the kind's, or what the options make of it: see filter_on */
    OptionValue options[OPTIONS_MOST];
    const FilterConfig *config;
    Arena *arena;            /* as long as the filters */
    int n_workers;           /* threads that may search */
    void *state;             /* the kind's own */
    uint32_t *entries;       /* of a filter with a memory: what each remembered row is in the ledger */
    size_t n_rows, cap_rows; /* remembered rows */
} Filter;

typedef struct FilterResult {
    double score;
    const char *what, *nearest_id, *nearest_text;
} FilterResult; /* score NaN, others NULL until set */
typedef struct FilterMatch {
    double score;
    size_t row;
} FilterMatch; /* row: remembered rows are numbered in their order; SIZE_MAX: none */
/* Rows are taken into slots, FILTER_BLOCK of them; those of a block are searched for side by side among what was remembered before, then one after
 * the other among what the block has added. */
typedef struct FilterMemory {
    Status (*take)(Filter *filter, const FilterRow *row, size_t slot);    /* NULL: nothing to do one after the other */
    Status (*prepare)(Filter *filter, const FilterRow *row, size_t slot); /* several threads at once, after all are taken; may be NULL */
    Status (*fit)(Filter *filter);                                        /* before searches: room for them; may be NULL */
    /* The likest remembered row from number `from` on, of equals the first, if it is likelier than `best` */
    void (*search)(const Filter *filter, size_t slot, int worker, size_t from, FilterMatch *best);
    const char *(*rejects)(const Filter *filter, double score); /* what is wrong with a row as like as that; NULL: nothing */
    Status (*remember)(Filter *filter, size_t slot);            /* ST_RESOURCE */
} FilterMemory;

struct FilterKind {
    const char *name, *help;
    const char *argument; /* what the first option is, for the help: "N", "[WORD, ...]" */
    bool on;              /* by default */
    FilterStage stage;
    const OptionSpec *options;
    Status (*open)(Filter *filter); /* NULL: nothing to prepare. Fails with filter_refuse */
    void (*close)(Filter *filter);  /* also after a failed open; state may be NULL */
    /* One of three: what the row alone tells (called by several threads at once); likeness to rows before; numbers that a model gives. */
    bool (*rejects)(const Filter *filter, const FilterRow *row, FilterResult *finding);
    bool each_answer; /* of a conversation `rejects` is asked for each answer, as if it were the only one */
    const FilterMemory *memory;
    Status (*measure)(Filter *filter, const FilterRow *rows, size_t n, double *values);
    const char *(*out_of_range)(const Filter *filter, double value); /* of a measured number: what is wrong with it; NULL: nothing */
};
#define FILTER(name) extern const FilterKind filter_kind_##name;
#include "data/filter/filters.def"
#undef FILTER

/* ST_CONFIG: "filter 'rouge_l' in 'recipe.yaml' line 7: ...". line: 0 = not from a file. */
Status filter_refuse(const Filter *filter, int line, const char *format, ...) PRINTF_LIKE(3, 4);
double filter_number(const Filter *filter, size_t option);

/* ---- texts ---- */

/* Which text of a row a filter looks at, as option `on` has it. prompt: instruction and input; row: prompt and completion. */
#define FILTER_FIELDS "instruction|input|prompt|completion|row"
/* Borrowed from the row, or put together in `room`. data NULL: the row has no completion yet. */
Slice filter_field(const FilterRow *row, const char *field, Str *room);
/* The same for what compares or judges texts as such: of a row that is a text alone, or has no answer, what there is. */
Slice filter_subject(const FilterRow *row, const char *field, Str *room);
FilterStage filter_on(const char *field); /* the stage that a field needs */
Slice text_trim(Slice text);              /* without white space at both ends */
size_t text_characters(Slice text);
/* Unicode NFKC with case folding, typographic quotes made straight, runs of white space one space, none at the ends. Replaces `out`. */
void text_fold(Slice text, Str *out);
/* The next word of text[*at..]: a run of letters, marks and digits, or one character of a script that is written without spaces. False at the end. */
bool text_word(Slice text, size_t *at, Slice *word);
/* The same by white space alone: what len(text.split()) counts in Python, but for those single characters. */
bool text_spaced_word(Slice text, size_t *at, Slice *word);

/* ---- numbers of a model: filter_model.c ---- */

/* Of each row's answer: mean negative log-probability (nats a token) behind its prompt, and by itself, both over the same tokens. alone NULL: not
 * wanted. NaN: the row has no answer, or with `alone` no prompt. */
Status filter_model_losses(Filter *filter, const FilterRow *rows, size_t n, double *behind, double *alone);
Status filter_model_open(Filter *filter); /* ST_CONFIG without a model */

#endif
