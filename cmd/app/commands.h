/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of tune. Each has a file cmd_<name>.c and a line in commands.def. The arguments of tune-bench are in cmd/bench/main.c. */
#ifndef TUNE_COMMANDS_H
#define TUNE_COMMANDS_H

#include "cmd/app/app.h"

typedef struct CommandGroup CommandGroup;
typedef struct CommandInfo {
    const char *name, *full_name; /* "check", "data check": messages and argv[0] of `run` have the full name */
    const char *help;             /* one line */
    CommandMain *run;             /* NULL for a group */
    const CommandGroup *group;    /* the subcommands of a group; else NULL */
} CommandInfo;
struct CommandGroup {
    const char *name, *about;
    const CommandInfo *commands;
    size_t n;
};
extern const CommandGroup group_all; /* all commands of `tune`; its name is "" */
#define COMMAND(name, help) Status cmd_##name(int argc, char **argv);
#define GROUP(name, help) extern const CommandGroup group_##name;
#include "cmd/app/commands.def"
#undef COMMAND
#undef GROUP
/* Finds the command that the first words name. *used: how many words name it. If the words end at a group, *group is it and *info is NULL.
 * ST_USAGE for an unknown name; the hint is the nearest name. */
Status command_find(const char *const *words, size_t n, const CommandGroup **group, const CommandInfo **info, size_t *used);
Status command_run(int argc, char **argv); /* runs the command that argv names; main passes it to program_run */

#endif
