/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of tune: one file cmd_<name>.c and one line in commands.def each. tune-bench has words of its own (cmd/bench/main.c). */
#ifndef TUNE_COMMANDS_H
#define TUNE_COMMANDS_H

#include "cmd/app/app.h"

/* full_name: "data check", as messages call it and run finds it in argv[0]. A group has commands of its own instead of `run`. */
typedef struct CommandGroup CommandGroup;
typedef struct CommandInfo {
    const char *name, *full_name, *help;
    CommandMain *run;
    const CommandGroup *group;
} CommandInfo;
struct CommandGroup {
    const char *name, *about;
    const CommandInfo *commands;
    size_t n;
};
extern const CommandGroup group_all; /* what stands behind `tune`; its name is "" */
#define COMMAND(name, help) Status cmd_##name(int argc, char **argv);
#define GROUP(name, help) extern const CommandGroup group_##name;
#include "cmd/app/commands.def"
#undef COMMAND
#undef GROUP
/* Follows words to a command or, when they end before, a group (*info NULL); *used: how many of them. ST_USAGE for a name that is none, with the
 * nearest one. */
Status command_find(const char *const *words, size_t n, const CommandGroup **group, const CommandInfo **info, size_t *used);
Status command_run(int argc, char **argv); /* of main */

#endif
