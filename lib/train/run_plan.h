/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a run, known before its first step: values with names, and lines for people, in the order in which they were added. The open function
 * of the kind of training (TrainingKind) fills it. The command shows the lines and log.txt records them; started.json records values and warnings; a
 * dry run prints values as JSON.
 *
 *     run_plan_say(plan, "data: %lld rows", n);
 *     run_plan_count(plan, PLAN_PRINT, "rows", n);
 *     run_plan_count(plan, PLAN_BOTH, "steps", total);
 *     run_plan_model(plan, recipe, model, "");
 *
 * Texts are copied. The functions return no status: lack of memory is stored in `status`, which training_run checks.
 */
#ifndef TUNE_RUN_PLAN_H
#define TUNE_RUN_PLAN_H

#include "data/data.h"
#include "lib/train/memory.h"

typedef enum RunPlanUse {
    PLAN_KEPT = 0,   /* only for run_plan_get */
    PLAN_RECORD = 1, /* in started.json */
    PLAN_PRINT = 2,  /* in the JSON of a dry run */
    PLAN_BOTH = PLAN_RECORD | PLAN_PRINT
} RunPlanUse;
typedef struct RunPlanValue {
    const char *name;
    RunPlanUse use;
    enum { PLAN_COUNT, PLAN_REAL, PLAN_TEXT, PLAN_JSON } kind; /* a whole number, a number, a text, or text that is JSON */
    double number;                                             /* of the kinds PLAN_COUNT and PLAN_REAL */
    const char *text;                                          /* of the kinds PLAN_TEXT (NULL: null) and PLAN_JSON */
} RunPlanValue;
typedef struct RunPlanLine {
    enum { PLAN_LINE, PLAN_WARNING, PLAN_NOTE } kind; /* for people; a warning, also in started.json; for log.txt alone */
    const char *text;
} RunPlanLine;
enum { PLAN_VALUES = 32 };
typedef struct RunPlan {
    Arena *arena;
    RunPlanValue values[PLAN_VALUES];
    size_t n_values;
    RunPlanLine *lines;
    size_t n_lines, cap_lines;
    TrainMemory memory; /* zeros: not planned */
    Status status;
} RunPlan;

/* Adds a line. */
void run_plan_say(RunPlan *plan, const char *format, ...) PRINTF_LIKE(2, 3);
/* Add a warning, a note. They serve as callbacks `say` of other functions; plan: a RunPlan. */
void run_plan_warn(void *plan, const char *text);
void run_plan_note(void *plan, const char *text);
/* Add a value. name: a constant; text: NULL is written as null; json: a value that is already JSON. At most PLAN_VALUES in all. */
void run_plan_count(RunPlan *plan, RunPlanUse use, const char *name, int64_t value);
void run_plan_real(RunPlan *plan, RunPlanUse use, const char *name, double value);
void run_plan_text(RunPlan *plan, RunPlanUse use, const char *name, const char *text);
void run_plan_json(RunPlan *plan, RunPlanUse use, const char *name, const char *json);
double run_plan_get(const RunPlan *plan, const char *name); /* the number of a value; NaN: there is none of that name */
/* Adds a line if results depend on the number of ranks because of how their gradients are added. comm: NULL for one process. */
void run_plan_ranks(RunPlan *plan, const Recipe *recipe, const Comm *comm);
/* Adds lines: by what the format of the rows was recognized, if it is the format of another program; and how rows of plain text are read. */
void run_plan_form(RunPlan *plan, const Dataset *rows);
/* Adds the values and lines that every run on a model has: numbers of parameters, what is trained, the adapter's layers, unused tensors that are
 * kept, and plan->memory by parts. with: what else is trained, as " and ...", or "". */
void run_plan_model(RunPlan *plan, const Recipe *recipe, const Model *model, const char *with);
void run_plan_memory(RunPlan *plan); /* adds only the line about plan->memory */
/* Writes the values with that use, and the planned memory; with PLAN_RECORD also the warnings. */
void run_plan_write(const RunPlan *plan, RunPlanUse use, JsonWriter *w);

#endif
