/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of runs of tune rl. Each function runs the job and shows plan, progress and result. */
#ifndef TUNE_CMD_RL_H
#define TUNE_CMD_RL_H

#include "cmd/common/recipe_command.h"

Status rl_environment(const RecipeCommand *job); /* an environment of states and actions */
Status rl_text(const RecipeCommand *job);        /* prompts with rewards for answers, or an environment of texts */
Status rl_pairs(const RecipeCommand *job);       /* preferences */
Status rl_offline(const RecipeCommand *job);     /* rows with rewards */

#endif
