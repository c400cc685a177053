/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers and plug-ins. */
#include "lib/comm/comm_open.h"
#include "lib/comm/comm_plugin.h"
#include "lib/base/file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const CommLibraryInfo libraries[] = {
#define TRANSPORT(name, title, file, package, launcher) {title, file, launcher},
#include "lib/comm/transports.def"
#undef TRANSPORT
};

const CommLibraryInfo *comm_library(CommLibrary library) { return &libraries[library]; }

static int number_of(const char *text) {
    char *end;
    const long value = text ? strtol(text, &end, 10) : -1;
    return text && *text && !*end && value >= 0 && value <= COMM_MAX_RANKS ? (int)value : -1;
}

CommLaunch comm_launch(const char *(*variable)(void *context, const char *name), void *context) {
    static const struct {
        const char *size, *rank, *present; /* present: another variable that has to be set */
        CommLibrary library;
        bool unknown;
    } launchers[] = {
        {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL, COMM_OPENMPI, false},
        {"PMI_SIZE", "PMI_RANK", NULL, COMM_MPICH, false},
        {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "PMIX_RANK", COMM_OPENMPI, false},
        {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", NULL, COMM_OPENMPI, true},
    };
    for (size_t i = 0; i < COUNT_OF(launchers); i++) {
        const int size = number_of(variable(context, launchers[i].size)), rank = number_of(variable(context, launchers[i].rank));
        if (size < 0 || rank < 0 || (launchers[i].present && !variable(context, launchers[i].present))) continue;
        return (CommLaunch){size > 1, size > 1 && launchers[i].unknown, launchers[i].library, rank, size};
    }
    return (CommLaunch){.size = 1};
}

bool comm_plugin_find(CommLibrary library, const char *const *folders, size_t n, char *path, size_t size) {
    for (size_t i = 0; i < n; i++) {
        const int len = snprintf(path, size, "%s/%s", folders[i], libraries[library].file);
        if (len > 0 && (size_t)len < size && file_exists(path)) return true;
    }
    return false;
}

/* Which plug-ins are there, for the hint */
static Status no_plugin(const CommLaunch *launch, const char *const *folders, size_t n) {
    char path[4096];
    status_fail(ST_RESOURCE, "%s started %d processes, but this program has no plug-in for it", libraries[launch->library].title, launch->size);
    for (int other = 0; other < COMM_N_LIBRARIES; other++)
        if (comm_plugin_find((CommLibrary)other, folders, n, path, sizeof path))
            return status_hint(ST_RESOURCE, "it has one for %s: start it with %s", libraries[other].title, libraries[other].launcher);
    return status_hint(ST_RESOURCE, "install the library's development package and build again with MPI=1; `tune doctor` lists the plug-ins");
}

Status comm_open(const CommLaunch *launch, const char *const *folders, size_t n, const CommConfig *config, Comm **world) {
    static const CommHostCalls calls = {status_fail, status_exit_code};
    char path[4096];
    CommTransport *transport;
    CommPluginOpen *open;
    *world = NULL;
    if (launch->unknown) {
        status_fail(ST_RESOURCE, "srun started %d processes that cannot find each other", launch->size);
        return status_hint(ST_RESOURCE, "start them with srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 (MPICH); srun --mpi=list shows what there is");
    }
    if (!comm_plugin_find(launch->library, folders, n, path, sizeof path)) return no_plugin(launch, folders, n);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL), *symbol = library ? dlsym(library, COMM_PLUGIN_SYMBOL) : NULL;
    if (!symbol) {
        status_fail(ST_RESOURCE, "cannot load '%s': %s", path, dlerror());
        return status_hint(ST_RESOURCE, "it was built for another MPI library or another version of this program: build it again");
    }
    memcpy(&open, &symbol, sizeof open); /* ISO C has no cast from a data pointer to a function pointer */
    TRY(open(&calls, &transport));
    if (transport->size != launch->size) {
        status_fail(ST_RESOURCE, "the launcher started %d processes, but %s sees %d", launch->size, transport->title, transport->size);
        status_hint(ST_RESOURCE, "the launcher is of another MPI library: start it with %s", libraries[launch->library].launcher);
        Failure failure;
        failure_save(&failure, ST_RESOURCE);
        transport->close(transport->state, ST_OK);
        return failure_restore(&failure);
    }
    return comm_new(transport, config, world);
}
