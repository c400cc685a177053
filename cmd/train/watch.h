/* SPDX-License-Identifier: Apache-2.0 */
/* Shows an episode while it is played.
 *
 *     Watch watch = {0};
 *     TRY(learn_evaluate(run, &(EvaluationConfig){.episodes = 1, .on_step = watch_step, .context = &watch}, &evaluation));
 */
#ifndef TUNE_WATCH_H
#define TUNE_WATCH_H

#include "rl/env/env.h"

typedef struct Watch {
    int64_t steps;
} Watch; /* state of the episode so far */
/* For EvaluationConfig.on_step, with a Watch as its context. Prints to stdout. */
void watch_step(void *context, const Env *env, const double *actions);

#endif
