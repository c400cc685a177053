/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands that learn from rows of preferences show: tune rl with a preference loss, tune reward. */
#ifndef TUNE_PAIR_COMMAND_H
#define TUNE_PAIR_COMMAND_H

#include "cmd/common/recipe_command.h"
#include "rl/pairs/pair_run.h"

typedef Status PairCommandRun(const PairRunConfig *config, TrainResult *result);
/* Runs the job and shows plan, progress and result; answers: what it makes can be asked. */
Status pair_command(const RecipeCommand *job, PairCommandRun *run, bool answers);

#endif
