/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a run, the same for all kinds of training: wrong recipes are refused before anything is loaded, and the run
 * directory is created only after the last check.
 *
 *     static const TrainingKind kind = {sft_load_result, sft_open, sft_report_plan, sft_started, sft_train, sft_release, true};
 *     return training_run(&kind, &sft, &sft.recipe, &config->options);
 */
#ifndef TUNE_TRAINING_H
#define TUNE_TRAINING_H

#include "lib/run/lengthen.h"
#include "lib/run/report.h"
#include "lib/train/train.h"

/* The functions of a kind of training, in the order in which training_run calls them: only `load_result` for a run that was finished before, else
 * all others. */
typedef struct TrainingKind {
    Status (*load_result)(void *context, const Run *run); /* reads and reports a finished run's result */
    /* Opens model, rows and steps; sets the memory that the run will take, or zeros when that is not planned. */
    Status (*open)(void *context, TrainMemory *memory);
    void (*report_plan)(void *context, const TrainMemory *memory); /* shows the plan; a dry run ends here */
    void (*started)(void *context, JsonWriter *w);                 /* writes what is known before the first step to started.json */
    Status (*train)(void *context, Run *run);
    void (*release)(void *context); /* always called, before the report is written */
    bool has_template;              /* chat_template.jinja is saved with the result */
    /* The run's length by a recipe that differs from the run's own only in its length; called after `open`. */
    Status (*length)(void *context, const Recipe *recipe, RunLength *length);
    /* Appends to `differs` what a run of the new length would have done differently, apart from its schedule. ST_CONFIG: the run cannot continue.
     * NULL: nothing differs. */
    Status (*lengthen)(void *context, const Recipe *before, Str *differs);
    const MetricsReader *reader; /* interprets its metrics for the report; NULL: none */
    /* The name, in state.json and finished.json, of the steps that `length` counts; NULL: the steps that number checkpoints. */
    const char *counter;
} TrainingKind;
typedef struct TrainingOptions {
    const char *command;        /* as typed, for the run's record; NULL: unknown */
    const char *resume_command; /* the command that continues the run when it ends early: `command` with --resume and all options; NULL: unknown */
    bool resume;
    bool force;                           /* a run in the output is moved aside: RUN_REPLACE */
    void (*say)(const char *format, ...); /* shows a line to the user, apart from the plan; NULL: nobody sees it */
    bool dry_run;                         /* everything except training: writes nothing but data.cache */
} TrainingOptions;
/* Reports where the run is now that this one replaced, if there was one. */
void training_report_backup(const TrainingOptions *options, const Run *run);
static inline RunMode training_run_mode(const TrainingOptions *options) {
    return options->resume ? RUN_RESUME : options->force ? RUN_REPLACE : RUN_NEW;
}
/* Runs a training from its recipe to its end, and writes report.html, also for a run that failed. *recipe: the run's; `open` may replace it, e.g.
 * by one with the day (recipe_dated). Returns failures of the functions, of run_check, run_open and trainer_check_memory. */
Status training_run(const TrainingKind *kind, void *context, const Recipe *const *recipe, const TrainingOptions *options);

#endif
