/* SPDX-License-Identifier: Apache-2.0 */
/* tune: a command of commands.def. */
#include "cmd/app/commands.h"

const char program_name[] = "tune";

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] != '-') threads_wait_passively(argv); /* a command; one without arguments may compute as well */
    return program_run(argc, argv, command_run);
}
