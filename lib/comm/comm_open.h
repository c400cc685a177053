/* SPDX-License-Identifier: Apache-2.0 */
/* The world of the processes that a launcher started: finds the plug-in of its MPI library and loads it. */
#ifndef TUNE_COMM_OPEN_H
#define TUNE_COMM_OPEN_H

#include "lib/comm/comm.h"

typedef enum CommLibrary {
#define TRANSPORT(name, title, file, package, launcher) name,
#include "lib/comm/transports.def"
#undef TRANSPORT
    COMM_N_LIBRARIES
} CommLibrary;
typedef struct CommLibraryInfo {
    const char *title, *file, *launcher; /* "Open MPI", "comm_openmpi.so", what starts a run with it */
} CommLibraryInfo;
const CommLibraryInfo *comm_library(CommLibrary library);

/* What a launcher tells its processes in their environment */
typedef struct CommLaunch {
    bool launched;       /* false: no launcher, or one process */
    bool unknown;        /* srun started several processes, but without a way to find each other */
    CommLibrary library; /* the launcher's */
    int rank, size;
} CommLaunch;
/* variable: the value of a variable of the environment, NULL if it is not set */
CommLaunch comm_launch(const char *(*variable)(void *context, const char *name), void *context);
/* The path of a plug-in: the first of the folders that has it. False: none has. */
bool comm_plugin_find(CommLibrary library, const char *const *folders, size_t n, char *path, size_t size);
/* Loads the plug-in of the launch, and opens the world. The caller calls comm_close. ST_RESOURCE: the program has no such plug-in, the library cannot
 * start, or it finds another number of ranks than the launcher says. */
Status comm_open(const CommLaunch *launch, const char *const *folders, size_t n, const CommConfig *config, Comm **world);

#endif
