/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer of all runs. training_run is the life of a run: wrong recipes are refused before anything is loaded, and the run directory is created
 * only after the last check. Then steps, evaluations, checkpoints with exact resume, metrics, progress and the end (training_loop.c). A kind of
 * training says how a run is opened and what its steps are: on rows (trainer.h), on rollouts of text, or in environments.
 *
 *     static const TrainingKind kind = {.open = learn_open, .begin = learn_begin, .step = learn_step, .list_state = learn_list_state, ...};
 *     return training_run(&kind, &learn, &learn.recipe, config, result);
 */
#ifndef TUNE_TRAINING_H
#define TUNE_TRAINING_H

#include "lib/comm/comm.h"
#include "lib/run/lengthen.h"
#include "lib/run/metrics.h"
#include "lib/run/report.h"
#include "lib/train/run_plan.h"
#include "lib/train/state_list.h"

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

/* What is known of the steps of a run when they begin. */
typedef struct RunSteps {
    TaskInput inputs[TASK_MAX_INPUTS]; /* key NULL = unused. A run whose inputs changed cannot be resumed: ST_CONFIG */
    const int64_t *done;               /* what `total` counts, which steps count up; NULL: steps */
    int64_t total;                     /* the run ends when so many are done, or a few more */
    /* `step` may fail because of another program, or be interrupted while it waits for one. A copy of the listed state of the newest step, or of one
     * shortly before, is then kept in memory, and saved. */
    bool step_may_fail;
    const Shards *shards; /* of state_divided; NULL: nothing is divided */
} RunSteps;

/* A kind of training. training_run calls `open`; for a run that is made longer `length` and `lengthen`; then `begin`, the functions of steps, and
 * `release`. For a run that was finished before it calls only `release`, for a dry run `open` and `release`. What may be NULL says so. */
typedef struct TrainingKind {
    /* Opens model, rows and steps, plans the memory of the run (plan->memory), and adds lines and values about all of them to the plan. */
    Status (*open)(void *context, RunPlan *plan);
    /* Makes what only steps need, such as the states of the optimiser. */
    Status (*begin)(void *context, Run *run, RunSteps *steps);
    void (*release)(void *context); /* always called, before the report is written */
    /* The run's length by a recipe that differs from the run's own only in its length; called after `open`. */
    Status (*length)(void *context, const Recipe *recipe, RunLength *length);
    /* Appends to `differs` what a run of the new length would have done differently, apart from its schedule. ST_CONFIG: the run cannot continue.
     * NULL: nothing differs. */
    Status (*lengthen)(void *context, const Recipe *before, Str *differs);

    /* A step (from 0) is three calls. Each may stop with ST_INTERRUPTED when interrupt_requested is true. A resumed run repeats the call that failed
     * and continues from there. Metrics of steps that fail are dropped. */
    /* Collects samples and rewards, or gradients. Must not change the listed state; when it fails, that state is saved. May be NULL. */
    Status (*gather)(void *context, int64_t step, Metrics *metrics);
    /* Learns. After ST_INTERRUPTED the listed state must be unchanged, unless step_may_fail; after other failures it is lost, unless
     * step_may_fail. */
    Status (*step)(void *context, int64_t step, Metrics *metrics);
    /* Evaluates. Changes listed state only when it succeeds; when it fails, what the step learned is saved. May be NULL. */
    Status (*evaluate)(void *context, int64_t step, Metrics *metrics);
    bool (*evaluates)(const void *context, int64_t done); /* whether to evaluate after so many steps; NULL: after each */
    bool (*stopped)(const void *context);                 /* whether an evaluation has ended the run early; NULL: never */
    void (*list_state)(void *context, StateList *states);
    Status (*resumed)(void *context, int64_t done); /* called after the listed state was read from the checkpoint of step `done`; may be NULL */

    void (*recorded)(void *context, int64_t done, const Metrics *metrics); /* called after a step's line of metrics.jsonl; may be NULL */
    Status (*finish)(void *context, Run *run);                             /* writes the result after the last step */
    json_t *(*summary)(void *context, int64_t done); /* fields of finished.json in addition to steps, seconds, memory. NULL: out of memory */

    const char *const *results; /* the numbers of finished.json that are the result, the steps first; NULL after the last */
    /* The name, in state.json and finished.json, of the steps that `length` counts; NULL: the steps that number checkpoints. */
    const char *counter;
    const MetricsReader *reader; /* interprets its metrics for the report; NULL: none */
    const Shown *shown;          /* for progress, as rate: a metric that counts the work of a step, such as "tokens" */
    const char *rate;
    const char *evaluated; /* the metric that an evaluation sets, shown as the first of `shown`; NULL: none */
    bool rate_kept;        /* metrics.jsonl gets "tokens_per_second" too, which like "seconds" differs between runs */
    bool evaluates_apart;  /* an evaluation's metrics are a line of their own, and their names there begin with "eval_"; else in the step's line */
    bool memory_shown;     /* in progress */
    bool has_template;     /* chat_template.jinja is saved with the result */
    bool over_ranks;       /* it divides its steps over the ranks of TrainingConfig.comm */
    bool agrees;           /* if one rank is to end, all get ST_INTERRUPTED from the same call; else ranks ask each other before each step */
} TrainingKind;
/* Runs a training from its recipe to its end, and writes report.html, also for a run that failed. *recipe: the run's; `open` may replace it, e.g.
 * by one with the day (recipe_dated). Returns failures of the functions, of run_check, run_open and train_memory_check. */
Status training_run(const TrainingKind *kind, void *context, const Recipe *const *recipe, const TrainingConfig *config, TrainResult *result);

#endif
