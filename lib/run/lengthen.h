/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that are resumed with another length (train.max_steps, train.epochs, rl.total_steps). Such a run continues from the newest checkpoint that a
 * run of the new length would also have; if there is none, it continues from the newest one and reports the difference. extended.json records it.
 *
 *     TRY(lengthen_read(&longer, recipe));              // longer.before: the recipe so far, NULL where the length is the same
 *     TRY(lengthen_plan(&longer, recipe, kind, context)); // after kind->open: lib/train/lengthen_plan.h
 *     TRY(run_open_longer(recipe, RUN_RESUME, &longer, &run));
 */
#ifndef TUNE_LENGTHEN_H
#define TUNE_LENGTHEN_H

#include "lib/run/run.h"

/* The length of a run by a recipe. */
typedef struct RunLength {
    int64_t steps;          /* as train.max_steps counts them; with environments the environment's steps, like rl.total_steps */
    int64_t schedule_steps; /* steps of the learning rate's schedule; 0: there is none */
    int64_t schedule_rate;  /* schedule steps in each step by which checkpoints are numbered */
} RunLength;
struct Lengthening {
    Recipe *before;
    RunLength was, is;
    bool finished;       /* it had reached its end */
    bool idle;           /* it has the new length already: there is nothing to do */
    const char *counter; /* TrainingKind.counter */
    int64_t done, from;  /* done: steps that were done; from: the checkpoint to continue from, -1 = the start */
    Str differs;         /* what differs from a run with this length from the start; "" = nothing: the results are byte-identical */
};
Status lengthen_read(Lengthening *longer, const Recipe *recipe);
void lengthen_describe(const Lengthening *longer, Str *text);
/* Records the new length in a locked run directory: the run has it from here on, whenever the process ends. */
Status lengthen_apply(const Lengthening *longer, Run *run, const Recipe *recipe);
void lengthen_release(Lengthening *longer);
/* Whether the run used a recipe with this fingerprint before it was made longer. */
bool lengthen_knows(const Run *run, uint64_t recipe);

#endif
