/* SPDX-License-Identifier: Apache-2.0 */
/* The program tune. */
#include "cmd/app/commands.h"

const char program_name[] = "tune";

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] != '-') threads_wait_passively(argv); /* any command, since even one without arguments may compute */
    return program_run(argc, argv, command_run);
}
