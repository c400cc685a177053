/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a command: a table in the command's file. --help is made from it.
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
    void *value;          /* bool *, const char **, int64_t *, double *, TextList * (an OPTION_LIST may be given several times) */
    const char *argument; /* shown in help; NULL for flags. A kind in capitals (FILE, DIR, N), or all values that the option takes: "f32|bf16" */
    const char *help;
} Option;
typedef struct Command {
    const char *name;           /* full name: "tune data check"; command_parse sets it */
    const char *arguments_help; /* "MODEL [FILE]", "ls | show NAME": capitals as above; shell completion is made from it */
    const char *help;           /* a paragraph on what the command does, and an example */
    size_t n_arguments;
    const char *arguments[256]; /* positionals, including KEY=VALUE overrides of a recipe */
    int64_t threads;
    bool quiet;
    int64_t log;
    bool profile;                /* --profile: print the time by kind of op at the end */
    bool over_ranks;             /* ranks divide its rows (dealt.h); set by the command */
    bool json;                   /* --json is accepted by every command; those that print no result ignore it */
    Arena *arena;                /* lives until the command ends */
    const char *const *sections; /* recipe sections whose keys it takes (see recipe_command); NULL without a RECIPE */
} Command;
/* Sets option values and positionals. After --help has printed the help (help.h), *done is true: there is nothing more to do. ST_USAGE for an
 * unknown option; the hint is the nearest one. */
Status command_parse(Command *command, int argc, char **argv, const Option *options, bool *done);
/* The body of most commands: parses the command line, calls `work` unless --help was given, and frees the arena. */
typedef Status CommandWork(const Command *command, void *context);
Status command_main(Command *command, int argc, char **argv, const Option *options, CommandWork *work, void *context);
void use_threads(int64_t n); /* 0: OMP_NUM_THREADS, or one thread per available core */
/* ST_USAGE unless there are `least` to `most` positional arguments. */
Status command_needs(const Command *command, size_t least, size_t most);

#endif
