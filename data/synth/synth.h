/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic rows: seeds and a teacher in, a run directory with rows.jsonl out. What is asked, in which order, is the preset's (synth_<name>.c); who
 * answers is teacher.h's; what is kept is filter.h's.
 *
 *     // makes rows.jsonl, rejected.jsonl, requests.jsonl, dataset_card.md and report.html
 *     TRY(synth_run(&(SynthConfig){.recipe = recipe, .folders = folders, .n_folders = n}, &result));
 *
 * The whole is a function of the recipe, the seeds and the answers: rounds of requests are numbered, and the numbers key all that is drawn. So a run
 * that was killed is run again from its beginning with the answers of its log, asks only what is not in it, and writes the same bytes. */
#ifndef TUNE_SYNTH_H
#define TUNE_SYNTH_H

#include "data/filter/filter.h"
#include "data/synth/teacher.h"
#include "lib/train/training.h"

typedef struct SynthCount {
    const char *name;
    int64_t made, kept;
} SynthCount;
typedef struct SynthProgress {
    const char *preset;
    int64_t rows, wanted;                     /* kept so far; asked for */
    int64_t round, asked, requests, replayed; /* asked: of this round; requests: of all; replayed: of them, those that the log answered */
    const SynthCount *types;
    size_t n_types;
    const SynthCount *stages;
    size_t n_stages; /* answers that the stage got, and what went on from it */
    const SynthCount *reasons;
    size_t n_reasons; /* made: rows that it rejected */
    int64_t tokens, prompt_tokens;
    double tokens_per_second, seconds, seconds_left; /* of answers; left: NaN until it can be told */
    double cost, cost_left;                          /* money; 0 where there is no price, left NaN */
    int64_t candidates, candidates_total;            /* so far; of the whole run, as it looks: -1 until it can be told */
    bool round_over;
} SynthProgress;
typedef struct SynthResult {
    int64_t rows, wanted, rejected, requests, replayed, tokens, prompt_tokens;
    int64_t refused;  /* of the rejected: what the server did not answer */
    int64_t selected; /* rows of selected.jsonl; -1: none were asked for */
    double cost, seconds;
    double teacher_seconds, filter_seconds;
    bool exhausted; /* the preset had nothing more to ask */
    bool already_finished;
} SynthResult;
/* What is known before the first request. */
typedef struct SynthPlan {
    const char *preset, *help, *teacher;
    size_t seeds, n_types;
    const SynthCount *types; /* kept: seeds */
    const Filters *filters;
    size_t logged; /* lines in the log */
} SynthPlan;

/* A reward of completions, which libraries above this one know: values of n rows. */
typedef Status SynthReward(void *context, const FilterRow *rows, size_t n, double *values);
typedef struct SynthConfig {
    const Recipe *recipe;
    TrainingOptions options;
    const char *const *folders; /* where prompts/NAME.jinja is looked for, in order */
    size_t n_folders;
    const char *(*secret)(void *context, const char *name); /* see TeacherOptions */
    SynthReward *reward;                                    /* NULL: there is none */
    void (*on_plan)(void *context, const SynthPlan *plan);
    void (*on_progress)(void *context, const SynthProgress *progress);
    void *context;
} SynthConfig;
/* ST_CONFIG: keys that do not fit, too few seeds of a type, a missing prompt; ST_INPUT: seeds, a teacher that cannot be opened, fewer kept than
 * synth.min_acceptance; ST_RESOURCE: a server that stays down, a limit that is reached, a full disk; ST_INTERRUPTED. What was answered is in the log
 * by then. */
Status synth_run(const SynthConfig *config, SynthResult *result);
/* What the recipe's preset changes of the filters that are on by default, as FilterConfig.base has it: in the arena; NULL: nothing. */
Status synth_preset_filters(const Recipe *recipe, Arena *arena, const Yaml **filters);
void synth_presets_help(Str *text); /* a line each */

#endif
