/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint that a lengthened run continues from. */
#ifndef TUNE_LENGTHEN_PLAN_H
#define TUNE_LENGTHEN_PLAN_H

#include "lib/run/lengthen.h"
#include "lib/train/training.h"

/* Chooses the checkpoint, and appends to longer->differs what a run of the new length from the start would have done differently. kind, context: of
 * the run. ST_CONFIG: the run has done more steps than the new length, or stopped early. ST_INPUT: it is finished and has no checkpoint to continue
 * from. */
Status lengthen_plan(Lengthening *longer, const Recipe *recipe, const TrainingKind *kind, void *context);

#endif
