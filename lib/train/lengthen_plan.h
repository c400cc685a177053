/* SPDX-License-Identifier: Apache-2.0 */
/* What a run that is made longer goes on from. */
#ifndef TUNE_LENGTHEN_PLAN_H
#define TUNE_LENGTHEN_PLAN_H

#include "lib/run/lengthen.h"
#include "lib/train/training.h"

/* ST_CONFIG: the run has done more steps than it is to have, or ended of itself; ST_INPUT: it is finished and has no checkpoint to go on from. */
Status lengthen_plan(Lengthening *longer, const Recipe *recipe, const TrainingKind *kind, void *context);

#endif
