/* SPDX-License-Identifier: Apache-2.0 */
/* What tune and tune-bench share around their commands: name and version, signals, the exit code.
 *
 *     const char program_name[] = "tune";
 *     int main(int argc, char **argv) { return program_run(argc, argv, command_run); }
 */
#ifndef TUNE_APP_H
#define TUNE_APP_H

#include "lib/base/base.h"

extern const char program_name[];  /* "tune" or "tune-bench", defined in each program's main.c; the prefix of its messages */
extern const char tune_version[];  /* "0.2.0-g<commit>" */
extern const char tune_program[];  /* "tune 0.2.0-g<commit>" */
extern const char tune_released[]; /* the release date of the version, "2026-11-27" */

typedef Status CommandMain(int argc, char **argv);
/* The body of main: calls `run`, prints the error and its hint if it fails, and returns the exit code. */
int program_run(int argc, char **argv, CommandMain *run);
/* Makes waiting OpenMP threads sleep instead of spin. Programs that compute call it before program_run. It re-executes the program, because OpenMP
 * reads these settings only at start. */
void threads_wait_passively(char **argv);
/* Clears a pending interrupt if Ctrl-C was its only cause. Returns true if the command may continue, false if another signal asked it to end. */
bool interrupt_cancel(void);

#endif
