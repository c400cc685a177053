/* The subcommands of tune data. */
#ifndef TUNE_CMD_DATA_H
#define TUNE_CMD_DATA_H

#include "cmd/cmd.h"

#define DATA_COMMAND(name, help) Status cmd_data_##name(int argc, char **argv);
#include "cmd/data_commands.def"
#undef DATA_COMMAND

#endif
