/* SPDX-License-Identifier: Apache-2.0 */
/* The run directory: its lock, where a run continues, its records, its ending.
 *
 *     Run *run;
 *     TRY(run_open(recipe, RUN_NEW, &run));    // output/: recipe.yaml, metrics.jsonl, log.txt, checkpoints/
 *     TRY(run_metric(run, "{\"step\": 1, \"loss\": 2.5}"));
 *     TRY(run_mark_finished(run, summary));
 *     run_close(run);
 */
#ifndef TUNE_RUN_H
#define TUNE_RUN_H

#include "lib/recipe/recipe.h"

typedef struct Run Run;
/* What to do with a run that is already in the output. */
typedef enum RunMode {
    RUN_NEW,     /* refuse */
    RUN_RESUME,  /* continue it */
    RUN_REPLACE, /* start a new run in its place, and keep the old run as NAME.1, NAME.2, ... */
    RUN_ABSENT,  /* a run without a directory: it writes nothing and locks nothing */
} RunMode;
/* How a command runs a recipe, whatever kind of run it is. */
typedef struct RunOptions {
    const char *command;        /* as typed, for the run's record; NULL: unknown */
    const char *resume_command; /* the command that continues the run when it ends early: `command` with --resume and all options; NULL: unknown */
    bool resume;
    bool force;                           /* a run in the output is moved aside: RUN_REPLACE */
    void (*say)(const char *format, ...); /* shows a line to the user, apart from the plan; NULL: nobody sees it */
    bool dry_run;                         /* everything except the work itself: writes nothing but data.cache */
    bool absent;                          /* RUN_ABSENT: for a process that trains along with the one that writes */
} RunOptions;
static inline RunMode run_mode(const RunOptions *options) {
    return options->absent ? RUN_ABSENT : options->resume ? RUN_RESUME : options->force ? RUN_REPLACE : RUN_NEW;
}
/* Creates the output directory or opens an existing run. ST_CONFIG: RUN_NEW and the directory contains a run; RUN_RESUME and the recipe would
 * train something else; RUN_REPLACE and another process trains there or the recipe names a part of the old run; a second process on the same
 * directory. A finished run stays unchanged: see run_finished. Otherwise the newest complete checkpoint is chosen (run_step), newer and damaged
 * ones are removed, and metrics.jsonl is truncated to the checkpoint. The caller calls run_close. */
Status run_open(const Recipe *recipe, RunMode take, Run **run);
typedef struct Lengthening Lengthening;
/* The same with another length (lengthen.h); NULL: the length stays. */
Status run_open_longer(const Recipe *recipe, RunMode take, const Lengthening *longer, Run **run);
/* Returns the failure that run_open would, without changing anything; call it before loading a model. Warns when there is nothing to resume. */
Status run_check(const Recipe *recipe, RunMode take, bool *finished);
void run_close(Run *run);        /* NULL is fine */
bool run_writes(const Run *run); /* false: RUN_ABSENT. code that writes files of a run by path asks first */
const char *run_dir(const Run *run);
const char *run_path(const Run *run, const char *name); /* "output/name"; lives as long as the run */
const char *run_backup_path(const Run *run);            /* where the run is now that this one replaced (RUN_REPLACE); NULL: there was none */
/* Says where the run is now that this one replaced, if there was one. */
void run_say_backup(const Run *run, const RunOptions *options);
bool run_finished(const Run *run);
bool run_reported(const Run *run); /* it has a report.html */
int64_t run_step(const Run *run);  /* the checkpoint to start from; -1 = none, from the start */
/* Sets the full command that resumes this run, for messages when it fails; NULL: unknown. */
void run_resume_by(Run *run, const char *command);
/* Last call for a run that ends without a result: writes output/stopped.json with the failure `status`, which is returned with its text
 * (ending.h). Does nothing for a finished run. */
Status run_mark_stopped(Run *run, Status status);
/* Last call for a run with a result: writes output/finished.json with the summary (borrowed). */
Status run_mark_finished(Run *run, const json_t *summary);
Status run_summary(const Run *run, json_t **summary); /* of a finished run, as marked; the caller decrefs */
/* output/started.json: what is known before the first step. Its object begins with the program and the command (as typed; NULL: unknown); the
 * caller adds to `w` and ends it:
 *
 *     JsonWriter w;
 *     if (!run_started_begin(run, recipe, command, &w)) return ST_OK;
 *     jw_int(&w, "steps", steps);
 *     return run_started_end(run, &w);
 *
 * false: the run has one already; a resumed run keeps its first. ST_RESOURCE. */
bool run_started_begin(const Run *run, const Recipe *recipe, const char *command, JsonWriter *w);
Status run_started_end(const Run *run, JsonWriter *w);
/* Appends a complete line or nothing to metrics.jsonl, and to the event file. */
Status run_metric(Run *run, const char *json_line);
void run_log(Run *run, const char *format, ...) PRINTF_LIKE(2, 3);  /* output/log.txt and log_message(LOG_INFO); run NULL: only the latter */
void run_warn(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); /* the same as LOG_WARNING */
void run_note(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); /* only output/log.txt: for text that the caller shows itself */

/* An input of a run besides its recipe: the key that names it, and a fingerprint that shows whether it changed. */
typedef struct TaskInput {
    const char *key;
    uint64_t fingerprint;
} TaskInput;
enum { TASK_MAX_INPUTS = 7 };

#endif
