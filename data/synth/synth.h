/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic rows: takes seeds and a teacher, and writes a run directory with rows.jsonl. The preset (synth_<name>.c) determines the requests and
 * their order; the teacher (teacher.h) answers; filters (filter.h) decide which rows are kept.
 *
 *     // makes rows.jsonl, rejected.jsonl, requests.jsonl, dataset_card.md and report.html
 *     TRY(synth_run(&(SynthConfig){.recipe = recipe, .folders = folders, .n_folders = n}, &result));
 *
 * The result is a function of the recipe, the seeds and the answers: rounds of requests are numbered, and the numbers are the keys of all random
 * draws. A killed run is therefore repeated from its start with the answers in its log. It sends only requests that are not in the log, and writes
 * the same bytes. */
#ifndef TUNE_SYNTH_H
#define TUNE_SYNTH_H

#include "data/filter/filter.h"
#include "data/synth/teacher.h"
#include "lib/run/run.h"

typedef struct SynthCount {
    const char *name;
    int64_t made, kept;
} SynthCount;
typedef struct SynthProgress {
    const char *preset;
    int64_t rows, wanted;                     /* rows kept so far; rows wanted */
    int64_t round, asked, requests, replayed; /* asked: in this round; requests: total; replayed: those of the total that the log answered */
    const SynthCount *types;
    size_t n_types;
    const SynthCount *stages;
    size_t n_stages; /* answers that the stage got, and how many of them were used further */
    const SynthCount *reasons;
    size_t n_reasons; /* made: rows that the filter rejected */
    int64_t tokens, prompt_tokens;
    double tokens_per_second, seconds, seconds_left; /* of answers; left: NaN until it can be estimated */
    double cost, cost_left;                          /* money; 0 without a price, left NaN */
    int64_t candidates, candidates_total;            /* so far; of the complete run, estimated: -1 until known */
    bool round_over;
} SynthProgress;
typedef struct SynthResult {
    int64_t rows, wanted, rejected, requests, replayed, tokens, prompt_tokens;
    int64_t refused;  /* of the rejected: requests that the server did not answer */
    int64_t selected; /* rows of selected.jsonl; -1: no selection */
    double cost, seconds;
    double teacher_seconds, filter_seconds;
    bool exhausted; /* the preset had no more requests */
    bool already_finished;
} SynthResult;
/* Facts known before the first request. */
typedef struct SynthPlan {
    const char *preset, *help, *teacher;
    size_t seeds, n_types;
    const SynthCount *types; /* kept: seeds */
    const Filters *filters;
    size_t logged; /* number of lines in the log */
} SynthPlan;

/* A reward of completions, passed in by higher layers: values of n rows. */
typedef Status SynthReward(void *context, const FilterRow *rows, size_t n, double *values);
typedef struct SynthConfig {
    const Recipe *recipe;
    RunOptions options;
    const Device *device;       /* that local teachers run on */
    Comm *comm;                 /* ranks, which share the work of local teachers; NULL: one process */
    const char *const *folders; /* folders to search for prompts/NAME.jinja, in order */
    size_t n_folders;
    const char *(*secret)(void *context, const char *name); /* see TeacherOptions */
    SynthReward *reward;                                    /* NULL: there is none */
    void (*on_plan)(void *context, const SynthPlan *plan);
    void (*on_progress)(void *context, const SynthProgress *progress);
    void *context;
} SynthConfig;
/* ST_CONFIG: invalid keys, too few seeds of a type, a missing prompt; ST_INPUT: seeds, a teacher that cannot be opened, a share of kept rows below
 * synth.min_acceptance; ST_RESOURCE: a server that stays down, a limit that is reached, a full disk; ST_INTERRUPTED. Answers received before are in
 * the log. */
Status synth_run(const SynthConfig *config, SynthResult *result);
/* For ranks other than 0, while rank 0 is in synth_run: computes what local teachers are asked. Uses recipe, device and comm of `config`. */
Status synth_serve(const SynthConfig *config);
/* The changes that the recipe's preset makes to the default filters, in the form of FilterConfig.base: in the arena; NULL: none. */
Status synth_preset_filters(const Recipe *recipe, Arena *arena, const Yaml **filters);
void synth_presets_help(Str *text); /* one a line */

#endif
