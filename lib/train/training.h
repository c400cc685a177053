/* SPDX-License-Identifier: Apache-2.0 */
/* A run from its recipe to its end, as all kinds of training go through it: what is refused is refused before anything is loaded, and the run
 * directory is made only when nothing can be refused any more.
 *
 *     static const TrainingKind kind = {sft_load_result, sft_open, sft_report_plan, sft_started, sft_train, sft_release, true};
 *     return training_run(&kind, &sft, &sft.recipe, &config->options);
 */
#ifndef TUNE_TRAINING_H
#define TUNE_TRAINING_H

#include "lib/run/lengthen.h"
#include "lib/run/report.h"
#include "lib/train/train.h"

/* What training_run asks of a kind of training, in this order: `load_result` alone where the run was finished before, else all the others. */
typedef struct TrainingKind {
    Status (*load_result)(void *context, const Run *run);          /* says a finished run's result again */
    Status (*open)(void *context, TrainMemory *memory);            /* model, rows, steps; what the run will take, all 0 where that is not planned */
    void (*report_plan)(void *context, const TrainMemory *memory); /* shows the plan; a dry run ends here */
    void (*started)(void *context, JsonWriter *w);                 /* what is known before the first step, into started.json */
    Status (*train)(void *context, Run *run);
    void (*release)(void *context); /* in any case, and before the report is written */
    bool has_template;              /* chat_template.jinja goes with what is trained */
    /* By a recipe that differs from the run's own in its length alone; after `open` */
    Status (*length)(void *context, const Recipe *recipe, RunLength *length);
    /* What a run of the new length had done otherwise, beside its schedule, is appended; what cannot go on is ST_CONFIG. NULL: nothing */
    Status (*lengthen)(void *context, const Recipe *before, Str *differs);
    const MetricsReader *reader; /* of its metrics, for its page; NULL: none */
    const char *counter; /* name in state.json and finished.json of the steps that `length` counts; NULL: those that checkpoints are numbered by */
} TrainingKind;
typedef struct TrainingOptions {
    const char *command;        /* as it was typed, for the run's record; NULL: not known */
    const char *resume_command; /* what goes on with the run when it ends early: the same with --resume and all options; NULL: not known */
    bool resume;
    bool force;                           /* a run that is in the output gives way: RUN_REPLACE */
    void (*say)(const char *format, ...); /* a line for people, beside the plan; NULL: to nobody */
    bool dry_run;                         /* everything but training: nothing is written but data.cache */
} TrainingOptions;
/* Says where the run is that gave way to this one, if there was one. */
void training_report_backup(const TrainingOptions *options, const Run *run);
static inline RunMode training_run_mode(const TrainingOptions *options) {
    return options->resume ? RUN_RESUME : options->force ? RUN_REPLACE : RUN_NEW;
}
/* *recipe: the run's; `open` may put another one in its place, such as one with the day (recipe_dated). Writes report.html at the end, also of a run
 * that failed. Faults of these functions, of run_check, run_open and trainer_check_memory. */
Status training_run(const TrainingKind *kind, void *context, const Recipe *const *recipe, const TrainingOptions *options);

#endif
