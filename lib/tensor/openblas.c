/* SPDX-License-Identifier: Apache-2.0 */
/* Finds OpenBLAS, and checks before loading whether there is memory for it. */
#include "lib/tensor/openblas.h"
#include "lib/base/str.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static OpenBlas functions;

/* Builds with OpenMP threads come first: a build with threads of its own would start them inside ours. */
static const char *const files[] = {
#ifdef __APPLE__
    "libopenblas.dylib",
    "/opt/homebrew/opt/openblas/lib/libopenblas.dylib",
    "/usr/local/opt/openblas/lib/libopenblas.dylib",
#else
    "libopenblaso.so.0",
    "libopenblas.so.0",
    "libopenblas.so",
#endif
};

/* Address space for the library and for a buffer for each thread, measured with 0.3.21. */
static Status check_room(int threads) {
    const size_t library = (size_t)64 << 20, buffer = (size_t)128 << 20, bytes = library + buffer * ((size_t)threads + 1);
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED) {
        munmap(room, bytes);
        return ST_OK;
    }
    char words[32];
    status_fail(ST_RESOURCE, "no room for OpenBLAS: it takes %s of address space", format_bytes((double)bytes, words));
    return status_hint(ST_RESOURCE, "raise the limit (ulimit -v), or use fewer threads (OMP_NUM_THREADS)");
}

/* Converts a data pointer to a function pointer by copying its bytes: ISO C has no cast for it. */
static bool find_symbol(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static Status take_functions(void *library) {
    char *(*config)(void), *(*core)(void);
    OpenBlas blas;
    if (!find_symbol(library, "cblas_sgemm", &blas.sgemm) || !find_symbol(library, "cblas_dgemm", &blas.dgemm) ||
        !find_symbol(library, "dgetrf_", &blas.dgetrf) || !find_symbol(library, "dgetrs_", &blas.dgetrs) ||
        !find_symbol(library, "dgbtrf_", &blas.dgbtrf) || !find_symbol(library, "dgbtrs_", &blas.dgbtrs) ||
        !find_symbol(library, "openblas_get_config", &config) || !find_symbol(library, "openblas_get_corename", &core) ||
        strstr(config(), "USE64BITINT"))
        return status_fail(ST_RESOURCE, "cannot use the OpenBLAS that is there: it lacks LAPACK, or counts in 64 bits");
    const char *version = strchr(config(), ' ');
    snprintf(blas.version, sizeof blas.version, "openblas %.*s (%s)", version ? (int)strcspn(version + 1, " ") : 0, version ? version + 1 : "",
             core());
    functions = blas;
    return ST_OK;
}

Status openblas_load(int threads, const OpenBlas **blas) {
    void *library = NULL;
    *blas = &functions;
    if (functions.sgemm) return ST_OK;
    TRY(check_room(threads));
    for (size_t i = 0; i < COUNT_OF(files) && !library; i++) library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (library) return take_functions(library);
    status_fail(ST_RESOURCE, "cannot load OpenBLAS: %s", dlerror());
    return status_hint(ST_RESOURCE, "install it (Debian: libopenblas0-openmp, Fedora: openblas-openmp, Homebrew: openblas)");
}
