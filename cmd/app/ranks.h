/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that a launcher (mpirun, srun) started as one run. Without a launcher, or with one process, everything here does nothing. Only rank 0
 * prints; a failure is printed once. */
#ifndef TUNE_RANKS_H
#define TUNE_RANKS_H

#include "lib/base/work.h"
#include "lib/comm/comm.h"
#include "lib/recipe/recipe.h"

/* ---- for program_run ---- */

void ranks_begin(void); /* finds the launcher by its environment; all ranks but the first are silent from then on */
/* After the command: waits for all ranks, or tells them of a failure. Returns the status of the run. */
Status ranks_end(Status status);
bool ranks_print(void);          /* whether this rank prints the failure */
void ranks_close(Status status); /* after all is printed: a failure ends all ranks */

/* ---- for commands ---- */

/* Whether this process has nothing to do: it is not the first one, and the command works in one process. command: its full name */
bool ranks_spare(const char *command);
/* Opens the world of this run's ranks. ST_RESOURCE: the launcher is of another MPI library, or there is no plug-in for it. */
Status ranks_open(void);
/* For a failure before a command has opened the world: opens it, so that all ranks hear of what perhaps only this one has. Returns status, or fails
 * as ranks_open. */
Status ranks_begin_failed(const char *command, Status status);
Comm *ranks_world(void);     /* NULL: one process, or not opened */
int64_t ranks_sharing(void); /* how many ranks use this rank's processors; 1 for one process */
/* Appends the MPI libraries for which there is a plug-in: "Open MPI, MPICH"; nothing if there is none. */
Status ranks_libraries(Str *text);
/* A WorkSink: show_work, and a sign of life for the other ranks */
void ranks_work(void *context, const Work *work);
void ranks_warn(const char *text); /* prints a warning of a rank that is silent otherwise: "rank 1 (hostB): ..." */
/* To be called after each step. Says once how to get more time to save, if the launcher leaves less than the step took. */
void ranks_step(void);
/* Fails on all ranks alike if one of them has another program, instruction set or recipe; else applies the recipe to the world, and shows how many
 * ranks there are. */
Status ranks_agree(const Recipe *recipe);
Status ranks_agree_on_words(int argc, char **argv); /* the same for a command without a recipe: compares its command line */

#endif
