/* tune mdp: finite Markov decision processes. One file cmd_mdp_<name>.c and one line of mdp_commands.def per subcommand. */
#include <string.h>

#include "cmd/cmd_mdp.h"

typedef struct MdpCommand { const char *name, *full_name, *help; CommandMain *run; } MdpCommand;
static const MdpCommand commands[] = {
#define MDP_COMMAND(name, help) {#name, "mdp " #name, help, cmd_mdp_##name},
#include "cmd/mdp_commands.def"
#undef MDP_COMMAND
    {0},
};

static void print_usage(void) {
    print_result(
        "usage: tune mdp COMMAND FILE|ENV ...\n\nFinite Markov decision processes, exactly: of a file (states, actions, gamma, transitions) or built in, as FrozenLake-v1.\n\n");
    for (const MdpCommand *c = commands; c->name; c++) print_result("  %-10s %s\n", c->name, c->help);
    print_result("\ntune mdp COMMAND --help explains a command.\n");
}

Status mdp_argument(const char *text, Arena *arena, const Yaml **node) {
    Yaml *read = arena_zero(arena, sizeof *read);
    if (!read) return ST_RESOURCE;
    *read = (Yaml){.kind = YAML_SCALAR, .text = text};
    if (text[0] == '{') TRY(yaml_read_text(text, strlen(text), "environment", arena, &read));
    yaml_forget_lines(read); /* the line of a recipe is meant by it */
    *node = read;
    return ST_OK;
}

Status cmd_mdp(int argc, char **argv) {
    const char *names[COUNT_OF(commands)] = {0};
    size_t n = 0;
    if (argc < 2) return status_hint(status_fail(ST_USAGE, "tune mdp needs a command"), "tune mdp --help lists them");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        print_usage();
        return ST_OK;
    }
    for (const MdpCommand *c = commands; c->name; c++) {
        if (!strcmp(argv[1], c->name)) {
            argv[1] = (char *)(uintptr_t)c->full_name; /* as messages call it */
            return c->run(argc - 1, argv + 1);
        }
        names[n++] = c->name;
    }
    const char *nearest = text_nearest(argv[1], names, n);
    status_fail(ST_USAGE, "unknown command 'mdp %s'", argv[1]);
    if (nearest) return status_hint(ST_USAGE, "did you mean 'mdp %s'?", nearest);
    return status_hint(ST_USAGE, "tune mdp --help lists the commands");
}
