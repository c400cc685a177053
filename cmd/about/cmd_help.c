/* SPDX-License-Identifier: Apache-2.0 */
/* tune help: prints what --help prints, explains topics, and prints the manual page. */
#include <string.h>

#include "cmd/app/help.h"

static void print_view(void *context, const CommandView *view) {
    (void)context;
    print_help(view, false);
}

static Status explain(const Command *command) {
    const CommandGroup *group;
    const CommandInfo *info;
    size_t used;
    if (command->n_arguments == 1) {
        Status status = help_topic(NULL, command->arguments[0]);
        if (status == ST_OK || strpbrk(command->arguments[0], "._")) return status; /* no command has such a name */
    }
    TRY(command_find(command->arguments, command->n_arguments, &group, &info, &used));
    if (info && used + 1 == command->n_arguments) return help_topic(info, command->arguments[used]);
    if (used < command->n_arguments) {
        status_fail(ST_USAGE, "tune help does not know what to do with '%s'", command->arguments[used]);
        return status_hint(ST_USAGE, "tune help %s explains the command", info->full_name);
    }
    if (info) return command_describe(info, print_view, NULL);
    print_commands(group);
    return ST_OK;
}

static Status help(const Command *command, void *context) {
    if (!*(const bool *)context) return explain(command);
    TRY(command_needs(command, 0, 0));
    return print_manual();
}

Status cmd_help(int argc, char **argv) {
    bool manual = false;
    Command command = {
        .arguments_help = "[COMMAND ...] [TOPIC]",
        .help =
            "Lists the commands, or explains one: its arguments, options and recipe keys. TOPIC is a recipe key, a section of keys, an algorithm, or `all` for all keys of a command.\n"
            "    tune help lora.rank\n"
            "    tune help rl dpo\n"
            "    tune help data check\n"
            "    tune help --man | man -l -",
    };
    const Option options[] = {
        {"--man", OPTION_FLAG, &manual, NULL, "print the manual page tune(1), with all commands, options and recipe keys"},
        {0},
    };
    return command_main(&command, argc, argv, options, help, &manual);
}
