/* tune data: rows before training. One file cmd_data_<name>.c and one line of data_commands.def per subcommand. */
#include "cmd/cmd_data.h"

static const CommandInfo commands[] = {
#define DATA_COMMAND(name, help) {#name, "data " #name, help, cmd_data_##name, NULL},
#include "cmd/data_commands.def"
#undef DATA_COMMAND
};
const CommandGroup group_data = {"data", "Rows before training.", commands, COUNT_OF(commands)};
