/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the commands that train on preferences: tune rl with a preference loss, and tune reward. */
#ifndef TUNE_PAIR_COMMAND_H
#define TUNE_PAIR_COMMAND_H

#include "cmd/common/recipe_command.h"
#include "rl/pairs/pair_run.h"

typedef Status PairCommandRun(const PairRunConfig *config, TrainResult *result);
/* Runs the job and shows plan, progress and result. answers: the result is a model that answers prompts, so commands for that are suggested. */
Status pair_command(const RecipeCommand *job, PairCommandRun *run, bool answers);

#endif
