/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands that take a RECIPE have in common.
 *
 *     static Status run(const RecipeCommand *job) { ... job->recipe ... }
 *     Status cmd_sft(int argc, char **argv) { return recipe_command(argc, argv, "sft", about, sections, run); }
 */
#ifndef TUNE_RECIPE_COMMAND_H
#define TUNE_RECIPE_COMMAND_H

#include "cmd/app/options.h"
#include "lib/train/training.h"

/* A command that takes a RECIPE: its file and overrides, --resume, --dry-run, --schema. */
typedef struct RecipeCommand {
    const char *name; /* "sft" */
    const Command *command;
    Recipe *recipe;
    TrainingOptions options; /* its command: without options but --resume and --force, and of urls without user, password and query */
    bool watch;              /* of tune rl */
} RecipeCommand;
typedef Status RecipeCommandRun(const RecipeCommand *job);
/* Parses, reads the recipe, sets the threads and runs `work`. about: a paragraph with an example; sections: those whose keys --help lists, "" is the
 * top level, "reward" its key of that name, NULL behind the last. Keys of others are ST_CONFIG where they are typed, and in a file where they say how
 * to learn by rewards and rows are to be trained on. */
Status recipe_command(int argc, char **argv, const char *name, const char *about, const char *const *sections, RecipeCommandRun *work);

/* The recipe that the arguments name, a file or one that comes with the program, with their overrides; models by their names at Hugging Face are
 * found. Faults of recipe_read. */
Status command_recipe(const Command *command, Recipe **recipe);

/* For RewardOptions.secret and the like: what the variable `name` holds; NULL where it is not set. Libraries do not read the environment. */
const char *secret_from_environment(void *context, const char *name);

#endif
