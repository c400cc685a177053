/* SPDX-License-Identifier: Apache-2.0 */
/* What tune rl learns from: each runs the job and shows plan, progress and result. Runs on pairs: pair_command.h. */
#ifndef TUNE_CMD_RL_H
#define TUNE_CMD_RL_H

#include "cmd/common/recipe_command.h"

Status rl_environment(const RecipeCommand *job); /* an environment of states and actions */
Status rl_text(const RecipeCommand *job);        /* prompts whose answers rewards judge, or an environment of texts */
Status rl_offline(const RecipeCommand *job);     /* rows with rewards */

#endif
