/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the commands that take a RECIPE: its file and overrides, --resume, --force, --dry-run, --schema.
 *
 *     static Status run(const RecipeCommand *job) { ... job->recipe ... }
 *     Status cmd_sft(int argc, char **argv) { return recipe_command(argc, argv, "sft", about, sections, run); }
 */
#ifndef TUNE_RECIPE_COMMAND_H
#define TUNE_RECIPE_COMMAND_H

#include "cmd/app/options.h"
#include "lib/train/training.h"

typedef struct RecipeCommand {
    const char *name; /* "sft" */
    const Command *command;
    Recipe *recipe;
    Runtime runtime;    /* by model.compute */
    RunOptions options; /* options.command has no options except --resume and --force, and its URLs have no user, password and query */
    bool watch;         /* --watch, only for tune rl */
} RecipeCommand;
typedef Status RecipeCommandRun(const RecipeCommand *job);
/* Parses the command line, reads the recipe, sets the number of threads and runs `work`. about: a paragraph and an example. sections: the sections
 * whose keys the command takes, with NULL after the last; "" is the top level, "reward" the top-level key of that name. ST_CONFIG for a key of
 * another section on the command line, and, if the command trains on rows, for keys in the file that say how to learn by rewards. */
Status recipe_command(int argc, char **argv, const char *name, const char *about, const char *const *sections, RecipeCommandRun *work);

/* Reads the recipe that the arguments name (a file or a shipped one), applies the overrides, and resolves Hugging Face names of models. Fails as
 * recipe_read does. The caller frees *recipe. */
Status command_recipe(const Command *command, Recipe **recipe);

/* For RewardOptions.secret and the like, since libraries do not read the environment: the value of the variable `name`; NULL if it is not set. */
const char *secret_from_environment(void *context, const char *name);

#endif
