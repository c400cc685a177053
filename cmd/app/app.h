/* SPDX-License-Identifier: Apache-2.0 */
/* What tune and tune-bench are around their commands: name and version, signals, the exit code.
 *
 *     const char program_name[] = "tune";
 *     int main(int argc, char **argv) { return program_run(argc, argv, command_run); }
 */
#ifndef TUNE_APP_H
#define TUNE_APP_H

#include "lib/base/base.h"

extern const char program_name[];                 /* "tune" or "tune-bench": main.c's of each program; begins its messages */
extern const char tune_version[], tune_program[]; /* "0.2.0-g<commit>"; the same behind "tune " */
extern const char tune_released[];                /* the date of the version, "2026-11-27" */

typedef Status CommandMain(int argc, char **argv);
/* What main does: runs, prints what went wrong, and returns the exit code. */
int program_run(int argc, char **argv, CommandMain *run);
/* Before program_run, by programs that compute: threads that wait for each other let others run. Starts the program once more. */
void threads_wait_passively(char **argv);
/* Takes an interrupt back where it was Ctrl-C and nothing else that asked; true: the command goes on. */
bool interrupt_cancel(void);

#endif
