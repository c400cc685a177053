/* SPDX-License-Identifier: Apache-2.0 */
/* A run that is resumed with another length (train.max_steps, train.epochs, rl.total_steps). It goes on from the newest checkpoint to which a run of
 * that length would have done the same, else from the newest one, and says what differs then. extended.json keeps what was done.
 *
 *     TRY(lengthen_read(&longer, recipe));              // longer.before: the recipe so far, NULL where the length is the same
 *     TRY(lengthen_plan(&longer, recipe, kind, context)); // after kind->open: lib/train/lengthen_plan.h
 *     TRY(run_open_longer(recipe, RUN_RESUME, &longer, &run));
 */
#ifndef TUNE_LENGTHEN_H
#define TUNE_LENGTHEN_H

#include "lib/run/run.h"

/* How long a run by a recipe is. */
typedef struct RunLength {
    int64_t steps;          /* as train.max_steps counts them; on environments those of the environment, as rl.total_steps does */
    int64_t schedule_steps; /* the learning rate's schedule is over so many; 0: there is none */
    int64_t schedule_rate;  /* of them in each step that checkpoints are numbered by */
} RunLength;
struct Lengthening {
    Recipe *before;
    RunLength was, is;
    bool finished;       /* it had come to its end */
    bool idle;           /* and is as long already: nothing is to be done */
    const char *counter; /* as the kind's */
    int64_t done, from;  /* steps that were done; the checkpoint that it goes on from, -1 = the start */
    Str differs;         /* from a run that had been so long from the start; "" = nothing: the same bytes come out */
};
Status lengthen_read(Lengthening *longer, const Recipe *recipe);
void lengthen_describe(const Lengthening *longer, Str *text);
/* In a run directory that is locked: from here on the run has the new length, whenever the process ends. */
Status lengthen_apply(const Lengthening *longer, Run *run, const Recipe *recipe);
void lengthen_release(Lengthening *longer);
/* Whether the run went by a recipe with this fingerprint when it was shorter. */
bool lengthen_knows(const Run *run, uint64_t recipe);

#endif
