/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of tune plan: the task of a recipe (plan_recipe.c, plan_rows.c), its result as tables and JSON (plan_print.c), and as a page
 * (plan_page.c). */
#ifndef TUNE_PLAN_COMMAND_H
#define TUNE_PLAN_COMMAND_H

#include "cmd/app/options.h"
#include "lib/plan/plan.h"

/* Lengths of the recipe's rows, in tokens. A row of preferences is a pair. */
typedef struct PlanLengths {
    double rows, tokens, batches; /* of an epoch; rows 0: they were not read */
    double largest_batch;         /* tokens of the largest accumulation step */
    double longest;               /* the longest prompt; 0: rows are no prompts */
    int64_t steps;                /* of the run; prompts: 0 */
    char why[512];                /* why they were not read; "": the recipe has plan.row_tokens */
} PlanLengths;
typedef struct PlanCommand {
    const Command *command;
    const Recipe *recipe;
    PlanTask task;
    PlanSearch search;
    PlanLengths lengths;
    bool here; /* machine: here, measured */
    bool assumed_efficiency, assumed_link, assumed_disk;
    double run_tokens, price; /* NaN: unknown; price of a machine for an hour */
    const char *kind;         /* "SFT", "preferences", "rollouts" */
} PlanCommand;
/* ranks: 0 = one on each device. ST_CONFIG, ST_INPUT: a key, the model's config.json, or the machine. */
Status plan_of_recipe(PlanCommand *plan, int64_t ranks);
/* Reads the recipe's rows as training does. Rows that cannot be read are no failure: lengths->why. ST_RESOURCE, ST_INTERRUPTED. */
Status plan_read_lengths(const Recipe *recipe, PlanLengths *lengths);
double plan_run_seconds(const PlanCommand *plan, const PlanLayout *layout); /* of the whole run with loading; NaN: unknown */
double plan_run_cost(const PlanCommand *plan, const PlanLayout *layout);    /* NaN: unknown */
double plan_run_energy(const PlanCommand *plan, const PlanLayout *layout);  /* joules; NaN: unknown */
/* "data 4 x tensor 2 x pipeline 2, optimizer, 1f1b", in `text`. */
void plan_describe_layout(const PlanLayout *layout, Str *text);
void plan_print(const PlanCommand *plan);
void plan_print_json(const PlanCommand *plan);
void plan_print_presets(bool json);
void plan_print_published(bool json);
Status plan_write_page(const PlanCommand *plan, const char *path); /* nothing if no layout fits. ST_RESOURCE: it cannot be written */

#endif
