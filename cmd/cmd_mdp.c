/* SPDX-License-Identifier: Apache-2.0 */
/* tune mdp: finite Markov decision processes. One file cmd_mdp_<name>.c and one line of mdp_commands.def per subcommand. */
#include <string.h>

#include "cmd/cmd_mdp.h"

static const CommandInfo commands[] = {
#define MDP_COMMAND(name, help) {#name, "mdp " #name, help, cmd_mdp_##name, NULL},
#include "cmd/mdp_commands.def"
#undef MDP_COMMAND
};

Status mdp_argument(const char *text, Arena *arena, const Yaml **node) {
    Yaml *read = arena_zero(arena, sizeof *read);
    if (!read) return ST_RESOURCE;
    *read = (Yaml){.kind = YAML_SCALAR, .text = text};
    if (text[0] == '{') TRY(yaml_read_text(text, strlen(text), "environment", arena, &read));
    yaml_forget_lines(read); /* the line of a recipe is meant by it */
    *node = read;
    return ST_OK;
}

const CommandGroup group_mdp = {
    "mdp", "Finite Markov decision processes, exactly: of a file (states, actions, gamma, transitions) or built in, as FrozenLake-v1.", commands,
    COUNT_OF(commands)};
