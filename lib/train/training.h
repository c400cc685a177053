/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a run, the same for all kinds of training: wrong recipes are refused before anything is loaded, and the run directory is created only
 * after the last check.
 *
 *     static const TrainingKind kind = {.open = ilql_open, .train = ilql_train, .release = ilql_release, .results = ilql_results, ...};
 *     return training_run(&kind, &ilql, &ilql.recipe, config, result);
 */
#ifndef TUNE_TRAINING_H
#define TUNE_TRAINING_H

#include "lib/comm/comm.h"
#include "lib/run/lengthen.h"
#include "lib/run/metrics.h"
#include "lib/run/report.h"
#include "lib/train/run_plan.h"

/* A metric that is shown while a run goes on. */
typedef struct Shown {
    const char *metric, *label; /* label: for people, as "length" of completion_length */
    int digits;                 /* after the point; 0: four significant ones */
    bool counts;                /* a number of things, shown as "12 episodes"; label: of one */
} Shown;
typedef struct Progress {
    int64_t step, total;    /* done so far and in the whole run, as the recipe's length counts them */
    const Metrics *metrics; /* of the step, or of the evaluation */
    bool evaluation;        /* on held-out rows, after the step */
    const Shown *shown;     /* which of them to show; the last has the metric NULL. The first is also shown as a curve */
    const char *rate;       /* what per_second counts, such as "tokens" */
    double per_second, seconds_left;
    uint64_t memory; /* peak of the process, bytes; 0: not measured */
} Progress;
typedef struct TrainingConfig {
    const Recipe *recipe;
    Runtime runtime; /* its dtype is that of the recipe: recipe_compute */
    RunOptions options;
    Comm *comm; /* the ranks that train together, which call this alike; only rank 0 reads and writes the run. NULL: one process */
    void (*on_plan)(void *context, const RunPlan *plan);          /* before the first step; may be NULL */
    void (*on_progress)(void *context, const Progress *progress); /* after each step and each evaluation; may be NULL */
    void *context;
} TrainingConfig;
/* What finished.json says. */
typedef struct TrainResult {
    Metrics numbers; /* those that the kind of training lists; NaN: unknown. All unknown after a dry run */
    bool early_stopped, already_finished;
} TrainResult;

/* The functions of a kind of training. training_run calls `open`; for a run that is made longer `length` and `lengthen`; then `train` and `release`.
 * For a run that was finished before it calls only `release`, for a dry run not `train`. */
typedef struct TrainingKind {
    /* Opens model, rows and steps, plans the memory of the run (plan->memory), and adds lines and values about all of them to the plan. */
    Status (*open)(void *context, RunPlan *plan);
    Status (*train)(void *context, Run *run); /* trains to the end and calls run_mark_finished */
    void (*release)(void *context);           /* always called, before the report is written */
    const char *const *results;               /* the numbers of finished.json that are the result, the steps first; NULL after the last */
    bool has_template;                        /* chat_template.jinja is saved with the result */
    bool over_ranks;                          /* it divides its steps over the ranks of TrainingConfig.comm */
    /* The run's length by a recipe that differs from the run's own only in its length; called after `open`. */
    Status (*length)(void *context, const Recipe *recipe, RunLength *length);
    /* Appends to `differs` what a run of the new length would have done differently, apart from its schedule. ST_CONFIG: the run cannot continue.
     * NULL: nothing differs. */
    Status (*lengthen)(void *context, const Recipe *before, Str *differs);
    const MetricsReader *reader; /* interprets its metrics for the report; NULL: none */
    /* The name, in state.json and finished.json, of the steps that `length` counts; NULL: the steps that number checkpoints. */
    const char *counter;
} TrainingKind;
/* Runs a training from its recipe to its end, and writes report.html, also for a run that failed. *recipe: the run's; `open` may replace it, e.g.
 * by one with the day (recipe_dated). Returns failures of the functions, of run_check, run_open and train_memory_check. */
Status training_run(const TrainingKind *kind, void *context, const Recipe *const *recipe, const TrainingConfig *config, TrainResult *result);

#endif
