/* A run from its recipe to its end, as all kinds of training go through it: what is refused is refused before anything is loaded, and the run
 * directory is made only when nothing can be refused any more.
 *
 *     return training_run(&(Training){.context = &sft, .recipe = &sft.recipe, .resume = resume, .open = open, .train = train, ...});
 */
#ifndef TUNE_TRAINING_H
#define TUNE_TRAINING_H

#include "lib/train/train.h"

/* What training_run asks of a kind of training, in this order. */
typedef struct Training {
    void *context;
    const Recipe *const *recipe;                           /* `open` may put another one in its place, such as one with the day (recipe_dated) */
    const char *command;                                   /* as it was typed, for the run's record; may be NULL */
    bool resume, dry_run;                                  /* dry_run: up to `tell` */
    Status (*recall)(void *context, const Run *run);       /* instead of all below: the run was finished before; says its result again */
    Status (*open)(void *context, TrainMemory *memory);    /* model, rows, steps; what the run will take, all 0 where that is not planned */
    void (*tell)(void *context, const TrainMemory *memory); /* shows the plan */
    void (*started)(void *context, JsonWriter *w);         /* what is known before the first step, into started.json */
    Status (*train)(void *context, Run *run);
    void (*release)(void *context);                        /* in any case, and before the report is written */
} Training;
/* Writes report.html at the end, also of a run that failed. Faults of these functions, of run_check, run_open and trainer_check_memory. */
Status training_run(const Training *training);

#endif
