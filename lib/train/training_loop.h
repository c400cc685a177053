/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a run, for training.c. */
#ifndef TUNE_TRAINING_LOOP_H
#define TUNE_TRAINING_LOOP_H

#include "lib/train/training.h"

/* Takes the steps of an open run, from its checkpoint or the start to the end, and calls run_mark_finished. ST_INTERRUPTED after interrupt_request,
 * with a checkpoint saved. ST_NUMERIC names the state that is no longer finite, or a metric that is infinite; nothing is saved then. After other
 * failures of the kind's functions the newest complete step is saved, and the hint names it. */
Status training_loop(const TrainingKind *kind, void *context, const Recipe *recipe, const TrainingConfig *config, Run *run);

#endif
