/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a command: a table in its file, from which --help is made.
 *
 *     Command command = {.arguments_help = "MODEL", .help = "Says what is in it."};
 *     const char *adapter = NULL;
 *     const Option options[] = {{"--adapter", OPTION_TEXT, &adapter, "DIR", "PEFT adapter to use"}, {0}};
 *     return command_main(&command, argc, argv, options, work, &adapter);   // work(&command, &adapter); positionals are in command.arguments
 */
#ifndef TUNE_OPTIONS_H
#define TUNE_OPTIONS_H

#include "lib/base/arena.h"
#include "lib/recipe/recipe.h"

typedef enum OptionType { OPTION_END, OPTION_FLAG, OPTION_TEXT, OPTION_INT, OPTION_REAL, OPTION_LIST } OptionType;
typedef struct Option {
    const char *name; /* "--max-new-tokens" or "-o" */
    OptionType type;
    void *value; /* bool *, const char **, int64_t *, double *, TextList * (an OPTION_LIST may be given several times) */
    const char
        *argument; /* shown in help; NULL for flags. In capitals what is meant, such as FILE, DIR, N; else the words that it may be: "f32|bf16" */
    const char *help;
} Option;
typedef struct Command {
    const char *name;           /* with the program's: "tune data check"; command_parse sets it */
    const char *arguments_help; /* "MODEL [FILE]", "ls | show NAME": capitals as above; what shells complete is read off it */
    const char *help;           /* what it does, a paragraph, with an example */
    size_t n_arguments;
    const char *arguments[256]; /* positionals; key=value overrides of RECIPE commands among them */
    int64_t threads;
    bool quiet;
    int64_t log;
    bool profile;                /* --profile: where the time went, at the end */
    bool json;                   /* --json is accepted by every command; those that print no result ignore it */
    Arena *arena;                /* lives until the command ends */
    const char *const *sections; /* of a command with a RECIPE: those whose keys it takes, as recipe_command has them; else NULL */
} Command;
/* Fills option values and positionals. --help prints the command's help (help.h) and ends the program's work with *done = true. ST_USAGE names an
 * unknown option and the nearest one. */
Status command_parse(Command *command, int argc, char **argv, const Option *options, bool *done);
/* What most commands are: parses, does the work unless help was asked for, and frees the arena. */
typedef Status CommandWork(const Command *command, void *context);
Status command_main(Command *command, int argc, char **argv, const Option *options, CommandWork *work, void *context);
void use_threads(int64_t n); /* 0 = one for each core that the process may use, or what OMP_NUM_THREADS says */
/* ST_USAGE unless there are `least` to `most` positional arguments. */
Status command_needs(const Command *command, size_t least, size_t most);

#endif
