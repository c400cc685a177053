/* tune data: rows before training. One file cmd_data_<name>.c and one line of data_commands.def per subcommand. */
#include <string.h>

#include "cmd/cmd_data.h"

typedef struct DataCommand { const char *name, *full_name, *help; CommandMain *run; } DataCommand;
static const DataCommand commands[] = {
#define DATA_COMMAND(name, help) {#name, "data " #name, help, cmd_data_##name},
#include "cmd/data_commands.def"
#undef DATA_COMMAND
    {0},
};

static void print_usage(void) {
    print_result("usage: tune data COMMAND ...\n\nRows before training.\n\n");
    for (const DataCommand *c = commands; c->name; c++) print_result("  %-10s %s\n", c->name, c->help);
    print_result("\ntune data COMMAND --help explains a command.\n");
}

Status cmd_data(int argc, char **argv) {
    const char *names[COUNT_OF(commands)] = {0};
    size_t n = 0;
    if (argc < 2) return status_hint(status_fail(ST_USAGE, "tune data needs a command"), "tune data --help lists them");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        print_usage();
        return ST_OK;
    }
    for (const DataCommand *c = commands; c->name; c++) {
        if (!strcmp(argv[1], c->name)) {
            argv[1] = (char *)(uintptr_t)c->full_name; /* as messages call it */
            return c->run(argc - 1, argv + 1);
        }
        names[n++] = c->name;
    }
    const char *nearest = text_nearest(argv[1], names, n);
    status_fail(ST_USAGE, "unknown command 'data %s'", argv[1]);
    if (nearest) return status_hint(ST_USAGE, "did you mean 'data %s'?", nearest);
    return status_hint(ST_USAGE, "tune data --help lists the commands");
}
