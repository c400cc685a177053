/* SPDX-License-Identifier: Apache-2.0 */
/* tune mdp: finite Markov decision processes. Each subcommand has a file cmd_mdp_<name>.c and a line in mdp_commands.def. */
#include "cmd/app/commands.h"
#include "cmd/mdp/cmd_mdp.h"

static const CommandInfo commands[] = {
#define MDP_COMMAND(name, help) {#name, "mdp " #name, help, cmd_mdp_##name, NULL},
#include "cmd/mdp/mdp_commands.def"
#undef MDP_COMMAND
};

const CommandGroup group_mdp = {
    "mdp", "Solves finite Markov decision processes exactly: from a file (states, actions, gamma, transitions) or built in, such as FrozenLake-v1.",
    commands, COUNT_OF(commands)};
