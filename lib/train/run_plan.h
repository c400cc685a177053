/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a run before its first step: values with names, and lines for people, in the order in which they were added. What is trained
 * fills it when it opens. The command shows the lines, log.txt and started.json record them and the values, and a dry run prints the values.
 *
 *     run_plan_say(plan, "data: %lld rows", n);
 *     run_plan_count(plan, PLAN_PRINT, "rows", n);
 *     run_plan_count(plan, PLAN_BOTH, "steps", total);
 *     run_plan_model(plan, recipe, model, "");
 *
 * Texts are copied. Lack of memory is kept in `status`, which training_run looks at.
 */
#ifndef TUNE_RUN_PLAN_H
#define TUNE_RUN_PLAN_H

#include "data/data.h"
#include "lib/train/memory.h"

typedef enum RunPlanUse {
    PLAN_KEPT = 0,   /* only for plan_get */
    PLAN_RECORD = 1, /* in started.json */
    PLAN_PRINT = 2,  /* in the JSON of a dry run */
    PLAN_BOTH = PLAN_RECORD | PLAN_PRINT
} RunPlanUse;
typedef struct RunPlanValue {
    const char *name;
    RunPlanUse use;
    enum { PLAN_COUNT, PLAN_REAL, PLAN_TEXT, PLAN_JSON } kind;
    double number;
    const char *text; /* of the kinds PLAN_TEXT (NULL: null) and PLAN_JSON */
} RunPlanValue;
typedef struct RunPlanLine {
    enum { PLAN_LINE, PLAN_WARNING, PLAN_NOTE } kind; /* PLAN_NOTE: for log.txt alone */
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

void run_plan_say(RunPlan *plan, const char *format, ...) PRINTF_LIKE(2, 3);
/* These two are callbacks of functions that say what they found; plan: a RunPlan. */
void run_plan_warn(void *plan, const char *text);
void run_plan_note(void *plan, const char *text);
/* name: a constant; text: NULL is written as null; json: a value that is already JSON. */
void run_plan_count(RunPlan *plan, RunPlanUse use, const char *name, int64_t value);
void run_plan_real(RunPlan *plan, RunPlanUse use, const char *name, double value);
void run_plan_text(RunPlan *plan, RunPlanUse use, const char *name, const char *text);
void run_plan_json(RunPlan *plan, RunPlanUse use, const char *name, const char *json);
double run_plan_get(const RunPlan *plan, const char *name); /* a number; NaN when it is not set */
/* Adds how the format of the rows was recognized, if it is another program's, and how rows of plain text are read, if there are any. */
void run_plan_form(RunPlan *plan, const Dataset *rows);
/* Adds the values and lines that every run on a model has: numbers of parameters, what is trained, the adapter's layers, unused tensors that are
 * kept, and plan->memory by parts. with: what else is trained, as " and ...", or "". */
void run_plan_model(RunPlan *plan, const Recipe *recipe, const Model *model, const char *with);
void run_plan_memory(RunPlan *plan); /* adds the line of plan->memory alone */
/* Writes the values for that use and the planned memory; into started.json also the warnings. */
void run_plan_write(const RunPlan *plan, RunPlanUse use, JsonWriter *w);

#endif
