/* SPDX-License-Identifier: Apache-2.0 */
/* The run directory: who may write into it, where a run goes on, what it says on the way, how it ends.
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
/* What is done with the run that is in the output already. */
typedef enum RunMode {
    RUN_NEW,     /* refuse it */
    RUN_RESUME,  /* go on with it */
    RUN_REPLACE, /* begin anew in its place, and keep it as NAME.1, NAME.2, ... */
} RunMode;
/* Makes output/ or takes it up again. RUN_NEW: a directory that holds a run is ST_CONFIG; RUN_RESUME: a recipe that would train something else is
 * too; RUN_REPLACE: it is ST_CONFIG where another process trains there, or where the recipe names something in it. A run that is finished is left as
 * it is: see run_finished. Else the newest whole checkpoint is chosen (run_step), what is newer or damaged is removed, and metrics.jsonl is cut back
 * to the checkpoint. A second process on the same directory is ST_CONFIG. */
Status run_open(const Recipe *recipe, RunMode take, Run **run);
typedef struct Lengthening Lengthening;
/* The same where the run gets another length (lengthen.h); NULL: it keeps its own. */
Status run_open_longer(const Recipe *recipe, RunMode take, const Lengthening *longer, Run **run);
/* What run_open would refuse, without touching anything: to be asked before a model is loaded. Warns where there is nothing to resume. */
Status run_check(const Recipe *recipe, RunMode take, bool *finished);
void run_close(Run *run); /* NULL is fine */
const char *run_dir(const Run *run);
const char *run_path(const Run *run, const char *name); /* "output/name"; lives as long as the run */
const char *run_backup_path(const Run *run);            /* where the run is that gave way to this one (RUN_REPLACE); NULL: there was none */
bool run_finished(const Run *run);
bool run_reported(const Run *run); /* it has its report.html */
int64_t run_step(const Run *run);  /* of the checkpoint to start from; -1 = none, from the start */
/* The whole command that goes on with this run, for what is said when it fails; NULL: not known. */
void run_resume_by(Run *run, const char *command);
/* The last act of a run that ends without a result: output/stopped.json with the failure `status`, which is given back with its words (ending.h). One
 * that is finished has none. */
Status run_mark_stopped(Run *run, Status status);
/* The last act: output/finished.json with the run's summary (borrowed). */
Status run_mark_finished(Run *run, const json_t *summary);
Status run_summary(const Run *run, json_t **summary); /* of a finished run; the caller decrefs */
/* output/started.json: what is known before the first step. Its object begins with the program and the command (as typed; NULL: not known); the
 * caller adds to `w` and ends it:
 *
 *     JsonWriter w;
 *     if (!run_started_begin(run, recipe, command, &w)) return ST_OK;
 *     jw_int(&w, "steps", steps);
 *     return run_started_end(run, &w);
 *
 * false: the run has one already, since a resumed run keeps what it began with. ST_RESOURCE. */
bool run_started_begin(const Run *run, const Recipe *recipe, const char *command, JsonWriter *w);
Status run_started_end(const Run *run, JsonWriter *w);
Status run_metric(Run *run, const char *json_line);                 /* appended to metrics.jsonl, whole line or nothing, and to the event file */
void run_log(Run *run, const char *format, ...) PRINTF_LIKE(2, 3);  /* output/log.txt and log_message(LOG_INFO); run NULL: the latter alone */
void run_warn(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); /* the same as LOG_WARNING */
void run_note(Run *run, const char *format, ...) PRINTF_LIKE(2, 3); /* output/log.txt alone: for what the caller shows by itself */

/* Something that a run is made from, beside its recipe: the key that names it and a number that tells whether it is still the same. */
typedef struct TaskInput {
    const char *key;
    uint64_t fingerprint;
} TaskInput;
enum { TASK_MAX_INPUTS = 6 };

#endif
