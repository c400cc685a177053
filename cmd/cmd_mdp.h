/* The subcommands of tune mdp, and what they share. */
#ifndef TUNE_CMD_MDP_H
#define TUNE_CMD_MDP_H

#include "cmd/cmd.h"
#include "rl/mdp.h"

#define MDP_COMMAND(name, help) Status cmd_mdp_##name(int argc, char **argv);
#include "cmd/mdp_commands.def"
#undef MDP_COMMAND

#endif
